//! The servers of an A/B test, the file that some of them serve, and one trial after the other.
//!
//! A trial has a new server. A Tidegate with many disks is a daemon with its own root. The command line sets it up once, as an
//! administrator would; each trial starts it again, and it attaches the same disks.
//!
//! # Always true
//! - Server and client have a processor each, the same two for all contestants. Idle processors stay awake for all or for none.
//! - A file is read and written on the CPU that gets its disk's interrupts ([`machine::interrupt_cpu`]), by fio on the bare
//!   file too: no contestant uses a second processor.
//! - Servers and files are gone once the value is dropped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;
use tempfile::{NamedTempFile, TempDir};

use super::guest::{self, Kit};
use super::store::Trial;
use super::{AbTest, Client, Contestant, Server, Store, Work, there};
use crate::fio::{self, Job, Target};
use crate::host::{Host, HostOptions, daemon};
use crate::interleaved::{self, BRIEF, Started};
use crate::machine::{self, Held, IdleCpus};
use crate::measure::{self, Ask, Figures, Meter};
use tidegate_testing::load::{Load, Pattern};
use tidegate_testing::peers::{self, Tidegate};
use tidegate_testing::server::{self, Launch};
use tidegate_testing::tally::Until;
use tidegate_testing::vhost::Wait;

/// Datastore and disks of a daemon, by their names there.
const DATASTORE: &str = "contest";

/// See the module.
#[derive(Debug)]
pub(in crate::experiment) struct Servers {
    program: PathBuf,
    scratch: TempDir,
    server_cpu: usize,
    client_cpu: usize,
    file: Option<NamedTempFile>,
    file_bytes: u64,
    /// Daemons that are set up.
    fleets: BTreeMap<String, Launch>,
    kit: Option<Kit>,
    /// Set to end a guest, or servers that run side by side, early.
    pub(in crate::experiment) stop: AtomicBool,
    /// Keeps idle processors awake, if this program is allowed to.
    awake: Option<Held>,
}

/// How long a trial warms up and is measured, and its seed.
#[derive(Clone, Copy, Debug)]
pub(in crate::experiment) struct Window {
    pub(in crate::experiment) warm: Duration,
    pub(in crate::experiment) span: Duration,
    pub(in crate::experiment) seed: u64,
}

impl Servers {
    /// Servers without trials yet.
    ///
    /// # Errors
    /// The machine has one processor, or no scratch directory can be made.
    pub(in crate::experiment) fn new(program: &Path, ab_test: &AbTest) -> Result<Servers> {
        let interrupts = ab_test
            .on_disk()
            .then(|| machine::interrupt_cpu(&std::env::temp_dir()))
            .flatten();
        let (server_cpu, client_cpu) = two_processors(interrupts)?;
        let file_bytes = ab_test.rules.file;
        Ok(Servers {
            program: program.to_owned(),
            scratch: tempfile::tempdir().context("cannot make a scratch directory")?,
            server_cpu,
            client_cpu,
            file: None,
            file_bytes,
            fleets: BTreeMap::new(),
            kit: None,
            stop: AtomicBool::new(false),
            awake: IdleCpus::Within(0).hold().ok().flatten(),
        })
    }

    /// Whether a contestant can take part here; why not, where it cannot.
    pub(in crate::experiment) fn lacks(&mut self, contestant: &Contestant) -> Option<String> {
        let mut needs = vec!["taskset"];
        if contestant.server == Server::StorageDaemon {
            needs.push("qemu-storage-daemon");
        }
        match contestant.client {
            Client::VhostUser => {}
            Client::Fio | Client::FioNbd => needs.push("fio"),
            Client::Guest => {
                if self.kit.is_none() {
                    match Kit::find(&self.program, self.scratch.path()) {
                        Ok(kit) => self.kit = Some(kit),
                        Err(error) => return Some(format!("{error:#}")),
                    }
                }
            }
        }
        let missing = needs.into_iter().find(|program| !there(program));
        missing.map(|program| format!("{program} is not installed"))
    }

