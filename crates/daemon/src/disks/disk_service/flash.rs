//! The flash caches of disks: with which one a disk is attached, and how that changes while guests use the disk.
//!
//! # Always true
//! - The descriptor says that the cache may have what the disk does not, before the cache answers a write by itself.
//! - It says another use of the disk before a write reaches the disk without the cache. What flash has is void then.
//! - A disk is not used without its cache while that may have what the disk does not, unless the command gives it up.
//!
//! # Picture
//! ```text
//!   attach: open write-through ── descriptor: this use, has_dirty ── order write-back
//!   off:    order write-through ── all clean ── descriptor: clean ── descriptor: another use ── take the layout off
//! ```

use std::sync::Arc;
use std::time::Duration;

use tidegate_api::cache::{Dirty, DiskFlashSet, FlashMode, FlashUse, SingleDevice};
use tidegate_api::descriptor::{Descriptor, Uuid};
use tidegate_api::disk as api;
use tidegate_api::job::Job;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::units::Size;
use tidegate_core::layout::cache::{CacheMode, PAGE};
use tidegate_core::layout::{CacheReport, LayoutOrder};
use tidegate_engine::Flash;

use super::claims::Claim;
use super::pooled::must_not_be_pooled;
use super::{DiskService, must_be_home};
use crate::caches::chunks::{self, Wanted};
use crate::caches::{Devices, Record};
use crate::disks::attached::{Attached, CacheInUse};
use crate::disks::copy::Progress;
use crate::host::OpenFlash;
use crate::os_error::{self, Outcome};
use crate::store::Found;
use crate::text::new_uuid;

mod budget;
mod clean;
mod devices;
mod divide;
mod exchange;
mod learned;
mod left;
mod naming;
mod plan;
mod refusals;
mod room;

pub(crate) use budget::keep_budgets;
pub(super) use clean::became_clean;
use clean::is_through;
pub(crate) use devices::look_for_flash;
pub(crate) use divide::divide_caches;
pub(crate) use learned::store_policies;
pub(super) use naming::Naming;
pub(super) use plan::Using;
use refusals::{depends_on_one, must_be_saved_first, must_fit, not_whole, unusable};
pub(super) use refusals::{must_be_saved, unreadable_pages};

/// How long a command that is no job waits until a cache is clean. The command line has it cleaned by a job before.
const CLEANING: Duration = Duration::from_secs(25);
/// How often a job looks how far a cache is.
const EVERY: Duration = Duration::from_millis(200);
/// How long a command waits until the engine has closed a cache's devices.
const CLOSING: Duration = Duration::from_secs(10);

impl DiskService {
    /// Changes a disk's flash cache.
    pub(crate) fn set_flash(self: &Arc<Self>, name: &Name, order: &DiskFlashSet) -> Outcome<Job> {
        let what = format!("cannot change the flash cache of disk {name}");
        let claim = self.claim(name, &what)?;
        let (found, turn) = self.find_to_change(name).map_err(|e| e.within(&what))?;
        let live = self.live.get(name);
        let before = standing(&found, live.as_deref());
        let after = self
            .ordered(&found, before.as_ref(), order)
            .map_err(|e| e.within(&what))?;
        must_be_saved_first(&found, live.as_deref(), before.as_ref(), after.as_ref())
            .map_err(|e| e.within(&what))?;
        drop(turn);
        let service = Arc::clone(self);
        let job = format!("change the flash cache of disk {name}");
        let remedy = format!("repeat the command; see `tidegate disk show {name}`");
        Ok(self
            .jobs
            .start_once(job, name.clone(), remedy, move |progress| {
                let caches =
                    [&before, &after].map(|flash| flash.as_ref().map(|it| it.cache.clone()));
                let changed = match &live {
                    Some(live) => service.change_flash(&found, live, after, progress),
                    None => service.change_flash_detached(&found, before, after),
                };
                if let Some(live) = &live {
                    service.fit_part(&claim, live);
                }
                caches
                    .iter()
                    .flatten()
                    .for_each(|cache| service.spread(cache, Some(&claim)));
                changed.map_err(|e| e.within(what))
            }))
    }

