//! The sampled miss-ratio curve beside the exact one of an LRU cache.

use std::collections::HashMap;
use std::path::Path;
use tidegate_core::curve::{Of, PAGE, Sampler};
use tidegate_core::request::Op;
use tidegate_sim::cache_policies::requests::{Request, load};
use tidegate_sim::cache_policies::workloads;

/// The error that a curve may have in the mean over its sizes.
const ERROR: f64 = 0.02;

/// Seeds of the sampler's random numbers. The product has the first.
const SEEDS: std::ops::RangeInclusive<u32> = 1..=30;

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

fn sampled(requests: &[Request], seed: u32) -> Sampler {
    let mut sampler = Sampler::seeded(seed);
    for request in requests {
        let op = if request.is_write {
            Op::Write
        } else {
            Op::Read
        };
        sampler.access(request.at, op, request.offset, request.len);
    }
    sampler
}

/// Errors with different random numbers. Each is the mean absolute error over the curve's sizes.
struct Errors {
    /// With those of the product.
    shipped: f64,
    mean: f64,
    most: f64,
}

fn errors(requests: &[Request], of: Of) -> Errors {
    let (distances, seen) = exact(requests, of);
    let errors = SEEDS.map(|seed| {
        let curve = sampled(requests, seed).curve_of(of);
        let errors = curve.points.iter().map(|(bytes, miss)| {
            let hits = distances.partition_point(|distance| *distance <= bytes / PAGE);
            (miss - (1.0 - hits as f64 / seen as f64)).abs()
        });
        errors.sum::<f64>() / curve.points.len() as f64
    });
    let errors: Vec<f64> = errors.collect();
    let (shipped, mean) = (errors[0], errors.iter().sum::<f64>() / errors.len() as f64);
    let most = errors.iter().copied().fold(0.0, f64::max);
    println!("{of:?}: error {shipped:.4}, in the mean {mean:.4}, at most {most:.4}");
    Errors {
        shipped,
        mean,
        most,
    }
}

#[test]
fn the_curve_of_a_recorded_disk_is_within_two_hundredths_of_the_exact_one() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/traces/cloudphysics.pack");
    let requests = load(&path).expect("the trace is in the tree");
    assert_eq!(requests.len(), 113_872);
    assert!(errors(&requests, Of::All).most <= ERROR);
    for of in [Of::Reads, Of::Writes] {
        let errors = errors(&requests, of);
        assert!(errors.shipped <= ERROR && errors.mean <= ERROR);
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
        let errors = errors(&workload.requests, Of::All);
        assert!(
            errors.shipped <= ERROR && errors.mean <= ERROR,
            "{}",
            workload.name
        );
    }
}
