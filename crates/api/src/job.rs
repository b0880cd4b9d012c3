//! Jobs: long work that REST starts and reports on.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::Name;
use crate::problem::Problem;

/// Work that goes on after the answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its number; never used twice by one daemon.
    pub id: u64,
    /// What it does, as a clause: `import /tmp/debian.qcow2 as disk web1`.
    pub what: String,
    /// The disk that it works on.
    pub disk: Name,
    /// How it stands.
    pub state: JobState,
    /// Bytes dealt with, holes included.
    pub done_bytes: u64,
    /// Bytes to deal with in all.
    pub total_bytes: u64,
    /// Bytes that were actually copied: holes cost nothing.
    pub copied_bytes: u64,
    /// How long it has run, or ran.
    pub elapsed_s: f64,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// How a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It goes on.
    Running,
    /// It has done what it should.
    Done,
    /// It could not; see its problem. What it had made is gone again, but for a disk that is whole and was not attached.
    Failed,
    /// Somebody stopped it. What it had made is gone again.
    Cancelled,
    /// The daemon ended while it ran. What it had made is gone, or goes before the next disk is made there.
    Interrupted,
}

impl JobState {
    /// Whether nothing more will happen.
    pub const fn is_over(self) -> bool {
        !matches!(self, JobState::Running)
    }
}

/// The jobs of this daemon's life, the latest hundred.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// In the order of their numbers.
    pub jobs: Vec<Job>,
}

/// Image formats. All come in; raw and qcow2 go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ImageFormat {
    /// The bytes themselves, with holes.
    Raw,
    /// QEMU's format, version 2 or 3.
    Qcow2,
    /// VMware's, where it is one file.
    Vmdk,
    /// VirtualBox's.
    Vdi,
    /// Microsoft's newer one.
    Vhdx,
    /// Microsoft's older one, VHD.
    Vpc,
}

impl ImageFormat {
    /// All of them.
    pub const ALL: [ImageFormat; 6] = [
        ImageFormat::Raw,
        ImageFormat::Qcow2,
        ImageFormat::Vmdk,
        ImageFormat::Vdi,
        ImageFormat::Vhdx,
        ImageFormat::Vpc,
    ];

    /// As it is written; QEMU's word for it too.
    pub const fn word(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Qcow2 => "qcow2",
            ImageFormat::Vmdk => "vmdk",
            ImageFormat::Vdi => "vdi",
            ImageFormat::Vhdx => "vhdx",
            ImageFormat::Vpc => "vpc",
        }
    }
}

impl std::str::FromStr for ImageFormat {
    type Err = String;
    fn from_str(text: &str) -> Result<ImageFormat, String> {
        let mut all = ImageFormat::ALL.into_iter();
        match text {
            "vhd" => Ok(ImageFormat::Vpc),
            _ => all.find(|format| format.word() == text).ok_or_else(|| {
                format!("'{text}' is no image format: use raw, qcow2, vmdk, vdi, vhdx or vpc")
            }),
        }
    }
}

/// An order to make a disk of an image file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskImport {
    /// The image file or block device, absolute, on the daemon's host and readable by the daemon.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Its format; null: told from its first bytes (an image whose guest could have written those is best named).
    #[serde(default)]
    pub format: Option<ImageFormat>,
    /// The new disk's name.
    pub name: Name,
    /// Where; null: the only datastore there is, or `local`.
    #[serde(default)]
    pub datastore: Option<Name>,
    /// Whether to attach the disk when it is complete. If that fails, the job fails and the disk stays, detached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attach: bool,
    /// A block device, absolute, that becomes the disk's image; null: a file on the datastore.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub device: Option<PathBuf>,
    /// Whether what is on that device may be lost. Without a device it means nothing: a disk is never replaced.
    #[serde(default)]
    pub existing: Existing,
}

/// An order to write a disk, which must be detached, to an image file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskExport {
    /// The image file to create, or a block device to write to; absolute, on the daemon's host.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Its format, raw or qcow2; null: as the file's name ends. A name that ends as another format's does is refused.
    #[serde(default)]
    pub format: Option<ImageFormat>,
    /// What to do if the file is there already.
    #[serde(default)]
    pub existing: Existing,
}

/// What becomes of a file that is in the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Existing {
    /// It stays and the order fails.
    #[default]
    Keep,
    /// It is replaced, when the new one is complete.
    Replace,
}
