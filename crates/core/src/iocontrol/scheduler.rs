//! Decides, for one datastore on one I/O thread, which I/O goes next and whether there is room for it.
//!
//! The shard offers each I/O that has passed its disk's filters; what waits comes out of `pick`, which the thread asks
//! until it says something else than [`Pick::Now`]. The governor steers: window, reservations' part, costs. The
//! scheduler keeps the thread's disks in heaps; what it shares with other threads is [`super::shared`].
//!
//! # Always true
//! - a disk with something waiting stands in exactly one place: ready, parked by its own limit, or waiting in its group
//! - an I/O starts only if it fits in the window (a part of it drawn anew every 2 ms counts), or if nothing is in flight
//! - limits are asked last and passed once: what they let pass starts
//!
//! # Picture: a disk
//! ```text
//!           offer               limit            due
//!   Idle ─────────> Ready ─────────> Parked ─────────> Ready
//!    ^               │  ^ │   group's limit          one of the group's at a time,
//!    └───────────────┘  │ └─────────> InGroup ───┐   least start tag first
//!      last one started └────────────────────────┘
//! ```

mod places;

use super::account::Bins;
use super::cost::{counted_len, never_held};
use super::disk::{CREDIT, Disk, Place, Queued};
use super::limit::{moment, ticks};
use super::policy::{Policy, units};
use super::shared::{Member, SharedHandle};
use super::tags::{Heap, SCALE_BITS, before, later, virtual_span};
use super::{Bin, Cost, DiskKey, Hold, Mode, Offer, Orders, Pick, Usage};
use crate::request::{DiskId, IoId, Op};
use crate::units::{Span, Time};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// How far threads may differ (T): 8 reference I/Os of a disk with 1000 shares.
const REACH: u64 = ((8 * Cost::REFERENCE.0) << SCALE_BITS) / 1_000;

/// What a disk's tag may run ahead by while the rate of the datastore is unknown: its credit, of 1000 shares.
const LEAD_UNKNOWN: u64 = (CREDIT.0 << SCALE_BITS) / 1_000;

/// How much more reservations may take than the rest: nine parts of ten.
const RESERVE_PARTS: u64 = 9;

/// How much reservations may take at once before the rest has had its tenth. Small against 100 ms of any datastore worth
/// controlling, so that the tenth holds in any 100 ms.
const RESERVE_CREDIT: u64 = CREDIT.0;

/// How long the same fraction of a request counts against the window.
const DRAW: Span = Span::from_millis(2);

/// The golden ratio in 2^32: its multiples, modulo one, fill the interval evenly.
const GOLDEN: u32 = 0x9E37_79B9;

/// Where they begin. A fraction is never nothing, so a window that holds whole requests holds exactly those.
const HALF: u32 = 1 << 31;

/// Why an I/O goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Overdue,
    Reservation,
    Target,
    Shares,
}

/// Why none goes.
enum Block {
    Nothing,
    Full,
    Turn(usize),
}

/// A group's disks on this thread that wait for the group's limit.
#[derive(Default)]
struct Group {
    waiting: Heap,
    /// Whether the group is in the heap of moments.
    parked: bool,
    /// The disk that was let through last and has not started anything yet.
    released: Option<u32>,
}

/// See the module.
pub struct Scheduler {
    member: Member,
    io_unit: u32,
    orders: Orders,
    /// The window as it holds: none outside [`Mode::On`].
    window: u64,
    /// Whether an I/O may pass without a look at tags.
    passing: bool,
    /// Clamp of tags (lambda).
    lead: u64,
    active_shares: u64,
    disks: Vec<Option<Disk>>,
    ready: Heap,
    reserved: Heap,
    targets: Heap,
    parked: Heap,
    groups: Vec<Group>,
    parked_groups: Heap,
    fraction: u64,
    redraw: Time,
    overdue: VecDeque<u32>,
    look: Time,
    bins: Bins,
    /// When it was last told the time.
    now: Time,
}

