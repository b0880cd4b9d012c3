//! Pools' disks without front ends: opened for an order to a detached disk, or to show a snapshot.
//!
//! # Always true
//! - a disk that is attached is not opened a second time: orders go to the attachment
//! - a quiet disk is closed before its place among those that get space is given up

use std::sync::Arc;
use std::time::Duration;

use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::LayoutOrder;
use tidegate_core::layout::pool::{Generation, PoolReport};
use tidegate_engine::{LayoutOptions, NoticeSink};

use super::super::{DiskService, PARTING};
use crate::config::plan;
use crate::disks::attached::Attached;
use crate::host::{self, Opened};
use crate::os_error::Outcome;
use crate::pools::grants::{DiskOnPool, InPool, View};
use crate::pools::reported::Reported;
use crate::store::Found;

/// A pool's disk that takes orders: attached, or opened for them.
pub(crate) enum InUse {
    Attached(Arc<Attached>),
    Quiet(Quiet),
}

/// A pool's disk that is open without front ends, until it is dropped.
pub(crate) struct Quiet {
    disk: Arc<QuietDisk>,
    /// None: it only shows a snapshot.
    place: Option<InPool>,
    /// That it shows one.
    view: Option<View>,
}

struct QuietDisk(host::Disk);

impl DiskOnPool for QuietDisk {
    fn order(&self, order: LayoutOrder, patience: Duration) -> Outcome<()> {
        self.0.order_within(order, patience)
    }

    fn add_columns(&self, images: Vec<Option<Opened>>) -> Outcome<()> {
        images
            .into_iter()
            .try_for_each(|image| self.0.add_column(image))
    }
}

impl Quiet {
    /// The engine's disk.
    pub(crate) fn disk(&self) -> &host::Disk {
        &self.disk.0
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        if let Err(problem) = self.disk.0.detach(Some(PARTING)) {
            tracing::warn!(%problem, "a disk on a pool that was open without front ends is not closed yet");
        }
        drop((self.place.take(), self.view.take()));
    }
}

impl InUse {
    /// Gives its layout an order, and waits for the answer.
    pub(crate) fn order(&self, order: LayoutOrder) -> Outcome<()> {
        match self {
            InUse::Attached(live) => live.order(order),
            InUse::Quiet(quiet) => quiet.disk().order(order),
        }
    }

    /// The state of its layout.
    pub(crate) fn report(&self) -> Outcome<PoolReport> {
        let report = match self {
            InUse::Attached(live) => live.layout(),
            InUse::Quiet(quiet) => quiet.disk().layout(),
        };
        report.and_then(|report| report.pool).ok_or_else(|| {
            Problem::new(ProblemCode::Busy, "the disk is being detached").remedy("try again")
        })
    }

    /// What its layout reports of its generations.
    pub(crate) fn reported(&self) -> Option<Arc<Reported>> {
        match self {
            InUse::Attached(live) => live.reported(),
            InUse::Quiet(quiet) => Some(Arc::clone(quiet.place.as_ref()?.reported())),
        }
    }
}

impl DiskService {
    /// A pool's disk for orders. The caller has its claim; a detached disk is opened.
    pub(in super::super) fn use_in_pool(&self, found: &Found) -> Outcome<InUse> {
        match self.live.get(&found.name) {
            Some(live) => Ok(InUse::Attached(live)),
            None => Ok(InUse::Quiet(self.open_quietly(found, None)?)),
        }
    }

    /// Opens a pool's disk without front ends: the detached disk, or what one of its generations shows.
    pub(in super::super) fn open_quietly(
        &self,
        found: &Found,
        view: Option<Generation>,
    ) -> Outcome<Quiet> {
        if !found.is_pooled() {
            return Err(not_pooled(found));
        }
        // First: the disk is not deleted from now on.
        let shown = match view {
            None => None,
            Some(_) => {
                let shown = self.grants.view(found.descriptor.uuid);
                Some(shown.ok_or_else(|| {
                    Problem::new(
                        ProblemCode::NotFound,
                        format!("disk {} is being deleted", found.name),
                    )
                    .remedy("list the disks: tidegate disk list")
                })?)
            }
        };
        let pooled = self.open_pooled(found, view)?;
        let mut plan = plan::disk(found)?;
        plan.read_only |= view.is_some();
        plan.filters = Default::default();
        let ignored = NoticeSink(Arc::new(|_| ()));
        plan.layout_options = LayoutOptions {
            notices: pooled.place.as_ref().map(|place| place.sink(ignored)),
            pool: Some(pooled.disk),
            ..plan.layout_options
        };
        let disk = self.host.attach_members(&plan, pooled.images, None, None)?;
        let quiet = Quiet {
            disk: Arc::new(QuietDisk(disk)),
            place: pooled.place,
            view: shown,
        };
        if let Some(place) = &quiet.place {
            let disk: Arc<dyn DiskOnPool> = Arc::<QuietDisk>::clone(&quiet.disk);
            place.opened(disk);
        }
        Ok(quiet)
    }
}

/// The problem of a command that only disks on pools have.
pub(in super::super) fn not_pooled(found: &Found) -> Problem {
    Problem::new(
        ProblemCode::Unsupported,
        format!("disk {} is not on a pool", found.name),
    )
    .because(format!(
        "datastore {} is of kind {}",
        found.datastore,
        found.settings.kind()
    ))
    .remedy("create a disk on a pool (see `tidegate pool list`), and copy over NBD")
}
