//! The monitor's policies: how many I/O threads serve, which disks each serves, and whether they may poll.
//!
//! The engine's monitor thread (or the simulator) takes a [`Snapshot`] at the moments that the policy asks for, calls
//! [`Policy::decide`], and carries out the [`Decision`]s in order. A policy knows no clock, thread or device. It believes
//! the newest snapshot: an action that failed simply does not show there.
//!
//! # Always true
//! - A policy is deterministic: equal snapshots in equal order lead to equal decisions. [`record`] stores snapshots as
//!   text, so what happened on a host replays through every policy.
//! - Each decision carries the inputs that led to it, in values.
//! - A thread that an administrator locked gets no disk, and is neither parked nor unlocked ([`ThreadState::Locked`]). One that
//!   a policy empties is another matter ([`ThreadState::Leaving`]).
//! - Nothing is asked of a host without load: see [`Policy::next`].
//!
//! # Picture
//! ```text
//! counters of threads and disks --> Snapshot --> Policy --> Decision: Move, Activate, Lock, Park, Spin
//!         ^                                                               |
//!         +-------------------- threads and disks <-----------------------+
//! ```
//!
//! # Units
//! Times in nanoseconds ([`Span`]), shares in thousandths. A thread that is busy all the time has 1000.

pub mod auto;
pub mod decision;
pub mod findings;
pub mod iocm;
pub mod none;
pub mod record;
pub mod snapshot;
pub mod spdk;

pub use decision::{Action, Decision, Why};
pub use findings::Findings;
pub use snapshot::{Class, DiskLoad, HostLoad, Snapshot, ThreadLoad, ThreadState, weight};

use crate::units::Span;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A thread's number, as in the engine.
pub type ThreadNumber = u16;

/// A share of something, in thousandths.
pub type Permille = u32;

/// How many I/O threads may serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// At least so many are active; at least one.
    pub min: u16,
    /// At most so many are active; at least `min`. Threads above it stay parked.
    pub max: u16,
}

/// The snapshot that a policy wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// How long after the last one. An idle host needs none; the next one then covers all the time since.
    pub after: Span,
    /// Whether with disks. A snapshot may have them although nobody asked.
    pub disks: bool,
}

/// A policy: it sees snapshots and decides.
pub trait Policy {
    /// The snapshot that it wants next; `None`: never one. The caller may leave it out while no thread works.
    fn next(&self) -> Option<Wish>;

    /// Sees a snapshot, and appends what is to be done, in order.
    fn decide(&mut self, snapshot: &Snapshot, out: &mut Vec<Decision>);
}

/// The policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Nothing changes by itself: [`none`].
    None,
    /// Queueing delay, with trials: [`auto`].
    #[default]
    Auto,
    /// Idle time, with blocking trials, as IOcm: [`iocm`].
    Iocm,
    /// Busy shares, as SPDK: [`spdk`].
    Spdk,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::None, Kind::Auto, Kind::Iocm, Kind::Spdk];

    /// Its name in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::None => "none",
            Kind::Auto => "auto",
            Kind::Iocm => "iocm",
            Kind::Spdk => "spdk",
        }
    }

    /// A policy of this kind at its beginning.
    pub fn build(self, limits: Limits) -> Box<dyn Policy + Send> {
        match self {
            Kind::None => Box::new(none::NoPolicy),
            Kind::Auto => Box::new(auto::Auto::new(limits)),
            Kind::Iocm => Box::new(iocm::Iocm::new(limits)),
            Kind::Spdk => Box::new(spdk::Spdk::new(limits)),
        }
    }
}

/// `part` of `whole` in thousandths; zero of nothing.
pub(crate) fn permille(part: Span, whole: Span) -> Permille {
    ratio(part.as_nanos(), whole.as_nanos(), 1000)
}

/// `part` of `whole` in parts of `unit`, at most `u32::MAX`; zero of nothing.
pub(crate) fn ratio(part: u64, whole: u64, unit: u64) -> u32 {
    let scaled = u128::from(part) * u128::from(unit);
    scaled
        .checked_div(u128::from(whole))
        .map_or(0, |ratio| u32::try_from(ratio).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_saturates_and_nothing_of_nothing_is_zero() {
        assert_eq!(permille(Span::from_millis(3), Span::from_millis(4)), 750);
        assert_eq!(permille(Span::from_millis(3), Span::ZERO), 0);
        assert_eq!(ratio(u64::MAX, 1, 1000), u32::MAX);
    }
}
