//! The alignment rules of direct I/O, and how requests are split to fit them.
//!
//! Direct I/O needs whole units of the device (512 bytes on most) and aligned memory. The file system frees and zeroes
//! only whole blocks directly. For a partial block it would write zeroes to the page cache, which must not be mixed with
//! direct I/O. So the image itself writes the zeroes at the ends of a range (`zero.rs`).
//!
//! # Always true
//! - an image that uses direct I/O never uses the page cache, not even for a single byte
//!
//! # Units
//! Bytes. All of them are powers of two.
//!
//! # Source
//! open(2) on O_DIRECT; statx(2) on STATX_DIOALIGN; fallocate(2) on ranges that do not fill blocks.

use super::bounce::WINDOW;
use super::files::Files;
use crate::sys::buffers::Buffers;
use crate::sys::os;
use tidegate_core::request::Data;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grain {
    /// Offsets and lengths of direct I/O are multiples of this; 1 with the page cache.
    pub(super) unit: u64,
    /// Memory for direct I/O starts and ends at multiples of this.
    pub(super) memory: usize,
    /// Holes and zeroed ranges start and end at multiples of this.
    pub(super) block: u64,
}

/// The next step for a range to zero or discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// This many bytes, by the file system.
    Blocks(u64),
    /// This many bytes, by writing zeroes.
    Zeroes(u64),
    /// This many bytes of one unit. The unit's other bytes must not change.
    Edge(u64),
}

impl Grain {
    /// For an image that uses the page cache.
    pub(super) const CACHED: Grain = Grain {
        unit: 1,
        memory: 1,
        block: 1,
    };

    /// For direct I/O on these files; or the reason why there is none.
    pub(super) fn of(files: &Files) -> Result<Grain, &'static str> {
        let Some((file, alignment)) = &files.direct else {
            return Err("its file system has no direct I/O");
        };
        // A device's node also lies on a file system in memory.
        if files.kind.is_file() && os::is_memory(file) {
            return Err("its file system keeps files in memory");
        }
        if alignment.offset == 0 {
            return Err("direct I/O is not possible with this file");
        }
        let unit = alignment.offset as u64;
        let memory = alignment.memory.max(1);
        if !unit.is_power_of_two() || !memory.is_power_of_two() {
            return Err("its unit of direct I/O is not a power of two");
        }
        if unit > WINDOW {
            return Err("its unit of direct I/O is larger than 64 KiB");
        }
        if !files.size.is_multiple_of(unit) {
            return Err("its length is not a multiple of the unit of direct I/O");
        }
        let block = if files.kind.is_file() {
            os::hole_unit(file).max(unit)
        } else {
            unit
        };
        Ok(Grain {
            unit,
            memory,
            block,
        })
    }

    /// Whether a range is made of whole units.
    #[inline]
    pub(super) fn is_whole(&self, offset: u64, len: u64) -> bool {
        (offset | len) & (self.unit - 1) == 0
    }

    /// Whether an operation can be passed to the kernel unchanged.
    #[inline]
    pub(super) fn fits(&self, buffers: &Buffers, data: Data, offset: u64, len: u64) -> bool {
        self.is_whole(offset, len)
            && (self.memory == 1 || buffers.is_memory_aligned(data, self.memory))
    }

    /// How many of the `moved` bytes fill whole units. The rest, in a partial unit, is not counted.
    pub(super) fn done_whole(&self, moved: u64) -> u64 {
        moved & !(self.unit - 1)
    }

    /// Start and end of the units that contain `len` bytes from `offset` on.
    pub(super) fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        let last = self.unit - 1;
        (offset & !last, (offset + len + last) & !last)
    }

    /// The first piece of a range to zero: by the file system if `blocks`, otherwise by writing zeroes.
    pub(super) fn piece(&self, offset: u64, len: u64, blocks: bool) -> Piece {
        let mut here = len;
        if blocks {
            let into = offset & (self.block - 1);
            let whole = len & !(self.block - 1);
            if into == 0 && whole > 0 {
                return Piece::Blocks(whole);
            }
            here = len.min(self.block - into);
        }
        let into = offset & (self.unit - 1);
        let whole = here & !(self.unit - 1);
        if into == 0 && whole > 0 {
            return Piece::Zeroes(whole);
        }
        Piece::Edge(here.min(self.unit - into))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRAIN: Grain = Grain {
        unit: 512,
        memory: 512,
        block: 4096,
    };

    /// All pieces of a range.
    fn pieces(grain: Grain, offset: u64, len: u64, blocks: bool) -> Vec<Piece> {
        let (mut at, end) = (offset, offset + len);
        let mut pieces = Vec::new();
        while at < end {
            let piece = grain.piece(at, end - at, blocks);
            let (Piece::Blocks(len) | Piece::Zeroes(len) | Piece::Edge(len)) = piece;
            assert!(len > 0);
            at += len;
            pieces.push(piece);
        }
        assert_eq!(at, end);
        pieces
    }

    #[test]
    fn the_file_system_zeroes_whole_blocks_and_the_rest_is_written() {
        use Piece::{Blocks, Edge, Zeroes};
        assert_eq!(pieces(GRAIN, 0, 8192, true), [Blocks(8192)]);
        let ragged = [
            Edge(412),
            Zeroes(3072),
            Blocks(4096),
            Zeroes(1024),
            Edge(100),
        ];
        assert_eq!(pieces(GRAIN, 612, 8704, true), ragged);
        assert_eq!(pieces(GRAIN, 512, 1024, true), [Zeroes(1024)]);
        assert_eq!(pieces(GRAIN, 100, 50, true), [Edge(50)]);
        assert_eq!(pieces(GRAIN, 0, 8192, false), [Zeroes(8192)]);
        assert_eq!(pieces(Grain::CACHED, 100, 50, true), [Blocks(50)]);
        assert_eq!(pieces(Grain::CACHED, 100, 50, false), [Zeroes(50)]);
    }

    #[test]
    fn units_around_a_range_contain_it() {
        assert_eq!(GRAIN.around(0, 512), (0, 512));
        assert_eq!(GRAIN.around(511, 2), (0, 1024));
        assert_eq!(GRAIN.around(512, 1), (512, 1024));
        assert!(GRAIN.is_whole(512, 1024));
        assert!(!GRAIN.is_whole(512, 1025));
        assert!(!GRAIN.is_whole(1, 512));
        assert_eq!(GRAIN.done_whole(1023), 512);
    }
}
