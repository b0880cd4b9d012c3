//! The data path through crashes: every schedule of short workloads, long random runs, and what the simulator catches.

use std::path::Path;
use tidegate_core::filter::FilterSpec;
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::mirror::state::{HOT_MAX, REGION};
use tidegate_core::layout::{LayoutOrder, OnLoss, Refusal, Target};
use tidegate_core::request::{Flags, Op};
use tidegate_sim::crash::choice::{Choose, RandomChoices, RecordedChoices};
use tidegate_sim::crash::explore::{Act, Depth, Failure, explore, fail_each, requests};
use tidegate_sim::crash::seeds;
use tidegate_sim::crash::store::Defects;
use tidegate_sim::crash::world::{
    FlashDevices, Formatted, GuestRequest, Load, Over, Setup, Shape, World,
};

/// Workloads of two requests, in every way.
const TWO: Depth = Depth {
    longest: 2,
    faults: false,
    runs: u64::MAX,
};
/// Random requests reach over several chunks of a stripe.
const SECTORS: u64 = 96;
/// Two regions of a mirror's state, and a part of a third.
const WIDE: u64 = 2 * 2048 + 64;

fn disk(shape: Shape, filters: &[&str]) -> Setup {
    let filters = filters.iter().map(|text| text.parse::<FilterSpec>());
    Setup {
        shape,
        sectors: SECTORS,
        filters: filters.collect::<Result<_, _>>().expect("filters"),
        defects: Defects::default(),
        devices: FlashDevices::Stay,
        load: Load::Short,
    }
}

fn plain(filters: &[&str]) -> Setup {
    disk(Shape::Plain, filters)
}

fn panic_with(failure: &Failure) -> ! {
    panic!("{}\n{}", failure.what, failure.trace.join("\n"))
}

/// Nothing is breached in any run of the workloads of requests to the three sectors from `first` on.
fn holds_in_every_run(setup: &Setup, first: u64, depth: Depth) {
    let found = explore(setup, &requests(first), depth);
    if let Some(failure) = &found.failure {
        panic_with(failure);
    }
    println!("{} workloads, {} runs", found.workloads, found.runs);
    assert!(found.workloads >= 7 && found.runs > 1_000, "{}", found.runs);
}

fn holds_in_random_runs(setup: &Setup, seeds: u64) {
    for seed in 0..seeds {
        if let Err(failure) = seeds::run(setup, seed, 400) {
            println!("seed {seed}");
            panic_with(&failure);
        }
    }
}

#[test]
fn a_plain_disk_keeps_its_promises_through_a_crash_at_every_step_of_every_short_workload() {
    holds_in_every_run(&plain(&["stats", "null"]), 0, TWO);
}

#[test]
fn a_striped_disk_keeps_its_promises_through_a_crash_at_every_step_of_every_short_workload() {
    // The middle of the three sectors is the first of the second chunk.
    holds_in_every_run(&disk(Shape::Stripe { targets: 2 }, &["stats"]), 7, TWO);
}

#[test]
fn a_mirrored_disk_keeps_its_promises_through_a_crash_at_every_step_and_any_member_failing_once() {
    let mirror = disk(Shape::Mirror { members: 2 }, &[]);
    let one = Depth {
        longest: 1,
        faults: true,
        runs: 100_000,
    };
    holds_in_every_run(&mirror, 0, one);
}

/// What a mirror does besides requests, and requests that meet it.
fn mirror_acts() -> Vec<Act> {
    let acts = [
        Act::Order(LayoutOrder::Drop(Target(1))),
        Act::Order(LayoutOrder::Rebuild(Target(1))),
        Act::Order(LayoutOrder::Replace(Target(1))),
        Act::Order(LayoutOrder::Scrub { repair: true }),
        Act::Grow,
        Act::Wait,
    ];
    requests(0).into_iter().chain(acts).collect()
}

#[test]
fn a_mirrored_disk_keeps_its_promises_in_sampled_runs_of_two_acts() {
    // They have too many runs to try them all here.
    let depth = Depth {
        longest: 2,
        faults: true,
        runs: 60,
    };
    let mirror = disk(Shape::Mirror { members: 2 }, &[]);
    let found = explore(&mirror, &mirror_acts(), depth);
    if let Some(failure) = &found.failure {
        panic_with(failure);
    }
}

