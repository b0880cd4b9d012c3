//! Tests of overlapping requests, some smaller than the unit of direct I/O: no sector loses data.

use super::*;

/// The expected values of the sixteen sectors of two blocks.
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
fn a_whole_write_waits_for_a_partial_write_of_one_of_its_units() {
    let mut rig = Rig::coarse();
    let small = rig.submit_data(Op::Write, NONE, 3584, 512, 3);
    // It has read the unit, and will write it back with the old bytes around its own.
    let read = rig.completions();
    let whole = rig.submit_data(Op::Write, NONE, 0, 2 * BLOCK, 5);
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
fn a_partial_write_waits_for_a_whole_write_of_its_unit() {
    let mut rig = Rig::coarse();
    rig.submit_data(Op::Write, NONE, 0, 2 * BLOCK, 5);
    rig.submit_data(Op::Write, NONE, 3584, 512, 3);
    rig.finish();
    assert_eq!(rig.sectors(), sectors(&[(5, 7), (3, 1), (5, 8)]));
}

#[test]
fn partial_writes_of_one_unit_are_serialized() {
    let mut rig = Rig::coarse();
    for sector in 0..8 {
        let value = 10 + u8::try_from(sector).expect("small");
        rig.submit_data(Op::Write, NONE, sector * 512, 512, value);
    }
    let in_flight = rig.completions();
    assert_eq!(in_flight.len(), 1, "the others wait");
    rig.deliver(in_flight);
    rig.finish();
    let sectors = rig.sectors();
    assert_eq!(sectors[..8], [10, 11, 12, 13, 14, 15, 16, 17]);
    assert_eq!(sectors[8..], [1; 8]);
}

#[test]
fn zeroes_and_holes_are_serialized_with_a_partial_write() {
    for op in [Op::WriteZeroes, Op::Discard] {
        for flags in [NONE, Flags::MAY_UNMAP] {
            let mut rig = Rig::coarse();
            rig.submit_data(Op::Write, NONE, 512, 512, 3);
            let read = rig.completions();
            rig.submit_data(op, flags, 0, BLOCK, 0);
            rig.deliver(read);
            rig.submit_data(Op::Write, NONE, 1024, 512, 4);
            rig.finish();
            let wanted = sectors(&[(0, 2), (4, 1), (0, 5), (1, 8)]);
            assert_eq!(rig.sectors(), wanted, "{op:?} {flags:?}");
        }
    }
}

#[test]
fn the_ends_of_an_unaligned_range_are_zeroed_and_nothing_else() {
    for zero_range in [true, false] {
        for flags in [NONE, Flags::MAY_UNMAP, Flags::FUA] {
            let mut rig = Rig::coarse();
            rig.image.zero_range = zero_range;
            let zeroes = rig.submit_data(Op::WriteZeroes, flags, 512, 14 * 512, 0);
            rig.finish();
            assert_eq!(rig.outcome(zeroes), Some(Ok(())));
            let wanted = sectors(&[(1, 1), (0, 14), (1, 1)]);
            assert_eq!(rig.sectors(), wanted, "{zero_range} {flags:?}");
            assert!(rig.image.locks.is_idle());
        }
    }
}

#[test]
fn a_discard_does_not_change_partial_units() {
    let mut rig = Rig::coarse();
    let ragged = rig.submit_data(Op::Discard, NONE, 512, 2 * BLOCK, 0);
    let nothing = rig.submit_data(Op::Discard, NONE, 512, 512, 0);
    rig.finish();
    assert_eq!(rig.sectors(), sectors(&[(1, 8), (0, 8)]));
    for io in [ragged, nothing] {
        assert_eq!(rig.outcome(io), Some(Ok(())));
    }
}

#[test]
fn any_number_of_zero_requests_shares_one_buffer() {
    let mut rig = Rig::coarse();
    rig.image.zero_range = false;
    let before = rig.buffers.zeroes().expect("memory");
    for _ in 0..8 {
        rig.submit_data(Op::WriteZeroes, NONE, 0, SIZE, 0);
    }
    let claimed_by_the_test = 8;
    assert_eq!(rig.buffers.zeroes().expect("memory"), before);
    assert_eq!(rig.buffers.claimed(), claimed_by_the_test);
    rig.finish();
    assert_eq!(rig.sectors(), [0; 16]);
}

#[test]
fn requests_without_room_for_a_buffer_wait_and_all_complete() {
    let mut rig = Rig::coarse();
    let long = 100 << 10;
    let submitted: Vec<IoId> = (0..8)
        .map(|at| rig.submit_data(Op::Write, NONE, 512 + at * (long + BLOCK), long, 7))
        .collect();
    assert!(rig.image.pending.iter().flatten().any(|p| p.waits));
    rig.finish();
    for io in submitted {
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
fn a_write_that_waits_for_its_range_fails_after_a_truncation_or_a_lost_lease() {
    for cut in [true, false] {
        let mut rig = Rig::coarse();
        let small = rig.submit_data(Op::Write, NONE, 512, 512, 3);
        let read = rig.completions();
        let waits = rig.submit_data(Op::Write, NONE, 0, BLOCK, 5);
        if cut {
            rig.file.set_len(HALF).expect("cut");
        } else {
            // A gate that was never opened.
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
fn unaligned_memory_is_read_and_written_correctly() {
    let mut rig = Rig::coarse();
    let buffer = rig.buffers.claim_pool(DiskId(0), 3 * 4096).expect("memory");
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

/// An image whose length is not a multiple of the unit cannot use direct I/O at its end, so it uses none at all.
#[test]
fn an_image_of_unaligned_length_uses_the_page_cache() {
    let folder = TempDir::with_prefix("tidegate-dir-").expect("a directory");
    let path = folder.path().join("image");
    std::fs::write(&path, [1; 1000]).expect("an image");
    let opened = open(&path, Options::default()).expect("it opens");
    assert!(opened.info.buffered);
    let remark = opened.info.remark.expect("a remark gives the reason");
    assert!(remark.contains("not a multiple of the unit"), "{remark}");
}