    /// Makes what trials need and lasts longer than one of them.
    pub(in crate::experiment) fn prepare(
        &mut self,
        contestant: &Contestant,
        work: &Work,
    ) -> Result<()> {
        if contestant.store == Store::File {
            if self.file.is_none() {
                let mib = (self.file_bytes >> 20).max(1);
                self.file = Some(measure::test_file(&std::env::temp_dir(), mib)?);
            }
            return Ok(());
        }
        let key = fleet_key(contestant, work);
        if contestant.server == Server::Tidegate && !self.fleets.contains_key(&key) {
            let fleet = self.fleet(&key, contestant, work)?;
            self.fleets.insert(key, fleet);
        }
        Ok(())
    }

    /// One trial of a contestant.
    ///
    /// # Errors
    /// A server or whoever asks fails.
    pub(in crate::experiment) fn trial(
        &self,
        contestant: &Contestant,
        work: &Work,
        window: Window,
    ) -> Result<Trial> {
        server::pin(self.client_cpu)?;
        let mut trial = match contestant.client {
            Client::VhostUser => self.guests(contestant, work, window)?,
            Client::Fio => self.bare(work, window)?,
            Client::FioNbd => self.nbd(contestant, work, window)?,
            Client::Guest => self.guest(contestant, work, window)?,
        };
        trial.contestant = contestant.name.clone();
        trial.size = work.size;
        trial.awake = self.awake.is_some();
        Ok(trial)
    }

    /// A trial of each of these at once: their servers run side by side, and are measured in slices.
    ///
    /// # Errors
    /// A server or a guest fails, or [`Servers::stop`] was set.
    pub(in crate::experiment) fn side_by_side(
        &self,
        contestants: &[&Contestant],
        work: &Work,
        window: Window,
    ) -> Result<Vec<Trial>> {
        server::pin(self.client_cpu)?;
        let ask = ask(work, window);
        let started = contestants.iter().enumerate().map(|(number, contestant)| {
            let launch = self.launch(contestant, work)?;
            let scratch = self.path(&format!("side{number}"));
            Started::start(&contestant.name, &launch, &launch.sockets, &scratch, &ask)
                .with_context(|| contestant.name.clone())
        });
        let started = started.collect::<Result<Vec<_>>>()?;
        let stop = || self.stop.load(Ordering::Relaxed);
        let figures = interleaved::in_slices(started, BRIEF, (window.warm, window.span), &stop)?;
        let trials = contestants.iter().zip(figures);
        let trials = trials.map(|(contestant, figures)| Trial {
            contestant: contestant.name.clone(),
            size: work.size,
            awake: self.awake.is_some(),
            ..counted(&figures, work)
        });
        Ok(trials.collect())
    }

    fn guests(&self, contestant: &Contestant, work: &Work, window: Window) -> Result<Trial> {
        let launch = self.launch(contestant, work)?;
        let server = server::Server::start(&launch, self.scratch.path())?;
        let until = Until::Time(window.warm, window.span);
        let figures = measure::asked(&server, &launch.sockets, &ask(work, window), until)?;
        server.stop()?;
        Ok(counted(&figures, work))
    }

    fn bare(&self, work: &Work, window: Window) -> Result<Trial> {
        let job = self.job(Target::File(self.file()?), work, window);
        let meter = Meter::start()?;
        let done = fio::run(&job, self.server_cpu)?;
        let (noise, _) = meter.end(Duration::ZERO)?;
        Ok(Trial {
            noise: noise.into(),
            ..asked(&done)
        })
    }

    fn nbd(&self, contestant: &Contestant, work: &Work, window: Window) -> Result<Trial> {
        let socket = self.path("nbd.sock");
        let launch = self.serve_one(contestant, None, Some(&socket))?;
        self.served(&launch, window, || {
            let job = self.job(Target::Nbd(&socket), work, window);
            let done = fio::run(&job, self.client_cpu)?;
            Ok(asked(&done))
        })
    }

