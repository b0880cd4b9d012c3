//! The files of I/O threads in the control tree.

use tidegate_api::thread::{Thread, ThreadState};

use super::{File, Node, lines, thread, thread_in};
use crate::os_error::Outcome;
use crate::tree::controlled::Controlled;
use crate::tree::{number, senseless};

/// Its files, in the order of listings.
pub(super) const NODES: &[Node] = &[
    Node {
        path: "/thread/create",
        about: "write 1 to take a parked I/O thread into use; the result is its number",
        file: File::Host {
            read: None,
            write: Some(create),
        },
    },
    Node {
        path: "/thread/remove",
        about: "write the number of an I/O thread to park it. It must be locked and have no disks",
        file: File::Host {
            read: None,
            write: Some(remove),
        },
    },
    Node {
        path: "/thread/default",
        about: "the I/O thread that new disks get, or `auto`: the active one with the fewest disks",
        file: File::Host {
            read: Some(default),
            write: Some(set_default),
        },
    },
    Node {
        path: "/thread/active",
        about: "the number of I/O threads in use, locked ones included",
        file: File::Host {
            read: Some(|on| {
                let threads = on.threads()?;
                let used = threads.iter().filter(|it| is_used(it)).count();
                Ok(used.to_string())
            }),
            write: None,
        },
    },
    Node {
        path: "/thread/N/state",
        about: "`active`, `locked`, `leaving` (the policy empties it), `draining` or `parked`",
        file: thread(|it| it.state.as_str().to_owned()),
    },
    Node {
        path: "/thread/N/locked",
        about: "1 if an administrator locked the thread, so that it gets no more disks, else 0; write 1 to lock it, 0 to unlock it",
        file: File::Thread {
            read: Some(|it| u8::from(it.state == ThreadState::Locked).to_string()),
            write: Some(lock),
        },
    },
    Node {
        path: "/thread/N/cpu",
        about: "the CPU that it is pinned to; empty if it is not",
        file: thread(|it| it.cpu.map(|cpu| cpu.to_string()).unwrap_or_default()),
    },
    Node {
        path: "/thread/N/disks",
        about: "the disks that it serves, one a line",
        file: thread(|it| lines(&it.disks)),
    },
    Node {
        path: "/thread/N/age_ns",
        about: "its age",
        file: thread(|it| it.age_ns_total.to_string()),
    },
    Node {
        path: "/thread/N/busy_ns",
        about: "time spent on requests",
        file: thread(|it| it.busy_ns_total.to_string()),
    },
    Node {
        path: "/thread/N/spin_ns",
        about: "time spent polling without finding requests",
        file: thread(|it| it.spin_ns_total.to_string()),
    },
    Node {
        path: "/thread/N/sleep_ns",
        about: "time spent asleep",
        file: thread(|it| it.sleep_ns_total.to_string()),
    },
    Node {
        path: "/thread/N/cpu_ns",
        about: "time on a CPU, as the kernel counts it",
        file: thread(|it| it.cpu_ns_total.to_string()),
    },
    Node {
        path: "/thread/N/run_delay_ns",
        about: "time in which it could run and others had its CPU: a part of the times above",
        file: thread(|it| it.run_delay_ns_total.to_string()),
    },
    Node {
        path: "/thread/N/requests",
        about: "requests taken",
        file: thread(|it| it.requests_total.to_string()),
    },
    Node {
        path: "/thread/N/queue_delay_p50_us",
        about: "half of all requests waited no longer until the thread saw them",
        file: thread(|it| format!("{:.1}", it.queue_delay_p50_us)),
    },
    Node {
        path: "/thread/N/queue_delay_p99_us",
        about: "99 % of all requests waited no longer until the thread saw them",
        file: thread(|it| format!("{:.1}", it.queue_delay_p99_us)),
    },
    Node {
        path: "/thread/N/longest_turn_us",
        about: "its longest turn",
        file: thread(|it| format!("{:.1}", it.longest_turn_us)),
    },
    Node {
        path: "/thread/N/stalls",
        about: "turns longer than a millisecond",
        file: thread(|it| it.stalls_total.to_string()),
    },
    Node {
        path: "/thread/N/moved_in",
        about: "disks that came from other threads",
        file: thread(|it| it.moved_in_total.to_string()),
    },
    Node {
        path: "/thread/N/moved_out",
        about: "disks that went to other threads",
        file: thread(|it| it.moved_out_total.to_string()),
    },
    Node {
        path: "/thread/N/turns",
        about: "turns of its loop",
        file: thread(|it| it.turns_total.to_string()),
    },
    Node {
        path: "/thread/N/wakeups",
        about: "times that it was woken",
        file: thread(|it| it.wakeups_total.to_string()),
    },
];

fn is_used(thread: &Thread) -> bool {
    use ThreadState::{Active, Leaving, Locked};
    matches!(thread.state, Active | Locked | Leaving)
}

fn create(on: &dyn Controlled, value: &str) -> Outcome<String> {
    match value {
        "1" => Ok(on.create_thread()?.to_string()),
        _ => Err(senseless(value, "write 1")),
    }
}

fn remove(on: &dyn Controlled, value: &str) -> Outcome<String> {
    on.remove_thread(thread_in(value)?)?;
    Ok(String::new())
}

fn default(on: &dyn Controlled) -> Outcome<String> {
    let threads = on.threads()?;
    let chosen = threads.iter().find(|it| it.is_default);
    Ok(chosen.map_or_else(|| "auto".to_owned(), |it| it.thread.to_string()))
}

fn set_default(on: &dyn Controlled, value: &str) -> Outcome<String> {
    let thread = match value {
        "auto" => None,
        _ => Some(number(value).ok_or_else(|| {
            senseless(value, "write the number of an active I/O thread, or auto")
        })?),
    };
    on.set_default_thread(thread)?;
    Ok(String::new())
}

fn lock(on: &dyn Controlled, thread: u32, value: &str) -> Outcome<String> {
    match value {
        "1" => on.lock_thread(thread)?,
        "0" => on.unlock_thread(thread)?,
        _ => return Err(senseless(value, "write 1 to lock it, 0 to unlock it")),
    }
    Ok(String::new())
}
