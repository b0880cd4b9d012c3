//! Rivals that differ by a percent: they run side by side and are measured in turn, some milliseconds each.
//!
//! A machine's speed, and the step into which a guest and a server fall, change by tens of percent from second to second;
//! what is measured within the same fifth of a second has the same of both. How the memory of a process happens to lie
//! moves it by percents too: the servers are new in each round, and rounds are what is compared.
//!
//! Who they are, and what they do in a turn, is in [`lanes`].
//!
//! # Always true
//! - In a round everybody has as many turns as anybody else, and comes as often before as after each other.
//! - Whoever has no turn has nobody who asks, and sleeps.
//! - In a round whose CPUs are moved everybody has had turns before and after: it counts.

mod lanes;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::measure::Ask;
use super::{Bench, Judge, empty_series, reject};
use crate::noise;
use crate::report::{Figures, Report, Series};
use crate::server::{Launch, own_cpu_time};
use crate::spoiled::Heed;

pub(crate) use lanes::Lane;
pub(super) use lanes::Turns;

/// How long a turn is measured, and how long it goes on before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    before: Duration,
    /// The window.
    pub(crate) span: Duration,
}

impl Turn {
    /// One so long, after as much before as guests need to begin.
    pub(super) const fn of(span: Duration) -> Turn {
        Turn {
            before: BRIEF.before,
            span,
        }
    }
}

/// A machine's speed changes within tens of milliseconds: of five equal servers, whose guests poll, each differed from the
/// round's mean by 2.7 % (one standard deviation, rounds of a second) in turns of 40 ms, by 1.9 % in turns of 10 and 2.0 % in
/// turns of 5; with guests that sleep by 2.0, 2.2 and 1.6 %.
pub(crate) const BRIEF: Turn = Turn {
    before: Duration::from_millis(2),
    span: Duration::from_millis(10),
};
/// What is measured begins after the one before has polled for the last time ([`super::scenarios::POLL_US`]): they share a CPU.
const AFTER_POLLING: Turn = Turn {
    before: Duration::from_millis(6),
    ..BRIEF
};
/// On a disk that takes half a millisecond for a batch.
const ON_DISK: Turn = Turn {
    before: Duration::from_millis(10),
    span: Duration::from_millis(60),
};

/// How many times as many rounds as where factors decide are needed where one percent does. New servers differ by some 4 %
/// from one another, where guests poll as where they sleep: of 15 rounds even the same against itself has a standard error of 1 %.
pub(super) const ROUNDS_FOR_ONE_PERCENT: usize = 12;
pub(super) const ROUNDS_FOR_THREE_PERCENT: usize = 6;

/// Says how to start a server, by the sockets of its guests.
pub(super) type Launcher<'a> = Box<dyn Fn(&Bench, &[PathBuf]) -> Launch + 'a>;

/// One of those who are compared.
pub(super) struct Rival<'a> {
    /// The name in the table.
    pub(super) name: String,
    /// What it is.
    pub(super) kind: Kind<'a>,
}

/// What takes part.
pub(super) enum Kind<'a> {
    /// A server with its guests.
    Server(Launcher<'a>),
    /// fio on the file itself, in the servers' place.
    Fio(&'a Path),
}

/// How rivals take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// Some milliseconds each.
    Brief,
    /// The same, where somebody polls on for a while when his turn is over.
    AfterPolling,
    /// Where a real disk is read: longer, and steal says nothing.
    OnDisk,
}

impl Pace {
    const fn turn(self) -> Turn {
        match self {
            Pace::Brief => BRIEF,
            Pace::AfterPolling => AFTER_POLLING,
            Pace::OnDisk => ON_DISK,
        }
    }

    /// What spoils a round of such turns. Not that the CPUs are moved: all have turns before and after, as near or as far.
    const fn heed(self) -> Heed {
        Heed {
            steal: !matches!(self, Pace::OnDisk),
            moved: false,
        }
    }
}

/// The guests that each rival has.
pub(super) struct Guests {
    /// How many.
    pub(super) count: usize,
    /// What each asks for.
    pub(super) ask: Ask,
    /// In which turns.
    pub(super) pace: Pace,
}

/// Warms all up and lets them work in turn, each for `span` in all; what came of each. `stop` is asked before each turn
/// whether that is to be given up.
///
/// # Errors
/// A server or a guest fails, or it was given up.
pub(crate) fn in_turn(
    mut lanes: Vec<Lane>,
    turn: Turn,
    (warm, span): (Duration, Duration),
    stop: &dyn Fn() -> bool,
) -> Result<Vec<Figures>> {
    for lane in &mut lanes {
        lane.warm(warm)?;
    }
    let turns = span.as_nanos().div_ceil(turn.span.as_nanos());
    let turns = usize::try_from(turns).context("a trial's turns")?;
    let (from, before) = (noise::look()?, spent_by_all(&lanes)?);
    for whose in order(lanes.len(), turns) {
        if stop() {
            bail!("given up");
        }
        lanes[whose].turn(turn)?;
    }
    let own = spent_by_all(&lanes)?.saturating_sub(before);
    let noise = noise::between(&from, &noise::look()?, own);
    lanes.into_iter().map(|lane| lane.end(noise)).collect()
}

