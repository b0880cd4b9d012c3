//! Copies an image's data without its holes, and reports progress.
//!
//! Import and export are this loop between two images, which are accessed through [`Source`] and [`Sink`].
//!
//! # Always true
//! - Zeroes are never written to a new image: unwritten parts read as zeroes already.
//! - After each piece of at most [`PIECE`] bytes it checks for cancellation.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::os_error::{self, Outcome};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use tidegate_api::problem::{Problem, ProblemCode};

pub(crate) mod device;
pub(crate) mod session;

/// Bytes copied at a time: large enough for any disk's full speed, small enough for smooth progress reports.
const PIECE: usize = 1 << 20;

/// Granularity of the check for zeroes: the usual block size of file systems, so their smallest hole.
const GRAIN: usize = 4096;

/// A source of a copy.
pub(crate) trait Source {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// The kind of the range that begins at `offset`, and its length, at most `most` bytes.
    fn extent(&self, offset: u64, most: u64) -> io::Result<(u64, Extent)>;
    /// Fills the buffer from `offset` on.
    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

/// Whether a range has to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Data,
    Zero,
}

/// A destination of a copy.
pub(crate) trait Sink {
    /// Writes the buffer at `offset`.
    fn write(&mut self, buffer: &[u8], offset: u64) -> io::Result<()>;
    /// Makes a range read as zeroes. In a new image it does so already.
    fn zero(&mut self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }
}

/// A range of a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    /// Its offset.
    pub(crate) at: u64,
    pub(crate) bytes: Bytes<'a>,
}

/// The content of a range.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bytes<'a> {
    /// This many zeroes.
    Zero(u64),
    /// At most [`PIECE`] bytes of data.
    Data(&'a [u8]),
}

/// Progress of a job: written by its thread, read by queries, and cancelled by either.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
    pub(super) copied: AtomicU64,
    pub(super) cancelled: AtomicBool,
}

impl Progress {
    /// Sets the total number of bytes.
    pub(crate) fn expect(&self, total: u64) {
        self.total.store(total, Relaxed);
    }

    /// Adds bytes that were copied.
    pub(crate) fn copied(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
        self.copied.fetch_add(bytes, Relaxed);
    }

    /// Sets how many bytes are done, for work that counts them itself.
    pub(crate) fn is_at(&self, done: u64) {
        self.done.store(done, Relaxed);
        self.copied.store(done, Relaxed);
    }

    /// Everything is done.
    pub(crate) fn is_complete(&self) {
        self.done.store(self.total.load(Relaxed), Relaxed);
    }

    /// Adds bytes that needed no copy because they were a hole.
    pub(crate) fn skipped(&self, bytes: u64) {
        self.done.fetch_add(bytes, Relaxed);
    }

    /// Requests that the job stops.
    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    /// Fails if the job was cancelled.
    pub(crate) fn check(&self) -> Outcome<()> {
        match self.cancelled.load(Relaxed) {
            true => Err(Problem::new(ProblemCode::Stopping, "it was cancelled")
                .remedy("start it again if you still want it")),
            false => Ok(()),
        }
    }
}

/// Copies the whole source.
pub(crate) fn copy(source: &dyn Source, sink: &mut dyn Sink, progress: &Progress) -> Outcome<()> {
    progress.expect(source.size());
    each_piece(source, &mut |piece| {
        progress.check()?;
        write(piece, sink, progress)
    })
}

