//! The types of configuration, disk descriptors and REST.
//!
//! Nothing here decides or performs anything: a value is parsed, its syntax is checked, and the daemon's plan
//! interprets it. This crate depends on no other crate of ours, so that a client needs only this one.
//!
//! Reading order: [`units`], [`name`] and [`or_default`] (the smallest values), [`config`] (`tidegate.toml`), [`descriptor`]
//! (`disk.toml`), [`datastore`], [`disk`], [`iocontrol`], [`group`], [`cache`], [`pool`], [`snapshot`], [`stats`], [`curve`], [`explain`], [`events`],
//! [`status`], [`thread`], [`tree`], [`job`], [`backup`] (the types in REST), [`problem`] (the type of errors), [`routes`] (every route with its types).
//!
//! # Units
//! In JSON a key ends in its unit (`size_bytes`, `p99_us`, `limit_iops`) and its value is a plain number. In TOML and
//! in flags a value carries its unit (`"10GiB"`, `"25ms"`).

#![forbid(unsafe_code)]

pub mod backup;
pub mod cache;
pub mod config;
pub mod curve;
pub mod datastore;
pub mod dense;
pub mod descriptor;
pub mod disk;
pub mod events;
pub mod explain;
pub mod group;
pub mod io;
pub mod iocontrol;
pub mod job;
pub mod layout;
pub mod name;
pub mod or_default;
pub mod pool;
pub mod problem;
pub mod routes;
pub mod snapshot;
pub mod stats;
pub mod status;
pub mod thread;
pub mod toml_error;
pub mod tree;
pub mod units;
