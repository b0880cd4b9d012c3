//! A guest of a scenario in real time: the simulator's guest, whose I/O goes to a disk over NBD.
//!
//! A thread of its own per guest. The guest itself ([`tidegate_sim::guest`]) is the one that lives in the simulator; here
//! the time is the clock's and the answers come from a daemon.
//!
//! # Always true
//! - It never blocks in a write while answers are due, and sleeps while nothing happens.
//! - An answer belongs to a request that waits for one; anything else ends the run with an error.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tidegate_core::request::Op;
use tidegate_core::units::{Span, Time};
use tidegate_sim::guest::{Guest, Want};
use tidegate_sim::results::Seen;
use tidegate_sim::scenario::Disk;

use tidegate_testing::load::{Kind, Operation};
use tidegate_testing::nbd::async_connection::{Answer, AsyncConnection};
use tidegate_testing::nbd::wire;

/// A message to a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Begin to ask, or go on.
    Start,
    /// Ask for nothing more.
    Stop,
    /// Stop, wait for what is under way, and end.
    End,
}

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

/// A guest at work.
#[derive(Debug)]
pub(super) struct Player {
    words: Sender<Word>,
    /// A byte for each word: it ends the guest's sleep.
    bell: UnixStream,
    thread: JoinHandle<Result<Played>>,
}

/// The longest sleep, in milliseconds: an end is noticed by then though nobody rings.
const LONGEST_MS: u16 = 1_000;
/// Answers that were not there so long after the end are not coming.
const DRAIN: Span = Span::from_secs(60);

impl Player {
    /// Connects to `export` and waits for its first word. `begun`: the run's beginning.
    pub(super) fn new(
        place: usize,
        disk: &Disk,
        seed: u64,
        socket: &Path,
        begun: Instant,
    ) -> Result<Player> {
        let (stream, _) = wire::connect(socket, &disk.name)?;
        let connection = AsyncConnection::new(stream)?;
        let (words, heard) = channel();
        let (bell, rung) = UnixStream::pair().context("cannot prepare a bell")?;
        rung.set_nonblocking(true)
            .context("cannot prepare a bell")?;
        let mut session = Session {
            place,
            guest: Guest::new(disk, seed),
            connection,
            begun,
            heard,
            rung,
            alarms: BinaryHeap::new(),
            wants: Vec::new(),
            played: Played::default(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("guest-{}", disk.name))
            .spawn(move || session.live().map(|()| session.played))
            .context("cannot start a thread")?;
        Ok(Player {
            words,
            bell,
            thread,
        })
    }

    /// Tells it something. One that has failed says so at the end.
    pub(super) fn tell(&self, word: Word) {
        let _failed = self.words.send(word);
        let _gone = (&self.bell).write(&[0]);
    }

    /// Waits for its end.
    pub(super) fn over(self) -> Result<Played> {
        self.tell(Word::End);
        match self.thread.join() {
            Ok(played) => played,
            Err(_) => bail!("a guest's thread panicked"),
        }
    }
}

struct Session {
    place: usize,
    guest: Guest,
    connection: AsyncConnection<Asked>,
    begun: Instant,
    heard: Receiver<Word>,
    rung: UnixStream,
    alarms: BinaryHeap<Reverse<(Time, u32, u32)>>,
    wants: Vec<Want>,
    played: Played,
}

#[derive(Clone, Copy)]
struct Asked {
    actor: Option<u32>,
    op: Op,
    offset: u64,
    len: u64,
    arrived: Time,
}

impl Session {
    fn now(&self) -> Time {
        Time::from_nanos(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn live(&mut self) -> Result<()> {
        let mut ending: Option<Time> = None;
        loop {
            loop {
                match self.heard.try_recv() {
                    Ok(Word::Start) => {
                        let now = self.now();
                        self.guest.start(now, &mut self.wants);
                    }
                    Ok(Word::Stop) => self.guest.stop(),
                    Ok(Word::End) => ending = ending.or(Some(self.now())),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        ending = ending.or(Some(self.now()));
                        break;
                    }
                }
            }
            if ending.is_some() {
                self.guest.stop();
            }
            self.ring();
            self.grant();
            self.connection.send()?;
            if let Some(since) = ending {
                let left = self.connection.outstanding();
                if left == 0 {
                    return Ok(());
                }
                if self.now() > since + DRAIN {
                    bail!("{left} I/Os were never answered");
                }
            }
            self.wait()?;
            self.receive()?;
        }
    }

    /// Wakes the actors whose time has come.
    fn ring(&mut self) {
        let now = self.now();
        while let Some(&Reverse((at, actor, epoch))) = self.alarms.peek() {
            if at > now {
                return;
            }
            self.alarms.pop();
            self.guest.woke(now, actor, epoch, &mut self.wants);
        }
    }

    /// Does what the guest wants.
    fn grant(&mut self) {
        let now = self.now();
        for want in self.wants.drain(..) {
            match want {
                Want::Wake { actor, epoch, at } => self.alarms.push(Reverse((at, actor, epoch))),
                Want::Io {
                    actor,
                    op,
                    offset,
                    len,
                } => {
                    let kind = match op {
                        Op::Write => Kind::Write,
                        Op::Flush => Kind::Flush,
                        _ => Kind::Read,
                    };
                    let operation = Operation {
                        kind,
                        offset,
                        length: u32::try_from(len).unwrap_or(u32::MAX),
                        ..Operation::FLUSH
                    };
                    let (handle, out) = self.connection.ask(Asked {
                        actor,
                        op,
                        offset,
                        len,
                        arrived: now,
                    });
                    wire::request(out, &operation, handle);
                    if op == Op::Write {
                        out.resize(out.len() + bytes(len), 0);
                    }
                }
            }
        }
    }

    /// Until something is to be read or written, or an alarm, or a word.
    fn wait(&self) -> Result<()> {
        let now = self.now();
        let alarm = self.alarms.peek().map_or(LONGEST_MS, |Reverse((at, ..))| {
            // Rounded up: an alarm that rings early would only ring again.
            let micros = at.since(now).as_micros().saturating_add(999);
            u16::try_from(micros / 1_000).unwrap_or(u16::MAX)
        });
        let timeout = PollTimeout::from(alarm.min(LONGEST_MS));
        let mut fds = [
            self.connection.interest(),
            PollFd::new(self.rung.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error).context("cannot wait for answers"),
        }
        let mut strokes = [0; 64];
        let _none = (&self.rung).read(&mut strokes);
        Ok(())
    }

    fn receive(&mut self) -> Result<()> {
        self.connection.receive()?;
        let data = |asked: &Asked| match asked.op {
            Op::Read => asked.len,
            _ => 0,
        };
        while let Some(Answer { asked, ok }) = self.connection.answer(data)? {
            self.ended(asked, ok);
        }
        Ok(())
    }

    fn ended(&mut self, asked: Asked, ok: bool) {
        let now = self.now();
        self.played.errors += u64::from(!ok);
        self.played.ios.push(Seen {
            disk: self.place,
            op: asked.op,
            offset: asked.offset,
            len: asked.len,
            arrived: asked.arrived,
            ended: now,
        });
        if let Some(took) = self.guest.answered(now, asked.actor, &mut self.wants) {
            self.played.orders.push((now, took));
        }
    }
}

fn bytes(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
