//! Specifications of disks, SSDs and arrays, with names for the usual ones.
//!
//! Scenarios and the `emulated` datastore use an [`ArraySpec`] or its name. [`crate::Array::new`] checks it.
//!
//! # Names
//! `[raidL-Nx]MEMBER[+cache]`, for instance `ssd`, `raid5-8x10k`, `raid10-4xssd`, `raid5-8x10k+cache`. Levels are 0, 1,
//! 5 and 10. Members are in [`MEMBERS`]. `+cache` is a 1 GiB battery-backed write-back cache, limited by an 8 Gbit/s
//! link.
//!
//! # Units
//! Times are nanoseconds, sizes bytes, rates bytes per second.

use alloc::string::{String, ToString};
use core::fmt;

use crate::stripe::Level;

/// An array: equal members, their RAID layout, and a cache and a link in front of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArraySpec {
    /// Number of members.
    pub members: u32,
    /// The type of each.
    pub member: MemberSpec,
    /// The RAID level.
    pub level: Level,
    /// Bytes on one member before the next member's chunk.
    pub chunk: u64,
    /// A write-back cache in front of the members.
    pub cache: Option<CacheSpec>,
    /// The link to the array.
    pub link: LinkSpec,
}

/// One member of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberSpec {
    /// A rotating disk.
    Disk(DiskSpec),
    /// Flash, or anything else with channels and without an arm.
    Ssd(SsdSpec),
}

/// A rotating disk with one arm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSpec {
    /// Its size in bytes.
    pub capacity: u64,
    /// A seek to the next track.
    pub seek_least: u64,
    /// A seek from one end to the other. Seek time grows with the square root of the distance.
    pub seek_most: u64,
    /// One rotation. A random I/O waits for a random part of it.
    pub rotation: u64,
    /// The sequential transfer rate.
    pub bytes_per_second: u64,
    /// The number of queued I/Os that it may reorder (native command queueing); 1 means no reordering.
    pub queue_depth: u32,
    /// Time of a flush.
    pub flush: u64,
}

/// An SSD: one queue, several channels. Each channel works on one page at a time; the first free one takes the oldest page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdSpec {
    /// Its size in bytes.
    pub capacity: u64,
    /// Number of pages in parallel.
    pub channels: u32,
    /// The most bytes of one channel at a time. A longer I/O is split over several channels.
    pub page: u64,
    /// Cost of reading a page.
    pub read: Cost,
    /// Cost of writing a page.
    pub write: Cost,
    /// Time of a flush.
    pub flush: u64,
    /// The distribution of service times.
    pub variation: Variation,
}

/// A channel's service time for a page or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// The fixed part.
    pub base: u64,
    /// The rate of the part in proportion to the bytes.
    pub bytes_per_second: u64,
}

/// The distribution of service times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variation {
    /// Constant.
    Fixed,
    /// Exponential, with the cost as its mean.
    Exponential,
}

/// A battery-backed write-back cache. A write completes when it is in the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSpec {
    /// Size in bytes. When all of it is dirty, writes wait for space.
    pub size: u64,
    /// Time of a write into it, or of a read from it.
    pub hit: u64,
    /// Destaging starts above this many dirty bytes.
    pub destage_above: u64,
    /// The most destages in parallel.
    pub destage_depth: u32,
    /// Reads out of 1,000 that hit data other than recent writes.
    pub read_hits_permille: u32,
}

/// The link between host and array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// Added to every I/O: controller, wire, protocol.
    pub latency: u64,
    /// Its bandwidth, shared by I/Os one after the other; `None` for unlimited.
    pub bytes_per_second: Option<u64>,
}

/// Why a specification is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpecError {
    /// The name is malformed.
    Name(String),
    /// A number is out of range.
    Value {
        /// Its field.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The valid range.
        must_be: &'static str,
    },
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SpecError::Name(name) => {
                write!(
                    f,
                    "no storage model is called '{name}': use [raid0|raid1|raid5|raid10-Nx]MEMBER[+cache] with MEMBER one of"
                )?;
                MEMBERS
                    .iter()
                    .try_for_each(|(member, what)| write!(f, " {member} ({what})"))
            }
            SpecError::Value {
                field,
                value,
                must_be,
            } => {
                write!(
                    f,
                    "a storage model with {field} = {value} is invalid: it must be {must_be}"
                )
            }
        }
    }
}

