//! QEMU's qcow2, versions 2 and 3: two levels of tables, clusters, compressed clusters (deflate, zstd), subclusters.
//!
//! # Always true
//! - Only the file itself is read: an image with an external data file is refused, and one with a backing file unless
//!   the caller has that and names it.
//! - The content of an encrypted image is never treated as data.
//!
//! # Source
//! QEMU's `docs/interop/qcow2.txt`.

use std::cell::RefCell;
use std::io::{self, Read};

use ruzstd::decoding::StreamingDecoder;

use super::container::{
    Container, Layout, Place, damaged, impossible, inflate, leans_on, unsupported,
};

/// The first bytes of a qcow file of any version.
pub(super) const MAGIC: &[u8] = b"QFI\xfb";

const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;
const COMPRESSION: u64 = 1 << 3;
const SUBCLUSTERS: u64 = 1 << 4;
/// The supported features. The lowest bit says that reference counts may be wrong, and they are not used here.
const KNOWN: u64 = 1 | CORRUPT | DATA_FILE | COMPRESSION | SUBCLUSTERS;

/// The bits of a table entry with the offset of a table or cluster.
const PLACE: u64 = 0x00ff_ffff_ffff_fe00;
const PACKED: u64 = 1 << 62;
const ZERO: u64 = 1;
/// Subclusters in a cluster.
const PARTS: u64 = 32;
/// The largest window of a zstd cluster: a cluster has at most 2 MiB, and a window need not exceed the packed data.
const MOST_WINDOW: u64 = 8 << 20;
/// The longest name of a backing file that the format allows.
const MOST_NAME: u32 = 1023;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compression {
    Deflate,
    Zstd,
}

pub(super) struct Qcow2 {
    size: u64,
    version: u32,
    cluster_bits: u32,
    first_table: u64,
    compression: Compression,
    subclusters: bool,
    /// The second-level table that was read last, with its offset.
    table: RefCell<Option<(u64, Vec<u8>)>>,
    /// The cluster that was decompressed last, with its number.
    unpacked: RefCell<Option<(u64, Vec<u8>)>>,
}

/// The feature fields of the header.
struct Features {
    incompatible: u64,
    compression: u8,
}

/// Whether the header says that the image is encrypted.
pub(super) fn is_encrypted(file: &Container) -> io::Result<bool> {
    Ok(file.be32(32)? != 0)
}

impl Qcow2 {
    pub(super) fn open(file: &Container) -> io::Result<Qcow2> {
        Qcow2::open_above(file, None)
    }

    /// The same for an image that names this one as its backing file. What it does not have is [`Place::Absent`].
    pub(super) fn open_above(file: &Container, backing: Option<&str>) -> io::Result<Qcow2> {
        if file.array::<4>(0)? != MAGIC {
            return Err(damaged("it does not begin like one"));
        }
        let version = file.be32(4)?;
        let features = features(file, version)?;
        let incompatible = features.incompatible;
        must_lean_on(file, incompatible, backing)?;
        if incompatible & CORRUPT != 0 {
            return Err(damaged("it is marked as corrupt"));
        }
        if incompatible & !KNOWN != 0 {
            return Err(unsupported(format!(
                "it has features that are not known ({:#x})",
                incompatible & !KNOWN
            )));
        }
        let compression = match features.compression {
            0 => Compression::Deflate,
            1 => Compression::Zstd,
            other => {
                return Err(unsupported(format!(
                    "its compression, number {other}, is not known"
                )));
            }
        };
        let cluster_bits = file.be32(20)?;
        let subclusters = incompatible & SUBCLUSTERS != 0;
        let least = if subclusters { 14 } else { 9 };
        if !(least..=21).contains(&cluster_bits) {
            return Err(impossible(format!(
                "its header says clusters of 2^{cluster_bits} bytes, and they have 2^{least} to 2^21"
            )));
        }
        let image = Qcow2 {
            size: file.be64(24)?,
            version,
            cluster_bits,
            first_table: file.be64(40)?,
            compression,
            subclusters,
            table: RefCell::default(),
            unpacked: RefCell::default(),
        };
        let tables = image.size.div_ceil(image.covered());
        let end = image.first_table.checked_add(8 * tables);
        if tables > u64::from(file.be32(36)?) || end.is_none() {
            return Err(impossible("its first table is shorter than its disk"));
        }
        Ok(image)
    }