/// CPU time of all lanes and of this process until now.
fn spent_by_all(lanes: &[Lane]) -> Result<Duration> {
    let all = lanes.iter().map(Lane::spent);
    Ok(all.sum::<Result<Duration>>()? + own_cpu_time()?)
}

/// Whose turn it is, turn by turn, as each of `count` has `turns`: round and back again, beginning with another one each
/// time.
fn order(count: usize, turns: usize) -> impl Iterator<Item = usize> {
    (0..turns).flat_map(move |turn| {
        (0..count).map(move |place| {
            let step = if turn % 2 == 0 {
                place
            } else {
                count - 1 - place
            };
            (turn / 2 + step) % count
        })
    })
}

impl Bench {
    /// Lets rivals compete in one case until there are `times` as many quiet rounds as the bench's, or twice as many were
    /// tried. Each has as much time in a round as a trial lasts.
    ///
    /// # Errors
    /// A server or a guest fails.
    pub(super) fn compete_in_turn(
        &self,
        report: &mut Report,
        of: (&str, &str),
        rivals: &[Rival<'_>],
        guests: &Guests,
        times: usize,
    ) -> Result<()> {
        let (scenario, case) = of;
        let heed = guests.pace.heed();
        let spoiled = |figures: &Figures| heed.judge(figures, self.most());
        let names = rivals.iter().map(|rival| rival.name.as_str());
        let series = empty_series(scenario, case, names, times * self.trials);
        self.rounds_of_turns(report, series, &spoiled, &mut || {
            self.turns(rivals, guests)
                .with_context(|| format!("{scenario}, {case}"))
        })
    }

    /// Makes rounds, each of which has turns of everybody, until there are enough quiet ones.
    ///
    /// # Errors
    /// A round fails.
    pub(super) fn rounds_of_turns(
        &self,
        report: &mut Report,
        series: Vec<Series>,
        spoiled: &Judge<'_>,
        turns: &mut dyn FnMut() -> Result<Vec<Figures>>,
    ) -> Result<()> {
        self.rounds(report, series, spoiled, &mut |_, series| {
            let round = self.placed(&mut *turns)?;
            if let Some(what) = round.iter().find_map(spoiled) {
                reject(series, what);
            }
            Ok(round)
        })
    }

    fn turns(&self, rivals: &[Rival<'_>], guests: &Guests) -> Result<Vec<Figures>> {
        let lanes = rivals.iter().zip(0..).map(|(rival, number)| {
            // Each reads other places: nobody finds in a disk's cache what another has just read.
            let ask = guests.ask.elsewhere(number);
            let launch = match &rival.kind {
                Kind::Server(launch) => launch,
                Kind::Fio(file) => {
                    return Lane::alone(&rival.name, file, &ask, self.options.server_cpu);
                }
            };
            let scratch = self.path(&format!("rival{number}"));
            let sockets = (0..guests.count).map(|guest| scratch.join(format!("{guest}.sock")));
            let sockets: Vec<PathBuf> = sockets.collect();
            Lane::start(
                &rival.name,
                &launch(self, &sockets),
                &sockets,
                &scratch,
                &ask,
            )
        });
        let lanes = lanes.collect::<Result<Vec<_>>>()?;
        let stop = || self.stop.load(Ordering::Relaxed);
        in_turn(lanes, guests.pace.turn(), (self.warm, self.span), &stop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_measured_after_another_has_polled_for_the_last_time() {
        let polls = Duration::from_micros(super::super::scenarios::POLL_US.into());
        assert!(Pace::AfterPolling.turn().before > polls);
        assert!(Pace::OnDisk.turn().before > polls);
    }

    #[test]
    fn cpus_that_are_moved_spoil_no_round_of_turns_and_stolen_time_does_but_on_a_disk() {
        use crate::noise::Noise;
        use crate::spoiled::{Most, Spoiled};

        let most = Most {
            noise: 5.0,
            moved: 1.3,
        };
        let trial = |steal_percent, moved| Figures {
            noise: Noise {
                steal_percent,
                ..Noise::default()
            },
            moved,
            ..Figures::default()
        };
        for pace in [Pace::Brief, Pace::AfterPolling, Pace::OnDisk] {
            assert_eq!(pace.heed().judge(&trial(0.0, 2.0), most), None);
            let stolen = (pace != Pace::OnDisk).then_some(Spoiled::Steal);
            assert_eq!(pace.heed().judge(&trial(9.0, 1.0), most), stolen);
        }
    }

    #[test]
    fn everybody_has_as_many_turns_and_comes_as_often_before_as_after_each_other() {
        const COUNT: usize = 5;
        let order: Vec<usize> = order(COUNT, 4 * COUNT).collect();
        let place = |round: &[usize], who| round.iter().position(|whose| *whose == who);
        for one in 0..COUNT {
            let turns = order.iter().filter(|whose| **whose == one).count();
            assert_eq!(turns, 4 * COUNT);
            for other in (0..COUNT).filter(|other| *other != one) {
                let rounds = order.chunks(COUNT);
                let before = rounds.filter(|round| place(round, one) < place(round, other));
                assert_eq!(before.count(), 2 * COUNT, "{one} before {other}");
            }
        }
    }
}
