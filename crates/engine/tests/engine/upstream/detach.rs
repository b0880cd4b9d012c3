//! The last flush to an upstream before its disk is detached.

use super::super::client::Client;
use super::super::rig::{PATIENCE, attach, client, engine, everything, tempdir};
use super::{FLUSH, Forgetful, READ, WRITE, asked_of, chunk, crook, options, uri};
use std::io::{Read, Write};
use tidegate_core::request::Flags;
use tidegate_engine::datastore::nbd;
use tidegate_engine::nbd::wire::Abilities;

const GOODBYE: u16 = 2;

/// What a server was asked from a disk's attachment to its detachment. It answers everything at once; flushes, as
/// `flushed` says.
fn asked_meanwhile(
    abilities: Abilities,
    flushed: impl Fn([u8; 8]) -> Vec<u8> + Send + 'static,
    work: impl FnOnce(&mut Client),
) -> Vec<u16> {
    let dir = tempdir();
    let path = dir.path().join("meek.sock");
    let (tell, told) = std::sync::mpsc::channel();
    crook(&path, abilities, move |mut stream| {
        let mut all = Vec::new();
        while let Some(asked) = asked_of(&mut stream) {
            all.push(asked.command);
            let mut payload = vec![0; asked.len as usize];
            let reply = match asked.command {
                GOODBYE => continue,
                READ => {
                    let body = [&asked.offset.to_be_bytes()[..], &payload].concat();
                    chunk(1, 1, asked.cookie, &body)
                }
                WRITE => {
                    stream.read_exact(&mut payload).unwrap();
                    well(asked.cookie)
                }
                FLUSH => flushed(asked.cookie),
                _ => well(asked.cookie),
            };
            stream.write_all(&reply).unwrap();
        }
        let _ = tell.send(all);
    });
    let near = engine(1);
    let disk = attach(&near, nbd::open(&uri(&path), &options()).unwrap());
    work(&mut client(&disk));
    disk.detach(PATIENCE).unwrap();
    told.recv_timeout(PATIENCE).expect("the server is left")
}

fn well(cookie: [u8; 8]) -> Vec<u8> {
    chunk(1, 0, cookie, &[])
}

#[test]
fn a_detach_has_the_server_flush_what_was_written_and_not_flushed_before_it_says_goodbye() {
    let asked = asked_meanwhile(everything(), well, |c| {
        c.write(0, &[7; 4096]).unwrap();
        c.flush().unwrap();
        c.write(4096, &[8; 4096]).unwrap();
    });
    assert_eq!(asked, [WRITE, FLUSH, WRITE, FLUSH, GOODBYE]);
    // Where it cannot, the disk goes all the same.
    let cannot = |cookie| chunk(1, 0x8001, cookie, &[0, 0, 0, 5, 0, 0]);
    let asked = asked_meanwhile(everything(), cannot, |c| c.write(0, &[7; 4096]).unwrap());
    assert_eq!(asked, [WRITE, FLUSH, GOODBYE]);
}

#[test]
fn a_detach_asks_for_no_flush_where_nothing_would_be_durable_by_it() {
    let asked = asked_meanwhile(everything(), well, |c| {
        c.read(0, 4096).unwrap();
    });
    assert_eq!(asked, [READ, GOODBYE]);
    let asked = asked_meanwhile(everything(), well, |c| {
        c.write(0, &[7; 4096]).unwrap();
        c.flush().unwrap();
        c.write_with(Flags::FUA, 4096, &[8; 4096]).unwrap();
    });
    assert_eq!(asked, [WRITE, FLUSH, WRITE, GOODBYE]);
    // It knows no flush, and promised nothing.
    let asked = asked_meanwhile(Abilities::HAS_FLAGS, well, |c| {
        c.write(0, &[7; 4096]).unwrap();
    });
    assert_eq!(asked, [WRITE, GOODBYE]);
}

#[test]
fn a_server_that_dies_after_a_detach_has_what_was_written_before_it() {
    let server = Forgetful::start(everything(), READ);
    let near = engine(1);
    let (disk, mut c) = server.attach(&near);
    c.write(0, &[7; 4096]).unwrap();
    disk.detach(PATIENCE).unwrap();
    assert!(server.keeps(0, 7));
    // As a guest sees it whose daemon was started again in between.
    let (_disk, mut c) = server.attach(&near);
    server.dies_now();
    assert_eq!(c.read(0, 4096), Ok(vec![7; 4096]));
    assert!(server.has_died());
    assert_eq!(c.flush(), Ok(()), "a flush that succeeds is true");
}
