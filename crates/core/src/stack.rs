//! Carries the I/Os of one disk down its filters, hands them to the datastore, and carries them up again.
//!
//! The shard gathers what came at one moment (`Stack::gather`: a request has passed the door; `Stack::finish`: the
//! datastore has answered) and then has the stack carry it all on (`Stack::flow`): each layer gets the whole [`Batch`]
//! at once. Filters never call each other: everything moves in the flat loops of `Walk`, and what a filter makes of
//! single I/Os (one that it ends or keeps, its own I/O, resumption of a deferred one) waits in lists until the batch is
//! through.
//!
//! # Always true
//! - each I/O ends exactly once: its place in the slab is given up at the same moment (asserted in `end`)
//! - after `flow` nothing is gathered, aside or wanted any more
//! - `in_flight` counts the guest's I/Os inside, `lower` the filters' own; both zero means nothing can move, and nothing
//!   waits for its turn at the datastore
//!
//! # Picture
//! ```text
//!   guest ──> gather ┌──────────┐ complete ──> answer
//!                  0 │  stats   │
//!                  1 │  fault   │ ── lower ─┐   a filter's own I/O enters below it
//!                  2 │  null    │ <─────────┘
//!                    └──────────┘
//!                       offer ──────> waits for its turn (I/O control)
//!                         │             │ let_go
//!                  Effect::Start <──────┘     finish
//! ```

use crate::filter::batch::Aside;
use crate::filter::stats::Pulse;
use crate::filter::{
    Batch, Cx, Filter, FilterReport, GATHERED, Io, Lower, MAX_FILTERS, Origin, Verdict, Want, Way,
    Why,
};
use crate::iocontrol::{Cost, Offer, Scheduler};
use crate::request::{DiskId, Fault, IoId, Op, Outcome, Request, Token};
use crate::shard::{ControlId, Effect, Toll, Turns, scheduler_of};
use crate::slab::Slab;
use crate::units::Time;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Names a filter of a stack, also after others were put above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilterKey(pub u32);

/// One place of a new arrangement of filters.
pub enum Place {
    /// The filter that stands under this key now, with all that it knows.
    Keep(FilterKey),
    /// A new one.
    New(FilterKey, Box<dyn Filter>),
}

/// A disk's filters, top first, and what is inside them.
pub struct Stack {
    /// By operation: where the guest's last one ended.
    ends: [u64; Op::ALL.len()],
    /// Guests' I/Os that are about to go down.
    entering: Vec<IoId>,
    /// Those that are about to go up.
    leaving: Vec<IoId>,
    /// Filters' own I/Os that are about to go up.
    lower_leaving: Vec<IoId>,
    inside: Inside,
}

