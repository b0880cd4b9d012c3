//! The state of a datastore that a host's I/O threads share: a few atomics.
//!
//! Threads have no quotas of their own. They share the virtual time, the cost in flight, and the least start tag that
//! waits on each, so that none runs ahead of the others by more than a bound. A thread that must wait says so here and
//! is named to whoever can wake it. Each [`super::scheduler::Scheduler`] holds one [`Member`].
//!
//! # Always true
//! - virtual time never goes back (loom)
//! - once every thread is quiet, the cost in flight is what was started and has not ended (loom)
//! - a thread that waits for room is seen by the one that makes room, or sees the room itself (loom)

use super::atomics::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
use super::groups::{NONE, wraps_before};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

pub use super::groups::{Groups, GroupsHandle, Rate};

/// What the schedulers of one datastore share.
pub type SharedHandle = Arc<Shared>;

/// The in-flight cost of a thread that others need not know yet: 8 reference I/Os. Origin: chosen; no measurement.
const BATCH_MAX: u64 = 8 * 256;

/// See the module. One for each datastore.
pub struct Shared {
    v: AtomicU64,
    in_flight: AtomicI64,
    /// Cost that reservations may take before others have had their part.
    reserve_credit: AtomicI64,
    /// How many lanes wait.
    waiting: AtomicU64,
    lanes: Box<[Lane]>,
    groups: GroupsHandle,
}

/// What one thread lets the others know. On cache lines of its own.
#[repr(align(128))]
struct Lane {
    /// The least start tag that is ready.
    start: AtomicU64,
    /// From which tick on a reservation is due.
    reserve: AtomicU64,
    /// Whether it sleeps though something is ready.
    waits: AtomicBool,
    /// Shares of its active disks.
    shares: AtomicU64,
}

