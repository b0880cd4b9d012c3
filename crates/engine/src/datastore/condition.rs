//! The condition of an image since it was opened: failed flushes, truncation.
//!
//! Each is detected, logged and handled where it happens. This records it for status reports.

use std::sync::atomic::{AtomicU8, Ordering};

/// Damage that lasts until the disk is attached again, in order of severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// Written data may be lost, so flushes fail.
    FlushesFail,
    /// Its file was truncated: the rest can be read, and nothing is written.
    Cut,
    /// Its file was truncated during a write: nothing is read or written.
    Torn,
}

impl Harm {
    const ALL: [Harm; 3] = [Harm::FlushesFail, Harm::Cut, Harm::Torn];
}

/// The state of an image, shared between its I/O thread and readers.
#[derive(Debug, Default)]
pub(crate) struct Condition(AtomicU8);

impl Condition {
    /// The worst damage so far, if any.
    pub(crate) fn harm(&self) -> Option<Harm> {
        let noted = self.0.load(Ordering::Relaxed);
        let place = usize::from(noted).checked_sub(1)?;
        Harm::ALL.get(place).copied()
    }

    /// Records damage.
    pub(crate) fn note(&self, harm: Harm) {
        self.0.fetch_max(harm as u8 + 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_damage_is_reported() {
        let condition = Condition::default();
        assert_eq!(condition.harm(), None);
        for (harm, expected) in [
            (Harm::FlushesFail, Harm::FlushesFail),
            (Harm::Torn, Harm::Torn),
            (Harm::Cut, Harm::Torn),
        ] {
            condition.note(harm);
            assert_eq!(condition.harm(), Some(expected));
        }
    }
}
