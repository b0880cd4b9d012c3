//! Writes a disk to an image file: raw with holes, or qcow2.
//!
//! # Always true
//! - The file gets its name only once it is complete and durable; a failed or cancelled export leaves nothing.
//! - No other program writes to its draft or removes it: each export's draft has a unique name.
//! - An existing file is replaced only on request.
//! - Only plain files are replaced, and no file is created in the system's device directory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use imago::file::File as ImagoFile;
use imago::qcow2::Qcow2;
use imago::{FormatAccess, FormatCreateBuilder, Storage, StorageCreateOptions};
use tidegate_api::descriptor::Uuid;
use tidegate_api::job::{DiskExport, Existing, ImageFormat};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::beneath::Folder;

use crate::disks::copy::Progress;
use crate::disks::copy::device::{self, DeviceSink};
use crate::disks::copy::{self, RawFile, Sink, Source};
use crate::files;
use crate::os_error::{self, Outcome};
use crate::text::new_uuid;

/// Extensions of files that are not raw images: other formats, archives and compressed files.
const OTHER_ENDINGS: [&str; 27] = [
    "vmdk", "vdi", "vhd", "vhdx", "vpc", "qed", "qcow", "hdd", "hds", "dmg", "luks", "ova", "ovf",
    "vma", "gz", "tgz", "xz", "txz", "zst", "bz2", "lz4", "lzma", "lzo", "zip", "7z", "rar", "tar",
];

/// End of a draft's name, after a dot and a UUID.
const PARTIAL: &str = ".partial";

/// The format of an export: as requested, or by the file's extension. A format that cannot be written is refused.
pub(crate) fn format_of(order: &DiskExport, what: &str) -> Outcome<ImageFormat> {
    let refuse = |why: String| {
        Problem::new(ProblemCode::Unsupported, what)
            .because(why)
            .remedy("name a file that ends in .qcow2 or .img, or give --format; qemu-img convert writes other \
                 formats")
    };
    let device = device::is_there(&order.file);
    match order.format {
        Some(ImageFormat::Raw) => return Ok(ImageFormat::Raw),
        Some(ImageFormat::Qcow2) if device => {
            return Err(refuse("only raw goes to a block device".to_owned()));
        }
        Some(ImageFormat::Qcow2) => return Ok(ImageFormat::Qcow2),
        Some(other) => {
            return Err(refuse(format!(
                "{} can be read, but not written",
                other.word()
            )));
        }
        None if device => return Ok(ImageFormat::Raw),
        None => {}
    }
    let ending = order.file.extension().unwrap_or_default();
    let ending = ending.to_string_lossy().to_ascii_lowercase();
    match ending.as_str() {
        "qcow2" => Ok(ImageFormat::Qcow2),
        other if OTHER_ENDINGS.contains(&other) => Err(refuse(format!(
            "its name ends in .{other}, and only raw and qcow2 can be written"
        ))),
        _ => Ok(ImageFormat::Raw),
    }
}

/// Copies `source` to a block device, whose content is overwritten.
pub(crate) fn write_device(
    source: &dyn Source,
    path: &Path,
    existing: Existing,
    admit: impl FnOnce(&fs::Metadata) -> Outcome<()>,
    progress: &Progress,
) -> Outcome<()> {
    if existing == Existing::Keep {
        return Err(in_the_way(path));
    }
    let mut device = DeviceSink::open(path, source.size(), admit)?;
    device.fill(|sink| copy::copy(source, sink, progress))
}

/// Fails early if an export to this path cannot succeed.
pub(crate) fn must_be_free(path: &Path, existing: Existing) -> Outcome<()> {
    match path.symlink_metadata() {
        Ok(_) if existing == Existing::Keep => return Err(in_the_way(path)),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            let what = format!("cannot write {}", path.display());
            return Err(os_error::io(what, &error));
        }
    }
    if device::is_there(path) {
        return Ok(());
    }
    must_be_for_a_file(path)?;
    match path.parent() {
        Some(folder) if !folder.is_dir() => {
            let what = format!("cannot write {}", path.display());
            let folder = folder.display();
            Err(Problem::new(ProblemCode::NotFound, what)
                .because(format!("there is no directory {folder}"))
                .remedy(format!(
                    "correct the path, or create the directory: mkdir -p {folder}"
                )))
        }
        _ => Ok(()),
    }
}

