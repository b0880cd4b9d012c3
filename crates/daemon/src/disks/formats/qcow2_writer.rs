//! Writes a qcow2 image from its first byte to its last, once: a full image, or one with a backing file.
//!
//! Backups are written with it. An image with a backing file has only what changed; a cluster of zeroes hides what the
//! backing file has there.
//!
//! # Always true
//! - The header is written last. A file without it is no image.
//! - Each cluster of the file is used once, so each reference count is 1.
//! - One second-level table is in memory at a time, and the first-level table: 16 KiB for each TiB of the disk.
//!
//! # Picture
//! ```text
//! header | data ... table | data ... table | first table | reference counts | their table
//! ```
//!
//! # Source
//! QEMU's `docs/interop/qcow2.txt`, version 3.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of a cluster: QEMU's default, and a sub-block of a pool.
pub(crate) const CLUSTER: u64 = 64 << 10;
const CLUSTER_BITS: u32 = 16;
/// Entries of a second-level table.
const ENTRIES: u64 = CLUSTER / 8;
/// Bytes of the disk that a second-level table covers.
const COVERED: u64 = ENTRIES * CLUSTER;
/// Reference counts of 16 bits in a cluster.
const COUNTS: u64 = CLUSTER / 2;
/// Set in an entry whose cluster has a reference count of 1.
const COPIED: u64 = 1 << 63;
/// The entry of a cluster that reads as zeroes, whatever the backing file has.
const ZERO: u64 = 1;
const HEADER: usize = 104;
/// The type of the header extension with the format of the backing file.
const BACKING_FORMAT: u32 = 0xe279_2aca;
/// The longest name of a backing file.
const NAME_MAX: usize = 1023;

/// See the module.
pub(crate) struct Qcow2Writer {
    file: File,
    size: u64,
    backing: Option<String>,
    /// The next cluster of the file.
    next: u64,
    first_table: Vec<u64>,
    /// The number of the second-level table that is being written, and its bytes.
    table: Option<(u64, Vec<u8>)>,
    /// Where the next bytes of the disk may be.
    at: u64,
}

