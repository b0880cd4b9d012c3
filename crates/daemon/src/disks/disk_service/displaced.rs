//! Attached disks with an unreadable descriptor: their directory was renamed or removed, or their datastore is not
//! mounted.
//!
//! Their images stay open, so guests notice nothing. The next start would not find them, so the list of disks reports
//! them.
//!
//! # Always true
//! - An attached disk is listed and can be shown, even if its directory or its datastore is missing.
//! - If a disk's image may be removed, the advice to copy it comes before the advice to detach the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::disk as api;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::leases;
use super::{DiskService, locked, unreadable};
use crate::disks::attached::Attached;
use crate::os_error::Outcome;
use crate::store::Found;

impl DiskService {
    /// Adds the disks that were attached before the datastore was scanned, and that the scan did not find.
    pub(super) fn add_displaced(
        &self,
        disks: &mut Vec<api::Disk>,
        settings: &DatastoreSettings,
        attached: &[Arc<Attached>],
    ) {
        for live in attached {
            let is_listed = disks.iter().any(|disk| disk.name == *live.name());
            if is_listed || !self.is_still(live) {
                continue;
            }
            let Some(found) = found_of(live, Some(settings)) else {
                continue;
            };
            let (folder, uuid) = (&found.folder, found.descriptor.uuid.to_string());
            let mut disk = self.describe_weighed(&found, None, true);
            let mut renamed = disks.iter_mut().filter(|disk| disk.uuid == uuid);
            let now = renamed.next().map(|other| {
                let now = folder.with_file_name(other.name.as_str());
                other.problem = Some(is_of(&other.name, live.name(), &now, folder));
                now
            });
            let gone = self.gone(live.name(), folder, now);
            disk.problem = Some(self.worst(live, gone));
            disks.push(disk);
        }
    }

    /// Failures and faults of attached disks: one problem each, the worst.
    pub(crate) fn harms(&self) -> Outcome<Vec<Problem>> {
        let displaced = self.displaced_disks()?;
        let others = self.live.all().into_iter();
        let others = others.filter(|live| displaced.iter().all(|disk| disk.name != *live.name()));
        let mut problems: Vec<_> = others.filter_map(|live| live.harmed()).collect();
        problems.extend(displaced.into_iter().filter_map(|disk| disk.problem));
        Ok(problems)
    }

    /// The attached disks whose directories are missing.
    pub(super) fn displaced_disks(&self) -> Outcome<Vec<api::Disk>> {
        let mut displaced = Vec::new();
        for (datastore, settings) in self.store.datastores()? {
            let attached = self.attached_on(&datastore);
            let paths: Vec<PathBuf> = attached
                .iter()
                .filter_map(|live| Some(live.followed()?.0))
                .collect();
            let any_gone = move || Ok(paths.iter().any(|path| is_gone(path)));
            // A datastore that does not respond has its own problem.
            if settings.is_err() || !self.surveys.at(&datastore, any_gone).unwrap_or(false) {
                continue;
            }
            let disks = self.disks(Some(&datastore)).unwrap_or_default().into_iter();
            displaced.extend(disks.filter(is_missing));
        }
        Ok(displaced)
    }

    /// The description of an attached disk that cannot be read for this reason.
    pub(super) fn held_disk(&self, name: &Name, problem: &Problem) -> Option<api::Disk> {
        let live = self.live.get(name)?;
        // The list of its datastore shows where its directory is now.
        if problem.code == ProblemCode::NotFound
            && let Ok(disks) = self.disks(Some(live.datastore()))
            && let Some(disk) = disks.into_iter().find(|disk| disk.name == *name)
        {
            return Some(disk);
        }
        self.held(&live, problem)
    }

    /// The known disks of a datastore that cannot be scanned for this reason: attached disks, and disks that wait to be
    /// attached.
    pub(super) fn held_on(
        &self,
        datastore: &Name,
        attached: &[Arc<Attached>],
        wanted: &BTreeMap<Name, Name>,
        problem: &Problem,
    ) -> Vec<api::Disk> {
        let held = attached.iter().filter_map(|live| self.held(live, problem));
        let mut disks: Vec<_> = held.collect();
        for (name, on) in wanted {
            if on != datastore || self.live.get(name).is_some() {
                continue;
            }
            let trouble = locked(&self.troubles).get(name).cloned();
            let problem = trouble.unwrap_or_else(|| problem.clone());
            disks.push(unreadable(name, datastore, true, problem));
        }
        disks
    }

    /// An attached disk as the daemon has it in memory, because its descriptor cannot be read for this reason.
    pub(super) fn held(&self, live: &Arc<Attached>, problem: &Problem) -> Option<api::Disk> {
        if !self.is_still(live) {
            return None;
        }
        let settings = self.store.datastore(live.datastore()).ok();
        let found = found_of(live, settings.as_ref())?;
        let mut disk = self.describe_weighed(&found, None, true);
        disk.problem = Some(self.worst(live, out_of_reach(live.name(), problem)));
        Some(disk)
    }