/// The filters, and what moves between them. Apart from what is gathered, so that a batch need not be moved to be carried.
struct Inside {
    layers: Vec<Layer>,
    /// Room for the id of one that goes alone.
    alone: Vec<IoId>,
    /// What filters took out of batches.
    aside: VecDeque<Aside>,
    wants: VecDeque<Want>,
    /// Guests' I/Os between their entry and their answer.
    in_flight: usize,
    /// Filters' own I/Os under way.
    lower: usize,
    /// Whether any filter has deadlines.
    timed: bool,
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
            entering: Vec::new(),
            leaving: Vec::new(),
            lower_leaving: Vec::new(),
            inside: Inside {
                layers: Vec::new(),
                alone: Vec::new(),
                aside: VecDeque::new(),
                wants: VecDeque::new(),
                in_flight: 0,
                lower: 0,
                timed: false,
            },
        };
        stack.arrange(places);
        stack
    }

    /// Guests' I/Os between their entry and their answer.
    pub(crate) fn in_flight(&self) -> usize {
        self.inside.in_flight
    }

    /// Whether any filter has deadlines.
    pub(crate) fn is_timed(&self) -> bool {
        self.inside.timed
    }

    /// Whether no I/O is inside, the guest's or a filter's.
    pub(crate) fn is_quiet(&self) -> bool {
        self.inside.in_flight == 0 && self.inside.lower == 0
    }

    /// Takes on the new arrangement and gives back the filters that have no place in it.
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
                    let kept = old
                        .iter_mut()
                        .find(|l| l.as_ref().is_some_and(|l| l.key == key));
                    kept.and_then(Option::take)
                        .expect("a kept filter stands in the old arrangement, once")
                }
            };
            self.inside.layers.push(layer);
        }
        self.inside.timed = self.inside.layers.iter().any(|layer| layer.filter.timed());
        old.into_iter().flatten().collect()
    }

    /// Changes the filters; nothing may be inside. Those taken out may still send bytes aside.
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
                wants: &mut self.inside.wants,
            });
            for want in self.inside.wants.drain(..) {
                if let Want::Side { buffer, .. } = want {
                    out.push(Effect::SideWrite {
                        disk,
                        filter: gone.key,
                        buffer,
                    });
                }
            }
        }
    }

    /// Has the filters that do not stay let go of what they hold back for time alone: the top one first, since what it lets
    /// go comes to those below.
    pub(crate) fn release(&mut self, walk: &mut Walk<'_>, stays: impl Fn(FilterKey) -> bool) {
        for level in 0..self.inside.layers.len() {
            let layer = &mut self.inside.layers[level];
            if !stays(layer.key) {
                let mut cx = walk.edge.cx(level, &mut self.inside.wants);
                layer.filter.release(&mut cx);
                walk.run(&mut self.inside);
            }
        }
    }

    /// A guest's request comes in, and goes down with others.
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
        let origin = Origin::Guest(token);
        let id = ios.insert_with(|id| entering(now, id, origin, request, follows));
        self.entering.push(id);
    }

    /// The datastore has ended an I/O, which goes up with others; `None` when there is no such I/O (a stray completion).
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
        match io.origin {
            Origin::Guest(_) => self.leaving.push(id),
            Origin::Filter { .. } => self.lower_leaving.push(id),
        }
        Some(io)
    }

    /// Carries on what was gathered: first those that leave.
    #[inline]
    pub(crate) fn flow(&mut self, walk: &mut Walk<'_>) {
        let inside = &mut self.inside;
        if !self.leaving.is_empty() {
            let bottom = inside.layers.len();
            walk.up(inside, &mut self.leaving, 0, bottom);
        }
        if !self.lower_leaving.is_empty() {
            walk.up_each(inside, &mut self.lower_leaving);
        }
        if !self.entering.is_empty() {
            walk.down(inside, &mut self.entering, 0);
        }
        walk.run(inside);
    }

    /// Lets every filter whose deadline has come act.
    pub(crate) fn tick(&mut self, walk: &mut Walk<'_>) {
        for level in 0..self.inside.layers.len() {
            let layer = &mut self.inside.layers[level];
            if layer
                .filter
                .deadline()
                .is_some_and(|(at, _)| at <= walk.edge.now)
            {
                layer
                    .filter
                    .tick(&mut walk.edge.cx(level, &mut self.inside.wants));
                assert!(
                    layer
                        .filter
                        .deadline()
                        .is_none_or(|(at, _)| at > walk.edge.now),
                    "a tick moves the deadline of the filter `{}`",
                    layer.filter.name()
                );
            }
        }
        walk.run(&mut self.inside);
    }

    /// Whoever asked these requests is gone: those of them that the datastore does not have end now, the top filter's
    /// first. `tokens` are sorted.
    pub(crate) fn abandon(&mut self, walk: &mut Walk<'_>, tokens: &[Token]) {
        let bottom = self.inside.layers.len();
        for level in 0..bottom {
            let (above, here) = self.inside.layers.split_at_mut(level);
            let ios = &*walk.ios;
            let gone = |id| is_gone(id, tokens, above, ios);
            let mut cx = walk.edge.cx(level, &mut self.inside.wants);
            here[0].filter.abandon(&mut cx, &gone);
            walk.run(&mut self.inside);
        }
        let mut waited = Vec::new();
        let (now, disk) = (walk.edge.now, walk.edge.disk);
        if let Some(scheduler) = walk.edge.scheduler() {
            let (layers, ios) = (&self.inside.layers, &*walk.ios);
            let gone = |id| is_gone(id, tokens, layers, ios);
            scheduler.abandon(now, disk, gone, &mut waited);
        }
        for id in waited {
            let io = walk.ios.inside_mut(id);
            let parked = io.parked.take();
            assert!(parked.is_some(), "an I/O that waits has not started");
            io.outcome = Err(Fault::Gone);
            walk.up_alone(&mut self.inside, id, bottom);
        }
        walk.run(&mut self.inside);
    }

    /// A side buffer comes back to the filter that sent it, if it is still here.
    pub(crate) fn side_done(
        &mut self,
        walk: &mut Walk<'_>,
        key: FilterKey,
        buffer: Vec<u8>,
        outcome: Outcome,
    ) {
        if let Some(level) = self.inside.layers.iter().position(|layer| layer.key == key) {
            let mut cx = walk.edge.cx(level, &mut self.inside.wants);
            self.inside.layers[level]
                .filter
                .side_done(&mut cx, buffer, outcome);
            walk.run(&mut self.inside);
        }
    }

    /// The earliest deadline of its filters.
    pub(crate) fn deadline(&self) -> Option<(Time, Why)> {
        self.inside
            .layers
            .iter()
            .filter_map(|layer| layer.filter.deadline())
            .min_by_key(|(at, _)| *at)
    }

    /// What each filter tells, top first.
    pub fn reports(&self) -> Vec<(FilterKey, &'static str, FilterReport)> {
        self.inside
            .layers
            .iter()
            .map(|l| (l.key, l.filter.name(), l.filter.report()))
            .collect()
    }

    /// The sums of the topmost filter that measures: it sees what the guest sees.
    pub fn pulse(&self) -> Option<Pulse> {
        self.inside.layers.iter().find_map(|l| l.filter.pulse())
    }
}