/// Copies `source` into a new file at `path`, which has the name `draft` until it is complete.
pub(crate) fn write(
    source: &dyn Source,
    draft: &Path,
    path: &Path,
    format: ImageFormat,
    existing: Existing,
    progress: &Progress,
) -> Outcome<()> {
    must_be_for_a_file(path)?;
    if existing == Existing::Keep && path.symlink_metadata().is_ok() {
        return Err(in_the_way(path));
    }
    let written = match format {
        ImageFormat::Raw => write_raw(source, draft, progress),
        ImageFormat::Qcow2 => write_qcow2(source, draft, progress),
        other => Err(
            os_error::invalid(format!("cannot write {}", path.display()))
                .because(format!("{} can be read, but not written", other.word()))
                .remedy("use --format raw or --format qcow2"),
        ),
    };
    let written = written.and_then(|()| publish(draft, path, existing));
    // After a successful rename there is no draft. The first error matters; if the removal fails too, that leaves only
    // a leftover.
    match fs::remove_file(draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %draft.display(), "cannot remove the file of an interrupted export");
        }
        Ok(()) | Err(_) => {}
    }
    written
}

fn write_raw(source: &dyn Source, draft: &Path, progress: &Progress) -> Outcome<()> {
    let what = || format!("cannot write {}", draft.display());
    let file = File::options()
        .write(true)
        .create_new(true)
        .open(draft)
        .and_then(|file| {
            file.set_len(source.size())?;
            Ok(file)
        })
        .map_err(|e| os_error::io(what(), &e))?;
    let mut sink = RawFile::new(file, source.size());
    copy::copy(source, &mut sink, progress)?;
    sink.sync().map_err(|e| os_error::io(what(), &e))
}

fn write_qcow2(source: &dyn Source, draft: &Path, progress: &Progress) -> Outcome<()> {
    let what = || format!("cannot write {}", draft.display());
    let create = || -> io::Result<FormatAccess<ImagoFile>> {
        let options = StorageCreateOptions::new().filename(draft);
        let file = ImagoFile::create_open(options)?;
        let image = Qcow2::<ImagoFile>::create_builder(file)
            .size(source.size())
            .create_open(imago::DenyImplicitOpenGate::default(), |file| {
                use imago::FormatDriverBuilder;
                Ok(Qcow2::<ImagoFile>::builder(file).backing(None).write(true))
            })?;
        Ok(FormatAccess::new(image))
    };
    let mut sink = Qcow2Sink(create().map_err(|e| os_error::io(what(), &e))?);
    copy::copy(source, &mut sink, progress)?;
    sink.0
        .flush()
        .and_then(|()| sink.0.sync())
        .map_err(|e| os_error::io(what(), &e))
}

struct Qcow2Sink(FormatAccess<ImagoFile>);

impl Sink for Qcow2Sink {
    fn write(&mut self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.0.write(buffer, offset)
    }
}

/// Renames the complete file to its final name, durably.
fn publish(draft: &Path, path: &Path, existing: Existing) -> Outcome<()> {
    let what = || format!("cannot write {}", path.display());
    // A device or a pipe may have been created there during the copy.
    must_be_for_a_file(path)?;
    let renamed = match existing {
        Existing::Replace => fs::rename(draft, path),
        Existing::Keep => match rename_new(draft, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(in_the_way(path));
            }
            renamed => renamed,
        },
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    renamed
        .and_then(|()| files::sync_folder(folder))
        .map_err(|e| os_error::io(what(), &e))
}

/// Renames a file within its directory, unless the new name exists.
fn rename_new(draft: &Path, path: &Path) -> io::Result<()> {
    match (path.parent(), draft.file_name(), path.file_name()) {
        (Some(folder), Some(from), Some(to)) => Folder::named(folder)?.rename_new(from, to),
        _ => Err(io::ErrorKind::InvalidFilename.into()),
    }
}

