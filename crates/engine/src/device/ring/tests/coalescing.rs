//! Calls of a guest whose completions are coalesced, on a real I/O thread.

use super::*;
use std::sync::atomic::AtomicUsize;
use tidegate_core::coalesce::{Batch, Coalesce};

/// A read's data in the guest's memory.
const DATA: u64 = 0x6000;
/// How often the image looks whether it may complete jobs.
const STEP: Span = Span::from_micros(200);

/// Completes the oldest jobs when the test lets it, each with this outcome.
struct GatedImage {
    jobs: VecDeque<Job>,
    due: Option<Time>,
    open: Arc<AtomicUsize>,
    outcome: Outcome,
}

impl Image for GatedImage {
    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        self.jobs.push_back(job);
        self.due = Some(cx.now + STEP);
        Progress::Pending
    }

    fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    fn deadline(&self) -> Option<Time> {
        self.due
    }

    fn tick(&mut self, cx: &mut ImageCx<'_>) {
        for _ in 0..self.open.swap(0, Ordering::SeqCst) {
            if let Some(job) = self.jobs.pop_front() {
                cx.finish(job.io, self.outcome);
            }
        }
        self.due = (!self.jobs.is_empty()).then(|| cx.now + STEP);
    }
}

/// A guest with reads to submit, that counts its calls.
struct Reader {
    guest: Guest,
    kick: EventFd,
    call: EventFd,
    calls: u64,
}

impl Reader {
    /// Attached to the first disk, with completions coalesced by number and time.
    fn attach(daemon: &Daemon, frames: u32, time: Span) -> Reader {
        let batch = Batch::new(frames, time).expect("in range");
        daemon.order(Command::DefaultCoalesce(Coalesce::Static(batch)));
        let guest = Guest::new();
        guest.area(HEADER, 16).store_u64(0, READ);
        let table = guest.area(0, 16 * usize::from(SIZE));
        let avail = guest.area(AVAIL, 4 + 2 * usize::from(SIZE));
        for chain in 0..SIZE / 4 {
            let first = 3 * chain;
            let next = |index: u16| u64::from(first + index) << 48;
            describe(&table, first, HEADER, 16 | 1 << 32 | next(1));
            describe(&table, first + 1, DATA, 512 | 3 << 32 | next(2));
            describe(&table, first + 2, STATUS + u64::from(chain), 1 | 2 << 32);
            avail.store_u16(4 + 2 * usize::from(chain), first);
        }
        let [kick, call] = [(); 2].map(|()| EventFd::new().expect("a descriptor"));
        let facts = Arc::new(DeviceFacts::new(String::new(), String::new(), 8));
        let parts = Parts {
            kick: duplicate(&kick),
            call: Some(duplicate(&call)),
            ..guest.fresh(&facts)
        };
        let (reply, attached) = channel();
        daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
        received(&attached);
        Reader {
            guest,
            kick,
            call,
            calls: 0,
        }
    }

    /// Makes so many requests available in all.
    fn submit(&self, count: u16) {
        let avail = self.guest.area(AVAIL, 4 + 2 * usize::from(SIZE));
        avail.store_u16(2, count);
        fence(Ordering::SeqCst);
        self.kick.signal();
    }

    /// Waits until it has had so many calls in all.
    fn wait_for_calls(&mut self, calls: u64) {
        eventually("a call", || {
            self.calls += self.call.drain();
            self.calls >= calls
        });
        assert_eq!(self.calls, calls);
    }
}

fn gated(outcome: Outcome) -> (Daemon, Arc<AtomicUsize>) {
    let open = Arc::new(AtomicUsize::new(0));
    let image = GatedImage {
        jobs: VecDeque::new(),
        due: None,
        open: Arc::clone(&open),
        outcome,
    };
    (Daemon::with(Box::new(image)), open)
}

#[test]
fn a_call_is_held_for_its_number_its_time_or_the_last_completion() {
    let (daemon, open) = gated(Ok(()));
    let mut reader = Reader::attach(&daemon, 4, Batch::MOST_TIME);
    reader.submit(9);
    // Others are in flight, and never complete unless the test says so: the time ends the wait.
    open.store(1, Ordering::SeqCst);
    eventually("a completion", || reader.guest.used() == 1);
    reader.wait_for_calls(1);
    // Four together, then four that end the queue. No time passes that the guest would have to wait for.
    for (used, calls) in [(5, 2), (9, 3)] {
        open.store(4, Ordering::SeqCst);
        eventually("completions", || reader.guest.used() == used);
        reader.wait_for_calls(calls);
    }
    daemon.stop();
}

#[test]
fn errors_and_a_thread_that_ends_do_not_wait() {
    let (daemon, open) = gated(Err(Fault::Io));
    let mut reader = Reader::attach(&daemon, 1024, Batch::MOST_TIME);
    reader.submit(3);
    open.store(1, Ordering::SeqCst);
    reader.wait_for_calls(1);
    open.store(1, Ordering::SeqCst);
    reader.wait_for_calls(2);
    open.store(1, Ordering::SeqCst);
    reader.wait_for_calls(3);
    assert_eq!(reader.guest.used(), 3);
    daemon.stop();
}

#[test]
fn a_guest_with_one_request_at_a_time_waits_for_no_timer() {
    const REQUESTS: u16 = 64;
    let daemon = Daemon::start();
    let mut reader = Reader::attach(&daemon, 1024, Batch::MOST_TIME);
    let quickest = (1..=REQUESTS).map(|request| {
        let begun = os::now();
        reader.submit(request);
        reader.wait_for_calls(request.into());
        assert_eq!(reader.guest.used(), request);
        os::now().since(begun)
    });
    // Each would take as long if it waited.
    assert!(quickest.min() < Some(Batch::MOST_TIME));
    daemon.stop();
}
