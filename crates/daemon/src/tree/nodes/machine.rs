//! The files of virtual machines in the control tree.

use tidegate_engine::guests::GuestActivity;

use super::{File, Node, lines};
use crate::tree::controlled::Machine;

/// Its files, in the order of listings.
pub(super) const NODES: &[Node] = &[
    Node {
        path: "/vm/PID/vcpus",
        about: "its vCPUs: those that one of its disks declares, or else the threads that its front end names so. Empty if there \
                is neither",
        file: File::Machine {
            read: |it| number(it.declared.or(it.counted.map(|counted| counted.vcpus))),
        },
    },
    Node {
        path: "/vm/PID/run_ns",
        about: "CPU time of its vCPUs since they were started. Empty if its front end does not name their threads",
        file: File::Machine {
            read: |it| number(counted(it, |it| it.run.as_nanos())),
        },
    },
    Node {
        path: "/vm/PID/run_delay_ns",
        about: "time in which its vCPUs could run and others had their CPUs. Empty if its front end does not name their threads",
        file: File::Machine {
            read: |it| number(counted(it, |it| it.run_delay.as_nanos())),
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

fn counted(machine: &Machine, of: fn(&GuestActivity) -> u64) -> Option<u64> {
    machine.counted.as_ref().map(of)
}

/// A number, or nothing.
fn number(number: Option<impl ToString>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}
