//! A store: bytes with a volatile write cache, as a disk or an array has one.
//!
//! A write that has completed is visible at once and durable after a flush that began later, or at once with FUA. A crash
//! keeps each write that is not durable whole, in part, or not at all, independently of the others.
//!
//! # Always true
//! - A sector is written whole or not at all.
//! - A sector never returns to a version older than its durable one.
//!
//! # Source
//! ATA/NVMe write cache semantics; torn writes at sector granularity: NVMe base specification, AWUPF.

use super::SECTOR;
use super::choice::Choose;
use std::collections::BTreeMap;
use std::rc::Rc;
use tidegate_core::request::{Extent, ExtentKind, Flags, Op};

/// One place that I/O is done on.
#[derive(Clone)]
pub struct Store {
    /// What a read returns.
    current: Pages,
    /// What a crash cannot take away.
    durable: Pages,
    /// In bytes.
    size: usize,
    /// By sector: versions newer than the durable one, oldest first, with the number of their write.
    volatile: BTreeMap<u64, Vec<(u64, [u8; SECTOR])>>,
    /// Writes so far.
    writes: u64,
    /// Faults of the store itself, for tests of the simulator.
    pub defects: Defects,
}

/// What a broken store does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Defects {
    /// A flush makes nothing durable.
    pub flush: bool,
    /// FUA is ignored.
    pub fua: bool,
    /// Each write to this sector lands on the next one.
    pub misdirects: Option<u64>,
    /// Reads of this sector return a flipped bit.
    pub rots: Option<u64>,
}

/// A write that a store has been given and has not completed.
pub struct InFlight {
    /// First byte.
    pub offset: u64,
    /// What is written.
    pub bytes: Vec<u8>,
}

/// An I/O that a store carries out.
pub struct StoreIo {
    /// The operation.
    pub op: Op,
    /// Its flags.
    pub flags: Flags,
    /// In bytes.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
    /// For a flush: what it covers.
    pub mark: u64,
    /// Which of the stores it is.
    pub store: usize,
}

impl Store {
    /// A store of zeroes.
    pub fn new(sectors: u64) -> Store {
        let bytes = usize::try_from(sectors).expect("a simulated store is small") * SECTOR;
        Store {
            current: Pages::default(),
            durable: Pages::default(),
            size: bytes,
            volatile: BTreeMap::new(),
            writes: 0,
            defects: Defects::default(),
        }
    }

    /// How many sectors it has.
    pub fn sectors(&self) -> u64 {
        (self.size / SECTOR) as u64
    }

    /// A store of zeroes as large as this one.
    pub fn blank(&self) -> Store {
        Store::new((self.size / SECTOR) as u64)
    }

    /// It has so many sectors from now on; new ones are zeroes.
    pub fn grow(&mut self, sectors: u64) {
        self.size = place(sectors * SECTOR as u64);
    }

