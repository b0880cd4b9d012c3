//! The figures of one second of the demonstration, and a sentence about each change and its effect.
//!
//! Values in, values out: what guests counted and what a host reported go in; rows, parts of the whole and sentences come out.
//!
//! # Units
//! `_ratio` is a part of the whole, 0 to 1; limits and reservations are units of 32 KiB a second.

use std::collections::VecDeque;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::guest::Tally;

/// How a disk stood, and what its guest got.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The disk.
    pub disk: &'static str,
    /// The host that serves it.
    pub host: &'static str,
    /// Its policy, as far as it divides a datastore; null: the disk is not attached.
    pub terms: Option<Terms>,
    /// What of the whole is due to it by its shares.
    pub due_ratio: f64,
    /// What of the whole its guest got.
    pub got_ratio: f64,
    /// I/Os that its guest got, each second.
    pub iops: f64,
    /// How long one of them took its guest, in the mean; 0: there was none.
    pub latency_us: f64,
    /// I/Os that ended with an error: there should be none.
    pub errors: u64,
}

/// What a disk's policy says of its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Terms {
    /// Its shares.
    pub shares: u64,
    /// Its reservation; 0: none.
    pub reservation_iops: u64,
    /// Its limit; null: none.
    pub limit_iops: Option<u64>,
}

/// What a second, or whatever has passed since the one before, came to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Second {
    /// Seconds since the demonstration began.
    pub at_s: f64,
    /// Whether the array is congested, so that shares hold.
    pub engaged: bool,
    /// The array's latency, as the hosts know it.
    pub latency_us: f64,
    /// Where it counts as congested.
    pub threshold_us: f64,
    /// What all guests got, each second.
    pub iops: f64,
    /// Each disk.
    pub disks: Vec<Row>,
    /// What happened, now that it is seen what came of it.
    pub said: Option<String>,
}

/// A disk's row, its parts of the whole not known yet.
pub(super) fn row(
    disk: &'static str,
    host: &'static str,
    known: Option<&Value>,
    tally: &Tally,
    covers: Duration,
) -> Row {
    let number = |known: &Value, field: &str| known[field].as_u64();
    let ios = tally.ios as f64;
    Row {
        disk,
        host,
        terms: known.and_then(|known| {
            Some(Terms {
                shares: number(known, "shares")?,
                reservation_iops: number(known, "reservation_iops").unwrap_or(0),
                limit_iops: number(known, "limit_iops"),
            })
        }),
        due_ratio: 0.0,
        got_ratio: 0.0,
        iops: ios / covers.as_secs_f64().max(1e-3),
        latency_us: match tally.ios {
            0 => 0.0,
            _ => tally.took.as_secs_f64() * 1e6 / ios,
        },
        errors: tally.errors,
    }
}

impl Second {
    /// Of these rows; `control`: what a host reports of the datastore.
    pub(super) fn new(at: Duration, control: &Value, mut disks: Vec<Row>) -> Second {
        let shares = |row: &Row| row.terms.map_or(0.0, |terms| terms.shares as f64);
        let iops: f64 = disks.iter().map(|row| row.iops).sum();
        let whole: f64 = disks.iter().map(shares).sum();
        for row in &mut disks {
            row.due_ratio = part(shares(row), whole);
            row.got_ratio = part(row.iops, iops);
        }
        let number = |field: &str| control[field].as_f64().unwrap_or(0.0);
        Second {
            at_s: at.as_secs_f64(),
            engaged: control["engaged"] == true,
            latency_us: number("latency_us"),
            threshold_us: number("threshold_us"),
            iops,
            disks,
            said: None,
        }
    }
}

/// What happened so far, as far as it matters for what is reported.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// The latest seconds, oldest first.
    past: VecDeque<Second>,
    changes: Vec<Change>,
}

/// A disk's policy was changed, and what came of it is not reported yet.
#[derive(Debug)]
struct Change {
    disk: &'static str,
    from: Terms,
    to: Terms,
    at_s: f64,
    /// What it got before.
    before: Got,
}

#[derive(Clone, Copy, Debug, Default)]
struct Got {
    ratio: f64,
    iops: f64,
}

/// Means are taken over so many seconds.
const SECONDS: usize = 3;
/// What came of a change is reported so long after it: the hosts have agreed by then, and a mean of its own is there.
const TELLS_AFTER_S: f64 = 5.5;

impl Story {
    /// Takes a second, and says what happened, if that can be said now.
    pub(super) fn hear(&mut self, second: &Second) -> Option<String> {
        let before = self.past.back();
        let was = before.map_or(&[][..], |before| &before.disks);
        let changed = second.disks.iter().zip(was).filter_map(|(row, was)| {
            let (to, from) = (row.terms?, was.terms?);
            (to != from).then(|| (row.disk, from, to, self.got(row.disk)))
        });
        for (disk, from, to, before) in changed.collect::<Vec<_>>() {
            self.note(disk, from, to, second.at_s, before);
        }
        self.past.push_back(second.clone());
        if self.past.len() > SECONDS {
            self.past.pop_front();
        }
        let is_due = |change: &Change| second.at_s >= change.at_s + TELLS_AFTER_S;
        let place = self.changes.iter().position(is_due)?;
        let change = self.changes.remove(place);
        let due = second.disks.iter().find(|row| row.disk == change.disk);
        let due = due.map_or(0.0, |row| row.due_ratio);
        Some(change.words(self.got(change.disk), due))
    }

