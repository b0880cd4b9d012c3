//! Tests our NBD server with other clients, and our NBD client with other servers.
//!
//! They come from the Debian packages libnbd-bin, nbdkit, python3-libnbd and qemu-utils. A missing one fails the test.

#![expect(
    clippy::unwrap_used,
    reason = "what fails in a test's helper fails the test"
)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidegate_core::request::{Extent, ExtentKind, Flags, Op};
use tidegate_front::nbd::client::handshake::{Handshake, Negotiated, Preferences, Step};
use tidegate_front::nbd::client::requests::{
    Part, Replies, Sent, Step as Heard, What, disconnect, extents,
};
use tidegate_front::nbd::wire::Abilities;

#[path = "nbd_peers/server.rs"]
mod server;

use server::Server;

const MIB: usize = 1 << 20;

/// Runs a program, for at most a minute, and returns its output.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    // Debian's nbdsh needs Debian's python, whatever comes first in the path.
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("timeout")
        .env("PATH", format!("/usr/bin:{path}"))
        .args(["--kill-after=5", "60", program])
        .args(arguments)
        .output()
        .expect("timeout is in coreutils");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    match output.status.code() {
        Some(0) => Ok(text),
        Some(127) => panic!(
            "{program} is missing: apt-get install libnbd-bin nbdkit python3-libnbd qemu-utils"
        ),
        Some(124 | 137) => panic!("{program} {arguments:?} did not end: {text}"),
        _ => Err(text),
    }
}

fn good(program: &str, arguments: &[&str]) -> String {
    run(program, arguments).unwrap_or_else(|text| panic!("{program} {arguments:?}: {text}"))
}

/// Random bytes with holes.
fn sample_bytes(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut bytes = vec![0; len];
    for (index, block) in bytes.chunks_mut(4096).enumerate() {
        if index % 7 < 3 {
            continue;
        }
        for byte in block {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            *byte = state.to_be_bytes()[0];
        }
    }
    bytes
}

#[test]
fn nbdinfo_reads_all_export_information() {
    let server = Server::start("info", 8 * MIB + 512, Abilities::NONE);
    let output = good("nbdinfo", &[&server.uri("disk0")]);
    for line in [
        "newstyle-fixed without TLS, using structured packets",
        "export-size: 8389120",
        "content:",
        "base:allocation",
        "is_read_only: false",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: true",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
    ] {
        assert!(output.contains(line), "{line} is not in:\n{output}");
    }
    let output = good("nbdinfo", &["--list", "--json", &server.uri("")]);
    assert!(output.contains("\"export-name\": \"disk0\""), "{output}");
    assert!(output.contains("memory for a test"), "{output}");
    let refused = run("nbdinfo", &[&server.uri("nope")]).unwrap_err();
    assert!(refused.contains("for export: nope"), "{refused}");
}