    /// What a disk's descriptor is to say about its cache.
    fn ordered(
        &self,
        found: &Found,
        before: Option<&FlashUse>,
        order: &DiskFlashSet,
    ) -> Outcome<Option<FlashUse>> {
        must_be_home(found)?;
        must_not_be_pooled(
            found,
            "leave the cache out: put the pool's fast devices into the pool itself",
        )?;
        let wanted = match (&order.cache, before) {
            (Some(None), _) => return Ok(None),
            (Some(Some(cache)), _) => cache,
            (None, Some(before)) => &before.cache,
            (None, None) => {
                return Err(os_error::invalid("the disk has no flash cache")
                    .remedy("name one with --cache NAME (see `tidegate cache list`)"));
            }
        };
        let record = self.caches.record(wanted)?;
        let host = self.controls.host();
        let same = before.filter(|before| before.id == record.uuid && before.host.0 == host.id);
        let fresh = || {
            Ok(FlashUse {
                cache: wanted.clone(),
                id: record.uuid,
                host: Uuid(host.id),
                host_name: host.name.clone(),
                mode: FlashMode::WriteThrough,
                attachment: new_attachment()?,
                has_dirty: false,
                part: None,
                min: before.and_then(|before| before.min),
                max: before.and_then(|before| before.max),
                single_device: false,
            })
        };
        let mut after = same.cloned().map_or_else(fresh, Ok)?;
        after.cache = wanted.clone();
        after.mode = order.mode.unwrap_or(after.mode);
        if let Some(min) = order.min_bytes {
            after.min = min.map(Size);
        }
        if let Some(max) = order.max_bytes {
            after.max = max.map(Size);
        }
        if let Some(single) = order.single_device {
            after.single_device = single == SingleDevice::Accept;
        }
        must_fit(&record, &after)?;
        if after.mode == FlashMode::WriteBack
            && record.empty_place().is_some()
            && !after.single_device
        {
            if order.single_device == Some(SingleDevice::Refuse) && order.mode.is_none() {
                return Err(depends_on_one(&found.name, wanted));
            }
            return Err(Problem::new(
                ProblemCode::Unsupported,
                format!("cache {wanted} has one device"),
            )
            .because("if it failed, the writes that only it has would be lost")
            .remedy("use a cache with --mirror, or add --single-device-ok"));
        }
        Ok(Some(after))
    }

    /// Changes the cache of a disk that guests use.
    fn change_flash(
        &self,
        found: &Found,
        live: &Arc<Attached>,
        after: Option<FlashUse>,
        progress: &Progress,
    ) -> Outcome<()> {
        let wanted = after
            .as_ref()
            .filter(|after| after.mode != FlashMode::Off && !live.is_read_only());
        let using = live.cache();
        let stays = match (&using, wanted) {
            (Some(using), Some(wanted)) => using.cache == wanted.cache && !using.is_given_up,
            _ => false,
        };
        if stays && let (Some(after), Some(using)) = (&after, &using) {
            return self.change_mode(found, live, using, after, progress);
        }
        if using.is_some() {
            self.take_off(found, live, after.as_ref(), progress)?;
        }
        match after {
            Some(after) if after.mode != FlashMode::Off && !live.is_read_only() => {
                self.put_on(found, live, after)
            }
            mut after => {
                if let Some(after) = after.as_mut().filter(|after| after.mode == FlashMode::Off) {
                    // The disk is written without it.
                    (after.attachment, after.has_dirty) = (new_attachment()?, false);
                }
                self.commit_flash(found, Some(live), |flash| *flash = after)
            }
        }
    }

