//! The features of the device, and the cache mode of its guest.
//!
//! The front end reads both before and while rings run. The guest's cache mode reaches the rings through
//! [`DeviceFacts`](crate::device::ring::DeviceFacts).
//!
//! # Source
//! VIRTIO 1.2 §5.2.3 to §5.2.5.

use super::Protocol;
use std::sync::atomic::Ordering;
use tidegate_front::vhost::block::{BlockConfig, feature};

/// The optimal I/O size announced to guests, in bytes.
const OPTIMAL_IO: u32 = 64 << 10;
/// The physical block size, in bytes: smaller writes need a read-modify-write.
const PHYSICAL_BLOCK: u32 = 4096;

impl Protocol {
    pub(super) fn offered(&self) -> u64 {
        let spec = &self.disk.spec;
        let mut features = feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::FLUSH
            | feature::TOPOLOGY
            | feature::CONFIG_WCE
            | feature::MQ
            | feature::LOG_ALL
            | feature::INDIRECT_DESC
            | feature::EVENT_IDX
            | feature::PROTOCOL_FEATURES
            | feature::VERSION_1;
        if spec.read_only {
            features |= feature::RO;
        } else {
            features |= feature::DISCARD | feature::WRITE_ZEROES;
        }
        if !spec.write_back {
            features &= !(feature::FLUSH | feature::CONFIG_WCE);
        }
        features
    }

    pub(super) fn config(&self) -> [u8; BlockConfig::LEN] {
        let spec = &self.disk.spec;
        BlockConfig {
            size: self.disk.size(),
            block_size: spec.block_size,
            physical_block_size: PHYSICAL_BLOCK.max(spec.block_size),
            optimal_io_size: OPTIMAL_IO,
            seg_max: spec.seg_max.into(),
            queues: spec.queues,
            write_back: self.shows_write_back(),
        }
        .encode()
    }

    /// The cache mode in the configuration space. QEMU reads it once, before the guest has chosen any features: so it
    /// must be the mode that the guest will find.
    pub(super) fn shows_write_back(&self) -> bool {
        if self.features == 0 {
            self.disk.spec.write_back
        } else {
            self.write_back()
        }
    }

    /// The cache mode by the guest's features, or by its choice.
    pub(super) fn write_back(&self) -> bool {
        self.features & feature::FLUSH != 0 && self.cache_choice.unwrap_or(true)
    }

    /// Applies the guest's cache mode to the rings. A front end that does not own the rings changes nothing.
    pub(super) fn update_write_back(&self) {
        if self.disk.front_ends.owns_rings(self.front_end) {
            let cache_unknown = self.cache_unknown && self.write_back();
            self.facts
                .cache_unknown
                .store(cache_unknown, Ordering::Relaxed);
            self.facts
                .write_back
                .store(self.write_back() && !cache_unknown, Ordering::Relaxed);
        }
    }

    /// Called before a ring starts. `used`: the guest has used it before. `known`: this disk's daemon served it then
    /// and recorded the cache mode. If neither the daemon nor the front end knows the mode, it is unknown.
    pub(super) fn note_unknown_cache(&mut self, used: bool, known: bool) {
        if used && !known && self.cache_choice.is_none() && !self.cache_unknown {
            self.cache_unknown = true;
            if let Some(region) = &self.inflight {
                region.set_unknown();
            }
            self.update_write_back();
        }
    }

    pub(super) fn choose_write_back(&mut self, choice: Option<bool>) {
        self.cache_choice = choice;
        self.cache_unknown &= choice.is_none();
        self.disk
            .front_ends
            .note_cache_choice(self.front_end, choice);
        self.update_write_back();
    }
}
