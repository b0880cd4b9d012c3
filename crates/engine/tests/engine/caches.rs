//! Disks with a flash cache, on files, driven by NBD clients.

use super::client::{Client, Verifier};
use super::rig::{PATIENCE, client, engine, eventually, image, open_file, spec, tempdir};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::{CacheReport, LayoutOrder, LayoutSpec, MemberState, Refusal, Target};
use tidegate_engine::datastore::dir::SharedFile;
use tidegate_engine::{Disk, DiskSpec, Engine, Flash, Kind};

const SIZE: u64 = 6 << 20;
const CHUNK: u64 = 1 << 20;
/// The disk's chunks on each device: not in order, and not all.
const CHUNKS: [u32; 4] = [5, 2, 3, 6];

/// Two flash devices.
pub(crate) struct Devices {
    paths: [PathBuf; 2],
    pub(crate) open: Vec<SharedFile>,
}

impl Devices {
    pub(crate) fn new(place: &Path) -> Devices {
        let paths = ["flash0", "flash1"].map(|name| image(place, name, 8 * CHUNK));
        let mut devices = Devices {
            paths,
            open: Vec::new(),
        };
        devices.reopen();
        devices
    }

    fn reopen(&mut self) {
        self.open.clear();
        let open = |path: &PathBuf| SharedFile::open(path, Duration::ZERO).expect("nobody has it");
        self.open = self.paths.iter().map(open).collect();
    }

    /// The use of the disk after this one.
    pub(crate) fn flash(&self, last_use: u64, has_dirty: bool) -> Flash {
        let image = |file: &SharedFile| Some(file.image().expect("it opens"));
        Flash {
            devices: self.open.iter().map(image).collect(),
            cache: [9; 16],
            area: Area::new(CHUNK, CHUNKS.to_vec()).expect("enough"),
            attachments: [last_use, last_use + 1],
            has_dirty,
            without: 0,
            policy_state: Vec::new(),
        }
    }
}

fn attach(engine: &Engine, backing: &Path, flash: Flash) -> Disk {
    let members = vec![Some(open_file(backing))];
    let attached = engine.attach_cached(spec("disk", SIZE), members, flash, PATIENCE);
    attached.expect("the disk attaches")
}

fn report(disk: &Disk) -> CacheReport {
    let report = disk.layout().expect("it is attached");
    let cache = report.and_then(|report| report.cache);
    cache.expect("it has a cache")
}

fn write_back(disk: &Disk) {
    let order = LayoutOrder::CacheMode(CacheMode::WriteBack);
    disk.order_layout(order).expect("the mode changes");
}

/// Writes other bytes until the page is in the cache, and these at last.
fn write_until_cached(disk: &Disk, at: u64, bytes: &[u8]) {
    let mut client = client(disk);
    eventually("the page is in the cache", || {
        client.write(at, &vec![0x11; bytes.len()]).expect("a write");
        report(disk).dirty > 0
    });
    client.write(at, bytes).expect("a write");
}

fn clean(disk: &Disk) {
    let order = LayoutOrder::CacheMode(CacheMode::WriteThrough);
    disk.order_layout(order).expect("the mode changes");
    eventually("everything is on the disk", || !report(disk).keeps_dirty);
}

#[test]
fn what_only_flash_has_is_there_after_the_next_attach_and_goes_to_the_disk() {
    let place = tempdir();
    let backing = image(place.path(), "backing", SIZE);
    let mut devices = Devices::new(place.path());
    let engine = engine(1);
    let disk = attach(&engine, &backing, devices.flash(0, false));
    write_back(&disk);
    write_until_cached(&disk, 65536, &[0xab; 8192]);
    disk.detach(PATIENCE).expect("it detaches");
    let on_disk = std::fs::read(&backing).expect("the backing file");
    assert_ne!(
        on_disk[65536..65536 + 8192],
        [0xab; 8192],
        "it is on flash only"
    );

    devices.reopen();
    let disk = attach(&engine, &backing, devices.flash(1, true));
    assert_eq!(
        client(&disk).read(65536, 8192).expect("a read"),
        [0xab; 8192]
    );
    write_back(&disk);
    clean(&disk);
    disk.end_cache(PATIENCE)
        .expect("it goes on without the cache");
    assert!(!disk.is_cached());
    assert_eq!(
        client(&disk).read(65536, 8192).expect("a read"),
        [0xab; 8192]
    );
    disk.detach(PATIENCE).expect("it detaches");
    let on_disk = std::fs::read(&backing).expect("the backing file");
    assert_eq!(on_disk[65536..65536 + 8192], [0xab; 8192]);
}

