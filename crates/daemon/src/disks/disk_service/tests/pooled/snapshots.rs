//! Snapshots, clones and rollbacks of disks on pools.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use tidegate_api::snapshot::{DiskClone, DiskRollback, SnapshotCreate, Snapshots};

impl Stage {
    fn snap(&self, disk: &str, snapshot: &str, with: &[&str]) -> Outcome<()> {
        let order = SnapshotCreate {
            name: name(snapshot),
            with: with.iter().map(|disk| name(disk)).collect(),
        };
        self.disk_service
            .take_snapshots(&name(disk), &order)
            .map(drop)
    }

    fn remove(&self, disk: &str, snapshot: &str) -> Outcome<()> {
        self.disk_service
            .delete_snapshot(&name(disk), &name(snapshot))
    }

    fn roll(&self, disk: &str, snapshot: &str) -> Outcome<api::Disk> {
        let _context = self.runtime.enter();
        let order = DiskRollback {
            snapshot: name(snapshot),
            clients: Clients::Keep,
        };
        self.disk_service.roll_back(&name(disk), &order)
    }

    fn make(&self, disk: &str, snapshot: &str, new: &str) -> Outcome<api::Disk> {
        let order = DiskClone {
            snapshot: name(snapshot),
            name: name(new),
        };
        self.disk_service.clone_disk(&name(disk), &order)
    }

    fn names(&self, disk: &str) -> Vec<String> {
        let list = self.disk_service.snapshots(&name(disk)).unwrap().snapshots;
        list.iter().map(|it| it.name.to_string()).collect()
    }

    /// The generations of an attached disk that are not going.
    fn generations(&self, disk: &str) -> usize {
        let live = self.disk_service.live.get(&name(disk)).unwrap();
        let report = live.layout().unwrap().pool.unwrap();
        report.generations.iter().filter(|it| !it.is_going).count()
    }

    /// Writes a mebibyte of an attached disk.
    fn fill(&self, disk: &str, at: u64, byte: u8) {
        assert_eq!(Client::of(self, disk).write(at << 20, byte), 0);
    }

    /// Whether the first mebibytes of an attached disk have these bytes.
    fn has(&self, disk: &str, bytes: &[u8]) -> bool {
        let mut client = Client::of(self, disk);
        (0..)
            .zip(bytes)
            .all(|(at, byte)| client.has(at << 20, *byte))
    }
}

fn with_disk() -> Stage {
    let stage = stage();
    create_pool(&stage, &["a", "b"]);
    create(&stage, "vm1", 1 << 30).unwrap();
    stage
}

#[test]
fn snapshots_of_a_pool_keep_what_the_disk_had_and_rollbacks_bring_it_back() {
    let stage = with_disk();
    stage.snap("vm1", "empty", &[]).unwrap();
    attach(&stage, "vm1");
    stage.fill("vm1", 0, 1);
    stage.snap("vm1", "one", &[]).unwrap();
    stage.fill("vm1", 0, 2);
    stage.fill("vm1", 1, 2);
    let exists = stage.snap("vm1", "one", &[]).unwrap_err();
    assert_eq!(exists.code, ProblemCode::Exists, "{exists}");
    detach(&stage, "vm1");
    stage.snap("vm1", "two", &[]).unwrap();
    attach(&stage, "vm1");
    stage.fill("vm1", 1, 3);
    assert!(stage.has("vm1", &[2, 3]));
    let disk = stage.roll("vm1", "one").unwrap();
    assert!(disk.attached && !disk.detaching, "{disk:?}");
    assert!(stage.has("vm1", &[1, 0]));
    stage.fill("vm1", 0, 4);
    detach(&stage, "vm1");
    stage.roll("vm1", "two").unwrap();
    attach(&stage, "vm1");
    assert!(stage.has("vm1", &[2, 2]));
    stage.roll("vm1", "empty").unwrap();
    assert!(stage.has("vm1", &[0, 0]));
    let list = stage.disk_service.snapshots(&name("vm1")).unwrap();
    assert_eq!(list.latest, Some(name("empty")));
    let parents: Vec<_> = list.snapshots.iter().map(|it| it.parent.clone()).collect();
    assert_eq!(parents, [None, Some(name("empty")), Some(name("one"))]);
    assert_eq!(list.snapshots[1].own_bytes, Some(1 << 20));
    stage.remove("vm1", "one").unwrap();
    assert_eq!(stage.names("vm1"), ["empty", "two"]);
    stage.roll("vm1", "two").unwrap();
    assert!(stage.has("vm1", &[2, 2]));
    let gone = stage.roll("vm1", "one").unwrap_err();
    assert_eq!(gone.code, ProblemCode::NotFound, "{gone}");
    assert_eq!(
        stage.disk_service.check_pool(&name("p")).unwrap().findings,
        Vec::<String>::new()
    );
}

