//! The vhost-user protocol of one front end (QEMU, Cloud Hypervisor, libblkio), on a thread of its own.
//!
//! The crate `vhost` handles the messages; this module stores their settings: memory and its log, rings ([`rings`]),
//! what device and guest negotiated ([`features`]), and the in-flight region ([`region`]). No request passes through
//! here.
//!
//! # Always true
//! - a queue runs on the I/O thread, or its position is in `base`: never both
//! - a queue runs only while its front end owns the rings ([`front_ends`]). A front end that follows a disconnected one
//!   waits in the message that starts its first ring, until everything of the other has ended
//! - memory, log and features change only while no queue runs
//! - when the front end is gone, this returns only after everything of it in flight has ended. So a reconnecting one
//!   never finds a request in flight twice
//!
//! # Source
//! The vhost-user protocol document; VIRTIO 1.2 §5.2.

use crate::device::ring::DeviceFacts;
use crate::device::shunned::Standing;
use crate::disk_spec::DiskSpec;
use crate::sys::eventfd::EventFd;
use crate::sys::guest::{DirtyLog, Mapping, Region};
use crate::sys::os;
use crate::thread::commands::{Command, Inbox, QueueChange, StopQueue};
use crate::thread::peers::Peers;
use channel::Channel;
use front_ends::{FrontEndId, FrontEnds};
use region::{CHOICE, InflightRegion, rings_len};
use rings::Setup;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use tidegate_core::request::DiskId;
use tidegate_front::vhost::block::{BlockConfig, feature};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Backend, BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
};

mod channel;
mod features;
pub(crate) mod front_ends;
mod region;
mod rings;

/// Memory slots of a front end. A virtual machine has two to four, and one more for each hot-plugged piece of memory;
/// libblkio wants 32. QEMU would use 509, but the number of mappings is limited for all front ends together
/// ([`crate::sys::fault`]). A few front ends with so many would leave none to the others.
const MEMORY_SLOTS: u64 = 64;

/// A disk as its front ends see it, shared by the handles and the protocol threads.
pub(crate) struct VhostDevice {
    pub(crate) id: DiskId,
    pub(crate) spec: DiskSpec,
    /// Current size in bytes.
    size: AtomicU64,
    /// They know the I/O thread that serves it.
    peers: Arc<Peers>,
    pub(crate) facts: Arc<DeviceFacts>,
    pub(crate) front_ends: FrontEnds,
}

impl VhostDevice {
    pub(crate) fn new(id: DiskId, spec: DiskSpec, peers: Arc<Peers>) -> VhostDevice {
        let facts = DeviceFacts::new(spec.name.clone(), spec.serial.clone(), spec.queues);
        VhostDevice {
            id,
            size: AtomicU64::new(spec.size),
            spec,
            peers,
            facts: Arc::new(facts),
            front_ends: FrontEnds::default(),
        }
    }

    /// The inbox of the I/O thread that serves it.
    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        self.peers.inbox_of(self.id)
    }

    /// Current size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Sets the size.
    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }
}

/// Serves one front end until it disconnects and everything of it in flight has ended.
pub(crate) fn serve(disk: &Arc<VhostDevice>, front_end: FrontEndId, stream: UnixStream) {
    let own = match stream.try_clone() {
        Ok(own) => own,
        Err(error) => {
            tracing::warn!(disk = %disk.spec.name, %error, "a vhost-user connection cannot be served");
            return;
        }
    };
    let protocol = Protocol::new(Arc::clone(disk), front_end);
    let protocol = Arc::new(Mutex::new(protocol));
    let mut handler = BackendReqHandler::from_stream(stream, protocol);
    loop {
        match Channel::peek(&own) {
            Ok(None) => {}
            Ok(Some(channel)) => disk.front_ends.set_channel(front_end, channel),
            Err(_) => break,
        }
        match handler.handle_request() {
            Ok(()) | Err(Error::SocketRetry(_)) => {}
            Err(Error::Disconnected | Error::SocketBroken(_) | Error::PartialMessage) => break,
            Err(error) => {
                // Close the connection even if the front end was informed: the request may be half done, and a
                // reconnecting front end starts afresh. If it was not informed, it would wait forever for a reply.
                tracing::warn!(disk = %disk.spec.name, %error, "the vhost-user connection is closed: a request was rejected");
                break;
            }
        }
    }
    disk.front_ends.end(front_end);
    // Dropping the protocol stops its queues, even if this thread panics above.
}

