//! Tests of range locks under random requests: exclusive ranges never overlap, none starves, and overlapping requests
//! stay in order.

use proptest::prelude::*;
use tidegate_core::range_lock::{Mode, RangeLock, Wanted};

/// The model's state: running and waiting requests, in order of arrival.
#[derive(Default)]
struct Model {
    running: Vec<Wanted>,
    waiting: Vec<Wanted>,
}

fn overlap(a: &Wanted, b: &Wanted) -> bool {
    let exclusive = a.mode == Mode::Exclusive || b.mode == Mode::Exclusive;
    exclusive && a.start < b.end && b.start < a.end
}

impl Model {
    /// Starts a request: no conflicting request runs, or came before and still waits.
    fn start(&mut self, wanted: Wanted, ahead: usize) {
        let conflict = |other: &&Wanted| overlap(&wanted, other);
        assert_eq!(self.running.iter().find(conflict), None);
        assert_eq!(self.waiting[..ahead].iter().find(conflict), None);
        self.running.push(wanted);
    }

    fn started(&mut self, ids: &[u32]) {
        for id in ids {
            let at = self.waiting.iter().position(|w| w.id == *id);
            let at = at.expect("only a request that waits is started");
            let wanted = self.waiting[at];
            self.start(wanted, at);
            self.waiting.remove(at);
        }
    }

    /// Checks that every waiting request has a reason to wait.
    fn check_that_waiting_requests_conflict(&self) {
        for (at, wanted) in self.waiting.iter().enumerate() {
            let ahead = self.running.iter().chain(&self.waiting[..at]);
            assert!(ahead.clone().any(|other| overlap(wanted, other)));
        }
    }
}

/// One action: a new request (its place, length and mode), or the end of a running one.
fn acts() -> impl Strategy<Value = Vec<(bool, u8, u8, u8)>> {
    prop::collection::vec(any::<(bool, u8, u8, u8)>(), 1..200)
}

fn wanted(id: u32, place: u8, len: u8, mode: u8) -> Wanted {
    let start = u64::from(place % 32);
    Wanted {
        id,
        start,
        end: start + 1 + u64::from(len % 8),
        mode: if mode.is_multiple_of(3) {
            Mode::Exclusive
        } else {
            Mode::Shared
        },
    }
}

proptest! {
    #[test]
    fn overlapping_requests_keep_their_order_and_all_end(acts in acts(), few in any::<bool>()) {
        // If only a few are compared, others wait in line, even without a conflict.
        let most = if few { 5 } else { 1000 };
        let (mut lock, mut model) = (RangeLock::comparing(most), Model::default());
        let mut started = Vec::new();
        for (id, (comes, place, len, mode)) in (0..).zip(acts) {
            if comes || model.running.is_empty() {
                let wanted = wanted(id, place, len, mode);
                if wanted.mode == Mode::Shared && lock.is_idle() {
                    model.start(wanted, 0);
                    continue;
                }
                if lock.is_idle() {
                    for running in &model.running {
                        lock.note_in_flight(*running);
                    }
                }
                if lock.acquire(wanted) {
                    model.start(wanted, model.waiting.len());
                } else {
                    model.waiting.push(wanted);
                }
            } else {
                let at = usize::from(place) % model.running.len();
                let ended = model.running.swap_remove(at);
                lock.release(ended.id, &mut started);
                model.started(&started);
                started.clear();
            }
            if !few {
                model.check_that_waiting_requests_conflict();
            }
        }
        while let Some(ended) = model.running.pop() {
            lock.release(ended.id, &mut started);
            model.started(&started);
            started.clear();
        }
        prop_assert!(model.waiting.is_empty(), "every request was started");
        prop_assert!(lock.is_idle());
    }
}
