//! Peers that publish, fall silent, publish garbage, or leave.

use super::*;
use crate::governor::slot::Flags;
use proptest::prelude::*;

const ME: ([u8; 16], u64, Option<u16>) = ([1; 16], 11, Some(1));

fn at(ms: u64) -> Time {
    Time::ZERO + Span::from_millis(ms)
}

fn says(host: u8, sequence: u64) -> Record {
    Record {
        host: [host; 16],
        incarnation: u64::from(host),
        sequence,
        tick_ms: 100,
        ..Record::default()
    }
}

fn hear(peers: &mut Peers, ms: u64, record: &Record) -> News {
    let bytes = record.encode();
    peers.heard(at(ms), &[(u16::from(record.host[0]), &bytes[..])], ME)
}

#[test]
fn a_silent_peer_is_live_for_three_ticks_suspect_for_a_lease_and_then_gone() {
    let mut peers = Peers::default();
    assert_eq!(hear(&mut peers, 0, &says(2, 1)).seen, [[2; 16]]);
    for ms in (100..=2_000).step_by(100) {
        assert_eq!(hear(&mut peers, ms, &says(2, 1)).lost, []);
        assert_eq!(peers.iter().next().unwrap().live(), ms <= 300, "{ms}");
    }
    assert_eq!(
        hear(&mut peers, 2_100, &says(2, 1)).lost,
        [([2; 16], false)]
    );
    assert!(peers.is_empty());
}

#[test]
fn a_dead_peer_is_alive_again_only_with_a_new_record() {
    let mut peers = Peers::default();
    hear(&mut peers, 0, &says(2, 1));
    assert_eq!(hear(&mut peers, 2_100, &says(2, 1)).lost.len(), 1);
    for ms in (2_200..20_000).step_by(100) {
        assert_eq!(hear(&mut peers, ms, &says(2, 1)), News::default(), "{ms}");
    }
    assert_eq!(hear(&mut peers, 20_000, &says(2, 2)).seen, [[2; 16]]);
    assert_eq!(peers.len(), 1);
}

#[test]
fn a_host_is_recognised_in_another_slot() {
    let mut peers = Peers::default();
    hear(&mut peers, 0, &says(2, 5));
    let (old, new) = (says(2, 5).encode(), says(2, 6).encode());
    for ms in (100..5_000).step_by(100) {
        let slots = [(2, &old[..]), (7, &new[..])];
        let news = peers.heard(at(ms), &slots, ME);
        let lost = usize::from(ms > 2_100);
        assert!(
            news.seen.is_empty() && news.lost.len() <= lost,
            "{ms}: {news:?}"
        );
        assert!(peers.len() <= 1, "{ms}");
    }
    assert!(
        peers.is_empty(),
        "neither its old record nor its new one keeps it alive for ever"
    );
    assert_eq!(hear(&mut peers, 5_000, &says(2, 7)).seen, [[2; 16]]);
}

#[test]
fn a_new_sequence_number_resets_the_age() {
    let mut peers = Peers::default();
    for tick in 0..100 {
        assert!(
            hear(&mut peers, tick * 1_900, &says(2, tick))
                .lost
                .is_empty()
        );
    }
}

#[test]
fn no_peer_ages_while_reads_fail() {
    let mut peers = Peers::default();
    hear(&mut peers, 0, &says(2, 1));
    peers.unread();
    hear(&mut peers, 60_000, &says(2, 1));
    assert_eq!(peers.iter().next().unwrap().age, Span::ZERO);
}

#[test]
fn a_slower_peer_has_a_longer_lease() {
    assert_eq!(lease(Span::from_millis(100)), Span::from_secs(2));
    assert_eq!(lease(Span::from_secs(1)), Span::from_secs(8));
}

#[test]
fn a_leaving_peer_is_removed_at_once() {
    let mut peers = Peers::default();
    hear(&mut peers, 0, &says(2, 1));
    let leaving = Record {
        flags: Flags::LEAVING,
        ..says(2, 2)
    };
    assert_eq!(hear(&mut peers, 100, &leaving).lost, [([2; 16], true)]);
    assert_eq!(hear(&mut peers, 200, &leaving), News::default());
}

#[test]
fn a_torn_slot_leaves_the_last_valid_copy() {
    let mut peers = Peers::default();
    hear(&mut peers, 0, &says(2, 1));
    let mut bytes = says(2, 2).encode();
    bytes[60] ^= 1;
    let news = peers.heard(at(100), &[(2, &bytes[..])], ME);
    assert_eq!(
        (
            news.unreadable,
            peers.iter().next().unwrap().record.sequence
        ),
        (1, 1)
    );
    assert_eq!(peers.iter().next().unwrap().age, Span::from_millis(100));
}

