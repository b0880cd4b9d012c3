//! How much of our own memory all NBD clients of an I/O thread may hold together with their requests.
//!
//! Each client has a bound of its own; this one is for many that hold all they may and never read their replies.
//!
//! # Always true
//! - a client that had to wait for others' memory is let on as soon as there is room
//! - who waits is in the list once

/// Bytes from which on a client with requests under way begins no more. Eight clients may hold all that each may alone,
/// or a thousand 128 KiB at a time; a host of many guests can spare it on each of its few I/O threads.
const MOST: usize = 512 << 20;

/// See the module.
#[derive(Default)]
pub(crate) struct Budget {
    held: usize,
    waiting: Vec<u32>,
}

impl Budget {
    /// A client holds so many more bytes.
    pub(super) fn take(&mut self, bytes: usize) {
        self.held += bytes;
    }

    /// A client holds so many less.
    pub(super) fn give_back(&mut self, bytes: usize) {
        self.held -= bytes;
    }

    /// Whether a connection that has requests under way may begin another. If not, [`Budget::wake`] tells when.
    pub(super) fn lets_on(&mut self, connection: u32) -> bool {
        let room = self.held < MOST;
        if !room && !self.waiting.contains(&connection) {
            self.waiting.push(connection);
        }
        room
    }

    /// Adds to `talking` those that waited, if there is room now. Returns whether there were any.
    pub(crate) fn wake(&mut self, talking: &mut Vec<u32>) -> bool {
        let any = self.held < MOST && !self.waiting.is_empty();
        if any {
            talking.append(&mut self.waiting);
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_memory_is_woken_once_when_there_is_some() {
        let mut budget = Budget::default();
        let mut talking = Vec::new();
        budget.take(MOST - 1);
        assert!(budget.lets_on(1));
        assert!(!budget.wake(&mut talking), "nobody waits");
        budget.take(2);
        for connection in [1, 2, 1] {
            assert!(!budget.lets_on(connection));
        }
        budget.give_back(1);
        assert!(!budget.wake(&mut talking), "it is all held");
        budget.give_back(1);
        assert!(budget.wake(&mut talking));
        assert_eq!(talking, [1, 2]);
        assert!(!budget.wake(&mut talking));
    }
}
