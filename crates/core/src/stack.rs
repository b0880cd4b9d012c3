//! The filter stack of one disk: it passes I/Os down the filters to the datastore, and completions up to the guest.
//!
//! The shard collects the I/Os of one moment. `Stack::gather` takes a request that the gate admitted, `Stack::finish` an
//! I/O that the datastore completed. `Stack::flow` then moves them all: each layer gets the whole [`Batch`] at once.
//! Filters never call each other. All I/Os move in the flat loops of `StackCx`. What a filter decides about a single I/O
//! (complete, defer, resume, an I/O of its own) is queued until the batch has passed.
//!
//! # Always true
//! - each I/O completes exactly once, and its slab entry is freed at the same moment (asserted in `end` and `answer_guests`)
//! - after `flow` no gathered I/O, diverted I/O or command is left
//! - `in_flight` counts the guest's I/Os, `lower` the filters' own; while both are zero the stack is idle, and no I/O of
//!   the disk is queued in the scheduler
//!
//! # Picture
//! ```text
//!   guest ──> gather ┌──────────┐ complete ──> answer
//!                  0 │  stats   │
//!                  1 │  fault   │ ── lower ─┐   a filter's own I/O enters below it
//!                  2 │  null    │ <─────────┘
//!                    └──────────┘
//!                       offer ──────> queued in the scheduler (I/O control)
//!                         │             │ dispatch
//!                  Effect::Start <──────┘     finish
//! ```

use crate::curve::{Curve, Of, Sampler};
use crate::effect::{ControlId, Effect};
use crate::filter::batch::Diverted;
use crate::filter::stats::Pulse;
use crate::filter::{
    Batch, Command, Cx, Filter, FilterKey, FilterReport, GATHERED, Io, Lower, MAX_FILTERS, Origin,
    Verdict, Way, Why,
};
use crate::iocontrol::Cost;
use crate::layout::{Arena, LayoutCommand, Refusal, Target, Tree};
use crate::qos::{DiskQos, Schedulers, scheduler_of};
use crate::request::{DiskId, Fault, IoId, Op, Outcome, Request, Token};
use crate::slab::Slab;
use crate::units::Time;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

mod checked;
mod layouts;

/// One position of a new arrangement of filters.
pub enum Place {
    /// The existing filter with this key, with its state.
    Keep(FilterKey),
    /// A new filter.
    New(FilterKey, Box<dyn Filter>),
}

/// A disk's filters, top first, and the I/Os inside them.
pub struct Stack {
    /// By operation: the end offset of the guest's last I/O.
    ends: [u64; Op::ALL.len()],
    /// Sees guests' requests, for the miss-ratio curve.
    sampler: Sampler,
    /// Guests' I/Os that enter at the top.
    entering: Vec<IoId>,
    /// Guests' I/Os that the datastore completed.
    leaving: Vec<IoId>,
    /// Filters' own I/Os that the datastore completed.
    lower_leaving: Vec<IoId>,
    /// The layout's sub-I/Os that a datastore completed.
    sub_leaving: Vec<IoId>,
    inside: Inside,
}

/// The filters and the I/Os between them. Separate from the gathered I/Os, so that a batch need not be moved.
struct Inside {
    layers: Vec<Layer>,
    /// What stands below the filters; `None` for a disk that is one image.
    layout: Option<Box<Tree>>,
    /// A reused vector for an I/O that moves alone.
    alone: Vec<IoId>,
    /// I/Os that filters took out of batches.
    diverted: VecDeque<Diverted>,
    commands: VecDeque<Command>,
    /// Commands of layouts, with the node that gave each.
    layout_commands: VecDeque<(u8, LayoutCommand)>,
    /// Guests' I/Os between their entry and their answer.
    in_flight: usize,
    /// Filters' own I/Os under way.
    lower: usize,
    /// The layout's sub-I/Os under way.
    subs: usize,
    /// Whether any filter has deadlines.
    timed: bool,
    /// How the layout's opening ended, until the shard takes it.
    opened: Option<Result<(), Refusal>>,
    /// Whether the layout was closed.
    closed: bool,
    /// Whether the layouts begin nothing in the background.
    paused: bool,
    /// Whether the disk is being detached.
    detaching: bool,
    /// Whether a cache was added that has not opened.
    new_cache: bool,
}

