//! TimedScan at what lies on datastores, for orders and for those who want to see all: one that hangs keeps nobody waiting for
//! good.
//!
//! A file server that is gone may hold whoever looks at its directories until it comes back. So each look is on a thread of
//! its own, and who asked for it waits so long only.
//!
//! # Always true
//! - Of each [`TimedScan`], at most one look at a datastore is under way: one that hangs costs one thread, however often it is
//!   asked about.
//! - While a look takes too long already, nobody waits for it.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::locked;
use crate::os_error::{self, Outcome};

/// How long a look may take: longer than some thousand descriptors on a file server that works.
const PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub(super) struct TimedScan {
    /// How long each may take.
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

/// Datastores that are looked at, and since when.
#[derive(Default)]
struct UnderWay {
    since: Mutex<BTreeMap<Name, Instant>>,
    ended: Condvar,
}

/// The right to look at a datastore, until dropped.
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
    /// What a look at a datastore shows, or that the datastore does not answer.
    pub(super) fn at<T: Send + 'static>(
        &self,
        datastore: &Name,
        look: impl FnOnce() -> Outcome<T> + Send + 'static,
    ) -> Outcome<T> {
        let turn = self.turn(datastore)?;
        let (tell, told) = channel();
        let act = move || {
            let seen = look();
            // Whoever is told may ask again at once.
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
        // So long that only a thread that is never let run takes longer.
        looks.patience = Duration::from_secs(60);
        assert_eq!(looks.at(&name("other"), || Ok(2)).unwrap(), 2);
        // It is there again, and so is seen again.
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
