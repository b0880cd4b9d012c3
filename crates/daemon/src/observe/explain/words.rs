//! The sentences of an explanation: the limit of a disk with its numbers, the remedy, and notes.

use tidegate_api::explain::Cause;
use tidegate_api::units::Rate;
use tidegate_core::iocontrol::{Hold, Mode};
use tidegate_core::units::Span;

use super::timeline::Level;
use super::{About, Facts};
use crate::host::LeaseState;
use crate::os_error;
use crate::text::float;

/// States the cause with its numbers, as a clause.
pub(super) fn because(about: About<'_>, facts: &Facts, cause: Cause) -> String {
    let terms = about.terms;
    let span = seconds(facts.covers);
    let iops = count(facts.each_second(facts.ios));
    let units = count(facts.each_second(facts.units));
    let took = time(facts.each_io(facts.whole()));
    let spent = |ns: f64| format!("{} ({})", time(facts.each_io(ns)), percent(facts.part(ns)));
    match cause {
        Cause::Unmeasured => "nothing is measured: the disk has no stats filter".to_owned(),
        Cause::Idle => format!("no I/O was requested in the last {span}"),
        Cause::Lease if facts.claim == LeaseState::Lost => {
            "another host has taken the disk: this host does not write to it any more".to_owned()
        }
        Cause::Lease => format!(
            "its lease was not renewed in time (this daemon was paused, or could not reach the datastore): all I/O \
             waits until it is certain that no other host has taken the disk; {} outstanding",
            are(facts.outstanding)
        ),
        Cause::Stuck => format!(
            "no I/O has completed for {span}, and {} outstanding",
            are(facts.outstanding)
        ),
        Cause::Limit | Cause::Bandwidth | Cause::GroupLimit if facts.ios == 0 => format!(
            "{}: no I/O has completed for {span}, and {} outstanding",
            limit(about, facts, cause),
            are(facts.outstanding)
        ),
        Cause::Limit | Cause::Bandwidth | Cause::GroupLimit => {
            let waited = spent(facts.held.iter().sum());
            format!(
                "{}; an I/O took {took}, of which it waited {waited} for its turn",
                limit(about, facts, cause)
            )
        }
        Cause::Shares => {
            let waited = spent(facts.turn());
            let window = facts.held[Hold::Window.index()] > facts.held[Hold::Shares.index()];
            let what = match facts.level {
                Some(level) if facts.engaged_ratio > 0.0 => format!(
                    "its shares: the datastore is congested ({}), and {} shares gave the disk {units} units a second",
                    latency(&level),
                    terms.shares
                ),
                _ => {
                    "the host's window: the host has as many I/Os outstanding as the window allows"
                        .to_owned()
                }
            };
            let mostly = if window && facts.engaged_ratio > 0.0 {
                ", mostly for room in the host's window"
            } else {
                ""
            };
            format!("{what}; an I/O took {took}, of which it waited {waited} for its turn{mostly}")
        }
        Cause::IoThread => format!(
            "I/O thread {}: it was busy {} of the time; an I/O took {took}, of which it waited {} in the guest's queue",
            facts.thread.thread,
            percent(facts.thread.busy_ratio),
            spent(facts.queue)
        ),
        Cause::Filters => format!(
            "its filters: an I/O took {took}, of which it was in the filters {}",
            spent(facts.filters)
        ),
        Cause::Datastore => format!(
            "the datastore: an I/O took {took}, of which {} in the datastore, which counts as slow from {} on",
            spent(facts.datastore),
            time(float(facts.slow().as_nanos()))
        ),
        Cause::Guest => format!(
            "the guest requests no more: it had {} I/Os outstanding on average, and {iops} a second completed after \
             {took} each",
            tenths(facts.outstanding_mean)
        ),
        Cause::Nothing => format!(
            "nothing limits it: {iops} I/Os a second took {took} each, {} of it in the datastore{}",
            percent(facts.part(facts.datastore)),
            if facts.measured {
                format!(", with {} outstanding", tenths(facts.outstanding_mean))
            } else {
                String::new()
            }
        ),
    }
}

