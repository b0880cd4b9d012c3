//! A report on a guest that does not answer any more, for a test that fails.
//!
//! QEMU is asked first: if its monitor is silent, it is QEMU that hangs. Then the guest's kernel gets an interrupt
//! that it cannot mask, of which it panics, as its command line asks it to, and prints what its processors and its
//! tasks were doing.

use std::fs;
use std::time::Duration;

use super::guest::Guest;
use super::transcript::tail;

/// How long QEMU may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long an emulated kernel may take to print its tasks: it waits ten seconds for processors that answer no more.
const PANIC: Duration = Duration::from_secs(60);

/// How many of a task's frames are told: enough to see what it waits for.
const FRAMES: usize = 6;

/// How much is told of what the kernel prints.
const AT_MOST: usize = 3000;

/// How much is told of the console before.
const CONSOLE: usize = 1000;

/// What QEMU and the guest's kernel tell; the guest is of no use afterwards.
pub(super) fn of(guest: &mut Guest) -> String {
    let console = guest.qemu.said.text();
    let told = match processors(guest) {
        Ok(processors) => processors + &panic(guest, console.len()),
        Err(complaint) => format!("{complaint}\nQEMU's threads:\n{}", threads(guest.qemu.id())),
    };
    let console = tail(&console, CONSOLE);
    format!("The guest does not answer.\n{told}Its console before:\n{console}")
}

/// Where QEMU says that its processors are.
fn processors(guest: &mut Guest) -> Result<String, String> {
    let registers = r#"{"command-line": "info registers -a"}"#;
    let answer = guest.try_qmp("human-monitor-command", registers, PATIENCE)?;
    let telling = |l: &&str| l.starts_with("CPU#") || l.contains("RIP=");
    let lines = answer.split("\\r\\n").filter(telling);
    Ok(lines.flat_map(|line| [line, "\n"]).collect())
}

/// What the guest's kernel prints after `mark` on its console when it is made to panic.
fn panic(guest: &mut Guest, mark: usize) -> String {
    let events = guest.monitor.said.mark();
    if let Err(complaint) = guest.try_qmp("inject-nmi", "{}", PATIENCE) {
        return complaint + "\n";
    }
    let reset = |said: &str| said.contains("\"RESET\"").then_some(());
    let over = guest.monitor.said.try_wait("reset", events, PANIC, reset);
    let whole = if over.is_ok() { "" } else { ", not to the end" };
    let said = telling(&guest.qemu.said.text()[mark..]);
    format!(
        "Its kernel, told to panic{whole}:\n{}",
        tail(&said, AT_MOST)
    )
}

/// What each thread of a process waits for in the kernel, as far as Linux lets it be seen.
fn threads(process: u32) -> String {
    let mut told = String::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        for what in ["comm", "syscall", "stack"] {
            told += &fs::read_to_string(thread.path().join(what)).unwrap_or_default();
        }
    }
    told
}

/// The lines of a panic that tell where the processors are, and where the tasks are that run, that wait for a device,
/// or that tests start.
fn telling(panic: &str) -> String {
    let mut told = String::new();
    let mut frames = 0;
    for line in panic.lines() {
        // After the time.
        let line = line
            .split_once("] ")
            .map_or(line, |(_, words)| words)
            .trim();
        if line.starts_with("task:") {
            let ours = ["init ", "sh ", "cat ", "fio "]
                .iter()
                .any(|name| line[5..].starts_with(name));
            let busy = ["state:D", "state:R"]
                .iter()
                .any(|state| line.contains(state));
            frames = if ours || busy { FRAMES } else { 0 };
        } else if line.contains("RIP: 0010") || line.starts_with("NMI backtrace") {
            frames = 1;
        } else if !line.contains("+0x") {
            continue;
        } else {
            frames = frames.saturating_sub(1);
        }
        if frames > 0 {
            told.push_str(line);
            told.push('\n');
        }
    }
    told
}
