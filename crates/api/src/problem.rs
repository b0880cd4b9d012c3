//! Problems: what failed, why, and what to do. A problem is the body of every REST response that reports an error.
//!
//! The daemon makes them from its errors. The command line prints them and chooses its exit status by [`ProblemCode`].
//! Programs must not parse the sentences.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::tree::Errno;

/// An error, described for a person and, by its code, for a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The kind of error. Stable: programs may match on it.
    pub code: ProblemCode,
    /// What failed, as a clause without a full stop: `cannot attach disk db1`.
    pub what: String,
    /// Why, outermost cause first and root cause last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// What to do about it, if anything can be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// The name of the system error with which a file of the control tree answers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<Errno>,
}

/// The kinds of errors. New ones may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemCode {
    /// The request is malformed.
    Invalid,
    /// No such disk, datastore or job.
    NotFound,
    /// The path exists, but not with that HTTP method.
    WrongMethod,
    /// The request's body is too long.
    TooLarge,
    /// Something of that name exists.
    Exists,
    /// It is in use: it is attached, it has disks, or an operation runs on it.
    Busy,
    /// Another daemon has the disk open.
    Locked,
    /// The datastore is full.
    Full,
    /// This daemon or this kind of datastore does not support it.
    Unsupported,
    /// The datastore rejected the operation, is unreachable or returned an error.
    Datastore,
    /// A file on disk is damaged.
    Corrupt,
    /// The daemon has reached a limit of the system: open files, memory.
    Exhausted,
    /// The daemon is stopping and accepts no more requests.
    Stopping,
    /// A bug in the daemon.
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

    /// The system error that comes closest.
    pub const fn errno(self) -> Errno {
        match self {
            ProblemCode::Invalid => Errno::Invalid,
            ProblemCode::NotFound => Errno::NoEntry,
            ProblemCode::WrongMethod => Errno::Access,
            ProblemCode::TooLarge => Errno::TooBig,
            ProblemCode::Exists => Errno::Exists,
            ProblemCode::Busy | ProblemCode::Locked => Errno::Busy,
            ProblemCode::Full => Errno::NoSpace,
            ProblemCode::Unsupported => Errno::Unsupported,
            ProblemCode::Exhausted => Errno::Again,
            ProblemCode::Stopping => Errno::ShutDown,
            ProblemCode::Datastore | ProblemCode::Corrupt | ProblemCode::Internal => Errno::Io,
        }
    }
}

impl Problem {
    /// A problem with neither cause nor remedy yet.
    pub fn new(code: ProblemCode, what: impl Into<String>) -> Problem {
        Problem {
            code,
            what: what.into(),
            why: Vec::new(),
            remedy: None,
            errno: None,
        }
    }

    /// The system error that it is for a file: the one that was set, or that of its kind.
    pub fn errno(&self) -> Errno {
        self.errno.unwrap_or(self.code.errno())
    }

    /// Sets the system error that it is for a file.
    #[must_use]
    pub fn with_errno(mut self, errno: Errno) -> Problem {
        self.errno = Some(errno);
        self
    }

    /// Adds a cause below the existing ones.
    #[must_use]
    pub fn because(mut self, why: impl fmt::Display) -> Problem {
        self.why.push(why.to_string());
        self
    }

    /// Adds another problem as the cause: what failed and why, without what to do.
    #[must_use]
    pub fn because_problem(mut self, cause: &Problem) -> Problem {
        self.why.push(cause.what.clone());
        self.why.extend_from_slice(&cause.why);
        self
    }

    /// Adds every error of a chain, so that the root cause is never lost.
    #[must_use]
    pub fn because_of(mut self, error: &(dyn std::error::Error + 'static)) -> Problem {
        let mut next = Some(error);
        while let Some(error) = next {
            let text = error.to_string().trim_end().to_owned();
            // Some libraries repeat their source in their own message. It is reported once.
            if self.why.last().is_none_or(|last| !last.ends_with(&text)) {
                self.why.push(text);
            }
            next = error.source();
        }
        self
    }

    /// A problem made from an error: its message says what failed, its sources say why.
    pub fn of(code: ProblemCode, error: &(dyn std::error::Error + 'static)) -> Problem {
        let problem = Problem::new(code, error.to_string().trim_end());
        match error.source() {
            Some(source) => problem.because_of(source),
            None => problem,
        }
    }

    /// The same problem as the failure of a request. A problem that names that request already is not wrapped again.
    #[must_use]
    pub fn within(mut self, order: impl Into<String>) -> Problem {
        let order = order.into();
        if self.what != order {
            let inner = std::mem::replace(&mut self.what, order);
            self.why.insert(0, inner);
        }
        self
    }

    /// Adds what to do.
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
    fn another_problem_as_the_cause_leaves_its_remedy_out() {
        let inner = Problem::new(ProblemCode::NotFound, "no device can be used")
            .because("it is not there")
            .remedy("put it back");
        let outer = Problem::new(ProblemCode::Locked, "cannot attach disk db1");
        let outer = outer.because_problem(&inner).remedy("wait");
        assert_eq!(outer.why, ["no device can be used", "it is not there"]);
        assert_eq!(outer.remedy.as_deref(), Some("wait"));
    }

    #[test]
    fn a_problem_is_one_sentence_with_the_root_cause() {
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
    fn a_repeated_cause_is_reported_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct Talkative(#[source] std::io::Error);
        let cause = Talkative(std::io::Error::other("disk on fire\n"));
        let problem = Problem::new(ProblemCode::Datastore, "what").because_of(&cause);
        assert_eq!(problem.why, ["outer: disk on fire"]);
    }

    #[test]
    fn the_failed_request_precedes_its_causes_once() {
        let order = "cannot attach disk db1";
        let problem = Problem::of(
            ProblemCode::Datastore,
            &Outer(std::io::Error::other("disk on fire")),
        );
        assert_eq!(problem.what, "outer");
        let wrapped = problem.within(order);
        assert_eq!(wrapped.why, ["outer", "disk on fire"]);
        assert_eq!(wrapped.clone().within(order), wrapped);
    }
}
