//! Disks that several hosts can reach: hosts that are cut off, fall silent, or leave.
//!
//! A host sees the directory through a link of its own; without the link it is cut off. Nothing is asserted of how long
//! anything takes: what has to pass has passed when another host's look at the lease ends.

use super::client::pattern;
use super::rig::{client, engine, image, open_file, spec, tempdir};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_core::request::{Fault, Flags, Op};
use tidegate_engine::lease::{Guard, Lease, Leases, Refused, Settings, Takeover};
use tidegate_engine::{Disk, Engine, Kind};

const SIZE: u64 = 1 << 20;
const DISK: [u8; 16] = [7; 16];

/// The datastore, and each host's way to it.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let folder = tempdir();
        fs::create_dir(folder.path().join("real")).unwrap();
        Place { folder }
    }

    fn real(&self) -> PathBuf {
        self.folder.path().join("real")
    }

    fn block(&self) -> PathBuf {
        self.real().join(".tidegate/leases").join("07".repeat(16))
    }

    /// Lets a host see the datastore.
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

    /// A daemon of that host, which keeps the file of that identity locked.
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
fn a_disk_open_on_a_live_host_is_refused_by_that_hosts_name_even_to_force() {
    let place = Place::new();
    let (one, two) = (place.host("one", 1), place.host("two", 2));
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
fn a_disk_that_was_detached_is_free_for_others() {
    let place = Place::new();
    let (one, two) = (place.host("one", 1), place.host("two", 2));
    let engine = engine(1);
    let lease = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    let disk = attach(&engine, &place.image(), lease);
    client(&disk).write(0, &pattern(0, 1, 4096)).unwrap();
    disk.detach(Duration::from_secs(60)).unwrap();
    one.end(Duration::from_secs(60)).unwrap();
    assert_eq!(two.holder(DISK), None);
    take(&two, Guard::Lease, Takeover::Guarded).unwrap();
}

#[test]
fn a_dead_hosts_disk_is_taken_over_where_that_is_guarded_and_else_only_by_force() {
    for guard in [Guard::Lease, Guard::Server] {
        let place = Place::new();
        let (one, two) = (place.host("one", 1), place.host("two", 2));
        let _never_given_back = take(&one, guard, Takeover::Guarded).unwrap();
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
fn a_host_that_restarts_has_its_disks_again() {
    let place = Place::new();
    let before = place.host("one", 1);
    let _never_given_back = take(&before, Guard::Lease, Takeover::Guarded).unwrap();
    before.end(Duration::from_secs(60)).unwrap();
    place.cut("one");
    let restarted = place.daemon("one", 1, 2, [1; 16]);
    take(&restarted, Guard::Lease, Takeover::Guarded).unwrap();
}

#[test]
fn a_daemon_of_a_copied_root_is_refused_whatever_guards_the_disk_here() {
    let place = Place::new();
    let one = place.daemon("one", 1, 1, [1; 16]);
    let copy = place.daemon("copy", 1, 2, [2; 16]);
    let held = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    for guard in [Guard::Lease, Guard::Kernel] {
        let refused = take(&copy, guard, Takeover::Fenced).unwrap_err();
        assert!(matches!(refused, Refused::Live(_)), "{refused:?}");
    }
    drop(held);
    let _held = take(&one, Guard::Kernel, Takeover::Guarded).unwrap();
    // Its holder relies on a lock, and renews nothing: waiting would prove nothing.
    let refused = take(&copy, Guard::Lease, Takeover::Fenced).unwrap_err();
    assert!(matches!(refused, Refused::Unseen(..)), "{refused:?}");
}

#[test]
fn a_host_that_was_cut_off_waits_and_goes_on_where_nobody_has_taken_its_disk() {
    let place = Place::new();
    let (one, two) = (place.host("one", 1), place.host("two", 2));
    let (engine, image) = (engine(1), place.image());
    let lease = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    let watch = lease.watch().unwrap();
    let disk = attach(&engine, &image, lease);
    let mut client = client(&disk);
    client.write(0, &[1; 4096]).unwrap();
    place.cut("one");
    // Whoever finds it silent has waited for longer than it may go on.
    let silent = take(&two, Guard::Lease, Takeover::Guarded).unwrap_err();
    assert!(matches!(silent, Refused::Silent(_)), "{silent:?}");
    assert!(watch.is_waiting());
    client.ask(Op::Write, Flags::NONE, 0, 4096, &[2; 4096]);
    client.ask(Op::Read, Flags::NONE, 4096, 4096, &[]);
    assert_eq!(content(&image, 4096), [1; 4096]);
    place.link("one");
    for _ in 0..2 {
        client.next_answer().expect("an answer").1.unwrap();
    }
    assert_eq!(content(&image, 4096), [2; 4096]);
    assert_eq!(watch.lost(), None);
    assert!(!watch.is_waiting());
    disk.detach(Duration::from_secs(60)).unwrap();
}

#[test]
fn a_host_whose_disk_was_taken_over_writes_nothing_more_and_says_who_has_it() {
    let place = Place::new();
    let (one, two) = (place.host("one", 1), place.host("two", 2));
    let (engine, image) = (engine(1), place.image());
    let lease = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    let watch = lease.watch().unwrap();
    let disk = attach(&engine, &image, lease);
    let mut client = client(&disk);
    client.write(0, &[1; 4096]).unwrap();
    place.cut("one");
    let taken = take(&two, Guard::Lease, Takeover::Fenced).unwrap();
    let theirs = File::options().write(true).open(&image).unwrap();
    theirs.write_all_at(&[9; 8192], 0).unwrap();
    client.ask(Op::Write, Flags::NONE, 0, 4096, &[2; 4096]);
    client.ask(Op::WriteZeroes, Flags::NONE, 4096, 4096, &[]);
    place.link("one");
    for _ in 0..2 {
        let (_, answer) = client.next_answer().expect("an answer");
        assert_eq!(answer, Err(Fault::Io));
    }
    assert_eq!(client.discard(0, 4096), Err(Fault::Io));
    assert_eq!(client.read(0, 4096).unwrap(), [9; 4096]);
    assert_eq!(content(&image, 8192), [9; 8192]);
    let why = watch.lost().expect("it is lost");
    assert!(why.contains("host two"), "{why}");
    disk.detach(Duration::from_secs(60)).unwrap();
    one.end(Duration::from_secs(60)).unwrap();
    assert_eq!(two.holder(DISK).unwrap().name, "two");
    drop(taken);
}

#[test]
fn a_disk_that_a_lock_guards_outlives_its_lease_and_names_its_host() {
    let place = Place::new();
    let (one, two) = (place.host("one", 1), place.host("two", 2));
    let engine = engine(1);
    let lease = take(&one, Guard::Kernel, Takeover::Guarded).unwrap();
    assert!(lease.watch().is_none());
    let disk = attach(&engine, &place.image(), lease);
    assert_eq!(two.holder(DISK).unwrap().name, "one");
    fs::remove_dir_all(place.real().join(".tidegate")).unwrap();
    let mut client = client(&disk);
    client.write(0, &[1; 4096]).unwrap();
    client.flush().unwrap();
    disk.detach(Duration::from_secs(60)).unwrap();
}

#[test]
fn with_the_lock_in_hand_a_dead_hosts_notice_is_no_hindrance() {
    let place = Place::new();
    let (one, two) = (place.host("one", 1), place.host("two", 2));
    let _never_given_back = take(&one, Guard::Kernel, Takeover::Guarded).unwrap();
    one.end(Duration::from_secs(60)).unwrap();
    let taken = take(&two, Guard::Kernel, Takeover::Guarded).unwrap();
    assert_eq!(two.holder(DISK).unwrap().name, "two");
    drop(taken);
    two.end(Duration::from_secs(60)).unwrap();
    assert_eq!(place.host("three", 3).holder(DISK), None);
}

#[test]
fn what_another_host_keeps_by_a_lock_unseen_from_here_is_never_taken() {
    let place = Place::new();
    let (one, two) = (place.host("one", 1), place.host("two", 2));
    let _held = take(&one, Guard::Kernel, Takeover::Guarded).unwrap();
    let refused = take(&two, Guard::Lease, Takeover::Fenced).unwrap_err();
    assert!(
        matches!(&refused, Refused::Unseen(by, file) if by.name == "one" && file.ends_with("07".repeat(16))),
        "{refused:?}"
    );
}

#[test]
fn what_another_host_renews_is_not_taken_with_a_lock_that_it_does_not_see() {
    let place = Place::new();
    let (one, two) = (place.host("one", 1), place.host("two", 2));
    let _held = take(&one, Guard::Lease, Takeover::Guarded).unwrap();
    let refused = take(&two, Guard::Kernel, Takeover::Guarded).unwrap_err();
    assert!(matches!(refused, Refused::Live(_)), "{refused:?}");
}

#[test]
fn where_no_block_can_be_made_a_lock_is_enough_and_a_lease_is_refused() {
    let place = Place::new();
    let host = place.host("one", 1);
    fs::write(place.real().join(".tidegate"), "in the way").unwrap();
    take(&host, Guard::Kernel, Takeover::Guarded).unwrap();
    let refused = take(&host, Guard::Lease, Takeover::Guarded).unwrap_err();
    assert!(matches!(refused, Refused::Trouble(_)), "{refused:?}");
}

#[test]
fn a_block_of_something_else_is_left_for_a_person() {
    let place = Place::new();
    let host = place.host("one", 1);
    fs::create_dir_all(place.block().parent().unwrap()).unwrap();
    fs::write(place.block(), [5; 4096]).unwrap();
    let refused = take(&host, Guard::Lease, Takeover::Fenced).unwrap_err();
    let Refused::Trouble(error) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains(".tidegate/leases"), "{error}");
    assert_eq!(fs::read(place.block()).unwrap(), [5; 4096]);
}
