//! `tidegate pool`: the pools of this host.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tidegate_api::name::Name;
use tidegate_api::pool::{
    Pool as Answer, PoolCheck, PoolCreate, PoolData, PoolDestroy, PoolGiveUp, PoolGroup,
    PoolGroupAdd, PoolGroupSpec, PoolLevel, PoolList, PoolMember, PoolTier,
};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;
use tidegate_api::units::Size;

use crate::failure::{Failure, sentences};
use crate::output::{Detail, Gone, Shown, names};
use crate::prompt::Consent;
use crate::session::Session;
use crate::{complete, figures, table};

/// Join files or devices to one space for disks
///
/// A pool keeps a catalog on each of its members: which disk has which part of them. It belongs to one host at a time.
/// It is a datastore of its name: `tidegate disk create vm1 --datastore POOL --size 1T` makes a thin disk on it.
#[derive(Debug, Subcommand)]
pub(crate) enum Pool {
    Create(Create),
    List(List),
    Show(Show),
    AddGroup(AddGroup),
    GiveUp(GiveUp),
    Check(Check),
    Destroy(Destroy),
}

impl Pool {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Pool::Create(verb) => verb.run(session),
            Pool::List(_) => session.show(routes::POOLS, &[]),
            Pool::Show(verb) => session.show(routes::POOL, &[verb.name.as_str()]),
            Pool::AddGroup(verb) => verb.run(session),
            Pool::GiveUp(verb) => verb.run(session),
            Pool::Check(verb) => verb.run(session),
            Pool::Destroy(verb) => verb.run(session),
        }
    }
}

/// What becomes a member.
#[derive(Clone, Copy, Debug, Args)]
struct Members {
    /// How fast the members are: fast (such as flash) or slow
    #[arg(long, value_name = "TIER", default_value_t)]
    tier: PoolTier,

    /// Create files that do not exist, of this size
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,

    /// Overwrite what is on the files or devices
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    consent: Consent,
}

impl Members {
    /// The groups with absolute paths and their tier. Asks before something is overwritten.
    fn prepare(self, groups: Vec<PoolGroupSpec>) -> Result<Vec<PoolGroupSpec>, Failure> {
        let mut prepared = Vec::new();
        let mut paths = Vec::new();
        for mut group in groups {
            group.tier = self.tier;
            for path in &mut group.devices {
                *path = absolute(path)?;
                paths.push(path.display().to_string());
            }
            prepared.push(group);
        }
        if self.force {
            let loss = format!("what is on {} will be lost", paths.join(" and "));
            self.consent.obtain(&loss)?;
        }
        Ok(prepared)
    }

    fn data(self) -> PoolData {
        data(self.force)
    }
}

fn data(force: bool) -> PoolData {
    match force {
        true => PoolData::Overwrite,
        false => PoolData::Keep,
    }
}

/// A path as the daemon finds it.
fn absolute(path: &PathBuf) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|e| Failure::io(path.display().to_string(), &e))
}

/// Make a pool of files or devices
///
/// Nothing may be on them. A file that does not exist is created, if --size is given.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate pool create p --group stripe:/dev/sdb,/dev/sdc
  tidegate pool create p --group /dev/nvme0n1 --tier fast
  tidegate pool create small --group /srv/a.member --size 20G")]
pub(crate) struct Create {
    /// The new pool
    name: Name,

    /// A group: stripe:PATH,PATH, or a path alone; can be repeated
    #[arg(long = "group", value_name = "LAYOUT:PATH,PATH", required = true)]
    groups: Vec<PoolGroupSpec>,

    /// How much thin disks leave free
    #[arg(long, value_name = "SIZE")]
    minimum_free: Option<Size>,

    #[command(flatten)]
    members: Members,
}

impl Create {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let order = PoolCreate {
            name: self.name,
            groups: self.members.prepare(self.groups)?,
            minimum_free_bytes: self.minimum_free.map_or(0, |Size(bytes)| bytes),
            size_bytes: self.members.size.map(|Size(bytes)| bytes),
            data: self.members.data(),
        };
        let pool = session.client()?.order(routes::POOL_CREATE, &[], &order)?;
        let (name, size) = (&pool.name, figures::bytes(pool.size_bytes));
        session
            .console
            .done(&pool, &format!("pool {name} created, with {size}"))
    }
}

/// List pools
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "Example:\n  tidegate pool list -o json | jq '.pools[] | {name, available_bytes}'"
)]
pub(crate) struct List {}

