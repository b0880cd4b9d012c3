//! A stock QEMU guest under TCG whose disk is a vhost-user-blk device, and a shell in it.
//!
//! The test says [`Guest::run`] and gets what the command printed; a command that fails fails the test. QEMU is
//! told to connect again once a second when the server goes away, as libvirt's users would configure it.
//!
//! # Always true
//! - Every wait has a deadline; QEMU dies with its guard, and then the consoles are printed if the test failed.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::initramfs;
use super::place::Place;
use super::post_mortem;
use super::program::{PATIENCE, Service, find};
use super::transcript::Transcript;

/// Prints the guest's memory in KiB.
const MEMORY: &str = "awk '/MemTotal/ {print $2}' /proc/meminfo";

/// How long [`Guest::eventually`] waits between two attempts.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(50);

/// What a guest is made of.
pub(crate) struct Hardware<'a> {
    /// The socket of each vhost-user-blk server; the first is `/dev/vda`.
    pub(crate) disks: &'a [&'a Path],
    /// Virtual CPUs; the disk has as many queues.
    pub(crate) cpus: u32,
}

/// A running guest.
pub(crate) struct Guest {
    shell: Line,
    pub(super) monitor: Line,
    // Last: its own drop is to print what the console said after the others'.
    pub(super) qemu: Service,
    pub(super) commands: u32,
}

/// One line of conversation with QEMU or with the guest.
pub(super) struct Line {
    stream: UnixStream,
    pub(super) said: Transcript,
}

impl Line {
    fn answered(name: &str, listener: &mpsc::Receiver<UnixStream>) -> Line {
        let stream = listener
            .recv_timeout(PATIENCE)
            .unwrap_or_else(|_| panic!("QEMU never opened its {name}; see what it said"));
        let said = Transcript::new(name);
        said.listen(stream.try_clone().expect("a socket can be duplicated"));
        Line { stream, said }
    }

    fn say(&mut self, words: &str) {
        if let Err(error) = self.stream.write_all(words.as_bytes()) {
            self.said.print_tail();
            panic!("QEMU hung up: {error}");
        }
    }
}

impl Guest {
    /// Boots one, and waits for its shell.
    pub(crate) fn boot(place: &Place, hardware: &Hardware) -> Guest {
        let guest = Guest::power_on(place, hardware, "512M", &[]);
        guest.wait_for_boot(0);
        guest
    }

    /// Starts QEMU with that much memory, in QEMU's words, and with `more` arguments.
    pub(super) fn power_on(
        place: &Place,
        hardware: &Hardware,
        memory: &str,
        more: &[&str],
    ) -> Guest {
        let boot = initramfs::boot();
        let shell = listen(&place.join("shell"));
        let monitor = listen(&place.join("monitor"));
        let mut args = words(
            "-nodefaults -no-user-config -display none -cpu max \
             -machine q35,accel=tcg,memory-backend=memory,smm=off",
        );
        args.extend(["-m".to_owned(), format!("{memory},slots=2,maxmem=1G")]);
        args.push("-object".to_owned());
        args.push(format!(
            "memory-backend-memfd,id=memory,size={memory},share=on"
        ));
        args.extend(more.iter().map(|&word| word.to_owned()));
        args.extend(["-smp".to_owned(), hardware.cpus.to_string()]);
        args.extend(["-kernel".to_owned(), boot.kernel.display().to_string()]);
        args.extend(["-initrd".to_owned(), boot.initramfs.display().to_string()]);
        args.extend(words("-append"));
        // Linux looks at boot whether its timer ticks in time, and gives up one that does not: an emulated processor may
        // only not have been run meanwhile.
        let kernel = "console=ttyS0 quiet panic=-1 nokaslr mitigations=off no_timer_check rdinit=/init \
             unknown_nmi_panic panic_print=0x41";
        args.push(kernel.to_owned());
        args.extend(words("-serial stdio"));
        args.extend([
            "-chardev".to_owned(),
            format!("socket,id=shell,path={}", place.join("shell").display()),
        ]);
        args.extend(words("-device virtio-serial-pci,max_ports=2"));
        args.extend(words("-device virtserialport,chardev=shell"));
        args.extend([
            "-qmp".to_owned(),
            format!("unix:{}", place.join("monitor").display()),
        ]);
        for (slot, socket) in hardware.disks.iter().enumerate() {
            args.push("-chardev".to_owned());
            args.push(format!(
                "socket,id=socket{slot},path={},reconnect=1",
                socket.display()
            ));
            args.push("-device".to_owned());
            args.push(format!(
                "pcie-root-port,id=port{slot},chassis={slot},slot={slot}"
            ));
            args.push("-device".to_owned());
            args.push(format!(
                "vhost-user-blk-pci,id=disk{slot},chardev=socket{slot},bus=port{slot},num-queues={}",
                hardware.cpus
            ));
        }
        let qemu = find("qemu-system-x86_64");
        let qemu = Service::start("the guest's console", qemu.as_os_str(), &args, &[]);
        let monitor = Line::answered("monitor", &monitor);
        let shell = Line::answered("shell", &shell);
        let mut guest = Guest {
            qemu,
            shell,
            monitor,
            commands: 0,
        };
        guest.qmp("qmp_capabilities", "{}");
        guest
    }

