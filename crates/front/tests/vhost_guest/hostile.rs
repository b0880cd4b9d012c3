//! Malformed chains and rings, each with its error.

use super::bench::{
    Bench, DATA, DISCARD_T, FLUSH_T, HEADER, Heard, READ_T, STATUS, TABLE, WRITE_T, WRITE_ZEROES_T,
    h, hear_range, range, s,
};
use super::driver::{self, Desc, Driver, END, INDIRECT, NEXT, ROOM, SEAM, TOP, WRITE};
use tidegate_front::vhost::block::{Kind, MAX_DATA, MAX_RANGE_SECTORS};
use tidegate_front::vhost::queue::{
    Broken, MAX_SEGMENTS, MAX_SIZE, Nonsense, Queue, QueueConfig, Taken,
};

#[test]
fn flags_of_a_range_that_this_device_does_not_know_are_unsupported() {
    // UNMAP means nothing for a discard, and must be refused so.
    for (kind, flags) in [
        (DISCARD_T, 1),
        (DISCARD_T, 2),
        (WRITE_ZEROES_T, 2),
        (WRITE_ZEROES_T, u32::MAX),
    ] {
        assert_eq!(
            hear_range(kind, &range(0, 1, flags)),
            Heard::Request(Kind::Unknown, vec![])
        );
    }
}

#[test]
fn ranges_too_large_or_cut_are_errors() {
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
                hear_range(kind, &bytes),
                Heard::Bad(Nonsense::Fields, Some(STATUS)),
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
                hear_range(kind, &bytes),
                Heard::Request(Kind::Unknown, vec![]),
                "{bytes:?}"
            );
        }
    }
}

#[test]
fn types_that_this_device_does_not_know_are_unsupported() {
    for kind in [2, 3, 5, 10, 14, 15, 0x8000_0000, u32::MAX] {
        let mut bench = Bench::new();
        bench.header(kind, u64::MAX);
        let heard = bench.hear_chain(&[h(), Desc::read(DATA, 3), s()]);
        assert!(
            matches!(heard, Heard::Request(Kind::Unknown, _)),
            "{kind}: {heard:?}"
        );
    }
}

#[test]
fn a_chain_without_room_for_a_status_is_short() {
    let mut bench = Bench::new();
    bench.header(FLUSH_T, 0);
    assert_eq!(bench.hear_chain(&[h()]), Heard::Bad(Nonsense::Short, None));
    assert_eq!(
        Bench::new().hear_chain(&[h(), Desc::write(STATUS, 0)]),
        Heard::Bad(Nonsense::Short, None)
    );
}

#[test]
fn a_header_too_short_is_an_error_that_the_guest_sees() {
    for len in [0, 1, 15] {
        let heard = Bench::new().hear_chain(&[Desc::read(HEADER, len), s()]);
        assert_eq!(heard, Heard::Bad(Nonsense::Short, Some(STATUS)));
    }
    assert_eq!(
        Bench::new().hear_chain(&[s()]),
        Heard::Bad(Nonsense::Short, Some(STATUS))
    );
}

#[test]
fn a_header_that_only_the_device_may_write_is_no_header() {
    let heard = Bench::new().hear_chain(&[Desc::write(HEADER, 16), s()]);
    assert_eq!(heard, Heard::Bad(Nonsense::Short, Some(STATUS)));
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
            Bench::new().hear_chain(&pieces),
            Heard::Bad(Nonsense::Order, Some(STATUS))
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
            let heard = bench.hear_chain(&[h(), piece, s()]);
            assert_eq!(
                heard,
                Heard::Bad(Nonsense::Outside, Some(STATUS)),
                "{addr:#x}+{len:#x}"
            );
        }
    }
}

#[test]
fn a_header_outside_memory_still_gets_its_status() {
    let heard = Bench::new().hear_chain(&[Desc::read(END, 16), Desc::write(DATA, 512), s()]);
    assert_eq!(heard, Heard::Bad(Nonsense::Outside, Some(STATUS)));
}

#[test]
fn a_status_outside_memory_gets_none_and_nothing_else_is_taken_for_it() {
    let heard = Bench::new().hear_chain(&[h(), Desc::write(DATA, 512), Desc::write(END, 1)]);
    assert_eq!(heard, Heard::Bad(Nonsense::Outside, None));
}

