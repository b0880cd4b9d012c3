//! Malformed requests of guests: counted, described, and the last few stored.
//!
//! # Always true
//! - an I/O thread never waits for a reader of the list: it skips the record instead, and still counts the fault

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use tidegate_core::units::{Span, Time};
use tidegate_front::vhost::queue::{ChainError, RingError};

/// How many faults of a device are stored: enough to see whether they are all alike.
const MOST: usize = 8;
/// Minimum time between log lines for faults of one sort: a guest can cause any number.
const LOGS_APART: Span = Span::from_secs(60);

/// What was wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// One request, which was answered with an error.
    Request(ChainError),
    /// The ring itself.
    Ring(RingError),
    /// Pages are missing in the memory that the front end shares.
    Memory,
    /// Its kick descriptor cannot be watched; the OS error number.
    Kick(i32),
    /// A descriptor of the front end blocked the I/O thread.
    Call,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Request(why) => why.fmt(f),
            Malformed::Ring(why) => why.fmt(f),
            Malformed::Memory => {
                f.write_str("pages are missing in memory that the front end shares")
            }
            Malformed::Kick(errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(f, "the kick descriptor cannot be watched: {error}")
            }
            Malformed::Call => f.write_str(
                "the front end's call descriptor blocked the I/O thread, and is not used any more",
            ),
        }
    }
}

/// A fault that was found in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingFault {
    /// The queue's number on its device.
    pub queue: u16,
    pub(crate) what: Malformed,
    /// When it was found, on the monotonic clock.
    pub at: Time,
}

impl RingFault {
    /// What was wrong, as a clause for people.
    pub fn what(&self) -> String {
        self.what.to_string()
    }

    /// Whether it stopped the queue. Otherwise it was one request, which was answered with an error.
    pub fn stops_queue(&self) -> bool {
        !matches!(self.what, Malformed::Request(_))
    }
}

/// The last faults of a device.
#[derive(Debug)]
pub(super) struct Recent(Mutex<Ring>);

#[derive(Debug)]
struct Ring {
    faults: [Option<RingFault>; MOST],
    /// Index of the next entry to write.
    next: usize,
}

impl Default for Recent {
    fn default() -> Recent {
        let faults = [None; MOST];
        Recent(Mutex::new(Ring { faults, next: 0 }))
    }
}

impl Recent {
    /// Records one in place of the oldest.
    pub(super) fn push(&self, fault: RingFault) {
        let mut ring = match self.0.try_lock() {
            Ok(ring) => ring,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let at = ring.next;
        ring.faults[at] = Some(fault);
        ring.next = (at + 1) % MOST;
    }

    /// All stored faults.
    pub(super) fn newest_first(&self) -> Vec<RingFault> {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (newer, older) = ring.faults.split_at(ring.next);
        let newest_first = newer.iter().rev().chain(older.iter().rev());
        newest_first.copied().flatten().collect()
    }
}

/// When something was last logged. Read and written by one I/O thread.
#[derive(Debug)]
pub(super) struct LogLimit {
    /// In nanoseconds, or [`NEVER`].
    last: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Default for LogLimit {
    fn default() -> LogLimit {
        LogLimit {
            last: AtomicU64::new(NEVER),
        }
    }
}

impl LogLimit {
    /// Whether another log line is allowed; if so, records it as logged now.
    pub(super) fn allows(&self, now: Time) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        let allows = last == NEVER || now.since(Time::from_nanos(last)) >= LOGS_APART;
        if allows {
            self.last.store(now.as_nanos(), Ordering::Relaxed);
        }
        allows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(queue: u16) -> RingFault {
        RingFault {
            queue,
            what: Malformed::Request(ChainError::Loop),
            at: Time::from_nanos(queue.into()),
        }
    }

    #[test]
    fn the_last_few_are_remembered_newest_first() {
        let recent = Recent::default();
        assert!(recent.newest_first().is_empty());
        let queues = || -> Vec<u16> { recent.newest_first().iter().map(|f| f.queue).collect() };
        for queue in 0..3 {
            recent.push(fault(queue));
        }
        assert_eq!(queues(), [2, 1, 0]);
        for queue in 3..20 {
            recent.push(fault(queue));
        }
        assert_eq!(queues(), [19, 18, 17, 16, 15, 14, 13, 12]);
    }

    #[test]
    fn an_io_thread_does_not_wait_for_a_reader() {
        let recent = Recent::default();
        let reads = recent.0.lock().expect("no thread panicked");
        recent.push(fault(1));
        drop(reads);
        assert!(recent.newest_first().is_empty());
    }
}
