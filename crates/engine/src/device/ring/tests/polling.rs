//! Polling of a queue whose thread was woken by its datastore.

use super::*;
use crate::sys::ring::Completion;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use tidegate_core::request::IoId;

/// Leaves its first job unanswered until the other end of the socket is closed, as a slow datastore does. It completes later
/// ones at once.
struct HeldImage {
    socket: UnixStream,
    report: Sender<()>,
    is_first: bool,
    held: Option<IoId>,
}

impl HeldImage {
    /// The image, the end to close, and what reports that the first job has arrived.
    fn new() -> (Box<HeldImage>, UnixStream, Receiver<()>) {
        let (socket, other) = UnixStream::pair().expect("sockets");
        let (report, arrived) = channel();
        let image = HeldImage {
            socket,
            report,
            is_first: true,
            held: None,
        };
        (Box::new(image), other, arrived)
    }
}

impl Image for HeldImage {
    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        if !std::mem::take(&mut self.is_first) {
            return Progress::Done(Ok(()));
        }
        self.held = Some(job.io);
        let tag = cx.tag(0);
        cx.ring.watch_other_end(self.socket.as_raw_fd(), false, tag);
        self.report.send(()).expect("the test waits");
        Progress::Pending
    }

    fn completed(&mut self, cx: &mut ImageCx<'_>, _completion: Completion) {
        let held = self.held.take().expect("it was started");
        cx.finish(held, Ok(()));
    }

    fn is_idle(&self) -> bool {
        self.held.is_none()
    }
}

#[test]
fn a_thread_woken_by_its_datastore_polls_without_kicks() {
    /// The thread polls for a quarter of it: so it polls until a request comes, however long the test is delayed.
    const POLL: Span = Span::from_secs(4 * 3600);
    for event_idx in [false, true] {
        let guest = Guest::with_flushes();
        let avail = guest.area(AVAIL, 4 + 2 * usize::from(SIZE));
        avail.store_u16(2, 0);
        let notifications = guest.area(USED, 4 + 8 * usize::from(SIZE) + 2);
        let kick = EventFd::new().expect("a descriptor");
        let config = QueueConfig {
            event_idx,
            ..CONFIG
        };
        let facts = Arc::new(DeviceFacts::new(String::new(), String::new(), 8));
        let parts = Parts {
            queue: Queue::new(&guest.memory, config).expect("sound rings"),
            kick: duplicate(&kick),
            ..guest.fresh(&facts)
        };
        let (image, held, arrived) = HeldImage::new();
        let daemon = Daemon::that_polls(POLL, image);
        let (reply, number) = channel();
        daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
        received(&number);
        // So it sleeps until the disk answers, and polls for the guest afterwards.
        daemon.order(Command::Run(Box::new(IoThread::expect_slow_datastores)));

        let wants_kick = |request| match event_idx {
            true => notifications.load_u16(4 + 8 * usize::from(SIZE)) == request,
            false => notifications.load_u16(0) & 1 == 0,
        };
        let submit = |request: u16| {
            let place = usize::from(request % SIZE);
            avail.store_u16(4 + 2 * place, 2 * (request % CHAINS));
            avail.store_u16(2, request + 1);
            fence(Ordering::SeqCst);
        };
        eventually("it asks for kicks before the first request", || {
            wants_kick(0)
        });
        submit(0);
        kick.signal();
        received(&arrived);
        eventually("it sleeps while the disk has the request", || wants_kick(1));
        assert_eq!(guest.used(), 0);
        drop(held);
        eventually("the disk's answer wakes it", || guest.used() == 1);
        eventually("it polls again", || !wants_kick(1));
        submit(1);
        eventually("a request is seen without a kick", || guest.used() == 2);
        daemon.stop();
    }
}
