//! VMware's VMDK as a single file: a header, a description, directories of grain tables, the grains.
//!
//! A separate description file names other files, and so does an image with a parent: both are refused.
//!
//! # Source
//! VMware's "Virtual Disk Format 5.0"; QEMU's `block/vmdk.c`.

use std::cell::RefCell;
use std::io;

use super::container::{Container, Layout, Place, damaged, inflate, leans_on, unsupported};

/// The first bytes of a file with grains.
pub(super) const MAGIC: &[u8] = b"KDMV";

const SECTOR: u64 = 512;
const ZERO_GRAINS: u32 = 1 << 2;
const COMPRESSED: u32 = 1 << 16;
const MARKERS: u32 = 1 << 17;
/// The directory's offset, if it is in the copy of the header at the file's end.
const AT_THE_END: u64 = u64::MAX;
/// Distance of that copy from the end of the file: the copy itself and the end-of-stream marker.
const FOOTER: u64 = 1024;
/// The longest description that is read: QEMU's has 20 sectors.
const MOST_DESCRIPTION: u64 = 64 << 10;
/// The largest grain: VMware's have 64 KiB.
const MOST_GRAIN: u64 = 1 << 20;

pub(super) struct Vmdk {
    size: u64,
    grain: u64,
    per_table: u64,
    directory: u64,
    flags: u32,
    /// The grain that was decompressed last, with its number.
    unpacked: RefCell<Option<(u64, Vec<u8>)>>,
}

impl Vmdk {
    pub(super) fn open(file: &Container) -> io::Result<Vmdk> {
        must_stand_alone(file)?;
        let mut header = 0;
        if file.le64(56)? == AT_THE_END {
            header = file.length().saturating_sub(FOOTER);
            if file.array::<4>(header)? != MAGIC {
                return Err(damaged("it has no footer: it may be truncated"));
            }
        }
        let version = file.le32(header + 4)?;
        if !(1..=3).contains(&version) {
            return Err(unsupported(format!("it is of version {version}")));
        }
        let flags = file.le32(header + 8)?;
        let (capacity, grain) = (file.le64(header + 12)?, file.le64(header + 20)?);
        let (per_table, directory) = (file.le32(header + 44)?, file.le64(header + 56)?);
        let deflated = u16::from_le_bytes(file.array(header + 77)?) == 1;
        if flags & COMPRESSED != 0 && !(deflated && flags & MARKERS != 0) {
            return Err(unsupported("it is compressed by another way than deflate"));
        }
        let grain = grain.saturating_mul(SECTOR);
        if capacity == 0 || capacity > 1 << 50 {
            return Err(damaged(format!("it has {capacity} sectors")));
        }
        if !grain.is_power_of_two() || !(SECTOR..=MOST_GRAIN).contains(&grain) {
            return Err(damaged(format!("it has grains of {grain} bytes")));
        }
        if per_table == 0 || per_table > 512 {
            return Err(damaged(format!("it has tables of {per_table} grains")));
        }
        let directory = directory
            .checked_mul(SECTOR)
            .ok_or_else(|| damaged("its directory points outside of it"))?;
        Ok(Vmdk {
            size: capacity * SECTOR,
            grain,
            per_table: per_table.into(),
            directory,
            flags,
            unpacked: RefCell::default(),
        })
    }

    /// Decompresses the grain that begins at `at`.
    fn unpack_grain(&self, file: &Container, at: u64) -> io::Result<Vec<u8>> {
        // A marker comes first: the grain's first sector on the disk (8 bytes), and the packed length (4 bytes).
        let packed = file.le32(at + 8)?;
        if u64::from(packed) > 2 * self.grain {
            return Err(damaged("a grain of it is longer than it can be"));
        }
        let packed = file.bytes(at + 12, packed as usize)?;
        let length = usize::try_from(self.grain).expect("a grain is small");
        let mut grain = vec![0; length];
        // The last grain may be shorter.
        inflate(&packed, &mut grain, true)?;
        Ok(grain)
    }
}

impl Layout for Vmdk {
    fn size(&self) -> u64 {
        self.size
    }

    fn find(&self, file: &Container, offset: u64) -> io::Result<(u64, Place)> {
        let (grain, within) = (offset / self.grain, offset % self.grain);
        let (table, entry) = (grain / self.per_table, grain % self.per_table);
        let covered = self.grain * self.per_table;
        let at_most = |length: u64| length.min(self.size - offset);
        let place = self
            .directory
            .checked_add(4 * table)
            .ok_or_else(|| damaged("its directory points outside of it"))?;
        let table = u64::from(file.le32(place)?);
        if table == 0 {
            return Ok((at_most(covered - offset % covered), Place::Zero));
        }
        let length = at_most(self.grain - within);
        let sector = u64::from(file.le32(table * SECTOR + 4 * entry)?);
        Ok(match sector {
            0 => (length, Place::Zero),
            1 if self.flags & ZERO_GRAINS != 0 => (length, Place::Zero),
            _ if self.flags & COMPRESSED != 0 => (length, Place::Packed),
            _ => (length, Place::At(sector * SECTOR + within)),
        })
    }

    fn unpack(&self, file: &Container, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (grain, within) = (offset / self.grain, offset % self.grain);
        let mut unpacked = self.unpacked.borrow_mut();
        if unpacked.as_ref().is_none_or(|(number, _)| *number != grain) {
            let (table, entry) = (grain / self.per_table, grain % self.per_table);
            let table = u64::from(file.le32(self.directory + 4 * table)?);
            let sector = u64::from(file.le32(table * SECTOR + 4 * entry)?);
            *unpacked = Some((grain, self.unpack_grain(file, sector * SECTOR)?));
        }
        let (_, bytes) = unpacked.as_ref().expect("it was put there just now");
        let from = usize::try_from(within).expect("a grain is small");
        buffer.copy_from_slice(&bytes[from..from + buffer.len()]);
        Ok(())
    }
}

/// Refuses an image that is one part of several, or that has a parent.
fn must_stand_alone(file: &Container) -> io::Result<()> {
    let (at, length) = (file.le64(28)?, file.le64(36)?);
    if at == 0 || length == 0 {
        return Err(leans_on("the description that lists its parts"));
    }
    let (Some(at), Some(length)) = (at.checked_mul(SECTOR), length.checked_mul(SECTOR)) else {
        return Err(damaged("its description points outside of it"));
    };
    let length = usize::try_from(length.min(MOST_DESCRIPTION)).expect("it is bounded");
    let text = file.bytes(at, length)?;
    let text = String::from_utf8_lossy(&text);
    let mut extents = 0;
    for line in text.split(['\n', '\0']).map(str::trim) {
        let (key, value) = line.split_once('=').unwrap_or((line, ""));
        let (key, value) = (key.trim(), value.trim().trim_matches('"'));
        if key.eq_ignore_ascii_case("parentCID") && !value.eq_ignore_ascii_case("ffffffff") {
            return Err(leans_on("its parent"));
        }
        if key.eq_ignore_ascii_case("parentFileNameHint") {
            return Err(leans_on(value));
        }
        let access = ["RW ", "RDONLY ", "NOACCESS "];
        extents += usize::from(access.iter().any(|word| line.starts_with(word)));
    }
    match extents {
        1 => Ok(()),
        _ => Err(leans_on("the other parts of its disk")),
    }
}
