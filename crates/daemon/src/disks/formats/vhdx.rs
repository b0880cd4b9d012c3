//! Microsoft's VHDX: two headers, two tables of regions, a table of items, and the block allocation table (BAT).
//!
//! # Source
//! MS-VHDX, "Virtual Hard Disk v2 (VHDX) File Format".

use std::io;

use super::container::{Container, Layout, Place, damaged, leans_on, unsupported};

/// The first bytes of a file.
pub(super) const MAGIC: &[u8] = b"vhdxfile";

const HEADERS: [u64; 2] = [64 << 10, 128 << 10];
const REGIONS: [u64; 2] = [192 << 10, 256 << 10];
const HEADER: usize = 4096;
const REGION_TABLE: usize = 64 << 10;
const METADATA_TABLE: usize = 64 << 10;

const BAT: [u8; 16] = guid(0x2dc2_7766, 0xf623, 0x4200, 0x9d64_115e_9bfd_4a08);
const METADATA: [u8; 16] = guid(0x8b7c_a206, 0x4790, 0x4b9a, 0xb8fe_575f_050f_886e);
const PARAMETERS: [u8; 16] = guid(0xcaa1_6737, 0xfa36, 0x4d43, 0xb3b6_33f0_aa44_e76b);
const DISK_SIZE: [u8; 16] = guid(0x2fa5_4224, 0xcd1b, 0x4876, 0xb211_5dbe_d83b_f4b8);
const SECTOR_SIZE: [u8; 16] = guid(0x8141_bf1d, 0xa96f, 0x4709, 0xba47_f233_a8fa_ab5f);

#[derive(Debug)]
pub(super) struct Vhdx {
    size: u64,
    block: u64,
    table: u64,
    /// A bitmap entry follows each group of this many block entries.
    chunk: u64,
}

impl Vhdx {
    pub(super) fn open(file: &Container) -> io::Result<Vhdx> {
        let header = header(file)?;
        if header[48..64] != [0; 16] {
            return Err(unsupported(
                "it was not closed: some changes are only in its log, which is not replayed",
            ));
        }
        let regions = region_table(file)?;
        let region = |id: &[u8; 16]| {
            let count = le32(&regions, 8).min(2047) as usize;
            let entries = regions[16..].chunks_exact(32).take(count);
            let mut of_it = entries.filter(|entry| entry[..16] == *id);
            let entry = of_it.next().ok_or_else(|| damaged("a region is missing"))?;
            Ok::<_, io::Error>((le64(entry, 16), u64::from(le32(entry, 24))))
        };
        let (table, table_length) = region(&BAT)?;
        let (metadata, _) = region(&METADATA)?;
        let items = Items::open(file, metadata)?;
        let parameters = items.find(file, &PARAMETERS)?;
        let (block, flags) = (file.le32(parameters)?, file.le32(parameters + 4)?);
        if flags & 2 != 0 {
            return Err(leans_on("its backing image"));
        }
        let size = file.le64(items.find(file, &DISK_SIZE)?)?;
        let sector = file.le32(items.find(file, &SECTOR_SIZE)?)?;
        let known = [512, 4096].contains(&sector);
        if !known || !block.is_power_of_two() || !(1 << 20..=256 << 20).contains(&block) {
            return Err(damaged(format!(
                "it has blocks of {block} and sectors of {sector} bytes"
            )));
        }
        let block = u64::from(block);
        let chunk = (u64::from(sector) << 23) / block;
        let blocks = size.div_ceil(block);
        let entries = blocks + blocks.saturating_sub(1) / chunk;
        if entries
            .checked_mul(8)
            .is_none_or(|bytes| bytes > table_length)
        {
            return Err(damaged("its table of blocks is shorter than its disk"));
        }
        Ok(Vhdx {
            size,
            block,
            table,
            chunk,
        })
    }
}

impl Layout for Vhdx {
    fn size(&self) -> u64 {
        self.size
    }

