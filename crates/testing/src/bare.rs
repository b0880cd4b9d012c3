//! A vhost-user-blk server that only walks the ring: the ceiling for real servers.
//!
//! It shows how fast the client is (both must be faster than what they measure), and what a datastore, filters and checks of
//! rings add. It trusts its client and moves no data.
//!
//! # Always true
//! - One pass takes all that is available, writes all answers, and publishes them once.

use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, RwLock};

use anyhow::Result;
use vhost::vhost_user::VhostUserProtocolFeatures;
use vhost_user_backend::{VhostUserBackendMut, VhostUserDaemon, VringRwLock, VringT};
use virtio_queue::QueueT;
use vm_memory::{
    Address, GuestAddress, GuestAddressSpace, GuestMemoryAtomic, GuestMemoryBackend,
    GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap, VolatileMemory,
};
use vmm_sys_util::epoll::EventSet;

use crate::vhost::Wait;

/// Multi-queue, indirect descriptors, event indices, protocol features, version 1.
const FEATURES: u64 = 1 << 12 | 1 << 28 | 1 << 29 | 1 << 30 | 1 << 32;
const QUEUES: usize = 16;

struct Bare {
    size: u64,
    wait: Wait,
    memory: GuestMemoryAtomic<GuestMemoryMmap>,
    done: [u16; QUEUES],
}

/// Serves an empty disk of `size` bytes at `socket` until its one client hangs up.
pub fn serve(socket: &Path, size: u64, wait: Wait) -> Result<()> {
    let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
    let bare = Bare {
        size,
        wait,
        memory: memory.clone(),
        done: [0; QUEUES],
    };
    let mut daemon = VhostUserDaemon::new("bare".into(), Arc::new(RwLock::new(bare)), memory)
        .map_err(|error| anyhow::anyhow!("cannot start the bare server: {error}"))?;
    daemon
        .serve(socket)
        .map_err(|error| anyhow::anyhow!("cannot serve {}: {error}", socket.display()))
}

impl VhostUserBackendMut for Bare {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        QUEUES
    }

    fn max_queue_size(&self) -> usize {
        1024
    }

    fn features(&self) -> u64 {
        FEATURES
    }

    fn protocol_features(&self) -> VhostUserProtocolFeatures {
        VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::REPLY_ACK
    }

    fn set_event_idx(&mut self, _enabled: bool) {}

    fn get_config(&self, offset: u32, size: u32) -> Vec<u8> {
        let mut config = [0; 60];
        config[..8].copy_from_slice(&(self.size / 512).to_le_bytes());
        config[34] = u8::try_from(QUEUES).expect("16 queues");
        let (from, count) = (offset as usize, size as usize);
        config
            .get(from..from + count)
            .map(<[u8]>::to_vec)
            .unwrap_or_default()
    }

    fn update_memory(&mut self, memory: GuestMemoryAtomic<GuestMemoryMmap>) -> std::io::Result<()> {
        self.memory = memory;
        Ok(())
    }

    fn handle_event(
        &mut self,
        queue: u16,
        _events: EventSet,
        vrings: &[VringRwLock],
        _thread: usize,
    ) -> std::io::Result<()> {
        let index = usize::from(queue);
        let Some(vring) = vrings.get(index) else {
            return Ok(());
        };
        let memory = self.memory.memory();
        loop {
            let state = vring.get_ref();
            let asked = state.get_queue();
            let Some(region) = memory.iter().next() else {
                return Ok(());
            };
            let rings = Rings {
                region,
                size: asked.size(),
                descriptors: asked.desc_table(),
                available: asked.avail_ring(),
                used: asked.used_ring(),
            };
            let (done, signal) = rings.pass(self.done[index]);
            let idle = done == self.done[index];
            self.done[index] = done;
            if signal && let Some(call) = state.get_call() {
                call.notify()?;
            }
            if idle && self.wait == Wait::Sleep && !rings.arm(done) {
                return Ok(());
            }
        }
    }
}

struct Rings<'a> {
    region: &'a GuestRegionMmap<()>,
    size: u16,
    descriptors: u64,
    available: u64,
    used: u64,
}

impl Rings<'_> {
    fn at<T: vm_memory::AtomicInteger>(&self, address: u64) -> &T {
        let offset = GuestAddress(address).unchecked_offset_from(self.region.start_addr());
        let offset = usize::try_from(offset).expect("an address fits usize");
        self.region
            .get_atomic_ref(offset)
            .expect("the client is ours and its rings are sound")
    }

    /// Answers everything available from `done` on; the new `done`, and whether the client wants an interrupt.
    fn pass(&self, done: u16) -> (u16, bool) {
        let available = self
            .at::<AtomicU16>(self.available + 2)
            .load(Ordering::Acquire);
        if available == done {
            return (done, false);
        }
        let mut next = done;
        while next != available {
            let place = u64::from(next & (self.size - 1));
            let head = self
                .at::<AtomicU16>(self.available + 4 + 2 * place)
                .load(Ordering::Relaxed);
            self.at::<AtomicU8>(self.status_of(head))
                .store(0, Ordering::Relaxed);
            let entry = self.used + 4 + 8 * place;
            self.at::<AtomicU32>(entry)
                .store(u32::from(head), Ordering::Relaxed);
            self.at::<AtomicU32>(entry + 4)
                .store(4097, Ordering::Relaxed);
            next = next.wrapping_add(1);
        }
        self.at::<AtomicU16>(self.used + 2)
            .store(next, Ordering::Release);
        fence(Ordering::SeqCst);
        let event = self.at::<AtomicU16>(self.available + 4 + 2 * u64::from(self.size));
        let event = event.load(Ordering::Relaxed);
        (
            next,
            next.wrapping_sub(event).wrapping_sub(1) < next.wrapping_sub(done),
        )
    }

    /// The last descriptor of a chain, direct or not, is the status byte.
    fn status_of(&self, head: u16) -> u64 {
        let mut table = self.descriptors;
        let mut at = table + 16 * u64::from(head);
        loop {
            let target = self.at::<AtomicU64>(at).load(Ordering::Relaxed);
            let rest = self.at::<AtomicU64>(at + 8).load(Ordering::Relaxed);
            if rest >> 32 & 4 != 0 {
                (table, at) = (target, target);
            } else if rest >> 32 & 1 != 0 {
                at = table + 16 * (rest >> 48);
            } else {
                return target;
            }
        }
    }

    /// Asks for a kick at the next request; true when one is there already.
    fn arm(&self, done: u16) -> bool {
        self.at::<AtomicU16>(self.used + 4 + 8 * u64::from(self.size))
            .store(done, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.at::<AtomicU16>(self.available + 2)
            .load(Ordering::Acquire)
            != done
    }
}
