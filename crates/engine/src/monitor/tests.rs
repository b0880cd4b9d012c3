//! The monitor's thread on a model of the engine.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidegate_core::monitor::{DiskLoad, HostLoad, ThreadLoad, ThreadState};
use tidegate_core::request::DiskId;

/// What the test and the subject share.
#[derive(Default)]
struct World {
    /// Whether guests send requests.
    load: AtomicBool,
    snapshots: AtomicU64,
    /// Actions so far, as text.
    acts: Mutex<Vec<String>>,
    /// Whether moves are refused.
    refuses: AtomicBool,
    /// Whether actions take until this is false again.
    holds: AtomicBool,
}

/// Two threads; thread 0 with two disks is congested while there is load.
struct Model {
    world: Arc<World>,
    last: Time,
    states: [ThreadState; 2],
    homes: [u16; 2],
}

impl Model {
    fn new(world: &Arc<World>) -> Model {
        Model {
            world: Arc::clone(world),
            last: os::now(),
            states: [ThreadState::Active, ThreadState::Parked],
            homes: [0; 2],
        }
    }
}

impl Subject for Model {
    fn snapshot(&mut self, with_disks: bool, snapshot: &mut Snapshot) {
        self.world.snapshots.fetch_add(1, Ordering::SeqCst);
        let now = os::now();
        let span = now.since(self.last);
        self.last = now;
        let load = self.world.load.load(Ordering::SeqCst);
        let disks_of = |at: u16| self.homes.iter().filter(|&&home| home == at).count() as u64;
        let thread = |at: u16| {
            let arrivals = if load { 500 * disks_of(at) } else { 0 };
            let is_full = arrivals >= 1000;
            ThreadLoad {
                state: self.states[usize::from(at)],
                busy: if is_full { span } else { Span::ZERO },
                sleep: if is_full { Span::ZERO } else { span },
                delay_p99: Span::from_micros(if is_full { 900 } else { 20 }),
                arrivals,
                completions: arrivals,
                work: arrivals,
                ..ThreadLoad::default()
            }
        };
        *snapshot = Snapshot {
            now,
            span,
            host: HostLoad {
                cpus: 2,
                ..HostLoad::default()
            },
            threads: vec![thread(0), thread(1)],
            disks_span: with_disks.then_some(span),
            disks: Vec::new(),
        };
        if with_disks {
            let disk = |at: u32| DiskLoad {
                busy: span,
                arrivals: u64::from(load) * 500,
                work: u64::from(load) * 500,
                ..DiskLoad::idle(DiskId(at), self.homes[at as usize])
            };
            snapshot.disks = vec![disk(0), disk(1)];
        }
    }

    fn has_worked(&mut self) -> bool {
        self.world.load.load(Ordering::SeqCst)
    }

