//! The filters as their manual pages describe them, in a shard with a datastore that the test drives.

use tidegate_core::effect::Effect;
use tidegate_core::filter::FilterKey;
use tidegate_core::filter::stats::{Class, GAP_MAX, OpCounts, Stage, StatsReport};
use tidegate_core::filter::trace::format::{Entry, Reader, TracedDisk};
use tidegate_core::filter::trace::{BLOCK_RECORDS, TraceReport};
use tidegate_core::filter::{FilterReport, FilterSpec, Why};
use tidegate_core::request::{Data, DiskId, Fault, Flags, IoId, Op, Outcome, Request, Token};
use tidegate_core::shard::{Event, Shard};
use tidegate_core::stack::Stack;
use tidegate_core::units::{Span, Time};

const DISK: DiskId = DiskId(0);

/// A request at `now` that arrived `before` nanoseconds earlier.
fn submitted(now: u64, before: u64, token: u64, op: Op, offset: u64, len: u64) -> Event {
    let data = Data {
        buffer: u32::try_from(token).expect("few"),
        start: 0,
    };
    Event::Submitted {
        disk: DISK,
        token: Token(token),
        request: Request {
            op,
            flags: Flags::NONE,
            offset,
            len,
            data,
            arrived: Time::from_nanos(now - before),
        },
    }
}

fn finished(io: IoId, outcome: Outcome) -> Event {
    Event::Finished {
        disk: DISK,
        io,
        outcome,
    }
}

/// A shard with one disk. It stores the effects until the test reads them.
struct Host {
    shard: Shard,
    effects: Vec<Effect>,
}

impl Host {
    fn new(filters: &[&str]) -> Host {
        let parse = |text: &&str| {
            text.parse()
                .unwrap_or_else(|error| panic!("{text}: {error}"))
        };
        Host::with(&filters.iter().map(parse).collect::<Vec<_>>())
    }

    fn with(filters: &[FilterSpec]) -> Host {
        let filters = (0..)
            .map(FilterKey)
            .zip(filters.iter().map(FilterSpec::build));
        let mut host = Host {
            shard: Shard::new(16),
            effects: Vec::new(),
        };
        let stack = Stack::new(filters.collect());
        host.handle(
            0,
            Event::Attach {
                disk: DISK,
                size: 1 << 40,
                read_only: false,
                stack,
                control: None,
            },
        );
        host
    }

    fn handle(&mut self, now: u64, event: Event) {
        self.shard
            .handle(Time::from_nanos(now), event, &mut self.effects);
    }

    fn gather(&mut self, now: u64, event: Event) {
        self.shard
            .gather(Time::from_nanos(now), event, &mut self.effects);
    }

    fn flow(&mut self, now: u64) {
        self.shard.flow(Time::from_nanos(now), &mut self.effects);
    }

    /// Submits at `now` a request that arrived `before` nanoseconds earlier.
    fn submit(&mut self, now: u64, before: u64, token: u64, op: Op, offset: u64, len: u64) {
        self.handle(now, submitted(now, before, token, op, offset, len));
    }

    /// Submits a request that arrives now.
    fn ask(&mut self, now: u64, token: u64, op: Op, offset: u64, len: u64) {
        self.submit(now, 0, token, op, offset, len);
    }

    fn finish(&mut self, now: u64, io: IoId, outcome: Outcome) {
        self.handle(now, finished(io, outcome));
    }

