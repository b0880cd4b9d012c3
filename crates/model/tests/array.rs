//! Properties of every array, and results of queueing theory for some.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use tidegate_model::spec::{Cost, MEMBERS, MemberSpec, SsdSpec, Variation};
use tidegate_model::{Array, ArraySpec, Completion, IoKind, ModelIo, Random};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// An action of a driver.
#[derive(Clone, Debug)]
enum Act {
    Submit(IoKind, u64, u64),
    Pass(u64),
    Speed(u32),
    Stall(u64),
    Resume,
}

fn act() -> impl Strategy<Value = Act> {
    let kind = prop_oneof![Just(IoKind::Read), Just(IoKind::Write), Just(IoKind::Flush)];
    let len = prop_oneof![Just(0), Just(4_096), 1..2_000_000_u64, Just(u64::MAX)];
    let offset = prop_oneof![0..20_000_000_u64, any::<u64>()];
    prop_oneof![
        8 => (kind, offset, len).prop_map(|(kind, offset, len)| Act::Submit(kind, offset, len)),
        4 => (0..20 * MS).prop_map(Act::Pass),
        1 => (1..3_000_u32).prop_map(Act::Speed),
        1 => (0..50 * MS).prop_map(Act::Stall),
        1 => Just(Act::Resume),
    ]
}

/// Small enough that a length of `u64::MAX` is some thousand chunks, not millions.
fn specs() -> impl Strategy<Value = ArraySpec> {
    let levels = prop_oneof![
        Just(""),
        Just("raid0-3x"),
        Just("raid1-2x"),
        Just("raid5-3x"),
        Just("raid5-8x"),
        Just("raid10-4x")
    ];
    (levels, 0..MEMBERS.len(), any::<bool>(), 0..400_u32).prop_map(|(level, member, link, hits)| {
        let cache = if link { "+cache" } else { "" };
        let mut spec = ArraySpec::named(&format!("{level}{}{cache}", MEMBERS[member].0))
            .expect("a known name");
        match &mut spec.member {
            MemberSpec::Disk(disk) => disk.capacity = 8_000_000,
            MemberSpec::Ssd(ssd) => ssd.capacity = 8_000_000,
        }
        if let Some(cache) = &mut spec.cache {
            (cache.size, cache.destage_above) = (3_000_000, 100_000);
            (cache.destage_depth, cache.read_hits_permille) = (4, hits);
        }
        if link {
            (spec.link.latency, spec.link.bytes_per_second) = (20_000, Some(1_000_000_000));
        }
        spec
    })
}

/// Executes `acts`, then waits for the array to finish. Returns the completions and checks the contract.
fn drive(spec: &ArraySpec, seed: u64, acts: &[Act]) -> Vec<Completion> {
    let mut array = Array::new(spec, seed).expect("a valid array");
    let (mut now, mut done, mut submitted) = (0, Vec::new(), BTreeMap::new());
    for act in acts {
        match *act {
            Act::Submit(kind, offset, len) => {
                let id = submitted.len() as u64;
                submitted.insert(id, now);
                array.submit(
                    now,
                    ModelIo {
                        id,
                        kind,
                        offset,
                        len,
                    },
                );
            }
            Act::Pass(span) => {
                pass(&mut array, now, now + span, &mut done);
                now += span;
            }
            Act::Speed(permille) => array.set_speed(now, permille),
            Act::Stall(span) => array.stall(now, now + span),
            Act::Resume => array.resume(now),
        }
        assert_eq!(
            array.outstanding(),
            submitted.len() - done.len() - ready(&array, now)
        );
    }
    array.resume(now);
    array.set_speed(now, 1_000);
    pass(&mut array, now, u64::MAX, &mut done);
    assert_eq!(array.outstanding(), 0);
    let ids: BTreeSet<_> = done.iter().map(|done| done.id).collect();
    assert_eq!(
        (ids.len(), done.len()),
        (submitted.len(), submitted.len()),
        "each exactly once"
    );
    for Completion { id, at } in &done {
        assert!(
            submitted[id] <= *at,
            "I/O {id} completed before its submission"
        );
    }
    assert!(done.is_sorted_by_key(|done| done.at));
    done
}

/// The number of completions that are not popped. It uses a clone, so the array is unchanged.
fn ready(array: &Array, now: u64) -> usize {
    let mut copy = array.clone();
    let before = copy.outstanding();
    let mut count = 0;
    while copy.pop_completed(now).is_some() {
        count += 1;
    }
    assert!(copy.outstanding() <= before);
    count - (before - copy.outstanding())
}

