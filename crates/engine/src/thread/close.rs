//! The close of a detached disk's image: a task for the blocking worker, since the last close of a file may take
//! minutes.
//!
//! The kernel frees the space of a removed file in the call that closes it, and discards that space on the device. On
//! an I/O thread this would delay all its disks.
//!
//! # Always true
//! - the image, then the lease, are released before the detach is answered: the disk may be opened again at once

use super::{OnDetached, Reply};
use crate::blocking::Task;
use crate::datastore::Image;
use crate::lease::Lease;
use std::io;

/// The rest of a detached disk.
pub(super) struct Close {
    parts: Option<Parts>,
}

struct Parts {
    image: Box<dyn Image + Send>,
    lease: Option<Lease>,
    on_detached: OnDetached,
    reply: Reply,
}

impl Close {
    pub(super) fn new(
        image: Box<dyn Image + Send>,
        lease: Option<Lease>,
        on_detached: OnDetached,
        reply: Reply,
    ) -> Close {
        let parts = Parts {
            image,
            lease,
            on_detached,
            reply,
        };
        Close { parts: Some(parts) }
    }
}

impl Task for Close {
    fn run(&mut self) {
        if let Some(parts) = self.parts.take() {
            drop(parts.image);
            drop(parts.lease);
            (parts.on_detached)();
            let _ = parts.reply.send(Ok(()));
        }
    }

    /// No thread could be started: closes the image on this thread.
    fn fail(&mut self, _error: io::Error) {
        self.run();
    }
}
