//! The log of refused clients, which logs each reason once.
//!
//! A client that reaches a port can be refused any number of times, from any number of addresses. The limits below
//! prevent it from flooding the log.
//!
//! # Always true
//! - The same address and reason are logged once within [`SAME`].
//! - At most [`MOST`] lines are written within [`WINDOW`]; the next line counts those that were left out.
//! - At most [`KNOWN`] pairs of address and reason are remembered.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A client that retries every few seconds causes one line an hour.
const SAME: Duration = Duration::from_secs(3600);
/// As many lines in a minute as a person can read.
const MOST: usize = 8;
const WINDOW: Duration = Duration::from_secs(60);
/// As many as can be logged in half an hour.
const KNOWN: usize = 256;

/// See the module.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<Told>);

#[derive(Default)]
struct Told {
    /// Peer, reason and time; the latest is last.
    lines: VecDeque<(String, String, Instant)>,
    left_out: u64,
}

impl Refusals {
    /// Whether this refusal is logged: `Some` with the number of refusals that were left out since the last line.
    ///
    /// `whom` is the peer without the parts that differ between its connections.
    pub(crate) fn must_tell(&self, whom: &str, reason: &str, now: Instant) -> Option<u64> {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let within = |at: &Instant, span| now.saturating_duration_since(*at) < span;
        let same = told
            .lines
            .iter()
            .any(|(known, why, at)| known == whom && why == reason && within(at, SAME));
        let lately = told.lines.iter().rev();
        let lately = lately.take_while(|(_, _, at)| within(at, WINDOW)).count();
        if same || lately >= MOST {
            told.left_out += 1;
            return None;
        }
        if told.lines.len() == KNOWN {
            told.lines.pop_front();
        }
        told.lines
            .push_back((whom.to_owned(), reason.to_owned(), now));
        Some(std::mem::take(&mut told.left_out))
    }
}

#[cfg(test)]
impl Refusals {
    /// Returns the number of recent lines, and the number of refusals that were left out since the last line.
    pub(crate) fn counted(&self) -> (usize, u64) {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (told.lines.len(), told.left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_comes_again_is_told_of_once_an_hour_for_each_reason() {
        let refusals = Refusals::default();
        let begun = Instant::now();
        let told = |after: u64, reason| {
            refusals.must_tell("192.0.2.1", reason, begun + Duration::from_secs(after))
        };
        assert_eq!(told(0, "no certificate"), Some(0));
        for again in 1..100 {
            assert_eq!(told(again, "no certificate"), None);
        }
        assert_eq!(told(100, "expired"), Some(99));
        assert_eq!(told(3599, "no certificate"), None);
        assert_eq!(told(3600, "no certificate"), Some(1));
    }

    #[test]
    fn many_clients_write_no_more_than_some_lines_a_minute() {
        let refusals = Refusals::default();
        let begun = Instant::now();
        let mut lines = 0;
        let mut left_out = 0;
        for nth in 0..60_000_u32 {
            let now = begun + Duration::from_millis(nth.into());
            if let Some(others) = refusals.must_tell(&nth.to_string(), "a reason", now) {
                lines += 1;
                left_out += others;
            }
        }
        assert_eq!((lines, left_out), (MOST, 0));
        let after = begun + 2 * WINDOW;
        assert_eq!(
            refusals.must_tell("x", "a reason", after),
            Some(60_000 - u64::try_from(MOST).unwrap())
        );
    }
}
