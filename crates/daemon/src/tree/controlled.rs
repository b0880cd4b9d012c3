//! The daemon as the control tree sees it: what its files show, and the commands behind those that are written.

use std::collections::BTreeSet;
use std::fmt;

use tidegate_api::dense::{DenseMode, DenseStatus};
use tidegate_api::disk::{ClientKind, DiskSet};
use tidegate_api::io::{Coalesce, IO_WEIGHT, IoClass};
use tidegate_api::name::Name;
use tidegate_api::or_default::OrDefault;
use tidegate_api::thread::{DiskThread, Thread};
use tidegate_engine::counters::QueueActivity;
use tidegate_engine::guests::{GuestActivity, read_guest};
use tidegate_engine::monitor::{Settings, Status};

use crate::clock;
use crate::daemon::Daemon;
use crate::observe::monitor::now_ms;
use crate::os_error::Outcome;

/// See the module.
pub(crate) trait Controlled {
    /// The time of the monotonic clock, in nanoseconds.
    fn now_ns(&self) -> u64;
    /// All I/O threads, by number.
    fn threads(&self) -> Outcome<Vec<Thread>>;
    /// Takes a parked I/O thread into use, and returns its number.
    fn create_thread(&self) -> Outcome<u32>;
    /// Parks a locked I/O thread without disks.
    fn remove_thread(&self, thread: u32) -> Outcome<()>;
    /// Locks an I/O thread.
    fn lock_thread(&self, thread: u32) -> Outcome<()>;
    /// Unlocks an I/O thread.
    fn unlock_thread(&self, thread: u32) -> Outcome<()>;
    /// Chooses the I/O thread for new disks; `None`: the active one with the fewest.
    fn set_default_thread(&self, thread: Option<u32>) -> Outcome<()>;
    /// Dense mode.
    fn dense(&self) -> DenseStatus;
    /// Sets when dense mode is on.
    fn set_dense(&self, mode: DenseMode) -> Outcome<()>;
    /// The state of the monitor, which places disks on I/O threads.
    fn monitor(&self) -> Outcome<Status>;
    /// Sets how the monitor decides.
    fn set_monitor(&self, settings: Settings) -> Outcome<()>;
    /// The attached disks.
    fn devices(&self) -> Vec<Name>;
    /// One of them.
    fn device(&self, name: &Name) -> Outcome<Device>;
    /// Moves a disk to another I/O thread.
    fn move_device(&self, name: &Name, thread: u32) -> Outcome<DiskThread>;
    /// Changes a disk's settings.
    fn set_device(&self, name: &Name, order: &DiskSet) -> Outcome<()>;
    /// What the queues of a disk have done, and last its NBD connections together. It reads no other disk.
    fn queues(&self, name: &Name) -> Outcome<Vec<(Queue, QueueActivity)>>;
    /// The processes of the virtual machines that are connected.
    fn machines(&self) -> Vec<u32>;
    /// One of them; none if it uses no disk.
    fn machine(&self, pid: u32) -> Option<Machine>;
}

/// The device of an attached disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    pub(crate) datastore: Name,
    pub(crate) thread: u32,
    pub(crate) size_bytes: u64,
    /// Queues that a virtual machine may use.
    pub(crate) queues: u16,
    /// Connected clients of any kind.
    pub(crate) clients: usize,
    /// The processes of the virtual machines that are connected.
    pub(crate) owners: Vec<u32>,
    /// Its weight on its I/O thread.
    pub(crate) weight: u32,
    /// Its class there.
    pub(crate) class: IoClass,
    /// How its completions are coalesced.
    pub(crate) coalesce: OrDefault<Coalesce>,
    /// The vCPUs that are declared for the virtual machine that uses it.
    pub(crate) vcpus: OrDefault<u32>,
}

/// A queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    /// A virtual machine's, by number.
    Ring(u32),
    /// All NBD connections.
    Connections,
}

impl Queue {
    /// The queue of this word in a path.
    pub(crate) fn of(word: &str) -> Option<Queue> {
        match word {
            "nbd" => Some(Queue::Connections),
            _ => super::number(word).map(Queue::Ring),
        }
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Queue::Ring(number) => write!(f, "{number}"),
            Queue::Connections => f.write_str("nbd"),
        }
    }
}

/// A virtual machine that is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) pid: u32,
    /// Its vCPUs, if one of its disks declares them.
    pub(crate) declared: Option<u32>,
    /// Its vCPUs and their times, if its front end names their threads.
    pub(crate) counted: Option<GuestActivity>,
    /// The disks that it uses, in the order of their names.
    pub(crate) devices: Vec<Name>,
}

impl Controlled for Daemon {
    fn now_ns(&self) -> u64 {
        clock::now().as_nanos()
    }

    fn threads(&self) -> Outcome<Vec<Thread>> {
        self.services.disk_service.threads()
    }

