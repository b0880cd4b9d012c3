//! Snapshots of disks on datastores of kind `dir`: images beside the disk's image that share their blocks with it.
//!
//! The file system copies a block when one of the images changes it (`FICLONE`: XFS, btrfs, NFS 4.2). The caller has the
//! disk's [`Turn`](crate::files::Turn), and has stopped its writes.
//!
//! # Always true
//! - A snapshot exists while `snapshots.toml` lists it. Its image is whole and durable before that, and removed after.
//! - A disk's image is replaced by one rename, after the new one is durable.
//! - An image that is not listed is the rest of a crash. The next command on the disk's snapshots removes it.
//!
//! # Picture
//! ```text
//!   .snapshot-NAME.new ─ share blocks ─ fsync ─ rename to snapshot-NAME ─ list in snapshots.toml
//!   .image.new         ─ share blocks ─ fsync ─ rename to image
//! ```

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tidegate_api::descriptor::Descriptor;
use tidegate_api::disk::Allocation;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::beneath::Folder;

use super::contents::{IMAGE, LIST, SNAPSHOT, draft_of};
use super::snapshot_list::{ListedSnapshots, VERSION};
use super::{Found, Store, newer, parse};
use crate::files::{self, Location};
use crate::os_error::{self, Outcome};

/// The largest list that is read: 256 snapshots with the longest names fit.
const MAX_LIST: usize = 256 << 10;

/// Makes the second file have the same bytes as the first, without a copy of them.
pub(super) type ShareBlocks = fn(&File, &File) -> io::Result<()>;

/// As the kernel does it.
pub(super) fn share_blocks(from: &File, to: &File) -> io::Result<()> {
    Ok(rustix::fs::ioctl_ficlone(to, from)?)
}

/// An image that is not used yet, under a name that says so.
pub(crate) struct ImageDraft {
    folder: Folder,
    source: File,
    image: File,
    draft: OsString,
    name: OsString,
    share: ShareBlocks,
    datastore: Name,
}

impl ImageDraft {
    /// Gives it the bytes that the source has now.
    pub(crate) fn share(&self) -> Outcome<()> {
        (self.share)(&self.source, &self.image).map_err(|e| unshared(&self.datastore, &e))
    }

    /// Makes it durable, and gives it its name.
    pub(crate) fn publish(&self) -> Outcome<()> {
        let published = self
            .image
            .sync_all()
            .and_then(|()| self.folder.rename(&self.draft, &self.name))
            .and_then(|()| self.folder.sync());
        published.map_err(|e| os_error::io("cannot store the image of a snapshot", &e))
    }

    /// Removes it, published or not.
    pub(crate) fn discard(self) {
        for name in [&self.draft, &self.name] {
            remove(&self.folder, name);
        }
    }
}

fn remove(folder: &Folder, name: &OsStr) {
    match folder.remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let name = name.display();
            tracing::warn!(%error, %name, "an unused image takes space until the next command on the disk's snapshots");
        }
        _ => {}
    }
}

/// The problem of two files that do not share blocks.
fn unshared(datastore: &Name, error: &io::Error) -> Problem {
    let is_unable = matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::InvalidInput | io::ErrorKind::CrossesDevices
    ) || error.raw_os_error() == Some(rustix::io::Errno::NOTTY.raw_os_error());
    let what = "cannot share blocks between images";
    match is_unable {
        false => os_error::io(what, error),
        true => Problem::new(ProblemCode::Unsupported, what)
            .because(format!("the file system of datastore {datastore} cannot do that: {error}"))
            .remedy(
                "use a datastore of kind dir on XFS or btrfs (see `tidegate disk move`), or a pool: these have snapshots",
            ),
    }
}

/// The image of a snapshot.
pub(crate) fn snapshot_image(disk: &Found, snapshot: &Name) -> PathBuf {
    disk.folder.join(format!("{SNAPSHOT}{snapshot}"))
}

