//! Work on a thread of its own while the caller shows progress and notices interruptions.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// How often the caller's function is called.
const LOOK: Duration = Duration::from_millis(100);

/// Starts `body` on a thread. It continues if its result is no longer wanted.
///
/// # Errors
/// No thread can be started.
pub fn start<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<Receiver<T>> {
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new().name(name.into());
    let body = move || {
        // After an interruption the result is not wanted.
        let _unwanted = sender.send(body());
    };
    thread.spawn(body).context("cannot start a thread")?;
    Ok(receiver)
}

/// Waits for a result and calls `heed` meanwhile.
///
/// # Errors
/// `heed` fails, or the thread panicked.
pub fn wait<T>(result: &Receiver<T>, heed: &mut dyn FnMut() -> Result<()>) -> Result<T> {
    loop {
        match result.recv_timeout(LOOK) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => heed()?,
            Err(RecvTimeoutError::Disconnected) => bail!("a thread panicked"),
        }
    }
}
