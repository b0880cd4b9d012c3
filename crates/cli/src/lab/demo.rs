//! `tidegate lab demo`: two live hosts before one congested array.
//!
//! The stage is `tidegate_lab`'s; here are its flags, its end (a time, Ctrl-C, an error: after each of them nothing is left),
//! and what is shown each second: a table that stands still on a terminal, a line elsewhere, an object a line as JSON.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::crossterm::terminal;
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use tidegate_api::units::Span;
use tidegate_lab::demo::{self, Row, Second, story::percent};

use super::{failed, this_program};
use crate::failure::Failure;
use crate::output::{Console, Detail, Format, Shown};
use crate::session::Session;
use crate::{figures, table};

/// Watch two hosts share a congested array, and change the shares of their disks
///
/// The demonstration starts two daemons with roots in a temporary directory, four virtual machines that always have reads
/// outstanding, and one emulated array for both hosts. The array does some 670 I/Os a second and needs little CPU.
///
/// It prints the addresses of the two dashboards. Once a second it shows each disk's throughput beside its part by shares.
/// Change the shares with the command that it prints, or in a dashboard's form. The effect is visible at once, and a few
/// seconds later a sentence reports it.
///
/// Ctrl-C or an error ends it: the daemons are stopped and the directory is removed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate lab demo
  tidegate lab demo --open
  tidegate lab demo --act --for 30s
  tidegate lab demo --for 20s -o json | jq 'select(.kind == \"second\") | .disks[].got_ratio'")]
pub(crate) struct Demo {
    /// End after this time: 30s, 5min
    #[arg(long = "for", value_name = "TIME", value_parser = lasts)]
    lasts: Option<Span>,

    /// Open the first host's dashboard in a browser (xdg-open)
    #[arg(long)]
    open: bool,

    /// Raise vm4 to 4000 shares after five seconds
    #[arg(long)]
    act: bool,
}

/// How long to wait with what `--act` does: the hosts have found their windows by then.
const ACTS_AFTER: Duration = Duration::from_secs(5);
/// How often it is shown.
const SECOND: Duration = Duration::from_secs(1);
/// How often it is looked whether to end.
const LOOK: Duration = Duration::from_millis(50);

fn lasts(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|error| format!("{error}"))?;
    if span.to_duration() < SECOND {
        return Err("it must be 1s at least".to_owned());
    }
    Ok(span)
}

impl Demo {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let caught = [SIGINT, SIGTERM, SIGHUP].into_iter();
        let caught = caught.map(|signal| flag::register(signal, Arc::clone(&stop)));
        let caught: Result<Vec<_>, _> = caught.collect();
        caught.map_err(|error| Failure::io("cannot catch interruptions", &error))?;
        let console = &session.console;
        let begun = demo::Demo::start(&this_program()?);
        let mut demo = begun.map_err(|error| failed("cannot set up the demonstration", &error))?;
        let scratch = demo.scratch().display().to_string();
        let played = self.play(console, &mut demo, &stop);
        drop(demo);
        played?;
        console.say(&format!(
            "The demonstration is over: its daemons are stopped, {scratch} is removed."
        ));
        Ok(())
    }

    /// Shows it until its end.
    fn play(
        &self,
        console: &Console,
        demo: &mut demo::Demo,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let wrong = |error: anyhow::Error| failed("cannot go on with the demonstration", &error);
        let lasts = self.lasts.map(|span| span.to_duration());
        let begun = Instant::now();
        let mut face = Face::new(console);
        face.begins(demo)?;
        if self.open {
            open(console, demo);
        }
        let mut is_to_act = self.act;
        for nth in 1.. {
            if !wait_until(begun + SECOND * nth, stop) {
                break;
            }
            face.shows(&demo.second().map_err(wrong)?)?;
            let elapsed = begun.elapsed();
            if lasts.is_some_and(|lasts| elapsed >= lasts) {
                break;
            }
            if is_to_act && elapsed >= ACTS_AFTER {
                is_to_act = false;
                let (disk, _) = demo::CHANGED;
                demo.set_shares(disk, demo::RAISED).map_err(wrong)?;
            }
        }
        face.ends(begun.elapsed())
    }
}

/// Waits until `at`. False if it was interrupted before.
fn wait_until(at: Instant, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let left = at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(LOOK));
    }
}

/// Shows the first host's page of the datastore in a browser. Without one the address is there to be read.
fn open(console: &Console, demo: &demo::Demo) {
    let Some(host) = demo.hosts().first() else {
        return;
    };
    let opened = Command::new("xdg-open")
        .arg(page(host))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Err(error) = opened {
        console.say(&format!(
            "cannot open a browser with xdg-open ({error}): open the address yourself"
        ));
    }
}

/// The page with the share of throughput by disk.
fn page(host: &tidegate_lab::host::Host) -> String {
    format!("{}#/datastore/{}", host.dashboard(), demo::DATASTORE)
}

