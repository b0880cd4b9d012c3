//! `tidegate disk attach` and `detach`.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use tidegate_api::cache::{CacheFlush, Dirty};
use tidegate_api::datastore::DatastoreSettings;
use tidegate_api::disk::{Access, Clients, DiskAttach, DiskDetach, Outside, Takeover};
use tidegate_api::name::Name;
use tidegate_api::routes;

use crate::client::Client;
use crate::failure::Failure;
use crate::prompt::Consent;
use crate::session::Session;
use crate::{complete, job};

/// Attach a disk: guests and NBD clients can reach it
///
/// The daemon attaches the disk again at each start, until it is detached. A disk that another host has open is refused.
///
/// If that host is dead, the disk is taken over, provided that the datastore stops writes of that host. If the datastore
/// cannot stop them, the takeover needs --force-takeover.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk attach web1
  tidegate disk attach web1 -o json | jq -r .nbd_uri
  tidegate disk attach web1 --force-takeover
  tidegate disk attach raw1 --accept-paths=/dev/nvme0n1p3
  tidegate disk attach web1 --read-only
  tidegate disk attach db1 --without 1
  tidegate disk attach db1 --discard-cache")]
pub(crate) struct Attach {
    /// The disk
    #[arg(add = complete::disks())]
    name: Name,

    /// Take the disk over from a silent host, although the datastore cannot stop that host's writes
    ///
    /// Power that host off or disconnect it from the datastore first: two hosts that write to one disk destroy it. If that
    /// host is seen alive, the takeover is still refused.
    #[arg(long)]
    force_takeover: bool,

    /// Accept the block device and the trace files that the disk's descriptor names
    ///
    /// Every user with write access to the datastore can name any path in the descriptor. Paths that were named on this host,
    /// when the disk was created or changed, are accepted already. For other paths, check `tidegate disk show` first. With
    /// PATH, only the given paths are accepted, and the disk is not attached if the descriptor names another one. Without
    /// PATH, all paths that it names now are accepted
    #[arg(long, value_name = "PATH", num_args = 0..=1, require_equals = true, action = ArgAction::Append)]
    accept_paths: Option<Vec<PathBuf>>,

    /// Attach the disk read-only, whatever its settings are, until it is detached
    ///
    /// Use it if the datastore's file system can only be read, as after an error, to copy the disk's data.
    #[arg(long)]
    read_only: bool,

    /// Give up this member of a mirrored disk: what only this member has is lost; can be given several times
    ///
    /// Use it if the disk is refused because a member is away that will not come back. If it comes back, it is rebuilt from
    /// the others.
    #[arg(long, value_name = "MEMBER", value_parser = super::member::number, add = complete::members())]
    without: Vec<u8>,

    /// Lose what only the disk's flash cache has
    ///
    /// Use it if the disk is refused because its cache, or the host of the cache, will not come back.
    #[arg(long)]
    discard_cache: bool,

    /// Give up this device of the disk's mirrored flash cache, 0 or 1: what only it has is lost
    ///
    /// Use it if the disk is refused because that device will not come back.
    #[arg(long, value_name = "DEVICE", value_parser = clap::value_parser!(u8).range(0..=1))]
    without_flash: Vec<u8>,

    #[command(flatten)]
    consent: Consent,
}

