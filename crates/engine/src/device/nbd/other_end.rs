//! Detection of a disconnected NBD client, and the end of its requests.
//!
//! A receive that is under way reports the end of a client. While none is, because the client must wait or has said goodbye,
//! the kernel is asked to say when the other end of the socket goes: the client's requests may wait for a limit for
//! minutes, with their memory and the client's seat.
//!
//! # Always true
//! - once a client is gone, what it asked for and has not started is dropped, and nothing more is taken from it
//! - a client that said goodbye is gone when its end is closed for both ways; any other, when it sends no more
//! - the connection is not at its end while the kernel watches its socket

use super::{Connection, Payload};
use crate::device::thread_cx::ThreadCx;
use crate::sys::ring::Tag;
use crate::tag;
use std::os::fd::AsRawFd;
use tidegate_front::nbd::session::Step;
use tidegate_front::nbd::wire::REQUEST_BYTES;

/// Whether the kernel is asked to say when the other end of the socket goes. It is while nothing is received from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    Off,
    On,
    /// It is called off, and that has not completed.
    Ending,
    /// The kernel cannot.
    Never,
}

impl Connection {
    /// The kernel says that the other end has gone, or that it watches no more.
    pub(super) fn watched(&mut self, result: i32) {
        let ended = std::mem::replace(&mut self.watch, Watch::Off) == Watch::Ending;
        match i16::try_from(result) {
            Ok(events) if events & (libc::POLLHUP | libc::POLLERR) != 0 => {
                self.closing = true;
                self.dead = true;
            }
            Ok(_) => self.hung_up = true,
            Err(_) if ended => {}
            Err(_) => self.watch = Watch::Never,
        }
    }

    /// Drops what has not started once nobody waits for it any more.
    pub(super) fn drop_if_gone(&mut self, me: u32, cx: &mut ThreadCx) {
        if !self.closing || self.abandoned || !self.is_gone(cx) {
            return;
        }
        self.abandoned = true;
        self.dismissed = true;
        if self.in_flight > 0 {
            cx.abandon(self.disk, me);
        }
    }

    /// Whether nobody waits any more for what has not started. A client that sends no more and did not say goodbye is
    /// gone, although it could still read.
    fn is_gone(&mut self, cx: &ThreadCx) -> bool {
        if !self.polite && !self.dead {
            self.polite = self.leaves_politely(cx);
        }
        self.dead || !self.polite
    }

    /// Whether what has arrived and is not decoded yet ends with a goodbye.
    #[cold]
    #[inline(never)]
    fn leaves_politely(&self, cx: &ThreadCx) -> bool {
        let rest = |payload: Payload| payload.asked.payload as usize - payload.got;
        let mut at = self.fill.0 + self.payload.map_or(0, rest);
        while at < self.fill.1 {
            match self.peek(cx, at) {
                Step::Request(asked) | Step::Refuse(asked, _) => {
                    at += REQUEST_BYTES + asked.payload as usize;
                }
                Step::Disconnect => return true,
                Step::Need(_) | Step::Violation(_) => return false,
            }
        }
        false
    }

    /// Has the kernel say when the other end goes, while nothing is received and requests of it are under way, or the next
    /// waits for memory.
    pub(super) fn watch_other_end(&mut self, me: u32, cx: &mut ThreadCx) {
        let waits = self.in_flight > 0 || self.short;
        if self.watch != Watch::Off || self.dead || !waits {
            return;
        }
        let half = !(self.closing || self.hung_up);
        cx.ring
            .watch_other_end(self.socket.as_raw_fd(), half, hang_up_tag(me));
        self.watch = Watch::On;
    }

    /// Whether the kernel does not watch its socket. It ceases to if the connection is `over` otherwise.
    pub(super) fn has_ceased_to_watch(&mut self, me: u32, cx: &mut ThreadCx, over: bool) -> bool {
        if self.watch == Watch::On && over {
            let nobody = Tag {
                kind: tag::NOTHING,
                owner: 0,
                slot: 0,
            };
            cx.ring.cancel(hang_up_tag(me), nobody);
            self.watch = Watch::Ending;
        }
        matches!(self.watch, Watch::Off | Watch::Never)
    }
}

fn hang_up_tag(me: u32) -> Tag {
    Tag {
        kind: tag::HANG_UP,
        owner: me,
        slot: 0,
    }
}
