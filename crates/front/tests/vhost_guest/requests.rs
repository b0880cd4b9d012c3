//! Requests in every layout that drivers use, and the configuration space.

use super::bench::{
    Bench, DATA, DISCARD_T, FLUSH_T, GET_ID_T, HEADER, Parsed, READ_T, TABLE, WRITE_T,
    WRITE_ZEROES_T, h, parse_range, range, s,
};
use super::driver::{self, Desc, Driver, END, SEAM, TOP, header, linked};
use super::memory::{Memory, Segment};
use proptest::prelude::*;
use tidegate_front::vhost::GuestMemory;
use tidegate_front::vhost::block::{BlockConfig, Kind, MAX_RANGE_SECTORS};
use tidegate_front::vhost::queue::{Queue, Taken};

#[test]
fn a_read_has_header_data_and_status() {
    let mut bench = Bench::new();
    bench.header(READ_T, 7);
    let parsed = bench.parse_chain(&[h(), Desc::write(DATA, 1024), s()]);
    let kind = Kind::Read {
        offset: 7 * 512,
        len: 1024,
    };
    assert_eq!(parsed, Parsed::Request(kind, (DATA..DATA + 1024).collect()));
}

#[test]
fn data_that_crosses_two_regions_is_one_request() {
    let mut bench = Bench::new();
    bench.header(WRITE_T, 1);
    let parsed = bench.parse_chain(&[h(), Desc::read(SEAM - 512, 1024), s()]);
    let kind = Kind::Write {
        offset: 512,
        len: 1024,
    };
    assert_eq!(
        parsed,
        Parsed::Request(kind, (SEAM - 512..SEAM + 512).collect())
    );
}

#[test]
fn an_indirect_table_may_be_at_any_address() {
    for table in [TABLE, TABLE + 8, SEAM - 16, TOP + 0xff] {
        let mut bench = Bench::new();
        bench.header(READ_T, 0);
        let pieces = [h(), Desc::write(DATA, 512), s()];
        bench.driver.indirect(0, table, &pieces);
        let kind = Kind::Read {
            offset: 0,
            len: 512,
        };
        assert_eq!(
            bench.parse(),
            Parsed::Request(kind, (DATA..DATA + 512).collect()),
            "{table:#x}"
        );
    }
}

#[test]
fn an_indirect_table_may_be_longer_than_the_ring() {
    // Linux uses one where a ring is short.
    let mut bench = Bench::new();
    bench.header(WRITE_T, 0);
    let mut pieces = vec![h()];
    pieces.extend((0..126).map(|i| Desc::read(DATA + 64 * i, 64)));
    pieces.push(Desc::read(DATA + 64 * 126, 128));
    pieces.push(s());
    bench.driver.indirect(0, TABLE, &pieces);
    let kind = Kind::Write {
        offset: 0,
        len: 8192,
    };
    assert_eq!(
        bench.parse(),
        Parsed::Request(kind, (DATA..DATA + 8192).collect())
    );
}

#[test]
fn the_header_of_a_single_request_is_prefetched_at_the_previous_address() {
    for indirect in [false, true] {
        let mut bench = Bench::new();
        bench.header(READ_T, 0);
        let pieces = [h(), Desc::write(DATA, 512), s()];
        if indirect {
            bench.driver.indirect(0, TABLE, &pieces);
        } else {
            bench.driver.chain(0, &pieces);
        }
        let mut queue = Queue::new(&bench.memory, bench.driver.config()).expect("a valid ring");
        let mut data = Vec::new();
        queue.prefetch_next_header(&bench.memory);
        assert!(
            bench.memory.prefetched().is_empty(),
            "no header is known yet"
        );
        bench.driver.add(0);
        queue.next(&bench.memory, &mut data).expect("a valid ring");
        bench.memory.prefetched();
        queue.prefetch_next_header(&bench.memory);
        assert_eq!(bench.memory.prefetched(), [HEADER]);
        queue.complete(0, 1);

        // With two requests at a time, the next header's address is unknown.
        bench.driver.chain(4, &pieces);
        bench.driver.add(0);
        bench.driver.add(4);
        queue.next(&bench.memory, &mut data).expect("a valid ring");
        queue.next(&bench.memory, &mut data).expect("a valid ring");
        bench.memory.prefetched();
        queue.prefetch_next_header(&bench.memory);
        assert!(bench.memory.prefetched().is_empty());
    }
}

