//! Takes one rule away at a time from a copy of the tree, and tells whether a test notices: `cargo xtask mutants`.
//!
//! The rules are those of I/O control and of leases, one entry each in `crates/core/mutants.toml`. A rule that can go
//! without any test failing is either not tested or not needed; both are worth knowing. What was found is written down
//! as it is found ([`book`]), so a run that was cut off goes on where it was, and one that has nothing new to find ends
//! at once. All of it takes the better part of an hour, so `cargo xtask test` only looks whether every entry still fits
//! the source ([`misfits`], in `tidy`).
//!
//! # Always true
//! - The tree itself is not touched: everything happens in `target/mutants`.
//! - Before anything is taken away the tests named pass, or nothing is said of any rule.
//! - What was found of a rule counts only for the very sources and tests that it was found with.

mod bench;
mod book;

use crate::workspace::Workspace;
use anyhow::{Context, bail, ensure};
use bench::{Bench, Fate};
use book::Book;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// Where the rules are listed.
const TABLE: &str = "crates/core/mutants.toml";
/// Their source, to which each entry's file is relative.
const SOURCE: &str = "crates/core/src";
/// The test target that is asked about a rule that no test of the core misses: it says more slowly what scenarios miss.
const LAST_RESORT: &str = "sim";

#[derive(Deserialize)]
struct Table {
    mutant: Vec<Mutant>,
}

/// One rule, and how to take it away.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mutant {
    /// Its name, by which it can be asked for.
    rule: String,
    /// What it says.
    says: String,
    file: String,
    /// The source as it is; white space does not matter.
    find: String,
    /// The source without the rule.
    replace: String,
    /// Tests that may notice, the quickest first: a target (`lib`: the unit tests), or `target::part of the tests' names`.
    tests: Vec<String>,
}

/// What is asked for.
#[derive(Debug, Default, PartialEq)]
struct Wish<'a> {
    /// These rules: a name, or how names begin and a `*`. None: all.
    only: Vec<&'a str>,
    /// What was found before does not count.
    anew: bool,
}

impl<'a> Wish<'a> {
    fn read(args: &[&'a str]) -> anyhow::Result<Wish<'a>> {
        let mut wish = Wish::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match *arg {
                "--only" => wish
                    .only
                    .push(args.next().context("--only wants a rule's name")?),
                "--anew" => wish.anew = true,
                other => {
                    bail!("`{other}` is no option: cargo xtask mutants [--only RULE]... [--anew]")
                }
            }
        }
        Ok(wish)
    }

    fn names(&self, rule: &str) -> bool {
        let is = |name: &&str| match name.strip_suffix('*') {
            Some(begin) => rule.starts_with(begin),
            None => rule == *name,
        };
        self.only.is_empty() || self.only.iter().any(is)
    }
}

/// What of the table does not fit the source.
pub(crate) fn misfits(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut misfits = Vec::new();
    let mut names = BTreeSet::new();
    for mutant in read(root)? {
        let name = &mutant.rule;
        if !names.insert(name.clone()) {
            misfits.push(format!("{TABLE}: two rules are called `{name}`"));
        }
        if mutant.tests.is_empty() || mutant.says.is_empty() {
            misfits.push(format!("{TABLE}: `{name}` says nothing, or names no tests"));
        }
        for tests in &mutant.tests {
            let (target, _) = bench::target_and_filter(tests);
            let path = root.join(format!("crates/core/tests/{target}.rs"));
            if target != "lib" && !path.is_file() {
                misfits.push(format!(
                    "{TABLE}: `{name}` names {tests}, and there is no {target}"
                ));
            }
        }
        let path = root.join(SOURCE).join(&mutant.file);
        let source = fs::read_to_string(&path).unwrap_or_default();
        match places(&source, &mutant.find).len() {
            1 => {}
            n => misfits.push(format!(
                "{TABLE}: what `{name}` takes away stands {n} times in {}: bring the entry up to date",
                mutant.file
            )),
        }
    }
    Ok(misfits)
}

/// Tries the rules that are asked for.
pub(crate) fn run(workspace: &Workspace, args: &[&str]) -> anyhow::Result<()> {
    let wish = Wish::read(args)?;
    let misfits = misfits(&workspace.root)?;
    ensure!(misfits.is_empty(), "{}", misfits.join("\n"));
    let mut mutants = read(&workspace.root)?;
    for name in &wish.only {
        let one = Wish {
            only: vec![*name],
            anew: false,
        };
        let known = mutants.iter().any(|mutant| one.names(&mutant.rule));
        ensure!(known, "{TABLE} has no rule `{name}`");
    }
    mutants.retain(|mutant| wish.names(&mutant.rule));
    let bench = Bench::set_up(workspace)?;
    let mut book = Book::open(&workspace.target.join("mutants"), &bench.tree)?;
    if wish.anew {
        book.forget(&mutants);
    }
    try_all(&bench, &mut book, &mutants)?;
    close(&book, &mutants)
}

/// Tries every rule of which the book does not tell.
fn try_all(bench: &Bench, book: &mut Book, mutants: &[Mutant]) -> anyhow::Result<()> {
    let open: Vec<&Mutant> = mutants.iter().filter(|m| !book.is_noticed(m)).collect();
    let known = mutants.len() - open.len();
    println!("{} rules to try, {known} known from before", open.len());
    let mut limits = BTreeMap::new();
    let began = Instant::now();
    for (done, mutant) in open.iter().enumerate() {
        let from = Instant::now();
        let fate = try_one(bench, &mut limits, mutant)?;
        book.note(mutant, &fate)?;
        let left = open.len() - done - 1;
        let each = began.elapsed().as_secs_f64() / (done + 1) as f64;
        let left = Duration::from_secs_f64(each * left as f64);
        println!(
            "[{:3}/{}] {}: {fate} ({:.0} s; {} left)",
            done + 1,
            open.len(),
            mutant.rule,
            from.elapsed().as_secs_f64(),
            about(left),
        );
    }
    Ok(())
}

/// Takes a rule away and asks its tests one after the other, the simulator at last. `limits`: how long tests may take
/// that were seen to pass while nothing was taken away.
fn try_one<'a>(
    bench: &Bench,
    limits: &mut BTreeMap<&'a str, Duration>,
    mutant: &'a Mutant,
) -> anyhow::Result<Fate> {
    let own = mutant.tests.iter().map(String::as_str);
    for tests in own.chain([LAST_RESORT]) {
        let limit = match limits.get(tests) {
            Some(limit) => *limit,
            None => try_none(bench, tests)?,
        };
        limits.insert(tests, limit);
        match bench.test_without(mutant, tests, limit)? {
            Fate::Survived => {}
            Fate::Noticed(by) if tests == LAST_RESORT => {
                return Ok(Fate::Noticed(format!("the simulator only: {by}")));
            }
            other => return Ok(other),
        }
    }
    Ok(Fate::Survived)
}

