//! Flash caches after faults: what the daemon believes of reports, and what it does with parts and descriptors then.

use tidegate_api::cache::FlashMode;
use tidegate_core::layout::LayoutNotice;
use tidegate_core::request::Fault;

use super::flash::said;
use super::*;

impl Stage {
    /// Disk `a`, attached with cache `fast` of two devices in this mode.
    fn cached(&self, mode: FlashMode) -> Arc<Attached> {
        self.cache("fast", &["f0", "f1"]);
        self.disk("a");
        self.attach("a", Outside::Agreed).unwrap();
        self.give("a", Some("fast"), mode).unwrap();
        self.disk_service.live.get(&name("a")).unwrap()
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
}
