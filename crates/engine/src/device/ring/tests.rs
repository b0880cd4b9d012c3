//! A queue on a real I/O thread: commands at awkward moments of a restart.
//!
//! Orders of a test are put in the inbox while the thread is held, so that it finds them all in one turn.

use super::*;
use crate::counters::Statistics;
use crate::datastore::{Image, ImageCx, Job, OpenedImage, Progress, null};
use crate::sys::guest::{DirtyLog, GuestArea, Mmap, Region};
use crate::sys::os;
use crate::thread::commands::{Attach, AttachQueue, Change, QueueChange, Reply, StopQueue, What};
use crate::thread::commands::{Command, Inbox};
use crate::thread::layouts::LayoutParts;
use crate::thread::peers::Peers;
use crate::thread::{IoThread, ThreadConfig};
use std::sync::atomic::fence;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use tidegate_core::stack::Stack;
use tidegate_core::units::Span;
use tidegate_front::vhost::inflight::region_len;
use tidegate_front::vhost::queue::QueueConfig;
use tidegate_front::vhost::{Area, GuestMemory};

mod coalescing;
mod counted_calls;
mod dense;
mod fairness;
mod forwarded;
mod polling;
mod scattered;

/// How long a test waits before it fails: never reached unless something is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// Chains that the dead daemon had taken: more than a thread takes of one queue in three turns.
const CHAINS: u16 = 100;
/// Entries of the ring; each chain takes two.
const SIZE: u16 = 256;
const AVAIL: u64 = 16 * SIZE as u64;
const USED: u64 = 0x2000;
const HEADER: u64 = 0x4000;
const STATUS: u64 = 0x5000;
const TABLE: u64 = 0x8000;
/// Descriptors of the longest chain.
const LONGEST: u16 = 1024;
const READ: u64 = 0;
const FLUSH: u64 = 4;

const CONFIG: QueueConfig = QueueConfig {
    size: SIZE,
    desc: 0,
    avail: AVAIL,
    used: USED,
    base: 0,
    event_idx: false,
    indirect: true,
    log_used: None,
};

const DISK: DiskId = DiskId(0);
const OTHER: DiskId = DiskId(1);

/// What survives a daemon: the guest's memory, and the in-flight region of the front end.
struct Guest {
    memory: Mapping,
    account: Arc<Mmap>,
}

impl Guest {
    /// With empty memory.
    fn new() -> Guest {
        Guest::with_memory(0x1_0000)
    }

    /// With this much memory.
    fn with_memory(len: u64) -> Guest {
        let file = os::memory_file(c"guest", len).expect("memory");
        let region = Region::map(&file, 0, 0, 0, len).expect("a mapping");
        let memory = Mapping::empty().with(region).expect("one region");
        let len = region_len(SIZE);
        let file = os::memory_file(c"account", len as u64).expect("memory");
        let account = Arc::new(Mmap::file(&file, 0, len).expect("a mapping"));
        Guest { memory, account }
    }

    /// With [`CHAINS`] flushes available.
    fn with_flushes() -> Guest {
        let guest = Guest::new();
        guest.area(HEADER, 16).store_u64(0, FLUSH);
        let table = guest.area(0, 16 * usize::from(SIZE));
        let avail = guest.area(AVAIL, 4 + 2 * usize::from(SIZE));
        for chain in 0..CHAINS {
            let (first, second) = (2 * chain, 2 * chain + 1);
            let status = STATUS + u64::from(chain);
            describe(
                &table,
                first,
                HEADER,
                16 | 1 << 32 | u64::from(second) << 48,
            );
            describe(&table, second, status, 1 | 2 << 32);
            avail.store_u16(4 + 2 * usize::from(chain), first);
        }
        avail.store_u16(2, CHAINS);
        guest
    }

    /// The same, with all chains taken by a daemon that died.
    fn with_a_dead_daemon() -> Guest {
        Guest::with_flushes().left_behind()
    }

