//! A minimal NBD server: a Unix socket, blocking threads, a disk in memory.
//!
//! It replaces the control thread and the I/O thread, so that real clients test the protocol alone. It records which 4
//! KiB blocks were written, so that it can report extents.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tidegate_core::request::{Extent, ExtentKind, Fault, Op};
use tidegate_front::nbd::bitmap::Bitmap;
use tidegate_front::nbd::handshake::{
    ExportInfo, Handshake, Negotiated, Refusal, Step as Shake, Tls,
};
use tidegate_front::nbd::session::{ClientRequest, Session, Step};
use tidegate_front::nbd::wire::{Abilities, REQUEST_BYTES};

const BLOCK: usize = 4096;

/// A disk in memory.
struct Memory {
    bytes: Vec<u8>,
    written: Vec<bool>,
}

impl Memory {
    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.written[at / BLOCK..=(at + bytes.len() - 1) / BLOCK].fill(true);
    }

    fn zero(&mut self, at: usize, len: usize) {
        self.bytes[at..at + len].fill(0);
        self.written[at.div_ceil(BLOCK)..((at + len) / BLOCK).max(at.div_ceil(BLOCK))].fill(false);
    }

    fn extents(&self, at: usize, len: usize) -> impl Iterator<Item = Extent> {
        let blocks = at / BLOCK..(at + len).div_ceil(BLOCK);
        blocks.map(move |block| {
            let start = (block * BLOCK).max(at);
            let kind = if self.written[block] {
                ExtentKind::Data
            } else {
                ExtentKind::Hole
            };
            Extent {
                len: ((block + 1) * BLOCK - start) as u64,
                kind,
            }
        })
    }
}

/// A server that runs as long as its test.
pub(crate) struct Server {
    folder: PathBuf,
}

impl Server {
    /// Serves `disk0`, of `size` bytes, to every client.
    pub(crate) fn start(test: &str, size: usize, more: Abilities) -> Server {
        let folder = std::env::temp_dir().join(format!("tg-nbd-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let listener = UnixListener::bind(folder.join("sock")).unwrap();
        let written = vec![false; size.div_ceil(BLOCK)];
        let disk = Arc::new(Mutex::new(Memory {
            bytes: vec![0; size],
            written,
        }));
        let export = export(size as u64, more);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (disk, export) = (Arc::clone(&disk), export.clone());
                let client = client.expect("a listening socket accepts");
                std::thread::spawn(move || {
                    // A client may disconnect within a message.
                    let _ = serve(client, &disk, &export);
                });
            }
        });
        Server { folder }
    }

    /// A directory for the test's files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The URI of an export.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!(
            "nbd+unix:///{export}?socket={}",
            self.folder.join("sock").display()
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn export(size: u64, more: Abilities) -> ExportInfo {
    let abilities = [
        Abilities::FLUSH,
        Abilities::FUA,
        Abilities::TRIM,
        Abilities::WRITE_ZEROES,
        Abilities::FAST_ZERO,
        Abilities::MULTI_CONN,
        Abilities::CACHE,
    ];
    ExportInfo {
        name: "disk0".to_owned(),
        description: "memory for a test".to_owned(),
        size,
        abilities: abilities.into_iter().fold(more, Abilities::with),
        bitmaps: vec!["monday".to_owned(), "tuesday".to_owned()],
        ..ExportInfo::default()
    }
}

fn serve(mut client: UnixStream, disk: &Mutex<Memory>, export: &ExportInfo) -> std::io::Result<()> {
    let mut input = Vec::new();
    let Some(negotiated) = negotiate(&mut client, &mut input, export)? else {
        return Ok(());
    };
    // Since monday the second 64 KiB differ, and the last; since tuesday nothing.
    let last = export.size - (64 << 10)..export.size;
    let bitmaps = negotiated.bitmaps.iter().map(|(id, name)| {
        let monday = vec![64 << 10..128 << 10, last.clone()];
        let ranges = if name == "monday" { monday } else { Vec::new() };
        (*id, Bitmap::new(ranges))
    });
    let session = Session::new(&negotiated).with_bitmaps(bitmaps.collect());
    loop {
        match session.decode(&input) {
            Step::Need(bytes) => receive(&mut client, &mut input, bytes)?,
            Step::Disconnect | Step::Violation(_) => return Ok(()),
            Step::Request(request) => {
                take(&mut client, &mut input, request.payload)?;
                let payload = &input[REQUEST_BYTES..][..request.payload as usize];
                let reply = perform(&session, &request, payload, &mut disk.lock().unwrap());
                client.write_all(&reply)?;
                input.drain(..REQUEST_BYTES + request.payload as usize);
            }
            Step::Refuse(request, fault) => {
                take(&mut client, &mut input, request.payload)?;
                client.write_all(session.done(&request, Err(fault)).as_bytes())?;
                input.drain(..REQUEST_BYTES + request.payload as usize);
            }
        }
    }
}

fn negotiate(
    client: &mut UnixStream,
    input: &mut Vec<u8>,
    export: &ExportInfo,
) -> std::io::Result<Option<Negotiated>> {
    let mut shake = Handshake::new(Tls::Off);
    loop {
        let mut out = Vec::new();
        let (used, step) = shake.advance(input, &mut out);
        input.drain(..used);
        match &step {
            Shake::Lookup(name) if name.is_empty() || *name == export.name => {
                shake.found(Ok(export.clone()), &mut out);
            }
            Shake::Lookup(_) => shake.found(Err(Refusal::Unknown), &mut out),
            Shake::List => shake.listed(Ok([("disk0", "memory for a test")]), &mut out),
            _ => {}
        }
        client.write_all(&out)?;
        match step {
            Shake::Need(bytes) => receive(client, input, bytes)?,
            Shake::Finished(negotiated) => return Ok(Some(negotiated)),
            Shake::Aborted | Shake::Violation(_) | Shake::StartTls => return Ok(None),
            Shake::Lookup(_) | Shake::List => {}
        }
    }
}

fn take(client: &mut UnixStream, input: &mut Vec<u8>, payload: u32) -> std::io::Result<()> {
    receive(client, input, REQUEST_BYTES + payload as usize)
}

/// Reads until `input` has at least `bytes` bytes.
fn receive(client: &mut UnixStream, input: &mut Vec<u8>, bytes: usize) -> std::io::Result<()> {
    let mut piece = vec![0; 64 << 10];
    while input.len() < bytes {
        match client.read(&mut piece)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            got => input.extend_from_slice(&piece[..got]),
        }
    }
    Ok(())
}

/// Executes a request and returns the whole reply.
fn perform(
    session: &Session,
    request: &ClientRequest,
    payload: &[u8],
    disk: &mut Memory,
) -> Vec<u8> {
    let at = usize::try_from(request.offset).expect("the disk is in memory");
    let len = request.len as usize;
    let mut reply = Vec::new();
    match request.op {
        Op::Read => {
            reply.extend_from_slice(session.data(request).as_bytes());
            reply.extend_from_slice(&disk.bytes[at..at + len]);
            return reply;
        }
        Op::Extents => {
            session.extents(request, disk.extents(at, len), &mut reply);
            return reply;
        }
        Op::Write => disk.write(at, payload),
        Op::WriteZeroes | Op::Discard => disk.zero(at, len),
        Op::Flush | Op::Prefetch => {}
    }
    // Used by the tests: a disk whose first byte is 0xEE fails its flushes.
    let outcome = if request.op == Op::Flush && disk.bytes[0] == 0xee {
        Err(Fault::Io)
    } else {
        Ok(())
    };
    reply.extend_from_slice(session.done(request, outcome).as_bytes());
    reply
}
