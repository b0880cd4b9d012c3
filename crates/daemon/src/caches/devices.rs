//! The devices of a cache: files and block devices with a label at their beginning.
//!
//! # Always true
//! - a device with anything at its beginning becomes a cache only if the caller says that it may be overwritten

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_api::name::Name;
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_core::block::{BLOCK, Unreadable};
use tidegate_core::layout::cache::label::{DeviceLabel, SeenRecord};
use tidegate_core::pool::superblock::Superblock;
use tidegate_engine::datastore::dir::SharedFile;

use super::Record;
use super::chunks::Part;
use crate::os_error::{self, Outcome};

/// How long to wait for a predecessor whose last operations have not ended.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
/// The beginning of a device that must be empty: file systems, partition tables and LVM begin there.
const BEGINNING: usize = 1 << 20;

/// Paths that become a cache. Files that were created for it are removed, unless it is created.
pub(crate) struct Prepared {
    paths: Vec<PathBuf>,
    created: Vec<PathBuf>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        for path in &self.created {
            // Nothing is in it, and the caller has a better reason to report.
            let _ = fs::remove_file(path);
        }
    }
}

impl Prepared {
    /// Opens and locks them.
    pub(crate) fn open(&self) -> Outcome<Vec<SharedFile>> {
        let open = |path: &PathBuf| lock(path, PATIENCE);
        self.paths.iter().map(open).collect()
    }

    /// The cache is created: its files stay.
    pub(crate) fn keep(mut self) {
        self.created.clear();
    }
}

/// Creates the files that are missing.
pub(crate) fn prepare(paths: &[PathBuf], size: Option<u64>) -> Outcome<Prepared> {
    let mut prepared = Prepared {
        paths: paths.to_vec(),
        created: Vec::new(),
    };
    if let [one, other] = paths
        && one == other
    {
        return Err(os_error::invalid("a mirrored cache needs two devices")
            .because(format!("{} is named twice", one.display()))
            .remedy("name another file or device with --mirror"));
    }
    for path in paths {
        if !path.is_absolute() {
            return Err(
                os_error::invalid(format!("{} is not an absolute path", path.display()))
                    .remedy("give an absolute path"),
            );
        }
        if path.exists() {
            continue;
        }
        let what = || format!("cannot create {}", path.display());
        let Some(size) = size else {
            return Err(Problem::new(
                ProblemCode::NotFound,
                format!("{} is not there", path.display()),
            )
            .remedy("name a block device or an existing file, or give --size to create a file"));
        };
        // It gets guests' data: as private as a disk's image.
        let made = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path);
        let file = made.map_err(|e| os_error::io(what(), &e))?;
        prepared.created.push(path.clone());
        file.set_len(size).map_err(|e| os_error::io(what(), &e))?;
    }
    Ok(prepared)
}

/// Opens the device in a place of a cache, if it has its label. Returns that as it is there.
pub(super) fn open(
    cache: &Name,
    path: &Path,
    nth: u8,
    record: &Record,
    patience: Duration,
) -> Outcome<(SharedFile, DeviceLabel)> {
    let label = &record.label(nth);
    let what = || format!("cannot use {} for cache {cache}", path.display());
    let file = lock(path, patience).map_err(|problem| {
        let problem = problem.within(what());
        match problem.code {
            ProblemCode::NotFound => problem.remedy(missing_remedy(cache, nth, record)),
            _ => problem,
        }
    })?;
    let mut block = [0; BLOCK];
    file.read_at(&mut block, 0)
        .map_err(|e| os_error::io(what(), &e))?;
    let why = match DeviceLabel::decode(&block) {
        Ok(found) if found.is_same(label) && file.size() >= label.size => {
            must_be_newest(cache, &file, record)?;
            return Ok((file, found));
        }
        Ok(found) if found.is_same(label) => format!(
            "it has {} bytes, and had {} when the cache was created",
            file.size(),
            label.size
        ),
        Ok(found) if found.cache == label.cache && found.device == label.device => {
            "another device has taken its place in this cache".to_owned()
        }
        Ok(found) if found.cache == label.cache => format!(
            "it is device {} of this cache, and device {} belongs there",
            found.device, label.device
        ),
        Ok(_) => "it belongs to another cache".to_owned(),
        Err(Unreadable::Empty) => "it is empty".to_owned(),
        Err(Unreadable::Newer(version)) => {
            format!("a newer version of Tidegate wrote it (format {version})")
        }
        Err(_) => "its beginning was overwritten or is damaged".to_owned(),
    };
    Err(Problem::new(ProblemCode::Corrupt, what())
        .because(why)
        .remedy(format!(
            "put the right device there; if it is lost, take the cache off its disks (tidegate disk set DISK --cache none), \
             remove it (tidegate cache remove {cache}), and create it again"
        )))
}

