//! Takes a disk's lease before it is attached, and refuses the disk if another host has it.
//!
//! The engine implements leases. This file decides which disks have one and where it is stored, and writes the remedies
//! for the administrator.
//!
//! # Always true
//! - A disk that no other host can reach has no lease, and waits for none.
//! - If nothing prevents a dead host from writing, its disk is taken over only if an administrator confirms that it is
//!   dead.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::disk::Takeover;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::lease::{self, Guard, Holder, Lease, Leases, Refused, Settings};

use crate::control::Identity;
use crate::disks::attached::Attached;
use crate::host;
use crate::os_error::Outcome;
use crate::store::Found;
use crate::text::new_uuid;

/// How long a datastore may take to release leases. The daemon is stopping, and other hosts wait at most until a lease
/// expires.
const FAREWELL: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct DiskLeases {
    host: Identity,
    /// By the directory that contains `.tidegate`; there are few.
    places: Mutex<BTreeMap<PathBuf, Leases>>,
}

/// The data that identifies a disk's lease.
struct About {
    directory: PathBuf,
    disk: [u8; 16],
    guard: Guard,
}

impl DiskLeases {
    /// The leases of this host.
    pub(crate) fn new(host: Identity) -> DiskLeases {
        DiskLeases {
            host,
            places: Mutex::default(),
        }
    }

    /// Takes the lease of a disk whose image is open, to attach it. Returns none if the disk is read-only or no other
    /// host can have it. `coordination` is the shared directory of the hosts, for a datastore without one.
    pub(crate) fn take(
        &self,
        found: &Found,
        coordination: Option<PathBuf>,
        takeover: Takeover,
    ) -> Outcome<Option<Lease>> {
        if found.descriptor.read_only {
            return Ok(None);
        }
        self.take_alone(found, coordination, takeover)
    }

    /// Like `take`, for exclusive use of a disk, read-only or not: its descriptor may have been different when another
    /// host attached it.
    pub(crate) fn take_alone(
        &self,
        found: &Found,
        coordination: Option<PathBuf>,
        takeover: Takeover,
    ) -> Outcome<Option<Lease>> {
        let Some(about) = about(found, coordination) else {
            return Ok(None);
        };
        let name = &found.name;
        let leases = self.at(found, about.directory)?;
        let takeover = match takeover {
            Takeover::Guarded => lease::Takeover::Guarded,
            Takeover::Fenced => lease::Takeover::Fenced,
        };
        let taken = leases.take(about.disk, name.as_str(), about.guard, takeover);
        taken
            .map(Some)
            .map_err(|refused| told(found, &refused, takeover, &self.host))
    }

    /// Fails if another host has the lease of a disk. For a caller that only reads the disk and takes no lease.
    pub(crate) fn nobody_else(&self, found: &Found, coordination: Option<PathBuf>) -> Outcome<()> {
        let Some(about) = about(found, coordination).filter(|about| about.guard != Guard::Kernel)
        else {
            // No other host can reach it, or the lock is sufficient.
            return Ok(());
        };
        let holder = self.at(found, about.directory)?.holder(about.disk);
        match holder.filter(|holder| holder.host != self.host.id) {
            None => Ok(()),
            Some(holder) => {
                let name = &found.name;
                let what = format!("disk {name} is open on host {holder}");
                Err(Problem::new(ProblemCode::Locked, what)
                    .because("reads here would be inconsistent while that host writes")
                    .remedy(format!("detach it there: tidegate disk detach {name}")))
            }
        }
    }

    /// Why an image could not be locked: names the current owner, if one is recorded.
    pub(crate) fn locked_by(&self, found: &Found, problem: Problem) -> Problem {
        if problem.code != ProblemCode::Locked {
            return problem;
        }
        let holder = about(found, None).and_then(|about| {
            let leases = self.at(found, about.directory).ok()?;
            leases.holder(about.disk)
        });
        match holder {
            // A previous run of this daemon may be finishing its last operations, or this root was copied.
            Some(holder) if holder.host == self.host.id => problem.because(
                "an earlier run of this daemon, or a daemon with a copy of its root, has it open",
            ),
            Some(holder) => problem.because(format!("it is open on host {holder}")),
            None => problem,
        }
    }

    /// Releases all leases that can be released.
    pub(crate) fn end(&self) {
        let places = std::mem::take(&mut *locked(&self.places));
        for (directory, leases) in places {
            if let Err(error) = leases.end(FAREWELL) {
                tracing::warn!(directory = %directory.display(), %error, "the leases could not be released; other \
                     hosts wait until they expire");
            }
        }
    }

