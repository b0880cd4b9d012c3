//! Snapshots of disks on pools: generations of the disk, which have their names in the pool's catalog.
//!
//! # Always true
//! - A name is in the catalog only while its generation is in the disk's root: it comes after, and goes before.
//! - A generation without a name is the rest of a crash. It is deleted when the disk is attached.
//! - A snapshot that a clone was made of stays: the catalog refuses to remove its name.
//!
//! # Picture
//! ```text
//!   take    root: generation ──> catalog: name          delete   catalog: no name ──> root: going ──> gone
//! ```

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::snapshot::{Snapshot, SnapshotList};
use tidegate_core::layout::pool::{Generation, PoolReport};
use tidegate_core::layout::{LayoutNotice, LayoutOrder};
use tidegate_core::pool::EXTENT;

use super::super::DiskService;
use super::super::pooled::quiet::InUse;
use super::files::{clone_of, must_be_whole};
use super::{TakenAt, no_snapshot};
use crate::disks::attached::Attached;
use crate::os_error::{self, Outcome};
use crate::pools::catalog::{DiskRow, NewSnapshot, Origin, SnapshotRow};
use crate::store::Found;

/// How long what is under way of an attached disk may take to end: its other writes wait meanwhile.
const HOLDING: Duration = Duration::from_secs(10);
/// How long a disk that was never written may wait for its first space.
const FIRST_SPACE: Duration = Duration::from_secs(10);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// How long a command waits until the space of a deleted snapshot is free. It becomes free later otherwise.
const GOING: Duration = Duration::from_secs(10);

/// A snapshot of a pool's disk.
pub(super) struct OfPool {
    found: Found,
    name: Name,
    in_use: InUse,
    is_held: bool,
    /// Generations that have been taken and have no name yet.
    taken: Option<Generation>,
}

impl Drop for OfPool {
    fn drop(&mut self) {
        self.go();
        if let Some(taken) = self.taken.take()
            && let Err(problem) = self.in_use.order(LayoutOrder::DeleteGeneration(taken))
        {
            let disk = &self.found.name;
            tracing::warn!(%disk, %problem, "what a failed snapshot has taken is removed when the disk is attached");
        }
    }
}

impl OfPool {
    pub(super) fn found(&self) -> &Found {
        &self.found
    }

    pub(super) fn hold(&mut self) -> Outcome<()> {
        match &self.in_use {
            InUse::Attached(live) => hold_within(live, HOLDING)?,
            InUse::Quiet(_) => self.in_use.order(LayoutOrder::Hold)?,
        }
        self.is_held = true;
        Ok(())
    }

    pub(super) fn take(&mut self) -> Outcome<()> {
        self.in_use.order(LayoutOrder::TakeSnapshot)?;
        let report = self.in_use.report()?;
        self.taken = parent_of(&report, report.current);
        match self.taken {
            Some(_) => Ok(()),
            None => Err(Problem::new(
                ProblemCode::Internal,
                "the disk does not name its new generation",
            )
            .remedy("try again")),
        }
    }

    pub(super) fn go(&mut self) {
        if std::mem::take(&mut self.is_held)
            && let Err(problem) = self.in_use.order(LayoutOrder::Go)
        {
            // It is being detached: then nothing waits.
            let disk = &self.found.name;
            tracing::warn!(%disk, %problem, "a held disk does not go on");
        }
    }

    /// The row of what was taken.
    fn row(&self, moment: &TakenAt) -> Option<SnapshotRow> {
        let size = match &self.in_use {
            InUse::Attached(live) => live.size(),
            InUse::Quiet(_) => self.found.descriptor.size.0,
        };
        Some(SnapshotRow {
            generation: self.taken?.0,
            set: moment.set.unwrap_or(Uuid([0; 16])),
            at: moment.at_s,
            size,
            parent: None,
        })
    }
}

impl DiskService {
    /// The snapshots of a disk.
    pub(super) fn pooled_snapshots(&self, found: &Found) -> Outcome<SnapshotList> {
        let uuid = found.descriptor.uuid;
        let (rows, latest, clones) = self.pools.with(&found.datastore, |open| {
            let catalog = &open.catalog;
            let rows = catalog.snapshots_of(uuid)?;
            let clones = rows
                .iter()
                .map(|(_, row)| catalog.clones_of(uuid, Some(Generation(row.generation))));
            let clones = clones.collect::<Outcome<Vec<_>>>()?;
            Ok((rows, catalog.latest_of(uuid)?, clones))
        })?;
        let live = self.live.get(&found.name);
        let report = live.and_then(|live| live.layout()?.pool);
        let snapshots = rows.iter().zip(clones);
        let described = snapshots
            .map(|((name, row), clones)| describe(found, name, row, &clones, report.as_ref()));
        Ok(SnapshotList {
            disk: found.name.clone(),
            snapshots: described.collect::<Outcome<_>>()?,
            latest: latest.map(|latest| name_of(&latest)).transpose()?,
        })
    }

