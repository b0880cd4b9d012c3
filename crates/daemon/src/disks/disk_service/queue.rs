//! Runs commands of one kind one at a time: a command waits for the previous one, with a time limit.
//!
//! A datastore that does not respond may block the previous one.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// See the module.
#[derive(Default)]
pub(super) struct OneAtATime {
    taken: Mutex<bool>,
    freed: Condvar,
}

/// The turn of a command, until dropped.
pub(super) struct Turn<'a> {
    of: &'a OneAtATime,
}

impl OneAtATime {
    /// Waits for the turn of a command, at most for `patience`.
    pub(super) fn enter(&self, patience: Duration) -> Option<Turn<'_>> {
        let taken = self.taken();
        let waited = self
            .freed
            .wait_timeout_while(taken, patience, |taken| *taken);
        let (mut taken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() && *taken {
            return None;
        }
        *taken = true;
        Some(Turn { of: self })
    }

    fn taken(&self) -> MutexGuard<'_, bool> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.of.taken() = false;
        self.of.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_waits_for_the_one_before_it_and_gives_up_in_the_end() {
        let turns = OneAtATime::default();
        let first = turns.enter(Duration::ZERO).expect("nobody is there");
        assert!(turns.enter(Duration::from_millis(1)).is_none());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| turns.enter(Duration::from_secs(60)).is_some());
            drop(first);
            assert!(second.join().expect("it ends"));
        });
        assert!(turns.enter(Duration::ZERO).is_some());
    }
}
