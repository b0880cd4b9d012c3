//! The NBD listener: accepts clients, negotiates the disk, and passes their sockets to the disk's I/O thread.
//!
//! The engine implements the protocol ([`nbd::Handshake`]). This module has the sockets, the timeouts and the limits.
//! A TLS client is spliced: a task copies its bytes between the TLS connection and a socket pair. The other end of the
//! pair is negotiated with and passed on like a plain socket.
//!
//! # Always true
//! - The number of connected clients is limited by [`ConnectionLimits`]: its seats, and its places for clients that
//!   have not chosen a disk. Further clients are closed at once.
//! - A client that has not chosen a disk within [`PATIENCE`] is closed.
//! - A client occupies its seat or place while the daemon has any state of it. That state is freed soon after its disk
//!   has finished with it, or after it has vanished from the network.
//! - A byte is read from a client only when the handshake needs it. Later bytes belong to TLS or the I/O thread.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, sockopt};
use tidegate_api::disk::ClientKind;
use tidegate_api::problem::Problem;
use tidegate_api::snapshot::SnapshotName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::accept;
use crate::accept::unix_peer;
use crate::disks::attached::{Attached, AttachedDisks};
use crate::disks::views::{self, Views};
use crate::host::nbd::{self, ExportInfo, Handshake, Refusal, Step, Tls};
use crate::listen::sockets::Listening;
use crate::listen::tls::refused;

mod connection_limits;
mod seats;

pub(crate) use connection_limits::ConnectionLimits;
use connection_limits::{Ticket, Way};

/// How long a client may take to choose its disk. A slow link needs a second.
const PATIENCE: Duration = Duration::from_secs(30);

/// The failed action in error messages about accepting.
const ACCEPT: &str = "cannot accept an NBD client";

/// Buffer size per direction between a TLS connection and its socket pair.
const SPLICE_BUFFER: usize = 256 << 10;

/// How long a TLS client may take to read its last replies and close, after its disk has finished with it. The replies
/// still in transit then fit in a few buffers.
const LINGER: Duration = Duration::from_secs(5);

/// Keepalive for TCP clients: probes start after this time without traffic. A vanished client is closed after two
/// minutes, well before another client would lack its seat. The extra traffic is negligible.
const SILENCE: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 6;

/// A listening socket and its security.
pub(crate) struct Endpoint {
    pub(crate) socket: Listening,
    pub(crate) security: EndpointSecurity,
}

/// The security of an endpoint.
#[derive(Clone)]
pub(crate) enum EndpointSecurity {
    /// None: the socket's permissions, or loopback, are enough.
    Plain,
    Tls(TlsAcceptor),
}

/// Accepts clients at an endpoint for as long as the task lives.
pub(crate) async fn attend(endpoint: Endpoint, limits: ConnectionLimits) -> io::Result<()> {
    match endpoint.socket {
        Listening::Unix(listener) => {
            let listener = UnixListener::from_std(listener)?;
            loop {
                let (socket, _) = accept::next(ACCEPT, |cx| listener.poll_accept(cx)).await;
                let peer = unix_peer(&socket);
                let process = socket.peer_cred().ok().and_then(|peer| peer.pid());
                welcome(
                    Socket::Unix(socket),
                    Way::Unix(process),
                    peer,
                    endpoint.security.clone(),
                    &limits,
                );
            }
        }
        Listening::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (socket, address) = accept::next(ACCEPT, |cx| listener.poll_accept(cx)).await;
                // Replies are whole messages already; delaying them to merge them only slows the guest.
                let _ = socket.set_nodelay(true);
                if let Err(error) = keep_alive(&socket) {
                    tracing::debug!(%error, "an NBD client that vanishes will not be detected");
                }
                let peer = address.to_string();
                let way = Way::Tcp(address.ip());
                welcome(
                    Socket::Tcp(socket),
                    way,
                    peer,
                    endpoint.security.clone(),
                    &limits,
                );
            }
        }
    }
}

