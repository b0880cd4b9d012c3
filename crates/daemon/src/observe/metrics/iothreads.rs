//! The metrics of I/O threads, and of what they do for each disk.

use tidegate_core::units::Span;
use tidegate_engine::counters::{DelayHistogram, DiskActivity, ThreadActivity};

use super::families::*;
use super::{BOUNDS, Family, Page, whose};
use crate::text::float;
use tidegate_api::name::Name;

/// What I/O threads did.
pub(crate) struct IoThreads {
    /// By number.
    pub(crate) threads: Vec<ThreadActivity>,
    /// For attached disks, with their names and datastores.
    pub(crate) disks: Vec<(Name, Name, DiskActivity)>,
    /// Whether dense mode is on.
    pub(crate) dense: bool,
}

/// Writes the families.
pub(super) fn families(page: &mut Page, io: &IoThreads) {
    threads(page, &io.threads);
    disks(page, &io.disks);
    page.family(&DENSE).value(&[], u8::from(io.dense));
}

fn threads(page: &mut Page, all: &[ThreadActivity]) {
    let each = |page: &mut Page, family: &Family, value: fn(&ThreadActivity) -> f64| {
        let mut page = page.family(family);
        for (number, thread) in all.iter().enumerate() {
            page.value(&[("thread", &number)], value(thread));
        }
    };
    // Times of one reading: they add up to the age.
    each(page, &THREAD_AGE, |t| seconds(t.age));
    each(page, &THREAD_BUSY, |t| seconds(t.busy));
    each(page, &THREAD_POLLING, |t| seconds(t.spinning));
    each(page, &THREAD_SLEEPING, |t| seconds(t.sleeping));
    each(page, &THREAD_STOLEN, |t| seconds(t.run_delay));
    each(page, &THREAD_TURNS, |t| float(t.turns));
    each(page, &THREAD_WAKEUPS, |t| float(t.wakes.sum()));
    each(page, &THREAD_UNASSIGNED, |t| seconds(t.unassigned));
    each(page, &THREAD_REQUESTS, |t| float(t.requests));
    each(page, &THREAD_STALLS, |t| float(t.stalls));
    each(page, &THREAD_LONGEST, |t| seconds(t.longest_turn));
    let mut moves = page.family(&THREAD_MOVES);
    for (number, thread) in all.iter().enumerate() {
        for (direction, count) in [("in", thread.moved_in), ("out", thread.moved_out)] {
            moves.value(&[("thread", &number), ("direction", &direction)], count);
        }
    }
    let mut wakeups = page.family(&THREAD_CAUSES);
    for (number, thread) in all.iter().enumerate() {
        let wakes = thread.wakes;
        for (cause, count) in [
            ("kick", wakes.kicks),
            ("completion", wakes.completions),
            ("message", wakes.inbox),
            ("timer", wakes.timer),
        ] {
            wakeups.value(&[("thread", &number), ("cause", &cause)], count);
        }
    }
    let mut delays = page.family(&THREAD_DELAY);
    for (number, thread) in all.iter().enumerate() {
        delays.delays(&format!("thread=\"{number}\""), &thread.delays);
    }
}

fn disks(page: &mut Page, disks: &[(Name, Name, DiskActivity)]) {
    let all: Vec<(String, &DiskActivity)> = (disks.iter())
        .map(|(disk, datastore, activity)| (whose(disk, datastore), activity))
        .collect();
    let mut busy = page.family(&DISK_THREAD_BUSY);
    for (whose, activity) in &all {
        busy.amount(&[whose], seconds(activity.busy()));
    }
    let each = |page: &mut Page, family: &Family, value: fn(&DiskActivity) -> u64| {
        let mut page = page.family(family);
        for (whose, activity) in &all {
            page.count(&[whose], value(activity));
        }
    };
    each(page, &DISK_KICKS, DiskActivity::kicks);
    each(page, &DISK_CALLS, DiskActivity::calls);
    let mut delays = page.family(&DISK_QUEUEING);
    for (whose, activity) in &all {
        delays.delays(whose, &activity.delays());
    }
}

/// The numbers of delays that do not exceed each of [`BOUNDS`]. A bucket that crosses a bound counts beyond it.
pub(super) fn up_to_bounds(delays: &DelayHistogram) -> [u64; BOUNDS.len()] {
    let mut counts = [0; BOUNDS.len()];
    for (end, count) in delays.buckets() {
        for (sum, bound) in counts.iter_mut().zip(BOUNDS) {
            if end <= Span::from_nanos(bound) {
                *sum += count;
            }
        }
    }
    counts
}

fn seconds(span: Span) -> f64 {
    float(span.as_nanos()) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_histogram_counts_nothing() {
        assert_eq!(up_to_bounds(&DelayHistogram::default()), [0; BOUNDS.len()]);
    }
}
