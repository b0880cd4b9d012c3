//! Tests of the records and the devices of caches.

use super::*;
use std::fs::File;
use tidegate_api::cache::CacheDeviceAdd;

const SIZE: u64 = 64 << 20;

struct Place {
    folder: tempfile::TempDir,
    caches: Caches,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let caches = Caches::new(folder.path());
        Place { folder, caches }
    }

    fn order(&self, name: &str, devices: &[&str]) -> CacheCreate {
        CacheCreate {
            name: name.parse().unwrap(),
            devices: devices
                .iter()
                .map(|name| self.folder.path().join(name))
                .collect(),
            size_bytes: Some(SIZE),
            endurance_dwpd: None,
            data: CacheData::Keep,
        }
    }

    fn create(&self, order: &CacheCreate) -> Outcome<()> {
        self.caches.create(order, |_| Ok(()))
    }
}

fn said<T: std::fmt::Debug>(refused: Outcome<T>) -> String {
    let problem = refused.unwrap_err();
    format!("{problem} {}", problem.remedy.clone().unwrap_or_default())
}

#[test]
fn a_cache_is_created_found_again_and_removed() {
    let place = Place::new();
    let order = place.order("fast", &["a", "b"]);
    place.create(&order).unwrap();
    assert!(said(place.create(&order)).contains("cache remove fast"));
    let again = Caches::new(place.folder.path());
    drop(place.caches);
    let record = again.record(&order.name).unwrap();
    assert_eq!((record.chunks(), record.chunk.0), (64, 1 << 20));
    let sizes = [1, 1 << 20, (1 << 20) + 1, u64::MAX];
    assert_eq!(
        sizes.map(|bytes| record.in_chunks(bytes)),
        [1, 1, 2, 1 << 44]
    );
    let devices = again.devices(&order.name, &record);
    assert_eq!(devices.problems(), [None, None]);
    assert_eq!(devices.images().iter().flatten().count(), 2);
    drop(devices);
    again.remove(&order.name).unwrap();
    assert!(again.record(&order.name).is_err());
    // Nothing is left on the devices that would be in the way.
    again.create(&order, |_| Ok(())).unwrap();
}

#[test]
fn a_device_of_a_cache_becomes_no_other_one_and_that_is_said_at_once() {
    let place = Place::new();
    place.create(&place.order("fast", &["a", "b"])).unwrap();
    let link = place.folder.path().join("link");
    std::os::unix::fs::symlink(place.folder.path().join("b"), link).unwrap();
    let began = std::time::Instant::now();
    for device in ["a", "link"] {
        let mut order = place.order("other", &["new", device]);
        order.data = CacheData::Overwrite;
        let refused = said(place.create(&order));
        assert!(refused.contains("is a device of cache fast"), "{refused}");
    }
    // A file that is missing belongs to its cache still.
    std::fs::remove_file(place.folder.path().join("a")).unwrap();
    let refused = said(place.create(&place.order("other", &["a"])));
    assert!(refused.contains("is a device of cache fast"), "{refused}");
    assert!(began.elapsed() < devices::PATIENCE, "it waits for nobody");
}

#[test]
fn what_has_data_becomes_no_cache_unless_that_is_said() {
    let place = Place::new();
    let path = place.folder.path().join("a");
    std::fs::write(&path, vec![0xee; 4096]).unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(SIZE)
        .unwrap();
    let mut order = place.order("fast", &["a"]);
    let refused = said(place.create(&order));
    assert!(
        refused.contains("not empty") && refused.contains("--force"),
        "{refused}"
    );
    order.data = CacheData::Overwrite;
    place.create(&order).unwrap();
    place.caches.remove(&order.name).unwrap();
}

#[test]
fn impossible_caches_are_refused_and_leave_nothing() {
    let place = Place::new();
    let bad = |change: &dyn Fn(&mut CacheCreate)| {
        let mut order = place.order("fast", &["a"]);
        change(&mut order);
        let said = said(place.create(&order));
        assert!(!place.folder.path().join("a").exists(), "{said}");
        said
    };
    assert!(bad(&|order| order.size_bytes = Some(1 << 20)).contains("64MiB to 4TiB"));
    assert!(bad(&|order| order.size_bytes = None).contains("give --size"));
    assert!(bad(&|order| order.endurance_dwpd = Some(0.0)).contains("1dwpd"));
    assert!(bad(&|order| order.devices.push(order.devices[0].clone())).contains("named twice"));
    assert!(bad(&|order| order.devices = vec!["a".into()]).contains("absolute"));
    assert!(bad(&|order| order.name = "write-back".parse().unwrap()).contains("another name"));
}

