//! Tests of disks that several hosts can reach: hosts that are cut off, fall silent, or leave.
//!
//! A host sees the directory through a link of its own; without the link it is cut off. No test asserts how long
//! anything takes. The time that must pass has passed when another host's read of the lease ends.

use super::client::pattern;
use super::rig::{client, engine, eventually, image, open_file, spec, tempdir};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::{LayoutOrder, LayoutSpec};
use tidegate_core::request::{Fault, Flags, Op};
use tidegate_engine::datastore::dir::SharedFile;
use tidegate_engine::lease::{Guard, Lease, Leases, Refused, Settings, Takeover};
use tidegate_engine::{Disk, DiskSpec, Engine, Flash, Kind};

const SIZE: u64 = 1 << 20;
const DISK: [u8; 16] = [7; 16];

/// The datastore, and each host's link to it.
struct Datastore {
    folder: tempfile::TempDir,
}

impl Datastore {
    fn new() -> Datastore {
        let folder = tempdir();
        fs::create_dir(folder.path().join("real")).unwrap();
        Datastore { folder }
    }

    fn real(&self) -> PathBuf {
        self.folder.path().join("real")
    }

    fn block(&self) -> PathBuf {
        self.real().join(".tidegate/leases").join("07".repeat(16))
    }

    /// Connects a host to the datastore.
    fn link(&self, host: &str) -> PathBuf {
        let link = self.folder.path().join(host);
        symlink(self.real(), &link).unwrap();
        link
    }

    /// Cuts a host off.
    fn cut(&self, host: &str) {
        fs::remove_file(self.folder.path().join(host)).unwrap();
    }

    fn host(&self, name: &str, number: u8) -> Leases {
        self.daemon(name, number, u64::from(number), [number; 16])
    }

    /// A daemon of a host that holds the lock file with this identity.
    fn daemon(&self, name: &str, number: u8, incarnation: u64, lock: [u8; 16]) -> Leases {
        Leases::new(Settings {
            name: "shared".into(),
            directory: self.link(name),
            host: [number; 16],
            incarnation,
            lock,
            host_name: name.into(),
            lease: Duration::from_secs(2),
        })
        .unwrap()
    }

    fn image(&self) -> PathBuf {
        image(&self.real(), "image", SIZE)
    }
}

fn take(host: &Leases, guard: Guard, takeover: Takeover) -> Result<Lease, Refused> {
    host.take(DISK, "db1", guard, takeover)
}

fn attach(engine: &Engine, image: &Path, lease: Lease) -> Disk {
    let opened = open_file(image).under(lease);
    engine.attach(spec("db1", SIZE), opened).unwrap()
}

fn content(image: &Path, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(image)
        .unwrap()
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    bytes
}

#[test]
fn a_disk_on_a_live_host_is_refused_with_its_name_even_with_force() {
    let datastore = Datastore::new();
    let (one, two) = (datastore.host("one", 1), datastore.host("two", 2));
    let _held = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    for takeover in [Takeover::Guarded, Takeover::Fenced] {
        let refused = take(&two, Guard::Lease, takeover).unwrap_err();
        assert!(
            matches!(&refused, Refused::Live(by) if by.name == "one"),
            "{refused:?}"
        );
    }
    assert_eq!(two.holder(DISK).unwrap().host, [1; 16]);
}

#[test]
fn a_detached_disk_is_free_for_others() {
    let datastore = Datastore::new();
    let (one, two) = (datastore.host("one", 1), datastore.host("two", 2));
    let engine = engine(1);
    let lease = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    let disk = attach(&engine, &datastore.image(), lease);
    client(&disk).write(0, &pattern(0, 1, 4096)).unwrap();
    disk.detach(Duration::from_secs(60)).unwrap();
    one.end(Duration::from_secs(60)).unwrap();
    assert_eq!(two.holder(DISK), None);
    take(&two, Guard::Lease, Takeover::Guarded).unwrap();
}

