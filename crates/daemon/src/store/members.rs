//! Members of a disk with a layout: their directories on other datastores, and the copies of the disk's descriptor in
//! them.
//!
//! The disk's descriptor is with its first member, whose datastore is the disk's home. Each other datastore of kind `dir`
//! that has a member has a directory of the disk's name too, with the image and a copy of the descriptor. By the copy,
//! the disk is found while its home is away. A directory with a copy is not listed as a disk.
//!
//! # Always true
//! - A disk exists once its home has its descriptor: the other directories are created before it, and deleted before it.
//! - A copy is used only while the home cannot be read.
//!
//! # Picture
//! ```text
//!   HOME/NAME/disk.toml, image     OTHER/NAME/member.toml, image
//! ```

use std::collections::BTreeSet;
use std::io;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::Descriptor;
use tidegate_api::disk::Allocation;
use tidegate_api::name::Name;
use tidegate_api::problem::ProblemCode;

use super::contents::{self, DESCRIPTOR, MEMBER};
use super::disks::NewFolder;
use super::{Found, Store, read_descriptor};
use crate::files::{self, Location};
use crate::os_error::{self, Outcome};

impl Store {
    /// A disk's member as if it were a plain disk of that many bytes. Nothing is read but its datastore's record.
    pub(crate) fn member(&self, disk: &Found, nth: usize, size: u64) -> Outcome<Found> {
        let place = &disk.descriptor.members[nth];
        let settings = match place.datastore == disk.datastore {
            true => disk.settings.clone(),
            false => self.datastore(&place.datastore)?,
        };
        let mut descriptor = disk.descriptor.clone();
        descriptor.size.0 = size;
        descriptor.layout = None;
        descriptor.members = Vec::new();
        descriptor.device.clone_from(&place.device);
        descriptor.export.clone_from(&place.export);
        Ok(Found {
            name: disk.name.clone(),
            datastore: place.datastore.clone(),
            folder: self
                .disks_folder(&place.datastore, &settings)
                .join(disk.name.as_str()),
            settings,
            descriptor,
            is_copy: place.datastore != disk.datastore,
        })
    }

    /// Creates a disk with a layout. If a member cannot be created, those before it are deleted.
    pub(crate) fn create_with_members(
        &self,
        disk: &Found,
        members: &[Found],
        allocation: Allocation,
    ) -> Outcome<()> {
        let folders = folders(disk, members);
        let mut made = Vec::new();
        for folder in &folders {
            let new = NewFolder {
                datastore: &folder.datastore,
                settings: &folder.settings,
                name: &disk.name,
                descriptor: &disk.descriptor,
                file: match folder.is_copy {
                    true => MEMBER,
                    false => DESCRIPTOR,
                },
                image: image_in(folder, members).map(|image| (image.descriptor.size.0, allocation)),
            };
            if let Err(problem) = self.create_folder(&new, |_| Ok(())) {
                return Err(made.into_iter().fold(problem, |problem, made| {
                    match self.undo(made) {
                        Ok(()) => problem,
                        Err(second) => problem.because(second),
                    }
                }));
            }
            made.push(*folder);
        }
        Ok(())
    }

    /// Creates the directory of a new member of an existing disk, if its datastore has such. It may be there already, for
    /// another member.
    pub(crate) fn create_member(&self, disk: &Found, member: &Found) -> Outcome<()> {
        let has_files = matches!(member.settings, DatastoreSettings::Dir { .. });
        let is_shared = member.descriptor.device.is_some() && member.folder.exists();
        if member.is_copy && (!has_files || is_shared) {
            return Ok(());
        }
        let image = has_files && member.descriptor.device.is_none();
        let new = NewFolder {
            datastore: &member.datastore,
            settings: &member.settings,
            name: &disk.name,
            descriptor: &disk.descriptor,
            file: match member.is_copy {
                true => MEMBER,
                false => DESCRIPTOR,
            },
            image: image.then_some((member.descriptor.size.0, Allocation::Thin)),
        };
        let created = self.create_folder(&new, |_| Ok(()));
        created.map_err(|problem| match problem.code {
            ProblemCode::Exists => {
                problem.remedy("move that directory away, or name another datastore")
            }
            _ => problem,
        })
    }

    /// Deletes the directory of a member that a disk no longer has, unless another of its members is there.
    pub(crate) fn delete_member(&self, disk: &Found, member: &Found) -> Outcome<()> {
        let has_files = matches!(member.settings, DatastoreSettings::Dir { .. });
        let mut others = disk
            .descriptor
            .members
            .iter()
            .filter(|other| !other.removed);
        let is_shared = others.any(|other| other.datastore == member.datastore);
        if !has_files || is_shared || member.folder.symlink_metadata().is_err() {
            return Ok(());
        }
        contents::must_hold_nothing_else(&member.folder)?;
        self.undo(member)
    }