/// Serves the client at the other end of a connected socket, with limits of one seat, until it has disconnected.
pub(crate) async fn attend_one(
    socket: OwnedFd,
    security: EndpointSecurity,
    limits: &ConnectionLimits,
) -> Result<(), Gone> {
    let peer = "standard input";
    let Some(ticket) = limits.admit(Way::Unix(None), peer) else {
        return Err(Gone::Refused(
            "the system has no resources for it".to_owned(),
        ));
    };
    let address = rustix::net::getsockname(&socket).map_err(io::Error::from)?;
    if address.address_family() == AddressFamily::UNIX {
        let socket = std::os::unix::net::UnixStream::from(socket);
        socket.set_nonblocking(true)?;
        let socket = UnixStream::from_std(socket)?;
        lead(socket, peer, security, limits, ticket).await?;
    } else {
        let socket = std::net::TcpStream::from(socket);
        socket.set_nonblocking(true)?;
        // Replies are whole messages already.
        let _ = socket.set_nodelay(true);
        let socket = TcpStream::from_std(socket)?;
        lead(socket, peer, security, limits, ticket).await?;
    }
    limits.all_have_left().await;
    Ok(())
}

/// Has the kernel close a connection whose peer has vanished; otherwise it would occupy its seat for ever.
fn keep_alive(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(socket, SILENCE)?;
    sockopt::set_tcp_keepintvl(socket, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    sockopt::set_socket_keepalive(socket, true)?;
    Ok(())
}

enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

fn welcome(
    socket: Socket,
    way: Way,
    peer: String,
    security: EndpointSecurity,
    limits: &ConnectionLimits,
) {
    let Some(ticket) = limits.admit(way, &peer) else {
        return;
    };
    let limits = limits.clone();
    tokio::spawn(async move {
        let disks = &limits.disks;
        let led = match socket {
            Socket::Unix(socket) => lead(socket, &peer, security, &limits, ticket).await,
            Socket::Tcp(socket) => lead(socket, &peer, security, &limits, ticket).await,
        };
        match led {
            Ok(()) => {}
            Err(Gone::Refused(reason)) => limits.refuse(way, &peer, &reason),
            Err(Gone::Left(error)) => {
                disks.count_refused();
                tracing::debug!(peer, %error, "an NBD client left before it had a disk");
            }
        }
    });
}

/// The reason why a client has no disk.
pub(crate) enum Gone {
    /// It violated a requirement; this is logged.
    Refused(String),
    /// It disconnected or timed out, as a port scan does.
    Left(io::Error),
}

impl From<io::Error> for Gone {
    fn from(error: io::Error) -> Gone {
        match error.kind() {
            // The client broke the protocol.
            io::ErrorKind::InvalidData => Gone::Refused(error.to_string()),
            _ => Gone::Left(error),
        }
    }
}

impl From<tokio::time::error::Elapsed> for Gone {
    fn from(error: tokio::time::error::Elapsed) -> Gone {
        Gone::Left(error.into())
    }
}

/// Takes one client from its first byte to its disk.
async fn lead<S>(
    mut socket: S,
    peer: &str,
    security: EndpointSecurity,
    limits: &ConnectionLimits,
    ticket: Ticket,
) -> Result<(), Gone>
where
    S: AsyncRead + AsyncWrite + IntoOwnedFd + Unpin + Send + 'static,
{
    let tls = match security {
        EndpointSecurity::Plain => Tls::Off,
        EndpointSecurity::Tls(_) => Tls::Required,
    };
    let disks = &limits.disks;
    let mut handshake = Handshake::new(tls);
    let ticket = Arc::new(ticket);
    let patience = tokio::time::Instant::now() + PATIENCE;
    let first = tokio::time::timeout_at(patience, negotiate(&mut socket, &mut handshake, disks));
    let first = first.await;
    if handshake.requested_without_tls() && !matches!(first, Ok(Ok(Some(End::StartTls)))) {
        return Err(Gone::Refused(
            "it connected without TLS, which is required on this listener".to_owned(),
        ));
    }
    let (chosen, kind, socket, stay): (_, _, _, Box<dyn Send>) = match (first??, security) {
        (Some(End::Chosen(chosen)), _) => {
            let socket = socket.into_owned_fd()?;
            (
                chosen,
                ClientKind::Nbd,
                socket,
                Box::new(Arc::clone(&ticket)),
            )
        }
        (Some(End::StartTls), EndpointSecurity::Tls(acceptor)) => {
            let private = tokio::time::timeout_at(patience, acceptor.accept(socket)).await?;
            let private = private.map_err(|e| Gone::Refused(refused::reason(&e)))?;
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            let (served, done) = oneshot::channel();
            splice(private, theirs, Arc::clone(&ticket), done, LINGER)?;
            ours.set_nonblocking(true)?;
            let mut ours = UnixStream::from_std(ours)?;
            let mut handshake = handshake.inside_tls();
            let second =
                tokio::time::timeout_at(patience, negotiate(&mut ours, &mut handshake, disks));
            match second.await?? {
                Some(End::Chosen(chosen)) => {
                    let socket = ours.into_owned_fd()?;
                    let stay = Box::new((Arc::clone(&ticket), served));
                    (chosen, ClientKind::NbdTls, socket, stay)
                }
                Some(End::StartTls) | None => return Ok(()),
            }
        }
        (Some(End::StartTls), EndpointSecurity::Plain) | (None, _) => return Ok(()),
    };
    let refused = |problem: Problem| Gone::Refused(problem.to_string());
    let (export, negotiated) = chosen;
    match export {
        Export::Disk(live) => {
            ticket.sit(live.name()).map_err(refused)?;
            live.serve_nbd(socket, &negotiated, kind, peer, stay)
                .map_err(refused)
        }
        Export::View(views, name) => {
            ticket.sit(&name.disk).map_err(refused)?;
            // Opening it reads the pool's headers.
            let serve = move || {
                let view = views.open(&name)?;
                view.serve_nbd(socket, &negotiated, stay)
            };
            let served = tokio::task::spawn_blocking(serve).await;
            served.map_err(io::Error::other)?.map_err(refused)
        }
    }
}

/// What an NBD client can select.
enum Export {
    /// An attached disk.
    Disk(Arc<Attached>),
    /// A snapshot, as `vm1@monday`.
    View(Arc<Views>, SnapshotName),
}

impl Export {
    /// Whether an export name that was negotiated with a client is this one's.
    fn is_called(&self, name: &str) -> bool {
        match self {
            Export::Disk(live) => live.is_called(name),
            Export::View(_, view) => view.to_string() == name,
        }
    }
}

/// The export of a name, and what a client learns of it.
async fn look_up(disks: &AttachedDisks, name: &str) -> Option<(Export, ExportInfo)> {
    if let Some(live) = disks.export(name) {
        let info = live.export_info();
        return Some((Export::Disk(live), info));
    }
    let (name, views) = (views::of_export(name)?, disks.views()?);
    let describe = move || {
        let info = views.export_info(&name);
        (views, name, info)
    };
    let (views, name, info) = tokio::task::spawn_blocking(describe).await.ok()?;
    match info {
        Ok(info) => Some((Export::View(views, name), info)),
        Err(problem) => {
            tracing::debug!(%problem, export = %name, "an export cannot be described");
            None
        }
    }
}

/// The names and descriptions of all exports.
async fn listed(disks: &AttachedDisks) -> Vec<(String, String)> {
    let names = disks.names().into_iter();
    let mut exports: Vec<_> = names
        .map(|name| (name.to_string(), String::new()))
        .collect();
    let Some(views) = disks.views() else {
        return exports;
    };
    let snapshots = tokio::task::spawn_blocking(move || views.names()).await;
    for name in snapshots.unwrap_or_default() {
        let description = format!("snapshot {} of disk {}", name.snapshot, name.disk);
        exports.push((name.to_string(), description));
    }
    exports
}

enum End {
    Chosen((Export, nbd::Negotiated)),
    StartTls,
}

/// Negotiates until the client has chosen, wants TLS, or aborts (`None`).
async fn negotiate<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut S,
    handshake: &mut Handshake,
    disks: &AttachedDisks,
) -> io::Result<Option<End>> {
    let mut input = Vec::new();
    let mut output = Vec::new();
    let mut looked_up: Option<Export> = None;
    loop {
        let (used, step) = handshake.advance(&input, &mut output);
        input.drain(..used);
        let need = match step {
            Step::Lookup(name) => {
                let (export, info) = look_up(disks, &name).await.unzip();
                looked_up = export;
                handshake.found(info.ok_or(Refusal::Unknown), &mut output);
                0
            }
            Step::List => {
                let exports = listed(disks).await;
                let exports = exports.iter().map(|(name, about)| (&**name, &**about));
                handshake.listed(Ok(exports), &mut output);
                0
            }
            Step::Need(count) => count,
            step => {
                socket.write_all(&output).await?;
                return finish(step, looked_up, &input);
            }
        };
        if !output.is_empty() {
            socket.write_all(&output).await?;
            output.clear();
        }
        if input.len() < need {
            let had = input.len();
            input.resize(need, 0);
            socket.read_exact(&mut input[had..]).await?;
        }
    }
}

