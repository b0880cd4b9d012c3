//! Dips in throughput: how many requests are lost while something disturbs a server.
//!
//! A shared machine's speed changes by a seventh and more from second to second. A loss of a thousandth of a second does not
//! show in a comparison of seconds, but it is a dip in the curve. The time around it is its baseline.
//!
//! # Units
//! Requests, of which a rate may make parts.

use std::time::{Duration, Instant};

/// The baseline window before and after a dip. A machine keeps its speed for hundreds of milliseconds.
const BASELINE: Duration = Duration::from_millis(100);

/// Points of a sum that only grows, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Curve {
    points: Vec<(Instant, u64)>,
}

impl Curve {
    /// Until `at` so many were answered in all.
    pub fn add(&mut self, at: Instant, answered: u64) {
        self.points.push((at, answered));
    }

    /// When its window opened and closed; none if it has no length.
    #[must_use]
    pub fn ends(&self) -> Option<(Instant, Instant)> {
        let (first, last) = (self.points.first()?.0, self.points.last()?.0);
        (first < last).then_some((first, last))
    }

    /// How many were answered until `at`, between two points in proportion.
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

    /// How many fewer were answered in these spans than as many as just before and after them: where spans meet or are
    /// nearer to each other than a baseline window is wide, they are one. What lies outside the window is left out.
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
                let beside = from.duration_since(left) + right.duration_since(to);
                if beside.is_zero() {
                    // Nothing tells how fast it would have been.
                    return 0.0;
                }
                let answered = |from, to| self.until(to) - self.until(from);
                let rate = (answered(left, from) + answered(to, right)) / beside.as_secs_f64();
                rate * to.duration_since(from).as_secs_f64() - answered(from, to)
            })
            .sum()
    }

    /// How many were answered in its window.
    #[must_use]
    pub fn answered(&self) -> f64 {
        match (self.points.first(), self.points.last()) {
            (Some((_, first)), Some((_, last))) => float(last - first),
            _ => 0.0,
        }
    }
}

/// Spans in order, within a window, none nearer to the next than a baseline window.
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

    /// A second with a point each 5 ms; in each of them `rate` tells how many were answered per millisecond.
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
    fn a_dip_is_as_deep_as_what_was_lost_in_it_however_wide_one_looks() {
        let begin = Instant::now();
        // 20 ms at half the speed: 10 ms' worth of a thousand each.
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
    fn a_machine_that_gets_slower_during_a_dip_is_none() {
        let begin = Instant::now();
        let curve = drawn(begin, |at| if at < 500 { 1400 } else { 1000 });
        let lost = curve.lost(&[(begin + ms(450), begin + ms(550))]);
        assert!(lost.abs() < 1.0, "{lost}");
    }

    #[test]
    fn spans_that_meet_are_one_and_those_outside_are_none() {
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
