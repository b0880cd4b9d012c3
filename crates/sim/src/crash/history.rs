//! The history of a disk: which versions of a sector a read may return, now and after a crash.
//!
//! Every write, zeroing and discard makes a version of its sectors. A version is *visible* until a newer one has
//! replaced it, and *recoverable* until a newer one is durable. Requests that overlap in time have no order until an
//! answer shows one.
//!
//! # Always true
//! - A read that is answered returns a version that was visible at some time while the read was under way.
//! - What an answered read returned is older than nothing that a later read returns.
//!   Of a write that failed with the last member of a mirror that does not hold: another member may have had it.
//! - After a crash the recoverable versions are visible, and no others.
//!
//! # Source
//! Herlihy and Wing, "Linearizability" (1990), for one register per sector; durability after Izraelevitz et al.,
//! "Linearizability of persistent memory objects" (DISC 2016): an operation is durable once a flush that began after its
//! end has ended.

use std::collections::BTreeMap;
use std::ops::Range;

/// Not yet.
const NEVER: u64 = u64::MAX;

/// The versions of each sector of a disk.
#[derive(Clone, Default)]
pub struct History {
    /// Those that were written. The others have the first version.
    sectors: BTreeMap<u64, Vec<Version>>,
    /// The stamp of the first version of each sector: 0 is zeroes.
    first: u64,
    /// Each event has a moment of its own.
    now: u64,
    /// The moment of the last crash.
    crashed: u64,
}

#[derive(Clone)]
struct Version {
    stamp: u64,
    issued: u64,
    ended: u64,
    /// Whether older versions are gone once it has ended: not so for a discard or a failed write.
    replaces: bool,
    /// From this moment on no read may return it.
    hidden: u64,
    /// The write that a read has seen and that is newer, if nothing else shows that this version is gone.
    outdone_by: Option<u64>,
    /// Whether a later read may return an older version although one has seen this.
    fleeting: bool,
    /// Whether a crash may bring it back.
    recoverable: bool,
}

/// A version that was visible at some time of an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visible {
    /// Its stamp.
    pub stamp: u64,
    /// When its write began.
    pub issued: u64,
    /// From when on no read may return it.
    pub hidden: u64,
}

/// What a read has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The stamp of the version.
    pub stamp: u64,
    /// Whether no other version has such bytes.
    pub is_certain: bool,
}

/// How a write, zeroing or discard ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It is done, and volatile.
    Done,
    /// It is done and durable (FUA).
    Durable,
    /// It was a discard, or failed: it may have happened or not.
    Unknown,
    /// It failed after a mirror had lost its last member: what a read has seen of it may be gone.
    Lost,
}

impl History {
    /// A disk of zeroes.
    pub fn new() -> History {
        History::default()
    }

    /// A disk whose sectors all have a version of this stamp.
    pub fn over(first: u64) -> History {
        History {
            first,
            ..History::default()
        }
    }

    /// The stamp of the first version of each sector.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The versions of each sector that were visible at some time from `began` on, and began before `ended`. Sectors that
    /// were never written are absent: they have the first version.
    pub fn visible(&self, began: u64, ended: u64) -> BTreeMap<u64, Vec<Visible>> {
        let of = |versions: &Vec<Version>| {
            let visible = versions
                .iter()
                .filter(|version| version.hidden > began && version.issued < ended);
            let visible = visible.map(|version| Visible {
                stamp: version.stamp,
                issued: version.issued,
                hidden: version.hidden,
            });
            visible.collect()
        };
        let sectors = self.sectors.iter();
        sectors
            .map(|(sector, versions)| (*sector, of(versions)))
            .collect()
    }

    /// A write that began at this moment has not happened, and never will.
    pub fn withdraw(&mut self, issued: u64) {
        for versions in self.sectors.values_mut() {
            versions.retain(|version| version.issued != issued);
        }
    }

    /// The next moment.
    pub fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A write, zeroing or discard begins. Returns its moment, by which it is named later.
    pub fn write(&mut self, range: Range<u64>, stamp: u64) -> u64 {
        self.write_either(range, stamp, stamp)
    }

