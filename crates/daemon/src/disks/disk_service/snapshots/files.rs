//! Snapshots of plain disks on datastores of kind `dir`: images that share their blocks with the disk's image.
//!
//! # Always true
//! - A snapshot has every write that was answered before it: while an attached disk is held, nothing is in flight, and all
//!   that was written is in its image file.
//! - A disk is rolled back only while nobody has its image open, and no flash cache has other bytes of it.

use std::sync::Arc;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::Descriptor;
use tidegate_api::descriptor::flash::FlashMode;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::snapshot::{Snapshot, SnapshotList};

use super::super::DiskService;
use super::super::change::{Held, Purpose};
use super::{TakenAt, no_snapshot};
use crate::config::plan::filters::file_of;
use crate::disks::attached::{Attached, Paused};
use crate::files::Turn;
use crate::os_error::Outcome;
use crate::store::{Found, ImageDraft, ListedSnapshot, ListedSnapshots, MOST_SNAPSHOTS, Store};
use crate::text::new_uuid;

/// A snapshot of a disk's image file.
pub(super) struct OfFiles<'a> {
    store: &'a Store,
    found: Found,
    live: Option<Arc<Attached>>,
    name: Name,
    size: u64,
    list: ListedSnapshots,
    draft: Option<ImageDraft>,
    paused: Option<Paused>,
    /// Nobody else changes the disk's snapshots, nor the image of a detached disk.
    _alone: (Turn, Option<Held>),
}

impl Drop for OfFiles<'_> {
    fn drop(&mut self) {
        self.paused = None;
        if let Some(draft) = self.draft.take() {
            draft.discard();
        }
    }
}

impl OfFiles<'_> {
    pub(super) fn found(&self) -> &Found {
        &self.found
    }

    pub(super) fn hold(&mut self) -> Outcome<()> {
        if let Some(live) = &self.live {
            self.paused = Some(live.pause()?);
        }
        Ok(())
    }

    pub(super) fn take(&mut self) -> Outcome<()> {
        match &self.draft {
            Some(draft) => draft.share(),
            None => Ok(()),
        }
    }

    pub(super) fn go(&mut self) {
        self.paused = None;
    }

    pub(super) fn record(&mut self, moment: &TakenAt) -> Outcome<Snapshot> {
        if let Some(draft) = &self.draft {
            draft.publish()?;
        }
        let mut list = self.list.clone();
        list.add(&self.name, moment.at_s, self.size, moment.set);
        if let Err(problem) = self.store.write_snapshots(&self.found, &list) {
            // The error may have come after the file was replaced. An image that is not listed is removed later.
            let stored = self.store.snapshots(&self.found);
            if !stored.is_ok_and(|list| list.get(&self.name).is_none()) {
                self.draft = None;
            }
            return Err(problem);
        }
        // It is listed: its image stays.
        self.draft = None;
        let listed = list.get(&self.name);
        let listed = listed.ok_or_else(|| no_snapshot(&self.found.name, &self.name))?;
        Ok(describe(&self.found, listed))
    }

    pub(super) fn undo(&mut self) -> Outcome<()> {
        self.store.write_snapshots(&self.found, &self.list)?;
        self.store.remove_snapshot_image(&self.found, &self.name);
        Ok(())
    }
}

impl DiskService {
    /// The snapshots of a disk.
    pub(super) fn file_snapshots(&self, found: &Found) -> Outcome<SnapshotList> {
        let (store, disk) = (self.store.clone(), found.clone());
        // A datastore that hangs must not take the thread of the command.
        self.looks.at(&found.datastore, move || {
            let list = store.snapshots(&disk)?;
            let described = list.snapshots.iter().map(|listed| describe(&disk, listed));
            Ok(SnapshotList {
                disk: disk.name.clone(),
                snapshots: described.collect(),
                latest: list.latest,
            })
        })
    }

