//! Judges an A/B test: every check with its figure, and a table of all measurements.
//!
//! # Always true
//! - A ratio is of trials of one block. If a check is over several points, the n-th quiet blocks of each are combined.
//! - A check that is not judged says why. A disturbed trial is never judged.

mod rows;

pub use rows::Measured;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};

use super::{Check, Findings, Made, Stage};
use crate::draw::label;
use crate::experiment::ab_test::store::{Absent, Block, Trial};
use crate::experiment::ab_test::{AbTest, Expect, Over, Sweep};
use crate::experiment::summary::ab_test::unit;
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
    pub(in crate::experiment) blocks: Vec<Block>,
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
        let Entry::AbTest(ab_test) = directory.entry()? else {
            return Ok(None);
        };
        let blocks: Vec<Block> = directory.runs()?;
        let known = |block: &&Block| {
            let sweep = ab_test.sweep(&block.sweep);
            !sweep.is_some_and(|sweep| sweep.has(&block.point))
        };
        if let Some(other) = blocks.iter().find(known) {
            let path = directory.run_path(&other.head.piece);
            bail!(
                "{} is of a point that the A/B test does not know",
                path.display()
            );
        }
        Ok(Some(AbResults {
            directory,
            ab_test: *ab_test,
            blocks,
        }))
    }

    /// The number of blocks that are to be made at each point.
    fn wanted(&self) -> usize {
        let repeat = self.directory.plan.repeat;
        let blocks = self.ab_test.rules.blocks.saturating_mul(repeat);
        usize::try_from(blocks).unwrap_or(usize::MAX)
    }

    /// The blocks at a point, in order.
    fn at(&self, sweep: &Sweep, point: &str) -> Vec<&Block> {
        let all = self.blocks.iter();
        let here = all.filter(|block| block.sweep == sweep.name && block.point == point);
        let mut blocks: Vec<&Block> = here.collect();
        blocks.sort_by_key(|block| block.head.piece.repeat);
        blocks
    }

    /// The findings of the blocks.
    #[must_use]
    pub(in crate::experiment) fn findings(&self) -> Findings {
        let ab_test = &self.ab_test;
        let points: usize = ab_test.sweeps.iter().map(|sweep| sweep.points.len()).sum();
        let here = self.directory.plan.on.contains(&On::Engine);
        let wanted = if here { points * self.wanted() } else { 0 };
        let made = self.blocks.iter().map(|block| {
            let rejected = block.trials.iter().map(|trial| trial.rejected.len());
            Made::of(&block.head, None, rejected.sum())
        });
        let mut findings = Findings::new(&self.directory, ab_test.summary());
        let expects = ab_test.expects.iter();
        findings.checks = expects.map(|expect| self.judged(expect)).collect();
        findings.stages = vec![Stage {
            on: On::Engine,
            runs: made.collect(),
            figures: Vec::new(),
        }];
        findings.measured = self.measured();
        let failed = self.blocks.iter().filter_map(Block::problem);
        findings.problems.extend(failed);
        findings.missing = wanted.saturating_sub(self.blocks.len());
        findings
    }

    fn judged(&self, expect: &Expect) -> Check {
        let check = Check::new(Some(On::Engine), self.ab_test.check(expect), unit(expect));
        let (values, disturbed) = match self.values(expect) {
            Err(why) => return check.unjudged(why),
            Ok(values) => values,
        };
        let mut check = check.judged(&values, expect.at_least, expect.at_most, "blocks");
        if disturbed > 0 {
            let left_out = format!("{disturbed} disturbed blocks are left out");
            check.note = Some(match check.note {
                None => left_out,
                Some(note) => format!("{left_out}; {note}"),
            });
        }
        check
    }

    /// A check's figure by blocks, and how many blocks were disturbed at most; or why there is none.
    fn values(&self, expect: &Expect) -> Result<(Vec<f64>, usize), String> {
        if !self.directory.plan.on.contains(&On::Engine) {
            return Err("it was run in virtual time only, which has no real servers".to_owned());
        }
        let sweep = self.ab_test.sweep(&expect.sweep);
        let sweep = sweep.ok_or_else(|| format!("there is no sweep {}", expect.sweep))?;
        let points: Vec<&str> = match &expect.at {
            Some(at) => vec![at.as_str()],
            None => {
                let all = sweep.points.iter();
                all.map(|point| point.name.as_str()).collect()
            }
        };
        let mut by_point = Vec::new();
        let mut disturbed = 0;
        for point in points {
            let (values, left_out) = self.at_point(expect, sweep, point)?;
            disturbed = disturbed.max(left_out);
            by_point.push(values);
        }
        let blocks = by_point.iter().map(Vec::len).min().unwrap_or(0);
        let values = (0..blocks).map(|block| {
            let each = by_point.iter().map(|values| values[block]);
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
        let own = self.column(sweep, point, &expect.contestant)?;
        let mut blocks: Vec<Vec<&Trial>> = own.values().map(|trial| vec![*trial]).collect();
        if let Some(against) = &expect.against {
            let other = against.contestant.as_ref().unwrap_or(&expect.contestant);
            let theirs = self.column(sweep, against.at.as_deref().unwrap_or(point), other)?;
            let both = own.iter();
            let both = both.filter_map(|(block, own)| Some(vec![*own, *theirs.get(block)?]));
            blocks = both.collect();
        }
        let quiet = blocks
            .iter()
            .filter(|sides| sides.iter().all(|trial| trial.quiet));
        let values: Vec<f64> = quiet
            .map(|sides| {
                let figures = sides.iter().map(|trial| trial.figure(expect.what));
                figures
                    .reduce(|own, theirs| own / theirs)
                    .unwrap_or(f64::NAN)
            })
            .collect();
        let at = sweep.words(point);
        if values.is_empty() {
            let others = blocks.iter().flatten().map(|trial| trial.noise);
            let others = others.map(|noise| noise.foreign_percent.max(noise.steal_percent));
            let least = label(others.fold(f64::INFINITY, f64::min));
            return Err(format!(
                "no block was quiet at {at}: others had {least} % of a processor at least"
            ));
        }
        let (count, wanted) = (values.len(), self.wanted());
        if !statistics::enough(count, wanted) {
            let least = statistics::least_of(wanted);
            return Err(format!(
                "{count} quiet blocks of {wanted} wanted at {at}: at least {least} are needed"
            ));
        }
        Ok((values, blocks.len() - count))
    }

    /// A contestant's trials at a point, by blocks.
    fn column(
        &self,
        sweep: &Sweep,
        point: &str,
        name: &str,
    ) -> Result<BTreeMap<u32, &Trial>, String> {
        let at = sweep.words(point);
        if !sweep.has(point) {
            return Err(format!("{at} is left out at this length: run it longer"));
        }
        let blocks = self.at(sweep, point);
        let failed = failures(&blocks, name);
        if let Some(last) = failed.last() {
            let (failed, of) = (failed.len(), blocks.len());
            return Err(format!(
                "{name} failed in {failed} of {of} blocks at {at}: {}",
                last.why
            ));
        }
        let trials = blocks
            .iter()
            .filter_map(|block| Some((block.head.piece.repeat, block.trial(name)?)));
        let trials: BTreeMap<u32, &Trial> = trials.collect();
        if trials.is_empty() {
            return Err(match absence(&blocks, name) {
                Some(absent) => format!("{name} could not take part: {}", absent.why),
                None => format!("nothing was measured at {at}"),
            });
        }
        if trials.values().any(|trial| trial.emulated) {
            let says = "QEMU emulates the guest's processor here, without KVM: its figures are of the emulation";
            return Err(says.to_owned());
        }
        Ok(trials)
    }
}

/// A contestant's failed trials.
fn failures<'a>(blocks: &[&'a Block], contestant: &str) -> Vec<&'a Absent> {
    let failed = blocks.iter().flat_map(|block| &block.failed);
    failed
        .filter(|failed| failed.contestant == contestant)
        .collect()
}

