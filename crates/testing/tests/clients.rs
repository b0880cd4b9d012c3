//! Tests both clients with other servers: written data is read back, and corrupted data is detected.
//!
//! The tests are short and functional. `tidegate-bench` measures speed. They need qemu-storage-daemon and nbdkit.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_testing::load::{Load, Pattern, Source};
use tidegate_testing::nbd::Connection;
use tidegate_testing::peers::{self, Store};
use tidegate_testing::server::{Launch, Server};
use tidegate_testing::tally::{Edge, Until};
use tidegate_testing::vhost::{GuestDriver, Vm, VmOptions, Wait};

const SIZE: u64 = 8 << 20;

/// A scratch directory with an empty image, for a server that may run on any CPU.
struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self {
            dir: tempfile::tempdir().expect("a scratch directory"),
        };
        let image = std::fs::File::create(scene.image()).expect("an image");
        image.set_len(SIZE).expect("room for the image");
        scene
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn start(&self, mut launch: Launch) -> Server {
        launch.cpu = None;
        // The scratch directory's file system may not support O_DIRECT.
        for argument in &mut launch.arguments {
            *argument = argument
                .to_string_lossy()
                .replace(",cache.direct=on", "")
                .replace("io_uring", "threads")
                .into();
        }
        Server::start(&launch, self.dir.path()).expect("the server is installed and listens")
    }

    fn vhost_server(&self) -> Server {
        self.start(peers::storage_daemon(
            &Store::File(self.image()),
            &[self.socket()],
            0,
        ))
    }

    fn nbd_server(&self) -> Server {
        self.start(peers::nbdkit(
            &Store::File(self.image()),
            &[],
            &self.socket(),
            0,
        ))
    }

    /// Flips a bit of a written block in the image, without the server.
    fn corrupt(&self) {
        let image = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.image())
            .expect("the image");
        let mut block = [0; 4096];
        let mut offset = 0;
        while block[0] == 0 {
            image
                .read_exact_at(&mut block, offset)
                .expect("a written block before the end");
            offset += 4096;
        }
        image
            .write_all_at(&[block[100] ^ 1], offset - 4096 + 100)
            .expect("the image is writable");
    }
}

fn connect(socket: &Path, change: impl Fn(&mut VmOptions)) -> Vm {
    let mut options = VmOptions::new(socket, 16);
    change(&mut options);
    Vm::connect(options).expect("the server speaks vhost-user")
}

fn sources(vm: &Vm) -> Vec<Source> {
    let queues = u64::from(vm.options().queues);
    let share = vm.config().size / queues;
    (0..queues)
        .map(|queue| {
            Source::new(Load {
                start: queue * share,
                ..Load::verified(16, share)
            })
        })
        .collect()
}

fn sweep(driver: &mut GuestDriver, sources: &mut [Source]) -> (u64, u64) {
    sources.iter_mut().for_each(Source::start_sweep);
    let tallies = driver
        .run(sources, Until::Exhausted, &mut |_| {})
        .expect("a correct server");
    (
        tallies.iter().map(|tally| tally.completed).sum(),
        tallies.iter().map(|tally| tally.mismatched).sum(),
    )
}

/// Writes and verifies. Then corrupts the image and expects the client to detect it.
fn written_is_read_back(wait: Wait, change: impl Fn(&mut VmOptions)) {
    let scene = Scene::new();
    let server = scene.vhost_server();
    let vm = connect(&scene.socket(), change);
    assert_eq!(vm.config().size, SIZE);
    let mut sources = sources(&vm);
    let mut driver = GuestDriver::new(vec![vm], wait);
    let tallies = driver
        .run(&mut sources, Until::Count(5000), &mut |_| {})
        .expect("a correct server");
    for tally in &tallies {
        assert_eq!(
            (tally.errors, tally.mismatched),
            (0, 0),
            "{:?}",
            tally.mismatches
        );
    }
    let written: usize = sources
        .iter()
        .map(|source| source.ledger().expect("it verifies").written())
        .sum();
    assert!(written > 1000, "{written} blocks are too few for the test");
    assert_eq!(sweep(&mut driver, &mut sources), (written as u64, 0));
    scene.corrupt();
    assert_eq!(
        sweep(&mut driver, &mut sources).1,
        1,
        "one bit of one block was flipped"
    );
    drop(driver);
    server.stop().expect("it exits on SIGTERM");
}

#[test]
fn a_sleeping_guest_reads_back_what_it_wrote() {
    written_is_read_back(Wait::Sleep, |_| {});
}

#[test]
fn a_polling_guest_reads_back_what_it_wrote() {
    written_is_read_back(Wait::Poll, |options| options.indirect = false);
}

#[test]
fn a_guest_without_event_indices_reads_back_what_it_wrote() {
    written_is_read_back(Wait::Sleep, |options| options.event_idx = false);
}

#[test]
fn a_window_opens_and_closes_once() {
    let scene = Scene::new();
    let _server = scene.vhost_server();
    let vm = connect(&scene.socket(), |_| {});
    let mut sources = [Source::new(Load::random_reads(16, SIZE))];
    let mut driver = GuestDriver::new(vec![vm], Wait::Sleep);
    let (warm, span) = (Duration::from_millis(20), Duration::from_millis(50));
    let mut edges = Vec::new();
    let tallies = driver
        .run(&mut sources, Until::Time(warm, span), &mut |edge| {
            edges.push(edge)
        })
        .expect("a correct server");
    assert_eq!(edges, [Edge::Open, Edge::Close]);
    assert!(tallies[0].elapsed >= span && tallies[0].completed > 0);
    assert_eq!(tallies[0].latency.len(), tallies[0].completed);
}

