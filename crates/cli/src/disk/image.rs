//! `tidegate disk import` and `export`: image files become disks, and disks image files.

use std::fmt;
use std::io::IsTerminal;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueHint};
use tidegate_api::job::{DiskExport, DiskImport, Existing, ImageFormat};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;
use tidegate_api::snapshot::SnapshotName;

use super::spool::Spool;
use crate::client::Client;
use crate::complete;
use crate::failure::Failure;
use crate::job;
use crate::prompt::Consent;
use crate::session::Session;

/// Create a disk from an image file or a block device
///
/// The format is detected by the file's first bytes: raw, qcow2, and vmdk, vdi, vhdx and vhd in a single file. Other known
/// files (encrypted, compressed, another format) are refused, with the command that converts them.
///
/// With `-` the image comes from standard input. It is first written to a temporary file, which needs space for the whole
/// image. An input that ends too early looks like a smaller raw image.
///
/// Holes are preserved. If the import fails or is cancelled, nothing remains. Interrupting this command does not stop the
/// import: `tidegate job list` shows it, `tidegate job cancel` stops it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk import debian-13.qcow2 web1
  tidegate disk import /srv/old.img db1 --format raw --datastore fast --attach
  tidegate disk import old.vmdk db2 --device /dev/vg0/db2
  zstdcat web2.img.zst | tidegate disk import - web2 --spool-dir /srv/tmp
  tidegate disk import /srv/big.qcow2 big1 --attach --no-wait && tidegate job list")]
pub(crate) struct Import {
    /// The image file or block device, readable for the daemon; `-` is standard input, `./-` is a file
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// The new disk's name
    name: Name,

    /// raw, qcow2, vmdk, vdi, vhdx or vpc (also called vhd); default: detected by the file's first bytes
    ///
    /// Use raw for a raw image that a stranger could have written. Its first bytes may look like another format.
    #[arg(long)]
    format: Option<ImageFormat>,

    /// The disk's datastore; default: the only datastore, or `local`
    #[arg(short, long, value_name = "NAME", add = complete::datastores())]
    datastore: Option<Name>,

    /// A block device that becomes the disk's image; its data is lost
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    device: Option<PathBuf>,

    #[command(flatten)]
    consent: Consent,

    /// Attach it when it is complete
    #[arg(long)]
    attach: bool,

    /// The directory for the temporary file of standard input; default: $TMPDIR, or /var/tmp
    ///
    /// It needs space for the whole image. The file is removed at the end, also if this command is interrupted.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    spool_dir: Option<PathBuf>,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

impl Import {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let piped = self.is_piped()?;
        let device = self.device.as_deref().map(absolute).transpose()?;
        let existing = match &device {
            Some(device) => {
                must_be_device(device)?;
                let device = device.display();
                self.consent
                    .obtain(&format!("all data on {device} will be lost"))?;
                Existing::Replace
            }
            None => Existing::Keep,
        };
        let client = session.client()?;
        if !piped {
            return self.import(session, &client, device, existing, absolute(&self.file)?);
        }
        let spool = Spool::fill(&client, &session.console, self.spool_dir.as_deref())?;
        let file = spool.path().to_owned();
        self.import(session, &client, device, existing, file)
            .map_err(|failure| spool.explain(failure))
    }

    /// Whether the image comes from standard input; fails if that makes no sense.
    fn is_piped(&self) -> Result<bool, Failure> {
        if self.file.as_os_str() != "-" {
            if self.spool_dir.is_some() {
                return Err(Failure::usage(
                    "--spool-dir is for standard input, and the image is a file",
                    "omit --spool-dir, or write `-` for the image",
                ));
            }
            if is_own_descriptor(&self.file) {
                return Err(Failure::usage(
                    format!("{} is another file for the daemon", self.file.display()),
                    "pipe the image in and write `-` for it: COMMAND | tidegate disk import - NAME",
                ));
            }
            return Ok(false);
        }
        if self.no_wait {
            return Err(Failure::usage(
                "--no-wait cannot be used with `-`: the image is in a temporary file, which this command removes at the end",
                "omit --no-wait; or write the image to a file and import that",
            ));
        }
        if std::io::stdin().is_terminal() {
            return Err(Failure::usage(
                "`-` reads the image from standard input, and that is a terminal",
                "pipe the image in: COMMAND | tidegate disk import - NAME, or name its file",
            ));
        }
        Ok(true)
    }

