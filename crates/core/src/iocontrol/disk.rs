//! One disk in a scheduler: its queue, tags and limits.
//!
//! Straight-line work only; [`super::scheduler`] decides when.

use super::account::{Account, Waits};
use super::limit::{Gate, Gates, Spent, TICKS_PER_NS, TICKS_PER_S, ticks};
use super::policy::Policy;
use super::tags::{Slope, before, earlier, later, virtual_ticks};
use super::{Cost, DiskKey, Hold, Usage};
use crate::request::{DiskId, IoId};
use crate::units::{Span, Time};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The device time that an idle disk may save: 16 reference I/Os (C_max). A light disk is served at once, and others
/// lose little. Origin: chosen; no measurement.
pub(super) const CREDIT: Cost = Cost(16 * Cost::REFERENCE.0);

/// How far behind a reservation may be when a disk becomes active (sigma). An idle disk accumulates no claim beyond
/// this. Origin: chosen; no measurement.
const RESERVE_SLACK: u64 = 50_000_000 * TICKS_PER_NS;

/// A queued I/O.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) io: IoId,
    pub(super) cost: u64,
    pub(super) units: u64,
    pub(super) bytes: u64,
    pub(super) since: Time,
}

/// The scheduling state of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// No I/O is queued.
    Idle,
    /// It may start an I/O when the scheduler chooses it.
    Ready,
    /// Its own limit delays it.
    Parked(Hold),
    /// Its group's limit delays it.
    InGroup,
    /// It has its part in flight: one of its own I/Os must complete first.
    AtPart,
}

/// See the module.
pub(super) struct Disk {
    pub(super) key: DiskKey,
    pub(super) policy: Policy,
    pub(super) place: Place,
    pub(super) queue: VecDeque<Queued>,
    slope: Slope,
    credit: u64,
    /// Finish tag of the last I/O, and start tag of the next.
    pub(super) tag: u64,
    /// Ticks between two units of the reservation; 0: none.
    reserve_step: u64,
    /// The tick at which the reservation is due.
    pub(super) reserve_at: u64,
    pub(super) gates: Gates,
    pub(super) group: Option<usize>,
    /// Its position in its group's virtual time.
    pub(super) group_tag: u64,
    /// Whether neither a limit nor a group can delay it.
    pub(super) free: bool,
    /// How much it may have in flight.
    pub(super) part: u64,
    /// Whether its first I/O has waited so long that it has priority.
    pub(super) overdue: bool,
    pub(super) waits: Waits,
    /// Cost of background I/Os: started since the last report, and in flight.
    pub(super) background_started: u64,
    pub(super) background_in_flight: u64,
    /// What it had used of its limits when they were lifted.
    lifted: Option<Box<Spent>>,
}

impl Disk {
    pub(super) fn new(key: DiskKey, policy: &Policy, v: u64, theta: u32) -> Disk {
        let mut disk = Disk {
            key,
            policy: policy.clone(),
            place: Place::Idle,
            queue: VecDeque::new(),
            slope: Slope::of(policy.shares),
            credit: 0,
            tag: v,
            reserve_step: 0,
            reserve_at: 0,
            gates: Gates {
                units: Gate::new(policy.limit.as_ref()),
                bytes: Gate::new(policy.bandwidth.as_ref()),
            },
            group: None,
            group_tag: 0,
            free: true,
            part: u64::MAX,
            overdue: false,
            waits: Waits::default(),
            background_started: 0,
            background_in_flight: 0,
            lifted: None,
        };
        disk.derive(theta);
        disk
    }

    /// Restores what the disk had used of its limits when it was last attached.
    pub(super) fn resume(&mut self, now: Time, spent: &Spent) {
        let (limit, bandwidth) = (self.policy.limit.as_ref(), self.policy.bandwidth.as_ref());
        self.gates = spent.of(now, limit, bandwidth);
    }

    /// Records what it has used of its limits before they are lifted, including queued I/Os.
    pub(super) fn note_spent(&mut self, now: Time) {
        if self.lifted.is_none() {
            let mut gates = self.gates;
            for queued in &self.queue {
                gates.pass(now, queued.units, queued.bytes);
            }
            self.lifted = gates.spent().map(Box::new);
        }
    }

    /// What it has used of its limits, if anything.
    pub(super) fn spent(self) -> Option<Box<Spent>> {
        self.lifted.or_else(|| self.gates.spent().map(Box::new))
    }

    pub(super) fn change(&mut self, now: Time, policy: &Policy, theta: u32) {
        self.gates.units.change(now, policy.limit.as_ref());
        self.gates.bytes.change(now, policy.bandwidth.as_ref());
        self.policy = policy.clone();
        self.derive(theta);
    }

    fn derive(&mut self, theta: u32) {
        self.slope = Slope::of(self.policy.shares);
        self.credit = self.slope.span(CREDIT.0);
        self.group = self.policy.group.map(|group| group.0 as usize);
        self.free =
            self.policy.limit.is_none() && self.policy.bandwidth.is_none() && self.group.is_none();
        self.shrink(theta);
    }

