//! The lease of a disk: which host may write, decided by reads and writes of one block on the datastore.
//!
//! The engine keeps one block for each disk (`.tidegate/leases/`) and carries out what [`Lease::next`] says: read the
//! block, write it, or wait. Before every write to the disk it asks [`Lease::may_write`]. No wall clock, no
//! compare-and-swap, no word from host to host.
//!
//! # Always true
//! - At no moment may two hosts write, however long I/Os take, whichever fail (and land later all the same), and however
//!   long a daemon stands still: for claims with the full wait. Claims that wait less ([`Contest`]) need what is said
//!   there.
//! - A holder's time counts from the START of the read in which it last found its own record, and only once the write
//!   after that read has succeeded, all before the time ran out. A taker's counts from the END of its own I/O.
//! - A claim is believed only when exactly this claim, by its sequence number, is found after the wait.
//! - The same host's record is another's until a lock of the kernel proves that the daemon that wrote it has ended: the
//!   identity of a host is copied with its files, a lock is not.
//! - A lease that ran out is regained ([`Lease::regain`]) only when nobody else can have held it in between.
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
//!
//!   Lost, since the time was over -- regain: our own last record still there --> Claim, and if anything else is found, Lost
//! ```
//!
//! # Source
//! The delta lease of sanlock, after Chockler and Malkhi, "Light-weight leases for storage-centric coordination" (2004);
//! the argument above is ours, for writes that may land late.

mod record;

pub use super::name::Name;
use super::slot::{SLOT, Unreadable};
use crate::units::{Span, Time};
pub use record::{Holder, Record};

/// Renewals in the time of a lease: four failures in a row are survived. Origin: chosen; no measurement.
const RENEWALS: u64 = 5;
/// Attempts in the time of a lease after a failure. Origin: chosen; no measurement.
const RETRIES: u64 = 20;

/// How patient everybody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a holder may go on without renewing.
    pub lease: Span,
    /// How long a write to the disk may be under way: so long before the lease ends no more are begun.
    pub landing: Span,
    /// How long a claim is waited for where the block is free, or was this host's own.
    pub contest: Contest,
}

/// Who else may claim what is free at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contest {
    /// Anybody, and writes may land late: a claim waits for a lease.
    Late,
    /// Anybody; but a lease's write, once it was reported failed or its writer's lease has ended, never lands. A claim
    /// waits for this long.
    Brief(Span),
    /// Nobody: whoever claims it holds a lock at that moment that the datastore enforces. A claim does not wait.
    Nobody,
}

/// How far an attempt may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Only if nobody has it, or an earlier start of this host that has ended, or has been silent for a lease.
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
    name: Name,
    terms: Terms,
    intent: Intent,
    state: State,
    sequence: u64,
    /// The last of our records that landed for certain, and before its time was over.
    landed: u64,
    /// It was ours, ran out, and is looked at again.
    regaining: bool,
    /// The I/O under way began then.
    began: Option<Time>,
}

impl Lease {
    /// A lease that is not wanted yet.
    pub fn new(disk: [u8; 16], me: Holder, name: Name, terms: Terms) -> Lease {
        let intent = Intent::OnlyFree;
        Lease {
            disk,
            me,
            name,
            terms,
            intent,
            state: State::Rest,
            sequence: 0,
            landed: 0,
            regaining: false,
            began: None,
        }
    }

    /// Wants it. Does nothing while it is held or being tried already.
    pub fn want(&mut self, now: Time, intent: Intent) {
        self.intent = intent;
        if let State::Rest | State::End(_) = self.state {
            self.regaining = false;
            self.state = State::Look {
                seen: None,
                again: now,
            };
        }
    }

    /// Wants it back after its time ran out, for those who relied on it all the while: only if nobody else can have held
    /// it since. False: that cannot be known any more, and it stays lost.
    ///
    /// A write of unknown fate could land on top of another's claim and look as if we had never been away.
    pub fn regain(&mut self, now: Time) -> bool {
        let ran_out = matches!(self.state, State::End(Standing::Lost(None)));
        if !ran_out || self.regaining || self.landed != self.sequence {
            return false;
        }
        self.regaining = true;
        self.intent = Intent::OnlyFree;
        self.state = State::Look {
            seen: None,
            again: now,
        };
        true
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
        self.write_before().is_some_and(|end| now < end)
    }

