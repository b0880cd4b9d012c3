//! The accounts of an I/O thread: what its page shows of its turns, and which disk its time was for.
//!
//! Every 64 turns, and after a long one, the thread divides its busy time since the last division among the queues and
//! connections that it served. Each has a part by the requests that were taken and answered. So no clock is read for a
//! request, and a turn costs the accounts some instructions.
//!
//! # Always true
//! - what was divided, and what belongs to no disk, add up to the busy time until the last division

use super::{IoThread, TURNS_PER_SWEEP};
use crate::counters::{State, ThreadActivity, ThreadCounters, WakeCause, part_of};
use crate::tag;
use std::sync::Arc;
use tidegate_core::units::{Span, Time};

/// A turn of this length is divided at once, so that a division covers at most some milliseconds.
const LONG: Span = Span::from_micros(250);
/// A turn of this length is counted as a stall: guests of other disks notice it.
const STALL: Span = Span::from_millis(1);

/// See the module.
pub(crate) struct Tally {
    page: Arc<ThreadCounters>,
    turns: u64,
    empty_turns: u64,
    /// The length of the turn before, zero if the thread had nothing to do since.
    last_turn: Span,
    /// Requests until the turn before.
    requests: u64,
    longest: Span,
    /// A turn of this length is noted.
    notable: Span,
    /// Busy time until the last division.
    divided: Span,
    /// Queues and connections that were served since.
    served: Vec<Served>,
    /// Their requests, for the division.
    parts: Vec<u64>,
    /// Whether the thread has slept since its last turn.
    has_slept: bool,
}

/// What was served.
#[derive(Clone, Copy)]
enum Served {
    Queue(u32),
    Connection(u32),
}

impl Tally {
    pub(crate) fn new(page: Arc<ThreadCounters>, now: Time) -> Tally {
        page.begin(now);
        Tally {
            divided: page.busy(now),
            page,
            turns: 0,
            empty_turns: 0,
            last_turn: Span::ZERO,
            requests: 0,
            longest: Span::ZERO,
            notable: Span::ZERO,
            served: Vec::new(),
            parts: Vec::new(),
            has_slept: false,
        }
    }

    /// What the thread has done so far.
    pub(super) fn read(&self) -> ThreadActivity {
        self.publish();
        self.page.read_own()
    }

    /// A disk came from another thread.
    pub(super) fn moved_in(&self) {
        self.page.moved_in();
    }

    /// A disk went to another thread.
    pub(super) fn moved_out(&self) {
        self.page.moved_out();
    }

    /// Completions of this queue were published.
    #[inline]
    pub(super) fn served_queue(&mut self, index: u32) {
        self.served.push(Served::Queue(index));
    }

    /// Requests of this connection were taken.
    #[inline]
    pub(super) fn served_connection(&mut self, index: u32) {
        self.served.push(Served::Connection(index));
    }

    /// A turn ends. Returns whether it is time for a sweep.
    #[inline]
    pub(super) fn turn(&mut self) -> bool {
        self.turns += 1;
        self.turns.is_multiple_of(u64::from(TURNS_PER_SWEEP))
    }

    /// A turn with work took from `begin` to `end`; so many requests were taken until then. Returns whether it was long.
    #[inline]
    pub(super) fn worked(&mut self, begin: Time, end: Time, requests: u64) -> bool {
        if self.last_turn > Span::ZERO {
            self.page.delayed(requests - self.requests, self.last_turn);
        }
        self.requests = requests;
        self.last_turn = end.since(begin);
        self.last_turn >= self.notable && self.note_turn(self.last_turn)
    }

    #[cold]
    #[inline(never)]
    fn note_turn(&mut self, turn: Span) -> bool {
        if turn > self.longest {
            self.longest = turn;
            self.page.longest(turn);
            self.notable = turn.min(LONG);
        }
        if turn > STALL {
            self.page.stalled();
        }
        turn >= LONG
    }

    /// A turn found no work.
    #[inline]
    pub(super) fn found_nothing(&mut self) {
        self.empty_turns += 1;
        self.last_turn = Span::ZERO;
    }

    /// The thread changes what it does at `now`.
    #[inline]
    pub(super) fn enter(&mut self, state: State, now: Time) {
        self.page.enter(state, now);
    }

    /// The thread falls asleep at `now`.
    #[inline]
    pub(super) fn fall_asleep(&mut self, now: Time) {
        self.publish();
        self.page.enter(State::Sleeping, now);
        self.has_slept = true;
    }

    #[inline]
    fn publish(&self) {
        let Tally {
            turns, empty_turns, ..
        } = *self;
        self.page.publish(turns, empty_turns, self.requests);
    }

