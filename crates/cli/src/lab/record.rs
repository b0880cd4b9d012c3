//! `tidegate lab record`: it records a disk's I/O into a file.
//!
//! The daemon's `trace` filter does it: it is put on the disk as `disk set --filter` would, and taken away again whatever
//! happens in between. The daemon writes the file, but the user of this command owns it: [`Landing`] says how.
//!
//! # Always true
//! - The filter is taken away before the file's place is: a disk whose trace filter has no file cannot be attached again.
//! - If the filter could not be removed, the message says how to remove it, and the recording stays.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::{Args, ValueHint};
use serde::Serialize;
use tidegate_api::disk::{Disk, DiskSet};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;
use tidegate_api::units::{Size, Span};
use tidegate_lab::trace::Figures;
use tidegate_lab::trace::landing::{Landed, Landing, Writer};

use super::failed;
use super::progress::Course;
use crate::client::Client;
use crate::failure::Failure;
use crate::output::{Detail, Shown};
use crate::session::Session;
use crate::{complete, figures, table};

/// How often it is looked how far it is.
const LOOK: Duration = Duration::from_millis(100);
/// How often the daemon is asked whether the disk is still there.
const ASK: Duration = Duration::from_secs(2);
/// How long a daemon that is started anew may be away.
const BACK: Duration = Duration::from_secs(20);
/// How long the daemon may need for the last block, once the filter is gone.
const LAST: Duration = Duration::from_secs(30);

/// Record a disk's I/O into a file
///
/// The recording contains each I/O's operation, range, arrival, latency and outcome, and never its data. The command adds a
/// `trace` filter on top of the disk's stack, also while the disk is busy, and removes it at the end. Ctrl-C ends the recording
/// early. Each I/O costs some fifty instructions and 40 bytes.
///
/// You own the file. The daemon, which may be another user, writes to a hidden directory beside it. The file gets its name
/// when it is complete. The daemon must be able to write there. Under systemd it cannot write below /usr, /boot and /etc, or
/// to network file systems that refuse the superuser.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate lab record web1 web1.trace
  tidegate lab record web1 web1.trace --for 5min --size-limit 4GiB
  tidegate lab record web1 web1.trace --for 10s -o json | jq .lost
  tidegate lab replay web1.trace --on sim --array raid5-8x10k+cache

If this program is killed, the filter stays: tidegate filter remove DISK trace")]
pub(crate) struct Record {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// The file to create
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// The length of the recording
    #[arg(long = "for", value_name = "TIME", default_value = "30s")]
    time: Span,

    /// End when the file has this size; 1GiB is 27 million I/Os
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size_limit: Size,

    /// Replace an existing file
    #[arg(long)]
    force: bool,
}

/// What was recorded, for every form of output.
#[derive(Serialize)]
struct Recording {
    disk: Name,
    file: PathBuf,
    size_bytes: u64,
    /// I/Os that the filter could not record.
    lost: u64,
    /// Bytes of a block that was cut off by a full file system.
    cut_off_bytes: u64,
    /// Why it ended.
    ended: Ended,
    recorded: Figures,
}

/// Why a recording ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Ended {
    /// Its time was over.
    Time,
    /// The file had its size.
    Size,
    /// Somebody interrupted it.
    Interrupted,
    /// The disk was detached.
    Detached,
    /// Somebody else took the filter away.
    FilterRemoved,
}

impl Ended {
    fn words(self) -> &'static str {
        match self {
            Ended::Time => "its time was over",
            Ended::Size => "the file reached its size limit",
            Ended::Interrupted => "it was interrupted",
            Ended::Detached => "the disk was detached",
            Ended::FilterRemoved => "the filter was removed",
        }
    }
}

