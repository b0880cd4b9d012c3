//! The trait of a host's I/O control in the simulator, with one file for each policy.
//!
//! The simulator's `World` calls it where the engine calls an I/O thread's scheduler and a host's governor. The `World`
//! then executes what it returns: I/Os to start, and slot I/O. `ours.rs` drives the core's scheduler and governor exactly
//! as the engine does. `parda.rs` is the published control law, as a baseline. `none.rs` is a host without control.
//!
//! # Always true
//! - An I/O that `offer` did not start is returned by `pick` exactly once.

pub(crate) mod governor_loop;
mod none;
pub(crate) mod ours;
mod parda;

use crate::policy::Policy;
use crate::scenario::{Scenario, Settings};
use tidegate_core::iocontrol::Cost;
use tidegate_core::request::{IoId, Op};
use tidegate_core::units::{Span, Time};

/// Creates a host's control under this policy. `incarnation` distinguishes the starts of its daemon.
pub(crate) fn control(
    policy: Policy,
    now: Time,
    scenario: &Scenario,
    settings: &[Settings],
    host: usize,
    incarnation: u64,
) -> Box<dyn Control> {
    match policy {
        Policy::Ours => Box::new(ours::Ours::new(now, scenario, settings, host, incarnation)),
        Policy::Parda => Box::new(parda::Parda::new(now, scenario, settings, host)),
        Policy::None => Box::new(none::NoControl::new(scenario, host)),
    }
}

/// An I/O that has passed its disk's filters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offered {
    /// The disk's index in the scenario.
    pub(crate) disk: usize,
    pub(crate) io: IoId,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// An I/O that the datastore has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) disk: usize,
    pub(crate) op: Op,
    pub(crate) len: u64,
    pub(crate) issued: Time,
    pub(crate) cost: Cost,
}

/// The result of [`Control::pick`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Start this I/O, then call `pick` again.
    Start(IoId, Cost),
    /// This thread has no I/O to start. Call `pick` for the thread with this index next.
    Thread(usize),
    /// No I/O can start.
    Nothing,
}

/// An I/O on the coordination file that control requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SlotIo {
    /// Read all slots.
    Read,
    /// Write the host's own slot.
    Write(Vec<u8>),
}

/// The result of a read of the coordination file: the non-empty slots.
pub(crate) type Slots = Result<Vec<(u16, Vec<u8>)>, ()>;

/// The state of control, for charts and checks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ControlState {
    /// The window in reference I/Os; `None` for no window.
    pub(crate) window: Option<f64>,
    /// The measured latency of the datastore.
    pub(crate) latency: Span,
    /// The congestion threshold.
    pub(crate) threshold: Span,
    pub(crate) engaged: bool,
}

/// A host's control of one datastore.
pub(crate) trait Control {
    /// Offers an I/O. Returns its cost if it may start now. Otherwise it waits.
    fn offer(&mut self, now: Time, offered: &Offered) -> Option<Cost>;
    /// Picks the next I/O of a thread.
    fn pick(&mut self, now: Time, thread: usize) -> Next;
    /// An I/O of this host has completed.
    fn finished(&mut self, now: Time, ended: &Ended);
    /// The time at which a thread must call `pick` again without a completion.
    fn deadline(&self, thread: usize) -> Option<Time>;
    /// The time of the next [`Control::wake`].
    fn wake_at(&self) -> Time;
    /// Called at the time of [`Control::wake_at`].
    fn wake(&mut self, now: Time, out: &mut Vec<SlotIo>);
    /// A [`SlotIo::Read`] has completed.
    fn slots_read(&mut self, now: Time, slots: &Slots, out: &mut Vec<SlotIo>);
    /// A [`SlotIo::Write`] has completed; `fine`: successfully.
    fn slot_written(&mut self, now: Time, fine: bool);
    /// A disk has new settings.
    fn change(&mut self, now: Time, disk: usize, settings: &Settings);
    /// The state of control.
    fn state(&self) -> ControlState;
    /// The events since the last call.
    fn take_events(&mut self) -> Vec<String> {
        Vec::new()
    }
}