impl Store {
    /// The snapshots of a disk on a datastore of kind `dir`.
    pub(crate) fn snapshots(&self, disk: &Found) -> Outcome<ListedSnapshots> {
        let path = disk.folder.join(LIST);
        let bytes = match files::read(Location::in_disk(&path), MAX_LIST) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(ListedSnapshots::default());
            }
            Err(error) => {
                let what = format!("cannot read the snapshots of disk {}", disk.name);
                return Err(os_error::io(what, &error));
            }
        };
        let list: ListedSnapshots = parse(&path, &bytes)?;
        if list.version != VERSION {
            return Err(newer(&path, list.version));
        }
        list.check().map_err(|why| {
            Problem::new(ProblemCode::Corrupt, format!("{} is damaged", path.display()))
                .because(why)
                .remedy("restore it from a backup, or correct it by hand: the images of snapshots are beside it")
        })?;
        Ok(list)
    }

    /// Replaces the list of a disk's snapshots.
    pub(crate) fn write_snapshots(&self, disk: &Found, list: &ListedSnapshots) -> Outcome<()> {
        let what = || format!("cannot store the snapshots of disk {}", disk.name);
        list.check().map_err(|why| {
            os_error::invalid(what())
                .because(why)
                .remedy("delete a snapshot first")
        })?;
        let text = toml::to_string(list).expect("names and numbers can be written as TOML");
        let at = Location::in_disk(&disk.folder.join(LIST));
        files::replace(at, text.as_bytes()).map_err(|e| os_error::io(what(), &e))
    }

    /// Begins the image of a snapshot. What a crash left of earlier ones is removed.
    pub(crate) fn begin_snapshot(
        &self,
        disk: &Found,
        list: &ListedSnapshots,
        name: &Name,
    ) -> Outcome<ImageDraft> {
        self.sweep_snapshots(disk, list);
        let cannot = |e: io::Error| os_error::io("cannot create the image of a snapshot", &e);
        let source = disk
            .open_image(File::options().read(true))
            .map_err(cannot)?;
        // Less is left to write back while the disk is held.
        source.sync_data().map_err(cannot)?;
        let name = format!("{SNAPSHOT}{name}");
        self.begin_image(disk, source, &name).map_err(cannot)
    }

    fn begin_image(&self, disk: &Found, source: File, name: &str) -> io::Result<ImageDraft> {
        let (folder, _) = Location::in_disk(&disk.folder.join(name)).folder()?;
        let draft = OsString::from(draft_of(name));
        remove(&folder, &draft);
        // Only the daemon's user may read guests' data.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let image = folder.open(&draft, flags, 0o600)?;
        Ok(ImageDraft {
            folder,
            source,
            image,
            draft,
            name: name.into(),
            share: self.share,
            datastore: disk.datastore.clone(),
        })
    }

    /// Removes what a crash left of snapshots' images.
    pub(crate) fn sweep_snapshots(&self, disk: &Found, list: &ListedSnapshots) {
        let Ok((folder, _)) = Location::in_disk(&disk.folder.join(LIST)).folder() else {
            return;
        };
        let Ok(entries) = fs::read_dir(folder.path()) else {
            return;
        };
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name();
            let text = name.to_string_lossy();
            let is_listed = |name: &str| name.parse().is_ok_and(|name| list.get(&name).is_some());
            let is_left = match text.strip_prefix(SNAPSHOT) {
                Some(snapshot) => !is_listed(snapshot),
                None => text.starts_with(&format!(".{SNAPSHOT}")) || text == draft_of(IMAGE),
            };
            if is_left {
                remove(&folder, &name);
            }
        }
    }

    /// Removes the image of a snapshot that is not listed any more.
    pub(crate) fn remove_snapshot_image(&self, disk: &Found, snapshot: &Name) {
        let path = snapshot_image(disk, snapshot);
        if let Ok((folder, name)) = Location::in_disk(&path).folder() {
            remove(&folder, &name);
        }
    }

    /// Gives a disk the bytes of a snapshot, by one rename. Its image has at least `size` bytes then.
    pub(crate) fn restore_snapshot(&self, disk: &Found, snapshot: &Name, size: u64) -> Outcome<()> {
        let cannot = |e: io::Error| os_error::io("cannot create the new image", &e);
        let source = open_snapshot(disk, snapshot)?;
        let draft = self.begin_image(disk, source, IMAGE).map_err(cannot)?;
        let restored = draft.share().and_then(|()| {
            let length = draft.image.metadata().map_err(cannot)?.len();
            draft.image.set_len(length.max(size)).map_err(cannot)?;
            draft.publish()
        });
        if restored.is_err() {
            // Not the name of the disk's own image.
            remove(&draft.folder, &draft.draft);
        }
        restored
    }

    /// Creates a disk with the bytes of a snapshot.
    pub(crate) fn clone_snapshot(
        &self,
        disk: &Found,
        snapshot: &Name,
        name: &Name,
        descriptor: &Descriptor,
    ) -> Outcome<()> {
        let source = open_snapshot(disk, snapshot)?;
        let fill = |path: &Path| {
            let cannot = |e: io::Error| os_error::io("cannot create the new image", &e);
            let mut options = File::options();
            let image = files::open(Location::in_disk(path), options.read(true).write(true));
            let image = image.map_err(cannot)?;
            (self.share)(&source, &image).map_err(|e| unshared(&disk.datastore, &e))?;
            // What is beyond the disk's end is not the disk's.
            image.set_len(descriptor.size.0).map_err(cannot)?;
            image.sync_all().map_err(cannot)
        };
        let (on, of) = (&disk.datastore, &disk.settings);
        self.create_disk(on, of, name, descriptor, Allocation::Thin, fill)
    }
}

fn open_snapshot(disk: &Found, snapshot: &Name) -> Outcome<File> {
    let path = snapshot_image(disk, snapshot);
    let opened = files::open(Location::in_disk(&path), File::options().read(true));
    opened.map_err(|e| {
        let what = format!("cannot open the image of snapshot {}@{snapshot}", disk.name);
        match e.kind() {
            io::ErrorKind::NotFound => Problem::new(ProblemCode::Corrupt, what)
                .because(format!("{} is not there", path.display()))
                .remedy(format!(
                    "put it back, or delete the snapshot: tidegate disk snapshot delete {}@{snapshot}",
                    disk.name
                )),
            _ => os_error::io(what, &e),
        }
    })
}
