//! Checks limits over every interval of a run on real daemons, as far as guests can observe them.
//!
//! An I/O begins after its guest asked and before it has the answer. So those I/Os that were asked for and answered
//! within an interval began in it, whatever the machine's delays were, and there may be no more of them than the limit
//! allows. Every interval is looked at that begins with a question and ends with an answer: no other has more in it. The
//! shorter I/Os wait, the less escapes this look: guests that keep little outstanding are watched best.
//!
//! # Always true
//! - What is called a breach is one.
//!
//! # Units
//! A limit's own: units or bytes, a second. Inside: those times the nanoseconds of a second.

use std::time::Duration;

use tidegate_core::request::Op;
use tidegate_core::units::{Span, Time};
use tidegate_sim::scenario::{Ceiling, Scenario, Settings};
use tidegate_sim::{Breach, results::Seen};

use super::player::Played;

const SECOND: i128 = 1_000_000_000;

/// A stay at the disk: when its guest asked, when it had the answer, and what that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    /// When the guest asked.
    pub asked: Duration,
    /// When it had the answer.
    pub answered: Duration,
    /// Units or bytes.
    pub amount: u64,
}

/// By how much the fullest interval is fuller than `rate` a second alone would let it be; none without any I/O.
pub fn excess(stays: &[Stay], rate: u64) -> Option<f64> {
    let mut by_end: Vec<usize> = (0..stays.len()).collect();
    by_end.sort_by_key(|&stay| stays[stay].answered);
    let mut by_begin: Vec<usize> = (0..stays.len()).collect();
    by_begin.sort_by_key(|&stay| stays[stay].asked);
    let mut place = vec![0; stays.len()];
    for (rank, &stay) in by_end.iter().enumerate() {
        place[stay] = rank;
    }
    let leak = |at: Duration| i128::from(rate) * nanos(at);
    // What leaks between one answer and the next stands at the later one.
    let mut before = Duration::ZERO;
    let leaks = by_end.iter().map(|&stay| {
        let leaked = leak(before) - leak(stays[stay].answered);
        before = stays[stay].answered;
        leaked
    });
    let mut fill = Fill::new(leaks.collect());
    // Intervals that begin ever earlier: each stay comes in with the one that begins with its question.
    let fullest = by_begin.iter().rev().map(|&stay| {
        fill.pour(place[stay], i128::from(stays[stay].amount) * SECOND);
        fill.fullest() + leak(stays[stay].asked)
    });
    // Of several that were asked for in one moment all are in the interval that begins there.
    fullest.max().map(in_seconds)
}

fn nanos(at: Duration) -> i128 {
    i128::try_from(at.as_nanos()).unwrap_or(i128::MAX)
}

fn in_seconds(of: i128) -> f64 {
    of as f64 / 1e9
}

/// What was poured in and has leaked out by each of a row of moments; knows the fullest among those with an inflow.
struct Fill {
    leaves: usize,
    /// A heap-shaped tree: the sum below, and the greatest sum from the left end to a leaf with an inflow.
    nodes: Vec<(i128, Option<i128>)>,
}

impl Fill {
    fn new(leaks: Vec<i128>) -> Fill {
        let leaves = leaks.len().next_power_of_two();
        let mut nodes = vec![(0, None); 2 * leaves];
        for (leaf, leak) in leaks.into_iter().enumerate() {
            nodes[leaves + leaf].0 = leak;
        }
        let mut fill = Fill { leaves, nodes };
        for node in (1..leaves).rev() {
            fill.sum_up(node);
        }
        fill
    }

    fn sum_up(&mut self, node: usize) {
        let ((left, left_most), (right, right_most)) =
            (self.nodes[2 * node], self.nodes[2 * node + 1]);
        let most = left_most.max(right_most.map(|most| left + most));
        self.nodes[node] = (left + right, most);
    }

    fn pour(&mut self, leaf: usize, amount: i128) {
        let mut node = self.leaves + leaf;
        let sum = self.nodes[node].0 + amount;
        self.nodes[node] = (sum, Some(sum));
        while node > 1 {
            node /= 2;
            self.sum_up(node);
        }
    }

    fn fullest(&self) -> i128 {
        self.nodes[1].1.unwrap_or(0)
    }
}

/// Whose I/Os a limit counts, and what it is.
struct Limited {
    says: String,
    disks: Vec<usize>,
    ceiling: Ceiling,
    counts: Counts,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Units,
    Bytes,
}

/// What of `played` (by disk) cannot be where limits are kept. `shift`: when the plan's beginning was by the guests' clock.
pub(super) fn breaches(scenario: &Scenario, played: &[Played], shift: Span) -> Vec<Breach> {
    let mut breaches = Vec::new();
    // What is set at a phase's beginning takes effect a moment later: each phase is looked at by itself, for what holds
    // in it from its beginning to its end.
    let mut settings: Vec<Settings> = scenario.disks.iter().map(|d| d.policy.clone()).collect();
    for phase in &scenario.phases {
        let unsettled: Vec<usize> = phase.set.iter().map(|(disk, _)| *disk).collect();
        for (disk, new) in &phase.set {
            settings[*disk] = new.clone();
        }
        let (begins, ends) = (phase.begins + shift, phase.ends + shift);
        let within = |seen: &&Seen| begins <= seen.arrived && seen.ended <= ends;
        for limited in limited(scenario, &settings, &unsettled) {
            let ios = limited.disks.iter().flat_map(|&disk| &played[disk].ios);
            let ios = ios.filter(within).filter(|seen| seen.op != Op::Flush);
            let stays: Vec<Stay> = ios
                .map(|seen| Stay {
                    asked: Duration::from_nanos(seen.arrived.as_nanos()),
                    answered: Duration::from_nanos(seen.ended.as_nanos()),
                    amount: match limited.counts {
                        Counts::Bytes => seen.len,
                        Counts::Units => units(seen.len, scenario.datastore.io_unit),
                    },
                })
                .collect();
            breaches.extend(limited.breach(&stays, phase.ends));
        }
    }
    breaches
}

