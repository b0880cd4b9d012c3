//! The reader of trace files.
//!
//! The `trace` filter writes such files in blocks. This module makes one list of them, in order of arrival. A guest of
//! a [scenario](crate::scenario) or the lab replays the list. [`tidegate_core::filter::trace::format`] defines the
//! file's layout.
//!
//! # Always true
//! - A list contains complete traces only. A truncated, damaged or foreign file is rejected with the position.
//! - I/Os are in order of arrival. The first one arrived at zero.
//!
//! # Units
//! Nanoseconds since the first arrival; bytes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use tidegate_core::filter::trace::format::{
    HEADER, Header, MAGIC, RECORD, Record, TraceError, TraceFault, TracedDisk,
};
use tidegate_core::request::{Flags, Op};
use tidegate_core::units::{Span, Time};

/// A disk's recorded I/O.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The disk.
    pub disk: TracedDisk,
    /// The I/Os, in order of arrival.
    pub ios: Vec<TracedIo>,
    /// I/Os that were not recorded.
    pub lost: u64,
}

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedIo {
    /// Its arrival, relative to the first one.
    pub at: Span,
    /// The operation.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
    /// Its latency.
    pub latency: Span,
    /// Whether it failed.
    pub failed: bool,
    /// Number of other I/Os outstanding at its arrival.
    pub outstanding: u32,
}

/// Why a file is not a usable trace.
#[derive(Debug)]
pub enum ReadError {
    /// Reading fails.
    Unreadable(std::io::Error),
    /// Not a trace, or an incomplete one.
    Broken(TraceError),
    /// A trace without I/O.
    Empty,
    /// A trace of several disks.
    SeveralDisks,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Unreadable(_) => f.write_str("it cannot be read"),
            ReadError::Broken(error) => error.fmt(f),
            ReadError::Empty => f.write_str("it has no I/O"),
            ReadError::SeveralDisks => f.write_str("it has the I/O of several disks"),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ReadError::Unreadable(error) => Some(error),
            ReadError::Broken(_) | ReadError::Empty | ReadError::SeveralDisks => None,
        }
    }
}

/// The result of scanning a file, complete or not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    /// The disk of its first block.
    pub disk: Option<TracedDisk>,
    /// I/Os that were not recorded.
    pub lost: u64,
    /// Whether it has blocks of other disks. They are skipped.
    pub others: bool,
    /// Bytes up to the end of the last complete block.
    pub whole: u64,
    /// Why the scan ended there, if not at the file's end.
    pub broken: Option<TraceError>,
}

impl Scan {
    /// Scans the file up to its first error. `each` is called with the records of complete blocks, in file order.
    ///
    /// # Errors
    /// Reading fails.
    pub fn of(from: &mut impl Read, each: &mut dyn FnMut(&Record)) -> std::io::Result<Scan> {
        let mut scan = Scan::default();
        let mut block = Vec::new();
        let mut dropped = 0;
        loop {
            let begins = usize::try_from(scan.whole).unwrap_or(usize::MAX);
            let header = match read_block(from, begins, &mut block)? {
                Ok(Some(header)) => header,
                Ok(None) => return Ok(scan),
                Err(broken) => {
                    scan.broken = Some(broken);
                    return Ok(scan);
                }
            };
            let length = HEADER + RECORD * block.len();
            scan.whole += u64::try_from(length).unwrap_or(u64::MAX);
            let ours = *scan.disk.get_or_insert(header.disk);
            if header.disk.uuid != ours.uuid {
                scan.others = true;
                continue;
            }
            // A filter that was inserted again counts from zero.
            scan.lost += match header.dropped.checked_sub(dropped) {
                Some(more) => more,
                None => header.dropped,
            };
            dropped = header.dropped;
            // After a reboot, the clock starts again. All times are converted to the first block's clock.
            let later = apart(header.disk.unix_origin, ours.unix_origin);
            for record in &block {
                each(&Record {
                    arrived: moved(record.arrived, later),
                    ..*record
                });
            }
        }
    }
}

