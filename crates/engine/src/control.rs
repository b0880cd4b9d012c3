//! I/O control of one datastore: a governor thread, and a scheduler on each I/O thread.
//!
//! [`Engine::control`](crate::Engine::control) makes one; disks are attached with it. The governor's thread
//! (`rounds`) gathers what the schedulers counted, ticks the core's governor, sends its orders, and has the slots on
//! the datastore read and written (`slot_io`, `slots`). No request passes here, and no I/O thread ever waits for it.
//!
//! # Always true
//! - nothing that the datastore does to the slot file reaches a disk: it only changes what the governor knows
//! - the schedulers leave the I/O threads after the last disk and the last handle
//! - nobody uses a datastore: its governor looks every few seconds, and its I/O threads sleep all the while
//!
//! # Picture
//! ```text
//!   I/O thread ── counts ──> rounds ── orders ──> I/O threads
//!                              │  ^
//!                         jobs v  │ words
//!                            slot_io <──> .tidegate/hosts.v1
//! ```

use crate::error::{Error, Kind, Result};
use crate::sys::os;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;
use tidegate_core::effect::ControlId;
use tidegate_core::governor::name::Name;
use tidegate_core::governor::slot::Common;
use tidegate_core::governor::{self, Admission, Governor, GovernorEvent, Threshold};
use tidegate_core::iocontrol::shared::{GroupsHandle, Shared};
use tidegate_core::iocontrol::{Bin, DiskKey, Mode, Orders, Policy, Scheduler, Usage};
use tidegate_core::request::DiskId;
use tidegate_core::units::Time;

mod accounts;
mod governor_thread;
mod slot_io;
mod slots;

pub(crate) use accounts::Accounts;

/// Events that are kept while nobody asks for them; older ones are counted and dropped.
const EVENTS: usize = 256;

/// How a datastore is to be controlled.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The datastore's name, for logs and threads.
    pub name: String,
    /// Where its slot file is to be; none where hosts share no directory: this host then decides by itself.
    pub directory: Option<PathBuf>,
    /// What people call this host, as the others are told.
    pub host_name: String,
    /// What the governor is told.
    pub governor: governor::Settings,
}

/// What is to change of what holds for a whole datastore; nothing: as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// How far control goes.
    pub mode: Option<Mode>,
    /// Where it engages.
    pub threshold: Option<Threshold>,
    /// Bytes of a request that count as one unit of limits and reservations: 4 KiB to 128 KiB.
    pub io_unit: Option<u32>,
}

impl Change {
    /// This change, and then `later`.
    fn and(self, later: Change) -> Change {
        Change {
            mode: later.mode.or(self.mode),
            threshold: later.threshold.or(self.threshold),
            io_unit: later.io_unit.or(self.io_unit),
        }
    }

    /// What holds for all after this change to `there`; `ours`: how everything stands here with it. Of a generation above
    /// both, unless they are the same but for this change.
    fn into_common(self, there: Common, ours: &Common) -> Common {
        let mut common = there;
        if self.mode.is_some() {
            common.mode = ours.mode;
        }
        if self.threshold.is_some() {
            common.threshold_mode = ours.threshold_mode;
            common.threshold = ours.threshold;
        }
        if self.io_unit.is_some() {
            common.io_unit = ours.io_unit;
        }
        common.generation = ours.generation;
        if there.generation >= ours.generation || common != *ours {
            common.generation = Common::next_generation(ours.generation, there.generation);
        }
        common
    }
}

/// How a disk is to be controlled.
#[derive(Clone, Debug)]
pub struct UnderControl {
    /// Its datastore's control.
    pub control: Control,
    /// The disk, as every host names it.
    pub key: DiskKey,
    /// What it may and shall get.
    pub policy: Policy,
}

/// The control of one datastore. Clones name the same; it ends with the last of them and its last disk.
#[derive(Clone)]
pub struct Control {
    core: Arc<ControlCore>,
}

struct ControlCore {
    id: ControlId,
    name: String,
    words: Sender<Word>,
    notes: Arc<Notes>,
    threads: Threads,
    numbers: Arc<Mutex<Vec<bool>>>,
    accounts: Arc<Accounts>,
}

/// What happened on a datastore.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// When, on the monotonic clock, and what.
    pub told: VecDeque<(Time, Event)>,
    /// How many were dropped because nobody asked in time.
    pub lost: u64,
}

/// One thing that happened on a datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The governor noticed or decided something.
    Governor(GovernorEvent),
    /// The slot file cannot be used.
    Trouble(Trouble),
    /// It can be used again.
    TroubleOver,
}

/// Why the slot file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// As a sentence for people.
    pub what: String,
}

/// What is known of a datastore's control.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the governor knows.
    pub governor: governor::Report,
    /// This host's slot, once it has one.
    pub slot: Option<u16>,
    /// Why the slot file cannot be used, if so.
    pub trouble: Option<Trouble>,
    /// What each disk of this host has used since it came.
    pub disks: Vec<Used>,
}

