//! Judges a study: its expected figures, of each repeat, and its tables of the first repeat.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use super::{Check, Findings, Made, Stage};
use crate::draw::Picture;
use crate::experiment::study::store::StudyRun;
use crate::experiment::study::{Runs, Study};
use crate::experiment::{Directory, Entry, On};

/// A study's results directory, read.
#[derive(Clone, Debug)]
pub(in crate::experiment) struct StudyResults {
    directory: Directory,
    study: Study,
    runs: Vec<StudyRun>,
}

impl StudyResults {
    /// Reads a study's results directory; none if there is none, or another kind of results.
    ///
    /// # Errors
    /// A file in it is not what this program writes.
    pub(in crate::experiment) fn open(path: &Path) -> Result<Option<StudyResults>> {
        let Some(directory) = Directory::open(path)? else {
            return Ok(None);
        };
        let Entry::Study(study) = directory.entry()? else {
            return Ok(None);
        };
        let runs = directory.runs()?;
        Ok(Some(StudyResults {
            directory,
            study: *study,
            runs,
        }))
    }

    /// The runs of a repeat, by their parts.
    fn repeat(&self, repeat: u32) -> Runs<'_> {
        let runs = self.runs.iter();
        let own = runs.filter(|run| run.head.piece.repeat == repeat);
        own.map(|run| (run.head.piece.slug.as_str(), run)).collect()
    }

    /// The findings of the runs.
    #[must_use]
    pub(in crate::experiment) fn findings(&self) -> Findings {
        let study = &self.study;
        let repeats = |on| match self.directory.plan.on.contains(&on) {
            true => self.directory.plan.repeat,
            false => 0,
        };
        let figures: Vec<BTreeMap<&str, f64>> = (1..=repeats(On::Sim))
            .map(|repeat| study.figures(&self.repeat(repeat)))
            .collect();
        let mut findings = Findings::new(&self.directory, study.summary());
        let expects = study.expects.iter();
        let checks = expects.map(|expect| {
            let own = figures.iter();
            let own = own.filter_map(|figures| figures.get(expect.figure.as_str()).copied());
            let own: Vec<f64> = own.collect();
            let check = Check::new(Some(On::Sim), study.check_words(expect), study.unit(expect));
            check.judged(&own, expect.at_least, expect.at_most, "repeats")
        });
        // What is played on an engine is reported, and decides nothing.
        if repeats(On::Sim) > 0 {
            findings.checks = checks.collect();
        }
        let stage = |on| {
            let runs = self.runs.iter();
            let own = runs.filter(|run| run.head.piece.on == on);
            Stage {
                on,
                runs: own.map(|run| Made::of(&run.head, None, 0)).collect(),
                figures: Vec::new(),
            }
        };
        let stages = [On::Sim, On::Engine].map(stage).into_iter();
        findings.stages = stages.filter(|stage| !stage.runs.is_empty()).collect();
        findings.tables = study.tables(&self.repeat(1));
        let times = |on| usize::try_from(repeats(on)).unwrap_or(0);
        let wanted =
            study.parts().len() * times(On::Sim) + study.engine_parts().len() * times(On::Engine);
        findings.missing = wanted.saturating_sub(self.runs.len());
        findings
    }

    /// The pictures of the first repeat.
    #[must_use]
    pub(in crate::experiment) fn pictures(&self) -> Vec<Picture> {
        self.study.pictures(&self.repeat(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Verdict;
    use crate::experiment::fixtures::{entry, order};
    use crate::experiment::page;
    use crate::experiment::runner::{Watcher, run};
    use crate::experiment::store::Piece;
    use std::time::Duration;

    struct Nobody;

    impl Watcher for Nobody {
        fn begins(&mut self, _piece: &Piece, _place: usize, _of: usize) {}
        fn goes(&mut self, _done: Duration, _of: Duration, _left: Duration) {}
        fn ended(&mut self, piece: &Piece, _took: Duration, problem: Option<&str>) {
            assert_eq!(problem, None, "{}", piece.words);
        }
        fn interrupted(&self) -> bool {
            false
        }
    }

    /// Plays a short study: all its checks pass, and its report has these words.
    fn passes(name: &str, words: &[&str]) {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let entry = entry(name, 1);
        let directory = Directory::begin(scratch.path(), &entry, 1, &[On::Sim], 1);
        let mut directory = directory.expect("it is empty");
        let order = order(&entry, &[On::Sim], 1, "tidegate");
        run(&order, &mut directory, &mut Nobody).expect("it can be stored");
        let written = page::write(scratch.path()).expect("it can be written");
        let findings = &written.findings[0];
        let failed = findings.checks.iter();
        let failed: Vec<String> = failed
            .filter(|check| check.verdict != Verdict::Pass)
            .map(|check| format!("{}: {:?}", check.what, check.ours))
            .collect();
        assert_eq!(failed, [""; 0]);
        assert!(findings.holds());
        let html = std::fs::read_to_string(&written.html).expect("it is there");
        for words in words {
            assert!(html.contains(words), "{words}");
        }
    }

    #[test]
    fn the_short_study_of_dense_mode_passes() {
        passes(
            "dense-mode",
            &["25 requests a second", "VMs at 100 ms", "<svg"],
        );
    }

    #[test]
    fn parts_that_are_missing_are_reported_and_their_checks_not_judged() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let entry = entry("io-threads", 1);
        let directory = Directory::begin(scratch.path(), &entry, 1, &[On::Sim], 1);
        directory.expect("it is empty");
        let findings = Findings::read(scratch.path()).expect("it can be read");
        assert_eq!(findings.missing, 36);
        assert_eq!(findings.count(Verdict::NotJudged), findings.checks.len());
        assert!(!findings.holds());
    }
}
