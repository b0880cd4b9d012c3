//! The layouts of this thread's disks: how they are built, how they open, and how a member is replaced.
//!
//! The shard has the layouts and decides. This file builds them when a disk is attached, passes the result of their
//! opening to the handle, and exchanges the images below them.

use super::{IoThread, Reply};
use crate::datastore::OpenedImage;
use crate::error::{Error, Kind, Result};
use std::sync::mpsc::Sender;
use tidegate_core::layout::stripe::Stripe;
use tidegate_core::layout::{Layout, LayoutSpec, Refusal, Target};
use tidegate_core::request::DiskId;

/// Told when a disk takes requests, or why it does not.
pub(crate) type Opened = Sender<Result<std::result::Result<(), Refusal>>>;

/// What a layout is built of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayoutParts {
    pub(crate) spec: LayoutSpec,
    pub(crate) members: u8,
}

/// Gives a target another image.
pub(crate) struct Replace {
    pub(crate) target: Target,
    pub(crate) image: OpenedImage,
    /// Told when the old image is closed.
    pub(crate) closed: Reply,
}

impl IoThread {
    /// The layout of a disk that is being attached.
    pub(super) fn build_layout(
        &mut self,
        parts: &LayoutParts,
        _size: u64,
    ) -> Result<Box<dyn Layout>> {
        match parts.spec {
            LayoutSpec::Stripe { chunk } => Ok(Box::new(Stripe::new(parts.members, chunk))),
            other => {
                let text = format!("{other} is not supported yet");
                Err(Error::new(Kind::Unsupported, text))
            }
        }
    }

    /// A disk's layout has opened, or refuses to.
    pub(super) fn layout_opened(
        &mut self,
        disk: DiskId,
        outcome: std::result::Result<(), Refusal>,
    ) {
        let place = self.disks[disk.0 as usize].as_mut();
        if let Some(opening) = place.and_then(|place| place.opening.take()) {
            let _ = opening.send(Ok(outcome));
        }
    }

    /// The targets of a disk whose images have I/O in flight.
    pub(super) fn busy_targets(&self, disk: DiskId) -> Vec<Target> {
        let place = self.attached_disk(disk);
        let members = place
            .into_iter()
            .flat_map(|place| place.images.of_targets());
        let busy = (0..)
            .map(Target)
            .zip(members)
            .filter(|(_, member)| !member.image.is_idle());
        busy.map(|(target, _)| target).collect()
    }

    /// Gives a target another image. The old one is closed once it has no I/O in flight.
    pub(super) fn replace_image(&mut self, disk: DiskId, replace: Replace, reply: Reply) {
        let place = self.disks[disk.0 as usize]
            .as_mut()
            .expect("the caller has found the disk");
        let Replace {
            target,
            image,
            closed,
        } = replace;
        let replaced = place.images.replace(disk, target, image, closed);
        place.closes |= place.images.has_replaced();
        self.note_timed();
        let _ = reply.send(replaced);
        self.close_if_unused(disk);
    }

    /// Closes the images of a disk that were replaced and have no I/O in flight.
    pub(super) fn close_replaced(&mut self, disk: DiskId) {
        let Some(place) = self.attached_disk(disk) else {
            return;
        };
        let idle: Vec<_> = place.images.idle_replaced().collect();
        for id in idle {
            let mut closed = false;
            self.with_image(id, |image, cx| closed = image.close(cx));
            let place = self.disks[disk.0 as usize].as_mut();
            if closed
                && let Some(place) = place
                && let Some((member, reply)) = place.images.remove_replaced(id)
            {
                place.closes = place.images.has_replaced() || place.detaching.is_some();
                self.note_timed();
                let images = vec![member.into_closed()];
                self.send_close(disk, images, Box::new(|| ()), reply);
            }
        }
    }
}
