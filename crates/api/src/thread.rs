//! I/O threads: their states, what they do, and the move of a disk to another one.
//!
//! # Units
//! `_ns_total` counts nanoseconds since the thread started and only grows; `_total` counts events in the same way.
//! Busy, spinning and sleeping time add up to the thread's age, within a turn of its loop.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::Name;

/// What an I/O thread may get, and whether it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ThreadState {
    /// It serves disks, and gets new ones.
    Active,
    /// An administrator locked it: it serves its disks, and gets no others.
    Locked,
    /// The policy empties it: it serves its disks until they have moved, and is parked then.
    Leaving,
    /// It is removed: its disks are gone, and it waits for I/O that it started.
    Draining,
    /// It is not used: it has no disks and sleeps.
    Parked,
}

impl ThreadState {
    /// The word for it, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            ThreadState::Active => "active",
            ThreadState::Locked => "locked",
            ThreadState::Leaving => "leaving",
            ThreadState::Draining => "draining",
            ThreadState::Parked => "parked",
        }
    }
}

/// An I/O thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Thread {
    /// Its number.
    pub thread: u32,
    /// Its state.
    pub state: ThreadState,
    /// Whether it was chosen to get all new disks.
    pub is_default: bool,
    /// The CPU that it is pinned to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// The disks that it serves, in the order of their names.
    pub disks: Vec<Name>,
    /// Its age.
    pub age_ns_total: u64,
    /// Time spent on requests.
    pub busy_ns_total: u64,
    /// Time spent polling without finding requests.
    pub spin_ns_total: u64,
    /// Time spent asleep.
    pub sleep_ns_total: u64,
    /// Time on a CPU, as the kernel counts it.
    pub cpu_ns_total: u64,
    /// Time in which it could run and others had its CPU: a part of the times above.
    pub run_delay_ns_total: u64,
    /// Requests taken.
    pub requests_total: u64,
    /// Turns of its loop.
    pub turns_total: u64,
    /// Times that it was woken.
    pub wakeups_total: u64,
    /// Turns longer than a millisecond.
    pub stalls_total: u64,
    /// Its longest turn.
    pub longest_turn_us: f64,
    /// How long requests waited until it saw them, at most: half of those since its start no longer.
    pub queue_delay_p50_us: f64,
    /// The same: 99 % no longer.
    pub queue_delay_p99_us: f64,
    /// Disks that came from other threads.
    pub moved_in_total: u64,
    /// Disks that went to other threads.
    pub moved_out_total: u64,
}

/// All I/O threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ThreadList {
    /// In the order of their numbers.
    pub threads: Vec<Thread>,
}

/// The I/O thread that a disk is to move to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskThreadSet {
    /// Its number.
    pub thread: u32,
}

/// A disk that has moved to another I/O thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskThread {
    /// The disk.
    pub disk: Name,
    /// The thread that served it before.
    pub from: u32,
    /// The thread that serves it now.
    pub thread: u32,
    /// From its last turn on the old thread to its first on the new one.
    pub pause_us: f64,
    /// I/Os that were in flight meanwhile.
    pub in_flight: u64,
}
