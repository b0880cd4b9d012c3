//! The blocking worker of an I/O thread: it runs the few calls that io_uring cannot, on a thread that may block.
//!
//! An image or an I/O thread passes a [`Task`] of its own type. The worker runs it and returns it. A stuck datastore
//! delays other tasks of the same I/O thread, but never its I/O.

use crate::tag::ImageId;
use std::any::Any;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// A call that may block, with room for its result.
pub(crate) trait Task: Any + Send {
    /// Makes the call and stores the result.
    fn run(&mut self);

    /// Stores this error as the result. Called if no thread can be started for the call.
    fn fail(&mut self, error: io::Error);
}

/// A task that has run; its owner knows the type.
pub(crate) type Done = Box<dyn Any + Send>;

/// Receives tasks that have run, with the image that they belong to.
type ReturnTask = Arc<dyn Fn(ImageId, Done) + Send + Sync>;

type Job = (ImageId, Box<dyn Task>);

/// The queue of an I/O thread's tasks.
pub(crate) struct BlockingWorker {
    queue: Sender<Job>,
    /// Name of threads for single tasks.
    name: String,
    return_task: ReturnTask,
}

impl BlockingWorker {
    /// Starts the thread; it ends when this value is dropped. `return_task` receives each task after its run, on the
    /// thread that ran it.
    pub(crate) fn start(
        name: &str,
        return_task: impl Fn(ImageId, Done) + Send + Sync + 'static,
    ) -> io::Result<BlockingWorker> {
        let return_task: ReturnTask = Arc::new(return_task);
        let (queue, jobs) = channel::<Job>();
        let back = Arc::clone(&return_task);
        std::thread::Builder::new()
            .name(format!("{name}-blocking"))
            .spawn(move || {
                for (image, mut task) in jobs {
                    task.run();
                    back(image, task);
                }
            })?;
        Ok(BlockingWorker {
            queue,
            name: format!("{name}-task"),
            return_task,
        })
    }

    /// Runs a task of this image after those sent before.
    pub(crate) fn send(&self, image: ImageId, task: Box<dyn Task>) {
        self.queue
            .send((image, task))
            .expect("the worker's thread lives as long as its sender");
    }

    /// Runs a task of this image on a thread of its own: a task of seconds must not delay the others.
    pub(crate) fn send_alone(&self, image: ImageId, task: Box<dyn Task>) {
        let task = Arc::new(Mutex::new(Some(task)));
        let (own, return_task) = (Arc::clone(&task), Arc::clone(&self.return_task));
        let started = std::thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || {
                if let Some(mut task) = take(&own) {
                    task.run();
                    return_task(image, task);
                }
            });
        if let Err(error) = started
            && let Some(mut task) = take(&task)
        {
            task.fail(error);
            (self.return_task)(image, task);
        }
    }
}

fn take(task: &Mutex<Option<Box<dyn Task>>>) -> Option<Box<dyn Task>> {
    task.lock().unwrap_or_else(PoisonError::into_inner).take()
}