    /// Has the daemon import a file, and follows the job.
    fn import(
        &self,
        session: &Session,
        client: &Client,
        device: Option<PathBuf>,
        existing: Existing,
        file: PathBuf,
    ) -> Result<(), Failure> {
        let order = DiskImport {
            device,
            existing,
            file,
            format: self.format,
            name: self.name.clone(),
            datastore: self.datastore.clone(),
            attach: self.attach,
        };
        let job = client.order(routes::DISK_IMPORT, &[], &order)?;
        if self.no_wait {
            return session.console.show(&job);
        }
        let job = job::follow(client, &session.console, job)?;
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

/// Write a disk or a snapshot to an image file or a block device
///
/// A disk must be detached. A snapshot of one, such as web1@monday, is written at any time. Holes are preserved.
/// Interrupting this command does not stop the export: `tidegate job list` shows it, `tidegate job cancel` stops it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk export web1 web1.qcow2
  tidegate disk export web1@monday web1.qcow2
  tidegate disk export db1 /backup/db1.img --replace
  tidegate disk export db1 /dev/vg0/db1 --replace")]
pub(crate) struct Export {
    /// The disk, or a snapshot of one
    #[arg(value_name = "DISK[@SNAPSHOT]", add = complete::disks())]
    name: DiskOrSnapshot,

    /// The image file, in a directory where the daemon may write; or a block device
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// raw or qcow2; default: by the end of the file's name
    ///
    /// A name that ends like that of another format or a compressed file is refused. A block device can only be raw.
    #[arg(long)]
    format: Option<ImageFormat>,

    /// Replace an existing file when the new one is complete, or overwrite the block device
    #[arg(long)]
    replace: bool,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

/// A disk, or a snapshot of one.
#[derive(Clone, Debug)]
struct DiskOrSnapshot {
    disk: Name,
    snapshot: Option<Name>,
}

impl FromStr for DiskOrSnapshot {
    type Err = String;

    fn from_str(text: &str) -> Result<DiskOrSnapshot, String> {
        if !text.contains('@') {
            let disk = text.parse::<Name>().map_err(|e| e.to_string())?;
            let snapshot = None;
            return Ok(DiskOrSnapshot { disk, snapshot });
        }
        let SnapshotName { disk, snapshot } = text.parse()?;
        let snapshot = Some(snapshot);
        Ok(DiskOrSnapshot { disk, snapshot })
    }
}

impl fmt::Display for DiskOrSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.snapshot {
            Some(snapshot) => write!(f, "{}@{snapshot}", self.disk),
            None => write!(f, "disk {}", self.disk),
        }
    }
}

impl Export {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let DiskOrSnapshot { disk, snapshot } = &self.name;
        let order = DiskExport {
            snapshot: snapshot.clone(),
            file: absolute(&self.file)?,
            format: self.format,
            existing: if self.replace {
                Existing::Replace
            } else {
                Existing::Keep
            },
        };
        let client = session.client()?;
        let job = client.order(routes::DISK_EXPORT, &[disk.as_str()], &order)?;
        if self.no_wait {
            return session.console.show(&job);
        }
        let job = job::follow(&client, &session.console, job)?;
        session.console.done(
            &job,
            &format!("{} exported to {}", self.name, order.file.display()),
        )
    }
}

/// Whether a path names what this process has open, which the daemon cannot see.
fn is_own_descriptor(path: &Path) -> bool {
    path == Path::new("/dev/stdin")
        || ["/dev/fd", "/proc/self", "/proc/thread-self"]
            .iter()
            .any(|own| path.starts_with(own))
}

/// Fails if that is certainly no block device. This comes before the question about lost data.
fn must_be_device(device: &Path) -> Result<(), Failure> {
    let why = match device.metadata() {
        Ok(there) if there.file_type().is_block_device() => return Ok(()),
        Ok(_) => "it is not a block device".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => error.to_string(),
        // The daemon may see what this user does not.
        Err(_) => return Ok(()),
    };
    let what = format!("{} cannot be used", device.display());
    let problem = Problem::new(ProblemCode::Invalid, what).because(why);
    Err(problem
        .remedy("give a block device (see `lsblk -p`)")
        .into())
}

/// The absolute path, because the daemon has another working directory.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_block_device_is_refused_before_anybody_agrees_to_a_loss() {
        for (path, why) in [
            ("/dev/no-such-device", "No such file"),
            ("/dev/null", "not a block device"),
        ] {
            let refused = must_be_device(Path::new(path)).unwrap_err();
            let problem = refused.problem().unwrap();
            assert!(problem.to_string().contains(why), "{problem}");
            assert!(problem.remedy.as_ref().unwrap().contains("lsblk -p"));
        }
    }
}
