//! The rules of extents that move: between columns, beside guests' I/O, and through crashes.

use super::super::gate::Gate;
use super::super::relocate::{BOTH, MOVE};
use super::*;
use crate::units::Span;
use alloc::vec;

const SIZE: u64 = 64 * EXTENT;

/// A disk with more than one grant on each column; nobody else reads it.
fn filled(extents: u64) -> World {
    let mut world = World::with(SIZE, 6);
    for nth in 0..extents {
        world.fill(nth * EXTENT, EXTENT, byte(nth));
    }
    assert_eq!(world.flush(), Ok(()));
    assert_eq!(world.order(LayoutOrder::Readers(false)), Ok(()));
    world
}

fn byte(extent: u64) -> u8 {
    u8::try_from(extent + 1).unwrap()
}

fn has_all(world: &mut World, extents: u64) -> bool {
    (0..extents).all(|nth| world.has(nth * EXTENT, EXTENT, byte(nth)))
}

/// Orders a column to be empty, and begins nothing else.
fn vacate(world: &mut World, column: u16) {
    world.drained = 1 << column;
    let columns = 1 << column;
    assert_eq!(world.order(LayoutOrder::Vacate { columns }), Ok(()));
}

fn uses(world: &World, column: u16) -> bool {
    world.grants.iter().flatten().any(|it| it.column == column)
}

fn is_vacated(world: &World) -> bool {
    world.notices.contains(&LayoutNotice::Vacated)
}

fn is_move(job: &Job) -> bool {
    matches!(job, Job::Sub(tag, _) if tag & !0xff_ffff_ffff_ffff == MOVE)
}

fn is_both(job: &Job) -> bool {
    matches!(job, Job::Sub(tag, _) if tag & !0xff_ffff_ffff_ffff == BOTH)
}

fn is_copy_to(job: &Job, column: u8) -> bool {
    is_move(job) && matches!(job, Job::Sub(_, sub) if sub.op == Op::Write && sub.target.0 == column)
}

#[test]
fn a_column_becomes_empty_with_its_headers_and_nothing_is_lost() {
    for column in 0..2 {
        let mut world = filled(20);
        let first = world.snapshot();
        world.fill(0, SUB, 99);
        assert_eq!(
            world.io(Op::Discard, Flags::NONE, EXTENT, &[], EXTENT),
            Ok(())
        );
        assert!(uses(&world, column));
        vacate(&mut world, column);
        world.wait(Span::from_secs(20));
        assert!(is_vacated(&world), "{:?}", world.report());
        assert!(!uses(&world, column), "{:?}", world.grants);
        assert_eq!(world.report().to_move, 0);
        assert!(world.report().moved > 8);
        let check = |world: &mut World| {
            assert!(world.has(0, SUB, 99) && world.has(SUB, EXTENT - SUB, 1));
            assert!(world.has(EXTENT, EXTENT, 0));
            assert!((2..20).all(|nth| world.has(nth * EXTENT, EXTENT, byte(nth))));
        };
        check(&mut world);
        // The column has another tenant's bytes now.
        let emptied = &mut world.stores[usize::from(column)];
        emptied.now.fill(0xee);
        emptied.durable.fill(0xee);
        check(&mut world);
        assert_eq!(world.flush(), Ok(()));
        world.crash();
        check(&mut world);
        assert_eq!(world.order(LayoutOrder::RollBack(first)), Ok(()));
        assert!(has_all(&mut world, 20));
    }
}

#[test]
fn a_crash_at_any_point_of_a_move_loses_nothing() {
    // What was not flushed is lost, or is there.
    for keeps in [false, true] {
        // Neighbours of a multiple are at other points of other moves.
        for crash in (usize::from(keeps)..).step_by(7) {
            let mut world = filled(6);
            world.snapshot();
            world.fill(3 * EXTENT, EXTENT, byte(3));
            assert_eq!(world.flush(), Ok(()));
            vacate(&mut world, 0);
            for _ in 0..crash {
                world.step();
            }
            if is_vacated(&world) {
                assert!(crash > 100, "{crash}");
                break;
            }
            if keeps {
                world.keep_all();
            }
            world.crash();
            assert!(has_all(&mut world, 6), "{keeps} {crash}");
            // It goes on, and another crash changes nothing.
            assert_eq!(world.order(LayoutOrder::Readers(false)), Ok(()));
            vacate(&mut world, 0);
            world.wait(Span::from_secs(20));
            assert!(!uses(&world, 0), "{keeps} {crash}: {:?}", world.report());
            assert!(has_all(&mut world, 6), "{keeps} {crash}");
            world.crash();
            assert!(has_all(&mut world, 6), "{keeps} {crash}");
        }
    }
}