    pub(super) fn wait_for_boot(&self, mark: usize) {
        self.shell
            .said
            .wait("shell in the guest", mark, PATIENCE, |said| {
                said.find("[booted]\n")
            });
    }

    /// Runs a line of shell in the guest; fails the test unless it succeeds. What it printed.
    pub(crate) fn run(&mut self, command: &str) -> String {
        let (code, said) = self.attempt(command, PATIENCE);
        assert_eq!(code, 0, "in the guest, `{command}` failed:\n{said}");
        said
    }

    /// Runs a line of shell in the guest: its exit code, and what it printed.
    pub(crate) fn attempt(&mut self, command: &str, patience: Duration) -> (i32, String) {
        self.commands += 1;
        let number = self.commands;
        let mark = self.shell.said.mark();
        self.shell.say(&format!(
            "( {command} ) >/run/said 2>&1 </dev/null; code=$?; cat /run/said; echo \"[done {number} $code]\"\n"
        ));
        let done = format!("[done {number} ");
        let what = format!("end of `{command}` in the guest");
        let end = |said: &str| {
            let (output, rest) = said.split_once(&done)?;
            let (code, _) = rest.split_once("]\n")?;
            let said = output.replace('\r', "").trim_end().to_owned();
            Some((code.parse().ok()?, said))
        };
        let complaint = match self.shell.said.try_wait(&what, mark, patience, end) {
            Ok(ended) => return ended,
            Err(complaint) => complaint,
        };
        let told = post_mortem::of(self);
        panic!("{told}\n{complaint}");
    }

    /// Runs a line of shell again and again until it succeeds.
    pub(crate) fn eventually(&mut self, command: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.attempt(command, PATIENCE).0 != 0 {
            assert!(
                Instant::now() < deadline,
                "in the guest, `{command}` never succeeded"
            );
            // To ask is work for an emulated processor: what is waited for needs it.
            self.shell.said.pause(BETWEEN_ATTEMPTS);
        }
    }

    /// Presses the reset button, and waits for the shell of the new boot.
    pub(crate) fn reset(&mut self) {
        let mark = self.shell.said.mark();
        self.qmp("system_reset", "{}");
        self.wait_for_boot(mark);
    }