#[test]
fn reads_and_writes_are_whole_sectors_of_a_sane_length() {
    for len in [
        1,
        511,
        513,
        u32::try_from(MAX_DATA).expect("fits") + 512,
        u32::MAX,
    ] {
        let mut bench = Bench::new();
        bench.header(READ_T, 0);
        let heard = bench.hear_chain(&[h(), Desc::write(DATA, len), s()]);
        assert!(
            matches!(
                heard,
                Heard::Bad(Nonsense::Fields | Nonsense::Outside, Some(STATUS))
            ),
            "{heard:?}"
        );
    }
    for sector in [u64::MAX, u64::MAX / 512 + 1] {
        let mut bench = Bench::new();
        bench.header(WRITE_T, sector);
        let heard = bench.hear_chain(&[h(), Desc::read(DATA, 512), s()]);
        assert_eq!(heard, Heard::Bad(Nonsense::Fields, Some(STATUS)));
    }
}

#[test]
fn more_bytes_than_a_request_may_carry_are_an_error_even_where_all_of_them_are_there() {
    // The same 960 KiB over and over.
    let hear = |whole: usize, rest: u32| {
        let mut bench = Bench::new();
        bench.header(WRITE_T, 0);
        let mut pieces = vec![h(); 1];
        pieces.extend((0..whole).map(|_| Desc::read(DATA, 0xf_0000)));
        pieces.extend([Desc::read(DATA, rest), s()]);
        bench.driver.indirect(0, TABLE, &pieces);
        bench.hear()
    };
    let (whole, rest) = (68, 0x4_0000);
    assert_eq!(68 * 0xf_0000 + u64::from(rest), MAX_DATA);
    assert!(
        matches!(hear(whole, rest), Heard::Request(Kind::Write { len, .. }, _) if len == MAX_DATA)
    );
    let more = hear(whole, rest + 512);
    assert_eq!(more, Heard::Bad(Nonsense::Fields, Some(STATUS)));
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
    assert_eq!(bench.hear(), Heard::Bad(Nonsense::Loop, None));

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
    assert_eq!(bench.hear(), Heard::Bad(Nonsense::Loop, None));
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
    assert_eq!(bench.hear(), Heard::Bad(Nonsense::Outside, None));
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
    assert_eq!(bench.hear(), Heard::Bad(Nonsense::Index, None));
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
    assert_eq!(bench.hear(), Heard::Bad(Nonsense::Index, None));
}

#[test]
fn indirect_tables_that_make_no_sense_are_errors() {
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
            bench.hear(),
            Heard::Bad(Nonsense::Indirect, None),
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
    assert_eq!(bench.hear(), Heard::Bad(Nonsense::Indirect, None));
    assert_eq!(
        Bench::new().hear_chain(&[h(), inner, s()]),
        Heard::Bad(Nonsense::Indirect, None)
    );
}

#[test]
fn an_indirect_table_that_was_not_negotiated_is_an_error() {
    let mut bench = Bench::new();
    bench.driver.indirect(0, TABLE, &[h(), s()]);
    let heard = bench.hear_with(|config| config.indirect = false);
    assert_eq!(heard, Heard::Bad(Nonsense::Indirect, None));
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
            bench.hear(),
            Heard::Bad(Nonsense::Outside, None),
            "{addr:#x}"
        );
    }
}

#[test]
fn as_many_pieces_as_one_call_of_the_kernel_takes_are_served_and_one_more_is_an_error() {
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
        bench.hear(),
        Heard::Request(Kind::Write { .. }, _)
    ));

    for data in [MAX_SEGMENTS - 1, 3000] {
        let mut bench = Bench::new();
        bench.header(WRITE_T, 0);
        bench.driver.indirect(0, TABLE, &pieces(data));
        assert_eq!(bench.hear(), Heard::Bad(Nonsense::Long, None));
    }
}

#[test]
fn pieces_that_regions_cut_too_small_are_an_error_with_a_status() {
    // 700 descriptors, each across a seam.
    let mut bench = Bench::new();
    bench.header(WRITE_T, 0);
    let mut pieces = vec![h()];
    pieces.extend((0..700).map(|_| Desc::read(SEAM - 256, 512)));
    pieces.push(s());
    bench.driver.indirect(0, TABLE, &pieces);
    assert_eq!(bench.hear(), Heard::Bad(Nonsense::Long, Some(STATUS)));
}

