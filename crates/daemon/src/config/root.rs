//! The root: the directory where a daemon's configuration, state and sockets are.
//!
//! # Picture
//! ```text
//! ROOT/tidegate.toml          configuration (else /etc/tidegate/tidegate.toml, for the system's root only)
//! ROOT/state/                 stored state: datastores/, disks/, attached.toml, groups.toml, host-id, lock
//! ROOT/local/                 the datastore that the first run creates
//! ROOT/run/                   sockets (for the system's root under systemd: /run/tidegate)
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD};
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::lease::lock_identity;

use crate::files;
use crate::os_error::{self, Outcome};
use crate::text;

/// The remedy if a root cannot be created.
fn elsewhere(kind: std::io::ErrorKind) -> String {
    use std::io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match kind {
        StorageFull | QuotaExceeded | ReadOnlyFilesystem => {
            format!(
                "{}, or choose another root with --root DIR",
                os_error::remedy(kind)
            )
        }
        _ => "choose another root with --root DIR, or run with access to it".to_owned(),
    }
}

const SYSTEM: &str = "/var/lib/tidegate";
const SYSTEM_RUN: &str = "/run/tidegate";
const SYSTEM_CONFIG: &str = "/etc/tidegate/tidegate.toml";

/// The directories of one daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    path: PathBuf,
    run: PathBuf,
}

/// The lock of a root, owned as long as the daemon lives, so that a root has only one daemon.
#[derive(Debug)]
pub(crate) struct RootLock {
    file: File,
}

impl RootLock {
    /// Holds the lock until the process has ended with all its threads: until then one of them may write to a disk.
    /// Returns the lock's identity, which a copy of the root does not have.
    pub(crate) fn until_the_end(self) -> Outcome<[u8; 16]> {
        let identity = lock_identity(&self.file)
            .map_err(|e| os_error::io("cannot read the root's lock", &e))?;
        std::mem::forget(self);
        Ok(identity)
    }
}

impl Root {
    /// Finds the root: the given one, else `TIDEGATE_ROOT`. The default is the system's root for the superuser, and
    /// one in the user's data directory for others.
    pub fn find(given: Option<PathBuf>) -> anyhow::Result<Root> {
        let named = given.or_else(|| variable("TIDEGATE_ROOT"));
        let path = match named {
            Some(path) => path,
            None if rustix::process::geteuid().is_root() => PathBuf::from(SYSTEM),
            None => match (variable("XDG_DATA_HOME"), variable("HOME")) {
                (Some(data), _) => data.join("tidegate"),
                (None, Some(home)) => home.join(".local/share/tidegate"),
                (None, None) => anyhow::bail!(
                    "neither XDG_DATA_HOME nor HOME says where the root directory should be; name it with --root"
                ),
            },
        };
        Ok(Root::at(&std::path::absolute(path)?))
    }

