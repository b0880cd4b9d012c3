//! Creates a disk's image from an image file or a block device.
//!
//! A separate thread, the reader, opens and reads the source. The job receives the data and writes it. A source that
//! never responds blocks only the reader, and the job ends when it is cancelled. [`formats`] interprets the source's
//! bytes.
//!
//! # Always true
//! - Only the named file is opened, and only if it is a plain file or a block device.
//! - A cancelled job ends within [`LOOK`], whatever its source does.
//! - An image that an attached disk uses, in this or another daemon, is not read.

use std::fs::{self, File, Metadata};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use rustix::fs::OFlags;
use tidegate_api::job::{DiskImport, ImageFormat};
use tidegate_api::problem::{Problem, ProblemCode};
use tidegate_engine::datastore::dir;

use crate::disks::copy::Progress;
use crate::disks::copy::{self, Bytes, Piece, RawFile, Sink};
use crate::disks::formats::{self, Image};
use crate::disks::image_file;
use crate::files::{self, Location};
use crate::os_error::{self, Outcome};

/// How often a job that waits for its source checks for cancellation.
const LOOK: Duration = Duration::from_millis(100);

/// How long a command waits for its source to be opened. Then it returns a job that continues to wait. Most files open
/// sooner, and their errors are returned by the command itself.
const PROMPT: Duration = Duration::from_secs(2);

/// Pieces that are read ahead, so that the reader and the writer work in parallel.
const AHEAD: usize = 2;

/// Messages of the reader, in this order: the size, pieces, the end. An error ends the sequence.
enum Sent {
    Size(u64),
    Zero { at: u64, length: u64 },
    Data { at: u64, bytes: Vec<u8> },
    End,
}

/// A source that is being read.
pub(crate) struct Feed {
    sent: Receiver<Outcome<Sent>>,
    size: Option<u64>,
}

/// Begins to read an image. `admit` may refuse the file once it is open.
pub(crate) fn begin(
    order: &DiskImport,
    admit: impl FnOnce(&Metadata) -> Outcome<()> + Send + 'static,
) -> Outcome<Feed> {
    begin_within(PROMPT, order, admit)
}

fn begin_within(
    prompt: Duration,
    order: &DiskImport,
    admit: impl FnOnce(&Metadata) -> Outcome<()> + Send + 'static,
) -> Outcome<Feed> {
    let (sender, sent) = sync_channel(AHEAD);
    let (path, format) = (order.file.clone(), order.format);
    let what = format!("cannot read the image {}", path.display());
    std::thread::Builder::new()
        .name(format!("import-{}", order.name))
        .spawn(move || {
            let ended = read(&path, format, admit, &sender);
            // If there is no receiver any more, the job was cancelled.
            let _gone = sender.send(ended.map(|()| Sent::End));
        })
        .map_err(|e| os_error::io(what, &e))?;
    let mut feed = Feed { sent, size: None };
    match feed.sent.recv_timeout(prompt) {
        Ok(Ok(Sent::Size(size))) => feed.size = Some(size),
        Ok(Ok(_)) | Err(RecvTimeoutError::Disconnected) => return Err(ended_early()),
        Ok(Err(problem)) => return Err(problem),
        Err(RecvTimeoutError::Timeout) => {}
    }
    Ok(feed)
}

impl Feed {
    /// Size in bytes of the disk in the image, once the source is open.
    pub(crate) fn size(&mut self, progress: &Progress) -> Outcome<u64> {
        if let Some(size) = self.size {
            return Ok(size);
        }
        match self.next(progress)? {
            Sent::Size(size) => {
                self.size = Some(size);
                Ok(size)
            }
            _ => Err(ended_early()),
        }
    }

    /// Copies it to a new raw image, durably.
    pub(crate) fn copy_to(&mut self, path: &Path, progress: &Progress) -> Outcome<()> {
        let what = || format!("cannot write {}", path.display());
        let file = files::open(Location::in_disk(path), File::options().write(true))
            .map_err(|e| os_error::io(what(), &e))?;
        let mut sink = RawFile::new(file, self.size(progress)?);
        self.pour(&mut sink, progress)?;
        sink.sync().map_err(|e| os_error::io(what(), &e))
    }

