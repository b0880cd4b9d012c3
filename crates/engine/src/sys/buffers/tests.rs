//! Tests of the slots, their lists, and copies between them.

use super::*;

fn data(buffer: u32, start: u32) -> Data {
    Data { buffer, start }
}

#[test]
fn bytes_come_back_as_they_were_put() {
    let mut buffers = Buffers::new();
    let slot = buffers.claim_pool(NO_DISK, 10_000).expect("memory");
    buffers.put(data(slot, 100), b"hello");
    let mut out = [0; 5];
    buffers.get(data(slot, 100), &mut out);
    assert_eq!(buffers.get_array(data(slot, 100)), Some(out));
    assert_eq!(buffers.get_array::<5>(data(slot, 9_996)), None);
    assert_eq!(&out, b"hello");
    buffers.clear(data(slot, 101), 3);
    buffers.get(data(slot, 100), &mut out);
    assert_eq!(&out, b"h\0\0\0o");
    buffers.release(slot);
    assert_eq!(buffers.slots.given(), buffers.free.len());
}

#[test]
fn a_lent_part_has_the_right_pieces() {
    let mut buffers = Buffers::new();
    let slot = buffers.claim_pool(NO_DISK, 8192).expect("memory");
    assert_eq!(buffers.lend(data(slot, 512), 1024)[0].len(), 1024);
    buffers.returned(slot);
    buffers.release(slot);
}

/// Cuts the pool memory of a slot into pieces that end at these positions.
fn cut(buffers: &mut Buffers, slot: u32, ends: impl IntoIterator<Item = usize>) {
    let slot = buffers.slot_mut(slot);
    let whole = slot.segments[0];
    let mut begin = 0;
    let piece = |end| {
        let piece = pieces(&[whole], begin, end - begin).next();
        begin = end;
        piece.expect("a piece")
    };
    slot.segments = ends.into_iter().chain([slot.len]).map(piece).collect();
}

#[test]
fn many_parts_of_a_buffer_in_pieces_are_lent_together() {
    let mut buffers = Buffers::new();
    let slot = buffers.claim_pool(NO_DISK, 64 << 10).expect("memory");
    cut(&mut buffers, slot, (1..32).map(|n| n * 2048));
    let base = buffers.segments(slot)[0].0.iov_base as usize;
    let mut addresses = Vec::new();
    for round in 0..3 {
        let mut lent = Vec::new();
        for part in 0..8 {
            let list = buffers.lend(data(slot, part * 8192 + 512), 7000);
            lent.push((part as usize, list.as_ptr(), list.len()));
        }
        for (part, list, len) in lent {
            assert_eq!(len, 4);
            // SAFETY: the list is lent, so it exists.
            let list = unsafe { std::slice::from_raw_parts(list, len) };
            assert_eq!(list[0].0.iov_base as usize, base + part * 8192 + 512);
            assert_eq!(list.iter().map(Segment::len).sum::<usize>(), 7000);
            let address = list.as_ptr();
            assert!(
                round == 0 || addresses.contains(&address),
                "nothing is allocated"
            );
            addresses.push(address);
        }
        for left in (0..8).rev() {
            buffers.returned(slot);
            assert_eq!(buffers.parts.free_count, if left == 0 { 7 } else { 0 });
        }
    }
    buffers.release(slot);
}

#[test]
fn long_lists_of_parts_are_freed_except_for_a_few_that_are_reused() {
    let mut buffers = Buffers::new();
    let slot = buffers.claim_pool(NO_DISK, 1 << 20).expect("memory");
    cut(&mut buffers, slot, (1..1024).map(|n| n * 1024));
    for _ in 0..3000 {
        assert_eq!(buffers.lend(data(slot, 512), 1 << 19).len(), 513);
    }
    (0..3000).for_each(|_| buffers.returned(slot));
    assert_eq!(buffers.parts.free_count, 2999);
    let room = |entry: &(Vec<Segment>, _)| entry.0.capacity();
    let long = buffers
        .parts
        .lists
        .iter()
        .filter(|list| room(list) > SHORT_LIST);
    assert_eq!(long.count(), LONG_LISTS);
    assert!(
        buffers
            .parts
            .lists
            .iter()
            .all(|list| room(list) <= LONGEST_CACHED)
    );
    buffers.release(slot);
}

