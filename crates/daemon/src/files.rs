//! Small files that survive a crash undamaged: reads are bounded, and a write replaces the whole file atomically.
//!
//! # Always true
//! - After a crash at any moment the file has either its old content or the new content, never a part or a mixture. The
//!   new bytes are durable under another name before they replace the file.
//! - When [`replace`] returns, the new content is durable.
//! - A program that reads a file to replace it first takes its [`Turn`], and only one daemon has that at a time. This
//!   needs file locks, which NFS and all local file systems have.
//! - Others may write to the directory. A link with a file's name or its temporary name is not followed, in a datastore
//!   no link at all. Only plain files are read.
//!
//! # Picture
//! ```text
//! write .NAME.new ─ fsync it ─ rename it over NAME ─ fsync the directory
//! ```

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, Stat, flock};
use rustix::io::Errno;
use tidegate_engine::beneath::{self, Folder};

/// How long another program may change a file: much longer than a change takes, and short enough for a person who
/// waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the lock is tried again.
const LOOK: Duration = Duration::from_millis(5);

/// Where a file is: a trusted directory, and a path below it that others may have created.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    trusted: PathBuf,
    below: PathBuf,
}

impl Location {
    /// In a disk's directory, or a draft of one. Content of the datastore is not trusted, and neither is that
    /// directory.
    pub(crate) fn in_disk(path: &Path) -> Location {
        Location::split(path, 2)
    }

    /// The last `names` components of the path are not trusted.
    fn split(path: &Path, names: usize) -> Location {
        let trusted = path.ancestors().nth(names);
        let trusted = trusted.unwrap_or_else(|| Path::new("/"));
        let below = path.strip_prefix(trusted).unwrap_or(path);
        Location {
            trusted: trusted.to_owned(),
            below: below.to_owned(),
        }
    }

    /// The status of what is there, of any type. No link is followed.
    pub(crate) fn look(&self) -> io::Result<Stat> {
        Folder::named(&self.trusted)?.look(&self.below)
    }

    /// Whether a plain file is there. No link is followed.
    pub(crate) fn is_plain(&self) -> bool {
        self.look().is_ok_and(|stat| beneath::is_plain(&stat))
    }

    /// Creates a new file there.
    pub(crate) fn create_new(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Folder::named(&self.trusted)?.open(&self.below, flags, mode)
    }

    /// Opens the file there for writing, and creates it if there is none.
    pub(crate) fn open_or_create(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE;
        Folder::named(&self.trusted)?.open(&self.below, flags, mode)
    }

    /// The directory that the file is in, and the file's name there.
    pub(crate) fn folder(&self) -> io::Result<(Folder, OsString)> {
        let folder = Folder::named(&self.trusted)?;
        let Some(name) = self.below.file_name() else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        let folder = match self.below.parent() {
            Some(within) if within != Path::new("") => folder.folder(within)?,
            _ => folder,
        };
        Ok((folder, name.to_owned()))
    }
}

/// In a directory of our own: the whole path except its last component is trusted.
impl From<&Path> for Location {
    fn from(path: &Path) -> Location {
        Location::split(path, 1)
    }
}

impl From<&PathBuf> for Location {
    fn from(path: &PathBuf) -> Location {
        path.as_path().into()
    }
}

/// The version of a file that was read. A file is replaced as a whole, so each version has its own inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: (u64, u64),
    modified: (i64, i64),
    size: u64,
}

impl Stamp {
    /// The version that a file has now. The file is opened, because on a network file system that asks the server. A
    /// stat of the name may use cached attributes.
    pub(crate) fn of(path: &Path) -> Option<Stamp> {
        let opened = open(Location::in_disk(path), File::options().read(true));
        let told = opened.and_then(|file| file.metadata()).ok()?;
        Some(Stamp::from(&told))
    }
}

impl From<&Metadata> for Stamp {
    fn from(told: &Metadata) -> Stamp {
        Stamp {
            inode: (told.dev(), told.ino()),
            modified: (told.mtime(), told.mtime_nsec()),
            size: told.len(),
        }
    }
}

/// The right to read a file and replace it, until dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _locked: Option<File>,
}

impl Turn {
    /// That of something that only this daemon changes.
    pub(crate) fn none() -> Turn {
        Turn { _locked: None }
    }
}

/// Waits for the right to change the file at that place.
///
/// The lock is on the file that will be replaced. If another file is at the path by the time the lock is granted, that
/// file's lock is awaited instead.
pub(crate) fn turn(at: impl Into<Location>) -> io::Result<Turn> {
    let at = at.into();
    let begun = Instant::now();
    let file = loop {
        // Opened for writing, though nothing is written: otherwise a file server grants no lock.
        let file = open(at.clone(), File::options().read(true).write(true))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(LOOK);
                continue;
            }
            Err(Errno::WOULDBLOCK) => {
                let text = "another request, on this host or another, keeps changing it";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            // This file system has no locks.
            Err(_) => break file,
        }
        if is_at(&file, &at)? {
            break file;
        }
    };
    Ok(Turn {
        _locked: Some(file),
    })
}

/// Whether the open file is the one at that place.
pub(crate) fn is_at(file: &File, at: &Location) -> io::Result<bool> {
    let (open, there) = (file.metadata()?, at.look()?);
    Ok((open.dev(), open.ino()) == beneath::identity(&there))
}

