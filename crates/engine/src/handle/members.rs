//! Disks that are more than one image: how they are attached, and how their members are replaced.
//!
//! A disk's layout opens after it was attached: it reads what its members say about themselves, and refuses to serve a
//! disk whose members do not belong together. Until then the guest's requests wait.

use super::{Disk, DiskCore, Engine, answer, guard, send_query, wait};
use crate::datastore::away::Away;
use crate::datastore::condition::Harm;
use crate::datastore::{ImageInfo, OpenedImage};
use crate::disk_spec::DiskSpec;
use crate::error::{Error, Kind, Result};
use crate::thread::commands::{Query, What};
use crate::thread::layouts::{LayoutParts, Replace};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use tidegate_core::layout::{MAX_TARGETS, Refusal, Target};
use tidegate_core::request::Fault;

/// A disk that was sent to its I/O thread.
pub(super) struct Attaching {
    pub(super) disk: Disk,
    pub(super) answer: Receiver<Result<std::result::Result<(), Refusal>>>,
}

/// The image that a member had before, until it is closed.
pub struct OldImage(Receiver<Result<()>>);

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
        let size = check_members(&spec, &members)?;
        let images = members.into_iter().map(|member| match member {
            Some(mut opened) => {
                if opened.info.size != size {
                    opened.image.resized(size);
                }
                opened
            }
            None => away(size),
        });
        self.begin_attach(spec, images.collect())?
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
    /// The size of each of its images if the disk has this size.
    pub(super) fn image_size(&self, size: u64) -> Result<u64> {
        let (layout, members) = (self.device.spec.layout, guard(&self.conditions).len());
        check_size(&self.device.spec, size, members)?;
        Ok(layout.member_size(size, members))
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

    /// Gives a member another image, or none; its new I/O goes there at once. The member after the last one is added.
    /// The old image is closed once it has no I/O in flight, which may take as long as its datastore hangs: the result
    /// waits for that, if the caller wants to.
    ///
    /// # Errors
    /// If the image is too small, there is no such member, or the disk is detached.
    pub fn set_member(&self, target: Target, image: Option<OpenedImage>) -> Result<OldImage> {
        let mut conditions = guard(&self.core.conditions);
        let spec = &self.core.device.spec;
        let size = spec.layout.member_size(self.size(), conditions.len());
        let mut image = image.unwrap_or_else(|| away(size));
        check_member(&spec.name, target.0.into(), &image, size)?;
        if usize::from(target.0) >= MAX_TARGETS {
            let text = format!("a disk has at most {MAX_TARGETS} members");
            return Err(Error::new(Kind::Invalid, text));
        }
        if image.info.size != size {
            image.image.resized(size);
        }
        let condition = Arc::clone(&image.condition);
        let (closed, old) = channel();
        let replace = Replace {
            target,
            image,
            closed,
        };
        self.core.change(What::Image(Box::new(replace)), None)?;
        match conditions.get_mut(usize::from(target.0)) {
            Some(place) => *place = condition,
            None => conditions.push(condition),
        }
        Ok(OldImage(old))
    }

    /// The members that have I/O in flight; empty if that is not known.
    fn busy_targets(&self) -> Vec<Target> {
        let (id, inbox) = (self.core.device.id, &self.core.device.inbox);
        let pending = send_query(inbox, |reply| Query::Busy(id, reply));
        pending
            .and_then(|pending| answer(&pending))
            .unwrap_or_default()
    }
}

/// What the layout of a disk with this many images is built of.
pub(super) fn parts(spec: &DiskSpec, members: usize) -> Option<LayoutParts> {
    let members = u8::try_from(members).expect("the members were counted");
    (!spec.layout.is_plain()).then_some(LayoutParts {
        spec: spec.layout,
        members,
    })
}

/// A member that cannot be opened.
fn away(size: u64) -> OpenedImage {
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
    if spec.layout.is_plain() {
        return Err(invalid("it is one image, which has no members".into()));
    }
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
        Refusal::NoState => (
            Kind::Invalid,
            "no member can be read as one of this disk: check that its images are the right ones"
                .to_owned(),
        ),
        Refusal::Foreign(Target(member)) => (
            Kind::Invalid,
            format!(
                "member {member} belongs to another disk, or to another place of this one: give each member the image \
                 that it was created with"
            ),
        ),
        Refusal::Newer(Target(member)) => (
            Kind::Unsupported,
            format!("member {member} was written by a newer version of Tidegate: use that version"),
        ),
        Refusal::Missing(Target(member)) => (
            Kind::NotFound,
            format!(
                "member {member} is not here, and may have writes that the others lack: make its datastore available"
            ),
        ),
        Refusal::Failed(fault) => (
            Kind::Io,
            format!(
                "too many members failed ({}): check their datastores",
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
