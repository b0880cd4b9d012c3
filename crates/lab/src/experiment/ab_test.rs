//! An A/B test (a contest, in its file): several contestants do the same work on real servers.
//!
//! It answers what is not about I/O control: the cost of a filter, the IOPS of a host, the loss on the way from a file to a
//! guest. Its file lies beside the scenarios, and `file` reads it. The experiment's runner runs it with the machinery of the
//! bench: pinned server processes, interleaved trials, CPU per I/O, rejected trials. Findings and report are like those of
//! scenarios.
//!
//! # Always true
//! - A ratio is taken within a block first, and the median of the blocks second.
//! - A check is judged by quiet blocks. With too few of them it is not judged, with the reason.
//! - Points that a shorter A/B test omits are named.
//!
//! # Units
//! Seconds; I/Os a second; MB (10^6 bytes) a second; microseconds; percent of a processor.

mod file;
mod guest;
pub(super) mod servers;
pub mod store;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde::Deserialize;

/// An A/B test, at its length.
#[derive(Clone, Debug, PartialEq)]
pub struct AbTest {
    /// What it is called, as its file is.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// Where it is from.
    pub source: String,
    /// The file.
    pub text: String,
    /// What it is measured for, in percent of what the file says.
    pub percent: u64,
    /// How long each contestant is measured at each point, over all blocks.
    pub measure: Duration,
    /// Before each trial.
    pub warm: Duration,
    /// How often contestants meet at each point.
    pub rounds: u32,
    /// Their servers run side by side in a block and are asked in turns of milliseconds: for what differs by a percent.
    pub side_by_side: bool,
    /// A trial during which others had more of a processor than this, in percent, is thrown away.
    pub quiet: f64,
    /// The size of the file that is read and written, where one is.
    pub file_bytes: u64,
    /// Who takes part.
    pub contestants: Vec<Contestant>,
    /// In what.
    pub sweeps: Vec<Sweep>,
    /// What is to come out.
    pub expects: Vec<Expect>,
    /// Points that are left out at this length.
    pub left_out: Vec<String>,
}

/// Who takes part.
#[derive(Clone, Debug, PartialEq)]
pub struct Contestant {
    /// What it is called.
    pub name: String,
    /// Who serves.
    pub server: Server,
    /// Who asks.
    pub client: Client,
    /// What lies behind it.
    pub store: Store,
    /// The disk's filters, top first.
    pub filters: Vec<String>,
}

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    #[serde(skip)]
    /// Nobody: the file itself is asked.
    Nobody,
    /// Tidegate, with one I/O thread.
    Tidegate,
    /// qemu-storage-daemon.
    StorageDaemon,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// Our own guests without a virtual machine, over vhost-user.
    VhostUser,
    /// fio on the file.
    Fio,
    /// fio over NBD.
    FioNbd,
    /// fio in a guest of QEMU's, whose disk is a vhost-user device.
    Guest,
}

/// What lies behind a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// Nothing: I/Os are answered at once, and no byte is moved.
    Null,
    /// Memory of the server.
    Memory,
    /// A file, by O_DIRECT.
    File,
}

/// The same work with one thing varied.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    /// What it is called.
    pub name: String,
    /// The same in words.
    pub title: String,
    /// What is varied.
    pub across: Across,
    /// From first to last.
    pub points: Vec<Point>,
    /// Who takes part in it.
    pub contestants: Vec<usize>,
}

/// What a sweep varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Across {
    /// The number of VMs.
    Vms,
    /// What each keeps in flight.
    Outstanding,
    /// The size of a request.
    Size,
    /// The kind of work, which is no number.
    Work,
}

/// One point of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// What it is called.
    pub name: String,
    /// What is asked.
    pub work: Work,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// How many VMs, each with a disk.
    pub vms: usize,
    /// Queues of each.
    pub queues: u16,
    /// What each queue keeps in flight.
    pub outstanding: u16,
    /// Bytes.
    pub size: u32,
    /// How many of 100 are reads.
    pub reads: u8,
    /// At random places, or one after the other.
    pub random: bool,
    /// A flush after so many writes; 0 for never.
    pub flush_every: u32,
}

/// A figure and its mark.
#[derive(Clone, Debug, PartialEq)]
pub struct Expect {
    /// Which figure.
    pub what: Measure,
    /// In which sweep.
    pub sweep: usize,
    /// At which point; at all of them, if not said.
    pub at: Option<String>,
    /// What is made of several points.
    pub over: Over,
    /// Whose.
    pub contestant: usize,
    /// Divided by the same figure of whom, where.
    pub against: Option<Against>,
    /// The least it may be.
    pub at_least: Option<f64>,
    /// The most it may be.
    pub at_most: Option<f64>,
    /// Where the mark is from.
    pub source: String,
}

/// What a figure is divided by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Against {
    /// Whose.
    pub contestant: usize,
    /// At which point; at the same, if not said.
    pub at: Option<String>,
}

/// A figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// I/Os a second.
    Iops,
    /// MB a second.
    Bandwidth,
    /// The median latency.
    Latency,
    /// The server's processor time by I/O.
    Cpu,
}

/// What is made of several points.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// The geometric mean.
    Mean,
    /// The least.
    Least,
    /// The greatest.
    Most,
}

