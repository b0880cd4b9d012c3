//! Storage I/O control on one host: the order in which I/Os start on a datastore, and how many are in flight.
//!
//! The shard offers each I/O that has passed its disk's filters to the [`scheduler::Scheduler`] of its datastore. An
//! I/O that may not start yet waits in its disk's queue, and `pick` returns it later. The administrator sets
//! reservations, limits and shares ([`policy`]). The governor sets the window and the device costs ([`Orders`]). This
//! module knows neither other hosts nor the datastore itself: its callers pass in the time and completions.
//!
//! # Always true
//! - over any interval a limited disk or group starts at most `limit * interval + burst` units and one I/O
//! - a queued I/O was offered once and is started once, in its disk's order
//! - two backlogged disks differ by a bounded amount of device time, weighted by their shares, at any instant
//!
//! # Picture
//! ```text
//!             offer                     pick
//!   filters ──┬──> Start               ┌─ 1 reservation is due      (by its time)
//!             │                        ├─ 2 latency target is near  (by deadline)
//!             └──> queue of its disk ──┤
//!                   │        ▲         └─ 3 shares                  (by start tag)
//!              over its limit│ due              │ fits in the window?
//!                   └─> parked                  └──> datastore ──> finished
//! ```
//!
//! # Units
//! Device time is [`Cost`], 1/256 of a 4 KiB random read. Limits and reservations count units: one per `io_unit` bytes
//! of a request (32 KiB by default), at least one.
//!
//! # Source
//! Start-time fair queueing (Goyal, Vin, Cheng 1996), mClock (OSDI 2010), the generic cell rate algorithm (ITU-T I.371).

mod account;
mod atomics;
pub mod cost;
mod disk;
mod groups;
pub mod limit;
pub mod policy;
pub(crate) mod sampler;
pub mod scheduler;
pub mod shared;
pub mod tags;

pub use cost::CostModel;
pub use limit::Spent;
pub use policy::{GroupPolicy, Limit, Policy, PolicyFault};
pub use scheduler::Scheduler;
pub use shared::{GroupsHandle, SharedHandle};

use crate::request::{DiskId, IoId};
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// Device time, in 1/256 of a 4 KiB random read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(pub u64);

impl Cost {
    /// One reference I/O: a 4 KiB random read.
    pub const REFERENCE: Cost = Cost(256);
}

/// A disk's identity across hosts: a hash of its uuid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskKey(pub u64);

/// A group of disks on this host that share limits: its index in [`shared::Groups`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// The mode of I/O control on a datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// No window, no shares, no reservations. Limits apply: they belong to a disk, not to congestion.
    Off,
    /// Everything is counted and no I/O is delayed, not even by limits.
    Observe,
    /// Full control.
    #[default]
    On,
}

/// The governor's orders to the schedulers of a datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    /// The mode of control.
    pub mode: Mode,
    /// Whether the datastore is congested. If not, the window is wide and the order of disks does not matter.
    pub engaged: bool,
    /// How much this host may have in flight, in 1/256 cost units. Fractions of an I/O apply on average.
    pub window: u64,
    /// What part of the reservations can be met, in 1/65536.
    pub theta: u32,
    /// What requests cost on this datastore.
    pub costs: CostModel,
    /// The 99th percentile of the datastore's normalised latency.
    pub latency_p99: Span,
    /// What this host gets through, in cost units a second; 0 while unknown.
    pub per_second: u64,
    /// Bytes of a unit of limits and reservations; 0: unchanged.
    pub io_unit: u32,
    /// How much single disks may have in flight, in 1/256 cost units, sorted by key. Only the window limits the other
    /// disks.
    pub parts: Vec<(DiskKey, u64)>,
}

impl Orders {
    /// The orders for an uncongested datastore of which nothing is known.
    pub fn idle(costs: CostModel) -> Orders {
        Orders {
            mode: Mode::On,
            engaged: false,
            window: 256 * Cost::REFERENCE.0,
            theta: 1 << 16,
            costs,
            latency_p99: Span::ZERO,
            per_second: 0,
            io_unit: 0,
            parts: Vec::new(),
        }
    }

    /// What holds of these orders where only limits apply: they do not depend on congestion.
    pub(crate) fn for_limits(&self) -> Orders {
        let mode = match self.mode {
            Mode::Observe => Mode::Observe,
            Mode::Off | Mode::On => Mode::Off,
        };
        Orders {
            mode,
            io_unit: self.io_unit,
            ..Orders::idle(self.costs)
        }
    }
}

/// The scheduler's decision on an offered I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Submit it to the datastore now; it is accounted at this cost.
    Start(Cost),
    /// It is queued, and [`Scheduler::pick`] will return it. Call `pick` before the thread sleeps.
    Wait,
}

