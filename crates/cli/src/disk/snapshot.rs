//! `tidegate disk snapshot`: what a disk was at a moment.

use clap::{Args, Subcommand};
use tidegate_api::disk::Clients;
use tidegate_api::name::Name;
use tidegate_api::routes;
use tidegate_api::snapshot::{
    DiskRollback, Snapshot as Answer, SnapshotCreate, SnapshotList, SnapshotName, SnapshotsTaken,
};
use tidegate_api::units::Span;

use super::quiesce::Quiesced;
use crate::events::moment;
use crate::failure::Failure;
use crate::output::{Detail, Gone, Shown};
use crate::prompt::Consent;
use crate::session::Session;
use crate::{complete, figures, table};

/// Take, list and delete snapshots of disks, and roll back to them
///
/// A snapshot is written DISK@SNAPSHOT. Disks on pools have snapshots, and plain disks on datastores of kind dir whose file
/// system shares blocks between files: XFS, btrfs.
#[derive(Debug, Subcommand)]
pub(crate) enum Snapshot {
    Create(Create),
    List(List),
    Show(Show),
    Delete(Delete),
    Rollback(Rollback),
}

impl Snapshot {
    /// Runs the verb.
    pub(super) fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Snapshot::Create(verb) => verb.run(session),
            Snapshot::List(verb) => session.show(routes::SNAPSHOTS, &[verb.disk.as_str()]),
            Snapshot::Show(verb) => verb.run(session),
            Snapshot::Delete(verb) => verb.run(session),
            Snapshot::Rollback(verb) => verb.run(session),
        }
    }
}

/// A snapshot: in one word, or in two.
#[derive(Debug, Args)]
struct Which {
    /// The disk, or DISK@SNAPSHOT
    #[arg(value_name = "DISK", add = complete::snapshots())]
    disk: String,

    /// The snapshot, if it is not named with the disk
    #[arg(value_name = "SNAPSHOT", add = complete::snapshots_of_disk())]
    snapshot: Option<Name>,
}

impl Which {
    fn name(self) -> Result<SnapshotName, Failure> {
        let usage = |why: String| Failure::usage(why, "write DISK@SNAPSHOT, or DISK SNAPSHOT");
        match (self.disk.contains('@'), self.snapshot) {
            (true, None) => self.disk.parse().map_err(usage),
            (false, Some(snapshot)) => {
                let disk = self.disk.parse::<Name>();
                let disk = disk.map_err(|e| usage(e.to_string()))?;
                Ok(SnapshotName { disk, snapshot })
            }
            (true, Some(snapshot)) => Err(usage(format!(
                "'{}' names a snapshot already, and {snapshot} is another one",
                self.disk
            ))),
            (false, None) => Err(usage(format!("no snapshot of disk {} is named", self.disk))),
        }
    }
}

/// Take a snapshot of a disk, and of others at the same moment
///
/// Guests can go on meanwhile: their writes wait for some milliseconds. The snapshot is as the disk is after a power failure
/// at that moment. With --quiesce-command the guest's file systems are brought to rest before.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk snapshot create vm1 before-upgrade
  tidegate disk snapshot create vm1@before-upgrade
  tidegate disk snapshot create vm1 nightly --with vm1-data --with vm1-log
  tidegate disk snapshot create vm1 nightly --quiesce-command /etc/tidegate/quiesce-vm1
  tidegate disk snapshot create vm1 nightly --quiesce-command /etc/tidegate/quiesce-vm1 --quiesce-timeout 60s")]
pub(crate) struct Create {
    #[command(flatten)]
    which: Which,

    /// Another disk that gets a snapshot of this name at the same moment; can be repeated
    ///
    /// There are snapshots of all of them, or of none.
    #[arg(long, value_name = "DISK", add = complete::disks())]
    with: Vec<Name>,

    /// A shell command that is run as `COMMAND freeze` before, and always as `COMMAND thaw` after
    ///
    /// It is run by this program, as your user. For a guest with qemu-guest-agent: virsh domfsfreeze and domfsthaw.
    #[arg(long, value_name = "COMMAND")]
    quiesce_command: Option<String>,

    /// How long the freeze may take, how long the guest may rest, and how long the thaw may take
    #[arg(
        long,
        value_name = "TIME",
        default_value = "30s",
        requires = "quiesce_command"
    )]
    quiesce_timeout: Span,
}

impl Create {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.which.name()?;
        let order = SnapshotCreate {
            name: name.snapshot.clone(),
            with: self.with,
        };
        let client = session.client()?;
        let patience = std::time::Duration::from_nanos(self.quiesce_timeout.0);
        let quiesced = self
            .quiesce_command
            .map(|command| Quiesced::freeze(command, patience))
            .transpose()?;
        let taken = client.order(routes::SNAPSHOT_CREATE, &[name.disk.as_str()], &order)?;
        if let Some(quiesced) = quiesced {
            quiesced.thaw(&name.to_string())?;
        }
        let all: Vec<_> = taken
            .snapshots
            .iter()
            .map(|it| it.full_name().to_string())
            .collect();
        let held = figures::micros(figures::to_f64(taken.held_us));
        let said = format!("snapshot {} taken; writes waited {held}", all.join(", "));
        session.console.done(&taken, &said)
    }
}

