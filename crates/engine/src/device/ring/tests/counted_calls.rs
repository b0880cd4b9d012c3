//! Calls for completions, counted: a guest that sleeps until it is called, on a modelled SSD.
//!
//! The thread is a real one, run turn by turn in virtual time. So the counts are the same in each run.

use super::*;
use crate::datastore::emulated;
use crate::thread::stepped::SteppedThread;
use tidegate_core::coalesce::{Batch, Coalesce};
use tidegate_model::spec::{MemberSpec, Variation};
use tidegate_model::{Array, ArraySpec};

/// A read's data in the guest's memory.
const DATA: u64 = 0x6000;
/// A table of three descriptors.
const ENTRY: u16 = 48;
const INDIRECT: u64 = 4 << 32;
/// Sectors of a page, and of the disk.
const PAGE: u64 = 8;
const SECTORS: u64 = 65_536;

/// A turn of the thread, and how often it polls.
const TURN: Span = Span::from_micros(1);
/// The wake-up of a vCPU.
const WAKE: Span = Span::from_micros(8);
/// The guest's work for each completion and request.
const GUEST: Span = Span::from_nanos(500);
/// Virtual time of a run.
const LONG: Span = Span::from_millis(1_000);

/// A guest with an interrupt.
struct Sleeper {
    guest: Guest,
    avail: GuestArea,
    used: GuestArea,
    call: EventFd,
    /// When it runs next; none: it sleeps, and wants a call.
    wakes: Option<Time>,
    /// Its positions in both rings.
    submitted: u16,
    seen: u16,
    random: u64,
    completed: u64,
    calls: u64,
}

/// An NVMe SSD whose service times vary, so that completions come one by one.
fn ssd() -> Array {
    let mut spec = ArraySpec::named("nvme").expect("it is known");
    match &mut spec.member {
        MemberSpec::Ssd(ssd) => ssd.variation = Variation::Exponential,
        MemberSpec::Disk(_) => unreachable!("flash has no arm"),
    }
    Array::new(&spec, 1).expect("it is valid")
}

/// What was counted.
#[derive(Clone, Copy, Debug)]
struct Counted {
    completed: u64,
    calls: u64,
}

impl Counted {
    fn calls_per_completion(self) -> f64 {
        self.calls as f64 / self.completed as f64
    }
}

impl Sleeper {
    /// Runs a guest with so many requests outstanding.
    fn run(coalesce: Coalesce, depth: u16) -> Counted {
        let mut thread = SteppedThread::new(coalesce);
        let mut now = SteppedThread::BEGIN;
        let mut guest = Sleeper::attach(&mut thread, now);
        for head in 0..depth {
            guest.submit(head);
        }
        let ends = now + LONG;
        while now < ends {
            if guest.wakes.is_some_and(|at| at <= now) {
                guest.work(now);
            }
            let worked = thread.turn(now);
            guest.take_calls(now);
            let due = [thread.next_deadline(), guest.wakes];
            let next = match worked || thread.has_pending_calls() {
                true => None,
                false => due.into_iter().flatten().min(),
            };
            now = next.unwrap_or(now).max(now + TURN);
        }
        assert!(guest.completed > 0);
        Counted {
            completed: guest.completed,
            calls: guest.calls,
        }
    }

