//! Which host may write to a disk: a lease in one block on the datastore, kept with nothing but reads and writes.
//!
//! The engine keeps one block for each disk (`.tidegate/leases/`) and carries out what [`Lease::next`] says: read the
//! block, write it, or wait. Before every write to the disk it asks [`Lease::may_write`]. No wall clock, no
//! compare-and-swap, no word from host to host.
//!
//! # Always true
//! - At no moment may two hosts write, however long I/Os take, whichever fail (and land later all the same), and however
//!   long a daemon stands still: for claims with the full wait. Briefly waited-for claims ([`Terms::brief`]) need a
//!   datastore on which a lease's write, once it was reported failed or its writer's lease has ended, never lands.
//! - A holder's time counts from the START of the read in which it last found its own record, and only once the write
//!   after that read has succeeded, all before the time ran out. A taker's counts from the END of its own I/O.
//! - A claim is believed only when exactly this claim, by its sequence number, is found after the wait.
//!
//! Why two cannot hold: between the landing of a claim and the read that confirms it, longer than a lease, the block
//! shows that claim all the time (each write lands once). A holder that reads in this time sees it and stops. One that
//! does not read in this time has not renewed for a lease, and has stopped.
//!
//! # What remains
//! Two windows that no block can close; both end at the datastore, not here:
//! - from the clock reading that `may_write` was given to the submission of the write: a daemon that stands still
//!   exactly there, for longer than what is left of its lease, writes late. The engine reads the clock as the last thing
//!   before it submits, so these are its instructions from there to the system call;
//! - from submission to landing: `may_write` says no [`Terms::landing`] before the lease ends, so a write may be under
//!   way for that long. One that takes longer (a network that delivers late) lands late.
//!
//! Where writes can land later than that, take-over is safe only if the datastore itself refuses the old host.
//!
//! # Picture
//! ```text
//!                 free                         claim written           exactly it found
//!   Rest -> Look ------------------> Claim ----------------> Settle ---------------------> Held <--+ read, write
//!            |  ^ other's           ^                          | another's                 |  |    |
//!            +--+ not yet silent    |                          v                           |  +----+
//!            |                      |                        Look                          |
//!            +- silent for a lease -+   (or Refused)                  another's, time over +--> Lost
//! ```
//!
//! # Source
//! The delta lease of sanlock, after Chockler and Malkhi, "Light-weight leases for storage-centric coordination" (2004);
//! the argument above is ours, for writes that may land late.

use super::slot::{Reader, SLOT, Unreadable, Writer, seal, sealed};
use crate::units::{Span, Time};

const MAGIC: [u8; 8] = *b"TIDELEAS";
const VERSION: u16 = 1;
/// A holder renews this often in a lease: four failures in a row are survived.
const RENEWALS: u64 = 5;
/// After a failure the next attempt comes sooner.
const RETRIES: u64 = 20;

/// What a lease's block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The disk, so that a block in a wrong place is noticed.
    pub disk: [u8; 16],
    /// The host that wrote it.
    pub host: [u8; 16],
    /// That start of its daemon.
    pub incarnation: u64,
    /// Moves by one with each write of it.
    pub sequence: u64,
    /// How long the holder may go on without renewing; a taker waits by the longer of this and its own.
    pub lease: Span,
    /// It has been given back.
    pub free: bool,
}

/// The longest lease that is believed: a foreign number must not make a disk unreachable for ever.
const LEASE_MOST: Span = Span::from_secs(600);

