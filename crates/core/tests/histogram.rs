//! Histograms against a sorted list of what was recorded.

use proptest::prelude::*;
use tidegate_core::histogram::Histogram;
use tidegate_core::units::Span;

fn spans() -> impl Strategy<Value = Vec<u64>> {
    let span = prop_oneof![0..300_u64, 0..1_000_000_u64, 0..130_000_000_000_u64];
    prop::collection::vec(span, 1..200)
}

fn of(spans: &[u64]) -> Histogram {
    let mut histogram = Histogram::new();
    spans
        .iter()
        .for_each(|&ns| histogram.record(Span::from_nanos(ns)));
    histogram
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_quantile_is_at_most_a_sixteenth_above_the_true_value(
        mut spans in spans(), permyriad in 0..=10_000_u32,
    ) {
        let reported = of(&spans).quantile(permyriad).as_nanos();
        spans.sort_unstable();
        let rank = (spans.len() * permyriad as usize).div_ceil(10_000).max(1);
        let truth = spans[rank - 1];
        prop_assert!(reported >= truth, "{reported} < {truth}");
        prop_assert!(reported - truth <= (truth / 16).max(16), "{reported} for {truth}");
    }

    #[test]
    fn count_sum_and_maximum_are_exact(spans in spans()) {
        let histogram = of(&spans);
        prop_assert_eq!(histogram.count(), spans.len() as u64);
        prop_assert_eq!(histogram.sum().as_nanos(), spans.iter().sum::<u64>());
        prop_assert_eq!(Some(histogram.max().as_nanos()), spans.iter().max().copied());
        prop_assert_eq!(histogram.buckets().map(|bucket| bucket.count).sum::<u64>(), spans.len() as u64);
        for bucket in histogram.buckets() {
            let inside = |ns: &&u64| (bucket.from.as_nanos()..bucket.to.as_nanos()).contains(*ns);
            prop_assert_eq!(bucket.count, spans.iter().filter(inside).count() as u64);
            let up_to = Span::from_nanos(bucket.to.as_nanos() - 1);
            let below = spans.iter().filter(|&&ns| ns < bucket.to.as_nanos()).count();
            prop_assert_eq!(histogram.count_up_to(up_to), below as u64);
        }
    }

    #[test]
    fn counts_up_to_several_bounds_match_single_counts(spans in spans(), mut bounds in prop::array::uniform5(any::<u64>())) {
        let histogram = of(&spans);
        // Some among what was recorded, some far beyond.
        bounds[0] >>= 30;
        bounds[1] >>= 36;
        bounds[2] >>= 44;
        bounds.sort_unstable();
        let bounds = bounds.map(Span::from_nanos);
        prop_assert_eq!(histogram.counts_up_to(bounds), bounds.map(|bound| histogram.count_up_to(bound)));
        for bound in bounds {
            let most = spans.iter().filter(|&&ns| ns <= bound.as_nanos()).count() as u64;
            let buckets = histogram.buckets().filter(|bucket| bucket.to.as_nanos() - 1 <= bound.as_nanos());
            let surely: u64 = buckets.map(|bucket| bucket.count).sum();
            prop_assert_eq!(histogram.count_up_to(bound), surely);
            prop_assert!(surely <= most);
        }
    }

    #[test]
    fn a_merge_contains_both_and_the_difference_is_the_second(a in spans(), b in spans()) {
        let mut merged = of(&a);
        merged.merge(&of(&b));
        prop_assert_eq!(&merged, &of(&[a.clone(), b.clone()].concat()));
        let since = merged.since(&of(&a));
        prop_assert_eq!(since.buckets().collect::<Vec<_>>(), of(&b).buckets().collect::<Vec<_>>());
        prop_assert_eq!(since.mean(), of(&b).mean());
        prop_assert!(since.max() >= of(&b).max());
    }
}
