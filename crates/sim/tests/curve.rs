//! The sampled miss-ratio curve beside the exact one of an LRU cache.

use std::collections::HashMap;
use std::path::Path;
use tidegate_core::curve::{Curve, Of, PAGE, Sampler};
use tidegate_sim::cache_policies::requests::{Request, load};
use tidegate_sim::cache_policies::workloads;

/// The error that a curve may have in the mean over its sizes.
const ERROR: f64 = 0.02;

/// Counts over positions that change, in logarithmic time.
struct Counts(Vec<u32>);

impl Counts {
    fn add(&mut self, position: usize, count: u32) {
        let mut at = position + 1;
        while at < self.0.len() {
            self.0[at] = self.0[at].wrapping_add(count);
            at += at & at.wrapping_neg();
        }
    }

    /// The sum of all positions before.
    fn before(&self, position: usize) -> u32 {
        let (mut at, mut sum) = (position, 0_u32);
        while at > 0 {
            sum = sum.wrapping_add(self.0[at]);
            at &= at - 1;
        }
        sum
    }
}

/// The stack distances of all accesses, sorted; first accesses have none. And how many accesses there were.
fn exact(requests: &[Request], of: Of) -> (Vec<u64>, usize) {
    let pages: Vec<(u64, bool)> = requests
        .iter()
        .flat_map(|request| {
            let last = (request.offset + request.len - 1) / PAGE;
            (request.offset / PAGE..=last).map(|page| (page, request.is_write))
        })
        .collect();
    let mut counts = Counts(vec![0; pages.len() + 1]);
    let mut last = HashMap::new();
    let (mut distances, mut seen) = (Vec::new(), 0);
    for (now, &(page, is_write)) in pages.iter().enumerate() {
        let counted = match of {
            Of::All => true,
            Of::Reads => !is_write,
            Of::Writes => is_write,
        };
        seen += usize::from(counted);
        if let Some(before) = last.insert(page, now) {
            if counted {
                distances.push(u64::from(counts.before(now) - counts.before(before)));
            }
            counts.add(before, u32::MAX);
        }
        counts.add(now, 1);
    }
    distances.sort_unstable();
    (distances, seen)
}

fn sampled(requests: &[Request], of: Of) -> Curve {
    let mut sampler = Sampler::new();
    for request in requests {
        sampler.access(request.offset, request.len, request.is_write);
    }
    sampler.curve_of(of)
}

/// The mean absolute error over the curve's sizes.
fn error(requests: &[Request], of: Of) -> f64 {
    let (distances, seen) = exact(requests, of);
    let curve = sampled(requests, of);
    let errors = curve.points.iter().map(|(bytes, miss)| {
        let hits = distances.partition_point(|distance| *distance <= bytes / PAGE);
        (miss - (1.0 - hits as f64 / seen as f64)).abs()
    });
    let error = errors.sum::<f64>() / curve.points.len() as f64;
    println!(
        "{of:?}: {} sizes, rate {}, mean error {error:.4}",
        curve.points.len(),
        curve.rate
    );
    error
}

#[test]
fn the_curve_of_a_recorded_disk_is_within_two_hundredths_of_the_exact_one() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/traces/cloudphysics.pack");
    let requests = load(&path).expect("the trace is in the tree");
    assert_eq!(requests.len(), 113_872);
    for of in [Of::All, Of::Reads, Of::Writes] {
        assert!(error(&requests, of) <= ERROR);
    }
}

#[test]
fn the_curves_of_made_up_workloads_are_within_two_hundredths_of_the_exact_ones() {
    for workload in [
        workloads::zipf(1 << 16, 0.8, 600_000),
        workloads::zipf(1 << 18, 1.1, 600_000),
        workloads::repeated(1 << 14, 200_000),
        workloads::zipf_scan(1 << 15, 300_000),
        workloads::zipf_drift(1 << 16, 400_000),
        workloads::write_heavy(1 << 15, 400_000),
    ] {
        println!("{}", workload.name);
        assert!(
            error(&workload.requests, Of::All) <= ERROR,
            "{}",
            workload.name
        );
    }
}
