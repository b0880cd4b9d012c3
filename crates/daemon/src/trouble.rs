//! From the errors of the system to [`Problem`]s: the sort of failure, the chain of reasons, and what to do.

use std::io;

use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::datastore::condition::Harm;

use crate::limits;

/// What everything in the daemon that can fail answers.
pub(crate) type Outcome<T> = Result<T, Problem>;

/// What has befallen an image, and why that is so: each half of a sentence.
pub(crate) fn harm(harm: Harm) -> (&'static str, &'static str) {
    match harm {
        Harm::FlushesFail => (
            "its flushes fail",
            "what was written to it may not have been made durable",
        ),
        Harm::Cut => (
            "it is not written to any more",
            "its image was cut behind the daemon's back, and what is left of it can be read",
        ),
        Harm::Torn => (
            "it is neither read nor written any more",
            "its image was cut behind the daemon's back while it was written, and may have holes where data was",
        ),
    }
}

/// A problem whose cause is an I/O error; its sort and, where it helps, its remedy follow from the error's kind.
pub(crate) fn io(what: impl Into<String>, error: &io::Error) -> Problem {
    if let Some(remedy) = limits::remedy(error) {
        return Problem::new(ProblemCode::Exhausted, what)
            .because_of(error)
            .remedy(remedy);
    }
    let (code, remedy) = match error.kind() {
        io::ErrorKind::NotFound => (ProblemCode::NotFound, None),
        io::ErrorKind::AlreadyExists => (ProblemCode::Exists, None),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (
            ProblemCode::Full,
            Some("free some space on its file system".to_owned()),
        ),
        io::ErrorKind::PermissionDenied => (ProblemCode::Datastore, Some(permit())),
        io::ErrorKind::ReadOnlyFilesystem => (
            ProblemCode::Datastore,
            Some("mount its file system writable".to_owned()),
        ),
        io::ErrorKind::InvalidInput => (ProblemCode::Invalid, None),
        _ => (ProblemCode::Datastore, None),
    };
    let problem = Problem::new(code, what).because_of(error);
    match remedy {
        Some(remedy) => problem.remedy(remedy),
        None => problem,
    }
}

/// What to do where the system does not let this process have something.
pub(crate) fn permit() -> String {
    format!(
        "let user {} do that, who the daemon runs as (see `namei -l` for each directory of the path), or run it as another",
        rustix::process::geteuid().as_raw()
    )
}

/// A problem of the asker's making.
pub(crate) fn invalid(what: impl Into<String>) -> Problem {
    Problem::new(ProblemCode::Invalid, what)
}

/// Runs blocking work beside the asynchronous ones.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Outcome<T> + Send + 'static,
) -> Outcome<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(outcome) => outcome,
        Err(error) => Err(failed(&error)),
    }
}

/// A problem of the daemon's own making.
pub(crate) fn failed(error: &dyn std::error::Error) -> Problem {
    Problem::new(ProblemCode::Internal, "the daemon failed at this")
        .because(error)
        .remedy("look into its log, and report it")
}
