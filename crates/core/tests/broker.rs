//! Properties of the division of a flash cache among disks.

use proptest::prelude::*;
use tidegate_core::layout::cache::broker::{ALL, Decision, Disk, Reason, decide, in_chunks};

/// A disk whose hits grow with the logarithm of its part, up to all of them at `full` chunks.
fn skewed(full: u32) -> Disk {
    let sizes = (1..=64).map(|nth| (full * nth).div_ceil(64).max(1));
    let points = sizes.map(|size| {
        let part = f64::from(size).ln_1p() / f64::from(full).ln_1p();
        (u64::from(size), 1.0 - part)
    });
    disk(in_chunks(&points.collect::<Vec<_>>(), 1))
}

/// A disk that reads so many chunks again and again.
fn looping(length: u32) -> Disk {
    disk(vec![(1, 0), (length.saturating_sub(1), 0), (length, ALL)])
}

/// A disk that reads everything once.
fn scanning() -> Disk {
    disk((1..60).map(|nth| (nth * 10, 0)).collect())
}

fn disk(curve: Vec<(u32, u32)>) -> Disk {
    Disk {
        curve: Some(curve),
        accesses: 1_000_000,
        shares: 1000,
        min: 2,
        max: u32::MAX,
        now: 2,
        planned: None,
    }
}

fn sizes(decision: &Decision) -> Vec<u32> {
    decision
        .targets
        .iter()
        .map(|target| target.chunks)
        .collect()
}

/// Carries a decision out.
fn carry_out(disks: &mut [Disk], decision: &Decision) -> u32 {
    let mut moved = 0;
    for ((disk, target), now) in disks.iter_mut().zip(&decision.targets).zip(&decision.step) {
        moved += disk.now.saturating_sub(*now);
        (disk.planned, disk.now) = (Some(target.chunks), *now);
    }
    moved
}

#[test]
fn a_chunk_goes_where_it_adds_most_hits() {
    let busy = Disk {
        accesses: 10_000_000,
        ..skewed(100)
    };
    let decision = decide(100, &[busy, skewed(100)]);
    let [more, less] = sizes(&decision)[..] else {
        panic!("{decision:?}");
    };
    assert!(more > 5 * less && more + less == 100, "{decision:?}");
}

#[test]
fn a_loop_gets_all_of_its_length_or_nothing_of_it() {
    let disks = [looping(60), looping(70)];
    assert_eq!(sizes(&decide(130, &disks)), [60, 70]);
    assert_eq!(sizes(&decide(100, &disks)), [98, 2]);
}

#[test]
fn a_scanning_or_idle_disk_gets_its_minimum() {
    let idle = Disk {
        accesses: 0,
        min: 5,
        ..skewed(50)
    };
    let decision = decide(100, &[scanning(), skewed(50), idle]);
    assert_eq!(sizes(&decision), [2, 93, 5]);
    let reasons = decision.targets.iter().map(|target| target.reason);
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        [Reason::Minimum, Reason::Rest, Reason::Minimum]
    );
}

#[test]
fn a_disk_without_a_curve_has_its_share() {
    let unknown = Disk {
        curve: None,
        shares: 3000,
        ..skewed(1)
    };
    let decision = decide(100, &[unknown, skewed(100)]);
    assert_eq!(sizes(&decision), [75, 25]);
    assert_eq!(decision.targets[0].reason, Reason::Shares);
}

#[test]
fn equal_curves_are_divided_by_shares() {
    for shares in [1000, 2000, 4000] {
        let high = Disk {
            shares,
            ..skewed(1000)
        };
        let [more, less] = sizes(&decide(500, &[high, skewed(1000)]))[..] else {
            panic!("two disks");
        };
        let fair = 500 * shares / (shares + 1000);
        assert!(more.abs_diff(fair) <= 500 / 16, "{shares}: {more} {less}");
        assert_eq!(more + less, 500);
    }
}

#[test]
fn a_part_above_a_new_maximum_is_given_back_in_steps() {
    let mut disks = [Disk {
        now: 640,
        max: 600,
        ..skewed(640)
    }];
    let first = decide(640, &disks);
    assert_eq!((first.step[0], first.targets[0].chunks), (620, 600));
    carry_out(&mut disks, &first);
    assert_eq!(decide(640, &disks).step, [600]);
    assert_eq!(first.targets[0].reason, Reason::Maximum);
}

