//! One chain on a ring of 16 entries, and the device's result.

use super::driver::{self, Desc, Driver, ROOM, header};
use super::memory::Memory;
use tidegate_front::vhost::GuestMemory;
use tidegate_front::vhost::block::Kind;
use tidegate_front::vhost::queue::{MAX_SEGMENTS, Nonsense, Queue, QueueConfig, Taken};

pub(crate) const READ_T: u32 = 0;
pub(crate) const WRITE_T: u32 = 1;
pub(crate) const FLUSH_T: u32 = 4;
pub(crate) const GET_ID_T: u32 = 8;
pub(crate) const DISCARD_T: u32 = 11;
pub(crate) const WRITE_ZEROES_T: u32 = 13;

/// Where the tests put a header, data, a status, and tables.
pub(crate) const HEADER: u64 = ROOM;
pub(crate) const DATA: u64 = ROOM + 0x1000;
pub(crate) const STATUS: u64 = ROOM + 0x8000;
pub(crate) const TABLE: u64 = ROOM + 0x1_0000;

/// A ring of 16 over fresh memory, and what the device makes of one chain at head 0.
pub(crate) struct Bench {
    pub(crate) driver: Driver,
    pub(crate) memory: Memory,
}

/// What the device understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Request(Kind, Vec<u64>),
    /// Why, and where the status goes.
    Bad(Nonsense, Option<u64>),
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

    /// Head 0, whatever it is, is made available and taken; then it is given back, and the ring still works.
    pub(crate) fn hear_with(&mut self, change: impl FnOnce(&mut QueueConfig)) -> Heard {
        let mut config = self.driver.config();
        change(&mut config);
        let mut queue = Queue::new(&self.memory, config).expect("the ring is sound");
        self.driver.add(0);
        let mut data = Vec::new();
        let taken = queue
            .next(&self.memory, &mut data)
            .expect("the ring is sound");
        let (heard, head) = match taken.expect("one chain is available") {
            Taken::Request(request) => {
                let status = self.memory.addresses(&[request.status]);
                assert_eq!(status, [STATUS], "where the guest put it");
                let len: usize = data.iter().map(Memory::segment_len).sum();
                // Of megabytes the length says enough.
                data.truncate(if len > 1 << 20 { 0 } else { data.len() });
                let data = self.memory.addresses(&data);
                (Heard::Request(request.kind, data), request.head)
            }
            Taken::Bad { head, status, why } => {
                let status = status.map(|s| self.memory.addresses(&[s])[0]);
                (Heard::Bad(why, status), head)
            }
        };
        assert!(data.capacity() <= 2 * MAX_SEGMENTS, "memory stays bounded");
        assert_eq!((head, queue.in_flight()), (0, 1));
        queue.complete(head, 1);
        queue.publish(&self.memory);
        assert!(queue.wants_call());
        assert_eq!(self.driver.collect(), [(0, 1)]);
        heard
    }

    pub(crate) fn hear(&mut self) -> Heard {
        self.hear_with(|_| {})
    }

    pub(crate) fn hear_chain(&mut self, pieces: &[Desc]) -> Heard {
        self.driver.chain(0, pieces);
        self.hear()
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

pub(crate) fn hear_range(kind: u32, bytes: &[u8]) -> Heard {
    let mut bench = Bench::new();
    bench.header(kind, 0);
    bench.memory.poke(DATA, bytes);
    let len = u32::try_from(bytes.len()).expect("short");
    bench.hear_chain(&[h(), Desc::read(DATA, len), s()])
}
