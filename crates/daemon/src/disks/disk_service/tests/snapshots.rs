//! Snapshots of disks on datastores of kind `dir`. Where the file system of the tests shares no blocks, they are copied.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;

use tidegate_api::snapshot::{DiskClone, DiskRollback, SnapshotCreate, Snapshots};

use super::*;

/// As the kernel makes two files share blocks, but slower.
fn copy(mut from: &File, mut to: &File) -> io::Result<()> {
    use std::io::Seek;
    from.rewind()?;
    to.rewind()?;
    io::copy(&mut from, &mut to).map(drop)
}

fn share_nothing(_: &File, _: &File) -> io::Result<()> {
    Err(rustix::io::Errno::OPNOTSUPP.into())
}

fn full(_: &File, _: &File) -> io::Result<()> {
    Err(rustix::io::Errno::NOSPC.into())
}

fn copying() -> Stage {
    let mut stage = stage();
    stage.sharing_by(copy);
    stage
}

impl Stage {
    fn sharing_by(&mut self, share: fn(&File, &File) -> io::Result<()>) {
        let service = Arc::get_mut(&mut self.disk_service).expect("nobody else has it");
        service.store = service.store.clone().sharing_by(share);
    }

    fn take(&self, disk: &str, snapshot: &str, with: &[&str]) -> Outcome<Vec<String>> {
        let order = SnapshotCreate {
            name: name(snapshot),
            with: with.iter().map(|disk| name(disk)).collect(),
        };
        let taken = self.disk_service.take_snapshots(&name(disk), &order)?;
        let names = taken.snapshots.iter().map(|it| it.full_name().to_string());
        Ok(names.collect())
    }

    fn roll_back(&self, disk: &str, snapshot: &str) -> Outcome<api::Disk> {
        let _context = self.runtime.enter();
        let order = DiskRollback {
            snapshot: name(snapshot),
            clients: Clients::Keep,
        };
        self.disk_service.roll_back(&name(disk), &order)
    }

    fn clone_of(&self, disk: &str, snapshot: &str, new: &str) -> Outcome<api::Disk> {
        let order = DiskClone {
            snapshot: name(snapshot),
            name: name(new),
        };
        self.disk_service.clone_disk(&name(disk), &order)
    }

    /// The names of a disk's snapshots, each with its parent; and the latest one.
    fn tree(&self, disk: &str) -> (Vec<String>, Option<String>) {
        let list = self.disk_service.snapshots(&name(disk)).unwrap();
        let pair = |it: &tidegate_api::snapshot::Snapshot| {
            let parent = it.parent.as_ref().map_or("", Name::as_str);
            format!("{}<{parent}", it.name)
        };
        let latest = list.latest.map(|it| it.to_string());
        (list.snapshots.iter().map(pair).collect(), latest)
    }

    /// Gives the first bytes of a disk a value, below whoever has it attached.
    fn mark(&self, disk: &str, value: u8) {
        let image = self.disk_service.store.find(&name(disk)).unwrap().image();
        let image = OpenOptions::new().write(true).open(image).unwrap();
        image.write_all_at(&[value; 512], 0).unwrap();
    }

    /// The first byte of a disk, and its length.
    fn marked(&self, disk: &str) -> (u8, u64) {
        let image = self.disk_service.store.find(&name(disk)).unwrap().image();
        let bytes = fs::read(image).unwrap();
        (bytes[0], bytes.len() as u64)
    }

