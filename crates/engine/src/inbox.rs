//! The inbox of an I/O thread: a bounded queue of messages from other threads. Its eventfd is signalled only while the
//! thread sleeps.
//!
//! # Always true
//! - an accepted message is seen: either the thread finds `pending` set before it sleeps, or the eventfd wakes it
//! - a full queue refuses messages with an error
//! - sending to a busy thread costs no system call, and an empty inbox costs the thread one load

use crate::sys::eventfd::EventFd;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, PoisonError};

/// More messages than any burst of administrative commands.
const ROOM: usize = 4096;

/// The queue is full, or the thread has ended.
pub(crate) struct Refused;

/// See the module; `M` is the type of a message.
pub(crate) struct Inbox<M> {
    queue: Mutex<VecDeque<M>>,
    pending: AtomicBool,
    asleep: AtomicBool,
    wakeup_fd: EventFd,
}

impl<M> Inbox<M> {
    pub(crate) fn new() -> std::io::Result<Inbox<M>> {
        Ok(Inbox {
            queue: Mutex::new(VecDeque::new()),
            pending: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wakeup_fd: EventFd::new()?,
        })
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: M) -> Result<(), Refused> {
        if self.queue.lock().map_err(|_| Refused)?.len() >= ROOM {
            return Err(Refused);
        }
        self.send_always(message);
        Ok(())
    }

    /// Sends a message that must not be refused: a reply, or the end of something. Their number is bounded by their
    /// nature.
    pub(crate) fn send_always(&self, message: M) {
        self.send_and(message, || ());
    }

    /// As [`Inbox::send_always`]; `then` has run before the message can be taken, and before any later one is sent.
    pub(crate) fn send_and(&self, message: M, then: impl FnOnce()) {
        {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push_back(message);
            then();
            self.pending.store(true, Ordering::Release);
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

    /// Whether there may be messages, or unfinished work of earlier ones.
    pub(crate) fn has_messages(&self) -> bool {
        self.pending.load(Ordering::Acquire)
    }

    /// Notes unfinished work of earlier messages, so that the thread checks the inbox in its next turn before it
    /// sleeps. Only for that thread, which clears the note in [`Inbox::take`].
    pub(crate) fn note_pending(&self) {
        self.pending.store(true, Ordering::Relaxed);
    }

    /// Takes all messages into `out`.
    pub(crate) fn take(&self, out: &mut VecDeque<M>) {
        if let Ok(mut queue) = self.queue.lock() {
            self.pending.store(false, Ordering::Relaxed);
            out.append(&mut queue);
        }
    }

    /// The thread is about to sleep. Returns false if a message arrived meanwhile: it must not sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.has_messages() {
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
    pub(crate) fn drain_wakeup(&self) {
        self.wakeup_fd.drain();
    }
}
