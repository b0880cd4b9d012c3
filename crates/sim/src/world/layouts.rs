//! The world of disks with layouts: the shipped shards, layouts and governors over several arrays in virtual time.
//!
//! The world above drives schedulers alone, over one array. A mirror's rebuild or a stripe needs what stands above them:
//! here the hosts' I/O threads are the core's own shards. [`run`] is called for scenarios with a layout or with
//! several arrays. There are no faults and no checks of limits in this world. `cached.rs` has the disks' caches, `pooled.rs`
//! the hosts' pools.
//!
//! # Always true
//! - The same scenario, variant and seed give the same fingerprint. There is no other source of randomness, and no clock.
//! - Work in the background is recognised by its buffers, not by control's own counters: it fills a buffer of the arena
//!   by a read, and a guest's write fills one by a copy.
//!
//! # Picture
//! ```text
//!   guest ──request──> shard ──effects──> array of each target
//!     ^                  ^  │                    │
//!     └───── answer ─────┼──┘                    │
//!                        └────── completion ─────┘
//!   governor of each datastore <──counters, orders──> shards of a host
//! ```

mod broker;
mod cached;
mod host;
mod io_path;
mod pooled;
mod schedule;

use self::broker::Part;
use self::host::Host;
use super::{DRAINED, REPAIRED, Run};
use crate::control::SlotIo;
use crate::guest::{Action, Guest};
use crate::invariants::Invariants;
use crate::policy::Policy;
use crate::queue::Queue;
use crate::results::{BIN, Results};
use crate::scenario::{MemberChange, Scenario, ScenarioError, Settings, Variant, wrong};
use crate::slots::SlotFile;
use std::collections::{BTreeMap, VecDeque};
use tidegate_core::block::BLOCK;
use tidegate_core::effect::Effect;
use tidegate_core::iocontrol::CostModel;
use tidegate_core::layout::Target;
use tidegate_core::request::{IoId, Op};
use tidegate_core::shard;
use tidegate_core::slab::Slab;
use tidegate_core::units::Time;
use tidegate_model::{Array, Random};

/// An event of the simulation.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A guest's actor wakes.
    Wake { disk: usize, actor: u32, epoch: u32 },
    /// An I/O thread's deadline.
    Thread { host: usize, thread: usize },
    /// The time of a governor's wake-up has come.
    Alarm { host: usize, array: usize },
    /// An I/O on a coordination file that is not on an array has completed.
    SlotIo(IoId),
    /// A phase begins.
    Phase(usize),
    /// A host's daemon starts.
    Joins(usize),
    /// A bin ends.
    Sample,
    /// The brokers of flash look at their disks.
    Broker,
    /// The daemon of a pool's disk has recorded a grant for it.
    Grant(usize),
    /// The scenario ends. Every disk must still be served.
    Ends,
    /// Guests stop.
    Stop,
    /// No request may be left.
    End,
}

/// A datastore: its array, and the hosts' coordination file.
struct Datastore {
    array: Array,
    file: SlotFile,
    /// The end of the last member's range.
    end: u64,
}

/// A disk.
struct Disk {
    guest: Guest,
    settings: Settings,
    /// Whether it is part of the run.
    present: bool,
    /// Whether its layouts have opened.
    opened: bool,
    /// Where each member begins on its array.
    begins: Vec<u64>,
    /// Members that were removed, one bit each.
    removed: u32,
    /// Whether a shard has it.
    attached: bool,
    /// Where its part of the flash begins on each of its host's devices, if it has one.
    flash: Option<u64>,
    /// How large that part is, if a broker changes it.
    part: Option<Part>,
    /// How many grants of a pool it has.
    grants: usize,
    /// Requests that were not answered.
    pending: Vec<IoId>,
}

/// A guest's request.
#[derive(Clone, Copy)]
struct Request {
    disk: usize,
    actor: Option<u32>,
    op: Op,
    offset: u64,
    len: u64,
    arrived: Time,
    /// Whether the disk below a cache had a part in it.
    missed: bool,
}

/// An I/O that an array has.
#[derive(Clone, Copy)]
struct Io {
    id: IoId,
    host: usize,
    array: usize,
    of: Of,
    op: Op,
    len: u64,
    issued: Time,
}

/// Whose I/O it is.
#[derive(Clone, Copy)]
enum Of {
    /// A target's of a disk.
    Disk { disk: usize, io: IoId, class: Class },
    /// A block of the layout's own.
    Block {
        disk: usize,
        io: IoId,
        target: Target,
        offset: u64,
    },
    /// A governor's, on the coordination file.
    Slot,
}

