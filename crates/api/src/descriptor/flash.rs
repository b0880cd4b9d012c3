//! The flash cache of a disk, as the disk's descriptor names it.
//!
//! All hosts read it: none uses the disk while another host's cache has what the disk does not.
//!
//! # Always true
//! - `has_dirty` is false only while the disk has everything that was acknowledged
//! - flash is valid only for the last use of the disk, whose number is `attachment`

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Uuid;
use crate::name::Name;
use crate::units::Size;

/// The largest number of a use: TOML's integers have 63 bits.
pub const MAX_ATTACHMENT: u64 = i64::MAX as u64;

/// When a disk with a flash cache answers writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FlashMode {
    /// Once the disk has them.
    #[default]
    WriteThrough,
    /// Once flash has them.
    WriteBack,
    /// Once the disk has them. They are not written to flash: only reads bring pages into the cache.
    WriteAround,
    /// The cache is not used.
    Off,
}

impl FlashMode {
    /// All modes.
    pub const ALL: [FlashMode; 4] = [
        FlashMode::WriteThrough,
        FlashMode::WriteBack,
        FlashMode::WriteAround,
        FlashMode::Off,
    ];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            FlashMode::WriteThrough => "write-through",
            FlashMode::WriteBack => "write-back",
            FlashMode::WriteAround => "write-around",
            FlashMode::Off => "off",
        }
    }
}

impl std::fmt::Display for FlashMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for FlashMode {
    type Err = String;
    fn from_str(text: &str) -> Result<FlashMode, String> {
        let mut modes = FlashMode::ALL.into_iter();
        modes.find(|mode| mode.as_str() == text).ok_or_else(|| {
            format!("'{text}' is not a mode of a flash cache: use write-through, write-back, write-around or off")
        })
    }
}

/// The flash cache of a disk, as its descriptor says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashUse {
    /// The cache's name on its host.
    pub cache: Name,
    /// The cache's identity.
    pub id: Uuid,
    /// The identity of its host.
    pub host: Uuid,
    /// The name of its host, for people.
    pub host_name: String,
    /// When writes are answered.
    pub mode: FlashMode,
    /// The last use of the disk: flash that belongs to another one is void.
    pub attachment: u64,
    /// Whether the cache may have what the disk does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_dirty: bool,
    /// The disk's part of the cache, when it was last attached: no more is at stake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Size>,
    /// The least part that the disk needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<Size>,
    /// The largest part that the disk may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<Size>,
    /// Whether write-back is allowed on a single device.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub single_device: bool,
}
