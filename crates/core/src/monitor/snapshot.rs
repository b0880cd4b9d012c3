//! A snapshot: what the host, its I/O threads and their disks did since the last one.
//!
//! The engine's monitor thread fills it from counters; the simulator and tests make it. Counts are differences, not
//! totals. Those of disks and of the host's CPUs cost more to read: most snapshots have none of them, and the others
//! cover the time since the last one that had them ([`Snapshot::disks_span`]).
//!
//! # Always true
//! - `busy + spin + sleep + stolen` of a thread is the span of the snapshot, within the precision of its counters
//! - `threads` has every thread that exists, by number, also parked ones
//!
//! # Units
//! Spans in nanoseconds. Of several CPUs, threads or requests they are sums, so they may exceed the snapshot's span.

use super::{Permille, ThreadNumber, permille};
use crate::request::DiskId;
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// What a request costs beside its bytes, as if it had 16 KiB more. Origin: chosen; no measurement.
const REQUEST: u64 = 16;

/// The weight of a request in [`ThreadLoad::work`] and [`DiskLoad::work`]; `bytes` are those read or written.
pub const fn weight(bytes: u64) -> u64 {
    REQUEST + bytes.div_ceil(1024)
}

/// What happened since the last snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// When it was taken.
    pub now: Time,
    /// The time since the last one: the counts of threads are of this time.
    pub span: Span,
    /// The host. Its times are of `disks_span`, and zero or unknown without it.
    pub host: HostLoad,
    /// All I/O threads, by number.
    pub threads: Vec<ThreadLoad>,
    /// The time since the last snapshot with disks; `None`: this one has none.
    pub disks_span: Option<Span>,
    /// The attached disks, by number; empty without `disks_span`.
    pub disks: Vec<DiskLoad>,
}

/// What the host's CPUs did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostLoad {
    /// CPUs that I/O threads may use. Always known.
    pub cpus: u16,
    /// Whether each I/O thread runs on one of these only. Always known.
    pub pinned: bool,
    /// Whether dense mode is on: the host gives up latency for CPU time. Always known.
    pub dense: bool,
    /// Idle time of the host's CPUs, added up.
    pub idle: Span,
    /// Time that a hypervisor below took from the host's CPUs, added up.
    pub steal: Span,
    /// CPU time that the guests' vCPUs received, added up; `None`: their processes are not known.
    pub guests_run: Option<Span>,
    /// Time that runnable vCPUs waited for a CPU, added up; `None`: their processes are not known.
    pub guests_delay: Option<Span>,
}

/// Whether an I/O thread serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ThreadState {
    /// It serves, and takes new and moved disks.
    Active,
    /// An administrator locked it: it serves its disks, but takes none.
    Locked,
    /// The policy locked it: its disks leave, and then it is parked.
    Leaving,
    /// It has no disks; its ring has I/O in flight, whose completions it passes on.
    Draining,
    /// It sleeps without a timer.
    #[default]
    Parked,
}

/// What an I/O thread did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadLoad {
    /// Whether it serves.
    pub state: ThreadState,
    /// Time in turns that did work.
    pub busy: Span,
    /// Time that it polled without finding work.
    pub spin: Span,
    /// Time that it slept.
    pub sleep: Span,
    /// Time that it was runnable, but had no CPU.
    pub stolen: Span,
    /// The 99th percentile of its requests' queueing delay: from the ring or socket to the thread. Zero without requests.
    pub delay_p99: Span,
    /// Whether a request that the last snapshot found waiting is waiting still.
    pub standing: bool,
    /// Requests that it read from guests and clients.
    pub arrivals: u64,
    /// Requests that it answered.
    pub completions: u64,
    /// Requests that it answered, each with its [`weight`].
    pub work: u64,
}

/// Whether a disk is served before others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Class {
    /// In turn.
    #[default]
    Normal,
    /// Before others of its thread.
    Latency,
}

/// What a disk did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskLoad {
    /// The disk.
    pub disk: DiskId,
    /// The thread that serves it.
    pub thread: ThreadNumber,
    /// The thread's time that went into it.
    pub busy: Span,
    /// Requests that its thread read.
    pub arrivals: u64,
    /// Requests that were answered.
    pub completions: u64,
    /// Requests that were answered, each with its [`weight`].
    pub work: u64,
    /// Bytes read and written by the answered requests.
    pub bytes: u64,
    /// The time that its requests were outstanding, added up, from the ring or socket to the answer. Divided by the time
    /// of the snapshot it is the mean queue depth.
    pub outstanding: Span,
    /// The 99th percentile of the queueing delay of its requests; zero without requests.
    pub delay_p99: Span,
    /// Queues or connections that had requests.
    pub queues: u16,
    /// Whether it is served before others.
    pub class: Class,
    /// When it came to its thread by a move; `None`: never moved.
    pub moved: Option<Time>,
}

impl DiskLoad {
    /// A disk without load on a thread.
    pub const fn idle(disk: DiskId, thread: ThreadNumber) -> DiskLoad {
        DiskLoad {
            disk,
            thread,
            busy: Span::ZERO,
            arrivals: 0,
            completions: 0,
            work: 0,
            bytes: 0,
            outstanding: Span::ZERO,
            delay_p99: Span::ZERO,
            queues: 0,
            class: Class::Normal,
            moved: None,
        }
    }
}

impl ThreadLoad {
    /// Whether it takes new and moved disks.
    pub fn is_active(&self) -> bool {
        self.state == ThreadState::Active
    }

    /// The part of the time that it had a CPU in which it did work: what it can still take is the rest.
    pub fn busy_share(&self) -> Permille {
        permille(self.busy, self.busy + self.spin + self.sleep)
    }
}

impl Snapshot {
    /// The number of active threads.
    pub fn active(&self) -> usize {
        self.threads.iter().filter(|t| t.is_active()).count()
    }

    /// Requests that all threads read.
    pub fn arrivals(&self) -> u64 {
        self.threads.iter().map(|thread| thread.arrivals).sum()
    }

    /// The weight of all requests that were answered.
    pub fn work(&self) -> u64 {
        self.threads.iter().map(|thread| thread.work).sum()
    }

    /// Time in turns that did work, of all threads.
    pub fn busy(&self) -> Span {
        let busy = self.threads.iter().map(|thread| thread.busy);
        busy.fold(Span::ZERO, |sum, busy| sum + busy)
    }

    /// Whether no thread read or answered a request.
    pub fn is_idle(&self) -> bool {
        let mut threads = self.threads.iter();
        threads.all(|t| t.arrivals == 0 && t.completions == 0 && !t.standing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_stolen_cpu_does_not_make_a_thread_less_busy() {
        let thread = ThreadLoad {
            busy: Span::from_millis(2),
            stolen: Span::from_millis(2),
            sleep: Span::from_millis(1),
            ..ThreadLoad::default()
        };
        assert_eq!(thread.busy_share(), 666);
    }

    #[test]
    fn a_request_weighs_more_with_its_bytes_but_never_nothing() {
        assert_eq!(weight(0), 16);
        assert_eq!(weight(1), 17);
        assert_eq!(weight(4096), 20);
    }

    #[test]
    fn a_host_is_idle_if_no_thread_had_requests() {
        let mut snapshot = Snapshot {
            threads: vec![ThreadLoad::default(); 2],
            ..Snapshot::default()
        };
        assert!(snapshot.is_idle());
        snapshot.threads[1].standing = true;
        assert!(!snapshot.is_idle());
    }
}