    fn take_back(&mut self, thread: ThreadNumber) -> Result<()> {
        let state = &mut self.states[usize::from(thread)];
        if *state == ThreadState::Leaving {
            *state = ThreadState::Active;
        }
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<()> {
        let mut acts = self.world.acts.lock().expect("no test panics with it");
        acts.push(action.to_string());
        drop(acts);
        while self.world.holds.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        if self.world.refuses.load(Ordering::SeqCst) {
            return Err(Error::new(crate::Kind::Busy, "the test refuses it"));
        }
        match action {
            Action::Move { disk, to } => self.homes[disk.0 as usize] = to,
            Action::Activate { thread } => self.states[usize::from(thread)] = ThreadState::Active,
            Action::Lock { thread } => self.states[usize::from(thread)] = ThreadState::Leaving,
            Action::Park { thread } => self.states[usize::from(thread)] = ThreadState::Parked,
            Action::Spin { .. } | Action::Stay => {}
        }
        Ok(())
    }
}

fn settings(policy: Kind) -> Settings {
    Settings {
        policy,
        limits: Limits { min: 1, max: 2 },
    }
}

fn start(policy: Kind, world: &Arc<World>) -> (Monitor, Arc<Signals>) {
    let signals = Arc::new(Signals::default());
    let monitor = Monitor::start(settings(policy), Arc::clone(&signals), Model::new(world));
    (monitor.expect("it starts"), signals)
}

/// Waits until it is so; fails after a minute.
fn until_it(is_so: impl Fn() -> bool) {
    let deadline = os::now() + Span::from_secs(60);
    while !is_so() {
        assert!(os::now() < deadline, "it did not come to it");
        std::thread::yield_now();
    }
}

#[test]
fn a_congested_thread_is_relieved_and_the_event_has_the_inputs() {
    let world = Arc::new(World::default());
    world.load.store(true, Ordering::SeqCst);
    let (monitor, _signals) = start(Kind::Auto, &world);
    until_it(|| monitor.status().moves > 0);
    let events = monitor.take_events();
    let first = events[0].decision.to_string();
    assert!(
        first.starts_with("activate thread=1: requests wait for thread 0 (busy=100.0%"),
        "{first}"
    );
    assert!(events.iter().all(|event| event.failed.is_none()));
    assert!(monitor.take_events().is_empty());
    let status = monitor.status();
    assert_eq!((status.activated, status.moves), (1, 1));
    assert_eq!(
        status.last_change.map(|d| d.action),
        Some(Action::Activate { thread: 1 })
    );
}

#[test]
fn a_refused_action_is_an_event_with_its_reason() {
    let world = Arc::new(World::default());
    world.load.store(true, Ordering::SeqCst);
    world.refuses.store(true, Ordering::SeqCst);
    let (monitor, _signals) = start(Kind::Auto, &world);
    until_it(|| monitor.status().failed > 0);
    let events = monitor.take_events();
    assert_eq!(events[0].failed.as_deref(), Some("the test refuses it"));
    assert_eq!(monitor.status().activated, 0);
}

#[test]
fn it_rests_without_load_under_every_policy_and_the_first_work_wakes_it() {
    for policy in Kind::ALL {
        let world = Arc::new(World::default());
        let (monitor, signals) = start(policy, &world);
        let snapshots = || world.snapshots.load(Ordering::SeqCst);
        if policy == Kind::None {
            assert_eq!(snapshots(), 0);
            continue;
        }
        until_it(|| monitor.status().resting);
        let before = (snapshots(), monitor.status().ticks);
        // It sleeps without a timer: nothing but the waker or the handle wakes it.
        assert!(signals.waker.is_armed());
        world.load.store(true, Ordering::SeqCst);
        signals.waker.notify();
        until_it(|| snapshots() >= before.0 + 3);
        assert!(!monitor.status().resting);
        assert!(!signals.waker.is_armed());
    }
}

#[test]
fn work_that_began_before_the_waker_was_armed_is_seen() {
    let world = Arc::new(World::default());
    let mut thread = MonitorThread {
        shared: Arc::new(Shared::new(settings(Kind::Auto))),
        signals: Arc::default(),
        subject: Model::new(&world),
        policy: Kind::Auto.build(Limits { min: 1, max: 2 }),
        snapshot: Snapshot::default(),
        decisions: Vec::new(),
        locked: Vec::new(),
        rest_at: Time::ZERO,
    };
    world.load.store(true, Ordering::SeqCst);
    // It returns at once, although nobody notifies.
    thread.rest();
    assert!(!thread.signals.waker.is_armed());
    assert!(thread.rest_at > os::now());
}

#[test]
fn another_policy_takes_over_at_once_and_a_stop_ends_the_thread() {
    let world = Arc::new(World::default());
    world.load.store(true, Ordering::SeqCst);
    let (mut monitor, _signals) = start(Kind::None, &world);
    monitor.set(settings(Kind::Auto));
    until_it(|| monitor.status().moves > 0);
    monitor.set(settings(Kind::None));
    monitor.stop();
    let snapshots = world.snapshots.load(Ordering::SeqCst);
    assert_eq!(monitor.status().settings.policy, Kind::None);
    assert_eq!(world.snapshots.load(Ordering::SeqCst), snapshots);
}

#[test]
fn events_that_nobody_fetches_are_bounded() {
    let world = Arc::new(World::default());
    let (monitor, _signals) = start(Kind::None, &world);
    let decision = Decision {
        at: Time::ZERO,
        action: Action::Stay,
        why: Why::Empty { threads: 1 },
    };
    for _ in 0..EVENTS + 7 {
        let (failed, repeats) = (None, 0);
        let event = Event {
            decision,
            failed,
            repeats,
        };
        monitor.shared.state().note(event);
    }
    assert_eq!(monitor.status().dropped, 7);
    assert_eq!(monitor.take_events().len(), EVENTS);
}

/// A policy that turns polling off and locks a thread, and nothing more.
struct Unfinished;

impl Policy for Unfinished {
    fn next(&self) -> Option<tidegate_core::monitor::Wish> {
        None
    }

