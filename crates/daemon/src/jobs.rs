//! Long work, and how far it is: import and export run here while REST answers at once.
//!
//! # Always true
//! - A job that is over never changes again.
//! - The latest [`KEPT`] jobs that are over are remembered; one that runs is never forgotten.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tidegate_api::job::{Job, JobState};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use crate::trouble::Outcome;

/// How many jobs that are over can still be asked about: more than anybody looks back.
const KEPT: usize = 100;

/// How far a job is: written by who does it, read by who asks, stopped by either.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    done: AtomicU64,
    total: AtomicU64,
    copied: AtomicU64,
    cancelled: AtomicBool,
}

impl Progress {
    /// There are so many bytes to deal with.
    pub(crate) fn expect(&self, total: u64) {
        self.total.store(total, Relaxed);
    }

    /// So many more bytes are dealt with, by copying them.
    pub(crate) fn copied(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
        self.copied.fetch_add(bytes, Relaxed);
    }

    /// So many more bytes are dealt with, for nothing: they were a hole.
    pub(crate) fn skipped(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
    }

    /// Whether to go on.
    pub(crate) fn check(&self) -> Outcome<()> {
        match self.cancelled.load(Relaxed) {
            true => Err(Problem::new(ProblemCode::Stopping, "it was cancelled")),
            false => Ok(()),
        }
    }
}

/// All jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    jobs: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    what: String,
    disk: Name,
    progress: Arc<Progress>,
    began: Instant,
    end: Option<(JobState, f64, Option<Problem>)>,
}

impl Jobs {
    /// Starts blocking work as a job, and describes it as it begins.
    pub(crate) fn start<W>(self: &Arc<Self>, what: String, disk: Name, work: W) -> Job
    where
        W: FnOnce(&Progress) -> Outcome<()> + Send + 'static,
    {
        let progress = Arc::new(Progress::default());
        let (id, job) = self.enter(what, disk, Arc::clone(&progress));
        let jobs = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            let outcome =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&progress)));
            jobs.ended(id, outcome.unwrap_or_else(|_| Err(failed_within())));
        });
        job
    }

    /// One job.
    pub(crate) fn job(&self, id: u64) -> Outcome<Job> {
        self.table().describe(id).ok_or_else(|| unknown(id))
    }

    /// All that are remembered.
    pub(crate) fn list(&self) -> Vec<Job> {
        let table = self.table();
        table
            .jobs
            .keys()
            .filter_map(|id| table.describe(*id))
            .collect()
    }

    /// Asks a job to stop. It ends soon after, when it next looks.
    pub(crate) fn cancel(&self, id: u64) -> Outcome<Job> {
        let table = self.table();
        let entry = table.jobs.get(&id).ok_or_else(|| unknown(id))?;
        entry.progress.cancelled.store(true, Relaxed);
        table.describe(id).ok_or_else(|| unknown(id))
    }

    /// Asks all to stop.
    pub(crate) fn cancel_all(&self) {
        let table = self.table();
        table
            .jobs
            .values()
            .for_each(|entry| entry.progress.cancelled.store(true, Relaxed));
    }

    fn enter(&self, what: String, disk: Name, progress: Arc<Progress>) -> (u64, Job) {
        let mut table = self.table();
        table.last += 1;
        let id = table.last;
        table.jobs.insert(
            id,
            Entry {
                what,
                disk,
                progress,
                began: Instant::now(),
                end: None,
            },
        );
        table.forget_old();
        let job = table.describe(id).expect("it was entered just now");
        (id, job)
    }

    fn ended(&self, id: u64, outcome: Outcome<()>) {
        let mut table = self.table();
        let Some(entry) = table.jobs.get_mut(&id) else {
            return;
        };
        let cancelled = entry.progress.cancelled.load(Relaxed);
        let (state, problem) = match outcome {
            Ok(()) => (JobState::Done, None),
            Err(_) if cancelled => (JobState::Cancelled, None),
            Err(problem) => (JobState::Failed, Some(problem)),
        };
        match &problem {
            None => tracing::info!(job = id, disk = %entry.disk, ?state, "{}", entry.what),
            Some(problem) => {
                tracing::error!(job = id, disk = %entry.disk, %problem, "{}", entry.what)
            }
        }
        entry.end = Some((state, entry.began.elapsed().as_secs_f64(), problem));
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // The table is whole between any two of its lines, so a panic elsewhere does not spoil it.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn describe(&self, id: u64) -> Option<Job> {
        let entry = self.jobs.get(&id)?;
        let (state, elapsed_s, problem) = match &entry.end {
            Some((state, elapsed, problem)) => (*state, *elapsed, problem.clone()),
            None => (JobState::Running, entry.began.elapsed().as_secs_f64(), None),
        };
        Some(Job {
            id,
            what: entry.what.clone(),
            disk: entry.disk.clone(),
            state,
            done_bytes: entry.progress.done.load(Relaxed),
            total_bytes: entry.progress.total.load(Relaxed),
            copied_bytes: entry.progress.copied.load(Relaxed),
            elapsed_s,
            problem,
        })
    }

    fn forget_old(&mut self) {
        let over: Vec<u64> = self
            .jobs
            .iter()
            .filter(|(_, entry)| entry.end.is_some())
            .map(|(id, _)| *id)
            .collect();
        for id in over.iter().take(over.len().saturating_sub(KEPT)) {
            self.jobs.remove(id);
        }
    }
}

