//! Jobs: long operations and their progress. Import and export run as jobs, so that REST responds at once.
//!
//! # Always true
//! - A finished job never changes again.
//! - The latest [`KEPT`] finished jobs are stored; a running job is never dropped.
//! - A running job is listed in the state file. A job that a daemon finds there at its start was interrupted when the
//!   previous daemon ended.
//! - An interruption is logged once. The job's draft stays listed until it is removed.
//! - A job whose work goes on without it, such as a rebuild, is not cancelled: the error says how to end the work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tidegate_api::job::{Job, JobState};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::toml_error;

use crate::disks::copy::Progress;
use crate::disks::export;
use crate::files;
use crate::os_error::{self, Outcome};

/// How many finished jobs can still be queried: more than anyone looks at.
const KEPT: usize = 100;

/// All jobs.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    last: u64,
    jobs: BTreeMap<u64, Entry>,
    /// The file that lists the running jobs; none if no state is stored.
    file: Option<PathBuf>,
}

/// The largest such file that is read: far more than [`KEPT`] jobs take.
const MOST_NOTED: usize = 1 << 20;

/// Stored data about running and interrupted jobs.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Noted {
    version: u32,
    /// The highest job number so far.
    last: u64,
    #[serde(default)]
    jobs: Vec<NotedJob>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotedJob {
    id: u64,
    what: String,
    disk: Name,
    /// The file that it writes until that is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    draft: Option<PathBuf>,
    /// What to do if it is interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
    /// Whether its interruption was logged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    logged: bool,
}

#[derive(Debug)]
struct Entry {
    what: String,
    disk: Name,
    draft: Option<PathBuf>,
    /// What to do if it is interrupted, if not to start it again.
    remedy: Option<String>,
    /// How to end its work, if that goes on without it.
    instead: Option<String>,
    progress: Arc<Progress>,
    began: Instant,
    end: Option<End>,
}

/// A job's final state, its duration in seconds, and its problem.
type End = (JobState, f64, Option<Problem>);

impl Jobs {
    /// The jobs of a root, with those that the previous daemon stored in this file. Unreadable parts are skipped and
    /// logged.
    pub(crate) fn open(file: PathBuf) -> Jobs {
        let noted = match read_noted(&file) {
            Ok(noted) => noted,
            Err(problem) => {
                tracing::warn!(%problem, "jobs of earlier runs are not listed");
                Noted::default()
            }
        };
        let mut table = Table {
            last: noted.last,
            file: Some(file),
            ..Table::default()
        };
        let mut news = false;
        for noted in noted.jobs {
            let (id, problem) = (noted.id, interrupted(&noted.what, noted.remedy.as_deref()));
            if !noted.logged {
                news = true;
                tracing::warn!(job = id, disk = %noted.disk, "{problem}");
            }
            let mut entry = Entry::new(noted.what, noted.disk, noted.draft, Arc::default());
            entry.remedy = noted.remedy;
            entry.end = Some((JobState::Interrupted, 0.0, Some(problem)));
            table.last = table.last.max(id);
            table.jobs.insert(id, entry);
        }
        if news {
            table.note();
        }
        Jobs {
            table: Mutex::new(table),
        }
    }

