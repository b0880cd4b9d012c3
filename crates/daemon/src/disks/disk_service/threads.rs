//! I/O threads as their users see and command them: which there are, what each does, and which disks it serves.
//!
//! REST and the control tree call it. The engine decides what can be done; this file refuses what names no thread, and
//! says what to do when the engine refuses.
//!
//! # Always true
//! - each change that an administrator makes is an event; a command that changes nothing is none

use std::collections::BTreeMap;

use tidegate_api::events::{Happening, IoThreadAction, IoThreadActor};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::thread::{DiskThread, Thread, ThreadState};
use tidegate_core::request::DiskId;
use tidegate_core::units::Span;
use tidegate_engine::counters::ThreadActivity;

use super::DiskService;
use crate::os_error::Outcome;
use crate::text::float;

mod remedies;

impl DiskService {
    /// All I/O threads that may run, by number.
    pub(crate) fn threads(&self) -> Outcome<Vec<Thread>> {
        let host = self.host();
        let states = host.thread_states()?;
        let default = host.default_thread()?;
        let mut disks: BTreeMap<u32, Vec<Name>> = BTreeMap::new();
        for disk in self.live().all() {
            let of_thread = disks.entry(disk.thread()).or_default();
            of_thread.push(disk.name().clone());
        }
        let activities = host.statistics()?.threads();
        let told = (0..).zip(states).zip(activities);
        let thread = |((thread, state), did): ((u32, ThreadState), ThreadActivity)| Thread {
            thread,
            state,
            is_default: default == Some(thread),
            cpu: host.thread_cpu(thread),
            disks: disks.remove(&thread).unwrap_or_default(),
            age_ns_total: did.age.as_nanos(),
            busy_ns_total: did.busy.as_nanos(),
            spin_ns_total: did.spinning.as_nanos(),
            sleep_ns_total: did.sleeping.as_nanos(),
            cpu_ns_total: did.cpu.as_nanos(),
            run_delay_ns_total: did.run_delay.as_nanos(),
            requests_total: did.requests,
            turns_total: did.turns,
            wakeups_total: did.wakes.sum(),
            stalls_total: did.stalls,
            longest_turn_us: micros(did.longest_turn),
            queue_delay_p50_us: micros(did.delays.quantile(5_000)),
            queue_delay_p99_us: micros(did.delays.quantile(9_900)),
            moved_in_total: did.moved_in,
            moved_out_total: did.moved_out,
        };
        Ok(told.map(thread).collect())
    }

    /// One of them.
    pub(crate) fn thread(&self, thread: u32) -> Outcome<Thread> {
        let found = self.threads()?.into_iter().find(|it| it.thread == thread);
        found.ok_or_else(|| no_thread(thread))
    }

    /// Takes a parked I/O thread into use.
    pub(crate) fn create_thread(&self) -> Outcome<u32> {
        let created = self.host().create_thread();
        let thread = created.map_err(|problem| self.refused(problem, remedies::create))?;
        self.note(IoThreadAction::Activate, None, thread, "");
        Ok(thread)
    }

    /// Parks an I/O thread that is locked and has no disks. It ends when the I/O that it started has ended.
    pub(crate) fn remove_thread(&self, thread: u32) -> Outcome<()> {
        self.must_be_a_thread(thread)?;
        self.host().remove_thread(thread).map_err(|problem| {
            let disks = self.live().all().into_iter();
            let served = disks.filter(|disk| disk.thread() == thread);
            let served: Vec<Name> = served.map(|disk| disk.name().clone()).collect();
            self.refused(problem, |states| remedies::remove(states, thread, &served))
        })?;
        self.note(IoThreadAction::Park, None, thread, "");
        Ok(())
    }

