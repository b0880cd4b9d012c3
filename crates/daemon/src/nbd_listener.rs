//! Hears NBD clients out: accepts them, negotiates which disk they want, and hands their sockets to its I/O thread.
//!
//! The protocol's words are the engine's ([`nbd::Handshake`]); here are the sockets, the clock and the limits. A
//! client behind TLS is spliced: a task carries its bytes between the TLS connection and a socket pair, whose other
//! end is negotiated with and handed over like any other.
//!
//! # Always true
//! - Not more clients are connected than the plan allows; further ones are closed at once.
//! - A client that has not chosen a disk within [`PATIENCE`] is closed.
//! - A byte is read from a client only when the handshake needs it: what comes after belongs to TLS or the I/O thread.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use tidegate_api::disk::ClientKind;
use tidegate_api::name::Name;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

use crate::accept;
use crate::host::nbd::{self, Handshake, Refusal, Step, Tls};
use crate::limits;
use crate::live::{Live, LiveDisks};
use crate::sockets::Listening;

/// How long a client may take to choose its disk. A slow link needs a second; a person at `telnet` is not a client.
const PATIENCE: Duration = Duration::from_secs(30);

/// What cannot be done when the system refuses to.
const ACCEPT: &str = "cannot accept an NBD client";

/// Bytes that a TLS connection carries between its two ends at a time.
const SPLICE_BUFFER: usize = 256 << 10;

/// Where clients knock, and how they are let in.
pub(crate) struct Door {
    pub(crate) socket: Listening,
    pub(crate) security: DoorSecurity,
}

/// What a door asks for.
#[derive(Clone)]
pub(crate) enum DoorSecurity {
    /// Nothing: the socket's permissions, or loopback, are enough.
    Plain,
    Tls(TlsAcceptor),
}

/// What all doors lead to.
#[derive(Clone)]
pub(crate) struct Hall {
    pub(crate) disks: Arc<LiveDisks>,
    pub(crate) seats: Arc<Semaphore>,
}

impl Hall {
    /// Before these disks, with room for so many clients.
    pub(crate) fn new(disks: Arc<LiveDisks>, seats: usize) -> Hall {
        Hall {
            disks,
            seats: Arc::new(Semaphore::new(seats.min(Semaphore::MAX_PERMITS))),
        }
    }
}

/// Accepts clients at a door for as long as the task lives.
pub(crate) async fn attend(door: Door, hall: Hall) -> io::Result<()> {
    match door.socket {
        Listening::Unix(listener) => {
            let listener = UnixListener::from_std(listener)?;
            loop {
                let (socket, _) = accept::next(ACCEPT, |cx| listener.poll_accept(cx)).await;
                let peer = unix_peer(&socket);
                welcome(Socket::Unix(socket), peer, door.security.clone(), &hall);
            }
        }
        Listening::Tcp(listener) => {
            let listener = TcpListener::from_std(listener)?;
            loop {
                let (socket, address) = accept::next(ACCEPT, |cx| listener.poll_accept(cx)).await;
                // Answers are whole messages already; waiting to merge them only delays a guest.
                let _ = socket.set_nodelay(true);
                let peer = address.to_string();
                welcome(Socket::Tcp(socket), peer, door.security.clone(), &hall);
            }
        }
    }
}

/// Who is at the other end of a Unix socket.
pub(crate) fn unix_peer(socket: &UnixStream) -> String {
    match socket.peer_cred() {
        Ok(peer) => match peer.pid() {
            Some(pid) => format!("pid {pid} uid {}", peer.uid()),
            None => format!("uid {}", peer.uid()),
        },
        Err(_) => "unknown".to_owned(),
    }
}

enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

fn welcome(socket: Socket, peer: String, security: DoorSecurity, hall: &Hall) {
    let Ok(seat) = Arc::clone(&hall.seats).try_acquire_owned() else {
        tracing::warn!(
            peer,
            "too many NBD clients: one is turned away (see nbd.max_connections)"
        );
        return;
    };
    if let Err(problem) = limits::must_have_room("cannot let an NBD client in") {
        hall.disks.count_refused();
        tracing::warn!(peer, %problem, "an NBD client is turned away");
        return;
    }
    let disks = Arc::clone(&hall.disks);
    tokio::spawn(async move {
        let led = match socket {
            Socket::Unix(socket) => lead(socket, &peer, security, &disks, seat).await,
            Socket::Tcp(socket) => lead(socket, &peer, security, &disks, seat).await,
        };
        if let Err(error) = led {
            disks.count_refused();
            tracing::debug!(peer, %error, "an NBD client left before it had a disk");
        }
    });
}

/// Leads one client from its first byte to its disk.
async fn lead<S>(
    mut socket: S,
    peer: &str,
    security: DoorSecurity,
    disks: &LiveDisks,
    seat: OwnedSemaphorePermit,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + IntoOwnedFd + Unpin + Send + 'static,
{
    let tls = match security {
        DoorSecurity::Plain => Tls::Off,
        DoorSecurity::Tls(_) => Tls::Required,
    };
    let mut handshake = Handshake::new(tls);
    let patience = tokio::time::Instant::now() + PATIENCE;
    let first = tokio::time::timeout_at(patience, negotiate(&mut socket, &mut handshake, disks));
    let (chosen, kind, socket) = match (first.await??, security) {
        (Some(End::Chosen(chosen)), _) => (Some(chosen), ClientKind::Nbd, socket.into_owned_fd()?),
        (Some(End::StartTls), DoorSecurity::Tls(acceptor)) => {
            let private = tokio::time::timeout_at(patience, acceptor.accept(socket)).await??;
            let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
            splice(private, theirs)?;
            ours.set_nonblocking(true)?;
            let mut ours = UnixStream::from_std(ours)?;
            let mut handshake = handshake.inside_tls();
            let second =
                tokio::time::timeout_at(patience, negotiate(&mut ours, &mut handshake, disks));
            match second.await?? {
                Some(End::Chosen(chosen)) => {
                    (Some(chosen), ClientKind::NbdTls, ours.into_owned_fd()?)
                }
                Some(End::StartTls) | None => return Ok(()),
            }
        }
        (Some(End::StartTls), DoorSecurity::Plain) | (None, _) => return Ok(()),
    };
    if let Some((live, negotiated)) = chosen {
        live.serve_nbd(socket, &negotiated, kind, peer, seat)
            .map_err(io::Error::other)?;
    }
    Ok(())
}

enum End {
    Chosen((Arc<Live>, nbd::Negotiated)),
    StartTls,
}

/// Negotiates until the client has chosen, wants TLS, or says goodbye (`None`).
async fn negotiate<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut S,
    handshake: &mut Handshake,
    disks: &LiveDisks,
) -> io::Result<Option<End>> {
    let mut input = Vec::new();
    let mut output = Vec::new();
    let mut looked_up: Option<Arc<Live>> = None;
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

fn finish(step: Step, looked_up: Option<Arc<Live>>, left: &[u8]) -> io::Result<Option<End>> {
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

/// Carries bytes between a private connection and the disk's end, until either closes.
fn splice<S>(mut private: S, inside: std::os::unix::net::UnixStream) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    inside.set_nonblocking(true)?;
    let mut inside = UnixStream::from_std(inside)?;
    tokio::spawn(async move {
        let ended = tokio::io::copy_bidirectional_with_sizes(
            &mut private,
            &mut inside,
            SPLICE_BUFFER,
            SPLICE_BUFFER,
        );
        if let Err(error) = ended.await {
            tracing::debug!(%error, "a TLS connection ended");
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
