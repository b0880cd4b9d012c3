//! Where messages go, and which: set up once, before anything can have something to say.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use tidegate_api::config::LogFormat;
use tidegate_api::problem::Problem;
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::plan::LogPlan;
use crate::trouble::{self, Outcome};

mod journal;
mod lines;
mod lost;

use journal::Journal;
use lines::Line;
use lost::Lost;

static LOST: Lost = Lost::none();

/// Starts logging. `RUST_LOG`, where it is set, goes before the plan: it is for the one run in which it is set.
pub(crate) fn start(plan: &LogPlan) -> Outcome<()> {
    let words = std::env::var("RUST_LOG").unwrap_or_else(|_| plan.filter.clone());
    let filter = EnvFilter::try_new(&words).map_err(|error| {
        trouble::invalid(format!("the log filter '{words}' makes no sense"))
            .because_of(&error)
            .remedy("write it as \"info\" or \"info,tidegate_daemon=debug\"")
    })?;
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| Line {
            to: std::io::stderr().lock(),
            lost: &LOST,
        })
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_target(false);
    let started = match plan.format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
        LogFormat::Journald => match Journal::of_this_machine(&LOST) {
            Ok(journal) => registry.with(journal).try_init(),
            // Without a journal, lines are better than silence.
            Err(_) => registry.with(lines).try_init(),
        },
    };
    // A program that set up logging of its own (a test, say) keeps it.
    started.or(Ok::<(), Problem>(()))
}

/// How many lines nobody read and were lost, since the program began.
pub(crate) fn lines_lost() -> u64 {
    LOST.ever()
}

/// Whether standard error goes to the systemd journal: `JOURNAL_STREAM` says which file that would be, for as long as nobody
/// redirects it (systemd.exec(5)); a shell on a terminal may have inherited the variable.
pub(crate) fn to_journal() -> bool {
    let told = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    is_stream(&told, std::io::stderr())
}

/// Whether a file is the one that is told of as `DEVICE:INODE`.
fn is_stream(told: &str, file: impl AsFd) -> bool {
    let Ok(found) = rustix::fs::fstat(file) else {
        return false;
    };
    told.split_once(':').is_some_and(|(device, inode)| {
        device.parse() == Ok(found.st_dev) && inode.parse() == Ok(found.st_ino)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_file_that_is_told_of_is_the_journal() {
        let [file, other] = [0, 1].map(|_| tempfile::tempfile().expect("a file can be made"));
        let found = rustix::fs::fstat(&file).expect("it can be looked at");
        let told = format!("{}:{}", found.st_dev, found.st_ino);
        assert!(is_stream(&told, &file) && !is_stream(&told, &other));
        for nonsense in ["", ":", "1", "a:b"] {
            assert!(!is_stream(nonsense, &file), "{nonsense}");
        }
    }
}
