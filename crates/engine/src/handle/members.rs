//! Disks that are more than one image: how they are attached, and how their members are replaced.
//!
//! A disk's layout opens after it was attached: it reads what its members say about themselves, and refuses to serve a
//! disk whose members do not belong together. Until then the guest's requests wait.

use super::{Disk, DiskCore, Engine, answer, check_control, guard, send_query, wait};
use crate::datastore::away::Away;
use crate::datastore::condition::Harm;
use crate::datastore::{ImageInfo, OpenedImage};
use crate::disk_spec::{DiskSpec, PoolDisk};
use crate::error::{Error, Kind, Result};
use crate::thread::commands::{Query, What};
use crate::thread::layouts::{LayoutParts, Relay, Replace};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use tidegate_core::layout::cache::CacheSetup;
use tidegate_core::layout::{
    LayoutOrder, LayoutReport, LayoutSpec, MAX_TARGETS, MemberState, Members, Refusal, Target,
};
use tidegate_core::request::Fault;
use tidegate_core::units::Span;

/// A disk that was sent to its I/O thread.
pub(super) struct Attaching {
    pub(super) disk: Disk,
    pub(super) answer: Receiver<Result<std::result::Result<(), Refusal>>>,
}

/// The image that a member had before, until it is closed.
pub struct OldImage(pub(super) Receiver<Result<()>>);

impl OldImage {
    /// Waits until it is closed: its datastore has answered all I/O in flight.
    ///
    /// # Errors
    /// If that takes longer than `patience`: it is closed later.
    pub fn wait(&self, patience: Duration) -> Result<()> {
        wait(&self.0, Some(patience))
    }
}

impl Engine {
    /// Attaches a disk with a layout to the I/O thread with the fewest disks, and waits until its layout is open. `None`
    /// is a member that cannot be opened now: the layout decides whether it can do without.
    ///
    /// # Errors
    /// If the disk's settings do not fit its members, if the layout refuses them ([`Error::refusal`]), or if they do not
    /// answer within `patience`. Then nothing of the disk stays attached; what waits for a hanging datastore is closed
    /// when that answers.
    pub fn attach_members(
        &self,
        spec: DiskSpec,
        members: Vec<Option<OpenedImage>>,
        patience: Duration,
    ) -> Result<Disk> {
        if spec.is_one_image() {
            let text = format!("disk {}: it is one image, which has no members", spec.name);
            return Err(Error::new(Kind::Invalid, text));
        }
        let images = fitted(&spec, members)?;
        self.begin_attach(spec, images, None)?
            .finish(Some(patience))
    }
}

impl Attaching {
    /// Waits until the disk takes requests. Otherwise it is detached again.
    pub(super) fn finish(self, patience: Option<Duration>) -> Result<Disk> {
        let Attaching { disk, answer } = self;
        let opened = match patience {
            None => answer.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(patience) => answer.recv_timeout(patience),
        };
        let name = disk.name();
        match opened {
            Ok(Ok(Ok(()))) => Ok(disk),
            Ok(Ok(Err(refusal))) => {
                // What hangs is closed later.
                let _ = wait(&disk.begin_detach(), patience);
                Err(refused(name, refusal))
            }
            Ok(Err(error)) => {
                disk.core.give_back()();
                Err(error)
            }
            Err(RecvTimeoutError::Timeout) => {
                let busy = disk.busy_targets();
                drop(disk.begin_detach());
                Err(silent(name, &busy, patience.unwrap_or_default()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::new(Kind::Gone, "the disk's I/O thread has ended"))
            }
        }
    }
}

impl DiskCore {
    /// Rejects an image under control that this disk cannot have. Returns whether it names a control.
    fn check_image_control(&self, image: &OpenedImage) -> Result<bool> {
        if let Some(under) = &image.control {
            check_control(&self.accounts, &self.device.spec.name, under)?;
        }
        Ok(image.control.is_some())
    }

