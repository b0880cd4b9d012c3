//! Front ends that blocked an I/O thread when it called their guest.
//!
//! The blocking write is interrupted ([`crate::sys::syscall_timeout`]), but has delayed all other guests of the thread
//! by some milliseconds. The front end's guest is not called again, even through new descriptors. The disk's next front
//! end may be the same program, so it may start a ring only after a [`PAUSE`]. This bounds the loss to a hundredth of
//! the thread's time.
//!
//! # Always true
//! - two such delays by front ends of one disk are at least a [`PAUSE`] apart

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time from such a delay to the next start of a ring of the disk.
const PAUSE: Duration = Duration::from_secs(1);

/// When a front end of the disk last blocked a thread.
#[derive(Debug, Default)]
pub(crate) struct Offences(Mutex<Option<Instant>>);

/// Whether one front end is shunned, shared by its queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing(Arc<AtomicBool>);

impl Standing {
    /// Whether its guest is not called any more.
    pub(crate) fn is_shunned(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// It has just blocked a thread.
    pub(crate) fn shun(&self, offences: &Offences) {
        self.0.store(true, Ordering::Relaxed);
        *offences.last() = Some(Instant::now());
    }
}

impl Offences {
    fn last(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        // An `Option<Instant>` is valid even if a holder of the lock panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a [`PAUSE`] has passed since the last delay.
    pub(crate) fn wait_out_pause(&self) {
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
    fn the_next_front_end_waits_and_is_not_shunned() {
        let (offences, first) = (Offences::default(), Standing::default());
        let begun = Instant::now();
        first.shun(&offences);
        assert!(first.clone().is_shunned(), "all its queues are shunned");
        offences.wait_out_pause();
        assert!(begun.elapsed() >= PAUSE);
        assert!(!Standing::default().is_shunned());
    }
}
