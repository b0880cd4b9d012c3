//! Clients, guests and reference servers, for tests and benchmarks.
//!
//! - [`vhost`] is a guest without a VM: it drives virtqueues over vhost-user. [`nbd`] is an NBD client.
//! - [`load`] generates their requests, [`stamp`] defines the contents of written blocks, [`tally`] counts completions,
//!   [`dips`] records throughput over time.
//! - [`initramfs`] builds the file system of a real guest under QEMU.
//! - [`server`] starts and stops a server. [`peers`] has the command lines of Tidegate, qemu-storage-daemon, nbdkit and
//!   qemu-nbd. [`callgrind`] counts a server's instructions.
//! - [`bare`] is a server that only walks the ring: the ceiling. [`fio`] runs fio, on a file or over NBD.
//!
//! # Always true
//! - No unsafe code: memory shared with a server is accessed through `vm-memory`'s atomics and volatile slices.
//! - Nothing here uses Tidegate's own crates: the same client drives any server.

#![forbid(unsafe_code)]

pub mod bare;
pub mod callgrind;
pub mod dips;
pub mod fio;
pub mod initramfs;
pub mod load;
pub mod nbd;
pub mod peers;
pub mod server;
pub mod stamp;
pub mod tally;
pub mod vhost;