/// Reads the whole source in order, until a piece is not accepted.
pub(crate) fn each_piece(
    source: &dyn Source,
    take: &mut dyn FnMut(Piece<'_>) -> Outcome<()>,
) -> Outcome<()> {
    let size = source.size();
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < size {
        let extent = source.extent(at, size - at);
        let (length, kind) =
            extent.map_err(|e| os_error::io(format!("cannot map the image at byte {at}"), &e))?;
        if length == 0 {
            return Err(
                os_error::invalid(format!("the image ends at byte {at} of {size}")).remedy(
                    "it is damaged or truncated: check it, for example with `qemu-img check`",
                ),
            );
        }
        let length = match kind {
            Extent::Zero => {
                let bytes = Bytes::Zero(length);
                take(Piece { at, bytes })?;
                length
            }
            Extent::Data => {
                let length = usize::try_from(length).unwrap_or(PIECE).min(PIECE);
                let piece = &mut buffer[..length];
                source
                    .read(piece, at)
                    .map_err(|e| os_error::io(format!("cannot read at byte {at}"), &e))?;
                let bytes = Bytes::Data(piece);
                take(Piece { at, bytes })?;
                length as u64
            }
        };
        at += length;
    }
    Ok(())
}

/// Writes a piece, except its zeroes.
pub(crate) fn write(piece: Piece<'_>, sink: &mut dyn Sink, progress: &Progress) -> Outcome<()> {
    match piece.bytes {
        Bytes::Zero(length) => clear(piece.at, length, sink, progress),
        Bytes::Data(bytes) => put(bytes, piece.at, sink, progress),
    }
}

fn clear(at: u64, length: u64, sink: &mut dyn Sink, progress: &Progress) -> Outcome<()> {
    sink.zero(at, length)
        .map_err(|e| os_error::io(format!("cannot write zeroes at byte {at}"), &e))?;
    progress.skipped(length);
    Ok(())
}

fn put(piece: &[u8], at: u64, sink: &mut dyn Sink, progress: &Progress) -> Outcome<()> {
    let mut from = at;
    for run in piece
        .chunks(GRAIN)
        .collect::<Vec<_>>()
        .chunk_by(|a, b| is_zero(a) == is_zero(b))
    {
        let length: usize = run.iter().map(|grain| grain.len()).sum();
        let start = usize::try_from(from - at).expect("a piece is small");
        let bytes = &piece[start..start + length];
        let length = length as u64;
        if is_zero(run[0]) {
            clear(from, length, sink, progress)?;
        } else {
            sink.write(bytes, from)
                .map_err(|e| os_error::io(format!("cannot write at byte {from}"), &e))?;
            progress.copied(length);
        }
        from += length;
    }
    Ok(())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// A raw file, of which only the first bytes count.
#[derive(Debug)]
pub(crate) struct RawFile {
    file: File,
    size: u64,
}

impl RawFile {
    /// The first `size` bytes of a file.
    pub(crate) fn new(file: File, size: u64) -> RawFile {
        RawFile { file, size }
    }

    /// Makes all writes durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

impl Source for RawFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn extent(&self, offset: u64, most: u64) -> io::Result<(u64, Extent)> {
        use rustix::fs::SeekFrom;
        let seek = |from| match rustix::fs::seek(&self.file, from) {
            Ok(at) => Ok(Some(at)),
            // There is none up to the end of the file.
            Err(rustix::io::Errno::NXIO) => Ok(None),
            Err(error) => Err(io::Error::from(error)),
        };
        match seek(SeekFrom::Data(offset)) {
            Ok(Some(data)) if data <= offset => {
                let hole = seek(SeekFrom::Hole(offset))?.unwrap_or(offset + most);
                Ok((hole.saturating_sub(offset).clamp(1, most), Extent::Data))
            }
            Ok(Some(data)) => Ok(((data - offset).min(most), Extent::Zero)),
            // The missing part of a truncated file is not a hole: its former content is unknown.
            Ok(None) => match rustix::fs::seek(&self.file, SeekFrom::End(0))? {
                end if end < offset + most => Err(cut(end)),
                _ => Ok((most, Extent::Zero)),
            },
            // Block devices and some file systems cannot report holes: then everything may be data.
            Err(_) => Ok((most, Extent::Data)),
        }
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }
}

fn cut(end: u64) -> io::Error {
    let text = format!("it ends at byte {end}, earlier than expected: it may be truncated");
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

impl Sink for RawFile {
    fn write(&mut self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(buffer, offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Memory(Vec<u8>, Vec<(u64, usize)>);

    impl Sink for Memory {
        fn write(&mut self, buffer: &[u8], offset: u64) -> io::Result<()> {
            let at = usize::try_from(offset).unwrap();
            self.0[at..at + buffer.len()].copy_from_slice(buffer);
            self.1.push((offset, buffer.len()));
            Ok(())
        }
    }

    #[test]
    fn data_is_copied_and_holes_are_not() {
        let size = 5 * (PIECE as u64) + 777;
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(&[7; 5000], 2 * PIECE as u64 - 100)
            .unwrap();
        file.write_all_at(&[9; 10], size - 10).unwrap();
        let source = RawFile::new(file, size);
        let mut sink = Memory(vec![0; usize::try_from(size).unwrap()], Vec::new());
        let progress = Progress::default();
        copy(&source, &mut sink, &progress).unwrap();
        let mut expected = vec![0; sink.0.len()];
        source.read(&mut expected, 0).unwrap();
        assert!(sink.0 == expected);
        let written: usize = sink.1.iter().map(|(_, length)| length).sum();
        assert!(written < 10 * GRAIN, "{written} bytes were written");
    }

    #[test]
    fn what_a_file_lacks_at_its_end_is_no_hole() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 5000], 0).unwrap();
        file.set_len(3 * PIECE as u64).unwrap();
        let mut sink = Memory(vec![0; 4 * PIECE], Vec::new());
        let whole = RawFile::new(file.try_clone().unwrap(), 3 * PIECE as u64);
        copy(&whole, &mut sink, &Progress::default()).unwrap();
        for missing in [1, PIECE as u64] {
            let cut = RawFile::new(file.try_clone().unwrap(), 3 * PIECE as u64 + missing);
            let told = copy(&cut, &mut sink, &Progress::default()).unwrap_err();
            assert!(told.to_string().contains("it may be truncated"), "{told}");
        }
    }

    #[test]
    fn a_source_that_ends_early_is_an_error_and_not_an_endless_loop() {
        struct Short;
        impl Source for Short {
            fn size(&self) -> u64 {
                100
            }
            fn extent(&self, _: u64, _: u64) -> io::Result<(u64, Extent)> {
                Ok((0, Extent::Data))
            }
            fn read(&self, _: &mut [u8], _: u64) -> io::Result<()> {
                Ok(())
            }
        }
        let mut sink = Memory(Vec::new(), Vec::new());
        assert!(copy(&Short, &mut sink, &Progress::default()).is_err());
    }
}
