//! Tests of whole commands on one or two hosts in one process: open file locks separate them as they separate daemons.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::disk::{
    Clients, DiskAttach, DiskCreate, DiskResize, DiskSet, Outside, ResizeData,
};
use tidegate_api::job::{DiskExport, Existing};
use tidegate_engine::datastore::dir;
use tidegate_engine::lease;

use super::change::Purpose;
use super::*;
use crate::config::plan::{self, ThreadsPlan};
use crate::control::Identity;

mod away;
mod backups;
mod detaching;
mod displaced;
mod flash;
mod flash_changes;
mod flash_faults;
mod flash_learned;
mod flash_room;
mod growth;
mod hanging;
mod images;
mod layouts;
mod members;
mod missing;
mod mounted;
mod nested;
mod outdated;
mod pooled;
mod relocate;
mod snapshots;
mod threads;
mod transfer;

const SIZE: u64 = 1 << 20;

/// One of the hosts that have the datastore `shared`.
struct Stage {
    disk_service: Arc<DiskService>,
    shared: PathBuf,
    place: TempDir,
    // Last: the sockets of attached disks use it.
    runtime: tokio::runtime::Runtime,
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn stage() -> Stage {
    stage_of([1; 16], "one")
}

/// The stage of a host with this identity.
fn stage_of(id: [u8; 16], host: &str) -> Stage {
    stage_with(&ThreadsPlan::fixed(1), id, host)
}

fn stage_with(threads: &ThreadsPlan, id: [u8; 16], host: &str) -> Stage {
    let place = tempfile::tempdir().unwrap();
    let root = Root::find(Some(place.path().join("root"))).unwrap();
    root.create().unwrap();
    let store = Store::open(root.state()).unwrap();
    let identity = Identity {
        id,
        name: host.to_owned(),
        lock: id,
    };
    let disk_service = DiskService::new(
        root,
        store,
        Host::start(threads).unwrap(),
        Arc::default(),
        Controls::new(identity),
        None,
    );
    let shared = place.path().join("shared");
    fs::create_dir(&shared).unwrap();
    let settings = DatastoreSettings::Dir {
        path: shared.clone(),
        io: Default::default(),
    };
    disk_service
        .add_datastore(&name("shared"), settings)
        .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    Stage {
        disk_service: Arc::new(disk_service),
        shared,
        place,
        runtime,
    }
}

impl Stage {
    /// A disk on `shared`.
    fn disk(&self, disk: &str) -> Found {
        self.disk_on("shared", disk)
    }

    fn disk_on(&self, datastore: &str, disk: &str) -> Found {
        let mut order = DiskCreate::new(name(disk), SIZE);
        order.datastore = Some(name(datastore));
        self.disk_service.create(&order).unwrap();
        self.disk_service.store.find(&name(disk)).unwrap()
    }

    /// Another datastore of files.
    fn datastore(&self, datastore: &str) -> PathBuf {
        let path = self.place.path().join(datastore);
        fs::create_dir(&path).unwrap();
        let settings = DatastoreSettings::Dir {
            path: path.clone(),
            io: Default::default(),
        };
        self.disk_service
            .add_datastore(&name(datastore), settings)
            .unwrap();
        path
    }

    fn attach(&self, disk: &str, outside: Outside) -> Outcome<api::Disk> {
        let _context = self.runtime.enter();
        let order = DiskAttach {
            outside,
            ..Default::default()
        };
        self.disk_service.attach(&name(disk), order)
    }

    fn attach_read_only(&self, disk: &str) -> Outcome<api::Disk> {
        let _context = self.runtime.enter();
        let order = DiskAttach {
            access: api::Access::ReadOnly,
            ..Default::default()
        };
        self.disk_service.attach(&name(disk), order)
    }

    /// Does what a start does with the disks that were attached when the daemon ended.
    fn attach_remembered(&self) -> usize {
        let _context = self.runtime.enter();
        self.disk_service.attach_remembered().unwrap()
    }

    fn detach(&self, disk: &str) {
        let _context = self.runtime.enter();
        self.disk_service
            .detach(&name(disk), Clients::Keep)
            .unwrap();
    }

    /// Another host changes a disk's descriptor.
    fn elsewhere(&self, disk: &str, change: impl FnOnce(&mut Found)) {
        let mut found = self.disk_service.store.find(&name(disk)).unwrap();
        change(&mut found);
        self.disk_service.store.write_descriptor(&found).unwrap();
    }

