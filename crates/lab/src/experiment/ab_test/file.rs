//! Reads an A/B test's file and checks it: names are known, and numbers are in range.
//!
//! The types of [`super`] have the file's fields; an unknown field is refused with its line. Points and blocks depend on the
//! length, and are decided here too.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::{
    AbTest, Across, BRIEF, Client, Contestant, Expect, FEWEST, Point, Server, Store, Sweep, Work,
};

/// Enough of a file to tell an A/B test from a scenario.
#[derive(Deserialize)]
struct Head {
    contest: Option<toml::Table>,
}

/// Reads a length of time: a number and `ms`, `s` or `min`.
pub(super) fn length<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let word = String::deserialize(from)?;
    let ms = scaled(&word, &[("ms", 1), ("min", 60_000), ("s", 1_000)]);
    ms.map(Duration::from_millis).ok_or_else(|| {
        let says = format!("`{word}` is no length of time: write `500ms`, `4s` or `2min`");
        D::Error::custom(says)
    })
}

/// Reads a number of bytes: a number and `B`, `KiB`, `MiB` or `GiB`.
pub(super) fn size<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<T, D::Error> {
    let word = String::deserialize(from)?;
    bytes(&word).map_err(D::Error::custom)
}

pub(super) fn some_size<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    size(from).map(Some)
}

/// Reads 100 of 100 or none.
pub(super) fn all_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    match u8::deserialize(from)? {
        0 => Ok(false),
        100 => Ok(true),
        _ => Err(D::Error::custom("random is 0 or 100")),
    }
}

/// Reads names of points, which may be numbers.
pub(super) fn names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let values = Vec::<toml::Value>::deserialize(from)?.into_iter();
    let names = values.map(|value| match value {
        toml::Value::String(word) => word,
        other => other.to_string(),
    });
    Ok(names.collect())
}

/// The bench has found that ratios bear so much.
pub(super) fn quiet() -> f64 {
    5.0
}

pub(super) fn gib() -> u64 {
    1 << 30
}

impl Default for Work {
    fn default() -> Work {
        Work {
            vms: 1,
            queues: 1,
            outstanding: 32,
            size: 4096,
            reads: 100,
            random: true,
            flush_every: 0,
        }
    }
}

fn bytes<T: TryFrom<u64>>(word: &str) -> Result<T, String> {
    let units = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("B", 1),
    ];
    let bytes = scaled(word, &units).and_then(|bytes| T::try_from(bytes).ok());
    bytes.ok_or_else(|| format!("`{word}` is no size: write `512B`, `8KiB` or `1GiB`"))
}

/// A whole number with a unit.
fn scaled(word: &str, units: &[(&str, u64)]) -> Option<u64> {
    let mut found = units.iter();
    let (number, scale) =
        found.find_map(|(unit, scale)| Some((word.strip_suffix(unit)?, scale)))?;
    number.trim().parse::<u64>().ok()?.checked_mul(*scale)
}

/// Reads an A/B test at so many percent of its length; none if the text is another kind's.
pub(super) fn read(text: &str, percent: u64) -> Result<Option<AbTest>> {
    let head: Result<Head, _> = toml::from_str(text);
    if !head.is_ok_and(|head| head.contest.is_some()) {
        return Ok(None);
    }
    let mut ab_test: AbTest = toml::from_str(text).context("this is no A/B test")?;
    ab_test.text = text.to_owned();
    let name = ab_test.name.clone();
    let ready = check(&mut ab_test).and_then(|()| shorten(&mut ab_test, percent));
    ready.with_context(|| format!("A/B test `{name}`"))?;
    Ok(Some(ab_test))
}

/// Checks what the file says, and fills in its points.
fn check(ab_test: &mut AbTest) -> Result<()> {
    let contestants = &ab_test.contestants;
    if contestants.is_empty() || ab_test.sweeps.is_empty() {
        bail!("there is nothing to compare without a [[contestant]] and a [[sweep]]");
    }
    contestants.iter().try_for_each(contestant)?;
    let together = |one: &Contestant| one.client == Client::VhostUser && one.store != Store::File;
    if ab_test.rules.side_by_side && !contestants.iter().all(together) {
        bail!(
            "side-by-side: only servers of null and memory with vhost-user clients can be measured in slices"
        );
    }
    let blocks = ab_test.rules.blocks;
    if blocks == 0 || blocks > 1_000 {
        bail!("rounds = {blocks}: must be 1 to 1000");
    }
    for sweep in &mut ab_test.sweeps {
        let name = sweep.name.clone();
        self::sweep(sweep, contestants).with_context(|| format!("sweep `{name}`"))?;
    }
    for expect in &ab_test.expects {
        let checked = self::expect(expect, ab_test);
        checked.with_context(|| format!("expectation of `{}`", expect.what.words()))?;
    }
    Ok(())
}

/// Makes it as long as so many percent of what the file says. An expectation of a point that is left out stays.
fn shorten(ab_test: &mut AbTest, percent: u64) -> Result<()> {
    ab_test.percent = percent;
    let rules = &mut ab_test.rules;
    let blocks = u32::try_from(u64::from(rules.blocks) * percent / 100)?;
    rules.measure = rules.measure * u32::try_from(percent)? / 100;
    rules.blocks = blocks.max(FEWEST.min(rules.blocks));
    if percent >= BRIEF {
        return Ok(());
    }
    rules.file = rules.brief_file.unwrap_or(rules.file);
    for sweep in &mut ab_test.sweeps {
        let brief = &sweep.brief;
        let (points, without): (Vec<Point>, Vec<Point>) = std::mem::take(&mut sweep.points)
            .into_iter()
            .partition(|point| brief.is_empty() || brief.contains(&point.name));
        sweep.points = points;
        if !without.is_empty() {
            let names = without.into_iter().map(|point| point.name);
            let names = names.collect::<Vec<_>>().join(", ");
            ab_test.left_out.push(format!("{}: {names}", sweep.title));
        }
    }
    Ok(())
}

