//! The guest's root: an initramfs of busybox, e2fsprogs and the few modules that a virtio disk needs.
//!
//! A Debian kernel, unpacked by `cargo xtask test` beside the tests' build, is left as it is: what is tested is
//! what people run. The archive is built here, so that no packer is needed, once for a run.
//!
//! # Picture
//! `init` loads the modules, says `[booted]` on the second serial port, and serves a shell there:
//! ```text
//! ttyS0  kernel's messages -> console transcript
//! ttyS1  commands in, output and `[done N CODE]` out
//! ```
//! # Source
//! The kernel's Documentation/driver-api/early-userspace/buffer-format.rst: "newc" cpio.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::program::{Program, find, missing};

/// Modules between a Debian cloud kernel and a virtio disk, in the order of their needs.
const MODULES: &[&str] = &[
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
];

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module.ko; done
echo 1 >/proc/sys/kernel/panic_on_oops
# Held open from here on: a port that nobody has open forgets what was typed.
exec 3<>/dev/ttyS1
stty raw -echo <&3
echo "[booted]" >&3
while read -r line <&3; do sh -c "$line" >&3 3>&-; done
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
        let kernel = only_one(&unpacked.join("boot"), "vmlinuz-");
        let modules = only_one(&unpacked.join("lib/modules"), "");
        // Written aside and renamed: another run's guest may be reading the old one.
        let aside = unpacked.join(format!("initramfs.{}", std::process::id()));
        let initramfs = unpacked.join("initramfs");
        fs::write(&aside, pack(&modules)).expect("the guest's initramfs can be written");
        fs::rename(&aside, &initramfs).expect("a file can be renamed within its directory");
        Boot { kernel, initramfs }
    })
}

fn only_one(dir: &Path, prefix: &str) -> PathBuf {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| {
            path.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with(prefix))
        })
        .collect();
    found.sort();
    found.pop().unwrap_or_else(|| {
        panic!(
            "no guest kernel in {}: `cargo xtask test` fetches one",
            dir.display()
        )
    })
}

fn pack(modules: &Path) -> Vec<u8> {
    let mut archive = Archive::default();
    for dir in ["proc", "sys", "dev", "mnt", "tmp", "run", "etc"] {
        archive.dir(Path::new(dir));
    }
    archive.file(Path::new("init"), INIT.as_bytes());
    archive.copy(&find("busybox"), Path::new("bin/busybox"));
    for tool in ["mkfs.ext4", "e2fsck", "fio"] {
        let program = find(tool);
        archive.copy(&program, &Path::new("usr/bin").join(tool));
        for library in libraries(&program) {
            archive.copy(
                &library,
                library.strip_prefix("/").expect("ldd prints whole paths"),
            );
        }
    }
    archive.file(Path::new("etc/mke2fs.conf"), b"[defaults]\n\tbase_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr\n[fs_types]\n\text4 = {\n\t\tfeatures = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize\n\t}\n");
    for module in MODULES {
        let file = format!("{module}.ko");
        let source = search(&modules.join("kernel"), &file)
            .unwrap_or_else(|| panic!("the guest's kernel has no module {module}"));
        archive.copy(&source, &Path::new("modules").join(&file));
    }
    archive.file(Path::new("modules/order"), MODULES.join("\n").as_bytes());
    archive.finish()
}

/// The libraries that a program is linked with, and the loader.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listing = Program::new("ldd").arg(program).run();
    let words = listing
        .lines()
        .filter_map(|line| line.split_whitespace().find(|w| w.starts_with('/')));
    words.map(PathBuf::from).collect()
}

fn search(dir: &Path, name: &str) -> Option<PathBuf> {
    for entry in fs::read_dir(dir).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = search(&path, name) {
                return Some(found);
            }
        } else if path.file_name().is_some_and(|n| n == name) {
            return Some(path);
        }
    }
    None
}

/// A "newc" cpio archive in the making.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<PathBuf>,
}

impl Archive {
    fn dir(&mut self, name: &Path) {
        const DIRECTORY: u32 = 0o040_755;
        if name.as_os_str().is_empty() || !self.names.insert(name.to_owned()) {
            return;
        }
        if let Some(parent) = name.parent() {
            self.dir(parent);
        }
        self.entry(name, DIRECTORY, &[]);
    }

    fn file(&mut self, name: &Path, content: &[u8]) {
        const EXECUTABLE: u32 = 0o100_755;
        if !self.names.insert(name.to_owned()) {
            return;
        }
        self.dir(
            name.parent()
                .expect("a file's name has a parent, if an empty one"),
        );
        self.entry(name, EXECUTABLE, content);
    }

    fn copy(&mut self, source: &Path, name: &Path) {
        let Ok(content) = fs::read(source) else {
            missing(&source.to_string_lossy())
        };
        self.file(name, &content);
    }

    fn entry(&mut self, name: &Path, mode: u32, content: &[u8]) {
        let name = name.to_str().expect("names in the guest are plain");
        let inode = self.names.len();
        let header = format!(
            "070701{inode:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}{:08x}",
            0,
            0,
            1,
            0,
            content.len(),
            0,
            0,
            0,
            0,
            name.len() + 1,
            0,
        );
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        while !self.bytes.len().is_multiple_of(4) {
            self.bytes.push(0);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, &[]);
        self.bytes
    }
}
