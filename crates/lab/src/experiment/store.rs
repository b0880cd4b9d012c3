//! A stored run: everything that is needed to judge and draw it again.
//!
//! Columns rather than rows: a series is a list of numbers that other programs read at once. The judge's own
//! [`Results`] come back from it exactly.
//!
//! # Units
//! As the names say; a bin is `bin_ms` long, and latencies stand in the order in which I/Os ended.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use tidegate_core::units::{Span, Time};
use tidegate_sim::results::{
    ArrayBin, ArraySeries, BIN, DatastoreBin, DatastoreSeries, DiskBin, DiskSeries, HostBin,
    HostSeries, Results,
};
use tidegate_sim::{Breach, Run, Scenario, Variant};

use super::On;
use crate::machine::Noise;
use crate::measure::Meter;
use crate::play;

/// The version of this file's format. A later one has a larger number.
pub const FORMAT: u32 = 1;

/// One run of an experiment: a scenario in one way, or one block of an A/B test at one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    /// Where it is run.
    pub on: On,
    /// Its number among the repeats or blocks, from one on.
    pub repeat: u32,
    /// The way or the point, as part of the file's name.
    #[serde(rename = "way")]
    pub slug: String,
    /// The same in words.
    #[serde(rename = "way_words")]
    pub words: String,
}

impl Piece {
    /// Its file's name without the ending.
    #[must_use]
    pub fn file(&self) -> String {
        format!("{}-{:02}-{}", self.on, self.repeat, self.slug)
    }
}

/// The beginning of every stored run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// The version of the file's format.
    pub format: u32,
    /// The experiment.
    pub experiment: String,
    /// Which of its runs.
    #[serde(flatten)]
    pub piece: Piece,
    /// When it began, by the clock on the wall.
    pub began: String,
    /// How long it took.
    pub took_s: f64,
    /// Of Tidegate.
    pub version: String,
    /// How busy the machine was.
    pub busy: Busy,
}

impl Head {
    /// The head of a run that begins now.
    pub(super) fn new(experiment: &str, piece: &Piece) -> Head {
        Head {
            format: FORMAT,
            experiment: experiment.to_owned(),
            piece: piece.clone(),
            began: moment(SystemTime::now()),
            took_s: 0.0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            busy: Busy::default(),
        }
    }
}

/// A run in progress.
pub(super) struct Making {
    head: Head,
    begun: Instant,
    meter: Meter,
}

impl Making {
    /// It begins.
    pub(super) fn begin(experiment: &str, piece: &Piece) -> Result<Making> {
        Ok(Making {
            head: Head::new(experiment, piece),
            begun: Instant::now(),
            meter: Meter::start()?,
        })
    }

    /// It has ended.
    pub(super) fn end(self) -> Result<Head> {
        let (noise, own) = self.meter.end(Duration::ZERO)?;
        let took_s = self.begun.elapsed().as_secs_f64();
        Ok(Head {
            took_s,
            busy: Busy {
                own_percent: own.as_secs_f64() / took_s.max(1e-9) * 100.0,
                ..noise.into()
            },
            ..self.head
        })
    }
}

/// A stored run of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredRun {
    /// What every stored run begins with.
    #[serde(flatten)]
    pub head: Head,
    /// The seed of its random numbers.
    pub seed: u64,
    /// How busy the machine was in earlier attempts that were discarded for it.
    pub rejected: Vec<Busy>,
    /// How late the emulated array was, on real daemons.
    #[serde(default)]
    pub late: Option<Late>,
    /// I/Os that ended with an error.
    pub errors: u64,
    /// I/Os started, where that was counted.
    pub started: u64,
    /// The widest gap between two disks of a host, by what it may be; of the simulator.
    pub lag: f64,
    /// Of everything that happened, in order; of the simulator.
    pub fingerprint: String,
    /// Broken guarantees.
    pub breaches: Vec<StoredBreach>,
    /// Messages of governors.
    #[serde(rename = "told")]
    pub messages: Vec<StoredMessage>,
    /// The length of a bin.
    pub bin_ms: u64,
    /// By disk.
    pub disks: Vec<StoredDisk>,
    /// By host.
    pub hosts: Vec<StoredHost>,
    /// Of the datastore.
    pub datastore: StoredDatastore,
    /// By array, of disks with layouts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrays: Vec<StoredArray>,
    /// Rebuilds that ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rebuilt: Vec<StoredRebuild>,
}