impl Attach {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.as_str();
        let client = session.client()?;
        if !self.without.is_empty() {
            let members: Vec<_> = self.without.iter().map(u8::to_string).collect();
            self.consent.obtain(&format!(
                "disk {name} will lose the data that is only on member {}",
                members.join(" and member ")
            ))?;
        }
        if self.discard_cache {
            self.consent.obtain(&format!(
                "disk {name} will lose the writes that only its flash cache has"
            ))?;
        }
        if let [device, ..] = self.without_flash[..] {
            self.consent.obtain(&format!(
                "disk {name} will lose the writes that only device {device} of its flash cache has"
            ))?;
        }
        let takeover = if self.force_takeover {
            self.consent.obtain(&format!(
                "if the host that had disk {name} still runs and reaches the datastore, the disk's data will be destroyed"
            ))?;
            Takeover::Fenced
        } else {
            Takeover::Guarded
        };
        let (outside, accepted_paths) = match self.accept_paths {
            None => (Outside::Agreed, None),
            Some(paths) if paths.is_empty() => {
                let named = client.look(routes::DISK, &[name])?.outside_paths;
                for path in &named {
                    eprintln!("accepted: {}", path.display());
                }
                (Outside::Accept, Some(named))
            }
            Some(paths) => (Outside::Accept, Some(paths)),
        };
        let access = match self.read_only {
            true => Access::ReadOnly,
            false => Access::AsSet,
        };
        let order = DiskAttach {
            takeover,
            outside,
            accepted_paths,
            access,
            without: self.without,
            without_flash: self.without_flash,
            dirty: match self.discard_cache {
                true => Dirty::Discard,
                false => Dirty::Save,
            },
        };
        let disk = client.order(routes::DISK_ATTACH, &[name], &order)?;
        let next = format!("use it: tidegate disk snippet {name} --for qemu");
        session
            .console
            .done(&disk, &format!("disk {name} attached; {next}"))
    }
}

/// Detach a disk: guests and NBD clients can no longer reach it
///
/// What only the disk's flash cache has is brought to the disk first, unless --keep-dirty is given.
///
/// The command is refused while guests or clients are connected, unless --disconnect is given. A disk in the daemon's memory
/// (datastores of kind memory and emulated) loses its data, so the command asks first.
///
/// The command fails after 10 seconds if I/O in flight does not end, as on a datastore that does not answer. The disk is then
/// still being detached, and cannot be attached until that has ended. The same command waits for it again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk detach web1
  tidegate disk detach web1 --disconnect
  tidegate disk detach scratch1 --yes")]
pub(crate) struct Detach {
    /// The disk
    #[arg(add = complete::disks())]
    name: Name,

    /// Disconnect connected guests and clients
    #[arg(long)]
    disconnect: bool,

    /// Leave on flash what only the disk's flash cache has; otherwise it is brought to the disk first
    ///
    /// Until it is attached again, the disk can then be used on this host only.
    #[arg(long)]
    keep_dirty: bool,

    #[command(flatten)]
    consent: Consent,
}

impl Detach {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.as_str();
        let client = session.client()?;
        if loses_its_data(&client, name).unwrap_or(false) {
            self.consent.obtain(&format!(
                "disk {name} is in the daemon's memory and its data will be lost"
            ))?;
        }
        let clients = if self.disconnect {
            Clients::Disconnect
        } else {
            Clients::Keep
        };
        let dirty = match self.keep_dirty {
            true => Dirty::Keep,
            false => Dirty::Save,
        };
        if dirty == Dirty::Save {
            flush_cache(session, &client, name)?;
        }
        let order = DiskDetach { clients, dirty };
        let disk = client.order(routes::DISK_DETACH, &[name], &order)?;
        session
            .console
            .done(&disk, &format!("disk {name} detached"))
    }
}

/// Has what only a disk's flash cache has brought to the disk, and shows how far that is.
fn flush_cache(session: &Session, client: &Client, name: &str) -> Result<(), Failure> {
    // A disk whose descriptor is gone must be detachable all the same.
    let Ok(disk) = client.look(routes::DISK, &[name]) else {
        return Ok(());
    };
    let flash = disk.flash.filter(|flash| {
        let at_work = flash.at_work.filter(|counts| counts.in_use);
        at_work.is_some_and(|counts| counts.dirty_bytes > 0)
    });
    let Some(flash) = flash else {
        return Ok(());
    };
    let order = CacheFlush {
        disk: Some(disk.name),
    };
    let job = client.order(routes::CACHE_FLUSH, &[flash.cache.as_str()], &order)?;
    job::follow(client, &session.console, job).map(drop)
}

/// Whether what is on a disk goes with it. Not known of one whose descriptor is gone or cannot be read, which must be
/// detachable all the same.
fn loses_its_data(client: &Client, name: &str) -> Result<bool, Failure> {
    let disk = client.look(routes::DISK, &[name])?;
    if !disk.attached {
        return Ok(false);
    }
    let datastore = client.look(routes::DATASTORE, &[disk.datastore.as_str()])?;
    Ok(matches!(
        datastore.settings,
        DatastoreSettings::Memory {} | DatastoreSettings::Emulated { .. }
    ))
}
