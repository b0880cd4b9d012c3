//! The vhost-user protocol of one front end (QEMU, Cloud Hypervisor, libblkio), on a thread of its own.
//!
//! The crate `vhost` speaks the messages; this file keeps what they set up (memory, rings, features) and starts and stops
//! queues on the disk's I/O thread by orders. No request passes here.
//!
//! # Always true
//! - a queue runs on the I/O thread, or its position is in `base`: never both
//! - a queue runs only while its front end has the turn ([`super::front_ends`])
//! - memory, log and features change only while no queue runs
//! - when the front end is gone, this returns only after everything that it had in flight has ended, so that a
//!   reconnecting one never finds a request under way twice
//!
//! # Picture: one ring
//! ```text
//!            kick and addresses known, enabled
//!   Idle ────────────────────────────────────> Running (a queue on the I/O thread)
//!     ^   GET_VRING_BASE, disabled, memory change │
//!     └───────────────────────────────────────────┘   position comes back
//! ```
//!
//! # Source
//! The vhost-user protocol document; VIRTIO 1.2 §5.2.

use super::channel::Channel;
use super::front_ends::FrontEndId;
use super::ring::{DeviceFacts, Parts};
use crate::handle::DiskCore;
use crate::inbox::Order;
use crate::sys::eventfd::EventFd;
use crate::sys::guest::{DirtyLog, GuestArea, Mapping, Mmap, Region};
use crate::sys::os;
use crate::thread::orders::{AttachQueue, QueueChange, StopQueue};
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use tidegate_front::vhost::block::{BlockConfig, feature};
use tidegate_front::vhost::queue::{Queue, QueueConfig};
use tidegate_front::vhost::{Area, inflight};
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Backend, BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
};

/// Memory slots that a front end may fill: as many as QEMU asks for at most (its limit is 509; libblkio wants 32).
const MEMORY_SLOTS: u64 = 509;
/// Data segments of one request that are announced: what Linux uses with a ring of 128 and its two extra descriptors.
const SEGMENTS: u32 = 126;
/// The best size of an I/O, announced to guests, in bytes.
const OPTIMAL_IO: u32 = 64 << 10;
/// The physical block, in bytes: smaller writes are read, changed and written back below.
const PHYSICAL_BLOCK: u32 = 4096;

/// Serves one front end until it goes away and everything that it had in flight has ended.
pub(crate) fn serve(disk: &Arc<DiskCore>, front_end: FrontEndId, stream: UnixStream) {
    let own = match stream.try_clone() {
        Ok(own) => own,
        Err(error) => {
            tracing::warn!(disk = %disk.name, %error, "a vhost-user connection cannot be served");
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
                // A refusal that could be told to the front end is no error here. One that could not would leave it
                // waiting for a reply that never comes, or believing what is not so.
                tracing::warn!(disk = %disk.name, %error, "the vhost-user connection is closed: a request was refused");
                break;
            }
        }
    }
    // Dropping the protocol stops its queues, also when this thread panics above.
}

impl Drop for Protocol {
    fn drop(&mut self) {
        self.stop_all();
    }
}

/// What one ring was told so far.
#[derive(Default)]
struct Setup {
    size: u16,
    /// Descriptor table, available ring, used ring: addresses in the front end's process.
    rings: Option<(u64, u64, u64)>,
    log_used: Option<u64>,
    base: u16,
    kick: Option<File>,
    call: Option<File>,
    error: Option<File>,
    enabled: bool,
    /// Its number on the I/O thread while it runs.
    running: Option<u32>,
}

/// The region in which requests in flight are accounted for, and behind them what the guest chose: memory that
/// outlives this process.
struct InflightRegion {
    map: Arc<Mmap>,
    queues: u16,
    queue_size: u16,
    /// Where the guest's choice of a cache is kept, if the region has room (one that we made has).
    choice: Option<GuestArea>,
}

/// Bytes behind the rings' accounts for the guest's choice.
const CHOICE: usize = 64;
const CHOSE_WRITE_THROUGH: u8 = 1;
const CHOSE_WRITE_BACK: u8 = 2;

impl InflightRegion {
    /// What an earlier process was told by the same guest.
    fn chosen_write_back(&self) -> Option<bool> {
        match self.choice.as_ref()?.load_u8(0) {
            CHOSE_WRITE_THROUGH => Some(false),
            CHOSE_WRITE_BACK => Some(true),
            _ => None,
        }
    }