/// A disk with one extent, on column 0 or 1, that is to move to the other one. Returns both.
fn one_that_moves() -> (World, u8, u8) {
    let mut world = filled(1);
    let place = world.pool.table.first(0).unwrap();
    let from = world.pool.address(place, 0).0.0;
    vacate(&mut world, from.into());
    (world, from, 1 - from)
}

/// Ends I/Os until one of these is under way, or nothing is.
fn run_until(world: &mut World, is_wanted: impl Fn(&Job) -> bool) -> Option<usize> {
    for _ in 0..10_000 {
        if let Some(nth) = world.nth(&is_wanted) {
            return Some(nth);
        }
        world.step();
        if is_vacated(world) {
            return None;
        }
    }
    None
}

#[test]
fn what_is_written_while_an_extent_moves_is_at_its_new_place() {
    for copies in 0..16 {
        let (mut world, _, to) = one_that_moves();
        for _ in 0..copies {
            let nth = run_until(&mut world, |job| is_copy_to(job, to)).unwrap();
            world.end(nth);
        }
        run_until(&mut world, |job| is_copy_to(job, to)).unwrap();
        let write = world.begin(Op::Write, Flags::NONE, 512, &[77; 512], 512);
        let other = world.begin(Op::Write, Flags::FUA, 14 * SUB, &vec![78; 4096], SUB);
        world.wait(Span::from_secs(20));
        assert_eq!(
            (world.answers[&write], world.answers[&other]),
            (Ok(()), Ok(()))
        );
        assert!(is_vacated(&world));
        let check = |world: &mut World| {
            assert!(world.has(0, 512, 1) && world.has(512, 512, 77), "{copies}");
            assert!(world.has(1024, 14 * SUB - 1024, 1) && world.has(14 * SUB, SUB, 78));
        };
        check(&mut world);
        assert_eq!(world.flush(), Ok(()));
        world.crash();
        check(&mut world);
    }
}

#[test]
fn two_places_get_the_same_bytes_of_a_buffer_that_changes() {
    let (mut world, from, to) = one_that_moves();
    // The first sub-block is there.
    let nth = run_until(&mut world, |job| is_copy_to(job, to)).unwrap();
    world.end(nth);
    let write = world.begin(Op::Write, Flags::NONE, 0, &[5; 512], 512);
    let overlapping = world.begin(Op::Write, Flags::NONE, 0, &[6; 1024], 1024);
    let pieces = world.jobs.iter().filter(|(job, _)| is_both(job)).count();
    assert_eq!(pieces, 2, "the second write waits for the first");
    let nth = world.nth(is_both).unwrap();
    world.end(nth);
    world.change_buffer(write, 9);
    let nth = world.nth(is_both).unwrap();
    world.end(nth);
    let place = world.pool.table.first(0).unwrap();
    let moved = world.pool.relocation.moves.of_extent(0).unwrap().to();
    let at = |world: &World, place, column: u8| {
        let (target, at) = world.pool.address(place, 0);
        assert_eq!(target.0, column);
        world.stores[usize::from(column)].now[usize::try_from(at).unwrap()]
    };
    assert_eq!((at(&world, place, from), at(&world, moved, to)), (5, 5));
    world.wait(Span::from_secs(20));
    assert_eq!(world.answers[&overlapping], Ok(()));
    assert!(world.has(0, 1024, 6));
}

#[test]
fn a_read_never_goes_back_to_what_was_before_it() {
    let (mut world, from, _) = one_that_moves();
    // Everything is copied; the header of the new place is on its way.
    let is_header = |job: &Job| matches!(job, Job::Write(..));
    run_until(&mut world, is_header).unwrap();
    world.begin(Op::Write, Flags::NONE, 0, &[5; 512], 512);
    // The old place has it, the new one has not.
    let of_old =
        |job: &Job| is_both(job) && matches!(job, Job::Sub(_, sub) if sub.target.0 == from);
    let nth = world.nth(of_old).unwrap();
    world.end(nth);
    let slow = world.nth(is_both).unwrap();
    let slow = world.jobs.remove(slow).unwrap();
    for _ in 0..20 {
        if !world.jobs.is_empty() {
            world.end(0);
        }
    }
    let read = world.begin(Op::Read, Flags::NONE, 0, &[], 512);
    while let Some(nth) = world.nth(|job| matches!(job, Job::Guest(..))) {
        world.end(nth);
    }
    assert_eq!(world.bytes_of(read)[0], 5, "the old place counts still");
    world.jobs.push_back(slow);
    world.wait(Span::from_secs(20));
    assert!(is_vacated(&world) && world.has(0, 512, 5));
}

