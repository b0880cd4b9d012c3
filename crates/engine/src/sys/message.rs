//! A scatter list for one sendmsg call.
//!
//! An NBD connection fills it with reply headers and buffers, and does not change it during the send. The list may be
//! longer than one system call takes: the sender continues where it stopped.
//!
//! # Always true
//! - the message does not change during a send (the connection asserts it), so the kernel's pointers stay valid

use super::buffers::Buffers;
use super::guest::Segment;
use std::pin::Pin;

/// Maximum number of pieces of one system call (UIO_MAXIOV).
const MOST: usize = 1024;

/// See the module.
pub(crate) struct Message {
    header: Pin<Box<libc::msghdr>>,
    pieces: Vec<Segment>,
    /// First piece that is not completely sent.
    next: usize,
}

// SAFETY: only the kernel follows the header's pointers, in a send that the owner of the pieces submits. A message
// changes threads only with its image, before it is first filled.
unsafe impl Send for Message {}

impl Message {
    /// Empty.
    pub(crate) fn new() -> Message {
        // SAFETY: msghdr is plain old data; zero means nothing in it.
        let header = Box::pin(unsafe { std::mem::zeroed::<libc::msghdr>() });
        Message {
            header,
            pieces: Vec::new(),
            next: 0,
        }
    }

    /// Whether everything is sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.pieces.len()
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.next = 0;
    }

    /// Appends `len` bytes of a slot from `start`. The caller keeps the slot claimed until the message is sent.
    pub(crate) fn push(&mut self, buffers: &Buffers, slot: u32, start: usize, len: usize) {
        self.pieces
            .extend(super::buffers::pieces(buffers.segments(slot), start, len));
    }

    /// Points the header at the unsent pieces. Call before each send.
    pub(crate) fn prepare(&mut self) {
        let left = &mut self.pieces[self.next..];
        self.header.msg_iov = left.as_mut_ptr().cast();
        self.header.msg_iovlen = left.len().min(MOST) as _;
    }

    /// `bytes` of the unsent pieces were sent.
    pub(crate) fn sent(&mut self, mut bytes: usize) {
        while bytes > 0 {
            let piece = &mut self.pieces[self.next];
            if bytes < piece.len() {
                // SAFETY: fewer bytes further on than the piece has.
                let base = unsafe { piece.0.iov_base.cast::<u8>().add(bytes) };
                *piece = Segment::new(base, piece.len() - bytes);
                return;
            }
            bytes -= piece.len();
            self.next += 1;
        }
    }

    pub(super) fn header(&self) -> *const libc::msghdr {
        &raw const *self.header
    }
}

impl Default for Message {
    fn default() -> Message {
        Message::new()
    }
}
