//! Jobs: long work that REST starts and reports on.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::Name;
use crate::problem::Problem;

/// Work that continues after the response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its number. One daemon never uses a number twice.
    pub id: u64,
    /// What it does, as a clause: `import /tmp/debian.qcow2 as disk web1`.
    pub what: String,
    /// The disk that it works on.
    pub disk: Name,
    /// Its state.
    pub state: JobState,
    /// Whether `cancel` ends its work now. Some work, such as a rebuild, goes on without the job.
    #[serde(default)]
    pub cancellable: bool,
    /// Bytes processed, including holes.
    pub done_bytes: u64,
    /// Bytes to process in total.
    pub total_bytes: u64,
    /// Bytes copied. Holes are not copied.
    pub copied_bytes: u64,
    /// How long it has run.
    pub elapsed_s: f64,
    /// Why it failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// A job's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// It is running.
    Running,
    /// It has succeeded.
    Done,
    /// It has failed; see its problem. Its results are removed, except a complete disk that could not be attached.
    Failed,
    /// It was cancelled. Its results are removed.
    Cancelled,
    /// The daemon ended while it ran. Its results are removed now, or before the next disk is created there.
    Interrupted,
}

impl JobState {
    /// Whether it has ended.
    pub const fn is_over(self) -> bool {
        !matches!(self, JobState::Running)
    }
}

/// The latest hundred jobs of this daemon process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobList {
    /// In the order of their numbers.
    pub jobs: Vec<Job>,
}

/// Image formats. All can be imported; raw and qcow2 can be exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ImageFormat {
    /// The plain bytes, with holes.
    Raw,
    /// QEMU's format, version 2 or 3.
    Qcow2,
    /// VMware's, as a single file.
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

    /// Its name, the same as QEMU's.
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
                format!("'{text}' is not an image format: use raw, qcow2, vmdk, vdi, vhdx or vpc")
            }),
        }
    }
}

/// A request to create a disk from an image file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskImport {
    /// The image file or block device, absolute, on the daemon's host and readable by the daemon.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Its format; null: detected from its first bytes. Name the format if the image's guest could have written those
    /// bytes.
    #[serde(default)]
    pub format: Option<ImageFormat>,
    /// The new disk's name.
    pub name: Name,
    /// Its datastore; null: the only datastore, or `local`.
    #[serde(default)]
    pub datastore: Option<Name>,
    /// Whether to attach the disk when it is complete. If that fails, the job fails and the disk stays, detached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub attach: bool,
    /// A block device to use as the disk's image, absolute; null: a file on the datastore.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub device: Option<PathBuf>,
    /// Whether the device's contents may be lost. It has no effect without a device: a disk is never replaced.
    #[serde(default)]
    pub existing: Existing,
}

/// A request to write a detached disk, or a snapshot of one, to an image file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DiskExport {
    /// The image file to create, or a block device to write to; absolute, on the daemon's host.
    #[schema(value_type = String)]
    pub file: PathBuf,
    /// Its format, raw or qcow2; null: by the file name's extension. An extension of another format is rejected.
    #[serde(default)]
    pub format: Option<ImageFormat>,
    /// What to do if the file already exists.
    #[serde(default)]
    pub existing: Existing,
    /// The snapshot of the disk to write; null: the disk as it is. A snapshot is written also if the disk is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Name>,
}

/// What to do about an existing file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Existing {
    /// Fail and leave it unchanged.
    #[default]
    Keep,
    /// Replace it when the new file is complete.
    Replace,
}
