//! The dashboard: live web pages that the daemon serves on the REST interface's socket and on a TCP address.
//!
//! The pages are served as they are in `crates/daemon/dashboard/`: nothing is built or fetched. `rest/dashboard.rs`
//! serves them. Their live data comes from [`feed`], which reads the counters once a second for all viewers, as
//! [`host_sample`] and [`disk_sample`] prepare them. [`history`] has the minutes before.
//!
//! # Always true
//! - While no page is open, nothing is counted, queried or serialised for the dashboard.
//! - One second of all disks is serialised once for all viewers.

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

/// The feeds of the open pages.
pub(crate) struct Dashboard {
    monitor: Arc<Monitor>,
    host: Arc<Feed>,
    /// Feeds of disks whose page is open or was open: at most one per name.
    disks: Mutex<BTreeMap<Name, Arc<Feed>>>,
}

impl Dashboard {
    /// The dashboard of this monitor's data.
    pub(crate) fn new(monitor: Arc<Monitor>) -> Dashboard {
        Dashboard {
            monitor,
            host: Arc::default(),
            disks: Mutex::default(),
        }
    }

    /// Each second of the whole host, until the receiver is dropped.
    pub(crate) fn watch(&self) -> watch::Receiver<Frame> {
        self.host.watch(&self.monitor, HostSample::default)
    }

    /// Each second of one disk, until the receiver is dropped.
    pub(crate) fn watch_disk(&self, disk: &Name) -> watch::Receiver<Frame> {
        let feed = {
            let mut disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
            // Feeds without a viewer are removed when another one is opened.
            disks.retain(|name, feed| name == disk || feed.is_watched());
            Arc::clone(disks.entry(disk.clone()).or_default())
        };
        feed.watch(&self.monitor, || DiskSample::of(disk.clone()))
    }
}
