//! The routes of the REST interface with their types, shared by client and daemon.
//!
//! A client fills in a route's path with [`Route::url`] and sends a `Q`. It expects an `A`, or a
//! [`crate::problem::Problem`] with a status of 400 or more. The daemon's handlers declare the same methods and paths,
//! and a test of the daemon compares them with [`ALL`].
//!
//! # Source
//! HTTP/1.1 over a Unix socket. `GET` changes nothing; `PUT`, `PATCH` and `DELETE` can be repeated.

use std::marker::PhantomData;

use crate::backup::{BackupCreate, BackupList, BackupRestore, BackupVerify};
use crate::cache::{Cache, CacheCreate, CacheDeviceAdd, CacheFlush, CacheList, DiskFlashSet};
use crate::curve::DiskCurve;
use crate::datastore::{Datastore, DatastoreAdd, DatastoreList, DatastoreSet};
use crate::disk::{
    Disk, DiskAttach, DiskCreate, DiskDetach, DiskList, DiskResize, DiskSet, Snippet,
};
use crate::events::{Event, EventList};
use crate::explain::Explanation;
use crate::group::{Group, GroupList, GroupSet};
use crate::job::{DiskExport, DiskImport, Job, JobList};
use crate::layout::{DiskMove, DiskScrub, MemberAdd, MemberList};
use crate::pool::{
    Pool, PoolCheck, PoolCreate, PoolDestroy, PoolDestroyed, PoolGiveUp, PoolGroupAdd, PoolList,
};
use crate::snapshot::{
    DiskClone, DiskRollback, Snapshot, SnapshotCreate, SnapshotList, SnapshotsTaken,
};
use crate::stats::{DiskStats, Sample};
use crate::status::Status;
use crate::thread::{DiskThread, DiskThreadSet, Thread, ThreadList};
use crate::tree::{TreeChange, TreeNode, TreeSet};

/// An HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Reads.
    Get,
    /// Creates or commands.
    Post,
    /// Sets.
    Put,
    /// Changes parts.
    Patch,
    /// Removes.
    Delete,
}

impl Method {
    /// The name in HTTP.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Patch => "PATCH",
            Method::Delete => "DELETE",
        }
    }
}

/// A request or a response without a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nothing;

/// A method and a path, with the types of the request (`Q`) and of the response (`A`).
#[derive(Debug)]
pub struct Route<Q, A> {
    /// The HTTP method.
    pub method: Method,
    /// The path, with `{...}` for each argument.
    pub path: &'static str,
    types: PhantomData<fn(Q) -> A>,
}

impl<Q, A> Clone for Route<Q, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<Q, A> Copy for Route<Q, A> {}

impl<Q, A> Route<Q, A> {
    const fn new(method: Method, path: &'static str) -> Route<Q, A> {
        Route {
            method,
            path,
            types: PhantomData,
        }
    }

    /// The path with its arguments filled in, in order, each percent-encoded.
    ///
    /// # Panics
    /// When the number of arguments does not match the path.
    pub fn url(&self, arguments: &[&str]) -> String {
        let mut url = String::new();
        let mut arguments = arguments.iter();
        let mut rest = self.path;
        while let Some((before, after)) = rest.split_once('{') {
            let (_, after) = after.split_once('}').expect("a path closes its braces");
            url.push_str(before);
            url.push_str(&encode(
                arguments
                    .next()
                    .expect("an argument for each place in the path"),
            ));
            rest = after;
        }
        assert!(
            arguments.next().is_none(),
            "a place in the path for each argument"
        );
        url.push_str(rest);
        url
    }
}

/// Percent-encodes all but the unreserved characters of a URL (RFC 3986).
pub fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

