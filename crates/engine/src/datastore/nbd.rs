//! The `nbd` datastore: images on another NBD server, with pipelining and replay after a lost connection.
//!
//! The image runs on its disk's I/O thread, with one connection (`connection.rs`) on the thread's ring. `work.rs`
//! stores the open requests; a blocking task reconnects (`connect.rs`). When a connection ends, acknowledged writes that
//! were not yet durable may be lost: a client cannot know whether the server process survived (`unflushed.rs`).
//!
//! If only the connection breaks, the server must finish or drop the old connection's requests before it accepts a new
//! one. Otherwise an old write may overwrite a newer one. The protocol has no means to ensure that.
//!
//! # Always true
//! - if a flush succeeds, all writes that completed before it are durable. If a durable write succeeds, its data is
//!   durable. Once writes may be lost, every flush fails until the image is closed
//! - a request waits for an absent or silent server at most as long as [`Options`] allow; from then on requests fail at
//!   once, until the server is back
//! - a server that violates the protocol is disconnected and counted; reconnects observe the pauses
//! - a job ends only when the kernel no longer uses its memory
//! - a close first makes all writes durable, or the log reports that they may be lost
//!
//! # Picture
//! ```text
//!              replies               lost, invalid reply, silent
//!   ┌─> Up ──────────────> Up ────────────────────────────> Down ── pause 100 ms .. 5 s ──> connecting ─┐
//!   └───────────────────────────────────────────────────────────────── unanswered requests are replayed ┘
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

/// The first pause before a reconnect, and the longest. The pause doubles after each failed attempt.
const FIRST_PAUSE: Span = Span::from_millis(100);
const LONGEST_PAUSE: Span = Span::from_secs(5);
/// How long a disconnect may take.
const DISCONNECT_TIMEOUT: Span = Span::from_secs(1);

/// The next image's number. It identifies the image of a reconnect that completes late.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Timeouts and block size for a connection to an NBD server.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long requests wait for an absent or silent server before they fail.
    pub patience: Duration,
    /// How long each connect and negotiation may take.
    pub connect: Duration,
    /// The block size that the disk will show; a server with a larger minimum block size is rejected.
    pub block_size: u32,
    /// Event counters; clone to read them.
    pub counts: Arc<Counts>,
}

impl Default for Options {
    /// 30 s, which guests tolerate with their usual timeouts; 5 s; 512 bytes.
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
    /// Connections that ended unintentionally.
    pub lost: AtomicU64,
    /// Of these, how many ended because the server violated the protocol.
    pub violations: AtomicU64,
    /// Of these, how many ended because the server was silent for too long.
    pub silent: AtomicU64,
    /// Failed reconnects.
    pub refused: AtomicU64,
    /// Successful reconnects.
    pub returned: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Connects to the export that `uri` names (`nbd://host/export`, `nbd+unix:///export?socket=/run/nbd.sock`, or the
/// path of a Unix socket), and negotiates. Blocks for as long as `options` say.
///
/// # Errors
/// When the server cannot be reached or does not answer in time, when it has no such export, or when its minimum block
/// size is larger than the disk's block size.
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
            "{} does not support flush: it decides itself what is durable",
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
    Ok(OpenedImage::new(Box::new(image), info).with_condition(condition))
}

fn span(duration: Duration) -> Span {
    Span::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// Progress of closing an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// The last flush is in flight; `has_flushed` checks its outcome.
    Flushing,
    /// It disconnects, at most until this time.
    Disconnecting(Time),
}

/// The id of the last flush, which belongs to no I/O.
const NO_IO: IoId = IoId::from_bits(u64::MAX);

struct Upstream {
    target: Arc<Target>,
    serial: u64,
    /// What the first connection offered.
    offer: Offer,
    patience: Span,
    counts: Arc<Counts>,
    /// The connection that opened the image, until its I/O thread uses it.
    first: Option<Connected>,
    connection: Option<Connection>,
    connecting: bool,
    retry_at: Option<Time>,
    pause: Span,
    /// Since when requests have waited without a reply on any connection.
    lost_since: Option<Time>,
    /// Start of the server's silence: since when a reply is due and nothing was received.
    silent_since: Time,
    /// Whether requests fail at once.
    failing: bool,
    stage: Stage,
    work: Work,
    fence: Option<Arc<Fence>>,
}

impl Image for Upstream {
    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        self.use_first_connection(cx);
        let (op, flush, zeroes) = match Plan::of(&self.offer, &job) {
            Plan::Done(outcome) => return Progress::Done(outcome),
            Plan::AllData => {
                let all = Extent {
                    len: job.len,
                    kind: ExtentKind::Data,
                };
                cx.buffers.put(job.data, &all.encode());
                return Progress::Done(Ok(()));
            }
            Plan::Send { op, flush } => (op, flush, None),
            Plan::SendZeroes { flush } => match cx.buffers.zeroes() {
                Ok(buffer) => (Op::Write, flush, Some(buffer)),
                Err(_) => return Progress::Done(Err(Fault::Io)),
            },
        };
        let cannot_succeed = job.op == Op::Flush && self.work.may_have_lost_writes();
        if self.failing || self.is_lost() || cannot_succeed {
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
            // Queued requests of a job in progress must not be sent any more.
            self.give_up(cx);
        }
        self.advance(cx);
    }