    fn create_thread(&self) -> Outcome<u32> {
        self.services.disk_service.create_thread()
    }

    fn remove_thread(&self, thread: u32) -> Outcome<()> {
        self.services.disk_service.remove_thread(thread)
    }

    fn lock_thread(&self, thread: u32) -> Outcome<()> {
        self.services.disk_service.lock_thread(thread)
    }

    fn unlock_thread(&self, thread: u32) -> Outcome<()> {
        self.services.disk_service.unlock_thread(thread)
    }

    fn set_default_thread(&self, thread: Option<u32>) -> Outcome<()> {
        self.services.disk_service.set_default_thread(thread)
    }

    fn dense(&self) -> DenseStatus {
        self.monitor.dense().status()
    }

    fn set_dense(&self, mode: DenseMode) -> Outcome<()> {
        let changed = self
            .monitor
            .dense()
            .set_mode(self.services.disk_service.host(), mode)?;
        if let Some(happening) = changed {
            self.monitor.journal().add(None, now_ms(), happening);
        }
        Ok(())
    }

    fn monitor(&self) -> Outcome<Status> {
        self.services.disk_service.host().monitor()
    }

    fn set_monitor(&self, settings: Settings) -> Outcome<()> {
        self.services.disk_service.host().set_monitor(settings)
    }

    fn devices(&self) -> Vec<Name> {
        self.services.disk_service.live().names()
    }

    fn device(&self, name: &Name) -> Outcome<Device> {
        let disk = self.services.disk_service.must_be_attached(name)?;
        let clients = disk.clients();
        let mut owners: Vec<u32> = clients
            .iter()
            .filter(|client| client.kind == ClientKind::VhostUser)
            .filter_map(|client| pid(&client.peer))
            .collect();
        owners.sort_unstable();
        owners.dedup();
        let descriptor = disk.descriptor();
        let of = descriptor.as_ref();
        Ok(Device {
            datastore: disk.datastore().clone(),
            thread: disk.thread(),
            size_bytes: disk.size(),
            queues: of.map_or(1, |it| it.queues),
            clients: clients.len(),
            owners,
            weight: of.and_then(|it| it.io_weight).unwrap_or(IO_WEIGHT),
            class: of.map(|it| it.io_class).unwrap_or_default(),
            coalesce: of.and_then(|it| it.coalesce).into(),
            vcpus: of.and_then(|it| it.vcpus).into(),
        })
    }

    fn move_device(&self, name: &Name, thread: u32) -> Outcome<DiskThread> {
        self.services.disk_service.move_to_thread(name, thread)
    }

    fn set_device(&self, name: &Name, order: &DiskSet) -> Outcome<()> {
        // A detached disk has no device, and its settings are not the tree's.
        self.services.disk_service.must_be_attached(name)?;
        self.services.disk_service.set(name, order).map(drop)
    }

    fn queues(&self, name: &Name) -> Outcome<Vec<(Queue, QueueActivity)>> {
        let key = self.services.disk_service.must_be_attached(name)?.key();
        let statistics = self.services.disk_service.host().statistics()?;
        // A disk that is being detached has none.
        let of = statistics.disk(key).into_iter().flat_map(|it| {
            let rings = (0..).map(Queue::Ring).zip(it.queues);
            rings.chain([(Queue::Connections, it.connections)])
        });
        Ok(of.collect())
    }

    fn machines(&self) -> Vec<u32> {
        let names = self.devices().into_iter();
        // A disk that was detached meanwhile is left out.
        let owners = names.filter_map(|name| Some(self.device(&name).ok()?.owners));
        let pids: BTreeSet<u32> = owners.flatten().collect();
        pids.into_iter().collect()
    }

    fn machine(&self, pid: u32) -> Option<Machine> {
        let mut devices = self.devices();
        let mut declared = None;
        devices.retain(|name| {
            // A disk that was detached meanwhile is left out.
            let device = self.device(name).ok();
            let of_it = device.filter(|device| device.owners.contains(&pid));
            let vcpus = of_it.as_ref().and_then(|device| device.vcpus.value());
            declared = declared.max(vcpus);
            of_it.is_some()
        });
        (!devices.is_empty()).then(|| Machine {
            pid,
            declared,
            counted: read_guest(pid),
            devices,
        })
    }
}

/// The process in the description of a client: `pid 4242 uid 1000`.
fn pid(peer: &str) -> Option<u32> {
    peer.strip_prefix("pid ")?.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_of_a_client_is_read_from_its_description() {
        assert_eq!(pid("pid 4242 uid 1000"), Some(4242));
        for peer in ["uid 1000", "unknown", "[::1]:3000", "pid ", "pid -1 uid 0"] {
            assert_eq!(pid(peer), None, "{peer}");
        }
    }
}
