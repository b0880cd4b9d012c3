//! The guests' side of a run: vCPUs, their queues, and the requests in them.

use std::collections::VecDeque;
use tidegate_core::coalesce::{Coalesce, Coalescer};
use tidegate_core::round_robin::{Flow, Share};
use tidegate_model::cpu::TaskId;

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// When it was due, or the reply before it was seen: latency counts from here.
    pub(super) began: u64,
    /// When it was put into its queue.
    pub(super) queued: u64,
    /// The phase that it belongs to.
    pub(super) phase: usize,
    /// Whether its latency counts: it is the last one of those that were due together.
    pub(super) last: bool,
}

/// What a vCPU does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doing {
    /// Nothing: it halts.
    Halted,
    /// It computes; `from` is its run time when that began.
    Computing { from: u64 },
    /// It takes an interrupt.
    Interrupted,
    /// It works for a request that it will queue, because one was due or the reply before it came.
    Preparing(Request),
    /// It handles a reply after which nothing is queued.
    Replied,
    /// It kicks.
    Kicking,
    /// It is about to halt.
    Halting,
}

/// A vCPU with its queue of its VM's disk.
#[derive(Debug)]
pub(super) struct Vcpu {
    pub(super) vm: usize,
    pub(super) task: TaskId,
    pub(super) doing: Doing,
    /// Requests that are due.
    pub(super) due: VecDeque<Request>,
    /// Requests that the I/O thread has not taken.
    pub(super) avail: VecDeque<Request>,
    /// Replies that the vCPU has not seen.
    pub(super) used: VecDeque<Request>,
    /// Its part of its I/O thread's time.
    pub(super) flow: Flow,
    /// Whether the thread wants a kick for the next request.
    pub(super) armed: bool,
    /// So many requests in the queue make the guest kick.
    pub(super) kicks_at: usize,
    /// Scans in dense mode that found nothing, in a row.
    pub(super) empty_scans: u32,
    /// When its guest is called.
    pub(super) coalescer: Coalescer,
    /// Requests that are with the datastore, or taken.
    pub(super) in_flight: u32,
    /// Whether a kick is on its way.
    pub(super) kicking: bool,
    /// Whether a call is on its way.
    pub(super) called: bool,
    /// Whether an interrupt is to be taken.
    pub(super) interrupt: bool,
    /// Requests that the I/O thread took in all.
    pub(super) taken: u64,
    /// The index of the newest request at the last snapshot.
    pub(super) seen: u64,
    /// When a request was last taken.
    pub(super) last: u64,
}

impl Vcpu {
    pub(super) fn new(vm: usize, task: TaskId, coalesce: Coalesce) -> Vcpu {
        Vcpu {
            vm,
            task,
            doing: Doing::Halted,
            due: VecDeque::new(),
            avail: VecDeque::new(),
            used: VecDeque::new(),
            flow: Flow::new(Share::default()),
            armed: true,
            kicks_at: 1,
            empty_scans: 0,
            coalescer: Coalescer::new(coalesce),
            in_flight: 0,
            kicking: false,
            called: false,
            interrupt: false,
            taken: 0,
            seen: 0,
            last: 0,
        }
    }

    /// Whether a call is needed for it to see a reply: it computes or halts. Otherwise it will look for replies itself.
    pub(super) fn needs_call(&self) -> bool {
        !self.called
            && !self.interrupt
            && matches!(self.doing, Doing::Halted | Doing::Computing { .. })
    }

    /// Requests on the guest's side and in the queue.
    pub(super) fn has(&self) -> u64 {
        let queued = self.due.len() + self.avail.len() + self.used.len();
        queued as u64 + u64::from(matches!(self.doing, Doing::Preparing(_)))
    }

    /// The index of the newest request.
    pub(super) fn newest(&self) -> u64 {
        self.taken + self.avail.len() as u64
    }
}