impl Scheduler {
    /// That of I/O thread `thread`, without disks. `io_unit`: bytes that count as one unit.
    ///
    /// # Panics
    /// When `shared` was made for fewer threads.
    pub fn new(thread: usize, shared: SharedHandle, io_unit: u32) -> Scheduler {
        let orders = Orders::idle(super::CostModel::unknown());
        let mut member = Member::new(thread, shared);
        member.fit(orders.window);
        Scheduler {
            member,
            io_unit: io_unit.max(1),
            window: orders.window,
            orders,
            passing: true,
            lead: LEAD_UNKNOWN,
            active_shares: 0,
            disks: Vec::new(),
            ready: Heap::new(),
            reserved: Heap::new(),
            targets: Heap::new(),
            parked: Heap::new(),
            groups: Vec::new(),
            parked_groups: Heap::new(),
            fraction: 0,
            redraw: Time::ZERO,
            overdue: VecDeque::new(),
            look: Time::ZERO,
            bins: Bins::default(),
            now: Time::ZERO,
        }
    }

    /// A disk of this datastore comes to this thread.
    ///
    /// # Panics
    /// When it is here already.
    pub fn add(&mut self, now: Time, disk: DiskId, key: DiskKey, policy: &Policy) {
        let index = disk.0 as usize;
        if self.disks.len() <= index {
            self.disks.resize_with(index + 1, || None);
        }
        assert!(
            self.disks[index].is_none(),
            "a disk comes to a scheduler once"
        );
        let theta = self.theta();
        self.disks[index] = Some(Disk::new(now, key, policy, self.member.v(), theta));
        self.note_group(policy);
    }

    /// The disk's policy is this one from now on.
    ///
    /// # Panics
    /// When the disk is not here.
    pub fn change(&mut self, now: Time, disk: DiskId, policy: &Policy) {
        let theta = self.theta();
        self.now = now;
        self.note_group(policy);
        self.take_out(now, disk.0);
        self.disk(disk.0).change(now, policy, theta);
        self.place(now, disk.0);
        self.publish();
    }

    fn note_group(&mut self, policy: &Policy) {
        if let Some(group) = policy.group
            && self.groups.len() <= group.0 as usize
        {
            self.groups
                .resize_with(group.0 as usize + 1, Group::default);
        }
    }

    /// The disk leaves. What it had in flight may still be reported, and is forgotten.
    ///
    /// # Panics
    /// When something of it waits ([`Scheduler::drain`] comes first), or it is not here.
    pub fn remove(&mut self, disk: DiskId) {
        assert!(
            self.disk(disk.0).queue.is_empty(),
            "a disk leaves once nothing of it waits"
        );
        self.disks[disk.0 as usize] = None;
    }

    /// The governor's orders hold from now on. Ask `pick` afterwards: there may be room.
    pub fn steer(&mut self, now: Time, orders: &Orders) {
        let theta = self.theta();
        self.orders = orders.clone();
        if orders.io_unit > 0 {
            self.io_unit = orders.io_unit;
        }
        let on = orders.mode == Mode::On;
        self.window = if on { orders.window } else { u64::MAX };
        self.passing = !(on && orders.engaged);
        self.member.fit(self.window);
        if theta != self.theta() {
            let theta = self.theta();
            for slot in 0..self.disks.len() {
                if let Some(disk) = &mut self.disks[slot] {
                    disk.shrink(theta);
                    let slot = u32::try_from(slot).expect("disks are numbered in 32 bits");
                    self.order(slot);
                }
            }
        }
        let shares_of = |active: bool| -> u64 {
            let disks = self.disks.iter().flatten();
            let disks = disks.filter(|disk| !active || disk.is_active());
            disks.map(|disk| u64::from(disk.policy.shares)).sum()
        };
        // Before anybody has asked for anything, all count: a lead that is too short is soon right, one without end is not.
        self.active_shares = match self.active_shares.max(shares_of(true)) {
            0 => shares_of(false),
            shares => shares,
        };
        let shares = self.member.exchange_shares(self.active_shares);
        self.lead = match orders.per_second {
            0 => LEAD_UNKNOWN,
            rate => virtual_span(rate / 10, shares),
        };
        self.now = now;
        if !self.limits() {
            self.unpark(now);
        }
        self.publish();
    }

    /// What part of reservations holds: all of it while nothing is congested, none where control is off.
    fn theta(&self) -> u32 {
        match (self.orders.mode, self.orders.engaged) {
            (Mode::Off, _) => 0,
            (_, false) => 1 << 16,
            (_, true) => self.orders.theta,
        }
    }

    /// Whether limits hold anybody.
    fn limits(&self) -> bool {
        self.orders.mode != Mode::Observe
    }