    fn attach(thread: &mut SteppedThread, now: Time) -> Sleeper {
        let image = emulated::open_on(ssd(), SECTORS * 512).expect("memory");
        let (opened, answer) = channel();
        thread.order(Command::Attach(Box::new(Attach {
            io: IoSettings::default(),
            disk: DISK,
            size: SECTORS * 512,
            read_only: false,
            stack: Stack::new(Vec::new()),
            sides: Vec::new(),
            images: vec![image],
            layout: None,
            notices: None,
            control: None,
            opened,
        })));
        thread.turn(now);
        let attached = answer.try_recv().expect("it is attached in one turn");
        attached.expect("it opens").expect("it has no layout");
        let guest = Guest::new();
        let heads = guest.area(0, 16 * usize::from(SIZE));
        for head in 0..SIZE / 2 {
            let place = TABLE + u64::from(ENTRY * head);
            describe(&heads, head, place, u64::from(ENTRY) | INDIRECT);
            let table = guest.area(place, ENTRY.into());
            let header = HEADER + 16 * u64::from(head);
            describe(&table, 0, header, 16 | 1 << 32 | 1 << 48);
            describe(&table, 1, DATA, 512 | 3 << 32 | 2 << 48);
            describe(&table, 2, STATUS + u64::from(head), 1 | 2 << 32);
        }
        let call = EventFd::new().expect("a descriptor");
        let facts = Arc::new(DeviceFacts::new(String::new(), String::new(), 8));
        let parts = Parts {
            call: Some(duplicate(&call)),
            ..guest.fresh(&facts)
        };
        let (reply, attached) = channel();
        thread.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
        thread.turn(now);
        attached.try_recv().expect("it is attached in one turn");
        let area = |at, entry| guest.area(at, 4 + entry * usize::from(SIZE));
        Sleeper {
            avail: area(AVAIL, 2),
            used: area(USED, 8),
            guest,
            call,
            wakes: None,
            submitted: 0,
            seen: 0,
            random: 1,
            completed: 0,
            calls: 0,
        }
    }

    /// Reads a random page.
    fn submit(&mut self, head: u16) {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let sector = (self.random >> 33) % SECTORS / PAGE * PAGE;
        let header = self.guest.area(HEADER + 16 * u64::from(head), 16);
        header.store_u64(8, sector);
        let entry = 4 + 2 * usize::from(self.submitted % SIZE);
        self.avail.store_u16(entry, head);
        self.submitted = self.submitted.wrapping_add(1);
        self.avail.store_u16(2, self.submitted);
    }

    /// Takes what was published and asks for as much. If there is nothing, it wants a call and sleeps.
    fn work(&mut self, now: Time) {
        let before = self.completed;
        while self.seen != self.used.load_u16(2) {
            let head = self.used.load_u16(4 + 8 * usize::from(self.seen % SIZE));
            self.seen = self.seen.wrapping_add(1);
            self.completed += 1;
            self.submit(head);
        }
        let took = self.completed - before;
        self.wakes = (took > 0).then(|| now + Span::from_nanos(GUEST.as_nanos() * took));
        self.avail.store_u16(0, u16::from(took > 0));
    }

    fn take_calls(&mut self, now: Time) {
        let calls = self.call.drain();
        self.calls += calls;
        if calls > 0 && self.wakes.is_none() {
            self.wakes = Some(now + WAKE);
            self.avail.store_u16(0, 1);
        }
    }
}

#[test]
fn adaptive_saves_a_fifth_of_the_calls_at_depth_32_and_changes_nothing_at_depth_1() {
    let batch = Batch::new(16, Span::from_micros(64)).expect("in range");
    let settings = [Coalesce::Off, Coalesce::Static(batch), Coalesce::Adaptive];
    for (depth, most_calls) in [(1, 1.0), (4, 1.0), (32, 0.8), (128, 0.8)] {
        let counted = settings.map(|coalesce| Sleeper::run(coalesce, depth));
        let [off, fixed, adaptive] = counted.map(Counted::calls_per_completion);
        // A call at the end may cover a completion that is not taken yet.
        assert!(adaptive <= most_calls * off + 0.001, "{depth}: {counted:?}");
        // At depth 1 each completion is the last one.
        let most_fixed = if depth == 1 { 1.0 } else { 0.6 };
        assert!(fixed <= most_fixed * off + 0.001, "{depth}: {counted:?}");
        let [without, _, with] = counted.map(|counted| counted.completed as f64);
        assert!(with >= 0.97 * without, "{depth}: {counted:?}");
        if depth == 1 {
            assert!(
                adaptive >= off - 0.001 && with >= 0.98 * without,
                "{counted:?}"
            );
        }
    }
}
