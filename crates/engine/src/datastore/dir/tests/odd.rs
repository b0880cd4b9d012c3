//! Tests of devices with odd alignments, and of images short of buffers.

use super::*;

const NONE: Flags = Flags::NONE;

/// On a device whose memory alignment is coarser than its units.
fn odd() -> Rig {
    let mut rig = Rig::new();
    rig.image.grain = Grain {
        unit: 512,
        memory: 4096,
        block: BLOCK,
    };
    rig
}

#[test]
fn units_smaller_than_the_memory_alignment_are_read_written_and_zeroed() {
    for zero_range in [true, false] {
        let mut rig = odd();
        rig.image.zero_range = zero_range;
        let submitted = [
            rig.submit_data(Op::Write, NONE, 512, 512, 3),
            rig.submit_data(Op::Write, NONE, BLOCK, BLOCK + 512, 4),
            rig.submit_data(Op::Read, NONE, 512, 1024, 4),
            rig.submit_data(Op::WriteZeroes, NONE, 3 * 512, 3 * 512, 0),
        ];
        rig.finish();
        for io in submitted {
            assert_eq!(rig.outcome(io), Some(Ok(())), "{io:?}");
        }
        assert_eq!(rig.condition.harm(), None, "it was not truncated");
        let sectors = rig.sectors();
        assert_eq!(sectors, [1, 3, 1, 0, 0, 0, 1, 1, 4, 4, 4, 4, 4, 4, 4, 4]);
    }
}

/// The completions of the kernel after it moved only a part.
fn short(completions: Vec<Completion>, moved: i32) -> Vec<Completion> {
    let short = |completion| Completion {
        result: moved,
        ..completion
    };
    completions.into_iter().map(short).collect()
}

#[test]
fn a_short_transfer_continues_at_aligned_memory_and_fails_without_progress() {
    for (moved, outcome) in [(4096 + 512, Ok(())), (512, Err(Fault::Io))] {
        let mut rig = odd();
        // The memory's end is not aligned, so the read uses a bounce buffer.
        let read = rig.submit_data(Op::Read, NONE, 0, 2 * BLOCK + 512, 0);
        let completions = rig.completions();
        rig.deliver(short(completions, moved));
        rig.finish();
        assert_eq!(rig.outcome(read), Some(outcome), "after {moved} bytes");
    }
}

#[test]
fn a_long_request_gets_its_buffer_despite_many_short_ones() {
    let mut rig = Rig::coarse();
    let small = |rig: &mut Rig| rig.submit_data(Op::Read, NONE, 512, 512, 0);
    for _ in 0..100 {
        small(&mut rig);
    }
    let long = rig.submit_data(Op::Read, NONE, 512, 60 << 10, 0);
    for _ in 0..1000 {
        if rig.outcome(long).is_some() {
            return;
        }
        // One completes, and another is submitted.
        let mut one = Vec::new();
        while one.is_empty() {
            rig.ring.wait(None);
            rig.ring.reap(1, &mut one);
        }
        rig.deliver(one);
        small(&mut rig);
    }
    panic!("a thousand later requests overtook it");
}

#[test]
fn the_bounce_buffers_of_an_image_stay_within_their_budget() {
    let mut rig = odd();
    let submitted = 2000;
    for at in 0..submitted {
        rig.submit_data(Op::Read, NONE, at % 1024 * 512, 512, 0);
    }
    let windows = rig.buffers.claimed() - usize::try_from(submitted).expect("few");
    let held = windows * Buffers::block_of(512);
    assert!(held <= 256 << 10, "{held}");
    rig.finish();
}

#[test]
fn a_device_with_large_units_uses_the_page_cache() {
    let folder = TempDir::with_prefix("tidegate-dir-").expect("a directory");
    let path = folder.path().join("image");
    let file = File::create(&path).expect("an image");
    file.set_len(SIZE).expect("a sparse file");
    let mut files = open_both(&path, Options::default()).expect("it opens");
    let unit = |files: &mut files::Files, unit| {
        let (_, alignment) = files.direct.as_mut().expect("direct I/O");
        alignment.offset = unit;
        Grain::of(files).map(|grain| grain.unit)
    };
    assert_eq!(unit(&mut files, 64 << 10), Ok(64 << 10));
    assert!(unit(&mut files, 128 << 10).is_err());
}
