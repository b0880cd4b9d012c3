//! A QEMU guest that runs fio once on its vhost-user disk, prints the result, and ends.
//!
//! Its root ([`tidegate_testing::initramfs`]) has busybox and fio, so that nothing has to be installed in a guest. The kernel's last arguments
//! are fio's, and `init` gets them.
//!
//! # Always true
//! - QEMU ends with its trial, also when that is interrupted.
//! - Whether the processor was emulated is reported: without KVM figures are of QEMU and not of the disk.
//!
//! # Picture
//! ```text
//! ttyS0  kernel's messages -> console
//! ttyS1  what fio reported, between [begin] and [done CODE] -> said
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::there;
use crate::fio::{Done, Job, parse};
use tidegate_testing::initramfs::{Kernel, Root};

/// A guest without KVM needs about so long until it works, and as long again to be gone.
pub(super) const BOOTS: Duration = Duration::from_secs(10);
/// The longest time until it has ended.
const TIMEOUT: Duration = Duration::from_secs(90);
/// With KVM a kernel without anything to do is gone in a second or two; where it is not, KVM is there and does not work.
const PROBE: Duration = Duration::from_secs(15);
/// How often it is checked whether it has ended.
const LOOK: Duration = Duration::from_millis(20);
/// Its disk.
pub(super) const DISK: &str = "/dev/vda";
/// Where a kernel may be, besides the host's own: a directory with `boot/` and `lib/modules/`.
const PLACE: &str = "TIDEGATE_GUEST_KERNEL";
/// Memory, as QEMU writes it.
const MEMORY: &str = "384M";

/// What its shell does, once there is a disk.
const INIT: &str = r#"until [ -b /dev/vda ]; do sleep 0.1; done
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
        let kernel = places.iter().find_map(|place| Kernel::newest_in(place));
        let kernel = kernel.with_context(|| {
            let boot = places.iter();
            let boot = boot.map(|place| place.join("boot").display().to_string());
            let boot = boot.collect::<Vec<_>>().join(", ");
            format!("there is no kernel for a guest in {boot}; {PLACE} may name another place")
        })?;
        let root = scratch.join("guest-root");
        let packed = pack(&kernel).context("cannot pack a guest's root")?;
        fs::write(&root, packed).with_context(|| format!("cannot write {}", root.display()))?;
        let kvm = File::options().read(true).write(true).open("/dev/kvm");
        let accelerator = match kvm.is_ok() && accelerates(&kernel.image) {
            true => "kvm",
            false => "tcg",
        };
        Ok(Kit {
            kernel: kernel.image,
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
        let machine = format!(
            "q35,accel={},memory-backend=memory,smm=off",
            self.accelerator
        );
        let memory = format!("memory-backend-memfd,id=memory,size={MEMORY},share=on");
        let disk = format!("socket,id=disk,path={}", socket.display());
        let mut command = Command::new("taskset");
        command
            .args(["--cpu-list", &cpu.to_string(), "qemu-system-x86_64"])
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-cpu", "max", "-machine", &machine])
            .args(["-m", MEMORY, "-smp", "1", "-object", &memory])
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(&self.root)
            .args(["-append", &append])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-serial", &format!("file:{}", said.display())])
            .args(["-chardev", &disk])
            .args(["-device", "vhost-user-blk-pci,chardev=disk,num-queues=1"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let qemu = Qemu(command.spawn().context("cannot start qemu-system-x86_64")?);
        qemu.wait(TIMEOUT + job.warm + job.span, stop)?;
        let output = fs::read_to_string(&said).context("cannot read the guest's output")?;
        parse_output(&output, job.jobs).with_context(|| {
            let tail = |path: &Path| {
                let text = fs::read(path).unwrap_or_default();
                let text = String::from_utf8_lossy(&text).trim_end().to_owned();
                let from = text.char_indices().rev().nth(600).map_or(0, |(at, _)| at);
                text[from..].to_owned()
            };
            let (errors, console) = (tail(&errors), tail(&console));
            format!("the guest did not do its work; {errors} {console}")
        })
    }
}

/// A running QEMU, which ends with this value.
struct Qemu(Child);

impl Qemu {
    fn wait(mut self, timeout: Duration, stop: &AtomicBool) -> Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.0.try_wait().context("cannot wait for QEMU")? {
                return Ok(status);
            }
            if stop.load(Ordering::Relaxed) {
                bail!("interrupted");
            }
            if Instant::now() >= deadline {
                bail!("the guest did not end within {timeout:?}");
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
    let child = command.spawn();
    child.is_ok_and(|child| {
        let ended = Qemu(child).wait(PROBE, &AtomicBool::new(false));
        ended.is_ok_and(|status| status.success())
    })
}

/// A guest's output as figures.
fn parse_output(said: &str, jobs: u16) -> Result<Done> {
    let (_, rest) = said.split_once("[begin]").context("it said nothing")?;
    let (report, _) = rest.split_once("[done ").context("it was cut off")?;
    parse(report, jobs)
}

/// Where a kernel may be: where the environment says, beside the build of a tree, on the host.
fn places(program: &Path) -> Vec<PathBuf> {
    let named = std::env::var_os(PLACE).map(PathBuf::from);
    let target = program.parent().and_then(Path::parent);
    let built = target.map(|target| target.join("tmp/guest-kernel"));
    let host = Some(PathBuf::from("/"));
    [named, built, host].into_iter().flatten().collect()
}

fn pack(kernel: &Kernel) -> Result<Vec<u8>> {
    let mut root = Root::new(kernel, &program("busybox")?, INIT)?;
    root.program(&program("fio")?)?;
    Ok(root.finish())
}

/// Where a program is.
fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|dir| dir.join(name));
    places
        .find(|path| path.is_file())
        .with_context(|| format!("{name} is not installed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(command: &[&str]) -> Qemu {
        let mut child = Command::new(command[0]);
        child.args(&command[1..]).stdin(Stdio::null());
        Qemu(child.spawn().expect("it is there"))
    }

    #[test]
    fn the_end_of_a_process_is_waited_for_and_one_that_does_not_end_is_given_up() {
        let (go, stop) = (AtomicBool::new(false), AtomicBool::new(true));
        let ended = running(&["sh", "-c", "exit 3"]).wait(TIMEOUT, &go);
        assert_eq!(ended.expect("it ended").code(), Some(3));
        let forever = || running(&["sleep", "infinity"]);
        let late = forever().wait(Duration::from_millis(1), &go);
        let late = late.expect_err("it does not end").to_string();
        assert!(late.contains("did not end within 1ms"), "{late}");
        let interrupted = forever().wait(TIMEOUT, &stop);
        let interrupted = interrupted.expect_err("it is to stop").to_string();
        assert_eq!(interrupted, "interrupted");
    }

    #[test]
    fn what_a_guest_said_is_read_and_what_was_cut_off_is_an_error() {
        let report = r#"{"jobs": [{"error": 0, "usr_cpu": 1.0, "sys_cpu": 1.0, "mixed": {"iops": 100.0,
            "clat_ns": {"percentile": {"50.000000": 1000, "99.000000": 2000, "99.900000": 3000}}}}]}"#;
        let done = parse_output(&format!("[begin]\n{report}\n[done 0]\n"), 1).expect("a report");
        assert_eq!(done.iops, 100.0);
        parse_output("[begin]\n{\"jobs\"", 1).expect_err("cut off");
        parse_output("", 1).expect_err("nothing");
    }
}
