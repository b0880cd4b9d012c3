//! Disks on a datastore: one directory each, created and deleted by one rename.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::descriptor::Descriptor;
use tidegate_api::disk::Allocation;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::beneath::is_plain;
use tidegate_engine::devices;

use super::contents::{self, DESCRIPTOR, IMAGE, MEMBER};
use super::drafts;
use super::pooled::no_image;
use super::{Listed, Store, names_in, read_descriptor};
use crate::files::{self, Location};
use crate::os_error::{self, Outcome};

/// A disk that was found, and where.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) name: Name,
    pub(crate) datastore: Name,
    pub(crate) settings: DatastoreSettings,
    pub(crate) folder: PathBuf,
    pub(crate) descriptor: Descriptor,
    /// Whether the descriptor is a copy beside a member, because the disk's datastore is away. `folder` has the copy.
    pub(crate) is_copy: bool,
}

impl Found {
    /// The file or block device that holds its bytes, on datastores of kind `dir`.
    pub(crate) fn image(&self) -> PathBuf {
        image_of(&self.descriptor, &self.folder)
    }

    /// The file of its descriptor, which other programs may change. None: it is in a pool's catalog.
    pub(crate) fn followed_file(&self) -> Option<PathBuf> {
        match self.settings {
            DatastoreSettings::Pool {} => None,
            _ => Some(self.descriptor_file()),
        }
    }

    /// The file of its descriptor.
    pub(crate) fn descriptor_file(&self) -> PathBuf {
        match self.is_copy {
            false => self.folder.join(DESCRIPTOR),
            true => self.folder.join(MEMBER),
        }
    }

    /// Whether it is on a pool.
    pub(crate) fn is_pooled(&self) -> bool {
        self.settings == (DatastoreSettings::Pool {})
    }

    /// Whether its image, on datastores of kind `dir`, is allowed: a file in its descriptor's directory, or a block
    /// device.
    pub(crate) fn has_sound_image(&self) -> bool {
        match &self.descriptor.device {
            Some(device) => is_device(device),
            None => Location::in_disk(&self.image()).is_plain(),
        }
    }

    /// Opens its image, on datastores of kind `dir`: the file in its descriptor's directory, or the block device named
    /// there.
    pub(crate) fn open_image(&self, options: &mut OpenOptions) -> io::Result<File> {
        let Some(device) = &self.descriptor.device else {
            return files::open(Location::in_disk(&self.image()), options);
        };
        if !is_device(device) {
            let text = "it is not a block device, and a disk's descriptor may name only those";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        options.open(device)
    }

    /// Bytes that its image occupies, if it is a file.
    pub(crate) fn allocated(&self) -> Option<u64> {
        match self.settings {
            DatastoreSettings::Dir { .. } => allocated(&self.image()),
            _ => None,
        }
    }
}

/// Identity of an image, independent of the path to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A file, by its file system and its inode there.
    File { device: u64, inode: u64 },
    /// A block device, by its number.
    Device(u64),
}

impl Identity {
    /// The identity of what is at a path, with links followed.
    pub(crate) fn at(path: &Path) -> io::Result<Identity> {
        Ok(Identity::of(&fs::metadata(path)?))
    }

    /// The identity of a file with this metadata.
    pub(crate) fn of(there: &fs::Metadata) -> Identity {
        match there.file_type().is_block_device() {
            true => Identity::Device(there.rdev()),
            false => Identity::File {
                device: there.dev(),
                inode: there.ino(),
            },
        }
    }

    /// Whether a write to one may change the content of the other.
    pub(crate) fn shares_bytes(self, other: Identity) -> bool {
        match (self, other) {
            (Identity::Device(one), Identity::Device(other)) => devices::share_bytes(one, other),
            _ => self == other,
        }
    }
}

/// The file or block device with a disk's data, on datastores of kind `dir`. `folder` contains its descriptor.
pub(crate) fn image_of(descriptor: &Descriptor, folder: &Path) -> PathBuf {
    match &descriptor.device {
        Some(device) => device.clone(),
        None => folder.join(IMAGE),
    }
}

/// Bytes that an image occupies, if it is a file.
pub(crate) fn allocated(image: &Path) -> Option<u64> {
    let image = Location::in_disk(image).look().ok()?;
    // st_blocks counts units of 512 bytes, regardless of the file system's block size.
    let blocks = u64::try_from(image.st_blocks).ok()?;
    is_plain(&image).then(|| blocks * 512)
}

