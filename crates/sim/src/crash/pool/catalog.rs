//! A model of a pool's catalog: what the daemon records durably, one commit after the other.
//!
//! A commit is atomic and durable once it is made. The world decides what happens between commits and orders.
//!
//! # Always true
//! - A grant has one owner, or none.
//! - A grant that is given again has a higher life than ever before.

use super::oracle::{Disk, Snapshot};
use super::{COLUMNS_MAX, GEOMETRY, Setup};
use std::collections::BTreeMap;
use tidegate_core::layout::Target;
use tidegate_core::layout::pool::{Ancestor, Generation, Grant, PoolSetup, Standing};

/// See the module.
#[derive(Clone, Debug)]
pub struct Catalog {
    columns: u8,
    /// Members of each column.
    mirrors: u8,
    /// What is said of each member, by target.
    standings: Vec<Standing>,
    /// Grants of each column.
    grants: u32,
    thick: bool,
    /// How often each grant was given.
    lives: BTreeMap<(u16, u32), u64>,
    /// By number, which is never used again.
    disks: BTreeMap<Disk, Entry>,
    disks_ever: usize,
}

/// A disk of the pool.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Sectors.
    pub sectors: u64,
    /// By index; none was given back.
    pub grants: Vec<Option<Grant>>,
    /// The disk and the generation of which it is a clone.
    pub parent: Option<(Disk, Generation)>,
    /// Its snapshots.
    pub snapshots: BTreeMap<Generation, Named>,
}

/// A snapshot of a disk.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// What the oracle calls it.
    pub snapshot: Snapshot,
    /// Whether it is being deleted: nobody reads it any more.
    pub is_going: bool,
}

impl Catalog {
    /// A pool without disks.
    pub fn new(setup: &Setup) -> Catalog {
        Catalog {
            columns: setup.columns,
            mirrors: setup.mirrors,
            standings: vec![Standing::InSync; usize::from(COLUMNS_MAX * setup.mirrors)],
            grants: setup.grants,
            thick: setup.thick,
            lives: BTreeMap::new(),
            disks: BTreeMap::new(),
            disks_ever: 0,
        }
    }

    /// Commits a new disk.
    pub fn create(&mut self, sectors: u64, parent: Option<(Disk, Generation)>) -> Disk {
        let disk = Disk(self.disks_ever);
        self.disks_ever += 1;
        let entry = Entry {
            sectors,
            grants: Vec::new(),
            parent,
            snapshots: BTreeMap::new(),
        };
        self.disks.insert(disk, entry);
        disk
    }

    /// Commits that a disk is gone, with everything that it has.
    pub fn remove(&mut self, disk: Disk) {
        self.disks.remove(&disk);
    }

    /// Commits that there is no disk, and never was. What was given counts on.
    pub fn forget_disks(&mut self) {
        self.disks.clear();
        self.disks_ever = 0;
    }

    /// Commits one more column.
    pub fn add_column(&mut self) {
        self.columns += 1;
    }

    /// How many members each column has.
    pub fn mirrors(&self) -> u8 {
        self.mirrors
    }

    /// What is said of a member.
    pub fn standing(&self, target: usize) -> Standing {
        self.standings[target]
    }

    /// Commits what is said of a member, unless it is the last one in sync of its column. Returns whether it did.
    pub fn stand(&mut self, target: usize, standing: Standing) -> bool {
        let mirrors = usize::from(self.mirrors);
        let first = target - target % mirrors;
        let mut others = (first..first + mirrors).filter(|other| *other != target);
        let is_needed = !others.any(|other| self.standings[other] == Standing::InSync);
        if standing != Standing::InSync && is_needed {
            return false;
        }
        self.standings[target] = standing;
        true
    }

    /// How many columns there are.
    pub fn columns(&self) -> u8 {
        self.columns
    }

    /// All disks, by number.
    pub fn disks(&self) -> Vec<Disk> {
        self.disks.keys().copied().collect()
    }

    /// A disk.
    pub fn entry(&self, disk: Disk) -> Option<&Entry> {
        self.disks.get(&disk)
    }

    /// A disk, for a commit.
    pub fn entry_mut(&mut self, disk: Disk) -> Option<&mut Entry> {
        self.disks.get_mut(&disk)
    }

    /// Whether a disk is a clone of this one, or of this generation of it.
    pub fn has_clone(&self, disk: Disk, at: Option<Generation>) -> bool {
        let mut parents = self.disks.values().filter_map(|entry| entry.parent);
        parents.any(|(parent, of)| parent == disk && at.is_none_or(|at| at == of))
    }