/// What each disk had of an array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredArray {
    /// By disk, its columns.
    pub disks: Vec<StoredPart>,
}

/// What one disk had of an array in each bin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredPart {
    /// The cost of its guest's I/O.
    pub guests: Vec<u64>,
    /// The cost of its work in the background.
    pub background: Vec<u64>,
    /// Bytes that were written in the background.
    pub copied: Vec<u64>,
}

/// The end of a rebuild.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRebuild {
    /// When.
    pub at_ns: u64,
    /// Which disk, by its place in the scenario.
    pub disk: usize,
}

/// What the machine's processors did meanwhile, in percent of one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Busy {
    /// For the run: guests, daemons and array.
    pub own_percent: f64,
    /// For other programs.
    pub foreign_percent: f64,
    /// For other machines, by the hypervisor's account.
    pub steal_percent: f64,
}

/// By how much an emulated array answered later than its model did: the machine's doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// On average.
    pub mean_us: u64,
    /// At most.
    pub most_us: u64,
}

impl From<Noise> for Busy {
    fn from(noise: Noise) -> Busy {
        Busy {
            own_percent: 0.0,
            foreign_percent: noise.foreign_percent,
            steal_percent: noise.steal_percent,
        }
    }
}

impl Late {
    /// Whether the machine stood still meanwhile.
    #[must_use]
    pub fn stood_still(self) -> bool {
        let span = Span::from_micros;
        play::is_still(span(self.mean_us), span(self.most_us))
    }
}

/// A breach.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredBreach {
    /// When.
    pub at_ns: u64,
    /// What.
    pub what: String,
}

/// A governor's message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredMessage {
    /// When.
    pub at_ns: u64,
    /// What.
    pub says: String,
}

/// A disk's columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredDisk {
    /// What it is called.
    pub name: String,
    /// I/Os that ended in each bin.
    pub ios: Vec<u64>,
    /// Their bytes.
    pub bytes: Vec<u64>,
    /// What they were charged.
    pub cost: Vec<u64>,
    /// What the array worked for them.
    pub device_ns: Vec<u64>,
    /// Units that started.
    pub units: Vec<u64>,
    /// Requests that a cache answered, in each bin.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hits: Vec<u64>,
    /// Requests that it did not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub misses: Vec<u64>,
    /// Bytes written to flash.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flash_bytes: Vec<u64>,
    /// Orders that ended in each bin.
    pub orders: Vec<u32>,
    /// How long each I/O took.
    pub latencies_us: Vec<u32>,
    /// How long each waited in the scheduler; empty where none did.
    pub waits_us: Vec<u32>,
    /// How long each order took.
    pub orders_us: Vec<u32>,
}

/// A host's columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredHost {
    /// What it is called.
    pub name: String,
    /// What it might have in flight, in reference I/Os.
    pub window: Vec<f64>,
    /// What it had.
    pub in_flight: Vec<u64>,
    /// The latency it measured.
    pub latency_us: Vec<u64>,
    /// Its congestion threshold.
    pub threshold_us: Vec<u64>,
    /// Whether control was engaged.
    pub engaged: Vec<bool>,
}

/// The datastore's columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoredDatastore {
    /// Guests' I/Os that ended there.
    pub ios: Vec<u64>,
    /// The sum of the times they were there.
    pub latency_ns: Vec<u64>,
    /// What was there at the end of the bin.
    pub outstanding: Vec<u64>,
    /// I/Os on the coordination file.
    pub coordination: Vec<u64>,
}

