//! The monitor's thread: it takes snapshots of the I/O threads, asks the policy, and carries out what that decides.
//!
//! It runs only while there is load. When no I/O thread has worked for two seconds, it arms a waker and sleeps without
//! a timer; the first I/O thread that wakes up notifies it. The policies are in the core ([`tidegate_core::monitor`]). If this
//! thread ends, threads and disks stay as they are.
//!
//! # Always true
//! - in an idle daemon it does not wake up, under any policy
//! - it sends I/O threads nothing but moves, and takes no lock of theirs but that of an inbox
//! - each change becomes an event with its inputs, and with the error if it could not be carried out; findings and failures
//!   that repeat are counted ([`Findings`])
//! - nothing is done under settings that were replaced, once [`Monitor::set`] has returned
//!
//! # Picture
//! ```text
//!   running: snapshot -> decide -> act -> sleep for the policy's tick --+
//!      ^ ^                                                              |
//!      | +--------------------------------------------------------------+
//!      | an I/O thread wakes up          | nobody worked for 2 s: arm, check once more
//!      +------------ resting <-----------+
//! ```

pub(crate) mod host_cpus;
pub(crate) mod signals;
pub(crate) mod waker;

pub(crate) use signals::Signals;
pub(crate) use waker::Waker;

use crate::error::{Error, Result};
use crate::sys::os;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_core::monitor::decision::Verdict;
use tidegate_core::monitor::{
    Action, Decision, Findings, Kind, Limits, Policy, Snapshot, ThreadNumber, Why,
};
use tidegate_core::units::{Span, Time};

/// The monitor rests after this time without load. Origin: twice the second after which `auto` lets a thread go, so
/// that threads go before it rests.
const REST: Span = Span::from_secs(2);
/// After a notification it looks for load for so long. Commands of administrators, which are no load, notify as well.
const LOOK: Span = Span::from_millis(100);
/// A thread that a policy has locked becomes active again after this time, if it could not be parked. Origin: twice the time
/// that `auto` gives a thread to become empty.
const LOCKED_MOST: Span = Span::from_secs(10);
/// Events that nobody has fetched; beyond, the oldest are dropped and counted.
const EVENTS: usize = 1024;

/// How the monitor decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy.
    pub policy: Kind,
    /// How many threads may be active.
    pub limits: Limits,
}

impl Settings {
    /// Nothing changes by itself.
    pub const NONE: Settings = Settings {
        policy: Kind::None,
        limits: Limits { min: 1, max: 1 },
    };
}

/// A decision that was carried out, or could not be.
#[derive(Clone, Debug)]
pub struct Event {
    /// What was decided and why.
    pub decision: Decision,
    /// Why it could not be carried out.
    pub failed: Option<String>,
    /// Decisions like it since the last event of this kind, which were no events.
    pub repeats: u64,
}

/// What the monitor has done since the engine's start.
#[derive(Clone, Debug)]
pub struct Status {
    /// How it decides.
    pub settings: Settings,
    /// Whether it sleeps until an I/O thread works.
    pub resting: bool,
    /// Snapshots taken, and those of them with disks.
    pub ticks: u64,
    /// See `ticks`.
    pub detailed_ticks: u64,
    /// CPU time of its thread.
    pub cpu: Span,
    /// Disks moved.
    pub moves: u64,
    /// Threads activated.
    pub activated: u64,
    /// Threads parked.
    pub parked: u64,
    /// Trials that ended well.
    pub kept: u64,
    /// Trials that were undone.
    pub undone: u64,
    /// Trials without a verdict.
    pub void: u64,
    /// Decisions that could not be carried out.
    pub failed: u64,
    /// How often a congested thread was found that could not be relieved.
    pub findings: u64,
    /// Events that nobody fetched in time.
    pub dropped: u64,
    /// Whether idle threads may poll.
    pub may_spin: bool,
    /// The last decision that changed the number of active threads.
    pub last_change: Option<Decision>,
}

impl Status {
    /// Of a monitor that has done nothing yet.
    pub fn new(settings: Settings) -> Status {
        Status {
            settings,
            resting: false,
            ticks: 0,
            detailed_ticks: 0,
            cpu: Span::ZERO,
            moves: 0,
            activated: 0,
            parked: 0,
            kept: 0,
            undone: 0,
            void: 0,
            failed: 0,
            findings: 0,
            dropped: 0,
            may_spin: true,
            last_change: None,
        }
    }
}

/// What the monitor watches and acts on: the engine, or a test's model of it.
pub(crate) trait Subject: Send {
    /// Fills a snapshot, whose lists are reused. Counts are since the last one.
    fn snapshot(&mut self, with_disks: bool, snapshot: &mut Snapshot);

    /// Whether an I/O thread has worked since the last snapshot.
    fn has_worked(&mut self) -> bool;

    /// Carries out an action.
    fn act(&mut self, action: Action) -> Result<()>;

    /// Lets a thread that a policy empties take disks again. No other state changes.
    fn take_back(&mut self, thread: ThreadNumber) -> Result<()>;
}

