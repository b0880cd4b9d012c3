//! The front ends' protocols: rings and bytes of guests and clients become requests, and answers become bytes.
//!
//! Two front ends, both pure: [`vhost`] walks virtio rings that lie in a guest's memory, [`nbd`] reads and writes the
//! NBD protocol. Neither does I/O: the engine maps the memory, holds the sockets, and moves the data.

#![forbid(unsafe_code)]

pub mod nbd;
pub mod vhost;
