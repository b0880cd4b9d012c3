//! The daemon's life: configuration, plan, engine, doors; then it serves until it is told to stop, and stops in order.
//!
//! # Always true
//! - Nothing listens before the root is locked, so two daemons never fight over one root's sockets.
//! - It stops in the reverse order: no new orders, no new clients, what is in flight ends, images are let go.
//! - A second signal while it stops ends the process at once: the operator knows best.
//!
//! # Picture
//! ```text
//! read config ─ plan ─ lock root ─ engine ─ first run? ─ attach what is remembered ─ listen ─ READY ─ serve
//!                                                                    SIGTERM, SIGINT ─ STOPPING ─ detach ─ exit 0
//! ```

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate_api::config::NbdTcp;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::status::{NbdListener, NbdSecurity, State, Status};
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::limits;
use crate::config::plan::Plan;
use crate::config::prepare::{self, Prepared, TcpDoor};
use crate::control::{Controls, Identity};
use crate::disks::attached::AttachedDisks;
use crate::disks::disk_service::{self, DiskService};
use crate::disks::host::Host;
use crate::disks::store::Store;
use crate::disks::watch;
use crate::first_run;
use crate::listen::nbd_listener::{self, ConnectionLimits, Endpoint, EndpointSecurity};
use crate::listen::sockets::{self, Inherited, Listening};
use crate::listen::tls::expiry::{self, Certificates};
use crate::notify;
use crate::observe::dashboard::Dashboard;
use crate::observe::dashboard::listener;
use crate::observe::log;
use crate::observe::metrics;
use crate::observe::monitor::{self, Monitor};
use crate::os_error::{self, Outcome};
use crate::rest;

use crate::listen::api_listener::ApiListener;

pub(crate) use crate::observe::counters::Counters;

/// How long answers to requests that are under way may take once the daemon stops.
const GOODBYE: Duration = Duration::from_secs(2);

/// How long stopping may take in all: disks end side by side, so it is not multiplied by their number.
const STOPPING: Duration = Duration::from_secs(20);

/// How a daemon is started.
#[derive(Clone, Debug, Default)]
pub struct ServeOptions {
    /// The root directory; none: `TIDEGATE_ROOT`, or the usual one.
    pub root: Option<PathBuf>,
    /// The socket of the REST interface; none: as configured.
    pub api_socket: Option<PathBuf>,
    /// The configuration file; none: the root's, if it is there.
    pub config: Option<PathBuf>,
    /// I/O threads; none: as configured.
    pub threads: Option<u16>,
    /// TCP addresses for NBD clients, besides the configured ones.
    pub nbd_tcp: Vec<NbdTcp>,
}

/// A daemon that serves.
pub(crate) struct Daemon {
    pub(crate) disk_service: Arc<DiskService>,
    pub(crate) monitor: Monitor,
    pub(crate) dashboard: Dashboard,
    /// Where browsers find it.
    dashboard_url: Option<String>,
    config: Option<PathBuf>,
    api_socket: PathBuf,
    listeners: Vec<NbdListener>,
    pub(crate) certificates: Certificates,
    state: Mutex<State>,
    started: Instant,
    /// Bytes of the last page for Prometheus.
    metrics_len: AtomicUsize,
    stop: CancellationToken,
}

/// Serves until told to stop by a signal.
///
/// # Errors
/// When it cannot start, or when a disk did not end in peace.
pub fn serve(options: ServeOptions) -> anyhow::Result<()> {
    let prepared = prepare::prepare(&options)?;
    let Prepared { filter, plan, .. } = &prepared;
    log::start(filter.clone(), plan.log.format)?;
    limits::raise_all();
    limits::mask_modes();
    // Control work needs little; two threads keep one slow answer from delaying all others.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("control")
        .enable_all()
        .build()
        .context("cannot start the control threads")?;
    let ended = runtime.block_on(live(prepared));
    // Calls that hang on a dead datastore must not keep the process.
    runtime.shutdown_timeout(GOODBYE);
    Ok(ended?)
}

