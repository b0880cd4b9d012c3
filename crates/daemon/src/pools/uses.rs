//! Open disks of pools: each stays open until the last of its images is closed.
//!
//! A file that is a disk's image has a lock of its own. The members of a pool belong to all its disks, so each image of a disk
//! has a token instead. An image is closed once all of its I/O has ended, which may be long after a command has given up.
//!
//! # Always true
//! - a disk is opened to be written by one at a time: what an earlier opening has begun cannot go over what a later one writes
//! - a disk is not deleted while it is open, or read by a clone or by the reader of a snapshot: others get its space then

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::pool::PoolSetup;

use crate::os_error::Outcome;

/// How long the next one waits for images that are being closed. Origin: chosen; without I/O in flight it takes microseconds.
const CLOSING: Duration = Duration::from_secs(2);

/// The open disks of all pools.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    open: Mutex<BTreeMap<[u8; 16], Count>>,
    ended: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    writers: usize,
    readers: usize,
}

/// An open disk. Each of its images has a copy.
#[derive(Clone, Debug)]
pub(crate) struct InUse(#[expect(dead_code, reason = "it is dropped")] Arc<Token>);

#[derive(Debug)]
struct Token {
    uses: Arc<Uses>,
    disk: [u8; 16],
    writes: bool,
    /// Disks whose extents it reads.
    ancestors: Vec<[u8; 16]>,
}

impl Drop for Token {
    fn drop(&mut self) {
        let mut open = self.uses.open();
        let mut leave = |disk: &[u8; 16], writes: bool| {
            if let Some(count) = open.get_mut(disk) {
                match writes {
                    true => count.writers -= 1,
                    false => count.readers -= 1,
                }
                if count.writers + count.readers == 0 {
                    open.remove(disk);
                }
            }
        };
        leave(&self.disk, self.writes);
        self.ancestors.iter().for_each(|disk| leave(disk, false));
        drop(open);
        self.uses.ended.notify_all();
    }
}

impl Uses {
    fn open(&self) -> MutexGuard<'_, BTreeMap<[u8; 16], Count>> {
        // Every change is complete.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a disk: to be written, or to show one of its generations.
    pub(crate) fn enter(self: &Arc<Uses>, setup: &PoolSetup, writes: bool) -> Outcome<InUse> {
        let mut open = self.open();
        let is_written = |disk: &[u8; 16]| open.get(disk).is_some_and(|count| count.writers > 0);
        if writes && is_written(&setup.disk) {
            return Err(still_open("I/O of its last use has not ended"));
        }
        let ancestors = setup.ancestors.iter().map(|ancestor| ancestor.disk);
        let ancestors: Vec<[u8; 16]> = ancestors.collect();
        let count = open.entry(setup.disk).or_default();
        match writes {
            true => count.writers += 1,
            false => count.readers += 1,
        }
        for ancestor in &ancestors {
            open.entry(*ancestor).or_default().readers += 1;
        }
        drop(open);
        Ok(InUse(Arc::new(Token {
            uses: Arc::clone(self),
            disk: setup.disk,
            writes,
            ancestors,
        })))
    }

    /// Waits a little for the images of a disk that are being closed. `alone`: also for those of its readers.
    pub(crate) fn wait(&self, disk: [u8; 16], alone: bool) {
        let is_open = |open: &mut BTreeMap<[u8; 16], Count>| {
            let is_open = |count: &Count| count.writers > 0 || alone && count.readers > 0;
            open.get(&disk).is_some_and(is_open)
        };
        let waited = self.ended.wait_timeout_while(self.open(), CLOSING, is_open);
        drop(waited);
    }

    /// Fails if a disk is open, or others read its extents.
    pub(crate) fn must_be_closed(&self, disk: [u8; 16]) -> Outcome<()> {
        match self.open().get(&disk) {
            None => Ok(()),
            Some(count) if count.writers > 0 => {
                Err(still_open("I/O of its last use has not ended"))
            }
            Some(_) => Err(still_open(
                "a clone of it, an export of one of its snapshots, or a backup reads it",
            )),
        }
    }
}

fn still_open(why: &str) -> Problem {
    Problem::new(ProblemCode::Busy, "the disk is still open")
        .because(why)
        .remedy("try again when that has ended; if a member of its pool hangs, the kernel's log says so")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::layout::pool::{Ancestor, Generation};
    use tidegate_core::pool::geometry;

    fn setup(disk: u8, ancestors: &[u8]) -> PoolSetup {
        let ancestor = |disk: &u8| Ancestor {
            disk: [*disk; 16],
            grants: Vec::new(),
            at: Generation::FIRST,
        };
        PoolSetup {
            pool: [0; 16],
            disk: [disk; 16],
            size: 1 << 20,
            geometry: geometry(1 << 20),
            columns: Vec::new(),
            members: Vec::new(),
            grants: Vec::new(),
            ancestors: ancestors.iter().map(ancestor).collect(),
            thick: false,
        }
    }

    #[test]
    fn a_disk_is_written_by_one_opening_at_a_time_and_stays_while_it_is_read() {
        let uses = Arc::new(Uses::default());
        let first = uses.enter(&setup(1, &[]), true).unwrap();
        let image = first.clone();
        drop(first);
        // An image is not closed yet.
        assert_eq!(
            uses.enter(&setup(1, &[]), true).unwrap_err().code,
            ProblemCode::Busy
        );
        let view = uses.enter(&setup(1, &[]), false).unwrap();
        drop(image);
        let again = uses.enter(&setup(1, &[]), true).unwrap();
        drop(again);
        assert!(uses.must_be_closed([1; 16]).is_err());
        drop(view);
        uses.must_be_closed([1; 16]).unwrap();
        let clone = uses.enter(&setup(3, &[2, 1]), true).unwrap();
        for disk in [1, 2, 3] {
            assert!(uses.must_be_closed([disk; 16]).is_err(), "{disk}");
        }
        // What is read by a clone may be written.
        drop(uses.enter(&setup(1, &[]), true).unwrap());
        drop(clone);
        assert!(uses.open().is_empty());
    }

    #[test]
    fn who_comes_next_waits_for_images_that_are_being_closed() {
        let uses = Arc::new(Uses::default());
        let token = uses.enter(&setup(1, &[]), true).unwrap();
        std::thread::scope(|scope| {
            let (begun, begins) = std::sync::mpsc::channel();
            scope.spawn(move || {
                begins.recv().unwrap();
                drop(token);
            });
            begun.send(()).unwrap();
            uses.wait([1; 16], true);
        });
        uses.enter(&setup(1, &[]), true).unwrap();
    }
}
