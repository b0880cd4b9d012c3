//! Lets a command bring a guest's file systems to rest while a snapshot is taken: `CMD freeze` before, `CMD thaw` after.
//!
//! The thaw is run by a process of its own, which waits until this program and the freeze are gone or have let go.
//!
//! # Always true
//! - The thaw is run once, also if the freeze fails, does not end, or this program is killed.
//! - It is not run before the freeze has ended.
//!
//! # Picture
//! ```text
//!   start the thaw, which waits at a pipe ─ freeze (has the pipe too) ─ snapshot ─ close the pipe ─ thaw
//! ```

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use tidegate_api::problem::{Problem, ProblemCode};

use crate::failure::Failure;

/// How often a command that runs is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// The pipe at which the thaw waits, until it is closed.
type Pipe = Arc<Mutex<Option<ChildStdin>>>;

/// A guest at rest, until [`Quiesced::thaw`] or its end.
pub(super) struct Quiesced {
    command: String,
    patience: Duration,
    thaw: Child,
    pipe: Pipe,
    /// Dropped when the snapshot is taken.
    at_rest: Option<Sender<()>>,
}

impl Quiesced {
    /// Runs `command freeze`. It, the snapshot and the thaw may take `patience` each.
    pub(super) fn freeze(command: String, patience: Duration) -> Result<Quiesced, Failure> {
        let cannot = |e: io::Error| Failure::io(format!("cannot run `{command}`"), &e);
        let mut thaw = shell(&format!("cat >&2; {command} thaw </dev/null"))
            .and_then(|mut shell| shell.stdin(Stdio::piped()).spawn())
            .map_err(cannot)?;
        let pipe = thaw.stdin.take();
        let also = pipe.as_ref().map(|pipe| pipe.as_fd().try_clone_to_owned());
        let also = also.transpose().map_err(cannot)?;
        let mut quiesced = Quiesced {
            command: command.clone(),
            patience,
            thaw,
            pipe: Arc::new(Mutex::new(pipe)),
            at_rest: None,
        };
        // The thaw waits until this has ended, too: its descriptor 3 is the pipe.
        let frozen = shell(&format!("exec 3<&0 </dev/null; {command} freeze"))
            .and_then(|mut shell| shell.stdin(also.map_or(Stdio::null(), Stdio::from)).spawn())
            .and_then(|mut freeze| end_of(&mut freeze, patience));
        let why = match frozen {
            Ok(Some(status)) if status.success() => {
                quiesced.at_rest = Some(limit(&quiesced.pipe, patience));
                return Ok(quiesced);
            }
            Ok(Some(status)) => status.to_string(),
            Ok(None) => format!("it did not end within {patience:?}"),
            Err(error) => error.to_string(),
        };
        let problem = Problem::new(
            ProblemCode::Invalid,
            format!("`{command} freeze` failed: no snapshot was taken"),
        )
        .because(why)
        .remedy("see its messages above, and try the command by hand; --quiesce-timeout sets how long it may take");
        Err(match quiesced.end() {
            Ok(()) => problem.into(),
            Err(still) => problem.because(still).into(),
        })
    }

    /// Runs `command thaw`, after the snapshot that is named.
    pub(super) fn thaw(mut self, snapshot: &str) -> Result<(), Failure> {
        let was_at_rest = self.pipe().is_some();
        let ended = self.end();
        let command = &self.command;
        let problem = match (ended, was_at_rest) {
            (Ok(()), true) => return Ok(()),
            (Ok(()), false) => Problem::new(
                ProblemCode::Busy,
                format!("snapshot {snapshot} was taken, but the guest was not at rest until then"),
            )
            .because(format!("the snapshot took longer than {:?}", self.patience))
            .remedy(format!(
                "it is as after a power failure; to have another one, delete it (tidegate disk snapshot delete {snapshot}) and \
                 try again with a longer --quiesce-timeout"
            )),
            (Err(why), _) => Problem::new(
                ProblemCode::Invalid,
                format!("snapshot {snapshot} was taken, but `{command} thaw` failed: the guest may still be frozen"),
            )
            .because(why)
            .remedy(format!("run it by hand: {command} thaw")),
        };
        Err(problem.into())
    }

