//! The write budgets of this host's flash caches: how much of each is left.
//!
//! The disk service reports again and again what its disks have written to flash. What is left is stored now and then: a
//! restart of the daemon does not renew a budget.
//!
//! # Always true
//! - a stored state is of this cache, and not of an earlier one with its name
//!
//! # Picture
//! ```text
//! STATE/caches/NAME.budget     cache, bytes left, when
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_core::layout::cache::budget::Budget;
use tidegate_core::units::{Span, Time};

use super::{Record, locked};
use crate::files;

/// What is stored is less than what is left, by one part in so many of a day's bytes: what five minutes bring. It is stored
/// again once half of that is written. So a crash renews nothing, but for what one second writes beyond the other half.
const RESERVES: u64 = 288;
/// Uses of disks that are remembered, at most.
const USES: usize = 4096;
/// The largest file that is read.
const MOST: usize = 4096;

/// See the module.
pub(crate) struct Budgets {
    folder: PathBuf,
    /// By cache. None: it has no budget.
    table: Mutex<BTreeMap<Name, Option<Spending>>>,
}

struct Spending {
    cache: Uuid,
    devices: u64,
    budget: Budget,
    /// What each use of a disk had written on all devices, when that was reported last.
    seen: BTreeMap<u64, u64>,
    /// Bytes to reserve when it is stored.
    reserve: u64,
    /// Bytes that the stored number has as written already, and those written since it was stored.
    reserved: u64,
    unstored: u64,
}

/// What a cache may still write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Left {
    /// Bytes of each device; negative: too many were written.
    pub(crate) bytes: i64,
    /// Whether nothing more is to enter the cache.
    pub(crate) is_spent: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    cache: Uuid,
    left_bytes: i64,
    at_unix_s: u64,
    /// Bytes that may have been written since then. Zero: the daemon stopped in order.
    #[serde(default)]
    reserved_bytes: u64,
}

impl Budgets {
    pub(super) fn new(folder: &Path) -> Budgets {
        Budgets {
            folder: folder.to_owned(),
            table: Mutex::default(),
        }
    }

    /// What disks have written on all devices, each use by its number, since it began. Returns what is left, if the cache has a
    /// budget, and whether it is spent now and was not, or the other way round. `record` is asked for once.
    pub(crate) fn spend(
        &self,
        name: &Name,
        written: &[(u64, u64)],
        now: Time,
        record: impl FnOnce() -> Option<Record>,
    ) -> Option<(Left, bool)> {
        let mut table = locked(&self.table);
        let spending = self.of(&mut table, name, now, record)?;
        let mut more = 0;
        for (attachment, bytes) in written {
            let before = spending.seen.get(attachment).copied().unwrap_or(0);
            more += bytes.saturating_sub(before);
        }
        if spending.seen.len() > USES {
            spending
                .seen
                .retain(|one, _| written.iter().any(|(other, _)| one == other));
        }
        // One whose report is late is not counted twice.
        spending.seen.extend(written.iter().copied());
        let was_spent = spending.budget.is_spent();
        let more = more / spending.devices.max(1);
        let is_spent = spending.budget.spend(now, more);
        let is_changed = is_spent != was_spent;
        spending.unstored = spending.unstored.saturating_add(more);
        if is_changed || spending.unstored > spending.reserved / 2 {
            (spending.unstored, spending.reserved) = (0, spending.reserve);
            self.store(name, spending);
        }
        let bytes = spending.budget.left();
        Some((Left { bytes, is_spent }, is_changed))
    }

    /// A cache has so many devices from now on.
    pub(super) fn set_devices(&self, name: &Name, devices: usize) {
        let mut table = locked(&self.table);
        if let Some(spending) = table.get_mut(name).and_then(Option::as_mut) {
            spending.devices = devices as u64;
        }
    }

    /// Whether a cache has a budget. `record` is asked for once.
    pub(crate) fn has(
        &self,
        name: &Name,
        now: Time,
        record: impl FnOnce() -> Option<Record>,
    ) -> bool {
        self.of(&mut locked(&self.table), name, now, record)
            .is_some()
    }

