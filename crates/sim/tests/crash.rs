//! The data path through crashes: every schedule of short workloads, long random runs, and what the simulator catches.

use tidegate_core::filter::FilterSpec;
use tidegate_sim::crash::explore::{explore, requests};
use tidegate_sim::crash::seeds;
use tidegate_sim::crash::store::Defects;
use tidegate_sim::crash::world::Setup;

fn plain(filters: &[&str]) -> Setup {
    let filters = filters.iter().map(|text| text.parse::<FilterSpec>());
    Setup {
        sectors: 4,
        filters: filters.collect::<Result<_, _>>().expect("filters"),
        defects: Defects::default(),
    }
}

#[test]
fn a_plain_disk_keeps_its_promises_through_a_crash_at_every_step_of_every_short_workload() {
    let found = explore(&plain(&["stats", "null"]), 2, &requests());
    if let Some(failure) = found.failure {
        panic!("{}\n{}", failure.what, failure.trace.join("\n"));
    }
    assert_eq!(found.workloads, 7 + 49);
    assert!(found.runs > 5_000, "{}", found.runs);
}

#[test]
fn a_plain_disk_keeps_its_promises_through_random_runs() {
    let setup = Setup {
        sectors: 24,
        ..plain(&["stats"])
    };
    for seed in 0..200 {
        if let Err(failure) = seeds::run(&setup, seed, 400) {
            panic!(
                "seed {seed}: {}\n{}",
                failure.what,
                failure.trace.join("\n")
            );
        }
    }
}

/// A disk that breaks a promise, and a word of what is found.
fn caught(setup: &Setup, says: &str) {
    let found = explore(setup, 3, &requests());
    let failure = found.failure.expect("it is found");
    assert!(failure.what.contains(says), "{says}: {}", failure.what);
    assert!(failure.trace.len() < 40, "a short trace");
}

#[test]
fn what_a_store_does_wrong_is_found() {
    let defects = [
        Defects {
            flush: true,
            ..Defects::default()
        },
        Defects {
            fua: true,
            ..Defects::default()
        },
    ];
    for defects in defects {
        let setup = Setup {
            defects,
            ..plain(&[])
        };
        caught(&setup, "may have only one of");
    }
    let misdirects = Defects {
        misdirects: Some(1),
        ..Defects::default()
    };
    let setup = Setup {
        defects: misdirects,
        ..plain(&[])
    };
    caught(&setup, "has the bytes of sector 1");
    let rots = Defects {
        rots: Some(2),
        ..Defects::default()
    };
    let setup = Setup {
        defects: rots,
        ..plain(&[])
    };
    caught(&setup, "has damaged bytes");
}

#[test]
fn a_filter_that_loses_or_tears_what_it_answers_is_found() {
    caught(&plain(&["fault:lost,op=write"]), "may have only one of");
    caught(&plain(&["fault:torn,op=write"]), "may have only one of");
    caught(&plain(&["fault:lost,op=flush"]), "may have only one of");
}

#[test]
fn the_trace_of_a_failed_seed_is_shortened() {
    let setup = Setup {
        sectors: 24,
        ..plain(&["fault:lost,op=write,after=3"])
    };
    let failure = (0..50).find_map(|seed| seeds::run(&setup, seed, 400).err());
    let failure = failure.expect("some seed writes and reads");
    assert!(failure.trace.len() < 30, "{}", failure.trace.join("\n"));
}