fn write(sector: u64, sectors: u64, flags: Flags) -> GuestRequest {
    GuestRequest {
        op: Op::Write,
        flags,
        sector,
        sectors,
    }
}

#[test]
fn a_disk_that_moves_keeps_its_promises_through_a_crash_at_every_step_and_any_store_failing_once() {
    let depth = Depth {
        longest: 3,
        faults: true,
        runs: 200,
    };
    let acts = [
        Act::Move,
        Act::Guest(write(0, 2, Flags::NONE)),
        Act::Guest(write(1, 2, Flags::FUA)),
        Act::Guest(GuestRequest {
            op: Op::Flush,
            flags: Flags::NONE,
            sector: 0,
            sectors: 0,
        }),
    ];
    let found = explore(&disk(Shape::Movable, &[]), &acts, depth);
    if let Some(failure) = &found.failure {
        panic_with(failure);
    }
    // Every run of a move alone, and of a write that meets it.
    let all = Depth {
        longest: 2,
        runs: 20_000,
        ..depth
    };
    let found = explore(&disk(Shape::Movable, &[]), &acts[..2], all);
    if let Some(failure) = &found.failure {
        panic_with(failure);
    }
    println!("{} runs, {} sampled", found.runs, found.sampled);
}

/// Each I/O of these acts fails in turn.
fn holds_whatever_fails(shape: Shape, new: bool, acts: &[Act]) {
    match fail_each(&disk(shape, &[]), new, acts) {
        Ok(ios) => assert!(ios > 2, "{ios} I/Os of {acts:?}"),
        Err(failure) => panic_with(&failure),
    }
}

#[test]
fn whichever_io_of_an_act_fails_a_disk_with_a_whole_member_has_no_error() {
    let one = Target(1);
    let flush = GuestRequest {
        op: Op::Flush,
        flags: Flags::NONE,
        sector: 0,
        sectors: 0,
    };
    let discard = GuestRequest {
        op: Op::Discard,
        ..write(7, 2, Flags::NONE)
    };
    let read = GuestRequest {
        op: Op::Read,
        ..write(6, 4, Flags::NONE)
    };
    let written = Act::Guest(write(7, 2, Flags::NONE));
    let (flush, dropped) = (Act::Guest(flush), Act::Order(LayoutOrder::Drop(one)));
    let replaced = |target| Act::Order(LayoutOrder::Replace(Target(target)));
    let beyond = GuestRequest {
        sector: SECTORS + 6,
        ..write(0, 4, Flags::NONE)
    };
    let resized = [
        written,
        Act::Resize,
        Act::Guest(beyond),
        dropped,
        Act::Resize,
        Act::Guest(beyond),
        Act::Order(LayoutOrder::Rebuild(one)),
        written,
    ];
    let acts: [&[Act]; 11] = [
        &resized,
        &[written, flush, Act::Guest(read)],
        &[written, Act::Guest(discard), Act::Guest(read), flush],
        &[written, dropped, written, Act::Guest(read)],
        &[
            dropped,
            written,
            Act::Order(LayoutOrder::Rebuild(one)),
            written,
        ],
        &[
            dropped,
            written,
            Act::Order(LayoutOrder::Replace(one)),
            written,
        ],
        &[
            written,
            Act::Order(LayoutOrder::Scrub { repair: true }),
            written,
        ],
        &[written, Act::Wait, Act::Wait, written],
        &[dropped, written, Act::Detach, Act::Guest(read)],
        &[written, Act::Detach, Act::Guest(read)],
        &[written, Act::Grow, written, replaced(2), written],
    ];
    for shape in [
        Shape::Mirror { members: 2 },
        Shape::Mirror { members: 3 },
        Shape::MirrorStripe { members: 4 },
    ] {
        for acts in acts {
            holds_whatever_fails(shape, false, acts);
        }
        holds_whatever_fails(shape, true, &[written, Act::Guest(read)]);
    }
    let moves = [Act::Move, written, Act::Guest(read), Act::Move, written];
    holds_whatever_fails(Shape::Movable, false, &moves);
}

