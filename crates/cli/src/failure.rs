//! The failures of this program: a message with cause and remedy, and an exit status for scripts.
//!
//! Every verb returns a [`Failure`]; `main` prints it and ends with its status. What the daemon answers is a
//! [`Problem`] and is shown as it came.
//!
//! # Always true
//! - Exit status: 0 it is done, 1 it failed, 2 it was asked for in a way that makes no sense, 3 the daemon cannot be
//!   reached. clap, too, ends with 2.

use std::io;
use std::process::ExitCode;

use serde::Serialize;
use tidegate_api::problem::{Problem, ProblemCode};

/// Why a verb could not do what it was asked to.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was tried, and failed.
    Failed(Problem),
    /// It was asked for in a way that makes no sense; nothing was tried.
    Usage(Problem),
    /// The daemon could not be reached.
    Unreachable(Problem),
    /// Whoever read our output has gone away (`tidegate disk list | head -1`): not worth a word.
    NobodyReads,
}

impl Failure {
    /// A failure of asking: what is wrong, and what to write instead.
    pub(crate) fn usage(what: impl Into<String>, remedy: impl Into<String>) -> Failure {
        Failure::Usage(Problem::new(ProblemCode::Invalid, what).remedy(remedy))
    }

    /// A failure of this program's own file or terminal.
    pub(crate) fn io(what: impl Into<String>, error: &io::Error) -> Failure {
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => "correct the path, or create what is missing",
            io::ErrorKind::PermissionDenied => "run it as a user who may do that",
            io::ErrorKind::StorageFull => "free some space on its file system (see `df`)",
            io::ErrorKind::AlreadyExists => "choose another name, or move the existing file away",
            io::ErrorKind::InvalidInput => "give a path, such as ./disk.img",
            _ => "correct the named cause, and try again",
        };
        let problem = Problem::new(ProblemCode::Internal, what).because(error);
        Failure::Failed(problem.remedy(remedy))
    }

    /// The exit status.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::NobodyReads => 0,
            Failure::Failed(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Unreachable(_) => 3,
        })
    }

    /// What there is to say, if there is anything.
    pub(crate) fn problem(&self) -> Option<&Problem> {
        match self {
            Failure::Failed(problem) | Failure::Usage(problem) | Failure::Unreachable(problem) => {
                Some(problem)
            }
            Failure::NobodyReads => None,
        }
    }
}

impl Failure {
    /// The same as a failure of a later step: what stands, and how to go on once its own remedy was followed.
    pub(crate) fn after(self, stands: String, then: &str) -> Failure {
        let told = |problem: Problem| {
            let remedy = match &problem.remedy {
                Some(remedy) => format!("{remedy}; then {then}"),
                None => then.to_owned(),
            };
            problem.within(stands).remedy(remedy)
        };
        match self {
            Failure::Failed(problem) => Failure::Failed(told(problem)),
            Failure::Unreachable(problem) => Failure::Unreachable(told(problem)),
            other => other,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::NobodyReads,
            _ => Failure::io("cannot write the output", &error),
        }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Failure {
        Failure::Failed(problem)
    }
}

/// A problem as people read it: what, why below it, and last what to do.
pub(crate) fn sentences(problem: &Problem) -> String {
    let mut text = problem.what.clone();
    for why in &problem.why {
        text.push_str("\n  because ");
        text.push_str(&why.trim_end().replace('\n', "\n    "));
    }
    if let Some(remedy) = &problem.remedy {
        text.push_str("\n  to do: ");
        text.push_str(remedy);
    }
    text
}

/// A problem for programs, with `-o json`: `{"problem": {...}}`.
#[derive(Serialize)]
pub(crate) struct Told<'a> {
    /// The problem.
    pub(crate) problem: &'a Problem,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_why_and_what_to_do_stand_on_lines_of_their_own() {
        let problem = Problem::new(ProblemCode::Locked, "cannot attach disk db1")
            .because("its image is locked")
            .because("process 12 holds it\nsince yesterday")
            .remedy("detach it there");
        assert_eq!(
            sentences(&problem),
            "cannot attach disk db1\n  because its image is locked\n  because process 12 holds it\n    \
             since yesterday\n  to do: detach it there"
        );
    }

    #[test]
    fn a_reader_that_goes_away_is_no_failure() {
        let failure = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(failure.problem().is_none());
        assert_eq!(failure.exit_code(), ExitCode::SUCCESS);
    }
}
