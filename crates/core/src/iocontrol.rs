//! Storage I/O control on one host: the order in which I/Os start on a datastore, and how many are in flight.
//!
//! An I/O that has passed its disk's filters is offered to the [`scheduler::Scheduler`] of its datastore. What may not
//! go yet waits in its disk's queue and comes out of `pick` when its turn has come. Reservations, limits and shares are
//! the administrator's ([`policy`]); the window and the device costs come from the governor as [`Orders`]. This module
//! knows neither other hosts nor the datastore itself: it is told the time, and what has ended.
//!
//! # Always true
//! - over any interval a limited disk or group starts at most `limit * interval + burst` units and one I/O
//! - an I/O that waits was offered once and comes out once, in its disk's order
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

/// A group of disks on this host that share limits: its place in [`shared::Groups`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// How far I/O control goes on a datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// No window, no shares, no reservations. Limits hold: they are promises about a disk, not about congestion.
    Off,
    /// Everything is counted and nobody is held back, by limits neither.
    Observe,
    /// Everything holds.
    #[default]
    On,
}

/// What the governor tells the schedulers of a datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orders {
    /// How far control goes.
    pub mode: Mode,
    /// Whether the datastore is congested. Where it is not, the window is wide and nobody's turn matters.
    pub engaged: bool,
    /// How much this host may have in flight, in 1/256 cost units; fractions of an I/O hold on average.
    pub window: u64,
    /// What part of the reservations can be met, in 1/65536.
    pub theta: u32,
    /// What requests cost on this datastore.
    pub costs: CostModel,
    /// The 99th percentile of the datastore's normalised latency.
    pub latency_p99: Span,
    /// What this host gets through, in cost units a second; 0 while unknown.
    pub per_second: u64,
    /// Bytes of a unit of limits and reservations; 0: as before.
    pub io_unit: u32,
    /// How much single disks may have in flight, in 1/256 cost units, in the order of their keys; of the others the window
    /// alone decides.
    pub parts: Vec<(DiskKey, u64)>,
}

impl Orders {
    /// The orders of a datastore on which nothing is known and nothing is congested.
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
}

/// What becomes of an I/O that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Give it to the datastore now; it is accounted at this cost.
    Start(Cost),
    /// It waits, and will come out of [`Scheduler::pick`], which is to be asked before the thread sleeps.
    Wait,
}

/// What a scheduler answers when it is asked for the next I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// Give this one to the datastore now; it is accounted at this cost. Then ask again.
    Now(DiskId, IoId, Cost),
    /// Nothing before this moment, and why. Ask again then, or after an end or an offer.
    At(Time, Hold),
    /// The window is full. Ask again after an end. [`Scheduler::deadline`] may name a moment too.
    Full,
    /// There is room in the window, but it is this other I/O thread's turn: wake it. It is to ask its own scheduler of
    /// this datastore. Ask this one again after an end, an offer or a wake.
    Other(usize),
    /// There is room, and it is another I/O thread's turn, and that one is awake already. Ask as for [`Pick::Other`].
    Behind,
    /// Nothing waits here that could go. Ask again after an end of a disk that has its part in flight, or an offer.
    Empty,
}

/// Why an I/O waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hold {
    /// It was others' turn.
    Shares,
    /// It was the disk's turn, and the window was full.
    Window,
    /// The disk's limit of I/Os.
    Limit,
    /// A limit of the disk's group.
    GroupLimit,
    /// The disk's limit of bytes.
    Bandwidth,
}

impl Hold {
    /// All of them, in the order of their numbers.
    pub const ALL: [Hold; 5] = [
        Hold::Shares,
        Hold::Window,
        Hold::Limit,
        Hold::GroupLimit,
        Hold::Bandwidth,
    ];

    /// Its place in [`Hold::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// One disk's use of a datastore on one I/O thread between two calls of [`Scheduler::usage`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Which disk.
    pub disk: DiskId,
    /// The same across hosts.
    pub key: DiskKey,
    /// Its shares.
    pub shares: u32,
    /// Its reservation in units a second; 0: none.
    pub reservation: u32,
    /// Its sustained limit in units a second; 0: none.
    pub limit: u64,
    /// Its latency target; zero: none.
    pub latency_target: Span,
    /// How long the count ran.
    pub span: Span,
    /// Reads and writes that ended: those of which the latencies below are.
    pub ios: u64,
    /// Units that started.
    pub units: u64,
    /// Cost of what started, what is never held included.
    pub cost: u64,
    /// Cost of what ended: what the datastore did.
    pub ended_cost: u64,
    /// Bytes read and written by what started.
    pub bytes: u64,
    /// Sum of the normalised latencies of the reads and writes that ended, in nanoseconds.
    pub latency_ns: u64,
    /// The greatest of them.
    pub latency_max: Span,
    /// How many of them lay below 1 us, 2 us, 4 us ...: bucket `i` ends at `2^i` us, the last has no end.
    pub latency_counts: [u32; 32],
    /// Cost in flight, integrated over time in nanoseconds.
    pub in_flight_cost_ns: u128,
    /// Cost that waited, integrated over time in nanoseconds.
    pub waiting_cost_ns: u128,
    /// How long I/Os waited, summed over the I/Os, by [`Hold`]. Under [`Mode::Observe`]: how far they were past a limit.
    pub held_ns: [u64; 5],
    /// Whether it asked for anything, or still has something in flight or waiting.
    pub active: bool,
    /// Units left of its burst.
    pub burst_left: u64,
}

impl Usage {
    /// The usage of the same disk over a span in which it does nothing.
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

    /// The usage of a disk that has done nothing and has no policy.
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

/// What ended on one I/O thread within 100 ms while its datastore was congested: the rows of a regression that learns
/// costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// When it began.
    pub at: Time,
    /// How long it is.
    pub span: Span,
    /// Reads that ended.
    pub reads: u64,
    /// Writes that ended.
    pub writes: u64,
    /// Bytes of those reads.
    pub bytes_read: u64,
    /// Bytes of those writes.
    pub bytes_written: u64,
}