    /// Removes the drafts of interrupted jobs. It blocks as long as their file systems do.
    pub(crate) fn remove_leftovers(&self) {
        let left = |(id, entry): (&u64, &Entry)| match &entry.end {
            Some((JobState::Interrupted, ..)) => Some((*id, entry.draft.clone()?)),
            _ => None,
        };
        let left: Vec<_> = self.table().jobs.iter().filter_map(left).collect();
        for (id, draft) in left {
            match export::remove_leftover(&draft) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    tracing::warn!(job = id, %error, path = %draft.display(), "the file of an interrupted export \
                         was not removed");
                    continue;
                }
                _ => {}
            }
            let mut table = self.table();
            if let Some(entry) = table.jobs.get_mut(&id) {
                entry.draft = None;
                table.note();
            }
        }
    }

    /// Starts blocking work as a job, and returns the job's initial state.
    pub(crate) fn start<W>(self: &Arc<Self>, what: String, disk: Name, work: W) -> Job
    where
        W: FnOnce(&Progress) -> Outcome<()> + Send + 'static,
    {
        self.start_writing(what, disk, None, work)
    }

    /// Like `start`, for work that writes this file. The file is useless if the work is interrupted.
    pub(crate) fn start_writing<W>(
        self: &Arc<Self>,
        what: String,
        disk: Name,
        draft: Option<PathBuf>,
        work: W,
    ) -> Job
    where
        W: FnOnce(&Progress) -> Outcome<()> + Send + 'static,
    {
        self.run(Entry::new(what, disk, draft, Arc::default()), work)
    }

    /// Like `start`, for work that is not to be started again if it is interrupted: `remedy` says what to do then.
    pub(crate) fn start_once<W>(
        self: &Arc<Self>,
        what: String,
        disk: Name,
        remedy: String,
        work: W,
    ) -> Job
    where
        W: FnOnce(&Progress) -> Outcome<()> + Send + 'static,
    {
        let entry = Entry {
            remedy: Some(remedy),
            ..Entry::new(what, disk, None, Arc::default())
        };
        self.run(entry, work)
    }

    /// Like `start_once`, for following work that goes on without the job. `instead` says how to end that.
    pub(crate) fn start_lasting<W>(
        self: &Arc<Self>,
        what: String,
        disk: Name,
        remedy: String,
        instead: String,
        work: W,
    ) -> Job
    where
        W: FnOnce(&Progress) -> Outcome<()> + Send + 'static,
    {
        let entry = Entry {
            remedy: Some(remedy),
            instead: Some(instead),
            ..Entry::new(what, disk, None, Arc::default())
        };
        self.run(entry, work)
    }

    fn run<W>(self: &Arc<Self>, entry: Entry, work: W) -> Job
    where
        W: FnOnce(&Progress) -> Outcome<()> + Send + 'static,
    {
        let progress = Arc::clone(&entry.progress);
        let (id, job) = self.enter(entry);
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

    /// All stored jobs.
    pub(crate) fn list(&self) -> Vec<Job> {
        let table = self.table();
        table
            .jobs
            .keys()
            .filter_map(|id| table.describe(*id))
            .collect()
    }

    /// The job that works on a disk, if there is one.
    pub(crate) fn at_work_on(&self, disk: &Name) -> Option<u64> {
        let table = self.table();
        let mut jobs = table.jobs.iter();
        let is_at_work = |entry: &Entry| entry.end.is_none() && entry.instead.is_none();
        let found = jobs.find(|(_, entry)| is_at_work(entry) && entry.disk == *disk);
        found.map(|(id, _)| *id)
    }

    /// Requests that a job stops. It ends soon after, at its next check.
    pub(crate) fn cancel(&self, id: u64) -> Outcome<Job> {
        let table = self.table();
        let entry = table.jobs.get(&id).ok_or_else(|| unknown(id))?;
        match &entry.instead {
            Some(instead) if entry.end.is_none() => return Err(lasting(id, &entry.what, instead)),
            _ => entry.progress.cancel(),
        }
        table.describe(id).ok_or_else(|| unknown(id))
    }

    /// Requests that all jobs stop.
    pub(crate) fn cancel_all(&self) {
        let table = self.table();
        table
            .jobs
            .values()
            .for_each(|entry| entry.progress.cancel());
    }

    fn enter(&self, entry: Entry) -> (u64, Job) {
        let mut table = self.table();
        table.last += 1;
        let id = table.last;
        table.jobs.insert(id, entry);
        table.forget_old();
        table.note();
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
            Ok(()) => {
                entry.progress.is_complete();
                (JobState::Done, None)
            }
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
        table.note();
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Every change to the table is complete, so a panic elsewhere leaves no partial state.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn new(what: String, disk: Name, draft: Option<PathBuf>, progress: Arc<Progress>) -> Entry {
        Entry {
            what,
            disk,
            draft,
            remedy: None,
            instead: None,
            progress,
            began: Instant::now(),
            end: None,
        }
    }

    /// Whether to store it for the next daemon.
    fn is_noted(&self) -> bool {
        matches!(self.end, None | Some((JobState::Interrupted, ..)))
    }
}

impl Table {
    /// Stores the list of running jobs for the next daemon.
    fn note(&self) {
        let Some(file) = &self.file else {
            return;
        };
        let noted = self.jobs.iter().filter(|(_, entry)| entry.is_noted());
        let noted = Noted {
            version: 1,
            last: self.last,
            jobs: noted
                .map(|(id, entry)| NotedJob {
                    id: *id,
                    what: entry.what.clone(),
                    disk: entry.disk.clone(),
                    draft: entry.draft.clone(),
                    remedy: entry.remedy.clone(),
                    logged: entry.end.is_some(),
                })
                .collect(),
        };
        let text = toml::to_string(&noted).expect("numbers and strings are TOML");
        if let Err(error) = files::replace(file, text.as_bytes()) {
            let file = file.display();
            tracing::warn!(%error, %file, "cannot store which jobs run");
        }
    }

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
            cancellable: entry.instead.is_none() && !state.is_over(),
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

fn read_noted(file: &Path) -> Outcome<Noted> {
    let what = || format!("cannot read {}", file.display());
    let bytes = match files::read(file, MOST_NOTED) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Noted::default()),
        Err(error) => return Err(os_error::io(what(), &error)),
    };
    let remedy = "it is not needed: the next job writes it again";
    let text = std::str::from_utf8(&bytes)
        .map_err(|e| os_error::invalid(what()).because_of(&e).remedy(remedy))?;
    toml::from_str(text).map_err(|e| {
        let why = toml_error::message(&e);
        os_error::invalid(what()).because(why).remedy(remedy)
    })
}

fn interrupted(what: &str, remedy: Option<&str>) -> Problem {
    let again = "start it again; if it wrote to a block device, that is incomplete";
    Problem::new(ProblemCode::Stopping, format!("cannot {what}"))
        .because("the daemon ended while it ran")
        .remedy(remedy.unwrap_or(again))
}

