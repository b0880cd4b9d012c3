//! A blocking NBD client for tests.
//!
//! It starts after the handshake, with the options that [`super::rig`] negotiated.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tidegate_core::request::{Extent, Fault, Flags, Op};
use tidegate_engine::nbd::client::handshake::Negotiated;
use tidegate_engine::nbd::client::requests::{self, Replies, Sent, Step, What};

/// Deadline of a test that waits for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a request.
pub(crate) type Answer = Result<Vec<u8>, Fault>;

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
    replies: Replies,
    next: u64,
    pending: HashMap<u64, (Sent, Answer)>,
    input: Vec<u8>,
}

impl Client {
    pub(crate) fn new(stream: UnixStream, agreed: &Negotiated) -> Client {
        stream
            .set_read_timeout(Some(PATIENCE))
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .expect("a socket takes timeouts");
        Client {
            stream,
            replies: Replies::new(agreed),
            next: 0,
            pending: HashMap::new(),
            input: Vec::new(),
        }
    }

    /// Sends a request; returns the cookie of its answer.
    pub(crate) fn send(
        &mut self,
        op: Op,
        flags: Flags,
        offset: u64,
        len: u32,
        payload: &[u8],
    ) -> u64 {
        let cookie = self.next;
        self.next += 1;
        let sent = Sent {
            op,
            flags,
            offset,
            len,
        };
        let room = if op == Op::Read { len as usize } else { 0 };
        self.pending.insert(cookie, (sent, Ok(vec![0; room])));
        let mut message = sent.encode(cookie).to_vec();
        message.extend_from_slice(payload);
        self.stream
            .write_all(&message)
            .expect("the server accepts requests");
        cookie
    }

    /// Waits for the next answer to any request; `None` if the server has closed the connection.
    pub(crate) fn next_answer(&mut self) -> Option<(u64, Answer)> {
        loop {
            let pending = &self.pending;
            match self
                .replies
                .decode(&self.input, |cookie| pending.get(&cookie).map(|a| a.0))
            {
                Step::Need(_) => self.more()?,
                Step::Violation(violation) => {
                    panic!("the server violated the protocol: {violation}")
                }
                Step::Part(part) => {
                    self.input.drain(..part.consumed);
                    self.take(part.cookie, part.what)?;
                    if part.last {
                        let (_, answer) = self
                            .pending
                            .remove(&part.cookie)
                            .expect("the request was sent");
                        return Some((part.cookie, answer));
                    }
                }
            }
        }
    }

    fn take(&mut self, cookie: u64, what: What) -> Option<()> {
        let (bytes, at) = match what {
            What::Nothing | What::Zeroes { .. } => return Some(()),
            What::Failed(fault) => {
                self.pending
                    .get_mut(&cookie)
                    .expect("the request was sent")
                    .1 = Err(fault);
                return Some(());
            }
            What::Data { offset, len } => (len, Some(offset)),
            What::Extents { bytes } => (bytes, None),
        };
        let len = bytes as usize;
        while self.input.len() < len {
            self.more()?;
        }
        let data: Vec<u8> = self.input.drain(..len).collect();
        let (sent, answer) = self.pending.get_mut(&cookie).expect("the request was sent");
        if let Ok(buffer) = answer {
            match at {
                Some(offset) => {
                    let from = usize::try_from(offset - sent.offset).expect("small");
                    buffer[from..from + len].copy_from_slice(&data);
                }
                None => buffer.extend(data),
            }
        }
        Some(())
    }

