//! The policy `none`: threads and disks stay as administrators place them.

use super::{Decision, Policy, Snapshot, Wish};
use alloc::vec::Vec;

/// Decides nothing, and wants no snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPolicy;

impl Policy for NoPolicy {
    fn next(&self) -> Option<Wish> {
        None
    }

    fn decide(&mut self, _snapshot: &Snapshot, _out: &mut Vec<Decision>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_wants_no_snapshot_and_decides_nothing() {
        let mut out = Vec::new();
        assert_eq!(NoPolicy.next(), None);
        NoPolicy.decide(&Snapshot::default(), &mut out);
        assert!(out.is_empty());
    }
}
