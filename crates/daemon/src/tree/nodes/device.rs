//! The files of the devices of attached disks in the control tree.

use std::ops::RangeInclusive;

use tidegate_api::disk::DiskSet;
use tidegate_api::io::{IO_WEIGHTS, IoClass, VCPUS};
use tidegate_api::name::Name;
use tidegate_api::or_default::{DEFAULT, OrDefault};

use super::{File, Node, device, lines, thread_in};
use crate::os_error::Outcome;
use crate::tree::controlled::Controlled;
use crate::tree::{number, senseless};

/// Its files, in the order of listings.
pub(super) const NODES: &[Node] = &[
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
            read: Some(|it| it.coalesce.to_string()),
            write: Some(set_coalesce),
        },
    },
    Node {
        path: "/device/NAME/vcpus",
        about: "the vCPUs of the virtual machine that uses it, as declared: 1 to 4096, or `default`: they are counted. Dense mode \
                counts with them",
        file: File::Device {
            read: Some(|it| it.vcpus.to_string()),
            write: Some(set_vcpus),
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
];

fn move_to(on: &dyn Controlled, name: &Name, value: &str) -> Outcome<String> {
    let moved = on.move_device(name, thread_in(value)?)?;
    Ok(format!("pause_us {:.1}", moved.pause_us))
}

fn set_weight(on: &dyn Controlled, name: &Name, value: &str) -> Outcome<String> {
    let weight = number_or_default(value, IO_WEIGHTS)?;
    let order = DiskSet {
        io_weight: Some(weight),
        ..DiskSet::default()
    };
    on.set_device(name, &order)?;
    Ok(String::new())
}

fn set_vcpus(on: &dyn Controlled, name: &Name, value: &str) -> Outcome<String> {
    let vcpus = number_or_default(value, VCPUS)?;
    let order = DiskSet {
        vcpus: Some(vcpus),
        ..DiskSet::default()
    };
    on.set_device(name, &order)?;
    Ok(String::new())
}

/// A number of this range, or the word for the default.
fn number_or_default(value: &str, range: RangeInclusive<u32>) -> Outcome<OrDefault<u32>> {
    if value == DEFAULT {
        return Ok(OrDefault::Default);
    }
    let found = number(value).filter(|number| range.contains(number));
    let found = found.ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        senseless(value, &format!("write {least} to {most}, or {DEFAULT}"))
    })?;
    Ok(OrDefault::Value(found))
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
    let coalesce = value.parse().map_err(|_| {
        senseless(
            value,
            "write off, adaptive, default, or such as static:16,64us",
        )
    })?;
    let order = DiskSet {
        coalesce: Some(coalesce),
        ..DiskSet::default()
    };
    on.set_device(name, &order)?;
    Ok(String::new())
}
