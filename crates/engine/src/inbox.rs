//! The inbox of an I/O thread: a bounded queue of commands, and a descriptor that wakes the thread when it sleeps.
//!
//! # Always true
//! - an order that `send` accepted is seen: either the thread finds `mail` set before it sleeps, or the bell wakes it
//! - a full queue refuses, visibly
//! - a thread that is busy costs its senders no system call, and an empty inbox costs the thread one load

use crate::blocking::BlockingJob;
use crate::control::Govern;
use crate::sys::eventfd::EventFd;
use crate::thread::commands::{Attach, AttachQueue, Change, NbdConnection, Question, StopQueue};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use tidegate_core::effect::ControlId;

/// More orders than any burst of administration makes.
const ROOM: usize = 4096;

/// What an I/O thread may be told.
pub(crate) enum Command {
    Attach(Box<Attach>),
    Change(Box<Change>),
    AttachQueue(Box<AttachQueue>),
    StopQueue(StopQueue),
    Nbd(Box<NbdConnection>),
    /// Somebody wants to know.
    Ask(Question),
    BlockingJob(BlockingJob),
    /// About a datastore's control.
    Govern(ControlId, Box<Govern>),
    /// It is this thread's turn at a datastore.
    Woken(ControlId),
    Stop,
}

/// The order came too late, or too many are waiting. It comes back.
pub(crate) struct Refused;

/// See the module.
pub(crate) struct Inbox {
    queue: Mutex<VecDeque<Command>>,
    mail: AtomicBool,
    asleep: AtomicBool,
    wakeup_fd: EventFd,
}

impl Inbox {
    pub(crate) fn new() -> std::io::Result<Inbox> {
        Ok(Inbox {
            queue: Mutex::new(VecDeque::new()),
            mail: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wakeup_fd: EventFd::new()?,
        })
    }

    /// Leaves an order.
    pub(crate) fn send(&self, order: Command) -> Result<(), Refused> {
        if self.queue.lock().map_err(|_| Refused)?.len() >= ROOM {
            return Err(Refused);
        }
        self.send_always(order);
        Ok(())
    }

    /// Leaves an order that must not be refused: the answer to one, or the end of something. Each is one of a bounded
    /// number by its nature.
    pub(crate) fn send_always(&self, order: Command) {
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push_back(order);
            self.mail.store(true, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wakeup_fd.signal();
        }
    }

    /// The bell, for the thread to watch.
    pub(crate) fn wakeup_fd(&self) -> RawFd {
        self.wakeup_fd.as_raw_fd()
    }

    /// Whether there may be orders, or something is left of those of before.
    pub(crate) fn has_mail(&self) -> bool {
        self.mail.load(Ordering::Acquire)
    }

    /// The thread has something left to do that orders of before brought: it is to look here again in its next turn, and
    /// not to sleep before. For that thread only, which is the one that forgets it in [`Inbox::take`].
    pub(crate) fn look_again(&self) {
        self.mail.store(true, Ordering::Relaxed);
    }

    /// Takes all orders into `out`.
    pub(crate) fn take(&self, out: &mut VecDeque<Command>) {
        if let Ok(mut queue) = self.queue.lock() {
            self.mail.store(false, Ordering::Relaxed);
            out.append(&mut queue);
        }
    }

    /// The thread is about to sleep. False when an order came meanwhile: it must not.
    pub(crate) fn doze(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.has_mail() {
            self.asleep.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// The thread is awake.
    pub(crate) fn wake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// The bell has rung.
    pub(crate) fn silence(&self) {
        self.wakeup_fd.drain();
    }
}
