//! The page of an I/O thread: times, turns, wake-ups, and how long requests may have waited for it.
//!
//! Its thread stores a time only when it changes between working, polling and sleeping. A reader adds the time since
//! the last change, so the thread need not store anything while it works.
//!
//! # Always true
//! - `busy + spinning + sleeping` of a reading is the age at that reading, within a microsecond; none of them decreases
//!
//! # Picture
//! ```text
//!   state:  [ since, busy ] -> CHANGING -> [ since, asleep ] -> CHANGING -> ...
//!   A reader takes the times between two loads of `state`, and repeats if these differ.
//! ```

use super::delays::{DelayHistogram, Delays};
use super::disk::add;
use super::part_of;
use super::schedstat::Schedstat;
use crate::sys::os;
use std::fs::File;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use tidegate_core::units::{Span, Time};

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It works.
    Busy = 0,
    /// It polls and finds nothing.
    Spinning = 1,
    /// It sleeps.
    Sleeping = 2,
}

const STATES: usize = 3;
/// The state's word while the times change: no state, and a time that does not come.
const CHANGING: u64 = u64::MAX;
/// Attempts to read between two changes, after which the reader yields its CPU: the thread may have lost its own in
/// the middle of a change.
const ATTEMPTS: u32 = 100;

/// What woke a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakeCause {
    /// A guest's kick.
    Kick = 0,
    /// The end of an operation of a datastore or a socket.
    Completion = 1,
    /// A message of another thread.
    Inbox = 2,
    /// A deadline.
    Timer = 3,
}

/// See the module. Only its thread writes it.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct ThreadCounters {
    /// Since when it is in which state: nanoseconds and two bits; or [`CHANGING`].
    state: AtomicU64,
    times: [AtomicU64; STATES],
    turns: AtomicU64,
    empty_turns: AtomicU64,
    requests: AtomicU64,
    wakes: [AtomicU64; 4],
    longest_turn: AtomicU64,
    stalls: AtomicU64,
    moved_in: AtomicU64,
    moved_out: AtomicU64,
    unassigned: AtomicU64,
    delays: Delays,
    /// Its number in the system; zero before it runs.
    thread: AtomicU32,
    readers: Mutex<Readers>,
}

/// What the readers of a page share; its thread does not use it.
#[derive(Debug, Default)]
struct Readers {
    /// What the kernel counts for the thread: opened by the first reader.
    schedstat: Option<File>,
    /// The times of the last reading. A thread reads the clock shortly before it stores a change, and a reader between the
    /// two takes the old state to last. Its next reading must not be less.
    last: [Span; STATES],
}

impl ThreadCounters {
    pub(crate) fn new(now: Time) -> ThreadCounters {
        ThreadCounters {
            state: AtomicU64::new(word(State::Sleeping, now)),
            times: Default::default(),
            turns: AtomicU64::new(0),
            empty_turns: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            wakes: Default::default(),
            longest_turn: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
            moved_in: AtomicU64::new(0),
            moved_out: AtomicU64::new(0),
            unassigned: AtomicU64::new(0),
            delays: Delays::default(),
            thread: AtomicU32::new(0),
            readers: Mutex::default(),
        }
    }

    /// The calling thread is the one that is counted, from now on.
    pub(crate) fn begin(&self, now: Time) {
        self.thread.store(os::thread_id(), Ordering::Relaxed);
        self.enter(State::Busy, now);
    }

    /// The thread changes its state at `now`.
    #[inline]
    pub(crate) fn enter(&self, next: State, now: Time) {
        let old = self.state.load(Ordering::Relaxed);
        self.state.store(CHANGING, Ordering::Relaxed);
        fence(Ordering::Release);
        let since = Time::from_nanos(old >> 2);
        let time = &self.times[(old & 3) as usize % STATES];
        add(time, now.since(since).as_nanos());
        self.state.store(word(next, now), Ordering::Release);
    }

    /// The time in which the thread has worked until `now`. For its own use.
    pub(crate) fn busy(&self, now: Time) -> Span {
        let [busy, ..] = self.times_at(now, self.state.load(Ordering::Relaxed));
        busy
    }

