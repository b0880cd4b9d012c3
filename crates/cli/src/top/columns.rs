//! The columns of `top`: one table for disks, one for I/O threads.
//!
//! The screen, the batch CSV and the help all read these tables, so that a head means one thing everywhere.

use std::cmp::Ordering;

use tidegate_api::stats::{DiskStats, OpStats, ThreadStats};

use crate::{figures, stats};

/// A cell's value, for sorting and for CSV.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    /// A name or a list of names.
    Text(String),
    /// A figure.
    Number(f64),
}

/// How a figure is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// A name, to the left.
    Text,
    /// A count or a count a second.
    Count,
    /// Bytes a second, as MB/s.
    Megabytes,
    /// Microseconds.
    Time,
    /// A ratio, as per cent.
    Percent,
}

/// One column.
pub(super) struct Column<T> {
    /// Its head on the screen.
    pub(super) head: &'static str,
    /// Its name in CSV, with the unit.
    pub(super) key: &'static str,
    /// Its width on the screen.
    pub(super) width: usize,
    /// How its figures are shown.
    pub(super) look: Look,
    /// What it means, for the help.
    pub(super) meaning: &'static str,
    /// Its value in a row.
    pub(super) cell: fn(&T) -> Cell,
}

impl<T> Column<T> {
    /// The cell as it stands on the screen, not yet padded.
    pub(super) fn shown(&self, row: &T) -> String {
        match ((self.cell)(row), self.look) {
            (Cell::Text(text), _) => text,
            (Cell::Number(value), Look::Text | Look::Count) => figures::count(value),
            (Cell::Number(value), Look::Megabytes) => figures::megabytes(value),
            (Cell::Number(value), Look::Time) => figures::micros(value),
            (Cell::Number(value), Look::Percent) => figures::percent(value),
        }
    }

    /// The order of two rows: names from A to Z, figures from the largest.
    pub(super) fn order(&self, a: &T, b: &T) -> Ordering {
        match ((self.cell)(a), (self.cell)(b)) {
            (Cell::Number(a), Cell::Number(b)) => b.total_cmp(&a),
            (Cell::Text(a), Cell::Text(b)) => a.cmp(&b),
            (Cell::Text(_), Cell::Number(_)) => Ordering::Less,
            (Cell::Number(_), Cell::Text(_)) => Ordering::Greater,
        }
    }
}

macro_rules! columns {
    ($($head:literal $key:literal $width:literal $look:ident $meaning:literal $cell:expr;)*) => {
        [$(Column { head: $head, key: $key, width: $width, look: Look::$look, meaning: $meaning, cell: $cell }),*]
    };
}

/// Columns of disks.
pub(super) const DISKS: [Column<DiskStats>; 16] = columns! {
    "DISK" "disk" 16 Text "the disk" |d| text(&d.name);
    "DATASTORE" "datastore" 10 Text "the datastore" |d| text(&d.datastore);
    "THR" "thread" 3 Count "the I/O thread that serves it" |d| Cell::Number(f64::from(d.thread));
    "R/S" "reads_per_s" 6 Count "reads a second" |d| of(d, "read", |op| op.iops);
    "W/S" "writes_per_s" 6 Count "writes a second" |d| of(d, "write", |op| op.iops);
    "RMB/S" "read_bytes_per_s" 6 Megabytes "megabytes read a second" |d| of(d, "read", |op| op.bytes_per_s);
    "WMB/S" "write_bytes_per_s" 6 Megabytes "megabytes written a second" |d| of(d, "write", |op| op.bytes_per_s);
    "ACTV" "outstanding" 5 Count "I/Os outstanding now" |d| Cell::Number(figures::to_f64(d.outstanding));
    "GAVG" "total_mean_us" 7 Time "mean latency that the guest sees" |d| Cell::Number(d.all.latency.total.mean_us);
    "P50" "total_p50_us" 7 Time "median latency" |d| Cell::Number(d.all.latency.total.p50_us);
    "P95" "total_p95_us" 7 Time "latency, 95th percentile" |d| Cell::Number(d.all.latency.total.p95_us);
    "P99" "total_p99_us" 7 Time "latency, 99th percentile" |d| Cell::Number(d.all.latency.total.p99_us);
    "QAVG" "queue_mean_us" 7 Time "mean wait in the device's queue" |d| Cell::Number(d.all.latency.queue.mean_us);
    "FAVG" "filters_mean_us" 7 Time "mean time in the filters" |d| Cell::Number(d.all.latency.filters.mean_us);
    "DAVG" "datastore_mean_us" 7 Time "mean time in the datastore" |d| Cell::Number(d.all.latency.datastore.mean_us);
    "HIT" "cache_hit_ratio" 5 Percent "reads that the flash cache answered" |d| hit(d.cache_hit_ratio);
};

/// Columns of I/O threads.
pub(super) const THREADS: [Column<ThreadStats>; 14] = columns! {
    "THREAD" "thread" 6 Text "the I/O thread" |t| Cell::Text(format!("{:>3}", t.thread));
    "STATE" "state" 8 Text "active, locked, leaving or draining" |t| Cell::Text(t.state.as_str().to_owned());
    "CPU" "cpu" 4 Text "the CPU that it is pinned to" |t| Cell::Text(t.cpu.map_or_else(figures::dash, |c| c.to_string()));
    "REQ/S" "requests_per_s" 7 Count "requests answered a second" |t| Cell::Number(t.requests_per_s);
    "BUSY" "busy_ratio" 5 Percent "time spent on requests" |t| Cell::Number(t.busy_ratio);
    "POLL" "polling_ratio" 5 Percent "time spent polling without requests" |t| Cell::Number(t.polling_ratio);
    "SLEEP" "sleeping_ratio" 5 Percent "time spent asleep" |t| Cell::Number(t.sleeping_ratio);
    "LOST" "run_delay_ratio" 5 Percent "of these, time in which others had its CPU" |t| Cell::Number(t.run_delay_ratio);
    "QD50" "queue_delay_p50_us" 7 Time "median queueing delay: how long requests waited until it saw them" |t| Cell::Number(t.queue_delay_p50_us);
    "QD99" "queue_delay_p99_us" 7 Time "queueing delay, 99th percentile" |t| Cell::Number(t.queue_delay_p99_us);
    "TURNS" "turns_total" 8 Count "turns of its loop" |t| Cell::Number(figures::to_f64(t.turns_total));
    "WAKES" "wakeups_total" 8 Count "wake-ups from sleep" |t| Cell::Number(figures::to_f64(t.wakeups_total));
    "DISKS" "disks" 5 Count "number of disks that it serves" |t| Cell::Number(figures::to_f64(t.disks.len() as u64));
    "NAMES" "disk_names" 40 Text "names of these disks" |t| Cell::Text(t.disks.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(" "));
};

fn text(name: &tidegate_api::name::Name) -> Cell {
    Cell::Text(name.to_string())
}

/// Blank for a disk without a flash cache, or without reads.
fn hit(ratio: Option<f64>) -> Cell {
    ratio.map_or_else(|| Cell::Text(String::new()), Cell::Number)
}

fn of(disk: &DiskStats, op: &str, figure: fn(&OpStats) -> f64) -> Cell {
    Cell::Number(stats::op(disk, op).map_or(0.0, figure))
}
