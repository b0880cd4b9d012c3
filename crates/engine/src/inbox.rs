//! The inbox of an I/O thread: a bounded queue of messages from other threads, and an eventfd that is signalled only while
//! the thread sleeps.
//!
//! # Always true
//! - a message that `send` accepted is seen: either the thread finds `mail` set before it sleeps, or the eventfd wakes it
//! - a full queue refuses, visibly
//! - a thread that is busy costs its senders no system call, and an empty inbox costs the thread one load

use crate::sys::eventfd::EventFd;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// More messages than any burst of administration makes.
const ROOM: usize = 4096;

/// Too many messages are waiting, or the thread has ended.
pub(crate) struct Refused;

/// See the module; `M` is what a message says.
pub(crate) struct Inbox<M> {
    queue: Mutex<VecDeque<M>>,
    mail: AtomicBool,
    asleep: AtomicBool,
    wakeup_fd: EventFd,
}

impl<M> Inbox<M> {
    pub(crate) fn new() -> std::io::Result<Inbox<M>> {
        Ok(Inbox {
            queue: Mutex::new(VecDeque::new()),
            mail: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wakeup_fd: EventFd::new()?,
        })
    }

    /// Leaves a message.
    pub(crate) fn send(&self, message: M) -> Result<(), Refused> {
        if self.queue.lock().map_err(|_| Refused)?.len() >= ROOM {
            return Err(Refused);
        }
        self.send_always(message);
        Ok(())
    }

    /// Leaves a message that must not be refused: the answer to one, or the end of something. Each is one of a bounded
    /// number by its nature.
    pub(crate) fn send_always(&self, message: M) {
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push_back(message);
            self.mail.store(true, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wakeup_fd.signal();
        }
    }

    /// The eventfd, for the thread to watch.
    pub(crate) fn wakeup_fd(&self) -> RawFd {
        self.wakeup_fd.as_raw_fd()
    }

    /// Whether there may be messages, or something is left of those of before.
    pub(crate) fn has_mail(&self) -> bool {
        self.mail.load(Ordering::Acquire)
    }

    /// The thread has something left to do that earlier messages brought: it is to look here again in its next turn, and
    /// not to sleep before. For that thread only, which is the one that forgets it in [`Inbox::take`].
    pub(crate) fn look_again(&self) {
        self.mail.store(true, Ordering::Relaxed);
    }

    /// Takes all messages into `out`.
    pub(crate) fn take(&self, out: &mut VecDeque<M>) {
        if let Ok(mut queue) = self.queue.lock() {
            self.mail.store(false, Ordering::Relaxed);
            out.append(&mut queue);
        }
    }

    /// The thread is about to sleep. False when a message came meanwhile: it must not.
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

    /// The eventfd was signalled.
    pub(crate) fn silence(&self) {
        self.wakeup_fd.drain();
    }
}
