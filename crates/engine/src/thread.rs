//! One I/O thread: it collects requests and completions, calls the shard, and performs the effects.
//!
//! A turn has a fixed order: commands from other threads, completions of the ring, requests of the active queues, the
//! shard's effects, used entries published to guests. One system call then submits everything. Without work the thread
//! spins briefly where that pays, then sleeps until an event ([`idle`]).
//!
//! # Always true
//! - the state here belongs to this thread alone: in steady state a request takes no lock and allocates nothing
//! - an idle thread sleeps without a timer: no wake-ups
//! - a panic aborts the process: the kernel may still write into its buffers, and wrong data is worse than a restart
//!
//! # Picture
//! ```text
//!   inbox ──┐         gather, flow         ┌─> image.start ──> ring ──┐
//!   ring ───┼─> Event ──> Shard ──> Effect ┤                          │ completion
//!   queues ─┘      ▲                       └─> device.answer          │
//!                  └──────────────────────────────────────────────────┘
//! ```

use crate::blocking::BlockingWorker;
use crate::control::{DiskControl, GovernorMessage, UnderControl};
use crate::counters::ThreadCounters;
use crate::datastore::{Image, ImageCx};
use crate::device::nbd::Connection;
use crate::device::ring::RingDevice;
use crate::device::thread_cx::{IN_FLIGHT, ThreadCx};
use crate::disk_spec::{DenseSettings, IoSettings, NoticeSink};
use crate::error::{Error, Result};
use crate::monitor::Signals;
use crate::sys::buffers::Buffers;
use crate::sys::os;
use crate::sys::ring::{Completion, Ring, Tag};
use crate::tag::{self, ImageId};
use blocks::Blocks;
use commands::{Command, Detaching, Inbox, Query};
use fairness::{Backlog, Rotation};
use idle::{Idle, Wait};
use images::{Images, Member};
use layouts::{Opened, PendingOrder, Relay};
use peers::Peers;
use pending_interrupts::PendingInterrupts;
use refusals::{no_ring, no_such_cpu};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use tally::Tally;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::effect::{ControlId, Effect};
use tidegate_core::filter::FilterKey;
use tidegate_core::layout::Target;
use tidegate_core::request::{DiskId, IoId, Outcome};
use tidegate_core::round_robin::RoundRobin;
use tidegate_core::shard::Event;
use tidegate_core::units::{Span, Time};

mod adaptive_poll;
mod blocks;
mod close;
pub(crate) mod commands;
mod dense;
mod effects;
pub(crate) mod fairness;
pub(crate) mod idle;
mod images;
pub(crate) mod layouts;
mod moving;
pub(crate) mod moving_disk;
pub(crate) mod peers;
mod pending_interrupts;
pub(crate) mod refusals;
mod side_write;
mod sleep;
#[cfg(test)]
pub(crate) mod stepped;
pub(crate) mod tally;

/// Completions taken in one turn, so that one queue's flood does not delay the others' requests.
const COMPLETIONS_PER_TURN: usize = 256;
/// Turns between checks for queues that have become idle.
const TURNS_PER_SWEEP: u32 = 64;
/// A queue without requests for this long is no longer polled; its guest kicks for the next request.
const QUIET: Span = Span::from_millis(1);

/// The configuration of an I/O thread.
#[derive(Clone, Debug)]
pub(crate) struct ThreadConfig {
    /// How long it may spin before it sleeps; zero: never.
    pub(crate) poll: Span,
    /// Whether to spin whenever idle, not only when requests arrive fast enough.
    pub(crate) always_poll: bool,
    /// The CPU to pin it to.
    pub(crate) cpu: Option<usize>,
    /// How completions are coalesced, of disks that have no setting of their own.
    pub(crate) coalesce: Coalesce,
    /// What it and the monitor tell each other.
    pub(crate) signals: Arc<Signals>,
}