    fn leave(&mut self, cx: &mut ImageCx<'_>) {
        if let Some(connection) = &self.connection {
            connection.leave(cx);
        }
    }

    fn blocking_done(&mut self, cx: &mut ImageCx<'_>, task: Done) {
        let Ok(connect) = task.downcast::<Connect>() else {
            return;
        };
        if connect.serial != self.serial || self.stage != Stage::Open || self.is_lost() {
            return;
        }
        self.connecting = false;
        let result = connect.result.expect("a finished task has a result");
        match result.and_then(|connected| self.accept(cx, connected)) {
            Ok(()) => {
                count(&self.counts.returned);
                tracing::info!(server = %self.target.uri, "the NBD server is back");
                if self.work.is_empty() {
                    self.lost_since = None;
                }
                self.failing = false;
                self.silent_since = cx.now;
                self.advance(cx);
            }
            Err(error) => {
                count(&self.counts.refused);
                tracing::debug!(%error, "an NBD server is still unreachable");
                self.retry(cx.now);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        let retry = self
            .retry_at
            .filter(|_| self.connection.is_none() && !self.connecting);
        let patience = self.times_out_at();
        let disconnect_at = match self.stage {
            Stage::Disconnecting(until) => Some(until),
            Stage::Open | Stage::Flushing => None,
        };
        [retry, patience, disconnect_at].into_iter().flatten().min()
    }

    fn tick(&mut self, cx: &mut ImageCx<'_>) {
        if let Stage::Disconnecting(until) = self.stage
            && until <= cx.now
        {
            // The connection's end completes its operations, and then the close.
            self.stage = Stage::Disconnecting(Time::NEVER);
            if let Some(connection) = &mut self.connection {
                connection.abort(Loss::GivenUp);
            }
        }
        if self.times_out_at().is_some_and(|at| at <= cx.now) {
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
            cx.blocking.send_alone(cx.image, Box::new(connect));
        }
    }

    fn fence(&mut self, fence: &Arc<Fence>) {
        self.fence = Some(Arc::clone(fence));
    }

    fn is_idle(&self) -> bool {
        self.work.is_empty()
    }

    fn close(&mut self, cx: &mut ImageCx<'_>) -> bool {
        self.first = None;
        self.retry_at = None;
        if self.stage == Stage::Open && self.may_flush() {
            self.begin_last_flush(cx);
        }
        if self.stage == Stage::Flushing && !self.has_flushed() {
            return false;
        }
        if !matches!(self.stage, Stage::Disconnecting(_)) {
            self.stage = Stage::Disconnecting(cx.now + DISCONNECT_TIMEOUT);
            if let Some(connection) = &mut self.connection {
                connection.disconnect(cx);
            }
        }
        self.drop_idle_connection(cx);
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

    /// Whether the disk's lease is lost. Then nothing more is sent: a replay after a reconnect would write too late.
    fn is_lost(&self) -> bool {
        let lost = |fence: &Arc<Fence>| fence.lost().is_some();
        self.fence.as_ref().is_some_and(lost)
    }

    /// Starts to use the connection that opened the image.
    fn use_first_connection(&mut self, cx: &mut ImageCx<'_>) {
        if let Some(connected) = self.first.take()
            && let Err(error) = self.accept(cx, connected)
        {
            tracing::warn!(%error, "an NBD connection could not be used");
            self.retry(cx.now);
        }
    }

    /// Starts to use a new connection, if the server still offers as much as before.
    fn accept(&mut self, cx: &mut ImageCx<'_>, connected: Connected) -> Result<()> {
        if !Offer::of(&connected.agreed).covers(&self.offer) {
            let text = format!(
                "the NBD server {} now offers a smaller export or fewer features than before: restore it",
                self.target.uri
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        let connection = Connection::new(cx.disk(), connected, cx.buffers)
            .map_err(|e| Error::io("no memory for an NBD connection", e))?;
        self.connection = Some(connection);
        Ok(())
    }

    /// Starts a job that the server must perform.
    fn begin(&mut self, cx: &mut ImageCx<'_>, job: Job, op: Op, flush: bool, zeroes: Option<u32>) {
        if self.work.is_empty() {
            self.silent_since = cx.now;
        }
        self.work.begin(&self.offer, job, op, flush, zeroes);
        self.advance(cx);
    }

    /// Whether a last flush is needed and possible. After a lost connection it is not: unflushed writes may be lost,
    /// and the log has reported it.
    fn may_flush(&self) -> bool {
        let is_up = self
            .connection
            .as_ref()
            .is_some_and(|connection| connection.loss().is_none());
        is_up && self.work.needs_flush() && !self.is_lost()
    }

    /// Unflushed writes were never promised to be durable; an orderly close makes them durable nevertheless. The next
    /// attach starts with no unflushed writes, so its flushes must not depend on earlier ones.
    fn begin_last_flush(&mut self, cx: &mut ImageCx<'_>) {
        let flush = Job {
            io: NO_IO,
            op: Op::Flush,
            flags: Flags::NONE,
            offset: 0,
            len: 0,
            data: Data::NONE,
        };
        self.stage = Stage::Flushing;
        self.begin(cx, flush, Op::Flush, true, None);
    }

    /// Whether the last flush has ended, by the server's reply or by timeout.
    fn has_flushed(&mut self) -> bool {
        let Some((_, outcome)) = self.work.ended.pop() else {
            return false;
        };
        if outcome.is_err() {
            tracing::warn!(
                server = %self.target.uri,
                "the last flush of a detached disk failed: its unflushed writes may be lost; \
                 check the NBD server, and have the guest check its file systems"
            );
        }
        true
    }

    /// When requests time out because the server is absent or silent.
    fn times_out_at(&self) -> Option<Time> {
        if self.failing || self.work.is_empty() {
            return None;
        }
        let since = self.lost_since.unwrap_or(self.silent_since);
        let since = since.min(self.silent_since);
        Some(since + self.patience)
    }

    /// Advances the connection, and reports jobs that have ended. Call after any change.
    fn advance(&mut self, cx: &mut ImageCx<'_>) {
        if let Some(connection) = &mut self.connection
            && connection.advance(cx, &self.offer, &mut self.work) > 0
        {
            // The server replies again.
            self.lost_since = None;
            self.pause = FIRST_PAUSE;
        }
        self.drop_idle_connection(cx);
        self.report_ended(cx);
    }

    /// Reports the jobs that have ended.
    fn report_ended(&mut self, cx: &mut ImageCx<'_>) {
        if self.stage == Stage::Flushing {
            return;
        }
        for (io, outcome) in self.work.ended.drain(..) {
            cx.finish(io, outcome);
        }
    }

    /// Drops a lost connection once the kernel uses none of its memory.
    fn drop_idle_connection(&mut self, cx: &mut ImageCx<'_>) {
        let Some(connection) = self
            .connection
            .take_if(|connection| connection.loss().is_some() && connection.is_idle())
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
            Some(Loss::Violation) => count(&self.counts.violations),
            Some(Loss::GivenUp) => count(&self.counts.silent),
            Some(Loss::Gone | Loss::ShuttingDown) | None => {}
        }
        tracing::warn!(server = %self.target.uri, why = ?loss, "the connection to an NBD server is lost; trying again");
        if self.work.connection_lost() {
            tracing::warn!(
                server = %self.target.uri,
                "writes that the NBD server had acknowledged but not flushed may be lost with the \
                 connection: from now on flushes of this disk fail, to inform the guest; detach the disk, \
                 attach it again, and have the guest check its file systems"
            );
        }
        if self.failing {
            self.work.fail_all(Fault::Io);
        } else {
            self.work.replay(&self.offer);
        }
        self.lost_since.get_or_insert(cx.now);
        self.retry(cx.now);
    }

    fn retry(&mut self, now: Time) {
        self.retry_at = Some(now + self.pause);
        self.pause = (self.pause + self.pause).min(LONGEST_PAUSE);
    }

    /// The timeout has expired: fails all requests.
    fn give_up(&mut self, cx: &mut ImageCx<'_>) {
        self.failing = true;
        if let Some(connection) = &mut self.connection {
            connection.abort(Loss::GivenUp);
        } else {
            self.work.fail_all(Fault::Io);
        }
        self.drop_idle_connection(cx);
        self.report_ended(cx);
    }
}

#[cfg(test)]
mod tests;
