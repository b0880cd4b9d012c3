//! Datastores: the trait `Image`, and one file for each kind.
//!
//! An `Image` is one open disk image. The control side opens it (which may block), an I/O thread owns it from then
//! on and gives it each I/O that leaves a disk's stack. The image performs it on the thread's ring and reports
//! the end, at once or through `ImageCx::finish`.
//!
//! # Always true
//! - each job is ended exactly once: by `Progress::Done`, or by one `ImageCx::finish` after `Progress::Pending`
//! - an image never blocks its thread

use self::condition::Condition;
use self::fenced::Fenced;
use crate::blocking::{BlockingWorker, Done};
use crate::lease::Lease;
use crate::lease::fence::Fence;
use crate::sys::buffers::Buffers;
use crate::sys::ring::{Completion, Ring, Tag};
use std::sync::Arc;
use tidegate_core::request::{Data, DiskId, Fault, Flags, IoId, Op, Outcome};
use tidegate_core::units::Time;

pub mod condition;
pub mod dir;
pub mod emulated;
mod fenced;
pub mod memory;
pub mod nbd;
pub mod null;

/// An I/O for an image to perform.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) io: IoId,
    pub(crate) op: Op,
    pub(crate) flags: Flags,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) data: Data,
}

impl Job {
    /// Whether it lies within an image of so many bytes.
    pub(crate) fn is_within(&self, size: u64) -> bool {
        let end = self.offset.checked_add(self.len);
        end.is_some_and(|end| end <= size)
    }
}

/// How far a job got at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Done(Outcome),
    Pending,
}

/// One open disk image, owned by one I/O thread.
pub(crate) trait Image {
    /// Performs a job, or begins to.
    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress;

    /// An operation of this image's has ended on the ring.
    fn completed(&mut self, _cx: &mut ImageCx<'_>, _completion: Completion) {}

    /// A task that it sent to the blocking worker has run. It may be one of an image that had this disk's number before.
    fn blocking_done(&mut self, _cx: &mut ImageCx<'_>, _task: Done) {}

    /// Whether [`Image::deadline`] is ever anything but `None`: most images are never asked.
    fn timed(&self) -> bool {
        true
    }

    /// When it wants [`Image::tick`].
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// Its deadline has passed.
    fn tick(&mut self, _cx: &mut ImageCx<'_>) {}

    /// The disk has this size from now on, in bytes.
    fn resized(&mut self, _size: u64) {}

    /// It stands behind this gate: new jobs pass it before they come here; what goes on with a job under way must look.
    fn fence(&mut self, _fence: &Arc<Fence>) {}

    /// Begins to close; true once nothing of it is on the ring (asked again after each completion).
    fn close(&mut self, _cx: &mut ImageCx<'_>) -> bool {
        true
    }
}

/// What an image may use of its I/O thread while it works.
pub(crate) struct ImageCx<'a> {
    pub(crate) now: Time,
    pub(crate) disk: DiskId,
    pub(crate) ring: &'a mut Ring,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) finished: &'a mut Vec<(DiskId, IoId, Outcome)>,
    pub(crate) blocking: &'a BlockingWorker,
}

impl ImageCx<'_> {
    /// Ends a pending job.
    pub(crate) fn finish(&mut self, io: IoId, outcome: Outcome) {
        self.finished.push((self.disk, io, outcome));
    }

    /// The tag for an operation of this image's, which comes back in [`Image::completed`].
    pub(crate) fn tag(&self, slot: u32) -> Tag {
        Tag {
            kind: crate::tag::IMAGE,
            owner: self.disk.0,
            slot,
        }
    }
}

/// What the outside should know about an image that was opened.
#[derive(Clone, Debug)]
pub struct ImageInfo {
    /// Bytes, as it is now.
    pub size: u64,
    /// Smallest I/O that is not read, changed and written back, in bytes.
    pub block_size: u32,
    /// Whether the system's page cache lies between.
    pub buffered: bool,
    /// Something the operator should know about how it was opened, as a sentence.
    pub remark: Option<String>,
}

/// An image that is open and not yet attached.
pub struct OpenedImage {
    pub(crate) image: Box<dyn Image + Send>,
    /// What is known of it.
    pub info: ImageInfo,
    /// What befalls it from now on.
    pub(crate) condition: Arc<Condition>,
    /// Dropped after it.
    pub(crate) lease: Option<Lease>,
}

impl OpenedImage {
    fn new(image: Box<dyn Image + Send>, info: ImageInfo) -> OpenedImage {
        OpenedImage {
            image,
            info,
            condition: Arc::default(),
            lease: None,
        }
    }

    /// The same, which notes there what befalls it.
    fn noting(self, condition: Arc<Condition>) -> OpenedImage {
        OpenedImage { condition, ..self }
    }

    /// Under a lease, which goes back when the image is closed. Nothing is written past the lease's time.
    #[must_use]
    pub fn under(mut self, lease: Lease) -> OpenedImage {
        if let Some(fence) = lease.fence() {
            self.image = Box::new(Fenced::new(self.image, fence));
        }
        self.lease = Some(lease);
        self
    }
}

/// What an error number of the kernel means to a guest.
pub(crate) fn fault(errno: i32) -> Fault {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Fault::NoSpace,
        libc::EROFS | libc::EPERM | libc::EACCES => Fault::ReadOnly,
        libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Fault::Unsupported,
        libc::EINVAL => Fault::Invalid,
        _ => Fault::Io,
    }
}

/// A whole number of bytes as memory counts them. Lengths were bounded by the front ends.
pub(crate) fn bytes(len: u64) -> usize {
    usize::try_from(len).expect("lengths fit the memory of a 64-bit host")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    /// Asks an image for one block.
    fn ask(image: &mut dyn Image, op: Op, offset: u64) -> Progress {
        let (mut ring, mut buffers) = (Ring::new().expect("a ring"), Buffers::new());
        let buffer = buffers.claim_pool(4096).expect("memory");
        let job = Job {
            io: IoId::from_bits(1),
            op,
            flags: Flags::NONE,
            offset,
            len: 4096,
            data: Data { buffer, start: 0 },
        };
        let mut cx = ImageCx {
            now: Time::ZERO,
            disk: DiskId(0),
            ring: &mut ring,
            buffers: &mut buffers,
            finished: &mut Vec::new(),
            blocking: &BlockingWorker::start("test", |_, _| ()).expect("a thread"),
        };
        image.start(&mut cx, job)
    }

    #[test]
    fn what_lies_beyond_an_images_memory_is_refused_though_the_disk_was_made_larger() {
        let spec = "nvme,size=1M".parse().expect("a spec");
        let images = [memory::open(SIZE), emulated::open(&spec)];
        for opened in images {
            let mut image = opened.expect("it opens").image;
            image.resized(2 * SIZE);
            for op in [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard] {
                for beyond in [SIZE - 512, SIZE, u64::MAX - 512] {
                    let refused = Progress::Done(Err(Fault::Invalid));
                    assert_eq!(ask(&mut *image, op, beyond), refused, "{op:?} at {beyond}");
                }
                let last = ask(&mut *image, op, SIZE - 4096);
                assert!(matches!(last, Progress::Done(Ok(())) | Progress::Pending));
            }
        }
    }
}