/// The settings of one front end.
struct Protocol {
    disk: Arc<VhostDevice>,
    front_end: FrontEndId,
    /// Whether it ever owned the rings: before that, another front end may have served the guest.
    owned_rings: bool,
    /// The guest's choice of a cache mode, if it made one.
    cache_choice: Option<bool>,
    /// Whether its guest came from another host, where it may have chosen a cache mode.
    cache_unknown: bool,
    /// The size that it last read. A reconnected front end does not read again what it knows.
    known_size: Option<u64>,
    facts: Arc<DeviceFacts>,
    standing: Standing,
    features: u64,
    memory: Mapping,
    log: Option<Arc<DirtyLog>>,
    inflight: Option<InflightRegion>,
    rings: Vec<Setup>,
}

impl Protocol {
    fn new(disk: Arc<VhostDevice>, front_end: FrontEndId) -> Protocol {
        let rings = (0..disk.spec.queues).map(|_| Setup::default()).collect();
        let facts = Arc::clone(&disk.facts);
        Protocol {
            disk,
            front_end,
            owned_rings: false,
            cache_choice: None,
            cache_unknown: false,
            known_size: None,
            facts,
            standing: Standing::default(),
            features: 0,
            memory: Mapping::empty(),
            log: None,
            inflight: None,
            rings,
        }
    }
}

impl Drop for Protocol {
    fn drop(&mut self) {
        self.stop_all();
    }
}

/// An error that is reported to the front end.
fn refuse(what: impl Into<String>) -> Error {
    Error::ReqHandlerError(io::Error::new(io::ErrorKind::InvalidInput, what.into()))
}

fn map_region(region: &VhostUserMemoryRegion, file: &File) -> Result<Region> {
    Region::map(
        file,
        region.guest_phys_addr,
        region.user_addr,
        region.mmap_offset,
        region.memory_size,
    )
    .map_err(Error::ReqHandlerError)
}

