//! Tests of the image alone with an emulated server; the test delivers the completions of the ring.

use super::*;
use crate::blocking::BlockingWorker;
use crate::datastore::bytes;
use crate::datastore::condition::Harm;
use crate::sys::buffers::Buffers;
use crate::sys::ring::Ring;
use crate::tag::ImageId;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use tidegate_core::request::{DiskId, Outcome};
use tidegate_front::nbd::client::handshake::Negotiated;
use tidegate_front::nbd::handshake::BlockSizes;
use tidegate_front::nbd::wire::REQUEST_BYTES;

const BLOCK: u64 = 4096;
const FLUSH: u16 = 3;
/// Deadline of a test that waits.
const PATIENCE: Duration = Duration::from_secs(60);

/// An image, and the server's end of its connection.
struct Rig {
    image: Upstream,
    condition: Arc<Condition>,
    server: UnixStream,
    now: Time,
    ring: Ring,
    buffers: Buffers,
    blocking: BlockingWorker,
    finished: Vec<(DiskId, IoId, Outcome)>,
    submitted: u64,
}

impl Rig {
    fn new() -> Rig {
        let (ours, server) = UnixStream::pair().expect("a pair of sockets");
        let patience = Some(PATIENCE);
        server.set_read_timeout(patience).expect("a socket");
        let connected = Connected {
            socket: ours.into(),
            agreed: Negotiated {
                size: 1 << 30,
                abilities: Abilities::HAS_FLAGS.with(Abilities::FLUSH),
                block: BlockSizes::default(),
                structured: false,
                context: None,
            },
        };
        let target = Arc::new(Target {
            uri: uri_of("/nowhere").expect("a path"),
            patience: Duration::ZERO,
        });
        let condition = Arc::default();
        let options = Options::default();
        Rig {
            image: Upstream::new(target, connected, &options, &condition),
            condition,
            server,
            now: Time::ZERO,
            ring: Ring::new().expect("a ring"),
            buffers: Buffers::new(),
            blocking: BlockingWorker::start("test", |_, _| ()).expect("a thread"),
            finished: Vec::new(),
            submitted: 0,
        }
    }

