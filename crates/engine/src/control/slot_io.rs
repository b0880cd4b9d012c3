//! Slot I/O between a governor and its datastore, on a thread of its own that may hang.
//!
//! The governor's thread ([`super::governor_thread`]) sends jobs and goes on; what came of them comes back as a word to it. Before
//! the first read the slot_io claims a slot, and tries again with each read while it has none. Slot 0 is everybody's: a
//! change is put into what stands there, whoever wrote that, and one that could not be written is written later.
//!
//! # Always true
//! - each read and each write of our slot is answered by one word, in order
//! - a failure is told to the log once, and so is its end; the same for what is no host's record
//! - no change of slot 0 undoes another that was made before it, as far as the file system has locks

use super::slots::{Slot, SlotFile};
use super::{Change, Trouble, Word};
use crate::sys::os;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use tidegate_core::governor::slot::{Common, SLOT, Unreadable};
use tidegate_core::units::Time;

/// What a slot_io is to do.
pub(super) enum Job {
    /// Read all slots; answered by [`Word::Read`].
    Read(Seat),
    /// Write our slot; answered by [`Word::Wrote`].
    Write(Box<[u8; SLOT]>),
    /// Put this change into slot 0. Beside it, how everything stands here with it.
    Common(Change, Common),
    /// Another sits in our slot, or has our name: take a different slot, under this name.
    Move([u8; 16]),
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

/// What can fail of the slots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Act {
    Read,
    Write,
    Claim,
    Set,
}

struct SlotIo {
    name: String,
    slots: SlotFile,
    words: Sender<Word>,
    /// Where we are not to sit.
    avoid: Option<u16>,
    /// What cannot be done, since it was told that something cannot.
    failing: Vec<Act>,
    /// What is still to be put into slot 0.
    unwritten: Option<(Change, Common)>,
    /// What stood in slot 0, the highest generation of all that were seen there.
    common: Option<Common>,
    /// Slots of which it was told that they hold nothing of ours.
    foreign: Vec<u16>,
}

/// Starts the slot_io of a datastore.
///
/// # Errors
/// When there is no memory, or no thread.
pub(super) fn start(
    name: &str,
    directory: &Path,
    host: [u8; 16],
    words: Sender<Word>,
) -> io::Result<Sender<Job>> {
    let mut slot_io = SlotIo {
        name: name.into(),
        slots: SlotFile::new(directory, host)?,
        words,
        avoid: None,
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
            let word = match job {
                Job::Read(seat) => Word::Read(self.read(seat)),
                Job::Write(bytes) => {
                    let written = self.slots.write(&bytes);
                    Word::Wrote(self.judge(Act::Write, written).is_some())
                }
                Job::Common(change, common) => {
                    let before = self.unwritten.take().unwrap_or_default();
                    self.unwritten = Some((before.0.and(change), common));
                    self.settle();
                    continue;
                }
                Job::Move(host) => {
                    self.avoid = self.slots.own();
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
        // Which of the slots is ours is known of the file that is there now; what is wrong with it the next acts tell.
        let _ = self.slots.open();
        if seat == Seat::None {
            // Nobody wants to any more.
            self.overcome(Act::Claim);
            self.overcome(Act::Write);
        } else if self.slots.own().is_none() {
            self.claim();
        }
        self.settle();
        let now = os::now();
        let read = self.slots.read(now);
        if let Ok(read) = &read {
            self.mend(read, now);
            self.remark(now);
        }
        self.judge(Act::Read, read)
    }

    /// Puts into slot 0 what is to be put there.
    fn settle(&mut self) {
        let Some((change, ours)) = self.unwritten else {
            return;
        };
        let settled = self.slots.change_common(|there| {
            let common = there.map_or(ours, |there| change.into_common(there, &ours));
            (there != Some(common)).then_some(common)
        });
        if let Some(common) = self.judge(Act::Set, settled) {
            self.unwritten = None;
            self.common = common.or(self.common);
        }
    }

    /// Keeps what holds for all in slot 0: what was damaged or cut off, or is older than what was seen there, is written
    /// again.
    fn mend(&mut self, read: &[Slot], now: Time) {
        let there = read.iter().find(|(slot, _)| *slot == 0);
        let there = there.map(|(_, bytes)| Common::decode(bytes));
        let generation = |common: Option<Common>| common.map_or(0, |common| common.generation);
        let known = generation(self.common);
        match there {
            Some(Ok(there)) if there.is_plausible() && there.generation >= known => {
                self.common = Some(there);
                return;
            }
            // It may be half written just now; and what a newer program wrote is its business.
            Some(Err(Unreadable::Newer(_))) | None => return,
            Some(Err(why)) if why != Unreadable::Empty && !self.slots.is_foreign(0, now) => return,
            Some(_) if known == 0 => return,
            Some(_) => {}
        }
        let common = self.common;
        let mended = self.slots.change_common(|there| {
            let older = generation(there) < generation(common);
            common.filter(|_| older)
        });
        // One that cannot be written is tried again with the next read; whether our own slot can be is told anyhow.
        if let Ok(Some(_)) = mended {
            tracing::info!(datastore = %self.name, "what is set for the whole datastore is written to its slot again");
        }
    }

    /// Tells the log of slots that hold nothing of ours, once, and of their end.
    fn remark(&mut self, now: Time) {
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
        let claimed = self.slots.claim(os::now(), self.avoid);
        if let Some(slot) = self.judge(Act::Claim, claimed) {
            let _ = self.words.send(Word::Sits(slot));
        }
    }

    /// Tells the log and the governor's thread when trouble begins and ends: it ends when nothing fails any more.
    fn judge<T>(&mut self, act: Act, result: io::Result<T>) -> Option<T> {
        let error = match result {
            Ok(value) => {
                self.overcome(act);
                return Some(value);
            }
            Err(error) => error,
        };
        if self.failing.is_empty() {
            let act = match act {
                Act::Read => "read",
                Act::Write => "written",
                Act::Claim => "claimed",
                Act::Set => "set",
            };
            let trouble = Trouble {
                what: format!(
                    "the slots of hosts in .tidegate cannot be {act}: {error}; disks are served all the same, but this \
                     host does not agree with others on who gets what"
                ),
            };
            tracing::warn!(datastore = %self.name, "{}", trouble.what);
            let _ = self.words.send(Word::Trouble(Some(trouble)));
        }
        if !self.failing.contains(&act) {
            self.failing.push(act);
        }
        None
    }

    /// This can be done.
    fn overcome(&mut self, act: Act) {
        let before = self.failing.len();
        self.failing.retain(|failing| *failing != act);
        if self.failing.is_empty() && before > 0 {
            tracing::info!(datastore = %self.name, "the slots of hosts can be read and written again");
            let _ = self.words.send(Word::Trouble(None));
        }
    }
}
