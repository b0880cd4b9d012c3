//! Accepts the next client of a socket, with retries while the system refuses to accept.
//!
//! A client that connects meanwhile stays in the socket's queue and is accepted as soon as there is room.
//!
//! # Always true
//! - A failure to accept is logged once with its remedy, and not again before a client was accepted.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::os_error;
use tokio::net::UnixStream;

/// How long to wait after the system refused to accept (for lack of descriptors, for instance), to avoid a busy loop.
const BREATH: Duration = Duration::from_millis(100);

/// Accepts the next client; `what` is the failed action in the log line.
pub(crate) async fn next<T>(
    what: &str,
    mut accept: impl FnMut(&mut Context<'_>) -> Poll<io::Result<T>>,
) -> T {
    let mut told = false;
    loop {
        match poll_fn(&mut accept).await {
            Ok(client) => return client,
            Err(error) => {
                if !told {
                    let problem = os_error::io(what, &error);
                    tracing::error!(%problem, "no new connection can be accepted for now");
                    told = true;
                }
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// The process at the other end of a Unix socket.
pub(crate) fn unix_peer(socket: &UnixStream) -> String {
    match socket.peer_cred() {
        Ok(peer) => match peer.pid() {
            Some(pid) => format!("pid {pid} uid {}", peer.uid()),
            None => format!("uid {}", peer.uid()),
        },
        Err(_) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_knocks_while_nobody_can_be_let_in_is_let_in_later() {
        let mut left = 3;
        let client = next("cannot accept a client", |_| {
            left -= 1;
            Poll::Ready(if left > 0 {
                Err(rustix::io::Errno::MFILE.into())
            } else {
                Ok("client")
            })
        });
        assert_eq!(client.await, "client");
        assert_eq!(left, 0);
    }
}
