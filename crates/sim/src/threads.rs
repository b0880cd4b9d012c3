//! I/O threads in virtual time: how many serve which disks, on a processor that they share with the guests.
//!
//! The policies are those of [`tidegate_core::monitor`], which the engine uses. The processor is that of
//! [`tidegate_model::cpu`]. Guests, queues, turns, kicks and calls are modelled here, with the costs of [`costs`].
//!
//! Reading order: [`costs`], [`trace`] (the input), [`world`] (the simulation), [`outcome`] (the figures), [`evaluate`] (every
//! fixed set-up beside the policies), [`phases`] (the trace of the experiment), [`web_farm`] (dense mode).

pub mod costs;
pub mod evaluate;
mod guest;
mod io_thread;
pub mod outcome;
pub mod phases;
pub mod trace;
pub mod web_farm;
pub mod world;

pub use costs::Costs;
pub use outcome::Outcome;
pub use trace::{Idle, Load, Phase, SetUp, Trace};
pub use world::World;
