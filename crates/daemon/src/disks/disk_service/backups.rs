//! Commands on backups: made of a snapshot, listed, compared with their checksums, and restored. All but the list are jobs.
//!
//! `backups` has the files; this takes the snapshots, says what changed, and deletes the snapshots that no increment needs.
//!
//! # Always true
//! - The snapshot of the newest backup is not deleted: the next increment needs it.
//! - An increment is refused if the snapshot of its base is gone, or another one has its name.
//! - A backup holds no claim of its disk: commands on the disk go on meanwhile.
//!
//! # Picture
//! ```text
//! note the snapshot ─ take it ─ open a view ─ write the file ─ manifest ─ delete snapshots that are spent
//! ```

use std::fs::Metadata;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_api::backup::{
    Backup, BackupContent, BackupCreate, BackupList, BackupRestore, BackupVerify, RestoreDisk,
    RestoreFile, RestoreTo,
};
use tidegate_api::job::{DiskExport, Job};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::snapshot::{SnapshotCreate, SnapshotName};
use tidegate_core::layout::pool::Generation;

use super::DiskService;
use super::transfer::{must_be_bounded, relative};
use crate::disks::backups::folder::BackupFolder;
use crate::disks::backups::image::{self, Content};
use crate::disks::backups::manifest::Entry;
use crate::disks::copy::Progress;
use crate::disks::copy::device;
use crate::disks::export;
use crate::disks::views::View;
use crate::os_error::{self, Outcome};
use crate::text::{hex, new_uuid};

/// A backup that is being made.
struct Making {
    disk: Name,
    folder: BackupFolder,
    /// The snapshot, if it is not to be taken.
    snapshot: Option<Name>,
    /// The backup that it is based on. None: it is full.
    base: Option<Entry>,
}

impl DiskService {
    /// Backs a disk up to a directory.
    pub(crate) fn back_up(self: &Arc<Self>, name: &Name, order: BackupCreate) -> Outcome<Job> {
        let what = format!("back up disk {name} to {}", order.dir.display());
        let cannot = format!("cannot {what}");
        must_be_absolute(&order.dir, &what)?;
        let found = self.find(name)?;
        self.must_have_changes(&found)
            .map_err(|e| e.within(&cannot))?;
        if let Some(snapshot) = &order.snapshot {
            let of = SnapshotName {
                disk: name.clone(),
                snapshot: snapshot.clone(),
            };
            let described = self.views().describe(&of);
            described.map_err(|e| e.within(&cannot))?;
        }
        let folder = BackupFolder::begin(&order.dir, name, found.descriptor.uuid)
            .map_err(|e| e.within(&cannot))?;
        let base = self
            .base_of(name, &folder, &order)
            .map_err(|e| e.within(&cannot))?;
        let making = Making {
            disk: name.clone(),
            folder,
            snapshot: order.snapshot,
            base,
        };
        let draft = export::draft(&order.dir.join("backup")).map_err(|e| e.within(&cannot))?;
        let noted = Some(draft.clone());
        let disk_service = Arc::clone(self);
        Ok(self
            .jobs
            .start_writing(what, name.clone(), noted, move |progress| {
                disk_service.make_backup(making, &draft, progress)
            }))
    }

    /// The backup on which the next one is based; none for a full one.
    fn base_of(
        self: &Arc<Self>,
        disk: &Name,
        folder: &BackupFolder,
        order: &BackupCreate,
    ) -> Outcome<Option<Entry>> {
        let manifest = &folder.manifest;
        let base = match (&order.since, order.content) {
            (Some(_), BackupContent::Full) => {
                return Err(os_error::invalid("a full backup is based on none")
                    .remedy("name a snapshot with `since`, or ask for a full backup"));
            }
            (Some(since), BackupContent::Suitable) => Some(manifest.find(Some(since.as_str()))?),
            (None, BackupContent::Full) => None,
            (None, BackupContent::Suitable) => manifest.last(),
        };
        let Some(base) = base else {
            return Ok(None);
        };
        let snapshot = &base.snapshot;
        let gone = |why: &str| {
            Problem::new(
                ProblemCode::NotFound,
                format!("what changed since {disk}@{snapshot} is not known any more"),
            )
            .because(why)
            .remedy("take a full backup: add --full; or name an older one whose snapshot exists: --since SNAPSHOT")
        };
        let views = self.views();
        let name = SnapshotName {
            disk: disk.clone(),
            snapshot: snapshot.clone(),
        };
        match views.describe(&name) {
            Ok(described) if described.generation == Generation(base.generation) => {
                Ok(Some(base.clone()))
            }
            Ok(_) => Err(gone(
                "the snapshot was deleted, and another one has its name",
            )),
            Err(problem) if problem.code == ProblemCode::NotFound => {
                Err(gone("the snapshot was deleted"))
            }
            Err(problem) => Err(problem),
        }
    }

