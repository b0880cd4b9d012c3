//! One Unix socket for each disk, where virtual machines knock; whoever comes in is handed to the engine.
//!
//! # Always true
//! - The socket file exists exactly while the disk is attached.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::accept;
use crate::accept::unix_peer;
use crate::disks::attached::Attached;
use crate::listen::sockets;
use crate::os_error::limits;
use crate::os_error::{self, Outcome};

/// Guests may read and write the disk: their hypervisor's group is let in, nobody else.
const MODE: u32 = 0o660;

/// How long to wait after a virtual machine was turned away: not to spin when it comes back at once.
const BREATH: Duration = Duration::from_millis(100);

/// A listening socket of one disk. Dropped, it stops listening and its file is gone.
#[derive(Debug)]
pub(crate) struct VhostListener {
    path: Option<PathBuf>,
    task: JoinHandle<()>,
}

impl VhostListener {
    /// Listens at `path` for guests of a disk.
    pub(crate) fn start(path: PathBuf, live: &Arc<Attached>) -> Outcome<VhostListener> {
        let socket = sockets::listen_unix(&path, MODE)?;
        VhostListener::on(socket, Some(path), live)
    }

    /// Takes guests of a disk from a socket that listens already; `path` is its file, if it is ours to remove.
    pub(crate) fn on(
        socket: std::os::unix::net::UnixListener,
        path: Option<PathBuf>,
        live: &Arc<Attached>,
    ) -> Outcome<VhostListener> {
        let listener = UnixListener::from_std(socket)
            .map_err(|e| os_error::io("cannot listen for virtual machines", &e))?;
        let task = tokio::spawn(attend(listener, Arc::downgrade(live)));
        Ok(VhostListener { path, task })
    }
}

impl Drop for VhostListener {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(path) = &self.path
            && let Err(error) = std::fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove a socket");
        }
    }
}

async fn attend(listener: UnixListener, live: std::sync::Weak<Attached>) {
    let name = live.upgrade().map(|live| live.name().to_string());
    let what = format!(
        "cannot accept a virtual machine for disk {}",
        name.unwrap_or_default()
    );
    loop {
        let (socket, _) = accept::next(&what, |cx| listener.poll_accept(cx)).await;
        let Some(live) = live.upgrade() else { return };
        let peer = unix_peer(&socket);
        if let Err(problem) = hand_over(socket, &live, &peer) {
            tracing::warn!(disk = %live.name(), %problem, "a virtual machine was turned away");
            tokio::time::sleep(BREATH).await;
        }
    }
}

fn hand_over(socket: tokio::net::UnixStream, live: &Attached, peer: &str) -> Outcome<()> {
    limits::must_have_room("cannot let a virtual machine in")?;
    let socket = socket.into_std().and_then(|socket| {
        // The protocol's thread waits for messages as such a thread should.
        socket.set_nonblocking(false)?;
        Ok(socket)
    });
    let socket = socket.map_err(|e| os_error::io("cannot take a virtual machine's socket", &e))?;
    live.serve_vhost(socket, peer)
}
