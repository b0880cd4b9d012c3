//! Tests of misbehaving clients and slow disks: other clients are not affected.

use super::client::{Client, Verifier};
use super::rig::{PATIENCE, attach, client, engine, eventually, filters, raw};
use std::io::{Read, Write};
use std::time::Duration;
use tidegate_core::request::{Fault, Flags, Op};
use tidegate_engine::datastore::{OpenedImage, emulated, memory};
use tidegate_engine::nbd::client::requests::Sent;
use tidegate_engine::{Disk, Kind};

const SIZE: u64 = 64 << 20;

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn request(op: Op, offset: u64, len: u32) -> Vec<u8> {
    let sent = Sent {
        op,
        flags: Flags::NONE,
        offset,
        len,
    };
    sent.encode(1).to_vec()
}

#[test]
fn a_client_that_never_reads_its_replies_uses_bounded_memory_and_delays_no_other() {
    let engine = engine(1);
    let disk = attach(&engine, memory::open(SIZE).unwrap());
    let (mut silent_reader, _) = raw(&disk);
    silent_reader
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let before = resident();
    let requests = request(Op::Read, 0, 1 << 20).repeat(1000);
    // The server would have to send 100 GiB of replies. It stops reading, which ends this loop.
    assert!((0..100).any(|_| silent_reader.write_all(&requests).is_err()));
    let mut others = Verifier::new(client(&disk), 0, 4 << 20, 512, 1);
    for _ in 0..50 {
        others.round();
    }
    // Other tests run in parallel: the limit is far below what was requested, and far above what one client may hold.
    let grown = resident().saturating_sub(before);
    assert!(grown < 2 << 30, "{grown} bytes for one client");
    let report = disk.report().unwrap();
    assert!(report.in_flight < 1000, "{}", report.in_flight);
    drop(silent_reader);
    drop(others);
    eventually("its connection is dropped", || {
        engine.threads().unwrap()[0].connections == 0
    });
}

#[test]
fn the_clients_of_a_disk_leave_half_of_the_memory_to_others() {
    let engine = engine(1);
    // Requests that wait in a filter have memory that was never touched.
    let disk = || {
        let disk = attach(&engine, memory::open(SIZE).unwrap());
        let slow = filters(&["fault:delay=3600s,op=read"]);
        disk.restack(&slow, PATIENCE).unwrap();
        disk
    };
    let (greedy, other) = (disk(), disk());
    let in_flight = |disk: &Disk| disk.report().unwrap().in_flight;
    let requests = request(Op::Read, 0, 32 << 20).repeat(2);
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (mut stream, _) = raw(&greedy);
            stream.write_all(&requests).unwrap();
            stream
        })
        .collect();
    eventually("the clients of the disk hold their maximum", || {
        in_flight(&greedy) == 6
    });
    let (mut modest, _) = raw(&other);
    modest.write_all(&requests).unwrap();
    eventually("another disk's client has room", || in_flight(&other) == 2);
    let mut c = client(&other);
    for n in 0..50 {
        c.write(n * 4096, &[5; 4096]).unwrap();
    }
    assert_eq!(in_flight(&greedy), 6, "the others wait");
    drop(clients);
    eventually("all requests are dropped", || in_flight(&greedy) == 0);
}

#[test]
fn half_a_message_and_garbage_close_their_connection_and_delay_no_other() {
    let engine = engine(1);
    let disk = attach(&engine, memory::open(SIZE).unwrap());
    let mut silent = Vec::new();
    for len in [1, 4, 27, 28, 28 + 100] {
        let (mut stream, _) = raw(&disk);
        let mut message = request(Op::Write, 0, 4096);
        message.resize(len.max(28), 7);
        stream.write_all(&message[..len]).unwrap();
        silent.push(stream);
    }
    let (mut garbage, _) = raw(&disk);
    garbage.write_all(&[0x5a; 8192]).unwrap();
    let mut bytes = [0; 16];
    // Closed: an end, or a reset if unread bytes were left.
    assert!(!matches!(garbage.read(&mut bytes), Ok(1..)));
    let mut others = Verifier::new(client(&disk), 0, 4 << 20, 512, 1);
    for _ in 0..50 {
        others.round();
    }
    assert_eq!(disk.report().unwrap().in_flight, 0);
    drop(silent);
    drop(others);
    eventually("connections are dropped", || {
        engine.threads().unwrap()[0].connections == 0
    });
}

#[test]
fn a_client_that_disconnects_at_any_time_leaves_nothing_behind() {
    let engine = engine(1);
    let disk = attach(&engine, memory::open(SIZE).unwrap());
    disk.restack(&filters(&["fault:delay=2ms"]), PATIENCE)
        .unwrap();
    for round in 0..200_usize {
        let (mut stream, _) = raw(&disk);
        let mut message = request(Op::Read, 0, 65_536).repeat(20);
        message.extend(request(Op::Write, 0, 4096));
        message.extend(vec![1; round * 20]);
        stream.write_all(&message).unwrap();
        if round % 2 == 0 {
            stream.shutdown(std::net::Shutdown::Both).unwrap();
        }
    }
    eventually("connections are dropped", || {
        let report = &engine.threads().unwrap()[0];
        report.connections == 0 && report.in_flight == 0
    });
}

