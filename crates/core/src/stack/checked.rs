//! Reads that a layout checks before they are answered: a flash cache's hits.
//!
//! Such a read goes to one target as it is ([`Map::Checked`](crate::layout::Map::Checked)). Once it has ended there, the
//! checksum of each of its blocks is computed, in order, and the layout compares it with its own.
//!
//! # Always true
//! - no such read is answered with success unless the layout found it good
//! - the layout hears once of each: that it is good, or that it is not

use super::layouts::as_seen;
use super::{Inside, Stack, StackCx, StackExit};
use crate::block::BLOCK;
use crate::effect::Effect;
use crate::filter::{GATHERED, IN_LAYOUT, Io, Origin, Way};
use crate::iocontrol::Cost;
use crate::layout::{Check, Target};
use crate::request::{Fault, IoId};
use crate::slab::Slab;
use alloc::vec::Vec;

/// Bytes that are summed at a time.
const SUMMED: u32 = 4096;

const _: () = assert!(BLOCK == SUMMED as usize, "blocks are summed");

impl Stack {
    /// Takes the next checksum of a guest's read; `flow` passes it up after the last one. Returns whether that was all:
    /// otherwise [`Stack::summed`] gets it.
    #[inline]
    pub(crate) fn check(&mut self, id: IoId, sum: u32, ios: &mut Slab<Io>) -> bool {
        let Some(io) = ios.get_mut(id) else {
            return false;
        };
        if io.mark == 0 || !matches!(io.origin, Origin::Guest(_)) {
            return false;
        }
        let Some(tree) = self.inside.layout.as_deref_mut() else {
            return false;
        };
        match tree.checked(io.mark, sum) {
            Check::More => true,
            Check::Good => {
                io.mark = 0;
                io.parked = Some((GATHERED, Way::Up));
                self.checked.push(id);
                true
            }
            Check::Bad => false,
        }
    }

    /// The same for a read of a filter, or one that is not good. Returns whether there was such an I/O.
    #[cold]
    pub(super) fn check_alone(&mut self, cx: &mut StackCx<'_>, id: IoId, sum: u32) -> bool {
        let mark = cx.ios.get(id).map_or(0, |io| io.mark);
        let tree = self.inside.layout.as_deref_mut();
        let (Some(tree), false) = (tree, mark == 0) else {
            return false;
        };
        let check = tree.checked(mark, sum);
        if check == Check::More {
            return true;
        }
        let io = cx.ios.inside_mut(id);
        (io.mark, io.parked) = (0, None);
        match check {
            Check::Good => {
                let bottom = self.inside.layers.len();
                cx.up_alone(&mut self.inside, id, bottom);
            }
            _ => cx.read_badly(&mut self.inside, id, mark, None),
        }
        cx.run(&mut self.inside);
        true
    }
}

impl StackExit<'_> {
    /// Gives a read to a flash device, which has no scheduler: it is checked when it has ended there.
    #[inline]
    pub(super) fn place_checked(
        &mut self,
        inside: &mut Inside,
        io: &mut Io,
        node: u8,
        (target, offset, mark): (Target, u64, u16),
    ) {
        let tree = inside.layout.as_deref_mut().expect("the disk has layouts");
        let target = tree.below(node, target);
        (io.target, io.at) = (target.expect("flash is no layout"), offset);
        (io.node, io.mark) = (node, mark);
        (io.cost, io.times) = (Cost(0), 0);
        self.begin(io);
        tree.begun(io, self.now);
    }
}

impl StackCx<'_> {
    /// Takes the reads out of these that are to be checked, and has their blocks summed.
    pub(super) fn sum_read(&mut self, ids: &mut Vec<IoId>) {
        let (disk, len) = (self.exit.disk, u64::from(SUMMED));
        let (ios, out) = (&mut *self.ios, &mut *self.exit.out);
        let mut kept = 0;
        for nth in 0..ids.len() {
            let io_id = ids[nth];
            let io = ios.inside_mut(io_id);
            if io.mark == 0 {
                ids[kept] = io_id;
                kept += 1;
                continue;
            }
            io.parked = Some((IN_LAYOUT, Way::Up));
            let (mut data, mut left) = (io.data, io.len);
            while left > 0 {
                out.push(Effect::Sum {
                    disk,
                    io: io_id,
                    data,
                    len,
                });
                data = data.skip(SUMMED);
                left = left.saturating_sub(len);
            }
        }
        ids.truncate(kept);
    }

    /// A read was not good: its layout takes it.
    #[cold]
    pub(super) fn read_badly(
        &mut self,
        inside: &mut Inside,
        id: IoId,
        mark: u16,
        fault: Option<Fault>,
    ) {
        self.take(id);
        let io = self.ios.inside_mut(id);
        let (node, seen) = (io.node, as_seen(io, io.offset));
        let (layout, mut cx) = inside.hook(&mut self.exit, node);
        layout.unchecked(&mut cx, &seen, mark, fault);
    }
}
