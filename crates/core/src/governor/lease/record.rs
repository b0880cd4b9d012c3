//! The record of a lease: the holder and its generation, in a 4 KiB block.
//!
//! [`super::Lease`] writes its own record and judges those of others; the engine carries the bytes. How a block is
//! written and sealed is `block.rs`'s.
//!
//! # Always true
//! - `decode` answers for any bytes of any length, and never panics
//! - whoever wrote it, no number of a record makes a disk unreachable for ever

use super::super::block::{BLOCK, Reader, Unreadable, Writer};
use super::super::name::Name;
use crate::units::Span;

const MAGIC: [u8; 8] = *b"TIDELEAS";
const VERSION: u16 = 1;

/// Whom we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The host.
    pub host: [u8; 16],
    /// That start of its machine: a copy of a machine has the same name and another boot.
    pub boot: [u8; 16],
    /// This start of its daemon.
    pub incarnation: u64,
    /// The file that its daemon keeps locked, by a lock of the kernel, until it ends. Zero: there is none.
    pub lock: [u8; 16],
}

impl Holder {
    /// Whether a lock of the kernel proves that this holder's daemon has replaced the earlier one: both lock the same file
    /// on the same start of one machine, so the earlier one has ended.
    pub fn replaces(&self, earlier: &Holder) -> bool {
        let known = self.boot != [0; 16] && self.lock != [0; 16];
        let same = |of: &Holder| (of.host, of.boot, of.lock);
        known && same(self) == same(earlier)
    }
}

/// What a lease's block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The disk, so that a block in a wrong place is noticed.
    pub disk: [u8; 16],
    /// The host that wrote it.
    pub holder: Holder,
    /// What people call that host.
    pub name: Name,
    /// Moves by one with each write of it.
    pub sequence: u64,
    /// How long the holder may go on without renewing; a taker waits by the longer of this and its own. Zero: the holder
    /// does not renew; what it relies on is a lock.
    pub lease: Span,
    /// It has been given back.
    pub free: bool,
}

/// The longest lease that is believed: a foreign number must not make a disk unreachable for ever. Origin: chosen; no
/// measurement.
const LEASE_MOST: Span = Span::from_secs(600);

impl Record {
    /// As a block.
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

    /// From a block; [`Unreadable::Empty`] where nobody ever was.
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
        // Earlier versions write zeroes here: their lock is not known.
        record.holder.lock = from.take();
        Ok(record)
    }
}
