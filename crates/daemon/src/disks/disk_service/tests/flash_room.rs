//! Parts of flash caches that become smaller and larger, while other commands come in between.

use tidegate_api::cache::FlashMode;
use tidegate_api::descriptor::Uuid;
use tidegate_core::layout::LayoutOrder;

use super::*;
use crate::caches::chunks::Wanted;

/// All chunks of cache `fast`, without the one of the label.
const ALL: usize = 63;

/// A stage with disk `a`, attached with cache `fast`.
struct Room {
    stage: Stage,
    live: Arc<Attached>,
    cache: Name,
}

impl Room {
    /// There are free chunks that disk `a` does not have, although nobody else has them.
    fn with_free_chunks() -> Room {
        let (stage, cache) = (stage(), name("fast"));
        stage.cache("fast", &["f0"]);
        let wanted = Wanted {
            shares: 1,
            useful: usize::MAX,
            min: None,
            max: Some(16),
            planned: None,
        };
        let (caches, other) = (&stage.disk_service.caches, Uuid::from_random([9; 16]));
        caches.grant(&cache, &name("b"), other, wanted).unwrap();
        let mut order = DiskCreate::new(name("a"), 64 << 20);
        order.datastore = Some(name("shared"));
        stage.disk_service.create(&order).unwrap();
        stage.attach("a", Outside::Agreed).unwrap();
        stage
            .give("a", Some("fast"), FlashMode::WriteThrough)
            .unwrap();
        caches.release(&cache, other).unwrap();
        let live = stage.disk_service.live.get(&name("a")).unwrap();
        Room { stage, live, cache }
    }

    fn service(&self) -> &DiskService {
        &self.stage.disk_service
    }

    /// Disk `a`'s chunks by the record.
    fn chunks(&self) -> Vec<u32> {
        let record = self.service().caches.record(&self.cache).unwrap();
        record.parts[0].chunks.clone()
    }

    /// The record names what the cache uses: no more, and no less.
    fn is_recorded(&self) {
        let record = self.service().caches.record(&self.cache).unwrap();
        let area = record.parts[0].area(record.chunk.0).unwrap();
        let report = self.live.cache_report().unwrap();
        assert_eq!(area.slots(), report.pages);
    }

    /// Waits until the cache has given chunks back.
    fn wait_until_they_have_left(&self) {
        let signals = self.service().notices.cache_signals(self.live.name());
        while signals.have_left().is_none() {
            std::thread::yield_now();
        }
    }
}

#[test]
fn chunks_that_were_given_back_are_recorded_before_their_disk_gets_others() {
    let room = Room::with_free_chunks();
    let (service, before) = (room.service(), room.chunks());
    let left = before.len() - 4;
    let claim = service.claim_part(&room.live).unwrap();
    service
        .order_shrink(&claim, &room.live, &room.cache, left)
        .unwrap();
    drop(claim);
    room.wait_until_they_have_left();
    assert_eq!(room.chunks(), before, "not recorded yet");
    service.spread(&room.cache, None);
    room.is_recorded();
    assert!(!service.react_to_caches());
    room.is_recorded();
    assert_eq!(room.chunks().len(), ALL);
    room.stage.detach("a");
}

#[test]
fn a_disk_that_gives_chunks_back_gets_none_until_that_is_recorded() {
    let room = Room::with_free_chunks();
    let (service, before) = (room.service(), room.chunks());
    let signals = service.notices.cache_signals(room.live.name());
    // The order is on its way, and something else is faster.
    assert!(signals.begin_shrink(before[before.len() - 4..].to_vec()));
    service.spread(&room.cache, None);
    assert_eq!(room.chunks(), before);
    let order = LayoutOrder::ShrinkCache { count: 4 };
    room.live.order(order).unwrap();
    room.wait_until_they_have_left();
    assert!(!service.react_to_caches());
    room.is_recorded();
    assert_eq!(room.chunks().len(), ALL, "it is tried again");
    room.stage.detach("a");
}

#[test]
fn a_disk_that_a_command_works_on_gets_free_chunks_afterwards() {
    let room = Room::with_free_chunks();
    let (service, before) = (room.service(), room.chunks());
    let claim = service.claim(room.live.name(), "").unwrap();
    service.spread(&room.cache, None);
    assert!(service.react_to_caches());
    assert_eq!(room.chunks(), before);
    drop(claim);
    assert!(!service.react_to_caches());
    assert_eq!(room.chunks().len(), ALL);
    room.is_recorded();
    // A command waits for such a moment.
    let brief = service.claim_part(&room.live).unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| service.claim(room.live.name(), "").is_ok());
        drop(brief);
        assert!(waiting.join().unwrap());
    });
    room.stage.detach("a");
}
