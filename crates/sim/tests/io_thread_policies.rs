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
