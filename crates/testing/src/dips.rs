//! Dips in throughput: the number of requests lost while something disturbs a server.
//!
//! A shared machine's speed varies by a seventh and more from second to second. A loss of a millisecond's requests does
//! not show in a comparison of seconds, but it is a dip in the curve. The time around it is its baseline.
//!
//! # Units
//! Requests, possibly fractions, because rates are interpolated.

use std::time::{Duration, Instant};

/// The baseline window before and after a dip. A machine's speed is stable for hundreds of milliseconds.
const BASELINE: Duration = Duration::from_millis(100);

/// Samples of a cumulative count, in order of time.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    points: Vec<(Instant, u64)>,
}

impl Curve {
    /// Adds a sample: `answered` requests completed until `at`.
    pub fn add(&mut self, at: Instant, answered: u64) {
        self.points.push((at, answered));
    }

    /// The first and the last sample's time; none if they are equal.
    #[must_use]
    pub fn ends(&self) -> Option<(Instant, Instant)> {
        let (first, last) = (self.points.first()?.0, self.points.last()?.0);
        (first < last).then_some((first, last))
    }

    /// The number of requests completed until `at`, interpolated linearly.
    fn until(&self, at: Instant) -> f64 {
        let next = self.points.partition_point(|(when, _)| *when < at);
        match (
            next.checked_sub(1).map(|last| self.points[last]),
            self.points.get(next),
        ) {
            (Some((from, before)), Some(&(to, after))) => {
                let part = at.duration_since(from).as_secs_f64()
                    / to.duration_since(from).as_secs_f64().max(1e-9);
                float(before) + float(after - before) * part.min(1.0)
            }
            (Some((_, all)), None) | (None, Some(&(_, all))) => float(all),
            (None, None) => 0.0,
        }
    }

    /// The number of requests lost in these spans, compared with the rate just before and after them. Spans are merged
    /// if they meet or are nearer to each other than a baseline window. Time outside the curve is ignored.
    #[must_use]
    pub fn lost(&self, spans: &[(Instant, Instant)]) -> f64 {
        let Some((open, close)) = self.ends() else {
            return 0.0;
        };
        merged(spans, open, close)
            .into_iter()
            .map(|(from, to)| {
                let left = from.checked_sub(BASELINE).map_or(open, |at| at.max(open));
                let right = (to + BASELINE).min(close);
                let baseline = from.duration_since(left) + right.duration_since(to);
                if baseline.is_zero() {
                    // There is no baseline.
                    return 0.0;
                }
                let answered = |from, to| self.until(to) - self.until(from);
                let rate = (answered(left, from) + answered(to, right)) / baseline.as_secs_f64();
                rate * to.duration_since(from).as_secs_f64() - answered(from, to)
            })
            .sum()
    }

    /// The number of requests completed in its window.
    #[must_use]
    pub fn answered(&self) -> f64 {
        match (self.points.first(), self.points.last()) {
            (Some((_, first)), Some((_, last))) => float(last - first),
            _ => 0.0,
        }
    }
}

/// Spans in order, cut to a window, and merged if nearer to each other than a baseline window.
fn merged(spans: &[(Instant, Instant)], open: Instant, close: Instant) -> Vec<(Instant, Instant)> {
    let mut sorted: Vec<_> = spans
        .iter()
        .map(|(from, to)| (*from.max(&open), *to.min(&close)))
        .filter(|(from, to)| from < to)
        .collect();
    sorted.sort_unstable();
    let mut merged: Vec<(Instant, Instant)> = Vec::with_capacity(sorted.len());
    for (from, to) in sorted {
        match merged.last_mut() {
            Some((_, end)) if from < *end + BASELINE => *end = to.max(*end),
            _ => merged.push((from, to)),
        }
    }
    merged
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
fn float(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// One second with a sample each 5 ms. `rate` returns the number of requests per millisecond.
    fn drawn(begin: Instant, rate: impl Fn(u64) -> u64) -> Curve {
        let mut curve = Curve::default();
        let mut sum = 0;
        curve.add(begin, 0);
        for at in (0..1000).step_by(5) {
            sum += 5 * rate(at);
            curve.add(begin + ms(at + 5), sum);
        }
        curve
    }

    #[test]
    fn a_dips_loss_does_not_depend_on_the_width_of_its_span() {
        let begin = Instant::now();
        // 20 ms at half the speed lose the requests of 10 ms, a thousand each.
        let curve = drawn(
            begin,
            |at| if (500..520).contains(&at) { 500 } else { 1000 },
        );
        for (from, to) in [(500, 520), (480, 530), (430, 600)] {
            let lost = curve.lost(&[(begin + ms(from), begin + ms(to))]);
            assert!((lost - 10_000.0).abs() < 1.0, "{from}..{to}: {lost}");
        }
        assert!((curve.answered() - 990_000.0).abs() < 1.0);
        let elsewhere = curve.lost(&[(begin + ms(200), begin + ms(300))]);
        assert!(elsewhere.abs() < 1.0, "{elsewhere}");
    }

    #[test]
    fn a_lasting_slowdown_is_not_a_dip() {
        let begin = Instant::now();
        let curve = drawn(begin, |at| if at < 500 { 1400 } else { 1000 });
        let lost = curve.lost(&[(begin + ms(450), begin + ms(550))]);
        assert!(lost.abs() < 1.0, "{lost}");
    }

    #[test]
    fn adjacent_spans_are_merged_and_spans_outside_are_ignored() {
        let begin = Instant::now();
        let curve = drawn(begin, |at| if (500..600).contains(&at) { 0 } else { 1000 });
        let at = |from, to| (begin + ms(from), begin + ms(to));
        let lost = curve.lost(&[at(560, 600), at(500, 540), at(530, 550), at(1000, 2000)]);
        assert!((lost - 100_000.0).abs() < 1.0, "{lost}");
        for nothing in [
            Curve::default().lost(&[at(0, 10)]),
            curve.lost(&[at(0, 1000)]),
        ] {
            assert!(nothing.abs() < f64::EPSILON, "{nothing}");
        }
    }

    #[test]
    fn a_dip_at_a_windows_edge_has_one_baseline() {
        let begin = Instant::now();
        let curve = drawn(begin, |at| if at < 50 { 0 } else { 1000 });
        let early = begin.checked_sub(ms(10)).unwrap_or(begin);
        let lost = curve.lost(&[(early, begin + ms(50))]);
        assert!((lost - 50_000.0).abs() < 1.0, "{lost}");
    }
}
