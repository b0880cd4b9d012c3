//! The daemon's life cycle: read configuration, start the engine and listeners, serve until a signal, and stop in
//! order.
//!
//! # Always true
//! - Nothing listens before the root is locked, so two daemons never compete for one root's sockets.
//! - It stops in the reverse order: it refuses new commands, then new clients; I/O in flight completes; images are
//!   closed.
//! - A second signal during the stop ends the process at once.
//!
//! # Picture
//! ```text
//! read config ─ plan ─ lock root ─ engine ─ first run? ─ attach remembered disks ─ listen ─ READY ─ serve
//!                                                                  SIGTERM, SIGINT ─ STOPPING ─ detach ─ exit 0
//! ```

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::status::{NbdListener, NbdSecurity, State};
use tokio::net::UnixListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::plan::Plan;
use crate::control::{Controls, Identity};
use crate::daemon::{Addresses, Daemon};
use crate::disks::attached::AttachedDisks;
use crate::disks::disk_service::{self, DiskService};
use crate::disks::watch;
use crate::first_run;
use crate::host::Host;
use crate::listen::sockets::{self, Inherited, Listening};
use crate::listen::tls::expiry::Certificates;
use crate::nbd_listener::{self, ConnectionLimits, Endpoint, EndpointSecurity};
use crate::notify;
use crate::observe::dense::DenseWatch;
use crate::observe::log;
use crate::observe::monitor;
use crate::os_error::limits;
use crate::os_error::{self, Outcome};
use crate::prepare::{self, Prepared, ServeOptions, TcpEndpoint};
use crate::rest;
use crate::rest::dashboard::listener;
use crate::services::Services;
use crate::store::Store;

use crate::rest::api_listener::ApiListener;

/// Time limit for requests in progress once the daemon stops.
const GOODBYE: Duration = Duration::from_secs(2);

/// Time limit for the whole stop. Disks are detached in parallel, so it does not grow with their number.
const STOPPING: Duration = Duration::from_secs(20);

