//! Commands on the members of attached disks: added, replaced, removed and compared while guests use the disk.
//!
//! # Always true
//! - A member's image is exchanged only after the others have recorded that the layout does without it.
//! - The descriptor names a new member before the layout copies to it: after a crash the copy goes on there.
//! - The old data of a replaced member is deleted only after the descriptor no longer names it, and the new data only while
//!   the descriptor does not name it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_api::descriptor::{Descriptor, MemberPlace};
use tidegate_api::job::Job;
use tidegate_api::layout::{Differences, DiskScrub, MemberList};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::{LayoutOrder, MemberState, Target};

use super::members::{OpenMembers, Opening, not_there};
use super::relocate::must_have_space;
use super::{DiskService, layouts};
use crate::config::plan::layout;
use crate::disks::attached::Attached;
use crate::disks::copy::Progress;
use crate::host;
use crate::os_error::{self, Outcome};
use crate::store::Found;

/// How often a job asks a layout how far it is.
const EVERY: Duration = Duration::from_millis(200);

/// How long a command waits until the engine has closed a member's old image.
pub(super) const CLOSING: Duration = Duration::from_secs(10);

/// Why a rebuild of a new member has not begun.
pub(super) enum NotBegun {
    /// The disk's descriptor does not name the new member.
    NotCommitted(Problem),
    /// It does: the daemon tries again by itself.
    Committed(Problem),
}

impl NotBegun {
    /// The problem, after the new member was deleted if the disk does not have it.
    pub(super) fn undone(self, delete: impl FnOnce() -> Outcome<()>) -> Problem {
        match self {
            NotBegun::NotCommitted(problem) => match delete() {
                Ok(()) => problem,
                Err(second) => problem.because(second),
            },
            NotBegun::Committed(problem) => {
                problem.because("the disk has the new member now, and its rebuild is tried again")
            }
        }
    }
}

impl DiskService {
    /// The members of a disk.
    pub(crate) fn disk_members(&self, name: &Name) -> Outcome<MemberList> {
        let disk = self.disk(name)?;
        Ok(MemberList {
            layout: disk.layout,
            members: disk.members,
        })
    }

    /// Compares the members of an attached disk.
    pub(crate) fn scrub(&self, name: &Name, order: DiskScrub) -> Outcome<Job> {
        let live = self.must_be_attached(name)?;
        let repair = order.differences == Differences::Repair;
        live.order(LayoutOrder::Scrub { repair })
            .map_err(|e| e.within(format!("cannot compare the members of disk {name}")))?;
        let what = match repair {
            false => format!("compare the members of disk {name}"),
            true => format!("compare the members of disk {name}, and repair differences"),
        };
        let remedy = format!("start it again: tidegate disk scrub {name}");
        Ok(self
            .jobs
            .start_once(what, name.clone(), remedy, move |progress| {
                follow_scrub(&live, progress)
            }))
    }

    /// Gives an attached disk a member in an empty place, or a mirror one more.
    pub(crate) fn add_member(&self, name: &Name, place: MemberPlace) -> Outcome<Job> {
        let what = format!("cannot add a member to disk {name}");
        let claim = self.claim(name, &what)?;
        let (disk, _turn) = self.find_to_change(name)?;
        let members = &disk.descriptor.members;
        let empty = members.iter().position(|member| member.removed);
        claim.keep(&place.datastore);
        let Some(nth) = empty else {
            return self.grow(&disk, place, &what);
        };
        self.exchange_member(disk, nth, place, &what)
    }

    /// Gives an attached disk another member in place of one.
    pub(crate) fn replace_member(
        &self,
        name: &Name,
        nth: usize,
        place: MemberPlace,
    ) -> Outcome<Job> {
        let what = format!("cannot replace member {nth} of disk {name}");
        let claim = self.claim(name, &what)?;
        if nth == 0 {
            claim.keep(&place.datastore);
            return self.exchange_home(name, place, &what);
        }
        let (disk, _turn) = self.find_to_change(name)?;
        must_have(&disk, nth, &what)?;
        must_be_elsewhere(&disk, nth, &place).map_err(|e| e.within(&what))?;
        claim.keep(&place.datastore);
        self.exchange_member(disk, nth, place, &what)
    }

