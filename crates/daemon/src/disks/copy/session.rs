//! Reads and writes an attached disk, or a view of one, as an NBD client of the engine in this process.
//!
//! Exports and backups of a pool's disk use it: such a disk has no file with its bytes in order. The requests go the way
//! of every client's, so they are under I/O control, and a layout answers them.
//!
//! # Always true
//! - a piece is read by several requests at once, and written by one
//! - a reply that breaks the protocol ends the session: later calls fail

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use tidegate_core::request::{ExtentKind, Flags, Op};
use tidegate_engine::nbd::client;
use tidegate_engine::nbd::client::requests::{Part, Replies, Sent, Step, What};
use tidegate_engine::nbd::handshake::{ExportInfo, Negotiated};

use super::{Extent, Sink, Source};

/// Bytes of a request. Origin: a piece of a copy is read by four of them at once.
const REQUEST: usize = 256 << 10;
/// Bytes of the disk whose extents are asked for at once.
const MAPPED: u64 = 1 << 30;
/// The id of `base:allocation` in these sessions.
const ALLOCATION: u32 = 1;
/// The longest part of a reply before its payload.
const HEAD_MAX: usize = 64 << 10;

/// See the module.
pub(crate) struct DiskSession {
    size: u64,
    replies: Replies,
    connection: RefCell<Connection>,
}

struct Connection {
    socket: UnixStream,
    /// Ranges whose kind is known, ascending: from, to.
    known: Vec<(u64, u64, Extent)>,
    is_broken: bool,
}

impl DiskSession {
    /// The engine's end of a new connection, what was agreed on, and the session.
    ///
    /// # Errors
    /// If the system has no socket left.
    pub(crate) fn pair(export: ExportInfo) -> io::Result<(UnixStream, Negotiated, DiskSession)> {
        let (ours, theirs) = UnixStream::pair()?;
        let size = export.size;
        let agreed = client::handshake::Negotiated {
            size,
            abilities: export.abilities,
            block: export.block,
            structured: true,
            context: Some(ALLOCATION),
        };
        let negotiated = Negotiated {
            export,
            structured: true,
            context: Some(ALLOCATION),
            bitmaps: Vec::new(),
        };
        let session = DiskSession {
            size,
            replies: Replies::new(&agreed),
            connection: RefCell::new(Connection {
                socket: ours,
                known: Vec::new(),
                is_broken: false,
            }),
        };
        Ok((theirs, negotiated, session))
    }

    /// Makes everything that was written durable.
    ///
    /// # Errors
    /// If the disk does not.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let flush = Sent {
            op: Op::Flush,
            flags: Flags::NONE,
            offset: 0,
            len: 0,
        };
        self.perform(&flush, &[])
    }

    /// One request without an answer but its outcome.
    fn perform(&self, sent: &Sent, payload: &[u8]) -> io::Result<()> {
        let mut connection = self.connection.borrow_mut();
        connection.known.clear();
        connection.guarded(|socket| {
            socket.write_all(&sent.encode(0))?;
            socket.write_all(payload)?;
            let part = self.part(socket, &mut Vec::new(), std::slice::from_ref(sent))?;
            match part.what {
                What::Failed(fault) if part.last => Ok(Err(failed(fault))),
                What::Nothing if part.last => Ok(Ok(())),
                _ => Err(broken("an answer of the wrong kind")),
            }
        })
    }

    /// The next part of a reply. `sent` are the requests by their cookies.
    fn part(&self, socket: &mut UnixStream, head: &mut Vec<u8>, sent: &[Sent]) -> io::Result<Part> {
        head.clear();
        loop {
            let find = |cookie: u64| sent.get(usize::try_from(cookie).ok()?).copied();
            match self.replies.decode(head, find) {
                Step::Need(bytes) if bytes <= HEAD_MAX && bytes > head.len() => {
                    let had = head.len();
                    head.resize(bytes, 0);
                    socket.read_exact(&mut head[had..])?;
                }
                Step::Need(_) => return Err(broken("a reply that is too long")),
                Step::Part(part) => return Ok(part),
                Step::Violation(violation) => return Err(broken(&violation.to_string())),
            }
        }
    }

    /// The kinds of the ranges from the request's offset on; one at least.
    fn ask_extents(
        &self,
        socket: &mut UnixStream,
        sent: &Sent,
    ) -> io::Result<io::Result<Vec<(u64, u64, Extent)>>> {
        socket.write_all(&sent.encode(0))?;
        let mut found: Vec<(u64, u64, Extent)> = Vec::new();
        let mut fault = None;
        loop {
            let part = self.part(socket, &mut Vec::new(), std::slice::from_ref(sent))?;
            match part.what {
                What::Extents { bytes } => {
                    let mut payload =
                        vec![0; usize::try_from(bytes).map_err(|_| broken("too long"))?];
                    socket.read_exact(&mut payload)?;
                    for extent in client::requests::extents(&payload) {
                        let kind = match extent.kind {
                            ExtentKind::Data => Extent::Data,
                            ExtentKind::Hole | ExtentKind::Zero => Extent::Zero,
                        };
                        let from = found.last().map_or(sent.offset, |(_, to, _)| *to);
                        match found.last_mut() {
                            Some((_, to, before)) if *before == kind => *to += extent.len,
                            _ => found.push((from, from + extent.len, kind)),
                        }
                    }
                }
                What::Failed(fail) => fault = Some(fail),
                What::Nothing => {}
                _ => return Err(broken("an answer of the wrong kind")),
            }
            if part.last {
                return Ok(match (fault, found.is_empty()) {
                    (Some(fault), _) => Err(failed(fault)),
                    (None, false) => Ok(found),
                    (None, true) => {
                        let to = sent.offset + u64::from(sent.len);
                        Ok(vec![(sent.offset, to, Extent::Data)])
                    }
                });
            }
        }
    }

    fn read_piece(
        &self,
        socket: &mut UnixStream,
        sent: &[Sent],
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<io::Result<()>> {
        let mut requests = Vec::new();
        for (cookie, one) in (0_u64..).zip(sent) {
            requests.extend_from_slice(&one.encode(cookie));
        }
        socket.write_all(&requests)?;
        let (mut left, mut done, mut fault) = (sent.len(), 0_u64, None);
        let mut head = Vec::new();
        while left > 0 {
            let part = self.part(socket, &mut head, sent)?;
            let place = |at: u64, len: u32| {
                let from = usize::try_from(at - offset).map_err(|_| broken("out of range"))?;
                Ok::<_, io::Error>(from..from + len as usize)
            };
            match part.what {
                What::Data { offset: at, len } => {
                    socket.read_exact(&mut buffer[place(at, len)?])?;
                    done += u64::from(len);
                }
                What::Zeroes { offset: at, len } => {
                    buffer[place(at, len)?].fill(0);
                    done += u64::from(len);
                }
                What::Failed(fail) => fault = Some(fail),
                What::Nothing => {}
                What::Extents { .. } => return Err(broken("an answer of the wrong kind")),
            }
            left -= usize::from(part.last);
        }
        Ok(match fault {
            Some(fault) => Err(failed(fault)),
            None if done != buffer.len() as u64 => Err(broken("a read with gaps")),
            None => Ok(()),
        })
    }
}

