//! The broker of a pool's space: which grant a disk gets next, and whether it may have one.
//!
//! The daemon rebuilds it from the catalog when the pool is opened. Each grant goes into the catalog, durably, before its
//! disk uses it; if that fails, the daemon gives it back here. The broker is off the data path.
//!
//! A disk's grants go round the columns of the tier that it wants: next is the column on which it has fewest, of these the
//! one with most free space. If that tier is full, another one serves: a slow write is better than one that fails.
//!
//! # Always true
//! - a grant has one disk at most, and no two grants that were given ever have the same life
//! - thin disks leave what thick ones have reserved, and the minimum; a reservation is refused if it does not fit
//! - a group that is drained or away gives nothing
//! - the same calls give the same grants
//!
//! # Picture
//! ```text
//!   |<- used ->|<- reserved by thick disks ->|<-       free       ->|<- minimum ->|
//!              thick disks take from here     thin disks take here
//! ```
//!
//! # Units
//! Grants, but for [`grants_for`].

use super::level::Level;
use super::{EXTENT, EXTENTS, HEADERS, Tier};
use crate::layout::pool::Grant;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A disk's identity.
pub type DiskUuid = [u8; 16];

/// See the module.
#[derive(Clone, Debug)]
pub struct Broker {
    columns: Vec<Column>,
    disks: BTreeMap<DiskUuid, DiskSpace>,
    minimum: u64,
    /// The life of the next grant.
    life: u64,
    level: Level,
}

/// A column, as it is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewColumn {
    /// Its group.
    pub group: u16,
    /// How fast it is.
    pub tier: Tier,
    /// Its grants.
    pub grants: u32,
}

/// Whether a group gives space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupUse {
    /// It does.
    #[default]
    Open,
    /// It is to be removed.
    Draining,
    /// Its members cannot be used.
    Away,
}

/// Why a disk gets no grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoGrant {
    /// The pool has no space for it.
    NoSpace,
    /// The pool does not know the disk.
    Unknown,
}

/// What contradicts a record of the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contradiction {
    /// There is no such disk.
    Disk,
    /// There is no such place.
    Place,
    /// The place has an owner already, which is this disk.
    Owner(DiskUuid),
    /// Its life is of the future.
    Life,
}

/// The space of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// All grants.
    pub all: u64,
    /// Those that disks have.
    pub used: u64,
    /// Those that thick disks have reserved and not taken yet.
    pub reserved: u64,
    /// Those that a thin disk could still take.
    pub available: u64,
    /// How full it is.
    pub level: Level,
}

/// What a disk has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// The tier that it wants. `None`: any.
    pub wants: Option<Tier>,
    /// How many grants it has reserved and not taken yet.
    pub reserved: u64,
    /// How many grants it has on each column.
    pub by_column: BTreeMap<u16, u32>,
}

impl DiskSpace {
    /// How many grants it has.
    pub fn used(&self) -> u64 {
        self.by_column.values().map(|on| u64::from(*on)).sum()
    }
}

/// What must be moved before a group can be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drain {
    /// How many grants each disk has in it.
    pub disks: Vec<(DiskUuid, u64)>,
    /// Whether they fit into the other groups, beside what is reserved.
    pub fits: bool,
}

#[derive(Clone, Debug)]
struct Column {
    about: NewColumn,
    use_of: GroupUse,
    /// By number.
    owners: Vec<Option<DiskUuid>>,
    free: u32,
    /// None below is free.
    first: usize,
}

impl Column {
    fn is_open(&self) -> bool {
        self.use_of == GroupUse::Open
    }

    fn owner(&mut self, number: u32) -> Option<&mut Option<DiskUuid>> {
        self.owners.get_mut(usize::try_from(number).ok()?)
    }
}

impl Broker {
    /// The broker of a pool without columns. Thin disks leave `minimum` grants free. `life` is the first one to be given.
    pub fn new(minimum: u64, life: u64) -> Broker {
        Broker {
            columns: Vec::new(),
            disks: BTreeMap::new(),
            minimum,
            life,
            level: Level::default(),
        }
    }

    /// Adds the next column.
    pub fn add_column(&mut self, about: NewColumn) {
        let count = usize::try_from(about.grants).unwrap_or(0);
        self.columns.push(Column {
            about,
            use_of: GroupUse::default(),
            owners: alloc::vec![None; count],
            free: about.grants,
            first: 0,
        });
        self.update();
    }

