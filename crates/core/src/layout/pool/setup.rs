//! The setup of a pool's disk: what the pool's catalog says of it, and what is reported of it.
//!
//! Plain values between the pool layout and the daemon, which keeps the catalog.
//!
//! # Units
//! Sizes and places on members are bytes. An extent is 16 sub-blocks; a grant is some extents, one after the other on a column.

use crate::block::BLOCK;
use crate::layout::{MAX_TARGETS, SLOT, Target};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// Sub-blocks of an extent.
pub const SUB_BLOCKS: u32 = 16;

/// The most extents of a grant.
pub const EXTENTS_MAX: u32 = 64;

/// The most grants of a disk. With extents of 1 MiB these are 128 TiB, with their headers.
pub const GRANTS_MAX: u32 = 1 << 21;

/// What the catalog says of a disk of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSetup {
    /// The pool.
    pub pool: [u8; 16],
    /// The disk.
    pub disk: [u8; 16],
    /// Size of the disk, in bytes.
    pub size: u64,
    /// How the pool's space is divided.
    pub geometry: Geometry,
    /// The target of each column of the pool, by number.
    pub columns: Vec<Target>,
    /// The members of each column, as the catalog has them. Empty if every column is one member. Otherwise the disk's targets
    /// are the members, column by column, and `columns` has the numbers of the columns.
    pub members: Vec<Vec<Standing>>,
    /// The disk's grants, by index. None: it was given back.
    pub grants: Vec<Option<Grant>>,
    /// What it is a clone of: the nearest first. Empty for a disk that is no clone.
    pub ancestors: Vec<Ancestor>,
    /// Whether it reserves all its space at once.
    pub thick: bool,
}

/// What a pool's catalog says of a member of a column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It has everything that was answered.
    #[default]
    InSync,
    /// It gets what is written, and what it lacks is copied to it. It is not read.
    Syncing,
    /// It lacks writes, and is not used.
    Behind,
}

/// How a pool's space is divided. All disks of a pool have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a sub-block: the least that is copied after a snapshot.
    pub sub_block: u64,
    /// Extents of a grant.
    pub extents: u32,
    /// Grants whose headers are in one extent.
    pub headers: u32,
    /// Where extent 0 of a column is on its member.
    pub data_at: u64,
}

impl Default for Geometry {
    /// Extents of 1 MiB. Two blocks of an extent are for the roots, two for the write-intent record, and two for each
    /// header: 126 of these fit.
    fn default() -> Geometry {
        Geometry {
            sub_block: 64 << 10,
            extents: 64,
            headers: 126,
            data_at: 64 << 20,
        }
    }
}

/// The most members of a column. Origin: as many as a mirror of datastores has.
pub const MEMBERS_MAX: usize = 4;

/// The most ancestors of a clone. Origin: chosen; each is read when the clone is attached.
pub const ANCESTORS_MAX: usize = 64;

/// Blocks before the headers in an extent of metadata: the places of the root, and those of the write-intent record.
const ROOTS: u64 = 2;
const BEFORE_HEADERS: u64 = ROOTS + 2;

impl Geometry {
    /// Bytes of an extent.
    pub fn extent(&self) -> u64 {
        self.sub_block * u64::from(SUB_BLOCKS)
    }

    /// Where a grant begins on its member.
    pub fn grant_at(&self, grant: Grant) -> u64 {
        self.data_at + u64::from(grant.number) * u64::from(self.extents) * self.extent()
    }

    /// The index of the grant that has the header of this one.
    pub fn header_of(&self, index: u32) -> u32 {
        index - index % self.headers
    }

    /// Whether the first extent of this grant has headers.
    pub fn has_headers(&self, index: u32) -> bool {
        index.is_multiple_of(self.headers)
    }

    /// Where a place (0 or 1) of the header of a grant is, from the beginning of the grant that has it.
    pub fn header_at(&self, index: u32, place: u8) -> u64 {
        let nth = BEFORE_HEADERS + 2 * u64::from(index % self.headers) + u64::from(place);
        nth * BLOCK as u64
    }

    /// Where a place of the write-intent record is, from the beginning of a grant that has headers.
    pub fn intent_at(&self, place: u8) -> u64 {
        (ROOTS + u64::from(place)) * BLOCK as u64
    }

    /// Where a place of the root is, from the beginning of grant 0.
    pub fn root_at(&self, place: u8) -> u64 {
        u64::from(place) * BLOCK as u64
    }

    /// Checks that everything has a place.
    ///
    /// # Errors
    /// It has not, in words.
    pub fn check(&self) -> Result<(), String> {
        if !self.sub_block.is_power_of_two() || !(BLOCK as u64..=SLOT).contains(&self.sub_block) {
            let own = self.sub_block;
            return Err(format!(
                "a sub-block is a power of two from 4 KiB to 64 KiB, not {own}"
            ));
        }
        if !(2..=EXTENTS_MAX).contains(&self.extents) {
            let own = self.extents;
            return Err(format!("a grant has 2 to {EXTENTS_MAX} extents, not {own}"));
        }
        let blocks = self.extent() / BLOCK as u64;
        if self.headers == 0 || BEFORE_HEADERS + 2 * u64::from(self.headers) > blocks {
            let own = self.headers;
            return Err(format!("headers of {own} grants do not fit in an extent"));
        }
        if !self.data_at.is_multiple_of(BLOCK as u64) || self.data_at > 1 << 60 {
            let own = self.data_at;
            return Err(format!("data cannot begin at {own} on a member"));
        }
        Ok(())
    }
}

