//! Judges an A/B test: every check with its figure, and a table of all measurements.
//!
//! # Always true
//! - A ratio is of trials of one block. Where a check is over several points, the n-th quiet blocks of each are taken
//!   together.
//! - A check that is not judged says why; a trial that was disturbed is judged by nobody.

mod rows;

pub use rows::Measured;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};

use super::{Check, Findings, Made, Outcome, Stage};
use crate::draw::label;
use crate::experiment::ab_test::store::{Absent, Block, Trial};
use crate::experiment::ab_test::{AbTest, Expect, Over, Sweep};
use crate::experiment::store::FORMAT;
use crate::experiment::summary::ab_test::{bar, point_words, unit};
use crate::experiment::{Directory, Entry, On};
use crate::statistics;

/// An A/B test's results directory, read.
#[derive(Clone, Debug)]
pub(in crate::experiment) struct AbResults {
    /// Where it is.
    pub(in crate::experiment) directory: Directory,
    /// What was run, at its length.
    pub(in crate::experiment) ab_test: AbTest,
    /// Every block that is stored.
    pub(in crate::experiment) rounds: Vec<Block>,
}

impl AbResults {
    /// Reads an A/B test's results directory; none if there is none, or another kind of results.
    ///
    /// # Errors
    /// A file in it is not what this program writes.
    pub(in crate::experiment) fn open(path: &Path) -> Result<Option<AbResults>> {
        let Some(directory) = Directory::open(path)? else {
            return Ok(None);
        };
        match directory.entry()? {
            Entry::Scenario(_) => Ok(None),
            Entry::AbTest(ab_test) => AbResults::read(directory, *ab_test).map(Some),
        }
    }

    fn read(directory: Directory, ab_test: AbTest) -> Result<AbResults> {
        let rounds = directory.rounds()?;
        let of = |round: &Block| {
            let sweep = ab_test
                .sweeps
                .iter()
                .find(|sweep| sweep.name == round.sweep);
            sweep.is_some_and(|sweep| sweep.points.iter().any(|one| one.name == round.point))
        };
        if let Some(other) = rounds.iter().find(|round| !of(round)) {
            let path = directory.run_path(other.on, other.repeat, &other.way);
            bail!(
                "{} is of a point that the contest does not know",
                path.display()
            );
        }
        Ok(AbResults {
            directory,
            ab_test,
            rounds,
        })
    }

    /// So many blocks are to be made at each point.
    fn wanted(&self) -> usize {
        let rounds = self
            .ab_test
            .rounds
            .saturating_mul(self.directory.plan.repeat);
        usize::try_from(rounds).unwrap_or(usize::MAX)
    }

    /// The blocks at a point, in order.
    fn at(&self, sweep: &Sweep, point: &str) -> Vec<&Block> {
        let all = self.rounds.iter();
        let mut rounds: Vec<&Block> = all
            .filter(|round| round.sweep == sweep.name && round.point == point)
            .collect();
        rounds.sort_by_key(|round| round.repeat);
        rounds
    }

    /// What the blocks come to.
    #[must_use]
    pub(in crate::experiment) fn findings(&self) -> Findings {
        let plan = &self.directory.plan;
        let ab_test = &self.ab_test;
        let points: usize = ab_test.sweeps.iter().map(|sweep| sweep.points.len()).sum();
        let here = plan.on.contains(&On::Engine);
        let wanted = if here { points * self.wanted() } else { 0 };
        let made = self.rounds.iter().map(|round| Made {
            file: format!("{}-{:02}-{}", round.on, round.repeat, round.way),
            repeat: round.repeat,
            way: round.way_words.clone(),
            began: round.began.clone(),
            took_s: round.took_s,
            busy: round.busy,
            late: None,
            rejected: round.trials.iter().map(|trial| trial.rejected.len()).sum(),
        });
        Findings {
            format: FORMAT,
            experiment: ab_test.summary(),
            percent: plan.percent,
            repeat: plan.repeat,
            seed: plan.seed,
            began: plan.began.clone(),
            version: plan.version.clone(),
            machine: plan.machine.clone(),
            checks: ab_test
                .expects
                .iter()
                .map(|expect| self.judged(expect))
                .collect(),
            stages: vec![Stage {
                on: On::Engine,
                runs: made.collect(),
                figures: Vec::new(),
            }],
            measured: self.measured(),
            agreement: None,
            problems: self.problems(),
            missing: wanted.saturating_sub(self.rounds.len()),
        }
    }

