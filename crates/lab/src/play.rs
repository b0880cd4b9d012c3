//! Plays a simulator scenario on real daemons, one per host, on one emulated array, in real time.
//!
//! The guests are the simulator's, the array is the model's, and what comes out is judged by the same code; in between is
//! the whole of Tidegate, started and set up as an administrator would. The array, not the CPU, is to be the bound: a run
//! says by how much the array's answers were later than the model had them, and one in which that is not small against
//! its latencies says nothing about I/O control.
//!
//! # Always true
//! - Every expectation of a scenario is judged or reported as not judged; none is left out.
//! - Limits are watched over every interval, whatever a scenario expects ([`mod@watch`]).
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
use tidegate_sim::results::{BIN, CacheDid, DatastoreBin, HostBin, Recorder, Seen};
use tidegate_sim::scenario::{Kind, Measure, MemberChange, Phase};
use tidegate_sim::{Policy, Run, Scenario, Variant, judge};

use crate::array::Did;
use caches::Caches;
pub(crate) use caches::frees_flash;
use hosts::{Extras, Hosts};
use player::{Played, Player};

pub(crate) mod arrays;
mod caches;
pub(crate) mod hosts;
mod player;
pub mod watch;

/// What one way of playing a scenario came to.
#[derive(Clone, Debug)]
pub struct Performance {
    /// As the simulator's judge takes it.
    pub run: Run,
    /// I/Os that ended with an error: there should be none.
    pub errors: u64,
    /// What the array did, and how late it was.
    pub array: Did,
}

/// Reads a scenario's file.
///
/// # Errors
/// It cannot be read, or is no scenario.
pub fn read(file: &Path) -> Result<Scenario> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Scenario::read(&text).with_context(|| format!("{} is no scenario", file.display()))
}

/// Plays a scenario in every way that its expectations need, all at once: they then meet the same noise. `say` gets what is
/// being done.
///
/// # Errors
/// The scenario cannot be played on daemons, or a daemon fails.
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
    let mut variants = Vec::new();
    for variant in judge::needed(scenario) {
        if let Some(why) = not_on_daemons(scenario, &variant) {
            say(&format!("left out: {why}"));
            continue;
        }
        variants.push(variant);
    }
    let lasts = scenario.ends().since(Time::ZERO);
    std::thread::scope(|scope| {
        let start = |variant: Variant| {
            let says = words(scenario, &variant);
            say(&format!("{says} for {lasts}"));
            let own = variant.clone();
            let performed = move || perform(program, scenario, &own, seed, &mut || Ok(()));
            (variant, says, scope.spawn(performed))
        };
        let started: Vec<_> = variants.into_iter().map(start).collect();
        let ended = started.into_iter().map(|(variant, says, thread)| {
            let performance = thread.join().unwrap_or_else(|_| bail!("it panicked"));
            let performance = performance.with_context(|| format!("playing {says}"))?;
            Ok((variant, performance))
        });
        ended.collect()
    })
}

/// Why a way of playing a scenario cannot be played on real daemons, where it cannot.
pub(crate) fn not_on_daemons(scenario: &Scenario, way: &Variant) -> Option<&'static str> {
    if way.policy == Policy::Parda {
        return Some("PARDA is the simulator's alone");
    }
    let policy = scenario.cache(way).and_then(|cache| cache.policy);
    policy.map(|_| "daemons choose the policy of a cache by themselves")
}

/// The verdict on what was played, by windows of real time ([`judge::by_window`]), and whether all holds.
#[must_use]
pub fn judged(
    scenario: &Scenario,
    performances: &BTreeMap<Variant, Performance>,
) -> (String, bool) {
    let runs = performances.iter();
    let runs = runs.map(|(variant, performance)| (variant.clone(), performance.run.clone()));
    let (mut text, mut all) = judge::by_window::judged(scenario, &runs.collect());
    for (variant, Performance { errors, array, .. }) in performances {
        let (says, (mean, most)) = (words(scenario, variant), lateness(array));
        all &= *errors == 0;
        text += &format!(
            "      {says}: {errors} failed I/Os; answers {mean} late on average, {most} at most\n"
        );
    }
    (text, all)
}

/// An answer of the array is so late only on a machine that stood still. It is 16 ms at most where two cores are fully busy
/// with other work, and 40 to 200 ms where a hypervisor takes them away.
const STOOD_STILL: Span = Span::from_millis(25);

/// The same for answers on average: 0.17 ms on busy cores, 0.3 to 2.6 ms without them.
const LATE: Span = Span::from_micros(250);

