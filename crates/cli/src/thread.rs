//! `tidegate thread`: the I/O threads of this host, and the disks that they serve.

use std::thread::sleep;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tidegate_api::name::Name;
use tidegate_api::routes;
use tidegate_api::thread::{DiskThread, DiskThreadSet, Thread as Answer, ThreadList, ThreadState};

use crate::failure::Failure;
use crate::output::{Detail, Format, Gone, Shown};
use crate::session::Session;
use crate::{complete, figures, table};

/// How long the activity of threads is measured for a table: many turns of a busy thread.
const WINDOW: Duration = Duration::from_millis(500);

/// See, create and remove I/O threads, and move disks between them
///
/// An I/O thread serves the queues and NBD connections of many disks. A disk moves while guests use it.
#[derive(Debug, Subcommand)]
pub(crate) enum Thread {
    List(List),
    Show(Show),
    Create(Create),
    Remove(Remove),
    Lock(Lock),
    Unlock(Unlock),
    Move(Move),
}

impl Thread {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Thread::List(_) => list(session),
            Thread::Show(verb) => verb.run(session),
            Thread::Create(_) => create(session),
            Thread::Remove(verb) => verb.run(session),
            Thread::Lock(verb) => verb.run(session),
            Thread::Unlock(verb) => verb.run(session),
            Thread::Move(verb) => verb.run(session),
        }
    }
}

/// List I/O threads: what each does, and its disks
///
/// The table shows the activity of half a second, and no parked threads without `-o wide`.
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "\
Examples:
  tidegate thread list
  tidegate thread list -o json | jq '.threads[] | {thread, state, disks}'"
)]
pub(crate) struct List {}

/// Show one I/O thread
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate thread show 0")]
pub(crate) struct Show {
    /// The number of the thread
    #[arg(add = complete::threads())]
    thread: u32,
}

/// Take a parked I/O thread into use
///
/// The configuration limits their number: io.max, or the number of CPUs.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate thread create")]
pub(crate) struct Create {}

/// Park an I/O thread
///
/// It must be locked and have no disks. Move them first: `tidegate thread move`.
#[derive(Debug, Args)]
#[command(
    visible_aliases = ["rm", "delete"],
    after_help = "\
Examples:
  tidegate thread lock 1
  tidegate thread move db1 0
  tidegate thread remove 1"
)]
pub(crate) struct Remove {
    /// The number of the thread
    #[arg(add = complete::threads())]
    thread: u32,
}

/// Lock an I/O thread: it gets no more disks
///
/// It goes on to serve those that it has.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate thread lock 1")]
pub(crate) struct Lock {
    /// The number of the thread
    #[arg(add = complete::threads())]
    thread: u32,
}

/// Unlock an I/O thread
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate thread unlock 1")]
pub(crate) struct Unlock {
    /// The number of the thread
    #[arg(add = complete::threads())]
    thread: u32,
}

/// Move a disk to another I/O thread while guests use it
///
/// All its queues, NBD connections and filters move with it, and so does its I/O in flight. The pause is the time from its last
/// turn on the old thread to its first on the new one.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate thread move db1 1")]
pub(crate) struct Move {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// The number of the thread
    #[arg(add = complete::threads())]
    thread: u32,
}

impl Show {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let client = session.client()?;
        let number = self.thread.to_string();
        let look = || client.look(routes::THREAD, &[number.as_str()]);
        let shown = measured(session, look, |now, before| OneThread { now, before })?;
        session.console.show(&shown)
    }
}

fn list(session: &Session) -> Result<(), Failure> {
    let client = session.client()?;
    let look = || client.look(routes::THREADS, &[]);
    let shown = measured(session, look, |now, before| AllThreads { now, before })?;
    session.console.show(&shown)
}

/// Looks once, or twice if a person wants to know what happens between the two.
fn measured<A: Clone, T>(
    session: &Session,
    look: impl Fn() -> Result<A, Failure>,
    shown: impl FnOnce(A, A) -> T,
) -> Result<T, Failure> {
    let before = look()?;
    let now = match session.console.format {
        Format::Table | Format::Wide => {
            sleep(WINDOW);
            look()?
        }
        Format::Json | Format::Yaml | Format::Name => before.clone(),
    };
    Ok(shown(now, before))
}

fn create(session: &Session) -> Result<(), Failure> {
    let created = session.client()?.look(routes::THREAD_CREATE, &[])?;
    let done = format!("I/O thread {} is in use", created.thread);
    session.console.done(&created, &done)
}

impl Remove {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let number = self.thread.to_string();
        let client = session.client()?;
        client.erase(routes::THREAD_REMOVE, &[number.as_str()])?;
        let done = format!("I/O thread {number} is parked, or will be when its last I/O has ended");
        session.console.done(&Gone { name: &number }, &done)
    }
}

