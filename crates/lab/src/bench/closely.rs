//! Rivals that differ by a percent: they run side by side and are measured in turn, some milliseconds each.
//!
//! A machine's speed, and the step into which a guest and a server fall, change by tens of percent from second to second;
//! what is measured within the same fifth of a second has the same of both. How the memory of a process happens to lie
//! moves it by percents too: the servers are new in each round, and rounds are what is compared.
//!
//! # Always true
//! - In a round everybody has as many turns as anybody else, and comes as often before as after each other.
//! - Whoever has no turn has nobody who asks, and sleeps.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::measure::{self, Ask, Spent};
use super::{Bench, empty_series};
use crate::load::Source;
use crate::noise::{self, Noise};
use crate::report::{Figures, Report, Series};
use crate::server::{Launch, Server, own_cpu_time};
use crate::tally::{Edge, Tally, Until};
use crate::vhost::Station;

/// How long a turn is measured, and how long it goes on before. A machine's speed changes within tens of milliseconds: of five
/// equal servers, whose guests poll, each differed from the round's mean by 2.7 % (one standard deviation, rounds of a second)
/// in turns of 40 ms, by 1.9 % in turns of 10 and 2.0 % in turns of 5; with guests that sleep by 2.0, 2.2 and 1.6 %.
pub(crate) const TURN: Duration = Duration::from_millis(10);
const BEFORE: Duration = Duration::from_millis(2);

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
    /// Its server.
    pub(super) launch: Launcher<'a>,
}

/// The guests that each rival has.
pub(super) struct Guests {
    /// How many.
    pub(super) count: usize,
    /// What each asks for.
    pub(super) ask: Ask,
}

/// What a rival's turns of a round came to.
#[derive(Debug, Default)]
pub(super) struct Turns {
    tallies: Vec<Tally>,
    spent: Spent,
}

impl Turns {
    /// One more turn: guests ask a server for so long.
    ///
    /// # Errors
    /// A guest fails.
    pub(super) fn add(
        &mut self,
        server: &Server,
        (station, sources): (&mut Station, &mut [Source]),
        span: Duration,
    ) -> Result<()> {
        let mut clocks = Vec::with_capacity(2);
        let mut look = |_: Edge| clocks.push(spent(server));
        let tallies = station.run(sources, Until::Time(BEFORE, span), &mut look)?;
        let [open, close] = <[_; 2]>::try_from(clocks)
            .map_err(|_| anyhow::anyhow!("a turn was not opened and closed"))?;
        let (open, close) = (open?, close?);
        self.spent.server += close.server.saturating_sub(open.server);
        self.spent.client += close.client.saturating_sub(open.client);
        self.tallies.resize_with(tallies.len(), Tally::default);
        for (all, turn) in self.tallies.iter_mut().zip(&tallies) {
            all.follow(turn);
        }
        Ok(())
    }

    /// What all of them came to.
    ///
    /// # Errors
    /// A request was answered with an error, or none was answered.
    pub(super) fn figures(&self, server: &Server, noise: Noise) -> Result<Figures> {
        let resident = server.resident()?;
        measure::figures(server, &self.tallies, &self.spent, resident, noise)
    }
}

/// A server with its guests, and their turns.
pub(crate) struct Lane {
    name: String,
    server: Server,
    station: Station,
    sources: Vec<Source>,
    turns: Turns,
}

impl Lane {
    /// Starts a server, whose log goes to `scratch`, and one guest per socket, of whom none asks yet.
    ///
    /// # Errors
    /// The server does not start, or does not take its guests.
    pub(crate) fn start(
        name: &str,
        launch: &Launch,
        sockets: &[PathBuf],
        scratch: &Path,
        ask: &Ask,
    ) -> Result<Self> {
        std::fs::create_dir_all(scratch)
            .with_context(|| format!("cannot create {}", scratch.display()))?;
        let server = Server::start(launch, scratch)?;
        let (station, sources) = measure::station(sockets, ask)?;
        Ok(Self {
            name: name.to_owned(),
            server,
            station,
            sources,
            turns: Turns::default(),
        })
    }

