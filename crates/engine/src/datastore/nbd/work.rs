//! The requests of an NBD image: jobs are split into requests, and replies are put together.
//!
//! The image adds jobs. The connection ([`super::connection`]) takes requests from its queue and reports the replies.
//! After a lost connection every unfinished job starts again, in the old order. The server may have lost requests that
//! it already acknowledged, and a job's flush must follow all of its writes on the same connection.
//!
//! # Always true
//! - a job ends once, and only when none of its requests is queued, sent or in a message being sent
//! - a job that succeeded was acknowledged completely on one connection
//! - once writes may be lost with a connection no flush succeeds ([`Unflushed`])
//! - a request's cookie is not reused while the image is open (its number is, after 2^32 requests, with another slot)
//! - at most [`AT_A_TIME`] requests of one job are in flight

use super::coverage::Coverage;
use super::unflushed::{Mark, Unflushed};
use crate::datastore::condition::Condition;
use crate::datastore::{Job, bytes};
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_core::request::{Data, Extent, Fault, Flags, IoId, Op, Outcome};
use tidegate_front::nbd::client::handshake::Negotiated;
use tidegate_front::nbd::client::requests::Sent;
use tidegate_front::nbd::wire::{Abilities, PAYLOAD_MAX};

/// Requests of one job in flight: enough to keep a server with small requests busy.
const AT_A_TIME: u32 = 16;
/// The longest request without payload. The protocol allows 4 GiB, but some servers fail at that.
const LONGEST: u64 = 1 << 30;
/// Zeroes are sent from a buffer of this size if the server does not support write-zeroes.
const ZEROES: u32 = 1 << 20;
const _: () = assert!(ZEROES as usize <= crate::sys::buffers::ZEROES);

/// What the server supports, by the first negotiation; later ones must offer as much.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    pub(super) abilities: Abilities,
    pub(super) minimum: u32,
    pub(super) payload: u32,
    pub(super) extents: bool,
    pub(super) size: u64,
}

impl Offer {
    pub(super) fn of(agreed: &Negotiated) -> Offer {
        Offer {
            abilities: agreed.abilities,
            minimum: agreed.block.minimum,
            payload: agreed.block.payload.min(PAYLOAD_MAX),
            extents: agreed.context.is_some(),
            size: agreed.size,
        }
    }

    /// Whether this is at least as good as `other`.
    pub(super) fn covers(&self, other: &Offer) -> bool {
        let wanted = other.abilities.without(Abilities::READ_ONLY);
        let may_write =
            other.abilities.has(Abilities::READ_ONLY) || !self.abilities.has(Abilities::READ_ONLY);
        // Flags for features that are not used may differ.
        let known = [
            Abilities::FLUSH,
            Abilities::FUA,
            Abilities::TRIM,
            Abilities::WRITE_ZEROES,
            Abilities::CACHE,
            Abilities::FAST_ZERO,
        ];
        let has_features = known
            .into_iter()
            .all(|one| !wanted.has(one) || self.abilities.has(one));
        may_write
            && has_features
            && self.minimum <= other.minimum
            && self.payload >= other.payload
            && (self.extents || !other.extents)
            && self.size >= other.size
    }

    /// The job's flags that the server supports. [`Plan`] emulates the others.
    fn flags(&self, wanted: Flags) -> Flags {
        let known = [
            (Flags::FUA, self.abilities.has(Abilities::FUA)),
            (Flags::MAY_UNMAP, true),
            (Flags::FAST_ONLY, self.abilities.has(Abilities::FAST_ZERO)),
        ];
        known
            .into_iter()
            .filter(|(flag, can)| *can && wanted.has(*flag))
            .fold(Flags::NONE, |all, (flag, _)| all.with(flag))
    }

    /// Whether the server may lose an acknowledged job until the next flush. A discard does not count: it promises
    /// nothing about later reads. A server without flush never promised anything.
    fn may_forget(&self, job: &Job) -> bool {
        let writes = matches!(job.op, Op::Write | Op::WriteZeroes);
        writes && !job.flags.has(Flags::FUA) && self.abilities.has(Abilities::FLUSH)
    }

