//! `tidegate disk import` and `export`: image files become disks, and disks image files.

use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use tidegate_api::job::{DiskExport, DiskImport, Existing, ImageFormat};
use tidegate_api::name::Name;
use tidegate_api::routes;

use crate::complete;
use crate::failure::Failure;
use crate::job;
use crate::prompt::Consent;
use crate::session::Session;

/// Make a disk of an image file or a block device
///
/// Formats are recognised by the file's first bytes: raw, qcow2, and vmdk, vdi, vhdx and vhd where they are one file. What
/// is known to be something else (encrypted, compressed, another format) is refused, with the command that converts it.
/// Holes stay holes. If it fails or is cancelled, nothing remains. Interrupting this command does not stop the work:
/// `tidegate job list` shows it, `tidegate job cancel` stops it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk import debian-13.qcow2 web1
  tidegate disk import /srv/old.img db1 --format raw --datastore fast --attach
  tidegate disk import old.vmdk db2 --device /dev/vg0/db2
  tidegate disk import /srv/big.qcow2 big1 --attach --no-wait && tidegate job list")]
pub(crate) struct Import {
    /// The image file or block device, which the daemon must be able to read
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// The new disk's name
    name: Name,

    /// raw, qcow2, vmdk, vdi, vhdx or vpc (also called vhd); default: as the file's first bytes say
    ///
    /// Say raw for a raw image that a stranger could have written: its first bytes may pretend to be another format.
    #[arg(long)]
    format: Option<ImageFormat>,

    /// Where it is to lie; default: the only datastore there is, or `local`
    #[arg(short, long, value_name = "NAME", add = complete::datastores())]
    datastore: Option<Name>,

    /// A block device that becomes the disk's image; what is on it is lost
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    device: Option<PathBuf>,

    #[command(flatten)]
    consent: Consent,

    /// Attach it when it is complete
    #[arg(long)]
    attach: bool,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

impl Import {
    /// Does what was asked for.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let device = self.device.as_deref().map(absolute).transpose()?;
        let existing = match &device {
            Some(device) => {
                let device = device.display();
                self.consent
                    .obtain(&format!("all that is on {device} will be lost"))?;
                Existing::Replace
            }
            None => Existing::Keep,
        };
        let order = DiskImport {
            device,
            existing,
            file: absolute(&self.file)?,
            format: self.format,
            name: self.name.clone(),
            datastore: self.datastore,
            attach: self.attach,
        };
        let client = session.client()?;
        let job = client.order(routes::DISK_IMPORT, &[], &order)?;
        if self.no_wait {
            return session.console.show(&job);
        }
        let job = job::follow(&client, &session.console, job)?;
        let name = self.name.as_str();
        if self.attach {
            return session
                .console
                .done(&job, &format!("disk {name} imported and attached"));
        }
        session.console.done(
            &job,
            &format!("disk {name} imported; attach it: tidegate disk attach {name}"),
        )
    }
}

/// Write a disk to an image file or a block device
///
/// The disk must be detached. Holes stay holes. Interrupting this command does not stop the work: `tidegate job list`
/// shows it, `tidegate job cancel` stops it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk export web1 web1.qcow2
  tidegate disk export db1 /backup/db1.img --replace
  tidegate disk export db1 /dev/vg0/db1 --replace")]
pub(crate) struct Export {
    /// The disk
    #[arg(add = complete::disks())]
    name: Name,

    /// The image file, in a directory where the daemon may write; or a block device
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// raw or qcow2; default: as the file's name ends
    ///
    /// A name that ends as another format's does, or a compressed file's, is refused. Only raw goes to a block device.
    #[arg(long)]
    format: Option<ImageFormat>,

    /// If the file is there already, replace it when the new one is complete; overwrite the block device
    #[arg(long)]
    replace: bool,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

impl Export {
    /// Does what was asked for.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let order = DiskExport {
            file: absolute(&self.file)?,
            format: self.format,
            existing: if self.replace {
                Existing::Replace
            } else {
                Existing::Keep
            },
        };
        let name = self.name.as_str();
        let client = session.client()?;
        let job = client.order(routes::DISK_EXPORT, &[name], &order)?;
        if self.no_wait {
            return session.console.show(&job);
        }
        let job = job::follow(&client, &session.console, job)?;
        session.console.done(
            &job,
            &format!("disk {name} exported to {}", order.file.display()),
        )
    }
}

/// The path as the daemon, which stands elsewhere, must be told it.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))
}
