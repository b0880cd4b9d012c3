//! Writes a disk to an image file: raw with holes, or qcow2.
//!
//! # Always true
//! - The file has its name only once it is whole and durable; a failed or cancelled export leaves nothing.
//! - Nobody else writes into its draft, or takes it away: each export's draft has a name of its own.
//! - A file that is there already is replaced only if that was asked for.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use imago::file::File as ImagoFile;
use imago::qcow2::Qcow2;
use imago::{FormatAccess, FormatCreateBuilder, Storage, StorageCreateOptions};
use tidegate_api::job::{Existing, ImageFormat};
use tidegate_api::problem::{Problem, ProblemCode};

use crate::copy::{self, RawFile, Sink, Source};
use crate::jobs::Progress;
use crate::keeper::new_uuid;
use crate::store::files;
use crate::trouble::{self, Outcome};

/// The format that a file's name asks for, if nobody says.
pub(crate) fn format_of(path: &Path) -> ImageFormat {
    match path
        .extension()
        .is_some_and(|extension| extension == "qcow2")
    {
        true => ImageFormat::Qcow2,
        false => ImageFormat::Raw,
    }
}

/// Copies `source` into a new file at `path`.
pub(crate) fn write(
    source: &RawFile,
    path: &Path,
    format: ImageFormat,
    existing: Existing,
    progress: &Progress,
) -> Outcome<()> {
    if existing == Existing::Keep && path.symlink_metadata().is_ok() {
        return Err(in_the_way(path));
    }
    let draft = draft(path)?;
    let written = match format {
        ImageFormat::Raw => write_raw(source, &draft, progress),
        ImageFormat::Qcow2 => write_qcow2(source, &draft, progress),
    };
    let written = written.and_then(|()| publish(&draft, path, existing));
    if written.is_err() {
        // The first cause matters; that the draft could not be removed either is only a leftover.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %draft.display(), "cannot remove what a failed export left");
            }
            Ok(()) | Err(_) => {}
        }
    }
    written
}

fn write_raw(source: &RawFile, draft: &Path, progress: &Progress) -> Outcome<()> {
    let what = || format!("cannot write {}", draft.display());
    let file = File::options()
        .write(true)
        .create_new(true)
        .open(draft)
        .and_then(|file| {
            file.set_len(source.size())?;
            Ok(file)
        })
        .map_err(|e| trouble::io(what(), &e))?;
    let mut sink = RawFile::new(file, source.size());
    copy::copy(source, &mut sink, progress)?;
    sink.sync().map_err(|e| trouble::io(what(), &e))
}

fn write_qcow2(source: &RawFile, draft: &Path, progress: &Progress) -> Outcome<()> {
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
    let mut sink = Qcow2Sink(create().map_err(|e| trouble::io(what(), &e))?);
    copy::copy(source, &mut sink, progress)?;
    sink.0
        .flush()
        .and_then(|()| sink.0.sync())
        .map_err(|e| trouble::io(what(), &e))
}

struct Qcow2Sink(FormatAccess<ImagoFile>);

impl Sink for Qcow2Sink {
    fn write(&mut self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.0.write(buffer, offset)
    }
}

/// Gives the complete file its name, durably.
fn publish(draft: &Path, path: &Path, existing: Existing) -> Outcome<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let what = || format!("cannot write {}", path.display());
    let renamed = match existing {
        Existing::Replace => fs::rename(draft, path),
        Existing::Keep => match renameat_with(CWD, draft, CWD, path, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => return Err(in_the_way(path)),
            // Some file systems cannot promise it; it was not there when the export began.
            Err(rustix::io::Errno::INVAL) => fs::rename(draft, path),
            other => other.map_err(io::Error::from),
        },
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    renamed
        .and_then(|()| files::sync_folder(folder))
        .map_err(|e| trouble::io(what(), &e))
}

/// Where it is written until it is whole. Another export may go to the same file meanwhile, from another host or container
/// too, whose processes have the same numbers: so it is drawn by lot.
fn draft(path: &Path) -> Outcome<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(trouble::invalid(format!(
            "{} is no file's path",
            path.display()
        )));
    };
    let mut draft = std::ffi::OsString::from(".");
    draft.push(name);
    draft.push(format!(".{}.partial", new_uuid()?));
    Ok(path.with_file_name(draft))
}

fn in_the_way(path: &Path) -> Problem {
    Problem::new(
        ProblemCode::Exists,
        format!("cannot write {}", path.display()),
    )
    .because("it is there already")
    .remedy("choose another file, or say that it may be replaced")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_replaces_a_file_only_if_asked_and_leaves_nothing_when_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.img");
        fs::write(&path, "precious").unwrap();
        let source = tempfile::tempfile().unwrap();
        source.set_len(8192).unwrap();
        let source = RawFile::new(source, 8192);
        let progress = Progress::default();
        let refused = write(&source, &path, ImageFormat::Raw, Existing::Keep, &progress);
        assert_eq!(refused.unwrap_err().code, ProblemCode::Exists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        write(
            &source,
            &path,
            ImageFormat::Raw,
            Existing::Replace,
            &progress,
        )
        .unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 8192);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
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
        let progress = Progress::default();
        // Longer than its source: it fails at the end, and takes its own draft away.
        let cut = RawFile::new(source, 16384);
        write(&cut, &path, ImageFormat::Raw, Existing::Keep, &progress).unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        publish(&one, &path, Existing::Keep).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn a_files_name_tells_its_format() {
        assert_eq!(format_of(Path::new("/a/b.qcow2")), ImageFormat::Qcow2);
        assert_eq!(format_of(Path::new("/a/b.img")), ImageFormat::Raw);
    }
}
