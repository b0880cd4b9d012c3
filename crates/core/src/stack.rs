//! Carries each I/O of one disk down its filters, hands it to the datastore, and carries it up again.
//!
//! The shard calls `Stack::submit` when a request has passed the door and `Stack::finish` when the datastore has
//! answered. Filters never call each other: everything moves in the one flat loop of `Walk::run`, and what a
//! filter asks for meanwhile (its own I/O, resumption of a deferred one) waits in a list until the hook has returned.
//!
//! # Always true
//! - each I/O ends exactly once: its place in the slab is given up at the same moment (asserted in `end`)
//! - `in_flight` counts the guest's I/Os inside, `lower` the filters' own; both zero means nothing can move, and nothing
//!   waits for its turn at the datastore
//!
//! # Picture
//! ```text
//!   guest ──> submit ┌──────────┐ complete ──> answer
//!                  0 │  stats   │
//!                  1 │  fault   │ ── lower ─┐   a filter's own I/O enters below it
//!                  2 │  null    │ <─────────┘
//!                    └──────────┘
//!                       offer ──────> waits for its turn (I/O control)
//!                         │             │ let_go
//!                  Effect::Start <──────┘     finish
//! ```

use crate::filter::stats::Pulse;
use crate::filter::{
    Cx, Filter, FilterReport, Io, Lower, MAX_FILTERS, Origin, Verdict, Want, Way, Why,
};
use crate::iocontrol::{Cost, Offer, Scheduler};
use crate::request::{DiskId, IoId, Op, Outcome, Request, Token};
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
    layers: Vec<Layer>,
    wants: VecDeque<Want>,
    /// Guests' I/Os between their entry and their answer.
    pub(crate) in_flight: usize,
    /// Filters' own I/Os under way.
    pub(crate) lower: usize,
    /// Whether any filter has deadlines.
    pub(crate) timed: bool,
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
            layers: Vec::new(),
            wants: VecDeque::new(),
            in_flight: 0,
            lower: 0,
            timed: false,
        };
        stack.arrange(places);
        stack
    }

    /// Whether no I/O is inside, the guest's or a filter's.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight == 0 && self.lower == 0
    }

    /// Takes on the new arrangement and gives back the filters that have no place in it.
    fn arrange(&mut self, places: Vec<Place>) -> Vec<Layer> {
        assert!(
            places.len() <= MAX_FILTERS,
            "a stack has at most {MAX_FILTERS} filters"
        );
        let mut old: Vec<Option<Layer>> = self.layers.drain(..).map(Some).collect();
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
            self.layers.push(layer);
        }
        self.timed = self.layers.iter().any(|layer| layer.filter.timed());
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
                wants: &mut self.wants,
            });
            for want in self.wants.drain(..) {
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
        for level in 0..self.layers.len() {
            let layer = &mut self.layers[level];
            if !stays(layer.key) {
                let mut cx = walk.edge.cx(level, &mut self.wants);
                layer.filter.release(&mut cx);
                walk.run(self);
            }
        }
    }

    /// A guest's request enters at the top.
    #[inline]
    pub(crate) fn submit(&mut self, walk: &mut Walk<'_>, token: Token, request: &Request) {
        self.in_flight += 1;
        walk.enter(self, Origin::Guest(token), request, 0);
        walk.run(self);
    }

    /// The datastore has ended an I/O. Returns false when there is no such I/O (a stray completion).
    #[inline]
    pub(crate) fn finish(&mut self, walk: &mut Walk<'_>, id: IoId, outcome: Outcome) -> bool {
        let Some(io) = walk.ios.get_mut(id) else {
            return false;
        };
        if io.parked.is_some() {
            return false;
        }
        io.outcome = outcome;
        let Edge { now, .. } = walk.edge;
        io.returned = now;
        if io.times != 0 {
            walk.edge.ended(io);
        }
        if let Some(end) = walk.edge.up(self, io, self.layers.len()) {
            walk.end(self, end);
        }
        walk.run(self);
        true
    }

    /// Lets every filter whose deadline has come act.
    pub(crate) fn tick(&mut self, walk: &mut Walk<'_>) {
        for level in 0..self.layers.len() {
            let layer = &mut self.layers[level];
            if layer
                .filter
                .deadline()
                .is_some_and(|(at, _)| at <= walk.edge.now)
            {
                layer.filter.tick(&mut walk.edge.cx(level, &mut self.wants));
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
        walk.run(self);
    }

    /// A side buffer comes back to the filter that sent it, if it is still here.
    pub(crate) fn side_done(
        &mut self,
        walk: &mut Walk<'_>,
        key: FilterKey,
        buffer: Vec<u8>,
        outcome: Outcome,
    ) {
        if let Some(level) = self.layers.iter().position(|layer| layer.key == key) {
            let mut cx = walk.edge.cx(level, &mut self.wants);
            self.layers[level]
                .filter
                .side_done(&mut cx, buffer, outcome);
            walk.run(self);
        }
    }

    /// The earliest deadline of its filters.
    pub(crate) fn deadline(&self) -> Option<(Time, Why)> {
        self.layers
            .iter()
            .filter_map(|layer| layer.filter.deadline())
            .min_by_key(|(at, _)| *at)
    }

    /// What each filter tells, top first.
    pub fn reports(&self) -> Vec<(FilterKey, &'static str, FilterReport)> {
        self.layers
            .iter()
            .map(|l| (l.key, l.filter.name(), l.filter.report()))
            .collect()
    }

    /// The sums of the topmost filter that measures: it sees what the guest sees.
    pub fn pulse(&self) -> Option<Pulse> {
        self.layers.iter().find_map(|l| l.filter.pulse())
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
    /// Whether anything waits for its turn: the scheduler is to be asked for the next.
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

/// What is left to tell of an I/O that has come out at the top.
pub(crate) struct End {
    id: IoId,
    origin: Origin,
    op: Op,
    outcome: Outcome,
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

    /// Carries an I/O down from level `from`, to the datastore unless a filter ends or keeps it; one that a filter ended
    /// goes up again from there, and may come out.
    #[inline(always)]
    fn down(&mut self, stack: &mut Stack, io: &mut Io, from: usize) -> Option<End> {
        let mut cx = Cx {
            now: self.now,
            disk: self.disk,
            level: level_u8(from),
            wants: &mut stack.wants,
        };
        for layer in &mut stack.layers[from..] {
            match layer.filter.submit(&mut cx, io) {
                Verdict::Pass => cx.level += 1,
                Verdict::Done(outcome) => {
                    let level = cx.level;
                    io.outcome = outcome;
                    return self.turned(stack, io, level.into());
                }
                Verdict::Defer => {
                    io.parked = Some((cx.level, Way::Down));
                    return None;
                }
            }
        }
        io.offered = self.now;
        let counts =
            self.toll.control != ControlId::NONE && !self.toll.lot.skips(io.op, io.offset, io.len);
        if counts && !self.takes_turn(io) {
            io.parked = Some((cx.level, Way::Down));
            return None;
        }
        io.issued = self.now;
        self.out.push(start(self.disk, io));
        None
    }

    /// The datastore has ended an I/O that counts there. One for which another stands makes no room that anybody knows of.
    #[inline(never)]
    fn ended(&mut self, io: &Io) {
        let (now, disk) = (self.now, self.disk);
        let Some(scheduler) = scheduler_of(self.turns, self.toll.control) else {
            return;
        };
        let times = io.times.into();
        if scheduler.finished_for(now, disk, io.op, io.len, io.issued, io.cost, times) {
            self.toll.lot.turn(scheduler.may_skip(disk));
        }
        self.waits = scheduler.someone_waits();
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

    /// Whose turn it is at the disk's datastore, if that is under control.
    #[inline(always)]
    pub(crate) fn scheduler(&mut self) -> Option<&mut Scheduler> {
        scheduler_of(self.turns, self.toll.control)
    }

    /// The same way as `up`, for those that come from somewhere else than the datastore.
    #[inline(never)]
    fn turned(&mut self, stack: &mut Stack, io: &mut Io, below: usize) -> Option<End> {
        self.up(stack, io, below)
    }

    /// Carries an I/O up through the filters above level `below`. One that comes out has ended.
    #[inline(always)]
    fn up(&mut self, stack: &mut Stack, io: &mut Io, below: usize) -> Option<End> {
        let top = match io.origin {
            Origin::Guest(_) => 0,
            Origin::Filter { level, .. } => usize::from(level) + 1,
        };
        let mut cx = Cx {
            now: self.now,
            disk: self.disk,
            level: level_u8(below),
            wants: &mut stack.wants,
        };
        for layer in stack.layers[top..below].iter_mut().rev() {
            cx.level -= 1;
            match layer.filter.complete(&mut cx, io) {
                Verdict::Pass => {}
                Verdict::Done(outcome) => io.outcome = outcome,
                Verdict::Defer => {
                    io.parked = Some((cx.level, Way::Up));
                    return None;
                }
            }
        }
        Some(End {
            id: io.id,
            origin: io.origin,
            op: io.op,
            outcome: io.outcome,
        })
    }
}

impl Walk<'_> {
    /// A new I/O enters above level `from`.
    #[inline(always)]
    fn enter(&mut self, stack: &mut Stack, origin: Origin, request: &Request, from: usize) {
        let now = self.edge.now;
        let (_, io) = self.ios.put_with(|id| Io {
            id,
            op: request.op,
            flags: request.flags,
            offset: request.offset,
            len: request.len,
            data: request.data,
            arrived: request.arrived,
            entered: now,
            offered: Time::ZERO,
            issued: Time::ZERO,
            cost: Cost(0),
            times: 0,
            returned: Time::ZERO,
            outcome: Ok(()),
            origin,
            parked: None,
        });
        if let Some(end) = self.edge.down(stack, io, from) {
            self.end_early(stack, end);
        }
    }

    /// One ends that the datastore has not just answered.
    #[inline(never)]
    fn end_early(&mut self, stack: &mut Stack, end: End) {
        self.end(stack, end);
    }

    /// The one place where an I/O ends.
    #[inline(always)]
    fn end(&mut self, stack: &mut Stack, end: End) {
        let inside = self.ios.discard(end.id);
        assert!(inside, "an I/O ends exactly once");
        match end.origin {
            Origin::Guest(token) => {
                stack.in_flight -= 1;
                self.edge.out.push(Effect::Answer {
                    disk: self.edge.disk,
                    token,
                    op: end.op,
                    outcome: end.outcome,
                });
            }
            Origin::Filter { level, tag } => {
                stack.lower -= 1;
                let mut cx = self.edge.cx(level.into(), &mut stack.wants);
                stack.layers[usize::from(level)]
                    .filter
                    .lower_done(&mut cx, tag, end.outcome);
            }
        }
    }

    /// Carries out what the filters asked for, until none asks for more.
    #[inline]
    fn run(&mut self, stack: &mut Stack) {
        if !stack.wants.is_empty() {
            self.run_wants(stack);
        }
    }

    #[cold]
    fn run_wants(&mut self, stack: &mut Stack) {
        while let Some(want) = stack.wants.pop_front() {
            match want {
                Want::Lower { level, tag, lower } => self.lower(stack, level, tag, lower),
                Want::Resume { level, io, verdict } => self.resume(stack, level, io, verdict),
                Want::Side { level, buffer } => {
                    let filter = stack.layers[usize::from(level)].key;
                    self.edge.out.push(Effect::SideWrite {
                        disk: self.edge.disk,
                        filter,
                        buffer,
                    });
                }
            }
        }
    }

    fn lower(&mut self, stack: &mut Stack, level: u8, tag: u64, lower: Lower) {
        stack.lower += 1;
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
        self.enter(stack, origin, &request, usize::from(level) + 1);
    }

    fn resume(&mut self, stack: &mut Stack, level: u8, id: IoId, verdict: Verdict) {
        let io = self
            .ios
            .get_mut(id)
            .expect("a resumed I/O is inside: it was not answered before");
        let (at, way) = io.parked.take().expect("a resumed I/O was deferred");
        assert_eq!(at, level, "only the filter that deferred an I/O resumes it");
        let end = match (verdict, way) {
            (Verdict::Pass, Way::Down) => self.edge.down(stack, io, usize::from(level) + 1),
            (Verdict::Pass, Way::Up) => self.edge.turned(stack, io, level.into()),
            (Verdict::Done(outcome), _) => {
                io.outcome = outcome;
                self.edge.turned(stack, io, level.into())
            }
            (Verdict::Defer, _) => {
                panic!("a deferred I/O is resumed with an answer, not deferred again")
            }
        };
        if let Some(end) = end {
            self.end_early(stack, end);
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
