//! The states of the I/O threads, and moves of disks between them.
//!
//! All threads that may ever run exist from the start. One that is not used is *parked*: it has no disks, and sleeps without a
//! timer. So a thread is created and removed without a system call of its own.
//!
//! A lock has an owner. An administrator's lock lasts until an administrator unlocks the thread. A policy's lasts while the
//! policy empties the thread, and ends in that the thread is parked or taken back. An administrator may take over a thread that
//! a policy empties, but not the other way round.
//!
//! # Always true
//! - at least one thread is active
//! - nothing that the monitor does changes a thread that an administrator has locked
//! - a locked thread gets no disk but those whose move began before
//! - a parked thread has no disks, and nothing of one that has left it is on its ring
//!
//! # Picture
//! ```text
//!             lock                 the policy empties it
//!   Locked <--------> Active ---------------------------> Leaving
//!     |  ^    unlock    ^   <---------------------------     |  |
//!     |  |              |     unlock, or the policy          |  |
//!     |  |              |                                    |  |
//!     |  +--------------|------------------ lock ------------+  |
//!     |                 | create, or the policy                 |
//!     +--- remove --> Parked <----- remove, or the policy ------+
//! ```

use super::{Disk, Engine, guard};
use crate::error::{Error, Kind, Result};
use crate::thread::commands::Command;
use crate::thread::moving_disk::{Leave, Moved};
use crate::thread::peers::Peers;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, TryLockError};
use tidegate_core::request::DiskId;

/// The state of an I/O thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// It takes disks.
    Active,
    /// An administrator locked it: it serves its disks, and takes no others.
    Locked,
    /// The policy empties it: it serves its disks until they have moved, and is parked then.
    Leaving,
    /// It has no disks any more. Operations of disks that have left are still in flight on its ring.
    Draining,
    /// It sleeps, until it is needed again.
    Parked,
}

/// What is wanted of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Active,
    /// By an administrator.
    Locked,
    /// By the policy.
    Leaving,
    Parked,
}

/// What a policy does with a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PolicyAct {
    /// It takes disks.
    Activate,
    /// It takes no more disks, since it is to be parked.
    Leave,
    /// It is parked, now that it has no disks.
    Park,
    /// It takes disks again, if the policy still empties it.
    TakeBack,
}

/// See the module.
pub(crate) struct Placement {
    pub(crate) peers: Arc<Peers>,
    wanted: Mutex<Plan>,
}

struct Plan {
    threads: Vec<Wanted>,
    /// Disks on their way to each thread.
    coming: Vec<usize>,
    /// The thread that new disks get while it is active.
    default: Option<usize>,
}

impl Plan {
    fn of(&self, thread: usize) -> Result<Wanted> {
        self.threads.get(thread).copied().ok_or_else(|| {
            let last = self.threads.len() - 1;
            let text =
                format!("there is no I/O thread {thread}: they are numbered from 0 to {last}");
            Error::new(Kind::NotFound, text)
        })
    }

    /// The default thread, unless it is locked or parked.
    fn active_default(&self) -> Option<usize> {
        self.default
            .filter(|thread| self.threads[*thread] == Wanted::Active)
    }

    /// # Errors
    /// If no other thread takes disks.
    fn must_have_another(&self, thread: usize) -> Result<()> {
        if self.active().any(|other| other != thread) {
            return Ok(());
        }
        let text = format!("I/O thread {thread} is the only one that takes disks");
        Err(Error::new(Kind::Busy, text))
    }

    fn active(&self) -> impl Iterator<Item = usize> {
        let threads = self.threads.iter().enumerate();
        threads.filter_map(|(thread, wanted)| (*wanted == Wanted::Active).then_some(thread))
    }
}

impl Placement {
    /// The first `active` threads take disks; the others are parked.
    pub(super) fn new(peers: Arc<Peers>, active: usize) -> Placement {
        let wanted = |thread| match thread < active {
            true => Wanted::Active,
            false => Wanted::Parked,
        };
        let plan = Plan {
            threads: (0..peers.count()).map(wanted).collect(),
            coming: vec![0; peers.count()],
            default: None,
        };
        Placement {
            peers,
            wanted: Mutex::new(plan),
        }
    }

