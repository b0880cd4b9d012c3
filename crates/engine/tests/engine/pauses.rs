//! Disks that are paused while their images are copied, driven by NBD clients.

use super::client::pattern;
use super::rig::{PATIENCE, client, engine, eventually, image, open_file, spec, tempdir};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidegate_core::request::{Flags, Op};
use tidegate_engine::{Disk, Kind};

const SIZE: u64 = 1 << 20;

fn attach(engine: &tidegate_engine::Engine, path: &Path) -> Disk {
    let attached = engine.attach(spec("disk", SIZE), open_file(path));
    attached.expect("the disk attaches")
}

/// The number that a block begins with.
fn stamp(image: &[u8], block: usize) -> u64 {
    let bytes = image[block * 4096..][..8].try_into();
    u64::from_le_bytes(bytes.expect("eight bytes"))
}

#[test]
fn requests_of_a_paused_disk_wait_until_it_resumes() {
    let place = tempdir();
    let path = image(place.path(), "image", SIZE);
    let engine = engine(1);
    let disk = attach(&engine, &path);
    let all = pattern(0, 3, 65_536);
    client(&disk).write(0, &all).expect("a write");
    for round in 0..3 {
        disk.pause(PATIENCE).expect("it pauses");
        let before = std::fs::read(&path).expect("a file");
        assert!(round > 0 || before[..65_536] == all, "what was answered");
        let mut client = client(&disk);
        let bytes = pattern(0, 10 + round, 65_536);
        let written = client.send(Op::Write, Flags::default(), 0, 65_536, &bytes);
        eventually("the write waits", || {
            disk.report().expect("a report").waiting == 1
        });
        assert!(std::fs::read(&path).expect("a file") == before);
        disk.resume().expect("it resumes");
        let (answered, outcome) = client.next_answer().expect("the server answers");
        assert_eq!((answered, outcome.map(drop)), (written, Ok(())));
        assert!(std::fs::read(&path).expect("a file")[..65_536] == bytes);
    }
    disk.resume().expect("it is not paused");
    disk.detach(PATIENCE).expect("the disk is detached");
    let gone = disk.resume().err().map(|error| error.kind());
    assert_eq!(gone, Some(Kind::Gone));
}

#[test]
fn a_paused_disk_is_detached() {
    let place = tempdir();
    let path = image(place.path(), "image", SIZE);
    let engine = engine(1);
    let disk = attach(&engine, &path);
    disk.pause(PATIENCE).expect("it pauses");
    disk.detach(PATIENCE).expect("the disk is detached");
    drop(open_file(&path));
}

#[test]
fn a_disk_that_is_not_paused_in_time_goes_on() {
    let place = tempdir();
    let path = image(place.path(), "image", SIZE);
    let engine = engine(1);
    let disk = attach(&engine, &path);
    let over = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = client(&disk);
            for round in 0.. {
                client
                    .write(0, &pattern(0, round, 65_536))
                    .expect("a write");
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let mut refused = 0;
        for nth in 0..200 {
            match disk.pause(Duration::from_micros(nth % 20)) {
                Ok(()) => disk.resume().expect("it resumes"),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::TimedOut, "{error}");
                    refused += 1;
                }
            }
        }
        over.store(true, Ordering::Relaxed);
        refused
    });
    assert!(refused > 0, "some were late");
    client(&disk).write(0, &[7; 4096]).expect("it takes writes");
    disk.detach(PATIENCE).expect("the disk is detached");
}

#[test]
fn copies_of_paused_disks_show_one_moment_of_all_of_them() {
    let place = tempdir();
    let engine = engine(1);
    let paths = ["a", "b"].map(|name| image(place.path(), name, SIZE));
    let disks = [attach(&engine, &paths[0]), attach(&engine, &paths[1])];
    let (over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut clients = [client(&disks[0]), client(&disks[1])];
            for number in 1_u64.. {
                // The second disk's write depends on the first's.
                for client in &mut clients {
                    let mut block = vec![0; 4096];
                    block[..8].copy_from_slice(&number.to_le_bytes());
                    client.write(0, &block).expect("a write");
                    client.write(4096, &block).expect("a write");
                }
                answered.store(number, Ordering::SeqCst);
                if over.load(Ordering::SeqCst) {
                    return;
                }
            }
        });
        for _ in 0..50 {
            let last = answered.load(Ordering::SeqCst);
            eventually("writes go on", || answered.load(Ordering::SeqCst) > last);
            let before = answered.load(Ordering::SeqCst);
            for disk in &disks {
                disk.pause(PATIENCE).expect("it pauses");
            }
            let copies = [0, 1].map(|nth: usize| std::fs::read(&paths[nth]).expect("a file"));
            for disk in &disks {
                disk.resume().expect("it resumes");
            }
            let order = [(0, 0), (0, 1), (1, 0), (1, 1)];
            let stamps = order.map(|(disk, block): (usize, usize)| stamp(&copies[disk], block));
            assert!(stamps.is_sorted_by(|one, next| one >= next), "{stamps:?}");
            assert!(stamps[0] - stamps[3] <= 1, "{stamps:?}");
            assert!(
                stamps[3] >= before,
                "{stamps:?} lack {before}, which was answered"
            );
        }
        over.store(true, Ordering::SeqCst);
    });
}
