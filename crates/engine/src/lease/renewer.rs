//! The lease renewer: the thread that keeps the leases of one directory.
//!
//! Takes words from the daemon's threads and from disks that go, carries out what the core's rules say for each lease,
//! and moves the gates. It sleeps until the next renewal; without leases that are renewed, until a word comes.
//!
//! # Always true
//! - a gate is opened no further than [`lease::Lease::write_before`] says
//! - each who asks is answered once
//! - a lease that ran out is regained or lost for good by itself; both are told to the log

use super::block::{Block, Manner};
use super::fence::Fence;
use super::{Guard, Holder, Refused, Settings, Takeover, unreadable};
use crate::error::{Error, Kind};
use crate::sys::os;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;
use tidegate_core::governor::lease::{
    self, Act, Contest, Intent, Lease, Name, Record, Standing, Terms,
};
use tidegate_core::governor::slot::Unreadable;
use tidegate_core::units::{Span, Time};

/// Of a lease, what is left for a write that is under way to land.
const LANDING: u64 = 5;
/// How long a claim on what nobody has is waited for where no lock keeps others from doing the same: much longer than
/// two I/Os take on a datastore that works. Of a lease; half a second of ten.
const BRIEF: u64 = 20;
/// Leases after which an attempt that came to nothing is given up: looking and claiming take two and a quarter.
const PATIENCE: u64 = 4;

/// What the tender is told.
pub(super) enum Word {
    /// Somebody wants a disk.
    Take(Box<Ask>),
    /// A lease goes back.
    Give(u64),
    /// Who has a disk?
    Who([u8; 16], Sender<Option<Holder>>),
    /// It ends; the sender is dropped then.
    End(Sender<()>),
}

/// A wish for a disk's lease.
pub(super) struct Ask {
    pub(super) disk: [u8; 16],
    pub(super) name: String,
    pub(super) guard: Guard,
    pub(super) takeover: Takeover,
    pub(super) reply: Sender<Result<Given, Refused>>,
}

/// A lease that was given.
pub(super) struct Given {
    pub(super) key: u64,
    pub(super) fence: Option<Arc<Fence>>,
}

struct Renewer {
    settings: Settings,
    me: lease::Holder,
    name: Name,
    next: u64,
    leases: Vec<Entry>,
}

/// A lease that is held, or about to be.
struct Entry {
    key: u64,
    disk: [u8; 16],
    name: String,
    block: Block,
    kept: Kept,
}

enum Kept {
    /// By a lock; the block only tells who has it. The record that we wrote, if that went well.
    Notice(Option<Record>),
    /// By renewing it.
    Renewed(Box<Renewed>),
}

struct Renewed {
    lease: Lease,
    guard: Guard,
    fence: Arc<Fence>,
    /// Who waits for it, and until when.
    asks: Option<(Sender<Result<Given, Refused>>, Time)>,
    /// What was read last.
    seen: Option<Record>,
    /// The last failure, until something works again.
    trouble: Option<io::Error>,
    /// Its time ran out, and it is not back yet.
    lapsed: bool,
}

/// Starts the thread.
///
/// # Errors
/// When there is none to be had.
pub(super) fn start(settings: Settings) -> io::Result<Sender<Word>> {
    let (words, heard) = channel();
    let me = lease::Holder {
        host: settings.host,
        boot: boot(),
        incarnation: settings.incarnation,
        lock: settings.lock,
    };
    let mut tender = Renewer {
        me,
        name: Name::new(&settings.host_name),
        next: 0,
        leases: Vec::new(),
        settings,
    };
    std::thread::Builder::new()
        .name(format!("leases-{}", tender.settings.name))
        .spawn(move || tender.run(&heard))?;
    Ok(words)
}

/// This start of the machine; zeroes where the system does not tell.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_or([0; 16], u128::to_be_bytes)
}

