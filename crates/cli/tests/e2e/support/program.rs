//! Other people's programs, run with a deadline, and what they said when they are not content.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use super::transcript::Transcript;

/// Longer than any client here takes on a busy machine of two cores; a hang is told from slowness by it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Which Debian package a program comes from, as `cargo xtask test` installs them.
const PACKAGES: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("chromedriver", "chromium-driver"),
    ("chromium", "chromium"),
    ("cmp", "diffutils"),
    ("e2fsck", "e2fsprogs"),
    ("fio", "fio"),
    ("initdb", "postgresql"),
    ("kill", "procps"),
    ("losetup", "mount"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mount", "mount"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdkit", "nbdkit"),
    ("nbdsh", "python3-libnbd"),
    ("openssl", "openssl"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("runuser", "util-linux"),
    ("prlimit", "util-linux"),
    ("setpriv", "util-linux"),
    ("umount", "mount"),
];

/// Where a program lies; fails the test with what to install when it does not.
pub(crate) fn find(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // mkfs and losetup are not on an ordinary user's path.
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    for dir in places {
        let program = dir.join(name);
        if program.is_file() {
            return program;
        }
    }
    missing(name)
}

/// Debian's nbdsh with Debian's Python: another one, earlier on the path, would not know its module.
pub(crate) fn nbdsh() -> Program {
    Program::new("nbdsh").env("PATH", "/usr/bin:/bin")
}

/// Runs a script on an export; what it prints.
pub(crate) fn nbdsh_on(uri: &str, script: &str) -> String {
    nbdsh().args(["-u", uri, "-c", script]).run()
}

/// Fails the test, saying what to install for `name`.
pub(crate) fn missing(name: &str) -> ! {
    let package = PACKAGES.iter().find(|(program, _)| *program == name);
    let package = package.map_or(name, |(_, package)| *package);
    panic!("{name} is needed: install the Debian package {package} (`cargo xtask test` does)");
}

/// A program to be run to its end.
pub(crate) struct Program {
    name: String,
    command: Command,
}

impl Program {
    /// To be found on the path.
    pub(crate) fn new(name: &str) -> Program {
        Program::at(find(name)).called(name)
    }

    /// Which lies at `path`.
    pub(crate) fn at(path: impl AsRef<OsStr>) -> Program {
        let name = path.as_ref().to_string_lossy().into_owned();
        let mut command = Command::new(find("timeout"));
        command
            .arg("--kill-after=5")
            .arg(PATIENCE.as_secs().to_string())
            .arg(path);
        command.stdin(Stdio::null());
        Program { name, command }
    }

    fn called(mut self, name: &str) -> Program {
        self.name = name.to_owned();
        self
    }

    /// One more argument.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Program {
        self.command.arg(arg);
        self
    }

    /// More arguments.
    pub(crate) fn args<I: IntoIterator<Item: AsRef<OsStr>>>(mut self, args: I) -> Program {
        self.command.args(args);
        self
    }

    /// A variable of its environment.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Program {
        self.command.env(name, value);
        self
    }

    /// Where it runs.
    pub(crate) fn within(mut self, directory: &Path) -> Program {
        self.command.current_dir(directory);
        self
    }

    /// Runs it, whatever becomes of it.
    pub(crate) fn output(mut self) -> Output {
        self.command
            .output()
            .unwrap_or_else(|error| panic!("{} does not run: {error}", self.name))
    }

    /// Runs it; fails the test unless it is content. What it printed.
    pub(crate) fn run(self) -> String {
        let name = self.name.clone();
        let output = self.output();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return said;
        }
        let complaint = String::from_utf8_lossy(&output.stderr);
        let late = if output.status.code() == Some(124) {
            " (deadline passed)"
        } else {
            ""
        };
        panic!(
            "{name} failed, {}{late}:\n{said}\n{complaint}",
            output.status
        );
    }
}

/// A program that stays until it is stopped; killed with the test's thread, whatever happens.
pub(crate) struct Service {
    child: Child,
    /// What it says.
    pub(crate) said: Transcript,
}

impl Service {
    /// Starts `program` with `args` and `env`.
    pub(crate) fn start(
        name: &str,
        program: &OsStr,
        args: &[String],
        env: &[(&str, String)],
    ) -> Service {
        let said = Transcript::new(name);
        Service::start_again(&said, program, args, env)
    }

    /// As [`Service::start`], going on in the transcript of the one before.
    pub(crate) fn start_again(
        said: &Transcript,
        program: &OsStr,
        args: &[String],
        env: &[(&str, String)],
    ) -> Service {
        let mut command = Command::new(find("setpriv"));
        command
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(args);
        command.envs(env.iter().map(|(name, value)| (name, value)));
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
        said.listen(child.stdout.take().expect("stdout was asked for"));
        said.listen(child.stderr.take().expect("stderr was asked for"));
        Service {
            child,
            said: said.clone(),
        }
    }

    /// Asks it to stop with a signal, as `kill -NAME` does, and waits until it has.
    pub(crate) fn stop(&mut self, signal: &str) -> ExitStatus {
        Program::new("kill")
            .arg(format!("-{signal}"))
            .arg(self.child.id().to_string())
            .run();
        self.end()
    }

    /// Its process's number.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended by itself.
    pub(crate) fn end(&mut self) -> ExitStatus {
        self.said.wait_until_over(PATIENCE);
        self.child.wait().expect("a child can be waited for")
    }

    /// Whether it still runs.
    pub(crate) fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// `kill -9`: not a byte more is written by it when this returns.
    pub(crate) fn kill(&mut self) {
        // Both fail only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            self.said.print_tail();
        }
    }
}
