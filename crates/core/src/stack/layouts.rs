//! The passage of I/Os through a disk's layouts, below its filters.
//!
//! An I/O that leaves the filters is mapped, layout by layout, until it is with a target or a layout has taken it. What a
//! layout asks for is a command in the stack's queue. Layouts never call each other.
//!
//! # Always true
//! - each target's load counts the I/Os that it has been given
//! - a layout is asked once about each failure of an I/O that it mapped to one target

use super::{Inside, Stack, StackCx, StackExit, entering, is_gone, level_u8};
use crate::effect::Effect;
use crate::filter::{IN_LAYOUT, Io, Origin, Way};
use crate::iocontrol::Cost;
use crate::layout::cache::policy::Exported;
use crate::layout::pool::{Changes, Generation, Searched};
use crate::layout::tree::{AtOnce, Due};
use crate::layout::{
    BlockIo, BlockOutcome, CacheChange, Layout, LayoutCommand, LayoutCx, LayoutIo, LayoutOrder,
    LayoutReport, LayoutSpec, Map, Members, OrderRefusal, Ordered, Refusal, SubIo, TREE, Target,
    Tree,
};
use crate::request::{Data, Fault, Flags, IoId, Op, Outcome, Request, Token};
use alloc::boxed::Box;
use alloc::vec::Vec;

impl Stack {
    /// Opens the layouts, if there are any. Returns whether requests wait for [`Stack::take_opened`].
    pub(crate) fn open(&mut self, cx: &mut StackCx<'_>) -> bool {
        let has_layouts = self.inside.layout.is_some();
        cx.with_tree(&mut self.inside, Tree::open);
        has_layouts
    }

    /// A disk of one image has nothing to open.
    pub(crate) fn opened_at_once(&mut self) {
        self.inside.opened = Some(Ok(()));
    }

    /// How opening the layouts ended, once.
    pub(crate) fn take_opened(&mut self) -> Option<Result<(), Refusal>> {
        // A cache that is refused is removed once it has no I/O under way.
        let ends = self.inside.new_cache && matches!(self.inside.opened, Some(Err(_)));
        if ends && self.inside.subs > 0 {
            return None;
        }
        self.inside.opened.take()
    }

    /// Closes the layouts. Returns whether nothing of them is under way any more.
    pub(crate) fn close(&mut self, cx: &mut StackCx<'_>) -> bool {
        if !core::mem::replace(&mut self.inside.closed, true) {
            cx.for_each_layout(&mut self.inside, |layout, cx| layout.close(cx));
        }
        self.must_end(cx)
    }

    /// Whether nothing of the layouts is under way. Otherwise somebody waits for what is in the background.
    fn must_end(&mut self, cx: &mut StackCx<'_>) -> bool {
        if self.inside.subs > 0 {
            cx.hurry();
        }
        self.inside.subs == 0
    }

    /// Ends the layouts' work in the background. Returns whether nothing of them is under way any more.
    pub(crate) fn pause(&mut self, cx: &mut StackCx<'_>) -> bool {
        self.inside.paused = true;
        cx.for_each_layout(&mut self.inside, |layout, cx| layout.pause(cx));
        self.must_end(cx)
    }

    /// Replaces the layouts while the stack is idle. Returns whether requests wait until the new ones have opened.
    pub(crate) fn relay(&mut self, cx: &mut StackCx<'_>, tree: Option<Tree>) -> bool {
        assert!(
            self.is_quiet() && self.inside.subs == 0,
            "layouts change only while nothing is below the filters"
        );
        self.inside.layout = tree.map(Box::new);
        (self.inside.closed, self.inside.paused) = (false, false);
        self.note_timed();
        self.open(cx)
    }

    fn note_timed(&mut self) {
        let mut layers = self.inside.layers.iter();
        let layers = layers.any(|layer| layer.filter.timed());
        let tree = self.inside.layout.as_ref();
        self.inside.timed = layers || tree.is_some_and(|tree| tree.is_timed());
    }