/// A disk on this thread.
pub(crate) struct AttachedDisk {
    images: Images,
    /// Its layouts' own blocks that are being read and written.
    blocks: Blocks,
    /// Whether any of its images closes, or will: it is being detached, or an image was replaced.
    closes: bool,
    /// Told when the disk's layout has opened, or refuses to.
    opening: Option<Opened>,
    /// What happens once nothing of the disk is in flight.
    relay: Option<Relay>,
    /// Its share of this thread, and how its completions are coalesced.
    io: IoSettings,
    /// Whether its requests wait for the end of a move.
    held: bool,
    /// The first target of a flash cache that it gets, until the cache has opened.
    new_flash: Option<Target>,
    /// Orders to its layout. The first one is under way.
    orders: VecDeque<PendingOrder>,
    /// The control of a member that is being added.
    added: Option<UnderControl>,
    notices: Option<NoticeSink>,
    sides: Vec<(FilterKey, Arc<OwnedFd>)>,
    detaching: Option<Detaching>,
    changing: Option<commands::Reply>,
    /// The controls of its datastores.
    control: Option<DiskControl>,
}

/// The channel for a command's result.
pub(crate) type Reply = Sender<Result<()>>;

/// The engine's cleanup after a disk is detached.
pub(crate) type OnDetached = Box<dyn FnOnce() + Send>;

/// See the module.
pub(crate) struct IoThread {
    name: String,
    /// The inboxes of all I/O threads of the engine.
    peers: Arc<Peers>,
    /// Its index among them, and among its schedulers.
    number: usize,
    /// Its own inbox.
    inbox: Arc<Inbox>,
    blocking: BlockingWorker,
    cx: ThreadCx,
    disks: Vec<Option<AttachedDisk>>,
    /// Images that have deadlines.
    timed: Vec<ImageId>,
    /// Buffers that were added to the shard's arena for late ones.
    spare_buffers: usize,
    /// By numbers that are unique on all threads.
    queues: Vec<Option<Box<RingDevice>>>,
    /// Queues that are polled each turn.
    active: Vec<u32>,
    /// Connections that wait for their turn.
    backlog: Backlog,
    round_robin: RoundRobin,
    /// Whether more than one queue or connection competes in this turn.
    competing: bool,
    /// How completions are coalesced, of disks that have no setting of their own.
    coalesce: Coalesce,
    /// Dense mode, while it is on.
    dense: Option<DenseSettings>,
    /// Queues with published completions whose guests were not called yet.
    pending_interrupts: PendingInterrupts,
    /// By numbers that are unique on all threads.
    connections: Vec<Option<Box<Connection>>>,
    /// How many there are.
    connection_count: usize,
    /// The disks of connections that have moved to other threads, by their numbers.
    moved_connections: Vec<Option<DiskId>>,
    /// Channels to the governors, by control.
    governors: Vec<Option<Sender<GovernorMessage>>>,
    /// Controls whose governors assume that nothing happens here.
    idle_controls: Vec<ControlId>,
    /// Completions reported by images that the shard has not processed.
    finished: Vec<(DiskId, IoId, Outcome)>,
    performing: Vec<Effect>,
    completions: Vec<Completion>,
    commands: VecDeque<Command>,
    /// Queries for statistics that are not answered yet.
    queries: VecDeque<Query>,
    idle: Idle,
    /// Set while there is no work.
    wait: Option<Wait>,
    signals: Arc<Signals>,
    tally: Tally,
    rotation: Rotation,
    stopping: bool,
}

