//! Opens the files that filters append to, by paths from API callers.
//!
//! [`attach`](super::Engine::attach) and `restack` call it before a filter starts. The blocking worker of the I/O
//! thread appends to the opened file.
//!
//! # Always true
//! - data is appended only to a file of this program (with a valid trace header), or to a new file
//! - a link as the last component is not followed, and only a regular file is opened
//! - a new file starts with a header, so that it is recognized even if the daemon ends early

use crate::error::{Error, Result};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use tidegate_core::filter::FilterKey;
use tidegate_core::filter::FilterSpec;
use tidegate_core::filter::trace::format::{HEADER, Header, TraceFault, TracedDisk};

/// Permissions of a new file: a trace contains no data of the guest.
const MODE: u32 = 0o644;

/// Opens the files that these filters append to.
pub(super) fn open_all(
    specs: &[(FilterKey, FilterSpec)],
) -> Result<Vec<(FilterKey, Arc<OwnedFd>)>> {
    let mut sides = Vec::new();
    for (key, spec) in specs {
        if let FilterSpec::Trace(trace) = spec {
            let file = open(Path::new(&trace.path), trace.disk)
                .map_err(|e| Error::io(format!("cannot open the trace file {}", trace.path), e))?;
            sides.push((*key, Arc::new(OwnedFd::from(file))));
        }
    }
    Ok(sides)
}

/// Opens a file to append a disk's trace to.
fn open(path: &Path, disk: TracedDisk) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        // Opening a device may have effects: a watchdog starts, a tape rewinds.
        Ok(found) if !found.is_file() => return Err(refusal("it is not a regular file")),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return make(path, disk),
        Err(error) => return Err(error),
    }
    let file = options().open(path)?;
    // Others may write to the directory, and may have replaced the file.
    if !file.metadata()?.is_file() {
        return Err(refusal("it is not a regular file"));
    }
    check_header(&file, disk)?;
    Ok(file)
}

/// Creates a file with the header of a block without records.
fn make(path: &Path, disk: TracedDisk) -> io::Result<File> {
    let file = options().create_new(true).mode(MODE).open(path)?;
    if let Err(error) = begin(&file, disk) {
        // Without its header it would not be recognized; it contains nothing.
        let _gone = fs::remove_file(path);
        return Err(error);
    }
    Ok(file)
}

/// Fails unless the file is a trace that can be appended to.
fn check_header(file: &File, disk: TracedDisk) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut head = [0; HEADER];
    match file.read_exact_at(&mut head, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            return Err(refusal("it is not a trace"));
        }
        Err(error) => return Err(error),
    }
    match Header::decode(&head) {
        // A blank trace, made before its disk was known.
        Ok(blank) if blank.disk == TracedDisk::default() && length == HEADER as u64 => {
            file.set_len(0)?;
            begin(file, disk)
        }
        Ok(_) => Ok(()),
        Err(TraceFault::Version(version)) => Err(refusal(&format!(
            "it is a trace of version {version}, which this program does not write"
        ))),
        Err(_) => Err(refusal("it is not a trace")),
    }
}

fn begin(mut file: &File, disk: TracedDisk) -> io::Result<()> {
    let header = Header {
        disk,
        records: 0,
        dropped: 0,
    };
    file.write_all(&header.encode())
}

/// Options to append and to read the header. A link is not followed, and a pipe does not block.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .append(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

fn refusal(why: &str) -> io::Error {
    let text =
        format!("{why}: name a file that does not exist yet, or one that a trace filter made");
    io::Error::new(ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const DISK: TracedDisk = TracedDisk {
        uuid: [7; 16],
        size: 4096,
        unix_origin: 1,
    };

    fn header(disk: TracedDisk) -> [u8; HEADER] {
        Header {
            disk,
            records: 0,
            dropped: 0,
        }
        .encode()
    }

    #[test]
    fn a_trace_is_written_to_a_regular_file_and_not_through_a_link_or_pipe() {
        let folder = tempfile::tempdir().expect("a directory");
        let at = |name: &str| folder.path().join(name);
        let open = |path: &Path| open(path, DISK);
        open(&at("trace")).expect("it is made");
        open(&at("trace")).expect("it is appended to");
        assert_eq!(fs::read(at("trace")).expect("it exists"), header(DISK));
        symlink(at("elsewhere"), at("link")).expect("a link");
        symlink(at("trace"), at("link-to-trace")).expect("a link");
        assert!(open(&at("link")).is_err());
        assert!(open(&at("link-to-trace")).is_err());
        assert!(!at("elsewhere").exists());
        let made = std::process::Command::new("mkfifo")
            .arg(at("pipe"))
            .status();
        assert!(made.expect("mkfifo runs").success());
        assert!(open(&at("pipe")).is_err(), "the pipe has no reader");
        let reader = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(at("pipe"));
        assert!(open(&at("pipe")).is_err(), "the pipe has a reader");
        drop(reader);
        assert!(open(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn a_file_that_is_not_a_trace_is_refused_and_not_changed() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("file");
        let mut newer = header(DISK);
        newer[8] = 2;
        let mut damaged = header(DISK);
        damaged[20] ^= 1;
        let contents: [&[u8]; 6] = [
            b"",
            b"root:x:0:0:root:/root:/bin/bash\n",
            b"TIDETRAC",
            &[0; 4096],
            &newer,
            &damaged,
        ];
        for content in contents {
            fs::write(&path, content).expect("it can be written");
            let refused = open(&path, DISK).expect_err("it is refused").to_string();
            assert!(refused.contains("does not exist yet"), "{refused}");
            assert_eq!(fs::read(&path).expect("it exists"), content);
        }
    }

    #[test]
    fn a_trace_is_extended_and_a_blank_one_gets_its_disk() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("trace");
        fs::write(&path, header(TracedDisk::default())).expect("it can be written");
        let file = open(&path, DISK).expect("a blank one is taken");
        (&file).write_all(b"more").expect("it can be written");
        let other = TracedDisk {
            uuid: [8; 16],
            ..DISK
        };
        open(&path, other).expect("it is a trace");
        let expected = [&header(DISK)[..], b"more"].concat();
        assert_eq!(fs::read(&path).expect("it exists"), expected);
    }
}
