//! The table of the control tree: each directory and each file with its meaning, and how it is read and written.

use tidegate_api::dense::{DenseCondition, DenseMode};
use tidegate_api::disk::DiskSet;
use tidegate_api::io::{Coalesce, IO_WEIGHTS, IoClass};
use tidegate_api::name::Name;
use tidegate_api::thread::{Thread, ThreadState};
use tidegate_api::tree::TreeAccess;
use tidegate_core::monitor::{Kind, Limits};
use tidegate_engine::counters::QueueActivity;
use tidegate_engine::monitor::{Settings, Status};

use super::controlled::{Controlled, Device, Machine};
use super::senseless;
use crate::os_error::Outcome;

/// A directory.
pub(crate) struct Directory {
    /// Its path; `N` stands for an I/O thread, `NAME` for an attached disk, `PID` for the process of a virtual
    /// machine, `QUEUE` for a queue of a disk.
    pub(crate) path: &'static str,
    /// Its content, as a clause.
    pub(crate) about: &'static str,
}

/// A file.
pub(crate) struct Node {
    /// As of a directory.
    pub(crate) path: &'static str,
    /// Its meaning, as a clause. The name of the file has the unit.
    pub(crate) about: &'static str,
    /// How it is read and written.
    pub(crate) file: File,
}

type ReadHost = fn(&dyn Controlled) -> Outcome<String>;
type WriteHost = fn(&dyn Controlled, &str) -> Outcome<String>;
type WriteThread = fn(&dyn Controlled, u32, &str) -> Outcome<String>;
type WriteDevice = fn(&dyn Controlled, &Name, &str) -> Outcome<String>;

/// How a file is read and written. A write returns the result for the caller, which may be empty.
pub(crate) enum File {
    /// Of the whole host.
    Host {
        /// Its text.
        read: Option<ReadHost>,
        /// The effect of a value.
        write: Option<WriteHost>,
    },
    /// Of the monitor, which places disks on I/O threads.
    Monitor {
        /// Its text.
        read: fn(&Status) -> String,
        /// The effect of a value.
        write: Option<WriteHost>,
    },
    /// Of an I/O thread.
    Thread {
        /// Its text.
        read: Option<fn(&Thread) -> String>,
        /// The effect of a value.
        write: Option<WriteThread>,
    },
    /// Of the device of an attached disk.
    Device {
        /// Its text.
        read: Option<fn(&Device) -> String>,
        /// The effect of a value.
        write: Option<WriteDevice>,
    },
    /// Of a queue.
    Queue {
        /// Its text.
        read: fn(&QueueActivity) -> String,
    },
    /// Of a virtual machine.
    Machine {
        /// Its text.
        read: fn(&Machine) -> String,
    },
}

impl File {
    /// What can be done with it.
    pub(crate) fn access(&self) -> TreeAccess {
        let (reads, writes) = match self {
            File::Host { read, write } => (read.is_some(), write.is_some()),
            File::Monitor { write, .. } => (true, write.is_some()),
            File::Thread { read, write } => (read.is_some(), write.is_some()),
            File::Device { read, write } => (read.is_some(), write.is_some()),
            File::Queue { .. } | File::Machine { .. } => (true, false),
        };
        match (reads, writes) {
            (true, true) => TreeAccess::ReadWrite,
            (false, true) => TreeAccess::Write,
            _ => TreeAccess::Read,
        }
    }
}

/// A file of an I/O thread that is only read.
const fn thread(read: fn(&Thread) -> String) -> File {
    File::Thread {
        read: Some(read),
        write: None,
    }
}

/// A file of a device that is only read.
const fn device(read: fn(&Device) -> String) -> File {
    File::Device {
        read: Some(read),
        write: None,
    }
}

/// A file of the monitor that is only read.
const fn monitor(read: fn(&Status) -> String) -> File {
    File::Monitor { read, write: None }
}

/// A file of a queue.
const fn queue(read: fn(&QueueActivity) -> String) -> File {
    File::Queue { read }
}

