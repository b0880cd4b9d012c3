//! Claims: the disks that a command works on or detaches.
//!
//! A command takes a [`Claim`] on its disk's name. A detach passes a clone of its claim to the thread that waits for
//! the engine. So the name stays taken when the command itself gives up.
//!
//! # Always true
//! - One command at a time has a claim on a name, until the last clone of the claim is dropped.
//! - A name is claimed for as long as the engine has I/O of that disk in flight. If the disk were attached a second
//!   time meanwhile, old writes could overwrite new ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use crate::os_error::Outcome;

/// How long a command waits for a brief claim. Origin: far longer than an order to the engine takes.
const BRIEFLY: Duration = Duration::from_secs(5);

/// See the module.
#[derive(Default)]
pub(super) struct Claims {
    table: Mutex<BTreeMap<Name, Claimed>>,
    /// Notified when a claim ends.
    released: Condvar,
}

/// State of a claimed disk.
#[derive(Default)]
struct Claimed {
    /// The datastore that must not be removed meanwhile, if any.
    datastore: Option<Name>,
    detach: Detach,
    /// No command has it, and it ends soon.
    is_brief: bool,
}

/// Progress of a claimed disk's detach.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Detach {
    /// It is not being detached.
    #[default]
    None,
    /// Its command waits for the engine.
    UnderWay,
    /// Its command has given up waiting.
    Overdue,
}

/// The right to work on a disk, until the last clone is dropped.
#[derive(Clone)]
pub(crate) struct Claim(Arc<Held>);

struct Held {
    claims: Arc<Claims>,
    name: Name,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.claims.table().remove(&self.name);
        self.claims.released.notify_all();
    }
}

impl Claim {
    /// The disk.
    pub(super) fn name(&self) -> &Name {
        &self.0.name
    }

    /// Protects this datastore from removal until the command is done. It may be gone already: check that afterwards.
    pub(super) fn keep(&self, datastore: &Name) {
        self.change(|claimed| claimed.datastore = Some(datastore.clone()));
    }

    /// The disk is being detached: the claim lasts until the engine has closed it.
    pub(super) fn detach_begins(&self) {
        self.change(|claimed| claimed.detach = Detach::UnderWay);
    }

    /// The command that detaches it no longer waits.
    pub(super) fn detach_is_overdue(&self) {
        self.change(|claimed| claimed.detach = Detach::Overdue);
    }

    /// The disk is detached, and the command goes on.
    pub(super) fn detach_has_ended(&self) {
        self.change(|claimed| claimed.detach = Detach::None);
    }

    fn change(&self, change: impl FnOnce(&mut Claimed)) {
        if let Some(claimed) = self.0.claims.table().get_mut(&self.0.name) {
            change(claimed);
        }
    }
}

impl Claims {
    /// Takes the right to work on a disk. `what` describes the failed action if the disk is claimed already. Waits for a
    /// brief claim to end.
    pub(super) fn claim(
        self: &Arc<Claims>,
        name: &Name,
        what: impl Into<String>,
    ) -> Outcome<Claim> {
        let until = Instant::now() + BRIEFLY;
        let mut table = self.table();
        while table.get(name).is_some_and(|claimed| claimed.is_brief) && Instant::now() < until {
            table = self.wait(table, until.saturating_duration_since(Instant::now()));
        }
        if let Some(claimed) = table.get(name) {
            let refused = Problem::new(ProblemCode::Busy, what);
            return Err(match claimed.detach {
                Detach::None => refused
                    .because(format!("another request for disk {name} is in progress"))
                    .remedy("try again when it has ended (see `tidegate disk list` and `tidegate job list`)"),
                Detach::UnderWay | Detach::Overdue => refused
                    .because(still_detaching(name))
                    .because("its I/O in flight has not ended")
                    .remedy(format!("wait for it: tidegate disk detach {name}")),
            });
        }
        table.insert(name.clone(), Claimed::default());
        drop(table);
        Ok(self.held(name))
    }

    /// Takes the right to work on a disk for a moment, beside the commands. None: the disk is claimed already. The holder
    /// waits for no other claim.
    pub(super) fn claim_briefly(self: &Arc<Claims>, name: &Name) -> Option<Claim> {
        let mut table = self.table();
        if table.contains_key(name) {
            return None;
        }
        let claimed = Claimed {
            is_brief: true,
            ..Claimed::default()
        };
        table.insert(name.clone(), claimed);
        drop(table);
        Some(self.held(name))
    }