#[test]
fn nbdinfo_and_qemu_img_read_a_dirty_bitmap() {
    let server = Server::start("bitmap", 4 * MIB, Abilities::READ_ONLY);
    let uri = server.uri("disk0");
    let info = good("nbdinfo", &[&uri]);
    for context in ["qemu:dirty-bitmap:monday", "qemu:dirty-bitmap:tuesday"] {
        assert!(info.contains(context), "{info}");
    }
    let map = |context: &str| -> Vec<(u64, u64, u64)> {
        let context = format!("--map={context}");
        let told = good("nbdinfo", &[&context, "--json", &uri]);
        let numbers = |line: &str, key: &str| {
            let at = line.find(key)? + key.len();
            let digits = line[at..].trim_start_matches(['"', ':', ' ']);
            let end = digits.find(|c: char| !c.is_ascii_digit());
            digits[..end.unwrap_or(digits.len())].parse().ok()
        };
        let entries = told.split('}').filter_map(|line| {
            let [offset, length, kind] = ["offset", "length", "type"].map(|key| numbers(line, key));
            Some((offset?, length?, kind?))
        });
        entries.collect()
    };
    let (kib64, all) = (64 << 10, 4 * MIB as u64);
    let monday = [
        (0, kib64, 0),
        (kib64, kib64, 1),
        (2 * kib64, all - 3 * kib64, 0),
        (all - kib64, kib64, 1),
    ];
    assert_eq!(map("qemu:dirty-bitmap:monday"), monday);
    assert_eq!(map("qemu:dirty-bitmap:tuesday"), [(0, all, 0)]);
    // QEMU shows what is dirty as not allocated (`data` is false).
    let socket = server.folder().join("sock");
    let image = format!(
        "driver=nbd,server.type=unix,server.path={},export=disk0,x-dirty-bitmap=qemu:dirty-bitmap:monday",
        socket.display()
    );
    let told = good(
        "qemu-img",
        &["map", "--output=json", "--image-opts", &image],
    );
    let dirty: Vec<&str> = told
        .lines()
        .filter(|line| line.contains("\"data\": false"))
        .collect();
    assert_eq!(dirty.len(), 2, "{told}");
    assert!(
        dirty[0].contains("\"start\": 65536, \"length\": 65536"),
        "{told}"
    );
    let nothing = image.replace("monday", "friday");
    let refused = run(
        "qemu-img",
        &["map", "--output=json", "--image-opts", &nothing],
    );
    assert!(refused.is_err());
}

#[test]
fn nbdinfo_maps_a_disk() {
    let server = Server::start("map", 8 * MIB, Abilities::NONE);
    let uri = server.uri("disk0");
    good(
        "qemu-io",
        &["-f", "raw", "-c", "write 1M 2M", "-c", "write 5M 512", &uri],
    );
    let output = good("nbdinfo", &["--map", &uri]);
    let map: Vec<Vec<&str>> = output
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        map,
        [
            ["0", "1048576", "3", "hole,zero"],
            ["1048576", "2097152", "0", "data"],
            ["3145728", "2097152", "3", "hole,zero"],
            ["5242880", "4096", "0", "data"],
            ["5246976", "3141632", "3", "hole,zero"],
        ]
    );
}

#[test]
fn nbdcopy_reads_back_what_it_wrote() {
    let server = Server::start("copy", 64 * MIB, Abilities::NONE);
    let (there, back) = (server.folder().join("there"), server.folder().join("back"));
    std::fs::write(&there, sample_bytes(64 * MIB)).unwrap();
    let (there, back) = (there.to_str().unwrap(), back.to_str().unwrap());
    good("nbdcopy", &["--flush", there, &server.uri("disk0")]);
    good("nbdcopy", &[&server.uri("disk0"), back]);
    assert!(std::fs::read(there).unwrap() == std::fs::read(back).unwrap());
    // The largest requests, one at a time.
    good(
        "nbdcopy",
        &[
            "--request-size=33554432",
            "--requests=1",
            &server.uri(""),
            back,
        ],
    );
    assert!(std::fs::read(there).unwrap() == std::fs::read(back).unwrap());
}

#[test]
fn qemu_img_converts_compares_and_checks() {
    let server = Server::start("img", 16 * MIB, Abilities::NONE);
    let uri = server.uri("disk0");
    let (raw, qcow2) = (server.folder().join("raw"), server.folder().join("qcow2"));
    std::fs::write(&raw, sample_bytes(16 * MIB)).unwrap();
    let (raw, qcow2) = (raw.to_str().unwrap(), qcow2.to_str().unwrap());
    assert!(good("qemu-img", &["info", &uri]).contains("virtual size: 16 MiB"));
    good(
        "qemu-img",
        &["convert", "-n", "-f", "raw", "-O", "raw", raw, &uri],
    );
    good(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", raw, &uri],
    );
    good(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "qcow2", &uri, qcow2],
    );
    good("qemu-img", &["check", qcow2]);
    good(
        "qemu-img",
        &["compare", "-f", "qcow2", "-F", "raw", qcow2, &uri],
    );
    let map = good("qemu-img", &["map", "--output=json", "-f", "raw", &uri]);
    assert!(
        map.contains("\"present\": false") || map.contains("\"zero\": true"),
        "{map}"
    );
}