    /// Takes the disk in a slot away, as an operator would; returns when the guest has let go of it.
    pub(crate) fn unplug(&mut self, slot: usize) {
        let mark = self.monitor.said.mark();
        self.qmp("device_del", &format!(r#"{{"id": "disk{slot}"}}"#));
        let gone = format!(r#""device": "disk{slot}""#);
        self.monitor
            .said
            .wait("DEVICE_DELETED", mark, PATIENCE, |said| {
                said.lines()
                    .find(|l| l.contains("DEVICE_DELETED") && l.contains(&gone))
                    .map(drop)
            });
        self.qmp("chardev-remove", &format!(r#"{{"id": "socket{slot}"}}"#));
    }

    /// Puts a disk into a slot.
    pub(crate) fn plug(&mut self, slot: usize, socket: &Path) {
        let address = format!(
            r#"{{"type": "unix", "data": {{"path": "{}"}}}}"#,
            socket.display()
        );
        self.qmp(
            "chardev-add",
            &format!(
                r#"{{"id": "socket{slot}", "backend": {{"type": "socket", "data":
                {{"addr": {address}, "server": false, "reconnect": 1}}}}}}"#
            ),
        );
        self.qmp(
            "device_add",
            &format!(
                r#"{{"driver": "vhost-user-blk-pci", "id": "disk{slot}",
                "chardev": "socket{slot}", "bus": "port{slot}"}}"#
            ),
        );
    }

    /// Plugs more memory into the running guest, and waits until its kernel uses it.
    pub(crate) fn add_memory(&mut self, mib: u64) {
        self.qmp(
            "object-add",
            &format!(
                r#"{{"qom-type": "memory-backend-memfd", "id": "more", "size": {}, "share": true}}"#,
                mib << 20
            ),
        );
        let before: u64 = self
            .run(MEMORY)
            .parse()
            .expect("the kernel counts in numbers");
        self.qmp(
            "device_add",
            r#"{"driver": "pc-dimm", "id": "dimm", "memdev": "more"}"#,
        );
        self.eventually(&format!(
            "for block in /sys/devices/system/memory/memory*/state; do \
             grep -q online $block || echo online >$block; done; [ $({MEMORY}) -gt {} ]",
            before + mib * 1000
        ));
    }

    /// What the guest's kernel complained about, of disks and of everything that stands on them.
    pub(crate) fn complaints(&mut self) -> String {
        self.run("dmesg | grep -iE 'I/O error|blocked for more|EXT4-fs (error|warning)|aborted|BUG:|call trace' || true")
    }

    pub(super) fn qmp(&mut self, verb: &str, arguments: &str) -> String {
        self.try_qmp(verb, arguments, PATIENCE)
            .unwrap_or_else(|complaint| panic!("{complaint}"))
    }

    /// As [`Guest::qmp`], but says why not when QEMU refuses or does not answer.
    pub(super) fn try_qmp(
        &mut self,
        verb: &str,
        arguments: &str,
        patience: Duration,
    ) -> Result<String, String> {
        let mark = self.monitor.said.mark();
        let arguments = arguments.replace('\n', " ");
        let words = format!("{{\"execute\": \"{verb}\", \"arguments\": {arguments}}}\n");
        let asked = self.monitor.stream.write_all(words.as_bytes());
        asked.map_err(|error| format!("QEMU hung up before {verb}: {error}"))?;
        let answer = self.monitor.said.try_wait(verb, mark, patience, |said| {
            // The last line may be half of one.
            let whole = &said[..said.rfind('\n')?];
            whole
                .lines()
                .find(|l| l.starts_with("{\"return\"") || l.starts_with("{\"error\""))
                .map(str::to_owned)
        })?;
        if answer.starts_with("{\"return\"") {
            Ok(answer)
        } else {
            Err(format!("QEMU refuses {verb} {arguments}: {answer}"))
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shell.said.print_tail();
            self.monitor.said.print_tail();
        }
    }
}

/// Listens before QEMU starts, so that nobody waits for a socket to appear.
fn listen(path: &Path) -> mpsc::Receiver<UnixStream> {
    let listener = UnixListener::bind(path)
        .unwrap_or_else(|error| panic!("{} cannot be bound: {error}", path.display()));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            // Nobody receives when the test has given up already.
            let _ = sender.send(stream);
        }
    });
    receiver
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}