    /// Adds a flash cache, removes it, or changes what is below it, while the stack is idle; other layouts stay. Returns whether
    /// requests wait until layouts have opened. The others go on with [`Stack::resume`].
    pub(crate) fn change_cache(&mut self, cx: &mut StackCx<'_>, change: CacheChange) -> bool {
        assert!(
            self.is_quiet() && self.inside.subs == 0,
            "the cache changes only while nothing is below the filters"
        );
        match change {
            CacheChange::Keep => return false,
            CacheChange::EndMove => {
                cx.with_tree(&mut self.inside, |tree, _| tree.end_move());
                return false;
            }
            CacheChange::AddMember => {
                cx.with_tree(&mut self.inside, Tree::insert_member);
                return false;
            }
            CacheChange::BeginMove => cx.with_tree(&mut self.inside, Tree::begin_move),
            CacheChange::Remove => {
                let tree = self.inside.layout.as_mut();
                if tree.is_some_and(|tree| !tree.remove_cache()) {
                    self.inside.layout = None;
                }
                self.note_timed();
                return false;
            }
            CacheChange::Add { cache, timeout } => {
                self.inside.new_cache = true;
                match &self.inside.layout {
                    None => {
                        let members = Members {
                            timeout,
                            ..Members::new(cache.disk, cache.size, 1)
                        };
                        let tree = Tree::cached(LayoutSpec::Plain, members, *cache);
                        self.inside.layout = Some(Box::new(tree));
                        self.open(cx);
                    }
                    Some(_) => cx.with_tree(&mut self.inside, |tree, cx| {
                        tree.put_cache(cx, *cache);
                    }),
                }
            }
        }
        self.note_timed();
        true
    }

    /// Whether the layouts that have opened are those of a cache that was added, once. The disk can do without it.
    pub(crate) fn take_new_cache(&mut self) -> bool {
        core::mem::take(&mut self.inside.new_cache)
    }

    /// Reports a block to its layout. Returns whether there was such an I/O.
    pub(crate) fn block_done(
        &mut self,
        cx: &mut StackCx<'_>,
        id: IoId,
        outcome: BlockOutcome,
    ) -> bool {
        let Some((node, tag)) = cx.end_block(
            &mut self.inside,
            id,
            outcome.as_ref().map(|_| ()).map_err(|f| *f),
        ) else {
            return false;
        };
        if node == TREE {
            cx.with_tree(&mut self.inside, |tree, cx| {
                tree.label_done(cx, tag, outcome);
            });
            return true;
        }
        let (layout, mut layout_cx) = self.inside.hook(&mut cx.exit, node);
        layout.block_done(&mut layout_cx, tag, outcome);
        cx.run(&mut self.inside);
        true
    }

    /// Reports a checksum to its layout. Returns whether there was such an I/O.
    pub(crate) fn summed(&mut self, cx: &mut StackCx<'_>, id: IoId, sum: u32) -> bool {
        let Some(Origin::Layout { node, tag, .. }) = cx.ios.get(id).map(|io| io.origin) else {
            return false;
        };
        cx.ios.remove(id);
        self.inside.subs -= 1;
        let (layout, mut layout_cx) = self.inside.hook(&mut cx.exit, node);
        layout.summed(&mut layout_cx, tag, sum);
        cx.run(&mut self.inside);
        true
    }

    /// The arena has room again.
    pub(crate) fn arena_ready(&mut self, cx: &mut StackCx<'_>) {
        cx.for_each_layout(&mut self.inside, |layout, cx| layout.arena_ready(cx));
    }

    /// The disk has another size.
    pub(crate) fn resize(&mut self, cx: &mut StackCx<'_>, size: u64) {
        cx.with_tree(&mut self.inside, |tree, cx| tree.resize(cx, size));
    }

