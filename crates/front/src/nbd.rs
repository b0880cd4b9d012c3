//! The NBD protocol, server and client, without sockets.
//!
//! Bytes come in as slices and go out into buffers of the caller; each machine says what it wants next as a value.
//! A connection's life on the server: [`handshake`] (on a control thread), then [`session`] (on an I/O thread, where
//! a message becomes a [`Request`](tidegate_core::request::Request)). [`client`] is the other half, for disks that
//! lie on an NBD server and for measuring. None of them knows sockets, TLS, time or buffers.
//!
//! # Always true
//! - No input makes anything here panic, nor keep more than [`handshake::OPTION_MAX`] bytes of it.
//! - How the stream was cut into pieces changes no step (`tests/nbd_properties.rs`).
//!
//! # Source
//! The NBD protocol document, fixed newstyle (`doc/proto.md` of the NetworkBlockDevice project). Extended headers
//! (64-bit lengths) are declined: no request of ours is longer than 4 GiB.

pub mod client;
pub mod handshake;
pub mod session;
pub mod wire;