#[test]
fn a_cache_whose_dirty_blocks_were_replaced_is_refused() {
    let place = tempdir();
    let backing = image(place.path(), "backing", SIZE);
    let mut devices = Devices::new(place.path());
    let engine = engine(1);
    let disk = attach(&engine, &backing, devices.flash(0, false));
    write_back(&disk);
    write_until_cached(&disk, 0, &[0xab; 4096]);
    disk.detach(PATIENCE).expect("it detaches");
    devices.open.clear();
    for path in &devices.paths {
        let len = usize::try_from(8 * CHUNK).expect("a small file");
        std::fs::write(path, vec![0xdd; len]).expect("other bytes");
    }
    devices.reopen();
    let members = vec![Some(open_file(&backing))];
    let flash = devices.flash(1, true);
    let refused = engine.attach_cached(spec("disk", SIZE), members, flash, PATIENCE);
    let refusal = refused.err().and_then(|error| error.refusal());
    assert_eq!(refusal, Some(Refusal::Blank(Target(1))));
}

#[test]
fn a_disk_gets_and_loses_its_cache_while_it_is_used() {
    let place = tempdir();
    let devices = Devices::new(place.path());
    let engine = engine(1);
    let mirror = LayoutSpec::Mirror;
    for layout in [LayoutSpec::Plain, mirror] {
        let count = if layout == mirror { 2 } else { 1 };
        let spec = DiskSpec {
            layout,
            ..spec("disk", SIZE)
        };
        let name = |number| format!("{layout}{number}");
        let size = layout.member_size(SIZE, count);
        let paths = (0..count).map(|number| image(place.path(), &name(number), size));
        let members: Vec<_> = paths.map(|path| Some(open_file(&path))).collect();
        let disk = match layout {
            LayoutSpec::Plain => {
                let only = members.into_iter().flatten().next().expect("one image");
                engine.attach(spec, only).expect("the disk attaches")
            }
            _ => {
                let attached = engine.attach_members(spec, members, PATIENCE);
                attached.expect("the disk attaches")
            }
        };
        let mut verifier = Verifier::new(client(&disk), 0, SIZE, 512, 3);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let rounds = scope.spawn(|| {
                let mut rounds = 0;
                while !done.load(Ordering::Relaxed) {
                    verifier.round();
                    rounds += 1;
                }
                rounds
            });
            for number in 0..10 {
                disk.begin_cache(devices.flash(100 * number, false), PATIENCE)
                    .expect("it gets a cache");
                write_back(&disk);
                eventually("flash has what the disk does not", || {
                    report(&disk).dirty > 0
                });
                clean(&disk);
                disk.end_cache(PATIENCE).expect("it loses the cache");
            }
            done.store(true, Ordering::Relaxed);
            assert!(rounds.join().expect("no difference") > 0);
        });
        verifier.check_all();
        disk.detach(PATIENCE).expect("it detaches");
    }
}

/// A mirror of two files, and their paths.
fn attach_mirror(engine: &Engine, place: &Path) -> (Disk, [PathBuf; 2]) {
    let spec = DiskSpec {
        layout: LayoutSpec::Mirror,
        ..spec("mirror", SIZE)
    };
    let size = spec.layout.member_size(SIZE, 2);
    let paths = ["m0", "m1"].map(|name| image(place, name, size));
    let members = paths.each_ref().map(|path| Some(open_file(path)));
    let attached = engine.attach_members(spec, members.into(), PATIENCE);
    (attached.expect("the disk attaches"), paths)
}

#[test]
fn a_mirror_gets_and_loses_its_cache_while_a_member_cannot_be_read() {
    let place = tempdir();
    let devices = Devices::new(place.path());
    let engine = engine(1);
    let (disk, paths) = attach_mirror(&engine, place.path());
    let mut guest = client(&disk);
    guest.write(0, &[0xab; 8192]).expect("a write");
    let lost = std::fs::File::options().write(true).open(&paths[1]);
    lost.and_then(|file| file.set_len(0))
        .expect("its bytes are gone");
    disk.begin_cache(devices.flash(0, false), PATIENCE)
        .expect("the members are not opened again");
    guest.write(65536, &[0xcd; 4096]).expect("a write");
    disk.end_cache(PATIENCE).expect("it loses the cache");
    guest.write(131_072, &[0xef; 4096]).expect("a write");
    assert_eq!(guest.read(0, 8192).expect("a read"), [0xab; 8192]);
    assert_eq!(guest.read(65536, 4096).expect("a read"), [0xcd; 4096]);
    drop(guest);
    disk.detach(PATIENCE).expect("it detaches");
}

