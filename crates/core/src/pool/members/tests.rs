//! Tests of which members can be used.

use super::*;
use crate::pool::Tier;
use MemberState::{Behind, Current, Joining};

const POOL: [u8; 16] = [3; 16];

fn superblock(member: u16, generation: u64, states: &[MemberState]) -> Superblock {
    let places = (0..).zip(states).map(|(column, state)| Place {
        state: *state,
        tier: Tier::Slow,
        group: 0,
        column,
    });
    Superblock {
        pool: POOL,
        member,
        generation,
        catalog: 8 << 20,
        length: 1 << 20,
        data_at: 9 << 20,
        size: 1 << 30,
        members: places.collect(),
    }
}

/// A path with this superblock, and an older one beside it.
fn has(one: Superblock) -> Found {
    let mut older = one.clone();
    older.generation = one.generation.saturating_sub(1);
    Some([Ok(older), Ok(one)])
}

fn nothing() -> Found {
    Some([Err(Unreadable::Empty), Err(Unreadable::Empty)])
}

fn why(found: &[Found]) -> Why {
    judge(POOL, found).unwrap_err().why
}

#[test]
fn the_newest_superblock_says_who_is_current_whatever_the_order_of_paths() {
    let states = [Current, Behind, Current];
    let mut found = [
        has(superblock(0, 8, &states)),
        has(superblock(1, 6, &[Current; 3])),
        has(superblock(2, 7, &[Current; 3])),
    ];
    for _ in 0..3 {
        found.rotate_left(1);
        let standing = judge(POOL, &found).unwrap();
        assert_eq!(standing.generation, 8);
        let members = standing.members.iter();
        let seen: Vec<MemberState> = members.map(|seat| seat.place.state).collect();
        assert_eq!(seen, states);
        for (number, seat) in (0..).zip(&standing.members) {
            let [_, there] = found[seat.path.unwrap()].clone().unwrap();
            assert_eq!(there.unwrap().member, number);
        }
    }
}

#[test]
fn a_current_member_that_is_missing_may_have_a_newer_catalog() {
    let zero = || has(superblock(0, 8, &[Current, Current]));
    assert_eq!(why(&[zero(), None]), Why::Missing(1));
    assert_eq!(why(&[zero()]), Why::Missing(1));
    assert_eq!(why(&[zero(), nothing()]), Why::Missing(1));
    // One that was left behind has nothing that counts.
    let alone = judge(POOL, &[has(superblock(0, 9, &[Current, Behind])), None]).unwrap();
    assert_eq!(alone.members[1].path, None);
}

#[test]
fn a_member_that_was_left_behind_does_not_speak_for_its_pool() {
    // It still says that all are current.
    let stale = || has(superblock(1, 8, &[Current, Current]));
    assert_eq!(why(&[None, stale()]), Why::Missing(0));
    let both = [has(superblock(0, 9, &[Current, Behind])), stale()];
    let standing = judge(POOL, &both).unwrap();
    assert_eq!(standing.members[1].place.state, Behind);
}

#[test]
fn a_member_of_another_pool_or_at_two_paths_is_refused() {
    let zero = || has(superblock(0, 8, &[Current, Current]));
    let mut other = superblock(1, 9, &[Current, Current]);
    other.pool = [4; 16];
    assert_eq!(why(&[zero(), has(other)]), Why::OtherPool([4; 16]));
    assert_eq!(why(&[zero(), zero()]), Why::Twice(0));
}

#[test]
fn two_superblocks_of_one_generation_must_agree() {
    let zero = has(superblock(0, 8, &[Current, Current]));
    let one = has(superblock(1, 8, &[Current, Behind]));
    assert_eq!(why(&[zero, one]), Why::Contradiction);
    let zero = has(superblock(0, 8, &[Current, Current]));
    let mut one = superblock(1, 8, &[Current, Current]);
    one.data_at += 1 << 20;
    assert_eq!(why(&[zero, has(one)]), Why::Contradiction);
}

#[test]
fn one_damaged_superblock_is_what_a_crash_leaves_and_two_are_damage() {
    let sound = Ok(superblock(0, 8, &[Current]));
    for torn in [
        [sound.clone(), Err(Unreadable::Torn)],
        [Err(Unreadable::Torn), sound.clone()],
        [Err(Unreadable::Empty), sound.clone()],
    ] {
        assert_eq!(judge(POOL, &[Some(torn)]).unwrap().generation, 8);
    }
    let both = Some([Err(Unreadable::Torn), Err(Unreadable::Torn)]);
    assert_eq!(why(&[both]), Why::Damaged);
    assert_eq!(
        why(&[Some([Err(Unreadable::Foreign), sound.clone()])]),
        Why::Foreign
    );
    assert_eq!(
        why(&[Some([sound, Err(Unreadable::Newer(2))])]),
        Why::Newer(2)
    );
    assert_eq!(why(&[nothing()]), Why::NoPool);
    assert_eq!(why(&[]), Why::NoPool);
}

#[test]
fn a_member_that_is_being_added_may_have_no_superblock_yet() {
    let states = [Current, Joining];
    let found = [has(superblock(0, 8, &states)), nothing()];
    let standing = judge(POOL, &found).unwrap();
    assert_eq!(standing.members[1].path, None);
    assert_eq!(standing.unused, [(1, None)]);
    // Its addition was given up: the others do not know it.
    let found = [
        has(superblock(0, 8, &[Current])),
        has(superblock(1, 7, &states)),
    ];
    assert_eq!(judge(POOL, &found).unwrap().unused, [(1, None)]);
}

#[test]
fn damage_of_a_member_that_does_not_count_is_only_reported() {
    let torn = || Some([Err(Unreadable::Torn), Err(Unreadable::Foreign)]);
    for states in [[Current, Joining], [Current, Behind]] {
        let found = [has(superblock(0, 8, &states)), torn()];
        let standing = judge(POOL, &found).unwrap();
        assert_eq!(standing.unused, [(1, Some(Why::Foreign))]);
        assert_eq!(standing.members[1].path, None);
    }
    let found = [has(superblock(0, 8, &[Current, Current])), torn()];
    let refusal = judge(POOL, &found).unwrap_err();
    assert_eq!((refusal.path, refusal.why), (Some(1), Why::Foreign));
}

#[test]
fn a_pool_without_a_current_member_is_refused() {
    let found = [has(superblock(0, 8, &[Behind]))];
    assert_eq!(why(&found), Why::NoneCurrent);
}

#[test]
fn a_current_member_that_is_given_up_may_be_missing_but_not_the_last_one() {
    let found = [has(superblock(0, 8, &[Current, Current])), None];
    assert_eq!(why(&found), Why::Missing(1));
    let standing = judge_without(POOL, &found, &[1]).expect("it is given up");
    assert_eq!(standing.members[1].path, None);
    let other = judge_without(POOL, &found, &[0]).unwrap_err();
    assert_eq!(other.why, Why::Missing(1));
    let nothing = judge_without(POOL, &[None, None], &[0, 1]).unwrap_err();
    assert_eq!(nothing.why, Why::NoPool);
}
