//! Drafts of disks: hidden directories in which a disk is assembled or removed.
//!
//! Several hosts may create disks in one directory at the same time, even with the same name. So each draft has a
//! unique name, and a file in it is locked while a daemon works there.
//!
//! # Always true
//! - A draft is removed only with its lock. A daemon that died has lost its locks.
//! - A draft gets a disk's name only if nothing else has that name.
//! - On a file system without locks, no drafts are swept.
//! - A directory named with [`DOOMED`] has no lock: its deletion was decided, and any daemon that finds it continues
//!   the deletion.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::files::{self, Location};

/// Prefix of every draft's name.
const PREFIX: &str = ".creating-";
/// Prefix of a disk's directory name once its deletion is decided.
pub(super) const DOOMED: &str = ".deleting-";
/// The file in a draft whose lock shows that a daemon works there.
pub(super) const LOCK: &str = ".at-work";

/// A draft that this daemon works on.
#[derive(Debug)]
pub(super) struct Draft {
    path: PathBuf,
    /// Locked for as long as the draft exists.
    lock: File,
}

/// How often to retry when another daemon sweeps a new draft before it is locked.
const ATTEMPTS: u32 = 100;

/// Begins a draft in this directory, with a unique name.
pub(super) fn begin(folder: &Path, name: &str) -> io::Result<Draft> {
    let mut attempt = 1;
    loop {
        // Another daemon may still be sweeping the previous attempt.
        let path = match attempt {
            1 => folder.join(format!("{PREFIX}{name}")),
            _ => folder.join(format!("{PREFIX}{name}-{attempt}")),
        };
        fs::create_dir(&path)?;
        match lock(&path) {
            Ok(lock) => return Ok(Draft { path, lock }),
            Err(error) if attempt < ATTEMPTS && is_swept(&error) => {
                // Without locks on the file system, a sweeper that created the lock file removes neither that nor the
                // draft.
                let _gone = fs::remove_dir_all(&path);
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Locks a draft that was just created.
fn lock(draft: &Path) -> io::Result<File> {
    let at = Location::in_disk(&draft.join(LOCK));
    let lock = at.create_new(0o644)?;
    match lock.try_lock() {
        // The previous owner of the lock may have removed it.
        Ok(()) if files::is_at(&lock, &at)? => Ok(lock),
        Ok(()) | Err(TryLockError::WouldBlock) => Err(io::Error::new(
            io::ErrorKind::ResourceBusy,
            "other hosts repeatedly removed its unfinished directory",
        )),
        // Without locks there is no sweep either.
        Err(TryLockError::Error(_)) => Ok(lock),
    }
}

/// Whether locking a draft failed because another daemon sweeps it: it created the lock, has it, or removed both.
fn is_swept(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::AlreadyExists | io::ErrorKind::ResourceBusy | io::ErrorKind::NotFound
    )
}

impl Draft {
    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Renames it to its final path, unless something of that name exists by now.
    pub(super) fn publish(&self, path: &Path) -> io::Result<()> {
        match renameat_with(CWD, &self.path, CWD, path, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            // Some file systems do not support that. A rename does not replace a directory with content.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                fs::rename(&self.path, path).map_err(|error| match error.kind() {
                    io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::NotADirectory => {
                        io::ErrorKind::AlreadyExists.into()
                    }
                    _ => error,
                })?;
            }
            Err(error) => return Err(error.into()),
        }
        // Removed only now: a draft without it could be swept. If it stays, it does no harm.
        let removed = Location::in_disk(&path.join(LOCK))
            .folder()
            .and_then(|(disk, lock)| disk.remove_file(lock));
        if let Err(error) = removed {
            tracing::debug!(%error, path = %path.display(), "the lock of an unfinished disk was not removed");
        }
        Ok(())
    }

    /// Removes it.
    pub(super) fn discard(self) -> io::Result<()> {
        match remove(&self.path, self.lock) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }
}

