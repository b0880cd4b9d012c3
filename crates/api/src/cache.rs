//! Flash caches in REST: their state, and commands on them.
//!
//! A cache belongs to one host. What a disk's descriptor says about its cache is in [`crate::descriptor::flash`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use crate::descriptor::flash::{FlashMode, FlashUse, MAX_ATTACHMENT};
use crate::name::Name;
use crate::problem::Problem;

/// A flash cache's current state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Cache {
    /// Its name, unique on this host.
    pub name: Name,
    /// Its identity.
    pub uuid: String,
    /// Its devices: one, or two with the same bytes.
    pub devices: Vec<CacheDevice>,
    /// Bytes that disks can use.
    pub size_bytes: u64,
    /// Bytes that no disk has.
    pub free_bytes: u64,
    /// The unit in which disks get their parts, in bytes.
    pub chunk_bytes: u64,
    /// Bytes that disks have written there and that their datastores do not have, at most.
    pub dirty_bytes: u64,
    /// Dirty pages of 64 KiB that cannot be brought to the datastores: flash does not return what was written.
    #[serde(default)]
    pub unreadable_pages: u64,
    /// For how long its disks have lacked the oldest of them, in seconds. Null: nothing is dirty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_age_s: Option<f64>,
    /// Bytes written to its devices since the daemon was started, also for disks that have left it.
    pub flash_written_bytes_total: u64,
    /// Of these, bytes of the journals: where pages are and which are dirty, without data of guests.
    #[serde(default)]
    pub flash_journal_bytes_total: u64,
    /// Blocks of 4 KiB that were read from its devices and were not as they were written, each time, since the daemon was started.
    #[serde(default)]
    pub corrupt_blocks_total: u64,
    /// Bytes that may be written to each device in a day, if there is a budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_bytes_per_day: Option<u64>,
    /// Bytes that may be written to each device now, at most those of a day. Null: there is no budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_left_bytes: Option<u64>,
    /// Whether the budget is used up. Then nothing enters the cache, and writes go to the datastores, until an hour's budget has
    /// come.
    #[serde(default)]
    pub budget_is_spent: bool,
    /// The disks that have a part of it, or whose settings name it, by name.
    pub disks: Vec<CachedDisk>,
    /// What is wrong with it, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// A device of a flash cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheDevice {
    /// Its number in the cache: 0 or 1.
    #[serde(default)]
    pub device: u8,
    /// The file or block device.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// Its size in bytes, if it can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Attached disks for which it does not have everything: it is being filled, or is away.
    #[serde(default)]
    pub behind_disks: u32,
    /// Why it cannot be used, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// A disk's part of a flash cache, or a disk whose settings name the cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CachedDisk {
    /// The disk.
    pub disk: Name,
    /// Its part of the cache in bytes; 0: it has none.
    pub size_bytes: u64,
    /// When its writes are to be answered, by its settings. Null: they are not known, or name another cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FlashMode>,
    /// Whether its settings allow write-back on a single device.
    #[serde(default)]
    pub single_device: bool,
    /// Whether only the cache may have some of its writes.
    #[serde(default)]
    pub has_dirty: bool,
    /// The part that it is to have, if the cache has been divided since the disk was attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<CacheTarget>,
    /// The cache at work, if the disk is attached with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_work: Option<CacheCounts>,
}

/// How large a disk's part of a cache is to be, and what that comes from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheTarget {
    /// Its size in bytes. The part becomes as large step by step.
    pub size_bytes: u64,
    /// Why it is that large.
    pub reason: TargetReason,
    /// Reads and writes of the disk in a second, each on one page of 64 KiB, in about the last hour.
    pub accesses_per_s: f64,
    /// The disk's shares.
    pub shares: u32,
    /// What the part that the disk has would miss of them, by its miss-ratio curve; absent if that is not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub miss_ratio: Option<f64>,
    /// What one of the target's size would miss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_miss_ratio: Option<f64>,
}

/// Why a disk's part of a cache is to be as large as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TargetReason {
    /// More would add fewer hits than elsewhere.
    Hits,
    /// The disk's curve is not known yet: it has its share.
    Shares,
    /// The least: more would add no hits, or more hits elsewhere.
    Minimum,
    /// The disk may have no more.
    Maximum,
    /// What it gains from, and a share of what no disk gains from.
    Rest,
}