    /// Prepares a snapshot of a disk.
    pub(super) fn begin_file_snapshot(
        &self,
        found: Found,
        turn: Turn,
        name: &Name,
    ) -> Outcome<OfFiles<'_>> {
        must_be_whole(&found)?;
        let list = self.store.snapshots(&found)?;
        must_be_new(&list, &found, name)?;
        let live = self.live.get(&found.name);
        let held = match &live {
            Some(live) => {
                self.must_be_in_place(live)?;
                None
            }
            None => Some(self.hold(&found, Purpose::Read)?),
        };
        let size = live
            .as_ref()
            .map_or(found.descriptor.size.0, |live| live.size());
        let draft = self.store.begin_snapshot(&found, &list, name)?;
        Ok(OfFiles {
            store: &self.store,
            found,
            live,
            name: name.clone(),
            size,
            list,
            draft: Some(draft),
            paused: None,
            _alone: (turn, held),
        })
    }

    /// Deletes a snapshot. The caller has the disk's turn.
    pub(super) fn delete_file_snapshot(&self, found: &Found, snapshot: &Name) -> Outcome<()> {
        let mut list = self.store.snapshots(found)?;
        self.listed(found, &list, snapshot)?;
        list.remove(snapshot);
        self.store.write_snapshots(found, &list)?;
        self.store.remove_snapshot_image(found, snapshot);
        self.store.sweep_snapshots(found, &list);
        Ok(())
    }

    /// Fails unless a disk can be rolled back, once it is detached.
    pub(super) fn must_be_rollable(&self, found: &Found, snapshot: &Name) -> Outcome<()> {
        match found.is_pooled() {
            true => self.must_have_pooled(found, snapshot)?,
            false => {
                let list = self.store.snapshots(found)?;
                self.listed(found, &list, snapshot)?;
            }
        }
        let Some(flash) = &found.descriptor.flash else {
            return Ok(());
        };
        let (name, cache) = (&found.name, &flash.cache);
        Err(Problem::new(
            ProblemCode::Unsupported,
            format!("disk {name} has flash cache {cache}, which has what the disk has now"),
        )
        .remedy(format!(
            "take the cache off first: tidegate disk set {name} --cache none"
        )))
    }

    /// Gives a detached disk the content of a snapshot. The caller has the disk's turn.
    pub(super) fn roll_files_back(&self, found: &Found, snapshot: &Name) -> Outcome<()> {
        let mut list = self.store.snapshots(found)?;
        let size = self.listed(found, &list, snapshot)?.size;
        let _held = self.hold(found, Purpose::Change)?;
        // The new image is as large as the disk says now and then: a crash before the next steps leaves a disk that can be used.
        let both = size.0.max(found.descriptor.size.0);
        self.store.restore_snapshot(found, snapshot, both)?;
        if size != found.descriptor.size {
            let mut after = found.clone();
            after.descriptor.size = size;
            self.store.write_descriptor(&after)?;
        }
        // If it is not stored, only the tree shows another place.
        list.latest = Some(snapshot.clone());
        self.store.write_snapshots(found, &list)
    }

    /// Makes a disk of a snapshot.
    pub(super) fn clone_files(&self, found: &Found, snapshot: &Name, new: &Name) -> Outcome<()> {
        let list = self.store.snapshots(found)?;
        let size = self.listed(found, &list, snapshot)?.size;
        let mut descriptor = clone_of(&found.descriptor)?;
        descriptor.size = size;
        self.store
            .clone_snapshot(found, snapshot, new, &descriptor)?;
        self.agree(
            &self
                .store
                .read_disk(&found.datastore, &found.settings, new)?,
        )
    }

    fn listed<'a>(
        &self,
        found: &Found,
        list: &'a ListedSnapshots,
        snapshot: &Name,
    ) -> Outcome<&'a ListedSnapshot> {
        list.get(snapshot)
            .ok_or_else(|| no_snapshot(&found.name, snapshot))
    }
}

