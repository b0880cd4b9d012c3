//! Slot I/O of the hosts: through the array like any other I/O, or beside it.
//!
//! # Always true
//! - What an earlier start of a host's daemon asked for is not told to a later one.

use super::host::Held;
use super::{ERRAND, Happens, World};
use crate::control::Errand;
use crate::scenario::Coordination;
use tidegate_core::units::Span;
use tidegate_model::{IoKind, ModelIo};

/// How long an I/O on a file apart from the array takes.
const APART: Span = Span::from_micros(100);

impl World<'_> {
    pub(super) fn alarm(&mut self, host: usize) {
        self.hosts[host].alarm = None;
        if !self.hosts[host].up {
            return;
        }
        if self.hosts[host].paused {
            return self.hosts[host].held.push(Held::Alarm);
        }
        let mut errands = Vec::new();
        self.hosts[host].control.wake(self.now, &mut errands);
        self.run_errands(host, errands);
    }

    /// Gives a host's I/Os on the coordination file to the array, then lets its threads see what changed.
    pub(super) fn run_errands(&mut self, host: usize, errands: Vec<Errand>) {
        for errand in errands {
            let (kind, len) = match &errand {
                Errand::Read => (IoKind::Read, self.file.read_len()),
                Errand::Write(_) => (IoKind::Write, 4_096),
            };
            let id = ERRAND | self.errand;
            self.errand += 1;
            self.errands
                .insert(id, (host, self.hosts[host].incarnation, errand));
            if self.healed.is_none() {
                self.results.coordinated();
            }
            if self.scenario.datastore.coordination == Some(Coordination::Apart) {
                self.queue.put(self.now + APART, Happens::Errand(id));
                continue;
            }
            // The file lies behind the disks.
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

    pub(super) fn errand_done(&mut self, id: u64) {
        let Some((host, incarnation, errand)) = self.errands.remove(&id) else {
            return self.invariants.breach(self.now, "an errand ends twice");
        };
        if self.hosts[host].incarnation != incarnation || !self.hosts[host].up {
            return;
        }
        if self.hosts[host].paused {
            return self.hosts[host].held.push(Held::Errand(errand));
        }
        self.errand_noticed(host, errand);
    }

    pub(super) fn errand_noticed(&mut self, host: usize, errand: Errand) {
        let mut errands = Vec::new();
        match errand {
            Errand::Read => {
                let slots = match self.befalls_deaf(host) {
                    true => Err(()),
                    false => Ok(self.file.read(self.now)),
                };
                self.hosts[host]
                    .control
                    .heard(self.now, &slots, &mut errands);
            }
            Errand::Write(bytes) => {
                let fine = self.write_slot(host, bytes);
                self.hosts[host].control.published(self.now, fine);
            }
        }
        self.run_errands(host, errands);
    }
}
