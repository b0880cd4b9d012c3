//! The simulated world: it moves I/Os through hosts, control and array, and applies the scenario's events.
//!
//! [`run`] executes a scenario. It processes the earliest event, the array's next completion or the queue's next event,
//! until the scenario ends. Then it repairs all faults, checks that every disk is served, stops the guests, and checks
//! that every I/O is completed.
//!
//! # Always true
//! - The same scenario, variant and seed give the same fingerprint. There is no other source of randomness, and no
//!   clock. Hosts have no wall clock, so a clock jump has no effect.
//! - The simulator does not use control's own counters to judge it. It counts separately.
//!
//! # Picture
//! ```text
//!   guest ──issue─> host (paused? defers) ──offer──> control ──start──> array
//!     ^                                        pick ──┘  ^                 │
//!     └──────────── completed ────────── finished ───────┘ <── completion ─┘
//! ```

mod fault;
mod host;
mod io_path;
mod layouts;
mod schedule;
mod slot_io;

use self::host::Host;
use crate::control::SlotIo;
use crate::guest::{Action, Guest};
use crate::invariants::{Breach, Invariants};
use crate::queue::Queue;
use crate::results::{BIN, Results};
use crate::scenario::{Fault, Scenario, ScenarioError, Settings, Variant, wrong};
use crate::slots::SlotFile;
use std::collections::BTreeMap;
use tidegate_core::iocontrol::Cost;
use tidegate_core::request::{IoId, Op};
use tidegate_core::slab::Slab;
use tidegate_core::units::{Span, Time};
use tidegate_model::{Array, Random};

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The variant of the scenario.
    pub variant: Variant,
    /// The seed.
    pub seed: u64,
    /// A hash of all events, in order.
    pub fingerprint: u64,
    /// The figures.
    pub results: Results,
    /// The widest gap between two backlogged disks of a host, relative to its bound.
    pub lag: f64,
    /// The violated invariants.
    pub breaches: Vec<Breach>,
    /// Number of started I/Os, to compute the simulator's own speed.
    pub started: u64,
}

/// The time after the scenario with all faults repaired, in which every disk must be served.
const REPAIRED: Span = Span::from_secs(5);
/// The time after the guests' stop in which every I/O must complete.
const DRAINED: Span = Span::from_secs(30);
/// The most mutual wake-ups of threads without starting an I/O: far more than there are threads.
const CIRCLES: u32 = 1_000;
/// This bit marks the ids of I/Os on the coordination file.
const SLOT_IO: u64 = 1 << 63;

/// Runs a scenario once.
///
/// # Errors
/// When the array's model is invalid.
pub fn run(scenario: &Scenario, variant: &Variant, seed: u64) -> Result<Run, ScenarioError> {
    let mut scenario = scenario.clone();
    if let Some(threshold) = variant.threshold {
        scenario.datastore.threshold = threshold;
    }
    if scenario.has_layouts() {
        return layouts::run(&scenario, variant, seed);
    }
    let mut world = World::new(&scenario, variant, seed)?;
    world.run_events();
    Ok(world.finish(variant, seed))
}

/// An event of the simulation.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A guest's actor wakes.
    Wake { disk: usize, actor: u32, epoch: u32 },
    /// An I/O thread's deadline.
    Thread { host: usize, thread: usize },
    /// The time of a host's [`Control::wake_at`](crate::control::Control::wake_at) has come.
    Alarm { host: usize },
    /// An I/O on a coordination file that is not on the array has completed.
    SlotIo(u64),
    /// A phase begins.
    Phase(usize),
    /// A host's daemon starts.
    Joins { host: usize },
    /// A fault begins or ends.
    Fault { fault: usize, begins: bool },
    /// The next thread of a starved host gets the CPU.
    TimeSlice { host: usize, fault: usize },
    /// A bin ends.
    Sample,
    /// The scenario ends: all faults are repaired.
    Repair,
    /// Guests stop.
    Stop,
    /// No I/O may be left.
    End,
}

