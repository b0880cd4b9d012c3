//! Protocol front ends: they turn guests' rings and clients' bytes into requests, and completions into bytes.
//!
//! There are two, both pure: [`vhost`] walks virtio rings in a guest's memory, [`nbd`] reads and writes the NBD
//! protocol. Neither does I/O: the engine maps the memory, owns the sockets, and moves the data.

#![forbid(unsafe_code)]

pub mod nbd;
pub mod vhost;
