//! An emulated array that several daemons share: one model, served over NBD.
//!
//! Real daemons stand before it as hosts stand before one storage array: what one asks for keeps the others waiting. An
//! export `NAME` is a stretch of the array. Its bytes are zeroes and stay so; only its times are of interest.
//!
//! # Always true
//! - An I/O is answered once the model says that it is done, never before.
//! - A client that breaks the protocol, or does not take its answers, loses its connection; others are not affected.
//!
//! # Picture
//! ```text
//!   daemon ── NBD ──> reader ──┐                       ┌──> daemon
//!   daemon ── NBD ──> reader ──┴─> model ──> answerer ─┴──> daemon
//! ```
//! # Source
//! doc/proto.md of the NetworkBlockDevice project, by the product's own [`handshake`] and [`session`].

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tidegate_core::request::{Fault, Op};
use tidegate_engine::nbd::handshake::{self, ExportInfo, Handshake, Refusal, Tls};
use tidegate_engine::nbd::session::{self, Head, Session};
use tidegate_engine::nbd::wire::{Abilities, REQUEST_BYTES};
pub use tidegate_model::ArraySpec;
use tidegate_model::{Array, IoKind, ModelIo};

/// A stretch of the array that has a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Its export's name.
    pub name: String,
    /// Where on the array it begins, in bytes.
    pub begins: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// What the array did since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Did {
    /// Reads and writes that ended.
    pub ios: u64,
    /// The sum of the times that they were there, in nanoseconds.
    pub latency_ns: u64,
    /// I/Os that are there now.
    pub outstanding: u64,
    /// By how much answers were later than the model had them, summed up: the machine's own doing.
    pub late_ns: u64,
    /// The latest of them.
    pub latest_ns: u64,
}

/// A running array. It ends with its value.
#[derive(Debug)]
pub struct ArrayServer {
    shared: Arc<Shared>,
    socket: PathBuf,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something was submitted, or it is over.
    changed: Condvar,
    clock: Instant,
    exports: Vec<Stretch>,
}

#[derive(Debug)]
struct State {
    array: Array,
    /// By the model's number of the I/O.
    jobs: BTreeMap<u64, Job>,
    numbered: u64,
    did: Did,
    /// Until when the answering thread sleeps, unless it is called.
    sleeps_until: u64,
    over: bool,
}

#[derive(Debug)]
struct Job {
    connection: Arc<Mutex<UnixStream>>,
    /// The reply, and how many bytes of data follow it.
    head: Head,
    data: usize,
    counts: bool,
    submitted: u64,
}

/// A client that takes no answer for so long has lost its connection.
const PATIENCE: Duration = Duration::from_secs(10);

