//! The rings of a front end: started on the disk's I/O thread, stopped, and started again.
//!
//! # Always true
//! - a stopped ring has nothing in flight when its position is known
//! - a change made while rings are stopped is seen by all of them, or they do not run
//!
//! # Picture: one ring
//! ```text
//!            kick and addresses known, enabled
//!   Idle ────────────────────────────────────> Running (a queue on the I/O thread)
//!     ^   GET_VRING_BASE, disabled, memory change │
//!     └───────────────────────────────────────────┘   position comes back
//! ```

use super::front_ends::Ownership;
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

/// The settings of one ring so far.
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
    /// Its index on the I/O thread while it runs.
    pub(super) running: Option<u32>,
    /// Whether it ever ran for this front end.
    pub(super) ran: bool,
}

impl Protocol {
    /// Acquires the rings, after everything of a disconnected front end has ended. A guest's cache mode is taken over
    /// from its previous front end, because the new one does not repeat it.
    pub(super) fn acquire_rings(&mut self) -> Result<()> {
        match self.disk.front_ends.acquire_rings(self.front_end) {
            Ok(Ownership::Acquired) => {}
            Ok(Ownership::Busy) => {
                return Err(refuse(
                    "another front end runs rings on this disk: one virtual machine at a time. Stop the other, or let \
                     its migration finish",
                ));
            }
            Ok(Ownership::Disconnected) => return Err(Error::Disconnected),
            Err(error) => return Err(Error::ReqHandlerError(error)),
        }
        // Also for a former owner: two connected front ends could alternate.
        self.facts.offences.wait_out_pause();
        if !std::mem::replace(&mut self.owned_rings, true) && self.cache_choice.is_none() {
            self.cache_choice = self.disk.front_ends.cache_choice();
            if let (Some(region), Some(choice)) = (&self.inflight, self.cache_choice) {
                region.choose_write_back(choice);
            }
        }
        self.choose_write_back(self.cache_choice);
        Ok(())
    }

    /// Releases the rings for another front end, if no ring runs here.
    pub(super) fn release_rings(&self) {
        if self.rings.iter().all(|ring| ring.running.is_none()) {
            self.disk.front_ends.release_rings(self.front_end);
        }
    }

    pub(super) fn ring(&mut self, index: u32) -> Result<&mut Setup> {
        self.rings
            .get_mut(index as usize)
            .ok_or(Error::InvalidParam)
    }

    /// Calls the guest of a ring that does not run, because a call through the previous descriptor may be lost. The I/O
    /// thread does it for a running ring. libvhost-user does the same, and a test of QEMU relies on it.
    pub(super) fn call_once(&self, call: Option<&EventFd>) {
        if let Some(call) = call
            && !self.standing.is_shunned()
            && call.call().is_err()
        {
            self.standing.shun(&self.facts.offences);
        }
    }

    /// Starts a ring if all its settings are complete.
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
        self.acquire_rings()?;
        let started = self.start_as_owner(index);
        if started.is_err() {
            self.release_rings();
        }
        started
    }

    pub(super) fn start_as_owner(&mut self, index: u32) -> Result<()> {
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
            .map_err(|broken| refuse(format!("ring {index} is malformed: {broken}")))?;
        let left_behind = match self.inflight_area(index, config.size) {
            Some((area, len)) => queue
                .track(area, len)
                .map_err(|_| refuse("the in-flight region does not fit the ring"))?,
            None => Vec::new(),
        };
        // Checked after the rings were read, since missing pages are detected on access.
        if memory.is_spoilt() {
            return Err(refuse(
                "pages are missing in memory that the front end shares: it was truncated, or the host has none left. Share it \
                 again, as a virtual machine does when it is reset or reconnects",
            ));
        }
        let known =
            queue.is_resumed() || std::mem::replace(&mut self.rings[index as usize].ran, true);
        self.note_unknown_cache(queue.was_used(), known);
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
        self.notify_size();
        Ok(())
    }

    /// Has the front end read the configuration again if its guest may know an old size: the disk may have been resized
    /// while no front end was connected. The notice is sent only while its rings run.
    fn notify_size(&mut self) {
        let size = Some(self.disk.size());
        if self.known_size != size {
            self.known_size = size;
            if let Err(error) = self.disk.front_ends.notify(self.front_end) {
                tracing::warn!(disk = %self.disk.spec.name, %error, "the front end could not be notified of the disk's size");
            }
        }
    }

    pub(super) fn order(&self, order: Command) -> Result<()> {
        self.disk
            .inbox()
            .send(order)
            .map_err(|_| refuse("the disk's I/O thread does not accept commands any more"))
    }

    /// Stops a ring and stores its position; waits for its requests in flight.
    pub(super) fn stop(&mut self, index: u32) -> Result<()> {
        let Some(queue) = self.ring(index)?.running.take() else {
            return Ok(());
        };
        let (reply, position) = channel();
        self.disk.inbox().send_always(Command::StopQueue(StopQueue {
            disk: self.disk.id,
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

    /// Makes a change while no ring runs. Every ring that ran is restarted, whatever happens to the others; returns the
    /// first error.
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
