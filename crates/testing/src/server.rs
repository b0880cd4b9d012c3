//! A server process that is started, pinned, measured and stopped.
//!
//! [`crate::peers`] makes the command lines. Each trial starts a new server.
//!
//! # Always true
//! - A started server is killed when its value is dropped, also when a trial fails.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

/// How long a server may take to start listening, or to exit.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How to start a server.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Its name in the table.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Sockets on which it listens once it is ready.
    pub sockets: Vec<PathBuf>,
    /// The CPU on which it runs; none for any.
    pub cpu: Option<usize>,
    /// Whether it gets a separate process group, so that a terminal's signals do not reach it.
    pub own_group: bool,
}

/// Variables that a service manager passes to this program. Servers must not see them.
const SERVICE_VARIABLES: [&str; 5] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
];

/// A running server.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Server {
    /// Starts it and waits until it listens. Its output is written to a log in `scratch`.
    ///
    /// # Errors
    /// The program is missing, exits at once, or does not listen in time. The error has the end of its log.
    pub fn start(launch: &Launch, scratch: &Path) -> Result<Self> {
        for socket in &launch.sockets {
            // Removes a socket of an earlier trial, which would look like this server's.
            let _absent = std::fs::remove_file(socket);
        }
        let log = scratch.join("server.log");
        let output =
            File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut command = match launch.cpu {
            Some(cpu) => {
                let mut command = Command::new("taskset");
                command
                    .arg("--cpu-list")
                    .arg(cpu.to_string())
                    .arg(&launch.program);
                command
            }
            None => Command::new(&launch.program),
        };
        if launch.own_group {
            command.process_group(0);
        }
        for variable in SERVICE_VARIABLES {
            command.env_remove(variable);
        }
        let child = command
            .args(&launch.arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("cannot duplicate the log")?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {}", launch.program.display()))?;
        let mut server = Self {
            name: launch.name.clone(),
            child,
            log,
        };
        server.wait_until_it_listens(&launch.sockets)?;
        Ok(server)
    }

    fn wait_until_it_listens(&mut self, sockets: &[PathBuf]) -> Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !listening(sockets)? {
            if let Some(status) = self.ended()? {
                bail!("{} ended with {status}: {}", self.name, self.log_tail());
            }
            if Instant::now() > deadline {
                bail!(
                    "{} does not listen after {TIMEOUT:?}: {}",
                    self.name,
                    self.log_tail()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The end of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        std::fs::read_to_string(&self.log)
            .unwrap_or_default()
            .trim()
            .to_owned()
    }

    /// Its exit status, if it has exited.
    ///
    /// # Errors
    /// The status is unavailable.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        let status = self.child.try_wait();
        status.with_context(|| format!("cannot get the state of {}", self.name))
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        // It may have exited already.
        let _gone = kill(self.as_pid(), Signal::SIGTERM);
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn as_pid(&self) -> Pid {
        Pid::from_raw(
            i32::try_from(self.child.id()).expect("Linux process numbers are positive and small"),
        )
    }

    /// CPU time of all its threads, including finished ones.
    ///
    /// # Errors
    /// The server has exited.
    pub fn cpu_time(&self) -> Result<Duration> {
        let clock = clock_getcpuclockid(self.as_pid())
            .with_context(|| format!("{} is gone: {}", self.name, self.log_tail()))?;
        Ok(Duration::from(
            clock.now().context("cannot read the server's CPU clock")?,
        ))
    }

    /// Resident memory in bytes.
    ///
    /// # Errors
    /// The server has exited.
    pub fn resident(&self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        resident_of(&text).with_context(|| format!("{path} has no VmRSS"))
    }

    /// Sends SIGTERM and waits. Kills it after a timeout.
    ///
    /// # Errors
    /// Signalling or waiting fails.
    pub fn stop(mut self) -> Result<()> {
        if self.ended()?.is_some() {
            return Ok(());
        }
        self.terminate();
        let deadline = Instant::now() + TIMEOUT;
        while self.ended()?.is_none() {
            if Instant::now() > deadline {
                bail!(
                    "{} does not exit on SIGTERM: {}",
                    self.name,
                    self.log_tail()
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Kills it with SIGKILL, like a crash, and waits for its exit.
    ///
    /// # Errors
    /// Killing fails.
    pub fn crash(mut self) -> Result<()> {
        self.child
            .kill()
            .with_context(|| format!("cannot kill {}", self.name))?;
        self.child.wait().context("cannot wait for the server")?;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Usually it has exited already.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Pins the calling thread, and the threads that it starts, to one CPU.
///
/// # Errors
/// The CPU does not exist, or this process may not use it.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)
        .with_context(|| format!("there is no CPU {cpu}"))?;
    sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("cannot run on CPU {cpu}"))
}

/// CPU time of this process.
///
/// # Errors
/// Never on Linux.
pub fn own_cpu_time() -> Result<Duration> {
    let clock = nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID;
    Ok(Duration::from(
        clock.now().context("cannot read our own CPU clock")?,
    ))
}

/// CPU time of all child processes that have exited and were waited for.
///
/// # Errors
/// Never on Linux.
pub fn ended_cpu_time() -> Result<Duration> {
    let usage =
        getrusage(UsageWho::RUSAGE_CHILDREN).context("cannot read our programs' CPU time")?;
    let span = |time: TimeVal| {
        let nanos = u64::try_from(time.num_nanoseconds()).unwrap_or(0);
        Duration::from_nanos(nanos)
    };
    Ok(span(usage.user_time()) + span(usage.system_time()))
}

/// Whether all sockets have a listener. It does not connect, because some servers accept only one client.
fn listening(sockets: &[PathBuf]) -> Result<bool> {
    let table = std::fs::read_to_string("/proc/net/unix").context("cannot read /proc/net/unix")?;
    Ok(sockets.iter().all(|socket| listens(&table, socket)))
}

/// Flag 0x10000 marks a socket that accepts connections.
fn listens(table: &str, socket: &Path) -> bool {
    table.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.nth(3) == Some("00010000") && words.nth(3).map(Path::new) == Some(socket)
    })
}

fn resident_of(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_ready_once_it_has_a_listener() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let path = dir.path().join("s");
        let sockets = [path.clone()];
        assert!(!listening(&sockets).expect("/proc"));
        let _listener = std::os::unix::net::UnixListener::bind(&path).expect("a socket");
        assert!(listening(&sockets).expect("/proc"));
    }

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(
            resident_of("Name:\tx\nVmRSS:\t    1024 kB\n"),
            Some(1 << 20)
        );
        assert_eq!(resident_of("Name:\tx\n"), None);
    }

    #[test]
    fn a_server_that_exits_at_once_is_an_error_with_its_output() {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let launch = Launch {
            name: "loser".into(),
            program: "sh".into(),
            arguments: vec!["-c".into(), "echo no luck; exit 3".into()],
            sockets: vec![dir.path().join("never")],
            cpu: None,
            own_group: false,
        };
        let error = Server::start(&launch, dir.path()).expect_err("it exits");
        assert!(error.to_string().contains("no luck"), "{error}");
    }
}
