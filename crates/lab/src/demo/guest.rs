//! A guest of the demonstration, on a thread of its own.
//!
//! A daemon that hangs up, because its disk was detached or it is restarted, is connected to again as soon as it is there.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tidegate_sim::scenario::Disk;
use tidegate_testing::nbd::wire;

use crate::nbd_guest::{Ended, NbdGuest};

/// How often a daemon that is not there is looked for: whether it has come back can only be asked again.
const LOOK: Duration = Duration::from_millis(200);
/// The longest sleep.
const LONGEST: Duration = Duration::from_secs(10);

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
    /// Closing it wakes the thread.
    wake: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    tally: Tally,
    over: bool,
}

impl Guest {
    /// Lets it begin on a disk that is served at `socket`.
    pub(super) fn start(socket: &Path, disk: &Disk, seed: u64) -> Result<Guest> {
        let shared = Arc::new(Mutex::new(Shared::default()));
        let (wake, woken) = UnixStream::pair().context("cannot make a pair of sockets")?;
        let worker = Worker {
            socket: socket.to_owned(),
            disk: disk.clone(),
            seed,
            woken,
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new().name(format!("guest-{}", disk.name));
        let thread = thread.spawn(move || worker.live());
        Ok(Guest {
            shared,
            wake: Some(wake),
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
        lock(&self.shared).over = true;
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _panicked = thread.join();
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // Counts: whole between any two lines.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Worker {
    socket: PathBuf,
    disk: Disk,
    seed: u64,
    woken: UnixStream,
    shared: Arc<Mutex<Shared>>,
}

impl Worker {
    fn live(self) {
        while !lock(&self.shared).over {
            // The reason is not shown: the demonstration shows that nothing is answered.
            let _ended = self.work();
            if !lock(&self.shared).over {
                std::thread::park_timeout(LOOK);
            }
        }
    }

    /// Connects, and works until the daemon hangs up or it is over.
    fn work(&self) -> Result<()> {
        let (stream, _) = wire::connect(&self.socket, &self.disk.name)?;
        let mut guest = NbdGuest::new(stream, &self.disk, self.seed, Instant::now())?;
        guest.start();
        let mut count = |io: Ended| {
            let tally = &mut lock(&self.shared).tally;
            tally.ios += 1;
            tally.took += Duration::from_nanos(io.ended.since(io.asked).as_nanos());
            tally.errors += u64::from(io.failed);
        };
        while !lock(&self.shared).over {
            guest.step(LONGEST, Some(&self.woken), &mut count)?;
        }
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
            size: 1 << 30,
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
        let scenario = crate::demo::scenario().expect("a scenario");
        let guest = Guest::start(&socket, &scenario.disks[0], 1).expect("a thread");
        // It was there before its disk.
        let first = array(place.path());
        let tally = did_some(&guest);
        assert!(
            tally.took > Duration::ZERO && tally.errors == 0,
            "{tally:?}"
        );
        drop(first);
        std::fs::remove_file(&socket).expect("the socket's name stays");
        let _second = array(place.path());
        guest.take();
        did_some(&guest);
        drop(guest);
    }
}
