//! Reports of a layout, and orders of an administrator.
//!
//! Plain values between the layouts and the daemon. Members are named by their place in the disk's layout.

use super::cache::policy::Choice;
use super::cache::{Admission, CacheMode};
use super::pool::{Generation, Grant, PoolReport, Standing};
use super::{LayoutSpec, OnLoss, Target};
use crate::request::Fault;
use crate::units::{Span, Time};
use alloc::vec::Vec;

/// The state of a disk's layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutReport {
    /// The layout.
    pub layout: LayoutSpec,
    /// Its members, in order.
    pub members: Vec<MemberReport>,
    /// The last scrub, or the one that is under way.
    pub scrub: Option<ScrubReport>,
    /// Whether guests' I/O waits because a mirror has lost every member in sync ([`OnLoss::Wait`]).
    pub waiting: bool,
    /// The flash cache above it, if there is one.
    pub cache: Option<CacheReport>,
    /// The disk's space and generations, if it is one of a pool.
    pub pool: Option<PoolReport>,
}

/// The state of a disk's flash cache. Counts are since the disk was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheReport {
    /// When writes are answered.
    pub mode: CacheMode,
    /// What may enter it.
    pub admission: Admission,
    /// Whether it is used: not if its devices have failed.
    pub in_use: bool,
    /// Devices that have everything, one bit each.
    pub devices: u32,
    /// Whether another one gets everything again.
    pub resyncing: bool,
    /// How many of its pages were looked at for that.
    pub resynced: u32,
    /// The policy in use, as its place among [`CANDIDATES`](super::cache::policy::CANDIDATES), if it is chosen by itself.
    pub policy: Option<usize>,
    /// Pages that fit.
    pub pages: u32,
    /// Pages that are free.
    pub free: u32,
    /// Pages with blocks that the disk may not have durably.
    pub dirty: u64,
    /// Of these, pages that cannot be brought to the disk: no device returns their dirty blocks as they were written.
    pub unreadable: u64,
    /// Since when the oldest of them lacks something; after a start, since then. It is too early by a second or a 64th of the age
    /// at most.
    pub dirty_since: Option<Time>,
    /// How long it takes to clean all of them, at the pace of the last cleaning. None: nothing was cleaned yet, or
    /// some cannot be cleaned.
    pub time_to_clean: Option<Span>,
    /// Whether an answered write may be on flash only. In write-through mode it is false once everything was cleaned.
    pub keeps_dirty: bool,
    /// Whether its devices have failed, and the disk has everything. Writes wait until the cache is given up.
    pub losing: bool,
    /// Pages of reads that were on flash, all of them.
    pub hits: u64,
    /// Pages of reads that were not.
    pub misses: u64,
    /// Pages that were brought in by reads.
    pub fills: u64,
    /// Reads of flash that failed.
    pub read_faults: u64,
    /// Blocks that were read from flash and were not as they were written, each time.
    pub corrupt_blocks: u64,
    /// Bytes that were written to flash, on all devices, with the journal.
    pub flash_bytes: u64,
    /// Of these, bytes of the journal and of headers, which have no data of guests.
    pub journal_bytes: u64,
}

/// The state of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// Its state.
    pub state: MemberState,
    /// Whether the mirror reads now what it has, to use it again.
    pub is_tried: bool,
    /// I/Os that it has in flight.
    pub in_flight: u32,
    /// I/Os of it that have failed since the disk was attached.
    pub faults: u64,
    /// While it is rebuilt: bytes copied.
    pub copied: u64,
    /// While it is rebuilt: bytes to copy in all.
    pub to_copy: u64,
}

impl MemberReport {
    /// Whether its mirror relies on the image that it has: the image must not be exchanged for another one then.
    pub fn is_relied_on(&self) -> bool {
        self.is_tried || self.state != MemberState::OutOfSync
    }
}

/// Whether a member has all bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has every acknowledged write.
    InSync,
    /// It receives writes, and what it lacks is being copied to it.
    Rebuilding,
    /// It lacks writes, and is not used.
    OutOfSync,
}

/// A comparison of all members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Whether it is under way.
    pub running: bool,
    /// Bytes of the disk that were compared.
    pub compared: u64,
    /// Bytes of the disk to compare in all.
    pub to_compare: u64,
    /// Pieces of 64 KiB in which members differed.
    pub different: u64,
    /// Of these, the ones that were made equal.
    pub repaired: u64,
    /// Pieces that a member could not read.
    pub unreadable: u64,
    /// Where the first difference is, in bytes.
    pub first: Option<u64>,
}

