//! An emulated array that several daemons share: one model, served over NBD.
//!
//! Real daemons stand before it as hosts stand before one storage array: what one asks for keeps the others waiting. An
//! export `NAME` is a stretch of the array. Its bytes are zeroes and stay so; only its times are of interest.
//!
//! # Always true
//! - An I/O is answered once the model says that it is done, never before.
//! - A client that makes no sense, or does not take its answers, loses its connection; nobody else notices.
//!
//! # Picture
//! ```text
//!   daemon ── NBD ──> reader ──┐                       ┌──> daemon
//!   daemon ── NBD ──> reader ──┴─> model ──> answerer ─┴──> daemon
//! ```
//! # Source
//! doc/proto.md of the NetworkBlockDevice project: fixed newstyle, GO and EXPORT_NAME, simple replies.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
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
    jobs: Vec<Option<Job>>,
    free: Vec<usize>,
    did: Did,
    /// Until when the answering thread sleeps, unless it is called.
    sleeps_until: u64,
    over: bool,
}

#[derive(Debug)]
struct Job {
    connection: Arc<Mutex<UnixStream>>,
    handle: [u8; 8],
    /// Bytes of the answer.
    answer: usize,
    counts: bool,
    submitted: u64,
}

/// No request is longer than this.
const LONGEST: u32 = 32 << 20;
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
                jobs: Vec::new(),
                free: Vec::new(),
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
    fn serve(&self, mut stream: UnixStream) -> Result<()> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let Some(export) = self.agree(&mut stream)? else {
            return Ok(());
        };
        let connection = Arc::new(Mutex::new(stream.try_clone()?));
        let mut reader = std::io::BufReader::with_capacity(256 << 10, stream);
        let mut data = Vec::new();
        loop {
            let head: [u8; 28] = take(&mut reader)?;
            if head[..4] != 0x2560_9513_u32.to_be_bytes() {
                bail!("no request begins like this");
            }
            let command = u16::from_be_bytes([head[6], head[7]]);
            let [.., h0, h1, h2, h3, h4, h5, h6, h7] = head[..16] else {
                bail!("a request has a handle");
            };
            let handle = [h0, h1, h2, h3, h4, h5, h6, h7];
            let offset = u64::from_be_bytes(*head[16..].first_chunk().context("an offset")?);
            let length = u32::from_be_bytes(*head[24..].first_chunk().context("a length")?);
            if length > LONGEST {
                bail!("a request of {length} bytes");
            }
            let bytes = usize::try_from(length)?;
            let (kind, answer) = match command {
                0 => (IoKind::Read, bytes),
                1 => {
                    data.resize(bytes, 0);
                    reader.read_exact(&mut data)?;
                    (IoKind::Write, 0)
                }
                2 => return Ok(()),
                3 => (IoKind::Flush, 0),
                _ => {
                    write(&connection, &reply(22, handle), 0)?;
                    continue;
                }
            };
            if offset
                .checked_add(length.into())
                .is_none_or(|end| end > export.size)
            {
                write(&connection, &reply(22, handle), 0)?;
                continue;
            }
            let job = Job {
                connection: Arc::clone(&connection),
                handle,
                answer,
                counts: kind != IoKind::Flush,
                submitted: 0,
            };
            self.submit(job, kind, export.begins + offset, length.into());
        }
    }

    fn submit(&self, mut job: Job, kind: IoKind, offset: u64, len: u64) {
        let mut state = self.lock();
        let now = self.now();
        job.submitted = now;
        let place = state.free.pop().unwrap_or(state.jobs.len());
        if place == state.jobs.len() {
            state.jobs.push(None);
        }
        state.jobs[place] = Some(job);
        let io = ModelIo {
            id: place as u64,
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
                let place = usize::try_from(completion.id).unwrap_or(usize::MAX);
                let Some(job) = state.jobs.get_mut(place).and_then(Option::take) else {
                    continue;
                };
                state.free.push(place);
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
                    let _sent = write(&job.connection, &reply(0, job.handle), job.answer);
                }
                state = self.lock();
                continue;
            }
            state.sleeps_until = state.array.next_completion().unwrap_or(u64::MAX);
            let wait = state.sleeps_until.saturating_sub(now).min(u64::MAX / 4);
            let waited = self.changed.wait_timeout(state, Duration::from_nanos(wait));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The handshake; none when the client only wanted to look.
    fn agree(&self, stream: &mut UnixStream) -> Result<Option<Stretch>> {
        stream.write_all(b"NBDMAGICIHAVEOPT\x00\x03")?;
        let [.., flags]: [u8; 4] = take(stream)?;
        // NO_ZEROES.
        let padding: &[u8] = if flags & 2 == 0 { &[0; 124] } else { &[] };
        loop {
            let head: [u8; 16] = take(stream)?;
            if head[..8] != *b"IHAVEOPT" {
                bail!("no option begins like this");
            }
            let option = u32::from_be_bytes(*head[8..].first_chunk().context("an option")?);
            let length = u32::from_be_bytes(*head[12..].first_chunk().context("a length")?);
            if length > 4096 {
                bail!("an option of {length} bytes");
            }
            let mut data = vec![0; usize::try_from(length)?];
            stream.read_exact(&mut data)?;
            let name = match option {
                // EXPORT_NAME, GO, INFO.
                1 => data.as_slice(),
                6 | 7 => name_of(&data)?,
                2 => {
                    option_reply(stream, option, 1, &[])?;
                    return Ok(None);
                }
                _ => {
                    option_reply(stream, option, 0x8000_0001, &[])?;
                    continue;
                }
            };
            let found = self
                .exports
                .iter()
                .find(|export| export.name.as_bytes() == name);
            let Some(export) = found.cloned() else {
                if option == 1 {
                    bail!("no such export");
                }
                option_reply(stream, option, 0x8000_0006, &[])?;
                continue;
            };
            // HAS_FLAGS, SEND_FLUSH, CAN_MULTI_CONN.
            let flags: u16 = 1 | 1 << 2 | 1 << 8;
            if option == 1 {
                stream.write_all(&export.size.to_be_bytes())?;
                stream.write_all(&flags.to_be_bytes())?;
                stream.write_all(padding)?;
                return Ok(Some(export));
            }
            let mut info = vec![0, 0];
            info.extend(export.size.to_be_bytes());
            info.extend(flags.to_be_bytes());
            option_reply(stream, option, 3, &info)?;
            option_reply(stream, option, 1, &[])?;
            if option == 7 {
                return Ok(Some(export));
            }
        }
    }
}