#[test]
fn each_member_of_a_mirror_has_its_own_lease_and_all_are_free_after_the_detach() {
    const PATIENCE: Duration = Duration::from_secs(60);
    let datastores = [Datastore::new(), Datastore::new()];
    let hosts = datastores.each_ref().map(|datastore| {
        let hosts = (datastore.host("one", 1), datastore.host("two", 2));
        let size = LayoutSpec::Mirror.member_size(SIZE, 2);
        let path = image(&datastore.real(), "image", size);
        (hosts, path)
    });
    let engine = engine(1);
    let members = hosts.each_ref().map(|((one, _), path)| {
        let lease = take(one, Guard::Lease, Takeover::Guarded).unwrap();
        Some(open_file(path).under(lease))
    });
    let mirror = DiskSpec {
        layout: LayoutSpec::Mirror,
        ..spec("db1", SIZE)
    };
    let disk = engine
        .attach_members(mirror, members.into(), PATIENCE)
        .unwrap();
    client(&disk).write(0, &pattern(0, 1, 4096)).unwrap();
    for ((_, two), _) in &hosts {
        assert!(take(two, Guard::Lease, Takeover::Guarded).is_err());
    }
    disk.detach(PATIENCE).unwrap();
    for ((one, two), _) in &hosts {
        one.end(PATIENCE).unwrap();
        take(two, Guard::Lease, Takeover::Guarded).unwrap();
    }
}

#[test]
fn a_dead_hosts_disk_is_taken_over_with_a_guard_and_otherwise_only_by_force() {
    for guard in [Guard::Lease, Guard::Server] {
        let datastore = Datastore::new();
        let (one, two) = (datastore.host("one", 1), datastore.host("two", 2));
        let _unreleased = take(&one, guard, Takeover::Guarded).unwrap();
        one.end(Duration::from_secs(60)).unwrap();
        let taken = take(&two, guard, Takeover::Guarded);
        if guard == Guard::Server {
            taken.unwrap();
            continue;
        }
        let refused = taken.unwrap_err();
        assert!(
            matches!(&refused, Refused::Silent(by) if by.name == "one"),
            "{refused:?}"
        );
        take(&two, guard, Takeover::Fenced).unwrap();
    }
}

#[test]
fn a_restarted_host_gets_its_disks_again() {
    let datastore = Datastore::new();
    let before = datastore.host("one", 1);
    let _unreleased = take(&before, Guard::Lease, Takeover::Guarded).unwrap();
    before.end(Duration::from_secs(60)).unwrap();
    datastore.cut("one");
    let restarted = datastore.daemon("one", 1, 2, [1; 16]);
    take(&restarted, Guard::Lease, Takeover::Guarded).unwrap();
}

#[test]
fn a_daemon_of_a_copied_root_is_refused_under_every_guard() {
    let datastore = Datastore::new();
    let one = datastore.daemon("one", 1, 1, [1; 16]);
    let copy = datastore.daemon("copy", 1, 2, [2; 16]);
    let held = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    for guard in [Guard::Lease, Guard::Kernel] {
        let refused = take(&copy, guard, Takeover::Fenced).unwrap_err();
        assert!(matches!(refused, Refused::Live(_)), "{refused:?}");
    }
    drop(held);
    let _held = take(&one, Guard::Kernel, Takeover::Guarded).unwrap();
    // Its holder relies on a lock, and does not renew: waiting would prove nothing.
    let refused = take(&copy, Guard::Lease, Takeover::Fenced).unwrap_err();
    assert!(matches!(refused, Refused::Unseen(..)), "{refused:?}");
}

#[test]
fn a_cut_off_host_waits_and_continues_if_no_other_took_its_disk() {
    let datastore = Datastore::new();
    let (one, two) = (datastore.host("one", 1), datastore.host("two", 2));
    let (engine, image) = (engine(1), datastore.image());
    let lease = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    let watch = lease.watch().unwrap();
    let disk = attach(&engine, &image, lease);
    let mut client = client(&disk);
    client.write(0, &[1; 4096]).unwrap();
    datastore.cut("one");
    // A host that sees it as silent has waited longer than its lease.
    let silent = take(&two, Guard::Lease, Takeover::Guarded).unwrap_err();
    assert!(matches!(silent, Refused::Silent(_)), "{silent:?}");
    assert!(watch.is_waiting());
    client.send(Op::Write, Flags::NONE, 0, 4096, &[2; 4096]);
    client.send(Op::Read, Flags::NONE, 4096, 4096, &[]);
    assert_eq!(content(&image, 4096), [1; 4096]);
    datastore.link("one");
    for _ in 0..2 {
        client.next_answer().expect("an answer").1.unwrap();
    }
    assert_eq!(content(&image, 4096), [2; 4096]);
    assert_eq!(watch.lost(), None);
    assert!(!watch.is_waiting());
    disk.detach(Duration::from_secs(60)).unwrap();
}

