//! `tidegate disk`: commands on virtual disks.
//!
//! One file for each thing done; here is what they share: the list of verbs, and how a disk is shown.

use clap::{Args, Subcommand};
use tidegate_api::descriptor::{BURST_SECONDS, CacheMode};
use tidegate_api::disk::{
    Client, ClientKind, Disk as Answer, DiskInPool, DiskList, Policy, RingCounts, RingFault,
    UpstreamCounts,
};
use tidegate_api::iocontrol::{Admission, Promise};
use tidegate_api::name::Name;
use tidegate_api::or_default::{DEFAULT, OrDefault};
use tidegate_api::problem::ProblemCode;
use tidegate_api::routes;
use tidegate_api::units::{Shares, Span};

use crate::failure::{Failure, sentences};
use crate::output::{Detail, Shown};
use crate::session::Session;
use crate::{complete, figures, table};

mod attach;
mod clone;
mod create;
mod curve;
mod delete;
mod flash;
mod image;
mod layout;
mod member;
mod policy;
mod quiesce;
mod relocate;
mod resize;
mod scrub;
mod set;
mod snapshot;
mod snippet;
mod spool;

/// Create, change, attach and move virtual disks
#[derive(Debug, Subcommand)]
pub(crate) enum Disk {
    Create(Box<create::Create>),
    List(List),
    Show(Show),
    Attach(attach::Attach),
    Detach(attach::Detach),
    Resize(resize::Resize),
    Set(Box<set::Set>),
    Delete(delete::Delete),
    Import(image::Import),
    Export(image::Export),
    Snippet(snippet::Snippet),
    #[command(subcommand)]
    Member(member::Member),
    Scrub(scrub::Scrub),
    Move(relocate::Move),
    Curve(curve::Curve),
    #[command(subcommand)]
    Snapshot(snapshot::Snapshot),
    Clone(clone::MakeClone),
}

impl Disk {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Disk::Create(verb) => verb.run(session),
            Disk::List(verb) => verb.run(session),
            Disk::Show(verb) => verb.run(session),
            Disk::Attach(verb) => verb.run(session),
            Disk::Detach(verb) => verb.run(session),
            Disk::Resize(verb) => verb.run(session),
            Disk::Set(verb) => verb.run(session),
            Disk::Delete(verb) => verb.run(session),
            Disk::Import(verb) => verb.run(session),
            Disk::Export(verb) => verb.run(session),
            Disk::Snippet(verb) => verb.run(session),
            Disk::Member(verb) => verb.run(session),
            Disk::Scrub(verb) => verb.run(session),
            Disk::Move(verb) => verb.run(session),
            Disk::Curve(verb) => verb.run(session),
            Disk::Snapshot(verb) => verb.run(session),
            Disk::Clone(verb) => verb.run(session),
        }
    }
}

/// List disks
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "\
Examples:
  tidegate disk list
  tidegate disk list -o wide
  tidegate disk list --datastore fast
  tidegate disk list -o name | xargs -n1 tidegate disk show
  tidegate disk list -o json | jq -r '.disks[] | select(.attached) | .name'"
)]
pub(crate) struct List {
    /// Only those on this datastore
    #[arg(short, long, value_name = "NAME", add = complete::datastores())]
    datastore: Option<Name>,
}

impl List {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let client = session.client()?;
        let disks = match self.datastore {
            None => client.look(routes::DISKS, &[])?,
            // A name needs no escape in a query.
            Some(datastore) => {
                client.look_by(routes::DISKS, &[], &format!("datastore={datastore}"))?
            }
        };
        session.console.show(&disks)?;
        // No other verb shows them: the disk of that name is the one that is used.
        for disk in disks.disks.iter().filter(|disk| disk.is_outdated()) {
            let problem = disk.problem.iter().map(sentences);
            problem.for_each(|problem| session.console.say(&problem));
        }
        Ok(())
    }
}

/// Show one disk
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk show web1
  qemu-img info \"$(tidegate disk show web1 -o json | jq -r .nbd_uri)\"
  tidegate disk show web1 -o json | jq -r .vhost_user_socket")]
pub(crate) struct Show {
    /// The disk
    #[arg(add = complete::disks())]
    name: Name,
}

