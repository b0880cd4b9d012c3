//! A guest without a virtual machine: the front end of one vhost-user-blk device.
//!
//! It negotiates, shares its memory, and passes its rings to the server. [`super::guest_driver`] then drives the rings.
//! It can reconnect after the server has died, with the same memory, rings and in-flight region, like QEMU's
//! `reconnect`.
//!
//! # Source
//! The vhost-user protocol of QEMU's documentation; virtio 1.2, 5.2.4 for the configuration space.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
    VhostUserVringAddrFlags,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VringConfigData};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

use super::memory::Memory;
use super::ring::{Ring, Shape};
use crate::load::Operation;

/// The virtio and virtio-blk feature bits that this client supports.
mod feature {
    pub(super) const SEG_MAX: u64 = 1 << 2;
    pub(super) const READ_ONLY: u64 = 1 << 5;
    pub(super) const BLOCK_SIZE: u64 = 1 << 6;
    pub(super) const FLUSH: u64 = 1 << 9;
    pub(super) const MULTI_QUEUE: u64 = 1 << 12;
    pub(super) const INDIRECT: u64 = 1 << 28;
    pub(super) const EVENT_IDX: u64 = 1 << 29;
    pub(super) const PROTOCOL: u64 = 1 << 30;
    pub(super) const VERSION_1: u64 = 1 << 32;
}

/// Options of a guest.
#[derive(Clone, Debug)]
pub struct VmOptions {
    /// The server's socket.
    pub socket: PathBuf,
    /// Number of queues.
    pub queues: u16,
    /// Requests per queue.
    pub depth: u16,
    /// The largest request, in bytes.
    pub block: u32,
    /// Whether to use indirect descriptors if the server offers them, like Linux guests.
    pub indirect: bool,
    /// Whether to use event indices if the server offers them.
    pub event_idx: bool,
    /// Whether to send the memory by slots rather than by table, if the server offers it.
    pub memory_slots: bool,
    /// Whether to share an in-flight region, and how long to wait for a lost server.
    pub reconnect: Option<Duration>,
}

impl VmOptions {
    /// One queue of `depth` requests of 4 KiB, with the features that a Linux guest negotiates.
    #[must_use]
    pub fn new(socket: &Path, depth: u16) -> Self {
        Self {
            socket: socket.to_owned(),
            queues: 1,
            depth,
            block: 4096,
            indirect: true,
            event_idx: true,
            memory_slots: false,
            reconnect: None,
        }
    }
}

/// The device's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Size in bytes.
    pub size: u64,
    /// The logical block, in bytes.
    pub block_size: u32,
    /// Number of queues of the device.
    pub queues: u16,
    /// Whether writes are rejected.
    pub read_only: bool,
    /// Whether flushes are supported.
    pub flush: bool,
}

/// One queue: its ring, notifications and requests in flight.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) ring: Ring,
    pub(super) kick: EventFd,
    pub(super) call: EventFd,
    pub(super) free: Vec<u16>,
    /// Indexed by slot: the request and its issue time, in nanoseconds of the driver's clock.
    pub(super) requests: Vec<(Operation, u64)>,
}

impl Queue {
    pub(super) fn in_flight(&self) -> usize {
        self.requests.len() - self.free.len()
    }
}

/// A guest with one vhost-user-blk device.
pub struct Vm {
    options: VmOptions,
    pub(super) memory: Arc<Memory>,
    pub(super) queues: Vec<Queue>,
    pub(super) link: Link,
    inflight: Option<(VhostUserInflight, File)>,
}

impl std::fmt::Debug for Vm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vm")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// A negotiated connection.
pub(super) struct Link {
    pub(super) frontend: Frontend,
    /// A duplicate of the socket, to detect when the server closes it.
    watched: UnixStream,
    pub(super) features: u64,
    pub(super) protocol: VhostUserProtocolFeatures,
    config: DiskConfig,
}

impl Vm {
    /// Connects, negotiates and starts every queue.
    ///
    /// # Errors
    /// The server is unreachable, lacks a required feature, or rejects a message.
    pub fn connect(options: VmOptions) -> Result<Self> {
        let link = Link::open(&options)?;
        if link.config.queues < options.queues {
            bail!(
                "{} has {} queues, but {} are requested: start the server with more",
                options.socket.display(),
                link.config.queues,
                options.queues
            );
        }
        let shape = Shape {
            slots: options.depth,
            buffer: options.block,
            indirect: link.features & feature::INDIRECT != 0,
            event_idx: link.features & feature::EVENT_IDX != 0,
        };
        let memory = Arc::new(Memory::new(shape.length() * usize::from(options.queues))?);
        let queues = (0..options.queues)
            .map(|index| Queue::new(&memory, shape, usize::from(index) * shape.length()))
            .collect::<Result<Vec<_>>>()?;
        let mut vm = Self {
            options,
            memory,
            queues,
            link,
            inflight: None,
        };
        vm.start()?;
        Ok(vm)
    }