impl Store {
    /// Every disk of a datastore.
    pub(crate) fn disks(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
    ) -> Outcome<Listed<Found>> {
        self.must_be_mounted(datastore, settings)?;
        self.disks_before_added(datastore, settings)
    }

    /// The disks of a datastore that is not added yet: nothing about it is stored, before or after.
    pub(crate) fn disks_before_added(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
    ) -> Outcome<Listed<Found>> {
        if *settings == (DatastoreSettings::Pool {}) {
            let disks = self.catalogs()?.disks(datastore)?.into_iter();
            let found = |(name, descriptor): (Name, Outcome<Descriptor>)| {
                let found = descriptor.map(|it| self.pooled(datastore, &name, it));
                (name, found)
            };
            return Ok(disks.map(found).collect());
        }
        let names = self.names_on(datastore, settings, &BTreeSet::new(), &[DESCRIPTOR])?;
        Ok(names
            .into_iter()
            .map(|name| {
                let disk = self.read_mounted(datastore, settings, &name);
                (name, disk)
            })
            .collect())
    }

    /// The names of the disks that a datastore has anything of: its own, and those with only a later member there. No disk
    /// is read. The names in `here` are known to be disks; each of the others is checked.
    pub(crate) fn disk_names(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
        here: &BTreeSet<Name>,
    ) -> Outcome<Vec<Name>> {
        self.must_be_mounted(datastore, settings)?;
        self.names_on(datastore, settings, here, &[DESCRIPTOR, MEMBER])
    }

    /// The disks that have a copy of their descriptor on this datastore, because their home is another one.
    pub(crate) fn copies(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
    ) -> Outcome<Vec<Found>> {
        self.must_be_mounted(datastore, settings)?;
        let names = self.names_on(datastore, settings, &BTreeSet::new(), &[MEMBER])?;
        let copy = |name: Name| self.read_copy(datastore, settings, &name).ok().flatten();
        Ok(names.into_iter().filter_map(copy).collect())
    }

    fn names_on(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
        here: &BTreeSet<Name>,
        files: &[&str],
    ) -> Outcome<Vec<Name>> {
        if *settings == (DatastoreSettings::Pool {}) {
            let disks = match files.contains(&DESCRIPTOR) {
                true => self.catalogs()?.disks(datastore)?,
                false => Vec::new(),
            };
            return Ok(disks.into_iter().map(|(name, _)| name).collect());
        }
        let folder = self.disks_folder(datastore, settings);
        let names = match names_in(&folder) {
            Ok(names) => names,
            // A datastore without files has no directory before its first disk.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && !matches!(settings, DatastoreSettings::Dir { .. }) =>
            {
                Vec::new()
            }
            Err(error) => {
                return Err(os_error::io(
                    format!("cannot list the disks of datastore {datastore}"),
                    &error,
                )
                .because(format!("its directory is {}", folder.display()))
                .remedy("mount or create the directory, or remove the datastore"));
            }
        };
        // Other directories may be there too; only one with a descriptor is a disk.
        let has_descriptor = |name: &Name| {
            let is_there = |file: &&str| {
                let descriptor = folder.join(name.as_str()).join(file);
                Location::in_disk(&descriptor).look().is_ok()
            };
            files.iter().any(is_there)
        };
        let names = names.iter().filter_map(|name| name.parse::<Name>().ok());
        Ok(names
            .filter(|name| here.contains(name) || has_descriptor(name))
            .collect())
    }

