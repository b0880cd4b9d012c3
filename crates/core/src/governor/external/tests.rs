//! Detection against slow datastores and against real external load.

use super::super::window;
use super::*;
use alloc::vec::Vec;

const TARGET: f64 = 25e6;
const TICK: u64 = 100_000_000;

/// A datastore at one time: its peak throughput a second, and the I/O that an outside load has in flight.
type World = fn(Time) -> (f64, f64);

struct Run {
    watch: Watch,
    window: f64,
    ticks: u64,
    events: Vec<(u64, bool)>,
    noise: u64,
}

impl Run {
    fn new() -> Run {
        Run {
            watch: Watch::default(),
            window: 100.0,
            ticks: 0,
            events: Vec::new(),
            noise: 1,
        }
    }

    /// Noise of some per cent, as in counts of a tenth of a second.
    fn noise(&mut self, percent: f64) -> f64 {
        self.noise = self
            .noise
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let unit = f64::from(u32::try_from(self.noise >> 33).unwrap()) / f64::from(1_u32 << 31);
        1.0 + percent / 100.0 * (2.0 * unit - 1.0)
    }

    fn seconds(&mut self, seconds: u64, world: World) {
        for _ in 0..seconds * 10 {
            let now = Time::from_nanos(self.ticks * TICK);
            let (most, others) = world(now);
            let rate = most * self.window / (self.window + others) * self.noise(8.0);
            let sight = Sight {
                latency: (self.window + others) / most * 1e9 * self.noise(8.0),
                in_flight: self.window,
                rate,
                hosts: 2,
                short: false,
            };
            let elapsed = Span::from_nanos(TICK);
            let round = Round {
                now,
                elapsed,
                window: self.window,
                sight: &sight,
                target: TARGET,
                knee: Some(100.0),
            };
            let event = self.watch.tick(&round, true);
            self.events.extend(event.map(|on| (self.ticks / 10, on)));
            self.window = match self.watch.level() {
                Some(level) => level,
                // As few as two hosts have.
                None => window::step(self.window, TARGET, &sight).max(2.0),
            };
            self.ticks += 1;
        }
    }
}

fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

#[test]
fn external_load_is_reported_after_a_trial_and_half_the_knee_is_held() {
    for outside in [100.0, 400.0] {
        let mut run = Run::new();
        let world: World = if outside > 200.0 {
            |now| (4_000.0, if now < at(10) { 0.0 } else { 400.0 })
        } else {
            |now| (4_000.0, if now < at(10) { 0.0 } else { 100.0 })
        };
        run.seconds(30, world);
        assert_eq!(run.events.len(), 1, "{:?}", run.events);
        assert!(run.events[0].1 && run.events[0].0 >= 20, "{:?}", run.events);
        assert!((40.0..=50.0).contains(&run.window), "{}", run.window);
    }
}

#[test]
fn a_slower_datastore_is_tried_once_and_not_reported_as_external_load() {
    let worlds: [World; 3] = [
        |now| (if now < at(10) { 4_000.0 } else { 2_000.0 }, 0.0),
        |now| (if now < at(10) { 4_000.0 } else { 1_500.0 }, 0.0),
        |now| (if now < at(10) { 4_000.0 } else { 500.0 }, 0.0),
    ];
    for world in worlds {
        let mut run = Run::new();
        let (mut trials, mut was) = (0, false);
        for _ in 0..120 {
            run.seconds(1, world);
            trials += u32::from(run.watch.level().is_some() && !was);
            was = run.watch.level().is_some();
        }
        assert_eq!(run.events, [], "{trials}");
        assert!(trials <= 1, "{trials}");
    }
}

#[test]
fn a_hold_lasts_as_long_as_the_external_load() {
    let mut run = Run::new();
    let world: World = |now| {
        (
            4_000.0,
            if (at(10)..at(200)).contains(&now) {
                150.0
            } else {
                0.0
            },
        )
    };
    run.seconds(199, world);
    assert_eq!(run.events.len(), 1, "{:?}", run.events);
    run.seconds(10, world);
    assert_eq!(run.events.len(), 2, "{:?}", run.events);
    assert!((85.0..125.0).contains(&run.window), "{}", run.window);
}

#[test]
fn a_hold_ends_at_the_next_trial_if_the_datastore_is_slow_instead() {
    let mut run = Run::new();
    let world: World = |now| match now {
        now if now < at(10) => (4_000.0, 0.0),
        now if now < at(40) => (4_000.0, 150.0),
        _ => (1_000.0, 0.0),
    };
    run.seconds(100, world);
    assert_eq!(
        run.events.iter().map(|event| event.1).collect::<Vec<_>>(),
        [true, false]
    );
    assert!((20.0..30.0).contains(&run.window), "{}", run.window);
}

