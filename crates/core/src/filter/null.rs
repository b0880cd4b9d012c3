//! The `null` filter: it passes every I/O, and shows what a filter costs.
//!
//! The measure of the stack itself. Its manual is `docs/filters/null.md`.
//!
//! # Source
//! The null filter of the VAIO performance study, which cost 10-20 % more CPU per I/O there.

use super::{Batch, Cx, Filter};

/// See the module.
#[derive(Debug)]
pub struct Null;

impl Filter for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn submit_all(&mut self, _cx: &mut Cx<'_>, _batch: &mut Batch<'_>) {}

    fn complete_all(&mut self, _cx: &mut Cx<'_>, _batch: &mut Batch<'_>) {}
}