impl Record {
    /// As a block.
    pub fn encode(&self) -> [u8; SLOT] {
        let mut bytes = [0; SLOT];
        let mut out = Writer {
            bytes: &mut bytes,
            at: 0,
        };
        out.put(&MAGIC);
        out.put(&VERSION.to_le_bytes());
        out.put(&u16::from(self.free).to_le_bytes());
        out.put(&[0; 4]);
        out.put(&self.disk);
        out.put(&self.host);
        out.put(&self.incarnation.to_le_bytes());
        out.put(&self.sequence.to_le_bytes());
        out.put(&self.lease.as_nanos().to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// From a block; [`Unreadable::Empty`] where nobody ever was.
    pub fn decode(bytes: &[u8]) -> Result<Record, Unreadable> {
        if bytes.len() != SLOT {
            return Err(Unreadable::Short);
        }
        if bytes.iter().all(|&byte| byte == 0) {
            return Err(Unreadable::Empty);
        }
        if bytes[..8] != MAGIC {
            return Err(Unreadable::Foreign);
        }
        if !sealed(bytes) {
            return Err(Unreadable::Torn);
        }
        let mut from = Reader { bytes, at: 8 };
        let version = u16::from_le_bytes(from.take());
        if version != VERSION {
            return Err(Unreadable::Newer(version));
        }
        let free = u16::from_le_bytes(from.take()) == 1;
        from.at += 4;
        Ok(Record {
            disk: from.take(),
            host: from.take(),
            incarnation: u64::from_le_bytes(from.take()),
            sequence: u64::from_le_bytes(from.take()),
            lease: Span::from_nanos(u64::from_le_bytes(from.take())).min(LEASE_MOST),
            free,
        })
    }
}

/// How patient everybody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a holder may go on without renewing.
    pub lease: Span,
    /// How long a write to the disk may be under way: so long before the lease ends no more are begun.
    pub landing: Span,
    /// How long to wait for another claim where the block is free, or was this host's own; none: a lease. Only for
    /// datastores whose late writes never land; see the page's top.
    pub brief: Option<Span>,
}

/// Whom we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The host.
    pub host: [u8; 16],
    /// This start of its daemon.
    pub incarnation: u64,
}

/// How far an attempt may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Only if nobody has it.
    OnlyFree,
    /// Also from a host that has been silent for a lease.
    TakeOver,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "asked for a few times a second, and never kept"
)]
pub enum Act {
    /// Read the block, past every cache; then [`Lease::was_read`].
    Read,
    /// Write it, durably; then [`Lease::was_written`].
    Write([u8; SLOT]),
    /// Nothing before then.
    At(Time),
    /// Nothing.
    Rest,
}

/// Where we stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing is wanted.
    Rest,
    /// It is being looked at or claimed; who has it, as far as is known.
    Trying(Option<Holder>),
    /// It is ours until then, and longer if it is renewed.
    Held(Time),
    /// It is another host's; whether that host was seen alive.
    Refused {
        /// Which.
        by: Holder,
        /// It renewed while we looked; else it fell silent.
        live: bool,
    },
    /// It was ours. Another has it, or our time ran out.
    Lost(Option<Holder>),
    /// The block holds something that is no lease of this disk; a person must look.
    Unreadable(Unreadable),
}

#[derive(Clone, Copy, Debug)]
enum State {
    Rest,
    Look {
        seen: Option<Seen>,
        again: Time,
    },
    Claim {
        read: Time,
        brief: bool,
    },
    Settle {
        sequence: u64,
        until: Time,
    },
    Held {
        until: Time,
        again: Time,
        checked: Option<Time>,
    },
    Release {
        until: Time,
    },
    End(Standing),
}

/// Another's record, and when the read of it that first showed this sequence number had ended.
#[derive(Clone, Copy, Debug)]
struct Seen {
    record: Record,
    since: Time,
}

/// One host's dealings with one disk's lease.
#[derive(Clone, Debug)]
pub struct Lease {
    disk: [u8; 16],
    me: Holder,
    terms: Terms,
    intent: Intent,
    state: State,
    sequence: u64,
    /// The I/O under way began then.
    began: Option<Time>,
}

impl Lease {
    /// A lease that is not wanted yet.
    pub fn new(disk: [u8; 16], me: Holder, terms: Terms) -> Lease {
        let intent = Intent::OnlyFree;
        Lease {
            disk,
            me,
            terms,
            intent,
            state: State::Rest,
            sequence: 0,
            began: None,
        }
    }

    /// Wants it. Does nothing while it is held or being tried already.
    pub fn want(&mut self, now: Time, intent: Intent) {
        self.intent = intent;
        if let State::Rest | State::End(_) = self.state {
            self.state = State::Look {
                seen: None,
                again: now,
            };
        }
    }