    /// Runs that could not be made, and trials that failed.
    fn problems(&self) -> Vec<String> {
        let mut problems = self.directory.problems();
        problems.extend(self.rounds.iter().filter_map(Block::problem));
        problems
    }

    fn judged(&self, expect: &Expect) -> Check {
        let outcome = match self.values(expect) {
            Err(why) => Outcome::unjudged(why),
            Ok((values, disturbed)) => {
                let judged = Outcome::of(&values, expect.at_least, expect.at_most, "blocks");
                let left_out =
                    (disturbed > 0).then(|| format!("{disturbed} disturbed blocks are left out"));
                let notes = [left_out, judged.note.clone()];
                let notes: Vec<String> = notes.into_iter().flatten().collect();
                Outcome {
                    note: (!notes.is_empty()).then(|| notes.join("; ")),
                    ..judged
                }
            }
        };
        outcome.check(
            On::Engine,
            self.ab_test.words(expect),
            expect.source.clone(),
            bar(expect),
            unit(expect),
        )
    }

    /// A check's figure by blocks, and how many blocks were disturbed at most; or why there is none.
    fn values(&self, expect: &Expect) -> Result<(Vec<f64>, usize), String> {
        let ab_test = &self.ab_test;
        if !self.directory.plan.on.contains(&On::Engine) {
            return Err("it was run in virtual time only, in which nothing competes".to_owned());
        }
        let sweep = &ab_test.sweeps[expect.sweep];
        let points: Vec<&str> = match &expect.at {
            Some(at) => vec![at.as_str()],
            None => sweep
                .points
                .iter()
                .map(|point| point.name.as_str())
                .collect(),
        };
        let mut by_point = Vec::new();
        let mut disturbed = 0;
        for point in points {
            let (values, left_out) = self.at_point(expect, sweep, point)?;
            disturbed = disturbed.max(left_out);
            by_point.push(values);
        }
        let rounds = by_point.iter().map(Vec::len).min().unwrap_or(0);
        let values = (0..rounds).map(|round| {
            let each = by_point.iter().map(|values| values[round]);
            match expect.over {
                Over::Mean => mean(each),
                Over::Least => each.fold(f64::INFINITY, f64::min),
                Over::Most => each.fold(f64::NEG_INFINITY, f64::max),
            }
        });
        Ok((values.collect(), disturbed))
    }

    /// The same at one point, by its quiet blocks.
    fn at_point(
        &self,
        expect: &Expect,
        sweep: &Sweep,
        point: &str,
    ) -> Result<(Vec<f64>, usize), String> {
        let mut sides = vec![(expect.contestant, point)];
        if let Some(against) = &expect.against {
            sides.push((against.contestant, against.at.as_deref().unwrap_or(point)));
        }
        let mut columns = Vec::new();
        for (contestant, at) in &sides {
            columns.push(self.column(sweep, at, *contestant)?);
        }
        let rounds = columns[0].keys().filter_map(|round| {
            let sides = columns.iter().map(|column| column.get(round).copied());
            sides.collect::<Option<Vec<&Trial>>>()
        });
        let rounds: Vec<Vec<&Trial>> = rounds.collect();
        let quiet = rounds
            .iter()
            .filter(|sides| sides.iter().all(|trial| trial.quiet));
        let values: Vec<f64> = quiet
            .map(|sides| {
                let own = sides[0].figure(expect.what);
                let theirs = sides.get(1).map(|trial| trial.figure(expect.what));
                theirs.map_or(own, |theirs| own / theirs)
            })
            .collect();
        if values.is_empty() {
            let others = rounds.iter().flatten().map(|trial| {
                let noise = trial.noise;
                noise.foreign_percent.max(noise.steal_percent)
            });
            return Err(format!(
                "no block was quiet at {}: others had {} % of a processor at least",
                point_words(sweep, point),
                label(others.fold(f64::INFINITY, f64::min))
            ));
        }
        let wanted = self.wanted();
        if !statistics::enough(values.len(), wanted) {
            return Err(format!(
                "{} quiet blocks of {wanted} wanted at {}: {} are the least to judge by",
                values.len(),
                point_words(sweep, point),
                statistics::least_of(wanted)
            ));
        }
        let left_out = rounds.len() - values.len();
        Ok((values, left_out))
    }