    /// The longest request of this type, a multiple of the server's blocks.
    fn longest(&self, op: Op, zeroes: bool) -> u64 {
        let most = match op {
            Op::Write if zeroes => u64::from(self.payload.min(ZEROES)),
            Op::Read | Op::Write => u64::from(self.payload),
            _ => LONGEST,
        };
        let minimum = u64::from(self.minimum);
        (most / minimum * minimum).max(minimum)
    }
}

/// How to perform a job, or its outcome if it ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// By requests of this type; followed by a flush if `flush`.
    Send { op: Op, flush: bool },
    /// By writing zeroes from a buffer.
    SendZeroes { flush: bool },
    /// Report all of it as data, for lack of better knowledge.
    AllData,
    /// At once.
    Done(Outcome),
}

impl Plan {
    /// The plan for a job on a server with this offer.
    pub(super) fn of(offer: &Offer, job: &Job) -> Plan {
        let can = |ability| offer.abilities.has(ability);
        let minimum = u64::from(offer.minimum);
        let ranged = job.op != Op::Flush;
        if ranged && !(job.offset.is_multiple_of(minimum) && job.len.is_multiple_of(minimum)) {
            return Plan::Done(Err(Fault::Invalid));
        }
        if ranged && job.len == 0 {
            return Plan::Done(Ok(()));
        }
        if job.op.modifies() && can(Abilities::READ_ONLY) {
            return Plan::Done(Err(Fault::ReadOnly));
        }
        let flush = job.flags.has(Flags::FUA) && !can(Abilities::FUA) && can(Abilities::FLUSH);
        let fast = job.flags.has(Flags::FAST_ONLY);
        match job.op {
            Op::Read => Plan::Send {
                op: Op::Read,
                flush: false,
            },
            Op::Write => Plan::Send {
                op: Op::Write,
                flush,
            },
            Op::Flush if can(Abilities::FLUSH) => Plan::Send {
                op: Op::Flush,
                flush: true,
            },
            Op::Discard if can(Abilities::TRIM) => Plan::Send {
                op: Op::Discard,
                flush,
            },
            Op::Prefetch if can(Abilities::CACHE) => Plan::Send {
                op: Op::Prefetch,
                flush: false,
            },
            Op::Flush | Op::Discard | Op::Prefetch => Plan::Done(Ok(())),
            Op::WriteZeroes if fast && !can(Abilities::FAST_ZERO) => {
                Plan::Done(Err(Fault::Unsupported))
            }
            Op::WriteZeroes if can(Abilities::WRITE_ZEROES) => Plan::Send {
                op: Op::WriteZeroes,
                flush,
            },
            Op::WriteZeroes => Plan::SendZeroes { flush },
            Op::Extents if offer.extents => Plan::Send {
                op: Op::Extents,
                flush: false,
            },
            Op::Extents => Plan::AllData,
        }
    }
}

/// A job in progress.
struct ActiveJob {
    job: Job,
    op: Op,
    /// Its number among all jobs ever.
    number: u64,
    /// Its data, and whether each request starts at the buffer's start.
    data: Data,
    zeroes: bool,
    /// Whether a flush must follow it, and whether that was queued.
    flush: bool,
    flushing: bool,
    /// Whether the server may lose it, once acknowledged, until a flush.
    forgettable: bool,
    /// Bytes for which requests were queued, and requests that have not ended.
    requested: u64,
    open: u32,
    outcome: Outcome,
}

/// One request to the server.
pub(super) struct Part {
    job: u32,
    pub(super) cookie: u64,
    pub(super) sent: Sent,
    /// The request's data; none for most types.
    pub(super) data: Data,
    /// Its progress.
    stage: Stage,
    /// Its data is in a message that the kernel is sending: it must not end.
    pub(super) in_message: bool,
    fault: Option<Fault>,
    coverage: Coverage,
    /// Extents received so far: how many, and up to which byte.
    extents_received: (u32, u64),
    /// The writes that a flush makes durable.
    mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Sent,
    /// Replied to while in a message.
    Answered,
}

