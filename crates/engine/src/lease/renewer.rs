//! The lease renewer: the thread that renews the leases of one directory.
//!
//! It receives commands from the daemon's threads and from detached disks, performs the core's rules for each lease,
//! and extends the fences. It sleeps until the next renewal; without renewed leases, until a command arrives.
//!
//! # Always true
//! - a fence is opened no longer than [`lease::Lease::write_before`] allows
//! - each request is answered once
//! - a lease that expired is either regained or lost for good, without outside help; both are logged

use super::block::{AccessMode, Block};
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

/// A write in flight must complete within this fraction of a lease.
const WRITE_TIME: u64 = 5;
/// How long a claim on a free lease is observed if no lock excludes others, as a fraction of a lease: half a second of
/// ten. That is much longer than two I/Os take on a working datastore.
const CLAIM_WAIT: u64 = 20;
/// An unsuccessful attempt is given up after this many leases: reading and claiming take two and a quarter.
const TIMEOUT: u64 = 4;

/// A command to the renewer.
pub(super) enum Command {
    /// Take a disk's lease.
    Take(Box<LeaseRequest>),
    /// Release a lease.
    Release(u64),
    /// Report the holder of a disk.
    Holder([u8; 16], Sender<Option<Holder>>),
    /// End; the sender is dropped then.
    End(Sender<()>),
}

/// A request for a disk's lease.
pub(super) struct LeaseRequest {
    pub(super) disk: [u8; 16],
    /// What it is, and its name, such as `disk db1`.
    pub(super) name: String,
    /// Where the block is, if it is not in the directory.
    pub(super) block: Option<Block>,
    pub(super) guard: Guard,
    pub(super) takeover: Takeover,
    pub(super) reply: Sender<Result<Granted, Refused>>,
}

/// A granted lease.
pub(super) struct Granted {
    pub(super) key: u64,
    pub(super) fence: Option<Arc<Fence>>,
}

struct Renewer {
    settings: Settings,
    this_host: lease::Holder,
    name: Name,
    next: u64,
    leases: Vec<Entry>,
}

/// A lease that is held or requested.
struct Entry {
    key: u64,
    disk: [u8; 16],
    name: String,
    block: Block,
    protection: Protection,
}

enum Protection {
    /// By a lock; the block only names the holder. Contains the record if it was written.
    Notice(Option<Record>),
    /// By renewing the lease.
    Renewed(Box<Renewed>),
}

struct Renewed {
    lease: Lease,
    guard: Guard,
    fence: Arc<Fence>,
    /// Where to send the result, and until when to try.
    waiting: Option<(Sender<Result<Granted, Refused>>, Time)>,
    /// The record read last.
    seen: Option<Record>,
    /// The last failure, until an operation succeeds.
    trouble: Option<io::Error>,
    /// It has expired and was not regained yet.
    lapsed: bool,
}

/// Starts the thread.
///
/// # Errors
/// If it cannot be started.
pub(super) fn start(settings: Settings) -> io::Result<Sender<Command>> {
    let (commands, received) = channel();
    let this_host = lease::Holder {
        host: settings.host,
        boot: boot(),
        incarnation: settings.incarnation,
        lock: settings.lock,
    };
    let mut renewer = Renewer {
        this_host,
        name: Name::new(&settings.host_name),
        next: 0,
        leases: Vec::new(),
        settings,
    };
    std::thread::Builder::new()
        .name(format!("leases-{}", renewer.settings.name))
        .spawn(move || renewer.run(&received))?;
    Ok(commands)
}

/// The identity of this boot; zeroes if the system does not report it.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_or([0; 16], u128::to_be_bytes)
}

