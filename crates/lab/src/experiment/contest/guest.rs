//! A guest of QEMU's that runs fio once on its vhost-user disk, says what came of it, and is gone.
//!
//! A Debian kernel is left as it is. Its root is an archive made here, of busybox, fio and the modules that a virtio disk
//! needs, so that nothing has to be installed in a guest. fio's words are the kernel's last, and become `init`'s.
//!
//! # Always true
//! - QEMU ends with its trial, also when that is interrupted.
//! - Whether the processor was emulated is told: without KVM figures tell of QEMU and not of the disk.
//!
//! # Picture
//! ```text
//! ttyS0  kernel's messages -> console
//! ttyS1  what fio reported, between [begin] and [done CODE] -> said
//! ```
//! # Source
//! The kernel's Documentation/driver-api/early-userspace/buffer-format.rst: "newc" cpio.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::there;
use crate::fio::{Done, Job, parse};

/// A guest without KVM needs about so long until it works, and as long again to be gone.
pub(super) const BOOTS: Duration = Duration::from_secs(10);
/// One that needs longer has lost its way.
const PATIENCE: Duration = Duration::from_secs(90);
/// With KVM a kernel without anything to do is gone in a second or two; where it is not, KVM is there and does not work.
const PROBE: Duration = Duration::from_secs(15);
/// How often it is looked after.
const LOOK: Duration = Duration::from_millis(20);
/// Its disk.
pub(super) const DISK: &str = "/dev/vda";
/// Where a kernel may be, besides the host's own: a directory with `boot/` and `lib/modules/`.
const PLACE: &str = "TIDEGATE_GUEST_KERNEL";
/// Memory, as QEMU writes it.
const MEMORY: &str = "384M";

/// Modules between a Debian kernel and a virtio disk, in the order of their needs.
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
for module in $(cat /modules/order); do insmod /modules/$module; done
until [ -b /dev/vda ]; do sleep 0.1; done
stty raw -echo </dev/ttyS1
fio "$@" >/run/said 2>&1
code=$?
{
    echo "[begin]"
    cat /run/said
    echo "[done $code]"
} >/dev/ttyS1
reboot -f
"#;

/// What guests boot from.
#[derive(Debug)]
pub(super) struct Kit {
    kernel: PathBuf,
    root: PathBuf,
    accelerator: &'static str,
}

impl Kit {
    /// Looks for what a guest needs, and packs its root into `scratch`.
    ///
    /// # Errors
    /// Something is not there: what, and where it would be looked for.
    pub(super) fn find(program: &Path, scratch: &Path) -> Result<Kit> {
        for name in ["qemu-system-x86_64", "fio", "busybox"] {
            if !there(name) {
                bail!("{name} is not installed");
            }
        }
        let places = places(program);
        let found = places.iter().find_map(|place| kernel_in(place));
        let Some((kernel, modules)) = found else {
            bail!(
                "there is no kernel for a guest in {}; {PLACE} may name another place",
                places
                    .iter()
                    .map(|place| place.join("boot").display().to_string())
                    .collect::<Vec<_>>()
                    .join(", ")
            );
        };
        let root = scratch.join("guest-root");
        let packed = pack(&modules).context("cannot pack a guest's root")?;
        fs::write(&root, packed).with_context(|| format!("cannot write {}", root.display()))?;
        let kvm = File::options().read(true).write(true).open("/dev/kvm");
        let accelerator = match kvm.is_ok() && accelerates(&kernel) {
            true => "kvm",
            false => "tcg",
        };
        Ok(Kit {
            kernel,
            root,
            accelerator,
        })
    }

    /// Whether the guest's processor is emulated.
    pub(super) fn emulates(&self) -> bool {
        self.accelerator == "tcg"
    }

