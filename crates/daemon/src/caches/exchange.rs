//! Devices that are put in a place of a cache, or taken away, while disks use it: the record, the labels, and what is void.
//!
//! The disk service calls this, with the claims of all disks that have a part. It drops the device from the caches at work
//! before the record names another one.
//!
//! # Always true
//! - the record names a device only after the device has its label, and nothing on it counts for any disk
//! - the record names another device only after each disk at work does without the old one
//! - what a disk that is not attached has on the other device is void: the one that leaves may have been newer
//! - the label of each device that takes a place has another number, so one that comes back is refused
//!
//! # Picture
//! ```text
//!   new device: parts void, label ── parts of others void ── disks drop the old one ── record ── images ── filled ── old label cleared
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tidegate_api::cache::{CacheData, CacheDeviceAdd};
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::layout::cache::label::DeviceLabel;
use tidegate_engine::datastore::dir::SharedFile;

use super::chunks::Part;
use super::record::{self, PLACES};
use super::{Caches, Device, Devices, Record, devices, locked};
use crate::os_error::{self, Outcome};
use crate::text::new_uuid;

/// A device that is to become one of a cache: open and locked.
pub(crate) struct NewDevice {
    path: PathBuf,
    file: Arc<SharedFile>,
    label: DeviceLabel,
}

impl NewDevice {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// A device that was one of a cache.
pub(crate) struct OldDevice {
    path: PathBuf,
    file: Option<Arc<SharedFile>>,
    label: DeviceLabel,
    parts: Vec<Part>,
}

impl OldDevice {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Clears its label, so that it can become another cache. Fails if it cannot be reached; nobody uses it then either.
    pub(crate) fn clear(&self) -> Outcome<()> {
        let file = self.file.as_ref().ok_or_else(|| {
            Problem::new(
                ProblemCode::Datastore,
                format!("{} cannot be reached", self.path.display()),
            )
            .remedy("to use it again, name it with --force")
        })?;
        // After a hot plug something else may be there.
        file.image_of(&self.label.encode())
            .map_err(|e| crate::host::problem(&e))?;
        for part in &self.parts {
            devices::clear_part(file, part, self.label.chunk)?;
        }
        devices::clear_label(file)
    }
}

/// The right to change the devices of a cache, until it is dropped.
pub(crate) struct Changing {
    name: Name,
    all: Arc<Mutex<BTreeSet<Name>>>,
}

impl Drop for Changing {
    fn drop(&mut self) {
        locked(&self.all).remove(&self.name);
    }
}

impl Caches {
    /// Takes the right to change the devices of a cache.
    pub(crate) fn change_devices(&self, name: &Name) -> Outcome<Changing> {
        if !locked(&self.exchanging).insert(name.clone()) {
            return Err(Problem::new(
                ProblemCode::Busy,
                format!("the devices of cache {name} are being changed already"),
            )
            .remedy("wait for that job (see `tidegate job list`), or cancel it"));
        }
        Ok(Changing {
            name: name.clone(),
            all: Arc::clone(&self.exchanging),
        })
    }

    /// Whether the devices of a cache are being changed.
    pub(crate) fn changes_devices(&self, name: &Name) -> bool {
        locked(&self.exchanging).contains(name)
    }

    /// Opens a device that is to take a place in a cache. `must_be_free` fails if it is used otherwise.
    pub(crate) fn new_device(
        &self,
        record: &Record,
        nth: u8,
        order: &CacheDeviceAdd,
        must_be_free: impl Fn(&Path) -> Outcome<()>,
    ) -> Outcome<NewDevice> {
        let path = &order.path;
        if !path.is_absolute() {
            return Err(
                os_error::invalid(format!("{} is not an absolute path", path.display()))
                    .remedy("give an absolute path"),
            );
        }
        must_be_free(path)?;
        self.must_be_of_no_cache(path, Some(record.uuid))?;
        if !path.exists() {
            return Err(Problem::new(
                ProblemCode::NotFound,
                format!("{} is not there", path.display()),
            )
            .remedy(format!(
                "name a block device or an existing file; to create a file: truncate -s {} {}",
                record.size.0,
                path.display()
            )));
        }
        let file = devices::lock(path, devices::PATIENCE)?;
        if file.size() < record.size.0 {
            return Err(os_error::invalid(format!(
                "{} has {} bytes, and the cache uses {} of each device",
                path.display(),
                file.size(),
                record.size.0
            ))
            .remedy("name a larger one"));
        }
        if order.data == CacheData::Keep && !devices::is_left_of(&file, record) {
            devices::must_be_empty(&file)?;
        }
        let Uuid([a, b, c, d, ..]) = new_uuid()?;
        let label = DeviceLabel {
            devices: PLACES,
            serial: u32::from_le_bytes([a, b, c, d]).max(1),
            ..record.label(nth)
        };
        Ok(NewDevice {
            path: path.clone(),
            file: Arc::new(file),
            label,
        })
    }

