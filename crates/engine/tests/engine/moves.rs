//! Disks that move between I/O threads while clients verify what they read.
//!
//! `TIDEGATE_MOVES` sets how often each moves; by hand it is 10 000.

use super::client::{Client, Random, Verifier};
use super::rig::{
    PATIENCE, Server, all_abilities, attach, client, eventually, filters, image, open_file, spec,
    tempdir,
};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::Duration;
use tidegate_core::layout::LayoutSpec;
use tidegate_core::request::{Flags, Op};
use tidegate_engine::datastore::{OpenedImage, dir, emulated, memory, nbd};
use tidegate_engine::nbd::handshake::BlockSizes;
use tidegate_engine::nbd::wire::Abilities;
use tidegate_engine::{Disk, DiskSpec, Engine, Kind, LayoutOptions, ThreadState};

mod changes;

const SIZE: u64 = 6 << 20;

/// The image of a disk of another engine, which a server exports.
fn over_nbd(place: &Path, served: &Disk, abilities: Abilities) -> (Server, OpenedImage) {
    let server = Server::start(place, served, abilities, BlockSizes::default());
    let uri = format!("nbd+unix:///disk?socket={}", server.path.display());
    let opened = nbd::open(&uri, &nbd::Options::default()).expect("it opens");
    (server, opened)
}

/// How often a disk moves.
pub(crate) fn moves() -> u32 {
    let often = std::env::var("TIDEGATE_MOVES").ok();
    often.map_or(400, |often| often.parse().expect("a number"))
}

fn engine(threads: usize) -> Engine {
    super::rig::engine(threads)
}

/// Two clients write each one half of a disk and check what they read, until it is `over`.
fn begin_to_verify<'a>(scope: &'a Scope<'a, '_>, disk: &Disk, over: &'a AtomicBool) {
    let half = disk.size() / 2;
    for (from, unit, seed) in [(0, 512, 3), (half, 1, 4)] {
        let client = client(disk);
        scope.spawn(move || {
            let mut verifier = Verifier::new(client, from, from + half, unit, seed);
            while !over.load(Ordering::Relaxed) {
                verifier.round();
            }
            verifier.client.flush().expect("a flush");
            verifier.check_all();
        });
    }
}

/// Moves a disk at random while two clients verify it.
pub(crate) fn moved_under_load(engine: &Engine, disk: &Disk, moves: u32) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let end = End(&over);
        begin_to_verify(scope, disk, &over);
        let mut random = Random(7);
        let threads = engine.thread_states().len() as u64;
        let mut pauses = Vec::new();
        for _ in 0..moves {
            let to = usize::try_from(random.below(threads)).expect("few");
            let from = disk.thread();
            let moved = disk.move_to(to).expect("it moves");
            assert_eq!((moved.from, moved.to, disk.thread()), (from, to, to));
            pauses.extend((from != to).then_some(moved.pause));
        }
        drop(end);
        pauses.sort_unstable();
        let at = |part: usize| pauses[(pauses.len() - 1) * part / 1000];
        // Shown with `--nocapture`: it depends on the machine.
        println!(
            "{} moves; pause 50 %: {:?}, 99 %: {:?}, longest: {:?}",
            pauses.len(),
            at(500),
            at(990),
            at(1000)
        );
    });
}

/// Ends the clients, also after a panic.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Everything of disks is gone: buffers, connections and I/Os are those of none.
pub(crate) fn nothing_is_left(engine: &Engine) {
    eventually("nothing of a disk is left", || {
        let reports = engine.threads().expect("they answer");
        let empty = |report: &tidegate_engine::ThreadReport| {
            report.disks.is_empty()
                && report.connections == 0
                && report.in_flight == 0
                && report.strays == 0
        };
        reports.iter().all(empty)
    });
}

fn plain_disk_is_verified(opened: OpenedImage, filter: &[&str]) {
    let engine = engine(3);
    let spec = DiskSpec {
        filters: filters(filter),
        ..spec("disk", opened.info.size)
    };
    let disk = engine.attach(spec, opened).expect("the disk attaches");
    moved_under_load(&engine, &disk, moves());
    disk.detach(PATIENCE).expect("the disk is detached");
    nothing_is_left(&engine);
}

#[test]
fn a_disk_in_a_file_moves_under_load_with_filters() {
    let place = tempdir();
    let path = image(place.path(), "image", SIZE);
    plain_disk_is_verified(
        open_file(&path),
        &["stats", "fault:delay=50us,probability=0.5"],
    );
}

