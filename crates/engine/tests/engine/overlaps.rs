//! Tests of overlapping requests in flight together, on every kind of datastore, against a model of each byte.
//!
//! A round sends a few dozen requests at once, from two connections, all within a small range. When all are answered,
//! each byte must have a value that one of the round's requests may have written. A byte that no request covered must
//! have its old value. So bytes that only one request wrote have that request's value, and rounds are in order.
//!
//! `TIDEGATE_OVERLAP_SECONDS` sets the duration of each test; without it each takes a second or two.

use super::client::{Client, Random};
use super::rig::{
    PATIENCE, Server, all_abilities, attach, client, engine, image, open_file, tempdir,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tidegate_core::request::{Flags, Op};
use tidegate_engine::datastore::{OpenedImage, dir, emulated, memory, nbd};
use tidegate_engine::nbd::handshake::BlockSizes;

/// The range of the requests: sixteen blocks.
const RANGE: u64 = 64 << 10;
/// Its start: the file system's blocks before and behind it belong to the disk, too.
const BEGIN: u64 = 1 << 20;
const SIZE: u64 = 4 << 20;
/// Requests of a round.
const REQUESTS: u64 = 24;
/// Rounds of a short run.
const ROUNDS: u32 = 60;

/// One request of a round.
struct Request {
    op: Op,
    flags: Flags,
    at: u64,
    len: u64,
    value: u8,
}

struct World {
    clients: Vec<Client>,
    random: Random,
    /// Offsets and lengths are multiples of this.
    unit: u64,
    bytes: Vec<u8>,
    value: u8,
}

fn at(offset: u64) -> usize {
    usize::try_from(offset).expect("small")
}

impl World {
    fn new(clients: Vec<Client>, unit: u64, seed: u64) -> World {
        let mut world = World {
            clients,
            random: Random(seed),
            unit,
            bytes: vec![0; at(RANGE)],
            value: 0,
        };
        let zeroes = vec![0; at(RANGE)];
        let written = world.clients[0].write(BEGIN, &zeroes);
        written.expect("the range is written");
        world
    }

    fn random_request(&mut self) -> Request {
        let units = RANGE / self.unit;
        // Short ones and long ones; many that start or end within a block.
        let most = [1, 8, 64][at(self.random.below(3))].min(units);
        let len = 1 + self.random.below(most);
        let begin = self.random.below(units - len + 1);
        self.value = self.value % 250 + 1;
        let op = match self.random.below(12) {
            0 => Op::WriteZeroes,
            1 => Op::Discard,
            2 | 3 => Op::Read,
            _ => Op::Write,
        };
        let flags = match (op, self.random.below(6)) {
            (Op::Write, 0) => Flags::FUA,
            (Op::WriteZeroes, 0..3) => Flags::MAY_UNMAP,
            _ => Flags::NONE,
        };
        Request {
            op,
            flags,
            at: begin * self.unit,
            len: len * self.unit,
            value: self.value,
        }
    }

    /// The allowed values of every byte: the old one, unless a request is sure to have changed it, and those of the
    /// requests.
    fn allowed(&self, round: &[Request]) -> Vec<Vec<u8>> {
        let mut allowed: Vec<Vec<u8>> = self.bytes.iter().map(|byte| vec![*byte]).collect();
        let sure = |op| matches!(op, Op::Write | Op::WriteZeroes);
        for request in round.iter().filter(|request| sure(request.op)) {
            for byte in &mut allowed[at(request.at)..at(request.at + request.len)] {
                byte.clear();
            }
        }
        for request in round.iter().filter(|request| request.op != Op::Read) {
            let value = if request.op == Op::Write {
                request.value
            } else {
                0
            };
            for byte in &mut allowed[at(request.at)..at(request.at + request.len)] {
                byte.push(value);
            }
        }
        allowed
    }

    fn round(&mut self, number: u32) {
        let round: Vec<Request> = (0..REQUESTS).map(|_| self.random_request()).collect();
        let allowed = self.allowed(&round);
        let mut pending: Vec<HashMap<u64, usize>> =
            self.clients.iter().map(|_| HashMap::new()).collect();
        for (index, request) in round.iter().enumerate() {
            let connection = index % self.clients.len();
            let payload = match request.op {
                Op::Write => vec![request.value; at(request.len)],
                _ => Vec::new(),
            };
            let len = u32::try_from(request.len).expect("small");
            let offset = BEGIN + request.at;
            let cookie =
                self.clients[connection].send(request.op, request.flags, offset, len, &payload);
            pending[connection].insert(cookie, index);
        }
        for (client, mut pending) in self.clients.iter_mut().zip(pending) {
            while !pending.is_empty() {
                let (cookie, answer) = client.next_answer().expect("the server answers");
                let request = &round[pending.remove(&cookie).expect("the request was sent")];
                let bytes = answer.unwrap_or_else(|fault| {
                    panic!(
                        "round {number}: {:?} at {} failed: {fault:?}",
                        request.op, request.at
                    )
                });
                for (byte, offset) in bytes.iter().zip(request.at..) {
                    // The read may be before, after or among the others.
                    let may = allowed[at(offset)].contains(byte) || self.bytes[at(offset)] == *byte;
                    assert!(may, "round {number}: a read found {byte} at {offset}");
                }
            }
        }
        let flushed = self.clients[0].flush();
        flushed.unwrap_or_else(|fault| panic!("round {number}: a flush failed: {fault:?}"));
        let len = u32::try_from(RANGE).expect("small");
        let bytes = self.clients[1].read(BEGIN, len).expect("a read");
        for (offset, (byte, allowed)) in (0_u64..).zip(bytes.iter().zip(&allowed)) {
            assert!(
                allowed.contains(byte),
                "round {number}: byte {offset} is {byte}, and may be one of {allowed:?}"
            );
        }
        self.bytes = bytes;
    }
}

/// The duration of a long run, if it is set.
fn long() -> Option<Duration> {
    let seconds = std::env::var("TIDEGATE_OVERLAP_SECONDS").ok()?;
    Some(Duration::from_secs(
        seconds.parse().expect("a number of seconds"),
    ))
}

/// Runs rounds on an image, with requests in multiples of each unit.
fn overlap(opened: OpenedImage, units: &[u64]) {
    let engine = engine(2);
    let disk = attach(&engine, opened);
    let begin = Instant::now();
    let mut rounds = 0_u32;
    for seed in 0.. {
        for unit in units {
            let clients = vec![client(&disk), client(&disk)];
            let mut world = World::new(clients, *unit, seed);
            for number in 0..ROUNDS {
                world.round(number);
                rounds += 1;
            }
        }
        if long().is_none_or(|long| begin.elapsed() >= long) {
            break;
        }
    }
    println!("{rounds} rounds of {REQUESTS} requests");
    disk.detach(PATIENCE).expect("it is detached");
    engine.stop();
}

#[test]
fn after_overlapping_requests_on_a_file_each_byte_is_of_one_of_them() {
    let dir = tempdir();
    let opened = open_file(&image(dir.path(), "image", SIZE));
    assert!(!opened.info.buffered);
    overlap(opened, &[512, 1, 4096]);
}

#[test]
fn after_overlapping_requests_on_a_cached_file_each_byte_is_of_one_of_them() {
    let dir = tempdir();
    let path = image(dir.path(), "image", SIZE);
    let options = dir::Options {
        buffered: true,
        ..Default::default()
    };
    overlap(dir::open(&path, options).expect("it opens"), &[512, 1]);
}

#[test]
fn after_overlapping_requests_in_memory_each_byte_is_of_one_of_them() {
    overlap(memory::open(SIZE).expect("memory"), &[512, 1]);
}

#[test]
fn after_overlapping_requests_on_an_emulated_array_each_byte_is_of_one_of_them() {
    let spec: emulated::Spec = "emulated:nvme,size=4M,seed=3".parse().expect("a spec");
    overlap(emulated::open(&spec).expect("it opens"), &[512, 1]);
}

#[test]
fn after_overlapping_requests_on_an_upstream_each_byte_is_of_one_of_them() {
    let dir = tempdir();
    let far = engine(1);
    let disk = attach(&far, open_file(&image(dir.path(), "image", SIZE)));
    let server = Server::start(dir.path(), &disk, all_abilities(), BlockSizes::default());
    let uri = format!("nbd+unix:///disk?socket={}", server.path.display());
    let opened = nbd::open(&uri, &nbd::Options::default()).expect("it connects");
    overlap(opened, &[512, 1]);
    disk.detach(PATIENCE).expect("it is detached");
    far.stop();
}

/// A loop device, removed when dropped.
struct Loop(PathBuf);

impl Loop {
    /// Over a file, with blocks of 4 KiB.
    fn over(path: &Path) -> Loop {
        let out = Command::new("losetup")
            .args([
                "--find",
                "--show",
                "--direct-io=on",
                "--sector-size",
                "4096",
            ])
            .arg(path)
            .output()
            .expect("losetup is installed");
        assert!(out.status.success(), "losetup needs root: {out:?}");
        let device = String::from_utf8(out.stdout).expect("a path");
        Loop(device.trim().into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.0)
            .status();
    }
}

/// On this device every request that is not a multiple of 4 KiB needs a read-modify-write.
#[test]
fn after_overlapping_requests_on_a_device_with_large_blocks_each_byte_is_of_one_of_them() {
    let dir = tempdir();
    let device = Loop::over(&image(dir.path(), "image", SIZE));
    let opened = dir::open(&device.0, dir::Options::default()).expect("it opens");
    assert_eq!(
        (opened.info.block_size, opened.info.buffered),
        (4096, false)
    );
    overlap(opened, &[512, 1, 4096]);
}
