//! The state machine of one I/O thread: events of its disks go in, effects come out.
//!
//! The I/O thread (or the simulator) calls [`Shard::handle`] for each event and performs the effects in order. For a
//! batch it calls [`Shard::gather`] for each request or completion, then [`Shard::flow`] once. Filters and scheduler then
//! work on the whole batch.
//!
//! The shard checks each request at the disk's gate (range, read-only, draining); [`crate::stack`] passes it through the
//! filters. On a datastore under I/O control a [`Scheduler`](crate::iocontrol::Scheduler) queues the I/Os that may not
//! start yet. The shard does not know rings, sockets, files or bytes.
//!
//! # Always true
//! - every [`Event::Submitted`] is answered by exactly one [`Effect::Answer`] (property-tested with random filters)
//! - while the filters of a disk change, its requests wait in order; none is rejected
//! - an I/O that reaches the datastore lies within the disk
//! - after [`Shard::flow`] no scheduler that it used has an I/O that may start
//! - a queued I/O counts as in flight: a disk neither changes nor is detached before it has completed
//!
//! # Picture: a disk's gate
//! ```text
//!            Rearrange                idle
//!   Open ──────────────> Draining  ─────────> Open        requests wait meanwhile
//!     │ Detach                        idle
//!     └────────────────> Detaching ─────────> removed     requests are answered Gone
//! ```

use crate::curve::Curve;
use crate::effect::{ControlId, Effect};
use crate::filter::stats::Pulse;
use crate::filter::{FilterKey, FilterReport, Io, Why};
use crate::layout::cache::policy::Exported;
use crate::layout::pool::{Changes, Generation, Searched};
use crate::layout::{Arena, LayoutReport, OrderRefusal, Ordered};
use crate::qos::{DiskQos, Schedulers};
use crate::request::{Data, DiskId, Fault, IoId, Outcome, Request, Token};
use crate::slab::Slab;
use crate::stack::{Stack, StackCx};
use crate::units::Time;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::ops::Range;
use dispatch::stack_cx;
use gate::Gate;

pub use crate::qos::Controlled;
pub use event::Event;
pub use moving::Moving;

mod dispatch;
mod event;
mod gate;
mod moving;

/// The decisions of one I/O thread; see the module.
pub struct Shard {
    /// By [`DiskId`]; a vacant entry is a detached disk.
    disks: Vec<Option<Disk>>,
    /// By [`DiskId`]: the generation from which ids begin if a disk gets this number again. So an earlier disk's find nothing.
    generations: Vec<u32>,
    /// For how many I/Os a disk has room before it allocates.
    room: usize,
    /// By [`ControlId`].
    schedulers: Schedulers,
    /// Disks with a filter or a layout that has deadlines, or with limits before their layouts.
    timed: Vec<DiskId>,
    /// Disks with gathered I/Os that `flow` has not moved yet.
    ready: Vec<DiskId>,
    /// Buffers for layouts' own bytes.
    arena: Arena,
    /// Completions that matched no I/O. Not zero: a fault of a datastore or of the engine.
    strays: u64,
}

struct Disk {
    /// Its I/Os, of guests, filters and layouts.
    ios: Slab<Io>,
    size: u64,
    read_only: bool,
    gate: Gate,
    stack: Stack,
    qos: DiskQos,
    /// Whether it is in [`Shard::ready`].
    ready: bool,
    /// Requests that arrived while the filters change, in order.
    waiting: VecDeque<(Token, Request)>,
}

/// The state of one disk.
#[derive(Clone, Debug)]
pub struct DiskReport {
    /// Guests' I/Os between entry and answer.
    pub in_flight: usize,
    /// Requests that wait for a change of filters.
    pub waiting: usize,
    /// I/Os queued in the scheduler.
    pub held: usize,
    /// The report of each filter, top first.
    pub filters: Vec<(FilterKey, &'static str, FilterReport)>,
    /// The miss-ratio curve of its guests' reads and writes.
    pub curve: Curve,
}

impl Shard {
    /// A shard without disks, with room for `in_flight` I/Os of each before it allocates.
    pub fn new(in_flight: usize) -> Shard {
        Shard {
            disks: Vec::new(),
            generations: Vec::new(),
            room: in_flight,
            schedulers: Vec::new(),
            timed: Vec::new(),
            ready: Vec::new(),
            arena: Arena::default(),
            strays: 0,
        }
    }