    /// The device's configuration.
    #[must_use]
    pub fn config(&self) -> DiskConfig {
        self.link.config
    }

    /// How often the server has called this guest since the last time it was asked.
    ///
    /// # Errors
    /// A call descriptor cannot be read.
    pub fn take_calls(&self) -> Result<u64> {
        let mut calls = 0;
        for queue in &self.queues {
            match queue.call.read() {
                Ok(count) => calls += count,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("cannot read a call descriptor"),
            }
        }
        Ok(calls)
    }

    /// The guest's options.
    #[must_use]
    pub fn options(&self) -> &VmOptions {
        &self.options
    }

    /// The socket's descriptor, to detect when the server closes it.
    pub(super) fn watched(&self) -> RawFd {
        self.link.watched.as_raw_fd()
    }

    /// Reconnects with the same memory, rings and in-flight region, as soon as the server listens again.
    ///
    /// # Errors
    /// Reconnection is disabled, the server offers no in-flight region, or it does not return in time.
    pub fn reconnect(&mut self) -> Result<()> {
        let Some(timeout) = self.options.reconnect else {
            bail!("{} closed the connection", self.options.socket.display());
        };
        let deadline = Instant::now() + timeout;
        loop {
            let attempt = Link::open(&self.options).and_then(|link| {
                if link.features != self.link.features {
                    bail!("the server has different features after reconnecting: the rings cannot continue");
                }
                self.link = link;
                self.start()
            });
            match attempt {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(
                        error.context(format!("the server did not return within {timeout:?}"))
                    );
                }
                // There is no event for a returned process: poll for it.
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    fn start(&mut self) -> Result<()> {
        self.share_inflight()?;
        let link = &mut self.link;
        let entry = self.memory.table_entry()?;
        if link
            .protocol
            .contains(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
        {
            link.frontend
                .add_mem_region(&entry)
                .context("ADD_MEM_REG")?;
        } else {
            link.frontend
                .set_mem_table(&[entry])
                .context("SET_MEM_TABLE")?;
        }
        for (index, queue) in self.queues.iter().enumerate() {
            let addresses = queue.addresses(None);
            let frontend = &mut link.frontend;
            frontend
                .set_vring_num(index, addresses.queue_size)
                .context("SET_VRING_NUM")?;
            frontend
                .set_vring_base(index, queue.ring.base())
                .context("SET_VRING_BASE")?;
            frontend
                .set_vring_addr(index, &addresses)
                .context("SET_VRING_ADDR")?;
            frontend
                .set_vring_call(index, &queue.call)
                .context("SET_VRING_CALL")?;
            frontend
                .set_vring_kick(index, &queue.kick)
                .context("SET_VRING_KICK")?;
            frontend
                .set_vring_enable(index, true)
                .context("SET_VRING_ENABLE")?;
        }
        for queue in &self.queues {
            // Requests published while no server was listening have had no kick yet.
            queue.kick.write(1).context("cannot kick")?;
        }
        Ok(())
    }

    fn share_inflight(&mut self) -> Result<()> {
        if !self
            .link
            .protocol
            .contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD)
        {
            return Ok(());
        }
        let frontend = &mut self.link.frontend;
        if self.inflight.is_none() {
            let size = self.queues[0].ring.shape().size();
            let wanted = VhostUserInflight::new(0, 0, self.options.queues, size);
            self.inflight = Some(
                frontend
                    .get_inflight_fd(&wanted)
                    .context("GET_INFLIGHT_FD")?,
            );
        }
        if let Some((inflight, file)) = &self.inflight {
            frontend
                .set_inflight_fd(inflight, file.as_raw_fd())
                .context("SET_INFLIGHT_FD")?;
        }
        Ok(())
    }
}

impl Queue {
    fn new(memory: &Arc<Memory>, shape: Shape, start: usize) -> Result<Self> {
        let slots = shape.slots;
        Ok(Self {
            ring: Ring::new(Arc::clone(memory), shape, start),
            kick: EventFd::new(EFD_NONBLOCK).context("cannot create an eventfd")?,
            call: EventFd::new(EFD_NONBLOCK).context("cannot create an eventfd")?,
            free: (0..slots).rev().collect(),
            requests: vec![(Operation::FLUSH, 0); usize::from(slots)],
        })
    }

    /// The ring's addresses as sent to a server. Writes to the used ring are logged as if it started at `log`.
    pub(super) fn addresses(&self, log: Option<u64>) -> VringConfigData {
        let size = self.ring.shape().size();
        let (desc_table_addr, avail_ring_addr, used_ring_addr) = self.ring.addresses();
        VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: log.map_or(0, |_| VhostUserVringAddrFlags::VHOST_VRING_F_LOG.bits()),
            desc_table_addr,
            used_ring_addr,
            avail_ring_addr,
            log_addr: log,
        }
    }
}

impl Link {
    fn open(options: &VmOptions) -> Result<Self> {
        let socket = &options.socket;
        let stream = UnixStream::connect(socket)
            .with_context(|| format!("cannot connect to {}", socket.display()))?;
        // Without a timeout, a silent server would block the client forever.
        stream
            .set_read_timeout(Some(crate::tally::SILENCE))
            .context("cannot set a timeout")?;
        let watched = stream.try_clone().context("cannot duplicate the socket")?;
        let mut frontend = Frontend::from_stream(stream, u64::from(options.queues));
        frontend.set_owner().context("SET_OWNER")?;
        let offered = frontend.get_features().context("GET_FEATURES")?;
        let features = offered & wanted_features(options);
        if features & feature::PROTOCOL == 0 || features & feature::VERSION_1 == 0 {
            bail!(
                "{} offers features {offered:#x}: too old for this client",
                socket.display()
            );
        }
        let offered = frontend
            .get_protocol_features()
            .context("GET_PROTOCOL_FEATURES")?;
        let protocol = offered & wanted_protocol(options);
        if !protocol.contains(VhostUserProtocolFeatures::CONFIG) {
            bail!(
                "{} does not report its disk's size (protocol feature CONFIG)",
                socket.display()
            );
        }
        if options.reconnect.is_some()
            && !protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD)
        {
            bail!(
                "{} shares no in-flight region: requests would be lost with it",
                socket.display()
            );
        }
        frontend
            .set_protocol_features(protocol)
            .context("SET_PROTOCOL_FEATURES")?;
        if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        frontend.set_features(features).context("SET_FEATURES")?;
        let config = read_config(&mut frontend, features)?;
        Ok(Self {
            frontend,
            watched,
            features,
            protocol,
            config,
        })
    }
}

