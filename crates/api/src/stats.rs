//! Statistics of disks and I/O threads: counters, and rates and latencies over a window.
//!
//! # Units
//! Every key ends in its unit. `_total` counts since the disk was attached (or the thread started) and only grows.
//! Rates and latencies cover `window_s`: the time since the previous sample of the same stream. A single request covers
//! the time since attachment.
//!
//! # Picture
//! ```text
//! arrives in a queue ── queue ──> enters the stack ── filters ──> datastore ──> answered
//! |<--------------------------------- total ---------------------------------------->|
//! ```
//! `filters` is the time in the stack without the time in the datastore.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::Name;
use crate::thread::ThreadState;

/// What one disk has done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskStats {
    /// The disk.
    pub name: Name,
    /// The datastore that it lies on.
    pub datastore: Name,
    /// The I/O thread that serves it.
    pub thread: u32,
    /// Seconds that the rates and latencies below cover.
    pub window_s: f64,
    /// Whether the disk has a `stats` filter; without one nothing below is measured and all of it is zero.
    pub measured: bool,
    /// I/Os that guests and clients have in flight now.
    pub outstanding: u64,
    /// Mean number of them over the window.
    pub outstanding_mean: f64,
    /// All operations together.
    pub all: OpStats,
    /// The part of reads that its flash cache answered, from 0 to 1, over the window; absent without one or without reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_hit_ratio: Option<f64>,
    /// By kind of operation: `read`, `write`, `flush`, `other`. Kinds that never occurred are left out.
    pub ops: Vec<OpStats>,
}

/// Counters of one disk and one operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OpStats {
    /// `read`, `write`, `flush`, `other` (write zeroes, discard, extents, prefetch); or `all`.
    pub op: String,
    /// Completed operations.
    pub ops_total: u64,
    /// Their bytes.
    pub bytes_total: u64,
    /// Operations completed with an error.
    pub errors_total: u64,
    /// Fraction of sequential operations, from 0 to 1, since the disk was attached: they start where the previous one
    /// ended.
    pub sequential_ratio: f64,
    /// Operations per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// Their latency, by stage.
    pub latency: StageLatency,
}

/// Latency by stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StageLatency {
    /// From the guest's notification to the entry of the stack.
    pub queue: LatencySummary,
    /// In the stack, without the datastore.
    pub filters: LatencySummary,
    /// In the datastore.
    pub datastore: LatencySummary,
    /// From the guest's notification to the completion.
    pub total: LatencySummary,
}

/// A latency distribution in six numbers; all zero when there were no operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LatencySummary {
    /// Number of operations.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 95 % were no slower.
    pub p95_us: f64,
    /// 99 % were no slower.
    pub p99_us: f64,
    /// 99.9 % were no slower.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
}

/// What one I/O thread has done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ThreadStats {
    /// Its number.
    pub thread: u32,
    /// Its state.
    pub state: ThreadState,
    /// The CPU that it is pinned to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// The disks that it serves.
    pub disks: Vec<Name>,
    /// Seconds that the rates below cover.
    pub window_s: f64,
    /// Completed requests.
    pub requests_total: u64,
    /// Completed requests per second.
    pub requests_per_s: f64,
    /// Fraction of the time spent on requests, from 0 to 1.
    pub busy_ratio: f64,
    /// Fraction of the time spent polling without finding requests, from 0 to 1.
    pub polling_ratio: f64,
    /// Fraction of the time spent asleep, from 0 to 1.
    pub sleeping_ratio: f64,
    /// Fraction of the time in which it could run and others had its CPU: a part of the three above.
    pub run_delay_ratio: f64,
    /// How long requests waited until the thread saw them, at most: half of them no longer.
    pub queue_delay_p50_us: f64,
    /// The same: 99 % of them no longer.
    pub queue_delay_p99_us: f64,
    /// Loop iterations that found work.
    pub turns_total: u64,
    /// Times that it slept and was woken.
    pub wakeups_total: u64,
}

/// All counters at one time: the response of `/v1/stats` and each `sample` event of the live stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Sample {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Attached disks, in the order of their names.
    pub disks: Vec<DiskStats>,
    /// I/O threads that are not parked, in the order of their numbers.
    pub threads: Vec<ThreadStats>,
}
