//! The paths outside datastores that disks may use, as allowed by this host's administrator.
//!
//! A descriptor is stored on a datastore, and anyone with write access there can put any path into it. So paths named
//! in commands on this host are stored in this root's state, and no others are opened.
//!
//! # Always true
//! - A path outside its datastore is opened for a disk only if this host's administrator named it or accepted it from
//!   the descriptor.
//! - Descriptors in the root's own state may name any path: only this daemon writes there.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::Descriptor;
use tidegate_api::name::Name;

use super::{DiskService, locked};
use crate::config::plan::filters::{self, file_of};
use crate::os_error::{self, Outcome};
use crate::store::Found;

/// A disk reduced to the parts that may be used here.
pub(super) struct Trusted {
    pub(super) found: Found,
    /// Its filters that are not allowed.
    pub(super) left_out: Vec<String>,
}

impl DiskService {
    /// Allows the paths that a disk's descriptor names now, if all of them are among the accepted paths.
    pub(super) fn accept(&self, found: &Found, accepted: Option<&[PathBuf]>) -> Outcome<()> {
        let mut filters = found.descriptor.filters.iter();
        if let Some(words) = filters.find(|words| filters::has_parent(words)) {
            return Err(filters::parent_in(words, found.name.as_str()));
        }
        let mut named = paths_of(found).into_iter();
        if let Some(accepted) = accepted
            && let Some(other) = named.find(|path| !accepted.contains(path))
        {
            let (name, other) = (&found.name, other.display());
            return Err(os_error::invalid(format!("disk {name} may not use {other}"))
                .because("its descriptor names that path, which was not accepted: the descriptor may have been \
                     changed since")
                .remedy(format!(
                    "check it with `tidegate disk show {name}`; to accept it: tidegate disk attach {name} \
                     --accept-paths={other}"
                )));
        }
        self.agree(found)
    }

    /// Allows exactly the paths that a disk's descriptor names now.
    pub(super) fn agree(&self, found: &Found) -> Outcome<()> {
        let devices = found.descriptor.devices().cloned();
        self.set_agreed(found, files_of(found).chain(devices).collect())
    }

    /// Allows exactly the files that a disk's filters write now. Whether its devices are allowed does not change.
    pub(super) fn agree_to_filters(&self, found: &Found) -> Outcome<()> {
        let before = self.agreed_of(found)?;
        let devices = found.descriptor.devices();
        let devices = devices.filter(|device| before.contains(*device)).cloned();
        self.set_agreed(found, files_of(found).chain(devices).collect())
    }

    /// Removes the allowed paths of a disk.
    pub(super) fn forget_agreed(&self, found: &Found) -> Outcome<()> {
        self.set_agreed(found, BTreeSet::new())
    }

    /// Fails if a disk's image is a device that is not allowed on this host.
    pub(super) fn must_be_agreed(&self, found: &Found) -> Outcome<()> {
        if !is_strangers(found) || found.descriptor.devices().next().is_none() {
            return Ok(());
        }
        let agreed = self.agreed_of(found)?;
        let mut devices = found.descriptor.devices();
        let Some(device) = devices.find(|device| !agreed.contains(*device)) else {
            return Ok(());
        };
        let (name, device) = (&found.name, device.display());
        Err(
            os_error::invalid(format!("disk {name} may not use {device}"))
                .because("its descriptor names that device, which was not accepted on this host")
                .remedy(format!(
                    "to accept it: tidegate disk attach {name} --accept-paths={device}"
                )),
        )
    }

    /// Fails if a command adds filters that write files at relative paths or among the daemon's files.
    pub(super) fn must_say_where(
        &self,
        descriptor: &Descriptor,
        before: &[String],
        name: &Name,
    ) -> Outcome<()> {
        let words = &descriptor.filters;
        filters::must_say_where(words, before, name.as_str())?;
        let new = words.iter().filter(|words| !before.contains(words));
        for file in new.filter_map(|words| file_of(words)) {
            self.must_not_be_ours(
                &file,
                &format!("disk {name} may not write {}", file.display()),
            )?;
        }
        Ok(())
    }

    /// A disk without the filters that write files which are not allowed here, or cannot be.
    pub(super) fn trusted(&self, found: &Found) -> Outcome<Trusted> {
        let mut found = found.clone();
        let agreed = match is_strangers(&found) {
            true => Some(self.agreed_of(&found)?),
            false => None,
        };
        let is_agreed = |file: &PathBuf| agreed.as_ref().is_none_or(|agreed| agreed.contains(file));
        let may_be = |words: &String| {
            !filters::has_parent(words) && file_of(words).as_ref().is_none_or(is_agreed)
        };
        let filters = std::mem::take(&mut found.descriptor.filters);
        let (filters, left_out) = filters.into_iter().partition(may_be);
        found.descriptor.filters = filters;
        Ok(Trusted { found, left_out })
    }

    fn agreed_of(&self, found: &Found) -> Outcome<BTreeSet<PathBuf>> {
        let all = self.store.agreed()?;
        let disks = all.get(&found.datastore);
        let paths = disks.and_then(|disks| disks.get(&found.name));
        Ok(paths.cloned().unwrap_or_default())
    }

    fn set_agreed(&self, found: &Found, paths: BTreeSet<PathBuf>) -> Outcome<()> {
        if !is_strangers(found) {
            return Ok(());
        }
        let _one_at_a_time = locked(&self.agreed_file);
        let before = self.store.agreed()?;
        let mut after = before.clone();
        let disks = after.entry(found.datastore.clone()).or_default();
        disks.insert(found.name.clone(), paths);
        disks.retain(|_, paths| !paths.is_empty());
        after.retain(|_, disks| !disks.is_empty());
        if after == before {
            return Ok(());
        }
        self.store.set_agreed(after)
    }
}

impl Trusted {
    /// Logs which filters were left out, if any.
    pub(super) fn tell(&self) {
        if self.left_out.is_empty() {
            return;
        }
        let name = &self.found.name;
        let mut up = self.left_out.iter();
        if let Some(words) = up.find(|words| filters::has_parent(words)) {
            let remedy = filters::without_parent(words, name.as_str());
            tracing::warn!(
                disk = %name,
                filters = words,
                "a filter of the disk's descriptor is ignored, because its path contains `..`; {remedy}"
            );
            return;
        }
        let filters = self.left_out.join(" ");
        tracing::warn!(
            disk = %name,
            filters,
            "filters of the disk's descriptor are ignored, because they write files that were not accepted on this \
             host; to accept them: detach the disk, then tidegate disk attach {name} --accept-paths"
        );
    }
}

/// The paths outside its datastore that a disk's descriptor names, if others may write the descriptor.
pub(super) fn paths_of(found: &Found) -> Vec<PathBuf> {
    match is_strangers(found) {
        true => files_of(found)
            .chain(found.descriptor.devices().cloned())
            .collect(),
        false => Vec::new(),
    }
}

/// The files that a disk's filters write.
fn files_of(found: &Found) -> impl Iterator<Item = PathBuf> {
    let filters = found.descriptor.filters.iter();
    filters.filter_map(|words| file_of(words))
}

/// Whether programs other than this root's daemon may write the disk's descriptor.
fn is_strangers(found: &Found) -> bool {
    matches!(found.settings, DatastoreSettings::Dir { .. })
}
