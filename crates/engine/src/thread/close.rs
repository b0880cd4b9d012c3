//! The close of unused images: a task for the blocking worker, since the last close of a file may take minutes.
//!
//! The kernel frees the space of a removed file in the call that closes it, and discards that space on the device. On
//! an I/O thread this would delay all its disks.
//!
//! # Always true
//! - each image, then its lease and other claims, are released before the command is answered: the image may be opened again at once

use super::{OnDetached, Reply};
use crate::blocking::Task;
use crate::datastore::{Claims, Image, OpenedImage};
use std::io;

/// An image whose operations have all ended.
pub(super) struct ClosedImage {
    pub(super) image: Box<dyn Image + Send>,
    pub(super) claims: Claims,
}

impl ClosedImage {
    /// An image that was never used.
    pub(super) fn of(opened: OpenedImage) -> ClosedImage {
        ClosedImage {
            image: opened.image,
            claims: opened.claims,
        }
    }
}

/// The images to close, and what follows.
pub(super) struct Close {
    parts: Option<Parts>,
}

struct Parts {
    images: Vec<ClosedImage>,
    then: OnDetached,
    reply: Reply,
}

impl Close {
    pub(super) fn new(images: Vec<ClosedImage>, then: OnDetached, reply: Reply) -> Close {
        let parts = Parts {
            images,
            then,
            reply,
        };
        Close { parts: Some(parts) }
    }
}

impl Task for Close {
    fn run(&mut self) {
        if let Some(parts) = self.parts.take() {
            for closed in parts.images {
                drop(closed.image);
                drop(closed.claims);
            }
            (parts.then)();
            let _ = parts.reply.send(Ok(()));
        }
    }

    /// No thread could be started: closes the images on this thread.
    fn fail(&mut self, _error: io::Error) {
        self.run();
    }
}
