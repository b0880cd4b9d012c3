//! The learner against known costs.

use super::*;
use proptest::prelude::*;

const BELIEVED: Factors = Factors {
    read: 0.9375,
    write: 1.4,
    bytes_read: 1.0,
    bytes_written: 1.0,
};

/// An interval of this mix that costs as much as any other under `truth`.
fn moment(truth: &Factors, mix: [f64; FEATURES], noise: f64) -> [f64; FEATURES] {
    let [read, write, bytes_read, bytes_written] = mix;
    let cost = read * truth.read
        + write * truth.write
        + bytes_read * truth.bytes_read
        + bytes_written * truth.bytes_written;
    mix.map(|part| part / cost * 500.0 * noise)
}

#[test]
fn a_constant_mix_leaves_the_costs_unchanged() {
    let mut fit = Fit::default();
    for _ in 0..200 {
        fit.add(moment(&BELIEVED, [1.0, 1.0, 0.0625, 0.0625], 1.0));
    }
    let solved = fit.solve(&BELIEVED).unwrap();
    assert!(
        (solved.write / BELIEVED.write - 1.0).abs() < 0.1,
        "{solved:?}"
    );
    assert!(Fit::default().solve(&BELIEVED).is_none());
}

#[test]
fn costs_move_by_at_most_a_tenth_a_minute() {
    let mut learner = Learner::new(BELIEVED);
    let goal = Factors {
        write: 20.0,
        ..BELIEVED
    };
    (0..600).for_each(|_| learner.approach(Span::from_millis(100), &goal));
    let moved = learner.factors().write / BELIEVED.write;
    assert!((1.09..1.11).contains(&moved), "{moved}");
    (0..600_000).for_each(|_| learner.approach(Span::from_millis(100), &goal));
    assert_eq!(learner.factors().write, 20.0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_cost_of_writes_is_learned_from_a_varying_mix(
        write in 0.7..8.0_f64, bytes in 0.3..3.0_f64,
        noises in prop::collection::vec(0.98..1.02_f64, 150),
    ) {
        let truth = Factors { read: 1.0 - bytes / 16.0, write, bytes_read: bytes, bytes_written: bytes };
        // Phases of a load: mostly reads, mostly writes, large ones of either.
        let phases = [[9.0, 1.0, 0.6, 0.1], [1.0, 6.0, 0.1, 0.4], [3.0, 1.0, 3.0, 0.1], [1.0, 3.0, 0.1, 3.0], [4.0, 4.0, 1.0, 0.3]];
        let mut fit = Fit::default();
        for (noise, &phase) in noises.iter().zip(phases.iter().cycle()) {
            fit.add(moment(&truth, phase, *noise));
        }
        let solved = fit.solve(&BELIEVED).unwrap();
        prop_assert!((solved.write / write - 1.0).abs() < 0.2, "{solved:?} for {truth:?}");
        let large = |factors: &Factors| factors.write + factors.bytes_written;
        prop_assert!((large(&solved) / large(&truth) - 1.0).abs() < 0.2, "{solved:?} for {truth:?}");
    }

    #[test]
    fn any_samples_give_costs_within_bounds(
        moments in prop::collection::vec(prop::array::uniform4(0.0..1e6_f64), 100..150),
    ) {
        let mut fit = Fit::default();
        moments.iter().for_each(|&moment| fit.add(moment));
        if let Some(solved) = fit.solve(&BELIEVED) {
            prop_assert!((0.5..=20.0).contains(&solved.write) && (0.1..=1.0).contains(&solved.read));
            prop_assert!((0.0..=16.0).contains(&solved.bytes_read));
            prop_assert!((0.0..=64.0).contains(&solved.bytes_written));
        }
    }
}
