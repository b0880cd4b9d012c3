//! State that the queues of a vhost-user-blk device share with its protocol thread.
//!
//! Queues count here what their guests get wrong, and note the last of it; handles read both.

use super::effort::Effort;
use super::malformed::{LogLimit, Malformed, Recent, RingFault};
use crate::device::shunned::Offences;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tidegate_core::units::Time;

/// See the module.
#[derive(Debug)]
pub(crate) struct DeviceFacts {
    /// The disk's name, for logs.
    name: String,
    /// What GET_ID answers.
    pub(crate) serial: String,
    /// Whether the guest knows of a write-back cache and flushes it.
    pub(crate) write_back: AtomicBool,
    /// Whether nobody knows if the guest chose to have no such cache: it is taken to have none until it flushes.
    pub(crate) in_doubt: AtomicBool,
    /// Malformed requests.
    pub(crate) nonsense: AtomicU64,
    /// Queues that were stopped because their rings made no sense.
    pub(crate) broken: AtomicU64,
    /// The last of both.
    recent: Recent,
    /// Requests and queues have each a limit of their own, so that a flood of the first does not hide the second.
    requests_logged: LogLimit,
    queues_logged: LogLimit,
    /// Front ends that had an I/O thread wait.
    pub(crate) offences: Offences,
    /// What following its guest's chains has taken of this turn.
    pub(super) effort: Effort,
    /// What the long lists of all its requests in flight have room for. Its I/O thread alone counts it.
    pub(super) room: AtomicUsize,
}

impl DeviceFacts {
    /// Of a device that nobody has used yet.
    pub(crate) fn new(name: String, serial: String, write_back: bool) -> DeviceFacts {
        DeviceFacts {
            name,
            serial,
            write_back: AtomicBool::new(write_back),
            in_doubt: AtomicBool::new(false),
            nonsense: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            recent: Recent::default(),
            requests_logged: LogLimit::default(),
            queues_logged: LogLimit::default(),
            offences: Offences::default(),
            effort: Effort::default(),
            room: AtomicUsize::new(0),
        }
    }

    /// The guest has flushed: it knows of its cache.
    pub(crate) fn flushed(&self) {
        if self.in_doubt.load(Ordering::Relaxed) && self.in_doubt.swap(false, Ordering::Relaxed) {
            self.write_back.store(true, Ordering::Relaxed);
        }
    }

    /// The last faults, newest first.
    pub(crate) fn faults(&self) -> Vec<RingFault> {
        self.recent.newest_first()
    }

    /// Counts and notes what is wrong with a queue, and logs it unless that was done a moment ago.
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
                        "a guest's queue is stopped until it is set up anew (those of the next minute are counted only)"
                    );
                }
                false => {
                    tracing::warn!(
                        disk,
                        queue,
                        why,
                        "a guest's malformed request was answered with an error (those of the next minute are counted only)"
                    );
                }
            }
        }
    }
}