    /// The filters of an attached disk.
    fn filters(&self, disk: &str) -> Vec<String> {
        let live = self.disk_service.live.get(&name(disk)).unwrap();
        live.descriptor().unwrap().filters
    }
}

/// The error, if any, when another host opens an image.
fn other_opens(image: &Path, read_only: bool) -> Option<tidegate_engine::Kind> {
    let options = dir::Options {
        read_only,
        patience: Duration::ZERO,
        ..Default::default()
    };
    dir::open(image, options).err().map(|e| e.kind())
}

/// How often an image is open in this process.
fn openings(image: &Path) -> usize {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let links = all.filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    links.filter(|link| link == image).count()
}

#[test]
fn who_deletes_or_resizes_a_read_only_disk_is_alone_with_it_and_who_copies_it_is_not() {
    let stage = stage();
    let mut found = stage.disk("a");
    found.descriptor.read_only = true;
    let image = found.image();
    let held = stage.disk_service.hold(&found, Purpose::Change).unwrap();
    let busy = Some(tidegate_engine::Kind::Busy);
    assert_eq!(other_opens(&image, true), busy);
    drop(held);
    let held = stage.disk_service.hold(&found, Purpose::Read).unwrap();
    assert_eq!(other_opens(&image, true), None);
    assert_eq!(other_opens(&image, false), busy);
    drop(held);
    assert_eq!(other_opens(&image, false), None);
}

#[test]
fn a_disk_that_another_host_has_by_its_lease_is_not_deleted_resized_or_copied_under_it() {
    let stage = stage();
    let found = stage.disk("a");
    // A host that has no access to the locks of this datastore.
    let other = lease::Leases::new(lease::Settings {
        lease: Duration::from_secs(2),
        ..lease::Settings::new("shared", stage.shared.clone(), [2; 16], 2, "two")
    })
    .unwrap();
    let disk = found.descriptor.uuid.0;
    let guard = lease::Guard::Lease;
    let lease = other
        .take(disk, "a", guard, lease::Takeover::Guarded)
        .unwrap();
    for purpose in [Purpose::Read, Purpose::Forget] {
        let refused = stage
            .disk_service
            .hold(&found, purpose)
            .map(drop)
            .unwrap_err();
        assert_eq!(refused.code, ProblemCode::Locked, "{refused}");
        assert!(refused.to_string().contains("host two"), "{refused}");
    }
    assert!(stage.disk_service.delete(&name("a")).is_err());
    assert!(found.image().exists());
    drop(lease);
}

#[test]
fn a_disk_is_attached_as_it_stands_when_its_lock_is_there() {
    let stage = stage();
    let found = stage.disk("a");
    let image = found.image();
    let held = dir::open(&image, dir::Options::default()).unwrap();
    let before = openings(&image);
    let attached = std::thread::scope(|scope| {
        let attaching = scope.spawn(|| stage.attach("a", Outside::Agreed));
        while openings(&image) == before {
            assert!(!attaching.is_finished(), "it has to wait");
            std::thread::yield_now();
        }
        stage.elsewhere("a", |found| {
            found.descriptor.size.0 = 2 * SIZE;
            File::options()
                .write(true)
                .open(&image)
                .unwrap()
                .set_len(2 * SIZE)
                .unwrap();
        });
        drop(held);
        attaching.join().unwrap().unwrap()
    });
    assert_eq!(attached.size_bytes, 2 * SIZE);
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    assert_eq!(live.export_info().size, 2 * SIZE);
    stage.detach("a");
}

#[test]
fn memory_does_not_grow_while_it_is_attached_and_its_disk_is_left_as_it_was() {
    let stage = stage();
    let model = "nvme".to_owned();
    for (disk, settings) in [
        ("m", DatastoreSettings::Memory {}),
        ("e", DatastoreSettings::Emulated { model }),
    ] {
        stage
            .disk_service
            .add_datastore(&name(disk), settings)
            .unwrap();
        let mut order = DiskCreate::new(name(disk), SIZE);
        order.datastore = Some(name(disk));
        stage.disk_service.create(&order).unwrap();
        let larger = DiskResize {
            size_bytes: 2 * SIZE,
            data: ResizeData::Keep,
        };
        stage.attach(disk, Outside::Agreed).unwrap();
        let refused = stage.disk_service.resize(&name(disk), larger).unwrap_err();
        assert_eq!(refused.code, ProblemCode::Unsupported, "{refused}");
        let found = stage.disk_service.store.find(&name(disk)).unwrap();
        assert_eq!(found.descriptor.size.0, SIZE);
        stage.detach(disk);
        let resized = stage.disk_service.resize(&name(disk), larger).unwrap();
        assert_eq!(resized.size_bytes, 2 * SIZE);
        stage.attach(disk, Outside::Agreed).unwrap();
        stage.detach(disk);
    }
}

#[test]
fn a_disk_that_grew_without_its_guests_being_told_is_told_when_that_is_asked_for_again() {
    let stage = stage();
    let mut found = stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    // The state that remains if the I/O thread refuses the last step.
    found.descriptor.size.0 = 2 * SIZE;
    stage
        .disk_service
        .store
        .resize_image(&found, SIZE, 2 * SIZE)
        .unwrap();
    stage.disk_service.store.write_descriptor(&found).unwrap();
    let size = || stage.disk_service.live.get(&name("a")).unwrap().size();
    assert_eq!(size(), SIZE);
    let larger = DiskResize {
        size_bytes: 2 * SIZE,
        data: ResizeData::Keep,
    };
    stage.disk_service.resize(&name("a"), larger).unwrap();
    assert_eq!(size(), 2 * SIZE);
    stage.detach("a");
}

#[test]
fn the_segments_that_a_guest_is_told_are_set_while_a_disk_is_detached() {
    let stage = stage();
    stage.disk("a");
    let set = |segments| {
        let order = DiskSet {
            seg_max: Some(segments),
            ..Default::default()
        };
        stage.disk_service.set(&name("a"), &order)
    };
    assert_eq!(set(30).unwrap().seg_max, 30);
    assert_eq!(set(127).unwrap_err().code, ProblemCode::Invalid);
    stage.attach("a", Outside::Agreed).unwrap();
    let refused = set(60).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
    let found = stage.disk_service.store.find(&name("a")).unwrap();
    assert_eq!(plan::disk(&found).unwrap().seg_max, 30);
    let told = config_space(&stage.disk_service.root.disk_socket(&name("a")), 12, 4);
    assert_eq!(told, 30_u32.to_le_bytes());
    // Also while the last client is still being disconnected.
    stage.disk_service.detach_all();
}

/// The bytes of its configuration space that a virtual machine reads at a disk's vhost-user socket.
fn config_space(socket: &Path, at: u32, length: u32) -> Vec<u8> {
    use std::io::{Read, Write};
    // SET_PROTOCOL_FEATURES with CONFIG, then GET_CONFIG; each has a header of request, flags and length.
    let numbers = |numbers: &[u32]| -> Vec<u8> {
        let bytes = numbers.iter().flat_map(|number| number.to_ne_bytes());
        bytes.collect()
    };
    let mut ask = numbers(&[16, 1, 8, 1 << 9, 0]);
    ask.extend(numbers(&[24, 1, 12 + length, at, length, 0]));
    ask.resize(ask.len() + usize::try_from(length).unwrap(), 0);
    let mut socket = std::os::unix::net::UnixStream::connect(socket).unwrap();
    socket.write_all(&ask).unwrap();
    let mut head = [0; 24];
    socket.read_exact(&mut head).unwrap();
    let mut space = vec![0; usize::try_from(length).unwrap()];
    socket.read_exact(&mut space).unwrap();
    space
}

#[test]
fn an_image_that_was_cut_is_not_exported() {
    let stage = stage();
    let found = stage.disk("a");
    let image = found.open_image(File::options().write(true)).unwrap();
    image.set_len(SIZE / 2).unwrap();
    let order = DiskExport {
        snapshot: None,
        file: stage.place.path().join("out.img"),
        format: None,
        existing: Existing::Keep,
    };
    let refused = stage.disk_service.export(&name("a"), order).unwrap_err();
    assert!(
        refused.to_string().contains("it may be truncated"),
        "{refused}"
    );
    assert!(!stage.place.path().join("out.img").exists());
}

#[test]
fn a_link_in_the_place_of_an_image_is_not_followed() {
    let stage = stage();
    let found = stage.disk("a");
    let secret = stage.place.path().join("secret");
    fs::rename(found.image(), &secret).unwrap();
    std::os::unix::fs::symlink(&secret, found.image()).unwrap();
    let refused = stage.attach("a", Outside::Accept).unwrap_err();
    assert_eq!(refused.code, ProblemCode::Invalid, "{refused}");
    for purpose in [Purpose::Read, Purpose::Change] {
        assert!(stage.disk_service.hold(&found, purpose).is_err());
    }
    assert!(found.open_image(File::options().read(true)).is_err());
    stage.disk_service.delete(&name("a")).unwrap();
    assert!(secret.exists());
}

#[test]
fn a_device_is_used_only_where_somebody_agreed_to_it_and_only_if_it_is_one() {
    let stage = stage();
    stage.disk("a");
    let secret = stage.place.path().join("secret");
    File::create(&secret).unwrap().set_len(SIZE).unwrap();
    stage.elsewhere("a", |found| found.descriptor.device = Some(secret.clone()));
    let found = stage.disk_service.store.find(&name("a")).unwrap();

    let refused = stage.attach("a", Outside::Agreed).unwrap_err();
    assert!(refused.to_string().contains("--accept-paths"), "{refused}");
    for purpose in [Purpose::Read, Purpose::Change] {
        assert!(stage.disk_service.hold(&found, purpose).is_err());
    }
    let refused = stage.attach("a", Outside::Accept).unwrap_err();
    assert!(
        refused.to_string().contains("not a block device"),
        "{refused}"
    );
    assert!(found.open_image(File::options().read(true)).is_err());
    // A path that was accepted once needs no further consent; another path does.
    stage.disk_service.must_be_agreed(&found).unwrap();
    let mut other = found.clone();
    other.descriptor.device = Some("/dev/sda".into());
    assert!(stage.disk_service.must_be_agreed(&other).is_err());

    let mut order = DiskCreate::new(name("b"), SIZE);
    order.datastore = Some(name("shared"));
    order.device = Some(secret);
    let refused = stage.disk_service.create(&order).unwrap_err();
    assert!(
        refused.to_string().contains("not a block device"),
        "{refused}"
    );
}

#[test]
fn a_disk_on_a_device_that_nobody_here_agreed_to_can_be_deleted_and_the_consent_goes_with_it() {
    let stage = stage();
    stage.disk("a");
    let device: PathBuf = "/dev/null".into();
    stage.elsewhere("a", |found| found.descriptor.device = Some(device.clone()));
    let found = stage.disk_service.store.find(&name("a")).unwrap();
    stage.disk_service.delete(&name("a")).unwrap();
    stage.disk_service.agree(&found).unwrap();
    stage.disk_service.forget_agreed(&found).unwrap();
    assert!(stage.disk_service.must_be_agreed(&found).is_err());
}

#[test]
fn a_file_that_a_filter_writes_is_written_only_if_somebody_here_named_it() {
    let stage = stage();
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    let file = stage.place.path().join("trace");
    let trace = format!("trace:path={}", file.display());
    let named = vec!["null".to_owned(), trace.clone()];

    // By another host, or by anyone with write access to the datastore.
    stage.elsewhere("a", |found| found.descriptor.filters = named.clone());
    stage.disk_service.follow(&live);
    assert_eq!(stage.filters("a"), ["null"]);
    // A command here that changes something else does not apply it either.
    let order = DiskSet {
        policy: Some(api::PolicySet {
            shares: Some(700),
            ..Default::default()
        }),
        ..Default::default()
    };
    stage.disk_service.set(&name("a"), &order).unwrap();
    assert_eq!(stage.filters("a"), ["null"]);
    // Nor is it applied when the disk is attached again, unless the command accepts it.
    drop(live);
    stage.detach("a");
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.filters("a"), ["null"]);
    assert!(!file.exists());
    stage.detach("a");
    stage.attach("a", Outside::Accept).unwrap();
    assert_eq!(stage.filters("a"), named);
    assert!(file.exists());
    fs::remove_file(&file).unwrap();

