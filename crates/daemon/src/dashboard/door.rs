//! The dashboard's address: listens on TCP, speaks TLS where it is to, and serves the REST interface behind the guard.
//!
//! # Always true
//! - Not more than [`SEATS`] connections are open; further ones wait in the socket's queue.
//! - A client that does not finish its TLS handshake keeps nobody else waiting, and is let go after [`PATIENCE`].

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use tidegate_api::problem::Problem;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use super::guard::{self, Guard};
use crate::plan::DashboardPlan;
use crate::serve::Daemon;
use crate::trouble::{self, Outcome};
use crate::{accept, rest, sockets, tls};

/// Connections at a time: a browser opens six, and few people look at one host.
const SEATS: usize = 128;

/// How long a TLS handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A listening address, and what it needs to serve.
pub(crate) struct Door {
    listener: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    guard: Guard,
    /// Where browsers find it.
    pub(crate) url: String,
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    pub(crate) peer: SocketAddr,
    /// Our end.
    pub(crate) here: SocketAddr,
    /// Kept as long as the connection is.
    _seat: Option<Arc<OwnedSemaphorePermit>>,
}

impl Guest {
    #[cfg(test)]
    pub(super) fn unseated(peer: SocketAddr, here: SocketAddr) -> Guest {
        Guest {
            peer,
            here,
            _seat: None,
        }
    }
}

impl Door {
    /// Listens as planned.
    pub(crate) fn open(plan: &DashboardPlan) -> Outcome<Door> {
        let token = plan.token.as_deref().map(guard::read_token).transpose()?;
        let tls = plan.tls.as_ref().map(tls::acceptor).transpose()?;
        let listener = match sockets::listen_tcp(plan.address) {
            Err(problem) if plan.any_port => {
                tracing::debug!(%problem, "the dashboard takes another port");
                sockets::listen_tcp(SocketAddr::new(plan.address.ip(), 0))?
            }
            listener => listener?,
        };
        let address = listener
            .local_addr()
            .map_err(|e| trouble::io("cannot listen for the dashboard", &e))?;
        Ok(Door {
            url: url(address, tls.is_some()),
            guard: Guard::new(token, tls.is_some()),
            listener,
            tls,
        })
    }

    /// Serves until the daemon stops.
    pub(crate) async fn serve(self, daemon: Arc<Daemon>, stop: CancellationToken) {
        let served = async {
            let arrivals = Arrivals::begin(self.listener, self.tls, stop.clone())?;
            let guard = Arc::new(self.guard);
            let doors = rest::router(daemon)
                // glossary: axum's word
                .layer(axum::middleware::from_fn_with_state(guard, guard::check));
            let doors = doors.into_make_service_with_connect_info::<Guest>();
            let serving = axum::serve(arrivals, doors);
            serving.with_graceful_shutdown(stop.cancelled_owned()).await
        };
        if let Err(error) = served.await {
            tracing::error!(%error, "the dashboard ended");
        }
    }
}

/// What a browser is told. An address that stands for all is told as this host's loopback.
fn url(address: SocketAddr, encrypted: bool) -> String {
    let scheme = if encrypted { "https" } else { "http" };
    let shown = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            SocketAddr::new([127, 0, 0, 1].into(), address.port())
        }
        _ => address,
    };
    format!("{scheme}://{shown}/")
}

type Stream = Either<TcpStream, TlsStream<TcpStream>>;

/// Those who have come in, their handshakes done.
struct Arrivals {
    here: SocketAddr,
    come: mpsc::Receiver<(Stream, Guest)>,
}

impl Arrivals {
    fn begin(
        listener: std::net::TcpListener,
        tls: Option<TlsAcceptor>,
        stop: CancellationToken,
    ) -> io::Result<Arrivals> {
        let listener = TcpListener::from_std(listener)?;
        let here = listener.local_addr()?;
        let (welcome, come) = mpsc::channel(1);
        tokio::spawn(async move {
            tokio::select! {
                () = receive(listener, tls, welcome) => {}
                () = stop.cancelled() => {}
            }
        });
        Ok(Arrivals { here, come })
    }
}

async fn receive(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    welcome: mpsc::Sender<(Stream, Guest)>,
) {
    let seats = Arc::new(Semaphore::new(SEATS));
    loop {
        let Ok(seat) = Arc::clone(&seats).acquire_owned().await else {
            return;
        };
        let what = "cannot accept a browser";
        let (socket, peer) = accept::next(what, |cx| listener.poll_accept(cx)).await;
        // One that is gone already has no address.
        let Ok(here) = socket.local_addr() else {
            continue;
        };
        // What is sent is whole: waiting to merge it only delays.
        let _ = socket.set_nodelay(true);
        let guest = Guest {
            peer,
            here,
            _seat: Some(Arc::new(seat)),
        };
        let welcome = welcome.clone();
        match tls.clone() {
            None => {
                if welcome.send((Either::Left(socket), guest)).await.is_err() {
                    return;
                }
            }
            Some(tls) => {
                tokio::spawn(async move {
                    // Whoever does not speak TLS, or gives up, is not told of: anybody can do that at will.
                    if let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, tls.accept(socket)).await
                    {
                        let _ = welcome.send((Either::Right(stream), guest)).await;
                    }
                });
            }
        }
    }
}

impl axum::serve::Listener for Arrivals {
    type Io = Stream;
    type Addr = Guest;

    async fn accept(&mut self) -> (Stream, Guest) {
        match self.come.recv().await {
            Some(arrival) => arrival,
            // The daemon stops: nobody comes any more, and nobody waits here for long.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Guest> {
        Ok(Guest {
            peer: self.here,
            here: self.here,
            _seat: None,
        })
    }
}

impl Connected<IncomingStream<'_, Arrivals>> for Guest {
    fn connect_info(stream: IncomingStream<'_, Arrivals>) -> Guest {
        stream.remote_addr().clone()
    }
}

/// The dashboard of a plan, if it has one. Where nobody asked for it, a host without it serves all the same.
pub(crate) fn open(plan: Option<&DashboardPlan>) -> Outcome<Option<Door>> {
    let Some(plan) = plan else {
        return Ok(None);
    };
    let tolerable = |problem: Problem| {
        if plan.any_port {
            tracing::warn!(%problem, "there is no dashboard");
            Ok(None)
        } else {
            Err(problem.within("cannot serve the dashboard"))
        }
    };
    Door::open(plan).map(Some).or_else(tolerable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_told_an_address_that_it_can_open() {
        let url = |address: &str, encrypted| super::url(address.parse().unwrap(), encrypted);
        assert_eq!(url("127.0.0.1:8433", false), "http://127.0.0.1:8433/");
        assert_eq!(url("0.0.0.0:8433", true), "https://127.0.0.1:8433/");
        assert_eq!(url("[::1]:80", false), "http://[::1]:80/");
    }

    #[test]
    fn a_port_that_nobody_asked_for_gives_way_and_one_that_was_asked_for_does_not() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut plan = DashboardPlan {
            address: taken.local_addr().unwrap(),
            any_port: true,
            token: None,
            tls: None,
        };
        let door = open(Some(&plan)).unwrap().unwrap();
        assert_ne!(door.listener.local_addr().unwrap(), plan.address);
        plan.any_port = false;
        assert!(open(Some(&plan)).is_err());
        assert!(open(None).unwrap().is_none());
    }
}