    /// The I/Os started since the last call: id, offset, length.
    fn started(&mut self) -> Vec<(IoId, Op, u64, u64)> {
        let mut started = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Start {
                io,
                op,
                offset,
                len,
                ..
            } => {
                started.push((*io, *op, *offset, *len));
                false
            }
            _ => true,
        });
        started
    }

    /// The answers since the last call.
    fn answers(&mut self) -> Vec<(u64, Outcome)> {
        let mut answers = Vec::new();
        self.effects.retain(|effect| match effect {
            Effect::Answer { token, outcome, .. } => {
                answers.push((token.0, *outcome));
                false
            }
            _ => true,
        });
        answers
    }

    /// The side writes since the last call.
    fn aside(&mut self) -> Vec<Vec<u8>> {
        let (aside, rest) = std::mem::take(&mut self.effects)
            .into_iter()
            .partition(|effect| matches!(effect, Effect::SideWrite { .. }));
        self.effects = rest;
        let buffer = |effect| match effect {
            Effect::SideWrite { buffer, .. } => buffer,
            other => panic!("{other:?}"),
        };
        Vec::into_iter(aside).map(buffer).collect()
    }

    /// One I/O, from its submission at `now` to its answer `takes` later.
    fn whole(&mut self, now: u64, takes: u64, op: Op, offset: u64, len: u64, outcome: Outcome) {
        self.ask(now, 0, op, offset, len);
        let io = self.started()[0].0;
        self.finish(now + takes, io, outcome);
        self.answers();
    }

    fn report(&self) -> FilterReport {
        self.shard
            .report(DISK)
            .expect("attached")
            .filters
            .remove(0)
            .2
    }

    fn stats(&self) -> StatsReport {
        match self.report() {
            FilterReport::Stats(stats) => *stats,
            other => panic!("{other:?}"),
        }
    }

    fn trace(&self) -> TraceReport {
        match self.report() {
            FilterReport::Trace(trace) => trace,
            other => panic!("{other:?}"),
        }
    }
}

fn micros(us: u64) -> Span {
    Span::from_micros(us)
}

#[test]
fn filters_are_named_as_on_the_command_line_and_unknown_ones_are_refused() {
    for text in [
        "null",
        "stats",
        "fault:error=eio,op=write,every=100",
        "trace:path=/tmp/x",
    ] {
        let spec: FilterSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), text);
        assert_eq!(text.split(':').next(), Some(spec.build().name()));
    }
    for (text, way_out) in [
        ("cache", "null, stats, fault and trace"),
        ("null:x", "write only null"),
        ("", "the filters are null"),
    ] {
        let error = text.parse::<FilterSpec>().unwrap_err().to_string();
        assert!(error.contains(way_out), "{error}");
    }
}

#[test]
fn stats_separates_the_stages_of_an_io() {
    // The delay is below, so its 5 us count for the filters; 3 us waiting, 40 us in the datastore.
    let mut host = Host::new(&["stats", "fault:delay=5us"]);
    host.submit(103_000, 3_000, 1, Op::Read, 0, 4_096);
    host.handle(108_000, Event::Ticked);
    let io = host.started()[0].0;
    host.finish(148_000, io, Ok(()));
    let stats = host.stats();
    let mean = |stage| stats.latency(Class::Read, stage).unwrap().mean();
    assert_eq!(
        Stage::ALL.map(mean),
        [micros(48), micros(3), micros(5), micros(40)]
    );
    assert!(stats.latency(Class::Write, Stage::Total).is_none());
    assert_eq!(stats.op(Op::Read).bytes, 4_096);
}

#[test]
fn stats_counts_ios_that_a_lower_filter_completed() {
    let mut host = Host::new(&["stats", "fault:error=enospc"]);
    host.ask(1_000, 1, Op::Write, 0, 4_096);
    let stats = host.stats();
    assert_eq!(
        stats.latency(Class::Write, Stage::Total).unwrap().count(),
        1
    );
    assert!(
        stats
            .latency(Class::Write, Stage::Datastore)
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        (stats.op(Op::Write).errors, stats.op(Op::Write).bytes),
        (1, 0)
    );
    assert_eq!(stats.faults[Fault::NoSpace as usize], 1);
    assert_eq!(stats.faults.iter().sum::<u64>(), 1);
}