    /// Finds the datastore that has the disk of that name. `lies_on` checks one datastore.
    pub(crate) fn place(
        &self,
        name: &Name,
        lies_on: impl Fn(&Name, &DatastoreSettings) -> Outcome<bool>,
    ) -> Outcome<(Name, DatastoreSettings)> {
        let mut found: Vec<(Name, DatastoreSettings)> = Vec::new();
        let mut unreadable = Vec::new();
        for (datastore, settings) in self.datastores()? {
            let looked = settings.and_then(|of| Ok((lies_on(&datastore, &of)?, of)));
            match looked {
                Ok((true, settings)) => found.push((datastore, settings)),
                Ok((false, _)) => {}
                // If a lookup cannot run now, that does not mean that the disk is missing.
                Err(problem) if problem.code == ProblemCode::Exhausted => {
                    return Err(problem.within(format!("cannot look for disk {name}")));
                }
                Err(problem) => unreadable.push(problem),
            }
        }
        let counts = |here: &&(Name, DatastoreSettings)| {
            let mut others = found.iter().filter(|other| other.0 != here.0);
            !others.any(|other| self.is_void(name, here, &other.0))
        };
        let counting: Vec<_> = match found.as_slice() {
            [_] => found,
            _ => found.iter().filter(counts).cloned().collect(),
        };
        match counting.as_slice() {
            [place] => Ok(place.clone()),
            [] => {
                let mut problem =
                    Problem::new(ProblemCode::NotFound, format!("there is no disk {name}"));
                let mut remedy = "list them: tidegate disk list".to_owned();
                for (nth, mut unreadable) in unreadable.into_iter().enumerate() {
                    // The disk may be on this datastore, so its remedy comes first.
                    if let (0, Some(first)) = (nth, unreadable.remedy.take()) {
                        remedy = first;
                    }
                    problem = problem.because(unreadable);
                }
                Err(problem.remedy(remedy))
            }
            [(one, _), (two, _), ..] => Err(Problem::new(
                ProblemCode::Exists,
                format!("disk {name} is ambiguous"),
            )
            .because(format!(
                "datastores {one} and {two} both have a disk of that name"
            ))
            .remedy("rename one of their directories, or remove one datastore")),
        }
    }

    /// Whether a disk's descriptor does not count, because the disk was moved to the other datastore, the move from there
    /// did not end, or its members were replaced while this datastore was away.
    fn is_void(&self, name: &Name, (on, of): &(Name, DatastoreSettings), other: &Name) -> bool {
        let Ok(here) = self.read_disk(on, of, name) else {
            return false;
        };
        let there = || {
            let settings = self.datastore(other)?;
            self.read_disk(other, &settings, name)
        };
        let is_outdated = |there: Found| {
            there.descriptor.uuid == here.descriptor.uuid
                && there.descriptor.generation > here.descriptor.generation
        };
        if here.descriptor.has_layout() && there().is_ok_and(is_outdated) {
            return true;
        }
        match (here.descriptor.moved_to, here.descriptor.moved_from) {
            (Some(to), _) => to == *other,
            (None, Some(from)) if from == *other => {
                there().is_ok_and(|there| there.descriptor.moved_to.as_ref() != Some(on))
            }
            _ => false,
        }
    }

    /// The disk of that name on any datastore. The caller knows that every datastore responds.
    #[cfg(test)]
    pub(crate) fn find(&self, name: &Name) -> Outcome<Found> {
        let lies_on = |on: &Name, of: &DatastoreSettings| self.has_disk(on, of, name);
        let (datastore, settings) = self.place(name, lies_on)?;
        self.read_disk(&datastore, &settings, name)
    }

    /// Whether this datastore has a disk of that name, readable or not.
    pub(crate) fn has_disk(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
        name: &Name,
    ) -> Outcome<bool> {
        if *settings == (DatastoreSettings::Pool {}) {
            return Ok(self.catalogs()?.read(datastore, name)?.is_some());
        }
        self.must_be_mounted(datastore, settings)?;
        let folder = self.disks_folder(datastore, settings).join(name.as_str());
        Ok(match Location::in_disk(&folder.join(DESCRIPTOR)).look() {
            Ok(_) => true,
            // A link is at that name: a request for this disk gets an error that says so.
            Err(error) => error.kind() == io::ErrorKind::InvalidInput,
        })
    }

    /// Reads a disk whose datastore is known.
    pub(crate) fn read_disk(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
        name: &Name,
    ) -> Outcome<Found> {
        self.must_be_mounted(datastore, settings)?;
        self.read_mounted(datastore, settings, name)
    }

    /// Like `read_disk`, for a datastore that is known to be mounted.
    fn read_mounted(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
        name: &Name,
    ) -> Outcome<Found> {
        if *settings == (DatastoreSettings::Pool {}) {
            return self.read_pooled(datastore, name);
        }
        let folder = self.disks_folder(datastore, settings).join(name.as_str());
        if folder.is_symlink() {
            let what = format!("cannot use disk {name}");
            return Err(os_error::invalid(what)
                .because(format!("{} is a link", folder.display()))
                .remedy("put the directory itself there"));
        }
        let descriptor = read_descriptor(&folder.join(DESCRIPTOR))
            .map_err(|problem| problem.within(format!("cannot use disk {name}")))?;
        Ok(Found {
            name: name.clone(),
            datastore: datastore.clone(),
            settings: settings.clone(),
            folder,
            descriptor,
            is_copy: false,
        })
    }

