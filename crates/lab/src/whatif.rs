//! Predicts the effect of another policy: a datastore's last minutes are simulated as they were and as they would be.
//!
//! A [`Case`] is a scenario with what was measured of it: [`live`] makes one of the accounts that a daemon gives of its
//! datastore, [`store`] of the results that `lab run` has left. [`predict`] runs it twice in virtual time, as it is and with
//! the [`Changes`], and lays both beside what was measured. How far the first is from what was measured says what the
//! second is worth.
//!
//! # Always true
//! - The same case and changes give the same prediction.
//! - What a case takes for granted is among its notes, and those are among the prediction's.
//!
//! # Units
//! I/Os a second; microseconds, as guests see it; percent.

use std::sync::mpsc::Receiver;

use anyhow::{Context, Result, bail};
use serde::Serialize;
pub use tidegate_core::units::Span;
use tidegate_core::units::Time;
use tidegate_sim::results::{BIN, DiskSeries};
pub use tidegate_sim::scenario::{Ceiling, Control as Mode, Threshold};
use tidegate_sim::scenario::{Control, Scenario, Settings};
use tidegate_sim::{Policy, Run, Variant, world};

use crate::attend;
use crate::experiment::summary;

pub mod accounts;
pub mod agreement;
pub mod live;
pub mod store;

pub use agreement::{Agreement, Worth};

/// A scenario, and what came of it where it was for real.
#[derive(Clone, Debug)]
pub struct Case {
    /// Which datastore or experiment it is of.
    pub of: String,
    /// What is to be simulated.
    pub scenario: Scenario,
    /// The phase that counts.
    pub phase: usize,
    /// What is left out at its beginning.
    pub skip: Span,
    /// How long what was measured covers.
    pub covers_s: f64,
    /// By disk, what it did; none if that is not known.
    pub measured: Vec<Option<Did>>,
    /// What is known of the array.
    pub array: Known,
    /// What is taken for granted, a sentence each.
    pub notes: Vec<String>,
}

/// How well an array is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Known {
    /// It is the very one that was measured.
    Whole,
    /// By one point of its curve: at this latency, as hosts report it, it did what it did.
    Point {
        /// The latency.
        latency_us: f64,
    },
}

/// What a disk did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Did {
    /// I/Os a second.
    pub iops: f64,
    /// How long they took, in the mean, as the guest saw it.
    pub latency_us: f64,
}

/// What is to be otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Of disks, by name.
    pub disks: Vec<(String, Setting)>,
    /// Where the datastore counts as congested.
    pub threshold: Option<Threshold>,
}

/// One setting of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// Relative weight.
    Shares(u32),
    /// IOPS floor; 0 for none.
    Reservation(u32),
    /// IOPS ceiling; none for none.
    Limit(Option<u64>),
    /// Ceiling in bytes a second; none for none.
    Bandwidth(Option<u64>),
}

/// What the simulator says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// The datastore, or the experiment.
    pub of: String,
    /// How long what was measured covers.
    pub covers_s: f64,
    /// What is otherwise, a sentence each.
    pub changes: Vec<String>,
    /// By disk.
    pub disks: Vec<Row>,
    /// All disks together.
    pub all: Row,
    /// How well the simulator has what was measured.
    pub agreement: Agreement,
    /// What is taken for granted, a sentence each.
    pub notes: Vec<String>,
}

/// One disk: measured, simulated as it is, simulated as it would be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The disk.
    pub disk: String,
    /// The host that serves it.
    pub host: String,
    /// What it is set to.
    pub policy: String,
    /// What it would be set to; absent where that is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_changed: Option<String>,
    /// As it was measured; absent if that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Did>,
    /// Simulated as it is.
    pub as_is: Did,
    /// Simulated with the changes.
    pub changed: Did,
    /// By how much the changes change its throughput in the simulator.
    pub iops_change_percent: f64,
    /// The same of its latency.
    pub latency_change_percent: f64,
}

