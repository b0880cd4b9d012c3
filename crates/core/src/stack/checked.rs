//! Reads that a layout checks before they are answered: a flash cache's hits.
//!
//! Such a read goes to one target as it is ([`Layout::hit`](crate::layout::Layout::hit)). When it has ended there, the
//! checksum of each of its blocks is computed at once, in order, and the layout compares it with its own.
//!
//! # Always true
//! - no such read is answered with success unless the layout found it good
//! - the layout hears once of each: that it is good, or that it is not

use super::layouts::as_seen;
use super::{Inside, Stack, StackCx, StackExit};
use crate::block::BLOCK;
use crate::filter::Io;
use crate::iocontrol::Cost;
use crate::layout::Check;
use crate::request::{Data, Fault, IoId};
use crate::slab::Slab;
use alloc::vec::Vec;

/// Bytes that are summed at a time.
const SUMMED: u32 = 4096;

const _: () = assert!(BLOCK == SUMMED as usize, "blocks are summed");

impl Stack {
    /// Has a read that has ended checked. One that is not good, or for which this is not called, goes back to its layout in
    /// `flow`.
    #[inline(always)]
    pub(crate) fn check(
        &mut self,
        id: IoId,
        ios: &mut Slab<Io>,
        mut sum: impl FnMut(Data, u32) -> u32,
    ) {
        let Some(tree) = self.inside.layout.as_deref_mut() else {
            return;
        };
        let io = ios.inside_mut(id);
        let mut data = io.data;
        loop {
            match tree.checked(io.mark, sum(data, SUMMED)) {
                Check::More => data = data.skip(SUMMED),
                Check::Good => {
                    io.mark = 0;
                    return;
                }
                Check::Bad => return,
            }
        }
    }
}

impl StackExit<'_> {
    /// Gives a read to a flash device at once, if its layout wants that. It has no scheduler there, and is checked when it
    /// has ended. Returns whether it did.
    #[inline(always)]
    pub(super) fn hit(&mut self, inside: &mut Inside, io: &mut Io) -> bool {
        let Some(tree) = inside.layout.as_deref_mut() else {
            return false;
        };
        let Some(hit) = tree.hit(self.now, io.offset, io.len) else {
            return false;
        };
        (io.target, io.at, io.node) = (hit.target, hit.offset, tree.root());
        (io.mark, io.cost, io.times) = (hit.mark.get(), Cost(0), 0);
        self.begin(io);
        tree.begun(io, self.now);
        true
    }
}

impl StackCx<'_> {
    /// Gives the reads of these that were not found good back to their layout, and leaves the others.
    #[cold]
    pub(super) fn reads_badly(&mut self, inside: &mut Inside, ids: &mut Vec<IoId>) {
        ids.retain(|&id| {
            let io = self.ios.inside_mut(id);
            let mark = core::mem::take(&mut io.mark);
            if mark != 0 {
                self.read_badly(inside, id, mark, None);
            }
            mark == 0
        });
        self.run(inside);
    }

    /// A read was not good: its layout takes it.
    #[cold]
    pub(super) fn read_badly(
        &mut self,
        inside: &mut Inside,
        id: IoId,
        mark: u64,
        fault: Option<Fault>,
    ) {
        self.take(id);
        let io = self.ios.inside_mut(id);
        let (node, seen) = (io.node, as_seen(io, io.offset));
        let (layout, mut cx) = inside.hook(&mut self.exit, node);
        layout.unchecked(&mut cx, &seen, mark, fault);
    }
}
