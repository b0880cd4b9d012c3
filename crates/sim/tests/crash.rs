//! The data path through crashes: every schedule of short workloads, long random runs, and what the simulator catches.

use tidegate_core::filter::FilterSpec;
use tidegate_sim::crash::explore::{Depth, Failure, explore, requests};
use tidegate_sim::crash::seeds;
use tidegate_sim::crash::store::Defects;
use tidegate_sim::crash::world::{Setup, Shape};

/// Workloads of two requests, in every way.
const TWO: Depth = Depth {
    longest: 2,
    faults: false,
    runs: u64::MAX,
};
/// Random requests reach over several chunks of a stripe.
const SECTORS: u64 = 96;

fn disk(shape: Shape, filters: &[&str]) -> Setup {
    let filters = filters.iter().map(|text| text.parse::<FilterSpec>());
    Setup {
        shape,
        sectors: SECTORS,
        filters: filters.collect::<Result<_, _>>().expect("filters"),
        defects: Defects::default(),
    }
}

fn plain(filters: &[&str]) -> Setup {
    disk(Shape::Plain, filters)
}

fn panic_with(failure: &Failure) -> ! {
    panic!("{}\n{}", failure.what, failure.trace.join("\n"))
}

/// Nothing is breached in any run of the workloads of requests to the three sectors from `first` on.
fn holds_in_every_run(setup: &Setup, first: u64, depth: Depth) {
    let found = explore(setup, &requests(first), depth);
    if let Some(failure) = &found.failure {
        panic_with(failure);
    }
    println!("{} workloads, {} runs", found.workloads, found.runs);
    assert!(found.workloads >= 7 && found.runs > 1_000, "{}", found.runs);
}

fn holds_in_random_runs(setup: &Setup, seeds: u64) {
    for seed in 0..seeds {
        if let Err(failure) = seeds::run(setup, seed, 400) {
            println!("seed {seed}");
            panic_with(&failure);
        }
    }
}

#[test]
fn a_plain_disk_keeps_its_promises_through_a_crash_at_every_step_of_every_short_workload() {
    holds_in_every_run(&plain(&["stats", "null"]), 0, TWO);
}

#[test]
fn a_striped_disk_keeps_its_promises_through_a_crash_at_every_step_of_every_short_workload() {
    // The middle of the three sectors is the first of the second chunk.
    holds_in_every_run(&disk(Shape::Stripe { targets: 2 }, &["stats"]), 7, TWO);
}

#[test]
fn a_mirrored_disk_keeps_its_promises_through_a_crash_at_every_step_and_any_member_failing_once() {
    let mirror = disk(Shape::Mirror { members: 2 }, &[]);
    let one = Depth {
        longest: 1,
        faults: true,
        runs: 100_000,
    };
    holds_in_every_run(&mirror, 0, one);
    // Those of two requests have too many runs to try them all here.
    let sampled = Depth { runs: 200, ..one };
    holds_in_every_run(
        &mirror,
        0,
        Depth {
            longest: 2,
            ..sampled
        },
    );
}

#[test]
fn disks_keep_their_promises_through_random_runs() {
    let stripes = [2, 3].map(|targets| Shape::Stripe { targets });
    let mirrors = [2, 3].map(|members| Shape::Mirror { members });
    for shape in [Shape::Plain].into_iter().chain(stripes).chain(mirrors) {
        holds_in_random_runs(&disk(shape, &["stats"]), 100);
    }
}

/// A disk that breaks a promise, and a word of what is found.
fn caught(setup: &Setup, says: &str) {
    let found = explore(setup, &requests(0), Depth { longest: 3, ..TWO });
    let failure = found.failure.expect("it is found");
    assert!(failure.what.contains(says), "{says}: {}", failure.what);
    assert!(failure.trace.len() < 40, "a short trace");
}

#[test]
fn what_a_store_does_wrong_is_found() {
    let honest = Defects::default();
    let found = [
        (
            Defects {
                flush: true,
                ..honest
            },
            "may have only one of",
        ),
        (
            Defects {
                fua: true,
                ..honest
            },
            "may have only one of",
        ),
        (
            Defects {
                misdirects: Some(1),
                ..honest
            },
            "may have only one of",
        ),
        (
            Defects {
                rots: Some(2),
                ..honest
            },
            "has damaged bytes",
        ),
    ];
    for (defects, says) in found {
        caught(
            &Setup {
                defects,
                ..plain(&[])
            },
            says,
        );
    }
}

#[test]
fn a_filter_that_loses_or_tears_what_it_answers_is_found() {
    for filter in [
        "fault:lost,op=write",
        "fault:torn,op=write",
        "fault:lost,op=flush",
    ] {
        caught(&plain(&[filter]), "may have only one of");
    }
}

#[test]
fn the_trace_of_a_failed_seed_is_shortened() {
    let setup = plain(&["fault:lost,op=write,after=3"]);
    let failure = (0..50).find_map(|seed| seeds::run(&setup, seed, 400).err());
    let failure = failure.expect("some seed writes and reads");
    assert!(failure.trace.len() < 200, "{}", failure.trace.join("\n"));
}
