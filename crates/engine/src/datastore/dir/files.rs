//! Opens the files of an image and locks each.
//!
//! # Always true
//! - an open file description is used only under a lock of a byte of its own, which the kernel keeps until the last
//!   operation on it has ended
//!
//! # Source
//! open(2) on O_DIRECT; fcntl(2) on open file description locks.

use super::{Options, PAGE};
use crate::error::{Error, Kind, Result};
use crate::sys::os::{self, DirectAlignment};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two tries for a lock that is held.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// The image at `path`, with these flags besides.
pub(super) fn open_as(path: &Path, options: Options, flags: i32) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .custom_flags(libc::O_CLOEXEC | flags)
        .open(path)
}

/// The image once more, for direct I/O, locked; none where that is not wanted or not known.
pub(super) fn open_direct(
    path: &Path,
    options: Options,
) -> Result<Option<(File, DirectAlignment)>> {
    if options.buffered {
        return Ok(None);
    }
    let file = match open_as(path, options, libc::O_DIRECT) {
        Ok(file) => file,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(None),
        Err(error) => {
            return Err(Error::io(
                format!("cannot open the image {} directly", path.display()),
                error,
            ));
        }
    };
    lock(&file, 1, options, path)?;
    let alignment = os::direct_alignment(&file).unwrap_or(DirectAlignment {
        memory: PAGE,
        offset: PAGE,
    });
    Ok(Some((file, alignment)))
}

/// Locks `byte` of the file for whoever has it open here, as soon as nobody else holds it.
pub(super) fn lock(file: &File, byte: u8, options: Options, path: &Path) -> Result<()> {
    let deadline = Instant::now() + options.patience;
    loop {
        match os::lock(file, byte, !options.read_only) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    let text = format!("the image {} is in use by another daemon", path.display());
                    return Err(Error::new(Kind::Busy, text));
                }
                std::thread::sleep(LOCK_RETRY);
            }
            Err(error) => {
                return Err(Error::io(
                    format!("cannot lock the image {}", path.display()),
                    error,
                ));
            }
        }
    }
}
