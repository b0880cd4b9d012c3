//! An initramfs for QEMU guests: busybox, virtio kernel modules, and an init script.
//!
//! The Debian kernel is used unchanged, so that tests and measurements run what users run. The archive is built here,
//! so that no packer and nothing in a guest must be installed. A/B tests and the end-to-end tests boot from it.
//!
//! # Always true
//! - A name occurs once in an archive, after its directories.
//!
//! # Picture
//! ```text
//! /init           mounts, loads the modules, then the caller's lines
//! /bin/busybox    links to all of its commands, made at boot
//! /usr/bin        programs; their libraries are at the host's paths
//! /modules        modules that are not built in; `order` lists them in order of dependency
//! ```
//!
//! # Source
//! The kernel's Documentation/driver-api/early-userspace/buffer-format.rst: "newc" cpio.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Modules between a Debian kernel and virtio disks and ports, in order of dependency.
const MODULES: &[&str] = &[
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "virtio_console",
];

/// The first commands of every guest.
const INIT: &str = r"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
";

/// A kernel and its modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The kernel image from its package.
    pub image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// The newest readable kernel in a directory with `boot/` and `lib/modules/`.
    #[must_use]
    pub fn newest_in(place: &Path) -> Option<Kernel> {
        let entries = fs::read_dir(place.join("boot")).ok()?.flatten();
        let kernels = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let modules = place
                .join("lib/modules")
                .join(name.strip_prefix("vmlinuz-")?);
            let image = entry.path();
            (modules.is_dir() && File::open(&image).is_ok()).then_some(Kernel { image, modules })
        });
        kernels.max_by(|one, two| one.image.cmp(&two.image))
    }
}

/// A builder of a guest's root file system.
#[derive(Debug)]
pub struct Root {
    archive: Archive,
}

impl Root {
    /// Starts the root of a guest with that kernel. `init` is shell code that runs once the modules are loaded.
    ///
    /// # Errors
    /// busybox or a module cannot be read.
    pub fn new(kernel: &Kernel, busybox: &Path, init: &str) -> Result<Root> {
        let mut root = Root {
            archive: Archive::default(),
        };
        for dir in ["proc", "sys", "dev", "mnt", "tmp", "run"] {
            root.archive.dir(Path::new(dir));
        }
        root.file("init", format!("{INIT}{init}").as_bytes());
        root.archive.copy(busybox, Path::new("bin/busybox"))?;
        root.modules(&kernel.modules)?;
        Ok(root)
    }

    fn modules(&mut self, modules: &Path) -> Result<()> {
        let built_in = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
        let mut order = String::new();
        for module in MODULES {
            if built_in.contains(&format!("/{module}.ko")) {
                continue;
            }
            let Some(source) = search(&modules.join("kernel"), &format!("{module}.ko")) else {
                bail!("{} has no module {module}", modules.display());
            };
            let name = source.file_name().context("a file has a name")?;
            self.archive
                .copy(&source, &Path::new("modules").join(name))?;
            order += &format!("{}\n", name.to_string_lossy());
        }
        self.file("modules/order", order.as_bytes());
        Ok(())
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, content: &[u8]) {
        self.archive.file(Path::new(name), content);
    }

    /// Adds a program of the host to `/usr/bin`, with its shared libraries.
    ///
    /// # Errors
    /// The program or one of its libraries cannot be read.
    pub fn program(&mut self, source: &Path) -> Result<()> {
        let name = source.file_name().context("a program has a name")?;
        self.archive
            .copy(source, &Path::new("usr/bin").join(name))?;
        for library in libraries(source)? {
            let name = library
                .strip_prefix("/")
                .context("ldd prints whole paths")?;
            self.archive.copy(&library, name)?;
        }
        Ok(())
    }

    /// Returns the archive.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        self.archive.finish()
    }
}

/// A program's shared libraries, and the loader.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot start ldd")?;
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = listing
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(words.map(PathBuf::from).collect())
}