    fn find(&self, file: &Container, offset: u64) -> io::Result<(u64, Place)> {
        let (block, within) = (offset / self.block, offset % self.block);
        let length = (self.block - within).min(self.size - offset);
        let entry = self
            .table
            .checked_add(8 * (block + block / self.chunk))
            .ok_or_else(|| damaged("its table of blocks points outside of it"))?;
        let entry = file.le64(entry)?;
        // The offset is in MiB, in the upper 44 bits.
        let at = (entry & !0xf_ffff).saturating_add(within);
        match entry & 7 {
            0..=3 => Ok((length, Place::Zero)),
            6 => Ok((length, Place::At(at))),
            7 => Err(leans_on("its backing image")),
            state => Err(damaged(format!("a block of it is in state {state}"))),
        }
    }
}

/// The latest header that is intact.
fn header(file: &Container) -> io::Result<Vec<u8>> {
    let headers = HEADERS.map(|at| file.bytes(at, HEADER));
    let sound = headers
        .into_iter()
        .flatten()
        .filter(|header| header.starts_with(b"head") && is_sound(header));
    let latest = sound.max_by_key(|header| le64(header, 8));
    latest.ok_or_else(|| damaged("both its headers are damaged"))
}

fn region_table(file: &Container) -> io::Result<Vec<u8>> {
    let tables = REGIONS.map(|at| file.bytes(at, REGION_TABLE));
    let mut sound = tables
        .into_iter()
        .flatten()
        .filter(|table| table.starts_with(b"regi") && is_sound(table));
    sound
        .next()
        .ok_or_else(|| damaged("both its tables of regions are damaged"))
}

/// The metadata region's table of items.
struct Items {
    region: u64,
    table: Vec<u8>,
}

impl Items {
    fn open(file: &Container, region: u64) -> io::Result<Items> {
        let table = file.bytes(region, METADATA_TABLE)?;
        if !table.starts_with(b"metadata") {
            return Err(damaged("its metadata is damaged"));
        }
        Ok(Items { region, table })
    }

    fn find(&self, file: &Container, id: &[u8; 16]) -> io::Result<u64> {
        let count = usize::from(u16::from_le_bytes([self.table[10], self.table[11]]));
        let entries = self.table[32..].chunks_exact(32).take(count);
        let mut of_it = entries.filter(|entry| entry[..16] == *id);
        let entry = of_it
            .next()
            .ok_or_else(|| damaged("its metadata is incomplete"))?;
        let at = self.region + u64::from(le32(entry, 16));
        match at < file.length() {
            true => Ok(at),
            false => Err(damaged("its metadata is beyond its end")),
        }
    }
}

/// Whether a structure with its checksum at byte 4 is intact.
fn is_sound(bytes: &[u8]) -> bool {
    let crc = |crc: u32, byte: u8| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| match crc & 1 {
            1 => (crc >> 1) ^ 0x82f6_3b78,
            _ => crc >> 1,
        })
    };
    let own = 4..8;
    let bytes_without = bytes.iter().enumerate();
    let sum = bytes_without.fold(u32::MAX, |sum, (at, byte)| {
        crc(sum, if own.contains(&at) { 0 } else { *byte })
    });
    le32(bytes, 4) == !sum
}

/// A GUID as stored in the file: its first three fields are little-endian.
const fn guid(a: u32, b: u16, c: u16, d: u64) -> [u8; 16] {
    let (a, b, c, d) = (
        a.to_le_bytes(),
        b.to_le_bytes(),
        c.to_le_bytes(),
        d.to_be_bytes(),
    );
    [
        a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6],
        d[7],
    ]
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    let four = bytes[at..].first_chunk().expect("the place is within");
    u32::from_le_bytes(*four)
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    let eight = bytes[at..].first_chunk().expect("the place is within");
    u64::from_le_bytes(*eight)
}