/// Reads a block at this position; none at the end of the file.
fn read_block(
    from: &mut impl Read,
    begins: usize,
    block: &mut Vec<Record>,
) -> std::io::Result<Result<Option<Header>, TraceError>> {
    let broken = |fault, at| Ok(Err(TraceError { fault, at }));
    let mut head = [0; HEADER];
    let got = fill(from, &mut head)?;
    if got == 0 {
        return Ok(Ok(None));
    }
    if got < HEADER {
        let known = got.min(MAGIC.len());
        let fault = match head[..known] == MAGIC[..known] {
            true => TraceFault::Truncated,
            false => TraceFault::NotATrace,
        };
        return broken(fault, begins);
    }
    let header = match Header::decode(&head) {
        Ok(header) => header,
        Err(fault) => return broken(fault, begins),
    };
    block.clear();
    for _ in 0..header.records {
        let at = begins + HEADER + RECORD * block.len();
        let mut bytes = [0; RECORD];
        if fill(from, &mut bytes)? < RECORD {
            return broken(TraceFault::Truncated, at);
        }
        match Record::decode(&bytes) {
            Some(record) => block.push(record),
            None => return broken(TraceFault::Record, at),
        }
    }
    Ok(Ok(Some(header)))
}

/// Clocks that differ by more than this are of two boots. A smaller difference is an adjustment of the wall clock.
const BOOTS: i128 = 5_000_000_000;

/// The difference between the zeros of two clocks; zero if one is unknown or they are equal.
fn apart(later: u64, earlier: u64) -> i128 {
    let apart = i128::from(later) - i128::from(earlier);
    match later == 0 || earlier == 0 || apart.abs() < BOOTS {
        true => 0,
        false => apart,
    }
}

fn moved(at: Time, by: i128) -> Time {
    Time::from_nanos(u64::try_from(i128::from(at.as_nanos()) + by).unwrap_or(0))
}

/// Fills `bytes` or reads to the end. Returns the number of bytes read.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        match from.read(&mut bytes[got..]) {
            Ok(0) => break,
            Ok(count) => got += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

impl Trace {
    /// Reads a trace file.
    ///
    /// # Errors
    /// When reading fails, or the file is not a complete trace of one disk with I/O.
    pub fn open(path: &Path) -> Result<Trace, ReadError> {
        let file = File::open(path).map_err(ReadError::Unreadable)?;
        Trace::read(&mut BufReader::with_capacity(1 << 20, file))
    }

    /// The same from any reader.
    ///
    /// # Errors
    /// As [`Trace::open`].
    pub fn read(from: &mut impl Read) -> Result<Trace, ReadError> {
        let mut ios = Vec::new();
        let scan = Scan::of(from, &mut |record| {
            ios.push(TracedIo {
                at: record.arrived.since(Time::ZERO),
                op: record.op,
                flags: record.flags,
                offset: record.offset,
                len: record.len,
                latency: record.latency,
                failed: record.outcome.is_err(),
                outstanding: 0,
            });
        });
        let scan = scan.map_err(ReadError::Unreadable)?;
        if let Some(error) = scan.broken {
            return Err(ReadError::Broken(error));
        }
        if scan.others {
            return Err(ReadError::SeveralDisks);
        }
        // The sort is stable: I/Os with equal times stay in order of completion.
        ios.sort_by_key(|io| io.at);
        let (Some(disk), Some(first)) = (scan.disk, ios.first()) else {
            return Err(ReadError::Empty);
        };
        let begins = first.at;
        for io in &mut ios {
            io.at = Span::from_nanos(io.at.as_nanos() - begins.as_nanos());
        }
        let mut trace = Trace {
            disk,
            ios,
            lost: scan.lost,
        };
        trace.count_outstanding();
        Ok(trace)
    }

    /// Only some of its I/Os, with the same intervals.
    #[must_use]
    pub fn only(&self, wanted: impl Fn(&TracedIo) -> bool) -> Trace {
        let selected = || self.ios.iter().filter(|io| wanted(io));
        let begins = selected().next().map_or(Span::ZERO, |first| first.at);
        let earlier = |at: Span| Span::from_nanos(at.as_nanos() - begins.as_nanos());
        let mut trace = Trace {
            disk: self.disk,
            ios: selected()
                .map(|io| TracedIo {
                    at: earlier(io.at),
                    ..*io
                })
                .collect(),
            lost: self.lost,
        };
        trace.count_outstanding();
        trace
    }

    /// Only the operations that an array model supports, without failed ones.
    #[must_use]
    pub fn modelled(&self) -> Trace {
        self.only(|io| !io.failed && matches!(io.op, Op::Read | Op::Write | Op::Flush))
    }

