//! The rules of a pool's disk, one by one.

use super::*;
use alloc::vec;

const SIZE: u64 = 64 * EXTENT;

fn is_write(job: &Job) -> bool {
    matches!(job, Job::Sub(_, sub) | Job::Guest(_, sub) if sub.op == Op::Write)
}

fn is_block(job: &Job) -> bool {
    matches!(job, Job::Write(..))
}

#[test]
fn what_was_never_written_reads_as_zeroes_without_io() {
    let mut world = World::new(SIZE);
    let before = world.performed;
    assert!(world.has(3 * EXTENT - 512, 3 * EXTENT, 0));
    assert_eq!(world.performed, before);
}

#[test]
fn a_first_write_is_one_write_and_what_is_around_it_reads_as_zeroes() {
    let mut world = World::new(SIZE);
    let before = world.performed;
    world.fill(5 * EXTENT + 512, 512, 7);
    // One more extent is zeroed ahead.
    assert_eq!(world.performed, before + 2);
    assert!(world.has(5 * EXTENT, 512, 0));
    assert!(world.has(5 * EXTENT + 512, 512, 7));
    assert!(world.has(5 * EXTENT + 1024, EXTENT, 0));
}

#[test]
fn p1_only_a_write_to_unused_space_fails_when_there_is_none() {
    let mut world = World::new(SIZE);
    world.free.clear();
    let mut written = 0;
    let full = loop {
        let outcome = world.io(Op::Write, Flags::NONE, written * EXTENT, &[9; 512], 512);
        match outcome {
            Ok(()) => written += 1,
            Err(fault) => break fault,
        }
    };
    assert_eq!(full, Fault::NoSpace);
    assert!(written >= 7, "{written}");
    world.fill(0, SUB, 3);
    assert_eq!(world.flush(), Ok(()));
    assert!(world.has(0, SUB, 3));
    // Room again: what is given back is used.
    assert_eq!(world.io(Op::Discard, Flags::NONE, 0, &[], EXTENT), Ok(()));
    world.wait(crate::units::Span::from_secs(3));
    world.fill(written * EXTENT, 512, 4);
    // And a new grant.
    world.free.push_back((0, 23));
    world.wait(crate::units::Span::from_secs(3));
    world.fill(0, 512, 5);
    assert!(world.has(written * EXTENT, 512, 4));
}

#[test]
fn writes_wait_for_a_grant_and_fail_when_the_pool_says_no() {
    let mut world = World::new(SIZE);
    world.gives = false;
    let extents: Vec<u32> = (0..40)
        .map(|nth| world.begin(Op::Write, Flags::NONE, nth * EXTENT, &[1; 512], 512))
        .collect();
    world.run();
    let waiting = extents.iter().filter(|it| !world.answers.contains_key(it));
    let waiting: Vec<u32> = waiting.copied().collect();
    assert!(waiting.len() > 8);
    assert_eq!(world.report().waiting as usize, waiting.len());
    world.give();
    world.run();
    let still = waiting.iter().filter(|it| !world.answers.contains_key(it));
    assert_eq!(still.count(), waiting.len() - 8);
    assert_eq!(world.order(LayoutOrder::NoSpace), Ok(()));
    world.run();
    let refused = waiting
        .iter()
        .filter(|it| world.answers[it] == Err(Fault::NoSpace));
    assert_eq!(refused.count(), waiting.len() - 8);
    // One that comes later is not made to wait.
    let io = world.begin(Op::Write, Flags::NONE, 50 * EXTENT, &[1; 512], 512);
    assert_eq!(world.answers.get(&io), Some(&Err(Fault::NoSpace)));
}

#[test]
fn a_write_after_space_has_come_again_is_not_refused() {
    for told in [false, true] {
        let mut world = World::new(SIZE);
        world.gives = false;
        for nth in 0..7 {
            world.fill(nth * EXTENT, 512, 1);
        }
        assert_eq!(world.order(LayoutOrder::NoSpace), Ok(()));
        world.notices.clear();
        if told {
            assert_eq!(world.order(LayoutOrder::SpaceAvailable), Ok(()));
        }
        let io = world.begin(Op::Write, Flags::NONE, 50 * EXTENT, &[1; 512], 512);
        world.run();
        let refused = (!told).then_some(&Err(Fault::NoSpace));
        assert_eq!(world.answers.get(&io), refused);
        let asks = |notice: &LayoutNotice| matches!(notice, LayoutNotice::GrantWanted { .. });
        assert_eq!(world.notices.iter().any(asks), told);
    }
}

