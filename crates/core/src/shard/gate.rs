//! The gate of a disk: it admits requests, and drains the disk for a change of filters or a detachment.
//!
//! The shard checks it for each request, and again when an I/O of a draining disk completes.
//!
//! # Always true
//! - filters change, and a disk is detached, only while no I/O of the disk is in flight
//! - draining waits for the datastore only: delays of a removed filter, and the limit of a disk that is being detached,
//!   end when draining begins

use super::dispatch::stack_cx;
use super::{Disk, Shard, refuse};
use crate::effect::Effect;
use crate::filter::FilterKey;
use crate::layout::{CacheChange, Tree};
use crate::request::{DiskId, Fault, Op, Outcome, Request, Token};
use crate::stack::{self, Place, Stack, StackCx};
use crate::units::Time;
use alloc::vec::Vec;

/// Whether the disk accepts requests.
pub(super) enum Gate {
    /// Requests enter the stack.
    Open,
    /// Requests wait until the disk's layout is open.
    Opening,
    /// Requests wait until nothing is in flight, of guests and of layouts.
    Holding,
    /// Requests wait for other layouts.
    Held,
    /// Requests wait for a change to these filters.
    Draining(Vec<Place>),
    /// Requests are answered `Gone`.
    Detaching,
}

impl Gate {
    /// Whether the filter stays in the stack when the gate opens again.
    fn keeps(&self, filter: FilterKey) -> bool {
        match self {
            Gate::Open | Gate::Opening | Gate::Holding | Gate::Held => true,
            Gate::Draining(places) => places
                .iter()
                .any(|place| matches!(place, Place::Keep(key) if *key == filter)),
            Gate::Detaching => false,
        }
    }
}

impl Shard {
    /// Opens the layout of a disk that was attached, if it has one; its requests wait meanwhile.
    pub(super) fn open(&mut self, now: Time, id: DiskId, out: &mut Vec<Effect>) {
        let disk = self.disks[id.0 as usize]
            .as_mut()
            .expect("the disk was attached");
        let mut cx = stack_cx(
            &mut disk.ios,
            &mut self.schedulers,
            &mut disk.qos,
            &mut self.arena,
            now,
            id,
            out,
        );
        if disk.stack.open(&mut cx) {
            disk.gate = Gate::Opening;
            self.finish_drain(now, id, out);
        }
    }

    /// Holds the disk's requests, and lets its I/O end.
    pub(super) fn hold(&mut self, now: Time, id: DiskId, out: &mut Vec<Effect>) {
        let disk = self.disks[id.0 as usize].as_mut();
        if let Some(disk) = disk.filter(|disk| matches!(disk.gate, Gate::Open)) {
            disk.gate = Gate::Holding;
            self.finish_drain(now, id, out);
        }
    }

    /// Whether the disk's layouts are about to be replaced: then they begin nothing.
    pub(super) fn is_held(&self, id: DiskId) -> bool {
        let disk = self.disks.get(id.0 as usize).and_then(Option::as_ref);
        disk.is_some_and(|disk| matches!(disk.gate, Gate::Holding | Gate::Held))
    }

    /// Whether nothing of a disk is under way, because its layouts are about to be replaced.
    pub(super) fn has_drained(&self, id: DiskId) -> bool {
        let disk = self.disks.get(id.0 as usize).and_then(Option::as_ref);
        disk.is_some_and(|disk| matches!(disk.gate, Gate::Held) || disk.stack.is_paused())
    }

    /// Lets the requests of a disk go on that was to be held and is not yet.
    pub(super) fn unhold(&mut self, now: Time, id: DiskId, out: &mut Vec<Effect>) {
        let disk = self.disks[id.0 as usize].as_mut();
        if let Some(disk) = disk.filter(|disk| matches!(disk.gate, Gate::Holding)) {
            disk.gate = Gate::Open;
            let waiting = core::mem::take(&mut disk.waiting);
            self.with_stack(now, id, out, |stack, cx| stack.resume(cx));
            for (token, request) in waiting {
                self.submitted(now, id, token, &request, out);
            }
        }
    }

    /// Puts a held disk over other layouts.
    pub(super) fn relay(
        &mut self,
        now: Time,
        id: DiskId,
        tree: Option<Tree>,
        out: &mut Vec<Effect>,
    ) {
        self.open_held(now, id, out, |stack, cx| stack.relay(cx, tree));
    }

