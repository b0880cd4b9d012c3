//! Malformed chains and rings, each with its error.

use super::bench::{
    Bench, DATA, DISCARD_T, FLUSH_T, HEADER, Parsed, READ_T, STATUS, TABLE, WRITE_T,
    WRITE_ZEROES_T, h, parse_range, range, s,
};
use super::driver::{self, Desc, Driver, END, INDIRECT, NEXT, ROOM, SEAM, TOP, WRITE};
use tidegate_front::vhost::block::{Kind, MAX_DATA, MAX_RANGE_SECTORS};
use tidegate_front::vhost::queue::{
    ChainError, MAX_SEGMENTS, MAX_SIZE, Queue, QueueConfig, RingError, Taken,
};

#[test]
fn unknown_flags_of_a_range_are_unsupported() {
    // UNMAP has no meaning for a discard and must be rejected this way.
    for (kind, flags) in [
        (DISCARD_T, 1),
        (DISCARD_T, 2),
        (WRITE_ZEROES_T, 2),
        (WRITE_ZEROES_T, u32::MAX),
    ] {
        assert_eq!(
            parse_range(kind, &range(0, 1, flags)),
            Parsed::Request(Kind::Unknown, vec![])
        );
    }
}

#[test]
fn ranges_too_large_or_truncated_are_errors() {
    let cases = [
        range(0, MAX_RANGE_SECTORS + 1, 0),
        range(0, u32::MAX, 0),
        range(u64::MAX, 1, 0),
        range(0, 8, 0)[..15].to_vec(),
        vec![],
    ];
    for bytes in cases {
        for kind in [DISCARD_T, WRITE_ZEROES_T] {
            assert_eq!(
                parse_range(kind, &bytes),
                Parsed::Bad(ChainError::Fields, Some(STATUS)),
                "{bytes:?}"
            );
        }
    }
}

#[test]
fn more_ranges_than_are_announced_are_unsupported() {
    let two = [range(0, 8, 0), range(8, 8, 0)].concat();
    for bytes in [two, vec![0; 17]] {
        for kind in [DISCARD_T, WRITE_ZEROES_T] {
            assert_eq!(
                parse_range(kind, &bytes),
                Parsed::Request(Kind::Unknown, vec![]),
                "{bytes:?}"
            );
        }
    }
}

#[test]
fn unknown_request_types_are_unsupported() {
    for kind in [2, 3, 5, 10, 14, 15, 0x8000_0000, u32::MAX] {
        let mut bench = Bench::new();
        bench.header(kind, u64::MAX);
        let parsed = bench.parse_chain(&[h(), Desc::read(DATA, 3), s()]);
        assert!(
            matches!(parsed, Parsed::Request(Kind::Unknown, _)),
            "{kind}: {parsed:?}"
        );
    }
}

#[test]
fn a_chain_without_a_status_byte_is_too_short() {
    let mut bench = Bench::new();
    bench.header(FLUSH_T, 0);
    assert_eq!(
        bench.parse_chain(&[h()]),
        Parsed::Bad(ChainError::Short, None)
    );
    assert_eq!(
        Bench::new().parse_chain(&[h(), Desc::write(STATUS, 0)]),
        Parsed::Bad(ChainError::Short, None)
    );
}

#[test]
fn a_short_header_is_an_error_with_a_status() {
    for len in [0, 1, 15] {
        let parsed = Bench::new().parse_chain(&[Desc::read(HEADER, len), s()]);
        assert_eq!(parsed, Parsed::Bad(ChainError::Short, Some(STATUS)));
    }
    assert_eq!(
        Bench::new().parse_chain(&[s()]),
        Parsed::Bad(ChainError::Short, Some(STATUS))
    );
}

#[test]
fn a_writable_header_is_invalid() {
    let parsed = Bench::new().parse_chain(&[Desc::write(HEADER, 16), s()]);
    assert_eq!(parsed, Parsed::Bad(ChainError::Short, Some(STATUS)));
}

#[test]
fn readable_memory_after_writable_is_an_error_with_a_status() {
    let late = Desc::read(DATA, 512);
    let cases = [
        vec![h(), s(), late],
        vec![h(), Desc::write(DATA, 512), late, s()],
    ];
    for pieces in cases {
        assert_eq!(
            Bench::new().parse_chain(&pieces),
            Parsed::Bad(ChainError::Order, Some(STATUS))
        );
    }
}

