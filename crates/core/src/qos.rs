//! The I/O control of one disk on an I/O thread: its datastores' schedulers, its samplers, and its limits.
//!
//! A disk of one image is under one datastore's control, which also holds its limits. A disk with layouts is under the
//! control of each target's datastore: a sub-I/O waits and counts at the target that it goes to. Its limits are its own:
//! a guest's I/O passes them once, before the layouts.
//!
//! # Always true
//! - a disk is registered once with each scheduler that it uses, however many of its targets are there
//! - an I/O is counted by the scheduler that started it, even if its target has another control meanwhile
//! - a disk stays registered with a scheduler while that has a counted I/O of it
//!
//! # Picture
//! ```text
//!   one image:  filters ──────────────────────> scheduler (window, shares, limits) ──> target 0
//!   layouts:    filters ──> limits ──> layouts ──> scheduler of datastore A ─────────> target 0
//!                                           └────> scheduler of datastore B ─────────> target 1
//! ```

use crate::effect::ControlId;
use crate::filter::Io;
use crate::iocontrol::sampler::IoSampler;
use crate::iocontrol::scheduler::MovingDisk;
use crate::iocontrol::{DiskKey, Offer, Policy, Scheduler, Spent};
use crate::request::{DiskId, IoId};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;

pub(crate) use members::MemberQos;

mod members;

/// The schedulers of the datastores under I/O control, by [`ControlId`].
pub(crate) type Schedulers = Vec<Option<Box<Scheduler>>>;

/// A disk's settings under I/O control.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controlled {
    /// The datastore's control, which this thread already has. Of a disk with layouts: the one whose settings and reports
    /// its limits belong to.
    pub control: ControlId,
    /// Of a disk with layouts: the control of each target's datastore, or [`ControlId::NONE`]. Empty for one image.
    pub members: Vec<ControlId>,
    /// The disk's identity on all hosts.
    pub key: DiskKey,
    /// Its policy.
    pub policy: Policy,
    /// What it had used of its limits when it was last here, as reported by
    /// [`Effect::Detached`](crate::effect::Effect::Detached).
    pub spent: Option<Box<Spent>>,
}

/// The I/O control of a disk that moves to another I/O thread.
pub(crate) struct MovingQos {
    qos: DiskQos,
    disks: Vec<(ControlId, MovingDisk)>,
}

impl MovingQos {
    /// The disk comes to this thread.
    ///
    /// # Panics
    /// If this thread lacks one of its controls.
    pub(crate) fn put(self, schedulers: &mut Schedulers, now: Time, disk: DiskId) -> DiskQos {
        for (control, moving) in self.disks {
            existing(schedulers, control).put_disk(now, disk, moving);
        }
        self.qos
    }
}

/// The I/O control of one disk.
pub(crate) struct DiskQos {
    /// Of a disk of one image. A disk with layouts has no control here.
    pub(crate) plain: QosState,
    /// Of a disk with layouts.
    pub(crate) members: Option<Box<MemberQos>>,
}

/// A disk's use of one datastore's scheduler: which of its I/Os are counted there.
pub(crate) struct QosState {
    /// The datastore's control, or [`ControlId::NONE`].
    pub(crate) control: ControlId,
    /// Selects the disk's I/Os that are counted there.
    pub(crate) sampler: IoSampler,
}

impl QosState {
    /// Uses this control, and counts every I/O.
    pub(crate) const fn of(control: ControlId) -> QosState {
        QosState {
            control,
            sampler: IoSampler::all(),
        }
    }

    /// Whether the scheduler must see this I/O. A later one represents those that it need not see.
    #[inline(always)]
    pub(crate) fn counts(&mut self, io: &Io) -> bool {
        self.control != ControlId::NONE && !self.sampler.skips(io.op, io.at, io.len)
    }

