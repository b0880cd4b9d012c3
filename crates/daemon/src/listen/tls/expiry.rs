//! The expiry of the listeners' certificates, for status, metrics and events.
//!
//! An expired certificate is still served. A daemon that refused to start would make disks unavailable to guests, and
//! some clients do not check expiry. Clients that do check refuse it by themselves.
//!
//! # Always true
//! - The expiry of a certificate is an event once when it is near, and once when it is reached.
//!
//! # Units
//! Times are seconds since 1970.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tidegate_api::events::{CertificateState, Happening};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::status::TlsCertificate;

use super::files::Facts;
use crate::text::float;

const DAY: i64 = 86_400;

/// How long before its expiry a certificate is reported: a manual renewal involves several people.
const SOON: i64 = 14 * DAY;

/// The period in which a chain is valid, which ends when its first certificate expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Validity {
    file: PathBuf,
    subject: String,
    not_before: i64,
    not_after: i64,
}

/// The certificates that listeners present.
#[derive(Default)]
pub(crate) struct Certificates {
    shown: Vec<Shown>,
}

struct Shown {
    listener: String,
    validity: Validity,
    /// The state that was reported last.
    told: Mutex<Option<CertificateState>>,
}

impl Validity {
    /// The validity of a chain that was read from this file. The chain is not empty.
    pub(super) fn of(file: &Path, chain: &[Facts<'_>]) -> Validity {
        let ends = chain
            .iter()
            .min_by_key(|facts| facts.validity().not_after.timestamp());
        let begins = chain
            .iter()
            .map(|facts| facts.validity().not_before.timestamp())
            .max();
        Validity {
            file: file.to_owned(),
            subject: ends.map_or_else(String::new, |facts| facts.subject().to_string()),
            not_before: begins.unwrap_or(i64::MIN),
            not_after: ends.map_or(i64::MAX, |facts| facts.validity().not_after.timestamp()),
        }
    }

    /// The state to report at this time, if any.
    fn state(&self, now: i64) -> Option<CertificateState> {
        let lasts = self.not_after.saturating_sub(self.not_before);
        // Some certificates last only days and are always near their end.
        let soon = SOON.min(lasts / 3);
        if now >= self.not_after {
            Some(CertificateState::Expired)
        } else if now < self.not_before {
            Some(CertificateState::NotYetValid)
        } else if self.not_after - now <= soon {
            Some(CertificateState::Expiring)
        } else {
            None
        }
    }

    /// Whole days until it expires, rounded down: negative once it has expired.
    fn days_left(&self, now: i64) -> i64 {
        self.not_after.saturating_sub(now).div_euclid(DAY)
    }
}

impl Certificates {
    /// Whether no listener presents a certificate.
    pub(crate) fn is_empty(&self) -> bool {
        self.shown.is_empty()
    }

    /// Adds the certificate that a listener presents.
    pub(crate) fn add(&mut self, listener: String, validity: Validity) {
        self.shown.push(Shown {
            listener,
            validity,
            told: Mutex::default(),
        });
    }

    /// The list that `tidegate status` shows.
    pub(crate) fn listed(&self, now: i64) -> Vec<TlsCertificate> {
        let one = |shown: &Shown| TlsCertificate {
            listener: shown.listener.clone(),
            file: shown.validity.file.clone(),
            subject: shown.validity.subject.clone(),
            expires_at_ms: shown.validity.not_after.saturating_mul(1000),
            days_left: shown.validity.days_left(now),
        };
        self.shown.iter().map(one).collect()
    }

    /// The certificates with a problem.
    pub(crate) fn problems(&self, now: i64) -> Vec<Problem> {
        let all = self.shown.iter();
        all.filter_map(|shown| {
            let validity = &shown.validity;
            let state = validity.state(now)?;
            let what = format!(
                "the TLS certificate {} at {} {}",
                validity.file.display(),
                shown.listener,
                words(state, validity.days_left(now))
            );
            let problem = Problem::new(ProblemCode::Invalid, what);
            Some(match state {
                CertificateState::NotYetValid => problem.remedy(
                    "check this host's clock, or put an older certificate there and restart the \
                         daemon",
                ),
                _ => problem.remedy(format!(
                    "put a new certificate for {} there, and restart the daemon",
                    validity.subject
                )),
            })
        })
        .collect()
    }