/// A trial is no shorter: below it a processor's first milliseconds would show.
const SHORTEST: Duration = Duration::from_secs(1);
/// Fewer blocks have no median worth the name.
const FEWEST: u32 = 3;
/// An A/B test at less than this part of its length, in percent, has only the points that its file calls brief.
const BRIEF: u64 = 50;

impl AbTest {
    /// Reads one at its full length; none if the text is not an A/B test's.
    ///
    /// # Errors
    /// It is an A/B test's, and something is wrong with it.
    pub fn read(text: &str) -> Result<Option<AbTest>> {
        file::read(text, 100)
    }

    /// The same at so many percent of its length.
    #[must_use]
    pub fn scaled(self, percent: u64) -> AbTest {
        let again = file::read(&self.text, percent.clamp(1, 100)).ok().flatten();
        again.unwrap_or(self)
    }

    /// How long a trial is measured.
    #[must_use]
    pub fn span(&self) -> Duration {
        (self.measure / self.rounds.max(1)).max(SHORTEST)
    }

    /// How long all blocks take, when nothing has to be made again.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        let trials = self.sweeps.iter().flat_map(|sweep| {
            let each = sweep.points.iter().flat_map(|_| &sweep.contestants);
            each.map(|contestant| self.trial(*contestant))
        });
        trials.sum::<Duration>() * self.rounds
    }

    /// How long a contestant's trial takes, with what is set up before it.
    #[must_use]
    pub fn trial(&self, contestant: usize) -> Duration {
        let set_up = match self.contestants[contestant].client {
            Client::Guest => guest::BOOTS,
            Client::Fio | Client::FioNbd => Duration::from_millis(700),
            Client::VhostUser => Duration::from_millis(300),
        };
        set_up + self.warm + self.span()
    }

    /// Whether a file is read and written: an emulated disk's work counts as stolen then, and says nothing.
    #[must_use]
    pub fn on_disk(&self) -> bool {
        self.contestants
            .iter()
            .any(|contestant| contestant.store == Store::File)
    }

    /// Whether contestants differ in who asks: what they cost is then the asker's processor time too.
    #[must_use]
    pub fn clients_differ(&self) -> bool {
        let first = self.contestants.first().map(|one| one.client);
        self.contestants.iter().any(|one| Some(one.client) != first)
    }
}

impl Across {
    /// What lies below an axis.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Across::Vms => "VMs",
            Across::Outstanding => "outstanding I/Os of each VM",
            Across::Size => "size of a request",
            Across::Work => "kind of work",
        }
    }
}

impl Measure {
    /// Its name in a check.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Measure::Iops => "throughput",
            Measure::Bandwidth => "bandwidth",
            Measure::Latency => "median latency",
            Measure::Cpu => "processor time by I/O",
        }
    }

    /// Its unit, with the space before it.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Measure::Iops => " /s",
            Measure::Bandwidth => " MB/s",
            Measure::Latency => " us",
            Measure::Cpu => " %/k",
        }
    }
}

impl Contestant {
    /// What it is, in words.
    #[must_use]
    pub fn words(&self) -> String {
        let server = match self.server {
            Server::Nobody => "no server",
            Server::Tidegate => "Tidegate with one I/O thread",
            Server::StorageDaemon => "qemu-storage-daemon",
        };
        let store = match self.store {
            Store::Null => "on nothing",
            Store::Memory => "on memory",
            Store::File => "on a file, O_DIRECT",
        };
        let client = match self.client {
            Client::VhostUser => "guests of the lab's over vhost-user, asleep between answers",
            Client::Fio => "fio by io_uring",
            Client::FioNbd => "fio over NBD on a Unix socket",
            Client::Guest => "fio by io_uring in a guest of QEMU's on vhost-user-blk",
        };
        let mut words = match self.server {
            Server::Nobody => format!("{client} {store}"),
            _ => format!("{server} {store}; {client}"),
        };
        if !self.filters.is_empty() {
            words += &format!("; filters {}", self.filters.join(", "));
        }
        words
    }
}

impl Work {
    /// What is asked, in words.
    #[must_use]
    pub fn words(&self) -> String {
        let kind = match self.reads {
            100 => "reads".to_owned(),
            0 => "writes".to_owned(),
            reads => format!("{reads} % reads"),
        };
        let place = if self.random { "random" } else { "sequential" };
        let mut words = format!("{} {place} {kind}", bytes(u64::from(self.size)));
        match self.queues {
            1 => words += &format!(", {} outstanding", self.outstanding),
            queues => words += &format!(", {queues} queues of {} outstanding", self.outstanding),
        }
        if self.vms > 1 {
            words += &format!(" for each of {} VMs", self.vms);
        }
        if self.flush_every > 0 {
            words += &format!(", a flush after every {} writes", self.flush_every);
        }
        words
    }
}

/// Bytes as people write them.
pub(in crate::experiment) fn bytes(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 30 && bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// A name as part of a file's.
pub(in crate::experiment) fn slug(words: &str) -> String {
    let plain = words.chars().map(|letter| match letter {
        'a'..='z' | '0'..='9' | '.' => letter,
        'A'..='Z' => letter.to_ascii_lowercase(),
        _ => '-',
    });
    let plain: String = plain.collect();
    let parts = plain.split('-').filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("-")
}

/// Whether a program of this name can be run.
fn there(program: &str) -> bool {
    Path::new(program).is_absolute() && Path::new(program).is_file()
        || tidegate_testing::peers::installed(program)
}
