//! Disks on pools: the store reads and writes their descriptors in their pool's catalog.
//!
//! # Always true
//! - each pool is a datastore of its name, with or without a record of its own

use std::fmt;
use std::path::PathBuf;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::{Descriptor, Uuid};
use tidegate_api::disk::Allocation;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::{Found, Store};
use crate::os_error::Outcome;

/// The catalogs of pools.
pub(crate) trait Catalogs: Send + Sync {
    /// The names of all pools.
    fn names(&self) -> Outcome<Vec<Name>>;

    /// Whether there is a pool of this name.
    fn has(&self, pool: &Name) -> bool;

    /// The disks of a pool.
    fn disks(&self, pool: &Name) -> Outcome<Vec<(Name, Outcome<Descriptor>)>>;

    /// A disk of a pool, if there is one of this name.
    fn read(&self, pool: &Name, disk: &Name) -> Outcome<Option<Descriptor>>;

    /// Creates a disk.
    fn create(
        &self,
        pool: &Name,
        disk: &Name,
        descriptor: &Descriptor,
        allocation: Allocation,
    ) -> Outcome<()>;

    /// Gives a disk another descriptor.
    fn change(&self, pool: &Name, disk: &Name, descriptor: &Descriptor) -> Outcome<()>;

    /// Deletes a disk and all that it has.
    fn delete(&self, pool: &Name, disk: Uuid) -> Outcome<()>;
}

impl fmt::Debug for dyn Catalogs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Catalogs")
    }
}

impl Store {
    /// The same store, which finds the disks of pools in these catalogs.
    pub(crate) fn with_catalogs(self, catalogs: std::sync::Arc<dyn Catalogs>) -> Store {
        Store {
            catalogs: Some(catalogs),
            ..self
        }
    }

    /// The names of all pools.
    pub(super) fn pools(&self) -> Outcome<Vec<Name>> {
        match &self.catalogs {
            Some(catalogs) => catalogs.names(),
            None => Ok(Vec::new()),
        }
    }

    /// Whether there is a pool of this name.
    pub(crate) fn has_pool(&self, name: &Name) -> bool {
        let catalogs = self.catalogs.as_ref();
        catalogs.is_some_and(|catalogs| catalogs.has(name))
    }

    /// The catalogs. Where there are none, no datastore is a pool.
    pub(super) fn catalogs(&self) -> Outcome<&dyn Catalogs> {
        self.catalogs.as_deref().ok_or_else(|| {
            Problem::new(ProblemCode::Unsupported, "there are no pools here")
                .remedy("start a daemon: tidegate serve")
        })
    }

    /// A disk that a pool has.
    pub(super) fn pooled(&self, pool: &Name, name: &Name, descriptor: Descriptor) -> Found {
        Found {
            name: name.clone(),
            datastore: pool.clone(),
            settings: DatastoreSettings::Pool {},
            folder: PathBuf::new(),
            descriptor,
            is_copy: false,
        }
    }

    /// Reads a disk of a pool.
    pub(super) fn read_pooled(&self, pool: &Name, name: &Name) -> Outcome<Found> {
        let what = || format!("cannot use disk {name}");
        let read = self.catalogs()?.read(pool, name);
        let descriptor = read.map_err(|problem| problem.within(what()))?;
        let descriptor = descriptor.ok_or_else(|| {
            Problem::new(ProblemCode::NotFound, what())
                .because(format!("pool {pool} has no disk of that name"))
                .remedy("list them: tidegate disk list")
        })?;
        Ok(self.pooled(pool, name, descriptor))
    }
}

/// The problem of a command that would write the image of a disk that nobody has attached.
pub(super) fn no_image(what: &str, pool: &Name) -> Problem {
    Problem::new(ProblemCode::Unsupported, what)
        .because(format!("datastore {pool} is a pool, whose disks are written only while they are attached"))
        .remedy(
            "create the disk (tidegate disk create), attach it, and copy over NBD, as `nbdcopy FROM TO`: its URI is in \
             `tidegate disk show NAME`",
        )
}
