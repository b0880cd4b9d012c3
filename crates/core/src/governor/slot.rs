//! A host's slot: its published state as 4 KiB, encoded, and checked when decoded.
//!
//! The engine stores a file of 256 slots on the datastore (`.tidegate/hosts.v1`). Slot 0 contains the common settings
//! of the datastore ([`Common`]), each other slot one host's [`Record`]. The governor encodes and decodes; the engine
//! only reads and writes the bytes. This module does not know which host has which slot.
//!
//! # Always true
//! - `decode` returns a result for any bytes of any length, and never panics.
//! - Every number of a decoded record is within the bounds of its field, so no control law divides by an absurd value.
//!   Values written within the bounds are read unchanged.
//! - A partly written slot is not a record: the sequence number is at both ends, and a CRC32C covers all of it.
//!
//! # Picture
//! ```text
//!    0  magic             8   | 56  W, w, n, latency, p99, q, x, peak, threshold, pressure    10 x 8
//!    8  version, count  2+2   | 136 costs: write, byte read, byte written, sequential          4 x 8
//!   12  flags             4   | 168 display name of the host (zero: none) 64, reserved (zero) 8
//!   16  host             16   | 240 up to 160 disks of 24: key 8, flags 1 and shares 3, reservation 4, limit 4,
//!   32  incarnation       8   |     demand 2 (1/16), cost per unit 2 (1/64)
//!   40  sequence          8   | 4080 sequence again 8, nothing 4
//!   48  tick, nothing   4+4   | 4092 CRC32C of all before it
//! ```
//!
//! # Units
//! Little-endian. Rates per second, latencies in nanoseconds, costs and windows in reference I/Os (a 4 KiB random read).

pub use crate::block::{BLOCK as SLOT, Unreadable};

use super::name::Name;
use super::number::{sane, whole16};
use crate::block::{Reader, Writer};
use alloc::vec::Vec;

/// Slots of the file, including the common one. Origin: the file format, version 1.
pub const SLOTS: u16 = 256;
/// Disks that fit into a slot; more are merged ([`Record::encode`]). Origin: the file format, version 1.
pub const DISKS: usize = 160;

const MAGIC: [u8; 8] = *b"TIDEGHST";
const MAGIC_COMMON: [u8; 8] = *b"TIDEGALL";
const VERSION: u16 = 1;
const HOST_AT: usize = 16;
/// Older versions write zeroes here, and ignore all bytes between the costs and the disks.
const NAME_AT: usize = 168;
const ENTRIES_AT: usize = 240;
const _: () = assert!(NAME_AT + size_of::<Name>() <= ENTRIES_AT);
const ENTRY: usize = 24;
const _: () = assert!(ENTRIES_AT + DISKS * ENTRY == TAIL_AT);
const TAIL_AT: usize = 4080;

/// A demand is stored in sixteenths, the precision of a disk's part. Origin: the file format, version 1.
const DEMAND_STEPS: f64 = 16.0;
/// The cost of a unit is stored in 64ths. Origin: the file format, version 1.
const UNIT_STEPS: f64 = 64.0;

/// The longest queue that a slot may claim, in reference I/Os: four times the widest window of a host. Origin:
/// chosen; no measurement.
const DEMAND_MOST: f64 = 4.0 * 256.0;
/// The highest accepted throughput, in reference I/Os a second. Origin: chosen; no measurement.
const RATE_MOST: f64 = 1e9;
/// The highest accepted latency: guests time out after half a minute. Origin: chosen; no measurement.
const LATENCY_MOST: f64 = 60e9;
/// The widest accepted window of a cluster: 255 hosts, each with four times the widest.
const WINDOW_MOST: f64 = 255.0 * DEMAND_MOST;