/// One I/O of a guest.
#[derive(Clone, Copy)]
struct Io {
    id: IoId,
    disk: usize,
    actor: Option<u32>,
    op: Op,
    offset: u64,
    len: u64,
    arrived: Time,
    issued: Time,
    cost: Cost,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// In the guest's queue: its host's daemon is paused.
    Deferred,
    /// Offered to control.
    Waiting,
    /// In the array.
    Started,
    /// Completed by the array, and not yet noticed by the host.
    Back,
    /// Its host is dead.
    Lost,
}

struct World<'a> {
    scenario: &'a Scenario,
    variant: &'a Variant,
    now: Time,
    queue: Queue<Event>,
    array: Array,
    file: SlotFile,
    hosts: Vec<Host>,
    guests: Vec<Guest>,
    settings: Vec<Settings>,
    /// Whether each disk is part of the run.
    present: Vec<bool>,
    phase: usize,
    /// Active faults.
    faults: Vec<&'a Fault>,
    ios: Slab<Io>,
    waiting: Vec<u64>,
    /// Pending I/Os on the coordination file, each with its host and the daemon's incarnation.
    slot_ios: BTreeMap<u64, (usize, u64, SlotIo)>,
    slot_io: u64,
    random: Random,
    results: Results,
    invariants: Invariants,
    fingerprint: u64,
    started: u64,
    /// Completed I/Os of each disk since the repair; none before it.
    repaired: Option<Vec<u64>>,
    over: bool,
    actions: Vec<Action>,
}

