//! Clients that disconnect while their requests wait for a limit, in a filter, or for memory.
//!
//! What has not started is dropped at once, with its memory and its connection. What a client asked for before it said
//! goodbye is carried out while its end is open.

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

/// A disk that keeps all reads for an hour.
fn delayed(engine: &Engine) -> Disk {
    let disk = attach(engine, memory::open(SIZE).unwrap());
    let slow = filters(&["fault:delay=3600s,op=read"]);
    disk.restack(&slow, PATIENCE).unwrap();
    disk
}

/// A disk that begins so many requests a second.
fn slow(engine: &Engine, each_second: u64) -> Disk {
    let control = engine.control(settings(1, Threshold::Off)).unwrap();
    let image = memory::open(SIZE).unwrap();
    attach_limited(engine, &control, 1, limited(each_second, 0), image)
}

fn connections(engine: &Engine) -> usize {
    engine.threads().unwrap()[0].connections
}

fn inside(disk: &Disk) -> usize {
    disk.report().unwrap().in_flight
}

#[test]
fn clients_that_are_gone_leave_neither_memory_nor_connections_whatever_they_asked_for() {
    let engine = engine(1);
    let disk = delayed(&engine);
    let clients: Vec<_> = (0..45)
        .map(|_| {
            let (mut stream, _) = raw(&disk);
            let ask = request(Op::Read, 0, LARGEST).repeat(3);
            stream.write_all(&ask).unwrap();
            stream
        })
        .collect();
    eventually("they have asked", || connections(&engine) == 45);
    eventually("they hold all that they may", || inside(&disk) >= 6);
    drop(clients);
    eventually("they are gone", || connections(&engine) == 0);
    assert_eq!(inside(&disk), 0);
    assert!(client(&disk).write(0, &[5; 4096]).is_ok());
}

#[test]
fn a_client_that_goes_while_others_hold_all_memory_and_nothing_of_it_has_begun_leaves_its_seat() {
    let engine = engine(1);
    let disk = delayed(&engine);
    let connect = |asks: usize| {
        let (mut stream, _) = raw(&disk);
        let ask = request(Op::Read, 0, LARGEST).repeat(asks);
        stream.write_all(&ask).unwrap();
        stream
    };
    let hogs: Vec<_> = (0..6).map(|_| connect(2)).collect();
    eventually("they hold all that they may", || inside(&disk) >= 6);
    let held = inside(&disk);
    let last: Vec<_> = [1, 3].map(connect).into();
    eventually("all are connected", || connections(&engine) == 8);
    drop(last);
    eventually("they are gone", || connections(&engine) == 6);
    assert_eq!(inside(&disk), held);
    drop(hogs);
}

#[test]
fn what_a_dead_client_asked_for_and_a_limit_holds_is_dropped_and_the_disk_serves_others() {
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
    eventually("they wait", || disk.report().unwrap().held == 19);
    drop(dead);
    eventually("they are gone", || connections(&engine) == 0);
    let report = disk.report().unwrap();
    assert_eq!((report.in_flight, report.held), (0, 0));
}

#[test]
fn a_client_that_sends_no_more_and_did_not_say_goodbye_is_gone_over_tcp_too() {
    let engine = engine(1);
    let disk = delayed(&engine);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = || {
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        raw_on(&disk, theirs.into());
        ours
    };
    // One holds all that it may, one has asked for little, and one still owes the bytes of a write.
    let asks = [
        request(Op::Read, 0, LARGEST).repeat(4),
        request(Op::Read, 0, 4096),
        [request(Op::Read, 0, 4096), request(Op::Write, 0, 4096)].concat(),
    ];
    let ends: Vec<_> = asks
        .iter()
        .map(|ask| {
            let mut stream = connect();
            stream.write_all(ask).unwrap();
            stream
        })
        .collect();
    eventually("they have asked", || inside(&disk) == 4);
    for end in &ends {
        end.shutdown(Shutdown::Write).unwrap();
    }
    eventually("they are gone", || connections(&engine) == 0);
    assert_eq!(inside(&disk), 0);
}

#[test]
fn what_was_asked_before_a_goodbye_is_carried_out_while_the_client_is_there() {
    let engine = engine(1);
    let disk = slow(&engine, 1_000);
    let (mut polite, _) = raw(&disk);
    // More than a client may have under way, so that the goodbye is read late.
    let writes = 600_u64;
    let mut message = Vec::new();
    for n in 0..writes {
        message.extend(request(Op::Write, n * 512, 512));
        message.extend(pattern(n * 512, 1, 512));
    }
    message.extend(requests::disconnect());
    polite.write_all(&message).unwrap();
    polite.shutdown(Shutdown::Write).unwrap();
    eventually("all is done", || connections(&engine) == 0);
    let len = u32::try_from(writes * 512).unwrap();
    let there = client(&disk).read(0, len).unwrap();
    assert!(there == pattern(0, 1, len as usize), "every write is there");
    drop(polite);
}

#[test]
fn what_was_asked_before_a_goodbye_is_dropped_when_the_client_has_gone_for_good() {
    let engine = engine(1);
    let disk = delayed(&engine);
    let (mut polite, _) = raw(&disk);
    let mut message = request(Op::Read, 0, 4096).repeat(9);
    message.extend(requests::disconnect());
    polite.write_all(&message).unwrap();
    polite.shutdown(Shutdown::Write).unwrap();
    eventually("they wait", || inside(&disk) == 9);
    assert!(client(&disk).write(0, &[5; 4096]).is_ok());
    assert_eq!(inside(&disk), 9, "it may still read");
    drop(polite);
    eventually("it is gone", || connections(&engine) == 0);
    assert_eq!(inside(&disk), 0);
}