/// Serves until a signal stops it.
///
/// # Errors
/// It cannot start, or a disk was not detached cleanly.
pub fn serve(options: ServeOptions) -> anyhow::Result<()> {
    let prepared = prepare::prepare(&options)?;
    let Prepared { filter, plan, .. } = &prepared;
    log::start(filter.clone(), plan.log.format)?;
    limits::raise_all();
    limits::mask_modes();
    // Control work needs little; with two threads one slow answer does not delay all others.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("control")
        .enable_all()
        .build()
        .context("cannot start the control threads")?;
    let ended = runtime.block_on(live(prepared));
    // Calls that hang on a dead datastore must not delay the process's end.
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

    // Socket files that another process created are not ours to remove.
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
    let mut endpoints = unix_endpoints(&plan, inherited)?;
    endpoints.extend(tcp_endpoints(tcp, &mut certificates)?);
    let listeners = endpoints.iter().map(|(_, listed)| listed.clone()).collect();
    let dashboard = match (&plan.dashboard, dashboard) {
        (Some(plan), Some(access)) => listener::open(plan, access)?,
        _ => None,
    };
    if let Some((url, validity)) = dashboard.as_ref().and_then(listener::Listener::certificate) {
        certificates.add(format!("dashboard {url}"), validity.clone());
    }

    disk_service.offer_views();
    let services = Arc::new(Services::new(Arc::clone(&disk_service), certificates));
    let daemon = Arc::new(Daemon::new(
        services,
        DenseWatch::new(&plan.dense),
        Addresses {
            dashboard_url: dashboard.as_ref().map(|listener| listener.url.clone()),
            config,
            api_socket: plan.api.socket.clone(),
            nbd_listeners: listeners,
        },
    ));
    let answering = tokio::spawn(answer(api, Arc::clone(&daemon)));
    if let Some(listener) = dashboard {
        tokio::spawn(listener.serve(Arc::clone(&daemon)));
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
        // Polled first: the service manager gets its message in any case.
        biased;
        never = notify::starting("attaching disks") => match never {},
        welcome = welcome => welcome?,
        () = signals.next() => return stop(&daemon, &ours, answering, signals).await,
    };
    let limits = ConnectionLimits::new(Arc::clone(&disks), plan.nbd.connections);
    for (endpoint, listed) in endpoints {
        tracing::info!(address = listed.address, security = ?listed.security, "serving NBD");
        tokio::spawn(attend(endpoint, limits.clone()));
    }
    tokio::spawn(monitor::keep(Arc::clone(&daemon.monitor)));
    tokio::spawn(monitor::listen(Arc::clone(&daemon.monitor)));
    tokio::spawn(monitor::listen_to_layouts(Arc::clone(&daemon.monitor)));
    tokio::spawn(monitor::watch_dense(Arc::clone(&daemon.monitor)));
    tokio::spawn(monitor::watch_certificates(Arc::clone(&daemon.monitor)));
    remove_leftovers(&disk_service);
    daemon.set_state(State::Serving);
    let status = format!("serving disks: {}", disks.names().len());
    tracing::info!(root = %root.path().display(), api = %plan.api.socket.display(), "{status}");
    // The process that started us may have closed its end; that is no reason to stop.
    let welcome = welcome.unwrap_or_else(|| first_run::later(disks.names().len()));
    let dashboard = daemon.dashboard_url();
    let dashboard = dashboard.map_or_else(String::new, |url| format!("Dashboard: {url}"));
    let greeting = format!("{welcome}{dashboard}");
    let _ = writeln!(io::stdout(), "{}", greeting.trim_end());
    notify::ready(&status);

    tokio::select! {
        () = signals.next() => {}
        () = notify::watchdog() => {}
        () = watch::watch(Arc::clone(&disk_service)) => {}
        () = disk_service::attach_missing(Arc::clone(&disk_service)) => {}
        () = disk_service::return_members(Arc::clone(&disk_service)) => {}
        () = disk_service::mind_caches(Arc::clone(&disk_service)) => {}
        () = disk_service::keep_budgets(Arc::clone(&disk_service)) => {}
        () = disk_service::store_policies(Arc::clone(&disk_service)) => {}
        () = disk_service::look_for_flash(Arc::clone(&disk_service)) => {}
        () = disk_service::divide_caches(Arc::clone(&disk_service), plan.divide) => {}
    }
    stop(&daemon, &ours, answering, signals).await
}

/// Removes leftovers of exports that the last daemon's end interrupted. Runs in a thread of its own, since a file
/// server may hang.
fn remove_leftovers(disk_service: &DiskService) {
    let jobs = Arc::clone(disk_service.jobs());
    let remove = std::thread::Builder::new()
        .name("leftovers".to_owned())
        .spawn(move || jobs.remove_leftovers());
    if let Err(error) = remove {
        tracing::warn!(%error, "files of interrupted exports are not removed before the next start");
    }
}

async fn stop(
    daemon: &Arc<Daemon>,
    sockets: &[PathBuf],
    answering: tokio::task::JoinHandle<()>,
    mut signals: Signals,
) -> Outcome<()> {
    tracing::info!("stopping: waiting for I/O in flight to end (signal again to stop at once)");
    daemon.set_state(State::Stopping);
    notify::stopping(STOPPING);
    daemon.services.stop().cancel();
    daemon.services.disk_service.jobs().cancel_all();
    for socket in sockets {
        // A socket file that is gone already need not be removed.
        let _ = std::fs::remove_file(socket);
    }
    let ending = daemon.services.disk_service.end()?;
    let hasty = tokio::select! {
        hasty = tokio::time::timeout(STOPPING, ending) => hasty,
        () = signals.next() => {
            return Err(Problem::new(ProblemCode::Stopping, "stopped at once, by a second signal"));
        }
    };
    let _ = tokio::time::timeout(GOODBYE, answering).await;
    daemon.services.disk_service.store_budgets();
    match hasty {
        Ok(Ok(0)) => {
            tracing::info!("stopped");
            Ok(())
        }
        Ok(Ok(hasty)) => Err(Problem::new(
            ProblemCode::Datastore,
            format!("{hasty} disks did not detach cleanly"),
        )
        .because("their datastores did not complete the I/O in flight")),
        Ok(Err(error)) => Err(os_error::failed(&error)),
        Err(_) => Err(
            Problem::new(ProblemCode::Datastore, "did not stop in time").because(format!(
                "a datastore did not respond within {} s",
                STOPPING.as_secs()
            )),
        ),
    }
}

