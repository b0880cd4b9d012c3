//! Layouts in REST: the members of a disk, and commands on them.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::descriptor::MemberPlace;
use crate::name::Name;
use crate::problem::Problem;

/// A member of a disk's layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Its number in the layout, from 0.
    pub member: u8,
    /// Its datastore.
    pub datastore: Name,
    /// The block device that is its image, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub device: Option<PathBuf>,
    /// The upstream's export name, on a datastore of kind `nbd`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// The file or device with its bytes, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// The mirror that it belongs to, in a stripe over mirrors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror: Option<u8>,
    /// Its size in bytes, with the layout's own data.
    pub size_bytes: u64,
    /// Bytes that its image occupies on the datastore, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocated_bytes: Option<u64>,
    /// Its state.
    pub state: MemberState,
    /// The progress of its rebuild, if it is being rebuilt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rebuild: Option<Rebuild>,
    /// I/Os that it has in flight, while the disk is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// I/Os of it that have failed since the disk was attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults_total: Option<u64>,
    /// How its image is open while the disk is attached: `direct`, `memory`, ...
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<String>,
    /// Why it is away, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// State of a layout's member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// The disk is not attached: only the presence of its image is known.
    Present,
    /// It has all acknowledged writes, and is used.
    InSync,
    /// It lacks writes, and is being rebuilt.
    Rebuilding,
    /// It lacks writes, and is not used.
    Stale,
    /// It cannot be reached.
    Away,
    /// It was removed: its place is empty.
    Removed,
}

impl MemberState {
    /// All states.
    pub const ALL: [MemberState; 6] = [
        MemberState::Present,
        MemberState::InSync,
        MemberState::Rebuilding,
        MemberState::Stale,
        MemberState::Away,
        MemberState::Removed,
    ];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            MemberState::Present => "present",
            MemberState::InSync => "in-sync",
            MemberState::Rebuilding => "rebuilding",
            MemberState::Stale => "stale",
            MemberState::Away => "away",
            MemberState::Removed => "removed",
        }
    }
}

/// The progress of a member's rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rebuild {
    /// Bytes copied to it.
    pub copied_bytes: u64,
    /// Bytes to copy in total.
    pub total_bytes: u64,
}

/// A comparison of all members of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Scrub {
    /// Whether it runs.
    pub running: bool,
    /// Bytes of the disk that were compared.
    pub compared_bytes: u64,
    /// Bytes of the disk to compare in total.
    pub total_bytes: u64,
    /// Pieces of 64 KiB in which members differed.
    pub different: u64,
    /// Of these, the pieces that were made equal.
    pub repaired: u64,
    /// Pieces that a member could not read.
    pub unreadable: u64,
    /// Where the first difference is on the disk, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_difference_bytes: Option<u64>,
}

/// The members of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MemberList {
    /// The disk's layout.
    pub layout: String,
    /// In the layout's order.
    pub members: Vec<Member>,
}

/// A request to give a disk one more member, or another one in place of an old one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberAdd {
    /// Where the new member is to be.
    pub on: MemberPlace,
}

/// A request to compare all members of an attached disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskScrub {
    /// What to do where members differ.
    #[serde(default)]
    pub differences: Differences,
}

/// What a scrub does where members differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Differences {
    /// Count them.
    #[default]
    Report,
    /// Copy the first member's bytes to the others.
    Repair,
}

/// A request to move an attached disk to another datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskMove {
    /// The datastore.
    pub to: Name,
    /// The most bytes to copy per second; null: as much as the guests leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_s: Option<u64>,
}
