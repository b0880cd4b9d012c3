//! Carries out what the shard wants: starts I/Os on images, answers requests, writes filters' records aside.
//!
//! One loop takes the effects in order; what they bring about at once (an image that answers on the spot, a
//! filter that asks for more) makes new ones, until there are none. Then the answers become visible to guests: at a
//! turn's end, and between the pieces of one.

use super::IoThread;
use crate::datastore::{Job, Lane, Progress};
use crate::device::ReplyTo;
use crate::errand::{Errand, Task};
use std::sync::Arc;
use tidegate_core::request::{DiskId, Outcome, Token};
use tidegate_core::shard::{Effect, Event};
use tidegate_core::stack::FilterKey;

impl IoThread {
    /// Carries out what the shard wants, until it wants no more.
    pub(super) fn carry(&mut self) {
        while !self.desk.effects.is_empty() {
            std::mem::swap(&mut self.carrying, &mut self.desk.effects);
            let mut carrying = std::mem::take(&mut self.carrying);
            for effect in carrying.drain(..) {
                self.carry_out(effect);
            }
            self.carrying = carrying;
            self.report_finished();
            self.desk.flow();
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Start {
                disk,
                io,
                op,
                flags,
                offset,
                len,
                data,
            } => {
                self.start_job(
                    disk,
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
            Effect::SideWrite {
                disk,
                filter,
                buffer,
            } => self.side_write(disk, filter, buffer),
            Effect::Rearranged { disk } => self.rearranged(disk),
            Effect::Detached { disk, spent } => self.detached(disk, spent),
            Effect::Wake { control, thread } => self.wake_peer(control, thread),
        }
    }

    pub(super) fn start_job(&mut self, disk: DiskId, job: Job) {
        let place = self.disks[disk.0 as usize]
            .as_mut()
            .expect("the shard's disks are this thread's");
        let mut lane = Lane {
            now: self.desk.now,
            disk,
            ring: &mut self.desk.ring,
            buffers: &mut self.desk.buffers,
            finished: &mut self.finished,
            errands: &self.errands,
        };
        if let Progress::Done(outcome) = place.image.start(&mut lane, job) {
            let event = Event::Finished {
                disk,
                io: job.io,
                outcome,
            };
            self.desk
                .shard
                .gather(self.desk.now, event, &mut self.desk.effects);
        }
    }

    /// Tells a request's front end how it ended.
    pub(super) fn answer(&mut self, token: Token, outcome: Outcome) {
        let buffer = u32::try_from(token.0).expect("a token is a buffer's number");
        self.desk.answered_last = true;
        match std::mem::replace(&mut self.desk.waiting[buffer as usize], ReplyTo::Nobody) {
            ReplyTo::Ring { queue, reply } => {
                let device = self.queues[queue as usize]
                    .as_mut()
                    .expect("a queue outlives its requests");
                device.answer(&mut self.desk.buffers, buffer, &reply, outcome);
                self.desk.buffers.release(buffer);
                if device.is_dirty_first() {
                    self.desk.dirty.push(queue);
                }
            }
            ReplyTo::Nbd { connection, asked } => {
                let device = self.connections[connection as usize]
                    .as_mut()
                    .expect("a connection outlives its requests");
                if device.answer(&mut self.desk, buffer, &asked, outcome) {
                    self.desk.talking.push(connection);
                }
            }
            ReplyTo::Nobody => panic!("every request has somebody who waits for it, once"),
        }
    }

    /// Shows guests and clients what was answered since the last time.
    pub(super) fn publish(&mut self) {
        while let Some(index) = self.desk.dirty.pop() {
            if let Some(queue) = &mut self.queues[index as usize] {
                queue.publish();
                if !queue.active && self.idle.should_spin(true) {
                    // Its guest need not kick: we shall be looking when it asks again.
                    queue.wake();
                    self.active.push(index);
                }
                self.uncalled.call(index, queue);
            }
            self.part_with_queue_if_drained(index);
        }
        loop {
            while let Some(index) = self.desk.talking.pop() {
                self.move_connection(index);
            }
            if !self.desk.budget.wake(&mut self.desk.talking) {
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
                let file = Arc::clone(file);
                self.errands.send(Errand {
                    disk,
                    task: Task::Append {
                        file,
                        filter,
                        buffer,
                        outcome: Ok(()),
                    },
                });
            }
            None => {
                let outcome = Err(tidegate_core::request::Fault::Gone);
                let event = Event::SideWritten {
                    disk,
                    filter,
                    buffer,
                    outcome,
                };
                self.desk
                    .shard
                    .handle(self.desk.now, event, &mut self.desk.effects);
            }
        }
    }
}
