//! The state of the `top` screen, and the keys that change it.
//!
//! # Always true
//! - The selected disk stays selected while rows move, until it is gone.

use std::time::Duration;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tidegate_api::name::Name;
use tidegate_api::problem::Problem;
use tidegate_api::stats::{DiskStats, Sample, ThreadStats};

use super::columns::{Column, DISKS, THREADS};
use crate::failure::Failure;
use crate::output::Colour;

/// What the rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum View {
    /// One row for each attached disk
    Disks,
    /// One row for each I/O thread
    Threads,
}

/// Which way rows are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// As the column has it: the largest first, names from A.
    Usual,
    /// The other way round.
    Reversed,
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sort {
    /// The column's place in its table.
    pub(super) column: usize,
    /// Which way.
    pub(super) direction: Direction,
}

/// What lies over the rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Overlay {
    /// What the keys and heads mean.
    Help,
    /// A new interval, as far as it is typed; and what was wrong with it when it was entered.
    Interval {
        typed: String,
        wrong: Option<String>,
    },
}

/// Whether a disk's stages are shown below the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stages {
    /// They are.
    Shown,
    /// They are not.
    Hidden,
}

/// Whether new samples are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pace {
    /// They are.
    Live,
    /// The last one stays.
    Paused,
}

/// What the caller must do after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing: go on.
    Go,
    /// End.
    Quit,
    /// Open the stream again, for the interval has changed.
    Restart,
}

/// The whole of what is shown.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) view: View,
    pub(super) disk_sort: Sort,
    pub(super) thread_sort: Sort,
    pub(super) selected: Option<Name>,
    pub(super) stages: Stages,
    pub(super) overlay: Option<Overlay>,
    pub(super) pace: Pace,
    pub(super) sample: Option<Sample>,
    pub(super) problem: Option<String>,
    pub(super) colour: Colour,
    interval: Duration,
}

impl Screen {
    /// A screen without a sample yet, disks in the order of their names.
    pub(super) fn new(view: View, interval: Duration, colour: Colour) -> Screen {
        let first = Sort {
            column: 0,
            direction: Direction::Usual,
        };
        Screen {
            view,
            disk_sort: first,
            thread_sort: first,
            selected: None,
            stages: Stages::Hidden,
            overlay: None,
            pace: Pace::Live,
            sample: None,
            problem: None,
            colour,
            interval,
        }
    }

    /// The time between two samples.
    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// Sorts by the column that has this head, in any case.
    pub(super) fn sort_by(&mut self, head: &str) -> Result<(), Failure> {
        let heads: Vec<&str> = match self.view {
            View::Disks => DISKS.iter().map(|column| column.head).collect(),
            View::Threads => THREADS.iter().map(|column| column.head).collect(),
        };
        let found = heads
            .iter()
            .position(|known| known.eq_ignore_ascii_case(head));
        self.sort().column = found.ok_or_else(|| {
            Failure::usage(
                format!("there is no column '{head}'"),
                format!("sort by one of {}", heads.join(" ")),
            )
        })?;
        Ok(())
    }

    /// A sample has come.
    pub(super) fn take(&mut self, sample: Sample) {
        self.problem = None;
        if self.pace == Pace::Live {
            let still_there = |name: &Name| sample.disks.iter().any(|disk| disk.name == *name);
            self.selected = self.selected.take().filter(still_there);
            self.sample = Some(sample);
        }
    }

    /// The daemon has gone; the last sample stays in view.
    pub(super) fn lose(&mut self, problem: &Problem) {
        self.problem = Some(problem.what.clone());
    }

    /// The disks, sorted.
    pub(super) fn disks(&self) -> Vec<&DiskStats> {
        let sample = self.sample.as_ref();
        let rows = sample
            .map(|sample| sample.disks.iter().collect())
            .unwrap_or_default();
        sorted(rows, &DISKS, self.disk_sort)
    }

    /// The I/O threads, sorted.
    pub(super) fn threads(&self) -> Vec<&ThreadStats> {
        let sample = self.sample.as_ref();
        let rows = sample
            .map(|sample| sample.threads.iter().collect())
            .unwrap_or_default();
        sorted(rows, &THREADS, self.thread_sort)
    }

    /// The selected disk: the first row if none was chosen.
    pub(super) fn selected(&self) -> Option<&DiskStats> {
        let disks = self.disks();
        let chosen = disks
            .iter()
            .find(|disk| Some(&disk.name) == self.selected.as_ref());
        chosen.or(disks.first()).copied()
    }

