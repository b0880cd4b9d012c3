//! Datastores: the trait `Image`, and one file for each kind.
//!
//! An `Image` is one open disk image. The control side opens it (which may block). Then an I/O thread owns it, and
//! passes it each I/O that leaves a disk's stack. The image performs the I/O on the thread's ring and reports its end,
//! at once or through `ImageCx::finish`.
//!
//! # Always true
//! - each job ends exactly once: by `Progress::Done`, or by one `ImageCx::finish` after `Progress::Pending`
//! - an image never blocks its thread

use self::condition::Condition;
use self::fenced::{Fenced, Fences};
use crate::blocking::{BlockingWorker, Done};
use crate::control::UnderControl;
use crate::lease::fence::Fence;
use crate::lease::{Lease, Watch};
use crate::sys::buffers::Buffers;
use crate::sys::ring::{Completion, Ring, Tag};
use crate::tag::ImageId;
use std::sync::Arc;
use tidegate_core::request::{Data, DiskId, Fault, Flags, IoId, Op, Outcome};
use tidegate_core::units::Time;

pub(crate) mod away;
pub mod condition;
pub mod dir;
pub mod emulated;
pub(crate) mod fenced;
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
    /// Whether it lies within an image of this many bytes.
    pub(crate) fn is_within(&self, size: u64) -> bool {
        let end = self.offset.checked_add(self.len);
        end.is_some_and(|end| end <= size)
    }
}

/// Whether a job ended at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Done(Outcome),
    Pending,
}

/// One open disk image, owned by one I/O thread.
pub(crate) trait Image {
    /// Performs a job, or starts it.
    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress;

