//! The dashboard's TCP listener, with optional TLS, which serves the REST interface behind the guard.
//!
//! A client is identified only after a whole request was read. Silent or slow clients must not block others, and no
//! client may take all seats.
//!
//! # Always true
//! - At most [`SEATS`] connections are open; further ones wait in the socket's queue. At most [`PARTY_SEATS`] belong
//!   to one user of this host or to one other host; further ones are closed.
//! - A client has [`PATIENCE`] for each of: a TLS handshake, a request's head (including the next one on the same
//!   connection), and its body. Then it is disconnected.
//! - A client that does not read its responses, or has vanished, is disconnected after [`SILENCE`].

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tidegate_api::problem::Problem;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::guard::{self, ClientAddress, Guard, PATIENCE};
use super::peer_uid::owner;
use crate::accept;
use crate::config::plan::DashboardPlan;
use crate::daemon::Daemon;
use crate::listen::refusals::Refusals;
use crate::listen::sockets;
use crate::listen::tls;
use crate::listen::tls::expiry::Validity;
use crate::listen::tls::refused;
use crate::os_error::{self, Outcome};
use crate::rest;

/// Connections at a time: a browser opens six, and few people view one host.
const SEATS: usize = 128;

/// Connections of one party at a time: five browsers, or the open pages of some thirty people behind one proxy.
const PARTY_SEATS: usize = 32;

/// How long sent data may remain unacknowledged by the peer. Pages reconnect by themselves.
const SILENCE: Duration = Duration::from_secs(30);

/// The credentials and certificates of a listener, read from the files that the plan names.
pub(crate) struct Access {
    token: Option<Vec<u8>>,
    metrics: Option<Vec<u8>>,
    tls: Option<tls::Server>,
}

impl Access {
    /// Reads the files that a plan names.
    pub(crate) fn of(plan: &DashboardPlan) -> Outcome<Access> {
        let read = || {
            Ok(Access {
                token: plan.token.as_deref().map(guard::read_token).transpose()?,
                metrics: plan
                    .metrics_token
                    .as_deref()
                    .map(guard::read_token)
                    .transpose()?,
                tls: plan.tls.as_ref().map(tls::server).transpose()?,
            })
        };
        read().map_err(|problem: Problem| problem.within("cannot serve the dashboard"))
    }
}

/// A listening address with everything needed to serve it.
pub(crate) struct Listener {
    listener: std::net::TcpListener,
    tls: Option<tls::Server>,
    guard: Guard,
    /// The URL for browsers.
    pub(crate) url: String,
}

impl Listener {
    /// Opens the planned listener.
    pub(crate) fn open(plan: &DashboardPlan, access: Access) -> Outcome<Listener> {
        let Access {
            token,
            metrics,
            tls,
        } = access;
        let (listener, held) = match sockets::listen_tcp(plan.address) {
            Err(problem) if plan.any_port => {
                let other = SocketAddr::new(plan.address.ip(), 0);
                (sockets::listen_tcp(other)?, Some(problem))
            }
            listener => (listener?, None),
        };
        let address = listener
            .local_addr()
            .map_err(|e| os_error::io("cannot listen for the dashboard", &e))?;
        if let Some(problem) = held {
            let url = url(address, tls.is_some());
            tracing::warn!(%problem, "the dashboard's usual port is in use; until this daemon ends it is at {url}");
        }
        Ok(Listener {
            url: url(address, tls.is_some()),
            guard: Guard::new(token, tls.is_some()).with_metrics_token(metrics),
            listener,
            tls,
        })
    }

    /// Its certificate, and the URL where it is presented.
    pub(crate) fn certificate(&self) -> Option<(&str, &Validity)> {
        Some((&self.url, &self.tls.as_ref()?.validity))
    }

    /// Serves until the daemon stops.
    pub(crate) async fn serve(self, daemon: Arc<Daemon>) {
        let guard = Arc::new(self.guard);
        let stop = daemon.services.stop().clone();
        let routes = rest::router(daemon)
            // glossary: axum's word
            .layer(axum::middleware::from_fn_with_state(guard, guard::check));
        let tls = self.tls.map(|server| server.acceptor);
        let limits = ConnectionLimits::new(routes, tls, PATIENCE, stop);
        match TcpListener::from_std(self.listener) {
            Ok(listener) => receive(listener, Arc::new(limits)).await,
            Err(error) => tracing::error!(%error, "the dashboard ended"),
        }
    }
}

/// The URL for browsers. A wildcard address is shown as this host's loopback address.
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