impl Show {
    fn run(self, session: &Session) -> Result<(), Failure> {
        session.show(routes::DISK, &[self.name.as_str()])
    }
}

/// What a disk is doing, in a word.
fn state(disk: &Answer) -> &'static str {
    let what = disk.problem.as_ref().map_or("", |problem| &problem.what);
    match (
        disk.problem.as_ref().map(|problem| problem.code),
        disk.attached,
    ) {
        _ if disk.detaching => "detaching",
        _ if disk.is_outdated() => "outdated",
        // It is served, and its directory is not where it was.
        (Some(ProblemCode::NotFound), true) => "attached, missing",
        // The members that it still has serve it.
        (Some(ProblemCode::Datastore), true) if layout::is_degraded(disk) => "attached, degraded",
        // It is served, and its datastore's file system is not mounted.
        (Some(ProblemCode::Datastore), true) if what.ends_with("is not mounted") => {
            "attached, not mounted"
        }
        // The daemon attaches it once its datastore lets it.
        (Some(ProblemCode::Datastore), false) if disk.wanted => "waiting",
        _ if disk.attached && layout::is_degraded(disk) => "attached, degraded",
        (Some(_), _) => "problem",
        (None, true) => "attached",
        (None, false) => "detached",
    }
}

fn filters(disk: &Answer) -> String {
    if disk.filters.is_empty() {
        figures::dash()
    } else {
        disk.filters.join(" ")
    }
}

fn shares(weight: u32) -> String {
    Shares::new(weight).map_or_else(|| weight.to_string(), |shares| shares.to_string())
}

fn limit(limit: Option<String>) -> String {
    limit.unwrap_or_else(|| "unlimited".to_owned())
}

fn limit_iops(disk: &Answer) -> String {
    limit(disk.policy.limit_iops.map(|iops| format!("{iops}iops")))
}

fn limit_bandwidth(disk: &Answer) -> String {
    limit(
        disk.policy
            .limit_bytes_per_s
            .map(|rate| format!("{}/s", figures::bytes(rate))),
    )
}

/// What of its policy was said at all.
fn more_policy(policy: &Policy) -> Vec<(&'static str, String)> {
    let burst = policy.burst_iops.map(|burst| {
        let seconds = policy.burst_seconds.unwrap_or(BURST_SECONDS);
        format!("{burst}iops for {}", figures::seconds(seconds.into()))
    });
    let target = policy
        .latency_target_us
        .map(|us| figures::micros(figures::to_f64(us)));
    let group = policy.group.as_ref().map(ToString::to_string);
    let said = [
        ("burst", burst),
        ("latency target", target),
        ("group", group),
    ];
    said.into_iter()
        .filter_map(|(key, value)| Some((key, value?)))
        .collect()
}

/// How its completions are coalesced.
fn coalescing(disk: &Answer) -> String {
    match disk.coalesce {
        OrDefault::Value(coalesce) => coalesce.to_string(),
        OrDefault::Default => format!("{DEFAULT}: as in tidegate.toml"),
    }
}

fn vcpus(disk: &Answer) -> String {
    match disk.vcpus {
        OrDefault::Value(vcpus) => vcpus.to_string(),
        OrDefault::Default => format!("{DEFAULT}: counted"),
    }
}

/// How far its reservation is promised.
fn promise(admission: &Admission) -> String {
    let word = match admission.promise {
        Promise::Verified => "yes",
        Promise::Unverified => "not verified",
        Promise::BestEffort => "best effort only",
    };
    format!("{word}: {}", admission.why)
}

fn client(client: &Client) -> String {
    let door = match client.kind {
        ClientKind::VhostUser => "vhost-user",
        ClientKind::Nbd => "nbd",
        ClientKind::NbdTls => "nbd with TLS",
    };
    format!(
        "{door} {} for {}",
        client.peer,
        figures::seconds(client.connected_s)
    )
}

/// What a guest's rings got wrong, if they did: how often, and what the last of it was.
fn guest_faults(disk: &Answer) -> Option<String> {
    let rings = disk.rings.filter(|rings| *rings != RingCounts::default())?;
    let counts = format!(
        "{} malformed requests, {} queues stopped",
        rings.nonsense_total, rings.broken_total
    );
    let last = disk.ring_faults.iter().map(ring_fault);
    Some(
        std::iter::once(counts)
            .chain(last)
            .collect::<Vec<_>>()
            .join("\n"),
    )
}

