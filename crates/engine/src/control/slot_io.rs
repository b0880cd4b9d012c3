//! Slot I/O between a governor and its datastore, on a thread of its own that may hang.
//!
//! The governor's thread ([`super::governor_thread`]) sends jobs and continues; the results return as messages. Before
//! the first read this thread claims a slot, and tries again with each read while it has none. Slot 0 is common to all
//! hosts: a change is applied to its current content, and a failed write is repeated later.
//!
//! # Always true
//! - each read and each write of this host's slot is answered by one message, in order
//! - a failure is logged once, and so is its end; the same for invalid records
//! - no change of slot 0 undoes an earlier one, provided the file system has locks

use super::slots::{Slot, SlotFile};
use super::{Change, GovernorMessage, Trouble};
use crate::sys::os;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use tidegate_core::governor::slot::{Common, SLOT, Unreadable};
use tidegate_core::units::Time;

/// A job of the slot thread.
pub(super) enum Job {
    /// Read all slots; answered by [`GovernorMessage::Read`].
    Read(SlotClaim),
    /// Write this host's slot; answered by [`GovernorMessage::Wrote`].
    Write(Box<[u8; SLOT]>),
    /// Apply this change to slot 0. The second value is the state here after it.
    Common(Change, Common),
    /// Another host uses our slot, or has our identity: claim a different slot, under this identity.
    Move([u8; 16]),
    /// Write this host's slot for the last time and release it; slots are still read.
    Rest(Box<[u8; SLOT]>),
    /// Write this host's slot for the last time, release it, and end. The sender is dropped then.
    Leave(Box<[u8; SLOT]>, Option<Sender<()>>),
}

/// Whether a host that reads the slots wants one of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotClaim {
    /// It claims one if it has none.
    Own,
    /// It only reads.
    None,
}

/// An operation on the slots that can fail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read,
    Write,
    Claim,
    Set,
}

struct SlotIo {
    name: String,
    slots: SlotFile,
    messages: Sender<GovernorMessage>,
    /// The slot that must not be claimed.
    excluded: Option<u16>,
    /// The operations that fail at present; the fault was reported when the first one failed.
    failing: Vec<Operation>,
    /// The pending change of slot 0.
    unwritten: Option<(Change, Common)>,
    /// The content of slot 0 with the highest generation seen.
    common: Option<Common>,
    /// Slots that were reported as invalid.
    foreign: Vec<u16>,
}

/// Starts the slot thread of a datastore.
///
/// # Errors
/// If there is no memory, or no thread.
pub(super) fn start(
    name: &str,
    directory: &Path,
    host: [u8; 16],
    messages: Sender<GovernorMessage>,
) -> io::Result<Sender<Job>> {
    let mut slot_io = SlotIo {
        name: name.into(),
        slots: SlotFile::new(directory, host)?,
        messages,
        excluded: None,
        failing: Vec::new(),
        unwritten: None,
        common: None,
        foreign: Vec::new(),
    };
    let (jobs, to_do) = channel();
    std::thread::Builder::new()
        .name(format!("slots-{name}"))
        .spawn(move || slot_io.run(&to_do))?;
    Ok(jobs)
}

