//! The thread of one governor: it collects usage, reads slots, ticks the governor, and sends orders.
//!
//! It sleeps exactly until something is due or said. While a datastore is in use, what the schedulers counted is gathered
//! every 50 ms. A round begins at the governor's deadline: counts are gathered and slots read; when both are there, the
//! governor ticks. Where nobody here uses the datastore, and nothing moves, rounds come at half that pace, which keeps our
//! slot alive, and no I/O thread is asked: that nothing was used is known without them, until one says otherwise.
//!
//! # Always true
//! - neither an I/O thread nor a datastore that hangs holds this thread up: after [`TIMEOUT`] it goes on without
//! - however it ends, no window is left behind
//! - one read and one write of slots are under way at most
//! - the governor sees the counts of all threads together, once
//! - at rest a datastore costs its host two jobs of the slot_io in [`REST`], and this thread what goes with them

use super::slot_io::{Job, Seat};
use super::{Change, Event, Govern, Notes, Report, Threads, Trouble, Used, Word};
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
/// For so long after a report, rounds come at the governor's pace, so that the next report is up to date. Origin:
/// chosen; no measurement.
const ASKED: Span = Span::from_secs(10);

/// See the module.
pub(super) struct GovernorThread {
    id: ControlId,
    governor: Governor,
    threads: Threads,
    slot_io: Option<Sender<Job>>,
    notes: Arc<Notes>,
    /// When counts are to be gathered next.
    check: Time,
    /// Since when they are being gathered, and the threads that have not told yet.
    counting: Option<Time>,
    awaited: Vec<bool>,
    usage: Vec<Usage>,
    bins: Vec<Bin>,
    /// What all threads told last, and when.
    told: (Vec<Usage>, Time),
    /// They were not asked since they really told.
    unasked: bool,
    /// Something has come, gone or changed since then.
    changed: bool,
    /// When the governor last ticked, and when somebody last asked what it knows.
    ticked: Time,
    asked: Option<Time>,
    /// Whether each thread had anything to tell the last time.
    active: Vec<bool>,
    round: Option<Round>,
    reading: bool,
    writing: Option<Time>,
    orders: Option<Orders>,
    slot: Option<u16>,
    trouble: Option<Trouble>,
    used: Vec<Used>,
    /// Whether the slots were read once, or could not be.
    looked: bool,
    /// Changes that were asked for before that.
    changes: Vec<(Change, Sender<()>)>,
}