    fn warm(&mut self, span: Duration) -> Result<()> {
        let until = Until::Time(Duration::ZERO, span);
        let _unmeasured = self
            .station
            .run(&mut self.sources, until, &mut |_: Edge| ())?;
        Ok(())
    }

    fn turn(&mut self) -> Result<()> {
        let guests = (&mut self.station, &mut self.sources[..]);
        self.turns.add(&self.server, guests, TURN)
    }

    fn end(self, noise: Noise) -> Result<Figures> {
        let figures = self.turns.figures(&self.server, noise)?;
        drop(self.station);
        self.server.stop()?;
        Ok(figures)
    }
}

/// Warms all servers up and asks them in turn, each for `span` in all; what came of each. `stop` is asked before each turn
/// whether that is to be given up.
///
/// # Errors
/// A server or a guest fails, or it was given up.
pub(crate) fn in_turn(
    mut lanes: Vec<Lane>,
    warm: Duration,
    span: Duration,
    stop: &dyn Fn() -> bool,
) -> Result<Vec<Figures>> {
    for lane in &mut lanes {
        lane.warm(warm)?;
    }
    let turns = span.as_nanos().div_ceil(TURN.as_nanos());
    let turns = usize::try_from(turns).context("a trial's turns")?;
    let (from, before) = (noise::look()?, spent_by_all(&lanes)?);
    for whose in order(lanes.len(), turns) {
        if stop() {
            bail!("given up");
        }
        let lane = &mut lanes[whose];
        lane.turn().with_context(|| lane.name.clone())?;
    }
    let own = spent_by_all(&lanes)?.saturating_sub(before);
    let noise = noise::between(&from, &noise::look()?, own);
    lanes.into_iter().map(|lane| lane.end(noise)).collect()
}

/// CPU time of a server and of this process until now.
fn spent(server: &Server) -> Result<Spent> {
    Ok(Spent {
        server: server.cpu_time()?,
        client: own_cpu_time()?,
    })
}

/// CPU time of all servers and of this process until now.
fn spent_by_all(lanes: &[Lane]) -> Result<Duration> {
    let servers = lanes.iter().map(|lane| lane.server.cpu_time());
    Ok(servers.sum::<Result<Duration>>()? + own_cpu_time()?)
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
        (scenario, case): (&str, &str),
        rivals: &[Rival<'_>],
        guests: &Guests,
        times: usize,
    ) -> Result<()> {
        let names = rivals.iter().map(|rival| rival.name.as_str());
        let series = empty_series(scenario, case, names, times * self.trials);
        self.rounds_of_turns(report, series, &mut || {
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
        turns: &mut dyn FnMut() -> Result<Vec<Figures>>,
    ) -> Result<()> {
        let quiet = |figures: &Figures| self.is_quiet(figures);
        self.rounds(report, series, &quiet, &mut |_, series| {
            let round = self.placed(&mut *turns)?;
            if !round.iter().all(quiet) {
                series.iter_mut().for_each(|series| series.rejected += 1);
            }
            Ok(round)
        })
    }

    fn turns(&self, rivals: &[Rival<'_>], guests: &Guests) -> Result<Vec<Figures>> {
        let lanes = rivals.iter().enumerate().map(|(number, rival)| {
            let scratch = self.path(&format!("rival{number}"));
            let sockets = (0..guests.count).map(|guest| scratch.join(format!("{guest}.sock")));
            let sockets: Vec<PathBuf> = sockets.collect();
            let launch = (rival.launch)(self, &sockets);
            Lane::start(&rival.name, &launch, &sockets, &scratch, &guests.ask)
        });
        let lanes = lanes.collect::<Result<Vec<_>>>()?;
        in_turn(lanes, self.warm, self.span, &|| false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
