//! Flash caches after faults: what the daemon believes of reports, and what it does with parts and descriptors then.

use std::fmt::Debug;
use std::time::Instant;

use tidegate_api::cache::{Dirty, DiskFlashSet, FlashMode, FlashUse, SingleDevice};
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::{LayoutNotice, LayoutOrder};
use tidegate_core::request::Fault;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

use super::flash::said;
use super::*;
use crate::disks::copy::Progress;
use crate::disks::notices::Notice;

impl Stage {
    /// Disk `a`, attached with cache `fast` of two devices in this mode.
    fn cached(&self, mode: FlashMode) -> Arc<Attached> {
        self.cache("fast", &["f0", "f1"]);
        self.disk("a");
        self.attach("a", Outside::Agreed).unwrap();
        self.give("a", Some("fast"), mode).unwrap();
        self.disk_service.live.get(&name("a")).unwrap()
    }

    /// Another daemon starts: it opens the devices anew.
    fn opens_devices_anew(&mut self) {
        let service = Arc::get_mut(&mut self.disk_service).unwrap();
        service.caches = Caches::new(&service.root.state());
    }

    /// Notes that the devices of the disk's cache have failed, with nothing that the disk does not have.
    fn note_lost(&self) {
        let signals = self.disk_service.notices.cache_signals(&name("a"));
        signals.note(&LayoutNotice::CacheLost {
            fault: Fault::Gone,
            dirty: 0,
        });
    }
}

#[test]
fn the_loss_of_an_earlier_cache_is_not_that_of_the_next_one() {
    let stage = stage();
    stage.cached(FlashMode::WriteThrough);
    stage.note_lost();
    stage.give("a", None, FlashMode::Off).unwrap();
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    let before = stage.flash("a").unwrap();
    assert!(before.has_dirty);
    assert!(!stage.disk_service.react_to_caches());
    assert_eq!(stage.flash("a").unwrap(), before);
    let signals = stage.disk_service.notices.cache_signals(&name("a"));
    assert_eq!(signals.lost(), None);
    stage.detach("a");
}

#[test]
fn a_disk_goes_on_without_its_cache_only_if_the_cache_itself_says_that_it_is_lost() {
    let stage = stage();
    stage.cached(FlashMode::WriteBack);
    let before = stage.flash("a").unwrap();
    stage.note_lost();
    assert!(!stage.disk_service.react_to_caches());
    assert_eq!(stage.flash("a").unwrap(), before);
    let shown = stage.disk_service.disk(&name("a")).unwrap().flash.unwrap();
    assert!(shown.has_dirty && shown.at_work.unwrap().in_use);
    stage.detach_keeping_dirty("a");
}

#[test]
fn whoever_gives_a_disk_a_cache_has_its_reports_looked_at() {
    let stage = stage();
    stage.cached(FlashMode::WriteThrough);
    let is_to_be_looked_at = || {
        let reports = stage.disk_service.notices.cache_reports();
        let looked = async { tokio::time::timeout(Duration::ZERO, reports).await };
        stage.runtime.block_on(looked).is_ok()
    };
    stage.give("a", None, FlashMode::Off).unwrap();
    assert!(is_to_be_looked_at() && !is_to_be_looked_at());
    stage
        .give("a", Some("fast"), FlashMode::WriteThrough)
        .unwrap();
    assert!(is_to_be_looked_at(), "it may have failed while it opened");
    stage.detach("a");
}

#[test]
fn a_disk_does_not_begin_to_write_back_while_a_device_of_its_cache_is_away() {
    let mut stage = stage();
    stage.cached(FlashMode::WriteThrough);
    stage.detach("a");
    let device = stage.place.path().join("f1");
    let aside = stage.place.path().join("aside");
    fs::rename(&device, &aside).unwrap();
    let service = Arc::get_mut(&mut stage.disk_service).unwrap();
    service.caches = Caches::new(&service.root.state());
    stage.attach("a", Outside::Agreed).unwrap();
    let refused = said(stage.give("a", Some("fast"), FlashMode::WriteBack));
    assert!(refused.contains("does not have everything"), "{refused}");
    let flash = stage.disk_service.disk(&name("a")).unwrap().flash.unwrap();
    assert!(!flash.has_dirty && flash.mode == FlashMode::WriteThrough);
    assert_eq!(flash.at_work.unwrap().mode, FlashMode::WriteThrough);
    stage.detach("a");
}