/// Simulates it as it is and with the changes. `heed` is called some ten times a second; its error ends the work.
///
/// # Errors
/// A disk is named that it does not have, it cannot be modelled, or `heed` fails.
pub fn predict(
    case: &Case,
    changes: &Changes,
    heed: &mut dyn FnMut() -> Result<()>,
) -> Result<Prediction> {
    let changed = changes.applied(&case.scenario)?;
    let runs = [run(&case.scenario)?, run(&changed)?];
    let [as_is, then] = runs.map(|run| attend::wait(&run, heed)?);
    let (run, then) = (as_is?, case.figures(&then?));
    let as_is = case.figures(&run);
    let disks = case.scenario.disks.iter().zip(&changed.disks);
    let rows = disks.enumerate().map(|(place, (disk, after))| {
        let words = |settings: &Settings| {
            let more = summary::settings(&case.scenario, settings);
            let between = if more.is_empty() { "" } else { ", " };
            format!("shares {}{between}{more}", settings.shares)
        };
        Row {
            host: case.scenario.hosts[disk.host].name.clone(),
            policy: words(&disk.policy),
            policy_changed: (after.policy != disk.policy).then(|| words(&after.policy)),
            ..Row::of(&disk.name, case.measured[place], as_is[place], then[place])
        }
    });
    let rows: Vec<Row> = rows.collect();
    let known: Option<Vec<Did>> = case.measured.iter().copied().collect();
    let all = Row::of(
        "all",
        known.map(|known| together(&known)),
        together(&as_is),
        together(&then),
    );
    let mut notes = case.notes.clone();
    notes.extend(outgrown(case, &as_is, &then));
    let mut agreement = Agreement::of(case, &run, &as_is);
    if let Some(note) = off_the_point(case, changes, &together(&as_is)) {
        agreement.worth = Worth::Poor;
        agreement.says += "; of another threshold it is a hint only";
        notes.push(note);
    }
    Ok(Prediction {
        of: case.of.clone(),
        covers_s: case.covers_s,
        changes: changes.words(&case.scenario),
        agreement,
        disks: rows,
        all,
        notes,
    })
}

/// Starts a simulation on a thread of its own.
fn run(scenario: &Scenario) -> Result<Receiver<Result<Run>>> {
    let scenario = scenario.clone();
    attend::start("simulator", move || {
        let run = world::run(&scenario, &Variant::of(Policy::Ours), 1);
        run.context("it cannot be modelled")
    })
}

/// A disk that gets much more than it had may want less of it than its guest is taken to.
fn outgrown(case: &Case, as_is: &[Did], then: &[Did]) -> Option<String> {
    let rows = case.scenario.disks.iter().zip(as_is.iter().zip(then));
    let more = rows.filter(|(_, (as_is, then))| then.iops > 1.2 * as_is.iops);
    let names: Vec<&str> = more.map(|(disk, _)| disk.name.as_str()).collect();
    let guessed = case.notes.iter().any(|note| note == live::GUESSED);
    (guessed && !names.is_empty()).then(|| {
        format!(
            "more for {}: if their guests want no more than they have, they will not take it",
            names.join(", ")
        )
    })
}

/// What another threshold does to an array of which one point is known: it goes to another point.
fn off_the_point(case: &Case, changes: &Changes, as_is: &Did) -> Option<String> {
    let (Known::Point { latency_us }, Some(threshold)) = (case.array, changes.threshold) else {
        return None;
    };
    let range = match threshold {
        Threshold::Fixed(at) if latency_us > 0.0 => {
            // Below the knee throughput falls with the latency that is let be, above it not at all.
            let other = as_is.iops * micros(at) / latency_us;
            let (least, most) = (other.min(as_is.iops), other.max(as_is.iops));
            format!("all disks together would do from {least:.0} to {most:.0} a second")
        }
        Threshold::Fixed(_) | Threshold::Auto | Threshold::Off => {
            "all disks together would do otherwise than they do".to_owned()
        }
    };
    Some(format!(
        "at another threshold {range}: where between depends on where the array's knee is, which was not measured"
    ))
}

fn micros(span: Span) -> f64 {
    span.as_nanos() as f64 / 1e3
}

/// Several disks as one.
fn together(disks: &[Did]) -> Did {
    let iops: f64 = disks.iter().map(|did| did.iops).sum();
    let inside: f64 = disks.iter().map(|did| did.iops * did.latency_us).sum();
    Did {
        iops,
        latency_us: if iops > 0.0 { inside / iops } else { 0.0 },
    }
}

fn off(is: f64, should: f64) -> f64 {
    match should > 0.0 {
        true => (is / should - 1.0) * 100.0,
        false => 0.0,
    }
}

