//! The rings of a front end: started on the disk's I/O thread, stopped, and started again.
//!
//! # Always true
//! - a ring that stops has nothing in flight when its position is known
//! - what was changed while rings stood still is seen by all of them, or they do not run
//!
//! # Picture: one ring
//! ```text
//!            kick and addresses known, enabled
//!   Idle ────────────────────────────────────> Running (a queue on the I/O thread)
//!     ^   GET_VRING_BASE, disabled, memory change │
//!     └───────────────────────────────────────────┘   position comes back
//! ```

use super::front_ends::Turn;
use super::{Protocol, refuse};
use crate::device::ring::Parts;
use crate::sys::eventfd::EventFd;
use crate::thread::commands::{AttachQueue, Command, QueueChange, StopQueue};
use std::fs::File;
use std::sync::Arc;
use std::sync::mpsc::channel;
use tidegate_front::vhost::block::feature;
use tidegate_front::vhost::queue::{Queue, QueueConfig};
use vhost::vhost_user::{Error, Result};

/// What one ring was told so far.
#[derive(Default)]
pub(super) struct Setup {
    pub(super) size: u16,
    /// Descriptor table, available ring, used ring: addresses in the front end's process.
    pub(super) rings: Option<(u64, u64, u64)>,
    pub(super) log_used: Option<u64>,
    pub(super) base: u16,
    pub(super) kick: Option<File>,
    pub(super) call: Option<File>,
    pub(super) error: Option<File>,
    pub(super) enabled: bool,
    /// Its number on the I/O thread while it runs.
    pub(super) running: Option<u32>,
    /// Whether it ever ran, for this front end.
    pub(super) ran: bool,
}

impl Protocol {
    /// Takes the turn before rings run, once nothing of a front end that has gone is in flight; and takes up what a guest
    /// that comes from another front end chose there: no front end repeats it.
    pub(super) fn take_turn(&mut self) -> Result<()> {
        match self.disk.front_ends.take_turn(self.front_end) {
            Ok(Turn::Taken) => {}
            Ok(Turn::Anothers) => {
                return Err(refuse(
                    "another front end runs rings on this disk: one virtual machine at a time. Stop the other, or let \
                     its migration come to its end",
                ));
            }
            Ok(Turn::TooLate) => return Err(Error::Disconnected),
            Err(error) => return Err(Error::ReqHandlerError(error)),
        }
        // Also for one that had the turn before: two that are connected could take turns at it.
        self.facts.offences.wait_out_pause();
        if !std::mem::replace(&mut self.had_turn, true) && self.cache_choice.is_none() {
            self.cache_choice = self.disk.front_ends.cache_choice();
            if let (Some(region), Some(choice)) = (&self.inflight, self.cache_choice) {
                region.choose_write_back(choice);
            }
        }
        self.choose_write_back(self.cache_choice);
        Ok(())
    }

    /// Lets another front end have its turn, if no ring runs here.
    pub(super) fn give_turn_back(&self) {
        if self.rings.iter().all(|ring| ring.running.is_none()) {
            self.disk.front_ends.give_turn_back(self.front_end);
        }
    }

    pub(super) fn ring(&mut self, index: u32) -> Result<&mut Setup> {
        self.rings
            .get_mut(index as usize)
            .ok_or(Error::InvalidParam)
    }

    /// Calls the guest of a ring that does not run: it may have missed a call through the descriptor before this one. A ring
    /// that runs is called by its I/O thread. libvhost-user calls so, and QEMU's test waits for it.
    pub(super) fn call_once(&self, call: Option<&EventFd>) {
        if let Some(call) = call
            && !self.standing.is_shunned()
            && call.call().is_err()
        {
            self.standing.shun(&self.facts.offences);
        }
    }

    /// Starts a ring if everything that it needs is there.
    pub(super) fn start_if_ready(&mut self, index: u32) -> Result<()> {
        let always_enabled = self.features & feature::PROTOCOL_FEATURES == 0;
        let ring = self.ring(index)?;
        let ready = ring.running.is_none() && ring.kick.is_some() && ring.rings.is_some();
        if ready && (ring.enabled || always_enabled) {
            self.start(index)
        } else {
            Ok(())
        }
    }

    pub(super) fn start(&mut self, index: u32) -> Result<()> {
        self.take_turn()?;
        let started = self.start_in_turn(index);
        if started.is_err() {
            self.give_turn_back();
        }
        started
    }

