//! Detection of a disconnected NBD client, and the end of its requests.
//!
//! A receive in flight reports the disconnection of a client. There is none while the client must wait or after it sent
//! a disconnect. Then the kernel is asked to report when the other end of the socket is closed. Otherwise requests that
//! wait for a limit could occupy memory and a connection for minutes after their client is gone.
//!
//! # Always true
//! - once a client is gone, its requests that have not started are dropped, and no more are accepted
//! - a client that sent a disconnect is gone when both directions of its socket are closed; any other, when it sends no
//!   more
//! - the connection does not end while the kernel watches its socket

use super::{Connection, Payload};
use crate::device::thread_cx::ThreadCx;
use crate::sys::ring::{Ring, Tag};
use crate::tag;
use std::os::fd::AsRawFd;
use tidegate_front::nbd::session::Step;
use tidegate_front::nbd::wire::REQUEST_BYTES;

/// Whether the kernel watches for the closing of the other end. It does so only while no receive is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Watch {
    Off,
    On,
    /// The watch was cancelled, and the cancellation has not completed.
    Ending,
    /// The kernel does not support it.
    Never,
}

impl Connection {
    /// The kernel reports that the other end was closed, or that the watch ended.
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

    /// Drops requests that have not started once the client is gone.
    pub(super) fn drop_if_gone(&mut self, index: u32, cx: &mut ThreadCx) {
        if !self.closing || self.abandoned || !self.is_gone(cx) {
            return;
        }
        self.abandoned = true;
        self.dismissed = true;
        if self.in_flight > 0 {
            cx.abandon(self.disk, index);
        }
    }

    /// Whether the client is gone. A client that sends no more and sent no disconnect is gone, although it could still
    /// read.
    fn is_gone(&mut self, cx: &ThreadCx) -> bool {
        if !self.disconnect_received && !self.dead {
            self.disconnect_received = self.ends_with_disconnect(cx);
        }
        self.dead || !self.disconnect_received
    }

    /// Whether the received bytes that are not decoded yet end with a disconnect.
    #[cold]
    #[inline(never)]
    fn ends_with_disconnect(&self, cx: &ThreadCx) -> bool {
        let rest = |payload: Payload| payload.client_request.payload as usize - payload.got;
        let mut at = self.fill.0 + self.payload.map_or(0, rest);
        while at < self.fill.1 {
            match self.peek(cx, at) {
                Step::Request(client_request) | Step::Refuse(client_request, _) => {
                    at += REQUEST_BYTES + client_request.payload as usize;
                }
                Step::Disconnect => return true,
                Step::Need(_) | Step::Violation(_) => return false,
            }
        }
        false
    }

    /// Asks the kernel to report when the other end is closed. Only while no receive is in flight, and requests are in
    /// flight or the next waits for memory.
    pub(super) fn watch_other_end(&mut self, index: u32, cx: &mut ThreadCx) {
        let waits = self.in_flight > 0 || self.waits_for_memory;
        if self.watch != Watch::Off || self.dead || !waits {
            return;
        }
        let half = !(self.closing || self.hung_up);
        cx.ring
            .watch_other_end(self.socket.as_raw_fd(), half, hang_up_tag(index));
        self.watch = Watch::On;
    }

    /// Whether the kernel does not watch the socket. Cancels the watch if the connection is `over` otherwise.
    pub(super) fn stop_watching(&mut self, index: u32, cx: &mut ThreadCx, over: bool) -> bool {
        if self.watch == Watch::On && over {
            cx.ring.cancel(hang_up_tag(index), tag::IGNORED);
            self.watch = Watch::Ending;
        }
        matches!(self.watch, Watch::Off | Watch::Never)
    }
}

impl Connection {
    /// The connection moves to another thread: ends what waits for the client on this thread's ring. What is in flight
    /// completes there.
    pub(crate) fn leave(&mut self, index: u32, ring: &mut Ring) {
        if self.receiving.is_some() {
            ring.cancel(receive_tag(index), tag::IGNORED);
        }
        if self.watch == Watch::On {
            ring.cancel(hang_up_tag(index), tag::IGNORED);
            self.watch = Watch::Ending;
        }
    }
}

pub(super) fn receive_tag(index: u32) -> Tag {
    Tag {
        kind: tag::RECEIVE,
        owner: index,
        slot: 0,
    }
}

fn hang_up_tag(index: u32) -> Tag {
    Tag {
        kind: tag::HANG_UP,
        owner: index,
        slot: 0,
    }
}
