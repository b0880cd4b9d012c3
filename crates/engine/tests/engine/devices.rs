//! Tests of images on block devices: each has one writer, whatever node is used.

use super::rig::{image, tempdir};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tidegate_engine::Kind;
use tidegate_engine::datastore::dir;

fn run(program: &str, arguments: &[&str]) -> String {
    let done = Command::new(program).args(arguments).output();
    let done = done.expect("the program runs");
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

/// A loop device over a file.
struct Device(PathBuf);

impl Device {
    fn of(file: &Path) -> Device {
        let file = file.display().to_string();
        Device(run("losetup", &["--find", "--show", &file]).into())
    }

    /// Creates another node of the device.
    fn node(&self, path: &Path) {
        use std::os::unix::fs::MetadataExt;
        let number = std::fs::metadata(&self.0).expect("it exists").rdev();
        let (major, minor) = (libc::major(number), libc::minor(number));
        let path = path.display().to_string();
        run(
            "mknod",
            &[&path, "b", &major.to_string(), &minor.to_string()],
        );
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

fn opens(path: &Path, read_only: bool) -> Option<Kind> {
    let options = dir::Options {
        read_only,
        patience: Duration::ZERO,
        ..Default::default()
    };
    dir::open(path, options).err().map(|error| error.kind())
}

#[test]
fn a_device_is_opened_for_writing_once_whatever_node_is_used() {
    let place = tempdir();
    let device = Device::of(&image(place.path(), "image", 4 << 20));
    let other = place.path().join("other");
    device.node(&other);
    let held = dir::open(&device.0, dir::Options::default()).expect("it opens");
    for read_only in [false, true] {
        assert_eq!(opens(&other, read_only), Some(Kind::Busy));
    }
    drop(held);
    assert_eq!(opens(&other, false), None);
    // A reader does not exclude other readers.
    let options = dir::Options {
        read_only: true,
        ..Default::default()
    };
    let held = dir::open(&other, options).expect("it opens");
    assert_eq!(opens(&device.0, true), None);
    assert_eq!(opens(&device.0, false), Some(Kind::Busy));
    drop(held);
}

#[test]
fn a_mounted_device_is_not_written_to() {
    let place = tempdir();
    let file = image(place.path(), "image", 4 << 20);
    run("mkfs.ext4", &["-q", &file.display().to_string()]);
    let device = Device::of(&file);
    let at = place.path().join("mounted");
    std::fs::create_dir(&at).expect("a directory");
    let [node, at] = [&device.0, &at].map(|path| path.display().to_string());
    run("mount", &[&node, &at]);
    let refused = opens(&device.0, false);
    run("umount", &[&at]);
    assert_eq!(refused, Some(Kind::Busy));
    assert_eq!(opens(&device.0, false), None);
}
