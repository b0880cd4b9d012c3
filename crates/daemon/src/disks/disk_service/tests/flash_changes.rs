//! Disks that grow, move and change their members below a flash cache, and what may enter the cache.

use tidegate_api::cache::{
    CacheCounts, CacheCreate, CacheData, CachedDisk, DiskFlashSet, FlashMode, SingleDevice,
};
use tidegate_api::disk::ResizeData;
use tidegate_api::layout::{DiskMove, MemberState};
use tidegate_core::units::Span;

use super::flash::said;
use super::layouts::mirrored;
use super::*;

impl Stage {
    fn at_work(&self) -> CacheCounts {
        let shown = self.disk_service.disk(&name("a")).unwrap();
        shown.flash.unwrap().at_work.unwrap()
    }

    /// Disk `a` still writes back, also after it was detached with what only flash has.
    fn writes_back_still(&self) {
        let is_back = || {
            let counts = self.at_work();
            assert!(counts.in_use && counts.devices == 2, "{counts:?}");
            assert_eq!(counts.mode, FlashMode::WriteBack);
            assert!(self.flash("a").unwrap().has_dirty);
        };
        is_back();
        self.detach_keeping_dirty("a");
        self.attach("a", Outside::Agreed).unwrap();
        is_back();
    }
}

#[test]
fn a_disk_grows_and_moves_below_its_cache() {
    let stage = stage();
    let other = stage.datastore("other");
    stage.cache("fast", &["f0", "f1"]);
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    let before = stage.at_work().size_bytes;
    let order = api::DiskResize {
        size_bytes: 24 << 20,
        data: ResizeData::Keep,
    };
    let shown = stage.disk_service.resize(&name("a"), order).unwrap();
    assert_eq!(shown.size_bytes, 24 << 20);
    let after = stage.at_work().size_bytes;
    assert!(after > before, "its part grows with it: {before}, {after}");
    stage.writes_back_still();

    stage.over(|service| {
        let order = DiskMove {
            to: name("other"),
            rate_bytes_per_s: None,
        };
        service.relocate(&name("a"), &order)
    });
    let shown = stage.disk_service.disk(&name("a")).unwrap();
    assert_eq!(shown.datastore, name("other"));
    assert!(other.join("a/image").exists() && !stage.shared.join("a").exists());
    stage.writes_back_still();
    stage.give("a", None, FlashMode::Off).unwrap();
    stage.detach("a");
}

#[test]
fn the_members_of_a_mirror_change_below_its_cache() {
    let stage = stage();
    mirrored(&stage);
    stage.cache("fast", &["f0", "f1"]);
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    stage.over(|service| service.add_member(&name("a"), "shared".parse().unwrap()));
    assert_eq!(stage.states(), [MemberState::InSync; 3]);
    stage.writes_back_still();
    for (member, on) in [(1, "four"), (0, "five")] {
        stage.datastore(on);
        let on = on.parse().unwrap();
        stage.over(|service| service.replace_member(&name("a"), member, on));
        assert_eq!(stage.states(), [MemberState::InSync; 3]);
        stage.writes_back_still();
    }
    stage.disk_service.remove_member(&name("a"), 2).unwrap();
    stage.writes_back_still();
    stage.give("a", None, FlashMode::Off).unwrap();
    stage.detach("a");
}

#[test]
fn a_disk_that_writes_around_its_cache_does_so_from_then_on() {
    let stage = stage();
    stage.cache("fast", &["f0", "f1"]);
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    for mode in [FlashMode::WriteBack, FlashMode::WriteAround] {
        stage.give("a", Some("fast"), mode).unwrap();
        assert_eq!(stage.at_work().mode, mode);
    }
    assert!(!stage.flash("a").unwrap().has_dirty);
    stage.detach("a");
    stage.attach("a", Outside::Agreed).unwrap();
    assert_eq!(stage.at_work().mode, FlashMode::WriteAround);
    stage
        .give("a", Some("fast"), FlashMode::WriteThrough)
        .unwrap();
    assert_eq!(stage.at_work().mode, FlashMode::WriteThrough);
    stage.detach("a");
}

#[test]
fn nothing_enters_a_cache_whose_write_budget_is_used_up() {
    let stage = stage();
    let order = CacheCreate {
        name: name("fast"),
        devices: vec![stage.place.path().join("f0")],
        size_bytes: Some(64 << 20),
        endurance_dwpd: Some(1.0),
        data: CacheData::Keep,
    };
    stage.disk_service.create_cache(&order).unwrap();
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage
        .give("a", Some("fast"), FlashMode::WriteThrough)
        .unwrap();
    let service = &stage.disk_service;
    let shown = || service.cache(&name("fast")).unwrap();
    service.count_writes();
    assert!(!shown().budget_is_spent && !stage.at_work().budget_is_spent);
    assert!(shown().budget_left_bytes.unwrap() <= 64 << 20);
    // Another disk has written as much as all of the device.
    let budgets = &service.caches.budgets;
    let now = tidegate_engine::now();
    let (left, _) = budgets
        .spend(&name("fast"), &[(77, 65 << 20)], now, || None)
        .unwrap();
    assert!(left.is_spent);
    service.count_writes();
    assert!(shown().budget_is_spent && stage.at_work().budget_is_spent);
    assert_eq!(shown().budget_left_bytes, Some(0));
    // A disk that comes is under the same budget.
    stage.detach("a");
    stage.attach("a", Outside::Agreed).unwrap();
    assert!(stage.at_work().budget_is_spent);
    let later = now + Span::from_secs(2 * 24 * 3600);
    budgets.spend(&name("fast"), &[], later, || None).unwrap();
    service.count_writes();
    assert!(!shown().budget_is_spent && !stage.at_work().budget_is_spent);
    stage.detach("a");
}

