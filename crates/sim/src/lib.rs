//! The simulator: hosts, guests and a shared datastore in virtual time, with faults and invariants.
//!
//! It drives the same decision code as the engine, with an array of the model crate, and needs no hardware. A minute of
//! twelve hosts takes a few seconds and is reproducible.
//!
//! Reading order: [`scenario`] (the events and expectations), [`world`] (the simulation), `world/layouts.rs` (the same
//! for disks with layouts), `guest.rs` (the workloads), [`control`] (ours, or a baseline), `slots.rs` (the coordination
//! file), `invariants.rs` (what must hold at all times), [`results`] (the figures per bin), [`judge`] (the comparison
//! with the expectations), [`compare`] (the comparison of policies), [`swarm`] (many seeds), [`seeds`] (past failures
//! with their explanation), [`trace`] (a disk's recorded I/O, for replay). [`threads`] is a world of its own: I/O threads
//! and vCPUs on shared cores.
//!
//! # Example
//! ```
//! use tidegate_sim::{Policy, Scenario, Variant, world};
//!
//! let scenario = Scenario::read(
//!     r#"
//!     name = "two"
//!     title = "Two disks on one host"
//!     lasts = "1s"
//!     [datastore]
//!     array = "fifo"
//!     threshold = "25ms"
//!     [[host]]
//!     name = "host"
//!     [[disk]]
//!     name = "disk"
//!     count = 2
//!     host = "host"
//!     workload = { kind = "access", outstanding = 8 }
//!     "#,
//! )?;
//! let run = world::run(&scenario, &Variant::of(Policy::None), 1)?;
//! assert_eq!(run.breaches, []);
//! # Ok::<(), tidegate_sim::ScenarioError>(())
//! ```
//!
//! # Units
//! Time is the core's: nanoseconds since the beginning of the run.

#![forbid(unsafe_code)]

pub mod cache_policies;
pub mod cache_tables;
pub mod compare;
pub mod control;
pub mod crash;
pub mod guest;
mod invariants;
pub mod judge;
mod numbers;
mod policy;
mod queue;
pub mod results;
pub mod scenario;
pub mod seeds;
mod slots;
pub mod swarm;
pub mod threads;
pub mod trace;
pub mod world;

pub use invariants::Breach;
pub use judge::{Judgement, Verdict};
pub use policy::Policy;
pub use scenario::{Scenario, ScenarioError, Variant};
pub use world::Run;