    fn undo(&self, member: &Found) -> Outcome<()> {
        let disks = self.disks_folder(&member.datastore, &member.settings);
        self.delete_folder(&disks, &member.name, ()).map_err(|e| {
            let left = member.folder.display();
            os_error::io(format!("{left} is left there"), &e)
        })
    }

    /// Deletes a disk with a layout, and the members that are given. `held` has the locks against other users.
    pub(crate) fn delete_with_members<T>(
        &self,
        disk: &Found,
        members: &[Found],
        held: T,
    ) -> Outcome<()> {
        let what = || format!("cannot delete disk {}", disk.name);
        let folders: Vec<_> = folders(disk, members)
            .into_iter()
            .filter(|folder| folder.is_copy && folder.folder.symlink_metadata().is_ok())
            .collect();
        for folder in &folders {
            self.must_be_mounted(&folder.datastore, &folder.settings)
                .and_then(|()| contents::must_hold_nothing_else(&folder.folder))
                .map_err(|problem| problem.within(what()))?;
        }
        for folder in folders {
            let disks = self.disks_folder(&folder.datastore, &folder.settings);
            self.delete_folder(&disks, &disk.name, ())
                .map_err(|e| os_error::io(what(), &e))?;
        }
        self.delete_disk(disk, held)
    }

    /// Writes the copy of a disk's descriptor beside a member, unless it is the same already.
    pub(crate) fn write_copy(&self, disk: &Found, member: &Found) -> Outcome<()> {
        if !matches!(member.settings, DatastoreSettings::Dir { .. }) || !member.is_copy {
            return Ok(());
        }
        let copy = member.descriptor_file();
        if read_descriptor(&copy).is_ok_and(|copied| copied == disk.descriptor) {
            return Ok(());
        }
        files::replace(Location::in_disk(&copy), disk.descriptor.write().as_bytes())
            .map_err(|e| os_error::io(format!("cannot write {}", copy.display()), &e))
    }

    /// The disk of that name by the copy of its descriptor on this datastore, if there is one.
    pub(crate) fn read_copy(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
        name: &Name,
    ) -> Outcome<Option<Found>> {
        let folder = self.disks_folder(datastore, settings).join(name.as_str());
        let Some(descriptor) = self.read_copied(datastore, settings, name)? else {
            return Ok(None);
        };
        let home = descriptor.members.first().map(|first| &first.datastore);
        let Some(home) = home.filter(|home| *home != datastore).cloned() else {
            return Ok(None);
        };
        Ok(Some(Found {
            name: name.clone(),
            settings: self.datastore(&home)?,
            datastore: home,
            folder,
            descriptor,
            is_copy: true,
        }))
    }

    /// What this datastore has of a disk that has a copy of its descriptor here.
    pub(crate) fn copied(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
        name: &Name,
    ) -> Option<Found> {
        let copied = self.read_copied(datastore, settings, name);
        Some(Found {
            name: name.clone(),
            settings: settings.clone(),
            datastore: datastore.clone(),
            folder: self.disks_folder(datastore, settings).join(name.as_str()),
            descriptor: copied.ok().flatten()?,
            is_copy: true,
        })
    }

    fn read_copied(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
        name: &Name,
    ) -> Outcome<Option<Descriptor>> {
        self.must_be_mounted(datastore, settings)?;
        let folder = self.disks_folder(datastore, settings).join(name.as_str());
        let copy = folder.join(MEMBER);
        match Location::in_disk(&copy).look() {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(os_error::io(
                    format!("cannot read {}", copy.display()),
                    &error,
                ));
            }
        }
        let descriptor = read_descriptor(&copy)
            .map_err(|problem| problem.within(format!("cannot use disk {name}")))?;
        Ok(Some(descriptor))
    }

    /// Reads a disk again, from where it was read.
    pub(crate) fn reread(&self, found: &Found) -> Outcome<Found> {
        if !found.is_copy {
            return self.read_disk(&found.datastore, &found.settings, &found.name);
        }
        let file = found.descriptor_file();
        Ok(Found {
            descriptor: read_descriptor(&file)
                .map_err(|problem| problem.within(format!("cannot use disk {}", found.name)))?,
            ..found.clone()
        })
    }
}

/// One member for each directory that a disk has: the home is last, and the only one that is no copy.
fn folders<'a>(disk: &'a Found, members: &'a [Found]) -> Vec<&'a Found> {
    let mut seen = BTreeSet::from([&disk.datastore]);
    let others = members.iter().filter(|member| {
        matches!(member.settings, DatastoreSettings::Dir { .. }) && seen.insert(&member.datastore)
    });
    others.chain([disk]).collect()
}

/// The member whose image is a file in this directory.
fn image_in<'a>(folder: &Found, members: &'a [Found]) -> Option<&'a Found> {
    members.iter().find(|member| {
        matches!(member.settings, DatastoreSettings::Dir { .. })
            && member.datastore == folder.datastore
            && member.descriptor.device.is_none()
    })
}