impl Qcow2Writer {
    /// For a disk of this size, into an empty file. The backing file is named as it is seen from the file's directory.
    ///
    /// # Errors
    /// If the name is too long for the format.
    pub(crate) fn new(file: File, size: u64, backing: Option<String>) -> io::Result<Qcow2Writer> {
        if backing
            .as_ref()
            .is_some_and(|name| name.is_empty() || name.len() > NAME_MAX)
        {
            let text = "the name of a backing file has 1 to 1023 bytes";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let tables = usize::try_from(size.div_ceil(COVERED)).map_err(|_| too_large())?;
        Ok(Qcow2Writer {
            file,
            size,
            backing,
            next: 1,
            first_table: vec![0; tables],
            table: None,
            at: 0,
        })
    }

    /// Writes bytes of the disk, which begin at a cluster and end at one or at the disk's end. Ranges must ascend.
    ///
    /// # Errors
    /// As writing the file.
    ///
    /// # Panics
    /// If the range is not as described.
    pub(crate) fn put(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        let is_whole = end.is_multiple_of(CLUSTER) || end == self.size;
        assert!(
            offset >= self.at && offset.is_multiple_of(CLUSTER) && is_whole && end <= self.size,
            "an image is written in order and by clusters: {offset}..{end}"
        );
        let cluster = usize::try_from(CLUSTER).expect("a cluster is small");
        for (nth, piece) in (offset / CLUSTER..).zip(bytes.chunks(cluster)) {
            match piece.iter().all(|byte| *byte == 0) {
                true => self.set_zero(nth)?,
                false => {
                    let at = self.next * CLUSTER;
                    self.file.write_all_at(piece, at)?;
                    self.next += 1;
                    self.set(nth, at | COPIED)?;
                }
            }
        }
        self.at = end.next_multiple_of(CLUSTER);
        Ok(())
    }

    /// As [`Qcow2Writer::put`] of so many zeroes.
    ///
    /// # Errors
    /// As writing the file.
    pub(crate) fn zero(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let end = offset + length;
        if self.backing.is_some() {
            for nth in offset / CLUSTER..end.div_ceil(CLUSTER) {
                self.set_zero(nth)?;
            }
        }
        self.at = self.at.max(end.next_multiple_of(CLUSTER));
        Ok(())
    }

    fn set_zero(&mut self, cluster: u64) -> io::Result<()> {
        match self.backing {
            // What is nowhere reads as zeroes.
            None => Ok(()),
            Some(_) => self.set(cluster, ZERO),
        }
    }

    /// Sets the entry of a cluster of the disk.
    fn set(&mut self, cluster: u64, entry: u64) -> io::Result<()> {
        let number = cluster / ENTRIES;
        if self.table.as_ref().is_none_or(|(is, _)| *is != number) {
            self.end_table()?;
            let length = usize::try_from(CLUSTER).expect("a cluster is small");
            self.table = Some((number, vec![0; length]));
        }
        let (_, bytes) = self.table.as_mut().expect("it was put there just now");
        let at = usize::try_from(cluster % ENTRIES * 8).expect("a table is small");
        bytes[at..at + 8].copy_from_slice(&entry.to_be_bytes());
        Ok(())
    }

    fn end_table(&mut self) -> io::Result<()> {
        let Some((number, bytes)) = self.table.take() else {
            return Ok(());
        };
        let at = self.append(&bytes)?;
        let number = usize::try_from(number).map_err(|_| too_large())?;
        self.first_table[number] = at | COPIED;
        Ok(())
    }

    /// Appends bytes, in whole clusters. Returns where they are.
    fn append(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let at = self.next * CLUSTER;
        self.file.write_all_at(bytes, at)?;
        self.next += (bytes.len() as u64).div_ceil(CLUSTER);
        Ok(at)
    }

    /// Writes what is left, and the header at the end. The file is durable then. Returns it, with its length.
    ///
    /// # Errors
    /// As writing the file.
    pub(crate) fn finish(mut self) -> io::Result<(File, u64)> {
        self.end_table()?;
        let words: Vec<u8> = self
            .first_table
            .iter()
            .flat_map(|at| at.to_be_bytes())
            .collect();
        let first_table = match words.is_empty() {
            // A disk of no bytes has no table, but the format wants a place.
            true => self.append(&[0; 8])?,
            false => self.append(&words)?,
        };
        // The counts count themselves, and their table.
        let (mut blocks, mut tables) = (0, 0);
        loop {
            let all = self.next + blocks + tables;
            let needed = all.div_ceil(COUNTS);
            let table = (needed * 8).div_ceil(CLUSTER);
            if (blocks, tables) == (needed, table) {
                break;
            }
            (blocks, tables) = (needed, table);
        }
        let all = self.next + blocks + tables;
        let mut places = Vec::new();
        for block in 0..blocks {
            let used = (all - block * COUNTS).min(COUNTS);
            let counts: Vec<u8> = (0..used).flat_map(|_| 1_u16.to_be_bytes()).collect();
            let at = self.append(&counts)?;
            places.extend(at.to_be_bytes());
        }
        let counts = self.append(&places)?;
        self.next += tables - (places.len() as u64).div_ceil(CLUSTER);
        assert_eq!(self.next, all, "the reference counts count the file");
        let length = all * CLUSTER;
        self.file.set_len(length)?;
        self.file.sync_data()?;
        let header = self.header(first_table, (counts, tables));
        self.file.write_all_at(&header, 0)?;
        self.file.sync_all()?;
        Ok((self.file, length))
    }

    fn header(&self, first_table: u64, (counts, tables): (u64, u64)) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER + 64);
        let word = |number: u64| u32::try_from(number).expect("tables are few").to_be_bytes();
        let mut extensions = Vec::new();
        if self.backing.is_some() {
            extensions.extend(BACKING_FORMAT.to_be_bytes());
            extensions.extend(5_u32.to_be_bytes());
            extensions.extend(b"qcow2\0\0\0");
        }
        extensions.extend([0; 8]);
        let name = self.backing.as_deref().unwrap_or_default();
        let name_at = match name.is_empty() {
            true => 0,
            false => (HEADER + extensions.len()) as u64,
        };
        bytes.extend(super::qcow2::MAGIC);
        bytes.extend(3_u32.to_be_bytes());
        bytes.extend(name_at.to_be_bytes());
        bytes.extend(word(name.len() as u64));
        bytes.extend(CLUSTER_BITS.to_be_bytes());
        bytes.extend(self.size.to_be_bytes());
        // Not encrypted.
        bytes.extend(0_u32.to_be_bytes());
        bytes.extend(word(self.first_table.len() as u64));
        bytes.extend(first_table.to_be_bytes());
        bytes.extend(counts.to_be_bytes());
        bytes.extend(word(tables));
        // No snapshots, and no features.
        bytes.extend([0; 4 + 8 + 3 * 8]);
        // Reference counts of 2^4 bits.
        bytes.extend(4_u32.to_be_bytes());
        bytes.extend(word(HEADER as u64));
        assert_eq!(bytes.len(), HEADER, "the header of version 3");
        bytes.extend(extensions);
        bytes.extend(name.as_bytes());
        bytes
    }
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the disk is too large")
}