/// Whether a machine stood still on which answers were so late, on average and at most.
pub(crate) fn is_still(mean: Span, most: Span) -> bool {
    mean > LATE || most > STOOD_STILL
}

/// How late answers were, on average and at most.
pub(crate) fn lateness(array: &Did) -> (Span, Span) {
    let mean = array.late_ns / array.ios.max(1);
    (Span::from_nanos(mean), Span::from_nanos(array.latest_ns))
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
/// A host or a guest fails, or `heed` fails.
pub fn perform(
    program: &Path,
    scenario: &Scenario,
    variant: &Variant,
    seed: u64,
    heed: &mut dyn FnMut() -> Result<()>,
) -> Result<Performance> {
    let threshold = variant.threshold.unwrap_or(scenario.datastore.threshold);
    let own;
    let scenario = match scenario.configurations.is_empty() {
        true => scenario,
        false => {
            let mut with_array = scenario.clone();
            with_array.datastore.array = scenario.array(variant).clone();
            own = with_array;
            &own
        }
    };
    let cache = scenario.cache(variant);
    let extras = Extras {
        config: &caches::config(cache),
        ..Extras::default()
    };
    let hosts = Hosts::new(program, scenario, variant.policy, threshold, seed, extras)?;
    let mut caches = Caches::new(&hosts, scenario, cache)?;
    let begun = Instant::now();
    let mut cast = Cast {
        scenario,
        seed,
        begun,
        players: Vec::new(),
    };
    cast.enter(&hosts, Time::ZERO)?;
    // The guests' clock began before the first bin by what connecting took: the plan is shifted by as much.
    let shift = since(begun);
    let _before = caches.did(&hosts)?;
    let stage = Stage {
        hosts: &hosts,
        caches: &mut caches,
    };
    let (bins, rebuilds) = conduct(stage, &mut cast, variant, shift, heed)?;
    let players = cast.players.into_iter();
    let played = players.map(|player| player.map_or(Ok(Played::default()), Player::over));
    let played = played.collect::<Result<Vec<Played>>>()?;
    let mut recorder = Recorder::new(scenario, Kind::Unknown);
    let breaches = match variant.policy {
        Policy::None => Vec::new(),
        Policy::Ours | Policy::Parda => watch::breaches(scenario, &played, shift),
    };
    let errors = record(&mut recorder, played, &bins, shift);
    for (at, disk) in rebuilds.ended {
        recorder.rebuilt(Time::ZERO + at.since(Time::ZERO + shift), disk);
    }
    let run = Run {
        variant: variant.clone(),
        seed,
        fingerprint: 0,
        results: recorder.results(),
        lag: 0.0,
        breaches,
        started: 0,
    };
    let mut array = Did::default();
    for bin in &bins {
        array.ios += bin.array.ios;
        array.late_ns += bin.late_ns;
        array.latest_ns = array.latest_ns.max(bin.latest_ns);
    }
    Ok(Performance { run, errors, array })
}

/// The guests, each from the moment at which its host has joined.
struct Cast<'a> {
    scenario: &'a Scenario,
    seed: u64,
    begun: Instant,
    /// By disk.
    players: Vec<Option<Player>>,
}

impl Cast<'_> {
    /// Lets those hosts join whose time has come by `at`, and connects their guests. Whether there were any.
    fn enter(&mut self, hosts: &Hosts, at: Time) -> Result<bool> {
        let scenario = self.scenario;
        self.players.resize_with(scenario.disks.len(), || None);
        let mut came = Vec::new();
        for (place, disk) in scenario.disks.iter().enumerate() {
            let joins = scenario.hosts[disk.host].joins;
            if joins > at || self.players[place].is_some() {
                continue;
            }
            if joins > Time::ZERO && !came.contains(&disk.host) {
                hosts.join(disk.host, scenario)?;
            }
            came.push(disk.host);
            let socket = hosts.socket(place, scenario);
            let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place as u64;
            let player = Player::new(place, disk, seed, &socket, self.begun)?;
            self.players[place] = Some(player);
        }
        Ok(!came.is_empty())
    }

    /// Starts and stops guests as a phase has it.
    fn cue(&self, phase: &Phase, variant: &Variant) {
        for (place, player) in self.players.iter().enumerate() {
            let alone = variant.alone.as_ref();
            let here = alone.is_none_or(|alone| alone.contains(&place));
            match player {
                Some(player) if phase.active[place] && here => player.start(),
                Some(player) => player.stop(),
                None => {}
            }
        }
    }
}

/// The daemons, and their caches.
struct Stage<'a> {
    hosts: &'a Hosts,
    caches: &'a mut Caches,
}