    /// The size of each of its images if the disk has this size. None: they stay as they are, since the disk is in a pool.
    pub(super) fn image_size(&self, size: u64) -> Result<Option<u64>> {
        let (layout, members) = (self.device.spec.layout, guard(&self.conditions).len());
        if self.device.spec.is_pooled() {
            return Ok(None);
        }
        if layout.is_plain() && members > 1 {
            let text = "the disk is being moved; change its size when that has ended";
            return Err(Error::new(Kind::Busy, text));
        }
        check_size(&self.device.spec, size, members)?;
        Ok(Some(layout.member_size(size, members)))
    }
}

impl Disk {
    /// How many images it has.
    pub fn members(&self) -> usize {
        guard(&self.core.conditions).len()
    }

    /// The worst damage to each of its images since that was opened, in the order of its members.
    pub fn member_harms(&self) -> Vec<Option<Harm>> {
        let conditions = guard(&self.core.conditions);
        conditions
            .iter()
            .map(|condition| condition.harm())
            .collect()
    }

    /// Gives a member another image, or none; its new I/O goes there at once. The old image is closed once it has no
    /// I/O in flight, which may take as long as its datastore hangs: the result waits for that, if the caller wants to.
    ///
    /// # Errors
    /// If the image is too small, a mirror has the member in sync and the image is not none, there is no such member, the
    /// disk moves, or it is detached.
    pub fn set_member(&self, target: Target, image: Option<OpenedImage>) -> Result<OldImage> {
        let _alone = guard(&self.core.changing_images);
        let spec = &self.core.device.spec;
        let (place, members) = (usize::from(target.0), self.members());
        if self.moves() {
            let text = "the disk is being moved; replace its image when that has ended";
            return Err(Error::new(Kind::Busy, text));
        }
        if place >= members {
            let text = format!(
                "disk {} has no member {place}: it has {members}, counted from 0",
                spec.name
            );
            return Err(Error::new(Kind::NotFound, text));
        }
        let is_away = image.is_none();
        let image = self.fitting(image, place, members)?;
        let controlled = self.core.check_image_control(&image)?;
        let condition = Arc::clone(&image.condition);
        let (closed, old) = channel();
        let replace = Replace {
            target,
            image,
            is_away,
            flash: None,
            closed,
        };
        self.core.change(What::Image(Box::new(replace)), None)?;
        guard(&self.core.conditions)[place] = condition;
        self.core.controlled.fetch_or(controlled, Ordering::Relaxed);
        Ok(OldImage(old))
    }

    /// Gives a mirror one more member, after its last one, and returns which. It is out of sync until
    /// [`LayoutOrder::Replace`] names it. The caller has recorded that the disk has so many members: a crash at any time
    /// afterwards leaves a mirror that opens with them. A disk in a pool gets one more column, and grants on it may follow.
    ///
    /// # Errors
    /// If the disk is no mirror and in no pool, or has as many members as are possible, the image is too small, or the disk is
    /// detached. With a flash cache, also if I/O in flight does not end within `patience`. Then it has as many members as before.
    pub fn add_member(&self, image: Option<OpenedImage>, patience: Duration) -> Result<Target> {
        let _alone = guard(&self.core.changing_images);
        let spec = &self.core.device.spec;
        let members = self.members();
        if spec.layout != LayoutSpec::Mirror && !spec.is_pooled() {
            let text = "only the number of members of a plain mirror can grow";
            return Err(Error::new(Kind::Unsupported, text));
        }
        let fits = match spec.is_pooled() {
            true if members < MAX_TARGETS => Ok(()),
            true => Err(format!("a disk has at most {MAX_TARGETS} columns")),
            false => spec.layout.check(members + 1),
        };
        fits.map_err(|why| Error::new(Kind::Invalid, format!("disk {}: {why}", spec.name)))?;
        let image = self.fitting(image, members, members)?;
        let controlled = self.core.check_image_control(&image)?;
        let condition = Arc::clone(&image.condition);
        let image = Box::new(image);
        match self.is_cached() {
            // The targets of the cache's devices follow the members: they change while nothing is in flight.
            true => {
                let grown = self.relay(Relay::Grow { image }, patience);
                if self.reported_members()? == members {
                    grown?;
                }
            }
            false => self.core.change(What::AddMember(image), None)?,
        }
        guard(&self.core.conditions).push(condition);
        self.core.controlled.fetch_or(controlled, Ordering::Relaxed);
        Ok(Target(u8::try_from(members).expect("checked above")))
    }

