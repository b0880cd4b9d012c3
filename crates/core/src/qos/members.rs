//! The I/O control of a disk with layouts: a scheduler for each target, and the disk's limits before the layouts.
//!
//! # Always true
//! - each entry that a target or a counted I/O names is registered with its scheduler, and no other one is
//! - what passes the limits is not in flight for them: only the datastores have windows

use super::{Controlled, QosState, Schedulers, existing, scheduler_of};
use crate::effect::ControlId;
use crate::filter::Io;
use crate::iocontrol::{DiskKey, Hold, Offer, Orders, Pick, Policy, Scheduler, Spent, Usage};
use crate::layout::Target;
use crate::request::{DiskId, IoId};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// No entry: the target's datastore has no control.
const NOWHERE: u8 = u8::MAX;

/// See the module.
pub(crate) struct MemberQos {
    disk: DiskId,
    key: DiskKey,
    policy: Policy,
    /// The control whose settings and reports the limits belong to.
    home: ControlId,
    entries: Vec<Entry>,
    /// By target: the entry of its new I/O.
    targets: Vec<u8>,
    /// Holds the disk's limits, and nothing else: it has no window.
    pub(super) limits: Box<Scheduler>,
    /// Whether the disk has limits.
    is_limited: bool,
}

/// One registration of the disk.
struct Entry {
    qos: QosState,
    /// Counted I/Os, queued or in flight.
    ios: u32,
}

impl MemberQos {
    /// Registers a disk with the schedulers of its targets.
    pub(super) fn new(
        schedulers: &mut Schedulers,
        now: Time,
        disk: DiskId,
        controlled: &Controlled,
    ) -> MemberQos {
        let policy = controlled.policy.clone();
        let mut limits = Box::new(existing(schedulers, controlled.control).limits_only(now));
        limits.add(now, disk, controlled.key, &policy);
        if let Some(spent) = &controlled.spent {
            limits.resume(now, disk, spent);
        }
        let mut members = MemberQos {
            disk,
            key: controlled.key,
            is_limited: is_limited(&policy),
            policy,
            home: controlled.control,
            entries: Vec::new(),
            targets: Vec::new(),
            limits,
        };
        members.retarget(schedulers, now, &controlled.members);
        members
    }

    /// Gives the targets other controls, and the disk another policy.
    pub(super) fn change(
        &mut self,
        schedulers: &mut Schedulers,
        now: Time,
        controlled: &Controlled,
    ) {
        if self.home != controlled.control {
            self.home = controlled.control;
            let orders = existing(schedulers, self.home).orders_for_limits();
            self.limits.steer(now, &orders);
        }
        self.retarget(schedulers, now, &controlled.members);
        self.set_policy(schedulers, now, &controlled.policy);
    }

    fn retarget(&mut self, schedulers: &mut Schedulers, now: Time, controls: &[ControlId]) {
        let controls = controls.iter();
        let targets = controls.map(|control| self.entry(schedulers, now, *control));
        self.targets = targets.collect();
        self.drop_unused(schedulers);
    }

    /// The registration with a control; a new one if there is none.
    fn entry(&mut self, schedulers: &mut Schedulers, now: Time, control: ControlId) -> u8 {
        if control == ControlId::NONE {
            return NOWHERE;
        }
        let mut entries = self.entries.iter();
        if let Some(place) = entries.position(|entry| entry.qos.control == control) {
            return number(place);
        }
        let entry = Entry {
            qos: QosState::of(control),
            ios: 0,
        };
        let mut entries = self.entries.iter();
        let vacant = entries.position(|entry| entry.qos.control == ControlId::NONE);
        let place = vacant.unwrap_or(self.entries.len());
        match self.entries.get_mut(place) {
            Some(vacant) => *vacant = entry,
            // So many datastores were replaced while I/O on each hangs: the last one is used without control.
            None if place == usize::from(NOWHERE) => return NOWHERE,
            None => self.entries.push(entry),
        }
        let policy = at_datastore(&self.policy);
        existing(schedulers, control).add(now, self.disk, self.key, &policy);
        number(place)
    }

