//! Dense mode: kicks for batches, a scan at intervals, and kicks again when a queue is quiet.

use super::*;
use crate::disk_spec::DenseSettings;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::round_robin::{IoClass, Share};

/// A guest with flushes that a thread serves, and the words by which each asks the other to be told.
struct Watched {
    guest: Guest,
    daemon: Daemon,
    kick: EventFd,
    event_idx: bool,
    submitted: u16,
}

impl Watched {
    fn new(event_idx: bool) -> Watched {
        let guest = Guest::with_flushes();
        guest.area(AVAIL, 4).store_u16(2, 0);
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
        let daemon = Daemon::start();
        let (reply, number) = channel();
        daemon.order(Command::AttachQueue(Box::new(AttachQueue { parts, reply })));
        received(&number);
        Watched {
            guest,
            daemon,
            kick,
            event_idx,
            submitted: 0,
        }
    }

    fn set_dense(&self, on: bool) {
        let dense = on.then_some(DenseSettings { hold_last: false });
        self.daemon.order(Command::Dense(dense));
    }

    /// The request for which the guest is to kick next. Without event-idx that is any one, or none.
    fn kick_at(&self) -> Option<u16> {
        if self.event_idx {
            let event = 4 + 8 * usize::from(SIZE);
            return Some(self.guest.area(USED, event + 2).load_u16(event));
        }
        let is_silent = self.guest.area(USED, 4).load_u16(0) & 1 != 0;
        (!is_silent).then_some(self.submitted)
    }

    /// Makes one more request available. Kicks for it as the ring says, and returns whether it did.
    fn submit(&mut self) -> bool {
        let place = usize::from(self.submitted % SIZE);
        let avail = self.guest.area(AVAIL, 4 + 2 * usize::from(SIZE));
        avail.store_u16(4 + 2 * place, 2 * (self.submitted % CHAINS));
        avail.store_u16(2, self.submitted + 1);
        fence(Ordering::SeqCst);
        let kicks = self.kick_at() == Some(self.submitted);
        self.submitted += 1;
        if kicks {
            self.kick.signal();
        }
        kicks
    }

    fn answered(&self) {
        eventually("the requests are answered", || {
            self.guest.used() == self.submitted
        });
    }

    /// Submits requests, some time apart, until one is answered without a kick; returns whether that comes about.
    fn is_scanned(&mut self) -> bool {
        for _ in 0..500 {
            let kicked = self.submit();
            self.answered();
            if !kicked {
                return true;
            }
            // So long that a thread without dense mode has gone to sleep.
            std::thread::sleep(Duration::from_micros(500));
        }
        false
    }
}

#[test]
fn a_dense_queue_is_scanned_and_gets_its_kicks_back_when_it_is_quiet() {
    for event_idx in [false, true] {
        let mut watched = Watched::new(event_idx);
        watched.set_dense(true);
        assert!(watched.is_scanned());
        for _ in 0..20 {
            for _ in 0..3 {
                watched.submit();
            }
            watched.answered();
        }
        let next = watched.submitted;
        eventually("the guest is to kick", || watched.kick_at() == Some(next));
        assert!(watched.submit(), "it kicks");
        watched.answered();
        watched.daemon.stop();
    }
}

#[test]
fn eight_requests_are_a_batch_and_kick() {
    let mut watched = Watched::new(true);
    watched.set_dense(true);
    // The thread may be in a turn, or the queue quiet: then it asks for another request.
    eventually("a batch is asked for", || {
        watched.submit();
        watched.answered();
        let next = watched.submitted;
        let event = watched.kick_at().expect("there is an event");
        event == next + 7
    });
    watched.daemon.stop();
}

#[test]
fn the_end_of_dense_mode_restores_kicks_for_each_request() {
    let mut watched = Watched::new(true);
    watched.set_dense(true);
    assert!(watched.is_scanned());
    watched.set_dense(false);
    for _ in 0..50 {
        let next = watched.submitted;
        eventually("the guest is to kick", || watched.kick_at() == Some(next));
        assert!(watched.submit(), "it kicks");
        watched.answered();
    }
    watched.daemon.stop();
}

#[test]
fn disks_with_settings_of_their_own_are_exempt() {
    let latency = Share {
        class: IoClass::Latency,
        ..Share::default()
    };
    let own = [
        IoSettings {
            coalesce: Some(Coalesce::Adaptive),
            ..IoSettings::default()
        },
        IoSettings {
            share: latency,
            ..IoSettings::default()
        },
    ];
    for io in own {
        let mut watched = Watched::new(true);
        let (reply, set) = channel();
        let (disk, what) = (DISK, What::Io(io));
        let change = Change { disk, what, reply };
        watched.daemon.order(Command::Change(Box::new(change)));
        received(&set).expect("it is set");
        watched.set_dense(true);
        for _ in 0..50 {
            let next = watched.submitted;
            // Of a queue in dense mode a batch is asked for first, until it is quiet.
            eventually("the guest is to kick", || {
                let at = watched.kick_at();
                assert_ne!(at, Some(next + 7), "no batch is asked for");
                at == Some(next)
            });
            assert!(watched.submit(), "it kicks");
            watched.answered();
        }
        watched.daemon.stop();
    }
}
