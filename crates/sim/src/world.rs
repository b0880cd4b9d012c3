//! The simulated world: it moves I/Os through hosts, control and array, and applies the scenario's events.
//!
//! [`run`] is the whole of it. It takes whatever comes first, the array's next completion or the queue's next moment,
//! until the scenario has ended; then it mends everything that was broken, demands that every disk is served, stops the
//! guests, and demands that everything is answered.
//!
//! # Always true
//! - One scenario, variant and seed: one fingerprint. There is no other source of chance, and no clock. Hosts have no
//!   wall clock to look at, so one that jumps is a fault that cannot reach anything.
//! - The simulator never looks into control's accounts to judge it; it counts for itself.
//!
//! # Picture
//! ```text
//!   guest ──ask──> host (paused? holds it) ──offer──> control ──start──> array
//!     ^                                        pick ──┘  ^                 │
//!     └──────────── answered ─────────── finished ───────┘ <── completion ─┘
//! ```

mod course;
mod errands;
mod fault;
mod host;
mod io_path;

use self::host::Host;
use crate::control::Errand;
use crate::guest::{Guest, Want};
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

/// What came out of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// In which way the scenario was run.
    pub variant: Variant,
    /// With which seed.
    pub seed: u64,
    /// Of everything that happened, in order.
    pub fingerprint: u64,
    /// The figures.
    pub results: Results,
    /// The widest gap between two backlogged disks of a host, over what it may be.
    pub lag: f64,
    /// What must not be, and was.
    pub breaches: Vec<Breach>,
    /// I/Os started, by which the run's own speed is told.
    pub started: u64,
}

/// After the scenario everything is whole again for so long, in which every disk must be served.
const HEALED: Span = Span::from_secs(5);
/// Then guests stop; by so much later everything must be answered.
const DRAINED: Span = Span::from_secs(30);
/// So often may threads wake each other without starting anything: far more than there are threads.
const CIRCLES: u32 = 1_000;
/// Numbers of I/Os on the coordination file have this bit.
const ERRAND: u64 = 1 << 63;

/// Runs a scenario once.
///
/// # Errors
/// When the array cannot be modelled.
pub fn run(scenario: &Scenario, variant: &Variant, seed: u64) -> Result<Run, ScenarioError> {
    let mut scenario = scenario.clone();
    if let Some(threshold) = variant.threshold {
        scenario.datastore.threshold = threshold;
    }
    let mut world = World::new(&scenario, variant, seed)?;
    world.live();
    Ok(world.over(variant, seed))
}

/// What happens at a moment.
#[derive(Clone, Copy, Debug)]
enum Happens {
    /// A guest's actor wakes.
    Wake { disk: usize, actor: u32, epoch: u32 },
    /// An I/O thread's deadline.
    Thread { host: usize, thread: usize },
    /// A host's control has a moment of its own.
    Alarm { host: usize },
    /// An I/O on a coordination file apart from the array ends.
    Errand(u64),
    /// A phase begins.
    Phase(usize),
    /// A host's daemon starts.
    Joins { host: usize },
    /// A fault begins or ends.
    Fault { fault: usize, begins: bool },
    /// The next thread of a starved host has the processor.
    Turn { host: usize, fault: usize },
    /// A bin ends.
    Sample,
    /// The scenario is over: everything is mended.
    Heal,
    /// Guests stop.
    Stop,
    /// Nothing may be left.
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
    /// In the guest's queue: its daemon does nothing.
    Held,
    /// Offered to control.
    Waiting,
    /// At the array.
    Started,
    /// Back from it, unnoticed.
    Back,
    /// Its host is gone.
    Lost,
}

