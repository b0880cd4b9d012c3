//! Opening a mirror: which members are in sync, and hot regions made equal.
//!
//! The newest state that any member has says who is in sync. All of these must be there: one that is away may have taken
//! writes alone since. Then each hot region is copied from one member in sync to the others, before the disk takes requests.
//!
//! # Always true
//! - a member that missed writes is never read
//! - after opening, members in sync are equal

use super::{LayoutCx, Mirror, OPEN, REGION, Refusal, STATE_BYTES, SubIo, Target, each};
use crate::block::{BLOCK, Unreadable};
use crate::layout::mirror::state::State;
use crate::request::{Fault, Flags, Op, Outcome};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Bytes that are copied at once.
pub const PIECE: u64 = 64 << 10;

/// How far opening has come.
pub(super) struct Opening {
    /// Blocks that have not been read.
    left: u32,
    /// The newest state of each member.
    states: Vec<Option<State>>,
    refusal: Option<Refusal>,
    /// Members to which the newest state is being written.
    levels: u32,
    /// What is left to copy, last first.
    pieces: Vec<(u64, u64)>,
    copying: Copying,
}

/// The step of the piece that is being copied.
enum Copying {
    /// It is read from this member; so many others have failed to read it.
    Read { from: Target, tries: u32 },
    /// It is written to so many more members.
    Write { left: u32 },
    /// All is copied; so many more members are flushed.
    Flush { left: u32 },
}

impl Mirror {
    pub(super) fn begin_opening(&mut self, cx: &mut LayoutCx<'_>) {
        self.opening = Some(Opening {
            left: 2 * u32::from(self.members),
            states: (0..self.members).map(|_| None).collect(),
            refusal: None,
            levels: 0,
            pieces: Vec::new(),
            copying: Copying::Flush { left: 0 },
        });
        for target in (0..self.members).map(Target) {
            for sequence in 0..2 {
                let tag = OPEN | u64::from(target.0);
                cx.read_block(tag, target, self.state_place(sequence));
            }
        }
    }

    /// A state block was read, or could not be.
    pub(super) fn opening_block(
        &mut self,
        cx: &mut LayoutCx<'_>,
        member: u8,
        outcome: Result<Option<Box<[u8; BLOCK]>>, Fault>,
    ) {
        let (disk, members) = (self.disk, self.members);
        let Some(opening) = &mut self.opening else {
            return;
        };
        if opening.levels > 0 {
            return self.levelled(cx, member, outcome.map(|_| ()));
        }
        opening.left -= 1;
        let target = Target(member);
        // A member that cannot be read is away.
        if let Ok(Some(block)) = outcome {
            match State::decode(&block[..]) {
                Ok((state, place)) => {
                    if state.disk != disk || place != member || state.members != members {
                        opening.refusal = Some(Refusal::Foreign(target));
                    }
                    let known = &mut opening.states[usize::from(member)];
                    if known
                        .as_ref()
                        .is_none_or(|known| known.sequence < state.sequence)
                    {
                        *known = Some(state);
                    }
                }
                Err(Unreadable::Newer(_)) => opening.refusal = Some(Refusal::Newer(target)),
                Err(_) => {}
            }
        }
        if opening.left == 0 {
            self.choose(cx);
        }
    }

    /// All states are known: decides who is in sync.
    fn choose(&mut self, cx: &mut LayoutCx<'_>) {
        let Some(opening) = &mut self.opening else {
            return;
        };
        let newest = opening.states.iter().flatten();
        let newest = newest.max_by_key(|state| state.sequence).cloned();
        let refusal = opening.refusal.or(match &newest {
            None => Some(Refusal::NoState),
            Some(newest) => each(newest.in_sync)
                .find(|target| {
                    let state = opening.states[usize::from(target.0)].as_ref();
                    // A crash while a state is recorded leaves members one apart. One that is further behind is an old copy.
                    state.is_none_or(|state| state.sequence + 1 < newest.sequence)
                })
                .map(Refusal::Missing),
        });
        let newest = match (refusal, newest) {
            (None, Some(newest)) => newest,
            (refusal, _) => {
                self.opening = None;
                return cx.opened(Err(refusal.unwrap_or(Refusal::NoState)));
            }
        };
        self.in_sync = newest.in_sync;
        self.records.sequence = newest.sequence;
        let size = self.state_at;
        let pieces = newest.hot.iter().flat_map(|region| {
            let begin = u64::from(*region) * REGION;
            let end = (begin + REGION).min(size);
            (0..)
                .map(move |piece| begin + piece * PIECE)
                .take_while(move |at| *at < end)
                .map(move |at| (at, PIECE.min(end - at)))
        });
        opening.pieces = pieces.collect();
        opening.pieces.reverse();
        self.level(cx, &newest);
    }

