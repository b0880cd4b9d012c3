//! I/O control of one datastore: a governor thread, and a scheduler on each I/O thread.
//!
//! [`Engine::control`](crate::Engine::control) creates one; disks are attached with it. The governor's thread
//! (`governor_thread`) collects the schedulers' counts, ticks the core's governor, and sends its orders. The slots on
//! the datastore are read and written by `slot_io` and `slots`. No request passes through here, and no I/O thread ever
//! waits for it.
//!
//! # Always true
//! - a fault of the slot file never affects a disk: it only changes what the governor knows
//! - the schedulers leave the I/O threads after the last disk and the last handle
//! - while a datastore is unused, its governor runs every few seconds, and its I/O threads sleep
//!
//! # Picture
//! ```text
//!   I/O thread ── counts ──> governor ── orders ──> I/O threads
//!                              │  ^
//!                         jobs v  │ messages
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
mod disk_control;
mod governor_thread;
mod slot_io;
mod slots;

pub(crate) use accounts::Accounts;
pub(crate) use disk_control::DiskControl;

/// Events stored until they are taken; older ones are counted and dropped.
const EVENTS: usize = 256;

/// The settings of a datastore's control.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The datastore's name, for logs and threads.
    pub name: String,
    /// Directory for its slot file; none if hosts share no directory: this host then decides by itself.
    pub directory: Option<PathBuf>,
    /// The display name of this host, for other hosts.
    pub host_name: String,
    /// The governor's settings.
    pub governor: governor::Settings,
}

/// A change of settings that hold for a whole datastore; `None` leaves a setting unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// How much control does.
    pub mode: Option<Mode>,
    /// The congestion threshold.
    pub threshold: Option<Threshold>,
    /// Bytes of a request that count as one unit of limits and reservations: 4 KiB to 128 KiB.
    pub io_unit: Option<u32>,
}

impl Change {
    /// This change followed by `later`.
    fn and(self, later: Change) -> Change {
        Change {
            mode: later.mode.or(self.mode),
            threshold: later.threshold.or(self.threshold),
            io_unit: later.io_unit.or(self.io_unit),
        }
    }

    /// The common settings after this change to `current`; `ours` are the settings here including it. The generation is
    /// above both, unless they are equal but for this change.
    fn into_common(self, current: Common, ours: &Common) -> Common {
        let mut common = current;
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
        if current.generation >= ours.generation || common != *ours {
            common.generation = Common::next_generation(ours.generation, current.generation);
        }
        common
    }
}

/// A disk's place under control.
#[derive(Clone, Debug)]
pub struct UnderControl {
    /// Its datastore's control.
    pub control: Control,
    /// The disk's key on every host.
    pub key: DiskKey,
    /// Its shares, reservation and limits.
    pub policy: Policy,
}

/// The control of one datastore. Clones share it; it ends with the last of them and its last disk.
#[derive(Clone)]
pub struct Control {
    core: Arc<ControlCore>,
}

struct ControlCore {
    id: ControlId,
    name: String,
    messages: Sender<GovernorMessage>,
    notes: Arc<Notes>,
    threads: Threads,
    numbers: Arc<Mutex<Vec<bool>>>,
    accounts: Arc<Accounts>,
}

/// Events on a datastore.
#[derive(Clone, Debug, Default)]
pub struct Events {
    /// Time, on the monotonic clock, and event.
    pub told: VecDeque<(Time, Event)>,
    /// How many were dropped because they were not taken in time.
    pub lost: u64,
}

/// An event on a datastore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The governor detected or decided something.
    Governor(GovernorEvent),
    /// The slot file cannot be used.
    Trouble(Trouble),
    /// It can be used again.
    TroubleOver,
}

/// Why the slot file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// A sentence for people.
    pub what: String,
}

/// The state of a datastore's control.
#[derive(Clone, Debug)]
pub struct Report {
    /// The governor's state.
    pub governor: governor::Report,
    /// This host's slot, once it has one.
    pub slot: Option<u16>,
    /// Why the slot file cannot be used, if it cannot.
    pub trouble: Option<Trouble>,
    /// The usage of each disk of this host since its attach.
    pub disks: Vec<Used>,
}

