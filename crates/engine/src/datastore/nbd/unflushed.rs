//! Unflushed writes: whether a server that was lost may have lost acknowledged writes.
//!
//! After a reconnect the server may be the same process with its cache, or a new one without. So a lost connection
//! counts as a crash: writes acknowledged on it, and not known to be durable, may be lost. No later flush may claim
//! otherwise. The guest must learn of it, because its file system relies on those writes.
//!
//! # Always true
//! - a flush makes durable what was acknowledged before it was sent, and nothing else
//! - once writes may be lost, that state is permanent
//!
//! # Source
//! The NBD protocol document, on `NBD_CMD_FLUSH`; `docs/decisions/0020-an-upstream-that-comes-back.md`.

use crate::datastore::condition::{Condition, Harm};
use std::sync::Arc;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    /// Acknowledged writes that need not be durable yet; a running total.
    written: u64,
    /// How many of them, from the first, are durable.
    durable: u64,
    writes_lost: bool,
    condition: Arc<Condition>,
}

/// What a flush will make durable: all writes up to this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Unflushed {
    /// For an image without writes.
    pub(super) fn new(condition: Arc<Condition>) -> Unflushed {
        Unflushed {
            condition,
            ..Unflushed::default()
        }
    }

    /// A write was acknowledged that is not durable yet.
    pub(super) fn wrote(&mut self) {
        self.written += 1;
    }

    /// A flush is sent now.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.written)
    }

    /// The flush sent at `mark` has succeeded.
    pub(super) fn flushed(&mut self, mark: Mark) {
        self.durable = self.durable.max(mark.0);
    }

    /// The connection is lost, or a flush has failed: a server may report such an error only once. Returns whether
    /// writes may be lost for the first time.
    pub(super) fn lost(&mut self) -> bool {
        let first = !self.writes_lost && self.has_unflushed();
        if first {
            self.writes_lost = true;
            self.condition.note(Harm::FlushesFail);
        }
        first
    }

    /// Whether there are writes that are not known to be durable.
    pub(super) fn has_unflushed(&self) -> bool {
        self.written > self.durable
    }

    /// Whether writes may be lost, so that every flush must fail.
    pub(super) fn may_have_lost_writes(&self) -> bool {
        self.writes_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_only_writes_acknowledged_before_it_was_sent() {
        let mut unflushed = Unflushed::default();
        assert!(!unflushed.has_unflushed(), "nothing is written");
        unflushed.wrote();
        assert!(unflushed.has_unflushed());
        let mark = unflushed.mark();
        unflushed.flushed(mark);
        assert!(!unflushed.has_unflushed());
        assert!(!unflushed.lost(), "all of it is durable");
        unflushed.wrote();
        let early = unflushed.mark();
        unflushed.wrote();
        unflushed.flushed(early);
        unflushed.flushed(mark);
        assert!(unflushed.lost(), "the last write is not durable");
    }

    #[test]
    fn lost_writes_are_permanent_and_reported_once() {
        let mut unflushed = Unflushed::default();
        unflushed.wrote();
        assert!(
            !unflushed.may_have_lost_writes(),
            "the server is there and has it"
        );
        assert!(unflushed.lost());
        unflushed.flushed(unflushed.mark());
        unflushed.wrote();
        assert!(!unflushed.lost());
        assert!(unflushed.may_have_lost_writes());
    }
}
