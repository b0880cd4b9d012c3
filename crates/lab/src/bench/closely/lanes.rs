//! Who takes turns: a server with its guests, or fio on the file itself, which is halted and let on.
//!
//! # Always true
//! - Only who has a turn works; what is measured begins some time after it does, and ends before it stops.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Turn;
use crate::bench::measure::{self, Ask, Spent};
use crate::fio;
use crate::load::Source;
use crate::noise::Noise;
use crate::report::Figures;
use crate::server::{Launch, Server, own_cpu_time};
use crate::tally::{Edge, Tally, Until};
use crate::vhost::Station;

/// What a rival's turns of a round came to.
#[derive(Debug, Default)]
pub(in crate::bench) struct Turns {
    tallies: Vec<Tally>,
    spent: Spent,
}

impl Turns {
    /// One more turn: guests ask a server for so long.
    ///
    /// # Errors
    /// A guest fails.
    pub(in crate::bench) fn add(
        &mut self,
        server: &Server,
        (station, sources): (&mut Station, &mut [Source]),
        turn: Turn,
    ) -> Result<()> {
        let mut clocks = Vec::with_capacity(2);
        let mut look = |_: Edge| clocks.push(spent(server));
        let tallies = station.run(sources, Until::Time(turn.before, turn.span), &mut look)?;
        let [open, close] = <[_; 2]>::try_from(clocks)
            .map_err(|_| anyhow::anyhow!("a turn was not opened and closed"))?;
        let (open, close) = (open?, close?);
        self.spent.server += close.server.saturating_sub(open.server);
        self.spent.client += close.client.saturating_sub(open.client);
        self.tallies.resize_with(tallies.len(), Tally::default);
        for (all, turn) in self.tallies.iter_mut().zip(&tallies) {
            all.follow(turn);
        }
        Ok(())
    }

    /// What all of them came to.
    ///
    /// # Errors
    /// A request was answered with an error, or none was answered.
    pub(in crate::bench) fn figures(&self, server: &Server, noise: Noise) -> Result<Figures> {
        let resident = server.resident()?;
        measure::figures(server, &self.tallies, &self.spent, resident, noise)
    }
}

/// Who has turns in a round.
pub(crate) struct Lane {
    name: String,
    racer: Box<dyn Racer>,
}

/// What each of them can do.
trait Racer {
    /// Works for so long, unmeasured.
    fn warm(&mut self, span: Duration) -> Result<()>;
    /// Has one more turn.
    fn turn(&mut self, turn: Turn) -> Result<()>;
    /// CPU time until now, that of this process left out.
    fn spent(&self) -> Result<Duration>;
    /// Ends; what its turns came to.
    fn end(self: Box<Self>, noise: Noise) -> Result<Figures>;
}

/// A server with its guests, and their turns.
struct Served {
    server: Server,
    station: Station,
    sources: Vec<Source>,
    turns: Turns,
}

impl Lane {
    /// Starts a server, whose log goes to `scratch`, and one guest per socket, of whom none asks yet.
    ///
    /// # Errors
    /// The server does not start, or does not take its guests.
    pub(crate) fn start(
        name: &str,
        launch: &Launch,
        sockets: &[PathBuf],
        scratch: &Path,
        ask: &Ask,
    ) -> Result<Self> {
        std::fs::create_dir_all(scratch)
            .with_context(|| format!("cannot create {}", scratch.display()))?;
        let server = Server::start(launch, scratch)?;
        let (station, sources) = measure::station(sockets, ask)?;
        let served = Served {
            server,
            station,
            sources,
            turns: Turns::default(),
        };
        Ok(Self {
            name: name.to_owned(),
            racer: Box::new(served),
        })
    }

    /// Starts fio, which asks `file` for the same, and stops it.
    pub(super) fn alone(name: &str, file: &Path, ask: &Ask, cpu: usize) -> Result<Self> {
        let alone = Alone {
            fio: fio::Running::start(&fio::random_reads_of(file, ask.load.depth), cpu)?,
            requests: 0,
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
        };
        Ok(Self {
            name: name.to_owned(),
            racer: Box::new(alone),
        })
    }

    pub(super) fn warm(&mut self, span: Duration) -> Result<()> {
        self.racer.warm(span).with_context(|| self.name.clone())
    }

    pub(super) fn turn(&mut self, turn: Turn) -> Result<()> {
        self.racer.turn(turn).with_context(|| self.name.clone())
    }

    /// CPU time until now, that of this process left out.
    pub(super) fn spent(&self) -> Result<Duration> {
        self.racer.spent()
    }

    /// Ends it; what its turns came to.
    pub(super) fn end(self, noise: Noise) -> Result<Figures> {
        self.racer.end(noise)
    }
}

impl Racer for Served {
    fn warm(&mut self, span: Duration) -> Result<()> {
        let until = Until::Time(Duration::ZERO, span);
        let _unmeasured = self
            .station
            .run(&mut self.sources, until, &mut |_: Edge| ())?;
        Ok(())
    }

    fn turn(&mut self, turn: Turn) -> Result<()> {
        let guests = (&mut self.station, &mut self.sources[..]);
        self.turns.add(&self.server, guests, turn)
    }

    fn spent(&self) -> Result<Duration> {
        self.server.cpu_time()
    }

    fn end(self: Box<Self>, noise: Noise) -> Result<Figures> {
        let figures = self.turns.figures(&self.server, noise)?;
        drop(self.station);
        self.server.stop()?;
        Ok(figures)
    }
}

/// fio, which works while it has its turn. It tells no latencies: its own would have the times in them in which it was
/// stopped.
struct Alone {
    fio: fio::Running,
    requests: u64,
    elapsed: Duration,
    cpu: Duration,
}

impl Racer for Alone {
    fn warm(&mut self, span: Duration) -> Result<()> {
        self.fio.go_on()?;
        std::thread::sleep(span);
        self.fio.halt()
    }

    fn turn(&mut self, turn: Turn) -> Result<()> {
        self.fio.go_on()?;
        std::thread::sleep(turn.before);
        let (requests, cpu, begun) = (self.fio.requests()?, self.fio.cpu_time()?, Instant::now());
        std::thread::sleep(turn.span);
        self.requests += self.fio.requests()? - requests;
        self.elapsed += begun.elapsed();
        self.cpu += self.fio.cpu_time()?.saturating_sub(cpu);
        self.fio.halt()
    }

    fn spent(&self) -> Result<Duration> {
        self.fio.cpu_time()
    }

    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    fn end(self: Box<Self>, noise: Noise) -> Result<Figures> {
        let seconds = self.elapsed.as_secs_f64();
        let iops = self.requests as f64 / seconds;
        Ok(Figures {
            iops,
            p50_us: f64::NAN,
            p99_us: f64::NAN,
            p999_us: f64::NAN,
            cpu_percent_per_kiops: self.cpu.as_secs_f64() / seconds * 100.0 / (iops / 1000.0),
            noise,
            ..Figures::default()
        })
    }
}

/// CPU time of a server and of this process until now.
fn spent(server: &Server) -> Result<Spent> {
    Ok(Spent {
        server: server.cpu_time()?,
        client: own_cpu_time()?,
    })
}
