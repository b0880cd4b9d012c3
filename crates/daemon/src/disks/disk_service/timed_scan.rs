//! Scans of datastores with a time limit, so that a datastore that hangs blocks no caller forever.
//!
//! If a file server is gone, a program that reads its directories may block until the server is back. So each scan runs
//! on a separate thread, and its caller waits only for a limited time.
//!
//! # Always true
//! - Each [`TimedScan`] runs at most one scan of a datastore at a time: a datastore that hangs costs one thread,
//!   however many callers there are.
//! - While a scan has already exceeded its time, new callers do not wait for it.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::locked;
use crate::os_error::{self, Outcome};

/// How long a scan may take: longer than reading thousands of descriptors on a working file system.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct TimedScan {
    /// How long each scan may take.
    pub(super) patience: Duration,
    under_way: Arc<UnderWay>,
}

impl Default for TimedScan {
    fn default() -> TimedScan {
        TimedScan {
            patience: PATIENCE,
            under_way: Arc::default(),
        }
    }
}

/// Datastores that are being scanned, with the time when that began.
#[derive(Default)]
struct UnderWay {
    since: Mutex<BTreeMap<Name, Instant>>,
    ended: Condvar,
}

/// The right to scan a datastore, until dropped.
struct Look {
    under_way: Arc<UnderWay>,
    datastore: Name,
}

impl Drop for Look {
    fn drop(&mut self) {
        locked(&self.under_way.since).remove(&self.datastore);
        self.under_way.ended.notify_all();
    }
}

impl TimedScan {
    /// The result of a scan of a datastore, or an error if the datastore does not respond.
    pub(super) fn at<T: Send + 'static>(
        &self,
        datastore: &Name,
        look: impl FnOnce() -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        let turn = self.turn(datastore)?;
        let (tell, told) = channel();
        let act = move || {
            let seen = look();
            // The receiver may scan again at once.
            drop(turn);
            let _ = tell.send(seen);
        };
        std::thread::Builder::new()
            .name(format!("look-{datastore}"))
            .spawn(act)
            .map_err(|e| os_error::io(format!("cannot scan datastore {datastore}"), &e))?;
        match told.recv_timeout(self.patience) {
            Ok(seen) => seen,
            Err(RecvTimeoutError::Timeout) => Err(silent(datastore)),
            Err(gone @ RecvTimeoutError::Disconnected) => Err(os_error::failed(&gone)),
        }
    }

    fn turn(&self, datastore: &Name) -> Outcome<Look> {
        let mut since = locked(&self.under_way.since);
        while let Some(begun) = since.get(datastore) {
            let left = self.patience.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(silent(datastore));
            }
            let waited = self.under_way.ended.wait_timeout(since, left);
            (since, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        since.insert(datastore.clone(), Instant::now());
        Ok(Look {
            under_way: Arc::clone(&self.under_way),
            datastore: datastore.clone(),
        })
    }
}

fn silent(datastore: &Name) -> Problem {
    let what = format!("datastore {datastore} does not respond");
    Problem::new(ProblemCode::Datastore, what)
        .because("a scan of its directory has not ended")
        .remedy("check its file server; its disks may hang until it responds")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    #[test]
    fn a_datastore_that_hangs_is_looked_at_once_and_no_other_waits_for_it() {
        let mut looks = TimedScan::default();
        let (go_on, hangs) = channel::<()>();
        let (begun, begins) = channel();
        looks.patience = Duration::ZERO;
        let hung = looks.at(&name("hung"), move || {
            begun.send(()).unwrap();
            Ok(hangs.recv().is_ok())
        });
        let told = hung.unwrap_err();
        assert_eq!(told.code, ProblemCode::Datastore, "{told}");
        begins.recv().unwrap();
        let (begun, again) = channel();
        let refused = looks.at(&name("hung"), move || {
            begun.send(()).unwrap();
            Ok(())
        });
        let told = refused.unwrap_err();
        assert!(told.to_string().contains("does not respond"), "{told}");
        assert!(again.recv().is_err(), "one is under way");
        // So long that it is exceeded only if the thread never gets CPU time.
        looks.patience = Duration::from_secs(60);
        assert_eq!(looks.at(&name("other"), || Ok(2)).unwrap(), 2);
        // It responds again, and so is scanned again.
        go_on.send(()).unwrap();
        assert_eq!(looks.at(&name("hung"), || Ok(3)).unwrap(), 3);
    }

    #[test]
    fn a_look_that_fails_is_over() {
        let looks = TimedScan::default();
        let broken: Outcome<()> = looks.at(&name("a"), || panic!("as a test wants"));
        assert_eq!(broken.unwrap_err().code, ProblemCode::Internal);
        assert_eq!(looks.at(&name("a"), || Ok(1)).unwrap(), 1);
    }
}