    /// The work of a backup.
    fn make_backup(
        self: &Arc<Self>,
        mut making: Making,
        draft: &Path,
        progress: &Progress,
    ) -> Outcome<()> {
        self.delete_interrupted(&mut making)?;
        let is_own = making.snapshot.is_none();
        let snapshot = match making.snapshot.take() {
            Some(snapshot) => snapshot,
            None => self.take_own(&mut making)?,
        };
        let written = self.write_backup(&mut making, &snapshot, is_own, draft, progress);
        if let Err(problem) = written {
            // The snapshot is of no use without its backup. If it stays, the next backup deletes it.
            if is_own && let Err(second) = self.delete_interrupted(&mut making) {
                return Err(problem.because(second));
            }
            return Err(problem);
        }
        self.delete_spent(&mut making);
        Ok(())
    }

    /// Deletes the snapshot that an interrupted backup has left.
    fn delete_interrupted(&self, making: &mut Making) -> Outcome<()> {
        let Some(snapshot) = making.folder.manifest.pending.clone() else {
            return Ok(());
        };
        let is_kept = |entry: &Entry| entry.snapshot == snapshot;
        if !making.folder.manifest.backups.iter().any(is_kept) {
            self.delete_if_there(&making.disk, &snapshot)?;
        }
        making.folder.will_take(None)
    }

    fn delete_if_there(&self, disk: &Name, snapshot: &Name) -> Outcome<()> {
        match self.delete_snapshot(disk, snapshot) {
            Err(problem) if problem.code == ProblemCode::NotFound => Ok(()),
            deleted => deleted,
        }
    }

    /// Takes a snapshot for the backup, after the directory says so.
    fn take_own(&self, making: &mut Making) -> Outcome<Name> {
        let snapshot = own_name()?;
        making.folder.will_take(Some(snapshot.clone()))?;
        let order = SnapshotCreate {
            name: snapshot.clone(),
            with: Vec::new(),
        };
        self.take_snapshots(&making.disk, &order)?;
        Ok(snapshot)
    }

    fn write_backup(
        self: &Arc<Self>,
        making: &mut Making,
        snapshot: &Name,
        is_own: bool,
        draft: &Path,
        progress: &Progress,
    ) -> Outcome<()> {
        let name = SnapshotName {
            disk: making.disk.clone(),
            snapshot: snapshot.clone(),
        };
        let view: Arc<View> = self.views().open(&name)?;
        let described = view.described().clone();
        let base_file = making.base.as_ref().map(Entry::file);
        let ranges = match &making.base {
            None => None,
            Some(base) => Some(view.changed(Generation(base.generation))?),
        };
        let content = match (&ranges, &base_file) {
            (Some(ranges), Some(base)) => Content::Changed { ranges, base },
            _ => Content::Full,
        };
        let reader = view.reader()?;
        let written = image::write(&reader, content, draft, progress)?;
        let entry = Entry {
            number: making.folder.manifest.next_number(),
            snapshot: snapshot.clone(),
            generation: described.generation.0,
            is_own,
            base: making.base.as_ref().map(|base| base.number),
            size_bytes: described.size,
            file_bytes: written.file_bytes,
            covered_bytes: written.covered_bytes,
            sha256: written.sha256,
            at: now_s(),
        };
        making.folder.add(draft, entry)
    }

    /// Deletes the snapshots of backups that no increment needs. One that cannot be deleted is tried again next time.
    fn delete_spent(&self, making: &mut Making) {
        let spent = making.folder.manifest.spent();
        let spent: Vec<(u32, Name)> = spent
            .iter()
            .map(|entry| (entry.number, entry.snapshot.clone()))
            .collect();
        for (number, snapshot) in spent {
            if let Err(problem) = self.delete_if_there(&making.disk, &snapshot) {
                tracing::warn!(disk = %making.disk, %snapshot, %problem, "the snapshot of an older backup was not deleted");
                continue;
            }
            making.folder.manifest.no_longer_own(number);
        }
        if let Err(problem) = making.folder.store() {
            tracing::warn!(disk = %making.disk, %problem, "deleted snapshots are not noted in the directory");
        }
    }

    /// The backups of a directory.
    pub(crate) fn backups(&self, dir: &Path) -> Outcome<BackupList> {
        must_be_absolute(dir, &format!("list the backups in {}", dir.display()))?;
        let folder = BackupFolder::look(dir)?;
        let backup = |entry: &Entry| Backup {
            number: entry.number,
            snapshot: entry.snapshot.clone(),
            base: entry.base,
            size_bytes: entry.size_bytes,
            covered_bytes: entry.covered_bytes,
            file: entry.file(),
            file_bytes: entry.file_bytes,
            sha256: entry.sha256.clone(),
            made_at_s: entry.at,
        };
        Ok(BackupList {
            dir: dir.to_owned(),
            disk: folder.disk.clone(),
            uuid: folder.uuid.to_string(),
            backups: folder.backups.iter().map(backup).collect(),
            interrupted: folder.pending,
        })
    }

