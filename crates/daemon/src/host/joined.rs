//! An attached disk as the daemon sees it: what its images have in common.
//!
//! # Always true
//! - For a plain disk, each value is its image's own.

use std::sync::Arc;

use tidegate_engine::datastore::OpenedImage;
use tidegate_engine::datastore::nbd as upstream;
use tidegate_engine::lease::Watch;

use super::Opened;
use crate::config::plan::DiskPlan;

/// See the module.
pub(super) struct Joined {
    /// The largest size that its images have room for, when they were opened.
    pub(super) opened_size: u64,
    /// NBD requests must be aligned to this many bytes.
    pub(super) unit: u32,
    /// Its size must be a multiple of this while it is attached.
    pub(super) size_unit: u64,
    /// How its images are open.
    pub(super) io: String,
    pub(super) upstream: Vec<Arc<upstream::Counts>>,
    /// The watches of its leases that can be lost.
    pub(super) watches: Vec<Watch>,
    /// Whether it survives the loss of a member.
    pub(super) is_redundant: bool,
    pub(super) members: Vec<Option<MemberIo>>,
}

/// How a member's image is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberIo {
    /// How: `direct`, `memory`, ...
    pub(crate) io: String,
    /// Size of its image in bytes when it was opened.
    pub(crate) size: u64,
}

/// Separates the images from what is to be known of them.
pub(super) fn take_apart(
    plan: &DiskPlan,
    opened: Vec<Option<Opened>>,
) -> (Vec<Option<OpenedImage>>, Joined) {
    let there = || opened.iter().flatten();
    let smallest = there().map(Opened::size).min().unwrap_or(0);
    let largest_unit = there().map(Opened::size_unit).max().unwrap_or(1);
    let member = |opened: &Opened| MemberIo {
        io: opened.io.clone(),
        size: opened.size(),
    };
    let mut io: Vec<_> = there().map(|opened| opened.io.clone()).collect();
    io.dedup();
    let seen = Joined {
        opened_size: plan.layout.size_for(smallest, plan.members.len()),
        unit: there().map(Opened::unit).max().unwrap_or(1),
        size_unit: match plan.layout.is_plain() {
            true => largest_unit,
            false => plan.layout.row(plan.members.len()),
        },
        io: io.join(", "),
        upstream: there()
            .filter_map(|opened| opened.upstream.clone())
            .collect(),
        watches: there().filter_map(|opened| opened.watch.clone()).collect(),
        is_redundant: plan.layout.is_redundant(),
        members: opened
            .iter()
            .map(|opened| opened.as_ref().map(member))
            .collect(),
    };
    let images = opened
        .into_iter()
        .map(|opened| opened.map(|opened| opened.image));
    (images.collect(), seen)
}