    /// Gives buffers of [`SLOT`](crate::layout::SLOT) bytes for layouts' own bytes. Disks may wait for them
    /// ([`Shard::use_given_arena`]).
    pub fn give_arena(&mut self, slots: Vec<Data>) {
        self.arena.give(slots);
    }

    /// Tells disks that wait for the arena that buffers were given.
    pub fn use_given_arena(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.arena.is_waited_for() {
            self.feed(now, out);
        }
    }

    /// Buffers of the arena, with those that layouts have.
    pub fn arena_buffers(&self) -> usize {
        self.arena.all()
    }

    /// Buffers of the arena that only hung members keep: as many others should be given in their place.
    pub fn late_buffers(&self) -> usize {
        self.arena.late()
    }

    /// The state of a disk's layouts; `None` for an unknown or a plain disk.
    pub fn layout_report(&self, disk: DiskId) -> Option<LayoutReport> {
        let disk = self.disks.get(disk.0 as usize)?.as_ref()?;
        disk.stack.layout_report()
    }

    /// Appends the next part of what the policy of a disk's flash cache has learned to what there is of it: some `most` bytes.
    /// [`CacheSetup::policy_state`](crate::layout::cache::CacheSetup::policy_state) reads all of it. None: there is no such
    /// disk, or no cache that is open.
    pub fn export_policy(&self, disk: DiskId, most: usize, out: &mut Vec<u8>) -> Option<Exported> {
        let disk = self.disks.get(disk.0 as usize)?.as_ref()?;
        disk.stack.export_policy(most, out)
    }

    /// Which parts of a pool's disk may differ between two of its generations, in bytes, ascending. None: there is no such
    /// disk or generation, or it is not one of a pool that is open.
    pub fn changed(
        &self,
        disk: DiskId,
        from: Generation,
        to: Generation,
    ) -> Option<Vec<Range<u64>>> {
        let mut changes = Changes::default();
        while self.find_changes(disk, from, to, &mut changes)? == Searched::Part {}
        Some(changes.ranges())
    }

    /// Finds more of what may differ between two generations of a pool's disk: a part of it, so that other work can come
    /// between two calls. None as for [`changed`](Shard::changed); also if a generation was deleted since the last call.
    pub fn find_changes(
        &self,
        disk: DiskId,
        from: Generation,
        to: Generation,
        changes: &mut Changes,
    ) -> Option<Searched> {
        let disk = self.disks.get(disk.0 as usize)?.as_ref()?;
        disk.stack.find_changes(from, to, changes)
    }

    /// Handles one event. Appends the effects to `out`, in order.
    ///
    /// # Panics
    /// If an order (rearrange, resize, detach, a policy) names an unknown disk, or an attachment names an unknown
    /// control. Late events (requests, completions, side writes, orders and wakes for a control) are answered `Gone`,
    /// counted, or dropped.
    // Inline, so that the compiler need not build the event of a request in memory.
    #[inline(always)]
    pub fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        self.gather(now, event, out);
        self.flow(now, out);
    }

    /// Takes in one event of a batch. Requests and completions wait for the caller's [`Shard::flow`], at the same time
    /// stamp. Any other event is handled at once, after the gathered ones.
    ///
    /// # Panics
    /// As [`Shard::handle`].
    // Inline, as above.
    #[inline(always)]
    pub fn gather(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        // A request's event has nothing to drop: this keeps the compiler from generating the check.
        let event = ManuallyDrop::new(event);
        match *event {
            Event::Submitted {
                disk,
                token,
                ref request,
            } => self.submitted(now, disk, token, request, out),
            Event::Finished { disk, io, outcome } => self.finished(now, disk, io, outcome),
            _ => self.administer(now, ManuallyDrop::into_inner(event), out),
        }
    }

    /// Takes in the end of a job, as [`Event::Finished`] does, and computes the checksums of a read that a layout checks by
    /// `sum`, from bytes and their length. After [`Event::Finished`] such a read is read again instead, in another way.
    #[inline(never)]
    pub fn ended(
        &mut self,
        now: Time,
        disk: DiskId,
        io: IoId,
        outcome: Outcome,
        sum: impl FnMut(Data, u32) -> u32,
    ) {
        if let Some((stack, ios)) = self.end(now, disk, io, outcome) {
            stack.check(io, ios, sum);
        }
    }

