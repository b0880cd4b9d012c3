//! The block of a lease, in `.tidegate/leases` or at a fixed place of a device: uncached reads, durable writes.
//!
//! A file in a datastore is opened for each access: if its directory was moved away, other hosts see a different file.
//! A device stays open.

use crate::beneath::Folder;
use crate::sys::aligned::Aligned;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tidegate_core::governor::slot::SLOT;

/// How a block is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessMode {
    /// Uncached and durable: other hosts rely on it.
    Shared,
    /// As the kernel likes: only this machine reads it, and nothing relies on it.
    Notice,
}

/// Below the datastore's directory.
const FOLDER: &str = ".tidegate/leases";

/// See the module.
pub(super) struct Block {
    place: Place,
    /// For messages.
    path: PathBuf,
    page: Aligned,
}

/// A block at a fixed place of a file or device, which is open for direct and durable I/O where it can be.
#[derive(Debug)]
pub struct OnDevice {
    pub(crate) file: File,
    /// For messages.
    pub(crate) path: PathBuf,
    /// Bytes.
    pub(crate) at: u64,
}

/// Where a block is.
enum Place {
    /// In a file of its own: a datastore's directory, and the file's name below it.
    File(PathBuf, String),
    /// At this offset of a device.
    Device(File, u64),
}