    /// Prepares a snapshot of a disk.
    pub(super) fn begin_pooled_snapshot(&self, found: Found, name: &Name) -> Outcome<OfPool> {
        must_be_whole(&found)?;
        let uuid = found.descriptor.uuid;
        let rows = self
            .pools
            .with(&found.datastore, |open| open.catalog.snapshots_of(uuid))?;
        if rows.iter().any(|(other, _)| other == name.as_str()) {
            let disk = &found.name;
            return Err(Problem::new(
                ProblemCode::Exists,
                format!("disk {disk} has a snapshot {name}"),
            )
            .remedy(format!(
                "choose another name, or delete that one first: tidegate disk snapshot delete {disk}@{name}"
            )));
        }
        let in_use = self.use_in_pool(&found)?;
        wait_for_space(&in_use, &found)?;
        Ok(OfPool {
            found,
            name: name.clone(),
            in_use,
            is_held: false,
            taken: None,
        })
    }

    /// Records the snapshots of one pool, all of them or none.
    pub(super) fn record_pooled(
        &self,
        pool: &Name,
        takings: &mut [&mut OfPool],
        moment: &TakenAt,
    ) -> Outcome<Vec<Snapshot>> {
        let mut rows = Vec::new();
        for taking in takings.iter() {
            let row = taking.row(moment).ok_or_else(|| {
                Problem::new(ProblemCode::Internal, "a snapshot was not taken").remedy("try again")
            })?;
            rows.push(NewSnapshot {
                disk: taking.found.descriptor.uuid,
                name: taking.name.as_str(),
                row,
            });
        }
        let recorded = self
            .pools
            .with(pool, |open| open.catalog.add_snapshots(&rows));
        drop(rows);
        if let Err(problem) = recorded {
            // What is durable is not known: a generation that has a name must stay. One without is deleted at the next attach.
            takings.iter_mut().for_each(|taking| taking.taken = None);
            return Err(problem);
        }
        let mut snapshots = Vec::new();
        for taking in takings {
            taking.taken = None;
            snapshots.push(self.snapshot_of(&taking.found, &taking.name)?);
        }
        Ok(snapshots)
    }

    /// Removes a snapshot that was recorded, because another disk of the set has failed.
    pub(super) fn undo_pooled(&self, taking: &OfPool) -> Outcome<()> {
        let uuid = taking.found.descriptor.uuid;
        let gone = self.pools.with(&taking.found.datastore, |open| {
            open.catalog.remove_snapshot(uuid, taking.name.as_str())
        })?;
        let generation = Generation(gone.generation);
        taking
            .in_use
            .order(LayoutOrder::DeleteGeneration(generation))
    }

    fn snapshot_of(&self, found: &Found, name: &Name) -> Outcome<Snapshot> {
        let mut all = self.pooled_snapshots(found)?.snapshots.into_iter();
        let listed = all.find(|it| it.name == *name);
        listed.ok_or_else(|| no_snapshot(&found.name, name))
    }

    /// Deletes a snapshot. The caller has the disk's claim.
    pub(super) fn delete_pooled_snapshot(&self, found: &Found, snapshot: &Name) -> Outcome<()> {
        let uuid = found.descriptor.uuid;
        let gone = self.pools.with(&found.datastore, |open| {
            must_be_listed(&open.catalog.snapshots_of(uuid)?, found, snapshot)?;
            open.catalog.remove_snapshot(uuid, snapshot.as_str())
        })?;
        // It has no name any more: whatever fails now, its space is free after a later attach.
        let generation = Generation(gone.generation);
        if let Err(problem) = self.let_generation_go(found, generation) {
            let disk = &found.name;
            tracing::warn!(%disk, %snapshot, %problem, "the space of a deleted snapshot is free once its disk is attached");
        }
        Ok(())
    }