/// Why a contestant did not take part, if it did not.
fn absence<'a>(blocks: &[&'a Block], contestant: &str) -> Option<&'a Absent> {
    let absent = blocks.iter().flat_map(|block| &block.absent);
    absent.rev().find(|absent| absent.contestant == contestant)
}

/// The geometric mean: for ratios it does not matter which side is divided by which.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| {
        (sum + value.ln(), count + 1.0)
    });
    (sum / count).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Verdict;
    use crate::experiment::fixtures::ab_results;

    /// The results of an A/B test, changed.
    fn changed(name: &str, factors: &[f64], change: impl FnOnce(&mut AbResults)) -> AbResults {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let mut results = ab_results(scratch.path(), name, factors);
        change(&mut results);
        results
    }

    /// As if each block had been made again.
    fn twice(results: &mut AbResults) {
        let mut again = results.blocks.clone();
        for block in &mut again {
            block.head.piece.repeat += results.ab_test.rules.blocks;
        }
        results.blocks.extend(again);
        results.directory.plan.repeat = 2;
    }

    fn trials(results: &mut AbResults) -> impl Iterator<Item = (u32, &mut Trial)> {
        let blocks = results.blocks.iter_mut();
        blocks.flat_map(|block| {
            let number = block.head.piece.repeat;
            block.trials.iter_mut().map(move |trial| (number, trial))
        })
    }

    fn check<'a>(findings: &'a Findings, what: &str) -> (&'a Check, &'a str) {
        let mut checks = findings.checks.iter();
        let found = checks.find(|check| check.what.contains(what));
        let found = found.unwrap_or_else(|| panic!("no {what} among {:?}", findings.checks));
        (found, found.note.as_deref().unwrap_or_default())
    }

    const MILLION: [f64; 3] = [1.0, 1.0, 0.5];

    #[test]
    fn ratios_are_of_one_block_and_a_machine_that_drifts_does_not_matter() {
        let results = changed("filter-overhead", &[1.0, 0.98], |_| ());
        let findings = results.findings();
        assert_eq!(findings.missing, 0);
        let (throughput, _) = check(&findings, "throughput, null filter, by that of no filter");
        let ours = throughput.ours.expect("it was measured");
        assert!((ours.median - 0.98).abs() < 1e-9 && (ours.high - ours.low).abs() < 1e-9);
        assert_eq!((throughput.verdict, throughput.passed), (Verdict::Fail, 0));
        // 2 % fewer requests for the same processor time.
        let (cpu, _) = check(&findings, "processor time by I/O");
        assert!((cpu.ours.expect("it was measured").median - 1.0 / 0.98).abs() < 1e-9);
        assert_eq!(findings.checks.len(), results.ab_test.expects.len());
        assert_eq!(findings.measured.len(), 2 * 6);
    }

    #[test]
    fn absent_and_disturbed_contestants_are_reported_and_not_judged() {
        let mut results = changed("million-iops", &MILLION, |results| {
            twice(results);
            for block in &mut results.blocks {
                remove(block, "qemu-storage-daemon");
                block.absent.push(Absent {
                    contestant: "qemu-storage-daemon".into(),
                    why: "it is not installed".into(),
                });
            }
            trials(results).for_each(|(block, trial)| trial.quiet = block != 2);
        });
        let findings = results.findings();
        let (against, note) = check(&findings, "by that of qemu-storage-daemon");
        assert_eq!(against.verdict, Verdict::NotJudged);
        assert!(note.contains("not installed"), "{note}");
        let (one, note) = check(&findings, "tidegate at 1 VM,");
        assert_eq!(one.ours.expect("it was measured").count, 5);
        assert_eq!(one.verdict, Verdict::Pass);
        assert!(note.starts_with("1 disturbed"), "{note}");
        let (linear, _) = check(&findings, "bandwidth, tidegate at 64KiB, by that at 4KiB");
        let times = linear.ours.expect("it was measured").median;
        assert!((times - 16.0).abs() < 1e-9, "{times}");

        for (_, trial) in trials(&mut results) {
            trial.quiet = false;
            trial.noise.foreign_percent = 33.0;
        }
        let findings = results.findings();
        assert_eq!(findings.count(Verdict::NotJudged), findings.checks.len());
        let (_, note) = check(&findings, "tidegate at 1 VM,");
        assert!(note.contains("33 %"), "{note}");
        assert!(findings.holds(), "what is not judged does not fail");
    }

    fn remove(block: &mut Block, contestant: &str) {
        block.trials.retain(|trial| trial.contestant != contestant);
    }

    #[test]
    fn too_few_quiet_blocks_are_not_judged() {
        for (disturbed, verdict) in [(3, Verdict::Pass), (4, Verdict::NotJudged)] {
            let results = changed("million-iops", &MILLION, |results| {
                twice(results);
                trials(results).for_each(|(block, trial)| trial.quiet = block > disturbed);
            });
            let findings = results.findings();
            let (one, note) = check(&findings, "tidegate at 1 VM,");
            assert_eq!(one.verdict, verdict, "{one:?}");
            let few = note.starts_with("2 quiet blocks of 6 wanted");
            assert_eq!(few, verdict == Verdict::NotJudged, "{note}");
        }
    }

    #[test]
    fn a_check_whose_side_failed_in_a_block_is_not_judged_by_the_others() {
        let results = changed("million-iops", &MILLION, |results| {
            let blocks = results.blocks.iter_mut();
            for block in blocks.filter(|block| block.head.piece.repeat == 3) {
                remove(block, "qemu-storage-daemon");
                block.failed.push(Absent {
                    contestant: "qemu-storage-daemon".into(),
                    why: "it ended".into(),
                });
            }
        });
        let findings = results.findings();
        let (against, note) = check(&findings, "by that of qemu-storage-daemon");
        assert_eq!(against.verdict, Verdict::NotJudged);
        assert!(note.contains("failed in 1 of 3 blocks"), "{note}");
        let (other, _) = check(&findings, "tidegate at 1 VM,");
        assert_eq!(other.verdict, Verdict::Pass, "it did not fail");
        assert!(!findings.problems.is_empty() && !findings.holds());
        let mut rows = findings.measured.iter();
        let row = rows.find(|row| row.contestant == "qemu-storage-daemon");
        let note = row.and_then(|row| row.note.as_deref()).unwrap_or_default();
        assert!(note.contains("failed in 1 blocks"), "{note}");
    }

    #[test]
    fn an_emulated_guest_is_drawn_and_not_judged() {
        let results = changed("compare-scenarios", &[1.0, 0.9, 1.0, 0.1], |results| {
            trials(results).for_each(|(_, trial)| trial.emulated = trial.contestant == "guest");
        });
        let findings = results.findings();
        let (guest, note) = check(&findings, "throughput, guest at");
        assert_eq!(guest.verdict, Verdict::NotJudged);
        assert!(note.contains("KVM"), "{note}");
        let mut rows = findings.measured.iter();
        assert!(rows.any(|row| row.contestant == "guest" && row.iops.is_some()));
        let reads = "throughput, vhost-user at \u{201c}random reads\u{201d}";
        assert_eq!(check(&findings, reads).0.verdict, Verdict::Pass);
    }

    #[test]
    fn a_mean_of_ratios_is_geometric() {
        assert!((mean([0.5, 2.0].into_iter()) - 1.0).abs() < 1e-12);
    }
}