#[test]
fn a_disk_that_is_resized_keeps_its_promises_through_a_crash_at_every_step() {
    let beyond = |op| {
        Act::Guest(GuestRequest {
            op,
            sector: SECTORS - 2,
            ..write(0, 8, Flags::FUA)
        })
    };
    let acts = [
        Act::Resize,
        Act::Guest(write(SECTORS - 2, 2, Flags::NONE)),
        beyond(Op::Write),
        beyond(Op::WriteZeroes),
    ];
    let depth = Depth {
        longest: 3,
        faults: true,
        runs: 40,
    };
    for shape in [
        Shape::Plain,
        Shape::Stripe { targets: 2 },
        Shape::Mirror { members: 2 },
        Shape::MirrorStripe { members: 4 },
    ] {
        let found = explore(&disk(shape, &[]), &acts, depth);
        if let Some(failure) = &found.failure {
            panic_with(failure);
        }
    }
}

#[test]
fn a_mirror_that_grows_keeps_its_promises_through_a_crash_at_every_step() {
    let acts = [
        Act::Grow,
        Act::Order(LayoutOrder::Replace(Target(2))),
        Act::Guest(write(0, 2, Flags::NONE)),
    ];
    let depth = Depth {
        longest: 3,
        faults: true,
        runs: 300,
    };
    let found = explore(&disk(Shape::Mirror { members: 2 }, &[]), &acts, depth);
    if let Some(failure) = &found.failure {
        panic_with(failure);
    }
}

#[test]
fn a_mirror_that_waits_for_its_last_member_keeps_its_promises_through_a_crash_at_every_step() {
    let acts = [
        Act::Order(LayoutOrder::Drop(Target(1))),
        Act::Order(LayoutOrder::OnLoss(OnLoss::Wait)),
        Act::Guest(write(0, 2, Flags::NONE)),
        Act::Guest(GuestRequest {
            op: Op::Read,
            ..write(0, 3, Flags::NONE)
        }),
    ];
    let depth = Depth {
        longest: 4,
        faults: true,
        runs: 40,
    };
    let found = explore(&disk(Shape::Mirror { members: 2 }, &[]), &acts, depth);
    if let Some(failure) = &found.failure {
        panic_with(failure);
    }
}

/// A large mirror of two, whose second member has been dropped and lacks a sector in each of so many regions.
fn degraded(regions: u64, spare: u64) -> World {
    let mirror = Setup {
        sectors: (regions + spare) * REGION_SECTORS,
        ..disk(Shape::Mirror { members: 2 }, &[])
    };
    let mut world = Formatted::new(&mirror).world();
    world.finish();
    world.order(LayoutOrder::Drop(Target(1)));
    for region in 0..regions {
        world.submit(write(region * REGION_SECTORS, 1, Flags::NONE));
        world.finish();
    }
    world
}

const REGION_SECTORS: u64 = REGION / 512;

#[test]
fn directed_a_member_that_lacks_more_regions_than_are_remembered_gets_all_bytes() {
    let mut world = degraded(HOT_MAX as u64 + 2, 2);
    world.order(LayoutOrder::Rebuild(Target(1)));
    world.verify(0..1, &mut RecordedChoices::new(&[]));
    assert_eq!(world.breach(), None);
}

#[test]
fn directed_an_old_copy_of_a_member_in_sync_is_refused() {
    let mut world = Formatted::new(&disk(Shape::Mirror { members: 2 }, &[])).world();
    world.finish();
    let copy = world.copy_of(1);
    for _ in 0..3 {
        world.submit(write(0, 2, Flags::NONE));
        // The region becomes cold, and hot again.
        world.finish();
        world.wait(1);
        world.finish();
    }
    world.crash_again(&mut RecordedChoices::new(&[]));
    world.put_back(1, copy);
    world.finish();
    assert_eq!(world.opened(), Some(Err(Refusal::Missing(Target(1)))));
}

#[test]
fn directed_a_rebuild_that_crashes_again_and_again_goes_on_where_its_member_is_durable() {
    for seed in 0..5 {
        let mut random = RandomChoices::new(seed);
        let mut world = degraded(140, 0);
        world.order(LayoutOrder::Replace(Target(1)));
        for _ in 0..3 {
            let steps = random.choose(10_000);
            for _ in 0..steps {
                match (world.effects(), world.in_flight()) {
                    (0, 0) => break,
                    (0, _) => world.complete(0, Ok(())),
                    _ => world.perform(),
                }
            }
            world.crash_again(&mut random);
        }
        world.verify(0..1, &mut random);
        assert_eq!(world.breach(), None, "seed {seed}");
    }
}

