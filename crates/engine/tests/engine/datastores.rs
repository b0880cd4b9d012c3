//! Tests that write and read back, on every kind of datastore and in every size.

use super::client::{Client, Verifier, pattern};
use super::rig::{PATIENCE, attach, client, engine, image, open_file, spec, tempdir};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tidegate_core::request::{Fault, Flags};
use tidegate_engine::datastore::{dir, emulated, memory, nbd};
use tidegate_model::{Array, ArraySpec, IoKind, ModelIo};

const SIZE: u64 = 16 << 20;

/// Writes and reads with all requests of a client.
fn verify(client: Client, unit: u64, rounds: u32) {
    let mut verifier = Verifier::new(client, 0, 4 << 20, unit, 1);
    for _ in 0..rounds {
        verifier.round();
    }
    verifier.client.flush().expect("a flush");
    verifier.check_all();
    let large = pattern(8 << 20, 9, 4 << 20);
    verifier
        .client
        .write_with(Flags::FUA, 8 << 20, &large)
        .expect("a durable write");
    assert!(verifier.client.read(8 << 20, 4 << 20).expect("a read") == large);
    assert!(
        verifier
            .client
            .read(12 << 20, 4 << 20)
            .expect("a read")
            .iter()
            .all(|b| *b == 0)
    );
}

#[test]
fn a_file_returns_what_was_written() {
    let dir = tempdir();
    let path = image(dir.path(), "image", SIZE);
    let engine = engine(1);
    let disk = attach(&engine, open_file(&path));
    for unit in [4096, 512] {
        verify(client(&disk), unit, 30);
        let mut fresh = client(&disk);
        fresh
            .write_zeroes(Flags::MAY_UNMAP, 0, 16 << 20)
            .expect("zeroes");
    }
    verify(client(&disk), 1, 30);
    disk.detach(PATIENCE).unwrap();
    engine.stop();
    // In the file, not only in a cache.
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[8 << 20..12 << 20] == pattern(8 << 20, 9, 4 << 20));
}

#[test]
fn a_cached_file_returns_what_was_written() {
    let dir = tempdir();
    let path = image(dir.path(), "image", SIZE);
    let engine = engine(1);
    let options = dir::Options {
        buffered: true,
        ..Default::default()
    };
    let opened = dir::open(&path, options).unwrap();
    assert!(opened.info.buffered);
    verify(client(&attach(&engine, opened)), 512, 30);
}

#[test]
fn memory_returns_what_was_written() {
    let engine = engine(1);
    verify(client(&attach(&engine, memory::open(SIZE).unwrap())), 1, 50);
}

#[test]
fn an_emulated_array_returns_what_was_written_with_the_models_latency() {
    let engine = engine(1);
    let spec: emulated::Spec = "emulated:nvme,size=16M,seed=3".parse().unwrap();
    verify(
        client(&attach(&engine, emulated::open(&spec).unwrap())),
        512,
        20,
    );
    let spec: emulated::Spec = "emulated:raid5-8x10k,size=1G,seed=3".parse().unwrap();
    let mut slow = client(&attach(&engine, emulated::open(&spec).unwrap()));
    // The same requests on the same array in virtual time give the minimum duration.
    let mut model = Array::new(&ArraySpec::named("raid5-8x10k").unwrap(), 3).unwrap();
    let (mut now, begin) = (0, Instant::now());
    for id in 0..20 {
        let (offset, len) = (id * 49_999_872, 512);
        slow.read(offset, 512).expect("a read");
        let kind = IoKind::Read;
        model.submit(
            now,
            ModelIo {
                id,
                kind,
                offset,
                len,
            },
        );
        while model.pop_completed(now).is_none() {
            now = model.next_completion().expect("an I/O is in flight");
        }
    }
    assert!(now > 20_000_000, "seeks take milliseconds");
    assert!(begin.elapsed() >= Duration::from_nanos(now));
}

