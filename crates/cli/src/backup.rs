//! `tidegate backup` and `restore`: a directory with a full image of a disk and increments on it.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueHint};
use tidegate_api::backup::{
    Backup as One, BackupContent, BackupCreate, BackupList, BackupRestore, BackupVerify,
    RestoreDisk, RestoreFile, RestoreTo,
};
use tidegate_api::job::{Existing, ImageFormat};
use tidegate_api::name::Name;
use tidegate_api::routes;

use crate::events::moment;
use crate::failure::Failure;
use crate::output::{Detail, Shown, names};
use crate::session::Session;
use crate::{complete, figures, job, table};

/// Back up a disk on a pool, and list and check backups
///
/// A directory has the backups of one disk. The first one is full, and each later one has what changed since the one before.
/// Each is a qcow2 image, which qemu-img reads with those that it is based on. A snapshot is taken, so guests go on. The
/// snapshot of the newest backup is kept: the next increment needs it.
///
/// Interrupting this command does not stop the backup: `tidegate job list` shows it, `tidegate job cancel` stops it. A backup
/// that was interrupted is made again from its beginning; those before it stay.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  tidegate backup vm1 /backup/vm1
  tidegate backup vm1 /backup/vm1 --since monday
  tidegate backup vm1 /backup/vm1 --snapshot before-upgrade --full
  tidegate backup -- list /backup/list             # a disk with the name of a verb"
)]
pub(crate) struct Backup {
    #[command(subcommand)]
    verb: Option<Verb>,

    #[command(flatten)]
    create: Option<Create>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    List(List),
    Verify(Verify),
}

impl Backup {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        match (self.verb, self.create) {
            (Some(Verb::List(verb)), _) => {
                let dir = absolute(&verb.dir)?;
                session.show(routes::BACKUPS, &[&dir.to_string_lossy()])
            }
            (Some(Verb::Verify(verb)), _) => verb.run(session),
            (None, Some(create)) => create.run(session),
            (None, None) => Err(Failure::usage(
                "nothing to back up was named",
                "name a disk and a directory: tidegate backup vm1 /backup/vm1",
            )),
        }
    }
}

/// A backup to make.
#[derive(Debug, Args)]
struct Create {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// The directory, where the daemon may write
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,

    /// Base the increment on the backup of this snapshot; default: on the newest one
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "full")]
    since: Option<Name>,

    /// Back up this snapshot; default: a new one
    ///
    /// It is not deleted later, unlike those that backups take.
    #[arg(long, value_name = "SNAPSHOT")]
    snapshot: Option<Name>,

    /// Back up everything, not only what changed
    #[arg(long)]
    full: bool,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

impl Create {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let order = BackupCreate {
            dir: absolute(&self.dir)?,
            content: match self.full {
                true => BackupContent::Full,
                false => BackupContent::Suitable,
            },
            since: self.since,
            snapshot: self.snapshot,
        };
        let client = session.client()?;
        let name = self.disk.as_str();
        let begun = client.order(routes::BACKUP_CREATE, &[name], &order)?;
        let done = format!("disk {name} backed up to {}", order.dir.display());
        job::follow_unless(session, &client, begun, self.no_wait, &done)
    }
}

/// List the backups of a directory
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "Example:\n  tidegate backup list /backup/vm1"
)]
pub(crate) struct List {
    /// The directory
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,
}

/// Compare the files of backups with their checksums
///
/// Exit status 1 if a file is missing or damaged.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate backup verify /backup/vm1
  tidegate backup verify /backup/vm1 --at monday")]
pub(crate) struct Verify {
    /// The directory
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,

    /// Only this backup and those that it is based on: its snapshot or its number
    #[arg(long, value_name = "BACKUP")]
    at: Option<String>,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

impl Verify {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let order = BackupVerify {
            dir: absolute(&self.dir)?,
            at: self.at,
        };
        let client = session.client()?;
        let begun = client.order(routes::BACKUP_VERIFY, &[], &order)?;
        let done = format!(
            "the backups in {} are as they were written",
            order.dir.display()
        );
        job::follow_unless(session, &client, begun, self.no_wait, &done)
    }
}

/// Restore a backup to a new disk or to an image file
///
/// The files are compared with their checksums first. Without --at the newest backup is restored.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate restore /backup/vm1 --to-disk vm1-again --datastore p
  tidegate restore /backup/vm1 --at monday --to-file vm1.img
  tidegate restore /backup/vm1 --at 3 --to-file /dev/vg0/vm1 --replace")]