    /// The image of a member, none of them if it is away, as large as its layout of so many members needs it.
    fn fitting(
        &self,
        image: Option<OpenedImage>,
        place: usize,
        members: usize,
    ) -> Result<OpenedImage> {
        let spec = &self.core.device.spec;
        if spec.is_pooled() {
            return Ok(image.unwrap_or_else(|| away(0)));
        }
        let size = spec.layout.member_size(self.size(), members);
        let mut image = image.unwrap_or_else(|| away(size));
        check_member(&spec.name, place, &image, size)?;
        if image.info.size != size {
            image.image.resized(size);
        }
        Ok(image)
    }

    /// The state of its layout; `None` for a disk of one image.
    ///
    /// # Errors
    /// If it is detached.
    pub fn layout(&self) -> Result<Option<LayoutReport>> {
        let (id, inbox) = (self.core.device.id, self.core.device.inbox());
        let pending = send_query(inbox, |reply| Query::Layout(id, reply))?;
        answer(&pending)?.ok_or_else(|| Error::new(Kind::Gone, "the disk is not attached any more"))
    }

    /// Gives its layout an order. What the order begins goes on after the return.
    ///
    /// # Errors
    /// If the layout refuses it, or the disk is detached.
    pub fn order_layout(&self, order: LayoutOrder) -> Result<()> {
        self.core.change(What::Order(order), None)
    }

    /// The same for an order that the layout answers at once. After a timeout it is still carried out.
    ///
    /// # Errors
    /// If the layout refuses it or does not answer within `patience`, or the disk is detached.
    pub fn order_layout_within(&self, order: LayoutOrder, patience: Duration) -> Result<()> {
        self.core.change(What::Order(order), Some(patience))
    }

    /// Begins to move a disk of one image to another one. From now on each write goes to both, and everything else is
    /// copied in the background; [`Disk::layout`] tells how far that is, with the new image as member 1. A crash leaves the
    /// old image whole.
    ///
    /// # Errors
    /// If the disk has a layout or moves already, the image is too small, or I/O in flight does not end within `patience`.
    pub fn begin_transfer(&self, image: OpenedImage, patience: Duration) -> Result<()> {
        let _alone = guard(&self.core.changing_images);
        let spec = &self.core.device.spec;
        if !spec.is_one_image() || self.moves() {
            let text =
                "the disk moves already, or is not one image: replace its members one by one";
            return Err(Error::new(Kind::Invalid, text));
        }
        let (mut image, size) = (image, self.size());
        check_member(&spec.name, 1, &image, size)?;
        if image.info.size != size {
            image.image.resized(size);
        }
        let controlled = self.core.check_image_control(&image)?;
        let condition = Arc::clone(&image.condition);
        let image = Box::new(image);
        let begun = self.relay(Relay::Begin { image, size }, patience);
        if begun.is_ok() || self.reported_members()? == 2 {
            guard(&self.core.conditions).push(condition);
            self.core.controlled.fetch_or(controlled, Ordering::Relaxed);
            return Ok(());
        }
        begun
    }

    /// Holds the requests of a disk that moves, until [`Disk::end_transfer`]. Returns whether the new image has every byte:
    /// only then may the caller record that it is the disk.
    ///
    /// # Errors
    /// If the disk does not move, or I/O in flight does not end within `patience`. The caller then ends the move with the old
    /// image.
    pub fn pause_transfer(&self, patience: Duration) -> Result<bool> {
        let _alone = guard(&self.core.changing_images);
        self.must_move()?;
        self.relay(Relay::Pause, patience)?;
        let report = self.layout()?;
        let new = report.and_then(|report| report.members.get(1).copied());
        Ok(new.is_some_and(|new| new.state == MemberState::InSync))
    }

    /// Ends a move: the disk has only this image from now on, and its requests go on. For the new one, 1, the caller has
    /// called [`Disk::pause_transfer`] and recorded that it is the disk.
    ///
    /// # Errors
    /// If the disk does not move, or I/O in flight does not end within `patience`: then it goes on to move, and the caller
    /// tries again later.
    pub fn end_transfer(&self, keep: Target, patience: Duration) -> Result<OldImage> {
        let _alone = guard(&self.core.changing_images);
        self.must_move()?;
        if keep.0 >= 2 {
            let text = "a disk that moves has members 0 and 1";
            return Err(Error::new(Kind::Invalid, text));
        }
        let (closed, old) = channel();
        let ended = self.relay(Relay::End { keep, closed }, patience);
        if ended.is_ok() || self.reported_members()? < 2 {
            let mut conditions = guard(&self.core.conditions);
            conditions.swap(0, keep.0.into());
            conditions.truncate(1);
            return Ok(OldImage(old));
        }
        ended.map(|()| OldImage(old))
    }

