//! `tidegate mount`: the control tree as files, by FUSE.
//!
//! The program mounts, serves the kernel's requests from the daemon's REST interface ([`files`]), and unmounts when it is
//! interrupted or when somebody unmounts the directory. The daemon knows nothing of it: a mount that dies is a client
//! that has gone.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueHint};
use fuser::{Config, MountOption, Session as Mounted, SessionUnmounter};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_api::routes;

use crate::client::Client;
use crate::failure::Failure;
use crate::session::Session;

mod files;

use files::Files;

/// The device through which the kernel speaks with us.
const DEVICE: &str = "/dev/fuse";

/// Threads that answer the kernel: a daemon that hangs in one request does not stop the others.
const THREADS: usize = 4;

/// Mount the control tree as files
///
/// The files behave as those of /sys: a read is the whole value, and a write takes effect before it is answered. Only the user
/// who mounts them can use them. The command runs in the foreground, and unmounts when it is interrupted. It needs FUSE
/// (/dev/fuse), and either root or the program fusermount3.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tidegate mount /run/tidegate/control
  tidegate mount ~/control & sleep 1; cat ~/control/thread/0/state; echo 1 > ~/control/device/db1/thread")]
pub(crate) struct Mount {
    /// An existing directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    directory: PathBuf,
}

impl Mount {
    /// Runs the verb.
    pub(crate) fn run(self, session: &Session) -> Result<(), Failure> {
        let directory = &self.directory;
        let client = session.client()?;
        // A mount of a daemon that is not there would only have errors.
        client.look(routes::TREE, &[""])?;
        check(directory)?;
        // Registered first: a signal in between must not leave a mount behind.
        let signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
            .map_err(|e| Failure::io("cannot wait for signals", &e))?;
        let mut mounted = mount(client, directory)?;
        unmount_at(signals, mounted.unmount_callable(), directory)?;
        session.console.say(&format!(
            "the control tree is mounted at {}; interrupt to unmount it",
            directory.display()
        ));
        mounted
            .run()
            .map_err(|e| Failure::io(format!("the mount at {} broke", directory.display()), &e))
    }
}

fn mount(client: Client, directory: &Path) -> Result<Mounted<Files>, Failure> {
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config.mount_options = vec![
        MountOption::FSName("tidegate".to_owned()),
        MountOption::Subtype("tidegate".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoExec,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoAtime,
    ];
    Mounted::new(Files::new(client), directory, &config).map_err(|e| unmounted(directory, &e))
}

/// Unmounts at the first of these signals. Programs that still have files open there get errors from then on.
fn unmount_at(
    mut signals: Signals,
    mut mount: SessionUnmounter,
    directory: &Path,
) -> Result<(), Failure> {
    let directory = directory.to_owned();
    let wait = move || {
        if signals.forever().next().is_none() || mount.unmount().is_ok() {
            return;
        }
        // Somebody uses it. It leaves the file system now, and ends with this process.
        let lazily = Command::new("umount").arg("-l").arg(&directory).status();
        let is_gone = lazily.is_ok_and(|status| status.success());
        if !is_gone {
            eprintln!("it is still mounted: umount -l {}", directory.display());
        }
        std::process::exit(i32::from(!is_gone));
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)
        .map(drop)
        .map_err(|e| Failure::io("cannot wait for signals", &e))
}

/// Refuses what would fail later with an error that says less.
fn check(directory: &Path) -> Result<(), Failure> {
    let shown = directory.display();
    let failed = |why: String, remedy: String| {
        let what = format!("cannot mount the control tree at {shown}");
        Err(Failure::Failed(
            Problem::new(ProblemCode::Unsupported, what)
                .because(why)
                .remedy(remedy),
        ))
    };
    match fs::metadata(directory) {
        Ok(found) if found.is_dir() => {
            if let Some(place) = mount_around(directory) {
                let place = place.display();
                return failed(
                    format!("the control tree is mounted already at {place}"),
                    format!(
                        "use that one, or unmount it first: umount {place}, or as another user than root: fusermount3 -u {place}"
                    ),
                );
            }
        }
        Ok(_) => {
            return failed(
                "it is not a directory".to_owned(),
                "name a directory".to_owned(),
            );
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return failed(error.to_string(), format!("create it: mkdir -p {shown}"));
        }
        Err(error) if error.kind() == io::ErrorKind::NotConnected => {
            return Err(unmounted(directory, &error));
        }
        Err(error) => return failed(error.to_string(), "name another directory".to_owned()),
    }
    match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(_) => Ok(()),
        Err(error) => match lacking(error.kind()) {
            Some((why, remedy)) => failed(why.to_owned(), remedy.to_owned()),
            None => failed(format!("{DEVICE}: {error}"), lacking_device().1.to_owned()),
        },
    }
}

/// Where the control tree of this or another daemon is mounted, if this directory is that place or within it.
fn mount_around(directory: &Path) -> Option<PathBuf> {
    // Where nothing says what is mounted, the kernel decides.
    let mounts = fs::read("/proc/self/mountinfo").ok()?;
    let directory = directory.canonicalize().ok()?;
    let mut places = directory.ancestors();
    let place = places.find(|place| is_among(place.as_os_str().as_bytes(), &mounts));
    place.map(Path::to_path_buf)
}