#[test]
fn a_disk_in_a_file_with_the_page_cache_moves_under_load() {
    let place = tempdir();
    let path = image(place.path(), "image", SIZE);
    let options = dir::Options {
        buffered: true,
        ..dir::Options::default()
    };
    plain_disk_is_verified(dir::open(&path, options).expect("it opens"), &[]);
}

#[test]
fn disks_in_memory_and_on_a_modelled_array_move_under_load() {
    plain_disk_is_verified(memory::open(SIZE).expect("it opens"), &["stats"]);
    let array: emulated::Spec = "nvme,size=6M".parse().expect("a spec");
    plain_disk_is_verified(emulated::open(&array).expect("it opens"), &[]);
}

#[test]
fn a_disk_on_an_nbd_server_moves_under_load_and_so_does_the_servers() {
    let place = tempdir();
    let (engine, elsewhere) = (engine(2), engine(2));
    let served = attach(&elsewhere, memory::open(SIZE).expect("it opens"));
    let (_server, opened) = over_nbd(place.path(), &served, all_abilities());
    let disk = attach(&engine, opened);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&over);
        scope.spawn(|| {
            let mut to = 0;
            while !over.load(Ordering::Relaxed) {
                to = 1 - to;
                served.move_to(to).expect("it moves");
            }
        });
        moved_under_load(&engine, &disk, moves());
    });
    disk.detach(PATIENCE).expect("the disk is detached");
    nothing_is_left(&engine);
}

#[test]
fn disks_with_layouts_move_under_load() {
    const STRIPE: LayoutSpec = LayoutSpec::Stripe { chunk: 16 << 10 };
    const BOTH: LayoutSpec = LayoutSpec::MirrorStripe { chunk: 16 << 10 };
    let place = tempdir();
    for (layout, members) in [(STRIPE, 3), (LayoutSpec::Mirror, 2), (BOTH, 4)] {
        let engine = engine(3);
        let size = layout.member_size(SIZE, members);
        let opened = (0..members).map(|nth| {
            let name = format!("{layout}-{nth}").replace(|c: char| !c.is_alphanumeric(), "-");
            Some(open_file(&image(place.path(), &name, size)))
        });
        let spec = DiskSpec {
            layout,
            filters: filters(&["stats"]),
            ..spec("disk", SIZE)
        };
        let disk = engine.attach_members(spec, opened.collect(), PATIENCE);
        let disk = disk.expect("the disk attaches");
        moved_under_load(&engine, &disk, moves());
        disk.detach(PATIENCE).expect("the disk is detached");
        nothing_is_left(&engine);
    }
}

/// A datastore that never answers delays no move: 64 requests wait for it, and go where the disk goes.
#[test]
fn a_disk_whose_datastore_hangs_moves_with_its_requests() {
    let engine = engine(2);
    let disk = attach(&engine, memory::open(SIZE).expect("it opens"));
    disk.restack(&filters(&["fault:delay=3600s"]), PATIENCE)
        .expect("a filter");
    let mut waiting = client(&disk);
    let sent: Vec<u64> = (0..64)
        .map(|nth| waiting.send(Op::Read, Flags::NONE, nth << 12, 4096, &[]))
        .collect();
    let in_flight = || disk.report().expect("it is attached").in_flight;
    eventually("all are in flight", || in_flight() == sent.len());
    for round in 0..100 {
        let moved = disk.move_to(1 - disk.thread()).expect("it moves");
        assert_eq!((moved.in_flight, in_flight()), (64, 64), "round {round}");
    }
    disk.detach(PATIENCE).expect("the disk is detached");
    nothing_is_left(&engine);
}

/// A turn of each thread with the move, and one that finds nothing more to do. What was cancelled on the old ring is in the new
/// thread's inbox in the same turn. What hangs costs none: neither requests, nor receives of clients and of an NBD server.
#[test]
fn a_move_takes_a_turn_of_each_thread_however_much_is_in_flight() {
    let place = tempdir();
    let elsewhere = engine(1);
    let served = attach(&elsewhere, memory::open(SIZE).expect("it opens"));
    served
        .restack(&filters(&["fault:delay=3600s"]), PATIENCE)
        .expect("a filter");
    let (_server, opened) = over_nbd(place.path(), &served, all_abilities());
    a_move_takes_a_turn(
        memory::open(SIZE).expect("it opens"),
        &["fault:delay=3600s"],
    );
    a_move_takes_a_turn(opened, &[]);
}

