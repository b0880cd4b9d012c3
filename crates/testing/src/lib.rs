//! Clients, guests and reference servers, for tests and benchmarks.
//!
//! - [`vhost`] is a guest without a VM: it drives virtqueues over vhost-user. [`nbd`] is an NBD client.
//! - [`load`] makes their requests, [`stamp`] says what each written block holds, [`tally`] counts the answers, [`dips`]
//!   records throughput over time.
//! - [`initramfs`] builds the file system of a real guest under QEMU.
//! - [`server`] starts a server and stops it; [`peers`] knows how qemu-storage-daemon, nbdkit and qemu-nbd are started.
//!
//! # Always true
//! - No unsafe code: memory shared with a server is reached through `vm-memory`'s atomics and volatile slices.
//! - Nothing here knows Tidegate's own crates: the same client drives any server.

#![forbid(unsafe_code)]

pub mod dips;
pub mod initramfs;
pub mod load;
pub mod nbd;
pub mod peers;
pub mod server;
pub mod stamp;
pub mod tally;
pub mod vhost;