/// Show one pool: its space, its groups, and the state of their members
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate pool show p")]
pub(crate) struct Show {
    /// The pool
    #[arg(add = complete::pools())]
    name: Name,
}

/// Give a pool another group
///
/// Its space is there at once. Nothing may be on its members.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate pool add-group p stripe:/dev/sdd,/dev/sde
  tidegate pool add-group p /dev/nvme1n1 --tier fast")]
pub(crate) struct AddGroup {
    /// The pool
    #[arg(add = complete::pools())]
    name: Name,

    /// stripe:PATH,PATH, or a path alone
    #[arg(value_name = "LAYOUT:PATH,PATH")]
    group: PoolGroupSpec,

    #[command(flatten)]
    members: Members,
}

impl AddGroup {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let mut groups = self.members.prepare(vec![self.group])?;
        let order = PoolGroupAdd {
            group: groups.remove(0),
            size_bytes: self.members.size.map(|Size(bytes)| bytes),
            data: self.members.data(),
        };
        let name = self.name.as_str();
        let client = session.client()?;
        let pool = client.order(routes::POOL_ADD_GROUP, &[name], &order)?;
        let size = figures::bytes(pool.size_bytes);
        session
            .console
            .done(&pool, &format!("pool {name} has {size} now"))
    }
}

/// Use a pool without a member that is lost
///
/// A pool is refused while a member is missing that may have its newest catalog. If the member is lost for good, this makes
/// the catalog of the others count. What disks have on the member is lost; disks that have nothing there lose nothing.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate pool give-up p 1")]
pub(crate) struct GiveUp {
    /// The pool
    #[arg(add = complete::pools())]
    name: Name,

    /// The number of the missing member, as the refusal names it
    member: u16,

    #[command(flatten)]
    consent: Consent,
}

impl GiveUp {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let (name, member) = (self.name.as_str(), self.member);
        self.consent.obtain(&format!(
            "what only member {member} of pool {name} has will be lost, and changes of disks that only its catalog knows"
        ))?;
        let order = PoolGiveUp { member };
        let pool = session
            .client()?
            .order(routes::POOL_GIVE_UP, &[name], &order)?;
        session.console.done(
            &pool,
            &format!("pool {name} is used without member {member}"),
        )
    }
}

/// Check a pool's catalog
///
/// Compares what the catalog says with itself, and the catalogs of all members. Changes nothing. Fails if something is wrong.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate pool check p")]
pub(crate) struct Check {
    /// The pool
    #[arg(add = complete::pools())]
    name: Name,
}

impl Check {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.as_str();
        let check = session.client()?.look(routes::POOL_CHECK, &[name])?;
        session.console.show(&check)?;
        match check.findings.len() {
            0 => Ok(()),
            count => Err(Failure::from(
                Problem::new(
                    ProblemCode::Corrupt,
                    format!("the catalog of pool {name} has {count} contradictions"),
                )
                .remedy("do not change the pool; keep the output of this command for a report"),
            )),
        }
    }
}

/// Destroy a pool that has no disks
///
/// Its members stay, and can be used otherwise.
#[derive(Debug, Args)]
#[command(
    visible_aliases = ["rm", "delete"],
    after_help = "Example:\n  tidegate pool destroy p"
)]
pub(crate) struct Destroy {
    /// The pool
    #[arg(add = complete::pools())]
    name: Name,

    /// Also if it cannot be opened: what is on it is lost
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    consent: Consent,
}

impl Destroy {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.name.as_str();
        self.consent
            .obtain(&format!("pool {name} will be gone, and what is on it"))?;
        let order = PoolDestroy {
            data: data(self.force),
        };
        let client = session.client()?;
        client.order(routes::POOL_DESTROY, &[name], &order)?;
        session
            .console
            .done(&Gone { name }, &format!("pool {name} destroyed"))
    }
}

fn group(group: &PoolGroup) -> String {
    let mut lines = vec![format!(
        "{}: {}, {}, {} of {} used",
        group.group,
        group.layout,
        group.tier,
        figures::bytes(group.used_bytes),
        figures::bytes(group.size_bytes)
    )];
    lines.extend(group.members.iter().map(member));
    lines.join("\n")
}

fn member(member: &PoolMember) -> String {
    let path = member.path.as_ref();
    let path = path.map_or_else(figures::dash, |path| path.display().to_string());
    let state = match (&member.trouble, member.is_current) {
        (Some(why), _) => format!(", cannot be used for the catalog: {why}"),
        (None, true) => String::new(),
        (None, false) => ", without the current catalog".to_owned(),
    };
    format!("  {}: {path}{state}", member.member)
}