#[test]
fn memory_that_the_guest_does_not_have_is_an_error_with_a_status() {
    let holes = [
        (END, 1),
        (END - 1, 2),
        (END - 0x1000, u32::MAX),
        (0, u32::MAX),
        (TOP - 1, 2),
        (TOP, 0x1000),
        (TOP + 0xffe, 2),
        (u64::MAX, 1),
        (u64::MAX, u32::MAX),
        (u64::MAX - 15, 16),
    ];
    for (addr, len) in holes {
        for piece in [Desc::read(addr, len), Desc::write(addr, len)] {
            let mut bench = Bench::new();
            bench.header(WRITE_T, 0);
            let parsed = bench.parse_chain(&[h(), piece, s()]);
            assert_eq!(
                parsed,
                Parsed::Bad(ChainError::Outside, Some(STATUS)),
                "{addr:#x}+{len:#x}"
            );
        }
    }
}

#[test]
fn a_header_outside_memory_still_gets_its_status() {
    let parsed = Bench::new().parse_chain(&[Desc::read(END, 16), Desc::write(DATA, 512), s()]);
    assert_eq!(parsed, Parsed::Bad(ChainError::Outside, Some(STATUS)));
}

#[test]
fn a_status_outside_memory_is_not_written_anywhere() {
    let parsed = Bench::new().parse_chain(&[h(), Desc::write(DATA, 512), Desc::write(END, 1)]);
    assert_eq!(parsed, Parsed::Bad(ChainError::Outside, None));
}

#[test]
fn reads_and_writes_are_whole_sectors_of_a_valid_length() {
    for len in [
        1,
        511,
        513,
        u32::try_from(MAX_DATA).expect("fits") + 512,
        u32::MAX,
    ] {
        let mut bench = Bench::new();
        bench.header(READ_T, 0);
        let parsed = bench.parse_chain(&[h(), Desc::write(DATA, len), s()]);
        assert!(
            matches!(
                parsed,
                Parsed::Bad(ChainError::Fields | ChainError::Outside, Some(STATUS))
            ),
            "{parsed:?}"
        );
    }
    for sector in [u64::MAX, u64::MAX / 512 + 1] {
        let mut bench = Bench::new();
        bench.header(WRITE_T, sector);
        let parsed = bench.parse_chain(&[h(), Desc::read(DATA, 512), s()]);
        assert_eq!(parsed, Parsed::Bad(ChainError::Fields, Some(STATUS)));
    }
}

#[test]
fn more_bytes_than_a_request_may_have_are_an_error_even_in_valid_memory() {
    // The same 960 KiB repeatedly.
    let parse = |whole: usize, rest: u32| {
        let mut bench = Bench::new();
        bench.header(WRITE_T, 0);
        let mut pieces = vec![h(); 1];
        pieces.extend((0..whole).map(|_| Desc::read(DATA, 0xf_0000)));
        pieces.extend([Desc::read(DATA, rest), s()]);
        bench.driver.indirect(0, TABLE, &pieces);
        bench.parse()
    };
    let (whole, rest) = (68, 0x4_0000);
    assert_eq!(68 * 0xf_0000 + u64::from(rest), MAX_DATA);
    assert!(
        matches!(parse(whole, rest), Parsed::Request(Kind::Write { len, .. }, _) if len == MAX_DATA)
    );
    let more = parse(whole, rest + 512);
    assert_eq!(more, Parsed::Bad(ChainError::Fields, Some(STATUS)));
}

#[test]
fn a_chain_that_loops_ends_and_has_no_status() {
    let mut bench = Bench::new();
    bench.driver.describe(
        0,
        Desc {
            flags: NEXT,
            next: 0,
            ..h()
        },
    );
    assert_eq!(bench.parse(), Parsed::Bad(ChainError::Loop, None));

    let mut bench = Bench::new();
    bench.driver.chain(0, &[h(), Desc::write(DATA, 512), s()]);
    bench.driver.describe(
        2,
        Desc {
            flags: NEXT | WRITE,
            next: 1,
            ..s()
        },
    );
    assert_eq!(bench.parse(), Parsed::Bad(ChainError::Loop, None));
}

#[test]
fn a_bad_piece_in_a_chain_that_loops_has_no_status_either() {
    let mut bench = Bench::new();
    bench.driver.chain(0, &[h(), Desc::write(END, 512), s()]);
    bench.driver.describe(
        2,
        Desc {
            flags: NEXT | WRITE,
            next: 1,
            ..s()
        },
    );
    assert_eq!(bench.parse(), Parsed::Bad(ChainError::Outside, None));
}

