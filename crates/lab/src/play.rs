//! Plays a scenario of the simulator's on real daemons: one per host, on one emulated array, in real time.
//!
//! The guests are the simulator's, the array is the model's, and what comes out is judged by the same code; in between is
//! the whole of Tidegate, started and set up as an administrator would. The array, not the CPU, is to be the bound: a run
//! says how busy the machine was, and one in which the array waited for the CPU says nothing about I/O control.
//!
//! # Always true
//! - Every expectation of a scenario is judged or told as not judged; none is left out.
//! - Faults cannot be played: a scenario that has some is refused.
//!
//! # Picture
//! ```text
//!   guest ── NBD ──> daemon of host 1 ── NBD ──┐
//!   guest ── NBD ──> daemon of host 1 ── NBD ──┼──> emulated array
//!   guest ── NBD ──> daemon of host 2 ── NBD ──┘
//!                     └── .tidegate/hosts.v1 ──┘
//! ```

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tidegate_core::units::{Span, Time};
use tidegate_sim::results::{BIN, DatastoreBin, HostBin, Recorder, Seen};
use tidegate_sim::scenario::Kind;
use tidegate_sim::{Policy, Run, Scenario, Variant, judge};

use player::{Played, Player, Word};
use stage::Stage;

mod player;
mod stage;

/// What one way of playing a scenario came to.
#[derive(Clone, Debug)]
pub struct Performance {
    /// As the simulator's judge takes it.
    pub run: Run,
    /// I/Os that ended with an error: there should be none.
    pub errors: u64,
}

/// Plays a scenario in every way that its expectations speak of; `say` hears what is being done.
///
/// # Errors
/// The scenario cannot be played on daemons, or something of the stage fails.
pub fn play(
    program: &Path,
    scenario: &Scenario,
    seed: u64,
    say: &mut dyn FnMut(&str),
) -> Result<BTreeMap<Variant, Performance>> {
    if !scenario.faults.is_empty() {
        bail!(
            "scenario {} has faults, which only the simulator can play",
            scenario.name
        );
    }
    let mut performances = BTreeMap::new();
    for variant in judge::needed(scenario) {
        if variant.policy == Policy::Parda {
            say("left out: PARDA is the simulator's alone");
            continue;
        }
        say(&format!(
            "{} for {}",
            words(scenario, &variant),
            scenario.ends().since(Time::ZERO)
        ));
        let performance = perform(program, scenario, &variant, seed, &mut || Ok(()))
            .with_context(|| format!("playing {}", words(scenario, &variant)))?;
        performances.insert(variant, performance);
    }
    Ok(performances)
}

/// What each expectation of a scenario came to, a line each, and whether all that could be judged hold.
#[must_use]
pub fn judged(
    scenario: &Scenario,
    performances: &BTreeMap<Variant, Performance>,
) -> (String, bool) {
    let runs = performances.iter();
    let runs: BTreeMap<_, _> = runs
        .map(|(variant, performance)| (variant.clone(), performance.run.clone()))
        .collect();
    let mut all = true;
    let mut text = String::new();
    for judged in judge::judgements(scenario, &runs) {
        let expect = &scenario.expects[judged.expect];
        let against = expect.against.as_ref().map(|against| &against.run);
        let there = |variant: &Variant| runs.contains_key(variant);
        let verdict = match (
            there(&expect.run) && against.is_none_or(there),
            judged.holds,
        ) {
            (false, _) => "----",
            (true, true) => "pass",
            (true, false) => "FAIL",
        };
        all &= verdict != "FAIL";
        text += &format!(
            "{verdict}  {:>9.3}  {}\n",
            judged.value,
            judge::words(scenario, expect)
        );
    }
    for (variant, performance) in performances {
        if performance.errors > 0 {
            all = false;
            let says = words(scenario, variant);
            text += &format!(
                "FAIL  {:>9}  I/Os ended with an error: {says}\n",
                performance.errors
            );
        }
    }
    (text, all)
}

/// A variant in words.
fn words(scenario: &Scenario, variant: &Variant) -> String {
    let mut words = format!("{} under {}", scenario.name, variant.policy.word());
    if let Some(disks) = &variant.alone {
        let names = disks.iter().map(|&disk| scenario.disks[disk].name.as_str());
        words += &format!(", {} alone", names.collect::<Vec<_>>().join(", "));
    }
    words
}

