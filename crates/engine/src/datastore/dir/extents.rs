//! Queries which parts of an image hold data and which are holes: a task for the blocking worker.

use crate::blocking::Task;
use crate::datastore::fault;
use crate::sys::os::{seek_data, seek_hole};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use tidegate_core::request::{Extent, ExtentKind, Outcome};

/// A query for the extents of a file.
pub(super) struct ExtentQuery {
    /// The slot of the job that waits for it.
    pub(super) slot: u32,
    /// The file to look at, shared with the image.
    pub(super) file: Arc<OwnedFd>,
    /// The range, in bytes.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Most extents to return.
    pub(super) most: usize,
    /// The answer.
    pub(super) extents: Vec<Extent>,
    /// The file ends before the range does, so the answer is not reliable.
    pub(super) ends_early: bool,
    pub(super) outcome: Outcome,
}

impl Task for ExtentQuery {
    fn run(&mut self) {
        if let Err(error) = self.walk() {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: io::Error) {
        self.outcome = Err(fault(error.raw_os_error().unwrap_or(libc::EIO)));
    }
}

impl ExtentQuery {
    /// Walks the holes of the range. Where the file system cannot find holes, all counts as data.
    fn walk(&mut self) -> io::Result<()> {
        let fd = self.file.as_raw_fd();
        let end = self.offset + self.len;
        let mut at = self.offset;
        while at < end && self.extents.len() < self.most {
            let (next, kind) = match seek_data(fd, at) {
                Ok(Some(data)) if data == at => {
                    (seek_hole(fd, at)?.unwrap_or(end), ExtentKind::Data)
                }
                Ok(Some(data)) => (data, ExtentKind::Hole),
                Ok(None) => (end, ExtentKind::Hole),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (end, ExtentKind::Data),
                Err(error) => return Err(error),
            };
            let next = next.clamp(at + 1, end);
            self.extents.push(Extent {
                len: next - at,
                kind,
            });
            at = next;
        }
        // The range beyond the end of a file was reported as a hole. Check this last: the file may be truncated
        // meanwhile.
        self.ends_early = self.len > 0 && !has_byte(fd, end - 1)?;
        Ok(())
    }
}

/// Whether all of a file is a hole, which reads as zeroes, as far as the file system tells. A block device is none.
pub(super) fn is_hole(fd: RawFd) -> bool {
    matches!(seek_data(fd, 0), Ok(None))
}

/// Whether a file or a block device has this byte, as far as it can tell: seeking at or beyond its end fails.
fn has_byte(fd: RawFd, at: u64) -> io::Result<bool> {
    match seek_hole(fd, at) {
        Ok(found) => Ok(found.is_some()),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(true),
        Err(error) => Err(error),
    }
}
