//! A started variant: a server with its clients, or fio on the file itself, which is stopped between its slices.
//!
//! # Always true
//! - A variant works in its slices only. The window begins some time after the slice, and ends before it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Slice;
use crate::machine::Noise;
use crate::measure::{self, Ask, Figures, Slices, Spent};
use tidegate_testing::fio;
use tidegate_testing::load::{Load, Source};
use tidegate_testing::nbd::Connection;
use tidegate_testing::server::{Launch, Server};
use tidegate_testing::tally::{Tally, Until};
use tidegate_testing::vhost::GuestDriver;

/// A variant that runs.
pub struct Started {
    name: String,
    work: Work,
    slices: Slices,
}

/// Who works.
enum Work {
    /// Guests of a server.
    Guests(GuestDriver, Vec<Source>, Server),
    /// An NBD client of a server.
    Nbd(Box<Connection>, Source, Server),
    /// fio. It has no latencies: its own include the times in which it was stopped.
    Fio(fio::Running),
}

impl Started {
    fn new(name: &str, work: Work) -> Self {
        Self {
            name: name.to_owned(),
            work,
            slices: Slices::default(),
        }
    }

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
        Self::of(name, Server::start(launch, scratch)?, sockets, ask)
    }

    /// Connects one guest per socket to a running server.
    ///
    /// # Errors
    /// The server does not take its guests.
    pub fn of(name: &str, server: Server, sockets: &[PathBuf], ask: &Ask) -> Result<Self> {
        let (driver, sources) = measure::driver(sockets, ask)?;
        Ok(Self::new(name, Work::Guests(driver, sources, server)))
    }

    /// Connects an NBD client to an export of a running server.
    ///
    /// # Errors
    /// The server does not take it.
    pub fn nbd(
        name: &str,
        server: Server,
        socket: &Path,
        export: &str,
        load: &Load,
    ) -> Result<Self> {
        let connection = Connection::open(socket, export, load.depth, load.block, None)?;
        let connection = Box::new(connection);
        let source = Source::new(Load {
            length: connection.export().size,
            ..load.clone()
        });
        Ok(Self::new(name, Work::Nbd(connection, source, server)))
    }

    /// Starts fio with the same load on `file`, and stops it.
    ///
    /// # Errors
    /// fio does not start.
    pub fn fio(name: &str, file: &Path, ask: &Ask, cpu: usize) -> Result<Self> {
        let job = fio::random_reads_of(file, ask.load.depth);
        Ok(Self::new(name, Work::Fio(fio::Running::start(&job, cpu)?)))
    }

    pub(super) fn warm(&mut self, span: Duration) -> Result<()> {
        let before = Duration::ZERO;
        let unmeasured = self.work.run(Slice { before, span });
        unmeasured.map(drop).with_context(|| self.name.clone())
    }

    pub(super) fn slice(&mut self, slice: Slice) -> Result<()> {
        let (tallies, spent) = self.work.run(slice).with_context(|| self.name.clone())?;
        self.slices.add(&tallies, spent);
        Ok(())
    }

    /// CPU time until now without that of this process.
    pub(super) fn spent(&self) -> Result<Duration> {
        match &self.work {
            Work::Guests(.., server) | Work::Nbd(.., server) => server.cpu_time(),
            Work::Fio(fio) => fio.cpu_time(),
        }
    }

    /// Ends it; the figures of its slices.
    pub(super) fn end(self, noise: Noise) -> Result<Figures> {
        let figures = |server| {
            let figures = self.slices.figures(server, noise);
            figures.with_context(|| self.name.clone())
        };
        match self.work {
            Work::Guests(driver, _, server) => {
                let figures = figures(Some(&server))?;
                drop(driver);
                server.stop()?;
                Ok(figures)
            }
            Work::Nbd(connection, _, server) => {
                let figures = figures(Some(&server))?;
                drop(connection);
                server.stop()?;
                Ok(figures)
            }
            Work::Fio(_) => figures(None),
        }
    }
}

impl Work {
    /// Works for one slice.
    fn run(&mut self, slice: Slice) -> Result<(Vec<Tally>, Spent)> {
        let until = Until::Time(slice.before, slice.span);
        match self {
            Work::Guests(driver, sources, server) => {
                measure::window(server, |probe| driver.run(sources, until, probe))
            }
            Work::Nbd(connection, source, server) => measure::window(server, |probe| {
                Ok(vec![connection.run(source, until, probe)?])
            }),
            Work::Fio(fio) => {
                fio.go_on()?;
                std::thread::sleep(slice.before);
                let (requests, cpu, begun) = (fio.requests()?, fio.cpu_time()?, Instant::now());
                std::thread::sleep(slice.span);
                let tally = Tally {
                    completed: fio.requests()? - requests,
                    elapsed: begun.elapsed(),
                    ..Tally::default()
                };
                let spent = Spent {
                    server: fio.cpu_time()?.saturating_sub(cpu),
                    client: Duration::ZERO,
                };
                fio.halt()?;
                Ok((vec![tally], spent))
            }
        }
    }
}
