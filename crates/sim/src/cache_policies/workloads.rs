//! Made-up workloads whose working sets differ in shape, for caches.
//!
//! # Always true
//! - a workload is the same each time
//!
//! # Units
//! Requests of 4 KiB if not said otherwise, one every 20 ms.

use super::requests::Request;
use tidegate_core::units::{Span, Time};
use tidegate_model::random::Random;

const BLOCK: u64 = 4096;
/// Bytes of the cache's page. A workload's popular blocks lie scattered over pages.
const PAGE: u64 = 64 << 10;

/// Numbers from 0 on, small ones drawn more often: number `n` with a weight of `1 / (n + 1)^skew`.
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Sums of the weights.
    sums: Vec<f64>,
}

impl Zipf {
    /// `count` numbers, at least one.
    pub fn new(count: usize, skew: f64) -> Zipf {
        let mut sum = 0.0;
        let weights = (1..=count.max(1)).map(|n| (n as f64).powf(-skew));
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        Zipf {
            sums: sums.collect(),
        }
    }

    /// The next number.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let all = self.sums.last().copied().unwrap_or(1.0);
        let at = (random.draw() >> 11) as f64 / (1_u64 << 53) as f64 * all;
        self.sums.partition_point(|sum| *sum <= at) as u64
    }
}

/// A workload and its name.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Its requests.
    pub requests: Vec<Request>,
}

/// Numbers mixed so that neighbours lie apart: a bijection of `0..count` if `count` is a power of two.
fn scattered(number: u64, count: u64) -> u64 {
    (number.wrapping_mul(0x9e37_79b1) ^ 0x5555) % count
}

struct Maker {
    requests: Vec<Request>,
    random: Random,
}

impl Maker {
    fn new(seed: u64) -> Maker {
        Maker {
            requests: Vec::new(),
            random: Random::new(seed),
        }
    }

    fn push(&mut self, offset: u64, len: u64, is_write: bool) {
        let at = Time::ZERO + Span::from_millis(self.requests.len() as u64 * 20);
        self.requests.push(Request {
            at,
            is_write,
            offset,
            len,
        });
    }

    fn finish(self, name: &str) -> Workload {
        Workload {
            name: name.to_owned(),
            requests: self.requests,
        }
    }
}

/// Popular pages, one block of each request at random in its page.
pub fn zipf(pages: u64, skew: f64, count: usize) -> Workload {
    let zipf = Zipf::new(usize::try_from(pages).unwrap_or(1), skew);
    let mut maker = Maker::new(1);
    for _ in 0..count {
        let page = scattered(zipf.draw(&mut maker.random), pages);
        let block = maker.random.below(PAGE / BLOCK);
        let is_write = maker.random.chance(300);
        maker.push(page * PAGE + block * BLOCK, BLOCK, is_write);
    }
    maker.finish("zipf")
}

/// Popular pages, whose popularity moves on to others ten times.
pub fn zipf_drift(pages: u64, count: usize) -> Workload {
    let zipf = Zipf::new(usize::try_from(pages).unwrap_or(1), 1.0);
    let mut maker = Maker::new(2);
    for n in 0..count {
        let moved = (n * 10 / count) as u64 * (pages / 20);
        let page = scattered((zipf.draw(&mut maker.random) + moved) % pages, pages);
        let block = maker.random.below(4);
        let is_write = maker.random.chance(300);
        maker.push(page * PAGE + block * BLOCK, BLOCK, is_write);
    }
    maker.finish("zipf that drifts")
}

/// The same blocks in the same order again and again, one of each page; nothing is sequential.
pub fn repeated(pages: u64, count: usize) -> Workload {
    let mut maker = Maker::new(3);
    for n in 0..count as u64 {
        let page = scattered(n % pages, pages);
        maker.push(page * PAGE, BLOCK, false);
    }
    maker.finish("loop")
}

/// Popular pages, and between them all pages in order by 64 KiB, again and again.
pub fn zipf_scan(pages: u64, count: usize) -> Workload {
    let zipf = Zipf::new(usize::try_from(pages / 8).unwrap_or(1), 1.1);
    let mut maker = Maker::new(4);
    let mut scan = 0;
    for n in 0..count {
        if n % 10 < 3 {
            maker.push(scan % pages * PAGE, PAGE, false);
            scan += 1;
        } else {
            let page = scattered(zipf.draw(&mut maker.random), pages);
            let block = maker.random.below(4);
            let is_write = maker.random.chance(200);
            maker.push(page * PAGE + block * BLOCK, BLOCK, is_write);
        }
    }
    maker.finish("zipf and scan")
}

/// Four of five requests write: to a log in order, to popular pages, and to pages once.
pub fn write_heavy(pages: u64, count: usize) -> Workload {
    let zipf = Zipf::new(usize::try_from(pages / 2).unwrap_or(1), 1.0);
    let mut maker = Maker::new(5);
    let (log, log_len) = (pages * PAGE, 256 * PAGE);
    let mut written = 0;
    for n in 0..count {
        match n % 10 {
            0..3 => {
                maker.push(log + written % log_len, 2 * BLOCK, true);
                written += 2 * BLOCK;
            }
            3..7 => {
                let page = scattered(zipf.draw(&mut maker.random), pages);
                maker.push(
                    page * PAGE + maker.requests.len() as u64 % 4 * BLOCK,
                    BLOCK,
                    n % 10 != 3,
                );
            }
            7 => {
                let page = maker.random.below(pages);
                maker.push(page * PAGE, 4 * BLOCK, true);
            }
            _ => {
                let page = scattered(zipf.draw(&mut maker.random), pages);
                maker.push(page * PAGE, BLOCK, n % 10 == 8);
            }
        }
    }
    maker.finish("write-heavy")
}
