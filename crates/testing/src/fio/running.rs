//! A running fio that can be stopped and continued. Its progress is read from the kernel.
//!
//! # Always true
//! - It ends with its value.
//! # Source
//! proc(5): `/proc/PID/io` counts the bytes that a process had read from storage, at the moment it asks for them.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;

use super::{Job, command};

/// How long it may take to begin.
const PATIENCE: Duration = Duration::from_secs(20);

/// See the module.
#[derive(Debug)]
pub struct Running {
    child: Child,
    size: u64,
}

impl Running {
    /// Starts a job of reads, pinned to `cpu`, and halts it once it has begun.
    ///
    /// # Errors
    /// fio is missing, or does not begin.
    pub fn start(job: &Job<'_>, cpu: usize) -> Result<Self> {
        let child = command(job, cpu)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start fio")?;
        let mut running = Self {
            child,
            size: job.size.into(),
        };
        let deadline = Instant::now() + PATIENCE;
        while running.requests()? < u64::from(job.depth) {
            let ended = running.child.try_wait();
            if let Some(status) = ended.context("cannot ask for fio's state")? {
                bail!("fio ended with {status}");
            }
            if Instant::now() > deadline {
                bail!(
                    "fio does not begin, or reads no disk (a file in memory counts as none): is the file on one?"
                );
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        running.halt()?;
        Ok(running)
    }

    /// Stops it where it is, and waits until it stands still.
    ///
    /// # Errors
    /// It is gone.
    pub fn halt(&self) -> Result<()> {
        kill(self.pid(), Signal::SIGSTOP).context("cannot halt fio")?;
        // Only a look: its end is waited for elsewhere.
        let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        match waitid(Id::Pid(self.pid()), flags).context("cannot wait for fio to halt")? {
            WaitStatus::Stopped(..) => Ok(()),
            other => bail!("fio ended instead of halting: {other:?}"),
        }
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It is gone.
    pub fn go_on(&self) -> Result<()> {
        kill(self.pid(), Signal::SIGCONT).context("cannot let fio go on")
    }

    /// How many requests it has made.
    ///
    /// # Errors
    /// It is gone, or the kernel does not count.
    pub fn requests(&self) -> Result<u64> {
        let path = format!("/proc/{}/io", self.child.id());
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let bytes = read_bytes(&text).with_context(|| format!("{path} has no read_bytes"))?;
        Ok(bytes / self.size)
    }

    /// CPU time of all its threads.
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu_time(&self) -> Result<Duration> {
        let clock = clock_getcpuclockid(self.pid()).context("fio is gone")?;
        let now = clock.now().context("cannot read fio's CPU clock")?;
        Ok(Duration::from(now))
    }

    fn pid(&self) -> Pid {
        let pid = i32::try_from(self.child.id());
        Pid::from_raw(pid.expect("Linux process numbers are positive and small"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone already, perhaps.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn read_bytes(io: &str) -> Option<u64> {
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_from_storage_are_told_apart_from_those_read_at_all() {
        let io = "rchar: 3000\nwchar: 0\nread_bytes: 8192\nwrite_bytes: 4096\n";
        assert_eq!(read_bytes(io), Some(8192));
        assert_eq!(read_bytes("rchar: 3000\n"), None);
    }
}