    /// Writes the newest state to the members that a crash has kept from it. Otherwise a second crash could leave one two
    /// states behind, as an old copy is.
    fn level(&mut self, cx: &mut LayoutCx<'_>, newest: &State) {
        let place = self.state_place(newest.sequence);
        let Some(opening) = &mut self.opening else {
            return;
        };
        for target in each(newest.in_sync) {
            let state = opening.states[usize::from(target.0)].as_ref();
            if state.is_none_or(|state| state.sequence < newest.sequence) {
                opening.levels += 1;
                let tag = OPEN | u64::from(target.0);
                cx.write_block(tag, target, place, newest.encode(target.0));
            }
        }
        if opening.levels == 0 {
            self.copy_next(cx);
        }
    }

    fn levelled(&mut self, cx: &mut LayoutCx<'_>, member: u8, outcome: Outcome) {
        let Some(opening) = &mut self.opening else {
            return;
        };
        opening.levels -= 1;
        let last = opening.levels == 0;
        if outcome.is_err() {
            self.drop_members(1 << member);
        }
        if last {
            self.copy_next(cx);
        }
    }

    /// Copies the next piece, or ends.
    fn copy_next(&mut self, cx: &mut LayoutCx<'_>) {
        let members = self.in_sync;
        let Some(opening) = &mut self.opening else {
            return;
        };
        if opening.pieces.is_empty() || members.count_ones() == 1 {
            opening.pieces.clear();
            opening.copying = Copying::Flush {
                left: members.count_ones(),
            };
            for target in each(members) {
                cx.issue(
                    OPEN | u64::from(target.0),
                    self.copy(target, Op::Flush, (0, 0)),
                );
            }
            return;
        }
        let from = Target(u8::try_from(members.trailing_zeros()).expect("few members"));
        self.read_piece(cx, from, 0);
    }

    fn read_piece(&mut self, cx: &mut LayoutCx<'_>, from: Target, tries: u32) {
        let Some(opening) = &mut self.opening else {
            return;
        };
        opening.copying = Copying::Read { from, tries };
        let piece = *opening.pieces.last().expect("a piece is being copied");
        cx.issue(OPEN | u64::from(from.0), self.copy(from, Op::Read, piece));
    }

    fn copy(&self, target: Target, op: Op, (offset, len): (u64, u64)) -> SubIo {
        SubIo {
            target,
            op,
            flags: Flags::NONE,
            offset,
            len,
            data: self.scratch,
        }
    }

    /// A sub-I/O of the copy has ended.
    pub(super) fn copy_done(&mut self, cx: &mut LayoutCx<'_>, member: u8, outcome: Outcome) {
        let in_sync = self.in_sync;
        let Some(opening) = &mut self.opening else {
            return;
        };
        match (&mut opening.copying, outcome) {
            (Copying::Read { from, .. }, Ok(())) => {
                let from = *from;
                let others = in_sync & !(1 << from.0);
                let left = others.count_ones();
                opening.copying = Copying::Write { left };
                let piece = *opening.pieces.last().expect("a piece is being copied");
                for target in each(others) {
                    cx.issue(
                        OPEN | u64::from(target.0),
                        self.copy(target, Op::Write, piece),
                    );
                }
            }
            (Copying::Read { from, tries }, Err(fault)) => {
                let (from, tries) = (from.0, *tries + 1);
                let next = self.next_in_sync(from);
                if tries >= in_sync.count_ones() {
                    self.opening = None;
                    return cx.opened(Err(Refusal::Failed(fault)));
                }
                self.read_piece(cx, Target(next), tries);
            }
            (Copying::Write { left }, outcome) => {
                *left -= 1;
                let last = *left == 0;
                if last {
                    opening.pieces.pop();
                }
                if outcome.is_err() {
                    self.drop_members(1 << member);
                }
                if last {
                    self.copy_next(cx);
                }
            }
            (Copying::Flush { left }, outcome) => {
                *left -= 1;
                let last = *left == 0;
                if outcome.is_err() && in_sync.count_ones() > 1 {
                    self.drop_members(1 << member);
                }
                if last {
                    // The members are equal: no region is hot.
                    self.records.version += 1;
                    self.record(cx);
                }
            }
        }
    }

    /// The state after opening is recorded.
    pub(super) fn recovered(&mut self, cx: &mut LayoutCx<'_>) {
        self.opening = None;
        cx.opened(Ok(()));
    }
}

const _: () = assert!(
    STATE_BYTES == 2 * BLOCK as u64,
    "a place for each of two states"
);
