//! The in-flight region: shared memory of the front end that outlives this process.
//!
//! Each ring has its part ([`inflight`]); what the guest chose of its cache comes behind them, if there is room.
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

/// Bytes behind the rings' accounts for the guest's choice.
pub(super) const CHOICE: usize = 64;
const CHOSE_WRITE_THROUGH: u8 = 1;
const CHOSE_WRITE_BACK: u8 = 2;
/// It came from where nobody noted what it chose.
const IN_DOUBT: u8 = 3;

/// The region in which requests in flight are accounted for, and behind them what the guest chose: memory that
/// outlives this process.
pub(super) struct InflightRegion {
    map: Arc<Mmap>,
    queues: u16,
    queue_size: u16,
    /// Where the guest's choice of a cache is kept, if the region has room (one that we made has).
    choice: Option<GuestArea>,
}

impl InflightRegion {
    /// What an earlier process was told by the same guest.
    pub(super) fn chosen_write_back(&self) -> Option<bool> {
        match self.choice.as_ref()?.load_u8(0) {
            CHOSE_WRITE_THROUGH => Some(false),
            CHOSE_WRITE_BACK => Some(true),
            _ => None,
        }
    }

    /// Whether an earlier process did not know what the guest chose.
    pub(super) fn is_in_doubt(&self) -> bool {
        let choice = self.choice.as_ref();
        choice.is_some_and(|choice| choice.load_u8(0) == IN_DOUBT)
    }

    pub(super) fn choose_write_back(&self, write_back: bool) {
        self.note(if write_back {
            CHOSE_WRITE_BACK
        } else {
            CHOSE_WRITE_THROUGH
        });
    }

    /// Nobody knows what the guest chose.
    pub(super) fn doubt(&self) {
        self.note(IN_DOUBT);
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
            tracing::warn!(disk = %self.disk.spec.name, index, size, "the in-flight region has no room for a ring: after a crash its requests are not taken up again");
            return None;
        }
        let len = inflight::region_len(region.queue_size);
        Some((
            GuestArea::of_map(&region.map, len * index as usize, len)?,
            len,
        ))
    }

    pub(super) fn take_inflight(&mut self, given: &VhostUserInflight, file: &File) -> Result<()> {
        self.must_fit_device(given)?;
        let needed = accounts_len(given);
        let end = given
            .mmap_offset
            .checked_add(given.mmap_size)
            .ok_or(Error::InvalidParam)?;
        let long_enough = file.metadata().map_err(Error::ReqHandlerError)?.len() >= end;
        if given.mmap_size < needed || needed == 0 || !long_enough {
            return Err(refuse(
                "the in-flight region is shorter than its rings need",
            ));
        }
        let len = usize::try_from(given.mmap_size).map_err(|_| Error::InvalidParam)?;
        let accounts = usize::try_from(needed).map_err(|_| Error::InvalidParam)?;
        let map =
            Arc::new(Mmap::file(file, given.mmap_offset, len).map_err(Error::ReqHandlerError)?);
        let choice = GuestArea::of_map(&map, accounts, CHOICE);
        let (queues, queue_size) = (given.num_queues, given.queue_size);
        let region = InflightRegion {
            map,
            queues,
            queue_size,
            choice,
        };
        match (region.chosen_write_back(), self.cache_choice) {
            // Before a restart of the daemon.
            (Some(choice), _) => self.choose_write_back(Some(choice)),
            // A fresh one: the guest was reset. QEMU keeps over a reset what the guest before it chose, shows that to the next
            // one, and says nothing of it: who finds write-through there sends no flush.
            (None, Some(choice)) => region.choose_write_back(choice),
            (None, None) => self.in_doubt |= region.is_in_doubt(),
        }
        self.inflight = Some(region);
        Ok(())
    }
}

impl Protocol {
    /// Fails unless an in-flight region is for queues that the disk has, of a size that a ring can have.
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

/// The largest ring that virtio knows.
const MAX_RING: u16 = 1 << 15;

/// Bytes that the accounts of all rings take.
pub(super) fn accounts_len(region: &VhostUserInflight) -> u64 {
    inflight::region_len(region.queue_size) as u64 * u64::from(region.num_queues)
}
