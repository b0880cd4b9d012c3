//! The state of a datastore that a host's I/O threads share: a few atomics.
//!
//! Threads have no quotas of their own. They share the virtual time, the cost in flight, and each thread's least
//! waiting start tag, so that none runs ahead of the others by more than a bound. A thread that must wait publishes
//! that here, and other threads can find and wake it. Each [`super::scheduler::Scheduler`] owns one [`Member`].
//!
//! # Always true
//! - virtual time never goes back (loom)
//! - once every thread is idle, the cost in flight equals the started cost minus the completed cost (loom)
//! - a thread that waits for room is seen by the thread that makes room, or sees the room itself (loom)

use super::atomics::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
use super::groups::{NONE, wraps_before};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

pub use super::groups::{Groups, GroupsHandle, Rate};

/// The state that the schedulers of one datastore share.
pub type SharedHandle = Arc<Shared>;

/// The in-flight cost that a thread need not publish yet: 8 reference I/Os. Origin: chosen; no measurement.
const BATCH_MAX: u64 = 8 * 256;

/// The shared state of one datastore; see the module.
pub struct Shared {
    v: AtomicU64,
    in_flight: AtomicI64,
    /// The cost that reservations may take before other I/O gets its part.
    reserve_credit: AtomicI64,
    /// The number of lanes that wait.
    waiting: AtomicU64,
    lanes: Box<[Lane]>,
    groups: GroupsHandle,
}

/// The state that one thread publishes, on its own cache lines.
#[repr(align(128))]
struct Lane {
    /// The least ready start tag.
    start: AtomicU64,
    /// The tick from which a reservation is due.
    reserve: AtomicU64,
    /// Whether it sleeps with a ready I/O.
    waits: AtomicBool,
    /// Shares of its active disks.
    shares: AtomicU64,
    /// Whether it works in the background.
    background: AtomicBool,
}

impl Shared {
    /// The state for the schedulers of `threads` I/O threads, numbered from zero.
    pub fn new(threads: usize, groups: &GroupsHandle) -> SharedHandle {
        let lanes = (0..threads.max(1))
            .map(|_| Lane {
                start: AtomicU64::new(NONE),
                reserve: AtomicU64::new(NONE),
                waits: AtomicBool::new(false),
                shares: AtomicU64::new(0),
                background: AtomicBool::new(false),
            })
            .collect();
        Arc::new(Shared {
            v: AtomicU64::new(0),
            in_flight: AtomicI64::new(0),
            reserve_credit: AtomicI64::new(0),
            waiting: AtomicU64::new(0),
            lanes,
            groups: groups.clone(),
        })
    }
}

/// One thread's part in [`Shared`].
pub struct Member {
    shared: SharedHandle,
    thread: usize,
    alone: bool,
    /// Cost in flight of this thread.
    own: u64,
    /// The change of it that is not published yet.
    unpublished: i64,
    batch: u64,
    start: u64,
    reserve: u64,
    /// The groups of this thread's disks, and the seat in each.
    seats: Vec<(usize, usize)>,
}

impl Drop for Member {
    fn drop(&mut self) {
        for (group, seat) in &self.seats {
            self.shared.groups.stand_up(*group, *seat);
        }
    }
}

impl Member {
    /// The member of thread `thread`.
    ///
    /// # Panics
    /// If the shared state was created for fewer threads.
    pub fn new(thread: usize, shared: SharedHandle) -> Member {
        assert!(
            thread < shared.lanes.len(),
            "the datastore is shared by at most the configured number of threads"
        );
        Member {
            alone: shared.lanes.len() == 1,
            shared,
            thread,
            own: 0,
            unpublished: 0,
            batch: 0,
            start: NONE,
            reserve: NONE,
            seats: Vec::new(),
        }
    }

    /// Takes a seat in a group that has disks on this thread. If all seats are taken, the thread works without one and
    /// uses what the others leave.
    pub fn take_seat(&mut self, group: usize) {
        if self.seat(group).is_none()
            && let Some(seat) = self.shared.groups.take_seat(group)
        {
            self.seats.push((group, seat));
        }
    }

    fn seat(&self, group: usize) -> Option<usize> {
        let mut seats = self.seats.iter();
        seats.find(|(of, _)| *of == group).map(|(_, seat)| *seat)
    }

    /// Publishes the least tag that waits here for the group's limit, if any.
    pub fn publish_group(&self, group: usize, tag: Option<u64>) {
        if let Some(seat) = self.seat(group) {
            self.shared.groups.publish(group, seat, tag);
        }
    }

    /// The other thread that is furthest behind in the group and waits for its limit, with its tag. `None` if it is not
    /// behind `tag` by more than threads may differ. `ignored`: by seat, words for which no thread waits any more.
    pub fn before_me_in_group(
        &self,
        group: usize,
        tag: u64,
        ignored: &[u64],
    ) -> Option<(usize, u64)> {
        let own = self.seat(group);
        self.shared.groups.before(group, own, tag, ignored)
    }