fn finish(step: Step, looked_up: Option<Export>, left: &[u8]) -> io::Result<Option<End>> {
    assert!(left.is_empty(), "no byte is read before it is needed");
    match step {
        Step::Finished(negotiated) => {
            let name = &negotiated.export.name;
            let export = looked_up.filter(|export| export.is_called(name));
            // The disk may have been detached between the client's request and its choice.
            let export =
                export.ok_or_else(|| io::Error::other("the disk was detached meanwhile"))?;
            Ok(Some(End::Chosen((export, negotiated))))
        }
        Step::StartTls => Ok(Some(End::StartTls)),
        Step::Violation(violation) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            violation.to_string(),
        )),
        _ => Ok(None),
    }
}

/// Copies bytes between a private connection and the disk's end until both have closed. Stops at the latest `linger`
/// after the disk's end is `done`, which is when its sender is dropped. Drops the ticket when it stops.
fn splice<S>(
    mut private: S,
    inside: std::os::unix::net::UnixStream,
    ticket: impl Send + 'static,
    done: oneshot::Receiver<Infallible>,
    linger: Duration,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    inside.set_nonblocking(true)?;
    let mut inside = UnixStream::from_std(inside)?;
    tokio::spawn(async move {
        let _ticket = ticket;
        let ended = tokio::io::copy_bidirectional_with_sizes(
            &mut private,
            &mut inside,
            SPLICE_BUFFER,
            SPLICE_BUFFER,
        );
        let overdue = async {
            let _ = done.await;
            tokio::time::sleep(linger).await;
        };
        tokio::select! {
            ended = ended => if let Err(error) = ended {
                tracing::debug!(%error, "a TLS connection ended");
            },
            () = overdue => tracing::debug!("a TLS client did not close its connection; the daemon closed it"),
        }
    });
    Ok(())
}

/// A socket that can be converted for code that does not use tokio.
trait IntoOwnedFd {
    fn into_owned_fd(self) -> io::Result<OwnedFd>;
}

impl IntoOwnedFd for UnixStream {
    fn into_owned_fd(self) -> io::Result<OwnedFd> {
        Ok(self.into_std()?.into())
    }
}

impl IntoOwnedFd for TcpStream {
    fn into_owned_fd(self) -> io::Result<OwnedFd> {
        Ok(self.into_std()?.into())
    }
}

#[cfg(test)]
mod tests;
