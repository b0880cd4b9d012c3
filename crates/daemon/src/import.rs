//! Makes a disk's image of a file in some format: raw or qcow2.
//!
//! Called by a job while the new disk is still a draft, so that a disk that can be seen is a disk that is whole.
//!
//! # Always true
//! - Only the named file is opened. A qcow2 file that leans on others (a backing file, an external data file) is
//!   refused: whoever made it could otherwise have the daemon read any file of the host.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use imago::file::File as ImagoFile;
use imago::qcow2::Qcow2;
use imago::{
    DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder, Mapping, Storage, StorageOpenOptions,
};
use tidegate_api::job::ImageFormat;

use crate::copy::{self, Extent, RawFile, Source};
use crate::jobs::Progress;
use crate::store::files::{self, Location};
use crate::trouble::{self, Outcome};

/// What every qcow2 file begins with.
const QCOW2_MAGIC: [u8; 4] = *b"QFI\xfb";

/// An image file that was opened and understood.
pub(crate) enum Image {
    Raw(RawFile),
    Qcow2(Box<Layered>),
}

/// A qcow2 image.
pub(crate) struct Layered {
    access: FormatAccess<ImagoFile>,
}

/// Opens an image file, whose format is told by its first bytes if nobody says.
pub(crate) fn open(path: &Path, format: Option<ImageFormat>) -> Outcome<Image> {
    let what = || format!("cannot read the image {}", path.display());
    let mut file = File::open(path).map_err(|e| trouble::io(what(), &e))?;
    let kind = file
        .metadata()
        .map_err(|e| trouble::io(what(), &e))?
        .file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(trouble::invalid(what()).because("it is neither a file nor a block device"));
    }
    let format = match format {
        Some(format) => format,
        None => probe(&mut file).map_err(|e| trouble::io(what(), &e))?,
    };
    match format {
        ImageFormat::Raw => {
            let size =
                crate::store::disks::device_size(path).map_err(|e| trouble::io(what(), &e))?;
            Ok(Image::Raw(RawFile::new(file, size)))
        }
        ImageFormat::Qcow2 => {
            // The named file is opened by us; whatever else the image asks for goes by the gate, which denies it.
            let file = ImagoFile::open(StorageOpenOptions::new().filename(path));
            let opened = file.and_then(|file| {
                Qcow2::<ImagoFile>::builder(file).open(DenyImplicitOpenGate::default())
            });
            let image = opened.map_err(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => trouble::invalid(what())
                    .because_of(&error)
                    .remedy("make it stand alone first: qemu-img convert -O qcow2 FILE NEWFILE"),
                _ => trouble::io(what(), &error).remedy("check it with `qemu-img check`"),
            })?;
            Ok(Image::Qcow2(Box::new(Layered {
                access: FormatAccess::new(image),
            })))
        }
    }
}

impl Image {
    /// Bytes of the disk inside.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Image::Raw(raw) => raw.size(),
            Image::Qcow2(image) => image.size(),
        }
    }

    /// Copies it to a new raw image, durably.
    pub(crate) fn copy_to(&self, path: &Path, progress: &Progress) -> Outcome<()> {
        let what = || format!("cannot write {}", path.display());
        let file = files::open(Location::in_disk(path), File::options().write(true))
            .map_err(|e| trouble::io(what(), &e))?;
        let mut sink = RawFile::new(file, self.size());
        match self {
            Image::Raw(raw) => copy::copy(raw, &mut sink, progress)?,
            Image::Qcow2(image) => copy::copy(&**image, &mut sink, progress)?,
        }
        sink.sync().map_err(|e| trouble::io(what(), &e))
    }
}

impl Source for Layered {
    fn size(&self) -> u64 {
        self.access.size()
    }