#[test]
fn stats_knows_sizes_and_sequential_streams_by_operation() {
    let mut host = Host::new(&["stats"]);
    for n in 0..10 {
        host.whole(
            1_000_000 + n * 400_000,
            1,
            Op::Read,
            n * 4_096,
            4_096,
            Ok(()),
        );
        host.whole(
            1_200_000 + n * 400_000,
            1,
            Op::Write,
            n * 1_000_000,
            513,
            Ok(()),
        );
    }
    let stats = host.stats();
    assert_eq!(
        (
            stats.op(Op::Read).sequential,
            stats.sequential_milli(Op::Read)
        ),
        (9, 900)
    );
    assert_eq!(stats.sequential_milli(Op::Write), 0);
    assert_eq!(
        (
            stats.sizes(Class::Read)[3],
            stats.sizes(Class::Write)[1],
            stats.count()
        ),
        (10, 10, 20)
    );
}

#[test]
fn outstanding_is_known_now_at_most_and_on_average() {
    let mut host = Host::new(&["stats"]);
    // One I/O from 0 to 100, another from 50 to 150: 200 I/O-nanoseconds in 200.
    host.ask(0, 1, Op::Read, 0, 512);
    host.ask(50, 2, Op::Read, 0, 512);
    let ios = host.started();
    host.finish(100, ios[0].0, Ok(()));
    let half_way = host.stats();
    assert_eq!((half_way.outstanding, half_way.outstanding_max), (1, 2));
    assert_eq!(
        half_way.outstanding_mean_milli(Time::from_nanos(100)),
        1_500
    );
    host.finish(150, ios[1].0, Ok(()));
    let stats = host.stats();
    assert_eq!((stats.outstanding, stats.outstanding_max), (0, 2));
    assert_eq!(stats.outstanding_mean_milli(Time::from_nanos(200)), 1_000);
    let area = |stats: &StatsReport, at| stats.outstanding_integral(Time::from_nanos(at));
    assert_eq!(area(&stats, 200).wrapping_sub(area(&half_way, 100)), 50);
}

#[test]
fn batched_ios_are_counted_like_single_ones() {
    let ops = [Op::Read, Op::Write, Op::Flush, Op::Discard];
    let mut hosts = [Host::new(&["stats"]), Host::new(&["stats"])];
    let mut random = 1_u64;
    let mut draw = |below: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) % below
    };
    let (mut now, mut at) = (1_000_000, 0);
    for _ in 0..2_000 {
        now += 1 + draw(20_000);
        let mut asks = Vec::new();
        for token in 0..1 + draw(40) {
            // Some are sequential to their predecessor.
            let offset = if draw(3) == 0 { at } else { draw(1_000) * 512 };
            let len = (1 + draw(16)) * 512;
            at = offset + len;
            let op = ops[usize::try_from(draw(9) / 2 % 4).expect("small")];
            asks.push((draw(1_000), token, op, offset, len));
        }
        let ends = now + 1_000 + draw(100_000);
        let outcomes: Vec<_> = asks
            .iter()
            .map(|_| {
                if draw(50) == 0 {
                    Err(Fault::Io)
                } else {
                    Ok(())
                }
            })
            .collect();
        let [each, all] = &mut hosts;
        for &(before, token, op, offset, len) in &asks {
            each.submit(now, before, token, op, offset, len);
            all.gather(now, submitted(now, before, token, op, offset, len));
        }
        all.flow(now);
        let started = each.started();
        assert_eq!(started, all.started());
        for ((io, ..), &outcome) in started.into_iter().zip(&outcomes) {
            each.finish(ends, io, outcome);
            all.gather(ends, finished(io, outcome));
        }
        all.flow(ends);
        now = ends;
    }
    let [each, all] = hosts.map(|host| host.stats());
    assert!(each.count() > 30_000 && each.op(Op::Write).errors > 0);
    assert!(each.op(Op::Read).sequential > 0);
    assert_eq!((each.ops, each.faults), (all.ops, all.faults));
    assert_eq!(each.outstanding_max, all.outstanding_max);
    let then = Time::from_nanos(now);
    assert_eq!(
        each.outstanding_integral(then),
        all.outstanding_integral(then)
    );
    for class in Class::ALL {
        assert_eq!(each.sizes(class), all.sizes(class));
        for stage in Stage::ALL {
            assert_eq!(each.latency(class, stage), all.latency(class, stage));
        }
    }
}

