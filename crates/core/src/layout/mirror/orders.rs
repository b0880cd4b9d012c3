//! The administrator's orders to a mirror.
//!
//! # Always true
//! - an order to do without a member is answered after those that stay have recorded it: the caller may delete its data
//! - an order is answered in bounded time, also if those that stay hang
//! - nothing waits for the image that a replaced member had

use super::Mirror;
use crate::layout::{DropCause, LayoutCx, OnLoss, OrderRefusal, Ordered, Target};
use crate::units::Span;

/// How long an order to do without a member waits for the record. Origin: chosen; as long as members' default timeout.
const PATIENCE: Span = Span::from_secs(10);

impl Mirror {
    /// Uses a member again.
    pub(super) fn order_rebuild(
        &mut self,
        cx: &mut LayoutCx<'_>,
        member: u8,
    ) -> Result<Ordered, OrderRefusal> {
        self.may_rebuild(member)?;
        self.readmission.barred &= !(1 << member);
        self.readmission.at[usize::from(member)] = Some(cx.now());
        if cx.load(Target(member)) > 0 {
            return Err(OrderRefusal::InFlight);
        }
        self.readmit_next(cx);
        Ok(Ordered::Now)
    }

    /// Whether a member can get all bytes now; then its label is written first.
    pub(super) fn may_rebuild(&self, member: u8) -> Result<(), OrderRefusal> {
        if !self.opening_is_done() || self.closing {
            return Err(OrderRefusal::NotOpen);
        }
        if self.in_sync >> member & 1 == 1 {
            return Err(OrderRefusal::InSync);
        }
        let is_busy = self.syncing.is_some() || self.scrub.is_some() || self.loss.is_some();
        if is_busy || self.readmission.is_busy() {
            return Err(OrderRefusal::Busy);
        }
        Ok(())
    }

    /// A member has another image, whose label is written next. Its old one may never end what it has.
    pub(super) fn order_replace(
        &mut self,
        cx: &mut LayoutCx<'_>,
        member: u8,
    ) -> Result<Ordered, OrderRefusal> {
        self.may_rebuild(member)?;
        self.do_without(cx, member, DropCause::Ordered);
        self.feed_hungry(cx);
        Ok(Ordered::Now)
    }

    /// Does without a member.
    pub(super) fn order_drop(
        &mut self,
        cx: &mut LayoutCx<'_>,
        member: u8,
    ) -> Result<Ordered, OrderRefusal> {
        if !self.opening_is_done() {
            return Err(OrderRefusal::NotOpen);
        }
        if self.loss.is_some() {
            return Err(OrderRefusal::Busy);
        }
        let bit = 1 << member;
        if !self.can_spare(bit) {
            return Err(OrderRefusal::Last);
        }
        self.readmission.barred |= bit;
        self.stop_reading(member);
        self.drop_for(cx, bit, DropCause::Ordered);
        self.record(cx);
        if self.is_drop_recorded() {
            return Ok(Ordered::Now);
        }
        self.dropping += 1;
        self.dropped_by = Some(cx.now() + PATIENCE);
        Ok(Ordered::Later)
    }

    fn is_drop_recorded(&self) -> bool {
        self.records.durable >= self.records.set_at
    }

    /// A state is recorded: answers the orders that waited for it.
    pub(super) fn drops_recorded(&mut self, cx: &mut LayoutCx<'_>) {
        if self.is_drop_recorded() {
            self.answer_drops(cx, Ok(()));
        }
    }

    pub(super) fn answer_drops(
        &mut self,
        cx: &mut LayoutCx<'_>,
        outcome: Result<(), OrderRefusal>,
    ) {
        self.dropped_by = None;
        for _ in 0..core::mem::take(&mut self.dropping) {
            cx.ordered(outcome);
        }
    }

    /// One more member, which is blank. States name it from the next one on.
    pub(super) fn order_add_member(&mut self) -> Result<Ordered, OrderRefusal> {
        if !self.opening_is_done() || self.closing {
            return Err(OrderRefusal::NotOpen);
        }
        let member = self.members;
        self.members += 1;
        self.readmission.barred |= 1 << member;
        Ok(Ordered::Now)
    }

    /// What to do from now on after the loss of every member in sync.
    pub(super) fn order_on_loss(&mut self, cx: &mut LayoutCx<'_>, on_loss: OnLoss) -> Ordered {
        self.on_loss = on_loss;
        if on_loss == OnLoss::Fail {
            self.fail_held(cx);
        }
        Ordered::Now
    }
}
