//! The layer around the image of a leased disk: it passes nothing while the lease's gate is shut.
//!
//! A flash device has no lease of its own. It is behind those of the disk's members.
//!
//! Jobs and completions that arrive meanwhile wait here, in order. Once the lease is lost, they are passed on or fail.
//!
//! # Always true
//! - while the gate is shut nothing reaches the image: neither new jobs, nor completions after which it would continue
//!   a job
//! - once the lease is lost, new jobs that modify fail, and those in progress stop
//! - jobs and completions stay in order

use super::{Image, ImageCx, Job, Progress};
use crate::blocking::Done;
use crate::lease::fence::{Fence, Gate};
use crate::sys::ring::Completion;
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_core::request::Fault;
use tidegate_core::units::{Span, Time};

/// How often a shut gate is checked: regaining a lease takes seconds.
const RECHECK: Span = Span::from_millis(20);

/// The fences of a disk's members. Each group has the same bytes, so one of its members is enough. The disk needs all groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fences(pub(crate) Vec<Vec<Arc<Fence>>>);

impl Fences {
    /// Whether there is no gate.
    pub(crate) fn are_none(&self) -> bool {
        self.0.iter().all(Vec::is_empty)
    }

    /// Whether the gate is open.
    #[inline]
    fn are_open(&self) -> bool {
        let is_open = |fence: &Arc<Fence>| fence.gate() == Gate::Open;
        let is_open = |group: &Vec<_>| group.is_empty() || group.iter().any(is_open);
        self.0.iter().all(is_open)
    }

    /// The state of the gate: lost if no member of a group is left to the disk.
    fn gate(&self) -> Gate {
        let rank = |fence: &Arc<Fence>| match fence.gate() {
            Gate::Open => 0,
            Gate::Shut => 1,
            Gate::Lost => 2,
        };
        let groups = self.0.iter();
        let worst = groups
            .filter_map(|group| group.iter().map(rank).min())
            .max();
        match worst {
            None | Some(0) => Gate::Open,
            Some(1) => Gate::Shut,
            Some(_) => Gate::Lost,
        }
    }
}

/// An image behind a gate.
pub(crate) struct Fenced {
    image: Box<dyn Image + Send>,
    fences: Fences,
    deferred: VecDeque<Deferred>,
    /// When the gate is checked again, if something waits.
    recheck_at: Time,
    /// It is closing: no job that modifies is left.
    closing: bool,
}

/// What arrived while the gate was shut.
enum Deferred {
    Job(Job),
    Completed(Completion),
    BlockingDone(Done),
}

impl Fenced {
    /// Puts an image behind a gate.
    pub(super) fn new(mut image: Box<dyn Image + Send>, fence: &Arc<Fence>) -> Fenced {
        image.fence(fence);
        Fenced {
            ..Fenced::flash(image, Fences(vec![vec![Arc::clone(fence)]]))
        }
    }

    /// Puts the image of a flash device behind its disk's gates.
    pub(crate) fn flash(image: Box<dyn Image + Send>, fences: Fences) -> Fenced {
        Fenced {
            image,
            fences,
            deferred: VecDeque::new(),
            recheck_at: Time::ZERO,
            closing: false,
        }
    }

    /// The state of the gate for a new arrival, unless that must wait.
    #[inline]
    fn passable(&mut self, cx: &mut ImageCx<'_>) -> Option<Gate> {
        if self.deferred.is_empty() && self.fences.are_open() {
            return Some(Gate::Open);
        }
        self.passable_unless(cx)
    }

    /// The same if the gate is not open, or something waits.
    #[cold]
    fn passable_unless(&mut self, cx: &mut ImageCx<'_>) -> Option<Gate> {
        if !self.deferred.is_empty() {
            self.pass_deferred(cx);
        }
        let gate = self.gate();
        if self.deferred.is_empty() && gate != Gate::Shut {
            return Some(gate);
        }
        self.recheck_at = cx.now + RECHECK;
        None
    }

    fn gate(&self) -> Gate {
        match self.fences.gate() {
            Gate::Shut if self.closing => Gate::Lost,
            gate => gate,
        }
    }

