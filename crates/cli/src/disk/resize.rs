//! `tidegate disk resize`.

use clap::Args;
use tidegate_api::descriptor::{Descriptor, Uuid};
use tidegate_api::disk::{Disk, DiskResize, ResizeData};
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;
use tidegate_api::units::Size;

use super::create::notice_of_size;
use super::delete::must_be_detached;
use crate::failure::Failure;
use crate::prompt::Consent;
use crate::session::Session;
use crate::{complete, figures};

/// Change a disk's size
///
/// A connected guest sees the new size at once, if its VMM supports that. Shrinking removes the disk's end, so the command
/// asks first. Shrink the file system in the disk before.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk resize web1 20G
  tidegate disk resize web1 5G --yes")]
pub(crate) struct Resize {
    /// The disk
    #[arg(add = complete::disks())]
    name: Name,

    /// The new size
    size: Size,

    #[command(flatten)]
    consent: Consent,
}

/// Fails if the daemon would refuse the smaller size. This comes before the question about lost data.
fn must_be_possible(disk: &Disk, size_bytes: u64) -> Result<(), Failure> {
    let mut after = Descriptor::new(Uuid::from_random([0; 16]), size_bytes);
    after.block_size = disk.block_size_bytes;
    after.check().map_err(|refused| {
        let what = format!("cannot resize disk {}", disk.name);
        Problem::new(ProblemCode::Invalid, what)
            .because(refused.why)
            .remedy(refused.remedy)
    })?;
    must_be_detached(disk, "resize", "guests do not support a disk that shrinks")
}

impl Resize {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.as_str();
        let Size(size_bytes) = self.size;
        let client = session.client()?;
        let disk = client.look(routes::DISK, &[name])?;
        let before = disk.size_bytes;
        let data = match before.checked_sub(size_bytes) {
            None | Some(0) => ResizeData::Keep,
            // It cannot shrink at all: the daemon says so before anything is lost.
            Some(_) if !disk.members.is_empty() => ResizeData::Keep,
            Some(lost) => {
                must_be_possible(&disk, size_bytes)?;
                let lost = figures::bytes(lost);
                self.consent.obtain(&format!(
                    "disk {name} will lose the data in its last {lost}"
                ))?;
                ResizeData::MayCutOff
            }
        };
        let disk = client.order(
            routes::DISK_RESIZE,
            &[name],
            &DiskResize { size_bytes, data },
        )?;
        if let Some(notice) = notice_of_size(Some(size_bytes), &disk) {
            session.console.say(&notice);
        }
        let (before, now) = (figures::bytes(before), figures::bytes(disk.size_bytes));
        session.console.done(
            &disk,
            &format!("disk {name} resized from {before} to {now}"),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(attached: bool, detaching: bool) -> Disk {
        serde_json::from_value(serde_json::json!({
            "name": "a", "datastore": "local", "uuid": "", "size_bytes": 1 << 20, "block_size_bytes": 512,
            "cache": "write-back", "read_only": false, "serial": "", "queues": 1, "filters": [],
            "policy": {"shares": 1000, "reservation_iops": 0},
            "wanted": attached, "attached": attached, "detaching": detaching, "clients": [],
        }))
        .unwrap()
    }

    #[test]
    fn what_the_daemon_would_refuse_is_refused_before_anybody_agrees_to_a_loss() {
        let told = |disk: &Disk, size| {
            let refused = must_be_possible(disk, size).unwrap_err();
            let problem = refused.problem().unwrap();
            format!("{problem}; {}", problem.remedy.as_ref().unwrap())
        };
        must_be_possible(&disk(false, false), 512).unwrap();
        assert!(told(&disk(false, false), 1000).contains("not a whole number of blocks"));
        assert!(told(&disk(true, false), 512).contains("tidegate disk detach a"));
        assert!(told(&disk(false, true), 512).contains("still being detached"));
    }
}