fn lasting(id: u64, what: &str, instead: &str) -> Problem {
    Problem::new(
        ProblemCode::Unsupported,
        format!("job {id} cannot be cancelled: {what}"),
    )
    .because("it goes on until the new member has all data, or is removed")
    .remedy(instead)
}

fn unknown(id: u64) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("there is no job {id}"))
        .because("it never existed, or ended long ago")
        .remedy("list them: tidegate job list")
}

fn failed_within() -> Problem {
    Problem::new(ProblemCode::Internal, "the daemon failed while it did this")
        .remedy("see its log, and report this as a bug")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::mpsc::channel;

    fn name() -> Name {
        "a".parse().unwrap()
    }

    fn entry(what: &str) -> Entry {
        Entry::new(what.to_owned(), name(), None, Arc::default())
    }

    #[test]
    fn what_an_interrupted_export_left_is_removed_and_its_interruption_is_logged_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jobs.toml");
        let path = folder.path().join("out.img");
        fs::write(&path, "precious").unwrap();
        let draft = export::draft(&path).unwrap();
        let first = Jobs::open(file.clone());
        let mut entry = entry("export disk a");
        entry.draft = Some(draft.clone());
        first.enter(entry);
        fs::write(&draft, "half").unwrap();
        // The daemon is killed here.
        let noted = || read_noted(&file).unwrap().jobs.remove(0);
        assert!(!noted().logged);
        let second = Jobs::open(file.clone());
        assert!(noted().logged, "the next one has nothing to log");
        assert_eq!(noted().draft.as_ref(), Some(&draft));
        second.remove_leftovers();
        assert!(!draft.exists());
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(noted().draft, None);
        // The job still counts as interrupted.
        let third = Jobs::open(file.clone());
        assert_eq!(third.list()[0].state, JobState::Interrupted);
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
        let (running, _) = jobs.enter(entry("runs"));
        for _ in 0..KEPT + 5 {
            let (id, _) = jobs.enter(entry("quick"));
            jobs.ended(id, Ok(()));
        }
        let (cancelled, _) = jobs.enter(entry("last"));
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

    #[test]
    fn work_that_goes_on_without_its_job_is_not_cancelled_but_ends_with_the_daemon() {
        let jobs = Jobs::default();
        let rebuild = Entry {
            instead: Some("remove the new member".to_owned()),
            ..entry("rebuild member 1")
        };
        let progress = Arc::clone(&rebuild.progress);
        let (id, job) = jobs.enter(rebuild);
        assert!(!job.cancellable);
        let refused = jobs.cancel(id).unwrap_err();
        assert_eq!(refused.code, ProblemCode::Unsupported);
        assert_eq!(refused.remedy.as_deref(), Some("remove the new member"));
        assert!(progress.check().is_ok());
        assert_eq!(jobs.at_work_on(&name()), None);
        jobs.cancel_all();
        assert!(progress.check().is_err());
    }

    #[test]
    fn a_job_that_is_done_has_done_everything_and_a_failed_one_what_it_has() {
        let jobs = Jobs::default();
        let done_bytes = |outcome| {
            let (id, _) = jobs.enter(entry("copy"));
            let progress = Arc::clone(&jobs.table().jobs[&id].progress);
            progress.expect(10);
            progress.copied(3);
            jobs.ended(id, outcome);
            jobs.job(id).unwrap().done_bytes
        };
        assert_eq!(done_bytes(Ok(())), 10);
        let failed = Problem::new(ProblemCode::Full, "cannot copy");
        assert_eq!(done_bytes(Err(failed)), 3);
    }

    #[test]
    fn what_ran_when_the_daemon_ended_is_listed_as_interrupted() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jobs.toml");
        let first = Jobs::open(file.clone());
        let (done, _) = first.enter(entry("export disk a"));
        let (cut, _) = first.enter(entry("import x as disk a"));
        let (moved, _) = first.enter(Entry {
            remedy: Some("see where disk a is".to_owned()),
            ..entry("move disk a")
        });
        first.ended(done, Ok(()));
        // The daemon dies here. The next job has a new number, and is also interrupted.
        let second = Jobs::open(file.clone());
        let job = second.job(cut).unwrap();
        assert_eq!(job.state, JobState::Interrupted);
        assert!(job.state.is_over());
        let why = job.problem.unwrap().to_string();
        assert!(
            why.contains("import x as disk a") && why.contains("the daemon ended"),
            "{why}"
        );
        let (next, _) = second.enter(entry("import y as disk a"));
        assert!(next > cut);
        let third = Jobs::open(file.clone());
        let states: Vec<_> = third.list().iter().map(|job| (job.id, job.state)).collect();
        assert_eq!(
            states,
            [cut, moved, next].map(|id| (id, JobState::Interrupted))
        );
        let remedy = |id| third.job(id).unwrap().problem.unwrap().remedy.unwrap();
        assert_eq!(remedy(moved), "see where disk a is");
        assert!(remedy(next).contains("start it again"));
        // An unreadable file does not prevent the start.
        std::fs::write(&file, "nonsense").unwrap();
        assert!(Jobs::open(file).list().is_empty());
    }
}