    /// Changes the flash cache of a held disk.
    pub(super) fn change_cache(
        &mut self,
        now: Time,
        id: DiskId,
        change: CacheChange,
        out: &mut Vec<Effect>,
    ) {
        self.open_held(now, id, out, |stack, cx| stack.change_cache(cx, change));
    }

    /// Changes the layouts of a held disk, and opens its gate once these are open. `change` returns whether they open.
    fn open_held(
        &mut self,
        now: Time,
        id: DiskId,
        out: &mut Vec<Effect>,
        change: impl FnOnce(&mut Stack, &mut StackCx<'_>) -> bool,
    ) {
        let disk = self.disks[id.0 as usize].as_mut();
        let Some(disk) = disk.filter(|disk| matches!(disk.gate, Gate::Held)) else {
            return;
        };
        let mut cx = stack_cx(
            &mut disk.ios,
            &mut self.schedulers,
            &mut disk.qos,
            &mut self.arena,
            now,
            id,
            out,
        );
        disk.gate = Gate::Opening;
        if !change(&mut disk.stack, &mut cx) {
            disk.stack.opened_at_once();
        }
        self.note_timed();
        self.finish_drain(now, id, out);
    }

    /// Closes the gate, and ends the delays that would only prolong the drain. A disk may be detached while its filters
    /// change: then they do not change any more.
    pub(super) fn close(&mut self, now: Time, id: DiskId, gate: Gate, out: &mut Vec<Effect>) {
        let disk = self.disks[id.0 as usize]
            .as_mut()
            .expect("the engine names only disks that it has attached");
        let gate = match (&disk.gate, gate) {
            // No I/O is inside yet.
            (Gate::Opening | Gate::Held, Gate::Draining(places)) => {
                disk.stack.rearrange(now, id, places, out);
                out.push(Effect::Rearranged { disk: id });
                return self.note_timed();
            }
            (_, gate) => gate,
        };
        disk.gate = gate;
        let mut cx = stack_cx(
            &mut disk.ios,
            &mut self.schedulers,
            &mut disk.qos,
            &mut self.arena,
            now,
            id,
            out,
        );
        let gate = &disk.gate;
        disk.stack.release(&mut cx, |filter| gate.keeps(filter));
        if matches!(gate, Gate::Detaching) {
            let exit = &mut cx.exit;
            exit.qos.lift_limits(exit.schedulers, now, id);
            disk.stack.detaching(&mut cx);
        }
        self.go_on(now, id, out);
    }

    /// The client of these requests has disconnected. Requests that the datastore does not have complete now, also
    /// those at the gate.
    pub(super) fn abandon(
        &mut self,
        now: Time,
        id: DiskId,
        mut tokens: Vec<Token>,
        out: &mut Vec<Effect>,
    ) {
        // Sorted for binary search: hundreds of tokens meet thousands of waiting requests.
        tokens.sort_unstable();
        let Some(disk) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        disk.waiting.retain(|(token, request)| {
            let gone = tokens.binary_search(token).is_ok();
            if gone {
                refuse(id, *token, request, Fault::Gone, out);
            }
            !gone
        });
        let mut cx = stack_cx(
            &mut disk.ios,
            &mut self.schedulers,
            &mut disk.qos,
            &mut self.arena,
            now,
            id,
            out,
        );
        disk.stack.abandon(&mut cx, &tokens);
        self.go_on(now, id, out);
    }

    /// Changes the filters or detaches the disk, if no I/O is in flight.
    pub(super) fn finish_drain(&mut self, now: Time, id: DiskId, out: &mut Vec<Effect>) {
        let disk = self.disks[id.0 as usize]
            .as_mut()
            .expect("the caller has found the disk");
        if !disk.stack.is_quiet() {
            return;
        }
        if matches!(disk.gate, Gate::Detaching | Gate::Holding) {
            let detaches = matches!(disk.gate, Gate::Detaching);
            let mut cx = stack_cx(
                &mut disk.ios,
                &mut self.schedulers,
                &mut disk.qos,
                &mut self.arena,
                now,
                id,
                out,
            );
            let idle = match detaches {
                true => disk.stack.close(&mut cx),
                false => disk.stack.pause(&mut cx),
            };
            if !idle {
                // What it issued last may be queued.
                return self.pick_members(now, id, out);
            }
        }
        match core::mem::replace(&mut disk.gate, Gate::Open) {
            Gate::Open => {}
            Gate::Holding => {
                disk.gate = Gate::Held;
                out.push(Effect::Held { disk: id });
            }
            Gate::Held => disk.gate = Gate::Held,
            Gate::Opening => self.finish_opening(now, id, out),
            Gate::Draining(places) => {
                disk.stack.rearrange(now, id, places, out);
                out.push(Effect::Rearranged { disk: id });
                let waiting = core::mem::take(&mut disk.waiting);
                self.note_timed();
                for (token, request) in waiting {
                    self.submitted(now, id, token, &request, out);
                }
            }
            Gate::Detaching => {
                disk.stack.rearrange(now, id, Vec::new(), out);
                for (token, request) in disk.waiting.drain(..) {
                    out.push(Effect::Answer {
                        disk: id,
                        token,
                        op: request.op,
                        outcome: Err(Fault::Gone),
                    });
                }
                let spent = disk.qos.withdraw(&mut self.schedulers, id);
                self.forget(id);
                self.note_timed();
                out.push(Effect::Detached { disk: id, spent });
            }
        }
    }

    /// Opens the gate once the layouts are open.
    fn finish_opening(&mut self, now: Time, id: DiskId, out: &mut Vec<Effect>) {
        let disk = self.disk(id);
        let Some(outcome) = disk.stack.take_opened() else {
            disk.gate = Gate::Opening;
            return;
        };
        out.push(Effect::Opened { disk: id, outcome });
        let new_cache = disk.stack.take_new_cache();
        if outcome.is_err() {
            // Its requests go on waiting until it is detached, or until the cache that was refused is removed.
            disk.gate = if new_cache { Gate::Held } else { Gate::Opening };
            return;
        }
        let waiting = core::mem::take(&mut disk.waiting);
        if disk.stack.is_paused() {
            self.with_stack(now, id, out, |stack, cx| stack.resume(cx));
        }
        for (token, request) in waiting {
            self.submitted(now, id, token, &request, out);
        }
    }
}

impl Disk {
    /// Handles a request at a closed gate: it waits for the new filters, or is rejected.
    #[cold]
    #[inline(never)]
    pub(super) fn hold_or_reject(
        &mut self,
        id: DiskId,
        token: Token,
        request: &Request,
        out: &mut Vec<Effect>,
    ) {
        if matches!(self.gate, Gate::Detaching) {
            return refuse(id, token, request, Fault::Gone, out);
        }
        self.waiting.push_back((token, *request));
    }

