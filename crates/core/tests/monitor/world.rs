//! A fluid model of a host: guests' demand, disks, I/O threads and CPUs, in steps of a quarter of a millisecond.
//!
//! Requests are not single: each step a disk brings an amount of them, and a thread serves what fits into its CPU time.
//! CPUs are shared evenly among threads with work and guests that compute.

use tidegate_core::monitor::{
    Action, Decision, DiskLoad, HostLoad, Policy, Snapshot, ThreadLoad, ThreadState,
};
use tidegate_core::request::DiskId;
use tidegate_core::units::{Span, Time};

/// A step, in microseconds.
const STEP: f64 = 250.0;

/// What a disk's guest asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Demand {
    /// Requests a second, however they are served.
    Open(f64),
    /// So many outstanding requests; the datastore takes so many microseconds for each.
    Closed(f64, f64),
}

#[derive(Clone, Debug)]
pub(crate) struct Disk {
    pub(crate) thread: usize,
    pub(crate) demand: Demand,
    /// Thread time of a request, in microseconds.
    pub(crate) service: f64,
    moved: Option<Time>,
    /// Requests in the ring, and with the datastore.
    waiting: f64,
    in_flight: f64,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    busy: f64,
    arrivals: f64,
    outstanding: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    state: ThreadState,
    busy: f64,
    stolen: f64,
    arrivals: f64,
    delay: f64,
    /// Requests wait longer than a tick.
    standing: bool,
}

pub(crate) struct World {
    /// Microseconds.
    pub(crate) now: f64,
    pub(crate) cpus: f64,
    /// CPUs that guests compute on, if they get them.
    pub(crate) guests: f64,
    /// How much longer each request takes with each further active thread: what they do to each other's caches.
    pub(crate) tax: f64,
    pub(crate) disks: Vec<Disk>,
    threads: Vec<Thread>,
    guests_run: f64,
    guests_delay: f64,
    idle: f64,
    snapshot_at: f64,
    details_at: f64,
    /// All decisions so far.
    pub(crate) log: Vec<Decision>,
    /// Requests served.
    pub(crate) served: f64,
    /// The snapshots, if they are to be recorded.
    pub(crate) record: Option<String>,
}

impl World {
    /// A host with so many CPUs and threads, of which some are active.
    pub(crate) fn new(cpus: u16, threads: usize, active: usize) -> World {
        let thread = |at| Thread {
            state: match at < active {
                true => ThreadState::Active,
                false => ThreadState::Parked,
            },
            ..Thread::default()
        };
        World {
            now: 0.0,
            cpus: cpus.into(),
            guests: 0.0,
            tax: 0.0,
            disks: Vec::new(),
            threads: (0..threads).map(thread).collect(),
            guests_run: 0.0,
            guests_delay: 0.0,
            idle: 0.0,
            snapshot_at: 0.0,
            details_at: 0.0,
            log: Vec::new(),
            served: 0.0,
            record: None,
        }
    }

    pub(crate) fn attach(&mut self, thread: usize, demand: Demand, service: f64) {
        self.disks.push(Disk {
            thread,
            demand,
            service,
            moved: None,
            waiting: 0.0,
            in_flight: 0.0,
            counts: Counts::default(),
        });
    }

    pub(crate) fn active(&self) -> usize {
        let active = self
            .threads
            .iter()
            .filter(|t| t.state == ThreadState::Active);
        active.count()
    }

    pub(crate) fn state(&self, thread: usize) -> ThreadState {
        self.threads[thread].state
    }

    /// What an administrator does.
    pub(crate) fn set_state(&mut self, thread: usize, state: ThreadState) {
        self.threads[thread].state = state;
    }

    fn step(&mut self) {
        let mut demand = vec![0.0; self.threads.len()];
        let slower = 1.0 + self.tax * self.active().saturating_sub(1) as f64;
        for disk in &mut self.disks {
            let came = match disk.demand {
                Demand::Open(rate) => rate * STEP / 1e6,
                Demand::Closed(depth, latency) => {
                    let back = disk.in_flight * (STEP / latency).min(1.0);
                    disk.in_flight -= back;
                    // Guests add requests, or stop to, up to their depth.
                    (depth - disk.waiting - disk.in_flight).max(0.0)
                }
            };
            disk.waiting += came;
            disk.counts.outstanding += (disk.waiting + disk.in_flight) * STEP;
            demand[disk.thread] += disk.waiting * disk.service * slower;
        }
        let wanted: f64 = demand.iter().map(|work| (work / STEP).min(1.0)).sum();
        let part = (self.cpus / (wanted + self.guests)).min(1.0);
        self.guests_run += self.guests * part * STEP;
        self.guests_delay += self.guests * (1.0 - part) * STEP;
        self.idle += (self.cpus - (wanted + self.guests) * part).max(0.0) * STEP;
        for (at, thread) in self.threads.iter_mut().enumerate() {
            let capacity = STEP * part;
            let served = (capacity / demand[at].max(1e-9)).min(1.0);
            let left = demand[at] * (1.0 - served);
            thread.stolen += (demand[at].min(STEP) - demand[at] * served).max(0.0);
            thread.busy += demand[at] * served;
            let mut requests = 0.0;
            for disk in self.disks.iter_mut().filter(|disk| disk.thread == at) {
                let done = disk.waiting * served;
                disk.waiting -= done;
                if let Demand::Closed(..) = disk.demand {
                    disk.in_flight += done;
                }
                disk.counts.arrivals += done;
                disk.counts.busy += done * disk.service * slower;
                requests += done;
            }
            thread.arrivals += requests;
            self.served += requests;
            let share = (demand[at] / STEP).min(0.999);
            let service = demand[at] * served / requests.max(1e-9);
            let queueing = match requests > 0.0 {
                true => service * share / (1.0 - share) * 4.6,
                false => 0.0,
            };
            let delay = left / part + queueing.min(STEP);
            thread.delay = thread.delay.max(delay);
            thread.standing = left > 5000.0;
        }
        self.now += STEP;
    }