    fn choose_write_back(&self, write_back: bool) {
        if let Some(choice) = &self.choice {
            choice.store_u8(
                0,
                if write_back {
                    CHOSE_WRITE_BACK
                } else {
                    CHOSE_WRITE_THROUGH
                },
            );
        }
    }
}

struct Protocol {
    disk: Arc<DiskCore>,
    front_end: FrontEndId,
    /// Whether it ever ran a ring: before that, the guest may be one that another front end served until now.
    had_turn: bool,
    /// Which cache the guest chose, if it has.
    cache_choice: Option<bool>,
    facts: Arc<DeviceFacts>,
    features: u64,
    memory: Mapping,
    log: Option<Arc<DirtyLog>>,
    inflight: Option<InflightRegion>,
    rings: Vec<Setup>,
}

impl Protocol {
    fn new(disk: Arc<DiskCore>, front_end: FrontEndId) -> Protocol {
        let rings = (0..disk.spec.queues).map(|_| Setup::default()).collect();
        let facts = Arc::clone(&disk.facts);
        Protocol {
            disk,
            front_end,
            had_turn: false,
            cache_choice: None,
            facts,
            features: 0,
            memory: Mapping::empty(),
            log: None,
            inflight: None,
            rings,
        }
    }

    fn offered(&self) -> u64 {
        let spec = &self.disk.spec;
        let mut features = feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::FLUSH
            | feature::TOPOLOGY
            | feature::CONFIG_WCE
            | feature::MQ
            | feature::LOG_ALL
            | feature::INDIRECT_DESC
            | feature::EVENT_IDX
            | feature::PROTOCOL_FEATURES
            | feature::VERSION_1;
        if spec.read_only {
            features |= feature::RO;
        } else {
            features |= feature::DISCARD | feature::WRITE_ZEROES;
        }
        if !spec.write_back {
            features &= !(feature::FLUSH | feature::CONFIG_WCE);
        }
        features
    }

    fn config(&self) -> [u8; BlockConfig::LEN] {
        let spec = &self.disk.spec;
        BlockConfig {
            size: self.disk.size(),
            block_size: spec.block_size,
            physical_block_size: PHYSICAL_BLOCK.max(spec.block_size),
            optimal_io_size: OPTIMAL_IO,
            seg_max: SEGMENTS,
            queues: spec.queues,
            write_back: self.shows_write_back(),
        }
        .encode()
    }

    /// What the configuration space says of the cache. QEMU reads it once, before the guest has chosen any features:
    /// it must hear what the guest will find.
    fn shows_write_back(&self) -> bool {
        if self.features == 0 {
            self.disk.spec.write_back
        } else {
            self.write_back()
        }
    }

    /// The cache that goes with the guest's features, or that it chose.
    fn write_back(&self) -> bool {
        self.features & feature::FLUSH != 0 && self.cache_choice.unwrap_or(true)
    }

    /// Has the rings that run, or are about to, give the guest its cache. A front end that waits for its turn changes
    /// nothing for the one that has it.
    fn settle_write_back(&self) {
        if self.disk.front_ends.has_turn(self.front_end) {
            self.facts
                .write_back
                .store(self.write_back(), Ordering::Relaxed);
        }
    }

    fn choose_write_back(&mut self, choice: Option<bool>) {
        self.cache_choice = choice;
        self.disk
            .front_ends
            .note_cache_choice(self.front_end, choice);
        self.settle_write_back();
    }

    /// Takes the turn before rings run, and takes up what a guest that comes from another front end chose there: no
    /// front end repeats it.
    fn take_turn(&mut self) -> Result<()> {
        if !self.disk.front_ends.take_turn(self.front_end) {
            return Err(refuse(
                "another front end runs rings on this disk: one virtual machine at a time. Stop the other, or let its \
                 migration come to its end",
            ));
        }
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
    fn give_turn_back(&self) {
        if self.rings.iter().all(|ring| ring.running.is_none()) {
            self.disk.front_ends.give_turn_back(self.front_end);
        }
    }

    fn ring(&mut self, index: u32) -> Result<&mut Setup> {
        self.rings
            .get_mut(index as usize)
            .ok_or(Error::InvalidParam)
    }

    /// Starts a ring if everything that it needs is there.
    fn start_if_ready(&mut self, index: u32) -> Result<()> {
        let always_enabled = self.features & feature::PROTOCOL_FEATURES == 0;
        let ring = self.ring(index)?;
        let ready = ring.running.is_none() && ring.kick.is_some() && ring.rings.is_some();
        if ready && (ring.enabled || always_enabled) {
            self.start(index)
        } else {
            Ok(())
        }
    }

    fn start(&mut self, index: u32) -> Result<()> {
        self.take_turn()?;
        let started = self.start_in_turn(index);
        if started.is_err() {
            self.give_turn_back();
        }
        started
    }

    fn start_in_turn(&mut self, index: u32) -> Result<()> {
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
            .map_err(|broken| refuse(format!("a ring makes no sense: {broken:?}")))?;
        let left_behind = match self.inflight_area(index, config.size) {
            Some((area, len)) => queue
                .track(area, len)
                .map_err(|_| refuse("the in-flight region does not fit the ring"))?,
            None => Vec::new(),
        };
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
            queue,
            memory,
            facts,
            kick,
            call,
            error,
            left_behind,
        };
        let (reply, answer) = channel();
        self.order(Order::AttachQueue(Box::new(AttachQueue { parts, reply })))?;
        let running = answer
            .recv()
            .map_err(|_| refuse("the disk's I/O thread is gone"))?;
        self.rings[index as usize].running = Some(running);
        Ok(())
    }

