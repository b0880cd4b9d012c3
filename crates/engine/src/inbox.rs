//! The inbox of an I/O thread: a bounded queue of messages from other threads. Its eventfd is signalled only while the
//! thread sleeps.
//!
//! # Always true
//! - an accepted message is seen: either the thread finds `pending` set before it sleeps, or the eventfd wakes it
//! - a full queue refuses messages with an error
//! - a message to a thread that has ended is dropped, so that whoever waits for an answer sees that there is none
//! - sending to a busy thread costs no system call, and an empty inbox costs the thread one load

use crate::atomics::{AtomicBool, Mutex, Ordering, fence};
use crate::sys::eventfd::EventFd;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::PoisonError;

/// More messages than any burst of administrative commands.
const ROOM: usize = 4096;

/// The queue is full, or the thread has ended.
pub(crate) struct Refused;

/// See the module; `M` is the type of a message.
pub(crate) struct Inbox<M> {
    /// None once the thread has ended.
    queue: Mutex<Option<VecDeque<M>>>,
    pending: AtomicBool,
    asleep: AtomicBool,
    wakeup_fd: EventFd,
}

impl<M> Inbox<M> {
    pub(crate) fn new() -> std::io::Result<Inbox<M>> {
        Ok(Inbox {
            queue: Mutex::new(Some(VecDeque::new())),
            pending: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            wakeup_fd: EventFd::new()?,
        })
    }

    /// Sends a message.
    pub(crate) fn send(&self, message: M) -> Result<(), Refused> {
        let queue = self.queue.lock().map_err(|_| Refused)?;
        let room = queue.as_ref().is_some_and(|queue| queue.len() < ROOM);
        drop(queue);
        if !room {
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
            let Some(messages) = queue.as_mut() else {
                drop(queue);
                return then();
            };
            messages.push_back(message);
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
        self.eventfd().as_raw_fd()
    }

    /// The eventfd itself.
    pub(crate) fn eventfd(&self) -> &EventFd {
        &self.wakeup_fd
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
            if let Some(messages) = queue.as_mut() {
                out.append(messages);
            }
        }
    }

    /// The thread has ended: drops the messages that wait, and all that are sent from now on.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let left = queue.take();
        drop(queue);
        drop(left);
    }

    /// The thread is about to sleep. Returns false if a message arrived meanwhile: it must not sleep.
    pub(crate) fn prepare_sleep(&self) -> bool {
        self.set_asleep(true);
        fence(Ordering::SeqCst);
        if self.has_messages() {
            self.set_asleep(false);
            return false;
        }
        true
    }

    /// The thread is awake.
    pub(crate) fn wake(&self) {
        self.set_asleep(false);
    }

    /// Each change finds the last one, as those of the senders do: a sender that finds a thread awake has passed its fence
    /// before the thread's next one. It costs what a store does.
    fn set_asleep(&self, asleep: bool) {
        self.asleep.swap(asleep, Ordering::SeqCst);
    }

    /// The eventfd was signalled.
    pub(crate) fn drain_wakeup(&self) {
        self.wakeup_fd.drain();
    }
}