/// One event's walk through a stack: what it may touch, and where its effects go.
pub(crate) struct Walk<'a> {
    pub(crate) ios: &'a mut Slab<Io>,
    pub(crate) edge: Edge<'a>,
}

/// What lies around a stack: the moment, and where I/Os go that leave it. Apart from the I/Os, so that one that was
/// found stays found for the whole walk.
pub(crate) struct Edge<'a> {
    pub(crate) now: Time,
    pub(crate) disk: DiskId,
    pub(crate) turns: &'a mut Turns,
    /// What stands between the disk and its datastore.
    pub(crate) toll: &'a mut Toll,
    /// Whether an I/O of this walk has to wait for its turn.
    pub(crate) waits: bool,
    pub(crate) out: &'a mut Vec<Effect>,
}

/// Gives an I/O to the datastore whose turn has come.
pub(crate) fn let_go(
    now: Time,
    disk: DiskId,
    id: IoId,
    cost: Cost,
    ios: &mut Slab<Io>,
    out: &mut Vec<Effect>,
) {
    let io = ios.get_mut(id).expect("an I/O that waits is inside");
    let parked = io.parked.take();
    assert!(
        parked.is_some(),
        "an I/O is let go once, after it had to wait"
    );
    (io.cost, io.times) = (cost, 1);
    io.issued = now;
    out.push(start(disk, io));
}

/// The effect that gives an I/O to the datastore.
#[inline]
fn start(disk: DiskId, io: &Io) -> Effect {
    Effect::Start {
        disk,
        io: io.id,
        op: io.op,
        flags: io.flags,
        offset: io.offset,
        len: io.len,
        data: io.data,
    }
}

/// An I/O as it comes in, to go down.
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
        parked: Some((GATHERED, Way::Down)),
    }
}