fn wanted_features(options: &VmOptions) -> u64 {
    let mut wanted = feature::SEG_MAX
        | feature::READ_ONLY
        | feature::BLOCK_SIZE
        | feature::FLUSH
        | feature::MULTI_QUEUE
        | feature::PROTOCOL
        | feature::VERSION_1;
    if options.indirect {
        wanted |= feature::INDIRECT;
    }
    if options.event_idx {
        wanted |= feature::EVENT_IDX;
    }
    wanted
}

fn wanted_protocol(options: &VmOptions) -> VhostUserProtocolFeatures {
    let mut wanted = VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::LOG_SHMFD
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIG;
    if options.memory_slots {
        wanted |= VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
    }
    if options.reconnect.is_some() {
        wanted |= VhostUserProtocolFeatures::INFLIGHT_SHMFD;
    }
    wanted
}

fn read_config(frontend: &mut Frontend, features: u64) -> Result<DiskConfig> {
    /// The configuration space up to the write-zeroes fields, which every server has.
    const LENGTH: usize = 60;
    let (_, bytes) = frontend
        .get_config(0, 60, VhostUserConfigFlags::empty(), &[0; LENGTH])
        .context("GET_CONFIG")?;
    let take = |from: usize, count: usize| -> u64 {
        bytes[from..from + count]
            .iter()
            .rev()
            .fold(0, |word, byte| word << 8 | u64::from(*byte))
    };
    let queues = if features & feature::MULTI_QUEUE != 0 {
        take(34, 2)
    } else {
        1
    };
    let block_size = if features & feature::BLOCK_SIZE != 0 {
        take(20, 4)
    } else {
        512
    };
    Ok(DiskConfig {
        size: take(0, 8) * 512,
        block_size: u32::try_from(block_size).context("a block size of four bytes")?,
        queues: u16::try_from(queues).context("a queue count of two bytes")?,
        read_only: features & feature::READ_ONLY != 0,
        flush: features & feature::FLUSH != 0,
    })
}
