//! Guests verify their disks over vhost-user while the engine moves these between its I/O threads.
//!
//! The guests are those of [`tidegate_testing::vhost`]: they sleep until they are called, and kick where they are asked to. So
//! a lost kick or a lost call stops the test. `TIDEGATE_MOVES` sets how often a disk moves; by hand it is 10 000.

use std::fs;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::layout::cache::CacheMode;
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::{LayoutOrder, LayoutSpec};
use tidegate_core::units::Span;
use tidegate_engine::datastore::{OpenedImage, dir, memory};
use tidegate_engine::{
    Disk, DiskSpec, Engine, Flash, IoSettings, LayoutOptions, Settings, ThreadState,
};
use tidegate_testing::load::{Kind, Load, Operation, Source};
use tidegate_testing::tally::{Tally, Until};
use tidegate_testing::vhost::{GuestDriver, Sent, Vm, VmOptions, Wait};

const SIZE: u64 = 8 << 20;
const THREADS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);

/// One test at a time: each counts the descriptors of the process.
static ALONE: Mutex<()> = Mutex::new(());

/// How often a disk moves.
fn moves() -> u32 {
    let often = std::env::var("TIDEGATE_MOVES").ok();
    often.map_or(300, |often| often.parse().expect("a number"))
}

fn engine() -> Engine {
    Engine::start(&Settings {
        threads: THREADS,
        max_threads: THREADS,
        poll: Span::from_micros(20),
        always_poll: false,
        cpus: Vec::new(),
        curves: true,
        coalesce: Coalesce::default(),
        monitor: tidegate_engine::monitor::Settings::NONE,
    })
    .expect("the engine starts")
}

fn spec(filters: &[&str]) -> DiskSpec {
    let filters = filters.iter().map(|text| text.parse().expect("a filter"));
    DiskSpec {
        name: "disk".into(),
        size: SIZE,
        block_size: 512,
        read_only: false,
        write_back: true,
        serial: String::new(),
        uuid: [7; 16],
        queues: 2,
        seg_max: 126,
        filters: filters.collect(),
        layout: LayoutSpec::Plain,
        io: IoSettings::default(),
        layout_options: LayoutOptions::default(),
        control: None,
    }
}

fn file(place: &Path, name: &str, size: u64) -> OpenedImage {
    let path = place.join(name);
    let made = fs::File::create(&path).expect("a file");
    made.set_len(size).expect("a sparse file");
    dir::open(&path, dir::Options::default()).expect("the image opens")
}

/// A flash device in memory.
fn flash() -> Flash {
    let chunk = 64 << 20;
    let chunks = 4;
    let device = memory::open(u64::from(chunks) * chunk).expect("memory");
    Flash {
        devices: vec![Some(device)],
        cache: [1; 16],
        area: Area::new(chunk, (0..chunks).collect()).expect("enough chunks"),
        attachments: [0, 1],
        has_dirty: false,
        without: 0,
        policy_state: Vec::new(),
    }
}

/// Descriptors of this process.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("a list").count()
}

fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !so() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        thread::yield_now();
    }
}

/// Ends what others do until it is set, also after a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Numbers that look random, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("below a usize")
    }
}

/// Moves a disk until its guests are to end; prints the pauses.
fn move_at_random(disk: &Disk, seed: u64) {
    let mut random = Random(seed);
    let mut pauses = Vec::new();
    for _ in 0..moves() {
        let (from, to) = (disk.thread(), random.below(THREADS));
        let moved = disk.move_to(to).expect("it moves");
        assert_eq!((moved.from, moved.to), (from, to));
        pauses.extend((from != to).then_some(moved.pause));
    }
    pauses.sort_unstable();
    let at = |part: usize| pauses[(pauses.len() - 1) * part / 1000];
    println!(
        "{} moves; pause 50 %: {:?}, 99 %: {:?}, longest: {:?}",
        pauses.len(),
        at(500),
        at(990),
        at(1000)
    );
}

fn assert_sound(tallies: &[Tally]) {
    for tally in tallies {
        assert_eq!((tally.errors, tally.mismatched), (0, 0), "{tally:?}");
    }
}

fn sources() -> Vec<Source> {
    let half = SIZE / 2;
    let queues = [0, half].map(|start| {
        Source::new(Load {
            start,
            ..Load::verified(16, half)
        })
    });
    queues.into()
}

/// Nothing of a disk is left: each thread parks once it is removed.
fn nothing_is_left(engine: &Engine) {
    eventually("nothing of a disk is left", || {
        let reports = engine.threads().expect("they answer");
        reports.iter().all(|report| {
            let counts = [report.queues, report.connections, report.in_flight];
            report.disks.is_empty() && counts == [0; 3] && report.strays == 0
        })
    });
    for thread in 1..THREADS {
        engine.lock_thread(thread).expect("the first is active");
        engine.remove_thread(thread).expect("it has no disks");
    }
    eventually("nothing is on their rings", || {
        engine.thread_states()[1..] == [ThreadState::Parked; THREADS - 1]
    });
}

