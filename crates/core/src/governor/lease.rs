//! The lease of a disk: which host may write, decided by reads and writes of one block on the datastore.
//!
//! The engine stores one block for each disk (`.tidegate/leases/`) and does what [`Lease::next`] returns: read the
//! block, write it, or wait. Before every write to the disk it calls [`Lease::may_write`]. The protocol needs no wall
//! clock, no compare-and-swap, and no messages between hosts.
//!
//! # Always true
//! - Two hosts can never write at the same time. This holds for any I/O duration, for failed I/Os that land later, and
//!   for paused daemons, if claims wait in full. Claims that wait less ([`Contest`]) need the conditions stated there.
//! - A holder's lease counts from the START of the read that last found its own record. It counts only once the next
//!   write has succeeded, all before the lease expired. A taker's wait counts from the END of its own I/O.
//! - A claim is confirmed only if exactly this claim, by its sequence number, is found after the wait.
//! - A record of the same host counts as another host's until a kernel lock proves that its daemon has ended. A copied
//!   machine has the same identity, but not the lock.
//! - An expired lease is regained ([`Lease::regain`]) only if no other host can have held it in between.
//!
//! Why two hosts cannot hold it: between a claim and the read that confirms it lies more than a lease. The block shows
//! the claim during that time, because each write lands once. A holder that reads in this time sees the claim and
//! stops. A holder that does not read has not renewed for a lease, and has stopped.
//!
//! # What remains
//! Two windows that no block can close; the datastore must close both:
//! - from the clock reading passed to `may_write` to the submission of the write. A daemon that is paused exactly
//!   there, for longer than the rest of its lease, writes late. The engine reads the clock last before it submits, so
//!   only a few instructions are in the window;
//! - from submission to landing. `may_write` refuses from [`Terms::landing`] before the end of the lease, so a write
//!   may take that long. A slower one (a network that delivers late) lands late.
//!
//! If writes can land later than that, take-over is safe only if the datastore itself fences the old host.
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
//!   Lost, because it expired -- regain: our own last record is still there --> Claim; anything else --> Lost
//! ```
//!
//! # Source
//! The delta lease of sanlock, after Chockler and Malkhi, "Light-weight leases for storage-centric coordination"
//! (2004). The argument above for writes that land late is our own.

mod record;

pub use super::name::Name;
use super::slot::{SLOT, Unreadable};
use crate::units::{Span, Time};
pub use record::{Holder, Record};

/// Renewals per lease: four consecutive failures are survived. Origin: chosen; no measurement.
const RENEWALS: u64 = 5;
/// Attempts per lease after a failure. Origin: chosen; no measurement.
const RETRIES: u64 = 20;

/// The times of the protocol, equal on all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a holder may continue without renewing.
    pub lease: Span,
    /// The maximum duration of a write to the disk. No write starts within this time before the lease ends.
    pub landing: Span,
    /// How long a claim waits if the block is free, or was this host's own.
    pub contest: Contest,
}

/// The other hosts that may claim a free block at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contest {
    /// Any host, and writes may land late: a claim waits for a lease.
    Late,
    /// Any host, but a lease write never lands after it was reported as failed or its writer's lease has ended. A claim
    /// waits for this long.
    Brief(Span),
    /// None: a claimant holds a lock that the datastore enforces. A claim does not wait.
    Nobody,
}

/// The conditions under which an attempt may claim the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Only if the block is free, or belongs to an earlier start of this host that has ended or was silent for a lease.
    OnlyFree,
    /// Also if its holder has been silent for a lease.
    TakeOver,
}

/// The next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "called a few times a second, and never stored"
)]
pub enum Act {
    /// Read the block, bypassing every cache; then call [`Lease::was_read`].
    Read,
    /// Write the block durably; then call [`Lease::was_written`].
    Write([u8; SLOT]),
    /// Wait until this time.
    At(Time),
    /// Do nothing.
    Rest,
}

/// The state of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The lease is not requested.
    Rest,
    /// The lease is being read or claimed; the current holder, as far as known.
    Trying(Option<Holder>),
    /// This host holds the lease until this time, or longer if renewed.
    Held(Time),
    /// Another host holds the lease.
    Refused {
        /// The holder.
        by: Holder,
        /// Whether it renewed while we read; otherwise it fell silent.
        live: bool,
    },
    /// This host held the lease. Another host has it, or it expired.
    Lost(Option<Holder>),
    /// The block is not a lease of this disk; an administrator must check it.
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