/// As limits count.
fn units(len: u64, unit: u32) -> u64 {
    len.div_ceil(u64::from(unit)).max(1)
}

fn limited(scenario: &Scenario, settings: &[Settings], unsettled: &[usize]) -> Vec<Limited> {
    let mut all = Vec::new();
    let mut add = |says: &str, disks: Vec<usize>, limit, bandwidth| {
        for (ceiling, counts) in [(limit, Counts::Units), (bandwidth, Counts::Bytes)] {
            let settled = disks.iter().all(|disk| !unsettled.contains(disk));
            if let Some(ceiling) = ceiling
                && settled
            {
                let (says, disks) = (says.to_owned(), disks.clone());
                all.push(Limited {
                    says,
                    disks,
                    ceiling,
                    counts,
                });
            }
        }
    };
    let managed = scenario.disks.iter().enumerate();
    let managed = managed.filter(|(_, disk)| !disk.unmanaged);
    for (place, disk) in managed.clone() {
        let settings = &settings[place];
        add(&disk.name, vec![place], settings.limit, settings.bandwidth);
    }
    for (number, group) in scenario.groups.iter().enumerate() {
        for (host, plan) in scenario.hosts.iter().enumerate() {
            let members = managed.clone().filter(|(place, disk)| {
                disk.host == host && settings[*place].group == Some(number)
            });
            let members = members.map(|(place, _)| place).collect();
            let says = format!("group {} on host {}", group.name, plan.name);
            add(&says, members, group.limit, group.bandwidth);
        }
    }
    all
}

impl Limited {
    fn breach(&self, stays: &[Stay], at: Time) -> Option<Breach> {
        let Ceiling {
            sustained,
            peak,
            burst,
        } = self.ceiling;
        let largest = stays.iter().map(|stay| stay.amount).max()?;
        // A peak has ten milliseconds of itself for what comes in a batch.
        let steady = [(sustained, burst), (peak, peak / 100)];
        let what = match self.counts {
            Counts::Units => "units",
            Counts::Bytes => "bytes",
        };
        steady.into_iter().find_map(|(rate, burst)| {
            let excess = excess(stays, rate)?;
            let may = (burst + largest) as f64;
            (rate > 0 && excess > may).then(|| Breach {
                at,
                what: format!(
                    "{}: an interval has {excess:.3} {what} more than {rate} a second, where {may} may be",
                    self.says
                ),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stay(asked: u64, answered: u64, amount: u64) -> Stay {
        Stay {
            asked: Duration::from_millis(asked),
            answered: Duration::from_millis(answered),
            amount,
        }
    }

    /// By looking at every interval, one by one.
    fn slowly(stays: &[Stay], rate: u64) -> Option<f64> {
        let intervals = stays.iter().flat_map(|first| {
            let ends = stays.iter().filter(|last| last.asked >= first.asked);
            ends.map(|last| {
                let (from, to) = (first.asked, last.answered);
                let inside = stays.iter().filter(|s| from <= s.asked && s.answered <= to);
                let amount: u64 = inside.map(|s| s.amount).sum();
                let leaked = i128::from(rate) * nanos(to - from);
                i128::from(amount) * SECOND - leaked
            })
        });
        intervals.max().map(in_seconds)
    }

    #[test]
    fn the_fullest_interval_is_found_among_all() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = tidegate_testing::stamp::mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
            state % below
        };
        for _ in 0..200 {
            let stays: Vec<Stay> = (0..random(20))
                .map(|_| {
                    let asked = random(1_000);
                    stay(asked, asked + 1 + random(200), 1 + random(3))
                })
                .collect();
            let rate = 1 + random(100);
            assert_eq!(excess(&stays, rate), slowly(&stays, rate), "{stays:?}");
        }
    }

    #[test]
    fn a_steady_guest_at_its_limit_has_one_more_than_the_limit_and_a_faster_one_ever_more() {
        let every = |ms: u64| -> Vec<Stay> {
            let steps = (0..100).map(|n| stay(n * ms, n * ms + 1, 1));
            steps.collect()
        };
        let least = excess(&every(10), 100).expect("there are some");
        assert!((0.0..1.0).contains(&least), "{least}");
        let most = excess(&every(9), 100).expect("there are some");
        assert!((9.0..11.0).contains(&most), "{most}");
    }

    #[test]
    fn what_may_have_begun_outside_of_an_interval_counts_in_none() {
        // Two hundred that stood in the queue for all of the time.
        let stays: Vec<Stay> = (0..200).map(|n| stay(0, 1_000 + 10 * n, 1)).collect();
        let excess = excess(&stays, 100).expect("there are some");
        assert!(excess <= 0.0, "{excess}");
    }
}