    /// Listener, file and days left of each, for metrics.
    pub(crate) fn days_left(&self, now: i64) -> Vec<(String, String, f64)> {
        let one = |shown: &Shown| {
            let left = shown.validity.not_after.saturating_sub(now);
            let days = float(left.unsigned_abs()) / float(DAY.unsigned_abs());
            let file = shown.validity.file.display().to_string();
            let days = if left < 0 { -days } else { days };
            (shown.listener.clone(), file, days)
        };
        self.shown.iter().map(one).collect()
    }

    /// The changes since the last call.
    pub(crate) fn news(&self, now: i64) -> Vec<Happening> {
        let all = self.shown.iter();
        all.filter_map(|shown| {
            let state = shown.validity.state(now);
            let mut told = shown.told.lock().unwrap_or_else(PoisonError::into_inner);
            let before = std::mem::replace(&mut *told, state);
            let state = state.filter(|state| before != Some(*state))?;
            Some(Happening::Certificate {
                listener: shown.listener.clone(),
                file: shown.validity.file.display().to_string(),
                state,
                days_left: shown.validity.days_left(now),
            })
        })
        .collect()
    }
}

/// Describes the state of a certificate, as the end of a sentence.
pub(crate) fn words(state: CertificateState, days_left: i64) -> String {
    match (state, days_left) {
        (CertificateState::NotYetValid, _) => "is not valid yet".to_owned(),
        (CertificateState::Expired, -1..) => "has expired".to_owned(),
        (CertificateState::Expired, -2) => "expired a day ago".to_owned(),
        (CertificateState::Expired, left) => format!("expired {} days ago", -left - 1),
        (CertificateState::Expiring, 0) => "expires in less than a day".to_owned(),
        (CertificateState::Expiring, 1) => "expires in 1 day".to_owned(),
        (CertificateState::Expiring, left) => format!("expires in {left} days"),
    }
}

/// The current time by the clock that certificate validity uses.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificates() -> Certificates {
        let mut all = Certificates::default();
        let validity = Validity {
            file: "/tls/cert.pem".into(),
            subject: "CN=host".to_owned(),
            not_before: 10 * DAY,
            not_after: 100 * DAY,
        };
        all.add("nbd 0.0.0.0:10809".to_owned(), validity);
        all
    }

    #[test]
    fn the_end_of_a_certificate_is_an_event_once_when_it_is_near_and_once_when_it_has_come() {
        let all = certificates();
        let states = |day: i64| -> Vec<_> {
            let news = all.news(day * DAY).into_iter();
            news.map(|happening| match happening {
                Happening::Certificate {
                    state, days_left, ..
                } => (state, days_left),
                other => panic!("{other:?}"),
            })
            .collect()
        };
        assert_eq!(states(9), [(CertificateState::NotYetValid, 91)]);
        assert_eq!(states(10), []);
        assert_eq!(states(85), []);
        assert_eq!(states(86), [(CertificateState::Expiring, 14)]);
        assert_eq!(states(99), []);
        assert_eq!(states(100), [(CertificateState::Expired, 0)]);
        assert_eq!(states(200), []);
    }

    #[test]
    fn status_and_metrics_tell_the_days_that_are_left_and_what_is_wrong() {
        let all = certificates();
        assert_eq!(all.problems(50 * DAY), []);
        assert_eq!(all.listed(50 * DAY)[0].days_left, 50);
        let told = |day: i64| all.problems(day * DAY)[0].to_string();
        assert!(told(90).contains("expires in 10 days"), "{}", told(90));
        assert!(told(90).contains("/tls/cert.pem at nbd 0.0.0.0:10809"));
        assert!(told(103).contains("expired 2 days ago"), "{}", told(103));
        assert!(told(103).contains("for CN=host"), "{}", told(103));
        assert!(told(3).contains("not valid yet"), "{}", told(3));
        let left = all.days_left(101 * DAY + DAY / 2);
        assert_eq!(left[0].2, -1.5);
    }

    #[test]
    fn a_certificate_that_lasts_for_days_is_not_always_near_its_end() {
        let mut short = certificates();
        short.shown[0].validity.not_after = 16 * DAY;
        assert_eq!(short.problems(13 * DAY), []);
        assert_eq!(short.problems(14 * DAY + 1).len(), 1);
    }
}
