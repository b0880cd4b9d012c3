//! Carries slots between a governor and its datastore, on a thread of its own: a datastore that hangs hangs this one.
//!
//! The governor's thread ([`super::rounds`]) sends jobs and goes on; what came of them comes back as a word to it. Before
//! the first read the carrier claims a slot, and tries again with each read while it has none.
//!
//! # Always true
//! - each job but the last is answered by one word, in order
//! - a failure is told to the log once, and so is its end

use super::slots::{Slot, SlotFile};
use super::{Trouble, Word};
use crate::sys::os;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use tidegate_core::governor::slot::{Common, SLOT};

/// What a carrier is to do.
pub(super) enum Job {
    /// Read all slots; answered by [`Word::Read`].
    Read(Seat),
    /// Write our slot; answered by [`Word::Wrote`].
    Write(Box<[u8; SLOT]>),
    /// Write slot 0.
    Common(Box<[u8; SLOT]>),
    /// Another sits in our slot: take a different one.
    Move,
    /// Write our slot for the last time and give it back; slots are still read.
    Rest(Box<[u8; SLOT]>),
    /// Write our slot for the last time, give it back, and end. The sender is dropped then.
    Leave(Box<[u8; SLOT]>, Option<Sender<()>>),
}

/// Whether a host that reads the slots wants one of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Seat {
    /// If it has none, it claims one.
    Own,
    /// It only reads.
    None,
}

struct Carrier {
    name: String,
    slots: SlotFile,
    words: Sender<Word>,
    /// Where we are not to sit.
    avoid: Option<u16>,
    trouble: Option<String>,
}

/// Starts the carrier of a datastore.
///
/// # Errors
/// When there is no memory, or no thread.
pub(super) fn start(
    name: &str,
    directory: &Path,
    host: [u8; 16],
    words: Sender<Word>,
) -> io::Result<Sender<Job>> {
    let mut carrier = Carrier {
        name: name.into(),
        slots: SlotFile::new(directory, host)?,
        words,
        avoid: None,
        trouble: None,
    };
    let (jobs, to_do) = channel();
    std::thread::Builder::new()
        .name(format!("slots-{name}"))
        .spawn(move || carrier.run(&to_do))?;
    Ok(jobs)
}

impl Carrier {
    fn run(&mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            let word = match job {
                Job::Read(seat) => Word::Read(self.read(seat)),
                Job::Write(bytes) => {
                    let written = self.slots.write(&bytes);
                    Word::Wrote(self.judge("written", written).is_some())
                }
                Job::Common(bytes) => {
                    let bytes = self.newer(*bytes);
                    let written = self.slots.write_common(&bytes);
                    self.judge("written", written);
                    continue;
                }
                Job::Move => {
                    self.avoid = self.slots.own();
                    self.claim();
                    continue;
                }
                Job::Rest(bytes) => {
                    // Nobody waits for it; the others see our lease end.
                    let _ = self.slots.write(&bytes);
                    self.slots.leave();
                    continue;
                }
                Job::Leave(bytes, done) => {
                    // Nobody is left to hear of a failure; the others see our lease end.
                    let _ = self.slots.write(&bytes);
                    self.slots.leave();
                    drop(done);
                    return;
                }
            };
            // The governor's thread may have ended meanwhile: its last job is still to come.
            let _ = self.words.send(word);
        }
    }

    fn read(&mut self, seat: Seat) -> Option<Vec<Slot>> {
        if seat == Seat::Own && self.slots.own().is_none() {
            self.claim();
        }
        let read = self.slots.read(os::now());
        let claimed = seat == Seat::None || self.slots.own().is_some();
        match read {
            // Without a slot there is trouble still, and it has been told.
            Ok(read) if !claimed => Some(read),
            read => self.judge("read", read),
        }
    }

    /// What is to stand in slot 0, of a generation above the one that stands there: this host may not have seen that yet.
    fn newer(&mut self, bytes: [u8; SLOT]) -> [u8; SLOT] {
        let there = self.slots.read_common().ok();
        let there = there.and_then(|there| Common::decode(&there).ok());
        match (there, Common::decode(&bytes)) {
            (Some(there), Ok(ours)) if there.generation >= ours.generation => Common {
                generation: there.generation.saturating_add(1),
                ..ours
            }
            .encode(),
            _ => bytes,
        }
    }

    fn claim(&mut self) {
        let claimed = self.slots.claim(os::now(), self.avoid);
        if let Some(slot) = self.judge("claimed", claimed) {
            let _ = self.words.send(Word::Sits(slot));
        }
    }

    /// Tells the log and the governor's thread when trouble begins and ends.
    fn judge<T>(&mut self, act: &str, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                if self.trouble.take().is_some() {
                    tracing::info!(datastore = %self.name, "the slots of hosts can be read and written again");
                    let _ = self.words.send(Word::Trouble(None));
                }
                Some(value)
            }
            Err(error) => {
                if self.trouble.is_none() {
                    let trouble = Trouble {
                        what: format!(
                            "the slots of hosts in .tidegate cannot be {act}: {error}; disks are served all the \
                             same, but this host does not agree with others on who gets what"
                        ),
                    };
                    tracing::warn!(datastore = %self.name, "{}", trouble.what);
                    self.trouble = Some(trouble.what.clone());
                    let _ = self.words.send(Word::Trouble(Some(trouble)));
                }
                None
            }
        }
    }
}
