//! Locks of I/O threads and their owners, in every order in which an administrator and the policy may come.

use super::*;
use PolicyAct::{Activate, Leave, Park, TakeBack};

/// Two active threads.
fn placement() -> Placement {
    let peers = Peers::new(3).expect("there are descriptors");
    Placement::new(Arc::new(peers), 2)
}

fn state(placement: &Placement) -> ThreadState {
    placement.states()[1]
}

/// What an administrator does with thread 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admin {
    Lock,
    Unlock,
    Remove,
}

impl Admin {
    fn order(self, placement: &Placement) -> Result<()> {
        match self {
            Admin::Lock => placement.set_locked(1, true),
            Admin::Unlock => placement.set_locked(1, false),
            Admin::Remove => placement.remove(1),
        }
    }
}

/// All orders of two sequences, each of which keeps its own. `true`: the next step is of the first.
fn orders(first: usize, second: usize) -> Vec<Vec<bool>> {
    if first == 0 || second == 0 {
        return vec![[vec![true; first], vec![false; second]].concat()];
    }
    let with = |head, tails: Vec<Vec<bool>>| {
        tails
            .into_iter()
            .map(move |tail| [vec![head], tail].concat())
    };
    let of_first = with(true, orders(first - 1, second));
    of_first
        .chain(with(false, orders(first, second - 1)))
        .collect()
}

/// Every operation holds the plan's lock, so an order of operations is all that threads can bring about.
#[test]
fn an_administrators_lock_lasts_in_every_order_until_an_administrator_ends_it() {
    // Emptied and parked; taken back; a trial that is undone; what is left when the policy changes; a second attempt.
    let policies: [&[PolicyAct]; 6] = [
        &[Leave, Park],
        &[Leave, Activate],
        &[Activate, Leave, Park, Activate],
        &[Leave, Park, Park, Activate],
        &[Leave, Activate, Leave, Park],
        &[Leave, Park, TakeBack],
    ];
    let admins: [&[Admin]; 4] = [
        &[Admin::Lock],
        &[Admin::Lock, Admin::Unlock],
        &[Admin::Unlock, Admin::Lock],
        &[Admin::Lock, Admin::Remove],
    ];
    let mut refused = 0;
    for policy in policies {
        for admin in admins {
            for order in orders(policy.len(), admin.len()) {
                let placement = placement();
                let (mut acts, mut orders) = (policy.iter(), admin.iter());
                for is_policy in order {
                    let before = state(&placement);
                    if is_policy {
                        let act = *acts.next().expect("one of the order");
                        let done = placement.act(1, act);
                        if before == ThreadState::Locked {
                            assert!(done.is_err(), "{act:?}");
                            assert_eq!(state(&placement), ThreadState::Locked, "{act:?}");
                            refused += 1;
                        }
                    } else {
                        let order = *orders.next().expect("one of the order");
                        let done = order.order(&placement);
                        if order == Admin::Lock && before != ThreadState::Parked {
                            done.expect("another thread is active");
                            assert_eq!(state(&placement), ThreadState::Locked);
                        }
                    }
                    assert_eq!(placement.states()[0], ThreadState::Active);
                }
            }
        }
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn a_thread_that_is_emptied_takes_no_disk_and_an_administrator_may_take_it_back() {
    let placement = placement();
    placement.act(1, Leave).expect("another one is active");
    assert_eq!(state(&placement), ThreadState::Leaving);
    let refused = placement.begin_move(1).expect_err("it takes none");
    assert!(
        refused.to_string().contains("is being emptied"),
        "{refused}"
    );
    assert_eq!(placement.place(DiskId(0)), 0);
    placement.set_locked(1, false).expect("it runs");
    assert_eq!(state(&placement), ThreadState::Active);
    let refused = placement.act(1, Park).expect_err("it is not the policy's");
    assert_eq!(refused.kind(), Kind::Busy);
}

/// What the policy has not parked in time is taken back. By then an administrator may have parked it.
#[test]
fn a_thread_that_an_administrator_has_parked_is_not_taken_back() {
    let removals: [&[Admin]; 3] = [
        &[Admin::Remove],
        &[Admin::Lock, Admin::Remove],
        &[Admin::Unlock, Admin::Lock, Admin::Remove],
    ];
    for removal in removals {
        let placement = placement();
        placement.act(1, Leave).expect("another one is active");
        for order in removal {
            order.order(&placement).expect("it has no disks");
        }
        let refused = placement.act(1, TakeBack).expect_err("it is parked");
        assert_eq!(refused.kind(), Kind::Invalid);
        assert_eq!(state(&placement), ThreadState::Parked);
    }
    let placement = placement();
    placement.act(1, Leave).expect("another one is active");
    placement.act(1, TakeBack).expect("the policy empties it");
    assert_eq!(state(&placement), ThreadState::Active);
    placement.act(1, TakeBack).expect("it is there already");
}

#[test]
fn neither_an_administrator_nor_the_policy_locks_the_last_active_thread() {
    let placement = placement();
    placement.act(1, Leave).expect("another one is active");
    for done in [placement.set_locked(0, true), placement.act(0, Leave)] {
        let refused = done.expect_err("no other one is active");
        assert_eq!(refused.kind(), Kind::Busy);
    }
    placement
        .set_locked(1, true)
        .expect("it takes no disks anyway");
    let parked = placement.set_locked(2, true).expect_err("it does not run");
    assert_eq!(parked.kind(), Kind::Invalid);
}