/// Advances from event to event, like the simulator.
fn pass(array: &mut Array, from: u64, until: u64, done: &mut Vec<Completion>) {
    let mut now = from;
    while let Some(at) = array.next_completion().filter(|&at| at <= until) {
        if at > now {
            // Just before it there is no completion: the announced time is never late.
            assert_eq!(array.clone().pop_completed(at - 1), None);
        }
        now = now.max(at);
        while let Some(completion) = array.pop_completed(now) {
            assert!(completion.at <= now);
            done.push(completion);
        }
        assert!(
            array.next_completion().is_none_or(|next| next > now),
            "time must move on"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_io_completes_exactly_once_at_the_announced_time(
        spec in specs(), seed: u64, acts in prop::collection::vec(act(), 0..40),
    ) {
        drive(&spec, seed, &acts);
    }

    #[test]
    fn the_same_seed_and_calls_give_the_same_results(
        spec in specs(), seed: u64, acts in prop::collection::vec(act(), 0..40),
    ) {
        prop_assert_eq!(drive(&spec, seed, &acts), drive(&spec, seed, &acts));
    }

    #[test]
    fn the_number_of_calls_does_not_change_the_results(
        spec in specs(), seed: u64,
        ios in prop::collection::vec((0..90_000_000_u64, 1..300_000_u64), 1..40),
    ) {
        let mut often = Array::new(&spec, seed).expect("a known name");
        for (id, &(offset, len)) in ios.iter().enumerate() {
            often.submit(0, ModelIo { id: id as u64, kind: IoKind::Write, offset, len });
        }
        let mut seldom = often.clone();
        let mut stepwise = Vec::new();
        pass(&mut often, 0, u64::MAX, &mut stepwise);
        let at_once: Vec<_> = std::iter::from_fn(|| seldom.pop_completed(1 << 60)).collect();
        prop_assert_eq!(stepwise, at_once);
    }

    #[test]
    fn channels_with_fixed_times_conserve_work_and_keep_the_order(
        channels in 1..20_u32, count in 1..200_u64, base in 1_000..1_000_000_u64,
    ) {
        let spec = ArraySpec::single(MemberSpec::Ssd(station(channels, base, Variation::Fixed)));
        let mut array = Array::new(&spec, 1).expect("a known name");
        for id in 0..count {
            array.submit(0, read(id, id * 4_096));
        }
        let mut done = Vec::new();
        pass(&mut array, 0, u64::MAX, &mut done);
        let rounds = count.div_ceil(u64::from(channels));
        let service = done[0].at;
        prop_assert_eq!(done.last().expect("some are done").at, rounds * service, "no channel was idle");
        prop_assert!(done.is_sorted_by_key(|done| done.id), "in order of arrival");
    }
}

/// A server with some channels and a negligible transfer time.
fn station(channels: u32, base: u64, variation: Variation) -> SsdSpec {
    let cost = Cost {
        base,
        bytes_per_second: 1 << 50,
    };
    SsdSpec {
        capacity: 1 << 40,
        channels,
        page: 1 << 20,
        read: cost,
        write: cost,
        flush: 1,
        variation,
    }
}

fn read(id: u64, offset: u64) -> ModelIo {
    ModelIo {
        id,
        kind: IoKind::Read,
        offset,
        len: 4_096,
    }
}

/// Runs `depth` random I/Os at a time for `span`. Returns I/Os per second and their mean latency.
fn closed_loop(
    array: &mut Array,
    from: u64,
    span: u64,
    depth: u64,
    kind: IoKind,
    len: u64,
) -> (u64, u64) {
    let mut random = Random::new(11);
    let room = array.capacity() / len;
    let mut next = |id| ModelIo {
        id,
        kind,
        offset: random.below(room) * len,
        len,
    };
    let mut began = BTreeMap::new();
    for id in 0..depth {
        array.submit(from, next(id));
        began.insert(id, from);
    }
    let (mut count, mut latencies) = (0, 0);
    while let Some(now) = array.next_completion().filter(|&now| now < from + span) {
        while let Some(done) = array.pop_completed(now) {
            count += 1;
            latencies += done.at - began[&done.id];
            array.submit(now, next(done.id));
            began.insert(done.id, now);
        }
    }
    (count * SECOND / span, latencies / count.max(1))
}

fn iops(name: &str, depth: u64, kind: IoKind, len: u64) -> u64 {
    let spec = ArraySpec::named(name).expect("a known name");
    let span = if matches!(spec.member, MemberSpec::Disk(_)) {
        20 * SECOND
    } else {
        SECOND / 4
    };
    let mut array = Array::new(&spec, 5).expect("a known name");
    closed_loop(&mut array, 0, span, depth, kind, len).0
}

#[test]
fn throughput_grows_with_outstanding_ios_up_to_capacity_and_no_further() {
    let per_depth = |depth| {
        let spec = ArraySpec::single(MemberSpec::Ssd(station(8, MS, Variation::Fixed)));
        let mut array = Array::new(&spec, 1).unwrap();
        closed_loop(&mut array, 0, SECOND, depth, IoKind::Read, 4_096).0
    };
    for (depth, expected) in [(1, 1_000), (4, 4_000), (8, 8_000), (64, 8_000)] {
        assert!(
            per_depth(depth).abs_diff(expected) <= 10,
            "depth {depth}: {}",
            per_depth(depth)
        );
    }
}

#[test]
fn latency_under_load_follows_littles_law() {
    for (name, span) in [
        ("fifo", 10),
        ("ssd", 1),
        ("raid5-8x10k", 30),
        ("raid1-2x7k", 60),
    ] {
        let span = span * SECOND;
        for depth in [4, 40, 100] {
            let mut array = Array::new(&ArraySpec::named(name).unwrap(), 3).unwrap();
            let (x, latency) = closed_loop(&mut array, 0, span, depth, IoKind::Read, 4_096);
            let inside = x * latency / (SECOND / 100);
            assert!(
                inside.abs_diff(depth * 100) <= depth * 4,
                "{name}: {x} x {latency} ns = {inside}"
            );
        }
    }
}

#[test]
fn an_exponential_server_queues_as_theory_says() {
    // M/M/1: mean time inside = service / (1 - utilisation).
    for (utilisation, expected) in [(50, 2 * MS), (80, 5 * MS)] {
        let spec = ArraySpec::single(MemberSpec::Ssd(station(1, MS, Variation::Exponential)));
        let mut array = Array::new(&spec, 4).unwrap();
        let mut arrivals = Random::new(8);
        let (mut now, mut began, mut sum, count) = (0, Vec::new(), 0, 100_000);
        for id in 0..count {
            now += arrivals.exponential(100 * MS / utilisation);
            while let Some(done) = array.pop_completed(now) {
                sum += done.at - began[usize::try_from(done.id).unwrap()];
            }
            array.submit(now, read(id, 0));
            began.push(now);
        }
        let mean = sum / count;
        assert!(
            mean.abs_diff(expected) < expected / 15,
            "at {utilisation} %: {mean} ns"
        );
    }
}

#[test]
fn a_raid_5_of_eight_disks_performs_like_a_published_lun() {
    // Published: about 1,600 I/Os per second with about 40 outstanding, mixed, on a part of the disks (so with shorter
    // seeks than here). A write costs four accesses.
    let reads = iops("raid5-8x10k", 40, IoKind::Read, 8_192);
    let writes = iops("raid5-8x10k", 40, IoKind::Write, 8_192);
    assert!((1_000..2_200).contains(&reads), "{reads}");
    assert!((300..700).contains(&writes), "{writes}");
    let one = iops("10k", 1, IoKind::Read, 8_192);
    assert!((90..150).contains(&one), "{one}");
}

#[test]
fn a_deeper_queue_lets_a_disk_reorder() {
    let (one, many) = (
        iops("10k", 1, IoKind::Read, 4_096),
        iops("10k", 32, IoKind::Read, 4_096),
    );
    assert!(many * 100 > one * 150, "{one} -> {many}");
}

#[test]
fn a_sequential_stream_runs_at_the_disks_rate() {
    let mut array = Array::new(&ArraySpec::named("10k").unwrap(), 1).unwrap();
    let (mut now, count, len) = (0, 2_000, 128 << 10);
    for id in 0..count {
        array.submit(
            now,
            ModelIo {
                id,
                kind: IoKind::Read,
                offset: id * len,
                len,
            },
        );
        while array.pop_completed(now).is_none() {
            now = array.next_completion().unwrap();
        }
    }
    let rate = count * len * 1_000 / (now / MS);
    assert!(rate.abs_diff(200_000_000) < 4_000_000, "{rate}");
}

#[test]
fn an_ssd_reads_faster_than_it_writes_and_far_faster_than_a_disk() {
    let (reads, writes) = (
        iops("ssd", 32, IoKind::Read, 4_096),
        iops("ssd", 32, IoKind::Write, 4_096),
    );
    assert!(
        reads > writes * 5 / 4 && writes > 50_000,
        "{reads} {writes}"
    );
    assert!((400_000..600_000).contains(&iops("nvme", 128, IoKind::Read, 4_096)));
}

#[test]
fn a_cache_completes_writes_at_once_until_it_is_full_and_then_at_the_members_rate() {
    let mut spec = ArraySpec::named("raid5-8x10k+cache").unwrap();
    let cache = spec.cache.as_mut().unwrap();
    (cache.size, cache.destage_above) = (64 << 20, 8 << 20);
    let mut array = Array::new(&spec, 2).unwrap();
    let (_, early) = closed_loop(&mut array, 0, 50 * MS, 8, IoKind::Write, 8_192);
    assert!(early < 120_000, "{early} ns");
    let (late, _) = closed_loop(&mut array, 50 * MS, 20 * SECOND, 8, IoKind::Write, 8_192);
    assert!(late < 1_500, "{late} a second is more than eight disks can");
    assert!(array.dirty_bytes() <= 64 << 20);
}

#[test]
fn a_cache_turns_small_sequential_writes_into_whole_rows() {
    let written = |name: &str| {
        let mut array = Array::new(&ArraySpec::named(name).unwrap(), 2).unwrap();
        let (mut id, mut now) = (0, 0);
        let submit = |array: &mut Array, now, id: &mut u64| {
            let io = ModelIo {
                id: *id,
                kind: IoKind::Write,
                offset: *id * 65_536,
                len: 65_536,
            };
            array.submit(now, io);
            *id += 1;
        };
        (0..16).for_each(|_| submit(&mut array, 0, &mut id));
        while let Some(at) = array.next_completion().filter(|&at| at < 10 * SECOND) {
            now = now.max(at);
            while array.pop_completed(now).is_some() {
                submit(&mut array, now, &mut id);
            }
        }
        id
    };
    let (without, with) = (written("raid5-8x10k"), written("raid5-8x10k+cache"));
    assert!(with > without * 4, "{without} -> {with}");
}

#[test]
fn recent_writes_are_read_from_the_cache() {
    let mut array = Array::new(&ArraySpec::named("raid5-8x10k+cache").unwrap(), 2).unwrap();
    array.submit(
        0,
        ModelIo {
            id: 0,
            kind: IoKind::Write,
            offset: 4_096,
            len: 8_192,
        },
    );
    array.submit(0, read(1, 8_192));
    assert_eq!(array.pop_completed(MS).map(|done| done.id), Some(0));
    assert_eq!(array.pop_completed(MS).map(|done| done.id), Some(1));
    array.submit(MS, read(2, 1 << 20));
    assert!(array.next_completion().unwrap() > 2 * MS / 2 + 100_000);
}

#[test]
fn halving_capacity_halves_throughput_at_once_and_doubling_restores_it() {
    let mut array = Array::new(&ArraySpec::named("fifo").unwrap(), 6).unwrap();
    let (mut from, mut measured) = (0, Vec::new());
    for permille in [1_000, 500, 1_000, 2_000] {
        array.set_speed(from, permille);
        measured.push(closed_loop(&mut array, from, 10 * SECOND, 32, IoKind::Read, 4_096).0);
        from += 10 * SECOND;
        while array.pop_completed(from).is_some() || array.outstanding() > 0 {
            from = from.max(array.next_completion().unwrap_or(from));
        }
    }
    for (got, expected) in measured.iter().zip([3_350_u64, 1_675, 3_350, 6_700]) {
        assert!(got.abs_diff(expected) < expected / 30, "{measured:?}");
    }
}

#[test]
fn a_stall_delays_ios_in_flight_by_its_length() {
    let mut array = Array::new(&ArraySpec::named("ssd").unwrap(), 1).unwrap();
    array.submit(0, read(1, 0));
    let undisturbed = array.next_completion().unwrap();
    array.stall(10_000, 5 * SECOND);
    assert_eq!(
        array.next_completion(),
        Some(undisturbed - 10_000 + 5 * SECOND)
    );
    assert_eq!(array.pop_completed(4 * SECOND), None);
    array.resume(SECOND);
    assert_eq!(
        array.next_completion(),
        Some(4 * SECOND + undisturbed - 10_000)
    );
    let mut array = Array::new(&ArraySpec::named("ssd").unwrap(), 1).unwrap();
    array.stall(0, u64::MAX);
    array.submit(0, read(1, 0));
    array.resume(SECOND);
    assert_eq!(array.next_completion(), Some(SECOND + undisturbed));
}