/// The path of the file until it is complete. Another export may write to the same file meanwhile, also from another
/// host or container with the same process IDs. So its name is random. It does not include the file's name, which may
/// already have the maximum length.
pub(crate) fn draft(path: &Path) -> Outcome<PathBuf> {
    if path.file_name().is_none() {
        return Err(
            os_error::invalid(format!("{} is not the path of a file", path.display()))
                .remedy("name the image file, such as disk.img"),
        );
    }
    Ok(path.with_file_name(format!(".{}{PARTIAL}", new_uuid()?)))
}

/// Removes the draft of an export that was interrupted when the daemon ended: only a plain file with a draft's name.
pub(crate) fn remove_leftover(draft: &Path) -> io::Result<()> {
    let name = draft.file_name().and_then(|name| name.to_str());
    let uuid = name.and_then(|name| name.strip_prefix('.')?.strip_suffix(PARTIAL));
    if uuid.is_none_or(|uuid| Uuid::try_from(uuid.to_owned()).is_err()) {
        let text = "it does not have the name of an export's draft";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    match draft.symlink_metadata() {
        Ok(there) if there.is_file() => fs::remove_file(draft),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a plain file",
        )),
        Err(error) => Err(error),
    }
}

/// Refuses a path where a rename would replace something other than a file, such as `/dev/null`. Also refuses a missing
/// device's path, where a file would be stored in the kernel's memory.
fn must_be_for_a_file(path: &Path) -> Outcome<()> {
    let refuse = |why: &str, hint: &str| {
        Err(
            os_error::invalid(format!("cannot write {}", path.display()))
                .because(why)
                .remedy(hint),
        )
    };
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    let among_devices =
        |folder: &Path| folder.starts_with("/dev") && !folder.starts_with("/dev/shm");
    if folder.is_some_and(|folder| among_devices(&folder)) {
        return refuse(
            "no block device is there, and no image file is written below /dev",
            "look for the device with `lsblk -p`, or name a file in another directory",
        );
    }
    match path.metadata() {
        Ok(there) if there.is_dir() => refuse(
            "a directory is there",
            "name the image file, such as disk.img in that directory",
        ),
        Ok(there) if !there.is_file() => refuse(
            "the path names neither a plain file nor a block device",
            "choose another file",
        ),
        // Nothing exists there, or nothing visible: the copy itself then reports why it fails.
        Ok(_) | Err(_) => Ok(()),
    }
}

