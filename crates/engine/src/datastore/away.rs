//! The image of a member that is not here: each job on it fails at once.

use super::{Image, ImageCx, Job, Progress};
use tidegate_core::request::Fault;

/// See the module.
pub(crate) struct Away;

impl Image for Away {
    fn timed(&self) -> bool {
        false
    }

    fn start(&mut self, _cx: &mut ImageCx<'_>, _job: Job) -> Progress {
        Progress::Done(Err(Fault::Gone))
    }

    fn is_idle(&self) -> bool {
        true
    }
}