    /// Says whether a group gives space from now on.
    pub fn set_use(&mut self, group: u16, use_of: GroupUse) {
        for column in &mut self.columns {
            if column.about.group == group {
                column.use_of = use_of;
            }
        }
        self.update();
    }

    /// Adds a disk that reserves so many grants: none, if it is thin.
    ///
    /// # Errors
    /// The pool has not so much space.
    pub fn add_disk(
        &mut self,
        disk: DiskUuid,
        wants: Option<Tier>,
        reserves: u64,
    ) -> Result<(), NoGrant> {
        if reserves > self.space().available {
            return Err(NoGrant::NoSpace);
        }
        self.restore_disk(disk, wants, reserves);
        Ok(())
    }

    /// Adds a disk of the catalog. `reserves`: what it had reserved at first.
    pub fn restore_disk(&mut self, disk: DiskUuid, wants: Option<Tier>, reserves: u64) {
        let space = DiskSpace {
            wants,
            reserved: reserves,
            by_column: BTreeMap::new(),
        };
        self.disks.insert(disk, space);
        self.update();
    }

    /// From now on a disk reserves so many grants in all.
    ///
    /// # Errors
    /// The pool has not so much space, or does not know the disk.
    pub fn reserve(&mut self, disk: DiskUuid, reserves: u64) -> Result<(), NoGrant> {
        let available = self.space().available;
        let space = self.disks.get_mut(&disk).ok_or(NoGrant::Unknown)?;
        let reserved = reserves.saturating_sub(space.used());
        if reserved.saturating_sub(space.reserved) > available {
            return Err(NoGrant::NoSpace);
        }
        space.reserved = reserved;
        self.update();
        Ok(())
    }

    /// Adds a grant of the catalog.
    ///
    /// # Errors
    /// It contradicts what is known.
    pub fn restore_grant(&mut self, disk: DiskUuid, grant: Grant) -> Result<(), Contradiction> {
        let space = self.disks.get_mut(&disk).ok_or(Contradiction::Disk)?;
        let column = self.columns.get_mut(usize::from(grant.column));
        let column = column.ok_or(Contradiction::Place)?;
        let owner = column.owner(grant.number).ok_or(Contradiction::Place)?;
        if let Some(owner) = owner {
            return Err(Contradiction::Owner(*owner));
        }
        if grant.life >= self.life {
            return Err(Contradiction::Life);
        }
        *owner = Some(disk);
        column.free -= 1;
        space.reserved = space.reserved.saturating_sub(1);
        *space.by_column.entry(grant.column).or_default() += 1;
        self.update();
        Ok(())
    }

    /// Gives a disk a grant.
    ///
    /// # Errors
    /// There is none for it.
    pub fn grant(&mut self, disk: DiskUuid) -> Result<Grant, NoGrant> {
        let space = self.disks.get(&disk).ok_or(NoGrant::Unknown)?;
        if space.reserved == 0 && self.space().available == 0 {
            return Err(NoGrant::NoSpace);
        }
        let number = self.choose(space).ok_or(NoGrant::NoSpace)?;
        let column = &mut self.columns[usize::from(number)];
        let free = column.owners[column.first..].iter();
        let at = free.take_while(|owner| owner.is_some()).count() + column.first;
        let grant = Grant {
            column: number,
            number: u32::try_from(at).map_err(|_| NoGrant::NoSpace)?,
            life: self.life,
        };
        column.first = at;
        self.life += 1;
        let given = self.restore_grant(disk, grant);
        assert_eq!(given, Ok(()), "a free grant of a disk that is known");
        Ok(grant)
    }

    /// The column of a disk's next grant.
    fn choose(&self, space: &DiskSpace) -> Option<u16> {
        let open = (0_u16..).zip(&self.columns);
        let open = open.filter(|(_, column)| column.is_open() && column.free > 0);
        let best = open.min_by_key(|(number, column)| {
            let is_other = space.wants.is_some_and(|tier| tier != column.about.tier);
            let has = space.by_column.get(number).copied().unwrap_or(0);
            (is_other, has, u32::MAX - column.free, *number)
        });
        best.map(|(number, _)| number)
    }

