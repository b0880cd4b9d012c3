//! Opens files beneath a directory without following links, since others may write there.
//!
//! Every host that shares a datastore can write to it. So the kernel resolves each path below the datastore's directory
//! with openat2: a path with a link in it is refused, and no path leads out of the directory. Slots, leases, disks'
//! directories, descriptors and images are opened here. The contents of the files do not matter here.
//!
//! # Always true
//! - the directory itself is opened by its given path, also through links; below it no link is followed
//! - only a regular file is opened: a FIFO cannot block the caller, and a device is not touched
//! - a read is bounded
//!
//! # Source
//! openat2(2), RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS.

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A directory; what is below it is untrusted.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// The directory at a path from an administrator. Links in the path are followed.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Folder(fs::openat(CWD, path, flags, Mode::empty())?))
    }

    /// A directory below this one.
    ///
    /// # Errors
    /// If there is none, or a link is in the path.
    pub fn folder(&self, path: impl AsRef<Path>) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        self.resolve(path.as_ref(), flags, Mode::empty())
            .map(Folder)
    }

    /// The directory with this name in this one, created if it is missing.
    ///
    /// # Errors
    /// If it cannot be created, or something else has that name.
    pub fn make_folder(&self, name: &str, mode: u32) -> io::Result<Folder> {
        match fs::mkdirat(&self.0, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => self.folder(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a directory in this one.
    ///
    /// # Errors
    /// If it cannot be created, or something has that name.
    pub fn new_folder(&self, name: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        Ok(fs::mkdirat(
            &self.0,
            name.as_ref(),
            Mode::from_raw_mode(mode),
        )?)
    }

    /// Opens a regular file. `mode` applies to a file that is created, with [`OFlags::CREATE`].
    ///
    /// # Errors
    /// If it cannot be opened, is not a regular file, or a link is in the path.
    pub fn open(&self, path: impl AsRef<Path>, flags: OFlags, mode: u32) -> io::Result<File> {
        let path = path.as_ref();
        // Checked first, because opening a device may have effects. A new file is no device.
        if !flags.contains(OFlags::EXCL) {
            match self.look(path) {
                Ok(stat) => must_be_plain(&stat)?,
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && flags.contains(OFlags::CREATE) => {}
                Err(error) => return Err(error),
            }
        }
        let mode = match flags.contains(OFlags::CREATE) {
            true => Mode::from_raw_mode(mode),
            false => Mode::empty(),
        };
        let file = File::from(self.resolve(path, flags | OFlags::NONBLOCK, mode)?);
        // Another host may have replaced the file since.
        must_be_plain(&fs::fstat(&file)?)?;
        if !flags.contains(OFlags::NONBLOCK) {
            // The kernel's ring would return EAGAIN where it ought to wait.
            let now = fs::fcntl_getfl(&file)?;
            fs::fcntl_setfl(&file, now - OFlags::NONBLOCK)?;
        }
        Ok(file)
    }

    /// A handle to an existing regular file, not opened for reading or writing. Even if the file is renamed,
    /// `/proc/self/fd` leads to it and to nothing else.
    ///
    /// # Errors
    /// If there is none, something else has that name, or a link is in the path.
    pub fn pin(&self, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
        let pinned = self.resolve(path.as_ref(), OFlags::PATH, Mode::empty());
        let pinned = pinned.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => no_plain_file(),
            _ => error,
        })?;
        must_be_plain(&fs::fstat(&pinned)?)?;
        Ok(pinned)
    }

    /// The content of a regular file: at most `most` bytes, and one more if the file is longer.
    ///
    /// # Errors
    /// As for [`Folder::open`], and if it cannot be read.
    pub fn read(&self, path: impl AsRef<Path>, most: usize) -> io::Result<Vec<u8>> {
        let file = self.open(path, OFlags::RDONLY, 0)?;
        let bound = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
        let mut bytes = Vec::new();
        file.take(bound).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// The status of anything at a path. A link at the end of the path is not followed, and is no error.
    ///
    /// # Errors
    /// If there is nothing, or a link is in the path.
    pub fn look(&self, path: impl AsRef<Path>) -> io::Result<Stat> {
        let path = path.as_ref();
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if parent != Path::new("") => (self.folder(parent)?, name),
            _ => return Ok(fs::statat(&self.0, path, AtFlags::SYMLINK_NOFOLLOW)?),
        };
        Ok(fs::statat(&parent.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Removes a file, or a link, from this directory.
    ///
    /// # Errors
    /// If it cannot be removed.
    pub fn remove_file(&self, name: impl AsRef<Path>) -> io::Result<()> {
        Ok(fs::unlinkat(&self.0, name.as_ref(), AtFlags::empty())?)
    }

    /// Renames a file or directory within this directory, and replaces an existing one.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        Ok(fs::renameat(&self.0, from.as_ref(), &self.0, to.as_ref())?)
    }

    /// Renames without replacing. If several hosts do so at once, one succeeds.
    ///
    /// # Errors
    /// If something has the new name, or the file cannot be renamed.
    pub fn rename_new(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        match fs::renameat_with(&self.0, from, &self.0, to, RenameFlags::NOREPLACE) {
            // Some file systems do not support that, NFS among them.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.rename_by_link(from, to),
            renamed => Ok(renamed?),
        }
    }

    /// Renames without replacing on a file system whose rename always replaces. A link never replaces, on any host.
    fn rename_by_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        match fs::linkat(&self.0, from, &self.0, to, AtFlags::empty()) {
            Ok(()) => {}
            // An NFS server may have made the link and lost its reply, so that the client repeated the request.
            Err(Errno::EXIST) if self.is_same(from, to) => {}
            // This file system has no links, so no other host shares it.
            Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return match self.look(to) {
                    Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    Err(_) => self.rename(from, to),
                };
            }
            Err(error) => return Err(error.into()),
        }
        // The file has its new name. A leftover old name does no harm.
        let _ = self.remove_file(from);
        Ok(())
    }

    fn is_same(&self, one: &Path, other: &Path) -> bool {
        match (self.look(one), self.look(other)) {
            (Ok(one), Ok(other)) => identity(&one) == identity(&other),
            _ => false,
        }
    }

    /// Creates a second name for a file in this directory.
    ///
    /// # Errors
    /// If something has that name, or the file system does not support it.
    pub fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        Ok(fs::linkat(&self.0, from, &self.0, to, AtFlags::empty())?)
    }

    /// Makes the names in this directory durable.
    ///
    /// # Errors
    /// If the file system does not support it.
    pub fn sync(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = self.resolve(Path::new("."), flags, Mode::empty())?;
        Ok(fs::fsync(folder)?)
    }

    /// A path to this directory while it is open, even if it is renamed: for calls of the standard library, with one
    /// name appended.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_fd().as_raw_fd()).into()
    }

    fn resolve(&self, path: &Path, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match fs::openat2(&self.0, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Ok(file) => Ok(file),
            Err(Errno::LOOP) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path contains a link, and links are not followed there",
            )),
            Err(Errno::XDEV) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it leads out of the datastore's directory",
            )),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether it is a regular file.
