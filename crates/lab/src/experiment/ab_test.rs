//! An A/B test (a contest, in its file): several contestants do the same work on real servers.
//!
//! It answers what is not about I/O control: the cost of a filter, the IOPS of a host, the loss on the way from a file to a
//! guest. Its file lies beside the scenarios; `file` reads it and checks it. The experiment's runner runs it with the
//! machinery of the bench: pinned server processes, interleaved trials, CPU per I/O, rejected trials. Findings and report are
//! like those of scenarios.
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
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AbTest {
    /// Its name, which is its file's too.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// Where it is from.
    pub source: String,
    /// The file.
    #[serde(skip)]
    pub text: String,
    /// Its length, in percent of what the file says.
    #[serde(skip)]
    pub percent: u64,
    /// How it is measured.
    #[serde(rename = "contest")]
    pub rules: Rules,
    /// What is compared.
    #[serde(rename = "contestant")]
    pub contestants: Vec<Contestant>,
    /// The work.
    #[serde(rename = "sweep")]
    pub sweeps: Vec<Sweep>,
    /// The expected results.
    #[serde(rename = "expect")]
    pub expects: Vec<Expect>,
    /// Points that are left out at this length.
    #[serde(skip)]
    pub left_out: Vec<String>,
}

/// How an A/B test is measured.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rules {
    /// How long each contestant is measured at each point, over all blocks.
    #[serde(deserialize_with = "file::length")]
    pub measure: Duration,
    /// Before each trial.
    #[serde(deserialize_with = "file::length")]
    pub warm: Duration,
    /// The number of blocks at each point.
    #[serde(rename = "rounds")]
    pub blocks: u32,
    /// All servers run in a block and are measured in slices of milliseconds, for differences of a percent.
    #[serde(default)]
    pub side_by_side: bool,
    /// A trial during which others had more of a processor than this, in percent, is discarded.
    #[serde(default = "file::quiet")]
    pub quiet: f64,
    /// The size of the file that is read and written, if there is one.
    #[serde(default = "file::gib", deserialize_with = "file::size")]
    pub file: u64,
    /// The same of a short A/B test.
    #[serde(default, deserialize_with = "file::some_size")]
    pub brief_file: Option<u64>,
}

/// One of the things that are compared.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contestant {
    /// Its name.
    pub name: String,
    /// The server.
    #[serde(default)]
    pub server: Server,
    /// The client.
    #[serde(default)]
    pub client: Client,
    /// What lies behind the server.
    #[serde(default)]
    pub store: Store,
    /// The disk's filters, top first.
    #[serde(default)]
    pub filters: Vec<String>,
}

/// The server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// None: the client uses the file itself.
    #[default]
    #[serde(skip)]
    Nobody,
    /// Tidegate, with one I/O thread.
    Tidegate,
    /// qemu-storage-daemon.
    StorageDaemon,
}

/// The client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// Our own guests without a virtual machine, over vhost-user.
    #[default]
    VhostUser,
    /// fio on the file.
    Fio,
    /// fio over NBD.
    FioNbd,
    /// fio in a guest of QEMU's, whose disk is a vhost-user device.
    Guest,
}

/// What lies behind a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Store {
    /// Nothing: I/Os are answered at once, and no byte is moved.
    #[default]
    Null,
    /// Memory of the server.
    Memory,
    /// A file, by O_DIRECT.
    File,
}

/// The same work with one thing varied.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Its name.
    pub name: String,
    /// The same in words.
    pub title: String,
    /// What is varied.
    pub across: Across,
    /// The values that are varied; none where points are kinds of work.
    #[serde(default, rename = "points", deserialize_with = "file::names")]
    values: Vec<String>,
    /// The only points of a short A/B test, if some are left out.
    #[serde(default, deserialize_with = "file::names")]
    brief: Vec<String>,
    /// The work, apart from what is varied.
    #[serde(default)]
    work: Work,
    /// From first to last.
    #[serde(default, rename = "point")]
    pub points: Vec<Point>,
    /// The names of its contestants.
    #[serde(default)]
    pub contestants: Vec<String>,
}

/// What a sweep varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Across {
    /// The number of VMs.
    Vms,
    /// The I/Os that each keeps in flight.
    Outstanding,
    /// The size of a request.
    Size,
    /// The kind of work, which is no number.
    Work,
}

/// One point of a sweep.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Its name: the varied value, or the kind of work.
    pub name: String,
    /// The work.
    pub work: Work,
}

/// The load of one trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Work {
    /// The number of VMs, each with a disk.
    pub vms: u32,
    /// Queues of each.
    pub queues: u16,
    /// The I/Os that each queue keeps in flight.
    pub outstanding: u16,
    /// Bytes of a request.
    #[serde(deserialize_with = "file::size")]
    pub size: u32,
    /// How many of 100 are reads.
    pub reads: u8,
    /// At random places, or one after the other.
    #[serde(deserialize_with = "file::all_or_none")]
    pub random: bool,
    /// A flush after so many writes; 0 for never.
    pub flush_every: u32,
}

