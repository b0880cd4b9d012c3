//! Tests of the sampler on workloads whose curves are known.

use super::*;

const KIB: u64 = 1 << 10;

fn sampler(pages: impl IntoIterator<Item = u64>) -> Sampler {
    let mut sampler = Sampler::new();
    for page in pages {
        sampler.access(page * PAGE, 4 * KIB, false);
    }
    sampler
}

/// What a cache of `pages` misses: the point at that size or the next smaller one.
fn miss(curve: &Curve, pages: u64) -> f64 {
    let points = curve.points.iter();
    let below = points.take_while(|(bytes, _)| *bytes <= pages * PAGE);
    below.last().map_or(1.0, |(_, miss)| *miss)
}

#[test]
fn a_disk_without_accesses_has_an_empty_curve() {
    let curve = Sampler::new().curve();
    assert_eq!(curve.points, []);
    assert_eq!((curve.accesses, curve.distinct_bytes), (0, 0));
    assert_eq!(curve.rate, 0.125);
}

#[test]
fn a_loop_misses_all_below_its_length_and_nothing_beyond() {
    let curve = sampler((0..400_000).map(|n| n % 20_000)).curve();
    assert!(miss(&curve, 17_000) > 0.98, "{curve:?}");
    assert!(miss(&curve, 23_000) < 0.07, "{curve:?}");
    let distinct = curve.distinct_bytes / PAGE;
    assert!((19_000..21_000).contains(&distinct), "{distinct}");
}

#[test]
fn a_curve_begins_at_16_mib_if_more_is_in_use() {
    let curve = sampler((0..400_000).map(|n| n % 20_000)).curve();
    assert_eq!(curve.points[0].0, 16 << 20);
    let curve = sampler((0..40_000).map(|n| n % 200)).curve();
    let [(bytes, miss)] = curve.points[..] else {
        panic!("{curve:?}");
    };
    assert!(bytes < 16 << 20 && miss < 0.03, "{curve:?}");
}

#[test]
fn a_scan_misses_at_every_size() {
    let curve = sampler(0..300_000).curve();
    assert!(
        curve.points.iter().all(|(_, miss)| *miss > 0.97),
        "{curve:?}"
    );
    assert_eq!(curve.accesses, 300_000);
}

#[test]
fn a_curve_falls_within_its_bounds_and_has_at_most_64_sizes() {
    let mixed = (0..500_000_u64).map(|n| if n % 3 == 0 { n } else { n * n % 79_193 });
    let curve = sampler(mixed).curve();
    assert!(curve.points.len() <= 64 && curve.points.len() > 32);
    assert!(curve.points.is_sorted_by(|a, b| a.0 < b.0 && a.1 >= b.1));
    assert!(
        curve
            .points
            .iter()
            .all(|(_, miss)| (0.0..=1.0).contains(miss))
    );
    assert!(curve.points.last().expect("a last size").0 >= curve.distinct_bytes);
}

#[test]
fn memory_stays_at_64_kib_however_many_pages_are_accessed() {
    let mut sampler = Sampler::new();
    let before = sampler.memory();
    assert!(before <= 64 << 10, "{before}");
    for page in 0..2_000_000_u64 {
        sampler.access(page * 977 * PAGE, 64 * KIB, page % 2 == 0);
        assert!(!sampler.recency.is_full());
    }
    assert_eq!(sampler.memory(), before);
    assert!(sampler.curve().rate < 0.01);
}

#[test]
fn the_same_accesses_give_the_same_curve() {
    let pages = || (0..200_000_u64).map(|n| n.wrapping_mul(n) % 30_011);
    assert_eq!(sampler(pages()).curve(), sampler(pages()).curve());
}

#[test]
fn a_request_counts_once_on_each_page_that_it_touches() {
    let mut sampler = Sampler::new();
    sampler.access(PAGE - 512, 1024, false);
    sampler.access(0, 4 * PAGE, true);
    sampler.access(5 * PAGE, PAGE, false);
    sampler.access(7 * PAGE, 0, false);
    assert_eq!(sampler.curve().accesses, 7);
    assert_eq!(sampler.curve_of(Of::Reads).accesses, 3);
    assert_eq!(sampler.curve_of(Of::Writes).accesses, 4);
}

#[test]
fn odd_ranges_are_counted_without_harm() {
    let mut sampler = Sampler::new();
    sampler.access(u64::MAX, u64::MAX, true);
    sampler.access(u64::MAX - PAGE, 1, true);
    sampler.access(0, u64::MAX, false);
    sampler.discard(u64::MAX, u64::MAX);
    sampler.discard(0, 0);
    assert_eq!(sampler.curve_of(Of::Reads).accesses, MOST_PAGES);
}

#[test]
fn discarded_pages_are_accessed_for_the_first_time_again() {
    let mut sampler = sampler(0..10_000);
    sampler.discard(1, 10_000 * PAGE - 1);
    // The page of which only a part was discarded stays.
    assert!(sampler.curve().distinct_bytes <= 8 * PAGE);
    for page in 0..10_000 {
        sampler.access(page * PAGE, 4 * KIB, false);
    }
    let curve = sampler.curve();
    assert!(
        curve.points.iter().all(|(_, miss)| *miss > 0.95),
        "{curve:?}"
    );
}

#[test]
fn reads_and_writes_have_curves_of_their_own() {
    let mut sampler = Sampler::new();
    for n in 0..400_000_u64 {
        sampler.access(n % 1_000 * PAGE, 4 * KIB, false);
        sampler.access((1_000_000 + n) * PAGE, 4 * KIB, true);
    }
    let half = miss(&sampler.curve(), 10_000);
    assert!((0.47..0.53).contains(&half), "{half}");
    assert!(miss(&sampler.curve_of(Of::Reads), 10_000) < 0.03);
    assert!(miss(&sampler.curve_of(Of::Writes), 10_000) > 0.97);
}

#[test]
fn an_old_workload_fades_and_the_rate_recovers() {
    let mut sampler = sampler(0..1_000_000);
    assert!(sampler.curve().rate < 0.01);
    for n in 0..50_000_000_u64 {
        sampler.access((2_000_000 + n % 8_000) * PAGE, 4 * KIB, false);
    }
    let curve = sampler.curve();
    assert!(miss(&curve, 8_600) < 0.01, "{curve:?}");
    assert!(miss(&curve, 7_400) > 0.97, "{curve:?}");
    assert_eq!((curve.rate, curve.accesses), (0.125, 51_000_000));
    assert!((7_400..8_600).contains(&(curve.distinct_bytes / PAGE)));
}
