//! `tidegate job`, and the progress of `disk import` and `disk export`.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate_api::job::{Job as Answer, JobList, JobState};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;

use crate::client::Client;
use crate::failure::{Failure, sentences};
use crate::output::{Colour, Console, Detail, Shown, Talk};
use crate::session::Session;
use crate::{figures, table};

/// How often a job is asked after: often enough for a bar that moves.
const PAUSE: Duration = Duration::from_millis(100);

/// How often a line is printed where there is no bar: a log is to be read, not filled.
const LINES: Duration = Duration::from_secs(5);

/// Watch and cancel jobs: imports, exports, moves, rebuilds, comparisons
#[derive(Debug, Subcommand)]
pub(crate) enum Job {
    List(List),
    Show(Show),
    Watch(Watch),
    Cancel(Cancel),
}

impl Job {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let console = &session.console;
        let client = session.client()?;
        match self {
            Job::List(List {}) => console.show(&client.look(routes::JOBS, &[])?),
            Job::Show(Show { id }) => console.show(&client.look(routes::JOB, &[&id.to_string()])?),
            Job::Watch(Watch { id }) => {
                let job = client.look(routes::JOB, &[&id.to_string()])?;
                let job = follow(&client, console, job)?;
                console.done(&job, &format!("job {id}: {} is done", job.what))
            }
            Job::Cancel(Cancel { id }) => {
                let job = client.look(routes::JOB_CANCEL, &[&id.to_string()])?;
                let now = match job.state {
                    JobState::Running => "being cancelled",
                    other => state(other),
                };
                console.done(&job, &format!("job {id}: {} is {now}", job.what))
            }
        }
    }
}

/// List the daemon's jobs, including those that have ended
#[derive(Debug, Args)]
#[command(visible_alias = "ls", after_help = "Example:\n  tidegate job list")]
pub(crate) struct List {}

/// Show one job
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate job show 3 -o json")]
pub(crate) struct Show {
    /// Its number
    id: u64,
}

/// Watch a job until it ends
///
/// Exit status 1 if it failed or was cancelled.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate job watch 3")]
pub(crate) struct Watch {
    /// Its number
    id: u64,
}

/// Stop a job and remove what it has written
///
/// A rebuild cannot be cancelled: the old member's data is deleted when it begins. The error names the command that removes
/// the new member.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate job cancel 3")]
pub(crate) struct Cancel {
    /// Its number
    id: u64,
}

/// Follows a job until it is over; one that failed or was cancelled is a failure.
pub(crate) fn follow(
    client: &Client,
    console: &Console,
    mut job: Answer,
) -> Result<Answer, Failure> {
    let mut progress = Progress::new(console, &job);
    let id = job.id.to_string();
    while !job.state.is_over() {
        progress.show(console, &job);
        std::thread::sleep(PAUSE);
        job = client.look(routes::JOB, &[&id])?;
    }
    progress.end();
    outcome(job)
}

/// Follows a job until it is over and says `done`, or only shows it.
pub(crate) fn follow_unless(
    session: &Session,
    client: &Client,
    job: Answer,
    no_wait: bool,
    done: &str,
) -> Result<(), Failure> {
    if no_wait {
        return session.console.show(&job);
    }
    let job = follow(client, &session.console, job)?;
    session.console.done(&job, done)
}

fn outcome(job: Answer) -> Result<Answer, Failure> {
    match job.state {
        JobState::Running | JobState::Done => Ok(job),
        JobState::Failed | JobState::Interrupted => {
            Err(Failure::Failed(job.problem.unwrap_or_else(|| {
                Problem::new(ProblemCode::Internal, format!("cannot {}", job.what))
                    .because("the daemon does not say why")
                    .remedy("see its log (journalctl -u tidegate), and report the fault")
            })))
        }
        JobState::Cancelled => Err(Failure::Failed(
            Problem::new(ProblemCode::Invalid, format!("cannot {}", job.what))
                .because("it was cancelled")
                .remedy("repeat the command if you still need it"),
        )),
    }
}

/// Where progress is shown.
enum Progress {
    Bar(ProgressBar),
    Lines { next: Instant },
    Nowhere,
}

impl Progress {
    fn new(console: &Console, job: &Answer) -> Progress {
        if console.talk == Talk::Quiet {
            return Progress::Nowhere;
        }
        let id = job.id;
        let cancel = match job.cancellable {
            true => format!(", job cancel {id}"),
            false => String::new(),
        };
        console.say(&format!(
            "{} (it continues after an interruption: tidegate job watch {id}{cancel})",
            job.what
        ));
        if !std::io::stderr().is_terminal() {
            return Progress::Lines {
                next: Instant::now() + LINES,
            };
        }
        let bar =
            ProgressBar::with_draw_target(Some(job.total_bytes), ProgressDrawTarget::stderr());
        let parts = match console.colour {
            Colour::On => "{bar:30.cyan} {percent:>3}%  {msg}",
            Colour::Off => "{bar:30} {percent:>3}%  {msg}",
        };
        bar.set_style(ProgressStyle::with_template(parts).expect("the template above is one"));
        Progress::Bar(bar)
    }

