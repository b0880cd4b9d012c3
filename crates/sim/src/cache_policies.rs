//! The comparison of cache policies on recorded and made-up requests.
//!
//! Everything that decides is [`tidegate_core`]'s, as the flash cache runs it. This module only supplies requests, counts
//! hits and flash bytes, and draws tables.
//!
//! Reading order: [`requests`] (where requests come from), [`workloads`] (made-up ones), [`evaluate`] (a run through one
//! policy), [`tables`] (all policies, and the manual).

pub mod evaluate;
pub mod requests;
pub mod tables;
pub mod workloads;