    fn decide(&mut self, snapshot: &Snapshot, out: &mut Vec<Decision>) {
        for action in [Action::Spin { on: false }, Action::Lock { thread: 1 }] {
            out.push(Decision {
                at: snapshot.now,
                action,
                why: Why::Probe {
                    threads: 2,
                    guests_delay: 0,
                },
            });
        }
    }
}

/// The next policy does not know what the last one has begun.
#[test]
fn a_change_of_the_policy_takes_back_what_the_old_one_left_unfinished() {
    let (world, signals) = (Arc::new(World::default()), Arc::new(Signals::default()));
    let mut thread = MonitorThread {
        shared: Arc::new(Shared::new(settings(Kind::Auto))),
        signals: Arc::clone(&signals),
        subject: Model::new(&world),
        policy: Box::new(Unfinished),
        snapshot: Snapshot::default(),
        decisions: Vec::new(),
        locked: Vec::new(),
        rest_at: os::now(),
    };
    thread.tick(false);
    assert_eq!(thread.subject.states[1], ThreadState::Leaving);
    thread.shared.state().set += 1;
    // Nothing more is done under the old settings.
    thread.tick(false);
    assert_eq!(world.acts.lock().expect("no panic").len(), 2);
    thread.signals.let_spin(false);
    thread.take_settings();
    assert_eq!(thread.subject.states[1], ThreadState::Active);
    assert!(signals.may_spin() && thread.shared.state().status.may_spin);
    assert!(thread.locked.is_empty());
}

/// An administrator may park a thread that the policy empties: the policy does not undo that later.
#[test]
fn a_thread_that_was_parked_meanwhile_stays_parked() {
    let (world, signals) = (Arc::new(World::default()), Arc::new(Signals::default()));
    let mut thread = MonitorThread {
        shared: Arc::new(Shared::new(settings(Kind::Auto))),
        signals,
        subject: Model::new(&world),
        policy: Box::new(Unfinished),
        snapshot: Snapshot::default(),
        decisions: Vec::new(),
        locked: Vec::new(),
        rest_at: os::now(),
    };
    thread.tick(false);
    assert_eq!(thread.subject.states[1], ThreadState::Leaving);
    thread.subject.states[1] = ThreadState::Parked;
    thread.release_locks(Span::ZERO);
    assert_eq!(thread.subject.states[1], ThreadState::Parked);
    assert!(thread.locked.is_empty());
}

#[test]
fn new_settings_are_answered_when_what_runs_has_ended_and_nothing_comes_after() {
    let world = Arc::new(World::default());
    world.load.store(true, Ordering::SeqCst);
    world.holds.store(true, Ordering::SeqCst);
    let (monitor, _signals) = start(Kind::Auto, &world);
    let acts = || world.acts.lock().expect("no panic").len();
    until_it(|| acts() > 0);
    std::thread::scope(|scope| {
        let (answered, answer) = std::sync::mpsc::channel();
        let (monitor, acts) = (&monitor, &acts);
        scope.spawn(move || {
            monitor.set(settings(Kind::None));
            answered.send(acts()).expect("it is waited for");
        });
        until_it(|| monitor.shared.state().is_called());
        // Whoever answers before the action has ended does so now.
        let early = answer.recv_timeout(Duration::from_millis(100));
        world.holds.store(false, Ordering::SeqCst);
        assert!(early.is_err(), "{early:?}");
        // The first action ends; those behind it are void.
        assert_eq!(answer.recv(), Ok(1));
    });
    assert_eq!(acts(), 1);
}

#[test]
fn settings_are_answered_although_the_thread_has_ended() {
    let (mut monitor, _signals) = start(Kind::Auto, &Arc::default());
    monitor.stop();
    monitor.set(settings(Kind::None));
    assert_eq!(monitor.status().settings, settings(Kind::None));
}

#[test]
fn a_trial_counts_once_however_many_actions_end_it() {
    let (monitor, _signals) = start(Kind::None, &Arc::default());
    let worse = Why::Worse(Verdict::default(), Span::from_secs(2));
    for action in [
        Action::Lock { thread: 1 },
        Action::Park { thread: 1 },
        Action::Park { thread: 2 },
    ] {
        let (failed, repeats) = (None, 0);
        let decision = Decision {
            at: os::now(),
            action,
            why: worse,
        };
        monitor.shared.state().note(Event {
            decision,
            failed,
            repeats,
        });
    }
    let status = monitor.status();
    assert_eq!((status.undone, status.parked), (1, 2));
}