fn limit(about: About<'_>, facts: &Facts, cause: Cause) -> String {
    let terms = about.terms;
    let units = count(facts.each_second(facts.units));
    match cause {
        Cause::Bandwidth => format!(
            "its bandwidth limit{}: it moved {} a second",
            terms
                .bandwidth
                .map(|rate| format!(" of {}", Rate(rate)))
                .unwrap_or_default(),
            bytes(facts.each_second(facts.bytes))
        ),
        Cause::GroupLimit => format!(
            "the limit of its group{}: the disk got {units} units a second of it",
            terms
                .group
                .as_ref()
                .map(|group| format!(" {group}"))
                .unwrap_or_default()
        ),
        _ => format!(
            "its limit{}: it started {units} a second",
            terms
                .limit
                .map(|limit| format!(" of {limit} units a second"))
                .unwrap_or_default()
        ),
    }
}

/// States what would remove the limit.
pub(super) fn remedy(about: About<'_>, facts: &Facts, cause: Cause) -> String {
    let About {
        disk, datastore, ..
    } = about;
    match cause {
        Cause::Unmeasured => format!("add a stats filter: tidegate filter add {disk} stats --at 1"),
        Cause::Idle => {
            format!("`tidegate disk show {disk}` shows whether a guest or client is connected")
        }
        Cause::Lease if facts.claim == LeaseState::Lost => format!(
            "stop what uses it and detach it here: tidegate disk detach {disk} --disconnect"
        ),
        Cause::Lease => format!(
            "if the datastore can be reached, nothing: the disk continues some eleven seconds later; otherwise \
             check datastore {datastore} (its server, its network, the log)"
        ),
        Cause::Stuck => format!(
            "check datastore {datastore} (its server, its network, the log), and whether a filter delays I/O: \
             tidegate filter list {disk}"
        ),
        Cause::Limit => {
            format!("a higher limit: tidegate disk set {disk} --limit N (or unlimited)")
        }
        Cause::Bandwidth => {
            format!("a higher one: tidegate disk set {disk} --limit-bandwidth RATE (or unlimited)")
        }
        Cause::GroupLimit => match &about.terms.group {
            Some(group) => format!(
                "a higher limit of the group (tidegate group set {group} --limit N), less load from its other \
                 disks, or another group for this one"
            ),
            None => "a higher limit of the group, or another group for this disk".to_owned(),
        },
        Cause::Shares if facts.engaged_ratio > 0.0 => format!(
            "more shares or a reservation (tidegate disk set {disk} --shares high, --reservation N), less load from \
             the others (tidegate datastore show {datastore} lists them), or a faster datastore"
        ),
        Cause::Shares => {
            "fewer outstanding I/Os in the guests of this host: more would only wait".to_owned()
        }
        Cause::IoThread => format!(
            "more I/O threads (io.threads and io.max in the configuration), or fewer disks on this one: `tidegate thread list` \
             shows them, `tidegate thread move {disk} THREAD` moves this disk"
        ),
        Cause::Filters => {
            format!("remove or change the slow filter: tidegate filter list {disk}")
        }
        Cause::Datastore => {
            format!("a faster datastore, or less load on it: tidegate datastore show {datastore}")
        }
        Cause::Guest => "more load from the guest: deeper queues, or more parallel jobs".to_owned(),
        Cause::Nothing => format!(
            "more outstanding I/O in the guest, until the datastore is congested: from a latency of {} on",
            time(float(facts.slow().as_nanos()))
        ),
    }
}

