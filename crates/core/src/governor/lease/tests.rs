//! Hosts that contend for one block, with I/Os that take any time, fail, and land late all the same.

use super::*;
use alloc::boxed::Box;
use alloc::vec::Vec;
use proptest::prelude::*;

const DISK: [u8; 16] = [7; 16];
const LEASE: Span = Span::from_millis(1_000);
const FULL: Terms = Terms {
    lease: LEASE,
    landing: Span::from_millis(100),
    brief: None,
};
const BRIEF: Terms = Terms {
    brief: Some(Span::from_millis(50)),
    ..FULL
};

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn me(host: u8) -> Holder {
    Holder {
        host: [host; 16],
        incarnation: u64::from(host),
    }
}

/// A block without delays: runs one host until `until`, and returns the moments of its I/Os.
fn run(lease: &mut Lease, block: &mut [u8; SLOT], from: u64, until: u64) {
    let mut now = from;
    while now < until {
        match lease.next(at(now)) {
            Act::Read => lease.was_read(at(now), Some(&block[..])),
            Act::Write(bytes) => {
                *block = bytes;
                lease.was_written(at(now), true);
            }
            Act::At(_) | Act::Rest => now += 1,
        }
    }
}

fn held(terms: Terms, host: u8, block: &mut [u8; SLOT]) -> Lease {
    let mut lease = Lease::new(DISK, me(host), terms);
    lease.want(at(0), Intent::OnlyFree);
    run(&mut lease, block, 0, 2_000);
    assert!(lease.may_write(at(2_000)));
    lease
}

#[test]
fn a_free_disk_is_ours_after_a_brief_wait_where_that_is_safe_and_after_a_lease_elsewhere() {
    for (terms, wait) in [(BRIEF, 50), (FULL, 1_125)] {
        let (mut lease, mut block) = (Lease::new(DISK, me(1), terms), [0; SLOT]);
        lease.want(at(0), Intent::OnlyFree);
        run(&mut lease, &mut block, 0, wait);
        assert!(!lease.may_write(at(wait)));
        run(&mut lease, &mut block, wait, wait + 2);
        assert!(lease.may_write(at(wait + 2)));
    }
}

#[test]
fn a_disk_that_is_open_on_a_live_host_is_refused() {
    let mut block = [0; SLOT];
    let mut holder = held(FULL, 1, &mut block);
    let mut other = Lease::new(DISK, me(2), FULL);
    other.want(at(2_000), Intent::TakeOver);
    for now in 2_000..3_000 {
        run(&mut holder, &mut block, now, now + 1);
        run(&mut other, &mut block, now, now + 1);
    }
    assert_eq!(
        other.standing(at(3_000)),
        Standing::Refused {
            by: me(1),
            live: true
        }
    );
    assert!(holder.may_write(at(3_000)));
}

#[test]
fn a_silent_hosts_disk_is_taken_over_only_when_asked_and_never_before_it_has_stopped() {
    let mut block = [0; SLOT];
    let holder = held(FULL, 1, &mut block);
    let mut other = Lease::new(DISK, me(2), FULL);
    other.want(at(2_000), Intent::OnlyFree);
    run(&mut other, &mut block, 2_000, 4_000);
    assert_eq!(
        other.standing(at(4_000)),
        Standing::Refused {
            by: me(1),
            live: false
        }
    );
    let mut other = Lease::new(DISK, me(2), FULL);
    other.want(at(2_000), Intent::TakeOver);
    for now in 2_000..5_000 {
        run(&mut other, &mut block, now, now + 1);
        assert!(!(holder.may_write(at(now)) && other.may_write(at(now))));
    }
    assert!(other.may_write(at(5_000)));
}

#[test]
fn a_host_back_from_a_pause_may_not_write_and_learns_why() {
    let mut block = [0; SLOT];
    let mut holder = held(FULL, 1, &mut block);
    let mut other = Lease::new(DISK, me(2), FULL);
    other.want(at(2_000), Intent::TakeOver);
    run(&mut other, &mut block, 2_000, 6_000);
    assert!(!holder.may_write(at(6_000)));
    assert_eq!(holder.next(at(6_000)), Act::Rest);
    assert_eq!(holder.standing(at(6_000)), Standing::Lost(None));
}

#[test]
fn what_was_given_back_is_free_and_our_own_earlier_start_is_no_stranger() {
    let mut block = [0; SLOT];
    let mut holder = held(BRIEF, 1, &mut block);
    let mut again = Lease::new(
        DISK,
        Holder {
            incarnation: 99,
            ..me(1)
        },
        BRIEF,
    );
    again.want(at(2_000), Intent::OnlyFree);
    let mut copy = block;
    run(&mut again, &mut copy, 2_000, 2_060);
    assert!(again.may_write(at(2_060)));
    holder.release();
    assert!(!holder.may_write(at(2_000)));
    run(&mut holder, &mut block, 2_000, 2_001);
    let mut other = Lease::new(DISK, me(2), BRIEF);
    other.want(at(2_001), Intent::OnlyFree);
    run(&mut other, &mut block, 2_001, 2_060);
    assert!(other.may_write(at(2_060)));
}