/// Another host's record, and the end of the read that first showed its sequence number.
#[derive(Clone, Copy, Debug)]
struct Seen {
    record: Record,
    since: Time,
}

/// One host's state of one disk's lease.
#[derive(Clone, Debug)]
pub struct Lease {
    disk: [u8; 16],
    me: Holder,
    name: Name,
    terms: Terms,
    intent: Intent,
    state: State,
    sequence: u64,
    /// Our last record that certainly landed before its lease expired.
    landed: u64,
    /// Whether it expired and is being regained.
    regaining: bool,
    /// The start of the I/O in progress.
    began: Option<Time>,
}

impl Lease {
    /// A lease that is not requested yet.
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

    /// Requests the lease. Does nothing while it is held or being claimed.
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

    /// Regains the lease after it expired, for callers that relied on it all the time: only if no other host can have
    /// held it since. False: that is unknown, and the lease stays lost.
    ///
    /// A write of unknown result could land on another host's claim and hide that the lease was lost.
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

    /// Releases the lease: from now on no write to the disk may be submitted. If it is held, a last write frees the
    /// block.
    pub fn release(&mut self) {
        self.state = match self.state {
            State::Held { until, .. } => State::Release { until },
            _ => State::Rest,
        };
    }

    /// Whether a write to the disk may be submitted now. `now`: a fresh reading of the clock.
    #[inline]
    pub fn may_write(&self, now: Time) -> bool {
        self.write_before().is_some_and(|end| now < end)
    }

    /// The time until which writes to the disk may be submitted.
    pub fn write_before(&self) -> Option<Time> {
        match self.state {
            State::Held { until, .. } => {
                let landing = self.terms.landing.as_nanos();
                Some(Time::from_nanos(until.as_nanos().saturating_sub(landing)))
            }
            _ => None,
        }
    }

    /// The current state.
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

    /// The next action. One I/O at a time: none while one is in progress.
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
                // Too late for any write, also of our own block: another host may have the lease.
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

    /// Takes the result of the read; `None` if it failed.
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
            // A torn block: the next read shows the whole one. A holder continues for the rest of its lease.
            Err(Unreadable::Torn) => return self.retry(now),
            Err(fault) => return self.stopped(Standing::Unreadable(fault)),
        };
        match self.state {
            State::Look { seen, .. } => self.handle_read(began, now, seen, record),
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
                // If it completes too late, `next` writes nothing more.
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

    /// Takes the result of the write.
    pub fn was_written(&mut self, now: Time, ok: bool) {
        if self.began.take().is_none() {
            return;
        }
        match self.state {
            // Later than this, another host may have held it before our claim overwrote its own.
            State::Claim { read, .. }
                if self.regaining && (!ok || now.since(read) > self.terms.lease) =>
            {
                self.stopped(Standing::Lost(None));
            }
            // It may have landed, or land later: the next read of the block decides.
            State::Claim { .. } if !ok => self.retry(now),
            State::Claim { read, brief } => {
                // Other hosts may have read "free" as well; only a claim directly after its read may wait briefly.
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
            // If it fails, it is not repeated: the other hosts wait for a lease, which is always safe.
            State::Release { .. } => self.state = State::Rest,
            // Released while the write was in progress.
            State::Rest | State::Look { .. } | State::Settle { .. } | State::End(_) => {}
        }
    }

    /// Handles the result of a read that may lead to a claim.
    fn handle_read(&mut self, began: Time, now: Time, seen: Option<Seen>, record: Option<Record>) {
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
        // A record of this host by an earlier start, or by a copy of this machine or of the daemon's root that still
        // runs. Only a lock distinguishes them: that of the disk, or the one that the daemon holds while it runs.
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
            // The same holder renewed it while we read: it is alive.
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

    /// An I/O failed: retry soon, with what was known.
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

/// A lease and an eighth, more than two monotonic clocks can diverge.
fn patient(lease: Span) -> Span {
    lease + Span::from_nanos(lease.as_nanos() / 8)
}

#[cfg(test)]
mod tests;