    fn at(&self, found: &Found, directory: PathBuf) -> Outcome<Leases> {
        let mut places = locked(&self.places);
        if let Some(leases) = places.get(&directory) {
            return Ok(leases.clone());
        }
        let uuid = new_uuid()?.0;
        let incarnation = uuid
            .first_chunk()
            .map_or(0, |half| u64::from_le_bytes(*half));
        let settings = Settings {
            lock: self.host.lock,
            ..Settings::new(
                found.datastore.as_str(),
                directory.clone(),
                self.host.id,
                incarnation,
                &self.host.name,
            )
        };
        let leases = Leases::new(settings).map_err(|e| host::problem(&e))?;
        places.insert(directory, leases.clone());
        Ok(leases)
    }
}

/// Where a disk's lease is stored, and what else protects the disk.
fn about(found: &Found, coordination: Option<PathBuf>) -> Option<About> {
    match &found.settings {
        DatastoreSettings::Dir { path, .. } => Some(About {
            directory: path.clone(),
            disk: found.descriptor.uuid.0,
            guard: Guard::of(path, &found.image()),
        }),
        // Each host has its own descriptor; the export's name is what they share.
        DatastoreSettings::Nbd { .. } => Some(About {
            directory: coordination?,
            disk: named(
                found
                    .descriptor
                    .export
                    .as_deref()
                    .unwrap_or(found.name.as_str()),
            ),
            guard: Guard::Lease,
        }),
        DatastoreSettings::Memory {}
        | DatastoreSettings::Null {}
        | DatastoreSettings::Emulated { .. }
        // The pool's members have leases.
        | DatastoreSettings::Pool {} => None,
    }
}

/// The identity of an export: 128 bits of FNV-1a over its name. It is the same on every host and in every version.
fn named(export: &str) -> [u8; 16] {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let fold = |hash: u128, byte: u8| (hash ^ u128::from(byte)).wrapping_mul(PRIME);
    export.bytes().fold(BASIS, fold).to_be_bytes()
}

/// The problem of an attached disk that another host has, or may have had.
pub(super) fn lost(live: &Attached) -> Option<Problem> {
    let what = format!("disk {} is not written any more", live.name());
    let problem = Problem::new(ProblemCode::Locked, what).because(live.lost()?);
    Some(problem.remedy(format!(
        "stop what uses it and detach it here: tidegate disk detach {} --disconnect",
        live.name()
    )))
}

/// The problem for a refused lease, with a remedy.
fn told(found: &Found, refused: &Refused, takeover: lease::Takeover, me: &Identity) -> Problem {
    let name = &found.name;
    let locked = |by: &Holder| {
        Problem::new(
            ProblemCode::Locked,
            format!("disk {name} is open on host {by}"),
        )
    };
    match refused {
        Refused::Live(by) if by.host == me.id => locked(by)
            .because("another daemon with this host's identity runs: its root may have been copied")
            .remedy(format!(
                "detach it there: tidegate disk detach {name}; and give this daemon an identity of its own: stop it, remove \
                 state/host-id from its root, and start it again"
            )),
        Refused::Live(by) => {
            let problem = locked(by).because("that host runs: it has just renewed its lease");
            match takeover {
                lease::Takeover::Guarded => {
                    problem.remedy(format!("detach it there: tidegate disk detach {name}"))
                }
                lease::Takeover::Fenced => problem.remedy(
                    "that host is not fenced: power it off or disconnect it from the datastore, then try again",
                ),
            }
        }
        Refused::Silent(by) => locked(by)
            .because("that host stopped renewing its lease without a detach, and this datastore could not stop its \
                 writes if it still runs")
            .remedy(format!(
                "make sure that it does not run (power it off, or disconnect it from the datastore), then: tidegate \
                 disk attach {name} --force-takeover"
            )),
        Refused::Unseen(by, file) => locked(by)
            .because("that host uses a lock that is not visible on this host")
            .remedy(format!(
                "detach it there, or attach it on a host that mounts the datastore as {by} does; if {by} will not \
                 return, remove {}",
                file.display()
            )),
        Refused::Trouble(error) => host::problem(error),
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Every change to the table is complete.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_has_one_identity_for_all_hosts_and_versions() {
        // The published value of the empty text, and two values that must differ.
        assert_eq!(named("")[..4], [0x6c, 0x62, 0x27, 0x2e]);
        assert_eq!(named("a"), named("a"));
        assert_ne!(named("a"), named("b"));
    }
}
