//! Dense mode on an I/O thread: it looks for requests at intervals instead of being kicked for each.
//!
//! The host decides ([`tidegate_core::dense`]); the mode reaches each thread as a command. A queue of a disk without
//! settings of its own then gets a kick only for a batch of requests. While such a queue has had requests lately, the
//! thread wakes up once an interval and takes what is there. After some intervals without requests the queue gets its
//! kicks back. Calls wait for more completions ([`RingDevice::set_io`]).
//!
//! # Always true
//! - a request waits for the thread no longer than one interval, and its own turn
//! - a thread without such queues, or whose queues are quiet, sleeps without a timer
//! - disks with settings of their own, or of class `latency`, are served as without the mode

use super::{IoThread, QUIET};
use crate::device::ring::RingDevice;
use crate::disk_spec::DenseSettings;
use tidegate_core::dense::{EMPTY_SCANS, SCAN};
use tidegate_core::units::{Span, Time};

/// A queue that had no request for this long gets its kicks back.
const QUIET_SCANS: Span = Span::from_nanos(EMPTY_SCANS as u64 * SCAN.as_nanos());

impl IoThread {
    /// The mode changes: none ends it.
    pub(super) fn set_dense(&mut self, dense: Option<DenseSettings>) {
        self.dense = dense;
        self.apply_defaults();
    }

    /// Whether the thread may poll before it sleeps. In dense mode only for disks that are exempt.
    #[inline]
    pub(super) fn may_spin(&self, for_guests: bool) -> bool {
        self.idle.should_spin(for_guests) && (self.dense.is_none() || self.has_exempt_queue())
    }

    #[cold]
    fn has_exempt_queue(&self) -> bool {
        let mut active = self.active.iter();
        active.any(|&index| {
            let queue = self.queues[index as usize].as_ref();
            queue.is_some_and(|queue| !queue.is_dense())
        })
    }

    /// Asks for kicks on all active queues at `now`. Returns whether a request has arrived for which none may come.
    #[inline]
    pub(super) fn ask_for_kicks(&mut self, now: Time) -> bool {
        let mut work = false;
        for &index in &self.active {
            if let Some(queue) = &mut self.queues[index as usize] {
                work |= match is_scanned(queue, now) {
                    true => queue.want_batched_kicks(),
                    false => queue.want_kicks(),
                };
            }
        }
        work
    }

    /// The thread falls asleep, having asked for kicks at `asked`: only queues that are looked at in intervals stay active.
    /// Returns whether there are any.
    #[inline]
    pub(super) fn deactivate_queues(&mut self, asked: Time) -> bool {
        if self.dense.is_none() {
            for index in self.active.drain(..) {
                if let Some(queue) = &mut self.queues[index as usize] {
                    queue.active = false;
                }
            }
            return false;
        }
        let queues = &mut self.queues;
        self.active.retain(|&index| {
            let Some(queue) = &mut queues[index as usize] else {
                return false;
            };
            // As when the kicks were asked for: a queue that waits for a batch must be looked at.
            queue.active = is_scanned(queue, asked);
            queue.active
        });
        !self.active.is_empty()
    }
}

/// Whether the thread looks for its requests in intervals at `now`.
#[inline]
fn is_scanned(queue: &RingDevice, now: Time) -> bool {
    queue.is_dense() && now.since(queue.last_request) < QUIET_SCANS
}

/// How long a queue is without requests before it is no longer polled.
pub(super) fn quiet(queue: &RingDevice) -> Span {
    if queue.is_dense() { QUIET_SCANS } else { QUIET }
}
