//! Headers and journal blocks: the formats of what a cache writes on flash for itself.
//!
//! A disk's cache has two places for its header; one never goes over the newest one of its device. The journal is a ring of
//! blocks. Each record of it is the whole state of one page, so that the last record of a page is the valid one.
//!
//! # Always true
//! - a block is read as it was written, or refused with the reason
//! - a record is in one block
//!
//! # Picture
//! ```text
//! header                                            journal
//!    0  magic "TIDECACH" 8, version 2                  0  magic "TIDECJNL" 8, version 2, records 2
//!   16  cache 16, disk 16                             16  epoch 8, sequence 8
//!   48  generation 8, epoch 8, tail 8                 32  sweep: from 8, next slot 4; tail 8; named 4
//!   72  valid for 8, and for 8                        56  records: page 4, places 1, then for each place:
//!   88  size of the disk 8                                slot 4, valid 2, dirty 2, checks 2 for each valid block
//!   96  in sync 4, device 1, devices 1, flags 1     4092  CRC32C of all before it 4
//! 4092  CRC32C of all before it 4
//! ```
//! Flags: 1 = dirty blocks count: what they have is nowhere else. Named: the devices in sync in the lowest two bits, and the
//! lowest bits of the generation of the newest header; zero in blocks from before.
//!
//! # Units
//! Little-endian. A slot is numbered over the whole flash device.

use super::BLOCKS;
use crate::block::{BLOCK, Reader, Unreadable, Writer};
use alloc::boxed::Box;
use alloc::vec::Vec;

const HEADER: [u8; 8] = *b"TIDECACH";
const JOURNAL: [u8; 8] = *b"TIDECJNL";
/// Version 1 had another checksum of blocks.
const VERSION: u16 = 2;

const RECORDS_AT: usize = 56;
const RECORDS_END: usize = BLOCK - 4;

/// Bytes of a record with all blocks valid and in two slots.
const LONGEST: usize = 5 + 2 * 8 + BLOCKS * 2;

/// What a disk's cache says about itself, on each of its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The cache's identity.
    pub cache: [u8; 16],
    /// The disk's identity.
    pub disk: [u8; 16],
    /// A newer header has a higher one.
    pub generation: u64,
    /// Blocks of the journal with another one are void.
    pub epoch: u64,
    /// The sequence of the first block of the journal that is needed.
    pub tail: u64,
    /// The attachments of the disk that it is valid for: the disk's descriptor names the last one. Origin: a page of an
    /// earlier use of the cache must never be served (Open CAS #617).
    pub attachments: [u64; 2],
    /// Size of the disk, in bytes.
    pub size: u64,
    /// The devices that have everything, one bit each.
    pub in_sync: u32,
    /// Which device this is.
    pub device: u8,
    /// How many there are.
    pub devices: u8,
    /// Whether dirty blocks may have what the disk does not.
    pub write_back: bool,
}

impl Header {
    /// Whether it is of this use of a disk of this size.
    pub(super) fn is_of_use(&self, attachment: u64, size: u64) -> bool {
        self.attachments.contains(&attachment) && self.size <= size
    }

    /// Whether a block is a header of this disk in this cache, of any version.
    pub(super) fn is_for(bytes: &[u8], cache: [u8; 16], disk: [u8; 16]) -> bool {
        let from = Reader::peek(bytes, HEADER, 16);
        from.is_some_and(|mut from| (from.take(), from.take()) == (cache, disk))
    }

    /// The block.
    pub fn encode(&self) -> Box<[u8; BLOCK]> {
        let mut out = Writer::new(HEADER, VERSION);
        out.go_to(16);
        out.put(&self.cache);
        out.put(&self.disk);
        for field in [self.generation, self.epoch, self.tail] {
            out.put(&field.to_le_bytes());
        }
        for field in [self.attachments[0], self.attachments[1], self.size] {
            out.put(&field.to_le_bytes());
        }
        out.put(&self.in_sync.to_le_bytes());
        out.put(&[self.device, self.devices, u8::from(self.write_back)]);
        Box::new(out.finish())
    }

