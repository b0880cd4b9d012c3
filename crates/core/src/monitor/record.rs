//! Snapshots as text, for replay: what a host's monitor saw runs through every policy again.
//!
//! # Picture
//! ```text
//! snapshot now=5000000 span=5000000 cpus=4 dense=0 idle=9000000 steal=0 guests_run=7000000 guests_delay=0
//! thread 0 active busy=4900000 spin=0 sleep=100000 stolen=0 delay=340000 standing=1 arrivals=700 completions=690 work=13800
//! disks span=5000000
//! disk 3 thread=0 busy=2000000 arrivals=300 ... queues=1 class=normal moved=1000000
//! ```
//!
//! A snapshot begins with `snapshot` and ends where the next one begins. `pinned=1` follows `steal` where each thread runs on one
//! CPU only. `guests_run`, `guests_delay` and `moved` are left
//! out where nothing is known, `disks` in a snapshot without them. Empty lines and lines with `#` are skipped.
//!
//! # Always true
//! - Every snapshot is read back as it was written; anything else is an error with its line, never a panic.
//!
//! # Units
//! Nanoseconds.

use super::{Class, DiskLoad, HostLoad, Snapshot, ThreadLoad, ThreadState};
use crate::request::DiskId;
use crate::units::{Span, Time};
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

/// Threads and disks that a record may have; more is not a record. Origin: the engine's own limits are lower.
const MOST: usize = 1 << 16;

/// A text that is not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The line, from one.
    pub line: usize,
    /// What was expected there.
    pub expected: &'static str,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}", self.line, self.expected)
    }
}

impl core::error::Error for Unreadable {}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (now, span, host) = (self.now.as_nanos(), self.span.as_nanos(), &self.host);
        let dense = u8::from(host.dense);
        write!(f, "snapshot now={now} span={span}")?;
        write!(f, " cpus={} dense={dense}", host.cpus)?;
        let (idle, steal) = (host.idle.as_nanos(), host.steal.as_nanos());
        write!(f, " idle={idle} steal={steal}")?;
        if host.pinned {
            write!(f, " pinned=1")?;
        }
        if let Some(run) = host.guests_run {
            write!(f, " guests_run={}", run.as_nanos())?;
        }
        if let Some(delay) = host.guests_delay {
            write!(f, " guests_delay={}", delay.as_nanos())?;
        }
        writeln!(f)?;
        for (number, thread) in self.threads.iter().enumerate() {
            write_thread(f, number, thread)?;
        }
        if let Some(span) = self.disks_span {
            writeln!(f, "disks span={}", span.as_nanos())?;
            for disk in &self.disks {
                write_disk(f, disk)?;
            }
        }
        Ok(())
    }
}

fn write_thread(f: &mut fmt::Formatter<'_>, number: usize, thread: &ThreadLoad) -> fmt::Result {
    let state = match thread.state {
        ThreadState::Active => "active",
        ThreadState::Locked => "locked",
        ThreadState::Leaving => "leaving",
        ThreadState::Draining => "draining",
        ThreadState::Parked => "parked",
    };
    write!(f, "thread {number} {state} busy={}", thread.busy.as_nanos())?;
    let (spin, sleep) = (thread.spin.as_nanos(), thread.sleep.as_nanos());
    write!(f, " spin={spin} sleep={sleep}")?;
    let (stolen, delay) = (thread.stolen.as_nanos(), thread.delay_p99.as_nanos());
    let standing = u8::from(thread.standing);
    write!(f, " stolen={stolen} delay={delay} standing={standing}")?;
    let ThreadLoad {
        arrivals,
        completions,
        work,
        ..
    } = thread;
    writeln!(
        f,
        " arrivals={arrivals} completions={completions} work={work}"
    )
}

fn write_disk(f: &mut fmt::Formatter<'_>, disk: &DiskLoad) -> fmt::Result {
    let (number, thread, busy) = (disk.disk.0, disk.thread, disk.busy.as_nanos());
    write!(f, "disk {number} thread={thread} busy={busy}")?;
    let DiskLoad {
        arrivals,
        completions,
        work,
        bytes,
        queues,
        ..
    } = disk;
    write!(f, " arrivals={arrivals} completions={completions}")?;
    let (outstanding, delay) = (disk.outstanding.as_nanos(), disk.delay_p99.as_nanos());
    write!(f, " work={work} bytes={bytes} outstanding={outstanding}")?;
    let class = match disk.class {
        Class::Normal => "normal",
        Class::Latency => "latency",
    };
    write!(f, " delay={delay} queues={queues} class={class}")?;
    if let Some(moved) = disk.moved {
        write!(f, " moved={}", moved.as_nanos())?;
    }
    writeln!(f)
}