#[test]
fn batched_completions_do_not_make_a_disk_busy() {
    let mut host = Host::new(&["stats"]);
    // A thousand a second, thirty-two at a time.
    for burst in 1..=50 {
        let now = burst * 32_000_000;
        for token in 0..32 {
            host.gather(now, submitted(now, 0, token, Op::Read, token << 20, 4_096));
        }
        host.flow(now);
        for (io, ..) in host.started() {
            host.gather(now + 1_000_000, finished(io, Ok(())));
        }
        host.flow(now + 1_000_000);
        let seen = host
            .stats()
            .latency(Class::Read, Stage::Total)
            .unwrap()
            .count();
        assert_eq!(seen, burst * 32);
    }
}

#[test]
fn an_arrival_after_the_completion_counts_as_zero_time() {
    let mut host = Host::new(&["stats"]);
    host.whole(1_000, 300, Op::Read, 0, 512, Ok(()));
    let late = Event::Submitted {
        disk: DISK,
        token: Token(1),
        request: Request {
            op: Op::Read,
            flags: Flags::NONE,
            offset: 0,
            len: 512,
            data: Data::NONE,
            arrived: Time::from_nanos(9_000),
        },
    };
    host.handle(2_000, late);
    let io = host.started()[0].0;
    host.finish(2_500, io, Ok(()));
    let stats = host.stats();
    let read = stats.op(Op::Read);
    assert_eq!((read.count, read.latency_sum.as_nanos()), (2, 300));
    assert_eq!(read.latency_max, Span::from_nanos(300));
}

#[test]
fn a_disk_that_becomes_slow_has_every_io_counted_again() {
    let mut host = Host::new(&["stats"]);
    for n in 0..10_000 {
        host.whole(1_000_000 + n * 200, 100, Op::Read, 0, 4_096, Ok(()));
    }
    let burst = host
        .stats()
        .latency(Class::Read, Stage::Total)
        .unwrap()
        .clone();
    assert!(burst.count() < 10_000, "the last ones are not sampled yet");
    for n in 0..10 {
        let now = 1_000_000_000 * (1 + n);
        host.whole(now, 5_000_000, Op::Read, 0, 4_096, Ok(()));
    }
    let all = host
        .stats()
        .latency(Class::Read, Stage::Total)
        .unwrap()
        .clone();
    assert_eq!(all.count(), 10_010);
    assert_eq!(all.count_up_to(Span::from_millis(1)), 10_000);
}

#[test]
fn histograms_count_every_io_of_a_slow_disk_and_a_fair_sample_of_a_fast_one() {
    for (gap, unseen) in [(200_000, 0), (100, GAP_MAX as u64)] {
        let mut host = Host::new(&["stats"]);
        let mut sum = 0;
        // In phase with batches of 16: the first of each is ten times slower.
        for n in 0..32_000 {
            let takes = if n % 16 == 0 { 1_000 } else { 100 };
            sum += takes;
            host.whole(1_000_000 + n * gap, takes, Op::Read, 0, 4_096, Ok(()));
        }
        let stats = host.stats();
        let total = stats.latency(Class::Read, Stage::Total).unwrap();
        assert_eq!(stats.op(Op::Read).count, 32_000);
        assert_eq!(
            stats.op(Op::Read).latency_mean(),
            Span::from_nanos(sum / 32_000)
        );
        assert_eq!(stats.op(Op::Read).latency_max, Span::from_nanos(1_000));
        assert!(
            (32_000 - unseen..=32_000).contains(&total.count()),
            "{}",
            total.count()
        );
        assert!(stats.sizes(Class::Read)[3] == total.count());
        let off = total.sum().as_nanos().abs_diff(sum);
        assert!(
            off * 10 <= sum * unseen.min(1),
            "{} for {sum}",
            total.sum().as_nanos()
        );
        assert_eq!(total.quantile(5_000), Span::from_nanos(111));
    }
}

