//! Opens files beneath a directory without following links, since others may write there.
//!
//! Every host that shares a datastore can write to it. So each path below the datastore's directory is resolved by the
//! kernel with openat2: a path with a link in it is refused, and no path leads out of the directory. Slots, leases, disks'
//! directories, descriptors and images are opened here. It does not know what the files hold.
//!
//! # Always true
//! - the directory itself is opened as it was named, by links too; below it no link is followed
//! - nothing but a plain file is opened: a FIFO cannot hang the caller, a device is not touched
//! - a read has a bound
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
    /// The directory at a path that an administrator named. Links in the path are followed.
    ///
    /// # Errors
    /// When there is none.
    pub fn named(path: &Path) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Folder(fs::openat(CWD, path, flags, Mode::empty())?))
    }

    /// A directory below this one.
    ///
    /// # Errors
    /// When there is none, or a link is on the way.
    pub fn folder(&self, path: impl AsRef<Path>) -> io::Result<Folder> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        self.resolve(path.as_ref(), flags, Mode::empty())
            .map(Folder)
    }

    /// The directory of that name in this one, made if it is missing.
    ///
    /// # Errors
    /// When it cannot be made, or something else is there.
    pub fn make_folder(&self, name: &str, mode: u32) -> io::Result<Folder> {
        match fs::mkdirat(&self.0, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => self.folder(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a directory of that name in this one.
    ///
    /// # Errors
    /// When it cannot be made, or something of that name is there.
    pub fn new_folder(&self, name: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        Ok(fs::mkdirat(
            &self.0,
            name.as_ref(),
            Mode::from_raw_mode(mode),
        )?)
    }

    /// Opens a plain file. `mode`: that of a file that is made, with [`OFlags::CREATE`].
    ///
    /// # Errors
    /// When it cannot be opened, is no plain file, or a link is on the way.
    pub fn open(&self, path: impl AsRef<Path>, flags: OFlags, mode: u32) -> io::Result<File> {
        let path = path.as_ref();
        // Looked at first: opening a device may already do something. A file that is to be new is none.
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
        // Others may have put something else there since.
        must_be_plain(&fs::fstat(&file)?)?;
        if !flags.contains(OFlags::NONBLOCK) {
            // The kernel's ring would answer EAGAIN where it ought to wait.
            let now = fs::fcntl_getfl(&file)?;
            fs::fcntl_setfl(&file, now - OFlags::NONBLOCK)?;
        }
        Ok(file)
    }

    /// A plain file that is there, not opened to be read or written: whatever becomes of its name, `/proc/self/fd` leads to
    /// it and to nothing else.
    ///
    /// # Errors
    /// When there is none, something else is there, or a link is on the way.
    pub fn pin(&self, path: impl AsRef<Path>) -> io::Result<OwnedFd> {
        let pinned = self.resolve(path.as_ref(), OFlags::PATH, Mode::empty());
        let pinned = pinned.map_err(|error| match error.kind() {
            io::ErrorKind::InvalidInput => no_plain_file(),
            _ => error,
        })?;
        must_be_plain(&fs::fstat(&pinned)?)?;
        Ok(pinned)
    }

    /// The content of a plain file: at most `most` bytes, and one more where the file has more.
    ///
    /// # Errors
    /// As [`Folder::open`], and when it cannot be read.
    pub fn read(&self, path: impl AsRef<Path>, most: usize) -> io::Result<Vec<u8>> {
        let file = self.open(path, OFlags::RDONLY, 0)?;
        let bound = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
        let mut bytes = Vec::new();
        file.take(bound).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// What is at a path, whatever it is. A link is not followed, and is no error at the path's end.
    ///
    /// # Errors
    /// When there is nothing, or a link is on the way.
    pub fn look(&self, path: impl AsRef<Path>) -> io::Result<Stat> {
        let path = path.as_ref();
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if parent != Path::new("") => (self.folder(parent)?, name),
            _ => return Ok(fs::statat(&self.0, path, AtFlags::SYMLINK_NOFOLLOW)?),
        };
        Ok(fs::statat(&parent.0, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Removes a file, or a link, of that name in this directory.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove_file(&self, name: impl AsRef<Path>) -> io::Result<()> {
        Ok(fs::unlinkat(&self.0, name.as_ref(), AtFlags::empty())?)
    }

    /// Gives a file or directory of this directory another name in it, in the place of what has that name.
    ///
    /// # Errors
    /// When it cannot be renamed.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        Ok(fs::renameat(&self.0, from.as_ref(), &self.0, to.as_ref())?)
    }

    /// The same, unless something has that name. Of several hosts that do so at once, one succeeds.
    ///
    /// # Errors
    /// When something has it, or the file cannot be renamed.
    pub fn rename_new(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        match fs::renameat_with(&self.0, from, &self.0, to, RenameFlags::NOREPLACE) {
            // Some file systems cannot promise that, NFS among them.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => self.rename_by_link(from, to),
            renamed => Ok(renamed?),
        }
    }

    /// The same where a rename always replaces. A link never does, whichever host makes it.
    fn rename_by_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        match fs::linkat(&self.0, from, &self.0, to, AtFlags::empty()) {
            Ok(()) => {}
            // A file server may have done it, and have been asked again since its answer was lost.
            Err(Errno::EXIST) if self.is_same(from, to) => {}
            // There are no links on this file system, so no other host shares it.
            Err(Errno::PERM | Errno::NOSYS | Errno::OPNOTSUPP) => {
                return match self.look(to) {
                    Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
                    Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                    Err(_) => self.rename(from, to),
                };
            }
            Err(error) => return Err(error.into()),
        }
        // The file has its name. A second one that stays does no harm.
        let _ = self.remove_file(from);
        Ok(())
    }

    fn is_same(&self, one: &Path, other: &Path) -> bool {
        match (self.look(one), self.look(other)) {
            (Ok(one), Ok(other)) => identity(&one) == identity(&other),
            _ => false,
        }
    }

    /// Gives a file of this directory a second name in it.
    ///
    /// # Errors
    /// When something has that name, or the file system cannot do it.
    pub fn link(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        Ok(fs::linkat(&self.0, from, &self.0, to, AtFlags::empty())?)
    }

    /// Makes durable which names this directory holds.
    ///
    /// # Errors
    /// When the file system cannot.
    pub fn sync(&self) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let folder = self.resolve(Path::new("."), flags, Mode::empty())?;
        Ok(fs::fsync(folder)?)
    }

    /// A path to this very directory for as long as it is open, whatever becomes of its name: for calls of the standard
    /// library, with one name added.
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
                "a link is in the way, and links are not followed there",
            )),
            Err(Errno::XDEV) => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it leads out of the datastore's directory",
            )),
            Err(error) => Err(error.into()),
        }
    }
}