impl StoredRun {
    /// A run's figures under its head. The caller fills in the rest.
    #[must_use]
    pub fn of(head: Head, scenario: &Scenario, run: &Run) -> StoredRun {
        let results = &run.results;
        let disks = scenario.disks.iter().zip(&results.disks);
        let hosts = scenario.hosts.iter().zip(&results.hosts);
        let bins = &results.datastore.bins;
        StoredRun {
            head,
            seed: run.seed,
            rejected: Vec::new(),
            late: None,
            errors: 0,
            started: run.started,
            lag: run.lag,
            fingerprint: format!("{:016x}", run.fingerprint),
            breaches: (run.breaches.iter())
                .map(|breach| StoredBreach {
                    at_ns: breach.at.as_nanos(),
                    what: breach.what.clone(),
                })
                .collect(),
            messages: (results.events.iter())
                .map(|(at, says)| StoredMessage {
                    at_ns: at.as_nanos(),
                    says: says.clone(),
                })
                .collect(),
            bin_ms: BIN.as_micros() / 1_000,
            disks: disks
                .map(|(disk, series)| stored_disk(&disk.name, series))
                .collect(),
            hosts: hosts
                .map(|(host, series)| stored_host(&host.name, series))
                .collect(),
            datastore: StoredDatastore {
                ios: bins.iter().map(|bin| bin.ios).collect(),
                latency_ns: bins.iter().map(|bin| bin.latency_ns).collect(),
                outstanding: bins.iter().map(|bin| bin.outstanding).collect(),
                coordination: bins.iter().map(|bin| bin.coordination).collect(),
            },
            arrays: results.arrays.iter().map(stored_array).collect(),
            rebuilt: (results.rebuilt.iter())
                .map(|(at, disk)| StoredRebuild {
                    at_ns: at.as_nanos(),
                    disk: *disk,
                })
                .collect(),
        }
    }

    /// The run as the judge takes it.
    ///
    /// # Errors
    /// The file is not of this scenario, or its columns do not fit each other.
    pub fn run(&self, scenario: &Scenario, variant: &Variant) -> Result<Run> {
        let names = self.disks.iter().map(|disk| &disk.name);
        let hosts = self.hosts.iter().map(|host| &host.name);
        if !names.eq(scenario.disks.iter().map(|disk| &disk.name))
            || !hosts.eq(scenario.hosts.iter().map(|host| &host.name))
        {
            bail!("it is of other disks or hosts than the experiment's");
        }
        let disks = self.disks.iter().map(|stored| {
            series(stored)
                .with_context(|| format!("the columns of disk {} do not fit", stored.name))
        });
        let store = &self.datastore;
        let bins = 0..store.ios.len();
        let bins = bins.map(|bin| {
            Some(DatastoreBin {
                ios: store.ios[bin],
                latency_ns: *store.latency_ns.get(bin)?,
                outstanding: *store.outstanding.get(bin)?,
                coordination: *store.coordination.get(bin)?,
            })
        });
        let bins: Option<Vec<_>> = bins.collect();
        Ok(Run {
            variant: variant.clone(),
            seed: self.seed,
            fingerprint: u64::from_str_radix(&self.fingerprint, 16).unwrap_or(0),
            lag: self.lag,
            started: self.started,
            breaches: (self.breaches.iter())
                .map(|breach| Breach {
                    at: Time::from_nanos(breach.at_ns),
                    what: breach.what.clone(),
                })
                .collect(),
            results: Results {
                disks: disks.collect::<Result<_>>()?,
                hosts: self.hosts.iter().map(host_series).collect::<Result<_>>()?,
                datastore: DatastoreSeries {
                    bins: bins.context("the datastore's columns do not fit")?,
                },
                arrays: self
                    .arrays
                    .iter()
                    .map(array_series)
                    .collect::<Result<_>>()?,
                rebuilt: (self.rebuilt.iter())
                    .map(|rebuilt| (Time::from_nanos(rebuilt.at_ns), rebuilt.disk))
                    .collect(),
                events: (self.messages.iter())
                    .map(|message| (Time::from_nanos(message.at_ns), message.says.clone()))
                    .collect(),
            },
        })
    }
}