    /// Changes the cache of a disk that nobody uses, in its descriptor.
    fn change_flash_detached(
        &self,
        found: &Found,
        before: Option<FlashUse>,
        mut after: Option<FlashUse>,
    ) -> Outcome<()> {
        if let Some(after) = &mut after
            && after.mode == FlashMode::Off
        {
            after.attachment = new_attachment()?;
        }
        let given_back = before.filter(|before| {
            let same = after.as_ref().filter(|after| after.id == before.id);
            same.is_none_or(|after| after.mode == FlashMode::Off)
        });
        self.commit_flash(found, None, |flash| *flash = after)?;
        match given_back {
            Some(before) => self.give_back(&before, found.descriptor.uuid),
            None => Ok(()),
        }
    }

    /// Changes when writes are answered, and the bounds of the disk's part.
    fn change_mode(
        &self,
        found: &Found,
        live: &Arc<Attached>,
        using: &CacheInUse,
        after: &FlashUse,
        progress: &Progress,
    ) -> Outcome<()> {
        let report = live.cache_report();
        let devices = self.caches.record(&after.cache)?.devices().count();
        let before = standing(found, Some(live));
        // If a device has failed since it writes back, it goes on, unless the consent to that is taken back.
        let had_consent = before.as_ref().is_some_and(|before| before.single_device);
        let is_taken_back = had_consent && !after.single_device;
        let is_back = report.is_some_and(|report| report.mode == CacheMode::WriteBack);
        let goes_on = is_back && !is_taken_back;
        let wants_back = after.mode == FlashMode::WriteBack;
        let writes_back = wants_back && (goes_on || may_write_back(after, report, devices));
        let before = before.map(|before| before.mode);
        if wants_back && !writes_back && before != Some(FlashMode::WriteBack) {
            return Err(not_whole(&after.cache));
        }
        self.commit_flash(found, Some(live), |flash| {
            let before = flash.take();
            let had_dirty = before.as_ref().is_some_and(|before| before.has_dirty);
            let part = before.and_then(|before| before.part);
            *flash = Some(FlashUse {
                // The descriptor may not name the use yet that flash is valid for.
                attachment: using.attachment,
                part: part.or(Some(Size(using.part))),
                has_dirty: had_dirty || writes_back,
                ..after.clone()
            });
        })?;
        self.admit_to_cache(live)?;
        if writes_back {
            return live.order(LayoutOrder::CacheMode(CacheMode::WriteBack));
        }
        self.go_through(live, progress, None)?;
        self.note_clean(live)
    }

    /// Gives an attached disk its cache.
    fn put_on(&self, found: &Found, live: &Arc<Attached>, mut after: FlashUse) -> Outcome<()> {
        let uuid = found.descriptor.uuid;
        let shares = found.descriptor.policy.shares.get();
        let record = self.caches.record(&after.cache)?;
        let devices = self.caches.devices(&after.cache, &record);
        if devices.are_all_away() {
            return Err(unusable(&after.cache, &devices));
        }
        after.attachment = new_attachment()?;
        let area = self.area(&after, &record, found, shares)?;
        // Since it has its part, its devices change only with its claim.
        let record = self.caches.record(&after.cache)?;
        let devices = self.caches.devices(&after.cache, &record);
        let part = u64::from(area.slots()) * PAGE;
        let flash = Flash {
            devices: devices.images(),
            cache: record.uuid.0,
            area,
            attachments: [new_attachment()?, after.attachment],
            has_dirty: false,
            without: devices.empty(),
            policy_state: self.learned(found, &after.cache, &record),
        };
        let cache = after.cache.clone();
        self.notices.cache_signals(live.name()).begin();
        let begun = live.begin_cache(OpenFlash { cache, flash });
        if let Err(problem) = begun {
            return Err(self.undone(problem, || self.give_back(&after, uuid)));
        }
        live.set_cache(Some(CacheInUse {
            cache: after.cache.clone(),
            attachment: after.attachment,
            part,
            is_given_up: false,
        }));
        live.set_cache_problem(None);
        after.part = Some(Size(part));
        let before = standing(found, Some(live));
        let begun = self.begin_use(found, live, after.clone(), &devices);
        // The cache may have failed since it began to open.
        self.notices.note_cache();
        begun.map_err(|problem| self.undone(problem, || self.undo_use(found, live, before, &after)))
    }