/// How array and hosts stood at the end of a bin.
struct Bin {
    ends: Time,
    array: DatastoreBin,
    late_ns: u64,
    latest_ns: u64,
    hosts: Vec<HostBin>,
    /// What the caches of disks did, since they were looked at before.
    caches: Vec<(usize, CacheDid)>,
}

/// How many bins there are between two looks at how hosts stand.
const LOOK: usize = 10;

/// Lets the phases happen, and looks at everything once a bin.
fn conduct(
    Stage { hosts, caches }: Stage<'_>,
    cast: &mut Cast<'_>,
    variant: &Variant,
    shift: Span,
    heed: &mut dyn FnMut() -> Result<()>,
) -> Result<(Vec<Bin>, Rebuilds)> {
    let scenario = cast.scenario;
    // Asking a host how it stands is work for it: once a second, and in every bin only where it is judged.
    let mut expects = scenario.expects.iter();
    let every = match expects.any(|expect| expect.what == Measure::Window) {
        true => 1,
        false => LOOK,
    };
    let mut standing = Vec::new();
    let mut bins = Vec::new();
    let _before = hosts.arrays().did();
    let mut rebuilds = Rebuilds::default();
    let mut at = Time::ZERO;
    for phase in &scenario.phases {
        hosts.arrays().set_speed(phase.speed);
        for (disk, settings) in &phase.set {
            hosts.set(*disk, scenario, settings)?;
        }
        cast.enter(hosts, at)?;
        for change in &phase.members {
            if variant
                .alone
                .as_ref()
                .is_none_or(|alone| alone.contains(&change.disk))
            {
                rebuilds.change(hosts, scenario, change)?;
            }
        }
        cast.cue(phase, variant);
        while at < phase.ends {
            if cast.enter(hosts, at)? {
                cast.cue(phase, variant);
            }
            at = at + BIN;
            let ends = at + shift;
            sleep_until(cast.begun, ends);
            heed()?;
            let did = hosts.arrays().did();
            rebuilds.look(hosts, scenario, ends)?;
            if bins.len() % every == 0 {
                let hosts = (0..scenario.hosts.len()).map(|host| hosts.standing(host));
                standing = hosts.collect::<Result<_>>()?;
            }
            // The last bin of a phase counts what is left of it.
            let cached = match bins.len() % LOOK == LOOK - 1 || at >= phase.ends {
                true => caches.did(hosts)?,
                false => Vec::new(),
            };
            bins.push(Bin {
                ends,
                array: DatastoreBin {
                    ios: did.ios,
                    latency_ns: did.latency_ns,
                    outstanding: did.outstanding,
                    coordination: 0,
                },
                late_ns: did.late_ns,
                latest_ns: did.latest_ns,
                hosts: standing.clone(),
                caches: cached,
            });
        }
    }
    Ok((bins, rebuilds))
}

/// Rebuilds of mirrors.
#[derive(Default)]
struct Rebuilds {
    /// Disks that are being rebuilt.
    pending: Vec<usize>,
    /// When rebuilds have ended, each with its disk.
    ended: Vec<(Time, usize)>,
}

impl Rebuilds {
    /// Removes a member, or adds it.
    fn change(&mut self, hosts: &Hosts, scenario: &Scenario, change: &MemberChange) -> Result<()> {
        hosts.change_member(change, scenario)?;
        self.pending.retain(|disk| *disk != change.disk);
        if !change.removes {
            self.pending.push(change.disk);
        }
        Ok(())
    }

    /// Looks whether any has ended.
    fn look(&mut self, hosts: &Hosts, scenario: &Scenario, now: Time) -> Result<()> {
        let mut left = Vec::new();
        for disk in self.pending.drain(..) {
            match hosts.is_in_sync(disk, scenario)? {
                true => self.ended.push((now, disk)),
                false => left.push(disk),
            }
        }
        self.pending = left;
        Ok(())
    }
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
        for (disk, did) in &bin.caches {
            recorder.cached(*disk, *did);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn array(late_us: u64, latest_ms: u64) -> Did {
        Did {
            ios: 1_000,
            late_ns: late_us * 1_000 * 1_000,
            latest_ns: latest_ms * 1_000_000,
            ..Did::default()
        }
    }

    #[test]
    fn a_machine_that_stood_still_for_a_moment_or_was_slow_all_the_time_disturbs() {
        let stood_still = |array: &Did| {
            let (mean, most) = lateness(array);
            is_still(mean, most)
        };
        assert!(!stood_still(&array(170, 16)));
        assert!(stood_still(&array(170, 41)));
        assert!(stood_still(&array(313, 16)));
        assert!(!stood_still(&Did::default()));
    }
}