#[test]
fn qemu_io_reads_back_its_patterns() {
    let server = Server::start("io", 8 * MIB, Abilities::NONE);
    let mut arguments = vec!["-f", "raw"];
    for command in [
        "write -P 0xab 3 5000",
        "write -f -P 0xcd 1M 64k",
        "write -z -u 1030k 8k",
        "write -z 1050k 4k",
        "discard 2M 1M",
        "flush",
        "aio_write -P 0x11 4M 1M",
        "aio_write -P 0x22 5M 1M",
        "aio_flush",
        "read -P 0xab 3 5000",
        "read -P 0xcd 1M 6k",
        "read -P 0 1030k 8k",
        "read -P 0 1050k 4k",
        "read -P 0x11 4M 1M",
        "read -P 0x22 5M 1M",
    ] {
        arguments.extend(["-c", command]);
    }
    let uri = server.uri("disk0");
    arguments.push(&uri);
    let output = good("qemu-io", &arguments);
    assert!(!output.contains("Pattern verification failed"), "{output}");
}

#[test]
fn a_read_only_export_can_be_read_but_not_written() {
    let server = Server::start("ro", MIB, Abilities::READ_ONLY);
    let uri = server.uri("disk0");
    assert!(good("nbdinfo", &[&uri]).contains("is_read_only: true"));
    good(
        "qemu-io",
        &["-r", "-f", "raw", "-c", "read -P 0 0 1M", &uri],
    );
    assert!(run("qemu-io", &["-f", "raw", "-c", "write 0 512", &uri]).is_err());
}

/// Sends invalid requests, which libnbd in strict mode would reject, and expects the protocol's errors.
const SCRIPT: &str = r#"
import errno
h.set_strict_mode(0)
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
size = h.get_size()

def refused(number, act):
    try:
        act()
    except nbd.Error as error:
        assert error.errnum == number, (error.errnum, number)
    else:
        raise AssertionError("it was not rejected")

refused(errno.ENOSPC, lambda: h.pwrite(b"x" * 512, size))
refused(errno.ENOSPC, lambda: h.zero(512, size - 511))
refused(errno.EINVAL, lambda: h.pread(512, size))
refused(errno.EINVAL, lambda: h.trim(512, size))
refused(errno.EINVAL, lambda: h.pread(0, 0))
refused(errno.EINVAL, lambda: h.pread(512, 0, 1 << 15))
refused(errno.EINVAL, lambda: h.pread((32 << 20) + 1, 0))
refused(errno.EINVAL, lambda: h.pwrite(bytearray((32 << 20) + 1), 0))

# What was refused has left the stream in order.
h.pwrite(b"tide" * 1024, 8192, nbd.CMD_FLAG_FUA)
assert h.pread(4096, 8192, nbd.CMD_FLAG_DF) == b"tide" * 1024
h.zero(4096, 8192, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FAST_ZERO)
assert h.pread(4096, 8192) == bytearray(4096)
h.pwrite(b"gate", 0)
h.cache(size, 0)
h.trim(4096, 65536)
h.flush()

def status(flags):
    entries = []
    h.block_status(size, 0, lambda context, offset, some, error: entries.extend(some), flags)
    return entries

assert status(0) == [4096, 0, size - 4096, 3], status(0)
assert status(nbd.CMD_FLAG_REQ_ONE) == [4096, 0]

# Many requests at once, each with its own reply.
buffers = [nbd.Buffer(4096) for _ in range(64)]
for i, buffer in enumerate(buffers):
    h.pwrite(bytes([i]) * 4096, 4096 * i)
cookies = [h.aio_pread(buffer, 4096 * i) for i, buffer in enumerate(buffers)]
for cookie in cookies:
    while not h.aio_command_completed(cookie):
        h.poll(-1)
