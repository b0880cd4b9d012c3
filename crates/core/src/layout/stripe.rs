//! The stripe layout (RAID 0): chunks of the disk lie on its targets in turn.
//!
//! Chunk `k` is on target `k % n`, in row `k / n`. A request inside one chunk goes to one target. A longer one becomes
//! sub-I/Os, all in flight together: one per chunk if it carries bytes, one per target if it does not.
//!
//! # Always true
//! - every byte of a request goes to exactly one place, and no two bytes of the disk share a place
//! - a flush reaches every target
//!
//! # Picture
//! ```text
//!   disk      0 1 2 3 4 5       target 0   target 1   target 2
//!   row 0  ->                      0          1          2
//!   row 1  ->                      3          4          5
//! ```

use super::fanout::Fanout;
use super::{Layout, LayoutCx, LayoutIo, Map, MemberReport, MemberState, SubIo, Target};
use crate::request::{Data, Op, Outcome};

/// The smallest chunk, in bytes.
pub const CHUNK_MIN: u64 = 4096;
/// The largest chunk, in bytes.
pub const CHUNK_MAX: u64 = 64 << 20;

/// See the module.
pub struct Stripe {
    chunk: u64,
    targets: u8,
    fanout: Fanout,
}

/// A part of the disk that is contiguous on one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    target: Target,
    offset: u64,
    len: u64,
}

impl Stripe {
    /// A stripe over so many targets, in chunks of so many bytes.
    ///
    /// # Panics
    /// Unless there are 2 to [`MAX_TARGETS`](super::MAX_TARGETS) targets, and the chunk is a power of two from
    /// [`CHUNK_MIN`] to [`CHUNK_MAX`]; the plan refuses others before.
    pub fn new(targets: u8, chunk: u64) -> Stripe {
        assert!(
            (2..=super::MAX_TARGETS).contains(&usize::from(targets)),
            "a stripe has 2 to {} targets",
            super::MAX_TARGETS
        );
        assert!(
            chunk.is_power_of_two() && (CHUNK_MIN..=CHUNK_MAX).contains(&chunk),
            "a chunk is a power of two, {CHUNK_MIN} to {CHUNK_MAX} bytes"
        );
        Stripe {
            chunk,
            targets,
            fanout: Fanout::default(),
        }
    }

    /// Where a byte of the disk lies, and how many bytes from there on lie together.
    fn place(&self, offset: u64) -> Piece {
        let (index, within) = (offset / self.chunk, offset % self.chunk);
        let targets = u64::from(self.targets);
        let target = u8::try_from(index % targets).expect("a target is below their number");
        Piece {
            target: Target(target),
            offset: index / targets * self.chunk + within,
            len: self.chunk - within,
        }
    }

    /// The chunks of a range, each cut to the range.
    fn chunks(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + '_ {
        let end = offset + len;
        let mut at = offset;
        core::iter::from_fn(move || {
            (at < end).then(|| {
                let mut piece = self.place(at);
                piece.len = piece.len.min(end - at);
                at += piece.len;
                piece
            })
        })
    }

    /// How many chunks a range touches.
    fn count(&self, offset: u64, len: u64) -> u64 {
        match len {
            0 => 0,
            _ => (offset + len - 1) / self.chunk - offset / self.chunk + 1,
        }
    }

    /// The part of a range that lies on one target: it is contiguous there.
    fn on_target(&self, target: Target, offset: u64, len: u64) -> Option<Piece> {
        let end = offset + len;
        let (first, last) = (offset / self.chunk, (end - 1) / self.chunk);
        let (targets, own) = (u64::from(self.targets), u64::from(target.0));
        // The first chunk of this target at or after `first`, and the last one up to `last`.
        let from = first + (own + targets - first % targets) % targets;
        let below = (last % targets + targets - own) % targets;
        if from > last || below > last {
            return None;
        }
        let to = last - below;
        let start = self.place(offset.max(from * self.chunk)).offset;
        let stop = match to == last {
            true => self.place(end - 1).offset + 1,
            false => to / targets * self.chunk + self.chunk,
        };
        (stop > start).then_some(Piece {
            target,
            offset: start,
            len: stop - start,
        })
    }

    fn all(&self) -> impl Iterator<Item = Target> + use<> {
        (0..self.targets).map(Target)
    }