/// What a disk has used of its datastore since it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Which disk.
    pub disk: DiskId,
    /// The same, across hosts.
    pub key: DiskKey,
    /// I/Os that ended.
    pub ios: u64,
    /// Units that started.
    pub units: u64,
    /// Cost of what started.
    pub cost: u64,
    /// Bytes of what started.
    pub bytes: u64,
    /// Sum of the normalised latencies of what ended, in nanoseconds.
    pub latency_ns: u64,
    /// How long I/Os waited, summed over the I/Os, by [`Hold`](tidegate_core::iocontrol::Hold).
    pub held_ns: [u64; 5],
    /// Units left of its burst.
    pub burst_left: u64,
}

/// What is said to a governor's thread. Each kind is one of a bounded number: an answer to a question, a thread's word
/// that it is busy again, or the question of somebody who waits for the answer.
pub(crate) enum Word {
    /// An I/O thread has counted.
    Counted {
        thread: usize,
        usage: Vec<Usage>,
        bins: Vec<Bin>,
    },
    /// An I/O thread that had nothing to count has something again, or a policy has changed.
    Active,
    /// The slots; nothing when they could not be read.
    Read(Option<Vec<slots::Slot>>),
    /// Whether our slot was written.
    Wrote(bool),
    /// A slot is ours.
    Sits(u16),
    /// The slot file's trouble begins or ends.
    Trouble(Option<Trouble>),
    Set(Change, Sender<()>),
    Admit {
        key: Option<DiskKey>,
        policy: Box<Policy>,
        reply: Sender<Admission>,
    },
    Report {
        reply: Sender<Box<Report>>,
    },
    /// It ends; the sender is dropped once the others know.
    Stop(Option<Sender<()>>),
}

/// An I/O thread, as a datastore's control sends to it.
pub(crate) trait GovernedThread: Send + Sync {
    /// Has the thread carry this out for a control in its next turn. Never waits and is never refused.
    fn govern(&self, control: ControlId, govern: Govern);
}

/// The I/O threads of an engine, by their numbers.
type Threads = Arc<[Arc<dyn GovernedThread>]>;

/// What a control sends to an I/O thread.
pub(crate) enum Govern {
    /// It begins.
    Begin {
        scheduler: Box<Scheduler>,
        words: Sender<Word>,
    },
    /// It ends: no disk of it is left.
    End,
    /// Count, and tell with [`Word::Counted`].
    Count,
    /// The governor's orders.
    Steer(Orders),
}

impl Control {
    /// Begins to control a datastore.
    pub(crate) fn begin(
        id: ControlId,
        settings: Settings,
        threads: Threads,
        groups: &GroupsHandle,
        numbers: Arc<Mutex<Vec<bool>>>,
        accounts: Arc<Accounts>,
    ) -> Result<Control> {
        let (words, heard) = channel();
        let core = Arc::new(ControlCore {
            id,
            name: settings.name.clone(),
            words: words.clone(),
            notes: Arc::default(),
            threads: Arc::clone(&threads),
            numbers,
            accounts,
        });
        let shared = Shared::new(threads.len(), groups);
        for (number, thread) in threads.iter().enumerate() {
            let begin = Govern::Begin {
                scheduler: Box::new(Scheduler::new(
                    number,
                    shared.clone(),
                    settings.governor.io_unit,
                )),
                words: words.clone(),
            };
            thread.govern(id, begin);
        }
        let failed = |e| {
            let name = &settings.name;
            Error::io(
                format!("cannot start the I/O control of datastore {name}"),
                e,
            )
        };
        let slot_io = match &settings.directory {
            None => None,
            Some(directory) => {
                let host = settings.governor.host;
                let slot_io = slot_io::start(&settings.name, directory, host, words);
                Some(slot_io.map_err(failed)?)
            }
        };
        let mut governor = Governor::new(settings.governor);
        governor.call(Name::new(&settings.host_name));
        let rounds = governor_thread::GovernorThread::new(
            id,
            governor,
            threads,
            slot_io,
            Arc::clone(&core.notes),
        );
        rounds.start(&settings.name, heard).map_err(failed)?;
        Ok(Control { core })
    }

    /// Its number on the I/O threads.
    pub(crate) fn id(&self) -> ControlId {
        self.core.id
    }

    /// Whether it belongs to the engine whose accounts these are.
    pub(crate) fn belongs_to(&self, accounts: &Arc<Accounts>) -> bool {
        Arc::ptr_eq(&self.core.accounts, accounts)
    }

    /// What disks that are away had used of their limits.
    pub(crate) fn accounts(&self) -> &Accounts {
        &self.core.accounts
    }

    /// What the engine keeps of it.
    pub(crate) fn reins(&self) -> Reins {
        Reins(Arc::downgrade(&self.core))
    }

