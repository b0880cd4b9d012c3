//! Files and devices that are images of disks: a command that would write to one is refused.
//!
//! # Always true
//! - An image is identified by its device and inode, or by its device number if it is a device, and not by its path.
//! - If an attached disk's image is no longer at its path, this is logged once, and again when it is back. If it is a
//!   member's, there is an event.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::events::Happening;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::DiskService;
use crate::disks::attached::{Astray, Attached, OpenImage};
use crate::os_error::{self, Outcome};
use crate::store::{COMMON, Found, Identity, Store, is_disks_folder};

impl DiskService {
    /// Fails if a disk's device shares bytes with that of an attached disk, and one of the two writes.
    pub(super) fn must_not_share_bytes(&self, found: &Found) -> Outcome<()> {
        for device in found.descriptor.devices() {
            self.must_not_share_device(found, device)?;
        }
        Ok(())
    }

    fn must_not_share_device(&self, found: &Found, device: &Path) -> Outcome<()> {
        let Ok(ours) = Identity::at(device) else {
            return Ok(());
        };
        for live in self.live.all() {
            let writes = !found.descriptor.read_only || !live.is_read_only();
            if writes && live.uses(ours) {
                let (name, other) = (&found.name, live.name());
                let what = format!("disk {name} may not use {}", device.display());
                return Err(Problem::new(ProblemCode::Busy, what)
                    .because(format!(
                        "disk {other} is attached, and uses the same device, a part of it, or a device made of it"
                    ))
                    .remedy(format!("detach disk {other} first, or give disk {name} another device")));
            }
        }
        Ok(())
    }

    /// Fails if a path leads, through links, to a disk's image or into a disk's directory.
    pub(super) fn must_be_no_image(&self, path: &Path) -> Outcome<()> {
        let what = || format!("cannot write {}", path.display());
        let remedy = "choose another file";
        self.must_not_be_ours(path, &what())?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        if is_disks_folder(folder) {
            return Err(Problem::new(ProblemCode::Busy, what())
                .because(format!("{} is a disk's directory", folder.display()))
                .remedy(remedy));
        }
        match self.disk_of_image(path)? {
            None => Ok(()),
            Some(disk) => Err(Problem::new(ProblemCode::Busy, what())
                .because(format!("it is the image of disk {disk}"))
                .remedy(remedy)),
        }
    }

    /// Fails if a path leads, through links, to the daemon's state or sockets, or to data that hosts share.
    pub(super) fn must_not_be_ours(&self, path: &Path, what: &str) -> Outcome<()> {
        let Some(folder) = path.parent().and_then(|folder| folder.canonicalize().ok()) else {
            return Ok(());
        };
        let lies_in = |own: &Path| own.canonicalize().is_ok_and(|own| folder.starts_with(own));
        let common = folder.ancestors().find(|part| part.ends_with(COMMON));
        let (own, holds) = if lies_in(&self.root.state()) {
            (self.root.state(), "the daemon's own state")
        } else if lies_in(self.root.run()) {
            (self.root.run().to_owned(), "the daemon's sockets")
        } else if let Some(common) = common {
            (
                common.to_owned(),
                "the coordination files of the hosts that share a datastore",
            )
        } else {
            return Ok(());
        };
        Err(Problem::new(ProblemCode::Busy, what)
            .because(format!(
                "it is in {}, which contains {holds}",
                own.display()
            ))
            .remedy("choose a file in another directory"))
    }

    /// Fails if a path leads, through links, to a device that shares bytes with a known disk's device.
    pub(super) fn must_be_no_disks_device(&self, device: &Path) -> Outcome<()> {
        let Some(disk) = self.disk_of_image(device)? else {
            return Ok(());
        };
        let what = format!("{} cannot be used", device.display());
        Err(Problem::new(ProblemCode::Busy, what)
            .because(format!(
                "it is the device of disk {disk}, a part of it, or made of it"
            ))
            .remedy(format!("give another device, or delete disk {disk} first")))
    }

