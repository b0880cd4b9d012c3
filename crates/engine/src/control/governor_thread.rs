//! The thread of one governor: it collects usage, reads slots, ticks the governor, and sends orders.
//!
//! It sleeps until its next deadline or message. While a datastore is in use, the schedulers' counts are collected
//! every 50 ms. A round begins at the governor's deadline: counts are collected and slots read; when both have arrived,
//! the governor ticks.
//!
//! If this host does not use the datastore, and nothing changes, rounds run at half that pace, which is enough to renew
//! its slot. No I/O thread is asked for counts then: nothing was used until one reports activity.
//!
//! # Always true
//! - a hanging datastore or I/O thread does not block this thread: after [`TIMEOUT`] it continues without
//! - however it ends, it leaves no window behind
//! - at most one read and one write of slots are in flight
//! - the governor sees the counts of all threads together, once
//! - an unused datastore costs its host two slot jobs in [`REST`], and the work of this thread for them

use super::slot_io::{Job, SlotClaim};
use super::{Change, Event, Govern, GovernorMessage, Notes, Report, Threads, Trouble, Used};
use crate::sys::os;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use tidegate_core::effect::ControlId;
use tidegate_core::governor::slot::SLOT;
use tidegate_core::governor::{Governor, GovernorEvent, ReadFailed};
use tidegate_core::iocontrol::{Bin, Mode, Orders, Usage};
use tidegate_core::units::{Span, Time};

/// The time between two counts while the datastore is in use. Origin: chosen; no measurement.
const CHECK: Span = Span::from_millis(50);
/// How long a thread may take to count, and a datastore to read or write slots, before the round continues without
/// it. Origin: chosen; no measurement.
const TIMEOUT: Span = Span::from_secs(1);
/// The time between two rounds while no disk here has I/O. A host that is not engaged writes every four seconds and
/// is suspect after twelve of silence, so one round may be lost.
const REST: Span = Span::from_secs(8);
/// After a report, rounds run at the governor's pace for this long, so that the next report is up to date. Origin:
/// chosen; no measurement.
const ASKED: Span = Span::from_secs(10);

/// See the module.
pub(super) struct GovernorThread {
    id: ControlId,
    governor: Governor,
    threads: Threads,
    slot_io: Option<Sender<Job>>,
    notes: Arc<Notes>,
    /// When counts are to be collected next.
    check: Time,
    /// When the current collection began, and the threads that have not answered.
    counting: Option<Time>,
    unanswered: Vec<bool>,
    usage: Vec<Usage>,
    bins: Vec<Bin>,
    /// The last counts of all threads, and their time.
    last_counts: (Vec<Usage>, Time),
    /// The last counts are assumed to be zero, not collected.
    assumed_idle: bool,
    /// Something was attached, detached or changed since then.
    changed: bool,
    /// When the governor last ticked, and when its state was last requested.
    ticked: Time,
    requested: Option<Time>,
    /// Whether each thread was active at its last count.
    active: Vec<bool>,
    round: Option<Round>,
    reading: bool,
    writing: Option<Time>,
    orders: Option<Orders>,
    slot: Option<u16>,
    trouble: Option<Trouble>,
    used: Vec<Used>,
    /// Whether the slots were read once, or could not be.
    slots_read: bool,
    /// Changes requested before that.
    changes: Vec<(Change, Sender<()>)>,
}

/// A round in progress.
struct Round {
    since: Time,
    /// The slots, or that they cannot be read; `None` while they are being read.
    read: Option<Result<Vec<super::slots::Slot>, ReadFailed>>,
}

impl GovernorThread {
    pub(super) fn new(
        id: ControlId,
        governor: Governor,
        threads: Threads,
        slot_io: Option<Sender<Job>>,
        notes: Arc<Notes>,
    ) -> GovernorThread {
        let count = threads.len();
        GovernorThread {
            id,
            governor,
            threads,
            slot_io,
            notes,
            check: Time::NEVER,
            counting: None,
            unanswered: vec![false; count],
            usage: Vec::new(),
            bins: Vec::new(),
            last_counts: (Vec::new(), Time::ZERO),
            assumed_idle: false,
            changed: true,
            ticked: Time::ZERO,
            requested: None,
            active: vec![false; count],
            round: None,
            reading: false,
            writing: None,
            orders: None,
            slot: None,
            trouble: None,
            used: Vec::new(),
            slots_read: false,
            changes: Vec::new(),
        }
    }

