//! Members that are away from a running mirror, and are used again once their datastores are back.
//!
//! # Always true
//! - While all members are in sync, there are no wakeups.
//! - A member that fails again soon after its return is tried less and less often.
//! - A member that was removed is not used again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_api::name::Name;
use tidegate_api::problem::Problem;
use tidegate_core::layout::MemberState;

use super::{DiskService, locked};
use crate::disks::attached::Attached;
use crate::os_error;

/// Interval between attempts.
const EVERY: Duration = Duration::from_secs(5);

/// The longest interval between attempts on a member that fails again and again.
const RARELY: Duration = Duration::from_secs(300);

/// When members may be tried again, by disk and number.
pub(super) type Returns = BTreeMap<(Name, usize), Return>;

/// Attempts on one member.
pub(super) struct Return {
    /// How often it was used again, and failed.
    attempts: u32,
    next: Instant,
    /// Why it could not be used, as it was logged last.
    told: Option<Problem>,
}

/// Brings members back until it is dropped.
pub(crate) async fn return_members(disk_service: Arc<DiskService>) {
    loop {
        disk_service.notices.degraded().await;
        loop {
            let looking = Arc::clone(&disk_service);
            let degraded = os_error::blocking(move || Ok(looking.return_those_away()));
            if matches!(degraded.await, Ok(false)) {
                break;
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

impl DiskService {
    /// Tries each absent member of each attached disk. Returns whether any is absent.
    pub(super) fn return_those_away(self: &Arc<Self>) -> bool {
        let mut any = false;
        for live in self.live.all() {
            for nth in absent(&live) {
                any = true;
                self.return_member(&live, nth);
            }
        }
        let live = self.live.names();
        locked(&self.returns).retain(|(name, _), _| live.contains(name));
        any
    }

    fn return_member(&self, live: &Arc<Attached>, nth: usize) {
        let key = (live.name().clone(), nth);
        let now = Instant::now();
        if locked(&self.returns)
            .get(&key)
            .is_some_and(|it| now < it.next)
        {
            return;
        }
        let back = self.bring_member_back(live, nth);
        let mut returns = locked(&self.returns);
        let it = returns.entry(key).or_insert(Return {
            attempts: 0,
            next: now,
            told: None,
        });
        match back {
            Ok(()) => {
                it.next = now + RARELY.min(EVERY * 2_u32.saturating_pow(it.attempts));
                it.attempts = it.attempts.saturating_add(1);
                it.told = None;
            }
            Err(problem) => {
                it.next = now + EVERY;
                if it.told.as_ref() != Some(&problem) {
                    tracing::warn!(disk = %live.name(), member = nth, %problem, "a member is not used again yet");
                    it.told = Some(problem);
                }
            }
        }
    }

    /// A member is in sync: if it fails once more, that is its first failure.
    pub(crate) fn member_is_back(&self, disk: &Name, nth: usize) {
        locked(&self.returns).remove(&(disk.clone(), nth));
    }
}

/// The members of a disk that are not used, and were not removed.
fn absent(live: &Attached) -> Vec<usize> {
    let Some(report) = live.layout().filter(|report| report.layout.is_redundant()) else {
        return Vec::new();
    };
    let places = live.descriptor().map(|descriptor| descriptor.members);
    let places = places.unwrap_or_default();
    let is_removed = |nth: usize| places.get(nth).is_none_or(|place| place.removed);
    let members = report.members.iter().enumerate();
    members
        .filter(|(nth, member)| member.state == MemberState::OutOfSync && !is_removed(*nth))
        .map(|(nth, _)| nth)
        .collect()
}
