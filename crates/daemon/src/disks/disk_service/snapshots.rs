//! Commands on snapshots: taken of one disk or of several at a moment, listed, deleted, and made a disk again.
//!
//! What a snapshot is depends on where its disk is; [`files`] has those of datastores of kind `dir`,
//! [`pooled`] those of pools. Here is what they share.
//!
//! # Always true
//! - The snapshots of a set are taken while the writes of all its disks wait, so they are consistent with each other.
//! - If a disk of a set cannot be held, or a snapshot cannot be taken, all disks go on and there is no snapshot.
//! - No disk waits for what a snapshot needs before or after its moment: files are created before, and made durable after.
//!
//! # Picture
//! ```text
//!   prepare all ─ hold all ─ take all ─ go on, all ─ record all
//! ```

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_api::descriptor::Uuid;
use tidegate_api::disk as api;
use tidegate_api::events::Happening;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::snapshot::{
    DiskClone, DiskRollback, MOST_TOGETHER, Snapshot, SnapshotCreate, SnapshotList, SnapshotsTaken,
};

use super::claims::Claim;
use super::{DiskService, locked};
use crate::disks::attached::Attached;
use crate::disks::counters::SnapshotCounts;
use crate::os_error::{self, Outcome};
use crate::store::Found;
use crate::text::new_uuid;

mod files;
mod pooled;

use files::OfFiles;
use pooled::OfPool;

/// A disk of which a snapshot is taken, with all that is needed to take it at once. Dropping it lets the disk go on, and
/// leaves no snapshot unless it was recorded.
enum Taking<'a> {
    Files(Box<OfFiles<'a>>),
    Pool(Box<OfPool>),
}

impl Taking<'_> {
    /// The disk.
    fn found(&self) -> &Found {
        match self {
            Taking::Files(taking) => taking.found(),
            Taking::Pool(taking) => taking.found(),
        }
    }

    /// Lets what is under way end, and lets later writes wait. Nothing to do for a detached disk with an image file.
    fn hold(&mut self) -> Outcome<()> {
        match self {
            Taking::Files(taking) => taking.hold(),
            Taking::Pool(taking) => taking.hold(),
        }
    }

    /// Takes the snapshot of a held disk.
    fn take(&mut self) -> Outcome<()> {
        match self {
            Taking::Files(taking) => taking.take(),
            Taking::Pool(taking) => taking.take(),
        }
    }

    /// Lets a held disk go on.
    fn go(&mut self) {
        match self {
            Taking::Files(taking) => taking.go(),
            Taking::Pool(taking) => taking.go(),
        }
    }
}

/// What the snapshots of a set have in common.
struct TakenAt {
    /// In seconds since 1970.
    at_s: u64,
    /// None: of one disk.
    set: Option<Uuid>,
}

impl DiskService {
    /// The snapshots of a disk. One that cannot have any has none.
    pub(crate) fn snapshots(&self, name: &Name) -> Outcome<SnapshotList> {
        let found = self.find(name)?;
        if files::must_have_snapshots(&found).is_err() {
            return Ok(SnapshotList {
                disk: found.name,
                latest: None,
                snapshots: Vec::new(),
            });
        }
        self.snapshots_of(&found)
    }

    fn snapshots_of(&self, found: &Found) -> Outcome<SnapshotList> {
        match found.is_pooled() {
            true => self.pooled_snapshots(found),
            false => self.file_snapshots(found),
        }
    }

    /// One snapshot of a disk.
    pub(crate) fn snapshot(&self, name: &Name, snapshot: &Name) -> Outcome<Snapshot> {
        let mut list = self.snapshots(name)?.snapshots.into_iter();
        let found = list.rfind(|it| it.name == *snapshot);
        found.ok_or_else(|| no_snapshot(name, snapshot))
    }

