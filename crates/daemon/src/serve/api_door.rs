//! Where orders come in: the REST interface's Unix socket, for so many connections at a time and no more.
//!
//! Each connection has buffers, and a stream of samples has a picture of all disks: a program that opens them in a loop
//! must not take the daemon's memory or its descriptors. The socket's permissions say who may connect at all.
//!
//! # Always true
//! - at most [`CONNECTIONS`] are served; a further one is closed at once, and that is logged once until one is served

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::accept;

/// Programs of an administrator that ask at the same moment, with room: a scraper, a few who watch, scripts.
pub(super) const CONNECTIONS: usize = 256;

/// See the module.
pub(super) struct ApiDoor {
    listener: UnixListener,
    seats: Arc<Semaphore>,
    told: bool,
}

/// A connection, which has its seat until it ends.
pub(super) struct Seated {
    socket: UnixStream,
    _seat: OwnedSemaphorePermit,
}

impl ApiDoor {
    pub(super) fn new(listener: UnixListener, seats: usize) -> ApiDoor {
        ApiDoor {
            listener,
            seats: Arc::new(Semaphore::new(seats)),
            told: false,
        }
    }
}

impl axum::serve::Listener for ApiDoor {
    type Io = Seated;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Seated, SocketAddr) {
        loop {
            let next = accept::next("cannot take an order", |cx| self.listener.poll_accept(cx));
            let (socket, address) = next.await;
            if let Ok(_seat) = Arc::clone(&self.seats).try_acquire_owned() {
                self.told = false;
                return (Seated { socket, _seat }, address);
            }
            if !std::mem::replace(&mut self.told, true) {
                tracing::warn!(
                    "a connection to the REST interface is closed: {CONNECTIONS} are open; close some, or look for a \
                     program that opens them and does not end"
                );
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl AsyncRead for Seated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Seated {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(cx, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::serve::Listener as _;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn a_connection_too_many_is_closed_and_there_is_room_again_when_one_ends() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("socket");
        let mut door = ApiDoor::new(UnixListener::bind(&path).unwrap(), 1);
        let connect = || UnixStream::connect(&path);
        let _first = connect().await.unwrap();
        let (seated, _) = door.accept().await;
        let mut too_many = connect().await.unwrap();
        let closed = async { too_many.read(&mut [0]).await };
        tokio::select! {
            _ = door.accept() => panic!("there is one seat"),
            read = closed => assert_eq!(read.unwrap_or(0), 0),
        }
        drop(seated);
        let mut next = connect().await.unwrap();
        let (mut seated, _) = door.accept().await;
        seated.write_all(b"here").await.unwrap();
        let mut heard = [0; 4];
        next.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"here");
    }
}
