//! Datastores in REST and in stored settings.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::iocontrol::{DatastoreControl, IoControl, IoControlSet};
use crate::name::Name;
use crate::problem::Problem;

/// A datastore's kind and what that kind needs to know. Stored in the root's state and carried over REST alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum DatastoreSettings {
    /// A directory on any file system; each disk is a directory in it.
    Dir {
        /// The directory, absolute.
        #[schema(value_type = String)]
        path: PathBuf,
        /// Whether the page cache is passed by.
        #[serde(default)]
        io: IoMode,
    },
    /// An upstream NBD server; each disk is one of its exports.
    Nbd {
        /// The server: `nbd://HOST[:PORT]`, `nbd+unix:///?socket=PATH`.
        uri: String,
    },
    /// The daemon's memory: fast, and gone when the disk is detached.
    Memory {},
    /// Nothing: writes vanish and reads are zeroes. For measuring.
    Null {},
    /// A modelled array in real time, its bytes in memory. For experiments.
    Emulated {
        /// The array: `10k`, `ssd`, or several as `raid5-8x10k+cache`.
        model: String,
    },
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
    /// The kind as it is written.
    pub const fn kind(&self) -> &'static str {
        match self {
            DatastoreSettings::Dir { .. } => "dir",
            DatastoreSettings::Nbd { .. } => "nbd",
            DatastoreSettings::Memory {} => "memory",
            DatastoreSettings::Null {} => "null",
            DatastoreSettings::Emulated { .. } => "emulated",
        }
    }
}

/// A datastore as it is remembered in the root's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatastoreRecord {
    /// The format's version: [`DatastoreRecord::VERSION`].
    pub version: u32,
    /// What it is.
    pub settings: DatastoreSettings,
    /// How it is controlled.
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

/// A datastore, as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Datastore {
    /// Its name.
    pub name: Name,
    /// Its kind and settings.
    pub settings: DatastoreSettings,
    /// How it is controlled, as this host has it stored.
    #[serde(default)]
    pub io_control: IoControl,
    /// How it is controlled now; null while no disk of it is attached on this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<DatastoreControl>,
    /// How many disks it holds.
    pub disks: u64,
    /// How many of them are attached on this host.
    pub attached: u64,
    /// Bytes that the file system below has in all; null where that means nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Bytes that are free there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
    /// Whether its file system can only be read: no disk is created there, and none is attached for writing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// Why it cannot be used, if it cannot, or that it is full or read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// An order to add a datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DatastoreAdd {
    /// Its name, unique on this host.
    pub name: Name,
    /// What it is.
    pub settings: DatastoreSettings,
}

/// Changes to a datastore; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DatastoreSet {
    /// How it is controlled. Where its hosts share a directory, all of them take it up.
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
            // A program that knew nothing of I/O control reads what nobody has changed.
            assert!(!text.contains("io_control"), "{text}");
        }
    }

    #[test]
    fn a_record_keeps_how_its_datastore_is_controlled() {
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
