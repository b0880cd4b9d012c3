//! State that the queues of a vhost-user-blk device share with its protocol thread.
//!
//! Queues count malformed requests and rings here, and record the last few; handles read both.

use super::effort::Effort;
use super::malformed::{LogLimit, Malformed, Recent, RingFault};
use crate::counters::DiskCounters;
use crate::device::shunned::Offences;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tidegate_core::units::Time;

/// See the module.
#[derive(Debug)]
pub(crate) struct DeviceFacts {
    /// The disk's name, for logs.
    name: String,
    /// The answer to GET_ID.
    pub(crate) serial: String,
    /// Whether the guest knows of a write-back cache and flushes it.
    pub(crate) write_back: AtomicBool,
    /// Whether the guest's cache mode is unknown: it is treated as write-through until it flushes.
    pub(crate) cache_unknown: AtomicBool,
    /// Malformed requests.
    pub(crate) nonsense: AtomicU64,
    /// Queues that were stopped because their rings were malformed.
    pub(crate) broken: AtomicU64,
    /// The last faults of both sorts.
    recent: Recent,
    /// Requests and queues have separate log limits, so that a flood of requests does not hide a stopped queue.
    requests_logged: LogLimit,
    queues_logged: LogLimit,
    /// Front ends that blocked an I/O thread.
    pub(crate) offences: Offences,
    /// Steps that parsing its guest's chains has taken in this turn.
    pub(super) effort: Effort,
    /// Counters of its queues, and of the NBD connections of its disk.
    pub(crate) counters: Arc<DiskCounters>,
    /// Room that the long lists of all its requests in flight take. Only its I/O thread counts it.
    pub(super) room: AtomicUsize,
}

impl DeviceFacts {
    /// For a device that no guest has used yet.
    pub(crate) fn new(name: String, serial: String, queues: u16) -> DeviceFacts {
        DeviceFacts {
            name,
            serial,
            write_back: AtomicBool::new(false),
            cache_unknown: AtomicBool::new(false),
            nonsense: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            recent: Recent::default(),
            requests_logged: LogLimit::default(),
            queues_logged: LogLimit::default(),
            offences: Offences::default(),
            effort: Effort::default(),
            counters: Arc::new(DiskCounters::new(queues.into())),
            room: AtomicUsize::new(0),
        }
    }

    /// The guest has flushed: it knows of the write-back cache.
    pub(crate) fn flushed(&self) {
        if self.cache_unknown.load(Ordering::Relaxed)
            && self.cache_unknown.swap(false, Ordering::Relaxed)
        {
            self.write_back.store(true, Ordering::Relaxed);
        }
    }

    /// The last faults, newest first.
    pub(crate) fn faults(&self) -> Vec<RingFault> {
        self.recent.newest_first()
    }

    /// Counts and records a fault of a queue, and logs it unless one of its sort was logged less than a minute ago.
    #[cold]
    pub(super) fn note(&self, queue: u16, what: Malformed, now: Time) {
        let fault = RingFault {
            queue,
            what,
            at: now,
        };
        self.recent.push(fault);
        let (count, limit) = match fault.stops_queue() {
            true => (&self.broken, &self.queues_logged),
            false => (&self.nonsense, &self.requests_logged),
        };
        count.fetch_add(1, Ordering::Relaxed);
        if limit.allows(now) {
            let (disk, why) = (&self.name, what.to_string());
            match fault.stops_queue() {
                true => {
                    tracing::warn!(
                        disk,
                        queue,
                        why,
                        "a guest's queue is stopped until it is set up again (further ones within a minute are only counted)"
                    );
                }
                false => {
                    tracing::warn!(
                        disk,
                        queue,
                        why,
                        "a guest's malformed request was answered with an error (further ones within a minute are only counted)"
                    );
                }
            }
        }
    }
}