    /// Starts the thread.
    pub(super) fn start(
        mut self,
        name: &str,
        messages: Receiver<GovernorMessage>,
    ) -> io::Result<()> {
        std::thread::Builder::new()
            .name(format!("govern-{name}"))
            .spawn(move || self.run(&messages))
            .map(drop)
    }

    fn run(&mut self, messages: &Receiver<GovernorMessage>) {
        loop {
            let now = os::now();
            self.perform(now);
            let wait = Duration::from_nanos(self.next_wakeup().since(os::now()).as_nanos());
            match messages.recv_timeout(wait) {
                Ok(GovernorMessage::Stop(done)) => return self.stop(done),
                Ok(message) => self.handle(os::now(), message),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.stop(None),
            }
        }
    }

    /// Performs what is due.
    fn perform(&mut self, now: Time) {
        if self.round.is_none() && now >= self.due(now) {
            self.begin(now);
        }
        if self.counting.is_none() && now >= self.check {
            self.count(now);
        }
        if self.counting.is_some_and(|since| now >= since + TIMEOUT) {
            self.counted(now);
        }
        if let Some(round) = &mut self.round
            && round.read.is_none()
            && now >= round.since + TIMEOUT
        {
            round.read = Some(Err(ReadFailed));
        }
        if self.counting.is_none()
            && self
                .round
                .as_ref()
                .is_some_and(|round| round.read.is_some())
            && let Some(round) = self.round.take()
        {
            self.tick(now, round);
        }
    }

    /// When the thread must wake without a message.
    fn next_wakeup(&self) -> Time {
        let mut at = match &self.round {
            None => self.due(os::now()),
            Some(round) if round.read.is_none() => round.since + TIMEOUT,
            Some(_) => Time::NEVER,
        };
        at = at.min(match self.counting {
            None => self.check,
            Some(since) => since + TIMEOUT,
        });
        at
    }

    /// When the next round begins.
    fn due(&self, now: Time) -> Time {
        let deadline = self.governor.deadline();
        let requested = self
            .requested
            .is_some_and(|requested| now.since(requested) < ASKED);
        if self.unused() && self.governor.rests() && !requested && self.slots_read {
            return deadline.max(self.ticked + REST);
        }
        deadline
    }

    /// Whether this host does not use the datastore, as reported by all threads.
    fn unused(&self) -> bool {
        let active = |active: &[bool]| active.contains(&true);
        !self.changed
            && !active(&self.active)
            && !active(&self.unanswered)
            && self.check == Time::NEVER
            && !self.last_counts.0.is_empty()
    }

    /// Begins a round.
    fn begin(&mut self, now: Time) {
        if self.counting.is_none() {
            self.count(now);
        }
        let read = match &self.slot_io {
            None => Some(Ok(Vec::new())),
            // The last read has not returned: another one is useless.
            Some(_) if self.reading => Some(Err(ReadFailed)),
            Some(slot_io) => {
                let claim = if self.is_off() {
                    SlotClaim::None
                } else {
                    SlotClaim::Own
                };
                self.reading = slot_io.send(Job::Read(claim)).is_ok();
                (!self.reading).then_some(Err(ReadFailed))
            }
        };
        self.round = Some(Round { since: now, read });
    }

    /// Requests the counts of every I/O thread, unless all are known to be idle.
    fn count(&mut self, now: Time) {
        if self.unused() {
            let span = now.since(self.last_counts.1);
            let counts = self.last_counts.0.iter();
            let nothing = counts.map(|usage| usage.idle_for(span));
            self.usage = nothing.collect();
            self.counted(now);
            self.assumed_idle = true;
            return;
        }
        self.counting = Some(now);
        self.check = Time::NEVER;
        self.changed = false;
        for (thread, unanswered) in self.threads.iter().zip(&mut self.unanswered) {
            // A thread that has not answered the last request still will.
            if !std::mem::replace(unanswered, true) {
                thread.govern(self.id, Govern::Count);
            }
        }
    }

