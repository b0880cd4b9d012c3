//! The trait of a host's I/O control in the simulator; one file for each policy.
//!
//! The world calls it where an I/O thread and a host's governor would be called, and performs what it asks for. One
//! file for each policy: `ours.rs` drives the scheduler and the governor of the core exactly as the engine does,
//! `parda.rs` is the published law it is compared with, `none.rs` the host that controls nothing.
//!
//! # Always true
//! - An I/O that was offered and not started comes out of `pick` once.

mod none;
mod ours;
mod parda;

use crate::policy::Policy;
use crate::scenario::{Scenario, Settings};
use tidegate_core::iocontrol::Cost;
use tidegate_core::request::{IoId, Op};
use tidegate_core::units::{Span, Time};

/// A host's control under this policy. `incarnation` tells one start of its daemon from another.
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
pub(crate) struct Asked {
    /// The disk's place in the scenario.
    pub(crate) disk: usize,
    pub(crate) io: IoId,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// An I/O that the datastore has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) disk: usize,
    pub(crate) op: Op,
    pub(crate) len: u64,
    pub(crate) issued: Time,
    pub(crate) cost: Cost,
}

/// What control answers when asked for the next I/O of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// This one; then ask again.
    Start(IoId, Cost),
    /// None here; it is that thread's turn.
    Thread(usize),
    /// None.
    Nothing,
}

/// What control asks the world to do with the coordination file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Read it whole.
    Read,
    /// Write the host's own slot.
    Write(Vec<u8>),
}

/// What a read of the coordination file gave: the slots that have something in them.
pub(crate) type Slots = Result<Vec<(u16, Vec<u8>)>, ()>;

/// How things stand, to be drawn and judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    /// What it may have in flight, in reference I/Os; `None` for no bound.
    pub(crate) window: Option<f64>,
    /// The latency it believes the datastore has.
    pub(crate) latency: Span,
    /// The latency it holds it to.
    pub(crate) threshold: Span,
    pub(crate) engaged: bool,
}

/// A host's control of one datastore.
pub(crate) trait Control {
    /// Takes an I/O: what it costs if it may go now, or nothing if it waits.
    fn offer(&mut self, now: Time, asked: &Asked) -> Option<Cost>;
    /// The next of a thread's I/Os that may go.
    fn pick(&mut self, now: Time, thread: usize) -> Next;
    /// An I/O of this host has ended.
    fn finished(&mut self, now: Time, ended: &Ended);
    /// When a thread wants to be asked again, though nothing ended.
    fn deadline(&self, thread: usize) -> Option<Time>;
    /// When it wants [`Control::wake`].
    fn alarm(&self) -> Time;
    /// A moment of its own has come.
    fn wake(&mut self, now: Time, out: &mut Vec<Errand>);
    /// An [`Errand::Read`] has ended.
    fn heard(&mut self, now: Time, slots: &Slots, out: &mut Vec<Errand>);
    /// An [`Errand::Write`] has ended.
    fn published(&mut self, now: Time, fine: bool);
    /// A disk has new settings.
    fn change(&mut self, now: Time, disk: usize, settings: &Settings);
    /// How things stand.
    fn standing(&self) -> Standing;
    /// What it has to say of what happened since it was asked last.
    fn told(&mut self) -> Vec<String> {
        Vec::new()
    }
}
