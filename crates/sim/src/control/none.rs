//! The policy `none`: one queue for all disks of a host, at the usual queue depth.
//!
//! # Always true
//! - I/Os are served in order of arrival.

use super::{Control, ControlState, Ended, Next, Offered, SlotIo, Slots};
use crate::scenario::{Scenario, Settings};
use std::collections::VecDeque;
use tidegate_core::iocontrol::{Cost, CostModel};
use tidegate_core::request::IoId;
use tidegate_core::units::Time;

/// The most I/Os in flight of a host without control: the widest window (the published upper bound of a host's queue).
const DEEPEST: usize = 256;

/// See the module.
pub(super) struct NoControl {
    waiting: VecDeque<(usize, IoId, Cost)>,
    in_flight: usize,
    threads: Vec<usize>,
    costs: CostModel,
}

impl NoControl {
    pub(super) fn new(scenario: &Scenario, _host: usize) -> NoControl {
        NoControl {
            waiting: VecDeque::new(),
            in_flight: 0,
            threads: scenario.disks.iter().map(|disk| disk.thread).collect(),
            costs: super::governor_loop::costs(scenario.datastore.kind),
        }
    }
}

impl Control for NoControl {
    fn offer(&mut self, _now: Time, offered: &Offered) -> Option<Cost> {
        let cost = self.costs.cost(offered.op, offered.len, false);
        if self.in_flight < DEEPEST {
            self.in_flight += 1;
            return Some(cost);
        }
        self.waiting.push_back((offered.disk, offered.io, cost));
        None
    }

    fn pick(&mut self, _now: Time, thread: usize) -> Next {
        let Some(&(disk, io, cost)) = self.waiting.front() else {
            return Next::Nothing;
        };
        if self.in_flight >= DEEPEST {
            return Next::Nothing;
        }
        if self.threads[disk] != thread {
            return Next::Thread(self.threads[disk]);
        }
        self.waiting.pop_front();
        self.in_flight += 1;
        Next::Start(io, cost)
    }

    fn finished(&mut self, _now: Time, _ended: &Ended) {
        self.in_flight -= 1;
    }

    fn deadline(&self, _thread: usize) -> Option<Time> {
        None
    }

    fn wake_at(&self) -> Time {
        Time::NEVER
    }

    fn wake(&mut self, _now: Time, _out: &mut Vec<SlotIo>) {}

    fn slots_read(&mut self, _now: Time, _slots: &Slots, _out: &mut Vec<SlotIo>) {}

    fn slot_written(&mut self, _now: Time, _fine: bool) {}

    fn change(&mut self, _now: Time, _disk: usize, _settings: &Settings) {}

    fn state(&self) -> ControlState {
        ControlState::default()
    }
}
