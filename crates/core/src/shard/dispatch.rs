//! Dispatches queued I/Os: one scheduler for each datastore under I/O control.
//!
//! A stack starts an I/O or queues it. The shard dispatches queued I/Os in four cases: after a completion, when a limit
//! expires, after an order changes the rules, or when another I/O thread wakes this one.
//!
//! # Always true
//! - the shard calls `pick` until it returns no I/O; while no I/O is queued, on this thread or another, it never calls
//!   it. That is the case for every I/O of an uncongested datastore
//! - a control is released after its last disk (asserted)

use super::{Disk, Event, Shard};
use crate::effect::{ControlId, Effect};
use crate::filter::Io;
use crate::iocontrol::{Bin, Orders, Pick, Usage};
use crate::layout::Arena;
use crate::qos::{DiskQos, Schedulers, scheduler_of};
use crate::request::DiskId;
use crate::slab::Slab;
use crate::stack::{self, StackCx, StackExit};
use crate::units::Time;
use alloc::vec::Vec;

/// The context of one pass through the stack of a disk.
#[inline(always)]
pub(super) fn stack_cx<'a>(
    ios: &'a mut Slab<Io>,
    schedulers: &'a mut Schedulers,
    qos: &'a mut DiskQos,
    arena: &'a mut Arena,
    now: Time,
    disk: DiskId,
    out: &'a mut Vec<Effect>,
) -> StackCx<'a> {
    let exit = StackExit {
        now,
        disk,
        schedulers,
        qos,
        waits: false,
        arena,
        out,
    };
    StackCx { ios, exit }
}

impl Shard {
    /// Handles the events of I/O control.
    pub(super) fn govern(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        match event {
            Event::Control { control, scheduler } => {
                let place = control.0 as usize;
                if self.schedulers.len() <= place {
                    self.schedulers.resize_with(place + 1, || None);
                }
                assert!(
                    self.schedulers[place].is_none(),
                    "a datastore is put under control once"
                );
                self.schedulers[place] = Some(scheduler);
            }
            Event::Release { control } => {
                let mut disks = self.disks.iter().flatten();
                assert!(
                    disks.all(|disk| !disk.qos.uses(control)),
                    "a control is released after its last disk"
                );
                if let Some(place) = self.schedulers.get_mut(control.0 as usize) {
                    *place = None;
                }
            }
            Event::Steer { control, orders } => self.steer(now, control, &orders, out),
            Event::Policy { disk, policy } => {
                let (of, schedulers) = self.disk_and_schedulers(disk);
                of.qos.set_policy(schedulers, now, disk, &policy);
                self.controls_changed(now, disk, out);
            }
            Event::Controls { disk, controlled } => {
                // Those that the disk leaves have room now.
                let before: Vec<ControlId> = self.controls(disk).collect();
                let (of, schedulers) = self.disk_and_schedulers(disk);
                let is_idle = of.stack.is_quiet();
                let controlled = controlled.as_deref();
                of.qos.change(schedulers, now, disk, controlled, is_idle);
                self.note_timed();
                self.controls_changed(now, disk, out);
                before
                    .into_iter()
                    .for_each(|control| self.pick(now, control, out));
            }
            Event::Woken { control } => self.pick(now, control, out),
            _ => unreachable!("handled before"),
        }
    }

    fn disk_and_schedulers(&mut self, disk: DiskId) -> (&mut Disk, &mut Schedulers) {
        let place = self.disks[disk.0 as usize].as_mut();
        let disk = place.expect("the engine names only disks that it has attached");
        (disk, &mut self.schedulers)
    }