/// Whether that is a plain file.
pub fn is_plain(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_file()
}

/// By what a file or directory is known while it exists: its file system's device and its inode.
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
        "it is no plain file, and links are not followed there",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    /// A datastore `store` beside `outside`, in which there is `secret`.
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
    fn a_link_anywhere_on_the_way_is_refused_and_nothing_is_made_behind_it() {
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
        let outside = std::fs::read_dir(at("outside")).expect("it is there");
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
                assert!(refused.to_string().contains("no plain file"), "{refused}");
            }
        }
        let dev = Folder::named(Path::new("/dev")).expect("it opens");
        assert!(dev.open("null", OFlags::RDONLY, 0).is_err());
    }

    #[test]
    fn the_named_directory_may_be_a_link_and_its_files_are_opened_to_wait() {
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
    fn no_more_is_read_than_was_allowed_and_one_byte() {
        let (place, folder) = place();
        let big = File::create(place.path().join("store/big")).expect("made");
        big.set_len(4 << 30).expect("a sparse file");
        assert_eq!(folder.read("big", 64).expect("read").len(), 65);
    }

    #[test]
    fn what_is_looked_at_is_not_followed() {
        let (place, folder) = place();
        symlink("disk/image", place.path().join("store/link")).expect("a link");
        assert!(!is_plain(&folder.look("link").expect("it is there")));
        assert!(is_plain(&folder.look("disk/image").expect("it is there")));
        assert!(folder.look("link/none").is_err());
        let none = folder.look("disk/none").expect_err("nothing");
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn of_two_files_that_get_one_name_at_once_one_has_it_where_a_rename_replaces() {
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
    fn a_link_that_was_made_before_its_answer_was_lost_is_no_refusal() {
        let (_place, folder) = place();
        folder.link("disk/image", "draft").expect("linked");
        folder.link("draft", "mark").expect("linked");
        let (draft, mark) = (Path::new("draft"), Path::new("mark"));
        folder.rename_by_link(draft, mark).expect("it is the same");
        assert!(folder.look(draft).is_err());
    }
}