#[test]
fn p2_p3_a_flush_writes_headers_after_the_bytes_are_durable() {
    let mut world = World::new(SIZE);
    world.fill(0, 2 * EXTENT, 7);
    let flush = world.begin(Op::Flush, Flags::NONE, 0, &[], 0);
    assert_eq!(world.nth(is_block), None, "members first");
    while let Some(nth) = world.nth(|job| matches!(job, Job::Sub(..))) {
        world.end(nth);
    }
    assert!(world.nth(is_block).is_some());
    assert_eq!(world.answers.get(&flush), None, "headers next");
    world.run();
    assert_eq!(world.answers[&flush], Ok(()));
    world.fill(0, EXTENT, 8);
    world.fill(4 * EXTENT, SUB, 9);
    world.crash();
    let first = world.read(0, EXTENT);
    assert!(first.iter().all(|it| *it == 7) || first.iter().all(|it| *it == 8));
    assert!(world.has(EXTENT, EXTENT, 7));
    assert!(world.has(4 * EXTENT, EXTENT, 0), "it was not flushed");
}

#[test]
fn p3_fua_is_durable_with_its_header() {
    let mut world = World::new(SIZE);
    let bytes = vec![5; 512];
    assert_eq!(world.io(Op::Write, Flags::FUA, 700, &bytes, 512), Ok(()));
    let headers = world.report().headers_written;
    // Where nothing else is to be written, it goes to its member as it is.
    assert_eq!(world.io(Op::Write, Flags::FUA, 1212, &bytes, 512), Ok(()));
    assert_eq!(world.report().headers_written, headers);
    world.crash();
    assert!(world.has(700, 1024, 5));
    assert!(world.has(0, 700, 0));
}

#[test]
fn p3_a_flush_that_fails_says_so_and_the_next_one_makes_good() {
    for kind in ["flush", "write block"] {
        let mut world = World::new(SIZE);
        world.fill(0, EXTENT, 1);
        assert_eq!(world.flush(), Ok(()));
        world.fill(EXTENT, EXTENT, 2);
        world.fails.insert(kind);
        assert_eq!(world.flush(), Err(Fault::Io), "{kind}");
        assert!(world.has(EXTENT, EXTENT, 2));
        world.fails.clear();
        let mut lost = World::new(SIZE);
        (lost.stores, lost.grants) = (world.stores.clone(), world.grants.clone());
        lost.crash();
        assert!(lost.has(0, EXTENT, 1), "what was flushed before stays");
        assert_eq!(world.flush(), Ok(()));
        world.crash();
        assert!(world.has(0, EXTENT, 1) && world.has(EXTENT, EXTENT, 2));
    }
}

#[test]
fn p4_an_extent_is_used_again_only_once_nothing_is_under_way_there() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    assert_eq!(world.flush(), Ok(()));
    // A slow write, and a discard of its extent.
    let slow = world.begin(Op::Write, Flags::NONE, 0, &[9; 4096], SUB);
    let at = world.nth(is_write).unwrap();
    let slow_job = world.jobs.remove(at).unwrap();
    world.jobs.push_back(slow_job);
    let discard = world.begin(Op::Discard, Flags::NONE, 0, &[], EXTENT);
    assert_eq!(world.answers.get(&discard), Some(&Ok(())));
    let flush = world.begin(Op::Flush, Flags::NONE, 0, &[], 0);
    let is_slow = |job: &Job| matches!(job, Job::Guest(io, _) if io.index == slow);
    for _ in 0..100 {
        let others = world.nth(|job| !is_slow(job));
        let Some(nth) = others else { break };
        world.end(nth);
    }
    assert_eq!(world.answers.get(&flush), Some(&Ok(())));
    assert_eq!(world.report().releasing, 1, "the write is under way");
    world.run();
    assert_eq!(world.report().releasing, 0);
    assert!(world.has(0, EXTENT, 0));
}

#[test]
fn p4_an_extent_is_not_used_again_before_its_header_says_so() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    assert_eq!(world.flush(), Ok(()));
    assert_eq!(world.io(Op::Discard, Flags::NONE, 0, &[], EXTENT), Ok(()));
    assert_eq!(world.report().releasing, 1);
    world.crash();
    let found = world.read(0, EXTENT);
    assert!(found.iter().all(|it| *it == 1) || found.iter().all(|it| *it == 0));
    assert_eq!(world.io(Op::Discard, Flags::NONE, 0, &[], EXTENT), Ok(()));
    // Nobody flushes: it is committed after a while.
    world.wait(crate::units::Span::from_secs(2));
    assert_eq!(world.report().releasing, 0);
}