#[test]
fn a_disk_whose_cache_is_refused_goes_on_as_it_was() {
    let place = tempdir();
    let devices = Devices::new(place.path());
    let engine = engine(1);
    let backing = image(place.path(), "backing", SIZE);
    let plain = engine.attach(spec("plain", SIZE), open_file(&backing));
    let (mirror, paths) = attach_mirror(&engine, place.path());
    for disk in [plain.expect("the disk attaches"), mirror] {
        let mut guest = client(&disk);
        guest.write(4096, &[0xab; 4096]).expect("a write");
        let unusable = Flash {
            without: 0b11,
            ..devices.flash(0, false)
        };
        let refused = disk.begin_cache(unusable, PATIENCE);
        let refusal = refused.err().and_then(|error| error.refusal());
        assert!(matches!(refusal, Some(Refusal::Missing(_))), "{refusal:?}");
        assert!(!disk.is_cached());
        assert_eq!(guest.read(4096, 4096).expect("a read"), [0xab; 4096]);
        guest.write(8192, &[0xcd; 4096]).expect("a write");
        disk.begin_cache(devices.flash(0, false), PATIENCE)
            .expect("it gets the next one");
        assert_eq!(guest.read(8192, 4096).expect("a read"), [0xcd; 4096]);
        drop(guest);
        disk.detach(PATIENCE).expect("it detaches");
    }
    let at = usize::try_from(tidegate_core::layout::DATA_AT).expect("small");
    for path in paths {
        let member = std::fs::read(path).expect("a member");
        assert_eq!(member[at + 8192..at + 12288], [0xcd; 4096]);
    }
}

/// Has a guest write and check while `act` goes on, then checks everything. Returns the guest.
fn while_it_is_used(disk: &Disk, seed: u64, act: impl FnOnce()) -> Verifier {
    let mut verifier = Verifier::new(client(disk), 0, SIZE, 512, seed);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                verifier.round();
            }
        });
        act();
        done.store(true, Ordering::Relaxed);
    });
    verifier.check_all();
    verifier
}

fn is_dirty(disk: &Disk) {
    eventually("flash has what the disk does not", || {
        report(disk).dirty > 0
    });
}

/// Puts another device in a place of a cache whose other device has everything, and waits until it has everything too.
fn exchange(disk: &Disk, nth: u8, device: &SharedFile) {
    let target = Target(1 + nth);
    let image = || Some(device.image().expect("it opens"));
    if report(disk).devices >> nth & 1 == 1 {
        let refused = disk.set_flash_device(nth, image());
        assert_eq!(refused.err().map(|e| e.kind()), Some(Kind::Busy));
        disk.order_layout(LayoutOrder::Drop(target))
            .expect("the other one has everything");
    }
    disk.set_flash_device(nth, image())
        .expect("it is exchanged")
        .wait(PATIENCE)
        .expect("the old one is closed");
    disk.order_layout(LayoutOrder::Replace(target))
        .expect("it is filled");
    eventually("both devices have everything", || {
        let cache = report(disk);
        cache.devices == 0b11 && !cache.resyncing
    });
}

#[test]
fn flash_devices_are_replaced_removed_and_added_while_a_disk_writes_back_to_them() {
    let place = tempdir();
    let devices = Devices::new(place.path());
    let open = |name: &str| {
        let path = image(place.path(), name, 8 * CHUNK);
        // What lies there does not matter.
        std::fs::write(
            &path,
            vec![0xdd; usize::try_from(8 * CHUNK).expect("small")],
        )
        .expect("other bytes");
        SharedFile::open(&path, Duration::ZERO).expect("nobody has it")
    };
    let [second, third, fourth] = ["flash2", "flash3", "flash4"].map(open);
    let backing = image(place.path(), "backing", SIZE);
    let engine = engine(1);
    let disk = attach(&engine, &backing, devices.flash(0, false));
    write_back(&disk);
    let mut guest = while_it_is_used(&disk, 11, || {
        for (nth, device) in [(1, &second), (0, &third)] {
            is_dirty(&disk);
            exchange(&disk, nth, device);
        }
        is_dirty(&disk);
        disk.order_layout(LayoutOrder::Drop(Target(2)))
            .expect("the other one has everything");
        let gone = disk.set_flash_device(1, None).expect("it is gone");
        gone.wait(PATIENCE).expect("the old one is closed");
        let last = disk.order_layout(LayoutOrder::Drop(Target(1)));
        assert!(last.is_err(), "the last device stays");
        is_dirty(&disk);
    });
    guest.check_all();
    drop((guest, devices));
    let all = |disk: &Disk| {
        let whole = u32::try_from(SIZE).expect("small");
        client(disk).read(0, whole).expect("a read")
    };
    let written = all(&disk);
    disk.detach(PATIENCE).expect("it detaches");

    // The disk is attached with one device, and gets a second one.
    let one = Flash {
        devices: vec![Some(third.image().expect("it opens")), None],
        cache: [9; 16],
        area: Area::new(CHUNK, CHUNKS.to_vec()).expect("enough"),
        attachments: [1, 2],
        has_dirty: true,
        without: 0b10,
        policy_state: Vec::new(),
    };
    let disk = attach(&engine, &backing, one);
    assert_eq!(report(&disk).devices, 0b01);
    assert!(report(&disk).dirty > 0 && all(&disk) == written);
    exchange(&disk, 1, &fourth);
    // The new one is alone now.
    disk.order_layout(LayoutOrder::Drop(Target(1)))
        .expect("the new one has everything");
    assert!(all(&disk) == written);
    clean(&disk);
    disk.end_cache(PATIENCE).expect("it loses the cache");
    assert!(all(&disk) == written);
    disk.detach(PATIENCE).expect("it detaches");
}