/// Removes the drafts of this directory that no daemon works on any more, and continues interrupted deletions. What
/// cannot be removed stays.
pub(super) fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        let (name, path) = (entry.file_name(), entry.path());
        let name = name.to_string_lossy();
        let swept = if name.starts_with(PREFIX) {
            sweep_one(&path)
        } else if name.starts_with(DOOMED) {
            finish(&path)
        } else {
            continue;
        };
        if let Err(error) = swept {
            tracing::debug!(%error, path = %path.display(), "files of a crash were not removed");
        }
    }
}

fn sweep_one(draft: &Path) -> io::Result<()> {
    if !draft.symlink_metadata()?.is_dir() {
        return Ok(());
    }
    let at = Location::in_disk(&draft.join(LOCK));
    // The creator of a draft also creates this file with O_EXCL. So whichever comes first, one of the two gets no lock.
    let lock = at.open_or_create(0o644)?;
    match lock.try_lock() {
        // The previous owner of the lock may have removed everything already.
        Ok(()) if files::is_at(&lock, &at)? => remove(draft, lock),
        Ok(()) | Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes the remainder of a disk whose deletion was interrupted. Other daemons may do so at the same time.
pub(super) fn finish(doomed: &Path) -> io::Result<()> {
    match fs::remove_dir_all(doomed) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a locked draft. The lock file is removed last, so that the remainder can be swept after a crash.
fn remove(draft: &Path, lock: File) -> io::Result<()> {
    // The name may change meanwhile: only the content of the directory that was opened is removed.
    let (folder, last) = Location::in_disk(&draft.join(LOCK)).folder()?;
    for entry in fs::read_dir(folder.path())? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false if entry.file_name() == last => {}
            false => fs::remove_file(entry.path())?,
        }
    }
    folder.remove_file(last)?;
    // NFS retains a removed file in its directory for as long as a program has it open.
    drop(lock);
    fs::remove_dir(draft)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_draft_is_swept_away_when_nobody_is_at_work_on_it_and_not_before() {
        let folder = tempfile::tempdir().unwrap();
        let draft = begin(folder.path(), "a-1").unwrap();
        fs::write(draft.path().join("image"), "half").unwrap();
        sweep(folder.path());
        assert!(draft.path().join("image").exists());
        let path = draft.path().to_owned();
        drop(draft);
        sweep(folder.path());
        assert!(!path.exists());
    }

    #[test]
    fn a_deletion_that_was_cut_short_is_gone_on_with_whatever_the_disk_was_called() {
        let folder = tempfile::tempdir().unwrap();
        let doomed = folder.path().join(".deleting-a");
        fs::create_dir(&doomed).unwrap();
        fs::write(doomed.join("image"), "half").unwrap();
        fs::create_dir(folder.path().join("b")).unwrap();
        // A link with such a name is not followed: only the link is removed.
        std::os::unix::fs::symlink("b", folder.path().join(".deleting-c")).unwrap();
        fs::write(folder.path().join("b/image"), "whole").unwrap();
        sweep(folder.path());
        let left: Vec<_> = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left, ["b"]);
        assert_eq!(fs::read(folder.path().join("b/image")).unwrap(), b"whole");
    }

    #[test]
    fn who_begins_a_draft_gets_one_however_often_others_sweep() {
        let folder = tempfile::tempdir().unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        sweep(folder.path());
                    }
                });
            }
            let begun = (0..300).map(|number| {
                let draft = begin(folder.path(), &number.to_string())?;
                fs::write(draft.path().join("image"), "whole")?;
                draft.publish(&folder.path().join(number.to_string()))
            });
            let begun: io::Result<Vec<()>> = begun.collect();
            over.store(true, Ordering::Relaxed);
            begun.unwrap();
        });
        sweep(folder.path());
        for number in 0..300 {
            let disk = folder.path().join(number.to_string());
            assert_eq!(fs::read(disk.join("image")).unwrap(), b"whole");
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 300);
    }

    #[test]
    fn of_two_drafts_one_gets_the_name_and_the_other_is_told_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let [one, two] = ["a-1", "a-2"].map(|name| begin(folder.path(), name).unwrap());
        let disk = folder.path().join("a");
        two.publish(&disk).unwrap();
        let refused = one.publish(&disk).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        one.discard().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(&disk).unwrap().count(), 0, "not even a lock");
    }
}