#[test]
fn a_part_stays_while_the_descriptor_may_name_its_use() {
    let stage = stage();
    stage.cache("fast", &["f0", "f1"]);
    let descriptor = stage.disk("a").descriptor_file();
    stage.attach("a", Outside::Agreed).unwrap();
    stage.give("a", Some("fast"), FlashMode::Off).unwrap();
    // No descriptor can be written.
    let file = descriptor.file_name().unwrap().to_str().unwrap();
    let in_the_way = descriptor.with_file_name(format!(".{file}.new"));
    fs::create_dir_all(in_the_way.join("x")).unwrap();
    stage
        .give("a", Some("fast"), FlashMode::WriteBack)
        .unwrap_err();
    let record = stage.disk_service.caches.record(&name("fast")).unwrap();
    assert_eq!(record.parts.len(), 1, "it may be read by what it names");
    let live = stage.disk_service.live.get(&name("a")).unwrap();
    assert!(live.cache().is_some());
    // The next command has the descriptor name it before writes go back.
    fs::remove_dir_all(&in_the_way).unwrap();
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    let flash = stage.flash("a").unwrap();
    assert!(flash.has_dirty);
    assert_eq!(flash.attachment, live.cache().unwrap().attachment);
    stage.give("a", None, FlashMode::Off).unwrap();
    stage.disk_service.remove_cache(&name("fast")).unwrap();
    stage.detach("a");
}

impl Stage {
    /// A disk `b` that needs room which disk `a` has, all of it. Returns whether it gets its part.
    fn another_needs_room(&self, datastore: &str) -> bool {
        let mut order = DiskCreate::new(name("b"), 64 << 20);
        order.datastore = Some(name(datastore));
        self.disk_service.create(&order).unwrap();
        self.attach("b", Outside::Agreed).unwrap();
        self.give("b", Some("fast"), FlashMode::WriteThrough)
            .is_ok()
    }

    /// Disk `a` on datastore `other`, detached, with all of cache `fast` and data there that it does not have.
    fn with_dirty_data_elsewhere(&self) -> PathBuf {
        let path = self.datastore("other");
        self.cache("fast", &["f0", "f1"]);
        let mut order = DiskCreate::new(name("a"), 64 << 20);
        order.datastore = Some(name("other"));
        self.disk_service.create(&order).unwrap();
        self.attach("a", Outside::Agreed).unwrap();
        self.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
        self.detach_keeping_dirty("a");
        path
    }

    fn parts(&self) -> Vec<String> {
        let record = self.disk_service.caches.record(&name("fast")).unwrap();
        let parts = record.parts.iter().map(|part| part.disk.to_string());
        parts.collect()
    }
}

#[test]
fn a_disk_whose_datastore_is_away_keeps_its_part_and_what_only_that_has() {
    let stage = stage();
    let path = stage.with_dirty_data_elsewhere();
    let aside = path.with_extension("aside");
    fs::rename(&path, &aside).unwrap();
    stage.disk_service.remove_cache(&name("fast")).unwrap_err();
    assert_eq!(stage.parts(), ["a"]);
    assert!(!stage.another_needs_room("shared"));
    assert_eq!(stage.parts(), ["a"]);
    fs::rename(&aside, &path).unwrap();
    let flash = stage.attach("a", Outside::Agreed).unwrap().flash.unwrap();
    assert!(flash.has_dirty && flash.at_work.unwrap().in_use);
    stage.detach("a");
    stage.detach("b");
}

#[test]
fn a_disk_with_another_name_or_none_keeps_what_only_the_cache_has() {
    let stage = stage();
    let path = stage.with_dirty_data_elsewhere();
    let found = stage.disk_service.store.find(&name("a")).unwrap();
    let folder = found.folder.clone();
    fs::rename(&folder, folder.with_file_name("z")).unwrap();
    stage.disk_service.remove_cache(&name("fast")).unwrap_err();
    assert!(!stage.another_needs_room("shared"));
    assert_eq!(stage.parts(), ["a"]);
    stage.detach("b");
    // Not known any more: the host's record says that there is something at stake.
    stage.disk_service.remove_datastore(&name("other")).unwrap();
    let refused = said(stage.disk_service.remove_cache(&name("fast")));
    assert!(refused.contains("--discard-cache"), "{refused}");
    assert_eq!(stage.parts(), ["a"]);
    let settings = DatastoreSettings::Dir {
        path,
        io: Default::default(),
    };
    let service = &stage.disk_service;
    service.add_datastore(&name("other"), settings).unwrap();
    let flash = stage.attach("z", Outside::Agreed).unwrap().flash.unwrap();
    assert!(flash.has_dirty && flash.at_work.unwrap().in_use);
    stage.detach("z");
}