    /// With all available chains taken by a daemon that died.
    fn left_behind(self) -> Guest {
        let (mut dead, left) = self.queue();
        assert!(left.is_empty());
        let mut pieces = Vec::new();
        while let Some(taken) = dead.next(&self.memory, &mut pieces).expect("sound") {
            assert!(matches!(taken, Taken::Request(_)));
        }
        assert_eq!(dead.in_flight(), self.available());
        self
    }

    /// With `count` reads available, each in an indirect table of [`LONGEST`], whose last entry links to `end`.
    fn with_long_chains(count: u16, end: Option<u16>) -> Guest {
        let guest = Guest::new();
        guest.area(HEADER, 16).store_u64(0, READ);
        let entries = guest.area(TABLE, 16 * usize::from(LONGEST));
        describe(&entries, 0, HEADER, 16 | 1 << 32 | 1 << 48);
        for entry in 1..LONGEST - 1 {
            let next = u64::from(entry + 1) << 48;
            describe(&entries, entry, 0x6000, 512 | 3 << 32 | next);
        }
        let next = end.map_or(0, |end| 1 << 32 | u64::from(end) << 48);
        describe(&entries, LONGEST - 1, STATUS, 1 | 2 << 32 | next);
        let table = guest.area(0, 16 * usize::from(SIZE));
        let avail = guest.area(AVAIL, 4 + 2 * usize::from(SIZE));
        for head in 0..count {
            let len = 16 * u64::from(LONGEST);
            describe(&table, head, TABLE, len | (4 << 32));
            avail.store_u16(4 + 2 * usize::from(head), head);
        }
        avail.store_u16(2, count);
        guest
    }

    /// The parts that a daemon attaches for a guest that was never served.
    fn fresh(&self, facts: &Arc<DeviceFacts>) -> Parts {
        Parts {
            disk: DISK,
            number: 0,
            queue: Queue::new(&self.memory, CONFIG).expect("sound rings"),
            memory: self.memory.clone(),
            facts: Arc::clone(facts),
            standing: Standing::default(),
            kick: EventFd::new().expect("a descriptor"),
            call: None,
            error: None,
            left_behind: Vec::new(),
        }
    }

    fn area(&self, at: u64, len: usize) -> GuestArea {
        self.memory.area(at, len).expect("inside")
    }

    /// A new daemon's queue, and the heads that it finds in flight.
    fn queue(&self) -> (Queue<Mapping>, Vec<u16>) {
        let mut queue = Queue::new(&self.memory, CONFIG).expect("sound rings");
        let len = region_len(SIZE);
        let account = GuestArea::of_map(&self.account, 0, len).expect("inside");
        let left_behind = queue.track(account, len).expect("it fits");
        (queue, left_behind)
    }

    fn parts(&self) -> Parts {
        let (queue, left_behind) = self.queue();
        assert_eq!(left_behind.len(), usize::from(self.available()));
        let facts = DeviceFacts::new(String::new(), String::new(), 8);
        Parts {
            disk: DISK,
            number: 0,
            queue,
            memory: self.memory.clone(),
            facts: Arc::new(facts),
            standing: Standing::default(),
            kick: EventFd::new().expect("a descriptor"),
            call: None,
            error: None,
            left_behind,
        }
    }

    /// How many chains the guest has made available.
    fn available(&self) -> u16 {
        self.area(AVAIL, 4).load_u16(2)
    }

    /// How many chains the guest sees as used.
    fn used(&self) -> u16 {
        self.area(USED, 4).load_u16(2)
    }
}

fn describe(table: &GuestArea, index: u16, addr: u64, rest: u64) {
    let at = 16 * usize::from(index);
    table.store_u64(at, addr);
    table.store_u64(at + 8, rest);
}

/// A daemon's I/O thread with a disk that answers at once.
struct Daemon {
    inbox: Arc<Inbox>,
    thread: JoinHandle<()>,
}

impl Daemon {
    fn start() -> Daemon {
        Daemon::with(null::open(1 << 20).image)
    }

    /// With this image for the disk.
    fn with(image: Box<dyn Image + Send>) -> Daemon {
        Daemon::that_polls(Span::ZERO, image)
    }

