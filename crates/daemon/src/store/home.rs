//! The identity of a datastore's file system, by which another one at its path is noticed.
//!
//! An unmounted file system leaves its mount point: an empty directory on another file system. The store calls this
//! before it reads a datastore, and so before it creates anything there.
//!
//! # Always true
//! - The stored identity of a datastore changes only while the directory at its path is known to be the same.
//! - An existing mark is not overwritten: the hosts that share a datastore identify it by the same mark.
//!
//! # Picture
//! ```text
//!   STATE/homes/NAME.toml        type, device and UUID of the file system, inode of the directory, mark
//!   PATH/.tidegate/datastore-id  the mark: a UUID
//! ```

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use serde::{Deserialize, Serialize};
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::beneath::Folder;
use tidegate_engine::mounts;

use super::{MAX_STATE_BYTES, newer, parse};
use crate::files::{self, Location};
use crate::os_error::{self, Outcome};
use crate::text::new_uuid;
use crate::text::quoted;

/// Directory in every datastore for data that hosts share.
pub(crate) const COMMON: &str = ".tidegate";
/// The mark's file in that directory.
const MARK: &str = "datastore-id";
/// A bound that is larger than a mark.
const MARK_BYTES: usize = 64;

/// What identifies a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Home {
    version: u32,
    /// The file system's type, such as `ext4`.
    kind: String,
    /// What it was mounted from, for people: names of devices change.
    device: String,
    /// The file system's UUID, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    /// The directory's inode.
    inode: u64,
    /// The content of its mark, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mark: Option<String>,
    /// Why its mark cannot be read. The identity of such a directory is never stored.
    #[serde(skip)]
    damage: Option<String>,
}

/// Why a directory differs from the stored one.
#[derive(Debug, PartialEq, Eq)]
enum Unlike {
    /// It is another directory.
    Another(String),
    /// It is on the same file system, but its mark has changed.
    Damaged(String),
}

impl Home {
    const VERSION: u32 = 1;

    /// The identity of the directory at that path now.
    fn at(path: &Path) -> io::Result<Home> {
        let directory = File::open(path)?;
        let there = directory.metadata()?;
        if !there.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let (mark, damage) = match mark_of(path) {
            Ok(mark) => (mark, None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                (None, Some(error.to_string()))
            }
            Err(error) => return Err(error),
        };
        let mount = mounts::mount_of(path);
        let (kind, device) = mount.map(|mount| (mount.kind, mount.source)).unzip();
        Ok(Home {
            version: Home::VERSION,
            kind: kind.unwrap_or_default(),
            device: device.unwrap_or_default(),
            uuid: mounts::file_system_uuid(&directory),
            inode: there.ino(),
            mark,
            damage,
        })
    }

    /// Why `there` is not this directory.
    fn unlike(&self, there: &Home) -> Option<Unlike> {
        let differ = |a: &Option<String>, b: &Option<String>| a.is_some() && b.is_some() && a != b;
        if family(&self.kind) != family(&there.kind) || differ(&self.uuid, &there.uuid) {
            let (there, known) = (there.told(), self.told());
            let why = format!("{there} is mounted, but its disks are on {known}");
            return Some(Unlike::Another(why));
        }
        let same = self.uuid == there.uuid && self.inode == there.inode;
        if let Some(damage) = &there.damage {
            return Some(Unlike::Damaged(damage.clone()));
        }
        if differ(&self.mark, &there.mark) {
            return Some(match same && self.uuid.is_some() {
                true => Unlike::Damaged(format!(
                    "{COMMON}/{MARK} has changed on the same file system"
                )),
                false => Unlike::Another(format!(
                    "{COMMON}/{MARK} names another datastore than before"
                )),
            });
        }
        let marked = self.mark.is_some() && there.mark.is_some();
        // Without a mark it is the same directory only if its other properties are conclusive.
        let certain = same && (self.uuid.is_some() || self.mark.is_none());
        if marked || certain {
            return None;
        }
        Some(Unlike::Another(match &self.mark {
            Some(mark) => format!("{COMMON}/{MARK}, with {mark} in it, is missing there"),
            None => "it is another directory than before".to_owned(),
        }))
    }

    /// Describes it in words.
    fn told(&self) -> String {
        match &self.uuid {
            Some(uuid) => format!("{} of {} (UUID {uuid})", self.kind, self.device),
            None => format!("{} of {}", self.kind, self.device),
        }
    }
}