    /// Whether the scheduler starts the I/O now; otherwise it queues it.
    #[inline(always)]
    pub(crate) fn may_start(
        &mut self,
        schedulers: &mut Schedulers,
        now: Time,
        disk: DiskId,
        io: &mut Io,
    ) -> bool {
        let Some(scheduler) = scheduler_of(schedulers, self.control) else {
            return true;
        };
        let (op, offset, len) = (io.op, io.at, io.len);
        if let Some((times, sequential)) = self.sampler.sampled(op, offset, len) {
            if let Some(cost) = scheduler.start_for(now, disk, op, len, sequential, times.into()) {
                (io.cost, io.times) = (cost, times);
                return true;
            }
            // The disk has so much in flight that every I/O must be counted.
            self.sampler.enable(false);
        }
        io.times = 1;
        // In two halves: the common one returns here without a match on its result.
        if let Some(cost) = scheduler.start_at_once(now, disk, op, offset, len) {
            io.cost = cost;
            return true;
        }
        match scheduler.consider(now, disk, io.id, op, offset, len) {
            Offer::Start(cost) => {
                io.cost = cost;
                true
            }
            Offer::Wait => false,
        }
    }

    /// Counts a completion. I/Os that the sampler skipped are not counted one by one.
    #[inline]
    pub(crate) fn ended(
        &mut self,
        schedulers: &mut Schedulers,
        now: Time,
        disk: DiskId,
        io: &Io,
    ) -> bool {
        let Some(scheduler) = scheduler_of(schedulers, self.control) else {
            return false;
        };
        let times = io.times.into();
        if scheduler.finished_for(now, disk, io.op, io.len, io.issued, io.cost, times) {
            self.sampler.enable(scheduler.may_skip(disk));
        }
        true
    }
}

impl DiskQos {
    /// Of a disk without I/O control.
    pub(crate) const fn none() -> DiskQos {
        DiskQos {
            plain: QosState::of(ControlId::NONE),
            members: None,
        }
    }

    /// Counts a completion.
    #[inline]
    pub(crate) fn ended(&mut self, schedulers: &mut Schedulers, now: Time, disk: DiskId, io: &Io) {
        if !self.plain.ended(schedulers, now, disk, io)
            && let Some(members) = &mut self.members
        {
            members.ended(schedulers, now, io);
        }
    }

    /// Whether the disk is under this control.
    pub(crate) fn uses(&self, control: ControlId) -> bool {
        self.plain.control == control
            || self
                .members
                .as_ref()
                .is_some_and(|members| members.uses(control))
    }

    /// Puts the disk under control.
    ///
    /// # Panics
    /// If it is under control already, or a control is not here.
    pub(crate) fn enrol(
        &mut self,
        schedulers: &mut Schedulers,
        now: Time,
        disk: DiskId,
        controlled: &Controlled,
    ) {
        assert!(
            self.plain.control == ControlId::NONE && self.members.is_none(),
            "a disk is put under control once"
        );
        if !controlled.members.is_empty() {
            let members = MemberQos::new(schedulers, now, disk, controlled);
            self.members = Some(Box::new(members));
            return;
        }
        let scheduler = existing(schedulers, controlled.control);
        scheduler.add(now, disk, controlled.key, &controlled.policy);
        if let Some(spent) = &controlled.spent {
            scheduler.resume(now, disk, spent);
        }
        self.plain = QosState::of(controlled.control);
    }

    /// Ends the disk's control. Returns what it has used of its limits, if anything.
    ///
    /// # Panics
    /// If an I/O of the disk is queued.
    pub(crate) fn withdraw(
        &mut self,
        schedulers: &mut Schedulers,
        disk: DiskId,
    ) -> Option<Box<Spent>> {
        let DiskQos { plain, members } = core::mem::replace(self, DiskQos::none());
        if let Some(members) = members {
            return members.withdraw(schedulers);
        }
        scheduler_of(schedulers, plain.control)?.remove(disk)
    }

    /// The disk leaves this thread. Its registrations go with it.
    pub(crate) fn take(self, schedulers: &mut Schedulers, now: Time, disk: DiskId) -> MovingQos {
        let mut controls = self.controls();
        controls.retain(|control| *control != ControlId::NONE);
        let taken = controls.into_iter().filter_map(|control| {
            let moving = scheduler_of(schedulers, control)?.take_disk(now, disk)?;
            Some((control, moving))
        });
        let disks = taken.collect();
        MovingQos { qos: self, disks }
    }