    /// An I/O has passed the filters.
    ///
    /// # Panics
    /// When the disk is not here.
    #[inline]
    pub fn offer(
        &mut self,
        now: Time,
        disk: DiskId,
        io: IoId,
        op: Op,
        offset: u64,
        len: u64,
    ) -> Offer {
        let passing = self.passing && self.ready.is_empty() && !self.member.someone_waits();
        let of = self.disks[disk.0 as usize]
            .as_mut()
            .expect("the engine offers I/Os of disks that it has added");
        let cost = self.orders.costs.cost(op, len, offset == of.end).0;
        if !matches!(op, Op::Flush) {
            of.end = offset.wrapping_add(len);
        }
        let bytes = counted_len(op, len);
        if passing && of.free && !never_held(op) && self.member.try_start(cost, cost, self.window) {
            let units = units(bytes, self.io_unit);
            of.account.started(now, cost, units, bytes);
            self.bins.started(now, cost);
            return Offer::Start(Cost(cost));
        }
        self.offer_held(now, disk.0, io, op, cost, bytes)
    }

    /// The same for what may have to wait, or must not.
    fn offer_held(
        &mut self,
        now: Time,
        slot: u32,
        io: IoId,
        op: Op,
        cost: u64,
        bytes: u64,
    ) -> Offer {
        if never_held(op) {
            return self.start_debt(now, slot, cost);
        }
        let (v, io_unit) = (self.member.v(), self.io_unit);
        let observes = !self.limits();
        self.now = now;
        let disk = self.disk(slot);
        let units = units(bytes, io_unit);
        if observes && disk.queue.is_empty() {
            let late = disk.gates.units.observe(ticks(now), units);
            disk.account.held_ns[Hold::Limit.index()] += late;
            let late = disk.gates.bytes.observe(ticks(now), bytes);
            disk.account.held_ns[Hold::Bandwidth.index()] += late;
            disk.account.started(now, cost, units, bytes);
            self.member.start(cost);
            self.bins.started(now, cost);
            return Offer::Start(Cost(cost));
        }
        let queued = Queued {
            io,
            cost,
            units,
            bytes,
            since: now,
        };
        disk.push(now, v, queued);
        if disk.place == Place::Idle {
            // Of its group nobody else may become ready either.
            let group = disk.group;
            let alone = self.ready.is_empty() && !self.is_group_held(now, group);
            self.place(now, slot);
            if alone && let Ok((started, _, cost)) = self.dispatch(now) {
                assert!(started == slot, "nobody else was ready");
                return Offer::Start(cost);
            }
            self.publish();
        }
        Offer::Wait
    }

    /// Starts what is never held, and charges it: the disk's next turn comes later.
    fn start_debt(&mut self, now: Time, slot: u32, cost: u64) -> Offer {
        let (v, lead, engaged) = (self.member.v(), self.lead, !self.passing);
        self.member.start(cost);
        self.bins.started(now, cost);
        let disk = self.disk(slot);
        if engaged {
            if disk.place == Place::Idle {
                disk.wakes(now, v);
            }
            disk.charge(cost, v, lead);
        }
        disk.account.started(now, cost, 0, 0);
        self.order(slot);
        self.publish();
        Offer::Start(Cost(cost))
    }

    /// The next I/O to give to the datastore, or why there is none. To be asked until it is not [`Pick::Now`].
    pub fn pick(&mut self, now: Time) -> Pick {
        self.now = now;
        self.member.awake();
        self.release_due(now);
        if now >= self.look {
            self.look_for_overdue(now);
        }
        self.publish();
        if !self.ready.is_empty() && self.member.is_full(self.window) {
            return Pick::Full;
        }
        let mut answer = self.dispatch(now);
        if !self.member.is_alone() && matches!(answer, Err(Block::Full | Block::Turn(_))) {
            // Whoever makes room from now on sees this thread; whoever made it before is seen here.
            self.member.sleep();
            answer = self.dispatch(now);
            if !matches!(answer, Err(Block::Full | Block::Turn(_))) {
                self.member.awake();
            }
        }
        match answer {
            Ok((slot, io, cost)) => Pick::Now(DiskId(slot), io, cost),
            Err(Block::Nothing) => self.nothing_ready(),
            Err(Block::Full) => Pick::Full,
            Err(Block::Turn(thread)) => self.hand_over(thread),
        }
    }