impl Lock {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let number = self.thread.to_string();
        let client = session.client()?;
        let thread = client.look(routes::THREAD_LOCK, &[number.as_str()])?;
        let done = match thread.disks.len() {
            0 => format!("I/O thread {number} is locked"),
            1 => format!("I/O thread {number} is locked; it still serves one disk"),
            disks => format!("I/O thread {number} is locked; it still serves {disks} disks"),
        };
        session.console.done(&thread, &done)
    }
}

impl Unlock {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let number = self.thread.to_string();
        let client = session.client()?;
        let thread = client.look(routes::THREAD_UNLOCK, &[number.as_str()])?;
        let done = format!("I/O thread {number} is unlocked");
        session.console.done(&thread, &done)
    }
}

impl Move {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let order = DiskThreadSet {
            thread: self.thread,
        };
        let client = session.client()?;
        let moved = client.order(routes::DISK_THREAD, &[self.disk.as_str()], &order)?;
        session.console.done(&moved, &told(&moved))
    }
}

/// A move in a sentence.
fn told(moved: &DiskThread) -> String {
    let DiskThread {
        disk, from, thread, ..
    } = moved;
    if from == thread {
        return format!("disk {disk} is on I/O thread {thread} already");
    }
    format!(
        "disk {disk} moved from I/O thread {from} to {thread}; it paused for {}, with {} I/Os in flight",
        figures::micros(moved.pause_us),
        moved.in_flight
    )
}

/// All threads, with those of half a second before.
#[derive(Serialize)]
struct AllThreads {
    #[serde(flatten)]
    now: ThreadList,
    #[serde(skip)]
    before: ThreadList,
}

impl Shown for AllThreads {
    fn names(&self) -> Vec<String> {
        let threads = self.now.threads.iter();
        threads.map(|it| it.thread.to_string()).collect()
    }

    fn table(&self, detail: Detail) -> String {
        let mut head = vec!["THREAD", "STATE", "CPU", "BUSY", "SPIN", "SLEEP"];
        if detail == Detail::Wide {
            head.extend(["QDELAY99", "TURNS", "WAKEUPS"]);
        }
        head.extend(["DISKS", "NAMES"]);
        let is_shown = |it: &&Answer| detail == Detail::Wide || it.state != ThreadState::Parked;
        let threads = self.now.threads.iter().filter(is_shown);
        let rows = threads.map(|it| {
            let before = self.before.threads.iter();
            let before = before.clone().find(|then| then.thread == it.thread);
            let mut row = vec![it.thread.to_string(), state(it), cpu(it)];
            row.extend(activity(it, before));
            if detail == Detail::Wide {
                row.push(figures::micros(it.queue_delay_p99_us));
                row.extend([it.turns_total.to_string(), it.wakeups_total.to_string()]);
            }
            row.extend([it.disks.len().to_string(), disks(it, " ")]);
            row
        });
        table::columns(&head, &rows.collect::<Vec<_>>())
    }
}

/// One thread, with itself half a second before.
#[derive(Serialize)]
struct OneThread {
    #[serde(flatten)]
    now: Answer,
    #[serde(skip)]
    before: Answer,
}

impl Shown for OneThread {
    fn names(&self) -> Vec<String> {
        self.now.names()
    }

    fn table(&self, _: Detail) -> String {
        let [busy, spin, sleep] = activity(&self.now, Some(&self.before));
        let recent = [
            ("busy now", busy),
            ("polling now", spin),
            ("asleep now", sleep),
        ];
        let mut rows = rows(&self.now);
        rows.splice(4..4, recent);
        table::pairs(&rows)
    }
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![self.thread.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        table::pairs(&rows(self))
    }
}