    fn guest(&self, contestant: &Contestant, work: &Work, window: Window) -> Result<Trial> {
        let kit = self.kit.as_ref().context("the guest was not prepared")?;
        let socket = self.path("vhost.sock");
        let launch = self.serve_one(contestant, Some(&socket), None)?;
        self.served(&launch, window, || {
            let job = self.job(Target::File(Path::new(guest::DISK)), work, window);
            let done = kit.run(
                &job,
                &socket,
                self.client_cpu,
                self.scratch.path(),
                &self.stop,
            )?;
            Ok(Trial {
                // Of QEMU's processor time most is the guest's boot.
                client_percent: None,
                emulated: kit.emulates(),
                ..asked(&done)
            })
        })
    }

    /// What another process asked of a server: its processor time is read before and after that process, in which it
    /// does nothing but answer.
    fn served(
        &self,
        launch: &Launch,
        window: Window,
        ask: impl FnOnce() -> Result<Trial>,
    ) -> Result<Trial> {
        let server = server::Server::start(launch, self.scratch.path())?;
        let (meter, had) = (Meter::start()?, server.cpu_time()?);
        let trial = ask()?;
        let took = server.cpu_time()?.saturating_sub(had);
        let (noise, _) = meter.end(took)?;
        let resident_bytes = server.resident()?;
        server.stop()?;
        let seconds = (window.warm + window.span).as_secs_f64();
        Ok(Trial {
            server_percent: took.as_secs_f64() / seconds * 100.0,
            resident_bytes,
            noise: noise.into(),
            ..trial
        })
    }