    fn snapshot(&mut self, with_disks: bool) -> Snapshot {
        let span = us(self.now - self.snapshot_at);
        self.snapshot_at = self.now;
        let mut snapshot = Snapshot {
            now: Time::from_nanos(us(self.now).as_nanos()),
            span,
            host: HostLoad {
                cpus: self.cpus as u16,
                ..HostLoad::default()
            },
            threads: self.threads.iter().map(|t| load(t, span)).collect(),
            ..Snapshot::default()
        };
        for thread in &mut self.threads {
            *thread = Thread {
                state: thread.state,
                arrivals: thread.arrivals.fract(),
                ..Thread::default()
            };
        }
        if with_disks {
            snapshot.disks_span = Some(us(self.now - self.details_at));
            self.details_at = self.now;
            snapshot.host.idle = us(std::mem::take(&mut self.idle));
            snapshot.host.guests_run = Some(us(std::mem::take(&mut self.guests_run)));
            snapshot.host.guests_delay = Some(us(std::mem::take(&mut self.guests_delay)));
            let numbered = self.disks.iter_mut().enumerate();
            snapshot.disks = numbered.map(|(at, disk)| disk_load(at, disk)).collect();
        }
        snapshot
    }

    /// Runs for so many milliseconds under a policy.
    pub(crate) fn run(&mut self, ms: u64, policy: &mut dyn Policy) {
        self.run_and(ms, policy, |_, _| {});
    }

    /// The same; `look` sees each snapshot and what was decided.
    pub(crate) fn run_and(
        &mut self,
        ms: u64,
        policy: &mut dyn Policy,
        mut look: impl FnMut(&Snapshot, &[Decision]),
    ) {
        let end = self.now + ms as f64 * 1000.0;
        while self.now < end {
            self.step();
            let Some(wish) = policy.next() else { continue };
            if us(self.now - self.snapshot_at) < wish.after {
                continue;
            }
            let snapshot = self.snapshot(wish.disks);
            if let Some(record) = &mut self.record {
                record.push_str(&snapshot.to_string());
            }
            let mut decisions = Vec::new();
            policy.decide(&snapshot, &mut decisions);
            look(&snapshot, &decisions);
            for decision in &decisions {
                self.act(snapshot.now, decision.action);
            }
            self.log.extend(decisions);
        }
    }

    /// Does what the engine would; asserts what it would refuse.
    fn act(&mut self, now: Time, action: Action) {
        match action {
            Action::Move { disk, to } => {
                let to = usize::from(to);
                assert_eq!(self.threads[to].state, ThreadState::Active, "{action}");
                let disk = &mut self.disks[disk.0 as usize];
                assert_ne!(disk.thread, to, "{action} goes nowhere");
                disk.thread = to;
                disk.moved = Some(now);
            }
            Action::Activate { thread } => {
                let state = &mut self.threads[usize::from(thread)].state;
                assert_ne!(*state, ThreadState::Active, "{action}");
                *state = ThreadState::Active;
            }
            Action::Lock { thread } => {
                let state = &mut self.threads[usize::from(thread)].state;
                assert_eq!(*state, ThreadState::Active, "{action}");
                *state = ThreadState::Leaving;
            }
            Action::Park { thread } => {
                let at = usize::from(thread);
                assert_eq!(self.threads[at].state, ThreadState::Leaving, "{action}");
                assert!(self.disks.iter().all(|disk| disk.thread != at), "{action}");
                self.threads[at].state = ThreadState::Parked;
            }
            Action::Spin { .. } | Action::Stay => {}
        }
    }

    /// Requests a second of the next milliseconds.
    pub(crate) fn rate(&mut self, ms: u64, policy: &mut dyn Policy) -> f64 {
        let before = self.served;
        self.run(ms, policy);
        (self.served - before) * 1000.0 / ms as f64
    }
}

fn us(us: f64) -> Span {
    Span::from_nanos((us * 1000.0) as u64)
}

fn load(thread: &Thread, span: Span) -> ThreadLoad {
    let (busy, stolen) = (us(thread.busy), us(thread.stolen));
    let count = thread.arrivals as u64;
    ThreadLoad {
        state: thread.state,
        busy,
        spin: Span::ZERO,
        sleep: Span::from_nanos(span.as_nanos().saturating_sub((busy + stolen).as_nanos())),
        stolen,
        delay_p99: us(thread.delay),
        standing: thread.standing,
        arrivals: count,
        completions: count,
        work: count * 20,
    }
}

fn disk_load(at: usize, disk: &mut Disk) -> DiskLoad {
    let counts = std::mem::take(&mut disk.counts);
    disk.counts.arrivals = counts.arrivals.fract();
    let count = counts.arrivals as u64;
    DiskLoad {
        busy: us(counts.busy),
        arrivals: count,
        completions: count,
        work: count * 20,
        bytes: count * 4096,
        outstanding: us(counts.outstanding),
        queues: 1,
        moved: disk.moved,
        ..DiskLoad::idle(DiskId(at as u32), disk.thread as u16)
    }
}