    /// The layouts' work in the background goes on after [`Stack::pause`].
    pub(crate) fn resume(&mut self, cx: &mut StackCx<'_>) {
        self.inside.paused = false;
        cx.for_each_layout(&mut self.inside, |layout, cx| layout.resume(cx));
    }

    /// Whether the layouts' work in the background waits for [`Stack::resume`].
    pub(crate) fn is_paused(&self) -> bool {
        self.inside.paused
    }

    /// The disk is being detached: the layouts let nothing wait for what may never come.
    pub(crate) fn detaching(&mut self, cx: &mut StackCx<'_>) {
        self.inside.detaching = true;
        cx.for_each_layout(&mut self.inside, |layout, cx| layout.detaching(cx));
    }

    /// The clients of these requests have disconnected: none of these waits for a lost member.
    pub(super) fn abandon_layouts(&mut self, cx: &mut StackCx<'_>, tokens: &[Token]) {
        let nodes = self.inside.layout.as_ref().map_or(0, |tree| tree.nodes());
        let mut gone = Vec::new();
        for nth in 0..nodes {
            let node = self.inside.nth(nth);
            let (layout, _) = self.inside.hook(&mut cx.exit, node);
            layout.taken(&mut gone);
            let (layers, ios) = (&self.inside.layers, &*cx.ios);
            gone.retain(|id| is_gone(*id, tokens, layers, ios));
            let (layout, mut layout_cx) = self.inside.hook(&mut cx.exit, node);
            layout.abandon(&mut layout_cx, &gone);
            cx.run(&mut self.inside);
            gone.clear();
        }
    }

    /// Carries out an order.
    ///
    /// # Errors
    /// There is no layout, or it does not do that, or not now.
    pub(crate) fn order(
        &mut self,
        cx: &mut StackCx<'_>,
        order: LayoutOrder,
    ) -> Result<Ordered, OrderRefusal> {
        let mut outcome = Err(OrderRefusal::NotRedundant);
        cx.with_tree(&mut self.inside, |tree, cx| {
            outcome = tree.order(cx, order);
        });
        outcome
    }

    /// Whether there are layouts.
    pub(crate) fn has_layout(&self) -> bool {
        self.inside.layout.is_some()
    }

    /// The state of the layouts, if there are any.
    pub(crate) fn layout_report(&self) -> Option<LayoutReport> {
        self.inside.layout.as_ref().map(|tree| tree.report())
    }

    /// Finds more of what may differ between two generations of a pool's disk.
    pub(crate) fn find_changes(
        &self,
        from: Generation,
        to: Generation,
        changes: &mut Changes,
    ) -> Option<Searched> {
        let layout = self.inside.layout.as_ref()?;
        layout.find_changes(from, to, changes)
    }

    /// Appends the next part of the state of the cache's policy. None: there is no cache that is open.
    pub(crate) fn export_policy(&self, most: usize, out: &mut Vec<u8>) -> Option<Exported> {
        self.inside.layout.as_ref()?.export_policy(most, out)
    }

    /// Passes the I/Os on to the layouts that the disk's limits delayed until now.
    pub(crate) fn pass_limits(&mut self, cx: &mut StackCx<'_>) {
        while let Some(members) = &mut cx.exit.qos.members
            && let Some(id) = members.next_passed(cx.exit.now)
        {
            let io = cx.ios.inside_mut(id);
            io.parked = None;
            if cx.exit.sends_at_once(&mut self.inside, io) {
                continue;
            }
            let offset = io.offset;
            let root = self.inside.root();
            cx.map(&mut self.inside, id, root, offset);
            cx.run(&mut self.inside);
        }
    }

    /// An I/O that the scheduler had queued was given to its target.
    pub(crate) fn dispatched(&mut self, now: crate::units::Time, io: &mut Io) {
        if let Some(tree) = &mut self.inside.layout {
            tree.begun(io, now);
        }
    }
}

impl Inside {
    /// The node above all others.
    fn root(&self) -> u8 {
        self.layout.as_deref().map_or(0, Tree::root)
    }

