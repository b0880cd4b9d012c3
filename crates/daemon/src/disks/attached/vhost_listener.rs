//! The Unix socket of a disk, where virtual machines connect; each connection is passed to the engine.
//!
//! # Always true
//! - The socket file exists exactly while the disk is attached.
//! - Clients that are refused repeatedly do not fill the log.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_api::name::Name;
use tidegate_api::problem::Problem;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use crate::accept;
use crate::accept::unix_peer;
use crate::disks::attached::Attached;
use crate::listen::refusals::Refusals;
use crate::listen::sockets;
use crate::os_error::limits;
use crate::os_error::{self, Outcome};

/// Guests may read and write the disk: apart from the daemon, only the hypervisor's group has access.
const MODE: u32 = 0o660;

/// Delay after a refused virtual machine, so that immediate reconnects do not cause a busy loop.
const BREATH: Duration = Duration::from_millis(100);

/// A listening socket of one disk. When dropped, it stops listening and removes its file.
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

    /// Accepts guests of a disk on a socket that already listens. `path` is its file, if the daemon should remove it.
    pub(crate) fn on(
        socket: std::os::unix::net::UnixListener,
        path: Option<PathBuf>,
        live: &Arc<Attached>,
    ) -> Outcome<VhostListener> {
        let listener = UnixListener::from_std(socket)
            .map_err(|e| os_error::io("cannot listen for virtual machines", &e))?;
        let task = tokio::spawn(attend(listener, Arc::downgrade(live), Arc::default()));
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

async fn attend(listener: UnixListener, live: std::sync::Weak<Attached>, refusals: Arc<Refusals>) {
    let name = live.upgrade().map(|live| live.name().to_string());
    let what = format!(
        "cannot accept a virtual machine for disk {}",
        name.unwrap_or_default()
    );
    loop {
        let (socket, _) = accept::next(&what, |cx| listener.poll_accept(cx)).await;
        let Some(live) = live.upgrade() else { return };
        let peer = unix_peer(&socket);
        if let Err(problem) = hand_over(socket, &live, &peer, &refusals) {
            report(&refusals, live.name(), &problem);
            tokio::time::sleep(BREATH).await;
        }
    }
}

fn hand_over(
    socket: tokio::net::UnixStream,
    live: &Attached,
    peer: &str,
    refusals: &Arc<Refusals>,
) -> Outcome<()> {
    limits::must_have_room("cannot accept a virtual machine")?;
    let socket = socket.into_std().and_then(|socket| {
        // The vhost-user thread uses blocking reads.
        socket.set_nonblocking(false)?;
        Ok(socket)
    });
    let socket = socket.map_err(|e| os_error::io("cannot take a virtual machine's socket", &e))?;
    let (refusals, disk) = (Arc::clone(refusals), live.name().clone());
    live.serve_vhost(socket, peer, move |problem| {
        report(&refusals, &disk, problem);
    })
}

/// Logs that a virtual machine was refused, unless that was logged recently.
fn report(refusals: &Refusals, disk: &Name, problem: &Problem) {
    let whom = "a Unix socket";
    if let Some(left_out) = refusals.must_tell(whom, &problem.to_string(), Instant::now()) {
        let left_out = (left_out > 0).then_some(left_out);
        tracing::warn!(%disk, %problem, left_out, "a virtual machine was refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::{DiskPlan, ImagePlan, ThreadsPlan};
    use crate::host::{self, Host};
    use crate::observe::log::captured::Lines;
    use tidegate_api::problem::ProblemCode;
    use tokio::net::UnixStream;

    #[test]
    fn virtual_machines_refused_for_one_reason_are_logged_once() {
        let (refusals, lines) = (Refusals::default(), Lines::default());
        let disk = "a".parse().unwrap();
        lines.while_logging(|| {
            for _ in 0..100 {
                let taken = Problem::new(ProblemCode::Busy, "two are connected");
                report(&refusals, &disk, &taken);
            }
            let gone = Problem::new(ProblemCode::Stopping, "it is not attached any more");
            report(&refusals, &disk, &gone);
        });
        let text = lines.text();
        assert_eq!(text.matches("a virtual machine was refused").count(), 2);
        assert!(text.contains("left_out=99"), "{text}");
    }

    fn attached(host: &Host) -> Arc<Attached> {
        let size = 1 << 20;
        let plan = DiskPlan {
            name: "a".to_owned(),
            uuid: [1; 16],
            size,
            block_size: 512,
            write_back: true,
            read_only: false,
            serial: "a".to_owned(),
            queues: 1,
            seg_max: 126,
            filters: Vec::new(),
            layout: tidegate_core::layout::LayoutSpec::Plain,
            layout_options: Default::default(),
            io: tidegate_engine::IoSettings::default(),
            members: vec!["here".to_owned()],
            image: ImagePlan::Null { size },
        };
        let opened = host::open(&plan.image, false).unwrap();
        let disk = host.attach(&plan, opened, None).unwrap();
        Attached::new("a".parse().unwrap(), "d".parse().unwrap(), disk)
    }

    #[tokio::test]
    async fn who_comes_to_a_disk_that_has_its_virtual_machines_is_counted_and_logged_once() {
        let threads = ThreadsPlan::fixed(1);
        let host = Host::start(&threads).unwrap();
        let live = attached(&host);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = UnixListener::bind(&path).unwrap();
        let refusals = Arc::<Refusals>::default();
        let task = tokio::spawn(attend(socket, Arc::downgrade(&live), Arc::clone(&refusals)));
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(UnixStream::connect(&path).await.unwrap());
        }
        // Two are served, in any order.
        let deadline = Instant::now() + Duration::from_secs(10);
        while refusals.counted() != (1, 2) && Instant::now() < deadline {
            tokio::task::yield_now().await;
        }
        assert_eq!(refusals.counted(), (1, 2));
        task.abort();
        drop(clients);
        live.detach(Some(Duration::from_secs(10))).unwrap();
        host.stop();
    }
}
