//! The handle of an attached disk.
//!
//! It sends commands to the disk's I/O thread, and waits for the result of most; it also adds clients.

use super::{
    DeviceReport, Disk, DiskCore, Filters, answer, check_filters, check_policy, guard, send_query,
    side_file, wait, with_disk_identity,
};
use crate::counters::{Client, ClientKind};
use crate::datastore::condition::Harm;
use crate::device::ring::malformed::RingFault;
use crate::disk_spec::IoSettings;
use crate::error::{Error, Kind, Result};
use crate::sys::os;
use crate::thread::commands::{
    Change, ChangeSearch, Command, DiskCurves, DiskReading, NbdConnection, Query, What,
};
use crate::vhost;
use crate::vhost::front_ends::Refusal;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tidegate_core::filter::FilterKey;
use tidegate_core::filter::FilterSpec;
use tidegate_core::iocontrol::Policy;
use tidegate_core::layout::pool::{Changes, Generation};
use tidegate_core::request::DiskId;
use tidegate_core::shard::DiskReport;
use tidegate_core::stack::Place;
use tidegate_front::nbd::bitmap::Bitmap;
use tidegate_front::nbd::handshake::Negotiated;
use tidegate_front::nbd::session::Session;

impl DiskCore {
    pub(super) fn order(&self, order: Command) -> Result<()> {
        let sent = self.device.inbox().send(order);
        sent.map_err(|_| {
            Error::new(
                Kind::Busy,
                "the disk's I/O thread has too many pending commands; try again",
            )
        })
    }

    /// Frees its number and its part of its thread, when called: nothing of it is on the thread any more.
    pub(super) fn give_back(&self) -> impl FnOnce() + Send + use<> {
        let (placement, numbers) = (Arc::clone(&self.placement), Arc::clone(&self.numbers));
        let (statistics, counters) = (
            self.statistics.clone(),
            Arc::clone(&self.device.facts.counters),
        );
        let id = self.device.id;
        move || {
            statistics.remove_disk(id, &counters);
            placement.peers.forget(id);
            guard(&numbers)[id.0 as usize] = false;
        }
    }

    pub(super) fn change(&self, what: What, patience: Option<Duration>) -> Result<()> {
        let (reply, answer) = channel();
        self.order(Command::Change(Box::new(Change {
            disk: self.device.id,
            what,
            reply,
        })))?;
        wait(&answer, patience)
    }
}

