//! Tells the service manager how the daemon is (sd_notify), where there is one; otherwise does nothing.

use std::convert::Infallible;
use std::time::Duration;

use sd_notify::NotifyState;

/// How long the manager shall have patience after it was last told that the daemon still starts: it is told three times
/// meanwhile, so that one that is late by a moment does no harm.
const STARTING: Duration = Duration::from_secs(30);

/// It serves.
pub(crate) fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Says what it does at its start and asks for more time for it, again and again until dropped. How long that takes is up
/// to datastores: they would not answer sooner if the daemon were killed and started anew.
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

/// It is on its way out, for at most so long.
pub(crate) fn stopping(at_most: Duration) {
    let us = u32::try_from(at_most.as_micros()).unwrap_or(u32::MAX);
    let status = NotifyState::Status("waiting for I/O in flight to end");
    send(&[
        NotifyState::Stopping,
        status,
        NotifyState::ExtendTimeoutUsec(us),
    ]);
}

/// Says "alive" twice in each period that the manager allows, if it wants to be told, until dropped.
///
/// It runs beside the control tasks: if those hang, it hangs, and the manager restarts the daemon. Guests carry on
/// through reconnection.
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
