//! The dashboard: pages of the daemon's own for a browser, live, on the REST interface's socket and on a TCP address.
//!
//! The pages lie in `crates/daemon/dashboard/` as they are served: nothing is built or fetched. Their doors are in
//! `rest/dashboard.rs`. What they show live comes from [`feed`], which looks once a second for all who watch, at what
//! [`beat`] and [`close_up`] make of the counters; [`past`] tells of the minutes before. [`door`] is the TCP address,
//! and [`guard`] decides who gets in there and what they may order; [`owner`] tells it whose connection one is.
//!
//! # Always true
//! - While nobody watches nothing is counted, asked or serialised for the dashboard.
//! - A second of all disks is serialised once, however many watch it.
//! - From the TCP address nothing can be ordered but a disk's policy.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_api::name::Name;
use tokio::sync::watch;

use crate::serve::Daemon;

pub(crate) mod disk_sample;
pub(crate) mod feed;
pub(crate) mod files;
pub(crate) mod guard;
pub(crate) mod history;
pub(crate) mod host_sample;
pub(crate) mod listener;
mod peer_uid;

use disk_sample::DiskSample;
use feed::{Feed, Frame};
use host_sample::Beats;

/// Who is being looked at, and what they were told last.
#[derive(Default)]
pub(crate) struct Dashboard {
    host: Arc<Feed>,
    /// Disks of which somebody has the page open, or had: as many as there are names at most.
    disks: Mutex<BTreeMap<Name, Arc<Feed>>>,
}

impl Dashboard {
    /// Each second of the whole host, as long as it is kept.
    pub(crate) fn watch(&self, daemon: &Arc<Daemon>) -> watch::Receiver<Frame> {
        self.host.watch(daemon, Beats::default)
    }

    /// Each second of one disk, as long as it is kept.
    pub(crate) fn watch_disk(&self, daemon: &Arc<Daemon>, disk: &Name) -> watch::Receiver<Frame> {
        let feed = {
            let mut disks = self.disks.lock().unwrap_or_else(PoisonError::into_inner);
            // Those that nobody watches are forgotten when another is opened.
            disks.retain(|name, feed| name == disk || feed.is_watched());
            Arc::clone(disks.entry(disk.clone()).or_default())
        };
        feed.watch(daemon, || DiskSample::of(disk.clone()))
    }
}
