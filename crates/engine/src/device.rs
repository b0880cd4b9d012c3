//! The devices through which guests and clients reach their disks.
//!
//! [`ring`] and [`nbd`] live on I/O threads: they turn what arrives into requests and answers into what leaves.
//! The vhost-user protocol itself is in `vhost.rs`, off the data path.

use crate::device::ring::Reply;
use tidegate_front::nbd::session::ClientRequest;

pub(crate) mod interrupt_moderation;
pub(crate) mod nbd;
pub(crate) mod nbd_budget;
pub(crate) mod ring;
pub(crate) mod shunned;
pub(crate) mod thread_cx;

/// Who waits for a request's end.
pub(crate) enum ReplyTo {
    /// Nobody: the buffer belongs to no request.
    Nobody,
    /// A guest's queue.
    Ring { queue: u32, reply: Reply },
    /// An NBD client.
    Nbd {
        connection: u32,
        asked: ClientRequest,
    },
}
