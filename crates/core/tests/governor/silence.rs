//! The rules of a host that cannot read the other hosts' slots: a test for each.

use crate::FIXED;
use crate::bench::{Bench, load, peer, usage};
use tidegate_core::governor::peers::lease;
use tidegate_core::governor::slot::Record;
use tidegate_core::governor::{GovernorEvent, Threshold};
use tidegate_core::iocontrol::Usage;
use tidegate_core::units::Span;

#[test]
fn ios_that_hung_with_our_reads_do_not_count_as_current_latency() {
    let mut bench = Bench::new(FIXED, vec![]);
    bench.pass_ticks(2, load(30.0, 40.0, 20.0));
    let fine = load(25.0, 40.0, 20.0);
    bench.pass_ticks(10, fine);
    let before = bench.cluster();
    assert!(bench.engaged() && before > 30.0, "{before}");
    bench.deaf = true;
    bench.pass_ticks(2, fine);
    // Everything completes at once, two seconds old.
    bench.report(&Usage {
        ios: 200,
        latency_ns: 200 * 2_000_000_000,
        ..usage(fine)
    });
    bench.deaf = false;
    bench.pass_ticks(3, fine);
    let after = bench.cluster();
    assert!((after / before - 1.0).abs() < 0.01, "{before} {after}");
}

#[test]
fn a_host_working_alone_ignores_old_records() {
    // There is no I/O from which we could learn a threshold of our own.
    let found = |host| Record {
        threshold: 3e6,
        in_flight: 0.0,
        rate: 0.0,
        ios: 0.0,
        ..peer(host, 2.0)
    };
    let mut bench = Bench::new(Threshold::Auto, vec![found(1), found(2)]);
    let idle = load(0.0, 0.0, 0.0);
    bench.pass(300, idle);
    assert_eq!(bench.known().threshold, Span::from_millis(3));
    bench.deaf = true;
    bench.pass(60_000, idle);
    let alone = GovernorEvent::Alone { on: true };
    assert!(bench.events.contains(&alone), "{:?}", bench.events);
    assert_eq!(bench.known().threshold, Span::from_millis(10));
}

#[test]
fn a_host_that_reconnects_adopts_the_others_window() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 25.0)]);
    let fine = load(25.0, 20.0, 20.0);
    bench.pass(2_000, fine);
    bench.deaf = true;
    bench.pass(6_000, fine);
    let alone = GovernorEvent::Alone { on: true };
    assert!(bench.events.contains(&alone), "{:?}", bench.events);
    bench.peers[0].cluster = 80.0;
    bench.deaf = false;
    bench.pass_ticks(1, fine);
    assert!((bench.cluster() - 80.0).abs() < 1.0, "{}", bench.cluster());
}

#[test]
fn a_silent_host_is_dead_when_its_lease_ends_even_when_calm() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 25.0)]);
    let fine = load(25.0, 20.0, 20.0);
    bench.pass(20_000, fine);
    assert_eq!(bench.pauses(1), [1_000], "the host is calm");
    bench.silent = true;
    let last_heard = *bench.ticks.last().expect("it has ticked");
    let lost = |event: &GovernorEvent| matches!(event, GovernorEvent::HostLost { .. });
    while !bench.events.iter().any(lost) {
        bench.report(&usage(fine));
    }
    // Its lease is two seconds; a tick is at most fifty milliseconds late here.
    let given_up = *bench.ticks.last().expect("it has ticked");
    assert!(given_up - last_heard <= 2_100, "{last_heard} {given_up}");
}

#[test]
fn a_host_announces_a_longer_interval_before_using_it() {
    // Thirty a second: one per cent of that is a tick in six seconds, with ten seconds' worth saved at first.
    let mut bench = Bench::new(FIXED, vec![]);
    bench.pass(30_000, load(60.0, 2.0, 20.0));
    assert!(bench.engaged());
    assert_eq!(bench.pauses(1), [4_000], "{:?}", bench.ticks);
    for two in bench.published.windows(2) {
        let ((at, said), (next, _)) = (two[0], two[1]);
        let pause = Span::from_millis(next - at);
        assert!(pause <= lease(said), "{:?}", bench.published);
    }
}

#[test]
fn a_reconnect_right_after_a_change_is_not_a_pause() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 2.0)]);
    let idle = load(0.0, 0.0, 0.0);
    bench.pass(60_000, idle);
    bench.deaf = true;
    bench.pass_ticks(2, idle);
    assert_eq!(bench.pauses(1), [4_000], "nothing is urgent");
    // Just before its next tick is due, a setting changes, and the datastore is back.
    bench.pass(3_900, idle);
    bench.deaf = false;
    bench.set(Threshold::Fixed(Span::from_millis(20)));
    bench.pass_ticks(3, idle);
    let pauses = |event: &&GovernorEvent| matches!(event, GovernorEvent::Paused { .. });
    assert_eq!(bench.events.iter().find(pauses), None);
}
