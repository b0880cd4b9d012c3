//! Tests of disks on another NBD server that goes away, loses data, violates the protocol or is silent.

use super::client::{Client, Verifier, pattern};
use super::rig::{
    PATIENCE, Server, all_abilities, attach, client, engine, eventually, filters, image, open_file,
    tempdir,
};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tidegate_core::request::{ExtentKind, Fault, Flags, Op};
use tidegate_engine::datastore::condition::Harm;
use tidegate_engine::datastore::{memory, nbd};
use tidegate_engine::nbd::handshake::{BlockSizes, ExportInfo, Handshake, Step, Tls};
use tidegate_engine::nbd::wire::Abilities;
use tidegate_engine::{Disk, Engine, Kind};

mod detach;

const SIZE: u64 = 16 << 20;

fn options() -> nbd::Options {
    nbd::Options {
        connect: PATIENCE,
        ..Default::default()
    }
}

fn uri(path: &Path) -> String {
    format!("nbd+unix:///disk?socket={}", path.display())
}

#[test]
fn a_disk_on_another_engine_returns_what_was_written() {
    let dir = tempdir();
    let path = image(dir.path(), "image", SIZE);
    let (near, far) = (engine(1), engine(1));
    let backing = attach(&far, open_file(&path));
    let small = BlockSizes {
        minimum: 1,
        preferred: 4096,
        payload: 65_536,
    };
    let server = Server::start(dir.path(), &backing, all_abilities(), small);
    let disk = attach(&near, nbd::open(&uri(&server.path), &options()).unwrap());
    assert_eq!(disk.size(), SIZE);
    for (unit, from) in [(512, 0), (1, 4 << 20)] {
        let mut verifier = Verifier::new(client(&disk), from, from + (4 << 20), unit, 1);
        for _ in 0..50 {
            verifier.round();
        }
        verifier.check_all();
    }
    let mut c = client(&disk);
    // Longer than the server's longest request, and read through every kind of reply.
    let large = pattern(8 << 20, 1, 4 << 20);
    c.write_with(Flags::FUA, 8 << 20, &large).unwrap();
    assert!(c.read(8 << 20, 4 << 20).unwrap() == large);
    c.discard(8 << 20, 1 << 20).unwrap();
    c.write_zeroes(Flags::MAY_UNMAP, 9 << 20, 1 << 20).unwrap();
    c.flush().unwrap();
    let extents: Vec<_> = c
        .extents(8 << 20, 8 << 20)
        .iter()
        .map(|e| (e.len, e.kind))
        .collect();
    let (hole, data) = (ExtentKind::Hole, ExtentKind::Data);
    assert_eq!(extents, [(2 << 20, hole), (2 << 20, data), (4 << 20, hole)]);
    disk.detach(PATIENCE).unwrap();
    eventually("the server's connection ends", || {
        far.threads().unwrap()[0].connections == 0
    });
}

#[test]
fn a_server_is_reached_over_tcp_as_well() {
    let dir = tempdir();
    let (near, far) = (engine(1), engine(1));
    let backing = attach(&far, memory::open(SIZE).unwrap());
    let server = Server::start(dir.path(), &backing, all_abilities(), BlockSizes::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let path = server.path.clone();
    // Forwards bytes between the two kinds of socket.
    std::thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        let mut unix = UnixStream::connect(path).unwrap();
        let (mut from, mut to) = (tcp.try_clone().unwrap(), unix.try_clone().unwrap());
        std::thread::spawn(move || {
            std::io::copy(&mut from, &mut to).unwrap();
            to.shutdown(std::net::Shutdown::Write).unwrap();
        });
        std::io::copy(&mut unix, &mut tcp).unwrap();
    });
    let uri = format!("nbd://{address}/disk");
    let disk = attach(&near, nbd::open(&uri, &options()).unwrap());
    let mut verifier = Verifier::new(client(&disk), 0, 4 << 20, 512, 1);
    for _ in 0..20 {
        verifier.round();
    }
    disk.detach(PATIENCE).unwrap();
}

