//! The features of the device, and the cache mode of its guest.
//!
//! The front end asks for both before and while rings run; the guest's choice of a cache reaches the rings through
//! [`DeviceFacts`](crate::device::ring::DeviceFacts).
//!
//! # Source
//! VIRTIO 1.2 §5.2.3 to §5.2.5.

use super::Protocol;
use std::sync::atomic::Ordering;
use tidegate_front::vhost::block::{BlockConfig, feature};

/// The best size of an I/O, announced to guests, in bytes.
const OPTIMAL_IO: u32 = 64 << 10;
/// The physical block, in bytes: smaller writes are read, changed and written back below.
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

    /// What the configuration space says of the cache. QEMU reads it once, before the guest has chosen any features:
    /// it must hear what the guest will find.
    pub(super) fn shows_write_back(&self) -> bool {
        if self.features == 0 {
            self.disk.spec.write_back
        } else {
            self.write_back()
        }
    }

    /// The cache that goes with the guest's features, or that it chose.
    pub(super) fn write_back(&self) -> bool {
        self.features & feature::FLUSH != 0 && self.cache_choice.unwrap_or(true)
    }

    /// Has the rings that run, or are about to, give the guest its cache. A front end that waits for its turn changes
    /// nothing for the one that has it.
    pub(super) fn settle_write_back(&self) {
        if self.disk.front_ends.has_turn(self.front_end) {
            let in_doubt = self.in_doubt && self.write_back();
            self.facts.in_doubt.store(in_doubt, Ordering::Relaxed);
            self.facts
                .write_back
                .store(self.write_back() && !in_doubt, Ordering::Relaxed);
        }
    }

    /// A ring is to run in which `used` tells whether its guest was answered before, and `known` whether that was by this
    /// disk's daemon, which would have noted what the guest chose. If neither it nor the front end knows, nobody does.
    pub(super) fn doubt(&mut self, used: bool, known: bool) {
        if used && !known && self.cache_choice.is_none() && !self.in_doubt {
            self.in_doubt = true;
            if let Some(region) = &self.inflight {
                region.doubt();
            }
            self.settle_write_back();
        }
    }

    pub(super) fn choose_write_back(&mut self, choice: Option<bool>) {
        self.cache_choice = choice;
        self.in_doubt &= choice.is_none();
        self.disk
            .front_ends
            .note_cache_choice(self.front_end, choice);
        self.settle_write_back();
    }
}