    /// With this image for the disk, on a thread that polls at most this long before it sleeps.
    fn that_polls(poll: Span, image: Box<dyn Image + Send>) -> Daemon {
        let daemon = Daemon::empty(poll);
        for (disk, image) in [(DISK, image), (OTHER, null::open(1 << 20).image)] {
            let opened = OpenedImage {
                image,
                ..null::open(1 << 20)
            };
            daemon.attach(disk, 1 << 20, vec![opened], None);
        }
        daemon
    }

    /// Without disks.
    fn empty(poll: Span) -> Daemon {
        let config = ThreadConfig {
            coalesce: tidegate_core::coalesce::Coalesce::Adaptive,
            poll,
            always_poll: false,
            cpu: None,
            signals: Arc::default(),
        };
        let peers = Arc::new(Peers::new(1).expect("a descriptor"));
        let inbox = Arc::clone(peers.inbox(0));
        let page = Statistics::default().add_thread();
        let started = IoThread::start(peers, 0, config, page);
        let thread = started.expect("the thread starts");
        Daemon { inbox, thread }
    }

    fn attach(
        &self,
        disk: DiskId,
        size: u64,
        images: Vec<OpenedImage>,
        layout: Option<LayoutParts>,
    ) {
        let (opened, answer) = channel();
        self.order(Command::Attach(Box::new(Attach {
            io: IoSettings::default(),
            disk,
            size,
            read_only: false,
            stack: Stack::new(Vec::new()),
            sides: Vec::new(),
            images,
            layout,
            notices: None,
            control: None,
            opened,
        })));
        let opened = received(&answer).expect("the disk attaches");
        opened.expect("its layout opens");
    }

    fn order(&self, order: Command) {
        self.inbox.send_always(order);
    }

    /// Sends `orders` such that the thread finds all of them in one turn.
    fn order_at_once(&self, orders: impl FnOnce()) {
        let (entered, inside) = channel();
        let (open, gate) = channel::<()>();
        self.order(Command::Run(Box::new(move |_| {
            let _ = entered.send(());
            let _ = gate.recv();
        })));
        received(&inside);
        orders();
        drop(open);
    }

    fn stop(self) {
        self.order(Command::Stop);
        self.thread.join().expect("it ends without a panic");
    }
}

fn detach(disk: DiskId, on_detached: Box<dyn FnOnce() + Send>, reply: Reply) -> Command {
    let what = What::Detach { on_detached };
    Command::Change(Box::new(Change { disk, what, reply }))
}

fn attach_queue(guest: &Guest) -> (Command, Receiver<u32>) {
    let (reply, answer) = channel();
    let parts = guest.parts();
    (
        Command::AttachQueue(Box::new(AttachQueue { parts, reply })),
        answer,
    )
}

/// Stops the first queue; its position is returned.
fn stop_queue() -> (Command, Receiver<u16>) {
    let (reply, position) = channel();
    let (queue, what) = (0, QueueChange::Stop(reply));
    let disk = DISK;
    (
        Command::StopQueue(StopQueue { disk, queue, what }),
        position,
    )
}

fn received<T>(answer: &Receiver<T>) -> T {
    answer.recv_timeout(PATIENCE).expect("the thread answers")
}

#[test]
fn a_queue_stopped_at_its_start_first_answers_all_that_a_dead_daemon_left_behind() {
    let guest = Guest::with_a_dead_daemon();
    let daemon = Daemon::start();
    let (attach, number) = attach_queue(&guest);
    let (stop, position) = stop_queue();
    daemon.order_at_once(|| {
        daemon.order(attach);
        daemon.order(stop);
    });
    assert_eq!(received(&number), 0);
    assert_eq!(received(&position), CHAINS);
    assert_eq!(guest.used(), CHAINS, "no chain before the position is lost");
    assert!(guest.queue().1.is_empty(), "nothing is left in flight");
    daemon.stop();
}