/// A file whose name starts with `name`, compressed or not.
fn search(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(dir).ok()?.flatten();
    for path in entries.map(|entry| entry.path()) {
        if path.is_dir() {
            if let Some(found) = search(&path, name) {
                return Some(found);
            }
        } else if path
            .file_name()
            .is_some_and(|own| own.to_string_lossy().starts_with(name))
        {
            return Some(path);
        }
    }
    None
}

/// A builder of a "newc" cpio archive.
#[derive(Debug, Default)]
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
        if let Some(parent) = name.parent() {
            self.dir(parent);
        }
        self.entry(name, EXECUTABLE, content);
    }

    fn copy(&mut self, source: &Path, name: &Path) -> Result<()> {
        let content =
            fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        self.file(name, &content);
        Ok(())
    }

    fn entry(&mut self, name: &Path, mode: u32, content: &[u8]) {
        let name = name.to_string_lossy();
        let (inode, length, letters) = (self.names.len(), content.len(), name.len() + 1);
        let header = format!(
            "070701{inode:08x}{mode:08x}{:08x}{:08x}{:08x}{:08x}{length:08x}{:08x}{:08x}{:08x}{:08x}{letters:08x}{:08x}",
            0, 0, 1, 0, 0, 0, 0, 0, 0,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_every_entry_at_a_multiple_of_four() {
        let mut archive = Archive::default();
        archive.file(Path::new("a/b"), b"xyz");
        archive.file(Path::new("a/b"), b"a second time");
        let bytes = archive.finish();
        let text = String::from_utf8(bytes).expect("headers are text");
        let heads: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert_eq!(heads.len(), 3, "a directory, a file, and the end");
        assert!(heads.iter().all(|at| at % 4 == 0), "{heads:?}");
        // Six digits of magic, thirteen fields of eight.
        assert_eq!(&text[heads[1] + 110..heads[1] + 113], "a/b");
        assert_eq!(&text[heads[1] + 54..heads[1] + 62], "00000003");
    }

    #[test]
    fn built_in_modules_are_left_out_and_the_others_are_loaded_in_order() {
        let place = tempfile::tempdir().expect("a scratch directory");
        let write = |name: &str, content: &str| {
            let path = place.path().join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a new directory");
            fs::write(path, content).expect("a new file");
        };
        for version in ["6.12", "6.13"] {
            write(&format!("boot/vmlinuz-{version}"), "a kernel");
        }
        let modules = "lib/modules/6.12";
        write(
            &format!("{modules}/modules.builtin"),
            "kernel/drivers/virtio/virtio.ko\nkernel/drivers/virtio/virtio_ring.ko\n",
        );
        for name in ["blk/virtio_blk.ko.xz", "pci/virtio_pci.ko"] {
            write(&format!("{modules}/kernel/{name}"), "a module");
        }
        write("busybox", "a shell");
        let kernel = Kernel::newest_in(place.path()).expect("one of the two has modules");
        assert!(kernel.image.ends_with("vmlinuz-6.12"));
        let busybox = place.path().join("busybox");
        let lacks = Root::new(&kernel, &busybox, "").expect_err("modules are missing");
        assert!(
            lacks.to_string().contains("virtio_pci_legacy_dev"),
            "{lacks}"
        );
        for name in [
            "virtio_pci_legacy_dev.ko",
            "virtio_pci_modern_dev.ko",
            "virtio_console.ko",
        ] {
            write(&format!("{modules}/kernel/{name}"), "a module");
        }
        let root = Root::new(&kernel, &busybox, "echo hello\n").expect("all are there");
        let packed = String::from_utf8(root.finish()).expect("all of it is text");
        assert!(packed.contains("insmod /modules/$module; done\necho hello\n"));
        assert!(packed.contains(
            "virtio_pci_legacy_dev.ko\nvirtio_pci_modern_dev.ko\nvirtio_pci.ko\nvirtio_blk.ko.xz\nvirtio_console.ko\n"
        ));
    }
}
