//! A disk's door: which requests go in, and what happens while it is not open.
//!
//! The shard asks it for each request, and again whenever an I/O of a disk that changes or leaves has ended.
//!
//! # Always true
//! - filters change, and a disk leaves, only while nothing of the disk is inside

use super::turns::scheduler_of;
use super::{Disk, Effect, Shard, refuse};
use crate::request::{DiskId, Fault, Op, Outcome, Request, Token};
use crate::stack::{self, Place};
use crate::units::Time;
use alloc::vec::Vec;

/// Whether requests go in.
pub(super) enum Door {
    Open,
    Changing(Vec<Place>),
    Leaving,
}

impl Shard {
    /// Carries out a change of filters or a detachment, once nothing is between the filters any more.
    pub(super) fn settle(&mut self, now: Time, id: DiskId, out: &mut Vec<Effect>) {
        let disk = self.disk(id);
        if !disk.stack.is_quiet() {
            return;
        }
        match core::mem::replace(&mut disk.door, Door::Open) {
            Door::Open => {}
            Door::Changing(places) => {
                disk.stack.rearrange(now, id, places, out);
                out.push(Effect::Rearranged { disk: id });
                let waiting = core::mem::take(&mut disk.waiting);
                self.note_timed();
                for (token, request) in waiting {
                    self.submitted(now, id, token, &request, out);
                }
            }
            Door::Leaving => {
                disk.stack.rearrange(now, id, Vec::new(), out);
                for (token, request) in disk.waiting.drain(..) {
                    out.push(Effect::Answer {
                        disk: id,
                        token,
                        op: request.op,
                        outcome: Err(Fault::Gone),
                    });
                }
                let control = disk.control;
                self.disks[id.0 as usize] = None;
                if let Some(scheduler) = scheduler_of(&mut self.turns, control) {
                    scheduler.remove(id);
                }
                self.note_timed();
                out.push(Effect::Detached { disk: id });
            }
        }
    }
}

impl Disk {
    /// A request comes to a door that is not open: it waits for the new filters, or for nobody any more.
    #[cold]
    #[inline(never)]
    pub(super) fn turn_away(
        &mut self,
        id: DiskId,
        token: Token,
        request: &Request,
        out: &mut Vec<Effect>,
    ) {
        if matches!(self.door, Door::Leaving) {
            return refuse(id, token, request, Fault::Gone, out);
        }
        self.waiting.push_back((token, *request));
    }

    /// Whether the request makes sense for this disk.
    #[inline]
    pub(super) fn admits(&self, request: &Request) -> Outcome {
        if self.read_only && request.op.modifies() {
            return Err(Fault::ReadOnly);
        }
        let end = request.offset.checked_add(request.len);
        if stack::has_range(request.op) && end.is_none_or(|end| end > self.size) {
            // As NBD wants it: a write past the end is lack of space, any other is nonsense.
            let write = matches!(request.op, Op::Write | Op::WriteZeroes);
            return Err(if write {
                Fault::NoSpace
            } else {
                Fault::Invalid
            });
        }
        Ok(())
    }
}
