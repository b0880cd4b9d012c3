//! A server of one disk on both front ends: `tidegate serve-one`, or a peer that shows the tests to be fair.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::place::Place;
use super::program::{PATIENCE, Service, find};
use super::transcript::Transcript;

/// The program under test.
pub(crate) const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// Whether a peer stands in for `tidegate`.
pub(crate) fn peer() -> bool {
    std::env::var_os("TIDEGATE_E2E_PEER").is_some()
}

/// What a server is to serve.
#[derive(Clone)]
pub(crate) struct Serving {
    /// An image's path, or `memory:SIZE`, `null:SIZE`, `nbd+unix:///?socket=PATH`.
    pub(crate) source: String,
    /// Refuse writes.
    pub(crate) read_only: bool,
}

impl Serving {
    /// An image, to be read and written.
    pub(crate) fn image(path: &Path) -> Serving {
        Serving {
            source: path.display().to_string(),
            read_only: false,
        }
    }
}

/// A running server.
pub(crate) struct Server {
    service: Service,
    serving: Serving,
    nbd: PathBuf,
    vhost_user: PathBuf,
}

impl Server {
    /// Starts one, and waits until its NBD socket answers.
    pub(crate) fn start(place: &Place, serving: Serving) -> Server {
        Server::start_named(place, "server", serving)
    }

    /// As [`Server::start`], with names of its own, for a place with several.
    pub(crate) fn start_named(place: &Place, name: &str, serving: Serving) -> Server {
        let nbd = place.join(&format!("{name}.nbd"));
        let vhost_user = place.join(&format!("{name}.vhost"));
        let said = Transcript::new(name);
        let service = launch(&said, &serving, &nbd, &vhost_user);
        let mut server = Server {
            service,
            serving,
            nbd,
            vhost_user,
        };
        server.wait_until_it_serves();
        server
    }

    /// Its process's number.
    pub(crate) fn id(&self) -> u32 {
        self.service.id()
    }

    /// Its NBD socket.
    pub(crate) fn nbd(&self) -> &Path {
        &self.nbd
    }

    /// Its NBD address, as clients write it.
    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.nbd.display())
    }

    /// Its vhost-user-blk socket.
    pub(crate) fn vhost_user(&self) -> &Path {
        &self.vhost_user
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) {
        self.service.kill();
    }

    /// `kill -9`, then the same command again.
    pub(crate) fn crash_and_restart(&mut self) {
        self.service.kill();
        let said = self.service.said.clone();
        self.service = launch(&said, &self.serving, &self.nbd, &self.vhost_user);
        self.wait_until_it_serves();
    }

    fn wait_until_it_serves(&mut self) {
        wait_until_it_answers(&mut self.service, &self.nbd);
    }
}

/// Waits until somebody accepts connections at a socket that `service` is to open.
pub(crate) fn wait_until_it_answers(service: &mut Service, socket: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while UnixStream::connect(socket).is_err() {
        assert!(service.alive(), "the server ended before it served");
        assert!(Instant::now() < deadline, "the server never served");
        service.said.pause(Duration::from_millis(20));
    }
}

fn launch(said: &Transcript, serving: &Serving, nbd: &Path, vhost_user: &Path) -> Service {
    let (nbd, vhost_user) = (nbd.display(), vhost_user.display());
    if !peer() {
        let mut args = vec!["serve-one".to_owned(), serving.source.clone()];
        args.extend(["--nbd".to_owned(), nbd.to_string()]);
        args.extend(["--vhost-user".to_owned(), vhost_user.to_string()]);
        if serving.read_only {
            args.push("--read-only".to_owned());
        }
        return Service::start_again(said, TIDEGATE.as_ref(), &args, &[]);
    }
    let source = match serving.source.strip_prefix("nbd+unix:///?socket=") {
        Some(socket) => format!("nbd,node-name=disk,server.type=unix,server.path={socket}"),
        None => format!(
            "file,node-name=disk,filename={},discard=unmap",
            serving.source
        ),
    };
    let writable = if serving.read_only { "off" } else { "on" };
    let args = [
        format!("--blockdev={source}"),
        format!("--nbd-server=addr.type=unix,addr.path={nbd},max-connections=0"),
        format!("--export=nbd,id=nbd,node-name=disk,name=,writable={writable}"),
        format!(
            "--export=vhost-user-blk,id=vhost,node-name=disk,addr.type=unix,addr.path={vhost_user},\
             writable={writable},num-queues=16"
        ),
    ];
    Service::start_again(said, find("qemu-storage-daemon").as_os_str(), &args, &[])
}