    fn held(self: &Arc<Claims>, name: &Name) -> Claim {
        Claim(Arc::new(Held {
            claims: Arc::clone(self),
            name: name.clone(),
        }))
    }

    /// Every claimed disk, with the datastore that must not be removed.
    pub(super) fn all(&self) -> Guarded<'_> {
        Guarded(self.table())
    }

    /// Whether a disk is being detached.
    pub(super) fn is_detaching(&self, name: &Name) -> bool {
        self.detach_of(name) != Detach::None
    }

    /// The problem of a disk whose detach takes too long.
    pub(super) fn overdue(&self, name: &Name) -> Option<Problem> {
        let table = self.table();
        let claimed = table.get(name)?;
        (claimed.detach == Detach::Overdue).then(|| overdue(name, claimed.datastore.as_ref()))
    }

    /// The problem of a disk that is being detached and not closed yet.
    pub(super) fn under_way(&self, name: &Name) -> Option<Problem> {
        self.overdue(name).or_else(|| {
            self.is_detaching(name).then(|| {
                Problem::new(ProblemCode::Busy, still_detaching(name))
                    .because("its I/O in flight has not ended")
                    .remedy(format!("wait for it: tidegate disk detach {name}"))
            })
        })
    }

    /// The problems of all disks whose detach takes too long.
    pub(super) fn all_overdue(&self) -> Vec<Problem> {
        let table = self.table();
        let late = table.iter().filter(|(_, c)| c.detach == Detach::Overdue);
        late.map(|(name, c)| overdue(name, c.datastore.as_ref()))
            .collect()
    }

    /// Waits until the detach of a disk ends. Returns its datastore, if a detach was in progress.
    ///
    /// # Errors
    /// When it has not ended within `patience`.
    pub(super) fn wait_for_detach(&self, name: &Name, patience: Duration) -> Outcome<Option<Name>> {
        let until = Instant::now() + patience;
        let mut was_on = None;
        let mut table = self.table();
        loop {
            let claimed = table.get(name).filter(|c| c.detach != Detach::None);
            let Some(claimed) = claimed else {
                return Ok(was_on);
            };
            was_on.clone_from(&claimed.datastore);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(overdue(name, was_on.as_ref()));
            }
            table = self.wait(table, left);
        }
    }

    /// Waits until all detaches end, at most until `until`. Returns how many have not ended.
    pub(super) fn wait_for_all_detaches(&self, until: Instant) -> usize {
        let mut table = self.table();
        loop {
            let detaching = table.values().filter(|c| c.detach != Detach::None);
            let count = detaching.count();
            let left = until.saturating_duration_since(Instant::now());
            if count == 0 || left.is_zero() {
                return count;
            }
            table = self.wait(table, left);
        }
    }

    fn detach_of(&self, name: &Name) -> Detach {
        self.table().get(name).map_or(Detach::None, |c| c.detach)
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<Name, Claimed>> {
        // Every change to the table is complete, so a panic leaves no partial state.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        table: MutexGuard<'a, BTreeMap<Name, Claimed>>,
        at_most: Duration,
    ) -> MutexGuard<'a, BTreeMap<Name, Claimed>> {
        let waited = self.released.wait_timeout(table, at_most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The claimed disks. No command begins or ends while this is locked.
pub(super) struct Guarded<'a>(MutexGuard<'a, BTreeMap<Name, Claimed>>);

impl Guarded<'_> {
    /// Each disk with the datastore that must not be removed.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Name, Option<&Name>)> {
        let claimed = self.0.iter();
        claimed.map(|(disk, claimed)| (disk, claimed.datastore.as_ref()))
    }
}

fn still_detaching(name: &Name) -> String {
    format!("disk {name} is still being detached")
}

/// The problem of a disk whose detach waits too long for I/O in flight.
pub(super) fn overdue(name: &Name, datastore: Option<&Name>) -> Problem {
    let on = match datastore {
        Some(datastore) => format!("datastore {datastore}"),
        None => "its datastore".to_owned(),
    };
    Problem::new(ProblemCode::Datastore, still_detaching(name))
        .because(format!("its I/O in flight has not ended: {on} does not respond"))
        .remedy(format!(
            "check {on}: the detach ends when it responds, and the disk cannot be attached before that; to wait for \
             it: tidegate disk detach {name}"
        ))
}
