//! VirtualBox's VDI: a header, a table of blocks, the blocks.
//!
//! # Source
//! VirtualBox's `VDICore.h`; QEMU's `block/vdi.c`.

use std::io;

use super::container::{Container, Layout, Place, damaged, leans_on, unsupported};

/// Offset of the magic number, and the number.
pub(super) const MAGIC: (usize, [u8; 4]) = (0x40, 0xbeda_107f_u32.to_le_bytes());

/// Table entries for a block that does not exist, and for a discarded one. Both read as zeroes.
const NOWHERE: u32 = 0xffff_fffe;

/// The two image types without a parent: dynamic and fixed.
const ALONE: [u32; 2] = [1, 2];

#[derive(Debug)]
pub(super) struct Vdi {
    size: u64,
    block: u64,
    table: u64,
    data: u64,
}

impl Vdi {
    pub(super) fn open(file: &Container) -> io::Result<Vdi> {
        let version = file.le32(0x44)?;
        if version != 0x0001_0001 {
            return Err(unsupported(format!("it is of version {version:#x}")));
        }
        let (kind, parent) = (file.le32(0x4c)?, file.array::<16>(0x1b8)?);
        if !ALONE.contains(&kind) || parent != [0; 16] {
            return Err(leans_on("its backing image"));
        }
        let (table, data) = (file.le32(0x154)?, file.le32(0x158)?);
        let (size, block) = (file.le64(0x170)?, file.le32(0x178)?);
        let (extra, blocks) = (file.le32(0x17c)?, file.le32(0x180)?);
        if extra != 0 || !block.is_power_of_two() || block < 512 {
            return Err(unsupported(format!(
                "it has blocks of {block} bytes and {extra} more"
            )));
        }
        let block = u64::from(block);
        if size.div_ceil(block) > u64::from(blocks) {
            return Err(damaged("its table of blocks is shorter than its disk"));
        }
        Ok(Vdi {
            size,
            block,
            table: table.into(),
            data: data.into(),
        })
    }
}

impl Layout for Vdi {
    fn size(&self) -> u64 {
        self.size
    }

    fn find(&self, file: &Container, offset: u64) -> io::Result<(u64, Place)> {
        let (block, within) = (offset / self.block, offset % self.block);
        let length = (self.block - within).min(self.size - offset);
        let entry = file.le32(self.table + 4 * block)?;
        if entry >= NOWHERE {
            return Ok((length, Place::Zero));
        }
        let at = self.data + u64::from(entry) * self.block + within;
        Ok((length, Place::At(at)))
    }
}