#[test]
fn what_it_takes_to_follow_a_chain_is_told_also_where_the_chain_makes_no_sense() {
    let data = |count: usize, piece: Desc| {
        let mut pieces = vec![h()];
        pieces.extend((0..count).map(|_| piece));
        pieces.push(s());
        pieces
    };
    let cases = [
        // A plain one is as short as can be, and not counted.
        (data(1, Desc::read(DATA, 512)), 0),
        (data(2, Desc::read(DATA, 512)), 1 + 4),
        (data(3000, Desc::read(DATA, 512)), 1 + MAX_SEGMENTS as u64),
        // Followed until the 512th of them makes 1025 pieces, then from there to the end, for the status.
        (data(700, Desc::read(SEAM - 256, 512)), 1 + 513 + 1024 + 190),
        // The second has no memory: the rest is followed for the status.
        (data(9, Desc::read(END, 512)), 1 + 2 + 10),
    ];
    for (pieces, takes) in cases {
        let mut bench = Bench::new();
        bench.header(WRITE_T, 0);
        bench.driver.indirect(0, TABLE, &pieces);
        bench.driver.add(0);
        let mut queue = Queue::new(&bench.memory, bench.driver.config()).expect("sound");
        queue.next(&bench.memory, &mut Vec::new()).expect("sound");
        assert_eq!(queue.walked(), takes, "{} descriptors", pieces.len());
    }
}

#[test]
fn a_direct_chain_in_a_huge_ring_is_followed_no_further_than_any_other() {
    let memory = driver::memory();
    let mut driver = Driver::new(&memory, MAX_SIZE, 0);
    driver.chain(0, &vec![Desc::read(ROOM + 0x8_0000, 1); 5000]);
    driver.add(0);
    let mut queue = Queue::new(&memory, driver.config()).expect("sound");
    let before = memory.accesses();
    let taken = queue.next(&memory, &mut Vec::new()).expect("sound");
    assert!(
        matches!(
            &taken,
            Some(Taken::Bad {
                why: Nonsense::Long,
                ..
            })
        ),
        "{taken:?}"
    );
    assert!(memory.accesses() - before <= MAX_SEGMENTS as u64 + 3);
}

fn broken(change: impl FnOnce(&mut QueueConfig)) -> Option<Broken> {
    let memory = driver::memory();
    let mut config = Driver::new(&memory, 16, 0).config();
    change(&mut config);
    Queue::new(&memory, config).err()
}

#[test]
fn rings_of_no_size_or_place_are_refused() {
    for size in [0, 3, 100, 32_769, u16::MAX] {
        assert_eq!(broken(|c| c.size = size), Some(Broken::Size(size)));
    }
    for at in [1, 8] {
        assert_eq!(broken(|c| c.desc = at), Some(Broken::Misaligned));
    }
    assert_eq!(broken(|c| c.avail += 1), Some(Broken::Misaligned));
    assert_eq!(broken(|c| c.used += 2), Some(Broken::Misaligned));
    for at in [END, SEAM - 32, u64::MAX - 15] {
        assert_eq!(broken(|c| c.desc = at), Some(Broken::Outside));
        assert_eq!(broken(|c| c.avail = at), Some(Broken::Outside));
        assert_eq!(broken(|c| c.used = at), Some(Broken::Outside));
    }
    assert_eq!(broken(|_| {}), None);
}

/// A ring of 4 at `base`, in which the guest does something; what the device finds after `good` chains.
fn upset(base: u16, act: impl FnOnce(&mut Driver), good: usize) -> Broken {
    let memory = driver::memory();
    let mut driver = Driver::new(&memory, 4, base);
    let mut queue = Queue::new(&memory, driver.config()).expect("sound");
    for head in 0..4 {
        driver.describe(head, h());
    }
    act(&mut driver);
    let mut data = Vec::new();
    for _ in 0..good {
        assert!(
            queue
                .next(&memory, &mut data)
                .expect("sound so far")
                .is_some()
        );
    }
    let (position, in_flight) = (queue.position(), queue.in_flight());
    let broken = queue.next(&memory, &mut data).expect_err("nonsense");
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
            let broken = Broken::IndexJump {
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
        assert_eq!(upset(0, |driver| driver.add(head), 0), Broken::Head(head));
    }
}

#[test]
fn a_head_that_is_in_flight_already_breaks_the_ring() {
    let twice = |driver: &mut Driver| {
        driver.add(2);
        driver.add(2);
    };
    assert_eq!(upset(u16::MAX, twice, 1), Broken::Reused(2));
}