/// The flags of a host's record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// Control is engaged.
    pub const ENGAGED: Flags = Flags(1);
    /// The host ticks fast.
    pub const FAST: Flags = Flags(2);
    /// The record contains a change that the others should apply at once.
    pub const URGENT: Flags = Flags(4);
    /// The host leaves: its part is free now.
    pub const LEAVING: Flags = Flags(8);
    /// The host's window delays I/Os.
    pub const BINDING: Flags = Flags(16);
    /// The cluster's window is temporarily wider, to learn.
    pub const WIDER: Flags = Flags(32);
    /// The cluster's window is temporarily narrower, to learn.
    pub const NARROWER: Flags = Flags(64);
    /// The host detects load from outside the cluster.
    pub const EXTERNAL: Flags = Flags(128);
    /// The host tries or holds another window because of external load; the others must use the same.
    pub const TRYING: Flags = Flags(256);

    /// Whether every flag of `other` is set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags, with those of `other` if `on`.
    #[must_use]
    pub const fn with(self, other: Flags, on: bool) -> Flags {
        if on { Flags(self.0 | other.0) } else { self }
    }
}

/// One disk in a host's record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Entry {
    /// The disk's identity, equal on all hosts.
    pub key: u64,
    /// Its shares, 100 to 10,000; the sum where disks were merged.
    pub shares: u32,
    /// Its reservation, units a second; 0 for none.
    pub reservation: u32,
    /// Its limit, units a second; 0 for none.
    pub limit: u32,
    /// The I/O that it has, or would have, in flight, in reference I/Os.
    pub demand: f64,
    /// The cost of one unit of it, in reference I/Os.
    pub unit_cost: f64,
    /// Whether this host serves it now. A migrating disk is briefly on two hosts.
    pub served: bool,
    /// Whether the entry merges several disks of equal shares.
    pub merged: bool,
}

/// The record that a host publishes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The host.
    pub host: [u8; 16],
    /// This start of its daemon.
    pub incarnation: u64,
    /// Incremented with each publication.
    pub sequence: u64,
    /// The interval until the next publication, in milliseconds, 50 to 60,000.
    pub tick_ms: u32,
    /// Its flags.
    pub flags: Flags,
    /// The cluster's window, as this host computed it.
    pub cluster: f64,
    /// Its own part of that window.
    pub window: f64,
    /// Completed I/Os a second.
    pub ios: f64,
    /// Their mean normalised latency, nanoseconds.
    pub latency: f64,
    /// Their 99th percentile.
    pub p99: f64,
    /// Its average I/O in flight.
    pub in_flight: f64,
    /// Its throughput, in reference I/Os a second.
    pub rate: f64,
    /// The highest observed throughput of the whole datastore, in reference I/Os a second; 0: not known.
    pub peak: f64,
    /// Its automatic threshold, in nanoseconds; 0: not known.
    pub threshold: f64,
    /// The ratio by which its worst disk misses its latency target, 0 to 64 (1: just met).
    pub pressure: f64,
    /// The learned costs, relative to a 4 KiB random read: a write, 64 KiB read, 64 KiB written, a sequential read; 0:
    /// not known.
    pub costs: [f64; 4],
    /// The display name of the host; empty if it has none.
    pub name: Name,
    /// Its disks.
    pub disks: Vec<Entry>,
}

/// The common settings of the datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// The higher generation applies.
    pub generation: u64,
    /// 0 off, 1 observe, 2 on.
    pub mode: u8,
    /// 0 auto, 1 fixed, 2 off.
    pub threshold_mode: u8,
    /// The fixed threshold, in nanoseconds.
    pub threshold: u64,
    /// The unit of reservations and limits, bytes, 4 KiB to 128 KiB.
    pub io_unit: u32,
    /// Datastores with the same value share hardware; zero: none.
    pub backend: [u8; 16],
}