impl Shared {
    /// For the schedulers of `threads` I/O threads, numbered from zero.
    pub fn new(threads: usize, groups: &GroupsHandle) -> SharedHandle {
        let lanes = (0..threads.max(1))
            .map(|_| Lane {
                start: AtomicU64::new(NONE),
                reserve: AtomicU64::new(NONE),
                waits: AtomicBool::new(false),
                shares: AtomicU64::new(0),
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
    /// Cost of this thread's own in flight.
    own: u64,
    /// The part of it (or of what ended) that the others do not know yet.
    unsaid: i64,
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
    /// That of thread `thread`.
    ///
    /// # Panics
    /// When the shared part was made for fewer threads.
    pub fn new(thread: usize, shared: SharedHandle) -> Member {
        assert!(
            thread < shared.lanes.len(),
            "the datastore is shared by as many threads as it was told"
        );
        Member {
            alone: shared.lanes.len() == 1,
            shared,
            thread,
            own: 0,
            unsaid: 0,
            batch: 0,
            start: NONE,
            reserve: NONE,
            seats: Vec::new(),
        }
    }

    /// Disks of this group are on this thread from now on. Where all seats are taken it goes without one: it then takes
    /// what the others leave.
    pub fn sit_down(&mut self, group: usize) {
        if self.seat(group).is_none()
            && let Some(seat) = self.shared.groups.sit_down(group)
        {
            self.seats.push((group, seat));
        }
    }

    fn seat(&self, group: usize) -> Option<usize> {
        let mut seats = self.seats.iter();
        seats.find(|(of, _)| *of == group).map(|(_, seat)| *seat)
    }

    /// Lets the others know the least tag that waits here for the group's limit, if any does.
    pub fn tell_group(&self, group: usize, tag: Option<u64>) {
        if let Some(seat) = self.seat(group) {
            self.shared.groups.tell(group, seat, tag);
        }
    }

    /// Of the other threads that wait for the group's limit, the one that is furthest behind, and its tag, if it is
    /// behind `tag` by more than threads may differ. `ignored`: tags, by seat, that nobody waits for any more.
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

    /// Moves the virtual time on to `tag`, unless it is there already.
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

    /// Whether reservations may take something before others have.
    #[inline]
    pub fn has_reserve_credit(&self) -> bool {
        self.shared.reserve_credit.load(Ordering::Relaxed) >= 0
    }

    /// A reservation has taken `cost`.
    #[inline]
    pub fn spend_reserve_credit(&self, cost: u64) {
        let credit = &self.shared.reserve_credit;
        credit.fetch_sub(cost.cast_signed(), Ordering::Relaxed);
    }

    /// Others have had something: reservations may take `cost` for it, and never more than `most` at once.
    #[inline]
    pub fn earn_reserve_credit(&self, cost: u64, most: u64) {
        let credit = &self.shared.reserve_credit;
        let room = most.cast_signed() - credit.load(Ordering::Relaxed);
        // Threads that come together may earn twice what there was room for; a few I/Os.
        if room > 0 {
            credit.fetch_add(room.min(cost.cast_signed()), Ordering::Relaxed);
        }
    }

    /// Fits the precision of the in-flight cost to the window: threads together are wrong by at most an eighth of it.
    pub fn fit(&mut self, window: u64) {
        let threads = self.shared.lanes.len() as u64;
        self.batch = (window / (8 * threads)).min(BATCH_MAX);
        // Below a reference I/O nothing is saved.
        if self.batch < 256 {
            self.batch = 0;
        }
        self.say();
    }

    /// Cost in flight of all threads, as far as this one knows.
    #[inline]
    pub fn in_flight(&self) -> u64 {
        if self.alone {
            return self.own;
        }
        let said = self.shared.in_flight.load(Ordering::SeqCst);
        u64::try_from(said + self.unsaid).unwrap_or(0)
    }

    /// Cost of this thread's own in flight.
    #[inline]
    pub fn own(&self) -> u64 {
        self.own
    }

    /// Whether this thread alone fills the window. With others, only they and `try_start` together can tell.
    #[inline]
    pub fn is_full(&self, window: u64) -> bool {
        self.alone && self.own != 0 && self.own >= window
    }

    /// Whether the window has room at all.
    pub fn has_room(&self, window: u64) -> bool {
        let there = self.in_flight();
        there == 0 || there < window
    }

    /// Takes `cost` into flight if `need` of it fits beside what is there, or if nothing is there.
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

    /// The same for a thread that is alone, where something is in flight or the window has room for any I/O.
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
            let fits = fits(central.load(Ordering::SeqCst) + self.unsaid);
            if fits {
                self.own += cost;
                self.unsaid += grown;
                if self.unsaid.unsigned_abs() > self.batch {
                    self.say();
                }
            }
            return fits;
        }
        // A small window is kept exactly: the check and the change are one.
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

    /// Takes `cost` into flight whether it fits or not.
    pub fn start(&mut self, cost: u64) {
        self.own += cost;
        self.unsaid += cost.cast_signed();
        if self.alone {
            self.unsaid = 0;
        } else if self.unsaid.unsigned_abs() > self.batch {
            self.say();
        }
    }

    /// `cost` has ended.
    #[inline]
    pub fn finish(&mut self, cost: u64) {
        debug_assert!(cost <= self.own, "only what has started ends");
        if self.alone {
            self.own = self.own.wrapping_sub(cost);
        } else {
            self.finish_beside(cost);
        }
    }

    fn finish_beside(&mut self, cost: u64) {
        self.own = self.own.wrapping_sub(cost);
        self.unsaid -= cost.cast_signed();
        if self.own == 0 || self.unsaid.unsigned_abs() > self.batch {
            self.say();
        }
    }

    /// Lets the others know all of this thread's in-flight cost.
    pub fn say(&mut self) {
        let unsaid = core::mem::take(&mut self.unsaid);
        if unsaid != 0 && !self.alone {
            self.shared.in_flight.fetch_add(unsaid, Ordering::SeqCst);
        }
    }

    /// Lets the others know the least start tag that is ready here, and from when on a reservation is due.
    #[inline]
    pub fn publish(&mut self, start: Option<u64>, reserve: Option<u64>) {
        if self.alone {
            return;
        }
        let lane = &self.shared.lanes[self.thread];
        // The tag that means "none" is one too late: nobody can tell.
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

    /// The thread whose turn it is before this one may start at `tag`: one that has a reservation that is due, or one
    /// that is behind by more than `reach`. It need not sleep: one that was woken would come too late otherwise.
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

    /// Whether anybody sleeps though something is ready.
    #[inline]
    pub fn someone_waits(&self) -> bool {
        !self.alone && self.shared.waiting.load(Ordering::Relaxed) != 0
    }

    /// Of those that sleep though something is ready, the one that is furthest behind.
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

    /// This thread will sleep though something is ready. Look for room once more after this.
    pub fn sleep(&mut self) {
        if self.alone {
            return;
        }
        self.say();
        if !self.shared.lanes[self.thread]
            .waits
            .swap(true, Ordering::SeqCst)
        {
            self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
    }

    /// This thread is awake.
    #[inline]
    pub fn awake(&mut self) {
        if !self.alone {
            self.wake(self.thread);
        }
    }

    /// Takes on the duty to wake `thread`; false when it is awake, or another has taken it on.
    pub fn wake(&self, thread: usize) -> bool {
        let waits = &self.shared.lanes[thread].waits;
        let slept = waits.load(Ordering::SeqCst) && waits.swap(false, Ordering::SeqCst);
        if slept {
            self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        slept
    }

    /// Lets the others know the shares of this thread's active disks, and tells those of all.
    pub fn exchange_shares(&mut self, shares: u64) -> u64 {
        self.shared.lanes[self.thread]
            .shares
            .store(shares, Ordering::Relaxed);
        let lanes = self.shared.lanes.iter();
        lanes.map(|lane| lane.shares.load(Ordering::Relaxed)).sum()
    }
}