#[test]
fn a_cache_lists_which_detached_disks_may_have_writes_on_flash() {
    let stage = stage();
    stage.cached(FlashMode::WriteBack);
    let disk = || {
        let shown = stage.disk_service.cache(&name("fast")).unwrap();
        shown.disks.into_iter().next().unwrap()
    };
    stage.detach_keeping_dirty("a");
    assert!(disk().has_dirty && disk().at_work.is_none());
    stage.attach("a", Outside::Agreed).unwrap();
    stage.detach("a");
    assert!(!disk().has_dirty && disk().at_work.is_none());
}

#[test]
fn the_part_of_a_disk_that_was_removed_with_nothing_at_stake_is_free() {
    let stage = stage();
    stage.cached(FlashMode::WriteBack);
    stage.detach("a");
    let found = stage.disk_service.store.find(&name("a")).unwrap();
    fs::remove_dir_all(&found.folder).unwrap();
    stage.disk_service.remove_cache(&name("fast")).unwrap();
}

#[test]
fn a_detach_that_fails_lets_the_cache_go_on_in_the_mode_that_it_had() {
    let stage = stage();
    let live = stage.cached(FlashMode::WriteBack);
    let service = &stage.disk_service;
    let mode = |mode| live.order(LayoutOrder::CacheMode(mode)).unwrap();
    let signals = service.notices.cache_signals(&name("a"));
    let fail = |before| {
        loop {
            let found = service.store.find(&name("a")).unwrap();
            let dirty = |flash: &mut Option<FlashUse>| flash.as_mut().unwrap().has_dirty = true;
            service.commit_flash(&found, Some(&live), dirty).unwrap();
            mode(before);
            if service.save_dirty(&found, &live).is_err() {
                return;
            }
        }
    };
    for before in [CacheMode::WriteThrough, CacheMode::WriteBack] {
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| fail(before));
            // Pages that cannot be cleaned, as soon as the detach has begun to look.
            while !failing.is_finished() {
                signals.note(&LayoutNotice::CacheCleaned { left: 1 });
                std::thread::yield_now();
            }
        });
        assert_eq!(live.cache_report().unwrap().mode, before);
        assert!(stage.flash("a").unwrap().has_dirty);
    }
    stage.detach_keeping_dirty("a");
}

#[test]
fn a_report_that_comes_before_anybody_waits_ends_a_cleaning() {
    let stage = stage();
    let live = stage.cached(FlashMode::WriteBack);
    let service = &stage.disk_service;
    let signals = service.notices.cache_signals(&name("a"));
    let begun = signals.cleaned();
    // The only one: pages that cannot be read do not become clean.
    signals.note(&LayoutNotice::CacheCleaned { left: 3 });
    let until = Some(Instant::now() + Duration::from_secs(3));
    let progress = Progress::default();
    let followed = service.follow_cleaning(&live, begun, &progress, until, |_| false);
    let problem = followed.unwrap_err();
    assert!(problem.to_string().contains("3 pages"), "{problem}");
    stage.detach_keeping_dirty("a");
}

#[test]
fn a_part_that_a_disk_has_left_on_another_host_is_free() {
    let stage = stage();
    stage.cached(FlashMode::WriteBack);
    stage.detach_keeping_dirty("a");
    let other = stage.neighbour();
    stage.disk_service.remove_cache(&name("fast")).unwrap_err();
    other.attach_with("a", Dirty::Discard).unwrap();
    other.give("a", None, FlashMode::Off).unwrap();
    stage.disk_service.remove_cache(&name("fast")).unwrap();
    other.detach("a");
}

/// The log's lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut words = Words(String::new());
        event.record(&mut words);
        self.0.lock().unwrap().push(words.0);
    }
}

