//! `tidegate lab replay`: it repeats recorded I/O on another disk or on a modelled array.
//!
//! # Always true
//! - Nothing that changes a disk is asked for unless that was said and agreed to.
//! - A disk with another client is not written to.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, ValueEnum, ValueHint};
use serde::Serialize;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;
use tidegate_api::status::NbdSecurity;
use tidegate_lab::array::ArraySpec;
use tidegate_lab::replay::disk::{Flow, Progress, Target};
use tidegate_lab::replay::{self, Pace, Replayed, Trace, Writes};
use tidegate_lab::trace::Figures;

use super::failed;
use super::progress::Course;
use crate::failure::Failure;
use crate::output::{Detail, Shown};
use crate::prompt::Consent;
use crate::session::Session;
use crate::{complete, figures, table};

/// Replay a recorded disk's I/O
///
/// The command sends the I/O of a recording (see `tidegate lab record`) again: to an attached disk, as an NBD client, or to a
/// modelled array in virtual time. It sends each I/O at its recorded time. With --closed it sends an I/O when as few are
/// outstanding as at its arrival in the recording. It then compares the replay with the recording, for the same I/Os.
///
/// Without --writes, only reads, flushes and prefetches are sent. With --writes the data on the disk is lost, because a trace
/// contains no data.
///
/// The exit status is 1 if an I/O failed or the replay was interrupted.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("place").required(true).args(["disk", "on", "scenario"]),
    after_help = "\
Examples:
  tidegate lab replay web1.trace --disk scratch1
  tidegate lab replay web1.trace --disk scratch1 --writes --yes --speed 2
  tidegate lab replay web1.trace --on sim --array raid5-8x10k+cache --closed
  tidegate lab replay web1.trace --on sim -o json | jq .replayed.latency_p99_us
  tidegate lab replay web1.trace --scenario > web1.toml    # to change it: other disks beside it, limits, shares
  tidegate lab run ./web1.toml --on sim"
)]
pub(crate) struct Replay {
    /// The recording
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Replay on this attached disk
    #[arg(long, value_name = "DISK", add = complete::disks())]
    disk: Option<Name>,

    /// Replay on a modelled array, in virtual time
    #[arg(long, value_enum, value_name = "PLACE")]
    on: Option<Place>,

    /// Do not replay; print the scenario that --on sim runs
    #[arg(long)]
    scenario: bool,

    /// The array: [raidL-Nx]MEMBER[+cache], such as ssd, nvme, 7k, raid5-8x10k+cache
    #[arg(
        long,
        value_name = "NAME",
        default_value = "ssd",
        conflicts_with = "disk"
    )]
    array: String,

    /// The speed of the recorded times: 2 is twice as fast
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = speed)]
    speed: u32,

    /// Ignore the recorded times, and have as many I/Os outstanding as the recording
    #[arg(long, conflicts_with = "speed")]
    closed: bool,

    /// Replay writes, zeroes and discards too; the data on the disk is lost
    #[arg(long, requires = "disk")]
    writes: bool,

    #[command(flatten)]
    consent: Consent,
}

/// Where it can be replayed but on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Place {
    /// The simulator, in virtual time
    Sim,
}

/// A factor, in percent.
fn speed(text: &str) -> Result<u32, String> {
    let wrong = || "it must be a number from 0.01 to 1000".to_owned();
    let factor: f64 = text.parse().map_err(|_| wrong())?;
    if !(0.01..=1_000.0).contains(&factor) {
        return Err(wrong());
    }
    // In whole hundredths: the nearest one.
    (1..=100_000)
        .find(|percent| f64::from(*percent) >= factor * 100.0 - 0.5)
        .ok_or_else(wrong)
}

/// What came of it, for every form of output.
#[derive(Serialize)]
struct Answer {
    trace: PathBuf,
    /// The disk that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    disk: Option<Name>,
    /// The array that was.
    #[serde(skip_serializing_if = "Option::is_none")]
    array: Option<String>,
    /// How fast recorded times passed; absent with --closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    speed_percent: Option<u32>,
    #[serde(flatten)]
    replayed: Replayed,
}