/// The export that INFO and GO ask for.
fn name_of(data: &[u8]) -> Result<&[u8]> {
    let (length, rest) = data.split_first_chunk().context("a name's length")?;
    let length = usize::try_from(u32::from_be_bytes(*length))?;
    rest.get(..length).context("a name of that length")
}

fn option_reply(stream: &mut UnixStream, option: u32, kind: u32, data: &[u8]) -> Result<()> {
    let mut bytes = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(u32::try_from(data.len())?.to_be_bytes());
    bytes.extend(data);
    stream.write_all(&bytes)?;
    Ok(())
}

fn reply(error: u32, handle: [u8; 8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&0x6744_6698_u32.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&handle);
    bytes
}

/// Sends a reply, with so many zeroes after it.
fn write(connection: &Mutex<UnixStream>, head: &[u8], zeroes: usize) -> Result<()> {
    let mut bytes = head.to_vec();
    bytes.resize(head.len() + zeroes, 0);
    let mut stream = connection.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = stream.write_all(&bytes) {
        let _gone = stream.shutdown(std::net::Shutdown::Both);
        return Err(error.into());
    }
    Ok(())
}

fn take<const N: usize>(reader: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    reader.read_exact(&mut bytes)?;
    Ok(bytes)
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
        let head: [u8; 16] = take(stream).expect("it answers");
        let reply = wire::reply(&head).expect("a reply").expect("a whole one");
        assert_eq!(reply.handle, 7);
        if reply.error == 0 {
            let _data: [u8; 4096] = take(stream).expect("with the data");
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
