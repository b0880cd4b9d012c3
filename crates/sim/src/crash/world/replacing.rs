//! Replacement of a simulated mirror's member.
//!
//! As the daemon does it: the member is dropped, and that is recorded; its image is exchanged for a blank one; then the
//! layout is told.
//!
//! The old image completes the I/O that it was given, and nothing of that reaches the new one.

use super::{DISK, Started, World};
use tidegate_core::effect::Effect;
use tidegate_core::layout::{LayoutOrder, OrderRefusal, Target};

/// A replacement whose drop is not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Replacing {
    member: Target,
    /// Whether an order was refused meanwhile.
    is_refused: bool,
}

impl World {
    /// Begins to replace a member, unless another one is being replaced.
    pub(super) fn replace(&mut self, member: Target) {
        if self.replacing.is_some() {
            return;
        }
        self.replacing = Some(Replacing {
            member,
            is_refused: false,
        });
        self.order(LayoutOrder::Drop(member));
    }

    /// An order is answered.
    pub(super) fn replacement_advances(&mut self, outcome: Result<(), OrderRefusal>) {
        let Some(replacing) = &mut self.replacing else {
            return;
        };
        replacing.is_refused |= outcome.is_err();
        let Replacing { member, is_refused } = *replacing;
        if self.ordered > 0 {
            return;
        }
        self.replacing = None;
        // As the engine does.
        let report = self.shard.layout_report(DISK);
        let own = report.and_then(|report| report.members.get(usize::from(member.0)).copied());
        if !is_refused && own.is_some_and(|own| !own.is_relied_on()) {
            self.exchange(member);
            self.order_now(LayoutOrder::Replace(member));
        }
    }

    /// The member has a blank image from now on. What the old one was given stays with it.
    pub(super) fn exchange(&mut self, member: Target) {
        let store = self.store_of(member);
        self.note(|| format!("store {store} is exchanged for a blank one"));
        let effects = std::mem::take(&mut self.effects);
        let (started, others) = effects.into_iter().partition(|effect| {
            matches!(effect,
                Effect::Start { target, .. }
                | Effect::ReadBlock { target, .. }
                | Effect::WriteBlock { target, .. } if *target == member)
        });
        self.effects = started;
        while !self.effects.is_empty() {
            self.perform();
        }
        self.effects = others;
        let blank = self.stores[store].blank();
        let old = std::mem::replace(&mut self.stores[store], blank);
        let own = |started: &&mut Started| started.target == store && started.retired.is_none();
        for started in self.in_flight.iter_mut().filter(own) {
            started.retired = Some(self.retired.len());
        }
        self.retired.push(old);
    }
}