    // A command here allows the paths that it names, also after a restart.
    let other = stage.place.path().join("other");
    let order = DiskSet {
        filters: Some(vec![format!("trace:path={}", other.display())]),
        ..Default::default()
    };
    stage.disk_service.set(&name("a"), &order).unwrap();
    assert!(other.exists());
    stage.detach("a");
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.filters("a").len(), 1);
    stage.detach("a");
    // Paths that are no longer named are removed from the list.
    let order = DiskSet {
        filters: Some(Vec::new()),
        ..Default::default()
    };
    stage.disk_service.set(&name("a"), &order).unwrap();
    assert!(stage.disk_service.store.agreed().unwrap().is_empty());
}

#[test]
fn a_disk_that_is_gone_or_cannot_be_read_is_let_go_of_all_the_same() {
    let gone = |found: &Found| fs::remove_dir_all(&found.folder).unwrap();
    let damaged = |found: &Found| fs::write(found.descriptor_file(), "nonsense").unwrap();
    for spoil in [gone as fn(&Found), damaged] {
        let stage = stage();
        let forgotten = |left: &[Name]| {
            assert!(stage.disk_service.live.names().is_empty());
            assert!(stage.disk_service.store.attached().unwrap().keys().eq(left));
            assert_eq!(stage.disk_service.troubles().len(), left.len());
        };
        let found = stage.disk("a");
        stage.attach("a", Outside::Agreed).unwrap();
        spoil(&found);
        stage.detach("a");
        forgotten(&[]);

        // A disk that stayed wanted over a restart, as after a crash during which another host took it over.
        let found = stage.disk("b");
        stage.attach("b", Outside::Agreed).unwrap();
        stage.disk_service.detach_all();
        spoil(&found);
        assert_eq!(stage.attach_remembered(), 0);
        forgotten(&[name("b")]);
        let refused = stage
            .disk_service
            .remove_datastore(&name("shared"))
            .unwrap_err();
        assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
        stage.detach("b");
        forgotten(&[]);
        let unknown = stage
            .disk_service
            .detach(&name("c"), Clients::Keep)
            .unwrap_err();
        assert_eq!(unknown.code, ProblemCode::NotFound, "{unknown}");
        stage
            .disk_service
            .remove_datastore(&name("shared"))
            .unwrap();
    }
}