/// List the snapshots of a disk, as a tree
#[derive(Debug, Args)]
#[command(
    visible_alias = "ls",
    after_help = "\
Examples:
  tidegate disk snapshot list vm1
  tidegate disk snapshot list vm1 -o json | jq -r '.snapshots[] | select(.clones) | .name'"
)]
pub(crate) struct List {
    /// The disk
    #[arg(add = complete::disks())]
    disk: Name,
}

/// Show one snapshot
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tidegate disk snapshot show vm1@before-upgrade")]
pub(crate) struct Show {
    #[command(flatten)]
    which: Which,
}

impl Show {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.which.name()?;
        session.show(
            routes::SNAPSHOT,
            &[name.disk.as_str(), name.snapshot.as_str()],
        )
    }
}

/// Delete a snapshot
///
/// Its disk and its other snapshots stay as they are. A snapshot with clones on a pool is not deleted.
#[derive(Debug, Args)]
#[command(
    visible_alias = "rm",
    after_help = "\
Examples:
  tidegate disk snapshot delete vm1@before-upgrade
  tidegate disk snapshot delete vm1 before-upgrade --yes"
)]
pub(crate) struct Delete {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    consent: Consent,
}

impl Delete {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.which.name()?;
        let arguments = [name.disk.as_str(), name.snapshot.as_str()];
        let client = session.client()?;
        // Read first: an unknown name is reported before the question.
        client.look(routes::SNAPSHOT, &arguments)?;
        let name = name.to_string();
        self.consent
            .obtain(&format!("snapshot {name} will be deleted"))?;
        client.erase(routes::SNAPSHOT_DELETE, &arguments)?;
        let said = format!("snapshot {name} deleted");
        session.console.done(&Gone { name: &name }, &said)
    }
}

/// Give a disk the content of one of its snapshots
///
/// All that was written since is lost. Later snapshots stay. The guest must be off: it would not notice that its disk changes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate disk snapshot rollback vm1 before-upgrade
  tidegate disk snapshot create vm1 today && tidegate disk snapshot rollback vm1 before-upgrade --yes")]
pub(crate) struct Rollback {
    #[command(flatten)]
    which: Which,

    /// Disconnect clients that use the disk
    #[arg(long)]
    disconnect: bool,

    #[command(flatten)]
    consent: Consent,
}

impl Rollback {
    fn run(self, session: &Session) -> Result<(), Failure> {
        let name = self.which.name()?;
        let arguments = [name.disk.as_str(), name.snapshot.as_str()];
        let client = session.client()?;
        client.look(routes::SNAPSHOT, &arguments)?;
        self.consent.obtain(&format!(
            "disk {} will be as in snapshot {name}, and all that was written since will be lost",
            name.disk
        ))?;
        let order = DiskRollback {
            snapshot: name.snapshot.clone(),
            clients: match self.disconnect {
                true => Clients::Disconnect,
                false => Clients::Keep,
            },
        };
        let disk = client.order(routes::DISK_ROLLBACK, &arguments[..1], &order)?;
        let said = format!("disk {} is as in snapshot {name}", name.disk);
        session.console.done(&disk, &said)
    }
}

fn taken_at(snapshot: &Answer) -> String {
    moment(snapshot.taken_at_s.saturating_mul(1000))
}

fn clones(snapshot: &Answer) -> String {
    let clones: Vec<_> = snapshot.clones.iter().map(Name::as_str).collect();
    match clones.is_empty() {
        true => figures::dash(),
        false => clones.join(", "),
    }
}

/// Snapshots that were taken together have the same first digits here.
fn set(snapshot: &Answer) -> String {
    let set = snapshot.set.as_ref();
    set.map_or_else(figures::dash, |set| set.chars().take(8).collect())
}

impl Shown for Answer {
    fn names(&self) -> Vec<String> {
        vec![self.full_name().to_string()]
    }

    fn table(&self, _: Detail) -> String {
        let parent = self.parent.as_ref();
        table::pairs(&[
            ("name", self.full_name().to_string()),
            ("taken", taken_at(self)),
            ("parent", parent.map_or_else(figures::dash, Name::to_string)),
            ("size of the disk", figures::bytes_or_dash(self.size_bytes)),
            (
                "written since parent",
                figures::bytes_or_dash(self.own_bytes),
            ),
            ("set", self.set.clone().unwrap_or_else(figures::dash)),
            ("clones", clones(self)),
        ])
    }
}

impl Shown for SnapshotsTaken {
    fn names(&self) -> Vec<String> {
        let names = self.snapshots.iter().map(Answer::full_name);
        names.map(|name| name.to_string()).collect()
    }

    fn table(&self, _: Detail) -> String {
        self.names().join("\n") + "\n"
    }
}

impl Shown for SnapshotList {
    fn names(&self) -> Vec<String> {
        let names = self.snapshots.iter().map(Answer::full_name);
        names.map(|name| name.to_string()).collect()
    }