    /// Creates a disk, with its image if its datastore stores images in files. `fill` writes the image's initial
    /// content.
    pub(crate) fn create_disk(
        &self,
        datastore: &Name,
        settings: &DatastoreSettings,
        name: &Name,
        descriptor: &Descriptor,
        allocation: Allocation,
        fill: impl FnOnce(&Path) -> Outcome<()>,
    ) -> Outcome<()> {
        descriptor
            .check()
            .map_err(|e| os_error::out_of_range(cannot_create(name, datastore), &e))?;
        if *settings == (DatastoreSettings::Pool {}) {
            let created = self
                .catalogs()?
                .create(datastore, name, descriptor, allocation);
            return created.map_err(|problem| problem.within(cannot_create(name, datastore)));
        }
        let own_image =
            matches!(settings, DatastoreSettings::Dir { .. }) && descriptor.device.is_none();
        let new = NewFolder {
            datastore,
            settings,
            name,
            descriptor,
            file: DESCRIPTOR,
            image: own_image.then_some((descriptor.size.0, allocation)),
        };
        self.create_folder(&new, fill)
    }

    /// Creates the directory of a disk or of one of its members. `fill` writes the image's initial content.
    pub(super) fn create_folder(
        &self,
        new: &NewFolder<'_>,
        fill: impl FnOnce(&Path) -> Outcome<()>,
    ) -> Outcome<()> {
        let begun = self.begin_folder(new)?;
        match fill(&begun.image()).and_then(|()| begun.publish(new.file, new.descriptor)) {
            Ok(()) => Ok(()),
            Err(problem) => Err(begun.give_up(problem)),
        }
    }

    /// Begins the directory of a disk or of one of its members, with its image. Nobody sees it before it is published.
    pub(crate) fn begin_folder(&self, new: &NewFolder<'_>) -> Outcome<Unpublished> {
        let (name, settings) = (new.name, new.settings);
        let what = cannot_create(name, new.datastore);
        if *settings == (DatastoreSettings::Pool {}) {
            return Err(no_image(&what, new.datastore));
        }
        self.must_be_mounted(new.datastore, settings)
            .map_err(|problem| problem.within(&what))?;
        let disks = self.disks_folder(new.datastore, settings);
        if !matches!(settings, DatastoreSettings::Dir { .. }) {
            fs::create_dir_all(&disks).map_err(|e| os_error::io(&what, &e))?;
        }
        let folder = disks.join(name.as_str());
        if folder.symlink_metadata().is_ok() {
            return Err(in_the_way(&what, &folder));
        }
        drafts::sweep(&disks);
        // Named by the disk's UUID: another host may be creating a disk of the same name.
        let draft = drafts::begin(&disks, &format!("{name}-{}", new.descriptor.uuid))
            .map_err(|e| os_error::io(&what, &e))?;
        let begun = Unpublished {
            draft,
            disks,
            folder,
            what,
        };
        let made = match new.image {
            Some((size, allocation)) => create_image(&begun.image(), size, allocation),
            None => Ok(()),
        };
        match made {
            Ok(()) => Ok(begun),
            Err(error) => {
                let problem = os_error::io(&begun.what, &error);
                Err(begun.give_up(problem))
            }
        }
    }

    /// A disk for a change: no other program on any host changes it while the turn lives.
    pub(crate) fn to_change(&self, found: &Found) -> Outcome<(Found, files::Turn)> {
        let name = &found.name;
        if found.settings == (DatastoreSettings::Pool {}) {
            return Ok((self.reread(found)?, files::Turn::none()));
        }
        let turn = files::turn(Location::in_disk(&found.descriptor_file()))
            .map_err(|e| os_error::io(format!("cannot change disk {name}"), &e))?;
        // Read again: the previous owner of the turn may have changed it.
        Ok((self.reread(found)?, turn))
    }