    /// Whether the request is valid for this disk.
    #[inline]
    pub(super) fn admits(&self, request: &Request) -> Outcome {
        if self.read_only && request.op.modifies() {
            return Err(Fault::ReadOnly);
        }
        let end = request.offset.checked_add(request.len);
        if stack::has_range(request.op) && end.is_none_or(|end| end > self.size) {
            // As NBD specifies: a write past the end fails with no space, any other request is invalid.
            let write = matches!(request.op, Op::Write | Op::WriteZeroes);
            return Err(if write {
                Fault::NoSpace
            } else {
                Fault::Invalid
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::ControlId;
    use crate::filter::FilterSpec;
    use crate::iocontrol::shared::{Groups, Shared};
    use crate::iocontrol::{DiskKey, GroupId, GroupPolicy, Limit, Policy, Scheduler};
    use crate::request::{Data, Flags, IoId};
    use crate::shard::{Controlled, Event};
    use crate::stack::Stack;
    use crate::units::Span;
    use alloc::boxed::Box;

    const DISK: DiskId = DiskId(0);
    const CONTROL: ControlId = ControlId(0);

    fn stack(filters: &[&str]) -> Stack {
        let specs = filters
            .iter()
            .map(|text| text.parse::<FilterSpec>().expect("a filter").build());
        Stack::new((0..).map(FilterKey).zip(specs).collect())
    }

    fn handle(shard: &mut Shard, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        shard.handle(Time::ZERO, event, &mut out);
        out
    }

    fn with(filters: &[&str]) -> Shard {
        let mut shard = Shard::new(4);
        let attach = Event::Attach {
            disk: DISK,
            size: 1 << 20,
            read_only: false,
            stack: stack(filters),
            control: None,
        };
        handle(&mut shard, attach);
        shard
    }

    fn submit(shard: &mut Shard, token: u64) -> Vec<Effect> {
        let request = Request {
            op: Op::Read,
            flags: Flags::NONE,
            offset: token * 8192,
            len: 4096,
            data: Data::NONE,
            arrived: Time::ZERO,
        };
        let (disk, token) = (DISK, Token(token));
        let submitted = Event::Submitted {
            disk,
            token,
            request,
        };
        handle(shard, submitted)
    }

    fn rearrange(shard: &mut Shard, keys: &[u32]) -> Vec<Effect> {
        let places = keys.iter().map(|key| Place::Keep(FilterKey(*key)));
        let places = places.collect();
        handle(shard, Event::Rearrange { disk: DISK, places })
    }

    fn finish(shard: &mut Shard, io: IoId) -> Vec<Effect> {
        let (disk, outcome) = (DISK, Ok(()));
        handle(shard, Event::Finished { disk, io, outcome })
    }

    fn starts(effects: &[Effect]) -> Vec<IoId> {
        let io = |effect: &Effect| match effect {
            Effect::Start { io, .. } => Some(*io),
            _ => None,
        };
        effects.iter().filter_map(io).collect()
    }

    #[test]
    fn a_removed_filter_releases_its_delayed_ios_at_once() {
        let mut shard = with(&["stats", "fault:delay=3600s", "null"]);
        assert!(submit(&mut shard, 1).is_empty());
        assert!(submit(&mut shard, 2).is_empty());
        let begun = starts(&rearrange(&mut shard, &[0, 2]));
        assert_eq!(begun.len(), 2, "in order, below the filter");
        assert_eq!(finish(&mut shard, begun[0]).len(), 1);
        let last = finish(&mut shard, begun[1]);
        assert!(matches!(
            last[..],
            [Effect::Answer { .. }, Effect::Rearranged { .. }]
        ));
        assert_eq!(shard.deadline(), None);
    }

    #[test]
    fn ios_released_by_a_removed_filter_are_not_delayed_by_another() {
        let delay = "fault:delay=3600s";
        let mut shard = with(&[delay, "null", delay, delay]);
        submit(&mut shard, 1);
        assert_eq!(starts(&rearrange(&mut shard, &[1])).len(), 1);
    }

    #[test]
    fn a_remaining_filter_continues_to_delay_but_removed_ones_do_not() {
        let mut shard = with(&["fault:delay=1s", "fault:delay=3600s"]);
        submit(&mut shard, 1);
        assert!(rearrange(&mut shard, &[0]).is_empty());
        let mut out = Vec::new();
        let in_a_second = Time::from_nanos(1_000_000_000);
        shard.handle(in_a_second, Event::Ticked, &mut out);
        assert_eq!(starts(&out).len(), 1);
    }

    #[test]
    fn a_delayed_failure_occurs_when_its_filter_is_removed() {
        let mut shard = with(&["fault:delay=3600s,error=eio"]);
        submit(&mut shard, 1);
        let out = rearrange(&mut shard, &[]);
        assert!(matches!(
            out[..],
            [
                Effect::Answer {
                    outcome: Err(Fault::Io),
                    ..
                },
                Effect::Rearranged { .. }
            ]
        ));
    }

    #[test]
    fn detaching_ignores_delays_even_while_filters_change() {
        let mut shard = with(&["fault:delay=3600s"]);
        submit(&mut shard, 1);
        assert!(rearrange(&mut shard, &[0]).is_empty());
        assert!(submit(&mut shard, 2).is_empty(), "it waits at the gate");
        let begun = starts(&handle(&mut shard, Event::Detach { disk: DISK }));
        assert_eq!(begun.len(), 1);
        let out = finish(&mut shard, begun[0]);
        let gone = Err(Fault::Gone);
        assert!(matches!(
            out[0],
            Effect::Answer {
                outcome: Ok(()),
                ..
            }
        ));
        assert!(matches!(out[1], Effect::Answer { outcome, .. } if outcome == gone));
        assert!(matches!(out[2..], [Effect::Detached { .. }]));
    }

    fn abandon(shard: &mut Shard, tokens: &[u64]) -> Vec<u64> {
        let tokens = tokens.iter().map(|token| Token(*token)).collect();
        let out = handle(shard, Event::Abandon { disk: DISK, tokens });
        let gone = |effect: &Effect| match effect {
            Effect::Answer { token, outcome, .. } if *outcome == Err(Fault::Gone) => Some(token.0),
            _ => None,
        };
        out.iter().filter_map(gone).collect()
    }

    #[test]
    fn abandoned_ios_in_a_filter_or_at_the_gate_complete_at_once() {
        let mut shard = with(&["stats", "fault:delay=3600s"]);
        for token in [1, 2, 3] {
            assert!(submit(&mut shard, token).is_empty());
        }
        assert_eq!(abandon(&mut shard, &[9, 3, 1]), [1, 3]);
        assert_eq!(abandon(&mut shard, &[1, 3]), [], "once");
        assert!(rearrange(&mut shard, &[0, 1]).is_empty());
        assert!(submit(&mut shard, 4).is_empty() && submit(&mut shard, 5).is_empty());
        assert_eq!(abandon(&mut shard, &[5]), [5]);
        assert_eq!(shard.in_flight(), 1);
        assert_eq!(abandon(&mut shard, &[2]), [2], "and the filters change");
        assert_eq!(abandon(&mut shard, &[4]), [4], "the gate was open again");
        assert_eq!((shard.in_flight(), shard.deadline()), (0, None));
    }

    #[test]
    fn an_abandoned_torn_write_delayed_below_completes_at_once() {
        let mut shard = with(&["fault:torn=512", "fault:torn=512", "fault:delay=3600s"]);
        let (disk, token) = (DISK, Token(7));
        let request = Request {
            op: Op::Write,
            flags: Flags::NONE,
            offset: 0,
            len: 4096,
            data: Data::NONE,
            arrived: Time::ZERO,
        };
        let submitted = Event::Submitted {
            disk,
            token,
            request,
        };
        assert!(handle(&mut shard, submitted).is_empty());
        assert_eq!(abandon(&mut shard, &[8]), []);
        assert_eq!(abandon(&mut shard, &[7]), [7]);
        assert_eq!(shard.in_flight(), 0);
    }

    #[test]
    fn detaching_ignores_the_limits_of_disk_and_group() {
        let limit = Some(Limit {
            sustained: 1,
            peak: 0,
            burst: 0,
        });
        let group = GroupId(0);
        let own = Policy {
            limit,
            ..Policy::default()
        };
        let of_group = Policy {
            group: Some(group),
            ..Policy::default()
        };
        for (policy, counts) in [(own, true), (of_group, false)] {
            let groups = Groups::new(1);
            let bandwidth = None;
            groups.set(Time::ZERO, group, &GroupPolicy { limit, bandwidth });
            let scheduler = Scheduler::new(0, Shared::new(1, &groups), 4096);
            let mut shard = Shard::new(4);
            let (control, scheduler) = (CONTROL, Box::new(scheduler));
            handle(&mut shard, Event::Control { control, scheduler });
            let controlled = Controlled {
                control,
                members: Vec::new(),
                key: DiskKey(5),
                policy,
                spent: None,
            };
            let attach = Event::Attach {
                disk: DISK,
                size: 1 << 20,
                read_only: false,
                stack: stack(&["null"]),
                control: Some(Box::new(controlled)),
            };
            handle(&mut shard, attach);
            let mut begun = starts(&submit(&mut shard, 1));
            for token in 2..5 {
                assert!(submit(&mut shard, token).is_empty());
            }
            begun.extend(starts(&handle(&mut shard, Event::Detach { disk: DISK })));
            assert_eq!(begun.len(), 4);
            let ends: Vec<_> = begun.iter().map(|io| finish(&mut shard, *io)).collect();
            let Some([_, Effect::Detached { spent, .. }]) = ends.last().map(|last| &last[..])
            else {
                panic!("{ends:?}: the disk is detached after its last I/O")
            };
            // The dispatched I/Os still count as use: four at a limit of one a second.
            let over = spent.as_ref().map(|spent| spent.over_at());
            assert_eq!(over, counts.then(|| Time::ZERO + Span::from_secs(4)));
        }
    }
}
