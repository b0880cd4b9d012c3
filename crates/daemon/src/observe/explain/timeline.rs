//! The timeline of a disk: its counters of the last five minutes, once a second.
//!
//! The monitor adds a [`Beat`] for each sample; [`Timeline::over`] returns the two ends of a span.
//!
//! # Always true
//! - A timeline has at most [`ROOM`] beats, some 60 KB.
//! - While the disk is idle it does not grow: the last beat is moved instead, so that idle time never shortens its
//!   reach.

use std::collections::VecDeque;

use tidegate_core::filter::stats::Pulse;
use tidegate_core::iocontrol::Mode;
use tidegate_core::units::{Span, Time};

/// The longest span that can be explained.
pub(crate) const REACH: Span = Span::from_secs(300);

/// One beat a second, and the one before the first.
const ROOM: usize = 302;

/// A disk's counters at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Beat {
    pub(crate) at: Time,
    /// The counters of its `stats` filter, if it has one.
    pub(crate) pulse: Option<Pulse>,
    /// Its usage of the datastore, if that is under control.
    pub(crate) used: Option<Used>,
    /// The state of its datastore, if that is under control.
    pub(crate) level: Option<Level>,
    pub(crate) thread: Worked,
}

/// The usage of a datastore by a disk since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// I/Os that completed.
    pub(crate) ios: u64,
    /// Units of the I/Os that were started.
    pub(crate) units: u64,
    /// Bytes of the I/Os that were started.
    pub(crate) bytes: u64,
    /// Time in the datastore, summed over the I/Os, each normalised to 4 KiB.
    pub(crate) latency_ns: u64,
    /// Time in which I/Os waited for their turn, summed over the I/Os, in the order of `Hold::ALL`.
    pub(crate) held_ns: [u64; 5],
}

/// The state of a datastore's control at one moment, and its effect on one disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) mode: Mode,
    pub(crate) engaged: bool,
    pub(crate) latency: Span,
    /// Latency above which it counts as congested; `None` if it never does.
    pub(crate) threshold: Option<Span>,
    /// Units a second that the disk's share entitles it to; meaningful only while engaged.
    pub(crate) entitled: u64,
    /// The disk's demand, if its governor knows the disk.
    pub(crate) demand: Option<u64>,
    /// The disk's reservation was not met in the last second.
    pub(crate) unmet: bool,
    /// Load that none of our hosts causes.
    pub(crate) external: bool,
    /// This host cannot read the slots of the others.
    pub(crate) alone: bool,
    /// The others cannot read the slot of this host.
    pub(crate) mute: bool,
    /// The slot file cannot be used.
    pub(crate) trouble: bool,
    /// Units left of the disk's burst.
    pub(crate) burst_left: u64,
}

/// The time that an I/O thread has spent since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Worked {
    pub(crate) thread: u32,
    pub(crate) age: Span,
    pub(crate) busy: Span,
    pub(crate) polling: Span,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    beats: VecDeque<Beat>,
}

/// The two ends of a span, and the part of it in which control was engaged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stretch {
    pub(crate) from: Beat,
    pub(crate) to: Beat,
    pub(crate) engaged_ratio: f64,
}

impl Timeline {
    /// The timeline of a disk that was attached at this time, with all counters at zero.
    pub(crate) fn new(attached: Time) -> Timeline {
        let first = Beat {
            at: attached,
            ..Beat::default()
        };
        Timeline {
            beats: VecDeque::from([first]),
        }
    }

    /// Adds a sample.
    pub(crate) fn add(&mut self, beat: Beat) {
        // A stats filter that was removed or added again counts from zero, so earlier beats are useless.
        if self.beats.back().is_some_and(|last| !goes_on(last, &beat)) {
            self.beats.clear();
        }
        let len = self.beats.len();
        if len >= 2 && quiet(&self.beats[len - 2], &beat) && quiet(&self.beats[len - 1], &beat) {
            self.beats.pop_back();
        }
        self.beats.push_back(beat);
        let old = |beats: &VecDeque<Beat>| {
            beats.len() > ROOM
                || beats
                    .get(1)
                    .is_some_and(|second| second.at + REACH <= beat.at)
        };
        while old(&self.beats) {
            self.beats.pop_front();
        }
    }

    /// Records that the disk was idle since the last beat. No query is needed, because its governor counted nothing.
    pub(crate) fn rest(&mut self, now: Time) {
        let Some(mut beat) = self.beats.back().copied() else {
            return;
        };
        beat.thread.age = beat.thread.age + now.since(beat.at);
        beat.at = now;
        self.add(beat);
    }

    /// All beats, oldest first.
    pub(crate) fn beats(&self) -> impl ExactSizeIterator<Item = &Beat> {
        self.beats.iter()
    }

    /// The last beat.
    pub(crate) fn last(&self) -> Beat {
        self.beats.back().copied().unwrap_or_default()
    }

    /// The span from `last` ago, or from the oldest known beat, to `now`. `now` is not stored.
    pub(crate) fn over(&self, last: Span, now: &Beat) -> Stretch {
        let begins = Time::from_nanos(now.at.as_nanos().saturating_sub(last.as_nanos()));
        let known = || self.beats.iter().filter(|beat| goes_on(beat, now));
        let before = known().rfind(|beat| beat.at <= begins);
        let mut from = *before.or_else(|| known().next()).unwrap_or(now);
        // The disk was idle from there to the next beat, so its counters were the same when the span began.
        if let Some(next) = known().find(|beat| beat.at > from.at)
            && from.at < begins
            && quiet(&from, next)
        {
            from.thread = part_way(&from, next, begins);
            from.at = begins;
        }
        let mut at = from.at;
        let (mut engaged, mut all) = (0, 0);
        for beat in known()
            .filter(|beat| beat.at > from.at)
            .chain(std::iter::once(now))
        {
            let span = beat.at.since(at).as_nanos();
            at = beat.at;
            all += span;
            if beat.level.is_some_and(|level| level.engaged) {
                engaged += span;
            }
        }
        Stretch {
            from,
            to: *now,
            engaged_ratio: crate::observe::sample::ratio(engaged, all),
        }
    }
}