#[test]
fn completions_of_a_batch_are_counted_one_by_one() {
    const OPS: [Op; 3] = [Op::Read, Op::Write, Op::Flush];
    let mut host = Host::new(&["stats"]);
    let mut expected = [OpCounts::default(); OPS.len()];
    let mut random = 1_u64;
    // Runs of one operation between two samples. Some begin or end with a failed or the longest one.
    for round in 0..4_000_u64 {
        let now = 1_000_000 + round * 2_000;
        let mut asked_for = Vec::new();
        for token in 0..8 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let chance = random >> 32;
            let which = [0, 0, 0, 1, 1, 2][usize::try_from(chance % 6).expect("few")];
            let (before, len) = (chance % 1_000 + round % 7, 512 * (1 + chance % 8));
            let len = if which == 2 { 0 } else { len };
            let fails = chance.is_multiple_of(11);
            // No I/O is sequential to an earlier one.
            let offset = (round * 8 + token) << 20;
            host.gather(now, submitted(now, before, token, OPS[which], offset, len));
            asked_for.push(fails);
            let latency = before + 500;
            let counts = &mut expected[which];
            counts.count += 1;
            counts.bytes += if fails { 0 } else { len };
            counts.errors += u64::from(fails);
            counts.latency_sum = Span::from_nanos(counts.latency_sum.as_nanos() + latency);
            counts.latency_max = counts.latency_max.max(Span::from_nanos(latency));
        }
        host.flow(now);
        let started = host.started();
        assert_eq!(started.len(), asked_for.len());
        for ((io, ..), fails) in started.into_iter().zip(asked_for) {
            let outcome = if fails { Err(Fault::NoSpace) } else { Ok(()) };
            host.gather(now + 500, finished(io, outcome));
        }
        host.flow(now + 500);
        host.answers();
    }
    let stats = host.stats();
    let mut errors = 0;
    for (op, expected) in OPS.into_iter().zip(expected) {
        let reported = OpCounts {
            sequential: 0,
            ..*stats.op(op)
        };
        assert_eq!(reported, expected, "{op:?}");
        errors += expected.errors;
    }
    assert!(errors > 1_000);
    assert_eq!(stats.faults.iter().sum::<u64>(), errors);
}

#[test]
fn a_disks_stats_take_well_under_100_kib() {
    use tidegate_core::histogram::Histogram;
    let histograms =
        Class::ALL.len() * Stage::ALL.len() * (Histogram::LEN * 8 + size_of::<Histogram>());
    assert!(size_of::<StatsReport>() + histograms < 64 << 10);
}

#[test]
fn an_error_rule_applies_to_every_nth_io_of_its_operation_and_range() {
    let mut host = Host::new(&["fault:error=eio,op=write,every=3,range=1M-2M"]);
    let mut struck = Vec::new();
    for n in 0..9 {
        for (op, offset) in [
            (Op::Write, 1 << 20),
            (Op::Write, 2 << 20),
            (Op::Read, 1 << 20),
        ] {
            host.ask(0, n, op, offset, 512);
        }
        struck.extend(host.answers());
        for (io, ..) in host.started() {
            host.finish(0, io, Ok(()));
        }
        host.answers();
    }
    assert_eq!(
        struck,
        [
            (2, Err(Fault::Io)),
            (5, Err(Fault::Io)),
            (8, Err(Fault::Io))
        ]
    );
}

#[test]
fn a_rule_starts_after_its_offset_and_ends_after_its_count() {
    let mut host = Host::new(&["fault:error=eio,after=2,count=3"]);
    let struck = (0..10).map(|n| {
        host.ask(0, n, Op::Read, 0, 512);
        host.started();
        host.answers().len()
    });
    assert_eq!(struck.collect::<Vec<_>>(), [0, 0, 1, 1, 1, 0, 0, 0, 0, 0]);
    assert!(matches!(host.report(), FilterReport::Fault(report) if report.struck == 3));
}

