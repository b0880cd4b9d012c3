//! The content of a disk's directory, which is removed with the disk.
//!
//! # Always true
//! - A directory is not deleted if it contains anything else, such as the disks of a datastore below it.

use std::fs;
use std::io;
use std::path::Path;

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::drafts;
use crate::os_error::{self, Outcome};
use crate::text::quoted;

pub(crate) const DESCRIPTOR: &str = "disk.toml";
/// The copy of a disk's descriptor beside a member on another datastore.
pub(super) const MEMBER: &str = "member.toml";
pub(super) const IMAGE: &str = "image";
/// The list of a disk's snapshots.
pub(super) const LIST: &str = "snapshots.toml";
/// What the names of snapshots' images begin with.
pub(super) const SNAPSHOT: &str = "snapshot-";

/// The name of a file before it is complete.
pub(super) fn draft_of(file: &str) -> String {
    format!(".{file}.new")
}

/// Whether a directory is that of a disk, or of a member of one.
pub(crate) fn is_disks_folder(folder: &Path) -> bool {
    let is_there = |file: &str| folder.join(file).symlink_metadata().is_ok();
    is_there(DESCRIPTOR) || is_there(MEMBER)
}

/// Fails if a disk's directory contains files that do not belong to the disk: they would be removed with it.
pub(super) fn must_hold_nothing_else(folder: &Path) -> Outcome<()> {
    const SHOWN: usize = 5;
    let cannot = |e: io::Error| os_error::io(format!("cannot list {}", folder.display()), &e);
    let mut others = Vec::new();
    for entry in fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        let is_folder = entry.file_type().map_err(cannot)?.is_dir();
        let name = entry.file_name();
        if is_folder || !is_of_disk(&name.to_string_lossy()) {
            others.push(name);
        }
    }
    if others.is_empty() {
        return Ok(());
    }
    others.sort();
    let shown: Vec<_> = others
        .iter()
        .take(SHOWN)
        .map(|name| quoted(Path::new(name)))
        .collect();
    let more = match others.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let shown = shown.join(", ");
    let what = format!(
        "its directory {} contains files that do not belong to the disk",
        folder.display()
    );
    Err(Problem::new(ProblemCode::Busy, what)
        .because(format!("it contains {shown}{more}"))
        .remedy("move or remove them, then delete the disk"))
}

/// Whether a file in a disk's directory belongs to the disk, or is a remainder of such a file after a crash.
fn is_of_disk(name: &str) -> bool {
    let files = [DESCRIPTOR, MEMBER, IMAGE, LIST];
    let is_draft = || files.iter().any(|file| name == draft_of(file));
    let is_snapshot = |name: &str| {
        let snapshot = name.strip_prefix(SNAPSHOT);
        snapshot.is_some_and(|snapshot| snapshot.parse::<Name>().is_ok())
    };
    let is_snapshot_draft = || {
        let file = name
            .strip_prefix('.')
            .and_then(|it| it.strip_suffix(".new"));
        file.is_some_and(is_snapshot)
    };
    let ours = files.contains(&name) || name == drafts::LOCK || is_snapshot(name);
    // NFS renames a removed file to such a name for as long as a program has it open.
    ours || is_draft() || is_snapshot_draft() || name.starts_with(".nfs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_of_a_disk_may_be_removed_with_it() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path();
        for file in [
            DESCRIPTOR,
            MEMBER,
            IMAGE,
            ".disk.toml.new",
            ".member.toml.new",
            ".image.new",
            "snapshots.toml",
            ".snapshots.toml.new",
            "snapshot-before.upgrade",
            ".snapshot-before.upgrade.new",
            ".at-work",
            ".nfs0001",
        ] {
            fs::write(folder.join(file), "").unwrap();
        }
        must_hold_nothing_else(folder).unwrap();
        for inner in ["snapshot-", "snapshot-a b"] {
            fs::write(folder.join(inner), "").unwrap();
            assert!(must_hold_nothing_else(folder).is_err(), "{inner}");
            fs::remove_file(folder.join(inner)).unwrap();
        }
        for inner in ["prec", "image.d"] {
            fs::create_dir(folder.join(inner)).unwrap();
            let refused = must_hold_nothing_else(folder).unwrap_err().to_string();
            assert!(
                refused.contains(&format!("it contains {inner}")),
                "{refused}"
            );
            fs::remove_dir(folder.join(inner)).unwrap();
        }
        for n in 0..7 {
            fs::write(folder.join(format!("note-{n}")), "").unwrap();
        }
        let refused = must_hold_nothing_else(folder).unwrap_err().to_string();
        assert!(refused.contains("note-4 and 2 more"), "{refused}");
    }
}