/// Reads recorded snapshots, in order.
///
/// # Errors
/// At the first line that is not of a record.
pub fn read(text: &str) -> Result<Vec<Snapshot>, Unreadable> {
    let mut snapshots: Vec<Snapshot> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let mut line = Line::new(at + 1, line);
        let Some(word) = line.word() else { continue };
        if word.starts_with('#') {
            continue;
        }
        if word == "snapshot" {
            snapshots.push(snapshot(&mut line)?);
        } else {
            let first = line.expected("`snapshot` first");
            let current = snapshots.last_mut().ok_or(first)?;
            match word {
                "thread" => thread(&mut line, current)?,
                "disks" => current.disks_span = Some(line.span("span")?),
                "disk" => disk(&mut line, current)?,
                _ => return Err(line.expected("`snapshot`, `thread`, `disks` or `disk`")),
            }
        }
        line.end()?;
    }
    Ok(snapshots)
}

fn snapshot(line: &mut Line<'_>) -> Result<Snapshot, Unreadable> {
    Ok(Snapshot {
        now: Time::from_nanos(line.value("now")?),
        span: line.span("span")?,
        host: HostLoad {
            cpus: line.value("cpus")?,
            dense: line.value::<u8>("dense")? != 0,
            idle: line.span("idle")?,
            steal: line.span("steal")?,
            pinned: line.maybe("pinned")?.is_some_and(|pinned| pinned != 0),
            guests_run: line.maybe("guests_run")?.map(Span::from_nanos),
            guests_delay: line.maybe("guests_delay")?.map(Span::from_nanos),
        },
        ..Snapshot::default()
    })
}

fn thread(line: &mut Line<'_>, snapshot: &mut Snapshot) -> Result<(), Unreadable> {
    let number: usize = line.number()?;
    if number != snapshot.threads.len() || number >= MOST {
        return Err(line.expected("the next thread's number"));
    }
    let state = match line.word() {
        Some("active") => ThreadState::Active,
        Some("locked") => ThreadState::Locked,
        Some("leaving") => ThreadState::Leaving,
        Some("draining") => ThreadState::Draining,
        Some("parked") => ThreadState::Parked,
        _ => return Err(line.expected("a thread's state")),
    };
    snapshot.threads.push(ThreadLoad {
        state,
        busy: line.span("busy")?,
        spin: line.span("spin")?,
        sleep: line.span("sleep")?,
        stolen: line.span("stolen")?,
        delay_p99: line.span("delay")?,
        standing: line.value::<u8>("standing")? != 0,
        arrivals: line.value("arrivals")?,
        completions: line.value("completions")?,
        work: line.value("work")?,
    });
    Ok(())
}

fn disk(line: &mut Line<'_>, snapshot: &mut Snapshot) -> Result<(), Unreadable> {
    if snapshot.disks_span.is_none() || snapshot.disks.len() >= MOST {
        return Err(line.expected("`disks` before the first disk"));
    }
    let disk = DiskId(line.number()?);
    let thread = line.value("thread")?;
    if usize::from(thread) >= snapshot.threads.len() {
        return Err(line.expected("the number of a thread of this snapshot"));
    }
    let load = DiskLoad {
        busy: line.span("busy")?,
        arrivals: line.value("arrivals")?,
        completions: line.value("completions")?,
        work: line.value("work")?,
        bytes: line.value("bytes")?,
        outstanding: line.span("outstanding")?,
        delay_p99: line.span("delay")?,
        queues: line.value("queues")?,
        class: match line.text("class")? {
            "normal" => Class::Normal,
            "latency" => Class::Latency,
            _ => return Err(line.expected("class=normal or class=latency")),
        },
        moved: line.maybe("moved")?.map(Time::from_nanos),
        ..DiskLoad::idle(disk, thread)
    };
    snapshot.disks.push(load);
    Ok(())
}

/// A line of a record, read from left to right.
struct Line<'a> {
    number: usize,
    words: core::iter::Peekable<core::str::SplitWhitespace<'a>>,
}

