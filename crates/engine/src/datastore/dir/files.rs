//! Opens the files of an image and locks each.
//!
//! # Always true
//! - an open file description is used only under a lock of one byte of its own. The kernel holds the lock until the
//!   last operation on the description has ended
//! - when both locks are acquired, both descriptions are of the file at the path
//! - a block device is opened through its one node in the system, so that all locks meet. A writer opens it exclusively
//!   (`O_EXCL`), so that it is neither mounted nor part of another device
//! - an untrusted path is checked before it is opened, and again afterwards: only a file or a block device is read.
//!   Below a datastore's directory no link is followed ([`crate::beneath`])
//!
//! # Source
//! open(2) on O_DIRECT and O_EXCL; fcntl(2) on open file description locks.

use super::{Options, PAGE, Place};
use crate::beneath::{self, Folder};
use crate::devices;
use crate::error::{Error, Kind, Result};
use crate::sys::os::{self, DirectAlignment};
use rustix::fs::OFlags;
use std::fs::{self, File, FileType, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time between two attempts to take a lock.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// The files of an image, locked.
pub(super) struct Files {
    pub(super) buffered: File,
    pub(super) kind: FileType,
    /// Bytes.
    pub(super) size: u64,
    pub(super) direct: Option<(File, DirectAlignment)>,
}

/// Opens and locks the image at `path`. The path is checked again once it is locked: while this waits for a lock, its
/// holder may replace or remove the file.
pub(super) fn open_both(path: &Path, options: Options) -> Result<Files> {
    let deadline = Instant::now() + options.patience;
    loop {
        let files = open_once(path, options, deadline)?;
        let direct = files.direct.as_ref().map(|(file, _)| file);
        if [Some(&files.buffered), direct]
            .into_iter()
            .flatten()
            .all(|file| is_at(file, path, options.place))
        {
            return Ok(files);
        }
        if Instant::now() >= deadline {
            let text = format!("the image {} is being replaced", path.display());
            return Err(Error::new(Kind::Busy, text));
        }
        std::thread::sleep(LOCK_RETRY);
    }
}

fn open_once(path: &Path, options: Options, deadline: Instant) -> Result<Files> {
    let shown = path.display();
    let unopened = |e: std::io::Error| {
        let text = format!("cannot open the image {shown}");
        match (e.kind(), options.place) {
            // Errors of the path check come with no OS error number.
            (std::io::ErrorKind::InvalidInput, Place::Shared) if e.raw_os_error().is_none() => {
                Error::new(Kind::Invalid, format!("{text}: {e}"))
            }
            _ => Error::io(text, e),
        }
    };
    // An image in a datastore is checked when it is opened.
    let mut node = None;
    if options.place != Place::Shared {
        let found = fs::metadata(path).map_err(unopened)?;
        admit(found.file_type(), options.place, path)?;
        if found.file_type().is_block_device() {
            node = devices::node_of(found.rdev());
        }
    }
    let path = node.as_deref().unwrap_or(path);
    let buffered = open_alone(path, options, deadline)?.map_err(unopened)?;
    let kind = buffered
        .metadata()
        .map_err(|e| Error::io(format!("cannot look at the image {shown}"), e))?
        .file_type();
    admit(kind, options.place, path)?;
    lock(&buffered, 0, options, deadline, path)?;
    // Read under the lock: the previous holder may have changed it.
    let size = size_of(&buffered, kind)
        .map_err(|e| Error::io(format!("cannot ask {shown} for its size"), e))?;
    let direct = open_direct(path, options, deadline)?;
    Ok(Files {
        buffered,
        kind,
        size,
        direct,
    })
}

/// Fails unless a file of this kind may be an image.
fn admit(kind: FileType, place: Place, path: &Path) -> Result<()> {
    let (may, problem) = match place {
        Place::Anywhere => (
            kind.is_file() || kind.is_block_device(),
            "neither a file nor a block device",
        ),
        Place::Shared => (
            kind.is_file(),
            "not a file, and links are not followed there",
        ),
        Place::Device => (
            kind.is_block_device(),
            "not a block device, and a disk's descriptor may name nothing else",
        ),
    };
    if may {
        return Ok(());
    }
    let text = format!("{} is {problem}", path.display());
    Err(Error::new(Kind::Invalid, text))
}

fn size_of(file: &File, kind: FileType) -> std::io::Result<u64> {
    if kind.is_block_device() {
        return os::block_device_size(file);
    }
    Ok(file.metadata()?.len())
}

/// Whether a path names the file that is open, or the same device.
fn is_at(file: &File, path: &Path, place: Place) -> bool {
    let found = match place {
        Place::Shared => in_datastore(path)
            .and_then(|(folder, name)| folder.look(name))
            .map(|found| beneath::identity(&found)),
        Place::Anywhere | Place::Device => fs::metadata(path).map(|found| identity(&found)),
    };
    let open = file.metadata().map(|open| identity(&open));
    matches!((open, found), (Ok(open), Ok(found)) if open == found)
}

/// The identity of a file, whatever its name. A block device has many nodes, and one number.
fn identity(of: &fs::Metadata) -> (u64, u64) {
    match of.file_type().is_block_device() {
        true => (u64::MAX, of.rdev()),
        false => (of.dev(), of.ino()),
    }
}

/// The datastore's directory, named by an administrator, and the path of an image below it, which others may have
/// created.
fn in_datastore(image: &Path) -> std::io::Result<(Folder, PathBuf)> {
    let disk = image.parent().filter(|disk| *disk != Path::new(""));
    let (Some(datastore), Some(disk), Some(name)) = (
        disk.and_then(Path::parent),
        disk.and_then(Path::file_name),
        image.file_name(),
    ) else {
        return Err(std::io::ErrorKind::InvalidFilename.into());
    };
    Ok((Folder::named(datastore)?, Path::new(disk).join(name)))
}

/// The image at `path`. A block device for writing is opened exclusively, once no other program has it open
/// exclusively.
fn open_alone(path: &Path, options: Options, deadline: Instant) -> Result<std::io::Result<File>> {
    let device = match options.read_only || options.place == Place::Shared {
        true => None,
        false => devices::number_of(path),
    };
    let alone = match device {
        Some(_) => libc::O_EXCL,
        None => 0,
    };
    let taken = |node: &Path| {
        let text = format!(
            "the device {} is in use: it is mounted, a part of another device, or open elsewhere",
            node.display()
        );
        Error::new(Kind::Busy, text)
    };
    loop {
        match open_as(path, options, alone) {
            Ok(file) => {
                return match device.and_then(devices::exclusive_alias_of) {
                    Some(twin) => Err(taken(&twin)),
                    None => Ok(Ok(file)),
                };
            }
            // The kernel holds it for a killed daemon until its last operation has ended.
            Err(error) if device.is_some() && error.raw_os_error() == Some(libc::EBUSY) => {
                if Instant::now() >= deadline {
                    return Err(taken(path));
                }
                std::thread::sleep(LOCK_RETRY);
            }
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// The image at `path`, opened with these additional flags.
fn open_as(path: &Path, options: Options, flags: i32) -> std::io::Result<File> {
    if options.place == Place::Shared {
        let (folder, name) = in_datastore(path)?;
        let access = match options.read_only {
            true => OFlags::RDONLY,
            false => OFlags::RDWR,
        };
        return folder.open(
            name,
            access | OFlags::from_bits_retain(flags.cast_unsigned()),
            0,
        );
    }
    OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .custom_flags(libc::O_CLOEXEC | flags)
        .open(path)
}

/// The image once more, for direct I/O, locked; none if direct I/O is not wanted or not supported.
fn open_direct(
    path: &Path,
    options: Options,
    deadline: Instant,
) -> Result<Option<(File, DirectAlignment)>> {
    if options.buffered {
        return Ok(None);
    }
    let file = match open_as(path, options, libc::O_DIRECT) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(None),
        Err(error) => {
            return Err(Error::io(
                format!("cannot open the image {} directly", path.display()),
                error,
            ));
        }
    };
    lock(&file, 1, options, deadline, path)?;
    let alignment = os::direct_alignment(&file).unwrap_or_else(|| {
        // A file reports no unit before Linux 6.1; a device does.
        let unit = os::logical_block_size(&file).unwrap_or(PAGE);
        DirectAlignment {
            memory: unit,
            offset: unit,
        }
    });
    Ok(Some((file, alignment)))
}

/// Locks `byte` of the file, and waits while another daemon holds it.
pub(super) fn lock(
    file: &File,
    byte: u8,
    options: Options,
    deadline: Instant,
    path: &Path,
) -> Result<()> {
    loop {
        match os::lock(file, byte, !options.read_only) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    let text = format!("the image {} is in use by another daemon", path.display());
                    return Err(Error::new(Kind::Busy, text));
                }
                std::thread::sleep(LOCK_RETRY);
            }
            Err(error) => {
                return Err(Error::io(
                    format!("cannot lock the image {}", path.display()),
                    error,
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A directory with an image of this many bytes.
    fn image(bytes: u64) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("image");
        put(&path, bytes);
        (folder, path)
    }

    fn put(path: &Path, bytes: u64) {
        let file = File::create(path).expect("a file");
        file.set_len(bytes).expect("a sparse file");
    }

    /// Number of descriptors of this process for the file at the path.
    fn openings(path: &Path) -> usize {
        let all = fs::read_dir("/proc/self/fd").expect("the process's descriptors");
        let links = all.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
        links.filter(|link| link == path).count()
    }

    #[test]
    fn after_waiting_for_the_lock_the_current_file_is_opened() {
        let (folder, path) = image(8192);
        let options = Options::default();
        let held = open_both(&path, options).expect("it opens");
        let before = openings(&path);
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || open_both(&path, options).map(|files| files.size)
        });
        while openings(&path) == before {
            assert!(!waiter.is_finished(), "it must wait for the lock");
            std::thread::yield_now();
        }
        let other = folder.path().join("other");
        put(&other, 4096);
        fs::rename(&other, &path).expect("renamed");
        drop(held);
        let size = waiter.join().expect("it ends").expect("it opens");
        assert_eq!(size, 4096, "the replaced file was opened");
    }

    #[test]
    fn after_waiting_for_the_lock_a_deleted_image_is_not_found() {
        let (_folder, path) = image(8192);
        let options = Options::default();
        let held = open_both(&path, options).expect("it opens");
        let before = openings(&path);
        let waiter = std::thread::spawn({
            let path = path.clone();
            move || open_both(&path, options).err().map(|e| e.kind())
        });
        while openings(&path) == before {
            assert!(!waiter.is_finished(), "it must wait for the lock");
            std::thread::yield_now();
        }
        fs::remove_file(&path).expect("removed");
        drop(held);
        assert_eq!(waiter.join().expect("it ends"), Some(Kind::NotFound));
    }

    #[test]
    fn in_a_shared_directory_only_a_file_is_an_image_and_no_link() {
        let (folder, path) = image(4096);
        let link = folder.path().join("link");
        symlink(&path, &link).expect("a link");
        let at = |path: &Path, place| {
            let options = Options {
                place,
                ..Default::default()
            };
            open_both(path, options).err().map(|e| e.kind())
        };
        assert_eq!(at(&path, Place::Shared), None);
        assert_eq!(at(&link, Place::Anywhere), None);
        assert_eq!(at(&link, Place::Shared), Some(Kind::Invalid));
        assert_eq!(at(folder.path(), Place::Shared), Some(Kind::Invalid));
        for file in [&path, &link] {
            assert_eq!(at(file, Place::Device), Some(Kind::Invalid));
        }
        let disk = folder.path().join("disk");
        symlink(folder.path(), &disk).expect("a link");
        assert_eq!(at(&disk.join("image"), Place::Shared), Some(Kind::Invalid));
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("it runs").success());
        assert_eq!(at(&pipe, Place::Shared), Some(Kind::Invalid));
    }
}
