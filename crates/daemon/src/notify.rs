//! Notifications to the service manager about the daemon's state (sd_notify). Without a service manager it does
//! nothing.

use std::convert::Infallible;
use std::time::Duration;

use sd_notify::NotifyState;

/// The start timeout that each notification requests. Notifications are three times as frequent, so a late one does no
/// harm.
const STARTING: Duration = Duration::from_secs(30);

/// Reports that the daemon is ready.
pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Reports the start's progress and requests more time, repeatedly until dropped. The duration depends on datastores:
/// they would not answer sooner if the daemon were killed and restarted.
pub(crate) async fn starting(status: &str) -> Infallible {
    let us = u32::try_from(STARTING.as_micros()).unwrap_or(u32::MAX);
    let mut ticks = tokio::time::interval(STARTING / 3);
    loop {
        ticks.tick().await;
        send(&[
            NotifyState::Status(status),
            NotifyState::ExtendTimeoutUsec(us),
        ]);
    }
}

/// Reports that the daemon is stopping and needs at most this long.
pub(crate) fn stopping(at_most: Duration) {
    let us = u32::try_from(at_most.as_micros()).unwrap_or(u32::MAX);
    let status = NotifyState::Status("waiting for I/O in flight to end");
    send(&[
        NotifyState::Stopping,
        status,
        NotifyState::ExtendTimeoutUsec(us),
    ]);
}

/// Sends a heartbeat twice in each period that the manager allows, if it has a watchdog, until dropped.
///
/// It runs on the runtime of the control tasks: if those hang, it hangs, and the manager restarts the daemon. Guests
/// reconnect and continue.
pub(crate) async fn watchdog() {
    let Some(period) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut ticks = tokio::time::interval(period / 2);
    loop {
        ticks.tick().await;
        send(&[NotifyState::Watchdog]);
    }
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