/// The handle of the monitor's thread. It ends with the handle.
pub struct Monitor {
    shared: Arc<Shared>,
    signals: Arc<Signals>,
    join: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when settings were taken, and when the thread ends.
    taken: Condvar,
}

struct State {
    status: Status,
    /// How often settings were set, and how many of these the thread has taken. If it lacks some, a policy is to be built anew.
    set: u64,
    taken: u64,
    stopping: bool,
    /// The thread has ended.
    ended: bool,
    events: VecDeque<Event>,
    findings: Findings,
    /// The last trial that ended: its actions may be carried out over several ticks.
    last_verdict: Option<Verdict>,
}

impl Shared {
    fn new(settings: Settings) -> Shared {
        let state = State {
            status: Status::new(settings),
            set: 0,
            taken: 0,
            stopping: false,
            ended: false,
            events: VecDeque::new(),
            findings: Findings::default(),
            last_verdict: None,
        };
        Shared {
            state: Mutex::new(state),
            taken: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The data behind this lock is valid even if a holder panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Monitor {
    /// Starts the thread. I/O threads notify the waker of `signals`.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub(crate) fn start(
        settings: Settings,
        signals: Arc<Signals>,
        subject: impl Subject + 'static,
    ) -> Result<Monitor> {
        let shared = Arc::new(Shared::new(settings));
        let thread = MonitorThread {
            shared: Arc::clone(&shared),
            signals: Arc::clone(&signals),
            subject,
            policy: settings.policy.build(settings.limits),
            snapshot: Snapshot::default(),
            decisions: Vec::new(),
            locked: Vec::new(),
            rest_at: os::now() + REST,
        };
        let join = std::thread::Builder::new()
            .name("monitor".into())
            .spawn(move || {
                let _ended = Ended(Arc::clone(&thread.shared));
                thread.run();
            })
            .map_err(|error| Error::io("cannot start the monitor's thread", error))?;
        signals.waker.set_sleeper(join.thread().clone());
        Ok(Monitor {
            shared,
            signals,
            join: Some(join),
        })
    }

    /// Replaces policy and limits. The new policy knows nothing of what the old one saw. It waits until the monitor has ended what
    /// it does at this moment: afterwards nothing is done under the old settings. That takes a move at most, so some turns of
    /// two I/O threads.
    pub fn set(&self, settings: Settings) {
        let number = {
            let mut state = self.shared.state();
            state.status.settings = settings;
            state.set += 1;
            state.set
        };
        self.signals.waker.wake();
        let is_open = |state: &mut State| state.taken < number && !state.ended;
        let waited = self.shared.taken.wait_while(self.shared.state(), is_open);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// What it has done.
    pub fn status(&self) -> Status {
        self.shared.state().status.clone()
    }

    /// The events since the last call, oldest first.
    pub fn take_events(&self) -> Vec<Event> {
        self.shared.state().events.drain(..).collect()
    }

    /// Ends the thread. What it does at this moment is finished first.
    pub fn stop(&mut self) {
        self.shared.state().stopping = true;
        self.signals.waker.wake();
        if let Some(join) = self.join.take() {
            let _ = join.join();
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Says that the thread has ended, also if it panicked: nobody waits for it then.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.state().ended = true;
        self.0.taken.notify_all();
    }
}

struct MonitorThread<S> {
    shared: Arc<Shared>,
    signals: Arc<Signals>,
    subject: S,
    policy: Box<dyn Policy + Send>,
    snapshot: Snapshot,
    decisions: Vec<Decision>,
    /// Threads that it has locked and neither parked nor unlocked, and since when.
    locked: Vec<(ThreadNumber, Time)>,
    /// When it rests, unless there is load before.
    rest_at: Time,
}

impl<S: Subject> MonitorThread<S> {
    fn run(mut self) {
        loop {
            let wish = self.policy.next();
            match wish {
                Some(_) if os::now() >= self.rest_at => self.rest(),
                Some(wish) => {
                    let due = os::now() + wish.after;
                    self.signals.waker.sleep_until(due, || self.is_called());
                }
                // Only another policy can want anything.
                None => self
                    .signals
                    .waker
                    .sleep_until(Time::NEVER, || self.is_called()),
            }
            if self.shared.state().stopping {
                self.release_locks(Span::ZERO);
                return;
            }
            self.take_settings();
            if let Some(wish) = self.policy.next() {
                self.tick(wish.disks);
            }
        }
    }

    /// Whether the handle wants something.
    fn is_called(&self) -> bool {
        self.shared.state().is_called()
    }

    /// Sleeps until an I/O thread works, or the handle wants something.
    fn rest(&mut self) {
        self.release_locks(Span::ZERO);
        self.signals.waker.arm();
        // A thread that works since before does not notify.
        if self.subject.has_worked() {
            self.signals.waker.disarm();
            self.rest_at = os::now() + REST;
            return;
        }
        self.shared.state().status.resting = true;
        self.signals.waker.sleep_until(Time::NEVER, || {
            !self.signals.waker.is_armed() || self.is_called()
        });
        self.signals.waker.disarm();
        self.shared.state().status.resting = false;
        self.rest_at = os::now() + LOOK;
    }

    /// Builds the policy anew if the settings have changed. It knows nothing of what the last one has begun: threads may poll
    /// again, and those that the last one has locked are active.
    fn take_settings(&mut self) {
        let mut state = self.shared.state();
        let number = state.set;
        if state.taken == number {
            return;
        }
        let settings = state.status.settings;
        self.policy = settings.policy.build(settings.limits);
        self.signals.let_spin(true);
        state.status.may_spin = true;
        drop(state);
        self.release_locks(Span::ZERO);
        self.rest_at = os::now() + REST;
        self.shared.state().taken = number;
        self.shared.taken.notify_all();
    }

    /// Unlocks the threads that were locked for at least so long, and that could not be parked.
    fn release_locks(&mut self, least: Span) {
        let now = os::now();
        let (subject, locked) = (&mut self.subject, &mut self.locked);
        locked.retain(|&(thread, since)| {
            let stays = now.since(since) < least;
            if !stays && let Err(error) = subject.take_back(thread) {
                // An administrator was faster.
                tracing::debug!(thread, %error, "an I/O thread is not unlocked");
            }
            stays
        });
    }

    fn tick(&mut self, with_disks: bool) {
        self.release_locks(LOCKED_MOST);
        self.subject.snapshot(with_disks, &mut self.snapshot);
        self.policy.decide(&self.snapshot, &mut self.decisions);
        if !self.snapshot.is_idle() || !self.decisions.is_empty() {
            self.rest_at = self.snapshot.now + REST;
        }
        let mut events = Vec::with_capacity(self.decisions.len());
        for decision in self.decisions.drain(..) {
            let done = match decision.action {
                Action::Stay => Ok(()),
                // The settings have changed meanwhile: what was decided under the old ones is void.
                _ if self.shared.state().is_called() => break,
                action => self.subject.act(action),
            };
            if done.is_ok() {
                note_lock(&mut self.locked, decision.action);
            }
            let failed = done.err().map(|error| error.to_string());
            let repeats = 0;
            events.push(Event {
                decision,
                failed,
                repeats,
            });
        }
        self.decisions.clear();
        let mut state = self.shared.state();
        state.status.ticks += 1;
        state.status.detailed_ticks += u64::from(with_disks);
        state.status.cpu = os::thread_cpu().since(Time::ZERO);
        for event in events {
            state.note(event);
        }
    }
}

/// Remembers which threads are locked by decisions.
fn note_lock(locked: &mut Vec<(ThreadNumber, Time)>, action: Action) {
    match action {
        Action::Lock { thread } => {
            locked.retain(|(other, _)| *other != thread);
            locked.push((thread, os::now()));
        }
        Action::Park { thread } | Action::Activate { thread } => {
            locked.retain(|(other, _)| *other != thread);
        }
        Action::Move { .. } | Action::Spin { .. } | Action::Stay => {}
    }
}

impl State {
    fn is_called(&self) -> bool {
        self.stopping || self.taken != self.set
    }

    fn note(&mut self, event: Event) {
        let status = &mut self.status;
        let decision = event.decision;
        let done = u64::from(event.failed.is_none());
        status.failed += 1 - done;
        match decision.action {
            Action::Move { .. } => status.moves += done,
            Action::Activate { .. } => status.activated += done,
            Action::Park { .. } => status.parked += done,
            Action::Spin { on } if done == 1 => status.may_spin = on,
            Action::Spin { .. } | Action::Lock { .. } | Action::Stay => {}
        }
        let is_number = matches!(
            decision.action,
            Action::Activate { .. } | Action::Park { .. }
        );
        if is_number && done == 1 {
            status.last_change = Some(decision);
        }
        status.findings += u64::from(decision.why.finding().is_some());
        let ended = match decision.why {
            Why::Better(verdict) => Some((&mut status.kept, verdict)),
            Why::Void(verdict, _) => Some((&mut status.void, verdict)),
            Why::Worse(verdict, _) => Some((&mut status.undone, verdict)),
            _ => None,
        };
        // What ends a trial may take several actions.
        if let Some((count, verdict)) = ended
            && self.last_verdict != Some(verdict)
        {
            *count += 1;
            self.last_verdict = Some(verdict);
        }
        let has_failed = event.failed.is_some();
        let Some(repeats) = self.findings.admit(&decision, has_failed) else {
            return;
        };
        let event = Event { repeats, ..event };
        if self.events.len() == EVENTS {
            self.events.pop_front();
            self.status.dropped += 1;
        }
        self.events.push_back(event);
    }
}

/// The time until `due`; `None`: for ever.
fn until(due: Time) -> Option<Duration> {
    let left = due.since(os::now()).as_nanos();
    (due != Time::NEVER).then(|| Duration::from_nanos(left))
}

#[cfg(test)]
mod tests;