pub fn is_plain(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_file()
}

/// The identity of a file or directory while it exists: its file system's device and its inode.
pub fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn must_be_plain(stat: &Stat) -> io::Result<()> {
    match is_plain(stat) {
        true => Ok(()),
        false => Err(no_plain_file()),
    }
}

fn no_plain_file() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is not a plain file, and links are not followed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    /// A datastore `store` next to a directory `outside` that contains `secret`.
    fn place() -> (tempfile::TempDir, Folder) {
        let place = tempfile::tempdir().expect("a directory");
        let at = |name: &str| place.path().join(name);
        std::fs::create_dir_all(at("store/disk")).expect("made");
        std::fs::create_dir(at("outside")).expect("made");
        std::fs::write(at("outside/secret"), "secret").expect("written");
        std::fs::write(at("store/disk/image"), "image").expect("written");
        let folder = Folder::named(&at("store")).expect("it opens");
        (place, folder)
    }

    #[test]
    fn a_link_anywhere_in_a_path_is_refused_and_nothing_is_created_through_it() {
        let (place, folder) = place();
        let at = |name: &str| place.path().join(name);
        symlink(at("outside"), at("store/away")).expect("a link");
        symlink("disk", at("store/near")).expect("a link");
        symlink(at("outside/secret"), at("store/disk/link")).expect("a link");
        symlink(at("outside/new"), at("store/disk/dangling")).expect("a link");
        let make = OFlags::RDWR | OFlags::CREATE;
        for path in [
            "away/secret",
            "away/new",
            "near/image",
            "disk/link",
            "disk/dangling",
        ] {
            for flags in [OFlags::RDONLY, make, make | OFlags::EXCL] {
                assert!(folder.open(path, flags, 0o600).is_err(), "{path}");
            }
        }
        assert!(folder.open("../outside/secret", OFlags::RDONLY, 0).is_err());
        assert!(
            folder
                .open(at("outside/secret"), OFlags::RDONLY, 0)
                .is_err()
        );
        assert!(folder.make_folder("away", 0o755).is_err());
        let outside = std::fs::read_dir(at("outside")).expect("it exists");
        assert_eq!(outside.count(), 1);
        let image = folder.open("disk/image", OFlags::RDONLY, 0);
        assert!(image.is_ok(), "{image:?}");
    }

    #[test]
    fn a_fifo_a_socket_a_device_and_a_directory_are_refused_at_once() {
        let (place, folder) = place();
        let at = |name: &str| place.path().join("store").join(name);
        let made = std::process::Command::new("mkfifo")
            .arg(at("pipe"))
            .status();
        assert!(made.expect("it runs").success());
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("bound");
        for path in ["pipe", "socket", "disk"] {
            for flags in [
                OFlags::RDONLY,
                OFlags::WRONLY,
                OFlags::RDWR | OFlags::CREATE,
            ] {
                let refused = folder.open(path, flags, 0o600).expect_err(path);
                assert!(
                    refused.to_string().contains("not a plain file"),
                    "{refused}"
                );
            }
        }
        let dev = Folder::named(Path::new("/dev")).expect("it opens");
        assert!(dev.open("null", OFlags::RDONLY, 0).is_err());
    }

    #[test]
    fn the_named_directory_may_be_a_link_and_its_files_are_opened_blocking() {
        let (place, _) = place();
        let link = place.path().join("link");
        symlink("store", &link).expect("a link");
        let folder = Folder::named(&link).expect("it opens");
        let mut file = folder
            .open("disk/new", OFlags::RDWR | OFlags::CREATE, 0o600)
            .expect("it is made");
        file.write_all(b"new").expect("written");
        let flags = fs::fcntl_getfl(&file).expect("its flags");
        assert!(!flags.contains(OFlags::NONBLOCK));
        assert_eq!(folder.read("disk/new", 100).expect("read"), b"new");
    }

    #[test]
    fn a_read_returns_at_most_the_limit_and_one_byte() {
        let (place, folder) = place();
        let big = File::create(place.path().join("store/big")).expect("made");
        big.set_len(4 << 30).expect("a sparse file");
        assert_eq!(folder.read("big", 64).expect("read").len(), 65);
    }

    #[test]
    fn a_stat_follows_no_link() {
        let (place, folder) = place();
        symlink("disk/image", place.path().join("store/link")).expect("a link");
        assert!(!is_plain(&folder.look("link").expect("it exists")));
        assert!(is_plain(&folder.look("disk/image").expect("it exists")));
        assert!(folder.look("link/none").is_err());
        let none = folder.look("disk/none").expect_err("nothing");
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn of_two_concurrent_renames_to_one_name_one_succeeds() {
        let (_place, folder) = place();
        let write = |name: &str| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let mut file = folder.open(name, flags, 0o600).expect("it is made");
            file.write_all(name.as_bytes()).expect("written");
        };
        let both = std::sync::Barrier::new(2);
        let publish = |draft: &str| {
            both.wait();
            folder.rename_by_link(Path::new(draft), Path::new("mark"))
        };
        for _ in 0..500 {
            write("one");
            write("two");
            let (one, two) = std::thread::scope(|scope| {
                let other = scope.spawn(|| publish("two"));
                (publish("one"), other.join().expect("no panic"))
            });
            let (winner, loser) = match one.is_ok() {
                true => ("one", two),
                false => ("two", one),
            };
            let refused = loser.expect_err("one of them has the name");
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            let mark = folder.read("mark", 100).expect("read");
            assert_eq!(mark, winner.as_bytes());
            assert!(folder.look(winner).is_err(), "its draft is gone");
            let left = ["one", "two"].map(|name| folder.remove_file(name).is_ok());
            assert_eq!(left.iter().filter(|left| **left).count(), 1);
            folder.remove_file("mark").expect("removed");
        }
    }

    #[test]
    fn a_repeated_link_whose_reply_was_lost_is_no_error() {
        let (_place, folder) = place();
        folder.link("disk/image", "draft").expect("linked");
        folder.link("draft", "mark").expect("linked");
        let (draft, mark) = (Path::new("draft"), Path::new("mark"));
        folder.rename_by_link(draft, mark).expect("it is the same");
        assert!(folder.look(draft).is_err());
    }
}
