//! Reads of a pool's disk: one place if one record sees all of it, otherwise parts of several, and zeroes where none does.
//!
//! # Always true
//! - a read changes nothing, and waits for nothing but its targets

use super::records::Table;
use super::{Pool, READ};
use crate::layout::{LayoutCx, LayoutIo, Map, SubIo, Target};
use crate::request::Op;
use alloc::vec::Vec;

/// A part of the disk that is together on one target, or nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    at: Option<(Target, u64)>,
    len: u64,
}

impl Pool {
    pub(super) fn map_read(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        if let Some((target, offset)) = self.direct(io.op, io.flags, io.offset, io.len) {
            return Map::One { target, offset };
        }
        let pieces = self.pieces_of(io.offset, io.len);
        let sources = pieces.iter().filter(|piece| piece.at.is_some()).count();
        let mut data = io.data;
        let tag = match u32::try_from(sources).expect("front ends bound a read") {
            0 => None,
            count => Some(READ | self.fanout.begin(io.id, count)),
        };
        for piece in pieces {
            match (piece.at, tag) {
                (Some((target, offset)), Some(tag)) => cx.issue(
                    tag,
                    SubIo {
                        target,
                        op: Op::Read,
                        flags: io.flags,
                        offset,
                        len: piece.len,
                        data,
                        background: io.background,
                    },
                ),
                _ => cx.zero(data, piece.len),
            }
            data = data.skip(u32::try_from(piece.len).expect("a buffer is below 4 GiB"));
        }
        match tag {
            Some(_) => Map::Issued,
            None => Map::Done(Ok(())),
        }
    }

    /// The parts of a range, each as long as it is together.
    fn pieces_of(&self, offset: u64, len: u64) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let (place, part) = self.next_source(at, end - at);
            let found = place.map(|place| self.address(place, at));
            match pieces.last_mut() {
                Some(last) if follows(last, found) => last.len += part,
                _ => pieces.push(Piece {
                    at: found,
                    len: part,
                }),
            }
            at += part;
        }
        pieces
    }

    /// The place that has the first sub-block of a range, and how much of the range that sub-block is. What has no record is
    /// looked at by extents.
    pub(super) fn next_source(&self, offset: u64, len: u64) -> (Option<u32>, u64) {
        let extent = self.extent_at(offset);
        if self.table.first(extent).is_none() {
            return (None, self.left_of_extent(offset).min(len));
        }
        let sub_block = 1_u64 << self.shifts.0;
        let left = sub_block - (offset & (sub_block - 1));
        let source = self.table.source(extent, self.sub_block_at(offset));
        let place = source.filter(|place| !Table::is_mark(*place));
        (place, left.min(len))
    }

    /// Which parts of a range have data: of the first part that is together, as its target says. Where that is nowhere, no
    /// target can be asked: then no extents are an answer, which says that there may be data.
    pub(super) fn map_extents(&mut self, cx: &mut LayoutCx<'_>, io: &LayoutIo) -> Map {
        if let Some((target, offset)) = self.direct(Op::Read, io.flags, io.offset, io.len) {
            return Map::One { target, offset };
        }
        let (place, len) = self.next_source(io.offset, io.len);
        let Some((target, offset)) = place.map(|place| self.address(place, io.offset)) else {
            return Map::Done(Ok(()));
        };
        // A shorter answer is an answer: its reader asks on from there.
        let tag = READ | self.fanout.begin(io.id, 1);
        cx.issue(
            tag,
            SubIo {
                target,
                op: Op::Extents,
                flags: io.flags,
                offset,
                len,
                data: io.data,
                background: io.background,
            },
        );
        Map::Issued
    }
}

/// Whether a place goes on where a piece ends.
fn follows(last: &Piece, found: Option<(Target, u64)>) -> bool {
    match (last.at, found) {
        (None, None) => true,
        (Some((target, offset)), Some(found)) => found == (target, offset + last.len),
        _ => false,
    }
}