impl IoThread {
    /// Starts the thread whose inbox is `threads[number]`; returns once its ring works.
    pub(crate) fn start(
        peers: Arc<Peers>,
        number: usize,
        config: ThreadConfig,
        page: Arc<ThreadCounters>,
    ) -> Result<std::thread::JoinHandle<()>> {
        let failed = |error| Error::io("cannot start an I/O thread", error);
        let name = format!("tidegate-io{number}");
        let (ready, started) = std::sync::mpsc::channel();
        let handle = std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                // The guard turns a panic into an abort, after the panic's message was printed.
                let guard = AbortOnPanic;
                match IoThread::new(name, peers, number, config, page) {
                    Ok(mut thread) => {
                        let _ = ready.send(Ok(()));
                        thread.run();
                        if thread.cx.buffers.is_lent() {
                            // The kernel still uses buffers of a stuck datastore: the memory stays allocated until the
                            // process ends.
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
        match started.recv() {
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
        peers: Arc<Peers>,
        number: usize,
        config: ThreadConfig,
        page: Arc<ThreadCounters>,
    ) -> Result<IoThread> {
        let inbox = Arc::clone(peers.inbox(number));
        let own = Arc::clone(&inbox);
        let return_task = move |image, task| own.send_always(Command::BlockingDone(image, task));
        if let Some(cpu) = config.cpu {
            os::pin_to(cpu).map_err(|_| no_such_cpu(cpu))?;
        }
        let mut ring = Ring::new().map_err(no_ring)?;
        ring.watch(
            inbox.wakeup_fd(),
            Tag {
                kind: tag::WAKEUP,
                owner: 0,
                slot: 0,
            },
        );
        let now = os::now();
        let tally = Tally::new(page, now);
        Ok(IoThread {
            blocking: BlockingWorker::start(&name, return_task)
                .map_err(|e| Error::io("cannot start an I/O thread", e))?,
            name,
            number,
            inbox,
            cx: ThreadCx::new(
                number,
                ring,
                Buffers::of_thread(number, Arc::clone(peers.returned())),
                now,
            ),
            peers,
            disks: Vec::new(),
            timed: Vec::new(),
            spare_buffers: 0,
            queues: Vec::new(),
            active: Vec::new(),
            pending_interrupts: PendingInterrupts::new(),
            backlog: Backlog::default(),
            round_robin: RoundRobin::new(),
            competing: false,
            coalesce: config.coalesce,
            dense: None,
            connections: Vec::new(),
            connection_count: 0,
            moved_connections: Vec::new(),
            governors: Vec::new(),
            idle_controls: Vec::new(),
            finished: Vec::with_capacity(IN_FLIGHT),
            performing: Vec::with_capacity(2 * IN_FLIGHT),
            completions: Vec::with_capacity(COMPLETIONS_PER_TURN),
            commands: VecDeque::new(),
            queries: VecDeque::new(),
            idle: Idle::new(config.poll, config.always_poll),
            signals: config.signals,
            wait: None,
            tally,
            rotation: Rotation(1),
            stopping: false,
        })
    }

    fn run(&mut self) {
        while !self.stopping {
            if self.turn() {
                self.note_wait_over();
                let now = os::now();
                if self.tally.worked(self.cx.now, now, self.cx.submitted) {
                    self.divide_time();
                }
                self.cx.now = now;
            } else {
                self.tally.found_nothing();
                self.sleep();
            }
        }
        self.call_all();
        // Dropping queries and commands ends the wait of their senders, even if the rest of the thread is leaked.
        self.queries.clear();
        self.commands.clear();
        self.inbox.close();
    }

    /// One turn. Returns whether there was anything to do.
    fn turn(&mut self) -> bool {
        self.call_due(self.cx.now);
        if self.competing {
            self.round_robin.begin();
        }
        let mut worked = false;
        if self.inbox.has_messages() {
            worked |= self.read_commands();
        }
        worked |= self.reap();
        worked |= self.deadlines();
        worked |= self.requests();
        if !self.idle_controls.is_empty() {
            self.wake_governors();
        }
        self.cx.ring.submit();
        if self.tally.turn() {
            self.divide_time();
            self.sweep();
        }
        worked
    }

    /// Performs effects and publishes completions until nothing is left. After that the thread may sleep.
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

    fn read_commands(&mut self) -> bool {
        let mut commands = std::mem::take(&mut self.commands);
        self.inbox.take(&mut commands);
        let any = !commands.is_empty() || !self.queries.is_empty();
        for order in commands.drain(..) {
            self.handle(order);
        }
        self.commands = commands;
        if !self.queries.is_empty() && self.answer_queries() {
            self.inbox.note_pending();
        }
        any
    }

    /// Takes completions off the ring and passes each to its owner.
    fn reap(&mut self) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.cx.ring.reap(COMPLETIONS_PER_TURN, &mut completions);
        let any = !completions.is_empty();
        self.tally
            .completions_begin(|| completions.first().map(|first| first.tag.kind));
        if self.is_learning() {
            self.learn_completions(&mut completions);
        }
        for completion in completions.drain(..) {
            self.completed(completion);
        }
        self.completions = completions;
        any
    }

    fn completed(&mut self, completion: Completion) {
        let Tag { kind, owner, .. } = completion.tag;
        match kind {
            tag::WAKEUP => {
                self.inbox.drain_wakeup();
                if !completion.more {
                    self.cx.ring.watch(self.inbox.wakeup_fd(), completion.tag);
                }
            }
            tag::KICK => self.kicked(owner, completion),
            tag::IMAGE => {
                let id = ImageId::from_owner(owner);
                if !self.with_image(id, |image, cx| image.completed(cx, completion)) {
                    return self.forward(completion);
                }
                self.close_if_unused(id.disk());
            }
            tag::RECEIVE | tag::SEND | tag::HANG_UP => self.connection_event(owner, completion),
            _ => {}
        }
    }

    /// A guest has kicked: its queue is polled from now on.
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
        queue.note_kick();
        if !completion.more {
            queue.watch_kicks(index, &mut self.cx.ring);
        }
        if !queue.active {
            queue.wake();
            self.active.push(index);
        }
    }

    /// Handles the deadlines of the shard and of images.
    fn deadlines(&mut self) -> bool {
        let now = self.cx.now;
        let mut any = false;
        if self.cx.shard.deadline().is_some_and(|(at, _)| at <= now) {
            self.cx.handle(Event::Ticked);
            self.replace_late_buffers();
            any = true;
        }
        let mut next = 0;
        // Closing an image changes the list.
        while let Some(&id) = self.timed.get(next) {
            next += 1;
            let due = |member: &mut Member| member.image.deadline().is_some_and(|at| at <= now);
            if self.member(id).is_some_and(due) {
                self.with_image(id, |image, cx| image.tick(cx));
                self.close_if_unused(id.disk());
                any = true;
            }
        }
        any
    }

    /// The earliest deadline of the shard, the images, and calls that wait for completions.
    fn next_deadline(&self) -> Option<Time> {
        let shard = self.cx.shard.deadline().map(|(at, _)| at);
        let timed = self.timed.iter().filter_map(|id| {
            let place = self.attached_disk(id.disk())?;
            place.images.all().find(|member| member.id == *id)
        });
        let images = timed.filter_map(|member| member.image.deadline());
        let calls = self.pending_interrupts.due();
        shard.into_iter().chain(images).chain(calls).min()
    }

    /// An open image, while its disk is attached.
    fn member(&mut self, id: ImageId) -> Option<&mut Member> {
        let place = self.disks.get_mut(id.disk().0 as usize)?.as_mut()?;
        place.images.by_id(id)
    }

    /// Runs `act` on an image, then reports the completed I/Os to the shard, which processes them with the others of the
    /// turn. Returns whether it is here.
    fn with_image(
        &mut self,
        id: ImageId,
        act: impl FnOnce(&mut dyn Image, &mut ImageCx<'_>),
    ) -> bool {
        let place = self.disks.get_mut(id.disk().0 as usize);
        let place = place.and_then(Option::as_mut);
        let Some(member) = place.and_then(|place| place.images.by_id(id)) else {
            return false;
        };
        let mut cx = ImageCx {
            now: self.cx.now,
            image: id,
            ring: &mut self.cx.ring,
            buffers: &mut self.cx.buffers,
            finished: &mut self.finished,
            blocking: &self.blocking,
        };
        act(&mut *member.image, &mut cx);
        self.report_finished();
        true
    }

    fn report_finished(&mut self) {
        for (disk, io, outcome) in self.finished.drain(..) {
            report_end(&mut self.cx, &mut self.disks, disk, io, outcome);
        }
    }
}

/// Reports the end of a job to the shard.
#[inline(always)]
fn report_end(
    cx: &mut ThreadCx,
    disks: &mut [Option<AttachedDisk>],
    disk: DiskId,
    io: IoId,
    outcome: Outcome,
) {
    if blocks::is_block(io) {
        return report_block(cx, disks, disk, io, outcome);
    }
    let buffers = &cx.buffers;
    let sum = |data, len| buffers.sum(data, len as usize);
    cx.shard.ended(cx.now, disk, io, outcome, sum);
}

/// Reports the end of a block's job. Out of line, because its event is handled at once.
#[cold]
#[inline(never)]
fn report_block(
    cx: &mut ThreadCx,
    disks: &mut [Option<AttachedDisk>],
    disk: DiskId,
    io: IoId,
    outcome: Outcome,
) {
    let place = disks[disk.0 as usize].as_mut();
    let place = place.expect("a disk outlives its jobs");
    let event = place.blocks.end(&mut cx.buffers, io, outcome);
    cx.handle(event);
}

/// Aborts the process when it is dropped during a panic.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