impl Renewer {
    fn run(&mut self, words: &Receiver<Word>) {
        loop {
            let wake = self.tend();
            let word = match wake {
                None => words.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => {
                    let wait = at.since(os::boottime()).as_nanos();
                    words.recv_timeout(Duration::from_nanos(wait))
                }
            };
            match word {
                Ok(Word::Take(ask)) => self.take(*ask),
                Ok(Word::Give(key)) => self.give(key),
                Ok(Word::Who(disk, reply)) => {
                    // Who asked may have gone.
                    let _ = reply.send(self.who(disk));
                }
                Ok(Word::End(done)) => return drop(done),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Does what is due; when something is again.
    fn tend(&mut self) -> Option<Time> {
        let mut wake = None;
        let mut ended = Vec::new();
        for entry in &mut self.leases {
            let Kept::Renewed(renewed) = &mut entry.kept else {
                continue;
            };
            let (at, goes_on) = renewed.tend(&mut entry.block, entry.key, &entry.name);
            wake = wake.into_iter().chain(at).min();
            if !goes_on {
                ended.push(entry.key);
            }
        }
        self.leases.retain(|entry| !ended.contains(&entry.key));
        wake
    }

    fn take(&mut self, ask: Ask) {
        let reply = ask.reply.clone();
        if let Err(refused) = self.begin(ask) {
            // Who asked may have gone.
            let _ = reply.send(Err(refused));
        }
    }

    fn begin(&mut self, ask: Ask) -> Result<(), Refused> {
        let trouble = |what: &str, e| {
            let text = format!("cannot {what} the lease of disk {}", ask.name);
            Refused::Trouble(Error::io(text, e))
        };
        let made = Block::new(&self.settings.directory, ask.disk);
        let mut block = made.map_err(|e| trouble("have memory for", e))?;
        let prepared = block.prepare();
        let (key, mut guard) = (self.next, ask.guard);
        self.next += 1;
        if guard == Guard::Kernel {
            let found = read(&mut block, Manner::Notice);
            // A daemon that renews reaches this directory by another way: it does not ask this kernel for its lock.
            let renewed = |found: &Record| self.may_live(found) && found.lease > Span::ZERO;
            if found.as_ref().is_some_and(renewed) {
                guard = Guard::Lease;
            } else {
                let noted = prepared.and_then(|()| self.note(&mut block, ask.disk, found.as_ref()));
                if let Err(error) = &noted {
                    tracing::debug!(disk = %ask.name, %error, "it cannot be noted who has a disk; its lock guards it all the same");
                }
                let kept = Kept::Notice(noted.ok());
                let fence = None;
                self.keep(key, &ask, block, kept);
                // If who asked has gone, the lock will go too, and the notice is overwritten.
                let _ = ask.reply.send(Ok(Given { key, fence }));
                return Ok(());
            }
        }
        prepared.map_err(|e| trouble("make", e))?;
        let twice =
            |entry: &Entry| entry.disk == ask.disk && matches!(entry.kept, Kept::Renewed(_));
        if self.leases.iter().any(twice) {
            let text = format!(
                "disk {} is open on this host already, or another with the same uuid",
                ask.name
            );
            return Err(Refused::Trouble(Error::new(Kind::Busy, text)));
        }
        let found = read(&mut block, Manner::Shared);
        if let Some(found) = found
            && guard == Guard::Lease
            && found.lease == Span::ZERO
            && self.may_live(&found)
        {
            return Err(Refused::Unseen(who(&found), block.path().into()));
        }
        let kept = Kept::Renewed(Box::new(self.renewed(guard, &ask)));
        self.keep(key, &ask, block, kept);
        Ok(())
    }

    /// Whether the daemon that a record names may still have the disk. Our own host's name proves nothing: a copy of this
    /// root has it as well.
    fn may_live(&self, found: &Record) -> bool {
        !found.free && !self.me.replaces(&found.holder)
    }

    fn renewed(&self, guard: Guard, ask: &Ask) -> Renewed {
        let nanos = u64::try_from(self.settings.lease.as_nanos()).unwrap_or(u64::MAX);
        let part = |of: u64| Span::from_nanos(nanos / of);
        let terms = Terms {
            lease: part(1),
            landing: part(LANDING),
            contest: match guard {
                Guard::Kernel | Guard::Server => Contest::Nobody,
                Guard::Lease => Contest::Brief(part(BRIEF)),
            },
        };
        let intent = match (guard, ask.takeover) {
            (Guard::Lease, Takeover::Guarded) => Intent::OnlyFree,
            _ => Intent::TakeOver,
        };
        let now = os::boottime();
        let mut lease = Lease::new(ask.disk, self.me, self.name, terms);
        lease.want(now, intent);
        let patience = Span::from_nanos(nanos.saturating_mul(PATIENCE));
        Renewed {
            lease,
            guard,
            fence: Arc::default(),
            asks: Some((ask.reply.clone(), now + patience)),
            seen: None,
            trouble: None,
            lapsed: false,
        }
    }

    fn keep(&mut self, key: u64, ask: &Ask, block: Block, kept: Kept) {
        self.leases.push(Entry {
            key,
            disk: ask.disk,
            name: ask.name.clone(),
            block,
            kept,
        });
    }

    /// Notes that we have a disk, by a lock.
    fn note(
        &self,
        block: &mut Block,
        disk: [u8; 16],
        found: Option<&Record>,
    ) -> io::Result<Record> {
        let record = Record {
            disk,
            holder: self.me,
            name: self.name,
            sequence: found.map_or(0, |found| found.sequence).saturating_add(1),
            lease: Span::ZERO,
            free: false,
        };
        block.write(Manner::Notice, &record.encode())?;
        Ok(record)
    }

    fn give(&mut self, key: u64) {
        let Some(at) = self.leases.iter().position(|entry| entry.key == key) else {
            return;
        };
        let mut entry = self.leases.swap_remove(at);
        match entry.kept {
            Kept::Notice(None) => {}
            Kept::Notice(Some(ours)) => {
                // The lock has gone already: a successor may have noted itself.
                if read(&mut entry.block, Manner::Notice) == Some(ours) {
                    let free = Record { free: true, ..ours };
                    // Unwritten, it names a host that has gone: whoever has the lock does not care.
                    let _ = entry.block.write(Manner::Notice, &free.encode());
                }
            }
            Kept::Renewed(mut renewed) => renewed.release(&mut entry.block, &entry.name),
        }
    }

    fn who(&self, disk: [u8; 16]) -> Option<Holder> {
        let mut block = Block::new(&self.settings.directory, disk).ok()?;
        let found = read(&mut block, Manner::Shared)?;
        (!found.free).then(|| who(&found))
    }
}

impl Renewed {
    /// Does what is due. When something is again, and whether it goes on at all.
    fn tend(&mut self, block: &mut Block, key: u64, name: &str) -> (Option<Time>, bool) {
        let wake = loop {
            let now = os::boottime();
            match self.lease.next(now) {
                Act::Read => self.read(block),
                Act::Write(bytes) => self.write(block, &bytes),
                Act::At(at) => break Some(at),
                Act::Rest => break None,
            }
            if !self.judge(block, key, name) {
                return (None, false);
            }
        };
        if !self.judge(block, key, name) {
            return (None, false);
        }
        // A lease that was lost a moment ago may be looked at again at once.
        let wake = match self.lease.standing(os::boottime()) {
            Standing::Trying(_) if wake.is_none() => Some(os::boottime()),
            _ => wake,
        };
        (wake, true)
    }

    fn read(&mut self, block: &mut Block) {
        let read = block.read(Manner::Shared);
        let now = os::boottime();
        match read {
            Ok(bytes) => {
                self.seen = Record::decode(bytes).ok();
                self.lease.was_read(now, Some(bytes));
                self.trouble = None;
            }
            Err(error) => {
                self.lease.was_read(now, None);
                self.trouble = Some(error);
            }
        }
    }

    fn write(&mut self, block: &mut Block, bytes: &[u8; tidegate_core::governor::slot::SLOT]) {
        let written = block.write(Manner::Shared, bytes);
        self.lease.was_written(os::boottime(), written.is_ok());
        self.trouble = written.err();
    }

    /// Moves the gate, and tells whom it concerns. False when it has come to its end before it was ours.
    fn judge(&mut self, block: &Block, key: u64, name: &str) -> bool {
        let now = os::boottime();
        let standing = self.lease.standing(now);
        if let (Standing::Held(_), Some(end)) = (standing, self.lease.write_before()) {
            self.fence.open_before(end);
            if std::mem::take(&mut self.lapsed) {
                tracing::warn!(disk = name, "its lease is back: what waited goes on");
            }
        }
        match self.asks.take() {
            Some((reply, until)) => match self.answer(standing, block, name, now >= until) {
                None => self.asks = Some((reply, until)),
                Some(Ok(())) => {
                    let fence = Some(Arc::clone(&self.fence));
                    // If who asked has gone, nobody would ever give it back.
                    return reply.send(Ok(Given { key, fence })).is_ok();
                }
                Some(Err(refused)) => {
                    let _ = reply.send(Err(refused));
                    return false;
                }
            },
            None => self.hold(standing, name, now),
        }
        true
    }

    /// What is to be said to who asks, once that is known.
    fn answer(
        &mut self,
        standing: Standing,
        block: &Block,
        name: &str,
        late: bool,
    ) -> Option<Result<(), Refused>> {
        let other = || self.seen.as_ref().map_or_else(nobody, who);
        let failed = |what: String, e: Option<io::Error>| {
            Refused::Trouble(match e {
                Some(e) => Error::io(what, e),
                None => Error::new(Kind::TimedOut, what),
            })
        };
        let file = block.path().display();
        match standing {
            Standing::Held(_) => Some(Ok(())),
            Standing::Refused { live: true, .. } => Some(Err(Refused::Live(other()))),
            Standing::Refused { live: false, .. } => Some(Err(Refused::Silent(other()))),
            Standing::Unreadable(why) => {
                let text = format!(
                    "the lease of disk {name} cannot be understood, {}: look at {file}, and remove it once \
                     no host has the disk open",
                    unreadable(why)
                );
                let kind = match why {
                    Unreadable::Newer(_) => Kind::Unsupported,
                    _ => Kind::Invalid,
                };
                Some(Err(Refused::Trouble(Error::new(kind, text))))
            }
            Standing::Rest | Standing::Trying(_) | Standing::Lost(_) => {
                let what = format!("cannot use the lease of disk {name} in {file}");
                let given_up = late || self.trouble.is_some();
                given_up.then(|| Err(failed(what, self.trouble.take())))
            }
        }
    }

    /// Watches over a lease that somebody relies on.
    fn hold(&mut self, standing: Standing, name: &str, now: Time) {
        let by = match standing {
            Standing::Lost(None) => {
                let why = self.trouble.as_ref().map(io::Error::to_string);
                if !std::mem::replace(&mut self.lapsed, true) {
                    tracing::warn!(
                        disk = name,
                        why,
                        "its lease was not renewed in time: I/O waits until it is clear that no other host has taken the disk"
                    );
                }
                if self.lease.regain(now) {
                    return;
                }
                // Still held by the rules' word, only its time is over: the next step ends it.
                if self.lease.write_before().is_some() {
                    return;
                }
                None
            }
            Standing::Lost(Some(_)) => self.seen.as_ref().map(who),
            Standing::Unreadable(_) => None,
            _ => return,
        };
        if self.fence.lost().is_some() {
            return;
        }
        let why = match by {
            Some(by) => format!("host {by} has taken the disk over"),
            None => "its lease was lost, and another host may have had the disk since".to_owned(),
        };
        tracing::error!(
            disk = name,
            "{why}: nothing more is written to it; detach it"
        );
        self.fence.lose(why);
    }

    /// Gives it back: its disk has gone.
    fn release(&mut self, block: &mut Block, name: &str) {
        self.fence.lose("its disk was detached".into());
        self.lease.release();
        if let Act::Write(bytes) = self.lease.next(os::boottime()) {
            self.write(block, &bytes);
            if let Some(error) = &self.trouble {
                tracing::warn!(disk = name, %error, guard = ?self.guard, "its lease could not be given back: other hosts will see it end");
            }
        }
    }
}

/// A record as it was found, if it is one.
fn read(block: &mut Block, manner: Manner) -> Option<Record> {
    let bytes = block.read(manner).ok()?;
    Record::decode(bytes).ok()
}

fn who(record: &Record) -> Holder {
    let name: String = record.name.chars().collect();
    let host = record.holder.host;
    let hex = || host.iter().map(|byte| format!("{byte:02x}")).collect();
    Holder {
        name: if name.is_empty() { hex() } else { name },
        host,
    }
}

fn nobody() -> Holder {
    Holder {
        name: "unknown".into(),
        host: [0; 16],
    }
}
