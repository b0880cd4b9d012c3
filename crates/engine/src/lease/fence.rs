//! The fence of a leased disk: it stops I/O when the lease has run out.
//!
//! The tender moves the moment; the I/O thread reads the clock and compares, for each operation. Nothing is locked and
//! nobody is asked.
//!
//! # Always true
//! - while the gate is shut nothing reaches the image: not new jobs, not ends upon which it would go on with a job
//! - once the lease is lost, jobs that modify fail, and those under way go no further
//! - jobs and ends keep their order
//!
//! # Picture
//! ```text
//!            moment passes                    lost
//!   open ────────────────────> shut (waits) ──────> lost (what modifies fails)
//!    ^                          │
//!    └──────── moved on ────────┘
//! ```

use crate::blocking::Done;
use crate::datastore::{Image, ImageCx, Job, Progress};
use crate::sys::os;
use crate::sys::ring::Completion;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tidegate_core::request::Fault;
use tidegate_core::units::{Span, Time};

/// How often a shut gate is looked at: regaining a lease takes seconds.
const LOOK: Span = Span::from_millis(20);

/// Up to when operations may begin.
#[derive(Debug, Default)]
pub(crate) struct Fence {
    /// Nanoseconds of the clock that counts a suspended machine's time too.
    before: AtomicU64,
    lost: OnceLock<String>,
}

/// How a gate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Open,
    Shut,
    Lost,
}

impl Fence {
    /// Operations may begin before then.
    pub(super) fn open_before(&self, end: Time) {
        self.before.store(end.as_nanos(), Ordering::Release);
    }

    /// None may begin any more, for this reason.
    pub(super) fn lose(&self, why: String) {
        self.before.store(0, Ordering::Release);
        // Who lost it before knows why.
        let _ = self.lost.set(why);
    }

    /// Why it was lost.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// How it stands now, by a clock read for it: the time of an I/O thread's turn may be as old as a pause.
    pub(crate) fn gate(&self) -> Gate {
        if os::boottime().as_nanos() < self.before.load(Ordering::Acquire) {
            Gate::Open
        } else if self.lost.get().is_some() {
            Gate::Lost
        } else {
            Gate::Shut
        }
    }

    /// Whether a job that modifies may go on.
    pub(crate) fn is_open(&self) -> bool {
        self.gate() == Gate::Open
    }
}

/// An image behind a gate.
pub(crate) struct Fenced {
    image: Box<dyn Image + Send>,
    fence: Arc<Fence>,
    late: VecDeque<Late>,
    /// When the gate is looked at again, if something waits.
    look: Time,
    /// It closes: there is no job any more that could modify.
    closing: bool,
}

/// What came while the gate was shut.
enum Late {
    Job(Job),
    Completed(Completion),
    BlockingDone(Done),
}

impl Fenced {
    /// Puts an image behind a gate.
    pub(crate) fn new(mut image: Box<dyn Image + Send>, fence: &Arc<Fence>) -> Fenced {
        image.fence(fence);
        Fenced {
            image,
            fence: Arc::clone(fence),
            late: VecDeque::new(),
            look: Time::ZERO,
            closing: false,
        }
    }

    /// How the gate stands for what comes now, if that need not wait.
    fn passable(&mut self, cx: &mut ImageCx<'_>) -> Option<Gate> {
        if !self.late.is_empty() {
            self.hand_on(cx);
        }
        let gate = self.gate();
        if self.late.is_empty() && gate != Gate::Shut {
            return Some(gate);
        }
        self.look = cx.now + LOOK;
        None
    }

    fn gate(&self) -> Gate {
        match self.fence.gate() {
            Gate::Shut if self.closing => Gate::Lost,
            gate => gate,
        }
    }

    /// Hands on what has waited, as far as the gate lets it.
    fn hand_on(&mut self, cx: &mut ImageCx<'_>) {
        loop {
            let gate = self.gate();
            if gate == Gate::Shut {
                break;
            }
            match self.late.pop_front() {
                Some(Late::Job(job)) => {
                    if let Progress::Done(outcome) = self.pass(cx, job, gate) {
                        cx.finish(job.io, outcome);
                    }
                }
                Some(Late::Completed(completion)) => self.image.completed(cx, completion),
                Some(Late::BlockingDone(task)) => self.image.blocking_done(cx, task),
                None => break,
            }
        }
        self.look = cx.now + LOOK;
    }

    fn pass(&mut self, cx: &mut ImageCx<'_>, job: Job, gate: Gate) -> Progress {
        if job.op.modifies() && gate != Gate::Open {
            return Progress::Done(Err(Fault::Io));
        }
        self.image.start(cx, job)
    }
}

impl Image for Fenced {
    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        match self.passable(cx) {
            Some(gate) => self.pass(cx, job, gate),
            None => {
                self.late.push_back(Late::Job(job));
                Progress::Pending
            }
        }
    }

    fn completed(&mut self, cx: &mut ImageCx<'_>, completion: Completion) {
        match self.passable(cx) {
            Some(_) => self.image.completed(cx, completion),
            None => self.late.push_back(Late::Completed(completion)),
        }
    }

    fn blocking_done(&mut self, cx: &mut ImageCx<'_>, task: Done) {
        match self.passable(cx) {
            Some(_) => self.image.blocking_done(cx, task),
            None => self.late.push_back(Late::BlockingDone(task)),
        }
    }

    fn deadline(&self) -> Option<Time> {
        let look = (!self.late.is_empty()).then_some(self.look);
        let own = self.image.timed().then(|| self.image.deadline()).flatten();
        look.into_iter().chain(own).min()
    }

    fn tick(&mut self, cx: &mut ImageCx<'_>) {
        if !self.late.is_empty() && self.look <= cx.now {
            self.hand_on(cx);
        }
        if self.image.timed() && self.image.deadline().is_some_and(|at| at <= cx.now) {
            self.image.tick(cx);
        }
    }

    fn resized(&mut self, size: u64) {
        self.image.resized(size);
    }

    fn close(&mut self, cx: &mut ImageCx<'_>) -> bool {
        self.closing = true;
        self.hand_on(cx);
        self.image.close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_shut_until_it_is_opened_and_when_its_time_is_over() {
        let fence = Fence::default();
        assert_eq!(fence.gate(), Gate::Shut);
        fence.open_before(os::boottime() + Span::from_secs(3600));
        assert_eq!(fence.gate(), Gate::Open);
        fence.open_before(os::boottime());
        assert_eq!(fence.gate(), Gate::Shut);
    }

    #[test]
    fn what_is_lost_stays_lost_and_keeps_its_first_reason() {
        let fence = Fence::default();
        fence.open_before(Time::NEVER);
        fence.lose("first".into());
        fence.lose("second".into());
        assert_eq!(fence.gate(), Gate::Lost);
        assert_eq!(fence.lost(), Some("first"));
    }
}
