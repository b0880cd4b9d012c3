//! The accounts of detached disks: their used-up limits, for when they are attached again.
//!
//! There is one for all datastores of an engine: a control ends with its last disk, but that disk's usage still counts.
//! An I/O thread writes here when a disk is detached, and reads when one is attached, on whichever thread it was
//! before.
//!
//! # Always true
//! - a disk's usage is stored until its limits have replenished, and no longer
//! - beyond [`MOST`] disks, those that are replenished first are dropped

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_core::iocontrol::{DiskKey, Spent};
use tidegate_core::units::Time;

/// As many disks as one host serves at a time.
const MOST: usize = 4096;

/// See the module.
#[derive(Default)]
pub(crate) struct Accounts {
    away: Mutex<BTreeMap<DiskKey, Box<Spent>>>,
}

impl Accounts {
    /// Stores the usage of a detached disk.
    pub(crate) fn note(&self, now: Time, disk: DiskKey, spent: Box<Spent>) {
        let mut away = self.away();
        away.insert(disk, spent);
        away.retain(|_, spent| spent.over_at() > now);
        if away.len() > MOST
            && let Some(disk) = away.iter().min_by_key(|(_, spent)| spent.over_at())
        {
            let disk = *disk.0;
            away.remove(&disk);
        }
    }

    /// Takes the usage that a disk had when it was detached, if it is stored.
    pub(crate) fn take(&self, disk: DiskKey) -> Option<Box<Spent>> {
        self.away().remove(&disk)
    }

    fn away(&self) -> MutexGuard<'_, BTreeMap<DiskKey, Box<Spent>>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::iocontrol::shared::{Groups, Shared};
    use tidegate_core::iocontrol::{Limit, Policy, Scheduler};
    use tidegate_core::request::{DiskId, IoId, Op};
    use tidegate_core::units::Span;

    /// The usage of a disk that does this many I/Os at once, with a limit of one a second.
    fn spent(ios: u64) -> Box<Spent> {
        let limit = Limit {
            sustained: 1,
            peak: 0,
            burst: ios,
        };
        let policy = Policy {
            limit: Some(limit),
            ..Policy::default()
        };
        let mut scheduler = Scheduler::new(0, Shared::new(1, &Groups::new(0)), 4096);
        scheduler.add(Time::ZERO, DiskId(0), DiskKey(0), &policy);
        for io in 0..ios {
            scheduler.offer(Time::ZERO, DiskId(0), IoId::from_bits(io), Op::Read, 0, 512);
        }
        scheduler.remove(DiskId(0)).expect("it did some")
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_secs(seconds)
    }

    #[test]
    fn usage_is_stored_until_it_is_replenished_and_taken_once() {
        let accounts = Accounts::default();
        accounts.note(at(0), DiskKey(1), spent(10));
        accounts.note(at(5), DiskKey(2), spent(20));
        assert_eq!(accounts.take(DiskKey(1)), Some(spent(10)));
        assert_eq!(accounts.take(DiskKey(1)), None);
        accounts.note(at(5), DiskKey(1), spent(10));
        accounts.note(at(10), DiskKey(3), spent(30));
        assert_eq!(accounts.take(DiskKey(1)), None);
        assert_eq!(accounts.away().len(), 2);
    }

    #[test]
    fn beyond_the_maximum_the_disks_replenished_first_are_dropped() {
        let accounts = Accounts::default();
        accounts.note(at(0), DiskKey(u64::MAX), spent(2));
        let much = spent(3);
        for disk in 0..MOST as u64 {
            accounts.note(at(0), DiskKey(disk), much.clone());
        }
        assert_eq!(accounts.away().len(), MOST);
        assert_eq!(accounts.take(DiskKey(u64::MAX)), None);
    }
}
