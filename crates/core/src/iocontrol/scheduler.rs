//! The scheduler of one datastore on one I/O thread: it queues I/Os and picks the next one to start.
//!
//! The shard offers each I/O that has passed its disk's filters. `pick` returns queued I/Os; the thread calls it until
//! the result is not [`Pick::Now`]. The governor sets the window, the fraction of the reservations, and the costs. The
//! scheduler keeps the thread's disks in heaps. The state that threads share is in [`super::shared`].
//!
//! # Always true
//! - a disk with queued I/Os is in exactly one state: ready, parked by its own limit, waiting in its group, or at its
//!   part, with as much in flight as the governor's orders allow
//! - an I/O starts only if it fits in the window, or if nothing is in flight. A fraction of its cost counts, drawn anew
//!   every 2 ms
//! - limits are checked last and charged once: an I/O that passes them starts
//!
//! # Picture: a disk
//! ```text
//!           offer               limit            due
//!   Idle ─────────> Ready ─────────> Parked ─────────> Ready
//!    ^               │  ^ │   group's limit          one of the group's at a time,
//!    └───────────────┘  │ ├─────────> InGroup ───┐   least start tag first
//!      last one started │ └─────────> AtPart ────┤ one of its own ended
//!                       └────────────────────────┘
//! ```

mod background;
mod choice;
mod entry;
mod moving;
mod places;

use super::account::{Account, Bins};
use super::cost::{Prices, counted_len};
use super::disk::{CREDIT, Disk, Place};
use super::limit::{Spent, moment};
use super::policy::{Policy, units};
use super::shared::{Member, Shared, SharedHandle};
use super::tags::{Heap, SCALE_BITS, virtual_span};
use super::{Bin, Cost, DiskKey, Hold, Mode, Offer, Orders, Pick, Usage};
use crate::request::{DiskId, IoId, Op};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use background::{Background, background_shares};
use choice::Block;
pub(crate) use moving::MovingDisk;

/// How far a disk's tag may advance while the datastore's rate is unknown: its credit, at 1000 shares.
const LEAD_UNKNOWN: u64 = (CREDIT.0 << SCALE_BITS) / 1_000;

/// The disks of a group on this thread that wait for the group's limit.
#[derive(Default)]
struct Group {
    waiting: Heap,
    /// Whether the group is in the heap of timers.
    parked: bool,
    /// The disk that was released last and has not started an I/O yet.
    released: Option<u32>,
    /// I/Os of the group started here. Other threads see by it whether this one makes progress.
    started: u64,
    /// For the last yield to another thread: its seat, its word, and the time of the limit.
    yielded: Option<(usize, u64, u64)>,
    /// By seat: the word of a thread that had priority and did not use it in time.
    ignored: Vec<u64>,
    /// The tick from which no thread is ignored any more.
    forget: u64,
}

/// See the module.
pub struct Scheduler {
    member: Member,
    io_unit: u32,
    orders: Orders,
    /// The effective window: unlimited outside [`Mode::On`].
    window: u64,
    /// Whether an I/O may start without comparing tags.
    passing: bool,
    /// Whether, in addition, no I/O is queued here and no other thread serves the datastore. Only the window matters
    /// then.
    calm: bool,
    prices: Prices,
    /// The maximum advance of tags (lambda).
    lead: u64,
    active_shares: u64,
    disks: Vec<Option<Disk>>,
    /// By slot number, as the disks.
    accounts: Vec<Account>,
    /// Queued I/Os.
    held: usize,
    /// Disks that are at their part.
    at_part: usize,
    ready: Heap,
    reserved: Heap,
    targets: Heap,
    parked: Heap,
    groups: Vec<Group>,
    parked_groups: Heap,
    fraction: u64,
    redraw: Time,
    overdue: VecDeque<u32>,
    next_scan: Time,
    background: Background,
    bins: Bins,
    /// Whether any I/O completed since the last usage report.
    active: bool,
    /// The time of the last call.
    now: Time,
}

