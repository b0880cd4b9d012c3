//! The log: its format, level and destination.

use std::io::IsTerminal;
use std::os::fd::AsFd;

use tidegate_api::config::LogFormat;
use tidegate_api::problem::Problem;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::plan::LogPlan;
use crate::os_error::{self, Outcome};

mod journal;
mod lines;
mod lost;

use journal::Journal;
use lines::Line;
use lost::Lost;

static LOST: Lost = Lost::none();

/// The log filter. `RUST_LOG`, if set, overrides the plan: it is for the one run in which it is set.
pub(crate) fn filter(plan: &LogPlan) -> Outcome<EnvFilter> {
    let planned = parse(&plan.filter)?;
    if let Some(word) = stray_word(&plan.filter) {
        let why = format!("'{word}' is no level: that is error, warn, info, debug, trace or off");
        return Err(no_filter(&plan.filter).because(why));
    }
    match std::env::var("RUST_LOG") {
        Ok(words) => parse(&words),
        Err(_) => Ok(planned),
    }
}

fn parse(words: &str) -> Outcome<EnvFilter> {
    EnvFilter::try_new(words).map_err(|error| no_filter(words).because_of(&error))
}

fn no_filter(words: &str) -> Problem {
    os_error::invalid(format!("the log filter '{words}' makes no sense"))
        .remedy("write it as \"info\" or \"info,tidegate_daemon=debug\"")
}

/// Finds a word that stands alone and is no level. It would be parsed as a module of the program, and nothing else
/// would be logged.
fn stray_word(words: &str) -> Option<&str> {
    let directives = words.split(',').map(str::trim);
    let mut alone = directives
        .filter(|word| !word.is_empty() && !word.contains(['=', '[', ']', '{', '}', ':', '"']));
    alone.find(|word| !word.starts_with("tidegate") && word.parse::<LevelFilter>().is_err())
}

/// Starts logging.
pub(crate) fn start(filter: EnvFilter, format: LogFormat) -> Outcome<()> {
    let registry = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| Line {
            to: std::io::stderr().lock(),
            lost: &LOST,
        })
        .with_ansi(std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_target(false);
    let started = match format {
        LogFormat::Text => registry.with(lines).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
        LogFormat::Journald => match Journal::of_this_machine(&LOST) {
            Ok(journal) => registry.with(journal).try_init(),
            // Without a journal, text lines are better than nothing.
            Err(_) => registry.with(lines).try_init(),
        },
    };
    // A program with logging of its own (a test, say) continues to use it.
    started.or(Ok::<(), Problem>(()))
}

/// Log lines lost since the program began, because no reader took them.
pub(crate) fn lines_lost() -> u64 {
    LOST.ever()
}

/// Whether standard error is the systemd journal. `JOURNAL_STREAM` identifies the journal's file (systemd.exec(5)). It
/// is compared with standard error, because a shell on a terminal may have inherited the variable.
pub(crate) fn to_journal() -> bool {
    let told = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    is_stream(&told, std::io::stderr())
}

/// Whether a file is the one named by `DEVICE:INODE`.
fn is_stream(told: &str, file: impl AsFd) -> bool {
    let Ok(found) = rustix::fs::fstat(file) else {
        return false;
    };
    told.split_once(':').is_some_and(|(device, inode)| {
        device.parse() == Ok(found.st_dev) && inode.parse() == Ok(found.st_ino)
    })
}

/// Captures log lines while a test runs.
#[cfg(test)]
pub(crate) mod captured {
    use std::io;
    use std::sync::{Arc, Mutex, PoisonError};

    #[derive(Clone, Default)]
    pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        /// Runs this and captures all that it logs, from level info on.
        pub(crate) fn while_logging<T>(&self, run: impl FnOnce() -> T) -> T {
            let _log = self.listen();
            run()
        }

        /// Captures all that this thread logs until the returned guard is dropped.
        pub(crate) fn listen(&self) -> tracing::subscriber::DefaultGuard {
            let writer = self.clone();
            let log = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_writer(move || writer.clone());
            tracing::subscriber::set_default(log.finish())
        }

        pub(crate) fn text(&self) -> String {
            let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_filter_that_is_none_is_refused_with_one_that_works() {
        let filter = |words: &str| {
            filter(&LogPlan {
                filter: words.to_owned(),
                format: LogFormat::Text,
            })
        };
        for bad in [
            "verbose",
            "none",
            "info,loud",
            "tidegate_daemon=loud",
            "=[",
            "a=b=c",
        ] {
            let refused = filter(bad).expect_err(bad);
            assert!(refused.to_string().contains(bad), "{refused}");
            let remedy = refused.remedy.expect("it says what to write");
            let words: Vec<&str> = remedy.split('"').skip(1).step_by(2).collect();
            assert_eq!(words.len(), 2, "{remedy}");
            for works in words {
                filter(works).expect(works);
            }
        }
        for good in [
            "",
            "off",
            "WARN",
            "tidegate_engine",
            "warn,rustls=info",
            "info,a[b{c=1}]=debug",
        ] {
            filter(good).expect(good);
        }
    }

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
