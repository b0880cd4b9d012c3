//! An I/O thread that a test runs turn by turn, by a clock of its own.
//!
//! All else is real: the ring, the shard, queues and images. So what a thread does is counted without the machine's noise.
//! It never sleeps. The test runs the next turn when something is due.
//!
//! # Always true
//! - the test's clock is ahead of the system's: what reads the system's clock in the middle of a turn finds nothing due

use super::commands::{Command, Inbox};
use super::peers::Peers;
use super::{IoThread, ThreadConfig};
use crate::counters::Statistics;
use std::sync::Arc;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::units::{Span, Time};

/// See the module.
pub(crate) struct SteppedThread {
    thread: IoThread,
    inbox: Arc<Inbox>,
}

impl SteppedThread {
    /// When the test's clock begins: a century after the system's.
    pub(crate) const BEGIN: Time = Time::from_nanos(100 * 365 * 86_400 * 1_000_000_000);

    /// A thread without disks.
    pub(crate) fn new(coalesce: Coalesce) -> SteppedThread {
        let config = ThreadConfig {
            poll: Span::ZERO,
            always_poll: false,
            cpu: None,
            coalesce,
            signals: Arc::default(),
        };
        let peers = Arc::new(Peers::new(1).expect("a descriptor"));
        let inbox = Arc::clone(peers.inbox(0));
        let page = Statistics::default().add_thread();
        let thread = IoThread::new("stepped".into(), peers, 0, config, page);
        SteppedThread {
            thread: thread.expect("a ring"),
            inbox,
        }
    }

    /// Sends a command. The next turn handles it.
    pub(crate) fn order(&self, order: Command) {
        self.inbox.send_always(order);
    }

    /// One turn. Returns whether it found work.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        self.thread.cx.now = now;
        self.thread.turn()
    }

    /// Whether a guest is to be called in a few microseconds, so that a thread that polls goes on.
    pub(crate) fn has_pending_calls(&self) -> bool {
        !self.thread.pending_interrupts.is_empty()
    }

    /// When something is due.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.thread.next_deadline()
    }
}