impl Edge<'_> {
    fn cx<'w>(&self, level: usize, wants: &'w mut VecDeque<Want>) -> Cx<'w> {
        Cx {
            now: self.now,
            disk: self.disk,
            level: level_u8(level),
            wants,
        }
    }

    /// An I/O has come to the bottom: it goes to the datastore, or waits for its turn there.
    #[inline(always)]
    fn offer(&mut self, io: &mut Io, level: u8) {
        io.offered = self.now;
        let counts =
            self.toll.control != ControlId::NONE && !self.toll.lot.skips(io.op, io.offset, io.len);
        if counts && !self.takes_turn(io) {
            io.parked = Some((level, Way::Down));
            return;
        }
        io.parked = None;
        io.issued = self.now;
        self.out.push(start(self.disk, io));
    }

    /// Whether it is the I/O's turn at the datastore. It counts there as started then; otherwise it waits.
    #[inline(always)]
    fn takes_turn(&mut self, io: &mut Io) -> bool {
        let Some(scheduler) = scheduler_of(self.turns, self.toll.control) else {
            return true;
        };
        let (now, disk, op, len) = (self.now, self.disk, io.op, io.len);
        if let Some((times, sequential)) = self.toll.lot.drawn(op, io.offset, len) {
            if let Some(cost) = scheduler.start_for(now, disk, op, len, sequential, times.into()) {
                (io.cost, io.times) = (cost, times);
                return true;
            }
            // So much is in flight that it must be known.
            self.toll.lot.turn(false);
        }
        io.times = 1;
        // In its two halves, so that the common one comes back here with nothing to be told apart.
        if let Some(cost) = scheduler.start_at_once(now, disk, op, io.offset, len) {
            io.cost = cost;
            return true;
        }
        match scheduler.consider(now, disk, io.id, op, io.offset, len) {
            Offer::Start(cost) => {
                io.cost = cost;
                true
            }
            Offer::Wait => {
                self.waits = true;
                false
            }
        }
    }

    /// Whether the scheduler is to be asked for the next.
    #[inline(always)]
    pub(crate) fn someone_waits(&mut self) -> bool {
        self.waits
            || self
                .scheduler()
                .is_some_and(|scheduler| scheduler.someone_waits())
    }

    /// Whose turn it is at the disk's datastore, if that is under control.
    #[inline(always)]
    pub(crate) fn scheduler(&mut self) -> Option<&mut Scheduler> {
        scheduler_of(self.turns, self.toll.control)
    }
}

