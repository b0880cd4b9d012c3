//! Tests of the records and the devices of caches.

use super::*;
use std::fs::File;

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
    let devices = again.devices(&order.name, &record);
    assert_eq!(devices.problems(), [None, None]);
    assert_eq!(devices.images().unwrap().iter().flatten().count(), 2);
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
        let images = devices.images().unwrap();
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