    /// Takes off a cache whose use did not begin. It stays if it may write back, or if the descriptor may name that use:
    /// then the command can be repeated.
    fn undo_use(
        &self,
        found: &Found,
        live: &Attached,
        before: Option<FlashUse>,
        begun: &FlashUse,
    ) -> Outcome<()> {
        if !is_through(live) {
            return Ok(());
        }
        let mut void = before;
        if let Some(void) = &mut void {
            (void.attachment, void.has_dirty) = (new_attachment()?, false);
        }
        self.commit_flash(found, Some(live), |flash| *flash = void)?;
        self.count_use(live);
        live.end_cache()?;
        live.set_cache(None);
        self.give_back(begun, found.descriptor.uuid)
    }

    /// The disk's cache has opened: this use of the disk begins, in its mode.
    fn begin_use(
        &self,
        found: &Found,
        live: &Attached,
        mut after: FlashUse,
        devices: &Devices,
    ) -> Outcome<()> {
        self.resync(live, devices);
        let report = live.cache_report();
        let writes_back =
            after.mode == FlashMode::WriteBack && may_write_back(&after, report, devices.count());
        after.has_dirty |= writes_back;
        let has_dirty = after.has_dirty;
        self.commit_flash(found, Some(live), |flash| *flash = Some(after.clone()))?;
        self.admit_to_cache(live)?;
        if writes_back {
            return live.order(LayoutOrder::CacheMode(CacheMode::WriteBack));
        }
        if after.mode == FlashMode::WriteBack {
            tracing::warn!(disk = %live.name(), cache = %after.cache, "a device of the cache does not have everything: writes go \
                 through to the disk until it has");
        }
        match has_dirty {
            true => live.order(LayoutOrder::CleanCache),
            false => Ok(()),
        }
    }

    /// Takes the cache off an attached disk. The descriptor says `after` from then on.
    fn take_off(
        &self,
        found: &Found,
        live: &Arc<Attached>,
        after: Option<&FlashUse>,
        progress: &Progress,
    ) -> Outcome<()> {
        let (before, using) = (standing(found, Some(live)), live.cache());
        let is_usable = live.cache_report().is_some_and(|report| report.in_use);
        if is_usable {
            self.go_through(live, progress, None)?;
            self.note_clean(live)?;
        } else if live.cache().is_some_and(|cache| !cache.is_given_up) {
            return Err(Problem::new(
                ProblemCode::Datastore,
                "the cache has failed, and had writes that the disk does not have",
            )
            .remedy(format!(
                "detach the disk, and attach it without them: tidegate disk detach {0} --keep-dirty --disconnect; tidegate disk attach {0} \
                 --discard-cache",
                live.name()
            )));
        }
        let mut void = after.or(before.as_ref()).cloned();
        if let Some(void) = &mut void {
            (void.attachment, void.has_dirty) = (new_attachment()?, false);
        }
        let void = after.and(void);
        self.commit_flash(found, Some(live), |flash| *flash = void)?;
        self.count_use(live);
        match live.end_cache() {
            Ok(old) => {
                live.set_cache(None);
                let _ = old.is_closed_within(CLOSING);
            }
            // It is used as before: so says the descriptor again. Nobody else has used the disk meanwhile.
            Err(problem) => {
                return Err(self.undone(problem, || {
                    self.commit_flash(found, Some(live), |flash| {
                        *flash = before.map(|before| FlashUse {
                            has_dirty: false,
                            ..before
                        });
                    })
                }));
            }
        }
        match (before, using) {
            (Some(before), _) => self.give_back(&before, found.descriptor.uuid),
            // Its use did not begin.
            (None, Some(using)) => self.caches.release(&using.cache, found.descriptor.uuid),
            (None, None) => Ok(()),
        }
    }

