//! Notices when another host, or another program here, has changed a disk that is attached here.
//!
//! On a local file system the kernel says so; on a network's, where it cannot know, descriptors are looked at. The
//! disk_service does the looking, on threads that may block: one for each datastore, so that one that hangs keeps nobody
//! else's changes waiting.
//!
//! # Always true
//! - While no disk is attached, and while all attached disks lie on local file systems and nobody changes them, nothing
//!   wakes up.
//! - At most one look at a datastore is under way; who asks for another meanwhile gets it afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tidegate_api::name::Name;
use tokio::sync::Notify;

use crate::disks::attached::Attached;
use crate::disks::disk_service::DiskService;

/// How often descriptors are looked at where the kernel cannot say: a change takes effect in well under a second.
const EVERY: Duration = Duration::from_millis(400);

/// File systems of which the kernel sees every change: ext4, XFS, Btrfs, tmpfs, overlayfs, F2FS, bcachefs, ZFS.
const LOCAL: [u64; 8] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x794c_7630,
    0xf2f5_2010,
    0xca45_1a4e,
    0x2fc1_2fc1,
];

/// What all looks share.
#[derive(Default)]
struct Looks {
    /// Datastores that are being looked at, and whether somebody asked for another look meanwhile.
    under_way: Mutex<BTreeMap<Name, bool>>,
    /// Datastores of which the kernel tells.
    told: Mutex<BTreeSet<Name>>,
    /// The kernel tells of a change.
    heard: Notify,
    /// A look has ended during which another was asked for.
    again: Notify,
}

/// Watches until it is dropped.
pub(crate) async fn watch(disk_service: Arc<DiskService>) {
    watch_every(disk_service, EVERY).await;
}

/// Watches, and looks this often at what the kernel does not tell of.
pub(crate) async fn watch_every(disk_service: Arc<DiskService>, every: Duration) {
    let looks = Arc::new(Looks::default());
    let ear = ear(&looks);
    loop {
        disk_service.live().one_is_attached().await;
        // Asked for before the look: a disk that comes during it is looked at too.
        let come = disk_service.live().another_comes();
        let all_told = look(&disk_service, &looks, ear.as_ref());
        tokio::select! {
            () = come => {}
            () = looks.heard.notified() => {}
            () = looks.again.notified() => {}
            () = tokio::time::sleep(every), if !all_told => {}
        }
    }
}

/// Begins to look at every datastore with attached disks. Answers whether the kernel tells of all of them.
fn look(disk_service: &Arc<DiskService>, looks: &Arc<Looks>, ear: Option<&Arc<OwnedFd>>) -> bool {
    let mut by_datastore: BTreeMap<Name, Vec<Arc<Attached>>> = BTreeMap::new();
    for live in disk_service.live().all() {
        let disks = by_datastore.entry(live.datastore().clone()).or_default();
        disks.push(live);
    }
    let all_told = {
        let told = locked(&looks.told);
        by_datastore
            .keys()
            .all(|datastore| told.contains(datastore))
    };
    for (datastore, disks) in by_datastore {
        if let Some(again) = locked(&looks.under_way).get_mut(&datastore) {
            *again = true;
            continue;
        }
        locked(&looks.under_way).insert(datastore.clone(), false);
        let (disk_service, looks, ear) =
            (Arc::clone(disk_service), Arc::clone(looks), ear.cloned());
        tokio::task::spawn_blocking(move || {
            let told = disks
                .iter()
                .all(|live| listen(ear.as_deref(), live) == Heard::ByTheKernel);
            disks.iter().for_each(|live| disk_service.follow(live));
            let mut known = locked(&looks.told);
            if told {
                known.insert(datastore.clone());
            } else {
                known.remove(&datastore);
            }
            drop(known);
            if locked(&looks.under_way).remove(&datastore) == Some(true) {
                looks.again.notify_one();
            }
        });
    }
    all_told
}

/// How a disk's changes come to our ears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    ByTheKernel,
    ByLooking,
}

/// Has the kernel tell of changes of a disk's directory, if it can.
fn listen(ear: Option<&OwnedFd>, live: &Attached) -> Heard {
    let Some((descriptor, _)) = live.followed() else {
        return Heard::ByTheKernel;
    };
    let heard = ear.zip(descriptor.parent()).is_some_and(|(ear, folder)| {
        let changes = WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE;
        // Of its image, and of the directory itself.
        let goes = WatchFlags::MOVED_FROM | WatchFlags::DELETE | WatchFlags::MOVE_SELF;
        let changes = changes | goes | WatchFlags::DELETE_SELF;
        is_local(folder) && inotify::add_watch(ear, folder, changes).is_ok()
    });
    if heard {
        Heard::ByTheKernel
    } else {
        Heard::ByLooking
    }
}

fn is_local(folder: &Path) -> bool {
    rustix::fs::statfs(folder).is_ok_and(|told| {
        // Its type differs between architectures; the numbers do not.
        u64::try_from(told.f_type).is_ok_and(|kind| LOCAL.contains(&kind))
    })
}

/// Where the kernel tells, and a thread that listens there: `looks` is told of every change. Which it was does not
/// matter, since a look at all is cheap. Without it, everything is looked at.
fn ear(looks: &Arc<Looks>) -> Option<Arc<OwnedFd>> {
    let begin = || {
        let ear = Arc::new(inotify::init(CreateFlags::CLOEXEC)?);
        let (listening, looks) = (Arc::clone(&ear), Arc::clone(looks));
        std::thread::Builder::new()
            .name("changes".to_owned())
            .spawn(move || {
                let mut words = [0; 4096];
                while rustix::io::read(&listening, &mut words).is_ok_and(|read| read > 0) {
                    looks.heard.notify_one();
                }
            })?;
        Ok::<_, std::io::Error>(ear)
    };
    begin()
        .inspect_err(
            |error| tracing::warn!(%error, "changes of disks are only found by regular scans"),
        )
        .ok()
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // A table of names is whole between any two lines that change it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
