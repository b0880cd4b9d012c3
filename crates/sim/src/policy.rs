//! The policies of I/O control that a scenario compares.

/// A policy that hosts may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Policy {
    /// The core's.
    Ours,
    /// PARDA, every four seconds, as published.
    Parda,
    /// No control at all.
    None,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 3] = [Policy::Ours, Policy::Parda, Policy::None];

    /// Its name in scenarios and tables.
    pub const fn word(self) -> &'static str {
        match self {
            Policy::Ours => "ours",
            Policy::Parda => "parda",
            Policy::None => "none",
        }
    }

    /// The policy of this name.
    pub fn named(word: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.word() == word)
    }
}
