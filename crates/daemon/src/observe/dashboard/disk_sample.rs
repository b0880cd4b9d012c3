//! One second of one disk with its latency distribution, for the disk's page.
//!
//! It queries only this disk's I/O thread, only for this disk, and only while a page of the disk is open.
//!
//! # Units
//! A heat map's rows are half octaves of nanoseconds. Row `2 n` has latencies from 2^n to 1.5 x 2^n, and row `2 n + 1`
//! those from there to 2^(n+1).

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_api::name::Name;
use tidegate_api::stats::DiskStats;
use tidegate_core::filter::stats::{Class, Stage, StatsReport};

use super::feed::{Frame, Look, event};
use super::host_sample::now_ms;
use crate::disks::counters::DiskCounters;
use crate::observe::monitor::Monitor;
use crate::observe::sample;
use crate::os_error::Outcome;

/// Samples one disk, and stores its previous counters.
pub(crate) struct DiskSample {
    name: Name,
    before: Option<DiskCounters>,
}

#[derive(Serialize)]
struct Second<'a> {
    /// Milliseconds since 1970.
    at: u64,
    name: &'a Name,
    /// Null while the disk is not attached.
    stats: Option<DiskStats>,
    /// The number of I/Os by latency from the first to the last stage. Only rows that are not empty, each with its
    /// count.
    heat: Vec<(u32, u64)>,
}

impl DiskSample {
    /// The sampler of the disk of that name, attached or not.
    pub(crate) fn of(name: Name) -> DiskSample {
        DiskSample { name, before: None }
    }

    fn counters(&self, monitor: &Monitor) -> Option<DiskCounters> {
        monitor
            .services()
            .disk_service
            .live()
            .get(&self.name)?
            .counters()
            .ok()
    }
}

impl Look for DiskSample {
    fn look(&mut self, monitor: &Monitor) -> Outcome<Frame> {
        let now = self.counters(monitor);
        let before = self.before.as_ref();
        let frame = event(
            "disk",
            &Second {
                at: now_ms(),
                name: &self.name,
                stats: now.as_ref().map(|now| sample::disk(now, before)),
                heat: now.as_ref().map_or_else(Vec::new, |now| {
                    // The first sample has no previous second.
                    match before.filter(|before| before.attached == now.attached) {
                        Some(before) => heat(now.stats.as_deref(), before.stats.as_deref()),
                        None => Vec::new(),
                    }
                }),
            },
        );
        self.before = now;
        Ok(frame)
    }
}

fn heat(now: Option<&StatsReport>, before: Option<&StatsReport>) -> Vec<(u32, u64)> {
    let (Some(now), Some(before)) = (now, before) else {
        return Vec::new();
    };
    let mut rows = BTreeMap::new();
    for class in Class::ALL {
        let Some(all) = now.latency(class, Stage::Total) else {
            continue;
        };
        let before = before.latency(class, Stage::Total);
        let since = before.map_or_else(|| all.clone(), |before| all.since(before));
        for bucket in since.buckets() {
            *rows.entry(row(bucket.from.as_nanos())).or_insert(0) += bucket.count;
        }
    }
    rows.into_iter().collect()
}

/// The heat map's row of a latency.
fn row(ns: u64) -> u32 {
    let octave = ns.max(1).ilog2();
    let half = octave > 0 && ns >> (octave - 1) & 1 == 1;
    octave * 2 + u32::from(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_half_octaves() {
        assert_eq!((row(0), row(1), row(2), row(3)), (0, 0, 2, 3));
        assert_eq!((row(1_024), row(1_535), row(1_536)), (20, 20, 21));
        assert_eq!((row(2_047), row(2_048)), (21, 22));
    }
}