#[test]
fn p5_an_extent_has_nothing_of_an_earlier_use() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    assert_eq!(world.flush(), Ok(()));
    // Written, and lost before its header: the bytes are on the member.
    world.fill(0, SUB, 2);
    world.fill(EXTENT, 512, 2);
    assert_eq!(world.flush(), Ok(()));
    world.fill(EXTENT + SUB, 512, 3);
    for store in &mut world.stores {
        store.durable.clone_from(&store.now);
    }
    world.crash();
    assert!(world.has(EXTENT + SUB, SUB, 0));
    world.fill(EXTENT + SUB + 1024, 512, 4);
    assert!(
        world.has(EXTENT + SUB, 1024, 0),
        "what was lost does not return"
    );
    assert!(world.has(EXTENT + SUB + 1024, 512, 4));
    // Everything that was discarded comes back as zeroes, in any use.
    for round in 0..30 {
        let at = (10 + round) * EXTENT;
        world.fill(at, 512, 5);
        assert!(world.has(at + 512, EXTENT - 512, 0), "{round}");
        assert_eq!(world.io(Op::Discard, Flags::NONE, at, &[], EXTENT), Ok(()));
        assert_eq!(world.flush(), Ok(()));
    }
}

#[test]
fn p6_a_part_of_an_older_sub_block_is_copied_and_others_wait_meanwhile() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    world.snapshot();
    let first = world.begin(Op::Write, Flags::NONE, 512, &[2; 512], 512);
    let second = world.begin(Op::Write, Flags::NONE, 1024, &[3; 512], 512);
    let both = world.nth(|job| matches!(job, Job::Sub(tag, _) if tag & KIND == COPY));
    assert!(both.is_some());
    let copies = world
        .jobs
        .iter()
        .filter(|(job, _)| matches!(job, Job::Sub(tag, _) if tag & KIND == COPY));
    assert_eq!(copies.count(), 1, "one at a time");
    world.run();
    assert_eq!(
        (world.answers[&first], world.answers[&second]),
        (Ok(()), Ok(()))
    );
    assert!(world.has(0, 512, 1) && world.has(512, 512, 2) && world.has(1024, 512, 3));
    assert!(world.has(1536, EXTENT - 1536, 1));
    assert_eq!(world.report().copies, 1, "then it is in place");
    // A copy that fails leaves what was there.
    world.fails.insert("read");
    let outcome = world.io(Op::Write, Flags::NONE, SUB, &[4; 512], 512);
    assert_eq!(outcome, Err(Fault::Io));
    world.fails.clear();
    assert!(world.has(SUB, SUB, 1));
    // A whole sub-block is written without a copy, and seen once it is there.
    let whole = world.begin(Op::Write, Flags::NONE, 2 * SUB, &[6; 4096], SUB);
    let read = world.begin(Op::Read, Flags::NONE, 2 * SUB, &[], SUB);
    world.run();
    assert_eq!(world.answers[&whole], Ok(()));
    let read = world.bytes_of(read);
    assert!(read.iter().all(|it| *it == 1) || read.iter().all(|it| *it == 6));
    assert!(world.has(2 * SUB, SUB, 6));
    assert_eq!(world.report().copies, 2);
}

#[test]
fn p7_a_snapshot_has_what_was_answered_and_nothing_later() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    let under_way = world.begin(Op::Write, Flags::NONE, 0, &[2; 512], 512);
    let order = world.pool_order(LayoutOrder::TakeSnapshot);
    assert_eq!(order, Ok(Ordered::Later));
    let later = world.begin(Op::Write, Flags::NONE, 512, &[3; 512], 512);
    assert_eq!(world.nth(is_block), None, "a write is under way");
    world.run();
    assert_eq!(world.ordered.pop(), Some(Ok(())));
    assert_eq!(
        (world.answers[&under_way], world.answers[&later]),
        (Ok(()), Ok(()))
    );
    assert!(world.has(0, 512, 2) && world.has(512, 512, 3));
    assert_eq!(world.flush(), Ok(()));
    world.open(Some(Generation(1)));
    world.run();
    assert_eq!(world.opened, Some(Ok(())));
    assert!(world.has(0, 512, 2) && world.has(512, EXTENT - 512, 1));
    let refused = world.io(Op::Write, Flags::NONE, 0, &[9; 512], 512);
    assert_eq!(refused, Err(Fault::ReadOnly));
    assert_eq!(
        world.order(LayoutOrder::TakeSnapshot),
        Err(OrderRefusal::ReadOnly)
    );
}

#[test]
fn p7_a_snapshot_whose_root_fails_is_refused_and_writes_go_on() {
    for kind in ["flush", "write block"] {
        let mut world = World::new(SIZE);
        world.fill(0, EXTENT, 1);
        world.fails.insert(kind);
        let refused = world.order(LayoutOrder::TakeSnapshot);
        assert_eq!(refused, Err(OrderRefusal::Unrecorded), "{kind}");
        world.fails.clear();
        world.fill(0, 512, 2);
        assert_eq!(world.snapshot(), Generation(1));
        world.crash();
        assert!(world.has(0, 512, 2) && world.has(512, EXTENT - 512, 1));
    }
}

