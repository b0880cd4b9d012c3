//! Tests of the last flush to an upstream before its disk is detached.

use super::super::client::Client;
use super::super::rig::{PATIENCE, all_abilities, attach, client, engine, tempdir};
use super::{FLUSH, LossyServer, READ, WRITE, chunk, custom_server, options, read_header, uri};
use std::io::{Read, Write};
use tidegate_core::request::Flags;
use tidegate_engine::datastore::nbd;
use tidegate_engine::nbd::wire::Abilities;

const DISCONNECT: u16 = 2;

/// The requests that a server receives between a disk's attach and its detach. It answers everything at once, and
/// flushes with `flushed`.
fn requests_of(
    abilities: Abilities,
    flushed: impl Fn([u8; 8]) -> Vec<u8> + Send + 'static,
    work: impl FnOnce(&mut Client),
) -> Vec<u16> {
    let dir = tempdir();
    let path = dir.path().join("meek.sock");
    let (sender, received) = std::sync::mpsc::channel();
    custom_server(&path, abilities, move |mut stream| {
        let mut all = Vec::new();
        while let Some(header) = read_header(&mut stream) {
            all.push(header.command);
            let mut payload = vec![0; header.len as usize];
            let reply = match header.command {
                DISCONNECT => continue,
                READ => {
                    let body = [&header.offset.to_be_bytes()[..], &payload].concat();
                    chunk(1, 1, header.cookie, &body)
                }
                WRITE => {
                    stream.read_exact(&mut payload).unwrap();
                    success(header.cookie)
                }
                FLUSH => flushed(header.cookie),
                _ => success(header.cookie),
            };
            stream.write_all(&reply).unwrap();
        }
        let _ = sender.send(all);
    });
    let near = engine(1);
    let disk = attach(&near, nbd::open(&uri(&path), &options()).unwrap());
    work(&mut client(&disk));
    disk.detach(PATIENCE).unwrap();
    received.recv_timeout(PATIENCE).expect("the server is left")
}

fn success(cookie: [u8; 8]) -> Vec<u8> {
    chunk(1, 0, cookie, &[])
}

#[test]
fn a_detach_flushes_unflushed_writes_before_it_disconnects() {
    let requests = requests_of(all_abilities(), success, |c| {
        c.write(0, &[7; 4096]).unwrap();
        c.flush().unwrap();
        c.write(4096, &[8; 4096]).unwrap();
    });
    assert_eq!(requests, [WRITE, FLUSH, WRITE, FLUSH, DISCONNECT]);
    // If the server cannot flush, the disk is detached nevertheless.
    let cannot = |cookie| chunk(1, 0x8001, cookie, &[0, 0, 0, 5, 0, 0]);
    let requests = requests_of(all_abilities(), cannot, |c| c.write(0, &[7; 4096]).unwrap());
    assert_eq!(requests, [WRITE, FLUSH, DISCONNECT]);
}

#[test]
fn a_detach_sends_no_flush_without_unflushed_writes() {
    let requests = requests_of(all_abilities(), success, |c| {
        c.read(0, 4096).unwrap();
    });
    assert_eq!(requests, [READ, DISCONNECT]);
    let requests = requests_of(all_abilities(), success, |c| {
        c.write(0, &[7; 4096]).unwrap();
        c.flush().unwrap();
        c.write_with(Flags::FUA, 4096, &[8; 4096]).unwrap();
    });
    assert_eq!(requests, [WRITE, FLUSH, WRITE, DISCONNECT]);
    // The server does not support flush, and promised nothing.
    let requests = requests_of(Abilities::HAS_FLAGS, success, |c| {
        c.write(0, &[7; 4096]).unwrap();
    });
    assert_eq!(requests, [WRITE, DISCONNECT]);
}

#[test]
fn writes_before_a_detach_survive_a_server_crash() {
    let server = LossyServer::start(all_abilities(), READ);
    let near = engine(1);
    let (disk, mut c) = server.attach(&near);
    c.write(0, &[7; 4096]).unwrap();
    disk.detach(PATIENCE).unwrap();
    assert!(server.has_durable(0, 7));
    // As seen by a guest whose daemon was restarted in between.
    let (_disk, mut c) = server.attach(&near);
    server.arm_death();
    assert_eq!(c.read(0, 4096), Ok(vec![7; 4096]));
    assert!(server.has_died());
    assert_eq!(c.flush(), Ok(()), "a flush that succeeds keeps its promise");
}
