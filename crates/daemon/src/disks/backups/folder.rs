//! The directory of a disk's backups: it is locked, its manifest is replaced, and files get their names in it.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use tidegate_api::descriptor::Uuid;
use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};

use super::manifest::{self, Entry, Manifest};
use crate::disks::copy::Progress;
use crate::disks::formats::Image;
use crate::disks::formats::chain::{self, Link};
use crate::files;
use crate::os_error::{self, Outcome};
use crate::text::hex;

/// Bytes that are read at once for a checksum.
const PIECE: usize = 1 << 20;

/// See the module.
pub(crate) struct BackupFolder {
    path: PathBuf,
    /// Open, and locked.
    _lock: File,
    pub(crate) manifest: Manifest,
}

impl BackupFolder {
    /// Opens a directory to write a backup of a disk to it. An empty one is prepared; it is created if its parent exists.
    ///
    /// # Errors
    /// It is no directory, is used by another backup, has files of something else, or backups of another disk.
    pub(crate) fn begin(path: &Path, disk: &Name, uuid: Uuid) -> Outcome<BackupFolder> {
        let what = || format!("cannot back up to {}", path.display());
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(os_error::io(what(), &error));
            }
            _ => {}
        }
        let lock = lock(path, FlockOperation::NonBlockingLockExclusive)?;
        let manifest = match read(path)? {
            Some(manifest) => manifest,
            None => {
                must_be_empty(path)?;
                Manifest::new(disk.clone(), uuid)
            }
        };
        if manifest.uuid != uuid {
            return Err(Problem::new(ProblemCode::Exists, what())
                .because(format!("it has backups of another disk, {}", manifest.disk))
                .remedy("use one directory for each disk"));
        }
        Ok(BackupFolder {
            path: path.to_owned(),
            _lock: lock,
            manifest,
        })
    }

    /// Opens a directory to read its backups.
    ///
    /// # Errors
    /// It has none, or a backup to it is being made.
    pub(crate) fn open(path: &Path) -> Outcome<BackupFolder> {
        let lock = lock(path, FlockOperation::NonBlockingLockShared)?;
        let manifest = read(path)?.ok_or_else(|| none(path))?;
        Ok(BackupFolder {
            path: path.to_owned(),
            _lock: lock,
            manifest,
        })
    }

    /// Its manifest, also while a backup is being made.
    ///
    /// # Errors
    /// It has none, or that is damaged.
    pub(crate) fn look(path: &Path) -> Outcome<Manifest> {
        read(path)?.ok_or_else(|| none(path))
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the manifest durable.
    ///
    /// # Errors
    /// As writing a file. The old one is still there then.
    pub(crate) fn store(&self) -> Outcome<()> {
        let text = self.manifest.encode()?;
        let file = self.path.join(manifest::NAME);
        files::replace(&file, text.as_bytes())
            .map_err(|e| os_error::io(format!("cannot write {}", file.display()), &e))
    }

    /// Notes, durably, that this snapshot is about to be taken. Until a backup of it is complete, the next one deletes it.
    ///
    /// # Errors
    /// As [`BackupFolder::store`].
    pub(crate) fn will_take(&mut self, snapshot: Option<Name>) -> Outcome<()> {
        if self.manifest.pending != snapshot {
            self.manifest.pending = snapshot;
            self.store()?;
        }
        Ok(())
    }

    /// Gives a complete, durable file its name, and adds the backup to the manifest.
    ///
    /// # Errors
    /// The file cannot be renamed, or the manifest not written. The backup does not exist then.
    pub(crate) fn add(&mut self, draft: &Path, entry: Entry) -> Outcome<()> {
        let path = self.path.join(entry.file());
        // What is there under this name is in no manifest: a backup that was interrupted just here has left it.
        fs::rename(draft, &path)
            .and_then(|()| files::sync_folder(&self.path))
            .map_err(|e| os_error::io(format!("cannot write {}", path.display()), &e))?;
        let before = self.manifest.clone();
        self.manifest.backups.push(entry);
        self.manifest.pending = None;
        self.store().inspect_err(|_| self.manifest = before)
    }

    /// Compares the files of backups with their checksums.
    ///
    /// # Errors
    /// A file is missing, damaged, or cannot be read; the error names it.
    pub(crate) fn verify(&self, entries: &[&Entry], progress: &Progress) -> Outcome<()> {
        progress.expect(entries.iter().map(|entry| entry.file_bytes).sum());
        for entry in entries {
            let path = self.path.join(entry.file());
            let damaged = |why: String| {
                Problem::new(ProblemCode::Corrupt, format!("{} is damaged", path.display()))
                    .because(why)
                    .remedy(
                        "get the file again from a copy; without it, this backup and the increments on it are lost: \
                         take a full one (tidegate backup DISK DIR --full)",
                    )
            };
            let file = plain(&path)?;
            let failed = |e: &io::Error| os_error::io(format!("cannot read {}", path.display()), e);
            let bytes = file.metadata().map_err(|e| failed(&e))?.len();
            if bytes != entry.file_bytes {
                let has = entry.file_bytes;
                return Err(damaged(format!(
                    "it has {bytes} bytes, and should have {has}"
                )));
            }
            let sha256 = digest(&file, progress)
                .map_err(|problem| problem.within(format!("cannot read {}", path.display())))?;
            if sha256 != entry.sha256 {
                return Err(damaged("its checksum is another one".to_owned()));
            }
        }
        Ok(())
    }

    /// Opens a backup with those that it needs, the newest first.
    ///
    /// # Errors
    /// A file is missing, or is not what the manifest says.
    pub(crate) fn image(&self, chain: &[&Entry]) -> Outcome<Image> {
        let mut links = Vec::new();
        for entry in chain {
            let name = entry.file();
            let file = plain(&self.path.join(&name))?;
            let length = file.metadata().map(|there| there.len()).map_err(|e| {
                os_error::io(
                    format!("cannot read {}", self.path.join(&name).display()),
                    &e,
                )
            })?;
            links.push(Link { file, length, name });
        }
        let what = || format!("cannot read the backups in {}", self.path.display());
        let image = chain::open(links).map_err(|e| {
            Problem::new(ProblemCode::Corrupt, what())
                .because_of(&e)
                .remedy(format!(
                    "check them: tidegate backup verify {}",
                    self.path.display()
                ))
        })?;
        let size = chain.first().map_or(0, |entry| entry.size_bytes);
        if image.size() != size {
            let why = format!(
                "the image is of a disk of {} bytes, not {size}",
                image.size()
            );
            return Err(Problem::new(ProblemCode::Corrupt, what())
                .because(why)
                .remedy("get the directory again from a copy"));
        }
        Ok(image)
    }
}

