//! The requests of an NBD image: jobs are split into requests, and replies are put together.
//!
//! The image gives it jobs; the connection ([`super::connection`]) takes requests from its queue and tells what was answered.
//! After a loss every job that has not ended begins anew, in the old order: the server may have lost the requests that
//! it had answered already, and a job's flush must come after all of its writes on the same connection.
//!
//! # Always true
//! - a job ends once, and only when none of its requests is queued, sent or in a message under way
//! - a job that ended well was answered whole on one connection
//! - once writes may be gone with a connection no flush succeeds ([`Unflushed`])
//! - a request's cookie is never used again while the image lives (2^32 requests later its number is, for another)
//! - at most [`AT_A_TIME`] requests of one job are out

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

/// Requests of one job that are out at a time: enough to keep a server with small requests busy.
const AT_A_TIME: u32 = 16;
/// The longest request without payload; the protocol allows 4 GiB, of which not every server makes one operation.
const LONGEST: u64 = 1 << 30;
/// Zeroes are sent from a buffer of this size where the server cannot make them itself.
const ZEROES: u32 = 1 << 20;
const _: () = assert!(ZEROES as usize <= crate::sys::buffers::ZEROES);

/// What the server can do, as the first negotiation said; later ones must offer as much.
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

    /// Whether this is as good as `other` was.
    pub(super) fn covers(&self, other: &Offer) -> bool {
        let wanted = other.abilities.without(Abilities::READ_ONLY);
        let may_write =
            other.abilities.has(Abilities::READ_ONLY) || !self.abilities.has(Abilities::READ_ONLY);
        // Flags that say nothing about what we ask may differ.
        let known = [
            Abilities::FLUSH,
            Abilities::FUA,
            Abilities::TRIM,
            Abilities::WRITE_ZEROES,
            Abilities::CACHE,
            Abilities::FAST_ZERO,
        ];
        let as_able = known
            .into_iter()
            .all(|one| !wanted.has(one) || self.abilities.has(one));
        may_write
            && as_able
            && self.minimum <= other.minimum
            && self.payload >= other.payload
            && (self.extents || !other.extents)
            && self.size >= other.size
    }

    /// Those of a job's flags that the server knows. What it lacks is made up for otherwise ([`Plan`]).
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

    /// Whether the server may forget a job that it has answered until it is asked to flush. A discard does not count: it
    /// promises nothing about what is read afterwards. Of a server that knows no flush nothing was ever promised.
    fn may_forget(&self, job: &Job) -> bool {
        let writes = matches!(job.op, Op::Write | Op::WriteZeroes);
        writes && !job.flags.has(Flags::FUA) && self.abilities.has(Abilities::FLUSH)
    }

    /// The longest request of this kind, a multiple of the server's blocks.
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

/// How a job is carried out, or how it ends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// By requests of this kind; a flush behind them when `flush` says so.
    Ask { op: Op, flush: bool },
    /// By writing zeroes from a buffer.
    SendZeroes { flush: bool },
    /// All of it is data, as far as one can know.
    TellData,
    /// At once.
    Done(Outcome),
}

impl Plan {
    /// For a job, of a server that offers this.
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
            Op::Read => Plan::Ask {
                op: Op::Read,
                flush: false,
            },
            Op::Write => Plan::Ask {
                op: Op::Write,
                flush,
            },
            Op::Flush if can(Abilities::FLUSH) => Plan::Ask {
                op: Op::Flush,
                flush: true,
            },
            Op::Discard if can(Abilities::TRIM) => Plan::Ask {
                op: Op::Discard,
                flush,
            },
            Op::Prefetch if can(Abilities::CACHE) => Plan::Ask {
                op: Op::Prefetch,
                flush: false,
            },
            Op::Flush | Op::Discard | Op::Prefetch => Plan::Done(Ok(())),
            Op::WriteZeroes if fast && !can(Abilities::FAST_ZERO) => {
                Plan::Done(Err(Fault::Unsupported))
            }
            Op::WriteZeroes if can(Abilities::WRITE_ZEROES) => Plan::Ask {
                op: Op::WriteZeroes,
                flush,
            },
            Op::WriteZeroes => Plan::SendZeroes { flush },
            Op::Extents if offer.extents => Plan::Ask {
                op: Op::Extents,
                flush: false,
            },
            Op::Extents => Plan::TellData,
        }
    }
}

/// A job under way.
struct Doing {
    job: Job,
    op: Op,
    /// Which one it is of all that ever came.
    number: u64,
    /// Where its bytes are, and whether each request begins there anew.
    data: Data,
    zeroes: bool,
    /// Whether a flush belongs behind it, and whether that was queued.
    flush: bool,
    flushing: bool,
    /// Whether the server may forget it, once answered, until a flush.
    forgettable: bool,
    /// Bytes for which requests were made, and requests without an end.
    given: u64,
    open: u32,
    outcome: Outcome,
}

