//! Overlapping requests, some smaller than the unit of direct I/O: no sector loses data.

use super::*;

/// Two blocks: what each of their sixteen sectors holds.
fn sectors(parts: &[(u8, usize)]) -> [u8; 16] {
    let mut all = parts
        .iter()
        .flat_map(|(value, count)| [*value].repeat(*count));
    let sectors = std::array::from_fn(|_| all.next().expect("sixteen sectors"));
    assert_eq!(all.next(), None);
    sectors
}

const NONE: Flags = Flags::NONE;

#[test]
fn a_whole_write_waits_while_part_of_one_of_its_units_is_changed() {
    let mut rig = Rig::coarse();
    let small = rig.ask_with(Op::Write, NONE, 3584, 512, 3);
    // It has read the unit, and is to write it back with the old bytes around its own.
    let read = rig.completions();
    let whole = rig.ask_with(Op::Write, NONE, 0, 2 * BLOCK, 5);
    assert!(rig.image.pending.iter().flatten().any(|p| p.waits));
    rig.deliver(read);
    rig.finish();
    assert_eq!(rig.sectors(), sectors(&[(5, 16)]), "the last write");
    for io in [small, whole] {
        assert_eq!(rig.outcome(io), Some(Ok(())));
    }
    assert!(rig.image.locks.is_idle());
}

#[test]
fn part_of_a_unit_is_read_only_when_a_whole_write_of_it_has_ended() {
    let mut rig = Rig::coarse();
    rig.ask_with(Op::Write, NONE, 0, 2 * BLOCK, 5);
    rig.ask_with(Op::Write, NONE, 3584, 512, 3);
    rig.finish();
    assert_eq!(rig.sectors(), sectors(&[(5, 7), (3, 1), (5, 8)]));
}

#[test]
fn neighbours_in_one_unit_change_it_one_after_the_other() {
    let mut rig = Rig::coarse();
    for sector in 0..8 {
        let value = 10 + u8::try_from(sector).expect("small");
        rig.ask_with(Op::Write, NONE, sector * 512, 512, value);
    }
    let under_way = rig.completions();
    assert_eq!(under_way.len(), 1, "the others wait");
    rig.deliver(under_way);
    rig.finish();
    let sectors = rig.sectors();
    assert_eq!(sectors[..8], [10, 11, 12, 13, 14, 15, 16, 17]);
    assert_eq!(sectors[8..], [1; 8]);
}

#[test]
fn zeroes_and_holes_wait_for_part_of_a_unit_and_it_waits_for_them() {
    for op in [Op::WriteZeroes, Op::Discard] {
        for flags in [NONE, Flags::MAY_UNMAP] {
            let mut rig = Rig::coarse();
            rig.ask_with(Op::Write, NONE, 512, 512, 3);
            let read = rig.completions();
            rig.ask_with(op, flags, 0, BLOCK, 0);
            rig.deliver(read);
            rig.ask_with(Op::Write, NONE, 1024, 512, 4);
            rig.finish();
            let wanted = sectors(&[(0, 2), (4, 1), (0, 5), (1, 8)]);
            assert_eq!(rig.sectors(), wanted, "{op:?} {flags:?}");
        }
    }
}

#[test]
fn of_a_ragged_range_the_ends_are_zeroed_by_hand_and_nothing_beside_them() {
    for zero_range in [true, false] {
        for flags in [NONE, Flags::MAY_UNMAP, Flags::FUA] {
            let mut rig = Rig::coarse();
            rig.image.zero_range = zero_range;
            let zeroes = rig.ask_with(Op::WriteZeroes, flags, 512, 14 * 512, 0);
            rig.finish();
            assert_eq!(rig.outcome(zeroes), Some(Ok(())));
            let wanted = sectors(&[(1, 1), (0, 14), (1, 1)]);
            assert_eq!(rig.sectors(), wanted, "{zero_range} {flags:?}");
            assert!(rig.image.locks.is_idle());
        }
    }
}

#[test]
fn a_discard_leaves_the_parts_of_units_at_its_ends_alone() {
    let mut rig = Rig::coarse();
    let ragged = rig.ask_with(Op::Discard, NONE, 512, 2 * BLOCK, 0);
    let nothing = rig.ask_with(Op::Discard, NONE, 512, 512, 0);
    rig.finish();
    assert_eq!(rig.sectors(), sectors(&[(1, 8), (0, 8)]));
    for io in [ragged, nothing] {
        assert_eq!(rig.outcome(io), Some(Ok(())));
    }
}