/// Every directory.
pub(crate) const DIRECTORIES: &[Directory] = &[
    Directory {
        path: "/",
        about: "the whole host",
    },
    Directory {
        path: "/thread",
        about: "the I/O threads",
    },
    Directory {
        path: "/thread/N",
        about: "one I/O thread. Times count from its start; busy, spinning and sleeping time add up to its age",
    },
    Directory {
        path: "/device",
        about: "the devices of the attached disks",
    },
    Directory {
        path: "/device/NAME",
        about: "the device of one attached disk",
    },
    Directory {
        path: "/queue",
        about: "the queues of the attached disks, and of each disk its NBD connections together",
    },
    Directory {
        path: "/queue/QUEUE",
        about: "one queue. Counts and times are since the disk was attached",
    },
    Directory {
        path: "/dense",
        about: "dense mode, which trades latency for fewer wake-ups and interrupts when the host is full",
    },
    Directory {
        path: "/monitor",
        about: "the monitor, which moves disks between I/O threads and adds and removes threads. Counts are since the daemon started",
    },
    Directory {
        path: "/vm",
        about: "the virtual machines that are connected over vhost-user",
    },
    Directory {
        path: "/vm/PID",
        about: "one virtual machine, by the process of its front end",
    },
];

/// Every file, in the order of listings.
pub(crate) const NODES: &[Node] = &[
    Node {
        path: "/now_ns",
        about: "the monotonic clock; two readings of it and of a counter give a rate",
        file: File::Host {
            read: Some(|on| Ok(on.now_ns().to_string())),
            write: None,
        },
    },
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
        about: "`active`, `locked`, `draining` or `parked`",
        file: thread(|it| it.state.as_str().to_owned()),
    },
    Node {
        path: "/thread/N/locked",
        about: "1 if the thread gets no more disks, else 0; write 1 to lock it, 0 to unlock it",
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
    Node {
        path: "/device/NAME/thread",
        about: "the I/O thread that serves it; write a number to move it there now. The result has the pause",
        file: File::Device {
            read: Some(|it| it.thread.to_string()),
            write: Some(move_to),
        },
    },
    Node {
        path: "/device/NAME/weight",
        about: "its weight on its I/O thread, 1 to 100; write `default` for 10",
        file: File::Device {
            read: Some(|it| it.weight.to_string()),
            write: Some(set_weight),
        },
    },
    Node {
        path: "/device/NAME/class",
        about: "`normal`, or `latency`: its requests are taken first in every second turn of its I/O thread",
        file: File::Device {
            read: Some(|it| it.class.as_str().to_owned()),
            write: Some(set_class),
        },
    },
    Node {
        path: "/device/NAME/coalesce",
        about: "how its completions are coalesced: `off`, `static:COMPLETIONS,TIME` such as static:16,64us, `adaptive`, or `default`: \
                as the configuration says",
        file: File::Device {
            read: Some(|it| {
                it.coalesce
                    .map_or_else(|| "default".to_owned(), |it| it.to_string())
            }),
            write: Some(set_coalesce),
        },
    },
    Node {
        path: "/device/NAME/datastore",
        about: "the datastore of the disk",
        file: device(|it| it.datastore.to_string()),
    },
    Node {
        path: "/device/NAME/size_bytes",
        about: "the size that guests see",
        file: device(|it| it.size_bytes.to_string()),
    },
    Node {
        path: "/device/NAME/queues",
        about: "the queues that a virtual machine may use",
        file: device(|it| it.queues.to_string()),
    },
    Node {
        path: "/device/NAME/clients",
        about: "the number of connected virtual machines and NBD clients",
        file: device(|it| it.clients.to_string()),
    },
    Node {
        path: "/device/NAME/owner",
        about: "the processes of the virtual machines that are connected, one a line",
        file: device(|it| lines(&it.owners)),
    },
    Node {
        path: "/queue/QUEUE/requests",
        about: "requests taken",
        file: queue(|it| it.requests.to_string()),
    },
    Node {
        path: "/queue/QUEUE/answered",
        about: "requests answered",
        file: queue(|it| it.answered.to_string()),
    },
    Node {
        path: "/queue/QUEUE/bytes",
        about: "bytes of the requests taken",
        file: queue(|it| it.bytes.to_string()),
    },
    Node {
        path: "/queue/QUEUE/busy_ns",
        about: "its part of the busy time of its I/O threads",
        file: queue(|it| it.busy.as_nanos().to_string()),
    },
    Node {
        path: "/queue/QUEUE/outstanding_ns",
        about: "the time of its requests in flight, added up; a second more in a second is one in flight",
        file: queue(|it| it.outstanding.as_nanos().to_string()),
    },
    Node {
        path: "/queue/QUEUE/kicks",
        about: "kicks of its guest",
        file: queue(|it| it.kicks.to_string()),
    },
    Node {
        path: "/queue/QUEUE/calls",
        about: "interrupts sent to its guest",
        file: queue(|it| it.calls.to_string()),
    },
    Node {
        path: "/queue/QUEUE/queue_delay_p50_ns",
        about: "half of its requests waited no longer from when the thread first saw them until it took them",
        file: queue(|it| it.delays.quantile(5_000).as_nanos().to_string()),
    },
    Node {
        path: "/queue/QUEUE/queue_delay_p99_ns",
        about: "99 % of its requests waited no longer from when the thread first saw them until it took them",
        file: queue(|it| it.delays.quantile(9_900).as_nanos().to_string()),
    },
    Node {
        path: "/dense/mode",
        about: "`off`, `on`, or `auto`: on while all three conditions hold. The change lasts until the daemon ends",
        file: File::Host {
            read: Some(|on| Ok(on.dense().mode.word().to_owned())),
            write: Some(set_dense),
        },
    },
    Node {
        path: "/dense/on",
        about: "1 while dense mode is on, else 0",
        file: File::Host {
            read: Some(|on| Ok(u8::from(on.dense().on).to_string())),
            write: None,
        },
    },
    Node {
        path: "/dense/conditions",
        about: "the conditions at the last sample, one a line: name, value, threshold, and 1 if it holds. Empty in the first minute",
        file: File::Host {
            read: Some(conditions),
            write: None,
        },
    },
    Node {
        path: "/monitor/policy",
        about: "`none`, `auto`, `iocm` or `spdk`: what moves disks, and adds and removes threads",
        file: File::Monitor {
            read: |it| it.settings.policy.name().to_owned(),
            write: Some(set_policy),
        },
    },
    Node {
        path: "/monitor/min",
        about: "it leaves at least so many threads active",
        file: File::Monitor {
            read: |it| it.settings.limits.min.to_string(),
            write: Some(set_min),
        },
    },
    Node {
        path: "/monitor/max",
        about: "it activates at most so many threads",
        file: File::Monitor {
            read: |it| it.settings.limits.max.to_string(),
            write: Some(set_max),
        },
    },
    Node {
        path: "/monitor/state",
        about: "`running`, or `resting`: no I/O thread works",
        file: monitor(|it| if it.resting { "resting" } else { "running" }.to_owned()),
    },
    Node {
        path: "/monitor/last_change",
        about: "the last decision that changed the number of active threads; empty if there was none",
        file: monitor(|it| it.last_change.map(|it| it.to_string()).unwrap_or_default()),
    },
    Node {
        path: "/monitor/ticks",
        about: "snapshots taken",
        file: monitor(|it| it.ticks.to_string()),
    },
    Node {
        path: "/monitor/cpu_ns",
        about: "CPU time of its thread",
        file: monitor(|it| it.cpu.as_nanos().to_string()),
    },
    Node {
        path: "/monitor/moves",
        about: "disks that it moved",
        file: monitor(|it| it.moves.to_string()),
    },
    Node {
        path: "/monitor/activated",
        about: "threads that it activated",
        file: monitor(|it| it.activated.to_string()),
    },
    Node {
        path: "/monitor/parked",
        about: "threads that it parked",
        file: monitor(|it| it.parked.to_string()),
    },
    Node {
        path: "/monitor/kept",
        about: "trials that ended well",
        file: monitor(|it| it.kept.to_string()),
    },
    Node {
        path: "/monitor/undone",
        about: "trials that were undone",
        file: monitor(|it| it.undone.to_string()),
    },
    Node {
        path: "/monitor/void",
        about: "trials without a verdict, because the load changed meanwhile",
        file: monitor(|it| it.void.to_string()),
    },
    Node {
        path: "/monitor/failed",
        about: "decisions that could not be carried out",
        file: monitor(|it| it.failed.to_string()),
    },
    Node {
        path: "/vm/PID/vcpus",
        about: "its vCPUs; empty if its front end does not name their threads",
        file: File::Machine {
            read: |it| it.vcpus.map(|vcpus| vcpus.to_string()).unwrap_or_default(),
        },
    },
    Node {
        path: "/vm/PID/devices",
        about: "the disks that it uses, one a line",
        file: File::Machine {
            read: |it| lines(&it.devices),
        },
    },
];

