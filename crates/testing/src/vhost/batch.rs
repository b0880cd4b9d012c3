//! A batch of requests over a guest's queues: all are in flight together, and it ends with the last answer.
//!
//! For tests that say themselves what is in flight; [`super::guest_driver`] is for load. A server that dies meanwhile is waited
//! for, as [`super::VmOptions::reconnect`] says.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};

use super::vm::Vm;
use crate::load::{Kind, Operation};
use crate::tally::SILENCE;

/// One request of a batch.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The queue that it takes.
    pub queue: usize,
    /// What it asks for.
    pub operation: Operation,
    /// A write's bytes; a read's, once it is answered.
    pub bytes: Vec<u8>,
    /// The status that it was answered with: 0 is well.
    pub status: u8,
}

impl Vm {
    /// Sends all requests, runs `meanwhile`, and waits for the answers.
    ///
    /// # Errors
    /// A queue has fewer slots than the batch has requests for it, or the server breaks the protocol, goes away for good
    /// or is silent.
    pub fn exchange(&mut self, batch: &mut [Sent], meanwhile: impl FnOnce()) -> Result<()> {
        let mut waiting = HashMap::new();
        for (index, sent) in batch.iter().enumerate() {
            let queue = &mut self.queues[sent.queue];
            let slot = queue.free.pop().context("a queue has too few slots")?;
            let Operation {
                kind,
                offset,
                length,
                ..
            } = sent.operation;
            queue.ring.prepare(slot, kind, offset / 512, length);
            if kind == Kind::Write {
                self.memory.write(queue.ring.buffer(slot), &sent.bytes);
            }
            queue.ring.push(slot);
            waiting.insert((sent.queue, slot), index);
        }
        for queue in &mut self.queues {
            if queue.ring.publish() {
                queue.kick.write(1).context("cannot kick")?;
            }
        }
        meanwhile();
        let begin = Instant::now();
        while !waiting.is_empty() {
            self.take(batch, &mut waiting)?;
            if self.has_hung_up()? {
                self.reconnect()?;
            }
            if begin.elapsed() > 2 * SILENCE {
                bail!("the server did not answer {} requests", waiting.len());
            }
        }
        Ok(())
    }

    /// Takes what was answered.
    fn take(
        &mut self,
        batch: &mut [Sent],
        waiting: &mut HashMap<(usize, u16), usize>,
    ) -> Result<()> {
        for (number, queue) in self.queues.iter_mut().enumerate() {
            while let Some(slot) = queue.ring.pop()? {
                let index = waiting.remove(&(number, slot));
                let sent = &mut batch[index.context("a request was answered twice")?];
                sent.status = queue.ring.status(slot);
                if sent.operation.kind == Kind::Read {
                    let length = usize::try_from(sent.operation.length);
                    sent.bytes.resize(length.context("a length")?, 0);
                    self.memory.read(queue.ring.buffer(slot), &mut sent.bytes);
                }
                queue.free.push(slot);
            }
        }
        Ok(())
    }

    /// Whether the server is gone; looks for a moment.
    fn has_hung_up(&self) -> Result<bool> {
        const MOMENT: Duration = Duration::from_millis(1);
        let epoll = Epoll::new().context("cannot create an epoll")?;
        epoll
            .ctl(
                ControlOperation::Add,
                self.watched(),
                EpollEvent::new(EventSet::READ_HANG_UP, 0),
            )
            .context("cannot watch a socket")?;
        let moment = i32::try_from(MOMENT.as_millis()).context("a moment is short")?;
        let mut event = [EpollEvent::default()];
        let hung_up = epoll.wait(moment, &mut event);
        Ok(hung_up.context("cannot wait for a socket")? > 0)
    }
}
