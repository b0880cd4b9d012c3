//! `tidegate cache device`: the devices of a flash cache.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use tidegate_api::cache::{CacheData, CacheDeviceAdd};
use tidegate_api::name::Name;
use tidegate_api::routes;

use super::absolute;
use crate::failure::Failure;
use crate::prompt::Consent;
use crate::session::Session;
use crate::{complete, job};

/// Add, replace and remove the devices of a flash cache
///
/// Disks use the cache meanwhile. `tidegate cache show` lists its devices with their numbers.
#[derive(Debug, Subcommand)]
pub(crate) enum Device {
    Add(Add),
    Replace(Replace),
    Remove(Remove),
}

impl Device {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Device::Add(verb) => verb.run(session),
            Device::Replace(verb) => verb.run(session),
            Device::Remove(verb) => verb.run(session),
        }
    }
}

/// Give a flash cache of one device a second one
///
/// The new device is filled while disks use the cache. Afterwards disks survive the loss of one. Interrupting this command
/// does not stop that.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate cache device add nvme0 /dev/nvme1n1
  tidegate cache device add nvme0 /dev/nvme1n1 --no-wait")]
pub(crate) struct Add {
    /// The cache
    #[arg(add = complete::caches())]
    name: Name,

    /// The block device, or an existing file, at least as large as the other one
    #[arg(value_hint = ValueHint::FilePath)]
    path: PathBuf,

    #[command(flatten)]
    new: New,
}

/// Replace a device of a flash cache by a new one
///
/// The new device is filled from the other one while disks use the cache. Disks that write back to two devices write through
/// until it has everything. A cache of one device keeps it until the new one has everything, which has another number then.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate cache device replace nvme0 1 --with /dev/nvme2n1")]
pub(crate) struct Replace {
    /// The cache
    #[arg(add = complete::caches())]
    name: Name,

    /// The device's number
    #[arg(value_parser = number, add = complete::cache_devices())]
    device: u8,

    /// The block device, or an existing file, at least as large as the others
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    with: PathBuf,

    #[command(flatten)]
    new: New,
}

/// Remove one of two devices of a flash cache
///
/// Disks go on with the other one. A disk that writes back to both has to accept a single device before.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate cache device remove nvme0 1
  tidegate cache device remove nvme0 1 --yes")]
pub(crate) struct Remove {
    /// The cache
    #[arg(add = complete::caches())]
    name: Name,

    /// The device's number
    #[arg(value_parser = number, add = complete::cache_devices())]
    device: u8,

    #[command(flatten)]
    consent: Consent,
}

/// What holds for a new device.
#[derive(Debug, Args)]
struct New {
    /// Overwrite what is on the device
    #[arg(long)]
    force: bool,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,

    #[command(flatten)]
    consent: Consent,
}

impl New {
    /// The request, after consent to what it overwrites.
    fn order(&self, path: PathBuf) -> Result<CacheDeviceAdd, Failure> {
        let path = absolute(path)?;
        if self.force {
            self.consent
                .obtain(&format!("what is on {} will be lost", path.display()))?;
        }
        let data = match self.force {
            true => CacheData::Overwrite,
            false => CacheData::Keep,
        };
        Ok(CacheDeviceAdd { path, data })
    }
}

/// Reads the number of a device.
fn number(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| {
        "it is not the number of a device: they count from 0 (see `tidegate cache show`)".to_owned()
    })
}

impl Add {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let order = self.new.order(self.path)?;
        let client = session.client()?;
        let name = self.name.as_str();
        let job = client.order(routes::CACHE_DEVICE_ADD, &[name], &order)?;
        let done = format!("cache {name} has {} too", order.path.display());
        job::follow_unless(session, &client, job, self.new.no_wait, &done)
    }
}

impl Replace {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let order = self.new.order(self.with)?;
        let client = session.client()?;
        let (name, device) = (self.name.as_str(), self.device.to_string());
        let job = client.order(routes::CACHE_DEVICE_REPLACE, &[name, &device], &order)?;
        let done = format!(
            "cache {name} has {} instead of device {device}",
            order.path.display()
        );
        job::follow_unless(session, &client, job, self.new.no_wait, &done)
    }
}

impl Remove {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let (name, device) = (self.name.as_str(), self.device.to_string());
        self.consent.obtain(&format!(
            "cache {name} will lose its device {device}; if the other one fails then, what only that has is lost"
        ))?;
        let client = session.client()?;
        client.erase(routes::CACHE_DEVICE_REMOVE, &[name, &device])?;
        session
            .console
            .say(&format!("device {device} of cache {name} removed"));
        Ok(())
    }
}