#[test]
fn nbdkit_returns_what_was_written() {
    let dir = tempdir();
    let socket = dir.path().join("nbdkit.sock");
    let mut server = Command::new("nbdkit")
        .args(["--foreground", "--exit-with-parent", "--unix"])
        .arg(&socket)
        .args(["memory", "size=16M"])
        .stderr(Stdio::null())
        .spawn()
        .expect("nbdkit is installed");
    super::rig::eventually("nbdkit listens", || {
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    });
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let engine = engine(1);
    let disk = attach(&engine, nbd::open(&uri, &nbd::Options::default()).unwrap());
    verify(client(&disk), 512, 50);
    let mut c = client(&disk);
    c.discard(0, 1 << 20).expect("a discard");
    c.write_zeroes(Flags::MAY_UNMAP, 1 << 20, 1 << 20)
        .expect("zeroes");
    let extents = c.extents(0, 16 << 20);
    assert_eq!(
        extents.iter().map(|e| e.len).sum::<u64>(),
        16 << 20,
        "{extents:?}"
    );
    assert!(extents.len() > 2, "{extents:?}");
    disk.detach(PATIENCE).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Two clients write alternating pieces of `slot` bytes, each with its own start and length, so that they share 4 KiB
/// blocks: neither may undo the other.
fn neighbours(slot: u64, places: [(u64, u32); 2], rounds: u64) {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let engine = engine(2);
    let disk = attach(&engine, open_file(&path));
    let threads: Vec<_> = (0_u64..)
        .zip(places)
        .map(|(number, (from, len))| {
            let mut client = client(&disk);
            std::thread::spawn(move || {
                // Four blocks, so that they conflict often.
                let mut versions = vec![0_u64; usize::try_from(4 * 4096 / slot / 2).unwrap()];
                let mut random = super::client::Random(number);
                let mut draw = || random.below(4 * 4096 / slot / 2);
                let bytes = |at, version| match version {
                    0 => vec![0; len as usize],
                    version => pattern(at, version << 1 | number, len as usize),
                };
                for round in 1..=rounds {
                    let (piece, check) = (draw(), draw());
                    let place = |piece| (2 * piece + number) * slot + from;
                    client
                        .write(place(piece), &bytes(place(piece), round))
                        .expect("a write");
                    versions[usize::try_from(piece).unwrap()] = round;
                    let version = versions[usize::try_from(check).unwrap()];
                    let found = client.read(place(check), len).expect("a read");
                    assert!(
                        found == bytes(place(check), version),
                        "piece {check} of client {number} lost version {version}"
                    );
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn writes_to_one_block_do_not_undo_each_other() {
    neighbours(512, [(0, 512), (0, 512)], 800);
    neighbours(100, [(0, 100), (0, 100)], 800);
    // Whole sectors, which could use direct I/O, next to partial sectors, which cannot.
    neighbours(512, [(0, 512), (100, 300)], 1600);
    neighbours(1024, [(512, 1024), (700, 100)], 1600);
}

/// One client writes whole blocks, with direct I/O; another writes unaligned ranges between them.
#[test]
fn unaligned_and_whole_writes_do_not_undo_each_other() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 8 << 20);
    let engine = engine(2);
    let disk = attach(&engine, open_file(&path));
    // Stripes of 64 KiB alternate; the unaligned writes start and end inside blocks of their own.
    let threads: Vec<_> = (0..2_u64)
        .map(|number| {
            let mut client = client(&disk);
            std::thread::spawn(move || {
                let (mut random, stripes, stripe) =
                    (super::client::Random(number), 64_u64, 65_536_u64);
                let mut versions = vec![0_u64; usize::try_from(stripes).unwrap()];
                let shape = |index: u64| {
                    let from = (2 * index + number) * stripe;
                    if number == 0 {
                        (from, stripe)
                    } else {
                        (from + 512, stripe - 1024)
                    }
                };
                for round in 1..=800_u64 {
                    let (index, check) = (random.below(stripes), random.below(stripes));
                    let (at, len) = shape(index);
                    client
                        .write(at, &pattern(at, round, usize::try_from(len).unwrap()))
                        .expect("a write");
                    versions[usize::try_from(index).unwrap()] = round;
                    let (at, len) = shape(check);
                    let version = versions[usize::try_from(check).unwrap()];
                    // A part of it, unaligned.
                    let (at, len) = (at + 100, len - 200);
                    let bytes = client
                        .read(at, u32::try_from(len).unwrap())
                        .expect("a read");
                    let len = usize::try_from(len).unwrap();
                    let wanted = if version == 0 {
                        vec![0; len]
                    } else {
                        pattern(at, version, len)
                    };
                    assert!(
                        bytes == wanted,
                        "client {number}: stripe {check} lost version {version}"
                    );
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn a_read_only_disk_refuses_writes_and_continues_to_read() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let engine = engine(1);
    let options = dir::Options {
        read_only: true,
        ..Default::default()
    };
    let opened = dir::open(&path, options).unwrap();
    let mut spec = spec("disk", 1 << 20);
    spec.read_only = true;
    let disk = engine.attach(spec, opened).unwrap();
    let mut c = client(&disk);
    assert_eq!(c.write(0, &[1; 512]), Err(Fault::ReadOnly));
    assert_eq!(c.discard(0, 512), Err(Fault::ReadOnly));
    assert!(c.read(0, 512).is_ok());
    // Readers share the file.
    let again = dir::open(&path, options);
    assert!(again.is_ok());
}

#[test]
fn a_disk_that_grows_is_usable_to_its_new_end() {
    let dir = tempdir();
    let path = image(dir.path(), "image", 1 << 20);
    let engine = engine(1);
    let disk = attach(&engine, open_file(&path));
    let mut c = client(&disk);
    assert!(c.write(1 << 20, &[1; 512]).is_err());
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(2 << 20)
        .unwrap();
    disk.resize(2 << 20).unwrap();
    assert_eq!(c.write(1 << 20, &[1; 4096]), Ok(()));
    assert_eq!(c.read((1 << 20) + 512, 512), Ok(vec![1; 512]));
    assert_eq!(disk.size(), 2 << 20);
}
