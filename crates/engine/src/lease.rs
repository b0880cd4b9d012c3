//! Leases of disks that several hosts can reach, in blocks on their datastore.
//!
//! The daemon has one [`Leases`] for each directory in which blocks lie (`.tidegate/leases/`), opens an image, asks for
//! the disk's [`Lease`], and hands both to the engine ([`OpenedImage::under`](crate::datastore::OpenedImage::under)). A
//! thread for each directory (`tender`) reads and writes the blocks as the core's rules say, and may hang with the
//! datastore; I/O threads only look at a number (`fence`).
//!
//! # Always true
//! - nothing that modifies a leased disk is given to the kernel after the lease's time, by this host's own clock
//! - a lease goes back when the last operation on its image has ended and the image is closed, not before
//! - a disk that a lock guards ([`Guard::Kernel`]) waits for no lease and fails for none, unless another host is found
//!   to renew one, by a way on which it does not see the lock
//!
//! # Picture
//! ```text
//!   attach ── ask ──> tender <──> .tidegate/leases/UUID
//!                       │ up to when
//!                       v
//!   I/O thread ──> fence ──> image            past it: everything waits; lost: what modifies fails
//! ```
//!
//! # Source
//! Why so: `docs/decisions/0011-who-may-open-a-disk.md`. The rules: `tidegate_core::governor::lease`.

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

pub use guard::Guard;

/// How long a holder may go on without renewing. Long enough for a datastore to be slow for a while, short enough for
/// somebody who waits for a dead host's disk.
const LEASE: Duration = Duration::from_secs(10);

/// Where leases lie, and whose they are.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The datastore's name, for logs and threads.
    pub name: String,
    /// The directory in which `.tidegate` is.
    pub directory: PathBuf,
    /// This host, as it is known for ever.
    pub host: [u8; 16],
    /// This start of its daemon.
    pub incarnation: u64,
    /// The file that this daemon keeps locked until it ends ([`lock_identity`]). Zero: there is none, and this daemon waits for
    /// its own disks as for those of others after a crash.
    pub lock: [u8; 16],
    /// What people call this host.
    pub host_name: String,
    /// How long a holder may go on without renewing.
    pub lease: Duration,
}

impl Settings {
    /// With the usual length of a lease, and no lock.
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

/// By which a file that is locked is known on one start of one machine: its file system's device and its inode. Both stay
/// its own as long as it is open, and it is open as long as it is locked.
///
/// # Errors
/// When the kernel does not say.
pub fn lock_identity(locked: &File) -> io::Result<[u8; 16]> {
    let about = locked.metadata()?;
    let both = u128::from(about.dev()) << 64 | u128::from(about.ino());
    Ok(both.to_be_bytes())
}

/// What may be done about a host that did not give a disk back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// Its disk is taken over where the datastore keeps it from writing.
    Guarded,
    /// Somebody has made sure that it is dead or cut off. A host that is seen alive keeps its disk all the same.
    Fenced,
}

/// The leases in one directory. Clones name the same.
#[derive(Clone, Debug)]
pub struct Leases {
    words: Sender<renewer::Word>,
}

/// The right to write to a disk. Goes back when it is dropped.
#[derive(Debug)]
pub struct Lease {
    key: u64,
    words: Sender<renewer::Word>,
    fence: Option<Arc<Fence>>,
}

/// A look at a lease that an attached disk has.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Fence>);

/// Who has a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What people call the host; its identity where it has no name.
    pub name: String,
    /// Its identity.
    pub host: [u8; 16],
}

/// Why a disk may not be opened here.
#[derive(Debug)]
pub enum Refused {
    /// It is open on a host that was seen alive.
    Live(Holder),
    /// It was open on a host that has fallen silent, and nothing keeps that host from writing if it is not dead.
    Silent(Holder),
    /// It is open on a host that relies on a lock which cannot be seen from here. The file names it.
    Unseen(Holder, PathBuf),
    /// That cannot be found out.
    Trouble(Error),
}

impl Leases {
    /// Those of a directory, which is not touched yet.
    ///
    /// # Errors
    /// When there is no thread or no memory for it.
    pub fn new(settings: Settings) -> crate::Result<Leases> {
        let name = settings.name.clone();
        let words = renewer::start(settings)
            .map_err(|e| Error::io(format!("cannot keep leases on datastore {name}"), e))?;
        Ok(Leases { words })
    }

    /// Takes a disk's lease. The image must be open, and with [`Guard::Kernel`] and [`Guard::Server`] locked, already.
    /// Blocks while it is not known whether another host is alive.
    ///
    /// # Errors
    /// When the disk is another host's, or that cannot be found out.
    pub fn take(
        &self,
        disk: [u8; 16],
        name: &str,
        guard: Guard,
        takeover: Takeover,
    ) -> Result<Lease, Refused> {
        let (reply, answer) = channel();
        let ask = renewer::Ask {
            disk,
            name: name.into(),
            guard,
            takeover,
            reply,
        };
        let gone = || Refused::Trouble(Error::new(Kind::Gone, "the leases are given back"));
        self.words
            .send(renewer::Word::Take(Box::new(ask)))
            .map_err(|_| gone())?;
        let given = answer.recv().map_err(|_| gone())??;
        Ok(Lease {
            key: given.key,
            words: self.words.clone(),
            fence: given.fence,
        })
    }

    /// Who has a disk, as far as its block tells: nobody where it is free, was never open, or cannot be read.
    pub fn holder(&self, disk: [u8; 16]) -> Option<Holder> {
        let (reply, answer) = channel();
        self.words.send(renewer::Word::Who(disk, reply)).ok()?;
        answer.recv().ok()?
    }

    /// Gives back what can be given back, and ends. Leases that are still held end with their time.
    ///
    /// # Errors
    /// When the datastore does not take it within `patience`: other hosts then wait until they see the leases end.
    pub fn end(&self, patience: Duration) -> crate::Result<()> {
        let (done, ended) = channel::<()>();
        if self.words.send(renewer::Word::End(done)).is_err() {
            return Ok(());
        }
        match ended.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => Err(Error::new(
                Kind::TimedOut,
                format!("the leases could not be given back within {patience:?}"),
            )),
            _ => Ok(()),
        }
    }
}

impl Lease {
    /// What its disk's operations have to pass; none where a lock is all that guards it.
    pub(crate) fn fence(&self) -> Option<&Arc<Fence>> {
        self.fence.as_ref()
    }

    /// A look at it that lasts longer than it does. None where it cannot be lost.
    pub fn watch(&self) -> Option<Watch> {
        self.fence.clone().map(Watch)
    }
}

impl Drop for Lease {
    // May run on an I/O thread, with its disk: nothing here waits.
    fn drop(&mut self) {
        let _ = self.words.send(renewer::Word::Give(self.key));
    }
}

impl Watch {
    /// Why the disk is not written to any more, as a sentence.
    pub fn lost(&self) -> Option<&str> {
        self.0.lost()
    }

    /// Whether all I/O of the disk waits now: the lease was not renewed in time, and it is not clear yet whether another
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

/// Why a block cannot be believed, in words.
fn unreadable(why: Unreadable) -> String {
    match why {
        Unreadable::Newer(version) => format!("it is of version {version}, which is newer"),
        _ => "it is no lease of this disk".into(),
    }
}