/// The family of a file system type whose versions have separate names.
fn family(kind: &str) -> &str {
    match kind {
        "nfs4" => "nfs",
        other => other,
    }
}

/// The stored identity of a datastore's directory, by its file.
pub(super) struct Memory {
    file: PathBuf,
}

impl Memory {
    /// The stored identity of a datastore in this state directory.
    pub(super) fn of(state: &Path, datastore: &Name) -> Memory {
        Memory {
            file: state.join("homes").join(format!("{datastore}.toml")),
        }
    }

    /// Reads the stored identity.
    pub(super) fn read(&self) -> Outcome<Option<Home>> {
        let bytes = match files::read(&self.file, MAX_STATE_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let what = format!("cannot read {}", self.file.display());
                return Err(os_error::io(what, &error));
            }
        };
        let home: Home = parse(&self.file, &bytes)?;
        match home.version {
            Home::VERSION => Ok(Some(home)),
            version => Err(newer(&self.file, version)),
        }
    }

    /// Stores the identity of the directory at a path. Marks the directory if it has no mark and can have one.
    pub(super) fn adopt(&self, path: &Path) -> io::Result<()> {
        let mut home = Home::at(path)?;
        if let Some(damage) = home.damage {
            let why = format!("{damage}: remove that file, unless other hosts use the directory");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        if home.mark.is_none() {
            home.mark = match mark(path, None) {
                Ok(mark) => Some(mark),
                Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => None,
                Err(error) => return Err(error),
            };
        }
        self.write(&home)
    }

    /// Removes the stored identity.
    pub(super) fn forget(&self) -> io::Result<()> {
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Fails unless the directory at a path is the stored one.
    pub(super) fn check(&self, known: &Home, datastore: &Name, path: &Path) -> Outcome<()> {
        let mut there = Home::at(path).map_err(|error| {
            let why = format!("{}: {error}", path.display());
            not_mounted(datastore, why, mount_it(known, path))
        })?;
        match known.unlike(&there) {
            Some(Unlike::Another(why)) => {
                let why = format!("{}: {why}", path.display());
                return Err(not_mounted(datastore, why, mount_it(known, path)));
            }
            Some(Unlike::Damaged(why)) => {
                return Err(damaged(datastore, known, path, why, &there));
            }
            None => {}
        }
        if there.mark.is_none() {
            // The mark was removed, or could not be written before.
            there.mark = mark(path, known.mark.clone()).ok().or(known.mark.clone());
        }
        if there.uuid.is_none() {
            there.uuid.clone_from(&known.uuid);
        }
        if there != *known
            && let Err(error) = self.write(&there)
        {
            tracing::debug!(%datastore, %error, "the stored description of a datastore's file system was not updated");
        }
        Ok(())
    }

    fn write(&self, home: &Home) -> io::Result<()> {
        let folder = self.file.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)?;
        let text = toml::to_string(home).map_err(io::Error::other)?;
        files::replace(&self.file, text.as_bytes())
    }
}

/// The file system is not mounted: nothing is created on the datastore and nothing is read.
pub(super) fn not_mounted(datastore: &Name, why: String, remedy: String) -> Problem {
    let what = format!("datastore {datastore} is not mounted");
    Problem::new(ProblemCode::Datastore, what)
        .because(why)
        .remedy(remedy)
}

/// The file system is mounted, but the mark that identifies the datastore is damaged.
fn damaged(datastore: &Name, known: &Home, path: &Path, why: String, there: &Home) -> Problem {
    let mark = path.join(COMMON).join(MARK);
    let shown = quoted(&mark);
    let remedy = match (&known.mark, &there.mark) {
        // Another host may identify the datastore by it.
        (Some(words), Some(_)) => format!(
            "if other hosts use the directory, detach its disks here, then: tidegate datastore remove {datastore} && \
             tidegate datastore add {datastore} --path {path}; otherwise write it again: \
             rm -rf {shown} && echo {words} > {shown}",
            path = quoted(path)
        ),
        (Some(words), None) => format!(
            "check the file system for more damage; then write it again: rm -rf {shown} && echo {words} > {shown}"
        ),
        (None, _) => format!("remove {}; it is created again", mark.display()),
    };
    Problem::new(
        ProblemCode::Datastore,
        format!("datastore {datastore} has a damaged mark"),
    )
    .because(format!("{}: {why}", path.display()))
    .remedy(remedy)
}

