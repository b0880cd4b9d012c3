//! `tidegate top`: a host's disks and I/O threads, live.
//!
//! `feed` brings samples from the daemon, `screen` decides what a key means and what is in view, `draw` paints it,
//! `columns` says what can be seen and sorted by, `batch` prints instead of painting. Only this file and `feed` touch
//! the world: the others are values in, values out.

use std::time::{Duration, Instant};

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use tidegate_api::units::Span;

use crate::failure::Failure;
use crate::output::{self, Colour};
use crate::session::Session;
use crate::stats;

mod batch;
mod columns;
mod draw;
mod feed;
mod screen;

use feed::{Feed, News};
use screen::{Act, Screen, View};

/// How often the keyboard and the feed are looked at: quick enough to feel immediate.
const LOOK: Duration = Duration::from_millis(50);

/// Watch disks and I/O threads live
///
/// Keys: o and O choose the column to sort by, r reverses the order, d shows disks, t shows threads, Enter shows a disk's
/// stages, s sets the interval, p pauses, h shows help, q quits. With -b the command prints samples instead: CSV, or one JSON
/// object a line with -o json.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate top
  tidegate top --delay 5s --sort p99
  tidegate top -b -n 60 -d 1 > disks.csv
  tidegate top -b -n 5 -o json | jq '.disks[].all.iops'

Latency is split as esxtop splits it:
  GAVG  mean, as the guest sees it       = QAVG + FAVG + DAVG
  QAVG  waiting in the device's queue    (esxtop's KAVG is QAVG + FAVG)
  FAVG  in the disk's filters
  DAVG  in the datastore")]
pub(crate) struct Top {
    /// Print samples, without a screen
    #[arg(short, long)]
    batch: bool,

    /// The number of samples; default: until interrupted
    #[arg(short = 'n', long, value_name = "N", requires = "batch")]
    count: Option<u64>,

    /// The time between two samples: a number of seconds, or a time such as 500ms
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = delay)]
    delay: Span,

    /// The rows to show first, or to print as CSV
    #[arg(long, value_enum, default_value = "disks")]
    view: View,

    /// The column to sort by: its head, in upper or lower case
    #[arg(long, value_name = "COLUMN")]
    sort: Option<String>,
}

/// A time with its unit, or a bare number of seconds as esxtop takes it.
fn delay(text: &str) -> Result<Span, String> {
    let bare = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    stats::interval(&if bare {
        format!("{text}s")
    } else {
        text.to_owned()
    })
}

impl Top {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let interval = self.delay.to_duration();
        if self.batch {
            return batch::run(session, self.view, interval, self.count);
        }
        if !output::on_a_terminal() {
            return Err(Failure::usage(
                "there is no terminal to show a screen on",
                "print instead: tidegate top --batch, or tidegate stats --watch",
            ));
        }
        let mut screen = Screen::new(self.view, interval, session.console.colour);
        if let Some(column) = &self.sort {
            screen.sort_by(column)?;
        }
        // Asked once before the screen opens, so that the message about a missing daemon is readable.
        let feed = Feed::start(session, interval)?;
        let mut terminal =
            ratatui::try_init().map_err(|e| Failure::io("cannot use this terminal", &e))?;
        let ended = live(session, &mut terminal, &mut screen, feed);
        ratatui::restore();
        ended
    }
}

/// Shows samples and takes keys until a person has seen enough.
fn live(
    session: &Session,
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    mut feed: Feed,
) -> Result<(), Failure> {
    let broken = |e| Failure::io("cannot use this terminal", &e);
    let mut retry_at: Option<Instant> = None;
    loop {
        terminal
            .draw(|frame| draw::draw(frame, screen))
            .map_err(broken)?;
        if event::poll(LOOK).map_err(broken)?
            && let Event::Key(key) = event::read().map_err(broken)?
        {
            match screen.key(key) {
                Act::Go => {}
                Act::Quit => return Ok(()),
                Act::Restart => retry_at = Some(Instant::now()),
            }
        }
        while let Some(news) = feed.news() {
            match news {
                News::Sample(sample) => screen.take(sample),
                News::Lost(problem) => {
                    screen.lose(&problem);
                    retry_at = Some(Instant::now() + screen.interval());
                }
            }
        }
        // A daemon that restarts or is upgraded is found again.
        if retry_at.is_some_and(|at| Instant::now() >= at) {
            retry_at = None;
            match Feed::start(session, screen.interval()) {
                Ok(fresh) => feed = fresh,
                Err(failure) => {
                    if let Some(problem) = failure.problem() {
                        screen.lose(problem);
                    }
                    retry_at = Some(Instant::now() + screen.interval());
                }
            }
        }
    }
}

/// Whether colours may be used.
fn coloured(colour: Colour) -> bool {
    colour == Colour::On
}

#[cfg(test)]
mod tests;
