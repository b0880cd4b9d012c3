//! Connects to an NBD server and negotiates, on the blocking worker.
//!
//! The first connect runs on the thread that opens the image. A reconnect runs on a thread of the blocking worker
//! ([`Connect`]).
//!
//! # Always true
//! - the negotiation ends by its deadline, however slowly the server speaks

use crate::blocking::Task;
use crate::error::{Error, Kind, Result};
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tidegate_front::nbd::client::handshake::{Handshake, Negotiated, Preferences, Step};
use tidegate_front::nbd::client::uri::{Endpoint, Uri};

/// A server's export, and the timeout of a connect.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) uri: Uri,
    /// For connecting and negotiating together.
    pub(super) patience: Duration,
}

/// A connection after its negotiation.
pub(super) struct Connected {
    pub(super) socket: OwnedFd,
    pub(super) agreed: Negotiated,
}

/// The reconnect task.
pub(super) struct Connect {
    /// The image that requested it. The disk's number may belong to another image when the task ends.
    pub(super) serial: u64,
    pub(super) target: Arc<Target>,
    /// The result.
    pub(super) result: Option<Result<Connected>>,
}

impl Task for Connect {
    /// May block for as long as the target allows.
    fn run(&mut self) {
        self.result = Some(self.target.connect());
    }

    fn fail(&mut self, error: io::Error) {
        let error = Error::io("cannot start a thread to reach an NBD server", error);
        self.result = Some(Err(error));
    }
}

/// A byte stream of either kind.
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Target {
    /// Connects and negotiates on the calling thread.
    pub(super) fn connect(&self) -> Result<Connected> {
        let deadline = Instant::now() + self.patience;
        let mut stream = match &self.uri.endpoint {
            Endpoint::Tcp(host, port) => self.tcp(host, *port, deadline),
            Endpoint::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
        }
        .map_err(|e| Error::io(format!("cannot reach the NBD server {}", self.uri), e))?;
        let agreed = self.negotiate(&mut stream, deadline)?;
        // From here on the I/O thread's ring waits for data.
        stream
            .patience(None)
            .map_err(|e| Error::io("cannot prepare an NBD connection", e))?;
        Ok(Connected {
            socket: stream.into(),
            agreed,
        })
    }

    /// Connects with a strict timeout: connecting to a Unix socket has none of its own.
    pub(super) fn connect_in_time(self: &Arc<Self>) -> Result<Connected> {
        let (answer, done) = channel();
        let target = Arc::clone(self);
        std::thread::Builder::new()
            .name("nbd-connect".into())
            .spawn(move || {
                // The caller may have timed out.
                let _ = answer.send(target.connect());
            })
            .map_err(|e| Error::io("cannot start a thread to reach an NBD server", e))?;
        match done.recv_timeout(self.patience + self.patience / 4) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(self.too_slow()),
        }
    }

    fn tcp(&self, host: &str, port: u16, deadline: Instant) -> io::Result<Stream> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in (host, port).to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok(Stream::Tcp(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn negotiate(&self, stream: &mut Stream, deadline: Instant) -> Result<Negotiated> {
        let mut handshake = Handshake::new(Preferences {
            export: self.uri.export.clone(),
            structured: true,
            extents: true,
            tls: self.uri.tls,
        });
        let mut input = Vec::new();
        loop {
            let mut out = Vec::new();
            let (used, step) = handshake.advance(&input, &mut out);
            input.drain(..used);
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.too_slow());
            }
            stream
                .patience(Some(left))
                .and_then(|()| stream.write_all(&out))
                .map_err(|e| self.failed(e))?;
            match step {
                Step::Need(_) => {
                    let mut bytes = [0; 4096];
                    match stream.read(&mut bytes) {
                        Ok(0) => return Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
                        Ok(got) => input.extend_from_slice(&bytes[..got]),
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(self.failed(error)),
                    }
                }
                Step::Finished(agreed) if input.is_empty() => return Ok(agreed),
                Step::Finished(_) => {
                    let text =
                        format!("the NBD server {} sent a reply without a request", self.uri);
                    return Err(Error::new(Kind::Io, text));
                }
                Step::StartTls => {
                    let text = format!(
                        "cannot use {}: TLS to an upstream server is not supported",
                        self.uri
                    );
                    return Err(Error::new(Kind::Unsupported, text));
                }
                Step::Failed(failure) => {
                    let text = format!("cannot use the NBD server {}: {failure}", self.uri);
                    return Err(Error::new(Kind::Io, text));
                }
            }
        }
    }

    fn failed(&self, error: io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => self.too_slow(),
            _ => {
                let text = format!("the NBD server {} broke off the negotiation", self.uri);
                Error::io(text, error)
            }
        }
    }

    fn too_slow(&self) -> Error {
        let text = format!(
            "the NBD server {} did not answer within {:?}: is it running, and the address right?",
            self.uri, self.patience
        );
        Error::new(Kind::TimedOut, text)
    }
}

impl Stream {
    fn patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(s) => s
                .set_read_timeout(patience)
                .and_then(|()| s.set_write_timeout(patience)),
            Stream::Unix(s) => s
                .set_read_timeout(patience)
                .and_then(|()| s.set_write_timeout(patience)),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(s) => s.write_all(bytes),
            Stream::Unix(s) => s.write_all(bytes),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(s) => s.read(bytes),
            Stream::Unix(s) => s.read(bytes),
        }
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> OwnedFd {
        match stream {
            Stream::Tcp(s) => s.into(),
            Stream::Unix(s) => s.into(),
        }
    }
}

/// Parses a URI, or a path of a Unix socket with the default export.
pub(super) fn uri_of(text: &str) -> Result<Uri> {
    if text.starts_with('/') {
        return Ok(Uri {
            endpoint: Endpoint::Unix(Path::new(text).to_owned()),
            tls: false,
            export: String::new(),
        });
    }
    text.parse().map_err(|error| {
        Error::new(
            Kind::Invalid,
            format!("`{text}` does not name an NBD server: {error}"),
        )
    })
}
