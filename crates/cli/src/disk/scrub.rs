//! `tidegate disk scrub`.

use clap::Args;
use tidegate_api::layout::{Differences, DiskScrub};
use tidegate_api::name::Name;
use tidegate_api::routes;

use super::layout;
use crate::failure::Failure;
use crate::session::Session;
use crate::{complete, job};

/// Compare the members of a mirrored disk
///
/// The disk must be attached; guests can use it meanwhile. Interrupting this command does not stop the scrub: `tidegate job
/// list` shows it, `tidegate job cancel` stops it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk scrub db1
  tidegate disk scrub db1 --repair
  tidegate disk show db1 -o json | jq .scrub")]
pub(crate) struct Scrub {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// Where members differ, copy the first member's bytes to the others
    #[arg(long)]
    repair: bool,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

impl Scrub {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let order = DiskScrub {
            differences: match self.repair {
                true => Differences::Repair,
                false => Differences::Report,
            },
        };
        let name = self.disk.as_str();
        let client = session.client()?;
        let job = client.order(routes::DISK_SCRUB, &[name], &order)?;
        if self.no_wait {
            return session.console.show(&job);
        }
        let job = job::follow(&client, &session.console, job)?;
        let disk = client.look(routes::DISK, &[name])?;
        let result = disk.scrub.as_ref().map_or_else(String::new, layout::scrub);
        session
            .console
            .done(&job, &format!("disk {name}: {result}"))
    }
}