/// The scheduler's answer to a call of `pick`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Submit this I/O to the datastore now; it is accounted at this cost. Then call `pick` again.
    Now(DiskId, IoId, Cost),
    /// No I/O may start before this time, and why. Call `pick` again then, or after a completion or an offer.
    At(Time, Hold),
    /// The window is full. Call `pick` again after a completion. [`Scheduler::deadline`] may give a time too.
    Full,
    /// The window has room, but another I/O thread has priority. Wake it; it then calls `pick` on its own scheduler of
    /// this datastore. Call `pick` here again after a completion, an offer or a wake.
    Other(usize),
    /// The window has room, another I/O thread has priority, and it is awake already. Otherwise as [`Pick::Other`].
    Behind,
    /// No queued I/O here can start. Call `pick` again after an offer, or a completion of a disk at its part.
    Empty,
}

/// The reason why an I/O waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    /// Other disks had priority by their shares.
    Shares,
    /// The disk had priority, and the window was full.
    Window,
    /// The disk's limit of I/Os.
    Limit,
    /// A limit of the disk's group.
    GroupLimit,
    /// The disk's limit of bytes.
    Bandwidth,
}

impl Hold {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Hold; 5] = [
        Hold::Shares,
        Hold::Window,
        Hold::Limit,
        Hold::GroupLimit,
        Hold::Bandwidth,
    ];

    /// The reason's index in [`Hold::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// One disk's use of a datastore on one I/O thread between two calls of [`Scheduler::usage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The disk.
    pub disk: DiskId,
    /// Its identity across hosts.
    pub key: DiskKey,
    /// Its shares.
    pub shares: u32,
    /// Its reservation in units a second; 0: none.
    pub reservation: u32,
    /// Its sustained limit in units a second; 0: none.
    pub limit: u64,
    /// Its latency target; zero: none.
    pub latency_target: Span,
    /// The length of the interval.
    pub span: Span,
    /// Completed reads and writes; the latencies below cover these.
    pub ios: u64,
    /// Units of started I/Os.
    pub units: u64,
    /// Cost of started I/Os, including those that are never queued.
    pub cost: u64,
    /// Cost of completed I/Os: the datastore's work.
    pub ended_cost: u64,
    /// Bytes read and written by started I/Os.
    pub bytes: u64,
    /// Sum of the normalised latencies of completed reads and writes, in nanoseconds.
    pub latency_ns: u64,
    /// The greatest of them.
    pub latency_max: Span,
    /// A histogram of them: bucket `i` ends at `2^i` us; the last has no end.
    pub latency_counts: [u32; 32],
    /// Cost in flight, integrated over time in nanoseconds.
    pub in_flight_cost_ns: u128,
    /// Cost of queued I/Os, integrated over time in nanoseconds.
    pub waiting_cost_ns: u128,
    /// Queueing time summed over the I/Os, by [`Hold`]. Under [`Mode::Observe`]: how far I/Os exceeded a limit.
    pub held_ns: [u64; 5],
    /// Whether it issued any I/O, or has I/O in flight or queued.
    pub active: bool,
    /// Units left of its burst.
    pub burst_left: u64,
}

impl Usage {
    /// The usage of the same disk over an idle interval.
    pub fn idle_for(&self, span: Span) -> Usage {
        Usage {
            shares: self.shares,
            reservation: self.reservation,
            limit: self.limit,
            latency_target: self.latency_target,
            burst_left: self.burst_left,
            span,
            ..Usage::none(self.disk, self.key)
        }
    }

    /// The usage of an idle disk without a policy.
    pub(crate) fn none(disk: DiskId, key: DiskKey) -> Usage {
        Usage {
            disk,
            key,
            shares: 0,
            reservation: 0,
            limit: 0,
            latency_target: Span::ZERO,
            span: Span::ZERO,
            ios: 0,
            units: 0,
            cost: 0,
            ended_cost: 0,
            bytes: 0,
            latency_ns: 0,
            latency_max: Span::ZERO,
            latency_counts: [0; 32],
            in_flight_cost_ns: 0,
            waiting_cost_ns: 0,
            held_ns: [0; 5],
            active: false,
            burst_left: 0,
        }
    }
}

/// Completions of one I/O thread within 100 ms while its datastore was congested. The cost regression uses these as
/// rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// When it began.
    pub at: Time,
    /// Its length.
    pub span: Span,
    /// Completed reads.
    pub reads: u64,
    /// Completed writes.
    pub writes: u64,
    /// Bytes of those reads.
    pub bytes_read: u64,
    /// Bytes of those writes.
    pub bytes_written: u64,
}
