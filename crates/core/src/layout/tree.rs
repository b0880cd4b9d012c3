//! The layouts of one disk: a small tree whose leaves are the disk's targets.
//!
//! The tree opens the disk: it reads the members' labels, formats a new disk, and opens each layout. It knows how many
//! I/Os each target has, and tells the layout above a target that hangs. The stack carries out what the layouts ask for.
//!
//! # Always true
//! - no layout opens before every label was read; a disk whose labels contradict it is refused
//! - a disk is formatted only while no label is sealed and every member can be read
//!
//! # Picture
//! ```text
//!   mirror+stripe of 4:   node 0 stripe ──> node 1 mirror ──> targets 0, 1
//!                                      └──> node 2 mirror ──> targets 2, 3
//! ```

use super::cache::policy::Exported;
use super::cache::{Cache, CacheSetup};
use super::mirror::Mirror;
use super::pool::{Changes, Column, Generation, Pool, PoolSetup, Searched, Standing};
use super::stripe::Stripe;
use super::{
    Arena, BlockOutcome, Check, DATA_AT, Hit, HitCx, Layout, LayoutCommand, LayoutCx, LayoutNotice,
    LayoutOrder, LayoutReport, LayoutSpec, MAX_TARGETS, MEMBER_TIMEOUT, MemberReport, OnLoss,
    OrderRefusal, Ordered, Refusal, ScrubReport, Target,
};
use crate::block::BLOCK;
use crate::filter::Io;
use crate::request::{DiskId, Fault, Outcome};
use crate::units::{Span, Time};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;
use labels::Relabel;

mod labels;

/// The node of the tree itself, for its own blocks.
pub(crate) const TREE: u8 = u8::MAX;

/// The members of a disk, as a tree is built over them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Members {
    /// The disk's identity.
    pub disk: [u8; 16],
    /// Size of the disk, in bytes.
    pub size: u64,
    /// How many members there are.
    pub count: usize,
    /// Where the disk's bytes begin on each: [`DATA_AT`], less in tests.
    pub data_at: u64,
    /// Members that are not used, whatever they have, one bit each: the administrator has given them up.
    pub without: u32,
    /// Whether all members of a new disk read as zeroes. Otherwise a new mirror copies its first member to the others.
    pub zeroed: bool,
    /// How long a member may have I/O in flight and complete none before it counts as hung.
    pub timeout: Span,
    /// What a mirror does after the loss of every member in sync.
    pub on_loss: OnLoss,
}

impl Members {
    /// Members of zeroes, as a new disk has them.
    pub fn new(disk: [u8; 16], size: u64, count: usize) -> Members {
        Members {
            disk,
            size,
            count,
            data_at: DATA_AT,
            without: 0,
            zeroed: true,
            timeout: MEMBER_TIMEOUT,
            on_loss: OnLoss::Fail,
        }
    }
}

/// See the module.
pub struct Tree {
    spec: LayoutSpec,
    members: Members,
    /// Whether members have labels: not while a disk moves, and not in a pool.
    labelled: bool,
    /// Whether it is a disk of a pool.
    is_pooled: bool,
    nodes: Vec<Node>,
    /// The layout above all others: the first node, or the last one if that is a cache.
    root: u8,
    loads: Vec<Load>,
    fences: Fences,
    opening: Opening,
    /// A member whose label is being read or written while the disk is used.
    relabel: Option<Relabel>,
    /// How often that was done.
    relabels: u32,
}

/// I/Os that are mapped to targets, on two sides: those since the last fence began, and the others.
#[derive(Clone, Copy, Debug, Default)]
struct Fences {
    mapped: [u32; 2],
    /// The side of those that are mapped now.
    side: u8,
    asked_by: Option<u8>,
}

struct Node {
    layout: Box<dyn Layout>,
    below: Below,
}

/// What the layout above all others says of an I/O that has come.
pub(crate) enum AtOnce {
    /// It goes to this place as it is.
    Place(Target, u64),
    /// The layout is to map it.
    Asked,
    /// The layout is a cache.
    Cached,
}

/// What a layout's targets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Below {
    /// Layouts, from this node on.
    Nodes(u8),
    /// The disk's targets, from this one on.
    Targets(u8),
    /// Of a cache: the layout below it, or target 0, and then the disk's targets from this one on.
    Cached { node: Option<u8>, flash: u8 },
}

/// The I/Os of one target.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    pub(crate) in_flight: u32,
    /// Those of them for which nobody waits.
    pub(crate) background: u32,
    /// Which of the target's images it is about. What an earlier one still has does not count.
    image: u8,
    pub(crate) faults: u64,
    /// When it last completed an I/O, or was given the first one.
    moved: Time,
    /// Whether the layout was told that it hangs.
    told: bool,
}

/// How far opening has come.
enum Opening {
    Labels {
        left: usize,
        found: Vec<Found>,
    },
    Format {
        left: usize,
        found: Vec<Found>,
        fresh: bool,
    },
    Nodes {
        left: usize,
        found: Vec<Found>,
        fresh: bool,
        refusal: Option<Refusal>,
    },
    Seal {
        left: usize,
    },
    Refused,
    Done,
}

/// What lies at the beginning of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Unread,
    Away,
    Blank,
    Ours { sealed: bool, torn: bool },
    Refused(Refusal),
}

