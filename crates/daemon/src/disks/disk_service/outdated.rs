//! Outdated descriptors of disks with a layout.
//!
//! If a member is replaced while its datastore is away, that datastore has an old descriptor when it is back.
//!
//! # Always true
//! - Of two descriptors of one disk, the one of the higher generation counts. A copy beside a member counts like a
//!   descriptor.
//! - An outdated descriptor is listed with what to do. It is deleted only with its disk.

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::disk as api;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::{DiskService, unreadable};
use crate::os_error::Outcome;
use crate::store::Found;

impl DiskService {
    /// The disk as its newest descriptor has it, as far as its members' datastores respond.
    pub(super) fn newest(&self, found: Found) -> Found {
        if !found.descriptor.has_layout() || found.is_copy {
            return found;
        }
        let places = found.descriptor.members.iter();
        let others = places.map(|place| &place.datastore);
        let copies = others.filter(|on| **on != found.datastore);
        let copies = copies.filter_map(|on| self.copy_on(&found.name, on));
        let newer = copies.filter(|copy| is_newer(copy, &found));
        let Some(newer) = newer.max_by_key(|copy| copy.descriptor.generation) else {
            return found;
        };
        self.at_home(newer)
    }

    /// The disk of that name by a copy of its descriptor, for a disk whose home cannot be read for this reason.
    pub(super) fn find_copy(&self, name: &Name, unread: Problem) -> Outcome<Found> {
        let datastores = self.store.datastores().unwrap_or_default();
        let copies = datastores.keys().filter_map(|on| self.copy_on(name, on));
        let newest = copies.reduce(|best, copy| match is_newer(&copy, &best) {
            true => copy,
            false => best,
        });
        newest.map(|copy| self.at_home(copy)).ok_or(unread)
    }

    fn copy_on(&self, name: &Name, on: &Name) -> Option<Found> {
        let settings @ DatastoreSettings::Dir { .. } = self.store.datastore(on).ok()? else {
            return None;
        };
        let (store, datastore, of) = (self.store.clone(), on.clone(), name.clone());
        let read = move || store.read_copy(&datastore, &settings, &of);
        self.looks.at(on, read).ok().flatten()
    }

    /// The disk where its copy says that it is, or the copy if that cannot be read.
    fn at_home(&self, copy: Found) -> Found {
        let home = self.read(&copy.name, &copy.datastore, copy.settings.clone());
        match home {
            Ok(home) if !is_newer(&copy, &home) => home,
            _ => copy,
        }
    }

    /// A listed descriptor that does not count any more, with what to do.
    pub(super) fn outdated(&self, found: &Found) -> Option<api::Disk> {
        if !found.descriptor.has_layout() {
            return None;
        }
        let attached = self.live.get(&found.name).and_then(|live| {
            let descriptor = live.descriptor()?;
            let is_newer = descriptor.uuid == found.descriptor.uuid
                && found.descriptor.generation < descriptor.generation;
            is_newer.then(|| live.datastore().clone())
        });
        let home = match attached {
            Some(home) => home,
            None => {
                let newest = self.newest(found.clone());
                is_newer(&newest, found).then_some(newest.datastore)?
            }
        };
        let (name, on) = (&found.name, &found.datastore);
        let problem = Problem::new(
            ProblemCode::Exists,
            format!("what datastore {on} has of disk {name} is outdated"),
        )
        .because(format!(
            "its members were replaced while datastore {on} was away: it is on datastore {home} now"
        ))
        .remedy(format!(
            "move this directory away or remove it: {}",
            found.folder.display()
        ));
        Some(api::Disk {
            uuid: found.descriptor.uuid.to_string(),
            size_bytes: found.descriptor.size.0,
            ..unreadable(name, on, false, problem)
        })
    }

    /// Deletes what other datastores have of a disk that was deleted: outdated descriptors, copies and images. Those that do
    /// not respond are left out.
    pub(super) fn delete_outdated(&self, disk: &Found) {
        if !disk.descriptor.has_layout() {
            return;
        }
        for (on, settings) in self.store.datastores().unwrap_or_default() {
            let Ok(settings @ DatastoreSettings::Dir { .. }) = settings else {
                continue;
            };
            let (store, name, of) = (self.store.clone(), disk.name.clone(), disk.clone());
            let datastore = on.clone();
            let deleted = self.looks.at(&on, move || {
                let home = store.read_disk(&datastore, &settings, &name);
                let copy = || store.copied(&datastore, &settings, &name);
                match home.ok().or_else(copy) {
                    Some(left) if left.descriptor.uuid == of.descriptor.uuid => {
                        store.delete_disk(&left, ())
                    }
                    _ => Ok(()),
                }
            });
            if let Err(problem) = deleted {
                tracing::warn!(disk = %disk.name, datastore = %on, %problem, "what the datastore has of a deleted disk stays \
                     there");
            }
        }
    }
}

/// Whether a descriptor of a disk counts instead of another one.
fn is_newer(one: &Found, other: &Found) -> bool {
    let (one, other) = (&one.descriptor, &other.descriptor);
    one.uuid == other.uuid && one.generation > other.generation
}