#[test]
fn a_write_with_fua_is_durable_wherever_an_extent_is_on_its_way() {
    for crash in (0..).step_by(3) {
        let (mut world, ..) = one_that_moves();
        for _ in 0..crash {
            world.step();
        }
        if is_vacated(&world) {
            assert!(crash > 30, "{crash}");
            return;
        }
        let write = world.begin(Op::Write, Flags::FUA, 512, &[7; 512], 512);
        while !world.answers.contains_key(&write) {
            world.step();
        }
        assert_eq!(world.answers[&write], Ok(()));
        world.crash();
        assert!(world.has(512, 512, 7), "{crash}");
        assert!(world.has(0, 512, 1) && world.has(1024, EXTENT - 1024, 1));
    }
}

#[test]
fn a_fault_at_the_new_place_gives_the_move_up_and_no_guest_sees_it() {
    let (mut world, _, to) = one_that_moves();
    run_until(&mut world, |job| is_copy_to(job, to)).unwrap();
    world.fails.insert("write");
    let nth = world.nth(|job| is_copy_to(job, to)).unwrap();
    world.end(nth);
    world.fails.clear();
    assert_eq!(world.report().moving, 0);
    assert!(world.has(0, EXTENT, 1));
    world.wait(Span::from_secs(20));
    assert!(is_vacated(&world) && world.has(0, EXTENT, 1));
    // The same for a guest's write to it.
    let (mut world, _, to) = one_that_moves();
    let nth = run_until(&mut world, |job| is_copy_to(job, to)).unwrap();
    world.end(nth);
    let write = world.begin(Op::Write, Flags::NONE, 0, &[5; 512], 512);
    let of_new = |job: &Job| is_both(job) && matches!(job, Job::Sub(_, sub) if sub.target.0 == to);
    let nth = world.nth(of_new).unwrap();
    world.fails.insert("write");
    world.end(nth);
    world.fails.clear();
    world.wait(Span::from_secs(20));
    assert_eq!(world.answers[&write], Ok(()));
    assert!(is_vacated(&world) && world.has(0, 512, 5) && world.has(512, EXTENT - 512, 1));
}

#[test]
fn a_commit_that_fails_leaves_the_old_place() {
    for kind in ["flush", "write block"] {
        let (mut world, ..) = one_that_moves();
        world.fails.insert(kind);
        world.wait(Span::from_secs(5));
        assert!(!is_vacated(&world));
        assert!(world.has(0, EXTENT, 1));
        world.fill(0, SUB, 4);
        world.fails.clear();
        world.wait(Span::from_secs(20));
        assert!(is_vacated(&world), "{kind}");
        assert!(world.has(0, SUB, 4) && world.has(SUB, EXTENT - SUB, 1));
        assert_eq!(world.flush(), Ok(()));
        world.crash();
        assert!(world.has(0, SUB, 4) && world.has(SUB, EXTENT - SUB, 1));
    }
}

#[test]
fn what_others_read_stays_until_nobody_does() {
    let mut world = filled(6);
    world.snapshot();
    world.fill(0, EXTENT, byte(0));
    assert_eq!(world.order(LayoutOrder::Readers(true)), Ok(()));
    let column = world.grants[0].unwrap().column;
    vacate(&mut world, column);
    world.wait(Span::from_secs(10));
    let report = world.report();
    assert!(
        report.held > 0 && report.held == report.to_move - 1,
        "{report:?}"
    );
    assert!(!is_vacated(&world) && uses(&world, column));
    assert_eq!(world.order(LayoutOrder::Readers(false)), Ok(()));
    world.wait(Span::from_secs(20));
    assert!(is_vacated(&world) && !uses(&world, column));
    assert!(has_all(&mut world, 6));
}

