//! Views of snapshots that are open: NBD clients of `vm1@monday`, exports and backups read a snapshot through one.
//!
//! A view is a read-only disk of the engine. It is opened for its first user and closed after the last one. The opener
//! knows the snapshots; this knows who uses them.
//!
//! # Always true
//! - A snapshot is not deleted while a view of it is open or being opened, and no view is opened while it is deleted:
//!   both are decided under one lock.
//! - All users of a snapshot share one view, and those of a bitmap its ranges.
//! - A view is closed on a thread of its own, because its last user may be an I/O thread.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::snapshot::SnapshotName;
use tidegate_core::layout::pool::Generation;
use tidegate_engine::nbd::bitmap::{Bitmap, WeakBitmap};

use crate::disks::copy::session::DiskSession;
use crate::disks::copy::{Extent, Source};
use crate::host::{self, nbd};
use crate::os_error::{self, Outcome};

/// The snapshot that an export's name names. A slash before it is left out, as some clients send one.
pub(crate) fn of_export(name: &str) -> Option<SnapshotName> {
    name.strip_prefix('/').unwrap_or(name).parse().ok()
}

/// How long a deletion waits for a view that is being closed.
const CLOSING: Duration = Duration::from_secs(10);

/// How long it waits for a user that may be about to leave: the I/O thread notices a client's end a moment later.
const LEAVING: Duration = Duration::from_secs(2);

/// How often it looks whether users have left.
const LOOK: Duration = Duration::from_millis(50);

/// What is known of a snapshot without opening a view of it.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    /// Of the disk when it was taken, in bytes.
    pub(crate) size: u64,
    /// The older snapshots of the disk, which it can be compared with.
    pub(crate) older: Vec<(Name, Generation)>,
    pub(crate) generation: Generation,
}

/// A read-only disk of a snapshot. Dropping it closes it, and returns when that is done.
pub(crate) trait OpenDisk: Send + Sync {
    /// The engine's disk.
    fn disk(&self) -> &host::Disk;
}

/// Knows the snapshots of this host.
pub(crate) trait Opener: Send + Sync {
    /// All that can be opened.
    fn names(&self) -> Vec<SnapshotName>;
    /// One of them.
    fn describe(&self, name: &SnapshotName) -> Outcome<Described>;
    /// Opens one, as it was described.
    fn open(&self, name: &SnapshotName, described: &Described) -> Outcome<Box<dyn OpenDisk>>;
}

/// See the module.
pub(crate) struct Views {
    opener: Box<dyn Opener>,
    table: Arc<Shared>,
}

/// What views share with the registry.
#[derive(Default)]
struct Shared {
    table: Mutex<Table>,
    /// A view was closed.
    closed: Condvar,
}

#[derive(Default)]
struct Table {
    open: BTreeMap<SnapshotName, Slot>,
    /// Snapshots that are being deleted.
    going: BTreeMap<SnapshotName, ()>,
}

/// A snapshot with views.
#[derive(Default)]
struct Slot {
    /// Views that are opened, open or being closed.
    count: usize,
    shared: Weak<View>,
    /// Held while a view is opened, so that the next user shares it.
    opening: Arc<Mutex<()>>,
}

/// An open view.
pub(crate) struct View {
    name: SnapshotName,
    described: Described,
    /// Taken when it is closed.
    disk: Option<Box<dyn OpenDisk>>,
    bitmaps: Mutex<BTreeMap<Name, WeakBitmap>>,
    counted: Arc<Counted>,
}

/// One view in the count of its snapshot, until dropped.
struct Counted {
    name: SnapshotName,
    table: Arc<Shared>,
}

/// A snapshot of which no view is opened, until dropped: it is being deleted.
pub(crate) struct Reserved {
    name: SnapshotName,
    table: Arc<Shared>,
}

impl Views {
    /// Of the snapshots that `opener` knows.
    pub(crate) fn new(opener: Box<dyn Opener>) -> Views {
        Views {
            opener,
            table: Arc::default(),
        }
    }

    /// The names of all exports.
    pub(crate) fn names(&self) -> Vec<SnapshotName> {
        self.opener.names()
    }

    /// What an NBD client learns of an export before it selects it.
    pub(crate) fn export_info(&self, name: &SnapshotName) -> Outcome<nbd::ExportInfo> {
        let described = self.opener.describe(name)?;
        Ok(info(name, &described))
    }