    /// The controls with which it may be registered. Some may be [`ControlId::NONE`].
    fn controls(&self) -> Vec<ControlId> {
        match &self.members {
            Some(members) => (0..).map_while(|nth| members.control(nth)).collect(),
            None => vec![self.plain.control],
        }
    }

    /// Changes the controls of a disk.
    ///
    /// # Panics
    /// If the disk becomes one image, or is not one any more, while it has I/O in flight.
    pub(crate) fn change(
        &mut self,
        schedulers: &mut Schedulers,
        now: Time,
        disk: DiskId,
        controlled: Option<&Controlled>,
        is_idle: bool,
    ) {
        if let (Some(members), Some(controlled)) = (&mut self.members, controlled)
            && !controlled.members.is_empty()
        {
            return members.change(schedulers, now, controlled);
        }
        let is_free = self.plain.control == ControlId::NONE && self.members.is_none();
        assert!(
            is_idle || is_free,
            "a disk becomes one image, or more, while nothing is in flight"
        );
        let spent = self.withdraw(schedulers, disk);
        if let Some(controlled) = controlled {
            let spent = spent.or_else(|| controlled.spent.clone());
            let controlled = Controlled {
                spent,
                ..controlled.clone()
            };
            self.enrol(schedulers, now, disk, &controlled);
        }
    }

    /// Changes the disk's policy.
    pub(crate) fn set_policy(
        &mut self,
        schedulers: &mut Schedulers,
        now: Time,
        disk: DiskId,
        policy: &Policy,
    ) {
        if let Some(members) = &mut self.members {
            members.set_policy(schedulers, now, policy);
        } else if let Some(scheduler) = scheduler_of(schedulers, self.plain.control) {
            scheduler.change(now, disk, policy);
        }
    }

    /// Lifts the disk's limits before it is detached.
    pub(crate) fn lift_limits(&mut self, schedulers: &mut Schedulers, now: Time, disk: DiskId) {
        if let Some(members) = &mut self.members {
            members.limits.lift_limits(now, disk);
        } else if let Some(scheduler) = scheduler_of(schedulers, self.plain.control) {
            scheduler.lift_limits(now, disk);
        }
    }

    /// Removes the queued I/Os that `gone` names, and appends them.
    pub(crate) fn abandon(
        &mut self,
        schedulers: &mut Schedulers,
        now: Time,
        disk: DiskId,
        gone: impl Fn(IoId) -> bool,
        out: &mut Vec<IoId>,
    ) {
        if let Some(members) = &mut self.members {
            members.abandon(schedulers, now, gone, out);
        } else if let Some(scheduler) = scheduler_of(schedulers, self.plain.control) {
            scheduler.abandon(now, disk, gone, out);
        }
    }

    /// The number of queued I/Os of the disk.
    pub(crate) fn waiting(&self, schedulers: &Schedulers, disk: DiskId) -> usize {
        if let Some(members) = &self.members {
            return members.waiting(schedulers);
        }
        let place = schedulers.get(self.plain.control.0 as usize);
        let scheduler = place.and_then(Option::as_ref);
        scheduler.map_or(0, |scheduler| scheduler.waiting(disk))
    }

    /// Updates whether the disk's I/Os on a datastore are sampled.
    pub(crate) fn update_sampling(&mut self, control: ControlId, may_skip: bool) {
        if self.plain.control == control {
            self.plain.sampler.enable(may_skip);
        }
        if let Some(members) = &mut self.members {
            members.update_sampling(control, may_skip);
        }
    }
}

/// The scheduler of a datastore, if that is under control.
#[inline(always)]
pub(crate) fn scheduler_of(
    schedulers: &mut Schedulers,
    control: ControlId,
) -> Option<&mut Scheduler> {
    schedulers.get_mut(control.0 as usize)?.as_deref_mut()
}

/// The scheduler of a datastore that is under control.
fn existing(schedulers: &mut Schedulers, control: ControlId) -> &mut Scheduler {
    scheduler_of(schedulers, control).expect("the engine names only controls that it has created")
}