/// The Unix sockets for NBD clients of this host: the planned ones, or the inherited ones instead.
fn unix_endpoints(plan: &Plan, inherited: Vec<Inherited>) -> Outcome<Vec<(Endpoint, NbdListener)>> {
    let mut endpoints = Vec::new();
    let handed_over = !inherited.is_empty();
    for Inherited { name, socket } in inherited {
        if matches!(socket, Listening::Tcp(_)) {
            return Err(os_error::invalid(format!(
                "cannot serve on the inherited TCP socket {name}"
            ))
            .because("an inherited socket has no TLS certificates")
            .remedy("configure the address under nbd.tcp"));
        }
        let listed = NbdListener {
            address: format!("inherited {name}"),
            security: NbdSecurity::Unix,
        };
        endpoints.push((
            Endpoint {
                socket,
                security: EndpointSecurity::Plain,
            },
            listed,
        ));
    }
    if !handed_over {
        for path in &plan.nbd.sockets {
            let socket = Listening::Unix(sockets::listen_unix(path, plan.api.mode)?);
            let listed = NbdListener {
                address: path.display().to_string(),
                security: NbdSecurity::Unix,
            };
            endpoints.push((
                Endpoint {
                    socket,
                    security: EndpointSecurity::Plain,
                },
                listed,
            ));
        }
    }
    Ok(endpoints)
}

/// The TCP sockets for NBD clients of other hosts.
fn tcp_endpoints(
    planned: Vec<TcpEndpoint>,
    certificates: &mut Certificates,
) -> Outcome<Vec<(Endpoint, NbdListener)>> {
    let bind = |tcp: TcpEndpoint| {
        let listener = sockets::listen_tcp(tcp.address)?;
        let address = listener.local_addr().unwrap_or(tcp.address).to_string();
        if let Some(validity) = tcp.validity {
            certificates.add(format!("nbd {address}"), validity);
        }
        let listed = NbdListener {
            address,
            security: tcp.kind,
        };
        let socket = Listening::Tcp(listener);
        let security = tcp.security;
        Ok((Endpoint { socket, security }, listed))
    };
    planned.into_iter().map(bind).collect()
}

fn take(inherited: &mut Vec<Inherited>, name: &str) -> Option<Inherited> {
    let at = inherited.iter().position(|socket| socket.name == name)?;
    Some(inherited.swap_remove(at))
}

async fn attend(endpoint: Endpoint, limits: ConnectionLimits) {
    if let Err(error) = nbd_listener::attend(endpoint, limits).await {
        tracing::error!(%error, "an NBD listener ended");
    }
}

async fn answer(socket: std::os::unix::net::UnixListener, daemon: Arc<Daemon>) {
    let stop = daemon.services.stop().clone();
    match UnixListener::from_std(socket) {
        Ok(listener) => {
            let server = ApiListener::new(listener, rest::router(daemon));
            server.serve(stop).await;
        }
        Err(error) => tracing::error!(%error, "the REST interface ended"),
    }
}

/// The signals that ask the daemon to stop.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Catches the signals from now on.
    pub(crate) fn new() -> Outcome<Signals> {
        let catch = |kind| signal(kind).map_err(|e| os_error::io("cannot catch signals", &e));
        Ok(Signals {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
