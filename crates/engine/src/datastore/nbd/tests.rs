//! The image alone with an emulated server, on a ring whose completions the test delivers.

use super::*;
use crate::blocking::BlockingWorker;
use crate::datastore::bytes;
use crate::datastore::condition::Harm;
use crate::sys::buffers::Buffers;
use crate::sys::ring::Ring;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use tidegate_core::request::{DiskId, Outcome};
use tidegate_front::nbd::client::handshake::Negotiated;
use tidegate_front::nbd::handshake::BlockSizes;
use tidegate_front::nbd::wire::REQUEST_BYTES;

const BLOCK: u64 = 4096;
const FLUSH: u16 = 3;
/// A test that waits for what never comes fails after so long.
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
    asked: u64,
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
            asked: 0,
        }
    }

    fn act<T>(&mut self, act: impl FnOnce(&mut Upstream, &mut ImageCx<'_>) -> T) -> T {
        let mut cx = ImageCx {
            now: self.now,
            disk: DiskId(0),
            ring: &mut self.ring,
            buffers: &mut self.buffers,
            finished: &mut self.finished,
            blocking: &self.blocking,
        };
        act(&mut self.image, &mut cx)
    }

    fn ask(&mut self, op: Op, len: u64) -> IoId {
        let buffer = self.buffers.claim_pool(bytes(len)).expect("memory");
        let io = IoId::from_bits(self.asked);
        self.asked += 1;
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

    /// Waits until an operation has ended, and delivers it and those that have too.
    fn step(&mut self) {
        let mut completions = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while completions.is_empty() {
            assert!(Instant::now() < deadline, "nothing is under way");
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

    /// The server takes a request with so many bytes behind it; returns its kind and its cookie.
    fn takes(&mut self, payload: u64) -> (u16, [u8; 8]) {
        let mut request = vec![0; REQUEST_BYTES + bytes(payload)];
        self.server.read_exact(&mut request).expect("a request");
        let kind = [request[6], request[7]];
        let cookie = request[8..16].try_into().expect("8 bytes");
        (u16::from_be_bytes(kind), cookie)
    }

    fn answers(&mut self, cookie: [u8; 8]) {
        let reply = [&0x6744_6698_u32.to_be_bytes(), &[0; 4][..], &cookie].concat();
        self.server.write_all(&reply).expect("it is taken");
    }

    fn outcome(&self, io: IoId) -> Option<Outcome> {
        let finished = self.finished.iter().find(|(_, ended, _)| *ended == io);
        finished.map(|(_, _, outcome)| *outcome)
    }

    fn close(&mut self) -> bool {
        self.act(|image, cx| image.close(cx))
    }

    /// Ends what is under way, however it stands, and closes the image.
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
fn requests_that_keep_coming_do_not_hide_that_the_server_is_silent() {
    let mut rig = Rig::new();
    rig.at(100);
    let first = rig.ask(Op::Read, BLOCK);
    rig.step();
    assert_eq!(rig.deadline(), seconds(130));
    for at in [110, 129] {
        rig.at(at);
        rig.ask(Op::Read, BLOCK);
        rig.step();
        assert_eq!(rig.deadline(), seconds(130), "they were sent, and no more");
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
fn an_answer_to_any_request_ends_the_servers_silence() {
    let mut rig = Rig::new();
    rig.at(100);
    let first = rig.ask(Op::Write, BLOCK);
    rig.step();
    rig.at(120);
    let second = rig.ask(Op::Write, BLOCK);
    rig.step();
    let (_, cookie) = rig.takes(BLOCK);
    rig.answers(cookie);
    rig.step();
    assert_eq!(rig.outcome(first), Some(Ok(())));
    assert_eq!(rig.deadline(), seconds(150));
    let (_, cookie) = rig.takes(BLOCK);
    rig.answers(cookie);
    rig.step();
    assert_eq!(rig.outcome(second), Some(Ok(())));
    assert_eq!(rig.deadline(), None, "nobody waits");
    rig.at(200);
    rig.ask(Op::Write, BLOCK);
    rig.step();
    assert_eq!(rig.deadline(), seconds(230));
    rig.end();
}

#[test]
fn a_large_write_that_moves_is_no_silence() {
    const LARGE: u64 = 4 << 20;
    let mut rig = Rig::new();
    rig.at(100);
    // What was answered before it does not count.
    rig.ask(Op::Write, BLOCK);
    rig.step();
    let (_, cookie) = rig.takes(BLOCK);
    rig.answers(cookie);
    rig.step();
    let write = rig.ask(Op::Write, LARGE);
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
        // All that was sent is taken, so more of it can go.
        now += 20;
        rig.at(now);
        rig.step();
        assert_eq!(rig.deadline(), seconds(now + 30));
    }
    assert!(now > 100, "the kernel takes it in more than one go");
    assert_eq!(rig.outcome(write), None);
    rig.end();
}

#[test]
fn a_last_flush_ends_by_the_servers_answer_or_with_the_patience() {
    for answered in [true, false] {
        let mut rig = Rig::new();
        rig.at(100);
        let write = rig.ask(Op::Write, BLOCK);
        rig.step();
        let (_, cookie) = rig.takes(BLOCK);
        rig.answers(cookie);
        rig.step();
        assert_eq!(rig.outcome(write), Some(Ok(())));
        rig.at(200);
        assert!(!rig.close());
        rig.step();
        let (kind, cookie) = rig.takes(0);
        assert_eq!(kind, FLUSH);
        assert!(!rig.close(), "it has no answer");
        assert_eq!(rig.deadline(), seconds(230));
        if answered {
            rig.answers(cookie);
        } else {
            rig.at(230);
            rig.act(|image, cx| image.tick(cx));
        }
        let mut closed = false;
        while !closed {
            rig.step();
            closed = rig.close();
        }
        let told = (!answered).then_some(Harm::FlushesFail);
        assert_eq!(rig.condition.harm(), told);
        assert_eq!(rig.finished.len(), 1, "no guest hears of it");
    }
}