    /// The datastore's name.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Sets how far control goes and where it engages, for all hosts that share the datastore: they take it up with
    /// their next look at the slots.
    ///
    /// # Errors
    /// When the control has ended.
    pub fn set(&self, mode: Mode, threshold: Threshold) -> Result<()> {
        self.change(Change {
            mode: Some(mode),
            threshold: Some(threshold),
            io_unit: None,
        })
    }

    /// Sets some of what holds for all hosts that share the datastore; the rest stays as it was set last, on whichever
    /// host. Hence it waits until the slots were read once, or cannot be.
    ///
    /// # Errors
    /// When the control has ended.
    pub fn change(&self, change: Change) -> Result<()> {
        self.ask(|reply| Word::Set(change, reply))
    }

    /// Whether a reservation can be promised beside all others. `key`: the disk, if it is known; its old reservation does
    /// not count then.
    ///
    /// # Errors
    /// When the control has ended.
    pub fn admit(&self, key: Option<DiskKey>, policy: &Policy) -> Result<Admission> {
        let policy = Box::new(policy.clone());
        self.ask(|reply| Word::Admit { key, policy, reply })
    }

    /// What is known.
    ///
    /// # Errors
    /// When the control has ended.
    pub fn report(&self) -> Result<Report> {
        self.ask(|reply| Word::Report { reply })
            .map(|report| *report)
    }

    /// Takes out what happened since the last call, oldest first. What happened stays until it is taken, also when the
    /// governor has ended.
    pub fn events(&self) -> Events {
        std::mem::take(&mut *self.core.notes.events())
    }

    /// Wakes `waker` from now on whenever there is something to be taken with [`Control::events`], and when somebody
    /// uses the datastore again after nobody did.
    pub fn wake_on_events(&self, waker: Waker) {
        let notes = &self.core.notes;
        *notes.reader() = Some(waker);
        if !notes.events().told.is_empty() {
            notes.ring();
        }
    }

    /// Has the disks counted now: one has come, or one has gone. The governor of a datastore that nobody uses does not
    /// ask for them by itself.
    pub fn recount(&self) {
        // One that has ended counts no more.
        let _ = self.core.words.send(Word::Active);
    }

    /// Tells the other hosts that this one leaves: they divide its part at once, instead of after its lease. The governor
    /// ends; disks that are still attached are held by their limits only.
    ///
    /// # Errors
    /// When the datastore does not take the word within `patience`: the others then see the lease end.
    pub fn leave(&self, patience: Duration) -> Result<()> {
        let (done, ended) = channel::<()>();
        if self.core.words.send(Word::Stop(Some(done))).is_err() {
            return Ok(());
        }
        // Dropped when all is done.
        match ended.recv_timeout(patience) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                let text = format!(
                    "datastore {} did not take the word that this host leaves within {patience:?}: the other \
                     hosts will notice by themselves",
                    self.core.name
                );
                Err(Error::new(Kind::TimedOut, text))
            }
            _ => Ok(()),
        }
    }

    fn ask<T>(&self, word: impl FnOnce(Sender<T>) -> Word) -> Result<T> {
        let (reply, answer): (Sender<T>, Receiver<T>) = channel();
        let gone = || {
            let text = format!("the I/O control of datastore {} has ended", self.core.name);
            Error::new(Kind::Gone, text)
        };
        self.core.words.send(word(reply)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }
}

/// An engine's hold on a control that is not its own.
pub(crate) struct Reins(Weak<ControlCore>);

impl Reins {
    /// Whether it has ended.
    pub(crate) fn is_slack(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Ends its governor: the I/O threads stop.
    pub(crate) fn stop(&self) {
        if let Some(core) = self.0.upgrade() {
            let _ = core.words.send(Word::Stop(None));
        }
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Control({})", self.core.name)
    }
}

impl Drop for ControlCore {
    // May run on an I/O thread, with its last disk: nothing here waits.
    fn drop(&mut self) {
        let _ = self.words.send(Word::Stop(None));
        for thread in self.threads.iter() {
            thread.govern(self.id, Govern::End);
        }
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers[self.id.0 as usize] = false;
    }
}

/// Where a governor's thread notes what happened, for whoever takes it out.
#[derive(Default)]
struct Notes {
    events: Mutex<Events>,
    /// Whom to wake.
    reader: Mutex<Option<Waker>>,
}

impl Notes {
    fn add(&self, event: Event) {
        let mut events = self.events();
        if events.told.len() == EVENTS {
            events.told.pop_front();
            events.lost += 1;
        }
        events.told.push_back((os::now(), event));
        drop(events);
        self.ring();
    }

    fn ring(&self) {
        if let Some(reader) = &*self.reader() {
            reader.wake_by_ref();
        }
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reader(&self) -> MutexGuard<'_, Option<Waker>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