    /// Takes a grant back: from now on another disk may get it. A thick disk keeps no claim to it.
    ///
    /// # Errors
    /// The disk does not have it.
    pub fn give_back(
        &mut self,
        disk: DiskUuid,
        column: u16,
        number: u32,
    ) -> Result<(), Contradiction> {
        let space = self.disks.get_mut(&disk).ok_or(Contradiction::Disk)?;
        let of = self.columns.get_mut(usize::from(column));
        let of = of.ok_or(Contradiction::Place)?;
        let owner = of.owner(number).ok_or(Contradiction::Place)?;
        match owner {
            Some(owner) if *owner == disk => {}
            Some(owner) => return Err(Contradiction::Owner(*owner)),
            None => return Err(Contradiction::Place),
        }
        *owner = None;
        of.free += 1;
        of.first = of.first.min(usize::try_from(number).unwrap_or(0));
        if let Some(has) = space.by_column.get_mut(&column) {
            *has -= 1;
            if *has == 0 {
                space.by_column.remove(&column);
            }
        }
        self.update();
        Ok(())
    }

    /// Forgets a disk; all that it has is free.
    pub fn remove_disk(&mut self, disk: DiskUuid) {
        self.disks.remove(&disk);
        for column in &mut self.columns {
            let mut freed = 0;
            for owner in &mut column.owners {
                if *owner == Some(disk) {
                    *owner = None;
                    freed += 1;
                }
            }
            if freed > 0 {
                (column.free, column.first) = (column.free + freed, 0);
            }
        }
        self.update();
    }

    /// The space of the whole pool.
    pub fn space(&self) -> Space {
        let sum = |of: fn(&Column) -> u32| self.columns.iter().map(|one| u64::from(of(one))).sum();
        let all: u64 = sum(|column| column.about.grants);
        let free: u64 = sum(|column| column.free);
        let open: u64 = sum(|column| if column.is_open() { column.free } else { 0 });
        let reserved = self.disks.values().map(|disk| disk.reserved).sum();
        Space {
            all,
            used: all - free,
            reserved,
            available: open.saturating_sub(reserved).saturating_sub(self.minimum),
            level: self.level,
        }
    }

    /// What a disk has.
    pub fn disk(&self, disk: &DiskUuid) -> Option<&DiskSpace> {
        self.disks.get(disk)
    }

    /// Where the grants of a disk are: columns, and numbers on them.
    pub fn places(&self, disk: DiskUuid) -> impl Iterator<Item = (u16, u32)> + '_ {
        (0_u16..)
            .zip(&self.columns)
            .flat_map(move |(number, column)| {
                let owners = (0_u32..).zip(&column.owners);
                let own = owners.filter(move |(_, owner)| **owner == Some(disk));
                own.map(move |(at, _)| (number, at))
            })
    }

    /// The free and all grants of a column.
    pub fn column(&self, number: u16) -> Option<(u32, u32)> {
        let column = self.columns.get(usize::from(number))?;
        Some((column.free, column.about.grants))
    }

    /// The life of the next grant.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// What must be moved before a group can be removed.
    pub fn drain(&self, group: u16) -> Drain {
        let (of, others): (Vec<&Column>, Vec<&Column>) = self
            .columns
            .iter()
            .partition(|column| column.about.group == group);
        let mut disks = BTreeMap::<DiskUuid, u64>::new();
        for owner in of.iter().flat_map(|column| column.owners.iter().flatten()) {
            *disks.entry(*owner).or_default() += 1;
        }
        let must_move: u64 = disks.values().sum();
        let open = others.iter().filter(|column| column.is_open());
        let free: u64 = open.map(|column| u64::from(column.free)).sum();
        let fits = must_move + self.space().reserved + self.minimum <= free;
        Drain {
            disks: disks.into_iter().collect(),
            fits: fits || of.is_empty(),
        }
    }

    fn update(&mut self) {
        let space = self.space();
        self.level = self.level.next(space.used + space.reserved, space.all);
    }
}

/// How many grants a disk of so many bytes needs when all of it is written, with their headers.
pub fn grants_for(bytes: u64) -> u64 {
    let extents = bytes.div_ceil(EXTENT);
    let (each, block) = (u64::from(EXTENTS), u64::from(HEADERS));
    // A block of grants gives one extent to metadata.
    let in_block = each * block - 1;
    let whole = extents / in_block;
    let rest = extents % in_block;
    match rest {
        0 => whole * block,
        _ => whole * block + (rest + 1).div_ceil(each),
    }
}

#[cfg(test)]
mod tests;