for i, buffer in enumerate(buffers):
    assert buffer.to_bytearray() == bytes([i]) * 4096

# A failing disk returns errors.
h.pwrite(b"\xee", 0)
refused(errno.EIO, lambda: h.flush())
h.shutdown()

plain = nbd.NBD()
plain.set_request_structured_replies(False)
plain.connect_uri(uri)
assert not plain.get_structured_replies_negotiated()
assert plain.pread(4096, 4096) == bytes([1]) * 4096
plain.set_strict_mode(0)
refused(errno.EINVAL, lambda: plain.pread(512, size))
refused(errno.EINVAL, lambda: plain.pread(512, 0, nbd.CMD_FLAG_DF))
plain.shutdown()
print("done")
"#;

#[test]
fn nbdsh_gets_the_protocols_replies_to_valid_and_invalid_requests() {
    let server = Server::start("sh", 128 * MIB, Abilities::NONE);
    let script = format!("uri = {:?}\n{SCRIPT}", server.uri("disk0"));
    let output = good("nbdsh", &["-c", &script]);
    assert!(output.contains("done"), "{output}");
}

/// Our client on a blocking socket.
struct Client {
    socket: UnixStream,
    input: Vec<u8>,
    negotiated: Negotiated,
    replies: Replies,
}

impl Client {
    fn connect(path: &Path, export: &str, structured: bool) -> Client {
        let mut socket = UnixStream::connect(path).unwrap();
        let preferences = Preferences {
            export: export.to_owned(),
            structured,
            extents: structured,
            tls: false,
        };
        let mut shake = Handshake::new(preferences);
        let mut input = Vec::new();
        let negotiated = loop {
            let mut out = Vec::new();
            let (used, step) = shake.advance(&input, &mut out);
            input.drain(..used);
            socket.write_all(&out).unwrap();
            match step {
                Step::Need(bytes) => fill(&mut socket, &mut input, bytes),
                Step::Finished(negotiated) => break negotiated,
                other => panic!("{other:?}"),
            }
        };
        let replies = Replies::new(&negotiated);
        Client {
            socket,
            input,
            negotiated,
            replies,
        }
    }

    /// Sends a request and waits for the whole reply: the bytes read, or the extents.
    fn request(&mut self, sent: Sent, payload: &[u8]) -> (Vec<u8>, Vec<Extent>) {
        self.socket.write_all(&sent.encode(7)).unwrap();
        self.socket.write_all(payload).unwrap();
        let mut read = vec![
            0;
            if sent.op == Op::Read {
                sent.len as usize
            } else {
                0
            }
        ];
        let mut found = Vec::new();
        loop {
            let step = self
                .replies
                .decode(&self.input, |cookie| (cookie == 7).then_some(sent));
            let Part {
                what,
                last,
                consumed,
                ..
            } = match step {
                Heard::Need(bytes) => {
                    fill(&mut self.socket, &mut self.input, bytes);
                    continue;
                }
                Heard::Part(part) => part,
                Heard::Violation(violation) => panic!("{violation}"),
            };
            self.input.drain(..consumed);
            match what {
                What::Data { offset, len } => {
                    let at = usize::try_from(offset - sent.offset).unwrap();
                    let payload = self.payload(len);
                    read[at..at + payload.len()].copy_from_slice(&payload);
                }
                What::Extents { bytes } => {
                    let payload = self.payload(bytes);
                    found.extend(extents(&payload));
                }
                What::Zeroes { .. } | What::Nothing => {}
                What::Failed(fault) => panic!("{fault:?}"),
            }
            if last {
                return (read, found);
            }
        }
    }

    fn payload(&mut self, len: u32) -> Vec<u8> {
        fill(&mut self.socket, &mut self.input, len as usize);
        self.input.drain(..len as usize).collect()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.socket.write_all(&disconnect());
    }
}

