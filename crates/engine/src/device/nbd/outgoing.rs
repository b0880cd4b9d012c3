//! The outgoing replies of one NBD client, sent in one system call.
//!
//! A [`super::Connection`] has two: one collects replies while the kernel sends the other.
//!
//! # Always true
//! - the buffers of a message live until it was sent, or was given up

use super::{HEADS, Head};
use crate::sys::buffers::Buffers;
use crate::sys::message::Message;
use tidegate_core::request::{Data, DiskId};

/// Replies to send.
pub(super) struct Outgoing {
    pub(super) message: Message,
    pub(super) heads: u32,
    used: usize,
    /// Buffers to release after the send.
    pub(super) buffers: Vec<u32>,
    pub(super) replies: usize,
}

impl Outgoing {
    pub(super) fn new(disk: DiskId, buffers: &mut Buffers) -> std::io::Result<Outgoing> {
        let heads = buffers.claim_pool(disk, HEADS)?;
        Ok(Outgoing {
            message: Message::new(),
            heads,
            used: 0,
            buffers: Vec::new(),
            replies: 0,
        })
    }

    pub(super) fn push_head(&mut self, buffers: &mut Buffers, head: &Head) {
        let bytes = head.as_bytes();
        let start = u32::try_from(self.used).expect("the headers of a message are few");
        buffers.put(
            Data {
                buffer: self.heads,
                start,
            },
            bytes,
        );
        self.message
            .push(buffers, self.heads, self.used, bytes.len());
        self.used += bytes.len();
        self.replies += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies == 0
    }

    /// Everything was sent, or was given up. Releases the buffers; returns their size in bytes.
    pub(super) fn clear(&mut self, buffers: &mut Buffers) -> usize {
        let mut bytes = 0;
        for buffer in self.buffers.drain(..) {
            bytes += buffers.block(buffer);
            buffers.release(buffer);
        }
        self.message.clear();
        self.used = 0;
        self.replies = 0;
        bytes
    }
}