    /// Takes a snapshot of a disk, and of others at the same moment.
    pub(crate) fn take_snapshots(
        &self,
        name: &Name,
        order: &SnapshotCreate,
    ) -> Outcome<SnapshotsTaken> {
        let what = format!("cannot take snapshot {name}@{}", order.name);
        let names = disks_of(name, order).map_err(|e| e.within(&what))?;
        let claims = self.claim_all(&names, &what)?;
        let mut takings = Vec::new();
        for claim in &claims {
            let taking = self
                .begin_snapshot(claim, &order.name)
                .map_err(|e| e.within(&what))?;
            takings.push(taking);
        }
        let held = Instant::now();
        let taken = hold_all(&mut takings).and_then(|()| {
            takings
                .iter_mut()
                .try_for_each(|it| it.take().map_err(|e| of_disk(it.found(), e)))
        });
        takings.iter_mut().for_each(|it| it.go());
        let held = held.elapsed();
        taken.map_err(|e| e.within(&what))?;
        let moment = TakenAt {
            at_s: now_s(),
            set: match takings.len() {
                1 => None,
                _ => Some(new_uuid()?),
            },
        };
        let mut snapshots = self
            .record_all(&mut takings, &moment)
            .map_err(|e| e.within(&what))?;
        self.tell_taken(&takings, &snapshots, held);
        // As the request names them.
        let place = |disk: &Name| names.iter().position(|name| name == disk);
        snapshots.sort_by_key(|it| place(&it.disk));
        Ok(SnapshotsTaken {
            snapshots,
            held_us: u64::try_from(held.as_micros()).unwrap_or(u64::MAX),
        })
    }

    /// Deletes a snapshot.
    pub(crate) fn delete_snapshot(&self, name: &Name, snapshot: &Name) -> Outcome<()> {
        let what = format!("cannot delete snapshot {name}@{snapshot}");
        let _claim = self.claim(name, &what)?;
        let (found, _turn) = self.find_to_change(name)?;
        let _reserved = self.reserve(name, snapshot).map_err(|e| e.within(&what))?;
        files::must_have_snapshots(&found)
            .and_then(|()| match found.is_pooled() {
                true => self.delete_pooled_snapshot(&found, snapshot),
                false => self.delete_file_snapshot(&found, snapshot),
            })
            .map_err(|e| e.within(&what))?;
        self.count_snapshots(&found);
        let happening = Happening::SnapshotDeleted {
            disk: name.clone(),
            snapshot: snapshot.clone(),
        };
        self.tell_of(&found.datastore, name, happening);
        Ok(())
    }

    /// Gives a disk the content of a snapshot. One that is attached is detached meanwhile.
    pub(crate) fn roll_back(&self, name: &Name, order: &DiskRollback) -> Outcome<api::Disk> {
        let snapshot = &order.snapshot;
        let what = format!("cannot roll disk {name} back to {name}@{snapshot}");
        let claim = self.claim(name, &what)?;
        let (found, turn) = self.find_to_change(name)?;
        claim.keep(&found.datastore);
        files::must_have_snapshots(&found)
            .and_then(|()| self.must_be_rollable(&found, snapshot))
            .map_err(|e| e.within(&what))?;
        let live = self.live.get(name);
        if let Some(live) = &live {
            must_be_free(live, order.clients)
                .and_then(|()| self.take_down(live, Some(claim.clone())))
                .map_err(|e| e.within(&what))?;
            claim.detach_has_ended();
        }
        let rolled_back = match found.is_pooled() {
            true => self.roll_pooled_back(&found, snapshot),
            false => self.roll_files_back(&found, snapshot),
        };
        let rolled_back = rolled_back.map_err(|e| e.within(&what));
        drop(turn);
        if live.is_some() {
            let again = self.attach_claimed(&claim, self.remembered_order(name));
            match (&rolled_back, again) {
                (_, Ok(_)) => {}
                (Ok(()), Err(problem)) => {
                    return Err(problem.within(format!(
                        "disk {name} was rolled back, but cannot be attached again"
                    )));
                }
                (Err(first), Err(second)) => return Err(first.clone().because(second)),
            }
        }
        rolled_back?;
        let happening = Happening::DiskRolledBack {
            disk: name.clone(),
            snapshot: snapshot.clone(),
        };
        self.tell_of(&found.datastore, name, happening);
        self.disk(name)
    }

    /// Makes a disk of a snapshot.
    pub(crate) fn clone_disk(&self, name: &Name, order: &DiskClone) -> Outcome<api::Disk> {
        let (snapshot, new) = (&order.snapshot, &order.name);
        let what = format!("cannot make disk {new} of {name}@{snapshot}");
        // The disk of the snapshot is not changed: others may be made of it at the same time.
        let claim = self.claim(new, &what)?;
        self.must_be_new(new, &what)?;
        let found = self.find(name).map_err(|e| e.within(&what))?;
        claim.keep(&found.datastore);
        files::must_have_snapshots(&found)
            .and_then(|()| match found.is_pooled() {
                true => self.clone_pooled(&found, snapshot, new),
                false => self.clone_files(&found, snapshot, new),
            })
            .map_err(|e| e.within(&what))?;
        let happening = Happening::DiskCloned {
            disk: new.clone(),
            of: format!("{name}@{snapshot}"),
        };
        self.tell_of(&found.datastore, new, happening);
        self.disk(new)
    }

