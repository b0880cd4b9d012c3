//! The results of a run: what each disk, host and the datastore did in every tenth of a second.
//!
//! The world fills a [`Results`] in. `judge.rs` computes the figures that scenarios have expectations for, and reports
//! draw the rest.
//!
//! # Units
//! Latencies are stored in microseconds, in the order of completion. A bin stores the index of its first one.

pub use crate::numbers::BIN;
use crate::numbers::{float, index, small};
use crate::scenario::{Kind, Scenario};
use tidegate_core::iocontrol::{Cost, CostModel};
use tidegate_core::request::Op;
use tidegate_core::units::{Span, Time};
use tidegate_model::spec::MemberSpec;

/// A run's figures.
#[derive(Clone, Debug)]
pub struct Results {
    /// One per disk.
    pub disks: Vec<DiskSeries>,
    /// One per host.
    pub hosts: Vec<HostSeries>,
    /// The datastore's; of several, together.
    pub datastore: DatastoreSeries,
    /// One per array, in a scenario with layouts or several arrays.
    pub arrays: Vec<ArraySeries>,
    /// When rebuilds have ended, each with its disk.
    pub rebuilt: Vec<(Time, usize)>,
    /// The governors' events with their times.
    pub events: Vec<(Time, String)>,
}

/// A disk's results.
#[derive(Clone, Debug, Default)]
pub struct DiskSeries {
    /// One per bin.
    pub bins: Vec<DiskBin>,
    /// Latencies of all completed I/Os, as the guest sees them.
    pub latencies_us: Vec<u32>,
    /// The time that each waited in the scheduler.
    pub waits_us: Vec<u32>,
    /// The times of a shop's orders.
    pub orders_us: Vec<u32>,
}

/// What one disk did in a bin.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskBin {
    /// Completed I/Os without flushes.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their charged cost.
    pub cost: u64,
    /// The array's working time for them, where it is known.
    pub device_ns: u64,
    /// Units started, as limits count.
    pub units: u64,
    /// Of the I/Os, those that were answered without the disk below the cache. Scans and logs count neither as hits nor as
    /// misses.
    pub hits: u64,
    /// The others.
    pub misses: u64,
    /// Bytes written to flash, on one of the devices.
    pub flash_bytes: u64,
    /// Index of this bin's first latency.
    pub latencies_from: u32,
    /// Index of this bin's first order.
    pub orders_from: u32,
}

/// A host's results.
#[derive(Clone, Debug, Default)]
pub struct HostSeries {
    /// One per bin.
    pub bins: Vec<HostBin>,
}

/// A host's state at the end of a bin.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostBin {
    /// Its window in reference I/Os; without control, the published upper bound.
    pub window: f64,
    /// Its I/O in flight.
    pub in_flight: u64,
    /// Its measured latency, in microseconds.
    pub latency_us: u64,
    /// Its congestion threshold, in microseconds.
    pub threshold_us: u64,
    /// Whether control was engaged.
    pub engaged: bool,
}

/// The datastore's results.
#[derive(Clone, Debug, Default)]
pub struct DatastoreSeries {
    /// One per bin.
    pub bins: Vec<DatastoreBin>,
}

/// What the datastore did in a bin.
#[derive(Clone, Copy, Debug, Default)]
pub struct DatastoreBin {
    /// Guests' completed I/Os without flushes.
    pub ios: u64,
    /// The sum of their latencies in the datastore.
    pub latency_ns: u64,
    /// Outstanding I/Os at the end of the bin.
    pub outstanding: u64,
    /// I/Os on the coordination file.
    pub coordination: u64,
}

/// An array's results.
#[derive(Clone, Debug, Default)]
pub struct ArraySeries {
    /// For each bin, what each disk had of it.
    pub bins: Vec<Vec<ArrayBin>>,
}

/// What one disk had of an array in a bin.
#[derive(Clone, Copy, Debug, Default)]
pub struct ArrayBin {
    /// The cost of its guest's I/O.
    pub guests: u64,
    /// The cost of its work in the background.
    pub background: u64,
    /// Bytes that were written in the background.
    pub copied: u64,
}

impl ArraySeries {
    /// A disk's figures in the bin that has not ended.
    pub(crate) fn open(&mut self, disk: usize) -> &mut ArrayBin {
        let bin = self.bins.last_mut().expect("a bin is always open");
        &mut bin[disk]
    }
}

/// A completed I/O for the recorder.
pub(crate) struct Record {
    pub(crate) disk: usize,
    pub(crate) op: Op,
    pub(crate) len: u64,
    pub(crate) cost: Cost,
    pub(crate) arrived: Time,
    pub(crate) issued: Time,
    pub(crate) unmanaged: bool,
}

