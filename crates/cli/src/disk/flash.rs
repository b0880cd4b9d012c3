//! A disk's flash cache: the flags of `tidegate disk set`, and how it is shown.

use std::str::FromStr;

use clap::Args;
use tidegate_api::cache::{CacheCounts, DiskFlash, DiskFlashSet, FlashMode, SingleDevice};
use tidegate_api::descriptor::CacheMode;
use tidegate_api::name::Name;
use tidegate_api::units::Size;

use super::policy::OrNone;
use crate::cache::{dirty_words, hit_ratio};
use crate::{complete, figures};

/// What `--cache` names: a flash cache, or the mode that a guest sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CacheFlag {
    /// The cache mode that a guest sees.
    Guest(CacheMode),
    /// A flash cache, or none.
    Flash(Option<Name>),
}

impl FromStr for CacheFlag {
    type Err = String;

    fn from_str(text: &str) -> Result<CacheFlag, String> {
        if text == "none" {
            return Ok(CacheFlag::Flash(None));
        }
        if let Ok(mode) = text.parse() {
            return Ok(CacheFlag::Guest(mode));
        }
        let name = text.parse().map_err(|e| format!("{e}"))?;
        Ok(CacheFlag::Flash(Some(name)))
    }
}

/// The flags of a flash cache.
#[derive(Debug, Args)]
pub(super) struct FlashFlags {
    /// A flash cache of this host, or none; or the mode that a guest sees: write-back or write-through
    ///
    /// A flash cache can be given and taken off while guests use the disk. The mode that a guest sees needs a detached disk.
    #[arg(long, value_name = "CACHE", add = complete::caches())]
    cache: Option<CacheFlag>,

    /// When writes are answered with a flash cache: write-through, write-back, write-around, or off
    ///
    /// With write-back they are answered once flash has them. Then the disk can be attached on this host only, until the
    /// cache was flushed. With write-around they are not written to flash: only reads bring pages into the cache.
    #[arg(long, value_name = "MODE", add = complete::flash_modes())]
    cache_mode: Option<FlashMode>,

    /// The least part of the flash cache that the disk needs; none: no bound
    #[arg(long, value_name = "SIZE")]
    cache_min: Option<OrNone<Size>>,

    /// The largest part of the flash cache that the disk may have; none: its share
    #[arg(long, value_name = "SIZE")]
    cache_max: Option<OrNone<Size>>,

    /// Allow write-back on a cache of one device: if that fails, writes that only it has are lost
    #[arg(long)]
    single_device_ok: bool,

    /// Take that back
    ///
    /// A disk that writes back on a cache of one device needs another mode with it. On a mirrored cache one of whose devices is
    /// away, writes go through to the disk until that is back.
    #[arg(long, conflicts_with = "single_device_ok")]
    no_single_device_ok: bool,
}

impl FlashFlags {
    /// The mode that a guest is to see.
    pub(super) fn guest_mode(&self) -> Option<CacheMode> {
        match &self.cache {
            Some(CacheFlag::Guest(mode)) => Some(*mode),
            _ => None,
        }
    }

    /// The changes of the flash cache, if there are any.
    pub(super) fn changes(self) -> Option<DiskFlashSet> {
        let cache = match self.cache {
            Some(CacheFlag::Flash(cache)) => Some(cache),
            _ => None,
        };
        let bytes = |OrNone(size): OrNone<Size>| size.map(|Size(bytes)| bytes);
        let set = DiskFlashSet {
            cache,
            mode: self.cache_mode,
            min_bytes: self.cache_min.map(bytes),
            max_bytes: self.cache_max.map(bytes),
            single_device: match (self.single_device_ok, self.no_single_device_ok) {
                (true, _) => Some(SingleDevice::Accept),
                (false, true) => Some(SingleDevice::Refuse),
                (false, false) => None,
            },
        };
        (set != DiskFlashSet::default()).then_some(set)
    }
}

/// A disk's flash cache in a few words.
pub(super) fn shown(flash: &DiskFlash) -> String {
    let mut lines = vec![format!("{}, {}", flash.cache, flash.mode)];
    if !flash.here {
        lines[0] = format!("{} on host {}", lines[0], flash.host);
    }
    if flash.single_device {
        lines[0].push_str(", write-back on one device allowed");
    }
    match &flash.at_work {
        Some(counts) => {
            lines.push(format!(
                "{} of {} free, {} of reads hit",
                figures::bytes(counts.free_bytes),
                figures::bytes(counts.size_bytes),
                hit_ratio(counts)
            ));
            lines.push(format!(
                "{} {}{}, {} written to flash",
                figures::bytes(counts.dirty_bytes),
                dirty_place(flash, counts),
                dirty_words(counts),
                figures::bytes(counts.flash_written_bytes_total)
            ));
            if counts.corrupt_blocks_total > 0 {
                lines.push(format!(
                    "{} times a block on flash was not as it was written",
                    counts.corrupt_blocks_total
                ));
            }
            if counts.budget_is_spent {
                lines.push("write budget of the cache used up: nothing enters it".to_owned());
            }
        }
        None if flash.has_dirty => lines.push(match flash.part_bytes {
            Some(part) => format!("up to {} only on flash", figures::bytes(part)),
            None => "writes only on flash".to_owned(),
        }),
        None => {}
    }
    if let Some(problem) = &flash.problem {
        lines.push(crate::failure::sentences(problem));
    }
    lines.join("\n")
}

/// Where the writes are that the disk does not have durably.
fn dirty_place(flash: &DiskFlash, counts: &CacheCounts) -> &'static str {
    match flash.has_dirty || counts.mode == FlashMode::WriteBack {
        true => "only on flash",
        false => "not flushed on the datastore",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unflushed_writes_of_write_through_are_not_called_only_on_flash() {
        let mut flash = DiskFlash {
            cache: "nvme0".parse().unwrap(),
            host: "here".to_owned(),
            here: true,
            mode: FlashMode::WriteThrough,
            single_device: false,
            has_dirty: false,
            part_bytes: None,
            min_bytes: None,
            max_bytes: None,
            at_work: Some(CacheCounts {
                mode: FlashMode::WriteThrough,
                dirty_bytes: 2 << 20,
                ..CacheCounts::default()
            }),
            problem: None,
        };
        let text = shown(&flash);
        assert!(text.contains("2MiB not flushed on the datastore"), "{text}");
        assert!(!text.contains("allowed"), "{text}");
        flash.single_device = true;
        let text = shown(&flash);
        assert!(text.contains("write-back on one device allowed"), "{text}");
        // It wrote back until a moment ago, and is being cleaned.
        flash.has_dirty = true;
        let text = shown(&flash);
        assert!(text.contains("2MiB only on flash"), "{text}");
    }

    #[test]
    fn a_guests_cache_mode_and_a_flash_cache_are_told_apart() {
        let read = |text: &str| text.parse::<CacheFlag>().unwrap();
        assert_eq!(read("write-back"), CacheFlag::Guest(CacheMode::WriteBack));
        assert_eq!(read("none"), CacheFlag::Flash(None));
        assert_eq!(read("nvme0"), CacheFlag::Flash("nvme0".parse().ok()));
        assert!("no/name".parse::<CacheFlag>().is_err());
    }
}