    /// Lets the thaw begin, and waits for it.
    fn end(&mut self) -> Result<(), String> {
        self.at_rest = None;
        drop(self.pipe().take());
        match wait(&mut self.thaw, self.patience) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(format!("`{} thaw`: {status}", self.command)),
            Ok(None) => Err(format!(
                "`{} thaw` did not end within {:?}, and goes on",
                self.command, self.patience
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    fn pipe(&self) -> std::sync::MutexGuard<'_, Option<ChildStdin>> {
        self.pipe.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Quiesced {
    fn drop(&mut self) {
        if self.pipe().is_some() {
            // The snapshot has failed, and that is what is reported.
            let _ = self.end();
        }
    }
}

/// A shell for one line. What it prints comes where messages go: standard output is for the answer. An interruption from the
/// terminal does not reach it.
fn shell(line: &str) -> io::Result<Command> {
    let mut shell = Command::new("/bin/sh");
    let messages = io::stderr().as_fd().try_clone_to_owned()?;
    shell
        .args(["-c", line])
        .stdout(Stdio::from(messages))
        .process_group(0);
    Ok(shell)
}

/// Lets the thaw begin after that time, unless the result is dropped before.
fn limit(pipe: &Pipe, patience: Duration) -> Sender<()> {
    let (at_rest, ended) = channel::<()>();
    let pipe = Arc::clone(pipe);
    std::thread::spawn(move || {
        use std::sync::mpsc::RecvTimeoutError;
        if ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            drop(pipe.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    });
    at_rest
}

/// The end of a command. One that takes longer is killed, with all that it has started.
fn end_of(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let ended = wait(child, patience)?;
    if ended.is_none() {
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            kill_process_group(group, Signal::KILL)?;
        }
        child.wait()?;
    }
    Ok(ended)
}

fn wait(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + patience;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= until {
            return Ok(status);
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_millis(200);

    /// A directory with a command that notes its arguments, and does something for each.
    fn command(freeze: &str, thaw: &str) -> (tempfile::TempDir, String) {
        let place = tempfile::tempdir().unwrap();
        let script = place.path().join("guest");
        let log = place.path().join("log");
        let text = format!(
            "case $1 in freeze) {freeze};; thaw) {thaw};; esac; r=$?; echo $1 >>{}; exit $r",
            log.display()
        );
        fs::write(&script, text).unwrap();
        let line = format!("/bin/sh {}", script.display());
        (place, line)
    }

    fn log(place: &tempfile::TempDir) -> String {
        fs::read_to_string(place.path().join("log")).unwrap_or_default()
    }

    #[test]
    fn a_guest_is_frozen_before_and_thawed_after() {
        let (place, line) = command(":", ":");
        let quiesced = Quiesced::freeze(line, LONG).unwrap();
        assert_eq!(log(&place), "freeze\n");
        quiesced.thaw("vm1@a").unwrap();
        assert_eq!(log(&place), "freeze\nthaw\n");
    }

    #[test]
    fn a_guest_is_thawed_if_the_snapshot_fails() {
        let (place, line) = command(":", ":");
        drop(Quiesced::freeze(line, LONG).unwrap());
        assert_eq!(log(&place), "freeze\nthaw\n");
    }

    #[test]
    fn a_guest_is_thawed_if_the_freeze_fails_or_does_not_end() {
        let (place, line) = command("false", ":");
        let refused = Quiesced::freeze(line, LONG).err().unwrap();
        let text = refused.problem().unwrap().to_string();
        assert!(text.contains("no snapshot was taken"), "{text}");
        assert_eq!(log(&place), "freeze\nthaw\n");
        let (place, line) = command("sleep 1000", ":");
        let refused = Quiesced::freeze(line, SHORT).err().unwrap();
        let text = refused.problem().unwrap().to_string();
        assert!(text.contains("did not end"), "{text}");
        assert_eq!(log(&place), "thaw\n");
    }

    #[test]
    fn a_thaw_that_fails_is_reported_with_what_to_do() {
        let (_place, line) = command(":", "false");
        let quiesced = Quiesced::freeze(line, LONG).unwrap();
        let text = quiesced.thaw("vm1@a").unwrap_err();
        let text = text.problem().unwrap().to_string();
        assert!(
            text.contains("may still be frozen") && text.contains("by hand"),
            "{text}"
        );
    }

    #[test]
    fn a_guest_does_not_rest_for_longer_than_was_said() {
        let (place, line) = command(":", ":");
        let quiesced = Quiesced::freeze(line, SHORT).unwrap();
        while log(&place) != "freeze\nthaw\n" {
            std::thread::yield_now();
        }
        let text = quiesced.thaw("vm1@a").unwrap_err();
        let text = text.problem().unwrap().to_string();
        assert!(text.contains("not at rest"), "{text}");
    }
}