    fn show(&mut self, console: &Console, job: &Answer) {
        match self {
            Progress::Bar(bar) => {
                bar.set_length(job.total_bytes);
                bar.set_position(job.done_bytes);
                bar.set_message(standing(job));
            }
            Progress::Lines { next } => {
                let now = Instant::now();
                if now >= *next {
                    console.say(&format!("{}  {}", percent(job), standing(job)));
                    *next = now + LINES;
                }
            }
            Progress::Nowhere => {}
        }
    }

    fn end(self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn percent(job: &Answer) -> String {
    match job.total_bytes {
        _ if job.state == JobState::Done => figures::percent(1.0),
        0 => figures::dash(),
        total => figures::percent(figures::to_f64(job.done_bytes) / figures::to_f64(total)),
    }
}

/// How far it is and when it will be there: `1GiB of 4GiB, 350 MB/s, 9s left`.
fn standing(job: &Answer) -> String {
    let mut text = format!(
        "{} of {}",
        figures::bytes(job.done_bytes),
        figures::bytes(job.total_bytes)
    );
    if job.elapsed_s > 0.0 && job.done_bytes > 0 {
        let rate = figures::to_f64(job.done_bytes) / job.elapsed_s;
        let left = figures::to_f64(job.total_bytes.saturating_sub(job.done_bytes)) / rate;
        let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
        text.push_str(&format!(
            ", {} MB/s",
            figures::megabytes(figures::to_f64(job.copied_bytes) / job.elapsed_s)
        ));
        if !job.state.is_over() {
            text.push_str(&format!(", {} left", figures::seconds(left.as_secs())));
        }
    }
    text
}

fn state(state: JobState) -> &'static str {
    match state {
        JobState::Running => "running",
        JobState::Done => "done",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
        JobState::Interrupted => "interrupted",
    }
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![self.id.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let mut pairs = vec![
            ("job", self.id.to_string()),
            ("what", self.what.clone()),
            ("disk", self.disk.to_string()),
            ("state", state(self.state).to_owned()),
            ("done", format!("{} ({})", standing(self), percent(self))),
            ("copied", figures::bytes(self.copied_bytes)),
        ];
        if let Some(problem) = &self.problem {
            pairs.push(("problem", sentences(problem)));
        }
        table::pairs(&pairs)
    }
}

impl Shown for JobList {
    fn names(&self) -> Vec<String> {
        self.jobs.iter().map(|job| job.id.to_string()).collect()
    }

    fn table(&self, _: Detail) -> String {
        let row = |job: &Answer| {
            vec![
                job.id.to_string(),
                state(job.state).to_owned(),
                percent(job),
                figures::bytes(job.copied_bytes),
                job.disk.to_string(),
                job.what.clone(),
            ]
        };
        let rows: Vec<_> = self.jobs.iter().map(row).collect();
        table::columns(&["JOB", "STATE", "DONE", "COPIED", "DISK", "WHAT"], &rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(state: JobState, done: u64) -> Answer {
        Answer {
            id: 7,
            what: "import /srv/x.qcow2 as disk web1".to_owned(),
            disk: "web1".parse().unwrap(),
            state,
            done_bytes: done,
            total_bytes: 4 << 30,
            cancellable: !state.is_over(),
            copied_bytes: done / 2,
            elapsed_s: 10.0,
            problem: None,
        }
    }

    #[test]
    fn a_job_says_how_far_it_is_how_fast_and_how_long_yet() {
        let running = job(JobState::Running, 1 << 30);
        assert_eq!(standing(&running), "1GiB of 4GiB, 53.7 MB/s, 30s left");
        assert_eq!(percent(&running), "25%");
        let cancelled = job(JobState::Cancelled, 1 << 30);
        assert_eq!(standing(&cancelled), "1GiB of 4GiB, 53.7 MB/s");
    }

    #[test]
    fn a_job_that_has_not_begun_promises_nothing() {
        let mut running = job(JobState::Running, 0);
        running.elapsed_s = 0.0;
        assert_eq!(standing(&running), "0B of 4GiB");
        running.total_bytes = 0;
        assert_eq!(percent(&running), "-");
        running.state = JobState::Done;
        assert_eq!(percent(&running), "100%");
    }

    #[test]
    fn failed_and_cancelled_jobs_are_failures() {
        assert!(outcome(job(JobState::Done, 4 << 30)).is_ok());
        let mut failed = job(JobState::Failed, 0);
        failed.problem = Some(Problem::new(ProblemCode::Full, "cannot write web1"));
        let Err(Failure::Failed(problem)) = outcome(failed) else {
            panic!("a failure")
        };
        assert_eq!(problem.code, ProblemCode::Full);
        let Err(Failure::Failed(problem)) = outcome(job(JobState::Cancelled, 0)) else {
            panic!("a failure")
        };
        assert!(problem.to_string().contains("was cancelled"));
    }
}
