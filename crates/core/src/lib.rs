//! The decisions on every I/O of a host's disks; this crate performs no I/O.
//!
//! An I/O thread (or the simulator) feeds a [`shard::Shard`] with events and carries out the effects that it appends.
//! Time, sizes and identities are plain values passed as arguments. Data stays outside; this crate only knows the
//! numbers of its buffers. There is no clock, lock, channel or system call in this crate.
//!
//! Suggested reading order, along a request's path: [`request`] (a guest's request), [`shard`] (the state machine of an
//! I/O thread), [`stack`] (the filter stack of a disk), [`filter`] (one file for each filter), [`iocontrol`] (the
//! scheduler of a datastore). Outside the path: [`governor`] (the host's window on a datastore, set a few times a
//! second).

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod block;
pub mod coalesce;
pub mod curve;
pub mod dense;
pub mod effect;
pub mod filter;
pub mod governor;
pub mod histogram;
pub mod iocontrol;
pub mod layout;
pub mod monitor;
pub mod pool;
pub(crate) mod qos;
pub mod range_lock;
pub mod request;
pub mod round_robin;
pub mod shard;
pub mod slab;
pub mod stack;

pub mod units;

/// The manual of filters, whose example is compiled and run with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/filters.md")]
pub struct Manual;