/// See the module.
pub(super) struct Work {
    jobs: Vec<Option<ActiveJob>>,
    free_jobs: Vec<u32>,
    parts: Vec<Option<Part>>,
    free_parts: Vec<u32>,
    /// Not sent yet, in order.
    queue: VecDeque<u32>,
    /// The next cookie's upper half.
    sequence: u32,
    /// All jobs ever.
    begun: u64,
    unflushed: Unflushed,
    /// Ended, to be reported.
    pub(super) ended: Vec<(IoId, Outcome)>,
}

/// The server's reply is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidReply;

impl Work {
    pub(super) fn new(condition: Arc<Condition>) -> Work {
        Work {
            jobs: Vec::new(),
            free_jobs: Vec::new(),
            parts: Vec::new(),
            free_parts: Vec::new(),
            queue: VecDeque::new(),
            sequence: 0,
            begun: 0,
            unflushed: Unflushed::new(condition),
            ended: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.len() == self.free_jobs.len()
    }

    /// Adds a job and queues its first requests. `zeroes` is the buffer of zeroes if the requests send from it.
    pub(super) fn begin(
        &mut self,
        offer: &Offer,
        job: Job,
        op: Op,
        flush: bool,
        zeroes: Option<u32>,
    ) {
        let active = ActiveJob {
            job,
            op,
            number: self.begun,
            data: zeroes.map_or(job.data, |buffer| Data { buffer, start: 0 }),
            zeroes: zeroes.is_some(),
            flush,
            flushing: false,
            forgettable: offer.may_forget(&job),
            requested: 0,
            open: 0,
            outcome: Ok(()),
        };
        self.begun += 1;
        let at = self.free_jobs.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            u32::try_from(self.jobs.len() - 1).expect("fewer than 2^32 jobs are in progress")
        });
        self.jobs[at as usize] = Some(active);
        self.restart(offer, at);
    }

    /// Queues a job's first requests; none of them is queued or sent.
    fn restart(&mut self, offer: &Offer, at: u32) {
        let active = self.jobs[at as usize]
            .as_mut()
            .expect("a job that starts is in progress");
        active.requested = if active.op == Op::Flush {
            active.job.len
        } else {
            0
        };
        active.open = 0;
        active.flushing = false;
        self.queue_requests(offer, at);
    }

    /// Queues a job's next requests; ends it when none are left.
    fn queue_requests(&mut self, offer: &Offer, at: u32) {
        loop {
            let active = self.jobs[at as usize]
                .as_mut()
                .expect("the job is in progress");
            let left = active.job.len - active.requested;
            if active.outcome.is_err() || left == 0 {
                break;
            }
            if active.open == AT_A_TIME {
                return;
            }
            let len = left.min(offer.longest(active.op, active.zeroes));
            let requested = u32::try_from(active.requested).unwrap_or(u32::MAX);
            let data = match active.op {
                Op::Read | Op::Write if !active.zeroes => active.data.skip(requested),
                _ => active.data,
            };
            let sent = Sent {
                op: active.op,
                flags: offer.flags(active.job.flags),
                offset: active.job.offset + active.requested,
                len: u32::try_from(len).expect("requests are shorter than 4 GiB"),
            };
            // One request queries extents, for the largest allowed range: the client continues where the reply ends.
            active.requested = if active.op == Op::Extents {
                active.job.len
            } else {
                active.requested + len
            };
            active.open += 1;
            self.queue(at, sent, data);
        }
        let active = self.jobs[at as usize]
            .as_mut()
            .expect("the job is in progress");
        if active.open > 0 {
            return;
        }
        if active.flush && !active.flushing && active.outcome.is_ok() {
            active.flushing = true;
            active.open = 1;
            let sent = Sent {
                op: Op::Flush,
                flags: Flags::NONE,
                offset: 0,
                len: 0,
            };
            return self.queue(at, sent, Data::NONE);
        }
        self.end(at);
    }

    fn queue(&mut self, job: u32, sent: Sent, data: Data) {
        let at = self.free_parts.pop().unwrap_or_else(|| {
            self.parts.push(None);
            u32::try_from(self.parts.len() - 1).expect("fewer than 2^32 requests are in flight")
        });
        let cookie = u64::from(self.sequence) << 32 | u64::from(at);
        self.sequence = self.sequence.wrapping_add(1);
        self.parts[at as usize] = Some(Part {
            job,
            cookie,
            sent,
            data,
            stage: Stage::Queued,
            in_message: false,
            fault: None,
            coverage: Coverage::default(),
            extents_received: (0, 0),
            mark: Mark::default(),
        });
        self.queue.push_back(at);
    }

    fn end(&mut self, at: u32) {
        let active = self.jobs[at as usize].take().expect("a job ends once");
        self.free_jobs.push(at);
        if active.forgettable && active.outcome.is_ok() {
            self.unflushed.wrote();
        }
        self.ended.push((active.job.io, active.outcome));
    }

    /// The next request to send, which counts as sent from now on.
    pub(super) fn next(&mut self) -> Option<(u32, &mut Part)> {
        let at = self.queue.pop_front()?;
        let part = self.parts[at as usize]
            .as_mut()
            .expect("a queued request exists");
        part.stage = Stage::Sent;
        part.mark = self.unflushed.mark();
        Some((at, part))
    }

    /// The request with this cookie, if it waits for a reply.
    pub(super) fn sent(&self, cookie: u64) -> Option<Sent> {
        self.waiting(cookie).map(|part| part.sent)
    }

    fn waiting(&self, cookie: u64) -> Option<&Part> {
        let part = self.parts.get(place(cookie))?.as_ref()?;
        (part.cookie == cookie && part.stage == Stage::Sent).then_some(part)
    }

    fn part(&mut self, cookie: u64) -> &mut Part {
        self.parts[place(cookie)]
            .as_mut()
            .expect("the request is in flight")
    }

    /// `len` bytes of a read at disk offset `offset` arrive; returns where to put them.
    pub(super) fn cover(
        &mut self,
        cookie: u64,
        offset: u64,
        len: u32,
    ) -> Result<Data, InvalidReply> {
        let part = self.part(cookie);
        let from = u32::try_from(offset - part.sent.offset).map_err(|_| InvalidReply)?;
        if !part.coverage.add(from, len) {
            return Err(InvalidReply);
        }
        Ok(part.data.skip(from))
    }

    /// An extent of a reply arrives. Returns the place for it and the extent, cut to the requested range, if there is
    /// room.
    pub(super) fn place_extent(
        &mut self,
        cookie: u64,
        extent: Extent,
        room: usize,
    ) -> Option<(Data, Extent)> {
        let part = self.part(cookie);
        let (count, reach) = part.extents_received;
        let left = u64::from(part.sent.len).saturating_sub(reach);
        let at = count as usize * Extent::SIZE;
        if left == 0 || at + Extent::SIZE > room {
            return None;
        }
        let cut = Extent {
            len: extent.len.min(left),
            kind: extent.kind,
        };
        part.extents_received = (count + 1, reach + cut.len);
        let at = u32::try_from(at).expect("a list of extents is short");
        Some((part.data.skip(at), cut))
    }

    /// The buffer and start of a request's data.
    pub(super) fn data_of(&mut self, cookie: u64) -> Data {
        self.part(cookie).data
    }

    /// The request has failed, even if more of its reply follows.
    pub(super) fn fail(&mut self, cookie: u64, fault: Fault) {
        self.part(cookie).fault.get_or_insert(fault);
    }

    /// The reply to this request is complete.
    pub(super) fn answered(&mut self, offer: &Offer, cookie: u64) -> Result<(), InvalidReply> {
        let part = self.part(cookie);
        if part.fault.is_none() {
            let whole = match part.sent.op {
                Op::Read => part.coverage.is_whole(part.sent.len),
                Op::Extents => part.extents_received.0 > 0,
                _ => true,
            };
            if !whole {
                return Err(InvalidReply);
            }
        }
        if part.in_message {
            part.stage = Stage::Answered;
        } else {
            self.close(offer, cookie);
        }
        Ok(())
    }

    /// The kernel has sent the message with this request's data.
    pub(super) fn message_sent(&mut self, offer: &Offer, at: u32) {
        let Some(part) = self.parts[at as usize].as_mut() else {
            return;
        };
        part.in_message = false;
        if part.stage == Stage::Answered {
            let cookie = part.cookie;
            self.close(offer, cookie);
        }
    }

    fn close(&mut self, offer: &Offer, cookie: u64) {
        let at = place(cookie);
        let part = self.parts[at].take().expect("a request is closed once");
        self.free_parts
            .push(u32::try_from(at).expect("parts are counted in 32 bits"));
        let active = self.jobs[part.job as usize]
            .as_mut()
            .expect("a job outlives its requests");
        active.open -= 1;
        let flush = part.sent.op == Op::Flush;
        match part.fault {
            Some(fault) => {
                active.outcome = active.outcome.and(Err(fault));
                if flush && self.unflushed.lost() {
                    tracing::warn!(
                        "an NBD server could not flush acknowledged writes, which may be lost: from now on flushes \
                         of the disk fail; check the server, detach the disk, attach it again, and have the guest \
                         check its file systems"
                    );
                }
            }
            None if flush => self.unflushed.flushed(part.mark),
            None => {}
        }
        if active.op == Op::Flush && self.unflushed.may_have_lost_writes() {
            active.outcome = active.outcome.and(Err(Fault::Io));
        }
        self.queue_requests(offer, part.job);
    }

    /// The connection is lost. Returns whether writes may be lost for the first time.
    pub(super) fn connection_lost(&mut self) -> bool {
        self.unflushed.lost()
    }

    /// Whether there are acknowledged writes that are not flushed.
    pub(super) fn needs_flush(&self) -> bool {
        self.unflushed.has_unflushed()
    }

    /// Whether writes may be lost that no flush can restore.
    pub(super) fn may_have_lost_writes(&self) -> bool {
        self.unflushed.may_have_lost_writes()
    }

    /// The connection is lost and idle: restarts unfinished jobs in their old order. A flush fails if writes may be
    /// lost. A flush that follows a job's own write may still succeed, because the write is sent again.
    pub(super) fn replay(&mut self, offer: &Offer) {
        self.drop_parts();
        let places = (0_u32..).zip(&self.jobs);
        let mut order: Vec<(u64, u32)> = places
            .filter_map(|(at, active)| Some((active.as_ref()?.number, at)))
            .collect();
        order.sort_unstable();
        for (_, at) in order {
            if let Some(active) = &mut self.jobs[at as usize]
                && active.op == Op::Flush
                && self.unflushed.may_have_lost_writes()
            {
                active.outcome = Err(Fault::Io);
            }
            self.restart(offer, at);
        }
    }

    fn drop_parts(&mut self) {
        self.queue.clear();
        for (at, part) in (0_u32..).zip(&mut self.parts) {
            if part.take().is_some() {
                self.free_parts.push(at);
            }
        }
    }

    /// Fails every job. Only while no connection uses their memory.
    pub(super) fn fail_all(&mut self, fault: Fault) {
        self.drop_parts();
        for at in 0..u32::try_from(self.jobs.len()).expect("jobs are counted in 32 bits") {
            if let Some(active) = &mut self.jobs[at as usize] {
                active.outcome = Err(fault);
                self.end(at);
            }
        }
    }
}

/// A cookie's lower half: the request's slot.
fn place(cookie: u64) -> usize {
    bytes(cookie & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests;