    fn table(&self, _: Detail) -> String {
        if self.snapshots.is_empty() {
            return format!("disk {} has no snapshots\n", self.disk);
        }
        let head = ["SNAPSHOT", "TAKEN", "SIZE", "OWN", "SET", "CLONES"];
        let row = |(branch, snapshot): (String, Option<&Answer>)| match snapshot {
            Some(snapshot) => vec![
                branch + snapshot.name.as_str(),
                taken_at(snapshot),
                figures::bytes_or_dash(snapshot.size_bytes),
                figures::bytes_or_dash(snapshot.own_bytes),
                set(snapshot),
                clones(snapshot),
            ],
            None => {
                let mut row = vec![String::new(); head.len()];
                row[0] = branch + "(now)";
                row
            }
        };
        let rows: Vec<_> = tree(self).into_iter().map(row).collect();
        table::columns(&head, &rows)
    }
}

/// The tree of snapshots, each with the lines that lead to it; None is what the disk has now. An only child is in the column of its
/// parent.
fn tree(list: &SnapshotList) -> Vec<(String, Option<&Answer>)> {
    let known = |name: &Name| list.snapshots.iter().any(|it| it.name == *name);
    let children = |of: Option<&Name>| {
        let is_child = |it: &&Answer| it.parent.as_ref().filter(|parent| known(parent)) == of;
        let snapshots = list.snapshots.iter().filter(is_child).map(Some);
        let now = (list.latest.as_ref().filter(|latest| known(latest)) == of).then_some(None);
        snapshots.chain(now).collect::<Vec<_>>()
    };
    let mut rows = Vec::new();
    // What is still to be drawn, the next one last: with what is before it, and what is before its children.
    let mut left: Vec<(String, String, Option<&Answer>)> = Vec::new();
    let roots = children(None).into_iter().rev();
    left.extend(roots.map(|root| (String::new(), String::new(), root)));
    while let Some((before, below, at)) = left.pop() {
        rows.push((before, at));
        // Each snapshot has one parent, so each is drawn once at most.
        let Some(at) = at.filter(|_| rows.len() <= list.snapshots.len() + 1) else {
            continue;
        };
        let all = children(Some(&at.name));
        for (nth, child) in all.iter().enumerate().rev() {
            let (branch, stem) = match (all.len(), nth + 1 == all.len()) {
                // A line of snapshots stays a column.
                (1, _) => ("", ""),
                (_, true) => ("└─ ", "   "),
                (_, false) => ("├─ ", "│  "),
            };
            left.push((format!("{below}{branch}"), format!("{below}{stem}"), *child));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str, latest: &str) -> SnapshotList {
        let snapshots: Vec<_> = text
            .split(' ')
            .map(|pair| {
                let (name, parent) = pair.split_once('<').unwrap_or((pair, ""));
                let mut value = serde_json::json!({"disk": "vm1", "name": name, "taken_at_s": 1});
                if !parent.is_empty() {
                    value["parent"] = parent.into();
                }
                value
            })
            .collect();
        let list = serde_json::json!({"disk": "vm1", "latest": latest, "snapshots": snapshots});
        serde_json::from_value(list).unwrap()
    }

    fn drawn(list: &SnapshotList) -> String {
        let line = |(branch, at): (String, Option<&Answer>)| {
            branch + at.map_or("(now)", |at| at.name.as_str()) + "\n"
        };
        tree(list).into_iter().map(line).collect()
    }

    #[test]
    fn snapshots_are_a_tree_with_the_disk_in_it() {
        let list = list("a b<a c<a d<b", "d");
        assert_eq!(drawn(&list), "a\n├─ b\n│  d\n│  (now)\n└─ c\n");
        let table = list.table(Detail::Usual);
        assert!(table.contains("│  d      1970-01-01T00:00:01Z"), "{table}");
    }

    #[test]
    fn a_parent_that_is_gone_or_a_circle_draws_what_can_be_drawn() {
        assert_eq!(drawn(&list("b<a", "x")), "b\n(now)\n");
        assert_eq!(drawn(&list("a<b b<a", "x")), "(now)\n");
    }

    #[test]
    fn a_snapshot_is_named_in_one_word_or_in_two() {
        let which = |disk: &str, snapshot: Option<&str>| {
            let snapshot = snapshot.map(|name| name.parse().unwrap());
            let disk = disk.to_owned();
            Which { disk, snapshot }.name()
        };
        for (disk, snapshot) in [("vm1@a", None), ("vm1", Some("a"))] {
            assert_eq!(which(disk, snapshot).unwrap().to_string(), "vm1@a");
        }
        for (disk, snapshot) in [
            ("vm1", None),
            ("vm1@a", Some("b")),
            ("vm1@", None),
            ("..", Some("a")),
        ] {
            let Err(Failure::Usage(problem)) = which(disk, snapshot) else {
                panic!("{disk}")
            };
            assert!(problem.to_string().contains("DISK@SNAPSHOT"), "{problem}");
        }
    }
}
