//! The oracle of a pool: which bytes each disk, clone and snapshot may show, now and after a crash.
//!
//! A disk has a [`History`]. A snapshot is one moment between its order and its answer. For each sector it has a version
//! that was visible at that moment. Reads of the snapshot narrow the moment and the versions, and never widen them. A
//! clone begins with what its parent's snapshot has. A rollback is a durable write of what the snapshot has to the whole
//! disk. None of this comes from the layout's code: it is what the decision record promises.
//!
//! # Always true
//! - All sectors of a snapshot are of one moment, whichever disk or clone shows them.
//! - What a snapshot has shown of a sector it shows ever after, also after a crash.
//! - A snapshot that was answered has everything that was answered before its order, durably.
//! - An act that was not answered before a crash has happened as a whole, or not at all.

use crate::crash::history::{End, History, Visible};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Stamps from here on are not of a write: they name a snapshot.
const SNAPSHOTS: u64 = 1 << 48;

/// A disk of the pool, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disk(pub usize);

/// A snapshot of any disk, by number. A number is used once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Snapshot(usize);

/// See the module.
#[derive(Default)]
pub struct Oracle {
    disks: BTreeMap<Disk, DiskState>,
    /// By [`Snapshot`]. None is ever forgotten, because a disk may have its bytes.
    snapshots: Vec<SnapshotState>,
}

#[derive(Clone)]
struct DiskState {
    sectors: u64,
    history: History,
    /// What was ordered and is not answered.
    act: Option<Act>,
    /// A rollback to this has failed, and a crash may bring it nevertheless until the disk makes something durable.
    failed: Option<Snapshot>,
    /// After a crash: the same disk if that act has happened, until [`Oracle::decide`].
    happened: Option<(Act, History)>,
    /// The snapshot that it was, if it was one.
    doubtful: Option<Snapshot>,
}

/// An act on a whole disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// A snapshot that was ordered at this moment of the disk.
    Snapshot { ordered: u64 },
    /// A rollback. The moment names its write.
    Rollback { ordered: u64, to: Snapshot },
}

struct SnapshotState {
    /// The moment that it shows is after this one,
    after: u64,
    /// and before this one.
    before: u64,
    /// What each sector may have. Those that are absent have the first version of the disk.
    sectors: BTreeMap<u64, Vec<Visible>>,
    first: u64,
}

/// What an act was that a crash has cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InDoubt {
    /// A snapshot.
    Snapshot,
    /// A rollback.
    Rollback,
}

impl Oracle {
    /// A new disk: zeroes, or what a snapshot has.
    pub fn create(&mut self, disk: Disk, sectors: u64, parent: Option<Snapshot>) {
        let first = parent.map_or(0, Snapshot::stamp);
        let state = DiskState {
            sectors,
            history: History::over(first),
            act: None,
            failed: None,
            happened: None,
            doubtful: None,
        };
        self.disks.insert(disk, state);
    }

    /// A disk is deleted.
    pub fn remove(&mut self, disk: Disk) {
        self.disks.remove(&disk);
    }

    /// The history of a disk, for its guest's requests.
    ///
    /// # Panics
    /// There is no such disk.
    pub fn history(&mut self, disk: Disk) -> &mut History {
        &mut self.disk(disk).history
    }

    /// A disk grows. What is new has zeroes.
    pub fn grow(&mut self, disk: Disk, sectors: u64) {
        self.disk(disk).sectors = sectors;
    }

    /// A snapshot is ordered.
    pub fn order_snapshot(&mut self, disk: Disk) {
        let state = self.disk(disk);
        let ordered = state.history.tick();
        state.act = Some(Act::Snapshot { ordered });
    }

    /// A rollback is ordered.
    pub fn order_rollback(&mut self, disk: Disk, to: Snapshot) {
        let state = self.disk(disk);
        let ordered = state.history.write(0..state.sectors, to.stamp());
        state.act = Some(Act::Rollback { ordered, to });
    }

    /// The act of a disk is refused or has failed.
    pub fn refused(&mut self, disk: Disk) {
        let state = self.disk(disk);
        if let Some(Act::Rollback { ordered, to }) = state.act.take() {
            state.history.withdraw(ordered);
            state.failed = Some(to);
        }
    }

    /// A flush of a disk that began at this moment has ended.
    pub fn flushed(&mut self, disk: Disk, began: u64) {
        let state = self.disk(disk);
        state.history.flushed(began);
        state.failed = None;
    }