#[test]
fn p7_a_held_disk_takes_its_snapshot_at_once_and_goes_on_when_told() {
    let mut world = World::new(SIZE);
    world.fill(0, SUB, 1);
    assert_eq!(world.order(LayoutOrder::Hold), Ok(()));
    let write = world.begin(Op::Write, Flags::NONE, 0, &[2; 512], 512);
    world.run();
    assert_eq!(world.answers.get(&write), None);
    world.snapshot();
    assert_eq!(world.answers.get(&write), None, "it is held still");
    assert_eq!(world.order(LayoutOrder::Hold), Err(OrderRefusal::Busy));
    assert_eq!(world.order(LayoutOrder::Go), Ok(()));
    world.run();
    assert_eq!(world.answers[&write], Ok(()));
    assert_eq!(world.flush(), Ok(()));
    world.open(Some(Generation(1)));
    world.run();
    assert!(world.has(0, SUB, 1));
}

#[test]
fn p8_a_discard_hides_what_a_snapshot_has() {
    for op in [Op::Discard, Op::WriteZeroes] {
        let mut world = World::new(SIZE);
        world.fill(0, 4 * EXTENT, 1);
        let taken = world.snapshot();
        // One extent of its own, and one without.
        world.fill(0, EXTENT, 2);
        assert_eq!(world.io(op, Flags::NONE, 0, &[], 2 * EXTENT), Ok(()));
        // And a part.
        world.fill(2 * EXTENT, SUB, 3);
        assert_eq!(
            world.io(op, Flags::NONE, 2 * EXTENT + SUB, &[], SUB),
            Ok(())
        );
        let check = |world: &mut World| {
            assert!(world.has(0, 2 * EXTENT, 0), "{op:?}");
            assert!(world.has(2 * EXTENT, SUB, 3));
            assert!(world.has(2 * EXTENT + SUB, SUB, 0));
            assert!(world.has(2 * EXTENT + 2 * SUB, 2 * EXTENT - 2 * SUB, 1));
        };
        check(&mut world);
        assert_eq!(world.flush(), Ok(()));
        world.crash();
        check(&mut world);
        // What is written there afterwards has zeroes around it.
        world.fill(EXTENT + 512, 512, 4);
        assert!(world.has(EXTENT, 512, 0) && world.has(EXTENT + 1024, EXTENT - 1024, 0));
        assert_eq!(world.flush(), Ok(()));
        world.crash();
        assert!(world.has(EXTENT + 512, 512, 4) && world.has(EXTENT + 1024, SUB, 0));
        world.open(Some(taken));
        world.run();
        assert!(world.has(0, 4 * EXTENT, 1));
    }
}

#[test]
fn a_part_of_a_sub_block_of_a_snapshot_is_zeroed_by_a_copy() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    world.snapshot();
    let outcome = world.io(Op::WriteZeroes, Flags::NONE, 512, &[], SUB);
    assert_eq!(outcome, Ok(()));
    assert!(world.has(0, 512, 1) && world.has(512, SUB, 0));
    assert!(world.has(512 + SUB, EXTENT - 512 - SUB, 1));
}

#[test]
fn p9_a_header_of_another_life_does_not_count() {
    let mut world = World::new(SIZE);
    world.fill(0, 3 * EXTENT, 1);
    assert_eq!(world.flush(), Ok(()));
    world.crash();
    assert!(world.has(0, 3 * EXTENT, 1));
    for grant in world.grants.iter_mut().flatten() {
        grant.life += 100;
    }
    world.crash();
    assert!(world.has(0, 3 * EXTENT, 0), "it was given to somebody else");
}