    /// Removes a member of an attached disk, and its data. Its place is empty afterwards.
    pub(crate) fn remove_member(&self, name: &Name, nth: usize) -> Outcome<()> {
        let what = format!("cannot remove member {nth} of disk {name}");
        let _claim = self.claim(name, &what)?;
        let (mut disk, _turn) = self.find_to_change(name)?;
        must_have(&disk, nth, &what)?;
        must_not_be_home(&disk, nth, &what)?;
        let live = self.must_be_attached(name).map_err(|e| e.within(&what))?;
        if disk.descriptor.members[nth].removed {
            return Ok(());
        }
        let old = self.member_of(&disk, nth);
        drop_member(&live, nth).map_err(|e| e.within(&what))?;
        disk.descriptor.members[nth].removed = true;
        self.change_members(&live, &disk)?;
        let image = live.set_member(nth, None, None, None)?;
        self.delete_old(&disk, nth, old, &image);
        tracing::info!(disk = %name, member = nth, "a member was removed");
        Ok(())
    }

    /// Puts a new member in a place of an attached disk, and begins to rebuild it.
    fn exchange_member(
        &self,
        mut disk: Found,
        nth: usize,
        place: MemberPlace,
        what: &str,
    ) -> Outcome<Job> {
        let live = self
            .must_be_attached(&disk.name)
            .map_err(|e| e.within(what))?;
        let old = self.member_of(&disk, nth);
        let before = disk.clone();
        let was_removed = disk.descriptor.members[nth].removed;
        disk.descriptor.members[nth] = place;
        let new = self
            .create_new_member(&before, &disk, nth)
            .map_err(|e| e.within(what))?;
        let commit = || self.change_members(&live, &disk);
        let begun = self.begin_rebuild(&live, &disk, nth, &new, commit);
        let undo = || self.store.delete_member(&before, &new);
        let image = begun.map_err(|begun| begun.undone(undo).within(what))?;
        if !was_removed {
            self.delete_old(&disk, nth, old, &image);
        }
        Ok(self.follow_new_member(live, &disk, nth))
    }

    /// Creates a member that the disk's descriptor does not name yet. The copy of the descriptor beside it is as before:
    /// after a crash it must not count.
    pub(super) fn create_new_member(
        &self,
        before: &Found,
        disk: &Found,
        nth: usize,
    ) -> Outcome<Found> {
        let new = self.new_member(disk, nth)?;
        self.store.create_member(before, &new)?;
        Ok(new)
    }

    /// A disk's member that is to be created, checked.
    pub(super) fn new_member(&self, disk: &Found, nth: usize) -> Outcome<Found> {
        let spec = layout::of(&disk.descriptor)?;
        if !spec.is_redundant() {
            return Err(Problem::new(
                ProblemCode::Unsupported,
                format!("its layout is {spec}: each byte is on one member only"),
            )
            .remedy("create a disk with another layout, and copy over NBD"));
        }
        // A datastore that this host does not have is an error of the new member only.
        self.store
            .datastore(&disk.descriptor.members[nth].datastore)?;
        let members = self.founds(disk)?;
        layouts::must_be_apart(spec, &members)?;
        let new = members
            .into_iter()
            .find_map(|(number, member)| (number == nth).then_some(member));
        let new = new.ok_or_else(|| {
            os_error::invalid("the new member has no place").remedy("name one with --on")
        })?;
        self.must_be_usable(std::slice::from_ref(&new), false, "it cannot be there")?;
        layouts::must_hold(nth, &new)?;
        let count = disk.descriptor.members.len();
        must_have_space(&new, spec.member_size(disk.descriptor.size.0, count))?;
        Ok(new)
    }