    /// Chooses the thread of a new disk: the default one, or the one with the fewest disks.
    pub(super) fn place(&self, disk: DiskId) -> usize {
        let plan = guard(&self.wanted);
        let fewest = plan.active().min_by_key(|thread| self.peers.disks(*thread));
        let thread = plan
            .active_default()
            .or(fewest)
            .expect("a thread is active");
        self.peers.settle(disk, thread);
        thread
    }

    pub(super) fn states(&self) -> Vec<ThreadState> {
        let plan = guard(&self.wanted);
        let states = plan.threads.iter().enumerate();
        let state = |(thread, wanted): (usize, &Wanted)| match wanted {
            Wanted::Active => ThreadState::Active,
            Wanted::Locked => ThreadState::Locked,
            Wanted::Leaving => ThreadState::Leaving,
            Wanted::Parked if self.peers.on_ring(thread) > 0 => ThreadState::Draining,
            Wanted::Parked => ThreadState::Parked,
        };
        states.map(state).collect()
    }

    /// An administrator locks a thread or unlocks it, whoever locked it.
    fn set_locked(&self, thread: usize, locked: bool) -> Result<()> {
        let mut plan = guard(&self.wanted);
        match (plan.of(thread)?, locked) {
            (Wanted::Parked, _) => return Err(parked(thread)),
            (Wanted::Active, true) => plan.must_have_another(thread)?,
            (Wanted::Active | Wanted::Locked | Wanted::Leaving, _) => {}
        }
        plan.threads[thread] = match locked {
            true => Wanted::Locked,
            false => Wanted::Active,
        };
        Ok(())
    }

    /// An administrator parks a thread.
    fn remove(&self, thread: usize) -> Result<()> {
        let mut plan = guard(&self.wanted);
        match plan.of(thread)? {
            Wanted::Parked => Err(parked(thread)),
            Wanted::Active => {
                let text = format!("I/O thread {thread} takes disks: it is not locked");
                Err(Error::new(Kind::Busy, text))
            }
            Wanted::Locked | Wanted::Leaving => self.park(&mut plan, thread),
        }
    }

    fn park(&self, plan: &mut Plan, thread: usize) -> Result<()> {
        match plan.coming[thread] + self.peers.disks(thread) {
            0 => {
                plan.threads[thread] = Wanted::Parked;
                Ok(())
            }
            1 => {
                let text = format!("I/O thread {thread} still has a disk");
                Err(Error::new(Kind::Busy, text))
            }
            disks => {
                let text = format!("I/O thread {thread} still has {disks} disks");
                Err(Error::new(Kind::Busy, text))
            }
        }
    }

    /// The policy does this. Nothing of it changes a thread that an administrator locked.
    pub(super) fn act(&self, thread: usize, act: PolicyAct) -> Result<()> {
        let mut plan = guard(&self.wanted);
        match (act, plan.of(thread)?) {
            (_, Wanted::Locked) => {
                let text = format!("an administrator has locked I/O thread {thread}");
                Err(Error::new(Kind::Busy, text))
            }
            (PolicyAct::Activate, _) | (PolicyAct::TakeBack, Wanted::Leaving) => {
                plan.threads[thread] = Wanted::Active;
                Ok(())
            }
            (_, Wanted::Parked) => Err(parked(thread)),
            (PolicyAct::TakeBack, Wanted::Active) => Ok(()),
            (PolicyAct::Leave, Wanted::Leaving) => Ok(()),
            (PolicyAct::Leave, Wanted::Active) => {
                plan.must_have_another(thread)?;
                plan.threads[thread] = Wanted::Leaving;
                Ok(())
            }
            (PolicyAct::Park, Wanted::Leaving) => self.park(&mut plan, thread),
            (PolicyAct::Park, Wanted::Active) => {
                let text = format!("an administrator has unlocked I/O thread {thread}");
                Err(Error::new(Kind::Busy, text))
            }
        }
    }

    /// Notes that a disk is on its way to a thread, which must take disks.
    fn begin_move(&self, thread: usize) -> Result<()> {
        let mut plan = guard(&self.wanted);
        let text = match plan.of(thread)? {
            Wanted::Active => {
                plan.coming[thread] += 1;
                return Ok(());
            }
            Wanted::Locked => {
                format!("I/O thread {thread} is locked")
            }
            Wanted::Leaving => {
                format!("I/O thread {thread} is being emptied")
            }
            Wanted::Parked => return Err(parked(thread)),
        };
        Err(Error::new(Kind::Busy, text))
    }