fn contestant(one: &Contestant) -> Result<()> {
    let (name, server, client, store) = (&one.name, one.server, one.client, one.store);
    match (server, client, store) {
        (Server::Nobody, Client::Fio, Store::File)
        | (Server::Tidegate, Client::VhostUser, _)
        | (Server::Tidegate, Client::FioNbd | Client::Guest, Store::File)
        | (Server::StorageDaemon, Client::VhostUser, _) => {}
        _ => bail!("contestant `{name}`: {client:?} cannot ask {server:?} of {store:?}"),
    }
    if server != Server::Tidegate && !one.filters.is_empty() {
        bail!("contestant `{name}`: only tidegate has filters");
    }
    Ok(())
}

fn sweep(sweep: &mut Sweep, contestants: &[Contestant]) -> Result<()> {
    let across = sweep.across;
    let kinds = across == Across::Work;
    if kinds == sweep.points.is_empty() || kinds != sweep.values.is_empty() {
        bail!("kinds of work are [[sweep.point]]s, and all else is `points`");
    }
    for name in std::mem::take(&mut sweep.values) {
        let mut work = sweep.work;
        let number = || {
            let number = name.parse::<u32>();
            number.with_context(|| format!("point `{name}` is no number"))
        };
        match across {
            Across::Vms => work.vms = number()?,
            Across::Outstanding => work.outstanding = u16::try_from(number()?)?,
            Across::Size => work.size = bytes(&name).map_err(anyhow::Error::msg)?,
            Across::Work => {}
        }
        sweep.points.push(Point { work, name });
    }
    for point in &sweep.points {
        work(&point.work).with_context(|| format!("point `{}`", point.name))?;
    }
    if let Some(other) = sweep.brief.iter().find(|name| !sweep.has(name)) {
        bail!("`{other}` is brief, and not among the points");
    }
    if sweep.contestants.is_empty() {
        sweep.contestants = contestants.iter().map(|one| one.name.clone()).collect();
    }
    let names = &sweep.contestants;
    names.iter().try_for_each(|name| known(name, contestants))
}

fn work(work: &Work) -> Result<()> {
    let ranges = [
        ("vms", work.vms, 256),
        ("queues", work.queues.into(), 16),
        ("outstanding", work.outstanding.into(), 128),
    ];
    for (what, value, most) in ranges {
        if !(1..=most).contains(&value) {
            bail!("{what} = {value}: must be 1 to {most}");
        }
    }
    if !work.size.is_multiple_of(512) || !(512..=1 << 20).contains(&work.size) {
        bail!("a request has 512B to 1MiB, in whole blocks of 512B");
    }
    if work.reads > 100 {
        bail!("reads are 0 to 100 of 100");
    }
    Ok(())
}

fn known(name: &str, contestants: &[Contestant]) -> Result<()> {
    if !contestants.iter().any(|one| one.name == name) {
        bail!("no contestant is called `{name}`");
    }
    Ok(())
}

fn expect(expect: &Expect, ab_test: &AbTest) -> Result<()> {
    if expect.at_least.is_none() && expect.at_most.is_none() {
        bail!("say `at-least`, `at-most` or both");
    }
    let sweep = ab_test.sweep(&expect.sweep);
    let sweep = sweep.with_context(|| format!("no sweep is called `{}`", expect.sweep))?;
    let against = expect.against.as_ref();
    let other = against.and_then(|against| against.at.as_ref());
    let points = [expect.at.as_ref(), other];
    if let Some(at) = points.into_iter().flatten().find(|at| !sweep.has(at)) {
        bail!("sweep `{}` has no point `{at}`", sweep.name);
    }
    let other = against.and_then(|against| against.contestant.as_ref());
    let mut names = std::iter::once(&expect.contestant).chain(other);
    names.try_for_each(|name| known(name, &ab_test.contestants))
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
        read(SMALL, percent).expect("a ab_test").expect("a ab_test")
    }

    #[test]
    fn points_become_work() {
        let ab_test = small(100);
        let vms = ab_test.sweeps[0].points.iter().map(|point| point.work.vms);
        assert_eq!(vms.collect::<Vec<_>>(), [1, 2, 4]);
        let work = ab_test.sweeps[0].points[1].work;
        assert_eq!((work.outstanding, work.size, work.random), (8, 8192, false));
        assert_eq!(
            work.words(),
            "8 outstanding for each of 2 VMs, 8 KiB reads, sequential"
        );
        assert_eq!(
            (ab_test.rules.blocks, ab_test.span()),
            (6, Duration::from_secs(10))
        );
        assert_eq!(ab_test.sweeps[0].contestants, ["a", "b"]);
    }

    #[test]
    fn a_short_ab_test_has_fewer_points_and_rounds_and_says_which_are_left_out() {
        let ab_test = small(10);
        let names = ab_test.sweeps[0]
            .points
            .iter()
            .map(|point| point.name.as_str());
        assert_eq!(names.collect::<Vec<_>>(), ["1", "4"]);
        assert_eq!(ab_test.left_out, ["By number of VMs: 2"]);
        assert_eq!(
            (ab_test.rules.blocks, ab_test.span()),
            (3, Duration::from_secs(2))
        );
        assert_eq!(small(1).span(), Duration::from_secs(1));
        assert!(small(50).left_out.is_empty());
        assert_eq!(small(100).scaled(10), ab_test);
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
}
