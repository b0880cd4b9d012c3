//! The files of the monitor, which places disks on I/O threads, in the control tree.

use tidegate_core::monitor::{Kind, Limits};
use tidegate_engine::monitor::Settings;

use super::{File, Node, monitor};
use crate::os_error::Outcome;
use crate::tree::controlled::Controlled;
use crate::tree::{number, senseless};

/// Its files, in the order of listings.
pub(super) const NODES: &[Node] = &[
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
];

fn set_policy(on: &dyn Controlled, value: &str) -> Outcome<String> {
    let policy = Kind::ALL.into_iter().find(|kind| kind.name() == value);
    let policy = policy.ok_or_else(|| senseless(value, "write none, auto, iocm or spdk"))?;
    let settings = on.monitor()?.settings;
    on.set_monitor(Settings { policy, ..settings })?;
    Ok(String::new())
}

fn set_min(on: &dyn Controlled, value: &str) -> Outcome<String> {
    let Settings { policy, limits } = on.monitor()?.settings;
    let min = number_up_to(value, limits.max.into(), "/monitor/max")?;
    let limits = Limits { min, ..limits };
    on.set_monitor(Settings { policy, limits })?;
    Ok(String::new())
}

fn set_max(on: &dyn Controlled, value: &str) -> Outcome<String> {
    let Settings { policy, limits } = on.monitor()?.settings;
    let max = number_up_to(
        value,
        on.threads()?.len(),
        "the number of I/O threads that exist",
    )?;
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

/// A number of threads, at most `most`, which is `what`.
fn number_up_to(value: &str, most: usize, what: &str) -> Outcome<u16> {
    let number = number(value).and_then(|number| u16::try_from(number).ok());
    let number = number.filter(|number| (1..=most).contains(&usize::from(*number)));
    number.ok_or_else(|| {
        senseless(
            value,
            &format!("write a number from 1 to {most}, which is {what}"),
        )
    })
}
