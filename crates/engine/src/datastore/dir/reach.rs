//! Truncation of an image's file: detection, and which results are still valid.
//!
//! A disk's file has its full length from its creation on, so no write extends it. If another program truncates the
//! file, a write does extend it: the file is long again, and the range between is a hole that reads as zeroes. So the
//! image checks the guard before each write and before each completion. That costs one load ([`TruncationGuard`]), and
//! a length query for requests in the file's last page.
//!
//! # Always true
//! - a detected truncation stays detected, and nothing more is written
//! - a write that was in flight during a truncation is not acknowledged. It may have left a hole anywhere, so nothing
//!   is read any more
//!
//! # Picture
//! ```text
//!            truncated, no write in flight
//!   Whole ──────────────────────────────> Cut     the rest can be read; a read beyond it is an error
//!     │ truncated, and grown again          │ grown again
//!     │ or a write in flight                v
//!     └─────────────────────────────────> Torn    any of it may be a hole: nothing can be read
//! ```

use crate::datastore::condition::{Condition, Harm};
use crate::sys::os;
use crate::sys::truncation_guard::TruncationGuard;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tidegate_core::request::{DiskId, Op};

/// See the module.
pub(super) struct Reach {
    file: Arc<OwnedFd>,
    /// None if nothing is written, the file cannot be truncated, or it cannot be mapped. Then only failing reads detect
    /// a truncation.
    guard: Option<TruncationGuard>,
    found: Found,
    condition: Arc<Condition>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Whole,
    /// The file's end when the truncation was detected.
    Cut {
        end: u64,
    },
    Torn,
}

impl Reach {
    /// For a file of `end` bytes, if it can be truncated and is written here.
    pub(super) fn new(file: &Arc<OwnedFd>, end: Option<u64>, condition: Arc<Condition>) -> Reach {
        Reach {
            file: Arc::clone(file),
            guard: end.and_then(|end| armed(file, end)),
            found: Found::Whole,
            condition,
        }
    }

    /// The disk was resized to `end`; its file has the same length.
    pub(super) fn resized(&mut self, end: u64) {
        // A guard that has fired is not armed again.
        if self.guard.is_some() && self.is_whole() {
            self.guard = armed(&self.file, end);
        }
    }

    /// Whether no truncation was detected.
    #[inline]
    pub(super) fn is_whole(&self) -> bool {
        self.found == Found::Whole && self.guard.as_ref().is_none_or(TruncationGuard::is_intact)
    }

    /// Whether a write up to `end` is allowed, as far as is known.
    #[inline]
    pub(super) fn admits(&self, end: u64) -> bool {
        self.is_whole()
            && self
                .guard
                .as_ref()
                .is_none_or(|guard| reaches(guard, end, &self.file))
    }

    /// Whether the result of an operation is valid after a truncation.
    pub(super) fn is_valid(&self, op: Op) -> bool {
        match self.found {
            Found::Whole => true,
            Found::Cut { .. } => !op.modifies(),
            Found::Torn => false,
        }
    }

    /// The file was truncated, and may have grown since. `writing`: an operation in flight may have extended it again.
    #[cold]
    pub(super) fn notice(&mut self, disk: DiskId, writing: bool) {
        let end = os::length_now(&self.file).unwrap_or(0);
        let grown = match self.found {
            Found::Whole => self.guard.as_ref().is_some_and(|guard| guard.end() <= end),
            Found::Cut { end: before } if before < end => true,
            Found::Cut { .. } | Found::Torn => return,
        };
        let left = if writing || grown {
            self.found = Found::Torn;
            self.condition.note(Harm::Torn);
            "and it may have holes in place of data: nothing is read from it either"
        } else {
            self.found = Found::Cut { end };
            self.condition.note(Harm::Cut);
            "the rest of it can be read"
        };
        tracing::error!(
            disk = disk.0,
            end,
            "an image was truncated by another program: nothing more is written to it, {left}; detach the disk, restore the image, attach it again"
        );
    }
}

/// Whether the guarded file reaches `end`. Only for ends within its last page is it in question.
#[inline]
fn reaches(guard: &TruncationGuard, end: u64, file: &OwnedFd) -> bool {
    end <= guard.start() || os::length_now(file).is_ok_and(|len| len >= guard.end())
}

fn armed(file: &OwnedFd, end: u64) -> Option<TruncationGuard> {
    let armed = TruncationGuard::arm(file, end);
    armed
        .inspect_err(|error| {
            tracing::info!(%error, "an image cannot be mapped: only reads will detect a truncation by another program");
        })
        .ok()
}
