//! The fixtures of engine tests: engines, disks, clients, and an NBD server made of another engine.

use super::client::Client;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::filter::FilterSpec;
use tidegate_core::layout::LayoutSpec;
use tidegate_core::units::Span;
use tidegate_engine::datastore::{OpenedImage, dir};
use tidegate_engine::nbd::client::handshake as agreed;
use tidegate_engine::nbd::handshake::{
    BlockSizes, ExportInfo, Handshake, Negotiated, Refusal, Step, Tls,
};
use tidegate_engine::nbd::wire::Abilities;
use tidegate_engine::{Disk, DiskSpec, Engine, IoSettings, LayoutOptions, Settings};

/// Timeout for tests that must not hang: generous, for slow machines.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn engine(threads: usize) -> Engine {
    engine_of(threads, threads)
}

/// With so many threads at the start and at most.
pub(crate) fn engine_of(threads: usize, max_threads: usize) -> Engine {
    Engine::start(&Settings {
        threads,
        max_threads,
        poll: Span::ZERO,
        always_poll: false,
        cpus: Vec::new(),
        curves: true,
        monitor: tidegate_engine::monitor::Settings::NONE,
        coalesce: Coalesce::default(),
    })
    .expect("the engine starts")
}

pub(crate) fn spec(name: &str, size: u64) -> DiskSpec {
    DiskSpec {
        name: name.into(),
        size,
        block_size: 512,
        read_only: false,
        write_back: true,
        serial: name.into(),
        uuid: [7; 16],
        queues: 1,
        seg_max: 126,
        filters: Vec::new(),
        layout: LayoutSpec::Plain,
        io: IoSettings::default(),
        layout_options: LayoutOptions::default(),
        control: None,
    }
}

pub(crate) fn filters(texts: &[&str]) -> Vec<FilterSpec> {
    texts
        .iter()
        .map(|text| text.parse().expect("a filter"))
        .collect()
}

pub(crate) fn attach(engine: &Engine, opened: OpenedImage) -> Disk {
    let spec = spec("disk", opened.info.size);
    engine.attach(spec, opened).expect("the disk attaches")
}

pub(crate) fn all_abilities() -> Abilities {
    [
        Abilities::FLUSH,
        Abilities::FUA,
        Abilities::TRIM,
        Abilities::WRITE_ZEROES,
        Abilities::FAST_ZERO,
        Abilities::CACHE,
        Abilities::MULTI_CONN,
    ]
    .into_iter()
    .fold(Abilities::HAS_FLAGS, Abilities::with)
}

/// A raw connection to a disk: the client's end.
pub(crate) fn raw(disk: &Disk) -> (UnixStream, Negotiated) {
    let (ours, theirs) = UnixStream::pair().expect("a socket pair");
    (ours, raw_on(disk, theirs.into()))
}

/// A connection over a socket whose other end the test has.
pub(crate) fn raw_on(disk: &Disk, socket: OwnedFd) -> Negotiated {
    let negotiated = Negotiated {
        bitmaps: Vec::new(),
        export: ExportInfo {
            bitmaps: Vec::new(),
            name: disk.name().into(),
            description: String::new(),
            size: disk.size(),
            abilities: all_abilities(),
            block: BlockSizes::default(),
        },
        structured: true,
        context: Some(1),
    };
    disk.serve_nbd(socket, &negotiated, Vec::new())
        .expect("the disk accepts a client");
    negotiated
}

pub(crate) fn client(disk: &Disk) -> Client {
    let (stream, negotiated) = raw(disk);
    let agreed = agreed::Negotiated {
        size: disk.size(),
        abilities: negotiated.export.abilities,
        block: negotiated.export.block,
        structured: true,
        context: Some(1),
    };
    Client::new(stream, &agreed)
}

/// A sparse file of this size.
pub(crate) fn image(dir: &Path, name: &str, size: u64) -> PathBuf {
    let path = dir.join(name);
    let file = std::fs::File::create(&path).expect("a file");
    file.set_len(size).expect("a sparse file");
    path
}

pub(crate) fn tempdir() -> TempDir {
    TempDir::with_prefix("tidegate-engine-").expect("a directory")
}

pub(crate) fn open_file(path: &Path) -> OpenedImage {
    dir::open(path, dir::Options::default()).expect("the image opens")
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::yield_now();
    }
}

/// An NBD server on a Unix socket, backed by a disk. Its connections can be cut, and it can be closed and opened.
pub(crate) struct Server {
    pub(crate) path: PathBuf,
    state: Arc<Mutex<State>>,
}

struct State {
    open: bool,
    clients: Vec<UnixStream>,
}

impl Server {
    pub(crate) fn start(
        dir: &Path,
        disk: &Disk,
        abilities: Abilities,
        block: BlockSizes,
    ) -> Server {
        let path = dir.join("server.sock");
        let listener = UnixListener::bind(&path).expect("a socket");
        let state = Arc::new(Mutex::new(State {
            open: true,
            clients: Vec::new(),
        }));
        let (own, disk) = (Arc::clone(&state), disk.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                serve(stream, &disk, abilities, block, &own);
            }
        });
        Server { path, state }
    }

    /// Closes all connections; accepts none until [`Server::open`].
    pub(crate) fn close(&self) {
        let mut state = self.state.lock().expect("plain");
        state.open = false;
        for client in state.clients.drain(..) {
            let _ = client.shutdown(std::net::Shutdown::Both);
        }
    }

    pub(crate) fn open(&self) {
        self.state.lock().expect("plain").open = true;
    }

    /// Closes all connections; clients may reconnect at once.
    pub(crate) fn cut(&self) {
        self.close();
        self.open();
    }
}

/// Negotiates, then passes the client to the disk. A client that disconnects meanwhile is ignored.
fn serve(
    mut stream: UnixStream,
    disk: &Disk,
    abilities: Abilities,
    block: BlockSizes,
    state: &Mutex<State>,
) {
    if !state.lock().expect("plain").open {
        return;
    }
    let mut handshake = Handshake::new(Tls::Off);
    let mut input = Vec::new();
    loop {
        let mut out = Vec::new();
        let (used, step) = handshake.advance(&input, &mut out);
        input.drain(..used);
        if let Step::Lookup(name) = &step {
            let export = ExportInfo {
                bitmaps: Vec::new(),
                name: name.clone(),
                description: String::new(),
                size: disk.size(),
                abilities,
                block,
            };
            let export = if name == "missing" {
                Err(Refusal::Unknown)
            } else {
                Ok(export)
            };
            handshake.found(export, &mut out);
        }
        if stream.write_all(&out).is_err() {
            return;
        }
        match step {
            Step::Lookup(_) => {}
            Step::Need(_) => {
                let mut bytes = [0; 4096];
                match stream.read(&mut bytes) {
                    Ok(got) if got > 0 => input.extend_from_slice(&bytes[..got]),
                    _ => return,
                }
            }
            Step::Finished(negotiated) => {
                let mut state = state.lock().expect("plain");
                if state.open {
                    state
                        .clients
                        .push(stream.try_clone().expect("a descriptor"));
                    // A detached disk drops its clients: they see it.
                    let _ = disk.serve_nbd(stream.into(), &negotiated, input);
                }
                return;
            }
            _ => return,
        }
    }
}
