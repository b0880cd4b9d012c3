//! Snapshots and clones in a pool's catalog: names of generations, and which disk is made of which.
//!
//! # Always true
//! - a snapshot that a clone was made of stays, and so does its disk
//! - what one command changes, of several disks too, is one transaction
//!
//! # Picture
//! ```text
//!   snapshots  disk, name -> generation, set, moment, size, parent
//!   latest     disk -> the snapshot that it had last, or was rolled back to
//!   clones     disk -> the disk and generation that it was made of
//! ```

use std::collections::BTreeMap;

use redb::{ReadableDatabase, ReadableTable, Table, TableDefinition, TableError, WriteTransaction};
use tidegate_api::descriptor::Uuid;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::pool::Generation;

use super::{
    Catalog, DISKS, Db, DiskRow, SNAPSHOTS, SnapshotRow, damaged, failed, no_grant, tier_to,
};
use crate::os_error::Outcome;

/// The name of a snapshot.
const LATEST: TableDefinition<u128, &str> = TableDefinition::new("latest");
/// The parent, and its generation.
const CLONES: TableDefinition<u128, (u128, u32)> = TableDefinition::new("clones");

/// What a disk was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) parent: Uuid,
    pub(crate) generation: Generation,
}

/// A snapshot that is to be added.
pub(crate) struct NewSnapshot<'a> {
    pub(crate) disk: Uuid,
    pub(crate) name: &'a str,
    pub(crate) row: SnapshotRow,
}

impl Catalog {
    /// The snapshots of a disk: the oldest first, a parent before its children.
    pub(crate) fn snapshots_of(&self, disk: Uuid) -> Outcome<Vec<(String, SnapshotRow)>> {
        let uuid = u128::from_be_bytes(disk.0);
        let read = || -> Db<_> {
            let table = self.database.begin_read()?.open_table(SNAPSHOTS)?;
            let mut rows = Vec::new();
            for row in table.range((uuid, "")..)? {
                let (key, row) = row?;
                let (owner, name) = key.value();
                if owner != uuid {
                    break;
                }
                rows.push((name.to_owned(), SnapshotRow::of(row.value())));
            }
            Ok(rows)
        };
        let mut rows = read().map_err(|e| failed(&e))?;
        // A later generation has a higher number, whatever the clock said.
        rows.sort_by_key(|(_, row)| row.generation);
        Ok(rows)
    }