struct Layer {
    key: FilterKey,
    filter: Box<dyn Filter>,
}

impl Stack {
    /// A stack of new filters, top first.
    ///
    /// # Panics
    /// With more than [`MAX_FILTERS`] (the plan refuses them before).
    pub fn new(filters: Vec<(FilterKey, Box<dyn Filter>)>) -> Stack {
        let places = filters
            .into_iter()
            .map(|(key, filter)| Place::New(key, filter))
            .collect();
        let mut stack = Stack {
            ends: [u64::MAX; Op::ALL.len()],
            sampler: Sampler::new(),
            entering: Vec::new(),
            leaving: Vec::new(),
            lower_leaving: Vec::new(),
            sub_leaving: Vec::new(),
            inside: Inside {
                layers: Vec::new(),
                layout: None,
                alone: Vec::new(),
                diverted: VecDeque::new(),
                commands: VecDeque::new(),
                layout_commands: VecDeque::new(),
                in_flight: 0,
                lower: 0,
                subs: 0,
                timed: false,
                opened: None,
                closed: false,
                paused: false,
                detaching: false,
                new_cache: false,
            },
        };
        stack.arrange(places);
        stack
    }

    /// The same stack over layouts.
    #[must_use]
    pub fn over(mut self, tree: Tree) -> Stack {
        self.inside.timed = self.inside.timed || tree.is_timed();
        self.inside.layout = Some(Box::new(tree));
        self
    }

    /// The same stack without a miss-ratio curve.
    #[must_use]
    pub fn without_curve(mut self) -> Stack {
        self.sampler = Sampler::off();
        self
    }

