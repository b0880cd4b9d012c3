//! A chain of qcow2 images: what an image does not have is in the one beneath it.
//!
//! A restore reads backups with it. The files and their order come from the caller, and each image must name the one
//! beneath it; no name in an image is followed.
//!
//! # Always true
//! - Beyond the end of an image beneath another one there are zeroes.

use std::fs::File;
use std::io;

use super::Image;
use super::container::{Container, Mapped, Place};
use super::qcow2::Qcow2;
use crate::disks::copy::{Extent, Source};

/// One image of a chain.
pub(crate) struct Link {
    pub(crate) file: File,
    /// Bytes of the file.
    pub(crate) length: u64,
    /// Its name, for errors, and as the image above it names it.
    pub(crate) name: String,
}

/// A chain, the uppermost image first.
struct Chain {
    images: Vec<(String, Mapped<Qcow2>)>,
}

/// Opens a chain, whose uppermost image comes first.
///
/// # Errors
/// If a file is not such an image, or names another one beneath it. The error has the file's name.
pub(crate) fn open(links: Vec<Link>) -> io::Result<Image> {
    let mut beneath: Vec<Option<String>> =
        links.iter().map(|link| Some(link.name.clone())).collect();
    beneath.push(None);
    let mut images = Vec::new();
    for (link, beneath) in links.into_iter().zip(beneath.iter().skip(1)) {
        let file = Container::new(link.file, link.length);
        let layout = Qcow2::open_above(&file, beneath.as_deref());
        let layout = layout.map_err(|e| of(&link.name, &e))?;
        images.push((link.name, Mapped::new(file, layout)));
    }
    if images.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "no image was named",
        ));
    }
    Ok(Box::new(Chain { images }))
}

fn of(name: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{name}: {error}"))
}

impl Chain {
    /// The image that has the range at `offset`, if one has it; and how many bytes of it.
    fn find(&self, offset: u64, most: u64) -> io::Result<(u64, Option<(usize, Place)>)> {
        let mut length = most;
        for (nth, (name, image)) in self.images.iter().enumerate() {
            let Some(left) = image.size().checked_sub(offset).filter(|left| *left > 0) else {
                return Ok((length, None));
            };
            let found = image.find(offset, length.min(left));
            let (here, place) = found.map_err(|e| of(name, &e))?;
            match place {
                // Beyond the end of this image there are zeroes, which the range must not reach.
                Place::Absent => length = here,
                Place::Zero => return Ok((here, None)),
                Place::At(_) | Place::Packed => return Ok((here, Some((nth, place)))),
            }
        }
        Ok((length, None))
    }
}

impl Source for Chain {
    fn size(&self) -> u64 {
        self.images.first().map_or(0, |(_, image)| image.size())
    }

