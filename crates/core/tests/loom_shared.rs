//! The state of a datastore that I/O threads share, under every order that the memory model allows.
//!
//! The files of atomics are compiled here once more, with loom's atomics in place of the processor's. Run it with
//! `RUSTFLAGS="--cfg loom" cargo test -p tidegate-core --test loom_shared --release`; without the flag it is empty.

#![cfg(loom)]

extern crate alloc;

#[path = "../src/iocontrol/groups.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "only what threads race on is used here, and it is public in its own crate"
)]
mod groups;

#[path = "../src/iocontrol/shared.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    reason = "only what threads race on is used here, and it is public in its own crate"
)]
mod shared;

/// Loom's in place of those of `core`.
mod atomics {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering, fence};
}

use loom::sync::{Arc, Notify};
use loom::thread;
use shared::{Groups, Member, Rate, Shared};

/// Explores with a bound on preemptions: two are enough for every fault of these few lines, in seconds.
fn explore(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(test);
}

#[test]
fn virtual_time_is_monotonic_and_reaches_the_maximum() {
    explore(|| {
        let shared = Shared::new(2, &Groups::new(0));
        let threads: Vec<_> = [(0, [5, 9]), (1, [7, 8])]
            .into_iter()
            .map(|(number, tags)| {
                let member = Member::new(number, shared.clone());
                thread::spawn(move || {
                    let mut seen = 0;
                    for tag in tags {
                        member.raise_v(tag);
                        let v = member.v();
                        assert!(v >= tag && v >= seen);
                        seen = v;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("it ran");
        }
        assert_eq!(Member::new(0, shared).v(), 9);
    });
}

#[test]
fn a_small_window_is_never_exceeded_and_no_wake_is_lost() {
    // Room for one; each of two threads has one I/O. A thread without room sleeps until it is woken. A lost wake would
    // be a deadlock, which loom detects.
    explore(|| {
        const COST: u64 = 256;
        let shared = Shared::new(2, &Groups::new(0));
        let wakes = Arc::new([Notify::new(), Notify::new()]);
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let mut member = Member::new(number, shared.clone());
                let wakes = wakes.clone();
                thread::spawn(move || {
                    member.fit(COST);
                    member.publish(Some(1), None);
                    loop {
                        member.awake();
                        if member.try_start(COST, COST, COST) {
                            break;
                        }
                        member.sleep();
                        if member.try_start(COST, COST, COST) {
                            member.awake();
                            break;
                        }
                        wakes[number].wait();
                    }
                    assert!(member.in_flight() <= COST, "the window holds one");
                    member.publish(None, None);
                    member.finish(COST);
                    if let Some(other) = member.sleeper()
                        && member.wake(other)
                    {
                        wakes[other].notify();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("it ran");
        }
        assert_eq!(Member::new(0, shared).in_flight(), 0);
    });
}

#[test]
fn unpublished_costs_add_up() {
    explore(|| {
        let shared = Shared::new(2, &Groups::new(0));
        let threads: Vec<_> = (0..2)
            .map(|number| {
                let mut member = Member::new(number, shared.clone());
                thread::spawn(move || {
                    member.fit(64 * 256);
                    // Out of order, so that the last completion leaves less than a batch unpublished.
                    for cost in [1_100, 700, 400] {
                        assert!(member.try_start(cost, cost, 64 * 256));
                    }
                    for cost in [400, 1_100, 700] {
                        member.finish(cost);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("it ran");
        }
        assert_eq!(Member::new(0, shared).in_flight(), 0);
    });
}

#[test]
fn threads_together_never_exceed_a_groups_limit() {
    explore(|| {
        let groups = Groups::new(1);
        let tight = Rate {
            per_second: 500,
            slack: 32_000_000,
        };
        // The second meter passes only one: the first meter's charge is returned.
        let tighter = Rate {
            per_second: 1_000,
            slack: 0,
        };
        groups.change(0, 0, [tight, tighter, Rate::NONE, Rate::NONE]);
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let groups = groups.clone();
                thread::spawn(move || u32::from(groups.take(0, 1_000_000, 1, 1).is_some()))
            })
            .collect();
        let passed: u32 = threads
            .into_iter()
            .map(|thread| thread.join().expect("it ran"))
            .sum();
        assert_eq!(passed, 1);
        // One unit later the next may pass, and again only one.
        assert_eq!(groups.due(0), 1_000_000 + 16_000_000);
    });
}

#[test]
fn the_thread_furthest_behind_in_a_group_never_yields() {
    explore(|| {
        // Far more than threads may differ.
        const FAR: u64 = 1 << 32;
        let groups = Groups::new(1);
        let shared = Shared::new(2, &groups);
        let threads: Vec<_> = [0, FAR]
            .into_iter()
            .enumerate()
            .map(|(number, tag)| {
                let mut member = Member::new(number, shared.clone());
                thread::spawn(move || {
                    member.take_seat(0);
                    member.publish_group(0, Some(tag));
                    let before = member.before_me_in_group(0, tag, &[]);
                    assert!(tag != 0 || before.is_none());
                    if let Some((seat, other)) = before {
                        // It did not start in time: no thread waits for this tag again.
                        let mut ignored = vec![u64::MAX; seat + 1];
                        ignored[seat] = other;
                        assert_eq!(
                            (other, member.before_me_in_group(0, tag, &ignored)),
                            (0, None)
                        );
                    }
                    member
                })
            })
            .collect();
        // A thread that leaves removes its published word.
        let members: Vec<Member> = threads
            .into_iter()
            .map(|thread| thread.join().expect("it ran"))
            .collect();
        let mut seats: Vec<_> = members
            .iter()
            .map(|m| m.before_me_in_group(0, FAR, &[]))
            .collect();
        seats.sort_unstable();
        assert_eq!(seats[0], None);
        drop(members);
        let mut late = Member::new(0, shared);
        late.take_seat(0);
        assert_eq!(late.before_me_in_group(0, FAR, &[]), None);
    });
}
