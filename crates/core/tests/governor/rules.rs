//! One governor by itself, told word for word what its disks did and what the other hosts say: a test for each rule that
//! a world of many hosts would cover up.

use super::world::settings;
use tidegate_core::governor::slot::{Entry, Flags, Record};
use tidegate_core::governor::window::{Sight, step};
use tidegate_core::governor::{Governor, GovernorEvent, Report, Threshold};
use tidegate_core::iocontrol::{DiskKey, Orders, Usage};
use tidegate_core::request::DiskId;
use tidegate_core::units::{Span, Time};

const FIXED: Threshold = Threshold::Fixed(Span::from_millis(25));

/// What our one disk does for a while.
#[derive(Clone, Copy)]
struct Load {
    latency_ms: f64,
    in_flight: f64,
    waiting: f64,
}

const fn load(latency_ms: f64, in_flight: f64, waiting: f64) -> Load {
    Load {
        latency_ms,
        in_flight,
        waiting,
    }
}

/// The governor under test, host 5, with a disk of key 5; and what stands in the others' slots.
struct Bench {
    governor: Governor,
    now: u64,
    peers: Vec<Record>,
    orders: Option<Orders>,
    events: Vec<GovernorEvent>,
    ticks: Vec<u64>,
}

impl Bench {
    fn new(threshold: Threshold, peers: Vec<Record>) -> Bench {
        let mut governor = Governor::new(settings(5, threshold));
        governor.sits_at(5);
        Bench {
            governor,
            now: 0,
            peers,
            orders: None,
            events: Vec::new(),
            ticks: Vec::new(),
        }
    }

    /// For so long our disk does this, reported every 50 ms; the others go on saying what they say.
    fn pass(&mut self, ms: u64, load: Load) {
        let until = self.now + ms;
        while self.now < until {
            self.now += 50;
            let now = Time::ZERO + Span::from_millis(self.now);
            self.governor.observe(now, &[usage(load)], &[]);
            if self.governor.deadline() > now {
                continue;
            }
            for peer in &mut self.peers {
                peer.sequence += 1;
            }
            let slots = self
                .peers
                .iter()
                .map(|peer| (u16::from(peer.host[0]), peer.encode()));
            let slots: Vec<_> = slots.collect();
            let slots: Vec<(u16, &[u8])> =
                slots.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
            self.governor.heard(now, Ok(&slots));
            let tick = self.governor.tick(now);
            self.ticks.push(self.now);
            self.orders = Some(tick.orders);
            self.events.extend(tick.events);
            if tick.publish.is_some() {
                self.governor.published(now, true);
            }
        }
    }

    fn engaged(&self) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.engaged)
    }

    /// Our window, reference I/Os.
    fn window(&self) -> f64 {
        self.orders
            .as_ref()
            .map_or(0.0, |orders| orders.window as f64 / 256.0)
    }

    /// The cluster's, as we have it.
    fn cluster(&self) -> f64 {
        self.report().cluster as f64 / 256.0
    }

    fn report(&self) -> Report {
        self.governor.report()
    }
}

fn usage(load: Load) -> Usage {
    let span = Span::from_millis(50);
    let latency_ns = (load.latency_ms * 1e6) as u64;
    let ios = if latency_ns > 0 {
        (load.in_flight / load.latency_ms * 50.0) as u64
    } else {
        0
    };
    let mut latency_counts = [0; 32];
    latency_counts[((latency_ns / 1_000).max(1).ilog2() as usize + 1).min(31)] = ios as u32;
    let area = |level: f64| (level * 256.0 * 50e6) as u128;
    Usage {
        disk: DiskId(5),
        key: DiskKey(5),
        shares: 1_000,
        reservation: 0,
        limit: 0,
        latency_target: Span::ZERO,
        span,
        ios,
        units: ios,
        cost: ios * 256,
        bytes: ios * 4_096,
        latency_ns: ios * latency_ns,
        latency_max: Span::from_nanos(latency_ns),
        latency_counts,
        in_flight_cost_ns: area(load.in_flight),
        waiting_cost_ns: area(load.waiting),
        held_ns: [(load.waiting * 50e6) as u64, 0, 0, 0, 0],
        active: load.in_flight > 0.0,
        burst_left: 0,
    }
}