/// A figure and its bar.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Expect {
    /// Which figure.
    pub what: Measure,
    /// In which sweep.
    pub sweep: String,
    /// At which point; all of them if not said.
    pub at: Option<String>,
    /// How several points become one figure.
    #[serde(default)]
    pub over: Over,
    /// Of which contestant.
    pub contestant: String,
    /// What it is divided by.
    pub against: Option<Against>,
    /// The least it may be.
    pub at_least: Option<f64>,
    /// The most it may be.
    pub at_most: Option<f64>,
    /// Where the bar is from.
    pub source: String,
}

/// What a figure is divided by.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Against {
    /// The figure of this contestant; of the same one if not said.
    pub contestant: Option<String>,
    /// At which point; at the same if not said.
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

/// How several points become one figure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// By the geometric mean.
    #[default]
    Mean,
    /// The smallest counts.
    Least,
    /// The largest counts.
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
        (self.rules.measure / self.rules.blocks.max(1)).max(SHORTEST)
    }

    /// How long all blocks take, when nothing has to be repeated.
    #[must_use]
    pub fn lasts(&self) -> Duration {
        let sweeps = self.sweeps.iter();
        let trials = sweeps.flat_map(|sweep| sweep.points.iter().flat_map(|_| &sweep.contestants));
        let trials: Duration = trials.map(|contestant| self.trial(contestant)).sum();
        trials * self.rules.blocks
    }

    /// How long a contestant's trial takes, with its preparation.
    #[must_use]
    pub fn trial(&self, contestant: &str) -> Duration {
        let set_up = match self.contestant(contestant).map(|one| one.client) {
            Some(Client::Guest) => guest::BOOTS,
            Some(Client::Fio | Client::FioNbd) => Duration::from_millis(700),
            Some(Client::VhostUser) | None => Duration::from_millis(300),
        };
        set_up + self.rules.warm + self.span()
    }

    /// The contestant of a name.
    #[must_use]
    pub fn contestant(&self, name: &str) -> Option<&Contestant> {
        self.contestants.iter().find(|one| one.name == name)
    }

    /// The sweep of a name.
    #[must_use]
    pub fn sweep(&self, name: &str) -> Option<&Sweep> {
        self.sweeps.iter().find(|sweep| sweep.name == name)
    }

    /// Whether a file is read and written: an emulated disk's work counts as stolen then, and says nothing.
    #[must_use]
    pub fn on_disk(&self) -> bool {
        self.contestants
            .iter()
            .any(|contestant| contestant.store == Store::File)
    }

    /// Whether contestants differ in their clients: their cost includes the client's processor time then.
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

impl Sweep {
    /// Whether it has a point.
    #[must_use]
    pub fn has(&self, point: &str) -> bool {
        self.points.iter().any(|one| one.name == point)
    }

    /// A point in words.
    #[must_use]
    pub fn words(&self, point: &str) -> String {
        match self.across {
            Across::Vms if point == "1" => "1 VM".to_owned(),
            Across::Vms => format!("{point} VMs"),
            Across::Outstanding => format!("{point} outstanding"),
            Across::Size | Across::Work => point.to_owned(),
        }
    }

    /// A point as part of a file's name.
    #[must_use]
    pub fn slug(&self, point: &str) -> String {
        slug(&format!("{}-{point}", self.name))
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
        let random = if self.random { 100 } else { 0 };
        let mut words = format!("{} outstanding", self.outstanding);
        if self.queues > 1 {
            words = format!("{} queues of {words}", self.queues);
        }
        if self.vms > 1 {
            words += &format!(" for each of {} VMs", self.vms);
        }
        let flushes = u64::from(self.flush_every);
        let each = request(self.size.into(), self.reads.into(), random, flushes);
        format!("{words}, {each}")
    }
}

/// Requests in words: their size, kind and places, and after how many writes there is a flush.
pub(in crate::experiment) fn request(size: u64, reads: u32, random: u32, flush: u64) -> String {
    let part = |part: u32, all: &str, none: &str| match part {
        100 => all.to_owned(),
        0 => none.to_owned(),
        part => format!("{part} % {all}"),
    };
    let flushes = match flush {
        0 => String::new(),
        every => format!(", a flush after every {every} writes"),
    };
    let (kind, place) = (
        part(reads, "reads", "writes"),
        part(random, "random", "sequential"),
    );
    format!("{} {kind}, {place}{flushes}", bytes(size))
}

/// Bytes as people write them.
pub(in crate::experiment) fn bytes(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = |(shift, _): &(u32, &str)| bytes > 0 && bytes.is_multiple_of(1 << shift);
    match units.into_iter().find(whole) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
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
