//! Leases of disks that several hosts can reach, in blocks on their datastore.
//!
//! The daemon has one [`Leases`] for each directory with blocks (`.tidegate/leases/`), and one for pools, whose members
//! have their blocks on themselves. It opens an image, takes the
//! disk's [`Lease`], and passes both to the engine ([`OpenedImage::under`](crate::datastore::OpenedImage::under)). One
//! thread for each directory (`renewer`) reads and writes the blocks by the core's rules, and may hang with the
//! datastore. I/O threads only read a number (`fence`).
//!
//! # Always true
//! - no operation that modifies a leased disk is submitted after the lease's time, by this host's own clock
//! - a lease is released when the last operation on its image has ended and the image is closed, not before
//! - a disk that a lock guards ([`Guard::Kernel`]) neither waits for a lease nor fails for one. The exception: another
//!   host renews a lease through a path on which it does not see the lock
//!
//! # Picture
//! ```text
//!   attach ── take ──> renewer <──> .tidegate/leases/UUID
//!                        │ until when
//!                        v
//!   I/O thread ──> fence ──> image            past it: everything waits; lost: changes fail
//! ```
//!
//! # Source
//! The reasons: `docs/decisions/0011-who-may-open-a-disk.md`. The rules: `tidegate_core::governor::lease`.

use crate::error::{Error, Kind};
use fence::Fence;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tidegate_core::governor::slot::Unreadable;

mod block;
pub(crate) mod fence;
mod guard;
mod renewer;

pub use block::OnDevice;
pub use guard::Guard;

/// How long a holder may go without renewing. Long enough for a datastore that is slow for a while, short enough for a
/// user who waits for a dead host's disk.
const LEASE: Duration = Duration::from_secs(10);

/// Where leases are stored, and which host takes them.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The datastore's name, for logs and threads.
    pub name: String,
    /// The directory that contains `.tidegate`.
    pub directory: PathBuf,
    /// The permanent identity of this host.
    pub host: [u8; 16],
    /// The start number of its daemon.
    pub incarnation: u64,
    /// The file that this daemon locks until it ends ([`lock_identity`]). Zero: there is none, and after a crash this
    /// daemon waits for its own disks as for those of other hosts.
    pub lock: [u8; 16],
    /// The display name of this host.
    pub host_name: String,
    /// How long a holder may go without renewing.
    pub lease: Duration,
}

impl Settings {
    /// With the default length of a lease, and no lock.
    pub fn new(
        name: &str,
        directory: PathBuf,
        host: [u8; 16],
        incarnation: u64,
        host_name: &str,
    ) -> Settings {
        Settings {
            name: name.into(),
            directory,
            host,
            incarnation,
            lock: [0; 16],
            host_name: host_name.into(),
            lease: LEASE,
        }
    }
}

/// The identity of a locked file on one boot of one machine: its file system's device and its inode. Both are unique
/// while it is open, and it is open while it is locked.
///
/// # Errors
/// If the kernel does not report it.
pub fn lock_identity(locked: &File) -> io::Result<[u8; 16]> {
    let about = locked.metadata()?;
    let both = u128::from(about.dev()) << 64 | u128::from(about.ino());
    Ok(both.to_be_bytes())
}

/// What may be done about a host that did not release a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// Take its disk over if the datastore prevents it from writing.
    Guarded,
    /// An operator has made sure that it is dead or cut off. A host that is seen alive keeps its disk nevertheless.
    Fenced,
}

/// The leases in one directory. Clones share them.
#[derive(Clone, Debug)]
pub struct Leases {
    commands: Sender<renewer::Command>,
}

/// The right to write to a disk. Released when it is dropped.
#[derive(Debug)]
pub struct Lease {
    key: u64,
    commands: Sender<renewer::Command>,
    fence: Option<Arc<Fence>>,
}

/// Observes the lease of an attached disk.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Fence>);

/// The host that has a disk open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The display name of the host; its identity if it has none.
    pub name: String,
    /// Its identity.
    pub host: [u8; 16],
}

/// Why a disk may not be opened here.
#[derive(Debug)]
pub enum Refused {
    /// It is open on a host that was seen alive.
    Live(Holder),
    /// It was open on a host that is silent, and nothing prevents that host from writing if it is alive.
    Silent(Holder),
    /// It is open on a host that relies on a lock that is not visible here. The lease file names the host.
    Unseen(Holder, PathBuf),
    /// The lease cannot be read or written.
    Trouble(Error),
}

