//! Completions that other I/O threads forward for what is not here any more.

use super::*;
use crate::sys::ring::Completion;
use crate::tag::ImageId;

#[test]
fn a_completion_for_something_that_is_gone_is_dropped() {
    let daemon = Daemon::start();
    let (reply, detached) = channel();
    daemon.order(detach(OTHER, Box::new(|| ()), reply));
    received(&detached).expect("the disk is detached");
    let never = DiskId(9);
    for (kind, owner) in [
        (tag::IMAGE, ImageId::first(OTHER).owner()),
        (tag::IMAGE, ImageId::new(DISK, 5).owner()),
        (tag::IMAGE, ImageId::first(never).owner()),
        (tag::RECEIVE, 3),
        (tag::SEND, 3),
        (tag::HANG_UP, 3),
        (tag::KICK, 3),
    ] {
        for result in [0, 1, -libc::ECANCELED, -libc::EBADF] {
            // Twice: a duplicate is one too many as well.
            for _ in 0..2 {
                let slot = 7;
                let tag = Tag { kind, owner, slot };
                let more = false;
                daemon.order(Command::Forwarded(Completion { tag, result, more }));
            }
        }
    }
    // The thread goes on as before.
    let guest = Guest::with_a_dead_daemon();
    let ((attach, number), (stop, position)) = (attach_queue(&guest), stop_queue());
    daemon.order(attach);
    assert_eq!(received(&number), 0);
    daemon.order(stop);
    assert_eq!((received(&position), guest.used()), (CHAINS, CHAINS));
    daemon.stop();
}