impl Walk<'_> {
    /// Carries a batch down from level `from`, to the datastore. Leaves `ids` empty.
    #[inline(always)]
    fn down(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>, from: usize) {
        let mut cx = self.edge.cx(from, &mut inside.wants);
        for layer in &mut inside.layers[from..] {
            let mut batch = Batch {
                ids,
                ios: self.ios,
                aside: &mut inside.aside,
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
        for &id in &*ids {
            self.edge.offer(self.ios.inside_mut(id), bottom);
        }
        ids.clear();
    }

    /// Carries a batch up through the filters above level `below` to level `top`, where it ends. Leaves `ids` empty.
    #[inline(always)]
    fn up(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>, top: usize, below: usize) {
        let mut cx = self.edge.cx(below, &mut inside.wants);
        for layer in inside.layers[top..below].iter_mut().rev() {
            cx.level -= 1;
            let mut batch = Batch {
                ids,
                ios: self.ios,
                aside: &mut inside.aside,
                level: cx.level,
                way: Way::Up,
            };
            layer.filter.complete_all(&mut cx, &mut batch);
            if ids.is_empty() {
                return;
            }
        }
        for &id in &*ids {
            self.end(inside, id);
        }
        ids.clear();
    }

    /// The same way as `down`, for one that goes alone.
    #[cold]
    fn down_alone(&mut self, inside: &mut Inside, id: IoId, from: usize) {
        let mut alone = core::mem::take(&mut inside.alone);
        alone.push(id);
        self.down(inside, &mut alone, from);
        inside.alone = alone;
    }

    /// The same way as `up`, for one that goes alone.
    #[cold]
    fn up_alone(&mut self, inside: &mut Inside, id: IoId, below: usize) {
        let top = match self.ios.inside_mut(id).origin {
            Origin::Guest(_) => 0,
            Origin::Filter { level, .. } => usize::from(level) + 1,
        };
        let mut alone = core::mem::take(&mut inside.alone);
        alone.push(id);
        self.up(inside, &mut alone, top, below);
        inside.alone = alone;
    }

    /// Filters' own I/Os that the datastore has ended, each from where it came.
    #[cold]
    fn up_each(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>) {
        let bottom = inside.layers.len();
        for id in ids.drain(..) {
            self.up_alone(inside, id, bottom);
        }
    }

    /// The one place where an I/O ends.
    #[inline(always)]
    fn end(&mut self, inside: &mut Inside, id: IoId) {
        let io = self.ios.remove(id).expect("an I/O ends exactly once");
        match io.origin {
            Origin::Guest(token) => {
                inside.in_flight -= 1;
                self.edge.out.push(Effect::Answer {
                    disk: self.edge.disk,
                    token,
                    op: io.op,
                    outcome: io.outcome,
                });
            }
            Origin::Filter { level, tag } => {
                inside.lower -= 1;
                let mut cx = self.edge.cx(level.into(), &mut inside.wants);
                inside.layers[usize::from(level)]
                    .filter
                    .lower_done(&mut cx, tag, io.outcome);
            }
        }
    }

    /// Carries out what the filters asked for, until none asks for more.
    #[inline]
    fn run(&mut self, inside: &mut Inside) {
        if !(inside.wants.is_empty() && inside.aside.is_empty()) {
            self.run_wants(inside);
        }
    }

    #[cold]
    fn run_wants(&mut self, inside: &mut Inside) {
        loop {
            // Those that filters keep are known to be kept before one is resumed.
            while let Some(aside) = inside.aside.pop_front() {
                self.put_aside(inside, aside);
            }
            let Some(want) = inside.wants.pop_front() else {
                return;
            };
            match want {
                Want::Lower { level, tag, lower } => self.lower(inside, level, tag, lower),
                Want::Resume { level, io, verdict } => self.resume(inside, level, io, verdict),
                Want::Side { level, buffer } => {
                    let filter = inside.layers[usize::from(level)].key;
                    self.edge.out.push(Effect::SideWrite {
                        disk: self.edge.disk,
                        filter,
                        buffer,
                    });
                }
            }
        }
    }

    /// A filter keeps an I/O, or has ended it on its way down: then it goes up again from there.
    fn put_aside(&mut self, inside: &mut Inside, aside: Aside) {
        let Aside {
            io: id,
            level,
            way,
            verdict,
        } = aside;
        let io = self.ios.inside_mut(id);
        match verdict {
            Verdict::Defer => io.parked = Some((level, way)),
            Verdict::Done(outcome) => {
                io.outcome = outcome;
                self.up_alone(inside, id, level.into());
            }
            Verdict::Pass => unreachable!("what passes stays with the others"),
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
            arrived: self.edge.now,
        };
        let origin = Origin::Filter { level, tag };
        let now = self.edge.now;
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

/// Whether an I/O is one of these requests, or a filter's own that one of them waits for.
fn is_gone(id: IoId, tokens: &[Token], layers: &[Layer], ios: &Slab<Io>) -> bool {
    let Some(io) = ios.get(id) else { return false };
    match io.origin {
        Origin::Guest(token) => tokens.binary_search(&token).is_ok(),
        Origin::Filter { level, tag } => {
            let owner = layers[usize::from(level)].filter.owner(tag);
            owner.is_some_and(|owner| is_gone(owner, tokens, layers, ios))
        }
    }
}

/// A level as filters carry it.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a stack has at most MAX_FILTERS levels"
)]
fn level_u8(level: usize) -> u8 {
    level as u8
}

/// Whether a flush stands for the operation: it has no range.
pub(crate) fn has_range(op: Op) -> bool {
    op != Op::Flush
}
