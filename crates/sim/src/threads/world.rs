//! Virtual time for I/O threads: guests, their queues, I/O threads and a datastore on a processor of several cores.
//!
//! [`World::run`] plays a [`Trace`] with a [`SetUp`], which a monitor's policy may change. The turn of an I/O thread is that
//! of the engine: completions, requests of each queue in turn, then replies, and calls where a guest needs one.
//!
//! # Always true
//! - Each request is answered exactly once, by the thread that serves its disk at that time.
//! - A thread does not sleep while a queue has requests and no kick is on its way.
//! - The run of the processor is that of the model's: nothing works without a core.
//! # Units
//! Nanoseconds since the beginning.

mod dense;
mod guests;
mod monitored;
mod turn;

use super::guest::{Request, Vcpu};
use super::io_thread::{Doing as ThreadDoing, IoThread};
use super::outcome::{Outcome, SAMPLE, Window};
use super::trace::{Idle, Load, SetUp, Trace};
use crate::queue::Queue;
use dense::coalesced;
use monitored::Monitor;
use tidegate_core::histogram::Histogram;
use tidegate_core::monitor::{Policy, ThreadState};
use tidegate_core::units::Time;
use tidegate_model::Random;
use tidegate_model::cpu::{CpuSpec, Cpus, TaskId};

/// What happens at a time of its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    /// A phase begins.
    Phase(usize),
    /// A VM's next request is due.
    Due { vm: usize, phase: usize },
    /// The datastore completes a request that a thread started.
    Completed {
        thread: usize,
        vcpu: usize,
        request: Request,
    },
    /// A thread's timer has ended.
    Timer { thread: usize, at: u64 },
    /// The monitor takes a snapshot.
    Monitor,
    /// A point of the curve.
    Sample,
}

/// A disk, for the monitor.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) thread: usize,
    /// Where it goes, from the order until the new thread has it.
    pub(super) moving: Option<usize>,
    /// When it left its last thread, and when it came to this one.
    pub(super) left: u64,
    pub(super) moved: Option<u64>,
    /// Its vCPUs.
    pub(super) vcpus: Vec<usize>,
    pub(super) busy: u64,
    pub(super) arrivals: u64,
    pub(super) completions: u64,
    pub(super) work: u64,
    pub(super) bytes: u64,
    pub(super) outstanding: u64,
    pub(super) delays: Histogram,
}

/// See the module.
pub struct World<'a> {
    pub(super) trace: &'a Trace,
    pub(super) set_up: SetUp,
    pub(super) now: u64,
    pub(super) cpus: Cpus,
    pub(super) events: Queue<Event>,
    pub(super) random: Random,
    pub(super) phase: usize,
    pub(super) vcpus: Vec<Vcpu>,
    pub(super) disks: Vec<Disk>,
    pub(super) threads: Vec<IoThread>,
    /// By task.
    owners: Vec<Owner>,
    monitor: Option<Monitor<'a>>,
    pub(super) window: Window,
    pub(super) outcome: Outcome,
}

#[derive(Clone, Copy, Debug)]
enum Owner {
    Vcpu(usize),
    Thread(usize),
}

