//! The progress of lab runs: a bar on a terminal, lines elsewhere; and Ctrl-C.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tidegate_lab::experiment::{Piece, Watcher};
use tidegate_lab::interruption;

use crate::failure::Failure;
use crate::figures;
use crate::output::{Colour, Console, Talk};

/// How often a line is printed where there is no bar: a log is to be read, not filled.
const LINES: Duration = Duration::from_secs(30);

/// Shows how runs go.
pub(super) struct Progress {
    console: Console,
    shown: Shown,
    stop: Arc<AtomicBool>,
    /// The experiment's name.
    name: String,
    /// What comes after this experiment.
    later: Duration,
    /// The run that is made, in words.
    run: String,
}

/// Where progress is shown.
enum Shown {
    Bar(ProgressBar),
    Lines { next: Instant },
    Nowhere,
}

impl Progress {
    /// Nothing runs yet. From now on an interruption ends runs in good order; a second one ends everything at once.
    pub(super) fn new(console: &Console) -> Result<Progress, Failure> {
        Ok(Progress {
            console: *console,
            shown: Shown::new(console),
            stop: interruptions()?,
            name: String::new(),
            later: Duration::ZERO,
            run: String::new(),
        })
    }

    /// From now on runs are of this experiment.
    pub(super) fn of(&mut self, name: &str, out: &Path) {
        self.name = name.to_owned();
        self.say(&format!(
            "{name}: results go to {} (an interruption loses no finished run)",
            out.display()
        ));
    }

    /// What will come after it.
    pub(super) fn later(&mut self, later: Duration) {
        self.later = later;
    }

    /// Nothing more will run.
    pub(super) fn end(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }

    fn say(&self, message: &str) {
        match &self.shown {
            Shown::Bar(bar) => bar.suspend(|| self.console.say(message)),
            Shown::Lines { .. } | Shown::Nowhere => self.console.say(message),
        }
    }
}

/// Shows how far one thing is: a recording, a replay.
pub(super) struct Course {
    console: Console,
    shown: Shown,
    stop: Arc<AtomicBool>,
}

impl Course {
    /// It begins. From now on an interruption ends it in good order; a second one at once.
    pub(super) fn new(console: &Console) -> Result<Course, Failure> {
        let mut shown = Shown::new(console);
        if let Shown::Lines { next } = &mut shown {
            // What is done was said; how far it is says nothing yet.
            *next = Instant::now() + LINES;
        }
        Ok(Course {
            console: *console,
            shown,
            stop: interruptions()?,
        })
    }

    /// It is so far of that, and how it is doing.
    pub(super) fn goes(&mut self, done: u64, of: u64, says: &str) {
        match &mut self.shown {
            Shown::Bar(bar) => {
                bar.set_length(of.max(1));
                bar.set_position(done.min(of));
                bar.set_message(says.to_owned());
            }
            Shown::Lines { next } => {
                let now = Instant::now();
                if now >= *next {
                    *next = now + LINES;
                    self.console.say(says);
                }
            }
            Shown::Nowhere => {}
        }
    }

    /// Whether it is to end early.
    pub(super) fn interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// It is over.
    pub(super) fn end(&self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// Becomes true at the first interruption. A second interruption ends the program at once.
fn interruptions() -> Result<Arc<AtomicBool>, Failure> {
    interruption::noticed().map_err(|error| Failure::io("cannot catch interruptions", &error))
}

impl Shown {
    fn new(console: &Console) -> Shown {
        if console.talk == Talk::Quiet {
            return Shown::Nowhere;
        }
        if !std::io::stderr().is_terminal() {
            return Shown::Lines {
                next: Instant::now(),
            };
        }
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        let parts = match console.colour {
            Colour::On => "{bar:24.cyan} {percent:>3}%  {wide_msg}",
            Colour::Off => "{bar:24} {percent:>3}%  {wide_msg}",
        };
        bar.set_style(ProgressStyle::with_template(parts).expect("the template above is one"));
        Shown::Bar(bar)
    }
}

impl Watcher for Progress {
    fn begins(&mut self, piece: &Piece, place: usize, of: usize) {
        self.run = format!(
            "{} {place}/{of}: {}, {}",
            self.name,
            piece.on.title(),
            piece.words
        );
        if let Shown::Lines { next } = &mut self.shown {
            *next = Instant::now() + LINES;
            self.say(&self.run);
        }
    }

    fn goes(&mut self, done: Duration, of: Duration, left: Duration) {
        let left = (left + self.later).as_secs();
        let text = format!("{}, {} left", self.run, figures::seconds(left));
        match &mut self.shown {
            Shown::Bar(bar) => {
                bar.set_length(millis(of));
                bar.set_position(millis(done.min(of)));
                bar.set_message(text);
            }
            Shown::Lines { next } => {
                let now = Instant::now();
                if now >= *next {
                    *next = now + LINES;
                    self.say(&text);
                }
            }
            Shown::Nowhere => {}
        }
    }

    fn ended(&mut self, _piece: &Piece, took: Duration, problem: Option<&str>) {
        if let Some(problem) = problem {
            self.say(&format!("{}: {problem}", self.name));
        } else if took >= LINES {
            let took = figures::seconds(took.as_secs());
            self.say(&format!("{}: done in {took}", self.run));
        }
    }

    fn interrupted(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
