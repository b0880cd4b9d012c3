//! The settings of a disk, as the daemon attaches it.

use crate::control::UnderControl;
use crate::datastore::OpenedImage;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::coalesce::Coalesce;
use tidegate_core::filter::FilterSpec;
use tidegate_core::layout::cache::area::Area;
use tidegate_core::layout::pool::{Generation, PoolSetup};
use tidegate_core::layout::{LayoutNotice, LayoutSpec, MEMBER_TIMEOUT, OnLoss};
use tidegate_core::round_robin::Share;

/// A disk as its front ends show it.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Its name, for logs.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Logical block size shown to guests, in bytes: 512 or 4096.
    pub block_size: u32,
    /// Refuse writes.
    pub read_only: bool,
    /// Offer guests a write-back cache that they flush; otherwise each write is durable before it is answered.
    pub write_back: bool,
    /// The answer to GET_ID; at most 20 bytes are shown.
    pub serial: String,
    /// Its identity, recorded in traces.
    pub uuid: [u8; 16],
    /// Maximum number of queues of a vhost-user front end.
    pub queues: u16,
    /// Maximum number of data segments in one request, announced to a vhost-user guest.
    pub seg_max: u16,
    /// Its filters, top first.
    pub filters: Vec<FilterSpec>,
    /// Its share of its I/O thread, and how its completions are coalesced.
    pub io: IoSettings,
    /// How its bytes lie on its images.
    pub layout: LayoutSpec,
    /// Details of its layout. A disk of one image has none.
    pub layout_options: LayoutOptions,
    /// The control of its datastore, and its policy there; without one its I/O is never scheduled. Of a disk with a
    /// layout: for those of its images that name no control of their own
    /// ([`OpenedImage::under_control`](crate::datastore::OpenedImage::under_control)).
    pub control: Option<UnderControl>,
}

/// Dense mode's details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseSettings {
    /// Whether the call for the last completion of a queue also waits for more, up to a millisecond. That saves interrupts of
    /// guests with one request at a time, and delays each of their requests.
    pub hold_last: bool,
}

/// How an I/O thread serves a disk's queues and connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoSettings {
    /// Its share of the thread's time, where others compete.
    pub share: Share,
    /// How its completions are coalesced; none: as the thread's default is.
    pub coalesce: Option<Coalesce>,
}

/// Details of a disk's layout.
#[derive(Clone, Debug)]
pub struct LayoutOptions {
    /// Members that are not used, whatever they have, one bit each: the administrator has given them up.
    pub without: u32,
    /// Receives what the layout reports when it happens.
    pub notices: Option<NoticeSink>,
    /// How long a member of a mirror may have I/O in flight and complete none before the mirror goes on without it.
    pub member_timeout: Duration,
    /// What a mirror does after the loss of every member in sync.
    pub on_loss: OnLoss,
    /// What the pool's catalog says of a disk in a pool. Its layout is the pool's, and its images are the columns', in order.
    pub pool: Option<Arc<PoolDisk>>,
}

/// A disk in a pool.
#[derive(Clone, Debug)]
pub struct PoolDisk {
    /// What the catalog says of it.
    pub setup: PoolSetup,
    /// The generation that it only shows. None: it is written.
    pub view: Option<Generation>,
}

impl DiskSpec {
    /// Whether its bytes are those of one image.
    pub(crate) fn is_one_image(&self) -> bool {
        self.layout.is_plain() && !self.is_pooled()
    }

    /// Whether it is in a pool.
    pub(crate) fn is_pooled(&self) -> bool {
        self.layout_options.pool.is_some()
    }
}

impl Default for LayoutOptions {
    fn default() -> LayoutOptions {
        LayoutOptions {
            without: 0,
            notices: None,
            member_timeout: Duration::from_nanos(MEMBER_TIMEOUT.as_nanos()),
            on_loss: OnLoss::Fail,
            pool: None,
        }
    }
}

/// A disk's part of a flash cache.
///
/// The cache opens in write-through mode. Once the caller has recorded that this use of the disk has begun, and that the
/// cache may have what the disk does not, it orders write-back mode.
pub struct Flash {
    /// Images of whole flash devices ([`SharedFile::image`](crate::datastore::dir::SharedFile::image)): one, or two with
    /// the same bytes. `None`: away.
    pub devices: Vec<Option<OpenedImage>>,
    /// The cache's identity.
    pub cache: [u8; 16],
    /// Where the disk's part is on each device.
    pub area: Area,
    /// The last use of the disk that its descriptor names, and the one that begins now.
    pub attachments: [u64; 2],
    /// Whether the descriptor says that the cache may have what the disk does not.
    pub has_dirty: bool,
    /// Devices that are not used, whatever they have, one bit each: the administrator has given them up.
    pub without: u32,
    /// What the cache's policy had learned in an earlier use of the disk ([`Disk::policy_state`](crate::Disk::policy_state)).
    /// It begins anew if this is empty, or something else.
    pub policy_state: Vec<u8>,
}

/// Receives a layout's notices, on the disk's I/O thread: it must return at once.
#[derive(Clone)]
pub struct NoticeSink(pub Arc<dyn Fn(LayoutNotice) + Send + Sync>);

impl fmt::Debug for NoticeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NoticeSink")
    }
}
