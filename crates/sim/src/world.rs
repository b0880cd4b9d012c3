//! The world in virtual time: carries I/Os from guests through their host's control to the array and back, and lets
//! happen what a scenario says.
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

use self::host::{Held, Host};
use crate::control::{Asked, Ended, Errand, Next};
use crate::guest::{Guest, Want};
use crate::queue::Queue;
use crate::results::{BIN, Record, Results};
use crate::safety::{Breach, Safety};
use crate::scenario::{Control as Mode, Fault, Scenario, ScenarioError, Settings, Variant, wrong};
use crate::slots::SlotFile;
use std::collections::{BTreeMap, VecDeque};
use tidegate_core::iocontrol::{Cost, policy};
use tidegate_core::request::{IoId, Op};
use tidegate_core::slab::Slab;
use tidegate_core::units::{Span, Time};
use tidegate_model::{Array, IoKind, ModelIo, Random};

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
    /// A phase begins.
    Phase(usize),
    /// A host's daemon starts.
    Joins { host: usize },
    /// A fault begins or ends.
    Fault { fault: usize, begins: bool },
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
    safety: Safety,
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
            safety: Safety::new(&settings, (0..scenario.hosts.len()).map(of_host)),
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
            if self.safety.is_hung() {
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
            lag: self.safety.lag(),
            breaches: self.safety.into_breaches(),
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
            Happens::Phase(phase) => self.begin_phase(phase),
            Happens::Joins { host } => self.join(host),
            Happens::Fault { fault, begins } => self.fault(fault, begins),
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
                    self.safety.breach(self.now, says);
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

    fn ask(&mut self, disk: usize, actor: Option<u32>, op: Op, offset: u64, len: u64) {
        let now = self.now;
        let io = self.ios.insert_with(|id| Io {
            id,
            disk,
            actor,
            op,
            offset,
            len,
            arrived: now,
            issued: now,
            cost: Cost(0),
            stage: Stage::Held,
        });
        let plan = &self.scenario.disks[disk];
        if plan.unmanaged {
            return self.start(io, Cost(0));
        }
        let host = &mut self.hosts[plan.host];
        if host.paused {
            return host.held.push(Held::Asked(io));
        }
        self.offer(io);
    }

    fn offer(&mut self, id: IoId) {
        let Some(io) = self.ios.get_mut(id) else {
            return;
        };
        io.stage = Stage::Waiting;
        let asked = Asked {
            disk: io.disk,
            io: id,
            op: io.op,
            offset: io.offset,
            len: io.len,
        };
        let (host, thread) = self.home(asked.disk);
        match self.hosts[host].control.offer(self.now, &asked) {
            Some(cost) => self.start(id, cost),
            None => {
                self.waits(asked.disk, 1);
                // As an I/O thread does before it sleeps.
                self.pump(host, thread);
            }
        }
        self.arm(host);
    }

    fn answer(&mut self, disk: usize, actor: Option<u32>) {
        let mut wants = std::mem::take(&mut self.wants);
        let order = self.guests[disk].answered(self.now, actor, &mut wants);
        if let Some(took) = order
            && self.healed.is_none()
        {
            self.results.ordered(disk, took);
        }
        self.grant(disk, wants);
    }

    fn home(&self, disk: usize) -> (usize, usize) {
        let plan = &self.scenario.disks[disk];
        (plan.host, plan.thread)
    }

    fn waits(&mut self, disk: usize, more: i64) {
        let waiting = &mut self.waiting[disk];
        *waiting = waiting.saturating_add_signed(more);
        let host = self.scenario.disks[disk].host;
        self.safety.waits(host, disk, self.waiting[disk]);
    }

    /// Asks a thread's scheduler until it has nothing, and then those threads that it says are to be woken.
    fn pump(&mut self, host: usize, thread: usize) {
        let mut awake = VecDeque::from([thread]);
        // Threads that wake each other in turn and start nothing would be a circle without an end.
        let mut idle = 0;
        while let Some(thread) = awake.pop_front() {
            loop {
                match self.hosts[host].control.pick(self.now, thread) {
                    Next::Start(io, cost) => {
                        idle = 0;
                        let disk = match self.ios.get(io) {
                            Some(found) if found.stage == Stage::Waiting => found.disk,
                            _ => {
                                let says = "an I/O is picked that does not wait";
                                return self.safety.breach(self.now, says);
                            }
                        };
                        self.waits(disk, -1);
                        self.start(io, cost);
                    }
                    Next::Thread(other) if idle < CIRCLES => {
                        idle += 1;
                        awake.push_back(other);
                        break;
                    }
                    Next::Thread(_) => {
                        let says = "I/O threads wake each other and none starts anything";
                        return self.safety.breach(self.now, says);
                    }
                    Next::Nothing => break,
                }
            }
        }
    }

    fn start(&mut self, id: IoId, cost: Cost) {
        let Some(io) = self.ios.get_mut(id) else {
            return self
                .safety
                .breach(self.now, "an I/O is started that is none");
        };
        (io.stage, io.issued, io.cost) = (Stage::Started, self.now, cost);
        let (disk, op, len) = (io.disk, io.op, io.len);
        let kind = match op {
            Op::Write | Op::WriteZeroes => IoKind::Write,
            Op::Flush => IoKind::Flush,
            Op::Read | Op::Discard | Op::Extents | Op::Prefetch => IoKind::Read,
        };
        let plan = &self.scenario.disks[disk];
        // Each disk has a range of its own.
        let offset = plan.size * disk as u64 + io.offset;
        self.watch_start(disk, op, len, cost);
        self.array.submit(
            self.now.as_nanos(),
            ModelIo {
                id: id.to_bits(),
                kind,
                offset,
                len,
            },
        );
        self.started += 1;
        self.mark(1, id.to_bits());
    }

    fn watch_start(&mut self, disk: usize, op: Op, len: u64, cost: Cost) {
        let plan = &self.scenario.disks[disk];
        if plan.unmanaged {
            return;
        }
        let units = match op {
            Op::Flush => 0,
            _ => policy::units(len, self.scenario.datastore.io_unit),
        };
        if self.healed.is_none() {
            self.results.started(disk, units);
        }
        let ours = self.variant.policy == crate::control::Policy::Ours;
        let held = op != Op::Flush;
        if ours && held && self.scenario.datastore.control == Mode::On {
            self.safety.limited(self.now, disk, &plan.name, units, len);
        }
        let host = &mut self.hosts[plan.host];
        let standing = host.control.standing();
        if let Some(window) = standing.window
            && ours
            && held
            && standing.engaged
            && self.scenario.datastore.control == Mode::On
        {
            let name = &self.scenario.hosts[plan.host].name;
            let window = window * 256.0;
            self.safety
                .windowed(self.now, plan.host, name, host.in_flight_cost, window);
        }
        host.in_flight_cost += cost.0;
        host.in_flight += 1;
        let in_flight = host.in_flight;
        let (now, home) = (self.now, plan.host);
        self.safety
            .served(now, home, disk, cost, in_flight, standing.engaged);
    }

    /// The array has done something.
    fn completed(&mut self, number: u64) {
        self.mark(2, number);
        if number & ERRAND != 0 {
            return self.errand_done(number);
        }
        let id = IoId::from_bits(number);
        let Some(io) = self.ios.get_mut(id) else {
            return self.safety.breach(self.now, "an I/O ends that is none");
        };
        if io.stage == Stage::Lost {
            self.ios.remove(id);
            return;
        }
        if io.stage != Stage::Started {
            return self
                .safety
                .breach(self.now, "an I/O ends that was not started");
        }
        io.stage = Stage::Back;
        let plan = &self.scenario.disks[io.disk];
        let host = &mut self.hosts[plan.host];
        if host.paused && !plan.unmanaged {
            return host.held.push(Held::Back(id));
        }
        self.finished(id);
    }

    /// A host notices that one of its I/Os has ended.
    fn finished(&mut self, id: IoId) {
        let Some(io) = self.ios.remove(id) else {
            return self.safety.breach(self.now, "an I/O is answered twice");
        };
        let plan = &self.scenario.disks[io.disk];
        let (host, thread) = (plan.host, plan.thread);
        if !plan.unmanaged {
            let ended = Ended {
                disk: io.disk,
                op: io.op,
                len: io.len,
                issued: io.issued,
                cost: io.cost,
            };
            let host = &mut self.hosts[host];
            host.control.finished(self.now, &ended);
            host.in_flight_cost -= io.cost.0;
            host.in_flight -= 1;
        }
        let record = Record {
            disk: io.disk,
            op: io.op,
            len: io.len,
            cost: io.cost,
            arrived: io.arrived,
            issued: io.issued,
            unmanaged: plan.unmanaged,
        };
        match &mut self.healed {
            Some(healed) => healed[io.disk] += 1,
            None => {
                let member = &self.scenario.datastore.array.member;
                self.results.ended(self.now, &record, member);
            }
        }
        self.answer(io.disk, io.actor);
        if !plan.unmanaged {
            self.pump(host, thread);
            self.arm(host);
        }
    }
}
