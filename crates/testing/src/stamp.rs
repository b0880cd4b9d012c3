//! Contents of verified writes, and the record of every written block.
//!
//! A stamp contains the offset and the number of its write, in every 512 bytes. So stale, misplaced, torn and foreign
//! blocks are distinguished. The [`Ledger`] survives a client's run, a server's crash and a reconnection: acknowledged
//! writes must still be there.
//!
//! # Always true
//! - A block has at most one request in flight, so its contents are deterministic.
//! # Units
//! - Offsets and lengths in bytes; a sequence number per write, from 1.

use std::fmt;

const CHUNK: usize = 512;
const MAGIC: u64 = 0x7464_6774_5354_4D50;

/// A block with wrong contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// First byte on the disk.
    pub offset: u64,
    /// The number of the expected write.
    pub expected: u64,
    /// A description of the contents found.
    pub found: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "offset {}: expected write {}, found {}",
            self.offset, self.expected, self.found
        )
    }
}

impl std::error::Error for Mismatch {}

/// Fills `data` at `offset` with the stamp of write `sequence`.
pub fn fill(data: &mut [u8], offset: u64, sequence: u64) {
    let mut place = offset;
    for chunk in data.chunks_mut(CHUNK) {
        let mut noise = mix(place ^ sequence.rotate_left(32));
        for (index, word) in chunk.chunks_mut(8).enumerate() {
            let value = match index {
                0 => MAGIC,
                1 => place,
                2 => sequence,
                _ => {
                    noise = noise.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) ^ sequence;
                    noise
                }
            };
            word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
        }
        place += CHUNK as u64;
    }
}

/// Checks that `data`, read at `offset`, is exactly the stamp of write `sequence`.
///
/// # Errors
/// A description of the first 512 bytes that differ.
pub fn check(data: &[u8], offset: u64, sequence: u64) -> Result<(), Mismatch> {
    let mut expected = [0; CHUNK];
    let mut place = offset;
    for chunk in data.chunks(CHUNK) {
        let wanted = &mut expected[..chunk.len()];
        fill(wanted, place, sequence);
        if chunk != wanted {
            return Err(Mismatch {
                offset: place,
                expected: sequence,
                found: describe(chunk, place),
            });
        }
        place += CHUNK as u64;
    }
    Ok(())
}

fn describe(chunk: &[u8], place: u64) -> String {
    let word = |index: usize| {
        chunk.get(index * 8..index * 8 + 8).map_or(0, |bytes| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            u64::from_le_bytes(word)
        })
    };
    if chunk.iter().all(|byte| *byte == 0) {
        "zeroes".into()
    } else if word(0) != MAGIC {
        "foreign bytes".into()
    } else if word(1) == place {
        format!("write {} or a part of it", word(2))
    } else {
        format!("write {} of offset {}", word(2), word(1))
    }
}

/// The expected write of each block of a region.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    written: Vec<u64>,
    busy: Vec<bool>,
    last: u64,
}

impl Ledger {
    /// A ledger of `blocks` blocks without writes.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        Self {
            written: vec![0; blocks],
            busy: vec![false; blocks],
            last: 0,
        }
    }

    /// Reserves a block for one request. Returns false if another request has it.
    pub fn take(&mut self, block: usize) -> bool {
        !std::mem::replace(&mut self.busy[block], true)
    }

    /// The number of the next write.
    pub fn next_sequence(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The write expected in `block`; none if it was never written.
    #[must_use]
    pub fn expected(&self, block: usize) -> Option<u64> {
        (self.written[block] != 0).then_some(self.written[block])
    }

    /// Records that write `sequence` of `block` was acknowledged.
    pub fn acknowledge(&mut self, block: usize, sequence: u64) {
        self.written[block] = sequence;
    }

    /// Releases a reserved block.
    pub fn release(&mut self, block: usize) {
        self.busy[block] = false;
    }

    /// Number of written blocks.
    #[must_use]
    pub fn written(&self) -> usize {
        self.written
            .iter()
            .filter(|sequence| **sequence != 0)
            .count()
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.written.len()
    }

    /// Whether there are no blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.written.is_empty()
    }
}

/// The finaliser of splitmix64: every bit of the input affects every bit of the output.
#[must_use]
pub fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamped(offset: u64, sequence: u64) -> Vec<u8> {
        let mut data = vec![0; 4096];
        fill(&mut data, offset, sequence);
        data
    }

    #[test]
    fn a_stamp_is_recognised() {
        assert_eq!(check(&stamped(8192, 7), 8192, 7), Ok(()));
    }

    #[test]
    fn a_stale_block_is_identified() {
        let error = check(&stamped(8192, 6), 8192, 7).expect_err("stale");
        assert!(error.found.contains("write 6"), "{error}");
    }

    #[test]
    fn a_misplaced_block_is_identified() {
        let error = check(&stamped(4096, 7), 8192, 7).expect_err("misplaced");
        assert!(error.found.contains("of offset 4096"), "{error}");
    }

    #[test]
    fn a_torn_block_and_a_flipped_bit_are_found() {
        let (mut torn, old) = (stamped(0, 2), stamped(0, 1));
        torn[2048..].copy_from_slice(&old[2048..]);
        assert_eq!(check(&torn, 0, 2).expect_err("torn").offset, 2048);
        let mut flipped = stamped(0, 2);
        flipped[4095] ^= 1;
        assert_eq!(check(&flipped, 0, 2).expect_err("flipped").offset, 3584);
    }

    #[test]
    fn zeroes_and_foreign_bytes_are_distinguished() {
        assert_eq!(check(&[0; 512], 0, 1).expect_err("zeroes").found, "zeroes");
        assert_eq!(
            check(&[9; 512], 0, 1).expect_err("foreign").found,
            "foreign bytes"
        );
    }

    #[test]
    fn a_block_is_reserved_once() {
        let mut ledger = Ledger::new(2);
        assert!(ledger.take(1));
        assert!(!ledger.take(1));
        ledger.release(1);
        assert!(ledger.take(1));
        assert_eq!(ledger.expected(1), None);
        ledger.acknowledge(1, 5);
        assert_eq!(ledger.expected(1), Some(5));
        assert_eq!((ledger.written(), ledger.len()), (1, 2));
    }
}
