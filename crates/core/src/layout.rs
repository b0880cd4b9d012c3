//! Layouts: how a disk's bytes lie on its targets, below its filters.
//!
//! A target is one place that I/O is done on, such as an image on a datastore. A disk without a layout is one image, its
//! target 0. Otherwise a [`Tree`] of layouts maps each I/O that leaves the filters: to one target ([`Map::One`]), or to
//! sub-I/Os, whose ends the layout waits for. What a layout calls its targets may be other layouts of the tree. Like a
//! filter it answers at once, and asks for more through its [`LayoutCx`]. It never calls another layout.
//!
//! # Always true
//! - each I/O that a layout takes ([`Map::Issued`]) is answered by exactly one [`LayoutCx::answer`]
//! - each sub-I/O ends by exactly one [`Layout::done`]
//! - a layout names bytes, and never has them; copies and checksums are effects
//!
//! # Picture
//! ```text
//!   filters ──> map ──> One ─────────────────────────> target
//!                └────> Issued ──> sub-I/O, sub-I/O ──> targets
//!   filters <── answer <── done <──────┘
//! ```

use crate::block::BLOCK;
use crate::request::{Data, DiskId, Fault, Flags, IoId, Op, Outcome};
use crate::units::{Span, Time};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use cache::CacheSetup;
use cache::policy::Exported;
use core::num::NonZeroU64;
use pool::{Changes, Generation, PoolReport, Searched};

pub use crate::request::Target;
pub(crate) use arena::Held;
pub use arena::{Arena, SLOT};
pub use report::{
    CacheReport, DropCause, LayoutNotice, LayoutOrder, LayoutReport, MemberReport, MemberState,
    OrderRefusal, Ordered, ScrubReport,
};
pub use spec::LayoutSpec;
pub use tree::{Members, Tree};

pub(crate) use tree::{Load, TREE};

pub mod cache;
pub mod label;
pub mod mirror;
pub mod pool;
pub mod report;
pub mod spec;
pub mod stripe;

mod arena;
mod fanout;
mod slots;
pub(crate) mod tree;

/// The most targets of one disk.
pub const MAX_TARGETS: usize = 32;

/// Where the disk's bytes begin on each member of a layout, in bytes. Before it lies the layout's own data. Origin: md's
/// superblock 1.2 leaves 1 MiB, which keeps the data aligned to any device's blocks.
pub const DATA_AT: u64 = 1 << 20;

/// How long a target may have I/O in flight and complete none before it counts as hung, unless the disk says otherwise.
/// Origin: chosen; no measurement.
pub const MEMBER_TIMEOUT: crate::units::Span = crate::units::Span::from_secs(10);

/// What a mirror does with guests' I/O after it has lost every member in sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// It fails.
    #[default]
    Fail,
    /// It waits until one of these members is back, or the disk is detached.
    Wait,
}

/// What a layout does with an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// The whole I/O goes to this place. Its end is the answer; if it fails, [`Layout::failed`] decides.
    One {
        /// The target.
        target: Target,
        /// Offset there, in bytes.
        offset: u64,
    },
    /// The layout has taken it, and will answer it.
    Issued,
    /// It has ended.
    Done(Outcome),
}

/// A read that goes to one flash device as it is ([`Layout::hit`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The target: a flash device, no other layout. No scheduler is in between.
    pub target: Target,
    /// Offset there, in bytes.
    pub offset: u64,
    /// What the layout calls it.
    pub mark: NonZeroU64,
}

/// What a layout knows when it is asked for a [`Hit`].
pub struct HitCx<'a> {
    pub(crate) now: Time,
    pub(crate) loads: &'a [Load],
}

/// What a layout finds when it checks a read ([`Layout::hit`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// It has not seen all blocks.
    More,
    /// All blocks are as they should be: it is answered.
    Good,
    /// They are not: [`Layout::unchecked`] follows.
    Bad,
}

