//! A disk that moves from one I/O thread to another, in the scheduler of its datastore.
//!
//! Both threads have a scheduler of that datastore, and these share its virtual time and its window. So the disk goes on where it
//! was: its queue, its tags, what it has used of its limits, its counts, and its cost in flight go with it.
//!
//! # Always true
//! - the cost in flight of a disk is counted at the thread that has the disk. While it is between two, it is counted nowhere, and
//!   others may start as much

use super::{Scheduler, part_of};
use crate::iocontrol::account::Account;
use crate::iocontrol::disk::{Disk, Queued};
use crate::request::DiskId;
use crate::units::Time;
use alloc::vec::Vec;

/// What a scheduler knows of a disk.
pub(crate) struct MovingDisk {
    disk: Disk,
    account: Account,
    /// Its queued I/Os for which nobody waits, in order, and the start tag of the first one.
    background: (Vec<Queued>, u64),
}

impl Scheduler {
    /// The disk leaves this thread, with its queued I/Os. The completions of those in flight are reported where it goes. Call
    /// `pick` afterwards. `None` if it is not here.
    pub(crate) fn take_disk(&mut self, now: Time, disk: DiskId) -> Option<MovingDisk> {
        let slot = disk.0;
        self.disks.get(slot as usize)?.as_ref()?;
        self.now = now;
        self.take_out(now, slot);
        let background = self.background.take(slot);
        let gone = self.disks[slot as usize].take()?;
        let vacant = Account::new(now, false);
        let account = core::mem::replace(&mut self.accounts[slot as usize], vacant);
        self.member.finish(account.in_flight());
        self.held -= gone.queue.len() + background.0.len();
        self.note_calm();
        self.publish();
        Some(MovingDisk {
            disk: gone,
            account,
            background,
        })
    }

    /// The disk comes to this thread. Call `pick` afterwards.
    ///
    /// # Panics
    /// If the disk is here already.
    pub(crate) fn put_disk(&mut self, now: Time, disk: DiskId, moving: MovingDisk) {
        let MovingDisk {
            disk: mut come,
            account,
            background: (background, tag),
        } = moving;
        let slot = disk.0;
        self.add(now, disk, come.key, &come.policy);
        self.now = now;
        come.shrink(self.theta());
        come.part = part_of(&self.orders, come.key, !self.passing);
        self.held += come.queue.len() + background.len();
        self.member.start(account.in_flight());
        if come.overdue {
            self.overdue.push_back(slot);
        }
        self.accounts[slot as usize] = account;
        self.disks[slot as usize] = Some(come);
        self.background.put(slot, background, tag);
        self.place(now, slot);
        self.note_calm();
        self.publish();
    }
}
