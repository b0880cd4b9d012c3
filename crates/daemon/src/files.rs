//! Small files that must survive a crash whole: read with a bound, replaced all at once.
//!
//! # Always true
//! - After a crash at any moment the file holds either what it held before or what was to be written, never a part
//!   or a mixture: the new bytes are durable under another name before they take the old one's place.
//! - When [`replace`] answers, the new content is durable.
//! - Of those who read a file to replace it, one at a time has its [`Turn`], whichever daemon it is, as far as the file
//!   system has locks: NFS and all local ones do.
//! - Strangers may write to the directory: no link is followed that has a file's name or the one beside it, in a datastore
//!   none at all, and nothing but a plain file is read.
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

/// How long another may be at a file: much longer than a change takes, and soon enough for a person who waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether the other has done.
const LOOK: Duration = Duration::from_millis(5);

/// Where a file is: a directory that is trusted, and a path below it that others may have made.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    trusted: PathBuf,
    below: PathBuf,
}

impl Location {
    /// In a disk's directory, or a draft of one: what lies in the datastore is not trusted, that directory included.
    pub(crate) fn in_disk(path: &Path) -> Location {
        Location::split(path, 2)
    }

    /// The last so many names of the path are not trusted.
    fn split(path: &Path, names: usize) -> Location {
        let trusted = path.ancestors().nth(names);
        let trusted = trusted.unwrap_or_else(|| Path::new("/"));
        let below = path.strip_prefix(trusted).unwrap_or(path);
        Location {
            trusted: trusted.to_owned(),
            below: below.to_owned(),
        }
    }

    /// What is there, whatever it is, by no link.
    pub(crate) fn look(&self) -> io::Result<Stat> {
        Folder::named(&self.trusted)?.look(&self.below)
    }

    /// Whether a plain file is there, by no link.
    pub(crate) fn is_plain(&self) -> bool {
        self.look().is_ok_and(|stat| beneath::is_plain(&stat))
    }

    /// Makes a new file there.
    pub(crate) fn create_new(&self, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        Folder::named(&self.trusted)?.open(&self.below, flags, mode)
    }

    /// Opens the file there to be written, and makes it if there is none.
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

/// In a directory of our own: all of the path but its last name is trusted.
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

/// Which writing of a file was read: it is replaced as a whole, so that each writing has an inode of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    inode: (u64, u64),
    modified: (i64, i64),
    size: u64,
}

impl Stamp {
    /// That of a file as it is now. It is opened: on a network's file system that asks the server, and a mere look
    /// at the name may not.
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

/// The right to read a file and to replace it by what follows from that, until dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _locked: File,
}

/// Waits for the right to change the file at that place.
///
/// What is locked is the file that is to be replaced: who finds, when it has the lock, that another one stands at the
/// path by now, waits for that one.
pub(crate) fn turn(at: impl Into<Location>) -> io::Result<Turn> {
    let at = at.into();
    let begun = Instant::now();
    loop {
        // To be written, though nothing is: otherwise a file server grants no lock.
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
            // There are no locks to be had here.
            Err(_) => return Ok(Turn { _locked: file }),
        }
        if is_at(&file, &at)? {
            return Ok(Turn { _locked: file });
        }
    }
}

/// Whether the very file that is open is at that place.
pub(crate) fn is_at(file: &File, at: &Location) -> io::Result<bool> {
    let (open, there) = (file.metadata()?, at.look()?);
    Ok((open.dev(), open.ino()) == beneath::identity(&there))
}

/// Opens a plain file that is there, by no link. What else strangers may have put there is refused, and not waited for.
pub(crate) fn open(at: impl Into<Location>, options: &mut OpenOptions) -> io::Result<File> {
    let at = at.into();
    let pinned = Folder::named(&at.trusted)?.pin(&at.below)?;
    // Whatever has the name by now: this one was looked at.
    options.open(format!("/proc/self/fd/{}", pinned.as_raw_fd()))
}

/// Replaces the content of the file at that place, or creates it.
pub(crate) fn replace(at: impl Into<Location>, bytes: &[u8]) -> io::Result<()> {
    let (folder, name) = at.into().folder()?;
    let fresh = beside(&name);
    write_durably(&folder, &fresh, bytes)?;
    folder.rename(&fresh, &name)?;
    folder.sync()
}

/// The content of a file, of which no more than `most` bytes (and one, to show that there are more) are read.
pub(crate) fn read(at: impl Into<Location>, most: usize) -> io::Result<Vec<u8>> {
    let file = open(at, File::options().read(true))?;
    let mut bytes = Vec::new();
    let bound = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    file.take(bound).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes durable which names a directory holds.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn write_durably(folder: &Folder, name: &OsString, bytes: &[u8]) -> io::Result<()> {
    // What a crash may have left there is of no use to anybody. It goes, rather than being written over: it may be a link
    // to something else, which a name that must be new does not follow either.
    match folder.remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mut file = folder.open(name, flags, 0o644)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The name that a file's next content has until it is complete.
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
        // As far as a crash may let it come: every prefix of the new content, under the new name.
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
        // A directory in the place of the new file fails for every user, the superuser too.
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
