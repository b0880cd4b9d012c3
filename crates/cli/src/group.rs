//! `tidegate group`: limits on several disks of this host together.

use clap::{ArgGroup, Args, Subcommand};
use tidegate_api::group::{Group as Answer, GroupList, GroupSet};
use tidegate_api::name::Name;
use tidegate_api::routes;
use tidegate_api::units::{Iops, Limit, Rate};

use crate::failure::Failure;
use crate::output::{Detail, Gone, Shown, names};
use crate::session::Session;
use crate::{complete, figures, table};

/// Limit several disks together
///
/// A group's limits apply to all its disks on this host together, on any datastores. Each host has its own limits for its
/// disks of the group. `tidegate disk set DISK --group NAME` puts a disk into a group.
#[derive(Debug, Subcommand)]
pub(crate) enum Group {
    Set(Set),
    List(List),
    Show(Show),
    Remove(Remove),
}

impl Group {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Group::Set(verb) => verb.run(session),
            Group::List(_) => session.show(routes::GROUPS, &[]),
            Group::Show(verb) => session.show(routes::GROUP, &[verb.name.as_str()]),
            Group::Remove(verb) => verb.run(session),
        }
    }
}

/// Set the limits of a group on this host
///
/// The limits take effect at once. A group that does not exist is created.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("changes").required(true).multiple(true).args(["limit", "limit_bandwidth"]),
    after_help = "\
Examples:
  tidegate group set shop --limit 20000iops
  tidegate group set shop --limit-bw 500MiB/s
  tidegate disk set vm4 --group shop"
)]
pub(crate) struct Set {
    /// The group
    #[arg(add = complete::groups())]
    name: Name,

    /// IOPS ceiling of all its disks on this host together; `unlimited` removes it
    #[arg(long, value_name = "IOPS", allow_negative_numbers = true)]
    limit: Option<Limit<Iops>>,

    /// Bandwidth ceiling of all its disks on this host together; `unlimited` removes it
    #[arg(
        long,
        visible_alias = "limit-bw",
        value_name = "RATE",
        allow_negative_numbers = true
    )]
    limit_bandwidth: Option<Limit<Rate>>,
}

impl Set {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let set = GroupSet {
            limit_iops: self
                .limit
                .map(|limit| limit.to_option().map(|Iops(iops)| iops)),
            limit_bytes_per_s: self
                .limit_bandwidth
                .map(|limit| limit.to_option().map(|Rate(rate)| rate)),
        };
        let name = self.name.as_str();
        let group = session.client()?.order(routes::GROUP_SET, &[name], &set)?;
        let next = match group.disks.is_empty() {
            true => format!("; put a disk into it: tidegate disk set DISK --group {name}"),
            false => String::new(),
        };
        session
            .console
            .done(&group, &format!("group {name} set{next}"))
    }
}

/// List groups
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "Example:\n  tidegate group list -o json | jq '.groups[] | {name, limits}'"
)]
pub(crate) struct List {}

/// Show one group
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate group show shop")]
pub(crate) struct Show {
    /// The group
    #[arg(add = complete::groups())]
    name: Name,
}

/// Remove a group
///
/// None of its disks may be attached, because they would lose their common limit.
#[derive(Debug, Args)]
#[command(
    visible_aliases = ["rm", "delete"],
    after_help = "Example:\n  tidegate group remove shop"
)]
pub(crate) struct Remove {
    /// The group
    #[arg(add = complete::groups())]
    name: Name,
}

impl Remove {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.as_str();
        session.client()?.erase(routes::GROUP_REMOVE, &[name])?;
        session
            .console
            .done(&Gone { name }, &format!("group {name} removed"))
    }
}

fn limit(limit: Option<String>) -> String {
    limit.unwrap_or_else(|| "unlimited".to_owned())
}

fn limit_iops(group: &Answer) -> String {
    limit(group.limits.limit_iops.map(|iops| format!("{iops}iops")))
}

fn limit_bandwidth(group: &Answer) -> String {
    limit(
        group
            .limits
            .limit_bytes_per_s
            .map(|rate| format!("{}/s", figures::bytes(rate))),
    )
}

fn disks(group: &Answer) -> String {
    if group.disks.is_empty() {
        return figures::dash();
    }
    let names: Vec<_> = group.disks.iter().map(Name::as_str).collect();
    names.join(" ")
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![self.name.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        table::pairs(&[
            ("name", self.name.to_string()),
            ("limit", limit_iops(self)),
            ("limit bandwidth", limit_bandwidth(self)),
            ("attached disks", disks(self)),
        ])
    }
}

impl Shown for GroupList {
    fn names(&self) -> Vec<String> {
        names(&self.groups, |group| &group.name)
    }

    fn table(&self, _: Detail) -> String {
        let row = |group: &Answer| {
            vec![
                group.name.to_string(),
                limit_iops(group),
                limit_bandwidth(group),
                disks(group),
            ]
        };
        let rows: Vec<_> = self.groups.iter().map(row).collect();
        table::columns(&["NAME", "LIMIT", "BANDWIDTH", "ATTACHED"], &rows)
    }
}
