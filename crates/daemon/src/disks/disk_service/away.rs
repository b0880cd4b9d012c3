//! Detached disks whose home is away, as the copies of their descriptors have them.
//!
//! # Always true
//! - A disk that can be shown by a copy is also listed, with the problem that its home is away.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::disk as api;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::DiskService;
use crate::config::plan::layout;
use crate::store::Found;

impl DiskService {
    /// Adds the disks whose homes are among these datastores, which cannot be scanned, and that have a copy elsewhere.
    pub(super) fn add_copies(&self, disks: &mut Vec<api::Disk>, away: &BTreeMap<Name, Problem>) {
        if away.is_empty() {
            return;
        }
        let listed: BTreeSet<_> = disks.iter().map(|disk| disk.name.clone()).collect();
        let mut newest: BTreeMap<Name, Found> = BTreeMap::new();
        for (on, settings) in self.store.datastores().unwrap_or_default() {
            let Ok(settings @ DatastoreSettings::Dir { .. }) = settings else {
                continue;
            };
            if away.contains_key(&on) {
                continue;
            }
            let (store, datastore) = (self.store.clone(), on.clone());
            let copies = self
                .surveys
                .at(&on, move || store.copies(&datastore, &settings));
            for copy in copies.unwrap_or_default() {
                let is_known = listed.contains(&copy.name) || self.live.get(&copy.name).is_some();
                let best = newest.get(&copy.name);
                let generation = copy.descriptor.generation;
                if !is_known && best.is_none_or(|best| best.descriptor.generation < generation) {
                    newest.insert(copy.name.clone(), copy);
                }
            }
        }
        let lost = newest.into_values().filter(|copy| {
            // Another home counts if it can be read.
            away.contains_key(&copy.datastore) && self.search(&copy.name).is_err()
        });
        disks.extend(lost.map(|copy| self.describe_weighed(&copy, None, false)));
    }
}

/// The problem of a disk that was found by a copy of its descriptor.
pub(super) fn home_is_away(found: &Found) -> Option<Problem> {
    let (name, home) = (&found.name, &found.datastore);
    if !found.is_copy {
        return None;
    }
    let redundant = layout::of(&found.descriptor).is_ok_and(|spec| spec.is_redundant());
    let instead = match redundant {
        true => format!(
            "; if it is lost for good: tidegate disk attach {name} --without 0, then tidegate disk member replace {name} 0 --on \
             DATASTORE"
        ),
        false => String::new(),
    };
    let problem = Problem::new(
        ProblemCode::Datastore,
        format!("the first datastore of disk {name}, {home}, is away"),
    );
    Some(
        problem
            .because("its descriptor there cannot be read; a copy on another datastore is shown")
            .remedy(format!(
                "mount or repair datastore {home} (see `tidegate datastore list`){instead}"
            )),
    )
}