#[test]
fn a_server_with_reads_and_writes_only_serves_all_requests() {
    let dir = tempdir();
    let (near, far) = (engine(1), engine(1));
    let backing = attach(&far, memory::open(SIZE).unwrap());
    let server = Server::start(
        dir.path(),
        &backing,
        Abilities::HAS_FLAGS.with(Abilities::FLUSH),
        BlockSizes::default(),
    );
    let disk = attach(&near, nbd::open(&uri(&server.path), &options()).unwrap());
    let mut c = client(&disk);
    c.write_with(Flags::FUA, 0, &pattern(0, 1, 8 << 20))
        .unwrap();
    c.write_zeroes(Flags::NONE, 4096, 4 << 20).unwrap();
    c.discard(0, 4096).unwrap();
    assert_eq!(
        c.write_zeroes(Flags::FAST_ONLY, 0, 4096),
        Err(Fault::Unsupported)
    );
    let bytes = c.read(0, 8 << 20).unwrap();
    assert!(
        bytes[..4096] == pattern(0, 1, 4096)[..],
        "a discard promises no content"
    );
    assert!(bytes[4096..4096 + (4 << 20)].iter().all(|b| *b == 0));
    assert!(bytes[4096 + (4 << 20)..] == pattern(0, 1, 8 << 20)[4096 + (4 << 20)..]);
}

#[test]
fn errors_of_the_server_reach_the_client() {
    let dir = tempdir();
    let (near, far) = (engine(1), engine(1));
    let backing = attach(&far, memory::open(SIZE).unwrap());
    let server = Server::start(dir.path(), &backing, all_abilities(), BlockSizes::default());
    let disk = attach(&near, nbd::open(&uri(&server.path), &options()).unwrap());
    backing
        .restack(
            &filters(&["fault:error=enospc,op=write", "fault:error=eio,op=read"]),
            PATIENCE,
        )
        .unwrap();
    let mut c = client(&disk);
    assert_eq!(c.write(0, &[1; 4096]), Err(Fault::NoSpace));
    assert_eq!(c.read(0, 4096), Err(Fault::Io));
    assert_eq!(c.flush(), Ok(()));
}

#[test]
fn a_server_that_cannot_be_used_is_refused_with_a_reason() {
    let dir = tempdir();
    let far = engine(1);
    let backing = attach(&far, memory::open(SIZE).unwrap());
    let kind = |uri: &str| nbd::open(uri, &options()).err().map(|e| e.kind());
    assert_eq!(kind("http://x/"), Some(Kind::Invalid));
    assert_eq!(
        kind(&uri(&dir.path().join("nothing"))),
        Some(Kind::NotFound)
    );
    let coarse = BlockSizes {
        minimum: 4096,
        preferred: 4096,
        payload: 1 << 20,
    };
    let server = Server::start(dir.path(), &backing, all_abilities(), coarse);
    assert_eq!(kind(&uri(&server.path)), Some(Kind::Invalid));
    let fits = nbd::Options {
        block_size: 4096,
        ..options()
    };
    assert_eq!(
        nbd::open(&uri(&server.path), &fits)
            .unwrap()
            .info
            .block_size,
        4096
    );
    let missing = uri(&server.path).replace("disk", "missing");
    let error = nbd::open(&missing, &options()).err().unwrap().to_string();
    assert!(error.contains("no such export"), "{error}");
    // It listens but never sends.
    let silent = dir.path().join("silent");
    let _listener = UnixListener::bind(&silent).unwrap();
    let short_timeout = nbd::Options {
        connect: Duration::from_millis(50),
        ..options()
    };
    let error = nbd::open(&uri(&silent), &short_timeout).err().unwrap();
    assert_eq!(error.kind(), Kind::TimedOut);
}

#[test]
fn a_server_that_goes_and_returns_loses_nothing() {
    let dir = tempdir();
    let (near, far) = (engine(1), engine(1));
    let backing = attach(&far, memory::open(SIZE).unwrap());
    let server = Server::start(dir.path(), &backing, all_abilities(), BlockSizes::default());
    let options = options();
    let disk = attach(&near, nbd::open(&uri(&server.path), &options).unwrap());
    let done = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&done);
    let mut verifier = Verifier::new(client(&disk), 0, 8 << 20, 512, 1);
    let load = std::thread::spawn(move || {
        while !own.load(Ordering::Relaxed) {
            verifier.round();
        }
        verifier.check_all();
    });
    let lost = || options.counts.lost.load(Ordering::Relaxed);
    let returned = || options.counts.returned.load(Ordering::Relaxed);
    for cut in 1..=10 {
        // A connection that the server has not recorded yet survives one cut.
        eventually("the loss is detected", || {
            server.cut();
            lost() >= cut
        });
        eventually("the disk is reconnected", || returned() >= lost());
    }
    done.store(true, Ordering::Relaxed);
    load.join().expect("the client saw no error");
    assert_eq!(options.counts.violations.load(Ordering::Relaxed), 0);
}