    /// Puts a device in a place of a cache, or takes the one there away. The disks of `at_work` use the cache, and `drop` has
    /// them do without the old device; the caller has claimed the disks of all parts. Returns the devices as they are now, and
    /// the old one. After an error the record is as before, but some disks may do without the old device.
    pub(crate) fn exchange(
        &self,
        name: &Name,
        nth: u8,
        new: Option<&NewDevice>,
        at_work: &BTreeSet<Uuid>,
        claimed: &BTreeSet<Uuid>,
        drop: impl FnOnce() -> Outcome<()>,
    ) -> Outcome<(Arc<Devices>, Option<OldDevice>)> {
        let _changing = locked(&self.changing);
        let before = self.record(name)?;
        if before
            .parts
            .iter()
            .any(|part| !claimed.contains(&part.uuid))
        {
            return Err(Problem::new(
                ProblemCode::Busy,
                format!("a disk gets a part of cache {name}"),
            )
            .remedy("try again when it has it"));
        }
        let open = self.devices(name, &before);
        let other = 1 - nth;
        let kept = open.at(other).filter(|device| device.is_usable());
        let kept = kept.and_then(|device| Some((device.file.clone().ok()?, device.label)));
        let Some((kept, kept_label)) = kept else {
            return Err(unusable(name, other, &open));
        };
        // The one that leaves may have failed.
        devices::must_be_newest(name, &kept, &before)?;
        devices::write_seen(&kept, &before)?;
        let chunk = before.chunk.0;
        if let Some(new) = new {
            devices::clear_label(&new.file)?;
            for part in &before.parts {
                devices::clear_part(&new.file, part, chunk)?;
            }
            devices::write_label(&new.file, &new.label)?;
        }
        // A place that was empty had nothing newer.
        if before.device(nth).is_some() {
            let idle = |part: &&Part| !at_work.contains(&part.uuid);
            for part in before.parts.iter().filter(idle) {
                must_not_be_at_stake(name, part)?;
                devices::clear_part(&kept, part, chunk)?;
            }
        }
        drop()?;
        let mut after = before.clone();
        after.generation += 1;
        after.set_device(nth, new.map(|new| (new.path.clone(), new.label.serial)));
        if let Err(problem) = record::write(&self.folder, name, &after) {
            // The error may have come after the file was replaced.
            if self.record(name).is_ok_and(|stored| stored != after) {
                return Err(problem);
            }
        }
        let mut places = [const { None }; PLACES as usize];
        places[usize::from(other)] = Some(Device::new(Ok(kept), kept_label));
        places[usize::from(nth)] = new.map(|new| Device::new(Ok(Arc::clone(&new.file)), new.label));
        let devices = Arc::new(Devices(places));
        *locked(&self.opened(name)) = Some(Arc::clone(&devices));
        self.budgets.set_devices(name, devices.count());
        self.astray.forget(name);
        if let Err(problem) = self.show(name, &after) {
            // Nothing is given by it: the next change that gives something shows it, or fails.
            tracing::warn!(cache = %name, %problem, "its devices do not have the newest number of its record");
        }
        let old = before.device(nth).map(|path| OldDevice {
            path: path.to_owned(),
            file: open.at(nth).and_then(|device| device.file.clone().ok()),
            label: open
                .at(nth)
                .map_or_else(|| before.label(nth), |device| device.label),
            parts: before.parts.clone(),
        });
        Ok((devices, old))
    }
}

/// Fails if a part that no attached disk uses may have what its disk does not.
pub(crate) fn must_not_be_at_stake(name: &Name, part: &Part) -> Outcome<()> {
    match part.dirty {
        false => Ok(()),
        true => Err(Problem::new(
            ProblemCode::Locked,
            format!("disk {} is not attached with cache {name}", part.disk),
        )
        .because(
            "only the cache has some of its writes, and nobody knows which device has all of them",
        )
        .remedy(format!(
            "attach it: tidegate disk attach {}, and repeat the command",
            part.disk
        ))),
    }
}

/// The problem of a cache whose other device is not there.
fn unusable(name: &Name, nth: u8, devices: &Devices) -> Problem {
    let problem = Problem::new(
        ProblemCode::Datastore,
        format!("device {nth} of cache {name} cannot be used"),
    );
    let why = devices.problems().into_iter().nth(nth.into()).flatten();
    let problem = match why {
        Some(why) => problem.because(why),
        None => problem,
    };
    problem.remedy(format!(
        "its other device has everything then: replace device {nth} first; see `tidegate cache show {name}`"
    ))
}