impl ArrayServer {
    /// Serves the stretches of an array on a Unix socket.
    ///
    /// # Errors
    /// The specification makes no sense, or the socket cannot be made.
    pub fn start(
        spec: &ArraySpec,
        seed: u64,
        exports: Vec<Stretch>,
        socket: &Path,
    ) -> Result<ArrayServer> {
        let array = Array::new(spec, seed).context("the array cannot be modelled")?;
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("cannot listen on {}", socket.display()))?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                array,
                jobs: BTreeMap::new(),
                numbered: 0,
                did: Did::default(),
                sleeps_until: u64::MAX,
                over: false,
            }),
            changed: Condvar::new(),
            clock: Instant::now(),
            exports,
        });
        let own = Arc::clone(&shared);
        thread("array-accept", move || accept(&own, &listener))?;
        let own = Arc::clone(&shared);
        thread("array", move || own.answer())?;
        Ok(ArrayServer {
            shared,
            socket: socket.to_owned(),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// From now on it works at so many thousandths of its speed.
    pub fn set_speed(&self, permille: u32) {
        let now = self.shared.now();
        self.shared.lock().array.set_speed(now, permille);
        self.shared.changed.notify_one();
    }

    /// What it did since this was last asked.
    #[must_use]
    pub fn did(&self) -> Did {
        let mut state = self.shared.lock();
        let outstanding = state.array.outstanding() as u64;
        Did {
            outstanding,
            ..std::mem::take(&mut state.did)
        }
    }
}

impl Drop for ArrayServer {
    fn drop(&mut self) {
        self.shared.lock().over = true;
        self.shared.changed.notify_one();
        // The accepting thread sleeps in accept: one last visitor lets it see that it is over.
        let _visited = UnixStream::connect(&self.socket);
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.into()).spawn(body);
    started.context("cannot start a thread")?;
    Ok(())
}

fn accept(shared: &Arc<Shared>, listener: &UnixListener) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.lock().over {
            return;
        }
        let own = Arc::clone(shared);
        // Who cannot be served is hung up on.
        let _served = thread("array-client", move || {
            let _ended = own.serve(stream);
        });
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// One client, until it goes.
    fn serve(&self, stream: UnixStream) -> Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let connection = Arc::new(Mutex::new(stream.try_clone()?));
        let mut reader = BufReader::with_capacity(256 << 10, stream);
        let Some((begins, session)) = self.agree(&mut reader, &connection)? else {
            return Ok(());
        };
        loop {
            let mut head = [0; REQUEST_BYTES];
            reader.read_exact(&mut head)?;
            let (asked, fault) = match session.decode(&head) {
                session::Step::Request(asked) => (asked, None),
                session::Step::Refuse(asked, fault) => (asked, Some(fault)),
                session::Step::Disconnect => return Ok(()),
                session::Step::Need(_) | session::Step::Violation(_) => {
                    bail!("no request begins like this")
                }
            };
            let payload = u64::from(asked.payload);
            std::io::copy(&mut reader.by_ref().take(payload), &mut std::io::sink())?;
            let kind = match (fault, asked.op) {
                (None, Op::Read) => IoKind::Read,
                (None, Op::Write) => IoKind::Write,
                (None, Op::Flush) => IoKind::Flush,
                (None, Op::Extents) => {
                    let mut reply = Vec::new();
                    session.extents(&asked, [], &mut reply);
                    write(&connection, &reply, 0)?;
                    continue;
                }
                (fault, _) => {
                    let refused = session.done(&asked, Err(fault.unwrap_or(Fault::Invalid)));
                    write(&connection, refused.as_bytes(), 0)?;
                    continue;
                }
            };
            let (head, data) = match kind {
                IoKind::Read => (session.data(&asked), usize::try_from(asked.len)?),
                _ => (session.done(&asked, Ok(())), 0),
            };
            let job = Job {
                connection: Arc::clone(&connection),
                head,
                data,
                counts: kind != IoKind::Flush,
                submitted: 0,
            };
            self.submit(job, kind, begins + asked.offset, asked.len.into());
        }
    }

    fn submit(&self, mut job: Job, kind: IoKind, offset: u64, len: u64) {
        let mut state = self.lock();
        let now = self.now();
        job.submitted = now;
        state.numbered += 1;
        let id = state.numbered;
        state.jobs.insert(id, job);
        let io = ModelIo {
            id,
            kind,
            offset,
            len,
        };
        state.array.submit(now, io);
        let next = state.array.next_completion();
        let sooner = next.is_some_and(|at| at < state.sleeps_until);
        drop(state);
        if sooner {
            self.changed.notify_one();
        }
    }

    /// Gives answers when they are due.
    fn answer(&self) {
        let mut state = self.lock();
        let mut done = Vec::new();
        while !state.over {
            let now = self.now();
            while let Some(completion) = state.array.pop_completed(now) {
                let Some(job) = state.jobs.remove(&completion.id) else {
                    continue;
                };
                if job.counts {
                    let late = now - completion.at.min(now);
                    state.did.ios += 1;
                    state.did.latency_ns += now - job.submitted.min(now);
                    state.did.late_ns += late;
                    state.did.latest_ns = state.did.latest_ns.max(late);
                }
                done.push(job);
            }
            if !done.is_empty() {
                drop(state);
                for job in done.drain(..) {
                    // A client that has gone wants no answer.
                    let _sent = write(&job.connection, job.head.as_bytes(), job.data);
                }
                state = self.lock();
                continue;
            }
            state.sleeps_until = state.array.next_completion().unwrap_or(u64::MAX);
            let wait = state.sleeps_until.saturating_sub(now).min(u64::MAX / 4);
            let waited = self.changed.wait_timeout(state, Duration::from_nanos(wait));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        for job in state.jobs.values() {
            hang_up(&lock(&job.connection));
        }
    }

    /// The handshake: where the export begins, and its session. None when the client only wanted to look.
    fn agree(
        &self,
        reader: &mut impl Read,
        connection: &Mutex<UnixStream>,
    ) -> Result<Option<(u64, Session)>> {
        let find = |name: &str| self.exports.iter().find(|export| export.name == name);
        let mut handshake = Handshake::new(Tls::Off);
        let (mut input, mut out) = (Vec::new(), Vec::new());
        loop {
            let (used, step) = handshake.advance(&input, &mut out);
            input.drain(..used);
            write(connection, &out, 0)?;
            out.clear();
            match step {
                handshake::Step::Need(count) => {
                    let there = input.len();
                    input.resize(count.max(there + 1), 0);
                    reader.read_exact(&mut input[there..])?;
                }
                handshake::Step::Lookup(name) => {
                    let info = find(&name).map(|export| ExportInfo {
                        name,
                        size: export.size,
                        abilities: Abilities::FLUSH.with(Abilities::MULTI_CONN),
                        ..ExportInfo::default()
                    });
                    handshake.found(info.ok_or(Refusal::Unknown), &mut out);
                }
                handshake::Step::List => {
                    let names = self.exports.iter().map(|export| (export.name.as_str(), ""));
                    handshake.listed(Ok(names), &mut out);
                }
                handshake::Step::Finished(agreed) => {
                    let export = find(&agreed.export.name).context("an export that was found")?;
                    return Ok(Some((export.begins, Session::new(&agreed))));
                }
                handshake::Step::Aborted => return Ok(None),
                handshake::Step::StartTls => bail!("TLS was not offered"),
                handshake::Step::Violation(violation) => bail!("{violation}"),
            }
        }
    }
}