#[test]
fn a_small_gain_changes_nothing() {
    let mut disks = [skewed(1000), skewed(1000)];
    for _ in 0..40 {
        let decision = decide(500, &disks);
        carry_out(&mut disks, &decision);
    }
    let before = [disks[0].now, disks[1].now];
    disks[0].accesses = 1_200_000;
    let decision = decide(500, &disks);
    assert!(!decision.is_new && decision.gain < 30_000, "{decision:?}");
    assert_eq!(decision.step, before);
    disks[0].accesses = 100_000_000;
    let decision = decide(500, &disks);
    assert!(decision.is_new && decision.gain >= 30_000, "{decision:?}");
    let moved = decision.step[0] - before[0];
    assert_eq!(moved, 500 / 32, "a bounded number in each step");
}

/// Any disk: with a curve of any form, or without one.
fn any_disk() -> impl Strategy<Value = Disk> {
    let points = prop::collection::vec((1_u32..600, 0..=ALL), 0..20);
    let known = points.prop_map(|points| {
        let (mut sizes, mut hits): (Vec<u32>, Vec<u32>) = points.into_iter().unzip();
        sizes.sort_unstable();
        sizes.dedup();
        hits.sort_unstable();
        sizes.into_iter().zip(hits).collect::<Vec<_>>()
    });
    let bounds = (2_u32..30, 0_u32..700, 0_u32..200);
    let others = (0_u64..1 << 40, 1_u32..100_000, prop::bool::ANY);
    (prop::option::of(known), bounds, others).prop_map(
        |(curve, (min, more, now), (accesses, shares, is_planned))| Disk {
            curve,
            accesses,
            shares,
            min,
            max: min + more,
            now,
            planned: is_planned.then_some(now),
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn parts_are_within_their_bounds_and_fill_the_whole(
        disks in prop::collection::vec(any_disk(), 1..12),
        more in 0_u32..3000,
    ) {
        let whole = disks.iter().map(|disk| disk.min).sum::<u32>() + more;
        let decision = decide(whole, &disks);
        for (disk, target) in disks.iter().zip(&decision.targets) {
            prop_assert!((disk.min..=disk.max).contains(&target.chunks));
        }
        let all: u32 = sizes(&decision).iter().sum();
        prop_assert!(all <= whole);
        // What is left could only go to disks whose hits do not grow.
        let open = disks.iter().zip(&decision.targets).filter(|(disk, target)| {
            target.chunks < disk.max && (disk.curve.is_none() || disk.accesses > 0 && disk.hits(target.chunks) > 0)
        });
        prop_assert!(all == whole || open.count() == 0, "{decision:?}");
        let has: u32 = disks.iter().map(|disk| disk.now).sum();
        let step: u32 = decision.step.iter().sum();
        prop_assert!(step <= whole.max(has));
    }

    #[test]
    fn a_plan_is_reached_in_steps_and_then_holds(
        mut disks in prop::collection::vec(any_disk(), 1..8),
        more in 0_u32..1000,
    ) {
        for disk in &mut disks {
            (disk.now, disk.planned) = (disk.min, None);
        }
        let whole = disks.iter().map(|disk| disk.min).sum::<u32>() + more;
        let most = (whole / 32).max(1);
        for _ in 0..200 {
            let decision = decide(whole, &disks);
            let moved = carry_out(&mut disks, &decision);
            prop_assert!(moved <= most, "{moved} of {whole}");
            prop_assert!(disks.iter().map(|disk| disk.now).sum::<u32>() <= whole);
        }
        for disk in &disks {
            prop_assert_eq!(Some(disk.now), disk.planned);
        }
        prop_assert!(!decide(whole, &disks).is_new);
    }

    #[test]
    fn a_plan_does_not_change_with_the_noise_of_curves(
        fulls in prop::collection::vec(20_u32..2000, 2..6),
        noise in prop::collection::vec(0_u32..20_000, 64 * 40),
    ) {
        let exact: Vec<Disk> = fulls.iter().map(|full| skewed(*full)).collect();
        let mut disks = exact.clone();
        let (mut noise, mut plans, mut moved) = (noise.iter().cycle(), 0, 0);
        for turn in 0..100 {
            for (disk, exact) in disks.iter_mut().zip(&exact) {
                let mut hits = 0;
                let curve = exact.curve.iter().flatten().map(|(size, exact)| {
                    let noise = noise.next().copied().unwrap_or(0);
                    hits = hits.max((exact + noise).saturating_sub(10_000).min(ALL));
                    (*size, hits)
                });
                disk.curve = Some(curve.collect());
            }
            let decision = decide(1000, &disks);
            let chunks = carry_out(&mut disks, &decision);
            if turn > 0 {
                plans += u32::from(decision.is_new);
                moved += chunks;
            }
        }
        prop_assert_eq!((plans, moved), (0, 0));
    }
}