/// What to do about a device that is not at its path.
fn missing_remedy(cache: &Name, nth: u8, record: &Record) -> String {
    match record.devices().count() {
        1 => format!(
            "put the device or file back at that path; if it is lost, take the cache off its disks (tidegate disk set DISK --cache \
             none, or tidegate disk attach DISK --discard-cache), remove it (tidegate cache remove {cache}), and create it again"
        ),
        _ => format!(
            "put the device or file back at that path, or replace it: tidegate cache device replace {cache} {nth} --with PATH"
        ),
    }
}

pub(crate) fn lock(path: &Path, patience: Duration) -> Outcome<SharedFile> {
    SharedFile::open(path, patience).map_err(|e| crate::host::problem(&e))
}

/// Fails if there is anything at the beginning of a device.
pub(crate) fn must_be_empty(file: &SharedFile) -> Outcome<()> {
    let mut bytes = vec![0; BEGINNING];
    file.read_at(&mut bytes, 0)
        .map_err(|e| os_error::io(format!("cannot read {}", file.path().display()), &e))?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    let why = match (
        DeviceLabel::decode(&bytes[..BLOCK]),
        Superblock::decode(&bytes[..BLOCK]),
    ) {
        (Ok(_), _) => "it is a device of a flash cache, which may have what disks need",
        (_, Ok(_)) => "it is a member of a pool",
        _ => "there is data in its first MiB: perhaps a file system or a partition table",
    };
    Err(Problem::new(
        ProblemCode::Exists,
        format!("{} is not empty", file.path().display()),
    )
    .because(why)
    .remedy("name another device, or add --force if everything on it may be lost"))
}

/// Whether a device was to become one of this cache by a command that was interrupted, or was one. Nothing needs what it has.
pub(super) fn is_left_of(file: &SharedFile, record: &Record) -> bool {
    let mut block = [0; BLOCK];
    let label = file.read_at(&mut block, 0).ok();
    let label = label.and_then(|()| DeviceLabel::decode(&block).ok());
    label.is_some_and(|label| label.cache == record.uuid.0)
}

/// Makes what a disk's part has on a device void.
pub(super) fn clear_part(file: &SharedFile, part: &Part, chunk: u64) -> Outcome<()> {
    if let Some(area) = part.area(chunk) {
        for place in 0..2 {
            put(file, &[0; BLOCK], area.header_at(place))?;
        }
    }
    Ok(())
}

/// Makes a device one of a cache.
pub(super) fn write_label(file: &SharedFile, label: &DeviceLabel) -> Outcome<()> {
    put(file, &label.encode(), 0)
}

/// Makes it none.
pub(super) fn clear_label(file: &SharedFile) -> Outcome<()> {
    put(file, &[0; 3 * BLOCK], 0)
}

/// The generation of the newest record of a cache that a device has seen, 0 if it has seen none, and where the next one goes.
fn seen(file: &SharedFile, record: &Record) -> Outcome<(u64, u64)> {
    let mut bytes = [0; 2 * BLOCK];
    file.read_at(&mut bytes, BLOCK as u64)
        .map_err(|e| os_error::io(format!("cannot read {}", file.path().display()), &e))?;
    let [first, second] = [0, BLOCK].map(|at| {
        let block = SeenRecord::decode(&bytes[at..at + BLOCK]).ok();
        let own = block.filter(|seen| seen.cache == record.uuid.0);
        own.map_or(0, |seen| seen.generation)
    });
    // A crash while one is written leaves the other one.
    let place = if first > second { 2 } else { 1 };
    Ok((first.max(second), place * BLOCK as u64))
}

/// Fails if a device has seen a newer record of its cache.
pub(super) fn must_be_newest(cache: &Name, file: &SharedFile, record: &Record) -> Outcome<()> {
    let (seen, _) = seen(file, record)?;
    if seen <= record.generation {
        return Ok(());
    }
    Err(Problem::new(
        ProblemCode::Corrupt,
        format!("the record of cache {cache} is too old"),
    )
    .because(format!(
        "{} has seen change {seen} of it, and this is change {}: other disks may have the same places on flash",
        file.path().display(),
        record.generation
    ))
    .remedy(format!(
        "restore the newest caches/{cache}.toml in the state directory of this host; if it is lost, take the cache off its disks \
         (tidegate disk set DISK --cache none, or tidegate disk attach DISK --discard-cache), remove that file, and create \
         the cache again with --force"
    )))
}

/// Lets a device see the record of its cache.
pub(super) fn write_seen(file: &SharedFile, record: &Record) -> Outcome<()> {
    let now = SeenRecord {
        cache: record.uuid.0,
        generation: record.generation,
    };
    let (seen, place) = seen(file, record)?;
    match seen < now.generation {
        true => put(file, &now.encode(), place),
        false => Ok(()),
    }
}

fn put(file: &SharedFile, bytes: &[u8], at: u64) -> Outcome<()> {
    let written: io::Result<()> = file.write_at(bytes, at);
    written.map_err(|e| os_error::io(format!("cannot write to {}", file.path().display()), &e))
}