    /// Moves the gathered requests and completions.
    #[inline]
    pub fn flow(&mut self, now: Time, out: &mut Vec<Effect>) {
        if !self.ready.is_empty() {
            self.flow_all(now, out);
        }
    }

    #[inline(never)]
    fn flow_all(&mut self, now: Time, out: &mut Vec<Effect>) {
        let mut at = 0;
        // A disk whose gate opens meanwhile is appended again.
        while let Some(&id) = self.ready.get(at) {
            at += 1;
            self.flow_disk(now, id, out);
        }
        self.ready.clear();
        if self.arena.is_waited_for() {
            self.feed(now, out);
        }
    }

    /// Tells disks that wait for the arena that it has room.
    #[cold]
    #[inline(never)]
    fn feed(&mut self, now: Time, out: &mut Vec<Effect>) {
        // Each once: one that cannot use what there is waits again, and must not keep it from the others.
        for _ in 0..self.arena.waiting() {
            let Some(id) = self.arena.next_waiting() else {
                return;
            };
            let disk = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut);
            let Some(disk) = disk else { continue };
            let mut cx = stack_cx(
                &mut disk.ios,
                &mut self.schedulers,
                &mut disk.qos,
                &mut self.arena,
                now,
                id,
                out,
            );
            disk.stack.arena_ready(&mut cx);
            self.go_on(now, id, out);
        }
    }

    #[inline(always)]
    fn flow_disk(&mut self, now: Time, id: DiskId, out: &mut Vec<Effect>) {
        let Some(disk) = self.disks[id.0 as usize].as_mut() else {
            return;
        };
        disk.ready = false;
        let control = disk.qos.plain.control;
        let mut cx = stack_cx(
            &mut disk.ios,
            &mut self.schedulers,
            &mut disk.qos,
            &mut self.arena,
            now,
            id,
            out,
        );
        disk.stack.flow(&mut cx);
        let asks = cx.exit.someone_waits();
        let open = matches!(disk.gate, Gate::Open);
        if asks && control == ControlId::NONE {
            self.pick_members(now, id, out);
        }
        if !open {
            self.finish_drain(now, id, out);
        }
        if asks {
            self.pick(now, control, out);
        }
    }

    /// Handles every event but a request and its completion.
    #[cold]
    fn administer(&mut self, now: Time, event: Event, out: &mut Vec<Effect>) {
        self.flow(now, out);
        match event {
            Event::Submitted { .. } | Event::Finished { .. } => unreachable!("handled by `gather`"),
            Event::Ticked => self.ticked(now, out),
            Event::SideWritten {
                disk,
                filter,
                buffer,
                outcome,
            } => {
                self.side_written(now, disk, filter, buffer, outcome, out);
            }
            Event::Abandon { disk, tokens } => self.abandon(now, disk, tokens, out),
            Event::BlockDone { disk, io, outcome } => {
                let known = self.with_stack(now, disk, out, |stack, cx| {
                    stack.block_done(cx, io, outcome)
                });
                self.strays += u64::from(known != Some(true));
            }
            Event::Summed { disk, io, sum } => {
                let known = self.with_stack(now, disk, out, |stack, cx| stack.summed(cx, io, sum));
                self.strays += u64::from(known != Some(true));
            }
            Event::LayoutOrder { disk, order } => {
                // What is under way may wait for a pool's grant, or until a pool's disk goes on.
                // What is said of a member counts at any moment.
                let may_pass =
                    order.is_of_column() || order.is_of_pool() && !self.has_drained(disk);
                let ordered = match self.is_held(disk) && !may_pass {
                    true => Some(Err(OrderRefusal::NotOpen)),
                    false => self.with_stack(now, disk, out, |stack, cx| stack.order(cx, order)),
                };
                if let Some(ordered) = ordered
                    && ordered != Ok(Ordered::Later)
                {
                    let outcome = ordered.map(|_| ());
                    out.push(Effect::LayoutOrdered { disk, outcome });
                }
            }
            Event::Hold { disk } => self.hold(now, disk, out),
            Event::Unhold { disk } => self.unhold(now, disk, out),
            Event::Relay { disk, tree } => self.relay(now, disk, tree.map(|tree| *tree), out),
            Event::ChangeCache { disk, change } => self.change_cache(now, disk, change, out),
            Event::Attach {
                disk,
                size,
                read_only,
                stack,
                control,
            } => {
                let here = Disk {
                    ios: self.new_table(disk),
                    size,
                    read_only,
                    gate: Gate::Open,
                    stack,
                    qos: DiskQos::none(),
                    ready: false,
                    waiting: VecDeque::new(),
                };
                self.attach(now, disk, here, control, out);
            }
            Event::Rearrange { disk, places } => {
                self.close(now, disk, Gate::Draining(places), out);
            }
            Event::Resize { disk, size } => {
                self.disk(disk).size = size;
                self.with_stack(now, disk, out, |stack, cx| stack.resize(cx, size));
            }
            Event::Detach { disk } => self.close(now, disk, Gate::Detaching, out),
            about_control => self.govern(now, about_control, out),
        }
        if self.arena.is_waited_for() {
            self.feed(now, out);
        }
    }

    /// When it next needs [`Event::Ticked`], and why.
    pub fn deadline(&self) -> Option<(Time, Why)> {
        let timed = self.timed.iter();
        let timed = timed.filter_map(|disk| self.disks[disk.0 as usize].as_ref());
        let timed = timed.filter(|disk| !matches!(disk.gate, Gate::Held));
        let filters = timed.clone().filter_map(|disk| disk.stack.deadline());
        let members = timed.filter_map(|disk| disk.qos.members.as_ref()?.deadline());
        let members = members.map(|at| (at, Why::Limit));
        let schedulers = self.schedulers.iter().flatten();
        let limits = schedulers.filter_map(|scheduler| Some((scheduler.deadline()?, Why::Limit)));
        filters
            .chain(members)
            .chain(limits)
            .min_by_key(|(at, _)| *at)
    }

    /// The state of one disk; `None` for an unknown one.
    pub fn report(&self, disk: DiskId) -> Option<DiskReport> {
        let id = disk;
        let disk = self.disks.get(id.0 as usize)?.as_ref()?;
        Some(DiskReport {
            in_flight: disk.stack.in_flight(),
            waiting: disk.waiting.len(),
            held: disk.qos.waiting(&self.schedulers, id),
            filters: disk.stack.reports(),
            curve: disk.stack.curve(),
        })
    }

    /// The miss-ratio curves of a disk: of all accesses, reads, writes. `None` for an unknown disk.
    pub fn curves(&self, disk: DiskId) -> Option<[Curve; 3]> {
        let disk = self.disks.get(disk.0 as usize)?.as_ref()?;
        Some(disk.stack.curves())
    }

    /// The sums of a disk's topmost `stats` filter, if it has one; `None` for an unknown disk.
    pub fn pulse(&self, disk: DiskId) -> Option<Option<Pulse>> {
        let disk = self.disks.get(disk.0 as usize)?.as_ref()?;
        Some(disk.stack.pulse())
    }

    /// I/Os in flight, of guests and of filters.
    pub fn in_flight(&self) -> usize {
        self.disks.iter().flatten().map(|disk| disk.ios.len()).sum()
    }

    /// Completions that matched no I/O.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    fn disk(&mut self, id: DiskId) -> &mut Disk {
        self.disks[id.0 as usize]
            .as_mut()
            .expect("the engine names only disks that it has attached")
    }

    fn attach(
        &mut self,
        now: Time,
        id: DiskId,
        mut disk: Disk,
        control: Option<Box<Controlled>>,
        out: &mut Vec<Effect>,
    ) {
        let place = id.0 as usize;
        if self.disks.len() <= place {
            self.disks.resize_with(place + 1, || None);
        }
        assert!(self.disks[place].is_none(), "a disk is attached once");
        if let Some(controlled) = control {
            let schedulers = &mut self.schedulers;
            disk.qos.enrol(schedulers, now, id, &controlled);
        }
        self.disks[place] = Some(disk);
        self.note_timed();
        self.open(now, id, out);
    }

    /// A table of I/Os for a disk that gets this number.
    fn new_table(&self, id: DiskId) -> Slab<Io> {
        let generation = self.generations.get(id.0 as usize).copied();
        Slab::beginning_at(generation.unwrap_or(0), self.room)
    }

    /// A disk is detached. Another one may get its number.
    fn forget(&mut self, id: DiskId) {
        let place = id.0 as usize;
        let Some(disk) = self.disks[place].take() else {
            return;
        };
        if self.generations.len() <= place {
            self.generations.resize(place + 1, 0);
        }
        self.generations[place] = disk.ios.generation();
    }

    /// Lists the disks that have deadlines; the others are skipped.
    fn note_timed(&mut self) {
        self.timed.clear();
        for (place, disk) in (0u32..).zip(&self.disks) {
            let is_timed = |disk: &Disk| disk.stack.is_timed() || disk.qos.members.is_some();
            if disk.as_ref().is_some_and(is_timed) {
                self.timed.push(DiskId(place));
            }
        }
    }

    #[inline(never)]
    fn submitted(
        &mut self,
        now: Time,
        id: DiskId,
        token: Token,
        request: &Request,
        out: &mut Vec<Effect>,
    ) {
        let Some(disk) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            // The disk was detached meanwhile.
            return refuse(id, token, request, Fault::Gone, out);
        };
        if !matches!(disk.gate, Gate::Open) {
            return disk.hold_or_reject(id, token, request, out);
        }
        if let Err(fault) = disk.admits(request) {
            return refuse(id, token, request, fault, out);
        }
        disk.stack.gather(now, token, request, &mut disk.ios);
        disk.mark_ready(id, &mut self.ready);
    }

    #[inline(never)]
    fn finished(&mut self, now: Time, id: DiskId, io: IoId, outcome: Outcome) {
        self.end(now, id, io, outcome);
    }

    /// A job has ended. Returns where it is if it is a read that is to be checked.
    #[inline(always)]
    fn end(
        &mut self,
        now: Time,
        id: DiskId,
        io: IoId,
        outcome: Outcome,
    ) -> Option<(&mut Stack, &mut Slab<Io>)> {
        let disk = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut);
        let Some(disk) = disk else {
            self.strays += 1;
            return None;
        };
        let Some(io) = disk.stack.finish(now, io, outcome, &mut disk.ios) else {
            self.strays += 1;
            return None;
        };
        let is_checked = io.mark != 0 && outcome.is_ok();
        if io.times != 0 {
            disk.qos.ended(&mut self.schedulers, now, id, io);
        }
        disk.mark_ready(id, &mut self.ready);
        is_checked.then_some((&mut disk.stack, &mut disk.ios))
    }

    fn ticked(&mut self, now: Time, out: &mut Vec<Effect>) {
        for place in 0..self.timed.len() {
            let id = self.timed[place];
            let disk = self.disks[id.0 as usize]
                .as_mut()
                .expect("a disk with deadlines is attached");
            if matches!(disk.gate, Gate::Held) {
                // Its layouts are about to change: they begin nothing.
                continue;
            }
            let mut cx = stack_cx(
                &mut disk.ios,
                &mut self.schedulers,
                &mut disk.qos,
                &mut self.arena,
                now,
                id,
                out,
            );
            disk.stack.tick(&mut cx);
            disk.stack.pass_limits(&mut cx);
        }
        for place in 0..self.schedulers.len() {
            let control = u32::try_from(place).expect("controls are numbered in 32 bits");
            self.pick(now, ControlId(control), out);
        }
        for place in 0..self.disks.len() {
            if self.disks[place]
                .as_ref()
                .is_some_and(|disk| !matches!(disk.gate, Gate::Open))
            {
                let id = DiskId(u32::try_from(place).expect("disks are numbered in 32 bits"));
                self.finish_drain(now, id, out);
            }
        }
    }

    /// Does something with a disk's stack outside the flow of requests. `None` if there is no such disk.
    fn with_stack<T>(
        &mut self,
        now: Time,
        id: DiskId,
        out: &mut Vec<Effect>,
        act: impl FnOnce(&mut Stack, &mut StackCx<'_>) -> T,
    ) -> Option<T> {
        let disk = self.disks.get_mut(id.0 as usize)?.as_mut()?;
        let mut cx = stack_cx(
            &mut disk.ios,
            &mut self.schedulers,
            &mut disk.qos,
            &mut self.arena,
            now,
            id,
            out,
        );
        let result = act(&mut disk.stack, &mut cx);
        self.go_on(now, id, out);
        Some(result)
    }

    fn side_written(
        &mut self,
        now: Time,
        id: DiskId,
        filter: FilterKey,
        buffer: Vec<u8>,
        outcome: Outcome,
        out: &mut Vec<Effect>,
    ) {
        if let Some(disk) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) {
            let mut cx = stack_cx(
                &mut disk.ios,
                &mut self.schedulers,
                &mut disk.qos,
                &mut self.arena,
                now,
                id,
                out,
            );
            disk.stack.side_done(&mut cx, filter, buffer, outcome);
            if cx.exit.waits {
                self.go_on(now, id, out);
            }
        }
    }
}