/// One thing a line.
fn lines(things: &[impl ToString]) -> String {
    let lines = things.iter().map(|it| it.to_string() + "\n");
    lines.collect()
}

fn is_used(thread: &Thread) -> bool {
    matches!(thread.state, ThreadState::Active | ThreadState::Locked)
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
        _ => Some(super::number(value).ok_or_else(|| {
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

fn move_to(on: &dyn Controlled, name: &Name, value: &str) -> Outcome<String> {
    let moved = on.move_device(name, thread_in(value)?)?;
    Ok(format!("pause_us {:.1}", moved.pause_us))
}

fn set_dense(on: &dyn Controlled, value: &str) -> Outcome<String> {
    let modes = [DenseMode::Off, DenseMode::Auto, DenseMode::On];
    let mode = modes.into_iter().find(|mode| mode.word() == value);
    on.set_dense(mode.ok_or_else(|| senseless(value, "write off, auto or on"))?)?;
    Ok(String::new())
}

fn conditions(on: &dyn Controlled) -> Outcome<String> {
    let Some(conditions) = on.dense().conditions else {
        return Ok(String::new());
    };
    let line = |(name, it): (&str, DenseCondition)| {
        let holds = u8::from(it.holds);
        format!("{name} {:.1} {:.1} {holds}\n", it.value, it.threshold)
    };
    Ok(conditions.named().into_iter().map(line).collect())
}

fn set_policy(on: &dyn Controlled, value: &str) -> Outcome<String> {
    let policy = Kind::ALL.into_iter().find(|kind| kind.name() == value);
    let policy = policy.ok_or_else(|| senseless(value, "write none, auto, iocm or spdk"))?;
    let settings = on.monitor()?.settings;
    on.set_monitor(Settings { policy, ..settings })?;
    Ok(String::new())
}

fn set_min(on: &dyn Controlled, value: &str) -> Outcome<String> {
    let Settings { policy, limits } = on.monitor()?.settings;
    let min = number_up_to(value, limits.max.into())?;
    let limits = Limits { min, ..limits };
    on.set_monitor(Settings { policy, limits })?;
    Ok(String::new())
}

fn set_max(on: &dyn Controlled, value: &str) -> Outcome<String> {
    let Settings { policy, limits } = on.monitor()?.settings;
    let max = number_up_to(value, on.threads()?.len())?;
    if max < limits.min {
        return Err(senseless(
            value,
            &format!("write at least {}, as /monitor/min", limits.min),
        ));
    }
    let limits = Limits { max, ..limits };
    on.set_monitor(Settings { policy, limits })?;
    Ok(String::new())
}

/// A number of threads.
fn number_up_to(value: &str, most: usize) -> Outcome<u16> {
    let number = super::number(value).and_then(|number| u16::try_from(number).ok());
    let number = number.filter(|number| (1..=most).contains(&usize::from(*number)));
    number.ok_or_else(|| senseless(value, &format!("write a number from 1 to {most}")))
}

fn set_weight(on: &dyn Controlled, name: &Name, value: &str) -> Outcome<String> {
    let weight = match value {
        "default" => None,
        _ => match super::number(value) {
            Some(weight) if IO_WEIGHTS.contains(&weight) => Some(weight),
            _ => return Err(senseless(value, "write 1 to 100, or default")),
        },
    };
    let order = DiskSet {
        io_weight: Some(weight),
        ..DiskSet::default()
    };
    on.set_device(name, &order)?;
    Ok(String::new())
}

fn set_class(on: &dyn Controlled, name: &Name, value: &str) -> Outcome<String> {
    let class = value.parse::<IoClass>();
    let order = DiskSet {
        io_class: Some(class.map_err(|_| senseless(value, "write normal or latency"))?),
        ..DiskSet::default()
    };
    on.set_device(name, &order)?;
    Ok(String::new())
}

fn set_coalesce(on: &dyn Controlled, name: &Name, value: &str) -> Outcome<String> {
    let coalesce = match value {
        "default" => None,
        _ => Some(value.parse::<Coalesce>().map_err(|_| {
            senseless(
                value,
                "write off, adaptive, default, or such as static:16,64us",
            )
        })?),
    };
    let order = DiskSet {
        coalesce: Some(coalesce),
        ..DiskSet::default()
    };
    on.set_device(name, &order)?;
    Ok(String::new())
}

fn thread_in(value: &str) -> Outcome<u32> {
    super::number(value).ok_or_else(|| senseless(value, "write the number of an I/O thread"))
}