#[test]
fn a_host_whose_disk_was_taken_over_stops_writing_and_names_the_new_holder() {
    let datastore = Datastore::new();
    let (one, two) = (datastore.host("one", 1), datastore.host("two", 2));
    let (engine, image) = (engine(1), datastore.image());
    let lease = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    let watch = lease.watch().unwrap();
    let disk = attach(&engine, &image, lease);
    let mut client = client(&disk);
    client.write(0, &[1; 4096]).unwrap();
    datastore.cut("one");
    let taken = take(&two, Guard::Lease, Takeover::Fenced).unwrap();
    let theirs = File::options().write(true).open(&image).unwrap();
    theirs.write_all_at(&[9; 8192], 0).unwrap();
    client.send(Op::Write, Flags::NONE, 0, 4096, &[2; 4096]);
    client.send(Op::WriteZeroes, Flags::NONE, 4096, 4096, &[]);
    datastore.link("one");
    for _ in 0..2 {
        let (_, answer) = client.next_answer().expect("an answer");
        assert_eq!(answer, Err(Fault::Io));
    }
    assert_eq!(client.discard(0, 4096), Err(Fault::Io));
    assert_eq!(client.read(0, 4096).unwrap(), [9; 4096]);
    assert_eq!(content(&image, 8192), [9; 8192]);
    let why = watch.lost().expect("the lease is lost");
    assert!(why.contains("host two"), "{why}");
    disk.detach(Duration::from_secs(60)).unwrap();
    one.end(Duration::from_secs(60)).unwrap();
    assert_eq!(two.holder(DISK).unwrap().name, "two");
    drop(taken);
}

/// A disk under a lease in write-back mode, with a cache from the attach on or since later.
fn attach_write_back(
    engine: &Engine,
    image: &Path,
    lease: Lease,
    flash: &SharedFile,
    later: bool,
) -> Disk {
    const PATIENCE: Duration = Duration::from_secs(60);
    let cache = Flash {
        devices: vec![Some(flash.image().unwrap())],
        cache: [9; 16],
        area: Area::new(1 << 20, vec![1, 2, 3, 4]).expect("enough"),
        attachments: [0, 1],
        has_dirty: false,
        without: 0,
        policy_state: Vec::new(),
    };
    let disk = if later {
        let disk = attach(engine, image, lease);
        disk.begin_cache(cache, PATIENCE).unwrap();
        disk
    } else {
        let members = vec![Some(open_file(image).under(lease))];
        let attached = engine.attach_cached(spec("db1", SIZE), members, cache, PATIENCE);
        attached.unwrap()
    };
    let order = LayoutOrder::CacheMode(CacheMode::WriteBack);
    disk.order_layout(order).unwrap();
    disk
}

#[test]
fn a_write_back_cache_answers_no_write_after_its_disk_was_taken_over() {
    for later in [false, true] {
        let datastore = Datastore::new();
        let (one, two) = (datastore.host("one", 1), datastore.host("two", 2));
        let (engine, disk_image) = (engine(1), datastore.image());
        let place = tempdir();
        let flash = image(place.path(), "flash", 8 << 20);
        let flash = SharedFile::open(&flash, Duration::ZERO).unwrap();
        let lease = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
        let watch = lease.watch().unwrap();
        let disk = attach_write_back(&engine, &disk_image, lease, &flash, later);
        let mut client = client(&disk);
        eventually("the page is in the cache", || {
            client.write(0, &[1; 4096]).unwrap();
            let cache = disk.layout().unwrap().and_then(|report| report.cache);
            cache.expect("it has a cache").dirty > 0
        });
        datastore.cut("one");
        let _taken = take(&two, Guard::Lease, Takeover::Fenced).unwrap();
        client.send(Op::Write, Flags::NONE, 0, 4096, &[2; 4096]);
        datastore.link("one");
        eventually("the lease is lost", || watch.lost().is_some());
        // Without dirty pages, the write waits until the cache is given up or the disk is detached.
        std::thread::scope(|scope| {
            scope.spawn(|| disk.detach(Duration::from_secs(60)).unwrap());
            let answer = client.next_answer();
            assert!(!matches!(answer, Some((_, Ok(_)))), "{answer:?}");
        });
        one.end(Duration::from_secs(60)).unwrap();
    }
}

