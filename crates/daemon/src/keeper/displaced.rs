//! Attached disks whose directory is not where it was: it was renamed or removed while they are served.
//!
//! Their images stay open, so guests notice nothing. The next start would not find them, so who lists disks is told.
//!
//! # Always true
//! - An attached disk is in the list, also when its directory is not there.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::disk as api;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::Keeper;
use crate::live::Live;
use crate::store::Found;
use crate::trouble::Outcome;

impl Keeper {
    /// Adds to the disks that a datastore has those that were attached before it was asked, and are not among them.
    pub(super) fn add_displaced(
        &self,
        disks: &mut Vec<api::Disk>,
        settings: &DatastoreSettings,
        attached: &[Arc<Live>],
    ) {
        for live in attached {
            let is_listed = disks.iter().any(|disk| disk.name == *live.name());
            if is_listed || !self.is_still(live) {
                continue;
            }
            let (Some((path, _)), Some(descriptor)) = (live.followed(), live.descriptor()) else {
                continue;
            };
            let folder = path.parent().unwrap_or(&path).to_owned();
            let uuid = descriptor.uuid.to_string();
            let found = Found {
                name: live.name().clone(),
                datastore: live.datastore().clone(),
                settings: settings.clone(),
                folder: folder.clone(),
                descriptor,
            };
            let mut disk = self.describe_weighed(&found, None, true);
            let mut renamed = disks.iter_mut().filter(|disk| disk.uuid == uuid);
            let now = renamed.next().map(|other| {
                let now = folder.with_file_name(other.name.as_str());
                other.problem = Some(is_of(&other.name, live.name(), &now, &folder));
                now
            });
            let gone = || self.gone(live.name(), &folder, now);
            disk.problem = disk.problem.or_else(|| Some(gone()));
            disks.push(disk);
        }
    }

    /// What is wrong with the attached disks whose directories are not there.
    pub(crate) fn displaced(&self) -> Outcome<Vec<Problem>> {
        let mut problems = Vec::new();
        for (datastore, settings) in self.store.datastores()? {
            let attached = self.attached_on(&datastore);
            let paths: Vec<PathBuf> = attached
                .iter()
                .filter_map(|live| Some(live.followed()?.0))
                .collect();
            let any_gone = move || Ok(paths.iter().any(|path| is_gone(path)));
            // One that does not answer says so itself.
            if settings.is_err() || !self.surveys.at(&datastore, any_gone).unwrap_or(false) {
                continue;
            }
            let disks = self.disks(Some(&datastore)).unwrap_or_default().into_iter();
            problems.extend(disks.filter(is_missing).filter_map(|disk| disk.problem));
        }
        Ok(problems)
    }

    /// An attached disk whose directory is not there, as the list of its datastore has it.
    pub(super) fn displaced_disk(&self, name: &Name) -> Option<api::Disk> {
        let live = self.live.get(name)?;
        let disks = self.disks(Some(live.datastore())).ok()?.into_iter();
        disks.filter(is_missing).find(|disk| disk.name == *name)
    }

    /// Fails if a disk's directory is that of another, which is attached: its image could not be locked.
    pub(super) fn must_be_itself(&self, found: &Found) -> Outcome<()> {
        let uuid = found.descriptor.uuid;
        let is_same = |live: &Arc<Live>| {
            *live.name() != found.name
                && live.descriptor().is_some_and(|held| held.uuid == uuid)
                && live.followed().is_some_and(|(path, _)| is_gone(&path))
        };
        let mut others = self.attached_on(&found.datastore).into_iter();
        match others.find(is_same) {
            None => Ok(()),
            Some(live) => {
                let before = found.folder.with_file_name(live.name().as_str());
                Err(is_of(&found.name, live.name(), &found.folder, &before))
            }
        }
    }

    /// The attached disks of a datastore.
    pub(super) fn attached_on(&self, datastore: &Name) -> Vec<Arc<Live>> {
        let mut attached = self.live.all();
        attached.retain(|live| live.datastore() == datastore);
        attached
    }

    fn is_still(&self, live: &Arc<Live>) -> bool {
        let now = self.live.get(live.name());
        now.is_some_and(|now| Arc::ptr_eq(&now, live))
    }

    fn gone(&self, name: &Name, folder: &Path, now: Option<PathBuf>) -> Problem {
        let what = format!("disk {name} is attached, but its directory is missing");
        let problem = Problem::new(ProblemCode::NotFound, what);
        let was = folder.display();
        let serves = "its image is open and is served until it is detached";
        if let Some(now) = now {
            let now = now.display();
            return problem
                .because(format!("{was} was renamed to {now}"))
                .because(serves)
                .remedy(format!("rename it back: mv {now} {was}"));
        }
        let detach = format!("tidegate disk detach {name}");
        problem
            .because(format!("{was} was removed, or moved elsewhere"))
            .because(serves)
            .remedy(match self.nbd_uri(name) {
                Some(uri) => format!(
                    "put the directory back; if it is removed, save the data first: nbdcopy '{uri}' FILE, then {detach}"
                ),
                None => format!("put the directory back, or save the data in the guest, then {detach}"),
            })
    }
}

/// Whether a disk, as it is listed, is one whose directory is not there.
fn is_missing(disk: &api::Disk) -> bool {
    let problem = disk.problem.as_ref();
    disk.attached && problem.is_some_and(|problem| problem.code == ProblemCode::NotFound)
}

fn is_gone(path: &Path) -> bool {
    let there = path.symlink_metadata();
    there.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// That a directory is that of another disk, which is attached.
fn is_of(name: &Name, attached: &Name, now: &Path, before: &Path) -> Problem {
    let (now, before) = (now.display(), before.display());
    let what = format!("disk {name} is disk {attached}, which is attached");
    Problem::new(ProblemCode::Busy, what)
        .because(format!(
            "{before} was renamed to {now} while it was attached"
        ))
        .remedy(format!(
            "rename it back: mv {now} {before}; or detach it: tidegate disk detach {attached}"
        ))
}