#[test]
fn a_disk_moves_below_its_cache_while_it_is_used() {
    let place = tempdir();
    let devices = Devices::new(place.path());
    let engine = engine(1);
    let [first, second] = ["first", "second"].map(|name| image(place.path(), name, SIZE));
    let disk = attach(&engine, &first, devices.flash(0, false));
    write_back(&disk);
    let mut guest = while_it_is_used(&disk, 5, || {
        for (keep, to) in [(0, &second), (1, &second)] {
            is_dirty(&disk);
            disk.begin_transfer(open_file(to), PATIENCE)
                .expect("it begins to move");
            assert_eq!(disk.members(), 2);
            let busy = disk.end_cache(PATIENCE).err().map(|error| error.kind());
            assert_eq!(busy, Some(Kind::Busy), "the cache stays while it moves");
            eventually("everything is copied", || {
                let members = disk.layout().expect("it is attached").expect("layouts");
                members.members[1].state == MemberState::InSync
            });
            is_dirty(&disk);
            assert!(disk.pause_transfer(PATIENCE).expect("it is held"));
            let old = disk.end_transfer(Target(keep), PATIENCE);
            old.expect("the move ends")
                .wait(PATIENCE)
                .expect("the other image is closed");
            assert_eq!(disk.members(), 1);
        }
    });
    std::fs::remove_file(&first).expect("nothing has it open");
    clean(&disk);
    disk.end_cache(PATIENCE).expect("it loses the cache");
    guest.check_all();
    drop(guest);
    disk.detach(PATIENCE).expect("it detaches");
}

#[test]
fn a_mirror_below_a_cache_gets_a_member_and_loses_one() {
    let place = tempdir();
    let devices = Devices::new(place.path());
    let engine = engine(1);
    let (disk, _) = attach_mirror(&engine, place.path());
    let size = LayoutSpec::Mirror.member_size(SIZE, 2);
    let third = image(place.path(), "m2", size);
    disk.begin_cache(devices.flash(0, false), PATIENCE)
        .expect("it gets a cache");
    write_back(&disk);
    let mut guest = while_it_is_used(&disk, 7, || {
        is_dirty(&disk);
        let added = disk.add_member(Some(open_file(&third)), PATIENCE);
        assert_eq!(added.expect("it is added"), Target(2));
        disk.order_layout(LayoutOrder::Replace(Target(2)))
            .expect("it is copied");
        eventually("the new member has everything", || {
            let members = disk.layout().expect("it is attached").expect("layouts");
            members.members[2].state == MemberState::InSync
        });
        for lost in [Target(0), Target(1)] {
            disk.order_layout(LayoutOrder::Drop(lost))
                .expect("it is not needed");
        }
        is_dirty(&disk);
    });
    assert_eq!(report(&disk).devices, 0b11);
    clean(&disk);
    disk.end_cache(PATIENCE).expect("it loses the cache");
    assert_eq!(disk.members(), 3);
    guest.check_all();
    drop(guest);
    disk.detach(PATIENCE).expect("it detaches");
}