    fn cluster(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Size of a second-level table entry in bytes.
    fn entry(&self) -> u64 {
        if self.subclusters { 16 } else { 8 }
    }

    /// Bytes of the disk that a second-level table covers.
    fn covered(&self) -> u64 {
        self.cluster() / self.entry() * self.cluster()
    }

    /// A cluster's entry and its subcluster bitmap; none if its whole table is missing.
    fn look_up(&self, file: &Container, offset: u64) -> io::Result<Option<(u64, u64)>> {
        let first = file.be64(self.first_table + 8 * (offset / self.covered()))?;
        let at = first & PLACE;
        if at == 0 {
            return Ok(None);
        }
        if !at.is_multiple_of(self.cluster()) {
            return Err(damaged("one of its tables does not begin at a cluster"));
        }
        let mut table = self.table.borrow_mut();
        if table.as_ref().is_none_or(|(is_at, _)| *is_at != at) {
            let length = usize::try_from(self.cluster()).expect("a cluster is small");
            *table = Some((at, file.bytes(at, length)?));
        }
        let (_, bytes) = table.as_ref().expect("it was put there just now");
        let entry = (offset % self.covered()) / self.cluster() * self.entry();
        let entry = usize::try_from(entry).expect("a table is small");
        let word = |at: usize| {
            let eight = bytes[at..].first_chunk().expect("an entry is within");
            u64::from_be_bytes(*eight)
        };
        Ok(Some(match self.subclusters {
            true => (word(entry), word(entry + 8)),
            false => (word(entry), 0),
        }))
    }

    /// Location of a subcluster.
    fn find_part(&self, at: u64, parts: u64, within: u64) -> io::Result<(u64, Place)> {
        let part = self.cluster() / PARTS;
        let (number, length) = (within / part, part - within % part);
        let has = |bit: u64| parts >> bit & 1 == 1;
        match (has(number), has(number + 32)) {
            (true, true) => Err(damaged("a part of it is both zeroes and data")),
            (true, false) if at == 0 => Err(damaged("a part of it points outside of it")),
            (true, false) => Ok((length, Place::At(at + within))),
            (false, true) => Ok((length, Place::Zero)),
            (false, false) => Ok((length, Place::Absent)),
        }
    }

    fn unpack_cluster(&self, file: &Container, entry: u64) -> io::Result<Vec<u8>> {
        let bits = 62 - (self.cluster_bits - 8);
        let at = entry & ((1 << bits) - 1);
        let sectors = (entry >> bits & ((1 << (self.cluster_bits - 8)) - 1)) + 1;
        // The last sector of the file may be incomplete.
        let left = file.length().saturating_sub(at);
        let length = (sectors * 512 - at % 512).min(left);
        let length = usize::try_from(length).expect("a few clusters at most");
        let packed = file.bytes(at, length)?;
        let whole = usize::try_from(self.cluster()).expect("a cluster is small");
        let mut cluster = vec![0; whole];
        match self.compression {
            Compression::Deflate => {
                if inflate(&packed, &mut cluster, false)? != whole {
                    return Err(damaged("a compressed cluster of it is too short"));
                }
            }
            Compression::Zstd => {
                let broken = |why: &dyn std::fmt::Display| {
                    damaged(format!("a compressed cluster of it is damaged ({why})"))
                };
                StreamingDecoder::new_with_max_window_size(&packed[..], MOST_WINDOW)
                    .map_err(|error| broken(&error))?
                    .read_exact(&mut cluster)
                    .map_err(|error| broken(&error))?;
            }
        }
        Ok(cluster)
    }
}

impl Layout for Qcow2 {
    fn size(&self) -> u64 {
        self.size
    }

    fn find(&self, file: &Container, offset: u64) -> io::Result<(u64, Place)> {
        let within = offset % self.cluster();
        let at_most = |length: u64| length.min(self.size - offset);
        let Some((entry, parts)) = self.look_up(file, offset)? else {
            let length = self.covered() - offset % self.covered();
            return Ok((at_most(length), Place::Absent));
        };
        let length = at_most(self.cluster() - within);
        if entry & PACKED != 0 {
            return Ok((length, Place::Packed));
        }
        let at = entry & PLACE;
        if !at.is_multiple_of(self.cluster()) {
            return Err(damaged("one of its clusters has an invalid position"));
        }
        if self.subclusters {
            let (part, place) = self.find_part(at, parts, within)?;
            return Ok((part.min(length), place));
        }
        match (entry & ZERO != 0, at) {
            (true, _) if self.version < 3 => Err(damaged(
                "it has entries for zeroes, which its version does not define",
            )),
            (true, _) => Ok((length, Place::Zero)),
            (false, 0) => Ok((length, Place::Absent)),
            (false, at) => Ok((length, Place::At(at + within))),
        }
    }

    fn unpack(&self, file: &Container, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let number = offset / self.cluster();
        let mut unpacked = self.unpacked.borrow_mut();
        if unpacked.as_ref().is_none_or(|(of, _)| *of != number) {
            let (entry, _) = self
                .look_up(file, offset)?
                .ok_or_else(|| damaged("it changed while it was read"))?;
            *unpacked = Some((number, self.unpack_cluster(file, entry)?));
        }
        let (_, bytes) = unpacked.as_ref().expect("it was put there just now");
        let from = usize::try_from(offset % self.cluster()).expect("a cluster is small");
        buffer.copy_from_slice(&bytes[from..from + buffer.len()]);
        Ok(())
    }
}

fn features(file: &Container, version: u32) -> io::Result<Features> {
    match version {
        2 => Ok(Features {
            incompatible: 0,
            compression: 0,
        }),
        3 => {
            let incompatible = file.be64(72)?;
            let long_enough = file.be32(100)? > 104;
            let compression = match incompatible & COMPRESSION != 0 && long_enough {
                true => file.array::<1>(104)?[0],
                false => 0,
            };
            Ok(Features {
                incompatible,
                compression,
            })
        }
        other => Err(impossible(format!(
            "its header has version {other}; only 2 and 3 exist"
        ))),
    }
}

/// Fails if the image's data is in another file than the expected one.
fn must_lean_on(file: &Container, incompatible: u64, backing: Option<&str>) -> io::Result<()> {
    let (at, length) = (file.be64(8)?, file.be32(16)?);
    if at == 0
        && let Some(backing) = backing
    {
        return Err(damaged(format!(
            "it does not name {backing} as its backing file"
        )));
    }
    if at != 0 {
        let length = length.min(MOST_NAME) as usize;
        let name = file.bytes(at, length)?;
        // Some programs pad the name.
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if backing.is_some_and(|backing| backing.as_bytes() == name) {
            return match incompatible & DATA_FILE {
                0 => Ok(()),
                _ => Err(leans_on("the file that contains its data")),
            };
        }
        return Err(leans_on(&String::from_utf8_lossy(name)));
    }
    match incompatible & DATA_FILE {
        0 => Ok(()),
        _ => Err(leans_on("the file that contains its data")),
    }
}
