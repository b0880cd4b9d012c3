//! Ctrl-C and other signals: the first one ends work in good order, the second one at once.
//!
//! Servers, clients and scratch files are removed by the values that created them, so a program must not simply exit.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit status of who is interrupted a second time and waits for nothing: 128 and the signal's number.
const AT_ONCE: i32 = 130;

/// Becomes true when somebody interrupts; who does so again does not wait for a good end.
///
/// # Errors
/// The system lets no signal be caught.
pub fn noticed() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in signals() {
        flag::register_conditional_shutdown(signal, AT_ONCE, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// The signals that interrupt this program. SIGHUP is one of them unless it was ignored at the start, as by nohup.
pub fn signals() -> impl Iterator<Item = i32> {
    let hangs_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangs_up)
}

/// Whether this program was started so that a signal does nothing to it.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.unwrap_or(0) & 1 << (signal - 1) != 0
}
