//! The lab: measures the data path, and plays scenarios on real daemons or in virtual time.
//!
//! - [`experiment`]: experiments by name, scenarios and A/B tests; stored, judged, reported. [`demo`] is one to play with,
//!   [`whatif`] predicts, [`trace`] and [`replay`] record and replay a disk's I/O.
//! - [`play`]: the simulator's scenarios on real daemons ([`host`]) before one emulated array ([`mod@array`]).
//! - [`interleaved`] and [`measure`]: A/B comparison of servers. The bench, `tidegate-bench data-path`, is a binary of its own.
//! - Clients, guests and peers come from `tidegate-testing`.
//!
//! # Always true
//! - A trial counts only if the machine was quiet (see [`machine`]).

#![forbid(unsafe_code)]

pub mod array;
pub mod attend;
pub mod demo;
pub mod draw;
pub mod experiment;
pub mod host;
pub mod interleaved;
pub mod interruption;
pub mod machine;
pub mod measure;
mod nbd_guest;
pub mod play;
pub mod replay;
pub mod statistics;
pub mod trace;
pub mod whatif;

pub use tidegate_testing::fio;