    fn at(path: &Path) -> Root {
        // The unit of the system's daemon creates /run/tidegate. A daemon started by hand uses its root instead.
        let system = path == Path::new(SYSTEM) && Path::new(SYSTEM_RUN).is_dir();
        let run = if system {
            PathBuf::from(SYSTEM_RUN)
        } else {
            path.join("run")
        };
        Root {
            path: path.to_owned(),
            run,
        }
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The default socket of the REST interface.
    pub fn api_socket(&self) -> PathBuf {
        self.run.join("tidegate.sock")
    }

    /// The configuration file: the root's own, or for the system's root the one in `/etc`. It need not exist.
    pub fn config_file(&self) -> PathBuf {
        let own = self.path.join("tidegate.toml");
        let system = self.path == Path::new(SYSTEM) && !own.exists();
        if system {
            PathBuf::from(SYSTEM_CONFIG)
        } else {
            own
        }
    }

    pub(crate) fn nbd_socket(&self) -> PathBuf {
        self.run.join("nbd.sock")
    }

    pub(crate) fn disk_socket(&self, disk: &Name) -> PathBuf {
        self.run.join("disks").join(format!("{disk}.sock"))
    }

    /// The directory of its sockets.
    pub(crate) fn run(&self) -> &Path {
        &self.run
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path.join("state")
    }

    pub(crate) fn local_datastore(&self) -> PathBuf {
        self.path.join("local")
    }

    /// Creates the directories that are missing.
    pub(crate) fn create(&self) -> Outcome<()> {
        for folder in [self.state(), self.run.join("disks")] {
            // Only the owner may write here; the API socket's own mode gives a group access.
            let made = fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(&folder);
            made.map_err(|e| {
                let problem = os_error::io(format!("cannot create {}", folder.display()), &e);
                problem.remedy(elsewhere(e.kind()))
            })?;
        }
        Ok(())
    }

    /// Checks whether [`Root::create`] and the later steps would succeed, without doing them.
    pub(crate) fn check(&self) -> Outcome<()> {
        let what = |folder: &Path| format!("cannot create {}", folder.display());
        for folder in [self.state(), self.run.join("disks")] {
            let there = folder.ancestors().find(|folder| folder.exists());
            let there = there.unwrap_or(Path::new("/"));
            let access = Access::WRITE_OK | Access::EXEC_OK;
            rustix::fs::accessat(CWD, there, access, AtFlags::EACCESS)
                .map_err(std::io::Error::from)
                .and_then(|()| match there.is_dir() {
                    true => Ok(()),
                    false => Err(std::io::ErrorKind::NotADirectory.into()),
                })
                .map_err(|e| {
                    let problem = os_error::io(what(&folder), &e)
                        .because(format!("{} is all that is there of it", there.display()));
                    problem.remedy(elsewhere(e.kind()))
                })?;
        }
        self.known_host_id().map(drop)
    }

    /// Whether a path is in a directory that [`Root::create`] creates.
    pub(crate) fn makes_folder_of(&self, path: &Path) -> bool {
        let folder = path.parent();
        let made = folder == Some(&*self.run) || folder == Some(&*self.run.join("disks"));
        made && !self.run.exists()
    }

    /// The process that serves this root now, from the kernel's list of locks. Testing with a lock of our own could
    /// make a daemon fail that starts at this moment.
    pub(crate) fn daemon(&self) -> Option<u32> {
        let lock = fs::metadata(self.state().join("lock")).ok()?;
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let inode = format!(":{}", lock.ino());
        locks.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [_, "FLOCK", _, "WRITE", pid, file, ..] if file.ends_with(&inode) => {
                    pid.parse().ok()
                }
                _ => None,
            }
        })
    }

    /// This host's identity among those that share datastores: drawn once, then stored.
    pub(crate) fn host_id(&self) -> Outcome<[u8; 16]> {
        if let Some(id) = self.known_host_id()? {
            return Ok(id);
        }
        let path = self.state().join("host-id");
        let Uuid(id) = crate::text::new_uuid()?;
        let text = text::hex(&id) + "\n";
        files::replace(&path, text.as_bytes())
            .map_err(|e| os_error::io(format!("cannot write {}", path.display()), &e))?;
        Ok(id)
    }

    /// The stored identity, if there is one.
    fn known_host_id(&self) -> Outcome<Option<[u8; 16]>> {
        let path = self.state().join("host-id");
        let text = match files::read(&path, 64) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(os_error::io(
                    format!("cannot read {}", path.display()),
                    &error,
                ));
            }
        };
        let id = String::from_utf8_lossy(&text).trim().to_owned();
        match Uuid::try_from(id) {
            Ok(Uuid(id)) => Ok(Some(id)),
            Err(why) => Err(Problem::new(
                ProblemCode::Corrupt,
                format!("{} is damaged", path.display()),
            )
            .because(why)
            .remedy("remove it; this host then gets a new identity")),
        }
    }

    /// Locks the root for this process, until the lock is dropped or the process ends, for whatever reason.
    pub(crate) fn lock(&self) -> Outcome<RootLock> {
        let path = self.state().join("lock");
        let what = || format!("cannot lock {}", path.display());
        let mut options = File::options();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|e| os_error::io(what(), &e))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.read_to_string(&mut holder);
                let holder = holder.trim();
                let why = if holder.is_empty() {
                    "another tidegate daemon serves it".to_owned()
                } else {
                    format!("another tidegate daemon, process {holder}, serves it")
                };
                return Err(Problem::new(
                    ProblemCode::Locked,
                    format!("cannot serve the root {}", self.path.display()),
                )
                .because(why)
                .remedy("stop that one, or give this one a root of its own with --root DIR"));
            }
            Err(TryLockError::Error(error)) => return Err(os_error::io(what(), &error)),
        }
        // Only for the message above: the kernel owns the lock, not the text.
        let noted = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| write!(file, "{}", std::process::id()));
        noted.map_err(|e| os_error::io(what(), &e))?;
        Ok(RootLock { file })
    }
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_or_read_only_file_system_is_not_blamed_on_rights() {
        use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, StorageFull};
        for (kind, told) in [
            (StorageFull, "free some space"),
            (ReadOnlyFilesystem, "remount,rw"),
        ] {
            let remedy = elsewhere(kind);
            assert!(
                remedy.contains(told) && !remedy.contains("with access"),
                "{remedy}"
            );
            assert!(remedy.contains("--root DIR"));
        }
        assert!(elsewhere(PermissionDenied).contains("with access"));
    }

    #[test]
    fn a_second_daemon_on_the_same_root_is_told_who_has_it_and_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::at(folder.path());
        root.create().unwrap();
        let held = root.lock().unwrap();
        let refused = root.lock().unwrap_err();
        assert_eq!(refused.code, ProblemCode::Locked);
        let text = refused.to_string();
        assert!(
            text.contains(&format!("process {}", std::process::id())),
            "{text}"
        );
        assert!(text.contains("--root DIR"), "{text}");
        drop(held);
        root.lock().unwrap();
    }

    #[test]
    fn a_host_keeps_the_identity_that_it_once_drew() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let root = Root::at(one.path());
        root.create().unwrap();
        let id = root.host_id().unwrap();
        assert_eq!(root.host_id().unwrap(), id);
        let another = Root::at(other.path());
        another.create().unwrap();
        assert_ne!(another.host_id().unwrap(), id);
        fs::write(root.state().join("host-id"), "me").unwrap();
        let refused = root.host_id().unwrap_err();
        assert_eq!(refused.code, ProblemCode::Corrupt);
        assert!(refused.to_string().contains("remove it"), "{refused}");
    }

    #[test]
    fn everything_of_a_given_root_is_under_it() {
        let root = Root::find(Some("/srv/tide".into())).unwrap();
        assert_eq!(root.api_socket(), Path::new("/srv/tide/run/tidegate.sock"));
        assert_eq!(root.config_file(), Path::new("/srv/tide/tidegate.toml"));
        let disk = "db1".parse().unwrap();
        assert_eq!(
            root.disk_socket(&disk),
            Path::new("/srv/tide/run/disks/db1.sock")
        );
    }
}
