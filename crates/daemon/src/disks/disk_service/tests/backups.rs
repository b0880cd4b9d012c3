//! Backups of a disk on a pool: full and increments while it is written, restored and compared, and views that are in use.

use super::pooled::{attach, create, create_pool, detach};
use super::*;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_api::backup::{
    BackupContent, BackupCreate, BackupRestore, BackupVerify, RestoreDisk, RestoreFile, RestoreTo,
};
use tidegate_api::job::{Job, JobState};
use tidegate_api::snapshot::{SnapshotCreate, SnapshotName};

use crate::disks::copy::session::DiskSession;
use crate::disks::copy::{Sink, Source};

/// Of the disk, in bytes: it ends within a sub-block.
const DISK: u64 = (12 << 20) + 4096;

fn session(stage: &Stage, disk: &str) -> DiskSession {
    let live = stage.disk_service.live().get(&name(disk)).unwrap();
    let (socket, negotiated, session) = DiskSession::pair(live.export_info()).unwrap();
    let (kind, socket) = (api::ClientKind::Nbd, socket.into());
    live.serve_nbd(socket, &negotiated, kind, "test", Box::new(()))
        .unwrap();
    session
}

fn content(source: &dyn Source) -> Vec<u8> {
    let mut bytes = vec![0xff; usize::try_from(source.size()).unwrap()];
    source.read(&mut bytes, 0).unwrap();
    bytes
}

fn snapshot(stage: &Stage, disk: &str, snapshot: &str) {
    let order = SnapshotCreate {
        name: name(snapshot),
        with: Vec::new(),
    };
    stage
        .disk_service
        .take_snapshots(&name(disk), &order)
        .unwrap();
}

fn names(stage: &Stage, disk: &str) -> Vec<String> {
    let list = stage.disk_service.snapshots(&name(disk)).unwrap();
    let names = list.snapshots.iter();
    names.map(|it| it.name.to_string()).collect()
}

impl Stage {
    fn backup_dir(&self) -> PathBuf {
        self.place.path().join("backups")
    }

    fn ended_well(&self, job: Outcome<Job>) {
        let job = self.wait_for(job.unwrap());
        assert_eq!(job.state, JobState::Done, "{:?}", job.problem);
    }

    fn wait_for(&self, job: Job) -> Job {
        loop {
            let job = self.disk_service.jobs.job(job.id).unwrap();
            if job.state.is_over() {
                return job;
            }
            std::thread::yield_now();
        }
    }

    fn back_up(&self, order: BackupCreate) -> Outcome<Job> {
        let _context = self.runtime.enter();
        self.disk_service.back_up(&name("vm1"), order)
    }

    fn restore(&self, at: Option<&str>, to: RestoreTo) -> Outcome<Job> {
        let _context = self.runtime.enter();
        self.disk_service.restore(BackupRestore {
            dir: self.backup_dir(),
            at: at.map(str::to_owned),
            to,
        })
    }

    /// The bytes of a backup.
    fn restored(&self, at: &str) -> Vec<u8> {
        let file = self.place.path().join("restored.img");
        let to = RestoreFile {
            file: file.clone(),
            format: None,
            existing: Existing::Replace,
        };
        self.ended_well(self.restore(Some(at), RestoreTo::File(to)));
        std::fs::read(file).unwrap()
    }
}

/// Ends the load when dropped, also if the test fails.
struct EndsLoad<'a>(&'a AtomicBool);

impl Drop for EndsLoad<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn order(stage: &Stage) -> BackupCreate {
    BackupCreate {
        dir: stage.backup_dir(),
        content: BackupContent::Suitable,
        since: None,
        snapshot: None,
    }
}

#[test]
fn a_full_backup_and_ten_increments_under_load_are_restored_as_the_snapshots_were() {
    let stage = stage();
    create_pool(&stage, &["a", "b"]);
    create(&stage, "vm1", DISK).unwrap();
    attach(&stage, "vm1");
    let mut load = session(&stage, "vm1");
    load.write(&vec![1; 9 << 20], 0).unwrap();
    let is_over = AtomicBool::new(false);
    let mut snapshots = Vec::new();
    std::thread::scope(|scope| {
        let _ended = EndsLoad(&is_over);
        let guest = scope.spawn(|| {
            let mut random = 7_u64;
            while !is_over.load(Ordering::Relaxed) {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let at = (random >> 33) % (DISK / 4096 - 4) * 4096;
                let byte = u8::try_from(random >> 60).unwrap();
                load.write(&vec![byte; 4096 * 3], at).unwrap();
            }
            load.flush().unwrap();
        });
        for round in 0..=10 {
            let taken = format!("s{round}");
            snapshot(&stage, "vm1", &taken);
            let named = BackupCreate {
                snapshot: Some(name(&taken)),
                ..order(&stage)
            };
            stage.ended_well(stage.back_up(named));
            let of = SnapshotName {
                disk: name("vm1"),
                snapshot: name(&taken),
            };
            let view = stage.disk_service.views().open(&of).unwrap();
            snapshots.push(content(&view.reader().unwrap()));
        }
        is_over.store(true, Ordering::Relaxed);
        guest.join().unwrap();
    });
    let list = stage.disk_service.backups(&stage.backup_dir()).unwrap();
    let bases: Vec<_> = list.backups.iter().map(|backup| backup.base).collect();
    assert_eq!(bases[0], None);
    assert_eq!(bases[1..], (1..=10).map(Some).collect::<Vec<_>>());
    for (number, expected) in snapshots.iter().enumerate() {
        assert!(
            stage.restored(&format!("s{number}")) == *expected,
            "backup {number}"
        );
    }
    // As another disk on the pool.
    let to = RestoreDisk {
        name: name("vm2"),
        datastore: Some(name("p")),
    };
    stage.ended_well(stage.restore(Some("s7"), RestoreTo::Disk(to)));
    attach(&stage, "vm2");
    assert!(content(&session(&stage, "vm2")) == snapshots[7]);
}