    /// The files in a disk's directory.
    fn files(&self, disk: &str) -> Vec<String> {
        let folder = fs::read_dir(self.shared.join(disk)).unwrap();
        let names = folder.map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

#[test]
fn a_snapshot_keeps_what_the_disk_had_and_a_rollback_brings_it_back() {
    let stage = copying();
    stage.disk("a");
    for value in [1, 2, 3] {
        stage.mark("a", value);
        let taken = stage.take("a", &format!("s{value}"), &[]).unwrap();
        assert_eq!(taken, [format!("a@s{value}")]);
    }
    stage.mark("a", 9);
    let exists = stage.take("a", "s2", &[]).unwrap_err();
    assert_eq!(exists.code, ProblemCode::Exists, "{exists}");
    for value in [2, 1, 3, 2] {
        stage.roll_back("a", &format!("s{value}")).unwrap();
        assert_eq!(stage.marked("a"), (value, SIZE));
        stage.mark("a", 9);
    }
    stage.take("a", "s4", &[]).unwrap();
    let (tree, latest) = stage.tree("a");
    assert_eq!(tree, ["s1<", "s2<s1", "s3<s2", "s4<s2"]);
    assert_eq!(latest.as_deref(), Some("s4"));
    stage
        .disk_service
        .delete_snapshot(&name("a"), &name("s2"))
        .unwrap();
    assert_eq!(stage.tree("a").0, ["s1<", "s3<s1", "s4<s1"]);
    let gone = stage.roll_back("a", "s2").unwrap_err();
    assert_eq!(gone.code, ProblemCode::NotFound, "{gone}");
    assert!(gone.to_string().contains("snapshot list a"), "{gone}");
    assert_eq!(stage.marked("a").0, 9, "nothing was changed");
    let files = [
        "disk.toml",
        "image",
        "snapshot-s1",
        "snapshot-s3",
        "snapshot-s4",
        "snapshots.toml",
    ];
    assert_eq!(stage.files("a"), files);
}

#[test]
fn an_attached_disk_goes_on_after_a_snapshot_and_is_attached_again_after_a_rollback() {
    let stage = copying();
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.mark("a", 1);
    stage.take("a", "one", &[]).unwrap();
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    // A disk that was still held could not be held again.
    drop(live.pause().unwrap());
    stage.mark("a", 2);
    let paused = live.pause().unwrap();
    let order = DiskSet {
        filters: Some(vec!["null".to_owned()]),
        ..Default::default()
    };
    stage.disk_service.set(&name("a"), &order).unwrap();
    drop(paused);
    drop(live);
    let disk = stage.roll_back("a", "one").unwrap();
    assert!(disk.attached && disk.wanted && !disk.detaching, "{disk:?}");
    assert_eq!(stage.marked("a").0, 1);
    stage.detach("a");
}

#[test]
fn a_rollback_brings_back_the_size_too() {
    let stage = copying();
    stage.disk("a");
    let resize = |size_bytes| {
        let order = DiskResize {
            size_bytes,
            data: ResizeData::MayCutOff,
        };
        stage.disk_service.resize(&name("a"), order).unwrap();
    };
    stage.take("a", "normal", &[]).unwrap();
    resize(2 * SIZE);
    stage.take("a", "large", &[]).unwrap();
    stage.roll_back("a", "normal").unwrap();
    assert_eq!(
        stage.disk_service.disk(&name("a")).unwrap().size_bytes,
        SIZE
    );
    resize(SIZE / 2);
    let disk = stage.roll_back("a", "large").unwrap();
    assert_eq!(disk.size_bytes, 2 * SIZE);
    assert!(stage.marked("a").1 >= 2 * SIZE);
    stage.attach("a", Outside::Agreed).unwrap();
    stage.detach("a");
}

#[test]
fn a_rollback_that_a_crash_cuts_short_leaves_a_disk_that_can_be_used() {
    let stage = copying();
    let before = stage.disk("a");
    stage.mark("a", 1);
    stage.take("a", "small", &[]).unwrap();
    stage.mark("a", 2);
    let mut larger = before.clone();
    larger.descriptor.size.0 = 2 * SIZE;
    let store = &stage.disk_service.store;
    store.resize_image(&larger, SIZE, 2 * SIZE).unwrap();
    store.write_descriptor(&larger).unwrap();
    // The new image has its name, and the descriptor is the old one.
    store
        .restore_snapshot(&larger, &name("small"), 2 * SIZE)
        .unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    stage.detach("a");
    assert_eq!(stage.marked("a"), (1, 2 * SIZE));
    // The new image is not complete.
    fs::write(larger.folder.join(".image.new"), "half").unwrap();
    stage.roll_back("a", "small").unwrap();
    assert_eq!(stage.marked("a").0, 1);
    assert_eq!(
        stage.disk_service.disk(&name("a")).unwrap().size_bytes,
        SIZE
    );
}

#[test]
fn what_a_crash_left_of_snapshots_is_removed_and_the_disk_can_be_deleted() {
    let stage = copying();
    let found = stage.disk("a");
    stage.take("a", "one", &[]).unwrap();
    for left in ["snapshot-two", ".snapshot-three.new", ".image.new"] {
        fs::write(found.folder.join(left), "half").unwrap();
    }
    assert_eq!(stage.tree("a").0, ["one<"]);
    stage.take("a", "two", &[]).unwrap();
    let files = [
        "disk.toml",
        "image",
        "snapshot-one",
        "snapshot-two",
        "snapshots.toml",
    ];
    assert_eq!(stage.files("a"), files);
    fs::write(found.folder.join("snapshot-left"), "half").unwrap();
    let refused = stage.disk_service.delete(&name("a")).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy);
    assert!(
        refused.to_string().contains("they are one, two"),
        "{refused}"
    );
    stage
        .disk_service
        .delete_with(&name("a"), Snapshots::Delete)
        .unwrap();
    assert!(!found.folder.exists());
}

#[test]
fn a_clone_is_a_disk_of_its_own() {
    let stage = copying();
    stage.disk("a");
    let order = DiskSet {
        serial: Some("disk-a".to_owned()),
        filters: Some(vec!["stats".to_owned(), "null".to_owned()]),
        ..Default::default()
    };
    stage.disk_service.set(&name("a"), &order).unwrap();
    stage.mark("a", 1);
    stage.take("a", "one", &[]).unwrap();
    stage.mark("a", 2);
    let clone = stage.clone_of("a", "one", "b").unwrap();
    let a = stage.disk_service.disk(&name("a")).unwrap();
    assert_ne!((&clone.uuid, &clone.serial), (&a.uuid, &a.serial));
    assert_eq!(clone.filters, a.filters);
    assert_eq!(stage.marked("b"), (1, SIZE));
    stage.mark("b", 3);
    assert_eq!(stage.marked("a").0, 2);
    stage.roll_back("a", "one").unwrap();
    assert_eq!(stage.marked("a").0, 1);
    assert!(stage.tree("b").0.is_empty());
    let exists = stage.clone_of("a", "one", "b").unwrap_err();
    assert_eq!(exists.code, ProblemCode::Exists, "{exists}");
    stage
        .disk_service
        .delete_with(&name("a"), Snapshots::Delete)
        .unwrap();
    stage.attach("b", Outside::Agreed).unwrap();
    stage.detach("b");
    assert_eq!(stage.marked("b").0, 3);
}

#[test]
fn snapshots_of_a_set_are_all_there_or_none_is() {
    let mut stage = copying();
    for disk in ["c", "a", "b"] {
        stage.disk(disk);
    }
    stage.attach("b", Outside::Agreed).unwrap();
    let taken = stage.take("c", "one", &["a", "b"]).unwrap();
    assert_eq!(taken, ["c@one", "a@one", "b@one"], "as they were named");
    let sets = ["a", "b", "c"].map(|disk| {
        let snapshot = stage.disk_service.snapshot(&name(disk), &name("one"));
        snapshot.unwrap().set.unwrap()
    });
    assert!(sets[0] == sets[1] && sets[1] == sets[2], "{sets:?}");
    // The first ones can be taken, and the last one has that name already.
    stage.take("c", "two", &[]).unwrap();
    let refused = stage.take("a", "two", &["b", "c"]).unwrap_err().to_string();
    assert!(refused.contains("disk c"), "{refused}");
    for (problem, share) in [
        ("full", full as fn(&File, &File) -> _),
        ("reflink", share_nothing),
    ] {
        stage.sharing_by(share);
        let refused = stage.take("a", "three", &["b", "c"]).unwrap_err();
        assert!(
            refused.to_string().contains("disk a"),
            "{problem}: {refused}"
        );
    }
    for (disk, has) in [("a", 1), ("b", 1), ("c", 2)] {
        assert_eq!(stage.tree(disk).0.len(), has, "{disk}");
        assert!(
            stage
                .files(disk)
                .iter()
                .all(|file| !file.contains("three") && !file.contains("new"))
        );
    }
    let live = stage.disk_service.live.get(&name("b")).unwrap();
    drop(live.pause().unwrap());
    drop(live);
    for (with, why) in [
        (vec!["b", "b"], "twice"),
        (vec!["a"], "twice"),
        (vec!["d"], "no disk d"),
    ] {
        let refused = stage.take("a", "four", &with).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    let many: Vec<_> = (0..64).map(|nth| format!("d{nth}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let refused = stage.take("a", "four", &many).unwrap_err().to_string();
    assert!(refused.contains("at most 64"), "{refused}");
    stage.detach("b");
}

#[test]
fn a_set_is_recorded_as_a_whole_or_not_at_all() {
    let stage = copying();
    stage.disk("a");
    let b = stage.disk("b");
    // The list of the second disk cannot be written: a directory has the name of its draft.
    fs::create_dir(b.folder.join(".snapshots.toml.new")).unwrap();
    let refused = stage.take("a", "one", &["b"]).unwrap_err().to_string();
    assert!(refused.contains("disk b"), "{refused}");
    assert!(stage.tree("a").0.is_empty() && stage.tree("b").0.is_empty());
    assert_eq!(stage.files("a"), ["disk.toml", "image", "snapshots.toml"]);
    fs::remove_dir(b.folder.join(".snapshots.toml.new")).unwrap();
    stage.take("a", "one", &["b"]).unwrap();
}

#[test]
fn a_file_system_without_reflinks_is_refused_with_those_that_have_them() {
    let mut stage = stage();
    stage.disk("a");
    stage.sharing_by(share_nothing);
    let refused = stage.take("a", "one", &[]).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Unsupported);
    let text = refused.to_string();
    for word in ["a@one", "shared", "XFS", "btrfs", "pool"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(stage.files("a"), ["disk.toml", "image"]);
    stage.disk_service.delete(&name("a")).unwrap();
}

#[test]
fn disks_that_cannot_have_snapshots_are_refused_with_the_reason() {
    let stage = copying();
    stage
        .disk_service
        .add_datastore(&name("ram"), DatastoreSettings::Memory {})
        .unwrap();
    stage.disk_on("ram", "m");
    let refused = stage.take("m", "one", &[]).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Unsupported);
    assert!(refused.to_string().contains("kind memory"), "{refused}");
    let list = stage.disk_service.snapshots(&name("m")).unwrap();
    assert_eq!((list.latest, list.snapshots.len()), (None, 0));
    stage.disk_service.delete(&name("m")).unwrap();

    let found = stage.disk("a");
    stage.elsewhere("a", |found| {
        found.descriptor.device = Some("/dev/null".into())
    });
    let refused = stage.take("a", "one", &[]).unwrap_err().to_string();
    assert!(refused.contains("block device /dev/null"), "{refused}");
    stage.elsewhere("a", |found| found.descriptor.device = None);
    stage.take("a", "one", &[]).unwrap();
    fs::write(
        found.folder.join("snapshots.toml"),
        "version = 1\nlatest = \"gone\"\n",
    )
    .unwrap();
    let damaged = stage.take("a", "two", &[]).unwrap_err();
    assert_eq!(damaged.code, ProblemCode::Corrupt, "{damaged}");
    assert!(
        damaged.to_string().contains("latest snapshot gone"),
        "{damaged}"
    );
    assert!(
        found.folder.join("snapshot-one").exists(),
        "nothing was removed"
    );
}

#[test]
fn a_disk_with_snapshots_does_not_move_without_them() {
    let stage = copying();
    stage.disk("a");
    stage.datastore("other");
    stage.take("a", "one", &[]).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    let order = tidegate_api::layout::DiskMove {
        to: name("other"),
        rate_bytes_per_s: None,
    };
    let refused = stage.disk_service.relocate(&name("a"), &order).unwrap_err();
    assert!(refused.to_string().contains("do not move"), "{refused}");
    stage.detach("a");
}

#[test]
fn a_rollback_is_refused_while_clients_use_the_disk() {
    let stage = copying();
    stage.disk("a");
    stage.take("a", "one", &[]).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    let socket = stage.disk_service.root().disk_socket(&name("a"));
    let guest = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    while live.clients().is_empty() {
        std::thread::yield_now();
    }
    let refused = stage.roll_back("a", "one").unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy);
    assert!(refused.to_string().contains("--disconnect"), "{refused}");
    assert!(stage.disk_service.live.get(&name("a")).is_some());
    drop(live);
    let order = DiskRollback {
        snapshot: name("one"),
        clients: Clients::Disconnect,
    };
    let context = stage.runtime.enter();
    let disk = stage.disk_service.roll_back(&name("a"), &order).unwrap();
    drop(context);
    assert!(disk.attached && disk.clients.is_empty(), "{disk:?}");
    drop(guest);
    stage.detach("a");
}
