//! The disks of a pool: their rows in its catalog, and all that an I/O thread needs to open one.
//!
//! The store reads and writes descriptors here, as it does in files elsewhere. The disk service asks for setups and images.
//!
//! # Always true
//! - the catalog is the truth: nothing of a disk is stored elsewhere, so that the pool can move to another host
//! - no two disks of a pool have one name

use tidegate_api::descriptor::{Descriptor, Uuid};
use tidegate_api::disk::Allocation;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::Target;
use tidegate_core::layout::pool::{ANCESTORS_MAX, Ancestor, GRANTS_MAX, PoolSetup};
use tidegate_core::pool::broker::grants_for;
use tidegate_core::pool::{GRANT, geometry};

use super::catalog::DiskRow;
use super::uses::InUse;
use super::{OpenPool, Pools};
use crate::host::Opened;
use crate::os_error::{self, Outcome};
use crate::store::Catalogs;

/// A disk of a pool, as the pool's catalog has it.
#[derive(Clone, Debug)]
pub(crate) struct DiskOfPool {
    pub(crate) uuid: Uuid,
    pub(crate) row: DiskRow,
}

impl OpenPool {
    /// The disk of this name.
    pub(crate) fn disk(&self, name: &Name) -> Outcome<Option<DiskOfPool>> {
        let found = self.catalog.disk_named(name.as_str())?;
        Ok(found.map(|(uuid, row)| DiskOfPool { uuid, row }))
    }

    /// The disk of this name, which must be there.
    pub(crate) fn must_have(&self, name: &Name) -> Outcome<DiskOfPool> {
        self.disk(name)?.ok_or_else(|| {
            Problem::new(
                ProblemCode::NotFound,
                format!("there is no disk {name} on the pool"),
            )
            .remedy("list them: tidegate disk list")
        })
    }

    /// What the catalog says of a disk, for its layout.
    pub(crate) fn setup(&self, disk: &DiskOfPool, size: u64) -> Outcome<PoolSetup> {
        let mut columns: Vec<(u16, Target)> = Vec::new();
        for (member, row) in self.catalog.members()? {
            columns.push((row.column, Target(u8::try_from(member).unwrap_or(u8::MAX))));
        }
        columns.sort_unstable();
        Ok(PoolSetup {
            pool: self.catalog.member_set().pool(),
            disk: disk.uuid.0,
            size,
            geometry: geometry(self.catalog.member_set().data_at()),
            columns: columns.into_iter().map(|(_, target)| target).collect(),
            members: Vec::new(),
            grants: self.catalog.grants_of(disk.uuid)?,
            ancestors: self.ancestors(disk.uuid)?,
            thick: disk.row.reserves > 0,
        })
    }

    /// What a disk is a clone of: the nearest first.
    fn ancestors(&self, disk: Uuid) -> Outcome<Vec<Ancestor>> {
        let mut ancestors = Vec::new();
        let mut of = disk;
        while let Some(origin) = self.catalog.origin_of(of)? {
            // A circle in a damaged catalog ends here, too.
            if ancestors.len() >= ANCESTORS_MAX {
                return Err(too_deep());
            }
            ancestors.push(Ancestor {
                disk: origin.parent.0,
                grants: self.catalog.grants_of(origin.parent)?,
                at: origin.generation,
            });
            of = origin.parent;
        }
        Ok(ancestors)
    }

    /// Fails if a clone of a disk would have too many ancestors.
    pub(crate) fn must_not_be_too_deep(&self, parent: Uuid) -> Outcome<()> {
        match self.ancestors(parent)?.len() {
            0..ANCESTORS_MAX => Ok(()),
            _ => Err(too_deep()),
        }
    }

    /// How many members it has.
    pub(crate) fn members(&self) -> usize {
        self.held.len()
    }

    /// Images of its members from one on, for one disk. None: the member is away.
    pub(crate) fn images(&self, from: usize, in_use: &InUse) -> Outcome<Vec<Option<Opened>>> {
        let held = self.held.iter().skip(from);
        held.map(|one| {
            one.as_ref()
                .map(|held| held.image(in_use.clone()))
                .transpose()
        })
        .collect()
    }

