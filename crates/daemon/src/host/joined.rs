//! An attached disk as the daemon sees it: what its images have in common.
//!
//! # Always true
//! - For a plain disk, each value is its image's own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Whether it survives the loss of a member.
    pub(super) is_redundant: bool,
    members: Mutex<Vec<Option<OneMember>>>,
}

/// What is known of a member that is open.
#[derive(Clone)]
struct OneMember {
    io: MemberIo,
    /// The watch of its lease, if that can be lost.
    watch: Option<Watch>,
    upstream: Option<Arc<upstream::Counts>>,
}

/// How a member's image is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemberIo {
    /// How: `direct`, `memory`, ...
    pub(crate) io: String,
    /// Size of its image in bytes when it was opened.
    pub(crate) size: u64,
}

impl Joined {
    /// How its members are open, in the layout's order. None: away.
    pub(super) fn members(&self) -> Vec<Option<MemberIo>> {
        let members = self.table();
        members
            .iter()
            .map(|one| Some(one.as_ref()?.io.clone()))
            .collect()
    }

    /// The watches of its leases that can be lost.
    pub(super) fn watches(&self) -> Vec<Watch> {
        let members = self.table();
        let watches = members.iter().flatten();
        watches.filter_map(|one| one.watch.clone()).collect()
    }

    /// The counts of its upstreams.
    pub(super) fn upstreams(&self) -> Vec<Arc<upstream::Counts>> {
        let members = self.table();
        let counts = members.iter().flatten();
        counts.filter_map(|one| one.upstream.clone()).collect()
    }

    /// Records that a member has another image, or none.
    pub(super) fn exchange(&self, member: usize, opened: Option<Described>) {
        if let Some(place) = self.table().get_mut(member) {
            *place = opened.map(|opened| opened.0);
        }
    }

    /// Records that it has one more member.
    pub(super) fn add(&self, opened: Option<Described>) {
        self.table().push(opened.map(|opened| opened.0));
    }

    fn table(&self) -> MutexGuard<'_, Vec<Option<OneMember>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The description of an open image.
#[derive(Clone)]
pub(crate) struct Described(OneMember);

impl Described {
    pub(super) fn of(opened: &Opened) -> Described {
        Described(OneMember {
            io: MemberIo {
                io: opened.io.clone(),
                size: opened.size(),
            },
            watch: opened.watch.clone(),
            upstream: opened.upstream.clone(),
        })
    }
}

/// Separates the images from what is to be known of them.
pub(super) fn take_apart(
    plan: &DiskPlan,
    opened: Vec<Option<Opened>>,
) -> (Vec<Option<OpenedImage>>, Joined) {
    let there = || opened.iter().flatten();
    let smallest = there().map(Opened::size).min().unwrap_or(0);
    let largest_unit = there().map(Opened::size_unit).max().unwrap_or(1);
    let member = |opened: &Option<Opened>| opened.as_ref().map(|opened| Described::of(opened).0);
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
        is_redundant: plan.layout.is_redundant(),
        members: Mutex::new(opened.iter().map(member).collect()),
    };
    let images = opened
        .into_iter()
        .map(|opened| opened.map(|opened| opened.image));
    (images.collect(), seen)
}
