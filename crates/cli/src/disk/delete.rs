//! `tidegate disk delete`.

use clap::Args;
use tidegate_api::disk::Disk;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;

use crate::failure::Failure;
use crate::output::Gone;
use crate::prompt::Consent;
use crate::session::Session;
use crate::{complete, figures};

/// Delete a disk and its data
///
/// The disk must be detached. A disk with snapshots is refused without --snapshots. If its image is a block device (--device), the data on the device stays.
#[derive(Debug, Args)]
#[command(
    visible_alias = "rm",
    after_help = "\
Examples:
  tidegate disk delete web1
  tidegate disk detach web1 && tidegate disk delete web1 --yes"
)]
pub(crate) struct Delete {
    /// The disk
    #[arg(add = complete::disks())]
    name: Name,

    /// Delete its snapshots too
    #[arg(long)]
    snapshots: bool,

    #[command(flatten)]
    consent: Consent,
}

/// Fails if a disk is attached, as the daemon would. This comes before the question about lost data.
pub(super) fn must_be_detached(disk: &Disk, verb: &str, reason: &str) -> Result<(), Failure> {
    let name = &disk.name;
    let state = match (disk.attached, disk.detaching) {
        (true, _) => format!("it is attached: {reason}"),
        (false, true) => "it is still being detached".to_owned(),
        (false, false) => return Ok(()),
    };
    let problem = Problem::new(ProblemCode::Busy, format!("cannot {verb} disk {name}"));
    Err(problem
        .because(state)
        .remedy(format!("detach it first: tidegate disk detach {name}"))
        .into())
}

impl Delete {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.as_str();
        let client = session.client()?;
        // Read first: the question names what is lost, and an unknown name is reported at once.
        let disk = client.look(routes::DISK, &[name])?;
        must_be_detached(&disk, "delete", "its guests would lose their data")?;
        let size = figures::bytes(disk.size_bytes);
        let loss = match &disk.device {
            Some(device) => format!(
                "disk {name} will be deleted (the data on {} stays)",
                device.display()
            ),
            None => format!(
                "disk {name} of {size} on {} and all its data{} will be deleted",
                super::layout::datastores(&disk),
                if self.snapshots {
                    ", with its snapshots,"
                } else {
                    ""
                }
            ),
        };
        self.consent.obtain(&loss)?;
        match self.snapshots {
            true => client.erase_by(routes::DISK_DELETE, &[name], "snapshots=delete")?,
            false => client.erase(routes::DISK_DELETE, &[name])?,
        }
        session
            .console
            .done(&Gone { name }, &format!("disk {name} deleted"))
    }
}
