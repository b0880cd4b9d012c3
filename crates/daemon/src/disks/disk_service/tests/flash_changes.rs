//! Disks that grow, move and change their members below a flash cache.

use tidegate_api::cache::{CacheCounts, FlashMode};
use tidegate_api::disk::ResizeData;
use tidegate_api::layout::{DiskMove, MemberState};

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
