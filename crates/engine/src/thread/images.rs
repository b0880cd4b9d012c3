//! The images of an attached disk: one for each target of its layout, and those that were replaced and still close.
//!
//! A disk without a layout has one image, that of target 0. An effect of the shard names an image by its target. A
//! completion of the ring and a task of the blocking worker name it by its [`ImageId`]. An image that replaces another
//! takes the new jobs of the target at once, under a number of its own. The old image gets its completions until it has
//! none left; then it closes.
//!
//! # Always true
//! - no two open images of a disk have the same number
//! - no job is started on an image that was replaced

use super::close::ClosedImage;
use crate::datastore::away::Away;
use crate::datastore::fenced::{Fenced, Fences};
use crate::datastore::{Claims, Image, OpenedImage};
use crate::error::{Error, Kind, Result};
use crate::tag::{ImageId, MAX_IMAGES};
use std::sync::mpsc::Sender;
use tidegate_core::layout::{LayoutSpec, Target};
use tidegate_core::request::DiskId;

/// An open image on this thread.
pub(super) struct Member {
    pub(super) id: ImageId,
    pub(super) image: Box<dyn Image + Send>,
    /// Whether it is a flash device that has gates.
    is_gated: bool,
    /// Released after the image is closed.
    claims: Claims,
}

impl Member {
    fn new(id: ImageId, opened: OpenedImage) -> Member {
        Member {
            id,
            image: opened.image,
            is_gated: false,
            claims: opened.claims,
        }
    }

    /// It is a flash device behind these gates. Where no member has a lease there are none.
    fn refence(&mut self, fences: &Fences) {
        if !self.is_gated && fences.are_none() {
            return;
        }
        if !std::mem::replace(&mut self.is_gated, true) {
            let image = std::mem::replace(&mut self.image, Box::new(Away));
            self.image = Box::new(Fenced::flash(image, Fences::default()));
        }
        self.image.refence(fences);
    }

    /// Its parts, for the task that closes it.
    pub(super) fn into_closed(self) -> ClosedImage {
        ClosedImage {
            image: self.image,
            claims: self.claims,
        }
    }
}

/// An image that was replaced.
struct Replaced {
    member: Member,
    /// Answered when it is closed.
    reply: Sender<Result<()>>,
}

/// See the module.
pub(super) struct Images {
    /// That of target 0.
    first: Member,
    /// Those of the other targets, in order.
    more: Vec<Member>,
    replaced: Vec<Replaced>,
    /// How many members the disk has, and its layout, if flash devices follow them.
    flash: Option<(usize, LayoutSpec)>,
}

impl Images {
    /// The images of a disk's targets, in order.
    ///
    /// # Panics
    /// If there are none, or more than [`MAX_IMAGES`]; the handle refuses those before.
    pub(super) fn new(disk: DiskId, opened: Vec<OpenedImage>) -> Images {
        assert!(
            opened.len() <= MAX_IMAGES as usize,
            "a disk has at most {MAX_IMAGES} images"
        );
        let mut members = (0..)
            .zip(opened)
            .map(|(number, opened)| Member::new(ImageId::new(disk, number), opened));
        Images {
            first: members.next().expect("a disk has an image"),
            more: members.collect(),
            replaced: Vec::new(),
            flash: None,
        }
    }

    /// The image of a target.
    #[inline]
    pub(super) fn of_target(&mut self, target: Target) -> &mut Member {
        match target.0 {
            0 => &mut self.first,
            other => &mut self.more[usize::from(other) - 1],
        }
    }

    /// The image with this number.
    #[inline]
    pub(super) fn by_id(&mut self, id: ImageId) -> Option<&mut Member> {
        if self.first.id == id {
            return Some(&mut self.first);
        }
        self.by_higher_id(id)
    }

    fn by_higher_id(&mut self, id: ImageId) -> Option<&mut Member> {
        // An image that replaced none has the number of its target.
        let guess = (id.number() as usize).wrapping_sub(1);
        let at = match self.more.get(guess).is_some_and(|member| member.id == id) {
            true => Some(guess),
            false => self.more.iter().position(|member| member.id == id),
        };
        if let Some(at) = at {
            return Some(&mut self.more[at]);
        }
        let mut replaced = self
            .replaced
            .iter_mut()
            .map(|replaced| &mut replaced.member);
        replaced.find(|member| member.id == id)
    }

    /// The last target that has one.
    pub(super) fn last(&self) -> Target {
        Target(u8::try_from(self.more.len()).expect("a disk has at most MAX_IMAGES images"))
    }

    /// All of them, those that were replaced at last.
    pub(super) fn all(&self) -> impl Iterator<Item = &Member> {
        let replaced = self.replaced.iter().map(|replaced| &replaced.member);
        self.of_targets().chain(replaced)
    }

    /// Those of the targets, in order.
    pub(super) fn of_targets(&self) -> impl Iterator<Item = &Member> {
        std::iter::once(&self.first).chain(&self.more)
    }

    /// Those of the members, in order, to change them.
    pub(super) fn of_members_mut(&mut self) -> impl Iterator<Item = &mut Member> {
        let members = self.flash.map_or(usize::MAX, |(members, _)| members);
        std::iter::once(&mut self.first)
            .chain(&mut self.more)
            .take(members)
    }

    /// Whether any was replaced and is not closed yet.
    pub(super) fn has_replaced(&self) -> bool {
        !self.replaced.is_empty()
    }

    /// The next image that was replaced and has no job in flight: it may close.
    pub(super) fn idle_replaced(&self) -> impl Iterator<Item = ImageId> {
        let members = self.replaced.iter().map(|replaced| &replaced.member);
        members
            .filter(|member| member.image.is_idle())
            .map(|member| member.id)
    }

