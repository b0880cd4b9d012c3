//! Performs the shard's effects: it starts I/Os, answers requests, and writes side files.
//!
//! One loop takes the effects in order. Some cause new ones at once (an image that completes immediately, a filter that
//! submits more); the loop runs until there are none. `publish` then makes completions visible to guests: at the
//! end of a turn, and several times within a long one.

use super::side_write::SideWrite;
use super::{IoThread, report_end};
use crate::datastore::{ImageCx, Job, Progress, bytes};
use crate::device::ReplyTo;
use crate::tag::ImageId;
use std::sync::Arc;
use tidegate_core::effect::Effect;
use tidegate_core::filter::FilterKey;
use tidegate_core::layout::Target;
use tidegate_core::request::{DiskId, Outcome, Token};
use tidegate_core::shard::Event;

impl IoThread {
    /// Performs the shard's effects until there are none.
    pub(super) fn perform_effects(&mut self) {
        while !self.cx.effects.is_empty() {
            std::mem::swap(&mut self.performing, &mut self.cx.effects);
            let mut performing = std::mem::take(&mut self.performing);
            for effect in &mut performing {
                self.perform(effect);
            }
            performing.clear();
            self.performing = performing;
            self.report_finished();
            self.cx.flow();
        }
    }

    #[inline(always)]
    fn perform(&mut self, effect: &mut Effect) {
        match *effect {
            Effect::Start {
                disk,
                target,
                io,
                op,
                flags,
                offset,
                len,
                data,
            } => {
                self.start_job(
                    disk,
                    target,
                    Job {
                        io,
                        op,
                        flags,
                        offset,
                        len,
                        data,
                    },
                );
            }
            Effect::Answer { token, outcome, .. } => self.answer(token, outcome),
            Effect::Copy { from, to, len } => {
                self.cx.buffers.transfer(from, to, bytes(len));
            }
            Effect::Zero { to, len } => self.cx.buffers.zero(to, bytes(len)),
            Effect::Sum {
                disk,
                io,
                data,
                len,
            } => {
                let sum = self.cx.buffers.sum(data, bytes(len));
                self.cx.summed(disk, io, sum);
            }
            // Taken out only here, so that the others are read in place.
            _ => {
                let done = Effect::Held { disk: DiskId(0) };
                self.perform_rare(std::mem::replace(effect, done));
            }
        }
    }

    /// Performs an effect that a request of a disk of one image does not have.
    #[cold]
    #[inline(never)]
    fn perform_rare(&mut self, effect: Effect) {
        match effect {
            Effect::Start { .. }
            | Effect::Answer { .. }
            | Effect::Copy { .. }
            | Effect::Zero { .. }
            | Effect::Sum { .. } => unreachable!("performed above"),
            Effect::SideWrite {
                disk,
                filter,
                buffer,
            } => self.side_write(disk, filter, buffer),
            Effect::Rearranged { disk } => self.filters_changed(disk),
            Effect::Detached { disk, spent } => self.detached(disk, spent),
            Effect::ReadBlock {
                disk,
                target,
                io,
                offset,
            } => self.start_block(disk, target, io, offset, None),
            Effect::WriteBlock {
                disk,
                target,
                io,
                offset,
                block,
            } => self.start_block(disk, target, io, offset, Some(block)),
            Effect::Opened { disk, outcome } => self.layout_opened(disk, outcome),
            Effect::LayoutOrdered { disk, outcome } => self.layout_ordered(disk, outcome),
            Effect::LayoutNotice { disk, notice } => self.layout_notice(disk, *notice),
            Effect::Held { disk } => self.held(disk),
            Effect::Wake { control, thread } => self.wake_peer(control, thread),
        }
    }

