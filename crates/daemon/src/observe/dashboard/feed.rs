//! Looks once a second for all who watch the same thing, and gives each of them the same bytes.
//!
//! The first who watches starts it, and it ends by itself within a second after the last has gone. Who reads too slowly
//! misses seconds; nobody waits for anybody.
//!
//! # Always true
//! - At most one task looks at a thing, whoever comes and goes.
//! - Nobody is shown at first what was seen more than [`FRESH`] ago.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::observe::monitor::Monitor;
use crate::os_error::{self, Outcome};

/// How often: what eyes can follow, and seldom enough not to be felt by the I/O threads.
const EVERY: Duration = Duration::from_secs(1);

/// How old what is shown as what is now may be: a look takes its time, and may be late.
const FRESH: Duration = Duration::from_secs(2);

/// What all get: a server-sent event. Empty before there was one.
pub(crate) type Frame = Bytes;

/// Looks at something, remembering the look before.
pub(crate) trait Look: Send + 'static {
    /// What is seen now, as the event to send.
    fn look(&mut self, monitor: &Monitor) -> Outcome<Frame>;
}

/// See the module.
#[derive(Default)]
pub(crate) struct Feed {
    /// There is one while a task looks.
    latest: Mutex<Option<Latest>>,
}

/// What was seen last, and by whom it is awaited.
struct Latest {
    sender: watch::Sender<Frame>,
    /// When it was seen.
    at: Instant,
}

impl Latest {
    fn of(sender: watch::Sender<Frame>) -> Latest {
        let at = Instant::now();
        Latest { sender, at }
    }

    /// What is seen from now on, and at once what was seen a moment ago.
    fn watch(&self) -> watch::Receiver<Frame> {
        let mut watcher = self.sender.subscribe();
        if self.at.elapsed() < FRESH {
            watcher.mark_changed();
        }
        watcher
    }
}

impl Feed {
    /// What is seen from now on, and at once what was seen last, unless that is old.
    pub(crate) fn watch<L: Look>(
        self: &Arc<Self>,
        monitor: &Arc<Monitor>,
        new: impl FnOnce() -> L,
    ) -> watch::Receiver<Frame> {
        let mut latest = self.latest();
        if let Some(latest) = latest.as_ref() {
            return latest.watch();
        }
        let (sender, watcher) = watch::channel(Frame::new());
        *latest = Some(Latest::of(sender));
        drop(latest);
        tokio::spawn(keep(Arc::clone(self), Arc::clone(monitor), new()));
        watcher
    }

    /// Whether anybody watches, or did a moment ago.
    pub(crate) fn is_watched(&self) -> bool {
        self.latest().is_some()
    }

    /// Hands this to all who watch; answers whether anybody does. If nobody does, the next one starts anew.
    fn show(&self, frame: Option<Frame>) -> bool {
        let mut all = self.latest();
        let Some(latest) = all.as_mut() else {
            return false;
        };
        if latest.sender.receiver_count() == 0 {
            *all = None;
            return false;
        }
        if let Some(frame) = frame {
            latest.sender.send_replace(frame);
            latest.at = Instant::now();
        }
        true
    }

    fn latest(&self) -> MutexGuard<'_, Option<Latest>> {
        // It is whole between any two lines that change it.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks until nobody watches any more or the daemon stops.
async fn keep<L: Look>(feed: Arc<Feed>, monitor: Arc<Monitor>, mut look: L) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = monitor.services().stopped() => {
                // Without a sender those who watch know that it is over.
                *feed.latest() = None;
                return;
            }
        }
        // Not for nobody.
        if !feed.show(None) {
            return;
        }
        let looking = Arc::clone(&monitor);
        let seen = os_error::blocking(move || {
            let frame = look.look(&looking)?;
            Ok((look, frame))
        });
        match seen.await {
            Ok((same, frame)) => {
                look = same;
                feed.show(Some(frame));
            }
            Err(problem) => {
                tracing::debug!(%problem, "the dashboard gets no more data");
                *feed.latest() = None;
                return;
            }
        }
    }
}

/// A server-sent event.
pub(crate) fn event(name: &str, data: &impl serde::Serialize) -> Frame {
    let mut text = Vec::with_capacity(256);
    text.extend_from_slice(b"event: ");
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"\ndata: ");
    // JSON has no line break outside strings, and escapes those inside.
    serde_json::to_writer(&mut text, data).expect("what is shown is plain data");
    text.extend_from_slice(b"\n\n");
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_of_data_between_its_name_and_an_empty_line() {
        let event = event("beat", &serde_json::json!({"text": "two\nlines"}));
        assert_eq!(
            event,
            "event: beat\ndata: {\"text\":\"two\\nlines\"}\n\n".as_bytes()
        );
    }

    #[test]
    fn what_nobody_watches_is_shown_to_nobody_and_begins_anew() {
        let feed = Feed::default();
        assert!(!feed.show(Some("nobody".into())));
        let (sender, watcher) = watch::channel(Frame::new());
        *feed.latest() = Some(Latest::of(sender));
        assert!(feed.show(Some("one".into())) && feed.is_watched());
        assert_eq!(*watcher.borrow(), "one");
        drop(watcher);
        assert!(!feed.show(Some("late".into())) && !feed.is_watched());
    }

    #[test]
    fn what_was_seen_long_ago_is_not_shown_as_what_is_now() {
        let (sender, _watcher) = watch::channel(Frame::from("old"));
        let mut latest = Latest::of(sender);
        assert!(latest.watch().has_changed().unwrap());
        latest.at = Instant::now().checked_sub(FRESH).unwrap();
        let late = latest.watch();
        assert!(!late.has_changed().unwrap());
        latest.sender.send_replace("new".into());
        assert!(late.has_changed().unwrap());
    }
}