    /// An operation of this image has completed on the ring.
    fn completed(&mut self, _cx: &mut ImageCx<'_>, _completion: Completion) {}

    /// A task of this image has run in the blocking worker. It may belong to an earlier image with the same number.
    fn blocking_done(&mut self, _cx: &mut ImageCx<'_>, _task: Done) {}

    /// Whether [`Image::deadline`] ever returns a time. Most images have none and are not asked.
    fn timed(&self) -> bool {
        true
    }

    /// When it needs [`Image::tick`].
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// Its deadline has passed.
    fn tick(&mut self, _cx: &mut ImageCx<'_>) {}

    /// The disk moves to another I/O thread: operations that may not end for long without a job are cancelled. All complete
    /// there.
    fn leave(&mut self, _cx: &mut ImageCx<'_>) {}

    /// The size has changed to this many bytes.
    fn resized(&mut self, _size: u64) {}

    /// Gives the image its lease's fence. New jobs pass the fence before they arrive here. The image checks it before
    /// it continues a job.
    fn fence(&mut self, _fence: &Arc<Fence>) {}

    /// The disk of a flash device has members under other leases now.
    fn refence(&mut self, _fences: &Fences) {}

    /// Whether every job that was started has ended.
    fn is_idle(&self) -> bool;

    /// Starts to close, once it is idle; true once nothing of it is on the ring (called again after each completion).
    fn close(&mut self, _cx: &mut ImageCx<'_>) -> bool {
        true
    }
}

/// The part of its I/O thread that an image uses.
pub(crate) struct ImageCx<'a> {
    pub(crate) now: Time,
    pub(crate) image: ImageId,
    pub(crate) ring: &'a mut Ring,
    pub(crate) buffers: &'a mut Buffers,
    pub(crate) finished: &'a mut Vec<(DiskId, IoId, Outcome)>,
    pub(crate) blocking: &'a BlockingWorker,
}

impl ImageCx<'_> {
    /// The disk whose image this is.
    pub(crate) fn disk(&self) -> DiskId {
        self.image.disk()
    }

    /// Ends a pending job.
    pub(crate) fn finish(&mut self, io: IoId, outcome: Outcome) {
        self.finished.push((self.disk(), io, outcome));
    }

    /// The tag for an operation of this image; its completion arrives in [`Image::completed`].
    pub(crate) fn tag(&self, slot: u32) -> Tag {
        Tag {
            kind: crate::tag::IMAGE,
            owner: self.image.owner(),
            slot,
        }
    }
}

/// Public properties of an opened image.
#[derive(Clone, Debug)]
pub struct ImageInfo {
    /// Current size in bytes.
    pub size: u64,
    /// Smallest I/O that needs no read-modify-write, in bytes.
    pub block_size: u32,
    /// Whether it uses the system's page cache.
    pub buffered: bool,
    /// A remark for the operator about how it was opened, as a sentence.
    pub remark: Option<String>,
}

/// An image that is open but not attached.
pub struct OpenedImage {
    pub(crate) image: Box<dyn Image + Send>,
    /// Its properties.
    pub info: ImageInfo,
    /// Damage to the image since it was opened.
    pub(crate) condition: Arc<Condition>,
    /// Whether all of it is known to read as zeroes. Then the members of a new mirror are equal.
    pub(crate) is_zero: bool,
    /// Its datastore's control, if that is not its disk's.
    pub(crate) control: Option<UnderControl>,
    /// Dropped after the image.
    pub(crate) claims: Claims,
}

/// What an image holds against other users of its bytes until it is closed.
#[derive(Default)]
pub(crate) struct Claims {
    /// Its lease.
    pub(crate) lease: Option<Lease>,
    /// What the program that opened it holds.
    mark: Option<Box<dyn Send>>,
}

impl OpenedImage {
    pub(crate) fn new(image: Box<dyn Image + Send>, info: ImageInfo) -> OpenedImage {
        OpenedImage {
            image,
            info,
            condition: Arc::default(),
            is_zero: false,
            control: None,
            claims: Claims::default(),
        }
    }

    /// All of it reads as zeroes, if `is_zero`.
    fn with_zeroes(self, is_zero: bool) -> OpenedImage {
        OpenedImage { is_zero, ..self }
    }

    /// Records damage in `condition`.
    pub(crate) fn with_condition(self, condition: Arc<Condition>) -> OpenedImage {
        OpenedImage { condition, ..self }
    }

    /// Names the control of the image's datastore. Otherwise that of its disk holds ([`DiskSpec::control`]).
    ///
    /// [`DiskSpec::control`]: crate::DiskSpec::control
    #[must_use]
    pub fn under_control(self, under: UnderControl) -> OpenedImage {
        OpenedImage {
            control: Some(under),
            ..self
        }
    }

    /// Ties the image to a lease, which is released when the image is closed. Nothing is written after the lease's
    /// time.
    #[must_use]
    pub fn under(mut self, lease: Lease) -> OpenedImage {
        if let Some(fence) = lease.fence() {
            self.image = Box::new(Fenced::new(self.image, fence));
        }
        self.claims.lease = Some(lease);
        self
    }

    /// Puts the image behind a lease that others have, too: nothing is written after the lease's time.
    #[must_use]
    pub fn behind(mut self, lease: &Watch) -> OpenedImage {
        self.image = Box::new(Fenced::new(self.image, lease.fence()));
        self
    }

    /// Ties the image to something that is dropped when the image is closed: I/O that it was given may change its bytes
    /// until then.
    #[must_use]
    pub fn holding(mut self, mark: Box<dyn Send>) -> OpenedImage {
        self.claims.mark = Some(mark);
        self
    }
}

/// The fault that a guest sees for an error number of the kernel.
pub(crate) fn fault(errno: i32) -> Fault {
    match errno {
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Fault::NoSpace,
        libc::EROFS | libc::EPERM | libc::EACCES => Fault::ReadOnly,
        libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Fault::Unsupported,
        libc::EINVAL => Fault::Invalid,
        _ => Fault::Io,
    }
}

/// Converts a length to `usize`. The front ends have bounded it.
pub(crate) fn bytes(len: u64) -> usize {
    usize::try_from(len).expect("lengths fit the memory of a 64-bit host")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 20;

    /// Submits one block to an image.
    fn submit(image: &mut dyn Image, op: Op, offset: u64) -> Progress {
        let (mut ring, mut buffers) = (Ring::new().expect("a ring"), Buffers::new());
        let buffer = buffers.claim_pool(DiskId(0), 4096).expect("memory");
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
            image: ImageId::first(DiskId(0)),
            ring: &mut ring,
            buffers: &mut buffers,
            finished: &mut Vec::new(),
            blocking: &BlockingWorker::start("test", |_, _| ()).expect("a thread"),
        };
        image.start(&mut cx, job)
    }

    #[test]
    fn jobs_beyond_an_images_memory_are_refused_after_the_disk_grew() {
        let spec = "nvme,size=1M".parse().expect("a spec");
        let images = [memory::open(SIZE), emulated::open(&spec)];
        for opened in images {
            let mut image = opened.expect("it opens").image;
            image.resized(2 * SIZE);
            for op in [Op::Read, Op::Write, Op::WriteZeroes, Op::Discard] {
                for beyond in [SIZE - 512, SIZE, u64::MAX - 512] {
                    let refused = Progress::Done(Err(Fault::Invalid));
                    assert_eq!(
                        submit(&mut *image, op, beyond),
                        refused,
                        "{op:?} at {beyond}"
                    );
                }
                let last = submit(&mut *image, op, SIZE - 4096);
                assert!(matches!(last, Progress::Done(Ok(())) | Progress::Pending));
            }
        }
    }
}
