//! Prerequisites of the tests: Debian packages, and a Debian kernel for the guest.
//!
//! The kernel is unpacked beside the tests' build rather than installed: the host's own boot is none of our
//! business.

use crate::command::{output, run, succeeds};
use anyhow::{Context, bail};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Each with what it is for.
const PACKAGES: &[(&str, &str)] = &[
    ("busybox-static", "the guest's user space"),
    ("chromium", "a browser for the dashboard"),
    ("chromium-driver", "drives the browser"),
    ("diffutils", "cmp, in the guest"),
    ("dpkg", "unpacks the guest's kernel"),
    (
        "e2fsprogs",
        "mkfs.ext4 and e2fsck, on the host and in the guest",
    ),
    ("fio", "verifying load"),
    ("fonts-dejavu-core", "what the browser writes with"),
    ("libnbd-bin", "nbdinfo, nbdcopy, nbdfuse"),
    ("mount", "losetup, for the database's file system"),
    (
        "nbdkit",
        "an upstream NBD server that writes down what it is asked",
    ),
    ("openssl", "certificates for NBD over TLS"),
    ("postgresql", "a database to run on a disk"),
    ("procps", "kill"),
    ("python3-libnbd", "nbdsh"),
    ("qemu-system-common", "qemu-storage-daemon"),
    ("qemu-system-x86", "the guest"),
    ("qemu-utils", "qemu-img, qemu-io, qemu-nbd"),
    ("util-linux", "setpriv, runuser"),
    ("valgrind", "counts the bench's instructions"),
];

/// The guest's kernel: Debian's for virtual machines, which is small and has all that a virtio disk needs.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Installs what is missing, or says how to.
pub(crate) fn install() -> anyhow::Result<()> {
    let missing: Vec<&str> = PACKAGES
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !installed(name))
        .collect();
    if missing.is_empty() {
        println!("  all {} are installed", PACKAGES.len());
        return Ok(());
    }
    for (name, why) in PACKAGES.iter().filter(|(name, _)| missing.contains(name)) {
        println!("  {name} is missing: {why}");
    }
    let by_hand = format!("apt-get install {}", missing.join(" "));
    if !succeeds(Command::new("apt-get").arg("--version")) {
        bail!(
            "this is no Debian: install the equivalents of {} by hand",
            missing.join(", ")
        );
    }
    if output(Command::new("id").arg("-u"))?.trim() != "0" {
        bail!("not root, so please run: sudo {by_hand}");
    }
    run(apt().arg("update"))?;
    run(apt()
        .args(["install", "--yes", "--no-install-recommends"])
        .args(&missing))
    .with_context(|| format!("try by hand: {by_hand}"))
}

/// Downloads and unpacks the guest's kernel, unless it is there.
pub(crate) fn fetch_kernel(target: &Path) -> anyhow::Result<()> {
    let dir = target.join("tmp/guest-kernel");
    if dir.join("boot").is_dir() {
        println!("  there already");
        return Ok(());
    }
    // Unpacked aside and renamed whole: an interrupted download must not look like a kernel.
    let aside = target.join("tmp/guest-kernel.new");
    let _ = fs::remove_dir_all(&aside);
    fs::create_dir_all(&aside).with_context(|| format!("{} cannot be made", aside.display()))?;
    let image = kernel_package().or_else(|_| {
        run(apt().arg("update"))?;
        kernel_package()
    })?;
    run(apt().current_dir(&aside).args(["download", &image]))?;
    let package = fs::read_dir(&aside)?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "deb"))
        .context("apt-get download leaves a .deb")?;
    run(Command::new("dpkg").arg("-x").arg(&package).arg(&aside))?;
    fs::remove_file(&package)?;
    fs::rename(&aside, &dir).with_context(|| format!("{} cannot be renamed", aside.display()))
}

/// The package that [`KERNEL`] stands for today.
fn kernel_package() -> anyhow::Result<String> {
    let depends = output(Command::new("apt-cache").args(["depends", KERNEL]))?;
    let depends = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    let mut images = depends.filter(|name| name.starts_with("linux-image-"));
    images.next().map(str::to_owned).with_context(|| {
        format!("apt knows no {KERNEL}: is this Debian on amd64, and did `apt-get update` work?")
    })
}

fn installed(package: &str) -> bool {
    let query = Command::new("dpkg-query")
        .args(["--show", "--showformat=${db:Status-Status}", package])
        .stderr(std::process::Stdio::null())
        .output();
    query.is_ok_and(|output| output.stdout == b"installed")
}

/// apt-get that asks nothing.
fn apt() -> Command {
    let mut command = Command::new("apt-get");
    command
        .env("DEBIAN_FRONTEND", "noninteractive")
        .arg("--quiet");
    command
}