    /// Guests' I/Os between their entry and their answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.inside.in_flight
    }

    /// Whether any filter has deadlines.
    pub(crate) fn is_timed(&self) -> bool {
        self.inside.timed
    }

    /// Whether no I/O is inside, neither of the guest nor of a filter.
    pub(crate) fn is_quiet(&self) -> bool {
        self.inside.in_flight == 0 && self.inside.lower == 0
    }

    /// Applies the new arrangement and returns the removed filters.
    fn arrange(&mut self, places: Vec<Place>) -> Vec<Layer> {
        assert!(
            places.len() <= MAX_FILTERS,
            "a stack has at most {MAX_FILTERS} filters"
        );
        let mut old: Vec<Option<Layer>> = self.inside.layers.drain(..).map(Some).collect();
        for place in places {
            let layer = match place {
                Place::New(key, filter) => Layer { key, filter },
                Place::Keep(key) => {
                    let reused = old
                        .iter_mut()
                        .find(|l| l.as_ref().is_some_and(|l| l.key == key));
                    reused
                        .and_then(Option::take)
                        .expect("the old arrangement contains each reused filter once")
                }
            };
            self.inside.layers.push(layer);
        }
        let layout = self.inside.layout.as_ref();
        let layout = layout.is_some_and(|tree| tree.is_timed());
        self.inside.timed = layout || self.inside.layers.iter().any(|layer| layer.filter.timed());
        old.into_iter().flatten().collect()
    }

    /// Changes the filters while the stack is idle. Removed filters may still write to their side files.
    pub(crate) fn rearrange(
        &mut self,
        now: Time,
        disk: DiskId,
        places: Vec<Place>,
        out: &mut Vec<Effect>,
    ) {
        assert!(
            self.is_quiet(),
            "filters change only while no I/O is between them"
        );
        for mut gone in self.arrange(places) {
            gone.filter.retire(&mut Cx {
                now,
                disk,
                level: 0,
                commands: &mut self.inside.commands,
            });
            for command in self.inside.commands.drain(..) {
                if let Command::Side { buffer, .. } = command {
                    out.push(Effect::SideWrite {
                        disk,
                        filter: gone.key,
                        buffer,
                    });
                }
            }
        }
    }

    /// Makes the filters that are being removed resume the I/Os that they delay, top first: these pass the lower ones.
    pub(crate) fn release(&mut self, cx: &mut StackCx<'_>, stays: impl Fn(FilterKey) -> bool) {
        for level in 0..self.inside.layers.len() {
            let layer = &mut self.inside.layers[level];
            if !stays(layer.key) {
                let mut hook_cx = cx.exit.cx(level, &mut self.inside.commands);
                layer.filter.release(&mut hook_cx);
                cx.run(&mut self.inside);
            }
        }
    }

    /// Takes in a guest's request; `flow` passes it down.
    #[inline]
    pub(crate) fn gather(
        &mut self,
        now: Time,
        token: Token,
        request: &Request,
        ios: &mut Slab<Io>,
    ) {
        self.inside.in_flight += 1;
        let end = &mut self.ends[request.op.index()];
        let follows = request.offset == *end;
        *end = request.offset.wrapping_add(request.len);
        if self.sampler.passes(request.op, request.offset, request.len) {
            self.sampler
                .sample(now, request.op, request.offset, request.len);
        }
        let origin = Origin::Guest(token);
        let id = ios.insert_with(|id| entering(now, id, origin, request, follows));
        self.entering.push(id);
    }

    /// Takes in a completion of the datastore; `flow` passes it up. `None` if there is no such I/O (a stray completion).
    #[inline]
    pub(crate) fn finish<'a>(
        &mut self,
        now: Time,
        id: IoId,
        outcome: Outcome,
        ios: &'a mut Slab<Io>,
    ) -> Option<&'a Io> {
        let io = ios.get_mut(id).filter(|io| io.parked.is_none())?;
        io.outcome = outcome;
        io.returned = now;
        io.parked = Some((GATHERED, Way::Up));
        if let Origin::Guest(_) = io.origin {
            self.leaving.push(id);
        } else if let Origin::Filter { .. } = io.origin {
            self.lower_leaving.push(id);
        } else {
            self.sub_leaving.push(id);
        }
        Some(io)
    }

    /// Moves the gathered I/Os: completions first.
    #[inline]
    pub(crate) fn flow(&mut self, cx: &mut StackCx<'_>) {
        let inside = &mut self.inside;
        if inside.layout.is_some() {
            if !self.leaving.is_empty() {
                cx.leave_targets(inside, &mut self.leaving);
            }
            if !(self.lower_leaving.is_empty() && self.sub_leaving.is_empty()) {
                cx.leave_layouts(inside, &mut self.lower_leaving, &mut self.sub_leaving);
            }
        }
        if !self.leaving.is_empty() {
            let bottom = inside.layers.len();
            cx.up(inside, &mut self.leaving, 0, bottom, true);
        }
        if !self.lower_leaving.is_empty() {
            cx.up_each(inside, &mut self.lower_leaving);
        }
        if !self.entering.is_empty() {
            cx.down(inside, &mut self.entering, 0);
        }
        cx.run(inside);
    }

    /// Ticks each filter whose deadline has passed.
    pub(crate) fn tick(&mut self, cx: &mut StackCx<'_>) {
        for level in 0..self.inside.layers.len() {
            let layer = &mut self.inside.layers[level];
            if layer
                .filter
                .deadline()
                .is_some_and(|(at, _)| at <= cx.exit.now)
            {
                layer
                    .filter
                    .tick(&mut cx.exit.cx(level, &mut self.inside.commands));
                assert!(
                    layer
                        .filter
                        .deadline()
                        .is_none_or(|(at, _)| at > cx.exit.now),
                    "a tick moves the deadline of the filter `{}`",
                    layer.filter.name()
                );
            }
        }
        cx.run(&mut self.inside);
        if self.inside.layout.is_some() {
            cx.tick_layouts(&mut self.inside);
        }
    }

    /// The client of these requests has disconnected. Requests that the datastore does not have yet complete now, those
    /// of the top filter first. `tokens` are sorted.
    pub(crate) fn abandon(&mut self, cx: &mut StackCx<'_>, tokens: &[Token]) {
        let bottom = self.inside.layers.len();
        for level in 0..bottom {
            let (above, here) = self.inside.layers.split_at_mut(level);
            let ios = &*cx.ios;
            let gone = |id| is_gone(id, tokens, above, ios);
            let mut hook_cx = cx.exit.cx(level, &mut self.inside.commands);
            here[0].filter.abandon(&mut hook_cx, &gone);
            cx.run(&mut self.inside);
        }
        let mut waited = Vec::new();
        let exit = &mut cx.exit;
        let (layers, ios) = (&self.inside.layers, &*cx.ios);
        let gone = |id| is_gone(id, tokens, layers, ios);
        exit.qos
            .abandon(exit.schedulers, exit.now, exit.disk, gone, &mut waited);
        for id in waited {
            let io = cx.ios.inside_mut(id);
            let parked = io.parked.take();
            assert!(parked.is_some(), "an I/O that waits has not started");
            io.outcome = Err(Fault::Gone);
            if let Some(tree) = &mut self.inside.layout {
                tree.left(io);
            }
            cx.up_alone(&mut self.inside, id, bottom);
        }
        cx.pass_fence(&mut self.inside);
        cx.run(&mut self.inside);
        self.abandon_layouts(cx, tokens);
    }

    /// Returns a side buffer to the filter that sent it, if that still exists.
    pub(crate) fn side_done(
        &mut self,
        cx: &mut StackCx<'_>,
        key: FilterKey,
        buffer: Vec<u8>,
        outcome: Outcome,
    ) {
        if let Some(level) = self.inside.layers.iter().position(|layer| layer.key == key) {
            let mut hook_cx = cx.exit.cx(level, &mut self.inside.commands);
            self.inside.layers[level]
                .filter
                .side_done(&mut hook_cx, buffer, outcome);
            cx.run(&mut self.inside);
        }
    }

    /// The earliest deadline of its filters and layouts.
    pub(crate) fn deadline(&self) -> Option<(Time, Why)> {
        let filters = self.inside.layers.iter();
        let filters = filters.filter_map(|layer| layer.filter.deadline());
        let layouts = self.inside.layout.iter().filter_map(|tree| tree.deadline());
        let layouts = layouts.map(|at| (at, Why::Layout));
        filters.chain(layouts).min_by_key(|(at, _)| *at)
    }

    /// What each filter reports, top first.
    pub fn reports(&self) -> Vec<(FilterKey, &'static str, FilterReport)> {
        self.inside
            .layers
            .iter()
            .map(|l| (l.key, l.filter.name(), l.filter.report()))
            .collect()
    }

    /// Its miss-ratio curves: of all accesses, reads, writes.
    pub(crate) fn curves(&self) -> [Curve; 3] {
        [Of::All, Of::Reads, Of::Writes].map(|of| self.sampler.curve_of(of))
    }

    /// The miss-ratio curve of all accesses.
    pub(crate) fn curve(&self) -> Curve {
        self.sampler.curve_if_known()
    }

    /// The sums of the topmost filter that measures. It sees what the guest sees.
    pub fn pulse(&self) -> Option<Pulse> {
        self.inside.layers.iter().find_map(|l| l.filter.pulse())
    }
}

