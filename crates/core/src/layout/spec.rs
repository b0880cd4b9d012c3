//! A layout as it is configured: `plain`, `stripe:chunk=256KiB`, `mirror`, or `mirror+stripe:chunk=64KiB`.
//!
//! # Always true
//! - a text that is read is written back the same
//! - a size that [`LayoutSpec::round_up`] returned fills all members equally

use super::mirror::MEMBERS_MAX;
use super::stripe::{CHUNK_MAX, CHUNK_MIN};
use super::{DATA_AT, MAX_TARGETS};
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::str::FromStr;

/// The default chunk of a stripe, in bytes. Origin: chosen; md's default is 512 KiB, LVM's 64 KiB.
pub const CHUNK_DEFAULT: u64 = 256 << 10;

/// A layout as it is configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayoutSpec {
    /// One image.
    #[default]
    Plain,
    /// RAID 0: chunks of this many bytes on the members in turn.
    Stripe {
        /// Bytes of a chunk.
        chunk: u64,
    },
    /// RAID 1: every member has all bytes.
    Mirror,
    /// RAID 10: a stripe over mirrors of two members each.
    MirrorStripe {
        /// Bytes of a chunk.
        chunk: u64,
    },
}

impl LayoutSpec {
    /// Whether the disk is one image.
    pub fn is_plain(self) -> bool {
        self == LayoutSpec::Plain
    }

    /// Whether a member may fail without loss.
    pub fn is_redundant(self) -> bool {
        matches!(self, LayoutSpec::Mirror | LayoutSpec::MirrorStripe { .. })
    }

    /// Checks the number of members.
    ///
    /// # Errors
    /// The layout does not work with so many, in words.
    pub fn check(self, members: usize) -> Result<(), String> {
        let range = match self {
            LayoutSpec::Plain => 1..=1,
            LayoutSpec::Stripe { .. } => 2..=MAX_TARGETS,
            LayoutSpec::Mirror => 2..=MEMBERS_MAX,
            LayoutSpec::MirrorStripe { .. } => 4..=MAX_TARGETS,
        };
        let even = !matches!(self, LayoutSpec::MirrorStripe { .. }) || members.is_multiple_of(2);
        if range.contains(&members) && even {
            return Ok(());
        }
        let (least, most) = (range.start(), range.end());
        Err(match self {
            LayoutSpec::Plain => format!("a plain disk has one place, not {members}"),
            LayoutSpec::MirrorStripe { .. } => {
                format!(
                    "{self} needs an even number of members from {least} to {most}, not {members}"
                )
            }
            _ => format!("{self} needs {least} to {most} members, not {members}"),
        })
    }

    /// How many members hold different bytes.
    fn columns(self, members: usize) -> u64 {
        let columns = match self {
            LayoutSpec::Plain | LayoutSpec::Mirror => 1,
            LayoutSpec::Stripe { .. } => members,
            LayoutSpec::MirrorStripe { .. } => members / 2,
        };
        columns.max(1) as u64
    }

    /// The disk's size must be a multiple of this many bytes.
    pub fn row(self, members: usize) -> u64 {
        match self {
            LayoutSpec::Plain => 1,
            LayoutSpec::Mirror => CHUNK_MIN,
            LayoutSpec::Stripe { chunk } | LayoutSpec::MirrorStripe { chunk } => {
                chunk * self.columns(members)
            }
        }
    }

    /// The smallest size that is possible and not smaller than this one, in bytes.
    pub fn round_up(self, size: u64, members: usize) -> u64 {
        size.next_multiple_of(self.row(members))
    }

    /// The size of each member of a disk of this size, in bytes, with the layout's own data.
    pub fn member_size(self, size: u64, members: usize) -> u64 {
        match self {
            LayoutSpec::Plain => size,
            _ => DATA_AT + size / self.columns(members),
        }
    }

    /// The largest disk whose members have this many bytes each.
    pub fn size_for(self, member_size: u64, members: usize) -> u64 {
        match self {
            LayoutSpec::Plain => member_size,
            _ => {
                let size = member_size.saturating_sub(DATA_AT) * self.columns(members);
                size - size % self.row(members)
            }
        }
    }
}

impl fmt::Display for LayoutSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LayoutSpec::Plain => f.write_str("plain"),
            LayoutSpec::Mirror => f.write_str("mirror"),
            LayoutSpec::Stripe { chunk } => write!(f, "stripe:chunk={}KiB", chunk >> 10),
            LayoutSpec::MirrorStripe { chunk } => {
                write!(f, "mirror+stripe:chunk={}KiB", chunk >> 10)
            }
        }
    }
}

