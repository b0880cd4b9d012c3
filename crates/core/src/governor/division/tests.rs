//! Properties of the division: it sums to the window, respects bounds and follows shares.

use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

fn demand() -> impl Strategy<Value = Demand> {
    (100..10_000_u32, 0.0..50.0_f64, 0.0..50.0_f64).prop_map(|(shares, a, b)| Demand {
        shares: f64::from(shares),
        least: if a < 20.0 { 0.0 } else { a.min(b) },
        most: b,
    })
}

#[test]
fn two_greedy_disks_share_by_their_shares() {
    let demand = |shares| Demand {
        shares,
        least: 0.0,
        most: 100.0,
    };
    let demands = [demand(500.0), demand(1_500.0)];
    let division = Division::of(&demands, 40.0);
    assert!((division.part(&demands[0]) - 10.0).abs() < 1e-6);
    assert!((division.part(&demands[1]) - 30.0).abs() < 1e-6);
}

#[test]
fn idle_and_limited_disks_get_no_more_than_they_need() {
    assert_eq!(Demand::new(1_000, 500, 0, 0.01, 1.0, 25e6).most, 0.0);
    let limited = Demand::new(1_000, 0, 100, 64.0, 1.0, 25e6);
    assert!(
        (limited.most - (1.1 * 2.5 + 1.0)).abs() < 1e-9,
        "{limited:?}"
    );
    let reserved = Demand::new(1_000, 800, 0, 64.0, 1.0, 25e6);
    assert!((reserved.least - 1.15 * 20.0).abs() < 1e-9);
    assert!((reserved.most - 81.0).abs() < 1e-9);
}

#[test]
fn an_unused_reservation_gets_no_part() {
    // It would need 20 in flight; it has two, and may have a quarter and one more.
    let light = Demand::new(1_000, 800, 0, 2.0, 1.0, 25e6);
    assert_eq!((light.least, light.most), (3.5, 3.5));
}

#[test]
fn without_demands_the_whole_window_is_unused() {
    assert_eq!(Division::of(&[], 40.0).slack, 40.0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_window_is_divided_within_bounds_and_in_proportion(
        demands in prop::collection::vec(demand(), 1..60), window in 1.0..1_500.0_f64,
    ) {
        let division = Division::of(&demands, window);
        let parts: Vec<f64> = demands.iter().map(|demand| division.part(demand)).collect();
        let reserved: f64 = demands.iter().map(|demand| demand.least).sum();
        let asked: f64 = demands.iter().map(|demand| demand.most).sum();
        let given: f64 = parts.iter().sum();
        prop_assert!((given + division.slack - window).abs() < 1e-6 * window);
        prop_assert!(asked >= given - 1e-6);
        let shrink = (0.9 * window / reserved).min(1.0);
        for (demand, &part) in demands.iter().zip(&parts) {
            prop_assert!(part <= demand.most && part >= shrink * demand.least - 1e-9);
        }
        let free = |at: &usize| parts[*at] < demands[*at].most && parts[*at] > demands[*at].least;
        let free: Vec<usize> = (0..demands.len()).filter(free).collect();
        for pair in free.windows(2) {
            let level = |at: usize| parts[at] / demands[at].shares;
            prop_assert!((level(pair[0]) / level(pair[1]) - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn reservations_leave_a_tenth_to_disks_without(
        demands in prop::collection::vec(demand(), 1..20), greedy in 100.0..10_000.0_f64,
    ) {
        let mut demands = demands;
        demands.push(Demand { shares: greedy, least: 0.0, most: 1e6 });
        let reserved: f64 = demands.iter().map(|demand| demand.least).sum();
        let window = 0.5 * reserved + 1.0;
        let division = Division::of(&demands, window);
        let held: f64 = demands.iter().map(|demand| (division.shrink * demand.least).min(demand.most)).sum();
        prop_assert!(held <= 0.9 * window + 1e-6);
    }
}
