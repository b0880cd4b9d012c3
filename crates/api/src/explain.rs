//! The explanation of a disk's speed: where its I/Os' time went, what limits it, what would change that.
//!
//! The daemon's `explain` makes these of what it saw in the last seconds; `tidegate explain` prints them.
//!
//! # Units
//! Every key ends in its unit. Means are over the I/Os that ended in the `covers_s` seconds before the answer.
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
    /// How long what follows covers: less than was asked for where the disk was attached later.
    pub covers_s: f64,
    /// What limits it.
    pub cause: Cause,
    /// The same as a sentence, with the numbers behind it.
    pub because: String,
    /// What would change it.
    pub remedy: String,
    /// What else is worth knowing, a sentence each.
    pub notes: Vec<String>,
    /// What it did.
    pub load: Load,
    /// Where the time of its I/Os went, in the order in which they pass; empty if there were none.
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
    /// It has no `stats` filter and waits for no turn: there is nothing to go by.
    Unmeasured,
    /// Nobody asked it for anything.
    Idle,
    /// Its lease: it was not renewed in time, and I/O waits until it is clear whether another host has taken the disk; or
    /// one has.
    Lease,
    /// I/Os are outstanding, and none has ended.
    Stuck,
    /// Its own limit of I/Os.
    Limit,
    /// Its own limit of bytes.
    Bandwidth,
    /// The limit of its group.
    GroupLimit,
    /// Its shares: the datastore is congested, and this is its part of it.
    Shares,
    /// Its filters.
    Filters,
    /// The I/O thread, which has no time left.
    IoThread,
    /// The datastore, which is slow.
    Datastore,
    /// The guest, which asks for no more.
    Guest,
    /// Nothing: its I/Os are answered as fast as the datastore does them.
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
    /// I/Os that ended.
    pub ios: u64,
    /// The same a second.
    pub iops: f64,
    /// Units a second that were begun: what limits and reservations count; 0 without I/O control.
    pub units_per_s: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// How many I/Os the guest had outstanding, in the mean.
    pub outstanding_mean: f64,
    /// How long an I/O took, in the mean.
    pub latency_mean_us: f64,
}

/// A part of an I/O's time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Part {
    /// Which.
    pub part: PartName,
    /// For `turn`: what it waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<HoldReason>,
    /// How long an I/O was there, in the mean over all.
    pub mean_us: f64,
    /// The same of the whole, from 0 to 1.
    pub ratio: f64,
}

/// The parts of an I/O's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PartName {
    /// In the guest's queue, seen and not yet taken by the I/O thread.
    Queue,
    /// In the filters, both ways.
    Filters,
    /// Waiting for its turn.
    Turn,
    /// With the datastore.
    Datastore,
}

/// Why an I/O waited for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HoldReason {
    /// It was others' turn.
    Shares,
    /// It was its turn, and the host's window was full.
    Window,
    /// The disk's limit of I/Os.
    Limit,
    /// A limit of the disk's group.
    GroupLimit,
    /// The disk's limit of bytes.
    Bandwidth,
}

impl HoldReason {
    /// All of them, in the order in which the I/O threads count them.
    pub const ALL: [HoldReason; 5] = [
        HoldReason::Shares,
        HoldReason::Window,
        HoldReason::Limit,
        HoldReason::GroupLimit,
        HoldReason::Bandwidth,
    ];

    /// As it is written.
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
    /// On requests, of all its disks.
    pub busy_ratio: f64,
    /// Looking for requests and finding none.
    pub polling_ratio: f64,
    /// Asleep.
    pub sleeping_ratio: f64,
}

/// What a datastore's I/O control did for a disk, and what it knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Control {
    /// How far it goes.
    pub mode: IoControlMode,
    /// The part of the time in which it was engaged, from 0 to 1.
    pub engaged_ratio: f64,
    /// The datastore's latency as the hosts that share it last told, normalised to 4 KiB.
    pub latency_us: f64,
    /// Where it counts as congested; absent: nowhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold_us: Option<f64>,
    /// Units a second that the disk's part brings while the datastore is as it is; absent while not engaged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entitled_iops: Option<u64>,
    /// The disk's shares.
    pub shares: u32,
    /// Its reservation, units a second; 0: none.
    pub reservation_iops: u64,
    /// Its limit, units a second; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_iops: Option<u64>,
    /// Its limit, bytes a second; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes_per_s: Option<u64>,
    /// Units that are left of its burst; 0: none, or it has none.
    pub burst_left: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reasons_name_is_its_word_on_the_wire() {
        for reason in HoldReason::ALL {
            let json = serde_json::to_value(reason).expect("a word is plain data");
            assert_eq!(json, reason.name());
        }
    }
}
