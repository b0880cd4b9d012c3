//! Requests that go past a cache, or meet those that do: several blocks of a few pages, most of them whole.
//!
//! Few blocks are used, so that requests, cleaning and flushes meet at the same ones.

use crate::crash::choice::Choose;
use crate::crash::world::GuestRequest;
use tidegate_core::request::{Flags, Op};

/// Sectors of a block of the cache.
const BLOCK: u64 = 8;
/// Blocks of a page.
const BLOCKS: u32 = 16;
/// Requests are at so many blocks of a page, in its middle.
const FEW: u32 = 4;

/// A request of one to four blocks in one of the first pages, or over a whole page and more.
pub(super) fn request(disk: u64, choices: &mut dyn Choose) -> GuestRequest {
    let op = match choices.choose(8) {
        0..3 => Op::Write,
        3 | 4 => Op::WriteZeroes,
        5 => Op::Discard,
        6 => Op::Read,
        _ => return flush(),
    };
    let page = u64::from(choices.choose(3)) * u64::from(BLOCKS);
    let (first, blocks) = match choices.choose(8) {
        0 => (0, BLOCKS + choices.choose(BLOCKS)),
        _ => (6 + choices.choose(FEW), 1 + choices.choose(FEW)),
    };
    // One edge in eight cuts a block.
    let cut = |choices: &mut dyn Choose| match choices.choose(8) {
        1 => 1 + u64::from(choices.choose(7)),
        _ => 0,
    };
    let sector = (page + u64::from(first)) * BLOCK + cut(choices);
    let sectors = u64::from(blocks) * BLOCK - cut(choices);
    let sector = sector.min(disk - 1);
    let flags = match op.modifies() && choices.choose(4) == 1 {
        true => Flags::FUA,
        false => Flags::NONE,
    };
    GuestRequest {
        op,
        flags,
        sector,
        sectors: sectors.min(disk - sector),
    }
}

fn flush() -> GuestRequest {
    GuestRequest {
        op: Op::Flush,
        flags: Flags::NONE,
        sector: 0,
        sectors: 0,
    }
}
