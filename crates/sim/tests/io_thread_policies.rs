//! The policy `auto` beside every fixed set-up of I/O threads, on the trace of phases at its full length, in virtual time.

use tidegate_core::monitor::Limits;
use tidegate_core::monitor::auto::Auto;
use tidegate_sim::threads::evaluate::{Row, SETTLES, best, fixed, reacts, with_policy};
use tidegate_sim::threads::{SetUp, phases};

const MS: u64 = 1_000_000;
/// The cost of an exit, as in `scenarios/io-threads.toml`.
const EXIT: u64 = phases::EXIT;

fn auto() -> Box<Auto> {
    Box::new(Auto::new(Limits { min: 1, max: 4 }))
}

#[test]
fn auto_follows_the_best_fixed_set_up_of_each_phase_and_is_ahead_of_each_over_the_whole_trace() {
    // A fixed set-up has nothing to learn: shorter phases do.
    let (short, settles) = (phases::trace(700 * MS, EXIT), 200 * MS);
    let rows = SetUp::all(4).into_iter().map(|set_up| {
        let outcome = fixed(&short, set_up, settles, 1);
        Row::new(set_up.words(), Some(set_up), &short, outcome)
    });
    let rows: Vec<Row> = rows.collect();
    let trace = phases::trace(10_000 * MS, EXIT);
    let outcome = with_policy(&trace, auto(), SETTLES, 1);
    for deep in [1, 7] {
        let after = reacts(&trace, &outcome, deep);
        assert!(after.is_some_and(|ns| ns <= 50 * MS), "{after:?}");
    }
    let own = Row::new("auto".to_owned(), None, &trace, outcome);
    let settled = best(&rows, |row| &row.settled);
    for (phase, (own, best)) in own.settled.iter().zip(&settled).enumerate() {
        assert!(own * 100 >= best * 95, "phase {phase}: {own}, {best}");
    }
    let whole = best(&rows, |row| &row.whole);
    let own = own.normalised(&whole);
    for row in &rows {
        let other = row.normalised(&whole);
        assert!(
            own * 100 >= other * 105,
            "{}: {other}, auto {own}",
            row.name
        );
    }
}

#[test]
fn auto_changes_at_most_once_in_a_minute_of_constant_load() {
    for trace in phases::constant(62_000 * MS, EXIT) {
        let outcome = with_policy(&trace, auto(), SETTLES, 1);
        let changes = outcome.changes.iter();
        let late = changes.filter(|change| change.at >= 2_000 * MS);
        let late: Vec<_> = late
            .filter(|change| change.moved || change.resized)
            .collect();
        assert!(late.len() <= 1, "{}: {late:?}", trace.phases[0].name);
    }
}

/// CPUs are what is missing: another place or another thread gives a disk none.
#[test]
fn on_full_cores_auto_lets_disks_stay_and_is_no_worse_than_any_fixed_set_up() {
    let trace = phases::full_cores(62_000 * MS, EXIT);
    let outcome = with_policy(&trace, auto(), SETTLES, 1);
    let changes = outcome.changes.iter();
    let changes: Vec<_> = changes.filter(|it| it.moved || it.resized).collect();
    let late = changes.iter().filter(|change| change.at >= 2_000 * MS);
    assert!(changes.len() <= 2 && late.count() <= 1, "{changes:?}");
    let said = outcome.changes.iter().map(|change| &change.words);
    let lacks = said.filter(|words| words.contains("because it waits for a CPU"));
    assert!(lacks.count() >= 1, "{:?}", outcome.changes);
    // Fixed set-ups do not change, so a part of the time shows what they do.
    let from_to = (SETTLES, 3_000 * MS);
    let own = outcome.score(from_to.0, from_to.1);
    for set_up in SetUp::all(4) {
        let other = fixed(&phases::full_cores(from_to.1, EXIT), set_up, SETTLES, 1);
        let other = other.score(from_to.0, from_to.1);
        assert!(
            own * 100 >= other * 95,
            "{}: {other}, {own}",
            set_up.words()
        );
    }
    assert!(outcome.score(SETTLES, trace.lasts()) * 100 >= own * 98);
}
