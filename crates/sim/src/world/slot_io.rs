//! Slot I/O of the hosts: through the array like any other I/O, or on separate storage.
//!
//! # Always true
//! - A completion for an earlier start of a host's daemon is not delivered to a later one.

use super::host::Deferred;
use super::{Event, SLOT_IO, World};
use crate::control::SlotIo;
use crate::scenario::Coordination;
use tidegate_core::units::Span;
use tidegate_model::{IoKind, ModelIo};

/// The latency of an I/O on separate storage.
const APART: Span = Span::from_micros(100);

impl World<'_> {
    pub(super) fn alarm(&mut self, host: usize) {
        self.hosts[host].alarm = None;
        if !self.hosts[host].up {
            return;
        }
        if self.hosts[host].paused {
            return self.hosts[host].deferred.push(Deferred::Alarm);
        }
        let mut slot_ios = Vec::new();
        self.hosts[host].control.wake(self.now, &mut slot_ios);
        self.submit_slot_ios(host, slot_ios);
    }

    /// Submits a host's I/Os on the coordination file, then lets its threads react to the changes.
    pub(super) fn submit_slot_ios(&mut self, host: usize, slot_ios: Vec<SlotIo>) {
        for slot_io in slot_ios {
            let (kind, len) = match &slot_io {
                SlotIo::Read => (IoKind::Read, self.file.read_len()),
                SlotIo::Write(_) => (IoKind::Write, 4_096),
            };
            let id = SLOT_IO | self.slot_io;
            self.slot_io += 1;
            self.slot_ios
                .insert(id, (host, self.hosts[host].incarnation, slot_io));
            if self.repaired.is_none() {
                self.results.coordinated();
            }
            if self.scenario.datastore.coordination == Some(Coordination::Apart) {
                self.queue.put(self.now + APART, Event::SlotIo(id));
                continue;
            }
            // The file is after the disks.
            let offset: u64 = self.scenario.disks.iter().map(|disk| disk.size).sum();
            let offset = offset + 4_096 * host as u64;
            let io = ModelIo {
                id,
                kind,
                offset,
                len,
            };
            self.array.submit(self.now.as_nanos(), io);
        }
        for thread in 0..self.hosts[host].armed.len() {
            self.pump(host, thread);
        }
        self.arm(host);
    }

    pub(super) fn slot_io_completed(&mut self, id: u64) {
        let Some((host, incarnation, slot_io)) = self.slot_ios.remove(&id) else {
            return self
                .invariants
                .breach(self.now, "a slot I/O completes twice");
        };
        if self.hosts[host].incarnation != incarnation || !self.hosts[host].up {
            return;
        }
        if self.hosts[host].paused {
            return self.hosts[host].deferred.push(Deferred::SlotIo(slot_io));
        }
        self.slot_io_noticed(host, slot_io);
    }

    pub(super) fn slot_io_noticed(&mut self, host: usize, slot_io: SlotIo) {
        let mut slot_ios = Vec::new();
        match slot_io {
            SlotIo::Read => {
                let slots = match self.is_deaf(host) {
                    true => Err(()),
                    false => Ok(self.file.read(self.now)),
                };
                self.hosts[host]
                    .control
                    .slots_read(self.now, &slots, &mut slot_ios);
            }
            SlotIo::Write(bytes) => {
                let fine = self.write_slot(host, bytes);
                self.hosts[host].control.slot_written(self.now, fine);
            }
        }
        self.submit_slot_ios(host, slot_ios);
    }
}