#[test]
fn whoever_begins_to_read_finds_each_extent_where_it_stays() {
    // At each point of a move of frozen extents a reader comes.
    for point in (0..).step_by(5) {
        let mut world = filled(6);
        let taken = world.snapshot();
        let column = world.grants[0].unwrap().column;
        vacate(&mut world, column);
        for _ in 0..point {
            world.step();
        }
        if is_vacated(&world) {
            assert!(point > 50, "{point}");
            return;
        }
        assert_eq!(world.order(LayoutOrder::Readers(true)), Ok(()));
        // It reads what is durable, and remembers where things are.
        let mut view = World::with(SIZE, 6);
        view.stores.clone_from(&world.stores);
        view.grants.clone_from(&world.grants);
        view.open(Some(taken));
        view.run();
        assert_eq!(view.opened, Some(Ok(())));
        world.wait(Span::from_secs(5));
        for nth in 6..30 {
            world.fill(nth * EXTENT, EXTENT, 0xaa);
        }
        assert_eq!(world.flush(), Ok(()));
        world.wait(Span::from_secs(5));
        view.stores.clone_from(&world.stores);
        assert!(has_all(&mut view, 6), "{point}");
    }
}

#[test]
fn a_closed_column_gets_nothing_new_and_an_open_one_does() {
    let mut world = filled(2);
    vacate(&mut world, 0);
    world.wait(Span::from_secs(20));
    assert!(is_vacated(&world));
    let before = world.stores[0].now.clone();
    for nth in 2..20 {
        world.fill(nth * EXTENT, EXTENT, byte(nth));
    }
    assert_eq!(world.flush(), Ok(()));
    assert!(world.stores[0].now == before, "nothing is written there");
    assert_eq!(world.order(LayoutOrder::Vacate { columns: 0 }), Ok(()));
    world.drained = 0;
    for nth in 20..40 {
        world.fill(nth * EXTENT, EXTENT, byte(nth));
    }
    assert!(uses(&world, 0) && has_all(&mut world, 40));
}

#[test]
fn extents_are_placed_on_the_columns_that_are_named() {
    let mut world = filled(16);
    let on = |world: &World, column: u8| {
        let on = (0..4).filter(|extent| {
            let place = world.pool.table.first(*extent).unwrap();
            world.pool.address(place, 0).0.0 == column
        });
        on.count()
    };
    for column in [0_u8, 1, 0] {
        let order = LayoutOrder::Place {
            extent: 0,
            count: 4,
            columns: 1 << column,
        };
        assert_eq!(world.order(order), Ok(()));
        world.wait(Span::from_secs(20));
        assert_eq!(on(&world, column), 4, "{:?}", world.report());
        assert!(has_all(&mut world, 16));
    }
    let nowhere = LayoutOrder::Place {
        extent: 0,
        count: 4,
        columns: 1 << 7,
    };
    assert_eq!(world.order(nowhere), Err(OrderRefusal::NoColumn));
}

#[test]
fn a_home_that_the_catalog_has_not_exchanged_is_the_old_one() {
    for exchanged in [false, true] {
        let mut world = filled(2);
        let first = world.snapshot();
        world.fill(0, SUB, 50);
        assert_eq!(world.flush(), Ok(()));
        let column = world.grants[0].unwrap().column;
        vacate(&mut world, column);
        world.gives = false;
        let mut asked = None;
        for _ in 0..2_000 {
            world.wait(Span::from_millis(20));
            asked = world.notices.iter().find_map(|notice| match notice {
                LayoutNotice::HomeMoved { from, to } => Some((*from, *to)),
                _ => None,
            });
            if asked.is_some() {
                break;
            }
            if world
                .notices
                .iter()
                .any(|it| matches!(it, LayoutNotice::GrantWanted { .. }))
            {
                world.notices.clear();
                world.give();
            }
        }
        let (from, to) = asked.expect("the headers move at last");
        assert_eq!(from, 0);
        // Nothing becomes durable before the answer.
        world.fill(0, SUB, 51);
        let flush = world.begin(Op::Flush, Flags::NONE, 0, &[], 0);
        world.run();
        assert_eq!(world.answers.get(&flush), None);
        let wrong = LayoutOrder::HomeMoved { from: to, to: from };
        assert_eq!(world.order(wrong), Err(OrderRefusal::BadGrant));
        if exchanged {
            world.exchange(from, to);
            world.run();
            assert_eq!(world.answers[&flush], Ok(()));
            assert_ne!(world.grants[0].unwrap().column, column);
        }
        world.crash();
        let newest = if exchanged { 51 } else { 50 };
        assert!(world.has(0, SUB, newest) || world.has(0, SUB, 51));
        assert!(world.has(SUB, EXTENT - SUB, 1) && world.has(EXTENT, EXTENT, 2));
        assert_eq!(world.order(LayoutOrder::RollBack(first)), Ok(()));
        assert!(has_all(&mut world, 2));
    }
}