/// Opens a plain file to read it.
fn plain(path: &Path) -> Outcome<File> {
    files::open(path, File::options().read(true)).map_err(|e| {
        let problem = os_error::io(format!("cannot read {}", path.display()), &e);
        match e.kind() {
            io::ErrorKind::NotFound => {
                problem.remedy("get the file again from a copy of the directory")
            }
            _ => problem,
        }
    })
}

/// The SHA-256 of a file from its beginning, in hexadecimal.
///
/// # Errors
/// It cannot be read, or the job was cancelled.
pub(crate) fn digest(mut file: &File, progress: &Progress) -> Outcome<String> {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    let mut buffer = vec![0; PIECE];
    io::Seek::rewind(&mut file).map_err(|e| os_error::io("cannot read the file", &e))?;
    loop {
        progress.check()?;
        let got = file.read(&mut buffer);
        let got = got.map_err(|e| os_error::io("cannot read the file", &e))?;
        if got == 0 {
            return Ok(hex(digest.finish().as_ref()));
        }
        digest.update(&buffer[..got]);
        progress.copied(got as u64);
    }
}

/// Locks a directory, which is open as long as the result.
fn lock(path: &Path, how: FlockOperation) -> Outcome<File> {
    let what = || format!("cannot use the backups in {}", path.display());
    let folder = File::open(path).map_err(|e| os_error::io(what(), &e))?;
    let there = folder.metadata().map_err(|e| os_error::io(what(), &e))?;
    if !there.is_dir() {
        return Err(os_error::invalid(what())
            .because("it is not a directory")
            .remedy("name a directory for the backups of one disk"));
    }
    match rustix::fs::flock(&folder, how) {
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Problem::new(ProblemCode::Busy, what())
            .because("another backup, check or restore works there")
            .remedy("wait until it has ended (see `tidegate job list`)")),
        // Some network file systems have no locks. The claim of the disk still keeps out a second backup on this host.
        Ok(()) | Err(_) => Ok(folder),
    }
}

/// The manifest, if the directory has one.
fn read(path: &Path) -> Outcome<Option<Manifest>> {
    let file = path.join(manifest::NAME);
    match files::read(&file, manifest::MOST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(os_error::io(
            format!("cannot read {}", file.display()),
            &error,
        )),
        Ok(bytes) => Manifest::decode(&bytes)
            .map(Some)
            .map_err(|problem| problem.within(format!("cannot read {}", file.display()))),
    }
}

/// Fails if a directory without manifest has files.
fn must_be_empty(path: &Path) -> Outcome<()> {
    let what = || format!("cannot back up to {}", path.display());
    let entries = fs::read_dir(path).map_err(|e| os_error::io(what(), &e))?;
    let mut names = entries.flatten().map(|entry| entry.file_name());
    // Drafts of backups that were interrupted begin with a dot, as do a file system's own files.
    let other = names.find(|name| !name.to_string_lossy().starts_with('.') && name != "lost+found");
    match other {
        None => Ok(()),
        Some(name) => Err(Problem::new(ProblemCode::Exists, what())
            .because(format!(
                "it has other files ({}), and no backups",
                name.to_string_lossy().escape_debug()
            ))
            .remedy("name an empty directory, or one that does not exist yet")),
    }
}

fn none(path: &Path) -> Problem {
    Problem::new(
        ProblemCode::NotFound,
        format!("there are no backups in {}", path.display()),
    )
    .because(format!("it has no {}", manifest::NAME))
    .remedy("name the directory that was given to `tidegate backup`")
}