fn stored_array(series: &ArraySeries) -> StoredArray {
    let disks = 0..series.bins.first().map_or(0, Vec::len);
    let part = |disk: usize| {
        let bins = series.bins.iter().map(move |bin| bin[disk]);
        StoredPart {
            guests: bins.clone().map(|bin| bin.guests).collect(),
            background: bins.clone().map(|bin| bin.background).collect(),
            copied: bins.map(|bin| bin.copied).collect(),
        }
    };
    StoredArray {
        disks: disks.map(part).collect(),
    }
}

fn array_series(stored: &StoredArray) -> Result<ArraySeries> {
    let bins = 0..stored.disks.first().map_or(0, |part| part.guests.len());
    let bin = |bin: usize| {
        let parts = stored.disks.iter().map(|part| {
            Some(ArrayBin {
                guests: *part.guests.get(bin)?,
                background: *part.background.get(bin)?,
                copied: *part.copied.get(bin)?,
            })
        });
        parts.collect()
    };
    let bins: Option<Vec<_>> = bins.map(bin).collect();
    Ok(ArraySeries {
        bins: bins.context("the columns of an array do not fit")?,
    })
}

fn stored_disk(name: &str, series: &DiskSeries) -> StoredDisk {
    let bins = &series.bins;
    let column = |what: fn(&DiskBin) -> u64| bins.iter().map(what).collect();
    let total = u32::try_from(series.orders_us.len()).unwrap_or(u32::MAX);
    let next = bins
        .iter()
        .skip(1)
        .map(|bin| bin.orders_from)
        .chain([total]);
    let waited = series.waits_us.iter().any(|wait| *wait > 0);
    // Of a cache, where there is one. A disk with streams only has neither hits nor misses.
    let cached = |what: fn(&DiskBin) -> u64| match bins
        .iter()
        .any(|bin| bin.hits + bin.misses + bin.flash_bytes > 0)
    {
        true => column(what),
        false => Vec::new(),
    };
    StoredDisk {
        name: name.to_owned(),
        ios: column(|bin| bin.ios),
        bytes: column(|bin| bin.bytes),
        cost: column(|bin| bin.cost),
        device_ns: column(|bin| bin.device_ns),
        units: column(|bin| bin.units),
        hits: cached(|bin| bin.hits),
        misses: cached(|bin| bin.misses),
        flash_bytes: cached(|bin| bin.flash_bytes),
        orders: bins
            .iter()
            .zip(next)
            .map(|(bin, next)| next - bin.orders_from)
            .collect(),
        latencies_us: series.latencies_us.clone(),
        waits_us: if waited {
            series.waits_us.clone()
        } else {
            Vec::new()
        },
        orders_us: series.orders_us.clone(),
    }
}

fn stored_host(name: &str, series: &HostSeries) -> StoredHost {
    let bins = &series.bins;
    let column = |what: fn(&HostBin) -> u64| bins.iter().map(what).collect();
    StoredHost {
        name: name.to_owned(),
        window: bins.iter().map(|bin| bin.window).collect(),
        in_flight: column(|bin| bin.in_flight),
        latency_us: column(|bin| bin.latency_us),
        threshold_us: column(|bin| bin.threshold_us),
        engaged: bins.iter().map(|bin| bin.engaged).collect(),
    }
}

