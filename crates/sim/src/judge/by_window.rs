//! The verdict on a run in real time: each expectation is judged in windows of two seconds, and the median counts.
//!
//! A busy machine, or its hypervisor, stops a daemon for a tenth of a second now and then. That moves the mean of a run. It
//! does not move the median over windows unless half of them are disturbed. So no run is repeated, and no second is left
//! out.
//!
//! What needs every second or every latency is judged in virtual time, where the same scenarios hold at their own bounds:
//! the least of all seconds, and the time to settle. Shares are judged after that time, each disk by its own median window.
//!
//! # Always true
//! - Exceeded limits count over the whole run, in every interval.
//! - An expectation is judged here or reported as left to virtual time.

use super::{describe, judgements};
use crate::numbers::BIN;
use crate::scenario::{Expect, Measure, Scenario, Variant, Workload};
use crate::world::Run;
use std::collections::BTreeMap;
use tidegate_core::units::{Span, Time};

/// The length of a window.
const WINDOW: Span = Span::from_secs(2);

/// After a change, hosts have so long until their shares are judged.
const SETTLED: Span = Span::from_secs(2);

/// What each expectation comes to in the median window, a line each, and whether all that are judged hold.
pub fn judged(scenario: &Scenario, runs: &BTreeMap<Variant, Run>) -> (String, bool) {
    let mut all = true;
    let mut text = String::new();
    for expect in &scenario.expects {
        let Some(expect) = in_real_time(expect) else {
            let says = describe(scenario, expect);
            text += &format!("----             {says}: in virtual time only\n");
            continue;
        };
        let values = values(scenario, &expect, runs);
        let (value, range) = match values.as_slice() {
            [] => (f64::NAN, String::new()),
            [only] => (*only, String::new()),
            [least, .., most] => (median(&values), format!(" ({least:.3} to {most:.3})")),
        };
        let holds = expect.at_least.is_none_or(|least| value >= least)
            && expect.at_most.is_none_or(|most| value <= most);
        all &= holds;
        let verdict = if holds { "pass" } else { "FAIL" };
        let says = describe(scenario, &expect);
        text += &format!("{verdict}  {value:>9.3}  {says}{range}\n");
    }
    for (variant, run) in runs {
        for breach in &run.breaches {
            all = false;
            let at = breach.at.since(Time::ZERO);
            let policy = variant.policy.word();
            text += &format!("FAIL  at {at}  {}: under {policy}\n", breach.what);
        }
    }
    (text, all)
}