fn a_move_takes_a_turn(opened: OpenedImage, filter: &[&str]) {
    const ROUNDS: u64 = 50;
    let engine = engine(2);
    let disk = attach(&engine, opened);
    disk.restack(&filters(filter), PATIENCE).expect("filters");
    let mut waiting = client(&disk);
    for nth in 0..64 {
        waiting.send(Op::Read, Flags::NONE, nth << 12, 4096, &[]);
    }
    eventually("all are in flight", || {
        disk.report().expect("it is attached").in_flight == 64
    });
    let turns = || {
        let reports = engine.threads().expect("they answer");
        [0, 1].map(|at: usize| {
            let (all, empty) = (reports[at].turns, reports[at].empty_turns);
            [all, all - empty]
        })
    };
    let before = turns();
    for _ in 0..ROUNDS {
        disk.move_to(1 - disk.thread()).expect("it moves");
    }
    let after = turns();
    for (before, after) in before.into_iter().zip(after) {
        let [all, worked] = [0, 1].map(|at| after[at] - before[at]);
        // The reports take some, and so does what has not gone to sleep before.
        assert!(
            all <= 2 * ROUNDS + 8 && worked <= ROUNDS + 4,
            "{all} turns, {worked} with work, for {ROUNDS} moves"
        );
    }
}

/// The members of many mirrors hang, so that their writes keep all buffers of both threads, and go to one of them. The other one
/// gets new buffers: a mirror that waits there, and one that comes, are served.
#[test]
fn mirrors_that_leave_with_all_buffers_leave_others_some() {
    const MIRRORS: u64 = 80;
    // A mirror gets at least four buffers while there are some: so many have those of both threads.
    const ENOUGH: usize = 256 / 4 + 1;
    let (engine, elsewhere) = (engine(2), engine(1));
    let size = LayoutSpec::Mirror.member_size(1 << 20, 2);
    let spec = |name: &str| DiskSpec {
        layout: LayoutSpec::Mirror,
        layout_options: LayoutOptions {
            member_timeout: Duration::from_secs(3600),
            ..LayoutOptions::default()
        },
        ..spec(name, 1 << 20)
    };
    let in_memory = || Some(memory::open(size).expect("it opens"));
    let attach_mirror = |name: &str, other: Option<OpenedImage>| {
        let attached = engine.attach_members(spec(name), vec![in_memory(), other], PATIENCE);
        attached.expect("the mirror attaches")
    };
    engine.set_default_thread(Some(0)).expect("it is active");
    let mut hung = Vec::new();
    for nth in 0..MIRRORS {
        let place = tempdir();
        let served = attach(&elsewhere, memory::open(size).expect("it opens"));
        let (server, opened) = over_nbd(place.path(), &served, all_abilities());
        let disk = attach_mirror(&format!("hung{nth}"), Some(opened));
        // What is written later is in a region that is marked as being written already.
        let mut client = client(&disk);
        client.write(0, &[1; 4096]).expect("a write");
        served
            .restack(&filters(&["fault:delay=3600s"]), PATIENCE)
            .expect("a filter");
        hung.push((disk, client, served, server, place));
    }
    let quick = attach_mirror("quick", in_memory());
    for (_, client, ..) in &mut hung {
        for nth in 0..8 {
            client.send(Op::Write, Flags::NONE, nth << 12, 4096, &[7; 4096]);
        }
    }
    eventually("their writes have all buffers", || {
        let waits = |disk: &Disk| disk.report().expect("it is attached").in_flight >= 8;
        hung.iter().filter(|(disk, ..)| waits(disk)).count() >= ENOUGH
    });
    let mut waiting = client(&quick);
    waiting.send(Op::Write, Flags::NONE, 0, 4096, &[9; 4096]);
    for (disk, ..) in &hung {
        disk.move_to(1).expect("it moves");
    }
    let (_, answer) = waiting.next_answer().expect("it is answered");
    assert_eq!((quick.thread(), answer.map(drop)), (0, Ok(())));
    let another = attach_mirror("another", in_memory());
    client(&another).write(0, &[9; 4096]).expect("a write");
    for (_, _, served, ..) in &hung {
        served.restack(&[], PATIENCE).expect("no filter");
    }
    for (disk, mut client, ..) in hung {
        for _ in 0..8 {
            let (_, answer) = client.next_answer().expect("it is answered");
            assert_eq!(answer.map(drop), Ok(()));
        }
        disk.detach(PATIENCE).expect("the disk is detached");
    }
    for disk in [quick, another] {
        disk.detach(PATIENCE).expect("the disk is detached");
    }
    nothing_is_left(&engine);
}