#[test]
fn requests_wait_for_an_absent_server_then_fail_and_succeed_after_its_return() {
    let dir = tempdir();
    let (near, far) = (engine(1), engine(1));
    let backing = attach(&far, memory::open(SIZE).unwrap());
    let server = Server::start(dir.path(), &backing, all_abilities(), BlockSizes::default());
    let options = nbd::Options {
        patience: Duration::from_millis(700),
        ..options()
    };
    let disk = attach(&near, nbd::open(&uri(&server.path), &options).unwrap());
    let mut c = client(&disk);
    c.write(0, &[1; 4096]).unwrap();
    server.close();
    let begin = Instant::now();
    assert_eq!(c.read(0, 4096), Err(Fault::Io));
    assert!(
        begin.elapsed() >= Duration::from_millis(600),
        "the request waited for the server"
    );
    // From now on at once: a hundred requests would otherwise take a minute.
    let begin = Instant::now();
    for _ in 0..100 {
        assert_eq!(c.read(0, 4096), Err(Fault::Io));
    }
    assert!(begin.elapsed() < Duration::from_secs(30));
    let refused = options.counts.refused.load(Ordering::Relaxed);
    eventually("a reconnect is tried", || {
        options.counts.refused.load(Ordering::Relaxed) > refused
    });
    server.open();
    eventually("the server is back", || {
        options.counts.returned.load(Ordering::Relaxed) == 1
    });
    assert_eq!(c.read(0, 4096), Ok(vec![1; 4096]));
}

/// A server that negotiates correctly, then handles each connection with `then`.
fn custom_server(path: &Path, abilities: Abilities, then: impl Fn(UnixStream) + Send + 'static) {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut handshake = Handshake::new(Tls::Off);
            let mut input = Vec::new();
            loop {
                let mut out = Vec::new();
                let (used, step) = handshake.advance(&input, &mut out);
                input.drain(..used);
                if let Step::Lookup(name) = &step {
                    let name = name.clone();
                    let export = ExportInfo {
                        name,
                        size: SIZE,
                        abilities,
                        ..Default::default()
                    };
                    handshake.found(Ok(export), &mut out);
                }
                stream.write_all(&out).unwrap();
                match step {
                    Step::Lookup(_) => {}
                    Step::Finished(_) => break,
                    _ => {
                        let mut bytes = [0; 4096];
                        let got = stream.read(&mut bytes).unwrap();
                        input.extend_from_slice(&bytes[..got]);
                    }
                }
            }
            then(stream);
        }
    });
}

/// The header of a request.
struct Header {
    durable: bool,
    command: u16,
    cookie: [u8; 8],
    offset: u64,
    len: u32,
}

/// Reads one request's header; `None` once the client is gone.
fn read_header(stream: &mut UnixStream) -> Option<Header> {
    let mut request = [0; 28];
    stream.read_exact(&mut request).ok()?;
    Some(Header {
        durable: request[5] & 1 == 1,
        command: u16::from_be_bytes(request[6..8].try_into().ok()?),
        cookie: request[8..16].try_into().ok()?,
        offset: u64::from_be_bytes(request[16..24].try_into().ok()?),
        len: u32::from_be_bytes(request[24..28].try_into().ok()?),
    })
}

fn cookie_of(stream: &mut UnixStream) -> Option<[u8; 8]> {
    read_header(stream).map(|header| header.cookie)
}

fn chunk(flags: u16, kind: u16, cookie: [u8; 8], body: &[u8]) -> Vec<u8> {
    let mut bytes = 0x668e_33ef_u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie);
    bytes.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    bytes.extend(body);
    bytes
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// A server that dies instead of answering the first request of one kind after it was told to. It keeps what it made
/// durable, and loses the rest. It comes back at once. It has only the first bytes of the disk.
struct LossyServer {
    path: PathBuf,
    may_die: Arc<AtomicBool>,
    durable_bytes: Arc<Mutex<Vec<u8>>>,
    _dir: TempDir,
}

