//! Snapshots of an attached disk: its counters, clients and settings at one time.

use tidegate_api::cache::CacheCounts;
use tidegate_api::disk::{DiskInPool, RingCounts, UpstreamCounts};
use tidegate_api::layout::MemberState;
use tidegate_api::name::Name;
use tidegate_core::curve::Curve;
use tidegate_core::filter::stats::StatsReport;
use tidegate_core::units::Time;

use crate::host::Calls;

/// A disk's counters at one time.
#[derive(Clone, Debug)]
pub(crate) struct DiskCounters {
    pub(crate) name: Name,
    pub(crate) datastore: Name,
    pub(crate) thread: u32,
    /// When the disk was attached.
    pub(crate) attached: Time,
    /// When the counters were read.
    pub(crate) now: Time,
    /// The counters of its `stats` filter, if it has one.
    pub(crate) stats: Option<Box<StatsReport>>,
    /// Page reads that its flash cache answered, and those that it did not, if it has one.
    pub(crate) cache: Option<[u64; 2]>,
    /// Its miss-ratio curve.
    pub(crate) curve: Curve,
}

/// The current state of an attached disk, for callers that poll every few seconds.
#[derive(Clone, Debug)]
pub(crate) struct AttachedMoment {
    pub(crate) name: Name,
    pub(crate) datastore: Name,
    pub(crate) size_bytes: u64,
    /// Bytes that its image occupies, if known.
    pub(crate) allocated_bytes: Option<u64>,
    /// Its snapshots, if it can have any.
    pub(crate) snapshots: Option<SnapshotCounts>,
    pub(crate) shares: u32,
    pub(crate) reservation_iops: u64,
    pub(crate) limit_iops: Option<u64>,
    pub(crate) limit_bytes_per_s: Option<u64>,
    pub(crate) clients: ClientCounts,
    pub(crate) has_problem: bool,
    pub(crate) rings: RingCounts,
    pub(crate) calls: Calls,
    pub(crate) upstream: Option<UpstreamCounts>,
    /// The members of its layout, if it has one.
    pub(crate) members: Vec<MemberMoment>,
    /// Its flash cache, if it is attached with one.
    pub(crate) cache: Option<(Name, CacheCounts)>,
    /// Its part of its pool, if it is on one.
    pub(crate) pool: Option<DiskInPool>,
}

/// The current state of a member.
#[derive(Clone, Debug)]
pub(crate) struct MemberMoment {
    pub(crate) member: usize,
    pub(crate) datastore: Name,
    pub(crate) state: MemberState,
    /// Bytes that are left to copy to it, while it is rebuilt.
    pub(crate) left_bytes: Option<u64>,
}

/// The snapshots of a disk, as they were last listed or changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotCounts {
    pub(crate) count: u64,
    /// When the oldest was taken, in seconds since 1970.
    pub(crate) oldest_s: Option<u64>,
}

/// Numbers of clients that are connected to a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientCounts {
    pub(crate) vhost_user: u64,
    pub(crate) nbd: u64,
    pub(crate) nbd_tls: u64,
}