    fn let_generation_go(&self, found: &Found, generation: Generation) -> Outcome<()> {
        let in_use = self.use_in_pool(found)?;
        in_use.order(LayoutOrder::DeleteGeneration(generation))?;
        if let (InUse::Quiet(_), Some(reported)) = (&in_use, in_use.reported()) {
            // It would be closed at once otherwise, and nothing would be free.
            reported.take(|it| *it == LayoutNotice::GenerationGone(generation), GOING);
        }
        Ok(())
    }

    /// Gives a detached disk the content of a snapshot.
    pub(super) fn roll_pooled_back(&self, found: &Found, snapshot: &Name) -> Outcome<()> {
        let uuid = found.descriptor.uuid;
        let rows = self
            .pools
            .with(&found.datastore, |open| open.catalog.snapshots_of(uuid))?;
        let row = must_be_listed(&rows, found, snapshot)?;
        let in_use = self.use_in_pool(found)?;
        in_use.order(LayoutOrder::RollBack(Generation(row.generation)))?;
        drop(in_use);
        if row.size != found.descriptor.size.0 {
            let mut after = found.clone();
            after.descriptor.size.0 = row.size;
            self.store.write_descriptor(&after)?;
        }
        self.pools.with(&found.datastore, |open| {
            open.catalog.set_latest(uuid, snapshot.as_str())
        })
    }

    /// Fails unless a disk has this snapshot.
    pub(super) fn must_have_pooled(&self, found: &Found, snapshot: &Name) -> Outcome<()> {
        let uuid = found.descriptor.uuid;
        let rows = self
            .pools
            .with(&found.datastore, |open| open.catalog.snapshots_of(uuid))?;
        must_be_listed(&rows, found, snapshot).map(drop)
    }

    /// Makes a disk of a snapshot: one transaction of the catalog.
    pub(super) fn clone_pooled(&self, found: &Found, snapshot: &Name, new: &Name) -> Outcome<()> {
        let uuid = found.descriptor.uuid;
        let blank = clone_of(&found.descriptor)?;
        self.pools.with(&found.datastore, |open| {
            let rows = open.catalog.snapshots_of(uuid)?;
            let row = must_be_listed(&rows, found, snapshot)?;
            let origin = Origin {
                parent: uuid,
                generation: Generation(row.generation),
            };
            open.must_not_be_too_deep(uuid)?;
            let mut descriptor = blank;
            descriptor.size.0 = row.size;
            let parent = open.must_have(&found.name)?;
            let disk = DiskRow {
                reserves: 0,
                wants: parent.row.wants,
                name: new.to_string(),
                descriptor: descriptor.write(),
            };
            if open.disk(new)?.is_some() {
                return Err(
                    Problem::new(ProblemCode::Exists, format!("there is a disk {new}"))
                        .remedy("choose another name"),
                );
            }
            open.catalog.put_clone(descriptor.uuid, &disk, origin)
        })
    }

    /// Deletes generations without a name, of an attached disk of a pool: a crash has left them.
    pub(in super::super) fn sweep_generations(&self, found: &Found, live: &Attached) {
        if !found.is_pooled() {
            return;
        }
        let uuid = found.descriptor.uuid;
        let rows = self
            .pools
            .with(&found.datastore, |open| open.catalog.snapshots_of(uuid));
        let (Ok(rows), Some(report)) = (rows, live.layout().and_then(|it| it.pool)) else {
            return;
        };
        for generation in without_name(&report, &rows) {
            let swept = live.order(LayoutOrder::DeleteGeneration(generation));
            let (disk, generation) = (&found.name, generation.0);
            match swept {
                Ok(()) => {
                    tracing::info!(%disk, generation, "what a crash left of a snapshot is removed")
                }
                Err(problem) => {
                    tracing::warn!(%disk, generation, %problem, "what a crash left of a snapshot stays");
                }
            }
        }
    }
}

/// The generations of a disk that have no name, are not written, and do not go.
fn without_name(report: &PoolReport, rows: &[(String, SnapshotRow)]) -> Vec<Generation> {
    let has_name = |it: Generation| rows.iter().any(|(_, row)| Generation(row.generation) == it);
    let all = report.generations.iter().filter(|it| !it.is_going);
    all.map(|it| it.generation)
        .filter(|it| *it != report.current && !has_name(*it))
        .collect()
}

fn parent_of(report: &PoolReport, of: Generation) -> Option<Generation> {
    let mut all = report.generations.iter();
    all.find(|it| it.generation == of)?.parent
}

