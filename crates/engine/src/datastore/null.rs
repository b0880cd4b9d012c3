//! The `null` datastore: it completes every I/O at once, for measurements.
//!
//! Guests' buffers are left unchanged. Pool memory is cleared, so that a client cannot read another client's data.

use super::{Image, ImageCx, ImageInfo, Job, OpenedImage, Progress, bytes};
use tidegate_core::request::{Extent, ExtentKind, Op};

struct Null;

/// Opens a null image of `size` bytes.
pub fn open(size: u64) -> OpenedImage {
    let info = ImageInfo {
        size,
        block_size: 512,
        buffered: false,
        remark: None,
    };
    OpenedImage::new(Box::new(Null), info).with_zeroes(true)
}

impl Image for Null {
    fn timed(&self) -> bool {
        false
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn start(&mut self, cx: &mut ImageCx<'_>, job: Job) -> Progress {
        match job.op {
            Op::Read if cx.buffers.is_pool(job.data.buffer) => {
                cx.buffers.clear(job.data, bytes(job.len))
            }
            Op::Extents => {
                let all = Extent {
                    len: job.len,
                    kind: ExtentKind::Hole,
                };
                cx.buffers.put(job.data, &all.encode());
            }
            _ => {}
        }
        Progress::Done(Ok(()))
    }
}