    /// The limits of groups.
    pub fn groups(&self) -> &Groups {
        &self.shared.groups
    }

    /// The same, for a scheduler that shares them.
    pub fn groups_handle(&self) -> &GroupsHandle {
        &self.shared.groups
    }

    /// Whether no other thread serves this datastore.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// The virtual time.
    #[inline]
    pub fn v(&self) -> u64 {
        self.shared.v.load(Ordering::Relaxed)
    }

    /// Advances the virtual time to `tag`, unless it is there already.
    #[inline]
    pub fn raise_v(&self, tag: u64) {
        let v = &self.shared.v;
        let mut now = v.load(Ordering::Relaxed);
        if self.alone {
            if wraps_before(now, tag) {
                v.store(tag, Ordering::Relaxed);
            }
            return;
        }
        while wraps_before(now, tag) {
            match v.compare_exchange_weak(now, tag, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => now = other,
            }
        }
    }

    /// Whether reservations may start I/O before others.
    #[inline]
    pub fn has_reserve_credit(&self) -> bool {
        self.shared.reserve_credit.load(Ordering::Relaxed) >= 0
    }

    /// Charges a reservation with `cost`.
    #[inline]
    pub fn spend_reserve_credit(&self, cost: u64) {
        let credit = &self.shared.reserve_credit;
        credit.fetch_sub(cost.cast_signed(), Ordering::Relaxed);
    }

    /// Credits reservations with `cost` after other I/O, up to `most`.
    #[inline]
    pub fn earn_reserve_credit(&self, cost: u64, most: u64) {
        let credit = &self.shared.reserve_credit;
        let room = most.cast_signed() - credit.load(Ordering::Relaxed);
        // Concurrent threads may together credit twice the room, which is a few I/Os.
        if room > 0 {
            credit.fetch_add(room.min(cost.cast_signed()), Ordering::Relaxed);
        }
    }

    /// Fits the precision of the in-flight cost to the window: the threads' total error is at most an eighth of it.
    pub fn fit(&mut self, window: u64) {
        let threads = self.shared.lanes.len() as u64;
        self.batch = (window / (8 * threads)).min(BATCH_MAX);
        // Below a reference I/O batching gains nothing.
        if self.batch < 256 {
            self.batch = 0;
        }
        self.publish_in_flight();
    }