    /// Up to when writes to the disk may be submitted, as things stand.
    pub fn write_before(&self) -> Option<Time> {
        match self.state {
            State::Held { until, .. } => {
                let landing = self.terms.landing.as_nanos();
                Some(Time::from_nanos(until.as_nanos().saturating_sub(landing)))
            }
            _ => None,
        }
    }

    /// Where we stand.
    pub fn standing(&self, now: Time) -> Standing {
        match self.state {
            State::Rest | State::Release { .. } => Standing::Rest,
            State::Look { seen, .. } => Standing::Trying(seen.map(|seen| seen.record.holder)),
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
                    (self.landed, self.regaining) = (sequence, false);
                    State::Held {
                        until,
                        again: began + self.part(RENEWALS),
                        checked: None,
                    }
                } else if self.regaining {
                    return self.stopped(Standing::Lost(record.map(|found| found.holder)));
                } else {
                    State::Look {
                        seen: None,
                        again: now,
                    }
                };
            }
            State::Held { until, again, .. } => match record {
                // If it ends too late, nothing is written any more: `next` sees to that.
                Some(found) if self.is(&found) && !found.free => {
                    self.state = State::Held {
                        until,
                        again,
                        checked: Some(began),
                    };
                }
                found => self.stopped(Standing::Lost(found.map(|found| found.holder))),
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
            // Later than this another may have held it before our claim landed on top of its own.
            State::Claim { read, .. }
                if self.regaining && (!ok || now.since(read) > self.terms.lease) =>
            {
                self.stopped(Standing::Lost(None));
            }
            // It may have landed, or land yet: what the block shows next decides.
            State::Claim { .. } if !ok => self.retry(now),
            State::Claim { read, brief } => {
                // Others read "free" as we did; only a claim that follows its look at once may wait briefly.
                let wait = match self.terms.contest {
                    Contest::Nobody if brief => Span::ZERO,
                    Contest::Brief(wait) if brief && now.since(read) <= wait => wait,
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
                self.landed = self.sequence;
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
        if self.regaining {
            let untouched =
                |found: &Record| self.is(found) && found.sequence == self.landed && !found.free;
            return match record {
                Some(found) if untouched(&found) => {
                    self.state = State::Claim {
                        read: began,
                        brief: false,
                    };
                }
                found => self.stopped(Standing::Lost(found.map(|found| found.holder))),
            };
        }
        let Some(record) = record else {
            self.state = State::Claim {
                read: began,
                brief: true,
            };
            return;
        };
        // Our host's record of an earlier start, or of a copy of this machine or of the daemon's root that still runs. Only
        // a lock tells which: that of the disk, or the one that the daemon keeps as long as it lives.
        let own = record.holder.host == self.me.host;
        let locked = self.terms.contest == Contest::Nobody || self.me.replaces(&record.holder);
        if record.free || own && locked {
            let brief = record.free || record.holder.incarnation != self.me.incarnation;
            self.state = State::Claim { read: began, brief };
            return;
        }
        let same = |seen: &Seen| seen.record == record;
        match seen {
            Some(seen) if same(&seen) => {
                let silent = began.since(seen.since) >= patient(self.terms.lease.max(record.lease));
                let intent = if own { Intent::TakeOver } else { self.intent };
                self.state = match (silent, intent) {
                    (false, _) => State::Look {
                        seen: Some(seen),
                        again: now + self.part(RENEWALS),
                    },
                    (true, Intent::TakeOver) => State::Claim {
                        read: began,
                        brief: false,
                    },
                    (true, Intent::OnlyFree) => State::End(Standing::Refused {
                        by: record.holder,
                        live: false,
                    }),
                };
            }
            // It moved while we looked, by the same hand: alive.
            Some(seen) if seen.record.holder == record.holder => {
                self.state = State::End(Standing::Refused {
                    by: record.holder,
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
        record.holder == self.me
    }

    fn part(&self, of: u64) -> Span {
        Span::from_nanos((self.terms.lease.as_nanos() / of).max(1))
    }

    fn write(&mut self, free: bool) -> [u8; SLOT] {
        self.sequence += 1;
        Record {
            disk: self.disk,
            holder: self.me,
            name: self.name,
            sequence: self.sequence,
            lease: self.terms.lease,
            free,
        }
        .encode()
    }
}

/// A lease and an eighth: two monotonic clocks run apart by far less.
fn patient(lease: Span) -> Span {
    lease + Span::from_nanos(lease.as_nanos() / 8)
}

#[cfg(test)]
mod tests;