impl LossyServer {
    fn start(abilities: Abilities, dies_at_request: u16) -> LossyServer {
        let dir = tempdir();
        let path = dir.path().join("forgetful.sock");
        let may_die = Arc::new(AtomicBool::new(false));
        let durable_bytes = Arc::new(Mutex::new(vec![0; 64 << 10]));
        let (dies, own) = (Arc::clone(&may_die), Arc::clone(&durable_bytes));
        custom_server(&path, abilities, move |mut stream| {
            let mut cached = own.lock().unwrap().clone();
            while let Some(header) = read_header(&mut stream) {
                if header.command == dies_at_request && dies.swap(false, Ordering::Relaxed) {
                    return;
                }
                let place = usize::try_from(header.offset).unwrap();
                let place = place..place + header.len as usize;
                let mut reply = chunk(1, 0, header.cookie, &[]);
                match header.command {
                    READ => {
                        let body = [&header.offset.to_be_bytes(), &cached[place]].concat();
                        reply = chunk(1, 1, header.cookie, &body);
                    }
                    WRITE => stream.read_exact(&mut cached[place]).unwrap(),
                    _ => {}
                }
                if header.durable || header.command == FLUSH {
                    own.lock().unwrap().copy_from_slice(&cached);
                }
                let _ = stream.write_all(&reply);
            }
        });
        LossyServer {
            path,
            may_die,
            durable_bytes,
            _dir: dir,
        }
    }

    fn attach(&self, near: &Engine) -> (Disk, Client) {
        let disk = attach(near, nbd::open(&uri(&self.path), &options()).unwrap());
        let client = client(&disk);
        (disk, client)
    }

    fn arm_death(&self) {
        self.may_die.store(true, Ordering::Relaxed);
    }

    fn has_died(&self) -> bool {
        !self.may_die.load(Ordering::Relaxed)
    }

    fn has_durable(&self, offset: usize, byte: u8) -> bool {
        let durable_bytes = self.durable_bytes.lock().unwrap();
        durable_bytes[offset..offset + 4096]
            .iter()
            .all(|b| *b == byte)
    }
}

#[test]
fn a_durable_write_survives_a_server_crash_before_its_flush() {
    let server = LossyServer::start(Abilities::HAS_FLAGS.with(Abilities::FLUSH), FLUSH);
    let near = engine(1);
    let (_disk, mut c) = server.attach(&near);
    server.arm_death();
    assert_eq!(c.write_with(Flags::FUA, 0, &[7; 4096]), Ok(()));
    assert!(server.has_died() && server.has_durable(0, 7));
    assert_eq!(c.flush(), Ok(()), "no write was lost");
}

#[test]
fn flushes_fail_after_a_server_was_lost_with_unflushed_writes() {
    let server = LossyServer::start(all_abilities(), READ);
    let near = engine(1);
    let (disk, mut c) = server.attach(&near);
    c.write(0, &[7; 4096]).unwrap();
    server.arm_death();
    assert_eq!(c.read(0, 4096), Ok(vec![0; 4096]), "the write is lost");
    assert!(server.has_died());
    assert_eq!(c.flush(), Err(Fault::Io));
    // A new write does not help: the guest must learn that a write is lost that it relies on.
    c.write(0, &[8; 4096]).unwrap();
    assert_eq!(c.flush(), Err(Fault::Io));
    // A durable write promises nothing about others.
    assert_eq!(c.write_with(Flags::FUA, 4096, &[9; 4096]), Ok(()));
    assert!(server.has_durable(4096, 9));
    assert_eq!(c.flush(), Err(Fault::Io));
    assert_eq!(disk.harm(), Some(Harm::FlushesFail));
    disk.detach(PATIENCE).unwrap();
    let (disk, mut c) = server.attach(&near);
    assert_eq!(c.flush(), Ok(()), "the disk was attached again");
    assert_eq!(disk.harm(), None);
}

#[test]
fn a_flush_in_flight_during_a_loss_fails_if_writes_may_be_lost() {
    let server = LossyServer::start(all_abilities(), FLUSH);
    let near = engine(1);
    let (_disk, mut c) = server.attach(&near);
    c.write(0, &[7; 4096]).unwrap();
    server.arm_death();
    assert_eq!(c.flush(), Err(Fault::Io));
    assert!(server.has_died() && server.has_durable(0, 0));
}