#[test]
fn what_a_crash_left_of_a_snapshot_or_a_deletion_is_removed_at_the_next_attach() {
    let stage = with_disk();
    attach(&stage, "vm1");
    stage.fill("vm1", 0, 1);
    stage.snap("vm1", "one", &[]).unwrap();
    stage.fill("vm1", 0, 2);
    let live = stage.disk_service.live.get(&name("vm1")).unwrap();
    // The generation is in the root, and its name is not in the catalog.
    live.order(LayoutOrder::TakeSnapshot).unwrap();
    drop(live);
    stage.fill("vm1", 0, 3);
    // The name is gone, and the generation is not.
    let uuid = stage
        .disk_service
        .find(&name("vm1"))
        .unwrap()
        .descriptor
        .uuid;
    let removed = stage
        .disk_service
        .pools
        .with(&name("p"), |open| open.catalog.remove_snapshot(uuid, "one"));
    removed.unwrap();
    assert_eq!(stage.generations("vm1"), 3);
    detach(&stage, "vm1");
    attach(&stage, "vm1");
    assert_eq!(stage.generations("vm1"), 1);
    assert!(stage.has("vm1", &[3]) && stage.names("vm1").is_empty());
}

#[test]
fn a_clone_needs_its_parent_and_is_a_disk_of_its_own() {
    let stage = with_disk();
    attach(&stage, "vm1");
    stage.fill("vm1", 0, 1);
    stage.fill("vm1", 1, 1);
    stage.snap("vm1", "one", &[]).unwrap();
    stage.fill("vm1", 0, 2);
    let made = stage.make("vm1", "one", "vm2").unwrap();
    assert_eq!((made.datastore, made.size_bytes), (name("p"), 1 << 30));
    attach(&stage, "vm2");
    stage.fill("vm2", 1, 3);
    assert!(stage.has("vm2", &[1, 3]) && stage.has("vm1", &[2, 1]));
    stage.snap("vm2", "deep", &[]).unwrap();
    stage.make("vm2", "deep", "vm3").unwrap();
    attach(&stage, "vm3");
    assert!(stage.has("vm3", &[1, 3, 0]));
    let listed = stage
        .disk_service
        .snapshot(&name("vm1"), &name("one"))
        .unwrap();
    assert_eq!(listed.clones, [name("vm2")]);
    let refused = stage.remove("vm1", "one").unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy);
    assert!(refused.to_string().contains("vm2"), "{refused}");
    assert_eq!(stage.names("vm1"), ["one"]);
    for disk in ["vm1", "vm2", "vm3"] {
        detach(&stage, disk);
    }
    // Not even by force.
    let delete = |disk: &str| {
        let service = &stage.disk_service;
        service.delete_with(&name(disk), Snapshots::Delete)
    };
    let refused = delete("vm1").unwrap_err();
    assert!(refused.to_string().contains("vm2"), "{refused}");
    let exists = stage.make("vm1", "one", "vm3").unwrap_err();
    assert_eq!(exists.code, ProblemCode::Exists, "{exists}");
    stage.disk_service.pools.end();
    attach(&stage, "vm3");
    assert!(stage.has("vm3", &[1, 3]));
    detach(&stage, "vm3");
    delete("vm3").unwrap();
    delete("vm2").unwrap();
    let keep = stage.disk_service.delete(&name("vm1")).unwrap_err();
    assert!(keep.to_string().contains("--snapshots"), "{keep}");
    delete("vm1").unwrap();
    let pool = stage.disk_service.pool(&name("p")).unwrap();
    assert_eq!((pool.used_bytes, pool.disks), (0, 0));
}

#[test]
fn a_deleted_snapshot_gives_its_space_back() {
    let stage = with_disk();
    attach(&stage, "vm1");
    for at in 0..8 {
        stage.fill("vm1", at, 1);
    }
    stage.snap("vm1", "one", &[]).unwrap();
    for at in 0..8 {
        stage.fill("vm1", at, 2);
    }
    let mapped = || {
        let live = stage.disk_service.live.get(&name("vm1")).unwrap();
        live.layout().unwrap().pool.unwrap().mapped
    };
    assert_eq!(mapped(), 16);
    stage.remove("vm1", "one").unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while mapped() != 8 {
        assert!(Instant::now() < until, "{} extents", mapped());
        std::thread::yield_now();
    }
    assert!(stage.has("vm1", &[2; 8]));
}

