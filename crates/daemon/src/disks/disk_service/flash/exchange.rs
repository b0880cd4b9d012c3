//! Flash devices that are added to a cache, replaced and removed while disks use it.
//!
//! A device that takes a place is filled from the other one, for each disk by itself. What only one of two devices would have
//! meanwhile goes to the disks first, unless they accept a single device. A cache with one device gets the new one beside it,
//! and gives up the old one once the new one has everything.
//!
//! # Always true
//! - no disk does without a device before the other one has everything
//! - a command that is refused or fails leaves each disk with a device that has everything

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_api::cache::{CacheDeviceAdd, FlashMode};
use tidegate_api::events::Happening;
use tidegate_api::job::Job;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::cache::{CacheMode, PAGE};
use tidegate_core::layout::{CacheReport, LayoutOrder, Target};

use super::super::claims::Claim;
use super::{CLOSING, DiskService, EVERY};
use crate::caches::{Changing, Devices, NewDevice, OldDevice, Record, must_not_be_at_stake};
use crate::disks::attached::Attached;
use crate::disks::copy::Progress;
use crate::os_error::{self, Outcome};

/// The disks that have a part of a cache, all claimed.
struct Users {
    /// Those that are attached with it.
    live: Vec<Arc<Attached>>,
    claims: Vec<Claim>,
    record: Record,
}

impl DiskService {
    /// Gives a cache of one device a second one.
    pub(crate) fn add_cache_device(
        self: &Arc<Self>,
        name: &Name,
        order: &CacheDeviceAdd,
    ) -> Outcome<Job> {
        let what = format!("cannot add a device to cache {name}");
        let (changing, record) = self.begin_change(name).map_err(|e| e.within(&what))?;
        let Some(nth) = record.empty_place() else {
            return Err(Problem::new(ProblemCode::Unsupported, what)
                .because("it has two devices already")
                .remedy(format!(
                    "replace one of them: tidegate cache device replace {name} DEVICE --with PATH"
                )));
        };
        let new = self
            .new_cache_device(&record, nth, order)
            .map_err(|e| e.within(&what))?;
        let job = format!("add {} to cache {name}", new.path().display());
        Ok(
            self.start_change(job, what, changing, name, move |service, name, progress| {
                drop(service.put_device(name, nth, &new, progress)?);
                service.follow_filling(name, nth, progress)
            }),
        )
    }

    /// Replaces a device of a cache.
    pub(crate) fn replace_cache_device(
        self: &Arc<Self>,
        name: &Name,
        nth: u8,
        order: &CacheDeviceAdd,
    ) -> Outcome<Job> {
        let what = format!("cannot replace device {nth} of cache {name}");
        let (changing, record) = self.begin_change(name).map_err(|e| e.within(&what))?;
        must_have(&record, name, nth).map_err(|e| e.within(&what))?;
        let place = record.empty_place().unwrap_or(nth);
        let new = self
            .new_cache_device(&record, place, order)
            .map_err(|e| e.within(&what))?;
        let job = format!(
            "replace device {nth} of cache {name} by {}",
            new.path().display()
        );
        Ok(
            self.start_change(job, what, changing, name, move |service, name, progress| {
                let old = service.put_device(name, place, &new, progress)?;
                service.follow_filling(name, place, progress)?;
                match old {
                    Some(old) => service.clear_old(name, &old),
                    // The new one is in the other place: the old one is not needed any more.
                    None => service.take_device(name, nth, Some(progress))?,
                }
                Ok(())
            }),
        )
    }

    /// Removes one of two devices of a cache.
    pub(crate) fn remove_cache_device(&self, name: &Name, nth: u8) -> Outcome<()> {
        let what = format!("cannot remove device {nth} of cache {name}");
        let (_changing, record) = self.begin_change(name).map_err(|e| e.within(&what))?;
        must_have(&record, name, nth).map_err(|e| e.within(&what))?;
        if record.empty_place().is_some() {
            return Err(Problem::new(ProblemCode::Unsupported, what)
                .because("it is the only one")
                .remedy(format!(
                    "replace it: tidegate cache device replace {name} {nth} --with PATH; or take the cache off its disks, and \
                     remove it: tidegate cache remove {name}"
                )));
        }
        self.take_device(name, nth, None)
            .map_err(|e| e.within(what))
    }