/// The layouts of a disk that is not plain.
fn layouts(spec: LayoutSpec, members: &Members) -> Vec<Node> {
    let count = place(members.count);
    let mirror = |first: u8, count, size| {
        let mirror = Mirror::new(members, count, size);
        Box::new(mirror.without(members.without >> first)) as Box<dyn Layout>
    };
    match spec {
        LayoutSpec::Plain => Vec::new(),
        LayoutSpec::Stripe { chunk } => vec![Node {
            layout: Box::new(Stripe::new(count, chunk)),
            below: Below::Targets(0),
        }],
        LayoutSpec::Mirror => vec![Node {
            layout: mirror(0, count, members.size),
            below: Below::Targets(0),
        }],
        LayoutSpec::MirrorStripe { chunk } => {
            let columns = count / 2;
            let top = Node {
                layout: Box::new(Stripe::new(columns, chunk)),
                below: Below::Nodes(1),
            };
            let pair = |column| Node {
                layout: mirror(2 * column, 2, members.size / u64::from(columns)),
                below: Below::Targets(2 * column),
            };
            core::iter::once(top)
                .chain((0..columns).map(pair))
                .collect()
        }
    }
}

/// The layout of a disk of this size that moves from target 0 to target 1.
fn moving(size: u64) -> Node {
    Node {
        layout: Box::new(Mirror::leading(size)),
        below: Below::Targets(0),
    }
}

impl Tree {
    /// The tree of a layout; `None` for a plain disk.
    ///
    /// # Panics
    /// If the layout does not work with so many members ([`LayoutSpec::check`]); the plan refuses that before.
    pub fn build(spec: LayoutSpec, members: Members) -> Option<Tree> {
        assert_eq!(spec.check(members.count), Ok(()), "checked before");
        if spec.is_plain() {
            return None;
        }
        Some(Tree::of(spec, members, true, layouts(spec, &members)))
    }

    /// The same with a cache above it, also for a plain disk. The targets of the cache's devices follow the members.
    ///
    /// # Panics
    /// As [`Tree::build`].
    pub fn cached(spec: LayoutSpec, members: Members, cache: CacheSetup) -> Tree {
        assert_eq!(spec.check(members.count), Ok(()), "checked before");
        let members = Members {
            data_at: if spec.is_plain() { 0 } else { members.data_at },
            ..members
        };
        let nodes = layouts(spec, &members);
        let mut tree = Tree::of(spec, members, !spec.is_plain(), nodes);
        tree.push_cache(cache);
        tree
    }

    /// Adds a cache above the layouts. The targets of its devices follow the members.
    fn push_cache(&mut self, cache: CacheSetup) {
        let members = self.members.count;
        let loads = members + usize::from(cache.devices);
        self.loads.resize(loads, Load::default());
        let below = Below::Cached {
            node: (!self.nodes.is_empty()).then_some(0),
            flash: place(members),
        };
        self.root = place(self.nodes.len());
        self.nodes.push(Node {
            layout: Box::new(Cache::new(cache)),
            below,
        });
    }

    /// Adds a cache above layouts that are open, and opens it. They stay as they are.
    pub(crate) fn put_cache(&mut self, cx: &mut LayoutCx<'_>, cache: CacheSetup) {
        self.push_cache(cache);
        self.opening = Opening::Nodes {
            left: 1,
            found: Vec::new(),
            fresh: false,
            refusal: None,
        };
        let (root, now, disk) = (self.root, cx.now, cx.disk);
        let (cache, mut cx) = self.hook(root, now, disk, cx.commands, cx.arena);
        cache.open(&mut cx, u32::MAX, false);
    }

    /// Removes the cache, which has no I/O under way. Returns whether any layout is left.
    pub(crate) fn remove_cache(&mut self) -> bool {
        if self.cache().is_some() {
            self.nodes.pop();
            self.loads.truncate(self.members.count);
            self.root = 0;
            self.opening = Opening::Done;
        }
        !self.nodes.is_empty()
    }

    /// The tree of a plain disk that moves from target 0 to target 1. Both are as large as the disk.
    pub fn transfer(size: u64) -> Tree {
        let members = Members {
            data_at: 0,
            zeroed: false,
            ..Members::new([0; 16], size, 2)
        };
        Tree::of(LayoutSpec::Plain, members, false, vec![moving(size)])
    }

    /// The tree of a disk of a pool, or of a read-only disk that shows one of its generations. Its targets are the pool's
    /// members, which have no labels of the disk.
    ///
    /// # Panics
    /// Unless [`PoolSetup::check`] agrees; the catalog is checked before.
    pub fn pool(setup: PoolSetup, view: Option<Generation>) -> Tree {
        let members = Members {
            data_at: 0,
            ..Members::new(setup.disk, setup.size, setup.targets())
        };
        let mut first = 0;
        let column = |standings: &Vec<Standing>| {
            let column = Node {
                layout: Box::new(match view {
                    Some(_) => Column::of_view(standings),
                    None => Column::new(standings),
                }) as Box<dyn Layout>,
                below: Below::Targets(first),
            };
            first += place(standings.len());
            column
        };
        let columns: Vec<Node> = setup.members.iter().map(column).collect();
        let below = match columns.is_empty() {
            true => Below::Targets(0),
            false => Below::Nodes(1),
        };
        let node = Node {
            layout: Box::new(Pool::new(setup, view)),
            below,
        };
        let nodes = core::iter::once(node).chain(columns).collect();
        let mut tree = Tree::of(LayoutSpec::Plain, members, false, nodes);
        tree.is_pooled = true;
        tree
    }

