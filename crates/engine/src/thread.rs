//! One I/O thread: it collects requests and completions, calls the shard, and performs the effects.
//!
//! A turn has a fixed order: orders from other threads, completions of the ring, requests of the active queues, what the
//! shard wants done about them, used entries shown to guests, and one system call that submits it all. With nothing
//! to do it spins briefly where that pays, then sleeps until something happens ([`idle`]).
//!
//! # Always true
//! - everything here belongs to this thread alone: no lock is taken and nothing allocated for a request in steady state
//! - an idle thread sleeps without a timer: no wake-ups
//! - a panic aborts the process: the kernel may still be writing into our buffers, and a wrong byte is worse than a restart
//!
//! # Picture
//! ```text
//!   inbox ──┐         gather, flow         ┌─> image.start ──> ring ──┐
//!   ring ───┼─> Event ──> Shard ──> Effect ┤                          │ completion
//!   queues ─┘      ▲                       └─> device.answer          │
//!                  └──────────────────────────────────────────────────┘
//! ```

use crate::blocking::BlockingWorker;
use crate::control::{Control, Word};
use crate::datastore::{Image, ImageCx};
use crate::device::nbd::Connection;
use crate::device::ring::RingDevice;
use crate::device::thread_cx::{IN_FLIGHT, ThreadCx};
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::sys::os;
use crate::sys::ring::{Completion, Ring, Tag};
use crate::tag;
use commands::{Command, Detaching, Inbox, Question};
use idle::{Idle, Wait};
use pending_interrupts::PendingInterrupts;
use refusals::{no_ring, no_such_cpu};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tally::Tally;
use tidegate_core::effect::{ControlId, Effect};
use tidegate_core::filter::FilterKey;
use tidegate_core::iocontrol::DiskKey;
use tidegate_core::request::{DiskId, IoId, Outcome};
use tidegate_core::shard::Event;
use tidegate_core::units::{Span, Time};

mod adaptive_poll;
mod close;
pub(crate) mod commands;
mod effects;
pub(crate) mod idle;
mod pending_interrupts;
pub(crate) mod refusals;
mod side_write;
mod sleep;
pub(crate) mod tally;

/// Completions taken in one turn, so that one queue's flood does not hold up the others' requests.
const COMPLETIONS_PER_TURN: usize = 256;
/// Requests taken from one queue in one turn: a deep queue waits for the shallow ones.
const REQUESTS_PER_QUEUE: usize = 32;
/// How many of them are carried out and answered before more are taken: a guest that is shown its answers by and by asks
/// again meanwhile, instead of falling asleep until it has them all.
const REQUESTS_AT_ONCE: usize = 16;
/// The same, after a wait: a sleeping guest already wakes to the first answers, and a disk already works, while the others
/// are carried out.
const FIRST_REQUESTS: usize = 4;
/// Turns between looks for queues that have gone quiet.
const TURNS_PER_SWEEP: u32 = 64;
/// A queue without requests for this long is no longer looked at each turn; its guest kicks for the next one.
const QUIET: Span = Span::from_millis(1);

/// How an I/O thread is to behave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadConfig {
    /// How long it may spin before it sleeps; zero: never.
    pub(crate) poll: Span,
    /// Spin whenever idle, rather than only when requests come fast enough for it to pay.
    pub(crate) always_poll: bool,
    /// The CPU to stay on.
    pub(crate) cpu: Option<usize>,
}

/// A disk that lives here.
pub(crate) struct Place {
    image: Box<dyn Image + Send>,
    sides: Vec<(FilterKey, Arc<OwnedFd>)>,
    detaching: Option<Detaching>,
    changing: Option<commands::Reply>,
    /// Its datastore's control, which lives for as long as the disk is here, and what the disk is called there.
    control: Option<(Control, DiskKey)>,
    /// Goes back when the disk goes, after its image.
    lease: Option<Lease>,
}

/// Where an order's answer goes.
pub(crate) type Reply = Sender<Result<()>>;

/// What is left to do on the engine's side when a disk is gone.
pub(crate) type OnDetached = Box<dyn FnOnce() + Send>;

