//! Snapshots in REST: what a disk was at a moment, and commands on that.
//!
//! A snapshot is written `disk@snapshot`. Its name follows the same rules as a disk's.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::disk::Clients;
use crate::name::Name;

/// The most disks of which one command takes snapshots together.
pub const MOST_TOGETHER: usize = 64;

/// A snapshot of a disk, as it is written: `vm1@before`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotName {
    /// The disk.
    pub disk: Name,
    /// The snapshot's name, unique on its disk.
    pub snapshot: Name,
}

impl fmt::Display for SnapshotName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.disk, self.snapshot)
    }
}

impl FromStr for SnapshotName {
    type Err = String;

    fn from_str(text: &str) -> Result<SnapshotName, String> {
        let Some((disk, snapshot)) = text.split_once('@') else {
            let text: String = text.chars().take(80).collect();
            return Err(format!(
                "'{text}' names no snapshot: write DISK@SNAPSHOT, such as vm1@before"
            ));
        };
        let read = |part: &str| part.parse::<Name>().map_err(|e| e.to_string());
        Ok(SnapshotName {
            disk: read(disk)?,
            snapshot: read(snapshot)?,
        })
    }
}

/// A snapshot of a disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The disk.
    pub disk: Name,
    /// The snapshot's name, unique on its disk.
    pub name: Name,
    /// The snapshot that the disk had as its latest one when this one was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Name>,
    /// When it was taken, in seconds since 1970.
    pub taken_at_s: u64,
    /// The disk's size at that time, in bytes, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Bytes that were written between its parent and it, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_bytes: Option<u64>,
    /// Snapshots that were taken together have the same set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// Disks that need it: it cannot be deleted while there are any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<Name>,
}

impl Snapshot {
    /// As it is written.
    pub fn full_name(&self) -> SnapshotName {
        SnapshotName {
            disk: self.disk.clone(),
            snapshot: self.name.clone(),
        }
    }
}

/// The snapshots of a disk. With their parents they are a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// The disk.
    pub disk: Name,
    /// The snapshot that was taken last of what the disk has now, or that it was rolled back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<Name>,
    /// The oldest first; a parent comes before its children.
    pub snapshots: Vec<Snapshot>,
}

/// A request to take a snapshot of a disk, and of others at the same moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotCreate {
    /// Its name. Each disk gets a snapshot of this name.
    pub name: Name,
    /// More disks. Their snapshots are consistent with each other, and there are all of them or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub with: Vec<Name>,
}

/// Snapshots that were taken together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotsTaken {
    /// One of each disk, in the order of the request.
    pub snapshots: Vec<Snapshot>,
    /// How long the writes of attached disks waited, in microseconds.
    pub held_us: u64,
}

/// A request to give a disk the content of one of its snapshots. All that was written since is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskRollback {
    /// The snapshot.
    pub snapshot: Name,
    /// What to do about connected clients: a guest that runs does not notice that its disk changes, and damages it.
    #[serde(default)]
    pub clients: Clients,
}

/// A request to make a disk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskClone {
    /// The snapshot of the disk that the path names.
    pub snapshot: Name,
    /// The new disk's name.
    pub name: Name,
}

/// What to do about the snapshots of a disk that is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Snapshots {
    /// If there are any, the request fails.
    #[default]
    Keep,
    /// They are deleted too.
    Delete,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_written_with_its_disk() {
        let read = |text: &str| text.parse::<SnapshotName>();
        let name = read("vm1@before-upgrade").unwrap();
        assert_eq!(name.disk.as_str(), "vm1");
        assert_eq!(name.snapshot.as_str(), "before-upgrade");
        assert_eq!(name.to_string(), "vm1@before-upgrade");
        for bad in ["vm1", "@a", "vm1@", "vm1@a@b", "vm1@../x", "vm 1@a", ""] {
            let why = read(bad).unwrap_err();
            assert!(!why.is_empty(), "{bad}");
        }
        assert!(read("vm1").unwrap_err().contains("DISK@SNAPSHOT"));
    }

    #[test]
    fn a_request_for_a_snapshot_needs_a_name_only() {
        let read = serde_json::from_str::<SnapshotCreate>;
        let order = read(r#"{"name": "a"}"#).unwrap();
        assert!(order.with.is_empty());
        assert!(read(r#"{"name": "a@b"}"#).is_err());
        assert!(read(r#"{"name": "a", "quiet": true}"#).is_err());
    }
}
