//! A vhost-user-blk client: guests without virtual machines that load or verify a server.
//!
//! [`Vm`] negotiates and shares memory. [`GuestDriver`] drives the rings of one or many guests from one thread. The
//! bench uses it, and the crash tests use its verification and reconnection.
//!
//! ```no_run
//! use tidegate_testing::load::{Load, Source};
//! use tidegate_testing::tally::Until;
//! use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};
//!
//! # fn main() -> anyhow::Result<()> {
//! let vm = Vm::connect(VmOptions::new("/run/disk0.sock".as_ref(), 32))?;
//! let mut sources = [Source::new(Load::verified(32, vm.config().size))];
//! let mut driver = GuestDriver::new(vec![vm], Wait::Sleep);
//! let tallies = driver.run(&mut sources, Until::Count(100_000), &mut |_| {})?;
//! assert_eq!(tallies[0].mismatched, 0);
//! # Ok(())
//! # }
//! ```

pub mod batch;
pub mod guest_driver;
pub mod log;
pub mod memory;
pub mod ring;
pub mod vm;
pub mod web_farm;

pub use batch::Sent;
pub use guest_driver::{GuestDriver, Wait};
pub use log::DirtyLog;
pub use vm::{DiskConfig, Vm, VmOptions};
pub use web_farm::{Served, WebFarm};