impl Connection {
    /// Does something whose outer error means that the connection cannot be used any more.
    fn guarded<T>(
        &mut self,
        act: impl FnOnce(&mut UnixStream) -> io::Result<io::Result<T>>,
    ) -> io::Result<T> {
        if self.is_broken {
            return Err(broken("the session has ended"));
        }
        act(&mut self.socket).inspect_err(|_| self.is_broken = true)?
    }
}

impl Source for DiskSession {
    fn size(&self) -> u64 {
        self.size
    }

    fn extent(&self, offset: u64, most: u64) -> io::Result<(u64, Extent)> {
        let mut connection = self.connection.borrow_mut();
        let of = |known: &[(u64, u64, Extent)]| {
            let nth = known.partition_point(|(_, to, _)| *to <= offset);
            let (from, to, kind) = *known.get(nth)?;
            (from <= offset).then(|| ((to - offset).min(most), kind))
        };
        if let Some(found) = of(&connection.known) {
            return Ok(found);
        }
        let len = MAPPED.min(self.size.saturating_sub(offset));
        let sent = Sent {
            op: Op::Extents,
            flags: Flags::NONE,
            offset,
            len: u32::try_from(len).expect("it is at most 1 GiB"),
        };
        connection.known = connection.guarded(|socket| self.ask_extents(socket, &sent))?;
        of(&connection.known).ok_or_else(|| broken("extents elsewhere"))
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut at = offset;
        let sent: Vec<Sent> = buffer
            .chunks(REQUEST)
            .map(|piece| {
                let sent = Sent {
                    op: Op::Read,
                    flags: Flags::NONE,
                    offset: at,
                    len: u32::try_from(piece.len()).expect("a request is small"),
                };
                at += piece.len() as u64;
                sent
            })
            .collect();
        let mut connection = self.connection.borrow_mut();
        connection.guarded(|socket| self.read_piece(socket, &sent, buffer, offset))
    }
}

impl Sink for DiskSession {
    fn write(&mut self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let mut at = offset;
        for piece in buffer.chunks(REQUEST) {
            let sent = Sent {
                op: Op::Write,
                flags: Flags::NONE,
                offset: at,
                len: u32::try_from(piece.len()).expect("a request is small"),
            };
            self.perform(&sent, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

fn failed(fault: tidegate_core::request::Fault) -> io::Error {
    use tidegate_core::request::Fault;
    let kind = match fault {
        Fault::NoSpace => io::ErrorKind::StorageFull,
        Fault::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("the disk answered with an error ({fault:?})"))
}

fn broken(why: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        format!("the disk's connection ended: {why}"),
    )
}
