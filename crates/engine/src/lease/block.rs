//! One disk's block in `.tidegate/leases`: read past every cache, written durably; or, as a notice, as cheaply as can be.
//!
//! The file is opened anew each time: one that was moved away with its directory is not the one that others see.

use crate::sys::aligned::Aligned;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tidegate_core::governor::slot::SLOT;

/// How a block is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Past the page cache, and durably: another host relies on it.
    Shared,
    /// As the kernel likes: only this machine reads it, and nobody relies on it.
    Notice,
}

/// See the module.
pub(super) struct Block {
    folder: PathBuf,
    path: PathBuf,
    page: Aligned,
}

impl Block {
    /// That of a disk, in the directory of a datastore. Touches nothing yet.
    ///
    /// # Errors
    /// When there is no memory.
    pub(super) fn new(directory: &Path, disk: [u8; 16]) -> io::Result<Block> {
        let folder = directory.join(".tidegate/leases");
        let name: String = disk.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Block {
            path: folder.join(name),
            folder,
            page: Aligned::new(SLOT)?,
        })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the directory that it is in.
    ///
    /// # Errors
    /// When it is not there and cannot be made.
    pub(super) fn prepare(&self) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.folder)
    }

    /// What it holds; zeroes where nobody ever was.
    ///
    /// # Errors
    /// When it cannot be read, or the directory is not there: then nothing is known.
    pub(super) fn read(&mut self, manner: Manner) -> io::Result<&[u8]> {
        let page = self.page.bytes();
        page.fill(0);
        let file = match open(&self.path, manner, Access::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::metadata(&self.folder)?;
                return Ok(page);
            }
            Err(error) => return Err(error),
        };
        // A file that ends early was being made when something failed: what is missing is zeroes.
        let mut got = 0;
        while got < SLOT {
            match file.read_at(&mut page[got..], got as u64) {
                Ok(more) if more > 0 && got + more == SLOT => break,
                // Direct I/O does not go on from within a block: what it stops at is the file's end.
                Ok(more) if more == 0 || manner == Manner::Shared => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(page)
    }

    /// Writes it.
    ///
    /// # Errors
    /// When it cannot be written; it may be written all the same, or be yet.
    pub(super) fn write(&mut self, manner: Manner, bytes: &[u8; SLOT]) -> io::Result<()> {
        let page = self.page.bytes();
        page.copy_from_slice(bytes);
        match open(&self.path, manner, Access::Write) {
            Ok(file) => file.write_all_at(page, 0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let file = open(&self.path, manner, Access::Create)?;
                file.write_all_at(page, 0)?;
                match manner {
                    Manner::Shared => File::open(&self.folder)?.sync_all(),
                    Manner::Notice => Ok(()),
                }
            }
            Err(error) => Err(error),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Create,
}

fn open(path: &Path, manner: Manner, access: Access) -> io::Result<File> {
    let open = |flags: i32| {
        OpenOptions::new()
            .read(true)
            .write(access != Access::Read)
            .create(access == Access::Create)
            .custom_flags(flags | libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .mode(0o644)
            .open(path)
    };
    let file = match manner {
        Manner::Notice => open(0),
        Manner::Shared => match open(libc::O_DIRECT | libc::O_DSYNC) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(libc::O_DSYNC),
            other => other,
        },
    }?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("the lease is not a file: remove it"));
    }
    Ok(file)
}