macro_rules! routes {
    ($($(#[$doc:meta])* $name:ident: $method:ident $path:literal, $q:ty => $a:ty;)*) => {
        $($(#[$doc])* pub const $name: Route<$q, $a> = Route::new(Method::$method, $path);)*

        /// Method and path of every route. The daemon's tests compare them with its handlers.
        pub const ALL: &[(Method, &str)] = &[$((Method::$method, $path)),*];
    };
}

routes! {
    /// The daemon's state.
    STATUS: Get "/v1/status", Nothing => Status;
    /// All datastores.
    DATASTORES: Get "/v1/datastores", Nothing => DatastoreList;
    /// Adds a datastore.
    DATASTORE_ADD: Post "/v1/datastores", DatastoreAdd => Datastore;
    /// One datastore, by name.
    DATASTORE: Get "/v1/datastores/{name}", Nothing => Datastore;
    /// Changes a datastore's settings.
    DATASTORE_SET: Patch "/v1/datastores/{name}", DatastoreSet => Datastore;
    /// Removes a datastore from the list. Its contents are not changed.
    DATASTORE_REMOVE: Delete "/v1/datastores/{name}", Nothing => Nothing;
    /// All disks.
    DISKS: Get "/v1/disks", Nothing => DiskList;
    /// Creates a disk.
    DISK_CREATE: Post "/v1/disks", DiskCreate => Disk;
    /// One disk, by name.
    DISK: Get "/v1/disks/{name}", Nothing => Disk;
    /// Changes a disk.
    DISK_SET: Patch "/v1/disks/{name}", DiskSet => Disk;
    /// The members of a disk.
    DISK_MEMBERS: Get "/v1/disks/{name}/members", Nothing => MemberList;
    /// Gives a disk a member in an empty place.
    DISK_MEMBER_ADD: Post "/v1/disks/{name}/members", MemberAdd => Job;
    /// Replaces a member of a disk.
    DISK_MEMBER_REPLACE: Post "/v1/disks/{name}/members/{member}/replace", MemberAdd => Job;
    /// Removes a member of a disk and its data.
    DISK_MEMBER_REMOVE: Delete "/v1/disks/{name}/members/{member}", Nothing => Nothing;
    /// Gives a disk a flash cache, changes it, or takes it off. Returns a job.
    DISK_FLASH: Post "/v1/disks/{name}/flash", DiskFlashSet => Job;
    /// All flash caches.
    CACHES: Get "/v1/caches", Nothing => CacheList;
    /// Creates a flash cache.
    CACHE_CREATE: Post "/v1/caches", CacheCreate => Cache;
    /// One flash cache, by name.
    CACHE: Get "/v1/caches/{name}", Nothing => Cache;
    /// Removes a flash cache that no disk uses.
    CACHE_REMOVE: Delete "/v1/caches/{name}", Nothing => Nothing;
    /// Brings to the datastores what only a flash cache has. Returns a job.
    CACHE_FLUSH: Post "/v1/caches/{name}/flush", CacheFlush => Job;
    /// Gives a flash cache a second device. Returns a job.
    CACHE_DEVICE_ADD: Post "/v1/caches/{name}/devices", CacheDeviceAdd => Job;
    /// Replaces a device of a flash cache. Returns a job.
    CACHE_DEVICE_REPLACE: Post "/v1/caches/{name}/devices/{device}/replace", CacheDeviceAdd => Job;
    /// Removes one of two devices of a flash cache.
    CACHE_DEVICE_REMOVE: Delete "/v1/caches/{name}/devices/{device}", Nothing => Nothing;
    /// All pools.
    POOLS: Get "/v1/pools", Nothing => PoolList;
    /// Creates a pool.
    POOL_CREATE: Post "/v1/pools", PoolCreate => Pool;
    /// One pool, by name.
    POOL: Get "/v1/pools/{name}", Nothing => Pool;
    /// Gives a pool another group.
    POOL_ADD_GROUP: Post "/v1/pools/{name}/groups", PoolGroupAdd => Pool;
    /// Uses a pool without a member that is lost.
    POOL_GIVE_UP: Post "/v1/pools/{name}/give-up", PoolGiveUp => Pool;
    /// Checks a pool's catalog.
    POOL_CHECK: Get "/v1/pools/{name}/check", Nothing => PoolCheck;
    /// Destroys a pool without disks.
    POOL_DESTROY: Post "/v1/pools/{name}/destroy", PoolDestroy => PoolDestroyed;
    /// Compares the members of a disk.
    DISK_SCRUB: Post "/v1/disks/{name}/scrub", DiskScrub => Job;
    /// Moves a disk to another datastore.
    DISK_MOVE: Post "/v1/disks/{name}/move", DiskMove => Job;
    /// The snapshots of a disk.
    SNAPSHOTS: Get "/v1/disks/{name}/snapshots", Nothing => SnapshotList;
    /// Takes a snapshot of a disk, and of others at the same moment.
    SNAPSHOT_CREATE: Post "/v1/disks/{name}/snapshots", SnapshotCreate => SnapshotsTaken;
    /// One snapshot of a disk.
    SNAPSHOT: Get "/v1/disks/{name}/snapshots/{snapshot}", Nothing => Snapshot;
    /// Deletes a snapshot.
    SNAPSHOT_DELETE: Delete "/v1/disks/{name}/snapshots/{snapshot}", Nothing => Nothing;
    /// Gives a disk the content of one of its snapshots.
    DISK_ROLLBACK: Post "/v1/disks/{name}/rollback", DiskRollback => Disk;
    /// Makes a disk of a snapshot.
    DISK_CLONE: Post "/v1/disks/{name}/clone", DiskClone => Disk;
    /// Deletes a disk and its data. `?snapshots=delete` deletes its snapshots too; without it, a disk with snapshots is refused.
    DISK_DELETE: Delete "/v1/disks/{name}", Nothing => Nothing;
    /// Attaches a disk.
    DISK_ATTACH: Post "/v1/disks/{name}/attach", DiskAttach => Disk;
    /// Detaches a disk.
    DISK_DETACH: Post "/v1/disks/{name}/detach", DiskDetach => Disk;
    /// Changes a disk's size.
    DISK_RESIZE: Post "/v1/disks/{name}/resize", DiskResize => Disk;
    /// What a disk has done since it was attached.
    DISK_STATS: Get "/v1/disks/{name}/stats", Nothing => DiskStats;
    /// The miss-ratio curve of an attached disk.
    DISK_CURVE: Get "/v1/disks/{name}/curve", Nothing => DiskCurve;
    /// Explains a disk's performance over `?last=30s` (1s to 5min; default 30s).
    DISK_EXPLAIN: Get "/v1/disks/{name}/explain", Nothing => Explanation;
    /// Text that connects a disk to `qemu`, `libvirt`, `cloud-hypervisor`, `nbd` or `fio`.
    DISK_SNIPPET: Get "/v1/disks/{name}/snippets/{for}", Nothing => Snippet;
    /// Writes a disk to an image file. Returns a job.
    DISK_EXPORT: Post "/v1/disks/{name}/export", DiskExport => Job;
    /// Backs a disk up to a directory. Returns a job.
    BACKUP_CREATE: Post "/v1/disks/{name}/backup", BackupCreate => Job;
    /// The backups of a directory, by its path.
    BACKUPS: Get "/v1/backups/{dir}", Nothing => BackupList;
    /// Compares the files of backups with their checksums. Returns a job.
    BACKUP_VERIFY: Post "/v1/backups/verify", BackupVerify => Job;
    /// Restores a backup to a file or a new disk. Returns a job.
    BACKUP_RESTORE: Post "/v1/backups/restore", BackupRestore => Job;
    /// Creates a disk from an image file. Returns a job.
    DISK_IMPORT: Post "/v1/import", DiskImport => Job;
    /// All groups of disks.
    GROUPS: Get "/v1/groups", Nothing => GroupList;
    /// One group, by name.
    GROUP: Get "/v1/groups/{name}", Nothing => Group;
    /// Changes a group, or creates it.
    GROUP_SET: Patch "/v1/groups/{name}", GroupSet => Group;
    /// Removes a group without attached disks.
    GROUP_REMOVE: Delete "/v1/groups/{name}", Nothing => Nothing;
    /// All jobs.
    JOBS: Get "/v1/jobs", Nothing => JobList;
    /// One job, by number.
    JOB: Get "/v1/jobs/{id}", Nothing => Job;
    /// Cancels a job if it is still running.
    JOB_CANCEL: Delete "/v1/jobs/{id}", Nothing => Job;
    /// All I/O threads.
    THREADS: Get "/v1/threads", Nothing => ThreadList;
    /// Takes a parked I/O thread into use.
    THREAD_CREATE: Post "/v1/threads", Nothing => Thread;
    /// One I/O thread, by number.
    THREAD: Get "/v1/threads/{thread}", Nothing => Thread;
    /// Parks a locked I/O thread that has no disks.
    THREAD_REMOVE: Delete "/v1/threads/{thread}", Nothing => Nothing;
    /// Locks an I/O thread: it gets no more disks.
    THREAD_LOCK: Post "/v1/threads/{thread}/lock", Nothing => Thread;
    /// Unlocks an I/O thread.
    THREAD_UNLOCK: Post "/v1/threads/{thread}/unlock", Nothing => Thread;
    /// Moves an attached disk to another I/O thread.
    DISK_THREAD: Post "/v1/disks/{name}/thread", DiskThreadSet => DiskThread;
    /// A node of the control tree. `?watch` makes it server-sent events named `node`, one for each change that is seen;
    /// `interval_ms` (100 to 60000; default 1000) says how often it is looked for.
    TREE: Get "/v1/tree/{path}", Nothing => TreeNode;
    /// Writes a file of the control tree.
    TREE_SET: Put "/v1/tree/{path}", TreeSet => TreeChange;
    /// All counters of disks and I/O threads since they began.
    STATS: Get "/v1/stats", Nothing => Sample;
    /// The same as server-sent events named `sample`, each covering the time since the previous one. `?interval_ms=N`
    /// sets the interval (100 to 60000; default 1000).
    STATS_STREAM: Get "/v1/stats/stream", Nothing => Sample;
    /// Events of datastores, as server-sent events named `event`: first the stored ones, then each new one. Their ids
    /// are their numbers; `Last-Event-ID` resumes after one.
    EVENTS: Get "/v1/events", Nothing => Event;
    /// The stored events.
    EVENTS_KEPT: Get "/v1/events/kept", Nothing => EventList;
    /// Prometheus metrics, as text.
    METRICS: Get "/metrics", Nothing => Nothing;
    /// This interface, as OpenAPI 3.1.
    OPENAPI: Get "/openapi.json", Nothing => Nothing;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_takes_its_arguments_in_order_and_encoded() {
        assert_eq!(
            DISK_SNIPPET.url(&["db1", "qemu"]),
            "/v1/disks/db1/snippets/qemu"
        );
        assert_eq!(DISK.url(&["a/../b c"]), "/v1/disks/a%2F..%2Fb%20c");
        assert_eq!(STATUS.url(&[]), "/v1/status");
    }

    #[test]
    fn no_route_is_listed_twice() {
        for (nth, route) in ALL.iter().enumerate() {
            assert!(!ALL[..nth].contains(route), "{route:?}");
        }
    }
}
