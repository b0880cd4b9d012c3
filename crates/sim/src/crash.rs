//! The crash simulator: the shipped shard and its filters over stores that lose what was not flushed.
//!
//! A [`world::World`] has one disk, guests' requests and stores with real bytes. A [`choice::Choose`] decides what happens
//! next: a guest submits, a store completes, an effect is performed, or the host crashes. [`history::History`] knows which
//! bytes a read may return at any moment, also after a crash. [`explore`] tries all schedules of short workloads;
//! [`seeds`] runs long random ones, and shortens what fails.
//!
//! # Always true
//! - A run is decided by its choices alone: the same choices give the same run.
//! - After a crash nothing is left but the durable bytes of the stores.
//!
//! # Source
//! ALICE (OSDI 2014) and CrashMonkey (OSDI 2018): crash states of short workloads, enumerated.

pub mod choice;
pub mod explore;
pub mod history;
pub mod pool;
pub mod seeds;
mod shape;
pub mod store;
pub mod world;

/// Bytes of a sector: what a store writes whole or not at all.
pub const SECTOR: usize = 512;

/// The bytes of a sector: they name the write that made them, and where they belong. Stamp 0 is zeroes.
pub fn fill(place: u64, stamp: u64) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if stamp != 0 {
        let words = [stamp, place, !stamp, !place];
        for (word, at) in words.iter().cycle().zip(bytes.chunks_exact_mut(8)) {
            at.copy_from_slice(&word.to_le_bytes());
        }
    }
    bytes
}

/// The stamp of a sector's bytes, as [`fill`] made them.
///
/// # Errors
/// The bytes are those of no write to this place: damaged, or of another place.
pub fn stamp(place: u64, bytes: &[u8]) -> Result<u64, String> {
    let mut first = [0; 8];
    first.copy_from_slice(&bytes[..8]);
    let stamp = u64::from_le_bytes(first);
    if bytes == fill(place, stamp) {
        return Ok(stamp);
    }
    let mut second = [0; 8];
    second.copy_from_slice(&bytes[8..16]);
    let owner = u64::from_le_bytes(second);
    Err(match bytes == fill(owner, stamp) {
        true => format!("sector {place} has the bytes of sector {owner}, write {stamp}"),
        false => format!("sector {place} has damaged bytes (write {stamp}?)"),
    })
}