impl Record {
    /// Encodes the record. If there are more disks than fit, those with the least demand are merged with others of the
    /// same shares. All shares, reservations and demands still count.
    pub fn encode(&self) -> [u8; SLOT] {
        let mut out = Writer::new(MAGIC, VERSION);
        let merged;
        let disks = if self.disks.len() > DISKS {
            merged = merge(&self.disks);
            &merged
        } else {
            &self.disks
        };
        let count = u16::try_from(disks.len()).unwrap_or(0);
        out.put(&count.to_le_bytes());
        out.put(&self.flags.0.to_le_bytes());
        out.put(&self.host);
        out.put(&self.incarnation.to_le_bytes());
        out.put(&self.sequence.to_le_bytes());
        out.put(&self.tick_ms.to_le_bytes());
        out.put(&[0; 4]);
        for number in self.numbers() {
            out.put(&number.to_le_bytes());
        }
        out.go_to(NAME_AT);
        out.put(&self.name.0);
        out.go_to(ENTRIES_AT);
        for disk in disks {
            out.put(&disk.key.to_le_bytes());
            let flags = u32::from(disk.served) << 24 | u32::from(disk.merged) << 25;
            out.put(&(disk.shares.min(0xff_ffff) | flags).to_le_bytes());
            out.put(&disk.reservation.to_le_bytes());
            out.put(&disk.limit.to_le_bytes());
            // Rounded up, so that a small demand does not become idle.
            let steps = disk.demand * DEMAND_STEPS;
            let demand = whole16(steps).saturating_add(u16::from(steps > 0.0));
            out.put(&demand.to_le_bytes());
            out.put(&whole16(disk.unit_cost * UNIT_STEPS + 0.5).to_le_bytes());
        }
        out.go_to(TAIL_AT);
        out.put(&self.sequence.to_le_bytes());
        out.finish()
    }

    /// Decodes the record in a slot, with every field within its bounds.
    pub fn decode(bytes: &[u8]) -> Result<Record, Unreadable> {
        let mut from = Reader::open(bytes, MAGIC, VERSION)?;
        let count = usize::from(u16::from_le_bytes(from.take())).min(DISKS);
        let flags = Flags(u32::from_le_bytes(from.take()));
        let mut record = Record {
            flags,
            host: from.take(),
            incarnation: u64::from_le_bytes(from.take()),
            sequence: u64::from_le_bytes(from.take()),
            tick_ms: u32::from_le_bytes(from.take()).clamp(50, 60_000),
            ..Record::default()
        };
        from.take::<4>();
        let mut number = |low, high| sane(f64::from_le_bytes(from.take()), low, high);
        record.cluster = number(1.0, WINDOW_MOST);
        record.window = number(0.0, DEMAND_MOST);
        record.ios = number(0.0, RATE_MOST);
        record.latency = number(0.0, LATENCY_MOST);
        record.p99 = number(0.0, LATENCY_MOST);
        record.in_flight = number(0.0, DEMAND_MOST);
        record.rate = number(0.0, RATE_MOST);
        record.peak = number(0.0, RATE_MOST);
        record.threshold = number(0.0, LATENCY_MOST);
        record.pressure = number(0.0, 64.0);
        for cost in &mut record.costs {
            *cost = number(0.0, 64.0);
        }
        from.go_to(NAME_AT);
        record.name = Name(from.take());
        from.go_to(ENTRIES_AT);
        for _ in 0..count {
            let key = u64::from_le_bytes(from.take());
            let packed = u32::from_le_bytes(from.take());
            let merged = packed >> 25 & 1 == 1;
            let most = if merged { 0xff_ffff } else { 10_000 };
            record.disks.push(Entry {
                key,
                shares: (packed & 0xff_ffff).clamp(100, most),
                reservation: u32::from_le_bytes(from.take()),
                limit: u32::from_le_bytes(from.take()),
                demand: (f64::from(u16::from_le_bytes(from.take())) / DEMAND_STEPS)
                    .min(DEMAND_MOST),
                unit_cost: (f64::from(u16::from_le_bytes(from.take())) / UNIT_STEPS)
                    .max(1.0 / UNIT_STEPS),
                served: packed >> 24 & 1 == 1,
                merged,
            });
        }
        from.go_to(TAIL_AT);
        if u64::from_le_bytes(from.take()) != record.sequence {
            return Err(Unreadable::Torn);
        }
        Ok(record)
    }

    /// Reads a slot's host, incarnation and sequence number without checking the rest, to detect a change.
    pub fn peek(bytes: &[u8]) -> Option<([u8; 16], u64, u64)> {
        let mut from = Reader::peek(bytes, MAGIC, HOST_AT)?;
        let host = from.take();
        let incarnation = u64::from_le_bytes(from.take());
        Some((host, incarnation, u64::from_le_bytes(from.take())))
    }

    fn numbers(&self) -> [f64; 14] {
        let [a, b, c, d] = self.costs;
        [
            self.cluster,
            self.window,
            self.ios,
            self.latency,
            self.p99,
            self.in_flight,
            self.rate,
            self.peak,
            self.threshold,
            self.pressure,
            a,
            b,
            c,
            d,
        ]
    }
}