/// Sends a reply, with so many zeroes after it.
fn write(connection: &Mutex<UnixStream>, head: &[u8], zeroes: usize) -> Result<()> {
    let mut bytes = head.to_vec();
    bytes.resize(head.len() + zeroes, 0);
    let mut stream = lock(connection);
    if let Err(error) = stream.write_all(&bytes) {
        hang_up(&stream);
        return Err(error.into());
    }
    Ok(())
}

fn lock(connection: &Mutex<UnixStream>) -> MutexGuard<'_, UnixStream> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hang_up(stream: &UnixStream) {
    // It may be gone already.
    let _gone = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_testing::load::{Kind, Operation};
    use tidegate_testing::nbd::wire;

    fn server(place: &Path) -> ArrayServer {
        let exports = ["a", "b"].into_iter().zip([0, 1 << 30]);
        let exports = exports.map(|(name, begins)| Stretch {
            name: name.into(),
            begins,
            size: 1 << 30,
        });
        let spec = ArraySpec::named("fifo").expect("a name of the model's");
        let socket = place.join("array.sock");
        ArrayServer::start(&spec, 1, exports.collect(), &socket).expect("it starts")
    }

    fn read(stream: &mut UnixStream, offset: u64) -> u32 {
        let operation = Operation {
            kind: Kind::Read,
            offset,
            length: 4096,
            ..Operation::FLUSH
        };
        let mut bytes = Vec::new();
        wire::request(&mut bytes, &operation, 7);
        stream.write_all(&bytes).expect("it takes requests");
        let mut head = [0; 16];
        stream.read_exact(&mut head).expect("it answers");
        let reply = wire::reply(&head).expect("a reply").expect("a whole one");
        assert_eq!(reply.handle, 7);
        if reply.error == 0 {
            let mut data = [0; 4096];
            stream.read_exact(&mut data).expect("with the data");
        }
        reply.error
    }

    #[test]
    fn clients_share_one_array_and_each_has_its_stretch() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let server = server(place.path());
        for name in ["a", "b"] {
            let (mut stream, export) =
                wire::connect(server.socket(), name).expect("the export is there");
            assert_eq!(export.size, 1 << 30);
            assert_eq!(read(&mut stream, 4096), 0);
            assert_eq!(read(&mut stream, 1 << 30), 22, "beyond its end");
        }
        let did = server.did();
        assert_eq!((did.ios, did.outstanding), (2, 0));
        assert!(did.latency_ns > 0, "the model's time passed");
        assert_eq!(server.did(), Did::default());
    }

    #[test]
    fn an_export_that_is_not_there_is_refused() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let server = server(place.path());
        wire::connect(server.socket(), "c").expect_err("no such export");
        wire::connect(server.socket(), "a").expect("others go on");
    }
}