    /// Ends the registrations that neither a target nor an I/O needs.
    #[cold]
    fn drop_unused(&mut self, schedulers: &mut Schedulers) {
        for (place, entry) in self.entries.iter_mut().enumerate() {
            let is_used = entry.ios > 0 || self.targets.contains(&number(place));
            if !is_used && let Some(scheduler) = scheduler_of(schedulers, entry.qos.control) {
                scheduler.remove(self.disk);
                entry.qos = QosState::of(ControlId::NONE);
            }
        }
    }

    /// Ends all registrations. Returns what the disk has used of its limits.
    pub(super) fn withdraw(mut self, schedulers: &mut Schedulers) -> Option<Box<Spent>> {
        for entry in &self.entries {
            if let Some(scheduler) = scheduler_of(schedulers, entry.qos.control) {
                scheduler.remove(self.disk);
            }
        }
        self.limits.remove(self.disk)
    }

    pub(super) fn set_policy(&mut self, schedulers: &mut Schedulers, now: Time, policy: &Policy) {
        if self.policy == *policy {
            return;
        }
        self.policy = policy.clone();
        self.is_limited = is_limited(policy);
        self.limits.change(now, self.disk, policy);
        let policy = at_datastore(policy);
        for entry in &self.entries {
            if let Some(scheduler) = scheduler_of(schedulers, entry.qos.control) {
                scheduler.change(now, self.disk, &policy);
            }
        }
    }

    /// Applies the settings of a datastore's control to the limits that belong to it. Returns whether there are any.
    pub(crate) fn steer(&mut self, now: Time, control: ControlId, orders: &Orders) -> bool {
        let is_home = self.home == control;
        if is_home {
            self.limits.steer(now, &orders.for_limits());
        }
        is_home
    }

    /// Whether an I/O that has passed the filters may go on to the layouts; otherwise a limit delays it.
    pub(crate) fn passes_limits(&mut self, now: Time, io: &Io) -> bool {
        if !self.is_limited {
            return true;
        }
        let (op, offset, len) = (io.op, io.offset, io.len);
        match self.limits.offer(now, self.disk, io.id, op, offset, len) {
            Offer::Start(cost) => {
                self.limits.passed(now, self.disk, cost);
                true
            }
            Offer::Wait => false,
        }
    }

    /// The next I/O that the limits let go on.
    pub(crate) fn next_passed(&mut self, now: Time) -> Option<IoId> {
        match self.limits.pick(now) {
            Pick::Now(disk, io, cost) => {
                self.limits.passed(now, disk, cost);
                Some(io)
            }
            Pick::At(..) | Pick::Full | Pick::Other(_) | Pick::Behind | Pick::Empty => None,
        }
    }

