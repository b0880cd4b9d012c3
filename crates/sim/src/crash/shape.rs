//! The disks that are simulated: how their bytes lie on stores, and what stands above.
//!
//! A world is built of a [`Setup`], and built again of it after each crash.

use super::SECTOR;
use super::store::Defects;
use std::ops::Range;
use tidegate_core::block::BLOCK;
use tidegate_core::filter::FilterSpec;
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
}

impl Shape {
    pub(super) fn targets(self) -> u8 {
        match self {
            Shape::Plain => 1,
            Shape::Movable => 2,
            Shape::Stripe { targets } => targets,
            Shape::Mirror { members } | Shape::MirrorStripe { members } => members,
        }
    }

    pub(super) fn spec(self) -> LayoutSpec {
        let chunk = CHUNK_MIN;
        match self {
            Shape::Plain | Shape::Movable => LayoutSpec::Plain,
            Shape::Stripe { .. } => LayoutSpec::Stripe { chunk },
            Shape::Mirror { .. } => LayoutSpec::Mirror,
            Shape::MirrorStripe { .. } => LayoutSpec::MirrorStripe { chunk },
        }
    }

    /// The layouts of a disk of this size.
    pub(super) fn tree(self, size: u64) -> Option<Tree> {
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
            Shape::Plain | Shape::Movable | Shape::Stripe { .. } => Vec::new(),
            Shape::Mirror { members } => std::iter::once(0..members.into()).collect(),
            Shape::MirrorStripe { members } => {
                let pairs = 0..usize::from(members) / 2;
                pairs.map(|pair| 2 * pair..2 * pair + 2).collect()
            }
        }
    }

    /// Sectors of each target.
    pub(super) fn member_sectors(self, sectors: u64) -> u64 {
        let size = sectors * SECTOR as u64;
        match self {
            Shape::Plain | Shape::Movable => sectors,
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
