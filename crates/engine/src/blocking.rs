//! The blocking worker of an I/O thread: it runs the few calls that io_uring cannot, on a thread that may block.
//!
//! An image or an I/O thread hands over a [`Task`] of a type of its own. The worker runs it and gives it back. A stuck
//! datastore holds up other tasks of the same I/O thread, never its I/O.

use std::any::Any;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::request::DiskId;

/// A call that may block, with room for its result.
pub(crate) trait Task: Any + Send {
    /// Makes the call and notes the result.
    fn run(&mut self);

    /// Notes this error as the result. Called where no thread can be started for the call.
    fn fail(&mut self, error: io::Error);
}

/// A task that has run; its owner knows the type.
pub(crate) type Done = Box<dyn Any + Send>;

/// Takes tasks that have run, for the disk that they belong to.
type GiveBack = Arc<dyn Fn(DiskId, Done) + Send + Sync>;

type Job = (DiskId, Box<dyn Task>);

/// Where an I/O thread sends its tasks.
pub(crate) struct BlockingWorker {
    queue: Sender<Job>,
    /// For tasks that get a thread of their own.
    name: String,
    give_back: GiveBack,
}

impl BlockingWorker {
    /// Starts the thread; it ends with this value. `give_back` gets each task when it has run, on the thread that ran it.
    pub(crate) fn start(
        name: &str,
        give_back: impl Fn(DiskId, Done) + Send + Sync + 'static,
    ) -> io::Result<BlockingWorker> {
        let give_back: GiveBack = Arc::new(give_back);
        let (queue, jobs) = channel::<Job>();
        let back = Arc::clone(&give_back);
        std::thread::Builder::new()
            .name(format!("{name}-blocking"))
            .spawn(move || {
                for (disk, mut task) in jobs {
                    task.run();
                    back(disk, task);
                }
            })?;
        Ok(BlockingWorker {
            queue,
            name: format!("{name}-task"),
            give_back,
        })
    }

    /// Runs a task of this disk after those that were sent before.
    pub(crate) fn send(&self, disk: DiskId, task: Box<dyn Task>) {
        self.queue
            .send((disk, task))
            .expect("the worker's thread lives as long as its sender");
    }

    /// Runs a task of this disk on a thread of its own: one that may take seconds must not hold up the others.
    pub(crate) fn send_alone(&self, disk: DiskId, task: Box<dyn Task>) {
        let task = Arc::new(Mutex::new(Some(task)));
        let (own, give_back) = (Arc::clone(&task), Arc::clone(&self.give_back));
        let started = std::thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || {
                if let Some(mut task) = taken(&own) {
                    task.run();
                    give_back(disk, task);
                }
            });
        if let Err(error) = started
            && let Some(mut task) = taken(&task)
        {
            task.fail(error);
            (self.give_back)(disk, task);
        }
    }
}

fn taken(task: &Mutex<Option<Box<dyn Task>>>) -> Option<Box<dyn Task>> {
    task.lock().unwrap_or_else(PoisonError::into_inner).take()
}