/// What an I/O of a disk is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Guest,
    Background,
}

/// A block of a layout's own.
type Block = Box<[u8; BLOCK]>;

struct World<'a> {
    scenario: &'a Scenario,
    variant: &'a Variant,
    costs: CostModel,
    now: Time,
    queue: Queue<Event>,
    datastores: Vec<Datastore>,
    hosts: Vec<Host>,
    /// By host; empty if there are none.
    pools: Vec<pooled::Pool>,
    disks: Vec<Disk>,
    phase: usize,
    requests: Slab<Request>,
    ios: Slab<Io>,
    /// The blocks of layouts, by disk, member and offset.
    blocks: BTreeMap<(usize, u8, u64), Block>,
    /// Those that are being written.
    written: BTreeMap<u64, Block>,
    /// Governors' I/Os that are pending.
    slot_ios: BTreeMap<u64, SlotIo>,
    /// Events that shards have not handled, by host and thread.
    inbox: VecDeque<(usize, usize, shard::Event)>,
    effects: Vec<Effect>,
    results: Results,
    invariants: Invariants,
    fingerprint: u64,
    started: u64,
    /// Answered requests of each disk since the scenario's end; none before it.
    after: Option<Vec<u64>>,
    /// Disks are attached anew once they are at rest.
    reattaches: bool,
    over: bool,
    actions: Vec<Action>,
}

/// Runs a scenario once.
///
/// # Errors
/// When the array's model is invalid, or the policy has no layouts.
pub(super) fn run(scenario: &Scenario, variant: &Variant, seed: u64) -> Result<Run, ScenarioError> {
    if variant.policy == Policy::Parda {
        return wrong("PARDA controls one array and has no layouts");
    }
    let mut world = World::new(scenario, variant, seed)?;
    world.run_events();
    Ok(Run {
        variant: variant.clone(),
        seed,
        fingerprint: world.fingerprint,
        results: world.results,
        lag: 0.0,
        breaches: world.invariants.into_breaches(),
        started: world.started,
    })
}