impl Record {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let what = format!("cannot record disk {}", self.disk);
        self.must_be_free(&what)?;
        let client = session.client()?;
        let disk = client.look(routes::DISK, &[self.disk.as_str()])?;
        can_record(&disk, &what)?;
        let mut course = Course::new(&session.console)?;
        let mut landing =
            Landing::new(&self.file, writer(&client)?).map_err(|error| failed(&what, &error))?;
        let filter = format!("trace:path={}", landing.file().display());
        put_on(&client, disk, &filter, &landing, &what)?;
        session.console.say(&format!(
            "recording disk {} for {} (interrupting ends it early)",
            self.disk,
            figures::seconds(self.time.to_duration().as_secs())
        ));
        let ended = self.follow(&client, &filter, &mut landing, &mut course);
        course.end();
        take_off(&client, &self.disk, &filter, &landing)?;
        let ended = ended?;
        let landed = self.land(landing)?;
        let Landed {
            figures,
            lost,
            cut_off,
            bytes,
        } = landed;
        let recording = Recording {
            disk: self.disk,
            file: self.file,
            size_bytes: bytes,
            lost,
            cut_off_bytes: cut_off,
            ended,
            recorded: figures,
        };
        session.console.show(&recording)
    }

    /// Fails if the file is there and may not be replaced.
    fn must_be_free(&self, what: &str) -> Result<(), Failure> {
        let file = &self.file;
        let there = match std::fs::symlink_metadata(file) {
            Ok(there) => there,
            Err(_) => return Ok(()),
        };
        if there.is_dir() {
            return Err(Failure::usage(
                format!("{} is a directory", file.display()),
                "name the file to create",
            ));
        }
        if self.force {
            return Ok(());
        }
        let problem = Problem::new(ProblemCode::Exists, what)
            .because(format!("the file {} exists already", file.display()))
            .remedy("choose another file, or use --force to replace it");
        Err(Failure::Failed(problem))
    }

    /// Waits until it is over. Why it is.
    fn follow(
        &self,
        client: &Client,
        filter: &str,
        landing: &mut Landing,
        course: &mut Course,
    ) -> Result<Ended, Failure> {
        let (begun, lasts) = (Instant::now(), self.time.to_duration());
        let mut asked = begun;
        loop {
            let passed = begun.elapsed();
            landing
                .heed()
                .map_err(|error| failed("cannot follow the recording", &error))?;
            let bytes = landing.bytes();
            let left = figures::seconds(lasts.saturating_sub(passed).as_secs());
            let says = format!("{} recorded, {left} left", figures::bytes(bytes));
            course.goes(millis(passed), millis(lasts), &says);
            if course.interrupted() {
                return Ok(Ended::Interrupted);
            }
            if bytes >= self.size_limit.0 {
                return Ok(Ended::Size);
            }
            let Some(left) = lasts.checked_sub(passed).filter(|left| !left.is_zero()) else {
                return Ok(Ended::Time);
            };
            if asked.elapsed() >= ASK {
                asked = Instant::now();
                match client.look(routes::DISK, &[self.disk.as_str()]) {
                    Ok(disk) if !disk.attached && !disk.wanted => return Ok(Ended::Detached),
                    Ok(disk) if disk.filters.iter().all(|other| other != filter) => {
                        return Ok(Ended::FilterRemoved);
                    }
                    // A daemon that is started anew goes on recording into the same file.
                    Ok(_) | Err(Failure::Unreachable(_)) => {}
                    Err(failure) => return Err(failure),
                }
            }
            sleep(LOOK.min(left));
        }
    }

    /// Waits for the last block, and gives the file its name.
    fn land(&self, mut landing: Landing) -> Result<Landed, Failure> {
        let what = format!("cannot keep the recording of disk {}", self.disk);
        let let_go = landing
            .is_let_go(LAST)
            .map_err(|error| failed(&what, &error))?;
        if !let_go {
            let problem = Problem::new(ProblemCode::Busy, what)
                .because(format!(
                    "the daemon has not written its end within {}",
                    figures::seconds(LAST.as_secs())
                ))
                .remedy(format!(
                    "when the file system goes on, it is {}",
                    landing.file().display()
                ));
            return Err(Failure::Failed(problem));
        }
        let landed = landing.land().map_err(|error| failed(&what, &error))?;
        landed.ok_or_else(|| {
            let problem = Problem::new(
                ProblemCode::Invalid,
                format!("nothing was recorded: disk {} had no I/O", self.disk),
            );
            Failure::Failed(problem.remedy("record while its guest works, or for longer (--for)"))
        })
    }
}

/// Fails unless a recording can begin.
fn can_record(disk: &Disk, what: &str) -> Result<(), Failure> {
    if !disk.attached {
        let problem = Problem::new(ProblemCode::Invalid, what)
            .because("it is not attached, so it has no I/O")
            .remedy(format!("attach it: tidegate disk attach {}", disk.name));
        return Err(Failure::Failed(problem));
    }
    if let Some(there) = disk.filters.iter().find(|filter| is_trace(filter)) {
        let problem = Problem::new(ProblemCode::Busy, what)
            .because(format!("it has a trace filter already: {there}"))
            .remedy(format!(
                "wait until that recording is over; if that recording was abandoned: tidegate filter remove {} trace",
                disk.name
            ));
        return Err(Failure::Failed(problem));
    }
    Ok(())
}

