//! Faults of a simulated disk's stores, and time: I/Os that fail by plan, stores that hang, deadlines that pass.

use super::{ENOUGH, Started, World};
use crate::crash::SECTOR;
use crate::crash::store::Store;
use std::collections::BTreeSet;
use tidegate_core::request::{Fault, Op};
use tidegate_core::shard::Event;

/// I/Os that are to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing {
    /// So many I/Os complete before.
    pub after: u64,
    /// How it fails.
    pub fault: Fault,
    /// Whether all further I/Os of that target fail, until the next start.
    pub lasts: bool,
}

impl World {
    /// Plans I/Os that fail.
    pub fn fail_later(&mut self, failing: Failing) {
        self.failing = Some(failing);
    }

    /// Whether this I/O was planned to fail.
    pub(super) fn planned(&mut self, bit: u32) -> Option<Fault> {
        let failing = self.failing.as_mut()?;
        if let Some(after) = failing.after.checked_sub(1) {
            failing.after = after;
            return None;
        }
        let Failing { fault, lasts, .. } = self.failing.take()?;
        if lasts {
            self.away |= bit;
            self.faulty |= bit;
        }
        Some(fault)
    }

    /// Whether the planned I/O has failed.
    pub fn has_failed(&self) -> bool {
        self.failing.is_none()
    }

    /// A target is at fault.
    pub(super) fn note_fault(&mut self, bit: u32) {
        self.faulty |= bit;
        self.failed_since_start = true;
    }

    /// The store completes nothing until it is ordered so again, or everything under way is to end.
    pub fn hang(&mut self, store: usize) {
        self.note(|| format!("store {store} hangs, or no longer"));
        self.hung ^= 1 << store;
    }

    /// Whether this I/O is with a store that hangs.
    pub fn hangs(&self, which: usize) -> bool {
        self.hung >> self.in_flight[which].target & 1 == 1
    }

    /// The bytes of a store as they are now.
    pub fn copy_of(&self, store: usize) -> Store {
        self.stores[store].clone()
    }

    /// An administrator puts an old copy of a store in its place while the disk is detached.
    pub fn put_back(&mut self, store: usize, copy: Store) {
        self.note(|| format!("store {store} is an old copy of itself"));
        self.stores[store] = copy;
    }

    /// Bits of a sector decay on a store.
    pub fn damage(&mut self, store: usize, sector: u64) {
        self.note(|| format!("sector {sector} of store {store} decays"));
        let mut bytes = [0; SECTOR];
        let offset = sector * SECTOR as u64;
        self.stores[store].read(offset, &mut bytes);
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        self.stores[store].write(offset, &bytes, true);
        self.note_fault(1 << store);
    }

    /// The administrator gives up a device of the cache that is away, from the next start on.
    pub fn do_without(&mut self, target: usize) {
        self.note(|| format!("target {target} is given up"));
        self.used.without = 1 << (target - usize::from(self.setup.shape.members()));
    }

    /// What an I/O is that a store has: its target, operation and offset.
    pub fn io(&self, which: usize) -> (usize, Op, u64) {
        let started = &self.in_flight[which];
        (started.target, started.op, started.offset)
    }

    /// Targets that are away come back, and nothing fails any more.
    pub fn return_all(&mut self) {
        self.note(|| "all targets are back".to_owned());
        self.failing = None;
        self.away = 0;
    }

    /// Everything ends that no store keeps by hanging, and time passes, so often.
    pub fn wait(&mut self, times: u32) {
        for _ in 0..times {
            for step in 0.. {
                self.bound(step);
                if self.breach.is_some() {
                    break;
                }
                let ready = (0..self.in_flight()).find(|which| !self.hangs(*which));
                if self.effects() > 0 {
                    self.perform();
                } else if let Some(ready) = ready {
                    self.complete(ready, Ok(()));
                } else {
                    break;
                }
            }
            if !self.pass_time() {
                break;
            }
        }
    }

    /// What goes on for more than enough steps never ends.
    pub(in crate::crash) fn bound(&mut self, step: u32) {
        if step > ENOUGH {
            self.fail("what is under way never ends".to_owned());
        }
    }

    /// Time passes until the shard's next deadline. Returns whether there was one. One target at most may be slow: it is
    /// at fault then.
    pub fn pass_time(&mut self) -> bool {
        let Some((at, _)) = self.shard.deadline() else {
            return false;
        };
        let current = |started: &&Started| started.retired.is_none();
        let slow = self.in_flight.iter().filter(current);
        let slow = slow.map(|started| started.target);
        let slow: BTreeSet<usize> = slow.collect();
        if slow.len() > 1 || !self.effects.is_empty() || self.detached {
            return false;
        }
        if let Some(slow) = slow.first() {
            self.note_fault(1 << slow);
        }
        self.note(|| format!("time passes until {at:?}"));
        self.now = self.now.max(at);
        self.handle(Event::Ticked);
        true
    }
}