#[test]
fn a_device_with_other_bytes_or_of_another_cache_is_not_used() {
    let place = Place::new();
    for (name, devices) in [("fast", ["a", "b"]), ("other", ["c", "d"])] {
        place.create(&place.order(name, &devices)).unwrap();
    }
    let at = |name: &str| place.folder.path().join(name);
    let again = Caches::new(place.folder.path());
    drop(place.caches);
    std::fs::write(at("a"), vec![0xdd; usize::try_from(SIZE).unwrap()]).unwrap();
    std::fs::copy(at("c"), at("b")).unwrap();
    let name = "fast".parse().unwrap();
    let devices = again.devices(&name, &again.record(&name).unwrap());
    let [Some(first), Some(second)] = &devices.problems()[..] else {
        panic!("both are refused");
    };
    assert!(first.to_string().contains("overwritten"), "{first}");
    assert!(second.to_string().contains("another cache"), "{second}");
    assert!(devices.are_all_away());
}

#[test]
fn a_disk_has_the_same_chunks_until_it_is_released() {
    let place = Place::new();
    let order = place.order("fast", &["a"]);
    place.create(&order).unwrap();
    let wanted = Wanted {
        shares: 1000,
        useful: usize::MAX,
        min: None,
        max: Some(10),
        planned: None,
    };
    let (name, disk) = (&order.name, "d1".parse().unwrap());
    let uuid = Uuid::from_random([1; 16]);
    let grant = || place.caches.grant(name, &disk, uuid, wanted).unwrap();
    let first = grant().expect("there is room");
    assert_eq!(grant(), Some(first));
    assert!(said(place.caches.remove(name)).contains("--cache none"));
    place.caches.shrink(name, uuid, 4).unwrap();
    assert_eq!(
        place.caches.record(name).unwrap().parts[0].chunks,
        [1, 2, 3, 4]
    );
    place.caches.take(name, uuid, [2, 9]).unwrap();
    let record = place.caches.record(name).unwrap();
    assert_eq!(record.parts[0].chunks, [1, 3, 4], "chunk 9 is not its own");
    place.caches.release(name, uuid).unwrap();
    assert!(place.caches.record(name).unwrap().parts.is_empty());
    place.caches.remove(name).unwrap();
}

#[test]
fn a_record_that_gives_a_chunk_twice_is_not_used() {
    let place = Place::new();
    let order = place.order("fast", &["a"]);
    place.create(&order).unwrap();
    let path = place.folder.path().join("caches/fast.toml");
    let part = |nth: u8, chunks: &str| {
        let uuid = Uuid::from_random([nth; 16]);
        format!(
            "[[part]]\ndisk = \"d{nth}\"\nuuid = \"{uuid}\"\nshares = 1000\nchunks = \"{chunks}\"\n"
        )
    };
    let text = std::fs::read_to_string(&path).unwrap();
    for (one, other) in [("1-4", "4-5"), ("0-3", "5-6"), ("1-4", "60-64")] {
        std::fs::write(&path, format!("{text}{}{}", part(1, one), part(2, other))).unwrap();
        let refused = said(place.caches.record(&order.name));
        assert!(refused.contains("a chunk"), "{refused}");
    }
}

#[test]
fn an_older_record_gives_no_chunks_and_its_devices_are_not_used() {
    let place = Place::new();
    let order = place.order("fast", &["a", "b"]);
    place.create(&order).unwrap();
    let path = place.folder.path().join("caches/fast.toml");
    let wanted = Wanted {
        shares: 1000,
        useful: usize::MAX,
        min: None,
        max: Some(10),
        planned: None,
    };
    let name = &order.name;
    let grant = |nth: u8| {
        let disk = format!("d{nth}").parse().unwrap();
        let uuid = Uuid::from_random([nth; 16]);
        place.caches.grant(name, &disk, uuid, wanted)
    };
    grant(1).unwrap();
    let older = std::fs::read(&path).unwrap();
    grant(2).unwrap();
    let newest = std::fs::read(&path).unwrap();
    std::fs::write(&path, older).unwrap();
    let refused = said(grant(3));
    assert!(
        refused.contains("too old") && refused.contains("restore"),
        "{refused}"
    );
    assert!(said(grant(1)).contains("too old"));
    let Place { folder, caches } = place;
    drop(caches);
    let again = Caches::new(folder.path());
    let devices = again.devices(name, &again.record(name).unwrap());
    assert!(devices.are_all_away());
    std::fs::write(&path, newest).unwrap();
    let devices = again.devices(name, &again.record(name).unwrap());
    assert_eq!(devices.problems(), [None, None]);
}