#[test]
fn a_stopping_queue_takes_no_new_requests() {
    let guest = Guest::with_a_dead_daemon();
    let daemon = Daemon::start();
    let (attach, _number) = attach_queue(&guest);
    let (stop, position) = stop_queue();
    // One more chain, for the successor.
    let avail = guest.area(AVAIL, 4 + 2 * usize::from(SIZE));
    avail.store_u16(4 + 2 * usize::from(CHAINS), 2 * CHAINS);
    avail.store_u16(2, CHAINS + 1);
    daemon.order_at_once(|| {
        daemon.order(attach);
        daemon.order(stop);
    });
    assert_eq!(received(&position), CHAINS);
    assert_eq!(guest.used(), CHAINS);
    daemon.stop();
}

#[test]
fn a_detach_leaves_untaken_requests_to_a_successor_and_does_not_wait_for_them() {
    for stop_first in [true, false] {
        let guest = Guest::with_a_dead_daemon();
        let daemon = Daemon::start();
        let (attach, _number) = attach_queue(&guest);
        let (stop, position) = stop_queue();
        let (reply, detached) = channel();
        let detach = detach(DISK, Box::new(|| {}), reply);
        daemon.order_at_once(|| {
            daemon.order(attach);
            let [first, second] = if stop_first {
                [stop, detach]
            } else {
                [detach, stop]
            };
            daemon.order(first);
            daemon.order(second);
        });
        assert_eq!(received(&position), CHAINS);
        received(&detached).expect("the disk detaches");
        assert_eq!(guest.used(), 0);
        assert_eq!(guest.queue().1.len(), usize::from(CHAINS));
        daemon.stop();
    }
}

/// The parts of a guest whose requests are all answered, with this call descriptor.
fn answered(guest: &Guest, used: u16, call: EventFd) -> Parts {
    let old = guest.parts();
    // Nothing is in flight: every available request was answered.
    guest.area(AVAIL, 4).store_u16(2, used);
    guest.area(USED, 4).store_u16(2, used);
    let config = QueueConfig {
        base: used,
        ..CONFIG
    };
    Parts {
        queue: Queue::new(&guest.memory, config).expect("sound rings"),
        call: Some(call),
        left_behind: Vec::new(),
        ..old
    }
}

/// Another descriptor of the same counter.
fn duplicate(counter: &EventFd) -> EventFd {
    EventFd::from_file(counter.to_file().expect("another descriptor"))
}

#[test]
fn a_guest_whose_daemon_died_before_the_call_is_called() {
    for used in [0, 5] {
        let guest = Guest::with_a_dead_daemon();
        let call = EventFd::new().expect("a descriptor");
        let parts = answered(&guest, used, duplicate(&call));
        let daemon = Daemon::start();
        let (reply, number) = channel();
        daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
        received(&number);
        assert_eq!(call.drain(), u64::from(used > 0), "{used} were used");
        daemon.stop();
    }
}

#[test]
fn a_blocking_call_descriptor_delays_the_thread_once_and_is_not_used_again() {
    let full = || EventFd::blocking_and_full().expect("a descriptor");
    let daemon = Daemon::start();
    let attach = |parts| {
        let (reply, number) = channel();
        daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
        received(&number)
    };
    let (guest, full_call) = (Guest::with_a_dead_daemon(), full());
    let parts = answered(&guest, 5, duplicate(&full_call));
    let (facts, standing) = (Arc::clone(&parts.facts), parts.standing.clone());
    let queue = attach(parts);
    assert!(standing.is_shunned());
    assert_eq!(facts.broken.load(Ordering::Relaxed), 1);
    assert_eq!(full_call.drain(), u64::MAX - 1, "nothing could be added");

    // The guest is called neither through a new descriptor nor by another queue, although both would work.
    let call = EventFd::new().expect("a descriptor");
    daemon.order(Command::StopQueue(StopQueue {
        disk: DISK,
        queue,
        what: QueueChange::Call(Some(duplicate(&call)), channel().0),
    }));
    let (second, other) = (Guest::with_a_dead_daemon(), EventFd::new());
    let other = other.expect("a descriptor");
    attach(Parts {
        standing,
        ..answered(&second, 5, duplicate(&other))
    });
    assert_eq!((call.drain(), other.drain()), (0, 0));

    // The guest of another front end is called.
    let (third, call) = (Guest::with_a_dead_daemon(), EventFd::new());
    let call = call.expect("a descriptor");
    attach(answered(&third, 5, duplicate(&call)));
    assert_eq!(call.drain(), 1);
    daemon.stop();
}