impl Leases {
    /// The leases of a directory, which is not accessed yet.
    ///
    /// # Errors
    /// If there is no thread or no memory for it.
    pub fn new(settings: Settings) -> crate::Result<Leases> {
        let name = settings.name.clone();
        let commands = renewer::start(settings)
            .map_err(|e| Error::io(format!("cannot manage leases on datastore {name}"), e))?;
        Ok(Leases { commands })
    }

    /// Takes a disk's lease. The image must be open already, and locked for [`Guard::Kernel`] and [`Guard::Server`].
    /// Blocks until it is known whether another host is alive.
    ///
    /// # Errors
    /// If the disk belongs to another host, or that cannot be found out.
    pub fn take(
        &self,
        disk: [u8; 16],
        name: &str,
        guard: Guard,
        takeover: Takeover,
    ) -> Result<Lease, Refused> {
        self.request(disk, format!("disk {name}"), None, guard, takeover)
    }

    /// Takes the lease of a device that is open and locked, and has its block itself. `name` says what the device is, for
    /// messages. Otherwise like [`take`](Leases::take).
    ///
    /// # Errors
    /// If it belongs to another host, or that cannot be found out.
    pub fn take_on(
        &self,
        device: OnDevice,
        id: [u8; 16],
        name: &str,
        guard: Guard,
        takeover: Takeover,
    ) -> Result<Lease, Refused> {
        let block = block::Block::on(device).map_err(|e| {
            Refused::Trouble(Error::io(format!("cannot use the lease of {name}"), e))
        })?;
        self.request(id, name.into(), Some(block), guard, takeover)
    }

    fn request(
        &self,
        disk: [u8; 16],
        name: String,
        block: Option<block::Block>,
        guard: Guard,
        takeover: Takeover,
    ) -> Result<Lease, Refused> {
        let (reply, answer) = channel();
        let request = renewer::LeaseRequest {
            disk,
            name,
            block,
            guard,
            takeover,
            reply,
        };
        let gone = || Refused::Trouble(Error::new(Kind::Gone, "the lease renewer has ended"));
        self.commands
            .send(renewer::Command::Take(Box::new(request)))
            .map_err(|_| gone())?;
        let granted = answer.recv().map_err(|_| gone())??;
        Ok(Lease {
            key: granted.key,
            commands: self.commands.clone(),
            fence: granted.fence,
        })
    }

    /// The holder of a disk by its block: none if it is free, was never open, or cannot be read.
    pub fn holder(&self, disk: [u8; 16]) -> Option<Holder> {
        let (reply, answer) = channel();
        self.commands
            .send(renewer::Command::Holder(disk, reply))
            .ok()?;
        answer.recv().ok()?
    }

    /// Releases what can be released, and ends. Leases that are still held expire.
    ///
    /// # Errors
    /// If the datastore does not accept it within `patience`: other hosts then wait until they see the leases expire.
    pub fn end(&self, patience: Duration) -> crate::Result<()> {
        let (done, ended) = channel::<()>();
        if self.commands.send(renewer::Command::End(done)).is_err() {
            return Ok(());
        }
        match ended.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => Err(Error::new(
                Kind::TimedOut,
                format!("the leases could not be released within {patience:?}"),
            )),
            _ => Ok(()),
        }
    }
}

impl Lease {
    /// The fence that its disk's operations must pass; none if only a lock guards it.
    pub(crate) fn fence(&self) -> Option<&Arc<Fence>> {
        self.fence.as_ref()
    }

    /// An observer that outlives the lease. None if the lease cannot be lost.
    pub fn watch(&self) -> Option<Watch> {
        self.fence.clone().map(Watch)
    }
}

impl Drop for Lease {
    // May run on an I/O thread, with its disk: it must not block.
    fn drop(&mut self) {
        let _ = self.commands.send(renewer::Command::Release(self.key));
    }
}

impl Watch {
    /// The fence that it observes.
    pub(crate) fn fence(&self) -> &Arc<Fence> {
        &self.0
    }

    /// Why the disk is not written any more, as a sentence.
    pub fn lost(&self) -> Option<&str> {
        self.0.lost()
    }

    /// Whether what it guards may be written now.
    pub fn is_open(&self) -> bool {
        self.0.is_open()
    }

    /// Whether all I/O of the disk waits: the lease was not renewed in time, and it is not known yet whether another
    /// host has taken the disk.
    pub fn is_waiting(&self) -> bool {
        self.0.gate() == fence::Gate::Shut
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Describes why a block is not valid.
fn unreadable(why: Unreadable) -> String {
    match why {
        Unreadable::Newer(version) => format!("it is of version {version}, which is newer"),
        _ => "it is not a lease of this disk".into(),
    }
}
