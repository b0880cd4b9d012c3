//! The I/O control of one disk on an I/O thread: its datastore's scheduler and its sampler.

use crate::effect::ControlId;
use crate::filter::Io;
use crate::iocontrol::Scheduler;
use crate::iocontrol::sampler::IoSampler;
use crate::request::DiskId;
use crate::units::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The schedulers of the datastores under I/O control, by [`ControlId`].
pub(crate) type Schedulers = Vec<Option<Box<Scheduler>>>;

/// The I/O control of one disk: which scheduler it uses, and which of its I/Os are counted.
pub(crate) struct QosState {
    /// The datastore's control, or [`ControlId::NONE`].
    pub(crate) control: ControlId,
    /// Selects the disk's I/Os that are counted there.
    pub(crate) sampler: IoSampler,
}

impl QosState {
    /// Counts a completion. I/Os that the sampler skipped are not counted one by one.
    #[inline]
    pub(crate) fn ended(&mut self, schedulers: &mut Schedulers, now: Time, disk: DiskId, io: &Io) {
        let Some(scheduler) = scheduler_of(schedulers, self.control) else {
            return;
        };
        let times = io.times.into();
        if scheduler.finished_for(now, disk, io.op, io.len, io.issued, io.cost, times) {
            self.sampler.enable(scheduler.may_skip(disk));
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
