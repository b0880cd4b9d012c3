//! Backups of a pool's disk in a directory: full images, and increments that have only what changed since the last one.
//!
//! Each backup is a qcow2 image of a snapshot. An increment names the image before it as its backing file, so `qemu-img`
//! reads every backup without this program. A manifest has the order, the snapshots, and the checksum of each file.
//! `disk_service` takes the snapshots and calls this; the bytes come from any [`Source`](crate::disks::copy::Source).
//!
//! # Always true
//! - A backup is in the manifest only once its file is complete, durable and has its name.
//! - An increment is based on a backup of the same disk whose snapshot, by its generation, still exists.
//! - The directory has one writer at a time.
//! - After a crash at any moment the manifest is the one before or after the last step, and says which snapshot of its
//!   own may be left.
//!
//! # Picture
//! ```text
//! DIR/backups.toml          manifest
//! DIR/0001-monday.qcow2     full
//! DIR/0002-tuesday.qcow2    what changed, on 0001-monday.qcow2
//! DIR/.UUID.partial         a file that is being written
//! ```

pub(crate) mod folder;
pub(crate) mod image;
pub(crate) mod manifest;

#[cfg(test)]
mod tests;
