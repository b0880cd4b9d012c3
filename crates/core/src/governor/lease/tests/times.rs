//! The time limits of a lease, to the millisecond.

use super::*;

/// The record in the block.
fn stands(block: &[u8; SLOT]) -> Record {
    Record::decode(block).expect("a record")
}

/// A lease that is held from a read that began at 50 ms, and its block.
fn held_from_50() -> (Lease, [u8; SLOT]) {
    let (mut lease, mut block) = (new(DISK, 1, BRIEF), [0; SLOT]);
    lease.want(at(0), Intent::OnlyFree);
    run(&mut lease, &mut block, 0, 50);
    assert_eq!(lease.next(at(50)), Act::Read);
    lease.was_read(at(300), Some(&block[..]));
    (lease, block)
}

/// The same, with a renewal whose read began at 400 ms and whose write is in progress.
fn renewing_from_400() -> (Lease, [u8; SLOT]) {
    let (mut lease, block) = held_from_50();
    assert_eq!(lease.next(at(400)), Act::Read);
    lease.was_read(at(600), Some(&block[..]));
    assert!(matches!(lease.next(at(600)), Act::Write(_)));
    (lease, block)
}

#[test]
fn a_holders_time_counts_from_the_start_of_the_read_that_found_its_claim() {
    let (lease, _) = held_from_50();
    assert_eq!(lease.standing(at(300)), Standing::Held(at(1_050)));
}

#[test]
fn a_renewal_with_a_failed_write_does_not_renew() {
    let (mut lease, _) = renewing_from_400();
    lease.was_written(at(700), false);
    assert_eq!(lease.standing(at(700)), Standing::Held(at(1_050)));
    assert_eq!(lease.standing(at(1_050)), Standing::Lost(None));
}

#[test]
fn a_renewal_written_after_expiry_does_not_renew() {
    let (mut lease, _) = renewing_from_400();
    lease.was_written(at(1_200), true);
    assert_eq!(lease.standing(at(1_200)), Standing::Lost(None));
    assert!(!lease.may_write(at(1_200)));
}

#[test]
fn a_holder_that_finds_anothers_record_has_lost() {
    let (mut lease, _) = held_from_50();
    let mut others = [0; SLOT];
    let _other = held(FULL, 2, &mut others);
    assert_eq!(lease.next(at(400)), Act::Read);
    lease.was_read(at(401), Some(&others[..]));
    assert_eq!(lease.standing(at(401)), Standing::Lost(Some(me(2))));
}

#[test]
fn a_host_that_is_silent_for_less_than_its_lease_and_an_eighth_keeps_its_disk() {
    let mut block = [0; SLOT];
    let _holder = held(FULL, 1, &mut block);
    let mut other = new(DISK, 2, FULL);
    other.want(at(2_000), Intent::TakeOver);
    run(&mut other, &mut block, 2_000, 3_120);
    assert_eq!(stands(&block).holder, me(1));
    run(&mut other, &mut block, 3_120, 3_400);
    assert_eq!(stands(&block).holder, me(2));
}

#[test]
fn a_taker_waits_by_the_longer_of_its_own_lease_and_the_holders() {
    let long = Terms {
        lease: Span::from_millis(3_000),
        ..FULL
    };
    let mut block = [0; SLOT];
    let mut holder = new(DISK, 1, long);
    holder.want(at(0), Intent::OnlyFree);
    run(&mut holder, &mut block, 0, 3_500);
    assert!(holder.may_write(at(3_500)));
    let mut other = new(DISK, 2, FULL);
    other.want(at(3_500), Intent::TakeOver);
    run(&mut other, &mut block, 3_500, 6_800);
    assert_eq!(stands(&block).holder, me(1));
    run(&mut other, &mut block, 6_800, 7_200);
    assert_eq!(stands(&block).holder, me(2));
}

#[test]
fn a_taker_counts_silence_from_the_end_of_its_own_read() {
    let mut block = [0; SLOT];
    let _holder = held(FULL, 1, &mut block);
    let mut other = new(DISK, 2, FULL);
    other.want(at(2_000), Intent::TakeOver);
    assert_eq!(other.next(at(2_000)), Act::Read);
    other.was_read(at(2_900), Some(&block[..]));
    // A lease and an eighth after the read began, and not after it ended.
    assert_eq!(other.next(at(3_200)), Act::Read);
    other.was_read(at(3_200), Some(&block[..]));
    assert!(matches!(other.next(at(3_200)), Act::At(_)));
    assert_eq!(other.next(at(4_025)), Act::Read);
    other.was_read(at(4_025), Some(&block[..]));
    assert!(matches!(other.next(at(4_025)), Act::Write(_)));
}

#[test]
fn a_claim_on_another_hosts_lease_always_waits_for_a_whole_lease() {
    let mut block = [0; SLOT];
    let _holder = held(BRIEF, 1, &mut block);
    let mut other = new(DISK, 2, BRIEF);
    other.want(at(2_000), Intent::TakeOver);
    let mut now = 2_000;
    while stands(&block).holder == me(1) {
        run(&mut other, &mut block, now, now + 1);
        now += 1;
    }
    run(&mut other, &mut block, now, now + 1_120);
    assert!(!other.may_write(at(now + 1_120)));
    run(&mut other, &mut block, now + 1_120, now + 1_130);
    assert!(other.may_write(at(now + 1_130)));
}

#[test]
fn a_claim_that_took_longer_than_a_lease_regains_nothing() {
    let mut block = [0; SLOT];
    let mut lease = ran_out(&mut block);
    assert!(lease.regain(at(6_000)));
    assert_eq!(lease.next(at(6_000)), Act::Read);
    lease.was_read(at(6_000), Some(&block[..]));
    assert!(matches!(lease.next(at(6_000)), Act::Write(_)));
    lease.was_written(at(7_001), true);
    assert_eq!(lease.standing(at(7_001)), Standing::Lost(None));
}

#[test]
fn no_record_makes_a_disk_unreachable_for_longer_than_ten_minutes() {
    let mut block = [0; SLOT];
    let _holder = held(FULL, 1, &mut block);
    let wild = Record {
        lease: Span::from_secs(1_000_000),
        ..stands(&block)
    };
    assert_eq!(stands(&wild.encode()).lease, Span::from_secs(600));
}
