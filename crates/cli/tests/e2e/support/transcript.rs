//! All that a program, a guest's console or a monitor has said so far, and waiting for what it is to say.
//!
//! # Always true
//! - Every wait has a deadline, and one that passes fails the test with the last of what was said.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How much of what was said is printed of a test that fails.
const TAIL: usize = 4000;

/// How much of it is in the words of a wait that fails.
const BRIEF_TAIL: usize = 1000;

/// What was said, growing while somebody says more.
#[derive(Clone)]
pub(crate) struct Transcript {
    name: String,
    shared: Arc<(Mutex<Said>, Condvar)>,
}

#[derive(Default)]
struct Said {
    text: String,
    speakers: usize,
}

impl Transcript {
    /// Of nothing yet; `name` says whose it is.
    pub(crate) fn new(name: &str) -> Transcript {
        Transcript {
            name: name.to_owned(),
            shared: Arc::default(),
        }
    }

    /// Listens to one more source, in a thread of its own, until it ends.
    pub(crate) fn listen(&self, mut source: impl Read + Send + 'static) {
        let listener = self.clone();
        self.lock().speakers += 1;
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(n @ 1..) = source.read(&mut bytes) {
                listener
                    .lock()
                    .text
                    .push_str(&String::from_utf8_lossy(&bytes[..n]));
                listener.shared.1.notify_all();
            }
            listener.lock().speakers -= 1;
            listener.shared.1.notify_all();
        });
    }

    /// How much was said; a later wait can begin there.
    pub(crate) fn mark(&self) -> usize {
        self.lock().text.len()
    }

    /// Everything that was said.
    pub(crate) fn text(&self) -> String {
        self.lock().text.clone()
    }

    /// Waits for something said after `mark` that `find` likes; fails the test when it does not come.
    pub(crate) fn wait<T>(
        &self,
        what: &str,
        mark: usize,
        patience: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> T {
        self.try_wait(what, mark, patience, find)
            .unwrap_or_else(|complaint| panic!("{complaint}"))
    }

    /// As [`Transcript::wait`], but says what did not come instead.
    pub(crate) fn try_wait<T>(
        &self,
        what: &str,
        mark: usize,
        patience: Duration,
        find: impl Fn(&str) -> Option<T>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + patience;
        let mut said = self.lock();
        loop {
            if let Some(found) = find(&said.text[mark..]) {
                return Ok(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let late = left.is_zero();
            if said.speakers == 0 || late {
                let why = if late { "in time" } else { "before it ended" };
                return Err(format!(
                    "{}: no {what} {why} ({patience:?}); last was:\n{}",
                    self.name,
                    tail(&said.text, BRIEF_TAIL)
                ));
            }
            said = self.wait_for_more(said, left);
        }
    }

    /// Waits until nobody speaks any more.
    pub(crate) fn wait_until_over(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut said = self.lock();
        while said.speakers > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(said);
                panic!("{} has not ended in {patience:?}", self.name);
            }
            said = self.wait_for_more(said, left);
        }
    }

    /// Waits until more was said, or it is over, or `at_most` has passed.
    pub(crate) fn pause(&self, at_most: Duration) {
        let said = self.lock();
        drop(self.wait_for_more(said, at_most));
    }

    fn wait_for_more<'a>(
        &'a self,
        said: MutexGuard<'a, Said>,
        at_most: Duration,
    ) -> MutexGuard<'a, Said> {
        self.shared
            .1
            .wait_timeout(said, at_most)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    fn lock(&self) -> MutexGuard<'_, Said> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prints the end of it, for a test that is failing.
    pub(crate) fn print_tail(&self) {
        let text = self.text();
        eprintln!("--- {} said last:\n{}\n---", self.name, tail(&text, TAIL));
    }
}

/// The end of it, of about so many bytes.
pub(super) fn tail(text: &str, bytes: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}