impl SlotIo {
    fn run(&mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            let message = match job {
                Job::Read(claim) => GovernorMessage::Read(self.read(claim)),
                Job::Write(bytes) => {
                    let written = self.slots.write(&bytes);
                    GovernorMessage::Wrote(self.check(Operation::Write, written).is_some())
                }
                Job::Common(change, common) => {
                    let before = self.unwritten.take().unwrap_or_default();
                    self.unwritten = Some((before.0.and(change), common));
                    self.write_common();
                    continue;
                }
                Job::Move(host) => {
                    self.excluded = self.slots.own();
                    if self.slots.rename(host) {
                        tracing::warn!(
                            datastore = %self.name,
                            "another daemon has this host's identity: was its root copied? This one takes another until \
                             it ends; give it its own: stop it, remove state/host-id from its root, and start it again"
                        );
                    }
                    self.claim();
                    continue;
                }
                Job::Rest(bytes) => {
                    // No caller waits; the other hosts see our lease expire.
                    let _ = self.slots.write(&bytes);
                    self.slots.leave();
                    continue;
                }
                Job::Leave(bytes, done) => {
                    // A failure cannot be reported any more; the other hosts see our lease expire.
                    let _ = self.slots.write(&bytes);
                    self.slots.leave();
                    drop(done);
                    return;
                }
            };
            // The governor's thread may have ended; its last job is still to come.
            let _ = self.messages.send(message);
        }
    }

    fn read(&mut self, claim: SlotClaim) -> Option<Vec<Slot>> {
        // Our slot is known only for the current file; the next operations report its errors.
        let _ = self.slots.open();
        if claim == SlotClaim::None {
            // A claim is no longer wanted.
            self.note_success(Operation::Claim);
            self.note_success(Operation::Write);
        } else if self.slots.own().is_none() {
            self.claim();
        }
        self.write_common();
        let now = os::now();
        let read = self.slots.read(now);
        if let Ok(read) = &read {
            self.repair_common(read, now);
            self.log_foreign(now);
        }
        self.check(Operation::Read, read)
    }

    /// Writes the pending change to slot 0.
    fn write_common(&mut self) {
        let Some((change, ours)) = self.unwritten else {
            return;
        };
        let written = self.slots.change_common(|current| {
            let common = current.map_or(ours, |current| change.into_common(current, &ours));
            (current != Some(common)).then_some(common)
        });
        if let Some(common) = self.check(Operation::Set, written) {
            self.unwritten = None;
            self.common = common.or(self.common);
        }
    }

    /// Repairs slot 0: content that is damaged, truncated, or older than what was seen there is written again.
    fn repair_common(&mut self, read: &[Slot], now: Time) {
        let current = read.iter().find(|(slot, _)| *slot == 0);
        let current = current.map(|(_, bytes)| Common::decode(bytes));
        let generation = |common: Option<Common>| common.map_or(0, |common| common.generation);
        let known = generation(self.common);
        match current {
            Some(Ok(current)) if current.is_plausible() && current.generation >= known => {
                self.common = Some(current);
                return;
            }
            // It may be half written at the moment; and a newer program's record must not be changed.
            Some(Err(Unreadable::Newer(_))) | None => return,
            Some(Err(why)) if why != Unreadable::Empty && !self.slots.is_foreign(0, now) => return,
            Some(_) if known == 0 => return,
            Some(_) => {}
        }
        let common = self.common;
        let repaired = self.slots.change_common(|current| {
            let older = generation(current) < generation(common);
            common.filter(|_| older)
        });
        // A failed repair is repeated with the next read; failures of our own slot are reported anyway.
        if let Ok(Some(_)) = repaired {
            tracing::info!(datastore = %self.name, "the common settings of the datastore are written to slot 0 again");
        }
    }

    /// Logs slots with invalid records, once, and when all are valid again.
    fn log_foreign(&mut self, now: Time) {
        let foreign = self.slots.foreign(now);
        if let Some(more) = foreign.iter().find(|slot| !self.foreign.contains(slot)) {
            tracing::warn!(
                datastore = %self.name,
                slots = ?foreign,
                "slot {more} of .tidegate/hosts.v1 holds no host's word: something foreign, damaged, or of a newer \
                 version; it is passed over"
            );
        } else if foreign.is_empty() && !self.foreign.is_empty() {
            tracing::info!(datastore = %self.name, "every slot of .tidegate/hosts.v1 makes sense again");
        }
        self.foreign = foreign;
    }

    fn claim(&mut self) {
        let claimed = self.slots.claim(os::now(), self.excluded);
        if let Some(slot) = self.check(Operation::Claim, claimed) {
            let _ = self.messages.send(GovernorMessage::ClaimedSlot(slot));
        }
    }

    /// Reports the begin and the end of a fault, to the log and to the governor's thread. It ends when nothing fails
    /// any more.
    fn check<T>(&mut self, operation: Operation, result: io::Result<T>) -> Option<T> {
        let error = match result {
            Ok(value) => {
                self.note_success(operation);
                return Some(value);
            }
            Err(error) => error,
        };
        if self.failing.is_empty() {
            let operation = match operation {
                Operation::Read => "read",
                Operation::Write => "written",
                Operation::Claim => "claimed",
                Operation::Set => "set",
            };
            let trouble = Trouble {
                what: format!(
                    "the slots of hosts in .tidegate cannot be {operation}: {error}; disks are still served, but this \
                     host does not share the datastore fairly with others"
                ),
            };
            tracing::warn!(datastore = %self.name, "{}", trouble.what);
            let _ = self.messages.send(GovernorMessage::Trouble(Some(trouble)));
        }
        if !self.failing.contains(&operation) {
            self.failing.push(operation);
        }
        None
    }

    /// An operation succeeded or is no longer wanted.
    fn note_success(&mut self, operation: Operation) {
        let before = self.failing.len();
        self.failing.retain(|failing| *failing != operation);
        if self.failing.is_empty() && before > 0 {
            tracing::info!(datastore = %self.name, "the slots of hosts can be read and written again");
            let _ = self.messages.send(GovernorMessage::Trouble(None));
        }
    }
}
