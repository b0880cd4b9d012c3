//! The engine on real io_uring: disks on every kind of datastore, driven by NBD clients.
//!
//! Some tests mount a tmpfs and must run as root.

#![expect(clippy::unwrap_used, reason = "these are tests")]

mod caches;
mod client;
mod clients;
mod control;
mod datastores;
mod devices;
mod filters;
mod gone;
mod layouts;
mod leases;
mod locks;
mod many;
mod monitor;
mod moves;
mod overlaps;
mod pauses;
mod rig;
mod space;
mod statistics;
mod upstream;
