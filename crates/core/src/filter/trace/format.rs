//! The file format of a trace: its layout, encoder and decoder.
//!
//! The [`trace`](super) filter writes blocks of it; the lab and whoever else reads a trace use [`Reader`]. It knows
//! bytes in memory only, neither files nor filters. The format is also in the manual, `docs/filters/trace.md`.
//!
//! # Always true
//! - [`Reader`] never panics and never runs on after what it cannot understand.
//! - What [`Record::encode`] and [`Header::encode`] write, the decoders read back.
//!
//! # Picture: blocks follow each other, each understandable alone; all little-endian
//! ```text
//! block   header (64 bytes), then `records` records of 40 bytes each
//! header  0 magic "TIDETRAC"  8 version u16  10 record size u16  12 records u32  16 disk uuid [16]
//!        32 disk size u64  40 unix time of time zero, ns u64  48 dropped until here u64  56 check u64
//! record  0 arrived ns u64  8 offset u64  16 length u64  24 latency ns u64
//!        32 op u8  33 flags u8  34 outcome u8 (0 done, else 1 + fault)  35 0xd1  36 sequence u32
//! ```
//! The check is FNV-1a over the 56 bytes before it. Records are in order of completion; sequence numbers go on over
//! blocks and skip what was dropped.
//!
//! # Units
//! Nanoseconds of the host's monotonic clock; bytes.

use crate::request::{Fault, Flags, Op, Outcome};
use crate::units::{Span, Time};
use core::fmt;

/// Begins every block.
pub const MAGIC: [u8; 8] = *b"TIDETRAC";
/// The format described above.
pub const VERSION: u16 = 1;
/// Bytes of a block's header.
pub const HEADER: usize = 64;
/// Bytes of a record.
pub const RECORD: usize = 40;
/// In every record: tells a record from zeroes and from most garbage.
const MARK: u8 = 0xd1;

/// The disk that a trace is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TracedDisk {
    /// Its uuid.
    pub uuid: [u8; 16],
    /// Its size in bytes.
    pub size: u64,
    /// What the wall clock said at the monotonic clock's zero, in nanoseconds since 1970; zero where unknown.
    pub unix_origin: u64,
}

/// One I/O as a trace knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When the front end first saw it.
    pub arrived: Time,
    /// What was asked.
    pub op: Op,
    /// How.
    pub flags: Flags,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub len: u64,
    /// From its arrival to its end.
    pub latency: Span,
    /// How it ended.
    pub outcome: Outcome,
    /// Its number among all that ended; wraps.
    pub sequence: u32,
}

impl Record {
    /// As it lies in the file.
    pub fn encode(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[0..8].copy_from_slice(&self.arrived.as_nanos().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.latency.as_nanos().to_le_bytes());
        bytes[32] = self.op as u8;
        bytes[33] = self.flags.bits();
        bytes[34] = self.outcome.map_or_else(|fault| 1 + fault as u8, |()| 0);
        bytes[35] = MARK;
        bytes[36..40].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// Back from [`Record::encode`]; `None` where an operation, flag, outcome or the mark is unknown.
    pub fn decode(bytes: &[u8; RECORD]) -> Option<Record> {
        let outcome = match bytes[34] {
            0 => Ok(()),
            number => Err(*Fault::ALL.get(usize::from(number) - 1)?),
        };
        let flags = [Flags::FUA, Flags::MAY_UNMAP, Flags::FAST_ONLY]
            .into_iter()
            .filter(|flag| bytes[33] & flag.bits() != 0)
            .fold(Flags::NONE, Flags::with);
        (bytes[35] == MARK && flags.bits() == bytes[33]).then_some(())?;
        Some(Record {
            arrived: Time::from_nanos(u64_at(bytes, 0)?),
            offset: u64_at(bytes, 8)?,
            len: u64_at(bytes, 16)?,
            latency: Span::from_nanos(u64_at(bytes, 24)?),
            op: *Op::ALL.get(usize::from(bytes[32]))?,
            flags,
            outcome,
            sequence: u32_at(bytes, 36)?,
        })
    }
}

/// What a block says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Whose I/O follows.
    pub disk: TracedDisk,
    /// How many records follow.
    pub records: u32,
    /// How many I/Os before this block were not recorded.
    pub dropped: u64,
}

impl Header {
    /// As it lies in the file.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a record's size fits in 16 bits"
    )]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[0..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10..12].copy_from_slice(&(RECORD as u16).to_le_bytes());
        bytes[12..16].copy_from_slice(&self.records.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.disk.uuid);
        bytes[32..40].copy_from_slice(&self.disk.size.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.disk.unix_origin.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.dropped.to_le_bytes());
        let check = fnv1a(&bytes[..56]);
        bytes[56..64].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Back from [`Header::encode`].
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Header, TraceFault> {
        if bytes[0..8] != MAGIC || u64_at(bytes, 56) != Some(fnv1a(&bytes[..56])) {
            return Err(TraceFault::NotATrace);
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION || usize::from(u16::from_le_bytes([bytes[10], bytes[11]])) != RECORD {
            return Err(TraceFault::Version(version));
        }
        let parts = || {
            let uuid = bytes.get(16..32)?.try_into().ok()?;
            let (size, unix_origin) = (u64_at(bytes, 32)?, u64_at(bytes, 40)?);
            let disk = TracedDisk {
                uuid,
                size,
                unix_origin,
            };
            Some(Header {
                disk,
                records: u32_at(bytes, 12)?,
                dropped: u64_at(bytes, 48)?,
            })
        };
        parts().ok_or(TraceFault::NotATrace)
    }
}