    pub(super) fn follow_new_member(&self, live: Arc<Attached>, disk: &Found, nth: usize) -> Job {
        let (name, on) = (disk.name.clone(), &disk.descriptor.members[nth]);
        tracing::info!(disk = %name, member = nth, %on, "a new member gets all data");
        let what = format!("rebuild member {nth} of disk {name} on {on}");
        let instead = match nth {
            0 => format!(
                "wait for it, or put the member elsewhere: tidegate disk member replace {name} 0 --on DATASTORE"
            ),
            _ => format!(
                "wait for it, or remove the new member: tidegate disk member remove {name} {nth}"
            ),
        };
        let remedy = format!(
            "nothing: the rebuild goes on while the disk is attached (tidegate disk member list {name})"
        );
        let place = on.clone();
        // The rebuild may end before its progress is seen for the first time.
        let total = layout::of(&disk.descriptor)
            .map_or(0, |spec| layout::member_data(spec, &disk.descriptor));
        self.jobs
            .start_lasting(what, name, remedy, instead, move |progress| {
                follow_rebuild(&live, nth, (&place, total), progress)
            })
    }

    /// Exchanges a member's image, and orders the layout to copy everything to it. `commit` makes the new member the disk's.
    pub(super) fn begin_rebuild(
        &self,
        live: &Arc<Attached>,
        disk: &Found,
        nth: usize,
        new: &Found,
        commit: impl FnOnce() -> Outcome<()>,
    ) -> Result<host::OldMember, NotBegun> {
        let mut open = self.others_open(disk, nth);
        let opening = Opening {
            order: &Default::default(),
            is_borrowed: false,
        };
        drop_member(live, nth)
            .and_then(|()| self.open_member(new, nth, &opening, &mut open))
            .and_then(|()| self.agree(disk))
            .and_then(|()| commit())
            .map_err(NotBegun::NotCommitted)?;
        let given = give(live, nth, open);
        let begun = given.and_then(|old| {
            live.order(LayoutOrder::Replace(target(nth)))?;
            Ok(old)
        });
        begun.map_err(|problem| {
            self.notices.note_degraded();
            NotBegun::Committed(problem)
        })
    }

    /// Opens an absent member of an attached disk again, and orders the layout to copy what it lacks.
    pub(super) fn bring_member_back(&self, live: &Arc<Attached>, nth: usize) -> Outcome<()> {
        let name = live.name();
        let what = format!("cannot use member {nth} of disk {name} again");
        let _claim = self.claim(name, &what)?;
        let disk = self.find(name)?;
        must_have(&disk, nth, &what)?;
        let place = &disk.descriptor.members[nth];
        let new = self
            .member_of(&disk, nth)
            .map_err(|e| not_there(name, nth, place, e))?;
        if live.members().get(nth).is_some_and(Option::is_some) {
            // Its image may be of a file system that is gone: it is closed first, since it has a lock.
            let old = live.set_member(nth, None, None, None)?;
            if !old.is_closed_within(CLOSING) {
                return Err(Problem::new(ProblemCode::Datastore, what)
                    .because("I/O that it received earlier has not ended")
                    .remedy(format!("check datastore {}", place.datastore)));
            }
        }
        let mut open = self.others_open(&disk, nth);
        let opening = Opening {
            order: &Default::default(),
            is_borrowed: live.is_read_only() && !disk.descriptor.read_only,
        };
        self.open_member(&new, nth, &opening, &mut open)
            .map_err(|e| not_there(name, nth, place, e))?;
        // A new image has none of the layout's data yet: a crash may have kept that from it.
        let order = match layouts::is_blank(&new) {
            true => LayoutOrder::Replace(target(nth)),
            false => LayoutOrder::Rebuild(target(nth)),
        };
        give(live, nth, open)?;
        live.order(order)
    }