/// The state in one or a few words.
fn state(pool: &Answer) -> String {
    let is_hurt = |member: &PoolMember| !member.is_current;
    let mut members = pool.groups.iter().flat_map(|group| &group.members);
    match (&pool.problem, pool.level) {
        (Some(_), _) => "problem".to_owned(),
        (None, _) if members.any(is_hurt) => "degraded".to_owned(),
        (None, PoolLevel::Ample) => "ok".to_owned(),
        (None, level) => level.to_string(),
    }
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![self.name.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let state = match &self.problem {
            Some(problem) => format!("{}\n{}", state(self), sentences(problem)),
            None => state(self),
        };
        let catalog = format!(
            "{} of {} on each member",
            figures::bytes(self.catalog_used_bytes),
            figures::bytes(self.catalog_bytes)
        );
        let groups: Vec<_> = self.groups.iter().map(group).collect();
        table::pairs(&[
            ("name", self.name.to_string()),
            ("state", state),
            ("size", figures::bytes(self.size_bytes)),
            ("used", figures::bytes(self.used_bytes)),
            ("reserved", figures::bytes(self.reserved_bytes)),
            ("available", figures::bytes(self.available_bytes)),
            ("disks", disks_of(self)),
            ("groups", groups.join("\n")),
            ("catalog", catalog),
            ("uuid", self.uuid.clone()),
        ])
    }
}

/// How many disks a pool has, and what those with most have.
fn disks_of(pool: &Answer) -> String {
    const SHOWN: usize = 20;
    let mut lines = vec![pool.disks.to_string()];
    for of in pool.by_disk.iter().take(SHOWN) {
        let mut line = format!("{}: {}", of.disk, figures::bytes(of.granted_bytes));
        if of.reserved_bytes > 0 {
            let reserved = figures::bytes(of.reserved_bytes);
            line.push_str(&format!(", {reserved} more reserved"));
        }
        lines.push(line);
    }
    match pool.by_disk.len().saturating_sub(SHOWN) {
        0 => {}
        more => lines.push(format!("{more} more, which have less")),
    }
    lines.join("\n")
}

impl Shown for PoolList {
    fn names(&self) -> Vec<String> {
        names(&self.pools, |pool| &pool.name)
    }

    fn table(&self, _: Detail) -> String {
        let row = |pool: &Answer| {
            vec![
                pool.name.to_string(),
                figures::bytes(pool.size_bytes),
                figures::bytes(pool.used_bytes),
                figures::bytes(pool.available_bytes),
                pool.groups.len().to_string(),
                pool.disks.to_string(),
                state(pool),
            ]
        };
        let rows: Vec<_> = self.pools.iter().map(row).collect();
        table::columns(
            &[
                "NAME",
                "SIZE",
                "USED",
                "AVAILABLE",
                "GROUPS",
                "DISKS",
                "STATE",
            ],
            &rows,
        )
    }
}

impl Shown for PoolCheck {
    fn names(&self) -> Vec<String> {
        vec![self.name.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let findings = match self.findings.is_empty() {
            true => "none".to_owned(),
            false => self.findings.join("\n"),
        };
        table::pairs(&[
            ("name", self.name.to_string()),
            ("contradictions", findings),
            ("disks", self.disks.to_string()),
            ("snapshots", self.snapshots.to_string()),
            ("grants", self.grants.to_string()),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_without_the_catalog_makes_the_pool_degraded() {
        let text = r#"{"name": "p", "uuid": "", "size_bytes": 0, "used_bytes": 0, "reserved_bytes": 0, "available_bytes": 0,
            "level": "low", "grant_bytes": 67108864, "catalog_bytes": 0, "catalog_used_bytes": 0, "disks": 0, "groups": [
            {"group": 0, "layout": "single", "tier": "fast", "size_bytes": 0, "used_bytes": 0, "members": [
            {"member": 0, "path": "/dev/a", "size_bytes": 0, "is_current": true}]}]}"#;
        let mut pool: Answer = serde_json::from_str(text).unwrap();
        assert_eq!(state(&pool), "low");
        let hurt = &mut pool.groups[0].members[0];
        hurt.is_current = false;
        hurt.trouble = Some("broken".to_owned());
        assert_eq!(state(&pool), "degraded");
        assert!(pool.table(Detail::Usual).contains("broken"));
    }
}