    /// A key was pressed.
    pub(super) fn key(&mut self, key: KeyEvent) -> Act {
        if key.kind == KeyEventKind::Release {
            return Act::Go;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            return Act::Quit;
        }
        match self.overlay.take() {
            None => self.command(key.code),
            // Any key closes the help; so does the one that a person would press to leave it.
            Some(Overlay::Help) => Act::Go,
            Some(Overlay::Interval { typed, .. }) => self.type_interval(typed, key.code),
        }
    }

    fn command(&mut self, key: KeyCode) -> Act {
        match key {
            KeyCode::Char('q') => return Act::Quit,
            KeyCode::Char('h' | '?') => self.overlay = Some(Overlay::Help),
            KeyCode::Char('d') => self.view = View::Disks,
            KeyCode::Char('t') => self.view = View::Threads,
            KeyCode::Char('s') => {
                self.overlay = Some(Overlay::Interval {
                    typed: String::new(),
                    wrong: None,
                });
            }
            KeyCode::Char('o') | KeyCode::Right => self.next_column(1),
            KeyCode::Char('O') | KeyCode::Left => self.next_column(self.columns() - 1),
            KeyCode::Char('r') => {
                let sort = self.sort();
                sort.direction = match sort.direction {
                    Direction::Usual => Direction::Reversed,
                    Direction::Reversed => Direction::Usual,
                };
            }
            KeyCode::Char('p' | ' ') => {
                self.pace = match self.pace {
                    Pace::Live => Pace::Paused,
                    Pace::Paused => Pace::Live,
                };
            }
            KeyCode::Enter => {
                self.stages = match self.stages {
                    Stages::Hidden => Stages::Shown,
                    Stages::Shown => Stages::Hidden,
                };
            }
            KeyCode::Esc => self.stages = Stages::Hidden,
            KeyCode::Down | KeyCode::Char('j') => self.select(|at, last| last.min(at + 1)),
            KeyCode::Up | KeyCode::Char('k') => self.select(|at, _| at.saturating_sub(1)),
            KeyCode::Home => self.select(|_, _| 0),
            KeyCode::End => self.select(|_, last| last),
            KeyCode::PageDown => self.select(|at, last| last.min(at + 10)),
            KeyCode::PageUp => self.select(|at, _| at.saturating_sub(10)),
            _ => {}
        }
        Act::Go
    }

    fn type_interval(&mut self, mut typed: String, key: KeyCode) -> Act {
        match key {
            KeyCode::Esc => return Act::Go,
            KeyCode::Backspace => {
                typed.pop();
            }
            // Nothing that is longer can be an interval.
            KeyCode::Char(c) if typed.len() < 10 => typed.push(c),
            KeyCode::Enter => match super::delay(&typed) {
                Ok(span) => {
                    self.interval = span.to_duration();
                    return Act::Restart;
                }
                Err(why) => {
                    self.overlay = Some(Overlay::Interval {
                        typed,
                        wrong: Some(why),
                    });
                    return Act::Go;
                }
            },
            _ => {}
        }
        self.overlay = Some(Overlay::Interval { typed, wrong: None });
        Act::Go
    }

    fn sort(&mut self) -> &mut Sort {
        match self.view {
            View::Disks => &mut self.disk_sort,
            View::Threads => &mut self.thread_sort,
        }
    }

    fn columns(&self) -> usize {
        match self.view {
            View::Disks => DISKS.len(),
            View::Threads => THREADS.len(),
        }
    }

    fn next_column(&mut self, steps: usize) {
        let columns = self.columns();
        let sort = self.sort();
        *sort = Sort {
            column: (sort.column + steps) % columns,
            direction: Direction::Usual,
        };
    }

    fn select(&mut self, step: impl FnOnce(usize, usize) -> usize) {
        let names: Vec<Name> = self.disks().iter().map(|disk| disk.name.clone()).collect();
        let Some(last) = names.len().checked_sub(1) else {
            return;
        };
        let at = names
            .iter()
            .position(|name| Some(name) == self.selected.as_ref())
            .unwrap_or(0);
        self.selected = names.into_iter().nth(step(at, last));
    }
}

/// Equal rows keep the order in which the daemon gave them: by name or number.
fn sorted<'a, T>(mut rows: Vec<&'a T>, columns: &[Column<T>], sort: Sort) -> Vec<&'a T> {
    let column = &columns[sort.column];
    rows.sort_by(|a, b| match sort.direction {
        Direction::Usual => column.order(a, b),
        Direction::Reversed => column.order(b, a),
    });
    rows
}