/// What a disk's flash cache has done since the disk was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheCounts {
    /// When writes are answered.
    pub mode: FlashMode,
    /// Whether it is used: not after its devices have failed.
    pub in_use: bool,
    /// Whether nothing enters it now, because the cache's write budget is used up.
    #[serde(default)]
    pub budget_is_spent: bool,
    /// Devices that have everything.
    pub devices: u8,
    /// Bytes that fit into it.
    pub size_bytes: u64,
    /// Bytes of it that are free.
    pub free_bytes: u64,
    /// Bytes that the disk does not have, at most.
    pub dirty_bytes: u64,
    /// Dirty pages of 64 KiB that cannot be brought to the disk: flash does not return what was written. Reads of them fail.
    #[serde(default)]
    pub unreadable_pages: u64,
    /// For how long the disk has lacked the oldest of them, in seconds, but not from before it was attached. It is too high by a
    /// second or a 64th at most. Null: nothing is dirty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_age_s: Option<f64>,
    /// Seconds until all of them are on the disk, at the pace of the last cleaning. Null: nothing was cleaned yet, or some
    /// cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_clean_s: Option<f64>,
    /// Reads of pages of 64 KiB that flash answered.
    pub hits_total: u64,
    /// Those that the disk answered.
    pub misses_total: u64,
    /// Pages that reads brought in.
    pub fills_total: u64,
    /// Reads of flash that failed.
    pub read_faults_total: u64,
    /// Blocks of 4 KiB that were read from flash and were not as they were written, each time. They come from the other device, or
    /// from the disk if it has them.
    #[serde(default)]
    pub corrupt_blocks_total: u64,
    /// Bytes written to flash, on all devices.
    pub flash_written_bytes_total: u64,
    /// Of these, bytes of the journal, which have no data of guests.
    #[serde(default)]
    pub flash_journal_bytes_total: u64,
}

/// The flash cache of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiskFlash {
    /// The cache's name on its host.
    pub cache: Name,
    /// The name of its host.
    pub host: String,
    /// Whether that is this host.
    pub here: bool,
    /// When writes are to be answered.
    pub mode: FlashMode,
    /// Whether write-back is allowed on a single device.
    #[serde(default)]
    pub single_device: bool,
    /// Whether the cache may have what the disk does not.
    pub has_dirty: bool,
    /// The disk's part of the cache in bytes, as far as known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part_bytes: Option<u64>,
    /// The least part that the disk needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_bytes: Option<u64>,
    /// The largest part that the disk may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u64>,
    /// The cache at work, if the disk is attached with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_work: Option<CacheCounts>,
    /// Why the disk is used without it, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// All flash caches of this host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheList {
    /// In the order of their names.
    pub caches: Vec<Cache>,
}

/// A request to create a flash cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheCreate {
    /// Its name, unique on this host.
    pub name: Name,
    /// The files or block devices: one, or two that are to have the same bytes.
    #[schema(value_type = Vec<String>)]
    pub devices: Vec<PathBuf>,
    /// Bytes to use of each; null: all of a device. A file that does not exist is created with this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// How often the whole device may be written in a day; null: no budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endurance_dwpd: Option<f64>,
    /// What to do about data on the devices.
    #[serde(default)]
    pub data: CacheData,
}

/// What to do about data on a device that becomes a flash cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheData {
    /// If there is any, the request fails.
    #[default]
    Keep,
    /// It is overwritten.
    Overwrite,
}

/// A request to give a flash cache another device. The cache is in use meanwhile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheDeviceAdd {
    /// The block device, or an existing file. It is at least as large as the others.
    #[schema(value_type = String)]
    pub path: PathBuf,
    /// What to do about data on it.
    #[serde(default)]
    pub data: CacheData,
}

/// A request to bring to the datastores what only a cache has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheFlush {
    /// Of this disk only; null: of all disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Name>,
}

/// Changes to a disk's flash cache. An absent field stays as it is. They take effect at once, on attached disks too.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskFlashSet {
    /// The cache; null: none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::disk::null_is_a_value"
    )]
    #[schema(value_type = Option<String>)]
    pub cache: Option<Option<Name>>,
    /// When writes are answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<FlashMode>,
    /// The least part of the cache that the disk needs; null: none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::disk::null_is_a_value"
    )]
    #[schema(value_type = Option<u64>)]
    pub min_bytes: Option<Option<u64>>,
    /// The largest part that the disk may have; null: its share.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::disk::null_is_a_value"
    )]
    #[schema(value_type = Option<u64>)]
    pub max_bytes: Option<Option<u64>>,
    /// Whether write-back is allowed on a cache of one device. If that fails, its writes are lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub single_device: Option<SingleDevice>,
}

/// Whether a disk may write back on a cache of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SingleDevice {
    /// The request fails.
    Refuse,
    /// It may: what only the device has is lost with it.
    Accept,
}

/// What to do about what only a flash cache has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dirty {
    /// Detach: bring it to the disk's datastore first. Attach: use it, or fail.
    #[default]
    Save,
    /// Detach: leave it on flash. The disk can be attached on this host only.
    Keep,
    /// Attach: give it up. What only the cache has is lost.
    Discard,
}

impl Dirty {
    pub(crate) fn is_save(&self) -> bool {
        *self == Dirty::Save
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cache_is_not_the_same_as_the_same_cache() {
        let set: DiskFlashSet = serde_json::from_str(r#"{"cache": null}"#).unwrap();
        assert_eq!(set.cache, Some(None));
        let set: DiskFlashSet = serde_json::from_str(r#"{"mode": "off"}"#).unwrap();
        assert_eq!((set.cache, set.mode), (None, Some(FlashMode::Off)));
    }

    #[test]
    fn a_mode_is_read_as_it_is_written() {
        for mode in FlashMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        let refused = "fast".parse::<FlashMode>().unwrap_err();
        assert!(refused.contains("write-back"), "{refused}");
    }
}