    /// A member as a plain disk, if its datastore can be used.
    pub(super) fn member_of(&self, disk: &Found, nth: usize) -> Outcome<Found> {
        let parts = self.parts(disk)?.into_iter();
        let found = parts
            .filter(|part| part.nth == nth)
            .map(|part| part.found)
            .next();
        found.unwrap_or_else(|| {
            Err(Problem::new(
                ProblemCode::NotFound,
                format!("disk {} has no member {nth}", disk.name),
            )
            .remedy(format!("see `tidegate disk member list {}`", disk.name)))
        })
    }

    /// The members whose datastores are known, by number.
    pub(super) fn founds(&self, disk: &Found) -> Outcome<Vec<(usize, Found)>> {
        let spec = layout::of(&disk.descriptor)?;
        let size = layout::member_size(spec, &disk.descriptor);
        let places = disk.descriptor.members.iter().enumerate();
        let there = places.filter(|(_, place)| !place.removed);
        Ok(there
            .filter_map(|(nth, _)| Some((nth, self.store.member(disk, nth, size).ok()?)))
            .collect())
    }

    /// The other members of a disk, which are open and have their leases.
    pub(super) fn others_open(&self, disk: &Found, nth: usize) -> OpenMembers {
        let mut found = self.founds(disk).unwrap_or_default();
        found.retain(|(other, _)| *other != nth);
        OpenMembers {
            found,
            ..OpenMembers::default()
        }
    }

    /// Stores a changed list of members.
    pub(super) fn change_members(&self, live: &Attached, disk: &Found) -> Outcome<()> {
        let mut disk = disk.clone();
        disk.descriptor.generation += 1;
        let settling = live.settling();
        if let Err(problem) = self.store.write_descriptor(&disk) {
            // The error may have come after the file was replaced.
            let stored = self.store.reread(&disk);
            if stored.is_ok_and(|stored| stored.descriptor != disk.descriptor) {
                return Err(problem);
            }
        }
        if let Some(standing) = live.descriptor() {
            live.set_descriptor(Descriptor {
                members: disk.descriptor.members.clone(),
                generation: disk.descriptor.generation,
                ..standing
            });
        }
        live.note_stamp(None);
        drop(settling);
        self.write_copies(&disk);
        Ok(())
    }

    /// Deletes the data of a member that the descriptor no longer names, if it can be reached.
    fn delete_old(&self, disk: &Found, nth: usize, old: Outcome<Found>, image: &host::OldMember) {
        let deleted = old.and_then(|old| match image.is_closed_within(CLOSING) {
            true => self.store.delete_member(disk, &old),
            false => Err(
                Problem::new(ProblemCode::Datastore, "its I/O in flight has not ended")
                    .remedy("remove it by hand when its datastore responds"),
            ),
        });
        if let Err(problem) = deleted {
            tracing::warn!(disk = %disk.name, member = nth, %problem, "the data of a removed member stays where it is");
        }
    }
}

/// Gives a disk's member the image that was just opened.
fn give(live: &Attached, nth: usize, mut open: OpenMembers) -> Outcome<host::OldMember> {
    let mut images = open.images().into_iter();
    let image = images.find(|image| image.member == nth);
    let opened = open.opened.pop().flatten();
    live.set_member(nth, opened, image, open.uses.pop())
}

/// Stops the use of a member. The others have recorded that afterwards, also if the mirror had dropped the member already.
fn drop_member(live: &Attached, nth: usize) -> Outcome<()> {
    live.order(LayoutOrder::Drop(target(nth)))
}

pub(super) fn target(nth: usize) -> Target {
    Target(u8::try_from(nth).unwrap_or(u8::MAX))
}

