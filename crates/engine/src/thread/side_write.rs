//! Appends a filter's records to its side file: a task for the blocking worker.

use crate::blocking::Task;
use crate::datastore::fault;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_core::filter::FilterKey;
use tidegate_core::request::{DiskId, Outcome};
use tidegate_core::shard::Event;

/// Bytes to append, and the outcome.
pub(super) struct SideWrite {
    pub(super) file: Arc<OwnedFd>,
    pub(super) filter: FilterKey,
    pub(super) buffer: Vec<u8>,
    pub(super) outcome: Outcome,
}

impl SideWrite {
    fn append(&self) -> io::Result<()> {
        File::from(self.file.try_clone()?).write_all(&self.buffer)
    }

    /// The event for the shard after it has run.
    pub(super) fn into_event(self, disk: DiskId) -> Event {
        Event::SideWritten {
            disk,
            filter: self.filter,
            buffer: self.buffer,
            outcome: self.outcome,
        }
    }
}

impl Task for SideWrite {
    fn run(&mut self) {
        if let Err(error) = self.append() {
            self.fail(error);
        }
    }

    fn fail(&mut self, error: io::Error) {
        self.outcome = Err(fault(error.raw_os_error().unwrap_or(libc::EIO)));
    }
}