    /// Replaces a disk's descriptor.
    pub(crate) fn write_descriptor(&self, disk: &Found) -> Outcome<()> {
        let what = || format!("cannot change disk {}", disk.name);
        disk.descriptor
            .check()
            .map_err(|e| os_error::out_of_range(what(), &e))?;
        if disk.settings == (DatastoreSettings::Pool {}) {
            let (pool, name) = (&disk.datastore, &disk.name);
            let changed = self.catalogs()?.change(pool, name, &disk.descriptor);
            return changed.map_err(|problem| problem.within(what()));
        }
        let at = Location::in_disk(&disk.descriptor_file());
        files::replace(at, disk.descriptor.write().as_bytes()).map_err(|e| os_error::io(what(), &e))
    }

    /// Resizes a disk's image file. Block devices and datastores without files are left alone. `before` is the disk's
    /// old size. Bytes beyond it in the file, left by an earlier and larger disk, are cleared.
    pub(crate) fn resize_image(&self, disk: &Found, before: u64, size: u64) -> Outcome<()> {
        if !matches!(disk.settings, DatastoreSettings::Dir { .. }) {
            return Ok(());
        }
        let what = || format!("cannot resize disk {}", disk.name);
        let image = disk.image();
        let opened = disk.open_image(File::options().write(true));
        let resized = opened.and_then(|file| {
            if file.metadata()?.file_type().is_block_device() {
                return match device_size(&image)? {
                    has if has < size => Err(io::Error::new(
                        io::ErrorKind::InvalidInput,
                        format!("{} has {has} bytes only", image.display()),
                    )),
                    _ => Ok(()),
                };
            }
            let has = file.metadata()?.len();
            if before < size && before < has {
                clear(&file, before, has)?;
            }
            // A file that is longer than a growing disk stays that long: it may be attached.
            if size < before || has < size {
                file.set_len(size)?;
            }
            file.sync_all()
        });
        resized.map_err(|e| match e.kind() {
            // Only a device that is too small gives this error.
            io::ErrorKind::InvalidInput => os_error::io(what(), &e)
                .remedy("request no more than the device has, or enlarge the device first"),
            _ => os_error::io(what(), &e),
        })
    }

    /// Deletes a disk and its data. A block device's content stays as it is. `held` has the lock against other users
    /// and is dropped once the disk is gone: NFS retains a removed file that is open.
    pub(crate) fn delete_disk<T>(&self, disk: &Found, held: T) -> Outcome<()> {
        let what = || format!("cannot delete disk {}", disk.name);
        if disk.settings == (DatastoreSettings::Pool {}) {
            let deleted = self
                .catalogs()?
                .delete(&disk.datastore, disk.descriptor.uuid);
            return deleted.map_err(|problem| problem.within(what()));
        }
        self.must_be_mounted(&disk.datastore, &disk.settings)
            .map_err(|problem| problem.within(what()))?;
        contents::must_hold_nothing_else(&disk.folder).map_err(|problem| problem.within(what()))?;
        let disks = self.disks_folder(&disk.datastore, &disk.settings);
        self.delete_folder(&disks, &disk.name, held)
            .map_err(|e| os_error::io(what(), &e))
    }

    /// Deletes the directory of a disk or of one of its members. `held` is dropped once its new name says so.
    pub(super) fn delete_folder<T>(&self, disks: &Path, name: &Name, held: T) -> io::Result<()> {
        let doomed = disks.join(format!("{}{name}", drafts::DOOMED));
        drafts::finish(&doomed)
            .and_then(|()| fs::rename(disks.join(name.as_str()), &doomed))
            .and_then(|()| files::sync_folder(disks))?;
        drop(held);
        if let Err(error) = drafts::finish(&doomed) {
            let path = doomed.display();
            tracing::warn!(%error, %path, "the files of a deleted disk use space until the next disk is created or \
                 deleted there");
        }
        drafts::sweep(disks);
        Ok(())
    }
}

/// The directory of a new disk, or of a member of one.
pub(crate) struct NewFolder<'a> {
    pub(crate) datastore: &'a Name,
    pub(crate) settings: &'a DatastoreSettings,
    pub(crate) name: &'a Name,
    pub(crate) descriptor: &'a Descriptor,
    /// The name of the descriptor's file.
    pub(crate) file: &'a str,
    /// Size in bytes of the image to create, if any.
    pub(crate) image: Option<(u64, Allocation)>,
}

