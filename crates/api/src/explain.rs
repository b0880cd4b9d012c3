//! The explanation of a disk's performance: where its I/Os spend time, what limits it, and what would change that.
//!
//! The daemon's `explain` computes these from the last seconds' counters. `tidegate explain` prints them.
//!
//! # Units
//! Every key ends in its unit. Means are over the I/Os that completed in the `covers_s` seconds before the response.
//!
//! # Picture: an I/O's parts
//! ```text
//! seen ── queue ──> filters ──> turn (by reason) ──> datastore ──> filters ──> answered
//! ```

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::iocontrol::IoControlMode;
use crate::name::Name;

/// One disk, explained.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The disk.
    pub disk: Name,
    /// The datastore that it lies on.
    pub datastore: Name,
    /// How long the explanation covers. It is less than requested if the disk was attached later.
    pub covers_s: f64,
    /// What limits it.
    pub cause: Cause,
    /// The same as a sentence, with the numbers behind it.
    pub because: String,
    /// What would change it.
    pub remedy: String,
    /// Other useful facts, one sentence each.
    pub notes: Vec<String>,
    /// What it did.
    pub load: Load,
    /// Where its I/Os spent time, in the order of the I/O path. Empty if there were no I/Os.
    pub parts: Vec<Part>,
    /// The I/O thread that serves it.
    pub thread: ThreadLoad,
    /// The datastore's I/O control; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
}

/// What limits a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// It has no `stats` filter and waits in no scheduler: there is no data.
    Unmeasured,
    /// It received no I/O.
    Idle,
    /// Its lease. It was not renewed in time and I/O waits until its ownership is certain, or another host has taken
    /// the disk.
    Lease,
    /// I/Os are outstanding, and none completes.
    Stuck,
    /// Its own IOPS limit.
    Limit,
    /// Its own bandwidth limit.
    Bandwidth,
    /// A limit of its group.
    GroupLimit,
    /// Its shares: the datastore is congested, and this is the disk's share of it.
    Shares,
    /// Its filters.
    Filters,
    /// The I/O thread, which has no time left.
    IoThread,
    /// The datastore, which is slow.
    Datastore,
    /// The guest, which issues no more I/O.
    Guest,
    /// Nothing: its I/Os complete as fast as the datastore serves them.
    Nothing,
}

impl Cause {
    /// All of them.
    pub const ALL: [Cause; 13] = [
        Cause::Unmeasured,
        Cause::Idle,
        Cause::Lease,
        Cause::Stuck,
        Cause::Limit,
        Cause::Bandwidth,
        Cause::GroupLimit,
        Cause::Shares,
        Cause::Filters,
        Cause::IoThread,
        Cause::Datastore,
        Cause::Guest,
        Cause::Nothing,
    ];
}

/// What a disk did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Load {
    /// Completed I/Os.
    pub ios: u64,
    /// The same per second.
    pub iops: f64,
    /// Units started per second, as counted for limits and reservations. 0 without I/O control.
    pub units_per_s: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Mean number of outstanding I/Os.
    pub outstanding_mean: f64,
    /// Mean latency of an I/O.
    pub latency_mean_us: f64,
}

/// One part of an I/O's time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Part {
    /// Its name.
    pub part: PartName,
    /// For `turn`: the reason for the wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<HoldReason>,
    /// Mean time that an I/O spent there.
    pub mean_us: f64,
    /// Its fraction of the whole, from 0 to 1.
    pub ratio: f64,
}

/// The parts of an I/O's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PartName {
    /// In the guest's queue: seen, and not yet taken by the I/O thread.
    Queue,
    /// In the filters, in both directions.
    Filters,
    /// In the scheduler, waiting to be dispatched.
    Turn,
    /// In the datastore.
    Datastore,
}

/// Why an I/O waited to be dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HoldReason {
    /// Other disks were due first, by their shares.
    Shares,
    /// The host's window was full.
    Window,
    /// The disk's IOPS limit.
    Limit,
    /// A limit of the disk's group.
    GroupLimit,
    /// The disk's bandwidth limit.
    Bandwidth,
}

impl HoldReason {
    /// All of them, in the order of the I/O threads' counters.
    pub const ALL: [HoldReason; 5] = [
        HoldReason::Shares,
        HoldReason::Window,
        HoldReason::Limit,
        HoldReason::GroupLimit,
        HoldReason::Bandwidth,
    ];

    /// Its name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            HoldReason::Shares => "shares",
            HoldReason::Window => "window",
            HoldReason::Limit => "limit",
            HoldReason::GroupLimit => "group-limit",
            HoldReason::Bandwidth => "bandwidth",
        }
    }
}

/// How an I/O thread spent its time; the three add up to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ThreadLoad {
    /// Its number.
    pub thread: u32,
    /// On requests of all its disks.
    pub busy_ratio: f64,
    /// Polling for requests and finding none.
    pub polling_ratio: f64,
    /// Asleep.
    pub sleeping_ratio: f64,
}

/// What a datastore's I/O control did for a disk, and its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Control {
    /// Its mode.
    pub mode: IoControlMode,
    /// The fraction of the time in which it was engaged, from 0 to 1.
    pub engaged_ratio: f64,
    /// The datastore's latency as last reported by the hosts that share it, normalised to 4 KiB.
    pub latency_us: f64,
    /// The congestion threshold; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_us: Option<f64>,
    /// Units per second that the disk's share of the window yields in the current state; absent while not engaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entitled_iops: Option<u64>,
    /// The disk's shares.
    pub shares: u32,
    /// The disk's reservation, units per second; 0: none.
    pub reservation_iops: u64,
    /// The disk's limit, units per second; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_iops: Option<u64>,
    /// The disk's limit, bytes per second; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes_per_s: Option<u64>,
    /// Units left of its burst; 0: used up, or it has none.
    pub burst_left: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reasons_name_equals_its_name_on_the_wire() {
        for reason in HoldReason::ALL {
            let json = serde_json::to_value(reason).expect("a word is plain data");
            assert_eq!(json, reason.name());
        }
    }
}