    fn hand_over(&mut self, thread: usize) -> Pick {
        self.member.say();
        if self.member.wake(thread) {
            Pick::Other(thread)
        } else {
            Pick::Behind
        }
    }

    /// Nothing is ready here: room goes to a thread that sleeps for want of it.
    fn nothing_ready(&mut self) -> Pick {
        if self.member.someone_waits()
            && self.member.has_room(self.window)
            && let Some(thread) = self.member.sleeper()
        {
            self.member.say();
            if self.member.wake(thread) {
                return Pick::Other(thread);
            }
        }
        let own = self.parked.peek();
        let group = self.parked_groups.peek();
        match (own, group) {
            (Some((at, slot)), group) if group.is_none_or(|(other, _)| at <= other) => {
                let hold = match self.disk(slot).place {
                    Place::Parked(hold) => hold,
                    Place::Idle | Place::Ready | Place::InGroup => Hold::Limit,
                };
                Pick::At(moment(at), hold)
            }
            (_, Some((at, _))) => Pick::At(moment(at), Hold::GroupLimit),
            (_, None) => Pick::Empty,
        }
    }

    /// When `pick` is to be asked at the latest though nothing happens: a limit lets something pass.
    pub fn deadline(&self) -> Option<Time> {
        let firsts = [self.parked.peek(), self.parked_groups.peek()];
        firsts.into_iter().flatten().map(|(at, _)| moment(at)).min()
    }

    /// An I/O that was started at `issued` has ended. `cost`: what it was charged. Ask `pick` afterwards: there is room,
    /// here or for another thread.
    #[inline]
    pub fn finished(
        &mut self,
        now: Time,
        disk: DiskId,
        op: Op,
        len: u64,
        issued: Time,
        cost: Cost,
    ) {
        self.member.finish(cost.0);
        self.bins.ended(now, cost.0);
        let (reads, writes) = match op {
            Op::Read | Op::Prefetch => (1, 0),
            Op::Write => (0, 1),
            Op::WriteZeroes | Op::Discard | Op::Flush | Op::Extents => (0, 0),
        };
        self.bins.count(now, reads, writes, len);
        if let Some(Some(disk)) = self.disks.get_mut(disk.0 as usize) {
            let latency = self.orders.costs.normalise(op, len, now.since(issued));
            disk.ended(now, op, cost.0, latency);
        }
    }

    /// How many I/Os of the disk wait.
    pub fn waiting(&self, disk: DiskId) -> usize {
        let disk = self.disks.get(disk.0 as usize).and_then(Option::as_ref);
        disk.map_or(0, |disk| disk.queue.len())
    }

    /// Takes out the I/Os of the disk that wait, in order.
    pub fn drain(&mut self, disk: DiskId, out: &mut Vec<IoId>) {
        let (now, v) = (self.now, self.member.v());
        self.take_out(now, disk.0);
        let disk = self.disk(disk.0);
        while let Some(queued) = disk.pop(now, v) {
            out.push(queued.io);
        }
        self.publish();
    }

    /// Appends what each disk used since the last call, and starts a new count.
    pub fn usage(&mut self, now: Time, out: &mut Vec<Usage>) {
        let v = self.member.v();
        self.active_shares = 0;
        for (id, disk) in (0..).zip(&mut self.disks) {
            if let Some(disk) = disk {
                let usage = disk.usage(DiskId(id), now, v);
                if usage.active {
                    self.active_shares += u64::from(usage.shares);
                }
                out.push(usage);
            }
        }
    }

    /// Appends the 100 ms bins that are complete.
    pub fn bins(&mut self, out: &mut Vec<Bin>) {
        self.bins.take(out);
    }

    /// Cost in flight of this thread's disks.
    pub fn in_flight(&self) -> Cost {
        Cost(self.member.own())
    }

    fn disk(&mut self, slot: u32) -> &mut Disk {
        self.disks[slot as usize]
            .as_mut()
            .expect("the heaps and the engine name disks that were added")
    }