    fn act<T>(&mut self, act: impl FnOnce(&mut Upstream, &mut ImageCx<'_>) -> T) -> T {
        let mut cx = ImageCx {
            now: self.now,
            image: ImageId::first(DiskId(0)),
            ring: &mut self.ring,
            buffers: &mut self.buffers,
            finished: &mut self.finished,
            blocking: &self.blocking,
        };
        act(&mut self.image, &mut cx)
    }

    fn submit(&mut self, op: Op, len: u64) -> IoId {
        let buffer = self
            .buffers
            .claim_pool(DiskId(0), bytes(len))
            .expect("memory");
        let io = IoId::from_bits(self.submitted);
        self.submitted += 1;
        let job = Job {
            io,
            op,
            flags: Flags::NONE,
            offset: 0,
            len,
            data: Data { buffer, start: 0 },
        };
        let progress = self.act(|image, cx| image.start(cx, job));
        assert_eq!(progress, Progress::Pending);
        io
    }

    /// Waits until an operation completes, and delivers all completions.
    fn step(&mut self) {
        let mut completions = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while completions.is_empty() {
            assert!(Instant::now() < deadline, "nothing is in flight");
            self.ring.wait(Some(Span::from_secs(1)));
            self.ring.reap(2, &mut completions);
        }
        for completion in completions {
            self.act(|image, cx| image.completed(cx, completion));
        }
    }

    fn at(&mut self, seconds: u64) {
        self.now = Time::ZERO + Span::from_secs(seconds);
    }

    fn deadline(&self) -> Option<Time> {
        self.image.deadline()
    }

    /// The server reads a request with this many payload bytes; returns its type and its cookie.
    fn read_request(&mut self, payload: u64) -> (u16, [u8; 8]) {
        let mut request = vec![0; REQUEST_BYTES + bytes(payload)];
        self.server.read_exact(&mut request).expect("a request");
        let kind = [request[6], request[7]];
        let cookie = request[8..16].try_into().expect("8 bytes");
        (u16::from_be_bytes(kind), cookie)
    }

    fn reply(&mut self, cookie: [u8; 8]) {
        let reply = [&0x6744_6698_u32.to_be_bytes(), &[0; 4][..], &cookie].concat();
        self.server.write_all(&reply).expect("the reply is sent");
    }

    fn outcome(&self, io: IoId) -> Option<Outcome> {
        let finished = self.finished.iter().find(|(_, ended, _)| *ended == io);
        finished.map(|(_, _, outcome)| *outcome)
    }

    fn close(&mut self) -> bool {
        self.act(|image, cx| image.close(cx))
    }

    /// Ends what is in flight, and closes the image.
    fn end(mut self) {
        self.act(|image, cx| image.give_up(cx));
        while self.image.connection.is_some() {
            self.step();
        }
        assert!(self.close());
    }
}

fn seconds(seconds: u64) -> Option<Time> {
    Some(Time::ZERO + Span::from_secs(seconds))
}

#[test]
fn new_requests_do_not_extend_a_silent_servers_timeout() {
    let mut rig = Rig::new();
    rig.at(100);
    let first = rig.submit(Op::Read, BLOCK);
    rig.step();
    assert_eq!(rig.deadline(), seconds(130));
    for at in [110, 129] {
        rig.at(at);
        rig.submit(Op::Read, BLOCK);
        rig.step();
        assert_eq!(
            rig.deadline(),
            seconds(130),
            "a sent request does not end the silence"
        );
    }
    rig.at(130);
    rig.act(|image, cx| image.tick(cx));
    while rig.finished.len() < 3 {
        rig.step();
    }
    assert_eq!(rig.outcome(first), Some(Err(Fault::Io)));
    rig.end();
}

#[test]
fn a_reply_to_any_request_ends_the_servers_silence() {
    let mut rig = Rig::new();
    rig.at(100);
    let first = rig.submit(Op::Write, BLOCK);
    rig.step();
    rig.at(120);
    let second = rig.submit(Op::Write, BLOCK);
    rig.step();
    let (_, cookie) = rig.read_request(BLOCK);
    rig.reply(cookie);
    rig.step();
    assert_eq!(rig.outcome(first), Some(Ok(())));
    assert_eq!(rig.deadline(), seconds(150));
    let (_, cookie) = rig.read_request(BLOCK);
    rig.reply(cookie);
    rig.step();
    assert_eq!(rig.outcome(second), Some(Ok(())));
    assert_eq!(rig.deadline(), None, "no request waits");
    rig.at(200);
    rig.submit(Op::Write, BLOCK);
    rig.step();
    assert_eq!(rig.deadline(), seconds(230));
    rig.end();
}

#[test]
fn progress_of_a_large_write_extends_the_timeout() {
    const LARGE: u64 = 4 << 20;
    let mut rig = Rig::new();
    rig.at(100);
    // Replies before the write do not count.
    rig.submit(Op::Write, BLOCK);
    rig.step();
    let (_, cookie) = rig.read_request(BLOCK);
    rig.reply(cookie);
    rig.step();
    let write = rig.submit(Op::Write, LARGE);
    rig.step();
    rig.server.set_nonblocking(true).expect("a socket");
    let mut left = REQUEST_BYTES + bytes(LARGE);
    let mut piece = vec![0; 1 << 20];
    let mut now = 100;
    while left > 0 {
        if let Ok(got) = rig.server.read(&mut piece) {
            left -= got;
            continue;
        }
        // All sent data was read, so more can be sent.
        now += 20;
        rig.at(now);
        rig.step();
        assert_eq!(rig.deadline(), seconds(now + 30));
    }
    assert!(now > 100, "the kernel sends it in more than one piece");
    assert_eq!(rig.outcome(write), None);
    rig.end();
}

#[test]
fn the_last_flush_ends_by_a_reply_or_by_timeout() {
    for answered in [true, false] {
        let mut rig = Rig::new();
        rig.at(100);
        let write = rig.submit(Op::Write, BLOCK);
        rig.step();
        let (_, cookie) = rig.read_request(BLOCK);
        rig.reply(cookie);
        rig.step();
        assert_eq!(rig.outcome(write), Some(Ok(())));
        rig.at(200);
        assert!(!rig.close());
        rig.step();
        let (kind, cookie) = rig.read_request(0);
        assert_eq!(kind, FLUSH);
        assert!(!rig.close(), "the flush has no reply");
        assert_eq!(rig.deadline(), seconds(230));
        if answered {
            rig.reply(cookie);
        } else {
            rig.at(230);
            rig.act(|image, cx| image.tick(cx));
        }
        let mut closed = false;
        while !closed {
            rig.step();
            closed = rig.close();
        }
        let expected = (!answered).then_some(Harm::FlushesFail);
        assert_eq!(rig.condition.harm(), expected);
        assert_eq!(rig.finished.len(), 1, "the last flush belongs to no guest");
    }
}