/// The context of one pass through a stack: the I/Os it may touch, and the exit to the datastore.
pub(crate) struct StackCx<'a> {
    pub(crate) ios: &'a mut Slab<Io>,
    pub(crate) exit: StackExit<'a>,
}

/// The surroundings of a stack: the time, and the exit for I/Os. Separate from the I/Os, so that a lookup of an I/O
/// stays valid for the whole pass.
pub(crate) struct StackExit<'a> {
    pub(crate) now: Time,
    pub(crate) disk: DiskId,
    pub(crate) schedulers: &'a mut Schedulers,
    /// The disk's I/O control.
    pub(crate) qos: &'a mut DiskQos,
    /// Whether an I/O of this pass was queued in the scheduler.
    pub(crate) waits: bool,
    /// Buffers for layouts' own bytes.
    pub(crate) arena: &'a mut Arena,
    pub(crate) out: &'a mut Vec<Effect>,
}

/// Starts an I/O that was queued in the scheduler.
pub(crate) fn dispatch<'a>(
    now: Time,
    disk: DiskId,
    id: IoId,
    cost: Cost,
    ios: &'a mut Slab<Io>,
    out: &mut Vec<Effect>,
) -> &'a mut Io {
    let io = ios.get_mut(id).expect("an I/O that waits is inside");
    let parked = io.parked.take();
    assert!(
        parked.is_some(),
        "an I/O is dispatched once, after it was queued"
    );
    (io.cost, io.times) = (cost, 1);
    io.issued = now;
    out.push(start(disk, io));
    io
}

