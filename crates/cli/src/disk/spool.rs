//! Writes standard input to a temporary file that the daemon can import: formats need random access, and pipes have none.
//!
//! # Always true
//! - The file has mode 0600 and is removed when its [`Spool`] is dropped, or when a signal interrupts the program.
//! - Zeroes become holes, so the file takes no more room than the image's data.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_lab::interruption;

use crate::client::Client;
use crate::failure::Failure;
use crate::figures;
use crate::output::{Console, Talk};

/// Bytes that are read at a time: what Linux's pipes hold.
const CHUNK: usize = 64 << 10;

/// How often the bar changes on a terminal.
const BAR: Duration = Duration::from_millis(100);

/// How often a line is printed where there is no terminal.
const LINES: Duration = Duration::from_secs(5);

/// The path of the file, for the thread that waits for signals. None once the file is removed.
type Shared = Arc<Mutex<Option<PathBuf>>>;

/// Standard input in a temporary file.
pub(super) struct Spool {
    path: PathBuf,
    shared: Shared,
}

impl Spool {
    /// Reads standard input to its end. The file lies in `directory`; else in $TMPDIR, else in /var/tmp.
    pub(super) fn fill(
        client: &Client,
        console: &Console,
        directory: Option<&Path>,
    ) -> Result<Spool, Failure> {
        let directory = place(directory)?;
        let daemon = client.daemon_user()?;
        let shared = Shared::default();
        remove_when_interrupted(&shared)?;
        let (spool, file) = Spool::create(&directory, shared)?;
        spool.let_read(&file, daemon)?;
        let length = copy(&mut io::stdin().lock(), &file, &mut Progress::new(console))
            .map_err(|failed| failed.told(&directory))?;
        if length == 0 {
            return Err(Failure::usage(
                "cannot import standard input: it is empty",
                "see why the command before the pipe wrote nothing",
            ));
        }
        Ok(spool)
    }

    /// The file's absolute path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A failure of the import in terms of standard input, because the temporary file is removed.
    pub(super) fn explain(&self, failure: Failure) -> Failure {
        let Failure::Failed(mut problem) = failure else {
            return failure;
        };
        let path = self.path.display().to_string();
        let unread = format!("cannot read the image {path}");
        let unread = problem.what == unread || problem.why.contains(&unread);
        for text in std::iter::once(&mut problem.what).chain(&mut problem.why) {
            *text = text.replace(&path, "standard input");
        }
        if let Some(remedy) = &problem.remedy
            && remedy.contains(&path)
        {
            let remedy = remedy.replace(&path, "FILE");
            problem.remedy = Some(format!("write the image to a file FILE; then {remedy}"));
        }
        if unread && is_access(&problem) {
            problem = problem.remedy(
                "name a directory with --spool-dir that the daemon sees and may read, or write the image to a file there",
            );
        }
        Failure::Failed(problem)
    }

    fn create(directory: &Path, shared: Shared) -> Result<(Spool, File), Failure> {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let name = format!(
            "tidegate-import-{}-{}",
            std::process::id(),
            since.subsec_nanos()
        );
        let path = directory.join(name);
        // Locked until its path is noted: a signal meanwhile waits, and then removes it.
        let mut noted = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|e| unwritable(directory, &e))?;
        *noted = Some(path.clone());
        drop(noted);
        Ok((Spool { path, shared }, file))
    }

    /// Sees to it that the daemon may read the file.
    fn let_read(&self, file: &File, daemon: u32) -> Result<(), Failure> {
        let own = file
            .metadata()
            .map_err(|e| Failure::io("cannot look at the temporary file", &e))?
            .uid();
        if daemon == 0 || daemon == own {
            return Ok(());
        }
        fchown(file, Some(daemon), None).map_err(|error| {
            let why = format!(
                "the daemon runs as user {daemon}, and cannot read a temporary file of user {own}"
            );
            Failure::Failed(
                Problem::new(
                    ProblemCode::Invalid,
                    "cannot import standard input",
                )
                .because(why)
                .because(error)
                .remedy("write the image to a file that the daemon may read, and import that; or run this command as root or as the daemon's user"),
            )
        })
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        remove(&self.shared);
    }
}

/// Removes the file, once.
fn remove(shared: &Shared) {
    let path = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(path) = path {
        // Whoever removed it before did the same.
        let _gone = fs::remove_file(path);
    }
}

/// Removes the file when a signal ends the program, wherever that waits.
fn remove_when_interrupted(shared: &Shared) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::io("cannot wait for signals", &e);
    let mut signals = Signals::new(interruption::signals()).map_err(failed)?;
    let shared = Arc::clone(shared);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                remove(&shared);
                if emulate_default_handler(signal).is_err() {
                    std::process::exit(128 + signal);
                }
            }
        })
        .map_err(failed)?;
    Ok(())
}

