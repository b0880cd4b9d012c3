//! Tests of the sampler on workloads whose curves are known.

use super::*;

const KIB: u64 = 1 << 10;

fn sampler(pages: impl IntoIterator<Item = u64>) -> Sampler {
    let mut sampler = Sampler::new();
    for page in pages {
        read(&mut sampler, page);
    }
    sampler
}

fn read(sampler: &mut Sampler, page: u64) {
    sampler.access(Time::ZERO, Op::Read, page * PAGE, 4 * KIB);
}

/// What a cache of `pages` misses: the point at that size or the next smaller one.
fn miss(curve: &Curve, pages: u64) -> f64 {
    let points = curve.points.iter();
    let below = points.take_while(|(bytes, _)| *bytes <= pages * PAGE);
    below.last().map_or(1.0, |(_, miss)| *miss)
}

#[test]
fn a_disk_without_accesses_has_an_empty_curve_and_takes_no_memory() {
    let sampler = Sampler::new();
    assert_eq!(sampler.curve(), Curve::empty());
    assert_eq!(sampler.memory(), size_of::<Sampler>());
}

#[test]
fn a_sampler_that_is_off_says_so() {
    let mut sampler = Sampler::off();
    for page in 0..10_000 {
        read(&mut sampler, page);
        sampler.access(Time::ZERO, Op::Write, page * PAGE, 2 * PAGE);
    }
    assert_eq!(sampler.curve().trust, Trust::Off);
    assert_eq!(sampler.memory(), size_of::<Sampler>());
}

#[test]
fn a_curve_is_trusted_once_it_has_seen_enough() {
    let trust = |accesses: u64, pages| sampler((0..accesses).map(|n| n % pages)).curve().trust;
    assert_eq!(trust(5_000, 100), Trust::FewAccesses);
    assert_eq!(trust(10_000, 100), Trust::Enough);
    assert_eq!(trust(20_000, 15_000), Trust::MostlyFirst);
    assert_eq!(trust(40_000, 15_000), Trust::Enough);
}

#[test]
fn one_access_in_64_is_drawn_whatever_its_page() {
    let mut sampler = sampler((0..200_000).map(|n| n % 100));
    let before = sampler.curve().sampled;
    for _ in 0..64_000 {
        read(&mut sampler, 7);
    }
    let drawn = sampler.curve().sampled - before;
    assert!((990..1_010).contains(&drawn), "{drawn}");
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
    let mut sampler = sampler([0]);
    let before = sampler.memory();
    assert!(before <= 64 << 10, "{before}");
    for page in 0..2_000_000_u64 {
        let op = [Op::Read, Op::Write][usize::from(page % 2 == 0)];
        sampler.access(Time::ZERO, op, page * 977 * PAGE, 64 * KIB);
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
    sampler.access(Time::ZERO, Op::Read, PAGE - 512, 1024);
    sampler.access(Time::ZERO, Op::Write, 0, 4 * PAGE);
    sampler.access(Time::ZERO, Op::Read, 5 * PAGE, PAGE);
    sampler.access(Time::ZERO, Op::Read, 7 * PAGE, 0);
    sampler.access(Time::ZERO, Op::Write, 0, 0);
    assert_eq!(sampler.curve().accesses, 7);
    assert_eq!(sampler.curve_of(Of::Reads).accesses, 3);
    assert_eq!(sampler.curve_of(Of::Writes).accesses, 4);
}

#[test]
fn odd_ranges_are_counted_without_harm() {
    let mut sampler = Sampler::new();
    sampler.access(Time::ZERO, Op::Write, u64::MAX, u64::MAX);
    sampler.access(Time::ZERO, Op::Write, u64::MAX - PAGE, 1);
    sampler.access(Time::ZERO, Op::Read, 0, u64::MAX);
    sampler.access(Time::ZERO, Op::Discard, u64::MAX, u64::MAX);
    sampler.access(Time::ZERO, Op::Flush, 0, 0);
    sampler.access(Time::ZERO, Op::Discard, 0, 0);
    assert_eq!(sampler.curve_of(Of::Reads).accesses, MOST_PAGES);
}

#[test]
fn discarded_pages_are_accessed_for_the_first_time_again() {
    let mut sampler = sampler(0..10_000);
    sampler.access(Time::ZERO, Op::Discard, 1, 10_000 * PAGE - 1);
    // The page of which only a part was discarded stays.
    assert!(sampler.curve().distinct_bytes <= 8 * PAGE);
    for page in 0..10_000 {
        read(&mut sampler, page);
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
        sampler.access(Time::ZERO, Op::Read, n % 1_000 * PAGE, 4 * KIB);
        sampler.access(Time::ZERO, Op::Write, (1_000_000 + n) * PAGE, 4 * KIB);
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
        sampler.access(
            Time::ZERO,
            Op::Read,
            (2_000_000 + n % 8_000) * PAGE,
            4 * KIB,
        );
    }
    let curve = sampler.curve();
    assert!(miss(&curve, 8_600) < 0.01, "{curve:?}");
    assert!(miss(&curve, 7_400) > 0.97, "{curve:?}");
    assert_eq!((curve.rate, curve.accesses), (1.0 / 64.0, 51_000_000));
    assert!((7_400..8_600).contains(&(curve.distinct_bytes / PAGE)));
}