impl Scheduler {
    /// The scheduler of I/O thread `thread`, without disks. `io_unit`: bytes that count as one unit.
    ///
    /// # Panics
    /// If `shared` was created for fewer threads.
    pub fn new(thread: usize, shared: SharedHandle, io_unit: u32) -> Scheduler {
        let orders = Orders::idle(super::CostModel::unknown());
        let mut member = Member::new(thread, shared);
        member.fit(orders.window);
        let io_unit = io_unit.max(1);
        Scheduler {
            calm: member.is_alone(),
            member,
            io_unit,
            prices: Prices::of(&orders.costs, io_unit),
            window: orders.window,
            orders,
            passing: true,
            lead: LEAD_UNKNOWN,
            active_shares: 0,
            disks: Vec::new(),
            accounts: Vec::new(),
            held: 0,
            at_part: 0,
            ready: Heap::new(),
            reserved: Heap::new(),
            targets: Heap::new(),
            parked: Heap::new(),
            groups: Vec::new(),
            parked_groups: Heap::new(),
            fraction: 0,
            redraw: Time::ZERO,
            overdue: VecDeque::new(),
            next_scan: Time::ZERO,
            background: Background::new(),
            bins: Bins::default(),
            active: false,
            now: Time::ZERO,
        }
    }

    /// A scheduler that only has limits, for one disk that is on several datastores. Its settings are this one's, and it
    /// shares the groups.
    pub(crate) fn limits_only(&self, now: Time) -> Scheduler {
        let shared = Shared::new(1, self.member.groups_handle());
        let mut limits = Scheduler::new(0, shared, self.io_unit);
        limits.steer(now, &self.orders_for_limits());
        limits
    }

    /// The orders that such a scheduler follows.
    pub(crate) fn orders_for_limits(&self) -> Orders {
        Orders {
            io_unit: self.io_unit,
            ..self.orders.for_limits()
        }
    }

    /// Adds a disk of this datastore to this thread.
    ///
    /// # Panics
    /// If the disk is here already.
    pub fn add(&mut self, now: Time, disk: DiskId, key: DiskKey, policy: &Policy) {
        let index = disk.0 as usize;
        if self.disks.len() <= index {
            self.disks.resize_with(index + 1, || None);
            self.accounts
                .resize_with(index + 1, || Account::new(now, false));
        }
        assert!(
            self.disks[index].is_none(),
            "a disk is added to a scheduler once"
        );
        let theta = self.theta();
        let mut here = Disk::new(key, policy, self.member.v(), theta);
        here.group_tag = self.note_group(policy);
        self.accounts[index] = Account::new(now, here.free);
        self.disks[index] = Some(here);
    }

    /// Changes the disk's policy.
    ///
    /// # Panics
    /// If the disk is not here.
    pub fn change(&mut self, now: Time, disk: DiskId, policy: &Policy) {
        let theta = self.theta();
        self.now = now;
        let group_tag = self.note_group(policy);
        self.take_out(now, disk.0);
        let of = self.disk(disk.0);
        if of.policy.group != policy.group {
            of.group_tag = group_tag;
        }
        of.change(now, policy, theta);
        self.accounts[disk.0 as usize].free = of.free;
        self.place(now, disk.0);
        self.publish();
    }

    /// Makes room for the disk's group, and returns the tag at which a new disk of it starts.
    fn note_group(&mut self, policy: &Policy) -> u64 {
        let Some(group) = policy.group else { return 0 };
        let group = group.0 as usize;
        if self.groups.len() <= group {
            self.groups.resize_with(group + 1, Group::default);
        }
        self.member.take_seat(group);
        self.member.groups().v(group)
    }

    /// Removes the disk and returns what it has used of its limits, if anything. Its I/Os in flight may still complete;
    /// these completions are ignored, until another disk gets its number.
    ///
    /// # Panics
    /// If an I/O of the disk is queued ([`Scheduler::drain`] comes first), or the disk is not here.
    pub fn remove(&mut self, disk: DiskId) -> Option<Box<Spent>> {
        assert!(
            self.waiting(disk) == 0,
            "a disk is removed only without queued I/Os"
        );
        self.accounts[disk.0 as usize].free = false;
        self.disks[disk.0 as usize].take()?.spent()
    }

