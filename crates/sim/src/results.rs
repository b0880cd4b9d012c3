//! What came out of a run, as plain values: what each disk, host and the datastore did in every tenth of a second.
//!
//! The world fills a [`Results`] in; `judge.rs` computes the figures that scenarios expect something of, and reports
//! draw the rest.
//!
//! # Units
//! Latencies are kept in microseconds, in the order in which I/Os ended; a bin knows where its own begin.

use crate::numbers::{float, index, small};
use crate::scenario::Scenario;
use tidegate_core::iocontrol::Cost;
use tidegate_core::request::Op;
use tidegate_core::units::{Span, Time};
use tidegate_model::spec::MemberSpec;

/// The length of a bin.
pub const BIN: Span = Span::from_millis(100);

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
