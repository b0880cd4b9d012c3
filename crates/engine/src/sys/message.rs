//! A scatter list for one sendmsg call.
//!
//! An NBD connection keeps one, fills it with reply headers and buffers, and leaves it alone while the send is under
//! way. The list may be longer than what one system call takes: the sender goes on from where it stopped.
//!
//! # Always true
//! - while a send is under way the message is not changed (the connection asserts it), so the kernel's pointers hold

use super::buffers::Buffers;
use super::guest::Segment;
use std::pin::Pin;

/// The most pieces that one system call takes (UIO_MAXIOV).
const MOST: usize = 1024;

/// See the module.
pub(crate) struct Message {
    header: Pin<Box<libc::msghdr>>,
    pieces: Vec<Segment>,
    /// First piece not wholly sent.
    next: usize,
}

// SAFETY: the header's pointers are followed by the kernel alone, in a send that the owner of the pieces asks for; a
// message changes threads only with its image, before it is first filled.
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

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.next = 0;
    }

    /// Appends `len` bytes of a slot from `start`. The slot stays claimed until the message is sent: the caller's part.
    pub(crate) fn push(&mut self, buffers: &Buffers, slot: u32, start: usize, len: usize) {
        self.pieces
            .extend(super::buffers::pieces(buffers.segments(slot), start, len));
    }

    /// Points the header at what is left. Call before each send.
    pub(crate) fn prepare(&mut self) {
        let left = &mut self.pieces[self.next..];
        self.header.msg_iov = left.as_mut_ptr().cast();
        self.header.msg_iovlen = left.len().min(MOST) as _;
    }

    /// `bytes` of what was left have gone out.
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
