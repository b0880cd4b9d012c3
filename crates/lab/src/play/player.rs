//! A guest of a scenario on a thread of its own, and what it did.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tidegate_core::units::{Span, Time};
use tidegate_sim::results::Seen;
use tidegate_sim::scenario::Disk;
use tidegate_testing::nbd::wire;

use crate::nbd_guest::NbdGuest;

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Played {
    /// I/Os, in the order in which they ended.
    pub(super) ios: Vec<Seen>,
    /// When orders of a shop were served, and how long each took.
    pub(super) orders: Vec<(Time, Span)>,
    /// I/Os that ended with an error.
    pub(super) errors: u64,
}

/// A guest at work. It stops, waits for what is outstanding, and ends once `commands` is closed.
#[derive(Debug)]
pub(super) struct Player {
    commands: UnixStream,
    thread: JoinHandle<Result<Played>>,
}

/// A command is a byte.
const START: u8 = 1;
const STOP: u8 = 0;
/// The longest sleep.
const LONGEST: Duration = Duration::from_secs(1);

impl Player {
    /// Connects to the disk's export and rests. `begun`: the run's beginning.
    pub(super) fn new(
        place: usize,
        disk: &Disk,
        seed: u64,
        socket: &Path,
        begun: Instant,
    ) -> Result<Player> {
        let (stream, _) = wire::connect(socket, &disk.name)?;
        let guest = NbdGuest::new(stream, disk, seed, begun)?;
        let (commands, heard) = UnixStream::pair().context("cannot make a pair of sockets")?;
        heard
            .set_nonblocking(true)
            .context("cannot prepare a socket")?;
        let thread = std::thread::Builder::new().name(format!("guest-{}", disk.name));
        let thread = thread
            .spawn(move || live(place, guest, &heard))
            .context("cannot start a thread")?;
        Ok(Player { commands, thread })
    }

    /// Begins, or continues.
    pub(super) fn start(&self) {
        self.command(START);
    }

    /// Requests nothing more until it is started again.
    pub(super) fn stop(&self) {
        self.command(STOP);
    }

    fn command(&self, command: u8) {
        // One that has failed reports it at the end.
        let _failed = (&self.commands).write_all(&[command]);
    }

    /// Waits for its end.
    pub(super) fn over(self) -> Result<Played> {
        drop(self.commands);
        match self.thread.join() {
            Ok(played) => played,
            Err(_) => bail!("a guest's thread panicked"),
        }
    }
}

fn live(place: usize, mut guest: NbdGuest, mut heard: &UnixStream) -> Result<Played> {
    let mut played = Played::default();
    let mut ending = false;
    loop {
        let mut commands = [0; 64];
        match heard.read(&mut commands) {
            Ok(0) => {
                ending = true;
                guest.stop();
            }
            Ok(count) => commands[..count].iter().for_each(|command| match *command {
                START => guest.start(),
                _ => guest.stop(),
            }),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot read a guest's commands"),
        }
        if ending && guest.is_over() {
            return Ok(played);
        }
        let wake = (!ending).then_some(heard);
        guest.step(LONGEST, wake, &mut |io| {
            played.errors += u64::from(io.failed);
            played.ios.push(Seen {
                disk: place,
                op: io.op,
                offset: io.offset,
                len: io.len,
                arrived: io.asked,
                ended: io.ended,
            });
            played.orders.extend(io.order.map(|took| (io.ended, took)));
        })?;
    }
}