/// An I/O as a layout sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutIo {
    /// Its name inside the shard.
    pub id: IoId,
    /// The operation.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// Offset in the layout, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The bytes.
    pub data: Data,
    /// Whether nobody waits for it.
    pub background: bool,
}

/// An I/O that a layout issues to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubIo {
    /// The target.
    pub target: Target,
    /// The operation.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// Offset there, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The bytes: a part of the buffer of an I/O that the layout has taken, or of the arena.
    pub data: Data,
    /// Whether nobody waits for it: copies of a rebuild or a scrub.
    pub background: bool,
}

/// A change of a held disk's flash cache, or of what is below it.
#[derive(Clone, Debug)]
pub enum CacheChange {
    /// It gets this cache.
    Add {
        /// The cache.
        cache: Box<CacheSetup>,
        /// For a disk of one image: [`Members::timeout`] of the devices.
        timeout: Span,
    },
    /// It has none any more. Nothing of the cache is under way.
    Remove,
    /// The plain disk below it begins to move: target 1 is another one, and those of the cache's devices follow.
    BeginMove,
    /// The disk below it does not move any more. Target 0 is what is left.
    EndMove,
    /// The mirror below it gets one more member, after its last one. The targets of the cache's devices follow.
    AddMember,
    /// Nothing changes.
    Keep,
}

/// A block of the layout above, to be read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockIo {
    /// That layout, by its place in the tree.
    pub node: u8,
    /// What it calls the I/O.
    pub tag: u64,
    /// Offset in the layout that gets it, in bytes.
    pub offset: u64,
    /// Which of the copies is read, if it has several.
    pub copy: u8,
    /// What is written. None: it is read.
    pub block: Option<Box<[u8; BLOCK]>>,
}

/// A block of a layout's own that was read (`Some`) or written (`None`).
pub type BlockOutcome = Result<Option<Box<[u8; BLOCK]>>, Fault>;

/// Why a layout does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This target belongs to another disk, or to another place of this one.
    Foreign(Target),
    /// Something other than a member of a disk is at the beginning of this target.
    Unknown(Target),
    /// This target was written by a newer program.
    Newer(Target),
    /// This target's label or state is damaged.
    Damaged(Target),
    /// This target is empty, but the others are not.
    Blank(Target),
    /// This target cannot be read, and may have writes that the others lack.
    Missing(Target),
    /// This target was written without the others, and they without it.
    Split(Target),
    /// This target cannot be written.
    Failed(Target, Fault),
}