impl core::error::Error for SpecError {}

/// The named members.
pub const MEMBERS: [(&str, &str); 6] = [
    ("7k", "4 TB disk, 7,200 rpm"),
    ("10k", "600 GB disk, 10,000 rpm"),
    ("15k", "300 GB disk, 15,000 rpm"),
    ("ssd", "SATA SSD, some 90,000 random reads a second"),
    ("nvme", "NVMe SSD, some 500,000 random reads a second"),
    ("fifo", "one server, exponential, 3,350 I/Os a second"),
];

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GB: u64 = 1_000_000_000;
const MB: u64 = 1_000_000;

/// The longest service time. Sums over a long queue must be far below the end of a `u64`.
const LONGEST: u64 = 100 * 1_000 * MS;

impl MemberSpec {
    /// The member of this name.
    pub fn named(name: &str) -> Option<MemberSpec> {
        // Seek times, rates and rotation are from data sheets of such drives. Flash costs are chosen so that channels /
        // base is the random rate and channels x page / base the sequential rate.
        let disk = |gb, seek_most, rotation, rate| {
            MemberSpec::Disk(DiskSpec {
                capacity: gb * GB,
                seek_least: 400 * US,
                seek_most,
                rotation,
                bytes_per_second: rate * MB,
                queue_depth: 32,
                flush: rotation,
            })
        };
        let ssd = |gb, channels, read, write| {
            MemberSpec::Ssd(SsdSpec {
                capacity: gb * GB,
                channels,
                page: 16 * KIB,
                read: Cost {
                    base: read,
                    bytes_per_second: 1_600 * MB,
                },
                write: Cost {
                    base: write,
                    bytes_per_second: 800 * MB,
                },
                flush: 200 * US,
                variation: Variation::Fixed,
            })
        };
        Some(match name {
            "7k" => disk(4_000, 16 * MS, 8_333 * US, 180),
            "10k" => disk(600, 9 * MS, 6 * MS, 200),
            "15k" => disk(300, 7 * MS, 4 * MS, 220),
            "ssd" => ssd(960, 8, 85 * US, 110 * US),
            "nvme" => ssd(1_920, 40, 78 * US, 120 * US),
            // The server of PARDA's published experiments, as in our own simulations of it.
            "fifo" => MemberSpec::Ssd(SsdSpec {
                capacity: 1_000 * GB,
                channels: 1,
                page: MIB,
                read: Cost {
                    base: 1_000 * MS / 3_350,
                    bytes_per_second: 1_000_000 * MB,
                },
                write: Cost {
                    base: 1_000 * MS / 3_350,
                    bytes_per_second: 1_000_000 * MB,
                },
                flush: US,
                variation: Variation::Exponential,
            }),
            _ => return None,
        })
    }

    /// Its size.
    pub const fn capacity(&self) -> u64 {
        match self {
            MemberSpec::Disk(disk) => disk.capacity,
            MemberSpec::Ssd(ssd) => ssd.capacity,
        }
    }
}

impl CacheSpec {
    /// A battery-backed cache of this size with usual parameters. Destaging starts when an eighth is dirty.
    pub const fn of_size(size: u64) -> CacheSpec {
        CacheSpec {
            size,
            hit: 50 * US,
            destage_above: size / 8,
            destage_depth: 32,
            read_hits_permille: 0,
        }
    }
}

impl ArraySpec {
    /// A single member.
    pub const fn single(member: MemberSpec) -> ArraySpec {
        ArraySpec {
            members: 1,
            member,
            level: Level::Raid0,
            chunk: 64 * KIB,
            cache: None,
            link: LinkSpec {
                latency: 0,
                bytes_per_second: None,
            },
        }
    }