    #[inline]
    pub(super) fn start_job(&mut self, disk: DiskId, target: Target, job: Job) {
        let place = self.disks[disk.0 as usize]
            .as_mut()
            .expect("the shard's disks are this thread's");
        let member = place.images.of_target(target);
        let mut cx = ImageCx {
            now: self.cx.now,
            image: member.id,
            ring: &mut self.cx.ring,
            buffers: &mut self.cx.buffers,
            finished: &mut self.finished,
            blocking: &self.blocking,
        };
        if let Progress::Done(outcome) = member.image.start(&mut cx, job) {
            report_end(&mut self.cx, &mut self.disks, disk, job.io, outcome);
        }
    }

    /// Reports a request's outcome to its device.
    pub(super) fn answer(&mut self, token: Token, outcome: Outcome) {
        let buffer = u32::try_from(token.0).expect("a token is a buffer's number");
        self.cx.answered_last = true;
        match self.cx.waiting.take(buffer) {
            ReplyTo::Ring { queue, reply } => {
                let device = self.queues[queue as usize]
                    .as_mut()
                    .expect("a queue outlives its requests");
                device.answer(&mut self.cx.buffers, buffer, &reply, outcome);
                self.cx.buffers.release(buffer);
                if device.is_dirty_first() {
                    self.cx.dirty.push(queue);
                }
            }
            ReplyTo::Nbd {
                connection,
                client_request,
            } => {
                let device = self.connections[connection as usize]
                    .as_mut()
                    .expect("a connection outlives its requests");
                if self.competing && self.round_robin.is_learning() {
                    device.flow.completed(&self.round_robin, 1);
                }
                if device.answer(&mut self.cx, buffer, &client_request, outcome) {
                    self.cx.ready_connections.push(connection);
                }
            }
            ReplyTo::Nobody => panic!("every request has a destination, once"),
        }
    }

    /// Publishes completions to guests and clients.
    pub(super) fn publish(&mut self) {
        while let Some(index) = self.cx.dirty.pop() {
            if let Some(queue) = &mut self.queues[index as usize] {
                let completions = queue.publish();
                if self.competing && self.round_robin.is_learning() {
                    queue.flow.completed(&self.round_robin, completions);
                }
                if queue.is_served_first() {
                    self.tally.served_queue(index);
                }
                let may_poll = !queue.is_dense() && self.idle.should_spin(true);
                if !queue.active && (queue.take_capped() || may_poll) {
                    // The guest need not kick: the thread polls the queue. Requests that were too many before may be
                    // taken now.
                    queue.wake();
                    self.active.push(index);
                }
                self.pending_interrupts.call(index, queue, self.cx.now);
            }
            self.remove_queue_if_drained(index);
        }
        self.advance_connections();
    }

    /// Advances the connections that have something to send, or to decode.
    #[inline(always)]
    pub(super) fn advance_connections(&mut self) {
        if !self.cx.ready_connections.is_empty() || self.cx.budget.was_freed() {
            self.advance_ready_connections();
        }
    }

    #[inline(never)]
    fn advance_ready_connections(&mut self) {
        loop {
            while let Some(index) = self.cx.ready_connections.pop() {
                self.advance_connection(index);
            }
            if !self.cx.budget.wake(&mut self.cx.ready_connections) {
                return;
            }
        }
    }

    fn side_write(&mut self, disk: DiskId, filter: FilterKey, buffer: Vec<u8>) {
        let place = self.disks[disk.0 as usize]
            .as_ref()
            .expect("the shard's disks are this thread's");
        match place.sides.iter().find(|(key, _)| *key == filter) {
            Some((_, file)) => {
                let write = SideWrite {
                    file: Arc::clone(file),
                    filter,
                    buffer,
                    outcome: Ok(()),
                };
                self.blocking.send(ImageId::first(disk), Box::new(write));
            }
            None => {
                let outcome = Err(tidegate_core::request::Fault::Gone);
                let event = Event::SideWritten {
                    disk,
                    filter,
                    buffer,
                    outcome,
                };
                self.cx.handle(event);
            }
        }
    }
}