#[test]
fn a_disk_below_a_cache_grows_while_it_is_used() {
    let place = tempdir();
    let mut devices = Devices::new(place.path());
    let engine = engine(1);
    // The end cuts a block.
    let backing = image(place.path(), "backing", SIZE + CHUNK);
    let less = SIZE - 2048;
    let spec = |size| spec("disk", size);
    let members = || vec![Some(open_file(&backing))];
    let flash = devices.flash(0, false);
    let attached = engine.attach_cached(spec(less), members(), flash, PATIENCE);
    let disk = attached.expect("the disk attaches");
    write_back(&disk);
    let mut guest = client(&disk);
    guest.write(less - 6144, &[0xaa; 6144]).expect("a write");
    write_until_cached(&disk, SIZE - 65536, &[0xab; 8192]);
    disk.resize(SIZE + CHUNK).expect("it grows");
    let mut guest = client(&disk);
    guest.write(less, &[0xac; 2048]).expect("a write");
    write_until_cached(&disk, SIZE - 4096, &[0xad; 8192]);
    disk.detach(PATIENCE).expect("it detaches");

    devices.reopen();
    let flash = devices.flash(1, true);
    let attached = engine.attach_cached(spec(SIZE + CHUNK), members(), flash, PATIENCE);
    let disk = attached.expect("the disk attaches");
    let mut guest = client(&disk);
    let mut read = |at, len| guest.read(at, len).expect("a read");
    assert_eq!(read(SIZE - 65536, 8192), [0xab; 8192]);
    assert_eq!(read(SIZE - 4096, 8192), [0xad; 8192]);
    assert_eq!(read(less - 6144, 4096), [0xaa; 4096]);
    disk.detach(PATIENCE).expect("it detaches");
}

/// Pages of a disk, in groups of which the ghosts remember all. Twice as many groups are more than the cache has slots.
const GROUP: u64 = 12;

/// Reads each page of a group once.
fn read_group(client: &mut Client, group: u64) {
    for page in 0..GROUP {
        let at = (group * GROUP + page * 5 % GROUP) << 16;
        client.read(at, 1 << 16).expect("a read");
    }
}

#[test]
fn a_page_that_was_evicted_enters_at_its_first_access_after_the_next_attach() {
    let place = tempdir();
    let backing = image(place.path(), "backing", SIZE);
    let mut devices = Devices::new(place.path());
    let engine = engine(1);
    let disk = attach(&engine, &backing, devices.flash(0, false));
    let mut reader = client(&disk);
    for group in 0..6 {
        // The third access that is not in one moment with others brings a page in.
        let before = report(&disk).fills;
        eventually("most pages of the group are in the cache", || {
            read_group(&mut reader, group);
            reader.flush().expect("a flush");
            report(&disk).fills >= before + GROUP / 2
        });
    }
    let state = disk.policy_state().expect("it is attached");
    let state = state.expect("it has a cache");
    drop(reader);
    disk.detach(PATIENCE).expect("it detaches");
    assert!(matches!(disk.policy_state(), Ok(None)));

    let mut entered = |last_use: u64, policy_state: Vec<u8>| {
        devices.reopen();
        let flash = Flash {
            policy_state,
            ..devices.flash(last_use, false)
        };
        let disk = attach(&engine, &backing, flash);
        let mut reader = client(&disk);
        (0..6).for_each(|group| read_group(&mut reader, group));
        drop(reader);
        let fills = report(&disk).fills;
        disk.detach(PATIENCE).expect("it detaches");
        fills
    };
    assert_eq!(entered(1, Vec::new()), 0, "nothing is known of them");
    let fills = entered(2, state);
    assert!(fills > 0);
    assert_eq!(
        entered(3, vec![0x55; 5000]),
        0,
        "what is no state is not used"
    );
}

/// In write-back mode, so that flash has the only copy of most of it while the disk moves.
#[test]
fn a_cached_disk_moves_between_threads_while_it_is_used() {
    let place = tempdir();
    let backing = image(place.path(), "backing", SIZE);
    let mut devices = Devices::new(place.path());
    let engine = engine(3);
    let disk = attach(&engine, &backing, devices.flash(0, false));
    write_back(&disk);
    super::moves::moved_under_load(&engine, &disk, super::moves::moves());
    assert!(report(&disk).in_use);
    let before = client(&disk)
        .read(0, u32::try_from(SIZE).expect("small"))
        .expect("a read");
    disk.detach(PATIENCE).expect("it detaches");
    super::moves::nothing_is_left(&engine);
    devices.reopen();
    let disk = attach(&engine, &backing, devices.flash(1, true));
    let after = client(&disk).read(0, u32::try_from(SIZE).expect("small"));
    assert!(after.expect("a read") == before);
    disk.detach(PATIENCE).expect("it detaches");
}
