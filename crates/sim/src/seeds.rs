//! Past failures: scenarios with seeds that once failed, and the reason.
//!
//! They are in `seeds/*.toml` of this crate, and its tests run them. A file is added together with the fix, never
//! before it: a failure without a fix is a failing scenario.
//!
//! # Picture
//! ```text
//! scenario = "row-10-capacity-halves"     # a file of scenarios/, without its ending
//! seed = 17
//! story = "What was seen, why it was so, and what was done."
//! expect = ["device-latency-settles"]     # figures that must hold; breaches must be none in any case
//! ```

use crate::scenario::{Measure, ScenarioError, wrong};
use serde::Deserialize;

/// A past failure.
#[derive(Clone, Debug)]
pub struct PastFailure {
    /// The scenario.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// What happened.
    pub story: String,
    /// The figures that must hold now.
    pub expect: Vec<Measure>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    scenario: String,
    seed: u64,
    story: String,
    #[serde(default)]
    expect: Vec<String>,
}

impl PastFailure {
    /// Parses a file's text.
    ///
    /// # Errors
    /// When it is invalid.
    pub fn read(text: &str) -> Result<PastFailure, ScenarioError> {
        let raw: Raw = toml::from_str(text).or_else(|error| wrong(error.to_string()))?;
        if raw.story.trim().is_empty() {
            return wrong("a past failure needs a story: the symptom, the cause and the fix");
        }
        let expect = raw.expect.iter().map(|word| {
            let mut all = Measure::ALL.iter();
            match all.find(|what| what.word() == word) {
                Some(what) => Ok(*what),
                None => wrong(format!("`{word}` is not a figure of scenarios")),
            }
        });
        Ok(PastFailure {
            expect: expect.collect::<Result<_, _>>()?,
            scenario: raw.scenario,
            seed: raw.seed,
            story: raw.story,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_past_failure_has_a_story_and_known_figures() {
        let text = "scenario = 'a'\nseed = 3\nstory = 'b'\nexpect = ['settles']";
        let past = PastFailure::read(text).unwrap();
        assert_eq!((past.seed, past.expect), (3, vec![Measure::Settles]));
        assert!(PastFailure::read(&text.replace("'b'", "' '")).is_err());
        assert!(PastFailure::read(&text.replace("settles", "sits")).is_err());
    }
}