#[test]
fn a_random_rule_has_the_configured_rate_and_is_reproducible_by_seed() {
    let run = |seed| {
        let mut host = Host::new(&[&format!("fault:error=eio,probability=0.1,seed={seed}")]);
        (0..5_000).for_each(|n| host.ask(0, n, Op::Read, 0, 512));
        host.answers()
    };
    assert!((400..600).contains(&run(1).len()), "{}", run(1).len());
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_delay_preserves_order_and_wakes_the_thread_in_time() {
    let mut host = Host::new(&["fault:delay=5ms"]);
    host.ask(0, 1, Op::Write, 0, 512);
    host.ask(1_000_000, 2, Op::Read, 0, 512);
    assert_eq!(host.started(), []);
    assert_eq!(
        host.shard.deadline(),
        Some((Time::from_nanos(5_000_000), Why::Delay))
    );
    host.handle(5_000_000, Event::Ticked);
    let first = host.started();
    assert_eq!((first.len(), first[0].1), (1, Op::Write));
    host.handle(6_000_000, Event::Ticked);
    assert_eq!(host.started()[0].1, Op::Read);
    assert_eq!(host.shard.deadline(), None);
    host.finish(7_000_000, first[0].0, Ok(()));
    assert_eq!(host.answers(), [(1, Ok(()))]);
}

#[test]
fn a_delay_with_an_error_fails_after_its_time() {
    let mut host = Host::new(&["fault:delay=1s,error=eio"]);
    host.ask(0, 1, Op::Read, 0, 512);
    assert_eq!(host.answers(), []);
    host.handle(1_000_000_000, Event::Ticked);
    assert_eq!(host.answers(), [(1, Err(Fault::Io))]);
    assert_eq!(host.started(), []);
}

#[test]
fn only_the_first_bytes_of_a_torn_write_reach_the_datastore() {
    for (rule, len, expected_len, answer) in [
        ("fault:torn", 8_192, 4_096, Ok(())),
        ("fault:torn", 3_000, 1_024, Ok(())),
        ("fault:torn=100,error=eio", 8_192, 100, Err(Fault::Io)),
        ("fault:torn=1G,error=eio", 8_192, 8_192, Err(Fault::Io)),
    ] {
        let mut host = Host::new(&[rule]);
        host.ask(0, 7, Op::Write, 65_536, len);
        assert_eq!(host.answers(), []);
        let (io, op, offset, sent) = host.started()[0];
        assert_eq!(
            (op, offset, sent),
            (Op::Write, 65_536, expected_len),
            "{rule}"
        );
        host.finish(0, io, Ok(()));
        assert_eq!(host.answers(), [(7, answer)], "{rule}");
    }
}

#[test]
fn a_torn_write_that_the_datastore_rejects_fails_with_its_error() {
    let mut host = Host::new(&["fault:torn"]);
    host.ask(0, 7, Op::Write, 0, 8_192);
    let io = host.started()[0].0;
    host.finish(0, io, Err(Fault::NoSpace));
    assert_eq!(host.answers(), [(7, Err(Fault::NoSpace))]);
}

#[test]
fn a_write_too_small_to_tear_is_lost_and_reports_success() {
    let mut host = Host::new(&["fault:torn"]);
    host.ask(0, 1, Op::Write, 0, 512);
    assert_eq!(
        (host.started(), host.answers()),
        (vec![], vec![(1, Ok(()))])
    );
    let mut host = Host::new(&["fault:lost"]);
    host.ask(0, 1, Op::Write, 0, 4_096);
    assert_eq!(
        (host.started(), host.answers()),
        (vec![], vec![(1, Ok(()))])
    );
    host.ask(0, 2, Op::Flush, 0, 0);
    assert_eq!(host.started().len(), 1, "a flush is no write");
}

/// Filters that record into a trace of a known disk.
fn tracing() -> Host {
    let mut spec: FilterSpec = "trace:path=t".parse().expect("a path");
    if let FilterSpec::Trace(trace) = &mut spec {
        trace.disk = TracedDisk {
            uuid: [3; 16],
            size: 1 << 40,
            unix_origin: 99,
        };
    }
    Host::with(&[spec])
}

fn entries(file: &[u8]) -> Vec<Entry> {
    Reader::new(file)
        .collect::<Result<_, _>>()
        .expect("a good trace")
}

#[test]
fn a_trace_records_requests_times_and_results() {
    let mut host = tracing();
    host.submit(10_000, 1_000, 1, Op::Read, 4_096, 512);
    let io = host.started()[0].0;
    host.finish(15_000, io, Err(Fault::Io));
    assert_eq!(
        host.shard.deadline(),
        Some((Time::from_nanos(1_000_015_000), Why::Records))
    );
    host.handle(1_000_015_000, Event::Ticked);
    let [file] = &host.aside()[..] else {
        panic!("one buffer")
    };
    let [Entry::Block(header), Entry::Record(record)] = entries(file)[..] else {
        panic!("one record")
    };
    assert_eq!(
        (header.disk.uuid, header.disk.unix_origin, header.records),
        ([3; 16], 99, 1)
    );
    assert_eq!(
        (record.op, record.offset, record.len),
        (Op::Read, 4_096, 512)
    );
    assert_eq!(
        (record.arrived, record.latency),
        (Time::from_nanos(9_000), micros(6))
    );
    assert_eq!(record.outcome, Err(Fault::Io));
}

#[test]
fn a_traced_idle_disk_wakes_no_thread() {
    let mut host = tracing();
    assert_eq!(host.shard.deadline(), None);
    host.whole(0, 1, Op::Read, 0, 512, Ok(()));
    host.handle(2_000_000_000, Event::Ticked);
    assert_eq!((host.aside().len(), host.shard.deadline()), (1, None));
}

#[test]
fn records_are_dropped_and_counted_while_both_buffers_are_being_written() {
    let mut host = tracing();
    let full = u64::try_from(BLOCK_RECORDS).unwrap();
    let (mut now, mut file) = (0, Vec::new());
    let mut run = |host: &mut Host, count| {
        for _ in 0..count {
            now += 10;
            host.whole(now, 5, Op::Read, 0, 512, Ok(()));
        }
    };
    run(&mut host, 2 * full + 10);
    let first = host.aside().remove(0);
    assert_eq!(host.trace().dropped, 10);
    file.extend_from_slice(&first);
    let filter = FilterKey(0);
    host.handle(
        9,
        Event::SideWritten {
            disk: DISK,
            filter,
            buffer: first,
            outcome: Ok(()),
        },
    );
    assert_eq!(
        host.trace(),
        TraceReport {
            written: full,
            dropped: 10,
            file: Some(Ok(()))
        }
    );
    run(&mut host, 5);
    let second = host.aside().remove(0);
    file.extend_from_slice(&second);
    host.handle(
        9,
        Event::SideWritten {
            disk: DISK,
            filter,
            buffer: second,
            outcome: Ok(()),
        },
    );
    host.handle(
        9,
        Event::Rearrange {
            disk: DISK,
            places: vec![],
        },
    );
    file.extend_from_slice(&host.aside().remove(0));

    let entries = entries(&file);
    let sequences = entries.iter().filter_map(|entry| match entry {
        Entry::Record(record) => Some(u64::from(record.sequence)),
        Entry::Block(_) => None,
    });
    let expected = (0..2 * full).chain(2 * full + 10..2 * full + 15);
    assert_eq!(sequences.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert!(matches!(entries[BLOCK_RECORDS + 1], Entry::Block(header) if header.dropped == 10));
}

#[test]
fn a_failing_trace_file_loses_records_but_no_io() {
    let mut host = tracing();
    host.whole(0, 1, Op::Read, 0, 512, Ok(()));
    host.handle(2_000_000_000, Event::Ticked);
    let buffer = host.aside().remove(0);
    let outcome = Err(Fault::NoSpace);
    host.handle(
        3_000_000_000,
        Event::SideWritten {
            disk: DISK,
            filter: FilterKey(0),
            buffer,
            outcome,
        },
    );
    assert_eq!(
        host.trace(),
        TraceReport {
            written: 0,
            dropped: 1,
            file: Some(outcome)
        }
    );
    host.whole(3_000_000_000, 1, Op::Read, 0, 512, Ok(()));
    assert!(host.shard.deadline().is_some());
}