    /// Boots a guest whose disk is at `socket`, pinned to a processor, and has it do a job.
    ///
    /// # Errors
    /// QEMU or fio fails, or `stop` was set.
    pub(super) fn run(
        &self,
        job: &Job<'_>,
        socket: &Path,
        cpu: usize,
        scratch: &Path,
        stop: &AtomicBool,
    ) -> Result<Done> {
        let (console, said) = (scratch.join("console"), scratch.join("said"));
        for file in [&console, &said] {
            fs::write(file, "").with_context(|| format!("cannot write {}", file.display()))?;
        }
        let append = format!(
            "console=ttyS0 quiet panic=-1 nokaslr mitigations=off rdinit=/init -- {}",
            job.arguments().join(" ")
        );
        let errors = scratch.join("qemu.log");
        let log =
            File::create(&errors).with_context(|| format!("cannot create {}", errors.display()))?;
        let mut command = Command::new("taskset");
        command
            .args(["--cpu-list", &cpu.to_string(), "qemu-system-x86_64"])
            .args([
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
                "-cpu",
                "max",
            ])
            .args([
                "-machine",
                &format!(
                    "q35,accel={},memory-backend=memory,smm=off",
                    self.accelerator
                ),
            ])
            .args(["-m", MEMORY, "-smp", "1"])
            .args([
                "-object",
                &format!("memory-backend-memfd,id=memory,size={MEMORY},share=on"),
            ])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.root)
            .args(["-append", &append])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-serial", &format!("file:{}", said.display())])
            .args([
                "-chardev",
                &format!("socket,id=disk,path={}", socket.display()),
            ])
            .args(["-device", "vhost-user-blk-pci,chardev=disk,num-queues=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let qemu = Qemu(command.spawn().context("cannot start qemu-system-x86_64")?);
        qemu.wait(PATIENCE + job.warm + job.span, stop)?;
        let told = fs::read_to_string(&said).context("cannot read what the guest said")?;
        heard(&told, job.jobs).with_context(|| {
            let tail = |path: &Path| {
                let text = fs::read(path).unwrap_or_default();
                let text = String::from_utf8_lossy(&text).trim_end().to_owned();
                let from = text.char_indices().rev().nth(600).map_or(0, |(at, _)| at);
                text[from..].to_owned()
            };
            format!(
                "the guest did not do its work; {} {}",
                tail(&errors),
                tail(&console)
            )
        })
    }
}

/// A running QEMU, which ends with this value.
struct Qemu(Child);

impl Qemu {
    fn wait(mut self, patience: Duration, stop: &AtomicBool) -> Result<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.0.try_wait().context("cannot wait for QEMU")? {
                return Ok(status);
            }
            if stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if Instant::now() > deadline {
                bail!("the guest did not end within {patience:?}");
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // Gone already, usually.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

/// Whether KVM takes a kernel to its end: one that has no root to go on with ends itself.
fn accelerates(kernel: &Path) -> bool {
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-nodefaults", "-no-user-config", "-no-reboot"])
        .args(["-display", "none", "-machine", "q35,accel=kvm,smm=off"])
        .args(["-cpu", "max", "-m", "128M", "-kernel"])
        .arg(kernel)
        .args(["-append", "quiet panic=-1"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let Ok(child) = command.spawn() else {
        return false;
    };
    let ended = Qemu(child).wait(PROBE, &AtomicBool::new(false));
    ended.is_ok_and(|status| status.success())
}

/// What a guest said, as figures.
fn heard(said: &str, jobs: u16) -> Result<Done> {
    let (_, rest) = said.split_once("[begin]").context("it said nothing")?;
    let (report, _) = rest.split_once("[done ").context("it was cut off")?;
    parse(report, jobs)
}

/// Where a kernel may be: where one is told, beside the build of a tree, on the host.
fn places(program: &Path) -> Vec<PathBuf> {
    let told = std::env::var_os(PLACE).map(PathBuf::from);
    let built = program
        .parent()
        .and_then(Path::parent)
        .map(|target| target.join("tmp/guest-kernel"));
    told.into_iter()
        .chain(built)
        .chain([PathBuf::from("/")])
        .collect()
}

/// The newest kernel in a place, with its modules.
fn kernel_in(place: &Path) -> Option<(PathBuf, PathBuf)> {
    let entries = fs::read_dir(place.join("boot")).ok()?.flatten();
    let mut found: Vec<(PathBuf, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let modules = place
                .join("lib/modules")
                .join(name.strip_prefix("vmlinuz-")?);
            (modules.is_dir() && File::open(entry.path()).is_ok()).then(|| (entry.path(), modules))
        })
        .collect();
    found.sort();
    found.pop()
}

fn pack(modules: &Path) -> Result<Vec<u8>> {
    let mut archive = Archive::default();
    for dir in ["proc", "sys", "dev", "tmp", "run"] {
        archive.dir(Path::new(dir));
    }
    archive.file(Path::new("init"), INIT.as_bytes());
    archive.copy(&program("busybox")?, Path::new("bin/busybox"))?;
    let fio = program("fio")?;
    archive.copy(&fio, Path::new("usr/bin/fio"))?;
    for library in libraries(&fio)? {
        let name = library
            .strip_prefix("/")
            .context("ldd prints whole paths")?;
        archive.copy(&library, name)?;
    }
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
        archive.copy(&source, &Path::new("modules").join(name))?;
        order += &format!("{}\n", name.to_string_lossy());
    }
    archive.file(Path::new("modules/order"), order.as_bytes());
    Ok(archive.finish())
}

/// Where a program is.
fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
    places
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is not installed"))
}

/// The libraries that a program is linked with, and the loader.
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

/// A file whose name begins so, compressed or not.
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
    fn what_a_guest_said_is_read_and_what_was_cut_off_is_an_error() {
        let report = r#"{"jobs": [{"error": 0, "usr_cpu": 1.0, "sys_cpu": 1.0, "mixed": {"iops": 100.0,
            "clat_ns": {"percentile": {"50.000000": 1000, "99.000000": 2000, "99.900000": 3000}}}}]}"#;
        let done = heard(&format!("[begin]\n{report}\n[done 0]\n"), 1).expect("a report");
        assert_eq!(done.iops, 100.0);
        heard("[begin]\n{\"jobs\"", 1).expect_err("cut off");
        heard("", 1).expect_err("nothing");
    }
}