/// The directory of the file, as an absolute path for the daemon.
fn place(named: Option<&Path>) -> Result<PathBuf, Failure> {
    let default = || std::env::var_os("TMPDIR").filter(|dir| !dir.is_empty());
    let directory = match named {
        Some(named) => named.to_owned(),
        None => default().map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from),
    };
    std::path::absolute(&directory).map_err(|e| unwritable(&directory, &e))
}

fn unwritable(directory: &Path, error: &io::Error) -> Failure {
    let what = format!("cannot keep standard input in {}", directory.display());
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "name a directory with --spool-dir that has room for the whole image"
        }
        _ => "name a directory with --spool-dir where you may write",
    };
    match Failure::io(what, error) {
        Failure::Failed(problem) => Failure::Failed(problem.remedy(remedy)),
        other => other,
    }
}

/// Whether the daemon could not reach the file, rather than make sense of it.
fn is_access(problem: &Problem) -> bool {
    let says = |text: &str| problem.why.iter().any(|why| why.contains(text));
    says("Permission denied") || says("No such file") || says("Operation not permitted")
}

/// Which end of a copy failed.
enum Copying {
    Reading(io::Error),
    Writing(io::Error),
}

impl Copying {
    fn told(self, directory: &Path) -> Failure {
        match self {
            Copying::Reading(error) => match Failure::io("cannot read standard input", &error) {
                Failure::Failed(problem) => Failure::Failed(
                    problem.remedy("see what the command before the pipe says, and run both again"),
                ),
                other => other,
            },
            Copying::Writing(error) => unwritable(directory, &error),
        }
    }
}

/// Copies all that comes; how much that was.
fn copy(input: &mut dyn Read, mut file: &File, progress: &mut Progress) -> Result<u64, Copying> {
    let mut chunk = vec![0; CHUNK];
    let mut length = 0;
    loop {
        let read = match input.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Copying::Reading(error)),
        };
        let bytes = &chunk[..read];
        if bytes.iter().all(|byte| *byte == 0) {
            file.seek(SeekFrom::Start(length + read as u64)).map(drop)
        } else {
            file.write_all(bytes)
        }
        .map_err(Copying::Writing)?;
        length += read as u64;
        progress.show(length);
    }
    file.set_len(length).map_err(Copying::Writing)?;
    progress.end();
    Ok(length)
}

/// Shows how much has come: what comes yet is not known.
struct Progress<'a> {
    console: &'a Console,
    bar: Option<ProgressBar>,
    began: Instant,
    next: Instant,
}

impl Progress<'_> {
    fn new(console: &Console) -> Progress<'_> {
        let shown = console.talk == Talk::Usual && io::stderr().is_terminal();
        let bar = shown.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{msg}").expect("the template is one");
            bar.with_style(style)
        });
        let now = Instant::now();
        let next = now + if shown { Duration::ZERO } else { LINES };
        Progress {
            console,
            bar,
            began: now,
            next,
        }
    }

    fn show(&mut self, length: u64) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let seconds = now.duration_since(self.began).as_secs_f64().max(0.001);
        let text = format!(
            "read {} of standard input, {} MB/s",
            figures::bytes(length),
            figures::megabytes(figures::to_f64(length) / seconds)
        );
        match &self.bar {
            Some(bar) => {
                bar.set_message(text);
                self.next = now + BAR;
            }
            None => {
                self.console.say(&text);
                self.next = now + LINES;
            }
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spool() -> Spool {
        Spool {
            path: PathBuf::from("/var/tmp/tidegate-import-1"),
            shared: Shared::default(),
        }
    }

    fn explained(problem: Problem) -> Problem {
        let Failure::Failed(problem) = spool().explain(Failure::Failed(problem)) else {
            panic!("it failed")
        };
        problem
    }

    #[test]
    fn a_remedy_never_names_the_file_that_is_gone() {
        let problem = Problem::new(
            ProblemCode::Invalid,
            "cannot read the image /var/tmp/tidegate-import-1",
        )
        .because("it is compressed by gzip")
        .remedy("unpack it: `gunzip -k /var/tmp/tidegate-import-1`");
        let problem = explained(problem);
        assert_eq!(problem.what, "cannot read the image standard input");
        assert_eq!(
            problem.remedy.unwrap(),
            "write the image to a file FILE; then unpack it: `gunzip -k FILE`"
        );
    }

    #[test]
    fn a_file_that_the_daemon_cannot_reach_leads_to_another_directory() {
        for why in [
            "Permission denied (os error 13)",
            "No such file or directory (os error 2)",
        ] {
            let what = "cannot read the image /var/tmp/tidegate-import-1";
            let problem = explained(Problem::new(ProblemCode::Datastore, what).because(why));
            let remedy = problem.remedy.unwrap();
            assert!(remedy.contains("--spool-dir"), "{remedy}");
        }
    }
}