/// What an administrator may order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutOrder {
    /// Use this member again, and copy to it what it lacks.
    Rebuild(Target),
    /// This member's image is another one, of which nothing is known: copy everything to it.
    Replace(Target),
    /// Stop using this member.
    Drop(Target),
    /// A mirror gets one more member, after the last one. It is out of sync until [`LayoutOrder::Replace`] names it. A pool's
    /// disk gets one more column there.
    AddMember,
    /// A member counts as hung after so long without an end of its I/Os.
    Timeout(Span),
    /// What to do after the loss of every member in sync.
    OnLoss(OnLoss),
    /// Compare all members, and make them equal if asked to.
    Scrub {
        /// Whether to copy the first member's bytes over those that differ.
        repair: bool,
    },
    /// End the scrub.
    StopScrub,
    /// Bytes a second that are copied in the background at most; 0 for as many as possible.
    Rate(u64),
    /// Bring everything that only the cache has to the disk.
    CleanCache,
    /// Answer writes in this mode from now on. The disk's descriptor says so before a cache begins to write back, and
    /// afterwards once it has ended and everything is clean.
    CacheMode(CacheMode),
    /// Let only this enter the cache from now on.
    CacheAdmission(Admission),
    /// The cache has so many chunks more, from this one on. The disk's descriptor names them already.
    GrowCache {
        /// The first one.
        first: u32,
        /// How many.
        count: u32,
    },
    /// The cache gives so many of its last chunks back. The descriptor names them until [`LayoutNotice::CacheShrunk`].
    ShrinkCache {
        /// How many.
        count: u32,
    },
    /// Do without the cache: no use of the disk counts it as valid any more.
    GiveUpCache,
    /// A pool's disk has one more grant, with this index. The catalog names it already, durably.
    Grant {
        /// The index: the next one, or one that was given back.
        index: u32,
        /// The grant.
        grant: Grant,
    },
    /// The pool has no grant for the disk now: what waits for one fails.
    NoSpace,
    /// After [`LayoutOrder::NoSpace`]: the pool may have a grant again, and the disk may ask for one.
    SpaceAvailable,
    /// Freeze what the disk of a pool has now. The answer is [`LayoutNotice::Generation`].
    TakeSnapshot,
    /// The disk of a pool shows this generation again. What was written since the last snapshot is gone.
    RollBack(Generation),
    /// This generation is not needed any more. [`LayoutNotice::GenerationGone`] follows.
    DeleteGeneration(Generation),
    /// Drain the disk of a pool and make it durable; its writes wait until [`LayoutOrder::Go`].
    Hold,
    /// Writes go on after [`LayoutOrder::Hold`].
    Go,
    /// The pool's catalog says this of a member of a column, durably. [`Standing::Syncing`] makes the disk copy what the
    /// member lacks of it; [`LayoutNotice::Rebuilt`] follows.
    Standing {
        /// The member.
        member: Target,
        /// What it says.
        standing: Standing,
    },
    /// The catalog could not record that a member is behind: what waits for that fails.
    Unrecorded(Target),
    /// Move everything that the disk of a pool has on these columns, one bit each, to others, and use none of them. None: use
    /// all again. [`LayoutNotice::Vacated`] follows.
    Vacate {
        /// The columns.
        columns: u32,
    },
    /// Move these extents of a pool's disk to some columns, as far as there is room.
    Place {
        /// The first one.
        extent: u32,
        /// How many.
        count: u32,
        /// The columns, one bit each.
        columns: u32,
    },
    /// Others read frozen generations of the disk, as far as it knows, or nobody does: then these may move. Others may begin to
    /// read once this is answered. After the disk was attached others may read.
    Readers(bool),
    /// The catalog has exchanged the grants of these indexes, after [`LayoutNotice::HomeMoved`].
    HomeMoved {
        /// The index of the grant that has headers.
        from: u32,
        /// The other one.
        to: u32,
    },
}

impl LayoutOrder {
    /// Whether only a pool's disk carries it out.
    pub fn is_of_pool(&self) -> bool {
        matches!(
            self,
            LayoutOrder::Grant { .. }
                | LayoutOrder::NoSpace
                | LayoutOrder::SpaceAvailable
                | LayoutOrder::TakeSnapshot
                | LayoutOrder::RollBack(_)
                | LayoutOrder::DeleteGeneration(_)
                | LayoutOrder::Hold
                | LayoutOrder::Go
                | LayoutOrder::Vacate { .. }
                | LayoutOrder::Place { .. }
                | LayoutOrder::Readers(_)
                | LayoutOrder::HomeMoved { .. }
        )
    }

    /// Whether it is about a member of a pool's column.
    pub fn is_of_column(&self) -> bool {
        matches!(
            self,
            LayoutOrder::Standing { .. } | LayoutOrder::Unrecorded(_)
        )
    }
}

