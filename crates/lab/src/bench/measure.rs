//! One trial: a fresh server, a client, the window between two edges, figures.
//!
//! [`super::Bench::compete`] calls it through the contestants.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::Bench;
use crate::load::{Load, Source};
use crate::nbd::Connection;
use crate::noise::{self, Look, Noise};
use crate::report::Figures;
use crate::server::{Launch, Server, ended_cpu_time, own_cpu_time};
use crate::tally::{Edge, Tally, Until};
use crate::vhost::{Station, Vm, VmOptions, Wait};

/// CPU clocks and the machine, seen at both edges of the window.
pub(super) struct Watch<'a> {
    server: &'a Server,
    seen: Vec<Result<Seen>>,
}

struct Seen {
    server: Duration,
    client: Duration,
    machine: Look,
    resident_bytes: u64,
}

impl<'a> Watch<'a> {
    pub(super) fn new(server: &'a Server) -> Self {
        Self {
            server,
            seen: Vec::with_capacity(2),
        }
    }

    pub(super) fn look(&mut self, _edge: Edge) {
        let seen = self.server.cpu_time().and_then(|server| {
            Ok(Seen {
                server,
                client: own_cpu_time()?,
                machine: noise::look()?,
                // While the guest is there: some servers leave with it.
                resident_bytes: self.server.resident()?,
            })
        });
        self.seen.push(seen);
    }

    pub(super) fn figures(self, tallies: &[Tally]) -> Result<Figures> {
        let mut seen = self.seen.into_iter();
        let (Some(open), Some(close)) = (seen.next().transpose()?, seen.next().transpose()?) else {
            bail!("the window was not opened and closed");
        };
        let spent = Spent {
            server: close.server.saturating_sub(open.server),
            client: close.client.saturating_sub(open.client),
        };
        let own = spent.server + spent.client;
        let noise = noise::between(&open.machine, &close.machine, own);
        figures(self.server, tallies, &spent, close.resident_bytes, noise)
    }
}

/// CPU time within a window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    /// The server's.
    pub(super) server: Duration,
    /// The client's.
    pub(super) client: Duration,
}

/// What came of a window: the tallies of its queues, what it took, and the server's memory at its end.
///
/// # Errors
/// A request was answered with an error, or none was answered.
pub(super) fn figures(
    server: &Server,
    tallies: &[Tally],
    spent: &Spent,
    resident_bytes: u64,
    noise: Noise,
) -> Result<Figures> {
    let all = Tally::sum(tallies);
    if all.errors > 0 {
        bail!(
            "{} answered {} requests with an error",
            server.last_words(),
            all.errors
        );
    }
    if all.completed == 0 {
        bail!("the server answered nothing within the window");
    }
    let seconds = all.elapsed.as_secs_f64();
    let percent = |spent: Duration| spent.as_secs_f64() / seconds * 100.0;
    Ok(Figures {
        iops: all.iops(),
        p50_us: all.percentile_us(50.0),
        p99_us: all.percentile_us(99.0),
        p999_us: all.percentile_us(99.9),
        cpu_percent_per_kiops: percent(spent.server) / (all.iops() / 1000.0),
        client_percent: percent(spent.client),
        unfairness: unfairness(tallies),
        resident_bytes,
        noise,
        ..Figures::default()
    })
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

/// Starts a server and drives it by one guest per socket, 4 KiB random reads, `depth` in flight each.
///
/// # Errors
/// The server or a guest fails.
pub fn vhost(bench: &Bench, launch: &Launch, depth: u16) -> Result<Figures> {
    let server = Server::start(launch, bench.scratch.path())?;
    let figures = guests(bench, &server, &launch.sockets, depth)?;
    server.stop()?;
    Ok(figures)
}

/// Drives a running server by one guest per socket.
///
/// # Errors
/// The server or a guest fails.
pub fn guests(bench: &Bench, server: &Server, sockets: &[PathBuf], depth: u16) -> Result<Figures> {
    let until = Until::Time(bench.warm, bench.span);
    asked(server, sockets, &Ask::random_reads(depth), until)
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

/// The same with another load.
///
/// # Errors
/// The server or a guest fails.
pub fn asked(server: &Server, sockets: &[PathBuf], ask: &Ask, until: Until) -> Result<Figures> {
    let mut watch = Watch::new(server);
    let tallies = drive(sockets, ask, until, &mut |edge| watch.look(edge))?;
    watch.figures(&tallies)
}

/// One guest per socket, all driven from this thread. `probe` is called at the edges of the window.
///
/// # Errors
/// A server is not there, breaks the protocol, or is silent.
pub fn drive(
    sockets: &[PathBuf],
    ask: &Ask,
    until: Until,
    probe: &mut dyn FnMut(Edge),
) -> Result<Vec<Tally>> {
    let (mut station, mut sources) = station(sockets, ask)?;
    station.run(&mut sources, until, probe)
}

/// One guest per socket, and what each of their queues asks for.
///
/// # Errors
/// A server is not there, or breaks the protocol.
pub(super) fn station(sockets: &[PathBuf], ask: &Ask) -> Result<(Station, Vec<Source>)> {
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
    Ok((Station::new(vms, ask.wait), sources))
}

/// Starts a server and drives it by one NBD connection, 4 KiB random reads.
///
/// # Errors
/// The server or the connection fails.
pub fn nbd(
    bench: &Bench,
    launch: &Launch,
    socket: &Path,
    export: &str,
    depth: u16,
) -> Result<Figures> {
    let server = Server::start(launch, bench.scratch.path())?;
    let mut connection = Connection::open(socket, export, depth, 4096, None)?;
    let mut source = Source::new(Load::random_reads(depth, connection.export().size));
    let mut watch = Watch::new(&server);
    let until = Until::Time(bench.warm, bench.span);
    let tally = connection.run(&mut source, until, &mut |edge| watch.look(edge))?;
    let figures = watch.figures(&[tally])?;
    drop(connection);
    server.stop()?;
    Ok(figures)
}

/// Runs fio on the file itself.
///
/// # Errors
/// fio fails.
pub fn fio(bench: &Bench, file: &Path, depth: u16) -> Result<Figures> {
    let used = || Ok::<_, anyhow::Error>(own_cpu_time()? + ended_cpu_time()?);
    let (before, spent) = (noise::look()?, used()?);
    let mut figures = crate::fio::random_reads(
        file,
        depth,
        bench.warm,
        bench.span,
        bench.options.server_cpu,
    )?;
    let after = noise::look().context("after fio")?;
    figures.noise = noise::between(&before, &after, used()?.saturating_sub(spent));
    Ok(figures)
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