/// The state that all connections share.
struct ConnectionLimits {
    routes: TowerToHyperService<Router>,
    tls: Option<TlsAcceptor>,
    parties: Parties,
    refusals: Refusals,
    patience: Duration,
    stop: CancellationToken,
}

/// Accepts clients until the daemon stops.
async fn receive(listener: TcpListener, limits: Arc<ConnectionLimits>) {
    let seats = Arc::new(Semaphore::new(SEATS));
    let stop = limits.stop.clone();
    let receiving = async {
        // The semaphore is never closed, so this waits until a seat is free.
        while let Ok(seat) = Arc::clone(&seats).acquire_owned().await {
            let what = "cannot accept a browser";
            let (socket, peer) = accept::next(what, |cx| listener.poll_accept(cx)).await;
            let limits = Arc::clone(&limits);
            tokio::spawn(async move {
                limits.attend(socket, peer).await;
                drop(seat);
            });
        }
    };
    tokio::select! {
        () = receiving => {}
        () = stop.cancelled() => {}
    }
}

impl ConnectionLimits {
    fn new(
        routes: Router,
        tls: Option<TlsAcceptor>,
        patience: Duration,
        stop: CancellationToken,
    ) -> ConnectionLimits {
        ConnectionLimits {
            routes: TowerToHyperService::new(routes),
            tls,
            parties: Parties::default(),
            refusals: Refusals::default(),
            patience,
            stop,
        }
    }

    /// Serves one accepted client.
    async fn attend(&self, socket: TcpStream, peer: SocketAddr) {
        // A connection that is closed already has no address.
        let Ok(here) = socket.local_addr() else {
            return;
        };
        let client = ClientAddress { peer, here };
        let Some(_place) = self.parties.admit(Party::of(client).await) else {
            tracing::debug!(%peer, "a client has too many connections to the dashboard");
            return;
        };
        // Data is sent in whole messages; delaying it to merge packets only adds latency.
        let _ = socket.set_nodelay(true);
        sockets::notice_silence(&socket, SILENCE);
        let Some(tls) = &self.tls else {
            return self.talk(socket, client).await;
        };
        match tokio::time::timeout(self.patience, tls.accept(socket)).await {
            Ok(Ok(stream)) => self.talk(stream, client).await,
            Ok(Err(error)) => self.refuse(peer, &refused::reason(&error)),
            // A timeout is not logged: any client can cause one at will.
            Err(_) => {}
        }
    }

    /// Logs a refused client and the reason, once.
    fn refuse(&self, peer: SocketAddr, reason: &str) {
        let whom = peer.ip().to_canonical().to_string();
        if let Some(left_out) = self.refusals.must_tell(&whom, reason, Instant::now()) {
            let left_out = (left_out > 0).then_some(left_out);
            tracing::warn!(%peer, reason, left_out, "a browser is refused");
        }
    }

    /// Serves until the peer closes, times out, or the daemon stops.
    async fn talk(&self, stream: impl AsyncRead + AsyncWrite + Unpin, client: ClientAddress) {
        let answer = service_fn(|mut request: hyper::Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(client));
            self.routes.call(request)
        });
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.patience);
        let mut talk = pin!(http.serve_connection(TokioIo::new(stream), answer));
        // The peer's way of closing does not matter.
        tokio::select! {
            _ = talk.as_mut() => {}
            () = self.stop.cancelled() => {
                talk.as_mut().graceful_shutdown();
                let _ = talk.await;
            }
        }
    }
}

/// The unit by which connections are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    /// A user of this host. Clients that closed before the user was determined count as one.
    User(Option<u32>),
    /// Another host. For IPv6 it is the network, because one host has all its addresses.
    Host(IpAddr),
}

impl Party {
    async fn of(client: ClientAddress) -> Party {
        let ClientAddress { peer, here } = client;
        let from = peer.ip().to_canonical();
        if from.is_loopback() || here.ip().to_canonical().is_loopback() {
            let owner = os_error::blocking(move || Ok(owner(peer, here))).await;
            return Party::User(owner.ok().flatten());
        }
        Party::Host(match from {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
            v4 => v4,
        })
    }
}

/// The free seats of each party.
#[derive(Default)]
struct Parties(Mutex<BTreeMap<Party, Arc<Semaphore>>>);

impl Parties {
    /// Takes a seat, if the party has one left. The permit releases it when dropped.
    fn admit(&self, party: Party) -> Option<OwnedSemaphorePermit> {
        // No panic leaves it half changed.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Parties without a connection are removed.
        all.retain(|_, seats| seats.available_permits() < PARTY_SEATS);
        let seats = all
            .entry(party)
            .or_insert_with(|| Arc::new(Semaphore::new(PARTY_SEATS)));
        Arc::clone(seats).try_acquire_owned().ok()
    }
}