/// Fails if a disk has no such member, as a plain disk never has.
pub(super) fn must_have(disk: &Found, nth: usize, what: &str) -> Outcome<()> {
    let members = disk.descriptor.members.len();
    if members == 0 {
        return Err(Problem::new(ProblemCode::Unsupported, what)
            .because("it has no such member: it is plain")
            .remedy(format!(
                "to put it on another datastore, move it: tidegate disk move {} --to DATASTORE",
                disk.name
            )));
    }
    match nth < members {
        true => Ok(()),
        false => Err(Problem::new(ProblemCode::NotFound, what)
            .because("it has no such member")
            .remedy(format!("see `tidegate disk member list {}`", disk.name))),
    }
}

/// Fails if a member is to be replaced by one in the same place.
pub(super) fn must_be_elsewhere(disk: &Found, nth: usize, place: &MemberPlace) -> Outcome<()> {
    if disk.descriptor.members[nth] != *place {
        return Ok(());
    }
    let name = &disk.name;
    Err(
        os_error::invalid(format!("it is on {place} already")).remedy(match nth {
            0 => "name another place (see `tidegate datastore list`)".to_owned(),
            _ => format!(
                "name another place; or, for a new image in this one: tidegate disk member remove {name} {nth}, then: \
                 tidegate disk member add {name} --on {place}"
            ),
        }),
    )
}

/// Fails for the first member: its datastore has the disk's descriptor.
fn must_not_be_home(disk: &Found, nth: usize, what: &str) -> Outcome<()> {
    match nth {
        0 => Err(Problem::new(ProblemCode::Unsupported, what)
            .because(format!(
                "the disk's descriptor is with it, on datastore {}",
                disk.datastore
            ))
            .remedy(match layout::of(&disk.descriptor)?.is_redundant() {
                true => format!(
                    "replace it, or remove another one: tidegate disk member replace {} 0 --on DATASTORE",
                    disk.name
                ),
                false => "create another disk, and copy over NBD: only members of a mirror can be removed".to_owned(),
            })),
        _ => Ok(()),
    }
}

/// Follows a comparison until it ends.
fn follow_scrub(live: &Attached, progress: &Progress) -> Outcome<()> {
    loop {
        let scrub = live.layout().and_then(|report| report.scrub);
        let Some(scrub) = scrub else {
            return Err(ended(live, "the comparison"));
        };
        progress.expect(scrub.to_compare);
        progress.is_at(scrub.compared);
        if !scrub.running {
            return Ok(());
        }
        if let Err(cancelled) = progress.check() {
            live.order(LayoutOrder::StopScrub)?;
            return Err(cancelled);
        }
        std::thread::sleep(EVERY);
    }
}

/// Follows a rebuild of all `total` bytes until its member is in sync. If the rebuild fails, it is tried again, and the job
/// goes on. If the member is removed or replaced, the job is cancelled.
fn follow_rebuild(
    live: &Attached,
    nth: usize,
    (place, mut total): (&MemberPlace, u64),
    progress: &Progress,
) -> Outcome<()> {
    loop {
        let places = live.descriptor().map(|descriptor| descriptor.members);
        if places.is_some_and(|places| places.get(nth) != Some(place)) {
            progress.cancel();
        }
        let report = live.layout();
        let Some(member) = report.as_ref().and_then(|report| report.members.get(nth)) else {
            return Err(ended(live, "the rebuild"));
        };
        total = member.to_copy.max(total);
        progress.expect(total);
        if member.state == MemberState::InSync {
            progress.is_at(total);
            return Ok(());
        }
        progress.is_at(member.copied);
        progress.check()?;
        std::thread::sleep(EVERY);
    }
}

fn ended(live: &Attached, what: &str) -> Problem {
    let name = live.name();
    Problem::new(
        ProblemCode::Busy,
        format!("{what} of disk {name} was interrupted"),
    )
    .because("the disk is no longer attached")
    .remedy(format!(
        "attach it: tidegate disk attach {name}; a rebuild goes on then"
    ))
}