fn unknown(id: u64) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("there is no job {id}"))
        .because("it never was, or it is over for long")
}

fn failed_within() -> Problem {
    Problem::new(ProblemCode::Internal, "the daemon failed at this")
        .remedy("look into its log, and report it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn name() -> Name {
        "a".parse().unwrap()
    }

    #[tokio::test]
    async fn a_job_tells_how_far_it_is_and_how_it_ended() {
        let jobs = Arc::new(Jobs::default());
        let (go, wait) = channel::<()>();
        let (halfway, at_half) = channel::<()>();
        let (over, ended) = channel::<()>();
        let job = jobs.start("copy".to_owned(), name(), move |progress| {
            let _at_the_end = over;
            progress.expect(10);
            progress.copied(3);
            progress.skipped(2);
            halfway.send(()).unwrap();
            wait.recv().unwrap();
            Err(Problem::new(ProblemCode::Full, "cannot copy"))
        });
        assert_eq!(job.state, JobState::Running);
        at_half.recv().unwrap();
        let job = jobs.job(job.id).unwrap();
        assert_eq!(
            (job.done_bytes, job.total_bytes, job.copied_bytes),
            (5, 10, 3)
        );
        go.send(()).unwrap();
        let _ = ended.recv();
        while !jobs.job(job.id).unwrap().state.is_over() {
            tokio::task::yield_now().await;
        }
        let job = jobs.job(job.id).unwrap();
        assert_eq!(
            (job.state, job.problem.unwrap().code),
            (JobState::Failed, ProblemCode::Full)
        );
    }

    #[test]
    fn jobs_that_run_are_never_forgotten_and_old_ones_are() {
        let jobs = Jobs::default();
        let (running, _) = jobs.enter("runs".to_owned(), name(), Arc::default());
        for _ in 0..KEPT + 5 {
            let (id, _) = jobs.enter("quick".to_owned(), name(), Arc::default());
            jobs.ended(id, Ok(()));
        }
        let (cancelled, _) = jobs.enter("last".to_owned(), name(), Arc::default());
        jobs.cancel(cancelled).unwrap();
        jobs.ended(
            cancelled,
            Err(Problem::new(ProblemCode::Stopping, "it was cancelled")),
        );
        assert_eq!(jobs.job(cancelled).unwrap().state, JobState::Cancelled);
        assert_eq!(jobs.job(running).unwrap().state, JobState::Running);
        assert_eq!(jobs.list().len(), KEPT + 2);
        assert!(jobs.job(running + 1).is_err());
    }
}
