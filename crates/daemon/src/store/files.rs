//! Small files that must survive a crash whole: read with a bound, replaced all at once.
//!
//! # Always true
//! - After a crash at any moment the file holds either what it held before or what was to be written, never a part
//!   or a mixture: the new bytes are durable under another name before they take the old one's place.
//! - When [`replace`] answers, the new content is durable.
//! - Of those who read a file to replace it, one at a time has its [`Turn`], whichever daemon it is, as far as the file
//!   system has locks: NFS and all local ones do.
//! - Strangers may write to the directory: no link is followed that has a file's name or the one beside it, and nothing but
//!   a plain file is read.
//!
//! # Picture
//! ```text
//! write .NAME.new ─ fsync it ─ rename it over NAME ─ fsync the directory
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

/// How long another may be at a file: much longer than a change takes, and soon enough for a person who waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether the other has done.
const LOOK: Duration = Duration::from_millis(5);

/// The right to read a file and to replace it by what follows from that, until dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _locked: File,
}

/// Waits for the right to change the file at `path`.
///
/// What is locked is the file that is to be replaced: who finds, when it has the lock, that another one stands at the
/// path by now, waits for that one.
pub(crate) fn turn(path: &Path) -> io::Result<Turn> {
    let begun = Instant::now();
    loop {
        // To be written, though nothing is: otherwise a file server grants no lock.
        let file = open(path, File::options().read(true).write(true))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(LOOK);
                continue;
            }
            Err(Errno::WOULDBLOCK) => {
                let text = "another order, on this host or another, is changing it all the time";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            // There are no locks to be had here.
            Err(_) => return Ok(Turn { _locked: file }),
        }
        if is_at(&file, path)? {
            return Ok(Turn { _locked: file });
        }
    }
}

/// Whether a path names the very file that is open.
pub(super) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (open, there) = (file.metadata()?, fs::metadata(path)?);
    Ok((open.dev(), open.ino()) == (there.dev(), there.ino()))
}

/// Opens a plain file, by no link. What else strangers may have put there is refused, and not waited for.
pub(crate) fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = options.custom_flags(flags.bits().cast_signed()).open(path);
    match opened {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Err(error) if error.raw_os_error() != Some(Errno::LOOP.raw_os_error()) => Err(error),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no plain file, and links are not followed there",
        )),
    }
}

/// Replaces `path`'s content, or creates it.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (folder, fresh) = beside(path)?;
    write_durably(&fresh, bytes)?;
    fs::rename(&fresh, path)?;
    sync_folder(folder)
}

/// The content of `path`, of which no more than `most` bytes (and one, to show that there are more) are read.
pub(crate) fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let file = open(path, File::options().read(true))?;
    let mut bytes = Vec::new();
    let bound = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    file.take(bound).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Makes durable which names a directory holds.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // What a crash may have left there is of no use to anybody. It goes, rather than being written over: it may be a link
    // to something else, which a name that must be new does not follow either.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The directory of `path`, and the name that its next content has until it is complete.
fn beside(path: &Path) -> io::Result<(&Path, PathBuf)> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a path without a file's name",
        ));
    };
    let mut fresh = std::ffi::OsString::from(".");
    fresh.push(name);
    fresh.push(".new");
    Ok((folder, folder.join(fresh)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let (_, fresh) = beside(&path).unwrap();
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
        let (_, fresh) = beside(&path).unwrap();
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
            assert!(refused.to_string().contains("no plain file"), "{refused}");
            assert!(turn(&path(name)).is_err());
        }
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
        let (_, fresh) = beside(&path).unwrap();
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