#[test]
fn no_flush_fails_after_a_loss_without_unflushed_writes() {
    for dies_at_request in [READ, FLUSH] {
        let server = LossyServer::start(all_abilities(), dies_at_request);
        let near = engine(1);
        let (_disk, mut c) = server.attach(&near);
        c.write(0, &[7; 4096]).unwrap();
        c.flush().unwrap();
        c.write_with(Flags::FUA, 4096, &[8; 4096]).unwrap();
        c.discard(8192, 4096).unwrap();
        server.arm_death();
        assert_eq!(c.read(0, 4096), Ok(vec![7; 4096]));
        assert_eq!(c.flush(), Ok(()));
        assert!(server.has_died() && server.has_durable(0, 7) && server.has_durable(4096, 8));
    }
}

#[test]
fn a_server_with_invalid_replies_is_disconnected_and_counted() {
    let mut data = 0_u64.to_be_bytes().to_vec();
    data.extend([9; 2048]);
    let half = data.clone();
    let whole: Vec<u8> = [&0_u64.to_be_bytes()[..], &[3; 4096]].concat();
    type Reply = Box<dyn Fn([u8; 8]) -> Vec<u8> + Send>;
    let invalid_replies: Vec<(&str, Reply)> = vec![
        ("bad magic", Box::new(|_| vec![0x5a; 64])),
        (
            "an unknown cookie",
            Box::new(|_| chunk(1, 0, [0xee; 8], &[])),
        ),
        (
            "done without data",
            Box::new(|cookie| chunk(1, 0, cookie, &[])),
        ),
        ("half of the data", {
            let half = half.clone();
            Box::new(move |cookie| chunk(1, 1, cookie, &half))
        }),
        ("one half twice", {
            Box::new(move |cookie| {
                [chunk(0, 1, cookie, &half), chunk(1, 1, cookie, &half)].concat()
            })
        }),
    ];
    for (what, lie) in invalid_replies {
        let dir = tempdir();
        let path = dir.path().join("custom_server.sock");
        let honest = AtomicBool::new(false);
        let whole = whole.clone();
        custom_server(&path, all_abilities(), move |mut stream| {
            while let Some(cookie) = cookie_of(&mut stream) {
                let reply = if honest.load(Ordering::Relaxed) {
                    chunk(1, 1, cookie, &whole)
                } else {
                    lie(cookie)
                };
                honest.store(true, Ordering::Relaxed);
                let _ = stream.write_all(&reply);
            }
        });
        let near = engine(1);
        let options = options();
        let disk = attach(&near, nbd::open(&uri(&path), &options).unwrap());
        assert_eq!(client(&disk).read(0, 4096), Ok(vec![3; 4096]), "{what}");
        assert_eq!(
            options.counts.violations.load(Ordering::Relaxed),
            1,
            "{what}"
        );
        assert_eq!(options.counts.returned.load(Ordering::Relaxed), 1, "{what}");
        disk.detach(PATIENCE).unwrap();
    }
}

#[test]
fn a_silent_server_delays_no_other_disk_and_its_requests_time_out() {
    let dir = tempdir();
    let path = dir.path().join("silent.sock");
    custom_server(&path, all_abilities(), |mut stream| {
        std::thread::spawn(move || while cookie_of(&mut stream).is_some() {});
    });
    let near = engine(1);
    let options = nbd::Options {
        patience: Duration::from_millis(1500),
        ..options()
    };
    let stuck: Disk = attach(&near, nbd::open(&uri(&path), &options).unwrap());
    let free = attach(&near, memory::open(SIZE).unwrap());
    let mut waiting = client(&stuck);
    let mut pending: Vec<u64> = (0..50)
        .map(|_| waiting.send(Op::Read, Flags::NONE, 0, 4096, &[]))
        .collect();
    let mut others = Verifier::new(client(&free), 0, 4 << 20, 512, 1);
    for _ in 0..50 {
        others.round();
    }
    while !pending.is_empty() {
        let (cookie, answer) = waiting.next_answer().expect("an answer");
        assert_eq!(answer, Err(Fault::Io));
        pending.retain(|other| *other != cookie);
    }
    assert!(options.counts.silent.load(Ordering::Relaxed) >= 1);
    stuck.detach(PATIENCE).unwrap();
}