/// Whether `mounts`, in the form of mountinfo, has the control tree at this path.
fn is_among(path: &[u8], mounts: &[u8]) -> bool {
    let escaped: Vec<u8> = path
        .iter()
        .flat_map(|byte| match byte {
            b' ' | b'\t' | b'\n' | b'\\' => format!("\\{byte:03o}").into_bytes(),
            byte => vec![*byte],
        })
        .collect();
    mounts.split(|byte| *byte == b'\n').any(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let place = words.nth(4);
        let mut source = words.skip_while(|word| *word != b"-").skip(1);
        // `fuse`, or `fuse.tidegate` by fusermount3.
        let is_fuse = source.next().is_some_and(|kind| kind.starts_with(b"fuse"));
        place == Some(&escaped[..]) && is_fuse && source.next() == Some(b"tidegate")
    })
}

/// What is missing if the device cannot be opened, and what to do.
fn lacking(error: io::ErrorKind) -> Option<(&'static str, &'static str)> {
    match error {
        io::ErrorKind::NotFound => Some(lacking_device()),
        io::ErrorKind::PermissionDenied => Some((
            "this user may not open /dev/fuse",
            "run it as root, or let everybody open the device as most systems do: chmod 666 /dev/fuse",
        )),
        _ => None,
    }
}

fn lacking_device() -> (&'static str, &'static str) {
    (
        "this system has no FUSE: there is no /dev/fuse",
        "load it (modprobe fuse); in a container, pass the device (--device /dev/fuse --cap-add SYS_ADMIN); without FUSE use \
         tidegate get and tidegate set",
    )
}

/// Why the kernel or fusermount3 did not mount.
fn unmounted(directory: &Path, error: &io::Error) -> Failure {
    let what = format!("cannot mount the control tree at {}", directory.display());
    if error.kind() == io::ErrorKind::NotConnected {
        let shown = directory.display();
        let problem = Problem::new(ProblemCode::Busy, what)
            .because("a mount is there whose program has died")
            .remedy(format!(
                "unmount it: umount {shown}, or as another user than root: fusermount3 -u {shown}"
            ));
        return Failure::Failed(problem);
    }
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "run it as root with the capability SYS_ADMIN (in a container: --cap-add SYS_ADMIN); other users need fusermount3 \
             (package fuse3)"
        }
        io::ErrorKind::NotFound => {
            "install fusermount3 (package fuse3), or run it as root with the capability SYS_ADMIN (in a container: --cap-add \
             SYS_ADMIN)"
        }
        _ => "see the kernel's log (dmesg); without a mount use tidegate get and tidegate set",
    };
    let problem = Problem::new(ProblemCode::Unsupported, what);
    let problem = match error.kind() {
        // The directory exists, so it is the helper program that does not.
        io::ErrorKind::NotFound => {
            problem.because("this process may not mount by itself, and there is no fusermount3")
        }
        _ => problem.because(error),
    };
    Failure::Failed(problem.remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_for_a_mount_is_said_with_what_to_do() {
        let (why, remedy) = lacking(io::ErrorKind::NotFound).unwrap();
        assert!(why.contains("/dev/fuse") && remedy.contains("modprobe fuse"));
        let (why, remedy) = lacking(io::ErrorKind::PermissionDenied).unwrap();
        assert!(why.contains("may not open") && remedy.contains("root"));
        let refused = io::Error::from(io::ErrorKind::PermissionDenied);
        let failure = unmounted(Path::new("/mnt"), &refused);
        let problem = failure.problem().unwrap();
        assert!(problem.what.contains("/mnt"));
        assert!(problem.remedy.as_ref().unwrap().contains("SYS_ADMIN"));
        let helper = io::Error::from(io::ErrorKind::NotFound);
        let failure = unmounted(Path::new("/mnt"), &helper);
        assert!(failure.problem().unwrap().why[0].contains("no fusermount3"));
    }

    #[test]
    fn a_control_tree_that_is_mounted_is_found_by_its_path() {
        let mounts = b"24 1 0:22 / /mnt/a rw,nosuid shared:5 - fuse.tidegate tidegate rw,user_id=0\n\
                       25 1 0:23 / /mnt/b rw - fuse.sshfs host: rw\n\
                       27 1 0:25 / /mnt/c rw - fuse tidegate rw\n\
                       28 1 0:26 / /mnt/d rw - tmpfs tidegate rw\n\
                       26 1 0:24 / /mnt/with\\040space rw shared:5 master:2 - fuse.tidegate tidegate rw\n";
        for (path, expected) in [
            ("/mnt/a", true),
            ("/mnt/with space", true),
            ("/mnt", false),
            ("/mnt/a/thread", false),
            ("/mnt/b", false),
            ("/mnt/c", true),
            ("/mnt/d", false),
        ] {
            assert_eq!(is_among(path.as_bytes(), mounts), expected, "{path}");
        }
        assert!(!is_among(b"/mnt/a", b"nonsense\n\n - -"));
    }

    #[test]
    fn a_place_that_is_no_directory_is_refused() {
        let there = tempfile::NamedTempFile::new().unwrap();
        let why = |path: &Path| match check(path) {
            Err(Failure::Failed(problem)) => problem.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(why(there.path()).contains("not a directory"));
        assert!(why(&there.path().with_extension("none")).contains("mkdir"));
    }
}