    /// A node, in order from the one above all others.
    fn nth(&self, nth: u8) -> u8 {
        self.layout.as_deref().map_or(nth, |tree| tree.nth(nth))
    }

    /// A layout, and the context of one of its hooks.
    ///
    /// # Panics
    /// If the disk is one image.
    pub(super) fn hook<'a>(
        &'a mut self,
        exit: &'a mut StackExit<'_>,
        node: u8,
    ) -> (&'a mut dyn Layout, LayoutCx<'a>) {
        let tree = self.layout.as_deref_mut().expect("the disk has layouts");
        tree.hook(
            node,
            exit.now,
            exit.disk,
            &mut self.layout_commands,
            exit.arena,
        )
    }
}

impl StackExit<'_> {
    /// Whether an I/O that has passed all filters goes on to the layouts; otherwise it waits for the disk's limits.
    #[inline(always)]
    fn passes_limits(&mut self, io: &mut Io, level: u8) -> bool {
        io.offered = self.now;
        let members = self.qos.members.as_mut();
        if members.is_none_or(|members| members.passes_limits(self.now, io)) {
            return true;
        }
        io.parked = Some((level, Way::Down));
        self.waits = true;
        false
    }

    /// Gives an I/O to its target if the layout above all others has nothing to do with it but to say where that is.
    /// Returns whether it did.
    #[inline(always)]
    fn sends_at_once(&mut self, inside: &mut Inside, io: &mut Io) -> bool {
        let level = level_u8(inside.layers.len());
        let Some(tree) = inside.layout.as_deref_mut() else {
            return false;
        };
        let (target, at) = match tree.at_once(io) {
            AtOnce::Place(target, at) => (target, at),
            AtOnce::Asked => return false,
            AtOnce::Cached => return io.op == Op::Read && self.hit(inside, io),
        };
        (io.target, io.at, io.node) = (target, at, tree.root());
        tree.placed(io);
        self.offer_target(io, level);
        if io.parked.is_none() {
            tree.begun(io, self.now);
        }
        true
    }

    /// Gives an I/O to what a layout calls a target, unless that is a layout, which it returns.
    #[inline]
    fn place(
        &mut self,
        inside: &mut Inside,
        io: &mut Io,
        node: u8,
        target: Target,
        offset: u64,
    ) -> Option<u8> {
        let level = level_u8(inside.layers.len());
        let tree = inside.layout.as_deref_mut().expect("the disk has layouts");
        if node == 0 || io.tries > 0 {
            // A layout below the first one may have the I/O for as long as it likes.
            tree.placed(io);
        }
        let target = match tree.below(node, target) {
            Ok(target) => target,
            Err(child) => return Some(child),
        };
        (io.target, io.at, io.node) = (target, offset + tree.data_at(target), node);
        self.offer_target(io, level);
        if io.parked.is_none() {
            tree.begun(io, self.now);
        }
        None
    }

    /// Starts an I/O on its target, or queues it in the scheduler of the target's datastore.
    #[inline(always)]
    fn offer_target(&mut self, io: &mut Io, level: u8) {
        (io.cost, io.times) = (Cost(0), 0);
        let (now, target) = (self.now, io.target);
        if let Some(members) = &mut self.qos.members
            && !members.may_start(self.schedulers, now, target, io)
        {
            io.parked = Some((level, Way::Down));
            self.waits = true;
            return;
        }
        self.begin(io);
    }
}