    /// Notes how many snapshots a disk has, for the metrics. What cannot be read is not counted.
    pub(super) fn count_snapshots(&self, found: &Found) {
        if files::must_have_snapshots(found).is_err() {
            return;
        }
        let Ok(list) = self.snapshots_of(found) else {
            return;
        };
        let counts = SnapshotCounts {
            count: list.snapshots.len() as u64,
            oldest_s: list.snapshots.iter().map(|it| it.taken_at_s).min(),
        };
        locked(&self.snapshot_counts).insert(found.name.clone(), counts);
    }

    /// Fails if a disk has snapshots.
    pub(super) fn must_have_no_snapshots(&self, found: &Found, why: &str) -> Outcome<()> {
        if files::must_have_snapshots(found).is_err() {
            return Ok(());
        }
        let list = self.snapshots_of(found)?.snapshots;
        if list.is_empty() {
            return Ok(());
        }
        const SHOWN: usize = 5;
        let shown: Vec<_> = list.iter().take(SHOWN).map(|it| it.name.as_str()).collect();
        let more = match list.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let name = &found.name;
        Err(
            Problem::new(ProblemCode::Busy, format!("disk {name} has snapshots: {why}"))
                .because(format!("they are {}{more}", shown.join(", ")))
                .remedy(format!(
                    "delete them first: tidegate disk snapshot delete {name}@NAME; or, to delete the disk with all of them: \
                     tidegate disk delete {name} --snapshots"
                )),
        )
    }

    /// Claims disks, all of them or none.
    fn claim_all(&self, names: &[Name], what: &str) -> Outcome<Vec<Claim>> {
        // In the order of their names: of two commands with the same disks, one gets all.
        let mut sorted: Vec<_> = names.iter().collect();
        sorted.sort();
        sorted
            .into_iter()
            .map(|name| self.claim(name, what))
            .collect()
    }