#[test]
fn too_many_queues_are_rejected_with_advice() {
    let scene = Scene::new();
    let _server = scene.vhost_server();
    let options = VmOptions {
        queues: 4,
        ..VmOptions::new(&scene.socket(), 4)
    };
    let error = Vm::connect(options).expect_err("the daemon has one queue");
    assert!(
        error.to_string().contains("start the server with more"),
        "{error}"
    );
}

#[test]
fn a_guest_whose_server_dies_without_an_inflight_region_fails_at_once() {
    let scene = Scene::new();
    let mut server = Some(scene.vhost_server());
    let vm = connect(&scene.socket(), |_| {});
    let mut sources = [Source::new(Load::random_reads(16, SIZE))];
    let mut driver = GuestDriver::new(vec![vm], Wait::Sleep);
    let until = Until::Time(Duration::from_millis(5), Duration::from_secs(60));
    let error = driver
        .run(&mut sources, until, &mut |_| {
            if let Some(server) = server.take() {
                server.crash().expect("it can be killed");
            }
        })
        .expect_err("the server is gone");
    assert!(
        error.to_string().contains("closed the connection"),
        "{error:#}"
    );
}

#[test]
fn a_guest_with_reconnection_rejects_a_server_without_an_inflight_region() {
    let scene = Scene::new();
    let _server = scene.vhost_server();
    let reconnect = Some(Duration::from_secs(1));
    let options = VmOptions {
        reconnect,
        ..VmOptions::new(&scene.socket(), 4)
    };
    let error = Vm::connect(options).expect_err("qemu-storage-daemon has no in-flight region");
    assert!(error.to_string().contains("in-flight region"), "{error:#}");
}

#[test]
fn an_nbd_client_reads_back_what_it_wrote() {
    let scene = Scene::new();
    let server = scene.nbd_server();
    let mut connection =
        Connection::open(&scene.socket(), "", 32, 4096, None).expect("nbdkit speaks NBD");
    assert_eq!(
        (connection.export().size, connection.export().read_only()),
        (SIZE, false)
    );
    let mut source = Source::new(Load::verified(32, SIZE));
    let tally = connection
        .run(&mut source, Until::Count(5000), &mut |_| {})
        .expect("a correct server");
    assert_eq!(
        (tally.completed, tally.errors, tally.mismatched),
        (5000, 0, 0),
        "{:?}",
        tally.mismatches
    );

    source.start_sweep();
    let written = source.ledger().expect("it verifies").written() as u64;
    let tally = connection
        .run(&mut source, Until::Exhausted, &mut |_| {})
        .expect("a correct server");
    assert_eq!((tally.completed, tally.mismatched), (written, 0));

    scene.corrupt();
    source.start_sweep();
    let tally = connection
        .run(&mut source, Until::Exhausted, &mut |_| {})
        .expect("a correct server");
    assert_eq!(tally.mismatched, 1, "one bit of one block was flipped");
    drop(connection);
    server.stop().expect("it exits on SIGTERM");
}

#[test]
fn large_nbd_writes_and_reads_in_flight_together_do_not_deadlock() {
    let scene = Scene::new();
    let _server = scene.nbd_server();
    let block = 256 << 10;
    let mut connection =
        Connection::open(&scene.socket(), "", 16, block, None).expect("nbdkit speaks NBD");
    let load = Load {
        block,
        pattern: Pattern::Sequential,
        ..Load::verified(16, SIZE)
    };
    let tally = connection
        .run(&mut Source::new(load), Until::Count(1000), &mut |_| {})
        .expect("no deadlock");
    assert_eq!((tally.errors, tally.mismatched), (0, 0));
}

#[test]
fn an_nbd_client_reconnects_and_sends_its_requests_again() {
    let scene = Scene::new();
    let mut server = Some(scene.nbd_server());
    let timeout = Some(Duration::from_secs(20));
    let mut connection =
        Connection::open(&scene.socket(), "", 32, 4096, timeout).expect("nbdkit speaks NBD");
    let mut source = Source::new(Load::verified(32, SIZE));
    let until = Until::Time(Duration::from_millis(50), Duration::from_millis(100));
    let tally = connection
        .run(&mut source, until, &mut |edge| {
            if edge == Edge::Open {
                server
                    .take()
                    .expect("it runs")
                    .crash()
                    .expect("it can be killed");
                server = Some(scene.nbd_server());
            }
        })
        .expect("the server has returned");
    assert_eq!(
        (tally.reconnections, tally.errors, tally.mismatched),
        (1, 0, 0),
        "{:?}",
        tally.mismatches
    );
    source.start_sweep();
    let tally = connection
        .run(&mut source, Until::Exhausted, &mut |_| {})
        .expect("a correct server");
    assert_eq!(tally.mismatched, 0);
}

#[test]
fn a_missing_export_is_named_in_the_error() {
    let scene = Scene::new();
    let _server = scene.start(peers::storage_daemon_nbd(&Store::Null, &scene.socket(), 0));
    let error = Connection::open(&scene.socket(), "missing", 1, 4096, None)
        .expect_err("there is no such export");
    assert!(error.to_string().contains("'missing'"), "{error:#}");
}
