//! The NBD protocol, server and client, without sockets.
//!
//! Input comes as slices and output goes into the caller's buffers. Each state machine returns its next step as a
//! value. A server connection starts in [`handshake`] (on a control thread) and continues in [`session`] (on an I/O
//! thread), where a message becomes a [`Request`](tidegate_core::request::Request). [`client`] is the client side, for
//! disks on an NBD server and for measurements. None of them uses sockets, TLS, time or buffers of its own.
//!
//! # Always true
//! - No input causes a panic, and at most [`handshake::OPTION_MAX`] bytes of input are buffered.
//! - The result does not depend on how the stream is split into reads (`tests/nbd_properties.rs`).
//!
//! # Source
//! The NBD protocol document, fixed newstyle (`doc/proto.md` of the NetworkBlockDevice project). Extended headers
//! (64-bit lengths) are declined: no request of ours is longer than 4 GiB.

pub mod bitmap;
pub mod client;
pub mod handshake;
pub mod session;
pub mod wire;
