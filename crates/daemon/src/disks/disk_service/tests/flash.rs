//! Disks with a flash cache: given, changed and taken off, on their host and elsewhere.

use tidegate_api::cache::{
    CacheCreate, CacheData, CacheDeviceAdd, CacheFlush, Dirty, DiskFlashSet, FlashMode, FlashUse,
    SingleDevice, TargetReason,
};
use tidegate_api::disk::DiskDetach;
use tidegate_api::job::{Job, JobState};

use super::*;
use crate::disks::copy::Progress;

impl Stage {
    pub(super) fn cache(&self, cache: &str, devices: &[&str]) -> Vec<PathBuf> {
        let paths: Vec<_> = devices
            .iter()
            .map(|name| self.place.path().join(name))
            .collect();
        self.disk_service
            .create_cache(&CacheCreate {
                name: name(cache),
                devices: paths.clone(),
                size_bytes: Some(64 << 20),
                endurance_dwpd: None,
                data: CacheData::Keep,
            })
            .unwrap();
        paths
    }

    /// Waits for a job, and returns why it failed.
    pub(super) fn job_result(&self, job: Outcome<Job>) -> Outcome<()> {
        let mut job = job?;
        while !job.state.is_over() {
            std::thread::yield_now();
            job = self.disk_service.jobs().job(job.id)?;
        }
        match job.state {
            JobState::Done => Ok(()),
            _ => Err(job.problem.unwrap()),
        }
    }

    pub(super) fn set_flash(&self, disk: &str, set: &DiskFlashSet) -> Outcome<()> {
        let _context = self.runtime.enter();
        self.job_result(self.disk_service.set_flash(&name(disk), set))
    }

    pub(super) fn give(&self, disk: &str, cache: Option<&str>, mode: FlashMode) -> Outcome<()> {
        self.set_flash(
            disk,
            &DiskFlashSet {
                cache: Some(cache.map(name)),
                mode: Some(mode),
                ..DiskFlashSet::default()
            },
        )
    }

    pub(super) fn flash(&self, disk: &str) -> Option<FlashUse> {
        let found = self.disk_service.store.find(&name(disk)).unwrap();
        found.descriptor.flash
    }

    pub(super) fn detach_keeping_dirty(&self, disk: &str) {
        let _context = self.runtime.enter();
        let order = DiskDetach {
            clients: Clients::Keep,
            dirty: Dirty::Keep,
        };
        self.disk_service.detach(&name(disk), order).unwrap();
    }

    pub(super) fn attach_with(&self, disk: &str, dirty: Dirty) -> Outcome<api::Disk> {
        let _context = self.runtime.enter();
        let order = DiskAttach {
            dirty,
            ..Default::default()
        };
        self.disk_service.attach(&name(disk), order)
    }

    /// Another daemon with the datastore of this one.
    pub(super) fn neighbour(&self) -> Stage {
        let other = stage_of([2; 16], "two");
        let service = &other.disk_service;
        service.remove_datastore(&name("shared")).unwrap();
        let settings = DatastoreSettings::Dir {
            path: self.shared.clone(),
            io: Default::default(),
        };
        service.add_datastore(&name("shared"), settings).unwrap();
        other
    }
}

pub(super) fn said<T>(refused: Outcome<T>) -> String {
    let problem = refused.err().unwrap();
    format!("{problem}; {}", problem.remedy.clone().unwrap_or_default())
}

#[test]
fn a_disk_gets_a_cache_changes_its_mode_and_loses_it_while_attached() {
    let stage = stage();
    stage.cache("fast", &["f0", "f1"]);
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage
        .give("a", Some("fast"), FlashMode::WriteThrough)
        .unwrap();
    let shown = stage.disk_service.disk(&name("a")).unwrap().flash.unwrap();
    let counts = shown.at_work.unwrap();
    assert!(shown.here && counts.in_use && counts.devices == 2 && !shown.has_dirty);
    let first = stage.flash("a").unwrap();
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    let back = stage.flash("a").unwrap();
    assert!(back.has_dirty && back.attachment == first.attachment);
    let counts = stage.disk_service.cache(&name("fast")).unwrap().disks[0]
        .at_work
        .unwrap();
    assert_eq!(counts.mode, FlashMode::WriteBack);
    stage
        .give("a", Some("fast"), FlashMode::WriteThrough)
        .unwrap();
    assert!(!stage.flash("a").unwrap().has_dirty);
    stage.give("a", Some("fast"), FlashMode::Off).unwrap();
    let off = stage.flash("a").unwrap();
    assert_ne!(off.attachment, first.attachment, "what flash has is void");
    assert!(
        stage
            .disk_service
            .disk(&name("a"))
            .unwrap()
            .flash
            .unwrap()
            .at_work
            .is_none()
    );
    stage.give("a", None, FlashMode::Off).unwrap();
    assert_eq!(stage.flash("a"), None);
    stage.disk_service.remove_cache(&name("fast")).unwrap();
    stage.detach("a");
}

