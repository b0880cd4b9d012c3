//! The dirty log of a live migration, and a check of its completeness.
//!
//! Migration copies a running guest's memory while the server writes to it. It then copies the pages again that the
//! server has marked in this log. [`Vm::start_logging`] enables a log while the rings run, like QEMU.
//!
//! # Units
//! - Pages of 4096 bytes, numbered from the start of the guest's memory.
//!
//! # Source
//! The vhost-user protocol of QEMU's documentation, "Migration".

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, bail};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::{VhostBackend, VhostUserDirtyLogRegion};

use super::memory::{GUEST_BASE, Memory};
use super::vm::Vm;

const PAGE: usize = 4096;
/// VHOST_F_LOG_ALL.
const LOG_ALL: u64 = 1 << 26;

/// One bit for each page of the guest's address space.
#[derive(Debug)]
pub struct DirtyLog {
    bits: Memory,
    /// Pages of the guest's memory.
    pages: usize,
}

impl DirtyLog {
    fn new(pages: usize) -> Result<Self> {
        let bits = Memory::new(first_page()? / 8 + pages / 8 + 1)?;
        Ok(Self { bits, pages })
    }

    /// The marked pages.
    ///
    /// # Errors
    /// Never, on hosts with 64-bit addresses.
    pub fn pages(&self) -> Result<BTreeSet<usize>> {
        let first = first_page()?;
        let noted = |page: &usize| {
            let (byte, bit) = ((first + page) / 8, (first + page) % 8);
            self.bits.u8(byte).load(Ordering::Acquire) & 1 << bit != 0
        };
        Ok((0..self.pages).filter(noted).collect())
    }
}

/// The number of the memory's first page in the guest's address space.
fn first_page() -> Result<usize> {
    usize::try_from(GUEST_BASE / PAGE as u64).context("addresses have 64 bits")
}

impl Vm {
    /// Makes the server mark its writes in a new log from now on, whether or not it has another log already.
    ///
    /// # Errors
    /// The server supports no log, or rejects a message.
    pub fn start_logging(&mut self) -> Result<DirtyLog> {
        let link = &mut self.link;
        if !link.protocol.contains(VhostUserProtocolFeatures::LOG_SHMFD) {
            bail!("the server supports no dirty log: its guests cannot be migrated live");
        }
        let length = self.memory.table_entry()?.memory_size;
        let length = usize::try_from(length).context("the memory is mapped")?;
        let log = DirtyLog::new(length / PAGE)?;
        let bits = log.bits.table_entry()?;
        let region = VhostUserDirtyLogRegion {
            mmap_size: bits.memory_size,
            mmap_offset: bits.mmap_offset,
            mmap_handle: bits.mmap_handle,
        };
        let frontend = &link.frontend;
        frontend
            .set_log_base(0, Some(region))
            .context("SET_LOG_BASE")?;
        frontend
            .set_features(link.features | LOG_ALL)
            .context("SET_FEATURES")?;
        for (index, queue) in self.queues.iter().enumerate() {
            let used = self.memory.guest_address(queue.ring.used().start);
            frontend
                .set_vring_addr(index, &queue.addresses(Some(used)))
                .context("SET_VRING_ADDR")?;
        }
        Ok(log)
    }

    /// Stops the rings, as before the last check of the log.
    ///
    /// # Errors
    /// The server rejects a message.
    pub fn stop(&mut self) -> Result<()> {
        for index in 0..self.queues.len() {
            let frontend = &self.link.frontend;
            frontend.get_vring_base(index).context("GET_VRING_BASE")?;
        }
        Ok(())
    }

    /// The pages that a server writes when it completes requests in all slots, including the buffers of reads.
    #[must_use]
    pub fn pages_to_note(&self, reads: bool) -> BTreeSet<usize> {
        let mut pages = BTreeSet::new();
        let mut written =
            |bytes: Range<usize>| pages.extend(bytes.start / PAGE..=(bytes.end - 1) / PAGE);
        let block = usize::try_from(self.options().block).unwrap_or(usize::MAX);
        for queue in &self.queues {
            written(queue.ring.used());
            for slot in 0..self.options().depth {
                let status = queue.ring.status_byte(slot);
                written(status..status + 1);
                if reads {
                    let buffer = queue.ring.buffer(slot);
                    written(buffer..buffer + block);
                }
            }
        }
        pages
    }
}