    /// Passes on what has waited, as far as the gate allows.
    fn pass_deferred(&mut self, cx: &mut ImageCx<'_>) {
        loop {
            let gate = self.gate();
            if gate == Gate::Shut {
                break;
            }
            match self.deferred.pop_front() {
                Some(Deferred::Job(job)) => {
                    if let Progress::Done(outcome) = self.pass(cx, job, gate) {
                        cx.finish(job.io, outcome);
                    }
                }
                Some(Deferred::Completed(completion)) => self.image.completed(cx, completion),
                Some(Deferred::BlockingDone(task)) => self.image.blocking_done(cx, task),
                None => break,
            }
        }
        self.recheck_at = cx.now + RECHECK;
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
                self.deferred.push_back(Deferred::Job(job));
                Progress::Pending
            }
        }
    }

    fn completed(&mut self, cx: &mut ImageCx<'_>, completion: Completion) {
        match self.passable(cx) {
            Some(_) => self.image.completed(cx, completion),
            None => self.deferred.push_back(Deferred::Completed(completion)),
        }
    }

    fn blocking_done(&mut self, cx: &mut ImageCx<'_>, task: Done) {
        match self.passable(cx) {
            Some(_) => self.image.blocking_done(cx, task),
            None => self.deferred.push_back(Deferred::BlockingDone(task)),
        }
    }

    fn deadline(&self) -> Option<Time> {
        let recheck_at = (!self.deferred.is_empty()).then_some(self.recheck_at);
        let own = self.image.timed().then(|| self.image.deadline()).flatten();
        recheck_at.into_iter().chain(own).min()
    }

    fn tick(&mut self, cx: &mut ImageCx<'_>) {
        if !self.deferred.is_empty() && self.recheck_at <= cx.now {
            self.pass_deferred(cx);
        }
        if self.image.timed() && self.image.deadline().is_some_and(|at| at <= cx.now) {
            self.image.tick(cx);
        }
    }

    fn is_idle(&self) -> bool {
        self.deferred.is_empty() && self.image.is_idle()
    }

    fn refence(&mut self, fences: &Fences) {
        self.fences = fences.clone();
    }

    fn leave(&mut self, cx: &mut ImageCx<'_>) {
        self.image.leave(cx);
    }

    fn resized(&mut self, size: u64) {
        self.image.resized(size);
    }

    fn close(&mut self, cx: &mut ImageCx<'_>) -> bool {
        self.closing = true;
        self.pass_deferred(cx);
        self.image.close(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datastore::memory::bench::Bench;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Records whether a task has come back to it.
    struct Waiting(Arc<AtomicBool>);

    impl Image for Waiting {
        fn start(&mut self, _cx: &mut ImageCx<'_>, _job: Job) -> Progress {
            Progress::Pending
        }

        fn is_idle(&self) -> bool {
            true
        }

        fn blocking_done(&mut self, _cx: &mut ImageCx<'_>, _task: Done) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_flash_device_is_lost_with_the_last_member_of_a_group() {
        let fences = [(); 4].map(|()| Arc::new(Fence::default()));
        let group = |members: &[Arc<Fence>]| members.to_vec();
        let of = Fences(vec![group(&fences[..2]), group(&fences[2..])]);
        assert_eq!(of.gate(), Gate::Shut);
        fences
            .iter()
            .for_each(|fence| fence.open_before(Time::NEVER));
        assert_eq!(of.gate(), Gate::Open);
        fences[0].lose("taken".into());
        fences[3].lose("taken".into());
        assert_eq!(of.gate(), Gate::Open, "each group has a member");
        fences[2].lose("taken".into());
        assert_eq!(of.gate(), Gate::Lost);
        assert_eq!(Fences::default().gate(), Gate::Open, "nothing is leased");
    }

    #[test]
    fn a_finished_task_waits_at_a_shut_gate_until_the_image_closes() {
        let came = Arc::new(AtomicBool::new(false));
        // Never opened.
        let fence = Arc::new(Fence::default());
        let mut image = Fenced::new(Box::new(Waiting(Arc::clone(&came))), &fence);
        let mut bench = Bench::new();
        bench.with(|cx| image.blocking_done(cx, Box::new(())));
        assert!(!came.load(Ordering::Relaxed));
        assert!(image.deadline().is_some(), "the gate is checked again");
        assert!(bench.with(|cx| image.close(cx)));
        assert!(came.load(Ordering::Relaxed));
    }
}
