//! Reads a study's file and checks it: its figures are known, and its inputs are there.

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::Study;

/// Enough of a file to tell a study from another experiment.
#[derive(Deserialize)]
struct Head {
    study: Option<toml::Table>,
}

impl Study {
    /// Reads one at its full length; none if the text is not a study's.
    ///
    /// # Errors
    /// It is a study's, and something is wrong with it.
    pub fn read(text: &str) -> Result<Option<Study>> {
        let head: Result<Head, _> = toml::from_str(text);
        if !head.is_ok_and(|head| head.study.is_some()) {
            return Ok(None);
        }
        let mut study: Study = toml::from_str(text).context("this is no study")?;
        text.clone_into(&mut study.text);
        study.percent = 100;
        let name = study.name.clone();
        study.check().with_context(|| format!("study `{name}`"))?;
        Ok(Some(study))
    }

    fn check(&self) -> Result<()> {
        if self.rules.exit_ns.is_empty() {
            bail!("`exit-ns` needs the cost of an exit at least");
        }
        if self.expects.is_empty() {
            bail!("it expects nothing");
        }
        for expect in &self.expects {
            let figure = &expect.figure;
            if !self.known().iter().any(|known| known.name == figure) {
                bail!("there is no figure `{figure}`");
            }
            if expect.at_least.is_none() && expect.at_most.is_none() {
                bail!("figure `{figure}` needs `at-least` or `at-most`");
            }
        }
        Ok(())
    }

    /// The same at so many percent of its length.
    #[must_use]
    pub fn scaled(self, percent: u64) -> Study {
        Study {
            percent: percent.clamp(1, 100),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: &str = "name = \"s\"\ntitle = \"t\"\n[study]\nof = \"io-threads\"\nexit-ns = [2000]\n\
                         [[expect]]\nfigure = \"whole\"\nat-least = 1\nsource = \"ours\"\n";

    #[test]
    fn a_study_is_told_from_other_experiments_and_its_figures_are_known() {
        let study = Study::read(PLAIN).expect("it is right");
        assert_eq!(study.expect("a study").rules.exit_ns, [2_000]);
        let scenario = include_str!("../../../../../scenarios/sioc-1.toml");
        assert_eq!(Study::read(scenario).expect("another kind"), None);
        for (right, wrong, says) in [
            ("\"whole\"", "\"half\"", "no figure `half`"),
            ("[2000]", "[]", "`exit-ns` needs"),
            ("at-least = 1\n", "", "`at-least` or `at-most`"),
            ("io-threads", "nothing", "unknown variant"),
        ] {
            let error = Study::read(&PLAIN.replace(right, wrong));
            let error = format!("{:#}", error.expect_err("it is wrong"));
            assert!(error.contains(says), "{error}");
        }
    }
}