/// Opens the plain file at that place. No link is followed. Anything else there is refused without waiting.
pub(crate) fn open(at: impl Into<Location>, options: &mut OpenOptions) -> io::Result<File> {
    let at = at.into();
    let pinned = Folder::named(&at.trusted)?.pin(&at.below)?;
    // Another file may have the name by now: open the one that was checked.
    options.open(format!("/proc/self/fd/{}", pinned.as_raw_fd()))
}

/// Replaces the content of the file at that place, or creates it.
pub(crate) fn replace(at: impl Into<Location>, bytes: &[u8]) -> io::Result<()> {
    let (folder, name) = at.into().folder()?;
    let fresh = beside(&name);
    let replaced =
        write_durably(&folder, &fresh, bytes).and_then(|()| folder.rename(&fresh, &name));
    if let Err(error) = replaced {
        // What was written of it would take space on a full file system.
        let _ = folder.remove_file(&fresh);
        return Err(error);
    }
    folder.sync()
}

/// Reads the content of a file: at most `most` bytes, and one more to show that the file is longer.
pub(crate) fn read(at: impl Into<Location>, most: usize) -> io::Result<Vec<u8>> {
    let file = open(at, File::options().read(true))?;
    let mut bytes = Vec::new();
    let bound = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    file.take(bound).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn write_durably(folder: &Folder, name: &OsString, bytes: &[u8]) -> io::Result<()> {
    // A crash may have left something there, which is useless. It is removed, not overwritten: it may be a link to
    // something else, and a name that must be new does not follow links.
    match folder.remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = folder.open(name, flags, 0o644)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The name that a file's new content has until it is complete.
fn beside(name: &OsString) -> OsString {
    let mut fresh = OsString::from(".");
    fresh.push(name);
    fresh.push(".new");
    fresh
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_replaced_file_holds_the_new_content_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.toml");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(read(&path, 100).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_crash_before_the_rename_leaves_the_old_content_and_does_not_hinder_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.toml");
        replace(&path, b"old").unwrap();
        // Every state that a crash may leave: each prefix of the new content, under the temporary name.
        for length in 0..=3 {
            let fresh = folder.path().join(".disk.toml.new");
            fs::write(fresh, &b"new"[..length]).unwrap();
            assert_eq!(read(&path, 100).unwrap(), b"old");
        }
        replace(&path, b"newer").unwrap();
        assert_eq!(read(&path, 100).unwrap(), b"newer");
    }

    #[test]
    fn a_link_that_somebody_put_beside_a_file_leads_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.toml");
        let precious = folder.path().join("precious");
        fs::write(&precious, b"precious").unwrap();
        let fresh = folder.path().join(".disk.toml.new");
        std::os::unix::fs::symlink(&precious, fresh).unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        assert_eq!(read(&path, 100).unwrap(), b"new");
    }

    #[test]
    fn what_is_no_plain_file_is_neither_read_nor_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("secret"), b"secret").unwrap();
        std::os::unix::fs::symlink(path("secret"), path("link")).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(path("pipe"))
            .status();
        assert!(made.unwrap().success());
        for name in ["link", "pipe"] {
            let refused = read(&path(name), 100).unwrap_err();
            assert!(
                refused.to_string().contains("not a plain file"),
                "{refused}"
            );
            assert!(turn(&path(name)).is_err());
        }
        // In a datastore not even a directory may be a link.
        fs::create_dir_all(path("store/disk")).unwrap();
        fs::write(path("store/disk/disk.toml"), b"own").unwrap();
        std::os::unix::fs::symlink(path("store/disk"), path("store/other")).unwrap();
        let [disk, other] = ["store/disk/disk.toml", "store/other/disk.toml"]
            .map(|name| Location::in_disk(&path(name)));
        assert_eq!(read(disk.clone(), 100).unwrap(), b"own");
        assert!(read(other.clone(), 100).is_err() && turn(other.clone()).is_err());
        assert!(replace(other.clone(), b"new").is_err());
        assert!(other.create_new(0o600).is_err() && !other.is_plain());
        assert!(disk.is_plain());
        assert_eq!(read(disk, 100).unwrap(), b"own");
        assert!(read(folder.path(), 100).is_err());
    }

    #[test]
    fn of_changes_at_one_moment_none_is_lost() {
        const EACH: usize = 50;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.toml");
        replace(&path, b"").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        let _turn = turn(&path).unwrap();
                        let mut bytes = read(&path, 1_000).unwrap();
                        bytes.push(b'x');
                        replace(&path, &bytes).unwrap();
                    }
                });
            }
        });
        assert_eq!(read(&path, 1_000).unwrap().len(), 4 * EACH);
        assert_eq!(
            turn(&folder.path().join("none")).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }

    #[test]
    fn a_file_that_cannot_be_written_keeps_its_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.toml");
        replace(&path, b"old").unwrap();
        // A directory at the temporary name makes the write fail for every user, the superuser included.
        let fresh = folder.path().join(".disk.toml.new");
        fs::create_dir(&fresh).unwrap();
        assert!(replace(&path, b"new").is_err());
        assert_eq!(read(&path, 100).unwrap(), b"old");
    }

    #[test]
    fn no_more_is_read_than_was_allowed_and_one_byte_to_tell() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("big");
        replace(&path, &[0; 1000]).unwrap();
        assert_eq!(read(&path, 10).unwrap().len(), 11);
    }
}