impl Replay {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let trace = Trace::open(&self.file).map_err(|error| {
            let what = format!("cannot replay {}", self.file.display());
            let problem = Problem::new(ProblemCode::Corrupt, what).because_of(&error);
            Failure::Failed(problem.remedy(
                "it must be a whole trace of one disk: record one with `tidegate lab record`",
            ))
        })?;
        let pace = match self.closed {
            true => Pace::Outstanding,
            false => Pace::Recorded { speed: self.speed },
        };
        let array = || {
            let named = ArraySpec::named(&self.array);
            named.map_err(|error| Failure::usage(error.to_string(), "say --array raid5-8x10k"))
        };
        if self.scenario {
            array()?;
            let file = std::path::absolute(&self.file).unwrap_or_else(|_| self.file.clone());
            let file = file.display().to_string();
            let text = replay::scenario_text(&file, &trace, pace, &self.array);
            return session.console.print(&text);
        }
        let replayed = match &self.disk {
            Some(disk) => self.on_disk(session, disk, &trace, pace)?,
            None => replay::on_array(&trace, pace, &array()?).map_err(|error| {
                failed(format!("cannot replay {}", self.file.display()), &error)
            })?,
        };
        let answer = Answer {
            array: self.disk.is_none().then(|| self.array.clone()),
            disk: self.disk,
            trace: self.file,
            speed_percent: (!self.closed).then_some(self.speed),
            replayed,
        };
        session.console.show(&answer)?;
        let Replayed {
            errors,
            interrupted,
            ..
        } = answer.replayed;
        let problem = match (errors, interrupted) {
            (0, false) => return Ok(()),
            (0, true) => Problem::new(ProblemCode::Stopping, "interrupted before its end"),
            (errors, _) => Problem::new(
                ProblemCode::Datastore,
                format!("{errors} I/Os ended with an error"),
            )
            .remedy("see the daemon's log"),
        };
        Err(Failure::Failed(problem))
    }

    /// Asks an attached disk.
    fn on_disk(
        &self,
        session: &Session,
        name: &Name,
        trace: &Trace,
        pace: Pace,
    ) -> Result<Replayed, Failure> {
        let what = format!("cannot replay {} on disk {name}", self.file.display());
        let client = session.client()?;
        let disk = client.look(routes::DISK, &[name.as_str()])?;
        let refused = |code, why: String, remedy: String| {
            let problem = Problem::new(code, &what).because(why).remedy(remedy);
            Err(Failure::Failed(problem))
        };
        if !disk.attached {
            return refused(
                ProblemCode::Invalid,
                "it is not attached".to_owned(),
                format!("attach it: tidegate disk attach {name}"),
            );
        }
        if self.writes
            && let Some(other) = disk.clients.first()
        {
            return refused(
                ProblemCode::Busy,
                format!(
                    "another client is connected to it, and would lose its data: {}",
                    other.peer
                ),
                "use a disk without clients".to_owned(),
            );
        }
        let status = client.look(routes::STATUS, &[])?;
        let mut listeners = status.nbd_listeners.iter();
        let Some(socket) = listeners.find(|target| target.security == NbdSecurity::Unix) else {
            return refused(
                ProblemCode::Unsupported,
                "the daemon has no Unix socket for NBD clients".to_owned(),
                "give it one in its configuration, under [nbd]".to_owned(),
            );
        };
        let writes = match self.writes {
            true => Writes::Replay,
            false => Writes::LeaveOut,
        };
        let target = Target::open(Path::new(&socket.address), name.as_str(), trace, writes)
            .map_err(|error| failed(&what, &error))?;
        if target.changes() > 0 {
            self.consent.obtain(&format!(
                "{} I/Os of the trace change disk {name}: its data will be lost",
                target.changes()
            ))?;
        }
        session.console.say(&format!(
            "replaying {} I/Os on disk {name} (interrupting ends it early)",
            target.ios()
        ));
        let mut course = Course::new(&session.console)?;
        let replayed = target.replay(pace, &mut |Progress { done, of }| {
            course.goes(done, of, &format!("{done} of {of} I/Os"));
            match course.interrupted() {
                true => Flow::End,
                false => Flow::Continue,
            }
        });
        course.end();
        replayed.map_err(|error| failed(&what, &error))
    }
}