/// A directory that is being created, before it gets its name.
#[derive(Debug)]
pub(crate) struct Unpublished {
    draft: drafts::Draft,
    disks: PathBuf,
    folder: PathBuf,
    /// What failed, if it fails.
    what: String,
}

impl Unpublished {
    /// Where it is until it is published.
    pub(crate) fn path(&self) -> &Path {
        self.draft.path()
    }

    /// Where it will be.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn image(&self) -> PathBuf {
        self.draft.path().join(IMAGE)
    }

    /// Gives it its descriptor and its name.
    fn publish(&self, file: &str, descriptor: &Descriptor) -> Outcome<()> {
        let at = Location::in_disk(&self.draft.path().join(file));
        let published = files::replace(at, descriptor.write().as_bytes())
            .and_then(|()| self.draft.publish(&self.folder))
            .and_then(|()| files::sync_folder(&self.disks));
        published.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => in_the_way(&self.what, &self.folder),
            _ => os_error::io(&self.what, &e),
        })
    }

    /// Gives it a disk's descriptor and its name.
    pub(crate) fn publish_disk(&self, descriptor: &Descriptor) -> Outcome<()> {
        self.publish(DESCRIPTOR, descriptor)
    }

    /// Removes it, for this reason.
    pub(crate) fn give_up(self, problem: Problem) -> Problem {
        let left = self.draft.path().display().to_string();
        match self.draft.discard() {
            Ok(()) => problem,
            Err(second) => problem.because(format!("{left} is left there ({second})")),
        }
    }
}

fn in_the_way(what: &str, folder: &Path) -> Problem {
    Problem::new(ProblemCode::Exists, what)
        .because(format!("{} exists", folder.display()))
        .remedy("choose another name, or move that directory")
}

fn cannot_create(name: &Name, datastore: &Name) -> String {
    format!("cannot create disk {name} on datastore {datastore}")
}

/// Makes a range of a file read as zeroes.
fn clear(file: &File, from: u64, to: u64) -> io::Result<()> {
    use rustix::fs::FallocateFlags;
    use std::os::unix::fs::FileExt;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(file, hole, from, to - from) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
        cleared => return Ok(cleared?),
    }
    let zeroes = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        let most = usize::try_from(to - at).unwrap_or(usize::MAX);
        let piece = &zeroes[..zeroes.len().min(most)];
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Whether a block device is at that path.
pub(crate) fn is_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|told| told.file_type().is_block_device())
}

/// Size in bytes of a block device or a file.
pub(crate) fn device_size(path: &Path) -> io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    File::open(path)?.seek(SeekFrom::End(0))
}

