//! The in-flight region: shared memory of the front end that survives this process.
//!
//! Each ring has its part ([`inflight`]). The guest's cache mode follows them, if there is room.
//!
//! # Source
//! The vhost-user protocol document, "Inflight I/O tracking".

use super::{Protocol, refuse};
use crate::sys::guest::{GuestArea, Mmap};
use std::fs::File;
use std::sync::Arc;
use tidegate_front::vhost::{Area, inflight};
use vhost::vhost_user::message::VhostUserInflight;
use vhost::vhost_user::{Error, Result};

/// Bytes behind the rings' parts for the guest's cache mode.
pub(super) const CHOICE: usize = 64;
const CHOSE_WRITE_THROUGH: u8 = 1;
const CHOSE_WRITE_BACK: u8 = 2;
/// The guest came from where its mode was not recorded.
const UNKNOWN: u8 = 3;

/// The region that tracks requests in flight, followed by the guest's cache mode. The memory survives this process.
pub(super) struct InflightRegion {
    map: Arc<Mmap>,
    queues: u16,
    queue_size: u16,
    /// The place of the guest's cache mode, if the region has room (a region made here has).
    choice: Option<GuestArea>,
}

impl InflightRegion {
    /// The mode that an earlier process received from the same guest.
    pub(super) fn chosen_write_back(&self) -> Option<bool> {
        match self.choice.as_ref()?.load_u8(0) {
            CHOSE_WRITE_THROUGH => Some(false),
            CHOSE_WRITE_BACK => Some(true),
            _ => None,
        }
    }

    /// Whether an earlier process did not know the guest's mode.
    pub(super) fn is_unknown(&self) -> bool {
        let choice = self.choice.as_ref();
        choice.is_some_and(|choice| choice.load_u8(0) == UNKNOWN)
    }

    pub(super) fn choose_write_back(&self, write_back: bool) {
        self.note(if write_back {
            CHOSE_WRITE_BACK
        } else {
            CHOSE_WRITE_THROUGH
        });
    }

    /// The guest's mode is unknown.
    pub(super) fn set_unknown(&self) {
        self.note(UNKNOWN);
    }

    fn note(&self, what: u8) {
        if let Some(choice) = &self.choice {
            choice.store_u8(0, what);
        }
    }
}

impl Protocol {
    pub(super) fn inflight_area(&self, index: u32, size: u16) -> Option<(GuestArea, usize)> {
        let region = self.inflight.as_ref()?;
        if index >= u32::from(region.queues) || size > region.queue_size {
            tracing::warn!(disk = %self.disk.spec.name, index, size, "the in-flight region has no room for a ring: after a crash its requests are lost");
            return None;
        }
        let len = inflight::region_len(region.queue_size);
        Some((
            GuestArea::of_map(&region.map, len * index as usize, len)?,
            len,
        ))
    }

    pub(super) fn take_inflight(&mut self, config: &VhostUserInflight, file: &File) -> Result<()> {
        self.must_fit_device(config)?;
        let needed = rings_len(config);
        let end = config
            .mmap_offset
            .checked_add(config.mmap_size)
            .ok_or(Error::InvalidParam)?;
        let long_enough = file.metadata().map_err(Error::ReqHandlerError)?.len() >= end;
        if config.mmap_size < needed || needed == 0 || !long_enough {
            return Err(refuse(
                "the in-flight region is shorter than its rings need",
            ));
        }
        let len = usize::try_from(config.mmap_size).map_err(|_| Error::InvalidParam)?;
        let rings = usize::try_from(needed).map_err(|_| Error::InvalidParam)?;
        let map =
            Arc::new(Mmap::file(file, config.mmap_offset, len).map_err(Error::ReqHandlerError)?);
        let choice = GuestArea::of_map(&map, rings, CHOICE);
        let (queues, queue_size) = (config.num_queues, config.queue_size);
        let region = InflightRegion {
            map,
            queues,
            queue_size,
            choice,
        };
        match (region.chosen_write_back(), self.cache_choice) {
            // The daemon was restarted.
            (Some(choice), _) => self.choose_write_back(Some(choice)),
            // A new region: the guest was reset. QEMU keeps the previous guest's choice over a reset, shows it to the
            // next guest, and does not report it. A guest that finds write-through sends no flush.
            (None, Some(choice)) => region.choose_write_back(choice),
            (None, None) => self.cache_unknown |= region.is_unknown(),
        }
        self.inflight = Some(region);
        Ok(())
    }
}

impl Protocol {
    /// Fails unless an in-flight region is for existing queues, of a valid ring size.
    pub(super) fn must_fit_device(&self, region: &VhostUserInflight) -> Result<()> {
        let queues = 1..=self.disk.spec.queues;
        match queues.contains(&region.num_queues) && (1..=MAX_RING).contains(&region.queue_size) {
            true => Ok(()),
            false => Err(refuse(
                "the in-flight region is for more or larger queues than the disk has",
            )),
        }
    }
}

/// The largest ring of virtio.
const MAX_RING: u16 = 1 << 15;

/// Size of all rings' parts.
pub(super) fn rings_len(region: &VhostUserInflight) -> u64 {
    inflight::region_len(region.queue_size) as u64 * u64::from(region.num_queues)
}