    fn extent(&self, offset: u64, most: u64) -> io::Result<(u64, Extent)> {
        let (length, found) = self.find(offset, most)?;
        let kind = match found {
            Some(_) => Extent::Data,
            None => Extent::Zero,
        };
        Ok((length, kind))
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let (mut rest, mut at) = (buffer, offset);
        while !rest.is_empty() {
            let (length, found) = self.find(at, rest.len() as u64)?;
            let length = usize::try_from(length).unwrap_or(rest.len());
            let (piece, after) = rest.split_at_mut(length);
            match found {
                None => piece.fill(0),
                Some((nth, _)) => {
                    let (name, image) = &self.images[nth];
                    image.read(piece, at).map_err(|e| of(name, &e))?;
                }
            }
            at += length as u64;
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::qcow2_writer::{CLUSTER, Qcow2Writer};
    use super::*;
    use std::path::Path;

    /// Writes an image of these clusters (a number, and the byte that fills it).
    fn write(
        folder: &Path,
        name: &str,
        size: u64,
        backing: Option<&str>,
        clusters: &[(u64, u8)],
    ) -> Link {
        let file = File::create_new(folder.join(name)).unwrap();
        let mut image = Qcow2Writer::new(file, size, backing.map(str::to_owned)).unwrap();
        for (cluster, byte) in clusters {
            let at = cluster * CLUSTER;
            let length = CLUSTER.min(size - at);
            let bytes = vec![*byte; usize::try_from(length).unwrap()];
            image.put(at, &bytes).unwrap();
        }
        image.finish().unwrap();
        link(folder, name)
    }

    fn link(folder: &Path, name: &str) -> Link {
        let file = File::open(folder.join(name)).unwrap();
        let length = file.metadata().unwrap().len();
        let name = name.to_owned();
        Link { file, length, name }
    }

    fn byte(image: &Image, at: u64) -> u8 {
        let mut one = [0xff];
        image.read(&mut one, at).unwrap();
        one[0]
    }

    /// Runs qemu-img, where it is installed.
    fn qemu_img(folder: &Path, words: &[&str]) -> Option<String> {
        let run = std::process::Command::new("qemu-img")
            .args(words)
            .current_dir(folder)
            .output();
        let run = run.ok()?;
        assert!(run.status.success(), "{words:?}: {run:?}");
        Some(String::from_utf8(run.stdout).unwrap())
    }

    #[test]
    fn what_an_image_has_hides_what_is_beneath_also_if_it_is_zeroes() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let small = 3 * CLUSTER + 512;
        let large = 9000 * CLUSTER + 1024;
        let full = [(0, 1), (1, 1), (2, 1), (3, 1)];
        write(folder, "1.qcow2", small, None, &full);
        write(
            folder,
            "2.qcow2",
            large,
            Some("1.qcow2"),
            &[(1, 2), (2, 0), (8500, 2)],
        );
        write(
            folder,
            "3.qcow2",
            large,
            Some("2.qcow2"),
            &[(2, 3), (9000, 3)],
        );
        let links = ["3.qcow2", "2.qcow2", "1.qcow2"].map(|name| link(folder, name));
        let chain = open(links.into()).unwrap();
        assert_eq!(chain.size(), large);
        let seen = |cluster: u64| byte(&chain, cluster * CLUSTER);
        assert_eq!([0, 1, 2, 3, 4, 8500, 9000].map(seen), [1, 2, 3, 1, 0, 2, 3]);
        assert_eq!(byte(&chain, small - 1), 1);
        assert_eq!(byte(&chain, small), 0, "beyond the end of the first image");
        let two = open(["2.qcow2", "1.qcow2"].map(|name| link(folder, name)).into()).unwrap();
        assert_eq!(byte(&two, 2 * CLUSTER), 0, "zeroes hide what is beneath");
        assert_eq!(
            two.extent(2 * CLUSTER, CLUSTER).unwrap(),
            (CLUSTER, Extent::Zero)
        );
        for name in ["1.qcow2", "2.qcow2", "3.qcow2"] {
            let _ = qemu_img(folder, &["check", name]);
        }
        if qemu_img(folder, &["convert", "-O", "raw", "3.qcow2", "all.raw"]).is_some() {
            let raw = std::fs::read(folder.join("all.raw")).unwrap();
            assert_eq!(raw.len() as u64, large);
            let mut read = vec![0xff; 4 << 20];
            for at in (0..large).step_by(read.len()) {
                let length = usize::try_from((large - at).min(read.len() as u64)).unwrap();
                chain.read(&mut read[..length], at).unwrap();
                let at = usize::try_from(at).unwrap();
                assert!(read[..length] == raw[at..at + length], "from {at} on");
            }
        }
    }

    #[test]
    fn an_image_must_name_the_one_that_is_beneath_it() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "1.qcow2", CLUSTER, None, &[(0, 1)]);
        write(folder, "2.qcow2", CLUSTER, Some("1.qcow2"), &[]);
        for (names, why) in [
            (vec!["2.qcow2"], "2.qcow2: it needs another file (1.qcow2)"),
            (vec!["1.qcow2", "2.qcow2"], "1.qcow2: "),
            (vec!["2.qcow2", "2.qcow2"], "2.qcow2: "),
            (vec![], "no image"),
        ] {
            let links = names.iter().map(|name| link(folder, name)).collect();
            let refused = open(links).err().unwrap();
            assert!(refused.to_string().starts_with(why), "{refused}");
        }
    }

    #[test]
    fn a_file_without_its_header_is_no_image() {
        let folder = tempfile::tempdir().unwrap();
        let file = File::create_new(folder.path().join("1.qcow2")).unwrap();
        let mut image = Qcow2Writer::new(file, CLUSTER, None).unwrap();
        image.put(0, &[7; 64 << 10]).unwrap();
        drop(image);
        assert!(open(vec![link(folder.path(), "1.qcow2")]).is_err());
    }

    #[test]
    #[should_panic(expected = "in order and by clusters")]
    fn an_image_is_written_in_order() {
        let mut image = Qcow2Writer::new(tempfile::tempfile().unwrap(), 4 * CLUSTER, None).unwrap();
        image.put(2 * CLUSTER, &[7; 64 << 10]).unwrap();
        let _ = image.put(CLUSTER, &[7; 64 << 10]);
    }
}
