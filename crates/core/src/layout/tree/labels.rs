//! The labels of a disk's members: what is found at the beginning of each, and what is written there.
//!
//! A disk that is used reads a member's label again before it uses a member that has no state: its image may be a new one.
//!
//! # Always true
//! - a member is not rebuilt before its label is durable: otherwise the disk would not open with it again

use super::{BlockOutcome, Found, LayoutCx, Members, TREE, Tree, place, reborrow};
use crate::block::{BLOCK, Unreadable};
use crate::layout::label::Label;
use crate::layout::{LayoutSpec, Refusal, Target};
use crate::request::{Fault, Outcome};
use alloc::vec::Vec;
use core::ops::RangeInclusive;

/// A member whose label is being read or written.
pub(super) struct Relabel {
    member: Target,
    /// Of its I/O.
    tag: u64,
    writes: bool,
}

impl Tree {
    /// Writes a label while the disk opens.
    pub(super) fn write_label(&self, cx: &mut LayoutCx<'_>, target: Target, sealed: bool) {
        let label = self.members.label(self.spec, target.0, sealed);
        cx.write_block(target.0.into(), target, 0, label.encode());
    }

    /// A layout asks for the label of a member that it wants to rebuild.
    pub(crate) fn check_label(&mut self, cx: &mut LayoutCx<'_>, node: u8, own: Target) {
        let member = self.global(node, own);
        match self.relabel {
            None => self.begin_label(cx, member, false),
            Some(_) => self.labelled(cx, member, Err(Fault::Io)),
        }
    }

    /// Reads or writes the label of a member while the disk is used.
    pub(super) fn begin_label(&mut self, cx: &mut LayoutCx<'_>, member: Target, writes: bool) {
        self.relabels += 1;
        let tag = u64::from(self.relabels) << 8 | u64::from(member.0);
        self.relabel = Some(Relabel {
            member,
            tag,
            writes,
        });
        let mut cx = LayoutCx {
            node: TREE,
            ..reborrow(cx)
        };
        let label = self.members.label(self.spec, member.0, true);
        match writes {
            true => cx.write_block(tag, member, 0, label.encode()),
            false => cx.read_block(tag, member, 0),
        }
    }

    /// That has ended.
    pub(super) fn relabelled(&mut self, cx: &mut LayoutCx<'_>, tag: u64, outcome: BlockOutcome) {
        let Some(relabel) = self.relabel.take_if(|relabel| relabel.tag == tag) else {
            // Nobody waits for it any more.
            return;
        };
        let member = relabel.member;
        let found = match (relabel.writes, &outcome) {
            (_, Err(fault)) => Err(*fault),
            (true, Ok(_)) => Ok(None),
            (false, Ok(_)) => Ok(Some(self.members.judge(self.spec, member.0, &outcome))),
        };
        match found {
            Ok(Some(Found::Blank | Found::Ours { sealed: false, .. })) => {
                self.begin_label(cx, member, true);
            }
            Ok(Some(Found::Refused(_))) => self.labelled(cx, member, Err(Fault::Invalid)),
            Ok(_) => self.labelled(cx, member, Ok(())),
            Err(fault) => self.labelled(cx, member, Err(fault)),
        }
    }

    /// A member hangs: nobody waits for its label any more.
    pub(crate) fn give_up_label(&mut self, cx: &mut LayoutCx<'_>, node: u8, own: Target) {
        let member = self.global(node, own);
        let hangs = |relabel: &mut Relabel| relabel.member == member;
        if self.relabel.take_if(hangs).is_some() {
            self.labelled(cx, member, Err(Fault::Gone));
        }
    }

    fn labelled(&mut self, cx: &mut LayoutCx<'_>, member: Target, outcome: Outcome) {
        let (node, own) = self.above(member);
        let (now, disk) = (cx.now, cx.disk);
        let (layout, mut cx) = self.hook(place(node), now, disk, cx.commands, cx.arena);
        layout.labelled(&mut cx, own, outcome);
    }
}

impl Members {
    /// What a label says about this member.
    pub(super) fn judge(&self, spec: LayoutSpec, member: u8, outcome: &BlockOutcome) -> Found {
        let target = Target(member);
        let Ok(Some(block)) = outcome else {
            return Found::Away;
        };
        let ours = |label: &Label| {
            let Members { disk, data_at, .. } = *self;
            let same = label.disk == disk && label.member == member && label.layout == spec;
            same && self.counts(spec).contains(&label.members) && label.data_at == data_at
        };
        match Label::decode(&block[..]) {
            Ok(label) if ours(&label) => Found::Ours {
                sealed: label.sealed,
                torn: false,
            },
            Ok(_) => Found::Refused(Refusal::Foreign(target)),
            Err(Unreadable::Empty) => Found::Blank,
            Err(Unreadable::Newer(_)) => Found::Refused(Refusal::Newer(target)),
            Err(_) if self.is_half_written(spec, member, block) => Found::Ours {
                sealed: false,
                torn: true,
            },
            Err(Unreadable::Torn) => Found::Refused(Refusal::Damaged(target)),
            Err(Unreadable::Foreign | Unreadable::Short) => {
                Found::Refused(Refusal::Unknown(target))
            }
        }
    }
}

impl Members {
    pub(super) fn label(&self, spec: LayoutSpec, member: u8, sealed: bool) -> Label {
        Label {
            disk: self.disk,
            layout: spec,
            data_at: self.data_at,
            members: place(self.count),
            member,
            sealed,
        }
    }

    /// How many members a label may name: fewer than now if it was written before a mirror got more of them.
    fn counts(&self, spec: LayoutSpec) -> RangeInclusive<u8> {
        let now = place(self.count);
        match spec {
            LayoutSpec::Mirror => 1..=now,
            _ => now..=now,
        }
    }

    /// Whether a crash while this member's label was written leaves such a block: each of its sectors is empty, or one of
    /// the label before or after it was sealed.
    fn is_half_written(&self, spec: LayoutSpec, member: u8, block: &[u8; BLOCK]) -> bool {
        let mut labels = Vec::new();
        for members in self.counts(spec) {
            for sealed in [false, true] {
                let label = self.label(spec, member, sealed);
                labels.push(Label { members, ..label }.encode());
            }
        }
        (0..BLOCK).step_by(SECTOR).all(|at| {
            let sector = &block[at..at + SECTOR];
            let known = |label: &[u8; BLOCK]| label[at..at + SECTOR] == *sector;
            sector.iter().all(|byte| *byte == 0) || labels.iter().any(|label| known(label))
        })
    }
}

/// Devices write at least so many bytes whole. Origin: the smallest sector of any disk.
const SECTOR: usize = 512;
