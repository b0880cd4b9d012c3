//! Image formats: recognises them by their first and last bytes, and reads those that can be imported.
//!
//! Import uses this, and so does `serve-one`, which accepts only raw images. This process reads all formats itself: it
//! runs no other program on an image, and opens no file except the named one.
//!
//! # Always true
//! - A file that is recognised as another format is never treated as a raw image, unless the user specifies `raw`.
//! - An unsupported format is refused by its name, with the command that converts the file to a supported one.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::Path;

use tidegate_api::job::ImageFormat;
use tidegate_api::problem::{Problem, ProblemCode};

use crate::disks::copy::{RawFile, Source};
use crate::os_error::{self, Outcome};
use crate::text::{quoted, shell};
use container::{Container, Mapped};

pub(crate) mod chain;
mod container;
mod qcow2;
pub(crate) mod qcow2_writer;
#[cfg(test)]
mod tests;
mod vdi;
mod vhdx;
mod vmdk;
mod vpc;

/// An image whose format was recognised.
pub(crate) type Image = Box<dyn Source + Send>;

/// A format that is neither raw nor supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Foreign {
    /// Its name.
    name: &'static str,
    way: Way,
}

/// The way to convert it to a file that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// With `qemu-img convert`, which has this name for the format.
    Convert(&'static str),
    /// With `qemu-img convert` and a key.
    Decrypt(&'static str),
    /// With this command, which writes a file or a directory next to it.
    Unpack(&'static str),
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recognised {
    Known(ImageFormat),
    Foreign(Foreign),
}

/// The intended use of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Import,
    /// To serve it as it is.
    Serve,
}

/// Formats by the bytes at this offset.
const BEGINNINGS: &[(usize, &[u8], Foreign)] = &[
    (0, b"QED\0", converted("a qed image", "qed")),
    (
        0,
        b"WithoutFreeSpace",
        converted("a Parallels image", "parallels"),
    ),
    (
        0,
        b"WithouFreSpacExt",
        converted("a Parallels image", "parallels"),
    ),
    (
        0,
        b"Bochs Virtual HD Image",
        converted("a Bochs image", "bochs"),
    ),
    (
        0,
        b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop",
        converted("a cloop image", "cloop"),
    ),
    (0, b"COWD", converted("a VMware ESX image", "vmdk")),
    (
        0,
        b"\xbe\xba\xfe\xca\0\0\0\0",
        converted("a VMware sesparse image", "vmdk"),
    ),
    (
        0,
        b"# Disk DescriptorFile",
        converted("a VMDK description, whose data lies in other files", "vmdk"),
    ),
    (
        0,
        b"LUKS\xba\xbe",
        Foreign {
            name: "encrypted (LUKS)",
            way: Way::Decrypt("driver=luks,file.filename=FILE,key-secret=key"),
        },
    ),
    (0, b"\x1f\x8b\x08", unpacked("a gzip file", "gzip -dk")),
    (0, b"\xfd7zXZ\0", unpacked("an xz file", "xz -dk")),
    (0, b"\x28\xb5\x2f\xfd", unpacked("a zstd file", "zstd -dk")),
    (0, b"\x04\x22\x4d\x18", unpacked("an lz4 file", "lz4 -dk")),
    (0, b"LZIP", unpacked("an lzip file", "lzip -dk")),
    (4, b"1AY&SY", unpacked("a bzip2 file", "bzip2 -dk")),
    (0, b"PK\x03\x04", unpacked("a zip file", "unzip")),
    (0, b"7z\xbc\xaf\x27\x1c", unpacked("a 7-Zip file", "7z x")),
    (
        257,
        b"ustar",
        unpacked("a tar archive (as an OVA is)", "tar -xf"),
    ),
];

const fn converted(name: &'static str, format: &'static str) -> Foreign {
    let way = Way::Convert(format);
    Foreign { name, way }
}

const fn unpacked(name: &'static str, command: &'static str) -> Foreign {
    let way = Way::Unpack(command);
    Foreign { name, way }
}

/// Opens the image in a file of this many bytes. The format is recognised by content if none is given.
pub(crate) fn open(
    file: File,
    length: u64,
    path: &Path,
    format: Option<ImageFormat>,
) -> Outcome<Image> {
    let what = || format!("cannot read the image {}", path.display());
    let file = Container::new(file, length);
    let format = match format {
        Some(format) => {
            must_be(format, &file, path)?;
            format
        }
        None => {
            let fixed = is_fixed_vpc(&file).map_err(|e| os_error::io(what(), &e))?;
            match recognise(&file).map_err(|e| os_error::io(what(), &e))? {
                Recognised::Known(format) if fixed && format != ImageFormat::Vpc => {
                    return Err(ambiguous(what(), format));
                }
                Recognised::Known(format) => format,
                Recognised::Foreign(foreign) => {
                    let refused = foreign.refuse(what(), path, Purpose::Import);
                    return Err(if fixed { or_vpc(refused) } else { refused });
                }
            }
        }
    };
    if format == ImageFormat::Qcow2
        && let Some(foreign) = foreign_qcow(&file).map_err(|e| explain(&e, format, path))?
    {
        return Err(foreign.refuse(what(), path, Purpose::Import));
    }
    read(file, format).map_err(|error| explain(&error, format, path))
}

/// Fails if a file that is to be served byte for byte is recognised as something other than a raw image.
pub(crate) fn must_be_raw(path: &Path) -> Outcome<()> {
    let what = || format!("cannot serve {}", path.display());
    let failed = |e: io::Error| os_error::io(what(), &e);
    let mut file = File::open(path).map_err(failed)?;
    let length = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let file = Container::new(file, length);
    let format = match recognise(&file).map_err(failed)? {
        Recognised::Known(ImageFormat::Raw) => return Ok(()),
        Recognised::Known(format) => format,
        Recognised::Foreign(foreign) => return Err(foreign.refuse(what(), path, Purpose::Serve)),
    };
    // A damaged qcow2 image is still a qcow2 image.
    if format == ImageFormat::Qcow2
        && let Ok(Some(foreign)) = foreign_qcow(&file)
    {
        return Err(foreign.refuse(what(), path, Purpose::Serve));
    }
    let word = format.word();
    Err(Problem::new(ProblemCode::Unsupported, what())
        .because(format!("it is a {word} image, {NOT_RAW}"))
        .remedy(format!(
            "{}; or import it into a daemon: tidegate disk import {} NAME{FORCED}",
            convert(word, path, Purpose::Serve),
            quoted(path)
        )))
}

/// Why an image of another format cannot be served.
const NOT_RAW: &str = "and only raw images are served as they are";

/// The remedy if a raw image looks like another format.
const FORCED: &str = "; if it is a raw image nevertheless, use --format raw";

/// Refuses a file whose first bytes contradict the format that the user specified.
fn must_be(format: ImageFormat, file: &Container, path: &Path) -> Outcome<()> {
    let what = || format!("cannot read the {} image {}", format.word(), path.display());
    if format == ImageFormat::Raw {
        return Ok(());
    }
    // A VHD of fixed size begins with its guest's data, which may look like anything.
    if format == ImageFormat::Vpc && is_fixed_vpc(file).map_err(|e| os_error::io(what(), &e))? {
        return Ok(());
    }
    let is = match recognise(file).map_err(|e| os_error::io(what(), &e))? {
        Recognised::Known(is) if is == format => return Ok(()),
        Recognised::Known(is) => is,
        Recognised::Foreign(foreign) => {
            return Err(foreign.refuse(what(), path, Purpose::Import));
        }
    };
    let why = match is {
        ImageFormat::Raw => format!("it does not begin like a {} image", format.word()),
        is => format!("it is a {} image", is.word()),
    };
    let is = is.word();
    Err(os_error::invalid(what()).because(why).remedy(format!(
        "omit --format, so that the format is detected, or use --format {is}"
    )))
}

fn read(file: Container, format: ImageFormat) -> io::Result<Image> {
    Ok(match format {
        ImageFormat::Raw => {
            let length = file.length();
            Box::new(RawFile::new(file.into_file(), length))
        }
        ImageFormat::Qcow2 => {
            let layout = qcow2::Qcow2::open(&file)?;
            Box::new(Mapped::new(file, layout))
        }
        ImageFormat::Vmdk => {
            let layout = vmdk::Vmdk::open(&file)?;
            Box::new(Mapped::new(file, layout))
        }
        ImageFormat::Vdi => {
            let layout = vdi::Vdi::open(&file)?;
            Box::new(Mapped::new(file, layout))
        }
        ImageFormat::Vpc => {
            let layout = vpc::Vpc::open(&file)?;
            Box::new(Mapped::new(file, layout))
        }
        ImageFormat::Vhdx => {
            let layout = vhdx::Vhdx::open(&file)?;
            Box::new(Mapped::new(file, layout))
        }
    })
}

/// Whether a file ends like a VHD of fixed size, regardless of its beginning.
fn is_fixed_vpc(file: &Container) -> io::Result<bool> {
    match file.length().checked_sub(512) {
        Some(at) => Ok(vpc::is_fixed(&file.array(at)?)),
        None => Ok(false),
    }
}

/// The error for a file that fits two formats, one of which its guest may have written.
fn ambiguous(what: String, format: ImageFormat) -> Problem {
    let word = format.word();
    Problem::new(ProblemCode::Unsupported, what)
        .because(format!(
            "it begins like a {word} image, and ends like a VHD of fixed size"
        ))
        .remedy(format!("name its format: --format {word} or --format vpc"))
}

/// The same error for a file that ends like a VHD of fixed size.
fn or_vpc(refused: Problem) -> Problem {
    let remedy = refused.remedy.clone().unwrap_or_default();
    refused.remedy(format!(
        "{remedy}; or, because it ends like a VHD of fixed size, use --format vpc"
    ))
}

/// Recognises the format of a file; raw if nothing contradicts that.
fn recognise(file: &Container) -> io::Result<Recognised> {
    let mut head = [0; 512];
    let mut tail = [0; 512];
    let has = usize::try_from(file.length()).unwrap_or(512).min(512);
    file.read(&mut head[..has], 0)?;
    if has == 512 {
        file.read(&mut tail, file.length() - 512)?;
    }
    let begins = |at: usize, magic: &[u8]| head[at..].starts_with(magic);
    let known = [
        (0, qcow2::MAGIC, ImageFormat::Qcow2),
        (0, vmdk::MAGIC, ImageFormat::Vmdk),
        (vdi::MAGIC.0, &vdi::MAGIC.1[..], ImageFormat::Vdi),
        (0, vhdx::MAGIC, ImageFormat::Vhdx),
        (0, vpc::MAGIC, ImageFormat::Vpc),
    ];
    if let Some((_, _, format)) = known.into_iter().find(|(at, magic, _)| begins(*at, magic)) {
        return Ok(Recognised::Known(format));
    }
    let foreign = BEGINNINGS.iter().find(|(at, magic, _)| begins(*at, magic));
    if let Some((_, _, foreign)) = foreign {
        return Ok(Recognised::Foreign(*foreign));
    }
    if is_description(&head) {
        let name = "a VMDK description, whose data lies in other files";
        return Ok(Recognised::Foreign(converted(name, "vmdk")));
    }
    if tail.starts_with(b"koly") {
        return Ok(Recognised::Foreign(converted("an Apple disk image", "dmg")));
    }
    Ok(Recognised::Known(match vpc::is_fixed(&tail) {
        true => ImageFormat::Vpc,
        false => ImageFormat::Raw,
    }))
}

/// Whether it is a VMDK description without the usual first line: comments and empty lines, then a version.
fn is_description(head: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(head.split(|byte| *byte == 0).next().unwrap_or(head)) else {
        return false;
    };
    let mut lines = text.lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    first.is_some_and(|line| {
        let version = line.to_ascii_lowercase().replace(' ', "");
        ["version=1", "version=2", "version=3"].contains(&version.as_str())
    })
}

/// A qcow file that is not supported: version 1, or encrypted.
fn foreign_qcow(file: &Container) -> io::Result<Option<Foreign>> {
    if file.array::<4>(0)? != qcow2::MAGIC {
        return Err(container::damaged("it does not begin like one"));
    }
    if file.be32(4)? == 1 {
        return Ok(Some(converted("a qcow image of version 1", "qcow")));
    }
    let keys = "driver=qcow2,file.filename=FILE,encrypt.key-secret=key";
    Ok(qcow2::is_encrypted(file)?.then_some(Foreign {
        name: "an encrypted qcow2 image",
        way: Way::Decrypt(keys),
    }))
}

impl Foreign {
    fn refuse(self, what: String, path: &Path, purpose: Purpose) -> Problem {
        let shown = quoted(path);
        let (then, forced) = match self.way {
            Way::Convert(format) => {
                let forced = match purpose {
                    Purpose::Import => "",
                    Purpose::Serve => FORCED,
                };
                (convert(format, path, purpose), forced)
            }
            Way::Decrypt(options) => {
                // A comma ends an option's value there, unless it is doubled.
                let file = path.display().to_string().replace(',', ",,");
                let options = shell(&options.replace("FILE", &file));
                let (into, then) = purpose.result();
                (
                    format!(
                        "decrypt it: qemu-img convert --object secret,id=key,file=KEYFILE --image-opts {options} \
                         -O {into} {then}"
                    ),
                    "; if the guest decrypts it, use --format raw",
                )
            }
            Way::Unpack(command) => (format!("unpack it first: {command} {shown}"), FORCED),
        };
        let why = match purpose {
            Purpose::Import => "which is not supported",
            Purpose::Serve => NOT_RAW,
        };
        Problem::new(ProblemCode::Unsupported, what)
            .because(format!("it is {}, {why}", self.name))
            .remedy(format!("{then}{forced}"))
    }
}

impl Purpose {
    /// The output format of `qemu-img convert`, the new file, and the next step.
    const fn result(self) -> (&'static str, &'static str) {
        match self {
            Purpose::Import => ("qcow2", "NEWFILE.qcow2, and import that"),
            Purpose::Serve => ("raw", "NEWFILE.img, and serve that"),
        }
    }
}

/// The command that converts it to a usable image.
fn convert(format: &str, path: &Path, purpose: Purpose) -> String {
    let (into, then) = purpose.result();
    let shown = quoted(path);
    format!("convert it: qemu-img convert -f {format} -O {into} {shown} {then}")
}

/// The error for a damaged or unsupported image, with a remedy.
pub(crate) fn explain(error: &io::Error, format: ImageFormat, path: &Path) -> Problem {
    let what = format!("cannot read the {} image {}", format.word(), path.display());
    let shown = quoted(path);
    let word = format.word();
    match error.kind() {
        io::ErrorKind::Unsupported => Problem::new(ProblemCode::Unsupported, what)
            .because_of(error)
            .remedy(format!(
                "if you trust it and every file that it names, {}",
                convert(word, path, Purpose::Import)
            )),
        // The only format that qemu-img can check and repair, if its header is valid.
        io::ErrorKind::InvalidData if format == ImageFormat::Qcow2 => {
            os_error::invalid(what).because_of(error).remedy(format!(
                "check whether it can be repaired: qemu-img check -f qcow2 {shown}"
            ))
        }
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::UnexpectedEof => {
            os_error::invalid(what)
                .because_of(error)
                .remedy("get it again from its source; if it is a raw image, use --format raw")
        }
        _ => os_error::io(what, error),
    }
}
