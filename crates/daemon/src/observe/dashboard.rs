//! The dashboard: pages of the daemon's own for a browser, live, on the REST interface's socket and on a TCP address.
//!
//! The pages lie in `crates/daemon/dashboard/` as they are served: nothing is built or fetched. `rest/dashboard.rs`
//! serves them. What they show live comes from [`feed`], which reads the counters once a second for all viewers, as
//! [`host_sample`] and [`disk_sample`] prepare them. [`history`] has the minutes before.
//!
//! # Always true
//! - While nobody watches nothing is counted, asked or serialised for the dashboard.
//! - A second of all disks is serialised once, however many watch it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_api::name::Name;
use tokio::sync::watch;

use crate::observe::monitor::Monitor;

pub(crate) mod disk_sample;
pub(crate) mod feed;
pub(crate) mod files;
pub(crate) mod history;
pub(crate) mod host_sample;

use disk_sample::DiskSample;
use feed::{Feed, Frame};
use host_sample::HostSample;

/// Who is being looked at, and what they were told last.
pub(crate) struct Dashboard {
    monitor: Arc<Monitor>,
    host: Arc<Feed>,
    /// Disks of which somebody has the page open, or had: as many as there are names at most.
    disks: Mutex<BTreeMap<Name, Arc<Feed>>>,
}

impl Dashboard {
    /// The dashboard of what this monitor knows.
    pub(crate) fn new(monitor: Arc<Monitor>) -> Dashboard {
        Dashboard {
            monitor,
            host: Arc::default(),
            disks: Mutex::default(),
        }
    }

    /// Each second of the whole host, as long as it is kept.
    pub(crate) fn watch(&self) -> watch::Receiver<Frame> {
        self.host.watch(&self.monitor, HostSample::default)
    }

    /// Each second of one disk, as long as it is kept.
    pub(crate) fn watch_disk(&self, disk: &Name) -> watch::Receiver<Frame> {
        let feed = {
            let mut disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
            // Those that nobody watches are forgotten when another is opened.
            disks.retain(|name, feed| name == disk || feed.is_watched());
            Arc::clone(disks.entry(disk.clone()).or_default())
        };
        feed.watch(&self.monitor, || DiskSample::of(disk.clone()))
    }
}