    /// Bytes of the pool that a disk has, and those that it has reserved and not taken yet.
    pub(crate) fn space_of(&self, disk: Uuid) -> (u64, u64) {
        let space = self.catalog.broker().disk(&disk.0);
        space.map_or((0, 0), |space| {
            (space.used() * GRANT, space.reserved * GRANT)
        })
    }
}

impl Catalogs for Pools {
    fn names(&self) -> Outcome<Vec<Name>> {
        self.names()
    }

    fn has(&self, pool: &Name) -> bool {
        self.has(pool)
    }

    fn disks(&self, pool: &Name) -> Outcome<Vec<(Name, Outcome<Descriptor>)>> {
        let rows = self.with(pool, |open| open.catalog.disks())?;
        let read = |row: DiskRow| {
            let name = row.name.parse::<Name>().ok()?;
            let descriptor = read_row(&name, &row);
            Some((name, descriptor))
        };
        Ok(rows.into_values().filter_map(read).collect())
    }

    fn read(&self, pool: &Name, disk: &Name) -> Outcome<Option<Descriptor>> {
        let found = self.with(pool, |open| open.disk(disk))?;
        found.map(|found| read_row(disk, &found.row)).transpose()
    }

    fn create(
        &self,
        pool: &Name,
        disk: &Name,
        descriptor: &Descriptor,
        allocation: Allocation,
    ) -> Outcome<()> {
        let size = descriptor.size.0;
        must_fit(size)?;
        self.with(pool, |open| {
            if open.disk(disk)?.is_some() {
                return Err(Problem::new(
                    ProblemCode::Exists,
                    format!("there is a disk {disk} on the pool"),
                )
                .remedy("choose another name"));
            }
            let row = DiskRow {
                reserves: match allocation {
                    Allocation::Thin => 0,
                    Allocation::Thick => grants_for(size),
                },
                wants: None,
                name: disk.to_string(),
                descriptor: descriptor.write(),
            };
            open.catalog.put_disk(descriptor.uuid, &row)
        })
    }

    fn change(&self, pool: &Name, disk: &Name, descriptor: &Descriptor) -> Outcome<()> {
        let size = descriptor.size.0;
        must_fit(size)?;
        self.with(pool, |open| {
            let found = open.must_have(disk)?;
            if found.uuid != descriptor.uuid {
                return Err(Problem::new(
                    ProblemCode::Busy,
                    format!("disk {disk} was deleted and created again"),
                )
                .remedy("try again"));
            }
            let row = DiskRow {
                reserves: match found.row.reserves {
                    0 => 0,
                    _ => grants_for(size),
                },
                descriptor: descriptor.write(),
                ..found.row
            };
            open.catalog.put_disk(found.uuid, &row)
        })
    }

    fn delete(&self, pool: &Name, disk: Uuid) -> Outcome<()> {
        self.uses().wait(disk.0, true);
        self.with(pool, |open| {
            // Nobody opens it meanwhile.
            self.uses().must_be_closed(disk.0)?;
            open.catalog.remove_disk(disk)
        })
    }
}

fn too_deep() -> Problem {
    Problem::new(
        ProblemCode::Unsupported,
        format!("a clone has at most {ANCESTORS_MAX} ancestors"),
    )
    .because("each is read when the clone is attached")
    .remedy("create a disk, attach both, and copy over NBD, as `nbdcopy FROM TO`")
}

fn read_row(name: &Name, row: &DiskRow) -> Outcome<Descriptor> {
    Descriptor::read(row.descriptor.as_bytes()).map_err(|error| {
        Problem::new(
            ProblemCode::Corrupt,
            format!("the pool's catalog has a damaged descriptor of disk {name}"),
        )
        .because_of(&error)
        .remedy("see `tidegate pool check`; nothing was changed")
    })
}

/// Fails if a disk of so many bytes would need more grants than one can have.
fn must_fit(size: u64) -> Outcome<()> {
    let most = u64::from(GRANTS_MAX);
    if grants_for(size) <= most {
        return Ok(());
    }
    Err(
        os_error::invalid(format!("{size} bytes are too many for a disk on a pool"))
            .because(format!(
                "a disk on a pool has at most {most} grants of {GRANT} bytes"
            ))
            .remedy("request at most --size 127TiB"),
    )
}
