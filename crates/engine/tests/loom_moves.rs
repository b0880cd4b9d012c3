//! Races of I/O threads when a disk moves, under every order that the memory model allows.
//!
//! The inbox and the table of homes are compiled here once more, with loom's atomics in place of the processor's. What their
//! eventfds and the guest do is a model. Run it with
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate-engine --test loom_moves`; without the flag it is empty.

#![cfg(loom)]

use loom::thread;
use std::collections::VecDeque;
use std::sync::PoisonError;
use tidegate_core::request::DiskId;
use work::commands::{Command, Inbox};
use work::peers::Peers;
use work::send_disk;

/// Loom's in place of those of the standard library.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering, fence};
    pub(crate) use loom::sync::{Arc, Mutex};
}

use atomics::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, fence};

/// Fewer than in a daemon, so that the table is built quickly.
mod tag {
    pub(crate) const DISK_BITS: u32 = 10;
}

mod sys {
    pub(crate) mod buffers {
        /// Nobody returns a buffer here.
        pub(crate) struct ReturnedNumbers;

        impl ReturnedNumbers {
            pub(crate) fn new(_threads: usize) -> ReturnedNumbers {
                ReturnedNumbers
            }
        }
    }

    pub(crate) mod eventfd {
        use loom::sync::{Mutex, Notify};
        use std::os::fd::{AsRawFd, RawFd};

        /// A counter, and whoever waits until it is not zero: the kernel's eventfd.
        pub(crate) struct EventFd(Mutex<u64>, Notify);

        impl EventFd {
            #[expect(clippy::unnecessary_wraps, reason = "as the real one")]
            pub(crate) fn new() -> std::io::Result<EventFd> {
                Ok(EventFd(Mutex::new(0), Notify::new()))
            }

            pub(crate) fn signal(&self) {
                *self.0.lock().expect("no panic") += 1;
                self.1.notify();
            }

            pub(crate) fn drain(&self) {
                *self.0.lock().expect("no panic") = 0;
            }

            /// What the ring does for the thread that sleeps.
            pub(crate) fn wait(&self) {
                while *self.0.lock().expect("no panic") == 0 {
                    self.1.wait();
                }
            }
        }

        impl AsRawFd for EventFd {
            fn as_raw_fd(&self) -> RawFd {
                -1
            }
        }
    }
}

#[path = "../src/inbox.rs"]
#[expect(dead_code, reason = "only what threads race on is used here")]
mod inbox;

#[path = "."]
mod work {
    pub(crate) mod commands {
        /// What a thread gets here.
        #[derive(Debug, PartialEq, Eq)]
        pub(crate) enum Command {
            /// A disk that comes.
            Arrive,
            /// Something for a disk.
            ForDisk,
        }

        pub(crate) type Inbox = crate::inbox::Inbox<Command>;
    }

    #[path = "../src/thread/peers.rs"]
    #[expect(dead_code, reason = "only what threads race on is used here")]
    pub(crate) mod peers;

    pub(crate) fn send_disk(peers: &peers::Peers, to: usize) {
        peers.send_disk(crate::DISK, to, commands::Command::Arrive);
    }
}

const DISK: DiskId = DiskId(0);

/// Explores with a bound on preemptions: three are enough for every fault of these few lines, in seconds.
fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

/// The turns of a thread that only reads its inbox, until it has so many messages.
fn read(inbox: &Inbox, wanted: usize) -> VecDeque<Command> {
    let mut messages = VecDeque::new();
    while messages.len() < wanted {
        if inbox.has_messages() {
            inbox.take(&mut messages);
        } else if inbox.prepare_sleep() {
            // Where no message wakes it, loom reports a deadlock.
            inbox.wait();
            inbox.wake();
            inbox.drain_wakeup();
        }
    }
    messages
}

impl<M> inbox::Inbox<M> {
    fn wait(&self) {
        self.eventfd().wait();
    }
}

#[test]
fn no_wake_up_of_a_thread_is_lost() {
    explore(|| {
        let inbox = Arc::new(Inbox::new().expect("a model"));
        let senders: Vec<_> = (0..2)
            .map(|_| {
                let inbox = Arc::clone(&inbox);
                thread::spawn(move || inbox.send_always(Command::ForDisk))
            })
            .collect();
        assert_eq!(read(&inbox, 2).len(), 2);
        for sender in senders {
            sender.join().expect("no panic");
        }
    });
}

#[test]
fn what_is_sent_to_a_disks_home_is_found_behind_the_disk() {
    explore(|| {
        let peers = Arc::new(Peers::new(2).expect("a model"));
        peers.settle(DISK, 0);
        let sender = {
            let peers = Arc::clone(&peers);
            // As each completion that is forwarded, and each command.
            thread::spawn(move || peers.inbox_of(DISK).send_always(Command::ForDisk))
        };
        let old = {
            let peers = Arc::clone(&peers);
            thread::spawn(move || {
                send_disk(&peers, 1);
                // Later turns of the old thread: it passes on what it finds. It ends when no more can come.
                peers
            })
        };
        let mut found = VecDeque::new();
        peers.inbox(1).take(&mut found);
        let first = found.front();
        assert_ne!(first, Some(&Command::ForDisk), "it is behind the disk");
        sender.join().expect("no panic");
        let peers = old.join().expect("no panic");
        let mut late = VecDeque::new();
        peers.inbox(0).take(&mut late);
        for command in late {
            assert_eq!((command, peers.home(DISK)), (Command::ForDisk, Some(1)));
            peers.inbox(1).send_always(Command::ForDisk);
        }
        peers.inbox(1).take(&mut found);
        assert_eq!(found, [Command::Arrive, Command::ForDisk]);
        assert_eq!((peers.disks(0), peers.disks(1)), (0, 1));
    });
}

/// A disk that is detached on its new thread has no home: a completion that comes late is passed to nobody. One that comes
/// while the disk goes from there to a third thread follows it, once.
#[test]
fn a_late_completion_reaches_its_disk_once_or_nobody() {
    explore(|| {
        let peers = Arc::new(Peers::new(3).expect("a model"));
        peers.settle(DISK, 0);
        send_disk(&peers, 1);
        let new = {
            let peers = Arc::clone(&peers);
            thread::spawn(move || {
                let mut found = VecDeque::new();
                peers.inbox(1).take(&mut found);
                send_disk(&peers, 2);
                found
            })
        };
        // The old thread forwards a completion of its ring.
        let home = peers.home(DISK).expect("it is attached");
        peers.inbox(home).send_always(Command::ForDisk);
        let mut found = new.join().expect("no panic");
        peers.inbox(1).take(&mut found);
        assert_eq!(found.pop_front(), Some(Command::Arrive));
        // The second thread had it with the disk, or passes it on.
        let with_disk = found.len();
        for command in found {
            peers.inbox(2).send_always(command);
        }
        let mut last = VecDeque::new();
        peers.inbox(2).take(&mut last);
        assert_eq!(last, [Command::Arrive, Command::ForDisk], "{with_disk}");
        peers.forget(DISK);
        peers.forget(DISK);
        assert_eq!((peers.home(DISK), peers.disks(2)), (None, 0));
    });
}

/// A guest's queue while its disk moves: what the guest and two threads do with the ring, its flag, and the descriptor.
struct Queue {
    /// Requests that the guest has made available.
    available: AtomicUsize,
    /// Whether the guest need not kick.
    silenced: AtomicBool,
    kick: Mutex<Kick>,
    changed: loom::sync::Condvar,
}

/// The kick's eventfd, which nobody reads, and the thread whose ring watches it.
struct Kick {
    count: u64,
    watched: bool,
    /// The watch has completed: a wake-up of the thread that watches.
    fired: bool,
    /// The disk is in the inbox of the new thread.
    arrived: bool,
}

impl Queue {
    fn change(&self, change: impl FnOnce(&mut Kick)) {
        let mut kick = self.kick.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut kick);
        self.changed.notify_all();
    }

    /// `virtqueue_kick` of a guest: it publishes, then looks whether it must kick.
    fn request(&self) {
        self.available.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if !self.silenced.load(Ordering::Relaxed) {
            self.change(|kick| {
                kick.count += 1;
                kick.fired |= kick.watched;
            });
        }
    }

    /// `watch_kicks`: a poll of a readable descriptor completes at once.
    fn watch(&self) {
        self.change(|kick| {
            kick.watched = true;
            kick.fired = kick.count > 0;
        });
    }

    /// `ignore_kicks`.
    fn ignore(&self) {
        self.change(|kick| (kick.watched, kick.fired) = (false, false));
    }

    /// The end of a poll: from now on the guest kicks. Returns whether something came meanwhile.
    fn want_kicks(&self, taken: usize) -> bool {
        self.silenced.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.available.load(Ordering::Acquire) > taken
    }

    /// Polls until it has all of `wanted`, and sleeps in between until a kick.
    fn serve(&self, mut taken: usize, wanted: usize) {
        loop {
            self.silenced.store(true, Ordering::Relaxed);
            taken = taken.max(self.available.load(Ordering::Acquire));
            if taken == wanted {
                return;
            }
            if self.want_kicks(taken) {
                continue;
            }
            let mut kick = self.kick.lock().unwrap_or_else(PoisonError::into_inner);
            while !kick.fired {
                // Where no kick wakes it, loom reports a deadlock.
                kick = self.changed.wait(kick).expect("no panic");
            }
            // The multishot poll fires once for each signal.
            kick.fired = false;
        }
    }
}

#[test]
fn a_kick_at_any_instant_of_a_move_is_served() {
    explore(|| {
        let queue = Arc::new(Queue {
            available: AtomicUsize::new(0),
            // The old thread sleeps, and watches.
            silenced: AtomicBool::new(false),
            kick: Mutex::new(Kick {
                count: 0,
                watched: true,
                fired: false,
                arrived: false,
            }),
            changed: loom::sync::Condvar::new(),
        });
        let guest = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                queue.request();
                queue.request();
            })
        };
        let old = {
            let queue = Arc::clone(&queue);
            // It reads `Leave`: what it does not take goes with the ring.
            thread::spawn(move || {
                queue.ignore();
                queue.change(|kick| kick.arrived = true);
            })
        };
        let mut kick = queue.kick.lock().expect("no panic");
        while !kick.arrived {
            kick = queue.changed.wait(kick).expect("no panic");
        }
        drop(kick);
        // As `arrive`: it asks for kicks, then polls once.
        queue.watch();
        queue.serve(0, 2);
        guest.join().expect("no panic");
        old.join().expect("no panic");
    });
}