#[test]
fn p9_an_empty_grant_is_given_back_and_another_is_refused() {
    let mut world = World::new(SIZE);
    world.fill(0, 40 * EXTENT, 1);
    assert_eq!(world.flush(), Ok(()));
    let grants = world.report().grants;
    assert_eq!(
        world.io(Op::Discard, Flags::NONE, 0, &[], 40 * EXTENT),
        Ok(())
    );
    assert_eq!(world.flush(), Ok(()));
    world.wait(crate::units::Span::from_secs(2));
    let left = world.report().grants;
    assert!(left + 1 < grants, "{left} of {grants}");
    let empty = |notice: &&LayoutNotice| matches!(notice, LayoutNotice::GrantEmpty { .. });
    assert_eq!(
        world.notices.iter().filter(empty).count(),
        (grants - left) as usize
    );
    world.crash();
    assert!(world.has(0, 40 * EXTENT, 0));
    let known = world.grants[0].unwrap();
    let index = u32::try_from(world.grants.len()).unwrap();
    for (index, grant) in [
        (index, known),
        (
            index + 1,
            Grant {
                number: 22,
                ..known
            },
        ),
        (
            0,
            Grant {
                number: 22,
                ..known
            },
        ),
        (
            index,
            Grant {
                number: 22,
                column: 9,
                ..known
            },
        ),
    ] {
        let order = LayoutOrder::Grant { index, grant };
        assert_eq!(world.order(order), Err(OrderRefusal::BadGrant));
    }
}

#[test]
fn p10_a_torn_header_leaves_the_older_one_and_two_torn_ones_refuse() {
    let mut world = World::new(SIZE);
    for byte in 1..4 {
        world.fill(0, EXTENT, byte);
        world.fill(u64::from(byte) * EXTENT, EXTENT, byte);
        assert_eq!(world.flush(), Ok(()));
    }
    world.snapshot();
    let geometry = world::geometry();
    let grant = world.grants[0].unwrap();
    let places = [geometry.header_at(0, 0), geometry.header_at(0, 1)];
    let roots = [geometry.root_at(0), geometry.root_at(1)];
    let at = |within: u64| usize::try_from(geometry.grant_at(grant) + within).unwrap();
    let stores = world.stores.clone();
    // One place of each, in turn: the newest or the other one.
    for place in places {
        world.stores.clone_from(&stores);
        let store = &mut world.stores[usize::from(grant.column)];
        store.durable[at(place) + 600] ^= 1;
        world.crash();
        assert!(world.has(0, EXTENT, 3));
        assert_eq!(world.flush(), Ok(()));
        world.crash();
        assert!(world.has(0, EXTENT, 3));
    }
    world.stores.clone_from(&stores);
    for place in places {
        world.stores[usize::from(grant.column)].now[at(place) + 600] ^= 1;
    }
    world.open(None);
    world.run();
    assert_eq!(world.opened, Some(Err(Refusal::Damaged(Target(0)))));
    // Only the second root was written: the other place has what a tenant has left.
    world.stores.clone_from(&stores);
    world.crash();
    world.snapshot();
    for place in roots {
        let store = &mut world.stores[usize::from(grant.column)];
        store.now[at(place) + 600] ^= 1;
    }
    world.open(None);
    world.run();
    assert_eq!(world.opened, Some(Err(Refusal::Damaged(Target(0)))));
    world.stores.clone_from(&stores);
    world.fails.insert("read block");
    world.open(None);
    world.run();
    let failed = Refusal::Failed(Target(0), Fault::Io);
    assert_eq!(world.opened, Some(Err(failed)));
}

#[test]
fn generations_roll_back_and_go_and_their_space_is_free() {
    let mut world = World::new(SIZE);
    world.fill(0, 2 * EXTENT, 1);
    let first = world.snapshot();
    world.fill(0, EXTENT, 2);
    let second = world.snapshot();
    world.fill(SUB, SUB, 3);
    assert_eq!(world.order(LayoutOrder::RollBack(first)), Ok(()));
    world.wait(crate::units::Span::from_secs(3));
    assert!(world.has(0, 2 * EXTENT, 1));
    let gone = |world: &World| {
        let gone = world.notices.iter().filter_map(|notice| match notice {
            LayoutNotice::GenerationGone(gone) => Some(gone.0),
            _ => None,
        });
        gone.collect::<Vec<_>>()
    };
    assert_eq!(gone(&world), [3], "what was written after the second one");
    assert_eq!(world.order(LayoutOrder::RollBack(second)), Ok(()));
    world.wait(crate::units::Span::from_secs(3));
    assert!(world.has(0, EXTENT, 2) && world.has(EXTENT, EXTENT, 1));
    assert_eq!(gone(&world), [3, 4]);
    world.fill(EXTENT, SUB, 5);
    // The older one goes: what is left of it belongs to the second one.
    assert_eq!(world.order(LayoutOrder::DeleteGeneration(first)), Ok(()));
    world.wait(crate::units::Span::from_secs(3));
    assert_eq!(gone(&world), [3, 4, 1]);
    assert_eq!(world.report().mapped, 3, "two, and a part of one");
    let check = |world: &mut World| {
        assert!(world.has(0, EXTENT, 2) && world.has(EXTENT, SUB, 5));
        assert!(world.has(EXTENT + SUB, EXTENT - SUB, 1));
    };
    check(&mut world);
    assert_eq!(world.flush(), Ok(()));
    world.crash();
    check(&mut world);
    assert_eq!(world.order(LayoutOrder::DeleteGeneration(second)), Ok(()));
    world.wait(crate::units::Span::from_secs(3));
    check(&mut world);
    // Written over where the older one had it: in place, of whichever extent.
    world.fill(EXTENT + 2 * SUB, SUB, 6);
    world.fill(0, SUB, 7);
    assert!(world.has(EXTENT + 2 * SUB, SUB, 6) && world.has(0, SUB, 7));
    let refused = OrderRefusal::NoGeneration;
    assert_eq!(
        world.order(LayoutOrder::DeleteGeneration(first)),
        Err(refused)
    );
    let current = world.report().current;
    assert_eq!(
        world.order(LayoutOrder::DeleteGeneration(current)),
        Err(refused)
    );
    assert_eq!(world.report().generations.len(), 1);
}