/// The output for programs: one object a line.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Told<'a> {
    /// It is set up.
    Begun {
        datastore: &'static str,
        hosts: Vec<HostTold<'a>>,
    },
    /// A second has passed.
    Second(&'a Second),
    /// It ends.
    Ended { lasted_s: f64 },
}

#[derive(Serialize)]
struct HostTold<'a> {
    name: &'a str,
    root: String,
    dashboard: &'a str,
}

impl Shown for Told<'_> {
    fn names(&self) -> Vec<String> {
        match self {
            Told::Begun { hosts, .. } => hosts.iter().map(|host| host.name.to_owned()).collect(),
            Told::Second(_) | Told::Ended { .. } => Vec::new(),
        }
    }

    fn table(&self, _: Detail) -> String {
        match self {
            Told::Second(second) => line(second),
            Told::Begun { .. } | Told::Ended { .. } => String::new(),
        }
    }
}

/// How it is shown.
struct Face<'a> {
    console: &'a Console,
    /// On a terminal, how many lines are to be drawn over.
    screen: Option<usize>,
    /// What was said last.
    said: Option<String>,
}

impl<'a> Face<'a> {
    fn new(console: &'a Console) -> Face<'a> {
        let tables = matches!(console.format, Format::Table | Format::Wide);
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let stands = tables && !dumb && std::io::stdout().is_terminal();
        Face {
            console,
            screen: stands.then_some(0),
            said: None,
        }
    }

    fn begins(&self, demo: &demo::Demo) -> Result<(), Failure> {
        match self.console.format {
            Format::Table | Format::Wide => self.console.print(&welcome(demo)),
            Format::Json | Format::Yaml | Format::Name => {
                let hosts = demo.hosts().iter().map(|host| HostTold {
                    name: host.name(),
                    root: host.root().display().to_string(),
                    dashboard: host.dashboard(),
                });
                self.console.show_line(&Told::Begun {
                    datastore: demo::DATASTORE,
                    hosts: hosts.collect(),
                })
            }
        }
    }

    fn shows(&mut self, second: &Second) -> Result<(), Failure> {
        let Some(lines) = self.screen else {
            return self.console.show_line(&Told::Second(second));
        };
        if second.said.is_some() {
            self.said.clone_from(&second.said);
        }
        let width = terminal::size().map_or(80, |(columns, _)| usize::from(columns));
        let text = standing(second, self.said.as_deref(), width);
        self.screen = Some(text.lines().count());
        let over = match lines {
            0 => String::new(),
            lines => format!("\x1b[{lines}A\x1b[J"),
        };
        self.console.print(&format!("{over}{text}"))
    }

    fn ends(&self, lasted: Duration) -> Result<(), Failure> {
        match self.console.format {
            Format::Table | Format::Wide | Format::Name => Ok(()),
            Format::Json | Format::Yaml => self.console.show_line(&Told::Ended {
                lasted_s: lasted.as_secs_f64(),
            }),
        }
    }
}

/// What is there, and what to try.
fn welcome(demo: &demo::Demo) -> String {
    let mut text =
        "Two hosts share one array, which is congested. Their dashboards:\n\n".to_owned();
    for host in demo.hosts() {
        let _ = writeln!(text, "  {}  {}", host.name(), page(host));
    }
    let (disk, on) = demo::CHANGED;
    let form = demo.page(disk).unwrap_or_default();
    let _ = writeln!(
        text,
        "\nTry in another terminal, or in the form at {form}:\n"
    );
    let program = std::env::args().next().unwrap_or_default();
    if let Some(host) = demo.hosts().iter().find(|host| host.name() == on) {
        let tidegate = format!("{program} --root {}", host.root().display());
        for words in [
            format!("disk set {disk} --shares {}", demo::RAISED),
            format!("disk set {disk} --limit 100"),
            format!("explain {disk}"),
        ] {
            let _ = writeln!(text, "  {tidegate} {words}");
        }
    }
    text += "\nCtrl-C ends the demonstration and removes its files.\n\n";
    text
}

/// A second in a line, and in another what happened.
fn line(second: &Second) -> String {
    let disks = second.disks.iter().map(|row| {
        let got = percent(row.got_ratio);
        format!("{} {got} (due {})", row.disk, percent(row.due_ratio))
    });
    let disks: Vec<String> = disks.collect();
    let mut text = format!("{}: {}\n", state(second), disks.join(", "));
    if let Some(said) = &second.said {
        text += said;
        text.push('\n');
    }
    text
}

fn state(second: &Second) -> String {
    let held = if second.engaged {
        "congested, shares are applied"
    } else {
        "not congested yet"
    };
    format!(
        "{:.0} s: {} I/Os a second, latency {} at a threshold of {}, {held}",
        second.at_s,
        figures::count(second.iops),
        figures::micros(second.latency_us),
        figures::micros(second.threshold_us),
    )
}

/// Characters of a bar that is the whole.
const BAR: usize = 40;

/// A second as it stands on a terminal of that width.
fn standing(second: &Second, said: Option<&str>, width: usize) -> String {
    let rows = second.disks.iter().map(|row| {
        let shares = row.terms.map(|terms| terms.shares.to_string());
        vec![
            row.disk.to_owned(),
            row.host.to_owned(),
            shares.unwrap_or_else(figures::dash),
            percent(row.due_ratio),
            percent(row.got_ratio),
            figures::count(row.iops),
            figures::micros(row.latency_us),
            format!("{}{}", bar(row), notes(row)),
        ]
    });
    let head = [
        "DISK", "HOST", "SHARES", "DUE", "GOT", "IOPS", "LATENCY", "",
    ];
    let mut text = format!(
        "{}\n\n{}",
        state(second),
        table::columns(&head, &rows.collect::<Vec<_>>())
    );
    if let Some(said) = said {
        text.push('\n');
        text += &wrapped(said, width);
    }
    // A line that the terminal would break is two to it: what is drawn over would not fit.
    let cut = text.lines().map(|line| {
        let line: String = line.chars().take(width).collect();
        line + "\n"
    });
    cut.collect()
}

/// What it gets, and a mark where its part by shares ends.
fn bar(row: &Row) -> String {
    let (got, due) = (length(row.got_ratio), length(row.due_ratio));
    let cell = |at: usize| match (at < got, at == due) {
        (_, true) => '│',
        (true, false) => '█',
        (false, false) => ' ',
    };
    let cells: String = (0..=got.max(due)).map(cell).collect();
    cells.trim_end().to_owned()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a part of a short line"
)]
fn length(ratio: f64) -> usize {
    (ratio.clamp(0.0, 1.0) * BAR as f64).round() as usize
}