    /// A write, zeroing or discard of a disk has ended.
    pub fn wrote(&mut self, disk: Disk, range: Range<u64>, issued: u64, end: End) {
        let state = self.disk(disk);
        state.history.wrote(range, issued, end);
        if end == End::Durable {
            state.failed = None;
        }
    }

    /// The snapshot of a disk is answered.
    ///
    /// # Errors
    /// None was ordered.
    pub fn snapshot_taken(&mut self, disk: Disk) -> Result<Snapshot, String> {
        let state = self.disk(disk);
        let Some(Act::Snapshot { ordered }) = state.act.take() else {
            return Err(format!("{disk:?} has a snapshot that nobody ordered"));
        };
        let answered = state.history.tick();
        let sectors = state.history.visible(ordered, answered);
        state.history.flushed(ordered);
        state.failed = None;
        Ok(self.add(disk, ordered, answered, sectors))
    }

    /// The rollback of a disk is answered.
    ///
    /// # Errors
    /// None was ordered.
    pub fn rolled_back(&mut self, disk: Disk) -> Result<(), String> {
        let state = self.disk(disk);
        let Some(Act::Rollback { ordered, .. }) = state.act.take() else {
            return Err(format!("{disk:?} was rolled back, and nobody ordered that"));
        };
        let all = 0..state.sectors;
        state.history.wrote(all, ordered, End::Durable);
        state.failed = None;
        Ok(())
    }

    /// Whether a disk has an act that is not answered, or that has failed and may come back.
    pub fn is_busy(&self, disk: Disk) -> bool {
        let state = self.disks.get(&disk);
        state.is_some_and(|state| state.act.is_some() || state.failed.is_some())
    }

    /// The host has crashed. An act that was not answered is in doubt from now on.
    pub fn crash(&mut self) {
        for state in self.disks.values_mut() {
            if let Some((_, happened)) = &mut state.happened {
                // A crash before the answer to the question that the last one has left.
                happened.crash();
                state.history.crash();
                continue;
            }
            let mut happened = state.history.clone();
            // Of a rollback that has failed it is as if it had been ordered just now.
            let failed = state.failed.take().map(|to| Act::Rollback {
                ordered: happened.write(0..state.sectors, to.stamp()),
                to,
            });
            let Some(act) = state.act.take().or(failed) else {
                state.history.crash();
                continue;
            };
            match act {
                Act::Snapshot { ordered } => happened.flushed(ordered),
                Act::Rollback { ordered, .. } => {
                    happened.wrote(0..state.sectors, ordered, End::Durable);
                    state.history.withdraw(ordered);
                }
            }
            if let Act::Snapshot { ordered } = act {
                // What it has, should it exist.
                let ended = happened.tick();
                state.doubtful = Some(Snapshot(self.snapshots.len()));
                self.snapshots.push(SnapshotState {
                    after: ordered,
                    before: ended,
                    sectors: happened.visible(ordered, ended),
                    first: happened.first(),
                });
            }
            happened.crash();
            state.history.crash();
            state.happened = Some((act, happened));
        }
    }

    /// What is in doubt about a disk since the last crash.
    pub fn in_doubt(&self, disk: Disk) -> Option<InDoubt> {
        let (act, _) = self.disks.get(&disk)?.happened.as_ref()?;
        Some(match act {
            Act::Snapshot { .. } => InDoubt::Snapshot,
            Act::Rollback { .. } => InDoubt::Rollback,
        })
    }

    /// The disk has opened, and shows whether the act in doubt has happened. Returns the snapshot that it was.
    pub fn decide(&mut self, disk: Disk, has_happened: bool) -> Option<Snapshot> {
        let state = self.disk(disk);
        let (_, happened) = state.happened.take()?;
        let snapshot = state.doubtful.take();
        if has_happened {
            state.history = happened;
            return snapshot;
        }
        None
    }

    /// A read of a disk that began at this moment has ended, with this content of one sector.
    ///
    /// # Errors
    /// The disk may not show it.
    pub fn read(&mut self, disk: Disk, sector: u64, began: u64, stamp: u64) -> Result<(), String> {
        let Oracle { disks, snapshots } = self;
        let state = disks.get_mut(&disk).expect("it exists");
        let seen = state.history.saw(sector, began, |version| {
            may_be(snapshots, sector, version, stamp)
        });
        match seen {
            Ok(seen) if seen.is_certain => self.narrow(sector, seen.stamp, stamp),
            Ok(_) => {}
            Err(visible) => {
                return Err(format!(
                    "{disk:?}: sector {sector} has write {stamp}, and may have only one of {}",
                    self.describe(sector, &visible)
                ));
            }
        }
        Ok(())
    }

