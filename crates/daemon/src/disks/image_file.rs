//! Checks which paths may be images: plain files and block devices, but no files of pseudo file systems.
//!
//! Import and `serve-one` call this before they open a path that the user named.
//!
//! # Always true
//! - A path is checked without opening it: the writer of a pipe would see the open as a reader.

use std::fs::{self, Metadata};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use tidegate_engine::mounts;

use crate::os_error::{self, Outcome};

/// Pseudo file systems of the kernel: their files cannot store a disk's data.
const PSEUDO: [&str; 19] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// The type of the file system that a path is on, if it is a pseudo file system.
pub(crate) fn pseudo_file_system(path: &Path) -> Option<String> {
    let mount = mounts::mount_of(path)?;
    PSEUDO.contains(&mount.kind.as_str()).then_some(mount.kind)
}

/// Fails unless the path with this metadata may be an image. `what` describes the failed action; `instead` says what to
/// specify.
pub(crate) fn must_be_image(
    there: &Metadata,
    path: &Path,
    what: &str,
    instead: &str,
) -> Outcome<()> {
    let kind = there.file_type();
    let is = match kind {
        _ if kind.is_block_device() => return Ok(()),
        _ if kind.is_file() => match on_pseudo_file_system(path) {
            None => return Ok(()),
            Some(kind) => {
                format!("on a file system of type {kind}, whose files the kernel makes up")
            }
        },
        _ if kind.is_fifo() => "a pipe".to_owned(),
        _ if kind.is_dir() => "a directory".to_owned(),
        _ => "neither a file nor a block device".to_owned(),
    };
    Err(os_error::invalid(what)
        .because(format!("it is {is}"))
        .remedy(instead))
}

/// The same for an open file. A removed file (`/proc/self/fd/3`) is on another file system than its link.
fn on_pseudo_file_system(path: &Path) -> Option<String> {
    pseudo_file_system(&fs::canonicalize(path).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn only_files_that_hold_bytes_and_block_devices_may_be_images() {
        let folder = tempfile::tempdir().unwrap();
        let (file, pipe) = (folder.path().join("file"), folder.path().join("pipe"));
        File::create(&file).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let judged = |path: &Path| {
            let there = fs::metadata(path).unwrap();
            let judged = must_be_image(&there, path, "cannot read it", "give another");
            judged.err().map(|problem| problem.why.join(": "))
        };
        assert_eq!(judged(&file), None);
        let removed = tempfile::tempfile().unwrap();
        let by_number = format!("/proc/self/fd/{}", removed.as_raw_fd());
        assert_eq!(judged(Path::new(&by_number)), None);
        for (path, is) in [
            (pipe.as_path(), "it is a pipe"),
            (folder.path(), "it is a directory"),
            (Path::new("/dev/null"), "it is neither a file nor"),
            (
                Path::new("/proc/self/mem"),
                "it is on a file system of type proc",
            ),
            (
                Path::new("/proc/version"),
                "it is on a file system of type proc",
            ),
        ] {
            let told = judged(path).unwrap_or_default();
            assert!(told.starts_with(is), "{}: {told}", path.display());
        }
    }
}