#[test]
fn whoever_asks_for_a_disk_that_is_remembered_and_gone_is_told_how_to_let_it_go() {
    let stage = stage();
    let found = stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.disk_service.detach_all();
    fs::remove_dir_all(&found.folder).unwrap();
    assert_eq!(stage.attach_remembered(), 0);
    let told = stage.disk_service.troubles().remove(0);
    for problem in [told, stage.disk_service.delete(&name("a")).unwrap_err()] {
        assert!(problem.to_string().contains("disk detach a"), "{problem}");
    }
}

#[test]
fn no_other_datastore_is_asked_for_a_disk_that_is_attached_or_remembered() {
    let stage = stage();
    let other = stage.datastore("other");
    let found = stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    // A lookup there finds a second one, and cannot determine which is meant.
    fs::create_dir(other.join("a")).unwrap();
    fs::copy(found.descriptor_file(), other.join("a/disk.toml")).unwrap();
    assert!(stage.disk_service.store.find(&name("a")).is_err());

    let is_meant = || {
        let disk = stage
            .disk_service
            .set(&name("a"), &DiskSet::default())
            .unwrap();
        assert_eq!(disk.datastore, name("shared"));
    };
    is_meant();
    stage.disk_service.detach_all();
    is_meant();
    assert_eq!(stage.attach_remembered(), 1);
    stage.detach("a");
    // Nothing is known about a disk that does not exist.
    assert!(stage.disk_service.disk(&name("a")).is_err());
}

#[test]
fn a_datastore_is_not_forgotten_while_a_disk_of_it_comes_or_is_served() {
    let stage = stage();
    let image = stage.disk("a").image();
    let forget = || stage.disk_service.remove_datastore(&name("shared"));
    let held = dir::open(&image, dir::Options::default()).unwrap();
    let before = openings(&image);
    let refused = std::thread::scope(|scope| {
        let attaching = scope.spawn(|| stage.attach("a", Outside::Agreed));
        while openings(&image) == before {
            assert!(!attaching.is_finished(), "it has to wait");
            std::thread::yield_now();
        }
        let refused = forget();
        drop(held);
        attaching.join().unwrap().unwrap();
        refused.unwrap_err()
    });
    assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
    assert!(refused.to_string().contains("detached: a"), "{refused}");

    // Also a disk that is not to be attached at the next start.
    stage
        .disk_service
        .store
        .set_attached(BTreeMap::new())
        .unwrap();
    let refused = forget().unwrap_err();
    assert_eq!(refused.code, ProblemCode::Busy, "{refused}");
    stage.detach("a");
    forget().unwrap();
}