    /// Turns, those without work, and requests so far.
    #[inline]
    pub(crate) fn publish(&self, turns: u64, empty_turns: u64, requests: u64) {
        self.turns.store(turns, Ordering::Relaxed);
        self.empty_turns.store(empty_turns, Ordering::Relaxed);
        self.requests.store(requests, Ordering::Relaxed);
    }

    pub(crate) fn woken(&self, cause: WakeCause) {
        add(&self.wakes[cause as usize], 1);
    }

    /// So many requests were taken after a turn of this length: they may have waited as long.
    #[inline]
    pub(crate) fn delayed(&self, requests: u64, turn: Span) {
        self.delays.record(turn, requests);
    }

    /// A turn took longer than any before.
    pub(crate) fn longest(&self, turn: Span) {
        self.longest_turn.store(turn.as_nanos(), Ordering::Relaxed);
    }

    /// A turn took too long.
    pub(crate) fn stalled(&self) {
        add(&self.stalls, 1);
    }

    /// A disk came from another thread.
    pub(crate) fn moved_in(&self) {
        add(&self.moved_in, 1);
    }

    /// A disk went to another thread.
    pub(crate) fn moved_out(&self) {
        add(&self.moved_out, 1);
    }

    /// Time that belongs to no disk.
    pub(crate) fn unassigned(&self, time: Span) {
        add(&self.unassigned, time.as_nanos());
    }

    /// The state's times until `now`, at this word.
    fn times_at(&self, now: Time, state: u64) -> [Span; STATES] {
        let mut times = [0; STATES];
        for (copy, time) in times.iter_mut().zip(&self.times) {
            *copy = time.load(Ordering::Relaxed);
        }
        if let Some(current) = times.get_mut((state & 3) as usize) {
            *current += now.since(Time::from_nanos(state >> 2)).as_nanos();
        }
        times.map(Span::from_nanos)
    }