#[test]
fn a_backup_takes_its_own_snapshot_and_keeps_only_the_one_that_the_next_increment_needs() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    create(&stage, "vm1", DISK).unwrap();
    attach(&stage, "vm1");
    let mut guest = session(&stage, "vm1");
    for round in 1..=3 {
        guest.write(&[round; 4096], 1 << 20).unwrap();
        stage.ended_well(stage.back_up(order(&stage)));
        assert_eq!(names(&stage, "vm1").len(), 1, "after backup {round}");
    }
    let list = stage.disk_service.backups(&stage.backup_dir()).unwrap();
    let newest = list.backups.last().unwrap();
    assert_eq!((newest.base, newest.covered_bytes), (Some(2), 64 << 10));
    assert_eq!(names(&stage, "vm1"), [newest.snapshot.to_string()]);
    assert_eq!(stage.restored("2")[1 << 20], 2);
    // Without its snapshot an increment is refused, and a full one is not.
    stage
        .disk_service
        .delete_snapshot(&name("vm1"), &newest.snapshot)
        .unwrap();
    let refused = stage.back_up(order(&stage)).unwrap_err();
    assert!(refused.remedy.unwrap().contains("--full"));
    let full = BackupCreate {
        content: BackupContent::Full,
        ..order(&stage)
    };
    stage.ended_well(stage.back_up(full));
    assert!(stage.restored("4") == content(&guest));
    // A disk that is detached is backed up, too.
    drop(guest);
    detach(&stage, "vm1");
    stage.ended_well(stage.back_up(order(&stage)));
    let verify = BackupVerify {
        dir: stage.backup_dir(),
        at: None,
    };
    let context = stage.runtime.enter();
    let job = stage.disk_service.verify_backups(verify);
    drop(context);
    stage.ended_well(job);
}

#[test]
fn what_a_kill_during_a_backup_left_is_deleted_and_no_change_is_lost() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    create(&stage, "vm1", DISK).unwrap();
    attach(&stage, "vm1");
    let mut guest = session(&stage, "vm1");
    guest.write(&[1; 65536], 0).unwrap();
    stage.ended_well(stage.back_up(order(&stage)));
    guest.write(&[2; 65536], 1 << 20).unwrap();
    // As a kill after the snapshot was taken leaves it.
    let left = name("backup-left");
    {
        let uuid = stage
            .disk_service
            .find(&name("vm1"))
            .unwrap()
            .descriptor
            .uuid;
        let dir = stage.backup_dir();
        let folder = crate::disks::backups::folder::BackupFolder::begin(&dir, &name("vm1"), uuid);
        folder.unwrap().will_take(Some(left.clone())).unwrap();
    }
    snapshot(&stage, "vm1", left.as_str());
    guest.write(&[3; 65536], 2 << 20).unwrap();
    assert_eq!(names(&stage, "vm1").len(), 2);
    stage.ended_well(stage.back_up(order(&stage)));
    assert_eq!(
        names(&stage, "vm1").len(),
        1,
        "the snapshot that was left is deleted"
    );
    assert!(stage.restored("2") == content(&guest));
}

#[test]
fn a_snapshot_that_is_read_is_not_deleted_and_clients_share_its_view() {
    let stage = stage();
    create_pool(&stage, &["a"]);
    create(&stage, "vm1", DISK).unwrap();
    attach(&stage, "vm1");
    let mut guest = session(&stage, "vm1");
    guest.write(&[1; 65536], 0).unwrap();
    snapshot(&stage, "vm1", "monday");
    guest.write(&[2; 65536], 3 << 20).unwrap();
    snapshot(&stage, "vm1", "tuesday");
    guest.write(&[3; 65536], 0).unwrap();
    let views = stage.disk_service.views();
    let of = |snapshot: &str| SnapshotName {
        disk: name("vm1"),
        snapshot: name(snapshot),
    };
    assert_eq!(views.names(), [of("monday"), of("tuesday")]);
    let info = views.export_info(&of("tuesday")).unwrap();
    assert_eq!(info.bitmaps, ["monday"]);
    assert!(views.export_info(&of("monday")).unwrap().bitmaps.is_empty());
    assert!(views.open(&of("friday")).is_err());
    let view = views.open(&of("tuesday")).unwrap();
    assert!(Arc::ptr_eq(&view, &views.open(&of("tuesday")).unwrap()));
    let reader = view.reader().unwrap();
    assert_eq!(content(&reader)[..65536], [1; 65536]);
    let changed = view.bitmap("monday").unwrap();
    let expected: Vec<_> = std::iter::once(3 << 20..(3 << 20) + 65536).collect();
    assert_eq!(changed.ranges(), expected);
    assert!(view.bitmap("friday").is_err());
    let delete = |snapshot: &str| {
        stage
            .disk_service
            .delete_snapshot(&name("vm1"), &name(snapshot))
    };
    let refused = delete("tuesday").unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
    delete("monday").unwrap();
    assert_eq!(
        content(&reader)[..65536],
        [1; 65536],
        "an older one does not matter"
    );
    drop((reader, view));
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while views.count() > 0 {
        assert!(std::time::Instant::now() < until, "the view is closed");
        std::thread::yield_now();
    }
    let reserved = views.reserve(&of("tuesday")).unwrap();
    assert!(views.open(&of("tuesday")).is_err(), "it is being deleted");
    drop(reserved);
    delete("tuesday").unwrap();
    assert!(names(&stage, "vm1").is_empty());
}