/// Sees that tests pass while nothing is taken away: how long they may take from then on.
fn try_none(bench: &Bench, tests: &str) -> anyhow::Result<Duration> {
    let began = Instant::now();
    match bench.test(tests, bench::PATIENCE)? {
        Fate::Survived => {}
        Fate::Noticed(why) => bail!("{tests} fails though nothing was taken away: {why}"),
        Fate::Broken(why) => bail!("{tests} cannot be built: {why}"),
    }
    let took = bench.took();
    println!(
        "{tests}: passes as it is ({:.1} s, {:.0} s with its build)",
        took.as_secs_f64(),
        began.elapsed().as_secs_f64(),
    );
    Ok(bench::limit(took))
}

/// Tells what all of it came to.
fn close(book: &Book, mutants: &[Mutant]) -> anyhow::Result<()> {
    let (mut noticed, mut survived, mut broken) = (0, Vec::new(), Vec::new());
    for mutant in mutants {
        let told = || format!("{}: {}", mutant.rule, mutant.says);
        match book.fate(mutant) {
            Some(Fate::Noticed(_)) => noticed += 1,
            Some(Fate::Survived) => survived.push(told()),
            Some(Fate::Broken(why)) => broken.push(format!("{}: {why}", mutant.rule)),
            None => bail!("{} was not tried", mutant.rule),
        }
    }
    println!(
        "{} rules: {noticed} killed, {} survived, {} no program",
        mutants.len(),
        survived.len(),
        broken.len()
    );
    ensure!(
        survived.is_empty(),
        "no test misses these:\n{}",
        survived.join("\n")
    );
    ensure!(
        broken.is_empty(),
        "these entries are no programs:\n{}",
        broken.join("\n")
    );
    Ok(())
}

/// A time as people say it.
fn about(time: Duration) -> String {
    match time.as_secs() {
        0 => "nothing".to_owned(),
        seconds @ 1..=119 => format!("{seconds} s"),
        seconds => format!("{} min", seconds.div_ceil(60)),
    }
}

fn read(root: &Path) -> anyhow::Result<Vec<Mutant>> {
    let text = fs::read_to_string(root.join(TABLE))?;
    let table: Table = toml::from_str(&text).with_context(|| format!("{TABLE} cannot be read"))?;
    Ok(table.mutant)
}

/// Where `find` stands in `source`, whatever the white space.
fn places(source: &str, find: &str) -> Vec<Range<usize>> {
    let dense = |text: &str| -> Vec<(usize, char)> {
        let chars = text.char_indices();
        chars.filter(|(_, c)| !c.is_whitespace()).collect()
    };
    let (source, find) = (dense(source), dense(find));
    if find.is_empty() {
        return Vec::new();
    }
    let windows = source.windows(find.len());
    windows
        .filter(|window| window.iter().zip(&find).all(|(a, b)| a.1 == b.1))
        .map(|window| {
            let (last, c) = window[window.len() - 1];
            window[0].0..last + c.len_utf8()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_away_is_found_whatever_the_white_space() {
        let source = "fn f() {\n    a(\n        b,\n    );\n    a(b,);\n}";
        let found = places(source, "a(b, );");
        assert_eq!(found.len(), 2);
        assert_eq!(&source[found[1].clone()], "a(b,);");
        assert_eq!(&source[found[0].clone()], "a(\n        b,\n    );");
        assert!(places(source, "c").is_empty() && places(source, " ").is_empty());
    }

    #[test]
    fn rules_are_asked_for_by_name_or_by_how_they_begin() {
        let wish = Wish::read(&["--only", "calm", "--anew", "--only", "lease-*"]).unwrap();
        assert!(wish.anew);
        assert!(wish.names("calm") && wish.names("lease-clocks"));
        assert!(!wish.names("calm-near-the-threshold") && !wish.names("lease"));
        assert!(Wish::read(&[]).unwrap().names("anything"));
        assert!(Wish::read(&["--only"]).is_err() && Wish::read(&["calm"]).is_err());
    }
}