impl Common {
    /// The highest accepted generation: far more changes than administrators ever make. A higher one is corrupt, or
    /// could never be replaced. Origin: chosen; no measurement.
    pub const GENERATION_MOST: u64 = 1 << 48;

    /// The generation of an administrator's change, given the highest generations so far.
    pub fn next_generation(known: u64, there: u64) -> u64 {
        let most = Common::GENERATION_MOST;
        known.max(there).saturating_add(1).min(most)
    }

    /// Whether administrators' changes can have reached its generation.
    pub fn is_plausible(&self) -> bool {
        self.generation <= Common::GENERATION_MOST
    }

    /// Whether it replaces `known`. At the highest generation the last written one applies, so that an administrator
    /// can always change it.
    pub fn supersedes(&self, known: &Common) -> bool {
        let last = self.generation == Common::GENERATION_MOST && self != known;
        let newer =
            self.generation > known.generation || last && known.generation == self.generation;
        self.is_plausible() && newer
    }

    /// Encodes slot 0.
    pub fn encode(&self) -> [u8; SLOT] {
        let mut out = Writer::new(MAGIC_COMMON, VERSION);
        out.put(&[self.mode, self.threshold_mode]);
        out.put(&self.io_unit.to_le_bytes());
        out.put(&self.generation.to_le_bytes());
        out.put(&self.threshold.to_le_bytes());
        out.put(&self.backend);
        out.finish()
    }

    /// Decodes slot 0, within bounds.
    pub fn decode(bytes: &[u8]) -> Result<Common, Unreadable> {
        let mut from = Reader::open(bytes, MAGIC_COMMON, VERSION)?;
        let [mode, threshold_mode] = from.take();
        let io_unit = u32::from_le_bytes(from.take());
        Ok(Common {
            mode: mode.min(2),
            threshold_mode: threshold_mode.min(2),
            io_unit: io_unit.clamp(4 << 10, 128 << 10),
            generation: u64::from_le_bytes(from.take()),
            threshold: u64::from_le_bytes(from.take()).clamp(200_000, 100_000_000),
            backend: from.take(),
        })
    }
}

/// Merges entries until they fit: within each number of shares, those with the least demand.
fn merge(disks: &[Entry]) -> Vec<Entry> {
    let mut rest = disks.to_vec();
    // Highest demand first: these remain separate. Ties are broken by key, so that a record does not depend on the
    // order.
    rest.sort_unstable_by(|a, b| b.demand.total_cmp(&a.demand).then(a.key.cmp(&b.key)));
    let mut small = rest.split_off(DISKS / 2);
    small.sort_by_key(|disk| disk.shares);
    let groups = small.chunk_by(|a, b| a.shares == b.shares).count();
    // If there are more different shares than entries, neighbouring shares are merged too: their sum remains right.
    let places = DISKS - rest.len();
    if groups <= places {
        rest.extend(
            small
                .chunk_by(|a, b| a.shares == b.shares)
                .map(merged_entry),
        );
    } else {
        rest.extend(small.chunks(small.len().div_ceil(places)).map(merged_entry));
    }
    rest
}

/// Merges several disks into one entry with their total demand.
fn merged_entry(disks: &[Entry]) -> Entry {
    if let [one] = disks {
        return *one;
    }
    let mut sum = Entry {
        key: disks.iter().map(|disk| disk.key).min().unwrap_or(0),
        merged: true,
        served: true,
        ..Entry::default()
    };
    let mut unlimited = false;
    for disk in disks {
        // An idle disk has no demand; its shares do not count and do not go to its neighbours.
        if disk.demand > 0.0 {
            sum.shares += disk.shares;
            unlimited |= disk.limit == 0;
        }
        sum.reservation = sum.reservation.saturating_add(disk.reservation);
        sum.limit = sum.limit.saturating_add(disk.limit);
        sum.demand += disk.demand;
        sum.unit_cost = sum.unit_cost.max(disk.unit_cost);
    }
    if unlimited {
        sum.limit = 0;
    }
    sum.shares = sum.shares.max(100);
    sum
}

#[cfg(test)]
mod tests;
