//! A run of requests through a cache with one policy, and what came of it.
//!
//! A request that touches several pages is one access of each, as the cache sees it. Each of its 4 KiB blocks counts as one
//! request of 4 KiB: as a hit if the cache has it. The cache of `auto` changes its parameters when the shadows choose.
//!
//! # Units
//! Blocks of 4 KiB; pages of sixteen.

use super::requests::Request;
use std::collections::HashMap;
use tidegate_core::layout::cache::policy::{
    Access, CANDIDATES, Choice, Figures, Judged, Params, Shadow, Shadows, Streams,
};
use tidegate_core::units::Time;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 16;

/// A policy by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name in tables.
    pub name: &'static str,
    /// Its parameters; none for `auto`.
    pub params: Option<Params>,
}

const fn fixed(name: &'static str, params: Params) -> Named {
    Named {
        name,
        params: Some(params),
    }
}

/// The policies that tables compare.
pub const POLICIES: [Named; 7] = [
    fixed("FIFO", Params::FIFO),
    fixed("CLOCK", Params::CLOCK),
    fixed("LRU", Params::LRU),
    fixed("FAST rule", Params::FAST),
    fixed("S3-FIFO", Params::S3_FIFO),
    fixed("Clock2Q+", Params::CLOCK_2Q_PLUS),
    AUTO,
];

/// The policy that chooses among [`CANDIDATES`].
pub const AUTO: Named = Named {
    name: "auto",
    params: None,
};

/// Names of the policies of which `auto` should miss no more than the best.
pub const SINGLE: [&str; 4] = ["LRU", "FAST rule", "S3-FIFO", "Clock2Q+"];

/// Requests, split by page.
#[derive(Clone, Debug)]
pub struct Accesses {
    accesses: Vec<(Time, Access)>,
    /// Different blocks.
    touched: u64,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Counts of blocks.
    pub figures: Figures,
    /// Changes of the policy, with their times.
    pub choices: Vec<(Time, Choice)>,
    /// What the shadows measured; empty without them.
    pub judged: Vec<Judged>,
}

impl Outcome {
    /// The part of blocks that was missed.
    pub fn miss(&self) -> f64 {
        1.0 - self.figures.hits as f64 / self.figures.accessed.max(1) as f64
    }

    /// Bytes written to flash for each byte of the requests.
    pub fn flash(&self) -> f64 {
        self.figures.flash as f64 / self.figures.accessed.max(1) as f64
    }
}

impl Accesses {
    /// Splits requests.
    ///
    /// # Errors
    /// One lies beyond what a disk can have.
    pub fn of(requests: &[Request]) -> Result<Accesses, String> {
        let mut streams = Streams::new();
        let mut accesses = Vec::with_capacity(requests.len());
        let mut pages: HashMap<u32, u16> = HashMap::new();
        for request in requests {
            let is_sequential = streams.access(request.offset, request.len);
            let first = request.offset / BLOCK;
            let last = (request.offset + (request.len - 1)) / BLOCK;
            for page in first / BLOCKS..=last / BLOCKS {
                let number = u32::try_from(page).map_err(|_| "a request lies beyond 256 TiB")?;
                let blocks = blocks(page, first, last);
                *pages.entry(number).or_default() |= blocks;
                let access = Access {
                    page: number,
                    blocks,
                    is_write: request.is_write,
                    is_sequential,
                };
                accesses.push((request.at, access));
            }
        }
        let touched = pages.values().map(|blocks| u64::from(blocks.count_ones()));
        Ok(Accesses {
            touched: touched.sum(),
            accesses,
        })
    }

    /// Different blocks of all requests.
    pub fn touched(&self) -> u64 {
        self.touched
    }

    /// The slots of a cache for so many percent of the touched blocks, at least one.
    pub fn slots(&self, percent: u64) -> u32 {
        u32::try_from(self.touched * percent / 100 / BLOCKS).map_or(u32::MAX, |slots| slots.max(1))
    }

    /// Runs them through an empty cache.
    pub fn run(&self, policy: Named, slots: u32) -> Outcome {
        let mut cache = Shadow::new(slots, policy.params.unwrap_or(CANDIDATES[0]));
        let mut shadows = policy.params.is_none().then(|| Shadows::new(slots));
        let mut choices = Vec::new();
        for (at, access) in &self.accesses {
            cache.access(*access, *at);
            let Some(shadows) = &mut shadows else {
                continue;
            };
            shadows.access(*access, *at);
            if let Some(choice) = shadows.choose(*at) {
                cache.set_params(*shadows.params());
                choices.push((*at, choice));
            }
        }
        Outcome {
            figures: *cache.figures(),
            choices,
            judged: shadows.map_or_else(Vec::new, |shadows| shadows.judged().to_vec()),
        }
    }
}

/// Each block of the requests as a request of its own, at the same time. No cache sees requests so: what a policy reads
/// beside the first block of a request counts as hits of the others.
pub fn each_block(requests: &[Request]) -> Vec<Request> {
    let blocks = requests.iter().flat_map(|request| {
        let last = (request.offset + (request.len - 1)) / BLOCK;
        (request.offset / BLOCK..=last).map(|block| Request {
            offset: block * BLOCK,
            len: BLOCK,
            ..*request
        })
    });
    blocks.collect()
}

/// The blocks from `first` to `last` that lie in a page, one bit each.
fn blocks(page: u64, first: u64, last: u64) -> u16 {
    let begin = page * BLOCKS;
    let from = first.max(begin) - begin;
    let to = last.min(begin + BLOCKS - 1) - begin;
    (u16::MAX << from) & (u16::MAX >> (BLOCKS - 1 - to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_split_at_pages_and_touches_each_block_once() {
        let request = |offset, len| Request {
            at: Time::ZERO,
            is_write: false,
            offset,
            len,
        };
        let requests = [request(14 * 4096 + 512, 3 * 4096), request(15 * 4096, 1)];
        let accesses = Accesses::of(&requests).expect("within a disk");
        let split = accesses.accesses.iter().map(|(_, it)| (it.page, it.blocks));
        let expected = [(0, 0xc000), (1, 0b11), (0, 0x8000)];
        assert_eq!(split.collect::<Vec<_>>(), expected);
        assert_eq!(accesses.touched(), 4);
        assert!(Accesses::of(&[request(1 << 60, 1)]).is_err());
    }
}
