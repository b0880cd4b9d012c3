//! A guest with one request at a time beside 63 that always have more, on one I/O thread.
//!
//! What it waits is counted in turns of the thread and in requests of the others, not in time.

use super::*;
use std::sync::Mutex;

/// Requests that each deep queue has waiting.
const DEEP: u16 = 64;
const QUEUES: u16 = 63;
/// Requests of the shallow queue, and of the others between two of them.
const ROUNDS: u32 = 100;
const BETWEEN: u64 = 777;

/// What both disks' images know. Only the I/O thread uses it, so the lock is free.
#[derive(Default)]
struct Shared {
    deep: u64,
    turns: u64,
    turn: Time,
    /// When the shallow queue got its request: the counts above.
    asked: Option<(u64, u64)>,
    next: u64,
}

impl Shared {
    fn note_turn(&mut self, now: Time) {
        if self.turn != now {
            self.turn = now;
            self.turns += 1;
        }
    }
}

/// The disk of the deep queues: it answers at once, and gives each queue more.
struct DeepImage {
    shared: Arc<Mutex<Shared>>,
    queues: Vec<(GuestArea, GuestArea)>,
    shallow: GuestArea,
    kick: EventFd,
}

impl Image for DeepImage {
    fn start(&mut self, cx: &mut ImageCx<'_>, _job: Job) -> Progress {
        let mut shared = self.shared.lock().expect("no test panicked with it");
        shared.note_turn(cx.now);
        shared.deep += 1;
        for (avail, used) in &self.queues {
            avail.store_u16(2, used.load_u16(2).wrapping_add(DEEP));
        }
        if shared.asked.is_none() && shared.deep >= shared.next {
            shared.asked = Some((shared.deep, shared.turns));
            self.shallow.store_u16(2, self.shallow.load_u16(2) + 1);
            self.kick.signal();
        }
        Progress::Done(Ok(()))
    }

    fn is_idle(&self) -> bool {
        true
    }
}

/// The disk of the shallow queue: it reports how many turns, and requests of the others, a request waited for.
struct ShallowImage {
    shared: Arc<Mutex<Shared>>,
    report: Sender<(u64, u64)>,
}

impl Image for ShallowImage {
    fn start(&mut self, cx: &mut ImageCx<'_>, _job: Job) -> Progress {
        let mut shared = self.shared.lock().expect("no test panicked with it");
        shared.note_turn(cx.now);
        if let Some((deep, turns)) = shared.asked.take() {
            let waited = (shared.turns - turns, shared.deep - deep);
            shared.next = shared.deep + BETWEEN;
            // The test may have seen enough.
            let _ = self.report.send(waited);
        }
        Progress::Done(Ok(()))
    }

    fn is_idle(&self) -> bool {
        true
    }
}

/// With one flush after the other: entry by entry of the ring, the same [`DEEP`] chains again.
fn endless() -> Guest {
    let guest = Guest::with_flushes();
    let avail = guest.area(AVAIL, 4 + 2 * usize::from(SIZE));
    for entry in 0..SIZE {
        avail.store_u16(4 + 2 * usize::from(entry), 2 * (entry % DEEP));
    }
    avail.store_u16(2, DEEP);
    guest
}

#[test]
fn a_guest_with_one_request_at_a_time_waits_for_a_turn_beside_63_deep_ones() {
    let deep: Vec<Guest> = (0..QUEUES).map(|_| endless()).collect();
    let shallow = Guest::with_flushes();
    let avail = shallow.area(AVAIL, 4 + 2 * usize::from(SIZE));
    avail.store_u16(2, 0);
    let kick = EventFd::new().expect("a descriptor");
    let shared = Arc::new(Mutex::new(Shared {
        // Not before all are attached.
        next: u64::MAX,
        ..Shared::default()
    }));
    let (report, waits) = channel();
    let area = |guest: &Guest, at| guest.area(at, 4 + 2 * usize::from(SIZE));
    let deep_image = DeepImage {
        shared: Arc::clone(&shared),
        queues: deep
            .iter()
            .map(|guest| (area(guest, AVAIL), area(guest, USED)))
            .collect(),
        shallow: area(&shallow, AVAIL),
        kick: duplicate(&kick),
    };
    let daemon = Daemon::empty(Span::ZERO);
    let images: [Box<dyn Image + Send>; 2] = [
        Box::new(deep_image),
        Box::new(ShallowImage {
            shared: Arc::clone(&shared),
            report,
        }),
    ];
    for (disk, image) in [DISK, OTHER].into_iter().zip(images) {
        let opened = OpenedImage {
            image,
            ..null::open(1 << 20)
        };
        daemon.attach(disk, 1 << 20, vec![opened], None);
    }
    let facts = Arc::new(DeviceFacts::new(String::new(), String::new(), QUEUES));
    for (number, guest) in (0..).zip(&deep) {
        attach_numbered(&daemon, guest, number, &facts);
    }
    let (reply, attached) = channel();
    let parts = Parts {
        disk: OTHER,
        kick: duplicate(&kick),
        ..shallow.fresh(&Arc::new(DeviceFacts::new(String::new(), String::new(), 8)))
    };
    daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
    received(&attached);
    shared.lock().expect("no test panicked with it").next = 0;
    let (mut most_turns, mut most_deep) = (0, 0);
    for _ in 0..ROUNDS {
        let (turns, deep) = received(&waits);
        most_turns = most_turns.max(turns);
        most_deep = most_deep.max(deep);
    }
    // The rest of the turn in which it came, and its own. Where it was not polled any more, its kick is read first.
    assert!(most_turns <= 2, "it waited for {most_turns} turns");
    // A turn takes 50 us of requests, at 100 ns at least, and not 32 of each queue.
    assert!(
        most_deep <= 500 + u64::from(QUEUES),
        "it waited for {most_deep} requests"
    );
    daemon.stop();
}
