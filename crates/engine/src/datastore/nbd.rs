//! The `nbd` datastore: images on another NBD server, with pipelining and replay after a lost connection.
//!
//! The image is on its disk's I/O thread, with one connection (`connection.rs`) on the thread's ring. What it owes is
//! `work.rs`; finding the server again is a job (`connect.rs`). Writes that the server had answered and not made
//! durable when the connection ended may be lost, for nobody can tell a server that lived on from one that died
//! (`unflushed.rs`). A server that lives on while only the connection breaks must have ended or dropped what came over
//! the old one before it takes a new one; else an old write of its may undo a newer one. Nothing in the protocol lets a
//! client make sure.
//!
//! # Always true
//! - a flush that succeeds, and a write that was to be durable at once, have made durable what they promise, whatever
//!   the server lost meanwhile: where writes may be lost every flush fails, for as long as the image is open
//! - a request waits at most the patience of [`Options`] for a server that is away or silent; from then on requests
//!   fail at once, until the server is back
//! - a server that breaks the protocol is left, counted, and tried again no more often than the pauses say
//! - jobs end only while the kernel holds none of their bytes
//! - who closes it has had what was written made durable, or the log says that it may be lost
//!
//! # Picture
//! ```text
//!              answers                    lost, lied, silent
//!   ┌─> Up ──────────────> Up ────────────────────────────> Down ── pause 100 ms .. 5 s ──> connecting ─┐
//!   └───────────────────────────────────────────────────────────────────────── what has no answer again ┘
//! ```
//!
//! # Source
//! The NBD protocol document; `tidegate_front::nbd::client`.

pub(crate) mod connect;
mod connection;
mod coverage;
mod unflushed;
mod work;

use super::condition::Condition;
use super::{Image, ImageCx, ImageInfo, Job, OpenedImage, Progress};
use crate::blocking::Done;
use crate::error::{Error, Kind, Result};
use crate::lease::fence::Fence;
use crate::sys::ring::Completion;
use connect::{Connect, Connected, Target, uri_of};
use connection::{Connection, Loss};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate_core::request::{Data, Extent, ExtentKind, Fault, Flags, IoId, Op};
use tidegate_core::units::{Span, Time};
use tidegate_front::nbd::wire::Abilities;
use work::{Offer, Plan, Work};

/// The first pause before a server is tried again, and the longest: doubled each time that nothing came of it.
const FIRST_PAUSE: Span = Span::from_millis(100);
const LONGEST_PAUSE: Span = Span::from_secs(5);
/// How long a goodbye may take.
const GOODBYE: Span = Span::from_secs(1);

/// Images get numbers, so that a late answer to one is not taken for another's.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// How to use a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long requests wait for a server that is away or silent before they fail.
    pub patience: Duration,
    /// How long connecting and negotiating may take, each time.
    pub connect: Duration,
    /// The block size that the disk will show; a server that takes only larger requests is refused.
    pub block_size: u32,
    /// What is counted; keep a clone to read it.
    pub counts: Arc<Counts>,
}

impl Default for Options {
    /// 30 s, which guests survive with their usual timeouts; 5 s; 512 bytes.
    fn default() -> Options {
        Options {
            patience: Duration::from_secs(30),
            connect: Duration::from_secs(5),
            block_size: 512,
            counts: Arc::default(),
        }
    }
}

