//! `tidegate disk member`: the members of a disk's layout.

use clap::{Args, Subcommand};
use tidegate_api::descriptor::MemberPlace;
use tidegate_api::layout::{MemberAdd, MemberList};
use tidegate_api::name::Name;
use tidegate_api::routes;

use super::create::absolute;
use super::layout;
use crate::failure::Failure;
use crate::output::{Detail, Shown};
use crate::prompt::Consent;
use crate::session::Session;
use crate::{complete, figures, job, table};

/// Show, add, replace and remove the members of a mirrored disk
#[derive(Debug, Subcommand)]
pub(crate) enum Member {
    List(List),
    Add(Add),
    Replace(Replace),
    Remove(Remove),
}

impl Member {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Member::List(verb) => session.show(routes::DISK_MEMBERS, &[verb.disk.as_str()]),
            Member::Add(verb) => verb.run(session),
            Member::Replace(verb) => verb.run(session),
            Member::Remove(verb) => verb.run(session),
        }
    }
}

/// List the members of a disk
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "\
Examples:
  tidegate disk member list db1
  tidegate disk member list db1 -o json | jq -r '.members[] | select(.state != \"in-sync\") | .datastore'"
)]
pub(crate) struct List {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,
}

/// Add a member to a mirrored disk
///
/// It takes the place of a removed member, or a mirror gets one more, up to 4. The disk must be attached. The new member is
/// rebuilt while guests use the disk. Interrupting this command does not stop that.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk member add db1 --on ssd3
  tidegate disk member add db1 --on local:device=/dev/nvme1n1p2 --no-wait")]
pub(crate) struct Add {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    #[command(flatten)]
    new: New,
}

/// Replace a member of a disk by a new one
///
/// The disk must be attached. The old member's data is deleted. The new member is rebuilt from the others while guests use
/// the disk. Interrupting this command does not stop that.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk member replace db1 1 --on ssd3")]
pub(crate) struct Replace {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// The member's number
    #[arg(value_parser = number, add = complete::members())]
    member: u8,

    #[command(flatten)]
    new: New,
}

/// Remove a member of a disk, and its data
///
/// The disk must be attached. It goes on with the other members.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk member remove db1 1
  tidegate disk member remove db1 1 --yes")]
pub(crate) struct Remove {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,

    /// The member's number
    #[arg(value_parser = number, add = complete::members())]
    member: u8,

    #[command(flatten)]
    consent: Consent,
}

/// A new member.
#[derive(Debug, Args)]
struct New {
    /// The datastore of the new member, or DATASTORE:device=PATH, or DATASTORE:export=NAME
    #[arg(long, value_name = "DATASTORE", add = complete::datastores())]
    on: MemberPlace,

    /// Answer with the job at once
    #[arg(long)]
    no_wait: bool,
}

/// Reads the number of a member.
pub(super) fn number(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| {
        "it is not the number of a member: they count from 0 (see `tidegate disk member list`)"
            .to_owned()
    })
}

impl Add {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let order = MemberAdd {
            on: absolute(self.new.on)?,
        };
        let client = session.client()?;
        let disk = self.disk.as_str();
        let job = client.order(routes::DISK_MEMBER_ADD, &[disk], &order)?;
        let done = format!("disk {disk} has a member on {}", order.on);
        job::follow_unless(session, &client, job, self.new.no_wait, &done)
    }
}

impl Replace {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let order = MemberAdd {
            on: absolute(self.new.on)?,
        };
        let client = session.client()?;
        let (disk, member) = (self.disk.as_str(), self.member.to_string());
        let job = client.order(routes::DISK_MEMBER_REPLACE, &[disk, &member], &order)?;
        let done = format!("member {member} of disk {disk} is on {}", order.on);
        job::follow_unless(session, &client, job, self.new.no_wait, &done)
    }
}

impl Remove {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let (disk, member) = (self.disk.as_str(), self.member.to_string());
        self.consent.obtain(&format!(
            "disk {disk} will lose its member {member}, and the data there"
        ))?;
        let client = session.client()?;
        client.erase(routes::DISK_MEMBER_REMOVE, &[disk, &member])?;
        session
            .console
            .say(&format!("member {member} of disk {disk} removed"));
        Ok(())
    }
}

impl Shown for MemberList {
    fn names(&self) -> Vec<String> {
        let members = self.members.iter();
        members.map(|member| member.member.to_string()).collect()
    }

    fn table(&self, detail: Detail) -> String {
        if self.members.is_empty() {
            return "the disk is plain: it is one image, without members\n".to_owned();
        }
        let mut head = vec![
            "MEMBER",
            "DATASTORE",
            "STATE",
            "SIZE",
            "USED",
            "REBUILT",
            "FAULTS",
        ];
        if detail == Detail::Wide {
            head.extend(["IN FLIGHT", "IO", "PLACE"]);
        }
        let count =
            |count: Option<u64>| count.map_or_else(figures::dash, |count| count.to_string());
        let row = |member: &tidegate_api::layout::Member| {
            let mut row = vec![
                member.member.to_string(),
                member.datastore.to_string(),
                layout::state_of(member),
                figures::bytes(member.size_bytes),
                figures::bytes_or_dash(member.allocated_bytes),
                layout::rebuilt(member).unwrap_or_else(figures::dash),
                count(member.faults_total),
            ];
            if detail == Detail::Wide {
                row.extend([
                    count(member.in_flight.map(u64::from)),
                    member.io.clone().unwrap_or_else(figures::dash),
                    layout::place(member).unwrap_or_else(figures::dash),
                ]);
            }
            row
        };
        table::columns(&head, &self.members.iter().map(row).collect::<Vec<_>>())
    }
}
