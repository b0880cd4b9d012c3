//! Devices of a disk's flash cache that were lost and are back.
//!
//! # Always true
//! - a disk writes back on a mirrored cache only while both devices have everything, unless one failed meanwhile

use std::sync::Arc;
use std::time::Duration;

use tidegate_api::cache::FlashMode;
use tidegate_api::events::Happening;
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::{CacheReport, LayoutOrder, Target};

use super::DiskService;
use crate::caches::Devices;
use crate::disks::attached::{Attached, CacheInUse};
use crate::os_error::{self, Outcome};

/// How often devices are looked for at their paths. Origin: chosen; it costs a look at each path.
const EVERY: Duration = Duration::from_secs(60);

/// Looks for the devices of caches at their paths, while a disk uses a cache, until it is dropped.
pub(crate) async fn look_for_flash(disk_service: Arc<DiskService>) {
    loop {
        let uses = || {
            let live = disk_service.live.all();
            live.iter().any(|live| live.cache().is_some())
        };
        disk_service.notices.until_a_cache(uses).await;
        tokio::time::sleep(EVERY).await;
        let looking = Arc::clone(&disk_service);
        let work = move || {
            looking.report_astray();
            Ok(())
        };
        // It is tried again.
        let _ = os_error::blocking(work).await;
    }
}

impl DiskService {
    /// Reports devices of caches to which their paths do not lead any more, or lead again.
    pub(in super::super) fn report_astray(&self) {
        for changed in self.caches.look_for_devices() {
            let (cache, device) = (changed.cache.clone(), changed.device);
            let path = changed.path.display().to_string();
            let happening = match changed.why {
                Some(why) => Happening::CacheDeviceAstray {
                    cache,
                    device,
                    path,
                    why,
                },
                None => Happening::CacheDeviceInPlace {
                    cache,
                    device,
                    path,
                },
            };
            self.notices.add_of_cache(&changed.cache, happening);
        }
    }

    /// Has the devices of a disk's cache that lack writes get everything again, as work in the background.
    pub(super) fn resync(&self, live: &Attached, devices: &Devices) {
        // A cache begins by itself with a device that it could read when it opened. One is written at a time.
        let idle = |report: &CacheReport| report.in_use && !report.resyncing;
        let Some(report) = live.cache_report().filter(idle) else {
            return;
        };
        let members = live.members().len();
        for (nth, problem) in devices.problems().iter().enumerate() {
            let Ok(target) = u8::try_from(members + nth) else {
                continue;
            };
            let is_there = problem.is_none() && devices.empty() >> nth & 1 == 0;
            if !is_there || report.devices >> nth & 1 == 1 {
                continue;
            }
            match live.order(LayoutOrder::Replace(Target(target))) {
                Ok(()) => {
                    tracing::info!(disk = %live.name(), device = nth, "a device of the cache is written again");
                }
                Err(problem) => {
                    tracing::warn!(disk = %live.name(), device = nth, %problem, "a device of the cache is not used");
                }
            }
        }
    }

    /// Lets an attached disk write back again, if its settings say so and all devices of its cache have everything. Returns
    /// whether a command on the disk is in the way.
    pub(in super::super) fn write_back_again(&self, live: &Attached) -> Outcome<bool> {
        if !can_write_back_again(live) {
            return Ok(false);
        }
        let changes = |using: CacheInUse| self.caches.changes_devices(&using.cache);
        if live.cache().is_some_and(changes) {
            // The job has it looked at again.
            return Ok(false);
        }
        // A detach goes through for a moment, and has the claim meanwhile.
        let Ok(_claim) = self.claim(live.name(), "") else {
            return Ok(true);
        };
        let using = live.cache();
        let is_live = self.live.get(live.name()).is_some() && can_write_back_again(live);
        let (Some(using), true) = (using, is_live) else {
            return Ok(false);
        };
        let found = self.find(live.name())?;
        self.commit_flash(&found, Some(live), |now| {
            if let Some(now) = now {
                (now.has_dirty, now.attachment) = (true, using.attachment);
            }
        })?;
        live.order(LayoutOrder::CacheMode(CacheMode::WriteBack))?;
        tracing::info!(disk = %live.name(), cache = %using.cache, "writes go back to the cache only");
        Ok(false)
    }
}

/// Whether an attached disk is to write back, and its cache goes through although all its devices have everything.
fn can_write_back_again(live: &Attached) -> bool {
    let flash = live.descriptor().and_then(|descriptor| descriptor.flash);
    let is_wanted = flash.is_some_and(|flash| flash.mode == FlashMode::WriteBack);
    let can = |report: CacheReport| {
        report.in_use
            && report.mode == CacheMode::WriteThrough
            && !report.resyncing
            && report.devices == 0b11
    };
    is_wanted && live.cache_report().is_some_and(can)
}
