//! Tests of clients that disconnect while their requests wait for a limit, in a filter, or for memory.
//!
//! Requests that have not started are dropped at once, with their memory and the connection. Requests before an NBD
//! disconnect are carried out while the client's end is open.

use super::client::pattern;
use super::control::{attach as attach_limited, limited, settings};
use super::rig::{PATIENCE, attach, client, engine, eventually, filters, raw, raw_on};
use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use tidegate_core::governor::Threshold;
use tidegate_core::request::{Flags, Op};
use tidegate_engine::datastore::memory;
use tidegate_engine::nbd::client::requests::{self, Sent};
use tidegate_engine::{Disk, Engine};

const SIZE: u64 = 64 << 20;
const LARGEST: u32 = 32 << 20;

fn request(op: Op, offset: u64, len: u32) -> Vec<u8> {
    let flags = Flags::NONE;
    let sent = Sent {
        op,
        flags,
        offset,
        len,
    };
    sent.encode(1).to_vec()
}

/// A disk that delays all reads for an hour.
fn delayed(engine: &Engine) -> Disk {
    let disk = attach(engine, memory::open(SIZE).unwrap());
    let slow = filters(&["fault:delay=3600s,op=read"]);
    disk.restack(&slow, PATIENCE).unwrap();
    disk
}

/// A disk that starts this many requests a second.
fn slow(engine: &Engine, each_second: u64) -> Disk {
    let control = engine.control(settings(1, Threshold::Off)).unwrap();
    let image = memory::open(SIZE).unwrap();
    attach_limited(engine, &control, 1, limited(each_second, 0), image)
}

fn connections(engine: &Engine) -> usize {
    engine.threads().unwrap()[0].connections
}

fn in_flight(disk: &Disk) -> usize {
    disk.report().unwrap().in_flight
}

#[test]
fn disconnected_clients_leave_neither_memory_nor_connections() {
    let engine = engine(1);
    let disk = delayed(&engine);
    let clients: Vec<_> = (0..45)
        .map(|_| {
            let (mut stream, _) = raw(&disk);
            let requests = request(Op::Read, 0, LARGEST).repeat(3);
            stream.write_all(&requests).unwrap();
            stream
        })
        .collect();
    eventually("the clients are connected", || connections(&engine) == 45);
    eventually("the clients hold their maximum", || in_flight(&disk) >= 6);
    drop(clients);
    eventually("the connections are dropped", || connections(&engine) == 0);
    assert_eq!(in_flight(&disk), 0);
    assert!(client(&disk).write(0, &[5; 4096]).is_ok());
}

#[test]
fn a_client_that_disconnects_while_it_waits_for_memory_releases_its_connection() {
    let engine = engine(1);
    let disk = delayed(&engine);
    let connect = |counts: usize| {
        let (mut stream, _) = raw(&disk);
        let requests = request(Op::Read, 0, LARGEST).repeat(counts);
        stream.write_all(&requests).unwrap();
        stream
    };
    let greedy: Vec<_> = (0..6).map(|_| connect(2)).collect();
    eventually("the clients hold their maximum", || in_flight(&disk) >= 6);
    let held = in_flight(&disk);
    let last: Vec<_> = [1, 3].map(connect).into();
    eventually("all are connected", || connections(&engine) == 8);
    drop(last);
    eventually("the connections are dropped", || connections(&engine) == 6);
    assert_eq!(in_flight(&disk), held);
    drop(greedy);
}

#[test]
fn requests_of_a_dead_client_that_wait_for_a_limit_are_dropped() {
    let engine = engine(1);
    let disk = slow(&engine, 10);
    let dead: Vec<_> = (0..20)
        .map(|_| {
            let (mut stream, _) = raw(&disk);
            // 3200 units each: five minutes of the limit.
            let mut message = request(Op::Write, 0, 4 << 20);
            message.resize(message.len() + (4 << 20), 7);
            stream.write_all(&message).unwrap();
            stream
        })
        .collect();
    eventually("the requests wait", || disk.report().unwrap().held == 19);
    drop(dead);
    eventually("the connections are dropped", || connections(&engine) == 0);
    let report = disk.report().unwrap();
    assert_eq!((report.in_flight, report.held), (0, 0));
}

#[test]
fn a_client_that_closes_without_an_nbd_disconnect_is_gone_over_tcp_too() {
    let engine = engine(1);
    let disk = delayed(&engine);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = || {
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        raw_on(&disk, theirs.into());
        ours
    };
    // One client holds its maximum, one sent a small request, and one has not sent all bytes of a write.
    let counts = [
        request(Op::Read, 0, LARGEST).repeat(4),
        request(Op::Read, 0, 4096),
        [request(Op::Read, 0, 4096), request(Op::Write, 0, 4096)].concat(),
    ];
    let ends: Vec<_> = counts
        .iter()
        .map(|requests| {
            let mut stream = connect();
            stream.write_all(requests).unwrap();
            stream
        })
        .collect();
    eventually("the requests are in flight", || in_flight(&disk) == 4);
    for end in &ends {
        end.shutdown(Shutdown::Write).unwrap();
    }
    eventually("the connections are dropped", || connections(&engine) == 0);
    assert_eq!(in_flight(&disk), 0);
}

#[test]
fn requests_before_an_nbd_disconnect_are_performed_while_the_socket_is_open() {
    let engine = engine(1);
    let disk = slow(&engine, 1_000);
    let (mut polite, _) = raw(&disk);
    // More than a client may have in flight, so that the disconnect is read late.
    let writes = 600_u64;
    let mut message = Vec::new();
    for n in 0..writes {
        message.extend(request(Op::Write, n * 512, 512));
        message.extend(pattern(n * 512, 1, 512));
    }
    message.extend(requests::disconnect());
    polite.write_all(&message).unwrap();
    polite.shutdown(Shutdown::Write).unwrap();
    eventually("the connection is dropped", || connections(&engine) == 0);
    let len = u32::try_from(writes * 512).unwrap();
    let there = client(&disk).read(0, len).unwrap();
    assert!(
        there == pattern(0, 1, len as usize),
        "every write was performed"
    );
    drop(polite);
}

#[test]
fn requests_before_an_nbd_disconnect_are_dropped_when_the_socket_closes() {
    let engine = engine(1);
    let disk = delayed(&engine);
    let (mut polite, _) = raw(&disk);
    let mut message = request(Op::Read, 0, 4096).repeat(9);
    message.extend(requests::disconnect());
    polite.write_all(&message).unwrap();
    polite.shutdown(Shutdown::Write).unwrap();
    eventually("the requests wait", || in_flight(&disk) == 9);
    assert!(client(&disk).write(0, &[5; 4096]).is_ok());
    assert_eq!(in_flight(&disk), 9, "the client may still read");
    drop(polite);
    eventually("the connection is dropped", || connections(&engine) == 0);
    assert_eq!(in_flight(&disk), 0);
}