#[test]
fn what_was_written_to_a_cache_counts_after_its_disks_have_left() {
    let stage = stage();
    stage.cache("fast", &["f0", "f1"]);
    let written = || {
        let shown = stage.disk_service.cache(&name("fast")).unwrap();
        (
            shown.flash_written_bytes_total,
            shown.flash_journal_bytes_total,
        )
    };
    assert_eq!(written(), (0, 0));
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    let first = written();
    // Without requests there are headers and records only.
    assert!(first.0 > 0 && first.0 == first.1, "{first:?}");
    stage.detach("a");
    let left = written();
    assert!(left.0 >= first.0, "{left:?} after {first:?}");
    stage.attach("a", Outside::Agreed).unwrap();
    let again = written();
    assert!(again.0 > left.0, "{again:?} after {left:?}");
    stage.give("a", None, FlashMode::Off).unwrap();
    assert!(written().0 >= again.0);
    stage.detach("a");
}

impl Stage {
    /// The disks of cache `fast`, as they are listed.
    fn listed(&self) -> Vec<CachedDisk> {
        let shown = self.disk_service.caches().unwrap();
        shown.into_iter().next().unwrap().disks
    }
}

#[test]
fn a_disk_whose_settings_name_a_cache_is_listed_without_a_part_of_it() {
    let stage = stage();
    stage.cache("fast", &["f0", "f1"]);
    for disk in ["a", "b"] {
        stage.disk(disk);
    }
    stage.attach("a", Outside::Agreed).unwrap();
    assert!(stage.listed().is_empty());
    stage.give("a", Some("fast"), FlashMode::WriteBack).unwrap();
    // One that was never attached with it has no part yet.
    stage
        .give("b", Some("fast"), FlashMode::WriteAround)
        .unwrap();
    let modes = |disks: &[CachedDisk]| {
        let modes = disks.iter().map(|disk| (disk.mode, disk.size_bytes > 0));
        modes.collect::<Vec<_>>()
    };
    let (back, around) = (FlashMode::WriteBack, FlashMode::WriteAround);
    let listed = stage.listed();
    assert_eq!(modes(&listed), [(Some(back), true), (Some(around), false)]);
    for is_attached in [true, false] {
        stage.give("a", Some("fast"), FlashMode::Off).unwrap();
        let listed = stage.listed();
        assert_eq!(listed[0].disk, name("a"));
        assert_eq!(modes(&listed)[0], (Some(FlashMode::Off), false));
        assert_eq!(listed[0].at_work, None);
        if is_attached {
            stage.detach("a");
        }
    }
    stage.give("a", None, FlashMode::Off).unwrap();
    assert_eq!(stage.listed().len(), 1);
}

#[test]
fn a_smaller_largest_part_takes_effect_at_once() {
    let stage = stage();
    stage.cache("fast", &["f0"]);
    let mut order = DiskCreate::new(name("a"), 64 << 20);
    order.datastore = Some(name("shared"));
    stage.disk_service.create(&order).unwrap();
    stage.attach("a", Outside::Agreed).unwrap();
    let through = FlashMode::WriteThrough;
    stage.give("a", Some("fast"), through).unwrap();
    let most = |mib: u64| DiskFlashSet {
        max_bytes: Some(Some(mib << 20)),
        ..DiskFlashSet::default()
    };
    let shrinks_to = |mib: u64| {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while stage.listed()[0].size_bytes != mib << 20 {
            assert!(std::time::Instant::now() < deadline, "{:?}", stage.listed());
            // The cache is not divided anew.
            stage.disk_service.react_to_caches();
            std::thread::yield_now();
        }
    };
    assert!(stage.listed()[0].size_bytes > 12 << 20);
    // The second order comes while the first one is under way, or has ended and is not recorded.
    stage.set_flash("a", &most(12)).unwrap();
    stage.set_flash("a", &most(8)).unwrap();
    shrinks_to(8);
    // Of a detached disk, once it is attached.
    stage.detach("a");
    stage.set_flash("a", &most(4)).unwrap();
    assert_eq!(stage.listed()[0].size_bytes, 8 << 20);
    stage.attach("a", Outside::Agreed).unwrap();
    shrinks_to(4);
    assert!(stage.at_work().in_use);
    stage.detach("a");
}

#[test]
fn consent_to_one_device_is_shown_and_can_be_taken_back() {
    let stage = stage();
    stage.cache("fast", &["f0"]);
    stage.disk("a");
    stage.attach("a", Outside::Agreed).unwrap();
    let set = |mode: Option<FlashMode>, single: SingleDevice| DiskFlashSet {
        cache: Some(Some(name("fast"))),
        mode,
        single_device: Some(single),
        ..DiskFlashSet::default()
    };
    let back = set(Some(FlashMode::WriteBack), SingleDevice::Accept);
    stage.set_flash("a", &back).unwrap();
    let shown = || stage.disk_service.disk(&name("a")).unwrap().flash.unwrap();
    assert!(shown().single_device && stage.listed()[0].single_device);
    let refused = said(stage.set_flash("a", &set(None, SingleDevice::Refuse)));
    let way_out = "--cache-mode write-through --no-single-device-ok";
    assert!(refused.contains(way_out), "{refused}");
    assert_eq!(stage.at_work().mode, FlashMode::WriteBack);
    let through = set(Some(FlashMode::WriteThrough), SingleDevice::Refuse);
    stage.set_flash("a", &through).unwrap();
    assert!(!shown().single_device && !shown().has_dirty);
    assert_eq!(stage.at_work().mode, FlashMode::WriteThrough);
    stage.detach("a");
}