/// The effect that gives an I/O to the datastore.
#[inline]
fn start(disk: DiskId, io: &Io) -> Effect {
    Effect::Start {
        disk,
        target: io.target,
        io: io.id,
        op: io.op,
        flags: io.flags,
        offset: io.at,
        len: io.len,
        data: io.data,
    }
}

/// The state of an I/O that enters the stack.
#[inline]
fn entering(now: Time, id: IoId, origin: Origin, request: &Request, follows: bool) -> Io {
    Io {
        id,
        op: request.op,
        flags: request.flags,
        offset: request.offset,
        len: request.len,
        data: request.data,
        follows,
        arrived: request.arrived,
        entered: now,
        offered: Time::ZERO,
        issued: Time::ZERO,
        cost: Cost(0),
        times: 0,
        returned: Time::ZERO,
        outcome: Ok(()),
        origin,
        target: Target(0),
        at: request.offset,
        node: 0,
        via: 0,
        tries: 0,
        image: 0,
        fence: 0,
        mark: 0,
        parked: Some((GATHERED, Way::Down)),
    }
}

impl StackExit<'_> {
    fn cx<'w>(&self, level: usize, commands: &'w mut VecDeque<Command>) -> Cx<'w> {
        Cx {
            now: self.now,
            disk: self.disk,
            level: level_u8(level),
            commands,
        }
    }

    /// Starts an I/O that has passed all filters, or queues it in the scheduler.
    #[inline(always)]
    fn offer(&mut self, io: &mut Io, level: u8) {
        io.offered = self.now;
        if self.qos.plain.counts(io) && !self.may_start(io) {
            io.parked = Some((level, Way::Down));
            return;
        }
        self.begin(io);
    }

    /// Gives an I/O to its target.
    #[inline(always)]
    fn begin(&mut self, io: &mut Io) {
        io.parked = None;
        io.issued = self.now;
        // Of a known length, so that the effect is written in place.
        let start = core::iter::once_with(|| start(self.disk, io));
        self.out.extend(start);
    }

    /// Whether the scheduler starts the I/O now; otherwise it queues it.
    #[inline(always)]
    fn may_start(&mut self, io: &mut Io) -> bool {
        let may = self
            .qos
            .plain
            .may_start(self.schedulers, self.now, self.disk, io);
        self.waits |= !may;
        may
    }

    /// Whether the caller must call `pick` of the disk's schedulers.
    #[inline(always)]
    pub(crate) fn someone_waits(&mut self) -> bool {
        let members = self.qos.members.as_ref();
        self.waits
            || scheduler_of(self.schedulers, self.qos.plain.control)
                .is_some_and(|scheduler| scheduler.someone_waits())
            || members.is_some_and(|members| members.someone_waits(self.schedulers))
    }
}