fn mount_it(known: &Home, path: &Path) -> String {
    let path = path.display();
    let device = match &known.uuid {
        Some(uuid) => format!("{} (UUID {uuid})", known.device),
        None => known.device.clone(),
    };
    format!(
        "mount {device} at {path} as before: its disks are then attached again; if you want another directory, \
         detach its disks, remove the datastore and add it again"
    )
}

/// The file with a directory's mark.
pub(crate) fn mark_file(path: &Path) -> PathBuf {
    path.join(COMMON).join(MARK)
}

/// The mark of the directory at a path, if it has one. An invalid mark is reported as invalid data.
pub(crate) fn mark_of(path: &Path) -> io::Result<Option<String>> {
    match Folder::named(path)?.look(COMMON) {
        Ok(there) if FileType::from_raw_mode(there.st_mode).is_dir() => {}
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    let mark = path.join(COMMON).join(MARK);
    let damaged = |is: &str| {
        let text = format!("{COMMON}/{MARK} is {is}, not the mark of a datastore");
        Err(io::Error::new(io::ErrorKind::InvalidData, text))
    };
    match mark.symlink_metadata() {
        Ok(there) if there.is_dir() => return damaged("a directory"),
        Ok(there) if !there.is_file() => return damaged("not a plain file"),
        _ => {}
    }
    match files::read(Location::in_disk(&mark), MARK_BYTES) {
        Ok(bytes) if bytes.trim_ascii().is_empty() => damaged("empty"),
        Ok(bytes) => match std::str::from_utf8(bytes.trim_ascii()) {
            Ok(words) if Uuid::try_from(words.to_owned()).is_ok() => Ok(Some(words.to_owned())),
            _ => damaged("no UUID"),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Marks a directory with this UUID or a new one. Returns its mark, which may be that of a faster host.
fn mark(path: &Path, words: Option<String>) -> io::Result<String> {
    let fresh = new_uuid().map_err(io::Error::other)?.to_string();
    // Peers may have created a link there: it is not followed.
    let folder = Folder::named(path)?.make_folder(COMMON, 0o755)?;
    let draft = format!(".{MARK}.{fresh}");
    let words = words.unwrap_or(fresh);
    let at = Location::in_disk(&path.join(COMMON).join(&draft));
    files::replace(at, format!("{words}\n").as_bytes())?;
    let named = folder.rename_new(&draft, MARK);
    if named.is_err() {
        // If it stays, it does no harm.
        let _ = folder.remove_file(&draft);
    }
    match named {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => folder.sync()?,
    }
    mark_of(path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Whether a directory contains disks, or data that hosts share.
pub(super) fn is_used(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_name() == COMMON || super::is_disks_folder(&entry.path()) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(kind: &str, uuid: Option<&str>, inode: u64, mark: Option<&str>) -> Home {
        Home {
            version: Home::VERSION,
            kind: kind.to_owned(),
            device: "/dev/sdb1".to_owned(),
            uuid: uuid.map(str::to_owned),
            inode,
            mark: mark.map(str::to_owned),
            damage: None,
        }
    }

    fn is_another(unlike: Option<Unlike>) -> bool {
        matches!(unlike, Some(Unlike::Another(_)))
    }

    #[test]
    fn a_directory_is_known_by_its_mark_and_its_file_system() {
        let known = home("ext4", Some("u"), 2, Some("m"));
        let is_known = |there: Home| known.unlike(&there).is_none();
        assert!(is_known(known.clone()));
        // A directory that was restored, or one whose UUID cannot be read now.
        assert!(is_known(home("ext4", Some("u"), 7, Some("m"))));
        assert!(is_known(home("ext4", None, 2, Some("m"))));
        assert!(is_known(home("ext4", Some("u"), 2, None)));
        for there in [
            home("ext4", Some("u"), 7, None),
            home("ext4", None, 2, None),
            home("ext4", Some("u"), 7, Some("n")),
            home("ext4", None, 2, Some("n")),
            home("ext4", Some("v"), 2, Some("m")),
            home("xfs", Some("u"), 2, Some("m")),
        ] {
            assert!(is_another(known.unlike(&there)), "{there:?}");
        }
        // A directory that was never marked.
        let known = home("ext4", None, 2, None);
        assert_eq!(known.unlike(&home("ext4", None, 2, None)), None);
        assert!(is_another(known.unlike(&home("ext4", None, 3, None))));
    }

    #[test]
    fn a_mark_that_is_not_what_it_was_is_damaged_where_the_file_system_is_the_same() {
        let known = home("ext4", Some("u"), 2, Some("m"));
        let is_damaged = |there: &Home| matches!(known.unlike(there), Some(Unlike::Damaged(_)));
        assert!(is_damaged(&home("ext4", Some("u"), 2, Some("n"))));
        let unreadable = |kind, uuid| Home {
            damage: Some("it is empty".to_owned()),
            ..home(kind, uuid, 2, None)
        };
        assert!(is_damaged(&unreadable("ext4", Some("u"))));
        assert!(is_damaged(&unreadable("ext4", None)));
        // A different file system is reported first.
        assert!(!is_damaged(&unreadable("ext4", Some("v"))));
        assert!(!is_damaged(&unreadable("xfs", Some("u"))));
    }

    #[test]
    fn only_a_uuid_in_a_plain_file_is_a_mark() {
        let folder = tempfile::tempdir().unwrap();
        let (common, file) = (
            folder.path().join(COMMON),
            folder.path().join(COMMON).join(MARK),
        );
        let read = || mark_of(folder.path()).map_err(|error| error.kind());
        assert_eq!(read(), Ok(None));
        fs::write(&common, "").unwrap();
        assert_eq!(read(), Ok(None), "a file is no place for a mark");
        fs::remove_file(&common).unwrap();
        fs::create_dir(&common).unwrap();
        assert_eq!(read(), Ok(None));
        let uuid = new_uuid().unwrap().to_string();
        let long = format!("{uuid}{}", "0".repeat(MARK_BYTES));
        for text in ["", "\n", "datastore", &uuid[..20], "\u{fffd}", &long] {
            fs::write(&file, text).unwrap();
            assert_eq!(read(), Err(io::ErrorKind::InvalidData), "{text:?}");
        }
        fs::write(&file, format!("{uuid}\n")).unwrap();
        assert_eq!(read(), Ok(Some(uuid)));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(read(), Err(io::ErrorKind::InvalidData));
    }

    #[test]
    fn a_datastore_whose_mark_is_damaged_says_so_and_works_when_the_remedy_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("of two words");
        fs::create_dir(&path).unwrap();
        let name: Name = "d".parse().unwrap();
        let memory = Memory::of(folder.path(), &name);
        memory.adopt(&path).unwrap();
        let known = memory.read().unwrap().unwrap();
        let check = || memory.check(&known, &name, &path);
        check().unwrap();
        let mark = path.join(COMMON).join(MARK);
        let empty = |mark: &Path| fs::write(mark, "").unwrap();
        let directory = |mark: &Path| {
            fs::remove_file(mark).unwrap();
            fs::create_dir(mark).unwrap();
        };
        for damage in [&empty as &dyn Fn(&Path), &directory] {
            damage(&mark);
            let problem = check().unwrap_err();
            assert_eq!(problem.what, "datastore d has a damaged mark");
            // Its identity is not stored, and it is not taken for a new datastore.
            assert_eq!(memory.read().unwrap(), Some(known.clone()));
            assert!(memory.adopt(&path).is_err());
            let remedy = problem.remedy.unwrap();
            let (_, command) = remedy.split_once("again: ").unwrap();
            let mut shell = std::process::Command::new("sh");
            assert!(shell.args(["-c", command]).status().unwrap().success());
            check().unwrap();
        }
    }

    #[test]
    fn a_mark_that_another_host_may_know_is_not_to_be_written_over_unless_no_host_shares_it() {
        let name: Name = "d".parse().unwrap();
        let known = home("ext4", Some("u"), 2, Some("m"));
        let why = || "it has changed".to_owned();
        let remedy = |there: &Home| {
            let problem = damaged(&name, &known, Path::new("/srv/vms"), why(), there);
            problem.remedy.unwrap()
        };
        let others = remedy(&home("ext4", Some("u"), 2, Some("n")));
        assert!(
            others.starts_with("if other hosts use the directory, detach its disks here, then: "),
            "{others}"
        );
        assert!(others.contains("tidegate datastore add d --path /srv/vms; otherwise"));
        let nobodys = remedy(&home("ext4", Some("u"), 2, None));
        assert!(
            nobodys.starts_with("check the file system for more damage"),
            "{nobodys}"
        );
    }

    #[test]
    fn what_is_remembered_is_renewed_only_where_the_directory_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("of two words");
        fs::create_dir(&path).unwrap();
        let name: Name = "d".parse().unwrap();
        let memory = Memory::of(folder.path(), &name);
        assert_eq!(memory.read().unwrap(), None);
        memory.adopt(&path).unwrap();
        let known = memory.read().unwrap().unwrap();
        assert!(known.mark.is_some());
        // The inode and the device name may change, but not the mark. A property that cannot be read now stays stored.
        let before = Home {
            inode: known.inode ^ 1 << 40,
            device: "before".to_owned(),
            ..known.clone()
        };
        memory.write(&before).unwrap();
        memory.check(&before, &name, &path).unwrap();
        assert_eq!(memory.read().unwrap(), Some(known.clone()));
        memory.write(&before).unwrap();
        fs::remove_dir_all(&path).unwrap();
        let gone = memory.check(&before, &name, &path).unwrap_err();
        assert!(gone.what.contains("is not mounted"), "{gone}");
        fs::create_dir(&path).unwrap();
        let empty = memory.check(&before, &name, &path).unwrap_err();
        assert!(empty.what.contains("is not mounted"), "{empty}");
        assert_eq!(memory.read().unwrap(), Some(before));
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "nothing is made");
        memory.forget().unwrap();
        memory.forget().unwrap();
        assert_eq!(memory.read().unwrap(), None);
    }

    #[test]
    fn what_a_newer_program_remembers_is_not_taken_for_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let memory = Memory::of(folder.path(), &"d".parse().unwrap());
        let newer = Home {
            version: Home::VERSION + 1,
            ..home("ext4", None, 2, None)
        };
        memory.write(&newer).unwrap();
        assert!(memory.read().is_err());
    }

    #[test]
    fn a_directory_is_used_when_disks_or_hosts_left_something_there() {
        let folder = tempfile::tempdir().unwrap();
        let disk = folder.path().join("disk");
        fs::create_dir(&disk).unwrap();
        fs::write(folder.path().join("disk.toml"), "").unwrap();
        assert!(!is_used(folder.path()).unwrap());
        fs::write(disk.join("disk.toml"), "").unwrap();
        assert!(is_used(folder.path()).unwrap());
        fs::remove_dir_all(&disk).unwrap();
        fs::create_dir(folder.path().join(COMMON)).unwrap();
        assert!(is_used(folder.path()).unwrap());
        assert!(is_used(&folder.path().join("missing")).is_err());
    }

    #[test]
    fn what_is_to_be_mounted_is_named_by_its_uuid_where_it_has_one() {
        let path = Path::new("/srv/vms");
        let hint = |known: Home| mount_it(&known, path);
        let told = hint(home("ext4", Some("u"), 2, Some("m")));
        assert!(told.starts_with("mount /dev/sdb1 (UUID u) at /srv/vms as before"));
        let told = hint(home("nfs", None, 2, Some("m")));
        assert!(told.starts_with("mount /dev/sdb1 at /srv/vms as before"));
    }

    #[test]
    fn a_file_server_is_known_by_its_mark_in_every_version() {
        let known = home("nfs4", None, 2, Some("m"));
        assert_eq!(known.unlike(&home("nfs", None, 2, Some("m"))), None);
        let told = known.unlike(&home("ext4", Some("u"), 2, None));
        let told = format!("{told:?}");
        assert!(told.contains("ext4 of /dev/sdb1 (UUID u)"), "{told}");
    }

    #[test]
    fn of_two_hosts_that_mark_one_directory_both_know_the_same_mark() {
        let folder = tempfile::tempdir().unwrap();
        let mark = || mark(folder.path(), None).unwrap();
        let (one, two) = std::thread::scope(|scope| {
            let other = scope.spawn(mark);
            (mark(), other.join().unwrap())
        });
        assert_eq!(one, two);
        let left = fs::read_dir(folder.path().join(COMMON)).unwrap().count();
        assert_eq!(left, 1, "no draft is left");
    }
}
