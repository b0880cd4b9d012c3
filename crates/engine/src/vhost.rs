//! The vhost-user protocol of one front end (QEMU, Cloud Hypervisor, libblkio), on a thread of its own.
//!
//! The crate `vhost` speaks the messages; this file keeps what they set up: memory and its log, rings ([`rings`]), what
//! device and guest agree on ([`features`]), the account of what is in flight ([`region`]). No request passes here.
//!
//! # Always true
//! - a queue runs on the I/O thread, or its position is in `base`: never both
//! - a queue runs only while its front end has the turn ([`front_ends`]); whoever comes after one that has hung up
//!   waits here, in the message that starts its first ring, and finds everything of the other ended
//! - memory, log and features change only while no queue runs
//! - when the front end is gone, this returns only after everything that it had in flight has ended, so that a
//!   reconnecting one never finds a request under way twice
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
use channel::Channel;
use front_ends::{FrontEndId, FrontEnds};
use region::{CHOICE, InflightRegion, accounts_len};
use rings::Setup;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// Memory slots that a front end may fill. A virtual machine has two to four, one more for each piece of memory that is
/// plugged in, and libblkio wants 32. QEMU would take 509, but all front ends share what can be mapped in all
/// ([`crate::sys::fault`]): a few that fill so many would leave nothing to the others.
const MEMORY_SLOTS: u64 = 64;

/// A disk as its front ends see it, shared by the handles and the protocol threads.
pub(crate) struct VhostDevice {
    pub(crate) id: DiskId,
    pub(crate) spec: DiskSpec,
    /// Bytes, as it is now.
    size: AtomicU64,
    /// Of the I/O thread that serves it.
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) facts: Arc<DeviceFacts>,
    pub(crate) front_ends: FrontEnds,
}

impl VhostDevice {
    pub(crate) fn new(id: DiskId, spec: DiskSpec, inbox: Arc<Inbox>) -> VhostDevice {
        let facts = DeviceFacts::new(spec.name.clone(), spec.serial.clone(), false);
        VhostDevice {
            id,
            size: AtomicU64::new(spec.size),
            spec,
            inbox,
            facts: Arc::new(facts),
            front_ends: FrontEnds::default(),
        }
    }

    /// Bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// It has this size from now on.
    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Relaxed);
    }
}

/// Serves one front end until it goes away and everything that it had in flight has ended.
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
                // Also where the front end was told of it: what it asked for may have been done by half, and one that
                // connects again begins anew. Where it was not, it would wait for a reply that never comes.
                tracing::warn!(disk = %disk.spec.name, %error, "the vhost-user connection is closed: a request was refused");
                break;
            }
        }
    }
    disk.front_ends.end(front_end);
    // Dropping the protocol stops its queues, also when this thread panics above.
}

/// What one front end has set up.
struct Protocol {
    disk: Arc<VhostDevice>,
    front_end: FrontEndId,
    /// Whether it ever ran a ring: before that, the guest may be one that another front end served until now.
    had_turn: bool,
    /// Which cache the guest chose, if it has.
    cache_choice: Option<bool>,
    /// Whether its guest came from somewhere else, where it may have chosen.
    in_doubt: bool,
    /// The size that it read last. One that connects again asks for nothing that it believes to know.
    told_size: Option<u64>,
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
            had_turn: false,
            cache_choice: None,
            in_doubt: false,
            told_size: None,
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

/// An error that the front end is told.
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
        self.give_turn_back();
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
            own.settle_write_back();
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
                "all {MEMORY_SLOTS} memory slots are taken: plug fewer and larger pieces of memory into the guest"
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
        // The ring starts anew with its next kick descriptor.
        ring.kick = None;
        let base = ring.base;
        self.give_turn_back();
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let index = u32::from(index);
        let fd = fd.ok_or_else(|| refuse("a ring without a kick descriptor is not served: it would have to be polled for ever"))?;
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
            Some(queue) => self.order(Command::StopQueue(StopQueue {
                queue,
                what: QueueChange::Call(call),
            })),
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
        // The crate keeps them, and refuses messages that were not agreed on.
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
            self.give_turn_back();
            Ok(())
        }
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        self.told_size = Some(self.disk.size());
        // Front ends newer than this device read fields that it does not have: zeroes.
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
        let (true, &[wish]) = (offset as usize == BlockConfig::WRITEBACK, bytes) else {
            return Err(refuse("only the write-back setting may be written"));
        };
        if self.features & feature::FLUSH == 0 && wish != 0 {
            return Err(refuse("a guest without FLUSH has no write-back cache"));
        }
        self.choose_write_back(Some(wish != 0));
        if let Some(region) = &self.inflight {
            region.choose_write_back(wish != 0);
        }
        Ok(())
    }

    fn set_backend_req_fd(&mut self, _backend: Backend) {
        // Copied before the crate took it: see `channel`.
    }

    fn set_gpu_socket(&mut self, _backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("a disk is no display"))
    }

    fn get_shared_object(&mut self, _object: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("a disk shares no objects"))
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        self.must_fit_device(wanted)?;
        let len = accounts_len(wanted) + CHOICE as u64;
        let file = os::memory_file(c"tidegate-inflight", len).map_err(Error::ReqHandlerError)?;
        let given = VhostUserInflight::new(len, 0, wanted.num_queues, wanted.queue_size);
        self.take_inflight(&given, &file)?;
        Ok((given, file))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        self.take_inflight(given, &file)
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
