//! The table of the control tree: its directories, and the forms of its files.
//!
//! The files of each kind of thing are in a file of their own below, with what writing them does.

use tidegate_api::name::Name;
use tidegate_api::thread::Thread;
use tidegate_api::tree::TreeAccess;
use tidegate_engine::counters::QueueActivity;
use tidegate_engine::monitor::Status;

use super::controlled::{Controlled, Device, Machine};
use super::{number, senseless};
use crate::os_error::Outcome;

mod dense;
mod device;
mod machine;
mod monitor;
mod queue;
mod thread;

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

/// The files of the whole host.
const HOST: &[Node] = &[Node {
    path: "/now_ns",
    about: "the monotonic clock; two readings of it and of a counter give a rate",
    file: File::Host {
        read: Some(|on| Ok(on.now_ns().to_string())),
        write: None,
    },
}];

/// Every file, in the order of listings.
pub(crate) fn nodes() -> impl Iterator<Item = &'static Node> {
    let tables = [
        HOST,
        thread::NODES,
        device::NODES,
        queue::NODES,
        dense::NODES,
        monitor::NODES,
        machine::NODES,
    ];
    tables.into_iter().flatten()
}

/// One thing a line.
fn lines(things: &[impl ToString]) -> String {
    let lines = things.iter().map(|it| it.to_string() + "\n");
    lines.collect()
}

fn thread_in(value: &str) -> Outcome<u32> {
    number(value).ok_or_else(|| senseless(value, "write the number of an I/O thread"))
}