/// Runs a hundred in flight at 4,000 a second for a while, and then the given load. Returns whether there was a trial.
fn tries(in_flight: f64, window: f64, rate: f64) -> bool {
    let mut watch = Watch::default();
    let mut tried = false;
    for tick in 0..250 {
        let usual = tick < 50;
        let sight = Sight {
            latency: TARGET,
            in_flight: if usual { 100.0 } else { in_flight },
            rate: if usual { 4_000.0 } else { rate },
            hosts: 2,
            short: false,
        };
        let round = Round {
            now: Time::from_nanos(tick * TICK),
            elapsed: Span::from_nanos(TICK),
            window: if usual { 100.0 } else { window },
            sight: &sight,
            target: TARGET,
            knee: None,
        };
        watch.tick(&round, true);
        tried |= watch.tries();
    }
    tried
}

#[test]
fn no_trial_without_a_full_window_and_a_drop_in_throughput() {
    assert!(
        tries(30.0, 30.0, 1_200.0),
        "a full window, and much less throughput"
    );
    assert!(!tries(30.0, 100.0, 1_200.0), "no demand for more");
    assert!(
        !tries(30.0, 30.0, 4_000.0),
        "less in flight, same throughput"
    );
}

#[test]
fn a_detecting_host_continues_after_a_lesser_name_joins() {
    let mut governor = Governor::new(crate::governor::Settings {
        host: [5; 16],
        incarnation: 1,
        mode: crate::iocontrol::Mode::On,
        threshold: crate::governor::Threshold::Fixed(Span::from_millis(25)),
        io_unit: 32 << 10,
        kind: crate::governor::Kind::Unknown,
        window_most: 256,
        learn: false,
    });
    let says = |host, flags, cluster| Record {
        host: [host; 16],
        sequence: 1,
        tick_ms: 100,
        flags,
        cluster,
        ..Record::default()
    };
    let joined = says(1, Flags::ENGAGED, 40.0).encode();
    let tries = says(3, Flags::ENGAGED.with(Flags::TRYING, true), 33.0).encode();
    governor.heard(at(1), Ok(&[(1, &joined[..]), (3, &tries[..])]));
    governor.detect_external_load(at(1), None);
    assert_eq!(governor.watch.level(), Some(33.0));
}

#[test]
fn a_following_host_can_take_over_a_held_window() {
    let mut watch = Watch::default();
    assert_eq!(watch.follow(30.0, true, false), None);
    assert_eq!(
        (watch.level(), watch.leads(), watch.tries()),
        (Some(30.0), false, true)
    );
    assert_eq!(watch.follow(40.0, false, true), Some(true));
    let sight = Sight {
        latency: 30e6,
        in_flight: 40.0,
        rate: 1_000.0,
        hosts: 2,
        short: false,
    };
    let round = Round {
        now: at(1),
        elapsed: Span::from_nanos(TICK),
        window: 40.0,
        sight: &sight,
        target: TARGET,
        knee: None,
    };
    let mut heir = watch;
    assert_eq!(heir.tick(&round, true), None);
    assert_eq!((heir.level(), heir.leads()), (Some(40.0), true));
    assert_eq!(watch.tick(&round, false), Some(false));
    assert_eq!(watch.level(), None);
}

#[test]
fn a_trial_is_announced_a_second_and_a_half_before_it_begins() {
    let mut run = Run::new();
    let mut near = Vec::new();
    while !run.watch.tries() {
        assert!(run.ticks < 400, "no trial has begun");
        // Ten ticks of a tenth of a second each.
        run.seconds(1, |now| (if now < at(10) { 4_000.0 } else { 1_500.0 }, 0.0));
        near.push(run.watch.nears_trial());
    }
    let [.., first, second, begun] = near[..] else {
        panic!("the trial began at once: {near:?}")
    };
    assert!(!first && second && !begun, "{near:?}");
}

#[test]
fn a_slowly_degrading_datastore_causes_no_trial() {
    let mut run = Run::new();
    // From 4,000 a second to 1,500 in twenty minutes, with less and less in flight at the same latency.
    let ages: World = |now| (4_000.0 - 2_500.0 * now.as_nanos() as f64 / 1.2e12, 0.0);
    for _ in 0..1_200 {
        run.seconds(1, ages);
        assert_eq!(
            run.watch.level(),
            None,
            "a trial after {} s",
            run.ticks / 10
        );
    }
    assert!(run.window < 45.0, "{}", run.window);
}