#[command(group = clap::ArgGroup::new("to").required(true))]
pub(crate) struct Restore {
    /// The directory of the backups
    #[arg(value_hint = ValueHint::DirPath)]
    dir: PathBuf,

    /// The backup: its snapshot or its number
    #[arg(long, value_name = "BACKUP")]
    at: Option<String>,

    /// Restore to a new disk of this name
    #[arg(long, value_name = "DISK", group = "to")]
    to_disk: Option<Name>,

    /// The new disk's datastore or pool; default: the only one, or `local`
    #[arg(short, long, value_name = "NAME", requires = "to_disk", add = complete::datastores())]
    datastore: Option<Name>,

    /// Restore to this image file, or block device
    #[arg(long, value_name = "PATH", group = "to", value_hint = ValueHint::FilePath)]
    to_file: Option<PathBuf>,

    /// raw or qcow2; default: by the end of the file's name
    #[arg(long, requires = "to_file")]
    format: Option<ImageFormat>,

    /// Replace an existing file when the new one is complete, or overwrite the block device
    #[arg(long, requires = "to_file")]
    replace: bool,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

impl Restore {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let (to, done) = match (self.to_disk, self.to_file) {
            (Some(name), _) => {
                let done = format!("disk {name} restored; attach it: tidegate disk attach {name}");
                let datastore = self.datastore;
                (RestoreTo::Disk(RestoreDisk { name, datastore }), done)
            }
            (None, file) => {
                let file = absolute(&file.unwrap_or_default())?;
                let done = format!("restored to {}", file.display());
                let file = RestoreFile {
                    file,
                    format: self.format,
                    existing: match self.replace {
                        true => Existing::Replace,
                        false => Existing::Keep,
                    },
                };
                (RestoreTo::File(file), done)
            }
        };
        let order = BackupRestore {
            dir: absolute(&self.dir)?,
            at: self.at,
            to,
        };
        let client = session.client()?;
        let begun = client.order(routes::BACKUP_RESTORE, &[], &order)?;
        job::follow_unless(session, &client, begun, self.no_wait, &done)
    }
}

/// The absolute path, because the daemon has another working directory.
fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::io(format!("cannot use {}", path.display()), &e))
}

impl Shown for BackupList {
    fn names(&self) -> Vec<String> {
        names(&self.backups, |backup| &backup.snapshot)
    }

    fn table(&self, _: Detail) -> String {
        let row = |backup: &One| {
            let kind = match backup.base {
                None => "full".to_owned(),
                Some(base) => format!("on {base}"),
            };
            vec![
                backup.number.to_string(),
                backup.snapshot.to_string(),
                kind,
                figures::bytes(backup.covered_bytes),
                figures::bytes(backup.file_bytes),
                moment(backup.made_at_s.saturating_mul(1000)),
                backup.file.clone(),
            ]
        };
        let rows: Vec<_> = self.backups.iter().map(row).collect();
        let columns = [
            "NUMBER", "SNAPSHOT", "KIND", "COVERS", "SIZE", "MADE", "FILE",
        ];
        let mut text = table::columns(&columns, &rows);
        if let Some(snapshot) = &self.interrupted {
            text.push_str(&format!(
                "A backup is being made or was interrupted; its snapshot is {snapshot}.\n"
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_what_each_backup_is_based_on_and_what_was_interrupted() {
        let text = r#"{"dir": "/b", "disk": "vm1", "uuid": "", "interrupted": "backup-2", "backups": [
            {"number": 1, "snapshot": "monday", "size_bytes": 1, "covered_bytes": 1048576, "file": "0001-monday.qcow2",
             "file_bytes": 1, "sha256": "", "made_at_s": 0},
            {"number": 2, "snapshot": "tuesday", "base": 1, "size_bytes": 1, "covered_bytes": 1, "file": "f", "file_bytes": 1,
             "sha256": "", "made_at_s": 0}]}"#;
        let list: BackupList = serde_json::from_str(text).unwrap();
        let shown = list.table(Detail::Usual);
        for part in [
            "full",
            "on 1",
            "1MiB",
            "0001-monday.qcow2",
            "its snapshot is backup-2",
        ] {
            assert!(shown.contains(part), "{part} in {shown}");
        }
        assert_eq!(list.names(), ["monday", "tuesday"]);
    }
}
