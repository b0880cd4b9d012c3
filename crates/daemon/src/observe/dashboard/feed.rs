//! The feed of one page: it samples once a second for all viewers of the same thing and sends them the same bytes.
//!
//! The first viewer starts the task. The task ends by itself within a second after the last viewer has gone. A slow
//! viewer misses seconds; no viewer delays another.
//!
//! # Always true
//! - At most one task samples a thing at a time.
//! - A new viewer never gets a first frame that is older than [`FRESH`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::observe::monitor::Monitor;
use crate::os_error::{self, Outcome};

/// Sampling interval: as fast as a person can follow, and slow enough not to load the I/O threads.
const EVERY: Duration = Duration::from_secs(1);

/// The greatest age of a frame that is shown as current: a sample takes time, and may be late.
const FRESH: Duration = Duration::from_secs(2);

/// A frame for all viewers: a server-sent event. Empty before the first sample.
pub(crate) type Frame = Bytes;

/// A sampler that stores its previous sample.
pub(crate) trait Look: Send + 'static {
    /// Takes a sample, and returns it as the event to send.
    fn look(&mut self, monitor: &Monitor) -> Outcome<Frame>;
}

/// See the module.
#[derive(Default)]
pub(crate) struct Feed {
    /// Set while a task samples.
    latest: Mutex<Option<Latest>>,
}

/// The latest frame's sender, to which viewers subscribe.
struct Latest {
    sender: watch::Sender<Frame>,
    /// The time of the latest frame.
    at: Instant,
}

impl Latest {
    fn of(sender: watch::Sender<Frame>) -> Latest {
        let at = Instant::now();
        Latest { sender, at }
    }

    /// Future frames, and at once the latest one if it is fresh.
    fn watch(&self) -> watch::Receiver<Frame> {
        let mut watcher = self.sender.subscribe();
        if self.at.elapsed() < FRESH {
            watcher.mark_changed();
        }
        watcher
    }
}

impl Feed {
    /// Future frames, and at once the latest one unless it is old.
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

    /// Whether there is a viewer, or was one until just now.
    pub(crate) fn is_watched(&self) -> bool {
        self.latest().is_some()
    }

    /// Sends a frame to all viewers; returns whether there are any. If there are none, the next viewer starts a new
    /// task.
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
        // No panic leaves it half changed.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Samples until no viewer is left or the daemon stops.
async fn keep<L: Look>(feed: Arc<Feed>, monitor: Arc<Monitor>, mut look: L) {
    let mut ticks = tokio::time::interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = monitor.services().stopped() => {
                // Dropping the sender ends the viewers' streams.
                *feed.latest() = None;
                return;
            }
        }
        // Do not sample without a viewer.
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

/// Formats a server-sent event.
pub(crate) fn event(name: &str, data: &impl serde::Serialize) -> Frame {
    let mut text = Vec::with_capacity(256);
    text.extend_from_slice(b"event: ");
    text.extend_from_slice(name.as_bytes());
    text.extend_from_slice(b"\ndata: ");
    // JSON has line breaks only inside strings, where they are escaped.
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