    /// Computes the number of other I/Os outstanding at each arrival.
    fn count_outstanding(&mut self) {
        let mut ends = BinaryHeap::new();
        for io in &mut self.ios {
            while ends.peek().is_some_and(|Reverse(end)| *end <= io.at) {
                ends.pop();
            }
            io.outstanding = u32::try_from(ends.len()).unwrap_or(u32::MAX);
            ends.push(Reverse(io.at + io.latency));
        }
    }

    /// From the first arrival to the last completion.
    pub fn lasts(&self) -> Span {
        let ends = self.ios.iter().map(|io| io.at + io.latency);
        ends.max().unwrap_or(Span::ZERO)
    }

    /// The end of the last byte that is accessed.
    pub fn reaches(&self) -> u64 {
        let ends = self.ios.iter().map(|io| io.offset.saturating_add(io.len));
        ends.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one block.
    fn block(uuid: u8, dropped: u64, ios: &[(u64, u64, Op)]) -> Vec<u8> {
        let header = Header {
            disk: TracedDisk {
                uuid: [uuid; 16],
                size: 1 << 30,
                unix_origin: 1,
            },
            records: u32::try_from(ios.len()).expect("a few"),
            dropped,
        };
        let mut bytes = header.encode().to_vec();
        for (number, &(at, latency, op)) in (0..).zip(ios) {
            let record = Record {
                arrived: Time::from_nanos(at),
                op,
                flags: Flags::NONE,
                offset: at,
                len: 512,
                latency: Span::from_nanos(latency),
                outcome: Ok(()),
                sequence: number,
            };
            bytes.extend(record.encode());
        }
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Trace, ReadError> {
        Trace::read(&mut &bytes[..])
    }

    #[test]
    fn ios_are_in_order_of_arrival_with_the_number_outstanding() {
        let first = block(1, 0, &[(1_100, 50, Op::Write), (1_000, 500, Op::Read)]);
        let second = block(1, 3, &[(1_200, 10, Op::Flush), (1_210, 900, Op::Read)]);
        let trace = read(&[first, second].concat()).expect("a trace");
        let seen = trace
            .ios
            .iter()
            .map(|io| (io.at.as_nanos(), io.outstanding));
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [(0, 0), (100, 1), (200, 1), (210, 1)]
        );
        assert_eq!((trace.lost, trace.reaches()), (3, 1_210 + 512));
        assert_eq!(trace.lasts(), Span::from_nanos(1_110));
        let reads = trace.only(|io| io.op == Op::Read);
        assert_eq!(reads.ios.iter().map(|io| io.outstanding).max(), Some(1));
        let flush = trace.only(|io| io.op == Op::Flush);
        assert_eq!((flush.ios[0].at, flush.ios[0].outstanding), (Span::ZERO, 0));
    }

    #[test]
    fn a_file_that_is_not_a_complete_trace_of_one_disk_is_rejected_with_the_reason() {
        let good = block(1, 0, &[(5, 5, Op::Read), (6, 5, Op::Read)]);
        let error = |bytes: &[u8]| read(bytes).expect_err("no trace").to_string();
        assert!(error(b"").contains("no I/O"));
        assert!(error(b"name = 'sioc-1'").contains("is it another file?"));
        assert!(error(&[b'x'; 4096]).contains("byte 0 does not begin a block"));
        assert!(error(&good[..good.len() - 1]).contains("cut off at byte 104"));
        assert!(error(&good[..20]).contains("cut off at byte 0"));
        let mut damaged = good.clone();
        damaged[HEADER + 35] = 0;
        assert!(error(&damaged).contains("record at byte 64 is damaged"));
        let other = block(2, 0, &[(5, 5, Op::Read)]);
        assert!(error(&[good, other].concat()).contains("several disks"));
    }

    #[test]
    fn the_complete_part_of_a_broken_file_is_reported() {
        let first = block(1, 0, &[(5, 5, Op::Read)]);
        let bytes = [first.clone(), first[..70].to_vec()].concat();
        let mut records = 0;
        let scan = Scan::of(&mut &bytes[..], &mut |_| records += 1).expect("bytes can be read");
        assert_eq!((scan.whole, records), (104, 1));
        assert_eq!(
            scan.broken,
            Some(TraceError {
                fault: TraceFault::Truncated,
                at: 104 + 64
            })
        );
    }
}
