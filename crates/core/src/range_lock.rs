//! Range locks: they order the overlapping requests of a disk.
//!
//! Most requests need no order: where two requests in flight overlap, each sector may contain the data of either. A
//! read-modify-write request is different. It writes back sectors outside its own range, and must not overwrite data
//! that another request has written meanwhile. It therefore takes its range exclusively. Every other request that
//! changes the disk takes its range shared, but only while a request holds or awaits an exclusive range. An image calls
//! the lock before it starts a request, and when one has completed.
//!
//! # Always true
//! - an exclusive range overlaps no other range that is held
//! - waiting requests with overlapping ranges start in order of arrival: none starves
//! - while no request wants an exclusive range the lock is idle, holds nothing, and its owner need not call it. A shared
//!   range that was acquired before is forgotten then: who must keep others out for longer needs an exclusive one
//! - acquiring and releasing look once at each compared request, whatever the overlaps. At most [`MOST`] requests are
//!   compared; further ones wait in line. One disk's requests do not delay the other disks of its I/O thread
//!
//! # Picture
//! ```text
//!   shared     |-------|          |----|                 start at once, together
//!   exclusive         |-|                                waits for the first shared one
//!   shared            |-----|                            came later and overlaps it: waits for it
//!   shared                              |----|           overlaps no earlier request: starts at once
//! ```
//!
//! # Units
//! Bytes of a disk.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The number of requests that are compared with one another. It exceeds what an ordinary guest has in flight, and
/// looking at each takes only some microseconds.
pub const MOST: usize = 2048;

/// The mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Other requests may share the range.
    Shared,
    /// No other request may overlap the range.
    Exclusive,
}

/// A request's range, from `start` up to but not including `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The owner's name for the request; unique among the requests that hold or wait.
    pub id: u32,
    /// First byte.
    pub start: u64,
    /// First byte after the range.
    pub end: u64,
    /// The mode.
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
    /// The number of earlier conflicting requests that have not completed.
    blockers: usize,
}

/// See the module.
#[derive(Debug)]
pub struct RangeLock {
    held: Vec<Wanted>,
    waiting: VecDeque<Waiting>,
    /// Requests beyond the bound, not compared with any yet.
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
    /// A lock without any holder.
    pub const fn new() -> RangeLock {
        RangeLock::comparing(MOST)
    }

    /// The same with a bound other than [`MOST`].
    pub const fn comparing(most: usize) -> RangeLock {
        RangeLock {
            held: Vec::new(),
            waiting: VecDeque::new(),
            in_line: VecDeque::new(),
            exclusive: 0,
            most,
        }
    }

    /// Whether no request holds or awaits an exclusive range. A shared request then starts without calling the lock.
    #[inline]
    pub const fn is_idle(&self) -> bool {
        self.exclusive == 0
    }

    /// Whether a request holds or awaits a range that overlaps this one, exclusively, or one may that was not compared yet.
    pub fn is_wanted(&self, start: u64, end: u64) -> bool {
        if !self.in_line.is_empty() {
            return true;
        }
        let waiting = self.waiting.iter().map(|waiting| &waiting.wanted);
        let all = self.held.iter().chain(waiting);
        let mut exclusive = all.filter(|other| other.mode == Mode::Exclusive);
        exclusive.any(|other| other.start < end && start < other.end)
    }

    /// Adds a request that started while the lock was idle. Before its first exclusive range the owner reports all
    /// requests in flight.
    ///
    /// # Panics
    /// When the lock is not idle.
    pub fn note_in_flight(&mut self, request: Wanted) {
        assert!(
            self.is_idle(),
            "a request acquires its range first while another is exclusive"
        );
        self.held.push(request);
    }

    /// Requests a range. Returns whether the request may start now; otherwise it waits, and [`RangeLock::release`]
    /// returns it.
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

    /// Compares a request with all earlier ones. Returns whether it holds its range.
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

    /// Whether an exclusive range that is held overlaps this one.
    pub fn is_held(&self, start: u64, end: u64) -> bool {
        let mut held = self.held.iter().filter(|held| held.mode == Mode::Exclusive);
        held.any(|held| held.start < end && start < held.end)
    }

    /// Releases the range of a completed request. Appends the requests that may start now to `started`, in order.
    ///
    /// An unknown request is ignored: it started, and the lock has become idle since.
    pub fn release(&mut self, id: u32, started: &mut Vec<u32>) {
        let Some(at) = self.held.iter().position(|held| held.id == id) else {
            return;
        };
        let released = self.held.swap_remove(at);
        self.exclusive -= usize::from(released.mode == Mode::Exclusive);
        let held = &mut self.held;
        // A waiting request that conflicts with it came later, and has counted it.
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
            // No remaining request is exclusive.
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
    fn a_request_unknown_to_an_idle_lock_is_released_without_effect() {
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

    /// Many holders and many waiting requests, as from a guest's deep queues.
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
            // Each overlaps its predecessor.
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

    /// The rule of the module's description: an earlier request that has not completed blocks.
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
        // In order of arrival, and whether they have started.
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
