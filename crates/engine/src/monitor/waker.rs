//! The waker of the resting monitor: the first I/O thread that wakes up notifies it.
//!
//! # Always true
//! - no work is missed: either the I/O thread sees the armed waker, or the monitor sees that the thread is awake
//! - a notification that is not armed costs a fence and a load
//!
//! # Picture
//! ```text
//!   monitor:     arm; fence; look at the threads' states        sleep unless one has worked
//!   I/O thread:  state = busy; fence; look at the waker         notify if it is armed
//! ```

use super::until;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::thread::Thread;
use tidegate_core::units::Time;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Waker {
    armed: AtomicBool,
    sleeper: OnceLock<Thread>,
}

impl Waker {
    /// Names the monitor's thread; once.
    pub(super) fn set_sleeper(&self, thread: Thread) {
        let _ = self.sleeper.set(thread);
    }

    /// The I/O thread that calls it has woken up, and its counters show that.
    #[inline]
    pub(crate) fn notify(&self) {
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) {
            self.notified();
        }
    }

    #[cold]
    fn notified(&self) {
        if self.armed.swap(false, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Wakes the monitor's thread, whatever it waits for.
    pub(super) fn wake(&self) {
        if let Some(sleeper) = self.sleeper.get() {
            sleeper.unpark();
        }
    }

    /// From now on the next notification wakes the monitor. Look at the threads' counters after this.
    pub(super) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(super) fn disarm(&self) {
        self.armed.store(false, Ordering::Relaxed);
    }

    pub(super) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Acquire)
    }

    /// Sleeps until then, or until it is woken and `is_over`. Only for the monitor's thread.
    pub(super) fn sleep_until(&self, due: Time, is_over: impl Fn() -> bool) {
        // A wake-up may be of an earlier notification.
        while !is_over() {
            match until(due) {
                None => std::thread::park(),
                Some(left) if left.is_zero() => return,
                Some(left) => std::thread::park_timeout(left),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_notification_wakes_a_resting_thread_and_later_ones_cost_nothing() {
        let waker = Arc::new(Waker::default());
        waker.arm();
        let theirs = Arc::clone(&waker);
        let sleeper = std::thread::spawn(move || {
            theirs.sleep_until(Time::NEVER, || !theirs.is_armed());
        });
        waker.set_sleeper(sleeper.thread().clone());
        waker.notify();
        sleeper.join().expect("it slept and woke up");
        assert!(!waker.is_armed());
        waker.notify();
        assert!(!waker.is_armed());
    }

    #[test]
    fn time_ends_a_sleep_that_nobody_ends() {
        let waker = Waker::default();
        let due = crate::sys::os::now() + tidegate_core::units::Span::from_millis(5);
        waker.sleep_until(due, || false);
        assert!(crate::sys::os::now() >= due);
    }
}