    /// What a block says.
    ///
    /// # Errors
    /// The bytes are no header of a version that is known, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Result<Header, Unreadable> {
        let mut from = Reader::open(bytes, HEADER, VERSION)?;
        from.go_to(16);
        let (cache, disk) = (from.take(), from.take());
        let [generation, epoch, tail, valid, also, size] =
            [(); 6].map(|()| u64::from_le_bytes(from.take()));
        let in_sync = u32::from_le_bytes(from.take());
        let [device, devices, flags] = from.take();
        let known = matches!(devices, 1 | 2) && device < devices;
        if !known || in_sync == 0 || in_sync >> devices != 0 || flags > 1 {
            return Err(Unreadable::Torn);
        }
        Ok(Header {
            cache,
            disk,
            generation,
            epoch,
            tail,
            attachments: [valid, also],
            size,
            in_sync,
            device,
            devices,
            write_back: flags == 1,
        })
    }
}

/// The blocks of a page that are in one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The slot, numbered over the flash device.
    pub slot: u32,
    /// Blocks that are in it, one bit each.
    pub valid: u16,
    /// Of these, the ones that the disk does not have yet.
    pub dirty: u16,
    /// The checksum of each valid block; zero for the others.
    pub checks: [u16; BLOCKS],
}

/// The state of one page. Without places, the page is not cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The page's number on the disk.
    pub page: u32,
    /// Where its blocks are.
    pub places: [Option<Placed>; 2],
}

impl Record {
    fn places(&self) -> impl Iterator<Item = &Placed> {
        self.places.iter().flatten()
    }

    fn len(&self) -> usize {
        let place = |place: &Placed| 8 + 2 * place.valid.count_ones() as usize;
        5 + self.places().map(place).sum::<usize>()
    }
}

/// How far the sweep of the journal is after a block. It goes on from there after a crash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sweep {
    /// The block in which it began.
    pub from: u64,
    /// The next slot of it.
    pub slot: u32,
    /// The first block that is needed.
    pub tail: u64,
}

/// The newest header when a block was begun. If it cannot be read any more, the block says which devices have everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named(u32);

/// Bits of a generation that a block has.
const GENERATION_BITS: u32 = 30;

impl Named {
    /// The header of this generation, which names these devices, one bit each.
    pub fn new(generation: u64, in_sync: u32) -> Named {
        let low = generation % (1 << GENERATION_BITS);
        let low = u32::try_from(low).expect("30 bits");
        Named(low << 2 | in_sync & 3)
    }

    /// The devices that have everything, one bit each.
    pub fn in_sync(self) -> u32 {
        self.0 & 3
    }

    /// How much newer it is than the header of this generation.
    pub fn newer_than(self, generation: u64) -> u64 {
        let other = Named::new(generation, 0).0 >> 2;
        let ahead = (self.0 >> 2).wrapping_sub(other) % (1 << GENERATION_BITS);
        // More than half of the range is behind.
        u64::from(if ahead >> (GENERATION_BITS - 1) == 0 {
            ahead
        } else {
            0
        })
    }
}

/// A block of the journal that is being filled.
pub(super) struct Filling {
    out: Writer,
    used: usize,
    records: u16,
}

impl Filling {
    pub(super) fn new(epoch: u64, sequence: u64) -> Filling {
        let mut out = Writer::new(JOURNAL, VERSION);
        out.go_to(16);
        out.put(&epoch.to_le_bytes());
        out.put(&sequence.to_le_bytes());
        out.go_to(RECORDS_AT);
        Filling {
            out,
            used: RECORDS_AT,
            records: 0,
        }
    }

    /// Whether any record fits.
    pub(super) fn has_room(&self) -> bool {
        self.used + LONGEST <= RECORDS_END
    }

