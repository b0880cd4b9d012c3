//! Replaces the first member of an attached disk. Its datastore has the disk's descriptor, and may be lost or full.
//!
//! # Always true
//! - Until the commit, the old home's descriptor counts. The commit is one replacement of the new home's descriptor, which
//!   then has the higher generation. Nothing is written on the old home.
//! - The new data is deleted only before the commit, the old data only after it.
//! - The daemon looks for the disk at the new home from just before the commit on. From there it finds the one that counts.
//!
//! # Picture
//! ```text
//!   new home: moved_from, image ─ drop member 0 ─ new home: generation + 1 ─ exchange the image ─ delete the old home's data
//!                                                 the commit
//! ```

use tidegate_api::descriptor::{Descriptor, MemberPlace};
use tidegate_api::job::Job;
use tidegate_api::name::Name;
use tidegate_api::problem::Problem;

use super::DiskService;
use super::orders::{CLOSING, must_be_elsewhere, must_have};
use crate::config::plan::layout;
use crate::disks::attached::Attached;
use crate::os_error::Outcome;
use crate::store::Found;

impl DiskService {
    /// A problem of the home of an attached mirror also says what to do if the home is lost for good.
    pub(super) fn or_replace_home(&self, name: &Name, problem: Problem) -> Problem {
        let descriptor = self.live.get(name).and_then(|live| live.descriptor());
        let spec = descriptor.and_then(|descriptor| layout::of(&descriptor).ok());
        let Some(remedy) = problem
            .remedy
            .clone()
            .filter(|_| spec.is_some_and(|spec| spec.is_redundant()))
        else {
            return problem;
        };
        problem.remedy(format!(
            "{remedy}; if the datastore is lost for good, replace the first member: tidegate disk member replace {name} 0 --on \
             DATASTORE"
        ))
    }

    /// Replaces the first member.
    pub(super) fn exchange_home(
        &self,
        name: &Name,
        place: MemberPlace,
        what: &str,
    ) -> Outcome<Job> {
        let live = self.must_be_attached(name).map_err(|e| e.within(what))?;
        let (before, is_there) = match self.find(name) {
            Ok(found) => (found, true),
            Err(problem) => (self.find_copy(name, problem)?, false),
        };
        must_have(&before, 0, what)?;
        must_be_elsewhere(&before, 0, &place).map_err(|e| e.within(what))?;
        let (disk, new) = self
            .create_home(&before, place)
            .map_err(|e| e.within(what))?;
        let commit = || self.change_home(&live, &before.datastore, &disk);
        let begun = self.begin_rebuild(&live, &disk, 0, &new, commit);
        let undo = || self.store.delete_disk(&disk, ());
        let image = begun.map_err(|begun| begun.undone(undo).within(what))?;
        let deleted = match is_there && image.is_closed_within(CLOSING) {
            true => self.leave_home(&before, &disk),
            false => Ok(false),
        };
        let left = before.folder.display();
        match deleted {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(disk = %name, %left, "the data of a replaced member stays where it is");
            }
            Err(problem) => {
                tracing::warn!(disk = %name, %left, %problem, "the data of a replaced member stays where it is");
            }
        }
        Ok(self.follow_new_member(live, &disk, 0))
    }

    /// Creates a new home, which does not count yet. Returns the disk there, and its first member.
    pub(super) fn create_home(
        &self,
        before: &Found,
        place: MemberPlace,
    ) -> Outcome<(Found, Found)> {
        let mut disk = Found {
            datastore: place.datastore.clone(),
            settings: self.store.datastore(&place.datastore)?,
            is_copy: false,
            ..before.clone()
        };
        disk.descriptor.moved_from = Some(before.datastore.clone());
        disk.descriptor.members[0] = place;
        let new = self.new_member(&disk, 0)?;
        disk.folder.clone_from(&new.folder);
        self.store.create_member(&disk, &new)?;
        Ok((disk, new))
    }

    /// Makes a new home count: one replacement of the descriptor there. Returns the disk with it.
    pub(super) fn commit_home(&self, old: &Name, disk: &Found) -> Outcome<Found> {
        let mut disk = disk.clone();
        disk.descriptor.moved_from = None;
        disk.descriptor.generation += 1;
        let remember = |on: &Name| {
            self.remember(|disks| {
                disks.insert(disk.name.clone(), on.clone());
            })
        };
        // From the old home, a disk would not be found here after a crash: the copies of the descriptor are older.
        remember(&disk.datastore)?;
        if let Err(problem) = self.store.write_descriptor(&disk) {
            // The error may have come after the file was replaced.
            let stored = self.store.reread(&disk);
            if stored.is_ok_and(|stored| stored.descriptor != disk.descriptor) {
                return Err(match remember(old) {
                    Ok(()) => problem,
                    Err(second) => problem.because(second),
                });
            }
        }
        Ok(disk)
    }

    /// Makes another datastore the home of an attached disk.
    fn change_home(&self, live: &Attached, old: &Name, disk: &Found) -> Outcome<()> {
        let settling = live.settling();
        let disk = self.commit_home(old, disk)?;
        let standing = live.descriptor().unwrap_or_else(|| disk.descriptor.clone());
        let standing = Descriptor {
            members: disk.descriptor.members.clone(),
            generation: disk.descriptor.generation,
            ..standing
        };
        live.has_new_home(&disk.datastore, standing, disk.descriptor_file());
        drop(settling);
        self.write_copies(&disk);
        Ok(())
    }

    /// Deletes the old home's data. If another member is on that datastore, the copy of the descriptor comes there. Returns
    /// whether there was any.
    fn leave_home(&self, before: &Found, disk: &Found) -> Outcome<bool> {
        if before.is_copy {
            return Ok(false);
        }
        self.store.delete_disk(before, ())?;
        let disk = self.store.reread(disk)?;
        for (nth, member) in self.founds(&disk)? {
            if nth > 0 && member.datastore == before.datastore {
                self.store.create_member(&disk, &member)?;
            }
        }
        Ok(true)
    }
}