    /// Removes a replaced image that has closed.
    pub(super) fn remove_replaced(&mut self, id: ImageId) -> Option<(Member, Sender<Result<()>>)> {
        let at = self.replaced.iter().position(|old| old.member.id == id)?;
        let Replaced { member, reply } = self.replaced.remove(at);
        Some((member, reply))
    }

    /// Gives a target another image, or a first one to the target after the last. `reply` is answered when the old image
    /// is closed.
    pub(super) fn replace(
        &mut self,
        disk: DiskId,
        target: Target,
        opened: OpenedImage,
        reply: Sender<Result<()>>,
    ) -> Result<()> {
        let member = Member::new(self.free_id(disk)?, opened);
        let last = self.more.len();
        match usize::from(target.0) {
            at if at == last + 1 => {
                self.more.push(member);
                let _ = reply.send(Ok(()));
            }
            at if at <= last => {
                let old = std::mem::replace(self.of_target(target), member);
                self.replaced.push(Replaced { member: old, reply });
            }
            at => {
                let text = format!(
                    "the disk has {} targets, so it cannot get number {at}",
                    last + 1
                );
                return Err(Error::new(Kind::Invalid, text));
            }
        }
        self.refence_flash();
        Ok(())
    }

    /// A number that no open image of the disk has.
    fn free_id(&self, disk: DiskId) -> Result<ImageId> {
        let used: Vec<ImageId> = self.all().map(|member| member.id).collect();
        let ids = (0..MAX_IMAGES).map(|number| ImageId::new(disk, number));
        ids.into_iter()
            .find(|id| !used.contains(id))
            .ok_or_else(|| {
                let text = "too many replaced images of this disk still have I/O in flight; \
                            detach the disk once their datastores answer, or restart the host";
                Error::new(Kind::Busy, text)
            })
    }

    /// Adds the image of one more member, after the last one, and returns its target. Flash devices have the targets that
    /// follow.
    pub(super) fn insert(&mut self, disk: DiskId, opened: OpenedImage) -> Result<Target> {
        let member = Member::new(self.free_id(disk)?, opened);
        let members = match &mut self.flash {
            None => self.more.len() + 1,
            Some((members, _)) => {
                *members += 1;
                *members - 1
            }
        };
        self.more.insert(members - 1, member);
        self.refence_flash();
        Ok(Target(
            u8::try_from(members).expect("a disk has at most MAX_IMAGES images"),
        ))
    }

    /// Flash devices follow so many members of this layout, or will. Nothing is written to them after the members' leases
    /// are lost.
    pub(super) fn set_flash(&mut self, members: usize, layout: LayoutSpec) {
        self.flash = Some((members, layout));
        self.refence_flash();
    }

    /// The members may have other leases.
    fn refence_flash(&mut self) {
        let Some((members, layout)) = self.flash else {
            return;
        };
        let fences = self.fences(members, layout);
        for device in &mut self.more[members - 1..] {
            device.refence(&fences);
        }
    }

    /// The fences of the members.
    fn fences(&self, members: usize, layout: LayoutSpec) -> Fences {
        let together = match layout {
            LayoutSpec::Plain | LayoutSpec::Stripe { .. } => 1,
            LayoutSpec::MirrorStripe { .. } => 2,
            LayoutSpec::Mirror => members,
        };
        // While a plain disk moves, its bytes are on its old image.
        let members = if layout.is_plain() { 1 } else { members };
        let members: Vec<&Member> = self.of_targets().take(members).collect();
        let groups = members.chunks(together).map(|group| {
            // A member that is away has no lease. One that only a lock guards cannot be lost.
            let leases = group
                .iter()
                .filter_map(|member| member.claims.lease.as_ref());
            let fences: Option<Vec<_>> = leases.map(|lease| lease.fence().cloned()).collect();
            fences.unwrap_or_default()
        });
        Fences(groups.collect())
    }

    /// Removes the image of the last target again. No job was started on it.
    pub(super) fn remove_last(&mut self) -> Option<ClosedImage> {
        self.more.pop().map(Member::into_closed)
    }

    /// Leaves only the image of one member, which becomes that of target 0, and those of flash devices. `reply` is answered
    /// when the last of the others is closed.
    pub(super) fn keep(&mut self, target: Target, reply: Sender<Result<()>>) {
        let members = match &mut self.flash {
            None => self.more.len() + 1,
            Some((members, _)) => std::mem::replace(members, 1),
        };
        let mut others: Vec<Member> = self.more.drain(..members - 1).collect();
        if let Some(at) = usize::from(target.0).checked_sub(1)
            && let Some(kept) = others.get_mut(at)
        {
            std::mem::swap(kept, &mut self.first);
        }
        for member in others {
            let reply = reply.clone();
            self.replaced.push(Replaced { member, reply });
        }
        self.refence_flash();
    }

    /// Leaves only the images of so many targets, at least one. `reply` is answered when the last of the others is closed.
    pub(super) fn truncate(&mut self, targets: usize, reply: &Sender<Result<()>>) {
        self.flash = self.flash.filter(|(members, _)| targets > *members);
        let others = self
            .more
            .split_off(targets.saturating_sub(1).min(self.more.len()));
        for member in others {
            let reply = reply.clone();
            self.replaced.push(Replaced { member, reply });
        }
    }

    /// All of them, once they are closed and none that was replaced is left.
    pub(super) fn into_closed(self) -> Vec<ClosedImage> {
        let members = std::iter::once(self.first).chain(self.more);
        members.map(Member::into_closed).collect()
    }
}