    /// The plain disk below an idle cache moves from target 0 to target 1 from now on. The targets of the cache's devices
    /// follow.
    pub(crate) fn begin_move(&mut self, cx: &mut LayoutCx<'_>) {
        self.must_be_cached(LayoutSpec::Plain);
        self.nodes.insert(0, moving(self.members.size));
        self.root = 1;
        self.insert_target();
        self.point_cache(Some(0));
        self.opening = Opening::Nodes {
            left: 1,
            found: Vec::new(),
            fresh: false,
            refusal: None,
        };
        self.open_node(cx, 0, 0b11, false);
    }

    /// The disk below an idle cache does not move any more. The image that is left is that of target 0.
    pub(crate) fn end_move(&mut self) {
        self.must_be_cached(LayoutSpec::Plain);
        self.nodes.remove(0);
        self.root = 0;
        self.members.count = 1;
        self.loads.remove(1);
        self.loads[0] = Load::default();
        self.point_cache(None);
        self.opening = Opening::Done;
    }

    /// The mirror below an idle cache gets one more member, out of sync. The targets of the cache's devices follow.
    pub(crate) fn insert_member(&mut self, cx: &mut LayoutCx<'_>) {
        self.must_be_cached(LayoutSpec::Mirror);
        let added = self.order_node(cx, 0, LayoutOrder::AddMember);
        assert_eq!(added, Ok(Ordered::Now), "a mirror that is open can grow");
        self.insert_target();
        self.point_cache(Some(0));
    }

    fn must_be_cached(&self, below: LayoutSpec) {
        let is_idle = self.loads.iter().all(|load| load.in_flight == 0);
        assert!(
            self.cache().is_some() && self.spec == below && is_idle,
            "only what is below an idle cache changes so"
        );
    }

    /// The targets of the members are one more.
    fn insert_target(&mut self) {
        self.loads.insert(self.members.count, Load::default());
        self.members.count += 1;
    }

    /// The cache is above this node, and its devices follow the members.
    fn point_cache(&mut self, node: Option<u8>) {
        let flash = place(self.members.count);
        self.nodes[usize::from(self.root)].below = Below::Cached { node, flash };
    }

    fn of(spec: LayoutSpec, members: Members, labelled: bool, nodes: Vec<Node>) -> Tree {
        Tree {
            spec,
            members,
            labelled,
            is_pooled: false,
            nodes,
            root: 0,
            loads: vec![Load::default(); members.count],
            fences: Fences::default(),
            opening: Opening::Labels {
                left: 0,
                found: Vec::new(),
            },
            relabel: None,
            relabels: 0,
        }
    }

    /// How many targets it has.
    pub fn targets(&self) -> usize {
        self.loads.len()
    }

    /// The node of the cache, if there is one.
    fn cache(&self) -> Option<u8> {
        let root = self.nodes.get(usize::from(self.root));
        let cached = root.is_some_and(|node| matches!(node.below, Below::Cached { .. }));
        cached.then_some(self.root)
    }

    /// The node above all others.
    #[inline]
    pub(crate) fn root(&self) -> u8 {
        self.root
    }

