//! Counters of the flash caches of this host since the daemon has started, also for disks that have left them.
//!
//! # Always true
//! - a total never becomes smaller: of each use of a disk, the largest numbers that were reported count

use std::collections::BTreeMap;
use std::sync::Mutex;

use tidegate_api::name::Name;
use tidegate_core::layout::CacheReport;

use super::locked;

/// Uses of disks that are remembered one by one, at most. The others are summed up.
const USES: usize = 4096;

/// See the module.
#[derive(Default)]
pub(crate) struct Totals(Mutex<BTreeMap<Name, Uses>>);

#[derive(Default)]
struct Uses {
    /// By the number of the use.
    each: BTreeMap<u64, Total>,
    /// Of uses that are not remembered one by one.
    others: Total,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    /// Bytes written to flash, on all devices.
    pub(crate) written: u64,
    /// Of these, bytes of the journal and of headers.
    pub(crate) journal: u64,
    /// Blocks that were read from flash and were not as they were written.
    pub(crate) corrupt: u64,
}

impl Total {
    /// What a disk's cache has counted in one use of the disk.
    pub(crate) fn of(report: &CacheReport) -> Total {
        Total {
            written: report.flash_bytes,
            journal: report.journal_bytes,
            corrupt: report.corrupt_blocks,
        }
    }

    fn with(self, other: Total, of: impl Fn(u64, u64) -> u64) -> Total {
        Total {
            written: of(self.written, other.written),
            journal: of(self.journal, other.journal),
            corrupt: of(self.corrupt, other.corrupt),
        }
    }
}

impl Totals {
    /// Notes what uses of disks, each by its number, have counted. Returns the sum over all uses of the cache.
    pub(crate) fn note(&self, cache: &Name, uses: &[(u64, Total)]) -> Total {
        let mut table = locked(&self.0);
        let known = table.entry(cache.clone()).or_default();
        for (number, total) in uses {
            let before = known.each.entry(*number).or_default();
            *before = before.with(*total, u64::max);
        }
        if known.each.len() > USES {
            let is_now = |number: &u64| uses.iter().any(|(now, _)| now == number);
            let others = &mut known.others;
            known.each.retain(|number, total| {
                let stays = is_now(number);
                if !stays {
                    *others = others.with(*total, u64::saturating_add);
                }
                stays
            });
        }
        let each = known.each.values();
        each.fold(known.others, |sum, total| {
            sum.with(*total, u64::saturating_add)
        })
    }

    /// A cache is removed.
    pub(super) fn forget(&self, cache: &Name) {
        locked(&self.0).remove(cache);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(bytes: u64) -> Total {
        Total {
            written: bytes,
            journal: bytes / 4,
            corrupt: 1,
        }
    }

    #[test]
    fn a_total_does_not_become_smaller_when_a_disk_leaves() {
        let totals = Totals::default();
        let name: Name = "fast".parse().unwrap();
        let sum = totals.note(&name, &[(1, written(400)), (2, written(40))]);
        assert_eq!((sum.written, sum.journal, sum.corrupt), (440, 110, 2));
        assert_eq!(totals.note(&name, &[(2, written(80))]).written, 480);
        // A report that is late changes nothing. The first disk comes again.
        let sum = totals.note(&name, &[(2, written(40)), (3, written(20))]);
        assert_eq!((sum.written, sum.corrupt), (500, 3));
        let other: Name = "other".parse().unwrap();
        assert_eq!(totals.note(&other, &[]), Total::default());
        totals.forget(&name);
        assert_eq!(totals.note(&name, &[]), Total::default());
    }

    #[test]
    fn uses_that_are_not_remembered_one_by_one_count_still() {
        let totals = Totals::default();
        let name: Name = "fast".parse().unwrap();
        let uses = 3 * USES as u64;
        for number in 0..uses {
            let sum = totals.note(&name, &[(number, written(4))]);
            assert_eq!(sum.written, 4 * (number + 1));
        }
        assert!(locked(&totals.0)[&name].each.len() <= USES);
        assert_eq!(totals.note(&name, &[]).corrupt, uses);
    }
}