/// A guest of two queues verifies the disk that `attach` makes, until it has moved often enough.
fn guest_verifies(attach: impl FnOnce(&Engine, &TempDir) -> Disk) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().expect("a directory");
    let before = descriptors();
    let engine = engine();
    let disk = attach(&engine, &place);
    let socket = place.path().join("socket");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (stream, _) = listener.accept().expect("a front end");
            disk.serve_vhost(stream).expect("it is served");
        });
        scope.spawn(|| {
            let vm = Vm::connect(VmOptions {
                queues: 2,
                ..VmOptions::new(&socket, 16)
            });
            let vm = vm.expect("it is served");
            let mut driver = GuestDriver::new(vec![vm], Wait::Sleep);
            let mut sources = sources();
            let mut completed = 0;
            while !over.load(Ordering::Relaxed) {
                let ran = driver.run(&mut sources, Until::Count(1000), &mut |_| {});
                let tallies = ran.expect("a correct server");
                assert_sound(&tallies);
                completed += tallies.iter().map(|tally| tally.completed).sum::<u64>();
            }
            assert!(completed >= 1000, "{completed}");
            sources.iter_mut().for_each(Source::start_sweep);
            let swept = driver.run(&mut sources, Until::Exhausted, &mut |_| {});
            assert_sound(&swept.expect("a correct server"));
        });
        let _end = End(&over);
        move_at_random(&disk, 7);
    });
    disk.detach(PATIENCE).expect("the disk is detached");
    nothing_is_left(&engine);
    drop(disk);
    engine.stop();
    drop(listener);
    eventually("all descriptors are closed", || descriptors() <= before);
}

#[test]
fn a_guest_verifies_a_disk_in_memory_that_moves() {
    guest_verifies(|engine, _| {
        let opened = memory::open(SIZE).expect("memory");
        engine.attach(spec(&[]), opened).expect("it attaches")
    });
}

#[test]
fn a_guest_verifies_a_disk_in_a_file_with_filters_that_moves() {
    guest_verifies(|engine, place| {
        let filters = ["stats", "fault:delay=50us,probability=0.5"];
        let opened = file(place.path(), "image", SIZE);
        engine.attach(spec(&filters), opened).expect("it attaches")
    });
}

#[test]
fn a_guest_verifies_a_mirrored_disk_that_moves() {
    guest_verifies(|engine, place| {
        let size = LayoutSpec::Mirror.member_size(SIZE, 2);
        let members = ["first", "second"].map(|name| Some(file(place.path(), name, size)));
        let spec = DiskSpec {
            layout: LayoutSpec::Mirror,
            ..spec(&["stats"])
        };
        let attached = engine.attach_members(spec, members.into(), PATIENCE);
        attached.expect("it attaches")
    });
}

#[test]
fn a_guest_verifies_a_disk_with_a_write_back_cache_that_moves() {
    guest_verifies(|engine, place| {
        let members = vec![Some(file(place.path(), "image", SIZE))];
        let attached = engine.attach_cached(spec(&[]), members, flash(), PATIENCE);
        let disk = attached.expect("it attaches");
        let order = LayoutOrder::CacheMode(CacheMode::WriteBack);
        disk.order_layout(order).expect("the mode changes");
        disk
    });
}

/// Front ends vanish with requests in flight, in every step of a move. Each successor has the same memory and rings, so that
/// every request must be completed, once.
#[test]
fn front_ends_that_vanish_while_their_disk_moves_lose_no_request() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().expect("a directory");
    let before = descriptors();
    let engine = engine();
    let opened = memory::open(SIZE).expect("memory");
    let filters = ["fault:delay=300us,probability=0.5"];
    let disk = engine.attach(spec(&filters), opened).expect("it attaches");
    let socket = place.path().join("socket");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let (over, served) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        scope.spawn(|| {
            for stream in listener.incoming() {
                let stream = stream.expect("a front end");
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let copy = stream.try_clone().expect("a descriptor");
                served.lock().expect("plain").push(copy);
                let disk = &disk;
                // A third one is refused, and comes again.
                scope.spawn(move || drop(disk.serve_vhost(stream)));
            }
        });
        scope.spawn(|| {
            let mut random = Random(5);
            while !over.load(Ordering::Relaxed) {
                disk.move_to(random.below(THREADS)).expect("it moves");
            }
        });
        let ends = End(&over);
        let vm = Vm::connect(VmOptions {
            queues: 2,
            reconnect: Some(PATIENCE),
            ..VmOptions::new(&socket, 16)
        });
        let mut vm = vm.expect("it is served");
        for round in 0..moves() / 5 {
            verify_while(&mut vm, round, || {
                for stream in served.lock().expect("plain").drain(..) {
                    // It may be gone already.
                    let _ = stream.shutdown(Shutdown::Both);
                }
            });
        }
        drop(vm);
        drop(ends);
        UnixStream::connect(&socket).expect("the listener ends");
    });
    drop(served);
    disk.detach(PATIENCE).expect("the disk is detached");
    nothing_is_left(&engine);
    drop(disk);
    engine.stop();
    drop(listener);
    eventually("all descriptors are closed", || descriptors() <= before);
}

/// Writes blocks and reads them back, and does something else while they are in flight.
fn verify_while(vm: &mut Vm, round: u32, meanwhile: impl Fn()) {
    let byte = |block: u64| u8::try_from((u64::from(round) + block) % 251).expect("a byte");
    for kind in [Kind::Write, Kind::Read] {
        let requests = (0..32_u64).map(|block| Sent {
            queue: usize::from(block % 2 == 1),
            operation: Operation {
                kind,
                offset: block * 4096,
                length: 4096,
                sequence: 0,
            },
            bytes: vec![byte(block); 4096],
            status: 0xff,
        });
        let mut requests: Vec<Sent> = requests.collect();
        if kind == Kind::Read {
            requests.iter_mut().for_each(|sent| sent.bytes.clear());
        }
        let exchanged = vm.exchange(&mut requests, &meanwhile);
        exchanged.expect("each request is completed once");
        for (block, sent) in (0..).zip(&requests) {
            assert_eq!(sent.status, 0, "block {block} in round {round}");
            assert!(
                sent.bytes == vec![byte(block); 4096],
                "block {block} in round {round}"
            );
        }
    }
}
