//! The alignment rules of direct I/O, and how requests are split to fit them.
//!
//! Direct I/O takes whole units of the device (512 bytes on most), from aligned memory. Space is given back, or zeroed by
//! the file system, in whole blocks of its own: the rest of a block it would clear in the page cache, beside our direct
//! I/O. What is left over at the ends of a request is written by the image itself (`zero.rs`).
//!
//! # Always true
//! - an image that is read and written directly is never read or written through the page cache, in no byte of it
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
    /// Offsets and lengths of direct I/O are multiples of this; 1 where the page cache takes anything.
    pub(super) unit: u64,
    /// Memory of direct I/O begins and ends at multiples of this.
    pub(super) memory: usize,
    /// Holes and zeroed ranges begin and end at multiples of this.
    pub(super) block: u64,
}

/// The next thing to do about a range that is to be zeroed or given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// So many bytes, by the file system.
    Blocks(u64),
    /// So many bytes, by writing zeroes.
    Zeroes(u64),
    /// So many bytes of one unit, which has others.
    Edge(u64),
}

impl Grain {
    /// Of an image that is used through the page cache.
    pub(super) const CACHED: Grain = Grain {
        unit: 1,
        memory: 1,
        block: 1,
    };

    /// Of direct I/O on these files; or why there is none.
    pub(super) fn of(files: &Files) -> Result<Grain, &'static str> {
        let Some((file, alignment)) = &files.direct else {
            return Err("its file system has no direct I/O");
        };
        // The node of a device lies on a file system in memory, too.
        if files.kind.is_file() && os::is_memory(file) {
            return Err("its file system keeps files in memory");
        }
        if alignment.offset == 0 {
            return Err("direct I/O is not possible with this file");
        }
        let unit = alignment.offset as u64;
        let memory = alignment.memory.max(1);
        if !unit.is_power_of_two() || !memory.is_power_of_two() {
            return Err("its direct I/O has units that are no powers of two");
        }
        if unit > WINDOW {
            return Err("its direct I/O has units of more than 64 KiB");
        }
        if !files.size.is_multiple_of(unit) {
            return Err("its length is no multiple of the unit of direct I/O there");
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

    /// Whether an operation can be given to the kernel as it is.
    #[inline]
    pub(super) fn fits(&self, buffers: &Buffers, data: Data, offset: u64, len: u64) -> bool {
        self.is_whole(offset, len)
            && (self.memory == 1 || buffers.is_memory_aligned(data, self.memory))
    }

    /// How many of the bytes that the kernel says it has moved are in units that it has done whole.
    pub(super) fn done_whole(&self, moved: u64) -> u64 {
        moved & !(self.unit - 1)
    }

    /// The units that hold `len` bytes from `offset` on: where they begin and end.
    pub(super) fn around(&self, offset: u64, len: u64) -> (u64, u64) {
        let last = self.unit - 1;
        (offset & !last, (offset + len + last) & !last)
    }

    /// The first piece of a range that is to be zeroed, by the file system if `blocks`, and else by writing zeroes.
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
    fn the_file_system_gets_whole_blocks_and_the_rest_is_written() {
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
    fn units_around_a_range_hold_it() {
        assert_eq!(GRAIN.around(0, 512), (0, 512));
        assert_eq!(GRAIN.around(511, 2), (0, 1024));
        assert_eq!(GRAIN.around(512, 1), (512, 1024));
        assert!(GRAIN.is_whole(512, 1024));
        assert!(!GRAIN.is_whole(512, 1025));
        assert!(!GRAIN.is_whole(1, 512));
        assert_eq!(GRAIN.done_whole(1023), 512);
    }
}