    /// Commits that a disk has one more grant, on one of the first `columns`. None: all are owned.
    pub fn give(&mut self, disk: Disk, columns: u8) -> Option<(u32, Grant)> {
        let owned: Vec<Grant> = self.owned().map(|(_, grant)| grant).collect();
        let is_free = |column: u16, number: u32| {
            let mut owned = owned.iter();
            !owned.any(|grant| (grant.column, grant.number) == (column, number))
        };
        let entry = self.disks.get_mut(&disk)?;
        let index = entry.grants.iter().position(Option::is_none);
        let index = index.unwrap_or(entry.grants.len());
        // Columns take turns.
        let columns = u16::from(columns);
        let first = u16::try_from(index + disk.0).expect("few grants");
        let (column, number) = (0..columns)
            .map(|column| (first + column) % columns)
            .flat_map(|column| (0..self.grants).map(move |number| (column, number)))
            .find(|(column, number)| is_free(*column, *number))?;
        let life = self.lives.entry((column, number)).or_default();
        *life += 1;
        let grant = Grant {
            column,
            number,
            life: *life,
        };
        match entry.grants.get_mut(index) {
            Some(place) => *place = Some(grant),
            None => entry.grants.push(Some(grant)),
        }
        Some((u32::try_from(index).expect("few grants"), grant))
    }

    /// Commits that a grant of a disk is nobody's. Returns whether it was the disk's.
    pub fn take_back(&mut self, disk: Disk, index: u32) -> bool {
        let entry = self.disks.get_mut(&disk);
        let place = entry.and_then(|entry| entry.grants.get_mut(index as usize));
        place.is_some_and(|place| place.take().is_some())
    }

    /// Grants that nobody owns, on the first `columns`.
    pub fn free(&self, columns: u8) -> u32 {
        let owned = self.owned();
        let owned = owned.filter(|(_, grant)| grant.column < u16::from(columns));
        let owned = u32::try_from(owned.count()).expect("few grants");
        u32::from(columns) * self.grants - owned
    }

    /// All grants, with their owners.
    pub fn owned(&self) -> impl Iterator<Item = (Disk, Grant)> + '_ {
        let disks = self.disks.iter();
        disks.flat_map(|(disk, entry)| {
            let grants = entry.grants.iter().flatten();
            grants.map(|grant| (*disk, *grant))
        })
    }

    /// What the layout of a disk is built of.
    ///
    /// # Panics
    /// There is no such disk.
    pub fn setup(&self, disk: Disk) -> PoolSetup {
        let entry = &self.disks[&disk];
        let mut ancestors = Vec::new();
        let mut parent = entry.parent;
        while let Some((of, at)) = parent {
            let entry = &self.disks[&of];
            ancestors.push(Ancestor {
                disk: identity(of),
                grants: entry.grants.clone(),
                at,
            });
            parent = entry.parent;
        }
        PoolSetup {
            pool: [9; 16],
            disk: identity(disk),
            size: entry.sectors * crate::crash::SECTOR as u64,
            geometry: GEOMETRY,
            columns: (0..self.columns).map(Target).collect(),
            members: match self.mirrors {
                1 => Vec::new(),
                mirrors => {
                    let columns = self.standings.chunks(usize::from(mirrors));
                    let columns = columns.take(usize::from(self.columns));
                    columns.map(<[Standing]>::to_vec).collect()
                }
            },
            grants: entry.grants.clone(),
            ancestors,
            thick: self.thick && entry.parent.is_none(),
        }
    }
}

/// The identity of a disk.
pub fn identity(disk: Disk) -> [u8; 16] {
    [u8::try_from(disk.0 + 1).expect("few disks"); 16]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_has_one_owner_and_a_new_life_each_time() {
        let setup = Setup {
            columns: 1,
            grants: 2,
            ..Setup::default()
        };
        let mut catalog = Catalog::new(&setup);
        let (one, two) = (catalog.create(8, None), catalog.create(8, None));
        let (index, first) = catalog.give(one, 1).expect("one is free");
        let (_, other) = catalog.give(two, 1).expect("one is free");
        assert_ne!(first.number, other.number);
        assert_eq!((catalog.give(two, 1), catalog.free(1)), (None, 0));
        assert!(catalog.take_back(one, index));
        assert!(!catalog.take_back(one, index));
        let (_, again) = catalog.give(two, 1).expect("one is free");
        assert_eq!((again.number, again.life), (first.number, first.life + 1));
    }
}