impl<'a> Line<'a> {
    fn new(number: usize, text: &'a str) -> Line<'a> {
        Line {
            number,
            words: text.split_whitespace().peekable(),
        }
    }

    fn expected(&self, expected: &'static str) -> Unreadable {
        Unreadable {
            line: self.number,
            expected,
        }
    }

    fn word(&mut self) -> Option<&'a str> {
        self.words.next()
    }

    fn number<T: FromStr>(&mut self) -> Result<T, Unreadable> {
        let number = self.word().and_then(|word| word.parse().ok());
        number.ok_or_else(|| self.expected("a number"))
    }

    /// The text of the next word, `name=text`.
    fn text(&mut self, name: &'static str) -> Result<&'a str, Unreadable> {
        let text = self.word().and_then(|word| word.strip_prefix(name));
        let text = text.and_then(|rest| rest.strip_prefix('='));
        text.ok_or_else(|| self.expected(name))
    }

    fn value<T: FromStr>(&mut self, name: &'static str) -> Result<T, Unreadable> {
        let text = self.text(name)?;
        text.parse().map_err(|_| self.expected(name))
    }

    fn span(&mut self, name: &'static str) -> Result<Span, Unreadable> {
        self.value(name).map(Span::from_nanos)
    }

    /// The value of the next word, if it has this name.
    fn maybe(&mut self, name: &'static str) -> Result<Option<u64>, Unreadable> {
        let next = self.words.peek().and_then(|word| word.split_once('='));
        match next {
            Some((found, _)) if found == name => self.value(name).map(Some),
            _ => Ok(None),
        }
    }

    fn end(&mut self) -> Result<(), Unreadable> {
        match self.word() {
            None => Ok(()),
            Some(_) => Err(self.expected("the end of the line")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::{String, ToString};
    use alloc::vec;

    fn sample() -> Snapshot {
        let disk = DiskLoad {
            busy: Span::from_micros(900),
            arrivals: 31,
            completions: 30,
            work: 600,
            bytes: 123_456,
            outstanding: Span::from_millis(40),
            delay_p99: Span::from_micros(70),
            queues: 4,
            class: Class::Latency,
            moved: Some(Time::from_nanos(17)),
            ..DiskLoad::idle(DiskId(3), 1)
        };
        Snapshot {
            now: Time::from_nanos(5_000_000),
            span: Span::from_millis(5),
            host: HostLoad {
                cpus: 4,
                dense: true,
                idle: Span::from_millis(9),
                steal: Span::from_nanos(1),
                pinned: true,
                guests_run: Some(Span::from_millis(7)),
                guests_delay: None,
            },
            threads: vec![
                ThreadLoad {
                    state: ThreadState::Leaving,
                    ..ThreadLoad::default()
                },
                ThreadLoad {
                    state: ThreadState::Locked,
                    busy: Span::from_millis(4),
                    standing: true,
                    arrivals: 700,
                    ..ThreadLoad::default()
                },
            ],
            disks_span: Some(Span::from_millis(100)),
            disks: vec![disk, DiskLoad::idle(DiskId(9), 0)],
        }
    }

    #[test]
    fn snapshots_are_read_back_as_they_were_written() {
        let without_disks = Snapshot {
            disks_span: None,
            disks: Vec::new(),
            ..sample()
        };
        let text = [
            "# a comment\n\n",
            &sample().to_string(),
            &without_disks.to_string(),
        ]
        .concat();
        assert_eq!(read(&text), Ok(vec![sample(), without_disks]));
    }

    #[test]
    fn any_cut_or_changed_text_is_an_error_with_its_line_or_another_record() {
        let text = sample().to_string();
        for cut in 0..text.len() {
            let _whatever = read(&text[..cut]);
            let mut changed = String::from(&text[..cut]);
            changed.push('\u{e9}');
            changed.push_str(&text[cut..]);
            let lines = changed.lines().count();
            if let Err(error) = read(&changed) {
                assert!((1..=lines).contains(&error.line), "{error}");
            }
        }
    }

    #[test]
    fn a_fault_names_its_line() {
        let text = "snapshot now=1 span=1 cpus=1 dense=0 idle=0 steal=0\nthread 1 active";
        let error = read(text).expect_err("thread 0 is missing");
        assert_eq!(
            error.to_string(),
            "line 2: expected the next thread's number"
        );
    }
}