    /// All threads have answered, or the timeout has expired.
    fn counted(&mut self, now: Time) {
        self.counting = None;
        if std::mem::take(&mut self.assumed_idle) {
            // Threads count from the last request. Most of that time was already reported as idle.
            let passed = now.since(self.last_counts.1);
            for usage in &mut self.usage {
                usage.span = usage.span.min(passed);
            }
        }
        self.governor.observe(now, &self.usage, &self.bins);
        let noticed = self.governor.noticed();
        self.note(noticed);
        for usage in &self.usage {
            add(&mut self.used, usage);
        }
        let here = |used: &Used| self.usage.iter().any(|usage| usage.disk == used.disk);
        if self.unanswered.contains(&true) {
            // The usage of threads that have not answered is unknown.
            self.changed = true;
        } else {
            self.used.retain(here);
        }
        self.last_counts = (std::mem::take(&mut self.usage), now);
        self.bins.clear();
        if self.active.contains(&true) {
            self.check = now + CHECK;
        }
    }

    fn handle(&mut self, now: Time, message: GovernorMessage) {
        match message {
            GovernorMessage::Counted {
                thread,
                usage,
                bins,
            } => {
                let was_idle = !self.active.contains(&true);
                self.active[thread] = usage.iter().any(|usage| usage.active);
                self.unanswered[thread] = false;
                self.usage.extend(usage);
                self.bins.extend(bins);
                if self.counting.is_some() && !self.unanswered.contains(&true) {
                    self.counted(now);
                }
                if was_idle && self.active[thread] {
                    self.notes.ring();
                }
            }
            GovernorMessage::Active => {
                self.changed = true;
                self.check = self.check.min(now);
            }
            GovernorMessage::Read(read) => {
                self.reading = false;
                if let Some(round) = &mut self.round
                    && round.read.is_none()
                {
                    round.read = Some(read.ok_or(ReadFailed));
                }
            }
            GovernorMessage::Wrote(fine) => {
                self.writing = None;
                self.governor.published(now, fine);
            }
            GovernorMessage::ClaimedSlot(slot) => {
                self.slot = Some(slot);
                self.governor.sits_at(slot);
            }
            GovernorMessage::Trouble(trouble) => {
                self.report_event(match &trouble {
                    Some(trouble) => Event::Trouble(trouble.clone()),
                    None => Event::TroubleOver,
                });
                self.trouble = trouble;
            }
            // The caller may be gone.
            GovernorMessage::Set(change, reply) => {
                self.changes.push((change, reply));
                if self.slots_read || self.slot_io.is_none() {
                    self.change(now);
                }
            }
            GovernorMessage::Admit { key, policy, reply } => {
                let _ = reply.send(self.governor.admit(key, &policy));
            }
            GovernorMessage::Report { reply } => {
                self.requested = Some(now);
                let _ = reply.send(Box::new(Report {
                    governor: self.governor.report(),
                    slot: self.slot,
                    trouble: self.trouble.clone(),
                    disks: self.used.clone(),
                }));
            }
            GovernorMessage::Stop(_) => unreachable!("the loop ends with it"),
        }
    }

    /// Ticks the governor.
    fn tick(&mut self, now: Time, round: Round) {
        let read = round.read.unwrap_or(Err(ReadFailed));
        let slots = read.as_ref().map(|slots| {
            let slots = slots.iter().map(|(slot, bytes)| (*slot, bytes.as_slice()));
            slots.collect::<Vec<_>>()
        });
        self.governor
            .heard(now, slots.as_deref().map_err(|_| ReadFailed));
        self.slots_read = true;
        self.change(now);
        let tick = self.governor.tick(now);
        self.ticked = now;
        self.note(tick.events);
        self.release_slot();
        self.steer(tick.orders);
        if let Some(slot) = tick.publish {
            self.publish(now, slot);
        }
        debug_assert!(
            self.governor.deadline() > now,
            "a tick moves the governor's deadline"
        );
    }