fn ring_fault(fault: &RingFault) -> String {
    let stopped = if fault.stopped { " (stopped)" } else { "" };
    format!(
        "queue {}{stopped}, {} ago: {}",
        fault.queue,
        figures::seconds(fault.age_s),
        fault.what
    )
}

/// The failures of the connection to an upstream, if there were any.
fn upstream(counts: UpstreamCounts) -> Option<String> {
    (counts != UpstreamCounts::default()).then(|| {
        format!(
                        "lost {} times ({} by silence, {} by breaking the protocol), reconnected {} times after {} failed attempts",
            counts.lost_total,
            counts.silent_total,
            counts.violations_total,
            counts.returned_total,
            counts.refused_total
        )
    })
}

/// A disk's part of its pool, in one line.
fn in_pool(pool: &DiskInPool) -> String {
    let mut text = format!("{} taken", figures::bytes(pool.granted_bytes));
    if let Some(mapped) = pool.mapped_bytes {
        text.push_str(&format!(", {} of it with data", figures::bytes(mapped)));
    }
    if pool.reserved_bytes > 0 {
        let reserved = figures::bytes(pool.reserved_bytes);
        text.push_str(&format!(", {reserved} more reserved"));
    }
    if let Some(problem) = &pool.problem {
        text.push_str(&format!("; it gets no space: {problem}"));
    }
    match (pool.refused, pool.waiting) {
        (true, _) => text.push_str("; the pool is full: writes to new space fail"),
        (false, 0) => {}
        (false, waiting) => text.push_str(&format!("; {waiting} writes wait for space")),
    }
    text
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![self.name.to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let cache = match self.cache {
            CacheMode::WriteBack => "write-back",
            CacheMode::WriteThrough => "write-through",
        };
        let mut pairs = vec![
            ("name", self.name.to_string()),
            ("state", state(self).to_owned()),
            ("datastore", self.datastore.to_string()),
        ];
        if !self.members.is_empty() {
            pairs.push(("layout", layout::tree(self)));
        }
        if let (Some(timeout), Some(on_loss)) = (self.member_timeout_ms, self.on_loss) {
            let timeout = Span(timeout.saturating_mul(1_000_000));
            pairs.push(("member timeout", timeout.to_string()));
            pairs.push(("on loss", on_loss.as_str().to_owned()));
        }
        pairs.extend([
            (
                "size",
                format!(
                    "{} ({} bytes)",
                    figures::bytes(self.size_bytes),
                    self.size_bytes
                ),
            ),
            ("used", figures::bytes_or_dash(self.allocated_bytes)),
            ("block size", self.block_size_bytes.to_string()),
            ("cache", cache.to_owned()),
            ("read only", figures::yes_no(self.read_only)),
            ("serial", self.serial.clone()),
            ("uuid", self.uuid.clone()),
            ("queues", self.queues.to_string()),
            ("segments", self.seg_max.to_string()),
            ("filters", filters(self)),
            ("I/O class", self.io_class.as_str().to_owned()),
            ("I/O weight", self.io_weight.to_string()),
            ("coalescing", coalescing(self)),
            ("vCPUs of its VM", vcpus(self)),
            ("shares", shares(self.policy.shares)),
            (
                "reservation",
                format!("{}iops", self.policy.reservation_iops),
            ),
            ("limit", limit_iops(self)),
            ("limit bandwidth", limit_bandwidth(self)),
        ]);
        pairs.extend(more_policy(&self.policy));
        let known = [
            ("flash cache", self.flash.as_ref().map(flash::shown)),
            ("pool", self.pool.as_ref().map(in_pool)),
            ("promised", self.admission.as_ref().map(promise)),
            (
                "device",
                self.device.as_ref().map(|path| path.display().to_string()),
            ),
            ("image io", self.io.clone()),
            ("I/O thread", self.thread.map(|thread| thread.to_string())),
            ("nbd", self.nbd_uri.clone()),
            (
                "vhost-user",
                self.vhost_user_socket
                    .as_ref()
                    .map(|path| path.display().to_string()),
            ),
            (
                "clients",
                (!self.clients.is_empty()).then(|| {
                    self.clients
                        .iter()
                        .map(client)
                        .collect::<Vec<_>>()
                        .join("\n")
                }),
            ),
            ("scrub", self.scrub.as_ref().map(layout::scrub)),
            ("guest faults", guest_faults(self)),
            ("upstream", self.upstream.and_then(upstream)),
            ("problem", self.problem.as_ref().map(sentences)),
        ];
        pairs.extend(
            known
                .into_iter()
                .filter_map(|(key, value)| Some((key, value?))),
        );
        table::pairs(&pairs)
    }
}

