//! The gate of a pool's disk: what changes it waits while a snapshot is taken, or a set of disks is held.
//!
//! Writes wait; those under way end; everything becomes durable; the root is written; writes go on. Reads never wait.
//!
//! # Always true
//! - between the commit of a closed gate and its opening nothing changes the disk
//!
//! # Picture
//! ```text
//!   open ──order──> draining ──fence, no sub-I/O, commit──> switching ──root──> open
//!                          └──hold──> held ──snapshot──> switching ──root──> held ──go──> open
//! ```

use super::Pool;
use super::commit::Waiter;
use super::ops::Wait;
use super::root::Change;
use super::setup::Generation;
use crate::layout::{LayoutCx, OrderRefusal, Ordered};
use crate::request::Outcome;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    Draining {
        then: Then,
        fence: u64,
        /// Whether everything has ended, and the commit has begun.
        is_quiet: bool,
    },
    Held,
    /// The root is being written.
    Switching {
        was_held: bool,
    },
}

/// What a drained disk does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Hold,
    Change(Change),
}

impl Gate {
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        *self == Gate::Open
    }
}

impl Pool {
    pub(super) fn order_snapshot(
        &mut self,
        cx: &mut LayoutCx<'_>,
    ) -> Result<Ordered, OrderRefusal> {
        self.may_grow()?;
        self.close_gate(cx, Then::Change(Change::Snapshot))
    }

    pub(super) fn order_roll_back(
        &mut self,
        cx: &mut LayoutCx<'_>,
        to: Generation,
    ) -> Result<Ordered, OrderRefusal> {
        let to = self.named(to)?;
        self.may_grow()?;
        self.close_gate(cx, Then::Change(Change::RollBack(to)))
    }

    pub(super) fn order_hold(&mut self, cx: &mut LayoutCx<'_>) -> Result<Ordered, OrderRefusal> {
        match self.gate {
            Gate::Open => self.close_gate(cx, Then::Hold),
            _ => Err(OrderRefusal::Busy),
        }
    }

    pub(super) fn order_go(&mut self, cx: &mut LayoutCx<'_>) -> Result<Ordered, OrderRefusal> {
        match self.gate {
            Gate::Held => {
                self.open_gate(cx);
                self.go_on(cx);
                Ok(Ordered::Now)
            }
            Gate::Open => Ok(Ordered::Now),
            _ => Err(OrderRefusal::Busy),
        }
    }

    /// A generation of the disk that is not written, and was not deleted.
    ///
    /// # Errors
    /// There is no such generation.
    pub(super) fn named(&self, number: Generation) -> Result<u16, OrderRefusal> {
        let found = self.forest.find(0, number);
        let found = found.filter(|it| *it != self.current() && !self.forest.at(*it).is_going);
        found.ok_or(OrderRefusal::NoGeneration)
    }

    fn close_gate(&mut self, cx: &mut LayoutCx<'_>, then: Then) -> Result<Ordered, OrderRefusal> {
        match (self.gate, then) {
            (Gate::Open, _) if self.detaching => Err(OrderRefusal::Busy),
            (Gate::Open, _) => {
                let fence = self.space.next_fence(cx);
                self.gate = Gate::Draining {
                    then,
                    fence,
                    is_quiet: false,
                };
                self.go_through_gate(cx);
                self.begin_commit(cx);
                Ok(Ordered::Later)
            }
            (Gate::Held, Then::Change(change)) => {
                self.gate = Gate::Switching { was_held: true };
                self.change_root(cx, change);
                Ok(Ordered::Later)
            }
            _ => Err(OrderRefusal::Busy),
        }
    }

    /// Goes on with a drain: everything under way may have ended.
    pub(super) fn go_through_gate(&mut self, cx: &mut LayoutCx<'_>) {
        let Gate::Draining {
            then,
            fence,
            is_quiet: false,
        } = self.gate
        else {
            return;
        };
        if !self.has_ended_moves(cx) || self.pieces > 0 {
            return;
        }
        if !self.space.is_fenced(fence) {
            self.space.next_fence(cx);
            return;
        }
        self.gate = Gate::Draining {
            then,
            fence,
            is_quiet: true,
        };
        self.waiters.push(Waiter::Gate);
        self.begin_commit(cx);
    }

    /// Everything of a drained disk is durable, or could not be made so.
    pub(super) fn gate_committed(&mut self, cx: &mut LayoutCx<'_>, outcome: Outcome) {
        let Gate::Draining {
            then,
            is_quiet: true,
            ..
        } = self.gate
        else {
            return;
        };
        match (outcome, then) {
            (Err(_), _) => {
                cx.ordered(Err(OrderRefusal::Unrecorded));
                self.open_gate(cx);
            }
            (Ok(()), Then::Hold) => {
                self.gate = Gate::Held;
                cx.ordered(Ok(()));
            }
            (Ok(()), Then::Change(change)) => {
                self.gate = Gate::Switching { was_held: false };
                self.change_root(cx, change);
            }
        }
    }

    /// The root was written for a closed gate.
    pub(super) fn gate_switched(
        &mut self,
        cx: &mut LayoutCx<'_>,
        answer: Result<(), OrderRefusal>,
    ) {
        cx.ordered(answer);
        match self.gate {
            Gate::Switching { was_held: true } if !self.detaching => self.gate = Gate::Held,
            _ => self.open_gate(cx),
        }
    }

    fn open_gate(&mut self, cx: &mut LayoutCx<'_>) {
        self.gate = Gate::Open;
        self.retry(cx, Wait::Gate);
    }

    /// The disk is being detached: nothing waits at the gate.
    pub(super) fn give_up_gate(&mut self, cx: &mut LayoutCx<'_>) {
        match self.gate {
            Gate::Draining { .. } => {
                cx.ordered(Err(OrderRefusal::Unrecorded));
                self.open_gate(cx);
            }
            Gate::Held => self.open_gate(cx),
            Gate::Open | Gate::Switching { .. } => {}
        }
    }
}
