//! A non-blocking NBD connection for event loops.
//!
//! The lab's real-time guests and its replays use it. The caller decides what to request, how to handle a reply, and
//! how long to sleep.
//!
//! # Always true
//! - It never blocks.
//! - A reply belongs to a pending request. Any other reply is an error.
//! - A handle is reused only once its reply was taken.
//!
//! # Source
//! doc/proto.md of the NetworkBlockDevice project: simple replies.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags};

use super::wire;

/// The most bytes read before replies are processed.
const BULK: usize = 256 << 10;

/// A connection and its pending requests, each with the caller's note.
#[derive(Debug)]
pub struct AsyncConnection<T> {
    stream: UnixStream,
    outgoing: Vec<u8>,
    sent: usize,
    incoming: Vec<u8>,
    taken: usize,
    /// Indexed by handle.
    pending: Vec<Option<T>>,
    free: Vec<usize>,
}

/// A reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    /// The request's note.
    pub note: T,
    /// Whether it succeeded.
    pub ok: bool,
}

impl<T: Copy> AsyncConnection<T> {
    /// Wraps a connection whose handshake is complete.
    pub fn new(stream: UnixStream) -> Result<AsyncConnection<T>> {
        stream
            .set_nonblocking(true)
            .context("cannot prepare a connection")?;
        Ok(AsyncConnection {
            stream,
            outgoing: Vec::new(),
            sent: 0,
            incoming: Vec::new(),
            taken: 0,
            pending: Vec::new(),
            free: Vec::new(),
        })
    }

    /// Adds a request. Returns its handle, and the buffer to append its message to.
    pub fn request(&mut self, note: T) -> (u64, &mut Vec<u8>) {
        let slot = self.free.pop().unwrap_or(self.pending.len());
        if slot == self.pending.len() {
            self.pending.push(None);
        }
        self.pending[slot] = Some(note);
        (slot as u64, &mut self.outgoing)
    }

    /// Number of pending requests.
    pub fn outstanding(&self) -> usize {
        self.pending.len() - self.free.len()
    }

    /// Number of unsent bytes.
    pub fn unsent(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Sends as much as the socket accepts.
    pub fn send(&mut self) -> Result<()> {
        while self.unsent() > 0 {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot send requests to the server"),
            }
        }
        // The buffer is compacted when more than half of it is sent.
        if self.sent > self.outgoing.len() / 2 {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// The events to poll for.
    pub fn interest(&self) -> PollFd<'_> {
        let mut events = PollFlags::POLLIN;
        if self.unsent() > 0 {
            events |= PollFlags::POLLOUT;
        }
        PollFd::new(self.stream.as_fd(), events)
    }

    /// Reads available data, up to a limit.
    pub fn receive(&mut self) -> Result<()> {
        self.incoming.drain(..self.taken);
        self.taken = 0;
        let mut piece = [0; 16 << 10];
        let mut read = 0;
        while read < BULK {
            match self.stream.read(&mut piece) {
                Ok(0) => bail!("the server closed the connection"),
                Ok(count) => {
                    self.incoming.extend_from_slice(&piece[..count]);
                    read += count;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot receive replies from the server"),
            }
        }
        Ok(())
    }

    /// Takes the next complete reply. `data` returns the length of a successful request's data.
    pub fn answer(&mut self, data: impl FnOnce(&T) -> u64) -> Result<Option<Answer<T>>> {
        let Some(reply) = wire::reply(&self.incoming[self.taken..])? else {
            return Ok(None);
        };
        let slot = usize::try_from(reply.handle).unwrap_or(usize::MAX);
        let Some(&Some(note)) = self.pending.get(slot) else {
            bail!("the server replied to a request that is not pending");
        };
        let ok = reply.error == 0;
        let data = if ok { data(&note) } else { 0 };
        let end =
            (self.taken + wire::REPLY).saturating_add(usize::try_from(data).unwrap_or(usize::MAX));
        if self.incoming.len() < end {
            return Ok(None);
        }
        self.taken = end;
        self.pending[slot] = None;
        self.free.push(slot);
        Ok(Some(Answer { note, ok }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollTimeout, poll};

    fn pair() -> (AsyncConnection<char>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("two ends");
        (AsyncConnection::new(ours).expect("a connection"), theirs)
    }

    fn reply(handle: u64, error: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = 0x6744_6698_u32.to_be_bytes().to_vec();
        bytes.extend(error.to_be_bytes());
        bytes.extend(handle.to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn answers(connection: &mut AsyncConnection<char>) -> Vec<(char, bool)> {
        connection.receive().expect("an open connection");
        let next = |connection: &mut AsyncConnection<char>| {
            connection
                .answer(|_| 4)
                .expect("a reply to a pending request")
        };
        let answers =
            std::iter::from_fn(|| next(connection).map(|answer| (answer.note, answer.ok)));
        answers.collect()
    }

    #[test]
    fn replies_may_arrive_in_any_order_and_in_pieces_and_only_successful_ones_have_data() {
        let (mut connection, mut theirs) = pair();
        let handles = ['a', 'b', 'c'].map(|note| connection.request(note).0);
        assert_eq!((handles, connection.outstanding()), ([0, 1, 2], 3));
        assert_eq!(answers(&mut connection), []);
        let mut bytes = reply(1, 5, b"");
        bytes.extend(reply(2, 0, b"data"));
        bytes.extend(reply(0, 0, b"data"));
        for piece in bytes.chunks(bytes.len() - 1) {
            theirs.write_all(piece).expect("an open connection");
            let all = piece.len() == 1;
            assert_eq!(
                answers(&mut connection),
                if all {
                    vec![('a', true)]
                } else {
                    vec![('b', false), ('c', true)]
                }
            );
        }
        assert_eq!(connection.outstanding(), 0);
        let again = connection.request('d').0;
        assert!(handles.contains(&again), "a free handle is reused");
    }

    #[test]
    fn an_unexpected_reply_and_a_closed_connection_are_errors() {
        let (mut connection, mut theirs) = pair();
        connection.request('a');
        theirs
            .write_all(&reply(0, 0, b"data"))
            .expect("an open connection");
        theirs
            .write_all(&reply(0, 0, b"data"))
            .expect("an open connection");
        connection.receive().expect("an open connection");
        connection
            .answer(|_| 4)
            .expect("a reply to a pending request");
        let twice = connection.answer(|_| 4).expect_err("an unexpected reply");
        assert!(twice.to_string().contains("not pending"), "{twice}");
        drop(theirs);
        connection.receive().expect_err("a closed connection");
    }

    #[test]
    fn unsent_bytes_are_sent_once_the_socket_accepts_them() {
        let (mut connection, mut theirs) = pair();
        let bytes: Vec<u8> = (0..4_u32 << 20).map(|at| at.to_le_bytes()[1]).collect();
        connection.request('a').1.extend(&bytes);
        connection.send().expect("an open connection");
        let unsent = connection.unsent();
        assert!(0 < unsent && unsent < bytes.len(), "{unsent}");
        let mut received: Vec<u8> = Vec::new();
        let mut piece = vec![0; 1 << 20];
        while received.len() < bytes.len() {
            let count = theirs.read(&mut piece).expect("more data");
            received.extend(&piece[..count]);
            connection.send().expect("an open connection");
        }
        assert!(received == bytes && connection.unsent() == 0);
        assert_eq!(
            poll(&mut [connection.interest()], PollTimeout::ZERO),
            Ok(0),
            "no events are needed"
        );
    }
}
