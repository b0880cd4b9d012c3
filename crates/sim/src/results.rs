//! The results of a run: what each disk, host and the datastore did in every tenth of a second.
//!
//! The world fills a [`Results`] in; `judge.rs` computes the figures that scenarios expect something of, and reports
//! draw the rest.
//!
//! # Units
//! Latencies are kept in microseconds, in the order in which I/Os ended; a bin knows where its own begin.

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
    /// By disk.
    pub disks: Vec<DiskSeries>,
    /// By host.
    pub hosts: Vec<HostSeries>,
    /// Of the datastore.
    pub datastore: DatastoreSeries,
    /// What governors had to say, and when.
    pub told: Vec<(Time, String)>,
}

/// A disk's.
#[derive(Clone, Debug, Default)]
pub struct DiskSeries {
    /// Bin by bin.
    pub bins: Vec<DiskBin>,
    /// Of all I/Os that ended, how long they took, for the guest.
    pub latencies_us: Vec<u32>,
    /// How long each waited for its turn.
    pub waits_us: Vec<u32>,
    /// Of a shop's orders.
    pub orders_us: Vec<u32>,
}

/// What one disk did in a bin.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskBin {
    /// I/Os that ended, flushes left out.
    pub ios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What they were charged.
    pub cost: u64,
    /// What the array worked for them, where that can be said.
    pub device_ns: u64,
    /// Units that started, as limits count.
    pub units: u64,
    /// Where this bin's latencies begin.
    pub latencies_from: u32,
    /// Where this bin's orders begin.
    pub orders_from: u32,
}

/// A host's.
#[derive(Clone, Debug, Default)]
pub struct HostSeries {
    /// Bin by bin.
    pub bins: Vec<HostBin>,
}

/// How a host stood at the end of a bin.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostBin {
    /// What it might have in flight, in reference I/Os; the published most where nothing bounds it.
    pub window: f64,
    /// What it had.
    pub in_flight: u64,
    /// The latency it believed in, in microseconds.
    pub latency_us: u64,
    /// The latency it held the datastore to, in microseconds.
    pub threshold_us: u64,
    /// Whether control was engaged.
    pub engaged: bool,
}

/// The datastore's.
#[derive(Clone, Debug, Default)]
pub struct DatastoreSeries {
    /// Bin by bin.
    pub bins: Vec<DatastoreBin>,
}

/// What the datastore did in a bin.
#[derive(Clone, Copy, Debug, Default)]
pub struct DatastoreBin {
    /// Guests' I/Os that ended there, flushes left out.
    pub ios: u64,
    /// The sum of the times they were there.
    pub latency_ns: u64,
    /// What was there at the end of the bin.
    pub outstanding: u64,
    /// I/Os on the coordination file.
    pub coordination: u64,
}

/// An I/O that ended, as the recorder wants to know it.
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
            told: Vec::new(),
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
    }

    /// Ends a bin, and begins the next.
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
        if let Some(bin) = self.datastore.bins.last_mut()
            && !record.unmanaged
        {
            bin.ios += 1;
            bin.latency_ns += now.since(record.issued).as_nanos();
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

/// Fills in what came out of a run that the simulator did not make: the same scenario with real hosts.
#[derive(Clone, Debug)]
pub struct Recorder {
    results: Results,
    scenario: Scenario,
    costs: CostModel,
}

/// An I/O that ended, as a guest saw it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Of which disk.
    pub disk: usize,
    /// What it did.
    pub op: Op,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub len: u64,
    /// When the guest asked.
    pub arrived: Time,
    /// When it had the answer.
    pub ended: Time,
}

impl Recorder {
    /// Nothing has happened yet. `kind`: what the hosts were told of the datastore, by which they reckon costs.
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

    /// An I/O ended. Within a bin the order does not matter; bins end by [`Recorder::bin`].
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
            // Where the last I/O of a stream ended is not known here: every place counts as a random one.
            cost: self.costs.cost(seen.op, seen.len, false),
            arrived: seen.arrived,
            issued: seen.arrived,
            unmanaged,
        };
        let member = self.scenario.datastore.array.member.clone();
        self.results.ended(seen.ended, &record, &member);
    }

    /// An order of a shop's was served.
    pub fn ordered(&mut self, disk: usize, took: Span) {
        self.results.ordered(disk, took);
    }

    /// Ends a bin, with how the array and each host stand at its end.
    pub fn bin(&mut self, array: DatastoreBin, hosts: &[HostBin]) {
        if let Some(bin) = self.results.datastore.bins.last_mut() {
            *bin = array;
        }
        let outstanding = usize::try_from(array.outstanding).unwrap_or(usize::MAX);
        self.results.sample(outstanding, hosts.iter().copied());
    }

    /// A governor had something to say.
    pub fn told(&mut self, at: Time, says: String) {
        self.results.told.push((at, says));
    }

    /// What came out.
    pub fn results(self) -> Results {
        self.results
    }
}

impl DiskSeries {
    /// The bins between two moments.
    pub fn between(&self, from: Time, to: Time) -> &[DiskBin] {
        let (from, to) = bins(from, to, self.bins.len());
        &self.bins[from..to]
    }

    /// Latencies of the I/Os that ended between two moments, in the order in which they did.
    pub fn latencies(&self, from: Time, to: Time) -> &[u32] {
        self.stretch(from, to, &self.latencies_us, |bin| bin.latencies_from)
    }

    /// How long the same I/Os waited.
    pub fn waits(&self, from: Time, to: Time) -> &[u32] {
        self.stretch(from, to, &self.waits_us, |bin| bin.latencies_from)
    }

    /// How long the orders took that ended between two moments.
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

/// Which bins lie between two moments.
pub(crate) fn bins(from: Time, to: Time, len: usize) -> (usize, usize) {
    let bin = |at: Time| index(at.as_nanos() / BIN.as_nanos()).min(len);
    (bin(from), bin(to).max(bin(from)))
}

fn micros(span: Span) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}

/// How long an array of servers works for an I/O. A turning disk's time depends on where its arm is, so there this is
/// the time of the bytes alone.
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