fn in_the_way(path: &Path) -> Problem {
    Problem::new(
        ProblemCode::Exists,
        format!("cannot write {}", path.display()),
    )
    .because("it exists")
    .remedy("choose another file, or add --replace")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(source: &dyn Source, path: &Path, existing: Existing) -> Outcome<()> {
        let (draft, progress) = (draft(path)?, Progress::default());
        write(source, &draft, path, ImageFormat::Raw, existing, &progress)
    }

    #[test]
    fn a_name_as_long_as_the_file_system_takes_is_exported_to_and_a_longer_one_is_refused_at_once()
    {
        let folder = tempfile::tempdir().unwrap();
        let source = tempfile::tempfile().unwrap();
        source.set_len(8192).unwrap();
        let source = RawFile::new(source, 8192);
        let path = folder.path().join("x".repeat(255));
        must_be_free(&path, Existing::Keep).unwrap();
        export(&source, &path, Existing::Keep).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
        let path = folder.path().join("x".repeat(256));
        for existing in [Existing::Keep, Existing::Replace] {
            let refused = must_be_free(&path, existing).unwrap_err();
            assert_eq!(refused.code, ProblemCode::Invalid, "{refused}");
            assert!(refused.remedy.unwrap().starts_with("use a shorter name"));
        }
    }

    #[test]
    fn what_an_export_left_is_removed_and_nothing_of_another_name_or_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.img");
        let (left, link) = (draft(&path).unwrap(), draft(&path).unwrap());
        fs::write(&path, "precious").unwrap();
        fs::write(&left, "half").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let other = folder.path().join(".out.img.partial");
        fs::write(&other, "precious").unwrap();
        remove_leftover(&left).unwrap();
        assert!(!left.exists());
        for kept in [&path, &link, &other] {
            remove_leftover(kept).unwrap_err();
            assert!(kept.symlink_metadata().is_ok());
        }
        let gone = remove_leftover(&left).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn an_export_replaces_a_file_only_if_asked_and_leaves_nothing_when_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.img");
        fs::write(&path, "precious").unwrap();
        let source = tempfile::tempfile().unwrap();
        source.set_len(8192).unwrap();
        let source = RawFile::new(source, 8192);
        let refused = export(&source, &path, Existing::Keep);
        assert_eq!(refused.unwrap_err().code, ProblemCode::Exists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        export(&source, &path, Existing::Replace).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_export_replaces_nothing_but_a_plain_file_and_makes_none_among_devices() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("directory")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        symlink("socket", at("link")).unwrap();
        symlink("/dev", at("devices")).unwrap();
        let source = tempfile::tempfile().unwrap();
        source.set_len(8192).unwrap();
        let source = RawFile::new(source, 8192);
        for (path, reason) in [
            (at("directory"), "a directory is there"),
            (at("socket"), "neither a plain file"),
            (at("link"), "neither a plain file"),
            (at("devices/tidegate-absent"), "below /dev"),
        ] {
            let before = path.symlink_metadata().ok().map(|there| there.file_type());
            for existing in [Existing::Keep, Existing::Replace] {
                let refused = export(&source, &path, existing);
                let text = refused.unwrap_err().to_string();
                assert!(text.contains(reason), "{}: {text}", path.display());
            }
            let after = path.symlink_metadata().ok().map(|there| there.file_type());
            assert_eq!(before, after, "{}", path.display());
        }
        // A file that appears there during the copy is checked too.
        fs::write(at("draft"), "whole").unwrap();
        publish(&at("draft"), &at("socket"), Existing::Replace).unwrap_err();
        assert!(at("draft").exists());
    }

    #[test]
    fn two_exports_to_one_file_leave_each_others_drafts_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.img");
        let [one, two] = [draft(&path).unwrap(), draft(&path).unwrap()];
        assert_ne!(one, two);
        fs::write(&one, "whole").unwrap();
        let source = tempfile::tempfile().unwrap();
        source.set_len(8192).unwrap();
        // The size exceeds its source's: the export fails at the end, and removes its own draft.
        let cut = RawFile::new(source, 16384);
        export(&cut, &path, Existing::Keep).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        publish(&one, &path, Existing::Keep).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn a_files_name_tells_its_format_or_the_export_is_refused() {
        let format = |file: &str, format| {
            let order = DiskExport {
                snapshot: None,
                file: file.into(),
                format,
                existing: Existing::Keep,
            };
            format_of(&order, "cannot export it")
        };
        for (file, expected) in [
            ("/a/b.qcow2", ImageFormat::Qcow2),
            ("/a/b.QCOW2", ImageFormat::Qcow2),
            ("/a/b.img", ImageFormat::Raw),
            ("/a/b.raw", ImageFormat::Raw),
            ("/a/b", ImageFormat::Raw),
        ] {
            assert_eq!(format(file, None).unwrap(), expected, "{file}");
        }
        for ending in ["vmdk", "VMDK", "vhdx", "vdi", "vhd", "qcow", "gz", "zst"] {
            let file = format!("/a/b.{ending}");
            let refused = format(&file, None).unwrap_err();
            assert_eq!(refused.code, ProblemCode::Unsupported, "{file}");
            assert!(refused.to_string().contains("--format"), "{refused}");
            let raw = format(&file, Some(ImageFormat::Raw));
            assert_eq!(raw.unwrap(), ImageFormat::Raw, "it is forced");
        }
        for unwritten in [ImageFormat::Vmdk, ImageFormat::Vhdx, ImageFormat::Vdi] {
            assert!(format("/a/b", Some(unwritten)).is_err());
        }
    }
}