/// Another host, engaged, with a window of 40 for all; it does what its latency lets 20 in flight do.
fn peer(host: u8, latency_ms: f64) -> Record {
    Record {
        host: [host; 16],
        incarnation: u64::from(host),
        tick_ms: 100,
        flags: Flags::ENGAGED,
        cluster: 40.0,
        window: 20.0,
        in_flight: 20.0,
        latency: latency_ms * 1e6,
        ios: 20.0 / latency_ms * 1e3,
        rate: 20.0 / latency_ms * 1e3,
        disks: vec![asks(u64::from(host), 20.0)],
        ..Record::default()
    }
}

fn asks(key: u64, demand: f64) -> Entry {
    Entry {
        key,
        shares: 1_000,
        demand,
        unit_cost: 1.0,
        served: true,
        ..Entry::default()
    }
}

#[test]
fn where_others_have_engaged_a_host_follows_once_latency_is_near_the_threshold() {
    let not_yet = Record {
        flags: Flags::default(),
        ..peer(1, 10.0)
    };
    let mut bench = Bench::new(FIXED, vec![not_yet]);
    bench.pass(10_000, load(10.0, 8.0, 0.0));
    assert!(!bench.engaged());
    // The other engages; here all is well, and it stays well below the threshold.
    bench.peers[0] = peer(1, 10.0);
    bench.pass(10_000, load(10.0, 8.0, 0.0));
    assert!(
        !bench.engaged(),
        "far below the threshold nobody is held back"
    );
    bench.peers[0] = peer(1, 20.0);
    bench.pass(5_000, load(20.0, 16.0, 0.0));
    assert!(bench.engaged(), "below it, but not far");
    // It began with the others' window, and not with what is in flight: with that it would have more by now.
    assert!(bench.cluster() < 52.0, "{}", bench.cluster());
}

#[test]
fn control_does_not_let_go_while_any_hosts_window_binds() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 30.0)]);
    bench.pass(3_000, load(30.0, 20.0, 20.0));
    assert!(bench.engaged());
    let mut quiet = peer(1, 5.0);
    quiet.flags = Flags::ENGAGED.with(Flags::BINDING, true);
    bench.peers[0] = quiet;
    bench.pass(30_000, load(5.0, 2.0, 0.0));
    assert!(bench.engaged(), "another's window binds");
    bench.peers[0].flags = Flags::ENGAGED;
    bench.pass(9_000, load(5.0, 2.0, 0.0));
    assert!(bench.engaged(), "ten seconds are not over");
    bench.pass(3_000, load(5.0, 2.0, 0.0));
    assert!(!bench.engaged());
}

#[test]
fn a_host_that_asks_for_attention_is_looked_at_soon() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 25.0)]);
    let steady = load(25.0, 20.0, 20.0);
    bench.pass(10_000, steady);
    let calm = |ticks: &[u64]| ticks.windows(2).next_back().map(|two| two[1] - two[0]);
    assert_eq!(calm(&bench.ticks), Some(1_000), "{:?}", bench.ticks);
    bench.peers[0].flags = Flags::ENGAGED.with(Flags::URGENT, true);
    bench.pass(1_200, steady);
    assert!(calm(&bench.ticks) < Some(300), "{:?}", bench.ticks);
}