impl<'a> World<'a> {
    fn new(
        scenario: &'a Scenario,
        variant: &'a Variant,
        seed: u64,
    ) -> Result<World<'a>, ScenarioError> {
        let mut random = Random::new(seed ^ 0x7469_6465_6761_7465);
        let array = Array::new(&scenario.datastore.array, random.draw());
        let settings: Vec<Settings> = scenario.disks.iter().map(|d| d.policy.clone()).collect();
        let disks = scenario.disks.iter();
        let guests = disks.map(|disk| Guest::new(disk, random.draw())).collect();
        let of_host = |host: usize| {
            let disks = scenario.disks.iter().enumerate();
            let own = disks.filter(|(_, disk)| disk.host == host && !disk.unmanaged);
            (
                own.map(|(place, _)| place).collect(),
                scenario.hosts[host].threads,
            )
        };
        let present = 0..scenario.disks.len();
        let mut world = World {
            variant,
            now: Time::ZERO,
            queue: Queue::new(),
            array: array.or_else(|error| wrong(error.to_string()))?,
            file: SlotFile::new(scenario.hosts.len()),
            hosts: Vec::new(),
            guests,
            present: present
                .map(|disk| {
                    variant
                        .alone
                        .as_ref()
                        .is_none_or(|alone| alone.contains(&disk))
                })
                .collect(),
            phase: 0,
            faults: Vec::new(),
            ios: Slab::with_capacity(1_024),
            waiting: vec![0; scenario.disks.len()],
            slot_ios: BTreeMap::new(),
            slot_io: 0,
            random,
            results: Results::new(scenario),
            invariants: Invariants::new(&settings, (0..scenario.hosts.len()).map(of_host)),
            settings,
            fingerprint: 0xcbf2_9ce4_8422_2325,
            started: 0,
            repaired: None,
            over: false,
            actions: Vec::new(),
            scenario,
        };
        for host in 0..scenario.hosts.len() {
            let made = world.make_host(host, 1);
            world.hosts.push(made);
        }
        world.schedule_events();
        Ok(world)
    }

    /// Inserts the scenario's events into the queue.
    fn schedule_events(&mut self) {
        for (host, plan) in self.scenario.hosts.iter().enumerate() {
            self.queue.put(plan.joins, Event::Joins { host });
        }
        for (phase, plan) in self.scenario.phases.iter().enumerate() {
            self.queue.put(plan.begins, Event::Phase(phase));
        }
        let ends = self.scenario.ends();
        for (fault, plan) in self.scenario.faults.iter().enumerate() {
            self.queue.put(
                plan.begins,
                Event::Fault {
                    fault,
                    begins: true,
                },
            );
            if plan.ends < ends {
                self.queue.put(
                    plan.ends,
                    Event::Fault {
                        fault,
                        begins: false,
                    },
                );
            }
        }
        self.queue.put(Time::ZERO + BIN, Event::Sample);
        self.queue.put(ends, Event::Repair);
        self.queue.put(ends + REPAIRED, Event::Stop);
        self.queue.put(ends + REPAIRED + DRAINED, Event::End);
    }

    fn run_events(&mut self) {
        while !self.over {
            let queued = self.queue.next().unwrap_or(Time::NEVER);
            let array = self
                .array
                .next_completion()
                .map_or(Time::NEVER, Time::from_nanos);
            if array <= queued {
                self.now = self.now.max(array);
                while let Some(done) = self.array.pop_completed(self.now.as_nanos()) {
                    self.completed(done.id);
                }
            } else if let Some((at, what)) = self.queue.take() {
                self.now = at;
                self.handle(what);
            }
            if self.invariants.is_hung() {
                return;
            }
            // If every I/O is completed and no guest is active, the run ends early.
            if self.repaired.is_some()
                && self.ios.is_empty()
                && self.guests.iter().all(|guest| !guest.is_active())
            {
                self.check_progress();
                return;
            }
        }
    }

    fn finish(self, variant: &Variant, seed: u64) -> Run {
        Run {
            variant: variant.clone(),
            seed,
            fingerprint: self.fingerprint,
            results: self.results,
            lag: self.invariants.lag(),
            breaches: self.invariants.into_breaches(),
            started: self.started,
        }
    }

    fn handle(&mut self, what: Event) {
        match what {
            Event::Wake { disk, actor, epoch } => {
                let mut actions = std::mem::take(&mut self.actions);
                self.guests[disk].woke(self.now, actor, epoch, &mut actions);
                self.execute(disk, actions);
            }
            Event::Thread { host, thread } => self.thread_wakes(host, thread),
            Event::Alarm { host } => self.alarm(host),
            Event::SlotIo(id) => self.completed(id),
            Event::Phase(phase) => self.begin_phase(phase),
            Event::Joins { host } => self.join(host),
            Event::Fault { fault, begins } => self.fault(fault, begins),
            Event::TimeSlice { host, fault } => self.next_slice(host, fault),
            Event::Sample => self.sample(),
            Event::Repair => self.repair(),
            Event::Stop => {
                for guest in &mut self.guests {
                    guest.stop();
                }
            }
            Event::End => {
                self.over = true;
                self.check_progress();
                let left = self.ios.len();
                if left > 0 {
                    let message =
                        format!("{left} I/Os are not completed {DRAINED} after guests stopped");
                    self.invariants.breach(self.now, message);
                }
            }
        }
    }

    /// Mixes an event into the fingerprint (FNV-1a over whole words).
    fn mark(&mut self, what: u64, subject: u64) {
        for word in [self.now.as_nanos(), what, subject] {
            self.fingerprint = (self.fingerprint ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Executes a guest's actions. The list is reused.
    fn execute(&mut self, disk: usize, mut actions: Vec<Action>) {
        for action in actions.drain(..) {
            match action {
                Action::Wake { actor, epoch, at } => {
                    self.queue.put(at, Event::Wake { disk, actor, epoch });
                }
                Action::Io {
                    actor,
                    op,
                    offset,
                    len,
                } => self.issue(disk, actor, op, offset, len),
            }
        }
        self.actions = actions;
    }
}
