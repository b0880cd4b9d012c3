//! Disks on pools: how one is opened, and what is said of its space.
//!
//! A pool's disk has an image for each member of its pool, and its layout finds its bytes there. Its descriptor is in the
//! pool's catalog. While it is attached, a thread of the pool gives it space ([`crate::pools::grants`]).

use std::sync::Arc;

use tidegate_api::disk::DiskInPool;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::pool::Generation;
use tidegate_core::pool::{EXTENT, GRANT};
use tidegate_engine::PoolDisk;

use super::DiskService;
use crate::disks::attached::Attached;
use crate::host::Opened;
use crate::os_error::Outcome;
use crate::pools::grants::InPool;
use crate::store::Found;

pub(super) mod quiet;

/// A pool's disk that is being opened.
pub(super) struct OpenInPool {
    /// For its layout.
    pub(super) disk: Arc<PoolDisk>,
    /// Its place among those that get space. None: it only shows one of its generations.
    pub(super) place: Option<InPool>,
    /// Of the pool's members. None: away.
    pub(super) images: Vec<Option<Opened>>,
}

impl DiskService {
    /// Opens the images of a pool's disk, to use the disk or only to show one of its generations.
    pub(super) fn open_pooled(
        &self,
        found: &Found,
        view: Option<Generation>,
    ) -> Outcome<OpenInPool> {
        let (pool, name) = (&found.datastore, &found.name);
        if view.is_none() {
            self.pools.uses().wait(found.descriptor.uuid.0, false);
        }
        let (setup, images, uuid, in_use) = self.pools.with(pool, |open| {
            let disk = open.must_have(name)?;
            let setup = open.setup(&disk, found.descriptor.size.0)?;
            let in_use = self.pools.uses().enter(&setup, view.is_none());
            let in_use = in_use.map_err(|e| e.within(format!("cannot open disk {name}")))?;
            let images = open.images(0, &in_use)?;
            Ok((setup, images, disk.uuid, in_use))
        })?;
        if uuid != found.descriptor.uuid {
            return Err(Problem::new(
                ProblemCode::Busy,
                format!("disk {name} was deleted and created again"),
            )
            .remedy("try again"));
        }
        setup.check().map_err(|why| {
            Problem::new(
                ProblemCode::Corrupt,
                format!("the catalog of pool {pool} contradicts itself about disk {name}"),
            )
            .because(why)
            .remedy(format!("see `tidegate pool check {pool}`"))
        })?;
        let place = match view {
            Some(_) => None,
            None => {
                let grants = setup.grants.clone();
                let members = images.len();
                let of = (name, uuid, in_use);
                Some(self.grants.enter(&self.pools, pool, of, grants, members)?)
            }
        };
        Ok(OpenInPool {
            disk: Arc::new(PoolDisk { setup, view }),
            place,
            images,
        })
    }

    /// The part of an attached disk of its pool, if it is on one, as far as that is known without the catalog.
    pub(crate) fn space_of(&self, live: &Attached) -> Option<DiskInPool> {
        moment(live)
    }

    /// A disk's part of its pool, if it is on one.
    pub(super) fn describe_in_pool(
        &self,
        found: &Found,
        live: Option<&Attached>,
    ) -> Option<DiskInPool> {
        if !found.is_pooled() {
            return None;
        }
        let uuid = found.descriptor.uuid;
        let (pools, pool) = (Arc::clone(&self.pools), found.datastore.clone());
        // A catalog that hangs is waited for only so long.
        let space = self.looks.at(&found.datastore, move || {
            pools.with(&pool, |open| Ok(open.space_of(uuid)))
        });
        let (granted_bytes, reserved_bytes) = space.unwrap_or_default();
        let report = live.and_then(|live| live.layout()?.pool);
        let granted = live.and_then(Attached::space);
        let refused = granted.as_ref().is_some_and(|granted| granted.is_refused);
        Some(DiskInPool {
            reserved_bytes,
            granted_bytes: granted
                .as_ref()
                .map_or(granted_bytes, |granted| granted.grants * GRANT),
            mapped_bytes: report.as_ref().map(|report| report.mapped * EXTENT),
            waiting: report.map_or(0, |report| report.waiting),
            refused,
            problem: granted.and_then(|granted| granted.trouble),
        })
    }
}

/// The part of an attached disk of its pool, as far as that is known without the catalog.
pub(super) fn moment(live: &Attached) -> Option<DiskInPool> {
    let space = live.space()?;
    let report = live.layout().and_then(|report| report.pool);
    Some(DiskInPool {
        reserved_bytes: 0,
        granted_bytes: space.grants * GRANT,
        mapped_bytes: report.as_ref().map(|report| report.mapped * EXTENT),
        waiting: report.map_or(0, |report| report.waiting),
        refused: space.is_refused,
        problem: space.trouble,
    })
}

/// Fails for a command that disks on pools do not have.
pub(super) fn must_not_be_pooled(found: &Found, remedy: &str) -> Outcome<()> {
    match found.is_pooled() {
        false => Ok(()),
        true => Err(Problem::new(
            ProblemCode::Unsupported,
            format!("disk {} is on pool {}", found.name, found.datastore),
        )
        .remedy(remedy)),
    }
}