    /// The array of this name. See the module's documentation.
    pub fn named(name: &str) -> Result<ArraySpec, SpecError> {
        let unknown = || SpecError::Name(name.to_string());
        let (base, cache) = match name.strip_suffix("+cache") {
            Some(base) => (base, Some(CacheSpec::of_size(1 << 30))),
            None => (name, None),
        };
        let bytes_per_second = cache.as_ref().map(|_| 800 * MB);
        let (level, members, member) = match base.strip_prefix("raid") {
            None => (Level::Raid0, 1, base),
            Some(rest) => {
                let (level, rest) = rest.split_once('-').ok_or_else(unknown)?;
                let (count, member) = rest.split_once('x').ok_or_else(unknown)?;
                let level = Level::named(level).ok_or_else(unknown)?;
                (level, count.parse().map_err(|_| unknown())?, member)
            }
        };
        let member = MemberSpec::named(member).ok_or_else(unknown)?;
        let link = LinkSpec {
            latency: 0,
            bytes_per_second,
        };
        let spec = ArraySpec {
            members,
            level,
            cache,
            link,
            ..ArraySpec::single(member)
        };
        spec.validate()?;
        Ok(spec)
    }

    /// Data capacity in bytes, without parity and copies.
    pub fn capacity(&self) -> u64 {
        let rows = self.member.capacity() / self.chunk.max(1);
        rows * self.chunk * u64::from(self.level.data_members(self.members))
    }

    /// Checks the range of every number.
    pub fn validate(&self) -> Result<(), SpecError> {
        let members = u64::from(self.members);
        match self.level {
            Level::Raid0 => within("members", members, 1, 1_024, "1 to 1,024")?,
            Level::Raid1 => within("members", members, 2, 16, "2 to 16 for RAID 1")?,
            Level::Raid5 => within("members", members, 3, 1_024, "3 to 1,024 for RAID 5")?,
            Level::Raid10 => {
                within("members", members, 2, 1_024, "2 to 1,024 for RAID 10")?;
                within("members", members % 2, 0, 0, "even for RAID 10")?;
            }
        }
        within("chunk", self.chunk, 512, 1 << 30, "512 bytes to 1 GiB")?;
        let capacity = self.member.capacity();
        within(
            "member capacity",
            capacity,
            self.chunk,
            1 << 52,
            "a chunk to 4 PiB",
        )?;
        match &self.member {
            MemberSpec::Disk(disk) => disk.validate()?,
            MemberSpec::Ssd(ssd) => ssd.validate()?,
        }
        if let Some(cache) = &self.cache {
            cache.validate()?;
        }
        time("link latency", self.link.latency)?;
        self.link
            .bytes_per_second
            .map_or(Ok(()), |bytes| rate("link rate", bytes))
    }
}

impl DiskSpec {
    fn validate(&self) -> Result<(), SpecError> {
        time("longest seek", self.seek_most)?;
        within(
            "shortest seek",
            self.seek_least,
            0,
            self.seek_most,
            "at most the longest",
        )?;
        time("rotation", self.rotation)?;
        rate("disk rate", self.bytes_per_second)?;
        within(
            "queue depth",
            u64::from(self.queue_depth),
            1,
            1_024,
            "1 to 1,024",
        )?;
        time("disk flush", self.flush)
    }
}

impl SsdSpec {
    fn validate(&self) -> Result<(), SpecError> {
        within(
            "channels",
            u64::from(self.channels),
            1,
            65_536,
            "1 to 65,536",
        )?;
        within("page", self.page, 512, 1 << 30, "512 bytes to 1 GiB")?;
        for cost in [self.read, self.write] {
            time("service time", cost.base)?;
            rate("channel rate", cost.bytes_per_second)?;
        }
        time("SSD flush", self.flush)
    }
}

