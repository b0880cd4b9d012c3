//! Models of disks, SSDs and arrays in virtual time, without data.
//!
//! The simulator drives an [`Array`] with its own clock. The engine's `emulated` datastore drives the same type with
//! the monotonic clock. This crate never sleeps, never reads a clock, and uses only its own seeded random numbers. So
//! the same specification, seed and calls give the same results on every machine. The caller stores the data.
//!
//! Reading order: [`spec`] (the models and their names), [`mod@array`] (the interface, and how an I/O becomes work for
//! members), `stripe.rs` (RAID layouts), `cache.rs` (the write-back cache), `disk.rs` and `ssd.rs` (members),
//! `clock.rs` (changes of speed and stalls), [`random`]. [`cpu`] stands beside them: cores that tasks share.
//!
//! # Example
//! ```
//! use tidegate_model::{Array, ArraySpec, IoKind, ModelIo};
//!
//! let spec = ArraySpec::named("raid5-8x10k")?;
//! let mut array = Array::new(&spec, 42)?;
//! array.submit(0, ModelIo { id: 7, kind: IoKind::Read, offset: 1 << 30, len: 4096 });
//! let when = array.next_completion().expect("an I/O is in flight");
//! assert!(when > 1_000_000, "a random read on a disk takes milliseconds");
//! assert_eq!(array.pop_completed(when).map(|done| done.id), Some(7));
//! # Ok::<(), tidegate_model::SpecError>(())
//! ```
//!
//! # Units
//! Time is nanoseconds in a `u64` since an origin of the driver's choice. Sizes and offsets are bytes.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod array;
mod cache;
mod clock;
pub mod cpu;
mod disk;
mod kind;
pub mod random;
pub mod spec;
mod ssd;
mod stripe;

pub use array::{Array, Completion, ModelIo};
pub use kind::IoKind;
pub use random::Random;
pub use spec::{ArraySpec, SpecError};
pub use stripe::Level;
