//! Disks with a flash cache: how they are attached, and how a disk gets a cache or loses it while guests use it.
//!
//! A cache's devices are targets after those of the disk's members. The cache is put above the layouts, or taken off, while
//! the disk's requests are held for a moment. The layouts below stay open: a member's state is known to them only.

use super::members::{self, away, span};
use super::{Disk, Engine, OldImage, guard};
use crate::datastore::OpenedImage;
use crate::disk_spec::{DiskSpec, Flash};
use crate::error::{Error, Kind, Result};
use crate::thread::commands::What;
use crate::thread::layouts::{Relay, Replace};
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::Duration;
use tidegate_core::layout::Target;
use tidegate_core::layout::cache::{CacheMode, CacheSetup};

impl Engine {
    /// Attaches a disk with a flash cache above its images, of which a disk without a layout has one. The cache begins in
    /// write-through mode ([`Flash`]).
    ///
    /// # Errors
    /// As [`Engine::attach_members`]. What the layouts refuse names a member or, after the last one, a flash device.
    pub fn attach_cached(
        &self,
        spec: DiskSpec,
        members: Vec<Option<OpenedImage>>,
        flash: Flash,
        patience: Duration,
    ) -> Result<Disk> {
        check_devices(&flash)?;
        must_be_in_no_pool(&spec)?;
        let images = members::fitted(&spec, members)?;
        self.begin_attach(spec, images, Some(flash))?
            .finish(Some(patience))
    }
}

impl Disk {
    /// Whether it has a flash cache.
    pub fn is_cached(&self) -> bool {
        self.core.is_cached.load(Ordering::Relaxed)
    }

    /// Gives the disk a flash cache, which begins in write-through mode ([`Flash`]). Its layouts stay as they are.
    ///
    /// # Errors
    /// If the disk has one or moves, the cache is refused, or I/O in flight does not end within `patience`. The disk then
    /// goes on as it was.
    pub fn begin_cache(&self, flash: Flash, patience: Duration) -> Result<()> {
        let _alone = guard(&self.core.changing_images);
        check_devices(&flash)?;
        must_be_in_no_pool(&self.core.device.spec)?;
        if self.is_cached() || self.moves() {
            let text = "the disk has a flash cache already, or moves";
            return Err(Error::new(Kind::Busy, text));
        }
        let mut devices = Vec::new();
        let cache = setup(&self.core.device.spec, flash, &mut devices);
        let cache = CacheSetup {
            size: self.size(),
            ..cache
        };
        let options = &self.core.device.spec.layout_options;
        let relay = Relay::Cache {
            devices,
            cache: Box::new(cache),
            timeout: span(options.member_timeout),
        };
        let begun = self.relay(relay, patience);
        let is_cached = begun.is_ok() || self.has_cache()?;
        self.core.is_cached.store(is_cached, Ordering::Relaxed);
        match is_cached {
            true => Ok(()),
            false => begun,
        }
    }

    /// Takes the flash cache off the disk. The caller has seen that it has nothing that the disk does not, in write-through
    /// mode, and has recorded that the disk is used without it.
    ///
    /// # Errors
    /// If the disk has none, or I/O in flight does not end within `patience`: then it keeps the cache.
    pub fn end_cache(&self, patience: Duration) -> Result<OldImage> {
        let _alone = guard(&self.core.changing_images);
        if !self.is_cached() {
            return Err(Error::new(Kind::Invalid, "the disk has no flash cache"));
        }
        if self.moves() {
            let text = "the disk moves: take its flash cache off when that has ended";
            return Err(Error::new(Kind::Busy, text));
        }
        let (closed, old) = channel();
        let members = self.members();
        let ended = self.relay(Relay::Uncache { members, closed }, patience);
        let is_cached = ended.is_err() && self.has_cache()?;
        self.core.is_cached.store(is_cached, Ordering::Relaxed);
        match is_cached {
            true => ended.map(|()| OldImage(old)),
            false => Ok(OldImage(old)),
        }
    }

    /// Gives a place of the disk's flash cache another device, or none. The caller has dropped that device before, and has it
    /// filled afterwards ([`LayoutOrder::Replace`](tidegate_core::layout::LayoutOrder::Replace)). The old image is closed once
    /// it has no I/O in flight.
    ///
    /// # Errors
    /// If the disk has no flash cache or no such place, the cache uses the device, or the disk is detached.
    pub fn set_flash_device(&self, nth: u8, image: Option<OpenedImage>) -> Result<OldImage> {
        let _alone = guard(&self.core.changing_images);
        if !self.is_cached() || nth >= 2 {
            let text = "the disk has no flash cache, or no such device";
            return Err(Error::new(Kind::NotFound, text));
        }
        if self.moves() {
            let text = "the disk moves: exchange devices of its flash cache when that has ended";
            return Err(Error::new(Kind::Busy, text));
        }
        let members = u8::try_from(self.members()).unwrap_or(u8::MAX);
        let (closed, old) = channel();
        let replace = Replace {
            target: Target(members.saturating_add(nth)),
            is_away: image.is_none(),
            image: image.unwrap_or_else(|| away(0)),
            flash: Some(nth),
            closed,
        };
        self.core.change(What::Image(Box::new(replace)), None)?;
        Ok(OldImage(old))
    }

    /// Whether its layouts have a cache now.
    fn has_cache(&self) -> Result<bool> {
        Ok(self.layout()?.is_some_and(|report| report.cache.is_some()))
    }
}

/// What the cache of a new disk is built of. Adds the devices to its images.
pub(super) fn setup(spec: &DiskSpec, flash: Flash, images: &mut Vec<OpenedImage>) -> CacheSetup {
    let devices = u8::try_from(flash.devices.len()).expect("checked: one device, or two");
    let opened = flash.devices.into_iter();
    images.extend(opened.map(|device| device.unwrap_or_else(|| away(0))));
    CacheSetup {
        cache: flash.cache,
        disk: spec.uuid,
        size: spec.size,
        devices,
        area: flash.area,
        mode: CacheMode::WriteThrough,
        attachments: flash.attachments,
        has_dirty: flash.has_dirty,
        without: flash.without,
        policy: None,
        policy_state: flash.policy_state,
    }
}

fn must_be_in_no_pool(spec: &DiskSpec) -> Result<()> {
    if !spec.is_pooled() {
        return Ok(());
    }
    let text = format!("disk {} is in a pool, and has no flash cache", spec.name);
    Err(Error::new(Kind::Unsupported, text))
}

fn check_devices(flash: &Flash) -> Result<()> {
    if matches!(flash.devices.len(), 1 | 2) {
        return Ok(());
    }
    let text = format!(
        "a flash cache has one device, or two with the same bytes, not {}",
        flash.devices.len()
    );
    Err(Error::new(Kind::Invalid, text))
}