    /// A read of a snapshot has ended, with this content of one sector.
    ///
    /// # Errors
    /// The snapshot may not show it.
    pub fn read_snapshot(&mut self, of: Snapshot, sector: u64, stamp: u64) -> Result<(), String> {
        if may_be(&self.snapshots, sector, of.stamp(), stamp) {
            self.narrow(sector, of.stamp(), stamp);
            return Ok(());
        }
        Err(format!(
            "{of:?}: sector {sector} has write {stamp}, and may have only one of {}",
            self.describe(sector, &[of.stamp()])
        ))
    }

    /// No read is under way, of any disk: histories forget what nothing can show any more.
    pub fn forget(&mut self) {
        for state in self.disks.values_mut() {
            if state.act.is_none() && state.happened.is_none() {
                state.history.forget();
            }
        }
    }

    fn add(
        &mut self,
        disk: Disk,
        after: u64,
        before: u64,
        sectors: BTreeMap<u64, Vec<Visible>>,
    ) -> Snapshot {
        let first = self.disk(disk).history.first();
        self.snapshots.push(SnapshotState {
            after,
            before,
            sectors,
            first,
        });
        Snapshot(self.snapshots.len() - 1)
    }

    /// A sector of a version was seen with this content: if the version names a snapshot, that has it ever after.
    fn narrow(&mut self, sector: u64, mut version: u64, stamp: u64) {
        while let Some(of) = Snapshot::named(version) {
            let (earlier, rest) = self.snapshots.split_at_mut(of.0);
            let state = &mut rest[0];
            let fits = |it: &Visible| may_be(earlier, sector, it.stamp, stamp);
            let (after, before) = (state.after, state.before);
            let Some(versions) = state.sectors.get_mut(&sector) else {
                version = state.first;
                continue;
            };
            versions.retain(|it| it.hidden > after && it.issued < before && fits(it));
            let oldest = versions.iter().map(|it| it.issued).min();
            let latest = versions.iter().map(|it| it.hidden).max();
            state.after = after.max(oldest.unwrap_or(0));
            state.before = before.min(latest.unwrap_or(before));
            match versions.as_slice() {
                [one] => version = one.stamp,
                _ => return,
            }
        }
    }

    fn disk(&mut self, disk: Disk) -> &mut DiskState {
        self.disks.get_mut(&disk).expect("the disk exists")
    }

    fn describe(&self, sector: u64, versions: &[u64]) -> String {
        let mut stamps = BTreeSet::new();
        for version in versions {
            let all = Contents::new(&self.snapshots, sector, *version);
            stamps.extend(all);
        }
        format!("{stamps:?}")
    }
}

impl SnapshotState {
    /// The versions of a sector that are possible at the moments that are left.
    fn possible<'a>(&self, versions: &'a [Visible]) -> impl Iterator<Item = &'a Visible> {
        let (after, before) = (self.after, self.before);
        let versions = versions.iter();
        versions.filter(move |it| it.hidden > after && it.issued < before)
    }
}

/// Whether a version of a sector may have this content.
fn may_be(snapshots: &[SnapshotState], sector: u64, version: u64, stamp: u64) -> bool {
    match Snapshot::named(version) {
        None => version == stamp,
        Some(_) => Contents::new(snapshots, sector, version).any(|it| it == stamp),
    }
}

/// The contents that a version of a sector may have. A snapshot has bytes of earlier ones only. Each is looked at once,
/// however many ways lead to it: disks that are rolled back again and again have very many.
struct Contents<'a> {
    snapshots: &'a [SnapshotState],
    sector: u64,
    left: Vec<u64>,
    seen: Vec<bool>,
}

