//! The guard of a shared file system: it keeps a host that was declared dead from writing.
//!
//! A take-over is safe if the datastore rejects the old host's writes. The mount table shows whether it does
//! ([`Guard::of`]); an unknown file system has no guard.

use crate::mounts;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Local file systems: every process that can open a file there uses this kernel's locks. An overlay is not one of
/// them: its locks are its own. A process that opens the file in the layer below, or through another overlay, does not
/// meet them.
const LOCAL: [&str; 15] = [
    "bcachefs", "btrfs", "erofs", "exfat", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2",
    "ramfs", "tmpfs", "vfat", "xfs", "zfs",
];

/// What prevents other hosts, and an old process, from writing to a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// The lock of this machine's kernel: no other machine can reach the image. It lasts until the last operation of a
    /// dead daemon has ended.
    Kernel,
    /// The lock of the file server: it rejects the writes of a client whose lock it gave to another.
    Server,
    /// Only the lease, by which a host stops itself.
    Lease,
}

impl Guard {
    /// The guard of an image in a datastore's directory.
    pub fn of(directory: &Path, image: &Path) -> Guard {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let around = classify(&mounts, &real(directory), lost_locks_stay_lost());
        if around == Guard::Kernel {
            // Every daemon that attaches disks of this directory runs on this machine, and also sees the lock of a
            // device here.
            return Guard::Kernel;
        }
        let is_device = fs::metadata(image).is_ok_and(|meta| meta.file_type().is_block_device());
        match is_device {
            true => Guard::Lease,
            false => classify(&mounts, &real(image), lost_locks_stay_lost()),
        }
    }
}

/// Whether this machine's NFS client fails I/O under a lock that the server revoked, rather than locking again.
fn lost_locks_stay_lost() -> bool {
    let setting = fs::read_to_string("/sys/module/nfs/parameters/recover_lost_locks");
    setting.is_ok_and(|setting| setting.trim() == "N")
}

/// Classifies by the mount table, in the format of `/proc/self/mountinfo`.
fn classify(mounts: &str, path: &Path, lost_locks_stay_lost: bool) -> Guard {
    let Some(mount) = mounts::find(mounts, path) else {
        return Guard::Lease;
    };
    let mut options = mount.options.split(',');
    let at_server = options.any(|option| option == "local_lock=none") && lost_locks_stay_lost;
    match mount.kind.as_str() {
        kind if LOCAL.contains(&kind) => Guard::Kernel,
        "nfs4" if at_server => Guard::Server,
        _ => Guard::Lease,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
20 1 8:2 / / rw,relatime - xfs /dev/sda2 rw
21 20 0:20 / /layers rw,relatime - overlay overlay rw,lowerdir=/a
22 21 8:1 / /srv rw,relatime shared:1 - ext4 /dev/sda1 rw
23 22 0:50 / /srv/shared\\040disks rw,relatime shared:2 master:1 - nfs4 filer:/x rw,vers=4.2,hard,local_lock=none,addr=1
24 22 0:51 / /srv/old rw - nfs filer:/x rw,vers=3,hard,local_lock=none
25 22 0:52 / /srv/mine rw - nfs4 filer:/x rw,vers=4.2,local_lock=posix
26 22 0:53 / /srv/cifs rw - cifs //filer/x rw
27 22 0:54 / /srv/glue rw - fuse.glusterfs x rw
";

    fn guard(path: &str) -> Guard {
        classify(MOUNTS, Path::new(path), true)
    }

    #[test]
    fn a_local_file_system_is_guarded_by_its_kernel() {
        assert_eq!(guard("/tmp/x"), Guard::Kernel);
        assert_eq!(guard("/srv/disks"), Guard::Kernel);
        // A directory whose name has the same prefix is not below it.
        assert_eq!(guard("/srv/cifs2"), Guard::Kernel);
    }

    #[test]
    fn an_overlay_is_guarded_by_the_lease_only() {
        assert_eq!(guard("/layers/a/image"), Guard::Lease);
    }

    #[test]
    fn nfs_is_guarded_by_its_server_from_version_4_with_server_locks() {
        assert_eq!(guard("/srv/shared disks/a/image"), Guard::Server);
        assert_eq!(guard("/srv/old/a"), Guard::Lease);
        assert_eq!(guard("/srv/mine/a"), Guard::Lease);
        let path = Path::new("/srv/shared disks");
        assert_eq!(classify(MOUNTS, path, false), Guard::Lease);
    }

    #[test]
    fn an_unknown_file_system_is_guarded_by_the_lease_only() {
        assert_eq!(guard("/srv/cifs/a"), Guard::Lease);
        assert_eq!(guard("/srv/glue/a"), Guard::Lease);
        assert_eq!(classify("", Path::new("/srv"), true), Guard::Lease);
        assert_eq!(
            classify("nonsense\n", Path::new("/srv"), true),
            Guard::Lease
        );
    }

    #[test]
    fn of_two_mounts_on_one_directory_the_last_counts() {
        let both = "1 0 8:1 / /srv rw - ext4 x rw\n2 1 0:5 / /srv rw - cifs x rw\n";
        assert_eq!(classify(both, Path::new("/srv/a"), true), Guard::Lease);
    }
}