impl StackCx<'_> {
    /// Calls the tree, if there is one, and carries out what it asks for.
    fn with_tree(&mut self, inside: &mut Inside, act: impl FnOnce(&mut Tree, &mut LayoutCx<'_>)) {
        let Some(tree) = inside.layout.as_deref_mut() else {
            return;
        };
        let mut cx = LayoutCx {
            now: self.exit.now,
            disk: self.exit.disk,
            node: TREE,
            loads: &[],
            commands: &mut inside.layout_commands,
            arena: self.exit.arena,
        };
        act(tree, &mut cx);
        self.run(inside);
    }

    /// Calls a hook of each layout, and carries out what they ask for.
    fn for_each_layout(
        &mut self,
        inside: &mut Inside,
        hook: impl Fn(&mut dyn Layout, &mut LayoutCx<'_>),
    ) {
        let nodes = inside.layout.as_ref().map_or(0, |tree| tree.nodes());
        for nth in 0..nodes {
            let node = inside.nth(nth);
            let (layout, mut cx) = inside.hook(&mut self.exit, node);
            hook(layout, &mut cx);
            self.run(inside);
        }
    }

    pub(super) fn tick_layouts(&mut self, inside: &mut Inside) {
        let now = self.exit.now;
        while let Some((node, due)) = inside.layout.as_mut().and_then(|tree| tree.due(now)) {
            let (layout, mut cx) = inside.hook(&mut self.exit, node);
            match due {
                Due::Hung(target) => {
                    layout.hung(&mut cx, target);
                    self.with_tree(inside, |tree, cx| tree.give_up_label(cx, node, target));
                }
                Due::Tick => {
                    layout.tick(&mut cx);
                    assert!(
                        layout.deadline().is_none_or(|at| at > now),
                        "a tick moves the deadline of the layout `{}`",
                        layout.name()
                    );
                }
            }
            self.run(inside);
        }
    }

    /// Maps I/Os that have passed the filters. Leaves `ids` empty.
    #[cold]
    #[inline(never)]
    pub(super) fn map_all(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>) {
        let (bottom, root) = (level_u8(inside.layers.len()), inside.root());
        for &id in &*ids {
            let io = self.ios.inside_mut(id);
            if !self.exit.passes_limits(io, bottom) || self.exit.sends_at_once(inside, io) {
                continue;
            }
            let offset = io.offset;
            if let Some((node, map)) = map_io(&mut self.exit, inside, io, root, offset) {
                self.mapped(inside, id, node, map);
            }
        }
        ids.clear();
    }

    /// Lets a layout map an I/O, and those below it, until it is with a target or a layout has taken it.
    fn map(&mut self, inside: &mut Inside, id: IoId, node: u8, offset: u64) {
        let io = self.ios.inside_mut(id);
        if let Some((node, map)) = map_io(&mut self.exit, inside, io, node, offset) {
            self.mapped(inside, id, node, map);
        }
    }

    /// Does what a layout decided about an I/O.
    fn mapped(&mut self, inside: &mut Inside, id: IoId, node: u8, map: Map) {
        match map {
            Map::One { target, offset } => self.route(inside, id, node, target, offset),
            Map::Issued => self.take(id),
            Map::Done(outcome) => {
                self.take(id);
                let command = LayoutCommand::Answer { io: id, outcome };
                inside.layout_commands.push_back((node, command));
            }
        }
    }

    /// A layout has an I/O, as a datastore would.
    pub(super) fn take(&mut self, id: IoId) {
        let io = self.ios.inside_mut(id);
        io.parked = Some((IN_LAYOUT, Way::Down));
        io.issued = self.exit.now;
    }

    /// Passes an I/O on to what a layout calls a target.
    fn route(&mut self, inside: &mut Inside, id: IoId, node: u8, target: Target, offset: u64) {
        let io = self.ios.inside_mut(id);
        if let Some(child) = self.exit.place(inside, io, node, target, offset) {
            self.map(inside, id, child, offset);
        }
    }

    /// Passes I/Os that targets have completed through the layouts: filters' and the layouts' own. Guests' have passed before.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_layouts(
        &mut self,
        inside: &mut Inside,
        filters: &mut Vec<IoId>,
        own: &mut Vec<IoId>,
    ) {
        self.leave_targets(inside, filters);
        self.leave_targets(inside, own);
        self.return_to_layouts(inside, own);
    }

    /// Counts I/Os that targets have completed. Asks layouts about those that failed or were not read well.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_targets(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>) {
        let tree = inside.layout.as_deref_mut().expect("the disk has layouts");
        let (mut failed, mut marks) = (false, 0);
        for id in &*ids {
            let io = self.ios.inside_mut(*id);
            tree.ended(io, self.exit.now, io.outcome);
            failed |= io.outcome.is_err();
            marks |= io.mark;
        }
        let has_fence = tree.has_fence();
        if failed {
            self.ask_of_failed(inside, ids);
        }
        if marks != 0 {
            self.reads_badly(inside, ids);
        }
        if has_fence {
            self.pass_fence(inside);
        }
    }

    /// Asks layouts about the I/Os of these that failed, and leaves the others.
    #[cold]
    fn ask_of_failed(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>) {
        ids.retain(|&id| {
            let io = self.ios.inside_mut(id);
            // A layout gets the end of what it has sent itself.
            let own = matches!(io.origin, Origin::Layout { node, .. } if node == io.node);
            match io.outcome {
                Err(fault) if !own => self.ask(inside, id, fault),
                _ => return true,
            }
            false
        });
        self.run(inside);
    }

    /// Asks the layout that sent an I/O to a target what to do about its failure.
    fn ask(&mut self, inside: &mut Inside, id: IoId, fault: Fault) {
        let tree = inside.layout.as_deref().expect("the disk has layouts");
        let io = self.ios.inside_mut(id);
        io.outcome = Ok(());
        io.tries = io.tries.saturating_add(1);
        let (node, tries) = (io.node, io.tries);
        let of_layout = as_seen(io, io.at - tree.data_at(io.target));
        let mark = core::mem::take(&mut io.mark);
        if mark != 0 {
            return self.read_badly(inside, id, mark, Some(fault));
        }
        let own = tree.own_target(node, io.target);
        let (layout, mut cx) = inside.hook(&mut self.exit, node);
        let map = layout.failed(&mut cx, &of_layout, own, fault, tries);
        self.mapped(inside, id, node, map);
    }

    /// Reports ended sub-I/Os to their layouts, and carries out what these ask for.
    fn return_to_layouts(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>) {
        for id in ids.drain(..) {
            self.end(inside, id);
            self.run(inside);
        }
    }

    /// Executes a command of a layout.
    pub(super) fn obey(&mut self, inside: &mut Inside, node: u8, command: LayoutCommand) {
        let disk = self.exit.disk;
        match command {
            LayoutCommand::Issue { tag, sub } => self.issue(inside, node, tag, sub),
            LayoutCommand::Send { io, target, offset } => {
                let parked = self.unpark(io);
                assert!(parked, "a layout sends what it has taken");
                self.route(inside, io, node, target, offset);
            }
            LayoutCommand::Answer { io, outcome } => self.answer(inside, io, outcome),
            LayoutCommand::ReadBlock {
                tag,
                target,
                offset,
                copy,
            } => {
                if let Some(child) = layout_below(inside, node, target) {
                    let io = BlockIo {
                        node,
                        tag,
                        offset,
                        copy,
                        block: None,
                    };
                    return self.give_block(inside, child, io);
                }
                let target = global(inside, node, target);
                let io = self.own_io(inside, node, tag, Op::Read, target);
                self.exit.out.push(Effect::ReadBlock {
                    disk,
                    target,
                    io,
                    offset,
                });
            }
            LayoutCommand::WriteBlock {
                tag,
                target,
                offset,
                block,
            } => {
                if let Some(child) = layout_below(inside, node, target) {
                    let io = BlockIo {
                        node,
                        tag,
                        offset,
                        copy: 0,
                        block: Some(block),
                    };
                    return self.give_block(inside, child, io);
                }
                let target = global(inside, node, target);
                let io = self.own_io(inside, node, tag, Op::Write, target);
                self.exit.out.push(Effect::WriteBlock {
                    disk,
                    target,
                    io,
                    offset,
                    block,
                });
            }
            LayoutCommand::BlockEnded { node, tag, outcome } => {
                inside.subs -= 1;
                let (layout, mut cx) = inside.hook(&mut self.exit, node);
                layout.block_done(&mut cx, tag, outcome);
            }
            LayoutCommand::Copy { from, to, len } => {
                self.exit.out.push(Effect::Copy { from, to, len });
            }
            LayoutCommand::Zero { to, len } => self.exit.out.push(Effect::Zero { to, len }),
            LayoutCommand::Sum { tag, data, len } => {
                let io = self.insert_own(inside, node, tag, Op::Read);
                self.exit.out.push(Effect::Sum {
                    disk,
                    io,
                    data,
                    len,
                });
            }
            LayoutCommand::Fence => {
                let tree = inside.layout.as_deref_mut().expect("the disk has layouts");
                tree.fence(node);
                self.pass_fence(inside);
            }
            LayoutCommand::Hurry => self.hurry(),
            LayoutCommand::CheckLabel { target } => {
                self.with_tree(inside, |tree, cx| tree.check_label(cx, node, target));
            }
            LayoutCommand::Ordered(outcome) => {
                self.exit.out.push(Effect::LayoutOrdered { disk, outcome });
            }
            LayoutCommand::Opened(outcome) => self.layout_opened(inside, node, outcome),
            LayoutCommand::Notice(notice) => {
                let tree = inside.layout.as_deref().expect("the disk has layouts");
                let notice = Box::new(tree.notice(node, notice));
                self.exit.out.push(Effect::LayoutNotice { disk, notice });
            }
        }
    }

    /// Gives a block to the layout below the one that it is of.
    fn give_block(&mut self, inside: &mut Inside, node: u8, io: BlockIo) {
        // It may be under way without any I/O on a target.
        inside.subs += 1;
        let (layout, mut cx) = inside.hook(&mut self.exit, node);
        layout.block(&mut cx, io);
    }

    /// Reports a fence that is complete to its layout.
    pub(super) fn pass_fence(&mut self, inside: &mut Inside) {
        let tree = inside.layout.as_deref_mut();
        if let Some(node) = tree.and_then(Tree::take_fenced) {
            let (layout, mut cx) = inside.hook(&mut self.exit, node);
            layout.fenced(&mut cx);
            self.run(inside);
        }
    }

    /// Takes what the disk has queued in the background out of it.
    fn hurry(&mut self) {
        let Some(members) = &mut self.exit.qos.members else {
            return;
        };
        let mut hurried = Vec::new();
        members.hurry(self.exit.schedulers, self.exit.now, &mut hurried);
        self.exit.waits |= !hurried.is_empty();
        for id in hurried {
            if let Origin::Layout { background, .. } = &mut self.ios.inside_mut(id).origin {
                *background = false;
            }
        }
    }

    fn layout_opened(&mut self, inside: &mut Inside, node: u8, outcome: Result<(), Refusal>) {
        if node == TREE {
            inside.opened = Some(outcome);
            return;
        }
        self.with_tree(inside, |tree, cx| tree.node_opened(cx, node, outcome));
    }

    /// Sends a sub-I/O to its target.
    fn issue(&mut self, inside: &mut Inside, node: u8, tag: u64, sub: SubIo) {
        inside.subs += 1;
        let request = Request {
            op: sub.op,
            flags: sub.flags,
            offset: sub.offset,
            len: sub.len,
            data: sub.data,
            arrived: self.exit.now,
        };
        let background = sub.background;
        let origin = Origin::Layout {
            node,
            tag,
            background,
        };
        let now = self.exit.now;
        let id = self
            .ios
            .insert_with(|id| entering(now, id, origin, &request, false));
        self.route(inside, id, node, sub.target, sub.offset);
    }

    /// Names an I/O for a block of a layout's own.
    fn own_io(&mut self, inside: &mut Inside, node: u8, tag: u64, op: Op, target: Target) -> IoId {
        let id = self.insert_own(inside, node, tag, op);
        let io = self.ios.inside_mut(id);
        io.target = target;
        if let Some(tree) = inside.layout.as_deref_mut() {
            tree.begun(io, self.exit.now);
        }
        id
    }

    fn insert_own(&mut self, inside: &mut Inside, node: u8, tag: u64, op: Op) -> IoId {
        inside.subs += 1;
        let request = Request {
            op,
            flags: Flags::NONE,
            offset: 0,
            len: 0,
            data: Data::NONE,
            arrived: self.exit.now,
        };
        let origin = Origin::Layout {
            node,
            tag,
            background: false,
        };
        let now = self.exit.now;
        self.ios
            .insert_with(|id| entering(now, id, origin, &request, false))
    }

    /// A block of a layout's own has ended. Returns the layout and its tag.
    fn end_block(&mut self, inside: &mut Inside, id: IoId, outcome: Outcome) -> Option<(u8, u64)> {
        let Origin::Layout { node, tag, .. } = self.ios.get(id)?.origin else {
            return None;
        };
        let mut io = self.ios.remove(id)?;
        inside.subs -= 1;
        if let Some(tree) = inside.layout.as_deref_mut() {
            tree.ended(&mut io, self.exit.now, outcome);
        }
        Some((node, tag))
    }

    fn unpark(&mut self, id: IoId) -> bool {
        let io = self.ios.get_mut(id);
        let io = io.expect("an I/O that a layout has taken is inside: it was not answered before");
        matches!(io.parked.take(), Some((IN_LAYOUT, _)))
    }

    /// Passes up an I/O that a layout has answered.
    fn answer(&mut self, inside: &mut Inside, id: IoId, outcome: Outcome) {
        let parked = self.unpark(id);
        assert!(parked, "a layout answers what it has taken");
        let io = self.ios.inside_mut(id);
        io.outcome = match (outcome, io.origin) {
            // To a client, `Gone` says that the disk is being detached.
            (Err(Fault::Gone), Origin::Guest(_) | Origin::Filter { .. }) if !inside.detaching => {
                Err(Fault::Io)
            }
            (outcome, _) => outcome,
        };
        io.returned = self.exit.now;
        let tree = inside.layout.as_deref_mut();
        let has_fence = tree.is_some_and(|tree| {
            tree.left(io);
            tree.has_fence()
        });
        let bottom = inside.layers.len();
        self.up_alone(inside, id, bottom);
        if has_fence {
            self.pass_fence(inside);
        }
    }
}

