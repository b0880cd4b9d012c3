//! Reads an A/B test's file into a checked plan: names are looked up, and numbers are in range.
//!
//! What a file may say is what stands in the first half; a word that is not there is refused with its line. Which points
//! and how many blocks there are depends on the length, and is decided here too.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::{
    AbTest, Across, Against, BRIEF, Client, Contestant, Expect, FEWEST, Measure, Over, Point,
    Server, Store, Sweep, Work,
};

/// As much as tells an A/B test from a scenario.
#[derive(Deserialize)]
struct Head {
    contest: Option<toml::Table>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Raw {
    name: String,
    title: String,
    source: String,
    contest: RawContest,
    contestant: Vec<RawContestant>,
    sweep: Vec<RawSweep>,
    expect: Vec<RawExpect>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawContest {
    measure: Length,
    warm: Length,
    rounds: u32,
    #[serde(default)]
    side_by_side: bool,
    quiet: Option<f64>,
    file: Option<Size>,
    brief_file: Option<Size>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawContestant {
    name: String,
    server: Option<Server>,
    client: Option<Client>,
    store: Option<Store>,
    #[serde(default)]
    filters: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawSweep {
    name: String,
    title: String,
    across: Across,
    #[serde(default)]
    points: Vec<toml::Value>,
    /// The only points of a short contest.
    brief: Option<Vec<toml::Value>>,
    #[serde(default)]
    work: RawWork,
    /// Points that are kinds of work.
    #[serde(default)]
    point: Vec<RawPoint>,
    /// All of them, if not said.
    contestants: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawPoint {
    name: String,
    work: RawWork,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawWork {
    vms: Option<u32>,
    queues: Option<u32>,
    outstanding: Option<u32>,
    size: Option<Size>,
    reads: Option<u8>,
    random: Option<u8>,
    flush_every: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawExpect {
    what: Measure,
    sweep: String,
    at: Option<String>,
    over: Option<Over>,
    contestant: String,
    against: Option<RawAgainst>,
    at_least: Option<f64>,
    at_most: Option<f64>,
    source: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawAgainst {
    contestant: Option<String>,
    at: Option<String>,
}

/// A length of time: a number and `ms`, `s` or `min`.
#[derive(Clone, Copy)]
struct Length(Duration);

/// A number of bytes: a number and `B`, `KiB`, `MiB` or `GiB`.
#[derive(Clone, Copy)]
struct Size(u64);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Length, D::Error> {
        let word = String::deserialize(from)?;
        let units = [("ms", 1), ("min", 60_000), ("s", 1_000)];
        let ms = scaled(&word, &units);
        ms.map(|ms| Length(Duration::from_millis(ms)))
            .ok_or_else(|| {
                D::Error::custom(format!(
                    "`{word}` is no length of time: write `500ms`, `4s` or `2min`"
                ))
            })
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Size, D::Error> {
        let word = String::deserialize(from)?;
        size(&word).map(Size).map_err(D::Error::custom)
    }
}

fn size(word: &str) -> Result<u64, String> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("B", 1),
    ];
    scaled(word, &units)
        .ok_or_else(|| format!("`{word}` is no size: write `512B`, `8KiB` or `1GiB`"))
}

/// A whole number with a unit.
fn scaled(word: &str, units: &[(&str, u64)]) -> Option<u64> {
    let found = units.iter();
    let (number, scale) = found
        .filter_map(|(unit, scale)| Some((word.strip_suffix(unit)?, scale)))
        .next()?;
    number.trim().parse::<u64>().ok()?.checked_mul(*scale)
}

/// Reads an A/B test at so many percent of its length; none if the text is another kind's.
pub(super) fn read(text: &str, percent: u64) -> Result<Option<AbTest>> {
    let head: Result<Head, _> = toml::from_str(text);
    if !head.is_ok_and(|head| head.contest.is_some()) {
        return Ok(None);
    }
    let raw: Raw = toml::from_str(text).context("this is no contest")?;
    let name = raw.name.clone();
    let planned = plan(raw, text, percent);
    planned
        .map(Some)
        .with_context(|| format!("contest `{name}`"))
}

fn plan(raw: Raw, text: &str, percent: u64) -> Result<AbTest> {
    let brief = percent < BRIEF;
    let contestants = raw.contestant.iter().map(contestant);
    let contestants = contestants.collect::<Result<Vec<_>>>()?;
    if contestants.is_empty() || raw.sweep.is_empty() {
        bail!("nobody competes without a [[contestant]] and a [[sweep]]");
    }
    let together = |one: &Contestant| one.client == Client::VhostUser && one.store != Store::File;
    if raw.contest.side_by_side && !contestants.iter().all(together) {
        bail!(
            "side-by-side: only servers of null and memory that guests ask over vhost-user can be asked in turn"
        );
    }
    let mut left_out = Vec::new();
    let mut sweeps = Vec::new();
    // Whether a point is there at full length: a check of one that is left out is not judged, but no mistake.
    let mut all = Vec::new();
    for raw in &raw.sweep {
        let sweep = sweep(raw, &contestants).with_context(|| format!("sweep `{}`", raw.name))?;
        all.push(sweep.clone());
        let (sweep, without) = if brief {
            thinned(sweep, raw)?
        } else {
            (sweep, Vec::new())
        };
        if !without.is_empty() {
            left_out.push(format!("{}: {}", sweep.title, without.join(", ")));
        }
        sweeps.push(sweep);
    }
    let mut expects = Vec::new();
    for raw in &raw.expect {
        let checked = expect(raw, &contestants, &all);
        expects.push(checked.with_context(|| format!("expectation of `{}`", raw.what.words()))?);
    }
    let file = raw.contest.file.map_or(1 << 30, |size| size.0);
    let brief_file = raw.contest.brief_file.map_or(file, |size| size.0);
    if raw.contest.rounds == 0 || raw.contest.rounds > 1_000 {
        bail!("rounds = {}: must be 1 to 1000", raw.contest.rounds);
    }
    let rounds = u64::from(raw.contest.rounds) * percent / 100;
    let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
    Ok(AbTest {
        name: raw.name,
        title: raw.title,
        source: raw.source,
        text: text.to_owned(),
        percent,
        measure: raw.contest.measure.0 * u32::try_from(percent).unwrap_or(100) / 100,
        warm: raw.contest.warm.0,
        rounds: rounds.max(FEWEST.min(raw.contest.rounds)),
        side_by_side: raw.contest.side_by_side,
        // What the bench has found that ratios bear.
        quiet: raw.contest.quiet.unwrap_or(5.0),
        file_bytes: if brief { brief_file } else { file },
        contestants,
        sweeps,
        expects,
        left_out,
    })
}

fn contestant(raw: &RawContestant) -> Result<Contestant> {
    let name = &raw.name;
    let server = raw.server.unwrap_or(Server::Nobody);
    let client = raw.client.unwrap_or(Client::VhostUser);
    let store = raw.store.unwrap_or(Store::Null);
    match (server, client, store) {
        (Server::Nobody, Client::Fio, Store::File)
        | (Server::Tidegate, Client::VhostUser, _)
        | (Server::Tidegate, Client::FioNbd | Client::Guest, Store::File)
        | (Server::StorageDaemon, Client::VhostUser, _) => {}
        _ => bail!("contestant `{name}`: {client:?} cannot ask {server:?} of {store:?}"),
    }
    if server != Server::Tidegate && !raw.filters.is_empty() {
        bail!("contestant `{name}`: only tidegate has filters");
    }
    Ok(Contestant {
        name: name.clone(),
        server,
        client,
        store,
        filters: raw.filters.clone(),
    })
}

fn sweep(raw: &RawSweep, contestants: &[Contestant]) -> Result<Sweep> {
    let across = raw.across;
    if (across == Across::Work) == raw.point.is_empty()
        || (across == Across::Work) != raw.points.is_empty()
    {
        bail!("kinds of work are [[sweep.point]]s, and all else is `points`");
    }
    let mut points = Vec::new();
    for value in &raw.points {
        let mut work = raw.work.clone();
        let name = point(value);
        let number = || {
            name.parse::<u32>()
                .with_context(|| format!("point `{name}` is no number"))
        };
        match across {
            Across::Vms => work.vms = Some(number()?),
            Across::Outstanding => work.outstanding = Some(number()?),
            Across::Size => work.size = Some(Size(size(&name).map_err(anyhow::Error::msg)?)),
            Across::Work => {}
        }
        points.push(Point {
            work: self::work(&work)?,
            name,
        });
    }
    for raw in &raw.point {
        points.push(Point {
            name: raw.name.clone(),
            work: work(&raw.work).with_context(|| format!("point `{}`", raw.name))?,
        });
    }
    let contestants = match &raw.contestants {
        None => (0..contestants.len()).collect(),
        Some(names) => {
            let found = names.iter().map(|name| named(name, contestants));
            found.collect::<Result<Vec<_>>>()?
        }
    };
    Ok(Sweep {
        name: raw.name.clone(),
        title: raw.title.clone(),
        across,
        points,
        contestants,
    })
}

/// A point's name: the number or the word that the file has.
fn point(value: &toml::Value) -> String {
    match value {
        toml::Value::String(word) => word.clone(),
        other => other.to_string(),
    }
}

fn work(raw: &RawWork) -> Result<Work> {
    let within = |what: &str, value: u32, most: u32| {
        if (1..=most).contains(&value) {
            Ok(value)
        } else {
            bail!("{what} = {value}: must be 1 to {most}")
        }
    };
    let size = raw.size.map_or(4096, |size| size.0);
    if !size.is_multiple_of(512) || !(512..=1 << 20).contains(&size) {
        bail!("a request has 512B to 1MiB, in whole blocks of 512B");
    }
    let (reads, random) = (raw.reads.unwrap_or(100), raw.random.unwrap_or(100));
    if reads > 100 || !matches!(random, 0 | 100) {
        bail!("reads are 0 to 100 of 100, and random is 0 or 100");
    }
    Ok(Work {
        vms: usize::try_from(within("vms", raw.vms.unwrap_or(1), 256)?)?,
        queues: u16::try_from(within("queues", raw.queues.unwrap_or(1), 16)?)?,
        outstanding: u16::try_from(within("outstanding", raw.outstanding.unwrap_or(32), 128)?)?,
        size: u32::try_from(size)?,
        reads,
        random: random == 100,
        flush_every: raw.flush_every.unwrap_or(0),
    })
}

/// A sweep with the points of a short contest, and the names of those that it is without.
fn thinned(mut sweep: Sweep, raw: &RawSweep) -> Result<(Sweep, Vec<String>)> {
    let Some(brief) = &raw.brief else {
        return Ok((sweep, Vec::new()));
    };
    let brief: Vec<String> = brief.iter().map(point).collect();
    if let Some(other) = brief
        .iter()
        .find(|name| !sweep.points.iter().any(|point| point.name == **name))
    {
        bail!("`{other}` is brief, and not among the points");
    }
    let without = sweep
        .points
        .iter()
        .filter(|point| !brief.contains(&point.name));
    let without = without.map(|point| point.name.clone()).collect();
    sweep.points.retain(|point| brief.contains(&point.name));
    Ok((sweep, without))
}

fn named(name: &str, contestants: &[Contestant]) -> Result<usize> {
    let found = contestants.iter().position(|one| one.name == name);
    found.with_context(|| format!("no contestant is called `{name}`"))
}

fn expect(raw: &RawExpect, contestants: &[Contestant], sweeps: &[Sweep]) -> Result<Expect> {
    if raw.at_least.is_none() && raw.at_most.is_none() {
        bail!("say `at-least`, `at-most` or both");
    }
    let place = sweeps.iter().position(|sweep| sweep.name == raw.sweep);
    let place = place.with_context(|| format!("no sweep is called `{}`", raw.sweep))?;
    let points = [
        raw.at.as_ref(),
        raw.against.as_ref().and_then(|against| against.at.as_ref()),
    ];
    for at in points.into_iter().flatten() {
        if !sweeps[place].points.iter().any(|point| point.name == *at) {
            bail!("sweep `{}` has no point `{at}`", raw.sweep);
        }
    }
    let own = named(&raw.contestant, contestants)?;
    let against = raw.against.as_ref().map(|against| {
        anyhow::Ok(Against {
            contestant: match &against.contestant {
                None => own,
                Some(name) => named(name, contestants)?,
            },
            at: against.at.clone(),
        })
    });
    Ok(Expect {
        what: raw.what,
        sweep: place,
        at: raw.at.clone(),
        over: raw.over.unwrap_or(Over::Mean),
        contestant: own,
        against: against.transpose()?,
        at_least: raw.at_least,
        at_most: raw.at_most,
        source: raw.source.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
        name = "small"
        title = "Two"
        source = "made up"
        [contest]
        measure = "1min"
        warm = "100ms"
        rounds = 6
        [[contestant]]
        name = "a"
        server = "tidegate"
        [[contestant]]
        name = "b"
        server = "tidegate"
        filters = ["null"]
        [[sweep]]
        name = "vms"
        title = "By number of VMs"
        across = "vms"
        points = [1, 2, 4]
        brief = [1, 4]
        work = { outstanding = 8, size = "8KiB", random = 0 }
        [[expect]]
        what = "cpu"
        sweep = "vms"
        at = "2"
        contestant = "b"
        against = { contestant = "a" }
        at-most = 1.01
        source = "made up"
    "#;

    fn small(percent: u64) -> AbTest {
        read(SMALL, percent).expect("a contest").expect("a contest")
    }

    #[test]
    fn points_become_work() {
        let contest = small(100);
        let vms = contest.sweeps[0].points.iter().map(|point| point.work.vms);
        assert_eq!(vms.collect::<Vec<_>>(), [1, 2, 4]);
        let work = contest.sweeps[0].points[1].work;
        assert_eq!((work.outstanding, work.size, work.random), (8, 8192, false));
        assert_eq!(
            work.words(),
            "8 KiB sequential reads, 8 outstanding for each of 2 VMs"
        );
        assert_eq!(
            (contest.rounds, contest.span()),
            (6, Duration::from_secs(10))
        );
        assert_eq!(contest.sweeps[0].contestants, [0, 1]);
    }

    #[test]
    fn a_short_contest_has_fewer_points_and_rounds_and_says_which_are_left_out() {
        let contest = small(10);
        let names = contest.sweeps[0]
            .points
            .iter()
            .map(|point| point.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["1", "4"]);
        assert_eq!(contest.left_out, ["By number of VMs: 2"]);
        assert_eq!(
            (contest.rounds, contest.span()),
            (3, Duration::from_secs(2))
        );
        assert_eq!(small(1).span(), Duration::from_secs(1));
        assert!(small(50).left_out.is_empty());
        assert_eq!(small(100).scaled(10), contest);
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        for (from, to, says) in [
            ("\"1min\"", "\"1 minute\"", "no length of time"),
            ("\"8KiB\"", "\"8K\"", "no size"),
            ("\"8KiB\"", "\"700B\"", "whole blocks"),
            (
                "server = \"tidegate\"\n        filters",
                "filters",
                "cannot ask Nobody",
            ),
            (
                "\"vms\"\n        points",
                "\"hosts\"\n        points",
                "unknown variant `hosts`",
            ),
            ("brief = [1, 4]", "brief = [3]", "`3` is brief"),
            ("at = \"2\"", "at = \"3\"", "no point `3`"),
            ("\"cpu\"", "\"heat\"", "expected one of `iops`"),
            (
                "contestant = \"a\"",
                "contestant = \"c\"",
                "no contestant is called `c`",
            ),
            ("outstanding = 8", "outstanding = 0", "must be 1 to 128"),
            ("rounds = 6", "rounds = 6\n speed = 3", "speed"),
            (
                "rounds = 6\n        [[contestant]]\n        name = \"a\"",
                "rounds = 6\n        side-by-side = true\n        [[contestant]]\n        store = \"file\"\n        name = \"a\"",
                "side-by-side: only servers of null and memory",
            ),
        ] {
            let error = read(&SMALL.replace(from, to), 10).expect_err(says);
            assert!(format!("{error:#}").contains(says), "{error:#}");
        }
    }

    #[test]
    fn a_scenario_is_no_contest() {
        assert_eq!(
            read("name = \"x\"\n[datastore]\n", 100).expect("no fault"),
            None
        );
        assert_eq!(read("nonsense", 100).expect("no fault"), None);
    }
}