    /// Gives it up: from now on nothing may be written to the disk. If it is held, a last write frees the block.
    pub fn release(&mut self) {
        self.state = match self.state {
            State::Held { until, .. } => State::Release { until },
            _ => State::Rest,
        };
    }

    /// Whether a write to the disk may be submitted now, with the clock just read.
    #[inline]
    pub fn may_write(&self, now: Time) -> bool {
        match self.state {
            State::Held { until, .. } => now + self.terms.landing < until,
            _ => false,
        }
    }

    /// Where we stand.
    pub fn standing(&self, now: Time) -> Standing {
        match self.state {
            State::Rest | State::Release { .. } => Standing::Rest,
            State::Look { seen, .. } => Standing::Trying(seen.map(|seen| holder(&seen.record))),
            State::Claim { .. } | State::Settle { .. } => Standing::Trying(None),
            State::Held { until, .. } if now < until => Standing::Held(until),
            State::Held { .. } => Standing::Lost(None),
            State::End(standing) => standing,
        }
    }

    /// What is to be done. One I/O at a time: while one is under way, nothing.
    pub fn next(&mut self, now: Time) -> Act {
        if self.began.is_some() {
            return Act::Rest;
        }
        let act = match self.state {
            State::Rest | State::End(_) => return Act::Rest,
            State::Look { again, .. } | State::Settle { until: again, .. } if now < again => {
                return Act::At(again);
            }
            State::Look { .. } | State::Settle { .. } => Act::Read,
            State::Claim { .. } => Act::Write(self.write(false)),
            State::Held { until, .. } | State::Release { until } if now >= until => {
                // Too late to write anything, our own block included: another may have it.
                self.state = State::End(Standing::Lost(None));
                return Act::Rest;
            }
            State::Held {
                checked: Some(_), ..
            } => Act::Write(self.write(false)),
            State::Held { again, .. } if now < again => return Act::At(again),
            State::Held { .. } => Act::Read,
            State::Release { .. } => Act::Write(self.write(true)),
        };
        self.began = Some(now);
        act
    }

    /// The read has ended. A failed one: none.
    pub fn was_read(&mut self, now: Time, bytes: Option<&[u8]>) {
        let Some(began) = self.began.take() else {
            return;
        };
        let Some(bytes) = bytes else {
            return self.retry(now);
        };
        let record = match Record::decode(bytes) {
            Ok(record) if record.disk == self.disk => Some(record),
            Ok(_) => return self.stopped(Standing::Unreadable(Unreadable::Foreign)),
            Err(Unreadable::Empty) => None,
            // Half a write: the next read shows the whole one. A holder goes on for what is left of its time.
            Err(Unreadable::Torn) => return self.retry(now),
            Err(fault) => return self.stopped(Standing::Unreadable(fault)),
        };
        match self.state {
            State::Look { seen, .. } => self.looked(began, now, seen, record),
            State::Settle { sequence, .. } => {
                let mine =
                    record.is_some_and(|found| self.is(&found) && found.sequence == sequence);
                self.state = if mine {
                    let until = began + self.terms.lease;
                    State::Held {
                        until,
                        again: began + self.part(RENEWALS),
                        checked: None,
                    }
                } else {
                    State::Look {
                        seen: None,
                        again: now,
                    }
                };
            }
            State::Held { until, again, .. } => match record {
                _ if now >= until => self.stopped(Standing::Lost(None)),
                Some(found) if self.is(&found) && !found.free => {
                    self.state = State::Held {
                        until,
                        again,
                        checked: Some(began),
                    };
                }
                found => self.stopped(Standing::Lost(found.map(|found| holder(&found)))),
            },
            State::Rest | State::Claim { .. } | State::Release { .. } | State::End(_) => {}
        }
    }

