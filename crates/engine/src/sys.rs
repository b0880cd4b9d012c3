//! All unsafe code: io_uring, guest memory, buffers, and a few system calls.
//!
//! Each file wraps one thing, so that the rest of the engine is safe code. These invariants ensure it:
//! - **A segment lives as long as its target.** [`guest::Segment`]s are made from a [`guest::Mapping`]. A
//!   [`buffers::Buffers`] slot stores them together with a reference to it. Pool memory is owned by its slot.
//! - **The kernel's buffers stay.** A slot counts the kernel's operations on it, and is released only after the last
//!   has completed (asserted). An I/O thread that panics aborts the process, so memory is never unmapped under the
//!   kernel.
//! - **Guest memory is never a Rust reference.** It is read and written through raw pointers, volatile or atomic.

pub(crate) mod aligned;
pub(crate) mod buffers;
mod checksum;
pub(crate) mod eventfd;
pub(crate) mod fault;
pub(crate) mod guest;
pub(crate) mod memory;
pub(crate) mod message;
pub(crate) mod os;
pub(crate) mod ring;
pub(crate) mod syscall_timeout;
pub(crate) mod truncation_guard;