fn is_trace(filter: &str) -> bool {
    filter.split(':').next() == Some("trace")
}

/// Who will write the file.
fn writer(client: &Client) -> Result<Writer, Failure> {
    let status = client.look(routes::STATUS, &[])?;
    // A process that cannot be looked at is taken for the superuser's, which needs no letting in.
    let process = Path::new("/proc").join(status.pid.to_string());
    let user = std::fs::metadata(process).ok().map(|process| process.uid());
    let group = std::fs::metadata(client.socket())
        .map_err(|error| Failure::io("cannot look at the daemon's socket", &error))?
        .gid();
    Ok(Writer { user, group })
}

/// Puts the filter on top, where it sees what the guest asks for.
fn put_on(
    client: &Client,
    disk: Disk,
    filter: &str,
    landing: &Landing,
    what: &str,
) -> Result<(), Failure> {
    let mut filters = disk.filters;
    filters.insert(0, filter.to_owned());
    let set = DiskSet {
        filters: Some(filters),
        ..DiskSet::default()
    };
    let changed = client.order(routes::DISK_SET, &[disk.name.as_str()], &set);
    match changed {
        Ok(_) => Ok(()),
        Err(Failure::Failed(problem)) => {
            landing.abandon();
            let problem = problem.within(what);
            Err(Failure::Failed(match problem.remedy {
                Some(_) => problem,
                None => problem.remedy(
                    "the daemon writes the file: if it may not, name one in a directory where it may",
                ),
            }))
        }
        // Nobody knows whether the filter is there: its file stays.
        Err(other) => Err(other),
    }
}

/// Takes the filter away, and nothing else that may have changed meanwhile.
fn take_off(client: &Client, disk: &Name, filter: &str, landing: &Landing) -> Result<(), Failure> {
    let name = disk.as_str();
    let take = || {
        let now = client.look(routes::DISK, &[name])?;
        let there = now.filters.len();
        let filters = now.filters.into_iter().filter(|other| other != filter);
        let filters: Vec<String> = filters.collect();
        if filters.len() == there {
            return Ok(());
        }
        let set = DiskSet {
            filters: Some(filters),
            ..DiskSet::default()
        };
        client.order(routes::DISK_SET, &[name], &set).map(drop)
    };
    let deadline = Instant::now() + BACK;
    let taken = loop {
        match take() {
            // Whether a daemon has come back can only be asked again, not waited for.
            Err(Failure::Unreachable(_)) if Instant::now() < deadline => sleep(LOOK),
            other => break other,
        }
    };
    let why = match taken {
        Ok(()) => return Ok(()),
        // A disk that is gone has no filter.
        Err(Failure::Failed(problem)) if problem.code == ProblemCode::NotFound => return Ok(()),
        Err(Failure::Failed(why) | Failure::Unreachable(why) | Failure::Usage(why)) => why,
        Err(Failure::NobodyReads) => return Err(Failure::NobodyReads),
    };
    let mut problem = Problem::new(
        ProblemCode::Internal,
        format!("the trace filter is still on disk {disk}"),
    )
    .because(&why.what);
    for reason in &why.why {
        problem = problem.because(reason);
    }
    Err(Failure::Failed(problem.remedy(format!(
        "remove it: tidegate filter remove {disk} trace; the recording is then {}",
        landing.file().display()
    ))))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Shown for Recording {
    fn names(&self) -> Vec<String> {
        vec![self.file.display().to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let recorded = &self.recorded;
        let mut pairs = vec![
            ("disk", self.disk.to_string()),
            (
                "file",
                format!(
                    "{} ({})",
                    self.file.display(),
                    figures::bytes(self.size_bytes)
                ),
            ),
            ("ended", self.ended.words().to_owned()),
            (
                "I/Os",
                format!(
                    "{}: {} reads, {} writes, {} others",
                    recorded.ios, recorded.reads, recorded.writes, recorded.others
                ),
            ),
            ("lost", self.lost.to_string()),
        ];
        if self.cut_off_bytes > 0 {
            pairs.push((
                "cut off",
                format!(
                    "{} of a block that was not whole: was the file system full?",
                    figures::bytes(self.cut_off_bytes)
                ),
            ));
        }
        pairs.extend(super::replay::did(recorded));
        table::pairs(&pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_trace_by_its_name() {
        assert!(is_trace("trace:path=/var/tmp/a.trace"));
        assert!(!is_trace("fault:delay=1ms"));
        assert!(!is_trace("tracer"));
    }
}