    /// The times and the moment for which they hold.
    fn times(&self) -> (Time, [Span; STATES]) {
        let mut attempts = 0;
        loop {
            let before = self.state.load(Ordering::Acquire);
            if before != CHANGING {
                // Not before the state began: the clock may be read earlier there than here.
                let now = os::now().max(Time::from_nanos(before >> 2));
                let times = self.times_at(now, before);
                fence(Ordering::Acquire);
                if self.state.load(Ordering::Relaxed) == before {
                    return (now, times);
                }
            }
            attempts += 1;
            if attempts % ATTEMPTS == 0 {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// What the thread has done so far. For other threads.
    pub(crate) fn read(&self) -> ThreadActivity {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if readers.schedstat.is_none() {
            let thread = self.thread.load(Ordering::Relaxed);
            readers.schedstat = Schedstat::open(std::process::id(), thread).ok();
        }
        let schedstat = readers.schedstat.as_ref().map(Schedstat::read);
        // Nothing before the thread runs, or where the kernel does not count.
        let schedstat = schedstat.and_then(Result::ok).unwrap_or_default();
        let (at, mut times) = self.times();
        for (time, last) in times.iter_mut().zip(&mut readers.last) {
            *last = (*last).max(*time);
            *time = *last;
        }
        self.activity(at, times, schedstat)
    }

    /// What the thread has done so far, without what the kernel counts. For the thread itself: it takes no lock.
    pub(crate) fn read_own(&self) -> ThreadActivity {
        let (at, times) = self.times();
        self.activity(at, times, Schedstat::default())
    }

    fn activity(&self, at: Time, times: [Span; STATES], schedstat: Schedstat) -> ThreadActivity {
        let Schedstat { run, run_delay } = schedstat;
        let [busy, spinning, sleeping] = times;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let requests = load(&self.requests);
        let [kicks, completions, inbox, timer] = &self.wakes;
        ThreadActivity {
            at,
            age: busy + spinning + sleeping,
            busy,
            spinning,
            sleeping,
            cpu: run,
            run_delay,
            turns: load(&self.turns),
            empty_turns: load(&self.empty_turns),
            requests,
            wakes: Wakes {
                kicks: load(kicks),
                completions: load(completions),
                inbox: load(inbox),
                timer: load(timer),
            },
            longest_turn: Span::from_nanos(load(&self.longest_turn)),
            stalls: load(&self.stalls),
            moved_in: load(&self.moved_in),
            moved_out: load(&self.moved_out),
            unassigned: Span::from_nanos(load(&self.unassigned)),
            delays: self.delays.read(requests),
        }
    }
}

fn word(state: State, since: Time) -> u64 {
    since.as_nanos() << 2 | state as u64
}

/// What an I/O thread has done since it was started.
#[derive(Clone, Debug, Default)]
pub struct ThreadActivity {
    /// When it was read.
    pub at: Time,
    /// How long it has existed: the sum of the next three.
    pub age: Span,
    /// Time spent working, on a CPU or waiting for one.
    pub busy: Span,
    /// Time spent polling without finding work, on a CPU or waiting for one.
    pub spinning: Span,
    /// Time from falling asleep to running again.
    pub sleeping: Span,
    /// Time on a CPU, as the kernel counts it; zero where it does not count.
    pub cpu: Span,
    /// Time in which it could run and others had its CPU; zero where the kernel does not count. It is a part of the
    /// three times above: see [`ThreadActivity::since`].
    pub run_delay: Span,
    /// Turns, up to 64 turns ago.
    pub turns: u64,
    /// Turns that found no work.
    pub empty_turns: u64,
    /// Requests taken.
    pub requests: u64,
    /// How often it was woken, by cause.
    pub wakes: Wakes,
    /// The longest turn.
    pub longest_turn: Span,
    /// Turns longer than a millisecond.
    pub stalls: u64,
    /// Disks that came from other threads.
    pub moved_in: u64,
    /// Disks that went to other threads.
    pub moved_out: u64,
    /// Busy time that belongs to no disk: messages, background work.
    pub unassigned: Span,
    /// How long requests may have waited, at most, until the thread saw them: the length of the turn before.
    pub delays: DelayHistogram,
}

/// How often a thread was woken, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakes {
    /// By a guest's kick.
    pub kicks: u64,
    /// By a datastore or a socket.
    pub completions: u64,
    /// By a message of another thread.
    pub inbox: u64,
    /// By a deadline.
    pub timer: u64,
}

impl Wakes {
    /// All of them.
    pub fn sum(&self) -> u64 {
        self.kicks + self.completions + self.inbox + self.timer
    }
}

/// The times of an I/O thread in an interval: they add up to its length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// It worked, on a CPU.
    pub busy: Span,
    /// It polled and found nothing, on a CPU.
    pub spinning: Span,
    /// It slept.
    pub sleeping: Span,
    /// It could run, and others had its CPU.
    pub stolen: Span,
}

impl ThreadTimes {
    /// The length of the interval.
    pub fn sum(&self) -> Span {
        self.busy + self.spinning + self.sleeping + self.stolen
    }
}

impl ThreadActivity {
    /// The times since an earlier reading of the same thread. What the thread lost while it was awake is taken from
    /// busy and polling time in proportion. The rest it lost when it was woken.
    pub fn since(&self, before: &ThreadActivity) -> ThreadTimes {
        let less = |now: Span, before: Span| now.as_nanos().saturating_sub(before.as_nanos());
        let busy = less(self.busy, before.busy);
        let spinning = less(self.spinning, before.spinning);
        let sleeping = less(self.sleeping, before.sleeping);
        let awake = busy + spinning;
        let lost = less(self.run_delay, before.run_delay).min(awake + sleeping);
        let lost_awake = awake.saturating_sub(less(self.cpu, before.cpu)).min(lost);
        let lost_asleep = (lost - lost_awake).min(sleeping);
        let of_busy = part_of(lost_awake, busy, awake);
        let of_spinning = lost_awake - of_busy;
        ThreadTimes {
            busy: Span::from_nanos(busy - of_busy),
            spinning: Span::from_nanos(spinning - of_spinning),
            sleeping: Span::from_nanos(sleeping - lost_asleep),
            stolen: Span::from_nanos(lost_awake + lost_asleep),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    fn activity(busy: u64, spinning: u64, sleeping: u64, cpu: u64, delay: u64) -> ThreadActivity {
        let micros = Span::from_micros;
        ThreadActivity {
            busy: micros(busy),
            spinning: micros(spinning),
            sleeping: micros(sleeping),
            cpu: micros(cpu),
            run_delay: micros(delay),
            ..ThreadCounters::new(Time::ZERO).read()
        }
    }

    #[test]
    fn times_of_an_interval_add_up_to_it() {
        let before = activity(1000, 100, 5000, 1000, 70);
        let micros = |times: ThreadTimes| {
            [times.busy, times.spinning, times.sleeping, times.stolen].map(Span::as_micros)
        };
        // Nothing lost; lost while awake; lost when it was woken; more lost than there was; the kernel does not count.
        for (now, expected) in [
            ((3000, 1100, 8000, 4000, 70), [2000, 1000, 3000, 0]),
            ((3000, 1100, 8000, 2500, 1570), [1000, 500, 3000, 1500]),
            ((3000, 1100, 8000, 4000, 570), [2000, 1000, 2500, 500]),
            ((3000, 1100, 8000, 1000, 99_000), [0, 0, 0, 6000]),
            ((3000, 1100, 8000, 1000, 70), [2000, 1000, 3000, 0]),
        ] {
            let (busy, spinning, sleeping, cpu, delay) = now;
            let times = activity(busy, spinning, sleeping, cpu, delay).since(&before);
            assert_eq!(micros(times), expected, "{now:?}");
            assert_eq!(times.sum(), Span::from_micros(6000));
        }
        assert_eq!(before.since(&before), ThreadTimes::default());
    }

    #[test]
    fn a_reading_in_the_middle_of_a_change_is_repeated() {
        // A clock ahead of the reader's: a reading is of the last change, and one that mixes two is wrong by a millisecond.
        let begin = os::now() + Span::from_secs(1_000_000);
        let page = Arc::new(ThreadCounters::new(begin));
        let ended = Arc::new(AtomicBool::new(false));
        let (written, stop) = (Arc::clone(&page), Arc::clone(&ended));
        let writer = std::thread::spawn(move || {
            let mut now = begin;
            while !stop.load(Ordering::Relaxed) {
                for state in [State::Spinning, State::Sleeping, State::Busy] {
                    now = now + Span::from_millis(1);
                    written.enter(state, now);
                }
            }
        });
        let (mut last, mut changes) = (begin, 0);
        while changes < 20_000 {
            let (at, [busy, spinning, sleeping]) = page.times();
            assert_eq!(busy + spinning + sleeping, at.since(begin));
            changes += u32::from(at > last);
            last = at;
        }
        ended.store(true, Ordering::Relaxed);
        writer.join().expect("the writer ends");
    }

    #[test]
    fn readings_during_changes_add_up_and_never_decrease() {
        let began = os::now();
        let page = Arc::new(ThreadCounters::new(began));
        let ended = Arc::new(AtomicBool::new(false));
        let (written, stop) = (Arc::clone(&page), Arc::clone(&ended));
        let writer = std::thread::spawn(move || {
            written.begin(os::now());
            while !stop.load(Ordering::Relaxed) {
                for state in [State::Spinning, State::Sleeping, State::Busy] {
                    written.enter(state, os::now());
                }
            }
        });
        let mut last = page.read();
        let (mut readings, mut changes, mut most) = (0, 0, 0);
        while readings < 20_000 || changes < 1000 {
            let read = page.read();
            readings += 1;
            changes += u32::from(read.spinning > last.spinning);
            assert!(read.age >= last.age);
            let ages = read
                .at
                .since(began)
                .as_nanos()
                .abs_diff(read.age.as_nanos());
            most = most.max(ages);
            assert!(read.busy >= last.busy && read.spinning >= last.spinning);
            assert!(read.sleeping >= last.sleeping && read.at >= last.at);
            last = read;
        }
        ended.store(true, Ordering::Relaxed);
        writer.join().expect("the writer ends");
        // The writer may lose its CPU between reading the clock and storing the change.
        assert!(most < 100_000_000, "{most} ns");
        let (read, now) = (page.read(), os::now());
        assert!(now.since(began).as_nanos().abs_diff(read.age.as_nanos()) < 100_000_000);
    }
}