#[test]
fn get_id_writes_and_marks_only_the_length_of_the_name() {
    const GET_ID: u64 = 8;
    const ROOM: u64 = 0x8000;
    const PAGES: u64 = 4;
    let mut guest = Guest::with_a_dead_daemon();
    let file = os::memory_file(c"log", 4096).expect("memory");
    let log = DirtyLog::map(&file, 0, 4096).expect("a mapping");
    guest.memory = guest.memory.logging(Some(Arc::new(log)));
    let head = 2 * CHAINS;
    let table = guest.area(0, 16 * usize::from(SIZE));
    let (next, writes) = (1 << 32, 2 << 32);
    let then = |index: u16| u64::from(index) << 48;
    guest.area(HEADER, 32).store_u64(16, GET_ID);
    describe(&table, head, HEADER + 16, 16 | next | then(head + 1));
    let room = (PAGES * 4096) | next | writes | then(head + 2);
    describe(&table, head + 1, ROOM, room);
    describe(&table, head + 2, STATUS, 1 | writes);
    let call = EventFd::new().expect("a descriptor");
    let parts = answered(&guest, CHAINS, call);
    let avail = guest.area(AVAIL, 4 + 2 * usize::from(SIZE));
    avail.store_u16(4 + 2 * usize::from(CHAINS), head);
    avail.store_u16(2, CHAINS + 1);
    guest.area(ROOM, 64).store_u64(24, u64::MAX);

    let daemon = Daemon::start();
    let (reply, number) = channel();
    daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
    received(&number);
    let deadline = std::time::Instant::now() + PATIENCE;
    while guest.used() <= CHAINS {
        assert!(std::time::Instant::now() < deadline, "it is not answered");
        std::thread::yield_now();
    }
    daemon.stop();
    assert_eq!(guest.area(ROOM, 64).load_u64(24), u64::MAX);
    let mut pages = [0; 2];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut pages, 0).expect("the log");
    assert_eq!(pages[1], 1, "only the first page of the buffer was written");
}

#[test]
fn malformed_rings_are_logged_once_a_minute() {
    let limit = malformed::LogLimit::default();
    let reported = (0..600_u64).filter(|tenth| {
        let now = Time::ZERO + Span::from_millis(100 * tenth);
        limit.allows(now)
    });
    assert_eq!(reported.count(), 1);
    assert!(limit.allows(Time::ZERO + Span::from_secs(60)));
}

/// Attaches a queue with this index over a guest's ring; its faults are recorded in `facts`.
fn attach_numbered(daemon: &Daemon, guest: &Guest, number: u16, facts: &Arc<DeviceFacts>) {
    let (reply, attached) = channel();
    let parts = Parts {
        number,
        ..guest.fresh(facts)
    };
    daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
    received(&attached);
}

#[test]
fn the_last_faults_are_stored_with_queue_and_time() {
    let facts = Arc::new(DeviceFacts::new(String::new(), String::new(), 8));
    let short = Guest::new();
    // One chain of one descriptor, too short for a header.
    describe(&short.area(0, 16), 0, STATUS, 1 | 2 << 32);
    short.area(AVAIL, 4).store_u16(2, 1);
    let jumps = Guest::new();
    jumps.area(AVAIL, 4).store_u16(2, 2 * SIZE);
    let daemon = Daemon::start();
    let begun = os::now();
    attach_numbered(&daemon, &short, 3, &facts);
    eventually("the request is answered", || short.used() == 1);
    attach_numbered(&daemon, &jumps, 5, &facts);
    eventually("the queue is stopped", || {
        facts.broken.load(Ordering::Relaxed) == 1
    });
    daemon.stop();
    let faults = facts.faults();
    let reported: Vec<_> = faults
        .iter()
        .map(|fault| (fault.queue, fault.stops_queue(), fault.what()))
        .collect();
    let jump = "the available index 512 is further ahead of 0 than the ring is long";
    let header = "the request has no header, or no byte for its status";
    assert_eq!(
        reported,
        [(5, true, jump.to_owned()), (3, false, header.to_owned())]
    );
    assert!(begun <= faults[1].at && faults[1].at <= faults[0].at);
    assert_eq!(facts.nonsense.load(Ordering::Relaxed), 1);
}

fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !so() {
        assert!(
            std::time::Instant::now() < deadline,
            "timed out waiting until {what}"
        );
        std::thread::yield_now();
    }
}

/// Completes each job at once, and reports how many completions the other guests had by then.
struct CountingImage {
    others: Vec<GuestArea>,
    report: Sender<u16>,
}

impl Image for CountingImage {
    fn start(&mut self, _cx: &mut ImageCx<'_>, _job: Job) -> Progress {
        let used = self.others.iter().map(|used| used.load_u16(2)).sum();
        self.report.send(used).expect("the test waits");
        Progress::Done(Ok(()))
    }

    fn is_idle(&self) -> bool {
        true
    }
}

#[test]
fn long_chains_are_answered_one_per_turn_and_others_between_them() {
    /// Requests that are taken from a queue in one turn.
    const PER_TURN: u16 = 32;
    /// Long chains of a round: a quantum of 50 us for each queue, at 10 us for each chain, and one that exceeds it.
    const PER_ROUND: u16 = 3 * 6;
    let endless = [(); 3].map(|()| Guest::with_long_chains(CHAINS, Some(1)));
    let other = Guest::with_flushes();
    let (report, answered) = channel();
    let others = endless.iter().map(|guest| guest.area(USED, 4)).collect();
    let daemon = Daemon::with(Box::new(CountingImage { others, report }));
    let [bad, good] = [(); 2].map(|()| Arc::new(DeviceFacts::new(String::new(), String::new(), 8)));
    let (attach, numbers): (Vec<Command>, Vec<Receiver<u32>>) = endless
        .iter()
        .map(|guest| guest.fresh(&bad))
        .chain([other.fresh(&good)])
        .map(|parts| {
            let (reply, number) = channel();
            let attach = Command::AttachQueue(Box::new(AttachQueue { parts, reply }));
            (attach, number)
        })
        .unzip();
    daemon.order_at_once(|| attach.into_iter().for_each(|order| daemon.order(order)));
    for number in &numbers {
        received(number);
    }
    let mut last = 1;
    for request in 0..CHAINS {
        let before = received(&answered);
        let most = if request < PER_TURN {
            1
        } else {
            last + PER_ROUND
        };
        assert!(before <= most, "{before} after {last}");
        last = before;
    }
    eventually("all are answered", || {
        endless.iter().all(|guest| guest.used() == CHAINS)
    });
    assert_eq!(other.used(), CHAINS);
    assert_eq!(bad.nonsense.load(Ordering::Relaxed), 3 * u64::from(CHAINS));
    daemon.stop();
}

/// Completes all its jobs together once no more arrive for a while, and reports how many they were.
struct BatchingImage {
    jobs: Vec<Job>,
    quiet_time: Span,
    due: Option<Time>,
    report: Sender<usize>,
}

impl BatchingImage {
    fn new(quiet_time: Span, report: Sender<usize>) -> Box<BatchingImage> {
        Box::new(BatchingImage {
            jobs: Vec::new(),
            quiet_time,
            due: None,
            report,
        })
    }
}

impl Image for BatchingImage {
    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        self.jobs.push(job);
        self.due = Some(cx.now + self.quiet_time);
        Progress::Pending
    }

    fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    fn deadline(&self) -> Option<Time> {
        self.due
    }

    fn tick(&mut self, cx: &mut ImageCx<'_>) {
        self.due = None;
        self.report.send(self.jobs.len()).expect("the test waits");
        for job in self.jobs.drain(..) {
            cx.finish(job.io, Ok(()));
        }
    }
}

/// Requests of [`LONGEST`] descriptors, each with as many pieces: more than may be in flight at once.
const MANY: u16 = 200;