/// One run in real time. `heed` is called every tenth of a second; its error ends the run.
///
/// # Errors
/// Something of the stage fails, or `heed` says so.
pub fn perform(
    program: &Path,
    scenario: &Scenario,
    variant: &Variant,
    seed: u64,
    heed: &mut dyn FnMut() -> Result<()>,
) -> Result<Performance> {
    let threshold = variant.threshold.unwrap_or(scenario.datastore.threshold);
    let stage = Stage::new(program, scenario, variant.policy, threshold, seed)?;
    let begun = Instant::now();
    let mut players = Vec::new();
    for (place, disk) in scenario.disks.iter().enumerate() {
        let socket = stage.socket(place, scenario);
        let seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place as u64;
        players.push(Player::new(place, disk, seed, &socket, begun)?);
    }
    // The guests' clock began before the first bin by what connecting took: the plan is shifted by as much.
    let shift = since(begun);
    let bins = conduct(&stage, scenario, variant, &players, begun, shift, heed)?;
    let played: Result<Vec<Played>> = players.into_iter().map(Player::over).collect();
    let mut recorder = Recorder::new(scenario, Kind::Unknown);
    let errors = record(&mut recorder, played?, &bins, shift);
    let run = Run {
        variant: variant.clone(),
        seed,
        fingerprint: 0,
        results: recorder.results(),
        lag: 0.0,
        breaches: Vec::new(),
        started: 0,
    };
    Ok(Performance { run, errors })
}

/// How array and hosts stood at the end of a bin.
struct Bin {
    ends: Time,
    array: DatastoreBin,
    hosts: Vec<HostBin>,
}

/// Lets the phases happen, and looks at everything once a bin.
fn conduct(
    stage: &Stage,
    scenario: &Scenario,
    variant: &Variant,
    players: &[Player],
    begun: Instant,
    shift: Span,
    heed: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<Bin>> {
    let mut bins = Vec::new();
    let _before = stage.array().did();
    let mut at = Time::ZERO;
    for phase in &scenario.phases {
        stage.array().set_speed(phase.speed);
        for (disk, settings) in &phase.set {
            stage.set(*disk, scenario, settings)?;
        }
        for (place, player) in players.iter().enumerate() {
            let here = variant
                .alone
                .as_ref()
                .is_none_or(|alone| alone.contains(&place));
            let word = if phase.active[place] && here {
                Word::Start
            } else {
                Word::Stop
            };
            player.tell(word);
        }
        while at < phase.ends {
            at = at + BIN;
            let ends = at + shift;
            sleep_until(begun, ends);
            heed()?;
            let did = stage.array().did();
            let hosts = (0..scenario.hosts.len()).map(|host| stage.standing(host));
            bins.push(Bin {
                ends,
                array: DatastoreBin {
                    ios: did.ios,
                    latency_ns: did.latency_ns,
                    outstanding: did.outstanding,
                    coordination: 0,
                },
                hosts: hosts.collect::<Result<_>>()?,
            });
        }
    }
    Ok(bins)
}

/// Sorts what guests saw into bins. Returns how many I/Os ended with an error.
fn record(recorder: &mut Recorder, played: Vec<Played>, bins: &[Bin], shift: Span) -> u64 {
    let errors = played.iter().map(|played| played.errors).sum();
    let mut orders: Vec<(Time, usize, Span)> = Vec::new();
    let mut ios: Vec<Seen> = Vec::new();
    for (disk, played) in played.into_iter().enumerate() {
        orders.extend(played.orders.into_iter().map(|(at, took)| (at, disk, took)));
        ios.extend(played.ios);
    }
    ios.sort_by_key(|seen| seen.ended);
    orders.sort_by_key(|(at, ..)| *at);
    let (mut ios, mut orders) = (ios.into_iter().peekable(), orders.into_iter().peekable());
    for bin in bins {
        while let Some(seen) = ios.next_if(|seen| seen.ended < bin.ends) {
            let earlier = |at: Time| Time::ZERO + at.since(Time::ZERO + shift);
            recorder.ended(&Seen {
                arrived: earlier(seen.arrived),
                ended: earlier(seen.ended),
                ..seen
            });
        }
        while let Some((_, disk, took)) = orders.next_if(|(at, ..)| *at < bin.ends) {
            recorder.ordered(disk, took);
        }
        recorder.bin(bin.array, &bin.hosts);
    }
    errors
}

fn since(begun: Instant) -> Span {
    Span::from_nanos(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn sleep_until(begun: Instant, at: Time) {
    let until = Duration::from_nanos(at.as_nanos());
    if let Some(left) = until.checked_sub(begun.elapsed()) {
        std::thread::sleep(left);
    }
}
