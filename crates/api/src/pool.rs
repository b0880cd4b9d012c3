//! Pools in REST: their state, and commands on them.
//!
//! A pool belongs to one host at a time. It is made of groups, and a group of files or block devices, its members.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::Name;
use crate::problem::Problem;

/// A pool's current state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Its name, unique on this host.
    pub name: Name,
    /// Its identity.
    pub uuid: String,
    /// Bytes that disks can use.
    pub size_bytes: u64,
    /// Bytes that disks have.
    pub used_bytes: u64,
    /// Bytes that thick disks have reserved and not taken yet.
    pub reserved_bytes: u64,
    /// Bytes that a thin disk could still take.
    pub available_bytes: u64,
    /// How full it is.
    pub level: PoolLevel,
    /// The unit in which disks get space, in bytes.
    pub grant_bytes: u64,
    /// Bytes on each member for the pool's catalog.
    pub catalog_bytes: u64,
    /// Bytes of these that are in use.
    pub catalog_used_bytes: u64,
    /// Its groups, by number.
    pub groups: Vec<PoolGroup>,
    /// How many disks it has.
    pub disks: u64,
    /// What each disk has, those with most first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_disk: Vec<PoolUse>,
    /// Why it cannot be used, if so. The numbers are zero then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// What a disk has of its pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolUse {
    /// The disk.
    pub disk: String,
    /// Bytes of the pool that it has, with its snapshots.
    pub granted_bytes: u64,
    /// Bytes that it has reserved and not taken yet.
    pub reserved_bytes: u64,
}

/// How full a pool is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PoolLevel {
    /// Less than 70 % of its space is used or reserved.
    #[default]
    Ample,
    /// 70 % or more.
    Filling,
    /// 85 % or more.
    Low,
    /// 95 % or more.
    Critical,
}

impl fmt::Display for PoolLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolLevel::Ample => "ample",
            PoolLevel::Filling => "filling",
            PoolLevel::Low => "low",
            PoolLevel::Critical => "critical",
        })
    }
}

/// A group of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolGroup {
    /// Its number in the pool.
    pub group: u16,
    /// How its members work together.
    pub layout: PoolLayout,
    /// How fast it is.
    pub tier: PoolTier,
    /// Bytes that disks can use.
    pub size_bytes: u64,
    /// Bytes that disks have.
    pub used_bytes: u64,
    /// Its members, by number.
    pub members: Vec<PoolMember>,
}

/// A member of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolMember {
    /// Its number in the pool.
    pub member: u16,
    /// The file or block device, if it is there.
    #[schema(value_type = Option<String>)]
    pub path: Option<PathBuf>,
    /// Bytes of it that are used.
    pub size_bytes: u64,
    /// Whether it has the current catalog.
    pub is_current: bool,
    /// Why it cannot be used for the catalog, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// How the members of a group work together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PoolLayout {
    /// One member.
    #[default]
    Single,
    /// Disks lie on all members in turn; each has its own bytes.
    Stripe,
    /// All members have the same bytes. Not built yet.
    Mirror,
    /// A stripe over mirrors. Not built yet.
    MirrorStripe,
}

impl PoolLayout {
    /// The layout's name.
    pub fn as_str(self) -> &'static str {
        match self {
            PoolLayout::Single => "single",
            PoolLayout::Stripe => "stripe",
            PoolLayout::Mirror => "mirror",
            PoolLayout::MirrorStripe => "mirror-stripe",
        }
    }
}

impl fmt::Display for PoolLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How fast a group is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PoolTier {
    /// Such as flash.
    Fast,
    /// All others.
    #[default]
    Slow,
}

impl fmt::Display for PoolTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolTier::Fast => "fast",
            PoolTier::Slow => "slow",
        })
    }
}

impl FromStr for PoolTier {
    type Err = String;

    fn from_str(text: &str) -> Result<PoolTier, String> {
        match text {
            "fast" => Ok(PoolTier::Fast),
            "slow" => Ok(PoolTier::Slow),
            _ => Err(format!("'{text}' is no tier: write fast or slow")),
        }
    }
}

