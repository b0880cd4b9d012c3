//! The record of a lease: the holder and its generation, in a 4 KiB block.
//!
//! [`super::Lease`] writes its own record and checks those of other hosts; the engine reads and writes the bytes.
//! `block.rs` defines the format of a block.
//!
//! # Always true
//! - `decode` returns a result for any bytes of any length, and never panics
//! - no value of a record makes a disk unreachable for ever, whatever was written

use super::super::name::Name;
use crate::block::{BLOCK, Reader, Unreadable, Writer};
use crate::units::Span;

const MAGIC: [u8; 8] = *b"TIDELEAS";
const VERSION: u16 = 1;

/// The identity of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The host.
    pub host: [u8; 16],
    /// This start of its machine: a copied machine has the same host and another boot.
    pub boot: [u8; 16],
    /// This start of its daemon.
    pub incarnation: u64,
    /// The file that its daemon holds under a kernel lock until it ends. Zero: none.
    pub lock: [u8; 16],
}

impl Holder {
    /// Whether a kernel lock proves that this holder's daemon has replaced the earlier one. Both lock the same file on
    /// the same boot of one machine, so the earlier one has ended.
    pub fn replaces(&self, earlier: &Holder) -> bool {
        let known = self.boot != [0; 16] && self.lock != [0; 16];
        let same = |of: &Holder| (of.host, of.boot, of.lock);
        known && same(self) == same(earlier)
    }
}

/// The content of a lease's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The disk, to detect a misplaced block.
    pub disk: [u8; 16],
    /// The host that wrote it.
    pub holder: Holder,
    /// The display name of that host.
    pub name: Name,
    /// Incremented with each write.
    pub sequence: u64,
    /// How long the holder may continue without renewing. A taker waits for the longer of this and its own. Zero: the
    /// holder does not renew and relies on a lock.
    pub lease: Span,
    /// Whether it was released.
    pub free: bool,
}

/// The longest accepted lease: a foreign value must not make a disk unreachable for ever. Origin: chosen; no
/// measurement.
const LEASE_MOST: Span = Span::from_secs(600);

impl Record {
    /// Encodes the record as a block.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut out = Writer::new(MAGIC, VERSION);
        out.put(&u16::from(self.free).to_le_bytes());
        out.put(&[0; 4]);
        out.put(&self.disk);
        out.put(&self.holder.host);
        out.put(&self.holder.boot);
        out.put(&self.holder.incarnation.to_le_bytes());
        out.put(&self.sequence.to_le_bytes());
        out.put(&self.lease.as_nanos().to_le_bytes());
        out.put(&self.name.0);
        out.put(&self.holder.lock);
        out.finish()
    }

    /// Decodes a block; [`Unreadable::Empty`] if it was never used.
    pub fn decode(bytes: &[u8]) -> Result<Record, Unreadable> {
        let mut from = Reader::open(bytes, MAGIC, VERSION)?;
        let free = u16::from_le_bytes(from.take()) == 1;
        from.take::<4>();
        let mut record = Record {
            disk: from.take(),
            holder: Holder {
                host: from.take(),
                boot: from.take(),
                incarnation: u64::from_le_bytes(from.take()),
                lock: [0; 16],
            },
            sequence: u64::from_le_bytes(from.take()),
            lease: Span::from_nanos(u64::from_le_bytes(from.take())).min(LEASE_MOST),
            name: Name(from.take()),
            free,
        };
        // Earlier versions write zeroes here: their lock is unknown.
        record.holder.lock = from.take();
        Ok(record)
    }
}
