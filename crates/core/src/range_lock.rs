//! Range locks: they order the overlapping requests of a disk.
//!
//! Most requests need no order: where two that are in flight together overlap, each sector may hold what either of them
//! wrote. A request that is carried out as read, change and write back is different. It writes back sectors that are not its
//! own, and must not do so with bytes that another request has replaced meanwhile. Such a request takes its range
//! exclusively; every other request that changes the disk takes its range shared, but only while somebody holds or awaits a
//! range exclusively. An image (later: a layout) asks here before it starts a request, and reports when one has ended.
//!
//! # Always true
//! - an exclusive range overlaps no other range that is held
//! - waiting requests start in the order in which they came, as far as their ranges overlap: none starves
//! - while nobody wants an exclusive range the lock is idle, holds nothing, and its owner need not ask it
//! - asking, and reporting an end, looks once at each request that is compared, however their ranges overlap; at most
//!   [`MOST`] are, and those beyond wait in line for that: one disk's requests do not hold up the others of its I/O thread
//!
//! # Picture
//! ```text
//!   shared     |-------|          |----|                 start at once, together
//!   exclusive         |-|                                waits for the first shared one
//!   shared            |-----|                            came later and overlaps it: waits for it
//!   shared                              |----|           overlaps nobody who is ahead: starts at once
//! ```
//!
//! # Units
//! Bytes of a disk.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Requests that are compared with one another: more than an honest guest has in flight, and few enough that looking at each
/// takes some microseconds.
pub const MOST: usize = 2048;

/// How a range is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Together with others that are shared.
    Shared,
    /// Alone.
    Exclusive,
}

/// A request's range, from `start` up to and without `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The owner's own name for the request; unique among those that hold or wait.
    pub id: u32,
    /// First byte.
    pub start: u64,
    /// First byte behind it.
    pub end: u64,
    /// How.
    pub mode: Mode,
}

impl Wanted {
    fn conflicts(&self, other: &Wanted) -> bool {
        let exclusive = self.mode == Mode::Exclusive || other.mode == Mode::Exclusive;
        exclusive && self.start < other.end && other.start < self.end
    }
}

/// A request that may not start yet.
#[derive(Debug)]
struct Waiting {
    wanted: Wanted,
    /// Requests that came before it, conflict with it, and have not ended.
    blockers: usize,
}

/// See the module.
#[derive(Debug)]
pub struct RangeLock {
    held: Vec<Wanted>,
    waiting: VecDeque<Waiting>,
    /// Behind all of these, not compared with anything yet.
    in_line: VecDeque<Wanted>,
    /// Exclusive ranges, held or awaited.
    exclusive: usize,
    most: usize,
}

impl Default for RangeLock {
    fn default() -> RangeLock {
        RangeLock::new()
    }
}

impl RangeLock {
    /// Nobody holds anything.
    pub const fn new() -> RangeLock {
        RangeLock::comparing(MOST)
    }

    /// The same with another bound than [`MOST`].
    pub const fn comparing(most: usize) -> RangeLock {
        RangeLock {
            held: Vec::new(),
            waiting: VecDeque::new(),
            in_line: VecDeque::new(),
            exclusive: 0,
            most,
        }
    }

    /// Whether nobody holds or awaits an exclusive range. A shared request then starts without asking.
    #[inline]
    pub const fn is_idle(&self) -> bool {
        self.exclusive == 0
    }

    /// Notes a request that started while the lock was idle. The owner reports all that are in flight before it first asks
    /// for an exclusive range.
    ///
    /// # Panics
    /// When the lock is not idle.
    pub fn note_in_flight(&mut self, request: Wanted) {
        assert!(
            self.is_idle(),
            "requests that start while a range is exclusive ask first"
        );
        self.held.push(request);
    }

    /// Wants a range. Returns whether the request may start now; otherwise it waits, and [`RangeLock::release`] names it.
    pub fn acquire(&mut self, wanted: Wanted) -> bool {
        self.exclusive += usize::from(wanted.mode == Mode::Exclusive);
        if !self.in_line.is_empty() || !self.has_room() {
            self.in_line.push_back(wanted);
            return false;
        }
        self.enter(wanted)
    }