#[test]
fn flush_and_identity_need_no_data_of_their_own() {
    let mut bench = Bench::new();
    bench.header(FLUSH_T, 0);
    assert_eq!(
        bench.parse_chain(&[h(), s()]),
        Parsed::Request(Kind::Flush, vec![])
    );

    let mut bench = Bench::new();
    bench.header(FLUSH_T, 0);
    let with_data = bench.parse_chain(&[h(), Desc::read(DATA, 4096), s()]);
    assert_eq!(
        with_data,
        Parsed::Request(Kind::Flush, vec![]),
        "it has no segments"
    );

    for room in [0, 1, 20, 64] {
        let mut bench = Bench::new();
        bench.header(GET_ID_T, 0);
        let parsed = bench.parse_chain(&[h(), Desc::write(DATA, room), s()]);
        let room = u64::from(room);
        let kind = Kind::GetId { len: room };
        assert_eq!(parsed, Parsed::Request(kind, (DATA..DATA + room).collect()));
    }
}

#[test]
fn ranges_are_discarded_or_zeroed() {
    let (offset, len) = (3 * 512, 8 * 512);
    let parsed = parse_range(DISCARD_T, &range(3, 8, 0));
    assert_eq!(
        parsed,
        Parsed::Request(Kind::Discard { offset, len }, vec![])
    );
    for (flags, unmap) in [(0, false), (1, true)] {
        let parsed = parse_range(WRITE_ZEROES_T, &range(3, 8, flags));
        let kind = Kind::WriteZeroes { offset, len, unmap };
        assert_eq!(parsed, Parsed::Request(kind, vec![]));
    }
    let most = parse_range(WRITE_ZEROES_T, &range(0, MAX_RANGE_SECTORS, 0));
    let len = u64::from(MAX_RANGE_SECTORS) * 512;
    assert!(u32::try_from(len).is_ok(), "a range's bytes fit 32 bits");
    let kind = Kind::WriteZeroes {
        offset: 0,
        len,
        unmap: false,
    };
    assert_eq!(most, Parsed::Request(kind, vec![]));
}

#[test]
fn an_empty_segment_is_ignored_at_any_address() {
    let mut bench = Bench::new();
    bench.header(READ_T, 0);
    let pieces = [
        Desc::read(u64::MAX, 0),
        h(),
        Desc::write(END, 0),
        Desc::write(DATA, 512),
        s(),
        Desc::write(u64::MAX, 0),
    ];
    let parsed = bench.parse_chain(&pieces);
    let kind = Kind::Read {
        offset: 0,
        len: 512,
    };
    assert_eq!(parsed, Parsed::Request(kind, (DATA..DATA + 512).collect()));
}

#[test]
fn the_configuration_space_has_the_specified_layout() {
    let config = BlockConfig {
        size: (1 << 40) + 5 * 512 + 100,
        block_size: 512,
        physical_block_size: 4096,
        optimal_io_size: 65536,
        seg_max: 126,
        queues: 0x0304,
        write_back: true,
    };
    let space = config.encode();
    let u32_at = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().expect("four bytes"));
    assert_eq!(
        space.len(),
        60,
        "up to and with write_zeroes_may_unmap and its padding"
    );
    assert_eq!(
        u64::from_le_bytes(space[..8].try_into().expect("eight")),
        (1 << 31) + 5,
        "capacity"
    );
    assert_eq!(u32_at(8), 0, "size_max, not offered");
    assert_eq!(u32_at(12), 126, "seg_max");
    assert_eq!(u32_at(16), 0, "geometry, not offered");
    assert_eq!(u32_at(20), 512, "blk_size");
    assert_eq!(
        space[24..28],
        [3, 0, 0, 0],
        "8 logical blocks a physical one, no offset, no minimum size"
    );
    assert_eq!(u32_at(28), 128, "opt_io_size in blocks");
    assert_eq!(space[32..34], [1, 0], "writeback, unused0");
    assert_eq!(space[34..36], [4, 3], "num_queues");
    assert_eq!(u32_at(36), MAX_RANGE_SECTORS, "max_discard_sectors");
    assert_eq!(u32_at(40), 1, "max_discard_seg");
    assert_eq!(u32_at(44), 8, "discard_sector_alignment");
    assert_eq!(u32_at(48), MAX_RANGE_SECTORS, "max_write_zeroes_sectors");
    assert_eq!(u32_at(52), 1, "max_write_zeroes_seg");
    assert_eq!(
        space[56..60],
        [1, 0, 0, 0],
        "write_zeroes_may_unmap, unused1"
    );
    assert_eq!(BlockConfig::WRITEBACK, 32);
}

