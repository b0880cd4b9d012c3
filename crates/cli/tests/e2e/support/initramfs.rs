//! The guest's root: that of the lab ([`tidegate_testing::initramfs`]) with e2fsprogs, fio and cmp, and a shell that tests talk to.
//!
//! The kernel is unpacked by `cargo xtask test` beside the tests' build. The archive is built once for a run.
//!
//! # Picture
//! `init` loads the modules, says `[booted]` on virtio's port, and serves a shell there:
//! ```text
//! ttyS0    kernel's messages -> console transcript
//! vport0p1 commands in, output and `[done N CODE]` out
//! ```
//!
//! A port of virtio's loses nothing, however late a guest comes to read; an emulated serial port on a busy host has lost bytes
//! from the middle of a command.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tidegate_testing::initramfs::{Kernel, Root};

use super::program::find;

/// What its shell does.
const INIT: &str = r#"echo 1 >/proc/sys/kernel/panic_on_oops
# Held open from here on: one process at a time may open a port, and all others inherit it.
exec 3<>/dev/vport0p1
echo "[booted]" >&3
while read -r line <&3; do sh -c "$line" >&3 2>&1 3>&-; done
"#;

/// What a guest boots from.
pub(crate) struct Boot {
    /// The kernel, as Debian ships it.
    pub(crate) kernel: PathBuf,
    /// The initramfs.
    pub(crate) initramfs: PathBuf,
}

/// What every guest of this run boots from.
pub(crate) fn boot() -> &'static Boot {
    static BOOT: OnceLock<Boot> = OnceLock::new();
    BOOT.get_or_init(|| {
        let unpacked = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guest-kernel");
        let Some(kernel) = Kernel::newest_in(&unpacked) else {
            panic!(
                "no guest kernel in {}: `cargo xtask test` fetches one",
                unpacked.display()
            )
        };
        // Written aside and renamed: another run's guest may be reading the old one.
        let aside = unpacked.join(format!("initramfs.{}", std::process::id()));
        let initramfs = unpacked.join("initramfs");
        fs::write(&aside, pack(&kernel)).expect("the guest's initramfs can be written");
        fs::rename(&aside, &initramfs).expect("a file can be renamed within its directory");
        Boot {
            kernel: kernel.image,
            initramfs,
        }
    })
}

fn pack(kernel: &Kernel) -> Vec<u8> {
    let mut root = Root::new(kernel, &find("busybox"), INIT)
        .unwrap_or_else(|error| panic!("the guest's root cannot be packed: {error:#}"));
    for tool in ["mkfs.ext4", "e2fsck", "fio", "cmp"] {
        root.program(&find(tool))
            .unwrap_or_else(|error| panic!("{tool} cannot be packed: {error:#}"));
    }
    root.file("etc/mke2fs.conf", b"[defaults]\n\tbase_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr\n[fs_types]\n\text4 = {\n\t\tfeatures = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize\n\t}\n");
    root.finish()
}