#[test]
fn a_claim_that_came_long_after_its_look_waits_for_a_whole_lease() {
    let (mut lease, block) = (Lease::new(DISK, me(1), BRIEF), [0; SLOT]);
    lease.want(at(0), Intent::OnlyFree);
    assert_eq!(lease.next(at(0)), Act::Read);
    lease.was_read(at(1), Some(&block[..]));
    assert!(matches!(lease.next(at(60)), Act::Write(_)));
    lease.was_written(at(61), true);
    assert_eq!(lease.next(at(61)), Act::At(at(61 + 1_125)));
}

#[test]
fn a_renewal_counts_from_the_start_of_its_read_and_not_from_the_end_of_its_write() {
    let mut block = [0; SLOT];
    let mut lease = Lease::new(DISK, me(1), BRIEF);
    lease.want(at(0), Intent::OnlyFree);
    run(&mut lease, &mut block, 0, 51);
    assert_eq!(lease.standing(at(51)), Standing::Held(at(1_050)));
    assert_eq!(lease.next(at(400)), Act::Read);
    lease.was_read(at(600), Some(&block[..]));
    assert!(matches!(lease.next(at(700)), Act::Write(_)));
    assert_eq!(lease.standing(at(700)), Standing::Held(at(1_050)));
    lease.was_written(at(900), true);
    assert_eq!(lease.standing(at(900)), Standing::Held(at(1_400)));
    assert!(lease.may_write(at(1_299)) && !lease.may_write(at(1_300)));
}

#[test]
fn a_renewal_that_ends_after_the_lease_has_ended_renews_nothing() {
    let mut block = [0; SLOT];
    let mut lease = held(FULL, 1, &mut block);
    let Standing::Held(until) = lease.standing(at(2_000)) else {
        panic!("held")
    };
    let mut renewal = (2_000..until.as_nanos() / 1_000_000).map(|ms| lease.next(at(ms)));
    assert!(renewal.any(|act| act == Act::Read));
    lease.was_read(until, Some(&block[..]));
    assert_eq!(lease.standing(until), Standing::Lost(None));
}

#[test]
fn a_block_that_is_not_this_disks_lease_is_left_for_a_person() {
    let (mut lease, mut block) = (Lease::new(DISK, me(1), FULL), [0; SLOT]);
    let _ = held(FULL, 1, &mut block);
    let mut other = Lease::new([8; 16], me(1), FULL);
    other.want(at(0), Intent::TakeOver);
    run(&mut other, &mut block, 0, 10);
    assert_eq!(
        other.standing(at(10)),
        Standing::Unreadable(Unreadable::Foreign)
    );
    block[100] ^= 1;
    lease.want(at(0), Intent::TakeOver);
    run(&mut lease, &mut block, 0, 10_000);
    assert_eq!(lease.standing(at(10_000)), Standing::Trying(None));
}

/// One host's luck with one step.
#[derive(Clone, Copy, Debug)]
struct Luck {
    /// Until this host runs again.
    pause: u64,
    /// Until an I/O takes effect, and until its end is told after that.
    effect: u64,
    told: u64,
    /// It is told as failed, perhaps before it takes effect; or it never does.
    fate: u8,
}

fn luck(slow: u64) -> impl Strategy<Value = Luck> {
    let pause = prop_oneof![8 => 0..20_u64, 2 => 0..300_u64, 1 => 0..slow];
    let delay = || prop_oneof![8 => 0..5_u64, 2 => 0..100_u64, 1 => 0..slow];
    (pause, delay(), delay(), 0..20_u8).prop_map(|(pause, effect, told, fate)| Luck {
        pause,
        effect,
        told,
        fate,
    })
}

#[derive(Clone, Debug)]
enum Due {
    Runs(usize),
    Lands(Box<[u8; SLOT]>),
    ReadEnds(usize, Option<usize>),
    Looks(usize, usize),
    WriteEnds(usize, bool),
}

