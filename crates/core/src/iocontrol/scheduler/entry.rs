//! The entry of an I/O into the scheduler: it starts at once, or is queued.
//!
//! The slow path of [`super::Scheduler::offer`]. It handles datastores with several I/O threads, large requests, disks
//! with limits, and congestion.
//!
//! # Always true
//! - on an uncongested datastore without ready disks, an I/O within its limits bypasses all heaps

use super::Scheduler;
use super::places::pass_group;
use crate::iocontrol::cost::{counted_len, never_held};
use crate::iocontrol::disk::{Place, Queued};
use crate::iocontrol::limit::ticks;
use crate::iocontrol::policy::units;
use crate::iocontrol::{Cost, Hold, Offer};
use crate::request::{DiskId, IoId, Op};
use crate::units::Time;

impl Scheduler {
    /// The slow path of [`Scheduler::offer`].
    #[inline(never)]
    pub(crate) fn consider(
        &mut self,
        now: Time,
        disk: DiskId,
        io: IoId,
        op: Op,
        offset: u64,
        len: u64,
    ) -> Offer {
        let slot = disk.0;
        assert!(
            matches!(self.disks.get(slot as usize), Some(Some(_))),
            "the engine offers I/Os of disks that it has added"
        );
        let account = &mut self.accounts[slot as usize];
        let cost = self.orders.costs.cost(op, len, offset == account.end).0;
        if !matches!(op, Op::Flush) {
            account.end = offset.wrapping_add(len);
        }
        if never_held(op) {
            return self.start_debt(now, slot, cost);
        }
        let bytes = counted_len(op, len);
        let asked = Queued {
            io,
            cost,
            units: units(bytes, self.io_unit),
            bytes,
            since: now,
        };
        if self.passes(now, slot, &asked) {
            self.accounts[slot as usize].started(now, cost, asked.units, bytes);
            return Offer::Start(Cost(cost));
        }
        self.hold(now, slot, asked)
    }

    /// Whether an I/O may start at once under control: the datastore is uncongested, no disk is ready before it, no
    /// limit delays it, and it fits. It is then accounted as started and charged to its limits.
    fn passes(&mut self, now: Time, slot: u32, asked: &Queued) -> bool {
        if !self.passing || !self.is_roomy() {
            return false;
        }
        let Queued {
            cost, units, bytes, ..
        } = *asked;
        let (window, limits) = (self.window, self.limits());
        let disk = self.disks[slot as usize]
            .as_mut()
            .expect("the caller has checked");
        if disk.free {
            return self.member.try_start(cost, cost, window);
        }
        let (group, tick, tag) = (disk.group, ticks(now), disk.group_tag);
        if !limits || disk.place != Place::Idle || disk.gates.due().0 > tick {
            return false;
        }
        if self.is_group_held(now, group, tag) || !self.member.try_start(cost, cost, window) {
            return false;
        }
        let disk = self.disks[slot as usize]
            .as_mut()
            .expect("the caller has checked");
        if let Some(group) = group
            && !pass_group(self.member.groups(), disk, group, now, units, bytes)
        {
            self.member.finish(cost);
            return false;
        }
        disk.gates.units.take(tick, units);
        disk.gates.bytes.take(tick, bytes);
        true
    }

    /// Queues an I/O. It may start at once.
    fn hold(&mut self, now: Time, slot: u32, asked: Queued) -> Offer {
        let v = self.member.v();
        let observes = !self.limits();
        self.now = now;
        let disk = self.disk(slot);
        let Queued {
            cost, units, bytes, ..
        } = asked;
        if observes && disk.queue.is_empty() {
            let late = disk.gates.units.observe(ticks(now), units);
            disk.waits.count_would_be_wait(Hold::Limit, late);
            let late = disk.gates.bytes.observe(ticks(now), bytes);
            disk.waits.count_would_be_wait(Hold::Bandwidth, late);
            self.member.start(cost);
            self.accounts[slot as usize].started(now, cost, units, bytes);
            return Offer::Start(Cost(cost));
        }
        disk.push(now, v, asked);
        let idle = disk.place == Place::Idle;
        let (group, tag) = (disk.group, disk.group_tag);
        self.held += 1;
        self.calm = false;
        if idle {
            // No other disk of its group may become ready either.
            let alone = self.ready.is_empty()
                && self.background.next().is_none()
                && !self.is_group_held(now, group, tag);
            self.place(now, slot);
            if alone && let Ok((started, _, cost)) = self.dispatch(now) {
                assert!(started == slot, "no other disk was ready");
                return Offer::Start(cost);
            }
            self.publish();
        }
        Offer::Wait
    }

    /// Starts an I/O that is never queued, and charges it: the disk's next I/O comes later.
    fn start_debt(&mut self, now: Time, slot: u32, cost: u64) -> Offer {
        let (v, lead, engaged) = (self.member.v(), self.lead, !self.passing);
        self.member.start(cost);
        self.accounts[slot as usize].started(now, cost, 0, 0);
        let disk = self.disk(slot);
        if engaged {
            if disk.place == Place::Idle {
                disk.activate(now, v);
            }
            disk.charge(cost, v, lead);
        }
        self.order(slot);
        self.publish();
        Offer::Start(Cost(cost))
    }
}
