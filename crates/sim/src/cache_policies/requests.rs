//! Requests of a disk, read from a trace file of one of three formats.
//!
//! # Always true
//! - a damaged or foreign file is refused; no request of it is used
//!
//! # Picture: the packed format
//! ```text
//! "TIDEPACK", then for each request three numbers of seven bits a byte, low bits first, the top bit set if more follow:
//!   time since the last request, in units of 10 ms
//!   length in sectors of 512 bytes, times two, plus one for a write
//!   offset in sectors minus the end of the last request: times two, or for a negative one -2n - 1
//! ```
//! The other two are the project's own traces ([`crate::trace`]), and those that CloudPhysics published: records of 32
//! bytes, little-endian, `sequence u32, bytes u32, segments u32, command u16, version u16, sector u64, time_us u64`.

use crate::trace::Trace;
use std::fs;
use std::path::Path;
use tidegate_core::filter::trace::format::MAGIC;
use tidegate_core::request::Op;
use tidegate_core::units::{Span, Time};

/// A read or write of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it arrives.
    pub at: Time,
    /// Whether it writes.
    pub is_write: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes; not zero.
    pub len: u64,
}

/// Begins a packed trace.
const PACKED: &[u8] = b"TIDEPACK";
const SECTOR: u64 = 512;
const PACKED_TIME: Span = Span::from_millis(10);
/// Bytes of a CloudPhysics record.
const VSCSI: usize = 32;
const VSCSI_READ: u16 = 0x28;
const VSCSI_WRITE: u16 = 0x2a;

/// Reads a file of any of the formats.
///
/// # Errors
/// It cannot be read, or is no trace. The text says what is wrong, and names the file.
pub fn load(path: &Path) -> Result<Vec<Request>, String> {
    let named = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let bytes = fs::read(path).map_err(|error| named(&error))?;
    if bytes.starts_with(&MAGIC) {
        let trace = Trace::open(path).map_err(|error| named(&error))?;
        return Ok(recorded(&trace));
    }
    let requests = match bytes.strip_prefix(PACKED) {
        Some(packed) => unpack(packed),
        None => vscsi(&bytes),
    };
    requests.map_err(|error| named(&error))
}

/// The recorded requests that the program contains.
pub(crate) fn embedded() -> Vec<Request> {
    let bytes = include_bytes!("../../../../scenarios/traces/cloudphysics.pack");
    let packed = bytes.strip_prefix(PACKED).map(unpack);
    packed.and_then(Result::ok).expect("a test reads it")
}

fn recorded(trace: &Trace) -> Vec<Request> {
    let used = trace.ios.iter().filter(|io| io.len > 0);
    let requests = used.filter_map(|io| {
        let is_write = match io.op {
            Op::Read => false,
            Op::Write => true,
            Op::WriteZeroes | Op::Discard | Op::Flush | Op::Extents | Op::Prefetch => return None,
        };
        Some(Request {
            at: Time::ZERO + io.at,
            is_write,
            offset: io.offset,
            len: io.len,
        })
    });
    requests.collect()
}

fn unpack(mut bytes: &[u8]) -> Result<Vec<Request>, String> {
    const DAMAGED: &str = "the packed trace is damaged";
    let mut requests = Vec::new();
    let mut at = Time::ZERO;
    let mut end = 0_u64;
    while !bytes.is_empty() {
        let mut next = || number(&mut bytes).ok_or(DAMAGED);
        let (wait, length, apart) = (next()?, next()?, next()?);
        let sectors = length >> 1;
        let half = i64::try_from(apart >> 1).map_err(|_| DAMAGED)?;
        let apart = if apart & 1 == 0 { half } else { -half - 1 };
        let start = end.checked_add_signed(apart).ok_or(DAMAGED)?;
        end = start.checked_add(sectors).ok_or(DAMAGED)?;
        if sectors == 0 || end > u64::MAX / SECTOR {
            return Err(DAMAGED.to_owned());
        }
        at = at + Span::from_nanos(wait.saturating_mul(PACKED_TIME.as_nanos()));
        requests.push(Request {
            at,
            is_write: length & 1 == 1,
            offset: start * SECTOR,
            len: sectors * SECTOR,
        });
    }
    Ok(requests)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

fn vscsi(bytes: &[u8]) -> Result<Vec<Request>, String> {
    const FOREIGN: &str = "it is not a trace of a known format";
    let (records, []) = bytes.as_chunks::<VSCSI>() else {
        return Err(FOREIGN.to_owned());
    };
    let mut requests = Vec::with_capacity(records.len());
    let mut first = None;
    for record in records {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| record[at + n]));
        let len = word(4) & u64::from(u32::MAX);
        let command = u16::from_le_bytes([record[12], record[13]]);
        let (sector, us) = (word(16), word(24));
        let is_write = match command {
            VSCSI_READ => false,
            VSCSI_WRITE => true,
            _ => return Err(FOREIGN.to_owned()),
        };
        let offset = sector.checked_mul(SECTOR).ok_or(FOREIGN)?;
        let since = us.saturating_sub(*first.get_or_insert(us));
        if len > 0 && offset.checked_add(len).is_some() {
            requests.push(Request {
                at: Time::ZERO + Span::from_micros(since),
                is_write,
                offset,
                len,
            });
        }
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at_ms: u64, is_write: bool, offset: u64, len: u64) -> Request {
        let at = Time::ZERO + Span::from_millis(at_ms);
        Request {
            at,
            is_write,
            offset,
            len,
        }
    }

    #[test]
    fn packed_requests_are_read_as_they_were() {
        let bytes = [0, 16, 0x80, 1, 0x80, 1, 3, 0x8f, 1];
        let expected = [
            request(0, false, 64 * 512, 4096),
            request(1280, true, 0, 512),
        ];
        assert_eq!(unpack(&bytes).expect("it is whole"), expected);
        for cut in [1, 2, 3, 5, 8] {
            assert!(unpack(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(unpack(&[0, 16, 3]).is_err(), "before the disk");
        assert!(unpack(&[0x80; 12]).is_err());
    }

    #[test]
    fn published_records_are_read_and_others_refused() {
        let mut record = [0; VSCSI];
        record[4..8].copy_from_slice(&1024_u32.to_le_bytes());
        record[12] = 0x2a;
        record[16] = 9;
        let read = vscsi(&record).expect("it is whole");
        assert_eq!(read, [request(0, true, 9 * 512, 1024)]);
        record[12] = 0x2b;
        assert!(vscsi(&record).is_err());
        assert!(vscsi(&record[1..]).is_err());
    }
}