/// See the module.
pub(crate) struct IoThread {
    name: String,
    /// The inboxes of all I/O threads of the engine.
    threads: Arc<[Arc<Inbox>]>,
    /// Which of them this one is: also the number of its schedulers.
    number: usize,
    /// Its own inbox.
    inbox: Arc<Inbox>,
    blocking: BlockingWorker,
    cx: ThreadCx,
    disks: Vec<Option<Place>>,
    /// Disks whose images have deadlines.
    timed: Vec<DiskId>,
    queues: Vec<Option<RingDevice>>,
    /// Queues that are looked at each turn.
    active: Vec<u32>,
    /// Queues whose guests were shown something and not called yet.
    pending_interrupts: PendingInterrupts,
    connections: Vec<Option<Connection>>,
    /// What the governor of each control is sent, by number of control.
    governed: Vec<Option<Sender<Word>>>,
    /// Those whose governors believe that nothing goes on here.
    resting: Vec<ControlId>,
    /// Ends that images reported and the shard has not heard of.
    finished: Vec<(DiskId, IoId, Outcome)>,
    performing: Vec<Effect>,
    completions: Vec<Completion>,
    messages: VecDeque<Command>,
    /// What somebody wants to know, and was not told yet.
    questions: VecDeque<Question>,
    idle: Idle,
    /// Set while there is nothing to do.
    wait: Option<Wait>,
    tally: Tally,
    turns: u32,
    first: First,
    stopping: bool,
}

