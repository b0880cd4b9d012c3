//! Writes the image of one backup: everything of a disk, or what changed.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::path::Path;

use super::folder::digest;
use crate::disks::copy::{Extent, Progress, Source};
use crate::disks::formats::qcow2_writer::{CLUSTER, Qcow2Writer};
use crate::os_error::{self, Outcome};

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

/// What an image has.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'a> {
    /// All of the disk.
    Full,
    /// These ranges of the disk in bytes, ascending, on the backup in this file.
    Changed {
        ranges: &'a [Range<u64>],
        base: &'a str,
    },
}

/// What is known of a complete image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) file_bytes: u64,
    pub(crate) covered_bytes: u64,
    pub(crate) sha256: String,
}

/// Writes an image to a new file at `draft`, and makes it durable. The file is removed if that fails.
///
/// # Errors
/// The disk cannot be read, the file not written, or the job was cancelled.
pub(crate) fn write(
    source: &dyn Source,
    content: Content<'_>,
    draft: &Path,
    progress: &Progress,
) -> Outcome<Written> {
    let written = write_draft(source, content, draft, progress);
    if written.is_err() {
        match fs::remove_file(draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%error, path = %draft.display(), "cannot remove the file of an interrupted backup");
            }
            Ok(()) | Err(_) => {}
        }
    }
    written
}

fn write_draft(
    source: &dyn Source,
    content: Content<'_>,
    draft: &Path,
    progress: &Progress,
) -> Outcome<Written> {
    let failed = |e: &io::Error| os_error::io(format!("cannot write {}", draft.display()), e);
    let size = source.size();
    let (ranges, base) = match content {
        Content::Full => (std::slice::from_ref(&(0..size)).to_vec(), None),
        Content::Changed { ranges, base } => (by_cluster(ranges, size), Some(base.to_owned())),
    };
    let covered_bytes = ranges.iter().map(|range| range.end - range.start).sum();
    progress.expect(covered_bytes);
    let mut options = File::options();
    let file = options.read(true).write(true).create_new(true).open(draft);
    let file = file.map_err(|e| failed(&e))?;
    let mut image = Qcow2Writer::new(file, size, base).map_err(|e| failed(&e))?;
    let mut buffer = Vec::new();
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            progress.check()?;
            let left = range.end - at;
            let found = source.extent(at, left);
            let (length, kind) = found
                .map_err(|e| os_error::io(format!("cannot read the disk at byte {at}"), &e))?;
            let zeroes = match (kind, at + length >= range.end) {
                (Extent::Data, _) => 0,
                (Extent::Zero, true) => left,
                (Extent::Zero, false) => length / CLUSTER * CLUSTER,
            };
            if zeroes > 0 {
                image.zero(at, zeroes).map_err(|e| failed(&e))?;
                progress.skipped(zeroes);
                at += zeroes;
                continue;
            }
            let piece = length.next_multiple_of(CLUSTER).min(PIECE).min(left);
            buffer.resize(usize::try_from(piece).expect("a piece is small"), 0);
            source
                .read(&mut buffer, at)
                .map_err(|e| os_error::io(format!("cannot read the disk at byte {at}"), &e))?;
            image.put(at, &buffer).map_err(|e| failed(&e))?;
            progress.copied(piece);
            at += piece;
        }
    }
    let (file, file_bytes) = image.finish().map_err(|e| failed(&e))?;
    // The bytes of the file are read again, so that the checksum is of what is there.
    progress.expect(covered_bytes + file_bytes);
    Ok(Written {
        file_bytes,
        covered_bytes,
        sha256: digest(&file, progress)?,
    })
}

/// Ranges, extended to whole clusters, and those that touch joined.
fn by_cluster(ranges: &[Range<u64>], size: u64) -> Vec<Range<u64>> {
    let mut whole: Vec<Range<u64>> = Vec::new();
    for range in ranges
        .iter()
        .filter(|range| range.start < range.end.min(size))
    {
        let start = range.start / CLUSTER * CLUSTER;
        let end = range.end.next_multiple_of(CLUSTER).min(size);
        match whole.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => whole.push(start..end),
        }
    }
    whole
}