    /// The first turn after a sleep has this kind of completion first, or none.
    #[inline]
    pub(super) fn completions_begin(&mut self, first: impl FnOnce() -> Option<u8>) {
        if self.has_slept {
            self.has_slept = false;
            self.page.woken(match first() {
                None => WakeCause::Timer,
                Some(tag::KICK) => WakeCause::Kick,
                Some(tag::WAKEUP) => WakeCause::Inbox,
                Some(_) => WakeCause::Completion,
            });
        }
    }
}

impl IoThread {
    /// Divides the busy time since the last division among the disks that were served.
    pub(super) fn divide_time(&mut self) {
        self.tally.publish();
        let now = self.cx.now;
        let busy = self.tally.page.busy(now);
        let time = busy
            .as_nanos()
            .saturating_sub(self.tally.divided.as_nanos());
        self.tally.divided = busy;
        let mut parts = std::mem::take(&mut self.tally.parts);
        parts.extend(self.tally.served.iter().map(|&served| match served {
            Served::Queue(index) => {
                let queue = self.queues.get_mut(index as usize).and_then(Option::as_mut);
                queue.map_or(0, |queue| queue.share())
            }
            Served::Connection(index) => {
                let connection = self.connections.get(index as usize);
                let connection = connection.and_then(Option::as_ref);
                connection.map_or(0, |connection| connection.share())
            }
        }));
        let all: u64 = parts.iter().sum();
        let mut left = time;
        for (served, part) in self.tally.served.drain(..).zip(parts.drain(..)) {
            let share = Span::from_nanos(part_of(time, part, all));
            left -= share.as_nanos();
            match served {
                Served::Queue(index) => {
                    if let Some(queue) = &mut self.queues[index as usize] {
                        queue.charge(share, now);
                    }
                }
                Served::Connection(index) => {
                    let connection = self.connections.get_mut(index as usize);
                    if let Some(connection) = connection.and_then(Option::as_mut) {
                        connection.charge(share, now);
                    }
                }
            }
        }
        // What rounding left belongs to nobody in particular.
        self.tally.page.unassigned(Span::from_nanos(left));
        self.tally.parts = parts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::os;

    fn at(micros: u64) -> Time {
        Time::from_nanos(micros * 1000)
    }

    #[test]
    fn requests_may_have_waited_for_the_turn_before() {
        let page = Arc::new(ThreadCounters::new(os::now()));
        let mut tally = Tally::new(Arc::clone(&page), os::now());
        tally.worked(at(0), at(50), 10);
        tally.worked(at(50), at(450), 30);
        tally.worked(at(450), at(460), 31);
        tally.found_nothing();
        tally.worked(at(900), at(910), 41);
        tally.publish();
        let delays = page.read().delays;
        assert_eq!(delays.count(), 41);
        // 20 requests waited for up to 50 us, and one for up to 400 us. The others found the thread with nothing to do.
        let micros = |permyriad| delays.quantile(permyriad).as_micros();
        assert_eq!(micros(4800), 0);
        assert!((50..63).contains(&micros(9700)), "{}", micros(9700));
        assert!((400..500).contains(&micros(10_000)), "{}", micros(10_000));
    }

    #[test]
    fn long_turns_are_noted() {
        let page = Arc::new(ThreadCounters::new(os::now()));
        let mut tally = Tally::new(Arc::clone(&page), os::now());
        let long: Vec<bool> = [10, 100, 300, 249, 1001, 5000, 250, 20]
            .into_iter()
            .map(|micros| tally.worked(at(0), at(micros), 0))
            .collect();
        assert_eq!(long, [false, false, true, false, true, true, true, false]);
        let read = page.read();
        assert_eq!(read.longest_turn, Span::from_micros(5000));
        assert_eq!(read.stalls, 2);
    }

    #[test]
    fn the_first_completion_after_a_sleep_is_the_cause() {
        let page = Arc::new(ThreadCounters::new(os::now()));
        let mut tally = Tally::new(Arc::clone(&page), os::now());
        tally.completions_begin(|| Some(tag::KICK));
        let causes = [Some(tag::KICK), Some(tag::WAKEUP), Some(tag::IMAGE), None];
        for cause in causes.into_iter().chain([None, Some(tag::RECEIVE)]) {
            tally.fall_asleep(os::now());
            tally.completions_begin(|| cause);
            tally.completions_begin(|| Some(tag::KICK));
        }
        let wakes = page.read().wakes;
        let counts = [wakes.kicks, wakes.completions, wakes.inbox, wakes.timer];
        assert_eq!((counts, wakes.sum()), ([1, 2, 1, 2], 6));
    }
}
