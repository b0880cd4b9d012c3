//! The disks that are simulated: how their bytes lie on stores, and what stands above.
//!
//! A world is built of a [`Setup`], and built again of it after each crash.

use super::SECTOR;
use super::store::Defects;
use std::ops::Range;
use tidegate_core::block::BLOCK;
use tidegate_core::filter::FilterSpec;
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::cache::policy::Params;
use tidegate_core::layout::cache::{CacheMode, CacheSetup, PAGE};
use tidegate_core::layout::stripe::CHUNK_MIN;
use tidegate_core::layout::{self, LayoutSpec, Members, Tree};

/// Where the disk's bytes begin on each member: behind a label and two states.
pub(super) const DATA_AT: u64 = 3 * BLOCK as u64;

/// How a disk's bytes lie on its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One image.
    Plain,
    /// RAID 0 in chunks of 4 KiB.
    Stripe {
        /// Targets.
        targets: u8,
    },
    /// RAID 1.
    Mirror {
        /// Members.
        members: u8,
    },
    /// RAID 10 of mirrors of two, in chunks of 4 KiB.
    MirrorStripe {
        /// Members.
        members: u8,
    },
    /// One image, that can move between two stores.
    Movable,
    /// One image under a flash cache.
    Cached {
        /// Flash devices.
        devices: u8,
        /// The cache's mode.
        mode: CacheMode,
    },
}

/// Where the chunks of the simulated cache are on its devices: not in order, and not at the beginning.
const CHUNKS: [u32; 3] = [3, 1, 2];
/// Bytes of such a chunk.
const CHUNK: u64 = 2 * PAGE;

/// The use of a disk that begins, as its descriptor says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    /// The last one, and the new one.
    pub(super) attachments: [u64; 2],
    /// The cache's mode.
    pub(super) mode: Option<CacheMode>,
    /// Whether the cache may have what the disk does not.
    pub(super) has_dirty: bool,
    /// Devices of the cache that the administrator has given up, one bit each.
    pub(super) without: u32,
}

impl Shape {
    pub(super) fn targets(self) -> u8 {
        match self {
            Shape::Plain => 1,
            Shape::Movable => 2,
            Shape::Cached { devices, .. } => 1 + devices,
            Shape::Stripe { targets } => targets,
            Shape::Mirror { members } | Shape::MirrorStripe { members } => members,
        }
    }

    pub(super) fn spec(self) -> LayoutSpec {
        let chunk = CHUNK_MIN;
        match self {
            Shape::Plain | Shape::Movable | Shape::Cached { .. } => LayoutSpec::Plain,
            Shape::Stripe { .. } => LayoutSpec::Stripe { chunk },
            Shape::Mirror { .. } => LayoutSpec::Mirror,
            Shape::MirrorStripe { .. } => LayoutSpec::MirrorStripe { chunk },
        }
    }

    /// The layouts of a disk of this size.
    pub(super) fn tree(self, size: u64, used: Use) -> Option<Tree> {
        if let Shape::Cached { devices, mode } = self {
            let members = Members::new([7; 16], size, 1);
            let cache = CacheSetup {
                cache: [9; 16],
                disk: [7; 16],
                size,
                devices,
                area: Area::new(CHUNK, CHUNKS.to_vec()).expect("it is large enough"),
                mode: used.mode.unwrap_or(mode),
                attachments: used.attachments,
                has_dirty: used.has_dirty,
                without: used.without,
                // Every page comes in at once, so that short runs have something to evict.
                policy: Some(Params::S3_FIFO),
            };
            return Some(Tree::cached(LayoutSpec::Plain, members, cache));
        }
        if self.spec() == LayoutSpec::Plain {
            return None;
        }
        let members = Members {
            data_at: DATA_AT,
            ..Members::new([7; 16], size, self.targets().into())
        };
        Tree::build(self.spec(), members)
    }

    /// Whether the disk goes on without any one of its targets.
    pub(super) fn is_redundant(self) -> bool {
        self.spec().is_redundant()
    }

    /// The members that have the same bytes as this one, and it.
    pub(super) fn mirrors(self) -> Vec<Range<usize>> {
        match self {
            Shape::Plain | Shape::Movable | Shape::Stripe { .. } | Shape::Cached { .. } => {
                Vec::new()
            }
            Shape::Mirror { members } => std::iter::once(0..members.into()).collect(),
            Shape::MirrorStripe { members } => {
                let pairs = 0..usize::from(members) / 2;
                pairs.map(|pair| 2 * pair..2 * pair + 2).collect()
            }
        }
    }

    /// Whether an I/O of a guest may fail once these targets have, one bit each.
    pub(super) fn may_fail(self, faulty: u32, has_dirty: bool) -> bool {
        match self {
            Shape::Cached { devices, .. } => {
                let all = if devices == 1 { 0b10 } else { 0b110 };
                faulty & 1 == 1 || has_dirty && faulty & all == all
            }
            _ => !self.is_redundant() || faulty.count_ones() >= 2,
        }
    }

    /// Whether one target may be away when the disk starts.
    pub(super) fn may_lack_one(self) -> bool {
        self.is_redundant() || matches!(self, Shape::Cached { .. })
    }

    /// Sectors of a target.
    pub(super) fn sectors_of(self, target: u8, sectors: u64) -> u64 {
        match self {
            Shape::Cached { .. } if target > 0 => 4 * CHUNK / SECTOR as u64,
            Shape::Cached { .. } => sectors,
            _ => self.member_sectors(sectors),
        }
    }

    /// Sectors of each member.
    pub(super) fn member_sectors(self, sectors: u64) -> u64 {
        let size = sectors * SECTOR as u64;
        match self {
            Shape::Plain | Shape::Movable | Shape::Cached { .. } => sectors,
            _ => {
                let member = self.spec().member_size(size, self.targets().into());
                (member - layout::DATA_AT + DATA_AT).div_ceil(SECTOR as u64)
            }
        }
    }
}

/// What is built, and built again after each crash.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its layout.
    pub shape: Shape,
    /// Size of the disk.
    pub sectors: u64,
    /// Its filters, top first.
    pub filters: Vec<FilterSpec>,
    /// What its first store does wrong.
    pub defects: Defects,
}