impl CacheSpec {
    fn validate(&self) -> Result<(), SpecError> {
        within("cache size", self.size, 4 * KIB, 1 << 46, "4 KiB to 64 TiB")?;
        within(
            "cache hit",
            self.hit,
            1,
            LONGEST,
            "1 ns to 100 s, in nanoseconds",
        )?;
        within(
            "dirty bytes before destaging",
            self.destage_above,
            0,
            self.size - 1,
            "below the cache's size",
        )?;
        within(
            "destages",
            u64::from(self.destage_depth),
            1,
            65_536,
            "1 to 65,536",
        )?;
        within(
            "read hits",
            u64::from(self.read_hits_permille),
            0,
            1_000,
            "0 to 1,000",
        )
    }
}

fn within(
    field: &'static str,
    value: u64,
    least: u64,
    most: u64,
    must_be: &'static str,
) -> Result<(), SpecError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(SpecError::Value {
        field,
        value,
        must_be,
    })
}

fn time(field: &'static str, value: u64) -> Result<(), SpecError> {
    within(field, value, 0, LONGEST, "at most 100 s, in nanoseconds")
}

fn rate(field: &'static str, value: u64) -> Result<(), SpecError> {
    within(
        field,
        value,
        1_000,
        1 << 50,
        "1 kB/s to 1 PiB/s, in bytes per second",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_level_members_and_cache() {
        let spec = ArraySpec::named("raid5-8x10k+cache").unwrap();
        assert_eq!((spec.level, spec.members), (Level::Raid5, 8));
        assert!(spec.cache.is_some());
        assert!(matches!(spec.member, MemberSpec::Disk(_)));
        assert_eq!(spec.capacity() / (1 << 30), 7 * 600 * GB / (1 << 30));
        assert_eq!(ArraySpec::named("ssd").unwrap().members, 1);
    }

    #[test]
    fn every_named_member_is_valid_alone_and_in_arrays() {
        for (member, _) in MEMBERS {
            for prefix in ["", "raid0-3x", "raid1-2x", "raid5-3x", "raid10-4x"] {
                let mut name = String::from(prefix);
                name.push_str(member);
                ArraySpec::named(&name).unwrap();
            }
        }
    }

    #[test]
    fn an_invalid_name_is_rejected_with_the_valid_ones() {
        for name in [
            "",
            "floppy",
            "raid6-8x10k",
            "raid5-8",
            "raid5-x10k",
            "raid5-999999999999x10k",
        ] {
            let error = ArraySpec::named(name).unwrap_err().to_string();
            assert!(error.contains("10k") && error.contains(name), "{error}");
        }
        let error = ArraySpec::named("raid10-3xssd").unwrap_err().to_string();
        assert!(error.contains("even"), "{error}");
        let error = ArraySpec::named("raid5-2xssd").unwrap_err().to_string();
        assert!(error.contains("3 to"), "{error}");
    }

    #[test]
    fn numbers_that_would_divide_by_zero_or_overflow_are_rejected() {
        let base = ArraySpec::named("raid5-8x10k+cache").unwrap();
        let broken = |change: fn(&mut ArraySpec)| {
            let mut spec = base.clone();
            change(&mut spec);
            assert!(
                matches!(spec.validate(), Err(SpecError::Value { .. })),
                "{spec:?}"
            );
        };
        broken(|spec| spec.chunk = 0);
        broken(|spec| spec.members = 0);
        broken(|spec| spec.link.bytes_per_second = Some(0));
        broken(|spec| spec.link.latency = u64::MAX);
        broken(|spec| spec.cache.as_mut().unwrap().size = 0);
        broken(|spec| spec.cache.as_mut().unwrap().destage_depth = 0);
        for change in [
            |disk: &mut DiskSpec| disk.capacity = 0,
            |disk: &mut DiskSpec| disk.bytes_per_second = 0,
            |disk: &mut DiskSpec| disk.queue_depth = 0,
            |disk: &mut DiskSpec| disk.seek_least = u64::MAX,
        ] {
            let mut spec = base.clone();
            let MemberSpec::Disk(disk) = &mut spec.member else {
                panic!("a disk")
            };
            change(disk);
            assert!(spec.validate().is_err(), "{spec:?}");
        }
    }
}