#[test]
fn bytes_are_transferred_between_slots_in_different_pieces() {
    let mut buffers = Buffers::new();
    let [from, to] = [(); 2].map(|()| buffers.claim_pool(NO_DISK, 8192).expect("memory"));
    let bytes: Vec<u8> = (0..=255).cycle().take(8192).collect();
    buffers.put(data(from, 0), &bytes);
    cut(&mut buffers, from, [100, 700, 4000]);
    cut(&mut buffers, to, [512, 600, 5000]);
    buffers.transfer(data(from, 50), data(to, 20), 6000);
    let mut out = vec![0; 6000];
    buffers.get(data(to, 20), &mut out);
    assert!(out == bytes[50..6050]);
    buffers.release(from);
    buffers.release(to);
}

#[test]
fn many_parts_of_the_slot_of_zeroes_may_be_lent() {
    let mut buffers = Buffers::new();
    let zeroes = buffers.zeroes().expect("memory");
    assert_eq!(buffers.zeroes().expect("memory"), zeroes);
    for len in [512, 4096, ZEROES] {
        assert_eq!(buffers.lend(data(zeroes, 0), len)[0].len(), len);
    }
    let mut out = [1; 512];
    buffers.get(data(zeroes, 0), &mut out);
    assert_eq!(out, [0; 512]);
    for _ in 0..3 {
        buffers.returned(zeroes);
    }
}

#[test]
fn the_blocks_of_a_deep_queue_are_reused() {
    /// What one NBD client may have in flight.
    const DEPTH: usize = 512;
    let mut buffers = Buffers::new();
    let mut claim_all = || {
        let slots = (0..DEPTH).map(|_| buffers.claim_pool(NO_DISK, 4096).expect("memory"));
        let slots: Vec<u32> = slots.collect();
        let addresses = slots
            .iter()
            .map(|&slot| buffers.segments(slot)[0].0.iov_base);
        let mut addresses: Vec<_> = addresses.collect();
        addresses.sort_unstable();
        slots.iter().for_each(|&slot| buffers.release(slot));
        (addresses, buffers.pool.sizes[0].len())
    };
    let first = claim_all();
    assert_eq!(first.1, DEPTH, "all blocks are reused");
    assert_eq!(claim_all(), first);
}

/// A list of this many empty pieces.
fn list(pieces: usize) -> Vec<Segment> {
    vec![Segment::new(std::ptr::null_mut(), 0); pieces]
}

#[test]
fn long_lists_are_freed_except_for_a_few_that_are_reused() {
    let mut buffers = Buffers::new();
    let memory = Arc::new(Mapping::empty());
    let slots = (0..3000).map(|_| buffers.claim_guest(NO_DISK, &memory, &mut list(1024)));
    let slots: Vec<u32> = slots.collect();
    for &slot in &slots {
        assert_eq!(buffers.room(slot), 1024);
        // As a datastore does for a partial request.
        buffers.slot_mut(slot).part = list(1000);
    }
    slots.iter().for_each(|&slot| buffers.release(slot));
    let lists = buffers
        .slots
        .iter()
        .flat_map(|(_, s)| [&s.segments, &s.part]);
    assert!(lists.into_iter().all(|l| l.capacity() <= SHORT_LIST));
    assert_eq!(buffers.long.len(), LONG_LISTS);
    assert!(buffers.long.iter().all(|l| l.capacity() <= LONGEST_CACHED));

    let cached = buffers.long.last().map(Vec::as_ptr);
    let mut next = list(100);
    let slot = buffers.claim_guest_roomy(NO_DISK, &memory, &mut next);
    assert_eq!(cached, Some(next.as_ptr()));
    buffers.release(slot);
    assert_eq!(buffers.long.len(), LONG_LISTS);
}

#[test]
fn in_steady_state_long_and_short_lists_allocate_nothing() {
    let mut buffers = Buffers::new();
    let memory = Arc::new(Mapping::empty());
    let mut scratch = Vec::with_capacity(SHORT_LIST);
    let mut addresses = Vec::new();
    let mut new_in_a_round = || {
        let before = addresses.len();
        for pieces in [1, 100, 16, 17, 1] {
            scratch.clear();
            for piece in list(pieces) {
                scratch.push(piece);
            }
            let slot = match scratch.capacity() {
                ..=SHORT_LIST => buffers.claim_guest(NO_DISK, &memory, &mut scratch),
                _ => buffers.claim_guest_roomy(NO_DISK, &memory, &mut scratch),
            };
            let list = buffers.segments(slot);
            assert_eq!(list.len(), pieces);
            assert!(pieces > SHORT_LIST || buffers.room(slot) <= SHORT_LIST);
            let address = list.as_ptr();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
            buffers.release(slot);
        }
        addresses.len() - before
    };
    for _ in 0..4 {
        new_in_a_round();
    }
    assert_eq!(new_in_a_round(), 0);
}

