//! One chain on a ring of 16 entries, and the device's result.

use super::driver::{self, Desc, Driver, ROOM, header};
use super::memory::Memory;
use tidegate_front::vhost::GuestMemory;
use tidegate_front::vhost::block::Kind;
use tidegate_front::vhost::queue::{ChainError, MAX_SEGMENTS, Queue, QueueConfig, Taken};

pub(crate) const READ_T: u32 = 0;
pub(crate) const WRITE_T: u32 = 1;
pub(crate) const FLUSH_T: u32 = 4;
pub(crate) const GET_ID_T: u32 = 8;
pub(crate) const DISCARD_T: u32 = 11;
pub(crate) const WRITE_ZEROES_T: u32 = 13;

/// Addresses of a header, data, a status, and tables.
pub(crate) const HEADER: u64 = ROOM;
pub(crate) const DATA: u64 = ROOM + 0x1000;
pub(crate) const STATUS: u64 = ROOM + 0x8000;
pub(crate) const TABLE: u64 = ROOM + 0x1_0000;

/// A ring of 16 entries in new memory, and the device's result for one chain at head 0.
pub(crate) struct Bench {
    pub(crate) driver: Driver,
    pub(crate) memory: Memory,
}

/// The device's result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    Request(Kind, Vec<u64>),
    /// The error, and the address of the status byte.
    Bad(ChainError, Option<u64>),
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let memory = driver::memory();
        Bench {
            driver: Driver::new(&memory, 16, 0),
            memory,
        }
    }

    pub(crate) fn header(&self, kind: u32, sector: u64) -> &Bench {
        self.memory.poke(HEADER, &header(kind, sector));
        self
    }

    /// Makes head 0 available and takes it, whatever it is. Then completes it and checks that the ring still works.
    pub(crate) fn parse_with(&mut self, change: impl FnOnce(&mut QueueConfig)) -> Parsed {
        let mut config = self.driver.config();
        change(&mut config);
        let mut queue = Queue::new(&self.memory, config).expect("the ring is valid");
        self.driver.add(0);
        let mut data = Vec::new();
        let taken = queue
            .next(&self.memory, &mut data)
            .expect("the ring is valid");
        let (parsed, head) = match taken.expect("one chain is available") {
            Taken::Request(request) => {
                let status = self.memory.addresses(&[request.status]);
                assert_eq!(status, [STATUS], "the guest's address");
                let len: usize = data.iter().map(Memory::segment_len).sum();
                // The length of several megabytes is enough.
                data.truncate(if len > 1 << 20 { 0 } else { data.len() });
                let data = self.memory.addresses(&data);
                (Parsed::Request(request.kind, data), request.head)
            }
            Taken::Bad { head, status, why } => {
                let status = status.map(|s| self.memory.addresses(&[s])[0]);
                (Parsed::Bad(why, status), head)
            }
        };
        assert!(data.capacity() <= 2 * MAX_SEGMENTS, "the memory is bounded");
        assert_eq!((head, queue.in_flight()), (0, 1));
        queue.complete(head, 1);
        queue.publish(&self.memory);
        assert!(queue.wants_call());
        assert_eq!(self.driver.collect(), [(0, 1)]);
        parsed
    }

    pub(crate) fn parse(&mut self) -> Parsed {
        self.parse_with(|_| {})
    }

    pub(crate) fn parse_chain(&mut self, pieces: &[Desc]) -> Parsed {
        self.driver.chain(0, pieces);
        self.parse()
    }
}

pub(crate) fn h() -> Desc {
    Desc::read(HEADER, 16)
}

pub(crate) fn s() -> Desc {
    Desc::write(STATUS, 1)
}

/// One segment of a DISCARD or WRITE_ZEROES.
pub(crate) fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut out = sector.to_le_bytes().to_vec();
    out.extend(sectors.to_le_bytes());
    out.extend(flags.to_le_bytes());
    out
}

pub(crate) fn parse_range(kind: u32, bytes: &[u8]) -> Parsed {
    let mut bench = Bench::new();
    bench.header(kind, 0);
    bench.memory.poke(DATA, bytes);
    let len = u32::try_from(bytes.len()).expect("short");
    bench.parse_chain(&[h(), Desc::read(DATA, len), s()])
}