impl<'a> Contents<'a> {
    fn new(snapshots: &'a [SnapshotState], sector: u64, version: u64) -> Contents<'a> {
        Contents {
            snapshots,
            sector,
            left: vec![version],
            seen: vec![false; snapshots.len()],
        }
    }
}

impl Iterator for Contents<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        while let Some(version) = self.left.pop() {
            let Some(of) = Snapshot::named(version) else {
                return Some(version);
            };
            if std::mem::replace(&mut self.seen[of.0], true) {
                continue;
            }
            let state = &self.snapshots[of.0];
            match state.sectors.get(&self.sector) {
                None => self.left.push(state.first),
                Some(versions) => {
                    let possible = state.possible(versions);
                    self.left.extend(possible.map(|it| it.stamp));
                }
            }
        }
        None
    }
}

impl Snapshot {
    fn stamp(self) -> u64 {
        SNAPSHOTS + self.0 as u64
    }

    fn named(stamp: u64) -> Option<Snapshot> {
        let number = stamp.checked_sub(SNAPSHOTS)?;
        Some(Snapshot(usize::try_from(number).expect("64 bits")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Disk = Disk(0);
    const CLONE: Disk = Disk(1);

    fn disk() -> Oracle {
        let mut oracle = Oracle::default();
        oracle.create(DISK, 8, None);
        oracle
    }

    fn write(oracle: &mut Oracle, disk: Disk, sector: u64, stamp: u64, end: End) {
        let history = oracle.history(disk);
        let issued = history.write(sector..sector + 1, stamp);
        history.wrote(sector..sector + 1, issued, end);
    }

    fn snapshot(oracle: &mut Oracle) -> Snapshot {
        oracle.order_snapshot(DISK);
        oracle.snapshot_taken(DISK).expect("it was ordered")
    }

    fn may_read(oracle: &mut Oracle, disk: Disk, sector: u64, stamp: u64) -> bool {
        let began = oracle.history(disk).tick();
        oracle.read(disk, sector, began, stamp).is_ok()
    }

    #[test]
    fn a_snapshot_has_what_was_answered_before_its_order_and_nothing_that_came_later() {
        let mut oracle = disk();
        write(&mut oracle, DISK, 0, 1, End::Done);
        let taken = snapshot(&mut oracle);
        write(&mut oracle, DISK, 0, 2, End::Durable);
        for stamp in [0, 2] {
            assert!(oracle.read_snapshot(taken, 0, stamp).is_err());
        }
        oracle.crash();
        assert_eq!(oracle.read_snapshot(taken, 0, 1), Ok(()));
        assert!(may_read(&mut oracle, DISK, 0, 2));
    }

    #[test]
    fn a_write_beside_a_snapshot_is_in_it_or_not_and_stays_so() {
        for (first, then) in [(1, 0), (0, 1)] {
            let mut oracle = disk();
            oracle.order_snapshot(DISK);
            let issued = oracle.history(DISK).write(0..1, 1);
            let taken = oracle.snapshot_taken(DISK).expect("it was ordered");
            oracle.history(DISK).wrote(0..1, issued, End::Done);
            assert_eq!(oracle.read_snapshot(taken, 0, first), Ok(()));
            oracle.crash();
            assert!(oracle.read_snapshot(taken, 0, then).is_err());
        }
    }

    #[test]
    fn all_sectors_of_a_snapshot_are_of_one_moment() {
        let mut oracle = disk();
        oracle.order_snapshot(DISK);
        // The second write begins after the first one was answered.
        write(&mut oracle, DISK, 0, 1, End::Done);
        write(&mut oracle, DISK, 1, 2, End::Done);
        let taken = oracle.snapshot_taken(DISK).expect("it was ordered");
        assert_eq!(oracle.read_snapshot(taken, 1, 2), Ok(()));
        assert!(oracle.read_snapshot(taken, 0, 0).is_err());
        assert_eq!(oracle.read_snapshot(taken, 0, 1), Ok(()));
    }

    #[test]
    fn an_answered_snapshot_makes_durable_what_it_has() {
        let mut oracle = disk();
        write(&mut oracle, DISK, 0, 1, End::Done);
        snapshot(&mut oracle);
        oracle.crash();
        assert!(!may_read(&mut oracle, DISK, 0, 0));
    }

    #[test]
    fn a_snapshot_that_a_crash_cut_off_is_whole_if_it_exists() {
        for exists in [true, false] {
            let mut oracle = disk();
            write(&mut oracle, DISK, 0, 1, End::Done);
            oracle.order_snapshot(DISK);
            oracle.crash();
            assert_eq!(oracle.in_doubt(DISK), Some(InDoubt::Snapshot));
            oracle.crash();
            let taken = oracle.decide(DISK, exists);
            assert_eq!(taken.is_some(), exists);
            assert_eq!(may_read(&mut oracle, DISK, 0, 0), !exists);
            if let Some(taken) = taken {
                assert!(oracle.read_snapshot(taken, 0, 0).is_err());
                assert_eq!(oracle.read_snapshot(taken, 0, 1), Ok(()));
            }
        }
    }

    #[test]
    fn a_rollback_shows_the_snapshot_durably_and_one_that_was_cut_off_wholly_or_not_at_all() {
        let mut oracle = disk();
        write(&mut oracle, DISK, 0, 1, End::Durable);
        let taken = snapshot(&mut oracle);
        write(&mut oracle, DISK, 0, 2, End::Durable);
        write(&mut oracle, DISK, 1, 3, End::Durable);
        for happens in [false, true] {
            oracle.order_rollback(DISK, taken);
            oracle.crash();
            assert_eq!(oracle.in_doubt(DISK), Some(InDoubt::Rollback));
            oracle.decide(DISK, happens);
            assert_eq!(may_read(&mut oracle, DISK, 0, 1), happens);
            assert_eq!(may_read(&mut oracle, DISK, 1, 3), !happens);
        }
        oracle.order_rollback(DISK, taken);
        assert_eq!(oracle.rolled_back(DISK), Ok(()));
        oracle.crash();
        assert!(!may_read(&mut oracle, DISK, 0, 2));
    }

    #[test]
    fn a_rollback_that_failed_may_come_back_until_the_disk_makes_something_durable() {
        for flush in [false, true] {
            let mut oracle = disk();
            let taken = snapshot(&mut oracle);
            write(&mut oracle, DISK, 0, 1, End::Durable);
            oracle.order_rollback(DISK, taken);
            oracle.refused(DISK);
            assert!(may_read(&mut oracle, DISK, 0, 1) && !may_read(&mut oracle, DISK, 0, 0));
            if flush {
                let began = oracle.history(DISK).tick();
                oracle.flushed(DISK, began);
            }
            oracle.crash();
            let doubt = (!flush).then_some(InDoubt::Rollback);
            assert_eq!(oracle.in_doubt(DISK), doubt);
            oracle.decide(DISK, true);
            assert_eq!(may_read(&mut oracle, DISK, 0, 0), !flush);
        }
    }

    #[test]
    fn a_clone_shows_its_parents_snapshot_until_it_is_written_and_agrees_with_it() {
        let mut oracle = disk();
        oracle.order_snapshot(DISK);
        let issued = oracle.history(DISK).write(0..2, 1);
        let taken = oracle.snapshot_taken(DISK).expect("it was ordered");
        oracle.history(DISK).wrote(0..2, issued, End::Done);
        oracle.create(CLONE, 8, Some(taken));
        assert!(may_read(&mut oracle, CLONE, 0, 0));
        assert!(oracle.read_snapshot(taken, 0, 1).is_err());
        write(&mut oracle, CLONE, 1, 2, End::Durable);
        assert!(!may_read(&mut oracle, CLONE, 1, 0));
        assert!(may_read(&mut oracle, DISK, 1, 1));
        assert!(!may_read(&mut oracle, DISK, 1, 2));
    }

    #[test]
    fn what_a_sector_may_have_is_found_at_once_after_many_rollbacks() {
        let mut oracle = disk();
        write(&mut oracle, DISK, 0, 1, End::Done);
        let mut all = vec![snapshot(&mut oracle)];
        // Each snapshot has any of those before it: 2^40 ways lead from the last one to the first.
        for _ in 0..40 {
            oracle.order_snapshot(DISK);
            for to in &all {
                let history = oracle.history(DISK);
                history.write(0..8, to.stamp());
            }
            all.push(oracle.snapshot_taken(DISK).expect("it was ordered"));
        }
        let last = all[all.len() - 1];
        assert!(oracle.read_snapshot(last, 0, 2).is_err());
        assert_eq!(oracle.read_snapshot(last, 0, 1), Ok(()));
    }

    #[test]
    fn an_act_that_nobody_ordered_is_a_breach() {
        let mut oracle = disk();
        assert!(oracle.snapshot_taken(DISK).is_err());
        oracle.order_snapshot(DISK);
        assert!(oracle.rolled_back(DISK).is_err());
    }
}