#[test]
fn a_clone_shows_its_ancestor_and_writes_its_own() {
    let mut parent = World::new(SIZE);
    parent.fill(0, 2 * EXTENT, 1);
    let taken = parent.snapshot();
    parent.fill(0, EXTENT, 2);
    assert_eq!(parent.flush(), Ok(()));
    let mut clone = World::new(SIZE);
    clone.stores.clone_from(&parent.stores);
    clone.free = parent.free.clone();
    clone.lives = 1000;
    clone.grants.clear();
    clone.ancestors = vec![Ancestor {
        disk: [7; 16],
        grants: parent.grants.clone(),
        at: taken,
    }];
    // The parent is another disk.
    parent.rename([7; 16]);
    clone.stores.clone_from(&parent.stores);
    clone.open(None);
    clone.run();
    assert_eq!(clone.opened, Some(Ok(())));
    assert!(clone.has(0, 2 * EXTENT, 1));
    clone.fill(512, 512, 3);
    assert_eq!(
        clone.io(Op::Discard, Flags::NONE, EXTENT, &[], EXTENT),
        Ok(())
    );
    clone.snapshot();
    assert_eq!(clone.flush(), Ok(()));
    clone.crash();
    assert!(clone.has(0, 512, 1) && clone.has(512, 512, 3));
    assert!(clone.has(1024, EXTENT - 1024, 1) && clone.has(EXTENT, EXTENT, 0));
    let mapped = clone.report();
    assert_eq!(mapped.mapped, 1);
}

#[test]
fn what_changed_between_generations_is_what_they_wrote() {
    let mut world = World::new(SIZE);
    world.fill(0, 3 * EXTENT, 1);
    let first = world.snapshot();
    world.fill(EXTENT, SUB, 2);
    world.fill(EXTENT + SUB, SUB, 2);
    let second = world.snapshot();
    assert_eq!(
        world.io(Op::Discard, Flags::NONE, 2 * EXTENT, &[], EXTENT),
        Ok(())
    );
    let current = world.report().current;
    let find = |world: &World, from, to| {
        let mut changes = Changes::default();
        let pool = &world.pool;
        while pool.find_changes_between(from, to, &mut changes)? == Searched::Part {}
        Some(changes.ranges())
    };
    let changed = |world: &World, from, to| find(world, from, to).unwrap();
    let expected = EXTENT..EXTENT + 2 * SUB;
    assert_eq!(changed(&world, first, second), vec![expected.clone()]);
    let rest = 2 * EXTENT..3 * EXTENT;
    assert_eq!(changed(&world, second, current), vec![rest.clone()]);
    assert_eq!(changed(&world, first, current), [expected, rest]);
    assert_eq!(changed(&world, first, first), []);
    let written: Vec<_> = core::iter::once(0..3 * EXTENT).collect();
    assert_eq!(changed(&world, Generation(0), second), written);
    assert_eq!(find(&world, first, Generation(77)), None);
}

#[test]
fn what_was_not_flushed_is_written_when_the_layout_ends() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    world.hook(|pool, cx| pool.close(cx));
    world.run();
    world.crash();
    assert!(world.has(0, EXTENT, 1));
}

#[test]
fn a_disk_that_is_detached_leaves_nobody_waiting() {
    let mut world = World::new(SIZE);
    world.gives = false;
    let writes: Vec<u32> = (0..40)
        .map(|nth| world.begin(Op::Write, Flags::NONE, nth * EXTENT, &[1; 512], 512))
        .collect();
    world.run();
    let mut taken = Vec::new();
    world.pool.taken(&mut taken);
    assert!(!taken.is_empty());
    world.hook(|pool, cx| pool.abandon(cx, &taken[..1]));
    assert_eq!(world.answers[&taken[0].index], Err(Fault::Gone));
    assert_eq!(world.order(LayoutOrder::Hold), Ok(()));
    let held = world.begin(Op::Write, Flags::NONE, 0, &[1; 512], 512);
    world.hook(|pool, cx| pool.detaching(cx));
    world.run();
    assert_eq!(world.answers[&held], Ok(()));
    assert!(writes.iter().all(|it| world.answers.contains_key(it)));
    let full = Err(Fault::NoSpace);
    assert!(
        world.answers.values().all(|it| *it != full),
        "nobody said so"
    );
}