    /// The snapshot that a disk had last, or was rolled back to.
    pub(crate) fn latest_of(&self, disk: Uuid) -> Outcome<Option<String>> {
        let read = || -> Db<_> {
            let table = match self.database.begin_read()?.open_table(LATEST) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                table => table?,
            };
            let latest = table.get(u128::from_be_bytes(disk.0))?;
            Ok(latest.map(|name| name.value().to_owned()))
        };
        read().map_err(|e| failed(&e))
    }

    /// What each clone of the pool was made of.
    pub(crate) fn clones(&self) -> Outcome<BTreeMap<u128, Origin>> {
        let read = || -> Db<_> {
            let table = match self.database.begin_read()?.open_table(CLONES) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(BTreeMap::new()),
                table => table?,
            };
            let mut rows = BTreeMap::new();
            for row in table.iter()? {
                let (clone, origin) = row?;
                let (parent, generation) = origin.value();
                let origin = Origin {
                    parent: Uuid(parent.to_be_bytes()),
                    generation: Generation(generation),
                };
                rows.insert(clone.value(), origin);
            }
            Ok(rows)
        };
        read().map_err(|e| failed(&e))
    }

    /// What a disk was made of. None: it is no clone.
    pub(crate) fn origin_of(&self, disk: Uuid) -> Outcome<Option<Origin>> {
        let read = || -> Db<_> {
            let table = match self.database.begin_read()?.open_table(CLONES) {
                Err(TableError::TableDoesNotExist(_)) => return Ok(None),
                table => table?,
            };
            let origin = table.get(u128::from_be_bytes(disk.0))?;
            Ok(origin.map(|origin| {
                let (parent, generation) = origin.value();
                Origin {
                    parent: Uuid(parent.to_be_bytes()),
                    generation: Generation(generation),
                }
            }))
        };
        read().map_err(|e| failed(&e))
    }

    /// The names of the disks that were made of a disk, or of one of its generations.
    pub(crate) fn clones_of(
        &self,
        disk: Uuid,
        generation: Option<Generation>,
    ) -> Outcome<Vec<String>> {
        let is_clone = |origin: &Origin| {
            origin.parent == disk && generation.is_none_or(|it| it == origin.generation)
        };
        let clones = self.clones()?.into_iter();
        let clones: Vec<u128> = clones
            .filter(|(_, origin)| is_clone(origin))
            .map(|(clone, _)| clone)
            .collect();
        if clones.is_empty() {
            return Ok(Vec::new());
        }
        let disks = self.disks()?;
        let name = |clone: &u128| disks.get(clone).map(|row| row.name.clone());
        let mut names: Vec<_> = clones.iter().filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    /// Adds snapshots, all of them or none. Each is of what its disk has now.
    pub(crate) fn add_snapshots(&mut self, all: &[NewSnapshot<'_>]) -> Outcome<()> {
        self.change(|tables| {
            let mut latest = tables.open_table(LATEST)?;
            let mut snapshots = tables.open_table(SNAPSHOTS)?;
            for new in all {
                let uuid = u128::from_be_bytes(new.disk.0);
                let parent = latest.insert(uuid, new.name)?;
                let parent = parent.map_or(String::new(), |parent| parent.value().to_owned());
                let row = &new.row;
                let set = u128::from_be_bytes(row.set.0);
                let value = (row.generation, set, row.at, row.size, &*parent);
                snapshots.insert((uuid, new.name), value)?;
            }
            Ok(())
        })
    }

    /// Removes a snapshot's name. Its children get its parent.
    pub(crate) fn remove_snapshot(&mut self, disk: Uuid, name: &str) -> Outcome<SnapshotRow> {
        let rows = self.snapshots_of(disk)?;
        let gone = rows.iter().find(|(other, _)| other == name);
        let gone = gone.map(|(_, row)| row.clone()).ok_or_else(|| {
            Problem::new(
                ProblemCode::NotFound,
                format!("there is no snapshot {name}"),
            )
            .remedy("list them: tidegate disk snapshot list DISK")
        })?;
        let clones = self.clones_of(disk, Some(Generation(gone.generation)))?;
        must_have_no_clones(&clones)?;
        let uuid = u128::from_be_bytes(disk.0);
        self.change(|tables| {
            let mut snapshots = tables.open_table(SNAPSHOTS)?;
            snapshots.remove((uuid, name))?;
            for (child, row) in &rows {
                if row.parent.as_deref() == Some(name) {
                    let parent = gone.parent.as_deref().unwrap_or("");
                    let set = u128::from_be_bytes(row.set.0);
                    let value = (row.generation, set, row.at, row.size, parent);
                    snapshots.insert((uuid, child.as_str()), value)?;
                }
            }
            let mut latest = tables.open_table(LATEST)?;
            let was_latest = latest.get(uuid)?.is_some_and(|it| it.value() == name);
            if was_latest {
                put_latest(&mut latest, uuid, gone.parent.as_deref())?;
            }
            Ok(())
        })?;
        Ok(gone)
    }

    /// A disk has what this snapshot has.
    pub(crate) fn set_latest(&mut self, disk: Uuid, name: &str) -> Outcome<()> {
        let uuid = u128::from_be_bytes(disk.0);
        self.change(|tables| put_latest(&mut tables.open_table(LATEST)?, uuid, Some(name)))
    }

    /// Adds a disk that is made of another one's snapshot.
    pub(crate) fn put_clone(&mut self, disk: Uuid, row: &DiskRow, origin: Origin) -> Outcome<()> {
        let rows = self.snapshots_of(origin.parent)?;
        if !rows
            .iter()
            .any(|(_, row)| Generation(row.generation) == origin.generation)
        {
            return Err(damaged("the snapshot of a clone is not in it"));
        }
        let added = self.broker.add_disk(disk.0, row.wants, row.reserves);
        added.map_err(|e| no_grant(&e))?;
        let uuid = u128::from_be_bytes(disk.0);
        self.change(|tables| {
            let value = (
                row.reserves,
                tier_to(row.wants),
                &*row.name,
                &*row.descriptor,
            );
            tables.open_table(DISKS)?.insert(uuid, value)?;
            let parent = u128::from_be_bytes(origin.parent.0);
            let made_of = (parent, origin.generation.0);
            tables.open_table(CLONES)?.insert(uuid, made_of)?;
            Ok(())
        })
    }

    /// Fails if disks were made of a disk.
    pub(super) fn must_be_no_parent(&self, disk: Uuid) -> Outcome<()> {
        must_have_no_clones(&self.clones_of(disk, None)?)
    }

    /// What contradicts itself in it about snapshots and clones, as sentences.
    pub(super) fn check_snapshots(&self, disks: &BTreeMap<u128, DiskRow>) -> Outcome<Vec<String>> {
        let mut findings = Vec::new();
        let snapshots = self.snapshots()?;
        for ((disk, name), row) in &snapshots {
            if !disks.contains_key(disk) {
                findings.push(format!("snapshot {name} has no disk"));
            }
            let parent = row.parent.as_ref().map(|parent| (*disk, parent.clone()));
            if parent.is_some_and(|parent| !snapshots.contains_key(&parent)) {
                findings.push(format!("the parent of snapshot {name} does not exist"));
            }
        }
        for (clone, origin) in self.clones()? {
            let name = disks
                .get(&clone)
                .map_or("without a name", |row| row.name.as_str());
            let parent = u128::from_be_bytes(origin.parent.0);
            let is_it = |((disk, _), row): (&(u128, String), &SnapshotRow)| {
                *disk == parent && Generation(row.generation) == origin.generation
            };
            if !disks.contains_key(&clone) || !snapshots.iter().any(is_it) {
                findings.push(format!("the snapshot of clone {name} does not exist"));
            }
        }
        Ok(findings)
    }
}

/// Removes what is said of a disk's snapshots, with the disk.
pub(super) fn forget(tables: &WriteTransaction, disk: u128) -> Db<()> {
    tables.open_table(LATEST)?.remove(disk)?;
    tables.open_table(CLONES)?.remove(disk)?;
    tables
        .open_table(SNAPSHOTS)?
        .retain(|(owner, _), _| owner != disk)?;
    Ok(())
}

fn put_latest(
    latest: &mut Table<'_, u128, &'static str>,
    disk: u128,
    name: Option<&str>,
) -> Db<()> {
    match name {
        Some(name) => drop(latest.insert(disk, name)?),
        None => drop(latest.remove(disk)?),
    }
    Ok(())
}

fn must_have_no_clones(clones: &[String]) -> Outcome<()> {
    /// As many as fit into a sentence.
    const SHOWN: usize = 10;
    if clones.is_empty() {
        return Ok(());
    }
    let shown = clones.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    let more = match clones.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = match clones.len() {
        1 => "a disk was made of it".to_owned(),
        count => format!("{count} disks were made of it"),
    };
    Err(Problem::new(ProblemCode::Busy, what)
        .because(format!(
            "what it has is needed by {}{more}",
            shown.join(", ")
        ))
        .remedy("delete these disks first: tidegate disk delete NAME"))
}