#[test]
fn a_move_is_over_before_a_snapshot_and_a_detachment_waits_for_none() {
    for point in (0..60).step_by(3) {
        let (mut world, ..) = one_that_moves();
        for _ in 0..point {
            world.step();
        }
        let taken = world.snapshot();
        assert_eq!(world.report().moving, 0);
        world.fill(0, SUB, 9);
        world.hook(|pool, cx| pool.detaching(cx));
        world.hook(|pool, cx| pool.close(cx));
        world.run();
        assert_eq!(world.report().moving, 0);
        world.crash();
        assert!(
            world.has(0, SUB, 9) && world.has(SUB, EXTENT - SUB, 1),
            "{point}"
        );
        assert_eq!(world.order(LayoutOrder::RollBack(taken)), Ok(()));
        assert!(world.has(0, EXTENT, 1), "{point}");
    }
}

#[test]
fn zeroes_and_discards_beside_a_move_come_after_it() {
    for op in [Op::WriteZeroes, Op::Discard] {
        let (mut world, _, to) = one_that_moves();
        run_until(&mut world, |job| is_copy_to(job, to)).unwrap();
        let zeroes = world.begin(op, Flags::NONE, 0, &[], 2 * SUB);
        assert_eq!(world.answers.get(&zeroes), None);
        let fresh = world.begin(Op::Write, Flags::NONE, 5 * EXTENT, &[3; 512], 512);
        world.wait(Span::from_secs(20));
        assert_eq!(
            (world.answers[&zeroes], world.answers[&fresh]),
            (Ok(()), Ok(()))
        );
        assert!(is_vacated(&world));
        assert!(op == Op::Discard || world.has(0, 2 * SUB, 0));
        assert!(world.has(2 * SUB, EXTENT - 2 * SUB, 1) && world.has(5 * EXTENT, 512, 3));
    }
}

#[test]
fn x1_nothing_is_copied_before_a_write_that_came_earlier_has_ended() {
    let mut world = filled(1);
    let write = world.begin(Op::Write, Flags::NONE, 512, &[77; 512], 512);
    let place = world.pool.table.first(0).unwrap();
    let from = world.pool.address(place, 0).0.0;
    world.drained = 1 << from;
    let columns = 1 << from;
    let order = world.pool_order(LayoutOrder::Vacate { columns });
    assert_eq!(order, Ok(Ordered::Now));
    for _ in 0..200 {
        assert_eq!(world.nth(is_move), None, "a write is under way");
        match world.nth(|job| !matches!(job, Job::Guest(..))) {
            Some(nth) => world.end(nth),
            None => match world.pool.deadline() {
                Some(at) => world.tick(at),
                None => break,
            },
        }
    }
    world.run();
    world.wait(Span::from_secs(20));
    assert_eq!(world.answers[&write], Ok(()));
    assert!(is_vacated(&world), "{:?}", world.report());
    assert!(world.has(512, 512, 77) && world.has(1024, EXTENT - 1024, 1));
}

#[test]
fn x5_nothing_moves_while_a_snapshot_is_taken() {
    for copies in 0..16 {
        let (mut world, _, to) = one_that_moves();
        for _ in 0..copies {
            let nth = run_until(&mut world, |job| is_copy_to(job, to)).unwrap();
            world.end(nth);
        }
        run_until(&mut world, |job| is_copy_to(job, to)).unwrap();
        let order = world.pool_order(LayoutOrder::TakeSnapshot);
        assert_eq!(order, Ok(Ordered::Later));
        while world.ordered.is_empty() {
            if matches!(world.pool.gate, Gate::Switching { .. }) {
                assert!(world.pool.relocation.moves.is_empty(), "{copies}");
            }
            world.step();
        }
        assert_eq!(world.ordered.pop(), Some(Ok(())));
        world.wait(Span::from_secs(20));
        assert!(world.has(0, EXTENT, 1));
    }
}