async fn live(prepared: Prepared) -> Outcome<()> {
    let Prepared {
        root,
        plan,
        from: config,
        filter: _,
        tcp,
        dashboard,
    } = prepared;
    let mut signals = Signals::new()?;
    root.create()?;
    let lock = root.lock()?.until_the_end()?;
    let mut inherited = sockets::inherited()?;
    let store = Store::open(root.state())?;
    let first = first_run::is_due(&root, &store)?;
    let host = Host::start(&plan.threads)?;
    let disks = Arc::new(AttachedDisks::default());
    let nbd_socket = plan.nbd.sockets.first().cloned();
    let disk_service = Arc::new(DiskService::new(
        root.clone(),
        store,
        host,
        Arc::clone(&disks),
        Controls::new(Identity {
            id: root.host_id()?,
            name: plan.host_name.clone(),
            lock,
        }),
        nbd_socket,
    ));

    // Files of sockets that somebody else made are not ours to remove.
    let mut ours = Vec::new();
    let api = take(&mut inherited, "api");
    let api = match api {
        Some(Inherited {
            socket: Listening::Unix(socket),
            ..
        }) => socket,
        Some(_) => {
            return Err(os_error::invalid(
                "the inherited socket named api is not a Unix socket",
            ));
        }
        None => {
            ours.push(plan.api.socket.clone());
            sockets::listen_unix(&plan.api.socket, plan.api.mode)?
        }
    };
    if inherited.is_empty() {
        ours.extend(plan.nbd.sockets.iter().cloned());
    }
    let mut certificates = Certificates::default();
    let mut doors = unix_doors(&plan, inherited)?;
    doors.extend(tcp_doors(tcp, &mut certificates)?);
    let listeners = doors.iter().map(|(_, told)| told.clone()).collect();
    let dashboard = match (&plan.dashboard, dashboard) {
        (Some(plan), Some(access)) => listener::open(plan, access)?,
        _ => None,
    };
    if let Some((url, validity)) = dashboard.as_ref().and_then(listener::Listener::certificate) {
        certificates.add(format!("dashboard {url}"), validity.clone());
    }

    let daemon = Arc::new(Daemon {
        disk_service: Arc::clone(&disk_service),
        monitor: Monitor::default(),
        dashboard: Dashboard::default(),
        dashboard_url: dashboard.as_ref().map(|door| door.url.clone()),
        config,
        api_socket: plan.api.socket.clone(),
        listeners,
        certificates,
        state: Mutex::new(State::Starting),
        started: Instant::now(),
        metrics_len: AtomicUsize::new(0),
        stop: CancellationToken::new(),
    });
    let answering = tokio::spawn(answer(api, Arc::clone(&daemon)));
    if let Some(door) = dashboard {
        tokio::spawn(door.serve(Arc::clone(&daemon), daemon.stop.clone()));
    }

    let at_start = Arc::clone(&disk_service);
    let welcome = os_error::blocking(move || {
        let welcome = if first {
            Some(first_run::make(&at_start)?)
        } else {
            None
        };
        at_start.attach_remembered()?;
        Ok(welcome)
    });
    let welcome = tokio::select! {
        // First of all: the manager is told in any case.
        biased;
        never = notify::starting("attaching disks") => match never {},
        welcome = welcome => welcome?,
        () = signals.next() => return stop(&daemon, &ours, answering, signals).await,
    };
    let limits = ConnectionLimits::new(Arc::clone(&disks), plan.nbd.connections);
    for (door, told) in doors {
        tracing::info!(address = told.address, security = ?told.security, "serving NBD");
        tokio::spawn(attend(door, limits.clone()));
    }
    tokio::spawn(monitor::keep(Arc::clone(&daemon)));
    tokio::spawn(monitor::listen(Arc::clone(&daemon)));
    tokio::spawn(expiry::watch(Arc::clone(&daemon)));
    daemon.become_(State::Serving);
    let status = format!("serving disks: {}", disks.names().len());
    tracing::info!(root = %root.path().display(), api = %plan.api.socket.display(), "{status}");
    // Whoever started us may not listen any more; that is no reason to end.
    let welcome = welcome.unwrap_or_else(|| first_run::later(disks.names().len()));
    let dashboard = daemon.dashboard_url.as_ref();
    let dashboard = dashboard.map_or_else(String::new, |url| format!("Dashboard: {url}"));
    let told = format!("{welcome}{dashboard}");
    let _ = writeln!(io::stdout(), "{}", told.trim_end());
    notify::ready(&status);

    tokio::select! {
        () = signals.next() => {}
        () = notify::watchdog() => {}
        () = watch::watch(Arc::clone(&disk_service)) => {}
        () = disk_service::attach_missing(Arc::clone(&disk_service)) => {}
    }
    stop(&daemon, &ours, answering, signals).await
}