impl Renewer {
    fn run(&mut self, commands: &Receiver<Command>) {
        loop {
            let wake = self.renew();
            let command = match wake {
                None => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(at) => {
                    let wait = at.since(os::boottime()).as_nanos();
                    commands.recv_timeout(Duration::from_nanos(wait))
                }
            };
            match command {
                Ok(Command::Take(request)) => self.take(*request),
                Ok(Command::Release(key)) => self.release(key),
                Ok(Command::Holder(disk, reply)) => {
                    // The caller may be gone.
                    let _ = reply.send(self.holder_of(disk));
                }
                Ok(Command::End(done)) => return drop(done),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Performs the renewals that are due; returns when the next is.
    fn renew(&mut self) -> Option<Time> {
        let mut wake = None;
        let mut ended = Vec::new();
        for entry in &mut self.leases {
            let Protection::Renewed(renewed) = &mut entry.protection else {
                continue;
            };
            let (at, continues) = renewed.renew(&mut entry.block, entry.key, &entry.name);
            wake = wake.into_iter().chain(at).min();
            if !continues {
                ended.push(entry.key);
            }
        }
        self.leases.retain(|entry| !ended.contains(&entry.key));
        wake
    }

    fn take(&mut self, request: LeaseRequest) {
        let reply = request.reply.clone();
        if let Err(refused) = self.begin(request) {
            // The caller may be gone.
            let _ = reply.send(Err(refused));
        }
    }

    fn begin(&mut self, mut request: LeaseRequest) -> Result<(), Refused> {
        let own = request.block.take();
        let trouble = |what: &str, e| {
            let text = format!("cannot {what} the lease of {}", request.name);
            Refused::Trouble(Error::io(text, e))
        };
        let created = match own {
            Some(block) => Ok(block),
            None => Block::new(&self.settings.directory, request.disk),
        };
        let mut block = created.map_err(|e| trouble("allocate", e))?;
        let prepared = block.prepare();
        let (key, mut guard) = (self.next, request.guard);
        self.next += 1;
        if guard == Guard::Kernel {
            let found = read(&mut block, AccessMode::Notice);
            // A daemon that renews uses another path to this directory: it does not see this kernel's lock.
            let renewed = |found: &Record| self.may_live(found) && found.lease > Span::ZERO;
            if found.as_ref().is_some_and(renewed) {
                guard = Guard::Lease;
            } else {
                let recorded =
                    prepared.and_then(|()| self.note(&mut block, request.disk, found.as_ref()));
                if let Err(error) = &recorded {
                    tracing::debug!(lease = %request.name, %error, "the holder of a disk cannot be recorded; its lock guards it nevertheless");
                }
                let protection = Protection::Notice(recorded.ok());
                let fence = None;
                self.add(key, &request, block, protection);
                // If the caller is gone, the lock will be released too, and the notice overwritten.
                let _ = request.reply.send(Ok(Granted { key, fence }));
                return Ok(());
            }
        }
        prepared.map_err(|e| trouble("create", e))?;
        let twice = |entry: &Entry| {
            entry.disk == request.disk && matches!(entry.protection, Protection::Renewed(_))
        };
        if self.leases.iter().any(twice) {
            let text = format!(
                "{} is open on this host already, or another with the same uuid",
                request.name
            );
            return Err(Refused::Trouble(Error::new(Kind::Busy, text)));
        }
        let found = read(&mut block, AccessMode::Shared);
        if let Some(found) = found
            && guard == Guard::Lease
            && found.lease == Span::ZERO
            && self.may_live(&found)
        {
            return Err(Refused::Unseen(holder_of(&found), block.path().into()));
        }
        let protection = Protection::Renewed(Box::new(self.renewed(guard, &request)));
        self.add(key, &request, block, protection);
        Ok(())
    }

    /// Whether the daemon in a record may still have the disk. Our own host's name proves nothing: a copy of this root
    /// has it too.
    fn may_live(&self, found: &Record) -> bool {
        !found.free && !self.this_host.replaces(&found.holder)
    }

    fn renewed(&self, guard: Guard, request: &LeaseRequest) -> Renewed {
        let nanos = u64::try_from(self.settings.lease.as_nanos()).unwrap_or(u64::MAX);
        let part = |of: u64| Span::from_nanos(nanos / of);
        let terms = Terms {
            lease: part(1),
            landing: part(WRITE_TIME),
            contest: match guard {
                Guard::Kernel | Guard::Server => Contest::Nobody,
                Guard::Lease => Contest::Brief(part(CLAIM_WAIT)),
            },
        };
        let intent = match (guard, request.takeover) {
            (Guard::Lease, Takeover::Guarded) => Intent::OnlyFree,
            _ => Intent::TakeOver,
        };
        let now = os::boottime();
        let mut lease = Lease::new(request.disk, self.this_host, self.name, terms);
        lease.want(now, intent);
        let timeout = Span::from_nanos(nanos.saturating_mul(TIMEOUT));
        Renewed {
            lease,
            guard,
            fence: Arc::default(),
            waiting: Some((request.reply.clone(), now + timeout)),
            seen: None,
            trouble: None,
            lapsed: false,
        }
    }

    fn add(&mut self, key: u64, request: &LeaseRequest, block: Block, protection: Protection) {
        self.leases.push(Entry {
            key,
            disk: request.disk,
            name: request.name.clone(),
            block,
            protection,
        });
    }

    /// Records that this host has a disk by a lock.
    fn note(
        &self,
        block: &mut Block,
        disk: [u8; 16],
        found: Option<&Record>,
    ) -> io::Result<Record> {
        let record = Record {
            disk,
            holder: self.this_host,
            name: self.name,
            sequence: found.map_or(0, |found| found.sequence).saturating_add(1),
            lease: Span::ZERO,
            free: false,
        };
        block.write(AccessMode::Notice, &record.encode())?;
        Ok(record)
    }

    fn release(&mut self, key: u64) {
        let Some(at) = self.leases.iter().position(|entry| entry.key == key) else {
            return;
        };
        let mut entry = self.leases.swap_remove(at);
        match entry.protection {
            Protection::Notice(None) => {}
            Protection::Notice(Some(ours)) => {
                // The lock is released already: a successor may have written its record.
                if read(&mut entry.block, AccessMode::Notice) == Some(ours) {
                    let free = Record { free: true, ..ours };
                    // If that fails, it names a host that is gone: the holder of the lock does not care.
                    let _ = entry.block.write(AccessMode::Notice, &free.encode());
                }
            }
            Protection::Renewed(mut renewed) => renewed.release(&mut entry.block, &entry.name),
        }
    }

    fn holder_of(&self, disk: [u8; 16]) -> Option<Holder> {
        let mut block = Block::new(&self.settings.directory, disk).ok()?;
        let found = read(&mut block, AccessMode::Shared)?;
        (!found.free).then(|| holder_of(&found))
    }
}

impl Renewed {
    /// Performs what is due. Returns when the next step is due, and whether to continue.
    fn renew(&mut self, block: &mut Block, key: u64, name: &str) -> (Option<Time>, bool) {
        let wake = loop {
            let now = os::boottime();
            match self.lease.next(now) {
                Act::Read => self.read(block),
                Act::Write(bytes) => self.write(block, &bytes),
                Act::At(at) => break Some(at),
                Act::Rest => break None,
            }
            if !self.update(block, key, name) {
                return (None, false);
            }
        };
        if !self.update(block, key, name) {
            return (None, false);
        }
        // A lease that was just lost may be read again at once.
        let wake = match self.lease.standing(os::boottime()) {
            Standing::Trying(_) if wake.is_none() => Some(os::boottime()),
            _ => wake,
        };
        (wake, true)
    }

    fn read(&mut self, block: &mut Block) {
        let read = block.read(AccessMode::Shared);
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
        let written = block.write(AccessMode::Shared, bytes);
        self.lease.was_written(os::boottime(), written.is_ok());
        self.trouble = written.err();
    }

    /// Opens the fence, and reports to the caller. False if the attempt ended without a lease.
    fn update(&mut self, block: &Block, key: u64, name: &str) -> bool {
        let now = os::boottime();
        let standing = self.lease.standing(now);
        if let (Standing::Held(_), Some(end)) = (standing, self.lease.write_before()) {
            self.fence.open_before(end);
            if std::mem::take(&mut self.lapsed) {
                tracing::warn!(
                    lease = name,
                    "its lease was regained: pending I/O continues"
                );
            }
        }
        match self.waiting.take() {
            Some((reply, until)) => match self.answer(standing, block, name, now >= until) {
                None => self.waiting = Some((reply, until)),
                Some(Ok(())) => {
                    let fence = Some(Arc::clone(&self.fence));
                    // If the caller is gone, the lease would never be released.
                    return reply.send(Ok(Granted { key, fence })).is_ok();
                }
                Some(Err(refused)) => {
                    let _ = reply.send(Err(refused));
                    return false;
                }
            },
            None => self.watch(standing, name, now),
        }
        true
    }

    /// The reply to the caller, once it is known.
    fn answer(
        &mut self,
        standing: Standing,
        block: &Block,
        name: &str,
        late: bool,
    ) -> Option<Result<(), Refused>> {
        let other = || self.seen.as_ref().map_or_else(unknown_holder, holder_of);
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
                    "the lease of {name} is not valid, {}: {}",
                    unreadable(why),
                    block.check()
                );
                let kind = match why {
                    Unreadable::Newer(_) => Kind::Unsupported,
                    _ => Kind::Invalid,
                };
                Some(Err(Refused::Trouble(Error::new(kind, text))))
            }
            Standing::Rest | Standing::Trying(_) | Standing::Lost(_) => {
                let what = format!("cannot use the lease of {name} in {file}");
                let gives_up = late || self.trouble.is_some();
                gives_up.then(|| Err(failed(what, self.trouble.take())))
            }
        }
    }

