//! Detects when another host or program changes a disk that is attached here.
//!
//! On a local file system the kernel reports changes. On a network file system it cannot, so descriptors are polled.
//! The disk_service does the checks on threads that may block, one for each datastore. So a datastore that hangs does
//! not delay changes on others.
//!
//! # Always true
//! - There are no wakeups while no disk is attached, or while all attached disks are on local file systems and
//!   unchanged.
//! - At most one check of a datastore is in progress; a request for another meanwhile is served afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tidegate_api::name::Name;
use tokio::sync::Notify;

use crate::disks::attached::Attached;
use crate::disks::disk_service::DiskService;
use crate::store::Identity;

/// How often descriptors are polled if the kernel cannot report changes: a change takes effect in well under a second.
const EVERY: Duration = Duration::from_millis(400);

/// File systems on which the kernel sees every change: ext4, XFS, Btrfs, tmpfs, overlayfs, F2FS, bcachefs, ZFS.
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

/// State that all checks share.
#[derive(Default)]
struct Looks {
    /// Datastores that are being checked, and whether another check was requested meanwhile.
    under_way: Mutex<BTreeMap<Name, bool>>,
    /// Datastores whose changes the kernel reports.
    told: Mutex<BTreeSet<Name>>,
    /// Notified when the kernel reports a change.
    heard: Notify,
    /// Notified when a check ends during which another was requested.
    again: Notify,
}

/// Watches until it is dropped.
pub(crate) async fn watch(disk_service: Arc<DiskService>) {
    watch_every(disk_service, EVERY).await;
}

/// Watches, and polls at this interval what the kernel does not report.
pub(crate) async fn watch_every(disk_service: Arc<DiskService>, every: Duration) {
    let looks = Arc::new(Looks::default());
    let ear = ear(&looks);
    loop {
        disk_service.live().one_is_attached().await;
        // Requested before the check: a disk that is attached during it is then checked too.
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

/// Starts a check of every datastore with attached disks. Returns whether the kernel reports the changes of all of
/// them.
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
            let listen = |live| listen(&disk_service, ear.as_ref(), live);
            let told = disks.iter().all(|live| listen(live) == Heard::ByTheKernel);
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

/// How changes of a disk are detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    ByTheKernel,
    ByLooking,
}

/// Registers a disk's directory, and those of its members' images, for change notifications of the kernel, if it supports that.
fn listen(disk_service: &DiskService, ear: Option<&Arc<OwnedFd>>, live: &Attached) -> Heard {
    let Some((descriptor, _)) = live.followed() else {
        return Heard::ByTheKernel;
    };
    let images = live.images().into_iter();
    // The place of a device does not change.
    let images = images.filter(|image| !matches!(image.identity, Identity::Device(_)));
    let images = images.map(|image| (image.datastore, image.path));
    let paths = images.chain([(live.datastore().clone(), descriptor)]);
    let folders: BTreeSet<_> = paths
        .filter_map(|(on, path)| Some((on, path.parent()?.to_owned())))
        .collect();
    let hears = |(on, folder): (Name, PathBuf)| {
        let Some(ear) = ear.cloned() else {
            return false;
        };
        match on == *live.datastore() {
            true => hear(&ear, &folder),
            // It may hang.
            false => disk_service.within_time(&on, move || hear(&ear, &folder)),
        }
    };
    if folders.into_iter().all(hears) {
        Heard::ByTheKernel
    } else {
        Heard::ByLooking
    }
}

/// Registers a directory, if the kernel sees every change there.
fn hear(ear: &OwnedFd, folder: &Path) -> bool {
    let changes = WatchFlags::MOVED_TO | WatchFlags::CLOSE_WRITE;
    // For an image, and for the directory itself.
    let goes = WatchFlags::MOVED_FROM | WatchFlags::DELETE | WatchFlags::MOVE_SELF;
    let changes = changes | goes | WatchFlags::DELETE_SELF;
    is_local(folder) && inotify::add_watch(ear, folder, changes).is_ok()
}

fn is_local(folder: &Path) -> bool {
    rustix::fs::statfs(folder).is_ok_and(|told| {
        // Its type differs between architectures; the values are the same.
        u64::try_from(told.f_type).is_ok_and(|kind| LOCAL.contains(&kind))
    })
}

/// The inotify descriptor, and a thread that reads it and notifies `looks` of every change. The changed file does not
/// matter, since a check is cheap. Without it, everything is polled.
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
    // Every change to a table of names is complete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
