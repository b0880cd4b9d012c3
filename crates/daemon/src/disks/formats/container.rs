//! The file of an image format, and the mapping of the format's blocks to linear disk content.
//!
//! Each format reports where the bytes at a guest's offset are ([`Layout`]); [`Mapped`] turns that into a source for
//! the copy loop.
//!
//! # Always true
//! - Every number that is read from the file is checked before it is used: image files are hostile input.
//! - Bytes that are missing from the file are an error, and never read as zeroes.
//! - At most one table and one cluster of an image are in memory at a time.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::disks::copy::{Extent, Source};

/// The most lookups for one query: a bound, so that a cancelled job ends soon.
const MOST_PLACES: usize = 1024;

/// A file of a format.
#[derive(Debug)]
pub(crate) struct Container {
    file: File,
    length: u64,
}

/// Location of bytes of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// They are zeroes.
    Zero,
    /// Not stored here: they are zeroes, or what the image beneath this one has.
    Absent,
    /// In the file, uncompressed, from this offset on.
    At(u64),
    /// In the file, compressed.
    Packed,
}

/// The parts that each format implements.
pub(super) trait Layout {
    /// Size of the disk in bytes.
    fn size(&self) -> u64;
    /// The location of the bytes at `offset`, and how many are there in a row: at least one, and none beyond the disk's
    /// end.
    fn find(&self, file: &Container, offset: u64) -> io::Result<(u64, Place)>;
    /// Fills the buffer from `offset` on. The range lies within one compressed piece.
    fn unpack(&self, _file: &Container, _offset: u64, _buffer: &mut [u8]) -> io::Result<()> {
        Err(damaged("it has no compressed parts"))
    }
}

/// An image of a format.
pub(super) struct Mapped<L> {
    file: Container,
    layout: L,
}

impl Container {
    pub(super) fn new(file: File, length: u64) -> Container {
        Container { file, length }
    }

    /// Length of the file in bytes.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn into_file(self) -> File {
        self.file
    }

    /// Fills the buffer from this offset on.
    pub(super) fn read(&self, buffer: &mut [u8], at: u64) -> io::Result<()> {
        let fits = at
            .checked_add(buffer.len() as u64)
            .is_some_and(|end| end <= self.length);
        if !fits {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!(
                    "it ends before byte {at}, although its header announces more: it may be truncated"
                ),
            ));
        }
        self.file.read_exact_at(buffer, at)
    }

    pub(super) fn array<const N: usize>(&self, at: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read(&mut bytes, at)?;
        Ok(bytes)
    }

    /// Reads `length` bytes, for small lengths.
    pub(super) fn bytes(&self, at: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.read(&mut bytes, at)?;
        Ok(bytes)
    }

    pub(super) fn le32(&self, at: u64) -> io::Result<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    pub(super) fn le64(&self, at: u64) -> io::Result<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    pub(super) fn be32(&self, at: u64) -> io::Result<u32> {
        self.array(at).map(u32::from_be_bytes)
    }

    pub(super) fn be64(&self, at: u64) -> io::Result<u64> {
        self.array(at).map(u64::from_be_bytes)
    }
}

impl<L: Layout> Mapped<L> {
    pub(super) fn new(file: Container, layout: L) -> Mapped<L> {
        Mapped { file, layout }
    }

    /// As [`Layout::find`], limited to `most` and checked.
    pub(super) fn find(&self, offset: u64, most: u64) -> io::Result<(u64, Place)> {
        let (length, place) = self.layout.find(&self.file, offset)?;
        if length == 0 {
            return Err(damaged("its tables point outside of it"));
        }
        Ok((length.min(most), place))
    }
}

impl<L: Layout> Source for Mapped<L> {
    fn size(&self) -> u64 {
        self.layout.size()
    }

    fn extent(&self, offset: u64, most: u64) -> io::Result<(u64, Extent)> {
        let kind = |place| match place {
            Place::Zero | Place::Absent => Extent::Zero,
            Place::At(_) | Place::Packed => Extent::Data,
        };
        let (mut length, first) = self.find(offset, most)?;
        for _ in 1..MOST_PLACES {
            if length >= most {
                break;
            }
            let (more, place) = self.find(offset + length, most - length)?;
            if kind(place) != kind(first) {
                break;
            }
            length += more;
        }
        Ok((length, kind(first)))
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let (mut rest, mut at) = (buffer, offset);
        while !rest.is_empty() {
            let (length, place) = self.find(at, rest.len() as u64)?;
            let length = usize::try_from(length).unwrap_or(rest.len());
            let (piece, after) = rest.split_at_mut(length);
            match place {
                Place::Zero | Place::Absent => piece.fill(0),
                Place::At(from) => self.file.read(piece, from)?,
                Place::Packed => self.layout.unpack(&self.file, at, piece)?,
            }
            at += length as u64;
            rest = after;
        }
        Ok(())
    }
}

/// The image contradicts itself.
pub(super) fn damaged(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

/// The image's header is invalid: no program can read or repair it.
pub(super) fn impossible(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why.into())
}

/// The image seems valid, but its kind is not supported.
pub(super) fn unsupported(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why.into())
}

/// Some or all of the image's data is in another file, which is not opened.
pub(super) fn leans_on(other: &str) -> io::Error {
    let other: String = other
        .chars()
        .take(200)
        .flat_map(char::escape_debug)
        .collect();
    unsupported(format!(
        "it needs another file ({other}), and files that an image names are never opened"
    ))
}

/// Decompresses all of `packed` into all of `out`.
pub(super) fn inflate(packed: &[u8], out: &mut [u8], zlib_header: bool) -> io::Result<usize> {
    let pieces = std::iter::once(packed);
    miniz_oxide::inflate::decompress_slice_iter_to_slice(out, pieces, zlib_header, false)
        .map_err(|status| damaged(format!("a compressed part of it is damaged ({status:?})")))
}