    /// Prepares a snapshot: what takes long is done before the disk waits.
    fn begin_snapshot(&self, claim: &Claim, snapshot: &Name) -> Outcome<Taking<'_>> {
        let (found, turn) = self.find_to_change(claim.name())?;
        claim.keep(&found.datastore);
        files::must_have_snapshots(&found)?;
        Ok(match found.is_pooled() {
            true => Taking::Pool(Box::new(self.begin_pooled_snapshot(found, snapshot)?)),
            false => Taking::Files(Box::new(self.begin_file_snapshot(found, turn, snapshot)?)),
        })
    }

    /// Records all snapshots of a set, or none. Those of a pool are one transaction.
    fn record_all(&self, takings: &mut [Taking<'_>], moment: &TakenAt) -> Outcome<Vec<Snapshot>> {
        let mut snapshots = Vec::new();
        let mut of_files: Vec<&mut OfFiles<'_>> = Vec::new();
        let mut of_pools: BTreeMap<Name, Vec<&mut OfPool>> = BTreeMap::new();
        for taking in takings {
            match taking {
                Taking::Files(taking) => of_files.push(taking),
                Taking::Pool(taking) => {
                    let pool = taking.found().datastore.clone();
                    of_pools.entry(pool).or_default().push(taking);
                }
            }
        }
        let mut failed = None;
        for taking in &mut of_files {
            match taking.record(moment) {
                Ok(snapshot) => snapshots.push(snapshot),
                Err(problem) => {
                    failed = Some(of_disk(taking.found(), problem));
                    break;
                }
            }
        }
        let recorded = snapshots.len();
        let mut in_pools: Vec<(Name, Vec<Snapshot>)> = Vec::new();
        for (pool, takings) in &mut of_pools {
            if failed.is_some() {
                break;
            }
            match self.record_pooled(pool, takings, moment) {
                Ok(taken) => in_pools.push((pool.clone(), taken)),
                Err(problem) => failed = Some(problem),
            }
        }
        let Some(mut problem) = failed else {
            let pooled = in_pools.into_iter().flat_map(|(_, taken)| taken);
            snapshots.extend(pooled);
            return Ok(snapshots);
        };
        let mut undo = |undone: Outcome<()>| {
            if let Err(second) = undone {
                problem = problem.clone().because(second);
            }
        };
        for taking in of_files.iter_mut().take(recorded) {
            undo(taking.undo());
        }
        for (pool, _) in &in_pools {
            let takings = of_pools.get(pool).into_iter().flatten();
            takings.for_each(|taking| undo(self.undo_pooled(taking)));
        }
        Err(problem)
    }

    fn tell_taken(&self, takings: &[Taking<'_>], snapshots: &[Snapshot], held: Duration) {
        for taking in takings {
            let found = taking.found();
            self.count_snapshots(found);
            let Some(snapshot) = snapshots.iter().find(|it| it.disk == found.name) else {
                continue;
            };
            tracing::info!(snapshot = %snapshot.full_name(), ?held, "taken");
            let happening = Happening::SnapshotTaken {
                disk: snapshot.disk.clone(),
                snapshot: snapshot.name.clone(),
                held_us: u64::try_from(held.as_micros()).unwrap_or(u64::MAX),
            };
            self.tell_of(&found.datastore, &found.name, happening);
        }
    }

    fn tell_of(&self, datastore: &Name, disk: &Name, happening: Happening) {
        self.notices.add_member(disk, datastore, happening);
    }
}

/// The disks of a request, each once.
fn disks_of(name: &Name, order: &SnapshotCreate) -> Outcome<Vec<Name>> {
    let names: Vec<Name> = std::iter::once(name).chain(&order.with).cloned().collect();
    if names.len() > MOST_TOGETHER {
        let count = names.len();
        return Err(os_error::invalid(format!(
            "it names {count} disks, and at most {MOST_TOGETHER} can be taken together"
        ))
        .remedy("name fewer disks"));
    }
    let twice = names.iter().enumerate();
    let twice = twice
        .filter(|(nth, name)| names[..*nth].contains(name))
        .map(|(_, name)| name)
        .next();
    match twice {
        None => Ok(names),
        Some(name) => {
            Err(os_error::invalid(format!("it names disk {name} twice"))
                .remedy("name each disk once"))
        }
    }
}

/// Holds all disks of a set at the same time: those that are held wait for the slowest.
fn hold_all(takings: &mut [Taking<'_>]) -> Outcome<()> {
    let hold = |taking: &mut Taking<'_>| {
        let held = taking.hold();
        held.map_err(|e| of_disk(taking.found(), e))
    };
    if let [only] = takings {
        return hold(only);
    }
    std::thread::scope(|scope| {
        let holding: Vec<_> = takings
            .iter_mut()
            .map(|taking| scope.spawn(move || hold(taking)))
            .collect();
        // All of them have ended before the first error counts.
        let held: Vec<_> = holding.into_iter().map(|it| it.join()).collect();
        held.into_iter()
            .try_for_each(|it| it.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// The problem of one disk of a set.
fn of_disk(disk: &Found, problem: Problem) -> Problem {
    let about = format!("disk {}", disk.name);
    match problem.to_string().contains(&about) {
        true => problem,
        false => problem.within(format!("{about} cannot be used for it")),
    }
}

/// Fails if somebody uses a disk, unless they are to be disconnected.
fn must_be_free(live: &Attached, clients: api::Clients) -> Outcome<()> {
    let connected = live.clients();
    if clients == api::Clients::Disconnect || connected.is_empty() {
        return Ok(());
    }
    let name = live.name();
    let who: Vec<_> = connected.iter().map(|client| client.peer.clone()).collect();
    Err(Problem::new(
        ProblemCode::Busy,
        format!("disk {name} is in use by {}", who.join(", ")),
    )
    .because("a guest that runs does not notice that its disk changes, and would damage it")
    .remedy("shut the guest down first; or add --disconnect, which disconnects it"))
}

fn no_snapshot(disk: &Name, snapshot: &Name) -> Problem {
    Problem::new(
        ProblemCode::NotFound,
        format!("there is no snapshot {disk}@{snapshot}"),
    )
    .remedy(format!("list them: tidegate disk snapshot list {disk}"))
}

/// The wall clock, in seconds since 1970.
fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