/// The middle value, or the mean of the two in the middle.
fn median(sorted: &[f64]) -> f64 {
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

/// An expectation as it is judged in a window of real time, if it can be.
fn in_real_time(expect: &Expect) -> Option<Expect> {
    let mut expect = expect.clone();
    if expect.of_seeds < 100 {
        return None;
    }
    match expect.what {
        Measure::Settles => {
            expect.what = Measure::ShareError;
            expect.at_most = Some(expect.within);
            expect.skip = expect.skip.max(SETTLED);
        }
        Measure::UnitsLeast => expect.what = Measure::Units,
        Measure::ShareError
        | Measure::Evenness
        | Measure::DeviceLatencyError
        | Measure::Iops
        | Measure::Bandwidth
        | Measure::Units
        | Measure::LatencyPercentile => {}
        _ => return None,
    }
    Some(expect)
}

/// The figure in each whole window of the phase once things have settled, in ascending order; what is no number comes last.
fn values(scenario: &Scenario, expect: &Expect, runs: &BTreeMap<Variant, Run>) -> Vec<f64> {
    let phase = &scenario.phases[expect.phase];
    let settled = phase.begins + expect.skip;
    let window = match is_counted_whole(scenario, expect) {
        true => phase.ends.since(settled),
        false => WINDOW,
    };
    if matches!(expect.what, Measure::ShareError | Measure::Evenness) {
        return vec![of_median_windows(scenario, expect, runs, settled)];
    }
    let mut part = scenario.clone();
    let mut expect = expect.clone();
    expect.skip = Span::ZERO;
    let place = expect.phase;
    part.expects = vec![expect];
    let mut values = Vec::new();
    let mut begins = settled;
    while begins + window <= phase.ends {
        part.phases[place].begins = begins;
        begins = begins + window;
        part.phases[place].ends = begins;
        let judged = judgements(&part, runs);
        values.extend(judged.iter().map(|judged| judged.value));
    }
    values.sort_by(f64::total_cmp);
    values
}

/// The figure of one window in which each disk does what it does in its own median window. The worst disk of each window
/// would be further off: noise makes another disk the worst in each.
fn of_median_windows(
    scenario: &Scenario,
    expect: &Expect,
    runs: &BTreeMap<Variant, Run>,
    settled: Time,
) -> f64 {
    let phase = &scenario.phases[expect.phase];
    if settled + WINDOW > phase.ends {
        return f64::NAN;
    }
    let length = bins(WINDOW);
    let (first, end) = (
        bins(settled.since(Time::ZERO)),
        bins(phase.ends.since(Time::ZERO)),
    );
    let mut runs = runs.clone();
    for disk in runs.values_mut().flat_map(|run| &mut run.results.disks) {
        let judged = disk.bins.get(first..end.min(disk.bins.len()));
        let mut windows: Vec<_> = judged.unwrap_or_default().chunks_exact(length).collect();
        windows.sort_by_key(|window| window.iter().map(|bin| bin.cost).sum::<u64>());
        if let Some(median) = windows.get(windows.len() / 2).map(|window| window.to_vec()) {
            disk.bins[first..first + length].clone_from_slice(&median);
        }
    }
    let mut part = scenario.clone();
    let mut expect = expect.clone();
    expect.skip = Span::ZERO;
    part.phases[expect.phase].begins = settled;
    part.phases[expect.phase].ends = settled + WINDOW;
    part.expects = vec![expect];
    judgements(&part, &runs)
        .first()
        .map_or(f64::NAN, |judged| judged.value)
}

/// How many bins a time has.
fn bins(time: Span) -> usize {
    usize::try_from(time.as_nanos() / BIN.as_nanos()).expect("a run is short")
}

/// Whether an expectation is of how much guests had that ask at random moments. A window has too few of those, and a pause
/// of the machine loses none: they are answered later.
fn is_counted_whole(scenario: &Scenario, expect: &Expect) -> bool {
    let mut disks = expect.disks.iter().map(|&disk| &scenario.disks[disk]);
    expect.what == Measure::Iops && disks.all(|disk| matches!(disk.workload, Workload::Open { .. }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariants::Breach;
    use crate::{judge, world};

    /// Two disks, one with twice the shares, on an array that is the bound.
    const TWO: &str = r#"
        name = "two"
        title = "Two disks"
        settling = "2s"
        lasts = "14s"
        [datastore]
        array = { servers = 4, read = "8ms" }
        threshold = "20ms"
        [[host]]
        name = "h"
        [[disk]]
        name = "one"
        host = "h"
        workload = { kind = "access", outstanding = 16 }
        [[disk]]
        name = "two"
        host = "h"
        shares = 2000
        workload = { kind = "access", outstanding = 16 }
        [[expect]]
        what = "share-error"
        at-most = 2
        source = "made up"
        [[expect]]
        what = "longest-wait"
        at-most = 1
        source = "made up"
    "#;

    fn played(scenario: &Scenario) -> BTreeMap<Variant, Run> {
        let variants = judge::needed(scenario).into_iter();
        let played = variants.map(|variant| {
            let run = world::run(scenario, &variant, 1).expect("it is run");
            (variant, run)
        });
        played.collect()
    }

    /// The same, with the second disk held up in some of the six windows that are judged.
    fn disturbed(scenario: &Scenario, windows: usize) -> BTreeMap<Variant, Run> {
        let mut played = played(scenario);
        for run in played.values_mut() {
            for bin in &mut run.results.disks[1].bins[20..20 + 20 * windows] {
                bin.cost /= 2;
            }
        }
        played
    }

    #[test]
    fn windows_in_which_a_host_was_stopped_do_not_count_unless_they_are_half_of_all() {
        let scenario = Scenario::read(TWO).expect("a scenario");
        let (text, holds) = judged(&scenario, &disturbed(&scenario, 2));
        assert!(holds, "{text}");
        let over_the_run = judge::judgements(&scenario, &disturbed(&scenario, 2));
        assert!(!over_the_run[0].holds, "the mean is moved");
        let (text, holds) = judged(&scenario, &disturbed(&scenario, 4));
        assert!(!holds && text.starts_with("FAIL"), "{text}");
    }

    #[test]
    fn what_only_virtual_time_can_judge_is_reported_as_such() {
        let scenario = Scenario::read(TWO).expect("a scenario");
        let (text, _) = judged(&scenario, &played(&scenario));
        let line = text.lines().find(|line| line.contains("longest-wait"));
        let line = line.expect("it has a line");
        assert!(line.ends_with("in virtual time only"), "{line}");
    }

    #[test]
    fn an_exceeded_limit_fails_a_run_whatever_its_median() {
        let scenario = Scenario::read(TWO).expect("a scenario");
        let mut breached = played(&scenario);
        for run in breached.values_mut() {
            run.breaches.push(Breach {
                at: Time::ZERO,
                what: "a limit".to_owned(),
            });
        }
        assert!(!judged(&scenario, &breached).1);
    }

    #[test]
    fn of_no_window_nothing_holds() {
        let mut scenario = Scenario::read(TWO).expect("a scenario");
        let played = played(&scenario);
        scenario.phases[0].ends = Time::ZERO + Span::from_secs(3);
        assert!(!judged(&scenario, &played).1);
    }
}