impl FromStr for LayoutSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<LayoutSpec, String> {
        let (name, option) = match text.split_once(':') {
            Some((name, option)) => (name, Some(option)),
            None => (text, None),
        };
        let chunk = || match option {
            None => Ok(CHUNK_DEFAULT),
            Some(option) => match option.strip_prefix("chunk=") {
                Some(size) => chunk(size),
                None => Err(format!(
                    "`{option}` is not an option of {name}: it has chunk=SIZE"
                )),
            },
        };
        match (name, option) {
            ("plain", None) => Ok(LayoutSpec::Plain),
            ("mirror", None) => Ok(LayoutSpec::Mirror),
            ("plain" | "mirror", Some(option)) => {
                Err(format!("{name} has no options, but `{option}` was given"))
            }
            ("stripe", _) => chunk().map(|chunk| LayoutSpec::Stripe { chunk }),
            ("mirror+stripe", _) => chunk().map(|chunk| LayoutSpec::MirrorStripe { chunk }),
            _ => Err(format!(
                "`{name}` is not a layout: use plain, stripe[:chunk=SIZE], mirror, or mirror+stripe[:chunk=SIZE]"
            )),
        }
    }
}

/// A chunk's size, such as `64K`, `256KiB` or `1M`.
fn chunk(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        _ => return Err(format!("`{text}` is not a size: write it as 64K or 1M")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is not a size: write it as 64K or 1M"))?;
    let chunk = number.saturating_mul(1 << shift);
    if chunk.is_power_of_two() && (CHUNK_MIN..=CHUNK_MAX).contains(&chunk) {
        return Ok(chunk);
    }
    Err(format!(
        "a chunk of {text} is not possible: it is a power of two from 4K to 64M"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_layout_is_written_as_it_is_read() {
        for text in [
            "plain",
            "mirror",
            "stripe:chunk=64KiB",
            "mirror+stripe:chunk=1024KiB",
        ] {
            let spec: LayoutSpec = text.parse().expect("a layout");
            assert_eq!(spec.to_string(), text);
        }
        let default = LayoutSpec::Stripe {
            chunk: CHUNK_DEFAULT,
        };
        assert_eq!("stripe".parse(), Ok(default));
        assert_eq!("stripe:chunk=256K".parse(), Ok(default));
    }

    #[test]
    fn what_is_no_layout_is_refused_with_what_to_write() {
        for (text, says) in [
            ("raid5", "use plain, stripe"),
            ("mirror:chunk=64K", "mirror has no options"),
            ("stripe:width=3", "chunk=SIZE"),
            ("stripe:chunk=3K", "power of two"),
            ("stripe:chunk=2K", "power of two"),
            ("stripe:chunk=128M", "power of two"),
            ("stripe:chunk=99999999999999999999M", "write it as"),
            ("stripe:chunk=64X", "write it as"),
        ] {
            let refused = text.parse::<LayoutSpec>().expect_err(text);
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }

    #[test]
    fn members_are_as_large_as_their_part_of_the_disk() {
        let chunk = 64 << 10;
        for (spec, members, columns) in [
            (LayoutSpec::Stripe { chunk }, 3, 3),
            (LayoutSpec::Mirror, 2, 1),
            (LayoutSpec::MirrorStripe { chunk }, 4, 2),
        ] {
            let size = spec.round_up(10_000_001, members);
            assert!(size >= 10_000_001 && size % spec.row(members) == 0);
            let member = spec.member_size(size, members);
            assert_eq!((member - DATA_AT) * columns, size);
            assert_eq!(spec.size_for(member, members), size);
            assert_eq!(spec.size_for(member - 1, members), size - spec.row(members));
        }
    }

    #[test]
    fn a_wrong_number_of_members_is_refused() {
        let stripe = LayoutSpec::Stripe {
            chunk: CHUNK_DEFAULT,
        };
        let both = LayoutSpec::MirrorStripe {
            chunk: CHUNK_DEFAULT,
        };
        for (spec, good, bad) in [
            (LayoutSpec::Plain, 1, 2),
            (stripe, 2, 1),
            (LayoutSpec::Mirror, 4, 5),
            (both, 6, 5),
            (both, 4, 2),
        ] {
            assert_eq!(spec.check(good), Ok(()));
            assert!(spec.check(bad).is_err(), "{spec} with {bad}");
        }
    }
}