/// Clients hang up in every step of a move, with requests in flight and answers unread.
#[test]
fn clients_that_vanish_while_their_disk_moves_leave_nothing() {
    let engine = engine(3);
    let disk = attach(&engine, memory::open(SIZE).expect("it opens"));
    let delays = filters(&["fault:delay=200us,probability=0.5"]);
    disk.restack(&delays, PATIENCE).expect("a filter");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&over);
        scope.spawn(|| {
            let mut random = Random(11);
            while !over.load(Ordering::Relaxed) {
                let to = usize::try_from(random.below(3)).expect("few");
                disk.move_to(to).expect("it moves");
            }
        });
        let mut random = Random(13);
        for round in 0..moves() {
            let mut client = client(&disk);
            for nth in 0..1 + random.below(40) {
                let at = (nth * 4096) % SIZE;
                match random.below(2) {
                    0 => client.send(Op::Read, Flags::NONE, at, 65_536, &[]),
                    _ => client.send(Op::Write, Flags::NONE, at, 4096, &[1; 4096]),
                };
            }
            if round % 4 == 0 {
                // A part of a write, which never ends.
                client.send(Op::Write, Flags::NONE, 0, 4096, &[2; 100]);
            } else if round % 4 == 1 {
                client.next_answer();
            }
        }
    });
    // A write of a client that has vanished may be under way.
    eventually("they are gone", || {
        let reports = engine.threads().expect("they answer");
        let gone = |report: &tidegate_engine::ThreadReport| {
            report.connections == 0 && report.in_flight == 0
        };
        reports.iter().all(gone)
    });
    let mut last = client(&disk);
    last.write(0, &[3; 512]).expect("a write");
    assert_eq!(last.read(0, 1), Ok(vec![3]));
    disk.detach(PATIENCE).expect("the disk is detached");
    nothing_is_left(&engine);
}

/// Whoever waits for a move when the engine stops is told so, and memory that the kernel uses is not given back.
#[test]
fn an_engine_stops_in_the_middle_of_moves() {
    for round in 0..20 {
        let engine = engine(3);
        let disk = attach(&engine, memory::open(SIZE).expect("it opens"));
        let mut client = client(&disk);
        for nth in 0..32 {
            client.send(Op::Read, Flags::NONE, nth << 12, 4096, &[]);
        }
        let ended = std::thread::scope(|scope| {
            let mover = scope.spawn(|| {
                let mut random = Random(round);
                loop {
                    let to = usize::try_from(random.below(3)).expect("few");
                    if let Err(error) = disk.move_to(to) {
                        return error.kind();
                    }
                }
            });
            std::thread::yield_now();
            engine.stop();
            mover.join().expect("it ends")
        });
        assert_eq!(ended, Kind::Gone);
        assert_eq!(
            disk.report().err().map(|error| error.kind()),
            Some(Kind::Gone)
        );
    }
}

/// Zeroes wait for a server that is away, as a write of the slot of zeroes: the disk takes them to a thread that has never
/// written zeroes.
#[test]
fn zeroes_that_wait_for_a_server_are_written_by_another_thread() {
    let place = tempdir();
    let (engine, elsewhere) = (engine(2), engine(1));
    let served = attach(&elsewhere, memory::open(SIZE).expect("it opens"));
    let abilities = Abilities::HAS_FLAGS.with(Abilities::FLUSH);
    let (server, opened) = over_nbd(place.path(), &served, abilities);
    let disk = attach(&engine, opened);
    let mut client = client(&disk);
    client.write(0, &[7; 65_536]).expect("a write");
    server.close();
    client.send(Op::WriteZeroes, Flags::NONE, 0, 65_536, &[]);
    eventually("it waits", || {
        disk.report().expect("it is attached").in_flight == 1
    });
    disk.move_to(1 - disk.thread()).expect("it moves");
    server.open();
    let (_, answer) = client.next_answer().expect("it is answered");
    assert_eq!(answer.map(drop), Ok(()));
    assert!(client.read(0, 65_536) == Ok(vec![0; 65_536]));
    disk.detach(PATIENCE).expect("the disk is detached");
    nothing_is_left(&engine);
}

