//! Opens views of snapshots for those who read them: NBD clients, exports and backups.
//!
//! Snapshots of disks on pools only: those of other disks are files of their own.

use std::fs::File;
use std::sync::{Arc, Weak};

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::snapshot::SnapshotName;
use tidegate_core::layout::pool::Generation;

use super::DiskService;
use super::pooled::quiet::Quiet;
use crate::disks::copy::{RawFile, Source};
use crate::disks::views::{Described, OpenDisk, Opener, Reserved, Views};
use crate::files::{self, Location};
use crate::host;
use crate::os_error::{self, Outcome};
use crate::pools::catalog::SnapshotRow;
use crate::store::{self, Found};

/// Opens views by a disk service that may have ended.
struct SnapshotOpener(Weak<DiskService>);

impl DiskService {
    /// Offers NBD clients the snapshots of disks on pools.
    pub(crate) fn offer_views(self: &Arc<Self>) {
        let opener = SnapshotOpener(Arc::downgrade(self));
        self.live.offer(Arc::new(Views::new(Box::new(opener))));
    }

    /// Keeps views of a snapshot from being opened while it is deleted. Fails if one is open.
    pub(super) fn reserve(&self, disk: &Name, snapshot: &Name) -> Outcome<Option<Reserved>> {
        let name = SnapshotName {
            disk: disk.clone(),
            snapshot: snapshot.clone(),
        };
        let views = self.live.views();
        views.map(|views| views.reserve(&name)).transpose()
    }

    /// The views of snapshots.
    pub(super) fn views(self: &Arc<Self>) -> Arc<Views> {
        if self.live.views().is_none() {
            self.offer_views();
        }
        self.live.views().expect("they were offered just now")
    }

    /// Fails for a disk that does not know what has changed.
    pub(super) fn must_have_changes(&self, found: &Found) -> Outcome<()> {
        if found.is_pooled() {
            return Ok(());
        }
        let name = &found.name;
        let uri = self.nbd_uri(name).unwrap_or_default();
        Err(Problem::new(
            ProblemCode::Unsupported,
            format!("disk {name} is not on a pool"),
        )
        .because("only a pool knows which blocks have changed")
        .remedy(format!(
            "move it to a pool, or copy all of it over NBD: nbdcopy '{uri}' FILE"
        )))
    }

    /// The bytes of a snapshot.
    pub(super) fn snapshot_source(
        self: &Arc<Self>,
        of: &SnapshotName,
    ) -> Outcome<Box<dyn Source + Send>> {
        let found = self.find(&of.disk)?;
        if found.is_pooled() {
            return Ok(Box::new(self.views().open(of)?.reader()?));
        }
        self.snapshot_file(&found, &of.snapshot)
    }

    /// The file of a snapshot on a datastore of kind `dir`.
    fn snapshot_file(&self, found: &Found, snapshot: &Name) -> Outcome<Box<dyn Source + Send>> {
        let listed = self.snapshot(&found.name, snapshot)?;
        let path = store::snapshot_image(found, snapshot);
        let file = files::open(Location::in_disk(&path), File::options().read(true));
        let file = file.map_err(|e| os_error::io(format!("cannot open {}", path.display()), &e))?;
        let size = listed.size_bytes.unwrap_or(found.descriptor.size.0);
        Ok(Box::new(RawFile::new(file, size)))
    }

    /// The snapshots of a pool's disk in the catalog, the oldest first.
    fn generations(&self, found: &Found) -> Outcome<Vec<(Name, SnapshotRow)>> {
        let uuid = found.descriptor.uuid;
        let rows = self
            .pools
            .with(&found.datastore, |open| open.catalog.snapshots_of(uuid))?;
        let named = rows.into_iter();
        Ok(named
            .filter_map(|(name, row)| Some((name.parse::<Name>().ok()?, row)))
            .collect())
    }

    fn describe_view(&self, name: &SnapshotName) -> Outcome<(Found, Described)> {
        let found = self.find(&name.disk)?;
        self.must_have_changes(&found)?;
        let generations = self.generations(&found)?;
        let at = generations
            .iter()
            .position(|(snapshot, _)| *snapshot == name.snapshot)
            .ok_or_else(|| {
                Problem::new(
                    ProblemCode::NotFound,
                    format!("there is no snapshot {name}"),
                )
                .remedy(format!(
                    "list them: tidegate disk snapshot list {}",
                    name.disk
                ))
            })?;
        let older = generations[..at].iter();
        let described = Described {
            size: generations[at].1.size,
            generation: Generation(generations[at].1.generation),
            older: older
                .map(|(name, row)| (name.clone(), Generation(row.generation)))
                .collect(),
        };
        Ok((found, described))
    }

    /// The names of all snapshots of disks on pools. What cannot be read is left out.
    fn view_names(&self) -> Vec<SnapshotName> {
        let mut names = Vec::new();
        for pool in self.pools.names().unwrap_or_default() {
            let read = self.pools.with(&pool, |open| {
                Ok((open.catalog.disks()?, open.catalog.snapshots()?))
            });
            let Ok((disks, snapshots)) = read else {
                continue;
            };
            for (disk, snapshot) in snapshots.into_keys() {
                let disk = disks.get(&disk).and_then(|row| row.name.parse().ok());
                if let (Some(disk), Ok(snapshot)) = (disk, snapshot.parse()) {
                    names.push(SnapshotName { disk, snapshot });
                }
            }
        }
        names.sort();
        names
    }
}

impl SnapshotOpener {
    fn disk_service(&self) -> Outcome<Arc<DiskService>> {
        self.0.upgrade().ok_or_else(|| {
            Problem::new(ProblemCode::Stopping, "the daemon ends")
                .remedy("try again when it has started again")
        })
    }
}

impl Opener for SnapshotOpener {
    fn names(&self) -> Vec<SnapshotName> {
        let disk_service = self.disk_service();
        disk_service.map(|it| it.view_names()).unwrap_or_default()
    }

    fn describe(&self, name: &SnapshotName) -> Outcome<Described> {
        let (_, described) = self.disk_service()?.describe_view(name)?;
        Ok(described)
    }

    fn open(&self, name: &SnapshotName, described: &Described) -> Outcome<Box<dyn OpenDisk>> {
        let disk_service = self.disk_service()?;
        let mut found = disk_service.find(&name.disk)?;
        found.descriptor.size.0 = described.size;
        let quiet = disk_service.open_quietly(&found, Some(described.generation))?;
        Ok(Box::new(quiet))
    }
}

impl OpenDisk for Quiet {
    fn disk(&self) -> &host::Disk {
        self.disk()
    }
}