fn fill(socket: &mut UnixStream, input: &mut Vec<u8>, bytes: usize) {
    let mut piece = [0; 4096];
    while input.len() < bytes {
        let got = socket.read(&mut piece).unwrap();
        assert!(got > 0, "the server hung up");
        input.extend_from_slice(&piece[..got]);
    }
}

/// Writes, reads back, and requests extents of `size` bytes on another server's disk.
fn exercise(path: &Path, export: &str, structured: bool) {
    let mut client = Client::connect(path, export, structured);
    assert_eq!(client.negotiated.structured, structured);
    assert_eq!(client.negotiated.context.is_some(), structured);
    let size = client.negotiated.size;
    assert_eq!(size, 4 << 20);
    let sent = |op, offset, len| Sent {
        op,
        flags: Flags::NONE,
        offset,
        len,
    };
    let bytes = sample_bytes(64 << 10);
    let write = Sent {
        flags: Flags::FUA,
        ..sent(Op::Write, 1 << 20, 64 << 10)
    };
    client.request(write, &bytes);
    client.request(sent(Op::Flush, 0, 0), &[]);
    let (read, _) = client.request(sent(Op::Read, (1 << 20) - 4096, 72 << 10), &[]);
    assert!(read[..4096].iter().all(|byte| *byte == 0));
    assert!(read[4096..][..64 << 10] == bytes);
    let zeroes = Sent {
        flags: Flags::MAY_UNMAP,
        ..sent(Op::WriteZeroes, 1 << 20, 64 << 10)
    };
    client.request(zeroes, &[]);
    let (read, _) = client.request(sent(Op::Read, 1 << 20, 64 << 10), &[]);
    assert!(read.iter().all(|byte| *byte == 0));
    if structured {
        let (_, found) = client.request(sent(Op::Extents, 0, 4 << 20), &[]);
        assert_eq!(
            found.first().map(|extent| extent.kind),
            Some(ExtentKind::Hole)
        );
    }
}

/// Another program's server. It ends with the test.
struct Theirs {
    folder: PathBuf,
}

impl Theirs {
    /// Starts a program that moves to the background once it listens.
    fn start(program: &str, arguments: impl FnOnce(&Path) -> Vec<String>) -> Theirs {
        let folder = std::env::temp_dir().join(format!("tg-{program}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let theirs = Theirs { folder };
        let status = Command::new(program)
            .args(arguments(&theirs.folder))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match status {
            Ok(status) => assert!(status.success(), "{program} did not start: {status}"),
            Err(error) => panic!("{program}: {error}: apt-get install nbdkit qemu-utils"),
        }
        theirs
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("sock")
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        if let Ok(pid) = std::fs::read_to_string(self.folder.join("pid")) {
            let _ = Command::new("kill").arg(pid.trim()).status();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn our_client_reads_and_writes_on_nbdkit() {
    let server = Theirs::start("nbdkit", |folder| {
        let (socket, pid) = (folder.join("sock"), folder.join("pid"));
        let (socket, pid) = (socket.display(), pid.display());
        format!("-U {socket} -P {pid} memory 4M")
            .split(' ')
            .map(String::from)
            .collect()
    });
    exercise(&server.socket(), "", true);
    exercise(&server.socket(), "", false);
}

#[test]
fn our_client_reads_and_writes_on_qemu_nbd() {
    let server = Theirs::start("qemu-nbd", |folder| {
        let image = folder.join("image");
        std::fs::File::create(&image)
            .unwrap()
            .set_len(4 << 20)
            .unwrap();
        let (socket, pid) = (folder.join("sock"), folder.join("pid"));
        let (socket, pid, image) = (socket.display(), pid.display(), image.display());
        let options = "--fork -t -e 4 -f raw -x disk0 --discard=unmap";
        let line = format!("{options} --pid-file {pid} -k {socket} {image}");
        line.split(' ').map(String::from).collect()
    });
    exercise(&server.socket(), "disk0", true);
    exercise(&server.socket(), "disk0", false);
}