    /// What is known of a cache whose devices are to be changed.
    fn begin_change(&self, name: &Name) -> Outcome<(Changing, Record)> {
        let record = self.caches.record(name)?;
        let changing = self.caches.change_devices(name)?;
        Ok((changing, record))
    }

    fn new_cache_device(
        &self,
        record: &Record,
        nth: u8,
        order: &CacheDeviceAdd,
    ) -> Outcome<NewDevice> {
        self.caches.new_device(record, nth, order, |path| {
            self.must_be_no_image_of_ours(path)
        })
    }

    fn start_change(
        self: &Arc<Self>,
        job: String,
        what: String,
        changing: Changing,
        name: &Name,
        work: impl FnOnce(&Arc<Self>, &Name, &Progress) -> Outcome<()> + Send + 'static,
    ) -> Job {
        let (service, name) = (Arc::clone(self), name.clone());
        let on = name.clone();
        let remedy = format!("see `tidegate cache show {name}`, and repeat the command");
        self.jobs.start_once(job, on, remedy, move |progress| {
            let changed = work(&service, &name, progress);
            drop(changing);
            // Disks may write back again.
            service.notices.note_cache();
            changed.map_err(|e| e.within(what))
        })
    }

    /// Claims all disks that have a part of a cache.
    fn claim_users(&self, name: &Name) -> Outcome<Users> {
        let what = format!("the devices of cache {name} cannot be changed now");
        let record = self.caches.record(name)?;
        let claims: Outcome<Vec<Claim>> = record
            .parts
            .iter()
            .map(|part| self.claim(&part.disk, &what))
            .collect();
        let claims = claims?;
        let live = self.live.all().into_iter();
        let live = live.filter(|live| live.cache().is_some_and(|using| using.cache == *name));
        Ok(Users {
            live: live.collect(),
            claims,
            record,
        })
    }

    /// Puts a device in a place of a cache, and has it filled. Returns the one that was there.
    fn put_device(
        &self,
        name: &Name,
        nth: u8,
        new: &NewDevice,
        progress: &Progress,
    ) -> Outcome<Option<OldDevice>> {
        let users = self.claim_users(name)?;
        users.must_do_without(name, nth)?;
        for live in users.losing_safety(nth) {
            self.go_through(live, progress, None)?;
            self.note_clean(live)?;
        }
        let old = self.exchange_device(name, nth, Some(new), &users)?;
        self.notices.add_of_cache(
            name,
            Happening::CacheDeviceAdded {
                cache: name.clone(),
                device: nth,
                path: new.path().display().to_string(),
            },
        );
        drop(users.claims);
        Ok(old)
    }

    /// Takes a device from a cache. The other one has everything. A disk that writes back to two devices only writes through
    /// before, with this progress. Without one, it is a reason to refuse.
    pub(in crate::disks::disk_service) fn take_device(
        &self,
        name: &Name,
        nth: u8,
        progress: Option<&Progress>,
    ) -> Outcome<()> {
        let users = self.claim_users(name)?;
        users.must_do_without(name, nth)?;
        if let Some(progress) = progress {
            // It may have begun to write back since the two had everything.
            for live in users.losing_safety(nth) {
                self.go_through(live, progress, None)?;
                self.note_clean(live)?;
            }
        } else if let Some(live) = users.live.iter().find(|live| needs_two(live)) {
            return Err(Problem::new(
                ProblemCode::Unsupported,
                format!("disk {} writes back to both devices", live.name()),
            )
            .because("if the other one failed, the writes that only it has would be lost")
            .remedy(format!(
                "let it write through (tidegate disk set {0} --cache-mode write-through), or accept a single device (tidegate disk \
                 set {0} --cache-mode write-back --single-device-ok)",
                live.name()
            )));
        }
        let old = self.exchange_device(name, nth, None, &users)?;
        drop(users.claims);
        if let Some(old) = old {
            self.clear_old(name, &old);
        }
        Ok(())
    }

