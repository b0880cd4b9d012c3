//! The crash simulator of pools: disks, snapshots and clones whose extents share some members.
//!
//! A [`world::World`] has a pool, its disks, their guests, and a model of the daemon with its catalog. The layouts are those
//! that are shipped; the stores are those of the other crash simulator. The [`oracle`] knows which bytes each disk and each
//! snapshot may show. [`explore`] tries all short workloads with a crash at each step; [`seeds`] runs long random ones.
//!
//! # Always true
//! - Nothing is left of a crash but the durable bytes of the stores and the catalog.
//! - Stores begin with another tenant's bytes, and no read ever returns them.
//!
//! # Picture
//! ```text
//!   guests ──> disk ─┐
//!   guests ──> disk ─┼─> shard ──> stores (one for each column)
//!   reader ──> view ─┘      │ notices, orders
//!                         daemon ──> catalog: grants, clones, snapshots
//! ```

pub mod catalog;
pub mod explore;
pub mod oracle;
pub mod seeds;
pub mod world;

use tidegate_core::layout::pool::Geometry;

/// A pool, and the disks that it begins with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Columns at first.
    pub columns: u8,
    /// Members of each column, with the same bytes. Each is one store.
    pub mirrors: u8,
    /// Grants of each column.
    pub grants: u32,
    /// Disks at first. Each belongs to another tenant.
    pub disks: u8,
    /// Sectors of each disk.
    pub sectors: u64,
    /// Whether disks reserve all their space.
    pub thick: bool,
    /// Whether an earlier pool was on the members: the same disks, in the same grants, whose headers and roots are left.
    pub is_used: bool,
}

impl Default for Setup {
    /// Two columns of six grants, and two disks of two extents and a half.
    fn default() -> Setup {
        Setup {
            columns: 2,
            mirrors: 1,
            grants: 6,
            disks: 2,
            sectors: 2 * EXTENT + EXTENT / 2,
            thick: false,
            is_used: true,
        }
    }
}

/// The most columns of a pool.
pub const COLUMNS_MAX: u8 = 3;
/// Sectors of a sub-block.
pub const SUB_BLOCK: u64 = 8;
/// Sectors of an extent.
pub const EXTENT: u64 = 16 * SUB_BLOCK;

/// The smallest division of space: extents of 64 KiB, four in a grant, and the headers of two grants in one extent.
pub const GEOMETRY: Geometry = Geometry {
    sub_block: 4096,
    extents: 4,
    headers: 2,
    data_at: 4096,
};
