//! Measurements of servers: one trial is a server, a client, a window between two edges, and figures.
//!
//! The bench's scenarios and A/B tests are made of it.
//!
//! # Units
//! - As the names say; CPU in percent of one core.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::machine::{self, Look, Noise};
use tidegate_testing::load::{Load, Source};
use tidegate_testing::server::{Server, ended_cpu_time, own_cpu_time};
use tidegate_testing::stamp;
use tidegate_testing::tally::{Edge, Tally, Until};
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

/// One trial's figures. A latency that was not measured is no number.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Requests per second.
    pub iops: f64,
    /// Median latency.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// The server's CPU: percent of a core per 1,000 requests per second.
    pub cpu_percent_per_kiops: f64,
    /// The client's CPU in percent of its core: near 100 it may be the limit.
    pub client_percent: f64,
    /// With many guests: the fastest one's IOPS by the slowest one's.
    pub unfairness: f64,
    /// The server's resident memory at the end.
    pub resident_bytes: u64,
    /// The round trip of a cache line between client and server after the trial; 0 where it was not measured.
    pub apart_ns: f64,
    /// CPU time that others took.
    pub noise: Noise,
    /// The part of its requests that was lost in dips; 0 where none were looked for.
    pub lost: f64,
}

/// How busy the machine is from its start on.
pub struct Meter {
    look: Look,
    spent: Duration,
}

impl Meter {
    /// Begins now.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn start() -> Result<Self> {
        Ok(Self {
            look: machine::look()?,
            spent: used()?,
        })
    }

    /// Ends: the noise, and the CPU time of this process and its ended programs. `more` is other CPU time of the trial.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn end(self, more: Duration) -> Result<(Noise, Duration)> {
        let own = used()?.saturating_sub(self.spent);
        let noise = machine::between(&self.look, &machine::look()?, own + more);
        Ok((noise, own))
    }
}

/// CPU time of this process and of its programs that have ended.
fn used() -> Result<Duration> {
    Ok(own_cpu_time()? + ended_cpu_time()?)
}

/// CPU time within a window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// The server's.
    pub server: Duration,
    /// The client's.
    pub client: Duration,
}

impl Spent {
    fn until_now(server: &Server) -> Result<Self> {
        Ok(Self {
            server: server.cpu_time()?,
            client: own_cpu_time()?,
        })
    }
}

/// Lets `run` drive clients of a server. It reads the CPU clocks by the function that it gets, at the window's edges.
///
/// # Errors
/// A client fails, or the server is gone.
pub fn window(
    server: &Server,
    run: impl FnOnce(&mut dyn FnMut(Edge)) -> Result<Vec<Tally>>,
) -> Result<(Vec<Tally>, Spent)> {
    let mut clocks = Vec::with_capacity(2);
    let tallies = run(&mut |_| clocks.push(Spent::until_now(server)))?;
    let [open, close] = <[_; 2]>::try_from(clocks)
        .map_err(|_| anyhow::anyhow!("a window was not opened and closed"))?;
    let (open, close) = (open?, close?);
    let spent = Spent {
        server: close.server.saturating_sub(open.server),
        client: close.client.saturating_sub(open.client),
    };
    Ok((tallies, spent))
}

/// The sum of a trial's slices, or of its only window.
#[derive(Debug, Default)]
pub struct Slices {
    tallies: Vec<Tally>,
    spent: Spent,
}

impl Slices {
    /// Adds a slice.
    pub fn add(&mut self, tallies: &[Tally], spent: Spent) {
        self.spent.server += spent.server;
        self.spent.client += spent.client;
        self.tallies.resize_with(tallies.len(), Tally::default);
        for (all, slice) in self.tallies.iter_mut().zip(tallies) {
            all.follow(slice);
        }
    }

    /// The figures of all slices. A server has memory, too.
    ///
    /// # Errors
    /// A request was answered with an error, or none was answered.
    pub fn figures(&self, server: Option<&Server>, noise: Noise) -> Result<Figures> {
        let all = Tally::sum(&self.tallies);
        if all.errors > 0 {
            let server = server.map_or(String::new(), Server::log_tail);
            bail!("{server} answered {} requests with an error", all.errors);
        }
        if all.completed == 0 {
            bail!("the server answered nothing within the window");
        }
        let seconds = all.elapsed.as_secs_f64();
        let percent = |spent: Duration| spent.as_secs_f64() / seconds * 100.0;
        let latency = |part| match all.latency.is_empty() {
            true => f64::NAN,
            false => all.percentile_us(part),
        };
        Ok(Figures {
            iops: all.iops(),
            p50_us: latency(50.0),
            p99_us: latency(99.0),
            p999_us: latency(99.9),
            cpu_percent_per_kiops: percent(self.spent.server) / (all.iops() / 1000.0),
            client_percent: percent(self.spent.client),
            unfairness: unfairness(&self.tallies),
            resident_bytes: server.map_or(Ok(0), Server::resident)?,
            noise,
            ..Figures::default()
        })
    }
}