async fn stop(
    daemon: &Arc<Daemon>,
    sockets: &[PathBuf],
    answering: tokio::task::JoinHandle<()>,
    mut signals: Signals,
) -> Outcome<()> {
    tracing::info!("stopping: finishing what is in flight (signal again to end at once)");
    daemon.become_(State::Stopping);
    notify::stopping(STOPPING);
    daemon.stop.cancel();
    daemon.disk_service.jobs().cancel_all();
    for socket in sockets {
        // One that is gone already need not be removed.
        let _ = std::fs::remove_file(socket);
    }
    let ending = daemon.disk_service.end()?;
    let hasty = tokio::select! {
        hasty = tokio::time::timeout(STOPPING, ending) => hasty,
        () = signals.next() => {
            return Err(Problem::new(ProblemCode::Stopping, "ended at once, by a second signal"));
        }
    };
    let _ = tokio::time::timeout(GOODBYE, answering).await;
    match hasty {
        Ok(Ok(0)) => {
            tracing::info!("stopped");
            Ok(())
        }
        Ok(Ok(hasty)) => Err(Problem::new(
            ProblemCode::Datastore,
            format!("{hasty} disks did not end in peace"),
        )
        .because("their datastores did not finish what was in flight")),
        Ok(Err(error)) => Err(os_error::failed(&error)),
        Err(_) => Err(
            Problem::new(ProblemCode::Datastore, "did not stop in time").because(format!(
                "a datastore did not answer within {} s",
                STOPPING.as_secs()
            )),
        ),
    }
}

/// Where NBD clients of this host knock: the planned sockets, or the inherited ones in their place.
fn unix_doors(plan: &Plan, inherited: Vec<Inherited>) -> Outcome<Vec<(Endpoint, NbdListener)>> {
    let mut doors = Vec::new();
    let handed_over = !inherited.is_empty();
    for Inherited { name, socket } in inherited {
        if matches!(socket, Listening::Tcp(_)) {
            return Err(os_error::invalid(format!(
                "cannot serve on the inherited TCP socket {name}"
            ))
            .because("what is inherited carries no certificates")
            .remedy("configure the address under nbd.tcp"));
        }
        let told = NbdListener {
            address: format!("inherited {name}"),
            security: NbdSecurity::Unix,
        };
        doors.push((
            Endpoint {
                socket,
                security: EndpointSecurity::Plain,
            },
            told,
        ));
    }
    if !handed_over {
        for path in &plan.nbd.sockets {
            let socket = Listening::Unix(sockets::listen_unix(path, plan.api.mode)?);
            let told = NbdListener {
                address: path.display().to_string(),
                security: NbdSecurity::Unix,
            };
            doors.push((
                Endpoint {
                    socket,
                    security: EndpointSecurity::Plain,
                },
                told,
            ));
        }
    }
    Ok(doors)
}

