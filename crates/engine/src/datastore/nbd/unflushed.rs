//! Unflushed writes: whether a server that was lost may have lost acknowledged writes.
//!
//! A server that comes back does not say whether it is the same process with its cache, or another without. So a connection's
//! loss counts as a crash: what was answered on it before it, and is not known to be durable, may be gone. No flush may
//! claim otherwise later on; the guest has to learn of it, for its file system believes what it wrote before.
//!
//! # Always true
//! - a flush makes durable what had been answered before it was sent, and nothing else
//! - once something may be gone, that stays so
//!
//! # Source
//! The NBD protocol document, on `NBD_CMD_FLUSH`; `docs/decisions/0020-an-upstream-that-comes-back.md`.

use crate::datastore::condition::{Condition, Harm};
use std::sync::Arc;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    /// Writes that were told to have succeeded and need not be durable yet, ever.
    written: u64,
    /// How many of them, from the first, are durable.
    durable: u64,
    gone: bool,
    condition: Arc<Condition>,
}

/// What a flush will make durable: all writes up to this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Unflushed {
    /// Of an image that nothing was written to yet.
    pub(super) fn new(condition: Arc<Condition>) -> Unflushed {
        Unflushed {
            condition,
            ..Unflushed::default()
        }
    }

    /// A write succeeds that the server need not keep yet.
    pub(super) fn wrote(&mut self) {
        self.written += 1;
    }

    /// A flush is sent now.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.written)
    }

    /// The flush that was sent then has succeeded.
    pub(super) fn flushed(&mut self, mark: Mark) {
        self.durable = self.durable.max(mark.0);
    }

    /// The connection is lost, or a flush has failed, of which a server may tell only once. Returns whether this is the first
    /// time that something may be gone with it.
    pub(super) fn lost(&mut self) -> bool {
        let first = !self.gone && self.is_owed();
        if first {
            self.gone = true;
            self.condition.note(Harm::FlushesFail);
        }
        first
    }

    /// Whether anything is written that is not known to be durable.
    pub(super) fn is_owed(&self) -> bool {
        self.written > self.durable
    }

    /// Whether writes may be gone, so that no flush can promise anything.
    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_answered_before_it_was_sent_only() {
        let mut unflushed = Unflushed::default();
        assert!(!unflushed.is_owed(), "nothing is written");
        unflushed.wrote();
        assert!(unflushed.is_owed());
        let mark = unflushed.mark();
        unflushed.flushed(mark);
        assert!(!unflushed.is_owed());
        assert!(!unflushed.lost(), "all of it is durable");
        unflushed.wrote();
        let early = unflushed.mark();
        unflushed.wrote();
        unflushed.flushed(early);
        unflushed.flushed(mark);
        assert!(unflushed.lost(), "the last write is not durable");
    }

    #[test]
    fn what_is_gone_stays_so_and_is_told_once() {
        let mut unflushed = Unflushed::default();
        unflushed.wrote();
        assert!(!unflushed.is_gone(), "the server is there and has it");
        assert!(unflushed.lost());
        unflushed.flushed(unflushed.mark());
        unflushed.wrote();
        assert!(!unflushed.lost());
        assert!(unflushed.is_gone());
    }
}