/// Whether the later beat continues the counters of the earlier.
pub(crate) fn goes_on(earlier: &Beat, later: &Beat) -> bool {
    let ios = |beat: &Beat| beat.pulse.map(|pulse| pulse.ios);
    match (ios(earlier), ios(later)) {
        (Some(then), Some(now)) => then <= now,
        // The very first beat has no counters yet.
        (None, Some(_)) => earlier.thread == Worked::default(),
        (Some(_), None) => false,
        (None, None) => true,
    }
}

/// The thread's time at a moment between two beats, interpolated linearly.
fn part_way(earlier: &Beat, later: &Beat, at: Time) -> Worked {
    let whole = u128::from(later.at.since(earlier.at).as_nanos()).max(1);
    let passed = u128::from(at.since(earlier.at).as_nanos());
    let between = |then: Span, now: Span| {
        let spent = u128::from(now.as_nanos().saturating_sub(then.as_nanos()));
        let part = u64::try_from(spent * passed / whole).unwrap_or(u64::MAX);
        then + Span::from_nanos(part)
    };
    let (then, now) = (&earlier.thread, &later.thread);
    Worked {
        thread: now.thread,
        age: between(then.age, now.age),
        busy: between(then.busy, now.busy),
        polling: between(then.polling, now.polling),
    }
}

/// Whether the disk was idle between the two beats.
fn quiet(earlier: &Beat, later: &Beat) -> bool {
    let still = |beat: &Beat| beat.pulse.is_none_or(|pulse| pulse.outstanding == 0);
    earlier.pulse == later.pulse && earlier.used == later.used && still(earlier) && still(later)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(second: u64, ios: u64) -> Beat {
        Beat {
            at: Time::ZERO + Span::from_secs(second),
            pulse: Some(Pulse {
                ios,
                ..Pulse::default()
            }),
            thread: Worked {
                age: Span::from_secs(second + 1),
                ..Worked::default()
            },
            level: Some(Level {
                engaged: second.is_multiple_of(2),
                ..Level::default()
            }),
            ..Beat::default()
        }
    }

    fn ios(stretch: &Stretch) -> (u64, u64) {
        let ios = |beat: &Beat| beat.pulse.map_or(0, |pulse| pulse.ios);
        (ios(&stretch.from), ios(&stretch.to))
    }

    #[test]
    fn a_span_begins_at_the_last_beat_before_it() {
        let mut course = Timeline::new(Time::ZERO);
        (1..=60).for_each(|second| course.add(beat(second, second * 10)));
        let stretch = course.over(Span::from_secs(30), &beat(61, 610));
        assert_eq!(ios(&stretch), (310, 610));
        assert!((stretch.engaged_ratio - 0.5).abs() < 0.02);
    }

    #[test]
    fn a_young_disk_is_told_of_since_it_was_attached() {
        let course = Timeline::new(Time::ZERO);
        let stretch = course.over(Span::from_secs(30), &beat(4, 7));
        assert_eq!((ios(&stretch), stretch.from.at), ((0, 7), Time::ZERO));
    }

    #[test]
    fn it_keeps_five_minutes_and_no_more() {
        let mut course = Timeline::new(Time::ZERO);
        (1..=1_000).for_each(|second| course.add(beat(second, second)));
        assert!(course.beats.len() <= ROOM, "{}", course.beats.len());
        let stretch = course.over(REACH, &beat(1_001, 1_001));
        assert_eq!(ios(&stretch), (701, 1_001));
    }

    #[test]
    fn a_disk_that_rests_takes_no_room_and_loses_no_span() {
        let mut course = Timeline::new(Time::ZERO);
        (1..=10).for_each(|second| course.add(beat(second, second)));
        (11..=200).for_each(|second| course.add(beat(second, 10)));
        course.add(beat(201, 500));
        assert!(course.beats.len() < 15, "{}", course.beats.len());
        let stretch = course.over(Span::from_secs(10), &beat(202, 600));
        assert_eq!(ios(&stretch), (10, 600));
    }

    #[test]
    fn a_rest_is_known_without_asking() {
        let mut course = Timeline::new(Time::ZERO);
        (1..=10).for_each(|second| course.add(beat(second, second)));
        (2..=20).for_each(|five| course.rest(Time::ZERO + Span::from_secs(5 * five)));
        let stretch = course.over(Span::from_secs(10), &beat(101, 60));
        assert_eq!(ios(&stretch), (10, 60));
        assert_eq!(stretch.to.at.since(stretch.from.at), Span::from_secs(10));
        let aged = stretch.to.thread.age.as_nanos() - stretch.from.thread.age.as_nanos();
        assert_eq!(aged, Span::from_secs(10).as_nanos());
    }

    #[test]
    fn counters_that_begin_anew_forget_what_was() {
        let mut course = Timeline::new(Time::ZERO);
        (1..=10).for_each(|second| course.add(beat(second, second * 10)));
        course.add(beat(11, 3));
        let stretch = course.over(Span::from_secs(30), &beat(12, 8));
        assert_eq!(ios(&stretch), (3, 8));
    }
}