/// Where NBD clients of other hosts knock.
fn tcp_doors(
    tcp: Vec<TcpDoor>,
    certificates: &mut Certificates,
) -> Outcome<Vec<(Endpoint, NbdListener)>> {
    let door = |door: TcpDoor| {
        let listener = sockets::listen_tcp(door.address)?;
        let address = listener.local_addr().unwrap_or(door.address).to_string();
        if let Some(validity) = door.validity {
            certificates.add(format!("nbd {address}"), validity);
        }
        let told = NbdListener {
            address,
            security: door.kind,
        };
        let socket = Listening::Tcp(listener);
        let security = door.security;
        Ok((Endpoint { socket, security }, told))
    };
    tcp.into_iter().map(door).collect()
}

fn take(inherited: &mut Vec<Inherited>, name: &str) -> Option<Inherited> {
    let at = inherited.iter().position(|socket| socket.name == name)?;
    Some(inherited.swap_remove(at))
}

async fn attend(door: Endpoint, limits: ConnectionLimits) {
    if let Err(error) = nbd_listener::attend(door, limits).await {
        tracing::error!(%error, "an NBD listener ended");
    }
}

async fn answer(socket: std::os::unix::net::UnixListener, daemon: Arc<Daemon>) {
    let stop = daemon.stop.clone();
    match UnixListener::from_std(socket) {
        Ok(listener) => {
            let door = ApiListener::new(listener, rest::router(daemon));
            door.serve(stop).await;
        }
        Err(error) => tracing::error!(%error, "the REST interface ended"),
    }
}

impl Daemon {
    /// How it is.
    pub(crate) fn status(&self) -> Outcome<Status> {
        let datastores = self.disk_service.datastores_at_a_glance()?;
        let live = self.disk_service.live().all();
        let mut problems = self.disk_service.troubles();
        problems.extend(
            datastores
                .iter()
                .filter_map(|datastore| datastore.problem.clone()),
        );
        problems.extend(self.disk_service.unreadable_datastores()?);
        for problem in self.disk_service.harms()? {
            // A lease that is lost, or a detach that takes too long, is among the troubles.
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        let now = expiry::now();
        problems.extend(self.certificates.problems(now));
        Ok(Status {
            state: *self.state.lock().unwrap_or_else(PoisonError::into_inner),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            root: self.disk_service.root().path().to_owned(),
            config: self.config.clone(),
            api_socket: self.api_socket.clone(),
            nbd_listeners: self.listeners.clone(),
            tls_certificates: self.certificates.listed(now),
            dashboard: self.dashboard_url.clone(),
            threads: self.disk_service.host().thread_count(),
            datastores: datastores.len() as u64,
            disks: datastores.iter().map(|datastore| datastore.disks).sum(),
            attached: live.len() as u64,
            clients: live.iter().map(|live| live.clients().len() as u64).sum(),
            problems,
        })
    }

    /// Prometheus' page.
    pub(crate) fn metrics(&self) -> Outcome<String> {
        let facts = metrics::Facts {
            moment: self.moment()?,
            datastores: self.disk_service.datastores_at_a_glance()?,
            disks: self.disk_service.attached_disks()?,
            controls: self.control_moments(),
            problems: self.disk_service.troubles().len(),
            nbd_refused: self.disk_service.live().refused(),
            log_lines_lost: log::lines_lost(),
            certificates: self.certificates.days_left(expiry::now()),
            uptime_s: self.started.elapsed().as_secs_f64(),
        };
        // A page that outgrows its memory is copied: a sixteenth more than the last one took is room enough.
        let last = self.metrics_len.load(Relaxed);
        let page = metrics::page(&facts, last + last / 16);
        self.metrics_len.store(page.len(), Relaxed);
        Ok(page)
    }

    /// Ends when the daemon stops.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    fn become_(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }
}

/// The signals that ask the daemon to stop.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Catches them from now on.
    pub(crate) fn new() -> Outcome<Signals> {
        let catch = |kind| signal(kind).map_err(|e| os_error::io("cannot catch signals", &e));
        Ok(Signals {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
        })
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