/// A group that a pool is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolGroupSpec {
    /// How its members work together.
    #[serde(default)]
    pub layout: PoolLayout,
    /// Files or block devices, as absolute paths.
    #[schema(value_type = Vec<String>)]
    pub devices: Vec<PathBuf>,
    /// How fast it is.
    #[serde(default)]
    pub tier: PoolTier,
}

/// As on a command line: `stripe:/dev/a,/dev/b`, or one path alone.
impl FromStr for PoolGroupSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<PoolGroupSpec, String> {
        let (layout, paths) = match text.split_once(':') {
            Some((layout, paths)) if !layout.contains('/') => (Some(layout), paths),
            _ => (None, text),
        };
        let devices: Vec<PathBuf> = paths.split(',').map(PathBuf::from).collect();
        if devices.iter().any(|path| path.as_os_str().is_empty()) {
            return Err("a path is empty: write LAYOUT:PATH,PATH or PATH".to_owned());
        }
        let layout = match layout {
            None | Some("single") => PoolLayout::Single,
            Some("stripe" | "raid0") => PoolLayout::Stripe,
            Some("mirror" | "raid1") => PoolLayout::Mirror,
            Some("mirror-stripe" | "raid10") => PoolLayout::MirrorStripe,
            Some(other) => {
                return Err(format!(
                    "'{other}' is no layout of a group: write stripe:PATH,PATH or a path alone"
                ));
            }
        };
        Ok(PoolGroupSpec {
            layout,
            devices,
            tier: PoolTier::default(),
        })
    }
}

/// A request to create a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// The new pool's name.
    pub name: Name,
    /// Its groups.
    pub groups: Vec<PoolGroupSpec>,
    /// Bytes that thin disks leave free.
    #[serde(default)]
    pub minimum_free_bytes: u64,
    /// The size of files that do not exist and are created, in bytes. Without it, a missing file is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// What to do about data on the members.
    #[serde(default)]
    pub data: PoolData,
}

/// A request to give a pool another group. Disks use the pool meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolGroupAdd {
    /// The group.
    pub group: PoolGroupSpec,
    /// The size of files that do not exist and are created, in bytes. Without it, a missing file is an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// What to do about data on the members.
    #[serde(default)]
    pub data: PoolData,
}

/// A request to destroy a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolDestroy {
    /// What to do if the pool cannot be opened, and may have disks.
    #[serde(default)]
    pub data: PoolData,
}

/// A request to use a pool without a member that is lost, though it may have had the newest catalog.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolGiveUp {
    /// The member's number, as the refusal of the pool names it.
    pub member: u16,
}

/// A pool that was destroyed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolDestroyed {
    /// Its name.
    pub name: Name,
}

/// What to do about data that would be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PoolData {
    /// If there is any, the request fails.
    #[default]
    Keep,
    /// It is lost.
    Overwrite,
}

/// All pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolList {
    /// In the order of their names.
    pub pools: Vec<Pool>,
}

/// What was found in a pool's catalog.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolCheck {
    /// The pool.
    pub name: Name,
    /// Contradictions, as sentences. Empty: the catalog is sound, and the same on all current members.
    pub findings: Vec<String>,
    /// Disks that were looked at.
    pub disks: u64,
    /// Snapshots that were looked at.
    pub snapshots: u64,
    /// Grants that were looked at.
    pub grants: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_read_with_its_layout_or_as_one_path() {
        let read = |text: &str| text.parse::<PoolGroupSpec>();
        let stripe = read("stripe:/dev/a,/dev/b").unwrap();
        assert_eq!(stripe.layout, PoolLayout::Stripe);
        assert_eq!(stripe.devices, ["/dev/a", "/dev/b"].map(PathBuf::from));
        assert_eq!(read("/dev/a").unwrap().layout, PoolLayout::Single);
        assert_eq!(
            read("raid10:/a,/b").unwrap().layout.as_str(),
            "mirror-stripe"
        );
        // A colon in a path is no layout.
        let path = "/dev/disk/by-path/pci-0:1";
        assert_eq!(read(path).unwrap().devices, [PathBuf::from(path)]);
        assert!(read("raid7:/a").unwrap_err().contains("raid7"));
        assert!(read("stripe:/a,").unwrap_err().contains("empty"));
        assert!(read("").is_err());
    }
}