    /// A contestant's trials at a point, by blocks.
    fn column(
        &self,
        sweep: &Sweep,
        point: &str,
        contestant: usize,
    ) -> Result<BTreeMap<u32, &Trial>, String> {
        let name = &self.ab_test.contestants[contestant].name;
        if !sweep.points.iter().any(|one| one.name == point) {
            return Err(format!(
                "{} is left out at this length: run it longer",
                point_words(sweep, point)
            ));
        }
        let rounds = self.at(sweep, point);
        let failed = failures(&rounds, name);
        if let Some(last) = failed.last() {
            return Err(format!(
                "{name} failed in {} of {} blocks at {}: {}",
                failed.len(),
                rounds.len(),
                point_words(sweep, point),
                last.why
            ));
        }
        let trials = rounds
            .iter()
            .filter_map(|round| Some((round.repeat, round.trial(name)?)));
        let trials: BTreeMap<u32, &Trial> = trials.collect();
        if trials.is_empty() {
            let absent = rounds.iter().flat_map(|round| &round.absent);
            let why = absent.rev().find(|absent| absent.contestant == *name);
            return Err(match why {
                Some(absent) => format!("{name} could not take part: {}", absent.why),
                None => format!("nothing was measured at {}", point_words(sweep, point)),
            });
        }
        if trials.values().any(|trial| trial.emulated) {
            return Err(
                "QEMU emulates the guest's processor here, without KVM: its figures tell of that"
                    .to_owned(),
            );
        }
        Ok(trials)
    }
}

/// Where a contestant's trials failed.
fn failures<'a>(rounds: &[&'a Block], contestant: &str) -> Vec<&'a Absent> {
    let failed = rounds.iter().flat_map(|round| &round.failed);
    failed
        .filter(|failed| failed.contestant == contestant)
        .collect()
}

/// The geometric mean: of ratios the one that does not care which side is which.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| {
        (sum + value.ln(), count + 1.0)
    });
    (sum / count).exp()
}

#[cfg(test)]
pub(in crate::experiment) mod tests {
    use super::*;
    use crate::experiment::Verdict;
    use crate::experiment::store::Busy;