impl VhostUserBackendReqHandlerMut for Protocol {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all();
        self.rings.fill_with(Setup::default);
        self.release_rings();
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset_owner()
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.offered())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !self.offered() != 0 {
            return Err(refuse(
                "the front end acknowledged features that were not offered",
            ));
        }
        if features == self.features {
            return Ok(());
        }
        self.while_stopped(|own| {
            own.features = features;
            own.update_write_back();
            Ok(())
        })
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let mut memory = Mapping::empty();
        for (region, file) in regions.iter().zip(&files) {
            memory = memory
                .with(map_region(region, file)?)
                .map_err(Error::ReqHandlerError)?;
        }
        self.while_stopped(|own| {
            own.memory = memory;
            Ok(())
        })?;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MEMORY_SLOTS)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        if self.memory.regions() as u64 >= MEMORY_SLOTS {
            return Err(refuse(format!(
                "all {MEMORY_SLOTS} memory slots are in use: plug fewer and larger pieces of memory into the guest"
            )));
        }
        let memory = self
            .memory
            .with(map_region(region, &file)?)
            .map_err(Error::ReqHandlerError)?;
        self.while_stopped(|own| {
            own.memory = memory;
            Ok(())
        })?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let (guest, len) = (region.guest_phys_addr, region.memory_size);
        let memory = self
            .memory
            .without(guest, len)
            .ok_or_else(|| refuse("there is no such memory region"))?;
        self.while_stopped(|own| {
            own.memory = memory;
            Ok(())
        })
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(|_| Error::InvalidParam)?;
        let ring = self.ring(index)?;
        if ring.running.is_some() {
            return Err(refuse("a running ring does not change its size"));
        }
        ring.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        log: u64,
    ) -> Result<()> {
        let logged = flags.contains(VhostUserVringAddrFlags::VHOST_VRING_F_LOG);
        self.ring(index)?;
        let running = self.rings[index as usize].running.is_some();
        if running {
            self.stop(index)?;
        }
        let ring = &mut self.rings[index as usize];
        ring.rings = Some((descriptor, available, used));
        ring.log_used = logged.then_some(log);
        if running { self.start(index) } else { Ok(()) }
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        // The upper half belongs to packed rings.
        let base = u16::try_from(base & 0xffff).map_err(|_| Error::InvalidParam)?;
        let ring = self.ring(index)?;
        if ring.running.is_some() {
            return Err(refuse("a running ring does not change its position"));
        }
        ring.base = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.stop(index)?;
        let ring = self.ring(index)?;
        // The ring is started again by its next kick descriptor.
        ring.kick = None;
        let base = ring.base;
        self.release_rings();
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let index = u32::from(index);
        let fd = fd.ok_or_else(|| refuse("a ring without a kick descriptor is not served: it would have to be polled permanently"))?;
        os::check_eventfd(&fd).map_err(Error::ReqHandlerError)?;
        self.stop(index)?;
        self.ring(index)?.kick = Some(fd);
        self.start_if_ready(index)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let index = u32::from(index);
        fd.iter()
            .try_for_each(os::check_eventfd)
            .map_err(Error::ReqHandlerError)?;
        let call = fd
            .as_ref()
            .map(|f| f.try_clone().map(EventFd::from_file))
            .transpose();
        let call = call.map_err(Error::ReqHandlerError)?;
        let ring = self.ring(index)?;
        ring.call = fd;
        match ring.running {
            Some(queue) => {
                let (reply, set) = channel();
                self.order(Command::StopQueue(StopQueue {
                    disk: self.disk.id,
                    queue,
                    what: QueueChange::Call(call, reply),
                }))?;
                set.recv()
                    .map_err(|_| refuse("the disk's I/O thread is gone"))
            }
            None => {
                self.call_once(call.as_ref());
                Ok(())
            }
        }
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        fd.iter()
            .try_for_each(os::check_eventfd)
            .map_err(Error::ReqHandlerError)?;
        self.ring(index.into())?.error = fd;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::LOG_SHMFD
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        // The crate stores them, and rejects messages that were not negotiated.
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.rings.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.enabled = enable;
        if enable {
            self.start_if_ready(index)
        } else {
            self.stop(index)?;
            self.release_rings();
            Ok(())
        }
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        self.known_size = Some(self.disk.size());
        // Newer front ends read fields that this device does not have: return zeroes.
        let mut space = self.config().to_vec();
        let end = offset.checked_add(size).ok_or(Error::InvalidParam)? as usize;
        space.resize(end.max(space.len()), 0);
        Ok(space[offset as usize..end].to_vec())
    }

    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        let (true, &[value]) = (offset as usize == BlockConfig::WRITEBACK, bytes) else {
            return Err(refuse("only the write-back setting may be written"));
        };
        if self.features & feature::FLUSH == 0 && value != 0 {
            return Err(refuse("a guest without FLUSH has no write-back cache"));
        }
        self.choose_write_back(Some(value != 0));
        if let Some(region) = &self.inflight {
            region.choose_write_back(value != 0);
        }
        Ok(())
    }

    fn set_backend_req_fd(&mut self, _backend: Backend) {
        // It was copied before the crate read it: see `channel`.
    }

    fn set_gpu_socket(&mut self, _backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("a disk is not a display"))
    }

    fn get_shared_object(&mut self, _object: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("a disk shares no objects"))
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        self.must_fit_device(wanted)?;
        let len = rings_len(wanted) + CHOICE as u64;
        let file = os::memory_file(c"tidegate-inflight", len).map_err(Error::ReqHandlerError)?;
        let region = VhostUserInflight::new(len, 0, wanted.num_queues, wanted.queue_size);
        self.take_inflight(&region, &file)?;
        Ok((region, file))
    }

    fn set_inflight_fd(&mut self, region: &VhostUserInflight, file: File) -> Result<()> {
        self.take_inflight(region, &file)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation(
            "a disk has no state of its own to transfer",
        ))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation(
            "a disk has no state of its own to transfer",
        ))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("a disk has no shared memory"))
    }

    fn set_log_base(&mut self, log: &VhostUserLog, file: File) -> Result<()> {
        let log =
            DirtyLog::map(&file, log.mmap_offset, log.mmap_size).map_err(Error::ReqHandlerError)?;
        self.while_stopped(|own| {
            own.log = Some(Arc::new(log));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