    /// The controls of a disk. Some may be [`ControlId::NONE`].
    pub(super) fn controls(&self, disk: DiskId) -> impl Iterator<Item = ControlId> + '_ {
        (0..).map_while(move |nth| self.control(disk, nth))
    }

    /// The `nth` of them.
    fn control(&self, disk: DiskId, nth: usize) -> Option<ControlId> {
        let qos = &self.disks[disk.0 as usize].as_ref()?.qos;
        match &qos.members {
            Some(members) => members.control(nth),
            None => (nth == 0).then_some(qos.plain.control),
        }
    }

    /// Applies orders to a datastore's scheduler, and to the limits that belong to it.
    fn steer(&mut self, now: Time, control: ControlId, orders: &Orders, out: &mut Vec<Effect>) {
        if let Some(scheduler) = scheduler_of(&mut self.schedulers, control) {
            scheduler.steer(now, orders);
        }
        self.update_sampling(control);
        for place in 0..self.timed.len() {
            let id = self.timed[place];
            let disk = self.disks[id.0 as usize].as_mut();
            let members = disk.and_then(|disk| disk.qos.members.as_mut());
            if members.is_some_and(|members| members.steer(now, control, orders)) {
                self.pick_members(now, id, out);
            }
        }
        self.pick(now, control, out);
    }

    /// The policy or the controls of a disk have changed: more of its I/O may start.
    fn controls_changed(&mut self, now: Time, id: DiskId, out: &mut Vec<Effect>) {
        let mut nth = 0;
        while let Some(control) = self.control(id, nth) {
            self.update_sampling(control);
            nth += 1;
        }
        self.go_on(now, id, out);
    }

    /// Does what may follow from an event of a disk: delayed and queued I/Os start, and a drain ends.
    pub(super) fn go_on(&mut self, now: Time, id: DiskId, out: &mut Vec<Effect>) {
        let (disk, _) = self.disk_and_schedulers(id);
        let control = disk.qos.plain.control;
        self.pick_members(now, id, out);
        self.finish_drain(now, id, out);
        self.pick(now, control, out);
    }

    /// Dispatches the queued I/Os that may start now at the datastores of a disk with layouts, after those that its limits
    /// let go on.
    #[cold]
    pub(super) fn pick_members(&mut self, now: Time, id: DiskId, out: &mut Vec<Effect>) {
        let disk = self.disks[id.0 as usize].as_mut();
        let Some(disk) = disk.filter(|disk| disk.qos.members.is_some()) else {
            return;
        };
        let mut cx = stack_cx(
            &mut disk.ios,
            &mut self.schedulers,
            &mut disk.qos,
            &mut self.arena,
            now,
            id,
            out,
        );
        disk.stack.pass_limits(&mut cx);
        let mut nth = 0;
        while let Some(control) = self.control(id, nth) {
            self.pick(now, control, out);
            nth += 1;
        }
    }

    /// Dispatches the queued I/Os that may start now.
    #[inline(never)]
    pub(super) fn pick(&mut self, now: Time, control: ControlId, out: &mut Vec<Effect>) {
        let Some(scheduler) = scheduler_of(&mut self.schedulers, control) else {
            return;
        };
        loop {
            match scheduler.pick(now) {
                Pick::Now(disk, io, cost) => {
                    let of = self.disks[disk.0 as usize].as_mut();
                    let of = of.expect("a disk with queued I/Os is here");
                    let io = stack::dispatch(now, disk, io, cost, &mut of.ios, out);
                    of.stack.dispatched(now, io);
                }
                Pick::Other(thread) => return out.push(Effect::Wake { control, thread }),
                Pick::At(..) | Pick::Full | Pick::Behind | Pick::Empty => return,
            }
        }
    }

    /// Appends what each disk here used of a datastore since the last call, and starts a new count.
    pub fn usage(&mut self, control: ControlId, now: Time, out: &mut Vec<Usage>) {
        let first = out.len();
        if let Some(scheduler) = scheduler_of(&mut self.schedulers, control) {
            scheduler.usage(now, out);
        }
        let disks = self.disks.iter_mut().flatten();
        for members in disks.filter_map(|disk| disk.qos.members.as_mut()) {
            members.add_limits(control, now, &mut out[first..]);
        }
        self.update_sampling(control);
    }

    /// Updates which disks of a datastore are sampled.
    pub(super) fn update_sampling(&mut self, control: ControlId) {
        let Some(scheduler) = scheduler_of(&mut self.schedulers, control) else {
            return;
        };
        for (id, disk) in (0..).zip(&mut self.disks) {
            if let Some(disk) = disk
                && disk.qos.uses(control)
            {
                let may_skip = scheduler.may_skip(DiskId(id));
                disk.qos.update_sampling(control, may_skip);
            }
        }
    }

    /// Whether a disk is under this control, or I/O of it was when it started.
    pub fn is_under(&self, disk: DiskId, control: ControlId) -> bool {
        let disk = self.disks.get(disk.0 as usize).and_then(Option::as_ref);
        disk.is_some_and(|disk| disk.qos.uses(control))
    }

    /// Appends the completions of a datastore in each past interval of 100 ms.
    pub fn bins(&mut self, control: ControlId, out: &mut Vec<Bin>) {
        if let Some(scheduler) = scheduler_of(&mut self.schedulers, control) {
            scheduler.bins(out);
        }
    }

    /// Whether a datastore was used since its last usage report, or is in use.
    pub fn is_active(&self, control: ControlId) -> bool {
        let place = self.schedulers.get(control.0 as usize);
        let scheduler = place.and_then(Option::as_ref);
        scheduler.is_some_and(|scheduler| scheduler.is_active())
            || self.timed.iter().any(|disk| {
                let disk = self.disks[disk.0 as usize].as_ref();
                let members = disk.and_then(|disk| disk.qos.members.as_ref());
                members.is_some_and(|members| members.is_delayed(control))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::{Cx, Filter, FilterKey, Io, Verdict};
    use crate::iocontrol::shared::{Groups, Shared};
    use crate::iocontrol::{Cost, CostModel, DiskKey, Limit, Orders, Policy, Scheduler};
    use crate::request::{Data, DiskId, Flags, Op, Request, Token};
    use crate::shard::{Controlled, DiskReport};
    use crate::stack::Stack;
    use crate::units::Span;
    use alloc::boxed::Box;
    use alloc::sync::Arc;
    use alloc::vec;
    use core::sync::atomic::{AtomicU64, Ordering};

    const CONTROL: ControlId = ControlId(1);
    const DISK: DiskId = DiskId(0);

    /// Records the queueing time, datastore latency and cost of the last I/O that passed.
    #[derive(Clone, Default)]
    struct Watch(Arc<[AtomicU64; 3]>);

    impl Filter for Watch {
        fn name(&self) -> &'static str {
            "watch"
        }
        fn submit(&mut self, _cx: &mut Cx<'_>, _io: &Io) -> Verdict {
            Verdict::Pass
        }
        fn complete(&mut self, _cx: &mut Cx<'_>, io: &Io) -> Verdict {
            let waited = io.issued.since(io.offered).as_nanos();
            let served = io.returned.since(io.issued).as_nanos();
            for (place, value) in self.0.iter().zip([waited, served, io.cost.0]) {
                place.store(value, Ordering::Relaxed);
            }
            Verdict::Pass
        }
    }

    fn shard(policy: Policy, watch: &Watch) -> Shard {
        let mut shard = Shard::new(4);
        let shared = Shared::new(1, &Groups::new(0));
        let scheduler = Scheduler::new(0, shared, 4096);
        let stack = Stack::new(vec![(FilterKey(0), Box::new(watch.clone()))]);
        let controlled = Controlled {
            control: CONTROL,
            members: Vec::new(),
            key: DiskKey(5),
            policy,
            spent: None,
        };
        for event in [
            Event::Control {
                control: CONTROL,
                scheduler: Box::new(scheduler),
            },
            Event::Attach {
                disk: DISK,
                size: 1 << 20,
                read_only: false,
                stack,
                control: Some(Box::new(controlled)),
            },
        ] {
            assert!(handle(&mut shard, 0, event).is_empty());
        }
        shard
    }

    fn handle(shard: &mut Shard, us: u64, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        shard.handle(Time::ZERO + Span::from_micros(us), event, &mut out);
        out
    }

    fn submit(shard: &mut Shard, us: u64, token: u64) -> Vec<Effect> {
        let request = Request {
            op: Op::Read,
            flags: Flags::NONE,
            offset: token * 8192,
            len: 4096,
            data: Data::NONE,
            arrived: Time::ZERO,
        };
        let token = Token(token);
        let submitted = Event::Submitted {
            disk: DISK,
            token,
            request,
        };
        handle(shard, us, submitted)
    }

    fn finish(shard: &mut Shard, us: u64, start: &Effect) -> Vec<Effect> {
        let Effect::Start { io, .. } = start else {
            panic!("{start:?} does not start an I/O");
        };
        let finished = Event::Finished {
            disk: DISK,
            io: *io,
            outcome: Ok(()),
        };
        handle(shard, us, finished)
    }

    fn report(shard: &Shard) -> DiskReport {
        shard.report(DISK).expect("attached")
    }

    #[test]
    fn a_queued_io_starts_after_a_completion() {
        let watch = Watch::default();
        let mut shard = shard(Policy::default(), &watch);
        let orders = Orders {
            engaged: true,
            window: 256,
            ..Orders::idle(CostModel::flash())
        };
        let control = CONTROL;
        assert!(handle(&mut shard, 0, Event::Steer { control, orders }).is_empty());
        let first = submit(&mut shard, 10, 1);
        assert_eq!((first.len(), submit(&mut shard, 11, 2).len()), (1, 0));
        assert_eq!((report(&shard).in_flight, report(&shard).held), (2, 1));
        let then = finish(&mut shard, 30, &first[0]);
        assert!(matches!(
            then[..],
            [Effect::Answer { .. }, Effect::Start { .. }]
        ));
        finish(&mut shard, 100, &then[1]);
        let seen = watch
            .0
            .each_ref()
            .map(|value| value.load(Ordering::Relaxed));
        let cost = CostModel::flash().cost(Op::Read, 4096, false);
        assert_eq!(seen, [19_000, 70_000, cost.0]);
        assert!(cost > Cost(0));
    }

    #[test]
    fn a_limit_wakes_the_thread_at_its_moment_and_a_new_policy_before() {
        let limit = |sustained| Policy {
            limit: Some(Limit {
                sustained,
                peak: 0,
                burst: 0,
            }),
            ..Policy::default()
        };
        let mut shard = shard(limit(1_000), &Watch::default());
        let first = submit(&mut shard, 0, 1);
        assert_eq!((first.len(), submit(&mut shard, 0, 2).len()), (1, 0));
        assert!(submit(&mut shard, 0, 3).is_empty());
        let due = Some((Time::ZERO + Span::from_millis(1), crate::filter::Why::Limit));
        assert_eq!(shard.deadline(), due);
        let then = handle(&mut shard, 1_000, Event::Ticked);
        assert!(matches!(then[..], [Effect::Start { .. }]));
        assert!(shard.deadline().map(|next| next.0) > due.map(|due| due.0));
        let (disk, policy) = (DISK, Policy::default());
        let then = handle(&mut shard, 1_001, Event::Policy { disk, policy });
        assert!(matches!(then[..], [Effect::Start { .. }]));
        assert_eq!(shard.deadline(), None);
    }

    #[test]
    fn abandoned_ios_at_a_limit_complete_at_once_and_are_not_charged() {
        let policy = Policy {
            limit: Some(Limit {
                sustained: 1_000,
                peak: 0,
                burst: 0,
            }),
            ..Policy::default()
        };
        let mut shard = shard(policy, &Watch::default());
        let first = submit(&mut shard, 0, 1);
        for token in 2..6 {
            assert!(submit(&mut shard, 0, token).is_empty());
        }
        let tokens = [5, 4, 2, 1].map(Token).to_vec();
        let out = handle(&mut shard, 1, Event::Abandon { disk: DISK, tokens });
        let answer = |token, outcome| Effect::Answer {
            disk: DISK,
            token: Token(token),
            op: Op::Read,
            outcome,
        };
        let gone = Err(crate::request::Fault::Gone);
        assert_eq!(out, [2, 4, 5].map(|token| answer(token, gone)));
        assert_eq!((report(&shard).in_flight, report(&shard).held), (2, 1));
        assert_eq!(finish(&mut shard, 2, &first[0]), [answer(1, Ok(()))]);
        // The remaining I/O proceeds as if the others had never existed.
        let then = handle(&mut shard, 1_000, Event::Ticked);
        assert_eq!(finish(&mut shard, 1_001, &then[0]), [answer(3, Ok(()))]);
        assert_eq!((shard.in_flight(), shard.deadline()), (0, None));
    }

    #[test]
    fn a_disk_delayed_by_its_limit_counts_as_active() {
        let second = 1_000_000;
        let policy = Policy {
            limit: Some(Limit {
                sustained: 1,
                peak: 0,
                burst: 0,
            }),
            ..Policy::default()
        };
        let mut shard = shard(policy, &Watch::default());
        let mut usage = Vec::new();
        let mut held = |shard: &mut Shard, us| {
            usage.clear();
            shard.usage(CONTROL, Time::ZERO + Span::from_micros(us), &mut usage);
            usage[0].held_ns
        };
        let first = submit(&mut shard, 0, 1);
        finish(&mut shard, 1, &first[0]);
        held(&mut shard, 2);
        assert!(!shard.is_active(CONTROL), "its governor is idle");
        assert!(submit(&mut shard, 3, 2).is_empty());
        assert!(shard.is_active(CONTROL), "and wakes up");
        held(&mut shard, second / 2);
        for half in 2..5 {
            let waited = held(&mut shard, half * second / 2);
            assert_eq!(waited, [0, 0, 500_000_000, 0, 0]);
            assert!(shard.is_active(CONTROL));
        }
    }

    #[test]
    fn a_used_disk_counts_as_active_until_its_usage_report() {
        let mut shard = shard(Policy::default(), &Watch::default());
        assert!(!shard.is_active(CONTROL));
        let first = submit(&mut shard, 0, 1);
        assert!(shard.is_active(CONTROL));
        finish(&mut shard, 1, &first[0]);
        assert!(shard.is_active(CONTROL));
        let mut usage = Vec::new();
        shard.usage(CONTROL, Time::ZERO + Span::from_micros(2), &mut usage);
        assert_eq!((usage.len(), usage[0].ios), (1, 1));
        assert!(!shard.is_active(CONTROL));
        assert!(!shard.is_active(ControlId(9)));
    }
}
