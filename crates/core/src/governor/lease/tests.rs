//! Hosts that contend for one lease while I/Os are slow, fail, or land late.

mod times;

use super::*;
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;
use proptest::prelude::*;

const DISK: [u8; 16] = [7; 16];
const LEASE: Span = Span::from_millis(1_000);
const FULL: Terms = Terms {
    lease: LEASE,
    landing: Span::from_millis(100),
    contest: Contest::Late,
};
const BRIEF: Terms = Terms {
    contest: Contest::Brief(Span::from_millis(50)),
    ..FULL
};

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn me(host: u8) -> Holder {
    Holder {
        host: [host; 16],
        boot: [host; 16],
        incarnation: u64::from(host),
        lock: [host; 16],
    }
}

fn new(disk: [u8; 16], host: u8, terms: Terms) -> Lease {
    Lease::new(disk, me(host), Name::new("host"), terms)
}

/// A block without delays. Runs one host until `until`, and returns the times of its I/Os.
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
    let mut lease = new(DISK, host, terms);
    lease.want(at(0), Intent::OnlyFree);
    run(&mut lease, block, 0, 2_000);
    assert!(lease.may_write(at(2_000)));
    lease
}

#[test]
fn a_free_disk_is_claimed_after_a_brief_wait_or_a_whole_lease() {
    for (terms, wait) in [(BRIEF, 50), (FULL, 1_125)] {
        let (mut lease, mut block) = (new(DISK, 1, terms), [0; SLOT]);
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
    let mut other = new(DISK, 2, FULL);
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
fn a_silent_hosts_disk_is_taken_over_only_on_request_and_after_its_lease() {
    let mut block = [0; SLOT];
    let holder = held(FULL, 1, &mut block);
    let mut other = new(DISK, 2, FULL);
    other.want(at(2_000), Intent::OnlyFree);
    run(&mut other, &mut block, 2_000, 4_000);
    assert_eq!(
        other.standing(at(4_000)),
        Standing::Refused {
            by: me(1),
            live: false
        }
    );
    let mut other = new(DISK, 2, FULL);
    other.want(at(2_000), Intent::TakeOver);
    for now in 2_000..5_000 {
        run(&mut other, &mut block, now, now + 1);
        assert!(!(holder.may_write(at(now)) && other.may_write(at(now))));
    }
    assert!(other.may_write(at(5_000)));
}

#[test]
fn a_host_back_from_a_pause_may_not_write_and_reports_why() {
    let mut block = [0; SLOT];
    let mut holder = held(FULL, 1, &mut block);
    let mut other = new(DISK, 2, FULL);
    other.want(at(2_000), Intent::TakeOver);
    run(&mut other, &mut block, 2_000, 6_000);
    assert!(!holder.may_write(at(6_000)));
    assert_eq!(holder.next(at(6_000)), Act::Rest);
    assert_eq!(holder.standing(at(6_000)), Standing::Lost(None));
}

#[test]
fn a_released_disk_is_free_and_an_earlier_start_is_recognised() {
    let mut block = [0; SLOT];
    let mut holder = held(BRIEF, 1, &mut block);
    let mut again = Lease::new(
        DISK,
        Holder {
            incarnation: 99,
            ..me(1)
        },
        Name::new("host"),
        BRIEF,
    );
    again.want(at(2_000), Intent::OnlyFree);
    let mut copy = block;
    run(&mut again, &mut copy, 2_000, 2_060);
    assert!(again.may_write(at(2_060)));
    holder.release();
    assert!(!holder.may_write(at(2_000)));
    run(&mut holder, &mut block, 2_000, 2_001);
    let mut other = new(DISK, 2, BRIEF);
    other.want(at(2_001), Intent::OnlyFree);
    run(&mut other, &mut block, 2_001, 2_060);
    assert!(other.may_write(at(2_060)));
}

#[test]
fn a_claim_long_after_its_read_waits_for_a_whole_lease() {
    let (mut lease, block) = (new(DISK, 1, BRIEF), [0; SLOT]);
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
    let mut lease = new(DISK, 1, BRIEF);
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
fn a_renewal_completed_after_expiry_does_not_renew() {
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
fn a_foreign_lease_block_is_left_to_the_administrator() {
    let (mut lease, mut block) = (new(DISK, 1, FULL), [0; SLOT]);
    let _ = held(FULL, 1, &mut block);
    let mut other = new([8; 16], 1, FULL);
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

#[test]
fn a_claim_under_an_enforced_lock_does_not_wait() {
    let terms = Terms {
        contest: Contest::Nobody,
        ..FULL
    };
    let mut block = [0; SLOT];
    for (start, boot) in [(1, 1), (2, 1), (3, 2)] {
        let holder = Holder {
            boot: [boot; 16],
            incarnation: start,
            ..me(1)
        };
        let mut lease = Lease::new(DISK, holder, Name::new("host"), terms);
        lease.want(at(start), Intent::OnlyFree);
        run(&mut lease, &mut block, start, start + 1);
        assert!(lease.may_write(at(start)));
    }
    let mut other = new(DISK, 2, terms);
    other.want(at(10), Intent::TakeOver);
    run(&mut other, &mut block, 10, 1_130);
    assert!(!other.may_write(at(1_130)));
}

#[test]
fn our_record_of_an_earlier_boot_may_belong_to_a_live_copy() {
    let mut block = [0; SLOT];
    let _gone = held(BRIEF, 1, &mut block);
    let mut again = Lease::new(
        DISK,
        Holder {
            boot: [9; 16],
            incarnation: 99,
            ..me(1)
        },
        Name::new("host"),
        BRIEF,
    );
    again.want(at(2_000), Intent::OnlyFree);
    run(&mut again, &mut block, 2_000, 3_100);
    assert!(matches!(
        again.standing(at(3_100)),
        Standing::Trying(Some(_))
    ));
    run(&mut again, &mut block, 3_100, 5_000);
    assert!(again.may_write(at(5_000)));
}

/// A second daemon with the same host, as from a copied root. It wants the disk that the first one holds and renews.
fn copy_of(changed: fn(&mut Holder)) -> Lease {
    let mut holder = Holder {
        incarnation: 99,
        ..me(1)
    };
    changed(&mut holder);
    Lease::new(DISK, holder, Name::new("host"), BRIEF)
}

#[test]
fn a_copied_root_on_the_same_boot_is_refused_while_the_other_copy_renews() {
    let copies: [fn(&mut Holder); 3] = [
        |copy| copy.lock = [9; 16],
        // Containers that share a boot, and have no lock or no known one.
        |copy| copy.lock = [0; 16],
        |copy| copy.boot = [0; 16],
    ];
    for changed in copies {
        let mut block = [0; SLOT];
        let mut holder = held(BRIEF, 1, &mut block);
        let mut copy = copy_of(changed);
        copy.want(at(2_000), Intent::TakeOver);
        for now in 2_000..4_000 {
            run(&mut holder, &mut block, now, now + 1);
            run(&mut copy, &mut block, now, now + 1);
            assert!(!copy.may_write(at(now)), "it may write at {now} ms");
        }
        assert!(holder.may_write(at(4_000)));
        assert_eq!(
            copy.standing(at(4_000)),
            Standing::Refused {
                by: me(1),
                live: true
            }
        );
    }
}

#[test]
fn an_unknown_lock_or_boot_proves_nothing() {
    for unknown in [
        |of: &mut Holder| of.lock = [0; 16],
        |of: &mut Holder| of.boot = [0; 16],
    ] {
        let (mut one, mut two) = (me(1), me(1));
        assert!(two.replaces(&one));
        unknown(&mut one);
        unknown(&mut two);
        assert!(!two.replaces(&one));
    }
}

#[test]
fn a_copied_root_takes_a_silent_disk_only_after_the_whole_wait() {
    let mut block = [0; SLOT];
    let holder = held(BRIEF, 1, &mut block);
    let mut copy = copy_of(|copy| copy.lock = [9; 16]);
    copy.want(at(2_000), Intent::OnlyFree);
    for now in 2_000..5_000 {
        run(&mut copy, &mut block, now, now + 1);
        assert!(!(holder.may_write(at(now)) && copy.may_write(at(now))));
    }
    assert!(copy.may_write(at(5_000)));
}

#[test]
fn a_claim_is_confirmed_only_by_its_exact_record() {
    let (mut lease, empty) = (new(DISK, 1, FULL), [0; SLOT]);
    lease.want(at(0), Intent::OnlyFree);
    assert_eq!(lease.next(at(0)), Act::Read);
    lease.was_read(at(0), Some(&empty[..]));
    let Act::Write(mut earlier) = lease.next(at(0)) else {
        panic!("it claims what is free")
    };
    lease.was_written(at(1), false);
    assert_eq!(lease.next(at(60)), Act::Read);
    lease.was_read(at(60), Some(&empty[..]));
    assert!(matches!(lease.next(at(60)), Act::Write(_)));
    lease.was_written(at(61), true);
    // The write reported as failed has landed on it since, or on another's claim in between.
    assert_eq!(lease.next(at(1_190)), Act::Read);
    lease.was_read(at(1_190), Some(&earlier[..]));
    assert!(!lease.may_write(at(1_190)));
    run(&mut lease, &mut earlier, 1_190, 3_000);
    assert!(lease.may_write(at(3_000)));
}

/// A holder that was paused until its lease expired.
fn ran_out(block: &mut [u8; SLOT]) -> Lease {
    let mut lease = held(BRIEF, 1, block);
    assert_eq!(lease.next(at(6_000)), Act::Rest);
    assert_eq!(lease.standing(at(6_000)), Standing::Lost(None));
    lease
}

#[test]
fn an_expired_lease_is_regained_after_a_full_wait_if_unclaimed() {
    let mut block = [0; SLOT];
    let mut lease = ran_out(&mut block);
    assert!(lease.regain(at(6_000)));
    run(&mut lease, &mut block, 6_000, 7_125);
    assert!(!lease.may_write(at(7_125)));
    run(&mut lease, &mut block, 7_125, 7_130);
    assert!(lease.may_write(at(7_130)));
}

#[test]
fn an_expired_lease_is_lost_if_claimed_or_emptied() {
    for emptied in [false, true] {
        let mut block = [0; SLOT];
        let mut lease = ran_out(&mut block);
        if emptied {
            block = [0; SLOT];
        } else {
            // Another host claimed and released the disk; its record is still there.
            let mut other = new(DISK, 2, FULL);
            other.want(at(2_000), Intent::TakeOver);
            run(&mut other, &mut block, 2_000, 5_000);
            other.release();
            run(&mut other, &mut block, 5_000, 5_001);
        }
        assert!(lease.regain(at(6_000)));
        run(&mut lease, &mut block, 6_000, 6_001);
        let by = (!emptied).then_some(me(2));
        assert_eq!(lease.standing(at(6_001)), Standing::Lost(by));
        assert!(!lease.regain(at(6_001)));
    }
}

#[test]
fn an_expired_lease_with_a_write_of_unknown_result_is_lost() {
    let mut block = [0; SLOT];
    let mut lease = held(FULL, 1, &mut block);
    let mut now = 2_000;
    loop {
        match lease.next(at(now)) {
            Act::Read => lease.was_read(at(now), Some(&block[..])),
            Act::Write(_) => break,
            _ => now += 1,
        }
    }
    lease.was_written(at(9_000), true);
    assert_eq!(lease.standing(at(9_000)), Standing::Lost(None));
    assert!(!lease.regain(at(9_000)));
}

#[test]
fn a_failed_claim_while_regaining_loses_the_lease() {
    let mut block = [0; SLOT];
    let mut lease = ran_out(&mut block);
    assert!(lease.regain(at(6_000)));
    assert_eq!(lease.next(at(6_000)), Act::Read);
    lease.was_read(at(6_000), Some(&block[..]));
    assert!(matches!(lease.next(at(6_000)), Act::Write(_)));
    lease.was_written(at(6_001), false);
    assert_eq!(lease.standing(at(6_001)), Standing::Lost(None));
    assert!(!lease.regain(at(6_001)));
}

#[test]
fn an_older_record_of_ours_does_not_prove_the_lease_was_unclaimed() {
    let mut block = [0; SLOT];
    let mut lease = held(BRIEF, 1, &mut block);
    let older = block;
    run(&mut lease, &mut block, 2_000, 2_500);
    assert_ne!(older, block);
    assert_eq!(lease.next(at(6_000)), Act::Rest);
    assert!(lease.regain(at(6_000)));
    block = older;
    run(&mut lease, &mut block, 6_000, 6_001);
    assert_eq!(lease.standing(at(6_001)), Standing::Lost(Some(me(1))));
}

#[test]
fn a_hosts_name_is_shown_without_terminal_control_characters() {
    let name = |text| format!("{:?}", Name::new(text));
    assert_eq!(name("pve1"), "pve1");
    assert_eq!(name("a\x1b[2Jb"), "a?[2Jb");
    assert_eq!(name(&"x".repeat(100)), "x".repeat(64));
}

/// The random faults of one step of one host.
#[derive(Clone, Copy, Debug)]
struct Luck {
    /// The pause until this host runs again.
    pause: u64,
    /// The delay until an I/O takes effect, and then until its completion.
    effect: u64,
    completion: u64,
    /// Whether it is reported as failed, possibly before it takes effect, or never takes effect.
    fate: u8,
}

/// A step without faults.
const WELL: Luck = Luck {
    pause: 0,
    effect: 1,
    completion: 1,
    fate: 4,
};
/// The number of random steps; about three of four runs use them.
const ADVERSITY: usize = 2_500;

fn luck(slow: u64) -> impl Strategy<Value = Luck> {
    let pause = prop_oneof![8 => 0..20_u64, 2 => 0..300_u64, 1 => 0..slow];
    let delay = || prop_oneof![8 => 0..5_u64, 2 => 0..100_u64, 1 => 0..slow];
    (pause, delay(), delay(), 0..20_u8).prop_map(|(pause, effect, completion, fate)| Luck {
        pause,
        effect,
        completion,
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

/// The result of a run.
#[derive(Debug, Default)]
struct Played {
    /// How often two hosts could write at once.
    both: u32,
    /// How often one could.
    any: u32,
    /// How often a host regained its lease although another had held it in between.
    stale: u32,
}

/// Runs hosts against one block.
fn play(terms: Terms, hosts: usize, lucks: &[Luck], stragglers: bool) -> Played {
    let clock = |host: usize, now: u64| at(now + 1_000_000 * (host as u64 + 1));
    let mut leases: Vec<Lease> = (0..hosts)
        .map(|host| new(DISK, u8::try_from(host).unwrap() + 1, terms))
        .collect();
    let mut block = [0; SLOT];
    let mut reads: Vec<[u8; SLOT]> = Vec::new();
    let mut due: Vec<(u64, u64, Due)> = (0..hosts)
        .map(|host| (0, host as u64, Due::Runs(host)))
        .collect();
    let (mut order, mut played) = (100, Played::default());
    // The hosts that could write, in order. For each host, how many there were at its claim, and whether it relies on
    // that.
    let (mut holders, mut claims, mut relies) = (Vec::new(), [0; 8], [false; 8]);
    // In the end no faults occur: a repeating sequence of faults could affect every write.
    let adversity = lucks.iter().cycle().copied().take(ADVERSITY);
    let mut lucks = adversity.chain(core::iter::repeat(WELL));
    for _ in 0..5_000 {
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
                let claimed = matches!(leases[host].state, State::Settle { .. });
                leases[host].was_read(clock(host, now), bytes.as_ref().map(|bytes| &bytes[..]));
                if claimed && matches!(leases[host].state, State::Held { .. }) {
                    if !relies[host] {
                        claims[host] = holders.len();
                    }
                    // A late completion may find the lease expired: then no host could write.
                    if leases[host].may_write(clock(host, now)) {
                        let between = &holders[claims[host]..];
                        played.stale += u32::from(between.iter().any(|&other| other != host));
                        holders.push(host);
                    }
                }
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
                if luck.fate.is_multiple_of(2) && lease.regain(clock(host, now)) {
                    relies[host] = true;
                } else if !lease.may_write(clock(host, now)) && luck.fate < 15 {
                    relies[host] &= !matches!(lease.state, State::Rest | State::End(_));
                    lease.want(clock(host, now), Intent::TakeOver);
                }
                match lease.next(clock(host, now)) {
                    Act::Read => {
                        reads.push(block);
                        let place = reads.len() - 1;
                        later(&mut due, luck.effect, Due::Looks(host, place));
                        let read = (luck.fate > 2).then_some(place);
                        later(
                            &mut due,
                            luck.effect + luck.completion,
                            Due::ReadEnds(host, read),
                        );
                    }
                    Act::Write(bytes) => {
                        let failed = luck.fate < 3;
                        if !failed {
                            later(&mut due, luck.effect, Due::Lands(Box::new(bytes)));
                            later(
                                &mut due,
                                luck.effect + luck.completion,
                                Due::WriteEnds(host, true),
                            );
                        } else {
                            // Reported as failed; it lands nevertheless, later, or never.
                            if stragglers && luck.fate > 0 {
                                later(&mut due, luck.effect * 3, Due::Lands(Box::new(bytes)));
                            }
                            later(&mut due, luck.completion, Due::WriteEnds(host, false));
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
        played.both += u32::from(writers > 1);
        played.any += u32::from(writers == 1);
    }
    played
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn two_hosts_never_write_at_once_with_late_or_failed_ios(
        lucks in prop::collection::vec(luck(6_000), 50..400), hosts in 2..4_usize,
    ) {
        let played = play(FULL, hosts, &lucks, true);
        prop_assert_eq!((played.both, played.stale), (0, 0));
    }

    #[test]
    fn an_uncontested_host_regains_its_lease_after_pauses(
        lucks in prop::collection::vec(luck(30), 50..100), pause in 1_000..3_000_u64,
    ) {
        let mut lucks: Vec<Luck> = lucks.iter().map(|&luck| Luck { fate: luck.fate % 15, ..luck }).collect();
        lucks[0].pause = pause;
        let played = play(BRIEF, 1, &lucks, false);
        prop_assert!(played.any > 0);
        prop_assert_eq!((played.both, played.stale), (0, 0));
    }

    #[test]
    fn a_brief_wait_is_safe_if_late_writes_never_land(
        lucks in prop::collection::vec(luck(30), 50..400), hosts in 2..4_usize,
    ) {
        let played = play(BRIEF, hosts, &lucks, false);
        prop_assert_eq!((played.both, played.stale), (0, 0));
        prop_assert!(played.any > 0);
    }

    #[test]
    fn with_completing_ios_one_host_gets_the_lease(
        lucks in prop::collection::vec(luck(30), 50..400), hosts in 2..4_usize,
    ) {
        prop_assert!(play(FULL, hosts, &lucks, true).any > 0);
    }

    #[test]
    fn a_record_round_trips_and_other_bytes_are_rejected(
        sequence: u64, incarnation: u64, free: bool, flip in 0..SLOT * 8, lease in 0..600_000_u64,
    ) {
        let lease = Span::from_millis(lease);
        let holder = Holder { host: [3; 16], boot: [4; 16], incarnation, lock: [5; 16] };
        let record = Record { disk: DISK, holder, name: Name::new("a host"), sequence, lease, free };
        let mut bytes = record.encode();
        prop_assert_eq!(Record::decode(&bytes), Ok(record));
        bytes[flip / 8] ^= 1 << (flip % 8);
        prop_assert!(Record::decode(&bytes).is_err());
    }
}
