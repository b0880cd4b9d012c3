//! Pools: what is written on their members, and which disk gets space where.
//!
//! A pool is made of groups, and a group of columns. A column is one member, a file or a block device. The daemon keeps the
//! pool's catalog in a region of each member, and asks the [`Broker`](broker::Broker) for space, one grant at a time.
//!
//! # Picture
//! ```text
//!   member:  superblock A    superblock B    lease block    catalog              grants
//!            0               64 KiB          128 KiB        1 MiB ..             data_at ..
//! ```
//!
//! # Source
//! `docs/decisions/0044-extents-that-carry-their-generation.md`.

use crate::layout::pool::{Geometry, SUB_BLOCKS};

pub mod broker;
pub mod heat;
pub mod level;
pub mod members;
pub mod superblock;
pub mod tiering;

/// The smallest part of an extent that a disk can have, in bytes. Origin: the format, version 1.
pub const SUB_BLOCK: u64 = 64 << 10;
/// Bytes of an extent.
pub const EXTENT: u64 = SUB_BLOCK * SUB_BLOCKS as u64;
/// Extents of a grant. Origin: the format, version 1.
pub const EXTENTS: u32 = 64;
/// Grants whose headers lie in one extent, beside the roots and the write-intent record. Origin: the format, version 1.
pub const HEADERS: u32 = 126;
/// Bytes of a grant.
pub const GRANT: u64 = EXTENT * EXTENTS as u64;

/// Where the two superblocks are on each member, in bytes.
pub const SUPERBLOCKS: [u64; 2] = [0, 64 << 10];
/// Where the block of the member's lease is, in bytes.
pub const LEASE_AT: u64 = 128 << 10;
/// Where the catalog is, in bytes.
pub const CATALOG_AT: u64 = 1 << 20;

/// How the space of a pool is divided whose grants begin at `data_at` on each member.
pub fn geometry(data_at: u64) -> Geometry {
    Geometry {
        sub_block: SUB_BLOCK,
        extents: EXTENTS,
        headers: HEADERS,
        data_at,
    }
}

/// How fast members are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Such as flash.
    Fast,
    /// All others.
    #[default]
    Slow,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_of_disks_accepts_the_geometry() {
        let own = geometry(9 << 20);
        assert_eq!(own.check(), Ok(()));
        assert_eq!((own.extent(), own.extents), (EXTENT, EXTENTS));
        let usual = Geometry::default();
        assert_eq!(
            own,
            Geometry {
                data_at: 9 << 20,
                ..usual
            }
        );
    }
}
