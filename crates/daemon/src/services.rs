//! The services that the daemon's parts share: disks, certificates, and the stop signal.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::disks::disk_service::DiskService;
use crate::listen::tls::expiry::Certificates;

/// See the module.
pub(crate) struct Services {
    pub(crate) disk_service: Arc<DiskService>,
    pub(crate) certificates: Certificates,
    stop: CancellationToken,
}

impl Services {
    /// The services of a daemon that starts.
    pub(crate) fn new(disk_service: Arc<DiskService>, certificates: Certificates) -> Services {
        Services {
            disk_service,
            certificates,
            stop: CancellationToken::new(),
        }
    }

    /// A token that is cancelled when the daemon stops.
    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Returns when the daemon stops.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }
}
