//! The simulator: hosts, guests and a shared datastore in virtual time, with faults and invariants.
//!
//! It drives the very decision machines that the engine drives, with an array of the model's, and needs no machine: a
//! minute of twelve hosts is a few seconds, the same every time. Read it from the outside in: [`scenario`] (what is to
//! happen and what is to come out), [`world`] (lets it happen), `guest.rs` (what guests ask for), [`control`] (what stands
//! between them and the datastore: ours, or one to compare with), `slots.rs` (the coordination file), `safety.rs` (what
//! must hold at every moment), [`results`] (what came out), [`judge`] (whether that is what was expected), [`compare`] (the same under other policies), [`swarm`] (many
//! seeds), [`seeds`] (past failures, kept with their story), [`trace`] (a recorded disk's I/O, for a guest that asks for it again).
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

pub mod compare;
pub mod control;
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
pub mod trace;
pub mod world;

pub use invariants::Breach;
pub use judge::{Judgement, Verdict};
pub use policy::Policy;
pub use scenario::{Scenario, ScenarioError, Variant};
pub use world::Run;