/// Figures as lines of a thing.
pub(super) fn did(figures: &Figures) -> [(&'static str, String); 3] {
    [
        (
            "throughput",
            format!(
                "{} I/Os a second, {} MB/s, over {:.1}s",
                figures::count(figures.iops),
                figures::megabytes(figures.bytes_per_s),
                figures.lasts_s
            ),
        ),
        ("outstanding", format!("{:.1}", figures.outstanding_mean)),
        (
            "latency",
            format!(
                "mean {}, p50 {}, p99 {}",
                figures::micros(figures.latency_mean_us),
                figures::micros(figures.latency_p50_us),
                figures::micros(figures.latency_p99_us)
            ),
        ),
    ]
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![self.trace.display().to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let Replayed {
            recorded,
            replayed,
            left_out,
            ..
        } = &self.replayed;
        let row = |which: &str, did: &Figures| {
            vec![
                which.to_owned(),
                did.ios.to_string(),
                format!("{:.1}s", did.lasts_s),
                figures::count(did.iops),
                figures::megabytes(did.bytes_per_s),
                format!("{:.1}", did.outstanding_mean),
                figures::micros(did.latency_mean_us),
                figures::micros(did.latency_p50_us),
                figures::micros(did.latency_p99_us),
            ]
        };
        let head = [
            "",
            "I/OS",
            "TIME",
            "IOPS",
            "MB/S",
            "OUTSTANDING",
            "MEAN",
            "P50",
            "P99",
        ];
        let rows = [row("recorded", recorded), row("replayed", replayed)];
        let mut text = table::columns(&head, &rows);
        let on = match (&self.disk, &self.array) {
            (Some(disk), _) => format!("disk {disk}"),
            (None, Some(array)) => format!("{array}, in virtual time"),
            (None, None) => figures::dash(),
        };
        let how = match self.speed_percent {
            None => "with as many outstanding as in the recording".to_owned(),
            Some(100) => "at the recorded times".to_owned(),
            Some(percent) => format!("at {percent} % of the recorded speed"),
        };
        let mut pairs = vec![("replayed on", format!("{on}, {how}"))];
        let counts = [
            ("skipped writes", left_out.writes),
            ("skipped failures", left_out.failed),
            ("skipped others", left_out.impossible),
            ("uncounted flushes", self.replayed.uncounted),
            ("never recorded", self.replayed.lost),
            ("errors", self.replayed.errors),
        ];
        let told = counts.into_iter().filter(|(_, count)| *count > 0);
        pairs.extend(told.map(|(what, count)| (what, count.to_string())));
        if self.replayed.late_max_us > 0.0 {
            pairs.push((
                "sent late by",
                format!(
                    "{} on average, {} at most",
                    figures::micros(self.replayed.late_mean_us),
                    figures::micros(self.replayed.late_max_us)
                ),
            ));
        }
        text += "\n";
        text + &table::pairs(&pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_a_factor_in_hundredths() {
        for (text, percent) in [
            ("1", 100),
            ("2", 200),
            ("0.5", 50),
            ("1.25", 125),
            ("1000", 100_000),
        ] {
            assert_eq!(speed(text), Ok(percent), "{text}");
        }
        for wrong in ["0", "-1", "fast", "1001", "0.001"] {
            assert!(speed(wrong).is_err(), "{wrong}");
        }
    }
}
