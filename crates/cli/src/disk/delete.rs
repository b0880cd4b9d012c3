//! `tidegate disk delete`.

use clap::Args;
use tidegate_api::name::Name;
use tidegate_api::routes;

use crate::failure::Failure;
use crate::output::Gone;
use crate::prompt::Consent;
use crate::session::Session;
use crate::{complete, figures};

/// Delete a disk and its data
///
/// It must be detached. A block device given with --device keeps its contents: only the disk that was made of it goes.
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

    #[command(flatten)]
    consent: Consent,
}

impl Delete {
    /// Does what was asked for.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.as_str();
        let client = session.client()?;
        // Asked first, so that the question can say what is lost and an unknown name is told at once.
        let disk = client.look(routes::DISK, &[name])?;
        let size = figures::bytes(disk.size_bytes);
        let loss = match &disk.device {
            Some(device) => format!(
                "disk {name} will be gone (not what is on {})",
                device.display()
            ),
            None => format!(
                "disk {name} of {size} on {} and all its data will be gone",
                disk.datastore
            ),
        };
        self.consent.obtain(&loss)?;
        client.erase(routes::DISK_DELETE, &[name])?;
        session
            .console
            .done(&Gone { name }, &format!("disk {name} deleted"))
    }
}
