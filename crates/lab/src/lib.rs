//! Measures the data path: our own clients, the peers, and what must hold between them.
//!
//! It also plays the simulator's scenarios on real daemons ([`play`]), before an array that they share ([`mod@array`]).
//! [`experiment`] is the face of that: experiments by name, on daemons or in the simulator, kept, judged, reported;
//! [`demo`] is one to be played with.
//!
//! Stands outside the product: it starts servers (Tidegate and its peers) as processes, drives them as guests and
//! NBD clients would, and judges ratios taken in the same run. [`bench::run`] is the front door, for `xtask` and for
//! the small binary `tidegate-bench`. The clients ([`vhost`], [`nbd`]) and the guests' root
//! ([`initramfs`]) serve crash and correctness tests as well.
//!
//! # Always true
//! - No unsafe code: memory shared with a server is reached through `vm-memory`'s atomics and volatile slices.
//! - A number is reported only from a trial during which the machine was quiet (see [`noise`], [`spoiled`]).

#![forbid(unsafe_code)]

pub mod array;
pub mod bare;
pub mod bench;
pub mod curve;
pub mod demo;
pub mod distance;
pub mod draw;
pub mod engine;
pub mod experiment;
pub mod fio;
pub mod histogram;
pub mod initramfs;
pub mod interruption;
pub mod interrupts;
pub mod load;
pub mod nbd;
pub mod noise;
pub mod peers;
pub mod play;
pub mod replay;
pub mod report;
pub mod server;
pub mod spoiled;
pub mod stamp;
pub mod statistics;
pub mod stillness;
pub mod tally;
pub mod trace;
pub mod vhost;
pub mod wakeups;
pub mod whatif;