    /// The budget of a cache, if it has one.
    fn of<'a>(
        &self,
        table: &'a mut BTreeMap<Name, Option<Spending>>,
        name: &Name,
        now: Time,
        record: impl FnOnce() -> Option<Record>,
    ) -> Option<&'a mut Spending> {
        if !table.contains_key(name) {
            let spending = self.load(name, &record()?, now);
            table.insert(name.clone(), spending);
        }
        table.get_mut(name)?.as_mut()
    }

    /// What is left.
    pub(crate) fn left(&self, name: &Name, record: &Record, now: Time) -> Option<Left> {
        let left = self.spend(name, &[], now, || Some(record.clone()));
        left.map(|(left, _)| left)
    }

    /// Whether nothing more is to enter a cache.
    pub(crate) fn is_spent(&self, name: &Name) -> bool {
        let table = locked(&self.table);
        let spending = table.get(name).and_then(Option::as_ref);
        spending.is_some_and(|spending| spending.budget.is_spent())
    }

    /// A cache is created, or removed.
    pub(super) fn forget(&self, name: &Name) {
        locked(&self.table).remove(name);
        // It is of no other cache.
        let _ = fs::remove_file(self.file(name));
    }

    /// Stores what is left of all: the daemon stops.
    pub(crate) fn store_all(&self) {
        for (name, spending) in &mut *locked(&self.table) {
            if let Some(spending) = spending {
                (spending.unstored, spending.reserved) = (0, 0);
                self.store(name, spending);
            }
        }
    }

    fn load(&self, name: &Name, record: &Record, now: Time) -> Option<Spending> {
        let per_day = record.budget()?;
        let stored = files::read(&self.file(name), MOST).ok();
        let stored = stored.and_then(|bytes| String::from_utf8(bytes).ok());
        let stored = stored.and_then(|text| toml::from_str::<Stored>(&text).ok());
        let budget = match stored.filter(|stored| stored.cache == record.uuid) {
            None => Budget::full(per_day, now),
            Some(stored) => {
                let mut budget = Budget::new(per_day, stored.left_bytes, now);
                let passed = unix_s().saturating_sub(stored.at_unix_s);
                budget.fill(Span::from_secs(passed));
                budget.spend(now, stored.reserved_bytes);
                budget
            }
        };
        Some(Spending {
            cache: record.uuid,
            devices: record.devices().count() as u64,
            budget,
            seen: BTreeMap::new(),
            reserve: per_day / RESERVES,
            // The first bytes are stored at once.
            reserved: 0,
            unstored: 0,
        })
    }

    fn store(&self, name: &Name, spending: &Spending) {
        let stored = Stored {
            cache: spending.cache,
            left_bytes: spending.budget.left(),
            at_unix_s: unix_s(),
            reserved_bytes: spending.reserved,
        };
        let text = toml::to_string(&stored).unwrap_or_default();
        if let Err(error) = files::replace(&self.file(name), text.as_bytes()) {
            tracing::warn!(cache = %name, %error, "what is left of its write budget is not stored");
        }
    }

    fn file(&self, name: &Name) -> PathBuf {
        self.folder.join(format!("{name}.budget"))
    }
}

/// Seconds since 1970, of this host's clock.
pub(super) fn unix_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::cache::{CacheCreate, CacheData};

    const DAY: u64 = 64 << 20;

    fn record(devices: &[&str]) -> Record {
        let order = CacheCreate {
            name: "fast".parse().unwrap(),
            devices: devices.iter().map(PathBuf::from).collect(),
            size_bytes: None,
            endurance_dwpd: Some(1.0),
            data: CacheData::Keep,
        };
        Record::new(Uuid::from_random([7; 16]), DAY, 1 << 20, &order)
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Span::from_secs(seconds)
    }

    #[test]
    fn each_use_of_a_disk_counts_from_its_beginning_and_per_device() {
        let folder = tempfile::tempdir().unwrap();
        let budgets = Budgets::new(folder.path());
        let name: Name = "fast".parse().unwrap();
        let spend = |written: &[(u64, u64)]| {
            let left = budgets.spend(&name, written, at(0), || Some(record(&["a", "b"])));
            let (left, is_changed) = left.unwrap();
            (left.bytes, left.is_spent, is_changed)
        };
        let day = i64::try_from(DAY).unwrap();
        assert_eq!(spend(&[(1, 2000)]), (day - 1000, false, false));
        assert_eq!(spend(&[(1, 2000), (2, 600)]), (day - 1300, false, false));
        // The first one was detached, and comes again.
        assert_eq!(spend(&[(2, 600)]), (day - 1300, false, false));
        assert_eq!(spend(&[(2, 600), (3, 2 * DAY)]), (-1300, true, true));
        assert!(budgets.is_spent(&name));
        assert_eq!(spend(&[(2, 600), (3, 2 * DAY)]), (-1300, true, false));
    }

    #[test]
    fn a_restart_does_not_renew_a_budget_and_another_cache_has_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let name: Name = "fast".parse().unwrap();
        let left =
            |budgets: &Budgets, record: &Record| budgets.left(&name, record, at(0)).unwrap().bytes;
        let first = record(&["a"]);
        let budgets = Budgets::new(folder.path());
        budgets.spend(&name, &[(1, DAY)], at(0), || Some(first.clone()));
        budgets.store_all();
        let budgets = Budgets::new(folder.path());
        // A clock of seconds has gone on a bit.
        let day = i64::try_from(DAY).unwrap();
        assert!((0..day / 2).contains(&left(&budgets, &first)));
        let mut free = record(&["a"]);
        free.endurance_dwpd = None;
        let none = "free".parse().unwrap();
        assert!(!budgets.has(&none, at(0), || Some(free)) && budgets.has(&name, at(0), || None));
        let mut other = first.clone();
        other.uuid = Uuid::from_random([8; 16]);
        budgets.forget(&name);
        assert_eq!(left(&budgets, &other), day);
    }

    #[test]
    fn a_crash_at_any_time_renews_nothing_of_a_budget() {
        let folder = tempfile::tempdir().unwrap();
        let name: Name = "fast".parse().unwrap();
        let record = record(&["a"]);
        let budgets = Budgets::new(folder.path());
        let reserve = i64::try_from(DAY / RESERVES).unwrap();
        let step = DAY / RESERVES / 5;
        for nth in 1..40 {
            let written = [(1, nth * step)];
            let spent = budgets.spend(&name, &written, at(0), || Some(record.clone()));
            let left = spent.unwrap().0.bytes;
            // Another daemon after a kill. The clock of seconds may have gone on a bit.
            let after = Budgets::new(folder.path()).left(&name, &record, at(0));
            let after = after.unwrap().bytes;
            let second = i64::try_from(DAY / 86_400).unwrap() + 1;
            assert!(after <= left + 2 * second, "{after} of {left} after {nth}");
            assert!(after >= left - reserve, "{after} of {left} after {nth}");
        }
    }
}