/// What else there is to a disk's part.
fn notes(row: &Row) -> String {
    let mut notes = Vec::new();
    match row.terms {
        None => notes.push("not attached".to_owned()),
        Some(terms) => {
            if terms.reservation_iops > 0 {
                notes.push(format!("reservation {}", terms.reservation_iops));
            }
            if let Some(limit) = terms.limit_iops {
                notes.push(format!("limit {limit}"));
            }
        }
    }
    if row.errors > 0 {
        notes.push(format!("{} errors", row.errors));
    }
    if notes.is_empty() {
        return String::new();
    }
    format!("  {}", notes.join(", "))
}

/// A sentence on lines of that width.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_lab::demo::Terms;

    fn second(said: Option<&str>) -> Second {
        let row = |disk, shares, due_ratio, got_ratio, limit_iops| Row {
            disk,
            host: "host1",
            terms: Some(Terms {
                shares,
                reservation_iops: 0,
                limit_iops,
            }),
            due_ratio,
            got_ratio,
            iops: got_ratio * 600.0,
            latency_us: 250_000.0,
            errors: 0,
        };
        Second {
            at_s: 12.04,
            engaged: true,
            latency_us: 59_800.0,
            threshold_us: 60_000.0,
            iops: 600.0,
            disks: vec![
                row("vm1", 500, 0.2, 0.15, None),
                row("vm2", 2000, 0.8, 0.85, Some(900)),
            ],
            said: said.map(str::to_owned),
        }
    }

    #[test]
    fn on_a_terminal_a_mark_shows_what_is_due_and_no_line_is_too_long() {
        let text = standing(&second(None), Some("vm1 has one two three four"), 100);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "12 s: 600 I/Os a second, latency 59.8ms at a threshold of 60ms, congested, shares are applied"
        );
        assert_eq!(
            lines[3],
            "vm1   host1  500     20 %  15 %  90    250ms    ██████  │"
        );
        assert!(lines[4].ends_with("████████████████████████████████│█  limit 900"));
        assert_eq!(lines[6], "vm1 has one two three four");
        let narrow = standing(&second(None), Some("vm1 has one two three four"), 20);
        assert!(narrow.lines().all(|line| line.chars().count() <= 20));
        assert!(
            narrow.ends_with("vm1 has one two\nthree four\n"),
            "{narrow}"
        );
    }

    #[test]
    fn elsewhere_a_second_is_a_line_and_what_happened_another() {
        let text = line(&second(Some("vm1, shares 1 -> 2.")));
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].ends_with("shares are applied: vm1 15 % (due 20 %), vm2 85 % (due 80 %)"),
            "{}",
            lines[0]
        );
        assert_eq!(lines[1..], ["vm1, shares 1 -> 2."]);
    }

    #[test]
    fn to_programs_each_line_says_what_it_is() {
        let second = second(None);
        let told = serde_json::to_value(Told::Second(&second)).expect("plain data");
        assert_eq!(told["kind"], "second");
        assert_eq!(told["disks"][1]["terms"]["limit_iops"], 900);
        assert_eq!(told["disks"][0]["due_ratio"], 0.2);
        let ended = serde_json::to_value(Told::Ended { lasted_s: 1.5 }).expect("plain data");
        assert_eq!(ended, serde_json::json!({"kind": "ended", "lasted_s": 1.5}));
    }
}
