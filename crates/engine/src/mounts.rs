//! The mount table of this process: the file system of a path.
//!
//! Leases use it to find an image's guard, and the daemon to find a datastore's file system.
//!
//! # Source
//! proc(5), `/proc/self/mountinfo`; `FS_IOC_GETFSUUID` of `linux/fs.h`.

use crate::sys::os;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The directory that it is mounted on.
    pub place: PathBuf,
    /// Its type, such as `ext4`.
    pub kind: String,
    /// What it was mounted from: a device, or a server's export.
    pub source: String,
    /// The options of the file system itself.
    pub options: String,
}

/// The mount of a path, by the mount table of this process.
pub fn mount_of(path: &Path) -> Option<Mount> {
    let table = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    find(&table, &real)
}

/// The mount in this table of a path without links. Of several mounts on one directory the last is visible.
pub(crate) fn find(table: &str, path: &Path) -> Option<Mount> {
    let mounts = table.lines().filter_map(Mount::read);
    mounts
        .filter(|mount| path.starts_with(&mount.place))
        .max_by_key(|mount| mount.place.components().count())
}

/// The UUID of the file system of an open directory, if the kernel or udev knows it.
pub fn file_system_uuid(directory: &File) -> Option<String> {
    if let Some(bytes) = os::file_system_uuid(directory) {
        return Some(format_uuid(&bytes));
    }
    let device = directory.metadata().ok()?.dev();
    let known = fs::read_dir("/dev/disk/by-uuid").ok()?;
    let mut known = known.filter_map(Result::ok);
    let matches =
        |entry: &fs::DirEntry| fs::metadata(entry.path()).is_ok_and(|m| m.rdev() == device);
    known.find(matches)?.file_name().into_string().ok()
}

/// Formats sixteen bytes as a UUID; any other number of bytes as plain hex.
fn format_uuid(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        if bytes.len() == 16 && [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

impl Mount {
    /// Parses a line of mountinfo.
    fn read(line: &str) -> Option<Mount> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        Some(Mount {
            place: unescape(mount.split(' ').nth(4)?).into(),
            kind: system.next()?.to_owned(),
            source: unescape(system.next().unwrap_or_default()),
            options: system.next().unwrap_or_default().to_owned(),
        })
    }
}

/// Decodes a text of the mount table, in which blanks are written in octal.
fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let code = after
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => plain.push(char::from(code)),
            None => plain.push('\\'),
        }
        rest = code.and_then(|_| after.get(3..)).unwrap_or(after);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_gives_directory_type_source_and_options() {
        let line =
            "23 22 0:50 / /srv/shared\\040disks rw shared:2 master:1 - nfs4 filer:/x rw,vers=4.2\n";
        let mount = find(line, Path::new("/srv/shared disks/a")).expect("the mount is found");
        assert_eq!(mount.place, Path::new("/srv/shared disks"));
        assert_eq!((&*mount.kind, &*mount.source), ("nfs4", "filer:/x"));
        assert_eq!(mount.options, "rw,vers=4.2");
        assert_eq!(find(line, Path::new("/srv/shared")), None);
    }

    #[test]
    fn a_uuid_has_the_usual_format() {
        let bytes: Vec<u8> = (0..16).collect();
        assert_eq!(format_uuid(&bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(format_uuid(&[0xab, 0xcd]), "abcd");
    }
}