    /// How many members its layouts have; 0 for a disk of one image.
    fn reported_members(&self) -> Result<usize> {
        Ok(self.layout()?.map_or(0, |report| report.members.len()))
    }

    /// Whether it is one image that moves to another.
    pub(super) fn moves(&self) -> bool {
        self.core.device.spec.is_one_image() && self.members() == 2
    }

    fn must_move(&self) -> Result<()> {
        if self.moves() {
            return Ok(());
        }
        Err(Error::new(Kind::Invalid, "the disk does not move"))
    }

    /// Changes what lies below the filters. If that takes longer than `patience`, the disk's requests go on as before.
    pub(super) fn relay(&self, relay: Relay, patience: Duration) -> Result<()> {
        let changed = self
            .core
            .change(What::Relay(Box::new(relay)), Some(patience));
        if matches!(&changed, Err(error) if error.kind() == Kind::TimedOut) {
            self.core.change(What::Unhold, None)?;
        }
        changed
    }

    /// The members that have I/O in flight; empty if that is not known.
    fn busy_targets(&self) -> Vec<Target> {
        let (id, inbox) = (self.core.device.id, self.core.device.inbox());
        let pending = send_query(inbox, |reply| Query::Busy(id, reply));
        pending
            .and_then(|pending| answer(&pending))
            .unwrap_or_default()
    }
}

/// The images of a disk's members, as large as the layout needs them.
pub(super) fn fitted(
    spec: &DiskSpec,
    members: Vec<Option<OpenedImage>>,
) -> Result<Vec<OpenedImage>> {
    if let Some(pool) = &spec.layout_options.pool {
        return columns(spec, pool, members);
    }
    let size = check_members(spec, &members)?;
    let images = members.into_iter().map(|member| match member {
        Some(mut opened) => {
            if opened.info.size != size {
                opened.image.resized(size);
            }
            opened
        }
        None => away(size),
    });
    Ok(images.collect())
}

/// The images of a pool's columns, each as large as it is.
fn columns(
    spec: &DiskSpec,
    pool: &PoolDisk,
    members: Vec<Option<OpenedImage>>,
) -> Result<Vec<OpenedImage>> {
    let invalid = |why| Error::new(Kind::Invalid, format!("disk {}: {why}", spec.name));
    let setup = &pool.setup;
    setup.check().map_err(invalid)?;
    let count = members.len();
    if setup.targets() > count || count > MAX_TARGETS {
        return Err(invalid(format!(
            "its pool's columns do not fit {count} images"
        )));
    }
    if setup.size != spec.size || setup.disk != spec.uuid || !spec.layout.is_plain() {
        return Err(invalid("its pool's catalog has another disk".to_owned()));
    }
    Ok(members
        .into_iter()
        .map(|one| one.unwrap_or_else(|| away(0)))
        .collect())
}

/// What the layout of a disk with these images is built of.
pub(super) fn parts(
    spec: &DiskSpec,
    images: &[OpenedImage],
    cache: Option<CacheSetup>,
) -> Option<LayoutParts> {
    (!spec.is_one_image() || cache.is_some()).then(|| LayoutParts {
        pool: spec.layout_options.pool.clone(),
        spec: spec.layout,
        members: Members {
            without: spec.layout_options.without,
            timeout: span(spec.layout_options.member_timeout),
            on_loss: spec.layout_options.on_loss,
            zeroed: images.iter().all(|opened| opened.is_zero),
            ..Members::new(spec.uuid, spec.size, images.len())
        },
        cache,
    })
}

pub(super) fn span(duration: Duration) -> Span {
    Span::from_nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
}

/// A member that cannot be opened.
pub(super) fn away(size: u64) -> OpenedImage {
    let info = ImageInfo {
        size,
        block_size: 512,
        buffered: false,
        remark: None,
    };
    OpenedImage::new(Box::new(Away), info)
}

/// Rejects members that do not fit the disk; returns the size of each.
fn check_members(spec: &DiskSpec, members: &[Option<OpenedImage>]) -> Result<u64> {
    let count = members.len();
    let invalid = |why| Error::new(Kind::Invalid, format!("disk {}: {why}", spec.name));
    spec.layout.check(count).map_err(invalid)?;
    check_size(spec, spec.size, count)?;
    let size = spec.layout.member_size(spec.size, count);
    for (number, member) in members.iter().enumerate() {
        if let Some(opened) = member {
            check_member(&spec.name, number, opened, size)?;
        }
    }
    Ok(size)
}

fn check_member(disk: &str, number: usize, opened: &OpenedImage, size: u64) -> Result<()> {
    if opened.info.size >= size {
        return Ok(());
    }
    let text = format!(
        "member {number} of disk {disk} has {} bytes, but needs {size}: was its image cut?",
        opened.info.size
    );
    Err(Error::new(Kind::Invalid, text))
}

/// Rejects a size that does not fill all members equally.
fn check_size(spec: &DiskSpec, size: u64, members: usize) -> Result<()> {
    let row = spec.layout.row(members);
    if size.is_multiple_of(row) {
        return Ok(());
    }
    let text = format!(
        "disk {} cannot have {size} bytes: with its layout {} and {members} members, sizes are multiples of {row} \
         bytes; the next is {}",
        spec.name,
        spec.layout,
        spec.layout.round_up(size, members)
    );
    Err(Error::new(Kind::Invalid, text))
}

/// The members did not answer in time.
fn silent(disk: &str, busy: &[Target], patience: Duration) -> Error {
    let who = match busy {
        [] => "its members do not answer".to_owned(),
        [one] => format!("member {} does not answer", one.0),
        many => {
            let numbers: Vec<String> = many.iter().map(|one| one.0.to_string()).collect();
            format!("members {} do not answer", numbers.join(", "))
        }
    };
    let text = format!(
        "disk {disk} did not open within {patience:?}: {who}; check the datastore, or attach the disk without that member"
    );
    Error::new(Kind::TimedOut, text)
}

/// The disk's layout refuses its members.
fn refused(disk: &str, refusal: Refusal) -> Error {
    let (kind, why) = match refusal {
        Refusal::Foreign(Target(member)) => (
            Kind::Invalid,
            format!(
                "member {member} belongs to another disk, or to another place of this one: give each member the image \
                 that it was created with"
            ),
        ),
        Refusal::Unknown(Target(member)) => (
            Kind::Invalid,
            format!(
                "member {member} begins with something that is no part of a disk: give it the image that it was \
                 created with, or an empty one"
            ),
        ),
        Refusal::Damaged(Target(member)) => (
            Kind::Io,
            format!(
                "what member {member} says about itself is damaged: check its datastore, and attach the disk without \
                 that member"
            ),
        ),
        Refusal::Blank(Target(member)) => (
            Kind::Invalid,
            format!(
                "member {member} is empty, but the others are not: give it the image that it was created with"
            ),
        ),
        Refusal::Split(Target(member)) => (
            Kind::Invalid,
            format!(
                "member {member} was written without the others, and they without it: choose which to keep, and \
                 attach the disk without the other"
            ),
        ),
        Refusal::Newer(Target(member)) => (
            Kind::Unsupported,
            format!("member {member} was written by a newer version of Tidegate: use that version"),
        ),
        Refusal::Missing(Target(member)) => (
            Kind::NotFound,
            format!(
                "member {member} is not here, and may have writes that the others lack: make its datastore available, \
                 or attach the disk without that member if it is lost for good"
            ),
        ),
        Refusal::Failed(Target(member), fault) => (
            Kind::Io,
            format!(
                "member {member} cannot be written ({}): check its datastore",
                said(fault)
            ),
        ),
    };
    Error::refused(kind, format!("disk {disk} is not attached: {why}"), refusal)
}

/// A fault in words.
fn said(fault: Fault) -> &'static str {
    match fault {
        Fault::Io => "I/O error",
        Fault::NoSpace => "no space",
        Fault::Invalid => "invalid request",
        Fault::ReadOnly => "read-only",
        Fault::Unsupported => "not supported",
        Fault::Gone => "not available",
    }
}