/// Two rotating disks: some hundred random reads take them most of a second.
fn slow() -> OpenedImage {
    let spec: emulated::Spec = "raid0-2x15k,size=64M,seed=3".parse().unwrap();
    emulated::open(&spec).unwrap()
}

/// Has a disk of [`slow`] read 128 blocks of fives.
fn submit_many(disk: &Disk) -> Client {
    let mut c = client(disk);
    c.write(0, &[5; 1 << 20]).unwrap();
    for n in 0..128 {
        c.send(Op::Read, Flags::NONE, n * 7_919 % 256 * 4096, 4096, &[]);
    }
    eventually("the requests are in flight", || {
        disk.report().unwrap().in_flight >= 32
    });
    c
}

#[test]
fn a_detach_waits_for_io_in_flight_and_disconnects_clients() {
    let engine = engine(1);
    let disk = attach(&engine, slow());
    let mut c = submit_many(&disk);
    let other = disk.clone();
    disk.detach(PATIENCE).unwrap();
    let report = &engine.threads().unwrap()[0];
    assert_eq!(
        (report.in_flight, report.strays),
        (0, 0),
        "the detach waited"
    );
    // Requests in flight may have been answered or not; no answer is wrong, and then the connection ends.
    while let Some((_, answer)) = c.next_answer() {
        assert_eq!(answer, Ok(vec![5; 4096]));
    }
    assert_eq!(
        other.detach(PATIENCE).err().map(|e| e.kind()),
        Some(Kind::Gone)
    );
    // Another disk lives on the same thread, with the same number.
    let next = attach(&engine, memory::open(SIZE).unwrap());
    assert_eq!(client(&next).read(0, 4096), Ok(vec![0; 4096]));
}

#[test]
fn a_detach_that_times_out_is_an_error_and_completes_later() {
    let engine = engine(1);
    let disk = attach(&engine, slow());
    let _client = submit_many(&disk);
    let early = disk.detach(Duration::ZERO);
    assert_eq!(early.err().map(|e| e.kind()), Some(Kind::TimedOut));
    eventually("the disk is detached when its I/O has ended", || {
        let report = &engine.threads().unwrap()[0];
        report.disks.is_empty() && report.connections == 0
    });
}

/// The client's requests are in the server's input when the disk is detached: none may reach a detached disk.
#[test]
fn a_detach_succeeds_with_a_client_that_sent_many_requests_and_reads_late() {
    let engine = engine(1);
    let disk = attach(&engine, memory::open(SIZE).unwrap());
    let (mut late, _) = raw(&disk);
    late.write_all(&request(Op::Read, 0, 65_536).repeat(4000))
        .unwrap();
    eventually("the server stops reading its requests", || {
        let turns = || engine.threads().unwrap()[0].turns;
        let before = turns();
        turns() - before <= 2
    });
    disk.detach(PATIENCE).unwrap();
    let mut rest = Vec::new();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    // An end or a reset; before it only replies.
    let _ = late.read_to_end(&mut rest);
    assert!(rest.len() < 4000 * 65_536);
    drop(late);
    eventually("its connection is dropped", || {
        engine.threads().unwrap()[0].connections == 0
    });
    let next = attach(&engine, memory::open(SIZE).unwrap());
    assert_eq!(client(&next).read(0, 4096), Ok(vec![0; 4096]));
}

#[test]
fn a_disk_that_hangs_delays_no_other_on_its_thread() {
    let engine = engine(1);
    let stuck = attach(&engine, memory::open(SIZE).unwrap());
    stuck
        .restack(&filters(&["fault:delay=3600s"]), PATIENCE)
        .unwrap();
    let mut waiting = client(&stuck);
    for _ in 0..64 {
        waiting.send(Op::Read, Flags::NONE, 0, 4096, &[]);
    }
    let free = attach(&engine, memory::open(SIZE).unwrap());
    let mut others = Verifier::new(client(&free), 0, 4 << 20, 512, 1);
    for _ in 0..100 {
        others.round();
    }
    assert_eq!(stuck.report().unwrap().in_flight, 64);
    // A detach does not wait for the end of the hour.
    stuck.detach(PATIENCE).unwrap();
    assert_eq!(engine.threads().unwrap()[0].in_flight, 0);
}

#[test]
fn requests_outside_of_the_disk_are_refused() {
    let engine = engine(1);
    let disk = attach(&engine, memory::open(1 << 20).unwrap());
    let mut c = client(&disk);
    for (at, len) in [
        (1 << 20, 1),
        ((1 << 20) - 1, 2),
        (u64::MAX, 1),
        (u64::MAX - 511, 512),
    ] {
        assert_eq!(c.read(at, len).err(), Some(Fault::Invalid), "{at}+{len}");
    }
    assert!(c.read((1 << 20) - 512, 512).is_ok());
}