    fn note(&mut self, disk: &'static str, from: Terms, to: Terms, at_s: f64, before: Got) {
        // One that is changed again before the first was reported: from what it was at first.
        if let Some(change) = self.changes.iter_mut().find(|change| change.disk == disk) {
            (change.to, change.at_s) = (to, at_s);
            return;
        }
        self.changes.push(Change {
            disk,
            from,
            to,
            at_s,
            before,
        });
    }

    /// What a disk got in the latest seconds, in the mean.
    fn got(&self, disk: &str) -> Got {
        let rows = self.past.iter().flat_map(|second| &second.disks);
        let rows: Vec<&Row> = rows.filter(|row| row.disk == disk).collect();
        let count = rows.len().max(1) as f64;
        Got {
            ratio: rows.iter().map(|row| row.got_ratio).sum::<f64>() / count,
            iops: rows.iter().map(|row| row.iops).sum::<f64>() / count,
        }
    }
}

impl Change {
    fn words(&self, after: Got, due: f64) -> String {
        let Change {
            disk,
            from,
            to,
            before,
            ..
        } = self;
        let mut changed = Vec::new();
        if from.shares != to.shares {
            changed.push(format!("shares {} -> {}", from.shares, to.shares));
        }
        if from.reservation_iops != to.reservation_iops {
            let (from, to) = (from.reservation_iops, to.reservation_iops);
            changed.push(format!("reservation {from} -> {to}"));
        }
        if from.limit_iops != to.limit_iops {
            let word = |limit: Option<u64>| limit.map_or("none".to_owned(), |it| it.to_string());
            let (from, to) = (word(from.limit_iops), word(to.limit_iops));
            changed.push(format!("limit {from} -> {to}"));
        }
        if changed.is_empty() {
            return format!("{disk} is set as it was before.");
        }
        format!(
            "{disk}, {}: it got {} of all I/Os ({:.0} a second), and gets {} now ({:.0}). Due by its shares: {}.",
            changed.join(", "),
            percent(before.ratio),
            before.iops,
            percent(after.ratio),
            after.iops,
            percent(due),
        )
    }
}

/// As people read it.
#[must_use]
pub fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

fn part(of: f64, whole: f64) -> f64 {
    if whole > 0.0 { of / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn second(at: u64, of: &[(u64, u64)]) -> Second {
        let names = ["a", "b", "c"];
        let rows = of.iter().zip(names).map(|((shares, ios), name)| {
            let known = json!({"shares": shares, "reservation_iops": 0});
            let tally = Tally {
                ios: *ios,
                took: Duration::from_millis(20 * ios),
                errors: 0,
            };
            row(name, "h", Some(&known), &tally, Duration::from_secs(1))
        });
        let control = json!({"engaged": true, "latency_us": 60_100.5, "threshold_us": 60_000.0});
        Second::new(Duration::from_secs(at), &control, rows.collect())
    }

    #[test]
    fn parts_are_of_all_shares_and_of_all_ios() {
        let second = second(1, &[(500, 60), (1500, 140)]);
        assert_eq!((second.engaged, second.iops), (true, 200.0));
        let one = &second.disks[0];
        assert_eq!((one.due_ratio, one.got_ratio), (0.25, 0.3));
        assert_eq!((one.iops, one.latency_us), (60.0, 20_000.0));
    }

    #[test]
    fn a_disk_that_is_not_attached_has_no_part() {
        let nothing = Tally::default();
        let gone = row("a", "h", None, &nothing, Duration::from_secs(1));
        let second = Second::new(Duration::ZERO, &Value::Null, vec![gone]);
        let one = &second.disks[0];
        assert_eq!((one.terms, one.due_ratio, one.got_ratio), (None, 0.0, 0.0));
        assert!(!second.engaged);
    }

    #[test]
    fn the_effect_of_a_change_is_reported_once_and_when_it_is_seen() {
        let mut story = Story::default();
        let mut said = Vec::new();
        for at in 0..20 {
            let second = match at {
                0..5 => second(at, &[(1000, 50), (1000, 50)]),
                // The hosts need a moment.
                5 => second(at, &[(3000, 50), (1000, 50)]),
                _ => second(at, &[(3000, 75), (1000, 25)]),
            };
            said.extend(story.hear(&second).map(|words| (at, words)));
        }
        let words = "a, shares 1000 -> 3000: it got 50 % of all I/Os (50 a second), and gets 75 % now (75). \
                     Due by its shares: 75 %.";
        assert_eq!(said, [(11, words.to_owned())]);
    }

    #[test]
    fn a_second_change_before_the_first_is_reported_makes_one_of_both() {
        let mut story = Story::default();
        let mut said = Vec::new();
        for at in 0..20 {
            let shares = match at {
                0..5 => 1000,
                5..7 => 4000,
                _ => 500,
            };
            said.extend(story.hear(&second(at, &[(shares, 50), (1000, 50)])));
        }
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("a, shares 1000 -> 500:"), "{said:?}");
    }

    #[test]
    fn limits_and_reservations_are_reported_too() {
        let from = Terms {
            shares: 1000,
            reservation_iops: 0,
            limit_iops: None,
        };
        let to = Terms {
            reservation_iops: 200,
            limit_iops: Some(250),
            ..from
        };
        let mut story = Story::default();
        story.note("a", from, to, 0.0, Got::default());
        let words = story.changes[0].words(Got::default(), 0.0);
        assert!(
            words.starts_with("a, reservation 0 -> 200, limit none -> 250: it got 0 %"),
            "{words}"
        );
    }
}
