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

pub mod broker;
pub mod level;
pub mod members;
pub mod superblock;

/// An extent, in sub-blocks.
pub const EXTENT: u64 = 16;
/// The smallest part of an extent that a disk can have, in bytes. Origin: the format, version 1.
pub const SUB_BLOCK: u64 = 64 << 10;
/// Extents of a grant. Origin: the format, version 1.
pub const EXTENTS: u32 = 64;
/// Grants whose headers lie in one extent. Origin: the format, version 1.
pub const HEADERS: u32 = 128;
/// Bytes of a grant.
pub const GRANT: u64 = SUB_BLOCK * EXTENT * EXTENTS as u64;

/// Where the two superblocks are on each member, in bytes.
pub const SUPERBLOCKS: [u64; 2] = [0, 64 << 10];
/// Where the block of the member's lease is, in bytes.
pub const LEASE_AT: u64 = 128 << 10;
/// Where the catalog is, in bytes.
pub const CATALOG_AT: u64 = 1 << 20;

/// How fast members are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Such as flash.
    Fast,
    /// All others.
    #[default]
    Slow,
}
