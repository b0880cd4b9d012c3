//! The blocking worker: a thread that runs system calls which io_uring does not have.
//!
//! An image hands over an [`BlockingJob`]; the thread runs it and drops it, answered, into the I/O thread's inbox. A
//! stuck datastore holds up other blocking of the same I/O thread, never its I/O.

use crate::datastore::nbd::connect::Connect;
use crate::error::Error;
use crate::thread::commands::{Command, Inbox};
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::filter::FilterKey;
use tidegate_core::request::{DiskId, Extent, ExtentKind, Outcome};

/// A call that may block, and its answer.
pub(crate) struct BlockingJob {
    pub(crate) disk: DiskId,
    pub(crate) task: Task,
}

/// What may be sent away.
pub(crate) enum Task {
    /// Which parts of a file hold data.
    Map(Map),
    /// Append bytes to a filter's side file.
    Append {
        file: Arc<OwnedFd>,
        filter: FilterKey,
        buffer: Vec<u8>,
        outcome: Outcome,
    },
    /// Find an NBD server again.
    Connect(Connect),
}

/// A question for the extents of a file.
pub(crate) struct Map {
    /// The image's own name for it.
    pub(crate) slot: u32,
    /// The file to look at, shared with the image.
    pub(crate) file: Arc<OwnedFd>,
    /// The range, in bytes.
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// At most so many extents.
    pub(crate) most: usize,
    /// The answer.
    pub(crate) extents: Vec<Extent>,
    /// The file ends before the range does: what is told of it is not to be believed.
    pub(crate) ends_early: bool,
    pub(crate) outcome: Outcome,
}

/// Where an I/O thread sends its blocking.
pub(crate) struct BlockingWorker {
    queue: Sender<BlockingJob>,
    /// For blocking that get a thread of their own.
    name: String,
    inbox: Arc<Inbox>,
}

impl BlockingWorker {
    /// Starts the thread; it ends with this value.
    pub(crate) fn start(name: &str, inbox: Arc<Inbox>) -> std::io::Result<BlockingWorker> {
        let (queue, blocking) = channel::<BlockingJob>();
        let back = Arc::clone(&inbox);
        std::thread::Builder::new()
            .name(format!("{name}-blocking"))
            .spawn(move || {
                for mut job in blocking {
                    job.run();
                    back.send_always(Command::BlockingJob(job));
                }
            })?;
        Ok(BlockingWorker {
            queue,
            name: format!("{name}-connect"),
            inbox,
        })
    }

    /// Sends one off.
    pub(crate) fn send(&self, job: BlockingJob) {
        if matches!(job.task, Task::Connect(_)) {
            return self.send_alone(job);
        }
        self.queue
            .send(job)
            .expect("the job thread lives as long as its sender");
    }
}

impl BlockingWorker {
    /// Runs one on a thread of its own: a server that is away takes seconds, and must not hold up the others.
    fn send_alone(&self, job: BlockingJob) {
        let job = Arc::new(Mutex::new(Some(job)));
        let (own, inbox) = (Arc::clone(&job), Arc::clone(&self.inbox));
        let started = std::thread::Builder::new()
            .name(self.name.clone())
            .spawn(move || {
                if let Some(mut job) = taken(&own) {
                    job.run();
                    inbox.send_always(Command::BlockingJob(job));
                }
            });
        if let Err(error) = started
            && let Some(mut job) = taken(&job)
        {
            job.refuse(error);
            self.inbox.send_always(Command::BlockingJob(job));
        }
    }
}

fn taken(job: &Mutex<Option<BlockingJob>>) -> Option<BlockingJob> {
    job.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl BlockingJob {
    /// It could not even be begun.
    fn refuse(&mut self, error: std::io::Error) {
        if let Task::Connect(connect) = &mut self.task {
            let error = Error::io("cannot start a thread to reach an NBD server", error);
            connect.result = Some(Err(error));
        }
    }

    fn run(&mut self) {
        match &mut self.task {
            Task::Map(map) => map.outcome = outcome(map.walk()),
            Task::Append {
                file,
                buffer,
                outcome: end,
                ..
            } => *end = outcome(append(file, buffer)),
            Task::Connect(connect) => connect.run(),
        }
    }
}

fn outcome(result: std::io::Result<()>) -> Outcome {
    result.map_err(|error| crate::datastore::fault(error.raw_os_error().unwrap_or(libc::EIO)))
}

fn append(file: &OwnedFd, bytes: &[u8]) -> std::io::Result<()> {
    std::fs::File::from(file.try_clone()?).write_all(bytes)
}

impl Map {
    /// Walks the holes of the range. What a file system cannot tell counts as data.
    fn walk(&mut self) -> std::io::Result<()> {
        use crate::sys::os::{seek_data, seek_hole};
        let fd = self.file.as_raw_fd();
        let end = self.offset + self.len;
        let mut at = self.offset;
        while at < end && self.extents.len() < self.most {
            let (next, kind) = match seek_data(fd, at) {
                Ok(Some(data)) if data == at => {
                    (seek_hole(fd, at)?.unwrap_or(end), ExtentKind::Data)
                }
                Ok(Some(data)) => (data, ExtentKind::Hole),
                Ok(None) => (end, ExtentKind::Hole),
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (end, ExtentKind::Data),
                Err(error) => return Err(error),
            };
            let next = next.clamp(at + 1, end);
            self.extents.push(Extent {
                len: next - at,
                kind,
            });
            at = next;
        }
        // What lies behind the end of a file has been told as a hole. Asked last, for the file may be cut meanwhile.
        self.ends_early = self.len > 0 && !has_byte(fd, end - 1)?;
        Ok(())
    }
}

/// Whether a file or a block device has this byte, as far as it can tell: no place at or behind its end can be sought.
fn has_byte(fd: RawFd, at: u64) -> std::io::Result<bool> {
    match crate::sys::os::seek_hole(fd, at) {
        Ok(found) => Ok(found.is_some()),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(true),
        Err(error) => Err(error),
    }
}
