//! A started variant: a server with its guests, or fio on the file itself, which is stopped between its slices.
//!
//! # Always true
//! - A variant works in its slices only. The window begins some time after the slice, and ends before it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Slice;
use crate::fio;
use crate::machine::Noise;
use crate::measure::{self, Ask, Figures, Spent};
use tidegate_testing::load::Source;
use tidegate_testing::server::{Launch, Server, own_cpu_time};
use tidegate_testing::tally::{Edge, Tally, Until};
use tidegate_testing::vhost::GuestDriver;

/// The sum of a variant's slices in a block.
#[derive(Debug, Default)]
pub struct Slices {
    tallies: Vec<Tally>,
    spent: Spent,
}

impl Slices {
    /// Adds a slice: guests load a server for so long.
    ///
    /// # Errors
    /// A guest fails.
    pub fn add(
        &mut self,
        server: &Server,
        (driver, sources): (&mut GuestDriver, &mut [Source]),
        slice: Slice,
    ) -> Result<()> {
        let mut clocks = Vec::with_capacity(2);
        let mut look = |_: Edge| clocks.push(spent(server));
        let tallies = driver.run(sources, Until::Time(slice.before, slice.span), &mut look)?;
        let [open, close] = <[_; 2]>::try_from(clocks)
            .map_err(|_| anyhow::anyhow!("a slice was not opened and closed"))?;
        let (open, close) = (open?, close?);
        self.spent.server += close.server.saturating_sub(open.server);
        self.spent.client += close.client.saturating_sub(open.client);
        self.tallies.resize_with(tallies.len(), Tally::default);
        for (all, slice) in self.tallies.iter_mut().zip(&tallies) {
            all.follow(slice);
        }
        Ok(())
    }

    /// The figures of all slices.
    ///
    /// # Errors
    /// A request was answered with an error, or none was answered.
    pub fn figures(&self, server: &Server, noise: Noise) -> Result<Figures> {
        let resident = server.resident()?;
        measure::figures(server, &self.tallies, &self.spent, resident, noise)
    }
}

/// A variant that runs.
pub struct Started {
    name: String,
    work: Box<dyn Work>,
}

/// What both kinds can do.
trait Work {
    /// Works for so long, unmeasured.
    fn warm(&mut self, span: Duration) -> Result<()>;
    /// Works for one slice.
    fn slice(&mut self, slice: Slice) -> Result<()>;
    /// CPU time until now without that of this process.
    fn spent(&self) -> Result<Duration>;
    /// Ends; the figures of its slices.
    fn end(self: Box<Self>, noise: Noise) -> Result<Figures>;
}

/// A server with its guests, and their slices.
struct Served {
    server: Server,
    driver: GuestDriver,
    sources: Vec<Source>,
    slices: Slices,
}

impl Started {
    /// Starts a server, whose log goes to `scratch`, and one guest per socket. No guest works yet.
    ///
    /// # Errors
    /// The server does not start, or does not take its guests.
    pub fn start(
        name: &str,
        launch: &Launch,
        sockets: &[PathBuf],
        scratch: &Path,
        ask: &Ask,
    ) -> Result<Self> {
        std::fs::create_dir_all(scratch)
            .with_context(|| format!("cannot create {}", scratch.display()))?;
        let server = Server::start(launch, scratch)?;
        let (driver, sources) = measure::driver(sockets, ask)?;
        let served = Served {
            server,
            driver,
            sources,
            slices: Slices::default(),
        };
        Ok(Self {
            name: name.to_owned(),
            work: Box::new(served),
        })
    }

    /// Starts fio with the same load on `file`, and stops it.
    ///
    /// # Errors
    /// fio does not start.
    pub fn fio(name: &str, file: &Path, ask: &Ask, cpu: usize) -> Result<Self> {
        let alone = Alone {
            fio: fio::Running::start(&fio::random_reads_of(file, ask.load.depth), cpu)?,
            requests: 0,
            elapsed: Duration::ZERO,
            cpu: Duration::ZERO,
        };
        Ok(Self {
            name: name.to_owned(),
            work: Box::new(alone),
        })
    }

    pub(super) fn warm(&mut self, span: Duration) -> Result<()> {
        self.work.warm(span).with_context(|| self.name.clone())
    }

    pub(super) fn slice(&mut self, slice: Slice) -> Result<()> {
        self.work.slice(slice).with_context(|| self.name.clone())
    }

    /// CPU time until now without that of this process.
    pub(super) fn spent(&self) -> Result<Duration> {
        self.work.spent()
    }

    /// Ends it; the figures of its slices.
    pub(super) fn end(self, noise: Noise) -> Result<Figures> {
        self.work.end(noise)
    }
}

impl Work for Served {
    fn warm(&mut self, span: Duration) -> Result<()> {
        let until = Until::Time(Duration::ZERO, span);
        let _unmeasured = self
            .driver
            .run(&mut self.sources, until, &mut |_: Edge| ())?;
        Ok(())
    }

    fn slice(&mut self, slice: Slice) -> Result<()> {
        let guests = (&mut self.driver, &mut self.sources[..]);
        self.slices.add(&self.server, guests, slice)
    }

    fn spent(&self) -> Result<Duration> {
        self.server.cpu_time()
    }

    fn end(self: Box<Self>, noise: Noise) -> Result<Figures> {
        let figures = self.slices.figures(&self.server, noise)?;
        drop(self.driver);
        self.server.stop()?;
        Ok(figures)
    }
}

/// fio, which works in its slices. It has no latencies: its own include the times in which it was stopped.
struct Alone {
    fio: fio::Running,
    requests: u64,
    elapsed: Duration,
    cpu: Duration,
}

impl Work for Alone {
    fn warm(&mut self, span: Duration) -> Result<()> {
        self.fio.go_on()?;
        std::thread::sleep(span);
        self.fio.halt()
    }

    fn slice(&mut self, slice: Slice) -> Result<()> {
        self.fio.go_on()?;
        std::thread::sleep(slice.before);
        let (requests, cpu, begun) = (self.fio.requests()?, self.fio.cpu_time()?, Instant::now());
        std::thread::sleep(slice.span);
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
