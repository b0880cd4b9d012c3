//! Devices of caches to which their paths do not lead any more: a file was renamed or removed, or something else is there.
//!
//! Disks use the open device, so their guests notice nothing. The next start of the daemon would not find it.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, TryLockError};

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::datastore::dir::SharedFile;

use super::{Caches, locked};
use crate::store::Identity;

/// The devices that are astray, by cache and number, with what is wrong.
#[derive(Default)]
pub(crate) struct Astray(Mutex<BTreeMap<(Name, u8), Problem>>);

/// A device that is astray since it was looked for the last time, or is in its place again.
pub(crate) struct Changed {
    pub(crate) cache: Name,
    pub(crate) device: u8,
    pub(crate) path: PathBuf,
    /// What happened to it. None: it is in its place.
    pub(crate) why: Option<String>,
}

impl Astray {
    /// What is wrong with the place of a cache's device.
    pub(crate) fn of(&self, cache: &Name, device: usize) -> Option<Problem> {
        let device = u8::try_from(device).ok()?;
        locked(&self.0).get(&(cache.clone(), device)).cloned()
    }

    /// What is wrong with the place of one of a cache's devices.
    pub(crate) fn of_cache(&self, cache: &Name) -> Option<Problem> {
        let table = locked(&self.0);
        let mut devices = table.iter().filter(|((name, _), _)| name == cache);
        devices.next().map(|(_, problem)| problem.clone())
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Problem> {
        locked(&self.0).values().cloned().collect()
    }

    /// A cache is removed, or has other devices.
    pub(super) fn forget(&self, cache: &Name) {
        locked(&self.0).retain(|(name, _), _| name != cache);
    }
}

impl Caches {
    /// Looks whether the paths of all open devices lead to them. Returns what has changed since the last time. Blocks.
    pub(crate) fn look_for_devices(&self) -> Vec<Changed> {
        let open: Vec<_> = locked(&self.open)
            .iter()
            .map(|(name, open)| (name.clone(), open.clone()))
            .collect();
        let mut changed = Vec::new();
        for (cache, open) in open {
            let devices = match open.try_lock() {
                Ok(devices) => devices.clone(),
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
                // They are being opened at their paths now.
                Err(TryLockError::WouldBlock) => None,
            };
            let devices = devices.iter().flat_map(|devices| &devices.0);
            for (device, open) in (0..).zip(devices) {
                let file = open.as_ref().and_then(|open| open.file.as_ref().ok());
                let Some(file) = file else {
                    continue;
                };
                let why = why_astray(file);
                let place = (cache.clone(), device);
                let mut table = locked(&self.astray.0);
                let before = match &why {
                    Some(why) => table.insert(place, astray((&cache, device), file.path(), why)),
                    None => table.remove(&place),
                };
                if before.is_some() != why.is_some() {
                    changed.push(Changed {
                        cache: cache.clone(),
                        device,
                        path: file.path().to_owned(),
                        why,
                    });
                }
            }
        }
        changed
    }
}

/// Why a device's path does not lead to it, if so. A path that cannot be read for another reason says nothing.
fn why_astray(file: &SharedFile) -> Option<String> {
    let open = Identity::of(&file.metadata().ok()?);
    match Identity::at(file.path()) {
        Ok(there) if there == open => None,
        Ok(_) => Some("another file or device is there now".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Some("it was removed or renamed".to_owned())
        }
        Err(_) => None,
    }
}

fn astray((cache, device): (&Name, u8), path: &Path, why: &str) -> Problem {
    Problem::new(
        ProblemCode::NotFound,
        format!(
            "device {device} of cache {cache} is not at {} any more",
            path.display()
        ),
    )
    .because(why)
    .because("disks use the open one until the daemon stops, and what only that has is lost then")
    .remedy(format!(
        "put it back in its place, or replace it while it is open: tidegate cache device replace {cache} {device} --with PATH; if neither \
         is possible, let writes go to each of its disks (tidegate disk set DISK --cache-mode write-through), take the cache off (tidegate \
         disk set DISK --cache none), and remove it (tidegate cache remove {cache})"
    ))
}
