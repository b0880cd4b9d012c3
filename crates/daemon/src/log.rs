//! Where messages go, and which: set up once, before anything can have something to say.

use std::io::IsTerminal;

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

/// Whether standard error goes to the systemd journal.
pub(crate) fn to_journal() -> bool {
    std::env::var_os("JOURNAL_STREAM").is_some()
}