impl Disk {
    /// Lists the disk as one with gathered I/Os.
    #[inline]
    fn mark_ready(&mut self, id: DiskId, ready: &mut Vec<DiskId>) {
        if !self.ready {
            self.ready = true;
            ready.push(id);
        }
    }
}

/// Rejects a request.
#[cold]
#[inline(never)]
fn refuse(disk: DiskId, token: Token, request: &Request, fault: Fault, out: &mut Vec<Effect>) {
    out.push(Effect::Answer {
        disk,
        token,
        op: request.op,
        outcome: Err(fault),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FilterSpec;
    use crate::request::{Data, Flags, Op};
    use crate::stack::Place;
    use alloc::vec;

    const DISK: DiskId = DiskId(0);

    fn shard(filters: usize) -> Shard {
        let filters = (0..).zip(vec![FilterSpec::Null; filters]);
        let stack = Stack::new(
            filters
                .map(|(key, spec)| (FilterKey(key), spec.build()))
                .collect(),
        );
        let mut shard = Shard::new(4);
        let attach = Event::Attach {
            disk: DISK,
            size: 8192,
            read_only: false,
            stack,
            control: None,
        };
        shard.handle(Time::ZERO, attach, &mut Vec::new());
        shard
    }

    fn request(op: Op, offset: u64, len: u64) -> Request {
        Request {
            op,
            flags: Flags::NONE,
            offset,
            len,
            data: Data::NONE,
            arrived: Time::ZERO,
        }
    }

    fn asked(token: u64, request: Request) -> Event {
        Event::Submitted {
            disk: DISK,
            token: Token(token),
            request,
        }
    }

    fn ended(io: IoId) -> Event {
        Event::Finished {
            disk: DISK,
            io,
            outcome: Ok(()),
        }
    }

    fn submit(shard: &mut Shard, token: u64, request: Request) -> Vec<Effect> {
        let mut out = Vec::new();
        shard.handle(Time::ZERO, asked(token, request), &mut out);
        out
    }

    fn finish(shard: &mut Shard, io: IoId) -> Vec<Effect> {
        let mut out = Vec::new();
        shard.handle(Time::ZERO, ended(io), &mut out);
        out
    }

    fn started(effects: &[Effect]) -> IoId {
        match effects {
            [Effect::Start { io, .. }] => *io,
            other => panic!("expected one start, not {other:?}"),
        }
    }

    #[test]
    fn a_request_starts_and_its_end_is_the_answer() {
        let mut shard = shard(3);
        let io = started(&submit(&mut shard, 7, request(Op::Read, 0, 4096)));
        let answer = Effect::Answer {
            disk: DISK,
            token: Token(7),
            op: Op::Read,
            outcome: Ok(()),
        };
        assert_eq!(finish(&mut shard, io), [answer]);
        assert_eq!(shard.in_flight(), 0);
    }

    #[test]
    fn a_repeated_completion_has_no_effect() {
        let mut shard = shard(0);
        let io = started(&submit(&mut shard, 1, request(Op::Write, 0, 512)));
        finish(&mut shard, io);
        let other = started(&submit(&mut shard, 2, request(Op::Write, 0, 512)));
        assert_eq!(finish(&mut shard, io), []);
        assert_eq!((shard.strays(), shard.in_flight()), (1, 1));
        assert_eq!(finish(&mut shard, other).len(), 1);
    }

    #[test]
    fn gathered_ios_move_together_and_complete_once() {
        let mut shard = shard(1);
        let mut out = Vec::new();
        for token in 0..3 {
            let asked = asked(token, request(Op::Write, token * 512, 512));
            shard.gather(Time::ZERO, asked, &mut out);
        }
        assert_eq!((out.len(), shard.in_flight()), (0, 3));
        shard.flow(Time::ZERO, &mut out);
        let ios: Vec<_> = out.drain(..).map(|effect| started(&[effect])).collect();
        assert_eq!(ios.len(), 3);

        // One completes three times at the same moment, and one completes that has not started.
        let late = asked(9, request(Op::Write, 0, 512));
        shard.gather(Time::ZERO, late, &mut out);
        let next = IoId {
            index: 3,
            generation: 1,
        };
        for io in [ios[0], ios[0], ios[2], ios[0], next] {
            shard.gather(Time::ZERO, ended(io), &mut out);
        }
        assert_eq!((out.len(), shard.strays()), (0, 3));
        shard.flow(Time::ZERO, &mut out);
        let answer = |token| Effect::Answer {
            disk: DISK,
            token: Token(token),
            op: Op::Write,
            outcome: Ok(()),
        };
        assert_eq!(
            out[..2],
            [answer(0), answer(2)],
            "completions are handled first"
        );
        assert_eq!(started(&out[2..]), next);
        assert_eq!(shard.in_flight(), 2);

        // No I/O is left.
        out.clear();
        shard.flow(Time::ZERO, &mut out);
        assert_eq!(out, []);
    }

    #[test]
    fn an_order_is_handled_after_earlier_gathered_events() {
        let mut shard = shard(1);
        let mut out = Vec::new();
        let asked = asked(1, request(Op::Write, 4096, 4096));
        shard.gather(Time::ZERO, asked, &mut out);
        let places = Vec::new();
        shard.gather(
            Time::ZERO,
            Event::Rearrange { disk: DISK, places },
            &mut out,
        );
        let io = started(&out);
        assert!(matches!(
            finish(&mut shard, io)[..],
            [Effect::Answer { .. }, Effect::Rearranged { .. }]
        ));
    }

    #[test]
    fn a_request_past_the_end_never_starts() {
        let mut shard = shard(1);
        for (op, offset, len, fault) in [
            (Op::Read, 8192, 1, Fault::Invalid),
            (Op::Write, 4096, 4097, Fault::NoSpace),
            (Op::Discard, u64::MAX, 2, Fault::Invalid),
            (Op::WriteZeroes, 0, u64::MAX, Fault::NoSpace),
        ] {
            let answer = Effect::Answer {
                disk: DISK,
                token: Token(0),
                op,
                outcome: Err(fault),
            };
            assert_eq!(submit(&mut shard, 0, request(op, offset, len)), [answer]);
        }
    }

    #[test]
    fn requests_wait_while_the_filters_change_and_then_go_on_in_order() {
        let mut shard = shard(1);
        let io = started(&submit(&mut shard, 1, request(Op::Write, 0, 512)));
        let mut out = Vec::new();
        let places = vec![
            Place::New(FilterKey(9), FilterSpec::Null.build()),
            Place::Keep(FilterKey(0)),
        ];
        shard.handle(
            Time::ZERO,
            Event::Rearrange { disk: DISK, places },
            &mut out,
        );
        assert_eq!(out, []);
        assert_eq!(submit(&mut shard, 2, request(Op::Write, 0, 512)), []);
        assert_eq!(submit(&mut shard, 3, request(Op::Flush, 0, 0)), []);

        let effects = finish(&mut shard, io);

        assert!(matches!(
            effects[0],
            Effect::Answer {
                token: Token(1),
                ..
            }
        ));
        assert!(matches!(effects[1], Effect::Rearranged { .. }));
        assert!(matches!(effects[2], Effect::Start { op: Op::Write, .. }));
        assert!(matches!(effects[3], Effect::Start { op: Op::Flush, .. }));
        let keys: Vec<u32> = shard
            .report(DISK)
            .expect("attached")
            .filters
            .iter()
            .map(|f| f.0.0)
            .collect();
        assert_eq!(keys, [9, 0]);
    }

    #[test]
    fn a_disk_is_detached_only_after_its_last_io() {
        let mut shard = shard(1);
        let io = started(&submit(&mut shard, 1, request(Op::Read, 0, 512)));
        let mut out = Vec::new();
        shard.handle(Time::ZERO, Event::Detach { disk: DISK }, &mut out);
        assert_eq!(out, []);
        let refused = submit(&mut shard, 2, request(Op::Read, 0, 512));
        assert!(matches!(
            refused[..],
            [Effect::Answer {
                outcome: Err(Fault::Gone),
                ..
            }]
        ));
        assert!(matches!(
            finish(&mut shard, io)[..],
            [Effect::Answer { .. }, Effect::Detached { .. }]
        ));
        assert!(shard.report(DISK).is_none());
    }
}