/// Opens the planned dashboard. If the configuration does not mention it, a failure is only logged.
pub(crate) fn open(plan: &DashboardPlan, access: Outcome<Access>) -> Outcome<Option<Listener>> {
    let tolerable = |problem: Problem| {
        if !plan.asked {
            tracing::warn!(%problem, "the dashboard is off");
            Ok(None)
        } else {
            Err(problem.within("cannot serve the dashboard"))
        }
    };
    let opened = access.and_then(|access| Listener::open(plan, access));
    opened.map(Some).or_else(tolerable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::log::captured::Lines;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

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
            asked: false,
            token: None,
            metrics_token: None,
            tls: None,
        };
        let lines = Lines::default();
        let door = lines.while_logging(|| open(&plan, Access::of(&plan)).unwrap().unwrap());
        assert_ne!(door.listener.local_addr().unwrap(), plan.address);
        let log = lines.text();
        let taken = plan.address.to_string();
        assert!(log.contains("WARN") && log.contains(&taken), "{log}");
        assert!(log.contains(&door.url) && log.contains("ss -ltnp"), "{log}");
        (plan.any_port, plan.asked) = (false, true);
        assert!(open(&plan, Access::of(&plan)).is_err());
    }

    /// A listener with these limits that answers; returns its address.
    async fn limits(patience: Duration) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new().route("/", axum::routing::get(async || "here"));
        let limits = ConnectionLimits::new(routes, None, patience, CancellationToken::new());
        tokio::spawn(receive(listener, Arc::new(limits)));
        address
    }

    /// Sends this and nothing more; returns all that is received until the connection is closed.
    async fn hears(address: SocketAddr, says: &str) -> String {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(says.as_bytes()).await.unwrap();
        let mut heard = Vec::new();
        let reading = client.read_to_end(&mut heard);
        let read = tokio::time::timeout(PATIENCE, reading).await;
        read.expect("it was not let go").unwrap();
        String::from_utf8(heard).unwrap()
    }

    #[tokio::test]
    async fn who_does_not_say_a_whole_request_is_let_go() {
        let address = limits(Duration::from_millis(200)).await;
        assert_eq!(hears(address, "").await, "");
        assert_eq!(hears(address, "GET / HTTP/1.1\r\nHost: h\r\n").await, "");
        let heard = hears(address, "GET / HTTP/1.1\r\nHost: h\r\n\r\n").await;
        assert!(heard.ends_with("here"), "{heard}");
    }

    #[tokio::test]
    async fn nobody_takes_more_than_a_partys_seats() {
        let address = limits(PATIENCE * 6).await;
        let mut here = Vec::new();
        for _ in 0..PARTY_SEATS {
            let mut client = TcpStream::connect(address).await.unwrap();
            client
                .write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
                .await
                .unwrap();
            assert!(client.read(&mut [0; 512]).await.unwrap() > 0);
            here.push(client);
        }
        assert_eq!(hears(address, "").await, "", "closed at once");
    }

    #[test]
    fn each_party_has_its_seats_and_has_them_again() {
        let parties = Parties::default();
        let [one, another] = [Some(1000), Some(1001)].map(Party::User);
        let mut here: Vec<_> = (0..PARTY_SEATS).map(|_| parties.admit(one)).collect();
        assert!(here.iter().all(Option::is_some));
        assert!(parties.admit(one).is_none());
        assert!(parties.admit(another).is_some());
        here.pop();
        assert!(parties.admit(one).is_some());
    }

    #[tokio::test]
    async fn a_user_of_this_host_is_a_party_and_so_is_another_host() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let client = std::net::TcpStream::connect(here).unwrap();
        let peer = client.local_addr().unwrap();
        let us = rustix::process::geteuid().as_raw();
        assert_eq!(
            Party::of(ClientAddress { peer, here }).await,
            Party::User(Some(us))
        );
        let host = async |peer: &str, here: &str| {
            let [peer, here] = [peer, here].map(|end| end.parse().unwrap());
            Party::of(ClientAddress { peer, here }).await
        };
        let of = |ip: &str| Party::Host(ip.parse().unwrap());
        assert_eq!(host("192.0.2.1:5", "192.0.2.2:8433").await, of("192.0.2.1"));
        let network = host("[2001:db8:0:1:2:3:4:5]:6", "[2001:db8::1]:8433").await;
        assert_eq!(network, of("2001:db8:0:1::"));
    }
}
