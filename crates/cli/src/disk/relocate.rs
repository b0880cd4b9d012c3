//! `tidegate disk move`.

use clap::Args;
use tidegate_api::layout::DiskMove;
use tidegate_api::name::Name;
use tidegate_api::routes;
use tidegate_api::units::Rate;

use crate::failure::Failure;
use crate::session::Session;
use crate::{complete, job};

/// Move a disk to another datastore while guests use it
///
/// The disk must be attached. Its bytes are copied, and writes go to both places until the new one has all of them. Then the
/// old image is deleted. Interrupting this command does not stop the move; `tidegate job cancel` goes back.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk move db1 --to nfs2
  tidegate disk move db1 --to nfs2 --rate 200MiB/s --no-wait")]
pub(crate) struct Move {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// The datastore to move it to
    #[arg(long, value_name = "DATASTORE", add = complete::datastores())]
    to: Name,

    /// The most bytes to copy per second; default: as much as the guests leave
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

impl Move {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let order = DiskMove {
            to: self.to,
            rate_bytes_per_s: self.rate.map(|Rate(rate)| rate),
        };
        let name = self.disk.as_str();
        let client = session.client()?;
        let job = client.order(routes::DISK_MOVE, &[name], &order)?;
        let done = format!("disk {name} is on datastore {}", order.to);
        job::follow_unless(session, &client, job, self.no_wait, &done)
    }
}