    /// # Panics
    /// Unless the block has room.
    pub(super) fn put(&mut self, record: &Record) {
        assert!(self.has_room(), "the caller asks for room first");
        self.used += record.len();
        self.records += 1;
        self.out.put(&record.page.to_le_bytes());
        let places = u8::try_from(record.places().count()).expect("two at most");
        self.out.put(&[places]);
        for place in record.places() {
            self.out.put(&place.slot.to_le_bytes());
            self.out.put(&place.valid.to_le_bytes());
            self.out.put(&place.dirty.to_le_bytes());
            for block in super::blocks_of(place.valid) {
                self.out.put(&place.checks[block].to_le_bytes());
            }
        }
    }

    pub(super) fn finish(mut self, sweep: Sweep, named: Named) -> Box<[u8; BLOCK]> {
        self.out.go_to(10);
        self.out.put(&self.records.to_le_bytes());
        self.out.go_to(32);
        self.out.put(&sweep.from.to_le_bytes());
        self.out.put(&sweep.slot.to_le_bytes());
        self.out.put(&sweep.tail.to_le_bytes());
        self.out.put(&named.0.to_le_bytes());
        Box::new(self.out.finish())
    }
}

/// A block of the journal, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journalled {
    /// Blocks with another one are void.
    pub epoch: u64,
    /// The block's number; each next block has the next one.
    pub sequence: u64,
    /// How far the sweep is.
    pub sweep: Sweep,
    /// The newest header when it was begun.
    pub named: Option<Named>,
    /// States of pages, in order.
    pub records: Vec<Record>,
}

impl Journalled {
    /// What a block says.
    ///
    /// # Errors
    /// The bytes are no block of a version that is known, or contradict themselves.
    pub fn decode(bytes: &[u8]) -> Result<Journalled, Unreadable> {
        let mut from = Reader::open(bytes, JOURNAL, VERSION)?;
        let records = u16::from_le_bytes(from.take());
        from.go_to(16);
        let mut number = || u64::from_le_bytes(from.take());
        let (epoch, sequence, swept_from) = (number(), number(), number());
        let slot = u32::from_le_bytes(from.take());
        let sweep = Sweep {
            from: swept_from,
            slot,
            tail: u64::from_le_bytes(from.take()),
        };
        let named = Named(u32::from_le_bytes(from.take()));
        if sweep.tail > sweep.from || sweep.from > sequence {
            return Err(Unreadable::Torn);
        }
        let mut block = Journalled {
            epoch,
            sequence,
            sweep,
            named: (named.in_sync() != 0).then_some(named),
            records: Vec::new(),
        };
        from.go_to(RECORDS_AT);
        for _ in 0..records {
            if from.at() + LONGEST > RECORDS_END {
                return Err(Unreadable::Torn);
            }
            block.records.push(record(&mut from)?);
        }
        Ok(block)
    }
}