#[test]
fn a_device_that_is_missing_is_to_be_put_back_or_replaced() {
    for (devices, remedy) in [
        (
            &["a", "b"][..],
            "tidegate cache device replace fast 0 --with PATH",
        ),
        (&["a"], "tidegate cache remove fast"),
    ] {
        let place = Place::new();
        let order = place.order("fast", devices);
        place.create(&order).unwrap();
        let Place { folder, caches } = place;
        drop(caches);
        std::fs::remove_file(folder.path().join("a")).unwrap();
        let again = Caches::new(folder.path());
        let devices = again.devices(&order.name, &again.record(&order.name).unwrap());
        let mut missing = devices.problems().into_iter().flatten();
        let problem = missing.next().expect("it is not there");
        assert_eq!(missing.next(), None);
        let missing = problem.remedy.unwrap();
        assert!(missing.contains("put the device or file back"), "{missing}");
        assert!(missing.contains(remedy), "{missing}");
        assert!(!missing.contains("namei"), "{missing}");
    }
}

#[test]
fn parts_are_given_while_one_of_two_devices_cannot_be_read() {
    let place = Place::new();
    let order = place.order("fast", &["a", "b"]);
    place.create(&order).unwrap();
    let wanted = Wanted {
        shares: 1000,
        useful: usize::MAX,
        min: None,
        max: Some(10),
        planned: None,
    };
    let grant = |nth: u8| {
        let disk = format!("d{nth}").parse().unwrap();
        let uuid = Uuid::from_random([nth; 16]);
        place.caches.grant(&order.name, &disk, uuid, wanted)
    };
    grant(1).unwrap();
    // Only its label is left.
    let cut = |device: &str| {
        let path = place.folder.path().join(device);
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(4096).unwrap();
    };
    cut("b");
    grant(2).unwrap();
    cut("a");
    let refused = said(grant(3));
    assert!(refused.contains("cannot read"), "{refused}");
}

#[test]
fn a_device_that_was_overwritten_while_it_is_open_is_away_and_the_other_is_used() {
    let place = Place::new();
    let order = place.order("fast", &["a", "b"]);
    place.create(&order).unwrap();
    let record = place.caches.record(&order.name).unwrap();
    let path = place.folder.path().join("b");
    let label = record.label(1).encode();
    let write = |bytes: &[u8]| {
        let file = File::options().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, 0).unwrap();
    };
    let usable = || {
        let devices = place.caches.devices(&order.name, &record);
        let images = devices.images();
        images.iter().map(Option::is_some).collect::<Vec<_>>()
    };
    assert_eq!(usable(), [true, true]);
    write(&[0xdd; 512]);
    assert_eq!(usable(), [true, false]);
    assert_eq!(usable(), [true, false], "also when it was opened anew");
    write(&label[..512]);
    assert_eq!(usable(), [true, true], "it is back");
}

#[test]
fn a_cache_whose_device_is_waited_for_is_in_no_ones_way() {
    let place = Place::new();
    let orders = [("slow", "a"), ("fast", "b")].map(|(name, device)| {
        let order = place.order(name, &[device]);
        place.create(&order).unwrap();
        order
    });
    let [slow, fast] = orders.each_ref().map(|order| &order.name);
    let record = |name| place.caches.record(name).unwrap();
    let other = Caches::new(place.folder.path());
    // The daemon before this one still has its devices, and that of the fast cache leaves.
    let held = place.caches.devices(slow, &record(slow));
    let (slow_record, fast_record) = (record(slow), record(fast));
    drop(place.caches);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| other.devices(slow, &slow_record).are_all_away());
        while other.opened(slow).try_lock().is_ok() {
            std::thread::yield_now();
        }
        assert!(!other.devices(fast, &fast_record).are_all_away());
        assert!(!waiting.is_finished());
        drop(held);
        assert!(!waiting.join().unwrap(), "it was waited for");
    });
}

