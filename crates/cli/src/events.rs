//! `tidegate events`: past and new events of datastores.

use std::time::{Duration, SystemTime};

use clap::Args;
use tidegate_api::events::{Event, EventList};
use tidegate_api::routes;

use crate::failure::Failure;
use crate::output::{Detail, Shown};
use crate::session::Session;
use crate::table;

/// Nothing may happen for days; the daemon says every 15 seconds that it is still there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Show events: congestion, unmet reservations, other hosts, members of disks
///
/// Without --follow, this shows the stored events: the latest thousand since the daemon's start.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate events
  tidegate events --follow
  tidegate events --follow -o json | jq -r 'select(.event == \"burst-low\") | .disk'")]
pub(crate) struct Events {
    /// Continue until interrupted; as JSON, one line for each event
    #[arg(short, long)]
    follow: bool,
}

impl Events {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let client = session.client()?;
        let console = &session.console;
        if !self.follow {
            return console.show(&client.look(routes::EVENTS_KEPT, &[])?);
        }
        let mut events = client.stream(routes::EVENTS, "", PATIENCE)?;
        loop {
            console.show_line(&events.next()?)?;
        }
    }
}

const HEAD: [&str; 4] = ["TIME", "DATASTORE", "EVENT", "WHAT"];

impl Shown for EventList {
    fn names(&self) -> Vec<String> {
        self.events
            .iter()
            .map(|event| event.number.to_string())
            .collect()
    }

    fn table(&self, _: Detail) -> String {
        let rows = self.events.iter().map(|event| {
            vec![
                moment(event.at_ms),
                event
                    .datastore
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), ToString::to_string),
                event.happening.word().to_owned(),
                event.text.clone(),
            ]
        });
        table::columns(&HEAD, &rows.collect::<Vec<_>>())
    }
}

impl Shown for Event {
    fn names(&self) -> Vec<String> {
        vec![self.number.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let word = self.happening.word();
        format!("{}  {word}  {}\n", moment(self.at_ms), self.text)
    }
}

/// The last moment that RFC 3339 has a form for: the end of the year 9999.
const LAST_MS: u64 = 253_402_300_799_999;

/// A moment as RFC 3339 writes it, in UTC and to the second: logs can be laid beside it.
pub(crate) fn moment(at_ms: u64) -> String {
    let since = Duration::from_millis(at_ms.min(LAST_MS));
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_date_and_a_time() {
        for (at_ms, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399_000, "2000-02-28T23:59:59Z"),
            (951_782_400_999, "2000-02-29T00:00:00Z"),
            (1_735_689_599_000, "2024-12-31T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (u64::MAX, "9999-12-31T23:59:59Z"),
        ] {
            assert_eq!(moment(at_ms), text);
        }
    }
}