impl<'a> World<'a> {
    /// A world before its first phase. `policy` changes the set-up later; none leaves it.
    #[must_use]
    pub fn new(
        trace: &'a Trace,
        set_up: SetUp,
        policy: Option<Box<dyn Policy + 'a>>,
        seed: u64,
    ) -> World<'a> {
        let costs = &trace.costs;
        let (wake, switch) = (costs.wake, costs.switch);
        let cores = trace.cores;
        let mut cpus = Cpus::new(
            0,
            CpuSpec {
                cores,
                wake,
                switch,
            },
        );
        let most = usize::try_from(cores).unwrap_or(1);
        let own = if set_up.own_cores { set_up.threads } else { 0 };
        let mut owners = Vec::new();
        let threads = (0..most.max(set_up.threads)).map(|number| {
            let mask = if number < own { 1 << number } else { u64::MAX };
            let task = cpus.spawn(0, costs.thread_slice, mask);
            owners.push(Owner::Thread(number));
            IoThread::new(
                task,
                if trace.dense {
                    Idle::Sleep
                } else {
                    set_up.idle
                },
            )
        });
        let mut threads: Vec<IoThread> = threads.collect();
        let coalesce = coalesced(trace);
        let (mut vcpus, mut disks) = (Vec::new(), Vec::new());
        for (vm, count) in trace.vms.iter().enumerate() {
            let thread = vm % set_up.threads;
            let mut disk = Disk {
                thread,
                ..Disk::default()
            };
            threads[thread].disks.push(vm);
            for _ in 0..*count {
                let task = cpus.spawn(0, costs.vcpu_slice, u64::MAX << own);
                owners.push(Owner::Vcpu(vcpus.len()));
                disk.vcpus.push(vcpus.len());
                vcpus.push(Vcpu::new(vm, task, coalesce));
            }
            disks.push(disk);
        }
        for thread in &mut threads[..set_up.threads] {
            thread.state = ThreadState::Active;
        }
        World {
            trace,
            set_up,
            now: 0,
            cpus,
            events: Queue::new(),
            random: Random::new(seed),
            phase: 0,
            vcpus,
            disks,
            threads,
            owners,
            monitor: policy.map(Monitor::new),
            window: Window::default(),
            outcome: Outcome::new(trace),
        }
    }

    /// Plays the whole trace. Figures of a phase are those after `settles`.
    #[must_use]
    pub fn run(mut self, settles: u64) -> Outcome {
        let ends = self.trace.lasts();
        for phase in 0..self.trace.phases.len() {
            let begins = self.trace.begins(phase);
            self.put(begins, Event::Phase(phase));
        }
        self.put(SAMPLE, Event::Sample);
        if let Some(after) = self.monitor.as_ref().and_then(Monitor::after) {
            self.put(after, Event::Monitor);
        }
        for thread in 0..self.threads.len() {
            if self.threads[thread].idle == Idle::Poll
                && self.threads[thread].state == ThreadState::Active
            {
                self.wake_thread(thread);
            }
        }
        self.outcome.settles = settles;
        self.advance(ends);
        self.end_phase();
        self.outcome.finish(&self.cpus, self.now);
        for thread in &self.threads {
            self.outcome.count(&thread.totals);
            let has = thread.completions.len() + thread.taken.len();
            self.outcome.outstanding += has as u64;
        }
        self.outcome.outstanding += self.vcpus.iter().map(Vcpu::has).sum::<u64>();
        while let Some((_, event)) = self.events.take() {
            let in_flight = matches!(event, Event::Completed { .. });
            self.outcome.outstanding += u64::from(in_flight);
        }
        self.outcome
    }

    fn advance(&mut self, ends: u64) {
        loop {
            let event = self.events.next().map_or(u64::MAX, Time::as_nanos);
            let task = self.cpus.next().unwrap_or(u64::MAX);
            let next = event.min(task);
            if next >= ends {
                self.now = ends;
                return;
            }
            self.now = next;
            if event <= task {
                if let Some((_, what)) = self.events.take() {
                    self.happen(what);
                }
            } else if let Some(task) = self.cpus.pop(next) {
                match self.owners[task] {
                    Owner::Vcpu(vcpu) => self.vcpu_done(vcpu),
                    Owner::Thread(thread) => self.thread_done(thread),
                }
            }
        }
    }

    pub(super) fn put(&mut self, at: u64, what: Event) {
        self.events.put(Time::from_nanos(at), what);
    }

    fn happen(&mut self, what: Event) {
        match what {
            Event::Phase(phase) => self.begin_phase(phase),
            Event::Due { vm, phase } => self.due(vm, phase),
            Event::Completed {
                thread,
                vcpu,
                request,
            } => {
                self.threads[thread].completions.push_back((vcpu, request));
                self.nudge(thread);
            }
            Event::Timer { thread, at } => self.timer(thread, at),
            Event::Monitor => self.monitor(),
            Event::Sample => {
                self.count_computing();
                self.outcome.curve.push(self.window.useful);
                self.put(self.now + SAMPLE, Event::Sample);
            }
        }
    }

    pub(super) fn load(&self, vm: usize, phase: usize) -> &'a Load {
        let trace: &'a Trace = self.trace;
        &trace.phases[phase].loads[vm]
    }

    /// The figures of the phase so far, from its settled part on.
    fn end_phase(&mut self) {
        self.count_computing();
        let threads = self.active();
        self.outcome.end_phase(threads, &self.window);
    }

    fn active(&self) -> usize {
        let active = self.threads.iter();
        active
            .filter(|thread| thread.state == ThreadState::Active)
            .count()
    }

    /// A request was answered and its guest has seen that.
    pub(super) fn record(&mut self, vm: usize, request: Request) {
        let load = self.load(vm, request.phase);
        self.window.useful += load.useful(&self.trace.costs);
        let from = self.trace.begins(self.phase) + self.outcome.settles;
        if request.last && request.phase == self.phase && self.now >= from {
            let latency = self.now - request.began;
            self.window.answered(vm, latency);
        }
    }

    pub(super) fn run_time(&self, task: TaskId) -> u64 {
        self.cpus.times(self.now, task).run
    }

    /// A thread has something new to see: it is woken, or its polling ends.
    pub(super) fn nudge(&mut self, thread: usize) {
        match self.threads[thread].doing {
            ThreadDoing::Sleeping => self.wake_thread(thread),
            ThreadDoing::Polling => {
                let task = self.threads[thread].task;
                self.cpus.cut(self.now, task, self.trace.costs.notice);
            }
            ThreadDoing::Turning | ThreadDoing::Calling => {}
        }
    }
}
