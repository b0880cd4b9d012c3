//! Front ends that blocked an I/O thread when it interrupted their guest.
//!
//! Such a wait is cut short ([`crate::sys::syscall_timeout`]), but has cost all other guests of the thread some milliseconds. The
//! front end's guest is called no more, whatever descriptors still come; and the next front end of the disk, which may
//! well be the same, runs a ring a [`PAUSE`] later: a hundredth of the thread's time is the most that is lost.
//!
//! # Always true
//! - between two such waits for front ends of one disk lies a [`PAUSE`]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// From such a wait to the next start of a ring of the disk.
const PAUSE: Duration = Duration::from_secs(1);

/// When one of a disk's front ends last had a thread wait.
#[derive(Debug, Default)]
pub(crate) struct Offences(Mutex<Option<Instant>>);

/// How one front end stands, shared by its queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing(Arc<AtomicBool>);

impl Standing {
    /// Whether it is called no more.
    pub(crate) fn is_shunned(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// It has had a thread wait, just now.
    pub(crate) fn shun(&self, offences: &Offences) {
        self.0.store(true, Ordering::Relaxed);
        *offences.last() = Some(Instant::now());
    }
}

impl Offences {
    fn last(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        // A moment, or none, is whole whoever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a [`PAUSE`] has passed since the last one.
    pub(crate) fn let_pass(&self) {
        let last = *self.last();
        if let Some(last) = last {
            std::thread::sleep(PAUSE.saturating_sub(last.elapsed()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_one_waits_and_is_not_shunned_itself() {
        let (offences, first) = (Offences::default(), Standing::default());
        let begun = Instant::now();
        first.shun(&offences);
        assert!(first.clone().is_shunned(), "all its queues are");
        offences.let_pass();
        assert!(begun.elapsed() >= PAUSE);
        assert!(!Standing::default().is_shunned());
    }
}