    fn more(&mut self) -> Option<()> {
        let mut bytes = vec![0; 256 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => None,
            Ok(got) => {
                self.input.extend_from_slice(&bytes[..got]);
                Some(())
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    fn one(&mut self, op: Op, flags: Flags, offset: u64, len: u32, payload: &[u8]) -> Answer {
        let cookie = self.send(op, flags, offset, len, payload);
        let (answered, answer) = self.next_answer().expect("the server answers");
        assert_eq!(answered, cookie, "one request, one answer");
        answer
    }

    pub(crate) fn read(&mut self, offset: u64, len: u32) -> Answer {
        self.one(Op::Read, Flags::NONE, offset, len, &[])
    }

    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.write_with(Flags::NONE, offset, bytes)
    }

    pub(crate) fn write_with(
        &mut self,
        flags: Flags,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let len = u32::try_from(bytes.len()).expect("small");
        self.one(Op::Write, flags, offset, len, bytes).map(drop)
    }

    pub(crate) fn flush(&mut self) -> Result<(), Fault> {
        self.one(Op::Flush, Flags::NONE, 0, 0, &[]).map(drop)
    }

    pub(crate) fn discard(&mut self, offset: u64, len: u32) -> Result<(), Fault> {
        self.one(Op::Discard, Flags::NONE, offset, len, &[])
            .map(drop)
    }

    pub(crate) fn write_zeroes(
        &mut self,
        flags: Flags,
        offset: u64,
        len: u32,
    ) -> Result<(), Fault> {
        self.one(Op::WriteZeroes, flags, offset, len, &[]).map(drop)
    }

    pub(crate) fn extents(&mut self, offset: u64, len: u32) -> Vec<Extent> {
        self.try_extents(offset, len).expect("extents are returned")
    }

    pub(crate) fn try_extents(&mut self, offset: u64, len: u32) -> Result<Vec<Extent>, Fault> {
        let bytes = self.one(Op::Extents, Flags::NONE, offset, len, &[])?;
        Ok(requests::extents(&bytes).collect())
    }
}

/// A pattern that depends on the offset and the round.
pub(crate) fn pattern(offset: u64, round: u64, len: usize) -> Vec<u8> {
    let word = |at: u64| {
        (at ^ round.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd)
    };
    (0..len)
        .map(|i| {
            let at = offset + i as u64;
            word(at / 8).to_le_bytes()[(at % 8) as usize]
        })
        .collect()
}

/// A small random generator, for reproducible tests.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

/// Writes and reads at random offsets in `from..to`, with sizes in multiples of `unit`, several at a time. Checks that
/// each byte was last written there.
pub(crate) struct Verifier {
    pub(crate) client: Client,
    pub(crate) random: Random,
    from: u64,
    unit: u64,
    mirror: Vec<u8>,
    round: u64,
}

impl Verifier {
    /// The range must contain zeroes.
    pub(crate) fn new(client: Client, from: u64, to: u64, unit: u64, seed: u64) -> Verifier {
        let len = usize::try_from(to - from).expect("small");
        Verifier {
            client,
            random: Random(seed),
            from,
            unit,
            mirror: vec![0; len],
            round: seed << 32,
        }
    }

    /// One batch: writes to ranges that do not overlap, then reads them and others back.
    pub(crate) fn round(&mut self) {
        let slots = 8_u64;
        let stride = self.mirror.len() as u64 / slots / self.unit * self.unit;
        let mut pending = HashMap::new();
        for slot in 0..slots {
            self.round += 1;
            let (at, len) = self.random_range(slot * stride, stride);
            let bytes = pattern(self.from + at, self.round, len);
            let flags = if self.random.below(8) == 0 {
                Flags::FUA
            } else {
                Flags::NONE
            };
            let start = usize::try_from(at).expect("small");
            self.mirror[start..start + len].copy_from_slice(&bytes);
            let size = u32::try_from(len).expect("small");
            pending.insert(
                self.client
                    .send(Op::Write, flags, self.from + at, size, &bytes),
                (),
            );
        }
        while !pending.is_empty() {
            let (cookie, answer) = self.client.next_answer().expect("the server answers");
            assert_eq!(answer.map(drop), Ok(()), "a write failed");
            pending.remove(&cookie);
        }
        let mut reads = HashMap::new();
        for slot in 0..slots {
            let (at, len) = self.random_range(slot * stride, stride);
            let size = u32::try_from(len).expect("small");
            let cookie = self
                .client
                .send(Op::Read, Flags::NONE, self.from + at, size, &[]);
            reads.insert(cookie, (usize::try_from(at).expect("small"), len));
        }
        while !reads.is_empty() {
            let (cookie, answer) = self.client.next_answer().expect("the server answers");
            let (at, len) = reads.remove(&cookie).expect("the request was sent");
            let bytes = answer.expect("a read failed");
            self.check(at, &bytes[..len]);
        }
    }

    /// Reads everything back.
    pub(crate) fn check_all(&mut self) {
        let len = u32::try_from(self.mirror.len()).expect("small");
        let bytes = self.client.read(self.from, len).expect("a read failed");
        self.check(0, &bytes);
    }

    fn check(&self, at: usize, bytes: &[u8]) {
        let wanted = &self.mirror[at..at + bytes.len()];
        if let Some(first) = bytes.iter().zip(wanted).position(|(a, b)| a != b) {
            panic!(
                "byte {} was not last written there (read {} bytes at {})",
                self.from + (at + first) as u64,
                bytes.len(),
                self.from + at as u64
            );
        }
    }

    fn random_range(&mut self, from: u64, room: u64) -> (u64, usize) {
        let units = room / self.unit;
        let len = 1 + self.random.below(units.min(64));
        let at = self.random.below(units - len + 1);
        let len = usize::try_from(len * self.unit).expect("small");
        (from + at * self.unit, len)
    }
}
