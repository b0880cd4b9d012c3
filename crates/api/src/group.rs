//! Groups of disks: limits on all disks of a group on one host.
//!
//! A disk names its group in its policy. A group's limits are local to a host: another host may have other limits for
//! the same group, or none.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::Name;

/// Limits on the sum of a group's disks on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupLimits {
    /// IOPS ceiling; null: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_iops: Option<u64>,
    /// Bandwidth ceiling; null: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_bytes_per_s: Option<u64>,
}

/// A group's current state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Group {
    /// Its name, unique on this host.
    pub name: Name,
    /// Limits on the sum of its disks on this host.
    pub limits: GroupLimits,
    /// The disks that name it and are attached on this host.
    pub disks: Vec<Name>,
}

/// All groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupList {
    /// In the order of their names.
    pub groups: Vec<Group>,
}

/// Changes to a group, which is created if it does not exist. An absent field stays as it is. For a limit, null:
/// unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GroupSet {
    /// IOPS ceiling.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::disk::null_is_a_value"
    )]
    #[schema(value_type = Option<u64>)]
    pub limit_iops: Option<Option<u64>>,
    /// Bandwidth ceiling.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::disk::null_is_a_value"
    )]
    #[schema(value_type = Option<u64>)]
    pub limit_bytes_per_s: Option<Option<u64>>,
}

/// The groups of a host, as stored in the root's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupsRecord {
    /// The format's version: [`GroupsRecord::VERSION`].
    pub version: u32,
    /// The limits of each.
    #[serde(default)]
    pub groups: std::collections::BTreeMap<Name, GroupLimits>,
}

impl GroupsRecord {
    /// The version that this program writes, and the only one it reads.
    pub const VERSION: u32 = 1;
}

impl Default for GroupsRecord {
    fn default() -> GroupsRecord {
        GroupsRecord {
            version: GroupsRecord::VERSION,
            groups: std::collections::BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_file() {
        let mut record = GroupsRecord::default();
        let limits = GroupLimits {
            limit_iops: Some(20_000),
            limit_bytes_per_s: None,
        };
        record.groups.insert("shop".parse().unwrap(), limits);
        let text = toml::to_string(&record).unwrap();
        assert_eq!(toml::from_str::<GroupsRecord>(&text).unwrap(), record);
    }
}