struct World<'a> {
    scenario: &'a Scenario,
    variant: &'a Variant,
    now: Time,
    queue: Queue<Happens>,
    array: Array,
    file: SlotFile,
    hosts: Vec<Host>,
    guests: Vec<Guest>,
    settings: Vec<Settings>,
    /// Whether each disk takes part.
    present: Vec<bool>,
    phase: usize,
    /// Faults that hold now.
    faults: Vec<&'a Fault>,
    ios: Slab<Io>,
    waiting: Vec<u64>,
    /// What was asked of the coordination file, and by whose start.
    errands: BTreeMap<u64, (usize, u64, Errand)>,
    errand: u64,
    random: Random,
    results: Results,
    invariants: Invariants,
    fingerprint: u64,
    started: u64,
    /// I/Os of each disk that ended since everything was mended; none while it is not.
    healed: Option<Vec<u64>>,
    over: bool,
    wants: Vec<Want>,
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
            errands: BTreeMap::new(),
            errand: 0,
            random,
            results: Results::new(scenario),
            invariants: Invariants::new(&settings, (0..scenario.hosts.len()).map(of_host)),
            settings,
            fingerprint: 0xcbf2_9ce4_8422_2325,
            started: 0,
            healed: None,
            over: false,
            wants: Vec::new(),
            scenario,
        };
        for host in 0..scenario.hosts.len() {
            let made = world.make_host(host, 1);
            world.hosts.push(made);
        }
        world.lay_out();
        Ok(world)
    }

    /// Puts into the queue what the scenario says will happen.
    fn lay_out(&mut self) {
        for (host, plan) in self.scenario.hosts.iter().enumerate() {
            self.queue.put(plan.joins, Happens::Joins { host });
        }
        for (phase, plan) in self.scenario.phases.iter().enumerate() {
            self.queue.put(plan.begins, Happens::Phase(phase));
        }
        let ends = self.scenario.ends();
        for (fault, plan) in self.scenario.faults.iter().enumerate() {
            self.queue.put(
                plan.begins,
                Happens::Fault {
                    fault,
                    begins: true,
                },
            );
            if plan.ends < ends {
                self.queue.put(
                    plan.ends,
                    Happens::Fault {
                        fault,
                        begins: false,
                    },
                );
            }
        }
        self.queue.put(Time::ZERO + BIN, Happens::Sample);
        self.queue.put(ends, Happens::Heal);
        self.queue.put(ends + HEALED, Happens::Stop);
        self.queue.put(ends + HEALED + DRAINED, Happens::End);
    }

    fn live(&mut self) {
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
                self.happen(what);
            }
            if self.invariants.is_hung() {
                return;
            }
            // Everything is answered and nobody asks: no need to wait for the end.
            if self.healed.is_some()
                && self.ios.is_empty()
                && self.guests.iter().all(|guest| !guest.is_active())
            {
                self.check_progress();
                return;
            }
        }
    }

    fn over(self, variant: &Variant, seed: u64) -> Run {
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

    fn happen(&mut self, what: Happens) {
        match what {
            Happens::Wake { disk, actor, epoch } => {
                let mut wants = std::mem::take(&mut self.wants);
                self.guests[disk].woke(self.now, actor, epoch, &mut wants);
                self.grant(disk, wants);
            }
            Happens::Thread { host, thread } => self.thread_wakes(host, thread),
            Happens::Alarm { host } => self.alarm(host),
            Happens::Errand(id) => self.completed(id),
            Happens::Phase(phase) => self.begin_phase(phase),
            Happens::Joins { host } => self.join(host),
            Happens::Fault { fault, begins } => self.fault(fault, begins),
            Happens::Turn { host, fault } => self.turn(host, fault),
            Happens::Sample => self.sample(),
            Happens::Heal => self.heal(),
            Happens::Stop => {
                for guest in &mut self.guests {
                    guest.stop();
                }
            }
            Happens::End => {
                self.over = true;
                self.check_progress();
                let left = self.ios.len();
                if left > 0 {
                    let says =
                        format!("{left} I/Os are not answered {DRAINED} after guests stopped");
                    self.invariants.breach(self.now, says);
                }
            }
        }
    }

    /// Mixes what happened into the fingerprint (FNV-1a over whole words).
    fn mark(&mut self, what: u64, who: u64) {
        for word in [self.now.as_nanos(), what, who] {
            self.fingerprint = (self.fingerprint ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    /// Does what a guest wants; the list goes back empty.
    fn grant(&mut self, disk: usize, mut wants: Vec<Want>) {
        for want in wants.drain(..) {
            match want {
                Want::Wake { actor, epoch, at } => {
                    self.queue.put(at, Happens::Wake { disk, actor, epoch });
                }
                Want::Io {
                    actor,
                    op,
                    offset,
                    len,
                } => self.ask(disk, actor, op, offset, len),
            }
        }
        self.wants = wants;
    }
}