#[test]
fn a_guest_sees_whole_blocks_only() {
    let config = |size, block_size| BlockConfig {
        size,
        block_size,
        physical_block_size: 4096,
        optimal_io_size: 0,
        seg_max: 1,
        queues: 1,
        write_back: false,
    };
    for (size, block, sectors) in [
        (0, 512, 0),
        (511, 512, 0),
        (1023, 512, 1),
        (4096 * 3 + 512, 4096, 24),
        (4095, 4096, 0),
    ] {
        let space = config(size, block).encode();
        assert_eq!(space[..8], u64::to_le_bytes(sectors), "{size} in {block}");
        assert_eq!(space[24], if block == 512 { 3 } else { 0 });
        assert_eq!(space[32], 0);
    }
}

/// Splits `len` bytes at `addr` at the given positions.
fn cut(addr: u64, len: u32, cuts: &[u32], desc: fn(u64, u32) -> Desc) -> Vec<Desc> {
    let mut places: Vec<u32> = cuts.iter().map(|cut| cut % (len + 1)).collect();
    places.extend([0, len]);
    places.sort_unstable();
    places
        .windows(2)
        .map(|pair| desc(addr + u64::from(pair[0]), pair[1] - pair[0]))
        .collect()
}

/// Merges segments that are adjacent in memory.
fn joined(pieces: Vec<Desc>) -> Vec<Desc> {
    let mut out: Vec<Desc> = Vec::new();
    for piece in pieces {
        match out.last_mut() {
            Some(last)
                if last.flags == piece.flags && last.addr + u64::from(last.len) == piece.addr =>
            {
                last.len += piece.len;
            }
            _ => out.push(piece),
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_fast_path_gives_the_same_request_as_following_the_chain(
        kind in prop::sample::select(vec![READ_T, WRITE_T, FLUSH_T, GET_ID_T, DISCARD_T, 77]),
        sector in prop::sample::select(vec![0, 7, 1 << 54, (1 << 55) - 1, 1 << 55, u64::MAX]),
        at in prop::sample::select(vec![DATA, SEAM - 512, SEAM - 100, END - 512, END, TOP, TOP + 0xffe, u64::MAX]),
        len in prop::sample::select(vec![0, 1, 16, 100, 512, 513, 4096, 64 << 20, 65 << 20, u32::MAX]),
        writable: bool,
        indirect: bool,
    ) {
        let parse = |pieces: &[Desc]| {
            let mut bench = Bench::new();
            bench.header(kind, sector);
            if indirect {
                bench.driver.indirect(0, TABLE, pieces);
                bench.parse()
            } else {
                bench.parse_chain(pieces)
            }
        };
        let data = if writable { Desc::write(at, len) } else { Desc::read(at, len) };
        let halves = [Desc::read(h().addr, 8), Desc::read(h().addr + 8, 8)];
        let walked = parse(&[halves[0], halves[1], data, s()]);
        prop_assert_eq!(parse(&[h(), data, s()]), walked);
    }

    #[test]
    fn splitting_a_request_does_not_change_it(
        write: bool,
        indirect: bool,
        join: bool,
        sectors in 0..20u32,
        seam in 0..20u64,
        cuts in proptest::collection::vec(any::<u32>(), 0..8),
        header_cuts in proptest::collection::vec(any::<u32>(), 0..4),
    ) {
        let memory = driver::memory();
        let mut guest = Driver::new(&memory, 32, 65_530);
        let len = 512 * sectors;
        // Around the seam, with the header just before the data and the status just after it, so that they may be
        // adjacent.
        let data = SEAM - 512 * seam;
        let (head_at, status_at) = (data - 16, data + u64::from(len));
        memory.poke(head_at, &header(u32::from(write), 9));
        let desc = if write { Desc::read } else { Desc::write };
        let mut pieces = cut(head_at, 16, &header_cuts, Desc::read);
        pieces.extend(cut(data, len, &cuts, desc));
        pieces.push(Desc::write(status_at, 1));
        if join {
            pieces = joined(pieces);
        }
        if indirect {
            guest.indirect(5, TABLE, &pieces);
        } else {
            guest.chain(5, &pieces);
        }
        prop_assert_eq!(linked(&pieces, 0).len(), pieces.len());
        let mut queue = Queue::new(&memory, guest.config()).expect("a valid ring");
        guest.add(5);

        let mut segments: Vec<Segment> = Vec::new();
        let Ok(Some(Taken::Request(request))) = queue.next(&memory, &mut segments) else {
            return Err(TestCaseError::fail("a valid request is accepted"));
        };

        let (offset, len) = (9 * 512, u64::from(len));
        let kind = if write { Kind::Write { offset, len } } else { Kind::Read { offset, len } };
        prop_assert_eq!((request.head, request.kind), (5, kind));
        prop_assert_eq!(memory.addresses(&[request.status]), [status_at]);
        prop_assert_eq!(memory.addresses(&segments), (data..status_at).collect::<Vec<_>>());
        prop_assert!(segments.iter().all(|s| Memory::segment_len(s) > 0));
    }
}