    /// Changes what a disk's descriptor says about its cache.
    pub(super) fn commit_flash(
        &self,
        found: &Found,
        live: Option<&Attached>,
        change: impl FnOnce(&mut Option<FlashUse>),
    ) -> Outcome<()> {
        let settling = live.map(Attached::settling);
        let (mut now, _turn) = self.store.to_change(found)?;
        let before = now.descriptor.flash.clone();
        if let Some(descriptor) = live.and_then(Attached::descriptor) {
            now.descriptor.flash = descriptor.flash;
        }
        change(&mut now.descriptor.flash);
        let (uuid, after) = (now.descriptor.uuid, now.descriptor.flash.clone());
        self.note_stake(uuid, before.as_ref(), after.as_ref())?;
        if after != before {
            self.store.write_descriptor(&now)?;
            self.write_copies(&now);
        }
        self.note_no_stake(uuid, before.as_ref(), after.as_ref());
        if let Some(live) = live
            && let Some(standing) = live.descriptor()
        {
            live.set_descriptor(Descriptor {
                flash: now.descriptor.flash,
                ..standing
            });
            live.note_stamp(None);
        }
        drop(settling);
        Ok(())
    }

    /// Fails if the flash cache of a detached disk is in the way of another size. It is void from then on.
    pub(super) fn must_be_resizable(&self, found: &mut Found) -> Outcome<()> {
        if self.live.get(&found.name).is_some() {
            return Ok(());
        }
        must_be_saved(found)?;
        if let Some(flash) = &mut found.descriptor.flash {
            flash.attachment = new_attachment()?;
        }
        Ok(())
    }

    /// An attached disk has grown: perhaps it gets more of its cache.
    pub(super) fn has_grown(&self, live: &Attached, claim: &Claim) {
        if let Some(using) = live.cache() {
            self.spread(&using.cache, Some(claim));
        }
    }

    /// Gives a disk's part of a cache back, if the cache is on this host.
    pub(super) fn give_back(&self, flash: &FlashUse, disk: Uuid) -> Outcome<()> {
        let is_here = flash.host.0 == self.controls.host().id;
        let same = |record: Record| record.uuid == flash.id;
        match is_here && self.caches.record(&flash.cache).is_ok_and(same) {
            true => self.caches.release(&flash.cache, disk),
            false => Ok(()),
        }
    }

    /// A problem, after what was begun was undone.
    fn undone(&self, problem: Problem, undo: impl FnOnce() -> Outcome<()>) -> Problem {
        match undo() {
            Ok(()) => problem,
            Err(second) => problem.because(second),
        }
    }
}

/// Whether the cache of a disk can begin to write back: it works, and all its devices have everything.
fn may_write_back(flash: &FlashUse, report: Option<CacheReport>, devices: usize) -> bool {
    report.filter(|report| report.in_use).is_some_and(|report| {
        let whole = report.devices.count_ones() as usize;
        flash.single_device || devices > 1 && whole == devices && !report.resyncing
    })
}

/// What holds for a disk's cache: as it stands, or as its descriptor says.
fn standing(found: &Found, live: Option<&Attached>) -> Option<FlashUse> {
    let standing = live.and_then(Attached::descriptor);
    standing.map_or_else(
        || found.descriptor.flash.clone(),
        |descriptor| descriptor.flash,
    )
}

/// What a disk wants of its cache.
fn wanted(flash: &FlashUse, record: &Record, shares: u32, size: u64) -> Wanted {
    let in_chunks = |size: Size| record.in_chunks(size.0);
    Wanted {
        shares,
        useful: chunks::useful(size, record.chunk.0),
        min: flash.min.map(in_chunks),
        max: flash.max.map(in_chunks),
        planned: None,
    }
}

/// A number for a use of a disk that no other one has.
pub(super) fn new_attachment() -> Outcome<u64> {
    let Uuid(bytes) = new_uuid()?;
    let [a, b, c, d, .., e, f, g, h] = bytes;
    let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]) & tidegate_api::cache::MAX_ATTACHMENT;
    Ok(number.max(1))
}

/// Whether an order to attach gives up what only the cache has.
fn discards(order: &api::DiskAttach) -> bool {
    order.dirty == Dirty::Discard
}
