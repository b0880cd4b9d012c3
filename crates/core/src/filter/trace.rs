//! The `trace` filter: it records a disk's I/O for replay, with times, latencies and outcomes.
//!
//! It passes everything, and sends full buffers aside to its file ([`Cx::side_write`]); what lies in them is
//! [`format`](mod@format)'s affair. Its manual is `docs/filters/trace.md`.
//!
//! # Always true
//! - Every I/O that ended is in the file, or counted as dropped; a reader learns of both.
//! - Two buffers for good: one fills while the other is on its way. If both are, records are dropped, I/O is not held.
//! - A record waits at most [`PATIENCE`] for its buffer to fill, unless the file is slower than that.
//!
//! # Units
//! Nanoseconds of the host's monotonic clock; bytes.

use super::options::{self, OptionsError, refuse};
use super::{Batch, Cx, Filter, FilterReport, Io, Verdict, Why};
use crate::request::Outcome;
use crate::units::{Span, Time};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use format::{HEADER, Header, RECORD, Record, TracedDisk};

pub mod format;

/// Records in a full block: 64,000 bytes of them. At 100,000 I/Os a second a buffer fills in 16 ms, which any file keeps up with.
pub const BLOCK_RECORDS: usize = 1_600;
/// How long a record waits for others.
pub const PATIENCE: Span = Span::from_secs(1);

/// Where to, and for which disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceSpec {
    /// The file that blocks are appended to.
    pub path: String,
    /// Whose I/O it is; not said by people, but by whoever attaches the disk.
    pub disk: TracedDisk,
}

impl FromStr for TraceSpec {
    type Err = OptionsError;

    /// Reads what follows `trace:`; see the manual.
    fn from_str(text: &str) -> Result<TraceSpec, OptionsError> {
        let mut path = None;
        for (key, value) in options::each(text) {
            match key {
                "path" => path = Some(options::required(key, value)?.to_string()),
                _ => {
                    return Err(refuse!(
                        "the trace filter has no option `{key}`: it has path=FILE"
                    ));
                }
            }
        }
        let path =
            path.ok_or_else(|| refuse!("the trace filter needs a file: write trace:path=FILE"))?;
        Ok(TraceSpec {
            path,
            disk: TracedDisk::default(),
        })
    }
}

impl fmt::Display for TraceSpec {
    /// As [`TraceSpec::from_str`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "path={}", self.path)
    }
}

/// What a `trace` filter has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceReport {
    /// I/Os in blocks that are on the file.
    pub written: u64,
    /// I/Os that no block holds: both buffers were on their way, or the file failed.
    pub dropped: u64,
    /// How the last write to the file ended.
    pub file: Option<Outcome>,
}

/// See the module.
#[derive(Debug)]
pub struct Trace {
    disk: TracedDisk,
    /// Begins with room for a header, which is filled in when it leaves.
    filling: Vec<u8>,
    /// When the first record came into it.
    opened: Time,
    /// The other buffer, unless it is on its way.
    spare: Option<Vec<u8>>,
    sequence: u32,
    report: TraceReport,
}

impl Trace {
    /// One that has recorded nothing.
    pub fn new(spec: &TraceSpec) -> Trace {
        let buffer = || Vec::with_capacity(HEADER + BLOCK_RECORDS * RECORD);
        let mut filling = buffer();
        filling.resize(HEADER, 0);
        Trace {
            disk: spec.disk,
            filling,
            opened: Time::ZERO,
            spare: Some(buffer()),
            sequence: 0,
            report: TraceReport::default(),
        }
    }

    /// Sends what there is to the file and goes on with `next`.
    fn send(&mut self, cx: &mut Cx<'_>, mut next: Vec<u8>) {
        next.clear();
        next.resize(HEADER, 0);
        let mut full = core::mem::replace(&mut self.filling, next);
        let records = u32::try_from(records_in(&full)).expect("a block has BLOCK_RECORDS at most");
        let header = Header {
            disk: self.disk,
            records,
            dropped: self.report.dropped,
        };
        full[..HEADER].copy_from_slice(&header.encode());
        cx.side_write(full);
    }
}

/// How many records a buffer holds.
fn records_in(buffer: &[u8]) -> usize {
    buffer.len().saturating_sub(HEADER) / RECORD
}

impl Filter for Trace {
    fn name(&self) -> &'static str {
        "trace"
    }

    fn submit_all(&mut self, _cx: &mut Cx<'_>, _batch: &mut Batch<'_>) {}

    fn complete(&mut self, cx: &mut Cx<'_>, io: &Io) -> Verdict {
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        if records_in(&self.filling) == BLOCK_RECORDS {
            match self.spare.take() {
                Some(spare) => self.send(cx, spare),
                None => {
                    self.report.dropped += 1;
                    return Verdict::Pass;
                }
            }
        }
        if self.filling.len() == HEADER {
            self.opened = cx.now();
        }
        let Io {
            op,
            flags,
            offset,
            len,
            arrived,
            outcome,
            ..
        } = *io;
        let latency = cx.now().since(arrived);
        let record = Record {
            arrived,
            op,
            flags,
            offset,
            len,
            latency,
            outcome,
            sequence,
        };
        self.filling.extend_from_slice(&record.encode());
        Verdict::Pass
    }

    fn side_done(&mut self, _cx: &mut Cx<'_>, buffer: Vec<u8>, outcome: Outcome) {
        let records = records_in(&buffer) as u64;
        match outcome {
            Ok(()) => self.report.written += records,
            Err(_) => self.report.dropped += records,
        }
        self.report.file = Some(outcome);
        self.spare = Some(buffer);
    }

    fn deadline(&self) -> Option<(Time, Why)> {
        let due = self.filling.len() > HEADER && self.spare.is_some();
        due.then(|| (self.opened + PATIENCE, Why::Records))
    }

    fn timed(&self) -> bool {
        true
    }

    fn tick(&mut self, cx: &mut Cx<'_>) {
        if let Some(spare) = self.spare.take() {
            self.send(cx, spare);
        }
    }

    fn retire(&mut self, cx: &mut Cx<'_>) {
        if self.filling.len() > HEADER {
            self.send(cx, Vec::new());
        }
    }

    fn report(&self) -> FilterReport {
        FilterReport::Trace(self.report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_wants_a_path_and_nothing_else() {
        assert_eq!(
            "path=/tmp/t".parse::<TraceSpec>().map(|spec| spec.path),
            Ok("/tmp/t".into())
        );
        for (text, way_out) in [
            ("", "path=FILE"),
            ("path", "path=..."),
            ("file=x", "path=FILE"),
        ] {
            assert!(
                text.parse::<TraceSpec>()
                    .expect_err(text)
                    .to_string()
                    .contains(way_out)
            );
        }
    }
}