/// What happened to the connection of an image.
#[derive(Debug, Default)]
pub struct Counts {
    /// Connections that ended though they were wanted.
    pub lost: AtomicU64,
    /// Those of them that ended because the server broke the protocol.
    pub violations: AtomicU64,
    /// Those of them that ended because the server was silent for too long.
    pub silent: AtomicU64,
    /// Attempts to come back that came to nothing.
    pub refused: AtomicU64,
    /// Attempts that succeeded.
    pub returned: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Connects to the export that `uri` names (`nbd://host/export`, `nbd+unix:///export?socket=/run/nbd.sock`, or the
/// path of a Unix socket), and negotiates. Blocks for as long as `options` say.
///
/// # Errors
/// When the server cannot be reached or does not answer in time, has no such export, or takes only requests larger
/// than the disk's blocks.
pub fn open(uri: &str, options: &Options) -> Result<OpenedImage> {
    let uri = uri_of(uri)?;
    let target = Arc::new(Target {
        uri,
        patience: options.connect,
    });
    let connected = target.connect_in_time()?;
    let offer = Offer::of(&connected.agreed);
    if offer.minimum > options.block_size {
        let text = format!(
            "the NBD server {} takes only requests of {} bytes and multiples: \
             give the disk blocks of that size, not of {}",
            target.uri, offer.minimum, options.block_size
        );
        return Err(Error::new(Kind::Invalid, text));
    }
    let can = |ability| offer.abilities.has(ability);
    let remark = if can(Abilities::READ_ONLY) {
        Some(format!("{} is exported read-only: writes fail", target.uri))
    } else if !can(Abilities::FLUSH) {
        Some(format!(
            "{} knows no flush: what is durable is up to it",
            target.uri
        ))
    } else {
        None
    };
    let info = ImageInfo {
        size: offer.size,
        block_size: offer.minimum,
        buffered: false,
        remark,
    };
    let condition = Arc::<Condition>::default();
    let image = Upstream::new(target, connected, options, &condition);
    Ok(OpenedImage::new(Box::new(image), info).noting(condition))
}

fn span(duration: Duration) -> Span {
    Span::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// How far an image is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// The last flush is under way; how it ended is looked for where it was begun.
    Flushing,
    /// Up to then it says goodbye.
    Disconnecting(Time),
}

/// The name of the last flush, for which no guest waits.
const NOBODY: IoId = IoId::from_bits(u64::MAX);

struct Upstream {
    target: Arc<Target>,
    serial: u64,
    /// What the first connection offered.
    offer: Offer,
    patience: Span,
    counts: Arc<Counts>,
    /// The connection with which it was opened, until its thread has it.
    first: Option<Connected>,
    connection: Option<Connection>,
    connecting: bool,
    retry_at: Option<Time>,
    pause: Span,
    /// Since when no connection has answered anything, though one should.
    lost_since: Option<Time>,
    /// Since when the server owes an answer and nothing has come of it: its silence.
    silent_since: Time,
    /// Requests fail at once.
    failing: bool,
    stage: Stage,
    work: Work,
    fence: Option<Arc<Fence>>,
}

impl Image for Upstream {
    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        self.first_connection(cx);
        let (op, flush, zeroes) = match Plan::of(&self.offer, &job) {
            Plan::Done(outcome) => return Progress::Done(outcome),
            Plan::TellData => {
                let all = Extent {
                    len: job.len,
                    kind: ExtentKind::Data,
                };
                cx.buffers.put(job.data, &all.encode());
                return Progress::Done(Ok(()));
            }
            Plan::Ask { op, flush } => (op, flush, None),
            Plan::SendZeroes { flush } => match cx.buffers.zeroes() {
                Ok(buffer) => (Op::Write, flush, Some(buffer)),
                Err(_) => return Progress::Done(Err(Fault::Io)),
            },
        };
        let in_vain = job.op == Op::Flush && self.work.is_gone();
        if self.failing || self.is_lost() || in_vain {
            return Progress::Done(Err(Fault::Io));
        }
        self.begin(cx, job, op, flush, zeroes);
        Progress::Pending
    }

    fn completed(&mut self, cx: &mut ImageCx<'_>, completion: Completion) {
        let connection = self
            .connection
            .as_mut()
            .expect("an operation belongs to the connection");
        let slot = completion.tag.slot;
        if connection.completed(cx, slot, completion.result, &self.offer, &mut self.work) {
            self.silent_since = cx.now;
        }
        if self.is_lost() {
            // Requests that were cut from one job wait to be sent: they must not be.
            self.give_up(cx);
        }
        self.go(cx);
    }

    fn blocking_done(&mut self, cx: &mut ImageCx<'_>, task: Done) {
        let Ok(connect) = task.downcast::<Connect>() else {
            return;
        };
        if connect.serial != self.serial || self.stage != Stage::Open || self.is_lost() {
            return;
        }
        self.connecting = false;
        let result = connect.result.expect("a task that comes back was run");
        match result.and_then(|connected| self.accept(cx, connected)) {
            Ok(()) => {
                count(&self.counts.returned);
                tracing::info!(server = %self.target.uri, "the NBD server is back");
                if self.work.is_empty() {
                    self.lost_since = None;
                }
                self.failing = false;
                self.silent_since = cx.now;
                self.go(cx);
            }
            Err(error) => {
                count(&self.counts.refused);
                tracing::debug!(%error, "an NBD server is still away");
                self.retry(cx.now);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let retry = self
            .retry_at
            .filter(|_| self.connection.is_none() && !self.connecting);
        let patience = self.patience_ends();
        let goodbye = match self.stage {
            Stage::Disconnecting(until) => Some(until),
            Stage::Open | Stage::Flushing => None,
        };
        [retry, patience, goodbye].into_iter().flatten().min()
    }

    fn tick(&mut self, cx: &mut ImageCx<'_>) {
        if let Stage::Disconnecting(until) = self.stage
            && until <= cx.now
        {
            // The loss ends what is under way, and with it the closing.
            self.stage = Stage::Disconnecting(Time::NEVER);
            if let Some(connection) = &mut self.connection {
                connection.lose(Loss::Dismissed);
            }
        }
        if self.patience_ends().is_some_and(|at| at <= cx.now) {
            self.give_up(cx);
        }
        let due = self.retry_at.is_some_and(|at| at <= cx.now);
        if due && self.connection.is_none() && !self.connecting {
            self.retry_at = None;
            self.connecting = true;
            let connect = Connect {
                serial: self.serial,
                target: Arc::clone(&self.target),
                result: None,
            };
            cx.blocking.send_alone(cx.disk, Box::new(connect));
        }
    }

    fn fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    fn close(&mut self, cx: &mut ImageCx<'_>) -> bool {
        self.first = None;
        self.retry_at = None;
        if self.stage == Stage::Open && self.may_flush() {
            self.flush_last(cx);
        }
        if self.stage == Stage::Flushing && !self.has_flushed() {
            return false;
        }
        if !matches!(self.stage, Stage::Disconnecting(_)) {
            self.stage = Stage::Disconnecting(cx.now + GOODBYE);
            if let Some(connection) = &mut self.connection {
                connection.part(cx);
            }
        }
        self.drop_quiet_connection(cx);
        if self.connection.is_some() {
            return false;
        }
        true
    }
}

impl Upstream {
    fn new(
        target: Arc<Target>,
        connected: Connected,
        options: &Options,
        condition: &Arc<Condition>,
    ) -> Upstream {
        Upstream {
            target,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            offer: Offer::of(&connected.agreed),
            patience: span(options.patience),
            counts: Arc::clone(&options.counts),
            first: Some(connected),
            connection: None,
            connecting: false,
            retry_at: None,
            pause: FIRST_PAUSE,
            lost_since: None,
            silent_since: Time::ZERO,
            failing: false,
            stage: Stage::Open,
            work: Work::new(Arc::clone(condition)),
            fence: None,
        }
    }

    /// Whether the disk's lease is lost: then nothing is sent any more, for what is sent again after a loss of the
    /// connection would be sent late.
    fn is_lost(&self) -> bool {
        let lost = |fence: &Arc<Fence>| fence.lost().is_some();
        self.fence.as_ref().is_some_and(lost)
    }

    /// Takes the connection into use with which the image was opened.
    fn first_connection(&mut self, cx: &mut ImageCx<'_>) {
        if let Some(connected) = self.first.take()
            && let Err(error) = self.accept(cx, connected)
        {
            tracing::warn!(%error, "an NBD connection could not be used");
            self.retry(cx.now);
        }
    }

    /// Takes a new connection into use, if the server is still as able as it was.
    fn accept(&mut self, cx: &mut ImageCx<'_>, connected: Connected) -> Result<()> {
        if !Offer::of(&connected.agreed).covers(&self.offer) {
            let text = format!(
                "the NBD server {} came back smaller or less able than it was: restore it",
                self.target.uri
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        let connection = Connection::new(connected, cx.buffers)
            .map_err(|e| Error::io("no memory for an NBD connection", e))?;
        self.connection = Some(connection);
        Ok(())
    }

    /// Begins a job that the server has to do.
    fn begin(&mut self, cx: &mut ImageCx<'_>, job: Job, op: Op, flush: bool, zeroes: Option<u32>) {
        if self.work.is_empty() {
            self.silent_since = cx.now;
        }
        self.work.begin(&self.offer, job, op, flush, zeroes);
        self.go(cx);
    }

    /// Whether a last flush would make anything durable, and can be sent. A connection that is lost has taken what was not
    /// durable with it, as far as anybody knows, and the log says so.
    fn may_flush(&self) -> bool {
        let is_up = self
            .connection
            .as_ref()
            .is_some_and(|connection| connection.loss().is_none());
        is_up && self.work.owes_flush() && !self.is_lost()
    }

    /// What the guest never flushed was never promised; an orderly goodbye keeps it all the same. And who attaches the
    /// disk next, and counts from nothing, can tell a guest truly that a flush has made all durable.
    fn flush_last(&mut self, cx: &mut ImageCx<'_>) {
        let flush = Job {
            io: NOBODY,
            op: Op::Flush,
            flags: Flags::NONE,
            offset: 0,
            len: 0,
            data: Data::NONE,
        };
        self.stage = Stage::Flushing;
        self.begin(cx, flush, Op::Flush, true, None);
    }

    /// Whether the last flush has ended, as the server's answer or the end of the patience with it ends any.
    fn has_flushed(&mut self) -> bool {
        let Some((_, outcome)) = self.work.ended.pop() else {
            return false;
        };
        if outcome.is_err() {
            tracing::warn!(
                server = %self.target.uri,
                "the last flush of a disk that goes failed: what was written to it and not flushed before may be lost; \
                 look after the NBD server, and have the guest check its file systems"
            );
        }
        true
    }

    /// When the patience of whoever waits is at its end.
    fn patience_ends(&self) -> Option<Time> {
        if self.failing || self.work.is_empty() {
            return None;
        }
        let since = self.lost_since.unwrap_or(self.silent_since);
        let since = since.min(self.silent_since);
        Some(since + self.patience)
    }

    /// Does what can be done, and tells what has ended. Call after anything has changed.
    fn go(&mut self, cx: &mut ImageCx<'_>) {
        if let Some(connection) = &mut self.connection
            && connection.go(cx, &self.offer, &mut self.work) > 0
        {
            // It answers: what was, is over.
            self.lost_since = None;
            self.pause = FIRST_PAUSE;
        }
        self.drop_quiet_connection(cx);
        self.tell(cx);
    }

    /// Tells of the jobs that have ended.
    fn tell(&mut self, cx: &mut ImageCx<'_>) {
        if self.stage == Stage::Flushing {
            return;
        }
        for (io, outcome) in self.work.ended.drain(..) {
            cx.finish(io, outcome);
        }
    }

    /// Lets a connection go that is lost, once the kernel holds nothing of it.
    fn drop_quiet_connection(&mut self, cx: &mut ImageCx<'_>) {
        let Some(connection) = self
            .connection
            .take_if(|connection| connection.loss().is_some() && connection.is_quiet())
        else {
            return;
        };
        let loss = connection.loss();
        connection.free(cx.buffers);
        if let Stage::Disconnecting(_) = self.stage {
            return;
        }
        count(&self.counts.lost);
        match loss {
            Some(Loss::Lied) => count(&self.counts.violations),
            Some(Loss::Dismissed) => count(&self.counts.silent),
            Some(Loss::Gone | Loss::Leaving) | None => {}
        }
        tracing::warn!(server = %self.target.uri, why = ?loss, "the connection to an NBD server is lost; trying again");
        if self.work.line_lost() {
            tracing::warn!(
                server = %self.target.uri,
                "writes that the NBD server had answered and was not yet asked to make durable may be lost with the \
                 connection: from now on flushes of this disk fail, so that its guest learns of it; detach the disk, \
                 attach it again, and have the guest check its file systems"
            );
        }
        if self.failing {
            self.work.fail_all(Fault::Io);
        } else {
            self.work.again(&self.offer);
        }
        self.lost_since.get_or_insert(cx.now);
        self.retry(cx.now);
    }

    fn retry(&mut self, now: Time) {
        self.retry_at = Some(now + self.pause);
        self.pause = (self.pause + self.pause).min(LONGEST_PAUSE);
    }

    /// Nobody is to wait any longer.
    fn give_up(&mut self, cx: &mut ImageCx<'_>) {
        self.failing = true;
        if let Some(connection) = &mut self.connection {
            connection.lose(Loss::Dismissed);
        } else {
            self.work.fail_all(Fault::Io);
        }
        self.drop_quiet_connection(cx);
        self.tell(cx);
    }
}

#[cfg(test)]
mod tests;
