//! The I/O controls of datastores in use. A control starts with the datastore's first attached disk and stops with its
//! last.
//!
//! The disk_service takes a datastore into use before it attaches a disk there. The disk owns the [`InUse`] until it
//! is detached. Readers (REST, metrics, events) call [`Controls::running`]. The monitor receives what governors
//! notice: [`Controls::rung`] signals it, [`Controls::told`] returns the events.
//!
//! # Always true
//! - A datastore has at most one control. The next one starts after the previous one has announced its departure to
//!   the other hosts.
//! - A datastore without an attached disk has no thread and takes part in nothing.
//! - Events that a control reported before it ended are still returned after it has ended.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::task::{Wake, Waker};
use std::time::Duration;

use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::iocontrol::IoControl;
use tidegate_api::name::Name;
use tidegate_engine::control::{self, Control, Events};
use tokio::sync::Notify;

use crate::config::plan::policy;
use crate::host::Host;
use crate::os_error::{self, Outcome};

pub(crate) mod report;

/// Time limit for writing to a datastore that this host leaves it. The other hosts notice by themselves soon after.
const FAREWELL: Duration = Duration::from_secs(2);

/// The identity of this host among those that share datastores.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Drawn once, then stored.
    pub(crate) id: [u8; 16],
    /// The name that people use.
    pub(crate) name: String,
    /// Identifies the file that this daemon locks until it ends.
    pub(crate) lock: [u8; 16],
}

/// See the module.
pub(crate) struct Controls {
    host: Identity,
    /// An entry is never removed, even when its datastore is no longer in use: there are few.
    places: Mutex<BTreeMap<Name, Arc<Place>>>,
    ear: Arc<Ear>,
}

#[derive(Default)]
struct Place(Mutex<Option<Running>>);

/// Receives wake-ups and last events from governors.
#[derive(Default)]
struct Ear {
    rung: Notify,
    /// Events of controls that have ended.
    last_words: Mutex<Vec<(Name, Events)>>,
}

impl Wake for Ear {
    fn wake(self: Arc<Ear>) {
        self.rung.notify_one();
    }
}

/// The control of a datastore that is in use.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    /// The engine's handle.
    pub(crate) control: Control,
    /// Directory where hosts find each other, if any.
    pub(crate) directory: Option<PathBuf>,
    users: usize,
}

/// Marks a datastore as in use until dropped. Dropping the last one may take as long as `FAREWELL`.
pub(crate) struct InUse {
    name: Name,
    place: Arc<Place>,
    control: Control,
    ear: Arc<Ear>,
}

impl Controls {
    /// No datastore is in use yet. `host`: the identity of this host.
    pub(crate) fn new(host: Identity) -> Controls {
        Controls {
            host,
            places: Mutex::default(),
            ear: Arc::default(),
        }
    }

    /// The identity of this host.
    pub(crate) fn host(&self) -> &Identity {
        &self.host
    }

    /// Takes a datastore into use.
    pub(crate) fn enter(
        &self,
        host: &Host,
        name: &Name,
        settings: &DatastoreSettings,
        io_control: &IoControl,
    ) -> Outcome<InUse> {
        let place = {
            let mut places = locked(&self.places);
            Arc::clone(places.entry(name.clone()).or_default())
        };
        let mut running = locked(&place.0);
        let begins = running.is_none();
        if begins {
            let directory = policy::directory(settings, io_control);
            let governor = policy::governor(settings, io_control, self.host.id, incarnation()?);
            let control = host.control(control::Settings {
                name: name.to_string(),
                directory: directory.clone(),
                host_name: self.host.name.clone(),
                governor,
            })?;
            control.wake_on_events(Waker::from(Arc::clone(&self.ear)));
            *running = Some(Running {
                control,
                directory,
                users: 0,
            });
        }
        let running_now = running.as_mut().expect("it was inserted just before");
        running_now.users += 1;
        let control = running_now.control.clone();
        drop(running);
        if begins {
            // A reader that collected events meanwhile skipped this datastore, so wake it again.
            self.ear.rung.notify_one();
        }
        Ok(InUse {
            name: name.clone(),
            place,
            control,
            ear: Arc::clone(&self.ear),
        })
    }

    /// Waits until a governor has noticed something, or an unused datastore is in use again.
    pub(crate) async fn rung(&self) {
        self.ear.rung.notified().await;
    }

    /// Takes out the events of all governors, including those that have ended.
    pub(crate) fn told(&self) -> Vec<(Name, Events)> {
        let mut told = std::mem::take(&mut *locked(&self.ear.last_words));
        let running = self.all_running().into_iter();
        told.extend(running.map(|(name, running)| (name, running.control.events())));
        told
    }

    /// The control of a datastore, if it is in use.
    pub(crate) fn running(&self, name: &Name) -> Option<Running> {
        let place = locked(&self.places).get(name).cloned()?;
        place.look()
    }

    /// All controls in use, by datastore name.
    pub(crate) fn all_running(&self) -> Vec<(Name, Running)> {
        let places = locked(&self.places).clone();
        let running = places
            .into_iter()
            .filter_map(|(name, place)| Some((name, place.look()?)));
        running.collect()
    }
}

impl Place {
    /// The running control. Does not wait: a datastore that is being taken into use or released returns `None`.
    fn look(&self) -> Option<Running> {
        match self.0.try_lock() {
            Ok(running) => running.clone(),
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().clone(),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Running {
    /// Directory where hosts find each other, if any.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }
}

impl InUse {
    /// The datastore's control.
    pub(crate) fn control(&self) -> &Control {
        &self.control
    }

    /// A disk of the datastore was attached. The other hosts must learn of it even before it has I/O.
    pub(crate) fn has_come(&self) {
        self.control.recount();
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut place = locked(&self.place.0);
        let Some(running) = place.as_mut() else {
            return;
        };
        running.users -= 1;
        if running.users > 0 {
            return running.control.recount();
        }
        let Some(running) = place.take() else { return };
        if let Err(error) = running.control.leave(FAREWELL) {
            tracing::warn!(datastore = %self.name, %error, "its departure could not be written to the slot file; \
                 the other hosts wait for its lease");
        }
        let last_words = running.control.events();
        if !last_words.told.is_empty() || last_words.lost > 0 {
            locked(&self.ear.last_words).push((self.name.clone(), last_words));
            self.ear.rung.notify_one();
        }
    }
}

/// A random number that identifies one start of a control.
fn incarnation() -> Outcome<u64> {
    let mut bytes = [0; 8];
    // As for UUIDs: reads this short are never partial.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| os_error::io("cannot draw a random number", &e.into()))?;
    Ok(u64::from_le_bytes(bytes))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No panic leaves one of these tables half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
