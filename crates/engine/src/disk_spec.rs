//! The settings of a disk, as the daemon attaches it.

use crate::control::UnderControl;
use tidegate_core::filter::FilterSpec;

/// A disk as its front ends are to show it.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Its name, for logs.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Logical block size shown to guests, in bytes: 512 or 4096.
    pub block_size: u32,
    /// Refuse writes.
    pub read_only: bool,
    /// Offer guests a write-back cache that they flush; else each write is durable before it is answered.
    pub write_back: bool,
    /// What GET_ID answers; at most 20 bytes are shown.
    pub serial: String,
    /// Its identity, noted in traces.
    pub uuid: [u8; 16],
    /// Most queues of a vhost-user front end.
    pub queues: u16,
    /// Data segments of one request that a vhost-user guest is told it may use.
    pub seg_max: u16,
    /// Its filters, top first.
    pub filters: Vec<FilterSpec>,
    /// The control of its datastore, and what it may get there; none: no I/O of it ever waits for its turn.
    pub control: Option<UnderControl>,
}