#[test]
fn snapshots_under_load_show_one_moment_of_all_disks_of_the_set() {
    const ROUNDS: usize = 12;
    let stage = with_disk();
    create(&stage, "vm2", 1 << 30).unwrap();
    attach(&stage, "vm1");
    attach(&stage, "vm2");
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut before = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut clients = ["vm1", "vm2"].map(|disk| Client::of(&stage, disk));
            for stamp in 1_u64.. {
                // Each write depends on the one before.
                for client in &mut clients {
                    for at in [0, 1 << 20] {
                        let block = [stamp.to_le_bytes(); 512].concat();
                        assert_eq!(client.ask(1, at, 4096, &block), 0);
                    }
                }
                answered.store(stamp, Ordering::SeqCst);
                if over.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        for round in 0..ROUNDS {
            let last = answered.load(Ordering::SeqCst);
            while answered.load(Ordering::SeqCst) < last + 20 {
                std::thread::yield_now();
            }
            before.push(answered.load(Ordering::SeqCst));
            stage.snap("vm1", &format!("s{round}"), &["vm2"]).unwrap();
        }
        over.store(true, Ordering::SeqCst);
    });
    detach(&stage, "vm1");
    detach(&stage, "vm2");
    for (round, before) in before.into_iter().enumerate() {
        let mut stamps = Vec::new();
        for disk in ["vm1", "vm2"] {
            let clone = format!("{disk}-{round}");
            stage.make(disk, &format!("s{round}"), &clone).unwrap();
            attach(&stage, &clone);
            let mut client = Client::of(&stage, &clone);
            for at in [0, 1 << 20] {
                assert_eq!(client.ask(0, at, 4096, &[]), 0);
                let mut block = [0; 4096];
                client.0.read_exact(&mut block).unwrap();
                let (words, _) = block.as_chunks::<8>();
                assert!(words.iter().all(|it| it == &words[0]), "one write");
                stamps.push(u64::from_le_bytes(words[0]));
            }
            drop(client);
            detach(&stage, &clone);
            stage.disk_service.delete(&name(&clone)).unwrap();
        }
        assert!(
            stamps.is_sorted_by(|one, next| one >= next),
            "{round}: {stamps:?}"
        );
        assert!(stamps[0] - stamps[3] <= 1, "{round}: {stamps:?}");
        assert!(stamps[3] >= before, "{round}: {stamps:?} lack {before}");
    }
}

#[test]
fn a_set_of_which_a_disk_cannot_be_taken_takes_nothing() {
    let stage = with_disk();
    create(&stage, "vm2", 1 << 30).unwrap();
    attach(&stage, "vm1");
    attach(&stage, "vm2");
    stage.snap("vm2", "one", &[]).unwrap();
    let refused = stage.snap("vm1", "one", &["vm2"]).unwrap_err().to_string();
    assert!(refused.contains("disk vm2"), "{refused}");
    // One that is held already cannot be held.
    let live = stage.disk_service.live.get(&name("vm2")).unwrap();
    live.order(LayoutOrder::Hold).unwrap();
    let refused = stage.snap("vm1", "two", &["vm2"]).unwrap_err().to_string();
    assert!(refused.contains("disk vm2"), "{refused}");
    live.order(LayoutOrder::Go).unwrap();
    assert!(stage.names("vm1").is_empty());
    assert_eq!(stage.generations("vm1"), 1);
    stage.fill("vm1", 0, 1);
    stage.fill("vm2", 0, 1);
    stage.snap("vm1", "two", &["vm2"]).unwrap();
    let sets = ["vm1", "vm2"].map(|disk| {
        let snapshot = stage.disk_service.snapshot(&name(disk), &name("two"));
        snapshot.unwrap().set.unwrap()
    });
    assert_eq!(sets[0], sets[1]);
}

#[test]
fn a_thousand_clones_of_one_parent_take_less_than_a_minute_of_a_cpu() {
    let stage = with_disk();
    attach(&stage, "vm1");
    stage.fill("vm1", 0, 7);
    stage.snap("vm1", "golden", &[]).unwrap();
    let cpu = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec;
    let begun = cpu();
    for nth in 0..1000 {
        stage.make("vm1", "golden", &format!("c{nth}")).unwrap();
    }
    let took = cpu() - begun;
    assert!(took < 60, "{took} s");
    for nth in [0_u8, 1, 2] {
        let clone = format!("c{nth}");
        attach(&stage, &clone);
        stage.fill(&clone, 1, nth + 1);
    }
    for nth in [0_u8, 1, 2] {
        assert!(stage.has(&format!("c{nth}"), &[7, nth + 1, 0]));
    }
    let refused = stage.remove("vm1", "golden").unwrap_err().to_string();
    assert!(refused.contains("1000 disks were made of it"), "{refused}");
    assert!(refused.contains("and 990 more"), "{refused}");
}