/// Waits until a disk has its first grant: the generations are written there.
fn wait_for_space(in_use: &InUse, found: &Found) -> Outcome<()> {
    let until = Instant::now() + FIRST_SPACE;
    loop {
        if in_use.report()?.grants > 0 {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Problem::new(
                ProblemCode::Full,
                format!("disk {} has no space of its pool yet", found.name),
            )
            .because("its generations are recorded in its first space, and the pool gives it none")
            .remedy(format!(
                "see whether the pool is full: tidegate pool show {}",
                found.datastore
            )));
        }
        std::thread::sleep(LOOK);
    }
}

/// Whether a disk that is to be held is held yet.
enum Holding {
    Waiting,
    /// The command does not wait any more.
    GivenUp,
    Ended(Outcome<()>),
}

/// Holds an attached disk, or lets it go on if that takes too long.
fn hold_within(live: &Arc<Attached>, patience: Duration) -> Outcome<()> {
    let state = Arc::new((Mutex::new(Holding::Waiting), Condvar::new()));
    let (shared, holding) = (Arc::clone(&state), Arc::clone(live));
    std::thread::Builder::new()
        .name(format!("hold-{}", live.name()))
        .spawn(move || {
            let held = holding.order(LayoutOrder::Hold);
            let (state, ended) = &*shared;
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(*state, Holding::GivenUp) {
                drop(state);
                if held.is_ok()
                    && let Err(problem) = holding.order(LayoutOrder::Go)
                {
                    tracing::warn!(disk = %holding.name(), %problem, "a held disk does not go on");
                }
                return;
            }
            *state = Holding::Ended(held);
            ended.notify_all();
        })
        .map_err(|e| os_error::io("cannot hold the disk", &e))?;
    let (state, ended) = &*state;
    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = ended.wait_timeout_while(state, patience, |it| matches!(it, Holding::Waiting));
    let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
    match std::mem::replace(&mut *state, Holding::GivenUp) {
        Holding::Ended(held) => held,
        Holding::Waiting | Holding::GivenUp => Err(Problem::new(
            ProblemCode::Datastore,
            format!("disk {} was not held within {patience:?}", live.name()),
        )
        .because("its I/O in flight has not ended, or could not be made durable")
        .remedy(format!(
            "check the members of its pool: tidegate pool show {}",
            live.datastore()
        ))),
    }
}

fn must_be_listed<'a>(
    rows: &'a [(String, SnapshotRow)],
    found: &Found,
    snapshot: &Name,
) -> Outcome<&'a SnapshotRow> {
    let listed = rows.iter().find(|(name, _)| name == snapshot.as_str());
    let listed = listed.map(|(_, row)| row);
    listed.ok_or_else(|| no_snapshot(&found.name, snapshot))
}

fn describe(
    found: &Found,
    name: &str,
    row: &SnapshotRow,
    clones: &[String],
    report: Option<&PoolReport>,
) -> Outcome<Snapshot> {
    let generations = report.into_iter().flat_map(|report| &report.generations);
    let mut own = generations.filter(|it| it.generation.0 == row.generation);
    Ok(Snapshot {
        disk: found.name.clone(),
        name: name_of(name)?,
        parent: row.parent.as_deref().map(name_of).transpose()?,
        taken_at_s: row.at,
        size_bytes: Some(row.size),
        own_bytes: own.next().map(|it| it.extents * EXTENT),
        set: (row.set.0 != [0; 16]).then(|| row.set.to_string()),
        clones: clones
            .iter()
            .map(|it| name_of(it))
            .collect::<Outcome<_>>()?,
    })
}

fn name_of(text: &str) -> Outcome<Name> {
    text.parse().map_err(|error| {
        Problem::new(ProblemCode::Corrupt, "the pool's catalog has a bad name")
            .because_of(&error)
            .remedy("see `tidegate pool check`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::layout::pool::GenerationReport;

    #[test]
    fn only_what_no_name_needs_is_left_of_a_crash() {
        let generation = |number, is_going| GenerationReport {
            generation: Generation(number),
            parent: None,
            extents: 0,
            is_going,
        };
        let report = PoolReport {
            current: Generation(5),
            generations: vec![
                generation(1, false),
                generation(2, true),
                generation(3, false),
                generation(5, false),
            ],
            ..PoolReport::default()
        };
        let row = SnapshotRow {
            generation: 1,
            set: Uuid([0; 16]),
            at: 7,
            size: 512,
            parent: None,
        };
        let rows = [("a".to_owned(), row)];
        assert_eq!(without_name(&report, &rows), [Generation(3)]);
        assert_eq!(without_name(&report, &[]), [Generation(1), Generation(3)]);
    }
}
