//! Block devices: their nodes, and which of them share bytes, by sysfs.
//!
//! Opening an image uses the node, since a lock belongs to a node and not to a device. The daemon checks whether two
//! disks would write to the same bytes.
//!
//! # Picture
//! ```text
//!   /sys/dev/block/8:1 -> .../block/sda/sda1      partition: its parent is the whole device
//!   /sys/dev/block/253:0 -> .../block/dm-0        slaves/: the devices that it is made of
//!   .../block/sda/device/wwid                     two devices with the same one are two paths to it (multipath)
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// More layers of devices than any machine has.
const DEEPEST: usize = 16;

/// The number of the block device at a path, through links; `None` if there is none.
pub fn number_of(path: &Path) -> Option<u64> {
    let found = fs::metadata(path).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}

/// The system's node of a device, if it exists.
pub fn node_of(number: u64) -> Option<PathBuf> {
    let node = Sysfs::of_system().node_of(number)?;
    (number_of(&node) == Some(number)).then_some(node)
}

/// Whether a write to one device may change data of the other.
pub fn share_bytes(one: u64, other: u64) -> bool {
    one == other || Sysfs::of_system().share_bytes(one, other)
}

/// Another path to the same device that is opened exclusively, if there is one.
pub(crate) fn exclusive_alias_of(number: u64) -> Option<PathBuf> {
    let aliases = Sysfs::of_system().aliases_of(number).into_iter();
    let mut nodes = aliases.filter_map(node_of);
    nodes.find(|node| is_taken(node))
}

/// Whether a device is opened exclusively: it is mounted, part of another device, or open with `O_EXCL`.
fn is_taken(node: &Path) -> bool {
    let open = |flags| -> std::io::Result<File> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .custom_flags(libc::O_CLOEXEC | flags)
            .open(node)
    };
    open(libc::O_EXCL).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
}

/// The system's devices, as shown below a directory.
struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    fn of_system() -> Sysfs {
        Sysfs {
            root: "/sys".into(),
        }
    }

    /// The directory of a device.
    fn folder_of(&self, number: u64) -> Option<PathBuf> {
        let link = format!("dev/block/{}:{}", libc::major(number), libc::minor(number));
        fs::canonicalize(self.root.join(link)).ok()
    }

    fn node_of(&self, number: u64) -> Option<PathBuf> {
        let text = fs::read_to_string(self.folder_of(number)?.join("uevent")).ok()?;
        let name = text
            .lines()
            .find_map(|line| line.strip_prefix("DEVNAME="))?;
        Some(Path::new("/dev").join(name))
    }

    fn share_bytes(&self, one: u64, other: u64) -> bool {
        let [Some(one), Some(other)] = [one, other].map(|number| self.folder_of(number)) else {
            return false;
        };
        !names(&one).is_disjoint(&below(&other, DEEPEST))
            || !names(&other).is_disjoint(&below(&one, DEEPEST))
    }

    /// The other paths to a device.
    fn aliases_of(&self, number: u64) -> Vec<u64> {
        let Some(folder) = self.folder_of(number) else {
            return Vec::new();
        };
        let ours = names(&folder);
        if ours.len() < 2 {
            // It has no identity but its number.
            return Vec::new();
        }
        let all = fs::read_dir(self.root.join("dev/block"))
            .into_iter()
            .flatten();
        let others = all.filter_map(|entry| fs::canonicalize(entry.ok()?.path()).ok());
        let aliases = others.filter(|other| *other != folder && !names(other).is_disjoint(&ours));
        aliases.filter_map(|twin| number_in(&twin)).collect()
    }
}

/// The names of a device: its number, and its hardware identity if it has one.
fn names(folder: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    names.extend(read(&folder.join("dev")));
    match (read(&folder.join("partition")), folder.parent()) {
        (Some(partition), Some(whole)) => {
            names.extend(identity(whole).map(|whole| format!("{whole} partition {partition}")));
        }
        _ => names.extend(identity(folder)),
    }
    names
}

/// The names of a device and of everything that it is part of or made of.
fn below(folder: &Path, deepest: usize) -> BTreeSet<String> {
    let mut all = names(folder);
    if deepest == 0 {
        return all;
    }
    let whole = folder
        .parent()
        .filter(|_| folder.join("partition").exists());
    let slaves = fs::read_dir(folder.join("slaves")).into_iter().flatten();
    let slaves = slaves.filter_map(|entry| fs::canonicalize(entry.ok()?.path()).ok());
    for folder in slaves.chain(whole.map(PathBuf::from)) {
        all.extend(below(&folder, deepest - 1));
    }
    all
}