fn create_image(path: &Path, size: u64, allocation: Allocation) -> io::Result<()> {
    // Only the daemon's user may read guests' data.
    let image = Location::in_disk(path).create_new(0o600)?;
    match allocation {
        Allocation::Thin => image.set_len(size)?,
        Allocation::Thick => {
            rustix::fs::fallocate(&image, rustix::fs::FallocateFlags::empty(), 0, size)?;
        }
    }
    image.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tidegate_api::descriptor::Uuid;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn store() -> (tempfile::TempDir, Store, DatastoreSettings) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("state")).unwrap();
        let path = folder.path().join("local");
        fs::create_dir(&path).unwrap();
        let settings = DatastoreSettings::Dir {
            path,
            io: Default::default(),
        };
        store
            .add_datastore(&name("local"), settings.clone())
            .unwrap();
        (folder, store, settings)
    }

    /// Number of entries in a datastore's directory, without those that hosts share.
    fn left(folder: &Path) -> usize {
        let entries = fs::read_dir(folder).unwrap();
        let is_left = |entry: &fs::DirEntry| entry.file_name() != ".tidegate";
        entries.filter_map(Result::ok).filter(is_left).count()
    }

    fn create(store: &Store, settings: &DatastoreSettings, disk: &str) -> Outcome<()> {
        let descriptor = Descriptor::new(Uuid::from_random([1; 16]), 1 << 30);
        store.create_disk(
            &name("local"),
            settings,
            &name(disk),
            &descriptor,
            Allocation::Thin,
            |_| Ok(()),
        )
    }

    #[test]
    fn a_created_disk_is_found_thin_and_then_deleted_whole() {
        let (folder, store, settings) = store();
        create(&store, &settings, "a").unwrap();
        let disk = store.find(&name("a")).unwrap();
        assert_eq!(fs::metadata(disk.image()).unwrap().len(), 1 << 30);
        assert_eq!(disk.allocated(), Some(0));
        assert_eq!(
            create(&store, &settings, "a").unwrap_err().code,
            ProblemCode::Exists
        );
        store.delete_disk(&disk, ()).unwrap();
        assert_eq!(
            store.find(&name("a")).unwrap_err().code,
            ProblemCode::NotFound
        );
        assert_eq!(left(&folder.path().join("local")), 0);
    }

    #[test]
    fn a_creation_or_deletion_that_a_crash_cut_short_is_invisible_and_in_nobodys_way() {
        let (folder, store, settings) = store();
        let local = folder.path().join("local");
        for left in [".creating-a", ".deleting-a"] {
            fs::create_dir(local.join(left)).unwrap();
            fs::write(local.join(left).join(IMAGE), "half").unwrap();
        }
        assert!(store.disks(&name("local"), &settings).unwrap().is_empty());
        create(&store, &settings, "a").unwrap();
        store
            .delete_disk(&store.find(&name("a")).unwrap(), ())
            .unwrap();
        assert_eq!(left(&local), 0);
    }

    #[test]
    fn a_deleted_disks_image_is_let_go_of_before_it_is_removed_and_others_leftovers_go_with_it() {
        /// Checks when dropped what is there.
        struct Held<'a>(&'a Path, &'a mut Vec<(bool, bool)>);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                let image = |disk: &str| self.0.join(disk).join(IMAGE).exists();
                self.1.push((image("a"), image(".deleting-a")));
            }
        }
        let (folder, store, settings) = store();
        let local = folder.path().join("local");
        create(&store, &settings, "a").unwrap();
        fs::create_dir(local.join(".deleting-b")).unwrap();
        let mut seen = Vec::new();
        let disk = store.find(&name("a")).unwrap();
        store.delete_disk(&disk, Held(&local, &mut seen)).unwrap();
        assert_eq!(seen, [(false, true)]);
        assert_eq!(left(&local), 0);
    }

    #[test]
    fn of_two_hosts_that_make_one_disk_at_one_moment_one_has_it_whole_and_the_other_is_told() {
        let (folder, store, settings) = store();
        let make = |number: u8, fill: &dyn Fn(&Path)| {
            let descriptor = Descriptor::new(Uuid::from_random([number; 16]), 4096);
            let (on, named) = (name("local"), name("a"));
            let fill = |path: &Path| {
                fill(path);
                Ok(())
            };
            store.create_disk(&on, &settings, &named, &descriptor, Allocation::Thin, fill)
        };
        let put = |path: &Path, bytes: &[u8]| {
            let file = File::options().write(true).open(path);
            std::os::unix::fs::FileExt::write_all_at(&file.unwrap(), bytes, 0).unwrap();
        };
        let (begun, both) = std::sync::mpsc::sync_channel(0);
        let (ended, first_is_there) = std::sync::mpsc::sync_channel(1);
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                let made = make(1, &|path| {
                    begun.send(()).unwrap();
                    begun.send(()).unwrap();
                    put(path, b"first");
                });
                ended.send(()).unwrap();
                made
            });
            both.recv().unwrap();
            // Moved in: if this fails early, the first thread does not wait forever.
            let second = make(2, &move |path| {
                both.recv().unwrap();
                first_is_there.recv().unwrap();
                put(path, b"second");
            });
            (first.join().unwrap(), second)
        });
        first.unwrap();
        let refused = second.unwrap_err();
        assert_eq!(refused.code, ProblemCode::Exists, "{refused}");
        let disk = store.find(&name("a")).unwrap();
        assert_eq!(disk.descriptor.uuid, Uuid::from_random([1; 16]));
        assert_eq!(fs::read(disk.image()).unwrap()[..6], *b"first\0");
        store.delete_disk(&disk, ()).unwrap();
        let local = folder.path().join("local");
        assert_eq!(left(&local), 0);
    }

    #[test]
    fn a_corrupt_descriptor_is_a_clear_error_and_other_disks_are_still_listed() {
        let (folder, store, settings) = store();
        create(&store, &settings, "good").unwrap();
        create(&store, &settings, "bad").unwrap();
        let path = folder.path().join("local/bad/disk.toml");
        fs::write(&path, b"version = 1\nsize = 'huge'\n").unwrap();
        let disks = store.disks(&name("local"), &settings).unwrap();
        assert!(disks[&name("good")].is_ok());
        let problem = disks[&name("bad")].as_ref().unwrap_err();
        assert_eq!(problem.code, ProblemCode::Corrupt);
        let text = problem.to_string();
        assert!(
            text.contains("disk bad") && text.contains("disk.toml"),
            "{text}"
        );
        assert!(text.contains("nothing was changed"), "{text}");
        assert_eq!(fs::read(&path).unwrap(), b"version = 1\nsize = 'huge'\n");
    }

    #[test]
    fn a_disk_whose_directory_a_peer_made_a_link_is_neither_read_nor_written_behind_it() {
        let (folder, store, settings) = store();
        create(&store, &settings, "a").unwrap();
        let mut disk = store.find(&name("a")).unwrap();
        let outside = folder.path().join("outside");
        fs::rename(&disk.folder, &outside).unwrap();
        std::os::unix::fs::symlink(&outside, &disk.folder).unwrap();
        let before = fs::read(outside.join(DESCRIPTOR)).unwrap();
        assert!(disk.open_image(File::options().write(true)).is_err());
        assert!(!disk.has_sound_image() && disk.allocated().is_none());
        disk.descriptor.size.0 *= 2;
        assert!(store.write_descriptor(&disk).is_err());
        assert!(
            store
                .resize_image(&disk, 0, disk.descriptor.size.0)
                .is_err()
        );
        assert!(store.to_change(&disk).is_err());
        assert!(create_image(&disk.folder.join("new"), 4096, Allocation::Thin).is_err());
        assert_eq!(fs::read(outside.join(DESCRIPTOR)).unwrap(), before);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 2);
    }

    #[test]
    fn the_same_name_on_two_datastores_is_refused_by_both_names() {
        let (folder, store, settings) = store();
        create(&store, &settings, "a").unwrap();
        let path = folder.path().join("other");
        fs::create_dir(&path).unwrap();
        let other = DatastoreSettings::Dir {
            path,
            io: Default::default(),
        };
        store.add_datastore(&name("other"), other.clone()).unwrap();
        let descriptor = Descriptor::new(Uuid::from_random([2; 16]), 512);
        store
            .create_disk(
                &name("other"),
                &other,
                &name("a"),
                &descriptor,
                Allocation::Thin,
                |_| Ok(()),
            )
            .unwrap();
        let text = store.find(&name("a")).unwrap_err().to_string();
        assert!(text.contains("local") && text.contains("other"), "{text}");
    }

    #[test]
    fn a_thick_image_that_does_not_fit_leaves_nothing() {
        let (folder, store, settings) = store();
        // More space than any test machine's file system has.
        let descriptor = Descriptor::new(Uuid::from_random([3; 16]), 1 << 50);
        let made = store.create_disk(
            &name("local"),
            &settings,
            &name("a"),
            &descriptor,
            Allocation::Thick,
            |_| Ok(()),
        );
        assert!(made.is_err());
        assert_eq!(left(&folder.path().join("local")), 0);
    }

    #[test]
    fn which_disks_are_attached_is_remembered() {
        let (_folder, store, _) = store();
        assert!(store.attached().unwrap().is_empty());
        let disks = BTreeMap::from([(name("a"), name("local"))]);
        store.set_attached(disks.clone()).unwrap();
        assert_eq!(store.attached().unwrap(), disks);
    }

    #[test]
    fn datastores_without_files_keep_descriptors_in_the_roots_state() {
        let (folder, store, _) = store();
        store
            .add_datastore(&name("ram"), DatastoreSettings::Memory {})
            .unwrap();
        let descriptor = Descriptor::new(Uuid::from_random([4; 16]), 4096);
        let settings = store.datastore(&name("ram")).unwrap();
        store
            .create_disk(
                &name("ram"),
                &settings,
                &name("m"),
                &descriptor,
                Allocation::Thin,
                |_| Ok(()),
            )
            .unwrap();
        assert!(folder.path().join("state/disks/ram/m/disk.toml").exists());
        assert_eq!(store.find(&name("m")).unwrap().descriptor, descriptor);
    }
}
