//! I/O threads in virtual time: what the world's costs come to, moves, fairness, and that nothing is lost.

use tidegate_core::coalesce::Coalesce;
use tidegate_core::monitor::{Action, Decision, Policy, Snapshot, Why, Wish};
use tidegate_core::request::DiskId;
use tidegate_core::units::Span;
use tidegate_sim::threads::evaluate::fixed;
use tidegate_sim::threads::{Costs, Idle, Load, Outcome, Phase, SetUp, Trace, World};

const MS: u64 = 1_000_000;

fn phase(lasts: u64, loads: Vec<Load>) -> Phase {
    let name = "one".to_owned();
    Phase { name, lasts, loads }
}

fn closed(outstanding: u32, work: u64, service: u64, latency: u64) -> Load {
    Load {
        outstanding,
        work,
        service,
        latency,
        size: 4_096,
        ..Load::IDLE
    }
}

fn set_up(threads: usize, idle: Idle, own_cores: bool) -> SetUp {
    SetUp {
        threads,
        idle,
        own_cores,
    }
}

/// Requests a second, in thousands.
fn rate(outcome: &Outcome, trace: &Trace) -> u64 {
    let settled = trace.phases[0].lasts - outcome.settles;
    outcome.phases[0].answered * MS / settled
}

/// Measured on two cores (see `Costs`): requests a second, in thousands, with processes as guests.
#[test]
fn the_costs_come_to_the_measured_requests_a_second() {
    let deep = vec![closed(64, 1_100, 7_050, 0); 2];
    let single = vec![closed(1, 500, 100, 0), Load::IDLE];
    let mixed = vec![closed(4, 7_900, 4_700, 0); 2];
    for (loads, threads, idle, own_cores, measured) in [
        (&deep, 1, Idle::Sleep, true, 131),
        (&deep, 1, Idle::Poll, true, 136),
        (&deep, 1, Idle::Sleep, false, 129),
        (&deep, 2, Idle::Poll, false, 228),
        (&single, 1, Idle::Sleep, true, 61),
        (&single, 1, Idle::Poll, true, 119),
        (&single, 1, Idle::Sleep, false, 62),
        (&single, 1, Idle::Spin, false, 121),
        (&single, 2, Idle::Sleep, false, 60),
        (&single, 2, Idle::Spin, false, 113),
        (&single, 2, Idle::Poll, false, 66),
        (&mixed, 1, Idle::Sleep, true, 112),
        (&mixed, 1, Idle::Poll, true, 127),
        (&mixed, 1, Idle::Spin, false, 139),
        (&mixed, 2, Idle::Spin, false, 128),
    ] {
        let trace = Trace {
            cores: 2,
            costs: Costs::MEASURED,
            vms: vec![1; 2],
            phases: vec![phase(300 * MS, loads.clone())],
            coalesce: Coalesce::Off,
            dense: false,
        };
        let outcome = fixed(&trace, set_up(threads, idle, own_cores), 100 * MS, 1);
        let rate = rate(&outcome, &trace);
        let off = rate.abs_diff(measured) * 100 / measured;
        assert!(
            off <= 15,
            "{threads} {idle:?} {own_cores}: {rate}k, measured {measured}k"
        );
    }
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    let load = Load {
        compute: true,
        rate: 20_000,
        work: 2_000,
        service: 1_000,
        latency: 80_000,
        size: 512,
        outstanding: 2,
        group: 1,
    };
    let trace = Trace {
        cores: 3,
        costs: Costs::MEASURED,
        vms: vec![2, 1, 1],
        phases: vec![phase(200 * MS, vec![load; 3])],
        coalesce: Coalesce::Off,
        dense: false,
    };
    let run = |seed| {
        let outcome = fixed(&trace, set_up(2, Idle::Spin, false), 0, seed);
        (
            outcome.curve,
            outcome.phases[0].by_vm.clone(),
            outcome.kicks,
        )
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

/// Moves a disk there and back at each snapshot, every millisecond.
struct Restless {
    to: u16,
}

impl Policy for Restless {
    fn next(&self) -> Option<Wish> {
        Some(Wish {
            after: Span::from_millis(1),
            disks: false,
        })
    }

    fn decide(&mut self, snapshot: &Snapshot, out: &mut Vec<Decision>) {
        self.to = 1 - self.to;
        let action = Action::Move {
            disk: DiskId(0),
            to: self.to,
        };
        let why = Why::Empty { threads: 2 };
        let at = snapshot.now;
        out.push(Decision { at, action, why });
    }
}

/// Plays a second in which one disk moves a thousand times.
fn restless(latency: u64) -> Outcome {
    let trace = Trace {
        cores: 4,
        costs: Costs::MEASURED,
        vms: vec![1; 4],
        phases: vec![phase(1_000 * MS, vec![closed(8, 2_000, 3_000, latency); 4])],
        coalesce: Coalesce::Off,
        dense: false,
    };
    let policy = Box::new(Restless { to: 0 });
    World::new(&trace, set_up(2, Idle::Spin, true), Some(policy), 1).run(0)
}

#[test]
fn a_thousand_moves_under_load_lose_no_request() {
    for latency in [0, 80_000] {
        let outcome = restless(latency);
        assert!(outcome.pauses.count() > 900, "{}", outcome.pauses.count());
        let by_vm = &outcome.phases[0].by_vm;
        // A lost request would leave the moving disk behind: it keeps eight outstanding.
        assert!(by_vm[0] * 10 >= by_vm[1] * 8, "{by_vm:?}");
        assert_eq!(outcome.outstanding, 32);
    }
}

#[test]
fn a_move_waits_for_a_turn_of_each_thread_and_never_for_the_datastore() {
    for latency in [0, 80_000, 1 << 40] {
        let outcome = restless(latency);
        let most = outcome.pauses.quantile(9_900);
        assert!(outcome.pauses.count() > 900);
        assert!(most <= Span::from_micros(200), "latency {latency}: {most}");
    }
}

/// Latencies of a guest with one request outstanding, beside others with 32 outstanding on one thread.
fn depth_one_beside(others: usize, size: u64, service: u64) -> Span {
    let mut loads = vec![closed(1, 500, 700, 100_000)];
    let deep = Load {
        size,
        ..closed(32, 300, service, 100_000)
    };
    loads.resize(1 + others, deep);
    let trace = Trace {
        cores: 16,
        costs: Costs::MEASURED,
        vms: vec![1; 1 + others],
        phases: vec![phase(2_000 * MS, loads)],
        coalesce: Coalesce::Off,
        dense: false,
    };
    let outcome = fixed(&trace, set_up(1, Idle::Spin, true), 500 * MS, 1);
    outcome.phases[0].latencies_by_vm[0].quantile(9_900)
}

#[test]
fn beside_63_saturating_guests_a_guest_of_depth_one_waits_at_most_three_times_as_long_as_alone() {
    let alone = depth_one_beside(0, 4_096, 0);
    for (size, service) in [
        (4_096, 0),
        (4_096, 700),
        (16_384, 2_000),
        (4_096, 4_000),
        (4_096, 7_000),
        (4_096, 10_000),
        (4_096, 20_000),
    ] {
        let beside = depth_one_beside(63, size, service);
        let most = alone.as_nanos() * 3;
        assert!(
            beside.as_nanos() <= most,
            "{size} bytes, {service} ns: {beside}, alone {alone}"
        );
    }
}
