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
    /// A disk under a flash cache.
    Cached {
        /// What is below the cache.
        over: Over,
        /// Flash devices.
        devices: u8,
        /// The cache's mode.
        mode: CacheMode,
    },
}

/// What is below a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// One image.
    Plain,
    /// RAID 0 of two in chunks of 4 KiB.
    Stripe,
    /// RAID 1 of two.
    Mirror,
}

impl Over {
    fn members(self) -> u8 {
        if self == Over::Plain { 1 } else { 2 }
    }

    fn spec(self) -> LayoutSpec {
        match self {
            Over::Plain => LayoutSpec::Plain,
            Over::Stripe => LayoutSpec::Stripe { chunk: CHUNK_MIN },
            Over::Mirror => LayoutSpec::Mirror,
        }
    }
}

/// The chunk of the simulated cache's journal on its devices.
pub(super) const JOURNAL: u32 = 3;
/// Chunks of its pages, in the order in which it gets them: not at the beginning.
pub(super) const DATA: [u32; 5] = [1, 2, 0, 5, 4];
/// How many of these it has at first.
const DATA_AT_FIRST: u8 = 2;
/// Bytes of such a chunk.
pub(super) const CHUNK: u64 = 2 * PAGE;

/// The use of a disk that begins, as its descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// The disk's identity.
    pub(super) disk: [u8; 16],
    /// Chunks of pages that the cache has.
    pub(super) chunks: u8,
    /// The last one, and the new one.
    pub(super) attachments: [u64; 2],
    /// The cache's mode.
    pub(super) mode: Option<CacheMode>,
    /// Whether the cache may have what the disk does not.
    pub(super) has_dirty: bool,
    /// Devices of the cache that the administrator has given up, one bit each.
    pub(super) without: u32,
}

impl Default for Use {
    fn default() -> Use {
        Use {
            disk: [7; 16],
            chunks: DATA_AT_FIRST,
            attachments: [0; 2],
            mode: None,
            has_dirty: false,
            without: 0,
        }
    }
}

impl Shape {
    /// How many targets are not flash devices.
    pub(super) fn members(self) -> u8 {
        match self {
            Shape::Cached { over, .. } => over.members(),
            _ => self.targets(),
        }
    }

    /// Flash devices of the cache, one bit for each target.
    pub(super) fn flash(self) -> u32 {
        match self {
            Shape::Cached { over, devices, .. } => ((1 << devices) - 1) << over.members(),
            _ => 0,
        }
    }

    pub(super) fn targets(self) -> u8 {
        match self {
            Shape::Plain => 1,
            Shape::Movable => 2,
            Shape::Cached { over, devices, .. } => over.members() + devices,
            Shape::Stripe { targets } => targets,
            Shape::Mirror { members } | Shape::MirrorStripe { members } => members,
        }
    }

    pub(super) fn spec(self) -> LayoutSpec {
        let chunk = CHUNK_MIN;
        match self {
            Shape::Plain | Shape::Movable => LayoutSpec::Plain,
            Shape::Cached { over, .. } => over.spec(),
            Shape::Stripe { .. } => LayoutSpec::Stripe { chunk },
            Shape::Mirror { .. } => LayoutSpec::Mirror,
            Shape::MirrorStripe { .. } => LayoutSpec::MirrorStripe { chunk },
        }
    }

    /// The layouts of a disk of this size.
    pub(super) fn tree(self, size: u64, used: Use) -> Option<Tree> {
        if let Shape::Cached {
            over,
            devices,
            mode,
        } = self
        {
            let members = Members {
                data_at: DATA_AT,
                ..Members::new([7; 16], size, over.members().into())
            };
            let data = DATA[..used.chunks.into()].to_vec();
            let cache = CacheSetup {
                cache: [9; 16],
                disk: used.disk,
                size,
                devices,
                area: Area::of(CHUNK, vec![JOURNAL], data).expect("it is large enough"),
                mode: used.mode.unwrap_or(mode),
                attachments: used.attachments,
                has_dirty: used.has_dirty,
                without: used.without,
                // Every page comes in at once, so that short runs have something to evict.
                policy: Some(Params::S3_FIFO.filling(3)),
                policy_state: Vec::new(),
            };
            return Some(Tree::cached(over.spec(), members, cache));
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
            Shape::Cached {
                over: Over::Mirror, ..
            } => std::iter::once(0..2).collect(),
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
            Shape::Cached { over, .. } => {
                let (flash, below) = (self.flash(), faulty & !self.flash());
                let most = u32::from(over == Over::Mirror);
                below.count_ones() > most || has_dirty && faulty & flash == flash
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
            Shape::Cached { over, .. } if target >= over.members() => {
                (1 + DATA.len() as u64) * CHUNK / SECTOR as u64
            }
            _ => self.member_sectors(sectors),
        }
    }

    /// Sectors of each member.
    pub(super) fn member_sectors(self, sectors: u64) -> u64 {
        let size = sectors * SECTOR as u64;
        match self {
            _ if self.spec() == LayoutSpec::Plain => sectors,
            _ => {
                let member = self.spec().member_size(size, self.members().into());
                (member - layout::DATA_AT + DATA_AT).div_ceil(SECTOR as u64)
            }
        }
    }
}

/// The random requests of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Some sectors, anywhere.
    Short,
    /// Also whole blocks of a cache, several of them, and what goes past the cache.
    Around,
}

/// What becomes of a cache's flash devices while a disk uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlashDevices {
    /// They stay, but for crashes.
    Stay,
    /// They are unplugged, and come back.
    Unplugged,
    /// The administrator replaces them, removes one and adds one.
    Exchanged,
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
    /// What becomes of its flash devices while it is used.
    pub devices: FlashDevices,
    /// How long its random requests are.
    pub load: Load,
}
