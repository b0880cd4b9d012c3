//! Layouts: how a disk's bytes lie on its targets, below its filters.
//!
//! A target is one place that I/O is done on, such as an image on a datastore. A disk without a layout is one image, its
//! target 0. A layout maps each I/O that leaves the filters: to one target ([`Map::One`]), or to sub-I/Os of its own, whose
//! ends it waits for. Like a filter it answers at once, and asks for more through its [`LayoutCx`].
//!
//! # Always true
//! - each I/O that a layout takes ([`Map::Issued`]) is answered by exactly one [`LayoutCx::answer`]
//! - each sub-I/O ends by exactly one [`Layout::done`]
//! - a layout names bytes, and never has them
//!
//! # Picture
//! ```text
//!   filters ──> map ──> One ─────────────────────────> target
//!                └────> Issued ──> sub-I/O, sub-I/O ──> targets
//!   filters <── answer <── done <──────┘
//! ```

use crate::block::BLOCK;
use crate::filter::{Command, Io};
use crate::request::{Data, DiskId, Fault, Flags, IoId, Op, Outcome};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::collections::VecDeque;

pub use spec::LayoutSpec;

pub mod mirror;
pub mod spec;
pub mod stripe;

mod fanout;

/// The most targets of one disk.
pub const MAX_TARGETS: usize = 32;

/// Where the disk's bytes begin on each member of a layout, in bytes. Before it lies the layout's own data. Origin: md's
/// superblock 1.2 leaves 1 MiB, which keeps the data aligned to any device's blocks.
pub const DATA_AT: u64 = 1 << 20;

/// One of a disk's targets, by its place in the disk's layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target(pub u8);

/// What a layout does with an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Map {
    /// The whole I/O goes to this place. Its end is the answer; if it fails, [`Layout::failed`] decides.
    One {
        /// Which target.
        target: Target,
        /// Where on it, in bytes.
        offset: u64,
    },
    /// The layout has taken it, and will answer it.
    Issued,
    /// It has ended.
    Done(Outcome),
}

/// An I/O that a layout issues to a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubIo {
    /// Which target.
    pub target: Target,
    /// The operation.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// Where on the target, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The bytes: a part of the buffer of an I/O that the layout has taken.
    pub data: Data,
}

/// Why a layout does not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No target has a readable state of this disk.
    NoState,
    /// This target belongs to another disk, or to another place of this one.
    Foreign(Target),
    /// This target was written by a newer program.
    Newer(Target),
    /// This target may have writes that those present lack.
    Missing(Target),
    /// Too many targets failed while the layout opened.
    Failed(Fault),
}

/// What stands below a disk's filters. All hooks must return at once.
pub trait Layout: Send {
    /// Its name in configuration and reports.
    fn name(&self) -> &'static str;

    /// How many targets it has; at most [`MAX_TARGETS`].
    fn targets(&self) -> usize;

    /// The disk has been attached; requests wait until [`LayoutCx::opened`].
    fn open(&mut self, cx: &mut LayoutCx<'_>) {
        cx.opened(Ok(()));
    }

    /// An I/O has passed the filters.
    fn map(&mut self, cx: &mut LayoutCx<'_>, io: &Io) -> Map;

    /// An I/O that was mapped to one target has failed there.
    fn failed(&mut self, _cx: &mut LayoutCx<'_>, _io: &Io, fault: Fault) -> Map {
        Map::Done(Err(fault))
    }

    /// A sub-I/O has ended.
    fn done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome);

    /// A block of its own was read or written.
    fn block_done(
        &mut self,
        _cx: &mut LayoutCx<'_>,
        _tag: u64,
        _outcome: Result<Option<Box<[u8; BLOCK]>>, Fault>,
    ) {
    }

    /// The disk is being detached, and no request is under way: the layout leaves its targets so that it opens quickly.
    fn close(&mut self, _cx: &mut LayoutCx<'_>) {}
}

/// What a layout may ask for while one of its hooks runs.
pub struct LayoutCx<'a> {
    pub(crate) now: Time,
    pub(crate) disk: DiskId,
    pub(crate) commands: &'a mut VecDeque<Command>,
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

    /// Issues a sub-I/O; [`Layout::done`] gets `tag` back with its end.
    pub fn issue(&mut self, tag: u64, sub: SubIo) {
        self.commands.push_back(Command::Issue { tag, sub });
    }

    /// Sends an I/O that the layout has taken to one target, as [`Map::One`] does.
    pub fn send(&mut self, io: IoId, target: Target, offset: u64) {
        self.commands
            .push_back(Command::Send { io, target, offset });
    }

    /// Reads a block of the layout's own; [`Layout::block_done`] gets it.
    pub fn read_block(&mut self, tag: u64, target: Target, offset: u64) {
        self.commands.push_back(Command::ReadBlock {
            tag,
            target,
            offset,
        });
    }

    /// Writes a block of the layout's own, durably.
    pub fn write_block(&mut self, tag: u64, target: Target, offset: u64, block: Box<[u8; BLOCK]>) {
        self.commands.push_back(Command::WriteBlock {
            tag,
            target,
            offset,
            block,
        });
    }

    /// The layout takes requests from now on, or refuses to.
    pub fn opened(&mut self, outcome: Result<(), Refusal>) {
        self.commands.push_back(Command::Opened(outcome));
    }

    /// Answers an I/O that the layout has taken.
    ///
    /// # Panics
    /// When the stack finds that the layout does not have `io`: answering an I/O twice would tell a guest that data is
    /// safe which is not.
    pub fn answer(&mut self, io: IoId, outcome: Outcome) {
        self.commands.push_back(Command::Answer { io, outcome });
    }
}