    /// The layouts of the tree whose targets are the disk's, with the first of them.
    fn leaves(&self) -> impl Iterator<Item = (usize, u8)> + '_ {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(node, at)| match at.below {
            Below::Targets(first) => Some((node, first)),
            Below::Nodes(_) | Below::Cached { .. } => None,
        })
    }

    /// The layout above a target, and what that calls the target.
    fn above(&self, target: Target) -> (usize, Target) {
        if let Some(cache) = self.cache()
            && let own = self.own_target(cache, target)
            && (own.0 > 0 || self.nodes.len() == 1)
        {
            return (usize::from(cache), own);
        }
        let leaf = self.leaves().filter(|(_, first)| *first <= target.0).last();
        let (node, first) = leaf.expect("every target is below a layout");
        (node, Target(target.0 - first))
    }

    /// What a layout's target is, and where the disk's bytes begin on it.
    pub(crate) fn below(&self, node: u8, target: Target) -> Result<Target, u8> {
        match self.nodes[usize::from(node)].below {
            Below::Targets(first) => Ok(Target(first + target.0)),
            Below::Nodes(first) => Err(first + target.0),
            Below::Cached { node, .. } if target.0 == 0 => node.map_or(Ok(target), Err),
            Below::Cached { flash, .. } => Ok(Target(flash + target.0 - 1)),
        }
    }

    /// The disk's name of a layout's target.
    pub(crate) fn global(&self, node: u8, target: Target) -> Target {
        match node {
            TREE => target,
            _ => self.below(node, target).unwrap_or(target),
        }
    }

    /// What the layout above a target calls it.
    pub(crate) fn own_target(&self, node: u8, target: Target) -> Target {
        match self.nodes[usize::from(node)].below {
            Below::Targets(first) => Target(target.0 - first),
            Below::Nodes(_) => target,
            Below::Cached { flash, .. } if target.0 >= flash => Target(target.0 - flash + 1),
            Below::Cached { .. } => Target(0),
        }
    }

    /// Where the disk's bytes begin on a target. A cache names its devices' bytes from their beginning.
    pub(crate) fn data_at(&self, target: Target) -> u64 {
        match usize::from(target.0) < self.members.count {
            true => self.members.data_at,
            false => 0,
        }
    }

    /// Asks the layout above all others whether a read goes to a flash device as it is; the target is the disk's.
    #[inline(always)]
    pub(crate) fn hit(&mut self, now: Time, offset: u64, len: u64) -> Option<Hit> {
        let root = &mut self.nodes[usize::from(self.root)];
        let Below::Cached { flash, .. } = root.below else {
            return None;
        };
        let loads = &self.loads[usize::from(flash) - 1..];
        let hit = root.layout.hit(&HitCx { now, loads }, offset, len)?;
        let target = Target(hit.target.0 + flash - 1);
        Some(Hit { target, ..hit })
    }

    /// Asks the layout above all others where an I/O goes as it is; the target is the disk's.
    #[inline(always)]
    pub(crate) fn at_once(&mut self, io: &Io) -> AtOnce {
        let root = &mut self.nodes[usize::from(self.root)];
        let first = match root.below {
            Below::Targets(first) => first,
            Below::Nodes(_) => return AtOnce::Asked,
            Below::Cached { .. } => return AtOnce::Cached,
        };
        let found = root.layout.at_once(io.op, io.flags, io.offset, io.len);
        // No cache is above: all targets are members.
        found.map_or(AtOnce::Asked, |(target, at)| {
            AtOnce::Place(Target(first + target.0), at + self.members.data_at)
        })
    }

    /// The checksum of the next block of a read that the layout above all others checks.
    #[inline]
    pub(crate) fn checked(&mut self, mark: u64, sum: u32) -> Check {
        let root = &mut self.nodes[usize::from(self.root)];
        root.layout.checked(mark, sum)
    }

    /// A layout, and the context of one of its hooks.
    pub(crate) fn hook<'a>(
        &'a mut self,
        node: u8,
        now: Time,
        disk: DiskId,
        commands: &'a mut VecDeque<(u8, LayoutCommand)>,
        arena: &'a mut Arena,
    ) -> (&'a mut dyn Layout, LayoutCx<'a>) {
        let at = &mut self.nodes[usize::from(node)];
        let loads = match at.below {
            Below::Targets(first) => &self.loads[usize::from(first)..],
            // What stands for the disk below it is one of its members.
            Below::Cached { flash, .. } => &self.loads[usize::from(flash) - 1..],
            Below::Nodes(_) => &[],
        };
        let cx = LayoutCx {
            now,
            disk,
            node,
            loads,
            commands,
            arena,
        };
        (&mut *at.layout, cx)
    }

    /// An I/O is mapped to a target.
    #[inline]
    pub(crate) fn placed(&mut self, io: &mut Io) {
        // One that has failed, and goes somewhere else, stays where it was counted.
        if io.fence == 0 {
            io.fence = 1 + self.fences.side;
            self.fences.mapped[usize::from(self.fences.side)] += 1;
        }
    }

    /// An I/O that was mapped to a target is not there any more.
    #[inline]
    pub(crate) fn left(&mut self, io: &mut Io) {
        if let Some(side) = io.fence.checked_sub(1) {
            io.fence = 0;
            self.fences.mapped[usize::from(side)] -= 1;
        }
    }

    /// A layout wants to know when what is mapped now has ended.
    ///
    /// # Panics
    /// If another fence is under way.
    pub(crate) fn fence(&mut self, node: u8) {
        let before = self.fences.asked_by.replace(node);
        assert_eq!(before, None, "one fence is under way at a time");
        self.fences.side = 1 - self.fences.side;
    }

    /// Whether a fence is under way.
    #[inline]
    pub(crate) fn has_fence(&self) -> bool {
        self.fences.asked_by.is_some()
    }

    /// The layout whose fence is complete, once.
    #[inline]
    pub(crate) fn take_fenced(&mut self) -> Option<u8> {
        let others = 1 - self.fences.side;
        let is_complete = self.fences.mapped[usize::from(others)] == 0;
        self.fences.asked_by.take_if(|_| is_complete)
    }

    /// A target has been given this I/O.
    #[inline]
    pub(crate) fn begun(&mut self, io: &mut Io, now: Time) {
        let load = &mut self.loads[usize::from(io.target.0)];
        if load.in_flight == 0 {
            load.moved = now;
        }
        load.in_flight += 1;
        load.background += u32::from(io.is_background());
        io.image = load.image;
    }

    /// A target has completed this I/O.
    #[inline]
    pub(crate) fn ended(&mut self, io: &mut Io, now: Time, outcome: Outcome) {
        self.left(io);
        let load = &mut self.loads[usize::from(io.target.0)];
        if load.image != io.image {
            return;
        }
        load.in_flight -= 1;
        load.background -= u32::from(io.is_background());
        load.moved = now;
        load.told = false;
        load.faults += u64::from(outcome.is_err());
    }

    /// Whether it ever has deadlines.
    pub(crate) fn is_timed(&self) -> bool {
        self.spec.is_redundant() || !self.labelled || self.cache().is_some()
    }

    /// The next time at which a layout needs its tick or a target counts as hung.
    pub(crate) fn deadline(&self) -> Option<Time> {
        if !self.is_timed() {
            return None;
        }
        let hung = self
            .loads
            .iter()
            .filter(|load| load.in_flight > 0 && !load.told);
        let hung = hung.map(|load| load.moved + self.members.timeout);
        let ticks = self.nodes.iter().filter_map(|node| node.layout.deadline());
        hung.chain(ticks).min()
    }

    /// The next layout that is due, and what for.
    pub(crate) fn due(&mut self, now: Time) -> Option<(u8, Due)> {
        let timeout = self.members.timeout;
        let hung = |load: &Load| load.in_flight > 0 && !load.told && load.moved + timeout <= now;
        if let Some(target) = self.loads.iter().position(hung) {
            self.loads[target].told = true;
            let (node, target) = self.above(Target(place(target)));
            return Some((place(node), Due::Hung(target)));
        }
        let ticks = |node: &Node| node.layout.deadline().is_some_and(|at| at <= now);
        let node = self.nodes.iter().position(ticks)?;
        Some((place(node), Due::Tick))
    }

    /// How many layouts there are.
    pub(crate) fn nodes(&self) -> u8 {
        place(self.nodes.len())
    }

    /// The nodes in order: first the one above all others.
    pub(crate) fn nth(&self, nth: u8) -> u8 {
        (self.root + nth) % self.nodes()
    }

    /// Begins to open.
    pub(crate) fn open(&mut self, cx: &mut LayoutCx<'_>) {
        let count = self.members.count;
        let found = vec![Found::Unread; count];
        if !self.labelled {
            let found = vec![
                Found::Ours {
                    sealed: true,
                    torn: false
                };
                count
            ];
            return self.open_nodes(cx, found, false);
        }
        self.opening = Opening::Labels { left: count, found };
        for target in 0..place(count) {
            cx.read_block(target.into(), Target(target), 0);
        }
    }

    /// A label was read or written.
    pub(crate) fn label_done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: BlockOutcome) {
        let [target, ..] = tag.to_le_bytes();
        let target = usize::from(target);
        if tag > u8::MAX.into() {
            return self.relabelled(cx, tag, outcome);
        }
        match &mut self.opening {
            Opening::Labels { left, found } => {
                found[target] = self.members.judge(self.spec, place(target), &outcome);
                *left -= 1;
                if *left == 0 {
                    let found = core::mem::take(found);
                    self.judge(cx, found);
                }
            }
            Opening::Format { left, found, fresh } => {
                if outcome.is_err() {
                    found[target] = Found::Away;
                }
                *left -= 1;
                if *left == 0 {
                    let (found, fresh) = (core::mem::take(found), *fresh);
                    let failed = found.iter().position(|found| *found == Found::Away);
                    match failed {
                        Some(target) if fresh => {
                            let failed = Refusal::Failed(Target(place(target)), Fault::Io);
                            self.finish(cx, Err(failed));
                        }
                        _ => self.open_nodes(cx, found, fresh),
                    }
                }
            }
            Opening::Seal { left } => {
                if let Err(fault) = outcome {
                    let failed = Refusal::Failed(Target(place(target)), fault);
                    return self.finish(cx, Err(failed));
                }
                *left -= 1;
                if *left == 0 {
                    self.finish(cx, Ok(()));
                }
            }
            Opening::Nodes { .. } | Opening::Refused | Opening::Done => {}
        }
    }

    /// All labels are known.
    fn judge(&mut self, cx: &mut LayoutCx<'_>, found: Vec<Found>) {
        let refused = found.iter().find_map(|found| match found {
            Found::Refused(refusal) => Some(*refusal),
            _ => None,
        });
        if let Some(refusal) = refused {
            return self.finish(cx, Err(refusal));
        }
        let sealed = found
            .iter()
            .any(|found| matches!(found, Found::Ours { sealed: true, .. }));
        let lacks = |lack| found.iter().position(|found| *found == lack);
        if let Some(target) = lacks(Found::Away)
            && (!sealed || !self.spec.is_redundant())
        {
            return self.finish(cx, Err(Refusal::Missing(Target(place(target)))));
        }
        if let Some(target) = lacks(Found::Blank)
            && sealed
            && !self.spec.is_redundant()
        {
            return self.finish(cx, Err(Refusal::Blank(Target(place(target)))));
        }
        let write = |found: &Found| match found {
            Found::Ours { sealed: own, torn } => !sealed || *torn || !own,
            Found::Blank => !sealed,
            _ => false,
        };
        let writes: Vec<u8> = (0..place(found.len()))
            .filter(|target| write(&found[usize::from(*target)]))
            .collect();
        if writes.is_empty() {
            return self.open_nodes(cx, found, false);
        }
        self.opening = Opening::Format {
            left: writes.len(),
            found,
            fresh: !sealed,
        };
        for target in writes {
            self.write_label(cx, Target(target), sealed);
        }
    }

    fn open_nodes(&mut self, cx: &mut LayoutCx<'_>, found: Vec<Found>, fresh: bool) {
        let usable = |target: usize| fresh || matches!(found[target], Found::Ours { .. });
        let masks: Vec<u32> = (0..self.nodes.len())
            .map(|node| match self.nodes[node].below {
                Below::Nodes(_) | Below::Cached { .. } => u32::MAX,
                Below::Targets(first) => (usize::from(first)..found.len())
                    .filter(|target| usable(*target))
                    .map(|target| 1 << (target - usize::from(first)))
                    .sum(),
            })
            .collect();
        self.opening = Opening::Nodes {
            left: self.nodes.len(),
            found,
            fresh,
            refusal: None,
        };
        // A cache may work in the background as soon as it has opened: it opens after what is below it.
        let last = self.cache().filter(|_| self.nodes.len() > 1);
        for (node, usable) in (0..).zip(masks) {
            if Some(node) != last {
                self.open_node(cx, node, usable, fresh);
            }
        }
    }

    fn open_node(&mut self, cx: &mut LayoutCx<'_>, node: u8, usable: u32, fresh: bool) {
        let (now, disk) = (cx.now, cx.disk);
        let (layout, mut cx) = self.hook(node, now, disk, cx.commands, cx.arena);
        layout.open(&mut cx, usable, fresh);
    }

    /// A layout has opened, or refuses to.
    pub(crate) fn node_opened(
        &mut self,
        cx: &mut LayoutCx<'_>,
        node: u8,
        outcome: Result<(), Refusal>,
    ) {
        if node == TREE {
            return;
        }
        let own = outcome.map_err(|refusal| self.own_name(node, refusal));
        let Opening::Nodes {
            left,
            found,
            fresh,
            refusal,
        } = &mut self.opening
        else {
            return;
        };
        if let Err(own) = own {
            let own = match own {
                Refusal::Missing(target)
                    if found.get(usize::from(target.0)) == Some(&Found::Blank) =>
                {
                    Refusal::Blank(target)
                }
                own => own,
            };
            refusal.get_or_insert(own);
        }
        *left -= 1;
        let (left, refusal, fresh) = (*left, *refusal, *fresh);
        let cache = self.cache().filter(|cache| *cache != node);
        match cache.filter(|_| left == 1) {
            Some(cache) if refusal.is_none() => return self.open_node(cx, cache, u32::MAX, fresh),
            Some(_) => {}
            None if left > 0 => return,
            None => {}
        }
        match (refusal, fresh) {
            (Some(refusal), _) => self.finish(cx, Err(refusal)),
            (None, false) => self.finish(cx, Ok(())),
            (None, true) => {
                let count = self.members.count;
                self.opening = Opening::Seal { left: count };
                for target in 0..place(count) {
                    self.write_label(cx, Target(target), true);
                }
            }
        }
    }

    /// A layout's refusal, with the disk's name of the target.
    fn own_name(&self, node: u8, refusal: Refusal) -> Refusal {
        let name = |target| self.global(node, target);
        match refusal {
            Refusal::Foreign(target) => Refusal::Foreign(name(target)),
            Refusal::Unknown(target) => Refusal::Unknown(name(target)),
            Refusal::Newer(target) => Refusal::Newer(name(target)),
            Refusal::Damaged(target) => Refusal::Damaged(name(target)),
            Refusal::Blank(target) => Refusal::Blank(name(target)),
            Refusal::Missing(target) => Refusal::Missing(name(target)),
            Refusal::Split(target) => Refusal::Split(name(target)),
            Refusal::Failed(target, fault) => Refusal::Failed(name(target), fault),
        }
    }

    /// A layout's notice, with the disk's name of the target.
    pub(crate) fn notice(&self, node: u8, notice: LayoutNotice) -> LayoutNotice {
        let name = |target| self.global(node, target);
        match notice {
            LayoutNotice::Dropped { member, cause } => LayoutNotice::Dropped {
                member: name(member),
                cause,
            },
            LayoutNotice::Rebuilding { member, bytes } => LayoutNotice::Rebuilding {
                member: name(member),
                bytes,
            },
            LayoutNotice::Rebuilt { member } => LayoutNotice::Rebuilt {
                member: name(member),
            },
            LayoutNotice::RebuildFailed { member, fault } => LayoutNotice::RebuildFailed {
                member: name(member),
                fault,
            },
            LayoutNotice::ReadFailed { member, fault } => LayoutNotice::ReadFailed {
                member: name(member),
                fault,
            },
            LayoutNotice::Scrubbed(_)
            | LayoutNotice::Lost
            | LayoutNotice::Waiting
            | LayoutNotice::Resumed
            | LayoutNotice::CacheCleaned { .. }
            | LayoutNotice::CacheCorrupt { .. }
            | LayoutNotice::CacheShrunk { .. }
            | LayoutNotice::CachePolicy(_)
            | LayoutNotice::CacheStateDue
            | LayoutNotice::CacheLost { .. }
            | LayoutNotice::GrantWanted { .. }
            | LayoutNotice::GrantEmpty { .. }
            | LayoutNotice::Generation(_)
            | LayoutNotice::GenerationGone(_)
            | LayoutNotice::Vacated
            | LayoutNotice::HomeMoved { .. } => notice,
            LayoutNotice::Behind { member, cause } => LayoutNotice::Behind {
                member: name(member),
                cause,
            },
        }
    }

    fn finish(&mut self, cx: &mut LayoutCx<'_>, outcome: Result<(), Refusal>) {
        self.opening = match outcome {
            Ok(()) => Opening::Done,
            Err(_) => Opening::Refused,
        };
        let command = LayoutCommand::Opened(outcome);
        let node = TREE;
        cx.commands.push_back((node, command));
    }

    /// The disk has another size.
    pub(crate) fn resize(&mut self, cx: &mut LayoutCx<'_>, size: u64) {
        self.members.size = size;
        let leaves: Vec<usize> = self.leaves().map(|(node, _)| node).collect();
        let member = self.spec.member_size(size, self.members.count)
            - self.spec.member_size(0, self.members.count);
        let cache = self.cache().map(|node| (usize::from(node), size));
        let pool = (self.is_pooled && !leaves.contains(&0)).then_some((0, size));
        let leaves = leaves.into_iter().map(|node| (node, member)).chain(pool);
        for (node, size) in leaves.chain(cache) {
            let (now, disk) = (cx.now, cx.disk);
            let (layout, mut cx) = self.hook(place(node), now, disk, cx.commands, cx.arena);
            layout.resize(&mut cx, size);
        }
    }

    /// Carries out an order.
    ///
    /// # Errors
    /// The layout does not do that, or not now.
    pub(crate) fn order(
        &mut self,
        cx: &mut LayoutCx<'_>,
        order: LayoutOrder,
    ) -> Result<Ordered, OrderRefusal> {
        // What is below the cache may still open when the cache has lost its devices.
        let gives_up =
            order == LayoutOrder::GiveUpCache && !matches!(self.opening, Opening::Refused);
        // What members have counts while the disk opens, too.
        if order.is_of_column() && !matches!(self.opening, Opening::Refused) {
            return self.order_column(cx, order);
        }
        if !gives_up && (!matches!(self.opening, Opening::Done) || self.relabel.is_some()) {
            return Err(OrderRefusal::NotOpen);
        }
        if let Some(outcome) = self.order_cache(cx, order) {
            return outcome;
        }
        if order.is_of_pool() {
            return match self.is_pooled {
                true => self.order_node(cx, 0, order),
                false => Err(OrderRefusal::NotPooled),
            };
        }
        if self.is_pooled && matches!(order, LayoutOrder::Rate(_)) {
            return self.order_node(cx, 0, order);
        }
        if self.is_pooled && order == LayoutOrder::AddMember {
            return self.add_column(cx);
        }
        // The members of a move have no labels, and nothing but its rate can be changed.
        if !self.labelled && !matches!(order, LayoutOrder::Rate(_)) {
            return Err(OrderRefusal::NotRedundant);
        }
        let member = match order {
            LayoutOrder::Rebuild(member)
            | LayoutOrder::Replace(member)
            | LayoutOrder::Drop(member) => member,
            LayoutOrder::AddMember => return self.add_member(cx),
            LayoutOrder::Timeout(_) if !self.is_timed() => return Err(OrderRefusal::NotRedundant),
            LayoutOrder::Timeout(timeout) => {
                self.members.timeout = timeout;
                return Ok(Ordered::Now);
            }
            LayoutOrder::Scrub { .. }
            | LayoutOrder::StopScrub
            | LayoutOrder::OnLoss(_)
            | LayoutOrder::CleanCache
            | LayoutOrder::GiveUpCache
            | LayoutOrder::CacheMode(_)
            | LayoutOrder::CacheAdmission(_)
            | LayoutOrder::GrowCache { .. }
            | LayoutOrder::ShrinkCache { .. }
            | LayoutOrder::Grant { .. }
            | LayoutOrder::NoSpace
            | LayoutOrder::SpaceAvailable
            | LayoutOrder::TakeSnapshot
            | LayoutOrder::RollBack(_)
            | LayoutOrder::DeleteGeneration(_)
            | LayoutOrder::Hold
            | LayoutOrder::Go
            | LayoutOrder::Standing { .. }
            | LayoutOrder::Unrecorded(_)
            | LayoutOrder::Vacate { .. }
            | LayoutOrder::Place { .. }
            | LayoutOrder::Readers(_)
            | LayoutOrder::HomeMoved { .. }
            | LayoutOrder::Rate(_) => return self.order_leaves(cx, order),
        };
        if usize::from(member.0) >= self.members.count {
            return Err(OrderRefusal::NoMember);
        }
        let (node, own) = self.above(member);
        match order {
            LayoutOrder::Rebuild(_) => self.order_node(cx, place(node), LayoutOrder::Rebuild(own)),
            LayoutOrder::Drop(_) => self.order_node(cx, place(node), LayoutOrder::Drop(own)),
            _ => {
                self.order_node(cx, place(node), LayoutOrder::Replace(own))?;
                self.replaced(member);
                self.begin_label(cx, member, true);
                Ok(Ordered::Now)
            }
        }
    }

    /// Carries out an order about a member of a pool's column. The disk copies what a member lacks that syncs from now on.
    fn order_column(
        &mut self,
        cx: &mut LayoutCx<'_>,
        order: LayoutOrder,
    ) -> Result<Ordered, OrderRefusal> {
        let (member, standing) = match order {
            LayoutOrder::Standing { member, standing } => (member, Some(standing)),
            LayoutOrder::Unrecorded(member) => (member, None),
            _ => return Err(OrderRefusal::NotPooled),
        };
        if !self.is_pooled || self.nodes[0].below != Below::Nodes(1) {
            return Err(OrderRefusal::NotPooled);
        }
        if usize::from(member.0) >= self.members.count {
            return Err(OrderRefusal::NoMember);
        }
        let (node, own) = self.above(member);
        let order = match standing {
            Some(standing) => LayoutOrder::Standing {
                member: own,
                standing,
            },
            None => LayoutOrder::Unrecorded(own),
        };
        self.order_node(cx, place(node), order)?;
        if standing == Some(Standing::Syncing) {
            let column = Target(place(node) - 1);
            let standing = Standing::Syncing;
            let order = LayoutOrder::Standing {
                member: column,
                standing,
            };
            self.order_node(cx, 0, order)?;
        }
        Ok(Ordered::Now)
    }

    /// Carries out an order for the cache, or about one of its devices.
    fn order_cache(
        &mut self,
        cx: &mut LayoutCx<'_>,
        order: LayoutOrder,
    ) -> Option<Result<Ordered, OrderRefusal>> {
        let Some(node) = self.cache() else {
            let of_cache = matches!(
                order,
                LayoutOrder::CleanCache
                    | LayoutOrder::GiveUpCache
                    | LayoutOrder::CacheMode(_)
                    | LayoutOrder::CacheAdmission(_)
                    | LayoutOrder::GrowCache { .. }
                    | LayoutOrder::ShrinkCache { .. }
            );
            return of_cache.then_some(Err(OrderRefusal::NotRedundant));
        };
        let device = |target: Target| {
            let is_flash = (self.members.count..self.loads.len()).contains(&target.0.into());
            is_flash.then(|| self.own_target(node, target))
        };
        let order = match order {
            LayoutOrder::CleanCache
            | LayoutOrder::GiveUpCache
            | LayoutOrder::CacheMode(_)
            | LayoutOrder::CacheAdmission(_)
            | LayoutOrder::GrowCache { .. }
            | LayoutOrder::ShrinkCache { .. } => order,
            LayoutOrder::Rebuild(target) => LayoutOrder::Rebuild(device(target)?),
            LayoutOrder::Drop(target) => LayoutOrder::Drop(device(target)?),
            LayoutOrder::Replace(target) => {
                let own = device(target)?;
                let outcome = self.order_node(cx, node, LayoutOrder::Replace(own));
                if outcome.is_ok() {
                    self.replaced(target);
                }
                return Some(outcome);
            }
            _ => return None,
        };
        Some(self.order_node(cx, node, order))
    }

    /// A target has another image: what the earlier one still has does not count.
    fn replaced(&mut self, target: Target) {
        let load = &mut self.loads[usize::from(target.0)];
        load.image = load.image.wrapping_add(1);
        (load.in_flight, load.background) = (0, 0);
        load.told = false;
    }

    fn order_leaves(
        &mut self,
        cx: &mut LayoutCx<'_>,
        order: LayoutOrder,
    ) -> Result<Ordered, OrderRefusal> {
        let leaves: Vec<usize> = self.leaves().map(|(node, _)| node).collect();
        let mut outcome = Ok(Ordered::Now);
        for node in leaves {
            let one = self.order_node(cx, place(node), order);
            outcome = outcome.and(one);
        }
        outcome
    }

    /// A mirror gets a target after its last one. Nothing of it is recorded before: the disk's descriptor names it already.
    fn add_member(&mut self, cx: &mut LayoutCx<'_>) -> Result<Ordered, OrderRefusal> {
        let more = self.members.count + 1;
        if self.spec != LayoutSpec::Mirror
            || self.spec.check(more).is_err()
            || self.cache().is_some()
        {
            return Err(OrderRefusal::Fixed);
        }
        self.order_node(cx, 0, LayoutOrder::AddMember)?;
        self.members.count = more;
        self.loads.push(Load::default());
        Ok(Ordered::Now)
    }

    /// A pool's disk gets the target after its last one as one more column.
    fn add_column(&mut self, cx: &mut LayoutCx<'_>) -> Result<Ordered, OrderRefusal> {
        let more = self.members.count + 1;
        if more > MAX_TARGETS {
            return Err(OrderRefusal::Fixed);
        }
        self.order_node(cx, 0, LayoutOrder::AddMember)?;
        self.members.count = more;
        self.loads.push(Load::default());
        Ok(Ordered::Now)
    }

    fn order_node(
        &mut self,
        cx: &mut LayoutCx<'_>,
        node: u8,
        order: LayoutOrder,
    ) -> Result<Ordered, OrderRefusal> {
        let (now, disk) = (cx.now, cx.disk);
        let (layout, mut cx) = self.hook(node, now, disk, cx.commands, cx.arena);
        layout.order(&mut cx, order)
    }

    /// Its state.
    pub fn report(&self) -> LayoutReport {
        let mut members: Vec<MemberReport> = Vec::new();
        let mut scrub: Option<ScrubReport> = None;
        for node in &self.nodes {
            if matches!(node.below, Below::Targets(_)) {
                node.layout.report(&mut members);
                if let Some(one) = node.layout.scrubbed() {
                    scrub = Some(scrub.map_or(one, |sum| sum.and(one)));
                }
            }
        }
        for (member, load) in members.iter_mut().zip(&self.loads) {
            member.in_flight = load.in_flight;
            member.faults = load.faults;
        }
        LayoutReport {
            layout: self.spec,
            members,
            scrub,
            waiting: self.nodes.iter().any(|node| node.layout.waits()),
            cache: self.nodes[usize::from(self.root)].layout.cached(),
            pool: self.nodes.first().and_then(|node| node.layout.pooled()),
        }
    }
}