    /// Starts the I/O whose turn it is, if it may.
    fn dispatch(&mut self, now: Time) -> Result<(u32, IoId, Cost), Block> {
        loop {
            let (slot, phase) = self.choose(now)?;
            let fraction = self.fraction(now);
            let (window, limits) = (self.window, self.limits());
            let disk = self.disks[slot as usize]
                .as_mut()
                .expect("the heaps name disks that were added");
            let first = disk
                .queue
                .front()
                .expect("a ready disk has something to do");
            let (cost, units, bytes) = (first.cost, first.units, first.bytes);
            let need = ((cost * fraction) >> 16).max(1);
            if !self.member.try_start(cost, need, window) {
                return Err(Block::Full);
            }
            if let Some(group) = disk.group
                && limits
                && !self.member.groups().take(group, ticks(now), units, bytes)
            {
                self.member.finish(cost);
                self.hold_in_group(now, slot, group);
                self.publish();
                continue;
            }
            let io = self.start(now, slot, phase);
            self.publish();
            return Ok((slot, io, Cost(cost)));
        }
    }

    /// Whose turn it is, and why.
    fn choose(&mut self, now: Time) -> Result<(u32, Phase), Block> {
        while let Some(slot) = self.overdue.front().copied() {
            let disk = self.disks[slot as usize].as_mut();
            match disk.filter(|disk| disk.overdue && disk.place == Place::Ready) {
                Some(_) => return Ok((slot, Phase::Overdue)),
                None => drop(self.overdue.pop_front()),
            }
        }
        if let Some((at, slot)) = self.reserved.peek()
            && at <= ticks(now)
            && self.member.has_reserve_credit()
        {
            return Ok((slot, Phase::Reservation));
        }
        let Some((least, first)) = self.ready.peek() else {
            return Err(Block::Nothing);
        };
        let (slot, tag, phase) = match self.near_target(now) {
            Some((slot, tag)) => (slot, tag, Phase::Target),
            None => (first, least, Phase::Shares),
        };
        if self.window != u64::MAX
            && let Some(thread) = self.member.before_me(tag, REACH, ticks(now))
        {
            return Err(Block::Turn(thread));
        }
        Ok((slot, phase))
    }

    /// The disk whose latency target is about to be missed, unless it has had more than its part.
    fn near_target(&mut self, now: Time) -> Option<(u32, u64)> {
        let latest = ticks(now + self.orders.latency_p99);
        let furthest = self.member.v().wrapping_add(self.lead / 4);
        while let Some((deadline, slot)) = self.targets.peek() {
            if deadline > latest {
                return None;
            }
            let tag = self.disk(slot).tag;
            if !before(furthest, tag) {
                return Some((slot, tag));
            }
            // Its next I/O may try again.
            self.targets.remove(slot);
        }
        None
    }

    /// What part of a request must fit in the window, in 1/65536: all fractions equally often.
    fn fraction(&mut self, now: Time) -> u64 {
        if now >= self.redraw {
            let draw = now.as_nanos() / DRAW.as_nanos();
            self.redraw = Time::from_nanos((draw + 1) * DRAW.as_nanos());
            let low = u32::try_from(draw & u64::from(u32::MAX)).unwrap_or(0);
            self.fraction = u64::from(low.wrapping_mul(GOLDEN).wrapping_add(HALF) >> 16) | 1;
        }
        self.fraction
    }

    /// Accounts for the first I/O of a disk, which starts.
    fn start(&mut self, now: Time, slot: u32, phase: Phase) -> IoId {
        let (v, lead) = (self.member.v(), self.lead);
        let disk = self.disk(slot);
        let queued = disk.pop(now, v).expect("a ready disk has something to do");
        let Queued {
            io,
            cost,
            units,
            bytes,
            ..
        } = queued;
        let start = disk.tag;
        match phase {
            Phase::Shares => disk.charge_turn(cost),
            Phase::Overdue | Phase::Reservation | Phase::Target => disk.charge(cost, v, lead),
        }
        if phase == Phase::Reservation {
            disk.charge_reservation(units);
        }
        if !disk.free {
            disk.gates.units.take(ticks(now), units);
            disk.gates.bytes.take(ticks(now), bytes);
        }
        disk.overdue = phase == Phase::Overdue && places::is_overdue(disk, now);
        disk.account.started(now, cost, units, bytes);
        self.bins.started(now, cost);
        if phase == Phase::Shares {
            self.member.raise_v(later(v, start));
        }
        match phase {
            Phase::Reservation => self.member.spend_reserve_credit(cost),
            Phase::Overdue | Phase::Target | Phase::Shares => {
                self.member
                    .earn_reserve_credit(RESERVE_PARTS * cost, RESERVE_CREDIT);
            }
        }
        self.go_on(now, slot);
        io
    }
}