    /// What is known of a snapshot.
    pub(crate) fn describe(&self, name: &SnapshotName) -> Outcome<Described> {
        self.opener.describe(name)
    }

    /// Opens a view, or shares one that is open. Blocks while it opens.
    pub(crate) fn open(&self, name: &SnapshotName) -> Outcome<Arc<View>> {
        let (counted, opening) = {
            let mut table = locked(&self.table.table);
            if table.going.contains_key(name) {
                return Err(
                    Problem::new(ProblemCode::Busy, format!("cannot read {name}"))
                        .because("the snapshot is being deleted")
                        .remedy("choose another one (see `tidegate disk snapshot list`)"),
                );
            }
            let slot = table.open.entry(name.clone()).or_default();
            slot.count += 1;
            let opening = Arc::clone(&slot.opening);
            let counted = Counted {
                name: name.clone(),
                table: Arc::clone(&self.table),
            };
            (Arc::new(counted), opening)
        };
        let _one_opens = locked(&opening);
        let shared = locked(&self.table.table)
            .open
            .get(name)
            .map(|slot| slot.shared.clone());
        if let Some(view) = shared.and_then(|shared| shared.upgrade()) {
            return Ok(view);
        }
        let what = || format!("cannot read {name}");
        let described = self.opener.describe(name).map_err(|e| e.within(what()))?;
        let disk = self
            .opener
            .open(name, &described)
            .map_err(|e| e.within(what()))?;
        let view = Arc::new(View {
            name: name.clone(),
            described,
            disk: Some(disk),
            bitmaps: Mutex::default(),
            counted,
        });
        if let Some(slot) = locked(&self.table.table).open.get_mut(name) {
            slot.shared = Arc::downgrade(&view);
        }
        Ok(view)
    }

    /// Keeps views of a snapshot from being opened while it is deleted. Waits for one that is being closed.
    ///
    /// # Errors
    /// One is open.
    pub(crate) fn reserve(&self, name: &SnapshotName) -> Outcome<Reserved> {
        let began = Instant::now();
        let mut table = locked(&self.table.table);
        while let Some(slot) = table.open.get(name) {
            let patience = match slot.shared.strong_count() {
                0 => CLOSING,
                _ => LEAVING,
            };
            let Some(left) = patience.checked_sub(began.elapsed()) else {
                break;
            };
            let closed = self.table.closed.wait_timeout(table, left.min(LOOK));
            (table, _) = closed.unwrap_or_else(PoisonError::into_inner);
        }
        if table.open.contains_key(name) {
            return Err(Problem::new(ProblemCode::Busy, format!("snapshot {name} is in use"))
                .because("an NBD client, an export or a backup reads it")
                .remedy("wait until it has ended (see `tidegate job list`), or disconnect the client"));
        }
        if table.going.insert(name.clone(), ()).is_some() {
            return Err(
                Problem::new(ProblemCode::Busy, format!("snapshot {name} is in use"))
                    .because("another command deletes it")
                    .remedy("wait until that has ended"),
            );
        }
        Ok(Reserved {
            name: name.clone(),
            table: Arc::clone(&self.table),
        })
    }

    /// How many views are open.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        locked(&self.table.table)
            .open
            .values()
            .map(|slot| slot.count)
            .sum()
    }
}

impl View {
    fn disk(&self) -> &host::Disk {
        let disk = self.disk.as_ref();
        disk.expect("it is taken only when the view is dropped")
            .disk()
    }

    /// What is known of its snapshot.
    pub(crate) fn described(&self) -> &Described {
        &self.described
    }

    /// Serves an NBD client, with the bitmaps that it selected. The view stays open as long as it is connected.
    pub(crate) fn serve_nbd(
        self: &Arc<Self>,
        socket: OwnedFd,
        negotiated: &nbd::Negotiated,
        presence: Box<dyn Send>,
    ) -> Outcome<()> {
        let mut bitmaps = Vec::new();
        for (id, older) in &negotiated.bitmaps {
            bitmaps.push((*id, self.bitmap(older)?));
        }
        let kept = (Arc::clone(self), presence);
        self.disk()
            .serve_nbd_bitmaps(socket, negotiated, bitmaps, kept)
    }