    /// Compares the files of backups with their checksums.
    pub(crate) fn verify_backups(self: &Arc<Self>, order: BackupVerify) -> Outcome<Job> {
        let what = format!("check the backups in {}", order.dir.display());
        must_be_absolute(&order.dir, &what)?;
        let folder = BackupFolder::open(&order.dir)?;
        let disk = folder.manifest.disk.clone();
        if order.at.is_some() {
            folder.manifest.find(order.at.as_deref())?;
        }
        Ok(self.jobs.start(what, disk, move |progress| {
            let manifest = &folder.manifest;
            let wanted: Vec<&Entry> = match &order.at {
                None => manifest.backups.iter().collect(),
                Some(at) => manifest.chain(manifest.find(Some(at))?),
            };
            folder.verify(&wanted, progress)?;
            for entry in &wanted {
                folder.image(&manifest.chain(entry))?;
            }
            Ok(())
        }))
    }

    /// Restores a backup to a file or a new disk.
    pub(crate) fn restore(self: &Arc<Self>, order: BackupRestore) -> Outcome<Job> {
        must_be_absolute(&order.dir, "restore a backup")?;
        let folder = BackupFolder::open(&order.dir)?;
        let entry = folder.manifest.find(order.at.as_deref())?.clone();
        match order.to {
            RestoreTo::File(to) => self.restore_file(folder, entry, to),
            RestoreTo::Disk(to) => self.restore_disk(folder, entry, to),
        }
    }

    fn restore_file(
        self: &Arc<Self>,
        folder: BackupFolder,
        entry: Entry,
        to: RestoreFile,
    ) -> Outcome<Job> {
        let dir = folder.path().display();
        let what = format!("restore {} of {dir} to {}", entry.file(), to.file.display());
        let cannot = format!("cannot {what}");
        must_be_absolute(&to.file, &what)?;
        let order = DiskExport {
            file: to.file.clone(),
            format: to.format,
            existing: to.existing,
            snapshot: None,
        };
        let format = export::format_of(&order, &cannot)?;
        self.must_be_no_image(&to.file)
            .and_then(|()| export::must_be_free(&to.file, to.existing))
            .map_err(|e| e.within(&cannot))?;
        let draft = match device::is_there(&to.file) {
            true => None,
            false => Some(export::draft(&to.file).map_err(|e| e.within(&cannot))?),
        };
        let (noted, disk) = (draft.clone(), folder.manifest.disk.clone());
        let disk_service = Arc::clone(self);
        Ok(self.jobs.start_writing(what, disk, noted, move |progress| {
            let image = checked(&folder, &entry, progress)?;
            if let Some(draft) = draft {
                return export::write(&*image, &draft, &to.file, format, to.existing, progress);
            }
            let admit = |there: &Metadata| disk_service.must_not_be_attached(there, &cannot);
            export::write_device(&*image, &to.file, to.existing, admit, progress)
        }))
    }

    fn restore_disk(
        self: &Arc<Self>,
        folder: BackupFolder,
        entry: Entry,
        to: RestoreDisk,
    ) -> Outcome<Job> {
        let (name, dir) = (to.name, folder.path().display());
        let what = format!("restore {} of {dir} as disk {name}", entry.file());
        let cannot = format!("cannot {what}");
        let claim = self.claim(&name, cannot.clone())?;
        self.must_be_new(&name, &cannot)?;
        let target = self.begin_restored(to.datastore.as_ref(), entry.size_bytes);
        let target = target.map_err(|e| e.within(&cannot))?;
        let disk_service = Arc::clone(self);
        let remedy = format!(
            "if disk {name} is there, it is incomplete: delete it (tidegate disk delete {name}), and restore again"
        );
        Ok(self.jobs.start_once(what, name, remedy, move |progress| {
            let image = checked(&folder, &entry, progress)?;
            disk_service.fill_restored(&claim, &target, &*image, progress)
        }))
    }
}

/// The image of a backup, whose files have the right checksums.
fn checked(
    folder: &BackupFolder,
    entry: &Entry,
    progress: &Progress,
) -> Outcome<crate::disks::formats::Image> {
    let chain = folder.manifest.chain(entry);
    folder.verify(&chain, progress)?;
    folder.image(&chain)
}

fn must_be_absolute(path: &Path, what: &str) -> Outcome<()> {
    must_be_bounded(path, what)?;
    match path.is_absolute() {
        true => Ok(()),
        false => Err(relative(what)),
    }
}

/// A name for a snapshot that a backup takes: the time, and some letters, since another directory may have a backup of the
/// same second.
fn own_name() -> Outcome<Name> {
    let uuid = new_uuid()?;
    let name = format!("backup-{}-{}", now_s(), hex(&uuid.0[..3]));
    name.parse().map_err(|e| os_error::failed(&e))
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