    /// Blocks of an A/B test as the stage would have made them, where contestants differ by these factors.
    pub(in crate::experiment) fn results(path: &Path, name: &str, factors: &[f64]) -> AbResults {
        let entry = Entry::find(name).expect("it can be read");
        let entry = entry.expect("it is there").scaled(10);
        let Entry::AbTest(ab_test) = &entry else {
            panic!("{name} is a contest");
        };
        let directory = Directory::begin(path, &entry, 10, 1, &[On::Engine], 1);
        let directory = directory.expect("it is empty");
        for (repeat, drift) in (1..=ab_test.rounds).zip([1.0, 0.5, 2.0]) {
            for sweep in &ab_test.sweeps {
                for point in &sweep.points {
                    let trials = sweep.contestants.iter().map(|place| Trial {
                        contestant: ab_test.contestants[*place].name.clone(),
                        iops: 2e6 * drift * factors[*place],
                        size: point.work.size,
                        p50_us: 10.0 / factors[*place],
                        p99_us: 20.0,
                        server_percent: 80.0 * drift,
                        client_percent: Some(99.0),
                        quiet: true,
                        ..Trial::default()
                    });
                    let slug =
                        crate::experiment::ab_test::slug(&format!("{}-{}", sweep.name, point.name));
                    let round = Block {
                        format: FORMAT,
                        experiment: name.into(),
                        on: On::Engine,
                        repeat,
                        way: slug,
                        way_words: point.name.clone(),
                        sweep: sweep.name.clone(),
                        point: point.name.clone(),
                        began: "2026-01-01T00:00:00Z".into(),
                        took_s: 1.0,
                        version: "0".into(),
                        busy: Busy::default(),
                        trials: trials.collect(),
                        absent: Vec::new(),
                        failed: Vec::new(),
                    };
                    directory.store_block(&round).expect("it can be written");
                }
            }
        }
        AbResults::open(path)
            .expect("it can be read")
            .expect("a contest")
    }

    /// As if each block had been made again.
    fn twice(results: &mut AbResults) {
        let again = results.rounds.clone().into_iter().map(|round| Block {
            repeat: round.repeat + results.ab_test.rounds,
            ..round
        });
        let again: Vec<Block> = again.collect();
        results.rounds.extend(again);
        results.directory.plan.repeat = 2;
    }