/// The layout that a layout calls this target, if it is one.
fn layout_below(inside: &Inside, node: u8, target: Target) -> Option<u8> {
    let tree = inside.layout.as_deref().expect("the disk has layouts");
    match node {
        TREE => None,
        _ => tree.below(node, target).err(),
    }
}

fn global(inside: &Inside, node: u8, target: Target) -> Target {
    let tree = inside.layout.as_deref().expect("the disk has layouts");
    tree.global(node, target)
}

/// Lets a layout map an I/O, and those below it, until it is with a target. Otherwise returns what which layout decided.
#[inline]
fn map_io(
    exit: &mut StackExit<'_>,
    inside: &mut Inside,
    io: &mut Io,
    mut node: u8,
    mut offset: u64,
) -> Option<(u8, Map)> {
    loop {
        let seen = as_seen(io, offset);
        let (layout, mut cx) = inside.hook(exit, node);
        let (target, at) = match layout.map(&mut cx, &seen) {
            Map::One { target, offset } => (target, offset),
            map => return Some((node, map)),
        };
        (node, offset) = (exit.place(inside, io, node, target, at)?, at);
    }
}

/// An I/O as a layout sees it, at this offset in it.
pub(super) fn as_seen(io: &Io, offset: u64) -> LayoutIo {
    LayoutIo {
        id: io.id,
        op: io.op,
        flags: io.flags,
        offset,
        len: io.len,
        data: io.data,
        background: io.is_background(),
    }
}
