//! Statistics of disks and I/O threads: counters, and rates and latencies over a window.
//!
//! # Units
//! Every key ends in its unit. `_total` counts since the disk was attached (or the thread began) and only grows.
//! Rates and latencies cover `window_s`: the time since the previous sample of the same stream, or since attachment
//! when asked for once.
//!
//! # Picture
//! ```text
//! arrives in a queue ── queue ──> enters the stack ── filters ──> datastore ──> answered
//! |<--------------------------------- total ---------------------------------------->|
//! ```
//! `filters` is everything in the stack that is not spent waiting for the datastore.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::Name;

/// What one disk has done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskStats {
    /// The disk.
    pub name: Name,
    /// The datastore that it lies on.
    pub datastore: Name,
    /// The I/O thread that serves it.
    pub thread: u32,
    /// How long the rates and latencies below cover.
    pub window_s: f64,
    /// Whether the disk has a `stats` filter; without one nothing below is measured and all of it is zero.
    pub measured: bool,
    /// I/Os that guests and clients have in flight now.
    pub outstanding: u64,
    /// How many they had in flight, in the mean over the window.
    pub outstanding_mean: f64,
    /// Everything together.
    pub all: OpStats,
    /// By kind of operation: `read`, `write`, `flush`, `other`; those that never occurred are left out.
    pub ops: Vec<OpStats>,
}

/// What one disk has done by one operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OpStats {
    /// `read`, `write`, `flush`, `other` (write zeroes, discard, extents, prefetch); or `all`.
    pub op: String,
    /// How many were answered.
    pub ops_total: u64,
    /// Bytes that they covered.
    pub bytes_total: u64,
    /// How many were answered with an error.
    pub errors_total: u64,
    /// Share of them that began where the one before ended, from 0 to 1, since the disk was attached.
    pub sequential_ratio: f64,
    /// How many a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// How long they took, by stage.
    pub latency: StageLatency,
}

/// Latency, by the stage where the time was spent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageLatency {
    /// From the guest's notice to the entry of the stack.
    pub queue: LatencySummary,
    /// In the stack, not counting the datastore.
    pub filters: LatencySummary,
    /// In the datastore.
    pub datastore: LatencySummary,
    /// From the guest's notice to the answer.
    pub total: LatencySummary,
}

/// A distribution of latencies in six numbers; all zero when there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencySummary {
    /// How many were measured.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95 % took no longer.
    pub p95_us: f64,
    /// 99 % took no longer.
    pub p99_us: f64,
    /// 99.9 % took no longer.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
}

/// What one I/O thread has done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ThreadStats {
    /// Its number.
    pub thread: u32,
    /// The CPU that it is pinned to, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// The disks that it serves.
    pub disks: Vec<Name>,
    /// How long the rates below cover.
    pub window_s: f64,
    /// Requests answered.
    pub requests_total: u64,
    /// Requests answered a second.
    pub requests_per_s: f64,
    /// Share of the time spent on requests, from 0 to 1.
    pub busy_ratio: f64,
    /// Share of the time spent looking for requests and finding none, from 0 to 1.
    pub polling_ratio: f64,
    /// How often it looked for work and did what it found.
    pub turns_total: u64,
    /// How often it slept and was woken.
    pub wakeups_total: u64,
}

/// Everything at one moment: what `/v1/stats` answers and what the live stream sends as each `sample` event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sample {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Attached disks, in the order of their names.
    pub disks: Vec<DiskStats>,
    /// I/O threads, in the order of their numbers.
    pub threads: Vec<ThreadStats>,
}