    /// Reads whole sectors.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        assert!(place(offset) + into.len() <= self.size, "within the store");
        self.current.read(offset, into);
        for (sector, bytes) in (offset / SECTOR as u64..).zip(into.chunks_exact_mut(SECTOR)) {
            if self.defects.rots == Some(sector) {
                bytes[SECTOR / 2] ^= 1;
            }
        }
    }

    /// Completes a write of whole sectors.
    pub fn write(&mut self, offset: u64, bytes: &[u8], fua: bool) {
        assert!(place(offset) + bytes.len() <= self.size, "within the store");
        self.writes += 1;
        for (sector, bytes) in sectors(offset, bytes) {
            let sector = sector + u64::from(self.defects.misdirects == Some(sector));
            let same = self.current.has(sector, &bytes) && self.durable.has(sector, &bytes);
            if same && !self.volatile.contains_key(&sector) {
                continue;
            }
            self.current.write(sector, &bytes);
            if fua && !self.defects.fua {
                self.volatile.remove(&sector);
                self.durable.write(sector, &bytes);
            } else {
                let versions = self.volatile.entry(sector).or_default();
                versions.push((self.writes, bytes));
            }
        }
    }

    /// Whether both stores have the same bytes from this offset on, but for sectors of which `may_differ` is true.
    pub fn is_equal_from(
        &self,
        other: &Store,
        offset: u64,
        may_differ: impl Fn(u64) -> bool,
    ) -> bool {
        let first = offset / PAGE as u64;
        let pages = self.current.0.range(first..);
        let mut pages = pages.chain(other.current.0.range(first..));
        pages.all(|(page, _)| {
            let mut sectors = (0..8).map(|sector| 8 * page + sector);
            sectors.all(|sector| {
                let own = self.current.sector(sector).unwrap_or(&[0; SECTOR]);
                other.current.sector(sector).unwrap_or(&[0; SECTOR]) == own || may_differ(sector)
            })
        })
    }

    /// Carries out an I/O of a layout. `bytes` are those that it reads or writes.
    pub fn carry_out(&mut self, io: &StoreIo, bytes: &mut [u8]) {
        let len = usize::try_from(io.len).expect("a small disk");
        let fua = io.flags.has(Flags::FUA);
        match io.op {
            Op::Read => self.read(io.offset, bytes),
            Op::Write => self.write(io.offset, bytes, fua),
            Op::WriteZeroes => self.write(io.offset, &vec![0; len], fua),
            // Each store discards other sectors.
            Op::Discard => {
                for offset in (io.offset..io.offset + io.len).step_by(SECTOR) {
                    if (offset / SECTOR as u64 + io.store as u64).is_multiple_of(2) {
                        self.write(offset, &[0; SECTOR], fua);
                    }
                }
            }
            Op::Flush => self.flush(io.mark),
            Op::Extents => {
                let extent = Extent {
                    len: io.len,
                    kind: ExtentKind::Data,
                };
                bytes.copy_from_slice(&extent.encode());
            }
            Op::Prefetch => {}
        }
    }

    /// How many writes have completed: what a flush that begins now covers.
    pub fn mark(&self) -> u64 {
        self.writes
    }

    /// Completes a flush that began at this mark.
    pub fn flush(&mut self, mark: u64) {
        if self.defects.flush {
            return;
        }
        for (sector, versions) in &mut self.volatile {
            let covered = versions.partition_point(|(write, _)| *write <= mark);
            if let Some((_, bytes)) = versions.drain(..covered).next_back() {
                self.durable.write(*sector, &bytes);
            }
        }
        self.volatile.retain(|_, versions| !versions.is_empty());
    }

    /// Power fails: each write that is not durable, completed or not, persists whole, in part, or not at all.
    pub fn crash(&mut self, in_flight: &[InFlight], choices: &mut dyn Choose) {
        for write in in_flight {
            self.writes += 1;
            for (sector, bytes) in sectors(write.offset, &write.bytes) {
                let versions = self.volatile.entry(sector).or_default();
                versions.push((self.writes, bytes));
            }
        }
        let volatile = std::mem::take(&mut self.volatile);
        let mut writes: BTreeMap<u64, Volatile> = BTreeMap::new();
        for (&sector, versions) in &volatile {
            // What is there already makes no difference.
            let changes = versions.len() > 1 || !self.durable.has(sector, &versions[0].1);
            for (write, _) in versions {
                let write = writes.entry(*write).or_insert(Volatile {
                    first: sector,
                    sectors: 0,
                    changes: false,
                });
                write.sectors += 1;
                write.changes |= changes;
            }
        }
        let decide = |(number, write): (u64, Volatile)| (number, write.remainder(choices));
        let remainders: BTreeMap<u64, Remainder> = writes.into_iter().map(decide).collect();
        for (sector, versions) in volatile {
            for (write, bytes) in versions {
                if remainders[&write].persists(sector) {
                    self.durable.write(sector, &bytes);
                }
            }
        }
        self.current.clone_from(&self.durable);
    }
}

/// What a crash does to a write.
enum Remainder {
    Whole,
    Nothing,
    /// Its first sector persists, the others do not.
    Head(u64),
    /// Its first sector is lost, the others persist.
    Tail(u64),
}

/// The sectors of a write that are not durable.
struct Volatile {
    first: u64,
    sectors: u32,
    /// Whether it matters if they persist.
    changes: bool,
}

