//! A file or block device that several disks have parts of: a flash device of a cache.
//!
//! One [`SharedFile`] keeps other daemons away. Each disk that has a part of it gets an image of its own, so that each
//! learns of its own failed syncs.
//!
//! # Always true
//! - another daemon opens it only after the last operation of each image has ended. Each image has a shared lock of one
//!   byte, and who opens the file must have that byte alone for a moment

use super::files::{Files, lock, open_both};
use super::{Options, image_of};
use crate::datastore::OpenedImage;
use crate::datastore::condition::Condition;
use crate::error::{Error, Kind, Result};
use crate::lease::OnDevice;
use rustix::fs::{Advice, fadvise};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The byte that the images lock.
const USERS: u8 = 2;

/// See the module.
pub struct SharedFile {
    path: PathBuf,
    files: Files,
}

impl SharedFile {
    /// Opens and locks it. Blocks up to `patience` for another holder's lock.
    ///
    /// # Errors
    /// If it cannot be opened, is neither a file nor a block device, or is in use.
    pub fn open(path: &Path, patience: Duration) -> Result<SharedFile> {
        let options = Options {
            patience,
            ..Options::default()
        };
        let deadline = Instant::now() + patience;
        let files = open_both(path, options)?;
        let shared = SharedFile {
            path: path.to_owned(),
            files,
        };
        let alone = shared.reopen(0)?;
        lock(&alone, USERS, options, deadline, path)?;
        Ok(shared)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.files.size
    }

    /// What the file system says of the open file, whatever is at its path now.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.files.buffered.metadata()
    }

    /// Reads bytes at an offset. Blocks.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.files.buffered.read_exact_at(bytes, offset)
    }

    /// Writes bytes durably at an offset. Blocks.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.files.buffered.write_all_at(bytes, offset)?;
        self.files.buffered.sync_data()
    }

    /// Reads bytes that another host may have written since they were read here. Blocks.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read_fresh_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let length = NonZeroU64::new(u64::try_from(bytes.len()).unwrap_or(0));
        fadvise(&self.files.buffered, offset, length, Advice::DontNeed)?;
        self.read_at(bytes, offset)
    }

    /// Writes bytes at an offset. They are durable after [`sync`](SharedFile::sync). Blocks.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write_unsynced_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.files.buffered.write_all_at(bytes, offset)
    }

    /// Makes durable what was written. Blocks.
    ///
    /// # Errors
    /// If it is not durable. It may never be, even if a later call succeeds.
    pub fn sync(&self) -> io::Result<()> {
        self.files.buffered.sync_data()
    }

    /// The place of its lease's block, at this offset.
    ///
    /// # Errors
    /// If it cannot be opened once more.
    pub fn lease_at(&self, at: u64) -> Result<OnDevice> {
        // A file system without direct I/O is in this host's memory.
        let file = self
            .reopen(libc::O_DIRECT | libc::O_DSYNC)
            .or_else(|_| self.reopen(libc::O_DSYNC))?;
        Ok(OnDevice {
            file,
            path: self.path.clone(),
            at,
        })
    }

    /// An image of the whole file for one disk.
    ///
    /// # Errors
    /// If it cannot be opened once more.
    pub fn image(&self) -> Result<OpenedImage> {
        self.image_of(&[])
    }

    /// The same, if these bytes are at its beginning. Blocks.
    ///
    /// # Errors
    /// If it cannot be opened once more or read, or has other bytes: after a hot plug another device may be there.
    pub fn image_of(&self, beginning: &[u8]) -> Result<OpenedImage> {
        let options = Options::default();
        let shared = Options {
            read_only: true,
            patience: Duration::ZERO,
            ..options
        };
        let used = |file: File| {
            lock(&file, USERS, shared, Instant::now(), &self.path)?;
            Ok(file)
        };
        let direct = match &self.files.direct {
            None => None,
            Some((_, alignment)) => Some((used(self.reopen(libc::O_DIRECT)?)?, *alignment)),
        };
        // Opened last: if this is the right device, the one before is it too, or is gone.
        let buffered = used(self.reopen(0)?)?;
        self.must_begin(&buffered, beginning)?;
        let files = Files {
            buffered,
            kind: self.files.kind,
            size: self.files.size,
            direct,
        };
        let condition = Arc::<Condition>::default();
        let (image, info) = image_of(files, &self.path, options, &condition);
        let opened = OpenedImage::new(Box::new(image), info);
        Ok(opened.with_condition(condition))
    }

    fn must_begin(&self, file: &File, beginning: &[u8]) -> Result<()> {
        let path = self.path.display();
        let mut found = vec![0; beginning.len()];
        file.read_exact_at(&mut found, 0)
            .map_err(|e| Error::io(format!("cannot read {path}"), e))?;
        if found == beginning {
            return Ok(());
        }
        let text = format!("{path} is another device now, or was overwritten");
        Err(Error::new(Kind::Invalid, text))
    }

    /// The same file, whatever is at its path now, as an open file of its own.
    fn reopen(&self, flags: i32) -> Result<File> {
        let name = format!("/proc/self/fd/{}", self.files.buffered.as_raw_fd());
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | flags)
            .open(name);
        opened.map_err(|e| Error::io(format!("cannot open {} again", self.path.display()), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_begins_with_other_bytes_than_before_gives_no_image() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("flash");
        File::create(&path)
            .and_then(|file| file.set_len(1 << 20))
            .expect("a file");
        let owner = SharedFile::open(&path, Duration::ZERO).expect("it opens");
        owner.write_at(b"label", 0).expect("a write");
        owner.image_of(b"label").expect("its own bytes");
        let stranger = File::options().write(true).open(&path).expect("it opens");
        stranger.write_all_at(b"other", 0).expect("a write");
        let refused = owner.image_of(b"label").err().map(|e| e.kind());
        assert_eq!(refused, Some(Kind::Invalid));
    }

    #[test]
    fn others_wait_for_the_last_image_and_not_only_for_its_owner() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("flash");
        File::create(&path)
            .and_then(|file| file.set_len(1 << 20))
            .expect("a file");
        let owner = SharedFile::open(&path, Duration::ZERO).expect("it opens");
        let images = [(); 2].map(|()| owner.image().expect("an image"));
        let refused = |why: &str| {
            let other = SharedFile::open(&path, Duration::ZERO);
            assert_eq!(other.err().map(|e| e.kind()), Some(Kind::Busy), "{why}");
        };
        refused("its owner has it");
        drop(owner);
        refused("two images have it");
        let [first, second] = images;
        drop(first);
        refused("an image has it");
        drop(second);
        SharedFile::open(&path, Duration::ZERO).expect("nobody has it");
    }
}
