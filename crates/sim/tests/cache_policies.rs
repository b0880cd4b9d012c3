//! The policy `auto` of the flash cache beside the best single policy and FAST Cache's rule.

use std::path::{Path, PathBuf};
use tidegate_core::layout::cache::policy::CANDIDATES;
use tidegate_sim::cache_policies::evaluate::{AUTO, Accesses, Named, Outcome, POLICIES, SINGLE};
use tidegate_sim::cache_policies::requests::load;
use tidegate_sim::cache_policies::tables::{MANUAL, RECORDED, manual, replaced};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn recorded() -> Accesses {
    let requests = load(&root().join(RECORDED)).expect("the trace is in the tree");
    Accesses::of(&requests).expect("within a disk")
}

fn named(name: &str) -> Named {
    let found = POLICIES.iter().find(|policy| policy.name == name);
    *found.expect("a policy of the table")
}

/// The outcomes of `auto`, and of each single policy, with a cache of 8 % of the touched blocks.
fn outcomes(accesses: &Accesses) -> (Outcome, Vec<Outcome>) {
    let slots = accesses.slots(8);
    let single = SINGLE.map(|name| accesses.run(named(name), slots));
    (accesses.run(AUTO, slots), single.to_vec())
}

#[test]
fn auto_misses_at_most_a_point_more_than_the_best_single_policy() {
    let (auto, single) = outcomes(&recorded());
    let best = single.iter().map(Outcome::miss).fold(1.0, f64::min);
    assert!(auto.miss() <= best + 0.01, "{} {best}", auto.miss());
}

#[test]
fn auto_hits_as_often_as_the_fast_rule_with_four_fifths_of_its_flash_writes() {
    let (auto, single) = outcomes(&recorded());
    let fast = &single[1];
    assert!(auto.miss() <= fast.miss());
    let part = auto.figures.flash as f64 / fast.figures.flash as f64;
    assert!(part <= 0.8, "{part}");
}

#[test]
fn shadows_measure_what_the_whole_cache_would_do() {
    let accesses = recorded();
    let slots = accesses.slots(8);
    let judged = accesses.run(AUTO, slots).judged;
    assert_eq!(judged.len(), CANDIDATES.len());
    for judged in judged {
        let params = Some(CANDIDATES[judged.candidate]);
        let whole = accesses.run(
            Named {
                name: "whole",
                params,
            },
            slots,
        );
        let apart = whole.miss() - judged.miss_ratio as f64 / 10_000.0;
        assert!(apart.abs() <= 0.02, "{judged:?} {whole:?}");
        let apart = whole.flash() - judged.flash_ratio as f64 / 10_000.0;
        assert!(apart.abs() <= 0.02, "{judged:?} {whole:?}");
    }
}

#[test]
fn a_run_is_the_same_each_time() {
    let accesses = recorded();
    let slots = accesses.slots(2);
    assert_eq!(accesses.run(AUTO, slots), accesses.run(AUTO, slots));
}

#[test]
fn the_tables_in_the_manual_are_what_the_policies_do() {
    let text = std::fs::read_to_string(root().join(MANUAL)).expect("the manual");
    let fresh = replaced(&text, &manual(&root()).expect("tables")).expect("markers");
    assert!(text == fresh, "stale: run `cargo xtask cache-policies`");
}