/// The usage of a disk on its datastore since its attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The disk's number on this host.
    pub disk: DiskId,
    /// The disk's key across hosts.
    pub key: DiskKey,
    /// Completed I/Os.
    pub ios: u64,
    /// Units of started I/Os.
    pub units: u64,
    /// Cost of started I/Os.
    pub cost: u64,
    /// Bytes of started I/Os.
    pub bytes: u64,
    /// Sum of the normalised latencies of completed I/Os, in nanoseconds.
    pub latency_ns: u64,
    /// Time that I/Os waited, summed over I/Os, by [`Hold`](tidegate_core::iocontrol::Hold).
    pub held_ns: [u64; 5],
    /// Units left of its burst.
    pub burst_left: u64,
}

/// A message to a governor's thread. The number of pending ones is bounded: a reply, a thread's notice that it is
/// active again, or a query whose sender waits.
pub(crate) enum GovernorMessage {
    /// The counts of an I/O thread.
    Counted {
        thread: usize,
        usage: Vec<Usage>,
        bins: Vec<Bin>,
    },
    /// An idle I/O thread is active again, or a policy has changed.
    Active,
    /// The slots; `None` if they could not be read.
    Read(Option<Vec<slots::Slot>>),
    /// Whether this host's slot was written.
    Wrote(bool),
    /// This host has claimed a slot.
    ClaimedSlot(u16),
    /// A fault of the slot file begins or ends.
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
    /// Ends it; the sender is dropped once the other hosts know.
    Stop(Option<Sender<()>>),
}

/// An I/O thread, as seen by a datastore's control.
pub(crate) trait GovernedThread: Send + Sync {
    /// Has the thread handle this for a control in its next turn. Never blocks and is never refused.
    fn govern(&self, control: ControlId, govern: Govern);
}

/// The I/O threads of an engine, by number.
type Threads = Arc<[Arc<dyn GovernedThread>]>;

/// A message from a control to an I/O thread.
pub(crate) enum Govern {
    /// Control begins.
    Begin {
        scheduler: Box<Scheduler>,
        messages: Sender<GovernorMessage>,
    },
    /// Control ends: no disk of it is left.
    End,
    /// Send the counts with [`GovernorMessage::Counted`].
    Count,
    /// Apply the governor's orders.
    Steer(Orders),
}