impl Shown for DiskList {
    fn names(&self) -> Vec<String> {
        let disks = self.disks.iter().filter(|disk| !disk.is_outdated());
        disks.map(|disk| disk.name.to_string()).collect()
    }

    fn table(&self, detail: Detail) -> String {
        let mut head = vec![
            "NAME",
            "SIZE",
            "USED",
            "DATASTORE",
            "STATE",
            "CLIENTS",
            "FILTERS",
        ];
        if detail == Detail::Wide {
            head.extend([
                "LAYOUT",
                "THREAD",
                "SHARES",
                "RESERVATION",
                "LIMIT",
                "BANDWIDTH",
                "IO",
                "UUID",
            ]);
        }
        let row = |disk: &Answer| {
            let mut row = vec![
                disk.name.to_string(),
                figures::bytes(disk.size_bytes),
                figures::bytes_or_dash(disk.allocated_bytes),
                layout::datastores(disk),
                state(disk).to_owned(),
                disk.clients.len().to_string(),
                filters(disk),
            ];
            if detail == Detail::Wide {
                row.extend([
                    disk.layout.clone(),
                    disk.thread
                        .map_or_else(figures::dash, |thread| thread.to_string()),
                    shares(disk.policy.shares),
                    format!("{}iops", disk.policy.reservation_iops),
                    limit_iops(disk),
                    limit_bandwidth(disk),
                    disk.io.clone().unwrap_or_else(figures::dash),
                    disk.uuid.clone(),
                ]);
            }
            row
        };
        table::columns(&head, &self.disks.iter().map(row).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn disks_that_cannot_be_read_say_whether_they_are_served_or_wait() {
        let with = |attached: bool, wanted: bool, code: &str, what: &str, member: &str| {
            let member =
                json!([{"member": 0, "datastore": "fast", "size_bytes": 1, "state": member}]);
            let disk = json!({
                "name": "m1", "datastore": "fast", "uuid": "", "size_bytes": 0, "block_size_bytes": 0,
                "cache": "write-back", "read_only": false, "serial": "", "queues": 0, "filters": [],
                "policy": {"shares": 1000, "reservation_iops": 0, "limit_iops": null, "limit_bytes_per_s": null},
                "wanted": wanted, "attached": attached, "thread": null, "io": null, "nbd_uri": null,
                "vhost_user_socket": null, "clients": [], "problem": {"code": code, "what": what}, "members": member,
            });
            state(&serde_json::from_value(disk).expect("it is a disk"))
        };
        let said = |attached, wanted, code: &str, what: &str| {
            with(attached, wanted, code, what, "in-sync")
        };
        let unmounted = "disk m1 is attached, but datastore fast is not mounted";
        let cases = [
            (true, true, "datastore", unmounted, "attached, not mounted"),
            (true, true, "datastore", "it failed", "problem"),
            (true, true, "not-found", "it is gone", "attached, missing"),
            (
                false,
                true,
                "datastore",
                "datastore fast is not mounted",
                "waiting",
            ),
            (false, true, "locked", "another host has it", "problem"),
            (false, false, "datastore", "it failed", "problem"),
            (false, false, "exists", "it is outdated", "outdated"),
        ];
        for (attached, wanted, code, what, expected) in cases {
            assert_eq!(said(attached, wanted, code, what), expected, "{what}");
        }
        // It was attached without the member there.
        let degraded = with(true, true, "datastore", unmounted, "away");
        assert_eq!(degraded, "attached, degraded");
    }
}