#[test]
fn a_disk_guarded_by_a_lock_outlives_its_lease_and_names_its_host() {
    let datastore = Datastore::new();
    let (one, two) = (datastore.host("one", 1), datastore.host("two", 2));
    let engine = engine(1);
    let lease = take(&one, Guard::Kernel, Takeover::Guarded).unwrap();
    assert!(lease.watch().is_none());
    let disk = attach(&engine, &datastore.image(), lease);
    assert_eq!(two.holder(DISK).unwrap().name, "one");
    fs::remove_dir_all(datastore.real().join(".tidegate")).unwrap();
    let mut client = client(&disk);
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    disk.detach(Duration::from_secs(60)).unwrap();
}

#[test]
fn with_the_lock_held_a_dead_hosts_notice_is_ignored() {
    let datastore = Datastore::new();
    let (one, two) = (datastore.host("one", 1), datastore.host("two", 2));
    let _unreleased = take(&one, Guard::Kernel, Takeover::Guarded).unwrap();
    one.end(Duration::from_secs(60)).unwrap();
    let taken = take(&two, Guard::Kernel, Takeover::Guarded).unwrap();
    assert_eq!(two.holder(DISK).unwrap().name, "two");
    drop(taken);
    two.end(Duration::from_secs(60)).unwrap();
    assert_eq!(datastore.host("three", 3).holder(DISK), None);
}

#[test]
fn a_disk_held_by_an_invisible_lock_is_never_taken() {
    let datastore = Datastore::new();
    let (one, two) = (datastore.host("one", 1), datastore.host("two", 2));
    let _held = take(&one, Guard::Kernel, Takeover::Guarded).unwrap();
    let refused = take(&two, Guard::Lease, Takeover::Fenced).unwrap_err();
    assert!(
        matches!(&refused, Refused::Unseen(by, file) if by.name == "one" && file.ends_with("07".repeat(16))),
        "{refused:?}"
    );
}

#[test]
fn a_renewed_lease_is_not_taken_with_a_lock_its_holder_does_not_see() {
    let datastore = Datastore::new();
    let (one, two) = (datastore.host("one", 1), datastore.host("two", 2));
    let _held = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    let refused = take(&two, Guard::Kernel, Takeover::Guarded).unwrap_err();
    assert!(matches!(refused, Refused::Live(_)), "{refused:?}");
}

#[test]
fn without_a_lease_block_a_lock_is_enough_and_a_lease_is_refused() {
    let datastore = Datastore::new();
    let host = datastore.host("one", 1);
    fs::write(datastore.real().join(".tidegate"), "in the way").unwrap();
    take(&host, Guard::Kernel, Takeover::Guarded).unwrap();
    let refused = take(&host, Guard::Lease, Takeover::Guarded).unwrap_err();
    assert!(matches!(refused, Refused::Trouble(_)), "{refused:?}");
}

#[test]
fn a_foreign_lease_block_is_not_changed() {
    let datastore = Datastore::new();
    let host = datastore.host("one", 1);
    fs::create_dir_all(datastore.block().parent().unwrap()).unwrap();
    fs::write(datastore.block(), [5; 4096]).unwrap();
    let refused = take(&host, Guard::Lease, Takeover::Fenced).unwrap_err();
    let Refused::Trouble(error) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains(".tidegate/leases"), "{error}");
    assert_eq!(fs::read(datastore.block()).unwrap(), [5; 4096]);
}
