//! Gives an attached mirror one more member than it had.
//!
//! # Always true
//! - The descriptor names the new member before the engine has it: after a crash the mirror opens with it, and it is rebuilt.
//! - If the engine refuses the new member, the descriptor names the old ones again, and the new image is deleted.

use std::sync::Arc;

use tidegate_api::descriptor::MemberPlace;
use tidegate_api::job::Job;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::{LayoutOrder, LayoutSpec};

use super::DiskService;
use super::members::Opening;
use super::orders::{NotBegun, target};
use crate::config::plan::layout;
use crate::disks::attached::Attached;
use crate::os_error::{self, Outcome};
use crate::store::Found;

impl DiskService {
    /// Adds a member after the last one, and begins to copy everything to it.
    pub(super) fn grow(&self, before: &Found, place: MemberPlace, what: &str) -> Outcome<Job> {
        must_be_growable(before, &place).map_err(|e| e.within(what))?;
        let live = self
            .must_be_attached(&before.name)
            .map_err(|e| e.within(what))?;
        let nth = before.descriptor.members.len();
        let mut disk = before.clone();
        disk.descriptor.members.push(place);
        let new = self
            .create_new_member(before, &disk, nth)
            .map_err(|e| e.within(what))?;
        let begun = self.begin_growth(&live, before, &disk, &new);
        let undo = || self.store.delete_member(before, &new);
        begun.map_err(|begun| begun.undone(undo).within(what))?;
        Ok(self.follow_new_member(live, &disk, nth))
    }

    fn begin_growth(
        &self,
        live: &Arc<Attached>,
        before: &Found,
        disk: &Found,
        new: &Found,
    ) -> Result<(), NotBegun> {
        let nth = before.descriptor.members.len();
        let mut open = self.others_open(disk, nth);
        let opening = Opening {
            order: &Default::default(),
            is_borrowed: false,
        };
        self.open_member(new, nth, &opening, &mut open)
            .and_then(|()| self.agree(disk))
            .and_then(|()| self.change_members(live, disk))
            .map_err(NotBegun::NotCommitted)?;
        let image = open.images().into_iter().find(|image| image.member == nth);
        let opened = open.opened.pop().flatten();
        let added = match opened {
            Some(opened) => live.add_member(opened, image, open.uses.pop()),
            None => Err(os_error::invalid("the new image is not open").remedy("try again")),
        };
        if let Err(problem) = added {
            let mut back = before.clone();
            // After the change above.
            back.descriptor.generation += 1;
            return Err(match self.change_members(live, &back) {
                Ok(()) => NotBegun::NotCommitted(problem),
                Err(second) => NotBegun::Committed(problem.because(second)),
            });
        }
        live.order(LayoutOrder::Replace(target(nth)))
            .map_err(|problem| {
                self.notices.note_degraded();
                NotBegun::Committed(problem)
            })
    }
}

/// Fails unless a disk can have one more member than it has.
fn must_be_growable(disk: &Found, place: &MemberPlace) -> Outcome<()> {
    let (name, spec) = (&disk.name, layout::of(&disk.descriptor)?);
    let more = disk.descriptor.members.len() + 1;
    let (why, remedy) = match spec {
        LayoutSpec::Plain => (
            "it is plain: it has no members".to_owned(),
            format!(
                "create a mirror and copy over NBD: tidegate disk create NAME --layout mirror --on {} --on {place}",
                disk.datastore
            ),
        ),
        LayoutSpec::Mirror => match spec.check(more) {
            Ok(()) => return Ok(()),
            Err(why) => (
                why.to_string(),
                format!(
                    "replace one of them: tidegate disk member replace {name} MEMBER --on {place}"
                ),
            ),
        },
        LayoutSpec::MirrorStripe { .. } | LayoutSpec::Stripe { .. } => (
            format!("its layout is {spec}: the number of its members is fixed"),
            match spec.is_redundant() {
                true => format!(
                    "replace one of them: tidegate disk member replace {name} MEMBER --on {place}"
                ),
                false => "create a disk with more members, and copy over NBD".to_owned(),
            },
        ),
    };
    Err(Problem::new(
        ProblemCode::Unsupported,
        "the disk cannot have one more member",
    )
    .because(why)
    .remedy(remedy))
}
