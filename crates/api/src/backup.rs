//! Backups in REST: a directory with a full image of a disk and increments on it, made, checked and restored.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job::{Existing, ImageFormat};
use crate::name::Name;

/// A request to back up a disk on a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupCreate {
    /// The directory, absolute, on the daemon's host. It has the backups of one disk. It is created if its parent exists.
    #[schema(value_type = String)]
    pub dir: PathBuf,
    /// What the backup has.
    #[serde(default)]
    pub content: BackupContent,
    /// The snapshot on which an increment is based: one with a backup in the directory; null: that of the newest backup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Name>,
    /// The snapshot to back up; null: a new one is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Name>,
}

/// What a backup has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BackupContent {
    /// Everything, if the directory has no backup; otherwise what changed since its newest one.
    #[default]
    Suitable,
    /// Everything.
    Full,
}

/// The backups of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BackupList {
    /// The directory.
    #[schema(value_type = String)]
    pub dir: PathBuf,
    /// The disk's name when its first backup was made.
    pub disk: Name,
    /// The disk's identity.
    pub uuid: String,
    /// The oldest first.
    pub backups: Vec<Backup>,
    /// The snapshot of a backup that was interrupted, or is being made. The next backup deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<Name>,
}

/// One backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Backup {
    /// Its number in the directory.
    pub number: u32,
    /// The snapshot that it has.
    pub snapshot: Name,
    /// The number of the backup that it is based on; null: it is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<u32>,
    /// The disk's size, in bytes.
    pub size_bytes: u64,
    /// Bytes of the disk that it covers: all, or what may have changed.
    pub covered_bytes: u64,
    /// The name of its file.
    pub file: String,
    /// Bytes of its file.
    pub file_bytes: u64,
    /// The SHA-256 of its file, in hexadecimal.
    pub sha256: String,
    /// When it was made, in seconds since 1970.
    pub made_at_s: u64,
}

/// A request to compare the files of backups with their checksums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupVerify {
    /// The directory, absolute.
    #[schema(value_type = String)]
    pub dir: PathBuf,
    /// A backup's snapshot or number: only it and what it is based on is compared; null: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
}

/// A request to restore a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BackupRestore {
    /// The directory, absolute.
    #[schema(value_type = String)]
    pub dir: PathBuf,
    /// A backup's snapshot or number; null: the newest one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Where it goes.
    pub to: RestoreTo,
}

/// Where a backup is restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum RestoreTo {
    /// An image file.
    File(RestoreFile),
    /// A new disk.
    Disk(RestoreDisk),
}

/// An image file that a backup is restored to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreFile {
    /// The file to create, or a block device to write to; absolute, on the daemon's host.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Its format, raw or qcow2; null: by the file name's extension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<ImageFormat>,
    /// What to do if the file already exists.
    #[serde(default)]
    pub existing: Existing,
}

/// A new disk that a backup is restored to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreDisk {
    /// The new disk's name.
    pub name: Name,
    /// Its datastore or pool; null: the only datastore, or `local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<Name>,
}