    /// Restores what a newly added disk had used of its limits when it was last attached, on any thread, less what has
    /// expired since.
    ///
    /// # Panics
    /// If the disk is not here.
    pub fn resume(&mut self, now: Time, disk: DiskId, spent: &Spent) {
        self.disk(disk.0).resume(now, spent);
    }

    /// Applies the governor's orders. Call `pick` afterwards: there may be room.
    pub fn steer(&mut self, now: Time, orders: &Orders) {
        let theta = self.theta();
        if orders.engaged && !self.orders.engaged {
            self.bins.restart(now);
        }
        if orders.costs != self.orders.costs {
            self.prices = Prices::of(&orders.costs, self.io_unit);
        }
        self.orders = orders.clone();
        if orders.io_unit > 0 {
            self.io_unit = orders.io_unit;
        }
        let on = orders.mode == Mode::On;
        self.window = if on { orders.window } else { u64::MAX };
        self.passing = !(on && orders.engaged);
        self.member.fit(self.window);
        self.divide(now);
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
            let disks = self.disks.iter().zip(&self.accounts);
            let disks = disks.filter_map(|(disk, account)| Some((disk.as_ref()?, account)));
            let disks = disks.filter(|(disk, account)| !active || disk.is_guest_active(account));
            disks.map(|(disk, _)| u64::from(disk.policy.shares)).sum()
        };
        // Before the first I/O, all disks count. A lead that is too short is soon corrected; an unbounded one is not.
        self.active_shares = match self.active_shares.max(shares_of(true)) {
            0 => shares_of(false),
            shares => shares,
        };
        let shares = self.member.exchange_shares(self.active_shares);
        self.weigh_background(shares);
        self.lead = match orders.per_second {
            0 => LEAD_UNKNOWN,
            rate => virtual_span(rate / 10, shares),
        };
        self.now = now;
        if !self.limits() {
            self.unpark(now);
        }
        self.note_calm();
        self.publish();
    }

    /// Gives each disk the part from the orders.
    fn divide(&mut self, now: Time) {
        let on = !self.passing;
        for slot in 0..self.disks.len() {
            let Some(disk) = &mut self.disks[slot] else {
                continue;
            };
            let part = part_of(&self.orders, disk.key, on);
            if part != disk.part {
                disk.part = part;
                let slot = u32::try_from(slot).expect("disks are numbered in 32 bits");
                self.release_from_part(now, slot);
            }
        }
    }

    /// Updates `calm`. Call it whenever one of its conditions has changed.
    fn note_calm(&mut self) {
        self.calm = self.passing && self.held == 0 && self.member.is_alone();
    }

    /// The fraction of reservations that applies: all of it on an uncongested datastore.
    fn theta(&self) -> u32 {
        if self.orders.engaged {
            self.orders.theta
        } else {
            1 << 16
        }
    }

    /// Whether limits delay I/Os.
    fn limits(&self) -> bool {
        self.orders.mode != Mode::Observe
    }

    /// Offers an I/O that has passed the filters.
    ///
    /// # Panics
    /// If the disk is not here.
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
        match self.start_at_once(now, disk, op, offset, len) {
            Some(cost) => Offer::Start(cost),
            None => self.consider(now, disk, io, op, offset, len),
        }
    }

    /// The fast path of [`Scheduler::offer`]: it starts an ordinary I/O if only the window matters.
    #[inline(always)]
    pub(crate) fn start_at_once(
        &mut self,
        now: Time,
        disk: DiskId,
        op: Op,
        offset: u64,
        len: u64,
    ) -> Option<Cost> {
        if !self.calm {
            return None;
        }
        let price = self.prices.ordinary(op, len)?;
        let account = self.accounts.get_mut(disk.0 as usize)?;
        let cost = price.cost(len, offset == account.end);
        if !account.free || !self.member.try_start_alone(cost, self.window) {
            return None;
        }
        account.end = offset.wrapping_add(len);
        account.started(now, cost, 1, len);
        Some(Cost(cost))
    }

    /// Returns the next I/O for the datastore, or why there is none. Call it until the result is not [`Pick::Now`].
    pub fn pick(&mut self, now: Time) -> Pick {
        self.now = now;
        self.member.awake();
        self.release_due(now);
        if now >= self.next_scan {
            self.scan_for_overdue(now);
        }
        self.publish();
        if !self.ready.is_empty() && self.member.is_full(self.window) {
            return Pick::Full;
        }
        let mut answer = self.dispatch(now);
        if !self.member.is_alone() && matches!(answer, Err(Block::Full | Block::Turn(_))) {
            // A thread that makes room from now on sees this thread. Room that was made earlier is visible here.
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
        self.member.publish_in_flight();
        if self.member.wake(thread) {
            Pick::Other(thread)
        } else {
            Pick::Behind
        }
    }

    /// No I/O is ready here: a thread that sleeps for lack of room gets the room.
    fn nothing_ready(&mut self) -> Pick {
        if self.member.someone_waits()
            && self.member.has_room(self.window)
            && let Some(thread) = self.member.sleeper()
        {
            self.member.publish_in_flight();
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
                    Place::Idle | Place::Ready | Place::InGroup | Place::AtPart => Hold::Limit,
                };
                Pick::At(moment(at), hold)
            }
            (_, Some((at, _))) => Pick::At(moment(at), Hold::GroupLimit),
            (_, None) => Pick::Empty,
        }
    }

    /// The latest time for the next call of `pick` without other events: a limit expires then.
    pub fn deadline(&self) -> Option<Time> {
        let firsts = [self.parked.peek(), self.parked_groups.peek()];
        firsts.into_iter().flatten().map(|(at, _)| moment(at)).min()
    }

    /// Whether a sample of the disk's reads and writes may represent all: the datastore is uncongested, no I/O waits
    /// for room, no limit applies to the disk, and its rate is high. Check again after an order, a change of policy, a
    /// call of `usage`, and when [`Scheduler::finished_for`] returns true.
    pub(crate) fn may_skip(&self, disk: DiskId) -> bool {
        let slot = disk.0 as usize;
        let (Some(account), Some(Some(disk))) = (self.accounts.get(slot), self.disks.get(slot))
        else {
            return false;
        };
        let calm = self.passing && !self.orders.engaged && self.is_roomy();
        calm && disk.free && disk.policy.latency_target.is_none() && account.is_busy()
    }

    /// Whether no I/O waits for room or priority, here or on another thread.
    fn is_roomy(&self) -> bool {
        self.ready.is_empty() && !self.member.someone_waits()
    }

    /// Offers a sample that represents `times` I/Os of a disk for which [`Scheduler::may_skip`] holds. It starts if all
    /// of them fit and no I/O waits. `sequential`: it begins where the previous one ended.
    #[inline(never)]
    pub(crate) fn start_for(
        &mut self,
        now: Time,
        disk: DiskId,
        op: Op,
        len: u64,
        sequential: bool,
        times: u64,
    ) -> Option<Cost> {
        let cost = self.orders.costs.cost(op, len, sequential).0 * times;
        let roomy = self.is_roomy();
        let account = self.accounts.get_mut(disk.0 as usize)?;
        if !roomy || !self.member.try_start(cost, cost, self.window) {
            return None;
        }
        let bytes = counted_len(op, len);
        let units = units(bytes, self.io_unit) * times;
        account.started(now, cost, units, bytes * times);
        Some(Cost(cost))
    }

    /// Reports the completion of an I/O that was started at `issued`. `cost`: its charge. Call `pick` afterwards: there
    /// is room, here or for another thread.
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
        self.finished_for(now, disk, op, len, issued, cost, 1);
    }

    /// The same for a sample of this many I/Os. Returns whether the caller must check [`Scheduler::may_skip`] again.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "all are properties of the completed I/O"
    )]
    pub(crate) fn finished_for(
        &mut self,
        now: Time,
        disk: DiskId,
        op: Op,
        len: u64,
        issued: Time,
        cost: Cost,
        times: u64,
    ) -> bool {
        self.active = true;
        self.member.finish(cost.0);
        let Some(account) = self.accounts.get_mut(disk.0 as usize) else {
            return false;
        };
        let mut anew = false;
        account.ended(now, cost.0);
        // A flush takes as long as the writes before it: its latency does not measure the queue.
        if matches!(op, Op::Read | Op::Write) {
            let latency = self.orders.costs.normalise(op, len, now.since(issued));
            anew = account.record(now, latency, times);
        }
        if self.orders.engaged {
            self.count(now, op, len);
        }
        if self.at_part != 0 {
            self.release_from_part(now, disk.0);
        }
        anew
    }

    /// Ends an I/O that only had to pass the limits here, as soon as it has.
    pub(crate) fn passed(&mut self, now: Time, disk: DiskId, cost: Cost) {
        self.member.finish(cost.0);
        if let Some(account) = self.accounts.get_mut(disk.0 as usize) {
            account.ended(now, cost.0);
        }
    }

    /// Counts a completion on a congested datastore for the cost learner.
    #[inline(never)]
    fn count(&mut self, now: Time, op: Op, len: u64) {
        match op {
            Op::Read | Op::Prefetch => self.bins.count(now, 1, 0, len),
            Op::Write => self.bins.count(now, 0, 1, len),
            Op::WriteZeroes | Op::Discard | Op::Flush | Op::Extents => {}
        }
    }

    /// Whether any I/O waits for room, here or on another thread. If so, call `pick` after a completion.
    #[inline]
    pub fn someone_waits(&self) -> bool {
        !self.calm && (self.held > 0 || self.member.someone_waits())
    }

    /// Whether the datastore was used since the last usage report, or has I/O in flight or queued. I/Os that a disk's
    /// own limit delays count too.
    pub fn is_active(&self) -> bool {
        self.active || self.member.own() > 0 || self.held > 0
    }

    /// The number of queued I/Os of the disk.
    pub fn waiting(&self, disk: DiskId) -> usize {
        let id = disk;
        let disk = self.disks.get(disk.0 as usize).and_then(Option::as_ref);
        let queued = disk.map_or(0, |disk| disk.queue.len());
        queued + self.background.waiting(id)
    }

    /// Removes the queued I/Os of the disk, in order.
    pub fn drain(&mut self, disk: DiskId, out: &mut Vec<IoId>) {
        let (now, v) = (self.now, self.member.v());
        self.take_out(now, disk.0);
        let disk = self.disk(disk.0);
        let before = out.len();
        while let Some(queued) = disk.pop(now, v) {
            out.push(queued.io);
        }
        self.held -= out.len() - before;
        self.note_calm();
        self.publish();
    }

    /// Appends each disk's usage since the last call, and resets the counts.
    pub fn usage(&mut self, now: Time, out: &mut Vec<Usage>) {
        let v = self.member.v();
        self.active_shares = 0;
        self.active = false;
        let accounts = self.accounts.iter_mut();
        for ((id, disk), account) in (0..).zip(&mut self.disks).zip(accounts) {
            if let Some(disk) = disk {
                let guest_active = disk.is_guest_active(account);
                let mut usage = disk.usage(DiskId(id), now, v, account);
                if guest_active {
                    self.active_shares += u64::from(usage.shares);
                } else if usage.active {
                    usage.shares = background_shares(usage.shares);
                }
                out.push(usage);
            }
        }
    }

    /// Appends the complete 100 ms bins.
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
}

/// What the orders let a disk have in flight; everything unless they are `on`.
fn part_of(orders: &Orders, key: DiskKey, on: bool) -> u64 {
    let part = orders.parts.binary_search_by_key(&key, |(key, _)| *key);
    let part = part.ok().filter(|_| on);
    part.map_or(u64::MAX, |at| orders.parts[at].1)
}