    fn end_move(&self, thread: usize) {
        guard(&self.wanted).coming[thread] -= 1;
    }
}

fn parked(thread: usize) -> Error {
    let text = format!("I/O thread {thread} is parked");
    Error::new(Kind::Invalid, text)
}

impl Engine {
    /// The states of the I/O threads, by number.
    pub fn thread_states(&self) -> Vec<ThreadState> {
        self.placement.states()
    }

    /// Activates a parked I/O thread, and returns its number.
    ///
    /// # Errors
    /// If all run already.
    pub fn create_thread(&self) -> Result<usize> {
        let mut plan = guard(&self.placement.wanted);
        let parked = plan.threads.iter().position(|it| *it == Wanted::Parked);
        let Some(thread) = parked else {
            let text = format!(
                "all {} I/O threads run; the maximum is set in the configuration",
                plan.threads.len()
            );
            return Err(Error::new(Kind::Busy, text));
        };
        plan.threads[thread] = Wanted::Active;
        Ok(thread)
    }

    /// Parks a locked I/O thread without disks. Operations that are in flight on its ring go on, and are not waited for.
    ///
    /// # Errors
    /// If it is not locked, or has disks.
    pub fn remove_thread(&self, thread: usize) -> Result<()> {
        self.placement.remove(thread)
    }

    /// Locks an I/O thread: it takes no more disks. If new disks go to it by default, they go to the one with the fewest meanwhile.
    ///
    /// # Errors
    /// If it does not run, or is the only one that takes disks.
    pub fn lock_thread(&self, thread: usize) -> Result<()> {
        self.placement.set_locked(thread, true)
    }

    /// Unlocks an I/O thread: it takes disks again.
    ///
    /// # Errors
    /// If it does not run.
    pub fn unlock_thread(&self, thread: usize) -> Result<()> {
        self.placement.set_locked(thread, false)
    }

    /// The I/O thread that new disks get; `None`: the one with the fewest disks.
    pub fn default_thread(&self) -> Option<usize> {
        guard(&self.placement.wanted).active_default()
    }

    /// Sets the I/O thread that new disks get.
    ///
    /// # Errors
    /// If it takes no disks.
    pub fn set_default_thread(&self, thread: Option<usize>) -> Result<()> {
        let mut plan = guard(&self.placement.wanted);
        if let Some(thread) = thread
            && plan.of(thread)? != Wanted::Active
        {
            let text = format!("I/O thread {thread} takes no disks");
            return Err(Error::new(Kind::Busy, text));
        }
        plan.default = thread;
        Ok(())
    }
}

impl Disk {
    /// The index of its I/O thread in [`Engine::threads`](crate::Engine::threads); 0 once it is detached.
    pub fn thread(&self) -> usize {
        let home = self.core.placement.peers.home(self.core.device.id);
        home.unwrap_or(0)
    }

    /// Moves it to another I/O thread, with its queues, connections and everything that is under way. Waits for no I/O.
    ///
    /// # Errors
    /// If it is being moved already or is detached, or if the thread takes no disks.
    pub fn move_to(&self, thread: usize) -> Result<Moved> {
        let _one_at_a_time = match self.core.moving.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                let text = "the disk is being moved already; try again";
                return Err(Error::new(Kind::Busy, text));
            }
        };
        let placement = &self.core.placement;
        placement.begin_move(thread)?;
        let moved = self.send_to(thread);
        placement.end_move(thread);
        moved
    }

    fn send_to(&self, thread: usize) -> Result<Moved> {
        let gone = || Error::new(Kind::Gone, "an I/O thread has ended");
        let peers = &self.core.placement.peers;
        // A layout that is newer gets its arena with the move.
        let is_one_image = self.core.device.spec.is_one_image();
        if !is_one_image || self.is_cached() || self.moves() {
            let (reply, prepared) = channel();
            // Few: one for each disk at a time.
            peers.inbox(thread).send_always(Command::Prepare(reply));
            prepared.recv().map_err(|_| gone())??;
        }
        let (reply, moved) = channel();
        let leave = Leave {
            disk: self.core.device.id,
            to: thread,
            reply,
        };
        peers
            .inbox_of(leave.disk)
            .send_always(Command::Leave(leave));
        moved.recv().map_err(|_| gone())?
    }
}

#[cfg(test)]
mod tests;