/// The fastest queue's IOPS by the slowest one's.
fn unfairness(tallies: &[Tally]) -> f64 {
    let fastest = tallies.iter().map(Tally::iops).fold(0.0, f64::max);
    let slowest = tallies
        .iter()
        .map(Tally::iops)
        .fold(f64::INFINITY, f64::min);
    fastest / slowest.max(1e-9)
}

/// What each guest asks for.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Of each queue; where in the disk, and its chances, are the guest's.
    pub load: Load,
    /// How many queues.
    pub queues: u16,
    /// Whether it sleeps on its interrupts.
    pub wait: Wait,
}

impl Ask {
    /// 4 KiB random reads, so many in flight on one queue, by one who sleeps on its interrupt: the bench's usual.
    #[must_use]
    pub fn random_reads(depth: u16) -> Self {
        Self {
            load: Load::random_reads(depth, 0),
            queues: 1,
            wait: Wait::Sleep,
        }
    }

    /// The same with other chances.
    #[must_use]
    pub fn elsewhere(&self, number: u64) -> Self {
        let mut ask = self.clone();
        // Each queue has one of its own, counted on from the first.
        ask.load.seed += number << 32;
        ask
    }
}

/// Drives a running server by one guest per socket.
///
/// # Errors
/// The server or a guest fails.
pub fn asked(server: &Server, sockets: &[PathBuf], ask: &Ask, until: Until) -> Result<Figures> {
    let (meter, had) = (Meter::start()?, server.cpu_time()?);
    let (mut driver, mut sources) = driver(sockets, ask)?;
    let (tallies, spent) = window(server, |probe| driver.run(&mut sources, until, probe))?;
    let took = server.cpu_time()?.saturating_sub(had);
    let mut slices = Slices::default();
    slices.add(&tallies, spent);
    slices.figures(Some(server), meter.end(took)?.0)
}

/// One guest per socket, and what each of their queues asks for.
///
/// # Errors
/// A server is not there, or breaks the protocol.
pub fn driver(sockets: &[PathBuf], ask: &Ask) -> Result<(GuestDriver, Vec<Source>)> {
    let connect = |socket: &PathBuf| {
        Vm::connect(VmOptions {
            queues: ask.queues,
            block: ask.load.block,
            ..VmOptions::new(socket, ask.load.depth)
        })
    };
    let vms = sockets.iter().map(connect).collect::<Result<Vec<_>>>()?;
    let queues = vms
        .iter()
        .flat_map(|vm| (0..ask.queues).map(|_| vm.config().size));
    let sources = queues
        .zip(ask.load.seed..)
        .map(|(length, seed)| {
            Source::new(Load {
                seed,
                length,
                ..ask.load.clone()
            })
        })
        .collect();
    Ok((GuestDriver::new(vms, ask.wait), sources))
}

/// Makes a test file: wholly written, with bytes that are not zeroes.
///
/// # Errors
/// The directory is full or not writable.
pub fn test_file(dir: &Path, mib: u64) -> Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new_in(dir)
        .with_context(|| format!("cannot make a test file in {}", dir.display()))?;
    let mut block = vec![0; 1 << 20];
    for index in 0..mib {
        stamp::fill(&mut block, index << 20, 1);
        file.write_all(&block)
            .with_context(|| format!("cannot write {mib} MiB in {}", dir.display()))?;
    }
    let synced = file.as_file().sync_all();
    synced.context("cannot sync the test file")?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfairness_is_the_fastest_by_the_slowest() {
        let tally = |completed| Tally {
            completed,
            elapsed: Duration::from_secs(1),
            ..Tally::default()
        };
        assert_eq!(unfairness(&[tally(100), tally(80), tally(90)]), 1.25);
        assert_eq!(unfairness(&[tally(100)]), 1.0);
    }
}