    /// When the limits let an I/O go on.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.limits.deadline()
    }

    /// Whether an I/O that a layout sends to a target starts now; otherwise the target's scheduler queues it.
    pub(crate) fn may_start(
        &mut self,
        schedulers: &mut Schedulers,
        now: Time,
        target: Target,
        io: &mut Io,
    ) -> bool {
        let place = self.targets.get(usize::from(target.0));
        let place = place.copied().unwrap_or(NOWHERE);
        let Some(entry) = self.entries.get_mut(usize::from(place)) else {
            return true;
        };
        if io.is_background() {
            (io.via, io.times) = (place, 1);
            entry.ios += 1;
            let Some(scheduler) = scheduler_of(schedulers, entry.qos.control) else {
                return true;
            };
            let (op, offset, len) = (io.op, io.at, io.len);
            let offer = scheduler.offer_background(now, self.disk, io.id, op, offset, len);
            return match offer {
                Offer::Start(cost) => {
                    io.cost = cost;
                    true
                }
                Offer::Wait => false,
            };
        }
        if !entry.qos.counts(io) {
            return true;
        }
        entry.ios += 1;
        io.via = place;
        entry.qos.may_start(schedulers, now, self.disk, io)
    }

    /// Counts a completion.
    #[cold]
    pub(super) fn ended(&mut self, schedulers: &mut Schedulers, now: Time, io: &Io) {
        let entry = &mut self.entries[usize::from(io.via)];
        entry.ios -= 1;
        match scheduler_of(schedulers, entry.qos.control) {
            Some(scheduler) if io.is_background() => {
                let (op, len, issued) = (io.op, io.len, io.issued);
                scheduler.finished_background(now, self.disk, op, len, issued, io.cost);
            }
            _ => {
                entry.qos.ended(schedulers, now, self.disk, io);
            }
        }
        self.left(schedulers, io.via);
    }

    /// A counted I/O has gone.
    fn left(&mut self, schedulers: &mut Schedulers, place: u8) {
        if self.entries[usize::from(place)].ios == 0 && !self.targets.contains(&place) {
            self.drop_unused(schedulers);
        }
    }

    /// Removes the queued I/Os that `gone` names, at the limits and at the targets.
    pub(super) fn abandon(
        &mut self,
        schedulers: &mut Schedulers,
        now: Time,
        gone: impl Fn(IoId) -> bool,
        out: &mut Vec<IoId>,
    ) {
        self.limits.abandon(now, self.disk, &gone, out);
        for entry in &mut self.entries {
            if let Some(scheduler) = scheduler_of(schedulers, entry.qos.control) {
                let before = out.len();
                scheduler.abandon(now, self.disk, &gone, out);
                let removed = u32::try_from(out.len() - before).expect("I/Os in flight are fewer");
                entry.ios -= removed;
            }
        }
        self.drop_unused(schedulers);
    }

    /// Somebody waits for what the disk has in the background. Appends what is queued.
    pub(crate) fn hurry(&mut self, schedulers: &mut Schedulers, now: Time, out: &mut Vec<IoId>) {
        for entry in &self.entries {
            if let Some(scheduler) = scheduler_of(schedulers, entry.qos.control) {
                scheduler.hurry(now, self.disk, out);
            }
        }
    }

    /// I/Os that wait for a limit or at a target.
    pub(super) fn waiting(&self, schedulers: &Schedulers) -> usize {
        let at = |entry: &Entry| {
            let place = schedulers.get(entry.qos.control.0 as usize);
            place
                .and_then(Option::as_ref)
                .map_or(0, |s| s.waiting(self.disk))
        };
        let targets: usize = self.entries.iter().map(at).sum();
        self.limits.waiting(self.disk) + targets
    }

    /// Whether I/O waits at any of its schedulers, here or on another thread.
    pub(crate) fn someone_waits(&self, schedulers: &mut Schedulers) -> bool {
        self.entries.iter().any(|entry| {
            scheduler_of(schedulers, entry.qos.control).is_some_and(|s| s.someone_waits())
        })
    }

    /// The `nth` of its controls; those that are not used any more are [`ControlId::NONE`].
    pub(crate) fn control(&self, nth: usize) -> Option<ControlId> {
        self.entries.get(nth).map(|entry| entry.qos.control)
    }

    pub(super) fn uses(&self, control: ControlId) -> bool {
        let mut entries = self.entries.iter();
        self.home == control || entries.any(|entry| entry.qos.control == control)
    }

    pub(super) fn update_sampling(&mut self, control: ControlId, may_skip: bool) {
        let mut entries = self.entries.iter_mut();
        if let Some(entry) = entries.find(|entry| entry.qos.control == control) {
            entry.qos.sampler.enable(may_skip);
        }
    }

    /// Whether the limits of this control delay I/O.
    pub(crate) fn is_delayed(&self, control: ControlId) -> bool {
        self.home == control && self.limits.waiting(self.disk) > 0
    }

    /// Adds what the limits have done to the disk's usage of its home.
    pub(crate) fn add_limits(&mut self, control: ControlId, now: Time, usage: &mut [Usage]) {
        if self.home != control {
            return;
        }
        let mut own = Vec::with_capacity(1);
        self.limits.usage(now, &mut own);
        let place = usage.iter_mut().find(|usage| usage.disk == self.disk);
        if let (Some(usage), [own]) = (place, &own[..]) {
            usage.limit = own.limit;
            usage.burst_left = own.burst_left;
            usage.active |= own.active;
            for hold in [Hold::Limit, Hold::GroupLimit, Hold::Bandwidth] {
                usage.held_ns[hold.index()] += own.held_ns[hold.index()];
            }
        }
    }
}

/// The part of a policy that holds on each datastore: limits are the disk's own.
fn at_datastore(policy: &Policy) -> Policy {
    Policy {
        limit: None,
        bandwidth: None,
        group: None,
        ..policy.clone()
    }
}

fn is_limited(policy: &Policy) -> bool {
    policy.limit.is_some() || policy.bandwidth.is_some() || policy.group.is_some()
}

fn number(place: usize) -> u8 {
    u8::try_from(place).expect("the number of entries is bounded")
}