impl Results {
    pub(crate) fn new(scenario: &Scenario) -> Results {
        let mut results = Results {
            disks: vec![DiskSeries::default(); scenario.disks.len()],
            hosts: vec![HostSeries::default(); scenario.hosts.len()],
            datastore: DatastoreSeries::default(),
            arrays: match scenario.has_layouts() {
                true => vec![ArraySeries::default(); scenario.datastore.arrays],
                false => Vec::new(),
            },
            rebuilt: Vec::new(),
            events: Vec::new(),
        };
        results.open();
        results
    }

    fn open(&mut self) {
        for disk in &mut self.disks {
            disk.bins.push(DiskBin {
                latencies_from: small(disk.latencies_us.len()),
                orders_from: small(disk.orders_us.len()),
                ..DiskBin::default()
            });
        }
        self.datastore.bins.push(DatastoreBin::default());
        for array in &mut self.arrays {
            array.bins.push(vec![ArrayBin::default(); self.disks.len()]);
        }
    }

    /// Ends a bin and begins the next.
    pub(crate) fn sample(&mut self, outstanding: usize, hosts: impl Iterator<Item = HostBin>) {
        for (series, bin) in self.hosts.iter_mut().zip(hosts) {
            series.bins.push(bin);
        }
        if let Some(bin) = self.datastore.bins.last_mut() {
            bin.outstanding = outstanding as u64;
        }
        self.open();
    }

    pub(crate) fn started(&mut self, disk: usize, units: u64) {
        if let Some(bin) = self.disks[disk].bins.last_mut() {
            bin.units += units;
        }
    }

    pub(crate) fn ended(&mut self, now: Time, record: &Record, member: &MemberSpec) {
        if record.op == Op::Flush {
            return;
        }
        let series = &mut self.disks[record.disk];
        if let Some(bin) = series.bins.last_mut() {
            bin.ios += 1;
            bin.bytes += record.len;
            bin.cost += record.cost.0;
            bin.device_ns += work(member, record.op, record.len);
        }
        series.latencies_us.push(micros(now.since(record.arrived)));
        series
            .waits_us
            .push(micros(record.issued.since(record.arrived)));
        if !record.unmanaged {
            self.datastore_ended(now.since(record.issued));
        }
    }

    /// The datastore has completed an I/O.
    pub(crate) fn datastore_ended(&mut self, latency: Span) {
        if let Some(bin) = self.datastore.bins.last_mut() {
            bin.ios += 1;
            bin.latency_ns += latency.as_nanos();
        }
    }

    /// A request of a disk was answered from its cache, or not.
    pub(crate) fn hit_or_missed(&mut self, disk: usize, hit: bool) {
        if let Some(bin) = self.disks[disk].bins.last_mut() {
            bin.hits += u64::from(hit);
            bin.misses += u64::from(!hit);
        }
    }

    /// Flash was written for a disk.
    pub(crate) fn flash_written(&mut self, disk: usize, bytes: u64) {
        if let Some(bin) = self.disks[disk].bins.last_mut() {
            bin.flash_bytes += bytes;
        }
    }

    pub(crate) fn ordered(&mut self, disk: usize, took: Span) {
        self.disks[disk].orders_us.push(micros(took));
    }

    pub(crate) fn coordinated(&mut self) {
        if let Some(bin) = self.datastore.bins.last_mut() {
            bin.coordination += 1;
        }
    }
}

/// Collects the results of a run outside the simulator: the same scenario with real hosts.
#[derive(Clone, Debug)]
pub struct Recorder {
    results: Results,
    scenario: Scenario,
    costs: CostModel,
}

/// A completed I/O as a guest saw it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Its disk.
    pub disk: usize,
    /// Its operation.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// When the guest issued it.
    pub arrived: Time,
    /// When the guest got its completion.
    pub ended: Time,
}

/// What the cache of a disk did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheDid {
    /// Hits.
    pub hits: u64,
    /// Misses.
    pub misses: u64,
    /// Bytes written to flash, on one of the devices.
    pub flash_bytes: u64,
}

impl Recorder {
    /// Empty results. `kind` is the datastore's configured kind, which the cost model uses.
    pub fn new(scenario: &Scenario, kind: Kind) -> Recorder {
        Recorder {
            results: Results::new(scenario),
            costs: match kind {
                Kind::Flash => CostModel::flash(),
                Kind::Rotational => CostModel::rotational(),
                Kind::Unknown => CostModel::unknown(),
            },
            scenario: scenario.clone(),
        }
    }

