//! The steps of a run: an effect is performed, an I/O ends, the daemon goes on, or time passes.

use super::stores::{Bytes, Started, bytes};
use super::{Seat, World};
use tidegate_core::effect::Effect;
use tidegate_core::request::Op;
use tidegate_core::shard::Event;

/// Everything ends in fewer steps.
const ENOUGH: u32 = 5_000;

impl World {
    /// Performs the next effect.
    pub fn perform(&mut self) {
        let Some(effect) = self.effects.pop_front() else {
            return;
        };
        match effect {
            Effect::Start {
                disk,
                target,
                io,
                op,
                flags,
                offset,
                len,
                data,
            } => {
                let target = usize::from(target.0);
                let started = Started {
                    seat: disk.0,
                    target,
                    io,
                    op,
                    flags,
                    offset,
                    len,
                    bytes: Bytes::Memory(data),
                    mark: self.stores[target].mark(),
                };
                self.begin(started);
            }
            Effect::ReadBlock {
                disk,
                target,
                io,
                offset,
            } => self.begin_block(disk, target, io, Op::Read, offset, None),
            Effect::WriteBlock {
                disk,
                target,
                io,
                offset,
                block,
            } => self.begin_block(disk, target, io, Op::Write, offset, Some(block)),
            Effect::Opened { disk, outcome } => self.opened(disk.0, outcome),
            Effect::Answer { token, outcome, .. } => self.answered(token, outcome),
            Effect::Copy { from, to, len } => {
                let len = usize::try_from(len).expect("a slot is small");
                let from = bytes(&mut self.memory, from, len).to_vec();
                bytes(&mut self.memory, to, len).copy_from_slice(&from);
            }
            Effect::Zero { to, len } => {
                let len = usize::try_from(len).expect("a request is small");
                bytes(&mut self.memory, to, len).fill(0);
            }
            Effect::LayoutNotice { disk, notice } => self.noticed(disk.0, *notice),
            Effect::LayoutOrdered { disk, outcome } => self.ordered(disk.0, outcome),
            Effect::Held { disk } => self.held(disk.0),
            Effect::Detached { disk, .. } => self.detached(disk.0),
            Effect::Sum { .. }
            | Effect::SideWrite { .. }
            | Effect::Rearranged { .. }
            | Effect::Wake { .. } => self.fail(format!("{effect:?} has no cause")),
        }
    }

    /// Lets everything under way end, oldest first.
    pub fn finish(&mut self) {
        for step in 0.. {
            if step > ENOUGH {
                self.fail("what is under way never ends".to_owned());
            }
            if self.breach.is_some() {
                break;
            }
            let goes_on = self.step() || self.waits() && self.pass_time();
            if !goes_on {
                break;
            }
        }
        if self.breach.is_none() && self.waits() {
            let waiting: Vec<String> = self.waiting();
            self.fail(format!("these are never answered: {waiting:?}"));
        }
    }

    /// Continues what is oldest. Returns whether there was something.
    pub fn step(&mut self) -> bool {
        if !self.effects.is_empty() {
            self.perform();
        } else if !self.in_flight.is_empty() {
            self.complete(0, Ok(()));
        } else if !self.deeds.is_empty() {
            self.work();
        } else {
            return false;
        }
        true
    }

    /// Whether somebody waits for an answer.
    pub(super) fn waits(&self) -> bool {
        let mut seats = self.seats.values();
        !self.pending.is_empty() || seats.any(Seat::waits)
    }

    fn waiting(&self) -> Vec<String> {
        let pending = self.pending.values();
        let pending = pending.map(|pending| format!("{:?}", pending.request));
        let seats = self.seats.values().filter(|seat| seat.waits());
        let seats = seats.map(|seat| {
            format!(
                "{:?}: {:?} {:?} {:?} {:?}",
                seat.kind, seat.opened, seat.ordered, seat.leaving, seat.holding
            )
        });
        pending.chain(seats).collect()
    }

    /// Time passes until the shard's next deadline. Returns whether there was one.
    pub fn pass_time(&mut self) -> bool {
        let Some((at, _)) = self.shard.deadline() else {
            return false;
        };
        self.note(|| format!("time passes until {at:?}"));
        self.now = self.now.max(at);
        self.handle(Event::Ticked);
        true
    }
}