#[test]
fn a_root_that_failed_is_written_over_before_anything_else_is_durable() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    let first = world.snapshot();
    world.fill(0, EXTENT, 2);
    assert_eq!(world.flush(), Ok(()));
    // The root is on the member although its write has failed: it says that what is written now goes.
    world.fails.extend(["write block", "landed"]);
    let refused = world.order(LayoutOrder::RollBack(first));
    assert_eq!(refused, Err(OrderRefusal::Unrecorded));
    assert_eq!(world.flush(), Err(Fault::Io), "nothing can be promised");
    world.fails.clear();
    world.fill(EXTENT, 512, 3);
    assert_eq!(world.io(Op::Write, Flags::FUA, 0, &[4; 512], 512), Ok(()));
    world.crash();
    assert!(world.has(0, 512, 4) && world.has(512, EXTENT - 512, 2));
    assert!(world.has(EXTENT, 512, 3));
    assert_eq!(world.order(LayoutOrder::RollBack(first)), Ok(()));
    assert!(world.has(0, EXTENT, 1));
}

#[test]
fn what_is_left_is_tried_again_when_the_layout_ends() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    world.fails.insert("flush");
    world.hook(|pool, cx| pool.pause(cx));
    world.end(0);
    world.fails.clear();
    world.run();
    world.crash();
    assert!(world.has(0, EXTENT, 1));
}

#[test]
fn any_contents_of_headers_and_roots_open_or_are_refused() {
    let mut world = World::new(SIZE);
    for byte in 1..5 {
        world.fill(u64::from(byte) * EXTENT / 2, EXTENT, byte);
        world.snapshot();
    }
    assert_eq!(
        world.io(Op::Discard, Flags::NONE, EXTENT, &[], EXTENT),
        Ok(())
    );
    assert_eq!(world.flush(), Ok(()));
    let stores = world.stores.clone();
    let (mut opened, mut refused) = (0, 0);
    let mut random = 1_u64;
    for _ in 0..400 {
        world.stores.clone_from(&stores);
        for store in &mut world.stores {
            for at in (0..store.now.len()).step_by(4096) {
                let block = &mut store.now[at..at + 4096];
                if &block[..5] != b"TIDEP" {
                    continue;
                }
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let place = 64 + usize::try_from(random >> 40).unwrap() % 100;
                block[place] ^= u8::try_from(random >> 33 & 0x1f).unwrap();
                let sum = crate::block::crc32c(&block[..4092]);
                block[4092..].copy_from_slice(&sum.to_le_bytes());
            }
        }
        world.open(None);
        world.run();
        match world.opened {
            Some(Ok(())) => {
                opened += 1;
                world.read(0, SIZE);
                world.fill(EXTENT, EXTENT, 9);
                assert!(world.has(EXTENT, EXTENT, 9));
            }
            Some(Err(_)) => refused += 1,
            None => panic!("it opens or is refused"),
        }
    }
    assert!(opened > 20 && refused > 20, "{opened}, {refused}");
}

#[test]
fn a_first_root_and_header_that_are_torn_twice_do_not_refuse_the_disk() {
    let mut world = World::new(SIZE);
    let grant = world.grants[0].unwrap();
    let geometry = world::geometry();
    for _ in 0..3 {
        world.fill(0, EXTENT, 1);
        world.fails.extend(["write block", "landed"]);
        assert_eq!(world.flush(), Err(Fault::Io));
        world.fails.remove("landed");
        let store = &mut world.stores[usize::from(grant.column)];
        for place in 0..2 {
            let at = geometry.grant_at(grant) + geometry.header_at(0, place);
            store.durable[usize::try_from(at).unwrap() + 600] ^= 1;
        }
        world.fails.clear();
        world.crash();
        assert!(world.has(0, EXTENT, 0));
    }
}