impl Control {
    /// Starts to control a datastore.
    pub(crate) fn begin(
        id: ControlId,
        settings: Settings,
        threads: Threads,
        groups: &GroupsHandle,
        numbers: Arc<Mutex<Vec<bool>>>,
        accounts: Arc<Accounts>,
    ) -> Result<Control> {
        let (messages, received) = channel();
        let core = Arc::new(ControlCore {
            id,
            name: settings.name.clone(),
            messages: messages.clone(),
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
                messages: messages.clone(),
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
                let slot_io = slot_io::start(&settings.name, directory, host, messages);
                Some(slot_io.map_err(failed)?)
            }
        };
        let mut governor = Governor::new(settings.governor);
        governor.call(Name::new(&settings.host_name));
        let governor_thread = governor_thread::GovernorThread::new(
            id,
            governor,
            threads,
            slot_io,
            Arc::clone(&core.notes),
        );
        governor_thread
            .start(&settings.name, received)
            .map_err(failed)?;
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

    /// Used-up limits of detached disks.
    pub(crate) fn accounts(&self) -> &Accounts {
        &self.core.accounts
    }

    /// The engine's weak reference to it.
    pub(crate) fn downgrade(&self) -> WeakControl {
        WeakControl(Arc::downgrade(&self.core))
    }

    /// The datastore's name.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Sets the mode and the congestion threshold, for all hosts that share the datastore. They apply it after their
    /// next read of the slots.
    ///
    /// # Errors
    /// If the control has ended.
    pub fn set(&self, mode: Mode, threshold: Threshold) -> Result<()> {
        self.change(Change {
            mode: Some(mode),
            threshold: Some(threshold),
            io_unit: None,
        })
    }

    /// Changes settings for all hosts that share the datastore. The others stay as any host set them last. So this
    /// waits until the slots were read once, or cannot be.
    ///
    /// # Errors
    /// If the control has ended.
    pub fn change(&self, change: Change) -> Result<()> {
        self.query(|reply| GovernorMessage::Set(change, reply))
    }

    /// Whether a reservation can be guaranteed in addition to all others. If `key` names an existing disk, its old
    /// reservation does not count.
    ///
    /// # Errors
    /// If the control has ended.
    pub fn admit(&self, key: Option<DiskKey>, policy: &Policy) -> Result<Admission> {
        let policy = Box::new(policy.clone());
        self.query(|reply| GovernorMessage::Admit { key, policy, reply })
    }

    /// The state of the control.
    ///
    /// # Errors
    /// If the control has ended.
    pub fn report(&self) -> Result<Report> {
        self.query(|reply| GovernorMessage::Report { reply })
            .map(|report| *report)
    }

    /// Takes the events since the last call, oldest first. Events are stored until they are taken, even after the
    /// governor has ended.
    pub fn events(&self) -> Events {
        std::mem::take(&mut *self.core.notes.events())
    }

    /// From now on wakes `waker` for each new event of [`Control::events`], and when an unused datastore is used again.
    pub fn wake_on_events(&self, waker: Waker) {
        let notes = &self.core.notes;
        *notes.reader() = Some(waker);
        if !notes.events().told.is_empty() {
            notes.ring();
        }
    }

    /// Collects the disks' counts now, after an attach or a detach. The governor of an unused datastore does not do so
    /// by itself.
    pub fn recount(&self) {
        // A governor that has ended counts no more.
        let _ = self.core.messages.send(GovernorMessage::Active);
    }

    /// Informs the other hosts that this one leaves: they redistribute its part at once, instead of after its lease.
    /// The governor ends; limits continue to hold for disks that are still attached.
    ///
    /// # Errors
    /// If the datastore does not accept it within `patience`: the others then see the lease expire.
    pub fn leave(&self, patience: Duration) -> Result<()> {
        let (done, ended) = channel::<()>();
        if self
            .core
            .messages
            .send(GovernorMessage::Stop(Some(done)))
            .is_err()
        {
            return Ok(());
        }
        // Dropped when everything is done.
        match ended.recv_timeout(patience) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                let text = format!(
                    "datastore {} did not store the notice that this host leaves within {patience:?}: the other \
                     hosts will notice by themselves",
                    self.core.name
                );
                Err(Error::new(Kind::TimedOut, text))
            }
            _ => Ok(()),
        }
    }

    fn query<T>(&self, message: impl FnOnce(Sender<T>) -> GovernorMessage) -> Result<T> {
        let (reply, answer): (Sender<T>, Receiver<T>) = channel();
        let gone = || {
            let text = format!("the I/O control of datastore {} has ended", self.core.name);
            Error::new(Kind::Gone, text)
        };
        self.core
            .messages
            .send(message(reply))
            .map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())
    }
}

/// An engine's weak reference to a control.
pub(crate) struct WeakControl(Weak<ControlCore>);

impl WeakControl {
    /// Whether it has ended.
    pub(crate) fn is_ended(&self) -> bool {
        self.0.strong_count() == 0
    }

    /// Ends its governor, because the I/O threads stop.
    pub(crate) fn stop(&self) {
        if let Some(core) = self.0.upgrade() {
            let _ = core.messages.send(GovernorMessage::Stop(None));
        }
    }
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Control({})", self.core.name)
    }
}

impl Drop for ControlCore {
    // May run on an I/O thread, with its last disk: it must not block.
    fn drop(&mut self) {
        let _ = self.messages.send(GovernorMessage::Stop(None));
        for thread in self.threads.iter() {
            thread.govern(self.id, Govern::End);
        }
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers[self.id.0 as usize] = false;
    }
}

/// The events of a governor's thread, until they are taken.
#[derive(Default)]
struct Notes {
    events: Mutex<Events>,
    /// The waker of the reader.
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