#[test]
fn a_device_that_the_cache_writes_again_by_itself_is_not_called_unused() {
    let mut stage = stage();
    drop(stage.cached(FlashMode::WriteBack));
    stage.detach("a");
    let [there, aside] = ["f1", "aside"].map(|file| stage.place.path().join(file));
    fs::rename(&there, &aside).unwrap();
    stage.opens_devices_anew();
    stage.attach("a", Outside::Agreed).unwrap();
    stage.detach("a");
    fs::rename(&aside, &there).unwrap();
    stage.opens_devices_anew();
    let lines = Lines::default();
    let log = tracing_subscriber::registry().with(lines.clone());
    tracing::subscriber::with_default(log, || stage.attach("a", Outside::Agreed).unwrap());
    let lines = lines.0.lock().unwrap().join("\n");
    assert!(lines.contains("attached"), "{lines}");
    assert!(!lines.contains("is not used"), "{lines}");
    stage.detach("a");
}

#[test]
fn without_consent_writes_go_through_while_a_device_is_away() {
    let mut stage = stage();
    drop(stage.cached(FlashMode::WriteBack));
    let consent = |single: SingleDevice| DiskFlashSet {
        single_device: Some(single),
        ..DiskFlashSet::default()
    };
    stage
        .set_flash("a", &consent(SingleDevice::Accept))
        .unwrap();
    stage.detach("a");
    let [there, aside] = ["f1", "aside"].map(|file| stage.place.path().join(file));
    fs::rename(&there, &aside).unwrap();
    stage.opens_devices_anew();
    let shown = stage.attach("a", Outside::Agreed).unwrap().flash.unwrap();
    let counts = shown.at_work.unwrap();
    assert_eq!((counts.mode, counts.devices), (FlashMode::WriteBack, 1));
    stage
        .set_flash("a", &consent(SingleDevice::Refuse))
        .unwrap();
    let shown = stage.disk_service.disk(&name("a")).unwrap().flash.unwrap();
    assert_eq!(shown.at_work.unwrap().mode, FlashMode::WriteThrough);
    assert!(!shown.has_dirty && !shown.single_device);
    assert_eq!(shown.mode, FlashMode::WriteBack, "so say its settings");
    stage.detach("a");
}

#[test]
fn a_device_whose_file_is_renamed_or_replaced_is_reported_until_it_is_back() {
    let stage = stage();
    drop(stage.cached(FlashMode::WriteThrough));
    let service = &stage.disk_service;
    let events = || {
        service.report_astray();
        let words = service
            .notices
            .take()
            .into_iter()
            .filter_map(|(_, notice)| {
                let Notice::Member { happening, .. } = notice else {
                    return None;
                };
                Some(happening.word())
            });
        words
            .filter(|word| word.starts_with("cache-device"))
            .collect::<Vec<_>>()
    };
    let [there, aside] = ["f1", "aside"].map(|file| stage.place.path().join(file));
    assert!(events().is_empty() && service.troubles().is_empty());
    fs::rename(&there, &aside).unwrap();
    assert_eq!(events(), ["cache-device-astray"]);
    assert!(events().is_empty(), "it is reported once");
    let shown = service.cache(&name("fast")).unwrap();
    let problems = shown.devices.iter().map(|device| device.problem.is_some());
    assert_eq!(problems.collect::<Vec<_>>(), [false, true]);
    let problem = shown.problem.unwrap();
    assert!(
        problem.to_string().contains("removed or renamed"),
        "{problem}"
    );
    let remedy = problem.remedy.unwrap();
    assert!(remedy.contains("write-through"), "{remedy}");
    let replace = "tidegate cache device replace fast 1 --with PATH";
    assert!(remedy.contains(replace), "{remedy}");
    let of_disk = service.disk(&name("a")).unwrap().flash.unwrap().problem;
    assert!(of_disk.is_some());
    assert_eq!(service.troubles().len(), 1);
    // Something else in its place is not it.
    fs::write(&there, "something else").unwrap();
    assert!(events().is_empty());
    let shown = service.cache(&name("fast")).unwrap();
    let problem = shown.problem.unwrap().to_string();
    assert!(problem.contains("another file or device"), "{problem}");
    fs::rename(&aside, &there).unwrap();
    assert_eq!(events(), ["cache-device-in-place"]);
    assert!(service.troubles().is_empty());
    assert!(service.cache(&name("fast")).unwrap().problem.is_none());
    stage.detach("a");
    fs::remove_file(&there).unwrap();
    assert_eq!(events(), ["cache-device-astray"]);
    stage.give("a", None, FlashMode::Off).unwrap();
    service.remove_cache(&name("fast")).unwrap();
    assert!(service.troubles().is_empty() && events().is_empty());
}
