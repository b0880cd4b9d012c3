//! `tidegate top --batch`: samples as CSV or JSON instead of a screen, for files and other programs.

use std::time::Duration;

use tidegate_api::stats::Sample;

use super::columns::{Cell, Column, DISKS, THREADS};
use super::screen::View;
use crate::failure::Failure;
use crate::output::Format;
use crate::session::Session;
use crate::stats;

/// Prints `count` samples, or samples until it is interrupted.
pub(super) fn run(
    session: &Session,
    view: View,
    interval: Duration,
    count: Option<u64>,
) -> Result<(), Failure> {
    let console = &session.console;
    let mut samples = stats::samples(session.client()?, interval)?;
    let csv = matches!(console.format, Format::Table | Format::Wide);
    if csv {
        console.print(&head(view))?;
    }
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        let sample = samples.next()?;
        if csv {
            console.print(&rows(view, &sample))?;
        } else {
            console.show_next(&sample)?;
        }
        left -= 1;
    }
    Ok(())
}

/// The CSV header: the columns' names.
pub(super) fn head(view: View) -> String {
    fn line<T>(columns: &[Column<T>]) -> String {
        let keys = columns.iter().map(|column| column.key.to_owned());
        joined(std::iter::once("at_ms".to_owned()).chain(keys))
    }
    match view {
        View::Disks => line(&DISKS),
        View::Threads => line(&THREADS),
    }
}

/// A sample as CSV: a line for each disk, or for each I/O thread.
pub(super) fn rows(view: View, sample: &Sample) -> String {
    fn lines<T>(at_ms: u64, columns: &[Column<T>], rows: &[T]) -> String {
        let line = |row| {
            let cells = columns.iter().map(|column| cell((column.cell)(row)));
            joined(std::iter::once(at_ms.to_string()).chain(cells))
        };
        rows.iter().map(line).collect()
    }
    match view {
        View::Disks => lines(sample.at_ms, &DISKS, &sample.disks),
        View::Threads => lines(sample.at_ms, &THREADS, &sample.threads),
    }
}

/// A cell as CSV. It needs no quotes: names contain no commas, quotes or line ends.
fn cell(cell: Cell) -> String {
    match cell {
        Cell::Text(text) => text.trim().to_owned(),
        Cell::Number(value) => {
            let text = format!("{value:.3}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

fn joined(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(",") + "\n"
}
