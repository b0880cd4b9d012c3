//! The serving daemon as its REST interface sees it: its services, monitor, dashboard and state.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tidegate_api::status::{NbdListener, State, Status};

use crate::clock;
use crate::listen::tls::expiry;
use crate::observe::dashboard::Dashboard;
use crate::observe::dense::DenseWatch;
use crate::observe::io_threads;
use crate::observe::log;
use crate::observe::metrics::{self, IoThreads};
use crate::observe::monitor::{self, Monitor};
use crate::os_error::Outcome;
use crate::services::Services;

/// The serving daemon.
pub(crate) struct Daemon {
    pub(crate) services: Arc<Services>,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) dashboard: Dashboard,
    addresses: Addresses,
    state: Mutex<State>,
    started: Instant,
    /// Length of the last page for Prometheus, in bytes.
    metrics_len: AtomicUsize,
}

/// The daemon's addresses and its configuration file.
pub(crate) struct Addresses {
    /// The URL that browsers open.
    pub(crate) dashboard_url: Option<String>,
    pub(crate) config: Option<PathBuf>,
    pub(crate) api_socket: PathBuf,
    pub(crate) nbd_listeners: Vec<NbdListener>,
}

impl Daemon {
    /// The state of a daemon that starts.
    pub(crate) fn new(services: Arc<Services>, dense: DenseWatch, addresses: Addresses) -> Daemon {
        let monitor = Arc::new(Monitor::new(Arc::clone(&services), dense));
        Daemon {
            services,
            dashboard: Dashboard::new(Arc::clone(&monitor)),
            monitor,
            addresses,
            state: Mutex::new(State::Starting),
            started: Instant::now(),
            metrics_len: AtomicUsize::new(0),
        }
    }

    /// The URL of its dashboard.
    pub(crate) fn dashboard_url(&self) -> Option<&String> {
        self.addresses.dashboard_url.as_ref()
    }

    /// The daemon's status.
    pub(crate) fn status(&self) -> Outcome<Status> {
        let (datastores, disks) = self.services.disk_service.glance()?;
        let attached = self.services.disk_service.live().all();
        let mut problems = self.services.disk_service.troubles();
        problems.extend(
            datastores
                .iter()
                .filter_map(|datastore| datastore.problem.clone()),
        );
        problems.extend(self.services.disk_service.unreadable_datastores()?);
        for problem in self.services.disk_service.harms()? {
            // A lost lease, or a detach that takes too long, is already among the troubles.
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        problems.extend(self.services.disk_service.degraded());
        let now = expiry::now();
        problems.extend(self.services.certificates.problems(now));
        Ok(Status {
            state: *self.state.lock().unwrap_or_else(PoisonError::into_inner),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            root: self.services.disk_service.root().path().to_owned(),
            config: self.addresses.config.clone(),
            api_socket: self.addresses.api_socket.clone(),
            nbd_listeners: self.addresses.nbd_listeners.clone(),
            tls_certificates: self.services.certificates.listed(now),
            dashboard: self.addresses.dashboard_url.clone(),
            threads: self.services.disk_service.host().used_threads()?,
            thread_policy: self
                .services
                .disk_service
                .host()
                .monitor_status()
                .map(|status| io_threads::status(&status, clock::now(), monitor::now_ms())),
            dense: Some(self.monitor.dense().status()),
            datastores: datastores.len() as u64,
            disks: disks.len() as u64,
            attached: attached.len() as u64,
            clients: attached
                .iter()
                .map(|attached| attached.clients().len() as u64)
                .sum(),
            problems,
        })
    }

    /// Writes the page for Prometheus.
    pub(crate) fn metrics(&self) -> Outcome<String> {
        let facts = metrics::Facts {
            moment: self.services.counters()?,
            datastores: self.services.disk_service.datastores_at_a_glance()?,
            disks: self.services.disk_service.attached_disks()?,
            caches: self.services.disk_service.caches().unwrap_or_default(),
            pools: self.services.disk_service.pools_at_a_glance(),
            controls: self.monitor.control_moments(),
            problems: self.services.disk_service.troubles().len(),
            nbd_refused: self.services.disk_service.live().refused(),
            log_lines_lost: log::lines_lost(),
            certificates: self.services.certificates.days_left(expiry::now()),
            uptime_s: self.started.elapsed().as_secs_f64(),
            io_threads: self.io_threads()?,
            active_threads: self.services.disk_service.host().active_threads(),
            policy: self.services.disk_service.host().monitor_status(),
        };
        // A page that outgrows its buffer is copied; a sixteenth more than the last page is enough.
        let last = self.metrics_len.load(Relaxed);
        let page = metrics::page(&facts, last + last / 16);
        self.metrics_len.store(page.len(), Relaxed);
        Ok(page)
    }

    /// What the I/O threads did, for each thread and disk.
    fn io_threads(&self) -> Outcome<IoThreads> {
        let statistics = self.services.disk_service.host().statistics()?;
        let live = self.services.disk_service.live().all();
        let named = statistics.disks().into_iter().filter_map(|activity| {
            // A disk that is being attached or detached is left out.
            let disk = live.iter().find(|disk| disk.key() == activity.disk)?;
            Some((disk.name().clone(), disk.datastore().clone(), activity))
        });
        Ok(IoThreads {
            disks: named.collect(),
            threads: statistics.threads(),
            dense: self.monitor.dense().is_on(),
        })
    }

    /// Sets its state.
    pub(crate) fn set_state(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}