    fn job<'a>(&self, target: Target<'a>, work: &Work, window: Window) -> Job<'a> {
        Job {
            target,
            size: work.size,
            reads: work.reads,
            random: work.random,
            flush_every: work.flush_every,
            jobs: work.queues,
            depth: work.outstanding,
            warm: window.warm,
            span: window.span,
        }
    }

    /// How a contestant's server is started.
    fn launch(&self, contestant: &Contestant, work: &Work) -> Result<Launch> {
        if contestant.server == Server::Tidegate && contestant.store != Store::File {
            let fleet = self.fleets.get(&fleet_key(contestant, work));
            return fleet.cloned().context("the daemon was not prepared");
        }
        let socket = |vm| self.path(&format!("vhost{vm}-{}.sock", super::slug(&contestant.name)));
        let sockets: Vec<PathBuf> = (0..work.vms).map(socket).collect();
        if contestant.server == Server::StorageDaemon {
            let store = match contestant.store {
                Store::Null => peers::Store::Null,
                Store::Memory => peers::Store::Memory,
                Store::File => peers::Store::File(self.file()?.to_owned()),
            };
            return Ok(peers::storage_daemon(&store, &sockets, self.server_cpu));
        }
        match sockets.as_slice() {
            [socket] => self.serve_one(contestant, Some(socket), None),
            _ => bail!("one file is one disk: {} VMs cannot share it", work.vms),
        }
    }

    /// A Tidegate that serves the file and nothing else.
    fn serve_one(
        &self,
        contestant: &Contestant,
        vhost: Option<&Path>,
        nbd: Option<&Path>,
    ) -> Result<Launch> {
        let options = Tidegate {
            program: self.program.clone(),
            store: peers::Store::File(self.file()?.to_owned()),
            filters: contestant.filters.clone(),
            poll_us: None,
        };
        Ok(peers::tidegate(
            &contestant.name,
            &options,
            vhost,
            nbd,
            self.server_cpu,
        ))
    }

    /// Sets a daemon up with a disk for each VM, and stops it again.
    fn fleet(&self, key: &str, contestant: &Contestant, work: &Work) -> Result<Launch> {
        let root = self.path(key);
        let host = Host::start(&HostOptions {
            program: &self.program,
            name: key,
            root: &root,
            // No dashboard: its port may be another daemon's.
            config: "version = 1\n[io]\nthreads = 1\n[dashboard]\nlisten = \"off\"\n",
            cpu: Some(self.server_cpu),
            own_group: false,
        })?;
        let kind = match contestant.store {
            Store::Memory => "memory",
            _ => "null",
        };
        host.run(&["datastore", "add", DATASTORE, "--kind", kind])?;
        let mut filters = Vec::new();
        if contestant.filters.is_empty() {
            filters.push("--no-filters");
        }
        for filter in &contestant.filters {
            filters.extend(["--filter", filter]);
        }
        let disks =
            (0..work.vms).map(|vm| host.create_disk(&format!("vm{vm}"), DATASTORE, &filters));
        let sockets = disks.collect::<Result<_>>()?;
        host.stop()?;
        let cpu = Some(self.server_cpu);
        Ok(daemon(&self.program, &root, sockets, cpu))
    }

    fn file(&self) -> Result<&Path> {
        let file = self.file.as_ref().context("the file was not made")?;
        Ok(file.path())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

/// The load of our own guests.
fn ask(work: &Work, window: Window) -> Ask {
    Ask {
        load: Load {
            pattern: match work.random {
                true => Pattern::Random,
                false => Pattern::Sequential,
            },
            read_percent: work.reads,
            block: work.size,
            flush_every: work.flush_every,
            seed: window.seed,
            ..Load::random_reads(work.outstanding, 0)
        },
        queues: work.queues,
        wait: Wait::Sleep,
    }
}

/// Each number of VMs has a root of its own.
fn fleet_key(contestant: &Contestant, work: &Work) -> String {
    format!("{}-{}", super::slug(&contestant.name), work.vms)
}

/// The first two processors that this program may use: the server's and the client's. The server has the one that takes a
/// disk's interrupts, if that is among them.
fn two_processors(interrupts: Option<usize>) -> Result<(usize, usize)> {
    let allowed =
        sched_getaffinity(Pid::from_raw(0)).context("cannot ask which processors may be used")?;
    let count = nix::sched::CpuSet::count();
    let mut allowed = (0..count).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    match (allowed.next(), allowed.next()) {
        (Some(client), Some(server)) if interrupts == Some(server) => Ok((server, client)),
        (Some(server), Some(client)) => Ok((server, client)),
        _ => bail!("server and client need a processor each, and this program may use one only"),
    }
}

/// The part of our guests' requests that are not flushes. fio counts only those.
fn data_part(work: &Work) -> f64 {
    match (work.flush_every, work.reads) {
        (0, _) | (_, 100) => 1.0,
        (every, _) => f64::from(every) / (f64::from(every) + 1.0),
    }
}

/// What our own guests measured.
fn counted(figures: &Figures, work: &Work) -> Trial {
    Trial {
        iops: figures.iops * data_part(work),
        p50_us: figures.p50_us,
        p99_us: figures.p99_us,
        server_percent: figures.cpu_percent_per_kiops * figures.iops / 1_000.0,
        client_percent: Some(figures.client_percent),
        unfairness: figures.unfairness,
        resident_bytes: figures.resident_bytes,
        noise: figures.noise.into(),
        ..Trial::default()
    }
}

/// What fio measured.
fn asked(done: &fio::Done) -> Trial {
    Trial {
        iops: done.iops,
        p50_us: done.p50_us,
        p99_us: done.p99_us,
        client_percent: Some(done.cpu_percent),
        unfairness: 1.0,
        ..Trial::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_are_not_counted_as_requests() {
        let figures = Figures {
            iops: 900.0,
            cpu_percent_per_kiops: 10.0,
            ..Figures::default()
        };
        for (reads, flush_every, iops) in [(0, 8, 800.0), (0, 0, 900.0), (100, 8, 900.0)] {
            let work = Work {
                reads,
                flush_every,
                ..Work::default()
            };
            let trial = counted(&figures, &work);
            assert_eq!((trial.iops, trial.server_percent), (iops, 9.0));
        }
    }

    #[test]
    fn a_server_is_where_the_disks_interrupts_come() {
        let Ok((first, second)) = two_processors(None) else {
            return;
        };
        let elsewhere = first.max(second) + 1;
        for (interrupts, servers) in [(first, first), (second, second), (elsewhere, first)] {
            let (server, client) = two_processors(Some(interrupts)).expect("there are two");
            assert_eq!(server, servers);
            assert_eq!(client, first + second - servers);
        }
    }
}