impl Case {
    /// What each disk did in the phase that counts.
    fn figures(&self, run: &Run) -> Vec<Did> {
        let phase = &self.scenario.phases[self.phase];
        let disks = run.results.disks.iter();
        let each = disks.map(|series| did(series, phase.begins + self.skip, phase.ends));
        each.collect()
    }

    /// The datastore's latency in that phase, in the mean, as its hosts report it.
    fn datastore_latency_us(&self, run: &Run) -> f64 {
        let phase = &self.scenario.phases[self.phase];
        let bin = |at: Time| usize::try_from(at.as_nanos() / BIN.as_nanos()).unwrap_or(0);
        let (from, to) = (bin(phase.begins + self.skip), bin(phase.ends));
        let bins = run.results.hosts.iter();
        let bins = bins.flat_map(|host| host.bins.iter().take(to).skip(from));
        let (sum, count) = bins.fold((0, 0), |(sum, count), bin| {
            (sum + bin.latency_us, count + 1)
        });
        sum as f64 / f64::from(count.max(1))
    }
}

/// What a disk did between two moments.
fn did(series: &DiskSeries, from: Time, to: Time) -> Did {
    let ios: u64 = series.between(from, to).iter().map(|bin| bin.ios).sum();
    let seconds = to.since(from).as_nanos() as f64 / 1e9;
    let took = series.latencies(from, to);
    let sum: u64 = took.iter().map(|us| u64::from(*us)).sum();
    Did {
        iops: ios as f64 / seconds.max(1e-9),
        latency_us: sum as f64 / took.len().max(1) as f64,
    }
}

impl Row {
    fn of(name: &str, measured: Option<Did>, as_is: Did, changed: Did) -> Row {
        Row {
            disk: name.to_owned(),
            host: String::new(),
            policy: String::new(),
            policy_changed: None,
            measured,
            as_is,
            changed,
            iops_change_percent: off(changed.iops, as_is.iops),
            latency_change_percent: off(changed.latency_us, as_is.latency_us),
        }
    }
}

impl Changes {
    /// The scenario with these changes, in all its phases.
    fn applied(&self, scenario: &Scenario) -> Result<Scenario> {
        let mut changed = scenario.clone();
        for (name, setting) in &self.disks {
            let Some(place) = scenario.disks.iter().position(|disk| disk.name == *name) else {
                let names = scenario.disks.iter().map(|disk| disk.name.as_str());
                let names: Vec<&str> = names.collect();
                bail!(
                    "nothing is known of a disk {name}: there are {}",
                    names.join(", ")
                );
            };
            setting.apply(&mut changed.disks[place].policy);
            for phase in &mut changed.phases {
                let set = phase.set.iter_mut();
                for (_, settings) in set.filter(|(disk, _)| *disk == place) {
                    setting.apply(settings);
                }
            }
        }
        if let Some(threshold) = self.threshold {
            changed.datastore.threshold = threshold;
        }
        Ok(changed)
    }

    /// In words, each with what it was.
    fn words(&self, scenario: &Scenario) -> Vec<String> {
        let mut words = Vec::new();
        for (name, setting) in &self.disks {
            let disk = scenario.disks.iter().find(|disk| disk.name == *name);
            if let Some(disk) = disk {
                words.push(format!("{name}: {}", setting.words(&disk.policy)));
            }
        }
        if let Some(threshold) = self.threshold {
            let was = summary::threshold(scenario.datastore.threshold);
            let is = summary::threshold(threshold);
            words.push(format!("congestion threshold {is}, was {was}"));
        }
        words
    }
}

impl Setting {
    fn apply(self, settings: &mut Settings) {
        match self {
            Setting::Shares(shares) => settings.shares = shares,
            Setting::Reservation(floor) => settings.reservation = floor,
            Setting::Limit(limit) => settings.limit = limit.map(steady),
            Setting::Bandwidth(limit) => settings.bandwidth = limit.map(steady),
        }
    }

    fn words(self, was: &Settings) -> String {
        let limit = |limit: Option<u64>| limit.map_or("none".to_owned(), |at| at.to_string());
        let sustained = |ceiling: Option<Ceiling>| ceiling.map(|ceiling| ceiling.sustained);
        match self {
            Setting::Shares(shares) => format!("shares {shares}, was {}", was.shares),
            Setting::Reservation(floor) => format!("reservation {floor}, was {}", was.reservation),
            Setting::Limit(at) => {
                format!("limit {}, was {}", limit(at), limit(sustained(was.limit)))
            }
            Setting::Bandwidth(at) => format!(
                "bandwidth limit {}, was {}",
                limit(at),
                limit(sustained(was.bandwidth))
            ),
        }
    }
}