    /// A known disk, attached or not, whose image shares bytes with the file or device at a path.
    fn disk_of_image(&self, path: &Path) -> Outcome<Option<Name>> {
        let Ok(there) = Identity::at(path) else {
            return Ok(None);
        };
        let live = self.live.all().into_iter();
        let attached = live
            .filter(|live| live.uses(there))
            .map(|live| live.name().clone());
        let mut images: Vec<_> = attached.collect();
        for (datastore, settings) in self.store.datastores()? {
            let Ok(settings @ DatastoreSettings::Dir { .. }) = settings else {
                continue;
            };
            let (store, on) = (self.store.clone(), datastore.clone());
            // A file on an unreachable datastore cannot be replaced either.
            let found = self.surveys.at(&datastore, move || {
                let disks = store.disks(&on, &settings)?.into_values();
                let is_it = |found: &Found| {
                    let is_same = |path: &Path| {
                        Identity::at(path).is_ok_and(|image| image.shares_bytes(there))
                    };
                    is_same(&found.image())
                        || found.descriptor.devices().any(|device| is_same(device))
                };
                Ok(disks.filter_map(Result::ok).find(is_it))
            });
            images.extend(found.ok().flatten().map(|found| found.name));
        }
        Ok(images.into_iter().next())
    }

    /// Checks whether an attached disk's image is still at its path, and logs a change.
    pub(super) fn look_after_image(&self, live: &Arc<Attached>) {
        let mut astray = Vec::new();
        for image in live.images() {
            let member = image.member;
            match self.look_at(live, image) {
                Ok(fault) => astray.extend(fault.map(|fault| (member, fault))),
                // A server that does not respond gives no answer.
                Err(_) => astray.extend(live.astray(member).map(|fault| (member, fault))),
            }
        }
        let before = live.goes_astray(astray.clone());
        if before == astray {
            return;
        }
        match live.misplaced() {
            Some(problem) => {
                tracing::error!(disk = %live.name(), %problem, "a disk's image is missing")
            }
            None => tracing::info!(disk = %live.name(), "a disk's image is back"),
        }
        let places = live.descriptor().map(|descriptor| descriptor.members);
        let places = places.unwrap_or_default();
        let news = astray.iter().filter(|fault| !before.contains(fault));
        for (nth, fault) in news {
            let (Some(place), Ok(member)) = (places.get(*nth), u8::try_from(*nth)) else {
                continue;
            };
            let missing = Happening::MemberImageMissing {
                disk: live.name().clone(),
                member,
                why: fault.why().to_owned(),
            };
            self.notices
                .add_member(live.name(), &place.datastore, missing);
        }
    }

    /// The fault at the path of an open image. Another datastore than the disk's own may hang: it is waited for only so long.
    fn look_at(&self, live: &Attached, image: OpenImage) -> Outcome<Option<Astray>> {
        let (store, on) = (self.store.clone(), image.datastore.clone());
        let look = move || {
            let what = || format!("cannot look at {}", image.path.display());
            astray(&store, &image).map_err(|e| os_error::io(what(), &e))
        };
        match on == *live.datastore() {
            true => look(),
            false => self.looks.at(&on, look),
        }
    }

    /// Fails if an attached disk's open image is no longer at its path.
    pub(super) fn must_be_in_place(&self, live: &Arc<Attached>) -> Outcome<()> {
        self.look_after_image(live);
        live.misplaced().map_or(Ok(()), Err)
    }
}

/// The fault at the path of an open image, if there is one.
fn astray(store: &Store, image: &OpenImage) -> io::Result<Option<Astray>> {
    let Ok(settings) = store.datastore(&image.datastore) else {
        return Ok(None);
    };
    if matches!(image.identity, Identity::Device(_)) {
        return Ok(None);
    }
    let missing = |error: &io::Error| {
        matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        )
    };
    let astray = match Identity::at(&image.path) {
        Ok(there) if there == image.identity => return Ok(None),
        Ok(_) => Astray::Replaced,
        Err(error) if missing(&error) => Astray::Gone,
        Err(error) => return Err(error),
    };
    Ok(Some(
        match store.must_be_mounted(&image.datastore, &settings) {
            Ok(()) => astray,
            Err(_) => Astray::Unmounted,
        },
    ))
}