    /// Scales the reservation, in 1/65536.
    pub(super) fn shrink(&mut self, theta: u32) {
        let rate = u128::from(self.policy.reservation) * u128::from(theta);
        self.reserve_step = match (u128::from(TICKS_PER_S) << 16).checked_div(rate) {
            None => 0,
            Some(step) => u64::try_from(step).unwrap_or(u64::MAX >> 8).max(1),
        };
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.reserve_step != 0
    }

    /// The disk becomes active. It retains its saved device time, up to the credit.
    pub(super) fn activate(&mut self, now: Time, v: u64) {
        self.tag = later(self.tag, v.wrapping_sub(self.credit));
        self.reserve_at = self
            .reserve_at
            .max(ticks(now).saturating_sub(RESERVE_SLACK));
    }

    /// Advances the tag by this cost, from its value or from `v + lead`, whichever is less. This bounds how long
    /// service beyond a disk's share counts against it.
    #[inline]
    pub(super) fn charge(&mut self, cost: u64, v: u64, lead: u64) {
        self.tag = earlier(self.tag, v.wrapping_add(lead)).wrapping_add(self.slope.span(cost));
    }

    /// Advances the tag by this cost: the disk was chosen by its shares.
    #[inline]
    pub(super) fn charge_turn(&mut self, cost: u64) {
        self.tag = self.tag.wrapping_add(self.slope.span(cost));
    }

    /// Charges the disk for the time that the group's limit needs for its I/O.
    pub(super) fn charge_group(&mut self, ticks: u64) {
        self.group_tag = self
            .group_tag
            .wrapping_add(virtual_ticks(ticks, self.policy.shares));
    }

    #[inline]
    pub(super) fn charge_reservation(&mut self, units: u64) {
        self.reserve_at = self
            .reserve_at
            .saturating_add(units.saturating_mul(self.reserve_step));
    }

    /// The tick by which the first queued I/O must start to meet the latency target, if there is one.
    #[inline]
    pub(super) fn deadline(&self) -> Option<u64> {
        let target = self.policy.latency_target?;
        let first = self.queue.front()?;
        Some(ticks(first.since + target))
    }

    /// Why the disk waits now.
    fn hold(&self, v: u64) -> Hold {
        match self.place {
            Place::Parked(hold) => hold,
            Place::InGroup => Hold::GroupLimit,
            Place::AtPart => Hold::Shares,
            Place::Idle | Place::Ready if before(v, self.tag) => Hold::Shares,
            Place::Idle | Place::Ready => Hold::Window,
        }
    }

    /// Accounts for the queueing time so far. Called before any change of the disk's state.
    #[inline]
    pub(super) fn settle(&mut self, now: Time, v: u64) {
        let hold = self.hold(v);
        self.waits.held(now, self.queue.len(), hold);
    }

    pub(super) fn push(&mut self, now: Time, v: u64, queued: Queued) {
        self.settle(now, v);
        self.waits.came(now, queued.cost);
        self.queue.push_back(queued);
    }

    pub(super) fn pop(&mut self, now: Time, v: u64) -> Option<Queued> {
        self.settle(now, v);
        let queued = self.queue.pop_front()?;
        self.waits.went(now, queued.cost);
        Some(queued)
    }

    /// Removes the queued I/Os that `gone` names.
    pub(super) fn abandon(
        &mut self,
        now: Time,
        v: u64,
        gone: impl Fn(IoId) -> bool,
        out: &mut Vec<IoId>,
    ) {
        self.settle(now, v);
        let waits = &mut self.waits;
        self.queue.retain(|queued| {
            let gone = gone(queued.io);
            if gone {
                waits.went(now, queued.cost);
                out.push(queued.io);
            }
            !gone
        });
    }

    /// Reports the counts and resets them.
    pub(super) fn usage(&mut self, id: DiskId, now: Time, v: u64, account: &mut Account) -> Usage {
        self.settle(now, v);
        let mut usage = Usage {
            shares: self.policy.shares,
            reservation: self.policy.reservation,
            limit: self.policy.limit.map_or(0, |limit| limit.sustained),
            latency_target: self.policy.latency_target.unwrap_or(Span::ZERO),
            active: self.is_active(account),
            burst_left: self.gates.units.burst_left(now),
            ..Usage::none(id, self.key)
        };
        self.waits.report(now, &mut usage);
        account.report(now, &mut usage);
        self.background_started = 0;
        usage
    }

    /// Counts the cost of a background I/O that starts.
    pub(super) fn count_background(&mut self, cost: u64) {
        self.background_started += cost;
        self.background_in_flight += cost;
    }

    /// Whether it issued any I/O since the last report, or has any left, for which somebody waits.
    pub(super) fn is_guest_active(&self, account: &Account) -> bool {
        !self.queue.is_empty()
            || account.cost_started() > self.background_started
            || account.in_flight() > self.background_in_flight
    }

    /// Whether it issued any I/O since the last report, or has any left.
    pub(super) fn is_active(&self, account: &Account) -> bool {
        !self.queue.is_empty() || account.is_active()
    }
}
