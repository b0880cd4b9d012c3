//! Pauses a disk for a moment, so that others can copy its image as it is.
//!
//! A paused disk has no I/O in flight, and its requests wait. All that was answered before is in its images.

use super::{Disk, guard, wait};
use crate::error::{Error, Kind, Result};
use crate::thread::commands::{Change, Command, What};
use crate::thread::layouts::Relay;
use std::sync::mpsc::channel;
use std::time::Duration;

impl Disk {
    /// Holds its requests once those in flight have ended, until [`Disk::resume`]. The caller changes nothing else of the disk
    /// meanwhile.
    ///
    /// # Errors
    /// If the disk moves, is detached, is being changed, or I/O in flight does not end within `patience`. Its requests go on
    /// then.
    pub fn pause(&self, patience: Duration) -> Result<()> {
        let _alone = guard(&self.core.changing_images);
        if self.moves() {
            let text = "the disk is being moved: it cannot be paused until that has ended";
            return Err(Error::new(Kind::Busy, text));
        }
        let paused = self.relay(Relay::Pause, patience);
        if matches!(&paused, Err(error) if error.kind() == Kind::TimedOut) {
            // It may have paused since the time was up.
            self.resume()?;
        }
        paused
    }

    /// Lets the requests of a paused disk go on. A disk that is not paused stays as it is.
    ///
    /// # Errors
    /// If it is detached.
    pub fn resume(&self) -> Result<()> {
        let (reply, answer) = channel();
        let change = Change {
            disk: self.core.device.id,
            what: What::Resume,
            reply,
        };
        // Sent even if many commands wait: otherwise its requests would wait for ever.
        self.core
            .device
            .inbox()
            .send_always(Command::Change(Box::new(change)));
        wait(&answer, None)
    }
}