#[test]
fn a_link_beyond_the_table_is_an_error() {
    let mut bench = Bench::new();
    bench.driver.describe(
        0,
        Desc {
            flags: NEXT,
            next: 16,
            ..h()
        },
    );
    assert_eq!(bench.parse(), Parsed::Bad(ChainError::Index, None));
    let mut bench = Bench::new();
    bench.driver.indirect(0, TABLE, &[h(), s()]);
    bench.memory.poke(
        TABLE,
        &Desc {
            flags: NEXT,
            next: 2,
            ..h()
        }
        .encode(),
    );
    assert_eq!(bench.parse(), Parsed::Bad(ChainError::Index, None));
}

#[test]
fn malformed_indirect_tables_are_errors() {
    let table = |len, flags| Desc {
        flags: INDIRECT | flags,
        ..Desc::read(TABLE, len)
    };
    for desc in [
        table(0, 0),
        table(8, 0),
        table(33, 0),
        table(32, NEXT),
        table(1 << 20, 0),
        table(u32::MAX, 0),
        table(0xffff_fff0, 0),
    ] {
        let mut bench = Bench::new();
        bench.driver.describe(0, desc);
        assert_eq!(
            bench.parse(),
            Parsed::Bad(ChainError::Indirect, None),
            "{desc:?}"
        );
    }
}

#[test]
fn an_indirect_table_inside_another_or_inside_a_chain_is_an_error() {
    let inner = Desc {
        flags: INDIRECT,
        ..Desc::read(TABLE, 32)
    };
    let mut bench = Bench::new();
    bench.driver.indirect(0, TABLE, &[h(), inner, s()]);
    assert_eq!(bench.parse(), Parsed::Bad(ChainError::Indirect, None));
    assert_eq!(
        Bench::new().parse_chain(&[h(), inner, s()]),
        Parsed::Bad(ChainError::Indirect, None)
    );
}

#[test]
fn an_indirect_table_that_was_not_negotiated_is_an_error() {
    let mut bench = Bench::new();
    bench.driver.indirect(0, TABLE, &[h(), s()]);
    let parsed = bench.parse_with(|config| config.indirect = false);
    assert_eq!(parsed, Parsed::Bad(ChainError::Indirect, None));
}

#[test]
fn an_indirect_table_outside_memory_is_an_error() {
    for addr in [END, END - 8, TOP + 0xff8, u64::MAX, u64::MAX - 7] {
        let mut bench = Bench::new();
        bench.driver.describe(
            0,
            Desc {
                flags: INDIRECT,
                ..Desc::read(addr, 64)
            },
        );
        assert_eq!(
            bench.parse(),
            Parsed::Bad(ChainError::Outside, None),
            "{addr:#x}"
        );
    }
}

#[test]
fn the_most_segments_of_one_system_call_are_served_and_one_more_is_an_error() {
    let pieces = |data: usize| {
        let mut pieces = vec![h()];
        pieces.extend((0..data).map(|_| Desc::read(DATA, 512)));
        pieces.push(s());
        pieces
    };
    let mut bench = Bench::new();
    bench.header(WRITE_T, 0);
    bench.driver.indirect(0, TABLE, &pieces(MAX_SEGMENTS - 2));
    assert!(matches!(
        bench.parse(),
        Parsed::Request(Kind::Write { .. }, _)
    ));

    for data in [MAX_SEGMENTS - 1, 3000] {
        let mut bench = Bench::new();
        bench.header(WRITE_T, 0);
        bench.driver.indirect(0, TABLE, &pieces(data));
        assert_eq!(bench.parse(), Parsed::Bad(ChainError::Long, None));
    }
}

#[test]
fn too_many_segments_at_region_boundaries_are_an_error_with_a_status() {
    // 700 descriptors, each across a seam.
    let mut bench = Bench::new();
    bench.header(WRITE_T, 0);
    let mut pieces = vec![h()];
    pieces.extend((0..700).map(|_| Desc::read(SEAM - 256, 512)));
    pieces.push(s());
    bench.driver.indirect(0, TABLE, &pieces);
    assert_eq!(bench.parse(), Parsed::Bad(ChainError::Long, Some(STATUS)));
}