/// Extents of a column that a disk owns until it gives them back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The column.
    pub column: u16,
    /// Its number on the column.
    pub number: u32,
    /// The number of this use: the catalog gives each once. What an earlier owner has left does not count.
    pub life: u64,
}

/// A disk whose generation another one is a clone of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// The disk.
    pub disk: [u8; 16],
    /// Its grants, by index.
    pub grants: Vec<Option<Grant>>,
    /// What is seen of it.
    pub at: Generation,
}

/// A generation of a disk. Each has a higher number than those before it; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u32);

impl Generation {
    /// The first one of a disk.
    pub const FIRST: Generation = Generation(1);
}

impl PoolSetup {
    /// Checks that a disk can be opened with it.
    ///
    /// # Errors
    /// It cannot, in words.
    pub fn check(&self) -> Result<(), String> {
        self.geometry.check()?;
        if !(1..=MAX_TARGETS).contains(&self.columns.len())
            || self.columns.iter().any(|t| usize::from(t.0) >= MAX_TARGETS)
        {
            return Err(format!("a disk has 1 to {MAX_TARGETS} columns"));
        }
        self.check_members()?;
        if self.size > u64::from(u32::MAX) * self.geometry.extent() {
            return Err(format!("{} bytes have too many extents", self.size));
        }
        if self.ancestors.len() > ANCESTORS_MAX {
            return Err(format!("a clone has at most {ANCESTORS_MAX} ancestors"));
        }
        let ancestors = self.ancestors.iter().map(|ancestor| &ancestor.grants);
        for grants in core::iter::once(&self.grants).chain(ancestors) {
            if grants.len() > GRANTS_MAX as usize {
                return Err(format!("a disk has at most {GRANTS_MAX} grants"));
            }
            if let Some(grant) = grants.iter().flatten().find(|grant| !self.has_place(grant)) {
                return Err(format!("there is no place for {grant:?}"));
            }
        }
        Ok(())
    }

    fn check_members(&self) -> Result<(), String> {
        if self.members.is_empty() {
            return Ok(());
        }
        let numbers = (0..).zip(&self.columns);
        let are_numbers = numbers.into_iter().all(|(number, it)| it.0 == number);
        if self.members.len() != self.columns.len() || !are_numbers {
            return Err("the columns do not fit their members".into());
        }
        if self.targets() > MAX_TARGETS {
            return Err(format!("a disk has at most {MAX_TARGETS} members"));
        }
        for (number, members) in self.members.iter().enumerate() {
            if !(1..=MEMBERS_MAX).contains(&members.len()) {
                return Err(format!(
                    "column {number} has {} members, not 1 to {MEMBERS_MAX}",
                    members.len()
                ));
            }
            if !members.contains(&Standing::InSync) {
                return Err(format!("no member of column {number} is in sync"));
            }
        }
        Ok(())
    }

    /// How many targets the disk has: columns, or their members.
    pub fn targets(&self) -> usize {
        match self.members.is_empty() {
            true => {
                let targets = self.columns.iter().map(|target| usize::from(target.0) + 1);
                targets.max().unwrap_or(0)
            }
            false => self.members.iter().map(Vec::len).sum(),
        }
    }

    /// How many copies of each byte a column has.
    pub(super) fn copies(&self, column: Target) -> u8 {
        let members = self.members.get(usize::from(column.0));
        let copies = members.map_or(1, Vec::len);
        u8::try_from(copies).expect("checked in the setup")
    }

    /// Whether a grant is on a column of the pool.
    pub(super) fn has_place(&self, grant: &Grant) -> bool {
        usize::from(grant.column) < self.columns.len()
    }
}

/// The state of a pool's disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolReport {
    /// Whether it only shows a generation.
    pub is_view: bool,
    /// Extents that have data of the disk, of any generation.
    pub mapped: u64,
    /// Extents that are free and read as zeroes.
    pub zeroed: u64,
    /// Extents that are free, and must be zeroed before they are used.
    pub free: u64,
    /// Extents that are free once that is durable.
    pub releasing: u64,
    /// Extents that are being filled with what is elsewhere.
    pub moving: u64,
    /// Extents, marks and places of headers that have moved since it was attached.
    pub moved: u64,
    /// The same on columns that are to be empty ([`LayoutOrder::Vacate`](crate::layout::LayoutOrder::Vacate)).
    pub to_move: u64,
    /// Of these, extents that stay as long as others read them.
    pub held: u64,
    /// Extents that found no room where they were to be placed.
    pub unplaced: u64,
    /// Grants that it has.
    pub grants: u32,
    /// The generation that is written now.
    pub current: Generation,
    /// All of its own generations, the oldest first.
    pub generations: Vec<GenerationReport>,
    /// Sub-blocks that were copied since it was attached.
    pub copies: u64,
    /// Headers and roots that were written since then.
    pub headers_written: u64,
    /// Writes that wait for space.
    pub waiting: u32,
    /// Extents whose members may differ after a crash, until the disk has opened again.
    pub hot: u32,
}

/// One generation of a pool's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenerationReport {
    /// The generation.
    pub generation: Generation,
    /// What it sees where it has nothing of its own.
    pub parent: Option<Generation>,
    /// Extents of its own.
    pub extents: u64,
    /// Whether it was deleted, and goes once what is needed of it belongs to another one.
    pub is_going: bool,
}