#[test]
fn disks_keep_their_promises_through_random_runs() {
    let stripes = [2, 3].map(|targets| Shape::Stripe { targets });
    let mirrors = [2, 3].map(|members| Shape::Mirror { members });
    let others = [
        Shape::Plain,
        Shape::Movable,
        Shape::MirrorStripe { members: 4 },
    ];
    for shape in others.into_iter().chain(stripes).chain(mirrors) {
        holds_in_random_runs(&disk(shape, &["stats"]), 100);
    }
    // Several regions of a mirror's state.
    let wide = Setup {
        sectors: WIDE,
        ..disk(Shape::Mirror { members: 2 }, &["stats"])
    };
    holds_in_random_runs(&wide, 10);
}

fn cached(devices: u8, mode: CacheMode) -> Shape {
    Shape::Cached {
        over: Over::Plain,
        devices,
        mode,
    }
}

/// Sectors of a disk with a cache: five pages and a part of a block.
const PAGES: u64 = 5 * 128 + 3;

/// Steps of a past failure: as many as a random run of `cargo xtask sim --stack` has.
const PAST_STEPS: u32 = 2_000;

#[test]
fn past_failures_of_the_data_path_stay_repaired() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/stack");
    let files = std::fs::read_dir(dir).expect("the past failures are here");
    let mut count = 0;
    for file in files {
        let text = std::fs::read_to_string(file.expect("a file").path()).expect("readable");
        let past: toml::Table = text.parse().expect("TOML");
        let word = |key: &str| past[key].as_str().expect("a text").to_owned();
        let name = word("shape");
        let (name, load) = match name.strip_suffix(", around") {
            Some(name) => (name, Load::Around),
            None => (name.as_str(), Load::Short),
        };
        let (shape, sectors) = match name {
            "mirror of 2" => (Shape::Mirror { members: 2 }, SECTORS),
            "wide mirror of 2" => (Shape::Mirror { members: 2 }, WIDE),
            "mirror of 3" => (Shape::Mirror { members: 3 }, SECTORS),
            "movable" => (Shape::Movable, SECTORS),
            "write-through" => (cached(1, CacheMode::WriteThrough), PAGES),
            "write-through on 2" => (cached(2, CacheMode::WriteThrough), PAGES),
            "write-back on 2" => (cached(2, CacheMode::WriteBack), PAGES),
            other => panic!("{other} has no past failure so far"),
        };
        assert!(!word("story").trim().is_empty(), "what happened, and why");
        let seed = past["seed"].as_integer().expect("a number");
        let seed = u64::try_from(seed).expect("not negative");
        let setup = Setup {
            sectors,
            load,
            ..disk(shape, &["stats"])
        };
        if let Err(failure) = seeds::run(&setup, seed, PAST_STEPS) {
            panic_with(&failure);
        }
        count += 1;
    }
    assert!(count >= 2);
}

/// A disk that breaks a promise, and a word of what is found.
fn caught(setup: &Setup, says: &str) {
    let found = explore(setup, &requests(0), Depth { longest: 3, ..TWO });
    let failure = found.failure.expect("it is found");
    assert!(failure.what.contains(says), "{says}: {}", failure.what);
    assert!(failure.trace.len() < 40, "a short trace");
}

#[test]
fn what_a_store_does_wrong_is_found() {
    let honest = Defects::default();
    let found = [
        (
            Defects {
                flush: true,
                ..honest
            },
            "may have only one of",
        ),
        (
            Defects {
                fua: true,
                ..honest
            },
            "may have only one of",
        ),
        (
            Defects {
                misdirects: Some(1),
                ..honest
            },
            "may have only one of",
        ),
        (
            Defects {
                rots: Some(2),
                ..honest
            },
            "has damaged bytes",
        ),
    ];
    for (defects, says) in found {
        caught(
            &Setup {
                defects,
                ..plain(&[])
            },
            says,
        );
    }
}

#[test]
fn a_filter_that_loses_or_tears_what_it_answers_is_found() {
    for filter in [
        "fault:lost,op=write",
        "fault:torn,op=write",
        "fault:lost,op=flush",
    ] {
        caught(&plain(&[filter]), "may have only one of");
    }
}

#[test]
fn the_trace_of_a_failed_seed_is_shortened() {
    let setup = plain(&["fault:lost,op=write,after=3"]);
    let failure = (0..50).find_map(|seed| seeds::run(&setup, seed, 400).err());
    let failure = failure.expect("some seed writes and reads");
    assert!(failure.trace.len() < 200, "{}", failure.trace.join("\n"));
}