    fn has_room(&self) -> bool {
        self.held.len() + self.waiting.len() < self.most
    }

    /// Compares a request with all before it. Returns whether it holds its range.
    fn enter(&mut self, wanted: Wanted) -> bool {
        let waiting = self.waiting.iter().map(|waiting| &waiting.wanted);
        let ahead = self.held.iter().chain(waiting);
        let blockers = ahead.filter(|other| wanted.conflicts(other)).count();
        if blockers > 0 {
            self.waiting.push_back(Waiting { wanted, blockers });
            return false;
        }
        self.held.push(wanted);
        true
    }

    /// A request that held its range has ended. Appends those that may start now to `started`, in order.
    ///
    /// A request that holds nothing here, because it started and the lock became idle since, is not known, which is well.
    pub fn release(&mut self, id: u32, started: &mut Vec<u32>) {
        let Some(at) = self.held.iter().position(|held| held.id == id) else {
            return;
        };
        let released = self.held.swap_remove(at);
        self.exclusive -= usize::from(released.mode == Mode::Exclusive);
        let held = &mut self.held;
        // Whoever waits and conflicts with it came after it, and has counted it.
        self.waiting.retain_mut(|waiting| {
            waiting.blockers -= usize::from(waiting.wanted.conflicts(&released));
            let starts = waiting.blockers == 0;
            if starts {
                held.push(waiting.wanted);
                started.push(waiting.wanted.id);
            }
            !starts
        });
        if self.is_idle() {
            // None of those that are left is exclusive.
            started.extend(self.in_line.drain(..).map(|wanted| wanted.id));
            self.held.clear();
            return;
        }
        while self.has_room() {
            let Some(wanted) = self.in_line.pop_front() else {
                return;
            };
            if self.enter(wanted) {
                started.push(wanted.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(id: u32, start: u64, end: u64, mode: Mode) -> Wanted {
        Wanted {
            id,
            start,
            end,
            mode,
        }
    }

    #[test]
    fn an_exclusive_range_waits_for_those_in_flight_and_later_ones_wait_for_it() {
        let mut lock = RangeLock::new();
        lock.note_in_flight(wanted(0, 0, 8192, Mode::Shared));
        assert!(!lock.acquire(wanted(1, 0, 4096, Mode::Exclusive)));
        assert!(
            !lock.acquire(wanted(2, 0, 4096, Mode::Shared)),
            "it came later"
        );
        assert!(
            lock.acquire(wanted(3, 4096, 8192, Mode::Shared)),
            "it overlaps none that is exclusive"
        );
        let mut started = Vec::new();
        lock.release(3, &mut started);
        assert_eq!(started, []);
        lock.release(0, &mut started);
        assert_eq!(started, [1]);
        started.clear();
        lock.release(1, &mut started);
        assert_eq!(started, [2]);
        assert!(lock.is_idle());
    }

    #[test]
    fn exclusive_ranges_that_touch_do_not_overlap() {
        let mut lock = RangeLock::new();
        assert!(lock.acquire(wanted(0, 0, 4096, Mode::Exclusive)));
        assert!(lock.acquire(wanted(1, 4096, 8192, Mode::Exclusive)));
        assert!(!lock.acquire(wanted(2, 4095, 4097, Mode::Exclusive)));
        let mut started = Vec::new();
        lock.release(0, &mut started);
        assert_eq!(started, []);
        lock.release(1, &mut started);
        assert_eq!(started, [2]);
        assert!(!lock.is_idle());
        lock.release(2, &mut started);
        assert!(lock.is_idle());
    }

    #[test]
    fn who_started_before_the_lock_became_idle_ends_without_it() {
        let mut lock = RangeLock::new();
        assert!(lock.acquire(wanted(0, 0, 4096, Mode::Exclusive)));
        assert!(lock.acquire(wanted(1, 4096, 8192, Mode::Shared)));
        let mut started = Vec::new();
        lock.release(0, &mut started);
        assert!(lock.is_idle());
        lock.release(1, &mut started);
        assert_eq!(started, []);
        assert!(lock.acquire(wanted(2, 4096, 8192, Mode::Exclusive)));
    }

    /// Many that hold and many that wait: a guest's deep queues.
    #[test]
    fn many_that_wait_behind_one_cost_each_that_ends_one_look() {
        const MANY: u32 = 900;
        let mut lock = RangeLock::new();
        for id in 0..MANY {
            let start = u64::from(id) * 4096;
            lock.note_in_flight(wanted(id, start, start + 4096, Mode::Shared));
        }
        let far = 1 << 40;
        assert!(lock.acquire(wanted(MANY, far, far + 4096, Mode::Exclusive)));
        let waiting = MANY + 1..2 * MANY;
        for id in waiting.clone() {
            assert!(!lock.acquire(wanted(id, far, far + 4096, Mode::Shared)));
        }
        let mut started = Vec::new();
        for id in (0..MANY).rev() {
            lock.release(id, &mut started);
        }
        assert_eq!(started, []);
        lock.release(MANY, &mut started);
        assert!(started.into_iter().eq(waiting));
        assert!(lock.is_idle());
    }

    #[test]
    fn only_so_many_are_compared_and_the_others_wait_in_line() {
        const FEW: usize = 16;
        let mut lock = RangeLock::comparing(FEW);
        let requests = 10 * 16;
        for id in 0..requests {
            // Each overlaps the one before it.
            let at = u64::from(id) * 4096;
            lock.acquire(wanted(id, at, at + 4097, Mode::Exclusive));
            assert!(lock.held.len() + lock.waiting.len() <= FEW);
        }
        let mut running: Vec<u32> = lock.held.iter().map(|held| held.id).collect();
        let (mut ended, mut started) = (0, Vec::new());
        while let Some(id) = running.pop() {
            lock.release(id, &mut started);
            running.append(&mut started);
            ended += 1;
        }
        assert_eq!(ended, requests);
        assert!(lock.is_idle());
    }

    /// The rule, as the module has it: whoever is ahead and has not ended.
    fn may_start(all: &[(Wanted, bool)], at: usize) -> bool {
        all[..at]
            .iter()
            .all(|(ahead, _)| !ahead.conflicts(&all[at].0))
    }

    #[test]
    fn random_requests_start_as_soon_as_no_earlier_one_conflicts_and_no_sooner() {
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut lock = RangeLock::new();
        // In the order in which they came, and whether they have started.
        let mut all: Vec<(Wanted, bool)> = Vec::new();
        for id in 0..20_000 {
            if all.len() < 24 && random(2) == 0 {
                let start = random(32);
                let mode = [Mode::Shared, Mode::Exclusive][usize::from(random(3) == 0)];
                let new = wanted(id, start, start + 1 + random(8), mode);
                if lock.is_idle() && mode == Mode::Exclusive {
                    all.iter().for_each(|(held, _)| lock.note_in_flight(*held));
                }
                let asks = !lock.is_idle() || mode == Mode::Exclusive;
                all.push((new, !asks || lock.acquire(new)));
                let at = all.len() - 1;
                assert_eq!(all[at].1, may_start(&all, at));
            } else if let Some(nth) = (!all.is_empty()).then(|| random(24)) {
                let running = (0..all.len()).filter(|&at| all[at].1);
                let running: Vec<usize> = running.collect();
                let at = running[usize::try_from(nth).unwrap_or(0) % running.len()];
                let (ended, _) = all.remove(at);
                let mut started = Vec::new();
                lock.release(ended.id, &mut started);
                for at in 0..all.len() {
                    let starts = !all[at].1 && may_start(&all, at);
                    assert_eq!(starts, started.contains(&all[at].0.id));
                    all[at].1 |= starts;
                }
            }
        }
    }
}