/// One request to the server.
pub(super) struct Part {
    job: u32,
    pub(super) cookie: u64,
    pub(super) sent: Sent,
    /// Where its bytes are; none for most kinds.
    pub(super) data: Data,
    /// How far it is.
    stage: Stage,
    /// Its bytes are in a message that the kernel has: it may not end.
    pub(super) aboard: bool,
    fault: Option<Fault>,
    coverage: Coverage,
    /// Extents told so far: how many, and up to which byte.
    told: (u32, u64),
    /// What a flush makes durable.
    mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Sent,
    /// Answered while aboard.
    Answered,
}

/// See the module.
pub(super) struct Work {
    jobs: Vec<Option<Doing>>,
    free_jobs: Vec<u32>,
    parts: Vec<Option<Part>>,
    free_parts: Vec<u32>,
    /// Not sent yet, first to go first.
    queue: VecDeque<u32>,
    /// The next cookie's upper half.
    sequence: u32,
    /// Jobs that ever came.
    begun: u64,
    unflushed: Unflushed,
    /// Ended, to be told.
    pub(super) ended: Vec<(IoId, Outcome)>,
}

/// The server's answer cannot be true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lie;

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

    /// Takes a job; its first requests are queued. `zeroes` is the buffer of zeroes when the requests send from there.
    pub(super) fn begin(
        &mut self,
        offer: &Offer,
        job: Job,
        op: Op,
        flush: bool,
        zeroes: Option<u32>,
    ) {
        let doing = Doing {
            job,
            op,
            number: self.begun,
            data: zeroes.map_or(job.data, |buffer| Data { buffer, start: 0 }),
            zeroes: zeroes.is_some(),
            flush,
            flushing: false,
            forgettable: offer.may_forget(&job),
            given: 0,
            open: 0,
            outcome: Ok(()),
        };
        self.begun += 1;
        let at = self.free_jobs.pop().unwrap_or_else(|| {
            self.jobs.push(None);
            u32::try_from(self.jobs.len() - 1).expect("fewer than 2^32 jobs are under way")
        });
        self.jobs[at as usize] = Some(doing);
        self.begin_anew(offer, at);
    }

    /// Queues a job's first requests; none of it is queued or sent.
    fn begin_anew(&mut self, offer: &Offer, at: u32) {
        let doing = self.jobs[at as usize]
            .as_mut()
            .expect("a job that begins is under way");
        doing.given = if doing.op == Op::Flush {
            doing.job.len
        } else {
            0
        };
        doing.open = 0;
        doing.flushing = false;
        self.feed(offer, at);
    }

    /// Makes a job's next requests; ends it when there is nothing more to ask.
    fn feed(&mut self, offer: &Offer, at: u32) {
        loop {
            let doing = self.jobs[at as usize]
                .as_mut()
                .expect("a job that is fed is under way");
            let left = doing.job.len - doing.given;
            if doing.outcome.is_err() || left == 0 {
                break;
            }
            if doing.open == AT_A_TIME {
                return;
            }
            let len = left.min(offer.longest(doing.op, doing.zeroes));
            let given = u32::try_from(doing.given).unwrap_or(u32::MAX);
            let data = match doing.op {
                Op::Read | Op::Write if !doing.zeroes => doing.data.skip(given),
                _ => doing.data,
            };
            let sent = Sent {
                op: doing.op,
                flags: offer.flags(doing.job.flags),
                offset: doing.job.offset + doing.given,
                len: u32::try_from(len).expect("requests are shorter than 4 GiB"),
            };
            // One request tells extents, of as much as it may: who asked goes on where the answer ends.
            doing.given = if doing.op == Op::Extents {
                doing.job.len
            } else {
                doing.given + len
            };
            doing.open += 1;
            self.queue(at, sent, data);
        }
        let doing = self.jobs[at as usize]
            .as_mut()
            .expect("a job that is fed is under way");
        if doing.open > 0 {
            return;
        }
        if doing.flush && !doing.flushing && doing.outcome.is_ok() {
            doing.flushing = true;
            doing.open = 1;
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
            u32::try_from(self.parts.len() - 1).expect("fewer than 2^32 requests are out")
        });
        let cookie = u64::from(self.sequence) << 32 | u64::from(at);
        self.sequence = self.sequence.wrapping_add(1);
        self.parts[at as usize] = Some(Part {
            job,
            cookie,
            sent,
            data,
            stage: Stage::Queued,
            aboard: false,
            fault: None,
            coverage: Coverage::default(),
            told: (0, 0),
            mark: Mark::default(),
        });
        self.queue.push_back(at);
    }

    fn end(&mut self, at: u32) {
        let doing = self.jobs[at as usize].take().expect("a job ends once");
        self.free_jobs.push(at);
        if doing.forgettable && doing.outcome.is_ok() {
            self.unflushed.wrote();
        }
        self.ended.push((doing.job.io, doing.outcome));
    }

    /// The next request to send, which counts as sent from now on.
    pub(super) fn next(&mut self) -> Option<(u32, &mut Part)> {
        let at = self.queue.pop_front()?;
        let part = self.parts[at as usize]
            .as_mut()
            .expect("what is queued exists");
        part.stage = Stage::Sent;
        part.mark = self.unflushed.mark();
        Some((at, part))
    }

    /// What a cookie asked, if it waits for an answer.
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
            .expect("a part that is spoken of waits")
    }

    /// `len` bytes of a read at `offset` of the disk come; where they belong.
    pub(super) fn cover(&mut self, cookie: u64, offset: u64, len: u32) -> Result<Data, Lie> {
        let part = self.part(cookie);
        let from = u32::try_from(offset - part.sent.offset).map_err(|_| Lie)?;
        if !part.coverage.add(from, len) {
            return Err(Lie);
        }
        Ok(part.data.skip(from))
    }

    /// An extent of the answer to a request for them: the place for it, cut to what was asked, if there is one.
    pub(super) fn tell(
        &mut self,
        cookie: u64,
        extent: Extent,
        room: usize,
    ) -> Option<(Data, Extent)> {
        let part = self.part(cookie);
        let (count, reach) = part.told;
        let left = u64::from(part.sent.len).saturating_sub(reach);
        let at = count as usize * Extent::SIZE;
        if left == 0 || at + Extent::SIZE > room {
            return None;
        }
        let cut = Extent {
            len: extent.len.min(left),
            kind: extent.kind,
        };
        part.told = (count + 1, reach + cut.len);
        let at = u32::try_from(at).expect("a list of extents is short");
        Some((part.data.skip(at), cut))
    }

    /// The buffer and start of a request's bytes.
    pub(super) fn data_of(&mut self, cookie: u64) -> Data {
        self.part(cookie).data
    }

    /// The request has failed, whatever else comes.
    pub(super) fn fail(&mut self, cookie: u64, fault: Fault) {
        self.part(cookie).fault.get_or_insert(fault);
    }

    /// Nothing more will be said to this request.
    pub(super) fn answered(&mut self, offer: &Offer, cookie: u64) -> Result<(), Lie> {
        let part = self.part(cookie);
        if part.fault.is_none() {
            let whole = match part.sent.op {
                Op::Read => part.coverage.is_whole(part.sent.len),
                Op::Extents => part.told.0 > 0,
                _ => true,
            };
            if !whole {
                return Err(Lie);
            }
        }
        if part.aboard {
            part.stage = Stage::Answered;
        } else {
            self.close(offer, cookie);
        }
        Ok(())
    }

    /// The message with this request's bytes is out of the kernel's hands.
    pub(super) fn landed(&mut self, offer: &Offer, at: u32) {
        let Some(part) = self.parts[at as usize].as_mut() else {
            return;
        };
        part.aboard = false;
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
        let doing = self.jobs[part.job as usize]
            .as_mut()
            .expect("a job outlives its requests");
        doing.open -= 1;
        let flush = part.sent.op == Op::Flush;
        match part.fault {
            Some(fault) => {
                doing.outcome = doing.outcome.and(Err(fault));
                if flush && self.unflushed.lost() {
                    tracing::warn!(
                        "an NBD server could not make durable what it had answered, which may be lost: from now on flushes \
                         of the disk fail; look after the server, detach the disk, attach it again, and have the guest \
                         check its file systems"
                    );
                }
            }
            None if flush => self.unflushed.flushed(part.mark),
            None => {}
        }
        if doing.op == Op::Flush && self.unflushed.is_gone() {
            doing.outcome = doing.outcome.and(Err(Fault::Io));
        }
        self.feed(offer, part.job);
    }

    /// The connection is lost. Returns whether this is the first time that the server may have lost writes with it.
    pub(super) fn line_lost(&mut self) -> bool {
        self.unflushed.lost()
    }

    /// Whether the server has answered writes that it need not keep until it is asked to flush.
    pub(super) fn owes_flush(&self) -> bool {
        self.unflushed.is_owed()
    }

    /// Whether the server may have lost writes that no flush can bring back.
    pub(super) fn is_gone(&self) -> bool {
        self.unflushed.is_gone()
    }

    /// The connection is lost and quiet: what has not ended begins anew, in its old order. A flush that cannot keep its
    /// promise any more fails; one behind a write of its own can, since that goes again.
    pub(super) fn again(&mut self, offer: &Offer) {
        self.drop_parts();
        let places = (0_u32..).zip(&self.jobs);
        let mut order: Vec<(u64, u32)> = places
            .filter_map(|(at, doing)| Some((doing.as_ref()?.number, at)))
            .collect();
        order.sort_unstable();
        for (_, at) in order {
            if let Some(doing) = &mut self.jobs[at as usize]
                && doing.op == Op::Flush
                && self.unflushed.is_gone()
            {
                doing.outcome = Err(Fault::Io);
            }
            self.begin_anew(offer, at);
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

    /// Ends every job so. Only while no connection uses their bytes.
    pub(super) fn fail_all(&mut self, fault: Fault) {
        self.drop_parts();
        for at in 0..u32::try_from(self.jobs.len()).expect("jobs are counted in 32 bits") {
            if let Some(doing) = &mut self.jobs[at as usize] {
                doing.outcome = Err(fault);
                self.end(at);
            }
        }
    }
}

/// A cookie's lower half.
fn place(cookie: u64) -> usize {
    bytes(cookie & u64::from(u32::MAX))
}

#[cfg(test)]
mod tests;