    /// The same for a write whose buffer the guest changes meanwhile: a sector becomes either version.
    pub fn write_either(&mut self, range: Range<u64>, stamp: u64, or: u64) -> u64 {
        let issued = self.tick();
        for sector in range {
            let versions = self.versions(sector);
            let stamps = std::iter::once(stamp).chain((stamp != or).then_some(or));
            versions.extend(stamps.map(|stamp| Version {
                stamp,
                issued,
                ended: NEVER,
                replaces: true,
                hidden: NEVER,
                outdone_by: None,
                fleeting: false,
                recoverable: true,
            }));
        }
        issued
    }

    /// It has ended.
    pub fn wrote(&mut self, range: Range<u64>, issued: u64, end: End) {
        let now = self.tick();
        let happened = matches!(end, End::Done | End::Durable);
        for sector in range {
            for version in self.versions(sector) {
                if version.issued == issued {
                    version.ended = now;
                    version.replaces = happened;
                    version.fleeting = end == End::Lost;
                } else if end == End::Lost && version.outdone_by == Some(issued) {
                    (version.hidden, version.outdone_by) = (NEVER, None);
                } else if version.ended < issued && happened {
                    version.hidden = version.hidden.min(now);
                    version.outdone_by = None;
                    version.recoverable &= end != End::Durable;
                }
            }
        }
    }

    /// A flush that began at this moment has ended.
    pub fn flushed(&mut self, began: u64) {
        for versions in self.sectors.values_mut() {
            let durable = versions
                .iter()
                .filter(|version| version.replaces && version.ended < began);
            if let Some(newest) = durable.map(|version| version.issued).max() {
                for version in versions {
                    version.recoverable &= version.ended >= newest;
                }
            }
        }
    }

    /// A read that began at this moment has ended, with this content of one sector.
    ///
    /// # Errors
    /// No such version was visible meanwhile.
    pub fn read(&mut self, sector: u64, began: u64, stamp: u64) -> Result<(), String> {
        match self.saw(sector, began, |version| version == stamp) {
            Ok(_) => Ok(()),
            Err(visible) => Err(format!(
                "sector {sector} has write {stamp}, and may have only one of {visible:?}"
            )),
        }
    }

    /// The same for bytes that versions of several stamps may have.
    ///
    /// # Errors
    /// No such version was visible meanwhile: the stamps of those that were.
    pub fn saw(
        &mut self,
        sector: u64,
        began: u64,
        matches: impl Fn(u64) -> bool,
    ) -> Result<Seen, Vec<u64>> {
        let now = self.tick();
        let crashed = self.crashed;
        let first = self.first;
        let versions = match self.sectors.get_mut(&sector) {
            Some(versions) => versions,
            None if matches(first) => {
                return Ok(Seen {
                    stamp: first,
                    is_certain: true,
                });
            }
            None => self.versions(sector),
        };
        let matching = |version: &&Version| matches(version.stamp) && version.hidden > began;
        // The one that is visible longest, if there are several.
        let Some(seen) = versions.iter().filter(matching).max_by_key(|v| v.hidden) else {
            let visible = versions.iter().filter(|version| version.hidden > began);
            return Err(visible.map(|version| version.stamp).collect());
        };
        let mut others = versions.iter().filter(matching);
        let found = Seen {
            stamp: seen.stamp,
            is_certain: others.all(|other| other.stamp == seen.stamp),
        };
        if seen.hidden == NEVER && !seen.fleeting {
            let seen_write = seen.issued;
            // What a crash has left is durable.
            let durable = crashed > 0 && seen.ended <= crashed;
            // Whatever had ended before and is not what was seen is older.
            for version in versions {
                if version.ended < began && !matches(version.stamp) {
                    if version.hidden == NEVER {
                        (version.hidden, version.outdone_by) = (now, Some(seen_write));
                    }
                    version.recoverable &= !durable;
                }
            }
        }
        Ok(found)
    }

    /// The host has crashed: nothing is under way any more.
    pub fn crash(&mut self) {
        let now = self.tick();
        self.crashed = now;
        for versions in self.sectors.values_mut() {
            versions.retain(|version| version.recoverable);
            for version in versions {
                (version.hidden, version.outdone_by) = (NEVER, None);
                version.fleeting = false;
                version.ended = version.ended.min(now);
                // Only one of those that are left is there: a flush does not say which.
                version.replaces = false;
            }
        }
    }