/// A daemon that has completed [`MANY`] such requests, attached by `serve`. Checks that those in flight never exceed
/// the limit.
fn serve_in_batches(serve: impl FnOnce(&Daemon)) -> Daemon {
    let (report, batches) = channel();
    let daemon = Daemon::with(BatchingImage::new(Span::from_millis(20), report));
    serve(&daemon);
    let mut all = 0;
    while all < usize::from(MANY) {
        let batch = received(&batches);
        let room = batch * usize::from(LONGEST);
        assert!(room <= MOST_ROOM, "{batch} in flight");
        all += batch;
    }
    daemon
}

#[test]
fn requests_with_many_pieces_wait_while_those_in_flight_use_the_memory_limit() {
    let guest = Guest::with_long_chains(MANY, None);
    let facts = Arc::new(DeviceFacts::new(String::new(), String::new(), 8));
    let (reply, number) = channel();
    let parts = guest.fresh(&facts);
    let daemon = serve_in_batches(|daemon| {
        daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
        received(&number);
    });
    eventually("all are answered", || guest.used() == MANY);
    daemon.stop();
}

#[test]
fn requests_of_all_queues_of_a_device_wait_while_those_in_flight_use_the_memory_limit() {
    const QUEUES: usize = 8;
    let (report, batches) = channel();
    let daemon = Daemon::with(BatchingImage::new(Span::from_millis(100), report));
    let facts = Arc::new(DeviceFacts::new(String::new(), String::new(), 8));
    let guests = [(); QUEUES].map(|()| Guest::with_long_chains(MANY, None));
    let (attach, numbers): (Vec<Command>, Vec<Receiver<u32>>) = guests
        .iter()
        .map(|guest| {
            let (parts, (reply, number)) = (guest.fresh(&facts), channel());
            let attach = Command::AttachQueue(Box::new(AttachQueue { parts, reply }));
            (attach, number)
        })
        .unzip();
    daemon.order_at_once(|| attach.into_iter().for_each(|order| daemon.order(order)));
    for number in &numbers {
        received(number);
    }
    let (mut all, mut most) = (0, 0);
    while all < QUEUES * usize::from(MANY) {
        let batch = received(&batches);
        most = most.max(batch);
        all += batch;
    }
    // A queue with nothing in flight has one request taken regardless.
    let room = (most - QUEUES) * usize::from(LONGEST);
    assert!(room <= MOST_ROOM_OF_DEVICE, "{most} in flight");
    assert!(most * usize::from(LONGEST) > MOST_ROOM, "{most} in flight");
    eventually("all are answered", || {
        guests.iter().all(|guest| guest.used() == MANY)
    });
    assert_eq!(facts.room.load(Ordering::Relaxed), 0);
    daemon.stop();
}

#[test]
fn a_stopping_queue_answers_all_that_a_dead_daemon_left_behind_within_the_memory_limit() {
    let guest = Guest::with_long_chains(MANY, None).left_behind();
    let (attach, _number) = attach_queue(&guest);
    let (stop, position) = stop_queue();
    let daemon = serve_in_batches(|daemon| {
        daemon.order_at_once(|| {
            daemon.order(attach);
            daemon.order(stop);
        });
    });
    assert_eq!(received(&position), MANY);
    assert_eq!(guest.used(), MANY);
    daemon.stop();
}

#[test]
fn a_queue_stops_when_a_page_of_its_memory_is_missing() {
    const CUT: u64 = 0x10_0000;
    let mut guest = Guest::with_a_dead_daemon();
    let file = os::memory_file(c"cut", 4096).expect("memory");
    let region = Region::map(&file, CUT, CUT, 0, 4096).expect("a mapping");
    guest.memory = guest.memory.with(region).expect("one region more");
    let parts = guest.parts();
    let facts = Arc::clone(&parts.facts);
    file.set_len(0).expect("cut");
    assert_eq!(guest.area(CUT, 2).load_u16(0), 0);
    let daemon = Daemon::start();
    let (reply, number) = channel();
    let (stop, position) = stop_queue();
    daemon.order_at_once(|| {
        daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
        daemon.order(stop);
    });
    received(&number);
    received(&position);
    assert_eq!(facts.broken.load(Ordering::Relaxed), 1);
    assert_eq!(
        guest.used(),
        0,
        "none of the hundred chains was taken again"
    );
    daemon.stop();
}