/// Further notes that are worth knowing.
pub(super) fn notes(about: About<'_>, facts: &Facts, cause: Cause, asked: Span) -> Vec<String> {
    let terms = about.terms;
    let mut notes = Vec::new();
    if let Some(harm) = facts.harm {
        let (what, because) = os_error::harm(harm);
        notes.push(format!("{what}: {because}"));
    }
    if facts.covers + Span::from_secs(1) < asked {
        notes.push(format!("only the last {} are known", seconds(facts.covers)));
    }
    if !facts.measured && cause != Cause::Unmeasured {
        notes.push(
            "the disk has no stats filter: the guest's queue and the filters are not measured"
                .to_owned(),
        );
    }
    if facts.errors > 0 {
        notes.push(format!("{} of its I/Os failed", facts.errors));
    }
    if let Some(level) = &facts.level {
        notes.extend(control_notes(about, facts, cause, level));
        let low = level.burst_left.saturating_mul(5) <= terms.burst;
        if terms.burst > 0 && low {
            notes.push(format!(
                "its burst has {1} of {0} units left; it refills while the disk does less than its limit",
                terms.burst, level.burst_left
            ));
        } else if terms
            .limit
            .is_some_and(|limit| facts.each_second(facts.units) > 1.05 * float(limit))
        {
            notes.push(format!(
                "the disk uses its burst, which has {} units left",
                level.burst_left
            ));
        }
    }
    notes
}

fn control_notes(about: About<'_>, facts: &Facts, cause: Cause, level: &Level) -> Vec<String> {
    let terms = about.terms;
    let mut notes = Vec::new();
    match level.mode {
        Mode::Observe if facts.would_hold > 0.0 => notes.push(format!(
            "I/O control only observes; if it were on, each I/O would have waited {} for the disk's limits",
            time(facts.each_io(facts.would_hold))
        )),
        Mode::Observe => notes.push("I/O control only observes, and delays no I/O".to_owned()),
        Mode::Off => notes.push("I/O control is off: only limits apply".to_owned()),
        Mode::On if facts.engaged_ratio > 0.0 && cause != Cause::Shares => notes.push(format!(
            "the datastore was congested for {} of the time ({}), which delayed this disk little",
            percent(facts.engaged_ratio),
            latency(level)
        )),
        Mode::On => {}
    }
    if level.unmet {
        notes.push(format!(
            "its reservation of {} units a second is not met: it gets {}",
            terms.reservation,
            count(facts.each_second(facts.units))
        ));
    }
    if level.external {
        notes.push("something other than our hosts loads the datastore".to_owned());
    }
    if level.alone {
        notes.push("the other hosts' slots cannot be read: this host decides alone".to_owned());
    }
    if level.mute {
        notes.push(
            "this host's slot cannot be written: it takes no more than it last published"
                .to_owned(),
        );
    }
    if level.trouble {
        notes.push(format!(
            "the slot file cannot be used: see tidegate datastore show {}",
            about.datastore
        ));
    }
    notes
}

fn latency(level: &Level) -> String {
    let now = time(float(level.latency.as_nanos()));
    match level.threshold {
        Some(threshold) => format!(
            "latency {now}, threshold {}",
            time(float(threshold.as_nanos()))
        ),
        None => format!("latency {now}"),
    }
}

fn are(number: u64) -> String {
    match number {
        1 => "1 is".to_owned(),
        _ => format!("{number} are"),
    }
}

/// Nanoseconds as `85us`, `1.2ms`, `2.1s`.
pub(crate) fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0}ns"),
        ns if ns < 1e6 => format!("{}us", digits(ns / 1e3)),
        ns if ns < 1e9 => format!("{}ms", digits(ns / 1e6)),
        ns => format!("{}s", digits(ns / 1e9)),
    }
}

/// Rounds to two significant digits.
fn digits(value: f64) -> String {
    if value < 9.95 {
        tenths(value)
    } else {
        format!("{value:.0}")
    }
}

fn tenths(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn count(value: f64) -> String {
    digits(value)
}

fn percent(ratio: f64) -> String {
    format!("{:.0}%", ratio * 100.0)
}

fn bytes(value: f64) -> String {
    format!("{} MB", digits(value / 1e6))
}

fn seconds(span: Span) -> String {
    format!("{} s", digits(float(span.as_nanos()) / 1e9))
}