    fn extent(&self, offset: u64, most: u64) -> io::Result<(u64, Extent)> {
        let (mapping, length) = self.access.get_mapping(offset, most)?;
        let kind = match mapping {
            Mapping::Zero { .. } => Extent::Zero,
            // The end that comes before the end: no length, so that the copy complains.
            Mapping::Eof { .. } => return Ok((0, Extent::Zero)),
            _ => Extent::Data,
        };
        Ok((length, kind))
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.access.read(buffer, offset)
    }
}

fn probe(file: &mut File) -> io::Result<ImageFormat> {
    let mut magic = [0; 4];
    match file.read_exact(&mut magic) {
        Ok(()) if magic == QCOW2_MAGIC => Ok(ImageFormat::Qcow2),
        Ok(()) => Ok(ImageFormat::Raw),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(ImageFormat::Raw),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export;
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt};
    use tidegate_api::job::Existing;

    const SIZE: u64 = 40 << 20;

    fn pattern(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("raw");
        let file = File::create(&path).unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all_at(&[0x5a; 300_000], 1_234_567).unwrap();
        file.write_all_at(b"the end", SIZE - 7).unwrap();
        path
    }

    fn empty(folder: &Path) -> std::path::PathBuf {
        let path = folder.join("copy");
        File::create(&path).unwrap().set_len(SIZE).unwrap();
        path
    }

    #[test]
    fn a_disk_goes_out_as_qcow2_and_comes_back_the_same_and_as_sparse() {
        let folder = tempfile::tempdir().unwrap();
        let raw = pattern(folder.path());
        let qcow2 = folder.path().join("out.qcow2");
        let source = RawFile::new(File::open(&raw).unwrap(), SIZE);
        let progress = Progress::default();
        export::write(
            &source,
            &qcow2,
            ImageFormat::Qcow2,
            Existing::Keep,
            &progress,
        )
        .unwrap();
        assert!(fs::metadata(&qcow2).unwrap().len() < 2 << 20);

        let image = open(&qcow2, None).unwrap();
        assert!(matches!(image, Image::Qcow2(_)));
        assert_eq!(image.size(), SIZE);
        let copy = empty(folder.path());
        image.copy_to(&copy, &progress).unwrap();
        assert!(fs::read(&copy).unwrap() == fs::read(&raw).unwrap());
        assert!(fs::metadata(&copy).unwrap().blocks() * 512 < 2 << 20);
    }

    #[test]
    fn a_raw_image_comes_in_with_its_holes() {
        let folder = tempfile::tempdir().unwrap();
        let raw = pattern(folder.path());
        let copy = empty(folder.path());
        open(&raw, None)
            .unwrap()
            .copy_to(&copy, &Progress::default())
            .unwrap();
        assert!(fs::read(&copy).unwrap() == fs::read(&raw).unwrap());
        assert!(fs::metadata(&copy).unwrap().blocks() * 512 < 2 << 20);
    }

    #[test]
    fn a_qcow2_that_leans_on_another_file_is_refused_with_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("evil.qcow2");
        let source = RawFile::new(File::open(pattern(folder.path())).unwrap(), SIZE);
        let progress = Progress::default();
        export::write(
            &source,
            &path,
            ImageFormat::Qcow2,
            Existing::Keep,
            &progress,
        )
        .unwrap();
        // The header says where in its first cluster the backing file's name is, and how long: at 8 and at 16.
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(&4096u64.to_be_bytes(), 8).unwrap();
        file.write_all_at(&11u32.to_be_bytes(), 16).unwrap();
        file.write_all_at(b"/etc/passwd", 4096).unwrap();
        let Err(problem) = open(&path, None) else {
            panic!("it was opened")
        };
        let text = problem.to_string();
        assert!(
            text.contains("/etc/passwd") && text.contains("qemu-img convert"),
            "{text}"
        );
    }

    #[test]
    fn a_damaged_qcow2_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.qcow2");
        for length in [4usize, 20, 72, 200, 4096] {
            let mut bytes = vec![0xff; length];
            bytes[..4].copy_from_slice(&QCOW2_MAGIC);
            fs::write(&path, bytes).unwrap();
            assert!(open(&path, None).is_err(), "{length}");
        }
    }
}