impl StackCx<'_> {
    /// Carries a batch down from level `from`, to the datastore. Leaves `ids` empty.
    #[inline(always)]
    fn down(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>, from: usize) {
        let mut cx = self.exit.cx(from, &mut inside.commands);
        for layer in &mut inside.layers[from..] {
            let mut batch = Batch {
                ids,
                ios: self.ios,
                diverted: &mut inside.diverted,
                level: cx.level,
                way: Way::Down,
            };
            layer.filter.submit_all(&mut cx, &mut batch);
            if ids.is_empty() {
                return;
            }
            cx.level += 1;
        }
        let bottom = cx.level;
        if inside.layout.is_some() {
            return self.map_all(inside, ids);
        }
        if self.exit.qos.plain.control == ControlId::NONE {
            return self.begin_all(ids);
        }
        for &id in &*ids {
            self.exit.offer(self.ios.inside_mut(id), bottom);
        }
        ids.clear();
    }

    /// Carries a batch up through the filters above level `below` to level `top`, where it ends. Leaves `ids` empty.
    #[inline(always)]
    fn up(
        &mut self,
        inside: &mut Inside,
        ids: &mut Vec<IoId>,
        top: usize,
        below: usize,
        guests: bool,
    ) {
        let mut cx = self.exit.cx(below, &mut inside.commands);
        for layer in inside.layers[top..below].iter_mut().rev() {
            cx.level -= 1;
            let mut batch = Batch {
                ids,
                ios: self.ios,
                diverted: &mut inside.diverted,
                level: cx.level,
                way: Way::Up,
            };
            layer.filter.complete_all(&mut cx, &mut batch);
            if ids.is_empty() {
                return;
            }
        }
        if guests {
            return self.answer_guests(inside, ids);
        }
        for &id in &*ids {
            self.end(inside, id);
        }
        ids.clear();
    }

    /// `down` for a single I/O.
    #[cold]
    fn down_alone(&mut self, inside: &mut Inside, id: IoId, from: usize) {
        let mut alone = core::mem::take(&mut inside.alone);
        alone.push(id);
        self.down(inside, &mut alone, from);
        inside.alone = alone;
    }

    /// `up` for a single I/O.
    #[cold]
    fn up_alone(&mut self, inside: &mut Inside, id: IoId, below: usize) {
        let top = match self.ios.inside_mut(id).origin {
            Origin::Guest(_) => 0,
            Origin::Filter { level, .. } => usize::from(level) + 1,
            Origin::Layout { .. } => below,
        };
        let mut alone = core::mem::take(&mut inside.alone);
        alone.push(id);
        self.up(inside, &mut alone, top, below, false);
        inside.alone = alone;
    }

    /// Passes completed I/Os of filters up, each to the filter that issued it.
    #[cold]
    fn up_each(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>) {
        let bottom = inside.layers.len();
        for id in ids.drain(..) {
            self.up_alone(inside, id, bottom);
        }
    }

    /// Gives a batch to a datastore without control. Leaves `ids` empty. The length is known, so that effects are written in
    /// place.
    #[inline(always)]
    fn begin_all(&mut self, ids: &mut Vec<IoId>) {
        let (now, disk, ios) = (self.exit.now, self.exit.disk, &mut *self.ios);
        self.exit.out.extend(ids.iter().map(|&id| {
            let io = ios.inside_mut(id);
            io.offered = now;
            io.parked = None;
            io.issued = now;
            start(disk, io)
        }));
        ids.clear();
    }

    /// Ends a batch of guests' I/Os. Leaves `ids` empty.
    #[inline(always)]
    fn answer_guests(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>) {
        inside.in_flight -= ids.len();
        let (disk, ios) = (self.exit.disk, &mut *self.ios);
        self.exit.out.extend(ids.iter().map(|&id| {
            let io = ios.remove(id).expect("an I/O ends exactly once");
            let Origin::Guest(token) = io.origin else {
                unreachable!("only guests' I/Os are gathered here");
            };
            Effect::Answer {
                disk,
                token,
                op: io.op,
                outcome: io.outcome,
            }
        }));
        ids.clear();
    }

    /// Ends an I/O that goes up alone.
    fn end(&mut self, inside: &mut Inside, id: IoId) {
        let io = self.ios.remove(id).expect("an I/O ends exactly once");
        match io.origin {
            Origin::Guest(token) => {
                inside.in_flight -= 1;
                self.exit.out.push(Effect::Answer {
                    disk: self.exit.disk,
                    token,
                    op: io.op,
                    outcome: io.outcome,
                });
            }
            Origin::Filter { level, tag } => {
                inside.lower -= 1;
                let mut cx = self.exit.cx(level.into(), &mut inside.commands);
                inside.layers[usize::from(level)]
                    .filter
                    .lower_done(&mut cx, tag, io.outcome);
            }
            Origin::Layout { node, tag, .. } => {
                inside.subs -= 1;
                let (layout, mut cx) = inside.hook(&mut self.exit, node);
                layout.done(&mut cx, tag, io.outcome);
            }
        }
    }

    /// Executes the filters' commands until none is left.
    #[inline]
    fn run(&mut self, inside: &mut Inside) {
        let layouts = inside.layout_commands.is_empty();
        if !(inside.commands.is_empty() && inside.diverted.is_empty() && layouts) {
            self.run_commands(inside);
        }
    }

    #[cold]
    fn run_commands(&mut self, inside: &mut Inside) {
        loop {
            // Diverted I/Os first: an I/O is marked as deferred before a command resumes it.
            while let Some(diverted) = inside.diverted.pop_front() {
                self.divert(inside, diverted);
            }
            let Some(command) = inside.commands.pop_front() else {
                let Some((node, command)) = inside.layout_commands.pop_front() else {
                    return;
                };
                self.obey(inside, node, command);
                continue;
            };
            match command {
                Command::Lower { level, tag, lower } => self.lower(inside, level, tag, lower),
                Command::Resume { level, io, verdict } => self.resume(inside, level, io, verdict),
                Command::Side { level, buffer } => {
                    let filter = inside.layers[usize::from(level)].key;
                    self.exit.out.push(Effect::SideWrite {
                        disk: self.exit.disk,
                        filter,
                        buffer,
                    });
                }
            }
        }
    }

    /// Handles an I/O that a filter deferred, or completed on its way down. A completed I/O goes up from there.
    fn divert(&mut self, inside: &mut Inside, diverted: Diverted) {
        let Diverted {
            io: id,
            level,
            way,
            verdict,
        } = diverted;
        let io = self.ios.inside_mut(id);
        match verdict {
            Verdict::Defer => io.parked = Some((level, way)),
            Verdict::Done(outcome) => {
                io.outcome = outcome;
                self.up_alone(inside, id, level.into());
            }
            Verdict::Pass => unreachable!("an I/O that passes stays in the batch"),
        }
    }

    fn lower(&mut self, inside: &mut Inside, level: u8, tag: u64, lower: Lower) {
        inside.lower += 1;
        let Lower {
            op,
            flags,
            offset,
            len,
            data,
        } = lower;
        let request = Request {
            op,
            flags,
            offset,
            len,
            data,
            arrived: self.exit.now,
        };
        let origin = Origin::Filter { level, tag };
        let now = self.exit.now;
        let id = self
            .ios
            .insert_with(|id| entering(now, id, origin, &request, false));
        self.down_alone(inside, id, usize::from(level) + 1);
    }

    fn resume(&mut self, inside: &mut Inside, level: u8, id: IoId, verdict: Verdict) {
        let io = self
            .ios
            .get_mut(id)
            .expect("a resumed I/O is inside: it was not answered before");
        let (at, way) = io.parked.take().expect("a resumed I/O was deferred");
        assert_eq!(at, level, "only the filter that deferred an I/O resumes it");
        match (verdict, way) {
            (Verdict::Pass, Way::Down) => self.down_alone(inside, id, usize::from(level) + 1),
            (Verdict::Pass, Way::Up) => self.up_alone(inside, id, level.into()),
            (Verdict::Done(outcome), _) => {
                io.outcome = outcome;
                self.up_alone(inside, id, level.into());
            }
            (Verdict::Defer, _) => {
                panic!("a deferred I/O is resumed with an answer, not deferred again")
            }
        }
    }
}

/// Whether an I/O is one of these requests, or a filter's I/O on behalf of one.
fn is_gone(id: IoId, tokens: &[Token], layers: &[Layer], ios: &Slab<Io>) -> bool {
    let Some(io) = ios.get(id) else { return false };
    match io.origin {
        Origin::Guest(token) => tokens.binary_search(&token).is_ok(),
        Origin::Filter { level, tag } => {
            let owner = layers[usize::from(level)].filter.owner(tag);
            owner.is_some_and(|owner| is_gone(owner, tokens, layers, ios))
        }
        // Other sub-I/Os of the same request may be with a datastore.
        Origin::Layout { .. } => false,
    }
}

/// A level in the type that filters store.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a stack has at most MAX_FILTERS levels"
)]
fn level_u8(level: usize) -> u8 {
    level as u8
}

/// Whether the operation has a range. A flush has none.
pub(crate) fn has_range(op: Op) -> bool {
    op != Op::Flush
}