    pub(super) fn start_in_turn(&mut self, index: u32) -> Result<()> {
        let logging = self.features & feature::LOG_ALL != 0;
        let memory = self.memory.logging(self.log.clone().filter(|_| logging));
        let guest = |user| {
            memory
                .guest_of_user(user)
                .ok_or_else(|| refuse("a ring lies outside the guest's memory"))
        };
        let setup = &self.rings[index as usize];
        let (desc, avail, used) = setup.rings.ok_or(Error::InvalidParam)?;
        let config = QueueConfig {
            size: setup.size,
            desc: guest(desc)?,
            avail: guest(avail)?,
            used: guest(used)?,
            base: setup.base,
            event_idx: self.features & feature::EVENT_IDX != 0,
            indirect: self.features & feature::INDIRECT_DESC != 0,
            log_used: setup.log_used.filter(|_| logging),
        };
        let mut queue = Queue::new(&memory, config)
            .map_err(|broken| refuse(format!("ring {index} makes no sense: {broken}")))?;
        let left_behind = match self.inflight_area(index, config.size) {
            Some((area, len)) => queue
                .track(area, len)
                .map_err(|_| refuse("the in-flight region does not fit the ring"))?,
            None => Vec::new(),
        };
        // After the rings have been looked at: that is where a page may first be missed.
        if memory.is_spoilt() {
            return Err(refuse(
                "pages are missing of memory that the front end shares: it was cut, or the host has none left. Share it \
                 anew, as a virtual machine does that is reset or connects again",
            ));
        }
        let known =
            queue.is_resumed() || std::mem::replace(&mut self.rings[index as usize].ran, true);
        self.doubt(queue.was_used(), known);
        let setup = &self.rings[index as usize];
        let event = |file: &Option<File>| -> Result<Option<EventFd>> {
            file.as_ref()
                .map(|f| f.try_clone().map(EventFd::from_file))
                .transpose()
                .map_err(Error::ReqHandlerError)
        };
        let kick = event(&setup.kick)?.ok_or(Error::InvalidParam)?;
        let (call, error) = (event(&setup.call)?, event(&setup.error)?);
        let facts = Arc::clone(&self.facts);
        let parts = Parts {
            disk: self.disk.id,
            number: u16::try_from(index).unwrap_or(u16::MAX),
            queue,
            memory,
            facts,
            standing: self.standing.clone(),
            kick,
            call,
            error,
            left_behind,
        };
        let (reply, answer) = channel();
        self.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })))?;
        let running = answer
            .recv()
            .map_err(|_| refuse("the disk's I/O thread is gone"))?;
        self.rings[index as usize].running = Some(running);
        self.tell_size();
        Ok(())
    }

    /// Has the front end read the configuration again where its guest may believe another size: the disk may have been
    /// resized while nobody was connected. It hears that while its rings run, and not before.
    fn tell_size(&mut self) {
        let size = Some(self.disk.size());
        if self.told_size != size {
            self.told_size = size;
            if let Err(error) = self.disk.front_ends.tell(self.front_end) {
                tracing::warn!(disk = %self.disk.spec.name, %error, "the front end could not be told of the disk's size");
            }
        }
    }

    pub(super) fn order(&self, order: Command) -> Result<()> {
        self.disk
            .inbox
            .send(order)
            .map_err(|_| refuse("the disk's I/O thread does not take orders any more"))
    }

    /// Stops a ring and remembers where it was; waits for what it has in flight.
    pub(super) fn stop(&mut self, index: u32) -> Result<()> {
        let Some(queue) = self.ring(index)?.running.take() else {
            return Ok(());
        };
        let (reply, position) = channel();
        self.disk.inbox.send_always(Command::StopQueue(StopQueue {
            queue,
            what: QueueChange::Stop(reply),
        }));
        let position = position
            .recv()
            .map_err(|_| refuse("the disk's I/O thread is gone"))?;
        self.rings[index as usize].base = position;
        Ok(())
    }

    pub(super) fn stop_all(&mut self) {
        for index in 0..self.disk.spec.queues {
            if let Err(error) = self.stop(index.into()) {
                tracing::warn!(disk = %self.disk.spec.name, %error, "a queue could not be stopped");
            }
        }
    }

    /// Makes a change that no running ring may see half of. Every ring that ran is tried again, whatever happened to
    /// the others; the first error is told.
    pub(super) fn while_stopped(
        &mut self,
        change: impl FnOnce(&mut Protocol) -> Result<()>,
    ) -> Result<()> {
        let rings = (0..).zip(&self.rings);
        let running: Vec<u32> = rings
            .filter(|(_, ring)| ring.running.is_some())
            .map(|(index, _)| index)
            .collect();
        let stopped: Vec<Result<()>> = running.iter().map(|&index| self.stop(index)).collect();
        let changed = stopped
            .into_iter()
            .collect::<Result<()>>()
            .and_then(|()| change(self));
        let started: Vec<Result<()>> = running.iter().map(|&index| self.start(index)).collect();
        changed.and(started.into_iter().collect())
    }
}