impl Place {
    /// A device that is to take a place in a cache.
    fn new_device(&self, name: &Name, nth: u8, file: &str) -> Outcome<NewDevice> {
        let path = self.folder.path().join(file);
        if !path.exists() {
            File::create(&path).unwrap().set_len(SIZE).unwrap();
        }
        let data = CacheData::Keep;
        let record = self.caches.record(name).unwrap();
        let order = CacheDeviceAdd { path, data };
        self.caches.new_device(&record, nth, &order, |_| Ok(()))
    }

    /// Exchanges a device of a cache that no disk uses at work.
    fn exchange(&self, name: &Name, nth: u8, new: Option<&str>) -> Outcome<Option<OldDevice>> {
        let new = new.map(|file| self.new_device(name, nth, file));
        let new = new.transpose()?;
        let record = self.caches.record(name)?;
        let claimed = record.parts.iter().map(|part| part.uuid).collect();
        let changed =
            self.caches
                .exchange(name, nth, new.as_ref(), &BTreeSet::new(), &claimed, || {
                    Ok(())
                });
        changed.map(|(_, old)| old)
    }

    /// Gives a disk a part.
    fn grant(&self, name: &Name, nth: u8) {
        let wanted = Wanted {
            shares: 1000,
            useful: usize::MAX,
            min: None,
            max: Some(10),
            planned: None,
        };
        let disk = format!("d{nth}").parse().unwrap();
        let uuid = Uuid::from_random([nth; 16]);
        let granted = self.caches.grant(name, &disk, uuid, wanted);
        granted.unwrap().expect("there is room");
    }

    /// The caches as another daemon finds them, and why devices are not used.
    fn restart(&mut self, name: &Name) -> Vec<Option<String>> {
        self.caches = Caches::new(&self.folder.path().join("elsewhere"));
        self.caches = Caches::new(self.folder.path());
        let record = self.caches.record(name).unwrap();
        let devices = self.caches.devices(name, &record);
        let problems = devices.problems().into_iter();
        problems.map(|it| it.map(|it| it.to_string())).collect()
    }

    fn flip(&self, from: &str, to: &str) {
        let at = |name: &str| self.folder.path().join(name);
        std::fs::rename(at(from), at(to)).unwrap();
    }
}

#[test]
fn a_device_that_was_replaced_and_comes_back_is_refused() {
    let mut place = Place::new();
    let name = &place.order("fast", &[]).name;
    place.create(&place.order("fast", &["a", "b"])).unwrap();
    place.grant(name, 1);
    let old = place.exchange(name, 1, Some("c")).unwrap();
    // It was unplugged before its label could be cleared.
    drop(old);
    assert_eq!(place.restart(name), [None, None]);
    place.flip("c", "aside");
    place.flip("b", "c");
    let problems = place.restart(name);
    let why = problems[1].as_deref().unwrap_or_default();
    assert!(
        problems[0].is_none() && why.contains("another device has taken its place"),
        "{why}"
    );
    // Nothing needs what it has: it can become a device of this cache again.
    place.flip("c", "b");
    place.flip("aside", "c");
    assert_eq!(place.restart(name), [None, None]);
    place.exchange(name, 1, Some("b")).unwrap();
    assert_eq!(place.restart(name), [None, None]);
}

#[test]
fn a_cache_gets_a_second_device_and_loses_the_first_one() {
    let mut place = Place::new();
    let name = &place.order("fast", &[]).name;
    place.create(&place.order("fast", &["a"])).unwrap();
    place.grant(name, 1);
    assert_eq!(place.caches.record(name).unwrap().empty_place(), Some(1));
    assert!(place.exchange(name, 1, Some("b")).unwrap().is_none());
    assert_eq!(place.restart(name), [None, None]);
    assert_eq!(place.caches.record(name).unwrap().empty_place(), None);
    let old = place.exchange(name, 0, None).unwrap().unwrap();
    old.clear().unwrap();
    drop(old);
    assert_eq!(place.restart(name), [None, None]);
    let record = place.caches.record(name).unwrap();
    assert_eq!(
        (record.devices().count(), record.empty_place()),
        (1, Some(0))
    );
    let devices = place.caches.devices(name, &record);
    assert_eq!((devices.count(), devices.empty()), (1, 0b01));
    assert!(devices.image(0).is_none() && devices.image(1).is_some());
    // The first one is free, and becomes another cache.
    place.create(&place.order("other", &["a"])).unwrap();
    // The last one stays.
    let refused = said(place.exchange(name, 1, None).map(|_| ()));
    assert!(
        refused.contains("device 0 of cache fast cannot be used"),
        "{refused}"
    );
}