    /// What differs from an older snapshot.
    pub(crate) fn bitmap(&self, older: &str) -> Outcome<Bitmap> {
        let found = self
            .described
            .older
            .iter()
            .find(|(name, _)| name.as_str() == older);
        let Some((name, from)) = found else {
            let what = format!("snapshot {} is not older than {}", older, self.name);
            return Err(Problem::new(ProblemCode::NotFound, what)
                .remedy("see `tidegate disk snapshot list`"));
        };
        let mut known = locked(&self.bitmaps);
        if let Some(bitmap) = known.get(name).and_then(WeakBitmap::upgrade) {
            return Ok(bitmap);
        }
        known.retain(|_, bitmap| bitmap.upgrade().is_some());
        let bitmap = Bitmap::new(self.changed(*from)?);
        known.insert(name.clone(), bitmap.downgrade());
        Ok(bitmap)
    }

    /// Which parts differ from a generation, in bytes, ascending.
    pub(crate) fn changed(&self, from: Generation) -> Outcome<Vec<Range<u64>>> {
        let changed = self.disk().changed(from, self.described.generation)?;
        changed.ok_or_else(|| {
            Problem::new(ProblemCode::NotFound, "the older snapshot is gone")
                .remedy("compare with one that exists (see `tidegate disk snapshot list`)")
        })
    }

    /// Reads its bytes in this process.
    pub(crate) fn reader(self: &Arc<Self>) -> Outcome<Reader> {
        let what = || format!("cannot read {}", self.name);
        let export = info(&self.name, &self.described);
        let (socket, negotiated, session) =
            DiskSession::pair(export).map_err(|e| os_error::io(what(), &e))?;
        self.serve_nbd(socket.into(), &negotiated, Box::new(()))?;
        // What differs from nothing is all that it has.
        let mapped = Bitmap::new(self.changed(Generation(0))?);
        Ok(Reader {
            session,
            mapped,
            _view: Arc::clone(self),
        })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        let Some(disk) = self.disk.take() else {
            return;
        };
        let counted = Arc::clone(&self.counted);
        let close = move || {
            drop(disk);
            drop(counted);
        };
        if let Err(error) = std::thread::Builder::new()
            .name("close-view".to_owned())
            .spawn(close)
        {
            // It was closed here then, when the closure was dropped.
            tracing::error!(%error, view = %self.name, "no thread was left to close a view of a snapshot");
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut table = locked(&self.table.table);
        self.table.closed.notify_all();
        let Some(slot) = table.open.get_mut(&self.name) else {
            return;
        };
        slot.count -= 1;
        if slot.count == 0 {
            table.open.remove(&self.name);
        }
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        locked(&self.table.table).going.remove(&self.name);
    }
}

/// The bytes of a view, which stays open meanwhile.
pub(crate) struct Reader {
    session: DiskSession,
    /// Where the disk has data, ascending.
    mapped: Bitmap,
    _view: Arc<View>,
}

impl Source for Reader {
    fn size(&self) -> u64 {
        self.session.size()
    }

    fn extent(&self, offset: u64, most: u64) -> io::Result<(u64, Extent)> {
        let mapped = self.mapped.ranges();
        let next = mapped.partition_point(|range| range.end <= offset);
        Ok(match mapped.get(next) {
            Some(range) if range.start <= offset => ((range.end - offset).min(most), Extent::Data),
            Some(range) => ((range.start - offset).min(most), Extent::Zero),
            None => (most, Extent::Zero),
        })
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.session.read(buffer, offset)
    }
}

fn info(name: &SnapshotName, described: &Described) -> nbd::ExportInfo {
    use nbd::Abilities;
    let abilities = [
        Abilities::HAS_FLAGS,
        Abilities::READ_ONLY,
        Abilities::FLUSH,
        Abilities::MULTI_CONN,
        Abilities::CACHE,
    ];
    let older = described.older.iter();
    nbd::ExportInfo {
        name: name.to_string(),
        description: format!("snapshot {} of disk {}", name.snapshot, name.disk),
        size: described.size,
        abilities: abilities.into_iter().fold(Abilities::NONE, Abilities::with),
        block: nbd::BlockSizes {
            minimum: 512,
            ..nbd::BlockSizes::default()
        },
        bitmaps: older.map(|(name, _)| name.to_string()).collect(),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change to a table is complete, so another thread's panic leaves no partial state.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