impl Tree {
    /// Finds more of what may differ between two generations of a pool's disk.
    pub(crate) fn find_changes(
        &self,
        from: Generation,
        to: Generation,
        changes: &mut Changes,
    ) -> Option<Searched> {
        let node = self.nodes.first()?;
        node.layout.find_changes(from, to, changes)
    }

    /// Appends the next part of the state of the cache's policy: some `most` bytes. None: there is no cache that is open.
    pub(crate) fn export_policy(&self, most: usize, out: &mut Vec<u8>) -> Option<Exported> {
        let root = self.nodes.get(usize::from(self.root))?;
        root.layout.export_policy(most, out)
    }
}

/// What is due.
pub(crate) enum Due {
    Tick,
    Hung(Target),
}

impl ScrubReport {
    /// Two layouts' scrubs as one.
    fn and(self, other: ScrubReport) -> ScrubReport {
        ScrubReport {
            running: self.running || other.running,
            compared: self.compared + other.compared,
            to_compare: self.to_compare + other.to_compare,
            different: self.different + other.different,
            repaired: self.repaired + other.repaired,
            unreadable: self.unreadable + other.unreadable,
            first: self.first.or(other.first),
        }
    }
}

/// The same context, borrowed for shorter.
fn reborrow<'b>(cx: &'b mut LayoutCx<'_>) -> LayoutCx<'b> {
    LayoutCx {
        now: cx.now,
        disk: cx.disk,
        node: cx.node,
        loads: cx.loads,
        commands: cx.commands,
        arena: cx.arena,
    }
}

/// A small number in the type that names targets and nodes.
fn place(number: usize) -> u8 {
    u8::try_from(number).expect("there are at most MAX_TARGETS targets, and fewer layouts")
}

const _: () = assert!(DATA_AT >= 3 * BLOCK as u64, "a label and two states fit");
