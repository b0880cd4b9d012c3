//! A block device as the destination of a copy.
//!
//! Import and export write to it in place: a device has no draft. So it is opened exclusively, and an error says if it
//! is partly written.
//!
//! # Always true
//! - Only a block device that is not mounted or otherwise in exclusive use is written to.
//! - Zeroes of the disk read as zeroes on the device, whatever its earlier content.

use std::fs::{self, File, Metadata};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use tidegate_api::problem::{Problem, ProblemCode};

use super::Sink;
use crate::os_error::{self, Outcome};

/// Zeroes written at a time where the device has no command for them.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The remedy if there is no block device at a path.
pub(crate) const FIND: &str = "look for the device with `lsblk -p`";

/// Whether a path leads to a block device.
pub(crate) fn is_there(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| there.file_type().is_block_device())
}

/// An open device.
#[derive(Debug)]
pub(crate) struct DeviceSink {
    file: File,
    path: PathBuf,
}

impl DeviceSink {
    /// Opens a device for a copy of this many bytes. `admit` may refuse it once it is open.
    pub(crate) fn open(
        path: &Path,
        size: u64,
        admit: impl FnOnce(&Metadata) -> Outcome<()>,
    ) -> Outcome<DeviceSink> {
        let what = || format!("cannot write to {}", path.display());
        let no_device = || {
            os_error::invalid(what())
                .because("it is not a block device")
                .remedy(FIND)
        };
        let there = fs::metadata(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => os_error::io(what(), &e).remedy(FIND),
            _ => os_error::io(what(), &e),
        })?;
        if !there.file_type().is_block_device() {
            return Err(no_device());
        }
        let alone = OFlags::EXCL.bits().cast_signed();
        let opened = File::options().write(true).custom_flags(alone).open(path);
        let mut file = opened.map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::BUSY.raw_os_error() => {
                Problem::new(ProblemCode::Busy, what())
                    .because("it is in use: mounted, part of another device, or a disk's image")
                    .remedy("unmount it, or remove it from the device that uses it (see `lsblk`)")
            }
            _ => os_error::io(what(), &error),
        })?;
        let there = file.metadata().map_err(|e| os_error::io(what(), &e))?;
        if !there.file_type().is_block_device() {
            return Err(no_device());
        }
        admit(&there).map_err(|problem| problem.within(what()))?;
        let has = file
            .seek(SeekFrom::End(0))
            .map_err(|e| os_error::io(what(), &e))?;
        if has < size {
            return Err(os_error::invalid(what())
                .because(format!("it has {has} bytes, but {size} are needed"))
                .remedy(format!(
                    "use a device of {size} bytes or more (see `lsblk -pb`)"
                )));
        }
        let path = path.to_owned();
        Ok(DeviceSink { file, path })
    }

    /// Lets `copy` fill it, durably. If that fails, the error says what is on the device now.
    pub(crate) fn fill(&mut self, copy: impl FnOnce(&mut dyn Sink) -> Outcome<()>) -> Outcome<()> {
        let copied = copy(self).and_then(|()| {
            let what = || format!("cannot write to {}", self.path.display());
            self.file.sync_all().map_err(|e| os_error::io(what(), &e))
        });
        copied.map_err(|problem| {
            let device = self.path.display();
            problem.because(format!(
                "{device} is written in part: its former data is lost"
            ))
        })
    }
}

impl Sink for DeviceSink {
    fn write(&mut self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buffer, offset)
    }

    fn zero(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let how = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        // Devices accept only whole sectors for this; an odd remainder is written.
        let whole = length - length % 4096;
        let done = match whole {
            0 => 0,
            _ if !offset.is_multiple_of(4096) => 0,
            _ => fallocate(&self.file, how, offset, whole).map_or(0, |()| whole),
        };
        let mut at = offset + done;
        while at < offset + length {
            let left = offset + length - at;
            let piece = usize::try_from(left)
                .unwrap_or(ZEROES.len())
                .min(ZEROES.len());
            self.file.write_all_at(&ZEROES[..piece], at)?;
            at += piece as u64;
        }
        Ok(())
    }
}
