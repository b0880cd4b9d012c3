//! The engine: I/O threads on io_uring, buffers, datastores and devices; it performs what the core decides.
//!
//! The daemon starts an [`Engine`], opens images with [`datastore`], and attaches them as [`Disk`]s; it sends commands
//! through their handles. Disks of one datastore may be under its [`control`]. A request passes from a device (a ring
//! or a connection) through `thread.rs` (one turn) and the core's shard to [`datastore`], and back.
//!
//! Each module uses only modules below it (`ARCHITECTURE.md`).
//!
//! This is the only crate of the project with unsafe code, all of it in `src/sys/`.

#![deny(unsafe_code)]

mod atomics;
pub mod beneath;
mod blocking;
pub mod control;
pub mod counters;
pub mod datastore;
mod device;
pub mod devices;
mod disk_spec;
mod error;
pub mod guests;
mod handle;
mod inbox;
pub mod lease;
pub mod monitor;
pub mod mounts;
mod numbered;
#[expect(unsafe_code, reason = "the one place for it; see the module")]
mod sys;
mod tag;
mod thread;
mod vhost;

pub use control::{Control, UnderControl};
pub use counters::Statistics;
pub use device::ring::malformed::RingFault;
pub use disk_spec::{
    DenseSettings, DiskSpec, Flash, IoSettings, LayoutOptions, NoticeSink, PoolDisk,
};
pub use error::{Error, Kind, Result};
pub use handle::{Answers, DeviceReport, Disk, Engine, OldImage, Settings, ThreadState};
pub use lease::{Lease, Leases};
pub use sys::os::now;
pub use thread::commands::{DiskCurves, DiskPulse, DiskReading, ThreadPulse, ThreadReport};
pub use thread::moving_disk::Moved;
pub use thread::refusals::RING_LOCKED;

/// The NBD protocol, for code that performs the handshake before it passes a client to the engine.
pub use tidegate_front::nbd;