    fn inflight_area(&self, index: u32, size: u16) -> Option<(GuestArea, usize)> {
        let region = self.inflight.as_ref()?;
        if index >= u32::from(region.queues) || size > region.queue_size {
            tracing::warn!(disk = %self.disk.name, index, size, "the in-flight region has no room for a ring: after a crash its requests are not taken up again");
            return None;
        }
        let len = inflight::region_len(region.queue_size);
        Some((
            GuestArea::of_map(&region.map, len * index as usize, len)?,
            len,
        ))
    }

    fn order(&self, order: Order) -> Result<()> {
        self.disk
            .inbox
            .send(order)
            .map_err(|_| refuse("the disk's I/O thread does not take orders any more"))
    }

    /// Stops a ring and remembers where it was; waits for what it has in flight.
    fn stop(&mut self, index: u32) -> Result<()> {
        let Some(queue) = self.ring(index)?.running.take() else {
            return Ok(());
        };
        let (reply, position) = channel();
        self.disk.inbox.send_always(Order::StopQueue(StopQueue {
            queue,
            what: QueueChange::Stop(reply),
        }));
        let position = position
            .recv()
            .map_err(|_| refuse("the disk's I/O thread is gone"))?;
        self.rings[index as usize].base = position;
        Ok(())
    }

    fn stop_all(&mut self) {
        for index in 0..self.disk.spec.queues {
            if let Err(error) = self.stop(index.into()) {
                tracing::warn!(disk = %self.disk.name, %error, "a queue could not be stopped");
            }
        }
    }

    /// Makes a change that no running ring may see half of. Every ring that ran is tried again, whatever happened to
    /// the others; the first error is told.
    fn while_stopped(&mut self, change: impl FnOnce(&mut Protocol) -> Result<()>) -> Result<()> {
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
            return Err(refuse("all memory slots are taken"));
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
            Some(queue) => self.order(Order::StopQueue(StopQueue {
                queue,
                what: QueueChange::Call(call),
            })),
            None => Ok(()),
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

impl Protocol {
    fn take_inflight(&mut self, given: &VhostUserInflight, file: &File) -> Result<()> {
        let needed = accounts_len(given);
        let end = given
            .mmap_offset
            .checked_add(given.mmap_size)
            .ok_or(Error::InvalidParam)?;
        let long_enough = file.metadata().map_err(Error::ReqHandlerError)?.len() >= end;
        if given.mmap_size < needed || needed == 0 || !long_enough {
            return Err(refuse(
                "the in-flight region is shorter than its rings need",
            ));
        }
        let len = usize::try_from(given.mmap_size).map_err(|_| Error::InvalidParam)?;
        let accounts = usize::try_from(needed).map_err(|_| Error::InvalidParam)?;
        let map =
            Arc::new(Mmap::file(file, given.mmap_offset, len).map_err(Error::ReqHandlerError)?);
        let choice = GuestArea::of_map(&map, accounts, CHOICE);
        let (queues, queue_size) = (given.num_queues, given.queue_size);
        let region = InflightRegion {
            map,
            queues,
            queue_size,
            choice,
        };
        if region.choice.is_some() {
            // The guest's choice before a restart of the daemon, or none: then the guest was reset.
            self.choose_write_back(region.chosen_write_back());
        }
        self.inflight = Some(region);
        Ok(())
    }
}

/// Bytes that the accounts of all rings take.
fn accounts_len(region: &VhostUserInflight) -> u64 {
    inflight::region_len(region.queue_size) as u64 * u64::from(region.num_queues)
}