impl Volatile {
    fn remainder(&self, choices: &mut dyn Choose) -> Remainder {
        let ways = match self {
            Volatile { changes: false, .. } => return Remainder::Whole,
            // One sector persists or not.
            Volatile { sectors: 1, .. } => 2,
            _ => 4,
        };
        match choices.choose(ways) {
            0 => Remainder::Whole,
            1 => Remainder::Nothing,
            2 => Remainder::Head(self.first),
            _ => Remainder::Tail(self.first),
        }
    }
}

impl Remainder {
    fn persists(&self, sector: u64) -> bool {
        match self {
            Remainder::Whole => true,
            Remainder::Nothing => false,
            Remainder::Head(first) => sector == *first,
            Remainder::Tail(first) => sector != *first,
        }
    }
}

/// Bytes in pages that copies share until one of them changes a page. Pages of zeroes are absent.
#[derive(Clone, Default)]
struct Pages(BTreeMap<u64, Rc<[u8; PAGE]>>);

/// Bytes of a page.
const PAGE: usize = 8 * SECTOR;

impl Pages {
    fn read(&self, offset: u64, into: &mut [u8]) {
        for (sector, into) in (offset / SECTOR as u64..).zip(into.chunks_exact_mut(SECTOR)) {
            match self.sector(sector) {
                Some(bytes) => into.copy_from_slice(bytes),
                None => into.fill(0),
            }
        }
    }

    fn sector(&self, sector: u64) -> Option<&[u8]> {
        let (page, at) = (sector / 8, place(sector % 8) * SECTOR);
        self.0.get(&page).map(|page| &page[at..at + SECTOR])
    }

    fn has(&self, sector: u64, bytes: &[u8; SECTOR]) -> bool {
        self.sector(sector).unwrap_or(&[0; SECTOR]) == bytes
    }

    fn write(&mut self, sector: u64, bytes: &[u8; SECTOR]) {
        let (page, at) = (sector / 8, place(sector % 8) * SECTOR);
        if *bytes == [0; SECTOR] && !self.0.contains_key(&page) {
            return;
        }
        let page = self.0.entry(page).or_insert_with(|| Rc::new([0; PAGE]));
        Rc::make_mut(page)[at..at + SECTOR].copy_from_slice(bytes);
    }
}

fn place(offset: u64) -> usize {
    usize::try_from(offset).expect("a simulated store is small")
}

/// Each whole sector of a write.
fn sectors(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, [u8; SECTOR])> {
    let (whole, rest) = bytes.as_chunks::<SECTOR>();
    assert!(rest.is_empty(), "stores write whole sectors");
    (offset / SECTOR as u64..).zip(whole.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::super::choice::RecordedChoices;
    use super::*;
    use crate::crash::{fill, stamp};

    fn seen(store: &Store, sector: u64) -> u64 {
        let mut bytes = [0; SECTOR];
        store.read(sector * SECTOR as u64, &mut bytes);
        stamp(sector, &bytes).expect("whole")
    }

    #[test]
    fn a_flush_covers_the_writes_before_it_began_and_a_crash_decides_the_others() {
        for (choice, left) in [(0, 2), (1, 1)] {
            let mut store = Store::new(2);
            store.write(0, &fill(0, 1), false);
            let mark = store.mark();
            store.write(0, &fill(0, 2), false);
            store.flush(mark);
            assert_eq!(seen(&store, 0), 2);
            store.crash(&[], &mut RecordedChoices::new(&[choice]));
            assert_eq!(seen(&store, 0), left);
        }
    }

    #[test]
    fn an_older_volatile_write_never_replaces_a_durable_one() {
        let mut store = Store::new(2);
        store.write(0, &fill(0, 1), false);
        store.write(0, &fill(0, 2), true);
        store.crash(&[], &mut RecordedChoices::new(&[]));
        assert_eq!(seen(&store, 0), 2);
    }

    #[test]
    fn a_write_in_flight_may_be_torn() {
        let mut store = Store::new(2);
        let bytes = [fill(0, 3), fill(1, 3)].concat();
        let write = InFlight { offset: 0, bytes };
        store.crash(&[write], &mut RecordedChoices::new(&[2]));
        assert_eq!((seen(&store, 0), seen(&store, 1)), (3, 0));
    }
}
