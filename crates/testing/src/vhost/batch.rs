//! A batch of requests over a guest's queues. All are in flight together, and the batch ends with the last completion.
//!
//! It is for tests that choose the requests in flight themselves; [`super::guest_driver`] is for load. If the server
//! dies meanwhile, the batch waits for it as [`super::VmOptions::reconnect`] says.

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
    /// Its queue.
    pub queue: usize,
    /// Its operation.
    pub operation: Operation,
    /// A write's data, or a read's data after completion.
    pub bytes: Vec<u8>,
    /// Its status: 0 is success.
    pub status: u8,
}

impl Vm {
    /// Sends all requests, runs `meanwhile`, and waits for the answers.
    ///
    /// # Errors
    /// A queue has fewer slots than the batch has requests for it, or the server breaks the protocol, does not return
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
                bail!("the server did not complete {} requests", waiting.len());
            }
        }
        Ok(())
    }

    /// Processes completed requests.
    fn take(
        &mut self,
        batch: &mut [Sent],
        waiting: &mut HashMap<(usize, u16), usize>,
    ) -> Result<()> {
        for (number, queue) in self.queues.iter_mut().enumerate() {
            while let Some(slot) = queue.ring.pop()? {
                let index = waiting.remove(&(number, slot));
                let sent = &mut batch[index.context("a request was completed twice")?];
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

    /// Whether the server has closed the connection. Waits briefly.
    fn has_hung_up(&self) -> Result<bool> {
        const HANGUP_TIMEOUT: Duration = Duration::from_millis(1);
        let epoll = Epoll::new().context("cannot create an epoll")?;
        epoll
            .ctl(
                ControlOperation::Add,
                self.watched(),
                EpollEvent::new(EventSet::READ_HANG_UP, 0),
            )
            .context("cannot watch a socket")?;
        let timeout = i32::try_from(HANGUP_TIMEOUT.as_millis()).context("a short timeout")?;
        let mut event = [EpollEvent::default()];
        let hung_up = epoll.wait(timeout, &mut event);
        Ok(hung_up.context("cannot wait for a socket")? > 0)
    }
}
