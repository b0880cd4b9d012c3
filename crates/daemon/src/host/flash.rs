//! Flash caches of disks: how the engine gets them, and what a disk says whose cache is refused.

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::{Refusal, Target};
use tidegate_engine::Flash;
use tidegate_engine::datastore::OpenedImage;

use super::orders::EXCHANGING;
use super::{Disk, OldMember, problem};
use crate::config::plan::DiskPlan;
use crate::os_error::Outcome;

/// A disk's part of a flash cache, with its devices open.
pub(crate) struct OpenFlash {
    pub(crate) cache: Name,
    pub(crate) flash: Flash,
}

impl Disk {
    /// Gives it a flash cache, in write-through mode.
    pub(crate) fn begin_cache(&self, flash: OpenFlash) -> Outcome<()> {
        let begun = self.disk.begin_cache(flash.flash, EXCHANGING);
        begun.map_err(|e| self.refused(&e))
    }

    /// What the policy of its flash cache has learned. None: it has no cache that is open.
    pub(crate) fn policy_state(&self) -> Outcome<Option<Vec<u8>>> {
        let state = self.disk.policy_state();
        state.map_err(|e| problem(&e).within(format!("cannot query disk {}", self.disk.name())))
    }

    /// Gives a place of its flash cache another device, or none. The cache does without the one before.
    pub(crate) fn set_flash_device(
        &self,
        nth: u8,
        image: Option<OpenedImage>,
    ) -> Outcome<OldMember> {
        let old = self.disk.set_flash_device(nth, image);
        old.map(OldMember::new).map_err(|e| self.refused(&e))
    }

    /// Takes its flash cache off, which has nothing that the disk does not.
    pub(crate) fn end_cache(&self) -> Outcome<OldMember> {
        let ended = self.disk.end_cache(EXCHANGING);
        ended.map(OldMember::new).map_err(|e| self.refused(&e))
    }
}

/// The problem of a disk whose flash cache is refused; `None` if a member is.
pub(super) fn refused(plan: &DiskPlan, cache: Option<&Name>, refusal: Refusal) -> Option<Problem> {
    let (target, why) = match refusal {
        Refusal::Foreign(target) => (target, "it was used for another attachment of the disk"),
        Refusal::Unknown(target) => (target, "it has something else"),
        Refusal::Newer(target) => (target, "another version of Tidegate wrote it"),
        Refusal::Damaged(target) => (target, "its journal is damaged"),
        Refusal::Blank(target) => (target, "the disk's part of it is empty or was overwritten"),
        Refusal::Missing(target) => (
            target,
            "it cannot be read, and may have writes that nothing else has",
        ),
        Refusal::Split(target) => (target, "its devices were used without each other"),
        Refusal::Failed(target, _) => (target, "it cannot be read or written"),
    };
    let Target(target) = target;
    let nth = usize::from(target).checked_sub(plan.members.len())?;
    let (cache, disk) = (cache?, &plan.name);
    let give_up = match refusal {
        Refusal::Missing(_) | Refusal::Failed(..) => format!(
            ", or go on without it if the other device has all writes: tidegate disk attach {disk} --without-flash {nth}"
        ),
        _ => String::new(),
    };
    Some(
        Problem::new(
            ProblemCode::Corrupt,
            format!("device {nth} of cache {cache} cannot be used for disk {disk}"),
        )
        .because(why)
        .because("only the cache has some of the disk's writes")
        .remedy(format!(
            "nothing was changed; put the device back as it was{give_up}. To lose these writes: tidegate disk attach {disk} \
             --discard-cache"
        )),
    )
}