impl IoThread {
    /// Starts the thread whose inbox is at `number` of `threads`; returns once its ring works.
    pub(crate) fn start(
        threads: Arc<[Arc<Inbox>]>,
        number: usize,
        config: ThreadConfig,
    ) -> Result<std::thread::JoinHandle<()>> {
        let failed = |error| Error::io("cannot start an I/O thread", error);
        let name = format!("tidegate-io{number}");
        let (ready, made) = std::sync::mpsc::channel();
        let handle = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                // The guard turns a panic anywhere below into an abort, after the panic's message was printed.
                let guard = AbortOnPanic;
                match IoThread::new(name, threads, number, config) {
                    Ok(mut thread) => {
                        let _ = ready.send(Ok(()));
                        thread.run();
                        if thread.cx.buffers.is_lent() {
                            // A stuck datastore still has our memory: it stays where it is until the process ends.
                            std::mem::forget(thread);
                        }
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                }
                drop(guard);
            })
            .map_err(failed)?;
        match made.recv() {
            Ok(Ok(())) => Ok(handle),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                let text = "an I/O thread died while starting";
                Err(failed(std::io::Error::other(text)))
            }
        }
    }

    fn new(
        name: String,
        threads: Arc<[Arc<Inbox>]>,
        number: usize,
        config: ThreadConfig,
    ) -> Result<IoThread> {
        let inbox = Arc::clone(&threads[number]);
        let own = Arc::clone(&inbox);
        let give_back = move |disk, task| own.send_always(Command::BlockingDone(disk, task));
        if let Some(cpu) = config.cpu {
            os::pin_to(cpu).map_err(|_| no_such_cpu(cpu))?;
        }
        let mut ring = Ring::new().map_err(no_ring)?;
        ring.watch(
            inbox.wakeup_fd(),
            Tag {
                kind: tag::BELL,
                owner: 0,
                slot: 0,
            },
        );
        let now = os::now();
        Ok(IoThread {
            blocking: BlockingWorker::start(&name, give_back)
                .map_err(|e| Error::io("cannot start an I/O thread", e))?,
            name,
            threads,
            number,
            inbox,
            cx: ThreadCx::new(ring, now),
            disks: Vec::new(),
            timed: Vec::new(),
            queues: Vec::new(),
            active: Vec::new(),
            pending_interrupts: PendingInterrupts::new(),
            connections: Vec::new(),
            governed: Vec::new(),
            resting: Vec::new(),
            finished: Vec::with_capacity(IN_FLIGHT),
            performing: Vec::with_capacity(2 * IN_FLIGHT),
            completions: Vec::with_capacity(COMPLETIONS_PER_TURN),
            messages: VecDeque::new(),
            questions: VecDeque::new(),
            idle: Idle::new(config.poll, config.always_poll),
            wait: None,
            tally: Tally::new(now),
            turns: 0,
            first: First(1),
            stopping: false,
        })
    }

    fn run(&mut self) {
        while !self.stopping {
            if self.turn() {
                self.note_wait_over();
                self.cx.now = os::now();
            } else {
                self.sleep();
            }
        }
        self.call_all();
        // Who waits for an answer hears that none comes, also where the rest of this thread stays.
        self.questions.clear();
    }

    /// One turn. Returns whether there was anything to do.
    fn turn(&mut self) -> bool {
        self.call_due(self.cx.now);
        let mut worked = false;
        if self.inbox.has_mail() {
            worked |= self.read_mail();
        }
        worked |= self.reap();
        worked |= self.deadlines();
        worked |= self.requests();
        if !self.resting.is_empty() {
            self.wake_governors();
        }
        self.cx.ring.submit();
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(TURNS_PER_SWEEP) {
            self.sweep();
        }
        self.tally.turn(self.cx.now, worked);
        worked
    }

    /// Takes what every queue may bring in one turn and carries it out, a piece at a time. Returns whether anything came.
    fn requests(&mut self) -> bool {
        let mut any = false;
        let mut left = REQUESTS_PER_QUEUE;
        let mut piece = if self.wait.is_some() {
            FIRST_REQUESTS
        } else {
            REQUESTS_AT_ONCE
        };
        loop {
            let more = self.fetch(piece, &mut any);
            if any {
                self.call_after_more();
            }
            self.run_effects();
            left -= piece;
            if !more || left == 0 {
                return any;
            }
            // The turn may be long yet, with many queues.
            if !self.pending_interrupts.is_empty() {
                self.call_due(os::now());
            }
            piece = REQUESTS_AT_ONCE.min(left);
        }
    }

    /// Carries out and publishes, until neither leaves anything to do: the thread may sleep after that.
    fn run_effects(&mut self) {
        loop {
            self.publish();
            self.cx.flow();
            if self.cx.effects.is_empty() {
                return;
            }
            self.perform_effects();
        }
    }

    fn read_mail(&mut self) -> bool {
        let mut messages = std::mem::take(&mut self.messages);
        self.inbox.take(&mut messages);
        let any = !messages.is_empty() || !self.questions.is_empty();
        for order in messages.drain(..) {
            self.handle(order);
        }
        self.messages = messages;
        if !self.questions.is_empty() && self.tell() {
            self.inbox.look_again();
        }
        any
    }

    /// Takes completions off the ring and hands each to its owner.
    fn reap(&mut self) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.cx.ring.reap(COMPLETIONS_PER_TURN, &mut completions);
        let any = !completions.is_empty();
        for completion in completions.drain(..) {
            self.completed(completion);
        }
        self.completions = completions;
        any
    }

    fn completed(&mut self, completion: Completion) {
        let Tag { kind, owner, .. } = completion.tag;
        match kind {
            tag::BELL => {
                self.inbox.silence();
                if !completion.more {
                    self.cx.ring.watch(self.inbox.wakeup_fd(), completion.tag);
                }
            }
            tag::KICK => self.kicked(owner, completion),
            tag::IMAGE => {
                self.with_image(DiskId(owner), |image, cx| image.completed(cx, completion));
                self.close_if_detaching(DiskId(owner));
            }
            tag::RECEIVE | tag::SEND | tag::HANG_UP => self.connection_event(owner, completion),
            _ => {}
        }
    }

    /// A guest has kicked: its queue is looked at from now on.
    fn kicked(&mut self, index: u32, completion: Completion) {
        let Some(queue) = self.queues.get_mut(index as usize).and_then(Option::as_mut) else {
            return;
        };
        if completion.result == -libc::ECANCELED {
            return;
        }
        if completion.result < 0 {
            return queue.cannot_be_kicked(-completion.result);
        }
        if !completion.more {
            queue.watch_kicks(index, &mut self.cx.ring);
        }
        if !queue.active {
            queue.wake();
            self.active.push(index);
        }
    }

    /// Takes up to `most` requests from every active queue. Returns whether one of them may have more.
    fn fetch(&mut self, most: usize, worked: &mut bool) -> bool {
        let mut more = false;
        for at in self.first.and_on(self.active.len()) {
            let index = self.active[at];
            let Some(queue) = &mut self.queues[index as usize] else {
                continue;
            };
            let count = queue.fetch(index, &mut self.cx, most);
            *worked |= count > 0;
            more |= count == most;
        }
        more
    }

    /// Lets the shard and the images act whose time has come.
    fn deadlines(&mut self) -> bool {
        let now = self.cx.now;
        let mut any = false;
        if self.cx.shard.deadline().is_some_and(|(at, _)| at <= now) {
            self.cx.handle(Event::Ticked);
            any = true;
        }
        for at in 0..self.timed.len() {
            let id = self.timed[at];
            let due = |disk: &Place| disk.image.deadline().is_some_and(|at| at <= now);
            if self.disks[id.0 as usize].as_ref().is_some_and(due) {
                self.with_image(id, |image, cx| image.tick(cx));
                any = true;
            }
        }
        any
    }

    /// The earliest moment at which something must be done unasked.
    fn next_deadline(&self) -> Option<Time> {
        let shard = self.cx.shard.deadline().map(|(at, _)| at);
        let timed = self
            .timed
            .iter()
            .filter_map(|id| self.disks[id.0 as usize].as_ref());
        let images = timed.filter_map(|disk| disk.image.deadline());
        shard.into_iter().chain(images).min()
    }

    /// Runs `act` on a disk's image, then tells the shard of the I/Os that it ended; they go on with the turn's others.
    fn with_image(&mut self, id: DiskId, act: impl FnOnce(&mut dyn Image, &mut ImageCx<'_>)) {
        let Some(place) = self.disks.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        let mut cx = ImageCx {
            now: self.cx.now,
            disk: id,
            ring: &mut self.cx.ring,
            buffers: &mut self.cx.buffers,
            finished: &mut self.finished,
            blocking: &self.blocking,
        };
        act(&mut *place.image, &mut cx);
        self.report_finished();
    }

    fn report_finished(&mut self) {
        for (disk, io, outcome) in self.finished.drain(..) {
            self.cx.shard.gather(
                self.cx.now,
                Event::Finished { disk, io, outcome },
                &mut self.cx.effects,
            );
        }
    }
}

