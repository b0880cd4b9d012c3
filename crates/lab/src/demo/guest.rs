//! A guest of the demonstration: 4 KiB random reads over NBD in a closed loop.
//!
//! A thread of its own. A daemon that hangs up, because its disk was detached or it is started again, is connected to
//! again as soon as it is there.
//!
//! # Always true
//! - As many requests are under way as its depth says, while it is connected.

use std::io::{BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use tidegate_testing::load::{Load, Source};
use tidegate_testing::nbd::wire;

/// Bytes of a request.
const BLOCK: usize = 4096;
/// How often a daemon that is not there is looked for: whether it has come back can only be asked again.
const LOOK: Duration = Duration::from_millis(200);

/// What a guest did since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// I/Os that were answered.
    pub(super) ios: u64,
    /// How long all of them took.
    pub(super) took: Duration,
    /// Those among them that were answered with an error.
    pub(super) errors: u64,
}

/// A guest at work; it ends with its value.
#[derive(Debug)]
pub(super) struct Guest {
    shared: Arc<Mutex<Shared>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    tally: Tally,
    /// To hang up from outside.
    stream: Option<UnixStream>,
    over: bool,
}

impl Guest {
    /// Lets it begin on the disk of that name.
    pub(super) fn start(
        socket: &Path,
        disk: &'static str,
        size: u64,
        depth: u16,
        seed: u64,
    ) -> Result<Guest> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let worker = Worker {
            socket: socket.to_owned(),
            disk,
            source: Source::new(Load {
                seed,
                ..Load::random_reads(depth, size)
            }),
            asked: vec![Instant::now(); usize::from(depth)],
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new().name(format!("guest-{disk}"));
        let thread = thread.spawn(move || worker.live());
        Ok(Guest {
            shared,
            thread: Some(thread.context("cannot start a thread")?),
        })
    }

    /// What it did since this was last asked.
    pub(super) fn take(&self) -> Tally {
        std::mem::take(&mut lock(&self.shared).tally)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut shared = lock(&self.shared);
        shared.over = true;
        if let Some(stream) = &shared.stream {
            // One that is gone already needs no hanging up.
            let _gone = stream.shutdown(Shutdown::Both);
        }
        drop(shared);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _panicked = thread.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Counts and a socket: whole between any two lines.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker {
    socket: PathBuf,
    disk: &'static str,
    source: Source,
    /// By handle: when its request was sent.
    asked: Vec<Instant>,
    shared: Arc<Mutex<Shared>>,
}

impl Worker {
    fn live(mut self) {
        while !lock(&self.shared).over {
            // Whatever ended it, there is nobody to tell: that nothing is answered is seen.
            let _ended = self.ask();
            let mut shared = lock(&self.shared);
            shared.stream = None;
            let over = shared.over;
            drop(shared);
            if !over {
                std::thread::park_timeout(LOOK);
            }
        }
    }

    /// Connects, and asks until somebody hangs up.
    fn ask(&mut self) -> Result<()> {
        let (mut stream, _) = wire::connect(&self.socket, self.disk)?;
        {
            let mut shared = lock(&self.shared);
            if shared.over {
                return Ok(());
            }
            shared.stream = Some(stream.try_clone().context("cannot share a connection")?);
        }
        let mut answers = BufReader::new(stream.try_clone()?);
        let mut data = [0; BLOCK];
        for handle in 0..self.asked.len() {
            self.send(&mut stream, handle)?;
        }
        loop {
            let mut head = [0; wire::REPLY];
            answers.read_exact(&mut head)?;
            let reply = wire::reply(&head)?.context("a whole reply was read")?;
            let handle = usize::try_from(reply.handle)?;
            let Some(asked) = self.asked.get(handle) else {
                bail!("an answer to what nobody asked");
            };
            let failed = reply.error != 0;
            if !failed {
                answers.read_exact(&mut data)?;
            }
            let took = asked.elapsed();
            let mut shared = lock(&self.shared);
            shared.tally.ios += 1;
            shared.tally.took += took;
            shared.tally.errors += u64::from(failed);
            drop(shared);
            self.send(&mut stream, handle)?;
        }
    }

    fn send(&mut self, stream: &mut UnixStream, handle: usize) -> Result<()> {
        let operation = self.source.ask().context("an endless load")?;
        let mut request = Vec::with_capacity(28);
        wire::request(&mut request, &operation, handle as u64);
        self.asked[handle] = Instant::now();
        stream.write_all(&request)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::{ArrayServer, ArraySpec, Stretch};

    fn array(place: &Path) -> ArrayServer {
        let spec = ArraySpec::named("fifo").expect("a name of the model's");
        let disk = Stretch {
            name: "vm1".into(),
            begins: 0,
            size: 1 << 20,
        };
        ArrayServer::start(&spec, 1, vec![disk], &place.join("array.sock")).expect("it starts")
    }

    fn did_some(guest: &Guest) -> Tally {
        let begun = Instant::now();
        loop {
            let tally = guest.take();
            if tally.ios > 0 {
                return tally;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is done");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_guest_finds_its_disk_again_and_ends_with_its_value() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let socket = place.path().join("array.sock");
        let guest = Guest::start(&socket, "vm1", 1 << 20, 4, 1).expect("a thread");
        // It was there before its disk.
        let first = array(place.path());
        let tally = did_some(&guest);
        assert!(
            tally.took > Duration::ZERO && tally.errors == 0,
            "{tally:?}"
        );
        drop(first);
        std::fs::remove_file(&socket).expect("the socket's name stays");
        if let Some(stream) = &lock(&guest.shared).stream {
            stream.shutdown(Shutdown::Both).expect("it is connected");
        }
        let _second = array(place.path());
        guest.take();
        did_some(&guest);
        drop(guest);
    }
}