/// Why a trace cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceFault {
    /// What stands where a block should begin is none.
    NotATrace,
    /// A newer program wrote it.
    Version(u16),
    /// A record makes no sense.
    Record,
    /// It ends in the middle: its writer was cut off.
    Truncated,
}

/// A [`TraceFault`] and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceError {
    /// What.
    pub fault: TraceFault,
    /// At which byte.
    pub at: usize,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at;
        match self.fault {
            TraceFault::NotATrace => write!(
                f,
                "byte {at} does not begin a block of a trace: is it another file?"
            ),
            TraceFault::Version(v) => {
                write!(
                    f,
                    "the trace at byte {at} has version {v}, this program reads {VERSION}: use a newer one"
                )
            }
            TraceFault::Record => write!(
                f,
                "the record at byte {at} is damaged: what comes before it is good"
            ),
            TraceFault::Truncated => write!(
                f,
                "the trace is cut off at byte {at}: what comes before it is good"
            ),
        }
    }
}

impl core::error::Error for TraceError {}

/// What a trace holds, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A block begins.
    Block(Header),
    /// An I/O.
    Record(Record),
}

/// Reads a trace from the bytes of its file; ends after the first error.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Records left in the block; `None` after an error.
    left: Option<u32>,
}

impl<'a> Reader<'a> {
    /// A reader of a whole file, or of its first part.
    pub const fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader {
            bytes,
            at: 0,
            left: Some(0),
        }
    }

    fn step(&mut self, left: u32) -> Result<Entry, TraceFault> {
        let rest = &self.bytes[self.at..];
        if left == 0 {
            let bytes = rest.first_chunk().ok_or(TraceFault::Truncated)?;
            let header = Header::decode(bytes)?;
            self.at += HEADER;
            self.left = Some(header.records);
            return Ok(Entry::Block(header));
        }
        let bytes = rest.first_chunk().ok_or(TraceFault::Truncated)?;
        let record = Record::decode(bytes).ok_or(TraceFault::Record)?;
        self.at += RECORD;
        self.left = Some(left - 1);
        Ok(Entry::Record(record))
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Entry, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.left?;
        if left == 0 && self.at == self.bytes.len() {
            return None;
        }
        Some(self.step(left).map_err(|fault| {
            self.left = None;
            TraceError { fault, at: self.at }
        }))
    }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u64::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u32::from_le_bytes)
}

/// A 64-bit checksum that is short to write and good enough against accidents.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    fn record(sequence: u32) -> Record {
        Record {
            arrived: Time::from_nanos(5),
            op: Op::Discard,
            flags: Flags::FUA.with(Flags::MAY_UNMAP),
            offset: 1 << 40,
            len: 1 << 33,
            latency: Span::from_micros(80),
            outcome: Err(Fault::Gone),
            sequence,
        }
    }

    fn block(records: u32) -> Vec<u8> {
        let header = Header {
            disk: TracedDisk {
                uuid: [7; 16],
                size: 9,
                unix_origin: 3,
            },
            records,
            dropped: 2,
        };
        let mut bytes = header.encode().to_vec();
        (0..records).for_each(|n| bytes.extend_from_slice(&record(n).encode()));
        bytes
    }

    #[test]
    fn blocks_survive_the_file() {
        let bytes = [block(2), block(0), block(1)].concat();
        let entries: Result<Vec<_>, _> = Reader::new(&bytes).collect();
        let entries = entries.expect("a good trace");
        assert_eq!(entries.len(), 6);
        assert_eq!(entries[2], Entry::Record(record(1)));
        let Entry::Block(header) = entries[3] else {
            panic!("a block")
        };
        assert_eq!(
            (header.records, header.dropped, header.disk.uuid),
            (0, 2, [7; 16])
        );
    }

    #[test]
    fn a_reader_ends_at_what_it_cannot_understand_and_says_where() {
        let good = block(2);
        let last = |bytes: &[u8]| Reader::new(bytes).last().expect("something").unwrap_err();
        assert_eq!(last(&good[..good.len() - 1]).fault, TraceFault::Truncated);
        assert_eq!(
            last(&good[..HEADER - 1]),
            TraceError {
                fault: TraceFault::Truncated,
                at: 0
            }
        );
        assert_eq!(
            last(b"not a trace, but long enough to hold a header of sixty-four bytes").fault,
            TraceFault::NotATrace
        );
        let broken = |place: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[place] = value;
            last(&bytes)
        };
        assert_eq!(broken(20, 99).fault, TraceFault::NotATrace);
        for place in [32, 33, 34, 35] {
            let at = HEADER + RECORD;
            assert_eq!(
                broken(at + place, 0xff),
                TraceError {
                    fault: TraceFault::Record,
                    at
                }
            );
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let mut bytes = block(0);
        bytes[8] = 2;
        let check = fnv1a(&bytes[..56]);
        bytes[56..64].copy_from_slice(&check.to_le_bytes());
        let error = Reader::new(&bytes).last().expect("something").unwrap_err();
        assert_eq!(error.fault, TraceFault::Version(2));
        assert!(error.to_string().contains("newer"));
    }
}