#[test]
fn threads_are_created_locked_and_removed() {
    let engine = super::rig::engine_of(1, 3);
    use ThreadState::{Active, Locked, Parked};
    let kind = |result: tidegate_engine::Result<_>| result.err().map(|error| error.kind());
    assert_eq!(engine.thread_states(), [Active, Parked, Parked]);
    let disk = attach(&engine, memory::open(SIZE).expect("it opens"));
    assert_eq!(kind(disk.move_to(1).map(drop)), Some(Kind::Invalid));
    assert_eq!(kind(disk.move_to(9).map(drop)), Some(Kind::NotFound));
    assert_eq!(
        kind(engine.lock_thread(0)),
        Some(Kind::Busy),
        "it is the last"
    );
    assert_eq!(engine.create_thread().expect("one is parked"), 1);
    assert_eq!(
        kind(engine.remove_thread(1)),
        Some(Kind::Busy),
        "not locked"
    );
    engine.set_default_thread(Some(0)).expect("it is active");
    engine.lock_thread(0).expect("another one is active");
    assert_eq!(engine.default_thread(), None, "a locked one takes no disks");
    assert_eq!(
        kind(engine.remove_thread(0)),
        Some(Kind::Busy),
        "it has a disk"
    );
    let other = attach(&engine, memory::open(SIZE).expect("it opens"));
    assert_eq!(other.thread(), 1);
    assert_eq!(kind(other.move_to(0).map(drop)), Some(Kind::Busy));
    disk.move_to(1).expect("it moves");
    engine.remove_thread(0).expect("it is locked and empty");
    eventually("the thread is parked", || {
        engine.thread_states()[0] == Parked
    });
    assert_eq!(kind(engine.unlock_thread(0)), Some(Kind::Invalid));
    assert_eq!(engine.create_thread().expect("two are parked"), 0);
    assert_eq!(engine.create_thread().expect("one is parked"), 2);
    assert_eq!(kind(engine.create_thread().map(drop)), Some(Kind::Busy));
    engine.lock_thread(2).expect("others are active");
    assert_eq!(engine.thread_states(), [Active, Active, Locked]);
    client(&disk).write(0, &[7; 4096]).expect("a write");
    for disk in [disk, other] {
        disk.detach(PATIENCE).expect("the disk is detached");
    }
    nothing_is_left(&engine);
}

/// Clients that do nothing have a receive on the old ring, and so has an image over NBD: they are cancelled, so that the thread
/// can be parked.
#[test]
fn idle_clients_keep_no_thread_from_parking() {
    let place = tempdir();
    let elsewhere = engine(1);
    let served = attach(&elsewhere, memory::open(SIZE).expect("it opens"));
    let (_server, over_nbd) = over_nbd(place.path(), &served, all_abilities());
    for opened in [memory::open(SIZE).expect("it opens"), over_nbd] {
        let engine = engine(2);
        let disk = attach(&engine, opened);
        let mut clients: Vec<Client> = (0..8).map(|_| client(&disk)).collect();
        let from = disk.thread();
        for client in &mut clients {
            client.write(0, &[1; 512]).expect("a write");
        }
        disk.move_to(1 - from).expect("it moves");
        engine.lock_thread(from).expect("the other one is active");
        engine.remove_thread(from).expect("it is locked and empty");
        eventually("the thread is parked", || {
            engine.thread_states()[from] == ThreadState::Parked
        });
        for client in &mut clients {
            assert_eq!(client.read(0, 1), Ok(vec![1]));
        }
        disk.detach(PATIENCE).expect("the disk is detached");
        nothing_is_left(&engine);
    }
}

/// Commands and moves meet: none is lost, whichever thread it was sent to.
#[test]
fn commands_find_a_disk_that_moves() {
    let engine = engine(3);
    let disk = attach(&engine, memory::open(SIZE).expect("it opens"));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _end = End(&over);
        scope.spawn(|| {
            let mut random = Random(5);
            while !over.load(Ordering::Relaxed) {
                let to = usize::try_from(random.below(3)).expect("few");
                disk.move_to(to).expect("it moves");
            }
        });
        for round in 0..200 {
            let stack: &[&str] = if round % 2 == 0 { &["stats"] } else { &[] };
            disk.restack(&filters(stack), PATIENCE).expect("a change");
            let mut client = client(&disk);
            client.write(0, &[9; 1024]).expect("a write");
            assert!(disk.report().is_ok() && disk.layout().is_ok());
        }
    });
    let detached = std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                // At last the disk is gone, and says so.
                let _ = disk.move_to(1);
                let _ = disk.move_to(2);
            }
        });
        disk.detach(Duration::from_secs(60))
    });
    detached.expect("the disk is detached");
    assert_eq!(disk.move_to(0).err().map(|e| e.kind()), Some(Kind::Gone));
    nothing_is_left(&engine);
}