#[test]
fn a_peer_with_changing_torn_slots_is_alive() {
    let mut peers = Peers::default();
    hear(&mut peers, 0, &says(2, 1));
    let torn = |sequence| {
        let mut bytes = says(2, sequence).encode();
        bytes[60] ^= 1;
        bytes
    };
    for tick in 1..=40 {
        let bytes = torn(1 + tick);
        let news = peers.heard(at(tick * 100), &[(2, &bytes[..])], ME);
        assert_eq!(news.lost, [], "{tick}");
    }
    // Its record is old nevertheless.
    assert!(!peers.iter().next().unwrap().live());
    let bytes = torn(41);
    for tick in 41..=60 {
        let news = peers.heard(at(tick * 100), &[(2, &bytes[..])], ME);
        assert_eq!(news.lost, [], "{tick}");
    }
    let news = peers.heard(at(6_100), &[(2, &bytes[..])], ME);
    assert_eq!(news.lost, [([2; 16], false)]);
}

#[test]
fn a_peer_with_an_overwritten_slot_has_the_longest_lease() {
    for lost in [[0x5a; 4096], [0; 4096]] {
        let mut peers = Peers::default();
        let reads = |peers: &mut Peers, ms| peers.heard(at(ms), &[(2, &lost[..])], ME).lost;
        hear(&mut peers, 0, &says(2, 1));
        // It has meanwhile announced an interval of four seconds, which can no longer be read.
        assert_eq!(reads(&mut peers, 4_000), []);
        let slow = Record {
            tick_ms: 4_000,
            ..says(2, 3)
        };
        assert_eq!(hear(&mut peers, 8_000, &slow), News::default());
        assert!(peers.iter().next().unwrap().live());

        // With readable records nothing is guessed, and a silent host is finally dead.
        hear(&mut peers, 8_100, &says(2, 4));
        assert_eq!(reads(&mut peers, 40_000), []);
        assert_eq!(hear(&mut peers, 40_100, &says(2, 4)).lost.len(), 1);
        hear(&mut peers, 50_000, &says(2, 5));
        assert_eq!(reads(&mut peers, 82_000), []);
        assert_eq!(reads(&mut peers, 82_100), [([2; 16], false)]);
    }
}

#[test]
fn another_host_in_our_slot_is_reported_and_we_are_not_our_peer() {
    let mut peers = Peers::default();
    let mine = Record {
        incarnation: 11,
        ..says(1, 5)
    };
    assert_eq!(hear(&mut peers, 0, &mine), News::default());
    let bytes = says(9, 1).encode();
    assert!(peers.heard(at(100), &[(1, &bytes[..])], ME).displaced);
    let earlier = Record {
        incarnation: 10,
        ..says(1, 5)
    };
    let bytes = earlier.encode();
    peers.heard(at(200), &[(3, &bytes[..])], ME);
    assert_eq!(peers.len(), 1);
}

#[test]
fn the_younger_of_two_live_daemons_with_one_name_is_notified() {
    let start = |incarnation, sequence| Record {
        incarnation,
        ..says(1, sequence)
    };
    for slot in [1, 7] {
        let (mut older, mut younger) = (Peers::default(), Peers::default());
        let hear = |peers: &mut Peers, ms: u64, record: &Record| {
            let bytes = record.encode();
            let news = peers.heard(at(ms), &[(slot, &bytes[..])], ME);
            assert!(peers.is_empty() && !news.displaced && news.seen.is_empty());
            news.doubled
        };
        // The last record of an earlier start of ours stays there.
        for ms in (0..5_000).step_by(100) {
            assert!(!hear(&mut younger, ms, &start(10, 5)));
            assert!(!hear(&mut older, ms, &start(12, 5)));
        }
        assert!(
            !hear(&mut younger, 5_000, &start(9, 6)),
            "an even earlier start"
        );
        assert!(hear(&mut younger, 5_100, &start(9, 7)));
        assert!(!hear(&mut younger, 5_200, &start(9, 7)));
        assert!(
            !hear(&mut older, 5_100, &start(12, 6)),
            "the other must take another name"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn garbage_in_any_slot_adds_no_peer(
        slots in prop::collection::vec((2..40_u16, prop::collection::vec(any::<u8>(), 0..5_000)), 0..8),
    ) {
        let mut peers = Peers::default();
        let slots: Vec<(u16, &[u8])> = slots.iter().map(|(slot, bytes)| (*slot, &bytes[..])).collect();
        let news = peers.heard(at(0), &slots, ME);
        prop_assert!(peers.is_empty() && news.seen.is_empty());
    }
}