impl<'a> World<'a> {
    fn new(
        scenario: &'a Scenario,
        variant: &'a Variant,
        seed: u64,
    ) -> Result<World<'a>, ScenarioError> {
        let mut random = Random::new(seed ^ 0x7469_6465_6761_7465);
        let mut datastores = Vec::new();
        let disks = std::iter::repeat_n(scenario.array(variant), scenario.datastore.arrays);
        for spec in disks.chain(cached::devices(scenario, variant)) {
            let array = Array::new(spec, random.draw());
            datastores.push(Datastore {
                array: array.or_else(|error| wrong(error.to_string()))?,
                file: SlotFile::new(scenario.hosts.len()),
                end: 0,
            });
        }
        let alone = variant.alone.as_ref();
        let mut disks = Vec::new();
        for (place, disk) in scenario.disks.iter().enumerate() {
            let size = disk.layout.member_size(disk.size, disk.members.len());
            let begins = disk.members.iter().map(|array| {
                let datastore = &mut datastores[*array];
                datastore.end += size;
                datastore.end - size
            });
            disks.push(Disk {
                begins: begins.collect(),
                guest: Guest::new(disk, random.draw()),
                settings: disk.policy.clone(),
                present: alone.is_none_or(|alone| alone.contains(&place)),
                opened: false,
                removed: 0,
                attached: false,
                flash: None,
                part: None,
                grants: 0,
                pending: Vec::new(),
            });
        }
        let mut world = World {
            scenario,
            variant,
            costs: crate::control::governor_loop::costs(scenario.datastore.kind),
            now: Time::ZERO,
            queue: Queue::new(),
            datastores,
            hosts: Vec::new(),
            pools: pooled::pools(scenario, variant),
            disks,
            phase: 0,
            requests: Slab::with_capacity(1_024),
            ios: Slab::with_capacity(1_024),
            blocks: BTreeMap::new(),
            written: BTreeMap::new(),
            slot_ios: BTreeMap::new(),
            inbox: VecDeque::new(),
            effects: Vec::new(),
            results: Results::new(scenario),
            invariants: Invariants::new(&[], std::iter::empty()),
            fingerprint: 0xcbf2_9ce4_8422_2325,
            started: 0,
            after: None,
            reattaches: false,
            over: false,
            actions: Vec::new(),
        };
        for host in 0..scenario.hosts.len() {
            let made = Host::new(scenario, variant, host, random.draw() | 1);
            world.hosts.push(made);
        }
        world.schedule_events();
        Ok(world)
    }

    /// Inserts the scenario's events into the queue.
    fn schedule_events(&mut self) {
        for (host, plan) in self.scenario.hosts.iter().enumerate() {
            self.queue.put(plan.joins, Event::Joins(host));
        }
        for (phase, plan) in self.scenario.phases.iter().enumerate() {
            self.queue.put(plan.begins, Event::Phase(phase));
        }
        let ends = self.scenario.ends();
        self.queue.put(Time::ZERO + BIN, Event::Sample);
        if self.cache().is_some_and(|cache| cache.broker.is_some()) {
            self.queue.put(Time::ZERO + BIN, Event::Broker);
        }
        self.queue.put(ends, Event::Ends);
        self.queue.put(ends + REPAIRED, Event::Stop);
        self.queue.put(ends + REPAIRED + DRAINED, Event::End);
    }

    fn run_events(&mut self) {
        while !self.over {
            let queued = self.queue.next().unwrap_or(Time::NEVER);
            let next = self.datastores.iter().enumerate();
            let next = next.filter_map(|(place, of)| Some((of.array.next_completion()?, place)));
            match next.min() {
                Some((at, place)) if Time::from_nanos(at) <= queued => {
                    self.now = self.now.max(Time::from_nanos(at));
                    self.array_completes(place);
                }
                _ => {
                    if let Some((at, what)) = self.queue.take() {
                        self.now = at;
                        self.handle(what);
                    }
                }
            }
            self.drain();
            self.reattach();
            if self.invariants.is_hung() || self.is_finished() {
                return;
            }
        }
    }

    fn array_completes(&mut self, place: usize) {
        let now = self.now.as_nanos();
        while let Some(done) = self.datastores[place].array.pop_completed(now) {
            self.completed(IoId::from_bits(done.id));
        }
    }

    /// Whether guests have stopped, and every request is answered.
    fn is_finished(&mut self) -> bool {
        let ended = self.after.is_some()
            && self.requests.is_empty()
            && self.disks.iter().all(|disk| !disk.guest.is_active());
        if ended {
            self.check_progress();
        }
        ended
    }

    fn handle(&mut self, what: Event) {
        match what {
            Event::Wake { disk, actor, epoch } => {
                let mut actions = std::mem::take(&mut self.actions);
                let guest = &mut self.disks[disk].guest;
                guest.woke(self.now, actor, epoch, &mut actions);
                self.execute(disk, actions);
            }
            Event::Thread { host, thread } => self.thread_wakes(host, thread),
            Event::Alarm { host, array } => self.alarm(host, array),
            Event::SlotIo(id) => self.completed(id),
            Event::Phase(phase) => self.begin_phase(phase),
            Event::Joins(host) => self.join(host),
            Event::Sample => self.sample(),
            Event::Broker => self.broker_turn(),
            Event::Grant(disk) => self.give_grant(disk),
            Event::Ends => self.scenario_ends(),
            Event::Stop => self.disks.iter_mut().for_each(|disk| disk.guest.stop()),
            Event::End => {
                self.over = true;
                self.check_progress();
                let left = self.requests.len();
                if left > 0 {
                    let message =
                        format!("{left} requests are not answered {DRAINED} after guests stopped");
                    self.invariants.breach(self.now, message);
                }
            }
        }
    }

    /// Lets shards handle their events, and performs what they want done, until nothing is left.
    fn drain(&mut self) {
        while let Some((host, thread, event)) = self.inbox.pop_front() {
            let mut effects = std::mem::take(&mut self.effects);
            let shard = &mut self.hosts[host].threads[thread].shard;
            match event {
                shard::Event::Finished { disk, io, outcome } => {
                    // Members have equal bytes here.
                    shard.ended(self.now, disk, io, outcome, |_, _| 0);
                    shard.flow(self.now, &mut effects);
                }
                event => shard.handle(self.now, event, &mut effects),
            }
            if shard.strays() > 0 {
                let message = "a shard counts a stray completion";
                self.invariants.breach(self.now, message);
            }
            for effect in effects.drain(..) {
                self.perform(host, thread, effect);
            }
            self.effects = effects;
            self.arm_thread(host, thread);
        }
    }

    /// An event for the I/O thread of a disk.
    fn deliver(&mut self, disk: usize, event: shard::Event) {
        let plan = &self.scenario.disks[disk];
        self.inbox.push_back((plan.host, plan.thread, event));
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
                } => self.submit(disk, actor, op, offset, len),
            }
        }
        self.actions = actions;
    }

    /// Whether something happens to this disk in the run.
    fn is_present(&self, change: &MemberChange) -> bool {
        self.disks[change.disk].present
    }
}