impl Block {
    /// The block of a disk, in the directory of a datastore. Accesses nothing yet.
    ///
    /// # Errors
    /// If there is no memory.
    pub(super) fn new(directory: &Path, disk: [u8; 16]) -> io::Result<Block> {
        let name: String = disk.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Block {
            path: directory.join(FOLDER).join(&name),
            place: Place::File(directory.into(), name),
            page: Aligned::new(SLOT)?,
        })
    }

    /// The block at an offset of a device. Accesses nothing yet.
    ///
    /// # Errors
    /// If there is no memory.
    pub(super) fn on(device: OnDevice) -> io::Result<Block> {
        Ok(Block {
            path: device.path,
            place: Place::Device(device.file, device.at),
            page: Aligned::new(SLOT)?,
        })
    }

    /// What is wrong with an invalid block, as a remedy: half of a sentence.
    pub(super) fn check(&self) -> String {
        let path = self.path.display();
        match self.place {
            Place::File(..) => {
                format!("check {path}, and remove it once no host has the disk open")
            }
            Place::Device(_, at) => format!("check what wrote to {path} at byte {at}"),
        }
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates its directory.
    ///
    /// # Errors
    /// If it does not exist and cannot be created.
    pub(super) fn prepare(&self) -> io::Result<()> {
        let Place::File(directory, _) = &self.place else {
            return Ok(());
        };
        let (parent, leases) = FOLDER.split_once('/').expect("one directory in another");
        let parent = Folder::named(directory)?.make_folder(parent, 0o755)?;
        parent.make_folder(leases, 0o755).map(drop)
    }

    /// The file that has the block, and where in it. If that file does not exist: the directory, which does.
    fn open(&self, mode: AccessMode, access: Access) -> io::Result<Result<(File, u64), Folder>> {
        match &self.place {
            Place::File(directory, name) => {
                let folder = Folder::named(directory)?.folder(FOLDER)?;
                match open(&folder, name, mode, access) {
                    Ok(file) => Ok(Ok((file, 0))),
                    // The same directory says so: one that is moved here meanwhile may have the file.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Err(folder)),
                    Err(error) => Err(error),
                }
            }
            Place::Device(file, at) => Ok(Ok((file.try_clone()?, *at))),
        }
    }

    /// Its content; zeroes if it was never written.
    ///
    /// # Errors
    /// If it cannot be read, or the directory does not exist: then nothing is known.
    pub(super) fn read(&mut self, mode: AccessMode) -> io::Result<&[u8]> {
        // No directory: nothing is known. No file: it was never written.
        let opened = self.open(mode, Access::Read)?;
        let page = self.page.bytes();
        page.fill(0);
        let Ok((file, at)) = opened else {
            return Ok(page);
        };
        // A short file is left over from a failed creation: the rest counts as zeroes.
        let mut got = 0;
        while got < SLOT {
            match file.read_at(&mut page[got..], at + got as u64) {
                Ok(more) if more > 0 && got + more == SLOT => break,
                // Direct I/O cannot continue within a block: a short read ends at the end of the file.
                Ok(more) if more == 0 || mode == AccessMode::Shared => break,
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
    /// If it cannot be written; it may have been written nevertheless, or may be later.
    pub(super) fn write(&mut self, mode: AccessMode, bytes: &[u8; SLOT]) -> io::Result<()> {
        self.page.bytes().copy_from_slice(bytes);
        let folder = match self.open(mode, Access::Write)? {
            Ok((file, at)) => return file.write_all_at(self.page.bytes(), at),
            Err(folder) => folder,
        };
        let Place::File(_, name) = &self.place else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let file = open(&folder, name, mode, Access::Create)?;
        file.write_all_at(self.page.bytes(), 0)?;
        match mode {
            AccessMode::Shared => folder.sync(),
            AccessMode::Notice => Ok(()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
    Create,
}

fn open(folder: &Folder, name: &str, mode: AccessMode, access: Access) -> io::Result<File> {
    let flags = match access {
        Access::Read => OFlags::RDONLY,
        Access::Write => OFlags::RDWR,
        Access::Create => OFlags::RDWR | OFlags::CREATE,
    };
    let open = |more: OFlags| folder.open(name, flags | more, 0o644);
    let opened = match mode {
        AccessMode::Notice => open(OFlags::empty()),
        AccessMode::Shared => match open(OFlags::DIRECT | OFlags::DSYNC) {
            // Not if something other than a file has the name: that error has no number.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(OFlags::DSYNC),
            other => other,
        },
    };
    opened.map_err(|error| match error.raw_os_error() {
        None => io::Error::new(error.kind(), format!("{error}: remove it")),
        Some(_) => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_block_of_a_device_is_at_its_offset_and_changes_nothing_else() {
        let dir = tempdir();
        let path = dir.path().join("member");
        fs::write(&path, vec![7; 4 * SLOT]).expect("a file");
        let device = OnDevice {
            file: File::options()
                .read(true)
                .write(true)
                .open(&path)
                .expect("it opens"),
            path: path.clone(),
            at: 2 * SLOT as u64,
        };
        let mut block = Block::on(device).expect("memory");
        block.prepare().expect("nothing to do");
        for mode in [AccessMode::Shared, AccessMode::Notice] {
            block.write(mode, &[9; SLOT]).expect("a write");
            assert_eq!(block.read(mode).expect("a read"), [9; SLOT]);
        }
        let bytes = fs::read(&path).expect("there");
        assert_eq!(bytes.len(), 4 * SLOT);
        let others = bytes[..2 * SLOT].iter().chain(&bytes[3 * SLOT..]);
        assert!(others.into_iter().all(|byte| *byte == 7));
    }

    #[test]
    fn no_link_in_the_path_of_a_lease_is_followed_and_a_fifo_does_not_block() {
        for name in [".tidegate", ".tidegate/leases"] {
            let (dir, outside) = (tempdir(), tempdir());
            let link = dir.path().join(name);
            fs::create_dir_all(link.parent().expect("a parent")).expect("made");
            symlink(outside.path(), &link).expect("a link");
            let mut block = Block::new(dir.path(), [7; 16]).expect("memory");
            assert!(block.prepare().is_err());
            assert!(block.write(AccessMode::Notice, &[1; SLOT]).is_err());
            assert!(block.read(AccessMode::Notice).is_err());
            assert_eq!(fs::read_dir(outside.path()).expect("there").count(), 0);
        }
        let dir = tempdir();
        let mut block = Block::new(dir.path(), [7; 16]).expect("memory");
        block.prepare().expect("made");
        symlink(dir.path().join("new"), block.path()).expect("a link");
        assert!(block.write(AccessMode::Shared, &[1; SLOT]).is_err());
        assert!(!dir.path().join("new").exists());
        fs::remove_file(block.path()).expect("removed");
        let made = std::process::Command::new("mkfifo")
            .arg(block.path())
            .status();
        assert!(made.expect("it runs").success());
        let said = block
            .read(AccessMode::Shared)
            .expect_err("no file")
            .to_string();
        assert!(said.contains("remove it"), "{said}");
    }

    fn tempdir() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory")
    }
}
