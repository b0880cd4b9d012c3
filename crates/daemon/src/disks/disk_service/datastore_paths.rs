//! Checks a datastore's directory: it must not contain, or be inside, a disk, another datastore or the daemon's state.
//!
//! Deleting a disk removes its directory. A datastore inside it would lose all of its disks.
//!
//! # Always true
//! - Paths are compared as the kernel resolves them: a link does not hide where a directory is.

use std::path::{Path, PathBuf};

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::DiskService;
use crate::os_error::{self, Outcome};
use crate::store::is_disks_folder;

impl DiskService {
    /// Fails if a new datastore's directory contains, or is inside, a disk, another datastore or the daemon's state.
    pub(super) fn must_lie_apart(&self, name: &Name, settings: &DatastoreSettings) -> Outcome<()> {
        let DatastoreSettings::Dir { path, .. } = settings else {
            return Ok(());
        };
        let what = || format!("cannot add datastore {name}");
        let new = path
            .canonicalize()
            .map_err(|e| os_error::io(what(), &e).because(format!("{}", path.display())))?;
        self.must_be_no_state(&new)
            .and_then(|()| must_be_in_no_disk(&new))
            .and_then(|()| self.must_be_in_no_datastore(name, &new))
            .map_err(|problem| problem.within(what()))
    }

    /// The same check for a directory in which hosts coordinate. That one may be inside a datastore.
    pub(super) fn must_not_be_deleted_with_a_disk(&self, directory: &Path) -> Outcome<()> {
        let new = directory
            .canonicalize()
            .map_err(|e| os_error::io(format!("{} cannot be used", directory.display()), &e))?;
        self.must_be_no_state(&new)?;
        must_be_in_no_disk(&new)
    }

    fn must_be_no_state(&self, new: &Path) -> Outcome<()> {
        let state = self.root.state();
        let state = state.canonicalize().unwrap_or(state);
        match relation(new, &state) {
            None => Ok(()),
            Some(relation) => Err(refused(
                new,
                relation,
                &format!("the daemon's state directory, {}", state.display()),
            )),
        }
    }

    fn must_be_in_no_datastore(&self, name: &Name, new: &Path) -> Outcome<()> {
        for (other, settings) in self.store.datastores()? {
            let Ok(DatastoreSettings::Dir { path, .. }) = settings else {
                continue;
            };
            if other == *name {
                continue;
            }
            let at = path.clone();
            let look = move || {
                at.canonicalize()
                    .map_err(|e| os_error::io("it cannot be read", &e))
            };
            // For an unreachable datastore, only its path is known.
            let there: PathBuf = self.surveys.at(&other, look).unwrap_or(path);
            if let Some(relation) = relation(new, &there) {
                let of = format!("datastore {other}, {}", there.display());
                return Err(refused(new, relation, &of));
            }
        }
        Ok(())
    }
}

/// Fails if a directory belongs to a disk, or is inside one that does.
fn must_be_in_no_disk(new: &Path) -> Outcome<()> {
    match new.ancestors().find(|folder| is_disks_folder(folder)) {
        None => Ok(()),
        Some(disk) => {
            let relation = relation(new, disk).unwrap_or("lies in");
            let of = format!(
                "a disk's directory, {}: it would be deleted with that disk",
                disk.display()
            );
            Err(refused(new, relation, &of))
        }
    }
}

/// The relation of two directories if one contains the other.
fn relation(new: &Path, other: &Path) -> Option<&'static str> {
    match (new.starts_with(other), other.starts_with(new)) {
        (true, true) => Some("is"),
        (true, false) => Some("lies in"),
        (false, true) => Some("contains"),
        (false, false) => None,
    }
}

fn refused(new: &Path, relation: &str, other: &str) -> Problem {
    Problem::new(
        ProblemCode::Invalid,
        format!("{} {relation} {other}", new.display()),
    )
    .remedy("use a separate directory, such as a new one beside it")
}