    /// Watches a lease that a disk relies on.
    fn watch(&mut self, standing: Standing, name: &str, now: Time) {
        let by = match standing {
            Standing::Lost(None) => {
                let why = self.trouble.as_ref().map(io::Error::to_string);
                if !std::mem::replace(&mut self.lapsed, true) {
                    tracing::warn!(
                        lease = name,
                        why,
                        "its lease was not renewed in time: I/O waits until it is known that no other host has taken the disk"
                    );
                }
                if self.lease.regain(now) {
                    return;
                }
                // The rules still count it as held, but its time is over: the next step ends it.
                if self.lease.write_before().is_some() {
                    return;
                }
                None
            }
            Standing::Lost(Some(_)) => self.seen.as_ref().map(holder_of),
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
            lease = name,
            "{why}: nothing more is written to it; detach it"
        );
        self.fence.lose(why);
    }

    /// Releases it: its disk was detached.
    fn release(&mut self, block: &mut Block, name: &str) {
        self.fence.lose("its disk was detached".into());
        self.lease.release();
        if let Act::Write(bytes) = self.lease.next(os::boottime()) {
            self.write(block, &bytes);
            if let Some(error) = &self.trouble {
                tracing::warn!(lease = name, %error, guard = ?self.guard, "its lease could not be released: other hosts will see it expire");
            }
        }
    }
}

/// The record in a block, if it is valid.
fn read(block: &mut Block, mode: AccessMode) -> Option<Record> {
    let bytes = block.read(mode).ok()?;
    Record::decode(bytes).ok()
}

fn holder_of(record: &Record) -> Holder {
    let name: String = record.name.chars().collect();
    let host = record.holder.host;
    let hex = || host.iter().map(|byte| format!("{byte:02x}")).collect();
    Holder {
        name: if name.is_empty() { hex() } else { name },
        host,
    }
}

fn unknown_holder() -> Holder {
    Holder {
        name: "unknown".into(),
        host: [0; 16],
    }
}