impl Disk {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.core.device.spec.name
    }

    /// Its number, as in [`ThreadReport::disks`](crate::ThreadReport::disks).
    pub fn id(&self) -> DiskId {
        self.core.device.id
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.core.device.size()
    }

    /// Its filters, top first.
    pub fn filters(&self) -> Vec<FilterSpec> {
        guard(&self.core.filters)
            .specs
            .iter()
            .map(|(_, spec)| spec.clone())
            .collect()
    }

    /// Replaces its filters, top first, without losing an I/O: new requests wait until none is in the old filters. A
    /// filter whose settings do not change stays as it is, with its state.
    ///
    /// # Errors
    /// If there are too many filters, a file cannot be opened, or I/O does not end within `patience`. In the last case
    /// the change is still pending, and takes place later.
    pub fn restack(&self, filters: &[FilterSpec], patience: Duration) -> Result<()> {
        check_filters(filters)?;
        let mut current = guard(&self.core.filters);
        let mut old = current.specs.clone();
        let mut next_key = current.next_key;
        let (mut specs, mut places, mut fresh) = (Vec::new(), Vec::new(), Vec::new());
        for spec in filters {
            let spec = &with_disk_identity(spec, &self.core.device.spec);
            if let Some(at) = old.iter().position(|(_, kept)| kept == spec) {
                let (key, spec) = old.remove(at);
                places.push(Place::Keep(key));
                specs.push((key, spec));
            } else {
                let key = FilterKey(next_key);
                next_key += 1;
                places.push(Place::New(key, spec.build()));
                specs.push((key, spec.clone()));
                fresh.push((key, spec.clone()));
            }
        }
        let sides = side_file::open_all(&fresh)?;
        let changed = self
            .core
            .change(What::Filters { places, sides }, Some(patience));
        if changed.as_ref().is_ok_and(|()| true)
            || changed.as_ref().is_err_and(|e| e.kind() == Kind::TimedOut)
        {
            *current = Filters { specs, next_key };
        }
        changed
    }

    /// Sets its size in bytes; its images must be large enough already. Guests are notified.
    ///
    /// # Errors
    /// If its I/O thread is gone, or its layout cannot have this size.
    pub fn resize(&self, size: u64) -> Result<()> {
        let image = self.core.image_size(size)?;
        self.core.change(What::Size { disk: size, image }, None)?;
        self.core.device.set_size(size);
        for error in self.core.device.front_ends.config_changed() {
            tracing::warn!(disk = %self.core.device.spec.name, %error, "the front end could not be notified of the new size");
        }
        Ok(())
    }

    /// Sets its policy. Pending I/O is neither lost nor released; the scheduler judges it again.
    ///
    /// # Errors
    /// If the policy is invalid, the disk is not under control, is being changed, or is detached.
    pub fn set_policy(&self, policy: &Policy) -> Result<()> {
        check_policy(policy)?;
        if !self.core.controlled.load(Ordering::Relaxed) {
            let text = format!(
                "disk {} is on a datastore without I/O control: a policy has no effect there",
                self.core.device.spec.name
            );
            return Err(Error::new(Kind::Unsupported, text));
        }
        self.core
            .change(What::Policy(Box::new(policy.clone())), None)
    }

    /// Sets its share of its I/O thread, and how its completions are coalesced.
    ///
    /// # Errors
    /// If it is detached, or its thread has too many pending commands.
    pub fn set_io(&self, io: IoSettings) -> Result<()> {
        self.core.change(What::Io(io), None)
    }

    /// Statistics of the disk.
    ///
    /// # Errors
    /// If it is detached.
    pub fn report(&self) -> Result<DiskReport> {
        Ok(self.read()?.report)
    }

    /// Statistics of the disk, with their time.
    ///
    /// # Errors
    /// If it is detached.
    pub fn read(&self) -> Result<DiskReading> {
        let id = self.core.device.id;
        let pending = send_query(self.core.device.inbox(), |reply| Query::Disk(id, reply))?;
        answer(&pending)?.ok_or_else(|| Error::new(Kind::Gone, "the disk is not attached any more"))
    }

    /// Its miss-ratio curves.
    ///
    /// # Errors
    /// If it is detached.
    pub fn curves(&self) -> Result<DiskCurves> {
        let id = self.core.device.id;
        let pending = send_query(self.core.device.inbox(), |reply| Query::Curves(id, reply))?;
        answer(&pending)?.ok_or_else(|| Error::new(Kind::Gone, "the disk is not attached any more"))
    }

    /// What the policy of its flash cache has learned, for [`Flash::policy_state`](crate::Flash::policy_state) of a later use.
    /// It is read in parts, between which guests are served. None: it has no cache that is open, or is
    /// detached.
    ///
    /// # Errors
    /// If its I/O thread is gone.
    pub fn policy_state(&self) -> Result<Option<Vec<u8>>> {
        let id = self.core.device.id;
        let inbox = self.core.device.inbox();
        let pending = send_query(inbox, |reply| Query::PolicyState(id, Vec::new(), reply))?;
        answer(&pending)
    }

    /// Which parts of a pool's disk may differ between two of its generations, in bytes, ascending. They are found in parts,
    /// between which guests are served. None: it has no such generation, or is not on a pool.
    ///
    /// # Errors
    /// If its I/O thread is gone.
    pub fn changed(&self, from: Generation, to: Generation) -> Result<Option<Vec<Range<u64>>>> {
        let disk = self.core.device.id;
        let found = Changes::default();
        let pending = send_query(self.core.device.inbox(), |reply| {
            Query::Changes(Box::new(ChangeSearch {
                disk,
                from,
                to,
                found,
                reply,
            }))
        })?;
        Ok(answer(&pending)?.map(Changes::ranges))
    }

    /// The worst damage to its images since they were opened, if any. A layout with redundancy does without a damaged
    /// member, so that of its least damaged image counts.
    pub fn harm(&self) -> Option<Harm> {
        let harms = self.member_harms().into_iter();
        match self.core.device.spec.layout.is_redundant() {
            true => harms.min().flatten(),
            false => harms.max().flatten(),
        }
    }

    /// Counters of its vhost-user device.
    pub fn device_report(&self) -> DeviceReport {
        let (answered, interrupts) = self.core.device.facts.counters.calls();
        DeviceReport {
            answered,
            interrupts,
            nonsense: self.core.device.facts.nonsense.load(Ordering::Relaxed),
            broken_queues: self.core.device.facts.broken.load(Ordering::Relaxed),
            connected: self.core.device.front_ends.any(),
        }
    }

    /// The last faults of its rings, newest first.
    pub fn ring_faults(&self) -> Vec<RingFault> {
        self.core.device.facts.faults()
    }

    /// Passes an NBD client whose handshake is done. `early` are bytes that were received with its last message.
    ///
    /// # Errors
    /// If the disk is detached.
    pub fn serve_nbd(
        &self,
        socket: OwnedFd,
        negotiated: &Negotiated,
        early: Vec<u8>,
    ) -> Result<()> {
        self.serve_nbd_present(socket, negotiated, early, Box::new(()))
    }

    /// As [`Disk::serve_nbd`]; `presence` is dropped when the client is gone, so that the caller can count clients.
    ///
    /// # Errors
    /// If the disk is detached.
    pub fn serve_nbd_present(
        &self,
        socket: OwnedFd,
        negotiated: &Negotiated,
        early: Vec<u8>,
        presence: Box<dyn Send>,
    ) -> Result<()> {
        self.serve_nbd_bitmaps(socket, negotiated, early, Vec::new(), presence)
    }

    /// As [`Disk::serve_nbd_present`], with the bitmaps that were negotiated, by the ids of their contexts.
    ///
    /// # Errors
    /// If the disk is detached.
    pub fn serve_nbd_bitmaps(
        &self,
        socket: OwnedFd,
        negotiated: &Negotiated,
        early: Vec<u8>,
        bitmaps: Vec<(u32, Bitmap)>,
        presence: Box<dyn Send>,
    ) -> Result<()> {
        let session = Session::new(negotiated).with_bitmaps(bitmaps);
        let counters = Arc::clone(&self.core.device.facts.counters);
        let client = os::peer_process(&socket).map(|process| {
            let kind = ClientKind::Nbd;
            counters.connected(Client { process, kind })
        });
        let presence = Box::new((presence, client));
        self.core.order(Command::Nbd(Box::new(NbdConnection {
            disk: self.core.device.id,
            socket,
            session,
            early,
            counters,
            presence,
        })))
    }

    /// Speaks vhost-user with a front end until it disconnects and everything of it in flight has ended. Blocks; call
    /// it on a thread of its own.
    ///
    /// # Errors
    /// If the maximum number of front ends is connected, or the disk is detached. A second front end waits for the
    /// first to stop, as in a live migration.
    pub fn serve_vhost(&self, stream: UnixStream) -> Result<()> {
        let own = stream
            .try_clone()
            .map_err(|e| Error::io("cannot set up a vhost-user connection", e))?;
        let front_end = self.core.device.front_ends.register(own).map_err(|why| match why {
            Refusal::Closed => Error::new(Kind::Gone, "the disk is not attached any more"),
            Refusal::Full => Error::new(
                Kind::Busy,
                "two front ends are connected to this disk already: one virtual machine at a time, \
                 and one that it migrates to",
            ),
        })?;
        let counters = &self.core.device.facts.counters;
        let _client = os::peer_process(&stream).map(|process| {
            let kind = ClientKind::VhostUser;
            counters.connected(Client { process, kind })
        });
        vhost::serve(&self.core.device, front_end.id, stream);
        Ok(())
    }

    /// Detaches it: disconnects clients, waits for I/O in flight, then makes the image durable and closes it.
    ///
    /// # Errors
    /// If its I/O does not end within `patience`: it is detached later, when the I/O ends.
    pub fn detach(&self, patience: Duration) -> Result<()> {
        wait(&self.begin_detach(), Some(patience))
    }

    /// Detaches it and waits without a limit: on return nothing of the disk is left on its I/O thread.
    ///
    /// # Errors
    /// If the disk is detached, or is being detached already.
    pub fn detach_fully(&self) -> Result<()> {
        wait(&self.begin_detach(), None)
    }

    pub(super) fn begin_detach(&self) -> Receiver<Result<()>> {
        self.core.device.front_ends.close();
        let on_detached = Box::new(self.core.give_back());
        let what = What::Detach { on_detached };
        let (reply, answer) = channel();
        let change = Change {
            disk: self.core.device.id,
            what,
            reply,
        };
        // Sent even if many commands wait: otherwise the disk would stay on its thread without a handle.
        self.core
            .device
            .inbox()
            .send_always(Command::Change(Box::new(change)));
        answer
    }
}
