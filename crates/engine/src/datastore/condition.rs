//! The condition of an image since it was opened: failed flushes, truncation.
//!
//! Each is noticed, logged and acted on where it happens; here it is only noted, for whoever asks how the disk is.

use std::sync::atomic::{AtomicU8, Ordering};

/// What only attaching a disk anew ends; the worse, the later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// What was written may be lost, so that no flush succeeds any more.
    FlushesFail,
    /// Its file was cut: what is left can be read, and nothing is written.
    Cut,
    /// Its file was cut while it was written: nothing of it is read or written.
    Torn,
}

impl Harm {
    const ALL: [Harm; 3] = [Harm::FlushesFail, Harm::Cut, Harm::Torn];
}

/// How an image is, shared between its I/O thread and whoever asks.
#[derive(Debug, Default)]
pub(crate) struct Condition(AtomicU8);

impl Condition {
    /// The worst that has befallen it, if anything has.
    pub(crate) fn harm(&self) -> Option<Harm> {
        let noted = self.0.load(Ordering::Relaxed);
        let place = usize::from(noted).checked_sub(1)?;
        Harm::ALL.get(place).copied()
    }

    /// This has befallen it.
    pub(crate) fn note(&self, harm: Harm) {
        self.0.fetch_max(harm as u8 + 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_is_told_whatever_comes_after_it() {
        let condition = Condition::default();
        assert_eq!(condition.harm(), None);
        for (harm, told) in [
            (Harm::FlushesFail, Harm::FlushesFail),
            (Harm::Torn, Harm::Torn),
            (Harm::Cut, Harm::Torn),
        ] {
            condition.note(harm);
            assert_eq!(condition.harm(), Some(told));
        }
    }
}
