//! Microsoft's VHD, which QEMU calls vpc: a footer at the end, and for a growing image a table of blocks.
//!
//! # Source
//! "Virtual Hard Disk Image Format Specification" 1.0; QEMU's `block/vpc.c` for which of the two sizes counts.

use std::io;

use super::container::{Container, Layout, Place, damaged, leans_on, unsupported};

/// The first bytes of a footer; a growing image has a copy of it at its start.
pub(super) const MAGIC: &[u8] = b"conectix";

const FOOTER: usize = 512;
const FIXED: u32 = 2;
const GROWING: u32 = 3;
const BRANCHED: u32 = 4;

/// Programs that store the size in bytes. For all others, the guest saw the size by cylinders, heads and sectors.
const EXACT: [&[u8; 4]; 5] = [b"win ", b"qem2", b"d2v ", b"tap\0", b"CTXS"];

#[derive(Debug)]
pub(super) struct Vpc {
    size: u64,
    /// None if the data is stored linearly from the file's start.
    blocks: Option<Blocks>,
}

#[derive(Debug)]
struct Blocks {
    table: u64,
    entries: u64,
    block: u64,
    /// Size in bytes of the bitmap before each block's data.
    bitmap: u64,
}

/// Whether the last bytes of a file are the footer of an image of fixed size.
pub(super) fn is_fixed(tail: &[u8; FOOTER]) -> bool {
    tail.starts_with(MAGIC) && be32(tail, 0x3c) == FIXED && is_sound(tail)
}

impl Vpc {
    pub(super) fn open(file: &Container) -> io::Result<Vpc> {
        let length = file.length();
        let first: [u8; FOOTER] = file.array(0)?;
        let last: [u8; FOOTER] = file.array(length - FOOTER as u64)?;
        // An image of fixed size begins with its guest's data.
        let footer = match first.starts_with(MAGIC) && !is_fixed(&last) {
            true => first,
            false => last,
        };
        if !footer.starts_with(MAGIC) || !is_sound(&footer) {
            return Err(damaged("its footer is damaged"));
        }
        let size = size_of(&footer);
        let blocks = match be32(&footer, 0x3c) {
            FIXED if size > length - FOOTER as u64 => {
                return Err(damaged("it is shorter than its disk: it may be truncated"));
            }
            FIXED => None,
            GROWING => Some(Blocks::open(file, &footer, size)?),
            BRANCHED => return Err(leans_on("its backing image")),
            other => return Err(unsupported(format!("it is of type {other}"))),
        };
        Ok(Vpc { size, blocks })
    }
}

impl Blocks {
    fn open(file: &Container, footer: &[u8; FOOTER], size: u64) -> io::Result<Blocks> {
        let header: [u8; 1024] = file.array(be64(footer, 0x10))?;
        if !header.starts_with(b"cxsparse") {
            return Err(damaged("its header is damaged"));
        }
        let (table, entries) = (be64(&header, 0x10), be32(&header, 0x1c));
        let block = be32(&header, 0x20);
        if !block.is_power_of_two() || block < 512 {
            return Err(damaged(format!("it has blocks of {block} bytes")));
        }
        let (block, entries) = (u64::from(block), u64::from(entries));
        if size.div_ceil(block) > entries {
            return Err(damaged("its table of blocks is shorter than its disk"));
        }
        Ok(Blocks {
            table,
            entries,
            block,
            bitmap: block.div_ceil(512 * 8).next_multiple_of(512),
        })
    }
}

impl Layout for Vpc {
    fn size(&self) -> u64 {
        self.size
    }

    fn find(&self, file: &Container, offset: u64) -> io::Result<(u64, Place)> {
        let Some(blocks) = &self.blocks else {
            return Ok((self.size - offset, Place::At(offset)));
        };
        let (block, within) = (offset / blocks.block, offset % blocks.block);
        debug_assert!(block < blocks.entries, "checked when it was opened");
        let length = (blocks.block - within).min(self.size - offset);
        let at = blocks
            .table
            .checked_add(4 * block)
            .ok_or_else(|| damaged("its table points outside of it"))?;
        Ok(match file.be32(at)? {
            u32::MAX => (length, Place::Zero),
            sector => {
                let data = u64::from(sector) * 512 + blocks.bitmap;
                (length, Place::At(data + within))
            }
        })
    }
}

/// Size of the disk in bytes.
fn size_of(footer: &[u8; FOOTER]) -> u64 {
    let cylinders = u64::from(u16::from_be_bytes([footer[0x38], footer[0x39]]));
    let (heads, sectors) = (u64::from(footer[0x3a]), u64::from(footer[0x3b]));
    let exact = EXACT
        .iter()
        .any(|program| footer[0x1c..0x20] == program[..]);
    match exact || (cylinders, heads, sectors) == (65_535, 16, 255) {
        true => be64(footer, 0x30),
        false => cylinders * heads * sectors * 512,
    }
}

/// Whether its checksum is right: the complement of the sum of all other bytes.
fn is_sound(footer: &[u8; FOOTER]) -> bool {
    let own = 0x40..0x44;
    let bytes = footer.iter().enumerate();
    let others = bytes.filter(|(at, _)| !own.contains(at));
    let sum = others.fold(0_u32, |sum, (_, byte)| sum.wrapping_add((*byte).into()));
    be32(footer, 0x40) == !sum
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    let four = bytes[at..].first_chunk().expect("the place is within");
    u32::from_be_bytes(*four)
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes[at..].first_chunk().expect("the place is within");
    u64::from_be_bytes(*eight)
}