#[test]
fn an_exchange_that_fails_leaves_the_record_and_its_new_device_can_be_named_again() {
    let mut place = Place::new();
    let name = &place.order("fast", &[]).name;
    place.create(&place.order("fast", &["a", "b"])).unwrap();
    place.grant(name, 1);
    let before = place.caches.record(name).unwrap();
    let uuids: BTreeSet<Uuid> = before.parts.iter().map(|part| part.uuid).collect();
    let new = place.new_device(name, 1, "c").unwrap();
    // As a kill after the label was written.
    let failed = place
        .caches
        .exchange(name, 1, Some(&new), &uuids, &uuids, || {
            Err(os_error::invalid("the last device stays"))
        });
    assert!(said(failed.map(|_| ())).contains("stays"));
    drop(new);
    assert_eq!(place.caches.record(name).unwrap(), before);
    assert_eq!(place.restart(name), [None, None]);
    place.exchange(name, 1, Some("c")).unwrap();
    assert_eq!(place.restart(name), [None, None]);
    // A disk that gets a part meanwhile is not overlooked.
    place.grant(name, 2);
    let new = place.new_device(name, 1, "d").unwrap();
    let failed = place
        .caches
        .exchange(name, 1, Some(&new), &uuids, &uuids, || Ok(()));
    assert!(said(failed.map(|_| ())).contains("a disk gets a part"));
}

#[test]
fn what_a_detached_disk_has_is_void_after_an_exchange_and_refuses_it_if_nothing_else_has_it() {
    let place = Place::new();
    let name = &place.order("fast", &[]).name;
    place.create(&place.order("fast", &["a", "b"])).unwrap();
    place.grant(name, 1);
    let record = place.caches.record(name).unwrap();
    let area = record.parts[0].area(record.chunk.0).unwrap();
    let devices = place.caches.devices(name, &record);
    let files: Vec<_> = devices.files().cloned().collect();
    let header = |file: &SharedFile, place: u64| {
        let mut block = [0; 4096];
        file.read_at(&mut block, area.header_at(place)).unwrap();
        block
    };
    for place in 0..2 {
        files[0]
            .write_at(&[0xee; 4096], area.header_at(place))
            .unwrap();
    }
    let uuid = record.parts[0].uuid;
    place.caches.set_dirty(name, uuid, true).unwrap();
    for new in [Some("c"), None] {
        let refused = said(place.exchange(name, 1, new).map(|_| ()));
        assert!(refused.contains("disk attach d1"), "{refused}");
    }
    assert_eq!(header(&files[0], 1), [0xee; 4096], "nothing was changed");
    place.caches.set_dirty(name, uuid, false).unwrap();
    place.exchange(name, 1, Some("c")).unwrap();
    for place in 0..2 {
        assert_eq!(header(&files[0], place), [0; 4096]);
    }
}

#[test]
fn what_is_unfit_becomes_no_device_of_a_cache() {
    let place = Place::new();
    let name = &place.order("fast", &[]).name;
    place.create(&place.order("fast", &["a"])).unwrap();
    place.create(&place.order("other", &["b"])).unwrap();
    let small = File::create(place.folder.path().join("small")).unwrap();
    small.set_len(SIZE / 2).unwrap();
    std::fs::write(place.folder.path().join("full"), vec![0xee; 4096]).unwrap();
    let full = File::options()
        .write(true)
        .open(place.folder.path().join("full"));
    full.unwrap().set_len(SIZE).unwrap();
    let refused = |file: &str| said(place.new_device(name, 1, file).map(|_| ()));
    assert!(refused("small").contains("name a larger one"));
    assert!(refused("full").contains("--force"));
    let own = refused("a");
    assert!(own.contains("is a device of cache fast"), "{own}");
    assert!(!own.contains("cache remove"), "{own}");
    let of_other = refused("b");
    assert!(
        of_other.contains("is a device of cache other"),
        "{of_other}"
    );
    assert!(of_other.contains("cache remove other"), "{of_other}");
    let path = place.folder.path().join("missing");
    let record = place.caches.record(name).unwrap();
    let order = CacheDeviceAdd {
        path,
        data: CacheData::Keep,
    };
    let missing = place.caches.new_device(&record, 1, &order, |_| Ok(()));
    assert!(said(missing.map(|_| ())).contains("truncate"));
    let changing = place.caches.change_devices(name).unwrap();
    assert!(said(place.caches.change_devices(name).map(|_| ())).contains("already"));
    drop(changing);
    place.caches.change_devices(name).unwrap();
}