/// When an order that is not refused is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ordered {
    /// At once: what it begins goes on.
    Now,
    /// Once it is recorded on the members.
    Later,
}

/// Why an order is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderRefusal {
    /// The disk has one place for each byte.
    NotRedundant,
    /// There is no such member.
    NoMember,
    /// The member is in sync already.
    InSync,
    /// Another member is being rebuilt, or a scrub is under way.
    Busy,
    /// It is the only member that is in sync.
    Last,
    /// Writes that the member received earlier have not ended.
    InFlight,
    /// The disk has not opened.
    NotOpen,
    /// No member could record it.
    Unrecorded,
    /// The layout has a fixed number of members, or as many as are possible.
    Fixed,
    /// The disk is not one of a pool.
    NotPooled,
    /// The disk only shows a generation.
    ReadOnly,
    /// There is no such generation, or it is written now.
    NoGeneration,
    /// The disk has as many generations as its root has room for.
    TooMany,
    /// The grant does not fit: its index or its column is not the pool's.
    BadGrant,
    /// The disk would have no column left, or there is no such column.
    NoColumn,
}

/// Why a member is not used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropCause {
    /// An I/O of it has failed so.
    Failed(Fault),
    /// It had I/O in flight and completed none within the member timeout.
    Hung,
    /// An order: it was removed, or replaced.
    Ordered,
}

impl DropCause {
    /// What I/Os fail with that needed the member.
    pub fn fault(self) -> Fault {
        match self {
            DropCause::Failed(fault) => fault,
            DropCause::Hung | DropCause::Ordered => Fault::Gone,
        }
    }
}

/// What a layout reports when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutNotice {
    /// A member is not used any more.
    Dropped {
        /// The member.
        member: Target,
        /// Why.
        cause: DropCause,
    },
    /// Copying to a member has begun.
    Rebuilding {
        /// The member.
        member: Target,
        /// Bytes to copy.
        bytes: u64,
    },
    /// A member has all bytes again.
    Rebuilt {
        /// The member.
        member: Target,
    },
    /// Copying to a member has failed; it is tried again later.
    RebuildFailed {
        /// The member.
        member: Target,
        /// Why.
        fault: Fault,
    },
    /// A member could not be read; another one was.
    ReadFailed {
        /// The member.
        member: Target,
        /// Why.
        fault: Fault,
    },
    /// A scrub has ended.
    Scrubbed(ScrubReport),
    /// Every member has failed.
    Lost,
    /// Every member in sync is lost: guests' I/O waits for one of them.
    Waiting,
    /// One of them is back: guests' I/O goes on.
    Resumed,
    /// The disk has everything that the cache has, but for so many pages.
    CacheCleaned {
        /// Pages whose bytes are not as they were written.
        left: u64,
    },
    /// A page that only the cache has is not as it was written.
    CacheCorrupt {
        /// Where it is on the disk, in bytes.
        offset: u64,
    },
    /// The cache has given so many of its last chunks back.
    CacheShrunk {
        /// How many.
        chunks: u32,
    },
    /// The cache has another policy.
    CachePolicy(Choice),
    /// The state of the cache's policy is to be stored ([`Shard::export_policy`](crate::shard::Shard::export_policy)).
    CacheStateDue,
    /// The disk of a pool wants one more grant.
    GrantWanted {
        /// Extents that it still lacks to have all its space, if it reserves that; otherwise 0.
        thick_left: u64,
    },
    /// Nothing is in this grant, durably: the catalog may give it to another disk.
    GrantEmpty {
        /// Its index.
        index: u32,
    },
    /// The answer of [`LayoutOrder::TakeSnapshot`]: what was frozen.
    Generation(Generation),
    /// Nothing is left of a generation that was deleted.
    GenerationGone(Generation),
    /// A member of a pool's column has failed, and is not used. What lacks it is answered after
    /// [`LayoutOrder::Standing`] says that it is behind, or [`LayoutOrder::Unrecorded`].
    Behind {
        /// The member.
        member: Target,
        /// Why.
        cause: DropCause,
    },
    /// Nothing of the disk is left on the columns that were to be empty.
    Vacated,
    /// Exchange the grants of these indexes in one commit of the catalog, and answer with [`LayoutOrder::HomeMoved`]: what
    /// the headers lie in moves. Nothing becomes durable until then.
    HomeMoved {
        /// The index of the grant that has headers.
        from: u32,
        /// The other one.
        to: u32,
    },
    /// No device of the cache is left.
    CacheLost {
        /// Why.
        fault: Fault,
        /// Pages that the disk does not have.
        dirty: u64,
    },
}
