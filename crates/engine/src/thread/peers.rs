//! The data that all I/O threads of an engine share: their inboxes, and the thread of each disk.
//!
//! Nothing here is on the I/O path of a disk that stays. A thread that gets something for a disk that has moved passes it on to
//! the disk's thread.
//!
//! # Always true
//! - a disk's home is the thread that has it, or the one whose inbox has it: what is sent there afterwards is found behind it
//! - a number of a queue or a connection is in use once, on all threads together

use super::commands::{Command, Inbox};
use crate::atomics::{Arc, AtomicU8, AtomicUsize, Mutex, Ordering};
use crate::sys::buffers::ReturnedNumbers;
use std::io;
use std::sync::{OnceLock, PoisonError};
use tidegate_core::request::DiskId;

/// The home of a disk that has none.
const NOWHERE: u8 = u8::MAX;
/// Homes are allocated for so many disks at once.
const CHUNK: usize = 1024;
/// Chunks for as many disks as there are numbers.
const CHUNKS: usize = (1 << crate::tag::DISK_BITS) / CHUNK;

/// See the module.
pub(crate) struct Peers {
    inboxes: Box<[Arc<Inbox>]>,
    homes: Box<[OnceLock<Box<[AtomicU8]>>]>,
    /// Disks that each thread has, or that are on their way to it.
    disks: Box<[AtomicUsize]>,
    /// Operations in flight on each thread's ring when it last went to sleep.
    on_rings: Box<[AtomicUsize]>,
    queues: Numbers,
    connections: Numbers,
    returned: Arc<ReturnedNumbers>,
}

/// Numbers in use.
#[derive(Default)]
struct Numbers(Mutex<Vec<bool>>);

impl Numbers {
    /// The lowest free number.
    fn take(&self) -> u32 {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = used.iter().position(|used| !used).unwrap_or(used.len());
        if at == used.len() {
            used.push(false);
        }
        used[at] = true;
        u32::try_from(at).expect("queues and connections are numbered in 24 bits")
    }

    fn give_back(&self, number: u32) {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        used[number as usize] = false;
    }
}

impl Peers {
    /// For so many threads.
    ///
    /// # Errors
    /// If the process has no descriptors left.
    pub(crate) fn new(threads: usize) -> io::Result<Peers> {
        let inboxes = (0..threads).map(|_| Inbox::new().map(Arc::new));
        let counters = || (0..threads).map(|_| AtomicUsize::new(0)).collect();
        Ok(Peers {
            inboxes: inboxes.collect::<io::Result<_>>()?,
            homes: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            disks: counters(),
            on_rings: counters(),
            queues: Numbers::default(),
            connections: Numbers::default(),
            returned: Arc::new(ReturnedNumbers::new(threads)),
        })
    }

    /// How many threads there are.
    pub(crate) fn count(&self) -> usize {
        self.inboxes.len()
    }

    /// The inbox of a thread.
    pub(crate) fn inbox(&self, thread: usize) -> &Arc<Inbox> {
        &self.inboxes[thread]
    }

    fn home_of(&self, disk: DiskId) -> &AtomicU8 {
        let disk = disk.0 as usize;
        let chunk = self.homes[disk / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| AtomicU8::new(NOWHERE)).collect());
        &chunk[disk % CHUNK]
    }

    /// The thread that has a disk, or soon will; `None` for one that is not attached.
    pub(crate) fn home(&self, disk: DiskId) -> Option<usize> {
        let home = self.home_of(disk).load(Ordering::Acquire);
        (home != NOWHERE).then_some(home.into())
    }

    /// The inbox of a disk's thread. For a disk that is not attached it is that of another one, which says so.
    pub(crate) fn inbox_of(&self, disk: DiskId) -> &Arc<Inbox> {
        self.inbox(self.home(disk).unwrap_or(0))
    }

    /// A disk is attached to a thread. Call it before the thread gets the disk.
    pub(crate) fn settle(&self, disk: DiskId, thread: usize) {
        self.set_home(disk, thread);
        self.disks[thread].fetch_add(1, Ordering::Relaxed);
    }

    /// Sends a disk to a thread.
    pub(super) fn send_disk(&self, disk: DiskId, thread: usize, command: Command) {
        if let Some(from) = self.home(disk) {
            self.disks[from].fetch_sub(1, Ordering::Relaxed);
        }
        self.disks[thread].fetch_add(1, Ordering::Relaxed);
        // Together, so that others find their way behind the disk, and the disk goes nowhere before.
        self.inboxes[thread].send_and(command, || self.set_home(disk, thread));
    }

    /// A disk is detached, or was not attached after all. It may be called twice, while its number is not free.
    pub(crate) fn forget(&self, disk: DiskId) {
        let home = self.home_of(disk).swap(NOWHERE, Ordering::AcqRel);
        if home != NOWHERE {
            self.disks[usize::from(home)].fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn set_home(&self, disk: DiskId, thread: usize) {
        let home = u8::try_from(thread).expect("there are fewer than 255 threads");
        self.home_of(disk).store(home, Ordering::Release);
    }

    /// Disks of a thread.
    pub(crate) fn disks(&self, thread: usize) -> usize {
        self.disks[thread].load(Ordering::Relaxed)
    }

    /// A thread goes to sleep with so many operations in flight on its ring.
    pub(super) fn note_sleep(&self, thread: usize, operations: usize) {
        self.on_rings[thread].store(operations, Ordering::Relaxed);
    }

    /// Operations in flight on a thread's ring when it last went to sleep.
    pub(crate) fn on_ring(&self, thread: usize) -> usize {
        self.on_rings[thread].load(Ordering::Relaxed)
    }

    pub(super) fn queue_number(&self) -> u32 {
        self.queues.take()
    }

    pub(super) fn free_queue_number(&self, number: u32) {
        self.queues.give_back(number);
    }

    pub(super) fn connection_number(&self) -> u32 {
        self.connections.take()
    }

    pub(super) fn free_connection_number(&self, number: u32) {
        self.connections.give_back(number);
    }

    pub(super) fn returned(&self) -> &Arc<ReturnedNumbers> {
        &self.returned
    }
}