    /// Records a completed I/O. Within a bin the order does not matter. [`Recorder::bin`] ends a bin.
    pub fn ended(&mut self, seen: &Seen) {
        let unmanaged = self.scenario.disks[seen.disk].unmanaged;
        if seen.op != Op::Flush {
            let unit = u64::from(self.scenario.datastore.io_unit);
            self.results
                .started(seen.disk, seen.len.div_ceil(unit).max(1));
        }
        let record = Record {
            disk: seen.disk,
            op: seen.op,
            len: seen.len,
            // The end of a stream's last I/O is not known here: every offset counts as random.
            cost: self.costs.cost(seen.op, seen.len, false),
            arrived: seen.arrived,
            issued: seen.arrived,
            unmanaged,
        };
        let member = self.scenario.datastore.array.member.clone();
        self.results.ended(seen.ended, &record, &member);
    }

    /// Records a completed order of a shop.
    pub fn ordered(&mut self, disk: usize, took: Span) {
        self.results.ordered(disk, took);
    }

    /// Records what the cache of a disk did: hits and misses, and bytes written to flash on one of the devices.
    pub fn cached(&mut self, disk: usize, did: CacheDid) {
        if let Some(bin) = self.results.disks[disk].bins.last_mut() {
            bin.hits += did.hits;
            bin.misses += did.misses;
            bin.flash_bytes += did.flash_bytes;
        }
    }

    /// Ends a bin, with the state of the array and of each host.
    pub fn bin(&mut self, array: DatastoreBin, hosts: &[HostBin]) {
        if let Some(bin) = self.results.datastore.bins.last_mut() {
            *bin = array;
        }
        let outstanding = usize::try_from(array.outstanding).unwrap_or(usize::MAX);
        self.results.sample(outstanding, hosts.iter().copied());
    }

    /// Records the end of a rebuild.
    pub fn rebuilt(&mut self, at: Time, disk: usize) {
        self.results.rebuilt.push((at, disk));
    }

    /// Records a governor's event.
    pub fn event(&mut self, at: Time, message: String) {
        self.results.events.push((at, message));
    }

    /// The results.
    pub fn results(self) -> Results {
        self.results
    }
}

impl DiskSeries {
    /// The bins between two times.
    pub fn between(&self, from: Time, to: Time) -> &[DiskBin] {
        let (from, to) = bins(from, to, self.bins.len());
        &self.bins[from..to]
    }

    /// Latencies of the I/Os completed between two times, in order of completion.
    pub fn latencies(&self, from: Time, to: Time) -> &[u32] {
        self.stretch(from, to, &self.latencies_us, |bin| bin.latencies_from)
    }

    /// The waiting times of the same I/Os.
    pub fn waits(&self, from: Time, to: Time) -> &[u32] {
        self.stretch(from, to, &self.waits_us, |bin| bin.latencies_from)
    }

    /// The times of the orders completed between two times.
    pub fn orders(&self, from: Time, to: Time) -> &[u32] {
        self.stretch(from, to, &self.orders_us, |bin| bin.orders_from)
    }

    fn stretch<'a>(
        &self,
        from: Time,
        to: Time,
        all: &'a [u32],
        begins: impl Fn(&DiskBin) -> u32,
    ) -> &'a [u32] {
        let (from, to) = bins(from, to, self.bins.len());
        let at = |bin: usize| self.bins.get(bin).map_or(all.len(), |b| begins(b) as usize);
        &all[at(from)..at(to)]
    }
}

/// The range of bins between two times.
pub(crate) fn bins(from: Time, to: Time, len: usize) -> (usize, usize) {
    let bin = |at: Time| index(at.as_nanos() / BIN.as_nanos()).min(len);
    (bin(from), bin(to).max(bin(from)))
}

fn micros(span: Span) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}

/// The working time of an array's servers for an I/O. A rotating disk's time depends on its arm's position, so for it
/// this is the transfer time only.
fn work(member: &MemberSpec, op: Op, len: u64) -> u64 {
    let (base, rate, pages) = match member {
        MemberSpec::Disk(disk) => (0, disk.bytes_per_second, 1),
        MemberSpec::Ssd(ssd) => {
            let cost = if op == Op::Write { ssd.write } else { ssd.read };
            (
                cost.base,
                cost.bytes_per_second,
                len.div_ceil(ssd.page).max(1),
            )
        }
    };
    base * pages + crate::numbers::whole(float(len) * 1e9 / float(rate))
}
