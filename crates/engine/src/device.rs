//! The devices through which guests and clients reach their disks.
//!
//! [`ring`] and [`nbd`] run on I/O threads: they turn incoming data into requests and completions into replies.
//! The vhost-user protocol itself is in `vhost.rs`, off the data path.

use crate::device::ring::Reply;
use tidegate_front::nbd::session::ClientRequest;

mod account;
pub(crate) mod nbd;
pub(crate) mod nbd_budget;
pub(crate) mod ring;
pub(crate) mod shunned;
pub(crate) mod thread_cx;

/// The destination of a request's completion.
#[derive(Default)]
pub(crate) enum ReplyTo {
    /// None: the buffer belongs to no request.
    #[default]
    Nobody,
    /// A guest's queue.
    Ring { queue: u32, reply: Reply },
    /// An NBD client.
    Nbd {
        connection: u32,
        client_request: ClientRequest,
    },
}