/// A limit without bursts, as the daemon makes it of a bare number: what timers and batches delay is let through.
#[must_use]
pub fn steady(sustained: u64) -> Ceiling {
    Ceiling {
        sustained,
        peak: 0,
        burst: (sustained / 10).max(1),
    }
}

/// What is to be said of how far control goes.
fn mode_note(mode: Control) -> Option<String> {
    match mode {
        Control::On => None,
        Control::Observe => Some(
            "I/O control only observes here: no disk is limited by shares, in the simulator neither"
                .to_owned(),
        ),
        Control::Off => {
            Some("I/O control is off here: only limits hold, in the simulator too".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"
        name = "two"
        title = "Two disks"
        lasts = "30s"
        [datastore]
        array = { servers = 4, read = "10ms" }
        threshold = "25ms"
        [[host]]
        name = "h"
        [[disk]]
        name = "a"
        host = "h"
        workload = { kind = "access", outstanding = 16 }
        [[disk]]
        name = "b"
        host = "h"
        workload = { kind = "access", outstanding = 16 }
    "#;

    fn case(measured: [Option<Did>; 2]) -> Case {
        Case {
            of: "test".to_owned(),
            scenario: Scenario::read(TWO).expect("a scenario"),
            phase: 0,
            skip: Span::from_secs(10),
            covers_s: 30.0,
            measured: measured.to_vec(),
            array: Known::Whole,
            notes: Vec::new(),
        }
    }

    fn shares(disk: &str, shares: u32) -> Changes {
        Changes {
            disks: vec![(disk.to_owned(), Setting::Shares(shares))],
            threshold: None,
        }
    }

    #[test]
    fn four_times_the_shares_bring_four_times_as_much_of_the_same() {
        // Two disks at 400 a second of 16 outstanding each.
        let did = Did {
            iops: 200.0,
            latency_us: 80e3,
        };
        let case = case([Some(did); 2]);
        let predicted = predict(&case, &shares("b", 4_000), &mut || Ok(())).expect("it can be");
        assert_eq!(predicted.agreement.worth, Worth::Good, "{predicted:?}");
        let [a, b] = &predicted.disks[..] else {
            panic!("two disks")
        };
        assert!((b.changed.iops / a.changed.iops - 4.0).abs() < 0.2);
        assert!((a.as_is.iops / b.as_is.iops - 1.0).abs() < 0.05);
        assert!(predicted.all.iops_change_percent.abs() < 3.0);
        assert_eq!(predicted.changes, ["b: shares 4000, was 1000"]);
        assert!(a.policy_changed.is_none() && b.policy_changed.is_some());
    }

    #[test]
    fn what_was_measured_otherwise_makes_a_prediction_poor() {
        let did = |iops| {
            Some(Did {
                iops,
                latency_us: 80e3,
            })
        };
        let case = case([did(300.0), did(100.0)]);
        let changes = Changes {
            threshold: Some(Threshold::Fixed(Span::from_millis(50))),
            ..Changes::default()
        };
        let predicted = predict(&case, &changes, &mut || Ok(())).expect("it can be");
        assert_eq!(predicted.agreement.worth, Worth::Poor);
        assert!(predicted.agreement.says.contains("a hint at best"));
    }

    #[test]
    fn a_disk_that_is_not_known_is_refused_with_those_that_are() {
        let case = case([None; 2]);
        let refused = predict(&case, &shares("c", 500), &mut || Ok(()));
        let refused = refused.expect_err("there is none").to_string();
        assert!(refused.contains("there are a, b"), "{refused}");
    }

    #[test]
    fn who_interrupts_it_does_not_wait() {
        let case = case([None; 2]);
        let stop = &mut || bail!("interrupted");
        // As fast as a simulation may be, this one is not over before it is looked after once.
        let mut long = case;
        long.scenario.phases[0].ends = Time::ZERO + Span::from_secs(20_000);
        predict(&long, &shares("a", 500), stop).expect_err("it was interrupted");
    }
}