    /// The write has ended.
    pub fn was_written(&mut self, now: Time, ok: bool) {
        if self.began.take().is_none() {
            return;
        }
        match self.state {
            // It may have landed, or land yet: what the block shows next decides.
            State::Claim { .. } if !ok => self.retry(now),
            State::Claim { read, brief } => {
                // Others read "free" as we did; only a claim that follows its look at once may wait briefly.
                let wait = match self.terms.brief {
                    Some(brief_wait) if brief && now.since(read) <= brief_wait => brief_wait,
                    _ => patient(self.terms.lease),
                };
                self.state = State::Settle {
                    sequence: self.sequence,
                    until: now + wait,
                };
            }
            State::Held { until, .. } if now >= until => self.stopped(Standing::Lost(None)),
            State::Held {
                checked: Some(checked),
                until,
                ..
            } if ok => {
                let until = until.max(checked + self.terms.lease);
                let again = checked + self.part(RENEWALS);
                self.state = State::Held {
                    until,
                    again,
                    checked: None,
                };
            }
            State::Held { .. } => self.retry(now),
            // Failed, it is not tried again: the others wait for a lease, which is safe at any time.
            State::Release { .. } => self.state = State::Rest,
            // Given up while it was under way.
            State::Rest | State::Look { .. } | State::Settle { .. } | State::End(_) => {}
        }
    }

    /// Someone's record, or none, was found by a look that may lead to a claim.
    fn looked(&mut self, began: Time, now: Time, seen: Option<Seen>, record: Option<Record>) {
        let Some(record) = record else {
            self.state = State::Claim {
                read: began,
                brief: true,
            };
            return;
        };
        // Our host's record of an earlier start: that daemon is dead, there is one to a host.
        if record.free || record.host == self.me.host {
            let brief = record.free || record.incarnation != self.me.incarnation;
            self.state = State::Claim { read: began, brief };
            return;
        }
        let same = |seen: &Seen| seen.record == record;
        match seen {
            Some(seen) if same(&seen) => {
                let silent = began.since(seen.since) >= patient(self.terms.lease.max(record.lease));
                self.state = match (silent, self.intent) {
                    (false, _) => State::Look {
                        seen: Some(seen),
                        again: now + self.part(RENEWALS),
                    },
                    (true, Intent::TakeOver) => State::Claim {
                        read: began,
                        brief: false,
                    },
                    (true, Intent::OnlyFree) => State::End(Standing::Refused {
                        by: holder(&record),
                        live: false,
                    }),
                };
            }
            // It moved while we looked, by the same hand: alive.
            Some(seen) if holder(&seen.record) == holder(&record) => {
                self.state = State::End(Standing::Refused {
                    by: holder(&record),
                    live: true,
                });
            }
            _ => {
                let seen = Some(Seen { record, since: now });
                self.state = State::Look {
                    seen,
                    again: now + self.part(RENEWALS),
                };
            }
        }
    }

    /// An I/O failed: again soon, with what was known.
    fn retry(&mut self, now: Time) {
        let soon = now + self.part(RETRIES);
        self.state = match self.state {
            State::Look { seen, .. } => State::Look { seen, again: soon },
            State::Claim { .. } => State::Look {
                seen: None,
                again: soon,
            },
            State::Settle { sequence, until } => State::Settle {
                sequence,
                until: until.max(soon),
            },
            State::Held { until, .. } => State::Held {
                until,
                again: soon,
                checked: None,
            },
            other => other,
        };
    }

    fn stopped(&mut self, standing: Standing) {
        self.state = State::End(standing);
    }

    fn is(&self, record: &Record) -> bool {
        holder(record) == self.me
    }

    fn part(&self, of: u64) -> Span {
        Span::from_nanos((self.terms.lease.as_nanos() / of).max(1))
    }

    fn write(&mut self, free: bool) -> [u8; SLOT] {
        self.sequence += 1;
        let Holder { host, incarnation } = self.me;
        let (disk, lease, sequence) = (self.disk, self.terms.lease, self.sequence);
        Record {
            disk,
            host,
            incarnation,
            sequence,
            lease,
            free,
        }
        .encode()
    }
}

fn holder(record: &Record) -> Holder {
    Holder {
        host: record.host,
        incarnation: record.incarnation,
    }
}

/// A lease and an eighth: two monotonic clocks run apart by far less.
fn patient(lease: Span) -> Span {
    lease + Span::from_nanos(lease.as_nanos() / 8)
}

#[cfg(test)]
mod tests;