#[test]
fn write_back_on_one_device_needs_consent() {
    let stage = stage();
    stage.cache("fast", &["f0"]);
    stage.disk("a");
    let refused = said(stage.give("a", Some("fast"), FlashMode::WriteBack));
    assert!(refused.contains("--single-device-ok"), "{refused}");
    let set = DiskFlashSet {
        cache: Some(Some(name("fast"))),
        mode: Some(FlashMode::WriteBack),
        single_device: Some(SingleDevice::Accept),
        ..DiskFlashSet::default()
    };
    stage.set_flash("a", &set).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    assert!(stage.flash("a").unwrap().has_dirty);
    stage.detach("a");
    assert!(!stage.flash("a").unwrap().has_dirty, "a detach saves it");
}

#[test]
fn a_disk_with_dirty_data_is_refused_elsewhere_until_it_is_flushed_or_given_up() {
    let stage = stage();
    stage.cache("fast", &["f0", "f1"]);
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    stage.detach_keeping_dirty("a");
    let other = stage.neighbour();
    let refused = said(other.attach("a", Outside::Agreed));
    for part in ["cache fast on host one", "up to", "--discard-cache"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert!(said(other.attach_read_only("a")).contains("cache flush fast a"));
    assert!(said(other.give("a", None, FlashMode::Off)).contains("on host one"));
    let resize = DiskResize {
        size_bytes: 2 * SIZE,
        data: ResizeData::Keep,
    };
    let refused = said(other.disk_service.resize(&name("a"), resize));
    assert!(refused.contains("cache flush fast a"), "{refused}");
    let flush = |disk| {
        let _context = stage.runtime.enter();
        let order = CacheFlush { disk };
        stage.disk_service.flush_cache(&name("fast"), &order)
    };
    let refused = said(stage.job_result(flush(None)));
    assert!(refused.contains("disk attach a"), "{refused}");
    // Back on its host, it goes on.
    stage.attach("a", Outside::Agreed).unwrap();
    stage.job_result(flush(Some(name("a")))).unwrap();
    stage.detach("a");
    let before = stage.flash("a").unwrap().attachment;
    other.attach("a", Outside::Agreed).unwrap();
    let shown = other.disk_service.disk(&name("a")).unwrap().flash.unwrap();
    assert!(!shown.here && shown.problem.is_some());
    assert_ne!(
        other.flash("a").unwrap().attachment,
        before,
        "what flash has is void"
    );
    other.detach("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.detach_keeping_dirty("a");
    other.attach_with("a", Dirty::Discard).unwrap();
    assert!(!other.flash("a").unwrap().has_dirty);
    other.detach("a");
}

#[test]
fn without_its_flash_a_clean_disk_is_attached_and_a_dirty_one_is_not() {
    for mode in [FlashMode::WriteThrough, FlashMode::WriteBack] {
        let mut stage = stage();
        let devices = stage.cache("fast", &["f0", "f1"]);
        stage.disk("a");
        stage.attach("a", Outside::Agreed).unwrap();
        stage.give("a", Some("fast"), mode).unwrap();
        stage.detach_keeping_dirty("a");
        let before = stage.flash("a").unwrap();
        // The daemon starts again, with other bytes on flash.
        for device in devices {
            fs::write(device, vec![0xdd; 64 << 20]).unwrap();
        }
        let service = Arc::get_mut(&mut stage.disk_service).unwrap();
        service.caches = Caches::new(&service.root.state());
        let attached = stage.attach("a", Outside::Agreed);
        if mode == FlashMode::WriteThrough {
            let flash = attached.unwrap().flash.unwrap();
            assert!(flash.at_work.is_none());
            let problem = flash.problem.unwrap().to_string();
            assert!(problem.contains("overwritten"), "{problem}");
            assert_ne!(stage.flash("a").unwrap().attachment, before.attachment);
        } else {
            let refused = said(attached);
            assert!(refused.contains("--discard-cache"), "{refused}");
            assert_eq!(stage.flash("a").unwrap(), before, "nothing was changed");
            stage.attach_with("a", Dirty::Discard).unwrap();
        }
        stage.detach("a");
    }
}

#[test]
fn a_cache_of_a_few_chunks_is_shared_by_several_disks() {
    let stage = stage();
    stage.cache("fast", &["f0"]);
    let mut first = None;
    for disk in ["a", "b", "c", "d"] {
        let mut order = DiskCreate::new(name(disk), 64 << 20);
        order.datastore = Some(name("shared"));
        stage.disk_service.create(&order).unwrap();
        stage.attach(disk, Outside::Agreed).unwrap();
        stage
            .give(disk, Some("fast"), FlashMode::WriteThrough)
            .unwrap();
        first = first.or(stage.flash("a").map(|flash| flash.attachment));
    }
    assert_eq!(
        stage.flash("a").unwrap().attachment,
        first.unwrap(),
        "it gives chunks back and goes on"
    );
    let cache = stage.disk_service.cache(&name("fast")).unwrap();
    let sizes: Vec<u64> = cache
        .disks
        .iter()
        .map(|disk| disk.size_bytes >> 20)
        .collect();
    assert!(
        sizes.iter().all(|size| (7..=32).contains(size)),
        "{sizes:?}"
    );
    assert!(cache.disks.iter().all(|disk| disk.at_work.unwrap().in_use));
    for disk in ["b", "c", "d", "a"] {
        if disk == "a" {
            let cache = stage.disk_service.cache(&name("fast")).unwrap();
            let size = cache.disks[0].at_work.unwrap().size_bytes;
            assert!(size >= 48 << 20, "it gets what others have left: {size}");
        }
        stage.detach(disk);
        stage.disk_service.delete(&name(disk)).unwrap();
    }
    stage.disk_service.remove_cache(&name("fast")).unwrap();
}

#[test]
fn a_device_that_is_back_is_written_again_and_then_writes_go_back_to_the_cache() {
    let mut stage = stage();
    let devices = stage.cache("fast", &["f0", "f1"]);
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    stage.detach("a");
    let aside = stage.place.path().join("aside");
    let again = |stage: &mut Stage| {
        let service = Arc::get_mut(&mut stage.disk_service).unwrap();
        service.caches = Caches::new(&service.root.state());
        stage.attach("a", Outside::Agreed).unwrap().flash.unwrap()
    };
    fs::rename(&devices[1], &aside).unwrap();
    let flash = again(&mut stage);
    assert!(flash.problem.is_some());
    assert_eq!(flash.at_work.unwrap().mode, FlashMode::WriteThrough);
    assert_eq!(stage.disk_service.troubles().len(), 1);
    stage.detach("a");
    fs::rename(&aside, &devices[1]).unwrap();
    again(&mut stage);
    loop {
        stage.disk_service.react_to_caches();
        let flash = stage.disk_service.disk(&name("a")).unwrap().flash.unwrap();
        let counts = flash.at_work.unwrap();
        if counts.mode == FlashMode::WriteBack {
            assert!(counts.devices == 2 && flash.has_dirty);
            break;
        }
        std::thread::yield_now();
    }
    stage.detach("a");
}

/// A device that is to become one of a cache.
fn device(stage: &Stage, file: &str) -> CacheDeviceAdd {
    let path = stage.place.path().join(file);
    let file = fs::File::create(&path).unwrap();
    file.set_len(64 << 20).unwrap();
    CacheDeviceAdd {
        path,
        data: CacheData::Keep,
    }
}

/// Waits until a disk writes back again, and returns how many devices have everything.
fn writes_back(stage: &Stage, disk: &str) -> u8 {
    loop {
        stage.disk_service.react_to_caches();
        let flash = stage.disk_service.disk(&name(disk)).unwrap().flash.unwrap();
        let counts = flash.at_work.unwrap();
        if counts.mode == FlashMode::WriteBack {
            return counts.devices;
        }
        std::thread::yield_now();
    }
}

fn cache_devices(stage: &Stage, cache: &str) -> Vec<(u8, PathBuf, u32)> {
    let cache = stage.disk_service.cache(&name(cache)).unwrap();
    let devices = cache.devices.into_iter();
    let device = |it: tidegate_api::cache::CacheDevice| (it.device, it.path, it.behind_disks);
    devices.map(device).collect()
}

#[test]
fn a_device_of_a_mirrored_cache_is_replaced_while_disks_use_it() {
    let mut stage = stage();
    let paths = stage.cache("fast", &["f0", "f1"]);
    for disk in ["a", "b"] {
        stage.disk(disk);
        stage.attach(disk, Outside::Agreed).unwrap();
    }
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    stage
        .give("b", Some("fast"), FlashMode::WriteThrough)
        .unwrap();
    let new = device(&stage, "f2");
    let service = &stage.disk_service;
    let replace = |nth, order| {
        let _context = stage.runtime.enter();
        stage.job_result(service.replace_cache_device(&name("fast"), nth, order))
    };
    replace(1, &new).unwrap();
    let now = [(0, paths[0].clone(), 0), (1, new.path.clone(), 0)];
    assert_eq!(cache_devices(&stage, "fast"), now);
    assert_eq!(writes_back(&stage, "a"), 2);
    // The old one is free, and takes the other place.
    let old = CacheDeviceAdd {
        path: paths[1].clone(),
        data: CacheData::Keep,
    };
    replace(0, &old).unwrap();
    let now = [(0, paths[1].clone(), 0), (1, new.path.clone(), 0)];
    assert_eq!(cache_devices(&stage, "fast"), now);
    assert_eq!(writes_back(&stage, "a"), 2);
    let missing = replace(2, &device(&stage, "f3")).unwrap_err();
    assert!(missing.to_string().contains("no device 2"), "{missing}");
    stage.detach_keeping_dirty("a");
    stage.detach("b");
    // Another daemon finds both devices.
    let service = Arc::get_mut(&mut stage.disk_service).unwrap();
    service.caches = Caches::new(&service.root.state());
    for disk in ["a", "b"] {
        let flash = stage.attach(disk, Outside::Agreed).unwrap().flash.unwrap();
        assert!(flash.problem.is_none());
        assert_eq!(flash.at_work.unwrap().devices, 2);
        stage.detach(disk);
    }
}

#[test]
fn a_cache_of_one_device_gets_a_second_one_or_another_one_while_a_disk_uses_it() {
    let stage = stage();
    let paths = stage.cache("fast", &["f0"]);
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    let single = DiskFlashSet {
        cache: Some(Some(name("fast"))),
        mode: Some(FlashMode::WriteBack),
        single_device: Some(SingleDevice::Accept),
        ..DiskFlashSet::default()
    };
    stage.set_flash("a", &single).unwrap();
    let service = &stage.disk_service;
    let _context = stage.runtime.enter();
    let fast = name("fast");
    let last = service.remove_cache_device(&fast, 0).unwrap_err();
    assert!(last.to_string().contains("the only one"), "{last}");
    // The new one is filled beside the old one.
    let second = device(&stage, "f1");
    stage
        .job_result(service.replace_cache_device(&fast, 0, &second))
        .unwrap();
    assert_eq!(cache_devices(&stage, "fast"), [(1, second.path.clone(), 0)]);
    assert_eq!(writes_back(&stage, "a"), 1);
    let third = device(&stage, "f2");
    stage
        .job_result(service.add_cache_device(&fast, &third))
        .unwrap();
    assert_eq!(writes_back(&stage, "a"), 2);
    let full = service
        .add_cache_device(&fast, &device(&stage, "f3"))
        .unwrap_err();
    assert!(full.to_string().contains("two devices"), "{full}");
    // Since it has two, the disk may refuse to write back to one.
    let both = DiskFlashSet {
        single_device: Some(SingleDevice::Refuse),
        ..DiskFlashSet::default()
    };
    stage.set_flash("a", &both).unwrap();
    let refused = service.remove_cache_device(&fast, 1).unwrap_err();
    assert!(
        refused.to_string().contains("writes back to both"),
        "{refused}"
    );
    assert_eq!(writes_back(&stage, "a"), 2);
    // The end of a replacement, meanwhile the disk has begun to write back to both: it does not write back to one.
    service
        .take_device(&fast, 1, Some(&Progress::default()))
        .unwrap();
    service.react_to_caches();
    let flash = service.disk(&name("a")).unwrap().flash.unwrap();
    assert_eq!(flash.at_work.unwrap().mode, FlashMode::WriteThrough);
    let fourth = device(&stage, "f4");
    stage
        .job_result(service.add_cache_device(&fast, &fourth))
        .unwrap();
    assert_eq!(writes_back(&stage, "a"), 2);
    stage.set_flash("a", &single).unwrap();
    service.remove_cache_device(&fast, 1).unwrap();
    assert_eq!(cache_devices(&stage, "fast"), [(0, third.path.clone(), 0)]);
    assert_eq!(writes_back(&stage, "a"), 1);
    stage.detach("a");
    // What was taken away is free.
    assert_eq!(stage.cache("other", &["f0", "f1"]).len(), 2);
    assert_eq!(paths.len(), 1);
}

/// As a kill after the record names the new device, and before any disk does without the old one.
#[test]
fn a_kill_after_the_record_names_a_new_device_leaves_the_other_one_with_everything() {
    let mut stage = stage();
    stage.cache("fast", &["f0", "f1"]);
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    let (fast, order) = (name("fast"), device(&stage, "f2"));
    let caches = &stage.disk_service.caches;
    let record = caches.record(&fast).unwrap();
    let new = caches.new_device(&record, 1, &order, |_| Ok(())).unwrap();
    let parts = record.parts.iter().map(|part| part.uuid).collect();
    let exchanged = caches.exchange(&fast, 1, Some(&new), &parts, &parts, || Ok(()));
    drop((exchanged.unwrap(), new));
    stage.detach_keeping_dirty("a");
    let service = Arc::get_mut(&mut stage.disk_service).unwrap();
    service.caches = Caches::new(&service.root.state());
    let flash = stage.attach("a", Outside::Agreed).unwrap().flash.unwrap();
    assert!(flash.problem.is_none() && flash.has_dirty, "{flash:?}");
    assert_eq!(writes_back(&stage, "a"), 2);
    assert_eq!(cache_devices(&stage, "fast")[1], (1, order.path, 0));
    stage.detach("a");
}

#[test]
fn a_cache_is_divided_anew_in_steps_while_disks_use_it() {
    let stage = stage();
    stage.cache("fast", &["f0"]);
    for disk in ["a", "b"] {
        let mut order = DiskCreate::new(name(disk), 64 << 20);
        order.datastore = Some(name("shared"));
        stage.disk_service.create(&order).unwrap();
        stage.attach(disk, Outside::Agreed).unwrap();
        stage
            .give(disk, Some("fast"), FlashMode::WriteThrough)
            .unwrap();
    }
    let bounds = DiskFlashSet {
        min_bytes: Some(Some(53 << 20)),
        ..DiskFlashSet::default()
    };
    let sizes = || {
        let cache = stage.disk_service.cache(&name("fast")).unwrap();
        let disks = cache.disks.iter();
        let sizes: Vec<u64> = disks.map(|disk| disk.size_bytes >> 20).collect();
        (sizes, cache)
    };
    stage.set_flash("b", &bounds).unwrap();
    let (before, _) = sizes();
    let mut now = std::time::Instant::now();
    let mut last = before.clone();
    loop {
        now += Duration::from_secs(60);
        stage.disk_service.divide_all(now);
        stage.disk_service.react_to_caches();
        let (after, cache) = sizes();
        // One chunk at a time may change its disk, and one that is free may be given as well.
        assert!(last[0] - after[0] <= 1, "{last:?} {after:?}");
        assert!(
            cache.disks.iter().all(|disk| disk.at_work.unwrap().in_use),
            "{cache:?}"
        );
        last = after;
        if last == [10, 53] {
            let target = cache.disks[0].target.unwrap();
            assert_eq!(target.reason, TargetReason::Shares);
            assert_eq!(target.size_bytes, 10 << 20);
            let target = cache.disks[1].target.unwrap();
            assert_eq!(target.reason, TargetReason::Shares);
            break;
        }
        std::thread::yield_now();
    }
    let bounds = DiskFlashSet {
        max_bytes: Some(Some(10 << 20)),
        ..DiskFlashSet::default()
    };
    stage.set_flash("a", &bounds).unwrap();
    stage.disk_service.divide_all(now + Duration::from_secs(60));
    let (last, cache) = sizes();
    assert_eq!(last, [10, 53]);
    let target = cache.disks[0].target.unwrap();
    assert_eq!(target.reason, TargetReason::Maximum);
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    let note = stage.disk_service.part_note(&live).unwrap();
    assert!(note.contains("stays") && note.contains("maximum"), "{note}");
    for disk in ["a", "b"] {
        stage.detach(disk);
    }
}
