//! `tidegate disk clone`.

use clap::Args;
use tidegate_api::name::Name;
use tidegate_api::routes;
use tidegate_api::snapshot::{DiskClone, SnapshotName};

use crate::complete;
use crate::failure::Failure;
use crate::session::Session;

/// Make a disk of a snapshot, at once
///
/// The new disk shares its space with the snapshot until either is written. It has the settings of the snapshot's disk, without
/// its serial number, its flash cache, and filters that write files.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk clone vm1@before-upgrade vm2
  tidegate disk snapshot create golden v1 && tidegate disk clone golden@v1 web7")]
pub(crate) struct MakeClone {
    /// The snapshot, as DISK@SNAPSHOT
    #[arg(value_name = "DISK@SNAPSHOT", add = complete::snapshots())]
    snapshot: SnapshotName,

    /// The new disk's name
    name: Name,
}

impl MakeClone {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let SnapshotName { disk, snapshot } = self.snapshot.clone();
        let order = DiskClone {
            snapshot,
            name: self.name,
        };
        let client = session.client()?;
        let made = client.order(routes::DISK_CLONE, &[disk.as_str()], &order)?;
        let said = format!("disk {} made of {}", order.name, self.snapshot);
        session.console.done(&made, &said)
    }
}
