//! One host of the demonstration: a daemon with a root of its own, ordered about by its command line.
//!
//! # Always true
//! - The daemon has ended once the value is dropped.
//! - What a terminal sends to the demonstration (Ctrl-C) does not reach the daemon: it is stopped in its turn.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// How long a daemon may take for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take until it serves, and how often it is looked whether it does.
const STARTS_IN: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(10);
/// How long it may take to stop: nothing of it is to last, so that it is killed then.
const STOPS_IN: Duration = Duration::from_secs(5);
/// Variables by which a service manager speaks to the one that it started: not to ours.
const NOT_OURS: [&str; 5] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
];

/// See the module.
#[derive(Debug)]
pub struct Host {
    name: &'static str,
    program: PathBuf,
    root: PathBuf,
    log: PathBuf,
    daemon: Child,
    dashboard: String,
}

impl Host {
    /// Starts the daemon of a root, and waits until it serves.
    pub(super) fn start(program: &Path, name: &'static str, root: &Path) -> Result<Host> {
        let log = root.join("daemon.log");
        let said = File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let mut command = own(program, root);
        command
            .arg("serve")
            .stdout(said.try_clone().context("cannot share a log")?)
            .stderr(said);
        let daemon = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let mut host = Host {
            name,
            program: program.to_owned(),
            root: root.to_owned(),
            log,
            daemon,
            dashboard: String::new(),
        };
        let deadline = Instant::now() + STARTS_IN;
        let status = loop {
            match host.get("/v1/status") {
                Ok(status) => break status,
                Err(late) if Instant::now() > deadline => {
                    return Err(late.context(format!("{name} says: {}", host.last_words())));
                }
                // Whether it serves can only be asked again; one that has ended never will.
                Err(_) => host.must_live()?,
            }
            std::thread::sleep(LOOK);
        };
        let dashboard = status["dashboard"].as_str();
        host.dashboard = dashboard
            .with_context(|| format!("{name} has no dashboard: {}", host.last_words()))?
            .to_owned();
        Ok(host)
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }

    /// Its daemon's root.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The address of its dashboard.
    #[must_use]
    pub fn dashboard(&self) -> &str {
        &self.dashboard
    }

    /// `tidegate WORDS`, of this host; what it printed.
    pub(super) fn order(&self, words: &[&str]) -> Result<String> {
        let output = own(&self.program, &self.root)
            .args(words)
            .output()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        if !output.status.success() {
            let says = String::from_utf8_lossy(&output.stderr);
            bail!("tidegate {}: {}", words.join(" "), says.trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What its REST interface answers.
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let socket = self.root.join("run/tidegate.sock");
        let asked = || -> Result<Value> {
            let mut stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            let (head, body) = answer
                .split_once("\r\n\r\n")
                .context("its answer has no end of its head")?;
            let status = head.lines().next().unwrap_or_default();
            if !status.contains(" 200 ") {
                bail!("{status}: {body}");
            }
            serde_json::from_str(body).context("its answer is no JSON")
        };
        asked().with_context(|| format!("{} does not answer to GET {path}", self.name))
    }

    /// Fails if the daemon has ended: nobody has asked it to.
    pub(super) fn must_live(&mut self) -> Result<()> {
        match self.daemon.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                let said = self.last_words();
                let words = if said.is_empty() {
                    "it said nothing"
                } else {
                    &said
                };
                Err(anyhow!(
                    "the daemon of {} has ended, {status}: {words}",
                    self.name
                ))
            }
            Err(error) => Err(error).with_context(|| format!("cannot look after {}", self.name)),
        }
    }

    /// The end of what the daemon has said.
    fn last_words(&self) -> String {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = said.trim().lines().rev().take(3).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("; ")
    }

    /// Has the daemon stop; whoever drops the value waits for it.
    pub(super) fn ask_to_stop(&mut self) {
        if let Ok(pid) = i32::try_from(self.daemon.id()) {
            // It may have ended by itself.
            let _gone = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.ask_to_stop();
        let deadline = Instant::now() + STOPS_IN;
        while matches!(self.daemon.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _gone = self.daemon.kill();
                let _reaped = self.daemon.wait();
                return;
            }
            // The end of a process can only be asked for, or waited for without end.
            std::thread::sleep(LOOK);
        }
    }
}

/// The program, with a root; a terminal's signals are not for it.
fn own(program: &Path, root: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("--root")
        .arg(root)
        .stdin(Stdio::null())
        .process_group(0);
    for variable in NOT_OURS {
        command.env_remove(variable);
    }
    command
}
