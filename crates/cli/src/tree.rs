//! `tidegate get` and `tidegate set`: the control tree, one node at a time.

use std::time::Duration;

use clap::Args;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;
use tidegate_api::tree::{Errno, TreeChange, TreeEntry, TreeKind, TreeNode, TreeSet};
use tidegate_api::units::Span;

use crate::failure::Failure;
use crate::output::{Detail, Shown};
use crate::session::Session;
use crate::{complete, stats, table};

/// The longest silence of a stream: the daemon says every fifteen seconds that it is still there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Show a file or directory of the control tree
///
/// The tree shows and changes I/O threads and devices: docs/control-tree.md describes each file. The entries of a directory that
/// are directories end in `/`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate get /
  tidegate get /thread/0/state
  tidegate get /device/db1/thread
  tidegate get /thread/0/disks --watch
  tidegate get /thread -o json | jq -r '.entries[].name'")]
pub(crate) struct Get {
    /// The path
    #[arg(add = complete::tree())]
    path: String,

    /// Continue until interrupted, and print each change
    #[arg(short, long)]
    watch: bool,

    /// How often to look for changes, from 100ms to 60s
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "watch", value_parser = stats::interval)]
    interval: Span,
}

/// Write a file of the control tree
///
/// The change took effect when the command ends.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate set /device/db1/thread 1
  tidegate set /thread/1/locked 1
  tidegate set /thread/create 1
  tidegate set /thread/default auto")]
pub(crate) struct Set {
    /// The path
    #[arg(add = complete::tree())]
    path: String,

    /// The value
    #[arg(allow_hyphen_values = true)]
    value: String,
}

impl Get {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let path = words(&self.path);
        let client = session.client()?;
        if self.watch {
            let query = format!(
                "watch=1&interval_ms={}",
                self.interval.to_duration().as_millis()
            );
            let mut nodes = client.stream_of(routes::TREE, &[path], &query, PATIENCE)?;
            loop {
                session.console.show_line(&readable(nodes.next()?)?)?;
            }
        }
        let node = client.look(routes::TREE, &[path])?;
        session.console.show(&readable(node)?)
    }
}

impl Set {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let order = TreeSet { value: self.value };
        let client = session.client()?;
        let change = client.order(routes::TREE_SET, &[words(&self.path)], &order)?;
        match change.result.is_empty() {
            true => {
                let done = format!("{} is written", change.path);
                session.console.done(&change, &done)
            }
            false => session.console.show(&change),
        }
    }
}

/// A path without the slash at its beginning, as REST has it.
fn words(path: &str) -> &str {
    path.trim_start_matches('/')
}

/// A node that has something to show.
fn readable(node: TreeNode) -> Result<TreeNode, Failure> {
    if node.kind == TreeKind::Directory || node.value.is_some() {
        return Ok(node);
    }
    let what = format!("cannot read {} ({})", node.path, Errno::Access.as_str());
    let problem = Problem::new(ProblemCode::WrongMethod, what)
        .because("it can only be written")
        .remedy(format!("{}: tidegate set {} VALUE", node.about, node.path))
        .with_errno(Errno::Access);
    Err(Failure::Failed(problem))
}

impl Shown for TreeNode {
    fn names(&self) -> Vec<String> {
        match self.kind {
            TreeKind::File => vec![self.path.clone()],
            TreeKind::Directory => self.entries.iter().map(|it| it.name.clone()).collect(),
        }
    }

    fn table(&self, detail: Detail) -> String {
        match (self.kind, detail) {
            (TreeKind::File, _) => self.value.clone().unwrap_or_default(),
            (TreeKind::Directory, Detail::Usual) => {
                let names = self.entries.iter().map(|it| it.shown_name() + "\n");
                names.collect()
            }
            (TreeKind::Directory, Detail::Wide) => {
                let row = |it: &TreeEntry| vec![it.shown_name(), it.access.as_str().to_owned()];
                let rows: Vec<_> = self.entries.iter().map(row).collect();
                table::columns(&["NAME", "ACCESS"], &rows)
            }
        }
    }
}

impl Shown for TreeChange {
    fn names(&self) -> Vec<String> {
        vec![self.path.clone()]
    }

    fn table(&self, _: Detail) -> String {
        match self.result.is_empty() {
            true => String::new(),
            false => format!("{}\n", self.result),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_api::tree::TreeAccess;

    fn node(kind: TreeKind, access: TreeAccess, value: Option<&str>) -> TreeNode {
        TreeNode {
            path: "/thread/create".to_owned(),
            kind,
            access,
            about: "write 1".to_owned(),
            value: value.map(str::to_owned),
            entries: Vec::new(),
        }
    }

    #[test]
    fn a_directory_is_a_line_for_each_entry_and_a_file_is_its_text() {
        let entry = |name: &str, kind| TreeEntry {
            name: name.to_owned(),
            kind,
            access: TreeAccess::Read,
        };
        let directory = TreeNode {
            entries: vec![
                entry("0", TreeKind::Directory),
                entry("default", TreeKind::File),
            ],
            ..node(TreeKind::Directory, TreeAccess::Read, None)
        };
        assert_eq!(directory.table(Detail::Usual), "0/\ndefault\n");
        let file = node(TreeKind::File, TreeAccess::Read, Some("active\n"));
        assert_eq!(file.table(Detail::Wide), "active\n");
    }

    #[test]
    fn a_file_that_is_only_written_is_not_read() {
        let file = node(TreeKind::File, TreeAccess::Write, None);
        let failure = readable(file).unwrap_err();
        let problem = failure.problem().unwrap();
        assert_eq!(problem.what, "cannot read /thread/create (EACCES)");
        assert!(
            problem
                .remedy
                .as_ref()
                .unwrap()
                .contains("tidegate set /thread/create")
        );
    }
}
