//! Problems: what failed, why, and what to do. The body of every REST answer that is not a success.
//!
//! The daemon makes them from its errors; the command line prints them as they are and picks its exit status by
//! [`ProblemCode`]. Nobody parses the sentences.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A failure, told to a person and, by its code, to a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What sort of failure it is. Stable: programs may match on it.
    pub code: ProblemCode,
    /// What failed, as a clause without a full stop: `cannot attach disk db1`.
    pub what: String,
    /// Why, outermost reason first; the last is the first cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// What to do about it, where something can be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// The sorts of failure. New ones may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemCode {
    /// The request itself makes no sense.
    Invalid,
    /// No such disk, datastore or job.
    NotFound,
    /// There is something at that path, but not with that HTTP method.
    WrongMethod,
    /// The request's body is longer than any that makes sense.
    TooLarge,
    /// Something of that name is there already.
    Exists,
    /// It is in use: attached, holding disks, or being worked on.
    Busy,
    /// Another daemon holds the disk.
    Locked,
    /// The datastore is full.
    Full,
    /// Neither this daemon nor this kind of datastore can do that.
    Unsupported,
    /// The datastore refused, is unreachable or returned an error.
    Datastore,
    /// A file on disk is not what it should be.
    Corrupt,
    /// The daemon has used up what the system lets it have: open files, memory.
    Exhausted,
    /// The daemon is stopping and takes no more orders.
    Stopping,
    /// A fault of ours.
    Internal,
}

impl ProblemCode {
    /// The HTTP status that carries it.
    pub const fn http_status(self) -> u16 {
        match self {
            ProblemCode::Invalid => 400,
            ProblemCode::NotFound => 404,
            ProblemCode::WrongMethod => 405,
            ProblemCode::TooLarge => 413,
            ProblemCode::Exists | ProblemCode::Busy => 409,
            ProblemCode::Locked => 423,
            ProblemCode::Full => 507,
            ProblemCode::Unsupported => 501,
            ProblemCode::Datastore => 502,
            ProblemCode::Exhausted | ProblemCode::Stopping => 503,
            ProblemCode::Corrupt | ProblemCode::Internal => 500,
        }
    }
}

impl Problem {
    /// A problem with neither reason nor remedy yet.
    pub fn new(code: ProblemCode, what: impl Into<String>) -> Problem {
        Problem {
            code,
            what: what.into(),
            why: Vec::new(),
            remedy: None,
        }
    }

    /// Adds a reason below those that are there.
    #[must_use]
    pub fn because(mut self, why: impl fmt::Display) -> Problem {
        self.why.push(why.to_string());
        self
    }

    /// Adds every error of a chain, so that the first cause is never lost.
    #[must_use]
    pub fn because_of(mut self, error: &(dyn std::error::Error + 'static)) -> Problem {
        let mut next = Some(error);
        while let Some(error) = next {
            let text = error.to_string().trim_end().to_owned();
            // Some libraries repeat their source in their own message; once is enough.
            if self.why.last().is_none_or(|last| !last.ends_with(&text)) {
                self.why.push(text);
            }
            next = error.source();
        }
        self
    }

    /// A problem that is an error's own: its message says what failed, its sources say why.
    pub fn of(code: ProblemCode, error: &(dyn std::error::Error + 'static)) -> Problem {
        let problem = Problem::new(code, error.to_string().trim_end());
        match error.source() {
            Some(source) => problem.because_of(source),
            None => problem,
        }
    }

    /// The same problem, told as the failure of an order. One that names that order itself is not told twice.
    #[must_use]
    pub fn within(mut self, order: impl Into<String>) -> Problem {
        let order = order.into();
        if self.what != order {
            let inner = std::mem::replace(&mut self.what, order);
            self.why.insert(0, inner);
        }
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn remedy(mut self, what: impl Into<String>) -> Problem {
        self.remedy = Some(what.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        for why in &self.why {
            write!(f, ": {why}")?;
        }
        match &self.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Problem {}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn a_problem_reads_as_one_sentence_and_keeps_the_first_cause() {
        let cause = Outer(std::io::Error::other("disk on fire"));
        let problem = Problem::new(ProblemCode::Datastore, "cannot attach disk db1")
            .because_of(&cause)
            .remedy("put it out");
        assert_eq!(
            problem.to_string(),
            "cannot attach disk db1: outer: disk on fire; put it out"
        );
    }

    #[test]
    fn an_error_that_says_its_cause_itself_is_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct Talkative(#[source] std::io::Error);
        let cause = Talkative(std::io::Error::other("disk on fire\n"));
        let problem = Problem::new(ProblemCode::Datastore, "what").because_of(&cause);
        assert_eq!(problem.why, ["outer: disk on fire"]);
    }

    #[test]
    fn an_order_stands_above_its_reasons_once() {
        let order = "cannot attach disk db1";
        let problem = Problem::of(
            ProblemCode::Datastore,
            &Outer(std::io::Error::other("disk on fire")),
        );
        assert_eq!(problem.what, "outer");
        let told = problem.within(order);
        assert_eq!(told.why, ["outer", "disk on fire"]);
        assert_eq!(told.clone().within(order), told);
    }
}