    /// Cost in flight of all threads, as known to this one.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        if self.alone {
            return self.own;
        }
        let said = self.shared.in_flight.load(Ordering::SeqCst);
        u64::try_from(said + self.unpublished).unwrap_or(0)
    }

    /// Cost in flight of this thread.
    #[inline]
    pub fn own(&self) -> u64 {
        self.own
    }

    /// Whether this thread alone fills the window. With other threads only `try_start` can decide.
    #[inline]
    pub fn is_full(&self, window: u64) -> bool {
        self.alone && self.own != 0 && self.own >= window
    }

    /// Whether the window has any room.
    pub fn has_room(&self, window: u64) -> bool {
        let there = self.in_flight();
        there == 0 || there < window
    }

    /// Adds `cost` in flight if `need` of it fits in the window, or if nothing is in flight.
    #[inline]
    pub fn try_start(&mut self, cost: u64, need: u64, window: u64) -> bool {
        if self.alone {
            if self.own != 0 && self.own.saturating_add(need) > window {
                return false;
            }
            self.own += cost;
            return true;
        }
        self.try_start_beside(cost, need, window)
    }

    /// The same for the only thread, if an I/O is in flight or the window has room for any I/O.
    #[inline]
    pub fn try_start_alone(&mut self, cost: u64, window: u64) -> bool {
        let grown = self.own + cost;
        let fits = grown <= window;
        if fits {
            self.own = grown;
        }
        fits
    }

    fn try_start_beside(&mut self, cost: u64, need: u64, window: u64) -> bool {
        let fits = |there: i64| match u64::try_from(there) {
            Ok(there) => there == 0 || there.saturating_add(need) <= window,
            Err(_) => true,
        };
        let grown = cost.cast_signed();
        let central = &self.shared.in_flight;
        if self.batch != 0 {
            let fits = fits(central.load(Ordering::SeqCst) + self.unpublished);
            if fits {
                self.own += cost;
                self.unpublished += grown;
                if self.unpublished.unsigned_abs() > self.batch {
                    self.publish_in_flight();
                }
            }
            return fits;
        }
        // A small window is exact: the check and the update are one operation.
        let mut said = central.load(Ordering::SeqCst);
        while fits(said) {
            match central.compare_exchange_weak(
                said,
                said + grown,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => {
                    self.own += cost;
                    return true;
                }
                Err(other) => said = other,
            }
        }
        false
    }

    /// Adds `cost` in flight, even if it does not fit.
    pub fn start(&mut self, cost: u64) {
        self.own += cost;
        self.unpublished += cost.cast_signed();
        if self.alone {
            self.unpublished = 0;
        } else if self.unpublished.unsigned_abs() > self.batch {
            self.publish_in_flight();
        }
    }

    /// Removes the completed `cost`.
    #[inline]
    pub fn finish(&mut self, cost: u64) {
        debug_assert!(cost <= self.own, "only a started cost is completed");
        if self.alone {
            self.own = self.own.wrapping_sub(cost);
        } else {
            self.finish_beside(cost);
        }
    }

    fn finish_beside(&mut self, cost: u64) {
        self.own = self.own.wrapping_sub(cost);
        self.unpublished -= cost.cast_signed();
        if self.own == 0 || self.unpublished.unsigned_abs() > self.batch {
            self.publish_in_flight();
        }
    }

    /// Publishes all of this thread's in-flight cost.
    pub fn publish_in_flight(&mut self) {
        let unpublished = core::mem::take(&mut self.unpublished);
        if unpublished != 0 && !self.alone {
            self.shared
                .in_flight
                .fetch_add(unpublished, Ordering::SeqCst);
        }
    }

    /// Publishes the least ready start tag, and the tick from which a reservation is due.
    #[inline]
    pub fn publish(&mut self, start: Option<u64>, reserve: Option<u64>) {
        if self.alone {
            return;
        }
        let lane = &self.shared.lanes[self.thread];
        // The tag that means "none" is replaced by the next one; the difference does not matter.
        let start = start.map_or(NONE, |tag| if tag == NONE { NONE - 1 } else { tag });
        if start != self.start {
            self.start = start;
            lane.start.store(start, Ordering::Release);
        }
        let reserve = reserve.unwrap_or(NONE);
        if reserve != self.reserve {
            self.reserve = reserve;
            lane.reserve.store(reserve, Ordering::Release);
        }
    }

    /// The thread that has priority over an I/O at `tag` here: one with a due reservation, or one that is behind by
    /// more than `reach`. Threads that are awake count too, because a thread that is woken would come too late.
    #[inline]
    pub fn before_me(&self, tag: u64, reach: u64, now: u64) -> Option<usize> {
        if self.alone {
            return None;
        }
        let reserves = self.has_reserve_credit();
        let mut least: Option<(u64, usize)> = None;
        for (thread, lane) in self.shared.lanes.iter().enumerate() {
            if thread == self.thread {
                continue;
            }
            if reserves && lane.reserve.load(Ordering::Acquire) <= now {
                return Some(thread);
            }
            let start = lane.start.load(Ordering::Acquire);
            if start != NONE && least.is_none_or(|(other, _)| wraps_before(start, other)) {
                least = Some((start, thread));
            }
        }
        let (start, thread) = least?;
        wraps_before(start.wrapping_add(reach), tag).then_some(thread)
    }

    /// Whether any thread sleeps with a ready I/O.
    #[inline]
    pub fn someone_waits(&self) -> bool {
        !self.alone && self.shared.waiting.load(Ordering::Relaxed) != 0
    }

    /// The thread that is furthest behind among those that sleep with a ready I/O.
    pub fn sleeper(&self) -> Option<usize> {
        if self.alone {
            return None;
        }
        fence(Ordering::SeqCst);
        let mut least: Option<(u64, usize)> = None;
        for (thread, lane) in self.shared.lanes.iter().enumerate() {
            if thread == self.thread || !lane.waits.load(Ordering::SeqCst) {
                continue;
            }
            let start = lane.start.load(Ordering::Acquire);
            if least.is_none_or(|(other, _)| wraps_before(start, other)) {
                least = Some((start, thread));
            }
        }
        least.map(|(_, thread)| thread)
    }

    /// Marks this thread as asleep with a ready I/O. Check for room once more after this call.
    pub fn sleep(&mut self) {
        if self.alone {
            return;
        }
        self.publish_in_flight();
        if !self.shared.lanes[self.thread]
            .waits
            .swap(true, Ordering::SeqCst)
        {
            self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// Marks this thread as awake.
    #[inline]
    pub fn awake(&mut self) {
        if !self.alone {
            self.wake(self.thread);
        }
    }

    /// Takes the duty to wake `thread`; false if it is awake, or another thread has taken the duty.
    pub fn wake(&self, thread: usize) -> bool {
        let waits = &self.shared.lanes[thread].waits;
        let slept = waits.load(Ordering::SeqCst) && waits.swap(false, Ordering::SeqCst);
        if slept {
            self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        slept
    }

    /// Publishes the shares of this thread's active disks, and returns the total of all threads.
    pub fn exchange_shares(&mut self, shares: u64) -> u64 {
        self.shared.lanes[self.thread]
            .shares
            .store(shares, Ordering::Relaxed);
        let lanes = self.shared.lanes.iter();
        lanes.map(|lane| lane.shares.load(Ordering::Relaxed)).sum()
    }

    /// Publishes whether this thread works in the background, and returns how many threads do.
    pub fn exchange_background(&mut self, works: bool) -> u64 {
        self.shared.lanes[self.thread]
            .background
            .store(works, Ordering::Relaxed);
        let lanes = self.shared.lanes.iter();
        let works = lanes.filter(|lane| lane.background.load(Ordering::Relaxed));
        works.count() as u64
    }
}
