//! Datastores in REST and in stored settings.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::iocontrol::{DatastoreControl, IoControl, IoControlSet};
use crate::name::Name;
use crate::problem::Problem;

/// A datastore's kind and the settings of that kind. The root's state stores it and REST carries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DatastoreSettings {
    /// A directory on any file system; each disk is a directory in it.
    Dir {
        /// The directory, absolute.
        #[schema(value_type = String)]
        path: PathBuf,
        /// Whether to bypass the page cache.
        #[serde(default)]
        io: IoMode,
    },
    /// An upstream NBD server; each disk is one of its exports.
    Nbd {
        /// The server: `nbd://HOST[:PORT]`, `nbd+unix:///?socket=PATH`.
        uri: String,
    },
    /// The daemon's memory. Its contents are lost when the disk is detached.
    Memory {},
    /// Discards writes and reads zeroes. For measuring.
    Null {},
    /// A modelled array in real time, with its data in memory. For experiments.
    Emulated {
        /// The array: `10k`, `ssd`, or several as `raid5-8x10k+cache`.
        model: String,
    },
    /// A pool of files or devices, which has the same name. It is created and destroyed as a pool.
    Pool {},
}

/// How a directory's images are opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IoMode {
    /// Direct where the file system can, else buffered.
    #[default]
    Auto,
    /// Direct, or an error.
    Direct,
    /// Through the page cache.
    Buffered,
}

impl DatastoreSettings {
    /// The kind's name.
    pub const fn kind(&self) -> &'static str {
        match self {
            DatastoreSettings::Dir { .. } => "dir",
            DatastoreSettings::Nbd { .. } => "nbd",
            DatastoreSettings::Memory {} => "memory",
            DatastoreSettings::Null {} => "null",
            DatastoreSettings::Emulated { .. } => "emulated",
            DatastoreSettings::Pool {} => "pool",
        }
    }
}

/// A datastore as it is stored in the root's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatastoreRecord {
    /// The format's version: [`DatastoreRecord::VERSION`].
    pub version: u32,
    /// What it is.
    pub settings: DatastoreSettings,
    /// Its I/O control.
    #[serde(default, skip_serializing_if = "is_default")]
    pub io_control: IoControl,
}

fn is_default(io_control: &IoControl) -> bool {
    *io_control == IoControl::default()
}

impl DatastoreRecord {
    /// The version that this program writes, and the only one it reads.
    pub const VERSION: u32 = 1;
}

/// A datastore's current state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Datastore {
    /// Its name.
    pub name: Name,
    /// Its kind and settings.
    pub settings: DatastoreSettings,
    /// The I/O control settings that this host has stored.
    #[serde(default)]
    pub io_control: IoControl,
    /// The state of its I/O control; null while none of its disks is attached on this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<DatastoreControl>,
    /// Number of disks that have data on it, also if that is only a member.
    pub disks: u64,
    /// Number of them that are attached on this host.
    pub attached: u64,
    /// Size of the underlying file system in bytes; null where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Free bytes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Whether its file system is read-only. Then no disk can be created there, and none can be attached for writing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Why it cannot be used, or that it is full or read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// A request to add a datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DatastoreAdd {
    /// Its name, unique on this host.
    pub name: Name,
    /// What it is.
    pub settings: DatastoreSettings,
}

/// Changes to a datastore. An absent field stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DatastoreSet {
    /// Its I/O control. Where hosts share a directory, all of them apply it.
    #[serde(default)]
    pub io_control: IoControlSet,
}

/// All datastores.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DatastoreList {
    /// In the order of their names.
    pub datastores: Vec<Datastore>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_file() {
        for settings in [
            DatastoreSettings::Dir {
                path: "/srv".into(),
                io: IoMode::Auto,
            },
            DatastoreSettings::Nbd {
                uri: "nbd://host".into(),
            },
            DatastoreSettings::Memory {},
            DatastoreSettings::Null {},
            DatastoreSettings::Emulated {
                model: "10k".into(),
            },
            DatastoreSettings::Pool {},
        ] {
            let record = DatastoreRecord {
                version: DatastoreRecord::VERSION,
                settings,
                io_control: IoControl::default(),
            };
            let text = toml::to_string(&record).unwrap();
            assert_eq!(
                toml::from_str::<DatastoreRecord>(&text).unwrap(),
                record,
                "{text}"
            );
            assert!(text.contains(&format!("kind = \"{}\"", record.settings.kind())));
            // A program from before I/O control can read a record with the default settings.
            assert!(!text.contains("io_control"), "{text}");
        }
    }

    #[test]
    fn a_record_stores_io_control_settings() {
        let record = DatastoreRecord {
            version: DatastoreRecord::VERSION,
            settings: DatastoreSettings::Null {},
            io_control: IoControl {
                congestion_threshold: "12ms".parse().unwrap(),
                coordination: Some("/srv/shared".into()),
                ..IoControl::default()
            },
        };
        let text = toml::to_string(&record).unwrap();
        assert_eq!(toml::from_str::<DatastoreRecord>(&text).unwrap(), record);
    }
}
