//! Nodes of the control tree: directories, and files of short text that show or change one thing.
//!
//! REST, the command line and the mounted tree show the same nodes. Errors have names of system errors, because the
//! mounted tree answers with those.
//!
//! # Units
//! The text of a file is one value, or one a line. The name of a file ends in its unit.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A node of the control tree, with its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TreeNode {
    /// Its path, such as `/thread/0/state`.
    pub path: String,
    /// What it is.
    pub kind: TreeKind,
    /// What can be done with it.
    pub access: TreeAccess,
    /// What it shows or changes.
    pub about: String,
    /// The content of a file that can be read: lines, each with its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The content of a directory, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<TreeEntry>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TreeEntry {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: TreeKind,
    /// What can be done with it.
    pub access: TreeAccess,
}

impl TreeEntry {
    /// Its name for people: that of a directory ends in a slash.
    pub fn shown_name(&self) -> String {
        match self.kind {
            TreeKind::Directory => format!("{}/", self.name),
            TreeKind::File => self.name.clone(),
        }
    }
}

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TreeKind {
    /// It has entries.
    Directory,
    /// It has text.
    File,
}

/// What can be done with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum TreeAccess {
    /// It is read.
    #[serde(rename = "r")]
    Read,
    /// It is written.
    #[serde(rename = "w")]
    Write,
    /// It is read and written.
    #[serde(rename = "rw")]
    ReadWrite,
}

impl TreeAccess {
    /// The letters for it, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            TreeAccess::Read => "r",
            TreeAccess::Write => "w",
            TreeAccess::ReadWrite => "rw",
        }
    }

    /// Whether it can be read.
    pub const fn reads(self) -> bool {
        matches!(self, TreeAccess::Read | TreeAccess::ReadWrite)
    }

    /// Whether it can be written.
    pub const fn writes(self) -> bool {
        matches!(self, TreeAccess::Write | TreeAccess::ReadWrite)
    }
}

/// What is written to a file of the control tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TreeSet {
    /// The text; spaces and line ends around it have no meaning.
    pub value: String,
}

/// What a write to a file of the control tree did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TreeChange {
    /// The path of the file.
    pub path: String,
    /// The result, such as the number of a new thread; empty if there is none beyond the change.
    pub result: String,
}

/// The name of a system error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub enum Errno {
    /// Nothing has that path.
    #[serde(rename = "ENOENT")]
    NoEntry,
    /// A part of the path is a file.
    #[serde(rename = "ENOTDIR")]
    NotADirectory,
    /// It is a directory.
    #[serde(rename = "EISDIR")]
    IsADirectory,
    /// The file cannot be read, or cannot be written.
    #[serde(rename = "EACCES")]
    Access,
    /// The value makes no sense.
    #[serde(rename = "EINVAL")]
    Invalid,
    /// It is in use, or in a state in which that cannot be done.
    #[serde(rename = "EBUSY")]
    Busy,
    /// It exists.
    #[serde(rename = "EEXIST")]
    Exists,
    /// There is no space.
    #[serde(rename = "ENOSPC")]
    NoSpace,
    /// The value is too long.
    #[serde(rename = "E2BIG")]
    TooBig,
    /// This daemon does not support it.
    #[serde(rename = "EOPNOTSUPP")]
    Unsupported,
    /// A limit of the system is reached.
    #[serde(rename = "EAGAIN")]
    Again,
    /// The daemon is stopping, or cannot be reached.
    #[serde(rename = "ESHUTDOWN")]
    ShutDown,
    /// Something failed below.
    #[serde(rename = "EIO")]
    Io,
}

impl Errno {
    /// Its name, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Errno::NoEntry => "ENOENT",
            Errno::NotADirectory => "ENOTDIR",
            Errno::IsADirectory => "EISDIR",
            Errno::Access => "EACCES",
            Errno::Invalid => "EINVAL",
            Errno::Busy => "EBUSY",
            Errno::Exists => "EEXIST",
            Errno::NoSpace => "ENOSPC",
            Errno::TooBig => "E2BIG",
            Errno::Unsupported => "EOPNOTSUPP",
            Errno::Again => "EAGAIN",
            Errno::ShutDown => "ESHUTDOWN",
            Errno::Io => "EIO",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_errors_and_accesses_are_those_in_json() {
        for errno in [Errno::NoEntry, Errno::TooBig, Errno::Io] {
            let json = serde_json::to_value(errno).unwrap();
            assert_eq!(json, errno.as_str());
        }
        for access in [TreeAccess::Read, TreeAccess::Write, TreeAccess::ReadWrite] {
            let json = serde_json::to_value(access).unwrap();
            assert_eq!(json, access.as_str());
        }
        assert!(TreeAccess::Write.writes() && !TreeAccess::Write.reads());
    }
}
