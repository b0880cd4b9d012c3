//! The layer around the image of a leased disk: it lets nothing through while the lease's gate is shut.
//!
//! What comes meanwhile waits here, in order. Once the lease is lost, what waited is handed on or fails.
//!
//! # Always true
//! - while the gate is shut nothing reaches the image: not new jobs, not ends upon which it would go on with a job
//! - once the lease is lost, jobs that modify fail, and those under way go no further
//! - jobs and ends keep their order

use super::{Image, ImageCx, Job, Progress};
use crate::blocking::Done;
use crate::lease::fence::{Fence, Gate};
use crate::sys::ring::Completion;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_core::request::Fault;
use tidegate_core::units::{Span, Time};

/// How often a shut gate is looked at: regaining a lease takes seconds.
const LOOK: Span = Span::from_millis(20);

/// An image behind a gate.
pub(super) struct Fenced {
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
    pub(super) fn new(mut image: Box<dyn Image + Send>, fence: &Arc<Fence>) -> Fenced {
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
    use crate::datastore::memory::bench::Bench;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Notes whether a task came back to it.
    struct Waiting(Arc<AtomicBool>);

    impl Image for Waiting {
        fn start(&mut self, _cx: &mut ImageCx<'_>, _job: Job) -> Progress {
            Progress::Pending
        }

        fn blocking_done(&mut self, _cx: &mut ImageCx<'_>, _task: Done) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_task_that_comes_back_waits_at_a_shut_gate_until_the_image_closes() {
        let came = Arc::new(AtomicBool::new(false));
        // Never opened.
        let fence = Arc::new(Fence::default());
        let mut image = Fenced::new(Box::new(Waiting(Arc::clone(&came))), &fence);
        let mut bench = Bench::new();
        bench.with(|cx| image.blocking_done(cx, Box::new(())));
        assert!(!came.load(Ordering::Relaxed));
        assert!(image.deadline().is_some(), "the gate is looked at again");
        assert!(bench.with(|cx| image.close(cx)));
        assert!(came.load(Ordering::Relaxed));
    }
}