fn series(stored: &StoredDisk) -> Result<DiskSeries> {
    let (mut latencies_from, mut orders_from) = (0_u32, 0_u32);
    let mut bins = Vec::with_capacity(stored.ios.len());
    for (place, &ios) in stored.ios.iter().enumerate() {
        let cell = |column: &Vec<u64>| column.get(place).copied().context("a short column");
        let cached = |column: &Vec<u64>| match column.is_empty() {
            true => Ok(0),
            false => cell(column),
        };
        bins.push(DiskBin {
            ios,
            bytes: cell(&stored.bytes)?,
            cost: cell(&stored.cost)?,
            device_ns: cell(&stored.device_ns)?,
            units: cell(&stored.units)?,
            hits: cached(&stored.hits)?,
            misses: cached(&stored.misses)?,
            flash_bytes: cached(&stored.flash_bytes)?,
            latencies_from,
            orders_from,
        });
        latencies_from += u32::try_from(ios)?;
        orders_from += stored.orders.get(place).context("a short column")?;
    }
    let waited = !stored.waits_us.is_empty();
    let ends = (
        usize::try_from(latencies_from)?,
        usize::try_from(orders_from)?,
    );
    if ends != (stored.latencies_us.len(), stored.orders_us.len())
        || waited && stored.waits_us.len() != stored.latencies_us.len()
    {
        bail!("there are more or fewer latencies than I/Os");
    }
    Ok(DiskSeries {
        bins,
        waits_us: if waited {
            stored.waits_us.clone()
        } else {
            vec![0; stored.latencies_us.len()]
        },
        latencies_us: stored.latencies_us.clone(),
        orders_us: stored.orders_us.clone(),
    })
}

fn host_series(stored: &StoredHost) -> Result<HostSeries> {
    let bins = (0..stored.window.len()).map(|bin| {
        Some(HostBin {
            window: stored.window[bin],
            in_flight: *stored.in_flight.get(bin)?,
            latency_us: *stored.latency_us.get(bin)?,
            threshold_us: *stored.threshold_us.get(bin)?,
            engaged: *stored.engaged.get(bin)?,
        })
    });
    let bins: Option<Vec<_>> = bins.collect();
    Ok(HostSeries {
        bins: bins.with_context(|| format!("the columns of host {} do not fit", stored.name))?,
    })
}

/// A moment as RFC 3339 writes it, in UTC and to the second.
#[must_use]
pub fn moment(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::fixtures::{scenario, simulated};
    use tidegate_sim::{Policy, judge, world};

    #[test]
    fn a_run_comes_back_from_its_file_as_it_was_and_is_judged_alike() {
        for name in ["sioc-1", "mirror-rebuild", "flash-cache-scan"] {
            comes_back(&scenario(name, 1).scenario);
        }
        // The rebuild of this one ends.
        comes_back(&scenario("mirror-rebuild", 100).scenario);
    }

    fn comes_back(scenario: &Scenario) {
        let way = Variant::of(Policy::Ours);
        let run = world::run(scenario, &way, 7).expect("it can be modelled");
        let stored = simulated(scenario, On::Sim, &way, 7);
        let text = serde_json::to_string(&stored).expect("plain data");
        let again: StoredRun = serde_json::from_str(&text).expect("what was written can be read");
        assert_eq!(again, stored);
        let back = again.run(scenario, &way).expect("it fits");
        let series = |run: &Run| {
            let Results {
                disks,
                hosts,
                arrays,
                rebuilt,
                ..
            } = &run.results;
            format!("{disks:?}{hosts:?}{arrays:?}{rebuilt:?}")
        };
        assert_eq!(series(&back), series(&run));
        let judged = |run: Run| {
            let runs = [(way.clone(), run)].into();
            format!("{:?}", judge::judgements(scenario, &runs))
        };
        assert_eq!(judged(back), judged(run));
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let scenario = scenario("sioc-1", 1).scenario;
        let way = Variant::of(Policy::None);
        let mut stored = simulated(&scenario, On::Sim, &way, 7);
        stored.disks[1].latencies_us.pop();
        let error = stored.run(&scenario, &way).expect_err("one is missing");
        assert!(format!("{error:#}").contains("disk vm2"), "{error:#}");
        stored.disks.pop();
        stored.run(&scenario, &way).expect_err("a disk is missing");
    }
}
