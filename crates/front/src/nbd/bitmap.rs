//! A dirty bitmap: the ranges of an export that differ from an older state of it.
//!
//! A client selects it as the metadata context `qemu:dirty-bitmap:NAME`, and a [`Session`](super::session::Session)
//! answers its block status. Whoever serves the export knows where the ranges come from. Copies share them.
//!
//! # Always true
//! - Ranges ascend, do not touch, and are not empty.
//! - An extent of an answer is not empty, and the extents lie within the request.
//!
//! # Units
//! Bytes of the export.
//!
//! # Source
//! QEMU's `docs/interop/nbd.rst`, "`qemu` namespace".

use super::wire::state;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Bitmap {
    ranges: Arc<[Range<u64>]>,
}

/// A bitmap that is there as long as somebody has it.
#[derive(Clone, Debug)]
pub struct WeakBitmap(Weak<[Range<u64>]>);

impl WeakBitmap {
    /// The bitmap, if it is still there.
    pub fn upgrade(&self) -> Option<Bitmap> {
        let ranges = self.0.upgrade()?;
        Some(Bitmap { ranges })
    }
}

impl Bitmap {
    /// A bitmap of these ranges, in any order.
    pub fn new(mut ranges: Vec<Range<u64>>) -> Bitmap {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let touches = next.start <= last.end;
            if touches {
                last.end = last.end.max(next.end);
            }
            touches
        });
        Bitmap {
            ranges: ranges.into(),
        }
    }

    /// Number of bytes that differ.
    pub fn dirty(&self) -> u64 {
        self.ranges
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    /// Its ranges.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The same, as long as somebody has it.
    pub fn downgrade(&self) -> WeakBitmap {
        WeakBitmap(Arc::downgrade(&self.ranges))
    }

    /// The extents of a range: lengths, and flags of the context.
    pub(super) fn extents(&self, offset: u64, len: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let end = offset.saturating_add(u64::from(len));
        let mut next = self.ranges.partition_point(|range| range.end <= offset);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (until, flags) = match self.ranges.get(next) {
                Some(range) if range.start <= at => {
                    next += 1;
                    (range.end, state::DIRTY)
                }
                Some(range) => (range.start, 0),
                None => (end, 0),
            };
            let until = until.min(end);
            let len = u32::try_from(until - at).expect("an extent is within a request");
            at = until;
            Some((len, flags))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bitmap: &Bitmap, offset: u64, len: u32) -> Vec<(u32, u32)> {
        bitmap.extents(offset, len).collect()
    }

    #[test]
    fn ranges_are_ordered_and_joined() {
        let bitmap = Bitmap::new(vec![40..50, 0..10, 10..20, 15..18, 60..60]);
        assert_eq!(bitmap.ranges(), [0..20, 40..50]);
        assert_eq!(bitmap.dirty(), 30);
        let weak = bitmap.downgrade();
        assert_eq!(weak.upgrade().map(|same| same.dirty()), Some(30));
        drop(bitmap);
        assert!(weak.upgrade().is_none());
    }

    #[test]
    fn extents_cover_the_request_and_alternate() {
        let bitmap = Bitmap::new(vec![10..20, 40..50]);
        assert_eq!(of(&bitmap, 0, 10), [(10, 0)]);
        assert_eq!(
            of(&bitmap, 0, 100),
            [(10, 0), (10, 1), (20, 0), (10, 1), (50, 0)]
        );
        assert_eq!(of(&bitmap, 15, 30), [(5, 1), (20, 0), (5, 1)]);
        assert_eq!(of(&bitmap, 20, 20), [(20, 0)]);
        assert_eq!(of(&bitmap, 50, 7), [(7, 0)]);
        assert_eq!(of(&Bitmap::default(), 5, u32::MAX), [(u32::MAX, 0)]);
        let all = Bitmap::new(std::iter::once(0..1 << 50).collect());
        assert_eq!(of(&all, 1 << 40, u32::MAX), [(u32::MAX, 1)]);
    }
}