    /// Exchanges a device in the record, and then for each disk that uses it.
    fn exchange_device(
        &self,
        name: &Name,
        nth: u8,
        new: Option<&NewDevice>,
        users: &Users,
    ) -> Outcome<Option<OldDevice>> {
        let claimed: BTreeSet<_> = users.record.parts.iter().map(|part| part.uuid).collect();
        let at_work = users.at_work().filter_map(|(live, _)| live.descriptor());
        let at_work: BTreeSet<_> = at_work.map(|descriptor| descriptor.uuid).collect();
        let has_it = |report: &CacheReport| report.devices >> nth & 1 == 1;
        let losing: Vec<&Arc<Attached>> = users
            .at_work()
            .filter(|(_, report)| has_it(report))
            .map(|(live, _)| live)
            .collect();
        let drop_old = || {
            let mut losing = losing.iter();
            losing.try_for_each(|live| live.order(LayoutOrder::Drop(target(live, nth))))
        };
        let exchanged = self
            .caches
            .exchange(name, nth, new, &at_work, &claimed, drop_old);
        let (devices, old) = match exchanged {
            Ok(exchanged) => exchanged,
            Err(problem) => {
                let devices = self.caches.devices(name, &users.record);
                for live in losing {
                    self.use_again(live, nth, &devices);
                }
                return Err(problem);
            }
        };
        if let Some(old) = &old {
            self.notices.add_of_cache(
                name,
                Happening::CacheDeviceRemoved {
                    cache: name.clone(),
                    device: nth,
                    path: old.path().display().to_string(),
                },
            );
        }
        let mut closing = Vec::new();
        for live in &users.live {
            let image = new.and_then(|_| devices.image(nth));
            match live.set_flash_device(nth, image) {
                Ok(before) => {
                    closing.push(before);
                    self.resync(live, &devices);
                    if live.cache().is_some_and(|using| !using.is_given_up) {
                        let problem = devices.problems().into_iter().flatten().next();
                        live.set_cache_problem(problem);
                    }
                }
                // It does without a device until it is attached again. The old one must not be filled.
                Err(problem) => {
                    tracing::warn!(disk = %live.name(), cache = %name, device = nth, %problem, "a disk does not have the \
                         new device of its cache");
                }
            }
        }
        for before in closing {
            // What hangs is closed later.
            let _ = before.is_closed_within(CLOSING);
        }
        Ok(old)
    }

    /// A disk was to do without a device, and gets it back, unless I/O that the device has does not end.
    fn use_again(&self, live: &Attached, nth: u8, devices: &Devices) {
        let report = live.cache_report().filter(|report| report.in_use);
        if report.is_none_or(|report| report.devices >> nth & 1 == 1) {
            return;
        }
        let closed = live.set_flash_device(nth, None);
        let again = closed.and_then(|old| match old.is_closed_within(CLOSING) {
            true => live.set_flash_device(nth, devices.image(nth)).map(drop),
            false => Err(
                Problem::new(ProblemCode::Datastore, "its I/O has not ended")
                    .remedy("attach the disk again once the device answers"),
            ),
        });
        match again {
            Ok(()) => self.resync(live, devices),
            Err(problem) => {
                tracing::warn!(disk = %live.name(), device = nth, %problem, "a device of the cache is not used");
            }
        }
    }

    /// Clears what says that a device belongs to the cache. Without that it is refused too: another one has its place.
    fn clear_old(&self, name: &Name, old: &OldDevice) {
        if let Err(problem) = old.clear() {
            tracing::warn!(cache = %name, device = %old.path().display(), %problem, "the label of a former device of a cache stays");
        }
    }

    /// Follows how a device gets everything, until it has it for all disks.
    fn follow_filling(&self, name: &Name, nth: u8, progress: &Progress) -> Outcome<()> {
        loop {
            let live = self.live.all().into_iter();
            let of_cache = live.filter(|live| live.cache().is_some_and(|it| it.cache == *name));
            let (mut done, mut total, mut is_over) = (0, 0, true);
            for live in of_cache {
                let Some(report) = live.cache_report().filter(|report| report.in_use) else {
                    continue;
                };
                let pages = u64::from(report.pages) * PAGE;
                total += pages;
                match (report.devices >> nth & 1 == 1, report.resyncing) {
                    (true, false) => done += pages,
                    (_, true) => {
                        done += u64::from(report.resynced.min(report.pages)) * PAGE;
                        is_over = false;
                    }
                    (false, false) => return Err(not_filled(name, nth, &live)),
                }
            }
            progress.expect(total);
            progress.is_at(done);
            if is_over {
                let (cache, device) = (name.clone(), nth);
                self.notices
                    .add_of_cache(name, Happening::CacheDeviceFilled { cache, device });
                return Ok(());
            }
            progress.check()?;
            std::thread::sleep(EVERY);
        }
    }

