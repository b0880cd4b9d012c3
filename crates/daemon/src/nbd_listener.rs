//! Hears NBD clients out: accepts them, negotiates which disk they want, and hands their sockets to its I/O thread.
//!
//! The protocol's words are the engine's ([`nbd::Handshake`]); here are the sockets, the clock and the limits. A
//! client behind TLS is spliced: a task carries its bytes between the TLS connection and a socket pair, whose other
//! end is negotiated with and handed over like any other.
//!
//! # Always true
//! - Not more clients are connected than [`ConnectionLimits`] has seats for, and places for those who have not chosen a
//!   disk; further ones are closed at once.
//! - A client that has not chosen a disk within [`PATIENCE`] is closed.
//! - A client has its seat or place for as long as anything of it is here, and keeps nothing here for long once its
//!   disk is done with it, or once it has vanished from the network.
//! - A byte is read from a client only when the handshake needs it: what comes after belongs to TLS or the I/O thread.

use std::convert::Infallible;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, sockopt};
use tidegate_api::disk::ClientKind;
use tidegate_api::name::Name;
use tidegate_api::problem::Problem;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::accept;
use crate::accept::unix_peer;
use crate::disks::attached::{Attached, AttachedDisks};
use crate::host::nbd::{self, Handshake, Refusal, Step, Tls};
use crate::listen::sockets::Listening;
use crate::listen::tls::refused;

mod connection_limits;
mod seats;

pub(crate) use connection_limits::ConnectionLimits;
use connection_limits::{Ticket, Way};

/// How long a client may take to choose its disk. A slow link needs a second; a person at `telnet` is not a client.
const PATIENCE: Duration = Duration::from_secs(30);

/// What cannot be done when the system refuses to.
const ACCEPT: &str = "cannot accept an NBD client";

/// Bytes that a TLS connection carries between its two ends at a time.
const SPLICE_BUFFER: usize = 256 << 10;

/// How long a TLS client may take to read its last replies and hang up, after its disk is done with it. What is on its
/// way then fits a few buffers.
const LINGER: Duration = Duration::from_secs(5);

/// A TCP client that says nothing for so long is asked whether it is still there, this often, before it counts as gone:
/// two minutes after it vanished, well before another client would miss its seat, and no traffic to speak of.
const SILENCE: Duration = Duration::from_secs(60);
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBES: u32 = 6;

/// Where clients knock, and how they are let in.
pub(crate) struct Endpoint {
    pub(crate) socket: Listening,
    pub(crate) security: EndpointSecurity,
}

/// What a endpoint asks for.
#[derive(Clone)]
pub(crate) enum EndpointSecurity {
    /// Nothing: the socket's permissions, or loopback, are enough.
    Plain,
    Tls(TlsAcceptor),
}

/// Accepts clients at a endpoint for as long as the task lives.
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
                // Answers are whole messages already; waiting to merge them only delays a guest.
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

/// Serves the client at the other end of a connected socket, in a limits of one seat, until it has left.
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
        // Answers are whole messages already.
        let _ = socket.set_nodelay(true);
        let socket = TcpStream::from_std(socket)?;
        lead(socket, peer, security, limits, ticket).await?;
    }
    limits.all_have_left().await;
    Ok(())
}

/// Has the kernel end a connection whose other end has vanished: it would hold its seat for ever.
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

/// Why a client has no disk.
pub(crate) enum Gone {
    /// It does not do what it must, and is to be told of.
    Refused(String),
    /// It hung up, or fell silent, as anything does that only looks whether a port is open.
    Left(io::Error),
}

impl From<io::Error> for Gone {
    fn from(error: io::Error) -> Gone {
        match error.kind() {
            // It broke the protocol.
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

/// Leads one client from its first byte to its disk.
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
    let (live, negotiated) = chosen;
    ticket.sit(live.name()).map_err(refused)?;
    live.serve_nbd(socket, &negotiated, kind, peer, stay)
        .map_err(refused)
}

enum End {
    Chosen((Arc<Attached>, nbd::Negotiated)),
    StartTls,
}

/// Negotiates until the client has chosen, wants TLS, or says goodbye (`None`).
async fn negotiate<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut S,
    handshake: &mut Handshake,
    disks: &AttachedDisks,
) -> io::Result<Option<End>> {
    let mut input = Vec::new();
    let mut output = Vec::new();
    let mut looked_up: Option<Arc<Attached>> = None;
    loop {
        let (used, step) = handshake.advance(&input, &mut output);
        input.drain(..used);
        let need = match step {
            Step::Lookup(name) => {
                looked_up = disks.export(&name);
                let found = looked_up.as_ref().map(|live| live.export_info());
                handshake.found(found.ok_or(Refusal::Unknown), &mut output);
                0
            }
            Step::List => {
                let names = disks.names();
                let exports = names.iter().map(|name: &Name| (name.as_str(), ""));
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

fn finish(step: Step, looked_up: Option<Arc<Attached>>, left: &[u8]) -> io::Result<Option<End>> {
    assert!(left.is_empty(), "no byte is read before it is needed");
    match step {
        Step::Finished(negotiated) => {
            let live = looked_up.filter(|live| live.is_called(&negotiated.export.name));
            // It can have gone between the client's question and its choice.
            let live = live.ok_or_else(|| io::Error::other("the disk was detached meanwhile"))?;
            Ok(Some(End::Chosen((live, negotiated))))
        }
        Step::StartTls => Ok(Some(End::StartTls)),
        Step::Violation(violation) => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            violation.to_string(),
        )),
        _ => Ok(None),
    }
}

/// Carries bytes between a private connection and the disk's end, until both have closed, or for as long as `linger` after
/// the disk's end is `done`: when its sender is dropped. The ticket is held until then.
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

/// A socket that can be given to somebody who does not know tokio.
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