#[test]
fn the_work_of_following_a_chain_is_counted_also_for_a_malformed_one() {
    let data = |count: usize, piece: Desc| {
        let mut pieces = vec![h()];
        pieces.extend((0..count).map(|_| piece));
        pieces.push(s());
        pieces
    };
    let cases = [
        // A plain one is minimal and not counted.
        (data(1, Desc::read(DATA, 512)), 0),
        (data(2, Desc::read(DATA, 512)), 1 + 4),
        (data(3000, Desc::read(DATA, 512)), 1 + MAX_SEGMENTS as u64),
        // Followed until the 512th makes 1025 segments, then from there to the end, for the status.
        (data(700, Desc::read(SEAM - 256, 512)), 1 + 513 + 1024 + 190),
        // The second has no memory. The rest is followed for the status.
        (data(9, Desc::read(END, 512)), 1 + 2 + 10),
    ];
    for (pieces, takes) in cases {
        let mut bench = Bench::new();
        bench.header(WRITE_T, 0);
        bench.driver.indirect(0, TABLE, &pieces);
        bench.driver.add(0);
        let mut queue = Queue::new(&bench.memory, bench.driver.config()).expect("a valid ring");
        queue
            .next(&bench.memory, &mut Vec::new())
            .expect("a valid ring");
        assert_eq!(queue.walked(), takes, "{} descriptors", pieces.len());
    }
}

#[test]
fn a_direct_chain_in_a_huge_ring_is_followed_no_further_than_any_other() {
    let memory = driver::memory();
    let mut driver = Driver::new(&memory, MAX_SIZE, 0);
    driver.chain(0, &vec![Desc::read(ROOM + 0x8_0000, 1); 5000]);
    driver.add(0);
    let mut queue = Queue::new(&memory, driver.config()).expect("a valid ring");
    let before = memory.accesses();
    let taken = queue.next(&memory, &mut Vec::new()).expect("a valid ring");
    assert!(
        matches!(
            &taken,
            Some(Taken::Bad {
                why: ChainError::Long,
                ..
            })
        ),
        "{taken:?}"
    );
    assert!(memory.accesses() - before <= MAX_SEGMENTS as u64 + 3);
}

fn broken(change: impl FnOnce(&mut QueueConfig)) -> Option<RingError> {
    let memory = driver::memory();
    let mut config = Driver::new(&memory, 16, 0).config();
    change(&mut config);
    Queue::new(&memory, config).err()
}

#[test]
fn rings_of_invalid_size_or_address_are_rejected() {
    for size in [0, 3, 100, 32_769, u16::MAX] {
        assert_eq!(broken(|c| c.size = size), Some(RingError::Size(size)));
    }
    for at in [1, 8] {
        assert_eq!(broken(|c| c.desc = at), Some(RingError::Misaligned));
    }
    assert_eq!(broken(|c| c.avail += 1), Some(RingError::Misaligned));
    assert_eq!(broken(|c| c.used += 2), Some(RingError::Misaligned));
    for at in [END, SEAM - 32, u64::MAX - 15] {
        assert_eq!(broken(|c| c.desc = at), Some(RingError::Outside));
        assert_eq!(broken(|c| c.avail = at), Some(RingError::Outside));
        assert_eq!(broken(|c| c.used = at), Some(RingError::Outside));
    }
    assert_eq!(broken(|_| {}), None);
}

/// A ring of 4 at `base`, with an action of the guest. Returns the device's error after `good` chains.
fn upset(base: u16, act: impl FnOnce(&mut Driver), good: usize) -> RingError {
    let memory = driver::memory();
    let mut driver = Driver::new(&memory, 4, base);
    let mut queue = Queue::new(&memory, driver.config()).expect("a valid ring");
    for head in 0..4 {
        driver.describe(head, h());
    }
    act(&mut driver);
    let mut data = Vec::new();
    for _ in 0..good {
        assert!(
            queue
                .next(&memory, &mut data)
                .expect("valid so far")
                .is_some()
        );
    }
    let (position, in_flight) = (queue.position(), queue.in_flight());
    let broken = queue.next(&memory, &mut data).expect_err("an invalid ring");
    assert_eq!((queue.position(), queue.in_flight()), (position, in_flight));
    broken
}

#[test]
fn an_available_index_that_jumps_breaks_the_ring() {
    for base in [0, u16::MAX - 1] {
        for jump in [5, 6, 1000, 0x8000, u16::MAX] {
            let far = |driver: &mut Driver| {
                driver.avail_idx = driver.avail_idx.wrapping_add(jump);
                driver.show();
            };
            let broken = RingError::IndexJump {
                available: base.wrapping_add(jump),
                position: base,
            };
            assert_eq!(upset(base, far, 0), broken);
        }
    }
}

#[test]
fn a_head_beyond_the_table_breaks_the_ring() {
    for head in [4, 5, u16::MAX] {
        assert_eq!(
            upset(0, |driver| driver.add(head), 0),
            RingError::Head(head)
        );
    }
}

#[test]
fn a_head_that_is_in_flight_already_breaks_the_ring() {
    let twice = |driver: &mut Driver| {
        driver.add(2);
        driver.add(2);
    };
    assert_eq!(upset(u16::MAX, twice, 1), RingError::Reused(2));
}