    /// Forgets what no read and no crash can show any more; no read is under way.
    pub fn forget(&mut self) {
        for versions in self.sectors.values_mut() {
            versions.retain(|version| version.recoverable || version.hidden == NEVER);
        }
    }

    fn versions(&mut self, sector: u64) -> &mut Vec<Version> {
        let first = self.first;
        let first = || {
            vec![Version {
                stamp: first,
                issued: 0,
                ended: 0,
                replaces: true,
                hidden: NEVER,
                outdone_by: None,
                fleeting: false,
                recoverable: true,
            }]
        };
        self.sectors.entry(sector).or_insert_with(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(history: &mut History, stamp: u64, end: End) {
        let issued = history.write(0..1, stamp);
        history.wrote(0..1, issued, end);
    }

    fn may_read(history: &mut History, stamp: u64) -> bool {
        let began = history.tick();
        history.read(0, began, stamp).is_ok()
    }

    #[test]
    fn an_answered_write_replaces_and_a_crash_brings_the_older_one_back_unless_flushed() {
        for flush in [false, true] {
            let mut history = History::new();
            written(&mut history, 1, End::Done);
            assert!(!may_read(&mut history, 0));
            if flush {
                let began = history.tick();
                history.flushed(began);
            }
            history.crash();
            assert_eq!(may_read(&mut history, 0), !flush);
        }
    }

    #[test]
    fn a_flush_that_began_before_the_end_of_a_write_does_not_cover_it() {
        let mut history = History::new();
        let issued = history.write(0..1, 1);
        let began = history.tick();
        history.wrote(0..1, issued, End::Done);
        history.flushed(began);
        history.crash();
        assert!(may_read(&mut history, 0));
    }

    #[test]
    fn a_write_under_way_is_seen_or_not_and_once_seen_stays() {
        let mut history = History::new();
        written(&mut history, 1, End::Durable);
        let issued = history.write(0..1, 2);
        assert!(may_read(&mut history, 1), "the older one");
        assert!(may_read(&mut history, 2), "and then the newer one");
        assert!(!may_read(&mut history, 1), "but never the older one again");
        history.wrote(0..1, issued, End::Done);
        assert!(may_read(&mut history, 2));
    }

    #[test]
    fn what_was_seen_of_a_write_that_failed_may_be_gone_only_if_no_member_is_left() {
        for (end, may) in [(End::Unknown, false), (End::Lost, true)] {
            let mut history = History::new();
            written(&mut history, 1, End::Durable);
            let issued = history.write(0..1, 2);
            assert!(may_read(&mut history, 2));
            history.wrote(0..1, issued, end);
            assert!(may_read(&mut history, 2));
            assert_eq!(may_read(&mut history, 1), may);
            written(&mut history, 3, End::Done);
            assert!(!may_read(&mut history, 1) && !may_read(&mut history, 2));
        }
    }

    #[test]
    fn what_is_read_after_a_crash_stays_over_the_next_crash() {
        let mut history = History::new();
        written(&mut history, 1, End::Durable);
        history.write(0..1, 2);
        history.crash();
        assert!(may_read(&mut history, 1));
        history.crash();
        assert!(!may_read(&mut history, 2));
    }

    #[test]
    fn a_flush_after_a_crash_makes_durable_what_the_crash_has_left() {
        let mut history = History::new();
        written(&mut history, 1, End::Durable);
        history.write(0..1, 2);
        history.crash();
        let began = history.tick();
        history.flushed(began);
        history.crash();
        assert!(may_read(&mut history, 1), "the write was lost");
    }

    #[test]
    fn a_discard_or_failed_write_leaves_the_older_version_possible() {
        let mut history = History::new();
        written(&mut history, 1, End::Durable);
        written(&mut history, 2, End::Unknown);
        history.crash();
        assert!(may_read(&mut history, 1));
        assert!(!may_read(&mut history, 2));
    }

    #[test]
    fn a_read_that_overlaps_a_write_may_return_what_the_write_replaced() {
        let mut history = History::new();
        let issued = history.write(0..1, 1);
        let began = history.tick();
        history.wrote(0..1, issued, End::Done);
        assert_eq!(history.read(0, began, 0), Ok(()));
        assert!(!may_read(&mut history, 0), "a later one may not");
    }
}