fn record(from: &mut Reader<'_>) -> Result<Record, Unreadable> {
    let page = u32::from_le_bytes(from.take());
    let [count] = from.take();
    let mut places = [None; 2];
    let count = usize::from(count);
    if count > places.len() {
        return Err(Unreadable::Torn);
    }
    let mut taken = 0;
    for place in &mut places[..count] {
        let mut placed = Placed {
            slot: u32::from_le_bytes(from.take()),
            valid: u16::from_le_bytes(from.take()),
            dirty: u16::from_le_bytes(from.take()),
            checks: [0; BLOCKS],
        };
        // Before its checksums: a record with a block in two slots would be longer than any other.
        if placed.dirty & !placed.valid != 0 || placed.valid & taken != 0 {
            return Err(Unreadable::Torn);
        }
        taken |= placed.valid;
        for block in super::blocks_of(placed.valid) {
            placed.checks[block] = u16::from_le_bytes(from.take());
        }
        *place = Some(placed);
    }
    match places {
        [Some(a), Some(b)] if a.slot == b.slot => Err(Unreadable::Torn),
        _ => Ok(Record { page, places }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            cache: [1; 16],
            disk: [2; 16],
            generation: 3,
            epoch: 4,
            tail: 5,
            attachments: [6, 7],
            size: 8 << 20,
            in_sync: 0b10,
            device: 1,
            devices: 2,
            write_back: true,
        }
    }

    fn placed(slot: u32, valid: u16, dirty: u16) -> Placed {
        let mut checks = [0; BLOCKS];
        for block in super::super::blocks_of(valid) {
            checks[block] = 100 + u16::try_from(block).expect("16 blocks");
        }
        Placed {
            slot,
            valid,
            dirty,
            checks,
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        assert_eq!(Header::decode(&header().encode()[..]), Ok(header()));
    }

    #[test]
    fn a_header_of_another_version_is_refused_and_names_its_disk() {
        let mut bytes = header().encode();
        bytes[8..10].copy_from_slice(&1_u16.to_le_bytes());
        crate::block::seal(&mut bytes);
        assert_eq!(Header::decode(&bytes[..]), Err(Unreadable::Newer(1)));
        let (cache, disk) = (header().cache, header().disk);
        assert!(Header::is_for(&bytes[..], cache, disk));
        assert!(!Header::is_for(&bytes[..], cache, [0xee; 16]));
        assert!(!Header::is_for(&bytes[..], [0xee; 16], disk));
        assert!(!Header::is_for(&[0; BLOCK], cache, disk));
    }

    #[test]
    fn a_header_that_contradicts_itself_is_refused() {
        let none = Header {
            in_sync: 0,
            ..header()
        };
        let unknown = Header {
            in_sync: 0b100,
            ..header()
        };
        let third = Header {
            device: 2,
            ..header()
        };
        for header in [none, unknown, third] {
            let block = header.encode();
            assert_eq!(Header::decode(&block[..]), Err(Unreadable::Torn));
        }
    }

    #[test]
    fn a_full_block_of_the_journal_is_read_as_it_was_written() {
        let records = [
            Record {
                page: 9,
                places: [None, None],
            },
            Record {
                page: 10,
                places: [Some(placed(77, 0x8001, 0x8000)), None],
            },
            Record {
                page: 11,
                places: [Some(placed(1, 0x00ff, 0)), Some(placed(2, 0xff00, 0xff00))],
            },
        ];
        let mut filling = Filling::new(4, 12);
        let mut put = Vec::new();
        for record in records.iter().cycle() {
            if !filling.has_room() {
                break;
            }
            filling.put(record);
            put.push(record.clone());
        }
        assert!(put.len() > 100, "{}", put.len());
        let sweep = Sweep {
            from: 9,
            slot: 3,
            tail: 7,
        };
        let named = Named::new(9, 0b10);
        let block = filling.finish(sweep, named);
        let read = Journalled::decode(&block[..]).expect("it was just written");
        assert_eq!((read.epoch, read.sequence, read.sweep), (4, 12, sweep));
        assert_eq!(read.named, Some(named));
        assert_eq!(read.records, put);
    }

    #[test]
    fn a_block_names_a_header_by_its_lowest_bits() {
        let most = 1 << GENERATION_BITS;
        let named = Named::new(5 * most + 2, 0b01);
        assert_eq!(named.in_sync(), 0b01);
        assert_eq!(named.newer_than(5 * most + 2), 0);
        assert_eq!(named.newer_than(5 * most - 1), 3);
        assert_eq!(named.newer_than(5 * most + 7), 0, "an older one");
    }

    #[test]
    fn a_page_is_not_in_two_places_at_once() {
        let mut filling = Filling::new(4, 12);
        filling.put(&Record {
            page: 11,
            places: [Some(placed(1, 3, 0)), Some(placed(2, 2, 0))],
        });
        let block = filling.finish(Sweep::default(), Named(0));
        assert_eq!(Journalled::decode(&block[..]), Err(Unreadable::Torn));
    }
}