    /// Which devices of an attached disk's cache do not have everything, as a sentence.
    pub(crate) fn devices_note(&self, live: &Attached) -> Option<String> {
        let cache = live.cache()?.cache;
        let report = live.cache_report().filter(|report| report.in_use)?;
        let record = self.caches.record(&cache).ok()?;
        let lacks = |(nth, _): &(u8, &std::path::Path)| report.devices >> nth & 1 == 0;
        let (nth, _) = record.devices().find(lacks)?;
        Some(match report.resyncing {
            true => format!(
                "device {nth} of cache {cache} is being filled: {} of {} pages were looked at; until then a failure of the other one \
                 takes the cache",
                report.resynced.min(report.pages),
                report.pages
            ),
            false => format!(
                "device {nth} of cache {cache} is not used: see `tidegate cache show {cache}`, or replace it"
            ),
        })
    }
}

impl Users {
    /// The disks whose caches work, and what these say.
    fn at_work(&self) -> impl Iterator<Item = (&Arc<Attached>, CacheReport)> {
        let live = self.live.iter();
        live.filter_map(|live| Some((live, live.cache_report()?)))
            .filter(|(_, report)| report.in_use)
    }

    /// Disks that write back to both devices, and would not to one.
    fn losing_safety(&self, nth: u8) -> impl Iterator<Item = &Arc<Attached>> {
        let loses = move |(live, report): &(&Arc<Attached>, CacheReport)| {
            let has = report.devices >> nth & 1 == 1;
            has && report.mode == CacheMode::WriteBack && needs_two(live)
        };
        self.at_work().filter(loses).map(|(live, _)| live)
    }

    /// Fails if a disk cannot do without this device, or nobody knows whether it can.
    fn must_do_without(&self, name: &Name, nth: u8) -> Outcome<()> {
        for live in &self.live {
            if live.cache().is_none_or(|using| using.is_given_up) {
                continue;
            }
            let Some(report) = live.cache_report().filter(|report| report.in_use) else {
                return Err(Problem::new(
                    ProblemCode::Datastore,
                    format!("cache {name} has failed for disk {}", live.name()),
                )
                .because("a device may have writes that nothing else has")
                .remedy(format!("see `tidegate disk show {}`", live.name())));
            };
            if report.resyncing {
                return Err(Problem::new(
                    ProblemCode::Busy,
                    format!("a device is being filled for disk {}", live.name()),
                )
                .remedy(format!(
                    "wait until that has ended: see `tidegate cache show {name}`"
                )));
            }
            let other = 1 - nth;
            if report.devices >> other & 1 == 0 {
                return Err(Problem::new(
                    ProblemCode::Datastore,
                    format!("device {other} does not have everything of disk {}", live.name()),
                )
                .remedy(format!(
                    "replace that one first: tidegate cache device replace {name} {other} --with PATH"
                )));
            }
        }
        if self.record.device(nth).is_some() {
            for part in &self.record.parts {
                let is_used =
                    |live: &Arc<Attached>| live.descriptor().is_some_and(|it| it.uuid == part.uuid);
                if !self.live.iter().any(is_used) {
                    must_not_be_at_stake(name, part)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a disk writes back only while two devices have everything.
fn needs_two(live: &Attached) -> bool {
    let flash = live.descriptor().and_then(|descriptor| descriptor.flash);
    flash.is_some_and(|flash| flash.mode == FlashMode::WriteBack && !flash.single_device)
}

fn target(live: &Attached, nth: u8) -> Target {
    let members = u8::try_from(live.members().len()).unwrap_or(u8::MAX);
    Target(members.saturating_add(nth))
}

fn must_have(record: &Record, name: &Name, nth: u8) -> Outcome<()> {
    match record.device(nth) {
        Some(_) => Ok(()),
        None => Err(os_error::invalid(format!("it has no device {nth}"))
            .remedy(format!("see `tidegate cache show {name}`"))),
    }
}

/// The problem of a new device that failed.
fn not_filled(name: &Name, nth: u8, live: &Attached) -> Problem {
    Problem::new(
        ProblemCode::Datastore,
        format!("device {nth} cannot be filled for disk {}", live.name()),
    )
    .because("it failed, or was removed")
    .remedy(format!(
        "the other device has everything; name another one: tidegate cache device replace {name} {nth} --with PATH"
    ))
}
