//! The records of a pool's disk: which extent of the disk is where, and which generation wrote it.

/// The most extents of a grant.
pub const EXTENTS_MAX: u32 = 64;

/// The most grants of a disk. With extents of 1 MiB these are 64 TiB.
pub const GRANTS_MAX: u32 = 1 << 20;
