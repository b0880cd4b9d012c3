//! A study in words: its inputs, parts and expectations.

use serde::Serialize;

use super::{CheckSummary, SetUp, Summary, bounds};
use crate::experiment::PUBLISHED;
use crate::experiment::study::{Expect, Known, Study};

/// Why a study is not run on a real engine.
const ONLY_SIMULATED: &str = "a process cannot be charged the exits of a vCPU";

/// A study in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StudySummary {
    /// The machine, the guests and the inputs that are not measured: names and what they are.
    pub inputs: Vec<(String, String)>,
    /// What is played.
    pub parts: Vec<String>,
}

impl Study {
    /// The study in words.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let parts = self.parts();
        let names: Vec<String> = parts.iter().map(|part| part.words.clone()).collect();
        let expects = self.expects.iter();
        Summary {
            name: self.name.clone(),
            title: self.title.clone(),
            source: self.source.clone(),
            published: PUBLISHED.contains(&self.name.as_str()),
            set_up: SetUp::Study(StudySummary {
                inputs: self.inputs(),
                parts: names.clone(),
            }),
            ways: names,
            checks: expects.map(|expect| self.check_words(expect)).collect(),
            run_s: self.takes().as_secs_f64(),
            engine_s: self.takes_on_engine().as_secs_f64() * self.engine_parts().len() as f64,
            only_simulated: self.only_simulated(),
        }
    }

    /// Why it is not played on a real engine, if it is not.
    pub(in crate::experiment) fn only_simulated(&self) -> Option<&'static str> {
        self.engine_parts().is_empty().then_some(ONLY_SIMULATED)
    }

    fn known_of(&self, expect: &Expect) -> Option<&'static Known> {
        let mut known = self.known().iter();
        known.find(|known| known.name == expect.figure)
    }

    /// The unit of a check's figure.
    pub(in crate::experiment) fn unit(&self, expect: &Expect) -> &'static str {
        self.known_of(expect).map_or("", |known| known.unit)
    }

    /// A check in words.
    pub(in crate::experiment) fn check_words(&self, expect: &Expect) -> CheckSummary {
        let words = self.known_of(expect).map_or("", |known| known.words);
        CheckSummary {
            what: words.to_owned(),
            bar: bounds(expect.at_least, expect.at_most, self.unit(expect)),
            published: expect.source.clone(),
        }
    }
}