impl Shown for DiskThread {
    fn names(&self) -> Vec<String> {
        vec![self.disk.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        told(self) + "\n"
    }
}

fn rows(thread: &Answer) -> Vec<(&'static str, String)> {
    let since_start = |ns: u64| {
        let part = share(ns, thread.age_ns_total);
        format!("{part} since its start")
    };
    vec![
        ("thread", thread.thread.to_string()),
        ("state", state(thread)),
        ("gets new disks", new_disks(thread)),
        ("cpu", cpu(thread)),
        ("busy", since_start(thread.busy_ns_total)),
        ("polling", since_start(thread.spin_ns_total)),
        ("asleep", since_start(thread.sleep_ns_total)),
        ("others had its CPU", since_start(thread.run_delay_ns_total)),
        ("requests", thread.requests_total.to_string()),
        (
            "queueing delay",
            match thread.requests_total {
                0 => "no request yet".to_owned(),
                _ => format!(
                    "half of all requests at most {}, 99 % at most {}",
                    delay(thread.queue_delay_p50_us),
                    delay(thread.queue_delay_p99_us)
                ),
            },
        ),
        ("longest turn", figures::micros(thread.longest_turn_us)),
        ("turns over 1ms", thread.stalls_total.to_string()),
        ("turns", thread.turns_total.to_string()),
        ("wake-ups", thread.wakeups_total.to_string()),
        (
            "moves",
            format!(
                "{} disks came, {} went",
                thread.moved_in_total, thread.moved_out_total
            ),
        ),
        ("disks", disks(thread, "\n")),
    ]
}

/// A delay, which may be none.
fn delay(micros: f64) -> String {
    match micros > 0.0 {
        true => figures::micros(micros),
        false => "0us".to_owned(),
    }
}

/// Which new disks it gets.
fn new_disks(thread: &Answer) -> String {
    let text = match thread.state {
        ThreadState::Active if thread.is_default => "all: /thread/default names it",
        ThreadState::Active => {
            "those that come while it has the fewest disks, unless /thread/default names another thread"
        }
        ThreadState::Locked => "none: it is locked",
        ThreadState::Leaving => "none: the policy empties it",
        ThreadState::Draining | ThreadState::Parked => "none: it is not in use",
    };
    text.to_owned()
}

/// The parts of its time since `before` that it was busy, polling and asleep.
fn activity(now: &Answer, before: Option<&Answer>) -> [String; 3] {
    let since = |of: fn(&Answer) -> u64| of(now).saturating_sub(before.map_or(0, of));
    let age = since(|it| it.age_ns_total);
    let parts = [
        since(|it| it.busy_ns_total),
        since(|it| it.spin_ns_total),
        since(|it| it.sleep_ns_total),
    ];
    parts.map(|part| share(part, age))
}

fn share(part: u64, all: u64) -> String {
    match all {
        0 => figures::dash(),
        _ => figures::percent((figures::to_f64(part) / figures::to_f64(all)).min(1.0)),
    }
}

fn state(thread: &Answer) -> String {
    thread.state.as_str().to_owned()
}

fn cpu(thread: &Answer) -> String {
    thread.cpu.map_or_else(figures::dash, |cpu| cpu.to_string())
}

fn disks(thread: &Answer, between: &str) -> String {
    let names: Vec<&str> = thread.disks.iter().map(Name::as_str).collect();
    match names.is_empty() {
        true => figures::dash(),
        false => names.join(between),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(number: u32, age: u64, busy: u64) -> Answer {
        Answer {
            thread: number,
            state: ThreadState::Active,
            is_default: false,
            cpu: None,
            disks: vec!["db1".parse().unwrap(), "web1".parse().unwrap()],
            age_ns_total: age,
            busy_ns_total: busy,
            spin_ns_total: 0,
            sleep_ns_total: age - busy,
            cpu_ns_total: busy,
            run_delay_ns_total: 0,
            requests_total: 6,
            turns_total: 7,
            wakeups_total: 8,
            stalls_total: 0,
            longest_turn_us: 85.0,
            queue_delay_p50_us: 0.0,
            queue_delay_p99_us: 12.0,
            moved_in_total: 0,
            moved_out_total: 0,
        }
    }

    #[test]
    fn the_table_shows_the_activity_between_two_looks_and_no_parked_threads() {
        let list = |age, busy| ThreadList {
            threads: vec![
                thread(0, age, busy),
                Answer {
                    state: ThreadState::Parked,
                    disks: Vec::new(),
                    ..thread(1, age, 0)
                },
            ],
        };
        let shown = AllThreads {
            now: list(3000, 1500),
            before: list(1000, 1000),
        };
        assert_eq!(
            shown.table(Detail::Usual),
            "THREAD  STATE   CPU  BUSY  SPIN  SLEEP  DISKS  NAMES\n\
             0       active  -    25%   0%    75%    2      db1 web1\n"
        );
        let wide = shown.table(Detail::Wide);
        assert!(wide.contains("1       parked"), "{wide}");
    }

    #[test]
    fn a_move_is_told_with_its_pause() {
        let moved = DiskThread {
            disk: "db1".parse().unwrap(),
            from: 0,
            thread: 1,
            pause_us: 38.3,
            in_flight: 12,
        };
        assert_eq!(
            told(&moved),
            "disk db1 moved from I/O thread 0 to 1; it paused for 38.3us, with 12 I/Os in flight"
        );
        let stayed = DiskThread { from: 1, ..moved };
        assert_eq!(told(&stayed), "disk db1 is on I/O thread 1 already");
    }
}