    /// The worst problem of a disk whose descriptor is missing. A missing image adds nothing to that.
    fn worst(&self, live: &Attached, unread: Problem) -> Problem {
        leases::lost(live)
            .or_else(|| live.harmed_image())
            .or_else(|| self.claims.overdue(live.name()))
            .unwrap_or(unread)
    }

    /// Fails if a disk's directory belongs to another disk that is attached: its image could not be locked.
    pub(super) fn must_be_itself(&self, found: &Found) -> Outcome<()> {
        let uuid = found.descriptor.uuid;
        let is_same = |live: &Arc<Attached>| {
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

    /// The attached disks that have an image on a datastore: also those that have only a later member there.
    pub(super) fn using(&self, datastore: &Name) -> Vec<Arc<Attached>> {
        let mut live = self.live.all();
        live.retain(|live| live.datastores().contains(datastore));
        live
    }

    /// The attached disks of a datastore.
    pub(super) fn attached_on(&self, datastore: &Name) -> Vec<Arc<Attached>> {
        let mut attached = self.live.all();
        attached.retain(|live| live.datastore() == datastore);
        attached
    }

    pub(super) fn is_still(&self, live: &Arc<Attached>) -> bool {
        let now = self.live.get(live.name());
        now.is_some_and(|now| Arc::ptr_eq(&now, live))
    }

    fn gone(&self, name: &Name, folder: &Path, now: Option<PathBuf>) -> Problem {
        let what = format!("disk {name} is attached, but its directory is missing");
        let problem = Problem::new(ProblemCode::NotFound, what);
        let was = folder.display();
        let serves = "its open image is served until the disk is detached";
        if let Some(now) = now {
            let now = now.display();
            return problem
                .because(format!("{was} was renamed to {now}"))
                .because(serves)
                .remedy(format!("rename it back: mv {now} {was}"));
        }
        problem
            .because(format!("{was} was removed or moved"))
            .because(serves)
            .remedy(format!("restore the directory; {}", self.save_first(name)))
    }

    /// The remedy for an attached disk whose directory may be removed.
    pub(super) fn save_first(&self, name: &Name) -> String {
        let detach = format!("tidegate disk detach {name}");
        match self.nbd_uri(name) {
            Some(uri) => {
                format!(
                    "if it is removed, save the data first: nbdcopy '{uri}' FILE, then {detach}"
                )
            }
            None => format!("if it is removed, save the data in the guest first, then {detach}"),
        }
    }
}

/// An attached disk as the daemon has it in memory, if it has a descriptor.
fn found_of(live: &Attached, settings: Option<&DatastoreSettings>) -> Option<Found> {
    // A disk on a pool has no directory.
    let path = live.followed().map(|(path, _)| path);
    let folder = path.and_then(|path| Some(path.parent()?.to_owned()));
    let folder = folder.unwrap_or_default();
    // If the datastore's record cannot be read, its path is at least the parent of the disk's directory.
    let settings = settings.cloned().unwrap_or_else(|| DatastoreSettings::Dir {
        path: folder.parent().unwrap_or(&folder).to_owned(),
        io: Default::default(),
    });
    Some(Found {
        name: live.name().clone(),
        datastore: live.datastore().clone(),
        settings,
        folder,
        descriptor: live.descriptor()?,
        is_copy: false,
    })
}

/// The problem that an attached disk's descriptor cannot be read for this reason.
fn out_of_reach(name: &Name, problem: &Problem) -> Problem {
    // A datastore's problem is part of the same sentence: `disk list` recognises an unmounted datastore by it.
    let is_datastores = problem.what.starts_with("datastore ");
    let but = match is_datastores {
        true => problem.what.as_str(),
        false => "its descriptor cannot be read",
    };
    let mut told = Problem::new(problem.code, format!("disk {name} is attached, but {but}"));
    if !is_datastores {
        told = told.because(problem.what.as_str());
    }
    for why in &problem.why {
        told = told.because(why.as_str());
    }
    let until = "do not detach the disk before that, because it could not be attached again";
    let remedy = problem.remedy.as_ref();
    told.because("its open image is served until the disk is detached")
        .remedy(remedy.map_or_else(
            || format!("correct that; {until}"),
            |remedy| format!("{remedy}; {until}"),
        ))
}

/// Whether a listed disk is one whose directory is missing.
fn is_missing(disk: &api::Disk) -> bool {
    let problem = disk.problem.as_ref();
    disk.attached && problem.is_some_and(|problem| problem.code == ProblemCode::NotFound)
}

fn is_gone(path: &Path) -> bool {
    let there = path.symlink_metadata();
    there.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// The problem that a directory belongs to another disk that is attached.
fn is_of(name: &Name, attached: &Name, now: &Path, before: &Path) -> Problem {
    let (now, before) = (now.display(), before.display());
    let what = format!("disk {name} is the attached disk {attached}");
    Problem::new(ProblemCode::Busy, what)
        .because(format!(
            "{before} was renamed to {now} while it was attached"
        ))
        .remedy(format!(
            "rename it back: mv {now} {before}; or detach it: tidegate disk detach {attached}"
        ))
}