    /// Locks an I/O thread. One that the policy empties stays as it is from then on.
    pub(crate) fn lock_thread(&self, thread: u32) -> Outcome<()> {
        if self.must_be_a_thread(thread)? == ThreadState::Locked {
            return Ok(());
        }
        let locked = self.host().lock_thread(thread);
        locked.map_err(|problem| self.refused(problem, |states| remedies::lock(states, thread)))?;
        self.note(IoThreadAction::Lock, None, thread, "");
        Ok(())
    }

    /// Unlocks an I/O thread.
    pub(crate) fn unlock_thread(&self, thread: u32) -> Outcome<()> {
        if self.must_be_a_thread(thread)? == ThreadState::Active {
            return Ok(());
        }
        let unlocked = self.host().unlock_thread(thread);
        unlocked
            .map_err(|problem| self.refused(problem, |states| remedies::unlock(states, thread)))?;
        self.note(IoThreadAction::Unlock, None, thread, "");
        Ok(())
    }

    /// Makes an event of what an administrator has done. `values`: what came of it.
    fn note(&self, action: IoThreadAction, disk: Option<&Name>, thread: u32, values: &str) {
        self.notices().add_of_threads(Happening::IoThreads {
            action,
            by: IoThreadActor::Administrator,
            disk: disk.cloned(),
            thread: Some(thread),
            why: format!("an administrator ordered it{values}"),
            failed: None,
            repeats: 0,
        });
    }

    /// Chooses the I/O thread for new disks, or lets the number of disks decide.
    pub(crate) fn set_default_thread(&self, thread: Option<u32>) -> Outcome<()> {
        if let Some(thread) = thread {
            self.must_be_a_thread(thread)?;
        }
        self.host().set_default_thread(thread).map_err(|problem| {
            self.refused(problem, |states| {
                remedies::choose(states, thread.unwrap_or(u32::MAX))
            })
        })
    }

    /// Moves an attached disk to another I/O thread. Guests' I/O goes on.
    pub(crate) fn move_to_thread(&self, name: &Name, thread: u32) -> Outcome<DiskThread> {
        let disk = self.must_be_attached(name)?;
        self.must_be_a_thread(thread)?;
        let moved = disk
            .move_to_thread(thread)
            .map_err(|problem| self.refused(problem, |states| remedies::choose(states, thread)))?;
        let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
        let moved = DiskThread {
            disk: name.clone(),
            from: number(moved.from),
            thread: number(moved.to),
            pause_us: micros(moved.pause),
            in_flight: moved.in_flight as u64,
        };
        if moved.from != moved.thread {
            let (from, pause) = (moved.from, moved.pause_us);
            let values = format!(" (from={from} pause_us={pause:.1})");
            self.note(IoThreadAction::Move, Some(name), moved.thread, &values);
        }
        Ok(moved)
    }

    /// The refusal of the engine, with what to do as the threads are now.
    fn refused(&self, problem: Problem, remedy: impl FnOnce(&[ThreadState]) -> String) -> Problem {
        match (problem.code, self.host().thread_states()) {
            (ProblemCode::Busy | ProblemCode::Invalid, Ok(states)) => {
                problem.remedy(remedy(&states))
            }
            _ => problem,
        }
    }

    /// The vCPUs that attached disks declare for the virtual machines that use them.
    pub(crate) fn declared_vcpus(&self) -> BTreeMap<DiskId, u32> {
        let disks = self.live().all().into_iter();
        let declared = disks.filter_map(|disk| Some((disk.key(), disk.descriptor()?.vcpus?)));
        declared.collect()
    }

    fn must_be_a_thread(&self, thread: u32) -> Outcome<ThreadState> {
        let states = self.host().thread_states()?;
        let nth = usize::try_from(thread).unwrap_or(usize::MAX);
        states.get(nth).copied().ok_or_else(|| no_thread(thread))
    }
}

fn micros(span: Span) -> f64 {
    float(span.as_nanos()) / 1e3
}

fn no_thread(thread: u32) -> Problem {
    Problem::new(
        ProblemCode::NotFound,
        format!("there is no I/O thread {thread}"),
    )
    .remedy("name one of `tidegate thread list`")
}
