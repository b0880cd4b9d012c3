//! The lab: measures the data path, and plays scenarios on real daemons or in virtual time.
//!
//! - [`experiment`]: experiments by name, scenarios and A/B tests; stored, judged, reported. [`demo`] is one to play with,
//!   [`whatif`] predicts, [`trace`] and [`replay`] record and replay a disk's I/O.
//! - [`play`]: the simulator's scenarios on real daemons ([`host`]) before one emulated array ([`mod@array`]).
//! - [`interleaved`] and [`measure`]: A/B comparison of servers. The bench, `tidegate-bench data-path`, is a binary of its own.
//! - [`vhost`], [`nbd`], [`initramfs`]: clients and guests, which crash and correctness tests use as well.
//!
//! # Always true
//! - No unsafe code: memory shared with a server is reached through `vm-memory`'s atomics and volatile slices.
//! - A trial counts only if the machine was quiet (see [`machine`]).

#![forbid(unsafe_code)]

pub mod array;
pub mod attend;
pub mod callgrind;
pub mod demo;
pub mod dips;
pub mod draw;
pub mod experiment;
pub mod fio;
pub mod host;
pub mod initramfs;
pub mod interleaved;
pub mod interruption;
pub mod load;
pub mod machine;
pub mod measure;
pub mod nbd;
pub mod peers;
pub mod play;
pub mod replay;
pub mod server;
pub mod stamp;
pub mod statistics;
pub mod tally;
pub mod trace;
pub mod vhost;
pub mod whatif;