#[test]
#[should_panic(expected = "the kernel is done with it")]
fn a_buffer_in_the_kernel_is_not_released() {
    let mut buffers = Buffers::new();
    let slot = buffers.claim_pool(NO_DISK, 4096).expect("memory");
    buffers.lend(data(slot, 0), 4096);
    buffers.release(slot);
}

#[test]
fn the_checksum_of_scattered_bytes_is_that_of_the_same_bytes_in_one_piece() {
    let mut buffers = Buffers::new();
    let slot = buffers.claim_pool(NO_DISK, 16_384).expect("memory");
    cut(&mut buffers, slot, [3, 100, 9000]);
    let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
    buffers.put(data(slot, 50), &bytes);
    let scattered = buffers.sum(data(slot, 50), bytes.len());
    buffers.release(slot);
    let whole = buffers.claim_pool(NO_DISK, 16_384).expect("memory");
    buffers.put(data(whole, 7), &bytes);
    assert_eq!(buffers.sum(data(whole, 7), bytes.len()), scattered);
    assert_ne!(buffers.sum(data(whole, 8), bytes.len()), scattered);
    buffers.release(whole);
}

#[test]
fn a_slot_moves_to_another_thread_while_the_kernel_uses_parts_of_it_and_its_number_comes_home() {
    let returned = Arc::new(ReturnedNumbers::new(2));
    let mut from = Buffers::of_thread(0, Arc::clone(&returned));
    let mut to = Buffers::of_thread(1, returned);
    let (disk, other) = (DiskId(4), DiskId(5));
    let moving = from.claim_pool(disk, 64 << 10).expect("memory");
    let of_arena = from.claim_pool(NO_DISK, 4096).expect("memory");
    let stays = from.claim_pool(other, 4096).expect("memory");
    cut(&mut from, moving, (1..32).map(|n| n * 2048));
    from.put(data(moving, 9000), b"hello");
    let lent: Vec<(*const Segment, usize)> = (0..3)
        .map(|part| {
            let list = from.lend(data(moving, part * 8192 + 512), 7000);
            (list.as_ptr(), list.len())
        })
        .collect();
    let lists = |lent: &[(*const Segment, usize)]| {
        let lens = lent.iter().map(|(list, len)| {
            // SAFETY: the list is one that the kernel could read now: it is neither freed nor changed.
            let list = unsafe { std::slice::from_raw_parts(*list, *len) };
            list.iter().map(Segment::len).sum::<usize>()
        });
        lens.collect::<Vec<_>>()
    };
    let free_parts = from.parts.free_count;
    to.put_in(from.take_out(disk, &[of_arena]));
    assert_eq!(lists(&lent), [7000; 3]);
    assert_eq!((from.claimed(), to.claimed()), (1, 2));
    assert!(from.parts.free_count > free_parts && to.is_lent());
    let mut bytes = [0; 5];
    to.get(data(moving, 9000), &mut bytes);
    assert_eq!(&bytes, b"hello");
    for _ in 0..3 {
        to.returned(moving);
    }
    to.release(moving);
    to.release(of_arena);
    assert_eq!(
        (to.claimed(), to.slots.others(), to.slots.given()),
        (0, 0, 0)
    );
    // The numbers are used again where they come from.
    let again = [(); 2].map(|()| from.claim_pool(disk, 4096).expect("memory"));
    assert!(again.contains(&moving) && again.contains(&of_arena));
    assert_eq!(from.slots.given(), 3);
    for slot in again.into_iter().chain([stays]) {
        from.release(slot);
    }
}

#[test]
fn zeroes_that_one_thread_lends_may_return_on_another() {
    let (mut from, mut to) = (Buffers::new(), Buffers::new());
    let zeroes = from.zeroes().expect("memory");
    assert_eq!(from.lend(data(zeroes, 0), 4096)[0].len(), 4096);
    to.returned(zeroes);
    assert!(!from.is_lent() && !to.is_lent());
    assert_eq!(to.zeroes().expect("memory"), zeroes);
    assert_eq!((from.len(zeroes), from.claimed()), (ZEROES, 0));
    // A job that was to write zeroes on another thread is sent by this one, which has not used them before.
    let mut next = Buffers::new();
    next.put_in(from.take_out(DiskId(0), &[]));
    assert_eq!(next.lend(data(zeroes, 0), 4096)[0].len(), 4096);
}
