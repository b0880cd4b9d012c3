//! Disks as files and devices of this machine, without a virtual machine: nbdfuse, loop devices, mounts. All need root.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::place::Place;
use super::program::{PATIENCE, Program, Service, find};

/// A disk as a file, by nbdfuse.
pub(crate) struct FuseFile {
    service: Service,
    pub(crate) dir: PathBuf,
}

impl FuseFile {
    /// Below the place's directory.
    pub(crate) fn mount(place: &Place, uri: &str) -> FuseFile {
        let dir = place.join("fuse");
        fs::create_dir_all(&dir).expect("a mount point can be made");
        let args = [format!("{}/disk", dir.display()), uri.to_owned()];
        let service = Service::start("nbdfuse", find("nbdfuse").as_os_str(), &args, &[]);
        let mut mounted = FuseFile { service, dir };
        let deadline = Instant::now() + PATIENCE;
        while !mounted.file().exists() {
            assert!(mounted.service.alive(), "nbdfuse ended before it mounted");
            assert!(Instant::now() < deadline, "nbdfuse never mounted");
            mounted.service.said.pause(Duration::from_millis(20));
        }
        mounted
    }

    /// Where it is.
    pub(crate) fn file(&self) -> PathBuf {
        self.dir.join("disk")
    }
}

impl Drop for FuseFile {
    fn drop(&mut self) {
        let _ = Program::new("umount").arg(&self.dir).output();
    }
}

/// A loop device.
pub(crate) struct Loop {
    pub(crate) device: String,
}

impl Loop {
    /// Over a file.
    pub(crate) fn on(file: &Path) -> Loop {
        Loop::with(file, &[])
    }

    /// The same with losetup's options besides.
    pub(crate) fn with(file: &Path, options: &[&str]) -> Loop {
        let device = Program::new("losetup")
            .args(["--find", "--show"])
            .args(options)
            .arg(file)
            .run();
        Loop {
            device: device.trim().to_owned(),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Program::new("losetup")
            .args(["--detach", &self.device])
            .output();
    }
}

/// A mounted file system.
pub(crate) struct Mount {
    pub(crate) dir: PathBuf,
}

impl Mount {
    /// Of what is on a device.
    pub(crate) fn at(dir: PathBuf, device: &str) -> Mount {
        fs::create_dir_all(&dir).expect("a mount point can be made");
        Program::new("mount").arg(device).arg(&dir).run();
        Mount { dir }
    }
}

impl Drop for Mount {
    /// A database is said to have stopped when its first process has gone: the others keep the file system busy for a
    /// moment longer.
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        let unmount = || Program::new("umount").arg(&self.dir).output();
        while !unmount().status.success() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