#[test]
fn zeroes_take_no_memory_of_their_own_however_many_are_asked_for() {
    let mut rig = Rig::coarse();
    rig.image.zero_range = false;
    let before = rig.buffers.zeroes().expect("memory");
    for _ in 0..8 {
        rig.ask_with(Op::WriteZeroes, NONE, 0, SIZE, 0);
    }
    let claimed_by_the_test = 8;
    assert_eq!(rig.buffers.zeroes().expect("memory"), before);
    assert_eq!(rig.buffers.claimed(), 1 + claimed_by_the_test);
    rig.finish();
    assert_eq!(rig.sectors(), [0; 16]);
}

#[test]
fn who_finds_no_room_for_a_buffer_waits_and_all_are_done() {
    let mut rig = Rig::coarse();
    let long = 100 << 10;
    let asked: Vec<IoId> = (0..8)
        .map(|at| rig.ask_with(Op::Write, NONE, 512 + at * (long + BLOCK), long, 7))
        .collect();
    assert!(rig.image.pending.iter().flatten().any(|p| p.waits));
    rig.finish();
    for io in asked {
        assert_eq!(rig.outcome(io), Some(Ok(())));
    }
    for at in 0..8 {
        let mut bytes = vec![0; bytes(long + 1024)];
        let begin = at * (long + BLOCK);
        let read = rig.file.read_exact_at(&mut bytes, begin);
        read.expect("the image is whole");
        let (before, rest) = bytes.split_at(512);
        let (own, after) = rest.split_at(rest.len() - 512);
        assert!(before.iter().chain(after).all(|byte| *byte == 1));
        assert!(own.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn who_waits_for_a_range_is_refused_when_the_image_was_cut_or_the_lease_was_lost_meanwhile() {
    for cut in [true, false] {
        let mut rig = Rig::coarse();
        let small = rig.ask_with(Op::Write, NONE, 512, 512, 3);
        let read = rig.completions();
        let waits = rig.ask_with(Op::Write, NONE, 0, BLOCK, 5);
        if cut {
            rig.file.set_len(HALF).expect("cut");
        } else {
            // A gate that nobody has opened.
            rig.image.fence(&Arc::new(Fence::default()));
        }
        rig.deliver(read);
        rig.finish();
        for io in [small, waits] {
            assert_eq!(rig.outcome(io), Some(Err(Fault::Io)));
        }
        assert_eq!(rig.sectors(), [1; 16], "nothing was written");
    }
}

#[test]
fn bytes_that_are_not_aligned_in_memory_are_read_and_written_whole() {
    let mut rig = Rig::coarse();
    let buffer = rig.buffers.claim_pool(3 * 4096).expect("memory");
    let data = Data { buffer, start: 100 };
    rig.buffers.put(data, &[9; 4096]);
    let job = |op, io| Job {
        io: IoId::from_bits(io),
        op,
        flags: NONE,
        offset: BLOCK,
        len: BLOCK,
        data: Data {
            buffer,
            start: if op == Op::Write { 100 } else { 5000 },
        },
    };
    for (io, op) in [(900, Op::Write), (901, Op::Read)] {
        let job = job(op, io);
        let progress = rig.act(|image, cx| image.start(cx, job));
        assert_eq!(progress, Progress::Pending);
        rig.finish();
        assert_eq!(rig.outcome(IoId::from_bits(io)), Some(Ok(())));
    }
    assert_eq!(rig.sectors(), sectors(&[(1, 8), (9, 8)]));
    let mut read = [0; 4096];
    rig.buffers.get(
        Data {
            buffer,
            start: 5000,
        },
        &mut read,
    );
    assert_eq!(read, [9; 4096]);
}

/// An image whose length is no multiple of the unit cannot be written directly to its end: it is not written directly at all.
#[test]
fn an_image_with_a_ragged_end_is_used_through_the_page_cache() {
    let folder = TempDir::with_prefix("tidegate-dir-").expect("a directory");
    let path = folder.path().join("image");
    std::fs::write(&path, [1; 1000]).expect("an image");
    let opened = open(&path, Options::default()).expect("it opens");
    assert!(opened.info.buffered);
    let remark = opened.info.remark.expect("it says why");
    assert!(remark.contains("no multiple of the unit"), "{remark}");
}