    fn check<'a>(findings: &'a Findings, what: &str) -> &'a Check {
        let found = findings
            .checks
            .iter()
            .find(|check| check.what.contains(what));
        found.unwrap_or_else(|| panic!("no {what} among {:?}", findings.checks))
    }

    #[test]
    fn ratios_are_of_one_round_and_a_machine_that_drifts_does_not_matter() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let results = results(scratch.path(), "filter-overhead", &[1.0, 0.98]);
        let findings = results.findings();
        assert_eq!(findings.missing, 0);
        let throughput = check(&findings, "throughput, null filter, by that of no filter");
        let ours = throughput.ours.expect("it was measured");
        assert!((ours.median - 0.98).abs() < 1e-9 && (ours.high - ours.low).abs() < 1e-9);
        assert_eq!((throughput.verdict, throughput.held), (Verdict::Fail, 0));
        // 2 % fewer requests for the same processor time.
        let cpu = check(&findings, "processor time by I/O");
        assert!((cpu.ours.expect("it was measured").median - 1.0 / 0.98).abs() < 1e-9);
        assert_eq!(findings.checks.len(), results.ab_test.expects.len());
        assert_eq!(findings.measured.len(), 2 * 6);
    }

    #[test]
    fn who_is_missing_and_who_was_disturbed_is_told_and_judged_by_nobody() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut results = results(scratch.path(), "million-iops", &[1.0, 1.0, 0.5]);
        twice(&mut results);
        for round in &mut results.rounds {
            round
                .trials
                .retain(|trial| trial.contestant != "qemu-storage-daemon");
            round.absent.push(Absent {
                contestant: "qemu-storage-daemon".into(),
                why: "it is not installed".into(),
            });
            if round.repeat == 2 {
                for trial in &mut round.trials {
                    trial.quiet = false;
                }
            }
        }
        let findings = results.findings();
        let against = check(&findings, "by that of qemu-storage-daemon");
        assert_eq!(against.verdict, Verdict::NotJudged);
        assert!(
            against
                .note
                .as_ref()
                .is_some_and(|note| note.contains("not installed"))
        );
        let one = check(&findings, "tidegate at 1 VM,");
        assert_eq!(one.ours.expect("it was measured").count, 5);
        assert_eq!(one.verdict, Verdict::Pass);
        assert!(
            one.note
                .as_ref()
                .is_some_and(|note| note.starts_with("1 disturbed"))
        );
        let linear = check(&findings, "bandwidth, tidegate at 64KiB, by that at 4KiB");
        let times = linear.ours.expect("it was measured").median;
        assert!((times - 16.0).abs() < 1e-9, "{times}");

        for trial in results
            .rounds
            .iter_mut()
            .flat_map(|round| &mut round.trials)
        {
            trial.quiet = false;
            trial.noise.foreign_percent = 33.0;
        }
        let findings = results.findings();
        assert_eq!(findings.count(Verdict::NotJudged), findings.checks.len());
        let one = check(&findings, "tidegate at 1 VM,");
        assert!(
            one.note.as_ref().is_some_and(|note| note.contains("33 %")),
            "{one:?}"
        );
        assert!(findings.holds(), "what is not judged does not fail");
    }

    #[test]
    fn too_few_quiet_rounds_are_none() {
        for (disturbed, verdict) in [(3, Verdict::Pass), (4, Verdict::NotJudged)] {
            let scratch = tempfile::tempdir().expect("a scratch directory");
            let mut results = results(scratch.path(), "million-iops", &[1.0, 1.0, 0.5]);
            twice(&mut results);
            for round in &mut results.rounds {
                for trial in &mut round.trials {
                    trial.quiet = round.repeat > disturbed;
                }
            }
            let findings = results.findings();
            let one = check(&findings, "tidegate at 1 VM,");
            assert_eq!(one.verdict, verdict, "{one:?}");
            if verdict == Verdict::NotJudged {
                let note = one.note.as_deref().unwrap_or_default();
                assert!(note.starts_with("2 quiet blocks of 6 wanted"), "{note}");
            }
        }
    }

    #[test]
    fn a_check_whose_side_failed_in_a_round_is_not_judged_by_the_others() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut results = results(scratch.path(), "million-iops", &[1.0, 1.0, 0.5]);
        let last = results.rounds.iter_mut().filter(|round| round.repeat == 3);
        for round in last {
            round
                .trials
                .retain(|trial| trial.contestant != "qemu-storage-daemon");
            round.failed.push(Absent {
                contestant: "qemu-storage-daemon".into(),
                why: "it ended".into(),
            });
        }
        let findings = results.findings();
        let against = check(&findings, "by that of qemu-storage-daemon");
        assert_eq!(against.verdict, Verdict::NotJudged);
        let note = against.note.as_deref().unwrap_or_default();
        assert!(note.contains("failed in 1 of 3 blocks"), "{note}");
        assert_eq!(
            check(&findings, "tidegate at 1 VM,").verdict,
            Verdict::Pass,
            "who did not fail is judged"
        );
        assert!(!findings.problems.is_empty() && !findings.holds());
        let mut rows = findings.measured.iter();
        let row = rows.find(|row| row.contestant == "qemu-storage-daemon");
        let note = row.and_then(|row| row.note.as_deref()).unwrap_or_default();
        assert!(note.contains("failed in 1 blocks"), "{note}");
    }

    #[test]
    fn an_emulated_guest_is_drawn_and_not_judged() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut results = results(scratch.path(), "compare-scenarios", &[1.0, 0.9, 1.0, 0.1]);
        for trial in results
            .rounds
            .iter_mut()
            .flat_map(|round| &mut round.trials)
        {
            trial.emulated = trial.contestant == "guest";
        }
        let findings = results.findings();
        let guest = check(&findings, "throughput, guest at");
        assert_eq!(guest.verdict, Verdict::NotJudged);
        assert!(guest.note.as_ref().is_some_and(|note| note.contains("KVM")));
        assert!(
            findings
                .measured
                .iter()
                .any(|row| row.contestant == "guest" && row.iops.is_some())
        );
        let ours = check(
            &findings,
            "throughput, vhost-user at \u{201c}random reads\u{201d}",
        );
        assert_eq!(ours.verdict, Verdict::Pass);
    }

    #[test]
    fn a_mean_of_ratios_is_geometric() {
        assert!((mean([0.5, 2.0].into_iter()) - 1.0).abs() < 1e-12);
    }
}