/// A whole device's identity. A vendor-specific one (`t10.`) may be shared by many.
fn identity(folder: &Path) -> Option<String> {
    let text = read(&folder.join("wwid")).or_else(|| read(&folder.join("device/wwid")))?;
    let sure = ["naa.", "eui.", "uuid.", "nvme."];
    sure.iter()
        .any(|kind| text.starts_with(kind))
        .then_some(text)
}

fn number_in(folder: &Path) -> Option<u64> {
    let text = read(&folder.join("dev"))?;
    let (major, minor) = text.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Two paths (`sda`, `sdb`) to one device with two partitions; `dm-0` on the first partition of `sda`; `sdc` by
    /// itself.
    fn machine() -> (tempfile::TempDir, Sysfs) {
        let place = tempfile::tempdir().expect("a directory");
        let sysfs = Sysfs {
            root: place.path().into(),
        };
        let make = |name: &str, number: &str, files: &[(&str, &str)]| {
            let folder = place.path().join("devices").join(name);
            let numbers = place.path().join("dev/block");
            for made in [&folder, &numbers] {
                fs::create_dir_all(made).expect("a directory");
            }
            for (file, text) in files.iter().chain(&[("dev", number)]) {
                let file = folder.join(file);
                fs::create_dir_all(file.parent().expect("it is below")).expect("a directory");
                fs::write(file, format!("{text}\n")).expect("a file");
            }
            symlink(&folder, numbers.join(number)).expect("a link");
            folder
        };
        for (name, minor) in [("sda", 0), ("sdb", 16)] {
            let number = |part: u32| format!("8:{}", minor + part);
            make(name, &number(0), &[("device/wwid", "naa.5000")]);
            for part in [1, 2] {
                let file = [("partition", &*part.to_string())];
                make(&format!("{name}/{name}{part}"), &number(part), &file);
            }
        }
        make(
            "sdc",
            "8:32",
            &[("device/wwid", "t10.ACME"), ("uevent", "DEVNAME=sdc")],
        );
        make("sdd", "8:48", &[("device/wwid", "t10.ACME")]);
        let mapped = make("dm-0", "253:0", &[]);
        fs::create_dir(mapped.join("slaves")).expect("a directory");
        symlink("../../sda/sda1", mapped.join("slaves/sda1")).expect("a link");
        (place, sysfs)
    }

    const SDA: u64 = libc::makedev(8, 0);
    const SDA1: u64 = libc::makedev(8, 1);
    const SDA2: u64 = libc::makedev(8, 2);
    const SDB: u64 = libc::makedev(8, 16);
    const SDB1: u64 = libc::makedev(8, 17);
    const SDC: u64 = libc::makedev(8, 32);
    const SDD: u64 = libc::makedev(8, 48);
    const DM0: u64 = libc::makedev(253, 0);

    #[test]
    fn partitions_mappings_and_other_paths_share_bytes_with_their_device() {
        let (_place, sysfs) = machine();
        for (one, other) in [
            (SDA, SDA1),
            (SDA, DM0),
            (SDA1, DM0),
            (SDB, DM0),
            (SDB1, DM0),
            (SDA, SDB),
            (SDA1, SDB1),
            (SDA2, SDB),
        ] {
            assert!(sysfs.share_bytes(one, other), "{one:x} {other:x}");
            assert!(sysfs.share_bytes(other, one), "{other:x} {one:x}");
        }
        for (one, other) in [
            (SDA1, SDA2),
            (SDA2, DM0),
            (SDA2, SDB1),
            (SDA, SDC),
            (SDC, SDD),
        ] {
            assert!(!sysfs.share_bytes(one, other), "{one:x} {other:x}");
        }
    }

    #[test]
    fn other_paths_to_a_device_are_found_by_its_identity_only() {
        let (_place, sysfs) = machine();
        assert_eq!(sysfs.aliases_of(SDA), [SDB]);
        assert_eq!(sysfs.aliases_of(SDB1), [SDA1]);
        assert!(sysfs.aliases_of(SDC).is_empty());
        assert_eq!(sysfs.node_of(SDC).as_deref(), Some(Path::new("/dev/sdc")));
    }
}