    /// Copies the whole source.
    pub(crate) fn pour(&mut self, sink: &mut dyn Sink, progress: &Progress) -> Outcome<()> {
        progress.expect(self.size(progress)?);
        loop {
            let sent = self.next(progress)?;
            let (at, bytes) = match &sent {
                Sent::End => return Ok(()),
                Sent::Size(_) => return Err(ended_early()),
                Sent::Zero { at, length } => (*at, Bytes::Zero(*length)),
                Sent::Data { at, bytes } => (*at, Bytes::Data(bytes)),
            };
            copy::write(Piece { at, bytes }, sink, progress)?;
        }
    }

    fn next(&self, progress: &Progress) -> Outcome<Sent> {
        loop {
            progress.check()?;
            match self.sent.recv_timeout(LOOK) {
                Ok(sent) => return sent,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(ended_early()),
            }
        }
    }
}

fn ended_early() -> Problem {
    Problem::new(
        ProblemCode::Internal,
        "the program that reads the image ended early",
    )
    .remedy("see the daemon's log, and report this as a bug")
}

/// The reader's thread.
fn read(
    path: &Path,
    format: Option<ImageFormat>,
    admit: impl FnOnce(&Metadata) -> Outcome<()>,
    sender: &SyncSender<Outcome<Sent>>,
) -> Outcome<()> {
    let (image, _locked) = open(path, format, admit)?;
    let send = |sent| match sender.send(Ok(sent)) {
        Ok(()) => Ok(()),
        Err(_) => Err(Problem::new(ProblemCode::Stopping, "it was cancelled")
            .remedy("start it again if you still want it")),
    };
    send(Sent::Size(image.size()))?;
    copy::each_piece(&*image, &mut |piece| {
        let at = piece.at;
        send(match piece.bytes {
            Bytes::Zero(length) => Sent::Zero { at, length },
            Bytes::Data(bytes) => Sent::Data {
                at,
                bytes: bytes.to_vec(),
            },
        })
    })
    .map_err(|problem| problem.within(format!("cannot read the image {}", path.display())))
}

/// Prevents other daemons from writing to a file.
type Locked = Option<tidegate_engine::datastore::OpenedImage>;

fn open(
    path: &Path,
    format: Option<ImageFormat>,
    admit: impl FnOnce(&Metadata) -> Outcome<()>,
) -> Outcome<(Image, Locked)> {
    let what = || format!("cannot read the image {}", path.display());
    let failed = |e: std::io::Error| os_error::io(what(), &e);
    // A pipe is not opened at all: its writer would see the open as a reader.
    let there = fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => failed(e).remedy(
            "correct the path: the daemon must see the file (`ls -l` as its user, in its container); or pipe the image in: `tidegate disk import - NAME`",
        ),
        _ => failed(e),
    })?;
    must_be_image(&there, path)?;
    let nonblock = OFlags::NONBLOCK.bits().cast_signed();
    let mut file = File::options()
        .read(true)
        .custom_flags(nonblock)
        .open(path)
        .map_err(failed)?;
    let there = file.metadata().map_err(failed)?;
    must_be_image(&there, path)?;
    admit(&there)?;
    let locked = match there.is_file() {
        true => lock(path)?,
        false => None,
    };
    let length = file.seek(SeekFrom::End(0)).map_err(failed)?;
    let image = formats::open(file, length, path, format)?;
    Ok((image, locked))
}

fn must_be_image(there: &Metadata, path: &Path) -> Outcome<()> {
    let what = format!("cannot read the image {}", path.display());
    let instead = "give a plain file or a block device; pipe what a program writes into `tidegate disk import - NAME`";
    image_file::must_be_image(there, path, &what, instead)
}

/// Fails if another daemon has a file as the image of a disk. Prevents such a daemon from attaching it meanwhile.
fn lock(path: &Path) -> Outcome<Locked> {
    let options = dir::Options {
        read_only: true,
        patience: Duration::ZERO,
        buffered: true,
        ..Default::default()
    };
    match dir::open(path, options) {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.kind() == tidegate_engine::Kind::Busy => {
            let what = format!("cannot read the image {}", path.display());
            Err(Problem::new(ProblemCode::Locked, what)
                .because_of(&error)
                .remedy("detach its disk there first"))
        }
        // On a file system without locks, no daemon has one.
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests;