/// What stands below a disk's filters. All hooks must return at once.
pub trait Layout: Send {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// The disk has been attached; requests wait until [`LayoutCx::opened`]. `usable` has a bit for each target with a
    /// valid label.
    fn open(&mut self, cx: &mut LayoutCx<'_>, usable: u32, fresh: bool);

    /// A read has come to the layout above all others. If all of it is whole blocks that one flash device has together, it may
    /// go there at once: its end is the answer, once the layout has seen the checksum of each block ([`Layout::checked`]).
    /// Otherwise [`Layout::map`] is called.
    fn hit(&mut self, _cx: &HitCx<'_>, _offset: u64, _len: u64) -> Option<Hit> {
        None
    }

    /// An I/O has come to the layout above all others, whose targets are the disk's. If the whole of it goes to one place of a
    /// target as it is, that is the answer, as of [`Map::One`]. Otherwise [`Layout::map`] is called.
    fn at_once(
        &mut self,
        _op: Op,
        _flags: Flags,
        _offset: u64,
        _len: u64,
    ) -> Option<(Target, u64)> {
        None
    }

    /// An I/O has come to this layout.
    fn map(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map;

    /// A block of the layout above it has come. [`LayoutCx::block_ended`] follows, once.
    fn block(&mut self, cx: &mut LayoutCx<'_>, io: BlockIo) {
        cx.block_ended(io.node, io.tag, Err(Fault::Unsupported));
    }

    /// An I/O that was mapped to one target has failed there. `io.offset` is where it was on the target; `tries` is how
    /// often it has failed.
    fn failed(
        &mut self,
        _cx: &mut LayoutCx<'_>,
        _io: &LayoutIo,
        _target: Target,
        fault: Fault,
        _tries: u8,
    ) -> Map {
        Map::Done(Err(fault))
    }

    /// The checksum of the next block of a read that it wants to be checked. It has changed nothing if the answer is
    /// [`Check::Bad`], and forgotten the read if that is [`Check::Good`].
    fn checked(&mut self, _mark: u64, _sum: u32) -> Check {
        Check::Bad
    }

    /// Such a read has failed, with a fault, or it has other bytes than it should have. The layout has taken it now, and
    /// will answer it.
    fn unchecked(
        &mut self,
        _cx: &mut LayoutCx<'_>,
        _io: &LayoutIo,
        _mark: u64,
        _fault: Option<Fault>,
    ) {
    }

    /// A sub-I/O has ended.
    fn done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome);

    /// A block of its own was read or written.
    fn block_done(&mut self, _cx: &mut LayoutCx<'_>, _tag: u64, _outcome: BlockOutcome) {}

    /// The checksum of some bytes ([`LayoutCx::sum`]).
    fn summed(&mut self, _cx: &mut LayoutCx<'_>, _tag: u64, _sum: u32) {}

    /// What was mapped to targets before [`LayoutCx::fence`] has ended.
    fn fenced(&mut self, _cx: &mut LayoutCx<'_>) {}

    /// The arena has room again, after it had none.
    fn arena_ready(&mut self, _cx: &mut LayoutCx<'_>) {}

    /// A target has I/O in flight and has completed none for [`Members::timeout`].
    fn hung(&mut self, _cx: &mut LayoutCx<'_>, _target: Target) {}

    /// The next time at which it needs [`Layout::tick`].
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// Its deadline has passed.
    fn tick(&mut self, _cx: &mut LayoutCx<'_>) {}

    /// An order of the administrator. After [`LayoutOrder::Replace`], the member's label is written.
    ///
    /// # Errors
    /// The layout does not do that, or not now.
    fn order(
        &mut self,
        _cx: &mut LayoutCx<'_>,
        _order: LayoutOrder,
    ) -> Result<Ordered, OrderRefusal> {
        Err(OrderRefusal::NotRedundant)
    }

    /// The label of a member is durable ([`LayoutCx::check_label`], [`LayoutOrder::Replace`]), or something else is there.
    fn labelled(&mut self, _cx: &mut LayoutCx<'_>, _target: Target, _outcome: Outcome) {}

    /// It has another size, in bytes. Its targets have it already.
    fn resize(&mut self, _cx: &mut LayoutCx<'_>, _size: u64) {}

    /// The state of the targets below it, in order.
    fn report(&self, members: &mut alloc::vec::Vec<MemberReport>);

    /// Its last scrub, if there was one.
    fn scrubbed(&self) -> Option<ScrubReport> {
        None
    }

    /// Whether guests' I/O waits because it has lost every member in sync.
    fn waits(&self) -> bool {
        false
    }

    /// Adds the I/Os that it has taken, and for which [`Layout::abandon`] was not called.
    fn taken(&self, _ios: &mut Vec<IoId>) {}

    /// Nobody waits for these any more: they fail instead of waiting for a lost member.
    fn abandon(&mut self, _cx: &mut LayoutCx<'_>, _ios: &[IoId]) {}

    /// The state of the flash cache, if it is one.
    fn cached(&self) -> Option<CacheReport> {
        None
    }

    /// The state of the disk in its pool, if it is one of a pool.
    fn pooled(&self) -> Option<PoolReport> {
        None
    }

    /// Finds more of what may differ between two generations of a pool's disk. None: there is no such generation, or it is
    /// none of a pool that is open.
    fn find_changes(
        &self,
        _from: Generation,
        _to: Generation,
        _changes: &mut Changes,
    ) -> Option<Searched> {
        None
    }

    /// Appends the next part of what its policy has learned, some `most` bytes, if it is a flash cache that is open.
    fn export_policy(&self, _most: usize, _out: &mut Vec<u8>) -> Option<Exported> {
        None
    }

    /// Begins nothing in the background, because the disk's layouts are about to be replaced.
    fn pause(&mut self, _cx: &mut LayoutCx<'_>) {}

    /// They are not replaced: goes on in the background.
    fn resume(&mut self, _cx: &mut LayoutCx<'_>) {}

    /// The disk is being detached: no I/O waits for what may never come.
    fn detaching(&mut self, _cx: &mut LayoutCx<'_>) {}

    /// The disk is being detached, and no request is under way: the layout leaves its targets so that it opens quickly.
    fn close(&mut self, _cx: &mut LayoutCx<'_>) {}
}

/// What a layout may ask for while one of its hooks runs.
pub struct LayoutCx<'a> {
    pub(crate) now: Time,
    pub(crate) disk: DiskId,
    /// Its place in the tree.
    pub(crate) node: u8,
    pub(crate) loads: &'a [Load],
    pub(crate) commands: &'a mut VecDeque<(u8, LayoutCommand)>,
    pub(crate) arena: &'a mut Arena,
}

/// A command of a layout, executed by the stack after the hook returns.
pub(crate) enum LayoutCommand {
    Issue {
        tag: u64,
        sub: SubIo,
    },
    /// An I/O that it has taken goes to one target.
    Send {
        io: IoId,
        target: Target,
        offset: u64,
    },
    Answer {
        io: IoId,
        outcome: Outcome,
    },
    ReadBlock {
        tag: u64,
        target: Target,
        offset: u64,
        copy: u8,
    },
    BlockEnded {
        node: u8,
        tag: u64,
        outcome: BlockOutcome,
    },
    WriteBlock {
        tag: u64,
        target: Target,
        offset: u64,
        block: Box<[u8; BLOCK]>,
    },
    Copy {
        from: Data,
        to: Data,
        len: u64,
    },
    Zero {
        to: Data,
        len: u64,
    },
    Sum {
        tag: u64,
        data: Data,
        len: u64,
    },
    CheckLabel {
        target: Target,
    },
    Fence,
    Opened(Result<(), Refusal>),
    Ordered(Result<(), OrderRefusal>),
    Notice(LayoutNotice),
    Hurry,
}

impl LayoutCx<'_> {
    /// The time of the event that is being handled.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The disk whose layout this is.
    pub fn disk(&self) -> DiskId {
        self.disk
    }

    fn push(&mut self, command: LayoutCommand) {
        let node = self.node;
        self.commands.push_back((node, command));
    }

    /// How many I/Os this target has.
    pub fn load(&self, target: Target) -> u32 {
        self.loads
            .get(usize::from(target.0))
            .map_or(0, |load| load.in_flight)
    }

    /// How many of them somebody waits for.
    pub fn awaited(&self, target: Target) -> u32 {
        let load = self.loads.get(usize::from(target.0));
        load.map_or(0, |load| load.in_flight - load.background)
    }

    /// A buffer of the arena of [`SLOT`] bytes. If there is none, [`Layout::arena_ready`] is called once there may be.
    pub fn claim(&mut self) -> Option<Data> {
        self.arena.claim(self.disk)
    }

    /// The same for a layout that has others below it: some buffers are left to these, so that what it waits for can end.
    pub fn claim_above(&mut self) -> Option<Data> {
        self.arena.claim_above(self.disk)
    }

    /// Returns such a buffer.
    pub fn release_above(&mut self, slot: Data) {
        self.arena.release_above(self.disk, slot);
    }

    /// Returns a buffer of the arena.
    pub fn release(&mut self, slot: Data) {
        self.arena.release(self.disk, slot);
    }

    /// A buffer is needed for nothing but I/O that nobody waits for: it is [late](Arena::late) until
    /// [`LayoutCx::release_late`].
    pub fn make_late(&mut self) {
        self.arena.make_late(self.disk);
    }

    /// Returns a late buffer of the arena.
    pub fn release_late(&mut self, slot: Data) {
        self.arena.release_late(self.disk, slot);
    }

    /// Issues a sub-I/O; [`Layout::done`] gets `tag` back with its end.
    pub fn issue(&mut self, tag: u64, sub: SubIo) {
        self.push(LayoutCommand::Issue { tag, sub });
    }

    /// Sends an I/O that the layout has taken to one target, as [`Map::One`] does.
    pub fn send(&mut self, io: IoId, target: Target, offset: u64) {
        self.push(LayoutCommand::Send { io, target, offset });
    }

    /// Reads a block of the layout's own; [`Layout::block_done`] gets it. `offset` is on the target, before the data.
    pub fn read_block(&mut self, tag: u64, target: Target, offset: u64) {
        self.read_copy(tag, target, offset, 0);
    }

    /// The same of one copy of a target that has several. The block is `None` if that copy does not count.
    pub fn read_copy(&mut self, tag: u64, target: Target, offset: u64, copy: u8) {
        self.push(LayoutCommand::ReadBlock {
            tag,
            target,
            offset,
            copy,
        });
    }

    /// Ends a block of the layout above ([`Layout::block`]).
    pub fn block_ended(&mut self, node: u8, tag: u64, outcome: BlockOutcome) {
        self.push(LayoutCommand::BlockEnded { node, tag, outcome });
    }

    /// Writes a block of the layout's own, durably.
    pub fn write_block(&mut self, tag: u64, target: Target, offset: u64, block: Box<[u8; BLOCK]>) {
        self.push(LayoutCommand::WriteBlock {
            tag,
            target,
            offset,
            block,
        });
    }

    /// Copies bytes from one buffer to another, before the commands that follow.
    pub fn copy(&mut self, from: Data, to: Data, len: u64) {
        self.push(LayoutCommand::Copy { from, to, len });
    }

    /// Makes bytes of a buffer zero, before the commands that follow.
    pub fn zero(&mut self, to: Data, len: u64) {
        self.push(LayoutCommand::Zero { to, len });
    }

    /// Computes the checksum of bytes; [`Layout::summed`] gets it.
    pub fn sum(&mut self, tag: u64, data: Data, len: u64) {
        self.push(LayoutCommand::Sum { tag, data, len });
    }

    /// Sees to it that a target has a label; [`Layout::labelled`] gets the result.
    pub fn check_label(&mut self, target: Target) {
        self.push(LayoutCommand::CheckLabel { target });
    }

    /// Asks for [`Layout::fenced`], once all I/Os of the disk's targets that were mapped before have ended. One fence is
    /// under way at a time.
    pub fn fence(&mut self) {
        self.push(LayoutCommand::Fence);
    }

    /// Answers an order that was answered [`Ordered::Later`].
    pub fn ordered(&mut self, outcome: Result<(), OrderRefusal>) {
        self.push(LayoutCommand::Ordered(outcome));
    }

    /// The layout takes requests from now on, or refuses to.
    pub fn opened(&mut self, outcome: Result<(), Refusal>) {
        self.push(LayoutCommand::Opened(outcome));
    }

    /// Reports something to the administrator.
    pub fn notice(&mut self, notice: LayoutNotice) {
        self.push(LayoutCommand::Notice(notice));
    }

    /// A guest waits for the disk's sub-I/Os in the background: those that wait in a scheduler are its own from now on.
    pub fn hurry(&mut self) {
        self.push(LayoutCommand::Hurry);
    }

    /// Answers an I/O that the layout has taken.
    ///
    /// # Panics
    /// When the stack finds that the layout does not have `io`: answering an I/O twice would tell a guest that data is
    /// safe which is not.
    pub fn answer(&mut self, io: IoId, outcome: Outcome) {
        self.push(LayoutCommand::Answer { io, outcome });
    }
}