#[test]
fn what_nobody_asks_for_is_split_equally_among_hosts() {
    let mut bench = Bench::new(FIXED, vec![peer(1, 24.0)]);
    bench.pass(5_000, load(24.0, 20.0, 20.0));
    let mut little = peer(1, 24.0);
    (little.in_flight, little.rate, little.ios) = (4.0, 160.0, 160.0);
    little.disks = vec![asks(1, 4.0)];
    bench.peers[0] = little;
    bench.pass(5_000, load(24.0, 4.0, 0.0));
    assert!(bench.engaged());
    // Both may have a quarter more than they use, and one; half of the rest is ours.
    let slack = bench.cluster() - 2.0 * 6.0;
    assert!(slack > 20.0, "{slack}");
    assert!(
        (bench.window() - 6.0 - slack / 2.0).abs() < 1.0,
        "{} {slack}",
        bench.window()
    );
}

#[test]
fn all_hosts_take_the_median_of_the_thresholds_that_were_found() {
    let found = |host, ms: f64| Record {
        threshold: ms * 1e6,
        ..peer(host, 2.0)
    };
    let mut bench = Bench::new(
        Threshold::Auto,
        vec![found(1, 3.0), found(2, 8.0), found(3, 4.0)],
    );
    bench.pass(300, load(0.0, 0.0, 0.0));
    assert_eq!(bench.report().threshold, Span::from_millis(4));
}

#[test]
fn while_the_window_is_moved_on_purpose_the_law_does_not_move_it_back() {
    let run = |flags: Flags| {
        let mut bench = Bench::new(Threshold::Auto, vec![peer(1, 10.0)]);
        bench.peers[0].threshold = 10e6;
        bench.pass(1_000, load(10.0, 20.0, 20.0));
        assert!(bench.engaged());
        bench.peers[0] = Record {
            threshold: 10e6,
            flags: Flags::ENGAGED.with(flags, true),
            ..peer(1, 11.5)
        };
        let before = bench.cluster();
        bench.pass(2_500, load(11.5, 20.0, 20.0));
        (bench.cluster() / before, bench.window() / bench.cluster())
    };
    let (law, whole) = run(Flags::default());
    assert!(law < 0.97 && (whole - 0.5).abs() < 0.03, "{law} {whole}");
    let (law, whole) = run(Flags::WIDER);
    assert!(law > 0.985 && (whole - 0.55).abs() < 0.03, "{law} {whole}");
}

#[test]
fn latency_counts_by_how_many_ios_had_it() {
    // A host with few I/Os sees a high latency; the datastore as a whole is at the threshold.
    let mut few = peer(1, 60.0);
    (few.ios, few.rate, few.in_flight) = (20.0, 20.0, 1.2);
    let mut bench = Bench::new(FIXED, vec![few, peer(2, 24.0)]);
    bench.pass(4_000, load(24.0, 18.0, 20.0));
    assert!(bench.engaged(), "the others are");
    assert!(bench.cluster() > 35.0, "{}", bench.cluster());
}

#[test]
fn one_host_whose_ios_are_stuck_does_not_make_all_others_yield_to_it() {
    let mut stuck = peer(1, 24.0);
    stuck.latency = 20e9;
    let mut bench = Bench::new(
        FIXED,
        vec![stuck, peer(2, 24.0), peer(3, 24.0), peer(4, 24.0)],
    );
    bench.pass(200, load(24.0, 20.0, 20.0));
    for peer in &mut bench.peers {
        peer.cluster = 100.0;
    }
    bench.pass(300, load(24.0, 20.0, 20.0));
    // Counted for four times the threshold, and no more, a fifth of the I/Os makes the mean 1.6 of it: the window goes to
    // six tenths. Counted in full it goes to a quarter at once.
    assert!(bench.cluster() > 45.0, "{}", bench.cluster());
}

#[test]
fn one_tick_answers_no_more_than_a_quarter_or_twice_the_threshold() {
    let seen = |latency_ms: f64| Sight {
        latency: latency_ms * 1e6,
        in_flight: 80.0,
        rate: 80.0 / latency_ms * 1e3,
        hosts: 2,
        short: false,
    };
    // Three tenths of the way to twice the window; a quarter of what is in flight.
    assert_eq!(step(80.0, 25e6, &seen(0.1)), 104.0);
    assert_eq!(step(80.0, 25e6, &seen(10_000.0)), 20.0);
}