/// A round that has begun.
struct Round {
    since: Time,
    /// The slots, or that they cannot be read; nothing while they are being read.
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
            awaited: vec![false; count],
            usage: Vec::new(),
            bins: Vec::new(),
            told: (Vec::new(), Time::ZERO),
            unasked: false,
            changed: true,
            ticked: Time::ZERO,
            asked: None,
            active: vec![false; count],
            round: None,
            reading: false,
            writing: None,
            orders: None,
            slot: None,
            trouble: None,
            used: Vec::new(),
            looked: false,
            changes: Vec::new(),
        }
    }

    /// Starts the thread.
    pub(super) fn start(mut self, name: &str, words: Receiver<Word>) -> io::Result<()> {
        std::thread::Builder::new()
            .name(format!("govern-{name}"))
            .spawn(move || self.run(&words))
            .map(drop)
    }

    fn run(&mut self, words: &Receiver<Word>) {
        loop {
            let now = os::now();
            self.act(now);
            let rest = Duration::from_nanos(self.syscall_timeout().since(os::now()).as_nanos());
            match words.recv_timeout(rest) {
                Ok(Word::Stop(done)) => return self.stop(done),
                Ok(word) => self.take(os::now(), word),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.stop(None),
            }
        }
    }

    /// Does what is due.
    fn act(&mut self, now: Time) {
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

    /// When something is due though nobody says anything.
    fn syscall_timeout(&self) -> Time {
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

    /// When the next round is to begin.
    fn due(&self, now: Time) -> Time {
        let deadline = self.governor.deadline();
        let asked = self.asked.is_some_and(|asked| now.since(asked) < ASKED);
        if self.asleep() && self.governor.rests() && !asked && self.looked {
            return deadline.max(self.ticked + REST);
        }
        deadline
    }

    /// Whether nobody uses the datastore here, and all threads have said so.
    fn asleep(&self) -> bool {
        let awake = |awake: &[bool]| awake.contains(&true);
        !self.changed
            && !awake(&self.active)
            && !awake(&self.awaited)
            && self.check == Time::NEVER
            && !self.told.0.is_empty()
    }

    /// A round begins.
    fn begin(&mut self, now: Time) {
        if self.counting.is_none() {
            self.count(now);
        }
        let read = match &self.slot_io {
            None => Some(Ok(Vec::new())),
            // The last read has not come back: it is of no use to ask again.
            Some(_) if self.reading => Some(Err(ReadFailed)),
            Some(slot_io) => {
                let seat = if self.off() { Seat::None } else { Seat::Own };
                self.reading = slot_io.send(Job::Read(seat)).is_ok();
                (!self.reading).then_some(Err(ReadFailed))
            }
        };
        self.round = Some(Round { since: now, read });
    }

    /// Asks every I/O thread for what it counted, unless all are known to have nothing to tell.
    fn count(&mut self, now: Time) {
        if self.asleep() {
            let span = now.since(self.told.1);
            let nothing = self.told.0.iter().map(|usage| usage.idle_for(span));
            self.usage = nothing.collect();
            self.counted(now);
            self.unasked = true;
            return;
        }
        self.counting = Some(now);
        self.check = Time::NEVER;
        self.changed = false;
        for (thread, awaited) in self.threads.iter().zip(&mut self.awaited) {
            // One that has not answered the last time will answer that.
            if !std::mem::replace(awaited, true) {
                thread.govern(self.id, Govern::Count);
            }
        }
    }

    /// All threads have told, or have had their time.
    fn counted(&mut self, now: Time) {
        self.counting = None;
        if std::mem::take(&mut self.unasked) {
            // Threads count from when they were last asked; of most of that it was told that nothing happened.
            let passed = now.since(self.told.1);
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
        if self.awaited.contains(&true) {
            // Of those who have not told nothing is known.
            self.changed = true;
        } else {
            self.used.retain(here);
        }
        self.told = (std::mem::take(&mut self.usage), now);
        self.bins.clear();
        if self.active.contains(&true) {
            self.check = now + CHECK;
        }
    }

    fn take(&mut self, now: Time, word: Word) {
        match word {
            Word::Counted {
                thread,
                usage,
                bins,
            } => {
                let slept = !self.active.contains(&true);
                self.active[thread] = usage.iter().any(|usage| usage.active);
                self.awaited[thread] = false;
                self.usage.extend(usage);
                self.bins.extend(bins);
                if self.counting.is_some() && !self.awaited.contains(&true) {
                    self.counted(now);
                }
                if slept && self.active[thread] {
                    self.notes.ring();
                }
            }
            Word::Active => {
                self.changed = true;
                self.check = self.check.min(now);
            }
            Word::Read(read) => {
                self.reading = false;
                if let Some(round) = &mut self.round
                    && round.read.is_none()
                {
                    round.read = Some(read.ok_or(ReadFailed));
                }
            }
            Word::Wrote(fine) => {
                self.writing = None;
                self.governor.published(now, fine);
            }
            Word::Sits(slot) => {
                self.slot = Some(slot);
                self.governor.sits_at(slot);
            }
            Word::Trouble(trouble) => {
                self.tell(match &trouble {
                    Some(trouble) => Event::Trouble(trouble.clone()),
                    None => Event::TroubleOver,
                });
                self.trouble = trouble;
            }
            // Who asked may have gone meanwhile.
            Word::Set(change, reply) => {
                self.changes.push((change, reply));
                if self.looked || self.slot_io.is_none() {
                    self.change(now);
                }
            }
            Word::Admit { key, policy, reply } => {
                let _ = reply.send(self.governor.admit(key, &policy));
            }
            Word::Report { reply } => {
                self.asked = Some(now);
                let _ = reply.send(Box::new(Report {
                    governor: self.governor.report(),
                    slot: self.slot,
                    trouble: self.trouble.clone(),
                    disks: self.used.clone(),
                }));
            }
            Word::Stop(_) => unreachable!("the loop ends with it"),
        }
    }

    /// The governor decides.
    fn tick(&mut self, now: Time, round: Round) {
        let read = round.read.unwrap_or(Err(ReadFailed));
        let slots = read.as_ref().map(|slots| {
            let slots = slots.iter().map(|(slot, bytes)| (*slot, bytes.as_slice()));
            slots.collect::<Vec<_>>()
        });
        self.governor
            .heard(now, slots.as_deref().map_err(|_| ReadFailed));
        self.looked = true;
        self.change(now);
        let tick = self.governor.tick(now);
        self.ticked = now;
        self.note(tick.events);
        self.rest();
        self.steer(tick.orders);
        if let Some(slot) = tick.publish {
            self.publish(now, slot);
        }
        debug_assert!(
            self.governor.deadline() > now,
            "a tick moves the governor's deadline"
        );
    }

    /// Acts on what the governor noticed, and tells of it.
    fn note(&mut self, noticed: Vec<GovernorEvent>) {
        for event in noticed {
            if event == GovernorEvent::Displaced
                && let Some(slot_io) = &self.slot_io
            {
                self.slot = None;
                let _ = slot_io.send(Job::Move(self.governor.host()));
            }
            self.tell(Event::Governor(event));
        }
    }

    /// Sends the orders to the threads that they concern.
    fn steer(&mut self, orders: Orders) {
        let same = self.orders.as_ref() == Some(&orders);
        for (thread, active) in self.threads.iter().zip(&self.active) {
            // A thread that works hears the same orders again: with them threads tell each other of their shares.
            if !same || *active {
                let steer = Govern::Steer(orders.clone());
                thread.govern(self.id, steer);
            }
        }
        self.orders = Some(orders);
    }

    fn publish(&mut self, now: Time, slot: [u8; SLOT]) {
        let Some(slot_io) = self.slot_io.as_ref().filter(|_| !self.off()) else {
            // There is nobody to hear it, so everybody has.
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

    /// Makes the changes that were asked for.
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
            // Who asked may have gone meanwhile.
            let _ = reply.send(());
        }
    }

    /// Whether control is off: then this host takes no slot, and only looks whether somebody sets it on again.
    fn off(&self) -> bool {
        self.governor.common().mode() == Mode::Off
    }

    /// Gives the slot back once control is off.
    fn rest(&mut self) {
        if self.off()
            && self.slot.take().is_some()
            && let Some(slot_io) = &self.slot_io
        {
            let _ = slot_io.send(Job::Rest(Box::new(self.governor.leave())));
        }
    }

    fn tell(&self, event: Event) {
        self.notes.add(event);
    }

    /// The others may have our part. The slot_io may hang; nobody waits for it here.
    fn stop(&mut self, done: Option<Sender<()>>) {
        if let Some(slot_io) = &self.slot_io {
            let _ = slot_io.send(Job::Leave(Box::new(self.governor.leave()), done));
        }
    }
}

impl Drop for GovernorThread {
    /// Without a governor no window is right: it opens, however this thread ends. Limits go on to hold.
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

/// Adds what a disk used to what it has used.
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