#[test]
fn a_deletion_leaves_alone_what_is_copied_meanwhile() {
    for at_once in [true, false] {
        let mut world = World::new(SIZE);
        world.fill(0, EXTENT, 1);
        let first = world.snapshot();
        let write = world.begin(Op::Write, Flags::FUA, 512, &[2; 512], 512);
        let order = world.pool_order(LayoutOrder::DeleteGeneration(first));
        assert_eq!(order, Ok(Ordered::Later));
        let is_copy = |job: &Job| matches!(job, Job::Sub(tag, _) if tag & KIND == COPY);
        // The root and the first plan before the copy ends, or with it.
        for _ in 0..if at_once { 0 } else { 40 } {
            if let Some(nth) = world.nth(|job| !is_copy(job)) {
                world.end(nth);
            }
        }
        world.run();
        world.wait(crate::units::Span::from_secs(3));
        assert_eq!(world.answers[&write], Ok(()));
        let check = |world: &mut World| {
            assert!(world.has(0, 512, 1) && world.has(512, 512, 2));
            assert!(world.has(1024, EXTENT - 1024, 1));
        };
        check(&mut world);
        assert_eq!(world.report().generations.len(), 1);
        world.crash();
        check(&mut world);
    }
}

#[test]
fn a_pause_ends_though_nothing_can_be_made_durable() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    world.fails.insert("flush");
    // As the shard does: again, once nothing is under way.
    for nth in 0..8 {
        world.hook(|pool, cx| pool.pause(cx));
        assert!(nth < 4 || world.jobs.is_empty(), "{nth}");
        world.run();
    }
    world.fails.clear();
    world.hook(|pool, cx| pool.resume(cx));
    assert_eq!(world.flush(), Ok(()));
    world.crash();
    assert!(world.has(0, EXTENT, 1));
}

#[test]
fn a_deletion_that_cannot_be_recorded_waits_before_it_is_tried_again() {
    for kind in ["flush", "write block"] {
        let mut world = World::new(SIZE);
        world.fill(0, EXTENT, 1);
        let first = world.snapshot();
        world.fill(0, EXTENT, 2);
        assert_eq!(world.flush(), Ok(()));
        let order = world.pool_order(LayoutOrder::DeleteGeneration(first));
        assert_eq!(order, Ok(Ordered::Later));
        world.end(0);
        world.fails.insert(kind);
        // It ends, though the fault stays.
        world.run();
        world.wait(crate::units::Span::from_secs(3));
        assert_eq!(world.report().generations.len(), 2, "{kind}");
        world.fails.clear();
        world.wait(crate::units::Span::from_secs(3));
        assert_eq!(world.report().generations.len(), 1, "{kind}");
        assert!(world.has(0, EXTENT, 2));
    }
}

#[test]
fn a_mark_of_a_deleted_generation_goes_once_it_is_written_over() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    world.snapshot();
    // A mark, and then an extent of its own in the next generation.
    assert_eq!(world.io(Op::Discard, Flags::NONE, 0, &[], EXTENT), Ok(()));
    let marked = world.snapshot();
    world.fill(4 * SUB, SUB, 2);
    assert_eq!(world.order(LayoutOrder::DeleteGeneration(marked)), Ok(()));
    world.wait(crate::units::Span::from_secs(3));
    assert_eq!(world.report().generations.len(), 2);
    let marks = |world: &World| {
        let chunks = world.pool.table.chunks();
        let marks = chunks.flat_map(|(_, chunk)| chunk.marks.iter());
        let bits = marks.map(|mark| world.pool.table.at(*mark).bits);
        bits.collect::<Vec<u16>>()
    };
    assert_eq!(marks(&world), [0xffef], "it is this generation's by now");
    world.fill(0, SUB, 3);
    assert_eq!(marks(&world), [0xffef], "nothing is durable yet");
    assert_eq!(world.flush(), Ok(()));
    assert_eq!(marks(&world), [0xffee]);
    world.fill(SUB, 3 * SUB, 3);
    world.fill(5 * SUB, 11 * SUB, 3);
    assert_eq!(world.flush(), Ok(()));
    assert_eq!(marks(&world), []);
    world.crash();
    assert!(world.has(0, 4 * SUB, 3) && world.has(4 * SUB, SUB, 2));
    assert!(world.has(5 * SUB, 11 * SUB, 3));
}

#[test]
fn a_mark_that_is_replaced_twice_before_a_commit_goes_once() {
    let mut world = World::new(SIZE);
    world.fill(0, EXTENT, 1);
    world.snapshot();
    for byte in 2..5 {
        assert_eq!(world.io(Op::Discard, Flags::NONE, 0, &[], EXTENT), Ok(()));
        world.fill(512, 512, byte);
        assert!(world.has(0, 512, 0) && world.has(512, 512, byte));
    }
    assert_eq!(world.flush(), Ok(()));
    assert_eq!(world.flush(), Ok(()));
    world.crash();
    assert!(world.has(0, 512, 0) && world.has(512, 512, 4));
}