/// Plays hosts against one block; returns how often two might write at once, and how often anybody might.
fn play(terms: Terms, hosts: usize, lucks: &[Luck], stragglers: bool) -> (u32, u32) {
    let clock = |host: usize, now: u64| at(now + 1_000_000 * (host as u64 + 1));
    let mut leases: Vec<Lease> = (0..hosts)
        .map(|host| Lease::new(DISK, me(u8::try_from(host).unwrap() + 1), terms))
        .collect();
    let mut block = [0; SLOT];
    let mut reads: Vec<[u8; SLOT]> = Vec::new();
    let mut due: Vec<(u64, u64, Due)> = (0..hosts)
        .map(|host| (0, host as u64, Due::Runs(host)))
        .collect();
    let (mut order, mut both, mut any) = (100, 0, 0);
    let mut lucks = lucks.iter().cycle().copied();
    for _ in 0..4_000 {
        let first = (0..due.len())
            .min_by_key(|&at| (due[at].0, due[at].1))
            .unwrap();
        let (now, _, what) = due.swap_remove(first);
        let mut later = |due: &mut Vec<_>, ms: u64, what: Due| {
            order += 1;
            due.push((now + ms, order, what));
        };
        match what {
            Due::Lands(bytes) => block = *bytes,
            Due::Looks(host, place) => {
                reads[place] = block;
                let _ = host;
            }
            Due::ReadEnds(host, place) => {
                let bytes = place.map(|place| reads[place]);
                leases[host].was_read(clock(host, now), bytes.as_ref().map(|bytes| &bytes[..]));
                let luck = lucks.next().unwrap();
                later(&mut due, luck.pause, Due::Runs(host));
            }
            Due::WriteEnds(host, ok) => {
                leases[host].was_written(clock(host, now), ok);
                let luck = lucks.next().unwrap();
                later(&mut due, luck.pause, Due::Runs(host));
            }
            Due::Runs(host) => {
                let luck = lucks.next().unwrap();
                let lease = &mut leases[host];
                if luck.fate == 19 {
                    lease.release();
                }
                if !lease.may_write(clock(host, now)) && luck.fate < 15 {
                    lease.want(clock(host, now), Intent::TakeOver);
                }
                match lease.next(clock(host, now)) {
                    Act::Read => {
                        reads.push(block);
                        let place = reads.len() - 1;
                        later(&mut due, luck.effect, Due::Looks(host, place));
                        let told = (luck.fate > 2).then_some(place);
                        later(&mut due, luck.effect + luck.told, Due::ReadEnds(host, told));
                    }
                    Act::Write(bytes) => {
                        let failed = luck.fate < 3;
                        if !failed {
                            later(&mut due, luck.effect, Due::Lands(Box::new(bytes)));
                            later(
                                &mut due,
                                luck.effect + luck.told,
                                Due::WriteEnds(host, true),
                            );
                        } else {
                            // Told as failed; it lands all the same, later, or never.
                            if stragglers && luck.fate > 0 {
                                later(&mut due, luck.effect * 3, Due::Lands(Box::new(bytes)));
                            }
                            later(&mut due, luck.told, Due::WriteEnds(host, false));
                        }
                    }
                    Act::At(then) => {
                        let wait = then.since(clock(host, now)).as_nanos() / 1_000_000;
                        later(&mut due, wait.max(1) + luck.pause, Due::Runs(host));
                    }
                    Act::Rest => later(&mut due, 20 + luck.pause, Due::Runs(host)),
                }
            }
        }
        let may = |host: &usize| leases[*host].may_write(clock(*host, now));
        let writers = (0..hosts).filter(may).count();
        both += u32::from(writers > 1);
        any += u32::from(writers == 1);
    }
    (both, any)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn never_may_two_hosts_write_however_late_or_failed_the_ios(
        lucks in prop::collection::vec(luck(6_000), 50..400), hosts in 2..4_usize,
    ) {
        let (both, _) = play(FULL, hosts, &lucks, true);
        prop_assert_eq!(both, 0);
    }

    #[test]
    fn where_late_writes_never_land_a_brief_wait_is_as_safe(
        lucks in prop::collection::vec(luck(30), 50..400), hosts in 2..4_usize,
    ) {
        let (both, any) = play(BRIEF, hosts, &lucks, false);
        prop_assert_eq!(both, 0);
        prop_assert!(any > 0);
    }

    #[test]
    fn with_ios_that_come_back_somebody_gets_to_write(
        lucks in prop::collection::vec(luck(30), 50..400), hosts in 2..4_usize,
    ) {
        let (_, any) = play(FULL, hosts, &lucks, true);
        prop_assert!(any > 0);
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_nothing_else_is_one(
        sequence: u64, incarnation: u64, free: bool, flip in 0..SLOT * 8, lease in 0..600_000_u64,
    ) {
        let lease = Span::from_millis(lease);
        let record = Record { disk: DISK, host: [3; 16], incarnation, sequence, lease, free };
        let mut bytes = record.encode();
        prop_assert_eq!(Record::decode(&bytes), Ok(record));
        bytes[flip / 8] ^= 1 << (flip % 8);
        prop_assert!(Record::decode(&bytes).is_err());
    }
}