    /// One sub-I/O per chunk, each with its part of the bytes.
    fn split(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) {
        let count = self.count(io.offset, io.len);
        let count = u32::try_from(count).expect("front ends bound a request that carries bytes");
        let tag = self.fanout.begin(io.id, count);
        let mut data = io.data;
        for piece in self.chunks(io.offset, io.len) {
            cx.issue(tag, sub(io, piece, data));
            data = data.skip(u32::try_from(piece.len).expect("a chunk is below 4 GiB"));
        }
    }

    /// One sub-I/O per target, without bytes.
    fn spread(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) {
        let pieces = |stripe: &Stripe| {
            let (offset, len) = (io.offset, io.len);
            let on = stripe
                .all()
                .filter_map(|target| stripe.on_target(target, offset, len));
            on.collect::<alloc::vec::Vec<_>>()
        };
        let pieces = pieces(self);
        let count = u32::try_from(pieces.len()).expect("few targets");
        let tag = self.fanout.begin(io.id, count);
        for piece in pieces {
            cx.issue(tag, sub(io, piece, io.data));
        }
    }

    fn flush(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) {
        let tag = self.fanout.begin(io.id, self.targets.into());
        for target in self.all() {
            let piece = Piece {
                target,
                offset: 0,
                len: 0,
            };
            cx.issue(tag, sub(io, piece, Data::NONE));
        }
    }
}

fn sub(io: &LayoutIo, piece: Piece, data: Data) -> SubIo {
    SubIo {
        target: piece.target,
        op: io.op,
        flags: io.flags,
        offset: piece.offset,
        len: piece.len,
        data,
        background: io.background,
    }
}

impl Layout for Stripe {
    fn name(&self) -> &'static str {
        "stripe"
    }

    fn open(&mut self, cx: &mut LayoutCx<'_>, _usable: u32, _fresh: bool) {
        cx.opened(Ok(()));
    }

    fn map(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        if io.op == Op::Flush {
            self.flush(cx, io);
            return Map::Issued;
        }
        let first = self.place(io.offset);
        if io.len <= first.len {
            return Map::One {
                target: first.target,
                offset: first.offset,
            };
        }
        match io.op {
            Op::Read | Op::Write => self.split(cx, io),
            Op::WriteZeroes | Op::Discard | Op::Prefetch => self.spread(cx, io),
            // A shorter answer is an answer: the first chunk. Its reader asks on from there.
            Op::Extents => {
                let tag = self.fanout.begin(io.id, 1);
                cx.issue(tag, sub(io, first, io.data));
            }
            Op::Flush => unreachable!("handled above"),
        }
        Map::Issued
    }

    fn done(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: Outcome) {
        if let Some((io, outcome)) = self.fanout.end(tag, outcome) {
            cx.answer(io, outcome);
        }
    }

    fn report(&self, members: &mut alloc::vec::Vec<MemberReport>) {
        members.extend(self.all().map(|_| MemberReport {
            state: MemberState::InSync,
            is_tried: false,
            in_flight: 0,
            faults: 0,
            copied: 0,
            to_copy: 0,
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    #[test]
    fn every_byte_has_a_place_of_its_own() {
        let stripe = Stripe::new(3, CHUNK_MIN);
        let mut places = BTreeSet::new();
        for block in 0..36 {
            let piece = stripe.place(block * 1024);
            assert!(piece.len >= 1024);
            assert!(places.insert((piece.target, piece.offset)), "{piece:?}");
        }
        let highest = places.iter().map(|(_, offset)| *offset).max();
        assert_eq!(highest, Some(3 * CHUNK_MIN - 1024), "no place is skipped");
    }

    #[test]
    fn the_part_of_a_range_on_a_target_is_what_its_chunks_are_together() {
        let stripe = Stripe::new(3, CHUNK_MIN);
        for (offset, len) in (0..30).flat_map(|o| (1..40).map(move |l| (o * 1024, l * 1024))) {
            for target in stripe.all() {
                let chunks: Vec<Piece> = stripe
                    .chunks(offset, len)
                    .filter(|piece| piece.target == target)
                    .collect();
                let together = chunks.first().map(|first| Piece {
                    len: chunks.iter().map(|piece| piece.len).sum(),
                    ..*first
                });
                assert_eq!(
                    stripe.on_target(target, offset, len),
                    together,
                    "{offset}+{len} on {target:?}"
                );
            }
            let count = stripe.chunks(offset, len).count() as u64;
            assert_eq!(stripe.count(offset, len), count);
        }
    }
}
