//! A disk moves from one I/O thread to another, with everything that is under way.
//!
//! The shard that it leaves gives it out whole: its gate with what waits there, its filters and layouts, its table of I/Os, what
//! its datastores' schedulers know of it, and the buffers that its layouts have. So every [`IoId`](crate::request::IoId) is valid
//! where the disk goes. Its I/Os stay in flight meanwhile: a datastore that answers nobody delays no move. Whoever gets a completion
//! for the disk afterwards passes it to the shard that has the disk.
//!
//! # Always true
//! - a disk is in one shard, or on its way; there it has no event
//! - every I/O that was in flight, queued or delayed goes on where the disk goes, in the same order
//!
//! # Picture
//! ```text
//!   shard A: flow, effects performed ──take_out──> Moving ──take_in──> shard B: queued I/Os start, deadlines
//!      └───────────── late completions are passed on ────────────────────^
//! ```

use super::{Disk, Shard};
use crate::effect::{ControlId, Effect};
use crate::layout::Held;
use crate::qos::{DiskQos, MovingQos};
use crate::request::{Data, DiskId};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A disk between two shards.
pub struct Moving {
    disk: Disk,
    qos: MovingQos,
    held: Held,
}

impl Moving {
    /// I/Os under way, of guests, filters and layouts.
    pub fn in_flight(&self) -> usize {
        self.disk.ios.len()
    }

    /// Whether it has layouts, which need an arena.
    pub fn has_layout(&self) -> bool {
        self.disk.stack.has_layout()
    }

    /// Buffers of the arena that its layouts have.
    pub fn buffers(&self) -> &[Data] {
        self.held.buffers()
    }
}

impl Shard {
    /// Gives a disk out. The effects in `out` are performed before another shard gets it; I/Os of other disks may be among them.
    /// `None` if there is no such disk.
    pub fn take_out(
        &mut self,
        now: Time,
        id: DiskId,
        out: &mut Vec<Effect>,
    ) -> Option<Box<Moving>> {
        self.flow(now, out);
        let controls = self.all_controls(id);
        let mut disk = self.disks.get_mut(id.0 as usize)?.take()?;
        let qos = core::mem::replace(&mut disk.qos, DiskQos::none());
        let qos = qos.take(&mut self.schedulers, now, id);
        let held = self.arena.take_out(id);
        self.note_timed();
        self.pick_all(now, &controls, out);
        Some(Box::new(Moving { disk, qos, held }))
    }

    /// Takes a disk in. Returns buffers of the arena for the shard that it has left ([`Shard::give_arena`]), as many as its layouts
    /// have brought, or as many as are free.
    ///
    /// # Panics
    /// If the disk is here, or a control of it is not.
    pub fn take_in(
        &mut self,
        now: Time,
        id: DiskId,
        moving: Box<Moving>,
        out: &mut Vec<Effect>,
    ) -> Vec<Data> {
        let Moving {
            mut disk,
            qos,
            held,
        } = *moving;
        self.flow(now, out);
        let place = id.0 as usize;
        if self.disks.len() <= place {
            self.disks.resize_with(place + 1, || None);
        }
        assert!(self.disks[place].is_none(), "a disk is in one shard");
        disk.qos = qos.put(&mut self.schedulers, now, id);
        self.disks[place] = Some(disk);
        let others = self.arena.take_in(id, &held);
        self.note_timed();
        let controls = self.all_controls(id);
        for control in &controls {
            self.update_sampling(*control);
        }
        self.pick_members(now, id, out);
        self.pick_all(now, &controls, out);
        if self.arena.is_waited_for() {
            self.feed(now, out);
        }
        others
    }

    fn all_controls(&self, id: DiskId) -> Vec<ControlId> {
        let here = self.disks.get(id.0 as usize).is_some_and(Option::is_some);
        match here {
            true => self.controls(id).collect(),
            false => Vec::new(),
        }
    }

    fn pick_all(&mut self, now: Time, controls: &[ControlId], out: &mut Vec<Effect>) {
        for control in controls {
            self.pick(now, *control, out);
        }
    }
}