/// Draws who is looked at first, so that none is ahead of the others because of its place. By lot: guests, too, go round in
/// some order, and with turns that go round as regularly the same ones would always be found first.
struct First(u32);

impl First {
    /// In which order `count` are looked at: one by one, from whom the lot falls on.
    #[inline]
    fn and_on(&mut self, count: usize) -> impl Iterator<Item = usize> + use<> {
        // Knuth's and Lewis' quick generator (Numerical Recipes, 7.1), of which the upper bits are good.
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let first = ((self.0 >> 16) as usize * count) >> 16;
        (first..count).chain(0..first)
    }
}

/// Aborts the process when it is dropped by a panic's unwinding.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::First;

    #[test]
    fn everybody_is_looked_at_once_and_as_often_first_as_others() {
        const TURNS: u32 = 70_000;
        for count in 1..=7 {
            let mut first = First(1);
            let mut firsts = vec![0_u32; count];
            // Also by those who come round as often as there are of them, and one time in two.
            for turn in 0..2 * TURNS {
                let order: Vec<usize> = first.and_on(count).collect();
                let mut all = order.clone();
                all.sort_unstable();
                assert!(all.into_iter().eq(0..count), "{order:?}");
                firsts[order[0]] += u32::from(turn % 2 == 0);
            }
            let fair = TURNS / u32::try_from(count).expect("a few");
            for times in firsts {
                assert!(
                    times.abs_diff(fair) < fair / 20,
                    "{times} of {TURNS}, {count} of them"
                );
            }
        }
        assert_eq!(First(1).and_on(0).count(), 0);
    }
}