/// The descriptor of a disk that is made of another one's snapshot, but for its size.
pub(super) fn clone_of(descriptor: &Descriptor) -> Outcome<Descriptor> {
    Ok(Descriptor {
        uuid: new_uuid()?,
        // Two disks with one serial number confuse a guest that has both.
        serial: String::new(),
        // Two traces in one file are none.
        filters: filters_of(descriptor),
        flash: None,
        moved_to: None,
        moved_from: None,
        generation: 0,
        ..descriptor.clone()
    })
}

/// The filters of a disk that write no files.
fn filters_of(descriptor: &Descriptor) -> Vec<String> {
    let filters = descriptor.filters.iter();
    filters
        .filter(|words| file_of(words).is_none())
        .cloned()
        .collect()
}

fn describe(found: &Found, listed: &ListedSnapshot) -> Snapshot {
    Snapshot {
        disk: found.name.clone(),
        name: listed.name.clone(),
        parent: listed.parent.clone(),
        taken_at_s: listed.taken_at,
        size_bytes: Some(listed.size.0),
        // Blocks that images share cannot be told apart cheaply.
        own_bytes: None,
        set: listed.set.map(|set| set.to_string()),
        clones: Vec::new(),
    }
}

/// Fails unless a disk can have snapshots where it is.
pub(super) fn must_have_snapshots(found: &Found) -> Outcome<()> {
    let name = &found.name;
    let unable = |why: String| {
        Problem::new(
            ProblemCode::Unsupported,
            format!("disk {name} cannot have snapshots"),
        )
        .because(why)
    };
    let other = "use a disk on a pool, or a plain disk on a datastore of kind dir on XFS or btrfs: these have snapshots";
    if found.is_pooled() {
        return Ok(());
    }
    if !matches!(found.settings, DatastoreSettings::Dir { .. }) {
        let kind = found.settings.kind();
        return Err(
            unable(format!("datastore {} is of kind {kind}", found.datastore)).remedy(other),
        );
    }
    if let Some(layout) = &found.descriptor.layout {
        return Err(unable(format!(
            "its layout is {layout}: its members are files of their own, which are not changed together"
        ))
        .remedy(other));
    }
    if let Some(device) = &found.descriptor.device {
        return Err(unable(format!(
            "its image is the block device {}, not a file that can share blocks",
            device.display()
        ))
        .remedy(other));
    }
    Ok(())
}

/// Fails if a disk's image may lack writes that were answered.
pub(super) fn must_be_whole(found: &Found) -> Outcome<()> {
    let Some(flash) = &found.descriptor.flash else {
        return Ok(());
    };
    if flash.mode != FlashMode::WriteBack && !flash.has_dirty {
        return Ok(());
    }
    let name = &found.name;
    Err(Problem::new(
        ProblemCode::Unsupported,
        format!(
            "disk {name} has flash cache {} in write-back mode",
            flash.cache
        ),
    )
    .because("some of its writes may be only in the cache, and a snapshot would lack them")
    .remedy(format!(
        "let the disk have them at once: tidegate disk set {name} --cache-mode write-through"
    )))
}

/// Fails if a disk cannot have one more snapshot of that name.
fn must_be_new(list: &ListedSnapshots, found: &Found, name: &Name) -> Outcome<()> {
    let disk = &found.name;
    if list.get(name).is_some() {
        return Err(Problem::new(
            ProblemCode::Exists,
            format!("disk {disk} has a snapshot {name}"),
        )
        .remedy(format!(
            "choose another name, or delete that one first: tidegate disk snapshot delete {disk}@{name}"
        )));
    }
    if list.snapshots.len() >= MOST_SNAPSHOTS {
        return Err(Problem::new(
            ProblemCode::Full,
            format!("disk {disk} has {MOST_SNAPSHOTS} snapshots, which is the most"),
        )
        .remedy(format!(
            "delete one that is not needed: tidegate disk snapshot list {disk}"
        )));
    }
    Ok(())
}