    /// Acts on the governor's events, and reports them.
    fn note(&mut self, noticed: Vec<GovernorEvent>) {
        for event in noticed {
            if event == GovernorEvent::Displaced
                && let Some(slot_io) = &self.slot_io
            {
                self.slot = None;
                let _ = slot_io.send(Job::Move(self.governor.host()));
            }
            self.report_event(Event::Governor(event));
        }
    }

    /// Sends the orders to the threads concerned.
    fn steer(&mut self, orders: Orders) {
        let same = self.orders.as_ref() == Some(&orders);
        for (thread, active) in self.threads.iter().zip(&self.active) {
            // An active thread receives equal orders again: they trigger the exchange of shares between threads.
            if !same || *active {
                let steer = Govern::Steer(orders.clone());
                thread.govern(self.id, steer);
            }
        }
        self.orders = Some(orders);
    }

    fn publish(&mut self, now: Time, slot: [u8; SLOT]) {
        let Some(slot_io) = self.slot_io.as_ref().filter(|_| !self.is_off()) else {
            // Without a slot nothing has to be written, so it counts as published.
            return self.governor.published(now, true);
        };
        match self.writing {
            None => {
                self.writing = Some(now);
                let _ = slot_io.send(Job::Write(Box::new(slot)));
            }
            Some(since) if now >= since + TIMEOUT => self.governor.published(now, false),
            Some(_) => {}
        }
    }

    /// Applies the requested changes.
    fn change(&mut self, now: Time) {
        for (change, reply) in std::mem::take(&mut self.changes) {
            let common = self.governor.common();
            let mode = change.mode.unwrap_or(common.mode());
            let threshold = change.threshold.unwrap_or(common.threshold());
            let io_unit = change.io_unit.unwrap_or(common.io_unit);
            self.governor.set(now, mode, threshold, io_unit);
            if let Some(slot_io) = &self.slot_io {
                let _ = slot_io.send(Job::Common(change, self.governor.common()));
            }
            // The caller may be gone.
            let _ = reply.send(());
        }
    }

    /// Whether control is off: then this host takes no slot, and only checks whether a host turns it on again.
    fn is_off(&self) -> bool {
        self.governor.common().mode() == Mode::Off
    }

    /// Releases the slot once control is off.
    fn release_slot(&mut self) {
        if self.is_off()
            && self.slot.take().is_some()
            && let Some(slot_io) = &self.slot_io
        {
            let _ = slot_io.send(Job::Rest(Box::new(self.governor.leave())));
        }
    }

    fn report_event(&self, event: Event) {
        self.notes.add(event);
    }

    /// The other hosts may take our part. The slot thread may hang; nothing waits for it here.
    fn stop(&mut self, done: Option<Sender<()>>) {
        if let Some(slot_io) = &self.slot_io {
            let _ = slot_io.send(Job::Leave(Box::new(self.governor.leave()), done));
        }
    }
}

impl Drop for GovernorThread {
    /// Without a governor no window is valid: windows open, however this thread ends. Limits continue to hold.
    fn drop(&mut self) {
        if let Some(orders) = self.orders.take() {
            let open = Orders {
                mode: orders.mode,
                ..Orders::idle(orders.costs)
            };
            for thread in self.threads.iter() {
                let steer = Govern::Steer(open.clone());
                thread.govern(self.id, steer);
            }
        }
    }
}

/// Adds a count to a disk's total usage.
fn add(all: &mut Vec<Used>, usage: &Usage) {
    let place = all
        .iter()
        .position(|used| (used.disk, used.key) == (usage.disk, usage.key));
    let place = place.unwrap_or_else(|| {
        all.retain(|used| used.disk != usage.disk);
        all.push(Used {
            disk: usage.disk,
            key: usage.key,
            ios: 0,
            units: 0,
            cost: 0,
            bytes: 0,
            latency_ns: 0,
            held_ns: [0; 5],
            burst_left: 0,
        });
        all.len() - 1
    });
    let used = &mut all[place];
    used.ios += usage.ios;
    used.units += usage.units;
    used.cost += usage.cost;
    used.bytes += usage.bytes;
    used.latency_ns = used.latency_ns.saturating_add(usage.latency_ns);
    for (sum, more) in used.held_ns.iter_mut().zip(usage.held_ns) {
        *sum += more;
    }
    used.burst_left = usage.burst_left;
}
